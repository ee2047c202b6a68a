"""The plans of the statements that workers depend on, even while the statistics lie: one index fits, and it is taken.

A queue goes from empty to a million and back faster than it is analysed. So the plans are read for tables that were
analysed before they were filled, or emptied, and both for the given values and for a prepared statement.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest
from psycopg import sql as quoting

from conformance.factories import claim, draft, jobs_in_every_way, start
from servers import Databases, shared_postgres
from tenure.core.clock import system_clock
from tenure.core.lifecycle import ENDED, LIVE, Lease, State
from tenure.ports import Filter, Page, Progress
from tenure.stores.postgres import (
    PostgresStore,
    admission,
    claims,
    drafts,
    jobs,
    limits,
    links,
    marks,
    operated,
    reads,
    serving,
    steps,
    wait_reads,
    waiting,
    workers,
)
from tenure.stores.postgres.marks import START, Place
from tenure.stores.postgres.reads import PostgresReads
from tenure.stores.postgres.server import Server

ROWS = 50_000
BATCH = 1_000  #: the longest backlog of outcomes

Scan = tuple[str, str]  # kind of node, index

PKEY: Scan = ("Index Scan", "jobs_pkey")
BY_PLACE: Scan = ("Tid Scan", "")
OF_WORKER: Scan = ("Index Scan", "jobs_processing")
IN_ORDER: Scan = ("Index Scan", "jobs_queued")
UNIQUE: Scan = ("Index Scan", "jobs_unique")
PARKED: Scan = ("Index Scan", "jobs_parked")
DUE: Scan = ("Index Scan", "jobs_scheduled")
WAITING: Scan = ("Index Only Scan", "jobs_waiting")


#: plans of a prepared statement, and for the given values
MODES = ["generic", pytest.param("custom", marks=pytest.mark.thorough)]


class Case(NamedTuple):
    """A statement, values for its parameters, and how it must find its jobs."""

    sql: str
    values: tuple[object, ...] | Mapping[str, object]
    scans: set[Scan]


def ids(number: int) -> list[str]:
    return [str(UUID(int=n)) for n in range(1, number + 1)]


def leases(**more: object) -> str:
    return json.dumps([{"id": each, "attempt": 1, "worker": "w", **more} for each in ids(BATCH)])


def ends() -> str:
    return leases(
        state="scheduled", failures=1, crashes=0, total=0, solo=False, together=1, outcome="failed", ended=False,
        reason="no", evidence="{}",
    )  # fmt: skip


def facts_of_claim(place: Place) -> Mapping[str, object]:
    queues = {"queues": ["a", "b"], "wants": [5, 5], "worker": "w", "limit": 5}
    return {**queues, "ranks": [place[0]] * 2, "times": [place[1]] * 2, "ids": [place[2]] * 2}


CASES: Mapping[str, Case] = {
    "COMPLETE": Case(steps.COMPLETE, ("w", ids(BATCH), [1] * BATCH, ["1"] * BATCH), {PKEY}),
    "COMPLETE one": Case(steps.COMPLETE, ("w", ids(1), [1], ["1"]), {PKEY}),
    "COMPLETE_THERE": Case(steps.COMPLETE_THERE, (leases(result="1"),), {PKEY}),
    "PROGRESS": Case(jobs.PROGRESS, (leases(fraction=0.5),), {PKEY}),
    "PROGRESS_LOGGED": Case(jobs.PROGRESS_LOGGED, (leases(log="a line"),), {PKEY}),
    "LOCK": Case(steps.LOCK.format(waiting=""), (leases(),), {PKEY}),
    "END": Case(steps.END, (ends(),), {PKEY}),
    "STANDS": Case(steps.STANDS, (leases(),), {PKEY}),
    "ONCE_READ": Case(jobs.ONCE_READ, (ids(1)[0], 1, "w", "key"), {PKEY}),
    "ONCE_WRITE": Case(jobs.ONCE_WRITE, (ids(1)[0], 1, "w", "key", "1"), {PKEY}),
    "OWNED": Case(claims.OWNED, ("w", ids(5)), {PKEY}),
    "LEASES": Case(claims.LEASES, ("w",), {OF_WORKER}),
    "LEASES_OF": Case(claims.LEASES_OF, ("w", ids(5)), {PKEY}),
    "HELD": Case(workers.HELD, ("w",), {OF_WORKER}),
    "CLAIM": Case(claims.CLAIM, facts_of_claim(START), {IN_ORDER, BY_PLACE}),
    "CLAIM from a mark": Case(claims.CLAIM, facts_of_claim((0, "2030-01-01 00:00Z", ids(7)[6])), {IN_ORDER, BY_PLACE}),
    "a claim's place": Case(marks.PLACE, (1.0, ids(1)[0]), {PKEY}),
    "what a mark has skipped": Case(marks.SKIPPED, ("default", 0, "2030-01-01 00:00Z", ids(7)[6]), {IN_ORDER}),
    "STANDING": Case(
        drafts.STANDING, (json.dumps([{"id": i, "task": "t", "unique": "k"} for i in ids(BATCH)]),), {PKEY, UNIQUE}
    ),
    "HUNG": Case(workers.HUNG, (["w", "v"],), {OF_WORKER}),
    "TO_RESCUE": Case(workers.TO_RESCUE, (100,), {OF_WORKER}),
    "REDELIVERED": Case(workers.REDELIVERED, (ids(1)[0], 1), {PKEY, OF_WORKER}),
    "SUSPECTS": Case(claims.SUSPECTS, ("a", 64), {IN_ORDER}),
    "CLAIM_GROUP": Case(
        claims.CLAIM_GROUP,
        {"ids": ids(64), "size": 64, "worker": "w"},
        {PKEY, BY_PLACE, ("Index Only Scan", "jobs_processing")},
    ),
    "SOLO_WAITING": Case(workers.SOLO_WAITING, (512, ["a", "b"]), {IN_ORDER}),
    "NEXT_DUE": Case(jobs.NEXT_DUE, (), {("Index Only Scan", "jobs_scheduled")}),
    "UPDATES": Case(reads.UPDATES, (json.dumps(dict.fromkeys(ids(BATCH), "1")), 50), {PKEY}),
    "IDS": Case(reads.IDS, ("beef", "beef", *ids(2), 10_000), {("Index Only Scan", "jobs_pkey")}),
    "IDS_BELOW": Case(reads.IDS_BELOW, ("beef", "beef", *ids(2), 10_000), {("Index Only Scan", "jobs_pkey")}),
    "PRUNE": Case(jobs.PRUNE, ("completed", 3600.0, 1000), {("Index Scan", "jobs_ended"), BY_PLACE}),
    "PROMOTE": Case(jobs.PROMOTE, (1000,), {DUE, BY_PLACE}),
    "KNOWN": Case(links.KNOWN, (json.dumps(ids(BATCH)),), {("Index Scan", "jobs_pkey")}),
    "SUSPEND": Case(links.SUSPEND, (leases(),), {PKEY}),
    "LOOK": Case(waiting.LOOK, (), {WAITING}),
    "LEFT": Case(waiting.LEFT, ([], []), {WAITING}),
    "TIMED_OUT": Case(admission.TIMED_OUT, (200,), {("Index Scan", "jobs_waiting")}),
    "FOR_SHARED": Case(admission.FOR_SHARED, ("shared:go", ids(1)[0], 200), {("Index Only Scan", "jobs_shared")}),
    "of asks, LOCK": Case(admission.LOCK, (ids(200),), {PKEY}),
    "of asks, STORED": Case(admission.STORED, (ids(200),), {("Index Only Scan", "jobs_pkey")}),
    "MARK": Case(admission.MARK, (ids(200),), {PKEY}),
    "MARK_CHILDREN": Case(admission.MARK_CHILDREN, (ids(200),), {PKEY}),
    "CLOSE": Case(admission.CLOSE, (ids(200), ids(200)), {PKEY}),
    "CANCEL": Case(admission.CANCEL, (ids(200), ["no"] * 200), {PKEY}),
    "LOCK_TO_RELEASE": Case(admission.LOCK_TO_RELEASE, (ids(200),), {PKEY}),
    "RELEASE": Case(admission.RELEASE, (ids(200),), {PKEY}),
    "ADMIT": Case(admission.ADMIT, (ids(200),), {PKEY}),
    "TIME_OVER": Case(admission.TIME_OVER, ("late", ids(200)), {PKEY}),
    "OPEN": Case(
        serving.OPEN,
        {"keys": ["a", "b"], "most": [1, 1], "looked": True, "rated": ["a"], "of_keys": ["a"], "of_limits": ["a"]},
        {PKEY, ("Index Only Scan", "jobs_parked")},
    ),
    "CANDIDATES": Case(serving.CANDIDATES, (["a"], [5], [None], [None], ["a", "b"], 200), {PARKED}),
    "GIVE": Case(serving.GIVE, (",".join(ids(200)),), {PKEY}),
    "EXPIRE": Case(serving.EXPIRE, ("late", ids(200)), {PKEY}),
    "MOVE": Case(serving.MOVE, (ids(200), ["a"] * 200), {PKEY}),
    "STILL": Case(serving.STILL, (["a"], ["a", "b"]), {("Index Only Scan", "jobs_parked")}),
    "PARKED_KEYS": Case(serving.PARKED_KEYS, ("", 200), {PARKED}),
    "UNBEGUN": Case(limits.UNBEGUN, (*limits.START, 1000), {("Index Only Scan", "jobs_parked"), PKEY}),
    "TAKE_BACK": Case(limits.TAKE_BACK, (ids(200),), {PKEY}),
    "HOLDERS": Case(limits.HOLDERS, ("a", 50), {PKEY}),
    "INPUTS": Case(waiting.INPUTS, (ids(1)[0], 0, 200), {PKEY}),
    "DEPENDENTS": Case(waiting.DEPENDENTS, (*ids(2), 200), {PKEY}),
    "MEMBERS": Case(wait_reads.MEMBERS, (*ids(2), 1000), {("Index Scan", "jobs_flow")}),
    "LOST_WAITS": Case(wait_reads.LOST, (ids(200),), {PKEY}),
    "HOLDING": Case(wait_reads.HOLDING, (50,), {("Index Scan", "jobs_holding")}),
    "WAITED": Case(wait_reads.WAITED, (50,), {("Index Scan", "jobs_waited")}),
    "WAITS": Case(wait_reads.WAITS, (10_000, 200), {("Index Only Scan", "jobs_flow")}),
    "OLD_FLOWS": Case(jobs.OLD_FLOWS, (3600.0, ids(1)[0], 1000), {("Index Only Scan", "jobs_flow")}),
    "FORGET_FLOWS": Case(operated.FORGET_FLOWS, (ids(200),), {("Index Scan", "jobs_flow")}),
}


# ── Tables whose statistics lie ──


def analysed_empty_then_filled(execute: Callable[[str], object]) -> None:
    execute("ANALYZE tenure.jobs")
    fill(execute, "completed", "queued", "scheduled", "processing")


def analysed_full_then_emptied(execute: Callable[[str], object]) -> None:
    fill(execute, "completed", "queued", "scheduled", "processing")
    execute("ANALYZE tenure.jobs")
    execute("DELETE FROM tenure.jobs")


def analysed_while_nothing_ran(execute: Callable[[str], object]) -> None:
    fill(execute, "completed")
    execute("ANALYZE tenure.jobs")
    execute("UPDATE tenure.jobs SET state = 'processing', ended_at = NULL, worker_id = 'w', started_at = now()")


def never_analysed(execute: Callable[[str], object]) -> None:
    fill(execute, "processing")


def one_has_all_edges(execute: Callable[[str], object]) -> None:
    """Looking for those that wait for one job seems to be as much work as reading all edges."""
    link(execute, "lpad(to_hex(n), 32, '0')::uuid, lpad('1', 32, '0')::uuid")


def one_waits_for_all(execute: Callable[[str], object]) -> None:
    link(execute, "lpad('1', 32, '0')::uuid, lpad(to_hex(n), 32, '0')::uuid")


def link(execute: Callable[[str], object], child_and_parent: str) -> None:
    fill(execute, "waiting", "waiting", "waiting", "completed")
    execute(f"""
        INSERT INTO tenure.edges (child, parent, place, "until", mine, state)
        SELECT {child_and_parent}, n, 'completed', false, 'armed' FROM generate_series(2, {ROWS}) AS n""")
    execute("ANALYZE tenure.jobs, tenure.edges")


def fill(execute: Callable[[str], object], *states: str) -> None:
    each = f"(ARRAY{list(states)})[n % {len(states)} + 1]"
    execute(f"""
        INSERT INTO tenure.jobs (id, attempt, max_failures, max_crashes, retry_base, retry_cap, enqueued_at, run_at,
            priority, solo, isolated, state, queue, task, meta, payload, worker_id, started_at, ended_at)
        SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 10, 3, 1, 30, now(), now(), 0, false, false, s, 'a', 't', '{{}}',
            '{{}}', CASE s WHEN 'processing' THEN 'w' END, CASE s WHEN 'processing' THEN now() END,
            CASE s WHEN 'completed' THEN now() END
        FROM generate_series(1, {ROWS}) AS n, LATERAL (SELECT {each} AS s) AS x""")


class Recorded(Server):
    """A server that remembers what was read, and with which values."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "tenure", None, None, "tenure migrate")
        self.said: list[tuple[str, tuple[object, ...]]] = []

    def read(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        self.said.append((sql, params))
        return super().read(sql, *params)


@pytest.fixture(
    scope="module",
    params=[
        analysed_empty_then_filled,
        analysed_full_then_emptied,
        analysed_while_nothing_ran,
        never_analysed,
    ],
    ids=lambda fill: fill.__name__,
)
def server(request: pytest.FixtureRequest) -> Iterator[Recorded]:
    databases = shared_postgres()
    url = databases.create_database()
    PostgresStore(url).migrate()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE tenure.jobs SET (autovacuum_enabled = off)")
        request.param(lambda sql: connection.execute(sql.encode()))
    server = Recorded(url)
    server.open()
    yield server
    server.close()
    databases.drop_database(url)


# ── Plans ──


def scans(server: Server, case: Case, mode: str) -> set[Scan]:
    """How this statement finds its jobs."""
    return set(_scans(plan(server, case.sql, case.values, mode)))


def plan(
    server: Server, sql: str, given_values: tuple[object, ...] | Mapping[str, object], mode: str
) -> dict[str, Any]:
    """The plan that a session of the store would have."""
    text = server.sql(sql)
    if isinstance(given_values, Mapping):
        names = list(given_values)
        values = list(given_values.values())
        text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", text)
    else:
        values, numbers = list(given_values), count(1)
        text = re.sub(r"%s|(?<!:):p\b", lambda _: f"${next(numbers)}", text)
    with server.connection() as connection:
        connection.execute(f"SET plan_cache_mode = force_{mode}_plan".encode())
        connection.execute(f"PREPARE it AS {text}".encode())
        try:
            given = ", ".join(quoting.Literal(value).as_string(connection) for value in values)
            given = f"({given})" if values else ""
            ((found,),) = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE it {given}".encode()).fetchall()
        finally:
            connection.execute("DEALLOCATE it; RESET plan_cache_mode")
    root: dict[str, Any] = found[0]["Plan"]
    return root


def _scans(node: dict[str, Any]) -> Iterator[Scan]:
    kind, index = node["Node Type"], node.get("Index Name", "")
    if (node.get("Relation Name") == "jobs" and kind != "ModifyTable") or index.startswith("jobs_"):
        yield kind, index
    for child in node.get("Plans", ()):
        yield from _scans(child)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_the_one_index_that_fits_is_taken(name: str, mode: str, server: Server) -> None:
    case = CASES[name]

    assert scans(server, case, mode) == case.scans


PAIRS = (ids(200), ids(200))
#: What is found through edges, and by which index.
EDGES: Mapping[str, tuple[str, tuple[object, ...] | Mapping[str, object], str]] = {
    "BEHIND": (admission.BEHIND, (*PAIRS, 200), "edges_pkey"),
    "NEW": (admission.NEW, (*PAIRS, 200), "edges_open"),
    "BEFORE": (admission.BEFORE, (ids(200), [-1] * 200, ids(200), 200), "edges_in_order"),
    "CLOSE": (admission.CLOSE, PAIRS, "edges_pkey"),
    "ARM": (admission.ARM, (*PAIRS, ["armed"] * 200), "edges_pkey"),
    "UNNEED": (admission.UNNEED, PAIRS, "edges_live"),
    "STILL_OPEN": (admission.STILL_OPEN, PAIRS, "edges_pkey"),
    "STILL_LIVE": (admission.STILL_LIVE, PAIRS, "edges_live"),
    "MARK_CHILDREN": (admission.MARK_CHILDREN, (ids(200),), "edges_in_order"),
    "RELEASE": (admission.RELEASE, (ids(200),), "edges_live"),
    "ADMIT": (admission.ADMIT, (ids(200),), "edges_open"),
    "INPUTS": (waiting.INPUTS, (ids(1)[0], 0, 200), "edges_in_order"),
    "DEPENDENTS": (waiting.DEPENDENTS, (*ids(2), 200), "edges_pkey"),
    "EDGES": (wait_reads.EDGES, (ids(200), 1000, 1000), "edges_in_order"),
    "LINK": (links.LINK, (json.dumps([{"child": a, "parent": a} for a in ids(200)]),), "edges_pkey edges_in_order"),
    "AGAIN": (links.AGAIN, (json.dumps([{"child": a, "parent": a} for a in ids(200)]),), "edges_pkey"),
    "SUSPEND": (links.SUSPEND, (leases(),), "edges_in_order"),
    "LOST": (operated.LOST, (ids(1)[0], ""), "edges_in_order"),
    "REOPEN": (operated.REOPEN, {"id": ids(1)[0], "locked": ids(5)}, "edges_in_order"),
    "DROP_UNMET": (operated.DROP_UNMET, {"id": ids(1)[0]}, "edges_in_order edges_pkey"),
    "PIN": (operated.PIN, (ids(1)[0],), "edges_in_order"),
    "SKIP": (operated.SKIP, (ids(1)[0],), "edges_pkey"),
    "PRUNE": (jobs.PRUNE, ("completed", 3600.0, 1000), "edges_live"),
    "LOST_WAITS": (wait_reads.LOST, (ids(200),), "edges_open"),
    "a live child": (operated.LIVE_CHILD, (ids(1)[0],), "edges_live"),
}


def reads_all_edges(node: dict[str, Any]) -> bool:
    return bool(node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "edges")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EDGES)
