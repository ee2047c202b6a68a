"""Roll-ups: what a duty keeps of the jobs that ended, for the charts of six hours and seven days."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.core.lifecycle import Completed, Failed, State
from tenure.core.spread import Spread, add, quantile
from tenure.maintenance import rollups
from tenure.maintenance.rollups import HOUR, OTHERS, SLOT, RollUp, RollUps, collect, read
from tenure.ports import Store

from .factories import World, bring, claim_one, finish, put, start


def to_a_slot(world: World, store: Store, seconds: int = SLOT) -> int:
    """Wait until a slot, or an hour, begins. Returns its time."""
    now = store.now().timestamp()
    world.advance(seconds - now % seconds)
    return round(store.now().timestamp())


def all_turns(duty: RollUps) -> int:
    turns = 1
    while duty.turn().more:
        turns += 1
    return turns


def known(found: list[RollUp]) -> list[RollUp]:
    return [each for each in found if each.tasks]


def test_a_slot_says_what_ended_by_task_and_how_fast_it_was(world: World) -> None:
    store = world.store()
    at = to_a_slot(world, store)
    worker = start(store, lease=10_000.0)
    for wait, run in ((1, 10), (2, 20)):
        put(store, task="mail")
        world.advance(wait)
        lease = claim_one(store, worker)
        world.advance(run)
        finish(store, lease, Completed())
    put(store, task="bill")
    finish(store, claim_one(store, worker), Failed("no", final=True))
    to_a_slot(world, store)
    world.advance(10)

    RollUps(store).turn()

    slot = known(read(store, store.now(), hours=6))[-1]
    assert (slot.at, slot.seconds) == (at, SLOT)
    assert slot.tasks is not None
    mail, bill = slot.tasks["mail"], slot.tasks["bill"]
    assert (mail.completed, mail.dead, mail.stumbled, bill.dead, bill.stumbled) == (2, 0, 0, 1, 1)
    assert [quantile(mail.waits, share) for share in (0.5, 1.0)] == [
        pytest.approx(1, rel=0.06),
        pytest.approx(2, rel=0.06),
    ]
    assert [quantile(mail.runs, share) for share in (0.5, 1.0)] == [
        pytest.approx(10, rel=0.06),
        pytest.approx(20, rel=0.06),
    ]
    assert (slot.total.ended, bill.waits, bill.runs) == (3, {}, {})


def test_a_slot_is_rolled_up_once_by_whoever_is_first_and_only_when_it_has_passed(world: World) -> None:
    store = world.store()
    at = to_a_slot(world, store)
    bring(store, State.COMPLETED, task="mail")
    world.advance(SLOT - 1)
    all_turns(RollUps(store))
    assert [each.at for each in known(read(store, store.now(), hours=6))] == [at], "in progress, and so not stored"
    assert not [text for text in store.notes("rollup:").values() if "mail" in text]

    world.advance(10)
    first, second = RollUps(store), RollUps(world.store())
    first.turn()
    before = store.notes("rollup:")
    turn = second.turn()
    assert store.notes("rollup:") == before
    assert len([text for text in before.values() if "mail" in text]) == 1
    assert turn.next_due is not None
    assert 0 < turn.next_due <= SLOT, "nobody looks again before the next slot has passed"


def test_what_ended_while_no_supervisor_looked_is_rolled_up_later_and_hours_from_their_slots(world: World) -> None:
    store = world.store()
    at = to_a_slot(world, store, HOUR)
    for _ in range(3):
        bring(store, State.COMPLETED, task="mail")
        world.advance(20 * 60)
    world.advance(30)
    duty = RollUps(store)

    assert all_turns(duty) == 6 * HOUR // SLOT + 5, "six hours back, one roll-up a turn"

    slots = [each for each in read(store, store.now(), hours=6) if each.total.ended]
    assert [(each.at - at) // 60 for each in slots] == [0, 20, 40]
    (hour,) = [each for each in read(store, store.now(), hours=168) if each.total.ended]
    assert (hour.at, hour.seconds, hour.total.completed) == (at, HOUR, 3)
    assert all_turns(duty) == 1


def test_an_hour_in_which_nothing_ended_is_recorded_once_all_its_slots_are(world: World) -> None:
    store = world.store()
    at = to_a_slot(world, store, HOUR)
    world.advance(10)
    duty = RollUps(store)
    for _ in range(HOUR // SLOT + 1):
        all_turns(duty)
        world.advance(SLOT)

    hours = {each.at: each.tasks for each in read(store, store.now(), hours=168)}

    assert (hours[at], hours[at - HOUR]) == ({}, None)


def test_no_hour_is_recorded_from_a_part_of_its_slots(world: World) -> None:
    store = world.store()
    at = to_a_slot(world, store, HOUR)
    for _ in range(12):
        bring(store, State.COMPLETED, task="mail")
        world.advance(SLOT)
    world.advance(5.5 * HOUR)

    all_turns(RollUps(store))

    assert {each.at: each.tasks for each in read(store, store.now(), hours=168)}[at] is None


def test_the_reads_have_a_place_for_each_slot_and_say_which_ones_nobody_recorded(world: World) -> None:
    store = world.store()
    at = to_a_slot(world, store, HOUR)
    world.advance(30)
    RollUps(store).turn()
    six, week = read(store, store.now(), hours=6), read(store, store.now(), hours=168)
    assert (len(six), six[-1].at, six[0].at) == (72, at, at - 6 * HOUR + SLOT)
    assert (len(week), week[-1].at, week[0].at) == (168, at, at - 167 * HOUR)
    assert [each.tasks for each in six[-3:]] == [None, {}, {}], "the last one has passed without a job"


def test_many_jobs_are_counted_and_a_part_of_them_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "_SAMPLE", 2)
    store = world.store()
    at = to_a_slot(world, store)
    for _ in range(9):
        bring(store, State.COMPLETED, task="mail")
    world.advance(SLOT / 2)
    for _ in range(3):
        bring(store, State.COMPLETED, task="bill")

    found = collect(store, at, SLOT)

    assert {task: each.completed for task, each in (found.tasks or {}).items()} == {"mail": 9, "bill": 3}
    assert found.total.waits == {min(found.total.waits): 12.0}


def test_the_tasks_beyond_the_first_fifty_are_counted_together() -> None:
    many = RollUp(0, SLOT, {f"task-{n}": rollups.Figures(completed=n + 1) for n in range(60)})
    found = rollups.joined([many], 0, SLOT).tasks
    assert found is not None
    assert (len(found), found[OTHERS].completed) == (50, sum(range(1, 12)))
    again = rollups.joined([many, many], 0, SLOT).tasks
    assert again is not None
    assert again["task-59"].completed == 120


def test_roll_ups_expire(world: World) -> None:
    store = world.store()
    bring(store, State.COMPLETED)
    to_a_slot(world, store, HOUR)
    world.advance(30)
    all_turns(RollUps(store))
    assert known(read(store, store.now(), hours=6))
    world.advance(timedelta(days=8, hours=2).total_seconds())
    store.forget(keep=1.0)
    assert not known(read(store, store.now(), hours=168))
    assert store.notes("rollup:") == {}


@pytest.mark.parametrize("value", [0.0, 0.0007, 0.02, 0.9, 1.0, 7.5, 3600.0, 1e6])
def test_a_quantile_is_near_its_value(value: float) -> None:
    spread: Spread = {}
    add(spread, value)
    assert quantile(spread, 0.5) == pytest.approx(max(value, 0.0005), rel=0.06)
    assert quantile({}, 0.5) is None
