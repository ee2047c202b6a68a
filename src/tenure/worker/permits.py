"""The permits of one worker, where a queue deals them out: those it may still use, and those whose job runs.

A permit lets its holder claim one job from its queue; which one, the store says. It is acknowledged when the outcome
of that job is in the store. One that the queue had dealt out before first asks the store whether the owner of the job
it names is dead: the queue is a second way to find that out, and decides nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import random
from typing import NamedTuple

from tenure.core.lifecycle import Lease, State
from tenure.liveness.lifeline import in_time
from tenure.ports import Claimed, Permit, Permits, Rescued, Store

PAUSED_SECONDS = 1.0  #: how old our knowledge of what is paused may be
BACK_LATER_SECONDS = 5.0
BACK_SOON_SECONDS = 0.2


class Redelivered(NamedTuple):
    """What the store said of jobs whose permits came again."""

    rescued: list[Rescued]  #: those the permits name
    beside: list[Rescued]  #: others of dead owners: no permit is held for them
    owned: list[Permit]  #: their job is processed by a living worker


class HeldPermits:
    """Called on the worker's event loop, but for `rescue_redelivered` and `read_pauses`, which ask the store."""

    poll_now = False  #: something may have changed that no permit tells of

    def __init__(self, permits: Permits, store: Store, worker_id: str, lease: float, may_declare: Callable[[], bool]):
        self._permits, self._store = permits, store
        self._worker_id, self._lease = worker_id, lease
        self._may_declare = may_declare
        self._unused: dict[str, list[Permit]] = {}
        self._offered: dict[str, list[Permit]] = {}  # for the claim that is on its way
        self._running: dict[Lease, Permit] = {}
        self._paused: frozenset[str] = frozenset()
        self._pauses_known_until = 0.0
        self._scan_at = 0.0

    # ── what may come ──

    def take(self) -> bool:
        """Pick up what has come. Was there anything?"""
        came = self._permits.take()
        for permit in came:
            self._unused.setdefault(permit.queue, []).append(permit)
        return bool(came)

    def want(self, room: Mapping[str, int], free: int) -> None:
        """A permit for each free slot. Several queues share them, but each gets a chance: an empty one sends none."""
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
        """Pick those for the next claim, where there is room. Returns those that the queue dealt out before."""
        for queue, slots in room.items():
            mine = self._unused.pop(queue, [])
            if mine[:slots]:
                self._offered[queue] = mine[:slots]
            if mine[slots:]:
                self._unused[queue] = mine[slots:]
        return [permit for mine in self._offered.values() for permit in mine if permit.again]

    def rescue_redelivered(self, again: Iterable[Permit]) -> Redelivered:
        """The rescue of each job that was delivered again, if its owner is dead.

        A worker that held such a permit and fell silent may have run another job than the one it names: the store's
        order decided that.
        """
        again, scan = list(again), time.monotonic() >= self._scan_at
        until = in_time(self._store, self._lease) if again or scan else None
        declare = self._may_declare()  # then: a worker that was held up asking for the time was away
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
        """Their jobs have living owners: not before about a lease can that be otherwise."""
        for permit in owned:
            self._offered[permit.queue].remove(permit)
            self._permits.settle([permit], again_in=self._lease * (0.75 + random() / 2))

    @property
    def offered(self) -> dict[str, int]:
        """So many claims the offer allows, by queue."""
        return {queue: len(mine) for queue, mine in self._offered.items() if mine}

    # ── after it ──

    def bind(self, claimed: Iterable[Claimed]) -> None:
        """Each job takes a permit of its queue along, if there is one."""
        for each in claimed:
            mine = self._offered.get(each.queue) or self._unused.get(each.queue)
            if mine:
                self._running[Lease(each.id, each.attempt, self._worker_id)] = mine.pop()
        self._unused = {queue: mine for queue, mine in self._unused.items() if mine}

    def keep_rest(self) -> None:
        """The claim brought as many as it could: what is left of the offer may find more."""
        for queue, mine in self._offered.items():
            if mine:
                self._unused.setdefault(queue, []).extend(mine)
        self._offered.clear()

    def settle_rest(self) -> None:
        """The claim came back short: what is left of the offer is done with, unless that is for a pause."""
        for queue, mine in self._offered.items():
            self._permits.settle(mine, again_in=_later() if queue in self._paused else None)
        self._offered.clear()

    def done(self, leases: Iterable[Lease]) -> None:
        """The outcomes of these leases are in the store."""
        found = [permit for lease in leases if (permit := self._running.pop(lease, None)) is not None]
        if found:
            self._permits.settle(found)

    # ── giving back ──

    def give_back(self, again_in: float = BACK_SOON_SECONDS) -> None:
        """All that is unused, for others or for later; nothing more is wanted."""
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
