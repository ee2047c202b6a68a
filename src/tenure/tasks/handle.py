"""`JobHandle`: the caller's reference to a stored job. It works through the `AppPort` of its task, which is the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self
from uuid import UUID

from tenure.codecs import Codec
from tenure.core.durations import Duration, seconds
from tenure.core.ids import canonical
from tenure.core.lifecycle import ENDED
from tenure.ports import Draft, Enqueued, Notifier, Status, Store, Update
from tenure.tasks.hints import HANDLE, foreign_names
from tenure.tasks.loops import aside, refuse_on_loop
from tenure.tasks.texts import checked_text

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from tenure.config import Settings
    from tenure.core.retry import Retry

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class WatchPort(Protocol):
    """How a client waits for jobs."""

    def refuse_endless(self, what: str) -> None:
        """In `jobs.testing()`, where only this thread could end it, raise TimeoutError."""
        ...


class ClientPort(Protocol):
    """Enqueues jobs and reads their results: the client of an open store."""

    store: Store
    notifier: Notifier

    @property
    def watch(self) -> WatchPort: ...

    def enqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]: ...

    def joins(self) -> bool:
        """Does `enqueue` without `tx` join a transaction that the calling code has open?"""
        ...

    def enqueue_apart(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        """Never with a transaction that the calling code has open."""
        ...

    async def aenqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]: ...

    def result(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed; TimeoutError, JobFailed or UnknownJob."""
        ...

    async def aresult(self, job_id: str, timeout: float | None) -> str: ...

    def update(self, job_id: str, seen: str = "") -> Update:
        """The job's update, once its mark is no longer `seen`; UnknownJob if it does not exist."""
        ...

    async def aupdate(self, job_id: str, seen: str = "") -> Update: ...

    def cancel(self, job_id: str, reason: str) -> bool: ...

    async def acancel(self, job_id: str, reason: str) -> bool: ...

    def signal(self, job_id: str | None, key: str, text: str) -> bool:
        """Send this JSON to the job, or with None to all that wait for the key. False: it does not arrive."""
        ...

    async def asignal(self, job_id: str | None, key: str, text: str) -> bool: ...

    def refuse_beside_transaction(self, what: str) -> None:
        """Raise StoreError inside `jobs.transaction()`."""
        ...


class KnownTask(Protocol):
    """The task of a job, with its signals."""

    @property
    def name(self) -> str: ...
    @property
    def signals(self) -> Mapping[str, Any]: ...
    @property
    def decode_result(self) -> Callable[[str], Any]: ...


class KnownTasks(Protocol):
    """The tasks whose code is in this process."""

    def find(self, name: str) -> KnownTask | None:
        """The task of this name or alias."""
        ...


class AppPort(Protocol):
    """What tasks and handles need of their app. Its client is opened on first use."""

    @property
    def settings(self) -> Settings: ...

    @property
    def codec(self) -> Codec | None:
        """What encrypts the values of its jobs. With one, a key made of arguments is stored as its digest."""
        ...

    @property
    def retry(self) -> Retry:
        """The retry policy of tasks that declare none."""
        ...

    @property
    def resources(self) -> Mapping[type, object]:
        """The resources available to a detached job: empty except in `testing(resources=…)`."""
        ...

    @property
    def tasks(self) -> KnownTasks: ...

    def client(self) -> ClientPort: ...

    async def aclient(self) -> ClientPort: ...


