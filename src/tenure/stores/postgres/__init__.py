"""The PostgreSQL store: many machines, one server.

How it keeps the promises of `ports.Store`:

1. Every verb is one statement where possible, and the statement that writes checks the lease itself (state, attempt and
   worker). Where `decide` is needed, the rows are locked first, in the order of their ids.
2. All times are the server's. No worker's clock decides anything.
3. Claims and outcomes are committed with the server's full durability, whatever the role's default is.
4. Statements are written so that one index serves them; a test checks their plans.

In a statement `@.` stands for the schema, `@now` for the server's clock. Two rules keep the statements fast when the
statistics are wrong, as when a queue grows from empty to a million jobs and shrinks again:

- rows given by id must be found through the primary key. A condition on `state`, or on a worker given as a constant,
  would make the planner expect almost no match: it would read a whole index, or a partial one that was empty when last
  analysed, and join every finished job with every running one (measured: 2,300 jobs/s instead of 22,000). So each part
  of a lease is compared with a column of the input row that has the id.
- rows chosen through an index are locked there and then written by ctid, not looked up again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from tenure.core.clock import Clock
from tenure.ports import Capabilities
from tenure.stores.postgres.commits import CommitWatch
from tenure.stores.postgres.reads import PostgresReads
from tenure.stores.postgres.schedules import PostgresSchedules
from tenure.stores.postgres.schema import check, migrate
from tenure.stores.postgres.server import MIGRATED_BY, Server, Transaction
from tenure.stores.postgres.texts import PostgresTexts
from tenure.stores.postgres.wait_reads import PostgresWaitReads
from tenure.stores.postgres.waiting import PostgresWaiting
from tenure.stores.postgres.workers import PostgresWorkers


class PostgresStore(
    PostgresWaiting, PostgresWorkers, PostgresSchedules, PostgresWaitReads, PostgresReads, PostgresTexts
):
    """`PostgresStore("postgresql://user@host/database")`. `migrate` creates its tables, in a schema of their own."""

    capabilities = Capabilities(transactions=True, durable=True, steady_clock=False)

    def __init__(
        self,
        url: str,
        *,
        schema: str = "tenure",
        password: str | None = None,
        clock: Clock | None = None,
        migrated_by: str = MIGRATED_BY,
    ) -> None:
        super().__init__(Server(url, schema, password, clock, migrated_by))

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def conninfo(self) -> str:
        """The connection string with the password: for a notifier, never to be shown."""
        return self._server.conninfo

    def migrate(self) -> int:
        return migrate(self._server)

    def open(self) -> None:
        self._server.open()
        try:
            self._server.run(partial(check, self._server))
        except BaseException:
            self._server.close()
            raise
        self._commits = CommitWatch(self._ended)

    def close(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._server.close()

    def upkeep(self) -> None:
        """Nothing to do: the migration configures autovacuum."""

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        tx: Transaction | None = None
        try:
            with self._server.transaction() as tx:
                yield tx
        finally:
            if tx is not None and tx.landed:  # a ring too many costs a query
                for committed in tx.committed:
                    committed()
