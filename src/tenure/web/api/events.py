"""The event streams for programs: every change, over the same feeds as the pages; and those of one job."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tenure.web.api.common import JobId, Reader, can, operation_id
from tenure.web.api.overview import stats
from tenure.web.job_events import JobFeeds, JobStream
from tenure.web.live import Feeds
from tenure.web.site import Site

router = APIRouter(tags=["events"], generate_unique_id_function=operation_id)
_EVERY = 0.2  #: seconds between two reads
_SCHEMA = {"text/event-stream": {"schema": {"type": "string"}}}
_JOB_SCHEMA = {
    "text/event-stream": {
        "schema": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/JobUpdate"},
        }
    }
}
_HAS_ALL = "The job has ended, and the client has received its last event: a browser does not reconnect."


@router.get("/events", response_class=StreamingResponse, responses={200: {"content": _SCHEMA}})
async def get_events(caller: Reader, request: Request) -> Response:
    """Server-sent events: `counts`, `rates`, `queues`, `workers` and `problems` as in /stats, when they change.

    At most five per second. The first has all of them. `away` says why the store does not answer, and is empty once
    it does. The stream ends after 15 minutes: reconnect.
    """
    feeds: Feeds = request.app.state.feeds
    return feeds.stream("events", lambda: _moving(caller.site), _EVERY)


@router.get(
    "/jobs/{id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": _JOB_SCHEMA}, 204: {"description": _HAS_ALL}, **can(404)},
)
async def get_job_events(
    caller: Reader,
    request: Request,
    id: JobId,  # noqa: A002
    last_event_id: Annotated[str, Header(description="The id of the last event received: it is not sent again.")] = "",
) -> Response:
    """Server-sent events: one job, whenever its state, progress, stage or message changes, until it has ended.

    The first event, sent at once, is how the job is now. The data of each is a `JobUpdate`, as JSON. Of several changes
    within a fifth of a second only the last is sent. Two further events have a name and the data `{"detail": …}`:
    `away` says why the store does not answer, and the next event that it does again; `end` says that the job has ended
    or is gone, and is the last: close the stream then. It also ends after 15 minutes: reconnect.
    """
    feeds: JobFeeds = request.app.state.job_feeds
    return JobStream(feeds, str(id), caller.user.payloads, last_event_id)


def _moving(site: Site) -> dict[str, str]:
    """Values by name, as JSON."""
    found = stats(site).model_dump(mode="json", exclude={"counts_age"})
    return {name: json.dumps(value) for name, value in found.items()}
