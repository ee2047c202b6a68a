from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from math import inf

import pytest

from conformance.factories import LEASE, World, bring, claim_one, look, put, start
from tenure.config import load
from tenure.core.lifecycle import State
from tenure.events import Events
from tenure.maintenance.maintenance import Maintenance
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Ring, Store
from tenure.stores.memory import MemoryStore


@pytest.fixture
def world() -> World:
    return World(MemoryStore)


def watching(world: World, store: Store, mine: str, keep: float = 1e9) -> Maintenance:
    """One with regular renewals for a long time; the last one was sent, and landed, just now."""
    settings = replace(load(environ={}), lease=LEASE, keep=keep, keep_dead=None, keep_history=keep)
    maintenance = Maintenance(store, PollNotifier(), Events(), settings, mine=lambda: frozenset({mine}))
    judge = maintenance.judge
    judge._boot, judge._renewed, judge.quiet_until = world.clock.boot, world.clock.boot(), 0.0
    store.renew([mine])
    judge.renewed(world.clock.boot(), [mine])
    return maintenance


def test_a_silent_worker_of_another_host_is_declared_dead(world: World) -> None:
    store = world.store()
    assert isinstance(store, MemoryStore)
    other = start(store)
    world.advance(LEASE + 1)
    mine = start(store)

    watching(world, store, mine).scan()

    assert store.renew([other]) == frozenset()


def test_a_scan_that_was_blocked_reading_the_time_declares_no_worker_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# ── An outage costs no living worker its jobs: two stories that tests/model/declarations.py found ───────────────


def test_a_renewal_sent_in_time_but_delayed_counts_as_a_gap(world: World) -> None:
    store = world.store()
    other, mine = start(store), start(store)
    world.advance(LEASE / 3)
    maintenance = watching(world, store, mine)

    world.advance(LEASE / 3)  # nobody reaches the store, nor did the other one's renewal, which was due first
    sent = world.clock.boot()
    world.advance(LEASE * 0.4)  # the network is back, and mine is carried out before that of the other one
    store.renew([mine])
    maintenance.judge.renewed(sent, [mine])
    maintenance.scan()

    assert store.renew([other]) == {other}


def test_after_an_outage_others_have_the_time_to_be_renewed_too(world: World) -> None:
    store = world.store()
    other, mine = start(store), start(store)
    world.advance(LEASE / 3)
    maintenance = watching(world, store, mine)

    world.advance(LEASE * 0.66)  # nobody reaches the store; then mine is the first
    store.renew([mine])
    maintenance.judge.renewed(world.clock.boot(), [mine])
    world.advance(LEASE / 60)  # a refused process retries within a second: lease/30
    maintenance.scan()

    assert store.renew([other]) == {other}


# ── Announcements ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_and_every_later_rescue_is_announced_with_the_words_of_its_row(world: World) -> None:
    store = world.store()
    job_id, plain = put(store, retry_base=8.0, retry_cap=8.0), put(store, queue="other", delay=8.0)
    rings: list[Ring] = []
    notifier = PollNotifier()
    notifier.announce = rings.extend  # type: ignore[method-assign]
    maintenance = Maintenance(store, notifier, Events(), load(environ={}), mine=frozenset)
    said: list[str | None] = []
    for _ in range(2):
        worker = start(store)
        claim_one(store, worker, solo=look(store, job_id).solo)
        store.declare_dead([worker])
        maintenance.report_rescued(store.rescue())
        said.append(look(store, job_id).message)
        assert worker in (said[-1] or "")
    world.advance(8)
    maintenance.promote()

    cleared = [Ring("queued", "default", (job_id,), words or "") for words in said]
    assert [ring for ring in rings if ring.jobs] == [*cleared, Ring("queued", "other", (plain,))]


# ── What has ended long ago goes bit by bit, for the other duties have their turn in the same thread ────────────


def test_much_to_prune_goes_in_batches_and_the_next_one_is_due_at_once_for_as_long_as_they_are_full(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.maintenance.maintenance.PRUNE_BATCH", 2)
    monkeypatch.setattr("tenure.maintenance.maintenance.PRUNE_SECONDS", 1e6)
    store = world.store()
    mine = start(store)
    for _ in range(5):
        bring(store, State.COMPLETED, worker_id=mine)
    world.advance(3601)
    maintenance = watching(world, store, mine, keep=3600)
    maintenance._next_prune, maintenance._next_scan, maintenance._next_upkeep = 0.0, inf, inf

    passes: list[tuple[int, bool]] = []
    for _ in range(4):
        maintenance.prune_if_due()
        passes.append((store.counts()[State.COMPLETED], maintenance.next_wake(None) > 0))

    assert passes == [(3, False), (1, False), (0, True), (0, True)]
