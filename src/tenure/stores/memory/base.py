"""The base of the memory store: its rows under one lock, and the transitions of one job.

Only `_move` changes a state, and only as the table in `tenure.core.lifecycle` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from random import Random
from threading import RLock
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from tenure.core.clock import Clock, system_clock
from tenure.core.lifecycle import (
    ENDED,
    LIVE,
    MOVES,
    Charges,
    Completed,
    Edge,
    Lease,
    Outcome,
    Snoozed,
    State,
    Suspended,
    decide,
    error_after,
    legal,
)
from tenure.errors import BadData, StoreError
from tenure.ports import Claimed, Draft, Enqueued, JobView, Links
from tenure.ports.schedules import Schedule, Tick
from tenure.stores.memory.links import Edge as KnownEdge
from tenure.stores.memory.links import Known
from tenure.stores.memory.rows import CHARGED, CLAIMED, Row, Worker, attempt, new_view
from tenure.stores.rules import (
    AMONG_OTHERS,
    ATTEMPTS_KEPT,
    Beside,
    check_links,
    flow_made,
    flows_made_once,
    no_parent,
    waits_for_itself,
)

HOLDS = frozenset({State.QUEUED, State.PROCESSING})  #: in these, a job with limits has its places
P = ParamSpec("P")
R = TypeVar("R")
Base = TypeVar("Base", bound="MemoryBase")


class Transaction:
    """What `transaction()` yields: the steps called in it, each with the answer that was returned."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[[], object], object]] = []
        self.committed: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"tx.{name}: the store of jobs.testing() has no SQL; test this with the fixture tenure_store, or pass a "
            "session of your own as tx="
        )


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
        self._known = Known()
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
        row = self._keep(row, state=to, **changes)
        if row.view.linked and to in ENDED:
            self._known.ask(row.view.id)
        for key in row.view.limits:
            if source in HOLDS and to not in HOLDS:
                self._known.tell(key, "look")
            elif source is State.QUEUED:
                self._known.tell(key, "begun", self._clock.unix())
        return row

    def _due(self, verb: str, row: Row, **changes: Any) -> Row:
        """Queue a due job, or, if it has limits, let it wait for its places."""
        if not row.view.limits:
            return self._move(verb, row, State.QUEUED, **changes)
        row = replace(row, view=replace(row.view, **changes))
        return self._move(verb, row, State.WAITING, **self._parking(row, changes.get("run_at")))

    def _parking(self, row: Row, due: datetime | None = None) -> dict[str, Any]:
        """What changes in a job that is parked under its first key. `due`: when, if it is due anew."""
        key, view = row.view.limits[0], row.view
        self._known.tell(key, "look")
        until = view.expires_at if view.attempt == 0 else None
        return {"parked": key.key, "due_at": due or view.due_at or view.run_at, "wait_until": until}

    def _keep(self, row: Row, **changes: Any) -> Row:
        row = replace(row, view=replace(row.view, **changes))
        self._jobs[row.view.id] = row
        return row

    def _enqueue(self, draft: Draft, owner: str | None = None) -> Enqueued:
        stands = self._jobs.get(draft.id) or self._holder(draft.task, draft.unique)
        if stands:
            return Enqueued(stands.view.id, created=False, state=stands.view.state)
        now, links = self.now(), draft.links
        due = now + timedelta(seconds=draft.delay) if draft.delay is not None else draft.run_at or now
        state = State.SCHEDULED if due > now else State.QUEUED
        if links is not None and links.after:
            state = State.WAITING
        row = Row(draft, new_view(draft, state, now, due))
        if state is State.QUEUED and draft.limits:
            state = State.WAITING
            row = self._keep(row, state=state, **self._parking(row))
        self._jobs[draft.id] = row
        if owner is not None:
            self._claim(row, owner)
            state = State.PROCESSING
        return Enqueued(draft.id, created=True, state=state)

    def _enqueue_all(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        """All or none. The edges of a draft lead from the jobs that stand for its parents."""
        waits = any(draft.links or draft.limits for draft in drafts)
        before, known = self._jobs.copy(), self._known.copy() if waits else self._known
        try:
            return self._enqueue_each(drafts)
        except BadData:
            self._jobs, self._known = before, known
            raise

    def _enqueue_each(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        for flow in flows_made_once(drafts):
            if flow in self._known.flows:
                raise flow_made(flow)
        missing = [parent for parent in check_links(drafts) if parent not in self._jobs]
        if missing:
            raise no_parent(min(missing))
        answers = [self._enqueue(draft) for draft in drafts]
        stands = {draft.id: answer.id for draft, answer in zip(drafts, answers, strict=True)}
        new = {answer.id for answer in answers if answer.created}
        for draft, answer in zip(drafts, answers, strict=True):
            if draft.links is not None:
                self._link(draft, draft.links, answer, stands, new)
        return answers

    def _link(self, draft: Draft, links: Links, job: Enqueued, stands: Mapping[str, str], new: Set[str]) -> None:
        if job.created:
            for edge in links.after:
                parent = stands.get(edge.parent, edge.parent)
                self._add(job.id, Edge(parent, edge.until))
                for name in {job.id, parent} & new:
                    self._keep(self._jobs[name], linked=True)
            if links.after:
                self._known.ask(job.id)
            if links.flow is not None:
                self._keep(self._jobs[job.id], flow=links.flow)
                self._known.flows.setdefault(links.flow, (links.name, self.now()))
        if links.gatherer is not None:
            if links.gatherer == job.id:
                raise waits_for_itself(job.id)
            self._add(links.gatherer, Edge(job.id, links.gathered), mine=job.id == draft.id)
            self._known.ask(links.gatherer)
            if job.created:
                self._keep(self._jobs[job.id], linked=True)

    def _add(self, child: str, edge: Edge, *, mine: bool = False) -> None:
        """Add an edge. An existing one that is closed opens again if its parent has not ended as is now asked."""
        known = self._known.add(child, *edge, mine=mine)
        known.open = known.open or not (known.skipped or self._met(known))

    def _met(self, edge: KnownEdge) -> bool:
        """Has its parent ended as the edge asks? One that is gone has ended."""
        parent = self._jobs.get(edge.parent)
        state = parent.view.state if parent else None
        return state is State.COMPLETED or (edge.until == "ended" and (state is None or state in ENDED))

    def _live_child(self, job_id: str) -> str | None:
        """A live job that waits for this one, or goes on with its result."""
        children = (self._jobs.get(edge.child) for edge in self._known.behind(job_id))
        return next((row.view.id for row in children if row and row.view.state in LIVE), None)

    def _gathers(self, job_id: str) -> str | None:
        """A live job that this one gathers."""
        mine = (self._jobs.get(edge.parent) for edge in self._known.before(job_id) if edge.mine)
        return next((row.view.id for row in mine if row and row.view.state in LIVE), None)

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
            blank = dict.fromkeys(("wait_for", "wait_until", "parked"))
            self._move("cancel", row, State.CANCELLED, cancel_reason=reason, error=reason, ended_at=self.now(), **blank)
        return self._jobs[view.id].view.state

    def _suspend(self, view: JobView, outcome: Suspended) -> dict[str, Any]:
        """What a suspended job waits for. Returns the changes of its view."""
        for edge in outcome.after:
            self._add(view.id, edge)
        self._known.ask(view.id)
        until = None if outcome.timeout is None else self.now() + timedelta(seconds=outcome.timeout)
        linked = view.linked or bool(self._known.before(view.id))
        return {"linked": linked, "wait_for": outcome.signal, "wait_until": until}

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
            limited=bool(view.limits),
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
            limited=bool(view.limits),
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
        if isinstance(outcome, Suspended) and decision.state is State.WAITING:
            changes |= self._suspend(view, outcome)
        elif decision.state is State.WAITING:
            changes |= self._parking(row)
        if isinstance(outcome, Snoozed) and outcome.pause is not None:
            self._known.tell(outcome.pause, "pause", self._clock.unix() + outcome.delay)
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
