"""Claims in PostgreSQL while an old snapshot keeps the index entries of all jobs that have left the queue."""

from __future__ import annotations

import select
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from conformance.factories import claim, draft, start
from tenure.core.lifecycle import Completed, Lease
from tenure.errors import StoreAway
from tenure.stores.postgres import PostgresStore, claims, marks
from tenure.stores.postgres.marks import Marks
from unit.fresh_postgres import url as url
from waiting import until

GONE = 3_000  #: jobs that have ended since the snapshot


@pytest.fixture
def store(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresStore]:
    """A store whose short queue costs its claims much."""
    monkeypatch.setattr(marks, "SLOW_SECONDS", 0.0)  # as if 3,000 entries were 300,000
    store = PostgresStore(url)
    store.migrate()
    store.open()
    with psycopg.connect(url) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM pg_class")
        yield store
    store.close()


@pytest.fixture
def worker(store: PostgresStore) -> str:
    """Its claims find few jobs, and skip those that have left the queue."""
    worker = start(store)
    for _ in range(GONE // 1_000):
        put_an_hour_ago(store, 1_000)
        end(store, worker, 1_000)

    def skips() -> bool:
        store.enqueue([draft()])
        return bool(end(store, worker, 5)) and store._marks._kept_until is not None and bool(store._marks)

    until(skips, "marks that are kept")
    return worker


def put_an_hour_ago(store: PostgresStore, number: int = 1) -> list[str]:
    drafts = [draft(run_at=store.now() - timedelta(hours=1)) for _ in range(number)]
    store.enqueue(drafts)
    return [each.id for each in drafts]


def end(store: PostgresStore, worker: str, limit: int) -> list[str]:
    """Claim up to so many jobs, and finish them. Returns their ids."""
    found = claim(store, worker, limit)
    store.finish([(Lease(each.id, each.attempt, worker), Completed()) for each in found])
    return [each.id for each in found]


def entries_read(url: str, store: PostgresStore) -> int:
    store._server.fetch("SELECT pg_stat_force_next_flush()")
    store._server.fetch("SELECT 1")  # what ends now is counted
    with psycopg.connect(url) as other:
        ((number,),) = other.execute("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_queued'")
    return int(number)


def test_claims_of_a_short_queue_skip_what_has_left_it(
    store: PostgresStore, worker: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Marks, "_look", lambda *_: None)  # it reads all of them
    monkeypatch.setattr(marks, "UNSEEN_SECONDS", 1e9)
    before = entries_read(url, store)
    for _ in range(5):
        store.enqueue([draft()])
        assert end(store, worker, 5)

    assert entries_read(url, store) - before < GONE


@pytest.mark.parametrize("by", ["a look", "an empty claim", "the time that no look has ended"])
def test_a_job_that_a_claim_has_skipped_is_found(
    store: PostgresStore, worker: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_skipped() -> str:
        (early,) = put_an_hour_ago(store)
        store.enqueue([draft()])
        return "" if early in end(store, worker, 5) else early

    if by != "a look":
        monkeypatch.setattr(Marks, "_look", lambda *_: None)
    skipped = until(is_skipped, "a job that a claim skips")
    monkeypatch.setattr(marks, "UNSEEN_SECONDS", 0.1 if by == "the time that no look has ended" else 1e9)
    seen = list[str]()

    def is_found() -> bool:
        if by != "an empty claim":  # one that finds none looks again itself
            store.enqueue([draft()])
        seen.extend(end(store, worker, 5))
        return skipped in seen

    until(is_found, "the job")


def test_marks_go_when_the_snapshot_has_gone(
    store: PostgresStore, worker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store._marks
    monkeypatch.setattr(marks, "SLOW_SECONDS", 60.0)

    def are_gone() -> bool:
        store.enqueue([draft()])
        return bool(end(store, worker, 5)) and not store._marks

    until(are_gone, "the marks to go")


def test_a_busy_server_alone_is_no_reason(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other claim is fast: none of them is kept waiting by entries."""
    worker = start(store)
    for number in range(3 * marks.SLOW_CLAIMS):
        monkeypatch.setattr(marks, "SLOW_SECONDS", 60.0 if number % 2 else 0.0)
        store.enqueue([draft()])
        assert end(store, worker, 5)
        assert not store._marks


@pytest.fixture
def slow_reads(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> str:
    """A worker whose leases are read by id: all of them took too long."""
    monkeypatch.setattr(claims, "SLOW_READ_SECONDS", 0.0)
    monkeypatch.setattr(claims, "READ_SHARE", 1e9)
    worker = start(store)
    for _ in range(claims.SLOW_READS):
        assert store.owned(worker) == []
    return worker


def test_leases_that_are_slow_to_read_are_read_by_id(store: PostgresStore, slow_reads: str) -> None:
    ids = [store.enqueue([draft()])[0].id for _ in range(3)]
    known = {Lease(each.id, each.attempt, slow_reads): each for each in claim(store, slow_reads, 3)}
    store.cancel(ids[:1], "no longer needed")
    store.finish([(Lease(ids[1], 1, slow_reads), Completed())])

    assert store.owned(slow_reads) == []  # it is not read what it owns
    owned = {each.claimed.id: each.cancel_reason for each in store.owned(slow_reads, known)}
    assert owned == {ids[0]: "no longer needed", ids[2]: None}


@pytest.mark.parametrize("solo", [False, True])
def test_jobs_of_a_claim_whose_reply_was_lost_are_found_at_once(
    store: PostgresStore, slow_reads: str, solo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.enqueue([draft(isolated=solo)])
    asked, name = (store, "_take_queued") if solo else (store._server, "ask")
    ask = getattr(asked, name)

    def lost(*given: Any) -> Any:
        ask(*given)
        raise StoreAway("the reply was lost")

    monkeypatch.setattr(asked, name, lost)
    with pytest.raises(StoreAway):
        claim(store, slow_reads, 1, solo=solo)

    assert len(store.owned(slow_reads)) == 1


def test_jobs_of_a_claim_on_a_loop_whose_reply_was_lost_are_found_at_once(
    store: PostgresStore, slow_reads: str
) -> None:
    store.enqueue([draft()])
    call = store.claim_on_loop(slow_reads, {"default": 1}, 1)
    wanted = next(call)
    assert select.select([wanted.fileno], [], [], wanted.seconds)[0], "no answer"
    with pytest.raises(StoreAway):
        call.throw(TimeoutError("no answer in 8s"))

    assert len(store.owned(slow_reads)) == 1
