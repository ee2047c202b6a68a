"""The plans of SQLite's duties: each batch comes out of an index in its order, and nothing is sorted."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from conformance.factories import claim, draft, jobs_in_every_way, put, start
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Lease, Outcome, Released
from tenure.errors import BadData
from tenure.ports import NotLanded, Store
from tenure.stores.sqlite import SqliteStore
from tenure.stores.sqlite.file import DatabaseFile
from tenure.stores.sqlite.reads import UPDATES

DUTIES: dict[str, Callable[[Store], object]] = {
    "promote": lambda store: store.promote(),
    "prune": lambda store: store.prune(keep=0.0, keep_dead=0.0),
    "forget": lambda store: store.forget(keep=0.0),
    "claim": lambda store: store.claim("w", {"default": 10}, 10),
    "holding": lambda store: store.holding(),
    "waited longest": lambda store: store.waited_longest(),
    "waits": lambda store: store.waits(),
    "ids": lambda store: store.ids("0199", "beef"),
    "due": lambda store: store.due(limit=10),
    "decided": lambda store: store.decided(store.now(), store.now(), limit=10),
}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The statements of all connections that are opened from now on, each with its last bindings."""
    found, connect = dict[str, Any](), DatabaseFile._connect

    def traced(file: DatabaseFile, *options: Any) -> apsw.Connection:
        connection = connect(file, *options)

        def note(_: apsw.Cursor, sql: str, bindings: Any) -> bool:
            found[sql] = bindings
            return True

        connection.exec_trace = note
        return connection

    monkeypatch.setattr(DatabaseFile, "_connect", traced)
    return found


@pytest.mark.parametrize("name", DUTIES)
def test_no_duty_sorts(name: str, tmp_path: Path, said: dict[str, Any]) -> None:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    start(store, id="w")
    put(store)
    put(store, delay=0.001)
    said.clear()

    DUTIES[name](store)
    store.close()

    looked = {sql: bindings for sql, bindings in said.items() if "FROM" in sql}
    assert looked
    with apsw.Connection(str(tmp_path / "tenure.db")) as connection:
        for sql, bindings in looked.items():
            for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings):
                assert "TEMP B-TREE FOR" not in detail, sql


def test_notes_of_a_prefix_are_read_without_those_after_it(tmp_path: Path, said: dict[str, Any]) -> None:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    said.clear()

    store.notes("order:")
    store.close()

    ((sql, bindings),) = [each for each in said.items() if "FROM notes" in each[0]]
    with apsw.Connection(str(tmp_path / "tenure.db")) as connection:
        ((*_, detail),) = connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)
    assert "(key>? AND key<?)" in detail


