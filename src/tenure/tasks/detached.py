"""How a job of `.call()` waits: it has no store, so it runs what it gathers at once, and can't wait for others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import isawaitable
from typing import Any, NoReturn, cast

from tenure.errors import TenureError
from tenure.tasks.ended import Ended
from tenure.tasks.task import NewJob


class DetachedWaits:
    """The waits of a detached attempt."""

    def __init__(self, task: str) -> None:
        self._task = task

    def gather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]:
        return [_ran(job, ended=ended) for job in cast("Iterable[NewJob[Any]]", fn())]

    async def agather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]:
        jobs = fn()
        listed = cast("Iterable[NewJob[Any]]", await jobs if isawaitable(jobs) else jobs)
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
    args, keywords = job.of.arguments.load(job.draft().payload)
    try:
        value = job.of.call(*args, **keywords)
    except Exception as error:
        if not ended:
            raise
        return _dead(error)
    return Ended("completed", value=value) if ended else value


async def _aran(job: NewJob[Any], *, ended: bool) -> Any:
    args, keywords = job.of.arguments.load(job.draft().payload)
    try:
        value = await job.of.acall(*args, **keywords)
    except Exception as error:
        if not ended:
            raise
        return _dead(error)
    return Ended("completed", value=value) if ended else value


def _dead(error: Exception) -> Ended[Any]:
    return Ended("dead", error=f"{type(error).__name__}: {error}")
