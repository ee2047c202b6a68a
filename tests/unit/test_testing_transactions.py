"""`tx=` of other libraries in `jobs.testing()`: the job is there exactly when that transaction commits."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from garbage import nothing_dropped_open
from servers import shared_postgres
from tenure import Job, Task, Tenure
from tenure.errors import StoreError
from tenure.testing import TestQueue
from waiting import until

DRIVERS = ["psycopg async", "psycopg2", "asyncpg"]


class Shop:
    def __init__(self, queue: TestQueue, pay: Task[[int], int]) -> None:
        self.queue, self.pay = queue, pay

    @property
    def orders(self) -> list[int]:
        """The orders of the jobs that are in the queue."""
        found = [self.queue.client.store.get(str(handle.id)) for handle in self.queue.enqueued(self.pay)]
        return [json.loads(job.payload)["order"] for job in found if job is not None]


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://", poolclass=StaticPool)

    @event.listens_for(engine, "connect")
    def by_hand(connection: Any, _: object) -> None:  # else sqlite3 begins no transaction before a savepoint
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE a (id int PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE b (a int REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)"))
    yield engine
    engine.dispose()


@pytest.fixture
def shop() -> Iterator[Shop]:
    jobs = Tenure("sqlite:////nowhere/at/all.db")

    @jobs.task
    def pay(order: int) -> int:
        return order

    with jobs.testing() as queue:
        yield Shop(queue, pay)


@pytest.fixture(params=["session", "scoped", "joined", "connection"])
def tx(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Any]:
    """An open transaction: of a session, of one inside a test's own transaction, of a connection."""
    with engine.connect() as connection:
        match request.param:
            case "session":
                with Session(connection) as session:
                    yield session
            case "scoped":
                scoped = scoped_session(sessionmaker(connection))
                yield scoped
                scoped.remove()
            case "joined":  # the usual recipe of a test: its rollback undoes what the session has committed
                outer = connection.begin()
                with Session(connection, join_transaction_mode="create_savepoint") as session:
                    yield session
                outer.rollback()
            case _:
                connection.begin()
                yield connection


def test_a_job_is_there_once_its_transaction_has_committed(shop: Shop, tx: Any) -> None:
    shop.pay.using(tx=tx).enqueue(1)
    assert shop.orders == []
    assert shop.queue.drain() == 0

    tx.commit()

    assert shop.orders == [1]
    assert shop.queue.drain() == 1


def test_a_job_is_gone_when_its_transaction_is_rolled_back(shop: Shop, tx: Any) -> None:
    shop.pay.using(tx=tx).enqueue(1)
    tx.rollback()
    assert shop.orders == []

    if isinstance(tx, Connection):
        tx.begin()
    shop.pay.using(tx=tx).enqueue(2)  # the next transaction of the same session
    tx.commit()
    if isinstance(tx, Connection):
        tx.begin()
    shop.pay.using(tx=tx).enqueue(3)
    assert shop.orders == [2]
    tx.rollback()
    assert shop.orders == [2]


def test_a_savepoint_takes_only_its_own_jobs_with_it(shop: Shop, tx: Any) -> None:
    shop.pay.using(tx=tx).enqueue(1)
    with suppress(ZeroDivisionError), tx.begin_nested():
        shop.pay.using(tx=tx).enqueue(2)
        raise ZeroDivisionError
    with tx.begin_nested():
        shop.pay.using(tx=tx).enqueue(3)
        with suppress(ZeroDivisionError), tx.begin_nested():
            shop.pay.using(tx=tx).enqueue(4)
            raise ZeroDivisionError
    assert shop.orders == []

    tx.commit()

    assert shop.orders == [1, 3]


def test_a_savepoint_that_began_before_the_first_job_takes_it_with_it(shop: Shop, tx: Any) -> None:
    with suppress(ZeroDivisionError), tx.begin_nested():
        shop.pay.using(tx=tx).enqueue(1)
        raise ZeroDivisionError
    tx.commit()
    assert shop.orders == []


