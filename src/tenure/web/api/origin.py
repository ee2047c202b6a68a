"""The endpoints of the small queue that Tenure grew out of, for its existing clients."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from tenure.core.lifecycle import State
from tenure.errors import InvalidOption
from tenure.ports import Filter
from tenure.web.api.common import Administrator, Operator, Reader, can, operation_id
from tenure.web.api.jobs import enqueue
from tenure.web.models import origin as models
from tenure.web.models.jobs import Enqueued
from tenure.web.models.overview import Counts
from tenure.web.security import Problem

router = APIRouter(prefix="/api", tags=["origin"], generate_unique_id_function=operation_id)


@router.get("/stats")
def stats(caller: Reader) -> models.PlainStats:
    """Jobs by state."""
    counts = Counts.of(caller.site.counts().by_state).model_dump()
    delayed = counts.pop("scheduled") + counts.pop("waiting")
    return models.PlainStats(active=counts.pop("queued"), delayed=delayed, **counts)


@router.get("/dlq")
def dlq(
    caller: Reader, limit: Annotated[int, Query(ge=1, le=200, description="The most to return.")] = 50
) -> list[models.DeadLetter]:
    """The newest dead letters."""
    page = caller.admin.jobs.search(Filter(states=frozenset({State.DEAD})), limit=limit)
    return [models.DeadLetter.of(job, caller.user.payloads) for job in page.jobs]


@router.post(
    "/enqueue",
    status_code=HTTPStatus.CREATED,
    responses={200: {"model": Enqueued, "description": "A live job has its unique key."}, **can(404, 409)},
)
def enqueue_plain(caller: Operator, job: models.PlainJob, response: Response) -> Enqueued:
    """Enqueue a job."""
    if (job.name is None) == (job.type is None):
        raise InvalidOption("expected the task's name, in name or in type")
    delay = f"{job.delay:f}s" if isinstance(job.delay, float | int) else job.delay
    return enqueue(caller, job.name or job.type or "", job.payload, response, queue=job.queue, delay=delay)


@router.post("/flush")
def flush(caller: Administrator) -> models.Flushed:
    """Empty the demo's queue, and no other; only in tenure demo --web."""
    demo = caller.site.demo
    if demo is None:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "Not a demo",
            "Only the queue of tenure demo --web can be emptied like this. To delete your jobs, use "
            "POST /api/v1/jobs/bulk, which counts them first.",
        )
    deleted = caller.admin.jobs.delete_all(Filter(queue=demo.queue), "flush")
    caller.site.acted()
    queue = next((each for each in caller.site.queues() if each.name == demo.queue), None)
    return models.Flushed(deleted=deleted, left=queue.counts.get(State.PROCESSING, 0) if queue else 0)
