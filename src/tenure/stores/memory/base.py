"""The base of the memory store: its rows under one lock, and the transitions of one job.

Only `_move` changes a state, and only as the table in `tenure.core.lifecycle` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from random import Random
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

from tenure.core.clock import Clock, system_clock
from tenure.core.lifecycle import (
    ENDED,
    LIVE,
    MOVES,
    Charges,
    Completed,
    Lease,
    Outcome,
    State,
    decide,
    error_after,
    legal,
)
from tenure.errors import StoreError
from tenure.ports import Claimed, Draft, Enqueued, JobView
from tenure.ports.schedules import Schedule, Tick
from tenure.stores.memory.rows import CHARGED, CLAIMED, Row, Worker, attempt, new_view
from tenure.stores.rules import AMONG_OTHERS, ATTEMPTS_KEPT, Beside

P = ParamSpec("P")
R = TypeVar("R")
Base = TypeVar("Base", bound="MemoryBase")


class Transaction:
    """What `transaction()` yields: the steps called in it, each with the answer that was returned."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[[], object], object]] = []
        self.committed: list[Callable[[], None]] = []


def atomic(verb: Callable[Concatenate[Base, P], R]) -> Callable[Concatenate[Base, P], R]:
    @wraps(verb)
    def locked(self: Base, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return verb(self, *args, **kwargs)

    return locked


class MemoryBase:
    """The rows. `clock` and `seed` make tests deterministic."""

    def __init__(self, clock: Clock | None = None, seed: int | None = None) -> None:
        self._clock = clock or system_clock()
        self._random = Random(seed)
        self._lock = RLock()
        self._jobs: dict[str, Row] = {}
        self._workers: dict[str, Worker] = {}
        self._paused: dict[str, datetime] = {}
        self._schedules: dict[str, Schedule] = {}
        self._ticks: dict[tuple[str, datetime, str], Tick] = {}
        self._notes: dict[str, tuple[str, float | None]] = {}  #: the text, and the Unix time at which it expires
        self._transactions: set[Transaction] = set()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.unix(), UTC)

    # ── one job ──

    def _rows(self) -> list[Row]:
        return list(self._jobs.values())

    def _waiting(self, queue: str, *, solo: bool) -> list[Row]:
        """The jobs of this queue that may be claimed, in its order."""
        found = [row for row in self._rows() if legal("claim", row.view.state)]
        found = [row for row in found if (row.view.queue, row.view.solo) == (queue, solo)]
        return sorted(found, key=lambda row: (-row.view.priority, row.view.run_at, row.view.id))

    def _named(self, ids: Iterable[str]) -> Iterator[tuple[str, Row | None]]:
        return ((name, self._jobs.get(name)) for name in dict.fromkeys(ids))

    def _move(self, verb: str, row: Row, to: State, **changes: Any) -> Row:
        """The only place where a state changes, and only as the table allows."""
        source = row.view.state
        if not any(move.verb == verb and source in move.sources and to in move.targets for move in MOVES):
            raise StoreError(f"{verb} does not lead from {source} to {to}; see the table in tenure.core.lifecycle")
        return self._keep(row, state=to, **changes)

    def _keep(self, row: Row, **changes: Any) -> Row:
        row = replace(row, view=replace(row.view, **changes))
        self._jobs[row.view.id] = row
        return row

    def _enqueue(self, draft: Draft, owner: str | None = None) -> Enqueued:
        stands = self._jobs.get(draft.id) or self._holder(draft.task, draft.unique)
        if stands:
            return Enqueued(stands.view.id, created=False, state=stands.view.state)
        now = self.now()
        due = now + timedelta(seconds=draft.delay) if draft.delay is not None else draft.run_at or now
        state = State.SCHEDULED if due > now else State.QUEUED
        row = self._jobs[draft.id] = Row(draft, new_view(draft, state, now, due))
        if owner is not None:
            self._claim(row, owner)
            state = State.PROCESSING
        return Enqueued(draft.id, created=True, state=state)

    def _holder(self, task: str, unique: str | None) -> Row | None:
        """The live job that holds this unique key."""
        if unique is None:
            return None
        held = (r for r in self._rows() if r.view.state in LIVE and (r.view.task, r.view.unique) == (task, unique))
        return next(held, None)

    def _cancel(self, row: Row, reason: str) -> State:
        view = row.view
        if view.state is State.PROCESSING:
            if view.cancel_reason is None:
                self._keep(row, cancel_reason=reason)
        elif legal("cancel", view.state):
            self._move("cancel", row, State.CANCELLED, cancel_reason=reason, error=reason, ended_at=self.now())
        return self._jobs[view.id].view.state

    # ── one lease ──

    def _may_own(self, worker_id: str | None) -> bool:
        worker = self._workers.get(worker_id or "")
        return worker_id is None or (worker is not None and not worker.died_at and not self._lease_over(worker))

    def _lease_over(self, worker: Worker) -> bool:
        return self._clock.boot() > worker.lease_ends

    def _held_by(self, worker_id: str) -> list[tuple[Row, Lease]]:
        leased = [(row, row.lease) for row in self._rows() if row.lease and row.lease.worker_id == worker_id]
        return sorted(leased, key=lambda each: each[1])

    def _claim(self, row: Row, worker_id: str) -> Claimed:
        now, attempt = self.now(), row.view.attempt + 1
        row = replace(row, lease=Lease(row.view.id, attempt, worker_id), active=self._clock.boot())
        owner = {"attempt": attempt, "worker_id": worker_id, "started_at": now, "last_activity_at": now}
        return self._claimed(self._move("claim", row, State.PROCESSING, **owner))

    def _claimed(self, row: Row) -> Claimed:
        view = row.view
        return Claimed(
            **{name: getattr(view, name) for name in CLAIMED},
            meta=row.draft.meta,
            enqueued_ms=round(view.enqueued_at.timestamp() * 1000),
            expired=view.attempt == 1 and view.expires_at is not None and self.now() > view.expires_at,
        )

    def _end(
        self, verb: str, row: Row, lease: Lease, outcome: Outcome, beside: Beside = AMONG_OTHERS, **changes: Any
    ) -> JobView:
        """End the attempt as `decide` says, which takes a requested cancel into account."""
        view, draft, now = row.view, row.draft, self.now()
        charges = Charges(
            **{name: getattr(view, name) for name in CHARGED},
            retry_base=draft.retry_base,
            retry_cap=draft.retry_cap,
            cancel_asked=view.cancel_reason is not None,
            slots=beside.slots,
            neighbours=beside.neighbours,
        )
        decision = decide(charges, outcome, self._random.random())
        error = error_after(outcome, decision.state, view.cancel_reason)
        if isinstance(outcome, Completed):
            row = replace(row, lease=None)
            changes |= {"result": outcome.result, "completed_by": lease.worker_id}
        else:
            past = (*row.attempts, attempt(view, lease, outcome, now))
            since = lease.attempt - ATTEMPTS_KEPT
            row = replace(
                row,
                lease=None,
                attempts=tuple(each for each in past if each.attempt == 1 or each.attempt > since),
                logs={number: lines for number, lines in row.logs.items() if number == 1 or number > since},
            )
            changes |= {"started_at": None, "last_activity_at": None}
        after = self._move(
            verb,
            row,
            decision.state,
            failures=decision.failures,
            crashes=decision.crashes,
            crashes_total=decision.crashes_total,
            solo=decision.solo,
            together=decision.together,
            run_at=view.run_at if decision.delay is None else now + timedelta(seconds=decision.delay),
            worker_id=None,
            ended_at=now if decision.state in ENDED else None,
            error=view.error if error is None else error,
            **changes,
        )
        return after.view
