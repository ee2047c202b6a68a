"""`Guard`: the caller's own function or block of code, run as a tick of a schedule.

Its code is asked to stop and waited for, like a job in an embedded worker: a guard guarantees the fence, not the stop.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial, wraps
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from tenure.core.durations import Duration, seconds
from tenure.core.lifecycle import GUARD, Cancelled, Outcome
from tenure.core.logs import logger
from tenure.errors import GuardSkipped, InvalidOption, JobStopped, LeaseLost, TenureError
from tenure.events import Running, current
from tenure.guards.run import GuardedRun, GuardRule, Open, declared
from tenure.guards.stop import Stopping
from tenure.ports import Claimed, Progress
from tenure.tasks.hints import unknown_options
from tenure.tasks.job import Job
from tenure.tasks.loops import refuse_on_loop, settled

if TYPE_CHECKING:
    import asyncio

    from tenure.tasks.handle import AppPort
    from tenure.tasks.job import JobBackend
    from tenure.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logger("tenure.guard")


class _GuardedAttempt:
    """The backend of a guarded block's Job: its reports are stored under the run's lease."""

    def __init__(self, run: GuardedRun) -> None:
        self._run = run
        meta = {"schedule": run.name, "tick": run.begun.tick.tick.isoformat()}
        began = round(run.begun.tick.decided_at.timestamp() * 1000)
        written = msgspec.json.encode(meta).decode()
        self.claimed = Claimed(
            run.lease.job_id, 1, run.name, GUARD, "{}", 0, 0, written, None, None, None, began, expired=False
        )

    @property
    def task(self) -> Task[..., Any]:
        return _task_of(self._run)

    @property
    def stopping(self) -> Stopping | None:
        return self._run.stopping

    @property
    def waits(self) -> NoReturn:
        raise TenureError(
            f"{self._run.name}: a guarded block keeps its lock until it exits, so it can't wait for jobs or signals; "
            "enqueue a job whose handler waits"
        )

    def _check(self) -> None:
        reason = self._run.stopping
        if reason is not None:
            raise (
                LeaseLost(f"{self._run.name}, job {self.claimed.id}") if reason == "lease_lost" else JobStopped(reason)
            )

    def report(self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None) -> None:
        self._check()
        self._run.report(
            Progress(lease=self._run.lease, fraction=fraction, stage=stage, message=message, checkpoint=checkpoint)
        )

    def flush(self) -> None:
        self._check()
        self._run.store_report()

    async def aflush(self) -> None:
        self._check()
        await settled(self._run.store_report)

    def recall(self, key: str) -> str | None:
        self._check()
        return self._once(key, None)

    def record(self, key: str, value: str) -> str:
        recorded = self._once(key, value)
        assert recorded is not None, "it was just recorded"
        return recorded

    def _once(self, key: str, value: str | None) -> str | None:
        found = self._run.store.once(self._run.lease, key, value)
        if found is None:
            raise LeaseLost(f"{self._run.name}, job {self.claimed.id}")
        return found.value

    def finish(self, result: str, tx: object) -> None:
        raise TenureError(f"{self._run.name}: a guarded block finishes when it exits; job.finish() is for handlers")

    def resource(self, kind: type[T]) -> T:
        raise TenureError(f"{self._run.name}: resources are opened by workers; a guarded block opens its own")


class _GuardedJob(Job):
    """The Job of a guarded block."""

    def flow(self, key: str, *, tx: object = None) -> NoReturn:
        raise TenureError(
            f"job.flow({key!r}): a guarded block runs once, so it has no flow of its own; use "
            f"jobs.flow({key!r}), with unique= if another run must not make it again"
        )


def _task_of(run: GuardedRun) -> Task[..., Any]:
    """A task that encodes the checkpoints of the run's job, and its `once` values, as JSON."""
    from tenure.tasks.arguments import Arguments
    from tenure.tasks.detached import detached_job
    from tenure.tasks.task import Task

    def block(job: Job) -> None: ...

    return Task(
        name=run.name,
        fn=block,
        place="",
        arguments=Arguments(run.name, block, Job),
        detached=detached_job,
        app=cast("AppPort", SimpleNamespace(settings=run.settings)),
        queue=GUARD,
        priority=0,
        own_retry=None,
        timeout=None,
        stale_after=None,
        isolation=None,
        unique=None,
        max_crashes=0,
        aliases=(),
    )


