"""Which errors of database drivers say that a connection was lost, or could not be made.

Recognized by the names of their modules and by their codes: nothing here imports a driver. Django and SQLAlchemy raise
their own errors *from* these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenure.errors import StoreAway, StoreBusy

#: SQLSTATEs: connection exceptions; the server ended the connection, has crashed, is starting, or found it idle for too
#: long.
_POSTGRES = ("08", "57P01", "57P02", "57P03", "57P05")
#: The client can't connect (2002, 2003, 2005), or has lost the server (2006, 2013, 2055). The server shuts down (1053,
#: 1077, 1079), ended the connection (1080, 1152, 1184, 1927, 3169), can't read or write (1158 to 1161), or found it
#: idle for too long (4031).
_MYSQL = frozenset(
    (1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 3169, 4031)
)
#: The session was killed (28, 31, 45) or was idle for too long (2396); the server is starting or shuts down (1033,
#: 1034, 1089, 1090, 1092); there is no connection any more (1012, 3113, 3114, 3135); the network, the listener (12…).
_ORACLE = frozenset(
    (
        *(28, 31, 45, 1012, 1033, 1034, 1089, 1090, 1092, 2396, 3113, 3114, 3135),
        *(12153, 12203, 12514, 12528, 12537, 12541, 12543, 12547, 12560, 12570, 12571, 12583, 12757),
    )
)
#: The same in the words of the driver, as far as it has its own: not connected, closed by the server or the network,
#: idle for too long, refused by the listener, can't connect.
_ORACLE_DRIVER = frozenset(("DPY-1001", "DPY-4011", "DPY-4033", "DPY-6000", "DPY-6005", "DPI-1010", "DPI-1080"))


def connection_lost(error: BaseException) -> bool:
    """Does this error say that a connection was lost, or could not be made: by the store, or by a database's driver?"""
    if isinstance(error, StoreAway):
        return not isinstance(error, StoreBusy)
    homes = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    return any(judge(error) for home, judge in _DRIVERS.items() if home in homes)


def _postgres(error: BaseException) -> bool:
    missing: Any = object()  # stands for an error that did not come from the server
    state = getattr(error, "sqlstate", getattr(error, "pgcode", missing))
    if state is None:  # the driver gave up, and not the server
        return _is(error, "OperationalError")
    return isinstance(state, str) and state.startswith(_POSTGRES)


def _mysql(error: BaseException) -> bool:
    code = error.args[0] if error.args else None
    if code in (0, -1):  # the connection had been lost before; this has no code of its own
        return _is(error, "InterfaceError") if code == 0 else "not available" in str(error)
    return _is(error, "Error") and isinstance(code, int) and code in _MYSQL


def _oracle(error: BaseException) -> bool:
    about = error.args[0] if error.args else None
    return getattr(about, "full_code", "") in _ORACLE_DRIVER or getattr(about, "code", 0) in _ORACLE


def _is(error: BaseException, name: str) -> bool:
    return any(each.__name__ == name for each in type(error).__mro__)


_DRIVERS: Mapping[str, Callable[[BaseException], bool]] = {
    **dict.fromkeys(("psycopg", "psycopg2", "asyncpg"), _postgres),
    **dict.fromkeys(("pymysql", "MySQLdb", "mysql", "asyncmy"), _mysql),  # aiomysql raises those of pymysql
    **dict.fromkeys(("oracledb", "cx_Oracle"), _oracle),
}
