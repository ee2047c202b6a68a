"""A worker inside somebody else's process: a web app, a script, a test.

Its event loop runs in a thread of its own, its heartbeat and its maintenance in two others. It asks and waits, and
never kills the process it lives in: its guarantee is the fence (no ghost write lands), not the stop. When its lease
could not be renewed it drops what it holds and starts again under a new id.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Released
from tenure.errors import StoreError, TenureError
from tenure.events import Events, StoreAway
from tenure.liveness.host import host_name, memories, new_token, pid_namespace, started, worker_id
from tenure.liveness.lifeline import ASK_AFTER
from tenure.maintenance.maintenance import Declaration, Maintenance, NewAlarm
from tenure.ports import Notifier, Store, WorkerIdentity
from tenure.worker.executor import open_resources
from tenure.worker.program import Program
from tenure.worker.slots import Plan
from tenure.worker.worker import Worker, queue_caps, run_loop

RETRY_SECONDS = 1.0


class Embedded:
    """`with jobs.worker(): …` or `async with jobs.worker(): …` runs jobs in this process until the block ends."""

    def __init__(
        self,
        program: Program,
        open_store: Callable[[Settings], Store],
        open_notifier: Callable[[Settings, Store], Notifier],
        settings: Settings,
        queues: Sequence[str] | None,
        concurrency: int | None,
        *,
        new_alarm: NewAlarm | None,
    ) -> None:
        self._program, self._settings = program, settings
        self._open_store, self._open_notifier = open_store, open_notifier
        self._queues = queue_caps(program, settings, queues)
        self._slots = concurrency or settings.concurrency
        self._new_alarm = new_alarm  #: None: somebody else in this process maintains the store, and looks for trouble
        self._events = Events()
        self._closing = threading.Event()
        self._ended = threading.Event()  # what ran here has ended: until then the lease is renewed
        self._threads: list[threading.Thread] = []

    # ── as a context manager ──

    def __enter__(self) -> None:
        names = self._program.tasks.names
        if not names:
            raise TenureError('this app has no tasks; list their modules: Tenure(imports=["shop.tasks"])')
        declares = Declaration(self._program.source, self._settings.release or "", tuple(self._program.schedules()))
        self._store, self._renewals = self._open_store(self._settings), self._open_store(self._settings)
        self._notifier = self._open_notifier(self._settings, self._store)
        self._maintenance = Maintenance(
            self._store,
            self._notifier,
            self._events,
            lease=self._settings.lease,
            keep=self._settings.keep,
            keep_dead=self._settings.keep_dead,
            keep_history=self._settings.keep_history,
            mine=lambda: frozenset({self._id}),
        )
        self._maintenance.declare(declares)
        maintains = self._new_alarm is not None
        alarm = self._alarm = self._new_alarm(self._settings, self._store, self._notifier) if self._new_alarm else None
        self._closing.clear()
        self._ended.clear()
        self._maintain_wake = threading.Event()
        self._ready: threading.Event = threading.Event()
        self._failure: BaseException | None = None
        self._register()
        duties = (self._run, self._beat, *([self._maintain] if maintains else []))
        self._threads = [
            threading.Thread(target=self._duty, args=(duty,), name=f"tenure{duty.__name__}", daemon=True)
            for duty in duties
        ]
        for thread in self._threads:
            thread.start()
        if alarm is not None:
            alarm.start()
        self._ready.wait()
        failure = self._failure
        if failure is not None:
            self.__exit__(type(failure), failure, None)
            raise failure

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._failure is None:
            with suppress(RuntimeError):  # it has failed just now, and its loop has ended
                self._loop.call_soon_threadsafe(self._wake.set)
        for thread in self._threads:
            thread.join()
        if self._alarm is not None:
            self._alarm.stop()
        self._notifier.close()
        self._store.close()
        self._renewals.close()
        if self._failure is not None and error is None:
            raise TenureError("the embedded worker failed while the block ran") from self._failure

    async def __aenter__(self) -> None:
        await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    @property
    def failed(self) -> bool:
        """It has ended by itself; leaving the block raises what happened."""
        return self._failure is not None

    # ── the worker's own thread ──

    def _run(self) -> None:
        try:
            run_loop(self._serve())
        except BaseException as error:
            self._failure = error
            logging.getLogger("tenure.worker").critical("the embedded worker has failed: %r", error)
        finally:
            self._ready.set()
            self._ended.set()
            self._maintain_wake.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        async with open_resources(self._program.resources) as resources:
            while self._going:
                self._wake.clear()
                self._fenced = False
                worker = self._worker = self._new_worker(resources)
                worker.start()
                self._ready.set()
                await self._wake.wait()
                await worker.drain(self._settings.grace if self._closing.is_set() else 0.0, left=self._closing.is_set)
                await worker.close()
                if worker.unstored:
                    logging.getLogger("tenure.worker").warning(
                        "left while the store was away: %d outcome%s not stored, to be run again when the lease ends",
                        worker.unstored,
                        "s" * (worker.unstored > 1),
                    )
                self._settle()

    def _new_worker(self, resources: Mapping[type, object]) -> Worker:
        return Worker(
            Plan(
                worker_id=self._id,
                runner="embedded",
                queues=self._queues,
                slots=self._slots,
                lease=self._settings.lease,
                poll_interval=self._settings.poll_interval,
                grace=self._settings.grace,
            ),
            self._program,
            self._store,
            self._notifier,
            self._events,
            resources=resources,
            on_due=self._maintain_wake.set,
            on_tick=lambda: None,
            on_stuck=None,
            may_declare=self._maintenance.may_declare,
        )

    def _settle(self) -> None:
        """This id has ended. Whatever it may still hold goes back, and a new one takes its place."""
        try:
            self._maintenance.tell(self._store.settle(self._id, {}, Released("its worker has ended")))
            if self._going:
                self._register()
        except StoreError as error:
            self._events.emit(StoreAway(error=str(error)))

    def _register(self) -> None:
        self._id = worker_id(os.getpid(), new_token())
        self._renewed = system_clock().boot()
        self._store.register(
            WorkerIdentity(
                id=self._id,
                host=host_name(),
                pid=os.getpid(),
                started=started(os.getpid()),
                boot_id=system_clock().boot_id,
                pid_namespace=pid_namespace(),
                runner="embedded",
                queues=tuple(self._queues),
                tasks=tuple(self._program.tasks.names),
                slots=self._slots,
                lease=self._settings.lease,
            )
        )

    @property
    def _going(self) -> bool:
        return not self._closing.is_set() and self._failure is None

    # ── heartbeat and maintenance ──

    def _duty(self, duty: Callable[[], None]) -> None:
        """A thread that ended silently would leave the worker without renewals, or jobs without rescue."""
        try:
            duty()
        except BaseException as error:
            logging.getLogger("tenure.worker").critical("a duty of the embedded worker has failed", exc_info=True)
            self._ready.wait()
            if self._failure is None:
                self._failure = error
                with suppress(RuntimeError):  # the loop has ended, and all it ran
                    self._loop.call_soon_threadsafe(self._give_up)

    def _give_up(self) -> None:
        self._worker.hand_back("its embedded worker has failed")
        self._wake.set()

    def _beat(self) -> None:
        lease, boot = self._settings.lease, system_clock().boot
        while not self._ended.is_set():
            sent, mine = boot(), self._id
            try:
                alive = mine in self._renewals.renew([mine], memory=memories({mine: os.getpid()}))
            except StoreError:
                alive = True  # unknown: keep trying; the deadline decides
            else:
                if alive:
                    self._maintenance.renewed(sent, [mine])
                    self._renewed = sent
            if not alive or boot() - self._renewed > lease * ASK_AFTER:
                self._begin_anew(mine)
            self._ended.wait(lease / 3 if alive and self._renewed == sent else min(RETRY_SECONDS, lease / 3))

    def _begin_anew(self, dead: str) -> None:
        def fence() -> None:
            if self._id == dead and not self._fenced:
                self._fenced = True
                self._worker.stop_claiming()
                for attempt in list(self._worker.running.values()):
                    attempt.ask("lease_lost", None)
                self._wake.set()

        with suppress(RuntimeError):  # the loop has ended, and all it ran
            self._loop.call_soon_threadsafe(fence)

    def _maintain(self) -> None:
        while not self._ended.is_set():
            try:
                next_job = self._maintenance.promote()
                self._maintenance.upkeep_if_due()
                self._maintenance.scan_if_due()
                next_tick = self._maintenance.fire()
                self._maintenance.prune_if_due()
                self._maintain_wake.wait(self._maintenance.next_wake(next_job, next_tick))
            except StoreError:
                self._maintain_wake.wait(RETRY_SECONDS)
            self._maintain_wake.clear()
