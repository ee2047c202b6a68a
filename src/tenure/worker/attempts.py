"""Starts the attempts of claimed jobs, and receives their outcomes: the host of all code that runs in the slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from time import monotonic

from tenure.core.lifecycle import EXPIRED, Cancelled, Lease, Outcome, Released, Snoozed
from tenure.ports import Claimed
from tenure.worker.caller import CallersLoop
from tenure.worker.executor import Attempt
from tenure.worker.misfits import locked, sealed_in, unknown_task
from tenure.worker.program import Program
from tenure.worker.progress import ProgressFlusher
from tenure.worker.slots import End, Slots
from tenure.worker.tally import Tally

LEFT_SECONDS = 5.0  #: until the next claim of a job whose code did not stop when its lease was lost
_QUEUE = attrgetter("queue")


class Attempts:
    """The `Host` of every attempt of a worker (executor.py)."""

    def __init__(
        self,
        slots: Slots,
        progress: ProgressFlusher,
        program: Program,
        resources: Mapping[type, object],
        tally: Tally,
        caller: CallersLoop | None,
    ) -> None:
        self.store = slots.access.store
        self.worker_id = slots.plan.worker_id
        self.resources = resources
        self.reported, self.store_now, self.refused = progress.reported, progress.store_now, slots.access.refused
        self._slots, self._program, self._tally, self._caller = slots, program, tally, caller
        self._pool = ThreadPoolExecutor(slots.plan.slots + 1, "tenure-job")

    def begin_all(self, claimed: Iterable[Claimed]) -> None:
        found = Counter(map(_QUEUE, claimed))
        self._tally.count_all({("claims", queue): number for queue, number in found.items()})
        for each in claimed:
            self._begin(each)

    def take_over(self, left: Mapping[str, Attempt]) -> None:
        """The host of these is now this object."""
        for attempt in left.values():
            attempt.host = self
        self._slots.running.update(left)

    def _begin(self, claimed: Claimed) -> None:
        slots = self._slots
        old = slots.running.get(claimed.id)
        if old is not None and old.lease.worker_id != self.worker_id:  # another worker may run it meanwhile
            self._refuse(claimed, Snoozed(LEFT_SECONDS, "the code of an earlier attempt runs on here", ours=True))
            return
        if old is not None:  # the store lost a commit: never run two attempts of one job in one process
            slots.successors[claimed.id] = claimed
            old.request_stop("lease_lost", None)
            return
        task, plain = self._program.tasks.find(claimed.task), claimed.is_plain
        if claimed.expired:  # first: only the first claim says so
            self._refuse(claimed, Cancelled(EXPIRED))
        elif slots.handing_back:
            self._refuse(claimed, Released(slots.handing_back))
        elif task is None:
            self._refuse(claimed, unknown_task(claimed))
        elif not plain and (sealed := sealed_in(claimed)) is not None:
            self._refuse(claimed, locked(claimed, sealed))
        else:
            attempt = slots.running[claimed.id] = Attempt(self, task, claimed, slots.loop)
            if not plain:
                attempt.fetches = attempt.is_elsewhere()
            attempt.start(self._program, self._pool, self._caller)

    def _refuse(self, claimed: Claimed, outcome: Outcome) -> None:
        """End a claimed job without running it."""
        self._slots.push(End(Lease(claimed.id, claimed.attempt, self.worker_id), claimed, outcome, None))

    def ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        slots, claimed = self._slots, attempt.claimed
        if attempt.loses_its_loop:  # this worker ends with it, and must not claim what it is about to hand back
            slots.stop_claiming()
        del slots.running[claimed.id]
        slots.backlog.durations[claimed.task].append(monotonic() - attempt.started_at)
        if slots.successors:
            successor = slots.successors.pop(claimed.id, None)
            if successor is not None:
                self._begin(successor)
        slots.push(End(attempt.lease, claimed, outcome, attempt))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