def test_edges_are_found_by_the_job_at_one_end(name: str, mode: str, server: Server) -> None:
    sql, values, indexes = EDGES[name]

    every = list(nodes(plan(server, sql, values, mode)))
    found = [each for each in every if each.get("Index Name", "").startswith("edges")]

    assert not any(reads_all_edges(each) for each in every)
    assert {each["Index Name"] for each in found} == set(indexes.split())
    assert all("Index Cond" in each for each in found)


@pytest.mark.parametrize("server", [one_has_all_edges, one_waits_for_all], indirect=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EDGES)
def test_no_statement_reads_the_edges_of_all_jobs_where_one_has_most(name: str, mode: str, server: Server) -> None:
    sql, values, _ = EDGES[name]

    for node in nodes(plan(server, sql, values, mode)):
        assert not reads_all_edges(node), node
        condition = node.get("Index Cond", "")
        if node.get("Index Name", "").startswith("edges"):
            assert re.search(r"\b(child|parent) = |ROW\(.*ROW\(", condition), node
        elif "Index Name" in node and node.get("Relation Name") == "jobs":
            assert condition, node


@pytest.mark.parametrize("server", [analysed_while_nothing_ran], indirect=True)
def test_with_a_condition_on_the_state_the_planner_would_be_misled(server: Server) -> None:
    """Otherwise the care in the statements would be superstition, and the test above could not fail."""
    for name in ("COMPLETE", "PROGRESS", "LOCK", "END"):
        case = CASES[name]
        bare = re.sub(r"j\.worker_id = \w\.worker", r"\g<0> AND j.state = 'processing'", case.sql)
        assert scans(server, case._replace(sql=bare), "generic") != case.scans


