"""One statement in a caller's transaction, through every driver, and how its commit is noticed."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeVar

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
from django.apps import apps
from django.conf import settings as django_settings
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from servers import shared_postgres
from tenure.errors import BadData, StoreError
from tenure.ports import Awaited
from tenure.stores.postgres import commits
from tenure.stores.postgres.commits import STATUS, CommitWatch
from tenure.stores.postgres.joins import WHERE, Database, Joins
from tenure.tasks.loops import awaited, settled

T = TypeVar("T")

#: With everything that a driver might take for its own syntax: casts, a colon, a percent sign.
INSERT = """
    WITH given AS (SELECT k FROM json_to_recordset(:p::json) AS r (k text) WHERE k LIKE '%' AND k <> ':q'),
    stored AS (INSERT INTO joined SELECT k FROM given RETURNING k)
    SELECT k::text, true, 7, pg_current_xact_id()::text FROM stored"""


class Loop:
    """An event loop of a thread of its own, on which the async drivers live."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        self.run(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@dataclass
class Place:
    """A database to connect to, and the loop for drivers that need one."""

    dsn: str
    loop: Loop

    @property
    def name(self) -> str:
        return str(self.facts()["dbname"])

    def facts(self) -> dict[str, Any]:
        return psycopg.conninfo.conninfo_to_dict(self.dsn)

    def url(self, driver: str) -> sqlalchemy.URL:
        return sqlalchemy.make_url(self.dsn if driver != "pg8000" else for_pg8000(self.dsn)).set(
            drivername=f"postgresql+{driver}"
        )


