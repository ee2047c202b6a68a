"""Operators' verbs: cancel, promote, replay, delete, prune, pause, and what the queues look like."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.factories import (
    DAY,
    World,
    assert_sound,
    bring,
    claim,
    claim_one,
    draft,
    finish,
    look,
    memory_of,
    put,
    running,
    start,
)
from tenure.core.lifecycle import Completed, Crashed, Failed, State
from tenure.ports import Edit, Landed, NotLanded, Promoted, Store

NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED])
def test_a_job_that_waits_is_cancelled_at_once(state: State, store: Store) -> None:
    job_id = bring(store, state).job_id

    assert store.cancel([job_id], "wrong file") == {job_id: State.CANCELLED}

    view = look(store, job_id)
    assert (view.cancel_reason, view.error, view.ended_at) == ("wrong file", "wrong file", store.now())


def test_a_running_job_is_asked_and_the_first_reason_stands(store: Store) -> None:
    lease = running(store)

    assert store.cancel([lease.job_id], "first") == {lease.job_id: State.PROCESSING}
    assert store.cancel([lease.job_id], "second") == {lease.job_id: State.PROCESSING}

    view = look(store, lease.job_id)
    assert (view.cancel_reason, view.ended_at, view.worker_id) == ("first", None, lease.worker_id)


def test_cancel_answers_for_each_job_it_was_given(store: Store) -> None:
    done, waiting = bring(store, State.COMPLETED).job_id, put(store)

    answers = store.cancel(iter([waiting, done, NOBODY, waiting]), "all of them")

    assert answers == {waiting: State.CANCELLED, done: State.COMPLETED, NOBODY: None}
    assert look(store, done).cancel_reason is None
    assert store.cancel([], "none") == {}


def test_due_jobs_are_promoted_and_the_next_one_is_announced(world: World) -> None:
    store = world.store()
    assert store.promote() == Promoted({}, None)
    first, second = put(store, queue="a", delay=10.0), put(store, queue="b", delay=20.0)
    last = put(store, queue="c", delay=100.0)

    assert store.promote() == Promoted({}, 10.0)
    world.advance(20)
    assert store.promote() == Promoted({"a": [first], "b": [second]}, 80.0)

    states = [look(store, job_id).state for job_id in (first, second, last)]
    assert states == [State.QUEUED, State.QUEUED, State.SCHEDULED]


@pytest.mark.parametrize("micros", [1, 400, 600])
def test_no_job_is_due_before_its_microsecond(micros: int, world: World) -> None:
    store = world.store()
    at = store.now() + timedelta(seconds=10, microseconds=micros)
    job_id = put(store, run_at=at)
    assert at <= look(store, job_id).run_at < at + timedelta(milliseconds=1)

    world.advance(10)
    assert store.promote().jobs == {}

    world.advance(0.002)
    assert store.promote().jobs == {"default": [job_id]}


def test_a_promoted_job_keeps_the_place_of_its_due_time(world: World) -> None:
    store = world.store()
    scheduled = put(store, delay=10.0)
    world.advance(15)
    later = put(store)
    store.promote()

    assert [each.id for each in claim(store, start(store), 2)] == [scheduled, later]


def test_promotion_goes_by_due_time_in_batches(world: World) -> None:
    store = world.store()
    names = [put(store, queue=str(n), delay=float(10 - n)) for n in range(5)]
    world.advance(60)

    assert store.promote(limit=2) == Promoted({"4": [names[4]], "3": [names[3]]}, 0.0)
    assert store.promote(limit=2) == Promoted({"2": [names[2]], "1": [names[1]]}, 0.0)
    assert store.promote(limit=2) == Promoted({"0": [names[0]]}, None)
    assert {look(store, name).state for name in names} == {State.QUEUED}


def test_an_operator_promotes_a_job_before_its_time(store: Store) -> None:
    worker = start(store)
    job_id, done = put(store, delay=3600.0), bring(store, State.COMPLETED).job_id

    answers = store.promote_now([job_id, done, NOBODY])

    assert answers == {job_id: State.QUEUED, done: State.COMPLETED, NOBODY: None}
    assert claim_one(store, worker).job_id == job_id


def test_an_overdue_job_that_an_operator_promotes_keeps_its_place(world: World) -> None:
    store = world.store()
    overdue = put(store, delay=10.0)
    due = look(store, overdue).run_at
    world.advance(15)
    later = put(store)
    world.advance(15)

    assert store.promote_now([overdue]) == {overdue: State.QUEUED}

    assert look(store, overdue).run_at == due
    assert [each.id for each in claim(store, start(store), 2)] == [overdue, later]


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_a_replay_starts_over_but_for_the_attempt_number(state: State, world: World) -> None:
    store = world.store()
    lease = bring(store, state, isolated=True)
    world.advance(100)

    assert store.replay([lease.job_id, lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}

    view = look(store, lease.job_id)
    assert (view.state, view.run_at, view.attempt) == (State.QUEUED, store.now(), lease.attempt)
    assert (view.failures, view.crashes, view.crashes_total) == (0, 0, 0)
    assert (view.error, view.result, view.ended_at, view.cancel_reason) == (None, None, None, None)
    assert (view.started_at, view.last_activity_at) == (None, None)
    assert view.solo
    assert claim_one(store, start(store), solo=True).attempt == lease.attempt + 1


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_a_replay_may_be_due_later(state: State, world: World) -> None:
    store = world.store()
    later, now, plain = (bring(store, state).job_id for _ in range(3))
    world.advance(100)
    due = store.now() + timedelta(seconds=60)

    answers = store.replay([later, now, plain], delays={later: 60.0, now: 0.0})

    assert answers == {later: Landed(State.SCHEDULED), now: Landed(State.QUEUED), plain: Landed(State.QUEUED)}
    view = look(store, later)
    assert (view.state, view.run_at, view.failures, view.error, view.ended_at) == (State.SCHEDULED, due, 0, None, None)
    assert {look(store, each).run_at for each in (now, plain)} == {store.now()}
    assert store.promote() == Promoted({}, 60.0)
    world.advance(60)
    assert store.promote() == Promoted({"default": [later]}, None)
    assert_sound(store)


def test_a_replay_that_is_due_later_holds_its_key_and_may_have_other_arguments(store: Store) -> None:
    dead = bring(store, State.DEAD, unique="k").job_id

    answer = store.replay([dead], edits={dead: Edit("2", "{}")}, delays={dead: 60.0})

    assert answer == {dead: Landed(State.SCHEDULED)}
    assert look(store, dead).payload == "2"
    assert store.enqueue([draft(unique="k")])[0].id == dead
    assert isinstance(store.replay([dead], delays={dead: 60.0})[dead], NotLanded)
    (queue,) = store.queues()
    assert (queue.counts[State.SCHEDULED], queue.counts[State.QUEUED]) == (1, 0)


def test_a_delay_of_a_job_that_is_not_replayed_is_a_mistake(store: Store) -> None:
    dead, other = bring(store, State.DEAD).job_id, bring(store, State.DEAD).job_id

    with pytest.raises(ValueError, match=other):
        store.replay([dead], delays={dead: 1.0, other: 1.0})

    assert {look(store, each).state for each in (dead, other)} == {State.DEAD}


def test_a_replay_is_wanted_however_late_it_is(world: World) -> None:
    store = world.store()
    lease = bring(store, State.DEAD, expires=60.0)
    world.advance(DAY)

    store.replay([lease.job_id])

    (claimed,) = claim(store, start(store))
    assert not claimed.expired
    assert look(store, lease.job_id).expires_at is None


def test_a_replayed_job_does_not_hear_that_it_had_completed(store: Store) -> None:
    lease = bring(store, State.COMPLETED)
    store.replay([lease.job_id])

    (answer,) = store.finish([(lease, Completed('"done"'))])

    assert isinstance(answer, NotLanded)
    assert "queued" in answer.stands


def test_a_replayed_job_runs_among_the_others_again(store: Store) -> None:
    lease = running(store, max_crashes=0)
    finish(store, lease, Crashed("hung", at_fault=True))
    assert look(store, lease.job_id).state is State.DEAD

    store.replay([lease.job_id])

    assert claim_one(store, start(store)).job_id == lease.job_id


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.PROCESSING])
def test_a_live_job_is_not_replayed(state: State, store: Store) -> None:
    job_id = bring(store, state).job_id

    answers = store.replay([job_id, NOBODY])

    assert isinstance(answers[job_id], NotLanded)
    assert answers[NOBODY] is None


def test_a_replay_does_not_take_a_key_that_is_held(store: Store) -> None:
    dead = bring(store, State.DEAD, unique="k").job_id
    holder = put(store, unique="k")
    before = memory_of(store, dead)

    (answer,) = store.replay([dead]).values()

    assert answer == NotLanded(f"its unique key 'k' is held by job {holder}")
    assert memory_of(store, dead) == before

    store.cancel([holder], "make room")
    assert store.replay([dead]) == {dead: Landed(State.QUEUED)}


def test_of_two_replays_for_one_key_the_first_gets_it(store: Store) -> None:
    first = bring(store, State.DEAD, unique="k").job_id
    second = bring(store, State.DEAD, unique="k").job_id

    answers = store.replay([first, second])

    assert answers[first] == Landed(State.QUEUED)
    assert isinstance(answers[second], NotLanded)
    assert_sound(store)


def test_delete_takes_a_job_with_all_its_past(store: Store) -> None:
    dead, busy = bring(store, State.DEAD).job_id, running(store).job_id
    assert store.attempts(dead)

    answers = store.delete([dead, busy, NOBODY])

    assert isinstance(answers[dead], Landed)
    assert isinstance(answers[busy], NotLanded)
    assert answers[NOBODY] is None
    assert memory_of(store, dead) == (None, [])
    assert store.replay([dead]) == {dead: None}


def test_prune_takes_what_is_older_than_asked(world: World) -> None:
    store = world.store()
    old = {state: bring(store, state).job_id for state in (State.COMPLETED, State.CANCELLED)}
    dead = bring(store, State.DEAD).job_id
    live = [running(store).job_id, put(store)]
    world.advance(DAY)

    assert store.prune(keep=2 * DAY, keep_dead=None) == 0
    world.advance(DAY + 60)
    assert store.prune(keep=2 * DAY, keep_dead=None) == 2
    assert store.prune(keep=2 * DAY, keep_dead=3 * DAY) == 0
    assert store.prune(keep=2 * DAY, keep_dead=DAY) == 1

    assert [store.get(job_id) for job_id in (*old.values(), dead)] == [None, None, None]
    assert all(store.get(job_id) for job_id in live)


def test_prune_works_in_batches(world: World) -> None:
    store = world.store()
    for _ in range(5):
        bring(store, State.COMPLETED)
    world.advance(DAY)

    assert [store.prune(keep=3600, keep_dead=None, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_paused_queue_gives_no_job_away_and_running_ones_go_on(store: Store) -> None:
    worker = start(store)
    lease = running(store, worker)
    put(store)
    assert store.pause("default", paused=True)
    assert not store.pause("default", paused=True)

    assert claim(store, worker, 5) == []
    assert finish(store, lease, Completed()) is State.COMPLETED

    assert store.pause("default", paused=False)
    assert not store.pause("default", paused=False)
    assert len(claim(store, worker, 5)) == 1


def test_one_paused_queue_does_not_stop_another(store: Store) -> None:
    worker = start(store)
    put(store, queue="a")
    here = put(store, queue="b")
    store.pause("a", paused=True)

    assert [each.id for each in store.claim(worker, {"a": 5, "b": 5}, 5)] == [here]


def test_queues_are_those_with_live_jobs_or_a_pause(world: World) -> None:
    store = world.store()
    finish(store, running(store), Completed())
    put(store, queue="busy")
    world.advance(30)
    put(store, queue="busy")
    put(store, queue="busy", delay=60.0)
    store.pause("quiet", paused=True)

    views = {view.name: view for view in store.queues()}

    assert sorted(views) == ["busy", "quiet"]
    busy, quiet = views["busy"], views["quiet"]
    counts = {state: busy.counts.get(state, 0) for state in State}
    assert counts == {**dict.fromkeys(State, 0), State.QUEUED: 2, State.SCHEDULED: 1}
    assert busy.oldest_queued == pytest.approx(30)
    assert busy.paused_at is None
    assert (quiet.paused_at, quiet.oldest_queued, sum(quiet.counts.values())) == (store.now(), None, 0)


def test_a_failed_job_that_waits_counts_as_scheduled(store: Store) -> None:
    finish(store, running(store), Failed("boom"))

    (view,) = store.queues()

    assert view.counts[State.SCHEDULED] == 1
    assert view.oldest_queued is None


@pytest.mark.parametrize("name", ["nowhere", "", "00000000-0000-0000-0000-00000000000G"])
def test_a_name_that_is_no_jobs_id_is_no_job(name: str, store: Store) -> None:
    assert store.get(name) is None
    assert store.attempts(name) == []
    assert store.redelivered(name, declare=True) is None
    for verb in (store.promote_now, store.replay, store.delete):
        assert verb([name]) == {name: None}
    assert store.cancel([name], "unwanted") == {name: None}


def test_the_paused_queues_are_told_by_name(store: Store) -> None:
    assert store.paused() == frozenset()
    for queue in ("a", "b"):
        store.pause(queue, paused=True)
    store.pause("a", paused=False)

    assert store.paused() == {"b"}
