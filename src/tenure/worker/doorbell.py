"""The doorbell of a worker: what rings wake, and what is known of the notifier they come by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenure.events import Events, NotifierBack, NotifierDegraded
from tenure.ports import ANY, Listener, Notifier
from tenure.worker.beat import LeaseBeat
from tenure.worker.permits import HeldPermits
from tenure.worker.slots import Slots


class NotifierHealth:
    """Whether rings come; while they do not, the claim loops poll more often."""

    def __init__(self, notifier: Notifier, slots: Slots, events: Events) -> None:
        self._notifier, self._slots, self._events = notifier, slots, events
        self._loop = asyncio.get_running_loop()
        self._problem = ""
        self._degraded_since = 0.0

    @property
    def degraded(self) -> bool:
        return bool(self._problem)

    def check(self) -> None:
        before, self._problem = self._problem, self._notifier.problem()
        if before and not self._problem:
            self._events.emit(NotifierBack(seconds=self._loop.time() - self._degraded_since))
        elif self._problem and not before:
            self._degraded_since = self._loop.time()
            self._events.emit(NotifierDegraded(problem=self._problem))
            self._slots.wake.set()


class Doorbell:
    """Reads the rings as they come, and at intervals those that were missed.

    `on_due` is called when a ring tells of a job due later: the promoter should look.
    """

    def __init__(
        self,
        listener: Listener,
        health: NotifierHealth,
        slots: Slots,
        beat: LeaseBeat,
        permits: HeldPermits | None,
        on_due: Callable[[], None],
    ) -> None:
        self._listener, self._health, self._slots = listener, health, slots
        self._beat, self._permits, self._on_due = beat, permits, on_due
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        fileno = self._listener.fileno()
        if fileno is not None:
            self._loop.add_reader(fileno, self._read_rings)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._listener.interval)
            self._read_rings()
            self._health.check()

    def stop(self) -> None:
        fileno = self._listener.fileno()
        if fileno is not None:
            self._loop.remove_reader(fileno)
        self._listener.close()

    def _read_rings(self) -> None:
        permits, wake = self._permits, self._slots.wake
        for ring in self._listener.drain():
            if ring == ANY:
                self._on_due()
                if permits is not None:
                    permits.poll_now = True
                wake.set()
                self._beat.wake_unless_recent()
            elif ring.kind == "queued" and ring.queue in self._slots.plan.queues:
                if permits is None:
                    wake.set()
                else:  # its permits come by themselves, unless it was paused until now
                    permits.forget_pauses()
            elif ring.kind == "due":
                self._on_due()
            elif ring.kind == "cancel":
                self._beat.wake.set()
        if permits is not None and permits.take():
            wake.set()
