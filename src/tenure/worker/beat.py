"""The beat: reads which jobs the store says this worker owns, and reconciles them with what it runs."""

from __future__ import annotations

import asyncio

from tenure.core.lifecycle import Cancelled, Lease
from tenure.core.text import MAX_ERROR, clean
from tenure.errors import StoreError
from tenure.worker.attempts import Attempts
from tenure.worker.slots import Slots, woken

RECENT_SECONDS = 1.0


class LeaseBeat:
    """Reads the owned jobs every third of a lease, when a cancel rings, and after a claim that got no reply."""

    def __init__(self, slots: Slots, attempts: Attempts) -> None:
        self._slots, self._access, self._attempts = slots, slots.access, attempts
        self._read_at = 0.0
        self.wake = asyncio.Event()

    async def run(self) -> None:
        while True:
            await woken(self.wake, self._slots.plan.lease / 3)
            self.wake.clear()
            try:
                await self._settle_owned()
            except StoreError as error:
                await self._access.retry_later("beat", error)
                self.wake.set()
            else:
                self._access.recovered("beat")
                if not self._slots.free():  # no claim will be made that could show that claims work again
                    self._access.recovered("claim")

    def wake_unless_recent(self) -> None:
        """Read soon: a cancel's ring may have been missed."""
        if self._slots.loop.time() - self._read_at > RECENT_SECONDS:
            self.wake.set()

    async def _settle_owned(self) -> None:
        slots, backlog = self._slots, self._slots.backlog
        worker_id = slots.plan.worker_id
        async with slots.claim_turn:  # with a claim in flight, its jobs would be owned but not yet running
            self._read_at = slots.loop.time()
            flushed_meanwhile = backlog.flushed_since_read = set[Lease]()
            try:
                known = {attempt.lease: attempt.claimed for attempt in slots.running.values()}
                owned = await self._access.ask(self._access.store.owned, worker_id, known)
            finally:
                backlog.flushed_since_read = None
            unflushed = backlog.leases() | flushed_meanwhile
            unmatched = {Lease(each.claimed.id, each.claimed.attempt, worker_id): each for each in owned}
            for attempt in list(slots.running.values()):
                held = unmatched.pop(attempt.lease, None)
                if held is None and attempt.finished:
                    continue  # its outcome was committed in the job's own transaction; its code may still clean up
                if held is None:
                    attempt.request_stop("lease_lost", None)
                elif held.cancel_reason is not None:
                    attempt.request_stop("cancel", Cancelled(clean(held.cancel_reason, MAX_ERROR)))
            lost_replies = [
                held.claimed
                for lease, held in unmatched.items()
                if lease not in unflushed and held.claimed.id not in slots.successors
            ]
            self._attempts.begin_all(lost_replies)
