"""A handler that fails because a connection was lost: what it costs its job."""

from __future__ import annotations

import logging
from itertools import islice
from types import SimpleNamespace
from typing import Any

import asyncpg
import oracledb
import psycopg
import psycopg2
import pymysql
import pytest
import sqlalchemy
from django.db.utils import DatabaseErrorWrapper
from oracledb.errors import _Error

from tenure import Fail, Retry, Task, Tenure
from tenure.errors import StoreAway, StoreBusy
from tenure.events import LOST
from tenure.worker.drivers import connection_lost
from tenure.worker.lost import FREE, _causes

AWAY = StoreAway("the server is gone")
CUT = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def oracle(text: str, code: int = 0) -> Exception:
    """As the driver makes one: the class depends on the code."""
    about = _Error(text, code=code)
    return about.exc_type(about)


def like(module: str, *args: Any, name: str = "OperationalError", **attributes: Any) -> Exception:
    """An error of a driver that needs a library of its server, and so is not installed here."""
    error = type("Error", (Exception,), {"__module__": module})
    raised: Exception = type(name, (error,), {"__module__": module, **attributes})(*args)
    return raised


#: What drivers raise when a connection is lost, …
LOST_BY: dict[str, Exception] = {
    "psycopg, ended by the server": psycopg.errors.AdminShutdown("terminating connection"),
    "psycopg, found closed": psycopg.OperationalError("server closed the connection unexpectedly"),
    "psycopg2": psycopg2.OperationalError("server closed the connection unexpectedly"),
    "asyncpg, ended by the server": asyncpg.AdminShutdownError("terminating connection"),
    "asyncpg, found closed": asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    "pymysql, cut": CUT,
    "pymysql, gone": pymysql.err.OperationalError(2006, "MySQL server has gone away"),
    "pymysql, refused": pymysql.err.OperationalError(2003, "Can't connect to MySQL server on 'db'"),
    "pymysql, shut down": pymysql.err.OperationalError(1053, "Server shutdown in progress", sqlstate="08S01"),
    "pymysql, idle": pymysql.err.OperationalError(4031, "The client was disconnected by the server"),
    "pymysql, used again": pymysql.err.InterfaceError(0, ""),
    "MySQLdb": like("MySQLdb", 2013, "Lost connection to MySQL server during query"),
    "mysql.connector": like("mysql.connector.errors", 2013, "2013 (HY000): Lost connection", "HY000"),
    "mysql.connector, used again": like("mysql.connector.errors", -1, "MySQL Connection not available.", None),
    "asyncmy": like("asyncmy.errors", 2006, "MySQL server has gone away"),
    "oracledb, closed": oracle("ORA-03113: end-of-file on communication channel", 3113),
    "oracledb, not connected": oracle("DPY-1001: not connected to database"),
    "oracledb, shuts down": oracle("ORA-01090: shutdown in progress", 1090),
    "oracledb, no listener": oracle("DPY-6005: cannot connect to database"),
    "cx_Oracle": like("cx_Oracle", SimpleNamespace(code=3114, message="ORA-03114: not connected to ORACLE")),
    "cx_Oracle, closed": like("cx_Oracle", SimpleNamespace(code=12541, message="ORA-12541: TNS:no listener")),
}
#: … and what they raise otherwise.
NOT_LOST: dict[str, Exception] = {
    "psycopg, deadlock": psycopg.errors.DeadlockDetected("deadlock detected"),
    "psycopg, time-out": psycopg.errors.QueryCanceled("canceling statement due to statement timeout"),
    "psycopg, no such row": psycopg.ProgrammingError("the last operation didn't produce records"),
    "asyncpg, deadlock": asyncpg.DeadlockDetectedError("deadlock detected"),
    "asyncpg, busy": asyncpg.InterfaceError("another operation is in progress"),
    "pymysql, deadlock": pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock"),
    "pymysql, lock": pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"),
    "pymysql, password": pymysql.err.OperationalError(1045, "Access denied for user"),
    "pymysql, no such table": pymysql.err.ProgrammingError(1146, "Table 'shop.orders' doesn't exist"),
    "pymysql, without a code": pymysql.err.OperationalError("LOAD DATA LOCAL is refused"),
    "mysql.connector": like("mysql.connector.errors", -1, "Unread result found", None, name="InternalError"),
    "oracledb, unique": oracle("ORA-00001: unique constraint violated", 1),
    "oracledb, deadlock": oracle("ORA-00060: deadlock detected while waiting for resource", 60),
    "oracledb, time-out": oracle("DPY-4024: call timeout of 100 ms exceeded"),
    "cx_Oracle": like("cx_Oracle", SimpleNamespace(code=1013, message="ORA-01013: user requested cancel")),
    "a code of nobody we know": like("shop.billing", 2013, "Lost connection"),
    "nothing": ValueError(),
}


