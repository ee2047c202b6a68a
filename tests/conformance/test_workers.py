from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.factories import DAY, LEASE, World, claim, identity, put, running, start
from tenure.core.lifecycle import Crashed
from tenure.errors import StoreError
from tenure.ports import Store


def test_a_registered_worker_is_seen_as_it_said(world: World) -> None:
    store = world.store()
    worker = identity(queues=("a", "b"), tasks=("resize", "mail"), runner="solo", slots=1, lease=45.0)
    store.register(worker)

    (view,) = store.workers()

    assert view.identity == worker
    assert view.started_at == view.renewed_at == store.now()
    assert view.expires_at == store.now() + timedelta(seconds=45)
    assert (view.died_at, view.note, view.processing) == (None, "", 0)


def test_an_id_is_used_once_also_after_its_death(store: Store) -> None:
    worker = identity()
    store.register(worker)
    with pytest.raises(StoreError, match=worker.id):
        store.register(worker)

    store.declare_dead([worker.id])
    with pytest.raises(StoreError, match=worker.id):
        store.register(worker)


def test_a_renewal_lasts_one_lease(world: World) -> None:
    store = world.store()
    short, long = start(store, lease=LEASE), start(store, lease=4 * LEASE)
    world.advance(LEASE - 1)
    assert store.renew([short, long]) == {short, long}
    world.advance(LEASE - 1)
    assert store.declare_expired() == frozenset()
    world.advance(2)

    assert store.declare_expired() == {short}
    world.advance(4 * LEASE)
    assert store.declare_expired() == {long}
    assert store.declare_expired() == frozenset()


def test_whoever_is_late_but_not_declared_dead_may_renew(world: World) -> None:
    store = world.store()
    worker = start(store)
    world.advance(LEASE * 5)

    assert store.renew([worker]) == {worker}
    assert store.declare_expired() == frozenset()


def test_death_is_declared_once_and_for_ever(world: World) -> None:
    store = world.store()
    worker, living = start(store), start(store)

    assert store.declare_dead([worker, "host-1-nobody"]) == {worker}
    died_at = store.now()
    world.advance(1)
    assert store.declare_dead([worker]) == frozenset()
    assert store.renew([worker, living, "host-1-nobody"]) == {living}

    (view,) = [view for view in store.workers(dead=True) if view.died_at]
    assert (view.identity.id, view.died_at) == (worker, died_at)
    assert [view.identity.id for view in store.workers()] == [living]


def test_settling_a_worker_declares_it_dead(store: Store) -> None:
    worker = start(store)
    store.settle(worker, {}, Crashed("gone"))

    assert store.renew([worker]) == store.declare_dead([worker]) == frozenset()


def test_a_settled_worker_is_noted_with_how_it_ended_and_what_it_ran(store: Store) -> None:
    worker, declared, silent = start(store), start(store), start(store)
    first, second = running(store, worker), running(store, worker, task="mail")
    store.renew([worker, silent], notes={worker: "its loop is blocked by work", silent: "its loop is blocked by work"})
    store.declare_dead([declared])

    store.settle(worker, {}, Crashed("gone"), how="signal 9 (SIGKILL)")
    store.settle(declared, {}, Crashed("gone"), how="exit code 3")
    store.settle(silent, {}, Crashed("gone"))

    notes = {view.identity.id: view.note for view in store.workers(dead=True)}
    how, *ran = notes.pop(worker).splitlines()
    assert (how, sorted(ran)) == (
        "signal 9 (SIGKILL)",
        sorted([f"{first.job_id} work", f"{second.job_id} mail"]),
    )
    assert notes == {declared: "exit code 3", silent: "its loop is blocked by work"}


def test_a_note_names_twenty_jobs_at_most(store: Store) -> None:
    worker = start(store, slots=25)
    for _ in range(25):
        running(store, worker)

    store.settle(worker, {}, Crashed("gone"), how="exit code 1")

    (view,) = store.workers(dead=True)
    assert len(view.note.splitlines()) == 22
    assert view.note.endswith("\n+5")


def test_a_note_says_what_is_wrong_right_now(store: Store) -> None:
    blocked, fine = start(store), start(store)
    store.renew([blocked, fine], notes={blocked: "its loop is blocked by work"})
    assert {view.identity.id: view.note for view in store.workers()} == {
        blocked: "its loop is blocked by work",
        fine: "",
    }

    store.renew([blocked, fine])

    assert {view.note for view in store.workers()} == {""}


def test_workers_are_listed_newest_first_with_what_they_run(world: World) -> None:
    store = world.store()
    first = start(store)
    world.advance(1)
    second = start(store)
    running(store, first)
    running(store, first)

    assert [(view.identity.id, view.processing) for view in store.workers()] == [(second, 0), (first, 2)]


def test_a_workers_row_outlives_its_death_by_a_day(world: World) -> None:
    store = world.store()
    dead, living = start(store), start(store, lease=10 * DAY)
    store.declare_dead([dead])
    world.advance(DAY - 60)
    store.prune(keep=7 * DAY, keep_dead=None)
    assert {view.identity.id for view in store.workers(dead=True)} == {dead, living}

    world.advance(120)
    store.prune(keep=7 * DAY, keep_dead=None)

    assert {view.identity.id for view in store.workers(dead=True)} == {living}


def test_a_job_whose_owner_is_no_longer_known_is_rescued(world: World) -> None:
    store = world.store()
    lease = running(store)
    store.declare_dead([lease.worker_id])
    world.advance(DAY + 60)
    store.prune(keep=7 * DAY, keep_dead=None)
    assert store.workers(dead=True) == []

    (rescued,) = store.rescue()

    assert (rescued.id, rescued.worker_id, rescued.cause) == (lease.job_id, lease.worker_id, "host")


def test_two_ways_into_the_store_see_the_same_workers(world: World) -> None:
    here, there = world.store(), world.store()
    worker = start(here)
    job_id = put(here)

    assert [each.id for each in claim(there, worker)] == [job_id]
    assert there.renew([worker]) == {worker}
    there.declare_dead([worker])
    assert here.renew([worker]) == frozenset()