def test_a_look_at_many_jobs_costs_nothing_for_the_others(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.close()

    with apsw.Connection(str(tmp_path / "tenure.db")) as connection:
        plan = [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {UPDATES}", ("{}", 50))]

    assert len(plan) == 2, plan
    assert plan[0].startswith("SCAN seen VIRTUAL TABLE"), plan
    assert plan[1].startswith("SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"), plan


def test_ids_are_looked_for_in_their_index_alone(tmp_path: Path, said: dict[str, Any]) -> None:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    said.clear()
    store.ids("0199", "beef")
    store.close()

    ((sql, bindings),) = [each for each in said.items() if "FROM jobs" in each[0]]
    with apsw.Connection(str(tmp_path / "tenure.db")) as connection:
        ((*_, detail),) = connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)
    assert detail == "SEARCH jobs USING COVERING INDEX sqlite_autoindex_jobs_1 (id>? AND id<?)"


def test_an_empty_claim_from_very_many_queues_does_not_take_the_write_lock(tmp_path: Path) -> None:
    """It has to look into each of them, and every writer would wait for that."""
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    worker = start(store, boot_id=system_clock().boot_id)
    queues = {f"queue-{number}": 5 for number in range(1000)}

    with store.transaction() as others:  # this thread holds the lock, so a write would wait for itself
        done = ThreadPoolExecutor(1).submit(store.claim, worker, queues, 5)
        assert done.result(30.0) == []
        others.execute("SELECT 1")
    put(store, queue="queue-7")
    (claimed,) = store.claim(worker, queues, 5)
    store.close()

    assert claimed.queue == "queue-7"


def test_a_job_that_is_too_large_as_json_stops_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As JSON, a text may be twice as long as in its row. Such a claim used to be refused, and repeated for ever."""
    connect = DatabaseFile._connect

    def limited(file: DatabaseFile, *options: Any) -> apsw.Connection:
        connection = connect(file, *options)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, 1_000_000)
        return connection

    monkeypatch.setattr(DatabaseFile, "_connect", limited)
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    worker, large = start(store, boot_id=system_clock().boot_id), json.dumps('"' * 300_000)
    jobs = [put(store), put(store, payload=large), *(put(store, payload=large[:200_000] + '"') for _ in range(5))]

    with pytest.raises(BadData):
        put(store, payload="0" * 1_000_001)  # what can never be read is never stored
    found = [each for _ in range(len(jobs)) for each in store.claim(worker, {"default": 10}, 10)]
    held = store.owned(worker)
    store.close()

    assert [each.id for each in found] == jobs
    assert found[1].payload == large
    assert sorted(each.claimed for each in held) == sorted(found)


def test_a_lone_job_and_completed_ones_are_stored_by_one_statement_each(tmp_path: Path) -> None:
    """Between the statements of a transaction, code that takes the GIL and keeps it keeps the file's lock, too."""
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    worker = start(store, boot_id=system_clock().boot_id)
    statements: list[str] = []
    writer = store._file._writer
    assert writer is not None

    def note(event: Any) -> None:
        if not event["trigger"]:
            statements.append(event["sql"].split()[0])

    writer.trace_v2(apsw.SQLITE_TRACE_STMT, note)

    assert all(enqueued.created for _ in range(3) for enqueued in store.enqueue([draft()]))
    assert statements == ["INSERT"] * 3

    leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, 3)]
    statements.clear()
    store.finish([(lease, Completed("1")) for lease in leases[:2]])
    assert statements == ["UPDATE"]

    ends: list[tuple[Lease, Outcome]] = [(leases[2], Completed("1")), (leases[2]._replace(attempt=9), Released("gone"))]
    statements.clear()
    store.finish(ends)  # of different kinds: all in one transaction
    assert (statements[0], statements[-1], statements.count("COMMIT")) == ("BEGIN", "COMMIT", 1)
    store.close()


def test_no_statement_is_planned_twice(tmp_path: Path) -> None:
    """SQLite would plan a claim, and most reads of jobs, at each use: an empty claim took four times as long."""
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    worker, asked = start(store, boot_id=system_clock().boot_id), 0

    def allowed(*_: object) -> int:  # SQLite asks whenever it plans
        nonlocal asked
        asked += 1
        return apsw.SQLITE_OK

    for connection in (store._file._writer, store._file._reader):
        assert connection is not None
        connection.authorizer = allowed
    planned: list[int] = []
    for _ in range(3):
        asked = 0
        jobs_in_every_way(store, worker)
        planned.append(asked)
    store.close()

    assert planned[0] > 0
    assert planned[1:] == [0, 0]


def test_of_completed_jobs_the_lost_ones_are_told_and_the_others_stored(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()
    worker = start(store, boot_id=system_clock().boot_id)
    jobs = [put(store) for _ in range(3)]
    leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, 3)]
    store.finish([(leases[1], Released("given away"))])

    answers = store.finish([(lease, Completed(f'"{number}"')) for number, lease in enumerate(leases)])

    assert [isinstance(answer, NotLanded) for answer in answers] == [False, True, False]
    assert [job.state for job in map(store.get, jobs) if job is not None] == ["completed", "queued", "completed"]
    store.close()
