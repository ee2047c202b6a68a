"""The base of the SQLite store: its file and its clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tenure.core.clock import Clock, system_clock
from tenure.stores.sqlite.file import DatabaseFile, fetch


class SqliteBase:
    """The file, and times in milliseconds: the wall clock for people, the time since boot for leases."""

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        self._file = DatabaseFile(path)
        self._clock = clock or system_clock()

    def now(self) -> datetime:
        return instant(self._now())

    def _fetch(self, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
        """All rows of one read statement."""
        return self._file.read(lambda connection: fetch(connection, sql, bindings))

    def _now(self) -> int:
        return int(self._clock.unix() * 1000)

    def _boot(self) -> int:
        return int(self._clock.boot() * 1000)

    def _moment(self) -> dict[str, Any]:
        return {"now": self._now(), "boot": self._boot(), "boot_id": self._clock.boot_id}


def millis(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
