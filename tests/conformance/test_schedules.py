"""Schedules as a store keeps them: a change lands, with its ticks and jobs, if the schedule is still as it was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest

from conformance.factories import (
    DAY,
    World,
    assert_sound,
    begin,
    bring,
    claim_one,
    draft,
    everything,
    finish,
    look,
    made,
    put,
    race,
    running,
    schedule,
    seen_by_a_schedule,
    standing,
    start,
    tick,
)
from tenure.core.lifecycle import Completed, Failed, Lease, State
from tenure.errors import BadData
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Landed, Store
from tenure.ports.schedules import REPLACED, Change, Former, Schedule, Tick
from tenure.schedules.plan import Refused
from tenure.schedules.timetable import Timetable

NUL, SURROGATE = "a\x00b", "a\ud800b"
bad_text = pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["nul", "surrogate"])


def second(number: float) -> timedelta:
    return timedelta(seconds=number)


def full(store: Store, name: str) -> Schedule:
    """A schedule with a value in every field."""
    now = store.now()
    return Schedule(
        name=name,
        rule="*/5 6 * * mon-fri",
        tz="Europe/Paris",
        dst="run_once",
        kind="task",
        source="shop.jobs",
        release="2027.1",
        released_at=now,
        job=draft(id="", queue="mail", priority=-7, payload='{"to":"Zoë ✉"}', unique="one", timeout=1.5, expires=60.0),
        overlap="replace",
        catch_up="all",
        catch_up_window=3_600.5,
        catch_up_max=7,
        expires=90.0,
        jitter=2.5,
        start=now - second(10),
        end=now + second(10),
        pause_after=3,
        alert_after=4,
        grace=12.5,
        too_long=600.0,
        since=now,
        reset_at=now - second(7),
        next_tick=now + second(1.5),
        last_tick=now - second(1),
        due_at=now + second(2.25),
        pending_tick=now - second(2),
        catching_up_to=now - second(3),
        paused_at=now - second(4),
        paused_why="“until Monday”",
        retired_at=now - second(5),
        formerly=(Former("mail", now - second(70)), Former("letters", now - second(60))),
        last_run_at=now - second(6),
        last_duration_ms=1_234,
        last_status="failure",
        last_error="Fehler: ß\n\tat line 3",
        failure_count=2,
    )


# ── what is written is read again ──


def test_every_field_of_a_schedule_comes_back(store: Store) -> None:
    written = full(store, "every-field")

    assert store.change([Change(schedule=written)]) == [True]

    assert standing(store, "every-field").schedule == written.but(rev=1)


@pytest.mark.parametrize("rule", ["0 6 15W * *", "0 6 L-3 * *", "0 6 * * 1 | 0 7 * * 2", "0 6 * * * except 2026-12-25"])
def test_a_rule_that_older_releases_cannot_read_is_kept(rule: str, store: Store) -> None:
    new = made(store, rule=rule)

    assert (new.rule, new.unread) == (rule, "")


@pytest.mark.parametrize("name", ["a", "billing:daily/report", "Zoë's ☃ \n {tag}", "%_*?[a]", "x" * 200])
def test_a_schedule_may_have_any_name(name: str, store: Store) -> None:
    made(store, name=name)
    begin(store, name)

    assert [each.schedule.name for each in store.schedules()] == [name]
    assert [each.schedule for each in store.ticks(name)] == [name]
    assert store.change([Change(schedule=standing(store, name).schedule, delete=True)]) == [True]
    assert store.schedules() == []


def test_every_field_of_a_tick_comes_back(store: Store) -> None:
    stands = made(store)
    now = store.now()
    written = Tick(
        schedule=stands.name,
        tick=now - second(0.5),
        cause="backfill",
        status="failure",
        why="Fehler: ß ✗",
        until=now - second(0.25),
        count=315_532_800,
        job_id="3f333df6-90a4-4fda-8dd3-9485d27cee36",
        decided_at=now,
        started_at=now - second(0.125),
        ended_at=now + second(0.75),
        host="mail-1.example",
        output="Ω" * 40_000 + "\r\n\x1b[31mlast line",
    )

    assert store.change([Change(schedule=stands, ticks=(written,))]) == [True]

    assert store.ticks(stands.name) == [written]


def test_schedules_come_in_order_of_their_names_and_those_asked_for_only(store: Store) -> None:
    for name in ("b", "B", "a", "é", "c"):
        made(store, name=name)

    assert [each.schedule.name for each in store.schedules()] == ["B", "a", "b", "c", "é"]
    assert [each.schedule.name for each in store.schedules(["c", "nobody", "a", "a"])] == ["a", "c"]
    assert store.schedules([]) == []


# ── compare ──


def test_a_change_raises_the_revision_by_one(store: Store) -> None:
    stands = made(store)

    assert stands.rev == 1
    assert store.change([Change(schedule=stands.but(paused_why="x"))]) == [True]
    assert standing(store, stands.name).schedule == stands.but(paused_why="x", rev=2)


@pytest.mark.parametrize("rev", [0, 1, 3], ids=["made again", "an earlier reading", "a reading never made"])
def test_a_change_from_another_reading_changes_nothing(rev: int, store: Store) -> None:
    stands = made(store)
    assert store.change([Change(schedule=stands.but(jitter=1.0))]) == [True]
    victim = put(store)
    before = standing(store, stands.name)
    job = draft()
    stale = Change(
        schedule=stands.but(rev=rev, jitter=9.0),
        ticks=(tick(stands, store.now(), job_id=job.id),),
        drafts=(job,),
        cancel=(victim,),
    )

    assert store.change([stale]) == [False]
    assert store.change([replace(stale, delete=True)]) == [False]

    assert standing(store, stands.name) == before
    assert store.ticks(stands.name) == []
    assert store.get(job.id) is None
    assert look(store, victim).state is State.QUEUED


@pytest.mark.parametrize("rev", [1, 7])
def test_a_change_of_a_schedule_that_is_gone_makes_none(rev: int, store: Store) -> None:
    job = draft()
    gone = schedule(rev=rev)

    assert store.change([Change(schedule=gone, ticks=(tick(gone, store.now()),), drafts=(job,))]) == [False]

    assert store.schedules() == []
    assert store.ticks(gone.name) == []
    assert store.get(job.id) is None


def test_each_change_of_a_batch_is_answered_by_itself(store: Store) -> None:
    here, moved = made(store), made(store)
    assert store.change([Change(schedule=moved)]) == [True]
    new, jobs = schedule(), [draft() for _ in range(4)]

    answers = store.change(
        [
            Change(schedule=moved, drafts=(jobs[0],)),
            Change(schedule=here, drafts=(jobs[1],)),
            Change(schedule=here, drafts=(jobs[2],)),
            Change(schedule=new, drafts=(jobs[3],)),
        ]
    )

    assert answers == [False, True, False, True]
    assert [store.get(job.id) is not None for job in jobs] == answers
    assert [standing(store, each.name).schedule.rev for each in (moved, here, new)] == [2, 2, 1]


def test_two_changes_in_one_batch_may_follow_each_other(store: Store) -> None:
    new = schedule()

    assert store.change([Change(schedule=new), Change(schedule=new.but(rev=1, jitter=2.0))]) == [True, True]

    assert standing(store, new.name).schedule == new.but(rev=2, jitter=2.0)


def test_no_changes_are_no_answers(store: Store) -> None:
    assert store.change([]) == []


@pytest.mark.parametrize("there", [True, False], ids=["a schedule that is there", "one that is not"])
def test_of_changes_from_one_reading_exactly_one_lands(there: bool, world: World) -> None:
    doors = [world.store() for _ in range(4)]
    for _ in range(5):
        stands = made(doors[0]) if there else schedule()
        jobs = [draft() for _ in doors]
        at = doors[0].now()
        changes = [
            Change(schedule=stands.but(jitter=float(n)), ticks=(tick(stands, at, job_id=job.id),), drafts=(job,))
            for n, job in enumerate(jobs)
        ]

        answers = race(*(partial(door.change, [change]) for door, change in zip(doors, changes, strict=True)))

        (winner,) = [n for n, answer in enumerate(answers) if answer == [True]]
        assert standing(doors[0], stands.name).schedule.jitter == winner
        assert [doors[0].get(job.id) is not None for job in jobs] == [n == winner for n in range(len(jobs))]
        assert [each.job_id for each in doors[0].ticks(stands.name)] == [jobs[winner].id]


def test_batches_that_cross_each_other_do_not_lock_each_other_out(world: World) -> None:
    here, there = world.store(), world.store()
    for _ in range(5):
        batch = [Change(schedule=made(here)) for _ in range(20)]

        forth, back = race(partial(here.change, batch), partial(there.change, batch[::-1]))

        assert [one ^ other for one, other in zip(forth, back[::-1], strict=True)] == [True] * 20


def test_twenty_who_fire_at_once_make_each_tick_one_job(world: World) -> None:
    doors = [world.store() for _ in range(4)]
    tables = [Timetable(door, PollNotifier()) for door in doors]
    for name in ("a", "b", "c"):
        tables[0].put(schedule(name=name, overlap="allow"))
    for _ in range(3):
        world.advance(60)
        race(*(tables[n % len(tables)].fire_due for n in range(20)))
        tables[0].fire_due()

    assert len(everything(doors[0])) == 9
    for name in ("a", "b", "c"):
        ticks = doors[0].ticks(name)
        assert [each.status for each in ticks] == ["open"] * 3
        assert len({each.job_id for each in ticks} & {each.id for each in everything(doors[0])}) == 3


# ── ticks and jobs of a change ──


def test_a_change_lands_with_its_ticks_and_jobs(store: Store) -> None:
    stands, now = made(store), store.now()
    jobs = [draft(queue="mail", priority=3, payload='{"n":1}', expires=60.0, meta='{"schedule":"s"}'), draft(delay=60)]
    ticks = [tick(stands, now + second(n), job_id=job.id) for n, job in enumerate(jobs)]

    assert store.change([Change(schedule=stands, ticks=tuple(ticks), drafts=tuple(jobs))]) == [True]

    first, later = look(store, jobs[0].id), look(store, jobs[1].id)
    assert (first.state, first.queue, first.priority, first.payload) == (State.QUEUED, "mail", 3, '{"n":1}')
    assert first.meta == {"schedule": "s"}
    assert first.expires_at == now + second(60)
    assert later.state is State.SCHEDULED
    runs = standing(store, stands.name).runs
    assert [(run.tick, run.locked_until) for run in runs] == [(each, None) for each in ticks]
    seen = partial(seen_by_a_schedule, store)
    assert [seen(run.job) for run in runs if run.job] == [seen(first), seen(later)]
    assert_sound(store)


def test_a_job_of_a_change_is_claimed_like_any_other(store: Store) -> None:
    job_id = begin(store, made(store).name)

    lease = claim_one(store, start(store))

    assert lease.job_id == job_id
    assert finish(store, lease, Completed('"done"')) is State.COMPLETED


def test_a_tick_follows_the_job_that_has_its_id_already(store: Store) -> None:
    stands, kept = made(store), bring(store, State.COMPLETED).job_id
    change = Change(
        schedule=stands, ticks=(tick(stands, store.now(), job_id=kept),), drafts=(draft(id=kept, payload='"new"'),)
    )

    assert store.change([change]) == [True]

    assert look(store, kept).state is State.COMPLETED
    assert look(store, kept).payload == "{}"
    (run,) = standing(store, stands.name).runs
    assert (run.tick.job_id, run.live) == (kept, False)
    assert len(everything(store)) == 1


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.PROCESSING])
def test_a_tick_follows_the_live_job_that_holds_its_unique_key(state: State, store: Store) -> None:
    stands, holder = made(store), bring(store, state, unique="one").job_id
    job, at = draft(unique="one"), store.now()
    other = draft(unique="two")
    ticks = (tick(stands, at, job_id=job.id), tick(stands, at + second(1), job_id=other.id))

    assert store.change([Change(schedule=stands, ticks=ticks, drafts=(job, other))]) == [True]

    assert [run.tick.job_id for run in standing(store, stands.name).runs] == [holder, other.id]
    assert store.get(job.id) is None


def test_a_key_whose_job_has_ended_is_free_for_a_tick(store: Store) -> None:
    stands = made(store)
    bring(store, State.DEAD, unique="one")

    job_id = begin(store, stands.name, unique="one")

    assert [run.tick.job_id for run in standing(store, stands.name).runs] == [job_id]
    assert look(store, job_id).state is State.QUEUED


def test_two_drafts_of_one_change_with_one_key_are_one_job(store: Store) -> None:
    stands, at = made(store), store.now()
    first, second_ = draft(unique="one"), draft(unique="one")
    ticks = (tick(stands, at, job_id=first.id), tick(stands, at + second(1), job_id=second_.id))

    assert store.change([Change(schedule=stands, ticks=ticks, drafts=(first, second_))]) == [True]

    assert [each.job_id for each in store.ticks(stands.name)] == [first.id, first.id]
    assert store.get(second_.id) is None


def test_a_tick_that_names_no_draft_keeps_the_job_it_names(store: Store) -> None:
    stands = made(store)
    written = tick(stands, store.now(), status="success", job_id="3f333df6-90a4-4fda-8dd3-9485d27cee36")

    assert store.change([Change(schedule=stands, ticks=(written,), drafts=(draft(),))]) == [True]

    assert store.ticks(stands.name) == [written]


def test_a_change_asks_the_jobs_it_replaces_to_stop(store: Store) -> None:
    stands = made(store)
    going, ended, waiting = running(store), bring(store, State.COMPLETED), put(store)
    gone = "00000000-0000-0000-0000-0000000fffff"

    assert store.change([Change(schedule=stands, cancel=(going.job_id, waiting, ended.job_id, gone))]) == [True]

    assert (look(store, going.job_id).state, look(store, going.job_id).cancel_reason) == (State.PROCESSING, REPLACED)
    assert [owned.cancel_reason for owned in store.owned(going.worker_id)] == [REPLACED]
    assert (look(store, waiting).state, look(store, waiting).error) == (State.CANCELLED, REPLACED)
    assert look(store, ended.job_id).state is State.COMPLETED
    assert look(store, ended.job_id).cancel_reason is None
    assert_sound(store)


def test_a_reason_to_stop_that_was_given_first_stands(store: Store) -> None:
    stands, going = made(store), running(store)
    store.cancel([going.job_id], "an operator said so")

    store.change([Change(schedule=stands, cancel=(going.job_id,))])

    assert look(store, going.job_id).cancel_reason == "an operator said so"


def test_a_schedule_may_run_many_ticks_in_one_change(store: Store) -> None:
    stands, at = made(store), store.now()
    jobs = [draft() for _ in range(1_200)]
    ticks = tuple(tick(stands, at + second(n), job_id=job.id) for n, job in enumerate(jobs))

    assert store.change([Change(schedule=stands, ticks=ticks, drafts=tuple(jobs))]) == [True]

    assert store.counts()[State.QUEUED] == 1_200
    assert [run.tick.job_id for run in standing(store, stands.name).runs] == [job.id for job in jobs]


# ── refused values ──


def spoilt(store: Store, where: str, bad: str) -> Change:
    new, at = schedule(), store.now()
    changes: dict[str, Change] = {
        "name": Change(schedule=new.but(name=bad)),
        "paused_why": Change(schedule=new.but(paused_why=bad)),
        "last_error": Change(schedule=new.but(last_error=bad)),
        "job": Change(schedule=new.but(job=draft(payload=bad))),
        "why": Change(schedule=new, ticks=(tick(new, at), tick(new, at + second(1), why=bad))),
        "output": Change(schedule=new, ticks=(tick(new, at, output=bad),)),
        "payload": Change(schedule=new, ticks=(tick(new, at),), drafts=(draft(), draft(payload=bad))),
        "meta": Change(schedule=new, drafts=(draft(meta=bad),)),
    }
    return changes[where]


@bad_text
@pytest.mark.parametrize("where", ["name", "paused_why", "last_error", "job", "why", "output", "payload", "meta"])
def test_a_bad_value_refuses_the_whole_batch(where: str, bad: str, store: Store) -> None:
    stands, job, good = made(store), draft(), schedule()
    at = store.now()
    fine = [Change(schedule=stands, ticks=(tick(stands, at, job_id=job.id),), drafts=(job,)), Change(schedule=good)]

    with pytest.raises(BadData):
        store.change([fine[0], spoilt(store, where, bad), fine[1]])

    assert [each.schedule for each in store.schedules()] == [stands]
    assert store.ticks(stands.name) == []
    assert everything(store) == []
    assert store.change(fine) == [True, True]


def test_a_text_about_a_nul_is_none(store: Store) -> None:
    about = "it printed \\u0000, \\\\u0000 and \\ud800"
    stands = made(store, name=about, last_error=about, job=draft(id="", payload=about, meta='{"a":"\\\\u0000"}'))
    written = tick(stands, store.now(), status="failure", why=about, output=about)

    assert store.change([Change(schedule=stands, ticks=(written,), drafts=(draft(payload=about),))]) == [True]

    assert standing(store, about).schedule == stands.but(rev=2)
    assert store.ticks(about) == [written]


# ── due ──


def test_due_are_those_whose_time_has_come_earliest_first(world: World) -> None:
    store = world.store()
    now = store.now()
    for name, at in (("late", 2.0), ("early", 1.0), ("later", 60.0), ("never", None)):
        made(store, name=name, due_at=None if at is None else now + second(at))

    assert store.due().next_due == pytest.approx(1.0)
    assert store.due().standings == []
    world.advance(2)
    due = store.due()

    assert due.now == now + second(2)
    assert [each.schedule.name for each in due.standings] == ["early", "late"]
    assert due.next_due == pytest.approx(58.0)
    assert store.due() == due, "to look changes nothing"


def test_due_without_any_schedule_waits_for_none(store: Store) -> None:
    due = store.due()

    assert (due.now, due.standings, due.next_due) == (store.now(), [], None)


def test_due_is_limited_and_its_rest_comes_next(store: Store) -> None:
    now = store.now()
    names = [f"{number:02}" for number in range(7)]
    for number, name in enumerate(names):
        made(store, name=name, due_at=now - second(60 - number))
    seen: list[str] = []
    while standings := store.due(limit=3).standings:
        assert len(standings) <= 3
        seen += [each.schedule.name for each in standings]
        store.change([Change(schedule=each.schedule.but(due_at=None)) for each in standings])

    assert seen == names


def test_an_idle_schedule_is_not_due(world: World) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    for name in ("paused", "retired", "awake"):
        table.put(schedule(name=name))
    table.pause("paused")
    table.declare("app", "1", [schedule(name="retired")])
    world.advance(1)
    table.declare("app", "2", [])
    world.advance(120)

    assert [each.schedule.name for each in store.due().standings] == ["awake"]


def test_a_moved_due_time_counts_and_the_old_one_does_not(world: World) -> None:
    store = world.store()
    stands = made(store, due_at=store.now() + second(10))
    store.change([Change(schedule=stands.but(due_at=store.now() + second(100)))])
    world.advance(50)

    assert store.due().standings == []
    assert store.due().next_due == pytest.approx(50)


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_a_schedule_whose_run_has_ended_is_due(state: State, store: Store) -> None:
    stands = made(store)
    job_id = begin(store, stands.name)
    assert store.due().standings == []
    if state is State.CANCELLED:
        store.cancel([job_id], "not wanted")
    else:
        finish(
            store, claim_one(store, start(store)), Completed() if state is State.COMPLETED else Failed("x", final=True)
        )

    (due,) = store.due().standings

    (run,) = due.runs
    assert run.job is not None
    assert seen_by_a_schedule(store, run.job) == seen_by_a_schedule(store, look(store, job_id))
    assert run.job.state is state
    assert not run.live


def test_a_schedule_whose_job_was_deleted_is_due(store: Store) -> None:
    stands = made(store)
    job_id = begin(store, stands.name)
    store.delete([job_id])

    (due,) = store.due().standings

    assert [(run.tick.job_id, run.job) for run in due.runs] == [(job_id, None)]


def test_a_schedule_whose_job_was_pruned_is_due(world: World) -> None:
    store = world.store()
    stands = made(store)
    begin(store, stands.name)
    finish(store, claim_one(store, start(store)), Completed())
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 1

    (due,) = store.due().standings

    assert [run.job for run in due.runs] == [None]


def test_a_run_that_is_written_down_is_due_no_more(store: Store) -> None:
    stands = made(store)
    begin(store, stands.name)
    finish(store, claim_one(store, start(store)), Completed())
    (due,) = store.due().standings
    (run,) = due.runs

    store.change([Change(schedule=due.schedule, ticks=(replace(run.tick, status="success"),))])

    assert store.due().standings == []
    assert standing(store, stands.name).runs == ()


def test_a_due_schedule_comes_once_with_all_its_open_runs(store: Store) -> None:
    now = store.now()
    stands = made(store, due_at=now)
    first = begin(store, stands.name, now - second(120))
    middle = begin(store, stands.name, now - second(60))
    last = begin(store, stands.name, now)
    store.cancel([middle], "x")

    (due,) = store.due().standings

    assert [run.tick.job_id for run in due.runs] == [first, middle, last]
    assert [run.live for run in due.runs] == [True, False, True]


def test_a_run_tells_until_when_its_owners_lease_holds(world: World) -> None:
    store = world.store()
    stands, worker = made(store), start(store, lease=30.0)
    begin(store, stands.name)
    assert [run.locked_until for run in standing(store, stands.name).runs] == [None]
    claim_one(store, worker)
    world.advance(10)
    store.renew([worker])

    (run,) = standing(store, stands.name).runs

    assert run.locked_until == store.now() + second(30)


def test_a_run_that_waits_to_retry_is_live_and_locked_by_nobody(store: Store) -> None:
    stands = made(store)
    begin(store, stands.name)
    finish(store, claim_one(store, start(store)), Failed("not yet", retry_in=60))

    (run,) = standing(store, stands.name).runs

    assert run.live
    assert run.locked_until is None
    assert store.due().standings == []


# ── ticks ──


def test_ticks_come_newest_first_and_page_by_page(store: Store) -> None:
    stands, at = made(store), store.now()
    written = [tick(stands, at + second(n), status="success") for n in (3, 1, 2, 5, 4)]
    other = made(store)
    store.change([Change(schedule=stands, ticks=tuple(written)), Change(schedule=other, ticks=(tick(other, at),))])

    newest = store.ticks(stands.name, limit=2)
    rest = store.ticks(stands.name, before=newest[-1].tick)

    assert [each.tick for each in newest + rest] == [at + second(n) for n in (5, 4, 3, 2, 1)]
    assert store.ticks(stands.name, before=at + second(1)) == []
    assert store.ticks("nobody") == []


def test_ticks_a_millisecond_apart_are_two(store: Store) -> None:
    stands, at = made(store), store.now()
    ticks = (tick(stands, at + second(0.001), status="success"), tick(stands, at, status="failure"))

    store.change([Change(schedule=stands, ticks=ticks)])

    assert [each.status for each in store.ticks(stands.name)] == ["success", "failure"]
    assert [each.status for each in store.ticks(stands.name, before=at + second(0.001))] == ["failure"]


def test_ticks_long_ago_and_far_ahead_keep_their_order(store: Store) -> None:
    stands = made(store)
    moments = [datetime(year, 3, 1, tzinfo=UTC) for year in (1969, 1970, 2001, 2262, 9000)]
    store.change([Change(schedule=stands, ticks=tuple(tick(stands, at, status="missed") for at in moments))])

    assert [each.tick for each in store.ticks(stands.name)] == moments[::-1]


def test_the_same_tick_and_cause_is_replaced_and_another_cause_stands_beside_it(store: Store) -> None:
    stands, at = made(store), store.now()
    first = begin(store, stands.name, at)
    stands = standing(store, stands.name).schedule
    again = tick(stands, at, status="success", job_id=first, why="", ended_at=at)
    beside = [tick(stands, at, cause=cause, status="skipped", why=cause) for cause in ("trigger", "backfill")]

    assert store.change([Change(schedule=stands, ticks=(again, *beside))]) == [True]

    assert store.ticks(stands.name) == [beside[0], again, beside[1]]
    assert standing(store, stands.name).runs == ()


def test_a_run_of_missed_ticks_is_kept_as_one(store: Store) -> None:
    stands, at = made(store), store.now()
    missed = tick(stands, at - timedelta(days=3653), status="missed", until=at, count=315_619_200, why="down")

    store.change([Change(schedule=stands, ticks=(missed,))])

    assert store.ticks(stands.name) == [missed]


# ── replayed, forgotten, deleted ──


def closed(store: Store, job_id: str, name: str, **options: Any) -> None:
    """Record that the run of this job has ended."""
    stands = standing(store, name)
    ticks = [replace(run.tick, **options) for run in stands.runs if run.tick.job_id == job_id]
    assert len(ticks) == 1
    assert store.change([Change(schedule=stands.schedule, ticks=tuple(ticks))]) == [True]


def test_a_replayed_run_is_open_again(store: Store) -> None:
    stands, at = made(store), store.now()
    job_id = begin(store, stands.name, at)
    finish(store, claim_one(store, start(store)), Failed("for good", final=True))
    closed(store, job_id, stands.name, status="failure", why="for good", started_at=at, ended_at=at, output="tail")

    assert store.replay([job_id]) == {job_id: Landed(State.QUEUED)}

    (run,) = standing(store, stands.name).runs
    assert run.live
    assert (run.tick.status, run.tick.why, run.tick.started_at, run.tick.ended_at) == ("open", "", None, None)
    assert (run.tick.tick, run.tick.output) == (at, "tail")
    assert store.ticks(stands.name) == [run.tick]
    assert store.due().standings == []
    finish(store, claim_one(store, start(store)), Completed())
    assert [each.schedule.name for each in store.due().standings] == [stands.name]


def test_who_saw_a_run_ended_writes_nothing_once_its_job_is_replayed(store: Store) -> None:
    stands, at = made(store), store.now()
    job_id = begin(store, stands.name, at)
    finish(store, claim_one(store, start(store)), Failed("for good", final=True))
    (seen,) = store.due().standings
    store.replay([job_id])

    stale = Change(schedule=seen.schedule, ticks=(replace(seen.runs[0].tick, status="failure"),))
    assert store.change([stale]) == [False]

    (run,) = standing(store, stands.name).runs
    assert run.live
    assert run.tick.status == "open"


def test_the_replay_of_a_job_that_was_no_run_opens_nothing(store: Store) -> None:
    stands = made(store)
    job_id = begin(store, stands.name)
    finish(store, claim_one(store, start(store)), Completed())
    closed(store, job_id, stands.name, status="success")

    store.replay([bring(store, State.DEAD).job_id])

    assert standing(store, stands.name).runs == ()


def test_a_replay_that_is_refused_opens_nothing(store: Store) -> None:
    stands = made(store)
    job_id = begin(store, stands.name, unique="one")
    finish(store, claim_one(store, start(store)), Completed())
    closed(store, job_id, stands.name, status="success")
    put(store, unique="one")

    assert not isinstance(store.replay([job_id])[job_id], Landed)

    assert standing(store, stands.name).runs == ()
    assert [each.status for each in store.ticks(stands.name)] == ["success"]


def test_forget_drops_what_was_decided_long_ago_and_keeps_what_is_open(world: World) -> None:
    store = world.store()
    stands = made(store)
    begin(store, stands.name)
    old = [tick(stands, store.now() - second(n), status="skipped", decided_at=store.now()) for n in (1, 2, 3)]
    store.change([Change(schedule=standing(store, stands.name).schedule, ticks=tuple(old))])
    world.advance(100)
    young = tick(stands, store.now() - second(7200), status="missed", decided_at=store.now())
    store.change([Change(schedule=standing(store, stands.name).schedule, ticks=(young,))])

    assert store.forget(keep=101) == 0
    assert [store.forget(keep=99, limit=2) for _ in range(3)] == [2, 1, 0]

    assert [each.status for each in store.ticks(stands.name)] == ["open", "missed"]
    assert len(standing(store, stands.name).runs) == 1


def test_a_run_that_was_closed_and_opened_by_a_replay_is_not_forgotten(world: World) -> None:
    store = world.store()
    stands = made(store)
    job_id = begin(store, stands.name)
    finish(store, claim_one(store, start(store)), Completed())
    closed(store, job_id, stands.name, status="success")
    store.replay([job_id])
    world.advance(1000)

    assert store.forget(keep=10) == 0
    assert [each.status for each in store.ticks(stands.name)] == ["open"]


def test_a_deleted_schedule_takes_its_history_and_leaves_its_jobs(store: Store) -> None:
    stands, other = made(store), made(store)
    ended = begin(store, stands.name, store.now() - second(60))
    finish(store, claim_one(store, start(store)), Completed())
    open_ = begin(store, stands.name)
    kept = begin(store, other.name)

    assert store.change([Change(schedule=standing(store, stands.name).schedule, delete=True)]) == [True]

    assert [each.schedule.name for each in store.schedules()] == [other.name]
    assert store.ticks(stands.name) == []
    assert store.due().standings == []
    assert [look(store, job_id).state for job_id in (ended, open_, kept)] == [
        State.COMPLETED,
        State.QUEUED,
        State.QUEUED,
    ]
    assert [each.job_id for each in store.ticks(other.name)] == [kept]


def test_a_schedule_that_is_made_again_has_no_history(store: Store) -> None:
    stands = made(store, due_at=store.now())
    begin(store, stands.name)
    store.change([Change(schedule=standing(store, stands.name).schedule, delete=True)])

    again = made(store, name=stands.name)

    assert again.rev == 1
    assert standing(store, stands.name).runs == ()
    assert store.ticks(stands.name) == []
    assert store.due().standings == []


def test_the_job_of_a_deleted_schedule_is_replayed_as_a_plain_one(store: Store) -> None:
    stands = made(store)
    job_id = begin(store, stands.name)
    finish(store, claim_one(store, start(store)), Completed())
    store.change([Change(schedule=standing(store, stands.name).schedule, delete=True)])

    assert store.replay([job_id]) == {job_id: Landed(State.QUEUED)}
    assert store.ticks(stands.name) == []


# ── renaming ──


def test_a_schedule_is_renamed_in_one_step_and_its_ticks_stay(store: Store) -> None:
    old = made(store, name="old", due_at=store.now() - second(1))
    job_id = begin(store, "old")
    finish(store, claim_one(store, start(store)), Completed())
    closed(store, job_id, "old", status="success")
    stands = standing(store, "old").schedule
    new = stands.but(name="new", formerly=(Former("old", store.now()),))

    assert store.change([Change(schedule=new, former="old")]) == [True]

    assert [each.schedule for each in store.schedules()] == [new.but(rev=stands.rev + 1)]
    assert [each.schedule.name for each in store.due().standings] == ["new"]
    assert ([each.job_id for each in store.ticks("old")], store.ticks("new")) == ([job_id], [])
    later = begin(store, "new")
    assert [run.tick.job_id for run in standing(store, "new").runs] == [later]
    assert made(store, name="old", rule=old.rule).rev == 1, "the name is free again"


@pytest.mark.parametrize("first", ["new", "third"])
def test_a_rename_lands_only_from_the_rev_that_was_read_and_on_a_free_name(store: Store, first: str) -> None:
    stands, taken = made(store, name="old"), made(store, name="taken")
    new = stands.but(name="new")

    assert store.change([Change(schedule=new.but(rev=stands.rev + 1), former="old")]) == [False]
    assert store.change([Change(schedule=new, former="nobody")]) == [False]
    assert store.change([Change(schedule=stands.but(name="taken"), former="old")]) == [False]
    assert [each.schedule for each in store.schedules()] == [stands, taken]
    third = stands.but(name="third")
    order = [new, third] if first == "new" else [third, new]  # a statement may make its changes in any order
    assert store.change([Change(schedule=each, former="old") for each in order]) == [True, False]
    assert {each.schedule.name for each in store.schedules()} == {first, "taken"}


def test_of_renames_at_one_moment_one_gets_the_name(world: World) -> None:
    """Both to one free name; each to the other's name, which lands for neither; and both away from one name."""
    here, there = world.store(), world.store()

    def renamed(store: Store, of: str, new: str) -> Callable[[], list[bool]]:
        (stands,) = store.schedules([of])
        return partial(store.change, [Change(schedule=stands.schedule.but(name=new), former=of)])

    for n in range(10):
        names = [f"one{n}", f"two{n}"]
        for name in names:
            made(here, name=name)
        both = (renamed(store, name, f"both{n}") for store, name in zip((here, there), names, strict=True))
        assert sorted(race(*both)) == [[False], [True]]
        (left,) = [name for name in names if here.schedules([name])]
        swaps = renamed(here, left, f"both{n}"), renamed(there, f"both{n}", left)
        assert race(*swaps) == [[False], [False]]
        assert sorted(race(renamed(here, left, f"x{n}"), renamed(there, left, f"y{n}"))) == [[False], [True]]


