"""The worker process, started by a supervisor: an event loop in the main thread, and a watch thread.

1. Have the kernel kill this process when the supervisor dies; ignore SIGINT; SIGTERM drains this worker only.
2. On `load`: import the app and send `hello`: the store's URL, the tasks, the settings. The supervisor imports no user
   code. A spare, which may wait long for that, has already imported the store's modules, on `prepare`.
3. On `start`: open the store, the resources and the doorbell, and run jobs.
4. The watch thread reads the deadlines in shared memory: past the first, handlers are asked to stop; past the
   second, the whole process group is killed. For that it needs no store, no supervisor and no event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import faulthandler
import gc
import inspect
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import msgspec

from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.host import die_with_parent, kill_group
from tenure.core.imports import is_of_app
from tenure.core.lifecycle import Outcome
from tenure.errors import TenureError
from tenure.events import Events
from tenure.maintenance.lifeline import Lifeline
from tenure.ports import Notifier, Rescued, Store
from tenure.tasks.loops import aside
from tenure.worker import stacks
from tenure.worker.executor import open_resources
from tenure.worker.forked import LoopGuard
from tenure.worker.link import Link, write_verdicts
from tenure.worker.program import Program
from tenure.worker.rescues import FLUSH_SECONDS, RescueTraces
from tenure.worker.slots import Plan
from tenure.worker.stops import TICK_SECONDS
from tenure.worker.tally import Tally, timed
from tenure.worker.worker import Worker, declaration, own_threads, queue_caps, run_loop

SOLO_IDLE_SECONDS = 10.0
DUE_SECONDS = 0.2  #: between two messages that a job is due earlier than expected
SWITCH_SECONDS = 0.0001  # a store thread back from disk needs the GIL: the default 5 ms would cost ten commits


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a worker needs of its app."""

    program: Program
    settings: Settings
    open_store: Callable[[Settings], Store]
    open_notifier: Callable[[Settings, Store], Notifier]


@dataclass(frozen=True, slots=True)
class Handles:
    """The file descriptors that a worker inherits from its supervisor, and the supervisor's pid."""

    link: int
    lifeline: int
    dump: int
    parent: int


def run_child(handles: Handles, load: Callable[[], Loaded]) -> NoReturn:
    code, pid = 1, os.getpid()
    try:
        code = _run(handles, load)
    except BaseException:
        if os.getpid() == pid:  # else a handler has forked, and its child has come back here
            traceback.print_exc()
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit at once: threads of the app, or of a handler, must not delay the exit."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run(handles: Handles, load: Callable[[], Loaded]) -> int:
    die_with_parent(handles.parent)
    signal.signal(signal.SIGINT, _ignore)  # not SIG_IGN, which the programs that a handler starts would inherit
    reset_signals_in_forks()
    link = Link(socket.socket(fileno=handles.link))
    faulthandler.enable(os.fdopen(os.dup(handles.dump), "wb", 0))
    faulthandler.register(signal.SIGUSR1, os.fdopen(os.dup(handles.dump), "wb", 0), all_threads=True)
    early = _wait_to_load(link)
    try:
        loaded = load()
        if not loaded.program.tasks.names:
            raise TenureError('the app has no tasks; list their modules: Tenure(imports=["shop.tasks"])')
        hello = _hello(loaded)
    except TenureError as error:
        link.send("refused", error=str(error))
        return 2
    except (Exception, SystemExit) as error:
        link.send("refused", error=f"the app can't be imported: {type(error).__name__}: {error}")
        raise
    link.send("hello", **hello)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # what the app has loaded stays: searching it for garbage would only hold up the jobs
    return run_loop(Child(link, Lifeline(handles.lifeline), loaded, handles.parent).serve(early))


def _wait_to_load(link: Link) -> list[dict[str, Any]]:
    """Block until the app is wanted. Returns the messages that came together with that one, for later."""
    while not link.closed:
        messages = link.receive()
        while messages:
            message = messages.pop(0)
            if message["kind"] == "load":
                return messages
            for name in message.get("modules", ()):
                import_module(name)
    _leave(0)  # the supervisor is gone


def _ignore(number: int, frame: object) -> None:
    """The supervisor says when to stop."""


_OURS = (signal.SIGTERM, signal.SIGINT)


