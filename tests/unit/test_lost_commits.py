"""`jobs.transaction()` on PostgreSQL when the answer to its COMMIT is lost: what came of it is asked or said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conformance.factories import draft, everything
from proxy import Proxy
from tenure import config
from tenure.errors import StoreAway
from tenure.notifiers.poll import PollNotifier
from tenure.stores.postgres import PostgresStore
from tenure.stores.postgres.server import Connection, Server
from tenure.tasks.client import Client

MAY_BE_STORED = "all of this transaction may be stored, or nothing; check which before you repeat it"


@pytest.fixture
def store(behind: PostgresStore) -> PostgresStore:
    return behind


@pytest.fixture
def rung() -> list[str]:
    return []


def enqueue(store: PostgresStore, tx: Any, rung: list[str]) -> str:
    one = draft()
    store.enqueue([one], tx=tx, committed=lambda: rung.append(one.id))
    return one.id


def out_of_reach(*_: object) -> Connection:
    raise psycopg.OperationalError("connection refused")


def test_a_commit_that_landed_is_a_success_and_rings(proxy: Proxy, store: PostgresStore, rung: list[str]) -> None:
    with store.transaction() as tx:
        job_id = enqueue(store, tx, rung)
        enqueue(store, tx, rung)
        proxy.cut_reply_to(b"COMMIT")

    assert proxy.cuts == 1
    assert len(everything(store)) == len(rung) == 2
    assert rung[0] == job_id
    with store.transaction() as tx:  # on another connection
        enqueue(store, tx, rung)
    assert len(everything(store)) == len(rung) == 3


def test_so_it_is_on_an_event_loop(
    proxy: Proxy, store: PostgresStore, rung: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = PollNotifier()
    client = Client(store, notifier, config.load(environ={}, folder=tmp_path))
    monkeypatch.setattr(notifier, "announce", lambda rings: rung.extend(ring.kind for ring in rings))

    async def main() -> None:
        async with client.atransaction() as tx:
            await client.aenqueue([draft()], tx=tx)
            proxy.cut_reply_to(b"COMMIT")

    asyncio.run(main())

    assert proxy.cuts == 1
    assert len(everything(store)) == 1
    assert rung == ["queued"]


def test_where_nobody_can_be_asked_it_is_said_that_it_may_have_landed_and_rings(
    proxy: Proxy, store: PostgresStore, rung: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreAway, match=MAY_BE_STORED), store.transaction() as tx:
        enqueue(store, tx, rung)
        proxy.cut_reply_to(b"COMMIT")
        monkeypatch.setattr(Server, "connect", out_of_reach)
    monkeypatch.undo()

    assert proxy.cuts == 1
    assert len(everything(store)) == len(rung) == 1


def test_rows_of_the_caller_alone_have_no_witness(proxy: Proxy, store: PostgresStore) -> None:
    with pytest.raises(StoreAway, match=MAY_BE_STORED), store.transaction() as tx:
        tx.execute("CREATE TABLE mine ()")
        proxy.cut_reply_to(b"COMMIT")

    assert store._server.fetch("SELECT count(*) FROM mine") == [(0,)]


def test_an_id_whose_job_is_not_there_proves_no_commit(proxy: Proxy, store: PostgresStore, rung: list[str]) -> None:
    """After a crash another transaction may have the id. Here the caller has taken the job back."""
    with pytest.raises(StoreAway, match=MAY_BE_STORED), store.transaction() as tx:
        tx.execute("SAVEPOINT before")
        enqueue(store, tx, rung)
        tx.execute("ROLLBACK TO before")
        tx.execute("CREATE TABLE mine ()")
        proxy.cut_reply_to(b"COMMIT")

    assert everything(store) == []


def test_a_transaction_that_the_server_ended_before_its_commit_is_told_as_undone(
    store: PostgresStore, rung: list[str]
) -> None:
    with pytest.raises(StoreAway) as caught, store.transaction() as tx:
        enqueue(store, tx, rung)
        ((backend,),) = tx.execute("SELECT pg_backend_pid()").fetchall()
        store._server.fetch("SELECT pg_terminate_backend(%s, 10000)", backend)

    assert "may be stored" not in str(caught.value)
    assert everything(store) == []
    assert rung == []


def test_a_broken_connection_that_the_caller_swallowed_is_told_at_the_end(
    store: PostgresStore, rung: list[str]
) -> None:
    def swallow() -> None:
        with store.transaction() as tx:
            enqueue(store, tx, rung)
            with pytest.raises(StoreAway):
                tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(StoreAway, match="the connection broke in this transaction"):
        swallow()
    assert everything(store) == []
    assert rung == []