def test_a_run_from_before_a_rename_is_replayed_as_a_plain_job(store: Store) -> None:
    made(store, name="old")
    job_id = begin(store, "old")
    finish(store, claim_one(store, start(store)), Failed("for good", final=True))
    closed(store, job_id, "old", status="failure")
    assert store.change([Change(schedule=standing(store, "old").schedule.but(name="new"), former="old")]) == [True]

    assert store.replay([job_id]) == {job_id: Landed(State.QUEUED)}

    assert [each.status for each in store.ticks("old")] == ["failure"]
    assert standing(store, "new").runs == ()
    finish(store, claim_one(store, start(store)), Completed())
    assert store.due().standings == []


def failed(store: Store, name: str) -> str:
    """A run of this schedule, which has failed; the id of its job."""
    job_id = begin(store, name)
    finish(store, claim_one(store, start(store)), Failed("for good", final=True))
    closed(store, job_id, name, status="failure")
    return job_id


def test_a_run_from_before_a_rename_is_no_run_of_the_schedule_that_has_its_name_now(world: World) -> None:
    """Neither if that was made since then, nor if it was renamed; and the runs of that one are open again."""
    store = world.store()
    table = Timetable(store, PollNotifier())
    made(store, name="other", since=store.now())
    made(store, name="old", since=store.now())
    first = failed(store, "old")
    world.advance(10)
    table.rename("old", "new")
    for taken in ("made", "renamed"):
        world.advance(10)
        if taken == "made":
            made(store, name="old", since=store.now())
        else:
            table.rename("old", "one more")
            table.rename("other", "old")
        rev = standing(store, "old").schedule.rev

        assert store.replay([first]) == {first: Landed(State.QUEUED)}

        assert (standing(store, "old").runs, standing(store, "old").schedule.rev) == ((), rev)
        finish(store, claim_one(store, start(store)), Failed("for good", final=True))
        own = failed(store, "old")
        store.replay([own])
        assert [run.tick.job_id for run in standing(store, "old").runs] == [own]
        finish(store, claim_one(store, start(store)), Completed())
        table.settle(table.all())


