"""Limits, while several callers give, take and free places at one moment: never one too many, none forgotten (L1)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from conformance.factories import World, claim, draft, finish, look, race, start
from conformance.test_limits import OTHER, SHOP, began, declare, key, limited
from conformance.test_races import Doors, many_times
from conformance.test_races import doors as doors
from conformance.test_races import threads_that_take_turns_often as threads_that_take_turns_often
from conformance.test_waiting import settle_waits
from conformance.test_waiting_races import admitting
from tenure.core.lifecycle import Completed, Lease, Released, State
from tenure.core.limits import Key, Rate
from tenure.ports import Store

ALL = Key("renders", "renders")


def states(store: Store, jobs: list[str]) -> list[State]:
    return [look(store, each).state for each in jobs]


@many_times
def test_two_that_admit_never_give_one_place_twice(doors: Doors) -> None:
    here, there = doors
    start(here)
    if not here.limits():
        declare(here, SHOP.limit, 1)
    jobs = limited(here, number=5)
    admitted: list[str] = []

    race(admitting(here, admitted), admitting(there, admitted))

    admitted += settle_waits(here)
    assert admitted == jobs[:1]
    assert states(here, jobs).count(State.QUEUED) == 1
    here.cancel(jobs, "the next round")
    settle_waits(here)


@many_times
def test_keys_in_either_order_hold_up_nobody(doors: Doors) -> None:
    here, there = doors
    start(here)
    if not here.limits():
        declare(here, SHOP.limit, 2)
        declare(here, ALL.limit, 3)
    jobs = limited(here, SHOP, ALL, number=4) + limited(here, ALL, OTHER, number=4)
    admitted: list[str] = []

    race(admitting(here, admitted), admitting(there, admitted))

    admitted += settle_waits(here)
    assert len(admitted) == len(set(admitted)) == 3
    assert key(here, ALL).held == 3
    here.cancel(jobs, "the next round")
    settle_waits(here)


@many_times
def test_a_place_that_is_freed_while_its_key_is_served_is_given_again(doors: Doors) -> None:
    here, there = doors
    worker = start(here)
    if not here.limits():
        declare(here, SHOP.limit, 2)
    jobs = limited(here, number=6)
    settle_waits(here)
    leases = began(here, worker)
    admitted: list[str] = []

    def end(lease: Lease, store: Store) -> None:
        assert finish(store, lease, Completed()) is State.COMPLETED

    race(lambda: end(leases[0], here), lambda: end(leases[1], there), admitting(there, admitted))

    admitted += settle_waits(here)
    assert sorted(admitted) == jobs[2:4]
    here.cancel(jobs, "the next round")
    settle_waits(here)


@many_times
def test_a_begin_is_counted_once_whenever_it_comes(doors: Doors) -> None:
    """A job that is claimed between a count and the asks has taken a token: the next job must wait for another one."""
    here, there = doors
    worker = start(here)
    name = f"rated-{draft().id}"
    rated = Key(name, name)
    declare(here, name, rate=Rate(2, 3600.0, 2))
    jobs = limited(here, rated, number=6)
    begun: list[str] = []
    settle_waits(here)

    def begin() -> None:
        begun.extend(each.id for each in claim(here, worker, 10))

    race(begin, admitting(there, []))
    for _ in range(2):
        settle_waits(here)
        begin()

    assert sorted(begun) == jobs[:2]
    here.cancel(jobs, "the next round")
    for each in begun:
        finish(here, Lease(each, 1, worker), Completed())
    settle_waits(here)


@many_times
def test_a_withdrawal_and_an_admission_leave_each_job_in_one_place(doors: Doors) -> None:
    here, there = doors
    start(here, queues=("default", "other"))
    if not here.limits():
        declare(here, SHOP.limit, 1)
    (first,), (second,) = limited(here), limited(here, queue="other")
    settle_waits(here)
    here.pause("default", paused=True)

    race(lambda: here.withdraw(), lambda: there.withdraw(), admitting(there, []))

    here.withdraw()
    settle_waits(here)
    assert states(here, [first, second]) == [State.WAITING, State.QUEUED]
    assert key(here).held == 1
    here.pause("default", paused=False)
    here.cancel([first, second], "the next round")
    settle_waits(here)


@many_times
def test_a_release_and_a_cancel_forget_no_place(doors: Doors) -> None:
    here, there = doors
    worker = start(here)
    if not here.limits():
        declare(here, SHOP.limit, 1)
    first, second = limited(here, number=2)
    settle_waits(here)
    (lease,) = began(here, worker)

    race(lambda: finish(here, lease, Released("drain")), lambda: there.cancel([first], "no"), admitting(there, []))

    settle_waits(here)
    assert key(here).held == 1
    here.cancel([first, second], "the next round")
    settle_waits(here)


def test_a_job_that_is_stored_in_an_open_transaction_is_given_its_place_after_the_commit(world: World) -> None:
    here, there = world.store(), world.store()
    if not here.capabilities.transactions:
        pytest.skip("this store joins no transactions")
    start(here)
    declare(here, SHOP.limit, 2)
    late = draft(limits=(SHOP,))

    with ThreadPoolExecutor(1) as beside:
        with here.transaction() as tx:
            here.enqueue([late], tx=tx)
            other = beside.submit(limited, there)
            if wait([other], 0.5).done:  # in a store with one writer at a time it waits for the commit
                assert settle_waits(there) == other.result()
        (early,) = other.result()

    assert late.id in settle_waits(there) or look(here, late.id).state is State.QUEUED
    assert {view.id for view in here.holders(SHOP.key)} == {early, late.id}


def test_what_was_freed_by_a_process_that_died_then_is_given_by_another(world: World) -> None:
    here = world.store()
    worker = start(here)
    declare(here, SHOP.limit, 1)
    first, second = limited(here, number=2)
    assert settle_waits(here) == [first]
    (lease,) = began(here, worker)
    finish(here, lease, Completed())
    here.close()  # before it could admit

    assert settle_waits(world.store()) == [second]
