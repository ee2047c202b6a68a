from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.factories import World, bring, draft, everything, finish, look, put, running, start
from tenure.core.lifecycle import Completed, Failed, State
from tenure.ports import Enqueued, Promoted, Store


def test_a_job_is_kept_as_it_was_asked_for(store: Store) -> None:
    asked = draft(
        task="resize",
        payload='{"width": 640, "name": "é 😀"}',
        queue="images",
        priority=-7,
        expires=3600.0,
        unique="photo:1",
        isolated=True,
        timeout=12.5,
        stale_after=300.0,
        max_failures=4,
        max_crashes=2,
        meta='{"trace": "abc"}',
    )

    assert store.enqueue([asked]) == [Enqueued(asked.id, created=True, state=State.QUEUED)]

    view = look(store, asked.id)
    plain = ("id", "task", "payload", "queue", "priority", "unique", "isolated", "timeout", "stale_after")
    for name in (*plain, "max_failures", "max_crashes"):
        assert getattr(view, name) == getattr(asked, name), name
    assert view.meta == {"trace": "abc"}
    assert view.solo
    assert view.state is State.QUEUED
    assert (view.attempt, view.failures, view.crashes, view.crashes_total) == (0, 0, 0, 0)
    assert view.run_at == view.enqueued_at == store.now()
    assert view.expires_at == view.run_at + timedelta(hours=1)
    unset = ("result", "error", "worker_id", "stage", "progress", "message", "checkpoint", "cancel_reason")
    for name in (*unset, "started_at", "last_activity_at", "ended_at"):
        assert getattr(view, name) is None, name


def test_answers_come_in_the_order_of_the_drafts(store: Store) -> None:
    drafts = [draft() for _ in range(20)][::-1]

    assert [each.id for each in store.enqueue(drafts)] == [each.id for each in drafts]
    assert store.enqueue([]) == []


def test_the_same_id_is_one_job_for_as_long_as_it_is_kept(store: Store) -> None:
    first = draft(payload='"first"')
    again = first.but(payload='"again"', queue="other")

    created = [each.created for each in store.enqueue([first, again, first])]
    (late,) = store.enqueue([again])

    assert created == [True, False, False]
    assert late == Enqueued(first.id, created=False, state=State.QUEUED)
    assert [view.payload for view in everything(store)] == ['"first"']


@pytest.mark.parametrize("state", State)
def test_a_second_enqueue_names_the_state_of_the_job_that_stands(state: State, store: Store) -> None:
    lease = bring(store, state)

    assert store.enqueue([draft(id=lease.job_id)]) == [Enqueued(lease.job_id, created=False, state=state)]


def test_a_resent_batch_creates_only_what_is_missing(store: Store) -> None:
    sent = [draft() for _ in range(4)]
    store.enqueue(sent[1:3])

    assert [each.created for each in store.enqueue(sent)] == [True, False, False, True]
    assert {view.id for view in everything(store)} == {each.id for each in sent}


@pytest.mark.parametrize(("option", "value"), [("delay", 60.0), ("run_at", timedelta(minutes=1))])
def test_a_job_due_later_is_scheduled(option: str, value: float | timedelta, store: Store) -> None:
    when = store.now() + value if isinstance(value, timedelta) else value

    (enqueued,) = store.enqueue([draft(**{option: when}, expires=10.0)])

    view = look(store, enqueued.id)
    assert enqueued.state is view.state is State.SCHEDULED
    assert view.run_at == store.now() + timedelta(minutes=1)
    assert view.expires_at == view.run_at + timedelta(seconds=10)


def test_a_time_that_is_past_means_now(store: Store) -> None:
    past = store.now() - timedelta(hours=1)
    (late,) = store.enqueue([draft(run_at=past)])
    (now,) = store.enqueue([draft(delay=0.0)])

    assert late.state is now.state is State.QUEUED
    assert look(store, late.id).run_at == past
    assert look(store, now.id).run_at == store.now()


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.PROCESSING])
def test_a_live_job_holds_its_unique_key(state: State, store: Store) -> None:
    holder = bring(store, state, unique="invoice:7").job_id
    second = draft(unique="invoice:7")

    assert store.enqueue([second]) == [Enqueued(holder, created=False, state=state)]
    assert store.get(second.id) is None


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_an_ended_job_gives_its_unique_key_back(state: State, store: Store) -> None:
    bring(store, state, unique="invoice:7")

    assert store.enqueue([draft(unique="invoice:7")])[0].created


def test_retries_keep_the_unique_key(world: World) -> None:
    store = world.store()
    lease = running(store, unique="k")
    finish(store, lease, Failed("boom"))
    world.advance(60)
    assert store.promote() == Promoted({"default": [lease.job_id]}, None)

    assert not store.enqueue([draft(unique="k")])[0].created

    again = store.claim(start(store), {"default": 1}, 1)[0]
    assert again.id == lease.job_id


def test_unique_keys_belong_to_their_task(store: Store) -> None:
    put(store, task="bill", unique="7")

    assert store.enqueue([draft(task="ship", unique="7")])[0].created
    assert store.enqueue([draft(task="bill", unique="8")])[0].created
    assert store.enqueue([draft(task="bill"), draft(task="bill")])[1].created


def test_a_key_is_held_once_within_one_batch(store: Store) -> None:
    first, second = store.enqueue([draft(unique="k"), draft(unique="k")])

    assert (first.created, second) == (True, Enqueued(first.id, created=False, state=State.QUEUED))


def test_an_id_already_kept_wins_over_a_key_that_is_held(store: Store) -> None:
    done = bring(store, State.COMPLETED, unique="k").job_id
    put(store, unique="k")

    assert store.enqueue([draft(id=done, unique="k")]) == [Enqueued(done, created=False, state=State.COMPLETED)]


def test_the_result_stays_after_the_same_job_is_enqueued_again(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Completed('{"rows": 3}'))

    store.enqueue([draft(id=lease.job_id)])

    assert look(store, lease.job_id).result == '{"rows": 3}'


def test_every_way_into_the_store_sees_the_job_at_once(world: World) -> None:
    here, there = world.store(), world.store()

    job_id = put(here)

    assert look(there, job_id) == look(here, job_id)
