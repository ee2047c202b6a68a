"""What happens in its program stops no worker: full pools, missing threads and files, stuck code, broken logging."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenure import Job, Tenure
from tenure.errors import StoreAway, StoreError
from tenure.events import Events
from tenure.maintenance.maintenance import Maintenance
from tenure.stores.memory import MemoryStore
from tenure.stores.sqlite import SqliteStore
from tenure.worker.access import StoreAccess
from waiting import until

SECONDS = 60.0


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Tenure]:
    with Tenure(f"sqlite:///{tmp_path}/tenure.db") as app:
        app.configure({"lease": "1s", "poll_interval": "50ms", "grace": "0s"})
        yield app


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Lets code end that nothing else ends."""
    event = threading.Event()
    yield event
    event.set()


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def away(*_: object, **__: object) -> Any:
    raise StoreAway("out of reach")


def worker_ids(jobs: Tenure) -> set[str]:
    return {each.identity.id for each in jobs.client().store.workers()} or {"none"}


def declare_dead(jobs: Tenure) -> set[str]:
    """Take the lease of all workers; their ids."""
    ids = [each.identity.id for each in jobs.client().store.workers()]
    assert ids
    jobs.client().store.declare_dead(ids)
    return set(ids)


def test_steps_of_flows_begin_while_a_handler_fills_the_threads_of_to_thread(
    jobs: Tenure, over: threading.Event
) -> None:
    begun = threading.Event()

    @jobs.task
    async def download() -> None:
        begun.set()
        await asyncio.gather(*(asyncio.to_thread(over.wait, SECONDS) for _ in range(100)))

    @jobs.task(timeout="30s", retry=1)
    async def number(n: int) -> int:
        return n

    @jobs.task(timeout="30s", retry=1)
    async def add(job: Job, one: int, other: int) -> int:
        job.progress(0.5)
        await job.aflush()
        return one + other

    with jobs.worker(concurrency=3):
        blocking = download.enqueue()
        assert begun.wait(SECONDS)
        with jobs.flow("sum") as flow:
            total = flow.add(add.bind(flow.add(number.bind(1)).output, flow.add(number.bind(2)).output))
        assert total.handle.result("60s") == 3
        assert not over.is_set()
        over.set()
        blocking.result("60s")


