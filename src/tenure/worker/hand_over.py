"""Gives the places of jobs that have ended to those that wait for them.

It does not wait for a ring, as the places of one key may change hands hundreds of times a second. And it runs alongside
the flushes: while one look at the asks is in flight, the places of several flushes accumulate for the next.
"""

from __future__ import annotations

import asyncio
from functools import partial

from tenure.errors import StoreError
from tenure.ports import Notifier, Ring
from tenure.worker.slots import Slots

AT_ONCE = 1_000  #: jobs in one look: the more jobs of a key it covers, the less each of them costs


class HandOver:
    """Admits waiting jobs, whenever limited ones have ended here."""

    def __init__(self, slots: Slots, notifier: Notifier) -> None:
        self._slots, self._notifier = slots, notifier
        self.wake = asyncio.Event()  #: an outcome that freed places is stored

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            while await self._admit():
                pass

    async def _admit(self) -> bool:
        """One look at the asks. Returns whether there are more."""
        slots = self._slots
        try:
            admitted = await slots.access.beside(partial(slots.access.store.admit, limit=AT_ONCE))
        except StoreError:  # the asks are stored, and the maintenance answers them
            self._notifier.announce([Ring("due", "")])
            return False
        if slots.permits is None and any(queue in slots.plan.queues for queue in admitted.jobs):
            slots.wake.set()
        rings = [Ring("queued", queue, tuple(ids)) for queue, ids in admitted.jobs.items()]
        if admitted.scheduled:
            rings.append(Ring("due", ""))
        if rings:
            self._notifier.announce(rings)
        return admitted.more
