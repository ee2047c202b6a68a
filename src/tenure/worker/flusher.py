"""Stores outcomes: in batches, each retried until the store has answered."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter

from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, Released, Snoozed, State, outcome_name
from tenure.core.text import MAX_ERROR, clean
from tenure.errors import BadData, StoreError
from tenure.events import (
    UNKNOWN_TASK,
    AttemptFailed,
    Events,
    JobDied,
    JobRescued,
    LeaseRefused,
    LogLine,
    Running,
    log_jobs,
)
from tenure.ports import Answer, Busy, Landed, Notifier, NotLanded, Progress, Rescued, Ring
from tenure.worker.access import Portion, halving
from tenure.worker.executor import Attempt
from tenure.worker.hand_over import HandOver
from tenure.worker.keeping import Keeping
from tenure.worker.progress import ProgressFlusher
from tenure.worker.slots import MAX_UNFLUSHED, End, Slots
from tenure.worker.tally import Tally

BUSY_SECONDS = 1.0
_TASK = attrgetter("claimed.task")
_LATER = (State.SCHEDULED, State.WAITING)


class OutcomeFlusher:
    """While one flush is in flight the next batch accumulates, so a thousand outcomes may cost one commit."""

    def __init__(
        self,
        slots: Slots,
        progress: ProgressFlusher,
        hand_over: HandOver,
        notifier: Notifier,
        events: Events,
        tally: Tally,
        keeping: Keeping,
        *,
        traced: bool,
    ) -> None:
        self._slots, self._access, self._progress = slots, slots.access, progress
        self._hand_over, self._notifier, self._events, self._tally = hand_over, notifier, events, tally
        self._portion, self._traced = Portion(MAX_UNFLUSHED), traced
        self._keeping, self._kept = keeping, set[Lease]()
        self.released = 0

    async def run(self) -> None:
        slots, backlog = self._slots, self._slots.backlog
        while True:
            await backlog.wake.wait()
            backlog.wake.clear()
            while backlog.waiting:
                await self._flush(backlog.take())
                backlog.flushed()
                if not slots.dry:
                    slots.wake.set()
            slots.idle.set()

    def _set_aside(self, batch: Iterable[End]) -> None:
        """Bring the large values of these into the bucket; then each joins a flush."""
        for end in batch:
            self._slots.backlog.keeping[end.lease] = end
            self._keeping.begin(self._keep(end))

    async def _keep(self, end: End) -> None:
        bringing = self._keeping.begin(self._bring(end))
        limit = end.claimed.stale_after
        while not (await asyncio.wait([bringing], timeout=None if limit is None else limit / 3))[0]:
            with suppress(StoreError):  # so that no other host believes that the job hangs
                await self._access.write(self._access.store.progress, [Progress(lease=end.lease)])
        del self._slots.backlog.keeping[end.lease]
        self._kept.add(end.lease)
        self._slots.push(end)

    async def _bring(self, end: End) -> None:
        if end.attempt is not None:
            await self._progress.stored_large(end.attempt)
        await self._keeping.kept(self._keeping.result_of(end))

    def _waits_for_the_bucket(self, end: End) -> bool:
        if end.lease in self._kept:
            self._kept.remove(end.lease)
            return False
        return end.outcome is not None and bool(self._keeping.result_of(end) or self._progress.has_large(end.attempt))

    async def _flush(self, batch: list[End]) -> None:
        if self._keeping.has_bucket and (large := [end for end in batch if self._waits_for_the_bucket(end)]):
            self._set_aside(large)
            batch = [end for end in batch if end.lease not in self._slots.backlog.keeping]
            if not batch:
                return
        ends = [end for end in batch if end.outcome is not None]
        answers = await self._store(batch, ends)
        if self._traced:
            _end_traces(batch, ends, answers)
        others: list[tuple[End, Answer]] = []  # all but plain completions
        busy: list[End] = []
        for end, answer in zip(ends, answers, strict=True):
            if isinstance(answer, Busy):
                busy.append(end)
            elif type(end.outcome) is not Completed or type(answer) is NotLanded:
                others.append((end, answer))
        self._count(ends, [end for end, _ in others] + busy)
        rings = set[Ring]()
        for end, answer in others:
            self._report(end, answer)
            if type(answer) is Landed and answer.state is State.QUEUED:
                rings.add(Ring("queued", end.claimed.queue, (end.claimed.id,)))
            elif type(answer) is Landed and answer.state in _LATER:
                rings.add(Ring("due", end.claimed.queue))
        if waited_for := [end.claimed for end in ends if end.claimed.linked or end.claimed.limited]:
            rings |= {Ring("due", job.queue) for job in waited_for if job.linked}  # others may wait for its end
            if any(job.limited for job in waited_for):
                self._hand_over.wake.set()
        if rings:
            self._notifier.announce(rings)
        log_jobs(_completed(ends, answers))
        slots, set_aside = self._slots, self._slots.backlog.busy
        if busy:
            set_aside.update((end.lease, end) for end in busy)
            slots.loop.call_later(BUSY_SECONDS, self._push_busy)
        if slots.permits is not None:
            slots.permits.done(end.lease for end in batch if end.lease not in set_aside)

    async def _store(self, batch: list[End], ends: list[End]) -> list[Answer | Busy]:
        busy = await self._store_reports(batch)  # first: once an outcome is stored, no report is
        ready = [end for end in ends if end.attempt not in busy] if busy else ends
        answers: list[Answer | Busy] = []
        while len(answers) < len(ready):
            some = self._portion.of(ready[len(answers) :], _size)
            try:
                answers += await self._access.write(self._finish, some)
            except StoreError as error:
                self._portion.failed(len(some))
                await self._access.retry_later("write", error)
            else:
                self._portion.landed()
        self._access.recovered("write")
        if not busy:
            return answers
        found = iter(answers)
        return [Busy() if end.attempt in busy else next(found) for end in ends]

    async def _store_reports(self, batch: list[End]) -> set[Attempt]:
        """Store what these have reported. Returns those whose rows another transaction has locked: they end later."""
        unreported = set[Attempt]()
        while True:
            unreported |= self._progress.take_unstored(batch)
            if not unreported:
                return set()
            try:
                _, busy = await self._access.write(self._progress.store, unreported)
            except StoreError as error:
                await self._access.retry_later("write", error)
            else:
                for attempt in busy:
                    self._progress.reported(attempt)
                return set(busy)

    def _finish(self, ends: Sequence[End]) -> list[Answer | Busy]:
        return halving(self._finish_all, self._fail, ends)

    def _finish_all(self, ends: Sequence[End]) -> list[Answer | Busy]:
        return self._access.store.finish([(end.lease, end.outcome) for end in ends if end.outcome is not None])

    def _fail(self, end: End, error: BadData) -> Answer | Busy:
        instead = Failed(clean(f"its outcome can't be stored: {error}", MAX_ERROR))
        return self._access.store.finish([(end.lease, instead)])[0]

    def _push_busy(self) -> None:
        """Retry them: the transaction that held their rows may have ended."""
        backlog = self._slots.backlog
        busy, backlog.busy = backlog.busy, {}
        for end in busy.values():
            self._slots.push(end)

    def _count(self, ends: list[End], others: list[End]) -> None:
        """Count all durations, and all plain completions: `_report` counts the other outcomes one by one."""
        backlog = self._slots.backlog
        durations, backlog.durations = backlog.durations, defaultdict(list)
        for task, found in durations.items():
            self._tally.time_all("attempt", task, found)
        completed = Counter(map(_TASK, ends)) - Counter(map(_TASK, others))
        self._tally.count_all({("outcomes", task, "completed"): number for task, number in completed.items()})

    def _report(self, end: End, answer: Answer) -> None:
        job, outcome = end.claimed, end.outcome
        about = Running(job.id, job.task, job.queue, job.attempt, end.lease.worker_id)._asdict()
        if isinstance(answer, NotLanded):
            if end.attempt is None or not end.attempt.finished:
                self._events.emit(LeaseRefused(**about, stands=answer.stands))
                if outcome is not None:
                    self._access.refused(end.lease, f"{outcome_name(outcome)} refused: {answer.stands}")
            else:  # it was completed earlier, in the job's own transaction
                self._tally.count("outcomes", job.task, "completed")
            return
        if isinstance(outcome, Crashed):  # it hung, and stopped when asked: a rescue by its own worker
            taken = Rescued(
                id=job.id,
                task=job.task,
                queue=job.queue,
                attempt=job.attempt,
                worker_id=end.lease.worker_id,
                cause="stale",
                state=answer.state,
            )
            self._events.emit(JobRescued(rescued=taken))
        elif outcome is not None:
            self._tally.count("outcomes", _label(end), outcome_name(outcome))
        if isinstance(outcome, Released):
            self.released += 1
        elif isinstance(outcome, Failed | Crashed):
            error = outcome.error if isinstance(outcome, Failed) else outcome.reason
            raised = end.attempt.raised if end.attempt is not None else None
            if self._access.store.capabilities.sealed and isinstance(outcome, Failed):
                error, raised = f"{'' if raised is None else type(raised).__name__}, kept encrypted".lstrip(", "), None
            if answer.state is State.DEAD:
                self._events.emit(JobDied(**about, error=error, exception=raised))
            elif isinstance(outcome, Failed):
                known = answer.retried._asdict() if answer.retried is not None else {}
                failures = job.failures + 1
                self._events.emit(AttemptFailed(**about, error=error, failures=failures, **known, exception=raised))


def _end_traces(batch: Iterable[End], ends: Iterable[End], answers: Iterable[Answer | Busy]) -> None:
    found: dict[Lease, Answer | Busy | None] = {end.lease: None for end in batch}
    found |= {end.lease: answer for end, answer in zip(ends, answers, strict=True)}
    for end in batch:
        attempt, answer = end.attempt, found[end.lease]
        if attempt is None or attempt.trace is None or isinstance(answer, Busy):
            continue
        if isinstance(answer, NotLanded) and attempt.finished:  # it was completed in the job's own transaction
            attempt.trace.end(Completed(), None, State.COMPLETED, "")
        elif isinstance(answer, NotLanded):
            attempt.trace.end(end.outcome, attempt.raised, None, answer.stands)
        else:
            attempt.trace.end(end.outcome, attempt.raised, answer.state if answer is not None else None, "")


def _completed(ends: Iterable[End], answers: Iterable[Answer | Busy]) -> Iterable[LogLine]:
    for end, answer in zip(ends, answers, strict=True):
        if type(end.outcome) is Completed and type(answer) is Landed:
            job = end.claimed
            about = Running(job.id, job.task, job.queue, job.attempt, end.lease.worker_id)._asdict()
            yield "%s %s has completed, attempt %d", (job.task, job.id, job.attempt), about


def _label(end: End) -> str:
    """Its task, for metrics. Any text may be the name of a task that no worker knows, even one with an id in it."""
    is_unknown = isinstance(end.outcome, Snoozed) and end.outcome.reason.startswith(UNKNOWN_TASK)
    return "(unknown)" if end.attempt is None and is_unknown else end.claimed.task


def _size(end: End) -> int:
    return len(end.outcome.result) if type(end.outcome) is Completed else 0
