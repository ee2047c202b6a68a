"""Jobs that wait, where verbs come between the end of a job and the answer to its ask: what `tests/model` found."""

from __future__ import annotations

from conformance.factories import DAY, World, put, running
from conformance.test_waiting import child_of, end, gathered, settle_waits, state
from tenure.core.lifecycle import State
from tenure.ports import Landed, NotLanded, Store


def test_a_result_is_kept_for_a_child_that_was_stored_just_now(world: World) -> None:
    store = world.store()
    parent = put(store)
    end(store, parent)
    world.advance(8 * DAY)
    child = child_of(store, parent)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 0
    assert settle_waits(store) == [child]
    assert [each.result for each in store.inputs(child)] == ['"done"']


def test_a_gatherer_is_not_replayed_before_its_children_have_ended(store: Store) -> None:
    lease = running(store)
    (child,) = gathered(store, lease, number=1)
    settle_waits(store)
    store.cancel([lease.job_id], "unwanted")
    refused = store.replay([lease.job_id])[lease.job_id]
    assert isinstance(refused, NotLanded)
    assert child in refused.stands
    settle_waits(store)
    assert state(store, child) is State.CANCELLED
    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}


def test_what_a_replayed_gatherer_gathers_no_more_is_not_kept_for_it(world: World) -> None:
    store = world.store()
    lease = running(store)
    (child,) = gathered(store, lease, number=1)
    settle_waits(store)
    store.cancel([child], "unwanted")
    settle_waits(store)
    assert state(store, lease.job_id) is State.CANCELLED
    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}
    settle_waits(store)
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 1


def test_a_job_that_its_child_let_go_of_before_its_end_was_told_lets_go_of_its_parent(world: World) -> None:
    store = world.store()
    first = put(store)
    second = child_of(store, first)
    third = child_of(store, second)
    settle_waits(store)
    end(store, first)
    settle_waits(store)
    store.cancel([third], "unwanted")
    end(store, second)
    world.advance(8 * DAY)
    store.admit(limit=1)
    store.prune(keep=7 * DAY, keep_dead=None)
    settle_waits(store)
    store.prune(keep=7 * DAY, keep_dead=None)
    settle_waits(store)
    store.prune(keep=7 * DAY, keep_dead=None)
    assert store.get(first) is None
