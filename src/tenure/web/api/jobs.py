"""Jobs: search, enqueue, act on one or on all that match."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Unpack
from uuid import UUID

from fastapi import APIRouter, Body, Query, Response

from tenure.core.lifecycle import State
from tenure.errors import Refused
from tenure.operations import job_search
from tenure.operations.jobs import Acted, Verb
from tenure.operations.stacks import PATIENCE_SECONDS
from tenure.ports import Filter
from tenure.tasks.named import Using, own_job
from tenure.tasks.task import Task
from tenure.web.api.common import Administrator, Caller, JobId, Operator, Reader, can, operation_id
from tenure.web.models import jobs as models
from tenure.web.security import Problem

router = APIRouter(tags=["jobs"], generate_unique_id_function=operation_id)


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/jobs")
def get_jobs(caller: Reader, query: Annotated[models.JobQuery, Query()]) -> models.Jobs:
    """Jobs that match, newest first."""
    return _page(caller, query, query.state)


@router.get("/dead")
def get_dead(caller: Reader, query: Annotated[models.DeadQuery, Query()]) -> models.Jobs:
    """Dead letters that match, newest first."""
    return _page(caller, query, [State.DEAD])


@router.get("/dead/errors")
def get_errors(caller: Reader, where: Annotated[models.Where, Query()]) -> models.Errors:
    """The newest dead letters that match, at most 2,000, grouped by what their errors have in common."""
    return models.Errors.of(caller.admin.jobs.errors(_filter(caller, where, [State.DEAD])))


def _page(caller: Caller, query: models.JobQuery | models.DeadQuery, states: Sequence[State]) -> models.Jobs:
    page = caller.admin.jobs.search(_filter(caller, query, states), limit=query.limit, cursor=query.cursor)
    return models.Jobs(
        jobs=[models.JobSummary.of(job) for job in page.jobs],
        next=page.cursor,
        looked=page.looked or None,
        reached=page.reached,
    )


def _filter(caller: Caller, where: models.Where, states: Sequence[State]) -> Filter:
    """Raises InvalidOption."""
    now = caller.admin.now() if where.q else datetime.now(UTC)
    searched = job_search.both(where.filter(states), job_search.parsed(where.q or "", now))
    return job_search.permitted(searched, payloads=caller.user.payloads)


@router.get("/jobs/{id}", responses=can(404))
def get_job(caller: Reader, id: JobId) -> models.Job:  # noqa: A002
    """A job with its attempts, logs and edits."""
    return models.Job.detailed(caller.admin.jobs.show(str(id)), caller.user.payloads)


@router.get("/jobs/{id}/explain", responses=can(404))
def explain_job(caller: Reader, id: JobId) -> models.Explained:  # noqa: A002
    """Why it is not running, or how it ended."""
    return models.Explained.of(caller.admin.jobs.explain(str(id)))


@router.post("/jobs/{id}/stack", responses=can(404, 409))
def show_stack(caller: Operator, id: JobId) -> models.JobStack:  # noqa: A002
    """Where the code of a running job is: its worker is asked, and answers within about a second.

    After five seconds without an answer `state` is `silent`, and `says` tells why that may be.
    """
    caller.admin.jobs.ask_for_stack(str(id))
    found = caller.admin.jobs.stack(str(id), within=PATIENCE_SECONDS + 0.5)
    caller.site.acted()
    if found is None:
        raise Refused(f"job {id} has ended before its worker was asked")
    return models.JobStack.of(found)


# ── Enqueueing ──────────────────────────────────────────────────────────────────────────────────────────────────


@router.post(
    "/jobs",
    status_code=HTTPStatus.CREATED,
    responses={200: {"model": models.Enqueued, "description": "It already existed."}, **can(404, 409)},
)
def enqueue_job(caller: Operator, job: models.NewJob, response: Response) -> models.Enqueued:
    """Enqueue a job; its arguments are checked against its task. Repeating a request with the same `id` is safe."""
    options = job.model_dump(include={"queue", "priority", "delay", "run_at", "expires", "unique", "id"})
    return enqueue(caller, job.task, job.args, response, meta=job.meta or None, **options)


def enqueue(
    caller: Caller, name: str, args: dict[str, Any], response: Response, **options: Unpack[Using]
) -> models.Enqueued:
    if caller.site.tasks is None:
        raise Problem(
            HTTPStatus.CONFLICT,
            "No app",
            "This dashboard has no app, so it can't check arguments: start it with tenure dashboard MODULE, or set "
            "TENURE_APP=MODULE.",
        )
    demo = caller.site.demo
    if demo is not None and options.get("queue") is None:
        options["queue"] = demo.queue  # the only one that its workers serve
    admin = caller.admin  # in a mounted dashboard, all tasks are registered only by now
    task = caller.site.tasks[name]
    (answer,) = admin.jobs.enqueue([own_job(task, args, options).draft()])
    caller.site.acted()
    response.status_code = HTTPStatus.CREATED if answer.created else HTTPStatus.OK
    response.headers["Location"] = f"{caller.root}/api/v1/jobs/{answer.id}"
    return models.Enqueued(id=UUID(answer.id), created=answer.created, state=answer.state)


# ── Acting on one ───────────────────────────────────────────────────────────────────────────────────────────────


@router.post("/jobs/{id}/cancel", responses=can(404, 409))
def cancel_job(
    caller: Operator,
    id: JobId,  # noqa: A002
    why: Annotated[models.Reason | None, Body()] = None,
) -> models.Outcome:
    """A waiting job is cancelled at once; a running one is asked to stop."""
    return _act(caller, "cancel", id, why.reason if why else "")


@router.post("/jobs/{id}/promote", responses=can(404, 409))
def promote_job(caller: Operator, id: JobId) -> models.Outcome:  # noqa: A002
    """Run a scheduled job now."""
    return _act(caller, "promote", id)


@router.post("/jobs/{id}/replay", responses=can(404, 409))
def replay_job(
    caller: Operator,
    id: JobId,  # noqa: A002
    changes: Annotated[models.Changes | None, Body()] = None,
) -> models.Outcome:
    """Run an ended job again, optionally with other arguments: changing them requires the right to see payloads."""
    if changes is None or not (changes.put or changes.drop):
        return _act(caller, "replay", id)
    if not caller.user.payloads:
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "Not allowed",
            f"{caller.user.name} may not see payloads, which is needed to change them",
        )
    task = _task_of(caller, caller.admin.jobs.get(str(id)).task)
    return _said(caller, caller.admin.jobs.replay_edited(str(id), changes.put, changes.drop, task))


@router.delete("/jobs/{id}", responses=can(404, 409))
def delete_job(caller: Administrator, id: JobId) -> models.Outcome:  # noqa: A002
    """Delete a job permanently; a running one can't be deleted."""
    return _act(caller, "delete", id)


