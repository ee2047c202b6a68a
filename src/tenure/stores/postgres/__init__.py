"""The PostgreSQL store: many machines, one server.

How it keeps the promises of `ports.Store`:

1. Every verb is one statement where it can be; its guard (state, attempt and worker of the lease) stands in the very
   statement that writes. Where `decide` is needed, the rows are locked in the order of their ids first.
2. All times are the server's. No clock of a worker decides anything.
3. Claims and outcomes are committed with the server's full durability, whatever the role's default is.
4. Statements are written so that one index fits; a test reads their plans.

In a statement `@.` stands for the schema, `@now` for the server's clock. Two rules keep the statements fast when the
statistics lie, as they do when a queue goes from empty to a million and back:

- what comes with ids must be found by the primary key. A condition on `state`, or on a worker that is a constant,
  would let the planner believe that next to no row meets it: it would read a whole index, or a partial one that was
  empty when it was last analysed, and join every finished job with every running one (measured: 2,300 jobs/s instead
  of 22,000). So all of a lease is compared with what came with the id.
- what is chosen by an index is locked there, and then written by its place (ctid), not looked up again.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tenure.core.clock import Clock
from tenure.ports import Capabilities
from tenure.stores.postgres.commits import CommitWatch
from tenure.stores.postgres.jobs import PostgresJobs
from tenure.stores.postgres.reads import PostgresReads
from tenure.stores.postgres.schedules import PostgresSchedules
from tenure.stores.postgres.server import Server, Transaction
from tenure.stores.postgres.workers import PostgresWorkers


class PostgresStore(PostgresJobs, PostgresWorkers, PostgresSchedules, PostgresReads):
    """`PostgresStore("postgresql://user@host/database")`. Its tables are made by `migrate`, in a schema of its own."""

    capabilities = Capabilities(transactions=True, durable=True, steady_clock=False, local=False)

    def __init__(
        self, url: str, *, schema: str = "tenure", password: str | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(Server(url, schema, password, clock))

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def conninfo(self) -> str:
        """How to connect, with the password: for a notifier, never for a person."""
        return self._server.conninfo

    def migrate(self) -> int:
        return self._server.migrate()

    def open(self) -> None:
        self._server.open()
        self._commits = CommitWatch(self._ended)

    def close(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._server.close()

    def upkeep(self) -> None:
        """Nothing: autovacuum is set by the migration."""

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._server.transaction() as tx:
            yield tx
        for committed in tx.committed:
            committed()
