"""The SQLite store: one file, every process of one machine.

How it keeps the promises of `ports.Store`:

1. One writer at a time: each verb is one `BEGIN IMMEDIATE … COMMIT` with `synchronous=FULL`, so what it read is what
   it changes, and what it answered is on the disk. Verbs that wait together are committed together.
2. Every guard stands in the statement that writes, all the same: state, attempt and worker of the lease.
3. Leases and silences compare CLOCK_BOOTTIME and the boot id: a clock step ends no lease, a reboot ends them all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from tenure.ports import Capabilities
from tenure.stores.sqlite.file import DatabaseFile, Transaction, fetch, migrations
from tenure.stores.sqlite.jobs import SqliteJobs
from tenure.stores.sqlite.reads import SqliteReads
from tenure.stores.sqlite.schedules import SqliteSchedules
from tenure.stores.sqlite.workers import SqliteWorkers


class SqliteStore(SqliteJobs, SqliteWorkers, SqliteSchedules, SqliteReads):
    """`SqliteStore("tenure.db")`: the default store. Makes its tables on first use."""

    capabilities = Capabilities(transactions=True, durable=True, steady_clock=True, local=True)

    @property
    def url(self) -> str:
        return f"sqlite:///{self._file.path}"

    def open(self) -> None:
        self._file.open()
        try:
            self._file.migrate(migrations())
        except BaseException:
            self._file.close()
            raise

    def migrate(self) -> int:
        file = DatabaseFile(self._file.path)
        file.open()
        try:
            return file.migrate(migrations())
        finally:
            file.close()

    def close(self) -> None:
        self._file.close()

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy the database to a new file while work goes on; `progress(done, total)` in pages."""
        self._file.backup(path, progress)

    def damage(self) -> list[str]:
        """What SQLite's own quick check finds wrong with the file; empty when nothing."""
        found = self._file.read(lambda connection: fetch(connection, "PRAGMA quick_check"))
        return [row[0] for row in found if row[0] != "ok"]

    def upkeep(self) -> None:
        self._file.checkpoint()

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._file.transaction() as transaction:
            yield transaction
