"""Claims: a ring, a freed slot or the poll wakes the loop, which claims for free slots only, in one batch."""

from __future__ import annotations

import asyncio
from random import random

from tenure.core.lifecycle import State
from tenure.errors import StoreError
from tenure.events import RESCUE_REASONS, Events, JobRescued
from tenure.ports import Claimed, Notifier, Ring
from tenure.worker.access import StoreAccess
from tenure.worker.attempts import Attempts
from tenure.worker.beat import LeaseBeat
from tenure.worker.doorbell import NotifierHealth
from tenure.worker.permits import BACK_SOON_SECONDS, PAUSED_SECONDS, HeldPermits, Redelivered
from tenure.worker.slots import Slots, woken

MANY_SLOTS = 128
HOLD_SECONDS = 1.0  #: how long permits may be held for a slot
DEGRADED_SECONDS = 1.0  #: between two polls while the notifier is down
FULL_SECONDS = 0.01  #: so long permits may take to come before a poll that came back full comes again


class Claims:
    """Claims a batch from the store and begins what it brings."""

    def __init__(
        self,
        slots: Slots,
        access: StoreAccess,
        attempts: Attempts,
        beat: LeaseBeat,
        health: NotifierHealth,
        permits: HeldPermits | None,
    ) -> None:
        plan = self._plan = slots.plan
        self._slots, self._access, self._attempts = slots, access, attempts
        self._beat, self._health, self._permits = beat, health, permits
        self._queues = list(plan.queues)
        self.capped = any(cap is not None for cap in plan.queues.values())
        # Half the slots run while the store hands out the other half; few slots are not worth a second trip.
        self.most_at_once = plan.slots if plan.slots < MANY_SLOTS else plan.slots // 2

    def room(self, free: int) -> dict[str, int]:
        """How many of these slots each queue may fill."""
        if not self.capped:
            room = dict.fromkeys(self._queues, free)
        else:
            held = [attempt.claimed.queue for attempt in self._slots.running.values()]
            room = {
                queue: free if (cap := self._plan.queues[queue]) is None else max(cap - held.count(queue), 0)
                for queue in self._queues
            }
        if len(self._queues) > 1:  # every queue comes first in its turn
            self._queues.append(self._queues.pop(0))
        return room

    def poll_seconds(self) -> float:
        interval = self._plan.poll_interval
        return (min(interval, DEGRADED_SECONDS) if self._health.degraded else interval) * (0.8 + 0.4 * random())

    async def claim(self, free: int, wants: dict[str, int] | None = None) -> list[Claimed]:
        """What it brings has begun. Empty, after a pause, if the store did not answer."""
        slots, ask, solo = self._slots, self._access.ask, self._plan.runner == "solo"
        async with slots.claim_turn:
            if wants is None:
                wants = self.room(free)
            try:
                if slots.running or slots.backlog.waiting or not self._access.store.capabilities.local:
                    claimed = await ask(self._claim, wants, free, solo)
                else:  # nothing runs that could be held up: two changes of threads less until the first job starts
                    claimed = self._claim(wants, free, solo)
                if not claimed and self._plan.runner == "embedded" and not slots.running:
                    claimed = await ask(self._claim, self.room(1), 1, True)
                    slots.alone = bool(claimed)
            except StoreError as error:
                await self.retry_later(error)
                self._beat.wake.set()  # it may have been claimed all the same: only the store knows
                return []
            self._access.recovered("claim")
            if self._permits is not None:
                self._permits.bind(claimed)
            self._attempts.begin_all(claimed)
            return claimed

    def _claim(self, wants: dict[str, int], limit: int, solo: bool) -> list[Claimed]:
        return self._access.store.claim(self._plan.worker_id, wants, limit, solo=solo)

    async def retry_later(self, error: StoreError) -> None:
        if self._permits is not None:
            self._permits.store_unavailable()
        await self._access.retry_later("claim", error)

    @property
    def failing(self) -> bool:
        return self._access.fails("claim")


