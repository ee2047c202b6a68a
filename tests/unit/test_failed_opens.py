"""What can't be opened, or is dropped without a word, leaves nothing open: no store, no thread, no socket."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from garbage import nothing_dropped_open
from tenure import Tenure
from tenure.errors import InvalidOption, StoreAway, TenureError
from tenure.maintenance.duty import Duty
from tenure.maintenance.holder import LeaseHolder
from tenure.notifiers.sqlite import SqliteNotifier
from tenure.ports import ANY
from tenure.stores.sqlite import SqliteStore, file, other_opens
from tenure.supervisor.process import WorkerProcess
from waiting import until


class Conn: ...


@pytest.fixture
def database(tmp_path: Path) -> Path:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.close()
    return tmp_path / "tenure.db"


@pytest.fixture
def jobs(database: Path) -> Generator[Tenure]:
    app = Tenure(f"sqlite:///{database}")

    @app.task
    def noop() -> None: ...

    with app:
        yield app


@pytest.fixture(autouse=True)
def nothing_left(database: Path) -> Generator[None]:
    """No thread of the engine's, no warning of the garbage collector, and the file is anybody's again."""
    before = set(threading.enumerate())
    with nothing_dropped_open():
        yield

    def ended() -> bool:
        return not any(each.name.startswith("tenure") for each in set(threading.enumerate()) - before)

    until(ended, "its threads to end")
    assert str(database) not in other_opens._open.values()
    sqlite3.connect(database).close()


def test_a_client_without_its_notifier_closes_its_store(database: Path) -> None:
    app = Tenure(f"sqlite:///{database}", notifier="nats")
    for _ in range(2):
        with pytest.raises(InvalidOption, match="unknown notifier"):
            app.client()


@pytest.mark.parametrize("step", ["the notifier", "the registration", "a thread"])
def test_an_embedded_worker_that_can_not_begin_closes_everything(
    step: str, jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreAway("the disk is full")

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    closed, close = list[SqliteStore](), SqliteStore.close

    def counted(store: SqliteStore) -> None:
        closed.append(store)
        close(store)

    monkeypatch.setattr(SqliteStore, "close", counted)

    if step == "the notifier":
        jobs.configure({"notifier": "nats"})
    elif step == "the registration":
        monkeypatch.setattr(LeaseHolder, "register", away)
    else:
        monkeypatch.setattr(Duty, "start", no_thread)
    with pytest.raises((InvalidOption, StoreAway, RuntimeError)), jobs.worker():
        pytest.fail("it has begun")
    assert len({id(store) for store in closed}) == 2


def test_a_resource_that_can_not_be_opened_leaves_no_event_loop(jobs: Tenure) -> None:
    @jobs.resource
    async def conn() -> AsyncGenerator[Conn]:
        raise ValueError("no such host")
        yield Conn()

    with pytest.raises(ValueError, match="no such host"), jobs.worker():
        pytest.fail("it has begun")


@pytest.mark.parametrize("way", ["with", "async with"])
def test_a_worker_that_is_open_can_not_be_opened_again_before_its_block_has_ended(way: str, jobs: Tenure) -> None:
    worker, noop = jobs.worker(), jobs.tasks["noop"]
    again = pytest.raises(TenureError, match=r"already open: call jobs\.worker\(\) for each block")

    async def async_block() -> None:
        async with worker:
            with again:
                await worker.__aenter__()
            await (await noop.aenqueue()).aresult("60s")

    def block() -> None:
        with worker:
            with again:
                worker.__enter__()
            noop.enqueue().result("60s")

    for _ in range(2):
        if way == "with":
            block()
        else:
            asyncio.run(async_block())


@pytest.mark.parametrize("way", ["with", "async with", "a resource"])
def test_a_worker_that_could_not_begin_can_be_opened_again(
    way: str, jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    @jobs.resource
    async def conn() -> AsyncGenerator[Conn]:
        if way == "a resource" and fails:
            raise StoreAway("no such host")
        yield Conn()

    def away(*_: object) -> None:
        raise StoreAway("the disk is full")

    worker = jobs.worker()

    async def async_block() -> None:
        async with worker:
            await (await jobs.tasks["noop"].aenqueue()).aresult("60s")

    def block() -> None:
        with worker:
            jobs.tasks["noop"].enqueue().result("60s")

    run = block if way == "with" else lambda: asyncio.run(async_block())
    with monkeypatch.context() as patch:
        if way != "a resource":
            patch.setattr(LeaseHolder, "register", away)
        with pytest.raises(StoreAway):
            run()
    fails.clear()
    run()


def test_a_store_that_is_dropped_holds_its_file_no_longer(database: Path) -> None:
    store = SqliteStore(str(database))
    store.open()
    assert other_opens._open
    del store


def test_a_store_whose_close_did_not_wait_for_a_read_still_holds_its_file(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the file in another way would drop its locks, with committed jobs."""
    monkeypatch.setattr(file, "CLOSE_SECONDS", 0.01)
    store = SqliteStore(str(database))
    store.open()
    reading, ends = threading.Event(), threading.Event()

    def read(connection: Any) -> None:
        reading.set()
        assert ends.wait(60)

    thread = threading.Thread(target=store._file.read, args=(read,))
    thread.start()
    assert reading.wait(60)
    store.close()
    with pytest.raises(Exception, match="is open in Tenure in this process"):
        sqlite3.connect(database)
    ends.set()
    thread.join()
    store.close()


def test_an_event_loop_that_has_ended_is_forgotten(jobs: Tenure) -> None:
    """A program may call `asyncio.run` for each request."""
    noop = jobs.tasks["noop"]
    for _ in range(5):
        asyncio.run(jobs.aenqueue_many([noop.bind(), noop.bind()]))
    gc.collect()
    assert len(jobs.client()._gatherers) <= 1


def _refused(*_: object) -> socket.socket:
    raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")


def test_without_unix_sockets_jobs_are_enqueued_and_listeners_poll(
    jobs: Tenure, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a service of systemd with `RestrictAddressFamilies=AF_INET`."""
    monkeypatch.setattr("tenure.notifiers.sqlite.socket.socket", _refused)
    notifier = SqliteNotifier(str(database), str(database.parent / "run"))
    assert "no Unix socket can be made" in notifier.problem()
    ear = notifier.listen()
    assert (ear.fileno(), ear.drain()) == (None, [])
    jobs.tasks["noop"].enqueue()
    assert ear.drain() == [ANY]
    ear.close()
    notifier.close()


@pytest.mark.parametrize("fails", [None, OSError(errno.ENOSYS, "Function not implemented")], ids=["works", "fails"])
def test_a_worker_starts_where_pidfds_are_forbidden(fails: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an old sandbox, or on an old kernel: whether Python has the function says nothing about that."""

    def no(_: int) -> int:
        raise fails or AssertionError

    if fails is not None:
        monkeypatch.setattr("os.pidfd_open", no)
    worker = WorkerProcess.start((sys.executable, "-c", "import time; time.sleep(60)"))
    assert (worker.pidfd < 0) is (fails is not None)
    worker.end()


@pytest.mark.parametrize("step", ["Lifeline.create", "tempfile.TemporaryFile", "subprocess.Popen"])
def test_a_worker_that_can_not_be_started_leaves_nothing_open(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object, **__: object) -> Callable[..., object]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(f"tenure.supervisor.process.{step}", no)
    with pytest.raises(OSError, match="Too many open files"):
        WorkerProcess.start((sys.executable, "-c", ""))
