"""What joins a transaction is stored exactly when it commits."""

from __future__ import annotations

from contextlib import suppress
from threading import Event, Thread

import pytest

from conformance.factories import (
    NewWorld,
    World,
    assert_sound,
    bring,
    draft,
    everything,
    finish,
    look,
    memory_of,
    patiently,
    put,
    running,
)
from tenure.core.lifecycle import LIVE, Completed, Failed, State
from tenure.errors import LeaseLost, StoreAway, StoreError
from tenure.ports import Landed, Store


class RolledBack(Exception):
    pass


@pytest.fixture
def store(world: World) -> Store:
    store = world.store()
    if not store.capabilities.transactions:
        with pytest.raises(StoreError), store.transaction():
            pass
        pytest.skip("this store says that it has no transactions")
    return store


def test_jobs_exist_when_the_transaction_commits(store: Store) -> None:
    first, second, plain = draft(), draft(), draft(delay=60.0)
    with store.transaction() as tx:
        created = store.enqueue([first], tx=tx) + store.enqueue([second, plain], tx=tx)
        assert [each.created for each in created] == [True, True, True]
        assert [each.state for each in created] == [State.QUEUED, State.QUEUED, State.SCHEDULED]
        assert store.get(first.id) is None

    assert {view.id for view in everything(store)} == {first.id, second.id, plain.id}


def test_jobs_do_not_exist_when_the_transaction_is_rolled_back(store: Store) -> None:
    with pytest.raises(RolledBack), store.transaction() as tx:
        store.enqueue([draft()], tx=tx)
        raise RolledBack

    assert everything(store) == []


def test_a_transaction_sees_its_own_jobs(store: Store) -> None:
    job, keyed = draft(), draft(unique="k")
    with store.transaction() as tx:
        store.enqueue([job, keyed], tx=tx)
        again = store.enqueue([job, draft(unique="k")], tx=tx)

        assert [(each.id, each.created) for each in again] == [(job.id, False), (keyed.id, False)]

    assert len(everything(store)) == 2


def test_a_transaction_sees_what_was_stored_before(store: Store) -> None:
    job_id = put(store, unique="k")

    with store.transaction() as tx:
        assert store.enqueue([draft(unique="k")], tx=tx)[0].id == job_id

    assert len(everything(store)) == 1


def test_an_outcome_commits_with_the_effect(store: Store) -> None:
    lease, effect = running(store), draft()
    with store.transaction() as tx:
        assert store.finish([(lease, Completed("1"))], tx=tx) == [Landed(State.COMPLETED)]
        store.enqueue([effect], tx=tx)
        assert look(store, lease.job_id).state is State.PROCESSING

    assert look(store, lease.job_id).result == "1"
    assert look(store, effect.id).state is State.QUEUED


def test_a_rolled_back_outcome_did_not_happen(store: Store) -> None:
    lease = running(store)
    before = memory_of(store, lease.job_id)
    with pytest.raises(RolledBack), store.transaction() as tx:
        store.finish([(lease, Failed("boom"))], tx=tx)
        raise RolledBack

    assert memory_of(store, lease.job_id) == before
    assert finish(store, lease, Completed()) is State.COMPLETED


def test_a_lost_lease_undoes_the_whole_transaction(store: Store) -> None:
    lease, effect = running(store), draft()
    before = memory_of(store, lease.job_id)
    with pytest.raises(LeaseLost), store.transaction() as tx:
        store.enqueue([effect], tx=tx)
        store.finish([(lease._replace(attempt=0), Completed())], tx=tx)

    assert store.get(effect.id) is None
    assert memory_of(store, lease.job_id) == before


def test_an_outcome_told_in_a_transaction_may_be_told_again(store: Store) -> None:
    lease = running(store)
    with store.transaction() as tx:
        store.finish([(lease, Completed("1"))], tx=tx)

    assert store.finish([(lease, Completed("1"))]) == [Landed(State.COMPLETED)]


def test_of_a_transaction_and_a_rescue_only_one_wins(world: World, store: Store) -> None:
    lease, effect = running(store), draft()
    store.declare_dead([lease.worker_id])
    beside = world.store()
    rescuer = Thread(target=lambda: patiently(beside.rescue))
    won = True
    try:
        with store.transaction() as tx:
            store.enqueue([effect], tx=tx)
            store.finish([(lease, Completed())], tx=tx)
            rescuer.start()
            rescuer.join(timeout=0.2)  # a store that locks makes it wait for the commit, others let it pass
    except LeaseLost:
        won = False
    rescuer.join()

    assert look(store, lease.job_id).state is (State.COMPLETED if won else State.QUEUED)
    assert (store.get(effect.id) is not None) == won
    assert_sound(store)


@pytest.mark.parametrize("other", [object(), "a connection", 7])
def test_another_kind_of_transaction_is_refused_with_a_sentence(other: object, store: Store) -> None:
    lease = running(store)

    with pytest.raises(StoreError, match="transaction"):
        store.enqueue([draft()], tx=other)
    with pytest.raises(StoreError, match="transaction"):
        store.finish([(lease, Completed())], tx=other)

    assert [view.id for view in everything(store)] == [lease.job_id]


def test_a_transaction_that_has_ended_is_refused(store: Store) -> None:
    with store.transaction() as tx:
        pass

    with pytest.raises(StoreError, match="transaction"):
        store.enqueue([draft()], tx=tx)
    assert everything(store) == []


def test_another_stores_transaction_is_refused(new_world: NewWorld, store: Store) -> None:
    with new_world().store().transaction() as tx, pytest.raises(StoreError, match="transaction"):
        store.enqueue([draft()], tx=tx)

    assert everything(store) == []


def test_one_transaction_after_another(store: Store) -> None:
    for number in range(3):
        with store.transaction() as tx:
            store.enqueue([draft()], tx=tx)
        assert len(everything(store)) == number + 1


def test_who_enqueued_is_told_when_the_transaction_has_committed(store: Store) -> None:
    told, job = Event(), draft()
    with store.transaction() as tx:
        store.enqueue([job], tx=tx, committed=told.set)
        assert not told.is_set()

    assert told.wait(30)
    assert store.get(job.id) is not None


def test_nobody_is_told_of_a_transaction_that_was_rolled_back(store: Store) -> None:
    told, later = Event(), Event()
    with pytest.raises(RolledBack), store.transaction() as tx:
        store.enqueue([draft()], tx=tx, committed=told.set)
        raise RolledBack
    with store.transaction() as tx:
        store.enqueue([draft()], tx=tx, committed=later.set)

    assert later.wait(30)
    assert not told.is_set()


def test_a_replay_while_somebody_takes_its_key_leaves_the_key_to_one(store: Store) -> None:
    old, taker = bring(store, State.DEAD, unique="k").job_id, draft(unique="k")
    answers: list[object] = []
    replay = Thread(target=lambda: answers.append(patiently(lambda: store.replay([old]))[old]))

    with suppress(StoreAway), store.transaction() as tx:
        store.enqueue([taker], tx=tx)
        replay.start()
        replay.join(0.3)  # in most stores it waits for our commit

    replay.join()
    (live,) = (view for view in everything(store) if view.state in LIVE)
    assert live.id == (old if isinstance(answers[0], Landed) else taker.id)
