"""Every state with every verb of the table: legal moves land where `decide` says, illegal ones change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from conformance.factories import (
    DAY,
    World,
    bring,
    claim_one,
    draft,
    finish,
    look,
    made,
    memory_of,
    put,
    running,
    start,
)
from tenure.core.lifecycle import (
    MOVES,
    VERBS,
    Cancelled,
    Charges,
    Completed,
    Crashed,
    Failed,
    Lease,
    Outcome,
    Released,
    Snoozed,
    State,
    Suspended,
    decide,
    legal,
)
from tenure.core.limits import Key
from tenure.ports import JobView, Landed, Progress, Rescued, Store
from tenure.ports.schedules import Change

OUTCOMES: list[Outcome] = [
    Completed('"result"'),
    Failed("boom"),
    Failed("later", retry_in=120),
    Failed("never again", final=True),
    Snoozed(30, "closed"),
    Suspended("for a word", signal="own:go", timeout=60),
    Released("drain"),
    Cancelled("stopped"),
    Crashed("its lease ended"),
    Crashed("hung", at_fault=True),
    Crashed("killed by signal 9", process_died=True),
]
FLAVOURS: dict[str, dict[str, Any]] = {
    "fresh": {},
    "last failure": {"max_failures": 1},
    "no crash allowed": {"max_crashes": 0},
    "isolated": {"isolated": True},
    "limited": {"limits": (Key("shop:7", "shop:{shop}"),)},
}


def charges(view: JobView) -> Charges:
    return Charges(
        failures=view.failures,
        crashes=view.crashes,
        crashes_total=view.crashes_total,
        max_failures=view.max_failures,
        max_crashes=view.max_crashes,
        retry_base=1.0,
        retry_cap=30.0,
        isolated=view.isolated,
        queue=view.queue,
        solo=view.solo,
        together=view.together,
        cancel_asked=view.cancel_reason is not None,
        limited=bool(view.limits),
    )


def targets(verb: str, source: State, outcome: type[Outcome] | None = None) -> frozenset[State]:
    """Where the table lets a verb lead; by one outcome, if given."""
    moves = [move for move in MOVES if move.verb == verb and source in move.sources]
    found = [move.targets for move in moves if outcome in (None, move.outcome)]
    return frozenset[State]().union(*found)


@dataclass
class Case:
    """A job in some state, an open store that has it, and a lease that would be right if any were."""

    world: World
    store: Store
    lease: Lease

    def prepare(self, verb: str) -> None:
        if verb in ("rescue", "redelivered"):
            self.store.declare_dead([self.lease.worker_id])
        if verb == "prune":
            self.world.advance(8 * DAY)
        if verb == "admit":
            self.store.signal(self.lease.job_id, "own:go", "1")
        if verb == "withdraw":
            self.store.pause("default", paused=True)


def enqueued(case: Case) -> bool:
    return case.store.enqueue([draft(id=case.lease.job_id)])[0].created


def started(case: Case) -> bool:
    guard = start(case.store, runner="guard", queues=())
    change = Change(schedule=made(case.store), drafts=(draft(id=case.lease.job_id),), owner=guard)
    case.store.change([change])
    return bool(case.store.owned(guard))


def promoted(case: Case) -> bool:
    case.world.advance(61)
    found = case.store.promote()
    return "default" in found.jobs or found.limited == 1


def admitted(case: Case) -> bool:
    return bool(case.store.admit().jobs)


def withdrawn(case: Case) -> bool:
    return case.store.withdraw().jobs == 1


def claimed(case: Case) -> bool:
    return bool(case.store.claim(start(case.store), {"default": 1}, 1))


def progressed(case: Case) -> bool:
    return case.store.progress([Progress(lease=case.lease, fraction=0.5)]) == [True]


def recorded(case: Case) -> bool:
    return case.store.once(case.lease, "key", "1") is not None


def finished(case: Case) -> bool:
    # A worker that never had the job: the lease that ended it would rightly be told Landed again.
    processing = look(case.store, case.lease.job_id).state is State.PROCESSING
    lease = case.lease if processing else case.lease._replace(worker_id="a-stranger")
    return finish(case.store, lease, Released("drain")) is not None


def rescued(case: Case) -> bool:
    return [each.id for each in case.store.rescue()] == [case.lease.job_id]


def redelivered(case: Case) -> bool:
    return isinstance(case.store.redelivered(case.lease.job_id, declare=True), Rescued)


def cancelled(case: Case) -> bool:
    before = look(case.store, case.lease.job_id).state
    after = case.store.cancel([case.lease.job_id], "unwanted")[case.lease.job_id]
    assert after is look(case.store, case.lease.job_id).state
    return after is not before or after is State.PROCESSING


def replayed(case: Case) -> bool:
    return isinstance(case.store.replay([case.lease.job_id])[case.lease.job_id], Landed)


def deleted(case: Case) -> bool:
    return isinstance(case.store.delete([case.lease.job_id])[case.lease.job_id], Landed)


def pruned(case: Case) -> bool:
    return case.store.prune(keep=7 * DAY, keep_dead=7 * DAY) == 1


APPLY: dict[str, Callable[[Case], bool]] = {
    "enqueue": enqueued,
    "start": started,
    "promote": promoted,
    "admit": admitted,
    "withdraw": withdrawn,
    "claim": claimed,
    "progress": progressed,
    "once": recorded,
    "finish": finished,
    "rescue": rescued,
    "redelivered": redelivered,
    "cancel": cancelled,
    "replay": replayed,
    "delete": deleted,
    "prune": pruned,
}


#: A job without limits holds no places, so there is nothing to withdraw.
MATRIX = [
    (verb, flavour) for verb in VERBS for flavour in ("fresh", "limited") if (verb, flavour) != ("withdraw", "fresh")
]


@pytest.mark.parametrize(("verb", "flavour"), MATRIX)
@pytest.mark.parametrize("state", State)
def test_a_verb_lands_exactly_where_the_table_allows_it(state: State, verb: str, flavour: str, world: World) -> None:
    case = Case(world, world.store(), Lease("", 0, ""))
    case.lease = bring(case.store, state, **FLAVOURS[flavour])
    case.prepare(verb)
    before = memory_of(case.store, case.lease.job_id)

    landed = APPLY[verb](case)

    assert landed == legal(verb, state)
    if not landed:
        assert memory_of(case.store, case.lease.job_id) == before
    elif verb in ("delete", "prune"):
        assert memory_of(case.store, case.lease.job_id) == (None, [])
    else:
        assert look(case.store, case.lease.job_id).state in targets(verb, state, Released if verb == "finish" else None)


@pytest.mark.parametrize("state", [State.QUEUED, State.SCHEDULED])
def test_an_operator_promotes_only_what_is_scheduled(state: State, store: Store) -> None:
    lease = bring(store, state)

    assert store.promote_now([lease.job_id]) == {lease.job_id: State.QUEUED}
    assert look(store, lease.job_id).state is State.QUEUED


@pytest.mark.parametrize("cancel_asked", [False, True], ids=["wanted", "cancel asked"])
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_an_outcome_leads_where_decide_says(outcome: Outcome, flavour: str, cancel_asked: bool, store: Store) -> None:
    lease = running(store, **FLAVOURS[flavour])
    if cancel_asked:
        store.cancel([lease.job_id], "not needed")
    before = look(store, lease.job_id)

    answers = store.finish([(lease, outcome)])

    after = look(store, lease.job_id)
    expected = decide(charges(before), outcome, draw=0.5)
    assert [each.state for each in answers if isinstance(each, Landed)] == [expected.state]
    assert after.state in targets("finish", State.PROCESSING, type(outcome))
    assert (after.state, after.failures, after.crashes, after.crashes_total, after.solo) == (
        expected.state,
        expected.failures,
        expected.crashes,
        expected.crashes_total,
        expected.solo,
    )
    if expected.delay is None:
        assert after.run_at == before.run_at


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_a_settled_attempt_ends_like_a_finished_one(outcome: Outcome, store: Store) -> None:
    lease = running(store)
    before = look(store, lease.job_id)

    (settled,) = store.settle(lease.worker_id, {lease.job_id: outcome}, Released("a neighbour died"))

    after = look(store, lease.job_id)
    expected = decide(charges(before)._replace(slots=5, neighbours=False), outcome, draw=0.5)
    assert settled.state is after.state is expected.state
    assert (after.failures, after.crashes) == (expected.failures, expected.crashes)
    assert (after.solo, after.together) == (expected.solo, expected.together)


@pytest.mark.parametrize("slots", [5, 500])
def test_a_rescue_leads_where_decide_says(slots: int, world: World) -> None:
    store = world.store()
    job_id = put(store, max_crashes=3)
    for crash in range(4):
        world.advance(60)
        store.promote()
        worker = start(store, slots=slots)
        claim_one(store, worker, solo=look(store, job_id).solo)
        before = look(store, job_id)
        store.declare_dead([worker])
        (rescued,) = store.rescue()

        known = charges(before)._replace(slots=slots, neighbours=False)
        expected = decide(known, Crashed("", process_died=True), draw=0.5)
        after = look(store, job_id)
        assert rescued.state is after.state is expected.state
        assert (after.crashes, after.crashes_total, after.solo) == (crash + 1, crash + 1, True)
        assert after.together == expected.together
    assert look(store, job_id).state is State.DEAD


WRONG: dict[str, Callable[[Lease], Lease]] = {
    "an earlier attempt": lambda lease: lease._replace(attempt=lease.attempt - 1),
    "a later attempt": lambda lease: lease._replace(attempt=lease.attempt + 1),
    "another worker": lambda lease: lease._replace(worker_id=lease.worker_id + "x"),
    "another job": lambda lease: lease._replace(job_id="00000000-0000-0000-0000-000000000000"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
def test_no_outcome_lands_under_a_wrong_lease(outcome: Outcome, wrong: str, store: Store) -> None:
    lease = running(store)
    before = memory_of(store, lease.job_id)

    assert finish(store, WRONG[wrong](lease), outcome) is None

    assert memory_of(store, lease.job_id) == before


@pytest.mark.parametrize("wrong", WRONG)
def test_no_word_of_an_owner_lands_under_a_wrong_lease(wrong: str, store: Store) -> None:
    lease = running(store)
    before = memory_of(store, lease.job_id)
    false = WRONG[wrong](lease)

    assert store.progress([Progress(lease=false, fraction=0.9, checkpoint='"stolen"')]) == [False]
    assert store.once(false, "key", '"stolen"') is None
    assert store.once(false, "key", None) is None

    assert memory_of(store, lease.job_id) == before
    found = store.once(lease, "key", None)
    assert found is not None
    assert found.value is None


@pytest.mark.parametrize("state", [state for state in State if state is not State.PROCESSING])
def test_a_former_owner_can_only_repeat_its_outcome(state: State, store: Store) -> None:
    lease = bring(store, state)
    before = memory_of(store, lease.job_id)

    assert store.progress([Progress(lease=lease, fraction=0.9)]) == [False]
    assert store.once(lease, "key", '"late"') is None
    assert finish(store, lease, Snoozed(5)) is None
    assert finish(store, lease, Crashed("late")) is None

    assert memory_of(store, lease.job_id) == before