@foreign_names("a JobHandle", HANDLE)
class JobHandle(Generic[R_co]):
    """The caller's reference to a stored job. Example: `greet.enqueue("Ada").result("10s")`

    `created` is False when a job with this id or unique key already existed.
    """

    __slots__ = ("_decode", "_id", "_of", "app", "created")

    def __init__(
        self,
        app: AppPort,
        job_id: str,
        *,
        created: bool,
        decode: Callable[[str], R_co],
        of: KnownTask | None = None,
    ) -> None:
        self.app = app
        self._id = job_id
        self._decode = decode
        self._of = of  #: its task; None: not known
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
        """Wait for the result. Raises TimeoutError when it takes longer, JobFailed when it is dead or cancelled."""
        refuse_on_loop("result()", "await handle.aresult(…)")
        return self._decode(self.app.client().result(self._id, _limit(timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the result. Raises TimeoutError when it takes longer, JobFailed when it is dead or cancelled."""
        client = await self.app.aclient()
        return self._decode(await client.aresult(self._id, _limit(timeout)))

    def status(self) -> Status:
        """How far the job is. Example: `handle.status().progress`. Raises UnknownJob."""
        refuse_on_loop("status()", "await handle.astatus()")
        return _shown(self.app.client().update(self._id))

    async def astatus(self) -> Status:
        """How far the job is. Example: `(await handle.astatus()).progress`. Raises UnknownJob."""
        client = await self.app.aclient()
        return _shown(await client.aupdate(self._id))

    def updates(self) -> Updates:
        """The job's status now, and after each change, until it has ended. For `for` and for `async for`.

        Example: `async for status in handle.updates(): print(status.state, status.progress)`. Changes are looked for
        every 0.2 s; of several in between only the last is seen. Raises UnknownJob if the job is deleted meanwhile.
        """
        return Updates(self.app, self._id)

    def cancel(self, reason: str = "") -> bool:
        """Cancel the job if it has not started; request a stop if it is running. False: it had already ended."""
        refuse_on_loop("cancel()", "await handle.acancel(…)")
        return self.app.client().cancel(self._id, checked_text(reason, "reason", 2000))

    async def acancel(self, reason: str = "") -> bool:
        """Cancel the job if it has not started; request a stop if it is running. False: it had already ended."""
        client = await self.app.aclient()
        return await client.acancel(self._id, checked_text(reason, "reason", 2000))

    def signal(self, name: str, value: object = None, /) -> bool:
        """Send a value to this job, once. Example: `approve.handle(id).signal("approved", Approval(by="ada"))`

        `job.expect(name, …)` returns it, even if it comes before the job asks. The value is checked against the type
        in `@jobs.task(signals=…)`. False: one of this name was sent before, or the job has ended. Raises
        InvalidArguments, UnknownJob, and InvalidOption for a name that the task does not declare.
        """
        refuse_on_loop("signal()", "await handle.asignal(…)")
        client = self.app.client()
        key, text = self._signal(client, name, value)
        return client.signal(self._id, key, text)

    async def asignal(self, name: str, value: object = None, /) -> bool:
        """Send a value to this job, once. Example: `await approve.handle(id).asignal("approved", Approval("ada"))`"""
        client = await self.app.aclient()
        key, text = await aside(partial(self._signal, client, name, value))
        return await client.asignal(self._id, key, text)

    def _signal(self, client: ClientPort, name: str, value: object) -> tuple[str, str]:
        """The key of a signal, and its value as JSON."""
        from tenure.tasks.signals import own_key, own_text, text_of

        task = self._of
        if task is None:
            label = _shown(client.update(self._id)).task
            task = self.app.tasks.find(label)
            if task is None:  # another process has its code: there the value is checked as it is read
                return own_key(name), text_of(self.app, f"{label}: signal {name!r}", value)
        return own_key(name), own_text(self.app, task.name, task.signals, name, value)


class Updates:
    """The changes of a job, from `handle.updates()`."""

    __slots__ = ("_app", "_id", "_last")

    def __init__(self, app: AppPort, job_id: str) -> None:
        self._app = app
        self._id = job_id
        self._last: Update | None = None

    def __iter__(self) -> Self:
        refuse_on_loop("for … in handle.updates()", "async for … in handle.updates()")
        return self

    def __next__(self) -> Status:
        if self._is_over():
            raise StopIteration
        return self._next(self._app.client().update(self._id, self._mark()))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Status:
        if self._is_over():
            raise StopAsyncIteration
        client = await self._app.aclient()
        return self._next(await client.aupdate(self._id, self._mark()))

    def _is_over(self) -> bool:
        return self._last is not None and _shown(self._last).state in ENDED

    def _mark(self) -> str:
        return "" if self._last is None else self._last.mark

    def _next(self, update: Update) -> Status:
        self._last = update
        return _shown(update)


def _shown(update: Update) -> Status:
    assert update.status is not None  # the client raises UnknownJob
    return update.status


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def handle_of(
    app: AppPort, job_id: UUID | str, decode: Callable[[str], R_co], of: KnownTask | None = None
) -> JobHandle[R_co]:
    """The handle of a job that was enqueued elsewhere."""
    return JobHandle(app, canonical(job_id), created=False, decode=decode, of=of)
