"""Statements in a caller's transaction, through the caller's own driver: one statement with one text, and its rows.

SQLAlchemy, psycopg, psycopg2, asyncpg and Django are recognized by the classes they have loaded; none is imported here.
A transaction in another database is refused, and so is a connection without a transaction: in autocommit the job would
be committed alone. The refusal comes before any write and leaves the transaction usable. Later errors in it belong to
the caller and are raised as the driver's own.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from psycopg import AsyncCursor, Cursor
from psycopg.rows import tuple_row

from tenure.core.imports import is_a
from tenure.core.text import a
from tenure.errors import BadData, OtherDatabase, StoreError
from tenure.ports import Awaited

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
_Wait = Callable[[Coroutine[Any, Any, Any]], Any]

#: The identity of a `Database`. Any role may read it, and unlike the cluster's identifier it distinguishes a clone from
#: its original. An epoch, since the text of a timestamp depends on the session's settings.
WHERE = "SELECT current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text"

_MARK = re.compile(r"(?<!:):p\b")


class Database(NamedTuple):
    """One database of one running server."""

    name: str
    server_started: str


class Joined(NamedTuple):
    """A caller's transaction, whichever driver it uses."""

    connection: object  #: the driver's own: it outlives a session and the proxy that a pool hands out
    outside: str  #: why it is in no transaction; '' if it is in one
    execute: Callable[[str, tuple[str, ...]], Rows]


class Joins:
    """Runs statements in callers' transactions if they are in the store's database, which `ours` returns."""

    def __init__(self, ours: Callable[[], Database]) -> None:
        self._ours = ours
        self._known: WeakSet[Any] = WeakSet()

    def run(self, tx: object, sql: str, text: str) -> Rows:
        """All rows of `sql`, which contains `:p` once for the text. Columns should be text, numbers or booleans.

        An async driver needs an `Awaited`, and a thread other than that of its loop.
        """
        joined = join(tx)
        if joined.outside:
            raise StoreError(
                f"tx is {_named(tx)}, but in no transaction: {joined.outside}; "
                "otherwise the job would be committed alone, even if your rows are rolled back"
            )
        if joined.connection not in self._known:
            self._refuse_elsewhere(Database(*joined.execute(WHERE, ())[0]))
            self._known.add(joined.connection)
        try:
            return joined.execute(sql, (text,))
        except Exception as error:
            if _is_about_data(error):
                raise BadData(f"the transaction's database refused a value: {_first_line(error)}") from error
            raise

    def _refuse_elsewhere(self, theirs: Database) -> None:
        ours = self._ours()
        if theirs == ours:
            return
        elsewhere = f"'{theirs.name}'" if theirs.name != ours.name else "one of the same name on another server"
        raise OtherDatabase(
            f"tx is connected to database {elsewhere}, the jobs are in '{ours.name}': a transaction cannot span both"
        )


def join(tx: object) -> Joined:
    """The transaction of a caller's session or connection. Raises StoreError for anything else."""
    loop: asyncio.AbstractEventLoop | None = None
    if isinstance(tx, Awaited):
        tx, loop = tx

    def wait(coroutine: Coroutine[Any, Any, T]) -> T:
        if loop is None:
            coroutine.close()
            raise StoreError(
                f"tx is {_named(tx)}, whose driver must be awaited: "
                "write `await task.using(tx=tx).aenqueue(…)`, or `await job.afinish(…, tx=tx)`"
            )
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    it: Any = tx
    if is_a(it, "sqlalchemy.orm:scoped_session", "sqlalchemy.ext.asyncio:async_scoped_session"):
        it = it.registry()
    if is_a(it, "sqlalchemy.orm:Session"):
        return _sqlalchemy(it.connection())
    if is_a(it, "sqlalchemy.ext.asyncio:AsyncSession"):
        it = wait(it.connection())
    if is_a(it, "sqlalchemy.ext.asyncio:AsyncConnection"):
        return _sqlalchemy(it.sync_connection, lambda query, values: wait(it.execute(query, values)))
    if is_a(it, "sqlalchemy:Connection"):
        return _sqlalchemy(it)
    if is_a(it, "psycopg:Connection"):
        return _psycopg(it)
    if is_a(it, "psycopg:AsyncConnection"):
        return _psycopg_async(it, wait)
    if is_a(it, "psycopg2.extensions:connection"):
        return _psycopg2(it)
    if is_a(it, "asyncpg:Connection"):
        return _asyncpg(it, wait)
    if is_a(it, "django.utils.connection:ConnectionProxy", "django.db.backends.base.base:BaseDatabaseWrapper"):
        return _django(it, elsewhere=loop is not None)
    raise StoreError(
        f"tx is {_named(tx)}: expected the open transaction of a SQLAlchemy session or connection, of a psycopg, "
        "psycopg2, asyncpg or Django connection, or what `with jobs.transaction() as tx` gives"
    )


# ── One library each ────────────────────────────────────────────────────────────────────────────────────────────