def reset_signals_in_forks() -> None:
    """Give the forks of this process the default signals: else theirs would be written to this process's event loop.

    Both are blocked during a fork, so that one sent to a new child at once ends it.
    """
    masks: dict[int, set[int]] = {}
    # At its exit a fork would join the threads of this process's pools, which it does not have; if it was forked in one
    # of them, as by a plain handler, that fails, and a `multiprocessing.Process` that has done its work exits with 1.
    pools: MutableMapping[Any, Any] = getattr(concurrent.futures.thread, "_threads_queues", {})

    def block() -> None:
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def reset() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pools.clear()
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)


def _hello(loaded: Loaded) -> dict[str, Any]:
    settings, program = loaded.settings, loaded.program
    tasks, declares = program.tasks, declaration(program, settings)
    functions: dict[str, list[str]] = {}
    for task in tasks:
        code = getattr(inspect.unwrap(task.fn), "__code__", None)  # the function's own, under any decorator
        if code is not None:
            functions[task.name] = [code.co_filename, code.co_name]
    return {
        "tasks": tasks.names,
        "queues": queue_caps(program, settings),
        "functions": functions,
        "files": _own_files(),
        "declares": msgspec.to_builtins(declares),
        "settings": msgspec.to_builtins(settings, enc_hook=str),
        "traces": program.tracing is not None,
    }


