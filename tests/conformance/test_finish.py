from __future__ import annotations

from datetime import timedelta

import pytest

from conformance.factories import World, claim_one, finish, look, memory_of, put, running, start
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Lease, Outcome, Released, Snoozed, State
from tenure.ports import AttemptView, Landed, NotLanded, Progress, Retried, Store

ENDINGS: list[Outcome] = [
    Completed('{"n": 1}'),
    Failed("boom"),
    Failed("boom", final=True),
    Snoozed(30, "closed"),
    Released("drain"),
    Cancelled("stopped"),
    Crashed("hung"),
]


def test_of_many_attempts_the_first_and_the_latest_are_kept(store: Store) -> None:
    worker, job_id = start(store), put(store)

    for _ in range(104):
        lease = claim_one(store, worker)
        assert store.progress([Progress(lease=lease, log=f"line {lease.attempt}")]) == [True]
        assert finish(store, lease, Released("again")) is State.QUEUED

    kept = [1, *range(5, 105)]
    assert [each.attempt for each in store.attempts(job_id)] == kept
    assert list(store.logs(job_id)) == kept
    assert look(store, job_id).attempt == 104


def test_a_completed_job_keeps_its_result_and_leaves_no_attempt(world: World) -> None:
    store = world.store()
    lease = running(store)
    started_at = store.now()
    world.advance(3)

    assert finish(store, lease, Completed('{"rows": [1, 2]}')) is State.COMPLETED

    view = look(store, lease.job_id)
    assert (view.state, view.result, view.attempt) == (State.COMPLETED, '{"rows": [1, 2]}', 1)
    assert view.worker_id is None
    assert (view.started_at, view.ended_at) == (started_at, store.now())
    assert store.attempts(lease.job_id) == []


def test_a_failure_is_charged_and_tried_again_later(world: World) -> None:
    store = world.store()
    lease = running(store, max_failures=2, retry_base=8.0, retry_cap=8.0)

    assert finish(store, lease, Failed("ValueError: boom")) is State.SCHEDULED

    view = look(store, lease.job_id)
    assert (view.failures, view.crashes, view.error) == (1, 0, "ValueError: boom")
    assert store.now() <= view.run_at <= store.now() + timedelta(seconds=8)
    assert view.ended_at is None


def test_the_answer_to_a_failure_says_when_it_is_retried(store: Store) -> None:
    asked, drawn, last = running(store), running(store, max_failures=2, retry_base=8.0), running(store, max_failures=1)

    ends = [(asked, Failed("limited", retry_in=90.0)), (drawn, Failed("boom")), (last, Failed("boom"))]
    later, sooner, never = store.finish(ends)

    assert later == Landed(State.SCHEDULED, Retried(90.0, 10))
    assert isinstance(sooner, Landed)
    assert sooner.retried is not None
    assert sooner.retried.max_failures == 2
    assert (look(store, drawn.job_id).run_at - store.now()).total_seconds() == pytest.approx(
        sooner.retried.retry_in, abs=0.002
    )
    assert never == Landed(State.DEAD)


def test_a_delay_the_handler_asked_for_is_kept(store: Store) -> None:
    failed, snoozed = running(store), running(store)
    finish(store, failed, Failed("rate limited", retry_in=90.0))
    finish(store, snoozed, Snoozed(45.5, "market closed"))

    assert look(store, failed.job_id).run_at == store.now() + timedelta(seconds=90)
    assert look(store, snoozed.job_id).run_at == store.now() + timedelta(seconds=45.5)
    assert look(store, snoozed.job_id).failures == 0


def test_a_success_does_not_hide_that_it_failed_before(world: World) -> None:
    store = world.store()
    lease = running(store)
    finish(store, lease, Failed("boom", retry_in=1))
    world.advance(1)
    store.promote()
    finish(store, claim_one(store, start(store)), Completed("1"))

    view = look(store, lease.job_id)
    assert (view.state, view.failures, view.error) == (State.COMPLETED, 1, "boom")


def test_a_job_out_of_failures_is_dead_with_its_last_error(world: World) -> None:
    store = world.store()
    first = running(store, max_failures=2)
    finish(store, first, Failed("first", retry_in=1))
    world.advance(1)
    store.promote()
    second = claim_one(store, start(store))

    assert finish(store, second, Failed("second")) is State.DEAD

    view = look(store, first.job_id)
    assert (view.failures, view.error, view.ended_at) == (2, "second", store.now())


def test_every_attempt_that_did_not_complete_is_told(world: World) -> None:
    store = world.store()
    lease = running(store, max_crashes=1)
    told: list[AttemptView] = []
    outcomes: list[tuple[Outcome, str, str]] = [
        (Failed("boom", retry_in=1), "failed", "boom"),
        (Snoozed(1, "closed"), "snoozed", "closed"),
        (Released("drain"), "released", "drain"),
        (Crashed("hung", evidence={"signal": "SIGKILL", "peak": "2 GiB"}), "crashed", "hung"),
        (Cancelled("stopped"), "cancelled", "stopped"),
    ]
    for outcome, name, error in outcomes:
        started = store.now()
        world.advance(2)
        finish(store, lease, outcome)
        told.append(
            AttemptView(
                job_id=lease.job_id,
                attempt=lease.attempt,
                worker_id=lease.worker_id,
                outcome=name,
                error=error,
                evidence=outcome.evidence if isinstance(outcome, Crashed) else {},
                started_at=started,
                ended_at=store.now(),
            )
        )
        world.advance(2)
        store.promote()
        if look(store, lease.job_id).state is State.QUEUED:
            lease = claim_one(store, start(store))

    assert store.attempts(lease.job_id) == told
    assert store.attempts("00000000-0000-0000-0000-000000000000") == []


