"""`JobHandle`: the caller's reference to a stored job. It works through the `AppPort` of its task, which is the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol
from uuid import UUID

from tenure.core.durations import Duration, seconds
from tenure.core.ids import canonical
from tenure.ports import Draft, Enqueued
from tenure.tasks.job import checked_text
from tenure.tasks.loops import refuse_on_loop

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from tenure.config import Settings
    from tenure.core.retry import Retry

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


class ClientPort(Protocol):
    """Enqueues jobs and reads their results: the client of an open store."""

    def enqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]: ...

    async def aenqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]: ...

    def result(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed; TimeoutError, JobFailed or UnknownJob."""
        ...

    async def aresult(self, job_id: str, timeout: float | None) -> str: ...

    def cancel(self, job_id: str, reason: str) -> bool: ...

    async def acancel(self, job_id: str, reason: str) -> bool: ...


class AppPort(Protocol):
    """What tasks and handles need of their app. Its client is opened on first use."""

    @property
    def settings(self) -> Settings: ...

    @property
    def retry(self) -> Retry:
        """The retry policy of tasks that declare none."""
        ...

    @property
    def resources(self) -> Mapping[type, object]:
        """The resources available to a detached job: empty except in `testing(resources=…)`."""
        ...

    def client(self) -> ClientPort: ...

    async def aclient(self) -> ClientPort: ...


class JobHandle(Generic[R_co]):
    """The caller's reference to a stored job. Example: `greet.enqueue("Ada").result("10s")`

    `created` is False when a job with this id or unique key already existed.
    """

    __slots__ = ("_app", "_decode", "_id", "created")

    def __init__(self, app: AppPort, job_id: str, *, created: bool, decode: Callable[[str], R_co]) -> None:
        self._app = app
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
        """Wait for the result. Raises TimeoutError when it takes longer, JobFailed when it is dead or cancelled."""
        refuse_on_loop("result()", "await handle.aresult(…)")
        return self._decode(self._app.client().result(self._id, _limit(timeout)))

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the result. Raises TimeoutError when it takes longer, JobFailed when it is dead or cancelled."""
        client = await self._app.aclient()
        return self._decode(await client.aresult(self._id, _limit(timeout)))

    def cancel(self, reason: str = "") -> bool:
        """Cancel the job if it has not started; request a stop if it is running. False: it had already ended."""
        refuse_on_loop("cancel()", "await handle.acancel(…)")
        return self._app.client().cancel(self._id, checked_text(reason, "reason", 2000))

    async def acancel(self, reason: str = "") -> bool:
        """Cancel the job if it has not started; request a stop if it is running. False: it had already ended."""
        client = await self._app.aclient()
        return await client.acancel(self._id, checked_text(reason, "reason", 2000))


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, "timeout")


def handle_of(app: AppPort, job_id: UUID | str, decode: Callable[[str], R_co]) -> JobHandle[R_co]:
    """The handle of a job that was enqueued elsewhere."""
    return JobHandle(app, canonical(job_id), created=False, decode=decode)