def test_the_ticks_of_a_name_that_no_schedule_has_are_deleted_with_it(store: Store) -> None:
    made(store, name="old")
    finish(store, running(store), Completed())
    job_id = begin(store, "old")
    finish(store, claim_one(store, start(store)), Completed())
    closed(store, job_id, "old", status="success")
    store.change([Change(schedule=standing(store, "old").schedule.but(name="new"), former="old")])

    assert store.change([Change(schedule=schedule(name="old"), delete=True)]) == [True]

    assert store.ticks("old") == []
    assert [each.schedule.name for each in store.schedules()] == ["new"]


def ran(store: Store, name: str) -> str:
    """A run of this schedule, which has completed; the id of its job."""
    job_id = begin(store, name)
    finish(store, claim_one(store, start(store)), Completed())
    closed(store, job_id, name, status="success")
    return job_id


def jobs_of(table: Timetable, name: str) -> list[str | None]:
    return [each.job_id for each in table.history(name)]


def test_a_schedule_that_takes_an_old_name_has_its_own_history_and_is_removed_with_that_alone(world: World) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    made(store, name="old")
    first = ran(store, "old")
    table.rename("old", "new")
    world.advance(10)
    made(store, name="old")
    assert jobs_of(table, "old") == []
    second_ = ran(store, "old")
    assert (jobs_of(table, "old"), jobs_of(table, "new")) == ([second_], [first])

    table.remove("old")

    assert ([each.job_id for each in store.ticks("old")], jobs_of(table, "new")) == ([first], [first])
    made(store, name="old")
    assert jobs_of(table, "old") == []
    table.remove("new")
    assert [each.job_id for each in store.ticks("old")] == [first], "a schedule has that name"
    table.remove("old")
    assert store.ticks("old") == []


