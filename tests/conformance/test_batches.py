"""More jobs than a store may take in one step are still all taken, in order, each once."""

from __future__ import annotations

from conformance.factories import World, claim, claim_one, draft, look, put, start
from tenure.core.lifecycle import Completed, Failed, Lease, Released, State
from tenure.ports import Landed, Store

MANY = 1300
OPERATED = 300  # a verb that goes from job to job may take a store seconds: `Admin` never asks for 1,300 at once


def many(store: Store, number: int = MANY, **options: object) -> list[str]:
    return [each.id for each in store.enqueue([draft(**options) for _ in range(number)])]


def test_many_jobs_are_claimed_in_their_order_and_finished_in_one_batch(store: Store) -> None:
    jobs, worker = many(store), start(store, slots=MANY)
    last = put(store, queue="last")

    claimed = store.claim(worker, {"default": 2 * MANY, "last": 1}, 3 * MANY)

    assert [each.id for each in claimed] == [*jobs, last]
    ends = [(Lease(each.id, each.attempt, worker), Completed(f'"{each.id}"')) for each in claimed]
    assert store.finish(ends) == [Landed(State.COMPLETED)] * len(ends)
    assert store.counts()[State.COMPLETED] == MANY + 1
    assert look(store, jobs[MANY // 2]).result == f'"{jobs[MANY // 2]}"'


def test_no_more_of_a_queue_is_claimed_than_it_was_wanted(store: Store) -> None:
    many(store)
    worker = start(store, slots=MANY)
    put(store, queue="other")

    claimed = store.claim(worker, {"default": MANY - 1, "other": 5}, MANY + 5)

    assert [each.queue for each in claimed] == ["default"] * (MANY - 1) + ["other"]


def test_a_worker_that_holds_many_is_settled_in_one_step(store: Store) -> None:
    jobs, worker = many(store), start(store, slots=MANY)
    claim(store, worker, MANY)

    settled = store.settle(worker, {jobs[0]: Failed("boom", final=True)}, Released("its process is gone"))

    assert sorted((each.id, each.state) for each in settled) == sorted(
        [(jobs[0], State.DEAD), *((job, State.QUEUED) for job in jobs[1:])]
    )


def test_many_jobs_due_at_once_are_promoted_up_to_the_limit(world: World) -> None:
    """The earliest first. The order of jobs that are due at the same instant is not promised."""
    store = world.store()
    later = many(store, delay=10)
    sooner = put(store, delay=9)
    world.advance(10)

    first = store.promote(limit=MANY)
    second = store.promote(limit=MANY)

    assert first.next_due == 0
    assert sooner in first.jobs["default"]
    assert len(first.jobs["default"]) == MANY
    assert sorted([*first.jobs["default"], *second.jobs["default"]]) == sorted([sooner, *later])


def test_operators_take_many_at_once(store: Store) -> None:
    jobs = many(store, OPERATED)
    assert set(store.cancel(jobs, "not wanted").values()) == {State.CANCELLED}
    assert set(store.replay(jobs).values()) == {Landed(State.QUEUED)}
    assert set(store.delete(jobs).values()) == {Landed(State.QUEUED)}
    assert store.counts()[State.QUEUED] == 0


def test_one_lease_twice_in_a_batch_ends_its_attempt_once(store: Store) -> None:
    put(store)
    lease = claim_one(store, start(store))
    first, again = store.finish([(lease, Failed("boom", retry_in=5)), (lease, Failed("boom", retry_in=5))])
    assert isinstance(first, Landed)
    assert isinstance(again, Landed)
    assert (first.state, again.state) == (State.SCHEDULED, State.SCHEDULED)
    assert look(store, lease.job_id).failures == 1
    assert len(store.attempts(lease.job_id)) == 1
