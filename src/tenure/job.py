"""A job from both ends: `Job` is what its handler holds, `JobHandle` what its caller keeps.

Both are thin. Behind a `Job` stands an `Attempt`, which the executor implements; behind a `JobHandle` the `Home` of
its task, which is the app.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, cast
from uuid import UUID

import msgspec

from tenure.durations import Duration, seconds
from tenure.errors import InvalidOption, WouldBlock
from tenure.ids import canonical, new_id
from tenure.ports import Awaited, Claimed, Draft, Enqueued

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from typing_extensions import TypeVar

    from tenure.config import Settings
    from tenure.retry import Retry
    from tenure.task import Task

    # `object` and not Any: with Any, mypy types every handler with a bare Job as Task[Any, Any].
    C = TypeVar("C", default=object)
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    C = TypeVar("C")
    R_co = TypeVar("R_co", covariant=True)

T = TypeVar("T")

Stopping = Literal["cancel", "timeout", "shutdown", "lease_lost"]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


def refuse_on_loop(call: str, instead: str) -> None:
    """Raise WouldBlock if an event loop runs in this thread: a synchronous call would stop everything on it."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise WouldBlock(f"{call} would block this event loop; write: {instead}")


def awaited(tx: object) -> object:
    """A caller's transaction, for another thread to write in while this loop waits; one of our own as it is.

    A scoped session is a name that means something here only: it is resolved.
    """
    from asyncio import get_running_loop

    if tx is None:
        return tx
    scope = getattr(tx, "registry", None)
    return Awaited(scope() if callable(scope) else tx, get_running_loop())


async def settled(call: Callable[[], T], thread: Executor | None = None) -> T:
    """Do it in a thread. A caller who is cancelled goes on only when it has ended: it uses what is theirs."""
    import asyncio

    future = asyncio.get_running_loop().run_in_executor(thread, copy_context().run, call)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        await asyncio.wait([future])
        future.exception()  # seen: the cancel is what its caller hears
        raise
    return future.result()


