"""A guard's own job: it begins under its guard's lease, no worker ever claims it, and it is never run again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from conformance.factories import (
    LEASE,
    World,
    assert_sound,
    begin_guarded,
    bring,
    draft,
    everything,
    finish,
    look,
    made,
    memory_of,
    put,
    race,
    schedule,
    seen_by_a_schedule,
    standing,
    start,
    tick,
)
from tenure.core.lifecycle import GUARD, Cancelled, Completed, Crashed, Failed, Lease, Outcome, State, legal
from tenure.errors import BadData
from tenure.ports import Draft, Filter, NotLanded, Progress, Rescued, Store
from tenure.ports.schedules import Change, Schedule


def guarded(store: Store, **options: Any) -> Schedule:
    """A guard's schedule, stored."""
    return made(store, rule="every 1d", kind="guard", job=None, **options)


def guard(store: Store, **options: Any) -> str:
    return start(store, runner="guard", queues=(), tasks=(), slots=1, **options)


def job(**options: Any) -> Draft:
    return draft(queue=GUARD, max_failures=1, max_crashes=0, **options)


def begun(store: Store) -> Lease:
    """A guard's job that is running under the lease of its living guard."""
    owner = guard(store)
    return Lease(begin_guarded(store, guarded(store).name, owner), 1, owner)


def test_a_guards_job_begins_under_its_lease(store: Store) -> None:
    stands, owner, work, now = guarded(store), guard(store), job(payload='{"n":1}'), store.now()
    opened = tick(stands, now, job_id=work.id, started_at=now, host="mail-1")

    assert store.change([Change(schedule=stands, ticks=(opened,), drafts=(work,), owner=owner)]) == [True]

    view = look(store, work.id)
    assert (view.state, view.attempt, view.worker_id, view.queue) == (State.PROCESSING, 1, owner, GUARD)
    assert (view.started_at, view.enqueued_at) == (now, now)
    (owned,) = store.owned(owner)
    assert (owned.claimed.id, owned.claimed.attempt, owned.claimed.payload) == (work.id, 1, '{"n":1}')
    assert not owned.claimed.expired
    (worker,) = store.workers()
    assert (worker.identity.runner, worker.processing) == ("guard", 1)
    (run,) = standing(store, stands.name).runs
    assert (run.tick, run.locked_until) == (opened, worker.expires_at)
    assert run.job is not None
    assert seen_by_a_schedule(store, run.job) == seen_by_a_schedule(store, view)
    assert_sound(store)


def test_a_schedule_and_its_first_run_are_one_change(store: Store) -> None:
    new, owner, work = schedule(kind="guard", job=None), guard(store), job()

    assert store.change([Change(schedule=new, drafts=(work,), owner=owner)]) == [True]

    assert standing(store, new.name).schedule.rev == 1
    assert look(store, work.id).worker_id == owner


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Completed('"done"'), State.COMPLETED),
        (Failed("exit 3"), State.DEAD),
        (Crashed("killed by signal 9", process_died=True), State.DEAD),
        (Cancelled("stopped"), State.CANCELLED),
    ],
    ids=str,
)
def test_its_outcome_lands_and_it_is_never_queued(outcome: Outcome, state: State, store: Store) -> None:
    lease = begun(store)

    assert finish(store, lease, outcome) is state

    assert look(store, lease.job_id).state is state
    assert finish(store, lease, outcome) is state, "the same word again"
    (due,) = store.due().standings
    assert [run.live for run in due.runs] == [False]
    assert_sound(store)


def test_its_words_land_under_its_lease_only(store: Store) -> None:
    lease = begun(store)

    said = [Progress(lease=lease, message="half"), Progress(lease=lease._replace(attempt=2), message="stolen")]
    assert store.progress(said) == [True, False]
    assert finish(store, lease._replace(worker_id=guard(store)), Completed()) is None

    assert look(store, lease.job_id).message == "half"


