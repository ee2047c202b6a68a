"""Guards in the stores whose removal no other test of this suite would notice (tests/guards removes them)."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread

import pytest

from conformance.factories import (
    DAY,
    LEASE,
    World,
    bring,
    claim_one,
    draft,
    everything,
    finish,
    look,
    made,
    memory_of,
    patiently,
    put,
    running,
    start,
    tick,
)
from tenure.core.clock import Clock
from tenure.core.lifecycle import GUARD, Completed, Failed, Outcome, Released, State
from tenure.errors import StoreAway
from tenure.ports import Rescued, Store
from tenure.ports.schedules import Change


@pytest.mark.parametrize("outcome", [Completed('"done"'), Failed("no", final=True), Released("drained")])
def test_only_the_lease_that_ended_an_attempt_hears_that_it_landed(outcome: Outcome, store: Store) -> None:
    first = running(store)
    finish(store, first, Released("drained"))
    last = claim_one(store, first.worker_id)
    assert finish(store, last, outcome) is not None
    before = memory_of(store, last.job_id)

    assert finish(store, last._replace(worker_id=start(store)), outcome) is None
    assert finish(store, last._replace(attempt=last.attempt + 1), outcome) is None
    assert (finish(store, first, outcome) is None) == (outcome != Released("drained"))
    assert memory_of(store, last.job_id) == before


def test_a_job_that_was_begun_in_time_is_never_too_late(world: World) -> None:
    store = world.store()
    worker = start(store, lease=DAY)
    lease = running(store, worker, expires=10.0)
    finish(store, lease, Released("drained"))
    world.advance(60)

    (again,) = store.claim(worker, {"default": 1}, 1)
    (owned,) = store.owned(worker)

    assert (again.attempt, again.expired, owned.claimed.expired) == (2, False, False)


def test_no_lease_outlives_its_host_s_boot(world: World) -> None:
    """The host boots again after its leases have ended, and its boot clock starts anew."""
    before = world.store()
    if not before.capabilities.durable:
        pytest.skip("what it knew has ended with its process")
    guard, lease = made(before, kind="guard", job=None), running(before)
    waits = put(before)
    world.advance(LEASE + 1)
    unix = before.now().timestamp()
    world.clock = Clock(lambda: unix, lambda: 5.0, "the-next-boot")
    store = world.store()

    assert store.claim(lease.worker_id, {"default": 1}, 1) == []
    assert [row.expires_at < store.now() for row in store.workers()] == [True]
    begun = draft(queue=GUARD)
    assert store.change([Change(schedule=guard, drafts=(begun,), owner=lease.worker_id)]) == [False]
    assert store.declare_expired(witness=lease.worker_id) == frozenset()
    assert store.declare_expired() == {lease.worker_id}
    assert [each.id for each in store.rescue()] == [lease.job_id]
    assert look(store, waits).state is State.QUEUED


@pytest.mark.parametrize("state", [State.QUEUED, State.SCHEDULED, State.COMPLETED, State.DEAD])
def test_a_guard_begins_no_job_that_was_there_before(state: State, store: Store) -> None:
    guard, owner = made(store, kind="guard", job=None), start(store, runner="guard")
    job_id = put(store) if state is State.QUEUED else bring(store, state).job_id
    before = memory_of(store, job_id)
    again = draft(id=job_id, queue=GUARD)

    ticks = (tick(guard, store.now(), job_id=job_id),)
    store.change([Change(schedule=guard, ticks=ticks, drafts=(again,), owner=owner)])

    assert memory_of(store, job_id) == before
    assert store.owned(owner) == []


@pytest.mark.parametrize("ended", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_deleting_what_has_ended_frees_no_key_that_another_job_holds(ended: State, store: Store) -> None:
    old = bring(store, ended, unique="k").job_id
    holder = put(store, unique="k")

    store.delete([old])

    (answer,) = store.enqueue([draft(unique="k")])
    assert (answer.id, answer.created) == (holder, False)


def test_pruning_what_has_ended_frees_no_key_that_another_job_holds(world: World) -> None:
    store = world.store()
    bring(store, State.COMPLETED, unique="k")
    holder = put(store, unique="k")
    world.advance(DAY)

    assert store.prune(keep=60.0, keep_dead=None) == 1

    (answer,) = store.enqueue([draft(unique="k")])
    assert (answer.id, answer.created) == (holder, False)


def test_a_hung_job_that_is_delivered_again_is_its_owners_business_too(world: World) -> None:
    store = world.store()
    lease = running(store, stale_after=5.0)
    for _ in range(6):  # 60 s without a report
        world.advance(10)
        store.renew([lease.worker_id])
    assert store.redelivered(lease.job_id, declare=True) is State.PROCESSING

    world.advance(6)
    assert isinstance(store.redelivered(lease.job_id, declare=True), Rescued)


def test_of_a_transaction_and_another_caller_one_gets_the_key(store: Store) -> None:
    if not store.capabilities.transactions:
        pytest.skip("it has no transactions")
    enqueued = Event()
    created: list[bool] = []

    def within() -> None:
        told = False
        with suppress(StoreAway):
            with store.transaction() as tx:
                (answer,) = store.enqueue([draft(unique="k")], tx=tx)
                enqueued.set()
                beside.join(0.2)  # it comes now, or waits for our commit
            told = answer.created
        created.append(told)

    def outside() -> None:
        assert enqueued.wait(60)
        (answer,) = patiently(lambda: store.enqueue([draft(unique="k")]))
        created.append(answer.created)

    beside = Thread(target=outside)
    beside.start()
    within()
    beside.join()
    assert sorted(created) == [False, True]
    assert len(everything(store)) == 1


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_what_was_taken_out_of_its_queue_is_not_claimed(verb: str, store: Store) -> None:
    gone, stays = put(store), put(store)
    if verb == "cancel":
        store.cancel([gone], "not wanted")
    else:
        store.delete([gone])

    claimed = store.claim(start(store), {"default": 5}, 5)

    assert [each.id for each in claimed] == [stays]


def test_a_job_that_was_never_claimed_may_be_delivered_again(store: Store) -> None:
    assert store.redelivered(put(store), declare=True) is State.QUEUED
    assert store.redelivered(put(store, delay=60.0), declare=True) is State.SCHEDULED