def test_of_two_schedules_that_had_a_name_each_has_its_own_ticks(world: World) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    ids: dict[str, str] = {}
    for new in ("first", "second"):
        made(store, name="old")
        ids[new] = ran(store, "old")
        world.advance(10)
        table.rename("old", new)
        world.advance(10)

    assert {name: jobs_of(table, name) for name in ids} == {name: [job] for name, job in ids.items()}


def test_a_schedule_that_gets_its_old_name_back_has_each_tick_once(world: World) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    made(store, name="a")
    jobs = [ran(store, "a")]
    for old, new in (("a", "b"), ("b", "a"), ("a", "b")):
        table.rename(old, new)
        world.advance(10)
        jobs.insert(0, ran(store, new))
        assert sorted(filter(None, jobs_of(table, new))) == sorted(jobs)
        assert new not in [each.name for each in table.get(new).schedule.formerly]


def test_open_ticks_and_later_ones_are_deleted_those_of_another_are_kept(world: World) -> None:
    store = world.store()
    made(store, name="old")
    first = ran(store, "old")
    until = store.now()
    world.advance(10)
    ran(store, "old")
    begin(store, "old")

    assert store.change([Change(schedule=standing(store, "old").schedule, delete=True, keep_until=until)]) == [True]

    assert [each.job_id for each in store.ticks("old")] == [first]
    assert store.due().standings == []


