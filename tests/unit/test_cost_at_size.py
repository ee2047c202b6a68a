"""What the verbs that run all the time cost in a full store depends on what they return, not on what is there.

Costs are counted, not timed: rows and index probes in PostgreSQL, by the plans that the store's own sessions ran; steps
of the virtual machine in SQLite; commands within scripts in Redis.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the drivers leave types open)
from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest

from conformance.factories import draft, finish, put, start
from servers import shared_postgres, shared_valkey
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Lease
from tenure.ports import Filter, Store
from tenure.stores.postgres import PostgresStore
from tenure.stores.postgres.deadlines import Connection
from tenure.stores.postgres.server import Server
from tenure.stores.redis import RedisStore
from tenure.stores.sqlite import SqliteStore
from tenure.stores.sqlite.file import DatabaseFile

QUEUES = [f"queue-{number}" for number in range(1000)]
MANY = 200


class Full(NamedTuple):
    """A store, and what a call of it costs."""

    store: Store
    cost: Callable[[Callable[[], object]], float]
    worker: str


# ── The meters ──


def _looked_at(node: Mapping[str, Any]) -> float:
    """Rows read from tables or sorted, and index probes."""
    found = sum(map(_looked_at, node.get("Plans", ())))
    if "Relation Name" in node or "Index Name" in node or "Sort" in node["Node Type"]:
        rows = node["Actual Rows"] + sum(value for name, value in node.items() if name.startswith("Rows Removed"))
        found += (rows + 1) * node["Actual Loops"]
    return found


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    plans: list[str] = []
    connect = Server.connect

    def told(server: Server, *session: Any) -> Connection:
        connection = connect(server, *session)
        connection.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))
        connection.execute("LOAD 'auto_explain'")
        for name, value in {"min_duration": "0", "analyze": "on", "format": "json", "level": "notice"}.items():
            connection.execute(f"SET auto_explain.log_{name} = {value}".encode())
        return connection

    monkeypatch.setattr(Server, "connect", told)
    databases = shared_postgres()
    url = databases.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        PostgresStore(url).migrate()
        connection.execute("ALTER TABLE tenure.jobs SET (autovacuum_enabled = off)")
    store = PostgresStore(url)
    store.open()

    def cost(call: Callable[[], object]) -> float:
        plans.clear()
        call()
        texts = [text.partition("plan:")[2] for text in plans]
        return sum(1 + _looked_at(json.loads(text)["Plan"]) for text in texts if text)

    yield Full(store, cost, start(store))
    store.close()
    databases.drop_database(url)


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    steps: list[int] = []
    connect = DatabaseFile._connect

    def counted(file: DatabaseFile, *options: Any) -> apsw.Connection:
        connection = connect(file, *options)
        connection.trace_v2(
            apsw.SQLITE_TRACE_PROFILE, lambda event: steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
        )
        return connection

    monkeypatch.setattr(DatabaseFile, "_connect", counted)
    store = SqliteStore(str(tmp_path / "tenure.db"))
    store.migrate()
    store.open()

    def cost(call: Callable[[], object]) -> float:
        steps.clear()
        call()
        return sum(steps) / 20  # about 20 steps of the virtual machine a row

    yield Full(store, cost, start(store, boot_id=system_clock().boot_id))
    store.close()


@pytest.fixture
def redis() -> Iterator[Full]:
    keys = shared_valkey()
    store = RedisStore(keys.url, namespace=f"size_{secrets.token_hex(4)}")
    store.open()

    def commands() -> int:
        told: str = store._server.run("INFO", "commandstats")
        return sum(int(calls) for calls in re.findall(r"calls=(\d+)", told))

    def cost(call: Callable[[], object]) -> float:
        before = commands()
        call()
        return commands() - before

    yield Full(store, cost, start(store))
    store.close()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def full(request: pytest.FixtureRequest) -> Full:
    found: Full = request.getfixturevalue(request.param)
    return found


# ── A worker of very many queues ──


@pytest.mark.parametrize("solo", [False, True], ids=["ordinary", "solo"])
def test_an_empty_claim_from_very_many_queues_costs_no_more_than_one_from_few(solo: bool, full: Full) -> None:
    wants = dict.fromkeys(QUEUES, 5)
    full.store.enqueue([draft(queue="queue-500", isolated=not solo) for _ in range(1_000)])
    full.store.pause("queue-500", paused=True)
    for queue in QUEUES[::100]:  # used before, and empty
        put(full.store, queue=queue, isolated=solo)
        for each in full.store.claim(full.worker, wants, 5, solo=solo):
            finish(full.store, Lease(each.id, each.attempt, full.worker), Completed())

    assert full.cost(lambda: full.store.claim(full.worker, wants, 5, solo=solo)) < MANY
    assert full.cost(lambda: full.store.solo_waiting(QUEUES)) < MANY


# ── A batch of very many ──

BATCH = 100
#: Calls that answer with a batch, or with nothing.
CALLS: Mapping[str, Callable[[Full], object]] = {
    "claim": lambda full: full.store.claim(full.worker, {"default": BATCH}, BATCH),
    "claim from many queues": lambda full: full.store.claim(
        full.worker, dict.fromkeys(["default", *QUEUES], BATCH), BATCH
    ),
    "promote": lambda full: full.store.promote(limit=BATCH),
    "prune": lambda full: full.store.prune(keep=0.0, keep_dead=0.0, limit=BATCH),
    "rescue": lambda full: full.store.rescue(limit=BATCH),
    "jobs of a worker": lambda full: full.store.search(Filter(worker_id="nobody"), within=BATCH),
    "due schedules": lambda full: full.store.due(limit=BATCH),
}


def fill(store: Store, number: int) -> None:
    """Store this many queued jobs, as many that fall due, and as many cancelled ones."""
    for first in range(0, number, 1_000):
        store.enqueue([draft() for _ in range(min(1_000, number - first))])
        store.enqueue([draft(delay=0.001) for _ in range(min(1_000, number - first))])
        ended = [draft(delay=3600.0) for _ in range(min(1_000, number - first))]
        store.enqueue(ended)
        store.cancel([each.id for each in ended], "not wanted")


@pytest.mark.thorough
@pytest.mark.timeout(480)
@pytest.mark.parametrize("size", [pytest.param(1_000, id="1,000"), pytest.param(20_000, id="20,000")])
def test_a_batch_costs_as_much_however_many_more_there_are(size: int, full: Full) -> None:
    def costs() -> dict[str, float]:
        found = {name: full.cost(lambda call=call: call(full)) for name, call in CALLS.items()}  # type: ignore[misc]
        for each in full.store.owned(full.worker):  # each rescue looks at every owned job
            finish(full.store, Lease(each.claimed.id, each.claimed.attempt, full.worker), Completed())
        return found

    for _ in range(8):  # until a plan for empty tables is made and kept
        empty = costs()
    assert max(empty.values()) < MANY
    fill(full.store, 2 * BATCH)
    few = costs()
    fill(full.store, size)
    many = costs()

    assert {name: cost for name, cost in many.items() if cost > 1.5 * few[name] + MANY} == {}