def test_no_worker_claims_it(world: World) -> None:
    store = world.store()
    lease = begun(store)
    worker = start(store, queues=(GUARD,))

    assert store.claim(worker, {GUARD: 5}, 5) == []
    assert store.claim(worker, {GUARD: 5}, 5, solo=True) == []
    store.promote()
    assert store.promote_now([lease.job_id]) == {lease.job_id: State.PROCESSING}
    assert store.claim(worker, {GUARD: 5}, 5) == []
    assert look(store, lease.job_id).worker_id == lease.worker_id


@pytest.mark.parametrize("how", ["unknown", "dead", "expired"])
def test_a_guard_that_does_not_live_starts_nothing(how: str, world: World) -> None:
    store = world.store()
    stands, owner, work = guarded(store), guard(store), job()
    if how == "unknown":
        owner = "nobody-1-abc"
    elif how == "dead":
        store.declare_dead([owner])
    else:
        world.advance(LEASE + 1)
    victim = put(store)
    before = standing(store, stands.name)
    change = Change(
        schedule=stands,
        ticks=(tick(stands, store.now(), job_id=work.id),),
        drafts=(work,),
        cancel=(victim,),
        owner=owner,
    )

    assert store.change([change]) == [False]

    assert standing(store, stands.name) == before
    assert store.ticks(stands.name) == []
    assert store.get(work.id) is None
    assert look(store, victim).state is State.QUEUED
    assert store.owned(owner) == []


def test_a_dead_guard_holds_up_no_other_change_of_the_batch(store: Store) -> None:
    stands, other, plain = guarded(store), guarded(store), made(store)
    dead, alive = guard(store), guard(store)
    store.declare_dead([dead])
    jobs = [job(), job(), draft()]

    answers = store.change(
        [
            Change(schedule=stands, drafts=(jobs[0],), owner=dead),
            Change(schedule=other, drafts=(jobs[1],), owner=alive),
            Change(schedule=plain, drafts=(jobs[2],)),
        ]
    )

    assert answers == [False, True, True]
    assert store.get(jobs[0].id) is None
    assert look(store, jobs[1].id).state is State.PROCESSING
    assert look(store, jobs[2].id).state is State.QUEUED


def test_of_two_guards_from_one_reading_one_starts(world: World) -> None:
    here, there = world.store(), world.store()
    for _ in range(8):
        stands = guarded(here)
        owners, jobs = [guard(here), guard(there)], [job(), job()]
        at = here.now()
        first, other = (
            Change(schedule=stands, ticks=(tick(stands, at, job_id=work.id),), drafts=(work,), owner=owner)
            for owner, work in zip(owners, jobs, strict=True)
        )

        answers = race(partial(here.change, [first]), partial(there.change, [other]))

        assert sorted(answers) == [[False], [True]]
        assert [len(here.owned(owner)) for owner in owners] == [int(answer == [True]) for answer in answers]
        assert len(standing(here, stands.name).runs) == 1


@pytest.mark.parametrize("how", ["proof of death", "its lease ran out"])
def test_the_rescue_of_a_dead_guards_job_makes_it_dead_with_a_crash(how: str, world: World) -> None:
    store = world.store()
    lease = begun(store)
    if how == "proof of death":
        store.declare_dead([lease.worker_id])
    else:
        world.advance(LEASE + 1)
        assert store.declare_expired() == {lease.worker_id}

    (rescued,) = store.rescue()

    view = look(store, lease.job_id)
    assert (rescued.state, view.state, view.crashes, view.failures) == (State.DEAD, State.DEAD, 1, 0)
    assert [attempt.outcome for attempt in store.attempts(lease.job_id)] == ["crashed"]
    assert view.error
    assert store.promote().jobs == {}
    assert finish(store, lease, Completed()) is None, "its guard comes back too late"
    (due,) = store.due().standings
    assert [run.live for run in due.runs] == [False]


def test_a_redelivery_of_a_dead_guards_job_makes_it_dead(store: Store) -> None:
    lease = begun(store)
    store.declare_dead([lease.worker_id])

    answer = store.redelivered(lease.job_id, declare=True)

    assert isinstance(answer, Rescued)
    assert look(store, lease.job_id).state is State.DEAD