@cache
def for_pg8000(dsn: str) -> str:
    """The URL with a role of its own: the driver refuses passwords with as few iterations as those of the tests."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.info.server_version >= 160_000:
            connection.execute("SET scram_iterations = 4096")
        with suppress(psycopg.errors.DuplicateObject):
            connection.execute("CREATE ROLE pg8000 SUPERUSER LOGIN PASSWORD 'pg8000'")
    return str(sqlalchemy.make_url(dsn).set(username="pg8000", password="pg8000").render_as_string(hide_password=False))


@dataclass
class Caller:
    """A client with an open transaction."""

    tx: object
    execute: Callable[[str], object]
    commit: Callable[[], object]
    rollback: Callable[[], object]


Kind = Callable[[Place], AbstractContextManager[Caller]]


# ── Callers that block ──


@contextmanager
def an_engine(place: Place, driver: str, **options: Any) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(place.url(driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


def a_session(driver: str, **options: Any) -> Kind:
    @contextmanager
    def session(place: Place) -> Iterator[Caller]:
        with an_engine(place, driver, **options) as engine, Session(engine) as session:
            yield Caller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)

    return session


@contextmanager
def a_scoped_session(place: Place) -> Iterator[Caller]:
    with an_engine(place, "psycopg") as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            yield Caller(session, lambda sql: session.execute(text(sql)), session.commit, session.rollback)
        finally:
            session.remove()


@contextmanager
def a_connection(place: Place) -> Iterator[Caller]:
    with an_engine(place, "psycopg") as engine, engine.connect() as connection:
        yield Caller(connection, lambda sql: connection.execute(text(sql)), connection.commit, connection.rollback)


def a_psycopg(**options: Any) -> Kind:
    @contextmanager
    def connection(place: Place) -> Iterator[Caller]:
        with psycopg.connect(place.dsn, row_factory=dict_row, **options) as it:
            yield Caller(it, it.execute, it.commit, it.rollback)

    return connection


@contextmanager
def a_psycopg_block(place: Place) -> Iterator[Caller]:
    with psycopg.connect(place.dsn, autocommit=True) as it:
        it.execute("BEGIN")
        yield Caller(it, it.execute, lambda: it.execute("COMMIT"), lambda: it.execute("ROLLBACK"))


def a_psycopg2(*, autocommit: bool = False) -> Kind:
    @contextmanager
    def connection(place: Place) -> Iterator[Caller]:
        with closing(psycopg2.connect(place.dsn)) as it:
            it.autocommit = autocommit
            yield Caller(it, lambda sql: it.cursor().execute(sql), it.commit, it.rollback)

    return connection


@contextmanager
def django_connections(place: Place) -> Iterator[Any]:
    facts = place.facts()
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": place.name,
        "USER": facts.get("user", ""),
        "PASSWORD": facts.get("password", ""),
        "HOST": facts.get("host", ""),
        "PORT": facts.get("port", ""),
    }
    if not django_settings.configured:
        django_settings.configure()
        apps.populate([])
    from django import db

    known = db.connections.settings
    db.connections.settings = db.connections.configure_settings({"default": database})
    try:
        yield db
    finally:
        db.connections.close_all()
        del db.connections["default"]
        db.connections.settings = known


@contextmanager
def a_django(place: Place) -> Iterator[Caller]:
    from django.db import transaction

    with django_connections(place) as db, ExitStack() as block:
        block.enter_context(transaction.atomic())

        def rollback() -> None:
            transaction.set_rollback(True)
            block.close()

        yield Caller(db.connection, lambda sql: db.connection.cursor().execute(sql), block.close, rollback)


@contextmanager
def a_django_without_atomic(place: Place) -> Iterator[Caller]:
    with django_connections(place) as db:
        yield Caller(db.connection, lambda sql: db.connection.cursor().execute(sql), lambda: None, lambda: None)


# ── Callers that await ──


@contextmanager
def at_the_end(loop: Loop, *calls: Callable[[], Any]) -> Iterator[None]:
    """Await what these return, the last first, also after an error."""

    def end(call: Callable[[], Any]) -> None:
        loop.run(call())

    with ExitStack() as stack:
        for call in calls:
            stack.callback(end, call)
        yield


def an_async_session(driver: str, **options: Any) -> Kind:
    @contextmanager
    def session(place: Place) -> Iterator[Caller]:
        loop = place.loop
        engine = create_async_engine(place.url(driver), **options)
        it = AsyncSession(engine)
        with at_the_end(loop, engine.dispose, it.close):
            yield Caller(
                Awaited(it, loop.loop),
                lambda sql: loop.run(it.execute(text(sql))),
                lambda: loop.run(it.commit()),
                lambda: loop.run(it.rollback()),
            )

    return session


@contextmanager
def an_async_scoped_session(place: Place) -> Iterator[Caller]:
    loop = place.loop
    engine = create_async_engine(place.url("asyncpg"))
    it = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    with at_the_end(loop, engine.dispose, it.remove):
        yield Caller(
            Awaited(it, loop.loop),
            lambda sql: loop.run(it.execute(text(sql))),
            lambda: loop.run(it.commit()),
            lambda: loop.run(it.rollback()),
        )


@contextmanager
def an_async_connection(place: Place) -> Iterator[Caller]:
    loop = place.loop
    engine = create_async_engine(place.url("asyncpg"))
    it = engine.connect()
    with at_the_end(loop, engine.dispose, it.close):
        loop.run(it.start())
        yield Caller(
            Awaited(it, loop.loop),
            lambda sql: loop.run(it.execute(text(sql))),
            lambda: loop.run(it.commit()),
            lambda: loop.run(it.rollback()),
        )


def an_async_psycopg(**options: Any) -> Kind:
    @contextmanager
    def connection(place: Place) -> Iterator[Caller]:
        loop = place.loop
        it = loop.run(psycopg.AsyncConnection.connect(place.dsn, **options))
        with at_the_end(loop, it.close):
            yield Caller(
                Awaited(it, loop.loop),
                lambda sql: loop.run(it.execute(sql)),
                lambda: loop.run(it.commit()),
                lambda: loop.run(it.rollback()),
            )

    return connection


@contextmanager
def an_asyncpg(place: Place) -> Iterator[Caller]:
    loop = place.loop
    it = loop.run(asyncpg.connect(place.dsn))
    with at_the_end(loop, it.close):
        loop.run(it.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads))
        block = it.transaction()
        loop.run(block.start())
        yield Caller(
            Awaited(it, loop.loop),
            lambda sql: loop.run(it.execute(sql)),
            lambda: loop.run(block.commit()),
            lambda: loop.run(block.rollback()),
        )


@contextmanager
def an_asyncpg_of_a_pool(place: Place) -> Iterator[Caller]:
    loop = place.loop

    async def begin() -> tuple[Any, Any, Any]:
        pool = await asyncpg.create_pool(place.dsn, min_size=1, max_size=1)
        lent = await pool.acquire()
        block = lent.transaction()
        await block.start()
        return pool, lent, block

    pool, lent, block = loop.run(begin())
    with at_the_end(loop, pool.close, lambda: pool.release(lent)):
        yield Caller(
            Awaited(lent, loop.loop),
            lambda sql: loop.run(lent.execute(sql)),
            lambda: loop.run(block.commit()),
            lambda: loop.run(block.rollback()),
        )


@contextmanager
def an_asyncpg_without_transaction(place: Place) -> Iterator[Caller]:
    loop = place.loop
    it = loop.run(asyncpg.connect(place.dsn))
    with at_the_end(loop, it.close):
        yield Caller(Awaited(it, loop.loop), lambda sql: loop.run(it.execute(sql)), lambda: None, lambda: None)


BLOCKING: dict[str, Kind] = {
    "Session, psycopg": a_session("psycopg"),
    "Session, psycopg2": a_session("psycopg2"),
    "Session, pg8000": a_session("pg8000"),
    "scoped_session": a_scoped_session,
    "Connection": a_connection,
    "psycopg": a_psycopg(),
    "psycopg with BEGIN": a_psycopg_block,
    "psycopg2": a_psycopg2(),
}
DJANGO: dict[str, Kind] = {"Django": a_django}
AWAITED: dict[str, Kind] = {
    "AsyncSession, asyncpg": an_async_session("asyncpg"),
    "AsyncSession, psycopg": an_async_session("psycopg"),
    "async_scoped_session": an_async_scoped_session,
    "AsyncConnection": an_async_connection,
    "psycopg async": an_async_psycopg(),
    "asyncpg": an_asyncpg,
    "asyncpg of a pool": an_asyncpg_of_a_pool,
}
ALONE: dict[str, Kind] = {
    "Session, psycopg": a_session("psycopg", isolation_level="AUTOCOMMIT"),
    "Session, psycopg2": a_session("psycopg2", isolation_level="AUTOCOMMIT"),
    "Session, pg8000": a_session("pg8000", isolation_level="AUTOCOMMIT"),
    "AsyncSession, asyncpg": an_async_session("asyncpg", isolation_level="AUTOCOMMIT"),
    "AsyncSession, psycopg": an_async_session("psycopg", isolation_level="AUTOCOMMIT"),
    "psycopg": a_psycopg(autocommit=True),
    "psycopg2": a_psycopg2(autocommit=True),
    "psycopg async": an_async_psycopg(autocommit=True),
    "asyncpg": an_asyncpg_without_transaction,
    "Django": a_django_without_atomic,
}


def each(*kinds: dict[str, Kind]) -> pytest.MarkDecorator:
    known = {name: kind for group in kinds for name, kind in group.items()}
    return pytest.mark.parametrize("kind", known.values(), ids=known.keys())


# ── The rig ──


class Rig:
    """Our side: the database of the jobs, how often it was asked which one it is, and whose commits were heard of."""

    def __init__(self, here: Place, elsewhere: Place) -> None:
        self.here, self.elsewhere, self.loop = here, elsewhere, here.loop
        self._own = psycopg.connect(self.here.dsn, autocommit=True)
        self._lock = threading.Lock()
        self._own.execute("DROP TABLE IF EXISTS joined; CREATE TABLE joined (k text PRIMARY KEY)")
        self.asked = 0
        self.joins = Joins(self._ours)
        self.watch = CommitWatch(lambda xids: dict(self.fetch(STATUS, list(xids))))
        self.heard: list[str] = []
        self.bell = threading.Event()

    def fetch(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._own.execute(sql, values).fetchall()

    def _ours(self) -> Database:
        self.asked += 1
        return Database(*self.fetch(WHERE)[0])

    def rows(self) -> set[str]:
        return {key for (key,) in self.fetch("SELECT k FROM joined")}

    def put(self, tx: object, *keys: str) -> None:
        rows = self.joins.run(tx, INSERT, json.dumps([{"k": key} for key in keys]))
        assert [row[:3] for row in rows] == [(key, True, 7) for key in keys]
        self.watch.add(rows[0][3], lambda: self._hear(keys))

    def _hear(self, keys: tuple[str, ...]) -> None:
        assert set(keys) <= self.rows(), "who hears of a commit finds its rows"
        self.heard += keys
        self.bell.set()

    def close(self) -> None:
        self.watch.close()
        self._own.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a watch waits for its last look, however slow the machine: what was heard is complete by then."""
    monkeypatch.setattr(commits, "_CLOSING", 60.0)


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def places(loop: Loop) -> tuple[Place, Place]:
    server = shared_postgres()
    return Place(server.create_database(), loop), Place(server.create_database(), loop)


