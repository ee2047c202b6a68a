"""The engine's calls have threads of their own: what the program does in those of `asyncio.to_thread` delays none."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure import Job, Tenure
from tenure.errors import UnknownTask
from tenure.tasks.loops import aside, settled

SECONDS = 20.0


@pytest.fixture
def jobs(tmp_path: Path) -> Tenure:
    return Tenure(f"sqlite:///{tmp_path}/tenure.db")


@asynccontextmanager
async def full() -> AsyncIterator[None]:
    """The program keeps every thread of this loop's pool."""
    over, loop = threading.Event(), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    kept = loop.run_in_executor(None, over.wait)
    try:
        yield
    finally:
        over.set()
        await kept


# ── each call ──


async def result(jobs: Tenure) -> None:
    with pytest.raises(TimeoutError, match="no live worker"):  # it asks the store for the workers
        await (await jobs.aenqueue("greet", unchecked=True)).aresult("0s")


async def cancel(jobs: Tenure) -> None:
    assert await (await jobs.aenqueue("greet", unchecked=True)).acancel()


async def signal(jobs: Tenure) -> None:
    @jobs.task(signals={"approved": bool})
    def greet(job: Job) -> None: ...

    assert await (await greet.aenqueue()).asignal("approved", True)


async def once(jobs: Tenure) -> None:
    assert await jobs.aonce("key", lambda: 7) == 7


async def name(jobs: Tenure) -> None:
    with pytest.raises(UnknownTask, match="no worker has used this store"):
        await jobs.abind("greet")


async def limits(jobs: Tenure) -> None:
    assert await jobs.limits.alist() == ()


async def transaction(jobs: Tenure) -> None:
    async with jobs.atransaction() as tx:
        await jobs.aenqueue("greet", unchecked=True, tx=tx)


async def flow(jobs: Tenure) -> None:
    async with jobs.flow("all") as made:
        made.add(await jobs.abind("greet", unchecked=True))
    assert (await made.handle.astatus()).live == 1
    assert await made.handle.areplay() == 0
    assert await made.handle.acancel() == 1


async def nothing(jobs: Tenure) -> None:
    """Only open and close it."""


@pytest.mark.parametrize("call", [nothing, result, cancel, signal, once, name, limits, transaction, flow])
def test_a_call_is_made_although_the_program_keeps_all_threads(
    jobs: Tenure, call: Callable[[Tenure], Coroutine[Any, Any, None]]
) -> None:
    async def opened() -> None:
        async with jobs:
            await call(jobs)

    async def main() -> None:
        async with full():
            await asyncio.wait_for(opened(), SECONDS)

    asyncio.run(main())


def test_a_job_records_what_it_did_once_although_handlers_keep_all_threads(jobs: Tenure) -> None:
    jobs.configure({"poll_interval": "50ms"})

    @jobs.task
    async def pay(job: Job) -> int:
        return await job.aonce("pay", lambda: 7)

    async def main() -> int:
        async with full(), jobs.worker():
            return await (await pay.aenqueue()).aresult("20s")

    assert asyncio.run(main()) == 7


def test_a_cancelled_job_goes_on_only_when_its_record_has_landed() -> None:
    """Its attempt would end before that, the record would be refused, and what it did would be done again."""
    started, go = threading.Event(), threading.Event()
    records: list[str] = []

    def record(key: str, value: str) -> str:
        started.set()
        assert go.wait(60)
        records.append(key)
        return value

    task = SimpleNamespace(dump_once=lambda key, value: value, load_once=lambda key, text, fn: text)
    job: Job = Job(cast("Any", SimpleNamespace(task=task, recall=lambda key: None, record=record)))

    async def main() -> list[str]:
        caller = asyncio.create_task(job.aonce("pay", lambda: "paid"))
        caller.add_done_callback(lambda _: found.extend(records))
        await asyncio.to_thread(started.wait)
        caller.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        go.set()
        await asyncio.wait([caller])
        assert caller.cancelled()
        return found

    found: list[str] = []
    assert asyncio.run(main()) == ["pay"]


# ── the threads ──


def test_a_call_has_the_context_of_its_caller() -> None:
    about = ContextVar("about", default="nothing")

    async def main() -> list[str]:
        about.set("the caller")
        return [await aside(about.get), await settled(about.get)]

    assert asyncio.run(main()) == ["the caller"] * 2


def test_a_caller_that_is_cancelled_again_still_waits_for_its_call() -> None:
    """As an embedded worker stops a job whose loop is ending."""
    go = threading.Event()

    async def main() -> tuple[bool, list[int]]:
        landed: list[int] = []

        def call() -> None:
            assert go.wait(60)
            landed.append(1)

        caller = asyncio.create_task(settled(call))
        for _ in range(3):
            await asyncio.sleep(0)
            caller.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        left = caller.done()
        go.set()
        await asyncio.wait([caller])
        assert caller.cancelled()
        return left, landed

    assert asyncio.run(main()) == (False, [1])


PROGRAM = """
import asyncio, os
from tenure.tasks.loops import aside

assert asyncio.run(aside(lambda: 1)) == 1
if not (child := os.fork()):
    assert asyncio.run(aside(lambda: 2)) == 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(asyncio.run(aside(lambda: 3)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_child_of_a_fork_has_threads_of_its_own() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)

    assert (found.stdout, found.returncode) == ("3\n", 0), found.stderr


def test_a_call_that_is_given_up_after_the_main_threads_end_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools refuse it then, as here, and it has a thread of its own."""
    monkeypatch.setattr("concurrent.futures.thread._shutdown", True)
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    began, goes_on, ran = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        goes_on.wait(30)
        ran.set()

    async def main() -> None:
        waiting = asyncio.ensure_future(aside(call))
        while not began.is_set():
            await asyncio.sleep(0)
        (thread,) = (each for each in threading.enumerate() if each.name == "tenure-late")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        goes_on.set()
        thread.join(30)

    asyncio.run(main())
    assert ran.is_set()
    assert broken == []