def of(error: Exception, cause: Exception = AWAY) -> Exception:
    error.__cause__ = cause
    return error


def task_that_raises(jobs: Tenure, error: Exception, retry: Retry | int, *, is_async: bool) -> Task[..., Any]:
    if is_async:

        @jobs.task(name="act", retry=retry)
        async def aact() -> None:
            raise error

        return aact

    @jobs.task(name="act", retry=retry)
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "retry", "costs"),
    [
        (AWAY, 1, False),
        (of(ValueError("not stored")), Retry(1, on=OSError), False),
        (ExceptionGroup("", [AWAY, of(ValueError("not stored"))]), 1, False),
        (ExceptionGroup("", [AWAY, ValueError("broken")]), 1, True),
        (of(Fail("no such page", final=True)), 2, True),
        (AWAY, Retry(1, never=StoreAway), True),
        (StoreBusy("another transaction has it"), 1, True),
        (ValueError("broken"), 1, True),
        (CUT, 1, False),
        (of(ValueError("not stored"), CUT), 1, False),
        (of(StoreBusy("another transaction has it"), psycopg.OperationalError("it said no more")), 1, True),
    ],
)
def test_a_lost_connection_is_no_failure_of_the_code(
    is_async: bool, error: Exception, retry: Retry | int, costs: bool
) -> None:
    jobs = Tenure()
    task = task_that_raises(jobs, error, retry, is_async=is_async)
    with jobs.testing() as queue:
        handle = task.enqueue()
        with pytest.raises(type(error)):
            queue.drain()

        job = queue.client.store.get(str(handle.id))
        assert job is not None
        assert (job.state, job.failures) == (("dead", 1) if costs else ("scheduled", 0))


@pytest.mark.parametrize("name", LOST_BY)
def test_drivers_say_that_a_connection_was_lost(name: str) -> None:
    assert connection_lost(LOST_BY[name])


@pytest.mark.parametrize("name", NOT_LOST)
def test_what_else_drivers_say_is_the_codes_own_business(name: str) -> None:
    assert not connection_lost(NOT_LOST[name])


@pytest.mark.parametrize("name", [name for name in LOST_BY if name.startswith(("pymysql", "oracledb", "psycopg,"))])
def test_it_is_found_under_the_errors_of_django_and_sqlalchemy(name: str) -> None:
    error = LOST_BY[name]
    home = {"pymysql": pymysql, "oracledb": oracledb, "psycopg": psycopg}[name.partition(",")[0]]
    with pytest.raises(Exception) as django, DatabaseErrorWrapper(SimpleNamespace(Database=home, errors_occurred=True)):
        raise error
    assert type(django.value).__module__ == "django.db.utils"
    assert any(map(connection_lost, _causes(django.value)))

    def refuse() -> Any:
        raise error

    scheme = {pymysql: "mysql+pymysql", oracledb: "oracle+oracledb", psycopg: "postgresql+psycopg"}[home]
    with pytest.raises(sqlalchemy.exc.DBAPIError) as wrapped:
        sqlalchemy.create_engine(f"{scheme}://", creator=refuse).connect()
    assert any(map(connection_lost, _causes(wrapped.value)))


def test_an_error_that_was_raised_from_itself_has_one_cause() -> None:
    error, other = ValueError("in a circle"), ValueError("in one of two")
    error.__cause__, other.__cause__ = other, error

    assert list(islice(_causes(error), 5)) == [error, other]


def test_a_job_that_loses_its_connection_each_time_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Tenure()
    task = task_that_raises(jobs, AWAY, 1, is_async=False)
    with jobs.testing() as queue, caplog.at_level(logging.WARNING, "tenure.worker"):
        handle = task.enqueue()
        for _ in range(FREE):
            queue.drain(failures="retry")
            queue.advance("30s")
        with pytest.raises(StoreAway):
            queue.drain(failures="retry")

        attempts = queue.client.store.attempts(str(handle.id))
        assert [each.outcome for each in attempts] == ["snoozed"] * FREE + ["failed"]
        assert attempts[0].error == f"{LOST}: StoreAway: the server is gone"
        assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [AWAY] * FREE
