"""A worker embedded in another program's process: a web app, a script, a test.

Its event loop runs in a thread of its own, its heartbeat and its maintenance in three others. `async` handlers run on
the loop of `async with jobs.worker()` (caller.py), or on the worker's own loop for `with jobs.worker()`. It asks code
to stop and waits, but never kills its process: it guarantees the fence (no write of a former owner lands), not the
stop. If its lease can't be renewed, or the caller's loop is blocked for a whole lease, it drops its jobs and starts
again under a new id. Code that has not stopped by then keeps its slot.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import replace
from math import inf
from time import monotonic
from types import TracebackType
from typing import NamedTuple

from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.host import memories
from tenure.core.lifecycle import Released
from tenure.core.logs import logger
from tenure.errors import StoreError, TenureError
from tenure.events import Events, StoreAway
from tenure.maintenance.duty import Duty, join_until
from tenure.maintenance.holder import LeaseHolder, identity
from tenure.maintenance.maintenance import Alarm, Declaration, Maintenance, NewAlarm
from tenure.maintenance.orders import LOOK_SECONDS as LOOK_FOR_ORDERS_SECONDS
from tenure.maintenance.roster import Row, Turn
from tenure.ports import Notifier, Store
from tenure.worker.caller import LOOK_SECONDS, CallersLoop, in_thread, shielded
from tenure.worker.executor import Attempt, open_resources
from tenure.worker.forked import LoopGuard
from tenure.worker.orders import carry_out
from tenure.worker.program import Program
from tenure.worker.rescues import RescueTraces
from tenure.worker.slots import Plan
from tenure.worker.stops import STOP_SECONDS
from tenure.worker.worker import Worker, declaration, own_threads, run_loop

_log = logger("tenure.worker")
CLOSE_SECONDS = 1.0  #: how long the end of a block waits for threads that call a store which is away
AGAIN_SECONDS = 1.0  #: between two tries to begin again where no file or thread is left
MOST_NAMED = 5  #: jobs in a line of the log


class _Caller(NamedTuple):
    """What `async with jobs.worker()` provides: its loop, and the resources opened on it."""

    loop: CallersLoop
    resources: Mapping[type, object]


class _Opened(NamedTuple):
    """The connections opened for a block, and closed when it has ended."""

    store: Store
    renewals: Store
    notifier: Notifier

    def close(self) -> None:
        self.notifier.close()
        self.store.close()
        self.renewals.close()


class _Serving:
    """The event loop of an embedded worker: one `Worker` after another, each under an id of its own."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        opened: _Opened,
        maintenance: Maintenance,
        events: Events,
        caller: _Caller | None,
    ) -> None:
        self._program, self._plan, self._opened = program, plan, opened
        self._maintenance, self._events = maintenance, events
        self._caller = caller
        self.closing = threading.Event()
        self.ready = threading.Event()
        self.failure: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.abandoned: LeaseHolder | None = None  #: not renewed: its lease ends, and then others may run its jobs
        self.closes_by = inf  #: the threads beside it, if the store was away as the block ended: they may be calling it
        self._wake = asyncio.Event()
        self._fenced = self._hurried = False

    def register(self) -> None:
        names, plan = self._program.tasks.names, self._plan
        row = identity("embedded", plan.queues, names, plan.slots, plan.lease)
        self.holder = LeaseHolder(self._opened.renewals, row, system_clock())
        self.holder.register()

    async def run(self, due: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._guard = LoopGuard(self.loop)
        async with AsyncExitStack() as stack:
            if self._caller is None:
                resources: Mapping[type, object] = await stack.enter_async_context(
                    open_resources(self._program.resources)
                )
            else:
                resources = self._caller.resources
                watching = self.loop.create_task(self._caller.loop.watch())
                stack.callback(watching.cancel)
            left: Mapping[str, Attempt] = {}
            while self._running:
                self._wake.clear()
                self._fenced = False
                worker = await self._begin_worker(resources, due)
                if worker is None:
                    break
                worker.take_over(left)
                worker.start()
                self.ready.set()
                await self._wake.wait()
                left = await self._drained(worker)
                await worker.close()
                if worker.unstored:
                    _log.warning(
                        "the block ended while the store was unavailable: %d outcome%s not stored, to be run again "
                        "when the lease ends",
                        worker.unstored,
                        "s" * (worker.unstored > 1),
                    )
                if worker.store_is_away and not self._running:  # asking again may take as long as it took to learn that
                    self.closes_by = monotonic() + CLOSE_SECONDS
                else:
                    self._settle()
                await self._caller_answers()
                if self._running:
                    self._register_again()

    async def _begin_worker(self, resources: Mapping[type, object], due: Callable[[], None]) -> Worker | None:
        """The next worker. None: the block ended before it could begin.

        Only the first one fails for want of files or threads: later, the program has run for long, and has some again.
        """
        waits = False
        while self._running:
            try:
                worker = self._worker = self._new_worker(resources, due)
            except (OSError, RuntimeError) as error:
                if not self.ready.is_set():
                    raise
                if not waits:
                    _log.error("the embedded worker can't begin again yet: %r", error)
                waits = True
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return worker
        return None

    async def _drained(self, worker: Worker) -> Mapping[str, Attempt]:
        """Drain it. Returns the attempts whose code did not stop although their lease was lost."""
        patience = STOP_SECONDS if self._running else None
        await worker.drain(self._grace, block_ended=self.closing.is_set, patience=patience)
        if worker.running and self._running:
            self.abandoned = self.holder
            while worker.running and self._running and not self.holder.over:
                await asyncio.sleep(LOOK_SECONDS)
        if worker.running and not self._running:
            await worker.drain(self._grace, block_ended=self.closing.is_set)
        left = worker.running  # not a copy: those that end from now on are no longer in it
        if left:
            some = list(left.values())[:MOST_NAMED]
            named = ", ".join(f"{each.claimed.task} {each.claimed.id}" for each in some)
            _log.warning("the code of %d lost jobs did not stop when asked, and keeps its slots: %s", len(left), named)
        return left

    def _new_worker(self, resources: Mapping[type, object], due: Callable[[], None]) -> Worker:
        return Worker(
            replace(self._plan, worker_id=self.holder.id),
            self._program,
            self._opened.store,
            self._opened.notifier,
            self._events,
            resources=resources,
            on_due=due,
            on_tick=lambda: None,
            on_stuck=None,
            may_declare=self._maintenance.judge.may_declare,
            caller=self._caller.loop if self._caller is not None else None,
        )

    def _settle(self) -> None:
        """This worker id is finished: release the jobs it may still own."""
        try:
            rest = Released("its worker has ended")
            how = "it began again under a new id, as its lease was lost" if self._running else "its block ended"
            self._maintenance.report_rescued(self._opened.store.settle(self.holder.id, {}, rest, how=how))
        except StoreError as error:
            self._events.emit(StoreAway(error=str(error)))

    def _register_again(self) -> None:
        try:
            self.register()
        except StoreError as error:
            self._events.emit(StoreAway(error=str(error)))

    async def _caller_answers(self) -> None:
        """Wait while the caller's loop is blocked: a new id would lose its lease, too."""
        while self._running and self.caller_is_lost:
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def caller_is_lost(self) -> bool:
        """Has the caller's loop not run for a whole lease? Then its code can't be asked to stop."""
        caller = self._caller
        return caller is not None and not caller.loop.closed and caller.loop.silent > self._plan.lease

    @property
    def _grace(self) -> float:
        return self._plan.grace if self.closing.is_set() and not self._hurried else 0.0

    @property
    def _running(self) -> bool:
        return not self.closing.is_set() and self.failure is None

    # ── from other threads ──

    @property
    def running(self) -> Mapping[str, Attempt]:
        """The attempts of its worker, once it is ready."""
        return self._worker.running

    def leave(self) -> None:
        """The block has ended: stop running jobs within the grace."""
        self.closing.set()
        if self.failure is None:
            self._call(self._wake.set)

    def hurry(self) -> None:
        """The block was cancelled: stop running jobs at once."""

        def hurry() -> None:
            self._hurried = True
            self._worker.hand_back("drained")

        self._call(hurry)

    def give_up(self, error: BaseException) -> None:
        """The embedded worker has failed: stop running jobs at once."""
        if self.failure is not None:
            return
        self.failure = error

        def give_up() -> None:
            self._worker.hand_back("its embedded worker has failed")
            self._wake.set()

        self._call(give_up)

    def restart(self, lost: LeaseHolder) -> None:
        """Drop the jobs held under this lease, and continue under a new id."""

        def fence() -> None:
            if self.holder is lost and not self._fenced:
                self._fenced = True
                self._worker.stop_claiming()
                for attempt in list(self._worker.running.values()):
                    attempt.request_stop("lease_lost", None)
                self._wake.set()

        self._call(fence)

    def _call(self, order: Callable[[], object]) -> None:
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and all its code has ended
                self.loop.call_soon_threadsafe(order)


class IdleWorker:
    """What `jobs.worker()` is within `jobs.testing()`: it claims nothing, since `drain` runs the jobs of a test."""

    failed = False

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exc: object) -> None: ...