# ── what was decided lately ──


def test_what_was_decided_of_all_schedules_is_read_from_the_last_on(world: World) -> None:
    store = world.store()
    names = ("a", "b")
    for name in names:
        made(store, name=name)
    began, wanted = store.now(), list[tuple[str, datetime]]()
    for n in range(6):
        world.advance(10)
        name = names[n % 2]
        stands, at = standing(store, name).schedule, store.now()
        ticks = tuple(
            tick(stands, at - second(100 * each), status="skipped", why="w", decided_at=at) for each in (1, 2)
        )
        assert store.change([Change(schedule=stands, ticks=ticks)]) == [True]
        wanted += [(name, each.tick) for each in reversed(ticks)]
    begin(store, "a")
    wanted.reverse()

    def read(**how: int) -> list[tuple[str, datetime]]:
        return [(each.schedule, each.tick) for each in store.decided(began, store.now(), **how)]

    assert read() == wanted, "not the open one"
    assert read(limit=3) == wanted[:3]
    assert read(skip=3, limit=4) == wanted[3:7]
    assert read(skip=11) == wanted[11:]
    last = store.decided(began, store.now(), limit=3)[-1].decided_at
    assert [each.tick for each in store.decided(began, last, skip=1, limit=2)] == [at for _, at in wanted[3:5]]
    assert store.decided(began, began + second(5)) == []
    only = store.decided(began + second(20), began + second(20))
    assert {each.decided_at for each in only} == {began + second(20)}
    store.change([Change(schedule=standing(store, "b").schedule, delete=True)])
    assert [name for name, _ in read(limit=6)] == ["a"] * 6