def test_a_commit_that_the_database_refuses_stores_nothing(shop: Shop, engine: Engine) -> None:
    def break_it(tx: Any) -> None:
        tx.execute(text("INSERT INTO b VALUES (7)"))  # there is no such row in a: checked at the commit
        shop.pay.using(tx=tx).enqueue(1)
        with pytest.raises(Exception, match="FOREIGN KEY"):
            tx.commit()

    with Session(engine) as session:
        break_it(session)
        session.rollback()
    assert shop.orders == []
    with engine.connect() as connection:
        break_it(connection)
    assert shop.orders == []


def _close(tx: Any) -> None:
    tx.close()


def _leave(tx: Any) -> None:
    with suppress(ZeroDivisionError), tx:
        raise ZeroDivisionError


@pytest.mark.parametrize("end", [_close, _leave])
@pytest.mark.parametrize("kind", [Session, Engine.connect])
def test_a_transaction_that_is_closed_is_rolled_back(
    shop: Shop, engine: Engine, kind: Callable[[Engine], Any], end: Callable[[Any], None]
) -> None:
    tx = kind(engine)
    if isinstance(tx, Connection):
        tx.begin()
    shop.pay.using(tx=tx).enqueue(1)
    end(tx)
    assert shop.orders == []


def test_flushes_do_not_end_a_transaction(shop: Shop, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        shop.pay.using(tx=session).enqueue(1)
        session.flush()
        shop.pay.using(tx=session).enqueue(2)
        session.execute(text("SELECT 1"))
    assert shop.orders == [1, 2]


def test_the_answer_and_the_unique_key_are_those_of_the_store(shop: Shop, engine: Engine) -> None:
    with Session(engine) as session:
        first = shop.pay.using(tx=session, unique="k").enqueue(1)
        again = shop.pay.using(tx=session, unique="k").enqueue(2)
        assert (first.created, again.created, again.id) == (True, False, first.id)
        session.commit()
    assert shop.orders == [1]


def test_a_handler_finishes_with_a_foreign_transaction(engine: Engine) -> None:
    jobs = Tenure("sqlite:////nowhere/at/all.db")

    @jobs.task
    def pay(job: Job, commit: bool) -> str:
        with Session(engine) as session:
            job.finish("with the effect", tx=session)
            if commit:
                session.commit()
        return "by itself"

    with jobs.testing() as queue:
        handle = pay.enqueue(True)
        assert queue.drain() == 1
        assert handle.result("0s") == "with the effect"


@pytest.mark.parametrize("fails", [False, True])
def test_a_finish_that_was_rolled_back_leaves_the_outcome_to_the_code(fails: bool, engine: Engine) -> None:
    jobs = Tenure("sqlite:////nowhere/at/all.db")

    @jobs.task
    def pay(job: Job) -> str:
        with Session(engine) as session:
            job.finish("with the effect", tx=session)
        if fails:
            raise ValueError("no money")
        return "by itself"

    with jobs.testing() as queue:
        handle = pay.enqueue()
        if fails:
            with pytest.raises(ValueError, match="no money"):
                queue.drain()
            assert handle.status().state == "scheduled"
        else:
            assert queue.drain() == 1
            assert handle.result("0s") == "by itself"


def test_jobs_whose_transaction_never_ended_are_named(engine: Engine) -> None:
    jobs = Tenure("sqlite:////nowhere/at/all.db")

    @jobs.task
    def pay(order: int) -> None: ...

    with Session(engine) as session:
        with pytest.warns(RuntimeWarning, match="neither committed nor rolled back") as warned, jobs.testing():
            handle = pay.using(tx=session).enqueue(1)
        assert f"pay {handle.id}" in str(warned[0].message)
        assert warned[0].filename == __file__
        session.commit()  # no listener is left


def test_nothing_listens_after_the_test(engine: Engine) -> None:
    jobs = Tenure("sqlite:////nowhere/at/all.db")

    @jobs.task
    def pay(order: int) -> None: ...

    with nothing_dropped_open(), Session(engine) as session:
        with jobs.testing() as queue:
            for order in range(20):
                pay.using(tx=session).enqueue(order)
                session.commit()
            assert len(queue.enqueued(pay)) == 20
        assert list(session.dispatch.after_commit) == []


# ── plain drivers: their connections, real ones, to PostgreSQL ──


class Driver:
    """One connection of a driver, sync or async: statements, an enqueue in its transaction, and its end."""

    def __init__(self, kind: str, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_async = kind in ("psycopg async", "asyncpg")
        match kind:
            case "psycopg":
                self.connection: Any = psycopg.connect(url)
            case "psycopg2":
                self.connection = psycopg2.connect(url)
            case "asyncpg":
                self.connection = self.loop.run_until_complete(asyncpg.connect(url))
                self("BEGIN")
            case _:
                self.connection = self.loop.run_until_complete(psycopg.AsyncConnection.connect(url))

    def __call__(self, sql: str) -> None:
        if self.is_async:
            self.loop.run_until_complete(self.connection.execute(sql))
        elif isinstance(self.connection, psycopg.Connection):
            self.connection.execute(sql.encode())
        else:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)

    def enqueue(self, task: Any, order: int, **options: Any) -> Any:
        bound = task.using(tx=self.connection, **options)
        return self.loop.run_until_complete(bound.aenqueue(order)) if self.is_async else bound.enqueue(order)

    def close(self) -> None:
        closing = self.connection.close()
        if self.is_async and closing is not None:
            self.loop.run_until_complete(closing)


@pytest.fixture(params=["psycopg", *(pytest.param(k, marks=pytest.mark.thorough) for k in DRIVERS)])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    url = shared_postgres().create_database()
    driver = Driver(request.param, url)
    yield driver
    driver.close()
    driver.loop.close()
    shared_postgres().drop_database(url)


def test_a_job_follows_the_transaction_of_a_driver_s_connection(shop: Shop, driver: Driver) -> None:
    driver.enqueue(shop.pay, 1)
    assert shop.orders == []
    assert shop.queue.drain() == 0
    driver("COMMIT")
    assert shop.orders == [1]

    driver("BEGIN")
    driver.enqueue(shop.pay, 2)
    driver("ROLLBACK")
    driver("BEGIN")  # another transaction is open when the queue is looked at
    driver.enqueue(shop.pay, 3)
    assert shop.orders == [1]
    driver("COMMIT")
    driver.close()  # at once, as the block of a connection does
    assert shop.orders == [1, 3]
    assert shop.queue.drain() == 2


def test_a_savepoint_of_a_driver_takes_only_its_own_jobs_with_it(shop: Shop, driver: Driver) -> None:
    driver.enqueue(shop.pay, 1)
    driver("SAVEPOINT a")
    driver.enqueue(shop.pay, 2, unique="k")
    driver("ROLLBACK TO a")
    assert driver.enqueue(shop.pay, 3, unique="k").created  # the one that had this key is gone
    driver("SAVEPOINT b")
    driver.enqueue(shop.pay, 4)
    driver("SAVEPOINT c")
    driver.enqueue(shop.pay, 5)
    driver("RELEASE c")
    driver("ROLLBACK TO b")  # takes the released one with it
    driver.enqueue(shop.pay, 6)
    assert shop.orders == []
    driver("COMMIT")
    assert shop.orders == [1, 3, 6]


def test_a_transaction_of_a_driver_that_ends_with_its_connection_is_rolled_back(shop: Shop, driver: Driver) -> None:
    driver.enqueue(shop.pay, 1)
    driver.close()
    until(lambda: not shop.queue._transactions._open or shop.orders, "the server to notice")
    assert shop.orders == []


def test_a_driver_s_failed_transaction_has_no_job_and_leaves_nothing(shop: Shop, driver: Driver) -> None:
    driver.enqueue(shop.pay, 1)
    with pytest.raises(Exception, match="division by zero"):
        driver("SELECT 1 / 0")
    assert shop.orders == []
    driver("COMMIT")  # which the server turns into a rollback
    assert shop.orders == []
    driver("BEGIN")
    driver("DO $$ BEGIN ASSERT NOT EXISTS (SELECT FROM pg_largeobject_metadata); END $$")


def test_what_is_no_transaction_is_refused(shop: Shop) -> None:
    with pytest.raises(StoreError, match="tx: expected"):
        shop.pay.using(tx=object()).enqueue(1)
    url = shared_postgres().create_database()
    with psycopg.connect(url, autocommit=True) as alone, pytest.raises(StoreError, match="in no transaction"):
        shop.pay.using(tx=alone).enqueue(1)
    shared_postgres().drop_database(url)


def test_a_commit_counts_whatever_the_connection_does_next(shop: Shop, engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO a VALUES (1)"))
        shop.pay.using(tx=connection).enqueue(7)
        connection.commit()
        connection.execute(text("SELECT * FROM a"))  # in another transaction, which is rolled back when it is closed
    assert shop.orders == [7]

    with engine.connect() as connection:
        with connection.begin():
            shop.pay.using(tx=connection).enqueue(8)
        with suppress(ZeroDivisionError), connection.begin():
            shop.pay.using(tx=connection).enqueue(9)
            raise ZeroDivisionError
    assert shop.orders == [7, 8]


def test_a_connection_in_no_transaction_is_refused(shop: Shop, engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(StoreError, match=r"engine\.begin\(\)"):
        shop.pay.using(tx=connection).enqueue(1)


DJANGO = """
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
import django; django.setup()
from django.db import connection, transaction
from tenure import Tenure

jobs = Tenure("sqlite:////nowhere/at/all.db")

@jobs.task
def pay(order: int) -> None: ...

with jobs.testing() as queue:
    with transaction.atomic():
        pay.using(tx=connection).enqueue(1)
        try:
            with transaction.atomic():
                pay.using(tx=connection).enqueue(2)
                raise ValueError
        except ValueError:
            pass
        print(len(queue.enqueued(pay)))
    queue.assert_enqueued(pay, 1)
    print(len(queue.enqueued(pay)))
    try:
        pay.using(tx=connection).enqueue(3)
    except Exception as error:
        print(error)
"""


def test_django_s_connection_in_an_app_that_is_not_django_s() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", DJANGO], capture_output=True, text=True, env=env, check=True)
    assert ran.stdout.splitlines()[:2] == ["0", "1"]
    assert "transaction.atomic()" in ran.stdout.splitlines()[2]


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_the_async_kinds(kind: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    jobs = Tenure("sqlite:////nowhere/at/all.db")

    @jobs.task
    async def pay(order: int) -> int:
        return order

    async def main() -> None:
        engine = create_async_engine(
            shared_postgres().create_database().replace("postgresql://", "postgresql+asyncpg://")
        )
        try:
            with jobs.testing() as queue:
                async with AsyncSession(engine) if kind == "session" else engine.connect() as tx:
                    await tx.execute(text("SELECT 1"))
                    await pay.using(tx=tx).aenqueue(1)
                    async with tx.begin_nested() as savepoint:
                        await pay.using(tx=tx).aenqueue(2)
                        await savepoint.rollback()
                    assert await queue.adrain() == 0
                    await tx.commit()
                    assert [handle.created for handle in queue.enqueued(pay)] == [True]
                    assert await queue.adrain() == 1
                    await tx.execute(text("SELECT 1"))
                    await pay.using(tx=tx).aenqueue(3)
                    await tx.rollback()
                    assert await queue.adrain() == 0
        finally:
            await engine.dispose()

    asyncio.run(main())
