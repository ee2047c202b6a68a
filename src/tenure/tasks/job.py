"""`Job`: a handler's view of the job it runs. It is implemented by a `JobBackend`: in a worker, an attempt."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, cast
from uuid import UUID

import msgspec

from tenure.core.ids import new_id
from tenure.core.text import clean
from tenure.errors import InvalidOption
from tenure.ports import Claimed
from tenure.tasks.hints import JOB, foreign_names
from tenure.tasks.loops import awaited, refuse_on_loop, settled

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # `object` and not Any: with Any, mypy types every handler with a bare Job as Task[Any, Any].
    C = TypeVar("C", default=object)
else:
    from typing import TypeVar

    C = TypeVar("C")

T = TypeVar("T")

Stopping = Literal["cancel", "timeout", "shutdown", "lease_lost"]

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


def valid_key(key: object, what: str) -> str:
    """The unchanged unique or once key. Raises InvalidOption that says what a valid key looks like."""
    if isinstance(key, str) and 1 <= len(key) <= 200 and not _CONTROL.search(key):
        return key
    got = f"{len(key)} characters" if isinstance(key, str) and len(key) > 200 else repr(key)
    raise InvalidOption(f"{what}: expected 1 to 200 characters without control characters, got {got}")


# ── The backend of a Job ────────────────────────────────────────────────────────────────────────────────────────


class Codec(Protocol):
    """What a Job needs of its task: its names, and the conversion of values to and from stored JSON."""

    @property
    def name(self) -> str: ...

    @property
    def queue(self) -> str: ...

    def encode_result(self, value: object) -> str: ...

    def dump_checkpoint(self, value: object) -> str: ...

    def load_checkpoint(self, text: str) -> Any: ...

    def dump_once(self, key: str, value: object) -> str: ...

    def load_once(self, key: str, text: str, fn: Callable[[], object]) -> Any: ...


class JobBackend(Protocol):
    """One execution of a job. `report` never blocks; the others may, so they must not be called on an event loop.

    In a thread, `report`, `flush`, `recall` and `record` raise JobStopped when the attempt was asked to stop, and
    LeaseLost when it no longer owns the job.
    """

    claimed: Claimed

    @property
    def task(self) -> Codec: ...

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
        """Record the value if it is the first of this key; return the first one."""
        ...

    def finish(self, result: str, tx: object) -> None: ...

    def resource(self, kind: type[T]) -> T: ...


class DetachedAttempt:
    """The backend of `.call()`: it has no store, so progress is discarded and `once` lasts for the call only."""

    def __init__(self, task: Codec, payload: str, resources: Mapping[type, object]) -> None:
        now = int(datetime.now(UTC).timestamp() * 1000)
        self.claimed = Claimed(
            new_id(), 1, task.name, task.queue, payload, 0, 0, "{}", None, None, None, now, expired=False
        )
        self.task = task
        self.stopping: Stopping | None = None
        self._resources = resources
        self._once: dict[str, str] = {}

    def report(self, fraction: float | None, stage: str | None, message: str | None, checkpoint: str | None) -> None:
        """Progress is discarded."""

    def flush(self) -> None:
        """There is nothing to flush."""

    async def aflush(self) -> None:
        """There is nothing to flush."""

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


@foreign_names("a Job", JOB)
class Job(Generic[C]):
    """The job under this attempt's lease, passed as the first argument to a handler that declares it.

    `Job[int]` types its checkpoint. Example: `def resize(job: Job[int], folder: str) -> None: ...`
    """

    __slots__ = ("_attempt",)

    def __init__(self, attempt: JobBackend) -> None:
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
        return _decode_meta(self._attempt.claimed.meta)

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
        await self._attempt.aflush()

    def once(self, key: str, fn: Callable[[], T]) -> T:
        """The first result of `fn` under this key of this job, whichever attempt produced it.

        It is stored as JSON and decoded by the return annotation of `fn`. After a crash between the effect and its
        record `fn` runs again: pass an idempotency key to the other system too, such as `job.id`.
        """
        refuse_on_loop("job.once(…)", "await job.aonce(…)")
        task, key = self._attempt.task, valid_key(key, "once key")
        stored = self._attempt.recall(key)
        if stored is None:
            stored = self._attempt.record(key, task.dump_once(key, fn()))
        value: T = task.load_once(key, stored, fn)
        return value

    async def aonce(self, key: str, fn: Callable[[], Awaitable[T]]) -> T:
        """The first result of `await fn()` under this key of this job, whichever attempt produced it."""
        from asyncio import to_thread

        task, key = self._attempt.task, valid_key(key, "once key")
        stored = await to_thread(self._attempt.recall, key)
        if stored is None:
            stored = await to_thread(self._attempt.record, key, task.dump_once(key, await fn()))
        value: T = task.load_once(key, stored, fn)
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
    # Sums of small steps can reach 1.0000000000000002, which must not fail a job.
    if isinstance(value, int | float) and -0.001 <= value <= 1.001:
        return min(max(float(value), 0.0), 1.0)
    raise InvalidOption(f"progress: expected a fraction from 0 to 1, got {value!r}; divide by the total")


def checked_text(value: object, what: str, limit: int) -> str:
    if isinstance(value, str):
        return clean(value, limit)
    raise InvalidOption(f"{what}: expected text, got {value!r}")