@pytest.fixture
def rig(places: tuple[Place, Place]) -> Iterator[Rig]:
    rig = Rig(*places)
    yield rig
    rig.close()


# ── With the transaction ──


@each(BLOCKING, DJANGO, AWAITED)
def test_what_joins_a_transaction_is_there_when_it_commits_and_it_is_heard(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        rig.put(caller.tx, "5% of 10:30::text", "ü")
        rig.put(caller.tx, "second")
        assert rig.rows() == set()
        caller.commit()

        assert rig.bell.wait(30)
        rig.watch.close()
        assert rig.rows() == {"5% of 10:30::text", "ü", "second"}
        assert rig.heard == ["5% of 10:30::text", "ü", "second"]


@each(BLOCKING, DJANGO, AWAITED)
def test_what_joins_a_transaction_is_gone_when_it_rolls_back(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        rig.put(caller.tx, "lost")
        caller.rollback()

        rig.watch.close()
        assert rig.rows() == set()
        assert rig.heard == []


@each(BLOCKING, DJANGO, AWAITED)
def test_a_savepoint_takes_back_what_joined_within_it(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        rig.put(caller.tx, "kept")
        caller.execute("SAVEPOINT one")
        rig.joins.run(caller.tx, INSERT, '[{"k": "lost"}]')
        caller.execute("ROLLBACK TO SAVEPOINT one")
        caller.commit()

        rig.watch.close()
        assert rig.rows() == {"kept"}
        assert rig.heard == ["kept"]


@each(BLOCKING, DJANGO, AWAITED)
def test_a_released_savepoint_is_not_a_commit(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        caller.execute("SAVEPOINT one")
        rig.put(caller.tx, "lost")
        caller.execute("RELEASE SAVEPOINT one")
        assert rig.fetch(STATUS, list(rig.watch._waiting)) == [(xid, None) for xid in rig.watch._waiting]
        caller.rollback()

        rig.watch.close()
        assert rig.rows() == set()
        assert rig.heard == []


@each(BLOCKING, DJANGO, AWAITED)
def test_a_connection_is_asked_only_once_which_database_it_is_in(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        for key in "abc":
            rig.put(caller.tx, key)
        caller.commit()

    assert rig.asked == 1


@each(BLOCKING)
def test_a_driver_that_blocks_may_be_used_from_an_event_loop_too(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:

        async def main() -> None:
            joined = awaited(caller.tx)
            await settled(lambda: rig.put(joined, "kept"))

        asyncio.run(main())
        caller.commit()

        assert rig.rows() == {"kept"}


# ── Refused ──


@each(BLOCKING, DJANGO, AWAITED)
def test_a_transaction_in_another_database_is_refused_and_stays_usable(rig: Rig, kind: Kind) -> None:
    with kind(rig.elsewhere) as caller:
        caller.execute("CREATE TEMP TABLE mine (n int)")
        with pytest.raises(StoreError) as refused:
            rig.put(caller.tx, "lost")
        caller.execute("INSERT INTO mine VALUES (1)")
        caller.commit()

    assert str(refused.value) == (
        f"tx is connected to database '{rig.elsewhere.name}', the jobs are in '{rig.here.name}': "
        "a transaction cannot span both"
    )


def test_a_database_of_the_same_name_on_another_server_is_another_one(rig: Rig) -> None:
    joins = Joins(lambda: Database(rig.here.name, "0"))

    with a_psycopg()(rig.here) as caller, pytest.raises(StoreError, match="same name on another server"):
        joins.run(caller.tx, INSERT, "[]")


@each(ALONE)
def test_a_connection_that_would_commit_the_job_alone_is_refused(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller, pytest.raises(StoreError, match=r"no transaction.*; otherwise the job would be"):
        rig.put(caller.tx, "lost")

    assert rig.rows() == set()


@each(AWAITED)
def test_an_awaited_driver_without_its_loop_is_refused_with_the_way_to_do_it(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        assert isinstance(caller.tx, Awaited)
        with pytest.raises(StoreError, match=r"write `await task\.using\(tx=tx\)\.aenqueue"):
            rig.put(caller.tx.tx, "lost")


def test_djangos_connection_is_not_taken_to_another_thread(rig: Rig) -> None:
    with a_django(rig.here) as caller, pytest.raises(StoreError, match="sync_to_async"):
        rig.put(Awaited(caller.tx, rig.loop.loop), "lost")


@pytest.mark.parametrize(
    "other",
    [object(), "a connection", 7, sqlite3.Connection, asyncio],
    ids=["object", "text", "number", "class", "module"],
)
def test_what_is_no_transaction_is_refused_with_what_was_expected(rig: Rig, other: object) -> None:
    with pytest.raises(StoreError, match=rf"tx is an? {type(other).__name__}: expected the open transaction of"):
        rig.put(other, "lost")


def test_a_session_on_another_kind_of_database_is_refused(rig: Rig) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with Session(engine) as session, pytest.raises(StoreError, match=r"connected to a sqlite.*in PostgreSQL"):
        rig.put(session, "lost")
    engine.dispose()


def test_a_closed_connection_is_refused(rig: Rig) -> None:
    with a_psycopg()(rig.here) as caller:
        pass

    with pytest.raises(StoreError, match="the connection is closed"):
        rig.put(caller.tx, "lost")


# ── Errors of the transaction ──


@each(BLOCKING, DJANGO, AWAITED)
def test_what_goes_wrong_in_a_transaction_is_its_drivers_error(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        rig.put(caller.tx, "twice")
        with pytest.raises(Exception, match=r"(?i)duplicate key") as raised:
            rig.put(caller.tx, "twice")
        assert not isinstance(raised.value, StoreError)

        with pytest.raises(Exception, match=r"(?i)abort|roll.* back|atomic") as raised:
            rig.put(caller.tx, "after it failed")
        assert not isinstance(raised.value, StoreError)
        caller.rollback()

    assert rig.rows() == set()


@each(BLOCKING, DJANGO, AWAITED)
def test_a_value_that_the_server_refuses_is_bad_data(rig: Rig, kind: Kind) -> None:
    with kind(rig.here) as caller:
        with pytest.raises(BadData, match="refused a value"):
            rig.joins.run(caller.tx, INSERT, r'[{"k": "\u0000"}]')
        caller.rollback()


def test_a_connection_whose_cursors_want_other_marks_is_joined(rig: Rig) -> None:
    """Any error would abort the caller's transaction."""
    with psycopg.connect(rig.here.dsn, cursor_factory=psycopg.RawCursor) as caller:
        rig.put(caller, "100% of it")
    assert rig.rows() == {"100% of it"}


# ── The watch ──


def test_who_commits_meanwhile_is_never_heard_of_before_the_rows_can_be_seen(rig: Rig) -> None:
    def commit_often(name: str) -> None:
        with psycopg.connect(rig.here.dsn) as connection:
            for number in range(50):
                rig.put(connection, f"{name} {number}")
                connection.commit()

    threads = [threading.Thread(target=commit_often, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rig.watch.close()

    assert len(rig.heard) == len(set(rig.heard)) == 150


def test_a_watch_outlives_errors_of_its_store_and_of_who_listens(caplog: pytest.LogCaptureFixture) -> None:
    away = iter([True, True, False])
    heard = threading.Event()

    def ask(_: object) -> dict[str, str | None]:
        if next(away, False):
            raise StoreError("out of reach")
        return {"1": "committed", "2": "committed"}

    def broken() -> None:
        raise ZeroDivisionError

    watch = CommitWatch(ask)
    watch.add("1", broken)
    watch.add("2", heard.set)

    assert heard.wait(30)
    watch.close()
    assert "ZeroDivisionError" in caplog.text


def test_who_stays_open_is_asked_for_ever_more_rarely_while_others_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []
    now = [1_000.0]  # by the real clock, a slow machine would have time to look at `open` with every other one
    monkeypatch.setattr(commits, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def ask(xids: Any) -> dict[str, str | None]:
        asked.append(list(xids))
        return dict.fromkeys(set(xids) - {"open"}, "committed")

    watch = CommitWatch(ask)
    watch.add("open", lambda: None)
    for number in range(100):
        heard = threading.Event()
        watch.add(str(number), heard.set)
        now[0] += 0.003
        assert heard.wait(30)
    looks = sum("open" in xids for xids in asked)
    watch.close()

    assert looks < len(asked) / 2


def test_a_commit_after_a_tenth_of_a_second_costs_a_dozen_questions_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = [1_000.0]  # by the real clock a slow machine asks less often
    monkeypatch.setattr(commits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    heard = threading.Event()

    class Leaping(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return super().wait(0.001)

    def ask(xids: Any) -> dict[str, str | None]:
        asked.append(now[0])
        return dict.fromkeys(xids, "committed" if now[0] > 1_000.1 else None)

    watch = CommitWatch(ask)
    watch._changed = Leaping()
    watch.add("1", heard.set)
    assert heard.wait(30)
    watch.close()

    assert len(asked) <= 12


def test_a_watch_that_is_closed_looks_once_more_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    asked: list[list[str]] = []
    heard: list[str] = []

    def ask(xids: Any) -> dict[str, str | None]:
        asked.append(list(xids))
        return {"2": "committed"}

    watch = CommitWatch(ask)
    watch.add("1", lambda: heard.append("1"))
    watch.add("2", lambda: heard.append("2"))
    watch.close()
    watch.add("3", lambda: heard.append("3"))

    assert heard == ["2"]
    assert asked[-1][0] == "1"
    assert set(threading.enumerate()) <= before  # one of another test may have ended meanwhile


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_waits_for_nobody(rig: Rig) -> None:
    rig.watch.add("3", lambda: None)
    child = os.fork()
    if child == 0:
        waiting = 99
        try:
            rig.watch.add("4", lambda: None)
            rig.watch.close()
            waiting = len(rig.watch._waiting)
        finally:
            os._exit(waiting)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


# ── From an event loop ──


def test_a_scoped_session_is_resolved_where_its_scope_is(rig: Rig) -> None:
    engine = create_async_engine(rig.here.url("asyncpg"))
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)

    async def main() -> None:
        joined = awaited(session)
        await settled(lambda: rig.put(joined, "kept"))
        assert rig.rows() == set()
        await session.commit()
        await session.remove()
        await engine.dispose()

    rig.loop.run(main())
    assert rig.rows() == {"kept"}


def test_who_is_cancelled_goes_on_only_when_the_statement_has_ended() -> None:
    started, go = threading.Event(), threading.Event()
    ended: list[str] = []

    def statement() -> None:
        started.set()
        assert go.wait(60)
        ended.append("statement")
        raise ZeroDivisionError

    async def caller() -> None:
        try:
            await settled(statement)
        finally:
            ended.append("caller")

    async def main() -> None:
        task = asyncio.create_task(caller())
        await asyncio.to_thread(started.wait)
        task.cancel()
        await asyncio.sleep(0)
        assert ended == []
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ["statement", "caller"]


def test_no_library_is_loaded_for_a_transaction_it_did_not_make() -> None:
    import subprocess

    code = (
        "import sys; from tenure.stores.postgres.joins import Joins\n"
        "try: Joins(None).run(object(), '', '')\n"
        "except Exception as e: assert 'expected' in str(e)\n"
        "assert not {'sqlalchemy', 'django', 'asyncpg', 'psycopg2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