def test_a_living_guards_job_is_not_rescued(world: World) -> None:
    store = world.store()
    lease = begun(store)
    for _ in range(20):
        world.advance(LEASE - 1)
        assert store.renew([lease.worker_id]) == {lease.worker_id}
        assert store.declare_expired() == frozenset()
        assert store.rescue() == []

    assert finish(store, lease, Completed()) is State.COMPLETED


def test_a_guard_that_was_settled_leaves_its_job_dead(store: Store) -> None:
    lease = begun(store)

    (settled,) = store.settle(lease.worker_id, {}, Crashed("killed by signal 9", process_died=True))

    assert settled.state is look(store, lease.job_id).state is State.DEAD


def test_it_can_be_left_out_of_a_search(store: Store) -> None:
    lease = begun(store)
    finish(store, lease, Failed("exit 3", final=True))
    other = bring(store, State.DEAD).job_id

    letters = Filter(states=frozenset({State.DEAD}))
    assert {job.id for job in store.search(letters).jobs} == {lease.job_id, other}
    assert [job.id for job in store.search(replace(letters, guards=False)).jobs] == [other]


@pytest.mark.parametrize("outcome", [Completed(), Failed("exit 3"), Cancelled("stopped")], ids=str)
def test_its_replay_is_refused_and_changes_nothing(outcome: Outcome, store: Store) -> None:
    lease = begun(store)
    name = store.schedules()[0].schedule.name
    finish(store, lease, outcome)
    before = memory_of(store, lease.job_id), store.ticks(name)
    other = bring(store, State.DEAD).job_id

    answers = store.replay([lease.job_id, other])

    refused = answers[lease.job_id]
    assert isinstance(refused, NotLanded)
    assert "guard" in refused.stands
    assert (memory_of(store, lease.job_id), store.ticks(name)) == before
    assert look(store, other).state is State.QUEUED


def test_the_replay_of_a_job_that_goes_on_is_refused_like_any_other(store: Store) -> None:
    lease = begun(store)
    before = memory_of(store, lease.job_id)

    assert isinstance(store.replay([lease.job_id])[lease.job_id], NotLanded)

    assert memory_of(store, lease.job_id) == before


def test_its_cancel_is_told_to_the_guard(store: Store) -> None:
    lease = begun(store)

    assert store.cancel([lease.job_id], "too long") == {lease.job_id: State.PROCESSING}

    assert [owned.cancel_reason for owned in store.owned(lease.worker_id)] == ["too long"]
    assert finish(store, lease, Cancelled("too long")) is State.CANCELLED


def test_it_is_deleted_when_it_has_ended_and_not_before(store: Store) -> None:
    lease = begun(store)
    assert isinstance(store.delete([lease.job_id])[lease.job_id], NotLanded)
    finish(store, lease, Failed("exit 1"))

    store.delete([lease.job_id])

    assert memory_of(store, lease.job_id) == (None, [])
    (due,) = store.due().standings
    assert [run.job for run in due.runs] == [None]


def test_it_is_found_counted_and_listed_like_any_job(store: Store) -> None:
    lease = begun(store)

    assert [view.id for view in everything(store)] == [lease.job_id]
    assert store.counts()[State.PROCESSING] == 1
    (queue,) = store.queues()
    assert (queue.name, queue.counts[State.PROCESSING]) == (GUARD, 1)


def test_a_paused_queue_does_not_stop_a_guard(store: Store) -> None:
    store.pause(GUARD, paused=True)

    lease = begun(store)

    assert look(store, lease.job_id).state is State.PROCESSING


def test_a_bad_value_of_a_guards_job_starts_nothing(store: Store) -> None:
    stands, owner = guarded(store), guard(store)

    with pytest.raises(BadData):
        store.change([Change(schedule=stands, drafts=(job(payload="a\x00b"),), owner=owner)])

    assert store.owned(owner) == []
    assert standing(store, stands.name).schedule == stands


def test_only_a_new_job_is_started() -> None:
    assert not any(legal("start", state) for state in State)