def test_no_statement_is_planned_for_each_use() -> None:
    """PostgreSQL compares the plan for the values with one for all values after five uses, and may take either."""
    databases = shared_postgres()
    url = databases.create_database()
    store = PostgresStore(url)
    store.migrate()
    store.open()
    worker = start(store, boot_id=system_clock().boot_id)

    for _ in range(8):
        jobs_in_every_way(store, worker)
    with store._server.connection() as connection:
        found = connection.execute(
            "SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements "
            "WHERE generic_plans + custom_plans >= 7"
        ).fetchall()
    store.close()
    databases.drop_database(url)

    assert len(found) >= 6
    assert [row for row in found if row[1] == 0] == []


# ── What people look for ──


SOON = datetime(2100, 1, 1, tzinfo=UTC)
DEAD, QUEUED = frozenset({State.DEAD}), frozenset({State.QUEUED})
#: Filters that few rows or none meet, and the one index that shows it.
RARE: Mapping[str, tuple[Filter, str]] = {
    "dead letters": (Filter(states=DEAD), "jobs_ended"),
    "fresh dead letters": (Filter(states=DEAD, ended_since=SOON, guards=False), "jobs_ended"),
    "ended just now": (Filter(ended_since=SOON), "jobs_ended"),
    "ended just now, by state": (Filter(states=ENDED, ended_since=SOON, text="no"), "jobs_ended"),
    "of a worker": (Filter(worker_id="nobody"), "jobs_processing"),
    "of a worker, by state": (Filter(worker_id="nobody", states=frozenset({State.PROCESSING})), "jobs_processing"),
    "of a queue": (Filter(states=QUEUED, queue="nowhere", enqueued_until=SOON), "jobs_queued"),
    "by a live key": (Filter(states=LIVE, task="t", unique="k"), "jobs_unique"),
}
#: Filters that are searched from the newest job on.
COMMON: Mapping[str, Filter] = {
    "everything": Filter(),
    "of a task": Filter(task="none"),
    "by an old key": Filter(unique="k"),
    "by text": Filter(text="nowhere"),
    "of a time": Filter(enqueued_since=SOON, enqueued_until=SOON),
    "of a queue": Filter(queue="nowhere"),
}


