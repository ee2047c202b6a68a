"""The doorbell of a worker: which parts each ring wakes, and whether rings arrive at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenure.core.lifecycle import State
from tenure.events import Events, JobRescued, NotifierBack, NotifierDegraded
from tenure.ports import ANY, Notifier, Ring
from tenure.worker.beat import LeaseBeat
from tenure.worker.permits import Redelivered
from tenure.worker.slots import Slots


class Doorbell:
    """Reads rings as they arrive, and at intervals those that were missed.

    `on_due` is called when a ring announces a job that is due later: the promoter should check. While the notifier is
    degraded, the claim loops poll more often.
    """

    def __init__(
        self, slots: Slots, beat: LeaseBeat, notifier: Notifier, events: Events, on_due: Callable[[], None]
    ) -> None:
        self._slots, self._beat = slots, beat
        self._notifier, self._events, self._on_due = notifier, events, on_due
        self._problem = ""
        self._degraded_since = 0.0
        self._check_notifier()
        self.listener = notifier.listen()

    @property
    def degraded(self) -> bool:
        return bool(self._problem)

    def start(self) -> None:
        fileno = self.listener.fileno()
        if fileno is not None:
            self._slots.loop.add_reader(fileno, self._read_rings)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.listener.interval)
            self._read_rings()
            self._check_notifier()

    def stop(self) -> None:
        fileno = self.listener.fileno()
        if fileno is not None:
            self._slots.loop.remove_reader(fileno)
        self.listener.close()

    def announce_rescued(self, redelivered: Redelivered) -> None:
        for each in (*redelivered.rescued, *redelivered.beside):
            self._events.emit(JobRescued(rescued=each))
            if each.state in (State.SCHEDULED, State.WAITING):
                self._notifier.announce([Ring("due", each.queue)])
            elif each.state is State.QUEUED and each in redelivered.beside:
                self._notifier.announce([Ring("queued", each.queue, (each.id,), each.message)])

    def _check_notifier(self) -> None:
        before, self._problem = self._problem, self._notifier.problem()
        now = self._slots.loop.time()
        if before and not self._problem:
            self._events.emit(NotifierBack(seconds=now - self._degraded_since))
        elif self._problem and not before:
            self._events.emit(NotifierDegraded(problem=self._problem))
            self._degraded_since = now
            self._slots.wake.set()

    def _read_rings(self) -> None:
        permits, wake = self._slots.permits, self._slots.wake
        for ring in self.listener.drain():
            if ring == ANY:
                self._on_due()
                if permits is not None:
                    permits.poll_now = True
                wake.set()
                self._beat.wake_unless_recent()
            elif ring.kind == "queued" and ring.queue in self._slots.plan.queues:
                if permits is None:
                    wake.set()
                else:  # permits arrive without a ring, unless the queue was paused until now
                    permits.forget_pauses()
            elif ring.kind == "due":
                self._on_due()
            elif ring.kind == "cancel" and (not ring.queue or ring.queue in self._slots.plan.queues):
                self._beat.wake.set()
        if permits is not None and permits.take():
            wake.set()
