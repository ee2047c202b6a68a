"""The state that all parts of a worker share: running attempts, outcomes not yet stored, and free slots.

It is used on the worker's event loop only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tenure.core.lifecycle import Completed, Lease, Outcome
from tenure.events import Running
from tenure.ports import Claimed, Runner
from tenure.worker.access import StoreAccess
from tenure.worker.executor import Attempt
from tenure.worker.permits import HeldPermits

MAX_UNFLUSHED = 1000
MAX_UNFLUSHED_SECONDS = 0.05
MAX_KEPT = 256 << 20  #: characters of results that the bucket has not taken; above this, nothing more is claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A worker's configuration: its queues with their caps, its number of slots, and its timers in seconds."""

    worker_id: str
    runner: Runner
    queues: Mapping[str, int | None]
    slots: int
    lease: float
    poll_interval: float
    grace: float


class End(NamedTuple):
    """An attempt that ended, with the outcome to store. `outcome` None: there is nothing left to write."""

    lease: Lease
    claimed: Claimed
    outcome: Outcome | None
    attempt: Attempt | None  #: None: its code was never started


class Backlog:
    """Ended attempts with outcomes that the store has not confirmed."""

    def __init__(self) -> None:
        self.waiting: list[End] = []
        self.flushing: list[End] = []
        self.busy: dict[Lease, End] = {}  #: another open transaction has locked their rows: set aside, to be retried
        self.keeping: dict[Lease, End] = {}  #: the bucket has not taken their values yet (keeping.py)
        self.oldest = 0.0
        self.flushed_since_read: set[Lease] | None = None  #: None: the beat is not reading the owned jobs right now
        self.durations: defaultdict[str, list[float]] = defaultdict(list)  #: by task; the gc does not track floats
        self.wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.flushing)

    def leases(self) -> set[Lease]:
        return {end.lease for end in (*self.flushing, *self.waiting)} | self.busy.keys() | self.keeping.keys()

    def unstored(self) -> int:
        aside = (*self.busy.values(), *self.keeping.values())
        return sum(end.outcome is not None for end in (*self.flushing, *self.waiting, *aside))

    def kept_in_memory(self) -> int:
        """Characters of the results that the bucket has not taken yet."""
        if not self.keeping:
            return 0
        return sum(len(end.outcome.result) for end in self.keeping.values() if isinstance(end.outcome, Completed))

    def empty(self) -> bool:
        return not (self.flushing or self.waiting or self.busy or self.keeping)

    def take(self) -> list[End]:
        """Take the next batch to flush."""
        self.flushing, self.waiting = self.waiting[:MAX_UNFLUSHED], self.waiting[MAX_UNFLUSHED:]
        self.oldest = asyncio.get_running_loop().time()
        return self.flushing

    def flushed(self) -> None:
        """The batch is stored."""
        if self.flushed_since_read is not None:
            self.flushed_since_read.update(end.lease for end in self.flushing)
        self.flushing = []


class Slots:
    """The running attempts, the free slots, and the flags and events by which the parts coordinate."""

    def __init__(self, plan: Plan, access: StoreAccess) -> None:
        self.plan, self.access = plan, access
        self.loop = asyncio.get_running_loop()
        self.permits: HeldPermits | None = None  #: None: the notifier is a plain doorbell without permits
        self.running: dict[str, Attempt] = {}
        self.successors: dict[str, Claimed] = {}  #: each waits until the earlier attempt of its job has stopped
        self.backlog = Backlog()
        self.claiming = True
        self.handing_back = ""  #: if set, why jobs are released unstarted, including those of a claim in flight
        self.alone = plan.runner == "solo"  #: its jobs must run alone; in an embedded worker, only the last claimed one
        self.stuck = False  #: code that was asked to stop did not, or the caller's loop is blocked
        self.dry = False  #: the queues are empty: a freed slot need not wake the claim loop
        self.wake = asyncio.Event()  #: there may be a free slot, or a job to claim
        self.idle = asyncio.Event()
        self.claim_turn = asyncio.Lock()  #: held while a claim is in flight, and while the beat reads the owned jobs

    def free(self) -> int:
        if not self.claiming or self.stuck:
            return 0
        if self.alone and not self.empty:  # the next one may kill this process; then every job
            return 0  # whose outcome is not stored would be charged, too
        free = self.plan.slots - len(self.running) - len(self.successors)
        unflushed = len(self.backlog)
        if unflushed >= MAX_UNFLUSHED or self.backlog.kept_in_memory() > MAX_KEPT:
            return 0
        if unflushed and self.loop.time() - self.backlog.oldest > MAX_UNFLUSHED_SECONDS:
            free -= unflushed
        return max(free, 0)

    @property
    def empty(self) -> bool:
        """Does nothing run, and is every outcome stored?"""
        return not (self.running or self.successors) and self.backlog.empty()

    def push(self, end: End) -> None:
        """Record an ended attempt: its slot is free, and its outcome joins the next flush."""
        backlog = self.backlog
        if not backlog.waiting and not backlog.flushing:
            backlog.oldest = self.loop.time()
        backlog.waiting.append(end)
        backlog.wake.set()
        if not self.dry:
            self.wake.set()
        if not self.running:
            self.idle.set()

    def stop_claiming(self) -> None:
        self.claiming = False
        self.wake.set()  # permits held for a slot are returned

    def running_as(self, running: Running) -> Attempt | None:
        """The attempt that this context names, if it runs in this worker. Called from any thread."""
        attempt = self.running.get(running.job_id)
        lease = Lease(running.job_id, running.attempt, running.worker_id)
        return attempt if attempt is not None and attempt.lease == lease else None

    async def wait_idle(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self.running:
                    self.idle.clear()
                    await self.idle.wait()
        except TimeoutError:
            return


async def woken(wake: asyncio.Event, seconds: float) -> bool:
    """Wait until `wake` is set, but no longer than `seconds`. True if it was set in time."""
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, wake.set)
    try:
        await wake.wait()
    finally:
        timer.cancel()
    return loop.time() < timer.when()