@pytest.fixture
def recorded(server: Recorded) -> Recorded:
    server.said.clear()
    return server


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("within", [2_000, None])
@pytest.mark.parametrize("name", RARE)
def test_what_is_rare_is_found_by_the_index_that_holds_it(
    name: str, within: int | None, mode: str, recorded: Recorded
) -> None:
    where, index = RARE[name]

    assert PostgresReads(recorded).search(where, within=within) == Page(())

    for sql, values in recorded.said:
        assert {found for _, found in _scans(plan(recorded, sql, values, mode))} == {index}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("within", [2_000, None])
@pytest.mark.parametrize("cursor", [None, f"before-{UUID(int=ROWS)}"])
@pytest.mark.parametrize("name", COMMON)
def test_what_no_index_leads_to_is_read_in_order_and_never_sorted(
    name: str, cursor: str | None, within: int | None, mode: str, recorded: Recorded
) -> None:
    PostgresReads(recorded).search(COMMON[name], cursor=cursor, within=within)

    for sql, values in recorded.said:
        found = plan(recorded, sql, values, mode)
        assert {index for _, index in _scans(found)} == {"jobs_pkey"}
        assert not [node for node in nodes(found) if "Sort" in node["Node Type"]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("server", "state", "index"),
    [
        (analysed_empty_then_filled, State.SCHEDULED, "jobs_scheduled"),
        (analysed_empty_then_filled, State.COMPLETED, "jobs_ended"),
        (analysed_while_nothing_ran, State.PROCESSING, "jobs_processing"),
    ],
    indirect=["server"],
)
def test_of_too_many_in_an_index_only_so_many_are_counted_before_all_are_walked(
    state: State, index: str, mode: str, recorded: Recorded
) -> None:
    where = Filter(states=frozenset({state}), queue="nowhere")

    page = PostgresReads(recorded).search(where, within=2_000)

    assert (page.jobs, page.cursor is not None) == ((), True)
    plans = [plan(recorded, *said, mode) for said in recorded.said]
    assert [{found for _, found in _scans(each)} for each in plans] == [{index}, {"jobs_pkey"}, {"jobs_pkey"}]
    assert not [node for each in plans for node in nodes(each) if "Sort" in node["Node Type"]]
    sql, values = recorded.said[0]
    assert recorded.fetch(sql, *values) == [(2_001,)]


