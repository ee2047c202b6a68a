"""Doorbells: every listener hears a ring, and losing one costs nothing but time."""

from __future__ import annotations

import re
import select
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from tenure.notifiers.poll import PollNotifier
from tenure.notifiers.sqlite import SqliteNotifier
from tenure.ports import ANY, Listener, Ring

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