class PollLoop:
    """Claims as long as the store has jobs; then sleeps until a ring or the poll."""

    def __init__(self, slots: Slots, claims: Claims) -> None:
        self._slots, self._claims = slots, claims

    async def run(self) -> None:
        slots, claims, wake = self._slots, self._claims, self._slots.wake
        while True:
            wake.clear()
            slots.dry = False
            limit = min(slots.free(), claims.most_at_once)
            if not limit:
                await wake.wait()  # a slot will free itself
                continue
            claimed = await claims.claim(limit)
            if len(claimed) < limit and not claims.failing:
                slots.dry = not claims.capped  # the queues are empty: a slot that frees itself is no news
                await woken(wake, claims.poll_seconds())


class PermitLoop:
    """There are two reasons to claim: permits held, and the poll, for what no message told of.

    A poll that came back full comes again at once, but for the moment that permits need to come first.
    """

    def __init__(
        self,
        slots: Slots,
        access: StoreAccess,
        claims: Claims,
        permits: HeldPermits,
        health: NotifierHealth,
        notifier: Notifier,
        events: Events,
    ) -> None:
        self._slots, self._access, self._claims, self._permits = slots, access, claims, permits
        self._health, self._notifier, self._events = health, notifier, events
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        slots, claims, permits = self._slots, self._claims, self._permits
        poll_at, full, hungry_at = 0.0, False, 0.0
        while True:
            slots.wake.clear()
            free = slots.free()
            limit = min(free, claims.most_at_once)
            if not limit:
                hungry_at = 0.0
                await self._wait_for_slot()
                continue
            now = self._loop.time()
            if self._health.degraded:
                poll_at = min(poll_at, now + DEGRADED_SECONDS)
            if permits.poll_now:
                permits.poll_now, poll_at = False, now
            if full and not hungry_at:
                hungry_at = now + (0.0 if self._health.degraded else FULL_SECONDS)
            try:
                if now >= poll_at or claims.failing or (not permits.unused and 0.0 < hungry_at <= now):
                    claimed = await claims.claim(limit)
                    full, hungry_at = len(claimed) == limit, 0.0
                    poll_at = self._loop.time() + claims.poll_seconds()
                elif not permits.pauses_are_known:
                    await self._access.ask(permits.read_pauses)
                elif permits.unused:
                    hungry_at = 0.0
                    await self._use_permits(limit)
                else:
                    permits.want(claims.room(free), free)
                    due = min(poll_at, hungry_at or poll_at) - now
                    await woken(slots.wake, min(due, PAUSED_SECONDS))
            except StoreError as error:
                await claims.retry_later(error)

    async def _wait_for_slot(self) -> None:
        """A slot will free itself, and may want the permits that are held."""
        slots, permits = self._slots, self._permits
        if slots.claiming and permits.unused and await woken(slots.wake, HOLD_SECONDS):
            return
        permits.give_back(BACK_SOON_SECONDS if slots.claiming else 0.0)
        await slots.wake.wait()

    async def _use_permits(self, limit: int) -> None:
        permits = self._permits
        again = permits.offer(self._claims.room(limit))
        if again:
            redelivered = await self._access.ask(permits.rescue_redelivered, again)
            permits.withdraw(redelivered.owned)
            self._report_rescued(redelivered)
        wants = permits.offered
        if not wants:  # no room for these queues, or nothing but jobs that others run
            permits.give_back()
            return
        limit = min(limit, sum(wants.values()))
        claimed = await self._claims.claim(limit, wants)
        if len(claimed) < limit:
            permits.settle_rest()
        else:
            permits.keep_rest()

    def _report_rescued(self, redelivered: Redelivered) -> None:
        for each in (*redelivered.rescued, *redelivered.beside):
            self._events.emit(JobRescued(rescued=each))
            if each.state is State.SCHEDULED:
                self._notifier.announce([Ring("due", each.queue)])
            elif each.state is State.QUEUED and each in redelivered.beside:
                reason = f"Cleared: {RESCUE_REASONS[each.cause]}"
                self._notifier.announce([Ring("queued", each.queue, (each.id,), reason)])
