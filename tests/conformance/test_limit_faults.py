"""Limits where they could be lost: each way in which a job is stored, the clock, many queues, keys of two templates."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.factories import World, draft, finish, look, schedule, start
from conformance.test_limits import ALL, OTHER, RENAMED, SHOP, began, declare, key, limited
from conformance.test_on_loop import on_loop
from conformance.test_waiting import settle_waits, state
from tenure.core.lifecycle import Completed, Released, State, Suspended
from tenure.core.limits import Key, Rate
from tenure.ports import Draft, Store
from tenure.ports.schedules import Change


def _many(store: Store, job: Draft) -> None:
    store.enqueue([job, draft()])


def _on_loop(store: Store, job: Draft) -> None:
    if on_loop(store, job) is None:  # the store has nothing to wait for
        store.enqueue([job])


def _by_a_tick(store: Store, job: Draft) -> None:
    assert store.change([Change(schedule=schedule(), drafts=(job,))]) == [True]


def _with_a_note(store: Store, job: Draft) -> None:
    assert store.swap("note", None, "text", drafts=(job,)).landed


WAYS: list[Callable[[Store, Draft], object]] = [
    lambda store, job: store.enqueue([job]),
    _many,
    _on_loop,
    _by_a_tick,
    _with_a_note,
]


@pytest.mark.parametrize("way", WAYS, ids=["alone", "many", "on a loop", "tick", "note"])
@pytest.mark.parametrize("keys", [(SHOP,), (SHOP, ALL)], ids=["one", "two"])
def test_however_a_job_is_stored_it_needs_its_places(
    keys: tuple[Key, ...], way: Callable[[Store, Draft], object], store: Store
) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    declare(store, ALL.limit, 1)
    limited(store)
    assert len(settle_waits(store)) == 1
    job = draft(limits=keys)

    way(store, job)

    assert job.id not in settle_waits(store)
    assert (state(store, job.id), look(store, job.id).parked) == (State.WAITING, SHOP.key)
    assert (key(store).held, key(store).waiting) == (1, 1)


def test_a_job_that_is_due_later_has_its_limits_however_it_is_stored(store: Store, world: World) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    jobs = [draft(limits=(SHOP,), delay=10.0) for _ in WAYS]
    for way, job in zip(WAYS, jobs, strict=True):
        way(store, job)
    world.advance(11)
    start(store)
    store.promote()
    settle_waits(store)
    assert (key(store).held, key(store).waiting) == (1, len(WAYS) - 1)


# ── The clock ──


def test_one_that_expires_while_it_is_looked_at_blocks_nobody(store: Store, world: World) -> None:
    """The clock moves on between any two reads of it; each millisecond, a job of another key expires."""
    worker = start(store)
    declare(store, SHOP.limit, 1)
    keys = [Key(f"shop:{number}", SHOP.limit) for number in range(20, 40)]
    for each in keys:
        limited(store, each)
    settle_waits(store)
    late = [limited(store, each, expires=1 + n / 1000)[0] for n, each in enumerate(keys)]
    behind = [limited(store, each)[0] for each in keys]
    settle_waits(store)
    world.advance(0.998)
    steady, reads = world.clock.unix, 0

    def moving() -> float:
        nonlocal reads
        reads += 1
        return steady() + reads / 1000

    object.__setattr__(world.clock, "unix", moving)
    for _ in range(5):
        limited(store, OTHER)  # an ask: without one, nothing is looked at before it is due
        store.admit()
    object.__setattr__(world.clock, "unix", steady)
    world.advance(1)
    for lease in began(store, worker):
        finish(store, lease, Completed())
    settle_waits(store)
    assert {state(store, each) for each in late} == {State.CANCELLED}
    assert {state(store, each) for each in behind} == {State.QUEUED}


def test_an_unused_place_goes_to_another_queue_also_after_the_clock_was_set_back(store: Store, world: World) -> None:
    start(store, queues=("default", "other"))
    declare(store, SHOP.limit, 1)
    (idle,) = limited(store)
    (waits,) = limited(store, queue="other")
    assert settle_waits(store) == [idle]
    world.step_wall_clock(-3600)
    world.advance(31)
    start(store, queues=("default", "other"))

    assert store.withdraw().jobs == 1
    assert settle_waits(store) == [waits]


def test_a_bucket_is_kept_until_what_has_begun_is_counted(store: Store, world: World) -> None:
    rate = Rate(10, 60.0, 5)
    declare(store, SHOP.limit, rate=rate)

    def begin(number: int = 0) -> int:
        worker = start(store)
        if number:
            limited(store, number=number)
        settle_waits(store)
        return len(began(store, worker))

    begun = begin(1)
    settle_waits(store)
    world.advance(9.9)
    begun += begin(3)  # nobody looks at the key before its bucket, as it was stored, is full
    world.advance(0.2)
    store.withdraw()
    begun += begin(20)
    for seconds in (9.8, 10.0, 10.0, 10.0, 10.0):  # until just before the first of them is a minute ago
        settle_waits(store)
        world.advance(seconds)
        begun += begin()
    assert begun <= rate.most


# ── Two templates that give one key ──


@pytest.mark.parametrize("looked", [False, True], ids=["begun just now", "looked at since"])
def test_a_rate_counts_what_began_also_if_its_key_is_asked_for_by_another_template(looked: bool, store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 5)
    limited(store, SHOP)
    settle_waits(store)
    (lease,) = began(store, worker)
    declare(store, RENAMED.limit, rate=Rate(2, 60.0, 2))
    declare(store, SHOP.limit, 5, retired_at=store.now())
    limited(store, RENAMED, number=2)
    settle_waits(store)
    first = began(store, worker)
    if looked:
        settle_waits(store)
        for each in first:
            finish(store, each, Completed())
    finish(store, lease, Released("drain"))
    settle_waits(store)
    if looked:
        for each in began(store, worker):
            finish(store, each, Completed())
        settle_waits(store)
    store.withdraw()
    limited(store, RENAMED, number=2)
    settle_waits(store)
    again = [each for each in began(store, worker) if each.job_id != lease.job_id]
    assert 1 <= len(first) <= 2 and len(first) + len(again) <= 2


# ── Many queues, many places ──


def test_a_queue_behind_a_thousand_others_gets_its_place(store: Store) -> None:
    start(store, queues=("zebra",))
    declare(store, SHOP.limit, 1)
    store.enqueue([draft(limits=(SHOP,), queue=f"a{number:04}") for number in range(1_100)])
    (job,) = limited(store, queue="zebra")

    admitted: list[str] = []
    for _ in range(100):
        found = store.admit()
        admitted += [each for ids in found.jobs.values() for each in ids]
        if not found.more:
            break
    assert admitted == [job]


def test_places_are_taken_back_beside_many_others_that_are_not_used(store: Store, world: World) -> None:
    a, b = Key("a", "a"), Key("b", "b")
    start(store, queues=("slow", "other"))
    declare(store, "a", 1_000)
    declare(store, "b", 201)
    limited(store, b, number=200, queue="slow")
    limited(store, a, b, queue="slow")
    (waits,) = limited(store, b, queue="other")
    settle_waits(store)
    world.advance(31)
    start(store, queues=("slow", "other"))

    taken = store.withdraw()

    assert taken.jobs > 0
    assert waits in settle_waits(store)


def test_what_is_taken_back_comes_to_an_end(store: Store) -> None:
    queues = [f"q{number}" for number in range(25)]
    start(store, queues=tuple(queues))
    declare(store, ALL.limit, 100)
    for queue in queues:
        limited(store, ALL, queue=queue)
    settle_waits(store)
    assert any(not store.withdraw().more for _ in range(20))


# ── Turns ──


def test_a_job_that_goes_on_after_a_wait_has_a_new_turn(store: Store, world: World) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (first,) = limited(store)
    settle_waits(store)
    (lease,) = began(store, worker)
    world.advance(1)
    waiting = limited(store, number=2)
    settle_waits(store)
    finish(store, lease, Suspended("for a word", signal="own:go"))
    assert settle_waits(store) == waiting[:1]
    world.advance(1)
    store.signal(first, "own:go", "1")
    settle_waits(store)
    assert [job.id for job in store.parked(SHOP.key)] == [waiting[1], first]
