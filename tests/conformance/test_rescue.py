from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest

from conformance.factories import (
    LEASE,
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
from conformance.test_claim import ids
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Lease, Outcome, Released, State
from tenure.ports import Hung, Landed, Progress, Rescued, Store

STALE = 300.0


def taken_back(
    lease: Lease,
    cause: Literal["crash", "host", "stale", "queue"],
    state: State = State.QUEUED,
    *,
    death: str = "",
) -> Rescued:
    says = {
        "crash": f"the process of {lease.worker_id} is gone",
        "host": f"the lease of {lease.worker_id} ended: its host or its supervisor is lost",
        "stale": f"silent for longer than its stale_after, on {lease.worker_id}",
    }
    return Rescued(
        id=lease.job_id,
        task="work",
        queue="default",
        attempt=lease.attempt,
        worker_id=lease.worker_id,
        cause=cause,
        state=state,
        message=f"Cleared: {says[death or cause]}",
    )


def test_jobs_of_living_workers_are_left_alone_however_silent(world: World) -> None:
    store = world.store()
    lease = running(store)
    for _ in range(20):
        world.advance(LEASE * 0.9)
        assert store.renew([lease.worker_id]) == {lease.worker_id}

    assert store.declare_expired() == frozenset()
    assert store.rescue() == []


def test_an_ended_lease_alone_takes_no_job_until_death_is_declared(world: World) -> None:
    store = world.store()
    lease = running(store)
    world.advance(LEASE + 1)
    assert store.rescue() == []

    assert store.declare_expired() == {lease.worker_id}
    assert store.rescue() == [taken_back(lease, "host")]


@pytest.mark.parametrize("declared", ["all", "one"])
@pytest.mark.parametrize("gap", [LEASE / 3 - 1, LEASE * 2 / 3 + 1])
def test_a_declaration_held_up_on_its_way_judges_nobody_by_an_outage_of_its_own(
    gap: float, declared: str, world: World
) -> None:
    store = world.store()
    lease = running(store)
    world.advance(LEASE - 1)
    witness = start(store)  # it renews, the other one no longer does; then neither can
    world.advance(2 + gap)

    if declared == "all":
        store.declare_expired(witness=witness)
    else:
        store.redelivered(lease.job_id, declare=True, witness=witness)

    credible = gap < LEASE / 2
    assert store.renew([lease.worker_id]) == (frozenset() if credible else {lease.worker_id})


@pytest.mark.parametrize("declared", ["all", "one"])
def test_a_declaration_held_up_together_with_its_witness_s_renewal_judges_nobody(declared: str, world: World) -> None:
    store = world.store()
    lease, witness = running(store), start(store)
    world.advance(LEASE - 1)
    store.renew([witness])
    until = store.now() + timedelta(seconds=LEASE / 3)
    world.advance(2 * LEASE)  # the outage; then the delayed calls arrive, in this order
    store.renew([witness])

    if declared == "all":
        assert store.declare_expired(witness=witness, until=until) == frozenset()
    else:
        answer = store.redelivered(lease.job_id, declare=True, witness=witness, until=until)
        assert answer is State.PROCESSING

    assert store.renew([lease.worker_id]) == {lease.worker_id}
    world.advance(LEASE + 1)
    store.renew([witness])
    assert store.declare_expired(witness=witness, until=store.now()) == {lease.worker_id}


def test_a_dead_or_unknown_witness_declares_nobody(world: World) -> None:
    store = world.store()
    lease = running(store)
    world.advance(LEASE + 1)
    dead = start(store)
    store.declare_dead([dead])

    for witness in (dead, "nobody-1-abc"):
        assert store.declare_expired(witness=witness) == frozenset()
        assert store.redelivered(lease.job_id, declare=True, witness=witness) is State.PROCESSING
    assert store.declare_expired(witness=start(store)) == {lease.worker_id}


def test_a_job_of_a_worker_proved_dead_comes_back_at_once(store: Store) -> None:
    lease = running(store)
    assert store.declare_dead([lease.worker_id]) == {lease.worker_id}

    assert store.rescue() == [taken_back(lease, "crash")]

    view = look(store, lease.job_id)
    assert view.solo
    assert (view.crashes, view.crashes_total, view.failures) == (1, 1, 0)


def test_a_lost_host_is_charged_but_does_not_make_its_jobs_run_alone(world: World) -> None:
    store = world.store()
    lease = running(store)
    world.advance(LEASE + 1)
    store.declare_expired()
    store.rescue()

    view = look(store, lease.job_id)
    assert (view.crashes, view.solo) == (1, False)


def test_clearing_is_a_reset_that_says_why(world: World) -> None:
    store = world.store()
    lease = running(store)
    store.progress([Progress(lease=lease, fraction=0.5, stage="fetch", message="half", checkpoint="5")])
    before = look(store, lease.job_id)
    world.advance(5)
    store.declare_dead([lease.worker_id])
    store.rescue()

    view = look(store, lease.job_id)
    assert (view.state, view.run_at) == (State.QUEUED, before.run_at)
    assert (view.worker_id, view.started_at, view.last_activity_at) == (None, None, None)
    assert (view.message or "").startswith("Cleared: ")
    assert lease.worker_id in (view.message or "")
    assert (view.checkpoint, view.progress, view.stage) == ("5", 0.5, "fetch")
    (attempt,) = store.attempts(lease.job_id)
    assert (attempt.attempt, attempt.worker_id, attempt.outcome) == (1, lease.worker_id, "crashed")


def test_the_first_rescue_goes_straight_back_later_ones_wait(world: World) -> None:
    store = world.store()
    job_id = put(store, retry_base=8.0, retry_cap=8.0)
    states: list[State] = []
    for _ in range(4):
        worker = start(store)
        claim_one(store, worker, solo=look(store, job_id).solo)
        store.declare_dead([worker])
        (rescued,) = store.rescue()
        states.append(rescued.state)
        assert look(store, job_id).run_at <= store.now() + timedelta(seconds=8)
        world.advance(8)
        store.promote()

    assert states == [State.QUEUED, State.SCHEDULED, State.SCHEDULED, State.DEAD]


def test_every_rescue_is_announced_with_the_words_of_its_row_also_after_a_wait(world: World) -> None:
    store = world.store()
    job_id, retried, delayed = put(store, retry_base=8.0, retry_cap=8.0), put(store, queue="other"), put(store, delay=5)
    failing = start(store)
    for _ in range(2):  # the second rescue backs off
        worker = start(store)
        claim_one(store, worker, solo=look(store, job_id).solo)
        store.settle(worker, {}, Crashed("its worker died: signal 9", process_died=True))
    lease = Lease(retried, claim(store, failing, queue="other")[0].attempt, failing)
    store.progress([Progress(lease=lease, message="Cleared: the cache")])
    store.finish([(lease, Failed("boom", retry_in=1.0))])

    world.advance(8)
    found = store.promote()

    message = f"Cleared: its worker died: signal 9, on {worker}"
    assert look(store, job_id).message == message
    assert found.cleared == {job_id: message}
    assert {each for ids in found.jobs.values() for each in ids} == {job_id, retried, delayed}


def test_a_cancel_asked_makes_a_rescue_the_end(store: Store) -> None:
    lease = running(store)
    store.cancel([lease.job_id], "unwanted")
    store.declare_dead([lease.worker_id])

    assert store.rescue() == [taken_back(lease, "crash", State.CANCELLED)]


def test_the_longest_silent_comes_first_in_batches(world: World) -> None:
    store = world.store()
    worker = start(store, lease=1000.0)
    leases: list[Lease] = []
    for _ in range(5):
        leases.append(running(store, worker))
        world.advance(1)
    store.progress([Progress(lease=leases[0])])
    store.declare_dead([worker])
    order = [lease.job_id for lease in (*leases[1:], leases[0])]

    assert [each.id for each in store.rescue(limit=2)] == order[:2]
    assert [each.id for each in store.rescue(limit=2)] == order[2:4]
    assert [each.id for each in store.rescue(limit=2)] == order[4:]
    assert store.rescue(limit=2) == []


def test_what_has_ended_is_never_cleared(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Completed('"kept"'))
    before = memory_of(store, lease.job_id)
    store.declare_dead([lease.worker_id])

    assert store.rescue() == []
    assert store.settle(lease.worker_id, {}, Crashed("gone")) == []
    assert memory_of(store, lease.job_id) == before


def test_a_hung_job_is_first_its_owners_business(world: World) -> None:
    store = world.store()
    worker = start(store, lease=LEASE)
    lease, may_be_silent = running(store, worker, stale_after=STALE), running(store, worker)
    world.advance(STALE - 1)
    store.renew([worker])
    assert store.hung([worker]) == []

    world.advance(2)

    (hung,) = store.hung([worker])
    assert hung == Hung(lease, "work", hung.silent)
    assert hung.silent == pytest.approx(STALE + 1)
    assert store.hung(["host-1-nobody"]) == store.hung([start(store)]) == []
    assert store.rescue() == []
    assert look(store, may_be_silent.job_id).state is State.PROCESSING


def test_progress_of_any_kind_shows_that_a_job_is_not_hung(world: World) -> None:
    store = world.store()
    lease = running(store, stale_after=STALE)
    world.advance(STALE - 1)
    store.progress([Progress(lease=lease)])
    world.advance(STALE - 1)

    assert store.hung([lease.worker_id]) == []


@pytest.mark.parametrize("late", [False, True])
def test_others_take_a_hung_job_two_leases_later(late: bool, world: World) -> None:
    store = world.store()
    lease = running(store, stale_after=STALE)
    world.advance(STALE + 2 * LEASE + (1 if late else -1))
    store.renew([lease.worker_id])

    assert store.rescue() == ([taken_back(lease, "stale")] if late else [])
    assert look(store, lease.job_id).solo is False


@pytest.mark.parametrize("step", [86_400.0, -86_400.0])
def test_setting_the_clock_ends_no_lease_or_its_former_owner_is_fenced(step: float, world: World) -> None:
    store = world.store()
    lease = running(store, stale_after=STALE)
    world.step_wall_clock(step)
    store.declare_expired()
    rescued = store.rescue()

    assert rescued == [] or not store.capabilities.steady_clock
    assert finish(store, lease, Completed()) is (None if rescued else State.COMPLETED)
    assert store.renew([lease.worker_id]) == (frozenset() if rescued else {lease.worker_id})


def test_an_outcome_that_was_settled_is_known_again_when_its_worker_sends_it(store: Store) -> None:
    lease = running(store)
    store.settle(lease.worker_id, {lease.job_id: Completed('{"n": 1}')}, Released("it has exited"))

    assert store.finish([(lease, Completed('{"n": 1}'))]) == [Landed(State.COMPLETED)]


def test_settle_ends_each_lease_by_its_verdict(world: World) -> None:
    store = world.store()
    worker, other = start(store), start(store)
    guilty, timed_out, unwanted, bystander = [running(store, worker) for _ in range(4)]
    elsewhere = running(store, other)
    verdicts: dict[str, Outcome] = {
        guilty.job_id: Crashed("killed by signal 9", process_died=True, evidence={"signal": "9"}),
        timed_out.job_id: Failed("timed out after 5s"),
        unwanted.job_id: Cancelled("stopped"),
        elsewhere.job_id: Failed("not this worker's"),
    }

    settled = store.settle(worker, verdicts, Released("a neighbour died"))

    assert {each.id: each.state for each in settled} == {
        guilty.job_id: State.QUEUED,
        timed_out.job_id: State.SCHEDULED,
        unwanted.job_id: State.CANCELLED,
        bystander.job_id: State.QUEUED,
    }
    assert {each.worker_id for each in settled} == {worker}
    judged = {lease.job_id: "stale" for lease in (guilty, timed_out, unwanted)}
    assert {each.id: each.cause for each in settled} == judged | {bystander.job_id: "crash"}
    assert [look(store, lease.job_id).solo for lease in (guilty, timed_out, bystander)] == [True, False, False]
    assert look(store, bystander.job_id).crashes == 0
    assert look(store, bystander.job_id).worker_id is None
    assert look(store, bystander.job_id).message == f"Cleared: a neighbour died, on {worker}"
    assert store.attempts(guilty.job_id)[0].evidence == {"signal": "9"}
    assert look(store, elsewhere.job_id).state is State.PROCESSING
    assert store.renew([worker, other]) == {other}
    assert_sound(store)


def test_settling_twice_is_settling_once(store: Store) -> None:
    lease = running(store)
    store.settle(lease.worker_id, {}, Crashed("gone", process_died=True))
    after = memory_of(store, lease.job_id)

    assert store.settle(lease.worker_id, {}, Crashed("gone", process_died=True)) == []
    assert memory_of(store, lease.job_id) == after


def test_settling_leaves_alone_what_was_rescued_meanwhile(store: Store) -> None:
    lease = running(store)
    store.declare_dead([lease.worker_id])
    store.rescue()
    owner = claim_one(store, start(store), solo=True)

    assert store.settle(lease.worker_id, {lease.job_id: Failed("late verdict")}, Released()) == []
    assert look(store, lease.job_id).worker_id == owner.worker_id


def test_a_dead_workers_outcome_counts_if_it_comes_before_the_rescue(store: Store) -> None:
    lease = running(store)
    store.declare_dead([lease.worker_id])

    assert finish(store, lease, Completed()) is State.COMPLETED
    assert store.rescue() == []


# ── what a queue delivers again ──


def test_a_job_delivered_again_is_taken_from_its_dead_owner(store: Store) -> None:
    lease = running(store)
    store.declare_dead([lease.worker_id])

    assert store.redelivered(lease.job_id, declare=False) == taken_back(lease, "queue", death="crash")
    assert look(store, lease.job_id).worker_id is None
    assert finish(store, lease, Completed()) is None
    assert store.rescue() == []


@pytest.mark.parametrize("declare", [True, False])
def test_only_who_was_not_away_may_declare_the_owner_of_a_job_delivered_again(declare: bool, world: World) -> None:
    store = world.store()
    lease = running(store)
    world.advance(LEASE + 1)

    found = store.redelivered(lease.job_id, declare=declare)

    assert found == (taken_back(lease, "queue", death="host") if declare else State.PROCESSING)
    assert store.renew([lease.worker_id]) == (frozenset() if declare else {lease.worker_id})


def test_a_job_delivered_again_stays_with_its_living_owner(store: Store) -> None:
    lease, other = running(store), running(store)
    store.declare_dead([other.worker_id])

    assert store.redelivered(lease.job_id, declare=True) is State.PROCESSING
    assert look(store, other.job_id).state is State.PROCESSING
    assert finish(store, lease, Completed()) is State.COMPLETED


@pytest.mark.parametrize("state", [state for state in State if state is not State.PROCESSING])
def test_a_job_delivered_again_that_nobody_runs_is_left_alone(state: State, store: Store) -> None:
    lease = bring(store, state)
    before = memory_of(store, lease.job_id)

    assert store.redelivered(lease.job_id, declare=True) is state
    assert memory_of(store, lease.job_id) == before


def test_a_job_nobody_knows_may_be_delivered_again(store: Store) -> None:
    assert store.redelivered(draft().id, declare=True) is None


# ── whose crash it was ──


def crash_together(store: Store, size: int, *, crashes: int, slots: int = 500, **options: Any) -> list[str]:
    """Jobs that crashed together `crashes` times, all of them each time."""
    jobs = [put(store, retry_cap=0.0, **options) for _ in range(size)]
    for number in range(crashes):
        worker = start(store, slots=slots)
        assert len(claim(store, worker, size, solo=number > 0)) == size
        store.settle(worker, {}, Crashed("killed by signal 9", process_died=True))
        store.promote()
    return jobs


@pytest.mark.parametrize("how", ["settle", "rescue one by one"])
def test_nobody_is_dead_for_a_crash_beside_another_job(how: str, store: Store) -> None:
    """Not even the last job that is found under the dead worker."""
    jobs = [put(store, max_crashes=0) for _ in range(3)]
    worker = start(store)
    claim(store, worker, 3)
    if how == "settle":
        store.settle(worker, {}, Crashed("killed by signal 9", process_died=True))
    else:
        store.declare_dead([worker])
        assert [len(store.rescue(limit=1)) for _ in jobs] == [1, 1, 1]

    for view in (look(store, job) for job in jobs):
        assert (view.state, view.crashes, view.crashes_total) == (State.QUEUED, 0, 1)
        assert (view.solo, view.together) == (True, 1)


def test_nobody_is_dead_for_the_crash_of_a_worker_that_owned_another_job(store: Store) -> None:
    """An embedded worker, say, that learned too late that a job must run alone."""
    (job,) = crash_together(store, 1, crashes=3)
    worker = start(store)
    claim_one(store, worker, solo=True)
    running(store, worker)
    store.settle(worker, {}, Crashed("killed by signal 9", process_died=True))

    view = look(store, job)
    assert (view.state, view.crashes, view.crashes_total) == (State.SCHEDULED, 3, 4)


def test_a_worker_that_owns_a_job_is_given_no_suspect(store: Store) -> None:
    crash_together(store, 3, crashes=3)
    worker = start(store)
    lease = claim_one(store, worker, solo=True)

    assert claim(store, worker, 5, solo=True) == []
    finish(store, lease, Completed())
    assert len(claim(store, worker, 5, solo=True)) == 1


def test_who_crashes_alone_past_its_budget_is_dead(store: Store) -> None:
    (job,) = crash_together(store, 1, crashes=3)
    lease = claim_one(store, start(store), solo=True)
    store.declare_dead([lease.worker_id])

    assert store.rescue() == [taken_back(lease, "crash", State.DEAD)]
    assert look(store, job).crashes == 4


def test_a_lease_that_ended_is_no_proof_that_the_job_ended_its_process(world: World) -> None:
    store = world.store()
    (job,) = crash_together(store, 1, crashes=3)
    lease = claim_one(store, start(store), solo=True)
    world.advance(LEASE + 1)
    store.declare_expired()

    assert store.rescue() == [taken_back(lease, "host", State.SCHEDULED)]
    view = look(store, job)
    assert (view.crashes, view.crashes_total, view.solo, view.together) == (3, 4, True, 1)


def test_who_hangs_past_its_budget_is_dead_beside_others(world: World) -> None:
    store = world.store()
    worker = start(store)
    lease = running(store, worker, stale_after=STALE, max_crashes=0)
    running(store, worker)
    for _ in range(20):
        world.advance(STALE / 10)
        store.renew([worker])

    assert store.rescue() == [taken_back(lease, "stale", State.DEAD)]


def test_a_group_is_the_first_ones_as_many_as_each_may_run_with(store: Store) -> None:
    ones = crash_together(store, 2, crashes=3)
    eights = crash_together(store, 20, crashes=2, priority=1)
    many = crash_together(store, 70, crashes=1, priority=2)
    order = [*many, *eights, *ones]
    assert store.solo_waiting(["default"]) == 7
    assert store.solo_waiting(["default"], slots=4) == 8

    sizes = list[int]()
    while claimed := claim(store, start(store), 64, solo=True):
        sizes.append(len(claimed))
        assert ids(claimed) == order[: len(claimed)]
        del order[: len(claimed)]

    assert sizes == [63, 8, 8, 8, 3, 1, 1]
    assert store.solo_waiting(["default"]) == 0


def test_a_group_is_from_one_queue_and_fits_its_room(store: Store) -> None:
    crash_together(store, 6, crashes=1)
    put(store, queue="other", isolated=True)

    assert len(store.claim(start(store), {"default": 4, "other": 4}, 10, solo=True)) == 4
    assert len(store.claim(start(store), {"default": 10, "other": 4}, 1, solo=True)) == 1
    assert [each.queue for each in store.claim(start(store), {"empty": 4, "other": 4}, 10, solo=True)] == ["other"]
    assert store.claim("nobody", {"default": 4}, 10, solo=True) == []
    store.pause("default", paused=True)
    assert store.claim(start(store), {"default": 4}, 10, solo=True) == []


def test_a_replay_makes_a_suspect_an_ordinary_job(store: Store) -> None:
    jobs = crash_together(store, 2, crashes=2)
    store.cancel(jobs, "enough")
    store.replay(jobs)

    assert [(view.solo, view.together) for view in (look(store, job) for job in jobs)] == [(False, 1)] * 2
    assert claim(store, start(store), 5, solo=True) == []


def test_a_checkpoint_does_not_widen_the_circle(store: Store) -> None:
    (job,) = crash_together(store, 1, crashes=2)
    lease = claim_one(store, start(store), solo=True)
    store.progress([Progress(lease=lease, checkpoint="1")])
    store.settle(lease.worker_id, {}, Crashed("killed by signal 9", process_died=True))

    view = look(store, job)
    assert (view.crashes, view.solo, view.together) == (1, True, 1)
