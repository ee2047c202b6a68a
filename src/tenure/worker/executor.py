"""Run one attempt: from a claimed job to its outcome, whatever the handler does.

Life of an attempt:

1. The worker creates an `Attempt` and calls `start`: an `async def` handler runs as a task on the loop (or on the
   caller's loop, around an embedded worker), a `def` one in a thread of the pool. Its arguments are decoded according
   to the handler's annotations.
2. `job.progress` calls `report`, which keeps the newest values; the worker stores them within a second.
3. `request_stop` is the only way to stop it (cancel, timeout, drain, hang, lost lease): a task is cancelled; in a
   thread, the next call of a `job` method raises `JobStopped`. If the code then stops, the *verdict* passed with the
   request becomes the outcome.
4. When the code has stopped, and not before, `ended` is called once, with the outcome (None: the lease is lost).
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tenure.core.durations import spell
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, Released, Snoozed, State
from tenure.core.logs import logger
from tenure.core.retry import Fail, Snooze
from tenure.core.text import MAX_ERROR, clean
from tenure.errors import InvalidArguments, LeaseLost, Locked, TenureError
from tenure.events import Running, current
from tenure.ports import Claimed, Store
from tenure.tasks.expects import with_late
from tenure.tasks.job import Job, Stopping
from tenure.tasks.loops import in_thread
from tenure.tasks.placeholders import may_have_markers
from tenure.tasks.task import Task
from tenure.tasks.tracing import AttemptTrace
from tenure.tasks.waits import Suspend
from tenure.worker import forked
from tenure.worker.caller import CallersLoop
from tenure.worker.described import describe
from tenure.worker.inputs import load
from tenure.worker.leased import Owner
from tenure.worker.lost import Lost, aexcused, excused
from tenure.worker.misfits import Misfit, locked, misfit
from tenure.worker.program import Program
from tenure.worker.reports import Reporting
from tenure.worker.signals import came_after_a_wait, came_of_a_stop, leaves, signal_in

T = TypeVar("T")

NO_THREAD_SECONDS = 5.0  #: until the next try, where no thread can be started: another worker may run it meanwhile
_LOOP_ENDS = Released("its event loop was about to be closed")
_log = logger("tenure.worker")


class Host(Owner, Protocol):
    """What an attempt needs from the worker that runs it."""

    def ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        """The code has stopped. Called on the loop, once."""
        ...

    def reported(self, attempt: Attempt) -> None:
        """There is progress to store. Called from any thread."""
        ...

    def store_now(self, attempt: Attempt) -> None:
        """Store its newest report, and return when that is done. Blocks. Raises LeaseLost if the store refuses it."""
        ...


class Attempt(Reporting[Host]):
    """One execution of a job, under its lease."""

    # Defaults on the class: most attempts never touch these, and there are tens of thousands a second.
    stopping: Stopping | None = None
    verdict: Outcome | None = None
    stop_requested_at: float | None = None  #: when it was first asked to stop, by the loop's clock
    raised: BaseException | None = None  #: what its code raised, for the log
    swallowed: tuple[str, BaseException] | None = None  #: the @jobs.around that swallowed an error, and the error
    _lock: threading.Lock | None = None  #: if its code runs in another thread: held to stop it, and as it begins
    _begun = False  #: the coroutine has taken its first step: if cancelled earlier, it would never reach `_end`
    handle: asyncio.Task[None] | None = None  #: of its code, or of the wait for its thread; None: it has not begun
    _timer: asyncio.TimerHandle | None = None
    _caller: CallersLoop | None = None  #: its code runs on the caller's loop, in another thread than `loop`
    _taken = False  #: the caller's loop has taken it up
    fetches = False  #: its arguments or its checkpoint are kept elsewhere: set before `start`
    _pool: ThreadPoolExecutor  #: the worker's threads for what its attempts call
    trace: AttemptTrace | None = None
    _depth: int = 0  #: of the process that runs it (forked.py)

    def __init__(self, host: Host, task: Task[..., Any], claimed: Claimed, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.task = task
        self.claimed = claimed
        self.loop = loop
        self.lease = Lease(claimed.id, claimed.attempt, host.worker_id)
        self.started_at = monotonic()
        if forked.depth:
            self._depth = forked.depth
        if claimed.stale_after is not None:
            self.active = loop.time()

    # ── running ──

    def start(self, program: Program, pool: ThreadPoolExecutor, caller: CallersLoop | None = None) -> None:
        """Run the code: in a thread of the pool if it is plain; else on the caller's loop, or on this one if None."""
        self._pool = pool
        if program.tracing is not None:
            self.trace = program.tracing.attempt(self.claimed, self.lease.worker_id)
        if self.fetches:
            self.active = inf  # neither silent nor late before it has its arguments
            self.keep_active()
        elif self.claimed.timeout is not None:
            self._begin_timer()
        if not self.task.is_async:
            self._lock = threading.Lock()
            self.handle = _new_task(self._run_in_thread(program, pool), self.loop)
        elif caller is None:
            self.handle = _new_task(self._run_async(program), self.loop)
        else:
            self._lock, self._caller = threading.Lock(), caller
            caller.call(self._take, program)  # if its loop is closed, `release_unrunnable` ends the attempt

    def _take(self, program: Program) -> None:
        """Start the code on the caller's loop, on which this is called."""
        with self._lock or nullcontext():
            if self.over:
                return
            self._taken = True
        name = f"{self.claimed.task} {self.claimed.id}"
        self.handle = _new_task(self._run_async(program), asyncio.get_running_loop(), name)

    def _begin_timer(self) -> None:
        timeout = self.claimed.timeout
        if timeout is not None and not self.over:
            self._timer = self.loop.call_later(timeout, self._time_out, timeout)

    def fetch(self) -> None:
        super().fetch()
        self.active = self.loop.time()
        self.loop.call_soon_threadsafe(self._begin_timer)

    def _time_out(self, timeout: float) -> None:
        self.request_stop("timeout", Failed(f"timed out after {spell(timeout)}"))

    async def _run_async(self, program: Program) -> None:
        self._begun = True
        if self.handle is None:
            self.handle = asyncio.current_task()  # an eager task takes its first step before its caller has it
        if self.stopping is not None:  # asked to stop before it began
            self._end(self.verdict)
            return
        self._enter()  # the task has its own context: nothing to reset
        outcome: Outcome | None
        try:
            task = self.task
            try:
                if self.fetches:
                    await _aside(self._pool, self.fetch)
                if self.claimed.linked and may_have_markers(self.claimed.payload):
                    args, kwargs = await _aside(self._pool, load, self.host.store, task, self.claimed, ahead=True)
                else:
                    args, kwargs = task.arguments.load(self.claimed.payload)
            except InvalidArguments as error:
                raise await _aside(self._pool, misfit, self.host.store, self.claimed, str(error)) from error
            if task.takes_job:
                args = (Job(self), *args)
            if program.arounds:
                async with AsyncExitStack() as stack:
                    for around in program.arounds:
                        await _enter_async(stack, around, self)
                    stack.push(self._left)
                    value = await task.fn(*args, **kwargs)
            else:
                value = await task.fn(*args, **kwargs)
            outcome = self._returned(value)
        except asyncio.CancelledError:
            outcome = self._cancelled()
        except KeyboardInterrupt as error:
            self._leave_fork(error)
            if self._caller is not None:  # Ctrl-C is meant for the program, whatever code it happens to hit
                self._end(Released("interrupted"))
                raise
            outcome = self._raised(error)
        except BaseException as error:  # SystemExit too: a handler must not exit its worker
            self._leave_fork(error)
            outcome = self._raised(await aexcused(self, error, partial(_aside, self._pool)))
        self._end(outcome)

    async def _run_in_thread(self, program: Program, pool: ThreadPoolExecutor) -> None:
        context = contextvars.copy_context()
        try:
            future = in_thread(self.loop, pool, lambda: context.run(self._call, program))
        except RuntimeError as error:  # no thread can be started; if the pool runs it later, `_call` does nothing
            self._end(Snoozed(NO_THREAD_SECONDS, f"no thread could be started for it: {error}", ours=True))
            _log.error("%s %s is put off: no thread can be started: %s", self.task.name, self.claimed.id, error)
            return
        while True:
            try:
                outcome = await asyncio.shield(future)
                break
            except asyncio.CancelledError:
                if future.cancelled():  # before it began: the pool was closed
                    outcome = self.verdict if self.stopping else Released("its worker has ended")
                    break
                continue  # a thread can't be cancelled: its next `job` call raises; wait until the code stops
            except BaseException as error:  # not the handler's, of which `_call` makes an outcome
                outcome = self._raised(error)
                break
        self._end(outcome)

    def _call(self, program: Program) -> Outcome | None:
        if self.over:
            return None
        self._enter()
        try:
            task = self.task
            try:
                if self.fetches:
                    self.fetch()
                    self.check()
                if self.claimed.linked:
                    args, kwargs = load(self.host.store, task, self.claimed, ahead=False)
                else:
                    args, kwargs = task.arguments.load(self.claimed.payload)
            except InvalidArguments as error:
                raise misfit(self.host.store, self.claimed, str(error)) from error
            if task.takes_job:
                args = (Job(self), *args)
            with ExitStack() as stack:
                for around in program.arounds:
                    _enter(stack, around, self)
                stack.push(self._left)
                return self._returned(task.fn(*args, **kwargs))
        except BaseException as error:
            self._leave_fork(error)
            return self._raised(excused(self, error))

    def _left(self, kind: object, error: BaseException | None, trace: object) -> None:
        """The handler's code is over, as the innermost of its @jobs.around sees it."""
        self._leave_fork(error)

    def _leave_fork(self, error: BaseException | None = None) -> None:
        """The handler's code is over. If it has forked, and this is the child, it ends here."""
        if forked.depth != self._depth:
            forked.leave(error)

    def _end(self, outcome: Outcome | None) -> None:
        if self._caller is None:
            self.over = True
            self._report_end(outcome)
            return
        if self.over:  # it was released when its loop was closed; then the garbage collector ended its code
            return
        self.over = True
        with suppress(RuntimeError):  # this worker has ended, and with it every lease
            self.loop.call_soon_threadsafe(self._report_end, outcome)

    def _report_end(self, outcome: Outcome | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.trace is not None:
            self.trace.stopped()
        self.host.ended(self, outcome)

    def _enter(self) -> None:
        """What the current context does from now on belongs to this attempt."""
        claimed = self.claimed
        current.set(Running(claimed.id, claimed.task, claimed.queue, claimed.attempt, self.lease.worker_id))
        if self.trace is not None:
            self.trace.enter()

    # ── outcomes ──

    @property
    def loses_its_loop(self) -> bool:
        """Is the loop of the caller ending, or closed, before the block has ended?"""
        return self._caller is not None and self._caller.ending

    def _cancelled(self) -> Outcome | None:
        self._leave_fork()
        if self.stopping:
            return self.verdict
        if self.loses_its_loop:
            return _LOOP_ENDS
        if self.suspended is not None:
            return self.suspended
        return Failed("CancelledError: the handler cancelled itself")

    def _returned(self, value: object) -> Outcome | None:
        self._leave_fork()
        if self.stopping == "timeout" or self.stopping == "lease_lost":
            return self.verdict
        if self._waits is not None and self.suspended is not None:  # the handler swallowed it
            return self.suspended
        try:
            return Completed(self.task.encode_result(value))
        except (InvalidArguments, TenureError, TypeError, ValueError) as error:
            return Failed(f"its result can't be stored: {error}")

    def _raised(self, error: BaseException) -> Outcome | None:
        self.raised = error
        try:
            outcome = with_late(
                _outcome_of(self, error), error, () if self._waits is None else self._waits.suspends.late
            )
            return _told_of_the_swallow(self, error, outcome)
        except BaseException as broken:  # for example in the task's own `delay`: the attempt must end all the same
            told = [type(each).__name__ for each in (error, broken)]
            with suppress(BaseException):  # their own code may raise anything
                told = [describe(each) for each in (error, broken)]
            return Failed("{}\n\nand then, while deciding whether to retry: {}".format(*told))

    # ── stopping ──

    def request_stop(self, reason: Stopping, verdict: Outcome | None) -> None:
        """Ask the code to stop. The first reason is kept, unless the lease is lost: that overrides it.

        What is noticed a second time asks for nothing more: a second cancel would interrupt the cleanup.
        """
        if self.stopping is not None and (reason != "lease_lost" or self.stopping == "lease_lost"):
            return
        self.stopping, self.verdict = reason, verdict
        if self.stop_requested_at is None:
            self.stop_requested_at = self.loop.time()
        if self.trace is not None:
            self.trace.asked_to_stop(reason)
        if self._caller is None:
            self._cancel()
        else:
            self._stop_there(self._caller)

    def _cancel(self) -> None:
        if self._begun and self.handle is not None:
            self.handle.cancel(f"asked to stop: {self.stopping}")

    def _stop_there(self, caller: CallersLoop) -> None:
        """Stop code that runs on the caller's loop; if that loop has not taken it up, it never will."""
        with self._lock or nullcontext():
            waiting = not self._taken and not self.over
            self.over = self.over or waiting
        if waiting:
            self._report_end(self.verdict)
        else:
            caller.call(self._cancel)

    def release_unrunnable(self) -> None:
        """The caller's loop is closed: end the attempt if its code was to run there."""
        if self._caller is not None and not self.over:
            self.over = True
            self._report_end(self.verdict if self.stopping else Released("its event loop was closed"))

    # ── called by Job ──

    def flush(self) -> None:
        self.check()
        self.host.store_now(self)

    async def aflush(self) -> None:
        self.check()
        await _aside(self._pool, self.host.store_now, self)

    def _reported(self) -> None:
        self.host.reported(self)

    def _lose_lease(self) -> None:
        self.request_stop("lease_lost", None)


async def _aside(pool: ThreadPoolExecutor, call: Callable[..., T], *args: Any, **keywords: Any) -> T:
    """Run the call in a thread of the worker's: those of `asyncio.to_thread` may all be busy with handlers' calls.

    There are as many threads as attempts. Raises Lost if none can be started.
    """
    context, loop = contextvars.copy_context(), asyncio.get_running_loop()
    try:
        future = in_thread(loop, pool, lambda: context.run(call, *args, **keywords))
    except RuntimeError as error:
        raise Lost(timedelta(seconds=NO_THREAD_SECONDS), f"no thread could be started for it: {error}") from error
    return await future


def _outcome_of(attempt: Attempt, error: BaseException) -> Outcome | None:
    """What an error of the code means for its job."""
    retry = attempt.task.retry
    failures = attempt.claimed.failures + 1
    waited = attempt.suspended if came_after_a_wait(error) else None
    if waited is not None:
        return attempt.verdict if attempt.stopping in ("timeout", "lease_lost") else waited
    match signal_in(error):
        case Fail(final=True) if len(leaves(error)) > 1:
            return Failed(describe(error), final=True)
        case Snooze() as late if attempt.stopping == "timeout" and not isinstance(late, Misfit | Lost):
            return attempt.verdict  # else code that always comes too late would run again for ever, uncharged
        case Snooze(delay=delay, reason=reason, limit=limit) as snooze:
            try:
                pause = None if limit is None else limit.key_of(attempt.claimed.payload)
            except InvalidArguments as unkeyed:  # the job itself is put off all the same
                told = f"the key to pause can't be told: {unkeyed}"
                pause, reason = None, f"{reason} ({told})".lstrip()
                shown = "the key to pause can't be told" if attempt.store.capabilities.sealed else reason
                _log.warning("%s %s: %s", attempt.claimed.task, attempt.claimed.id, shown)
            return Snoozed(delay, clean(reason, MAX_ERROR), pause, ours=isinstance(snooze, Misfit | Lost))
        case Fail(reason=reason, retry_in=retry_in, final=final):
            return Failed(clean(reason, MAX_ERROR), retry_in, final)
        case LeaseLost() if attempt.lost or attempt.stopping == "lease_lost":  # not that of a guard in its code
            return None
        case Locked() as unread:
            return locked(attempt.claimed, unread)
        case Suspend(outcome=outcome):
            return attempt.verdict if attempt.stopping in ("timeout", "lease_lost") else outcome
        case _ if attempt.stopping and came_of_a_stop(error):
            return attempt.verdict
        case _ if attempt.loses_its_loop and came_of_a_stop(error):  # it has not been asked to stop yet
            return _LOOP_ENDS
        case Exception() as raised:
            if not retry.retries(raised):  # without asking the task's own `delay`, which may raise
                return Failed(describe(raised), final=True)
            return Failed(describe(raised), retry.wait(raised, failures))
        case _:
            return Failed(describe(error))


def _new_task(
    coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, name: str | None = None
) -> asyncio.Task[None]:
    if sys.version_info >= (3, 12):  # eager: a handler that never waits costs no iteration of the loop
        return asyncio.Task(coroutine, loop=loop, name=name, eager_start=True)
    return asyncio.Task(coroutine, loop=loop, name=name)


class _Inline:
    """The host of a single attempt that runs without a worker, in tests."""

    def __init__(self, store: Store, worker_id: str, resources: Mapping[type, object]) -> None:
        self.store, self.worker_id, self.resources = store, worker_id, resources
        self.done: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()

    def ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if outcome is not None:
            with suppress(LeaseLost):  # then its outcome will be refused, too
                self.store_now(attempt)
        if attempt.trace is not None:
            attempt.trace.end(outcome, attempt.raised, None, "")
        self.done.set_result(None if attempt.finished and self._has_ended(attempt.claimed.id) else outcome)

    def _has_ended(self, job_id: str) -> bool:
        """Has the transaction committed that completed the job? Else the outcome of the code counts."""
        job = self.store.get(job_id)
        return job is None or job.state is not State.PROCESSING

    def reported(self, attempt: Attempt) -> None:
        """The report is stored when the attempt ends."""

    def refused(self, lease: Lease, why: str) -> None:
        """Nothing to record: the test sees the LeaseLost."""

    def store_now(self, attempt: Attempt) -> None:
        report = attempt.take_report()
        if report is not None and not self.store.progress([report])[0]:
            raise attempt.lease_lost()


async def run_inline(
    program: Program, store: Store, claimed: Claimed, worker_id: str, resources: Mapping[type, object]
) -> tuple[Outcome | None, BaseException | None]:
    """Run one claimed job on this loop, as a worker would. Returns the outcome to store, if any, and what it raised."""
    host = _Inline(store, worker_id, resources)
    attempt = Attempt(host, program.tasks[claimed.task], claimed, asyncio.get_running_loop())
    attempt.fetches = attempt.is_elsewhere()
    with ThreadPoolExecutor(1) as pool:
        attempt.start(program, pool)
        return await host.done, attempt.raised


# ── Around and resources ────────────────────────────────────────────────────────────────────────────────────────


class _Around:
    """A plain `@jobs.around` of one attempt. It can't swallow: what the handler raised decides the outcome."""

    def __init__(self, around: Callable[[Job[Any]], Any], attempt: Attempt) -> None:
        self._attempt, self._name = attempt, _name_of(around)
        self._block = contextmanager(around)(Job(attempt))

    def __enter__(self) -> None:
        self._block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block.__exit__(kind, error, trace) and error is not None:
            self._attempt.swallowed = self._name, error


class _AsyncAround:
    """An async `@jobs.around` of one attempt."""

    def __init__(self, around: Callable[[Job[Any]], Any], attempt: Attempt) -> None:
        self._attempt, self._name = attempt, _name_of(around)
        self._block = asynccontextmanager(around)(Job(attempt))

    async def __aenter__(self) -> None:
        await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if await self._block.__aexit__(kind, error, trace) and error is not None:
            self._attempt.swallowed = self._name, error


def _name_of(around: Callable[..., Any]) -> str:
    return getattr(around, "__name__", None) or repr(around)  # a partial has none


def _enter(stack: ExitStack, around: Callable[[Job[Any]], Any], attempt: Attempt) -> None:
    if inspect.isasyncgenfunction(around):
        raise TenureError(
            f"@jobs.around {_name_of(around)} is async, but {attempt.claimed.task} is a plain function that runs in a "
            "thread: write it as a plain generator"
        )
    stack.enter_context(_Around(around, attempt))


async def _enter_async(stack: AsyncExitStack, around: Callable[[Job[Any]], Any], attempt: Attempt) -> None:
    if inspect.isasyncgenfunction(around):
        await stack.enter_async_context(_AsyncAround(around, attempt))
    else:
        stack.enter_context(_Around(around, attempt))


def _told_of_the_swallow(attempt: Attempt, error: BaseException, outcome: Outcome | None) -> Outcome | None:
    """The same outcome; a failure says on its first line which @jobs.around swallowed it."""
    if attempt.swallowed is None or attempt.swallowed[1] is not error or not isinstance(outcome, Failed):
        return outcome
    headline, line, rest = outcome.error.partition("\n")
    why = f"(@jobs.around {attempt.swallowed[0]} swallowed it: raise it again there, or catch it in the handler)"
    return replace(outcome, error=clean(f"{headline} {why}{line}{rest}", MAX_ERROR))


@asynccontextmanager
async def open_resources(
    openers: Sequence[Callable[[], Any]], opening: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[dict[type, object]]:
    """Open each `@jobs.resource` once, in order, and close them in reverse. `opening` is told each name before."""
    async with AsyncExitStack() as stack:
        found: dict[type, object] = {}
        for opener in openers:
            opening(opener.__name__)
            if inspect.isasyncgenfunction(opener):
                value = await stack.enter_async_context(asynccontextmanager(opener)())
            else:
                value = stack.enter_context(contextmanager(opener)())
            found[type(value)] = value
        yield found
