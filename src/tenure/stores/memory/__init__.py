"""The executable specification: every promise of `ports.Store` in plain Python, for tests and for readers.

Rows are immutable and every verb runs under one lock, so a verb is one step, and a transaction is a list of steps:
rehearsed when it is called, run for good when its block ends. States change in `_move` alone, which asks the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import wraps
from random import Random
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from tenure.core.clock import Clock, system_clock
from tenure.core.durations import spell
from tenure.core.lifecycle import (
    ENDED,
    GUARD,
    LIVE,
    MOVES,
    Charges,
    Completed,
    Crashed,
    Lease,
    Outcome,
    State,
    decide,
    error_after,
    legal,
    outcome_name,
    reason_of,
)
from tenure.errors import LeaseLost, StoreAway, StoreError
from tenure.ports import (
    NO_EDITS,
    Answer,
    AttemptView,
    Awaited,
    Busy,
    Capabilities,
    Claimed,
    Draft,
    Edit,
    Ended,
    Enqueued,
    Filter,
    Hung,
    JobView,
    Landed,
    NotLanded,
    OnceRecord,
    Owned,
    Page,
    Progress,
    Promoted,
    QueueView,
    Rescued,
    WorkerIdentity,
    WorkerView,
)
from tenure.ports.schedules import REPLACED, Change, Due, Run, Schedule, Standing, Swapped, Tick, decode_schedule
from tenure.stores.memory.rows import (
    FORGOTTEN,
    SAID,
    Cause,
    Row,
    Worker,
    age,
    attempt,
    ended_as,
    enqueue_order,
    matches,
    new_view,
    over,
    read_cursor,
    refuse_impossible,
    refuse_strangers,
    refuse_unstorable,
    refused,
    tick_order,
    write_cursor,
)

P = ParamSpec("P")
R = TypeVar("R")

_WORKER_KEPT = 86_400.0  #: seconds a worker's row outlives its death


class _Transaction:
    """What `transaction()` yields: the steps taken in it, each with the answer its caller was given."""

    def __init__(self) -> None:
        self.steps: list[tuple[Callable[[], object], object]] = []
        self.committed: list[Callable[[], None]] = []


def _atomic(verb: Callable[Concatenate[MemoryStore, P], R]) -> Callable[Concatenate[MemoryStore, P], R]:
    @wraps(verb)
    def locked(self: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return verb(self, *args, **kwargs)

    return locked


class MemoryStore:
    """A `Store` in this process's memory; it forgets when the process ends. `clock` and `seed` make tests exact."""

    capabilities = Capabilities(transactions=True, durable=False, steady_clock=True, local=True)
    url = "memory://"

    def __init__(self, clock: Clock | None = None, seed: int | None = None) -> None:
        self._clock = clock or system_clock()
        self._random = Random(seed)
        self._lock = RLock()
        self._jobs: dict[str, Row] = {}
        self._workers: dict[str, Worker] = {}
        self._paused: dict[str, datetime] = {}
        self._schedules: dict[str, Schedule] = {}
        self._ticks: dict[tuple[str, datetime, str], Tick] = {}
        self._notes: dict[str, tuple[str, float | None]] = {}  #: the text, and the Unix time at which it is over
        self._transactions: set[_Transaction] = set()

    def open(self) -> None:
        """Nothing to connect to."""

    def migrate(self) -> int:
        """Nothing to bring up to date."""
        return 1

    def close(self) -> None:
        """Nothing to let go of: what is stored stays for as long as this object."""

    # ── clients ──

    @_atomic
    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        _refuse_drafts(drafts)
        answers = self._step(tx, lambda: [self._enqueue(draft) for draft in drafts])
        inner = tx.tx if isinstance(tx, Awaited) else tx
        if isinstance(inner, _Transaction) and committed is not None:
            inner.committed.append(committed)
        return answers

    @_atomic
    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        refuse_unstorable(reason)
        return {name: self._cancel(row, reason) if row else None for name, row in self._named(ids)}

    @_atomic
    def promote(self, *, limit: int = 1000) -> Promoted:
        now = self.now()
        waiting = [row for row in self._rows() if legal("promote", row.view.state)]
        waiting.sort(key=lambda row: (row.view.run_at, row.view.id))
        due = [row for row in waiting if row.view.run_at <= now][:limit]
        for row in due:
            self._move("promote", row, State.QUEUED)
        later = [max((row.view.run_at - now).total_seconds(), 0.0) for row in waiting[len(due) : len(due) + 1]]
        jobs: dict[str, list[str]] = {}
        for row in due:
            jobs.setdefault(row.view.queue, []).append(row.view.id)
        return Promoted(jobs, later[0] if later else None)

    @_atomic
    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        states: dict[str, State | None] = {}
        for name, row in self._named(ids):
            if row and legal("promote", row.view.state):
                row = self._move("promote", row, State.QUEUED, run_at=self.now())
            states[name] = row.view.state if row else None
        return states

    @_atomic
    def replay(self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS) -> dict[str, Answer | None]:
        wanted = list(ids)
        refuse_strangers(wanted, edits)
        refuse_unstorable(edits)
        return {name: self._replay(row, edits.get(name)) if row else None for name, row in self._named(wanted)}

    @_atomic
    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return {name: self._delete(row) if row else None for name, row in self._named(ids)}

    @_atomic
    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        now = self.now()
        for worker in [w for w in self._workers.values() if w.died_at and age(now, w.died_at) > _WORKER_KEPT]:
            del self._workers[worker.identity.id]
        ended = [row.view for row in self._rows() if legal("prune", row.view.state)]
        old = [view for view in ended if over(age(now, view.ended_at), keep_dead if view.state is State.DEAD else keep)]
        for view in old[:limit]:
            del self._jobs[view.id]
        return len(old[:limit])

    # ── owners ──

    @_atomic
    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        if not self._may_own(worker_id):
            return []
        claimed: list[Claimed] = []
        for queue, room in wants.items():
            if queue in self._paused:
                continue
            waiting = [row for row in self._rows() if legal("claim", row.view.state)]
            waiting = [row for row in waiting if (row.view.queue, row.view.solo) == (queue, solo)]
            waiting.sort(key=lambda row: (-row.view.priority, row.view.run_at, row.view.id))
            claimed += [self._claim(row, worker_id) for row in waiting[: max(min(room, limit - len(claimed)), 0)]]
        return claimed

    @_atomic
    def owned(self, worker_id: str) -> list[Owned]:
        return [Owned(self._claimed(row), row.view.cancel_reason) for row, _ in self._held_by(worker_id)]

    @_atomic
    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        for report in reports:
            refuse_unstorable(report)
            refuse_impossible("fraction", report.fraction or 0, 0, 1)
        return [self._progress(report) for report in reports]

    @_atomic
    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        refuse_unstorable(refusals)
        for lease, why in refusals:
            row = self._jobs.get(lease.job_id)
            if row:
                attempts = tuple(refused(each, lease, why) for each in row.attempts)
                self._jobs[lease.job_id] = replace(row, attempts=attempts)

    @_atomic
    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        refuse_unstorable(key, value)
        row = self._held("once", lease)
        if row is None:
            return None
        if value is not None and key not in row.once:
            self._jobs[lease.job_id] = replace(row, once={**row.once, key: value})
            return OnceRecord(value)
        return OnceRecord(row.once.get(key))

    @_atomic
    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        refuse_unstorable(ends)
        return self._step(tx, lambda: [self._finish(lease, outcome, strict=tx is not None) for lease, outcome in ends])

    # ── supervisors ──

    @_atomic
    def register(self, worker: WorkerIdentity) -> None:
        if worker.id in self._workers:
            raise StoreError(f"worker {worker.id} was registered before; every process start needs a new id")
        now = self.now()
        self._workers[worker.id] = Worker(worker, now, now, self._clock.boot() + worker.lease)

    @_atomic
    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        renewed = [worker for worker in map(self._workers.get, worker_ids) if worker and not worker.died_at]
        for worker in renewed:
            name, ends = worker.identity.id, self._clock.boot() + worker.identity.lease
            note, size = (notes or {}).get(name, ""), (memory or {}).get(name, worker.memory)
            self._workers[name] = replace(worker, renewed_at=self.now(), lease_ends=ends, note=note, memory=size)
        return frozenset(worker.identity.id for worker in renewed)

    @_atomic
    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return self._declare(worker_ids, "crash")

    @_atomic
    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        if not self._credible(witness, until):
            return frozenset()
        return self._declare([name for name, worker in self._workers.items() if self._lease_over(worker)], "host")

    @_atomic
    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> list[Rescued]:
        refuse_unstorable(verdicts, rest)
        self._declare([worker_id], "crash")
        held = self._held_by(worker_id)
        return [self._take_back("finish", row, lease, "crash", verdicts.get(lease.job_id, rest)) for row, lease in held]

    @_atomic
    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        held = [(row, row.lease) for row in self._rows() if row.lease and legal("rescue", row.view.state)]
        found = [(row, lease, self._lost(row, lease.worker_id)) for row, lease in held]
        lost = sorted(((r, lease, *why) for r, lease, why in found if why), key=lambda each: (each[0].active, each[1]))
        return [
            self._take_back("rescue", row, lease, cause, Crashed(reason, process_died=cause == "crash"))
            for row, lease, cause, reason in lost[:limit]
        ]

    @_atomic
    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        row = self._jobs.get(job_id)
        if row is None or row.lease is None:
            return row.view.state if row else None
        worker = self._workers.get(row.lease.worker_id)
        if declare and worker and self._lease_over(worker) and self._credible(witness, until):
            self._declare([worker.identity.id], "host")
        lost = self._lost(row, row.lease.worker_id)
        if lost is None:
            return row.view.state
        cause, reason = lost
        return self._take_back("rescue", row, row.lease, "queue", Crashed(reason, process_died=cause == "crash"))

    @_atomic
    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        held = [each for worker_id in dict.fromkeys(worker_ids) for each in self._held_by(worker_id)]
        silent = [(row, lease, self._silent(row)) for row, lease in held]
        return [Hung(lease, r.view.task, age) for r, lease, age in silent if over(age, r.view.stale_after)]

    @_atomic
    def solo_waiting(self, queues: Sequence[str]) -> int:
        open_queues = set(queues) - set(self._paused)
        waiting = [row.view for row in self._rows() if legal("claim", row.view.state)]
        return sum(view.solo and view.queue in open_queues for view in waiting)

    def upkeep(self) -> None:
        """Nothing."""

    @_atomic
    def pause(self, queue: str, *, paused: bool) -> bool:
        if paused == (queue in self._paused):
            return False
        if paused:
            self._paused[queue] = self.now()
        else:
            del self._paused[queue]
        return True

    @_atomic
    def paused(self) -> frozenset[str]:
        return frozenset(self._paused)

    # ── schedules ──

    @_atomic
    def due(self, *, limit: int = 500) -> Due:
        now = self.now()
        times = sorted((s.due_at, s.name) for s in self._schedules.values() if s.due_at is not None)
        names = [name for due_at, name in times if due_at <= now][:limit]
        ended = [run.tick.schedule for run in self._open_runs() if not run.live]
        later = [(due_at - now).total_seconds() for due_at, _ in times if due_at > now]
        standings = [self._standing(self._schedules[name]) for name in dict.fromkeys([*names, *ended[:limit]])]
        return Due(now, standings, later[0] if later else None)

    @_atomic
    def change(self, changes: Sequence[Change]) -> list[bool]:
        for change in changes:
            refuse_unstorable(change)
            _refuse_drafts(change.drafts)
        return [self._change(change) for change in changes]

    @_atomic
    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        wanted = sorted(self._schedules if names is None else set(names) & self._schedules.keys())
        return [self._standing(self._schedules[name]) for name in wanted]

    @_atomic
    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        found = [
            each for each in self._ticks.values() if each.schedule == name and not (before and each.tick >= before)
        ]
        return sorted(found, key=lambda each: (each.tick, each.cause), reverse=True)[:limit]

    @_atomic
    def forget(self, *, keep: float, limit: int = 1000) -> int:
        now = self.now()
        old = [key for key, t in self._ticks.items() if t.status != "open" and age(now, t.decided_at) > keep][:limit]
        for tick in old:
            del self._ticks[tick]
        over = [key for key, (_, ends) in self._notes.items() if ends is not None and ends <= self._clock.unix()]
        for note in over[: limit - len(old)]:
            del self._notes[note]
        return len(old) + len(over[: limit - len(old)])

    # ── notes ──

    @_atomic
    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        refuse_unstorable(key, old, new)
        _refuse_drafts(drafts)
        stands = self.notes(key).get(key)
        if stands not in (old, new):
            return Swapped(False, stands)
        if stands == old != new:
            for draft in drafts:
                self._enqueue(draft)
        if new is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = (new, None if ttl is None else self._clock.unix() + ttl)
        return Swapped(True, new)

    @_atomic
    def notes(self, prefix: str) -> dict[str, str]:
        now = self._clock.unix()
        return {
            key: text
            for key, (text, ends) in sorted(self._notes.items())
            if key.startswith(prefix) and (ends is None or ends > now)
        }

    # ── reads ──

    @_atomic
    def get(self, job_id: str) -> JobView | None:
        row = self._jobs.get(job_id)
        return row.view if row else None

    @_atomic
    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        views = sorted((row.view for row in self._rows()), key=enqueue_order, reverse=True)
        if cursor is not None:
            last = read_cursor(cursor)
            views = [view for view in views if enqueue_order(view) < last]
        near = views[:within]
        found = [view for view in near if matches(view, where)]
        jobs = tuple(found[:limit])
        if len(found) > limit:
            return Page(jobs, write_cursor(jobs[-1]) if jobs else None)
        return Page(jobs, write_cursor(near[-1]) if near and len(near) < len(views) else None)

    @_atomic
    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        found = [view for view in self._ended_newest_first() if since <= (view.ended_at or until) < until]
        states = [view.state for view in found]
        last = [view for view in found if view.state is State.COMPLETED][:sample]
        return Ended(
            counts={state: min(states.count(state), most) for state in State if state in ENDED},
            waits=tuple(age(view.started_at or view.run_at, view.run_at) for view in last),
            runs=tuple(age(view.ended_at or until, view.started_at) for view in last),
            ids=tuple(view.id for view in last),
        )

    @_atomic
    def logs(self, job_id: str) -> dict[int, str]:
        row = self._jobs.get(job_id)
        return dict(sorted(row.logs.items())) if row else {}

    @_atomic
    def counts(self) -> dict[State, int]:
        states = [row.view.state for row in self._rows()]
        return {state: states.count(state) for state in State}

    @_atomic
    def attempts(self, job_id: str) -> list[AttemptView]:
        row = self._jobs.get(job_id)
        return list(row.attempts) if row else []

    @_atomic
    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        shown = [worker for worker in self._workers.values() if dead or not worker.died_at]
        views = [
            WorkerView(
                identity=worker.identity,
                started_at=worker.started_at,
                renewed_at=worker.renewed_at,
                expires_at=worker.renewed_at + timedelta(seconds=worker.identity.lease),
                died_at=worker.died_at,
                note=worker.note,
                memory=worker.memory,
                processing=len(self._held_by(worker.identity.id)),
            )
            for worker in shown
        ]
        return sorted(views, key=lambda view: (view.started_at, view.identity.id), reverse=True)

    @_atomic
    def queues(self) -> list[QueueView]:
        live = [row.view for row in self._rows() if row.view.state in LIVE]
        return [self._queue(name, live) for name in sorted({view.queue for view in live} | set(self._paused))]

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.unix(), UTC)

    @contextmanager
    def transaction(self) -> Generator[Any, None, None]:
        """Steps taken with the yielded object as `tx` happen when the block ends, or never if it raises."""
        tx = _Transaction()
        self._transactions.add(tx)
        try:
            yield tx
        finally:
            self._transactions.discard(tx)
        self._commit(tx)
        for committed in tx.committed:
            committed()

    # ── transactions ──

    def _step(self, tx: object, step: Callable[[], list[R]]) -> list[R]:
        if tx is None:
            return step()
        tx = tx.tx if isinstance(tx, Awaited) else tx
        if not isinstance(tx, _Transaction) or tx not in self._transactions:
            raise StoreError(f"tx: expected what this store's transaction() yields, in its block; got {tx!r}")
        before = self._jobs.copy()
        try:
            for earlier, _ in tx.steps:
                earlier()
            answers = step()
        finally:
            self._jobs = before
        tx.steps.append((step, answers))
        return answers

    @_atomic
    def _commit(self, tx: _Transaction) -> None:
        before = self._jobs.copy()
        try:
            for step, promised in tx.steps:
                if step() != promised:
                    raise StoreAway("another caller changed the same jobs first; nothing was stored, run it again")
        except BaseException:
            self._jobs = before
            raise

    # ── one job ──

    def _ended_newest_first(self) -> list[JobView]:
        ended = [row.view for row in self._rows() if row.view.ended_at]
        return sorted(ended, key=lambda view: (view.ended_at, view.id), reverse=True)

    def _rows(self) -> list[Row]:
        return list(self._jobs.values())

    def _named(self, ids: Iterable[str]) -> Iterator[tuple[str, Row | None]]:
        return ((name, self._jobs.get(name)) for name in dict.fromkeys(ids))

    def _move(self, verb: str, row: Row, to: State, **changes: Any) -> Row:
        """The only place where a state changes, and only as the table says."""
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
        """The live job that holds this key."""
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

    def _replay(self, row: Row, edit: Edit | None) -> Answer:
        view = row.view
        if not legal("replay", view.state):
            return NotLanded(f"the job is {view.state}; only a job that has ended is replayed")
        if view.queue == GUARD:
            return NotLanded("it ran under a guard: run its command again, with tenure guard … --force")
        holder = self._holder(view.task, view.unique)
        if holder:
            return NotLanded(f"job {holder.view.id} holds its unique key {view.unique!r} and is {holder.view.state}")
        fresh = dict.fromkeys(FORGOTTEN) | dict.fromkeys(("failures", "crashes", "crashes_total"), 0)
        row = replace(row, completed=None)
        if edit:
            row = replace(row, draft=replace(row.draft, payload=edit.payload, meta=edit.meta))
            fresh |= {"payload": edit.payload, "meta": json.loads(edit.meta), **dict.fromkeys(SAID)}
        self._move("replay", row, State.QUEUED, run_at=self.now(), solo=view.isolated, **fresh)
        for key, tick in self._ticks.items():
            if tick.job_id == view.id:  # it is a run of its schedule again; and whoever saw it ended writes nothing
                self._ticks[key] = tick.reopened
                stands = self._schedules[tick.schedule]
                self._schedules[tick.schedule] = stands.but(rev=stands.rev + 1)
        return Landed(State.QUEUED)

    def _delete(self, row: Row) -> Answer:
        if not legal("delete", row.view.state):
            return NotLanded(f"the job is {row.view.state}; cancel it first, then delete it")
        del self._jobs[row.view.id]
        return Landed(row.view.state)

    # ── one schedule ──

    def _open_runs(self) -> list[Run]:
        return [self._run(tick) for tick in sorted(self._ticks.values(), key=tick_order) if tick.status == "open"]

    def _run(self, tick: Tick) -> Run:
        row = self._jobs.get(tick.job_id or "")
        owner = self._workers.get(row.lease.worker_id) if row and row.lease else None
        until = owner.renewed_at + timedelta(seconds=owner.identity.lease) if owner else None
        return Run(tick, row.view if row else None, until)

    def _standing(self, schedule: Schedule) -> Standing:
        return Standing(schedule, tuple(run for run in self._open_runs() if run.tick.schedule == schedule.name))

    def _change(self, change: Change) -> bool:
        name, stands = change.schedule.name, self._schedules.get(change.schedule.name)
        if change.schedule.rev != (stands.rev if stands else 0) or not self._may_own(change.owner):
            return False
        if change.delete:
            self._schedules.pop(name, None)
            self._ticks = {key: tick for key, tick in self._ticks.items() if tick.schedule != name}
            return True
        follow = {draft.id: self._enqueue(draft, change.owner).id for draft in change.drafts}
        for tick in change.ticks:
            job_id = follow.get(tick.job_id or "", tick.job_id)
            self._ticks[name, tick.tick, tick.cause] = replace(tick, job_id=job_id)
        for _, row in self._named(change.cancel):
            if row:
                self._cancel(row, REPLACED)
        self._schedules[name] = decode_schedule(
            msgspec.json.encode(change.stored).decode()
        )  # as those read it that keep its text
        return True

    def _may_own(self, worker_id: str | None) -> bool:
        worker = self._workers.get(worker_id or "")
        return worker_id is None or (worker is not None and not worker.died_at and not self._lease_over(worker))

    # ── one lease ──

    def _held(self, verb: str, lease: Lease) -> Row | None:
        row = self._jobs.get(lease.job_id)
        return row if row and row.lease == lease and legal(verb, row.view.state) else None

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
            id=view.id,
            attempt=view.attempt,
            task=view.task,
            queue=view.queue,
            payload=view.payload,
            failures=view.failures,
            crashes=view.crashes,
            meta=row.draft.meta,
            checkpoint=view.checkpoint,
            timeout=view.timeout,
            stale_after=view.stale_after,
            enqueued_ms=round(view.enqueued_at.timestamp() * 1000),
            expired=view.attempt == 1 and view.expires_at is not None and self.now() > view.expires_at,
        )

    def _progress(self, report: Progress) -> bool:
        row = self._held("progress", report.lease)
        if row is None:
            return False
        said = zip(SAID, (report.stage, report.fraction, report.message, report.checkpoint), strict=True)
        news: dict[str, Any] = {name: value for name, value in said if value is not None}
        if report.checkpoint not in (None, row.view.checkpoint):
            news["crashes"] = 0
        logs = row.logs if report.log is None else {**row.logs, report.lease.attempt: report.log}
        row = replace(row, active=self._clock.boot(), logs=logs)
        self._move("progress", row, State.PROCESSING, last_activity_at=self.now(), **news)
        return True

    def _finish(self, lease: Lease, outcome: Outcome, *, strict: bool) -> Answer:
        row = self._held("finish", lease)
        if row:
            return Landed(self._end("finish", row, lease, outcome).state)
        refused = self._why_not(lease, outcome)
        if strict and isinstance(refused, NotLanded):
            raise LeaseLost(refused.stands)  # undoes all that the handler did in its transaction
        return refused

    def _why_not(self, lease: Lease, outcome: Outcome) -> Answer:
        stands = self._jobs.get(lease.job_id)
        if stands is None:
            return NotLanded("no such job")
        ended = ended_as(stands, lease)
        if ended:
            other = isinstance(outcome, Completed) and ended == "completed" and outcome.result != stands.view.result
            if ended == outcome_name(outcome) and not other:
                return Landed(stands.view.state)
            with_what = " with another result" if other else ""
            return NotLanded(f"attempt {lease.attempt} of worker {lease.worker_id} ended as {ended}{with_what}")
        if stands.lease:
            return NotLanded(f"attempt {stands.lease.attempt} of worker {stands.lease.worker_id} owns it")
        return NotLanded(f"the job is {stands.view.state} after attempt {stands.view.attempt}, owned by nobody")

    def _end(self, verb: str, row: Row, lease: Lease, outcome: Outcome, **changes: Any) -> JobView:
        """End the attempt: `decide` says where it leads, a cancel asked included."""
        view, draft, now = row.view, row.draft, self.now()
        charges = Charges(
            failures=view.failures,
            crashes=view.crashes,
            crashes_total=view.crashes_total,
            max_failures=view.max_failures,
            max_crashes=view.max_crashes,
            retry_base=draft.retry_base,
            retry_cap=draft.retry_cap,
            isolated=view.isolated,
            cancel_asked=view.cancel_reason is not None,
        )
        decision = decide(charges, outcome, self._random.random())
        error = error_after(outcome, decision.state, view.cancel_reason)
        if isinstance(outcome, Completed):
            row = replace(row, lease=None, completed=lease)
            changes |= {"result": outcome.result, "completed_by": lease.worker_id}
        else:
            row = replace(row, lease=None, attempts=(*row.attempts, attempt(view, lease, outcome, now)))
            changes |= {"started_at": None, "last_activity_at": None}
        after = self._move(
            verb,
            row,
            decision.state,
            failures=decision.failures,
            crashes=decision.crashes,
            crashes_total=decision.crashes_total,
            solo=decision.solo,
            run_at=view.run_at if decision.delay is None else now + timedelta(seconds=decision.delay),
            worker_id=None,
            ended_at=now if decision.state in ENDED else None,
            error=view.error if error is None else error,
            **changes,
        )
        return after.view

    # ── dead and silent owners ──

    def _lease_over(self, worker: Worker) -> bool:
        return self._clock.boot() > worker.lease_ends

    def _credible(self, witness: str | None, until: datetime | None) -> bool:
        """Is it in time, and itself renewed so well that others' silence is their own?"""
        if until is not None and self.now() > until:
            return False
        worker = self._workers.get(witness or "")
        if worker is None:
            return witness is None
        return not worker.died_at and worker.lease_ends - self._clock.boot() > worker.identity.lease / 3

    def _declare(self, worker_ids: Iterable[str], cause: Cause) -> frozenset[str]:
        died = [worker for worker in map(self._workers.get, set(worker_ids)) if worker and not worker.died_at]
        for worker in died:
            self._workers[worker.identity.id] = replace(worker, died_at=self.now(), died_of=cause)
        return frozenset(worker.identity.id for worker in died)

    def _lost(self, row: Row, worker_id: str) -> tuple[Cause, str] | None:
        """Why a processing job may be rescued; None: its owner lives and shows it."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return "host", f"worker {worker_id} is unknown"
        if worker.died_at:
            return worker.died_of, f"worker {worker_id} {'died' if worker.died_of == 'crash' else 'lost its lease'}"
        patience = 2 * worker.identity.lease
        if over(self._silent(row) - patience, row.view.stale_after):
            return "stale", f"no progress for {spell(self._silent(row))} in worker {worker_id}"
        return None

    def _silent(self, row: Row) -> float:
        return self._clock.boot() - row.active

    def _take_back(self, verb: str, row: Row, lease: Lease, cause: Cause, outcome: Outcome) -> Rescued:
        why = {} if isinstance(outcome, Completed) else {"message": f"Cleared: {reason_of(outcome)}"}
        after = self._end(verb, row, lease, outcome, **why)
        return Rescued(
            id=after.id,
            task=after.task,
            queue=after.queue,
            attempt=lease.attempt,
            worker_id=lease.worker_id,
            cause=cause,
            state=after.state,
        )

    def _queue(self, name: str, live: list[JobView]) -> QueueView:
        here = [view for view in live if view.queue == name]
        states = [view.state for view in here]
        waits = [age(self.now(), view.run_at) for view in here if view.state is State.QUEUED]
        return QueueView(
            name=name,
            paused_at=self._paused.get(name),
            counts={state: states.count(state) for state in State if state in LIVE},
            oldest_queued=max(waits, default=None),
        )


def _refuse_drafts(drafts: Iterable[Draft]) -> None:
    for draft in drafts:
        refuse_unstorable(draft)
        refuse_impossible("priority", draft.priority, -100, 100)
