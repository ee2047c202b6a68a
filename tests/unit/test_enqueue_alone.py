"""A lone `aenqueue`: stored from the loop, and what happens when that is interrupted."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from proxy import Proxy
from servers import shared_valkey
from tenure import config
from tenure.core.ids import new_id
from tenure.errors import StoreAway
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Draft, Store
from tenure.stores.postgres import PostgresStore
from tenure.stores.postgres.server import MOST_CONNECTIONS
from tenure.stores.redis import RedisStore
from tenure.stores.sqlite import SqliteStore, file
from tenure.tasks.client import Client


def draft() -> Draft:
    return Draft(id=new_id(), task="greet", payload="{}")


def client(store: Store, folder: Path) -> Client:
    return Client(store, PollNotifier(), config.load(environ={}, folder=folder))


def threads() -> set[threading.Thread]:
    """The threads that store jobs. One of an earlier test may be about to end."""
    return {each for each in threading.enumerate() if each.name.startswith("tenure-enqueue")}


def test_no_thread_stores_a_lone_job(behind: PostgresStore, tmp_path: Path) -> None:
    redis = RedisStore(shared_valkey().url, namespace=f"alone_{new_id()[:8]}")
    sqlite = SqliteStore(str(tmp_path / "t.db"))
    for store in (redis, sqlite):
        store.migrate()
        store.open()
    redis.enqueue([draft()])  # the server has the script now
    sqlite._file._slowest = 0.0  # however long its open took: a thread stores for a slow disk
    before = threads()
    for each in (behind, redis, sqlite):
        one = draft()
        with closing(client(each, tmp_path)) as ours:
            assert asyncio.run(ours.aenqueue([one]))[0].created
            assert each.get(one.id) is not None
            assert not threads() - before, each


def test_a_reply_that_is_cut_off_after_the_commit_makes_no_second_job(
    proxy: Proxy, behind: PostgresStore, tmp_path: Path
) -> None:
    ours, one = client(behind, tmp_path), draft()
    proxy.cut_reply_to(b"INSERT INTO")

    (answer,) = asyncio.run(ours.aenqueue([one]))

    assert proxy.cuts == 1
    assert (answer.id, answer.created) == (one.id, True)  # its own job, found again
    assert behind.get(one.id) is not None


def test_a_cancelled_caller_takes_the_connection_of_nobody(proxy: Proxy, behind: PostgresStore, tmp_path: Path) -> None:
    ours, gone = client(behind, tmp_path), draft()

    async def main() -> None:
        proxy.blackhole()
        caller = asyncio.create_task(ours.aenqueue([gone]))
        while behind._server._room._value == MOST_CONNECTIONS:
            await asyncio.sleep(0)
        caller.cancel()
        proxy.heal()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await ours.aenqueue([draft()]))[0].created

    asyncio.run(main())


def test_loops_that_close_in_the_middle_leave_no_connection_taken(
    proxy: Proxy, behind: PostgresStore, tmp_path: Path
) -> None:
    ours = client(behind, tmp_path)
    behind.enqueue([draft()])

    async def begin() -> None:
        proxy.blackhole()
        caller = asyncio.create_task(ours.aenqueue([draft()]))
        while behind._server._room._value == MOST_CONNECTIONS:
            await asyncio.sleep(0)
        caller.cancel()

    asyncio.run(begin())
    proxy.heal()

    assert asyncio.run(ours.aenqueue([draft()]))[0].created
    assert behind._server._room._value == MOST_CONNECTIONS


def test_a_server_that_is_gone_is_told_to_the_caller(
    proxy: Proxy, behind: PostgresStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.tasks import client as module

    monkeypatch.setattr(module.retried, "__defaults__", (0.0,))
    proxy.refuse()
    with pytest.raises(StoreAway, match="out of reach"):
        asyncio.run(client(behind, tmp_path).aenqueue([draft()]))


def test_a_file_that_is_locked_or_slow_is_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(str(tmp_path / "t.db"))
    store.open()
    holder = apsw.Connection(store._file.path)
    holder.execute("BEGIN IMMEDIATE")
    assert next_of(store) is None  # at once, not after BUSY_SECONDS: the test would time out 20 times over
    holder.execute("COMMIT")
    holder.close()
    store._file._slowest = 0.0
    assert next_of(store) is not None
    monkeypatch.setattr(file, "FAST_SECONDS", 0.0)
    assert next_of(store) is None
    store.close()


def next_of(store: Store) -> object:
    with pytest.raises(StopIteration) as end:
        next(store.enqueue_on_loop(draft()))
    return end.value.value
