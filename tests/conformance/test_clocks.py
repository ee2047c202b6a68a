"""A call that had to wait for its turn is judged by the time at which the turn came."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread, current_thread

import pytest

from conformance.factories import World, claim, identity, look, put, start
from tenure.core.clock import Clock
from tenure.core.lifecycle import State
from tenure.ports import Store

LEASE = identity().lease


class Watched:
    """The clock of a world, and the threads that have read it: one that has not may wait for its turn, or be slow."""

    def __init__(self, world: World) -> None:
        self._world, self._turn, self._seen = world, Lock(), set[Thread]()
        before = world.clock
        world.clock = Clock(lambda: self._read(before.unix), lambda: self._read(before.boot), before.boot_id)

    def _read(self, clock: Callable[[], float]) -> float:
        with self._turn:
            self._seen.add(current_thread())
            return clock()

    def advance_unless_seen_by(self, thread: Thread, seconds: float) -> bool:
        """Whether time passed. If so, every time that the thread reads is later."""
        with self._turn:
            if thread in self._seen:
                return False
            self._world.advance(seconds)
            return True


@pytest.fixture
def clock(world: World) -> Watched:
    return Watched(world)


@pytest.fixture
def store(world: World, clock: Watched) -> Store:
    store = world.store()
    if not store.capabilities.transactions:
        pytest.skip("this store has no transactions that others wait for")
    return store


def late(clock: Watched, store: Store, call: Callable[[], object]) -> bool:
    """An open transaction holds the call up for longer than a lease; False: in this store no call waits."""
    with store.transaction() as tx:
        store.enqueue([], tx=tx)
        waiting = Thread(target=call)
        waiting.start()
        waiting.join(0.3)
        held_up = clock.advance_unless_seen_by(waiting, LEASE + 1)
        if not held_up:
            waiting.join(30.0)
            assert not waiting.is_alive(), "it looked at the clock, and then it waited"
    waiting.join()
    return held_up


def test_a_claim_that_waited_until_its_lease_was_over_is_granted_nothing(clock: Watched, store: Store) -> None:
    worker, job = start(store), put(store)
    claimed: list[object] = []

    held_up = late(clock, store, lambda: claimed.extend(claim(store, worker)))

    assert (len(claimed), look(store, job).state) == ((0, State.QUEUED) if held_up else (1, State.PROCESSING))


def test_a_worker_that_waited_to_be_registered_has_a_whole_lease(clock: Watched, store: Store) -> None:
    worker = identity()

    if late(clock, store, lambda: store.register(worker)):
        assert store.declare_expired() == frozenset()
        put(store)
        assert claim(store, worker.id)


def test_a_renewal_that_waited_is_a_whole_lease(clock: Watched, store: Store) -> None:
    worker = start(store)

    if late(clock, store, lambda: store.renew([worker])):
        assert store.declare_expired() == frozenset()
