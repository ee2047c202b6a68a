"""A job as Django's `TaskResult`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from django import conf
from django.tasks import Task as DjangoTask
from django.tasks import TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone

from tenure.app.backends import value_of
from tenure.core.lifecycle import State
from tenure.core.offloaded import ELSEWHERE, is_offloaded
from tenure.core.sealed import ENCRYPTED, is_sealed
from tenure.ports import JobView, Store
from tenure.tasks.job import Job

#: Keys in a job's meta: what `using(…)` changed, as far as a running attempt can't see it otherwise.
ALIAS, RUN_AFTER, PRIORITY = "django.backend", "django.run_after", "django.priority"

_STATUS = {
    State.WAITING: TaskResultStatus.READY,
    State.SCHEDULED: TaskResultStatus.READY,
    State.QUEUED: TaskResultStatus.READY,
    State.PROCESSING: TaskResultStatus.RUNNING,
    State.COMPLETED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_ENDED_BADLY = ("failed", "crashed", "cancelled")
_RAISED = re.compile(r"(?P<path>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?=:|$)")
#: The class that stands for an attempt which ended without an exception: a timeout, a crash, a cancel.
_NO_EXCEPTION = "tenure.errors.JobFailed"


def enqueued_at(job_id: str) -> datetime:
    """When this id, a UUIDv7, was made: the same time for the caller that enqueued the job and for every reader."""
    return datetime.fromtimestamp((UUID(job_id).int >> 80) / 1000, UTC)


def local(at: datetime | None) -> datetime | None:
    """As Django writes times: aware, or without `USE_TZ` naive."""
    return at if at is None or conf.settings.USE_TZ else timezone.make_naive(at, timezone.get_default_timezone())


def started(job: Job[Any], task: DjangoTask, payload: Mapping[str, Any]) -> TaskResult:
    """The result of a job whose first attempt begins now, without a look at the store."""
    enqueued = enqueued_at(str(job.id))
    now = local(max(datetime.now(UTC), enqueued))
    return TaskResult(
        task=_as_enqueued(task, job.queue, int(job.meta.get(PRIORITY, task.priority)), job.meta),
        id=str(job.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=local(enqueued),
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=payload["args"],
        kwargs=payload["kwargs"],
        backend=job.meta.get(ALIAS, "default"),
        errors=[],
        worker_ids=[],
    )


def result_of(store: Store, job: JobView, task: DjangoTask) -> TaskResult:
    """The result of this job, with its task as it was enqueued. Raises NotFetched, Locked."""
    attempts = store.attempts(job.id)
    given: dict[str, Any] = json.loads(_value(store, job, "payload"))
    workers = {each.attempt: each.worker_id for each in attempts}
    current = job.worker_id or job.completed_by
    if current is not None:
        workers.setdefault(job.attempt, current)
    enqueued = enqueued_at(job.id)
    times = (job.started_at, *(each.started_at for each in attempts))
    began = sorted(max(each, enqueued) for each in times if each is not None)
    result = TaskResult(
        task=_as_enqueued(task, job.queue, job.priority, job.meta),
        id=job.id,
        status=_STATUS[job.state],
        enqueued_at=local(enqueued),
        started_at=local(began[0]) if began else None,
        finished_at=local(job.ended_at and max(job.ended_at, began[-1] if began else enqueued)),
        last_attempted_at=local(began[-1]) if began else None,
        args=given["args"],
        kwargs=given["kwargs"],
        backend=job.meta.get(ALIAS, "default"),
        errors=[_error(each.error) for each in attempts if each.outcome in _ENDED_BADLY],
        worker_ids=[workers[number] for number in sorted(workers)],
    )
    if job.state is State.COMPLETED:
        object.__setattr__(result, "_return_value", json.loads(_value(store, job, "result")))
    return result


def _value(store: Store, job: JobView, place: Literal["payload", "result"]) -> str:
    text: str = getattr(job, place) or "null"
    # Also what a store shows to people in place of a value; a value that only reads like that is found unchanged.
    if is_offloaded(text) or is_sealed(text) or text.startswith((f'"{ELSEWHERE}', f'"{ENCRYPTED}')):
        return value_of(store, job.id, place) or "null"
    return text


def _as_enqueued(task: DjangoTask, queue: str, priority: int, meta: Mapping[str, str]) -> DjangoTask:
    due = meta.get(RUN_AFTER)
    options: dict[str, object] = {
        "priority": priority,
        "queue_name": queue,
        "backend": meta.get(ALIAS, "default"),
        "run_after": None if due is None else datetime.fromisoformat(due),
    }
    # Neither `using` nor a copy: both refuse a queue or a backend that has left the settings since.
    found: DjangoTask = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(found, field.name, options.get(field.name, getattr(task, field.name)))
    return found


def _error(text: str) -> TaskError:
    """An attempt's error: its headline, a blank line, and the frames if code has raised it."""
    headline, has_frames, rest = text.partition("\n\n  File ")  # a message may have blank lines, too
    frames = f"  File {rest}"
    raised = _RAISED.match(headline.rpartition("\n")[2] if headline.startswith("  File") else headline)
    if not has_frames or raised is None:
        return TaskError(exception_class_path=_NO_EXCEPTION, traceback=f"{text}\n")
    path = raised["path"]
    return TaskError(
        exception_class_path=path if "." in path else f"builtins.{path}",
        traceback=f"Traceback (most recent call last):\n{frames}\n{headline}\n",
    )
