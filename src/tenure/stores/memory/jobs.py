"""Jobs in memory: the verbs of clients and owners, and transactions.

A transaction is a list of steps: each is tried and undone when it is called, and all are run when the block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from tenure.core.lifecycle import Lease, Outcome, State, group_size, legal
from tenure.errors import FlowMade, LeaseLost, StoreAway, StoreError
from tenure.ports import (
    BATCH_BYTES,
    NO_DELAYS,
    NO_EDITS,
    NONE_KNOWN,
    Answer,
    Awaited,
    Busy,
    Claimed,
    Draft,
    Edit,
    Enqueued,
    NotLanded,
    OnceRecord,
    OnLoop,
    Owned,
    Progress,
    Promoted,
)
from tenure.stores.memory.base import Transaction, atomic
from tenure.stores.memory.operated import MemoryOperated
from tenure.stores.memory.rows import SAID, Row, age, over, refused
from tenure.stores.rules import (
    WORKER_KEPT,
    ages,
    bytes_of,
    check_drafts,
    check_outcomes,
    check_replay,
    check_reports,
    check_text,
    landed,
    promoted,
    standing,
)

R = TypeVar("R")


_CHANGED = "another caller changed the same jobs first; nothing was stored, run it again"


def _again(step: Callable[[], R]) -> R:
    """A step of a transaction that was answered before."""
    try:
        return step()
    except FlowMade:  # by another caller since
        raise StoreAway(_CHANGED) from None


class MemoryJobs(MemoryOperated):
    """The verbs of `JobStore`."""

    # ── clients ──

    @atomic
    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        check_drafts(drafts, ranges=True)
        answers = self._step(tx, lambda: self._enqueue_all(drafts))
        inner = tx.tx if isinstance(tx, Awaited) else tx
        if isinstance(inner, Transaction) and committed is not None:
            inner.committed.append(committed)
        return answers

    @atomic
    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        return {name: self._cancel(row, reason) if row else None for name, row in self._named(ids)}

    @atomic
    def promote(self, *, limit: int = 1000) -> Promoted:
        now = self.now()
        waiting = [row for row in self._rows() if legal("promote", row.view.state)]
        waiting.sort(key=lambda row: (row.view.run_at, row.view.id))
        due = [row for row in waiting if row.view.run_at <= now][:limit]
        for row in due:
            self._due("promote", row, run_at=row.view.run_at)
        later = [max((row.view.run_at - now).total_seconds(), 0.0) for row in waiting[len(due) : len(due) + 1]]
        crashed = {row.view.id for row in due if row.attempts and row.attempts[-1].outcome == "crashed"}
        queued = [row.view for row in due if not row.view.limits]
        moved = [(view.queue, view.id, view.message if view.id in crashed else None) for view in queued]
        return promoted(moved, later[0] if later else None, len(due) - len(queued))

    @atomic
    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        states: dict[str, State | None] = {}
        for name, row in self._named(ids):
            if row and legal("promote", row.view.state):
                row = self._due("promote", row, run_at=min(row.view.run_at, self.now()))
            states[name] = row.view.state if row else None
        return states

    @atomic
    def replay(
        self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS, delays: Mapping[str, float] = NO_DELAYS
    ) -> dict[str, Answer | None]:
        wanted = list(ids)
        check_replay(wanted, edits, delays)
        return {
            name: self._replay(row, edits.get(name), delays.get(name, 0.0)) if row else None
            for name, row in self._named(wanted)
        }

    @atomic
    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        answers = {name: self._delete(row) if row else None for name, row in self._named(ids)}
        self._forget_flows()
        return answers

    @atomic
    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        now, kept = self.now(), dict(ages(keep, keep_dead))
        for worker in [w for w in self._workers.values() if w.died_at and age(now, w.died_at) > WORKER_KEPT]:
            del self._workers[worker.identity.id]
        ended = [row.view for row in self._rows() if legal("prune", row.view.state)]
        old = [view for view in ended if not view.linked and over(age(now, view.ended_at), kept.get(view.state))]
        old = [view for view in old if not (self._live_child(view.id) or self._gathers(view.id))]  # stored just now
        for view in old[:limit]:
            self._forget(view.id)
        self._forget_flows()
        self._forget_signals(keep)
        return len(old[:limit])

    @atomic
    def pause(self, queue: str, *, paused: bool) -> bool:
        if paused == (queue in self._paused):
            return False
        if paused:
            self._paused[queue] = self.now()
        else:
            del self._paused[queue]
        return True

    # ── owners ──

    def claim_on_loop(
        self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False
    ) -> OnLoop[list[Claimed]]:
        yield from ()
        return self.claim(worker_id, wants, limit, solo=solo)

    @atomic
    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        if not self._may_own(worker_id) or (solo and self._held_by(worker_id)):
            return []
        claimed, size = list[Claimed](), 0
        for queue, room in wants.items():
            if queue in self._paused or (solo and claimed):  # a group is from one queue
                continue
            waiting = self._waiting(queue, solo=solo)[: max(min(room, limit - len(claimed)), 0)]
            if solo:
                waiting = waiting[: group_size(row.view.together for row in waiting)]
            for row in waiting:
                if size < BATCH_BYTES:
                    claimed.append(self._claim(row, worker_id))
                    size += bytes_of(claimed[-1])
        return claimed

    @atomic
    def owned(self, worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        held = self._held_by(worker_id)
        return [Owned(known.get(lease) or self._claimed(row), row.view.cancel_reason) for row, lease in held]

    @atomic
    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        check_reports(reports, ranges=True)
        return [self._progress(report) for report in reports]

    @atomic
    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        check_text(*(why for _, why in refusals))
        for lease, why in refusals:
            row = self._jobs.get(lease.job_id)
            if row:
                attempts = tuple(refused(each, lease, why) for each in row.attempts)
                self._jobs[lease.job_id] = replace(row, attempts=attempts)

    @atomic
    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        check_text(key, value)
        row = self._held("once", lease)
        if row is None:
            return None
        if value is not None and key not in row.once:
            self._jobs[lease.job_id] = replace(row, once={**row.once, key: value})
            return OnceRecord(value)
        return OnceRecord(row.once.get(key))

    @atomic
    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        check_outcomes([outcome for _, outcome in ends])
        return self._step(tx, lambda: [self._finish(lease, outcome, strict=tx is not None) for lease, outcome in ends])

    # ── transactions ──

    @contextmanager
    def transaction(self) -> Generator[Any, None, None]:
        """Steps called with the yielded object as `tx` are run when the block ends, or never if it raises."""
        tx = Transaction()
        self._transactions.add(tx)
        try:
            yield tx
        finally:
            self._transactions.discard(tx)
        self._commit(tx)
        for committed in tx.committed:
            committed()

    def _step(self, tx: object, step: Callable[[], list[R]]) -> list[R]:
        if tx is None:
            return step()
        tx = tx.tx if isinstance(tx, Awaited) else tx
        if not isinstance(tx, Transaction) or tx not in self._transactions:
            raise StoreError(f"tx: expected what transaction() of this store yields, inside its block; got {tx!r}")
        before, known = self._jobs.copy(), self._known.copy()
        try:
            for earlier, _ in tx.steps:
                _again(earlier)
            answers = step()
        finally:
            self._jobs, self._known = before, known
        tx.steps.append((step, answers))
        return answers

    @atomic
    def _commit(self, tx: Transaction) -> None:
        before, known = self._jobs.copy(), self._known.copy()
        try:
            for step, promised in tx.steps:
                if _again(step) != promised:
                    raise StoreAway(_CHANGED)
        except BaseException:
            self._jobs, self._known = before, known
            raise

    # ── one lease ──

    def _held(self, verb: str, lease: Lease) -> Row | None:
        row = self._jobs.get(lease.job_id)
        return row if row and row.lease == lease and legal(verb, row.view.state) else None

    def _progress(self, report: Progress) -> bool:
        row = self._held("progress", report.lease)
        if row is None:
            return False
        given = zip(SAID, (report.stage, report.fraction, report.message, report.checkpoint), strict=True)
        news: dict[str, Any] = {name: value for name, value in given if value is not None}
        if report.checkpoint not in (None, row.view.checkpoint):
            news["crashes"] = 0
        logs = row.logs if report.log is None else {**row.logs, report.lease.attempt: report.log}
        row = replace(row, active=self._clock.boot(), logs=logs)
        self._move("progress", row, State.PROCESSING, last_activity_at=self.now(), **news)
        return True

    def _finish(self, lease: Lease, outcome: Outcome, *, strict: bool) -> Answer:
        row = self._held("finish", lease)
        if row:
            view = self._end("finish", row, lease, outcome)
            facts = {"state": view.state, "delay": (view.run_at - self.now()).total_seconds()}
            return landed(outcome, facts, view.max_failures)
        refused = self._why_not(lease, outcome)
        if strict and isinstance(refused, NotLanded):
            raise LeaseLost(refused.stands)  # rolls back everything the handler did in its transaction
        return refused

    def _why_not(self, lease: Lease, outcome: Outcome) -> Answer:
        row = self._jobs.get(lease.job_id)
        if row is None:
            return standing(lease, outcome, None, None)
        view = row.view
        job = (view.state, view.attempt, view.worker_id, view.completed_by, view.state, view.result)
        past = [(each.worker_id, each.outcome) for each in row.attempts if each.attempt == lease.attempt]
        return standing(lease, outcome, job, past[0] if past else None)
