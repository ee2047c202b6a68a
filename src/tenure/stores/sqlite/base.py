"""The base of the SQLite store: its file and its clocks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tenure.core.clock import Clock, system_clock
from tenure.stores.sqlite.file import DatabaseFile, fetch

#: The queues with queued jobs: one or two look-ups in the index for each, however many are served.
_WITH_JOBS = """
    WITH RECURSIVE names (queue) AS (
        SELECT min(queue) FROM jobs INDEXED BY jobs_queued WHERE state = 'queued'
        UNION ALL
        SELECT (SELECT min(queue) FROM jobs INDEXED BY jobs_queued WHERE state = 'queued' AND queue > names.queue)
        FROM names WHERE names.queue IS NOT NULL)
    SELECT queue, EXISTS (
        SELECT 1 FROM jobs INDEXED BY jobs_queued WHERE state = 'queued' AND queue = names.queue AND solo = :solo)
    FROM names WHERE queue IS NOT NULL LIMIT :most"""


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

    def _with_jobs(self, queues: Sequence[str], *, solo: bool) -> Sequence[str]:
        """Those in which jobs are queued, in the same order; or all, if most queues are of other workers."""
        most = 2 * len(queues)
        found = dict(self._fetch(_WITH_JOBS, {"solo": int(solo), "most": most + 1}))
        return queues if len(found) > most else [queue for queue in queues if found.get(queue)]

    def _now(self) -> int:
        return int(self._clock.unix() * 1000)

    def _boot(self) -> int:
        return int(self._clock.boot() * 1000)

    def _moment(self) -> dict[str, Any]:
        return {"now": self._now(), "boot": self._boot(), "boot_id": self._clock.boot_id}


def instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
