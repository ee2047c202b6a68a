"""The event stream for programs: every change, over the same feeds as the pages."""

from __future__ import annotations

import json

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tenure.web.api.common import Reader, operation_id
from tenure.web.api.overview import stats
from tenure.web.live import Feeds
from tenure.web.site import Site

router = APIRouter(tags=["events"], generate_unique_id_function=operation_id)
_EVERY = 0.2  #: seconds between two reads
_SCHEMA = {"text/event-stream": {"schema": {"type": "string"}}}


@router.get("/events", response_class=StreamingResponse, responses={200: {"content": _SCHEMA}})
async def get_events(caller: Reader, request: Request) -> Response:
    """Server-sent events: `counts`, `rates`, `queues`, `workers` and `problems` as in /stats, when they change.

    At most five per second. The first has all of them. `away` says why the store does not answer, and is empty once
    it does. The stream ends after 15 minutes: reconnect.
    """
    feeds: Feeds = request.app.state.feeds
    return feeds.stream("events", lambda: _moving(caller.site), _EVERY)


def _moving(site: Site) -> dict[str, str]:
    """Values by name, as JSON."""
    found = stats(site).model_dump(mode="json", exclude={"counts_age"})
    return {name: json.dumps(value) for name, value in found.items()}