@pytest.mark.parametrize("mode", MODES)
def test_what_ended_is_counted_by_its_index(mode: str, recorded: Recorded) -> None:
    PostgresReads(recorded).ended(SOON, SOON)

    for sql, values in recorded.said:
        assert {index for _, index in _scans(plan(recorded, sql, values, mode))} == {"jobs_ended"}


# ── What a batch costs, of very many ──

LIMIT = 1_000
BOUNDED: Mapping[str, Case] = {
    "PROMOTE": Case(jobs.PROMOTE, (LIMIT,), set()),
    "PRUNE": Case(jobs.PRUNE, ("completed", -1.0, LIMIT), set()),
    "CLAIM": Case(claims.CLAIM, {**facts_of_claim(START), "wants": [LIMIT, LIMIT], "limit": LIMIT}, set()),
}


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param("0", id="one instant"),
        pytest.param("abs(hashtext(id::text)) % 100000", id="spread", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("name", BOUNDED)
def test_a_batch_looks_at_little_more_than_it_takes(name: str, spread: str) -> None:
    databases = shared_postgres()
    url = databases.create_database()
    PostgresStore(url).migrate()
    server = Server(url, "tenure", None, None, "tenure migrate")
    server.open()
    with psycopg.connect(url, autocommit=True) as connection:
        fill(lambda sql: connection.execute(sql.encode()), "completed", "queued", "scheduled")
        connection.execute(f"UPDATE tenure.jobs SET run_at = run_at - {spread} * interval '1 millisecond'".encode())
        connection.execute(b"VACUUM ANALYZE tenure.jobs")
    store = PostgresStore(url)
    store.open()
    start(store, id="w")
    store.close()

    with server.connection() as connection:
        ((found,),) = connection.execute(
            "EXPLAIN (ANALYZE, FORMAT JSON) " + server.sql(BOUNDED[name].sql), BOUNDED[name].values
        ).fetchall()

    server.close()
    databases.drop_database(url)
    busy = [node for node in nodes(found[0]["Plan"]) if node["Actual Rows"] * node["Actual Loops"] > 3 * LIMIT]
    assert not busy, [(node["Node Type"], node["Actual Rows"], node["Actual Loops"]) for node in busy]


# ── What a progress and a beat leave behind ──


def updates(databases: Databases, url: str, table: str) -> tuple[int, int]:
    """How many rows were updated, and how many of these within their page, without touching an index."""
    ((all_of_them, hot),) = databases.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s",
        (table,),
        database=urlsplit(url).path[1:],
    )
    return all_of_them, hot


