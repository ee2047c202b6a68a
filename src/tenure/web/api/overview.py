"""Statistics, queues, workers, the audit trail; metrics and health."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from tenure.core.durations import seconds
from tenure.errors import StoreAway, StoreError
from tenure.operations import pulse, queues
from tenure.operations.trends import Span
from tenure.operations.workers import StopVerb
from tenure.web.api.common import Administrator, Caller, NameOf, Operator, Reader, can, operation_id, site_of
from tenure.web.models import overview as models
from tenure.web.models.values import Changed, Cursor, Text
from tenure.web.site import Site

router = APIRouter(tags=["overview"], generate_unique_id_function=operation_id)
health = APIRouter(tags=["health"], generate_unique_id_function=operation_id)
WorkerId = Annotated[Text, Path(description="The worker's id.")]
How = Annotated[models.StopWorker | None, Body()]
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/stats")
def get_stats(caller: Reader) -> models.Stats:
    """Counts, rates, queues, workers, and what is wrong right now."""
    return stats(caller.site)


def stats(site: Site) -> models.Stats:
    counts = site.counts()
    return models.Stats(
        counts=models.Counts.of(counts.by_state),
        counts_age=counts.age,
        rates=models.Rates.of(pulse.rates(site.slices())),
        queues=[models.Queue.of(each) for each in site.queues()],
        workers=[models.Worker.of(each) for each in site.workers()],
        problems=[models.Trouble.like(each) for each in site.problems()],
    )


@router.get("/queues")
def get_queues(caller: Reader) -> models.Queues:
    """All queues that have live jobs, or are paused, and how their backlogs change.

    A change is measured between two requests, or reads by pages, that are at least ten seconds apart.
    """
    site = caller.site
    pauses = site.memo.get("pauses", site.admin.queues.pauses, fresh=0.5)
    found = queues.health(site.queues(), site.workers(), site.admin.now(), pauses=pauses, paces=site.paces())
    return models.Queues(queues=[models.QueueDetail.detailed(each) for each in found])


@router.post("/queues/{name}/pause", responses=can(404))
def pause_queue(
    caller: Operator,
    name: NameOf,
    how: Annotated[models.PauseQueue | None, Body()] = None,
    unchecked: Annotated[bool, Query(description="Also a queue that no job, worker or schedule has yet.")] = False,
) -> Changed:
    """No job of this queue starts until it is resumed; running jobs continue."""
    if not unchecked:
        caller.admin.queues.check_known(name, caller.site.declared_queues())
    changed = caller.admin.queues.pause(name, how.why if how else "")
    caller.site.acted()
    return Changed(changed=changed, says="paused" if changed else "it was already paused")


@router.post("/queues/{name}/resume")
def resume_queue(caller: Operator, name: NameOf) -> Changed:
    """Its jobs start again."""
    changed = caller.admin.queues.resume(name)
    caller.site.acted()
    return Changed(changed=changed, says="resumed" if changed else "it was not paused")


@router.get("/workers")
def get_workers(
    caller: Reader, dead: Annotated[bool, Query(description="Also those that died within the last day.")] = False
) -> models.Workers:
    """Workers, newest first."""
    found = caller.site.memo.get(("workers", dead), lambda: caller.site.admin.workers.all(dead=dead), fresh=0.15)
    stops = caller.site.memo.get("stops", caller.site.admin.workers.stops, fresh=0.3)
    return models.Workers(workers=[models.WorkerDetail.detailed(each, stops.get(each.identity.id)) for each in found])


@router.post("/workers/{id}/drain", responses=can(404, 409))
def drain_worker(caller: Operator, id: WorkerId, how: How = None) -> models.Stopping:  # noqa: A002
    """It finishes its running jobs, claims nothing more, and stops; nothing takes its place."""
    return _stop(caller, id, "drain", how)


@router.post("/workers/{id}/restart", responses=can(404, 409))
def restart_worker(caller: Operator, id: WorkerId, how: How = None) -> models.Stopping:  # noqa: A002
    """It finishes its running jobs and stops; then its supervisor starts another one."""
    return _stop(caller, id, "restart", how)


def _stop(caller: Caller, worker_id: str, verb: StopVerb, how: models.StopWorker | None) -> models.Stopping:
    grace = None if how is None or how.grace is None else seconds(how.grace, "grace")
    says = caller.admin.workers.stop(worker_id, verb, grace=grace)
    caller.site.acted()
    return models.Stopping(worker=worker_id, verb=verb, says=says)


@router.get("/trend")
def get_trend(
    caller: Reader,
    span: Annotated[Span, Query(description="15m by five seconds, 6h by five minutes, or 7d by the hour.")] = "15m",
    task: Annotated[Text | None, Query(description="Only the jobs of this task.")] = None,
) -> models.Trend:
    """How many jobs ended, how long they waited and ran, and how many failed: over time, and by task."""
    trend = caller.site.trend(span)
    trend = trend if task is None else trend.of(task)
    found = [each for each in trend.tasks if task is None or each.ended]
    return models.Trend(
        span=span,
        points=[models.Point.of(each) for each in trend.points],
        tasks=[models.TaskFigures.like(each) for each in found],
    )


@router.get("/audit")
def get_audit(
    caller: Administrator,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most to return.")] = 100,
    cursor: Cursor | None = None,
) -> models.Audit:
    """Audit entries, newest first."""
    found = caller.admin.audit(limit=limit, cursor=cursor)
    return models.Audit(entries=[models.AuditEntry.like(each) for each in found.entries], next=found.cursor)


@health.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_metrics(caller: Reader) -> Response:
    """Metrics of the whole store, in Prometheus's text format."""
    return Response(caller.site.memo.get("metrics", caller.admin.metrics, fresh=1.0), media_type=_METRICS)


@health.get("/healthz", responses={503: {"model": models.Health, "description": "The store is unavailable."}})
async def get_health(request: Request) -> models.Health:
    """Whether the store answers within two seconds. For probes: it needs no token, and reveals nothing else."""
    site = site_of(request)
    with suppress(StoreAway):
        if await site.probe.run(site.memo.get, "health", lambda: _answers(site), fresh=1.0):
            return models.Health(status="ok")
    return JSONResponse({"status": "away"}, 503, {"Retry-After": "5"})  # type: ignore[return-value]


def _answers(site: Site) -> bool:
    try:
        site.admin.ping()
    except StoreError:
        return False
    return True
