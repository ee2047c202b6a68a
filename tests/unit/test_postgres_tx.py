"""Jobs and outcomes in transactions of an application's own, from its event loop and from its threads, end to end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from conformance.factories import claim, look, start
from servers import shared_postgres
from tenure import Job, Tenure, config
from tenure.core.lifecycle import Lease, Outcome, Released, State
from tenure.errors import StoreError
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Ring
from tenure.stores.postgres import PostgresStore, commits
from tenure.tasks.client import Client
from tenure.worker.executor import run_inline


class Bell(PollNotifier):
    """Checks, whenever it rings, whether the job is really there."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__()
        self._store = store
        self.seen: list[tuple[Ring, bool]] = []
        self.rung = threading.Event()

    def announce(self, rings: Iterable[Ring]) -> None:
        self.seen += [(ring, all(map(self._store.get, ring.jobs))) for ring in rings]
        self.rung.set()


class Shop:
    """An application with a table of its own next to the jobs."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.store = PostgresStore(url)
        self.store.migrate()
        self.store.open()
        self.bell = Bell(self.store)
        self.client = Client(self.store, self.bell, config.load(environ={}, folder=folder))
        self.jobs = Tenure("memory:")
        self.jobs._client.current = self.client
        self._own = psycopg.connect(url, autocommit=True)
        self._own.execute("CREATE TABLE orders (n int)")

    def driver(self, name: str) -> sqlalchemy.URL:
        return sqlalchemy.make_url(self.url).set(drivername=f"postgresql+{name}")

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        engine = create_async_engine(self.driver("asyncpg"))
        try:
            async with AsyncSession(engine) as session:
                yield session
        finally:
            await engine.dispose()

    def orders(self) -> int:
        return int(self._own.execute("SELECT count(*) FROM orders").fetchall()[0][0])

    def run(self) -> Outcome | None:
        """Run the next job, as a worker would. None: nothing is left to finish."""
        (found,) = claim(self.store, start(self.store))
        worker_id = self.store.workers()[0].identity.id
        return asyncio.run(run_inline(self.jobs.program, self.store, found, worker_id, {}))[0]

    def close(self) -> None:
        self._own.close()
        self.client.close()


ORDER = text("INSERT INTO orders VALUES (1)")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(commits, "_CLOSING", 60.0)  # a closing store rings for all that has committed, however slowly
    server = shared_postgres()
    url = server.create_database()
    shop = Shop(url, tmp_path)
    yield shop
    shop.close()
    server.drop_database(url)


def receipt(shop: Shop) -> Any:
    @shop.jobs.task
    def receipt(n: int) -> int:
        return n

    return receipt


# ── enqueue ──


def test_an_async_session_stores_its_rows_and_the_job_or_neither(shop: Shop) -> None:
    task = receipt(shop)

    async def main() -> None:
        async with shop.session() as session:
            await session.execute(ORDER)
            await task.using(tx=session).aenqueue(1)
            await session.rollback()
            assert (shop.orders(), shop.store.counts()[State.QUEUED]) == (0, 0)

            await session.execute(ORDER)
            handles = [await task.using(tx=session).aenqueue(n) for n in range(3)]
            assert [handle.created for handle in handles] == [True] * 3
            assert shop.store.counts()[State.QUEUED] == 0
            await session.commit()
            assert (shop.orders(), shop.store.counts()[State.QUEUED]) == (1, 3)

    asyncio.run(main())

    assert shop.bell.rung.wait(30)
    shop.client.store.close()
    assert [(ring.kind, ring.queue, len(ring.jobs), there) for ring, there in shop.bell.seen] == [
        ("queued", "default", 1, True)
    ] * 3


def test_asyncpg_stores_its_rows_and_the_job(shop: Shop) -> None:
    task = receipt(shop)

    async def main() -> None:
        connection = await asyncpg.connect(shop.url)
        try:
            async with connection.transaction():
                async with connection.transaction():
                    await connection.execute("INSERT INTO orders VALUES (1)")
                    await task.using(tx=connection).aenqueue(1)
                assert shop.store.counts()[State.QUEUED] == 0
        finally:
            await connection.close()

    asyncio.run(main())

    assert (shop.orders(), shop.store.counts()[State.QUEUED]) == (1, 1)
    assert shop.bell.rung.wait(30)


def test_a_session_in_a_thread_stores_its_rows_and_the_job(shop: Shop) -> None:
    task = receipt(shop)
    engine = sqlalchemy.create_engine(shop.driver("psycopg"))
    with Session(engine) as session, session.begin():
        session.execute(ORDER)
        task.using(tx=session, unique="one").enqueue(1)
        again = task.using(tx=session, unique="one").enqueue(1)
    engine.dispose()

    assert not again.created
    assert (shop.orders(), shop.store.counts()[State.QUEUED]) == (1, 1)
    assert shop.bell.rung.wait(30)


def test_many_jobs_join_at_once(shop: Shop) -> None:
    task = receipt(shop)
    with psycopg.connect(shop.url) as connection:
        shop.jobs.enqueue_many((task.bind(n) for n in range(500)), tx=connection)

    assert shop.store.counts()[State.QUEUED] == 500
    assert shop.bell.rung.wait(30)
    assert [(len(ring.jobs), there) for ring, there in shop.bell.seen] == [(500, True)]


def test_our_own_transaction_rings_when_it_has_committed(shop: Shop) -> None:
    task = receipt(shop)
    with shop.jobs.transaction() as tx:
        task.using(tx=tx).enqueue(1)
        assert shop.bell.seen == []

    assert [there for _, there in shop.bell.seen] == [True]


def test_an_async_session_elsewhere_is_refused(shop: Shop) -> None:
    task = receipt(shop)
    engine = create_async_engine(sqlalchemy.make_url(shared_postgres().url()).set(drivername="postgresql+asyncpg"))

    async def main() -> None:
        async with AsyncSession(engine) as session:
            with pytest.raises(StoreError, match=r"connected to database 'postgres'.*cannot span both"):
                await task.using(tx=session).aenqueue(1)
            assert (await session.execute(text("SELECT 1"))).scalar() == 1
        await engine.dispose()

    asyncio.run(main())


# ── finish ──


def finishing(shop: Shop, before: Callable[[Job], None] = lambda job: None) -> Any:
    @shop.jobs.task
    async def work(job: Job) -> str:
        async with shop.session() as session, session.begin():
            await session.execute(ORDER)
            before(job)
            await job.afinish("by the transaction", tx=session)
        return "by the handler"

    return work


def test_an_outcome_commits_with_its_effect(shop: Shop) -> None:
    handle = finishing(shop).enqueue()

    assert shop.run() is None

    assert look(shop.store, str(handle.id)).result == '"by the transaction"'
    assert shop.orders() == 1


def test_a_lost_lease_takes_the_effect_back(shop: Shop) -> None:
    def lose(job: Job) -> None:
        found = look(shop.store, str(job.id))
        shop.store.finish([(Lease(found.id, found.attempt, str(found.worker_id)), Released())])

    handle = finishing(shop, lose).enqueue()

    shop.run()

    assert look(shop.store, str(handle.id)).state is State.QUEUED
    assert shop.orders() == 0


def test_an_outcome_from_a_thread_commits_with_its_effect(shop: Shop) -> None:
    @shop.jobs.task
    def work(job: Job) -> None:
        with psycopg.connect(shop.url) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            job.finish(tx=connection)

    handle = work.enqueue()

    assert shop.run() is None
    assert look(shop.store, str(handle.id)).state is State.COMPLETED
    assert shop.orders() == 1
