"""`SELECT tenure.enqueue(…)`: what docs/sql.md promises of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from servers import shared_postgres
from tenure import Tenure
from tenure.core.lifecycle import State
from tenure.notifiers.postgres import PostgresNotifier
from tenure.ports import Ring
from tenure.stores.postgres import PostgresStore

LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    databases = shared_postgres()
    url = databases.create_database()
    PostgresStore(url).migrate()
    PostgresStore(url, schema="My-jobs").migrate()
    yield url
    databases.drop_database(url)


@pytest.fixture
def here(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
        connection.rollback()
        connection.execute("DELETE FROM tenure.jobs")


def enqueue(here: psycopg.Connection, *args: object, schema: str = "tenure", **options: object) -> str:
    named = {**dict(zip(("task", "args"), args, strict=False)), **options}
    text = f'SELECT "{schema}".enqueue({", ".join(f"{name} => %({name})s" for name in named)})::text'
    row = here.execute(text.encode(), named).fetchone()
    assert row is not None
    found: str = row[0]
    return found


def row_of(here: psycopg.Connection, job_id: str) -> dict[str, Any]:
    cursor = here.execute("SELECT * FROM tenure.jobs WHERE id = %s", (job_id,))
    row = cursor.fetchone()
    assert cursor.description is not None
    assert row is not None
    return dict(zip([each.name for each in cursor.description], row, strict=True))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it comes": ({}, {}),
    "options": (
        {"queue": "billing", "priority": 5, "max_failures": 3, "timeout": timedelta(seconds=90)},
        {"queue": "billing", "priority": 5, "retry": 3, "timeout": "90s"},
    ),
    "later": ({"run_at": LATER, "expires": timedelta(hours=1)}, {"run_at": LATER, "expires": "1h"}),
    "in a while": ({"delay": timedelta(minutes=5)}, {"delay": "5m"}),
    "once": ({"unique_key": "order:7"}, {"unique": "order:7"}),
    "past": ({"run_at": datetime(2020, 1, 1, tzinfo=UTC)}, {"run_at": datetime(2020, 1, 1, tzinfo=UTC)}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_the_one_that_the_client_stores(case: str, url: str, here: psycopg.Connection) -> None:
    """Column by column; times and ids are those of their own call."""
    in_sql, in_python = CASES[case]
    ours = row_of(here, enqueue(here, "charge", '{"order":7}', **in_sql))
    with Tenure(url) as jobs:
        handle = jobs.enqueue("charge_too", {"order": 7}, unchecked=True, **in_python)
    theirs = row_of(here, str(handle.id))

    assert set(ours) == set(theirs)
    for row in (ours, theirs):
        at = row.pop("enqueued_at")
        assert UUID(str(row.pop("id"))).version == 7
        row["run_at"] = row["run_at"] if "run_at" in in_sql else round((row["run_at"] - at).total_seconds())
        row.pop("task")
    assert ours == theirs


def test_the_oldest_is_first_also_in_one_transaction(here: psycopg.Connection) -> None:
    with here.transaction():
        ids = [enqueue(here, "charge") for _ in range(50)]
    assert ids == sorted(ids)


def test_a_held_key_returns_the_job_that_holds_it(here: psycopg.Connection) -> None:
    first = enqueue(here, "charge", unique_key="order:7")
    assert enqueue(here, "charge", unique_key="order:7") == first
    assert enqueue(here, "refund", unique_key="order:7") != first
    here.execute("UPDATE tenure.jobs SET state = 'cancelled', ended_at = now() WHERE id = %s", (first,))
    assert enqueue(here, "charge", unique_key="order:7") != first


def test_a_worker_claims_it_and_a_rolled_back_one_never_was(url: str, here: psycopg.Connection) -> None:
    with here.transaction(force_rollback=True):
        gone = enqueue(here, "charge", '{"order": 8}')
    store = PostgresStore(url)
    store.open()
    kept = enqueue(here, "charge", '{"order": 7}')
    job = store.get(kept)
    assert job is not None
    assert (job.state, json.loads(job.payload)) == (State.QUEUED, {"order": 7})
    assert store.get(gone) is None
    store.close()


def test_it_is_in_the_schema_of_its_store(here: psycopg.Connection) -> None:
    job_id = enqueue(here, "charge", schema="My-jobs")
    assert here.execute('SELECT count(*) FROM "My-jobs".jobs WHERE id = %s', (job_id,)).fetchone() == (1,)
    assert here.execute("SELECT count(*) FROM tenure.jobs").fetchone() == (0,)


@pytest.mark.parametrize(
    ("options", "kind"), [({"queue": "billing"}, "queued"), ({"queue": "billing", "delay": timedelta(hours=1)}, "due")]
)
@pytest.mark.parametrize("namespace", ["tenure", "My-jobs"])
def test_the_bell_rings_as_the_clients_does_and_only_after_a_commit(
    namespace: str, options: dict[str, Any], kind: Any, url: str, here: psycopg.Connection
) -> None:
    channel = f"tenure:{namespace}"
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute(f'LISTEN "{channel}"'.encode())
        with here.transaction(force_rollback=True):
            enqueue(here, "charge", schema=namespace, **{**options, "queue": "nobody"})
        enqueue(here, "charge", schema=namespace, **options)
        notifier = PostgresNotifier(url, namespace)
        notifier.announce([Ring(kind, "billing")])
        heard = [each.payload for each in ear.notifies(timeout=60, stop_after=2)]
        notifier.close()
    assert heard == [f'{{"{kind}": ["billing"]}}'] * 2


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no JSON": ({"args": '{"order": '}, "args: expected JSON, got", "22P02"),
    "no object": ({"args": "[7]"}, "a JSON object, got array", "22023"),
    "no arguments": ({"args": None}, "a JSON object, got NULL", "22023"),
    "a NUL": ({"args": '{"a": "\\u0000"}'}, "args: expected JSON", "22P02"),
    "a lone surrogate": ({"args": '{"a": "\\ud800"}'}, "args: expected JSON", "22P02"),
    "too deep": ({"args": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"}, "args: expected JSON", "22P02"),
    "too large": ({"args": json.dumps({"a": "x" * 262_144})}, "the limit is 262144", "54000"),
    "a queue with a space": ({"queue": "my queue"}, "queue: expected letters", "22023"),
    "a queue with a line end": ({"queue": "mail\n"}, "queue: expected letters", "22023"),
    "a queue of other letters": ({"queue": "büro"}, "queue: expected letters", "22023"),
    "a long queue": ({"queue": "q" * 101}, "queue: expected letters", "22023"),
    "the guards' queue": ({"queue": "guard"}, "reserved for guards", "22023"),
    "no queue": ({"queue": None}, "queue: expected letters", "22023"),
    "an empty task": ({"task": ""}, "task: expected letters", "22023"),
    "a task with a quote": ({"task": "charge'"}, "task: expected letters", "22023"),
    "a high priority": ({"priority": 101}, "priority: expected a whole number from -100 to 100", "22023"),
    "no priority": ({"priority": None}, "priority: expected", "22023"),
    "no failure": ({"max_failures": 0}, "max_failures: expected a whole number from 1", "22023"),
    "a negative delay": ({"delay": timedelta(seconds=-1)}, "delay: expected between 0s", "22023"),
    "expires at once": ({"expires": timedelta(0)}, "expires: expected more than 0s", "22023"),
    "a negative timeout": ({"timeout": timedelta(seconds=-5)}, "timeout: expected more than 0s", "22023"),
    "two times": ({"delay": timedelta(seconds=5), "run_at": LATER}, "delay and run_at both", "22023"),
    "the end of time": ({"run_at": "infinity"}, "run_at: expected a year from 1970 to 9000", "22023"),
    "an empty key": ({"unique_key": ""}, "unique_key: expected 1 to 200 characters", "22023"),
    "a long key": ({"unique_key": "k" * 201}, "unique_key: expected 1 to 200 characters", "22023"),
    "a key of two lines": ({"unique_key": "a\nb"}, "without control characters", "22023"),
    "a key with a C1 control": ({"unique_key": "a\x85b"}, "without control characters", "22023"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_stored(name: str, here: psycopg.Connection) -> None:
    options, said, code = WRONG[name]
    with pytest.raises(psycopg.Error) as caught:
        enqueue(here, **{"task": "charge", **options})
    assert caught.value.sqlstate == code
    assert said in str(caught.value.diag.message_primary)
    assert here.execute("SELECT count(*) FROM tenure.jobs").fetchone() == (0,)


def test_a_key_may_have_any_letters(here: psycopg.Connection) -> None:
    job_id = enqueue(here, "charge", unique_key="bestellung:größe 7 — 注文")
    assert row_of(here, job_id)["unique_key"] == "bestellung:größe 7 — 注文"


def test_a_role_needs_its_own_rights(url: str, here: psycopg.Connection) -> None:
    here.execute("CREATE ROLE clerk_of_sql")
    try:
        with here.transaction(force_rollback=True):
            here.execute("GRANT USAGE ON SCHEMA tenure TO clerk_of_sql; SET LOCAL ROLE clerk_of_sql")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                enqueue(here, "charge")
        with here.transaction(force_rollback=True):
            here.execute(
                "GRANT USAGE ON SCHEMA tenure TO clerk_of_sql; GRANT SELECT, INSERT ON tenure.jobs TO clerk_of_sql;"
                "SET LOCAL ROLE clerk_of_sql"
            )
            assert enqueue(here, "charge")
    finally:
        here.execute("DROP ROLE clerk_of_sql")


def test_the_page_does_what_it_says(here: psycopg.Connection) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    with here.transaction(force_rollback=True):
        here.execute("CREATE TABLE orders (id integer); CREATE ROLE shop")
        for block in re.findall(r"```postgresql\n(.*?)```", page, re.DOTALL):
            here.execute(block.encode())
        here.execute("INSERT INTO orders VALUES (7)")
        found = here.execute("SELECT payload, unique_key, queue FROM tenure.jobs ORDER BY id").fetchall()
    assert found == [('{"order": 1}', "order:1", "billing"), ('{"order": 7}', "order:7", "default")]