def _sqlalchemy(connection: Any, execute: Callable[[Any, dict[str, str]], Any] | None = None) -> Joined:
    text: Any = sys.modules["sqlalchemy"].text
    if connection is None:
        raise StoreError("tx is an AsyncConnection that is not open: use it inside `async with engine.begin() as tx:`")
    if connection.dialect.name != "postgresql":
        raise _not_postgres(connection.dialect.name, connection.engine.url.database)
    run = execute or connection.execute

    def fetch(sql: str, texts: tuple[str, ...]) -> Rows:
        found = run(text(_colon(sql)), {"text": texts[0]} if texts else {})
        return [tuple(row) for row in found.fetchall()]

    # The driver's own attribute: SQLAlchemy would have to ask the server for the isolation level.
    alone = getattr(connection.connection.dbapi_connection, "autocommit", False)
    outside = "its isolation level is AUTOCOMMIT, so use one without" if alone else ""
    return Joined(connection.connection.driver_connection, outside, fetch)


def _psycopg(connection: Any) -> Joined:
    def fetch(sql: str, texts: tuple[str, ...]) -> Rows:  # its own cursor_factory may want other placeholders
        cursor: Any = Cursor(connection, row_factory=tuple_row)
        return list(cursor.execute(_percent(sql), texts).fetchall())

    return Joined(connection, _outside_psycopg(connection), fetch)


def _psycopg_async(connection: Any, wait: _Wait) -> Joined:
    async def afetch(sql: str, texts: tuple[str, ...]) -> Rows:
        cursor: Any = AsyncCursor(connection, row_factory=tuple_row)
        await cursor.execute(_percent(sql), texts)
        return list(await cursor.fetchall())

    def fetch(sql: str, texts: tuple[str, ...]) -> Rows:
        return list(wait(afetch(sql, texts)))

    return Joined(connection, _outside_psycopg(connection), fetch)


def _outside_psycopg(connection: Any) -> str:
    if connection.closed:
        return "the connection is closed, so use an open one"
    idle = connection.info.transaction_status.name == "IDLE"
    block = "`with connection.transaction():`"
    return f"the connection is in autocommit, so use it inside {block}" if connection.autocommit and idle else ""


def _psycopg2(connection: Any) -> Joined:
    extensions: Any = sys.modules["psycopg2.extensions"]

    def fetch(sql: str, texts: tuple[str, ...]) -> Rows:
        with connection.cursor(cursor_factory=extensions.cursor) as plain:
            plain.execute(_percent(sql), texts)
            return list(plain.fetchall())

    if connection.closed:
        outside = "the connection is closed, so use an open one"
    else:
        alone = connection.autocommit and connection.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE
        outside = "the connection is in autocommit, so set `connection.autocommit = False`" if alone else ""
    return Joined(connection, outside, fetch)


def _asyncpg(connection: Any, wait: _Wait) -> Joined:
    def fetch(sql: str, texts: tuple[str, ...]) -> Rows:
        return [tuple(record.values()) for record in wait(connection.fetch(_dollar(sql), *texts))]

    outside = "" if connection.is_in_transaction() else "use it inside `async with connection.transaction():`"
    return Joined(getattr(connection, "_con", connection), outside, fetch)  # a pool returns a new proxy each time


def _django(connection: Any, *, elsewhere: bool) -> Joined:
    if elsewhere:
        raise StoreError(
            "tx is Django's connection, which belongs to the thread of its transaction: "
            "write `task.using(tx=tx).enqueue(…)` in the function that `sync_to_async` runs"
        )
    vendor = getattr(connection, "vendor", "cache")
    if vendor != "postgresql":
        raise _not_postgres(vendor, getattr(connection, "settings_dict", {}).get("NAME"))

    def fetch(sql: str, texts: tuple[str, ...]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(_percent(sql), texts)
            return list(cursor.fetchall())

    inside = connection.in_atomic_block or not connection.get_autocommit()
    return Joined(connection.connection, "" if inside else "use it inside `with transaction.atomic():`", fetch)


# ── One statement in their spellings ────────────────────────────────────────────────────────────────────────────
# The cast makes it a text: the caller's connection may have adapters of its own for JSON.


@lru_cache
def _colon(sql: str) -> str:
    return "CAST(:text AS text)".join(part.replace(":", r"\:") for part in _MARK.split(sql))


@lru_cache
def _percent(sql: str) -> str:
    return "CAST(%s AS text)".join(part.replace("%", "%%") for part in _MARK.split(sql))


@lru_cache
def _dollar(sql: str) -> str:
    return "CAST($1 AS text)".join(_MARK.split(sql))


# ── Their errors ────────────────────────────────────────────────────────────────────────────────────────────────


def _is_about_data(error: BaseException) -> bool:
    """Is it of class 22, even if wrapped? Errors that psycopg and Django detect themselves have no code."""
    if any(kind.__name__ == "DataError" for kind in type(error).__mro__):
        return True
    cause: Any = getattr(error, "orig", None) or error
    code: Any = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if code is None and cause.args and isinstance(cause.args[0], dict):  # pg8000
        code = cast("dict[str, str]", cause.args[0]).get("C")
    return str(code).startswith("22")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def _not_postgres(vendor: str, database: object) -> StoreError:
    named = f" database '{database}'" if database else ""
    return StoreError(
        f"tx is connected to a {vendor}{named}, the jobs are in PostgreSQL: a transaction cannot span both"
    )


def _named(tx: object) -> str:
    return a(type(tx.tx if isinstance(tx, Awaited) else tx).__name__)
