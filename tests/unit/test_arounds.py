"""An `@jobs.around` that swallows what the handler raised: it is what the handler raised that counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tenure import Fail, Job, JobHandle, Retry, Snooze, Tenure
from tenure.core.lifecycle import Lease, Released, State
from tenure.ports import JobView
from waiting import until

KINDS = pytest.mark.parametrize("kind", ["plain", "async, with a plain around", "async"])


class Shop:
    """An app whose @jobs.around swallows everything, and records it."""

    def __init__(self, path: Path, kind: str) -> None:
        self.jobs = Tenure(f"sqlite:///{path}/tenure.db", notifier="poll", retry=Retry(2, base="0s"))
        self.jobs.configure({"poll_interval": "50ms", "grace": "0s"})
        self.is_async = kind != "plain"
        self.caught: list[str] = []
        self.runs: list[int] = []
        self.begun, self.looked = threading.Event(), threading.Event()

        async def aswallows(job: Job) -> AsyncIterator[None]:
            with suppress(BaseException), self.kept():
                yield

        def swallows(job: Job) -> Iterator[None]:
            with suppress(BaseException), self.kept():
                yield

        self.jobs.around(aswallows if kind == "async" else swallows)
        self.around = "aswallows" if kind == "async" else "swallows"

    def kept(self) -> Any:
        shop = self

        class Kept:
            def __enter__(self) -> None: ...

            def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
                shop.caught.append("nothing" if kind is None else kind.__name__)

        return Kept()

    def task(self, plain: Any, coroutine: Any, **options: Any) -> Any:
        return self.jobs.task(name="handler", **options)(coroutine if self.is_async else plain)

    def raising(self, error: BaseException) -> Any:
        def plain() -> None:
            self.runs.append(1)
            raise error

        async def coroutine() -> None:
            self.runs.append(1)
            raise error

        return self.task(plain, coroutine)

    def stoppable(self) -> Any:
        """A handler that runs until it is stopped."""

        def plain(job: Job) -> None:
            self.runs.append(job.attempt)
            self.begun.set()
            while True:
                job.progress(0.5)
                self.looked.wait(0.01)

        async def coroutine(job: Job) -> None:
            self.runs.append(job.attempt)
            self.begun.set()
            await asyncio.sleep(3600)

        return self.task(plain, coroutine)

    def view(self, handle: JobHandle[Any]) -> JobView:
        view = self.jobs.client().store.get(str(handle.id))
        assert view is not None
        return view


@pytest.fixture
def shop(tmp_path: Path, kind: str) -> Iterator[Shop]:
    shop = Shop(tmp_path, kind)
    with shop.jobs:
        yield shop


@KINDS
def test_a_swallowed_failure_is_a_failure_that_names_the_around(shop: Shop) -> None:
    handle = shop.raising(ValueError("no such order")).enqueue()
    with shop.jobs.worker(concurrency=1):
        view = until(lambda: (view := shop.view(handle)).state is State.DEAD and view, "it is dead")
    assert isinstance(view, JobView)
    assert (view.failures, len(shop.runs), shop.caught) == (2, 2, ["ValueError"] * 2), "charged, and by its retry rule"
    headline, _, rest = (view.error or "").partition("\n")
    assert headline == (
        f"ValueError: no such order (@jobs.around {shop.around} swallowed it: raise it again there, or catch it in the "
        "handler)"
    )
    assert "raise error" in rest, "with the handler's traceback"


@KINDS
def test_what_is_no_failure_stays_what_it_is(shop: Shop) -> None:
    handle = shop.raising(Snooze("1h", "too early")).enqueue()
    with shop.jobs.worker(concurrency=1):
        until(lambda: shop.view(handle).state is State.SCHEDULED, "it is scheduled")
    assert (shop.view(handle).failures, shop.caught) == (0, ["Snooze"])


@KINDS
def test_a_final_failure_stays_final(shop: Shop) -> None:
    handle = shop.raising(Fail("no such order", final=True)).enqueue()
    with shop.jobs.worker(concurrency=1):
        until(lambda: shop.view(handle).state is State.DEAD, "it is dead")
    assert (shop.view(handle).failures, len(shop.runs)) == (1, 1)
    assert (shop.view(handle).error or "").startswith("no such order (@jobs.around ")


@KINDS
def test_a_job_that_waits_is_suspended_all_the_same(shop: Shop) -> None:
    @shop.jobs.task
    async def kid(n: int) -> int:
        return n

    def plain(job: Job) -> int:
        return sum(job.gather("kids", lambda: [kid.bind(1), kid.bind(2)]))

    async def coroutine(job: Job) -> int:
        return sum(await job.agather("kids", lambda: [kid.bind(1), kid.bind(2)]))

    handle = shop.task(plain, coroutine).enqueue()
    with shop.jobs.worker(concurrency=2):
        assert handle.result("60s") == 3
    assert (shop.view(handle).failures, shop.caught.count("Suspend")) == (0, shop.view(handle).attempt - 1)


@KINDS
def test_a_cancelled_job_is_cancelled(shop: Shop) -> None:
    handle = shop.stoppable().enqueue()
    with shop.jobs.worker(concurrency=1):
        assert shop.begun.wait(60)
        handle.cancel("not wanted")
        until(lambda: shop.view(handle).state is State.CANCELLED, "it is cancelled")
    assert shop.caught == ["CancelledError" if shop.is_async else "JobStopped"]


@KINDS
def test_a_lost_lease_is_no_failure(shop: Shop) -> None:
    handle = shop.stoppable().enqueue()
    store = shop.jobs.client().store
    with shop.jobs.worker(concurrency=1):
        assert shop.begun.wait(60)
        store.pause("default", paused=True)
        job = shop.view(handle)
        store.finish([(Lease(job.id, job.attempt, job.worker_id or ""), Released("taken back"))])
        until(lambda: shop.caught, "it was stopped")
    assert (shop.view(handle).state, shop.view(handle).failures, len(shop.runs)) == (State.QUEUED, 0, 1)


@pytest.mark.parametrize("kind", ["plain"])
def test_the_around_outside_of_it_sees_the_error_and_its_own_error_counts(shop: Shop) -> None:
    handle = shop.raising(ValueError("no such order")).using(retry=1).enqueue()
    jobs, inner = shop.jobs, shop.jobs._arounds[:]
    jobs._arounds.clear()

    @jobs.around
    def translates(job: Job) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise LookupError("translated") from error

    jobs._arounds.extend(inner)
    with jobs.worker(concurrency=1):
        until(lambda: shop.view(handle).state is State.DEAD, "it is dead")
    assert (shop.view(handle).error or "").startswith("LookupError: translated\n")
