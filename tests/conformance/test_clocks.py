"""Whoever had to wait for their turn is judged by the time at which it came."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest

from conformance.factories import World, claim, identity, look, put, start
from tenure.lifecycle import State
from tenure.ports import Store

LEASE = identity().lease


def late(world: World, store: Store, call: Callable[[], object]) -> bool:
    """Somebody's transaction holds the call up for longer than a lease; False: in this store nobody waits."""
    with store.transaction() as tx:
        store.enqueue([], tx=tx)
        waiting = Thread(target=call)
        waiting.start()
        waiting.join(0.3)
        held_up = waiting.is_alive()
        world.advance(LEASE + 1)
    waiting.join()
    return held_up


@pytest.fixture
def store(world: World) -> Store:
    store = world.store()
    if not store.capabilities.transactions:
        pytest.skip("this store has no transactions that others wait for")
    return store


def test_a_claim_that_waited_until_its_lease_was_over_is_granted_nothing(world: World, store: Store) -> None:
    worker, job = start(store), put(store)
    claimed: list[object] = []

    held_up = late(world, store, lambda: claimed.extend(claim(store, worker)))

    assert (len(claimed), look(store, job).state) == ((0, State.QUEUED) if held_up else (1, State.PROCESSING))


def test_a_worker_that_waited_to_be_registered_has_a_whole_lease(world: World, store: Store) -> None:
    worker = identity()

    if late(world, store, lambda: store.register(worker)):
        assert store.declare_expired() == frozenset()
        put(store)
        assert claim(store, worker.id)


def test_a_renewal_that_waited_is_a_whole_lease(world: World, store: Store) -> None:
    worker = start(store)

    if late(world, store, lambda: store.renew([worker])):
        assert store.declare_expired() == frozenset()