def test_a_span_of_ticks_is_exact_to_the_microsecond(store: Store) -> None:
    stands, at = made(store), store.now()
    ticks = (tick(stands, at, status="skipped", decided_at=at),)
    store.change([Change(schedule=stands, ticks=ticks)])
    for micros in (1, 400, 600, 999):
        before, after = at - timedelta(microseconds=micros), at + timedelta(microseconds=micros)

        assert [each.tick for each in store.decided(before, after)] == [at]
        assert store.decided(before, before) == store.decided(after, after) == []
        assert [each.tick for each in store.ticks(stands.name, before=after)] == [at]
        assert store.ticks(stands.name, before=before) == []

    until = at - timedelta(microseconds=400)
    delete = Change(schedule=standing(store, stands.name).schedule, delete=True, keep_until=until)
    assert store.change([delete]) == [True]
    assert store.ticks(stands.name) == [], "it was decided later than the ticks that are kept"


def test_what_was_decided_goes_on_where_it_stopped_although_a_schedule_was_deleted(store: Store) -> None:
    now = store.now()
    for name, later in (("kept", 0), ("deleted", 100)):  # decided at one instant; those of `deleted` come first
        new = made(store, name=name)
        ticks = [tick(new, now + second(later + n), status="missed", decided_at=now) for n in range(4)]
        store.change([Change(schedule=new, ticks=tuple(ticks))])
    store.change([Change(schedule=standing(store, "deleted").schedule, delete=True)])

    read = [store.decided(now, now, skip=n, limit=1) for n in range(5)]

    assert sorted(each.tick for page in read for each in page) == [now + second(n) for n in range(4)]


