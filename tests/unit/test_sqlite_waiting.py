"""Waiting in SQLite, alongside code that knows nothing of it: the release before, and SQL."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs leave the type of a blob open)

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from conformance.factories import World, claim_one, finish, look, put, start
from conformance.test_waiting import child_of, settle_waits
from tenure.core.lifecycle import Completed, State
from tenure.stores.sqlite import SqliteStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenure.db"


@pytest.fixture
def world(file: Path) -> World:
    return World(lambda clock: SqliteStore(str(file), clock=clock))


def by_sql(file: Path, statement: str, *values: str) -> None:
    connection = apsw.Connection(str(file))
    connection.pragma("foreign_keys", True)
    connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("looked", [False, True], ids=["at once", "after a look"])
def test_a_parent_that_sql_deletes_hangs_nobody(looked: bool, world: World, file: Path) -> None:
    store = world.store()
    parent = put(store)
    needs, follows = child_of(store, parent), child_of(store, parent, until="ended")
    if looked:
        settle_waits(store)
    by_sql(file, "DELETE FROM jobs WHERE id = ?", parent)

    assert settle_waits(store) == [follows]
    assert look(store, needs).state is State.CANCELLED
    store.close()


def test_a_job_that_sql_ends_is_told(world: World, file: Path) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent, until="ended")
    settle_waits(store)
    by_sql(file, "UPDATE jobs SET state = 'cancelled', ended_at = 1 WHERE id = ?", parent)

    assert settle_waits(store) == [child]
    store.close()


def test_a_child_that_sql_deletes_lets_go_of_its_parent(world: World, file: Path) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent, put(store))
    settle_waits(store)
    lease = claim_one(store, start(store))
    assert lease.job_id == parent
    finish(store, lease, Completed())
    settle_waits(store)
    assert look(store, parent).linked
    by_sql(file, "DELETE FROM jobs WHERE id = ?", child)
    settle_waits(store)

    assert not look(store, parent).linked
    store.close()
