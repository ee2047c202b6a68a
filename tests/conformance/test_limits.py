"""Limits: places of a key, begins in a period. Every store answers alike, whenever and however often `admit` is called.

L1 to L3 are the rules of docs/limits.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conformance.factories import DAY, World, claim, draft, finish, look, put, start
from conformance.test_waiting import after, end, settle_waits, state
from tenure.core.lifecycle import (
    EXPIRED,
    Cancelled,
    Completed,
    Crashed,
    Edge,
    Failed,
    Lease,
    Outcome,
    Released,
    Snoozed,
    State,
    Suspended,
)
from tenure.core.limits import Bounds, Key, Rate
from tenure.errors import BadData
from tenure.ports import FOREVER, KeyView, Landed, LimitRow, Links, Store

SHOP = Key("shop:7", "shop:{shop}")
OTHER = Key("shop:8", "shop:{shop}")
RENAMED = Key(SHOP.key, "shop:{customer}")  #: a release has renamed the argument
ALL = Key("renders", "renders")


def declare(store: Store, name: str, concurrency: int | None = None, rate: Rate | None = None, **more: Any) -> None:
    """What a limit allows from now on."""
    found = store.limits([name])
    row = found[0] if found else LimitRow(name=name)
    assert store.change_limits([row.but(declared=Bounds(concurrency, rate), **more)]) == [True]


def change(store: Store, key: Key, **changes: Any) -> None:
    """What an operator sets for one key."""
    found = store.limits([key.key], keys=True)
    row = found[0] if found else LimitRow(name=key.key, key=True, limit=key.limit)
    assert store.change_limits([row.but(**changes)]) == [True]


def limited(store: Store, *keys: Key, number: int = 1, **options: Any) -> list[str]:
    drafts = [draft(limits=keys or (SHOP,), **options) for _ in range(number)]
    answers = store.enqueue(drafts)
    assert {answer.state for answer in answers} == {State.WAITING}
    return [answer.id for answer in answers]


def key(store: Store, of: Key = SHOP) -> KeyView:
    (found,) = store.keys([of.key])
    return found


def began(store: Store, worker: str, number: int = 100) -> list[Lease]:
    return [Lease(each.id, each.attempt, worker) for each in claim(store, worker, number)]


def test_a_key_under_which_a_job_is_parked_is_not_forgotten(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    limited(store)
    settle_waits(store)
    (lease,) = began(store, worker)
    finish(store, lease, Completed())
    settle_waits(store)
    limited(store, queue="unserved")
    settle_waits(store)

    store.withdraw()

    assert key(store).waiting == 1


# ── L1: places ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_more_than_the_places_of_a_key_are_queued_or_processing(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 2)
    jobs = limited(store, number=5)

    assert settle_waits(store) == jobs[:2]
    assert [state(store, each) for each in jobs] == [State.QUEUED] * 2 + [State.WAITING] * 3
    leases = began(store, worker)
    assert settle_waits(store) == []
    assert (key(store).held, key(store).unbegun, key(store).waiting) == (2, 0, 3)

    finish(store, leases[0], Completed())
    assert settle_waits(store) == jobs[2:3]


def test_the_keys_of_a_template_are_counted_each_by_itself(store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    mine, other = limited(store, SHOP, number=2), limited(store, OTHER, number=2)

    assert sorted(settle_waits(store)) == sorted([mine[0], other[0]])


@pytest.mark.thorough
def test_a_batch_of_jobs_with_thousands_of_keys_begins_and_ends(store: Store) -> None:
    worker, jobs, each_of = start(store), 20, 210
    declare(store, "part:{n}", 1)
    drafts = [draft(limits=tuple(Key(f"part:{job}-{n}", "part:{n}") for n in range(each_of))) for job in range(jobs)]
    ids = [answer.id for answer in store.enqueue(drafts)]

    assert sorted(settle_waits(store)) == sorted(ids)
    leases = began(store, worker, jobs)
    assert len(leases) == jobs
    assert store.finish([(lease, Completed()) for lease in leases]) == [Landed(State.COMPLETED)] * jobs
    assert settle_waits(store) == []
    assert {each.held for each in store.keys(["part:0-0", "part:19-209"])} <= {0}


def test_a_job_with_two_keys_needs_a_place_of_each(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    declare(store, ALL.limit, 2)
    first, second = limited(store, SHOP, ALL, number=2)
    third = limited(store, OTHER, ALL)[0]
    (fourth,) = limited(store, ALL)

    assert settle_waits(store) == [first, third]
    assert (look(store, second).parked, look(store, fourth).parked) == (SHOP.key, ALL.key)

    for lease in began(store, worker):
        finish(store, lease, Completed())
    assert sorted(settle_waits(store)) == sorted([second, fourth])
    assert {each.id for each in store.holders(ALL.key)} == {second, fourth}


def test_a_job_that_another_key_refuses_is_parked_there_and_does_not_hold_up_others(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 5)
    declare(store, ALL.limit, 1)
    (holder,) = limited(store, ALL)
    assert settle_waits(store) == [holder]
    both = limited(store, SHOP, ALL, number=3)
    (alone,) = limited(store, SHOP)

    assert settle_waits(store) == [alone]
    assert {look(store, each).parked for each in both} == {ALL.key}

    (lease, *_) = [each for each in began(store, worker) if each.job_id == holder]
    finish(store, lease, Completed())
    assert settle_waits(store) == both[:1]


OUTCOMES: list[tuple[Outcome, State]] = [
    (Completed(), State.COMPLETED),
    (Failed("boom"), State.SCHEDULED),
    (Failed("boom", final=True), State.DEAD),
    (Snoozed(60.0), State.SCHEDULED),
    (Released("a drain"), State.WAITING),
    (Cancelled("asked"), State.CANCELLED),
    (Crashed("its process died", process_died=True), State.WAITING),
]


@pytest.mark.parametrize(("outcome", "after"), OUTCOMES, ids=lambda each: type(each).__name__)
def test_each_end_of_an_attempt_frees_the_place(outcome: Outcome, after: State, store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    first, second = limited(store, number=2)
    assert settle_waits(store) == [first]
    (lease,) = began(store, worker)

    assert finish(store, lease, outcome) is after

    assert key(store).held == 0
    assert settle_waits(store) == [first if after is State.WAITING else second]
    assert key(store).held == 1


@pytest.mark.parametrize("how", ["cancel", "delete", "rescue", "settle"])
def test_a_place_is_freed_whatever_else_happens(how: str, store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    first, second = limited(store, number=2)
    assert settle_waits(store) == [first]
    if how == "cancel":
        store.cancel([first], "enough")
    elif how == "delete":
        assert store.delete([first]) == {first: Landed(State.QUEUED)}
    else:
        began(store, worker)
        if how == "rescue":
            store.declare_dead([worker])
            (rescued,) = store.rescue()
        else:
            (rescued,) = store.settle(worker, {}, Crashed("signal 9", process_died=True))
        assert rescued.state is State.WAITING
        start(store)

    assert key(store).held == 0
    assert settle_waits(store) == ([second] if how in ("cancel", "delete") else [first])


def test_a_scheduled_job_needs_its_place_when_it_is_due(store: Store, world: World) -> None:
    """W4: promote parks a job with limits, too."""
    start(store)
    declare(store, SHOP.limit, 1)
    (answer,) = store.enqueue([draft(limits=(SHOP,), delay=60.0)])
    assert answer.state is State.SCHEDULED
    assert store.promote().jobs == {}
    world.advance(61)
    start(store)

    promoted = store.promote()

    assert (promoted.jobs, promoted.limited) == ({}, 1)
    assert state(store, answer.id) is State.WAITING
    assert settle_waits(store) == [answer.id]


def test_an_operator_promotes_a_limited_job_only_to_its_turn(store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    (first,) = limited(store)
    assert settle_waits(store) == [first]
    (answer,) = store.enqueue([draft(limits=(SHOP,), delay=60.0)])

    assert store.promote_now([answer.id, first]) == {answer.id: State.WAITING, first: State.QUEUED}
    assert look(store, answer.id).due_at == look(store, answer.id).run_at <= store.now()
    assert settle_waits(store) == []


def test_an_overdue_limited_job_that_an_operator_promotes_keeps_its_place(world: World) -> None:
    store = world.store()
    declare(store, SHOP.limit, 1)
    (answer,) = store.enqueue([draft(limits=(SHOP,), delay=10.0)])
    due = look(store, answer.id).run_at
    world.advance(15)
    (later,) = limited(store)
    world.advance(15)

    assert store.promote_now([answer.id]) == {answer.id: State.WAITING}
    start(store)

    view = look(store, answer.id)
    assert (view.run_at, view.due_at) == (due, due)
    assert settle_waits(store) == [answer.id]
    assert look(store, later).state is State.WAITING


def test_a_replayed_job_waits_for_its_place(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    first, second = limited(store, number=2)
    settle_waits(store)
    (lease,) = began(store, worker)
    finish(store, lease, Failed("boom", final=True))
    assert settle_waits(store) == [second]

    assert store.replay([first]) == {first: Landed(State.WAITING)}

    assert settle_waits(store) == []
    (lease,) = began(store, worker)
    finish(store, lease, Completed())
    assert settle_waits(store) == [first]


@pytest.mark.parametrize("waits", ["for its time", "for another job"])
def test_a_replayed_job_that_is_not_due_yet_stands_in_no_order(waits: str, store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    if waits == "for its time":
        (job,) = limited(store)
    else:
        before = put(store)
        ((job, *_),) = store.enqueue([draft(limits=(SHOP,), links=after(before, until="ended"))])
        store.cancel([before], "no")
    settle_waits(store)
    store.cancel([job], "no")
    assert look(store, job).due_at is not None
    if waits == "for another job":
        store.replay([before])

    delays = {job: 60.0} if waits == "for its time" else {}
    (answer,) = store.replay([job], delays=delays).values()

    assert answer == Landed(State.SCHEDULED if delays else State.WAITING)
    assert look(store, job).due_at is None


@pytest.mark.parametrize("isolated", [False, True], ids=["", "alone"])
@pytest.mark.parametrize("verb", ["enqueue", "replay", "promote", "promote_now"])
def test_a_job_that_comes_to_a_key_with_room_is_given_its_place(
    verb: str, isolated: bool, store: Store, world: World
) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    (job,) = (answer.id for answer in store.enqueue([draft(limits=(SHOP,), delay=60.0, isolated=isolated)]))
    if verb == "replay":
        store.cancel([job], "not yet")
    assert settle_waits(store) == []

    if verb == "enqueue":
        (job,) = limited(store, isolated=isolated)
    elif verb == "replay":
        assert store.replay([job]) == {job: Landed(State.WAITING)}
    elif verb == "promote_now":
        assert store.promote_now([job]) == {job: State.WAITING}
    else:
        world.advance(61)
        start(store)
        assert store.promote().limited == 1

    assert settle_waits(store) == [job]
    assert [each.id for each in claim(store, start(store), solo=isolated)] == [job]


def test_a_job_with_parents_waits_for_them_and_then_for_its_place(store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    (holder,) = limited(store)
    assert settle_waits(store) == [holder]
    parent = put(store)
    child = put(store, links=after(parent), limits=(SHOP,))
    end(store, parent)

    assert settle_waits(store) == [holder]  # `end` claimed it too, and released it
    assert look(store, child).parked == SHOP.key


def test_a_gatherer_gives_its_place_to_its_children(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (job,) = limited(store)
    settle_waits(store)
    (lease,) = began(store, worker)
    parent = put(store, delay=60.0)
    assert finish(store, lease, Suspended("for it", after=(Edge(parent),))) is State.WAITING

    (child,) = limited(store)
    assert settle_waits(store) == [child]
    assert look(store, job).parked is None


# ── Order ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["cancelled", "dead"])
def test_a_gatherer_that_was_parked_before_its_ask_was_answered_cancels_its_live_children(
    how: str, store: Store, world: World
) -> None:
    """It was drained, or killed, just after it had stored them."""
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (gatherer,) = limited(store)
    settle_waits(store)
    (lease,) = began(store, worker)
    (child,) = store.enqueue([draft(links=Links(gatherer=gatherer), queue="other")])
    finish(store, lease, Released("drained"))
    settle_waits(store)

    if how == "cancelled":
        store.cancel([gatherer], "unwanted")
    else:
        (lease,) = began(store, worker)
        finish(store, lease, Failed("no", final=True))
    settle_waits(store)

    assert (state(store, gatherer), state(store, child.id)) == (State(how), State.CANCELLED)
    world.advance(10 * DAY)
    assert store.prune(keep=DAY, keep_dead=DAY) == 2


def test_the_more_urgent_one_goes_first_then_the_one_that_was_due_first(store: Store, world: World) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    (holder,) = limited(store)
    assert settle_waits(store) == [holder]
    late, early, urgent = (
        limited(store, **options)[0] for options in ({}, {"run_at": store.now() - timedelta(hours=1)}, {"priority": 5})
    )

    assert [view.id for view in store.parked(SHOP.key)] == [urgent, early, late]
    for expected in (urgent, early, late):
        store.cancel([holder], "next")
        assert settle_waits(store) == [expected]
        holder = expected


def test_an_admitted_job_stands_behind_what_was_queued_before(store: Store, world: World) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (old,) = limited(store, run_at=store.now() - timedelta(hours=1))
    plain = put(store)
    world.advance(0.5)
    assert settle_waits(store) == [old]

    assert [each.id for each in claim(store, worker, 10)] == [plain, old]


def test_a_job_that_comes_back_keeps_its_turn(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    jobs = limited(store, number=3)
    settle_waits(store)
    (lease,) = began(store, worker)

    finish(store, lease, Released("a drain"))

    assert settle_waits(store) == jobs[:1]


# ── L2: the rate ────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_more_begin_in_any_period_than_the_rate_says(store: Store, world: World) -> None:
    declare(store, SHOP.limit, rate=Rate(6, 60.0, 3))
    limited(store, number=40)
    begins: list[float] = []
    for _ in range(40):
        worker = start(store)
        settle_waits(store)
        for lease in began(store, worker):
            begins.append(world.clock.unix())
            finish(store, lease, Completed())
        world.advance(5)

    worst = max(sum(at <= each < at + 60.0 for each in begins) for at in begins)
    assert worst == 6
    assert len(begins) == 3 + 195 // 15  # a token comes every 15 s


def test_a_burst_of_one_is_an_even_pace(store: Store, world: World) -> None:
    declare(store, SHOP.limit, rate=Rate(1, 10.0, 1))
    jobs = limited(store, number=3)
    worker = start(store)
    assert settle_waits(store) == jobs[:1]
    began(store, worker)
    world.advance(9)
    worker = start(store)
    assert settle_waits(store) == []
    assert 0.5 < (store.admit().next_due or 0) <= 1.0

    world.advance(1.1)
    start(store)

    assert settle_waits(store) == jobs[1:2]


def test_what_has_not_begun_takes_no_token_and_the_workers_absence_makes_no_crowd(store: Store, world: World) -> None:
    declare(store, SHOP.limit, rate=Rate(100, 60.0, 10))
    jobs = limited(store, number=50)
    start(store)
    assert len(settle_waits(store)) == 10
    world.advance(3600)
    worker = start(store)

    assert settle_waits(store) == []
    assert len(began(store, worker)) == 10
    assert settle_waits(store) == []
    store.cancel(jobs, "enough")
    assert (key(store).unbegun, key(store).waiting) == (0, 0)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_makes_no_crowd_and_stops_nobody(step: float, store: Store, world: World) -> None:
    declare(store, SHOP.limit, rate=Rate(6, 60.0, 1))
    limited(store, number=30)
    worker = start(store)
    begun = 0
    for _ in range(3):
        settle_waits(store)
        begun += len(began(store, worker))
        world.step_wall_clock(step)
    assert step > 0 or begun == 1
    settle_waits(store)
    began(store, worker)
    world.advance(11)
    worker = start(store)
    store.withdraw()  # in a store whose leases end by that clock, the queue was passed over: it is asked for again

    assert len(settle_waits(store)) <= 1
    assert len(began(store, worker)) == 1


# ── Operators ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_set_for_a_key_beats_what_is_set_for_its_limit_and_that_the_declared(store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1, set=Bounds(2))
    change(store, OTHER, set=Bounds(3))
    limited(store, SHOP, number=5)
    limited(store, OTHER, number=5)

    assert len(settle_waits(store)) == 5
    assert (key(store, SHOP).held, key(store, OTHER).held) == (2, 3)


def test_lowering_takes_nothing_away_and_admits_nobody_until_there_is_room(store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 3)
    limited(store, number=6)
    settle_waits(store)
    leases = began(store, worker)
    declare(store, SHOP.limit, 1)

    for lease, left in zip(leases, (2, 1, 1), strict=True):
        finish(store, lease, Completed())
        settle_waits(store)
        assert key(store).held == left


def test_raising_admits_more(store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    limited(store, number=4)
    settle_waits(store)

    declare(store, SHOP.limit, 3)

    assert len(settle_waits(store)) == 2


@pytest.mark.parametrize("paused", ["its limit", "its key"])
def test_a_limit_that_was_paused_and_is_no_longer_declared_holds_no_job(paused: str, store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1, **({"paused_until": FOREVER} if paused == "its limit" else {}))
    if paused == "its key":
        change(store, SHOP, paused_until=FOREVER)
    jobs = limited(store, number=3)
    assert settle_waits(store) == []
    declare(store, SHOP.limit, 1, retired_at=store.now())
    assert settle_waits(store) == jobs
    assert key(store).paused_until is None


@pytest.mark.parametrize("gone", ["retired", "deleted", "never there"])
def test_a_limit_that_is_gone_limits_nothing(gone: str, store: Store, world: World) -> None:
    start(store)
    if gone != "never there":
        declare(store, SHOP.limit, 1)
    jobs = limited(store, number=3)
    if gone != "never there":
        assert settle_waits(store) == jobs[:1]
    if gone == "retired":
        declare(store, SHOP.limit, 1, retired_at=store.now())
    elif gone == "deleted":
        (row,) = store.limits([SHOP.limit])
        assert store.change_limits([row.but(declared=None)]) == [True]
        assert store.limits() == []

    settle_waits(store)

    assert [state(store, each) for each in jobs] == [State.QUEUED] * 3


def test_a_paused_key_admits_nobody_until_its_time_or_until_it_is_resumed(store: Store, world: World) -> None:
    start(store)
    declare(store, SHOP.limit, 2)
    change(store, SHOP, paused_until=world.clock.unix() + 30, why="they asked for it")
    jobs = limited(store, number=4)
    assert settle_waits(store) == []
    assert 29 <= (store.admit().next_due or 0) <= 30
    assert key(store).why == "they asked for it"

    world.advance(31)
    start(store)
    assert settle_waits(store) == jobs[:2]

    change(store, SHOP, paused_until=FOREVER)
    store.cancel(jobs[:1], "one place is free")
    assert settle_waits(store) == []
    change(store, SHOP, paused_until=None)
    assert settle_waits(store) == jobs[2:3]


def test_a_job_that_snoozes_may_pause_its_key(store: Store, world: World) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    first, second = limited(store, number=2)
    settle_waits(store)
    (lease,) = began(store, worker)

    assert finish(store, lease, Snoozed(30.0, "429", pause=SHOP)) is State.SCHEDULED

    assert settle_waits(store) == []
    assert key(store).paused_until == pytest.approx(world.clock.unix() + 30, abs=1)
    assert look(store, first).failures == 0
    world.advance(31)
    start(store)
    assert settle_waits(store) == [second]


def test_of_two_that_change_a_limit_one_wins(store: Store) -> None:
    declare(store, SHOP.limit, 1)
    (row,) = store.limits([SHOP.limit])

    assert store.change_limits([row.but(set=Bounds(2))]) == [True]
    assert store.change_limits([row.but(set=Bounds(3))]) == [False]

    (found,) = store.limits()
    assert found == row.but(set=Bounds(2), rev=2)


# ── L3: no job is held up by an idle queue ──────────────────────────────────────────────────────────────────────


def test_no_place_is_given_to_a_queue_that_nobody_serves(store: Store) -> None:
    declare(store, SHOP.limit, 1)
    (idle,) = limited(store, queue="idle")
    (mine,) = limited(store, queue="default")
    assert settle_waits(store) == []
    start(store)
    store.withdraw()

    assert settle_waits(store) == [mine]
    assert state(store, idle) is State.WAITING


def test_a_queue_that_is_served_again_gets_its_places(store: Store) -> None:
    declare(store, SHOP.limit, 1)
    (job,) = limited(store)
    assert settle_waits(store) == []

    start(store)
    assert store.withdraw().asked

    assert settle_waits(store) == [job]


def test_the_places_of_a_paused_queue_go_to_another(store: Store) -> None:
    start(store, queues=("default", "other"))
    declare(store, SHOP.limit, 1)
    (first,) = limited(store)
    (second,) = limited(store, queue="other")
    assert settle_waits(store) == [first]
    store.pause("default", paused=True)

    assert store.withdraw().jobs == 1

    assert state(store, first) is State.WAITING
    assert settle_waits(store) == [second]
    store.pause("default", paused=False)
    store.withdraw()
    store.cancel([second], "enough")
    assert settle_waits(store) == [first]


def test_a_place_that_has_not_begun_for_long_goes_to_another_queue_that_waits(store: Store, world: World) -> None:
    start(store, queues=("default", "other"))
    declare(store, SHOP.limit, 1)
    first, again = limited(store, number=2)
    (second,) = limited(store, queue="other")
    assert settle_waits(store) == [first]
    assert store.withdraw().jobs == 0
    world.advance(31)
    start(store, queues=("default", "other"))

    assert store.withdraw().jobs == 1

    assert settle_waits(store) == [second]
    assert [view.id for view in store.parked(SHOP.key)] == [first, again]


def test_a_suspects_place_that_has_not_begun_goes_to_another_job_of_its_key(store: Store, world: World) -> None:
    """Its turn comes after all suspects before it: a key with few places would be blocked until then."""
    start(store)
    declare(store, SHOP.limit, 1)
    (suspect,) = limited(store, number=1, isolated=True)
    fresh, last = limited(store, number=2)
    assert settle_waits(store) == [suspect]
    world.advance(4)
    assert store.withdraw().jobs == 0
    world.advance(2)

    assert store.withdraw().jobs == 1

    assert settle_waits(store) == [fresh]
    assert [view.id for view in store.parked(SHOP.key)] == [suspect, last], "it keeps its turn …"
    worker = start(store)
    for lease in began(store, worker):
        finish(store, lease, Completed())
    assert settle_waits(store) == [last], "… and comes last for a while"
    for lease in began(store, worker):
        finish(store, lease, Completed())
    assert settle_waits(store) == [suspect]


def test_a_suspects_place_is_left_while_only_suspects_wait_for_it(store: Store, world: World) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    first, _ = limited(store, number=2, isolated=True)
    settle_waits(store)
    world.advance(10)

    assert store.withdraw().jobs == 0
    assert state(store, first) is State.QUEUED


@pytest.mark.parametrize("of", ["limit", "key"])
@pytest.mark.parametrize("looked", [True, False], ids=["looked-at", "at-once"])
def test_a_begin_takes_a_token_also_if_the_rate_came_after_its_admission(store: Store, of: str, looked: bool) -> None:
    worker, rate = start(store), Rate(10, 60.0, 5)
    declare(store, SHOP.limit, 5)
    limited(store, number=3)
    assert len(settle_waits(store)) == 3
    if of == "key":
        change(store, SHOP, set=Bounds(None, rate))
    else:
        declare(store, SHOP.limit, 5, rate)
    if looked:
        settle_waits(store)

    assert len(began(store, worker)) == 3

    settle_waits(store)
    tokens = key(store).tokens
    assert tokens is not None
    assert round(tokens) == 2


def test_a_place_that_nobody_else_waits_for_is_left(store: Store, world: World) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    first, _ = limited(store, number=2)
    settle_waits(store)
    world.advance(31)
    start(store)

    assert store.withdraw().jobs == 0
    assert state(store, first) is State.QUEUED


# ── The rest ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_expires_while_it_waits_for_a_place_is_cancelled(store: Store, world: World) -> None:
    """W6."""
    start(store)
    declare(store, SHOP.limit, 1)
    limited(store)
    (late,) = limited(store, expires=10.0)
    settle_waits(store)
    world.advance(11)
    start(store)

    settle_waits(store)

    view = look(store, late)
    assert (view.state, view.error, view.parked) == (State.CANCELLED, EXPIRED, None)


def test_a_replayed_job_that_had_expired_waits_as_long_as_it_must(store: Store, world: World) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    (holder,) = limited(store)
    (late,) = limited(store, expires=10.0)
    settle_waits(store)
    world.advance(11)
    start(store)
    settle_waits(store)

    assert store.replay([late]) == {late: Landed(State.WAITING)}

    settle_waits(store)
    assert state(store, late) is State.WAITING
    store.cancel([holder], "enough")
    assert settle_waits(store) == [late]


def test_an_older_worker_stops_limited_jobs_and_no_others(store: Store) -> None:
    old = start(store, protocol=2)
    parent = put(store)
    child = put(store, links=after(parent))
    (mine,) = limited(store)
    worker = start(store)
    (claimed,) = claim(store, worker, 1)
    finish(store, Lease(claimed.id, 1, worker), Completed())

    assert settle_waits(store) == [child]
    assert state(store, mine) is State.WAITING
    assert store.outdated() == [old]
    assert store.outdated(2) == []
    store.declare_dead([old])
    store.withdraw()
    assert settle_waits(store) == [mine]


def test_a_claim_says_that_a_job_holds_places(store: Store) -> None:
    worker = start(store)
    (mine,) = limited(store)
    settle_waits(store)
    plain = put(store)

    assert {each.id: each.limited for each in claim(store, worker, 10)} == {mine: True, plain: False}


def test_an_unknown_key_is_no_key(store: Store) -> None:
    assert store.keys() == []
    assert store.keys(["shop:7"]) == []
    assert store.holders("shop:7") == store.parked("shop:7") == []


def test_nothing_is_kept_of_a_key_that_nobody_uses(store: Store, world: World) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1, Rate(60, 60.0, 1))
    change(store, OTHER, set=Bounds(2), paused_until=world.clock.unix() + 30)
    jobs = limited(store, SHOP) + limited(store, ALL) + limited(store, Key("shop:9", SHOP.limit), queue="unserved")
    settle_waits(store)
    for lease, of in zip(began(store, worker), (SHOP, ALL), strict=True):
        finish(store, lease, Snoozed(30.0, "429", pause=of))
    settle_waits(store)
    store.cancel(jobs, "enough")
    settle_waits(store)
    assert {row.name for row in store.limits(keys=True)} == {SHOP.key, OTHER.key, ALL.key}
    tidy(store)
    assert {SHOP.key, OTHER.key, ALL.key} <= {view.key for view in store.keys(None)}

    world.advance(31)
    tidy(store)

    assert [view.key for view in store.keys(None)] == [OTHER.key]
    assert [row.name for row in store.limits(keys=True)] == [OTHER.key]
    assert store.limits() == store.limits([SHOP.limit]) != []


def tidy(store: Store) -> None:
    """What the maintenance does again and again."""
    while store.withdraw().more:
        pass
    store.prune(keep=3600.0, keep_dead=None)
    settle_waits(store)


def test_keys_are_listed_in_their_order_and_by_their_limit(store: Store) -> None:
    declare(store, SHOP.limit, 1)
    limited(store, OTHER)
    limited(store, SHOP, ALL)
    start(store)
    store.withdraw()
    settle_waits(store)

    assert [view.key for view in store.keys(None)] == ["renders", "shop:7", "shop:8"]
    assert [each.key for each in store.keys(limited_by=SHOP.limit)] == ["shop:7", "shop:8"]
    assert [each.key for each in store.keys(start="renders", limit=1)] == ["shop:7"]


def test_jobs_of_one_call_are_all_stored_or_none(store: Store) -> None:
    bad = draft(links=Links(gatherer="0190a0a0-0000-7000-8000-00000000dead"))
    with pytest.raises(BadData):
        store.enqueue([draft(limits=(SHOP,)), bad])

    assert store.keys() == []
    assert not store.admit().more


def test_two_templates_that_give_one_key_share_its_places(store: Store) -> None:
    """A release has renamed the argument, or two apps share the store: the key is what counts."""
    worker = start(store)
    declare(store, SHOP.limit, 2)
    declare(store, RENAMED.limit, 2)
    for _ in range(2):  # the same again, once all have ended
        jobs = [limited(store, each)[0] for each in (SHOP, RENAMED, SHOP, RENAMED)]

        assert len(settle_waits(store)) == 2
        for left in (2, 0):
            leases = began(store, worker)
            assert len(leases) == 2
            for lease in leases:
                finish(store, lease, Completed())
            assert len(settle_waits(store)) == left
        assert {state(store, each) for each in jobs} == {State.COMPLETED}


@pytest.mark.parametrize("asked_last", [True, False])
def test_two_templates_that_give_one_key_count_each_others_places(asked_last: bool, store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 10)
    declare(store, RENAMED.limit, 2)
    urgent = [] if asked_last else limited(store, SHOP, number=3, priority=1)
    others = limited(store, RENAMED, number=3)
    urgent = limited(store, SHOP, number=3, priority=1) if asked_last else urgent

    admitted = settle_waits(store)

    assert {*urgent[:2]} <= {*admitted}
    assert not {*others} & {*admitted}


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_template_that_was_renamed_limits_those_that_have_its_new_name(first: int, store: Store) -> None:
    """Nothing limits jobs with the former name. All run in the end, those with the new name at most two at a time."""
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (running,) = limited(store, SHOP)
    assert settle_waits(store) == [running]
    later = [limited(store, RENAMED)[0] for _ in range(first)]
    former = limited(store, SHOP, number=3)
    later += [limited(store, RENAMED)[0] for _ in range(4 - first)]
    declare(store, RENAMED.limit, 2)
    declare(store, SHOP.limit, 1, retired_at=store.now())

    for _ in range(8):
        settle_waits(store)
        assert [state(store, each) for each in later].count(State.QUEUED) <= 2
        for lease in began(store, worker):
            finish(store, lease, Completed())
    assert {state(store, each) for each in (running, *former, *later)} == {State.COMPLETED}


def test_a_rate_that_goes_on_under_another_name_goes_on(store: Store, world: World) -> None:
    """When the last job under the former name ends, the time of the next token must not be forgotten."""
    worker = start(store)
    declare(store, SHOP.limit, 1)
    (running,) = limited(store, SHOP)
    assert settle_waits(store) == [running]
    (lease,) = began(store, worker)
    declare(store, RENAMED.limit, rate=Rate(2, 60.0, 1))
    declare(store, SHOP.limit, 1, retired_at=store.now())
    jobs = limited(store, RENAMED, number=2)
    assert settle_waits(store) == jobs[:1]
    began(store, worker)
    settle_waits(store)
    finish(store, lease, Completed())
    settle_waits(store)

    world.advance(61.0)
    start(store)
    assert settle_waits(store) == jobs[1:]
