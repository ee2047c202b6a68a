"""Doorbells: every listener hears a ring, and losing one costs nothing but time."""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier, Thread
from threading import enumerate as threads

import apsw
import pytest

from garbage import nothing_dropped_open
from servers import shared_postgres, shared_valkey
from tenure.notifiers.nats import NatsNotifier
from tenure.notifiers.poll import PollNotifier
from tenure.notifiers.postgres import PostgresNotifier
from tenure.notifiers.redis import RedisNotifier
from tenure.notifiers.sqlite import SqliteNotifier
from tenure.ports import ANY, Listener, Notifier, Ring
from tenure.stores.redis.server import Server

QUEUED = Ring("queued", "mail")


@pytest.fixture
def runtime() -> Generator[Path]:
    with TemporaryDirectory(prefix="rt", dir="/tmp") as folder:  # a short path: sockets allow 107 bytes
        yield Path(folder)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    connection = apsw.Connection(str(tmp_path / "t.db"))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE n (n)")
    connection.close()
    return tmp_path / "t.db"


def rings(listener: Listener) -> set[Ring]:
    fileno = listener.fileno()
    assert fileno is not None
    select.select([fileno], [], [], 5)
    return set(listener.drain())


def test_everyone_hears_a_ring_and_each_ring_once(database: Path, runtime: Path) -> None:
    notifier, other = SqliteNotifier(str(database), str(runtime)), SqliteNotifier(str(database), str(runtime))
    assert notifier.problem() == ""
    ears = [notifier.listen(), other.listen()]

    other.announce([QUEUED, Ring("due", "mail"), QUEUED])

    for ear in ears:
        assert rings(ear) == {QUEUED, Ring("due", "mail")}
        assert ear.drain() == []
        ear.close()
    notifier.close()
    other.close()


def test_databases_do_not_hear_each_other(database: Path, runtime: Path, tmp_path: Path) -> None:
    ear = SqliteNotifier(str(database), str(runtime)).listen()
    other = SqliteNotifier(str(tmp_path / "other.db"), str(runtime))
    other.announce([QUEUED])
    assert ear.drain() == []
    ear.close()
    other.close()


def test_a_listener_begins_while_the_file_is_away_and_says_so_when_it_is_back(database: Path, runtime: Path) -> None:
    notifier = SqliteNotifier(str(database), str(runtime))
    away = database.rename(database.with_name("away.db"))

    ear = notifier.listen()

    assert ear.drain() == [ANY]  # it asks the store
    away.rename(database)
    assert ear.drain() == [ANY]
    assert ear.drain() == []
    ear.close()
    notifier.close()


def test_the_socket_of_a_dead_listener_is_swept_away(database: Path, runtime: Path) -> None:
    notifier = SqliteNotifier(str(database), str(runtime))
    ear = notifier.listen()
    (folder,) = runtime.iterdir()
    (socket,) = folder.iterdir()
    ear._socket.close()  # type: ignore[attr-defined]  # as a kill -9 leaves it
    ear._socket = None  # type: ignore[attr-defined]

    notifier.announce([QUEUED])

    assert not socket.exists()
    notifier.close()
    ear._connection.close()  # type: ignore[attr-defined]


def test_a_full_buffer_neither_blocks_nor_raises(database: Path, runtime: Path) -> None:
    notifier = SqliteNotifier(str(database), str(runtime))
    ear = notifier.listen()
    for number in range(5000):
        notifier.announce([Ring("queued", f"q{number}")])
    assert rings(ear)
    ear.close()
    notifier.close()


def test_garbage_on_the_socket_is_ignored(database: Path, runtime: Path) -> None:
    notifier = SqliteNotifier(str(database), str(runtime))
    ear = notifier.listen()
    notifier.announce([QUEUED])
    for message in (b"", b"\xff\xfe", b"zmail", b"q\xff"):
        notifier._sender.sendto(message, str(ear._path))  # type: ignore[union-attr, attr-defined]
    assert QUEUED in rings(ear)
    ear.close()
    notifier.close()


