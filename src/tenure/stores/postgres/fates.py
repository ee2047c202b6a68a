"""How a caller's transaction ended, for tests of code that passes a driver's connection as `tx=`.

Drivers have no hook for this, and a connection may be closed right after its commit. The server knows: each
transaction, and each savepoint in which something was written, has an id, whose status any connection may ask for.
"""

from __future__ import annotations

import threading
from pathlib import PurePath
from typing import Any, NamedTuple

import psycopg

from tenure.core.imports import is_a
from tenure.errors import StoreError
from tenure.stores.postgres.joins import join

_IDS = """
    SELECT xmin::text, pg_current_xact_id()::text FROM pg_largeobject_metadata WHERE oid = CAST(:p AS oid)"""
_STATUS = "SELECT pg_xact_status(%s::text::xid8)"


class Mark(NamedTuple):
    """A place in a caller's transaction."""

    connection: object  #: the driver's own
    transaction: str
    savepoint: str  #: the innermost one here, or the transaction


class Fates:
    """Marks places in callers' transactions, and says whether what was done there has committed."""

    def __init__(self) -> None:
        self._servers: dict[tuple[tuple[str, object], ...], psycopg.Connection[Any]] = {}  #: by how to reach them
        self._connecting = threading.Lock()
        self._observers: dict[str, psycopg.Connection[Any]] = {}  #: by the ids that were made on their servers

    def mark(self, tx: object) -> Mark:
        """Needs an `Awaited` for an async driver, as `Joins.run` does. Raises StoreError outside a transaction."""
        joined = join(tx)
        if joined.outside:
            raise StoreError(f"tx is a connection in no transaction: {joined.outside}")
        # A savepoint gets its id by its first write. This one leaves nothing behind, and needs no right and no DDL.
        ((made,),) = joined.execute("SELECT lo_create(0)::text", ())
        ((low, top),) = joined.execute(_IDS, (made,))
        joined.execute("SELECT lo_unlink(CAST(:p AS oid))", (made,))
        mark = Mark(joined.connection, top, _whole(int(low), int(top)))
        way = _way_to(joined.connection)
        key = tuple(sorted(way.items(), key=lambda each: each[0]))
        with self._connecting:
            found = self._servers.get(key)
            if found is None:
                found = self._servers[key] = psycopg.connect(**way, autocommit=True)
        self._observers[top] = self._observers[mark.savepoint] = found
        return mark

    def of(self, xid: str) -> bool | None:
        """True: it has committed. False: it was rolled back. None: it is open."""
        ((status,),) = self._observers[xid].execute(_STATUS, (xid,)).fetchall()
        return None if status == "in progress" else status == "committed"

    def close(self) -> None:
        for each in self._servers.values():
            each.close()
        self._servers.clear()
        self._observers.clear()


def _whole(low: int, top: int) -> str:
    """The 64 bits of a savepoint's id, of which rows keep the lower 32: it is a little above its transaction's."""
    whole = (top & ~0xFFFFFFFF) | low
    return str(whole if whole >= top else whole + (1 << 32))


def _way_to(connection: Any) -> dict[str, Any]:
    """The parameters of another connection to the same database."""
    if is_a(connection, "asyncpg:Connection"):  # it has no public name for these
        where, who = connection._addr, connection._params
        path = PurePath(where) if isinstance(where, str) else None  # of a socket: FOLDER/.s.PGSQL.PORT
        host, port = (str(path.parent), path.suffix[1:]) if path else (str(where[0]), str(where[1]))
        return {"host": host, "port": port, "user": who.user, "password": who.password, "dbname": who.database}
    info = connection.info
    given: dict[str, Any] = info.dsn_parameters if hasattr(info, "dsn_parameters") else info.get_parameters()
    return {**given, "password": info.password}
