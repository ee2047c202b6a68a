"""One SQLite file, used safely by one process: opening, checking, serialized writes, group commit, errors.

A process must have this file open through apsw only. POSIX locks belong to the process, so any other open and close
of the file in it (`sqlite3`, a copy, a hash) drops them, and committed jobs can be lost
(sqlite.org/howtocorrupt.html, section 2.2). An audit hook refuses such an open with an error that explains it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

import _thread
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import apsw

from tenure.core import forks
from tenure.core.text import UPGRADE
from tenure.errors import BadData, StoreAway, StoreError
from tenure.stores.sqlite import other_opens
from tenure.stores.sqlite.still_there import StillThere
from tenure.stores.sqlite.upkeep import LARGEST_LOG, MOST_FRAMES, is_due
from tenure.stores.sqlite.writes import Call, Change, Write, commit

T = TypeVar("T")

APPLICATION_ID = 0x54454E55  # "TENU", in the file's header
TRANSACTION_SECONDS = 5.0
BUSY_SECONDS = TRANSACTION_SECONDS + 2.0  # longer: a caller behind a transaction that is too long gets its turn
CLOSE_SECONDS = BUSY_SECONDS + 1.0
#: Where commits take longer, a thread makes them: its own cost, about 0.2 ms, is then a small part.
FAST_SECONDS = 0.002
_PRAGMAS: dict[str, str | int] = {
    "synchronous": "FULL",
    "foreign_keys": "ON",
    "mmap_size": 0,
    # In KiB, and taken as it is used. With SQLite's default of 2 MB jobs of many keys, and so of many pages, took twice
    # as long.
    "cache_size": -16_000,
    # Upkeep makes the checkpoints; this is for a file without upkeep. A writer would have to wait for it.
    "wal_autocheckpoint": MOST_FRAMES,
    "journal_size_limit": LARGEST_LOG,
}
_CREATE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "afs", "ceph", "glusterfs", "lustre")


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def mapped(error: BaseException, path: str) -> BaseException:
    """The one place that maps the driver's errors to ours."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreAway(f"{path} was locked by another process for more than {BUSY_SECONDS:g}s")
        case apsw.FullError():
            return StoreAway(f"{path}: the disk is full; free some space, nothing already stored is lost")
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreError(
                f"{path} is damaged or not a Tenure database ({error}); restore a backup, or move it away"
            )
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StoreError(f"{path} can't be written ({error}): check the folder and its permissions")
        case apsw.IOError():
            return StoreAway(f"{path}: the disk returned an error ({error})")
        case apsw.ConstraintError() | apsw.TooBigError() | apsw.MismatchError() | UnicodeEncodeError():
            return BadData(f"{path} refused a value: {error}")
        case apsw.Error():
            return StoreError(f"{path}: {error}")
        case _:
            return error


# ── The file ────────────────────────────────────────────────────────────────────────────────────────────────────


