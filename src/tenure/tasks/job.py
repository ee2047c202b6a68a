"""`Job`: a handler's view of the job it runs. It is implemented by a `JobBackend`: in a worker, an attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, overload
from uuid import UUID

import msgspec

from tenure.core.retry import Fail
from tenure.errors import InvalidArguments, InvalidOption
from tenure.ports import RESERVED, Claimed
from tenure.tasks.flow import Flow, Step
from tenure.tasks.hints import JOB, foreign_names
from tenure.tasks.in_use import KeysInUse
from tenure.tasks.loops import aside, awaited, refuse_on_loop, settled
from tenure.tasks.texts import checked_name, checked_text, valid_key

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from tenure.core.durations import Duration
    from tenure.tasks.ended import Ended
    from tenure.tasks.handle import AppPort, JobHandle
    from tenure.tasks.task import NewJob

    # `object` and not Any: with Any, mypy types every handler with a bare Job as Task[Any, Any].
    C = TypeVar("C", default=object)
else:
    from typing import TypeVar

    C = TypeVar("C")

T = TypeVar("T")
D = TypeVar("D")

MISSING: Any = object()  #: `job.expect` without a default
Stopping = Literal["cancel", "timeout", "shutdown", "lease_lost"]

_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


# ── The backend of a Job ────────────────────────────────────────────────────────────────────────────────────────


class Codec(Protocol):
    """What a Job needs of its task: its names, and the conversion of values to and from stored JSON."""

    @property
    def app(self) -> AppPort: ...

    @property
    def name(self) -> str: ...

    @property
    def queue(self) -> str: ...

    def encode_result(self, value: object) -> str: ...

    def dump_checkpoint(self, value: object) -> str: ...

    def load_checkpoint(self, text: str) -> Any: ...

    def dump_once(self, key: str, value: object) -> str: ...

    def load_once(self, key: str, text: str, fn: Callable[[], object]) -> Any: ...


class WaitsPort(Protocol):
    """How a job waits. Each of these may end the attempt: what they raise then must leave the handler."""

    def gather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]: ...

    async def agather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]: ...

    def join(self, target: object) -> Ended[Any]: ...

    async def ajoin(self, target: object) -> Ended[Any]: ...

    def expect(
        self, signal: str, kind: Any, *, timeout: Duration | None, default: object, name: str | None, shared: bool
    ) -> Any: ...

    async def aexpect(
        self, signal: str, kind: Any, *, timeout: Duration | None, default: object, name: str | None, shared: bool
    ) -> Any: ...


class JobBackend(Protocol):
    """One execution of a job. `report` never blocks; the others may, so they must not be called on an event loop.

    In a thread, `report`, `flush`, `recall` and `record` raise JobStopped when the attempt was asked to stop, and
    LeaseLost when it no longer owns the job.
    """

    claimed: Claimed

    @property
    def task(self) -> Codec: ...

    stopping: Stopping | None

    @property
    def waits(self) -> WaitsPort: ...

    def report(
        self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None
    ) -> None: ...

    def flush(self) -> None: ...

    async def aflush(self) -> None: ...

    def recall(self, key: str) -> str | None:
        """The value recorded for this key, if any."""
        ...

    def record(self, key: str, value: str) -> str:
        """Record the value if it is the first of this key; return the first one."""
        ...

    def finish(self, result: str, tx: object) -> None: ...

    def resource(self, kind: type[T]) -> T: ...


# ── Job ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@foreign_names("a Job", JOB)
class Job(Generic[C]):
    """The job under this attempt's lease, passed as the first argument to a handler that declares it.

    `Job[int]` types its checkpoint. Example: `def resize(job: Job[int], folder: str) -> None: ...`
    """

    __slots__ = ("_attempt", "_keys")

    def __init__(self, attempt: JobBackend) -> None:
        self._attempt, self._keys = attempt, KeysInUse()

    def __repr__(self) -> str:
        return f"Job({self.id}, {self.task}, attempt {self.attempt})"

    @property
    def id(self) -> UUID:
        return UUID(self._attempt.claimed.id)

    @property
    def task(self) -> str:
        return self._attempt.claimed.task

    @property
    def queue(self) -> str:
        return self._attempt.claimed.queue

    @property
    def attempt(self) -> int:
        """The attempt number: it rises by one with every claim, however the previous attempt ended."""
        return self._attempt.claimed.attempt

    @property
    def failures(self) -> int:
        """Attempts charged to the code before this one."""
        return self._attempt.claimed.failures

    @property
    def crashes(self) -> int:
        """Attempts charged to the process before this one, since the last new checkpoint."""
        return self._attempt.claimed.crashes

    @property
    def meta(self) -> Mapping[str, str]:
        """What `using(meta=…)` gave it. Names that begin with `tenure.` are Tenure's own, and not among them."""
        found = _decode_meta(self._attempt.claimed.meta)
        return {name: text for name, text in found.items() if not name.startswith(RESERVED)}

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._attempt.claimed.enqueued_ms / 1000, UTC)

    @property
    def checkpoint(self) -> C | None:
        """The last checkpoint of an earlier attempt; None if there is none."""
        stored = self._attempt.claimed.checkpoint
        return None if stored is None else self._attempt.task.load_checkpoint(stored)

    @property
    def stopping(self) -> Stopping | None:
        """Why this attempt was asked to stop, or None."""
        return self._attempt.stopping

    def progress(
        self,
        fraction: float | None = None,
        *,
        stage: str | None = None,
        message: str | None = None,
        checkpoint: C | None = None,
    ) -> None:
        """Report progress, as a fraction from 0 to 1. Never blocks: the latest report is stored within a second.

        Without arguments it is a sign of life. In a thread it raises JobStopped when the attempt must stop.
        """
        self._attempt.report(
            None if fraction is None else _fraction(fraction),
            None if stage is None else checked_text(stage, "stage", 200),
            None if message is None else checked_text(message, "message", 2000),
            None if checkpoint is None else self._attempt.task.dump_checkpoint(checkpoint),
        )

    def flush(self) -> None:
        """Return when the last progress and checkpoint are stored."""
        refuse_on_loop("job.flush()", "await job.aflush()")
        self._attempt.flush()

    async def aflush(self) -> None:
        """Return when the last progress and checkpoint are stored."""
        _refuse_to_wait(self._attempt, "await job.aflush()")
        await self._attempt.aflush()

    def once(self, key: str, fn: Callable[[], T]) -> T:
        """The first result of `fn` under this key of this job, whichever attempt produced it.

        It is stored as JSON and decoded by the return annotation of `fn`. After a crash between the effect and its
        record `fn` runs again: pass an idempotency key to the other system too, such as `job.id`.
        """
        refuse_on_loop("job.once(…)", "await job.aonce(…)")
        task, key = self._attempt.task, valid_key(key, "once key")
        with self._keys.alone("once", key):
            stored = self._attempt.recall(key)
            if stored is None:
                stored = self._attempt.record(key, _once_text(task, key, fn()))
        value: T = task.load_once(key, stored, fn)
        return value

    @overload
    async def aonce(self, key: str, fn: Callable[[], Awaitable[T]]) -> T: ...
    @overload
    async def aonce(self, key: str, fn: Callable[[], T]) -> T: ...
    async def aonce(self, key: str, fn: Callable[[], Any]) -> Any:
        """The first result of `fn`, plain or async, under this key of this job, whichever attempt produced it.

        A plain one runs on the event loop, so it must not block.
        """
        task, key = self._attempt.task, valid_key(key, "once key")
        _refuse_to_wait(self._attempt, "await job.aonce(…)")
        with self._keys.alone("aonce", key):
            stored = await aside(partial(self._attempt.recall, key))
            if stored is None:
                value = await made if isawaitable(made := fn()) else made
                stored = await settled(partial(self._attempt.record, key, _once_text(task, key, value)))
        return task.load_once(key, stored, fn)

    # ── waiting ──

    @overload
    def gather(self, key: str, fn: Callable[[], Iterable[NewJob[T]]], *, ended: Literal[False] = ...) -> list[T]: ...
    @overload
    def gather(self, key: str, fn: Callable[[], Iterable[NewJob[T]]], *, ended: Literal[True]) -> list[Ended[T]]: ...
    def gather(self, key: str, fn: Callable[[], Iterable[NewJob[Any]]], *, ended: bool = False) -> Any:
        """The results of the jobs that `fn` lists. It neither fails fast nor resumes in place.

        The jobs are stored, this attempt ends, uncharged, and its slot is free. When all of them have completed, the
        handler runs again from the top, and this call returns their results in order: put what must not run twice
        into `job.once`. `fn` is not called again, as its list is recorded under `key`. A gathered job that ends dead
        holds this job until it is replayed, or skipped; one that is cancelled cancels it. With `ended=True` it waits
        for any end, and returns a list of `Ended`. If this job itself ends dead or cancelled, the jobs that it gathers
        are cancelled. If one of them waits for this job, that would be a circle: this job fails for good.

        Let what it raises leave the handler. The attempt is suspended even if the handler swallows it, or raises
        another exception after it, in an `except BaseException` or a `finally`; only a final `Fail` counts instead, or
        an error beside it in an exception group.

        Example: `pages = job.gather("pages", lambda: [render.bind(n) for n in range(500)])`
        """
        refuse_on_loop("job.gather(…)", "await job.agather(…)")
        return self._attempt.waits.gather(valid_key(key, "gather key"), fn, ended=ended)

    @overload
    async def agather(
        self,
        key: str,
        fn: Callable[[], Iterable[NewJob[T]] | Awaitable[Iterable[NewJob[T]]]],
        *,
        ended: Literal[False] = ...,
    ) -> list[T]: ...
    @overload
    async def agather(
        self, key: str, fn: Callable[[], Iterable[NewJob[T]] | Awaitable[Iterable[NewJob[T]]]], *, ended: Literal[True]
    ) -> list[Ended[T]]: ...
    async def agather(
        self,
        key: str,
        fn: Callable[[], Iterable[NewJob[Any]] | Awaitable[Iterable[NewJob[Any]]]],
        *,
        ended: bool = False,
    ) -> Any:
        """The results of the jobs that `fn` lists, plain or async. It neither fails fast nor resumes in place.

        As `gather`. Example: `pages = await job.agather("pages", lambda: [render.bind(n) for n in range(500)])`
        """
        return await self._attempt.waits.agather(valid_key(key, "gather key"), fn, ended=ended)

    def join(self, job: JobHandle[T] | Step[T], /) -> Ended[T]:
        """How that job ended. If it has not yet, this attempt ends, uncharged, as with `gather`.

        It keeps a run open until what it began has ended. Example: `job.join(report.handle)`. Raises Refused if that
        job waits for this one.
        """
        refuse_on_loop("job.join(…)", "await job.ajoin(…)")
        return self._attempt.waits.join(job)

    async def ajoin(self, job: JobHandle[T] | Step[T], /) -> Ended[T]:
        """How that job ended. If it has not yet, this attempt ends, uncharged, as with `agather`."""
        return await self._attempt.waits.ajoin(job)

    @overload
    def expect(
        self,
        signal: str,
        kind: type[T],
        /,
        *,
        timeout: Duration | None = ...,
        name: str | None = ...,
        shared: bool = ...,
    ) -> T: ...
    @overload
    def expect(
        self,
        signal: str,
        kind: type[T],
        /,
        *,
        default: D,
        timeout: Duration | None = ...,
        name: str | None = ...,
        shared: bool = ...,
    ) -> T | D: ...
    def expect(
        self,
        signal: str,
        kind: Any,
        /,
        *,
        timeout: Duration | None = None,
        default: Any = MISSING,
        name: str | None = None,
        shared: bool = False,
    ) -> Any:
        """The value sent to this job as `signal`. If it has not come, the attempt ends, uncharged, as with `gather`.

        `kind` is its type in `@jobs.task(signals=…)`. After `timeout` it returns `default`; without a default the job
        fails for good, and waits again if it is replayed. How it ended is recorded under `name`, by default the
        signal's: give a second wait for the same signal another one. `shared`: `signal` is a key for which any number
        of jobs wait, sent by `jobs.signal(…)`.

        Example: `got = job.expect("approved", Approval, timeout="2d", default=None)`
        """
        refuse_on_loop("job.expect(…)", "await job.aexpect(…)")
        return self._attempt.waits.expect(signal, kind, timeout=timeout, default=default, name=name, shared=shared)

    @overload
    async def aexpect(
        self,
        signal: str,
        kind: type[T],
        /,
        *,
        timeout: Duration | None = ...,
        name: str | None = ...,
        shared: bool = ...,
    ) -> T: ...
    @overload
    async def aexpect(
        self,
        signal: str,
        kind: type[T],
        /,
        *,
        default: D,
        timeout: Duration | None = ...,
        name: str | None = ...,
        shared: bool = ...,
    ) -> T | D: ...
    async def aexpect(
        self,
        signal: str,
        kind: Any,
        /,
        *,
        timeout: Duration | None = None,
        default: Any = MISSING,
        name: str | None = None,
        shared: bool = False,
    ) -> Any:
        """The value sent to this job as `signal`: see `expect`.

        Example: `got = await job.aexpect("approved", Approval, timeout="2d", default=None)`
        """
        return await self._attempt.waits.aexpect(
            signal, kind, timeout=timeout, default=default, name=name, shared=shared
        )

    def flow(self, key: str, *, tx: object = None) -> Flow:
        """A flow that this job makes once, whichever attempt does: `with job.flow("pages") as flow:`, or `async with`.

        It is not tied to this job: `job.join(step)` after the block waits for one of its steps.
        """
        claimed = self._attempt.claimed
        arguments = sha256(claimed.payload.encode()).hexdigest()  # a replay with others makes another flow
        made_once = f"\n{claimed.id}\n{arguments}\n{valid_key(key, 'flow key')}"
        return Flow(self._attempt.task.app, checked_name(key, "flow"), made_once, tx, self._attempt, self._keys)

    # ── the outcome ──

    def finish(self, result: object = None, *, tx: object) -> None:
        """Complete the job within your own transaction, so that its outcome and its effect commit together."""
        refuse_on_loop("job.finish(…)", "await job.afinish(…)")
        self._attempt.finish(self._attempt.task.encode_result(result), tx)

    async def afinish(self, result: object = None, *, tx: object) -> None:
        """Complete the job within your own transaction, so that its outcome and its effect commit together."""
        await settled(partial(self._attempt.finish, self._attempt.task.encode_result(result), awaited(tx)))

    def resource(self, kind: type[T]) -> T:
        """The value of this type that a `@jobs.resource` opened for this process."""
        return self._attempt.resource(kind)


def _refuse_to_wait(attempt: JobBackend, call: str) -> None:
    """Refuse a write that waits for the transaction of the code that makes it. A call in a thread the store refuses."""
    from tenure.tasks.client import in_transaction  # imports asyncio, which takes time

    if in_transaction():
        client = attempt.task.app.client()
        if client.store.capabilities.one_writer:
            client.refuse_beside_transaction(f"{call} writes beside it: call it before or after the block")


def _once_text(task: Codec, key: str, value: object) -> str:
    """The JSON of what the function of a `once` returned. It has run, so a value that JSON can't hold is final."""
    try:
        return task.dump_once(key, value)
    except InvalidArguments as error:
        raise Fail(f"{error}; the function has run, and a retry would run it again", final=True) from error


def _fraction(value: object) -> float:
    # Sums of small steps can reach 1.0000000000000002, which must not fail a job.
    if isinstance(value, int | float) and -0.001 <= value <= 1.001:
        return min(max(float(value), 0.0), 1.0)
    raise InvalidOption(f"progress: expected a fraction from 0 to 1, got {value!r}; divide by the total")
