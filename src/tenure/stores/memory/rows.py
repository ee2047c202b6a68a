"""What the memory store keeps of a job and a worker, and what it refuses to keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

import msgspec

from tenure.core.lifecycle import GUARD, Crashed, Lease, Outcome, State, outcome_name, reason_of
from tenure.errors import BadData, InvalidOption
from tenure.ports import AttemptView, Draft, Edit, Filter, JobView, WorkerIdentity
from tenure.ports.schedules import Tick

Cause = Literal["crash", "host", "stale", "queue"]

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
SHARED = {f.name for f in fields(Draft)} & {f.name for f in fields(JobView)} - {"meta", "run_at"}
#: By a replay.
FORGOTTEN = (
    "result",
    "error",
    "ended_at",
    "expires_at",
    "cancel_reason",
    "started_at",
    "last_activity_at",
    "completed_by",
)
SAID = ("stage", "progress", "message", "checkpoint")
BLANK: dict[str, Any] = dict.fromkeys((*FORGOTTEN, *SAID, "worker_id"))


@dataclass(frozen=True, slots=True)
class Row:
    """A job as stored: what was asked for, what people see, who owns it, and how its attempts ended."""

    draft: Draft
    view: JobView
    lease: Lease | None = None
    active: float = 0.0  #: boot seconds of the owner's last word; `last_activity_at` is for people
    completed: Lease | None = None
    attempts: tuple[AttemptView, ...] = ()
    once: Mapping[str, str] = field(default_factory=dict[str, str])
    logs: Mapping[int, str] = field(default_factory=dict[int, str])  #: by attempt


@dataclass(frozen=True, slots=True)
class Worker:
    identity: WorkerIdentity
    started_at: datetime
    renewed_at: datetime
    lease_ends: float  #: boot seconds
    note: str = ""
    died_at: datetime | None = None
    died_of: Cause = "host"
    memory: int | None = None


def new_view(draft: Draft, state: State, now: datetime, due: datetime) -> JobView:
    asked: dict[str, Any] = {name: getattr(draft, name) for name in SHARED}
    view = JobView(
        **asked,
        **BLANK,
        state=state,
        attempt=0,
        failures=0,
        crashes=0,
        crashes_total=0,
        solo=draft.isolated,
        meta=json.loads(draft.meta),
        enqueued_at=now,
        run_at=due,
    )
    return view if draft.expires is None else replace(view, expires_at=due + timedelta(seconds=draft.expires))


def attempt(view: JobView, lease: Lease, outcome: Outcome, now: datetime) -> AttemptView:
    return AttemptView(
        job_id=view.id,
        attempt=lease.attempt,
        worker_id=lease.worker_id,
        outcome=outcome_name(outcome),
        error=reason_of(outcome),
        evidence=outcome.evidence if isinstance(outcome, Crashed) else {},
        started_at=view.started_at or now,
        ended_at=now,
    )


def refused(view: AttemptView, lease: Lease, why: str) -> AttemptView:
    """The attempt of this lease with why a later write of it did not land; the first word stands."""
    if (view.attempt, view.worker_id) != (lease.attempt, lease.worker_id) or "refused" in view.evidence:
        return view
    return replace(view, evidence={**view.evidence, "refused": why})


def ended_as(row: Row, lease: Lease) -> str | None:
    """How the attempt of this lease ended, if it did."""
    if row.completed == lease:
        return "completed"
    told = [each.outcome for each in row.attempts if (each.attempt, each.worker_id) == (lease.attempt, lease.worker_id)]
    return told[0] if told else None


def refuse_unstorable(*values: object) -> None:
    """PostgreSQL keeps no NUL, UTF-8 no lone surrogate: so no store takes them."""
    for text in texts(values):
        found = UNSTORABLE.search(text)
        if found:
            raise BadData(f"text with {found[0]!r} at {found.start()} cannot be stored; clean it first: {text[:80]!r}")


def texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        yield from texts(astuple(value))
    elif isinstance(value, msgspec.Struct):
        yield from texts(msgspec.structs.astuple(value))
    elif isinstance(value, Mapping):
        yield from texts(list(cast("Mapping[object, object]", value).items()))
    elif isinstance(value, Iterable):
        for part in cast("Iterable[object]", value):
            yield from texts(part)


def refuse_strangers(ids: Iterable[str], edits: Mapping[str, Edit]) -> None:
    for job_id in edits.keys() - set(ids):
        raise ValueError(f"edits: expected only ids that are replayed with it, got {job_id!r}")


def refuse_impossible(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadData(f"{name}: expected {low:g} to {high:g}, got {value!r}")


def age(now: datetime, then: datetime | None) -> float:
    return max((now - then).total_seconds(), 0.0) if then else 0.0


def over(silent: float, stale_after: float | None) -> bool:
    return stale_after is not None and silent > stale_after


def tick_order(tick: Tick) -> tuple[datetime, str]:
    return tick.tick, tick.cause


def enqueue_order(view: JobView) -> tuple[datetime, str]:
    return view.enqueued_at, view.id


def matches(view: JobView, where: Filter) -> bool:
    wanted = {"task": where.task, "queue": where.queue, "worker_id": where.worker_id, "unique": where.unique}
    return (
        (not where.states or view.state in where.states)
        and all(value is None or getattr(view, name) == value for name, value in wanted.items())
        and (where.text is None or where.text in view.id or where.text in (view.error or ""))
        and (where.guards or view.queue != GUARD)
        and (where.ended_since is None or (view.ended_at is not None and view.ended_at >= where.ended_since))
        and (where.enqueued_since is None or view.enqueued_at >= where.enqueued_since)
        and (where.enqueued_until is None or view.enqueued_at < where.enqueued_until)
    )


def write_cursor(view: JobView) -> str:
    return f"{view.enqueued_at.isoformat()} {view.id}"


def read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        when, job_id = cursor.split(" ", 1)
        return datetime.fromisoformat(when).astimezone(UTC), job_id
    except ValueError:
        raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one") from None