def clean(text: str, limit: int) -> str:
    """The text as every store can keep it: NUL and lone surrogates replaced, at most `limit` characters.

    >>> clean("a\\0b", 10), clean("abcdef", 4)
    ('a\\ufffdb', 'abc…')
    """
    text = _UNSTORABLE.sub("\ufffd", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def valid_key(key: object, what: str) -> str:
    """A unique or once key as it is, or InvalidOption that says what a key looks like."""
    if isinstance(key, str) and 1 <= len(key) <= 200 and not _CONTROL.search(key):
        return key
    got = f"{len(key)} characters" if isinstance(key, str) and len(key) > 200 else repr(key)
    raise InvalidOption(f"{what}: expected 1 to 200 characters without control characters, got {got}")


# ── What stands behind them ─────────────────────────────────────────────────────────────────────────────────────


class Attempt(Protocol):
    """One execution of a job, as the executor keeps it. `report` never blocks; the others may, so never on a loop.

    In a thread, `report`, `flush`, `recall` and `record` raise JobStopped when the attempt was asked to stop, and
    LeaseLost when the job is no longer ours.
    """

    claimed: Claimed
    task: Task[..., Any]
    stopping: Stopping | None

    def report(
        self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None
    ) -> None: ...

    def flush(self) -> None: ...

    async def aflush(self) -> None: ...

    def recall(self, key: str) -> str | None:
        """The value recorded for this key, if any."""
        ...

    def record(self, key: str, value: str) -> str:
        """Record the first value of this key; the one that stands."""
        ...

    def finish(self, result: str, tx: object) -> None: ...

    def resource(self, kind: type[T]) -> T: ...


class Desk(Protocol):
    """Where jobs are handed in and asked after: the client of an open store."""

    def enqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]: ...

    async def aenqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]: ...

    def result(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed; TimeoutError, JobFailed or UnknownJob."""
        ...

    async def aresult(self, job_id: str, timeout: float | None) -> str: ...

    def cancel(self, job_id: str, reason: str) -> bool: ...

    async def acancel(self, job_id: str, reason: str) -> bool: ...


class Home(Protocol):
    """What tasks and handles need of the app they belong to. Its desk is opened on first use."""

    @property
    def settings(self) -> Settings: ...

    @property
    def retry(self) -> Retry:
        """The policy of tasks without one of their own."""
        ...

    @property
    def resources(self) -> Mapping[type, object]:
        """What a detached job finds: empty but in `testing(resources=…)`."""
        ...

    def desk(self) -> Desk: ...

    async def adesk(self) -> Desk: ...


class DetachedAttempt:
    """Behind the Job of `.call()`: there is no store, so progress goes nowhere and `once` lasts as long as the call."""

    def __init__(self, task: Task[..., Any], payload: str, resources: Mapping[type, object]) -> None:
        now = int(datetime.now(UTC).timestamp() * 1000)
        self.claimed = Claimed(
            new_id(), 1, task.name, task.queue, payload, 0, 0, "{}", None, None, None, now, expired=False
        )
        self.task = task
        self.stopping: Stopping | None = None
        self._resources = resources
        self._once: dict[str, str] = {}

    def report(self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None) -> None:
        """Nobody is listening."""

    def flush(self) -> None:
        """Nothing is on its way."""

    async def aflush(self) -> None:
        """Nothing is on its way."""

    def recall(self, key: str) -> str | None:
        return self._once.get(key)

    def record(self, key: str, value: str) -> str:
        return self._once.setdefault(key, value)

    def finish(self, result: str, tx: object) -> None:
        """There is no outcome to commit."""

    def resource(self, kind: type[T]) -> T:
        if kind in self._resources:
            return cast("T", self._resources[kind])
        raise InvalidOption(
            f"{self.task.name}: .call() opens no resources; run it in "
            f"`with jobs.testing(resources={{{kind.__name__}: …}})`"
        )


# ── Job ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Job(Generic[C]):
    """The job under this attempt's lease, as the first argument of a handler that asks for it.

    `Job[int]` types its checkpoint. Example: `def resize(job: Job[int], folder: str) -> None: ...`
    """

    __slots__ = ("_attempt",)

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __repr__(self) -> str:
        claimed = self._attempt.claimed
        return f"Job({claimed.id}, {claimed.task}, attempt {claimed.attempt})"

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
        """Rises by one with every claim, whatever became of the last one."""
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
        return _decode_meta(self._attempt.claimed.meta)

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._attempt.claimed.enqueued_ms / 1000, UTC)

    @property
    def checkpoint(self) -> C | None:
        """Where an earlier attempt said it was; None in the first one."""
        stored = self._attempt.claimed.checkpoint
        return None if stored is None else self._attempt.task.load_checkpoint(stored)

    @property
    def stopping(self) -> Stopping | None:
        """Why this attempt is asked to stop, or None."""
        return self._attempt.stopping

    def progress(
        self,
        fraction: float | None = None,
        *,
        stage: str | None = None,
        message: str | None = None,
        checkpoint: C | None = None,
    ) -> None:
        """Say how far it is, from 0 to 1. Never blocks: the newest word is stored within a second.

        Called with nothing it is a sign of life. In a thread it raises JobStopped when the attempt must stop.
        """
        self._attempt.report(
            None if fraction is None else _fraction(fraction),
            None if stage is None else _text(stage, "stage", 200),
            None if message is None else _text(message, "message", 2000),
            None if checkpoint is None else self._attempt.task.dump_checkpoint(checkpoint),
        )

    def flush(self) -> None:
        """Return when the last progress and checkpoint are stored."""
        refuse_on_loop("job.flush()", "await job.aflush()")
        self._attempt.flush()

    async def aflush(self) -> None:
        """Return when the last progress and checkpoint are stored."""
        await self._attempt.aflush()

    def once(self, key: str, fn: Callable[[], T]) -> T:
        """The first result of `fn` under this key of this job, in whichever attempt that was.

        It is stored as JSON and read back by the return annotation of `fn`. A crash between the act and its record
        acts again: give the other side an idempotency key too, such as `job.id`.
        """
        refuse_on_loop("job.once(…)", "await job.aonce(…)")
        task, key = self._attempt.task, valid_key(key, "once key")
        stands = self._attempt.recall(key)
        if stands is None:
            stands = self._attempt.record(key, task.dump_once(key, fn()))
        value: T = task.load_once(key, stands, fn)
        return value

    async def aonce(self, key: str, fn: Callable[[], Awaitable[T]]) -> T:
        """The first result of `await fn()` under this key of this job, in whichever attempt that was."""
        from asyncio import to_thread

        task, key = self._attempt.task, valid_key(key, "once key")
        stands = await to_thread(self._attempt.recall, key)
        if stands is None:
            stands = await to_thread(self._attempt.record, key, task.dump_once(key, await fn()))
        value: T = task.load_once(key, stands, fn)
        return value

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


def _fraction(value: object) -> float:
    # Sums of small steps end at 1.0000000000000002, which must not cost anyone their job.
    if isinstance(value, int | float) and -0.001 <= value <= 1.001:
        return min(max(float(value), 0.0), 1.0)
    raise InvalidOption(f"progress: expected a fraction from 0 to 1, got {value!r}; divide by the total")


def _text(value: object, what: str, limit: int) -> str:
    if isinstance(value, str):
        return clean(value, limit)
    raise InvalidOption(f"{what}: expected text, got {value!r}")


# ── JobHandle ───────────────────────────────────────────────────────────────────────────────────────────────────


class JobHandle(Generic[R_co]):
    """A stored job in its caller's hands. Example: `greet.enqueue("Ada").result("10s")`

    `created` is False when a job with this id or unique key was there already.
    """

    __slots__ = ("_decode", "_home", "_id", "created")

    def __init__(self, home: Home, job_id: str, *, created: bool, decode: Callable[[str], R_co]) -> None:
        self._home = home
        self._id = job_id
        self._decode = decode
        self.created = created

    def __repr__(self) -> str:
        return f"JobHandle({self._id}, created={self.created})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    @property
    def id(self) -> UUID:
        return UUID(self._id)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the result. TimeoutError when it takes longer; JobFailed when it is dead or cancelled."""
        refuse_on_loop("result()", "await handle.aresult(…)")
        return self._decode(self._home.desk().result(self._id, _limit(timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the result. TimeoutError when it takes longer; JobFailed when it is dead or cancelled."""
        desk = await self._home.adesk()
        return self._decode(await desk.aresult(self._id, _limit(timeout)))

    def cancel(self, reason: str = "") -> bool:
        """Cancel it if it waits, ask it to stop if it runs. False: it had ended already."""
        refuse_on_loop("cancel()", "await handle.acancel(…)")
        return self._home.desk().cancel(self._id, _text(reason, "reason", 2000))

    async def acancel(self, reason: str = "") -> bool:
        """Cancel it if it waits, ask it to stop if it runs. False: it had ended already."""
        desk = await self._home.adesk()
        return await desk.acancel(self._id, _text(reason, "reason", 2000))


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def handle_of(home: Home, job_id: UUID | str, decode: Callable[[str], R_co]) -> JobHandle[R_co]:
    """The handle of a job that someone else enqueued."""
    return JobHandle(home, canonical(job_id), created=False, decode=decode)
