"""The claim loops: woken by a ring, a freed slot or the poll interval, they claim one batch for the free slots."""

from __future__ import annotations

from contextlib import suppress
from random import random

from tenure.errors import StoreError
from tenure.ports import Claimed, may_be_cut
from tenure.worker.access import Portion
from tenure.worker.attempts import Attempts
from tenure.worker.beat import LeaseBeat
from tenure.worker.doorbell import Doorbell
from tenure.worker.permits import BACK_SOON_SECONDS, PAUSED_SECONDS, HeldPermits
from tenure.worker.slots import Slots, woken

MANY_SLOTS = 128
HOLD_SECONDS = 1.0  #: how long permits may be held while all slots are busy
ALONE_SECONDS = 5.0  #: how long an embedded worker goes on with other jobs while one that must run alone waits
DEGRADED_SECONDS = 1.0  #: between two polls while the notifier is down
FULL_SECONDS = 0.01  #: how long to wait for permits before repeating a poll that filled all slots


class ClaimLoop:
    """Claims as long as the store has jobs, then sleeps until a ring or the next poll."""

    def __init__(self, slots: Slots, attempts: Attempts, beat: LeaseBeat, doorbell: Doorbell) -> None:
        plan = self._plan = slots.plan
        self._slots, self._access, self._attempts = slots, slots.access, attempts
        self._beat, self._doorbell = beat, doorbell
        self._queues = list(plan.queues)
        self._asked_alone_at = slots.loop.time()  # when an embedded worker last asked for a job that must run alone
        self._yields = False  #: it claims nothing, so that a queued job that must run alone can
        self._capped = any(cap is not None for cap in plan.queues.values())
        # With many slots, half of them run while the other half is claimed; few are not worth a second round trip.
        self._portion = Portion(plan.slots if plan.slots < MANY_SLOTS else plan.slots // 2)

    async def run(self) -> None:
        slots, wake = self._slots, self._slots.wake
        while True:
            wake.clear()
            slots.dry = False
            limit = min(slots.free(), self._portion.most)
            if not limit:
                await self._until_freed()
                continue
            claimed = await self._claim(limit)
            if len(claimed) < limit and not may_be_cut(claimed) and not self._access.fails("claim"):
                slots.dry = not (self._capped or slots.alone)  # queues are empty: a freed slot need not wake this loop
                await woken(wake, self._poll_seconds())

    async def _until_freed(self) -> None:
        """Return when a slot is freed; or when the job that it yields to is gone: cancelled, or run elsewhere."""
        slots = self._slots
        if not self._yields:
            await slots.wake.wait()
        elif not await woken(slots.wake, ALONE_SECONDS):
            with suppress(StoreError):  # the next look will tell
                self._yields = not self._left_behind and await self._access.ask(self._suspects_wait)
            slots.alone = self._yields

    @property
    def _left_behind(self) -> bool:
        """Does code of a lost lease run on? It may do so for good, and may be that of a suspect."""
        return any(attempt.stopping == "lease_lost" for attempt in self._slots.running.values())

    def _poll_seconds(self) -> float:
        interval = self._plan.poll_interval
        return (min(interval, DEGRADED_SECONDS) if self._doorbell.degraded else interval) * (0.8 + 0.4 * random())

    def _room(self, free: int) -> dict[str, int]:
        """How many of the free slots each queue may fill."""
        if not self._capped:
            room = dict.fromkeys(self._queues, free)
        else:
            held = [attempt.claimed.queue for attempt in self._slots.running.values()]
            room = {
                queue: free if (cap := self._plan.queues[queue]) is None else max(cap - held.count(queue), 0)
                for queue in self._queues
            }
        if len(self._queues) > 1:  # rotate, so that each queue is served first in turn
            self._queues.append(self._queues.pop(0))
        return room

    async def _claim(self, free: int, wants: dict[str, int] | None = None) -> list[Claimed]:
        """Claim jobs, start them and return them. Empty, after a pause, if the store did not answer."""
        slots = self._slots
        async with slots.claim_turn:
            if wants is None:
                wants = self._room(free)
            try:
                if self._plan.runner == "embedded":
                    claimed = await self._claim_embedded(wants, free)
                else:
                    claimed = await self._claim_now(wants, free)
            except StoreError as error:
                self._portion.failed(free)
                await self._retry_later(error)
                self._beat.wake.set()  # the claim may have committed all the same: the beat will find its jobs
                return []
            self._access.recovered("claim")
            self._portion.landed()
            if slots.permits is not None:
                slots.permits.bind(claimed)
            self._attempts.begin_all(claimed)
            return claimed

    async def _claim_now(self, wants: dict[str, int], free: int) -> list[Claimed]:
        slots, solo = self._slots, self._plan.runner == "solo"
        if not slots.running and not slots.backlog.waiting:
            # Nothing runs that this could delay, so save two switches of threads before the first job starts.
            store, worker_id = self._access.store, self._plan.worker_id
            claimed = await self._access.ask_on_loop(store.claim_on_loop(worker_id, wants, free, solo=solo))
            if claimed is not None:
                return claimed
        return await self._access.ask(self._ask_store, wants, free, solo)

    async def _claim_embedded(self, wants: dict[str, int], free: int) -> list[Claimed]:
        """Claim ordinary jobs, or one that must run alone: if there are no others, or if it is its turn."""
        slots = self._slots
        slots.alone = self._yields = False  # else this claim would not have been made
        its_turn = slots.loop.time() - self._asked_alone_at > ALONE_SECONDS
        left = self._left_behind
        if its_turn and not slots.empty and not left and await self._access.ask(self._suspects_wait):
            slots.alone = self._yields = True  # claim nothing else until nothing runs
            return []
        if its_turn and slots.empty and (alone := await self._claim_alone()):
            return alone
        claimed = await self._claim_now(wants, free)
        return claimed if claimed or its_turn or not slots.empty else await self._claim_alone()

    async def _claim_alone(self) -> list[Claimed]:
        """In an embedded worker that runs nothing: claim a job that must run alone, if there is one."""
        self._asked_alone_at = self._slots.loop.time()
        self._slots.alone = True  # before the claim: its reply may be lost
        claimed = await self._access.ask(self._ask_store, self._room(1), 1, True)
        self._slots.alone = bool(claimed)
        return claimed

    def _suspects_wait(self) -> bool:
        """Is there a queued job that must run alone? Asked now and then if something always runs here."""
        waiting = self._access.store.solo_waiting(self._queues) > 0
        if not waiting:
            self._asked_alone_at = self._slots.loop.time()
        return waiting

    def _ask_store(self, wants: dict[str, int], limit: int, solo: bool) -> list[Claimed]:
        return self._access.store.claim(self._plan.worker_id, wants, limit, solo=solo)

    async def _retry_later(self, error: StoreError) -> None:
        if self._slots.permits is not None:
            self._slots.permits.store_unavailable()
        await self._access.retry_later("claim", error)


class PermitLoop(ClaimLoop):
    """Claims for the permits it holds, and polls for jobs that no message announced.

    A poll that filled all slots is repeated after `FULL_SECONDS`, which gives permits time to arrive first.
    """

    async def run(self) -> None:
        slots, permits = self._slots, self._slots.permits
        assert permits is not None, "without permits, use ClaimLoop"
        poll_at, full, repoll_at = 0.0, False, 0.0
        while True:
            slots.wake.clear()
            free = slots.free()
            limit = min(free, self._portion.most)
            if not limit:
                repoll_at = 0.0
                await self._wait_for_slot(permits)
                continue
            now = slots.loop.time()
            if self._doorbell.degraded:
                poll_at = min(poll_at, now + DEGRADED_SECONDS)
            if permits.poll_now:
                permits.poll_now, poll_at = False, now
            if full and not repoll_at:
                repoll_at = now + (0.0 if self._doorbell.degraded else FULL_SECONDS)
            try:
                if now >= poll_at or self._access.fails("claim") or (not permits.unused and 0.0 < repoll_at <= now):
                    claimed = await self._claim(limit)
                    full, repoll_at = len(claimed) == limit or may_be_cut(claimed), 0.0
                    poll_at = slots.loop.time() + self._poll_seconds()
                elif not permits.pauses_are_known:
                    await self._access.ask(permits.read_pauses)
                elif permits.unused:
                    repoll_at = 0.0
                    await self._use_permits(permits, limit)
                else:
                    permits.want(self._room(free), free)
                    due = min(poll_at, repoll_at or poll_at) - now
                    await woken(slots.wake, min(due, PAUSED_SECONDS))
            except StoreError as error:
                await self._retry_later(error)

    async def _wait_for_slot(self, permits: HeldPermits) -> None:
        """Hold unused permits for a moment in case a slot is freed, then return them and wait for the slot."""
        slots = self._slots
        if slots.claiming and permits.unused and await woken(slots.wake, HOLD_SECONDS):
            return
        permits.give_back(BACK_SOON_SECONDS if slots.claiming else 0.0)
        await self._until_freed()

    async def _use_permits(self, permits: HeldPermits, limit: int) -> None:
        slots = self._slots
        again = permits.offer(self._room(limit))
        if again:
            redelivered = await self._access.ask(permits.rescue_redelivered, again)
            permits.withdraw(redelivered.owned)
            self._doorbell.announce_rescued(redelivered)
        wants = permits.offered
        if not wants:  # no room for these queues, or only permits of jobs that other workers run
            permits.give_back()
            return
        limit = min(limit, sum(wants.values()))
        claimed = await self._claim(limit, wants)
        if len(claimed) < limit and not may_be_cut(claimed) and not slots.alone:
            permits.settle_rest()
        else:
            permits.keep_rest()