class Embedded:
    """`with jobs.worker(): …` or `async with jobs.worker(): …` runs jobs in this process until the block ends."""

    def __init__(
        self,
        program: Program,
        open_store: Callable[[Settings], Store],
        open_notifier: Callable[[Settings, Store], Notifier],
        settings: Settings,
        queues: Mapping[str, int | None],
        slots: int,
        *,
        new_alarm: NewAlarm | None,
    ) -> None:
        self._program, self._settings = program, settings
        self._open_store, self._open_notifier = open_store, open_notifier
        self._plan = Plan(
            worker_id="",  # set for each `Worker` that this plan is used for
            runner="embedded",
            queues=queues,
            slots=slots,
            lease=settings.lease,
            poll_interval=settings.poll_interval,
            grace=settings.grace,
        )
        self._new_alarm = new_alarm  #: None: another part of this process runs the maintenance and the alarms
        self._alarm: Alarm | None = None
        self._threads: list[threading.Thread] = []
        self._in_use = False  #: from the beginning of a block until its worker has ended
        self._is_open = False
        self._closes_once = threading.Lock()

    # ── as a context manager ──

    def __enter__(self) -> None:
        self._take()
        try:
            self._open(None)
        except BaseException:
            self._in_use = False
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.leave()
        try:
            self._close()
        finally:
            self._in_use = False
        self._raise_failure(error)

    async def __aenter__(self) -> None:
        self._check_tasks()
        self._take()
        self._stack = AsyncExitStack()
        try:
            resources = await self._stack.enter_async_context(open_resources(self._program.resources))
            loop = self._loop = CallersLoop(system_clock().boot)
        except BaseException:
            self._in_use = False
            raise
        try:
            await in_thread(lambda: self._open(_Caller(loop, resources)))
        except BaseException as error:
            if self._is_open:  # cancelled meanwhile
                await self.__aexit__(type(error), error, None)
            else:
                loop.leave()
                self._in_use = False
                await self._stack.aclose()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A cancelled block hands its jobs back at once, and the cancellation goes on when they are settled."""
        serving, loop, hurried = self._serving, self._loop, isinstance(error, asyncio.CancelledError)
        serving.leave()
        if hurried:
            serving.hurry()
        self._close_beside()
        cancelled = await shielded(loop.over, hurried=hurried, hurry=serving.hurry)
        if not loop.over.is_set():
            _log.warning(
                "the block was cancelled, but some of its jobs' code runs on: the worker ends when it has stopped"
            )
        loop.leave()
        await self._stack.__aexit__(kind, error, trace)
        if cancelled and error is None:
            raise asyncio.CancelledError
        self._raise_failure(error)

    @property
    def failed(self) -> bool:
        """True if the worker has failed; the block then raises the error when it ends."""
        return self._serving.failure is not None

    def _raise_failure(self, error: BaseException | None) -> None:
        if self.failed and error is None:
            raise TenureError("the embedded worker failed while the block ran") from self._serving.failure

    # ── opening and closing: in the caller's thread, or in one beside the caller's loop ──

    def _check_tasks(self) -> None:
        if not self._program.tasks.names:
            raise TenureError('this app has no tasks; list their modules: Tenure(imports=["shop.tasks"])')

    def _take(self) -> None:
        """Begin a block. A second one would take this one's threads and connections away from what ends them."""
        if self._in_use:
            raise TenureError("this worker is already open: call jobs.worker() for each block")
        self._in_use = True
        self._is_open, self._closes_once = False, threading.Lock()

    def _open(self, caller: _Caller | None) -> None:
        self._check_tasks()
        settings, program, events = self._settings, self._program, Events()
        declares = declaration(program, settings)
        self._alarm, self._threads = None, []
        self._rescues: RescueTraces | None = None
        self._opened = self._connect()
        store, _, notifier = self._opened
        self._maintenance = maintenance = Maintenance(
            store, notifier, events, settings, mine=lambda: frozenset({serving.holder.id})
        )
        serving = self._serving = _Serving(program, self._plan, self._opened, maintenance, events, caller)
        maintenance.rest.add(Row("orders", self._carry_out_orders, LOOK_FOR_ORDERS_SECONDS))
        self._beating = Duty("tenure_beat", self._beat, failed=self._duty_failed)
        try:
            self._begin(caller, declares, events)
        except BaseException:
            serving.leave()
            serving.ready.set()  # a duty that fails waits for it
            self._beating.stop()
            maintenance.stop()
            self._close()
            raise
        self._is_open = True

    def _connect(self) -> _Opened:
        with ExitStack() as opened:
            store = self._open_store(self._settings)
            opened.callback(store.close)
            renewals = self._open_store(self._settings)
            opened.callback(renewals.close)
            notifier = self._open_notifier(self._settings, store)
            opened.pop_all()
        return _Opened(store, renewals, notifier)

    def _begin(self, caller: _Caller | None, declares: Declaration, events: Events) -> None:
        """Start all threads, and return when jobs can run. What is begun when this raises, the caller ends."""
        store, _, notifier = self._opened
        maintenance, serving, tracing = self._maintenance, self._serving, self._program.tracing
        maintenance.declare(declares)
        if self._new_alarm is not None:
            self._alarm = self._new_alarm(self._settings, store, notifier, maintenance.lags)
        maintenance.declare_limits(declares)
        serving.register()
        self._rescues = RescueTraces(store, tracing, lambda: serving.holder.id, events) if tracing else None
        if self._alarm is not None:
            maintenance.start(failed=self._duty_failed)
            self._alarm.start()
        if caller is not None:
            caller.loop.on_end = self._loop_ended
        for thread in (threading.Thread(target=self._serve, name="tenure_run", daemon=True), self._beating.thread):
            thread.start()
            self._threads.append(thread)
        serving.ready.wait()
        if serving.failure is not None:
            raise serving.failure

    def _close(self) -> None:
        serving = self._serving
        for thread in self._threads:  # the first is that of `serving`
            join_until(thread, serving.closes_by)
        self._maintenance.join(serving.closes_by)
        if self._alarm is not None:
            self._alarm.stop(serving.closes_by)
        if self._rescues is not None:
            self._rescues.close()
        self._opened.close()

    def _close_beside(self) -> None:
        """Close in a thread that the program waits for when it exits, and tell the caller's loop."""
        if self._closes_once.acquire(blocking=False):
            threading.Thread(target=self._close_and_tell, name="tenure_close").start()

    def _close_and_tell(self) -> None:
        try:
            self._close()
        finally:
            loop, self._in_use = self._loop, False  # a next block would bring a loop of its own
            loop.call(loop.over.set)

    # ── its threads ──

    def _serve(self) -> None:
        try:
            run_loop(self._serving.run(self._maintenance.look_again), own_threads(self._plan.slots))
        except BaseException as error:
            self._serving.failure = error
            _log.critical("the embedded worker has failed: %r", error)
        finally:
            self._serving.ready.set()
            self._beating.stop()  # not earlier: until now the lease had to be renewed
            self._maintenance.stop()

    def _beat(self) -> float:
        holder, alive, landed = self._serving.holder, True, False
        if self._serving.abandoned is holder:
            return holder.pause(landed=False)
        if self._serving.caller_is_lost:
            self._serving.restart(holder)
            return holder.pause(landed=False)
        with suppress(StoreError):  # then it is unknown whether the row is alive: keep trying; the deadline decides
            alive = landed = holder.renew(memory=memories({holder.id: os.getpid()}))
        if landed:
            self._maintenance.judge.renewed(holder.landed.sent, [holder.id])
        if not alive or holder.must_stop:
            self._serving.restart(holder)
        return holder.pause(landed=landed)

    def _carry_out_orders(self, _: int) -> Turn:
        serving = self._serving
        if not serving.ready.is_set() or serving.failure is not None:
            return Turn()
        return carry_out(self._opened.store, serving.holder.id, serving.running)

    def _duty_failed(self, error: BaseException) -> None:
        self._serving.ready.wait()
        self._serving.give_up(error)
        _log.critical("a background thread of the embedded worker has failed", exc_info=error)

    def _loop_ended(self) -> None:
        """The caller's loop has been closed, or is about to be."""
        if not self._serving.closing.is_set():
            _log.warning("the event loop ends before its block `async with jobs.worker()`: the jobs are handed back")
            self._serving.give_up(TenureError("the event loop ended before the block `async with jobs.worker()`"))
            self._close_beside()