def _own_files() -> list[str]:
    """The app's source files, for --reload."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(file for file in files if file and is_of_app(file))


class Child:
    def __init__(self, link: Link, lifeline: Lifeline, loaded: Loaded, parent: int) -> None:
        self._link = link
        self._lifeline = lifeline
        self._loaded = loaded
        self._parent = parent
        self._boot = system_clock().boot
        self._worker: Worker | None = None
        self._rescues: RescueTraces | None = None  #: None: the app has no tracer
        self._notifier: Notifier | None = None
        self._tally = Tally()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._idle_since = 0.0
        self._due_sent_at, self._due_waits = 0.0, False

    async def serve(self, early: Sequence[dict[str, Any]]) -> NoReturn:
        """Obey the supervisor to the end; `early` messages have been received already."""
        self._loop = loop = asyncio.get_running_loop()
        self._guard = LoopGuard(loop)  # a handler that forks leaves no second worker behind
        self._obey(early)
        loop.add_reader(self._link.fileno(), self._receive)
        loop.add_signal_handler(signal.SIGTERM, self._drain, self._loaded.settings.grace)
        self._tick()
        threading.Thread(target=self._watch, name="tenure-watch", daemon=True).start()
        order = await self._orders.get()
        if order["kind"] == "start":
            await self._work(order)
        self._send_counts()
        self._link.send("drained")
        self._flush_traces()
        _leave(0)  # not by closing the loop, which would wait for its threads

    async def _work(self, order: Mapping[str, Any]) -> None:
        loaded, settings = self._loaded, self._loaded.settings
        plan = Plan(
            worker_id=order["worker_id"],
            runner=order["runner"],
            queues=order["queues"],
            slots=order["slots"],
            lease=settings.lease,
            poll_interval=settings.poll_interval,
            grace=settings.grace,
        )
        asyncio.get_running_loop().set_default_executor(own_threads(plan.slots))
        store = timed(loaded.open_store(settings), self._tally)
        notifier = self._notifier = loaded.open_notifier(settings, store)
        events = Events()
        self._tally.follow(events)
        tracing = loaded.program.tracing
        rescues = self._rescues = RescueTraces(store, tracing, lambda: plan.worker_id, events) if tracing else None
        async with open_resources(loaded.program.resources, self._send_opening) as resources:
            worker = self._worker = Worker(
                plan,
                loaded.program,
                store,
                notifier,
                events,
                resources=resources,
                on_due=self._send_due,
                on_tick=self._tick,
                on_stuck=self._send_stuck,
                may_declare=lambda: self._lifeline.well_renewed(self._boot()),
                tally=self._tally,
            )
            worker.start()
            self._tick()  # opening the store may have taken a while
            self._link.send("ready")
            grace: float | None = None
            draining: asyncio.Task[None] | None = None
            while draining is None or not draining.done():
                getting = asyncio.ensure_future(self._orders.get())
                await asyncio.wait({getting, draining} if draining else {getting}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    continue
                wanted = float(getting.result().get("grace", 0.0))
                if grace is None or wanted < grace:
                    grace = wanted
                    if draining is not None:
                        draining.cancel()
                    draining = asyncio.create_task(worker.drain(grace))
            await worker.close()
            self._tick_on()
        if rescues is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(aside(rescues.close), FLUSH_SECONDS)
        notifier.close()
        store.close()

    # ── the link ──

    def _receive(self) -> None:
        self._obey(self._link.receive())
        if self._link.closed:  # the supervisor is gone; on Linux the kernel usually kills this process first
            kill_group(0)

    def _obey(self, messages: Sequence[dict[str, Any]]) -> None:
        for message in messages:
            if message["kind"] == "count":
                self._send_counts()
            elif message["kind"] == "stack":
                self._send_stack(message)
            elif message["kind"] == "rescued":
                self._trace_rescued(message)
            else:
                self._orders.put_nowait(message)

    def _drain(self, grace: float) -> None:
        """Drain without an order of the supervisor, which kills this process if it does not end in time."""
        self._orders.put_nowait({"kind": "drain", "grace": grace})
        self._link.send("draining", grace=grace)

    def _send_opening(self, resource: str) -> None:
        self._link.send("opening", resource=resource)

    def _send_due(self) -> None:
        """One message for a flood of rings: a ring too soon after the last message is sent later, not dropped."""
        if not self._due_waits:
            self._due_waits = True
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._due_sent_at + DUE_SECONDS), self._send_due_now)

    def _send_due_now(self) -> None:
        self._due_waits, self._due_sent_at = False, asyncio.get_running_loop().time()
        self._link.send("due")

    def _send_counts(self) -> None:
        self._link.send(
            "counts",
            busy=len(self._worker.running) if self._worker is not None else 0,
            notifier=self._notifier.problem() if self._notifier is not None else "",
            tally=self._tally.take(),
        )

    def _send_stack(self, asked: Mapping[str, Any]) -> None:
        says, found = stacks.answer(self._worker.running.get(asked["job"]) if self._worker is not None else None)
        self._link.send("stack", key=asked["key"], says=says, traces=msgspec.to_builtins(found))

    def _trace_rescued(self, told: Mapping[str, Any]) -> None:
        if self._rescues is not None:
            for each in msgspec.convert(told["jobs"], list[Rescued]):
                self._rescues.tell(each)

    def _flush_traces(self) -> None:
        """Nothing runs any more. The exit does not wait long: the collector of traces may be unavailable."""
        tracing = self._loaded.program.tracing
        if tracing is not None:
            flushing = threading.Thread(target=tracing.flush, name="tenure-traces", daemon=True)
            flushing.start()
            flushing.join(FLUSH_SECONDS)

    def _send_stuck(self, verdicts: dict[str, Outcome]) -> None:
        self._link.send("stuck", verdicts=write_verdicts(verdicts))

    # ── the loop's heartbeat ──

    def _tick(self) -> None:
        now = self._boot()
        self._lifeline.tick = now
        worker = self._worker
        if worker is None or worker.plan.runner != "solo":
            return
        if not worker.idle or not self._idle_since:
            self._idle_since = now
        elif now - self._idle_since > SOLO_IDLE_SECONDS:
            self._idle_since = now
            self._drain(0.0)

    def _tick_on(self) -> None:
        """Nothing runs any more, but what the resources close may take a while, and does not block the loop."""
        self._lifeline.tick = self._boot()
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick_on)

    # ── the watch thread ──

    def _watch(self) -> None:
        nap = min(0.25, self._loaded.settings.lease / 30)
        asked = False
        while True:
            time.sleep(nap)
            now, ask_at, kill_at = self._boot(), self._lifeline.ask_at, self._lifeline.kill_at
            if kill_at and now > kill_at:
                self._lifeline.fence()
                kill_group(0)
            if ask_at and now > ask_at and not asked and self._loop is not None:
                asked = True
                self._lifeline.fence()
                self._loop.call_soon_threadsafe(self._release_jobs)
            if os.getppid() != self._parent:
                kill_group(0)

    def _release_jobs(self) -> None:
        """The lease could not be renewed in time: hand back the jobs that can still be handed back, and exit."""
        if self._worker is not None:
            self._worker.hand_back("its worker's lease could not be renewed")
        self._drain(0.0)