def test_what_one_store_wrote_another_one_reads(world: World) -> None:
    here, there = world.store(), world.store()
    stands = made(here, due_at=here.now())
    job_id = begin(here, stands.name)

    assert there.schedules() == here.schedules()
    assert there.due() == here.due()
    assert [each.job_id for each in there.ticks(stands.name)] == [job_id]


def test_a_draft_with_an_impossible_priority_refuses_the_whole_batch(store: Store) -> None:
    stands, new = made(store), schedule()

    with pytest.raises(BadData):
        store.change([Change(schedule=stands, drafts=(draft(),)), Change(schedule=new, drafts=(draft(priority=101),))])

    assert [each.schedule for each in store.schedules()] == [stands]
    assert everything(store) == []


def test_a_schedule_whose_job_is_refused_is_paused_and_holds_up_no_other(store: Store, world: World) -> None:
    table = Timetable(store, PollNotifier())
    for name, job in (("first", draft()), ("second", draft(priority=101)), ("third", draft())):
        table.put(schedule(name=name, rule="every 1m", job=job))
    world.advance(61)

    table.fire_due()

    first, bad, third = store.schedules()
    assert "can't be fired" in bad.schedule.paused_why
    assert (first.schedule.paused_why, len(first.runs)) == (third.schedule.paused_why, len(third.runs)) == ("", 1)
    assert len(everything(store)) == 2


