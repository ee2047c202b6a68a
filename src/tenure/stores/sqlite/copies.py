"""Copies of the store's file, for backups."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from tenure.errors import StoreError

LOCK_SECONDS = 1.0  #: how long a copy waits for a process that uses the older copy, such as a `tenure check` of it
_BESIDE = ("-wal", "-shm", "-journal")  #: what SQLite keeps beside a file and, if that is replaced, takes for the new


def copy_to(connection: apsw.Connection, path: str, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy the database to this path while it stays in use. An older copy is replaced once the new one is whole.

    Who may not read the store may not read the copy either. If the path is a link, the file that it names is written.
    Returns the bytes of the copy. Raises StoreError, with this path, if that can't be written or another process uses
    the older copy.
    """
    target = os.path.realpath(path)
    try:
        with _unused(target):
            pass  # so that it is refused before a copy that may take long
        # In a folder of its own, which only this user can enter: others may be copying to this path too.
        with TemporaryDirectory(prefix="tenure-backup-", dir=Path(target).parent) as own:
            part = Path(own) / "copy.db"
            _copy(connection, str(part), progress)
            part.chmod(stat.S_IMODE(Path(connection.db_filename("main")).stat().st_mode))
            size = part.stat().st_size
            with _unused(target):
                for suffix in _BESIDE:
                    Path(f"{target}{suffix}").unlink(missing_ok=True)
                part.replace(target)
            return size
    except OSError as error:
        raise _unwritten(target, error.strerror) from error
    except apsw.Error as error:
        if _of_source(error):
            raise
        match error:
            case apsw.FullError():
                why = "the disk is full"
            case apsw.IOError():
                why = "the disk returned an error"
            case _:
                why = str(error)
        raise _unwritten(target, why) from error


def _unwritten(target: str, why: str | None) -> StoreError:
    return StoreError(
        f"{target} could not be written: {why}. Check its folder's permissions and free space, or name another file"
    )


def _of_source(error: apsw.Error) -> bool:
    """Was it reading that failed? The copy is only written, and nobody else knows of it."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.BusyError) or getattr(
        error, "extendedresult", 0
    ) in (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ)


def _copy(connection: apsw.Connection, target: str, progress: Callable[[int, int], None] | None) -> None:
    """A few pages at a time, so that others can write meanwhile.

    As the database is at one moment: else SQLite would begin anew after each commit of another process.
    """
    copied = apsw.Connection(target)
    try:
        connection.execute("BEGIN")
        connection.execute("SELECT 1 FROM sqlite_schema").fetchone()  # the moment is that of the first read
        with copied.backup("main", connection, "main") as step:
            while not step.done:
                step.step(200)
                if progress is not None:
                    progress(step.page_count - step.remaining, step.page_count)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        copied.close()


@contextmanager
def _unused(path: str) -> Generator[None]:
    """Hold SQLite's exclusive lock on the file, if there is one: no other process uses it, or opens it meanwhile.

    A log that a killed process left is no obstacle: it is moved into the file, which is whole until it is replaced.
    """
    if not Path(path).exists():
        yield
        return
    older = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        older.set_busy_timeout(int(LOCK_SECONDS * 1000))
        older.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # by then the log at this path may be of the new copy
        try:
            # With a write-ahead log the second one takes the lock, without it the third one.
            for statement in ("PRAGMA locking_mode = EXCLUSIVE", "PRAGMA journal_mode = DELETE", "BEGIN EXCLUSIVE"):
                older.execute(statement).fetchall()
        except apsw.BusyError as error:
            raise StoreError(
                f"{path} is in use: another process has it open. Stop that process, or name another file"
            ) from error
        except apsw.Error:
            pass  # it is damaged or no database: no process works with it
        yield
    finally:
        older.close()
