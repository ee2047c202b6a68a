"""The rows of the memory store: jobs and workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.core.lifecycle import Charges, Lease, Outcome, State, outcome_name, reason_of
from tenure.ports import AttemptView, Claimed, Draft, JobView, WorkerIdentity
from tenure.ports.schedules import Tick
from tenure.stores.fields import VIEW, names_of
from tenure.stores.rules import Cause, bad_cursor, evidence_of

SHARED = {*names_of(Draft)} & {*VIEW} - {"meta", "run_at"}
CLAIMED = {*Claimed._fields} & {*VIEW} - {"meta"}
CHARGED = {*Charges._fields} & {*VIEW}
#: Fields that a replay clears.
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
    """A job as stored: its draft, its view for people, its lease, and its ended attempts."""

    draft: Draft
    view: JobView
    lease: Lease | None = None
    active: float = 0.0  #: boot seconds of the owner's last report; `last_activity_at` is for people
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
        evidence=evidence_of(outcome),
        started_at=view.started_at or now,
        ended_at=now,
    )


def refused(view: AttemptView, lease: Lease, why: str) -> AttemptView:
    """The attempt of this lease, with the reason why a later write of it did not land; the first reason is kept."""
    if (view.attempt, view.worker_id) != (lease.attempt, lease.worker_id) or "refused" in view.evidence:
        return view
    return replace(view, evidence={**view.evidence, "refused": why})


def age(now: datetime, then: datetime | None) -> float:
    return max((now - then).total_seconds(), 0.0) if then else 0.0


def over(silent: float, stale_after: float | None) -> bool:
    return stale_after is not None and silent > stale_after


def tick_order(tick: Tick) -> tuple[datetime, str]:
    return tick.tick, tick.cause


def enqueue_order(view: JobView) -> tuple[datetime, str]:
    return view.enqueued_at, view.id


def write_cursor(view: JobView) -> str:
    return f"{view.enqueued_at.isoformat()} {view.id}"


def read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        when, job_id = cursor.split(" ", 1)
        return datetime.fromisoformat(when).astimezone(UTC), job_id
    except ValueError:
        raise bad_cursor(cursor) from None