class _Entered:
    """A block that was entered, in its thread or its asyncio task."""

    def __init__(self, guard: Guard, *, on_loop: bool) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        if on_loop:
            import asyncio

            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self.key = _here(self._task)
        self._cancelling = self._task.cancelling() if self._task else 0
        self._cancelled = self._left = False
        self._deadline: asyncio.TimerHandle | None = None
        self.run = GuardedRun(guard.schedule, guard.open, timeout=guard.timeout, on_asked=self._asked)

    def enter(self) -> Job:
        attempt = _GuardedAttempt(self.run)
        self._before = current.get()
        current.set(Running(attempt.claimed.id, self.run.name, GUARD, 1, self.run.holder.id))
        self._watch()
        for said in filter(None, (self.run.begun.late, self.run.begun.changed)):
            _log.warning("%s: %s", self.run.name, said)
        return _GuardedJob(cast("JobBackend", attempt))

    def leave(self, error: BaseException | None) -> Callable[[], None]:
        """Leave the block. Returns a function that records the outcome, which may block."""
        self._left = True
        if self._deadline is not None:
            self._deadline.cancel()
        current.set(self._before)
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        outcome = self.run.outcome(error, lambda: _described(error))
        return partial(self._end, outcome)

    def _end(self, outcome: Outcome) -> None:
        if not self.run.end(outcome):
            _log.warning(
                "%s: its lock was lost (%s), so this outcome is not recorded: %s",
                self.run.name,
                self.run.stop.why,
                outcome,
            )

    async def aleave(self, error: BaseException | None) -> None:
        import asyncio

        reason, end = self.run.stopping, self.leave(error)
        outer = False
        if self._cancelled and self._task is not None:
            outer = self._task.uncancel() > self._cancelling
        await settled(end)
        if self._cancelled and not outer and isinstance(error, asyncio.CancelledError):
            raise LeaseLost(self.run.name) if reason == "lease_lost" else JobStopped(reason or "cancel")

    def _watch(self) -> None:
        """Have the task asked to stop in time: the heartbeat's thread may be waiting for the store then."""
        if self._loop is not None and not self._left and self.run.stopping is None:
            self._deadline = self._loop.call_later(self.run.asked_in, self._watch)

    def _asked(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and all its code has ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None and not self._left and not self._cancelled:
            self._cancelled = True
            self._task.cancel(f"asked to stop: {self.run.stopping}")


def _here(task: object) -> object:
    return threading.get_ident() if task is None else task


def _described(error: BaseException | None) -> str:
    from tenure.worker.described import describe

    return "" if error is None else describe(error)


class GuardOptions(GuardRule, total=False):
    """The options of `jobs.guard`. None means the default."""

    timeout: Duration | None  #: a run that takes longer is asked to stop


class Guard:
    """Runs a function or a block at most once a tick, and never twice at a time, across all hosts.

    Around a function: `@jobs.guard("daily-report", every="1d")`, sync or async; it returns None when skipped. Around a
    block: `with jobs.guard("sync", every="5m") as job:`, also `async with`; GuardSkipped when skipped. An exception is
    recorded and raised again. After `timeout`, a cancel, or when the lease can't be renewed, async code is cancelled;
    in a thread, the next call of a `job` method raises JobStopped.
    """

    def __init__(
        self,
        name: str,
        *,
        open: Open,  # noqa: A002
        timeout: Duration | None = None,
        **rule: Unpack[GuardRule],
    ) -> None:
        known = GuardOptions.__annotations__
        if unknown := [option for option in rule if option not in known]:
            raise unknown_options("jobs.guard", unknown, known)
        self.schedule = declared(name, **rule)
        self.timeout = None if timeout is None else seconds(timeout, "timeout")
        if self.timeout == 0:
            raise InvalidOption(f"timeout: expected more than 0s, got {timeout!r}")
        self.open = open
        self._entered: list[_Entered] = []

    def __repr__(self) -> str:
        return f"Guard({self.schedule.name!r}, {self.schedule.rule!r})"

    # ── around a function ──

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R | None]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Callable[..., Any]:
        label = getattr(fn, "__name__", repr(fn))
        if not callable(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise InvalidOption(f"guard {self.schedule.name}: expected a function, plain or async, got {fn!r}")
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                try:
                    entered, _ = await self._aenter()
                except GuardSkipped as skipped:
                    return self._log_skipped(skipped)
                error: BaseException | None = None
                try:
                    return await fn(*args, **kwargs)
                except BaseException as raised:
                    error = raised
                    raise
                finally:
                    await entered.aleave(error)

            return guarded

        @wraps(fn)
        def guarded_here(*args: Any, **kwargs: Any) -> Any:
            refuse_on_loop(f"{label}() under a guard", f"await asyncio.to_thread({label}), or make it async def")
            try:
                entered, _ = self._enter()
            except GuardSkipped as skipped:
                return self._log_skipped(skipped)
            error: BaseException | None = None
            try:
                answer = fn(*args, **kwargs)
                if inspect.iscoroutine(answer):
                    answer.close()
                    raise InvalidOption(f"guard {self.schedule.name}: {label} returned a coroutine: make it async def")
                return answer
            except BaseException as raised:
                error = raised
                raise
            finally:
                entered.leave(error)()

        return guarded_here

    def _log_skipped(self, skipped: GuardSkipped) -> None:
        _log.info("%s: %s", self.schedule.name, skipped)

    # ── around a block ──

    def __enter__(self) -> Job:
        refuse_on_loop("with a guard", "async with")
        entered, job = self._enter()
        self._entered.append(entered)
        return job

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered_here(_here(None)).leave(error)()

    async def __aenter__(self) -> Job:
        entered, job = await self._aenter()
        self._entered.append(entered)
        return job

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        await self._entered_here(asyncio.current_task()).aleave(error)

    def _entered_here(self, key: object) -> _Entered:
        """The block that this thread or task entered last: several may use one guard at the same time."""
        mine = [each for each in self._entered if each.key == key] or self._entered
        self._entered.remove(mine[-1])
        return mine[-1]

    def _enter(self) -> tuple[_Entered, Job]:
        entered = _Entered(self, on_loop=False)
        entered.run.begin()
        return entered, entered.enter()

    async def _aenter(self) -> tuple[_Entered, Job]:
        import asyncio

        entered = _Entered(self, on_loop=True)
        try:
            await settled(entered.run.begin)
        except asyncio.CancelledError:
            if entered.run.began:  # while it waited its caller was cancelled
                await settled(partial(entered.run.end, Cancelled("its caller was cancelled before it began")))
            raise
        return entered, entered.enter()
