from __future__ import annotations

from datetime import datetime

import pytest

from conformance.factories import LEASE, World, start
from tenure.events import Events
from tenure.maintenance import Maintenance
from tenure.notifiers.poll import PollNotifier
from tenure.stores.memory import MemoryStore


@pytest.fixture
def world() -> World:
    return World(MemoryStore)


def watching(world: World, store: MemoryStore, mine: str) -> Maintenance:
    """One whose own renewals have been regular for long."""
    maintenance = Maintenance(
        store,
        PollNotifier(),
        Events(),
        lease=LEASE,
        keep=1e9,
        keep_dead=None,
        keep_history=1e9,
        mine=lambda: frozenset({mine}),
    )
    maintenance._boot, maintenance._quiet_until = world.clock.boot, 0.0
    maintenance._renewed = world.clock.boot()
    maintenance.renewed(world.clock.boot(), [mine])
    return maintenance


def test_a_silent_worker_of_another_host_is_declared_dead(world: World) -> None:
    store = world.store()
    assert isinstance(store, MemoryStore)
    other = start(store)
    world.advance(LEASE + 1)
    mine = start(store)

    watching(world, store, mine).scan()

    assert store.renew([other]) == frozenset()


def test_who_was_held_up_asking_for_the_time_declares_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.store()
    assert isinstance(store, MemoryStore)
    other, mine = start(store), start(store)
    maintenance = watching(world, store, mine)
    now = store.now

    def after_an_outage() -> datetime:
        monkeypatch.setattr(store, "now", now)
        world.advance(2 * LEASE)
        store.renew([mine])  # it was on its way for as long, and is carried out first
        return now()

    monkeypatch.setattr(store, "now", after_an_outage)
    maintenance.scan()

    assert store.renew([other]) == {other}
