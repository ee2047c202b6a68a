"""The SQLite file: what is refused when it is opened, what is kept apart, what is committed together."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import count
from pathlib import Path

import apsw
import pytest

from tenure.core import forks
from tenure.errors import BadData, StoreAway, StoreError
from tenure.ports import Draft, Enqueued
from tenure.stores.sqlite import SqliteStore, file, upkeep
from tenure.stores.sqlite.file import DatabaseFile, file_system


def opened(path: Path) -> SqliteStore:
    store = SqliteStore(str(path))
    store.open()
    return store


def draft(number: int, payload: str = "{}") -> Draft:
    return Draft(id=f"00000000-0000-7000-8000-{number:012d}", task="t", payload=payload)


def on_loop(store: SqliteStore, job: Draft) -> Enqueued | None:
    with pytest.raises(StopIteration) as ended:
        next(store.enqueue_on_loop(job))
    return ended.value.value


def version(path: Path, number: int) -> None:
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", number)
    connection.close()


# ── opening ──


def test_a_database_of_somebody_else_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (n)")
    connection.close()

    with pytest.raises(StoreError, match="is a SQLite database, but not Tenure's"):
        opened(path)

    connection = sqlite3.connect(path)
    tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
    connection.close()
    assert tables == [("theirs",)]


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.stores.sqlite.still_there.LOOK_SECONDS", 0.0)


@pytest.mark.usefixtures("looks_always")
@pytest.mark.parametrize("instead", ["none", "another", "a folder less"])
def test_a_file_that_is_no_longer_there_takes_no_job_until_it_is_back(instead: str, tmp_path: Path) -> None:
    path, away = tmp_path / "folder/t.db", tmp_path / "away"
    path.parent.mkdir()
    store = opened(path)
    store.enqueue([draft(1)])

    if instead == "a folder less":
        path.parent.rename(away)
    else:
        path.rename(away)
    if instead == "another":
        opened(path).close()

    assert on_loop(store, draft(2)) is None
    for use in (
        lambda: store.enqueue([draft(2)]),
        lambda: store.get(draft(1).id),
        lambda: store.transaction().__enter__(),
    ):
        with pytest.raises(StoreAway, match="was deleted, moved or replaced while this process had it open"):
            use()

    if instead == "another":  # the other file has taken the first one's write-ahead log
        return
    away.rename(path.parent if instead == "a folder less" else path)
    store.enqueue([draft(3)])
    assert [store.get(draft(number).id) is not None for number in (1, 2, 3)] == [True, False, True]
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_after_a_fork_no_other_file_is_taken_for_the_one_that_was_open(replaced: bool, tmp_path: Path) -> None:
    path, away = tmp_path / "t.db", tmp_path / "away.db"
    store = opened(path)
    store.enqueue([draft(1)])

    if os.fork() == 0:  # it closes the connections
        os._exit(0)
    os.wait()
    path.rename(away)
    if replaced:
        opened(tmp_path / "other.db").close()
        (tmp_path / "other.db").rename(path)
    for use in (lambda: store.enqueue([draft(2)]), lambda: store.get(draft(1).id)):
        with pytest.raises(StoreAway, match="was deleted, moved or replaced"):
            use()
    assert path.exists() == replaced

    away.replace(path)
    store.enqueue([draft(3)])
    assert [store.get(draft(number).id) is not None for number in (1, 2, 3)] == [True, False, True]
    store.close()


def test_a_schema_one_version_ahead_is_accepted_two_are_not(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    opened(path).close()
    newest = len(file.migrations())

    version(path, newest + 1)
    opened(path).close()
    version(path, newest + 2)
    with pytest.raises(StoreError, match=rf"has schema version {newest + 2}, .* knows {newest}.*upgrade Tenure"):
        opened(path)


@pytest.mark.parametrize("damage", [b"", b"SQLite format 3\0" + bytes(9000), b"no database at all" * 1000])
def test_a_damaged_file_is_told_in_one_sentence(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "t.db"
    path.write_bytes(damage)
    if not damage:  # an empty file is a new database, to SQLite and to us
        opened(path).close()
        return
    with pytest.raises(StoreError, match=r"damaged or not a Tenure database.*restore a backup"):
        opened(path)


def test_damage_inside_a_file_is_found_by_the_check(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = opened(path)
    store.enqueue([draft(n, '"' + "x" * 2000 + '"') for n in range(50)])
    assert store.damage() == []
    store.close()
    pages = bytearray(path.read_bytes())
    start = pages.rindex(b"x" * 2000) // 4096 * 4096  # a page of jobs: opening reads none
    pages[start : start + 4096] = b"\xff" * 4096
    path.write_bytes(pages)

    store = opened(path)
    try:
        assert store.damage()
    except StoreError as error:
        assert "damaged" in str(error)
    store.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere is not a folder: create it"):
        opened(tmp_path / "nowhere" / "t.db")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "virtiofs"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "file_system", lambda path: kind)
    with pytest.raises(StoreError, match=rf"is on a network file system \({kind}\)"):
        opened(tmp_path / "t.db")


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / /srv rw shared:1 - nfs4 h:/x rw\n"
        "3 2 0:3 / /srv/my\\040jobs rw - xfs /dev/b rw\n"
    )
    found = [file_system(Path(path), str(mounts)) for path in ("/a", "/srv/a", "/srv/my jobs/a", "/srvother/a")]
    assert found == ["ext4", "nfs4", "xfs", "ext4"]


# ── one way in ──


def test_any_other_open_of_a_held_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    store = opened(path)
    for name in (path, f"{path}-wal", f"{path}-shm", f"file:{path}?mode=ro", bytes(path)):
        with pytest.raises(StoreError, match=r"open in Tenure in this process.*jobs\.transaction\(\).*tenure backup"):
            open(name, encoding="utf-8")  # noqa: PTH123, SIM115
    with pytest.raises(StoreError, match="is open in Tenure"):
        sqlite3.connect(path)
    (tmp_path / "link.db").symlink_to(path)
    with pytest.raises(StoreError, match="is open in Tenure"):
        sqlite3.connect(tmp_path / "link.db")

    store.close()
    sqlite3.connect(path).close()


def test_a_backup_ends_though_another_process_commits_at_each_step(tmp_path: Path) -> None:
    """SQLite begins a copy anew after each commit of another connection, unless the copy reads at one moment."""
    store = opened(tmp_path / "t.db")
    store.enqueue([draft(n, '"' + "x" * 2000 + '"') for n in range(2000)])
    done: list[int] = []
    other = apsw.Connection(str(tmp_path / "t.db"))  # it is not the store's, as one of another process

    def others(step: int, total: int) -> None:
        done.append(step)
        assert len(done) <= 2 * total, "it begins anew at each step"
        other.execute("UPDATE jobs SET message = ? WHERE seq = 1", (str(step),))

    store.backup(str(tmp_path / "copy.db"), others)
    other.close()
    store.close()

    copy = opened(tmp_path / "copy.db")
    assert (sum(copy.counts().values()), copy.damage()) == (2000, [])
    assert done == sorted(set(done))
    copy.close()


def test_a_backup_is_a_whole_database(tmp_path: Path) -> None:
    store = opened(tmp_path / "t.db")
    store.enqueue([draft(n) for n in range(300)])
    seen: list[tuple[int, int]] = []

    store.backup(str(tmp_path / "copy.db"), lambda done, total: seen.append((done, total)))
    store.enqueue([draft(1000)])
    store.close()

    copy = opened(tmp_path / "copy.db")
    assert (sum(copy.counts().values()), copy.damage()) == (300, [])
    assert seen[-1][0] == seen[-1][1]
    copy.close()


# ── turns and groups ──


def test_writes_that_wait_together_are_committed_together(tmp_path: Path) -> None:
    database = DatabaseFile(str(tmp_path / "t.db"))
    database.open()
    database.write(lambda connection: connection.execute("CREATE TABLE n (n)"))
    commits = [0]
    started, go = threading.Event(), threading.Event()

    def first(connection: apsw.Connection) -> None:
        connection.set_commit_hook(lambda: commits.__setitem__(0, commits[0] + 1) or False)
        started.set()
        go.wait(60)

    threads = [threading.Thread(target=database.write, args=(first,))]
    threads[0].start()
    started.wait(60)
    for number in range(20):
        insert = f"INSERT INTO n VALUES ({number})"
        threads.append(threading.Thread(target=database.write, args=(lambda c, sql=insert: c.execute(sql) and None,)))
        threads[-1].start()
    while len(database._waiting) < 20:
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join()

    assert commits == [2]  # the first one's own, and one for all that waited
    assert database.read(lambda c: file.first(c, "SELECT count(*) FROM n")) == (20,)
    database.close()


def test_one_bad_write_does_not_fail_its_neighbours(tmp_path: Path) -> None:
    store = opened(tmp_path / "t.db")
    errors: list[BaseException] = []
    held, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        store._file.write(lambda connection: held.set() or waiting.wait(60))

    def enqueue(number: int, priority: int) -> None:
        try:
            store.enqueue([Draft(id=draft(number).id, task="t", payload="{}", priority=priority)])
        except BadData as error:
            errors.append(error)

    threads = [threading.Thread(target=hold)]
    threads[0].start()
    held.wait(60)
    for number in range(10):
        threads.append(threading.Thread(target=enqueue, args=(number, 1000 if number == 4 else 0)))
        threads[-1].start()
    while len(store._file._waiting) < 10:
        threading.Event().wait(0.001)
    waiting.set()
    for thread in threads:
        thread.join()

    assert (len(errors), sum(store.counts().values())) == (1, 9)
    store.close()


def struck(at: int, call: Callable[[], object]) -> bool:
    """Call it, with Ctrl-C at this step: the exception comes where a function is entered or one in C has returned."""
    steps = count()

    def step(_frame: object, event: str, _arg: object) -> None:
        if event in {"call", "c_return"} and next(steps) == at:
            raise KeyboardInterrupt

    gc.disable()  # Python swallows what is raised inside a collection
    try:
        sys.setprofile(step)
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False


def with_a_table(path: Path) -> DatabaseFile:
    database = DatabaseFile(str(path))
    database.open()
    database.write(lambda each: each.execute(f"PRAGMA application_id = {file.APPLICATION_ID}; CREATE TABLE n (n, who)"))
    return database


def insert(number: int, who: str) -> Callable[[apsw.Connection], str]:
    def step(connection: apsw.Connection) -> str:
        connection.execute("INSERT INTO n VALUES (?, ?)", (number, who))
        return who

    return step


def inserted(database: DatabaseFile, number: int) -> list[str]:
    rows = database.read(lambda each: file.fetch(each, "SELECT who FROM n WHERE n = ? ORDER BY who", (number,)))
    return [who for (who,) in rows]


def test_ctrl_c_at_any_step_of_a_group_is_heard_by_whom_it_struck_and_costs_nobody_else_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = with_a_table(tmp_path / "t.db")
    turn = threading.RLock()  # so that the other thread can be made to wait, and this one to write for both
    monkeypatch.setattr(database, "_turn", turn)
    seen: set[tuple[str, ...]] = set()

    with ThreadPoolExecutor(1) as threads:
        for at in count():
            with turn:
                other = threads.submit(database.write, insert(at, "other"))
                while not database._waiting:
                    threading.Event().wait(0.001)
                heard = struck(at, lambda at=at: database.write(insert(at, "mine")))  # type: ignore[misc]
            assert other.result(60) == "other"
            assert not database._waiting
            if not heard:
                assert inserted(database, at) == ["mine", "other"]
                break
            seen.add(tuple(inserted(database, at)))

    assert seen == {("other",), ("mine", "other")}  # before the commit, and after it
    database.close()


def test_ctrl_c_at_any_step_of_a_transaction_leaves_the_file_to_others(tmp_path: Path) -> None:
    database, other = with_a_table(tmp_path / "t.db"), DatabaseFile(str(tmp_path / "t.db"))
    other.open()

    def use(at: int) -> None:
        with database.transaction() as tx:
            tx.run(insert(at, "mine"))

    for at in count():
        heard = struck(at, lambda at=at: use(at))  # type: ignore[misc]
        assert not database._turn.locked()
        other.write(insert(at, "other"))
        assert inserted(database, at) in ([["mine", "other"], ["other"]] if heard else [["mine", "other"]])
        if not heard:
            break

    other.close()
    database.close()


def test_ctrl_c_at_any_step_of_a_change_leaves_the_file_to_others(tmp_path: Path) -> None:
    database, other = with_a_table(tmp_path / "t.db"), DatabaseFile(str(tmp_path / "t.db"))
    other.open()
    for at in count():
        heard = struck(at, lambda at=at: database.change("INSERT INTO n VALUES (?, 'mine')", (at,)))  # type: ignore[misc]
        assert not database._turn.locked()
        other.write(insert(at, "other"))
        assert inserted(database, at) in ([["mine", "other"], ["other"]] if heard else [["mine", "other"]])
        if not heard:
            break

    other.close()
    database.close()


def test_ctrl_c_while_it_waits_for_its_turn_takes_a_write_back(tmp_path: Path) -> None:
    database = with_a_table(tmp_path / "t.db")
    with database._turn, ThreadPoolExecutor(1) as threads:
        main = threading.get_ident()

        def press() -> None:
            while not database._waiting:
                threading.Event().wait(0.001)
            signal.pthread_kill(main, signal.SIGINT)

        pressing = threads.submit(press)
        with pytest.raises(KeyboardInterrupt):
            database.write(insert(1, "mine"))
        pressing.result(60)

    database.write(insert(1, "next"))
    assert inserted(database, 1) == ["next"]
    database.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("use", ["read", "write", "transaction"])
def test_a_forked_child_is_told_so_also_when_its_parent_was_just_using_the_file(
    tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "PAUSE_SECONDS", 0.05)
    database = with_a_table(tmp_path / "t.db")
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: database.read(insert(1, "child")),
        "write": lambda: database.write(insert(1, "child")),
        "transaction": lambda: database.transaction().__enter__(),
    }
    with database._turn, database._reading:  # as other threads of the parent may hold them
        child = os.fork()
        if child == 0:
            told = ""
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)
                calls[use]()
            except StoreError as error:
                told = str(error)
            finally:
                os._exit("was opened before a fork()" not in told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    database.close()


def test_a_locked_file_is_away_not_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.05)
    path = tmp_path / "t.db"
    store, other = opened(path), opened(path)
    with ThreadPoolExecutor(1) as threads, other.transaction():
        with pytest.raises(StoreAway, match="was locked by another process"):
            threads.submit(store.enqueue, [draft(1)]).result()
    assert store.enqueue([draft(1)])[0].created
    store.close()
    other.close()


@pytest.mark.parametrize("uses", ["the same store", "another store"])
def test_a_transaction_that_stays_open_too_long_is_ended_whatever_its_block_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: str
) -> None:
    monkeypatch.setattr(file, "TRANSACTION_SECONDS", 0.2)
    store, other = opened(tmp_path / "t.db"), opened(tmp_path / "t.db")
    with ThreadPoolExecutor(1) as threads, pytest.raises(StoreError, match=r"rolled back.*only write lock"):
        with store.transaction() as tx:
            waits = threads.submit((store if uses == "the same store" else other).enqueue, [draft(2)])
            with suppress(StoreError):  # it may be ended already
                store.enqueue([draft(1)], tx=tx)
            assert waits.result(30)[0].created  # while the block goes on
            with pytest.raises(StoreError, match=r"rolled back.*only write lock"):
                store.enqueue([draft(3)], tx=tx)
    assert [store.get(draft(n).id) is not None for n in (1, 2, 3)] == [False, True, False]
    store.close()
    other.close()


def test_a_statement_that_runs_too_long_in_a_transaction_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "TRANSACTION_SECONDS", 0.2)
    store = opened(tmp_path / "t.db")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StoreError, match=r"rolled back.*only write lock"), store.transaction() as tx:
        store.enqueue([draft(1)], tx=tx)
        tx.execute(endless).fetchall()
    assert store.enqueue([draft(1)])[0].created
    store.close()


def test_a_thread_never_waits_for_its_own_transaction(tmp_path: Path) -> None:
    store, other = opened(tmp_path / "t.db"), opened(tmp_path / "t.db")
    elsewhere = opened(tmp_path / "elsewhere.db")
    with store.transaction() as tx:
        for each in (store, other):
            with pytest.raises(StoreError, match=r"inside jobs\.transaction\(\), a write would wait.*tx="):
                each.cancel([draft(1).id], "")
            with pytest.raises(StoreError, match=r"inside jobs\.transaction\(\), a second transaction would wait"):
                each.transaction().__enter__()
        with elsewhere.transaction() as second:
            elsewhere.enqueue([draft(1)], tx=second)
        store.enqueue([draft(1)], tx=tx)
    assert store.get(draft(1).id) is not None
    assert store.cancel([draft(1).id], "")
    for each in (store, other, elsewhere):
        each.close()


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    store = opened(tmp_path / "t.db")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is not open"):
        store.counts()


def test_upkeep_moves_the_log_into_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "ENOUGH_FRAMES", 1)
    path = tmp_path / "t.db"
    store = opened(path)
    store.enqueue([draft(n) for n in range(1000)])
    before = path.stat().st_size

    store.upkeep()

    assert path.stat().st_size > before
    store.close()


def test_upkeep_leaves_the_log_to_another_process_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ENOUGH_FRAMES", 1)
    path = tmp_path / "t.db"
    store = opened(path)
    store.enqueue([draft(n) for n in range(1000)])
    before = path.stat().st_size
    # sqlite.org/walformat.html, section 2.3.1: WAL_CKPT_LOCK is byte 121 of the index.
    locks = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b'); fcntl.lockf(file, fcntl.LOCK_EX, 1, 121); "
        "print(flush=True); input()"
    )
    command = [sys.executable, "-c", locks, f"{path}-shm"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()

        store.upkeep()
        assert path.stat().st_size == before

        other.communicate("\n", 60.0)
    store.upkeep()
    assert path.stat().st_size > before
    store.close()


def test_a_transaction_that_sqlite_has_rolled_back_takes_nothing_more(tmp_path: Path) -> None:
    store = opened(tmp_path / "t.db")
    with pytest.raises(StoreError, match="roll it back"), store.transaction() as tx:
        tx.execute("CREATE TABLE mine (n PRIMARY KEY ON CONFLICT ROLLBACK)")
        tx.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(BadData):
            tx.execute("INSERT INTO mine VALUES (1)")
        store.enqueue([draft(1)], tx=tx)
    assert store.get(draft(1).id) is None
    store.close()


def test_a_transaction_that_its_own_code_has_committed_takes_nothing_more(tmp_path: Path) -> None:
    store = opened(tmp_path / "t.db")
    with pytest.raises(StoreError, match="by a COMMIT or ROLLBACK of yours"), store.transaction() as tx:
        store.enqueue([draft(1)], tx=tx)
        tx.execute("COMMIT")
        store.enqueue([draft(2)], tx=tx)
    assert [store.get(draft(n).id) is None for n in (1, 2)] == [False, True]
    store.close()


@pytest.mark.parametrize("use", ["read", "write"])
def test_closing_waits_for_whoever_is_in_the_middle_of_something(
    tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CLOSE_SECONDS", 60.0)  # it must not give up while this test is held up
    database = DatabaseFile(str(tmp_path / "tenure.db"))
    database.open()
    begun, may_end = threading.Event(), threading.Event()

    def slowly(connection: apsw.Connection) -> object:
        begun.set()
        cursor = connection.execute("SELECT 1 UNION SELECT 2")
        assert may_end.wait(60)
        return cursor.fetchall()

    with ThreadPoolExecutor() as threads:
        answer = threads.submit(getattr(database, use), slowly)
        assert begun.wait(60)
        closing = threads.submit(database.close)
        assert wait([closing], timeout=0.2).done == set()
        may_end.set()
        assert answer.result() == [(1,), (2,)]
        closing.result()
    with pytest.raises(StoreError, match="is not open"):
        database.read(slowly)