def test_a_worker_without_a_thread_to_spare_stores_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads were started with the first write, and where none could be started the worker ended."""
    store = MemoryStore()

    async def story() -> set[int]:
        access = StoreAccess(store, Events())
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        try:
            return {await call(lambda: 1) for call in (access.ask, access.write, access.beside)}
        finally:
            monkeypatch.undo()
            access.close()

    assert asyncio.run(story()) == {1}


def test_a_worker_that_can_start_no_thread_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        StoreAccess(MemoryStore(), Events())

    with pytest.raises(RuntimeError, match="new thread"):
        asyncio.run(story())


def test_a_filter_of_the_program_that_raises_ends_no_duty(
    jobs: Tenure, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class NeedsRequest(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise LookupError("working outside of request context")

    @jobs.task
    def quick() -> int:
        return 1

    jobs.schedule("0 6 * * *", tz="UTC")(quick)
    failing, works = threading.Event(), Maintenance.promote

    def fails_once(maintenance: Maintenance, limit: int) -> Any:
        if failing.is_set():
            return works(maintenance, limit)
        failing.set()
        raise StoreError("the disk is full, for a moment")

    monkeypatch.setattr(Maintenance, "promote", fails_once)
    handler = logging.StreamHandler()
    handler.addFilter(NeedsRequest())
    logging.getLogger().addHandler(handler)
    try:
        with jobs.worker():
            assert failing.wait(SECONDS)
            assert quick.enqueue().result("60s") == 1
    finally:
        logging.getLogger().removeHandler(handler)
    assert "working outside of request context" in capfd.readouterr().err


def test_code_that_does_not_stop_after_its_lease_was_lost_keeps_its_slot_and_no_other(
    jobs: Tenure, over: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenure.worker.embedded.STOP_SECONDS", 0.1)
    monkeypatch.setattr("tenure.worker.claims.ALONE_SECONDS", 0.05)  # it waits to run alone, and yields to itself
    running, most, begun = [0], [0], threading.Event()

    @jobs.task
    def stuck() -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        begun.set()
        over.wait(SECONDS)
        running[0] -= 1
        return 1

    @jobs.task
    def quick() -> int:
        return 2

    with jobs.worker(concurrency=2):
        held = stuck.enqueue()
        assert begun.wait(SECONDS)
        lost = declare_dead(jobs)
        assert quick.enqueue().result("60s") == 2
        assert lost.isdisjoint(each.identity.id for each in jobs.client().store.workers())
        assert [quick.enqueue().result("60s") for _ in range(10)] == [2] * 10
        assert not over.is_set()
        over.set()
        assert held.result("60s") == 1
    assert most == [1]
    assert f"keeps its slots: stuck {held.id}" in caplog.text


def test_a_job_whose_lost_code_runs_on_takes_no_second_slot_and_is_left_to_other_workers(
    jobs: Tenure, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.embedded.STOP_SECONDS", 0.1)
    monkeypatch.setattr("tenure.worker.attempts.LEFT_SECONDS", 0.1)
    begun, runs = threading.Event(), list[int]()

    @jobs.task
    def stuck(job: Job) -> int:
        runs.append(job.attempt)
        begun.set()
        over.wait(SECONDS if job.attempt == 1 else 0)
        return 1

    @jobs.task
    def quick() -> int:
        return 2

    with jobs.worker(concurrency=2):
        held = stuck.enqueue()
        assert begun.wait(SECONDS)
        with monkeypatch.context() as outage:
            outage.setattr(SqliteStore, "renew", away)
            gone = {each.identity.id for each in jobs.client().store.workers()}
            until(lambda: gone.isdisjoint(worker_ids(jobs)), "it to begin again", SECONDS)
        until(lambda: held.status().attempt >= 3, "it to be claimed here, and put off", SECONDS)
        assert [quick.enqueue().result("60s") for _ in range(5)] == [2] * 5
        over.set()
        assert held.result("60s") == 1
    assert (runs[0], len(runs)) == (1, 2)
    job = jobs.client().store.get(str(held.id))
    assert job is not None
    assert job.crashes_total == 0


def test_code_of_a_blocked_loop_that_ends_before_its_worker_begins_again_keeps_no_slot(
    jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.embedded.STOP_SECONDS", 0.1)

    @jobs.task
    async def slow() -> None:
        await asyncio.sleep(SECONDS)

    @jobs.task
    async def quick() -> int:
        return 2

    async def story() -> list[int]:
        async with jobs.worker(concurrency=1):
            lost = await slow.aenqueue()
            while (await lost.astatus()).state != "processing":
                await asyncio.sleep(0.01)
            before = worker_ids(jobs)
            threading.Event().wait(4.0)  # the loop is blocked for several leases
            while not before.isdisjoint(worker_ids(jobs)):
                await asyncio.sleep(0.01)
            await lost.acancel()
            return [await (await quick.aenqueue()).aresult("60s") for _ in range(3)]

    assert asyncio.run(asyncio.wait_for(story(), SECONDS * 2)) == [2] * 3


def test_a_block_that_ends_meanwhile_waits_for_code_that_did_not_stop(
    jobs: Tenure, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.embedded.STOP_SECONDS", 0.1)
    begun, ended = threading.Event(), threading.Event()

    @jobs.task
    def stuck() -> None:
        begun.set()
        over.wait(SECONDS)
        ended.set()

    @jobs.task
    def quick() -> int:
        return 2

    with ThreadPoolExecutor(1) as threads, jobs.worker(concurrency=2):
        stuck.enqueue()
        assert begun.wait(SECONDS)
        declare_dead(jobs)
        assert quick.enqueue().result("60s") == 2
        threads.submit(lambda: (threading.Event().wait(0.3), over.set()))
    assert ended.is_set()


def test_a_block_does_not_wait_for_a_thread_of_a_job_that_has_ended(
    jobs: Tenure, over: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    ended, freed = threading.Event(), list[str]()

    def deaf() -> None:
        over.wait(SECONDS)
        ended.set()

    async def generated() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            freed.append("a generator")

    async def waits() -> None:
        try:
            await asyncio.sleep(SECONDS)
        finally:
            freed.append("a task")

    @jobs.task(timeout="100ms", retry=1)
    async def download() -> None:
        left.append(asyncio.create_task(waits()))
        left.append(generator := generated())
        await anext(generator)
        await asyncio.to_thread(deaf)

    left = list[object]()
    with jobs.worker():
        job = download.enqueue()
        until(lambda: job.status().state == "dead", "its time to be up")

    assert not ended.is_set()
    assert "code of jobs that have ended still runs in 1 thread of asyncio.to_thread" in caplog.text
    assert freed == ["a task", "a generator"]


def test_a_block_waits_a_moment_for_the_last_calls_of_its_handlers(
    jobs: Tenure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenure.worker.worker.END_SECONDS", SECONDS)
    begun, ended = threading.Event(), threading.Event()

    def last() -> None:
        begun.set()
        leaves.wait(SECONDS)
        ended.set()

    @jobs.task
    async def notify() -> None:
        asyncio.get_running_loop().run_in_executor(None, last)
        await asyncio.to_thread(begun.wait, SECONDS)

    leaves = threading.Event()
    with jobs.worker():
        notify.enqueue().result("60s")
        leaves.set()

    assert ended.is_set()
    assert caplog.text == ""


def test_a_block_that_ends_while_the_store_hangs_does_not_wait_for_its_other_calls(
    jobs: Tenure, over: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenure.worker.worker.SETTLE_SECONDS", 0.1)
    silent, hanging, answered = threading.Event(), set[str](), list[str]()

    def hangs(verb: str) -> None:
        whole = getattr(SqliteStore, verb)

        def call(*args: object, **options: object) -> object:
            if not silent.is_set():
                return whole(*args, **options)
            hanging.add(verb)
            over.wait(SECONDS)
            answered.append(verb)
            raise StoreAway("no answer")

        monkeypatch.setattr(SqliteStore, verb, call)

    for verb in ("promote", "prune", "renew", "settle"):
        hangs(verb)
    monkeypatch.setattr(SqliteStore, "finish", away)

    @jobs.task
    def download() -> None:
        silent.set()

    with jobs.worker():
        download.enqueue()
        until(lambda: hanging >= {"promote", "renew"}, "its duties to wait for the store")

    assert answered == []
    assert "settle" not in hanging  # it would not be answered, either
    assert "1 outcome not stored" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize("lacking", ["files", "threads"])
def test_a_worker_that_begins_again_waits_for_files_and_threads(
    lacking: str, jobs: Tenure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenure.worker.embedded.AGAIN_SECONDS", 0.02)
    jobs.configure({"notifier": "postgresql://nobody@127.0.0.1:1/x"})  # its listener needs both, whatever answers
    tries = 0

    def none_left(*_: object) -> Any:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "Too many open files") if lacking == "files" else RuntimeError("no new thread")

    @jobs.task
    def quick() -> int:
        return 1

    with jobs.worker():
        assert quick.enqueue().result("60s") == 1
        files = len(list(Path("/proc/self/fd").iterdir()))
        what = "os.pipe" if lacking == "files" else "tenure.notifiers.postgres.Thread.start"
        with monkeypatch.context() as patch:
            patch.setattr(f"tenure.notifiers.inbox.{what}" if lacking == "files" else what, none_left)
            declare_dead(jobs)
            until(lambda: tries > 3, "more than one try", SECONDS)
            left = len(list(Path("/proc/self/fd").iterdir()))
        assert quick.enqueue().result("60s") == 1
    assert left < files + 6, "what was opened for a try was not closed"
    assert "can't begin again yet" in caplog.text


def test_an_embedded_worker_no_longer_yields_to_a_job_that_is_gone(
    jobs: Tenure, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.claims.ALONE_SECONDS", 0.1)
    begun = threading.Event()

    @jobs.task
    def long() -> int:
        begun.set()
        over.wait(SECONDS)
        return 1

    @jobs.task(isolation="process")
    def alone() -> None: ...

    @jobs.task
    def quick() -> int:
        return 2

    with jobs.worker(concurrency=3):
        first = long.enqueue()
        assert begun.wait(SECONDS)
        waits = alone.enqueue()
        store = jobs.client().store
        quick.enqueue().result("60s")
        until(lambda: not _claimed_at_once(jobs, quick), "it to yield", SECONDS)
        assert waits.cancel("not wanted any more")
        assert quick.enqueue().result("60s") == 2
        assert (store.get(str(first.id)) or pytest.fail()).state == "processing"
        over.set()


def _claimed_at_once(jobs: Tenure, quick: Any) -> bool:
    """Does a job that is enqueued now run soon?"""
    handle = quick.enqueue()
    try:
        handle.result("1s")
    except TimeoutError:
        return False
    return True
