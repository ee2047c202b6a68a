"""Two callers at the same moment, each with its own open store: exactly one of them wins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec

import pytest

from conformance.factories import (
    LEASE,
    World,
    assert_sound,
    bring,
    claim,
    draft,
    everything,
    finish,
    look,
    put,
    race,
    running,
    start,
)
from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, Outcome, Released, State
from tenure.ports import Filter, Landed, Store

P = ParamSpec("P")
Doors = tuple[Store, Store]

ROUNDS = 12


def many_times(one_round: Callable[P, None]) -> Callable[P, None]:
    @wraps(one_round)
    def rounds(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(ROUNDS):
            one_round(*args, **kwargs)

    return rounds


@pytest.fixture(autouse=True)
def threads_that_take_turns_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def doors(world: World) -> Doors:
    return world.store(), world.store()


@many_times
def test_two_claimers_never_get_one_job(doors: Doors) -> None:
    here, there = doors
    first, second = start(here), start(there)
    jobs = sorted(each.id for each in here.enqueue([draft() for _ in range(7)]))

    mine, theirs = race(lambda: claim(here, first, 5), lambda: claim(there, second, 5))

    assert sorted(each.id for each in mine + theirs) == jobs
    for worker, claimed in ((first, mine), (second, theirs)):
        ends = [(Lease(each.id, each.attempt, worker), Completed()) for each in claimed]
        assert here.finish(ends) == [Landed(State.COMPLETED)] * len(ends)


@many_times
def test_a_claimer_has_a_full_batch_while_there_are_jobs_whatever_another_takes_at_that_moment(doors: Doors) -> None:
    """Otherwise it would take the queue for empty, and wait."""
    here, there = doors
    first, second = start(here), start(there)
    here.enqueue([draft() for _ in range(40)])

    batches = race(*(lambda at=at, who=who: claim(at, who, 8) for at, who in ((here, first), (there, second)) * 2))  # type: ignore[misc]

    assert [len(batch) for batch in batches] == [8] * 4
    assert len({each.id for batch in batches for each in batch}) == 32
    here.delete([each.id for each in here.search(Filter(states=frozenset({State.QUEUED}))).jobs])


@many_times
def test_a_claim_and_a_death_leave_no_job_behind(doors: Doors) -> None:
    here, there = doors
    worker, job_id = start(here), put(here)

    def die() -> int:
        there.declare_dead([worker])
        return len(there.rescue())

    claims, _ = race(lambda: len(claim(here, worker)), die)
    there.rescue()

    view = look(here, job_id)
    assert view.state is State.QUEUED
    assert (view.attempt, view.crashes) == (claims, claims)
    here.delete([job_id])


@pytest.mark.parametrize("outcome", [Completed("1"), Failed("boom"), Released("drain")], ids=repr)
@many_times
def test_of_a_finish_and_a_rescue_one_ends_the_attempt(outcome: Outcome, doors: Doors) -> None:
    here, there = doors
    lease = running(here)
    here.declare_dead([lease.worker_id])

    finished, rescued = race(lambda: finish(here, lease, outcome) is not None, lambda: len(there.rescue()) == 1)

    assert finished != rescued
    assert look(here, lease.job_id).crashes == rescued
    assert_sound(here)
    here.delete([lease.job_id])


@many_times
def test_two_records_of_one_key_are_the_first_of_them(doors: Doors) -> None:
    here, there = doors
    lease = running(here)

    first, second = race(lambda: here.once(lease, "k", "1"), lambda: there.once(lease, "k", "2"))

    assert first is not None and first == second and first.value in ("1", "2")
    assert here.once(lease, "k", None) == first
    assert finish(here, lease, Completed()) is State.COMPLETED


@many_times
def test_two_different_ends_of_one_attempt_never_both_land(doors: Doors) -> None:
    here, there = doors
    lease = running(here)

    answers = race(
        lambda: finish(here, lease, Completed("1")),
        lambda: finish(there, lease, Failed("no", final=True)),
    )

    (landed,) = [state for state in answers if state]
    assert look(here, lease.job_id).state is landed
    assert len(here.attempts(lease.job_id)) == (landed is State.DEAD)


@many_times
def test_a_finish_sent_twice_at_once_lands_once(doors: Doors) -> None:
    here, there = doors
    lease = running(here)

    answers = race(lambda: finish(here, lease, Failed("boom")), lambda: finish(there, lease, Failed("boom")))

    assert answers == [State.SCHEDULED, State.SCHEDULED]
    assert look(there, lease.job_id).failures == len(there.attempts(lease.job_id)) == 1


@many_times
def test_two_rescuers_take_each_job_once(doors: Doors) -> None:
    here, there = doors
    worker = start(here)
    jobs = sorted(running(here, worker).job_id for _ in range(4))
    here.declare_dead([worker])

    mine, theirs = race(here.rescue, there.rescue)

    assert sorted(each.id for each in mine + theirs) == jobs
    assert {look(here, job_id).crashes for job_id in jobs} == {1}
    here.delete(jobs)


@many_times
def test_a_settle_and_a_rescue_charge_a_job_once(doors: Doors) -> None:
    here, there = doors
    lease = running(here)
    here.declare_dead([lease.worker_id])

    settled, rescued = race(
        lambda: here.settle(lease.worker_id, {}, Crashed("gone", process_died=True)),
        there.rescue,
    )

    assert len(settled) + len(rescued) == 1
    assert look(here, lease.job_id).crashes == len(here.attempts(lease.job_id)) == 1
    here.delete([lease.job_id])


@many_times
def test_one_id_enqueued_twice_at_once_is_one_job(doors: Doors) -> None:
    here, there = doors
    job = draft()

    answers = race(lambda: here.enqueue([job])[0], lambda: there.enqueue([job])[0])

    assert sorted(answer.created for answer in answers) == [False, True]
    assert [view.id for view in everything(here)].count(job.id) == 1


@many_times
def test_one_unique_key_enqueued_twice_at_once_is_one_job(doors: Doors) -> None:
    here, there = doors
    one, two = draft(), draft()
    one, two = draft(id=one.id, unique=one.id), draft(id=two.id, unique=one.id)

    answers = race(lambda: here.enqueue([one])[0], lambda: there.enqueue([two])[0])

    assert sorted(answer.created for answer in answers) == [False, True]
    (standing,) = here.search(Filter(unique=one.unique)).jobs
    assert {answer.id for answer in answers} == {standing.id}


@many_times
def test_a_replay_and_an_enqueue_never_both_hold_a_key(doors: Doors) -> None:
    here, there = doors
    dead = bring(here, State.DEAD, unique="k").job_id

    replayed, created = race(
        lambda: isinstance(here.replay([dead])[dead], Landed),
        lambda: there.enqueue([draft(unique="k")])[0].created,
    )

    assert replayed != created
    (live,) = here.search(Filter(unique="k", states=frozenset({State.QUEUED}))).jobs
    here.cancel([live.id], "next round")


@many_times
def test_a_cancel_and_a_claim_agree(doors: Doors) -> None:
    here, there = doors
    worker, job_id = start(here), put(here)

    claimed, asked = race(
        lambda: len(claim(here, worker)) == 1,
        lambda: there.cancel([job_id], "unwanted")[job_id] is State.PROCESSING,
    )

    view = look(here, job_id)
    assert claimed == asked == (view.state is State.PROCESSING)
    assert view.cancel_reason == "unwanted"
    if claimed:
        assert finish(here, Lease(job_id, 1, worker), Released("asked")) is State.CANCELLED


@many_times
def test_of_two_cancels_one_reason_stands(doors: Doors) -> None:
    here, there = doors
    lease = running(here)

    race(lambda: here.cancel([lease.job_id], "mine"), lambda: there.cancel([lease.job_id], "theirs"))

    reason = look(here, lease.job_id).cancel_reason
    assert reason in ("mine", "theirs")
    assert here.owned(lease.worker_id)[0].cancel_reason == reason


@many_times
def test_a_renewal_and_a_declaration_of_death_never_both_hold(world: World, doors: Doors) -> None:
    here, there = doors
    worker = start(here)
    world.advance(LEASE + 1)

    renewed, declared = race(lambda: here.renew([worker]), there.declare_expired)

    assert (worker in renewed) != (worker in declared)
    assert here.renew([worker]) == renewed


@many_times
def test_two_promoters_promote_a_job_once(world: World, doors: Doors) -> None:
    here, there = doors
    put(here, delay=5.0)
    world.advance(5)

    answers = race(here.promote, there.promote)

    assert sorted(len(answer.jobs) for answer in answers) == [0, 1]


def test_many_claimers_empty_a_queue_without_sharing(world: World) -> None:
    doors = [world.store() for _ in range(4)]
    jobs = sorted(each.id for each in doors[0].enqueue([draft() for _ in range(60)]))

    def drain(door: Store) -> list[str]:
        worker, taken = start(door), list[str]()
        while claimed := claim(door, worker, 3):
            leases = [Lease(each.id, each.attempt, worker) for each in claimed]
            assert door.finish([(lease, Completed()) for lease in leases]) == [Landed(State.COMPLETED)] * len(leases)
            taken += [lease.job_id for lease in leases]
        return taken

    taken = race(*[lambda door=door: drain(door) for door in doors])

    assert sorted(job_id for each in taken for job_id in each) == jobs
    assert doors[0].counts()[State.COMPLETED] == len(jobs)


@many_times
@pytest.mark.parametrize("outcome", [Failed("boom", retry_in=60), Released("drain")], ids=repr)
def test_a_cancel_is_heard_however_the_attempt_ends_meanwhile(outcome: Outcome, doors: Doors) -> None:
    here, there = doors
    lease = running(here)

    race(lambda: finish(here, lease, outcome), lambda: there.cancel([lease.job_id], "unwanted"))

    assert look(here, lease.job_id).state is State.CANCELLED


@many_times
def test_a_rescue_beside_a_settle_charges_no_bystander(doors: Doors) -> None:
    here, there = doors
    lease = running(here)

    race(lambda: here.settle(lease.worker_id, {}, Released("a neighbour died")), lambda: there.rescue())

    assert look(here, lease.job_id).crashes == 0
    here.cancel([lease.job_id], "the next round has a job of its own")