def _task_of(caller: Caller, name: str) -> Task[..., Any] | None:
    return caller.site.tasks.find(name) if caller.site.tasks else None


def _act(caller: Caller, verb: Verb, job_id: UUID, reason: str = "") -> models.Outcome:
    ref = caller.admin.jobs.ref(str(job_id))
    ((acted,),) = caller.admin.jobs.act(verb, [ref], reason)
    return _said(caller, acted)


def _said(caller: Caller, acted: Acted) -> models.Outcome:
    caller.site.acted()
    if not acted.landed:
        raise Problem(
            HTTPStatus.CONFLICT, "Nothing done", f"job {acted.id}: {acted.says.removeprefix('nothing done: ')}"
        )
    return models.Outcome.of(acted)


# ── Acting on all that match ────────────────────────────────────────────────────────────────────────────────────


@router.post("/jobs/bulk/count")
def count_jobs(caller: Operator, bulk: models.BulkCount) -> models.Counted:
    """How many jobs a bulk action would affect: those in states that its verb applies to."""
    found = caller.admin.jobs.count(_filter(caller, bulk.filter, bulk.filter.state), bulk.verb)
    confirm = f"delete {found.jobs}" if bulk.verb == "delete" else None
    return models.Counted(jobs=found.jobs, more=found.more, confirm=confirm)


@router.post("/jobs/bulk", responses=can(409))
def act_on_jobs(caller: Operator, bulk: models.BulkAction) -> models.BulkDone:
    """Count first, then send the count: if many more match by then, nothing is done. Deleting needs the role admin."""
    where, expected = _filter(caller, bulk.filter, bulk.filter.state), bulk.expected
    if bulk.verb == "delete":
        expected = _confirmed(caller, bulk)
    if expected is not None:
        found = caller.admin.jobs.count(where, bulk.verb, cursor=bulk.cursor)
        if found.jobs > expected + expected // 10:
            more = "at least " if found.more else ""
            raise Problem(
                HTTPStatus.CONFLICT,
                "Not what was counted",
                f"{expected} were counted, {more}{found.jobs} match now: count again",
            )
    done = caller.admin.jobs.act_on_all(bulk.verb, where, bulk.reason, cursor=bulk.cursor, per_minute=bulk.per_minute)
    caller.site.acted()
    return models.BulkDone.of(done)


def _confirmed(caller: Caller, bulk: models.BulkAction) -> int:
    """The number that the user typed to confirm the deletion."""
    if not caller.user.may("admin"):
        raise Problem(
            HTTPStatus.FORBIDDEN, "Not allowed", f"{caller.user.name} has the role {caller.user.role}, this needs admin"
        )
    word, _, number = (bulk.confirm or "").partition(" ")
    if word != "delete" or not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "Not confirmed",
            f"confirm: expected delete N with the number that was counted, got {bulk.confirm or 'nothing'}",
        )
    return int(number)