def test_a_change_of_the_file_is_heard_without_any_ring(database: Path, runtime: Path) -> None:
    ear = SqliteNotifier(str(database), str(runtime)).listen()
    assert ear.drain() == []
    connection = apsw.Connection(str(database))
    connection.execute("INSERT INTO n VALUES (1)")
    connection.close()
    assert ear.drain() == [ANY]
    assert ear.drain() == []
    ear.close()


@pytest.mark.parametrize("why", ["too long", "not a folder", "open to others"])
def test_where_no_socket_can_be_made_it_says_why_and_polls(database: Path, runtime: Path, why: str) -> None:
    folder = runtime / ("x" * 100 if why == "too long" else "there")
    if why == "not a folder":
        folder.write_text("a file")
    elif why == "open to others":
        SqliteNotifier(str(database), str(folder)).close()
        for inside in folder.iterdir():
            inside.chmod(0o777)

    notifier = SqliteNotifier(str(database), str(folder))

    told = {"too long": "the limit is 107.*TENURE_RUNTIME_DIR", "not a folder": "can't be created"}
    assert re.search(told.get(why, "others can write to it"), notifier.problem())
    notifier.announce([QUEUED])
    ear = notifier.listen()
    assert ear.fileno() is None
    assert ear.interval < 0.1
    ear.close()


def test_polling_rings_by_itself() -> None:
    ear = PollNotifier(0.5).listen()
    assert (ear.fileno(), ear.interval, ear.drain()) == (None, 0.5, [ANY])


def test_threads_that_ring_first_at_once_leave_no_socket_open(database: Path, runtime: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with nothing_dropped_open():
            for _ in range(100):
                notifier, start = SqliteNotifier(str(database), str(runtime)), Barrier(4)

                def ring(notifier: Notifier = notifier, start: Barrier = start) -> None:
                    start.wait()
                    notifier.announce([QUEUED])

                ear = notifier.listen()
                ringing = [Thread(target=ring) for _ in range(4)]
                for thread in ringing:
                    thread.start()
                for thread in ringing:
                    thread.join()
                ear.close()
                notifier.close()
    finally:
        sys.setswitchinterval(interval)


NOTIFIERS: dict[str, Callable[[Path, Path], Notifier]] = {
    "sqlite": lambda database, runtime: SqliteNotifier(str(database), str(runtime)),
    "postgres": lambda *_: PostgresNotifier(shared_postgres().url(), "closed"),
    "redis": lambda *_: RedisNotifier(Server(shared_valkey().url, "closed", None), "closed", rung=False),
    "nats": lambda *_: NatsNotifier("nats://127.0.0.1:1", "closed"),
}


@pytest.mark.parametrize("kind", NOTIFIERS)
def test_once_it_is_closed_a_ring_opens_nothing(kind: str, database: Path, runtime: Path) -> None:
    notifier = NOTIFIERS[kind](database, runtime)
    ear = SqliteNotifier(str(database), str(runtime)).listen()  # without a listener SQLite has nobody to ring
    notifier.announce([QUEUED])
    notifier.close()
    before = set(threads())
    with nothing_dropped_open():
        notifier.announce([QUEUED])
        assert set(threads()) <= before
        del notifier
    ear.close()


def test_a_runtime_folder_that_was_removed_is_made_anew_for_the_next_listener(database: Path, runtime: Path) -> None:
    notifier = SqliteNotifier(str(database), str(runtime))
    (folder,) = runtime.iterdir()
    folder.rmdir()
    ear = notifier.listen()
    notifier.announce([QUEUED])
    assert rings(ear) == {QUEUED}
    ear.close()
    notifier.close()


def test_a_folder_that_takes_no_socket_is_told_and_the_listener_polls(
    database: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = SqliteNotifier(str(database), str(runtime))
    monkeypatch.setattr("tenure.notifiers.sqlite.secrets.token_hex", lambda _: "no/folder")
    ear = notifier.listen()
    assert ear.fileno() is None
    assert ear.interval < 0.1
    assert "no socket can be made in the runtime folder" in notifier.problem()
    ear.close()
    notifier.close()
