"""The permits that one worker holds, where the notifier hands them out: unused ones, and those of running jobs.

A permit lets its holder claim one job from its queue; the store decides which. It is acknowledged when the outcome of
that job is stored. For a permit that was redelivered, the worker first asks the store whether the owner of the job it
names is dead: a redelivery only triggers that check, it decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import random
from typing import NamedTuple

from tenure.core.lifecycle import Lease, State
from tenure.maintenance.lifeline import in_time
from tenure.ports import Claimed, Permit, Permits, Rescued, Store

PAUSED_SECONDS = 1.0  #: how long the list of paused queues is cached
BACK_LATER_SECONDS = 5.0
BACK_SOON_SECONDS = 0.2


class Redelivered(NamedTuple):
    """The store's answers about the jobs of redelivered permits."""

    rescued: list[Rescued]  #: jobs that the permits name
    beside: list[Rescued]  #: other jobs of dead owners: no permit is held for them
    owned: list[Permit]  #: permits of jobs that living workers process


class HeldPermits:
    """Used on the worker's event loop, except `rescue_redelivered` and `read_pauses`, which call the store."""

    poll_now = False  #: there may be jobs that no permit announces

    def __init__(self, permits: Permits, store: Store, worker_id: str, lease: float, may_declare: Callable[[], bool]):
        self._permits, self._store = permits, store
        self._worker_id, self._lease = worker_id, lease
        self._may_declare = may_declare
        self._unused: dict[str, list[Permit]] = {}
        self._offered: dict[str, list[Permit]] = {}  # for the next claim, or the one in flight
        self._running: dict[Lease, Permit] = {}
        self._awaited: dict[str, Lease] = {}  # running jobs without a permit, by id: a poll claimed them before it came
        self._paused: frozenset[str] = frozenset()
        self._pauses_known_until = 0.0
        self._scan_at = 0.0

    # ── receiving permits ──

    def take(self) -> bool:
        """Collect the permits that have arrived. True if any of them can be used.

        A permit of a job that a poll has claimed before is kept until the outcome is stored: if this host is lost, its
        redelivery is what finds the job.
        """
        usable = False
        for permit in self._permits.take():
            lease = self._awaited.pop(permit.job_id, None)
            if lease is not None:
                self._running[lease] = permit
            else:
                self._unused.setdefault(permit.queue, []).append(permit)
                usable = True
        return usable

    def want(self, room: Mapping[str, int], free: int) -> None:
        """Request a permit for each free slot. Queues share the slots, at least one each: an empty queue sends none."""
        queues = [queue for queue, slots in room.items() if slots and queue not in self._paused]
        share = max(-(-free // len(queues)), 1) if queues and free else 0
        self._permits.want({queue: min(share, room[queue]) for queue in queues if share})

    @property
    def pauses_are_known(self) -> bool:
        return time.monotonic() < self._pauses_known_until

    def read_pauses(self) -> None:
        self._paused = self._store.paused()
        self._pauses_known_until = time.monotonic() + PAUSED_SECONDS

    def forget_pauses(self) -> None:
        self._pauses_known_until = 0.0

    # ── before a claim ──

    @property
    def unused(self) -> bool:
        return bool(self._unused)

    def offer(self, room: Mapping[str, int]) -> list[Permit]:
        """Select permits for the next claim, as far as there is room. Returns those that were redelivered."""
        for queue, slots in room.items():
            mine = self._unused.pop(queue, [])
            if mine[:slots]:
                self._offered[queue] = mine[:slots]
            if mine[slots:]:
                self._unused[queue] = mine[slots:]
        return [permit for mine in self._offered.values() for permit in mine if permit.again]

    def rescue_redelivered(self, again: Iterable[Permit]) -> Redelivered:
        """Rescue the jobs of redelivered permits, if their owners are dead.

        The silent worker that held such a permit may have run a different job than the one it names, because the
        store decides which job a claim takes. So other jobs of dead owners are rescued, too.
        """
        again, scan = list(again), time.monotonic() >= self._scan_at
        until = in_time(self._store, self._lease) if again or scan else None
        declare = self._may_declare()  # after the read above: a worker that it blocks for long may not judge others
        answer = Redelivered([], [], [])
        for permit in again:
            found = self._store.redelivered(permit.job_id, declare=declare, witness=self._worker_id, until=until)
            if isinstance(found, Rescued):
                answer.rescued.append(found)
            elif found is State.PROCESSING:
                answer.owned.append(permit)
        if scan:
            self._scan_at = time.monotonic() + self._lease / 6
            if declare:
                self._store.declare_expired(witness=self._worker_id, until=until)
            answer.beside.extend(replace(each, cause="queue") for each in self._store.rescue())
        return answer

    def withdraw(self, owned: Iterable[Permit]) -> None:
        """Return the permits of jobs with living owners, for about a lease: the owner can't be dead before that."""
        for permit in owned:
            self._offered[permit.queue].remove(permit)
            self._permits.settle([permit], again_in=self._lease * (0.75 + random() / 2))

    @property
    def offered(self) -> dict[str, int]:
        """How many jobs the offered permits allow this worker to claim, by queue."""
        return {queue: len(mine) for queue, mine in self._offered.items() if mine}

    # ── after a claim ──

    def bind(self, claimed: Iterable[Claimed]) -> None:
        """Assign a permit of its queue to each claimed job, if there is one."""
        for each in claimed:
            mine = self._offered.get(each.queue) or self._unused.get(each.queue)
            lease = Lease(each.id, each.attempt, self._worker_id)
            if mine:
                self._running[lease] = mine.pop()
            else:
                self._awaited[each.id] = lease
        self._unused = {queue: mine for queue, mine in self._unused.items() if mine}

    def keep_rest(self) -> None:
        """The claim was full: keep the remaining permits, since there may be more jobs."""
        for queue, mine in self._offered.items():
            if mine:
                self._unused.setdefault(queue, []).extend(mine)
        self._offered.clear()

    def settle_rest(self) -> None:
        """The claim came back short: acknowledge the remaining permits; those of paused queues are redelivered."""
        for queue, mine in self._offered.items():
            self._permits.settle(mine, again_in=_later() if queue in self._paused else None)
        self._offered.clear()

    def done(self, leases: Iterable[Lease]) -> None:
        """Acknowledge the permits of these leases: their outcomes are stored."""
        found = list[Permit]()
        for lease in leases:
            if (permit := self._running.pop(lease, None)) is not None:
                found.append(permit)
            elif self._awaited.get(lease.job_id) == lease:
                del self._awaited[lease.job_id]
        if found:
            self._permits.settle(found)

    # ── returning permits ──

    def give_back(self, again_in: float = BACK_SOON_SECONDS) -> None:
        """Return all unused permits, for other workers or for later, and request no more."""
        self._permits.want({})
        self.take()
        self.keep_rest()
        unused, self._unused = self._unused, {}
        for mine in unused.values():
            self._permits.settle(mine, again_in=again_in)

    def store_unavailable(self) -> None:
        self.give_back(_later())


def _later() -> float:
    return BACK_LATER_SECONDS * (0.5 + random())
