"""What is written to a job was decided by what it was a moment ago: another call may have come between the scripts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.factories import World, claim_one, finish, look, running, start
from servers import shared_valkey
from tenure.core.clock import Clock
from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, Released, State
from tenure.ports import NotLanded, Progress, Store
from tenure.stores.redis import RedisStore

CRASH = Crashed("its process died", process_died=True)
Between = Callable[[Callable[[Store], object]], None]


@pytest.fixture
def world() -> Iterator[World]:
    namespace = f"t_{secrets.token_hex(6)}"
    world = World(lambda clock: _opened(clock, namespace))
    yield world
    world.close()


def _opened(clock: Clock, namespace: str) -> RedisStore:
    return RedisStore(shared_valkey().url, namespace=namespace, clock=clock)


@pytest.fixture
def store(world: World) -> RedisStore:
    store = world.store()
    assert isinstance(store, RedisStore)
    return store


@pytest.fixture
def between(world: World, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Between:
    """Have another store do this once, just before the decision is written."""
    other, call = world.store(), store.server.call

    def come_between(what: Callable[[Store], object]) -> None:
        left = [what]

        def call_late(script: str, *values: Any) -> Any:
            if script == "end" and left:
                left.pop()(other)
            return call(script, *values)

        monkeypatch.setattr(store.server, "call", call_late)

    return come_between


def crashed_once(store: Store) -> Lease:
    lease = running(store)
    assert finish(store, lease, CRASH) is State.QUEUED
    return claim_one(store, start(store), solo=True)


def test_an_attempt_that_was_given_back_meanwhile_is_not_ended(store: RedisStore, between: Between) -> None:
    lease = running(store)
    between(lambda other: finish(other, lease, Released("drained")))

    assert finish(store, lease, Failed("no")) is None
    view = look(store, lease.job_id)
    assert (view.state, view.failures, len(store.attempts(lease.job_id))) == (State.QUEUED, 0, 1)


def test_the_next_attempt_is_not_ended_in_the_place_of_the_last(store: RedisStore, between: Between) -> None:
    lease = running(store)

    def give_back_and_claim(other: Store) -> None:
        finish(other, lease, Released("drained"))
        claim_one(other, lease.worker_id)

    between(give_back_and_claim)

    assert finish(store, lease, Failed("no")) is None
    assert finish(store, lease._replace(attempt=2), Completed()) is State.COMPLETED


def test_crashes_that_were_forgiven_meanwhile_stay_forgiven(store: RedisStore, between: Between) -> None:
    lease = crashed_once(store)
    between(lambda other: other.progress([Progress(lease=lease, checkpoint="1")]))

    assert finish(store, lease, CRASH) is State.QUEUED
    view = look(store, lease.job_id)
    assert (view.crashes, view.crashes_total) == (1, 2)


def test_a_cancel_that_was_asked_meanwhile_is_heard(store: RedisStore, between: Between) -> None:
    lease = running(store)
    between(lambda other: other.cancel([lease.job_id], "enough"))

    assert finish(store, lease, Released("drained")) is State.CANCELLED


def test_a_hung_job_that_has_shown_a_sign_of_life_meanwhile_is_left_alone(
    world: World, store: RedisStore, between: Between
) -> None:
    lease = running(store, stale_after=5.0)
    for _ in range(7):
        world.advance(10)
        store.renew([lease.worker_id])
    between(lambda other: other.progress([Progress(lease=lease)]))

    assert store.rescue() == []
    assert look(store, lease.job_id).state is State.PROCESSING


def test_a_settle_takes_what_was_claimed_meanwhile_along(store: RedisStore, between: Between) -> None:
    first = running(store)
    claimed: list[Lease] = []
    between(lambda other: claimed.append(running(other, first.worker_id)))

    settled = store.settle(first.worker_id, {}, Released("gone"))

    assert {each.id for each in settled} == {first.job_id, claimed[0].job_id}
    assert store.owned(first.worker_id) == []


def test_a_settle_charges_nothing_that_ended_meanwhile(store: RedisStore, between: Between) -> None:
    first = running(store)
    second = running(store, first.worker_id)
    between(lambda other: finish(other, second, Completed()))

    settled = store.settle(first.worker_id, {}, CRASH)

    assert [each.id for each in settled] == [first.job_id]
    assert look(store, second.job_id).state is State.COMPLETED


def test_a_settle_takes_what_has_changed_meanwhile_as_it_is_now(store: RedisStore, between: Between) -> None:
    lease = crashed_once(store)
    between(lambda other: other.progress([Progress(lease=lease, checkpoint="1")]))

    (settled,) = store.settle(lease.worker_id, {}, CRASH)

    assert (settled.state, look(store, lease.job_id).crashes) == (State.QUEUED, 1)
    assert not isinstance(store.finish([(lease, CRASH)])[0], NotLanded)


def test_what_was_deleted_of_an_ended_job_is_not_told(world: World, store: RedisStore) -> None:
    since, server = store.now(), store.server
    ids = [completed(store) for _ in range(3)]
    world.advance(1)
    server.run("HDEL", f"{server.prefix}job:{ids[0]}", "started_at")
    server.run("DEL", f"{server.prefix}job:{ids[1]}")

    found = {each.id: (each.wait, each.run) for each in store.ended(since, store.now()).last}

    assert found == {ids[0]: (None, None), ids[2]: (0.0, 0.0)}


def completed(store: Store) -> str:
    lease = running(store)
    assert finish(store, lease, Completed()) is State.COMPLETED
    return lease.job_id
