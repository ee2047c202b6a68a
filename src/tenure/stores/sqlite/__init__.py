"""The SQLite store: one file, shared by all processes of one machine.

How it keeps the promises of `ports.Store`:

1. One writer at a time: each verb is one `BEGIN IMMEDIATE … COMMIT` with `synchronous=FULL`, so nothing changes between
   its reads and its writes, and what it returns is on disk. Verbs that wait at the same time are committed together.
2. The statement that writes checks the lease all the same: state, attempt and worker.
3. Leases and silence are measured by CLOCK_BOOTTIME and the boot id: a clock step ends no lease, a reboot ends all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from tenure.ports import Capabilities
from tenure.stores.sqlite.copies import copy_to
from tenure.stores.sqlite.file import DatabaseFile, Transaction, fetch, migrations
from tenure.stores.sqlite.jobs import SqliteJobs
from tenure.stores.sqlite.reads import SqliteReads
from tenure.stores.sqlite.schedules import SqliteSchedules
from tenure.stores.sqlite.texts import SqliteTexts
from tenure.stores.sqlite.upkeep import checkpoint
from tenure.stores.sqlite.waiting import SqliteWaiting
from tenure.stores.sqlite.workers import SqliteWorkers


class SqliteStore(SqliteJobs, SqliteWorkers, SqliteWaiting, SqliteSchedules, SqliteReads, SqliteTexts):
    """`SqliteStore("tenure.db")`: the default store. Creates its tables on first use."""

    capabilities = Capabilities(transactions=True, durable=True, steady_clock=True, one_writer=True)

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

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> int:
        """Copy the database to a file while work goes on; `progress(done, total)` in pages. Returns the copy's bytes.

        Raises StoreError, among others if another process has that file open.
        """
        return self._file.read(lambda connection: copy_to(connection, path, progress))

    def damage(self) -> list[str]:
        """The problems that SQLite's quick check finds in the file; empty if there are none."""
        found = self._file.read(lambda connection: fetch(connection, "PRAGMA quick_check"))
        return [row[0] for row in found if row[0] != "ok"]

    def upkeep(self) -> None:
        self._file.read(checkpoint)

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._file.transaction() as transaction:
            yield transaction