def test_progress_and_beats_touch_no_index() -> None:
    databases = shared_postgres()
    url = databases.create_database()
    store = PostgresStore(url)
    store.migrate()
    with psycopg.connect(url, autocommit=True) as connection:  # its snapshot keeps rows that nobody else needs
        for table in ("jobs", "workers"):
            connection.execute(f"ALTER TABLE tenure.{table} SET (autovacuum_enabled = off)".encode())
    store.open()
    worker = start(store)
    store.enqueue([draft() for _ in range(20)])
    owned = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, 20)]
    for n in range(50):
        assert all(store.progress([Progress(lease=lease, fraction=n / 50, checkpoint=str(n)) for lease in owned]))
        assert store.renew([worker]) == {worker}
    store.close()  # a session reports its figures when it ends

    deadline = time.monotonic() + 30
    while updates(databases, url, "jobs")[0] < 1_020 or updates(databases, url, "workers")[0] < 50:
        assert time.monotonic() < deadline, "the figures did not come"
        time.sleep(0.02)
    everyone, hot = updates(databases, url, "jobs")
    assert everyone == 20 + 50 * 20
    assert hot > 0.9 * 50 * 20
    everyone, hot = updates(databases, url, "workers")
    assert hot == everyone == 50
    databases.drop_database(url)
