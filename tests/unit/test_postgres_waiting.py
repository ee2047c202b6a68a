"""Jobs that wait in PostgreSQL: alongside open transactions and older workers, and while connections are cut."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import psycopg
import pytest

from conformance.factories import claim, claim_one, draft, finish, look, put, running, start
from conformance.test_waiting import after, end, settle_waits
from tenure.core.lifecycle import Completed, Lease, State, Suspended
from tenure.errors import StoreAway, StoreBusy
from tenure.ports import Landed
from tenure.stores.postgres import PostgresStore
from tenure.stores.postgres.admission import ADMIT, TIME_OVER, Admission
from tenure.stores.postgres.waiting import HELD_SECONDS
from unit.fresh_postgres import other as other
from unit.fresh_postgres import store as store
from unit.fresh_postgres import url as url
from waiting import until

PARENTS = 50


def test_a_wait_that_is_over_between_two_statements_of_a_look_is_not_lost(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = running(store)
    assert finish(store, lease, Suspended(signal="own:go", timeout=0.5)) is State.WAITING
    plain, seen = Admission._rows, list[str]()

    def slow(self: Admission, statement: str, *values: object) -> list[tuple[Any, ...]]:
        found = plain(self, statement, *values)
        if statement in (ADMIT, TIME_OVER) and not seen:
            seen.append(statement)
            until(lambda: store.now() > (look(store, lease.job_id).wait_until or store.now()), "the wait to be over")
        return found

    monkeypatch.setattr(Admission, "_rows", slow)
    store.admit()  # its own ask: it was suspended just now

    monkeypatch.undo()
    assert seen
    settle_waits(store)
    assert look(store, lease.job_id).state is State.QUEUED


def test_parents_that_end_while_their_child_is_not_committed_yet_are_all_seen(store: PostgresStore) -> None:
    worker = start(store)
    store.enqueue([draft() for _ in range(PARENTS)])
    leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, PARENTS)]
    child, stored, ended = draft(links=after(*(each.job_id for each in leases))), Event(), Event()

    def late() -> None:
        with store.transaction() as tx:
            store.enqueue([child], tx=tx)
            stored.set()
            assert ended.wait(30)

    with ThreadPoolExecutor(6) as threads:
        committing = threads.submit(late)
        assert stored.wait(30)
        list(threads.map(lambda lease: finish(store, lease, Completed()), leases[: PARENTS // 2]))
        assert settle_waits(store) == []
        ended.set()
        list(threads.map(lambda lease: finish(store, lease, Completed()), leases[PARENTS // 2 :]))
        committing.result()

    assert settle_waits(store) == [child.id]


def test_a_parent_is_neither_deleted_nor_pruned_while_its_child_is_not_committed_yet(store: PostgresStore) -> None:
    worker = start(store)
    store.enqueue([draft(), draft()])
    leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, 2)]
    for lease in leases:
        finish(store, lease, Completed("1"))
    old = [lease.job_id for lease in leases]
    child = draft(links=after(*old))

    with store.transaction() as tx:
        store.enqueue([child], tx=tx)
        with pytest.raises(StoreBusy):
            store.delete(old[:1])
        assert store.prune(keep=0, keep_dead=0) == 0

    assert settle_waits(store) == [child.id]


def test_what_a_cut_connection_had_worked_off_is_worked_off_again(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    parent = put(store)
    child = put(store, links=after(parent))
    settle_waits(store)
    end(store, parent)

    with pytest.raises(StoreAway), store._server.connection() as connection, connection.transaction():
        Admission(connection, store._sql).run(200)
        other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
        connection.execute("SELECT 1")

    assert settle_waits(store) == [child]


@pytest.mark.parametrize("held", ["parent", "child", "edge"])
def test_what_somebody_has_locked_is_left_for_later_and_holds_up_nobody(
    held: str, store: PostgresStore, other: psycopg.Connection
) -> None:
    first, second = put(store), put(store)
    child, free = put(store, links=after(first)), put(store, links=after(second))
    end(store, first)
    end(store, second)
    if held == "edge":
        other.execute("SELECT FROM tenure.edges WHERE child = %s FOR UPDATE", (child,))
    else:
        other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (first if held == "parent" else child,))

    assert settle_waits(store) == [free]

    waiting = store.admit()
    assert (waiting.more, waiting.next_due) == (False, HELD_SECONDS)
    assert look(store, child).state is State.WAITING
    other.rollback()
    assert settle_waits(store) == [child]


def test_a_wait_that_timed_out_and_is_locked_is_not_asked_for_without_a_pause(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    lease = running(store)
    finish(store, lease, Suspended(signal="own:go", timeout=0.001))
    other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (lease.job_id,))
    settle_waits(store)

    waiting = store.admit()

    assert (waiting.jobs, waiting.more, waiting.next_due) == ({}, False, HELD_SECONDS)
    other.rollback()
    assert settle_waits(store) == [lease.job_id]


def test_a_wait_that_timed_out_while_a_job_is_waited_for_is_asked_for_once(store: PostgresStore) -> None:
    parent = put(store, delay=3600)
    lease = running(store)
    finish(store, lease, Suspended(after=after(parent).after, signal="own:go", timeout=0.001))
    settle_waits(store)

    waiting = store.admit()

    assert (waiting.jobs, waiting.more, waiting.next_due) == ({}, False, None)
    store.promote_now([parent])
    end(store, parent)
    assert settle_waits(store) == [lease.job_id]


def test_what_an_older_version_ends_is_asked_too(store: PostgresStore, other: psycopg.Connection) -> None:
    parent = put(store)
    child = put(store, links=after(parent))
    settle_waits(store)
    lease = claim_one(store, start(store))

    other.execute(
        "UPDATE tenure.jobs SET state = 'completed', result = '1', ended_at = now(), worker_id = NULL WHERE id = %s",
        (lease.job_id,),
    )
    other.commit()

    assert settle_waits(store) == [child]


def test_what_an_older_version_deletes_holds_nobody(store: PostgresStore, other: psycopg.Connection) -> None:
    parent = put(store)
    needs, goes_on = put(store, links=after(parent)), put(store, links=after(parent, until="ended"))
    settle_waits(store)

    other.execute("DELETE FROM tenure.jobs WHERE id = %s", (parent,))
    other.commit()

    assert settle_waits(store) == [goes_on]
    assert look(store, needs).state is State.CANCELLED


def test_a_waiting_job_that_is_deleted_holds_no_parent(store: PostgresStore) -> None:
    parent, other_parent = put(store), put(store)
    child = put(store, links=after(parent, other_parent))
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    assert look(store, parent).linked
    assert store.delete([child]) == {child: Landed(State.WAITING)}
    settle_waits(store)
    assert not look(store, parent).linked


def test_a_job_enqueued_from_sql_meets_the_waiting_one_that_holds_its_key(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    child = put(store, unique="report", links=after(put(store)))
    assert other.execute("SELECT tenure.enqueue('work', unique_key => 'report')::text").fetchall() == [(child,)]


def test_a_flow_in_a_transaction_that_is_rolled_back_leaves_nothing(store: PostgresStore) -> None:
    parent = draft()
    with pytest.raises(ZeroDivisionError), store.transaction() as tx:
        store.enqueue([parent, draft(links=after(parent.id))], tx=tx)
        _ = 1 / 0

    for table in ("jobs", "edges", "asks"):
        assert store._server.fetch(f"SELECT FROM @.{table}") == []


def test_a_signal_to_a_job_that_is_just_deleted_finds_no_job(
    url: str, store: PostgresStore, other: psycopg.Connection
) -> None:
    job = put(store)
    other.execute("DELETE FROM tenure.jobs WHERE id = %s", (job,))

    with ThreadPoolExecutor(1) as pool, psycopg.connect(url, autocommit=True) as looking:
        sent = pool.submit(store.signal, job, "approved", "true")
        until(lambda: looking.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall(), "the signal to wait")
        other.commit()
        assert sent.result(30) is None