def file_system(path: Path, mountinfo: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that a path is on, or '' if the kernel does not report it."""
    try:
        lines = Path(mountinfo).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ""
    best = ("", "")
    for line in lines:
        fields = line.split()
        point, kind = fields[4].replace("\\040", " "), fields[fields.index("-") + 1]
        if len(point) >= len(best[0]) and f"{path}/".startswith(f"{point.rstrip('/')}/"):
            best = (point, kind)
    return best[1]


_inside: dict[int, Transaction] = {}  #: the last transaction of each thread that is in one


class Transaction:
    """A caller's transaction on the store's own connection. It holds the file's one write lock: keep it short.

    A thread ends one that is open for too long, whatever its caller is doing: nothing else can write until then. No
    `threading.Event`, as a signal's exception inside one would leave it locked.
    """

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._connection: apsw.Connection | None = None
        self._lock = threading.Lock()
        self._overdue = False
        self._gate = threading.Lock()  #: released at its end
        self._gate.acquire()
        self.over = False
        self.thread = threading.get_ident()
        self.committed: list[Callable[[], None]] = []  #: called after the commit

    def begin(self) -> None:
        """Called under the turn, which is passed on before the transaction ends: its next holder waits for that."""
        self._file._wait_for_transaction()
        self._file._there.check()
        self._file._transaction = _inside[self.thread] = self
        self._connection = self._file._writing_connection()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise mapped(error, self._file.path) from error
        _thread.start_new_thread(self._watch, ())

    def execute(self, sql: str, bindings: Any = ()) -> apsw.Cursor:
        """Run your own SQL in the transaction: it commits or rolls back together with the jobs."""
        return self.run(lambda connection: connection.execute(sql, bindings))

    def run(self, call: Callable[[apsw.Connection], T]) -> T:
        self._file.refuse_child()
        return _holding(self._lock, lambda: self._run(call))

    def _run(self, call: Callable[[apsw.Connection], T]) -> T:
        if self.over or self._connection is None:
            raise self._too_long() if self._overdue else StoreError("this transaction has ended")
        if not self._connection.in_transaction:  # later statements would be committed one by one
            raise StoreError(
                "this transaction has ended inside its block: by a COMMIT or ROLLBACK of yours, which the block does "
                "at its end, or because an error made SQLite roll it back"
            )
        try:
            return call(self._connection)
        except (apsw.Error, UnicodeEncodeError) as error:
            raise (self._too_long() if self._overdue else mapped(error, self._file.path)) from error

    def _too_long(self) -> StoreError:
        return StoreError(
            f"this transaction was open for more than {TRANSACTION_SECONDS:g}s and is rolled back: it holds the file's "
            "only write lock, so no process could claim, finish or renew. Do slow work before it, and wait in it for "
            "no other thread that writes."
        )

    @property
    def path(self) -> str:
        """The file of this transaction; any store object of that file can join it."""
        return self._file.path

    def end(self, *, commit: bool) -> None:
        try:
            if commit:
                self.run(lambda connection: connection.execute("COMMIT"))
        finally:
            if self._file.mine:
                _holding(self._lock, self._close)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; False if it goes on. For one thread at a time."""
        if not self.over and self._gate.acquire(timeout=seconds):
            self._gate.release()
        return self.over

    def _watch(self) -> None:
        if self.wait(TRANSACTION_SECONDS):
            return
        self._overdue = True
        while not self._lock.acquire(timeout=0.05):
            if self._connection is not None:
                self._connection.interrupt()  # a statement of the caller's is running
        try:
            self._close()
        finally:
            self._lock.release()

    def _close(self) -> None:
        """Roll back unless it is committed, and let the next writer go on."""
        if self.over:
            return
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        finally:
            self.over = True
            self._gate.release()


def _close(connection: apsw.Connection | None) -> None:
    if connection is not None:
        connection.close()


def _without_checkpoint(*connections: apsw.Connection | None) -> None:
    """Have them closed without one: it would take long, and another process may be made to wait."""
    for connection in connections:
        if connection is not None:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


class DatabaseFile:
    """Two connections, one for reads and one for writes, which serves one writer at a time.

    Writes are committed in groups: the thread that gets the writer's turn executes all waiting writes in one
    transaction, which share one fsync. If one of a group fails, all are rolled back and run again one by one.

    A signal's exception (KeyboardInterrupt, SystemExit) may interrupt that thread anywhere. It propagates at once: each
    waiting thread then gets the turn and executes its own write, unless it finds that write committed. A fork closes
    both connections first; the parent opens them again when it uses them.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.realpath(path)
        self._open = False
        self._there = StillThere(self.path)
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._transaction: Transaction | None = None  #: the last one; the caller that has the turn waits for its end
        self._turn = threading.Lock()
        self._reading = threading.Lock()
        self._waiting: deque[Write] = deque()
        self._slowest = 0.0  #: seconds of the slowest commit; the longer ago it was, the less it counts
        self._pid = os.getpid()

    # ── opening ──

    def open(self) -> None:
        path = Path(self.path)
        folder = path.parent
        kind = file_system(path)
        if kind.startswith(_NETWORK):
            raise StoreError(
                f"{path} is on a network file system ({kind}): SQLite's locks can't be trusted there; "
                "use a local disk, or another store"
            )
        if not folder.is_dir():
            raise StoreError(f"{folder} is not a folder: create it, or give another path in TENURE_URL")
        if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
            raise StoreError(f"{path} can't be written: check the folder and its permissions")
        self.refuse_child()
        forks.refuse_sqlite()
        forks.add(self)
        other_opens.refuse(self, self.path)
        self._open = True
        try:
            with self._turn, self._reading:
                self._writer = self._connect(_CREATE)
                self._there.opened()
                _check_ours(self.path, self._writer)
                self._reader = self._connect(_CREATE)
        except BaseException as error:
            self.close()
            raise mapped(error, self.path) from error

    def _connect(self, flags: int = apsw.SQLITE_OPEN_READWRITE) -> apsw.Connection:
        return _connected(self.path, flags)

    def migrate(self, scripts: list[tuple[int, str]]) -> int:
        newest = scripts[-1][0]

        def step(connection: apsw.Connection) -> int:
            version = int(connection.pragma("user_version"))
            if version > newest + 1:
                raise StoreError(
                    f"{self.path} has schema version {version}, this Tenure knows {newest} and accepts one newer: "
                    f"{UPGRADE}"
                )
            for number, script in scripts:
                if number > version:
                    connection.execute(script)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", number)
                    version = number
            return version

        return self.write(step)

    def close(self) -> None:
        """Wait for the calls in progress; a connection whose call does not end in time stays open."""
        if not self.mine:  # its connections are the parent's
            return
        self._open = False
        if self._reading.acquire(timeout=CLOSE_SECONDS):
            self._close_reader()
            self._reading.release()
        if self._turn.acquire(timeout=CLOSE_SECONDS):
            if self._transaction_ended(CLOSE_SECONDS):
                self._close_writer()
            self._turn.release()
        if self._reader is None and self._writer is None:  # else they are still open, in a call
            forks.discard(self)
            other_opens.allow(self)

    def _close_reader(self) -> None:
        connection, self._reader = self._reader, None
        _close(connection)

    def _close_writer(self) -> None:
        connection, self._writer = self._writer, None
        _close(connection)

    # ── forks ──

    @property
    def mine(self) -> bool:
        """Was it made in this process, not in one that forked it?"""
        return os.getpid() == self._pid

    def refuse_child(self) -> None:
        """Check before taking any lock: in a forked child a lock that was held at the fork is never released."""
        if not self.mine:
            raise StoreError(f"{self.path} was opened before a fork(): a child process must open the store itself")

    def pause(self, until: float) -> bool:
        if threading.get_ident() in _inside or not self._reading.acquire(timeout=_left(until)):
            return False
        held, paused = [self._reading], False
        try:
            if self._turn.acquire(timeout=_left(until)):
                held.append(self._turn)
                if self._transaction_ended(_left(until)):
                    _without_checkpoint(self._writer, self._reader)
                    self._close_writer()
                    self._close_reader()
                    paused = True
            return paused
        finally:  # a signal's exception in a fork's hook goes no further, so nothing else would release them
            for lock in held if not paused else ():
                lock.release()

    def resume(self) -> None:
        self._turn.release()
        self._reading.release()

    def forget(self, *, paused: bool) -> bool:
        for connection in (self._writer, self._reader):
            if connection is not None:
                forks.keep_forever(connection)
        unused = paused or not (self._open or self._writer or self._reader)
        self._writer = self._reader = None
        self._open = False
        other_opens.allow_all()
        _inside.clear()
        return unused

    # ── use ──

    def _writing_connection(self) -> apsw.Connection:
        """Under the turn. After a fork it is opened again: the file that was there, not a new one."""
        if not self._open:
            raise StoreError(f"{self.path} is not open")
        if self._writer is None:
            self._writer = self._there.connected(self._connect)
        return self._writer

    def _reading_connection(self) -> apsw.Connection:
        if not self._open:
            raise StoreError(f"{self.path} is not open")
        self._there.check()
        if self._reader is None:
            self._reader = self._there.connected(self._connect)
        return self._reader

    def _refuse_inside(self, what: str) -> None:
        """A thread that waits for its own transaction would wait in vain."""
        ours = _inside.get(threading.get_ident())
        if ours is not None and ours.path == self.path and not ours.over:
            raise StoreError(
                f"inside jobs.transaction(), {what} would wait for this transaction: pass it on as tx=, or do this "
                "before or after the block"
            )

    def _transaction_ended(self, seconds: float) -> bool:
        """Under the turn: wait for the end of the previous transaction."""
        before = self._transaction
        return before is None or before.wait(seconds)

    def _wait_for_transaction(self) -> None:
        if not self._transaction_ended(BUSY_SECONDS):
            raise StoreAway(f"{self.path}: a transaction of this process did not end within {BUSY_SECONDS:g}s")

    def read(self, call: Callable[[apsw.Connection], T]) -> T:
        self.refuse_child()
        try:
            return _holding(self._reading, lambda: call(self._reading_connection()))
        except (apsw.Error, UnicodeEncodeError) as error:
            raise mapped(error, self.path) from error

    def write(self, call: Callable[[apsw.Connection], T]) -> T:
        return self._write(Call(call))  # type: ignore[no-any-return]

    def change(self, sql: str, bindings: Any = ()) -> int:
        """Execute one statement, and return how many rows it has changed.

        If no other write waits, one call takes the lock and releases it: no thread that keeps the GIL prolongs that.
        """
        return self._write(Change(sql, bindings))  # type: ignore[no-any-return]

    def _write(self, op: Write) -> Any:
        self.refuse_child()
        if _inside:
            self._refuse_inside("a write")
        try:
            self._waiting.append(op)
            _holding(self._turn, lambda: self._commit_with(op))
        except BaseException:
            with suppress(ValueError):  # or the next writer would execute it later
                self._waiting.remove(op)
            raise
        if op.error is not None:
            raise mapped(op.error, self.path) from op.error
        return op.result

    def _commit_with(self, op: Write) -> None:
        """Commit it with all that wait, unless another thread has."""
        if op.committed or op.error is not None:
            return
        group: list[Write] = []
        while self._waiting:
            group.append(self._waiting.popleft())
        if op not in group:  # the thread that had taken it was interrupted
            group.append(op)
        self._commit(group)

    def change_at_once(self, sql: str, bindings: Any = ()) -> int | None:
        """As `change`, but only if that is quick: there is no lock to wait for, and recent commits were fast.

        None: it was not executed, or refused; `change` executes it, or says why not.
        """
        if not self.mine or self._slowest > FAST_SECONDS or not self._turn.acquire(blocking=False):
            return None
        try:
            connection = self._writer
            if connection is None or self._waiting or not self._transaction_ended(0.0):
                return None
            if is_due(connection):  # it would make a checkpoint
                return None
            op = Change(sql, bindings)
            _wait_for_locks(connection, 0.0)
            try:
                self._commit_together(connection, [op])
            except Exception:
                if op.committed:  # raised by a signal handler, too late to roll back
                    raise
                return None
            finally:
                _wait_for_locks(connection, BUSY_SECONDS)
            return op.result  # type: ignore[no-any-return]
        finally:
            self._turn.release()

    def _commit(self, group: list[Write]) -> None:
        try:
            self._wait_for_transaction()
            self._commit_together(self._writing_connection(), group)
        except Exception as error:
            if group[0].committed:  # raised by a signal handler, too late to roll back
                raise
            if len(group) > 1 and not isinstance(mapped(error, self.path), StoreAway):
                for op in group:
                    self._commit([op])
                return
            for op in group:
                op.error = error

    def _commit_together(self, connection: apsw.Connection, group: list[Write]) -> None:
        self._there.check()
        began = time.monotonic()
        try:
            commit(connection, group)
        finally:
            self._slowest = max(time.monotonic() - began, 0.9 * self._slowest)

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        self.refuse_child()
        self._refuse_inside("a second transaction")
        transaction = Transaction(self)
        try:
            _holding(self._turn, transaction.begin)
            yield transaction
            transaction.end(commit=True)
        except BaseException:
            transaction.end(commit=False)
            raise
        finally:
            _inside.pop(transaction.thread, None)
        for committed in transaction.committed:
            committed()


def _holding(lock: threading.Lock, call: Callable[[], T]) -> T:
    """`with lock` keeps it for ever on Python 3.14 if a signal's exception comes as it is taken (cpython#148874)."""
    held: list[bool] = []
    try:
        held.extend(map(lock.acquire, (True,)))  # one step of the interpreter, like a commit and its record
        return call()
    finally:
        if held:
            lock.release()


def _wait_for_locks(connection: apsw.Connection, seconds: float) -> None:
    """A blocking lock with a time limit: the kernel wakes those that wait as soon as it is free.

    SQLite's own busy handler sleeps for growing intervals: the process that has waited longest checks least often, and
    starves. The kernel keeps no order either, but a woken process has its chance at every commit of the others.
    """
    connection.set_busy_timeout(round(seconds * 1000))
    connection.setlk_timeout(round(seconds * 1000), 0)


def _connected(path: str, flags: int) -> apsw.Connection:
    connection = apsw.Connection(path, flags=flags)
    _wait_for_locks(connection, BUSY_SECONDS)
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode is None or mode[0] != "wal":
            raise StoreError(f"{path}: this file system can't keep SQLite's write-ahead log; use a local disk")
        for pragma, value in _PRAGMAS.items():
            connection.pragma(pragma, value)
        # Else a query that compares a column with a parameter, of a table with partial indexes, is planned at each use:
        # an empty claim would take four times as long.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_ours(path: str, connection: apsw.Connection) -> None:
    application = connection.pragma("application_id")
    if application == APPLICATION_ID:
        return
    if application != 0 or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() != (0,):
        raise StoreError(f"{path} is a SQLite database, but not Tenure's: give another path in TENURE_URL")


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)


def at_once(call: Callable[[apsw.Connection], T]) -> Callable[[apsw.Connection], T]:
    """The same call, but all of its statements see the file as it is at one moment: `file.read(at_once(step))`."""

    def snapshot(connection: apsw.Connection) -> T:
        connection.execute("BEGIN")
        try:
            return call(connection)
        finally:
            connection.execute("ROLLBACK")

    return snapshot


def fetch(connection: apsw.Connection, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
    return connection.execute(sql, bindings).fetchall()


def first(connection: apsw.Connection, sql: str, bindings: Any = ()) -> tuple[Any, ...] | None:
    return connection.execute(sql, bindings).fetchone()


def migrations() -> list[tuple[int, str]]:
    """(version, script) of every file in migrations/sqlite, oldest first."""
    folder = resources.files("tenure.stores") / "migrations" / "sqlite"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name.partition("_")[0]), (folder / name).read_text("utf-8")) for name in names]
