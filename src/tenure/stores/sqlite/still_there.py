"""Is the open file still the one at its path? What is written to a deleted one is lost when the last process ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import apsw

from tenure.errors import StoreAway

LOOK_SECONDS = 1.0  #: a look gives up the GIL, which another thread may keep for a while: not at every call


class StillThere:
    """Remembers which file was opened at a path."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._opened: tuple[int, int] | None = None
        self._next = 0.0

    def opened(self) -> None:
        self._opened = self._look()

    def check(self) -> None:
        """Raises StoreAway for as long as another file, or none, is at the path."""
        now = time.monotonic()
        if now >= self._next:
            self._check()
            self._next = now + LOOK_SECONDS

    def connected(self, connect: Callable[[], apsw.Connection]) -> apsw.Connection:
        """A new connection to the same file, after a fork. Raises StoreAway."""
        self._check()  # else the connection might make a new file
        connection = connect()
        try:
            self._check()
        except StoreAway:
            connection.close()
            raise
        return connection

    def _check(self) -> None:
        if self._look() != self._opened:
            raise StoreAway(
                f"{self._path} was deleted, moved or replaced while this process had it open, so nothing more is "
                "written to it: put the same file back, or restart the process, which then opens what is there"
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:  # the folder can't be searched any more; the open file can still be used
            return self._opened
        return found.st_dev, found.st_ino