@pytest.mark.parametrize(
    ("catch_up", "ran", "missed"), [("skip", [], (1, 3, 3)), ("latest", [3], (1, 2, 2)), ("all", [1, 2, 3], None)]
)
def test_down_across_three_ticks(
    catch_up: str, ran: list[int], missed: tuple[int, int, int] | None, world: World
) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    hour = timedelta(hours=1)
    first = table.put(schedule(rule="every 1h", catch_up=catch_up)).schedule.next_tick
    assert first is not None
    before = first - hour

    world.advance((first - store.now()).total_seconds() + 2 * 3600 + 120)  # two minutes after the third tick
    worker = start(store, lease=100_000.0)
    for _ in range(4):
        table.fire_due()
        for claimed in store.claim(worker, {"default": 9}, 9):
            finish(store, Lease(claimed.id, claimed.attempt, worker), Completed())

    history = store.ticks(store.schedules()[0].schedule.name)
    assert [round((tick.tick - before) / hour) for tick in reversed(history) if tick.status == "success"] == ran
    told = [
        (round((tick.tick - before) / hour), round(((tick.until or tick.tick) - before) / hour), tick.count)
        for tick in history
        if tick.status == "missed"
    ]
    assert told == ([missed] if missed else [])
    assert all(tick.why for tick in history if tick.status == "missed")


def test_what_a_newer_release_wrote_is_left_alone_and_holds_up_no_other(world: World) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    table.put(schedule(name="new", rule="every 1m"))
    table.put(schedule(name="old", rule="every 1m"))
    written = standing(store, "new").schedule.but(overlap=cast(Any, "a word of tomorrow"))
    assert store.change([Change(schedule=written)]) == [True]
    world.advance(61)

    table.fire_due()

    stands = standing(store, "new").schedule
    assert "a word of tomorrow" in stands.unread
    assert stands.rev == written.rev + 1
    assert len(standing(store, "old").runs) == 1
    with pytest.raises(Refused, match="newer Tenure"):
        table.pause("new")
    with pytest.raises(Refused, match="newer Tenure"):
        table.rename("new", "other")
    assert standing(store, "new").schedule == stands
    table.put(schedule(name="new", rule="every 1m"))
    world.advance(61)
    table.fire_due()
    assert len(standing(store, "new").runs) == 1


def test_a_clock_that_was_far_ahead_is_noticed_and_resume_makes_up_for_it(world: World) -> None:
    store = world.store()
    table = Timetable(store, PollNotifier())
    name = table.put(schedule(rule="every 1h", overlap="allow")).schedule.name
    world.advance(365 * DAY)
    table.fire_due()
    world.advance(-365 * DAY)

    (found,) = table.overdue()
    assert "set back" in found.why
    table.resume(name)
    assert table.overdue() == []
    world.advance(3601)
    table.fire_due()

    assert len(standing(store, name).runs) == 2
