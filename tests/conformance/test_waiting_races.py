"""Jobs that wait, while what they wait for happens at the same moment: no wait outlives its reason (W1, W2, W3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from conformance.factories import World, claim, draft, finish, look, patiently, put, race, running, start
from conformance.test_races import Doors, many_times
from conformance.test_races import doors as doors
from conformance.test_races import threads_that_take_turns_often as threads_that_take_turns_often
from conformance.test_waiting import after, settle_waits
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, State, Suspended
from tenure.errors import BadData
from tenure.ports import Landed, Links, Store

PARENTS = 50


def admitting(store: Store, admitted: list[str]) -> Callable[[], None]:
    def admit() -> None:
        for _ in range(10):
            found = store.admit(limit=7)
            admitted.extend(each for ids in found.jobs.values() for each in ids)

    return admit


def owned(store: Store, number: int) -> list[Lease]:
    """Jobs that a living worker has just claimed."""
    drafts = [draft() for _ in range(number)]
    store.enqueue(drafts)
    worker = start(store)
    leases = [Lease(each.id, each.attempt, worker) for each in claim(store, worker, number)]
    assert len(leases) == number
    return leases


def ending(store: Store, leases: list[Lease]) -> Callable[[], None]:
    def end() -> None:
        for lease in leases:
            assert finish(store, lease, Completed()) is State.COMPLETED

    return end


@pytest.mark.parametrize("how", ["in a transaction", "alone"])
def test_a_child_that_is_stored_while_its_parents_end_is_admitted_once(how: str, world: World) -> None:
    stores = [world.store() for _ in range(4)]
    if how == "in a transaction" and not stores[0].capabilities.transactions:
        pytest.skip("this store joins no transactions")
    for _ in range(4):
        leases = owned(stores[0], PARENTS)
        child = draft(links=after(*(lease.job_id for lease in leases)))
        admitted: list[str] = []

        def store_it(child: object = child) -> None:
            if how == "alone":
                stores[3].enqueue([child])  # type: ignore[list-item]
                return
            with stores[3].transaction() as tx:
                stores[3].enqueue([child], tx=tx)  # type: ignore[list-item]

        race(
            store_it,
            ending(stores[0], leases[::3]),
            ending(stores[1], leases[1::3]),
            ending(stores[2], leases[2::3]),
            admitting(stores[1], admitted),
            admitting(stores[2], admitted),
        )

        assert [*admitted, *settle_waits(stores[0])] == [child.id]
        assert not any(each.open for each in stores[0].inputs(child.id))
        stores[0].cancel([child.id], "the next round")


@many_times
def test_of_two_admitters_each_child_is_admitted_by_one(doors: Doors) -> None:
    here, there = doors
    leases = owned(here, 12)
    children = [draft(links=after(a.job_id, b.job_id)) for a, b in itertools.pairwise(leases)]
    here.enqueue(children)
    here.finish([(lease, Completed()) for lease in leases])
    admitted: list[str] = []

    race(admitting(here, admitted), admitting(there, admitted))

    assert sorted([*admitted, *settle_waits(here)]) == sorted(each.id for each in children)
    here.cancel([each.id for each in children], "the next round")


@many_times
def test_the_last_two_parents_end_at_once(doors: Doors) -> None:
    here, there = doors
    first, second = owned(here, 2)
    child = draft(links=after(first.job_id, second.job_id))
    here.enqueue([child])
    admitted: list[str] = []

    def one(door: Store, lease: Lease) -> Callable[[], None]:
        def end() -> None:
            finish(door, lease, Completed())
            admitting(door, admitted)()

        return end

    race(one(here, first), one(there, second))

    assert [*admitted, *settle_waits(here)] == [child.id]
    here.cancel([child.id], "the next round")


@many_times
def test_a_signal_that_is_sent_while_its_job_is_suspended_wakes_it(doors: Doors) -> None:
    here, there = doors
    lease = running(here)
    admitted: list[str] = []

    race(
        lambda: finish(here, lease, Suspended(signal="own:go")),
        lambda: there.signal(lease.job_id, "own:go", "1"),
        admitting(there, admitted),
    )

    assert [*admitted, *settle_waits(here)] == [lease.job_id]
    here.cancel([lease.job_id], "the next round")


@many_times
def test_a_shared_signal_wakes_who_was_just_suspended(doors: Doors) -> None:
    here, there = doors
    lease = running(here)
    key = f"shared:{lease.job_id}"

    race(lambda: finish(here, lease, Suspended(signal=key)), lambda: there.signal(None, key, "1"))

    assert settle_waits(here) == [lease.job_id]
    here.cancel([lease.job_id], "the next round")


@many_times
def test_a_signal_and_its_time_out_admit_once(world: World, doors: Doors) -> None:
    here, there = doors
    lease = running(here)
    finish(here, lease, Suspended(signal="own:go", timeout=5))
    settle_waits(here)
    world.advance(6)
    admitted: list[str] = []

    race(
        lambda: there.signal(lease.job_id, "own:go", "1"),
        admitting(here, admitted),
        admitting(there, admitted),
    )

    assert [*admitted, *settle_waits(here)] == [lease.job_id]
    here.cancel([lease.job_id], "the next round")


@many_times
def test_a_parent_that_is_deleted_while_its_child_is_stored_holds_nobody(doors: Doors) -> None:
    here, there = doors
    parent = put(here)
    finish(here, running_again(here, parent), Completed())
    settle_waits(here)
    child, admitted = draft(links=after(parent)), list[str]()

    def store_it() -> str:
        try:
            here.enqueue([child])
        except BadData:  # it was gone already
            return "refused"
        admitting(here, admitted)()
        return "stored"

    stored, _ = race(store_it, lambda: str(isinstance(there.delete([parent])[parent], Landed)))

    settle_waits(here)
    if stored == "stored":
        wanted = State.CANCELLED if here.get(parent) is None else State.QUEUED
        # It may have been admitted before its parent was deleted: then nothing holds it either.
        assert look(here, child.id).state in (wanted, State.QUEUED)
    here.cancel([child.id], "the next round")


def running_again(store: Store, job_id: str) -> Lease:
    (claimed,) = claim(store, worker := start(store))
    assert claimed.id == job_id
    return Lease(job_id, claimed.attempt, worker)


@many_times
@pytest.mark.parametrize("outcome", [Completed(), Failed("boom", final=True)], ids=repr)
def test_a_child_that_is_replayed_while_its_parent_ends_waits_for_what_it_has_to(
    outcome: Outcome, doors: Doors
) -> None:
    here, there = doors
    lease = running(here)
    child = draft(links=after(lease.job_id))
    here.enqueue([child])
    here.cancel([child.id], "unwanted")
    settle_waits(here)

    race(lambda: finish(here, lease, outcome), lambda: there.replay([child.id]), admitting(there, []))

    settle_waits(here)
    assert look(here, child.id).state is (State.QUEUED if outcome == Completed() else State.WAITING)
    here.cancel([child.id], "the next round")


@many_times
def test_children_stored_while_their_gatherer_dies_do_not_outlive_it(doors: Doors) -> None:
    here, there = doors
    lease = running(here)
    children = [draft(links=Links(gatherer=lease.job_id)) for _ in range(3)]

    race(
        lambda: here.enqueue(children),
        lambda: finish(there, lease, Failed("boom", final=True)),
        admitting(there, []),
    )

    settle_waits(here)
    assert {look(here, each.id).state for each in children} == {State.CANCELLED}


@many_times
def test_gathers_at_once_have_places_of_their_own(doors: Doors) -> None:
    """A reader of the edges goes on behind the last place of a page: of two with one place it would miss one."""
    here, there = doors
    lease = running(here)
    links = Links(gatherer=lease.job_id)

    def gather(store: Store) -> Callable[[], None]:
        return lambda: patiently(lambda: store.enqueue([draft(links=links) for _ in range(40)]))

    race(gather(here), gather(there))

    places = [each.place for each in here.inputs(lease.job_id)]
    assert len(places) == len(set(places)) == 80
    here.cancel([lease.job_id, *(each.parent for each in here.inputs(lease.job_id))], "the next round")
