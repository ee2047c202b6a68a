"""The schema of a PostgreSQL store: a store that opens checks its version, and `migrate` brings it up to date.

A migration that changes a table needs a moment in which no other open transaction has used that table. For each table
it waits 1.5 s at most, as claims and enqueues wait behind it, then lets them go on and tries again.
"""

from __future__ import annotations

import time
from importlib import resources

import psycopg

from tenure.core.durations import spell
from tenure.core.logs import logger
from tenure.core.text import UPGRADE
from tenure.errors import StoreBusy, StoreError
from tenure.stores.postgres.server import ROLLED_BACK, Connection, Server

OLDEST = 14
MIGRATE_SECONDS = 60.0  #: how long `migrate` tries again while other transactions hold the tables
PAUSE_SECONDS = 2.0  #: between two tries: claims go on meanwhile

_MIGRATING = 0x54454E55  # "TENU": the advisory lock of a migration
_log = logger("tenure.store")

# A role without pg_read_all_stats sees the pid of another role's session, and no more.
_HOLDERS = """SELECT a.pid, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age
    FROM pg_stat_activity AS a WHERE a.pid <> pg_backend_pid() AND a.pid IN (
      SELECT l.pid FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
      JOIN pg_namespace AS n ON n.oid = c.relnamespace
      JOIN pg_database AS d ON d.oid = l.database
      WHERE l.granted AND n.nspname = %s AND d.datname = current_database())
    ORDER BY age DESC NULLS LAST LIMIT 3"""


def check(server: Server, connection: Connection) -> None:
    """StoreError if this code can't use the server or the schema."""
    _check_server(server, connection)
    newest = migrations()[-1][0]
    found = connection.execute(server.sql("SELECT max(version) FROM @.migrations")).fetchone()
    version = 0 if found is None or found[0] is None else int(found[0])
    if version < newest:
        raise StoreError(
            f"{server.url}: schema {server.schema} has version {version}, this Tenure needs {newest}: "
            f"run `{server.migrated_by}`"
        )
    _refuse_newer(server, version, newest)


def migrate(server: Server) -> int:
    """Apply the missing migrations, in one transaction, one process at a time. StoreBusy after `MIGRATE_SECONDS`."""
    with server.mapping_errors(), server.connect() as connection:
        give_up_at: float | None = None
        while True:
            try:
                with connection.transaction():
                    return _migrate(server, connection, migrations())
            except (psycopg.errors.LockNotAvailable, *ROLLED_BACK) as error:
                holders = _holders(server, connection)
                give_up_at = give_up_at or time.monotonic() + MIGRATE_SECONDS  # not from when another one migrated
                if time.monotonic() + PAUSE_SECONDS > give_up_at:
                    raise StoreBusy(
                        f"{server.url}: migrating needs a moment in which no other transaction holds the tables of "
                        f"schema {server.schema}, and found none in {MIGRATE_SECONDS:g}s: {holders}. Nothing was "
                        "changed: run it again later, or first end a session that is idle in transaction "
                        "(pg_terminate_backend)"
                    ) from error
            _log.warning("migrating waits for other transactions, and tries again: %s", holders)
            time.sleep(PAUSE_SECONDS)


def _migrate(server: Server, connection: Connection, scripts: list[tuple[int, str]]) -> int:
    _check_server(server, connection)
    # Another process may be migrating: wait until it is done.
    connection.execute("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
    connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_MIGRATING, server.schema))
    _begin(server, connection)
    (version,) = connection.execute(server.sql("SELECT coalesce(max(version), 0) FROM @.migrations")).fetchall()[0]
    _refuse_newer(server, version, scripts[-1][0])
    for number, script in scripts:
        if number > version:
            connection.execute(server.sql(script))
            connection.execute(server.sql("INSERT INTO @.migrations (version) VALUES (%s)"), (number,))
            version = number
    return int(version)


def _begin(server: Server, connection: Connection) -> None:
    """Create only what is missing: `IF NOT EXISTS` would require the right to create it even if it exists."""
    made = connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", (server.schema,)).rowcount
    if not made:
        connection.execute(server.sql(f'CREATE SCHEMA "{server.schema}"'))
    table = f'"{server.schema}".migrations'
    if not made or connection.execute("SELECT FROM to_regclass(%s) AS t WHERE t IS NOT NULL", (table,)).rowcount == 0:
        connection.execute(
            server.sql(
                "CREATE TABLE @.migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            )
        )


def _holders(server: Server, connection: Connection) -> str:
    """The sessions that hold locks on the tables now, the oldest transaction first, as a message tells them."""
    found = connection.execute(_HOLDERS, (server.schema,)).fetchall()
    told = [
        f"session {pid}" + (f" ({state}, its transaction is {spell(round(age, 1))} old)" if state and age else "")
        for pid, state, age in found
    ]
    return ", ".join(told) or "those that did have ended since"


def _check_server(server: Server, connection: Connection) -> None:
    if connection.info.server_version < OLDEST * 10_000:
        raise StoreError(
            f"{server.url} is PostgreSQL {connection.info.server_version // 10_000}: Tenure needs {OLDEST} or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", "SQL_ASCII"):
        raise StoreError(
            f"{server.url} is encoded in {encoding}, which can't hold every text: use a database made with "
            "ENCODING 'UTF8'"
        )


def _refuse_newer(server: Server, version: int, newest: int) -> None:
    if version > newest + 1:
        raise StoreError(
            f"{server.url}: schema {server.schema} has version {version}, this Tenure knows {newest} and accepts one "
            f"newer: {UPGRADE}"
        )


def migrations() -> list[tuple[int, str]]:
    """(version, script) of every file in migrations/postgres, oldest first."""
    folder = resources.files("tenure.stores") / "migrations" / "postgres"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name.partition("_")[0]), (folder / name).read_text("utf-8")) for name in names]
