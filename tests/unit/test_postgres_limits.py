"""Limits in PostgreSQL: alongside older workers, open transactions and a session that stops while it gives places."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conformance.factories import claim, claim_one, finish, look, put, start
from conformance.test_limits import SHOP, change, declare, key, limited
from conformance.test_waiting import settle_waits
from tenure.core.lifecycle import Completed, State
from tenure.ports import FOREVER
from tenure.stores.postgres import PostgresStore, serving
from tenure.stores.postgres.waiting import HELD_SECONDS
from unit.fresh_postgres import other as other
from unit.fresh_postgres import store as store
from unit.fresh_postgres import url as url


def test_a_job_that_is_parked_while_its_key_is_read_has_its_ask_left(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, caller, read, late = start(store), PostgresStore(url), serving.Serving._rows, list[str]()
    caller.open()
    declare(store, SHOP.limit, 1)
    (first,) = limited(store)
    assert settle_waits(store) == [first]
    finish(store, claim_one(store, worker), Completed())  # the place that it frees stores an ask

    def rows(serving_: serving.Serving, statement: str, values: Any) -> list[tuple[Any, ...]]:
        found = read(serving_, statement, values)
        if statement == serving.SETTINGS and not late:
            late.extend(limited(caller))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(serving.Serving, "_rows", rows)
        admitted = settle_waits(store)
    caller.close()

    assert admitted == late
    assert look(store, late[0]).state is State.QUEUED


def test_what_an_older_version_would_queue_is_parked(store: PostgresStore, other: psycopg.Connection) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (first,) = limited(store)
    assert settle_waits(store) == [first]
    later = put(store, limits=(SHOP,), delay=3600.0)
    claim(store, worker)

    other.execute("UPDATE tenure.jobs SET state = 'queued' WHERE id = %s", (later,))
    other.execute(
        "UPDATE tenure.jobs SET state = 'queued', worker_id = NULL, started_at = NULL, last_outcome = 'released' "
        "WHERE id = %s",
        (first,),
    )
    other.commit()

    assert {look(store, each).state for each in (first, later)} == {State.WAITING}
    assert key(store).held == 0
    assert settle_waits(store) == [first]


def test_what_an_older_version_admits_or_cancels_holds_nothing(store: PostgresStore, other: psycopg.Connection) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    holder, parked, cancelled = limited(store, number=3)
    assert settle_waits(store) == [holder]

    other.execute("UPDATE tenure.jobs SET state = 'queued', run_at = now() WHERE id = %s", (parked,))
    other.execute("UPDATE tenure.jobs SET state = 'cancelled', ended_at = now() WHERE id = %s", (cancelled,))
    other.execute("DELETE FROM tenure.jobs WHERE id = %s", (holder,))
    other.commit()

    assert (look(store, parked).parked, look(store, cancelled).parked) == (SHOP.key, None)
    assert settle_waits(store) == [parked]
    assert key(store).held == 1


def test_a_parked_job_that_somebody_has_locked_holds_up_nobody_and_is_not_forgotten(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    start(store)
    declare(store, SHOP.limit, 2)
    first, second = limited(store, number=2)
    other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (first,))

    assert settle_waits(store) == [second]

    waiting = store.admit()
    assert (waiting.more, waiting.next_due) == (False, HELD_SECONDS)
    other.rollback()
    assert settle_waits(store) == [first]


def test_while_another_one_gives_places_what_was_told_is_left(store: PostgresStore, other: psycopg.Connection) -> None:
    start(store)
    (job,) = limited(store)
    other.execute(store._sql(serving.LOCK))

    waiting = store.admit()

    assert (waiting.jobs, waiting.more, waiting.next_due) == ({}, False, HELD_SECONDS)
    other.rollback()
    assert settle_waits(store) == [job]


def test_a_session_that_stops_while_it_gives_places_is_ended(
    store: PostgresStore, other: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(store)
    (job,) = limited(store)
    with monkeypatch.context() as hasty:  # the store keeps its own time: a busy machine may stop it for as long
        hasty.setattr(serving, "LOCK", serving.LOCK.replace(f"{serving.IDLE_MS}ms", "50ms"))
        serving.lock(other, store._sql)  # type: ignore[arg-type]
    with psycopg.connect(store.conninfo, autocommit=True) as waiter:
        waiter.execute("SELECT pg_advisory_lock(%s, hashtext(%s))", (serving._SERVING, '"tenure".places'))

    assert settle_waits(store) == [job]
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        other.execute("SELECT 1")


def test_a_limit_of_many_keys_that_is_paused_and_resumed_asks_each_of_them(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "KEYS_AT_ONCE", 3)
    start(store)
    declare(store, SHOP.limit, 1, paused_until=FOREVER)
    keys = [SHOP._replace(key=f"shop:{n}") for n in range(10)]
    jobs = [limited(store, each)[0] for each in keys]
    assert settle_waits(store) == []

    declare(store, SHOP.limit, 1, paused_until=None)

    assert sorted(settle_waits(store)) == sorted(jobs)


def test_no_idle_queue_is_forgotten_while_places_are_given(store: PostgresStore, other: psycopg.Connection) -> None:
    """Else `admit` passes over a job of it, finds the queue noted as idle, and prune then deletes the note."""
    idle = "SELECT queue FROM @.idle_keys"
    (job,) = limited(store, queue="idle")
    start(store)
    settle_waits(store)
    store.cancel([job], "enough")
    settle_waits(store)
    assert store._server.fetch(idle) == [("idle",)]
    serving.lock(other, store._sql)

    store.prune(keep=3600.0, keep_dead=None)
    assert store._server.fetch(idle) == [("idle",)]

    other.rollback()
    store.prune(keep=3600.0, keep_dead=None)
    assert store._server.fetch(idle) == []


def test_what_is_known_of_keys_is_pruned(store: PostgresStore) -> None:
    limited(store, queue="idle")
    settle_waits(store)
    start(store)
    declare(store, SHOP.limit, 1)
    (job,) = limited(store)
    settle_waits(store)
    change(store, SHOP, paused_until=store.now().timestamp() - 1)
    store.cancel([job, *(view.id for view in store.parked(SHOP.key))], "enough")
    settle_waits(store)

    store.prune(keep=0.0, keep_dead=0.0)

    assert store._server.fetch("SELECT FROM @.limit_keys UNION ALL SELECT FROM @.idle_keys") == []
    assert store._server.fetch("SELECT FROM @.key_asks UNION ALL SELECT FROM @.places") == []
