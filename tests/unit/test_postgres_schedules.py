"""Schedules on PostgreSQL: the views that people read, rows that others hold, plans, and a migration under load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql as quoting
from psycopg.rows import dict_row

from conformance.factories import begin, claim_one, draft, finish, look, put, running, standing, start
from servers import shared_postgres
from tenure.core.lifecycle import Completed, Failed, Outcome, State
from tenure.errors import BadData, StoreBusy
from tenure.ports.schedules import REPLACED, Change, Schedule, Standing
from tenure.schedules.plan import Plan
from tenure.schedules.timetable import Record, record
from tenure.stores.fields import identity_row
from tenure.stores.postgres import PostgresStore, claims, operated, schedules, schema, server, workers
from unit.fresh_postgres import other as other
from unit.fresh_postgres import store as store
from unit.fresh_postgres import url as url

MIGRATIONS = schema.migrations()


def make(store: PostgresStore, *names: str, **options: Any) -> None:
    given: dict[str, Any] = {"rule": "0 3 * * *", "job": draft(), **options}
    changes = [Change(schedule=Schedule(name=name, **given)) for name in names]
    assert all(store.change(changes))


def again(store: PostgresStore, name: str, **options: Any) -> Change:
    """A change of a schedule as it is now."""
    return Change(schedule=standing(store, name).schedule.but(**options))


# ── The views ──


def health(url: str) -> dict[str, Record]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        rows = connection.execute("SELECT * FROM tenure.schedules").fetchall()
    return {row["name"]: Record(**row) for row in rows}


def closed(store: PostgresStore, name: str) -> Standing:
    """As it will be once the runs that have ended are recorded."""
    stands = standing(store, name)
    schedule = Plan(stands, store.now()).close(store.attempts).schedule
    return Standing(schedule, tuple(run for run in stands.runs if run.live))


def test_the_view_tells_the_health_of_a_schedule_that_rests(store: PostgresStore, url: str) -> None:
    now = store.now()
    make(store, "plain", next_tick=now, failure_count=3, last_run_at=now, last_duration_ms=1500, last_status="failure")
    make(store, "Ärger", tz="Europe/Berlin", next_tick=now, paused_at=now)
    make(store, "gone", next_tick=now, retired_at=now)

    told = health(url)

    assert told == {name: record(standing(store, name)) for name in ("plain", "Ärger", "gone")}
    assert told["plain"].next_expected_at == now
    assert (told["Ärger"].schedule, told["Ärger"].next_expected_at) == ("0 3 * * * Europe/Berlin", None)


def test_the_view_tells_of_a_run_as_it_is_now(store: PostgresStore, url: str) -> None:
    make(store, "nightly", last_status="success")
    job_id, worker = begin(store, "nightly"), start(store)
    assert health(url)["nightly"].last_status == "success"  # its job is still queued

    assert claim_one(store, worker).job_id == job_id

    told = health(url)["nightly"]
    assert told == record(standing(store, "nightly"))
    assert (told.last_status, told.last_run_at) == ("started", look(store, job_id).started_at)
    assert told.locked_until == store.workers()[0].expires_at


@pytest.mark.parametrize(
    ("outcome", "status", "failures"),
    [(Completed(), "success", 0), (Failed("no", final=True), "failure", 3)],
    ids=["completed", "dead"],
)
def test_the_view_tells_how_a_run_ended_before_anybody_wrote_it_down(
    outcome: Outcome, status: str, failures: int, store: PostgresStore, url: str
) -> None:
    make(store, "nightly", failure_count=2)
    begin(store, "nightly")
    worker = start(store)
    assert finish(store, claim_one(store, worker), Failed("at first", retry_in=0)) is State.SCHEDULED
    store.promote()
    finish(store, claim_one(store, worker), outcome)

    told = health(url)["nightly"]

    assert (told.last_status, told.failure_count) == (status, failures)
    assert told == record(closed(store, "nightly"))


def test_a_run_that_was_cancelled_before_it_began_is_no_run(store: PostgresStore, url: str) -> None:
    make(store, "nightly", last_status="success")
    store.cancel([begin(store, "nightly")], "not today")

    assert health(url)["nightly"] == record(closed(store, "nightly"))
    assert health(url)["nightly"].last_status == "success"


def test_the_view_of_ticks_tells_what_became_of_each(store: PostgresStore, url: str) -> None:
    make(store, "nightly")
    at = store.now()
    job_id = begin(store, "nightly", at)
    finish(store, claim_one(store, start(store)), Completed())
    plan = Plan(standing(store, "nightly"), store.now()).close(store.attempts)
    change = plan.change()
    assert change is not None
    missed = replace(change.ticks[0], tick=at - timedelta(days=1), status="missed", why="away", job_id=None, count=7)
    assert store.change([replace(change, ticks=(*change.ticks, missed))]) == [True]

    with psycopg.connect(url, row_factory=dict_row) as connection:
        ran, lost = connection.execute("SELECT * FROM tenure.ticks ORDER BY tick DESC").fetchall()

    assert (ran["schedule"], ran["tick"], ran["cause"], ran["status"]) == ("nightly", at, "tick", "success")
    assert (str(ran["job_id"]), ran["started_at"]) == (job_id, look(store, job_id).started_at)
    assert ran["duration_ms"] == plan.schedule.last_duration_ms
    assert (lost["status"], lost["why"], lost["count"], lost["job_id"]) == ("missed", "away", 7, None)


# ── Rows that others hold ──


def test_a_schedule_that_is_held_holds_up_no_other(store: PostgresStore, other: psycopg.Connection) -> None:
    make(store, "free", "held", "other")
    changes = [again(store, name, failure_count=1) for name in ("other", "held", "free")]
    other.execute("SELECT FROM tenure.schedule_rows WHERE name = 'held' FOR UPDATE")

    assert store.change(changes) == [True, False, True]

    other.rollback()
    assert store.change(changes) == [False, True, False]


def test_a_job_that_is_held_lets_its_schedule_wait_and_no_other(
    store: PostgresStore, other: psycopg.Connection
) -> None:
    make(store, "free", "held")
    lease = running(store)
    change = replace(again(store, "held"), cancel=(lease.job_id,), drafts=(draft(),))
    other.execute("SELECT FROM tenure.jobs WHERE id = %s FOR UPDATE", (lease.job_id,))

    assert store.change([change, again(store, "free")]) == [False, True]

    assert store.get(change.drafts[0].id) is None
    other.rollback()
    assert store.change([change]) == [True]
    assert look(store, lease.job_id).cancel_reason == REPLACED


def test_a_job_that_is_gone_holds_up_nothing(store: PostgresStore) -> None:
    make(store, "nightly")
    gone = put(store)
    store.delete([gone])

    assert store.change([replace(again(store, "nightly"), cancel=(gone, "no id at all"))]) == [True]


# ── The planner ──

ROWS = 20_000
Scan = tuple[str, str]  # kind of node, index

CASES: Mapping[str, tuple[str, Mapping[str, object], set[Scan]]] = {
    "what is due": (
        schedules._DUE,
        {"limit": 500},
        {
            ("Index Only Scan", "schedule_rows_due"),
            ("Index Scan", "schedule_rows_due"),
            ("Index Scan", "tick_rows_open"),
            ("Index Scan", "jobs_pkey"),
        },
    ),
    "a few": (
        schedules._NAMED,
        {"names": ["s1", "s2"]},
        {
            ("Index Scan", "schedule_rows_pkey"),
            ("Index Scan", "tick_rows_open"),
            ("Index Scan", "jobs_pkey"),
            ("Index Scan", "workers_pkey"),
        },
    ),
    "history": (
        schedules._TICKS,
        {"name": "s1", "before": None, "limit": 50},
        {("Index Scan Backward", "tick_rows_pkey")},
    ),
    "writing": (
        schedules._WRITE,
        {"rows": '[{"name": "s1", "rev": 1, "body": "{}", "gone": false}]'},
        {
            ("Index Scan", "schedule_rows_pkey"),
            ("Index Scan", "tick_rows_pkey"),
            ("Index Only Scan", "schedule_rows_pkey"),
            ("Index Scan", "workers_pkey"),
        },
    ),
    "forgetting": (
        schedules._FORGET_TICKS,
        {"keep": 1e9, "limit": 1000},
        {("Index Scan", "tick_rows_decided"), ("Tid Scan", "")},
    ),
    "running again": (
        operated._RUN_AGAIN,
        {"id": "00000000-0000-0000-0000-000000000001"},
        {("Index Scan", "tick_rows_job"), ("Index Scan", "schedule_rows_pkey")},
    ),
    "notes": (schedules._NOTES, {"from": "k", "to": "l"}, {("Index Scan", "notes_pkey")}),
}


def fill(connection: psycopg.Connection) -> None:
    numbers = f"FROM generate_series(1, {ROWS}) AS n"
    connection.execute(f"INSERT INTO tenure.schedule_rows SELECT 's' || n, 1, now(), '{{}}' {numbers}")
    for is_open in (True, False):
        connection.execute(
            "INSERT INTO tenure.tick_rows SELECT 's' || n, now(), %s, lpad(to_hex(n), 32, '0')::uuid, %s, now(), '{}' "
            + numbers,
            (str(is_open), is_open),
        )
    connection.execute(f"INSERT INTO tenure.notes SELECT 'k' || n, '' {numbers}")


def analysed_empty_then_filled(connection: psycopg.Connection) -> None:
    connection.execute("ANALYZE")
    fill(connection)


def analysed_full_then_emptied(connection: psycopg.Connection) -> None:
    fill(connection)
    connection.execute("ANALYZE")
    connection.execute("DELETE FROM tenure.schedule_rows; DELETE FROM tenure.tick_rows; DELETE FROM tenure.notes")


def never_analysed(connection: psycopg.Connection) -> None:
    fill(connection)


@pytest.fixture(
    scope="module",
    params=[analysed_empty_then_filled, analysed_full_then_emptied, never_analysed],
    ids=lambda fill: fill.__name__,
)
def lying(request: pytest.FixtureRequest) -> Iterator[server.Server]:
    databases = shared_postgres()
    url = databases.create_database()
    PostgresStore(url).migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("schedule_rows", "tick_rows", "notes"):
            connection.execute(f"ALTER TABLE tenure.{table} SET (autovacuum_enabled = off)")
        request.param(connection)
    lying = server.Server(url, "tenure", None, None, "tenure migrate")
    lying.open()
    yield lying
    lying.close()
    databases.drop_database(url)


def scans(node: dict[str, Any]) -> Iterator[Scan]:
    kind, index = node["Node Type"], node.get("Index Name", "")
    if (index or "Relation Name" in node) and kind != "ModifyTable":
        backward = " Backward" if node.get("Scan Direction") == "Backward" else ""
        yield kind + backward, index
    for child in node.get("Plans", ()):
        yield from scans(child)


@pytest.mark.parametrize("mode", ["custom", "generic"])
@pytest.mark.parametrize("name", CASES)
def test_the_one_index_that_fits_is_taken(name: str, mode: str, lying: server.Server) -> None:
    sql, values, expected = CASES[name]
    numbers = count(1)
    text = re.sub(r"%\(\w+\)s", "$1", lying.sql(sql))
    text = re.sub(r"%s", lambda _: f"${next(numbers)}", text)
    with lying.connection() as connection:
        given = ", ".join(quoting.Literal(value).as_string(connection) for value in values.values())
        connection.execute(f"SET plan_cache_mode = force_{mode}_plan".encode())
        connection.execute(f"PREPARE it AS {text}".encode())
        try:
            ((plan,),) = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE it ({given})".encode()).fetchall()
        finally:
            connection.execute("DEALLOCATE it; RESET plan_cache_mode")

    assert set(scans(plan[0]["Plan"])) == expected


# ── Migrating while workers of the version before are at work ──


@pytest.fixture(params=range(1, len(MIGRATIONS)))
def before(url: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[PostgresStore]:
    """A store of an earlier version: its workers told no protocol, and its claims asked for no links and no limits."""
    store = PostgresStore(url)
    older = workers.REGISTER.replace("lease, protocol,", "lease,").replace("VALUES (%s, ", "VALUES (")
    monkeypatch.setattr(workers, "REGISTER", older)
    monkeypatch.setattr(workers, "identity_row", lambda worker: identity_row(worker)[:-1])
    for name in ("CLAIM", "CLAIM_TOLD"):
        asks_for_no_links = getattr(claims, name).replace("j.linked IS NOT NULL", "false")
        monkeypatch.setattr(claims, name, asks_for_no_links.replace("j.limits IS NOT NULL", "false"))
    with monkeypatch.context() as patched:
        patched.setattr(schema, "migrations", lambda: MIGRATIONS[: request.param])
        assert store.migrate() == request.param
        store.open()
    yield store
    store.close()


def test_workers_of_the_version_before_go_on_while_it_migrates(before: PostgresStore, url: str) -> None:
    worker = start(before)
    for _ in range(3):  # its statements are prepared
        assert finish(before, running(before, worker), Completed()) is State.COMPLETED
    lease = running(before, worker)

    assert PostgresStore(url).migrate() == MIGRATIONS[-1][0]

    assert before.renew([worker]) == {worker}
    assert finish(before, lease, Completed()) is State.COMPLETED
    assert finish(before, running(before, worker), Failed("no", final=True)) is State.DEAD
    start(before)
    with pytest.raises(BadData):
        start(before, runner="anything")
    start(before, runner="guard")


@pytest.mark.parametrize(
    "held",
    [
        # as pg_dump does, for hours
        pytest.param("SELECT FROM tenure.workers, tenure.jobs", marks=pytest.mark.thorough),
        "UPDATE tenure.jobs SET payload = payload",  # as a caller that has enqueued in a transaction does
    ],
)
def test_workers_do_not_wait_behind_a_migration_that_waits_for_somebody(
    held: str, before: PostgresStore, url: str, other: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "MIGRATE_SECONDS", 0.0)
    worker = start(before)
    waits = has_to_wait(before)
    other.execute(held.encode())

    with ThreadPoolExecutor(1) as thread:
        migrating = thread.submit(PostgresStore(url).migrate)
        while not migrating.done():
            assert finish(before, running(before, worker), Completed()) is State.COMPLETED
        # A migration that locks no table waits for no one.
        session = rf"session {other.info.backend_pid} \(idle in transaction, its transaction is .* old\)"
        with pytest.raises(StoreBusy, match=session) if waits else nullcontext():
            migrating.result()

    other.rollback()
    assert PostgresStore(url).migrate() == MIGRATIONS[-1][0]


@pytest.mark.thorough
def test_a_migration_tries_again_until_the_others_transaction_has_ended(
    before: PostgresStore,
    url: str,
    other: psycopg.Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tries = iter([lambda: None, other.rollback])
    monkeypatch.setattr(schema, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: next(tries)()))
    waits = has_to_wait(before)
    other.execute("UPDATE tenure.jobs SET payload = payload")

    assert PostgresStore(url).migrate() == MIGRATIONS[-1][0]

    assert caplog.text.count("migrating waits for other transactions") == (2 if waits else 0)


def has_to_wait(before: PostgresStore) -> bool:
    """Is there a migration to come that changes a table which workers use?"""
    version = before._server.fetch("SELECT max(version) FROM @.migrations")[0][0]
    return any("lock_timeout" in script for number, script in MIGRATIONS if number > version)
