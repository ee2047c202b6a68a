"""The Job of `.call()`: it has no store, so it runs what it gathers at once, and can't wait for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any, NoReturn, TypeVar, cast

from tenure.core.ids import new_id
from tenure.errors import InvalidOption, TenureError
from tenure.ports import Claimed
from tenure.tasks.ended import Ended
from tenure.tasks.gathered import Gathered, new_jobs
from tenure.tasks.job import Codec, Job, Stopping, WaitsPort
from tenure.tasks.task import NewJob, Task

T = TypeVar("T")


def detached_job(task: Task[..., Any], payload: str) -> Job[Any]:
    """The Job of one call."""
    return Job(DetachedAttempt(task, payload, task.app.resources))


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
        self.waits: WaitsPort = DetachedWaits(task.name)

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


class DetachedWaits:
    """The waits of a detached attempt."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._gathered = Gathered()

    def gather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]:
        with self._gathered.once(key):
            return [_ran(job, ended=ended) for job in new_jobs(f"job.gather({key!r})", fn())]

    async def agather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]:
        with self._gathered.once(key):
            jobs = fn()
            listed = new_jobs(f"job.agather({key!r})", await jobs if isawaitable(jobs) else jobs)
            return [await _aran(job, ended=ended) for job in listed]

    def join(self, target: object) -> NoReturn:
        raise self._refusal("join")

    async def ajoin(self, target: object) -> NoReturn:
        raise self._refusal("ajoin")

    def expect(self, signal: str, kind: Any, **options: object) -> NoReturn:
        raise self._refusal("expect")

    async def aexpect(self, signal: str, kind: Any, **options: object) -> NoReturn:
        raise self._refusal("aexpect")

    def _refusal(self, verb: str) -> TenureError:
        return TenureError(
            f"{self._task}: job.{verb}(…) needs a store, and .call() has none; run the job in `with jobs.testing()`"
        )


def _ran(job: NewJob[Any], *, ended: bool) -> Any:
    args, keywords = job.of.arguments.load(job.draft().payload, bind=True)
    try:
        value = job.of.call(*args, **keywords)
    except Exception as error:
        if not ended:
            raise
        return _dead(error)
    return Ended("completed", value=value) if ended else value


async def _aran(job: NewJob[Any], *, ended: bool) -> Any:
    args, keywords = job.of.arguments.load(job.draft().payload, bind=True)
    try:
        value = await job.of.acall(*args, **keywords)
    except Exception as error:
        if not ended:
            raise
        return _dead(error)
    return Ended("completed", value=value) if ended else value


def _dead(error: Exception) -> Ended[Any]:
    return Ended("dead", error=f"{type(error).__name__}: {error}")