@pytest.mark.parametrize("outcome", [Failed("boom"), Snoozed(5), Released("drain"), Crashed("hung")], ids=repr)
def test_a_job_given_back_has_no_owner_and_no_start(outcome: Outcome, store: Store) -> None:
    lease = running(store)
    finish(store, lease, outcome)

    view = look(store, lease.job_id)
    assert (view.worker_id, view.started_at, view.last_activity_at, view.ended_at) == (None, None, None, None)


@pytest.mark.parametrize("outcome", ENDINGS, ids=repr)
def test_the_same_outcome_may_be_told_twice(outcome: Outcome, store: Store) -> None:
    lease = running(store)
    (first,) = store.finish([(lease, outcome)])
    after = memory_of(store, lease.job_id)

    assert isinstance(first, Landed)
    assert store.finish([(lease, outcome)]) == [Landed(first.state)]
    assert memory_of(store, lease.job_id) == after


@pytest.mark.parametrize("first", ENDINGS, ids=repr)
@pytest.mark.parametrize("second", ENDINGS, ids=repr)
def test_another_outcome_is_refused_and_told_which_stands(first: Outcome, second: Outcome, store: Store) -> None:
    if type(first) is type(second):
        second = Completed('{"n": 2}') if isinstance(first, Completed) else Completed()
        if isinstance(first, Failed):
            second = Snoozed(1)
    lease = running(store)
    finish(store, lease, first)
    after = memory_of(store, lease.job_id)

    (answer,) = store.finish([(lease, second)])

    assert isinstance(answer, NotLanded)
    assert type(first).__name__.lower() in answer.stands
    assert lease.worker_id in answer.stands
    assert memory_of(store, lease.job_id) == after


def test_one_batch_with_both_outcomes_keeps_the_first(store: Store) -> None:
    lease = running(store)

    landed, again, refused = store.finish([(lease, Completed()), (lease, Completed()), (lease, Failed("boom"))])

    assert landed == again == Landed(State.COMPLETED)
    assert isinstance(refused, NotLanded)


def test_a_batch_is_answered_per_lease(store: Store) -> None:
    worker = start(store)
    leases = [running(store, worker) for _ in range(6)]
    ghost = running(store)._replace(attempt=0)
    ends: list[tuple[Lease, Outcome]] = [
        (leases[5], Completed("5")),
        (ghost, Completed()),
        (leases[0], Failed("boom")),
        (leases[3], Released()),
        (leases[1], Failed("no", final=True)),
        (leases[2], Completed("2")),
    ]

    answers = store.finish(ends)

    states = [answer.state if isinstance(answer, Landed) else None for answer in answers]
    assert states == [State.COMPLETED, None, State.SCHEDULED, State.QUEUED, State.DEAD, State.COMPLETED]
    assert [look(store, leases[n].job_id).result for n in (5, 2)] == ["5", "2"]
    assert look(store, leases[4].job_id).state is State.PROCESSING
    assert store.finish([]) == []


@pytest.mark.parametrize("outcome", [Failed("boom"), Snoozed(5), Released("drain"), Crashed("hung")], ids=repr)
def test_a_cancel_asked_turns_every_way_back_into_cancelled(outcome: Outcome, store: Store) -> None:
    lease = running(store)
    assert store.cancel([lease.job_id], "wrong file") == {lease.job_id: State.PROCESSING}

    assert finish(store, lease, outcome) is State.CANCELLED

    view = look(store, lease.job_id)
    assert view.cancel_reason == "wrong file"
    assert view.ended_at == store.now()


def test_work_that_is_done_stays_done_though_a_cancel_was_asked(store: Store) -> None:
    lease = running(store)
    store.cancel([lease.job_id], "too late")

    assert finish(store, lease, Completed("1")) is State.COMPLETED
    assert look(store, lease.job_id).result == "1"


def test_a_cancelled_job_says_why(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Cancelled("expired before it could start"))

    assert look(store, lease.job_id).error == "expired before it could start"


def test_a_new_checkpoint_forgives_crashes_and_an_old_one_does_not(world: World) -> None:
    store = world.store()
    lease = running(store, max_crashes=5)
    store.progress([Progress(lease=lease, checkpoint="1")])
    finish(store, lease, Crashed("hung"))
    lease = claim_one(store, start(store))

    store.progress([Progress(lease=lease, checkpoint="1", message="the same again")])
    assert look(store, lease.job_id).crashes == 1

    store.progress([Progress(lease=lease, checkpoint="2")])
    view = look(store, lease.job_id)
    assert (view.crashes, view.crashes_total) == (0, 1)


def test_twenty_crashes_end_a_job_whatever_its_checkpoints_say(world: World) -> None:
    store = world.store()
    lease = running(store)
    for crash in range(1, 22):
        store.progress([Progress(lease=lease, checkpoint=str(crash))])
        state = finish(store, lease, Crashed("hung", at_fault=True))
        assert state is (State.DEAD if crash == 21 else State.QUEUED), crash
        if state is State.QUEUED:
            lease = claim_one(store, start(store))

    assert len(store.attempts(lease.job_id)) == 21
