from __future__ import annotations

import doctest
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core import lifecycle
from tenure.core.lifecycle import (
    ENDED,
    GUARD,
    LIVE,
    MOVES,
    TOTAL_CRASHES,
    VERBS,
    Cancelled,
    Charges,
    Completed,
    Crashed,
    Failed,
    Needs,
    Outcome,
    Released,
    Snoozed,
    State,
    decide,
    group_size,
    legal,
    narrowed,
    outcome_name,
)

FRESH = Charges(
    failures=0,
    crashes=0,
    crashes_total=0,
    max_failures=3,
    max_crashes=3,
    retry_base=1.0,
    retry_cap=30.0,
    isolated=False,
    queue="default",
    solo=False,
    together=1,
    cancel_asked=False,
)
ALONE = FRESH._replace(solo=True, together=1, neighbours=False)  # alone in its process, as the store's rows say
DIED = Crashed("x", process_died=True)  # for a reason that is not known
HUNG = Crashed("x", at_fault=True)
LEASE_ENDED = Crashed("x")

text = st.text(max_size=5)
seconds = st.floats(0, 1e6)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Completed, text),
    st.builds(Failed, text, retry_in=st.none() | seconds, final=st.booleans()),
    st.builds(Snoozed, seconds, text),
    st.builds(Released, text),
    st.builds(Cancelled, text),
    st.builds(Crashed, text, process_died=st.booleans(), at_fault=st.booleans()),
)
charges = st.builds(
    Charges,
    failures=st.integers(0, 12),
    crashes=st.integers(0, 6),
    crashes_total=st.integers(0, 25),
    max_failures=st.integers(1, 12),
    max_crashes=st.integers(0, 30),
    retry_base=st.floats(0, 100),
    retry_cap=st.floats(0, 1000),
    isolated=st.booleans(),
    queue=st.sampled_from(["default", GUARD]),
    solo=st.booleans(),
    together=st.integers(1, 64),
    cancel_asked=st.booleans(),
    slots=st.integers(1, 1000),
    neighbours=st.booleans(),
)
draws = st.floats(0, 1, exclude_max=True)


# ── the table ──


def test_every_state_is_live_or_ended() -> None:
    assert frozenset(State) == LIVE | ENDED
    assert not LIVE & ENDED


def test_the_table_knows_the_verbs_of_the_words_page() -> None:
    assert set(VERBS) == {
        *("enqueue", "promote", "claim", "progress", "once", "finish", "rescue", "redelivered"),
        *("start", "admit", "withdraw", "cancel", "replay", "delete", "prune"),
    }


def test_every_state_is_reached_and_can_be_left() -> None:
    entered = frozenset[State]().union(*(move.targets for move in MOVES if not move.sources & move.targets))
    left = frozenset[State]().union(*(move.sources for move in MOVES if not move.sources & move.targets))

    assert entered == left == frozenset(State)


def test_only_a_live_workers_word_starts_processing_and_only_its_end_leaves_it() -> None:
    others = [move for move in MOVES if move.sources != move.targets]

    begun = [move for move in others if State.PROCESSING in move.targets]
    assert {(move.verb, move.needs) for move in begun} == {
        ("claim", Needs.LIVE_WORKER),
        ("start", Needs.LIVE_WORKER),
    }
    assert {move.verb for move in others if State.PROCESSING in move.sources} == {"finish", "rescue", "redelivered"}


def test_what_has_ended_is_touched_by_operators_and_age_alone() -> None:
    assert {move.needs for move in MOVES if move.sources & ENDED} == {Needs.OPERATOR, Needs.AGE}


def test_every_word_of_an_owner_needs_its_lease() -> None:
    assert {move.verb for move in MOVES if move.needs is Needs.LEASE} == {"progress", "once", "finish"}


@pytest.mark.parametrize("verb", VERBS)
def test_legal_is_what_the_table_says(verb: str) -> None:
    for state in State:
        assert legal(verb, state) == any(move.verb == verb and state in move.sources for move in MOVES)


def test_an_unknown_verb_is_never_legal() -> None:
    assert not any(legal("reap", state) for state in State)


# ── the decision ──


@given(charges, outcomes, draws)
def test_a_decision_stays_within_the_table(job: Charges, outcome: Outcome, draw: float) -> None:
    decision = decide(job, outcome, draw)

    (targets,) = [move.targets for move in MOVES if move.verb == "finish" and move.outcome is type(outcome)]
    assert decision.state in targets


@given(charges, outcomes, draws)
def test_nothing_is_ever_paid_back(job: Charges, outcome: Outcome, draw: float) -> None:
    decision = decide(job, outcome, draw)

    charged = (
        decision.failures - job.failures,
        decision.crashes - job.crashes,
        decision.crashes_total - job.crashes_total,
    )
    failed, crashed = isinstance(outcome, Failed), isinstance(outcome, Crashed)
    # The crashes of a job that has used up its budget, and is not known to be the cause, stay as they are.
    kept = decision.state is not State.DEAD and job.crashes >= job.max_crashes
    assert charged == (failed, crashed and not kept, crashed) or job.cancel_asked


@given(charges, outcomes, draws)
def test_exactly_a_scheduled_job_has_a_delay(job: Charges, outcome: Outcome, draw: float) -> None:
    decision = decide(job, outcome, draw)

    assert (decision.delay is not None) == (decision.state is State.SCHEDULED)
    assert decision.delay is None or decision.delay >= 0


@given(charges, outcomes, draws)
def test_a_cancel_asked_never_lets_a_job_run_again(job: Charges, outcome: Outcome, draw: float) -> None:
    decision = decide(job._replace(cancel_asked=True), outcome, draw)

    assert decision.state is (State.COMPLETED if isinstance(outcome, Completed) else State.CANCELLED)


@given(charges, outcomes, draws, draws)
def test_chance_moves_the_delay_and_nothing_else(job: Charges, outcome: Outcome, one: float, two: float) -> None:
    assert replace(decide(job, outcome, one), delay=None) == replace(decide(job, outcome, two), delay=None)


@given(charges, outcomes, draws)
def test_an_isolated_job_stays_alone(job: Charges, outcome: Outcome, draw: float) -> None:
    assert decide(job._replace(isolated=True, solo=True), outcome, draw).solo


@pytest.mark.parametrize(
    ("outcome", "state", "delay"),
    [
        (Completed(), State.COMPLETED, None),
        (Cancelled(), State.CANCELLED, None),
        (Released(), State.QUEUED, None),
        (Snoozed(7.0), State.SCHEDULED, 7.0),
        (Failed("x"), State.SCHEDULED, 1.0),
        (Failed("x", retry_in=90.0), State.SCHEDULED, 90.0),
        (Failed("x", retry_in=0.0), State.SCHEDULED, 0.0),
        (Failed("x", final=True), State.DEAD, None),
        (Failed("x", retry_in=90.0, final=True), State.DEAD, None),
        (Crashed("x"), State.QUEUED, None),
    ],
    ids=repr,
)
def test_a_fresh_job_goes_where_its_outcome_leads(outcome: Outcome, state: State, delay: float | None) -> None:
    decision = decide(FRESH, outcome, draw=0.5)

    assert (decision.state, decision.delay) == (state, delay)


@pytest.mark.parametrize(("failures", "state"), [(0, State.SCHEDULED), (1, State.SCHEDULED), (2, State.DEAD)])
def test_max_failures_counts_failures(failures: int, state: State) -> None:
    assert decide(FRESH._replace(failures=failures), Failed("x"), 0.5).state is state


@pytest.mark.parametrize(
    ("crashes", "state"),
    [(0, State.QUEUED), (1, State.SCHEDULED), (2, State.SCHEDULED), (3, State.DEAD)],
)
def test_max_crashes_are_survived(crashes: int, state: State) -> None:
    assert decide(FRESH._replace(crashes=crashes), HUNG, 0.5).state is state
    assert decide(ALONE._replace(crashes=crashes), DIED, 0.5).state is state


def test_a_job_without_a_crash_budget_runs_alone_after_a_crash_that_may_be_anothers() -> None:
    common = decide(FRESH._replace(max_crashes=0), DIED, 0.5)

    assert (common.state, common.crashes, common.crashes_total) == (State.QUEUED, 0, 1)
    assert (common.solo, common.together) == (True, 1)
    assert decide(ALONE._replace(max_crashes=0), DIED, 0.5).state is State.DEAD


@given(charges, st.sampled_from([DIED, LEASE_ENDED]), draws)
def test_nobody_is_dead_for_the_crash_of_another_job(job: Charges, crash: Crashed, draw: float) -> None:
    decision = decide(job, crash, draw)

    alone = job.solo and job.together == 1 and not job.neighbours
    if not alone and job.queue != GUARD:
        assert decision.state is not State.DEAD
        assert decision.crashes <= max(job.max_crashes, job.crashes)
    if decision.state is not State.DEAD and job.crashes >= job.max_crashes:
        assert (decision.solo, decision.together) == (True, 1)


def test_what_takes_its_host_along_each_time_ends_after_twenty_crashes() -> None:
    """Nothing proves that its process died. Past its budget it runs alone, after ever longer delays."""
    job, delays = FRESH, list[float | None]()
    while (decision := decide(job, LEASE_ENDED, 0.5)).state is not State.DEAD:
        delays.append(decision.delay)
        spent = {"crashes": decision.crashes, "crashes_total": decision.crashes_total}
        job = job._replace(**spent, solo=decision.solo, together=decision.together, neighbours=False)

    assert len(delays) == TOTAL_CRASHES
    assert delays[:5] == [None, 0.5, 1.0, 2.0, 4.0]
    assert delays[-1] == 15.0


@given(charges, st.lists(outcomes, max_size=30), draws)
def test_a_circle_of_suspects_never_grows(job: Charges, ends: list[Outcome], draw: float) -> None:
    for outcome in ends:
        decision = decide(job, outcome, draw)
        assert decision.solo or not job.solo
        if job.solo:
            assert decision.together <= job.together
        if isinstance(outcome, Crashed) and decision.solo:
            assert decision.together <= narrowed(job.together if job.solo else job.slots)
        job = job._replace(solo=decision.solo, together=decision.together, crashes=0)


@pytest.mark.parametrize(
    ("slots", "circles"),
    [(1, [1, 1, 1]), (5, [1, 1, 1]), (15, [1, 1, 1]), (16, [2, 1, 1]), (100, [13, 1, 1]), (500, [63, 8, 1])],
)
def test_each_common_crash_narrows_the_circle(slots: int, circles: list[int]) -> None:
    job, found = FRESH._replace(slots=slots), list[int]()
    for _ in circles:
        decision = decide(job, DIED, 0.5)
        found.append(decision.together)
        job = job._replace(crashes=decision.crashes, solo=decision.solo, together=decision.together)

    assert found == circles


@given(st.lists(st.integers(1, 64), max_size=80))
def test_in_a_group_each_runs_with_no_more_than_it_may(together: list[int]) -> None:
    size = group_size(together)

    assert (size > 0) == bool(together)
    assert all(size <= each for each in together[:size])
    if size < len(together):  # it is the largest such group
        assert size + 1 > min(together[: size + 1])


def test_a_guards_job_is_dead_however_its_guard_is_lost() -> None:
    for crash in (DIED, HUNG, LEASE_ENDED):
        assert decide(FRESH._replace(queue=GUARD, max_crashes=0), crash, 0.5).state is State.DEAD


@pytest.mark.parametrize(
    ("total", "max_crashes", "state"),
    [
        (TOTAL_CRASHES - 1, 3, State.QUEUED),
        (TOTAL_CRASHES, 3, State.DEAD),
        (TOTAL_CRASHES, 30, State.QUEUED),
        (30, 30, State.DEAD),
    ],
)
def test_checkpoints_do_not_forgive_for_ever(total: int, max_crashes: int, state: State) -> None:
    spent = {"crashes_total": total, "max_crashes": max_crashes}
    assert decide(FRESH._replace(**spent), HUNG, 0.5).state is state
    assert decide(ALONE._replace(**spent), DIED, 0.5).state is state
    assert decide(FRESH._replace(**spent), DIED, 0.5).state is not State.DEAD


@pytest.mark.parametrize(
    ("crashes", "outcome", "solo"),
    [
        (0, Crashed("x"), False),
        (0, Crashed("x", process_died=True), True),
        (1, Crashed("x"), True),
        (1, Released(), False),
    ],
)
def test_whoever_may_have_killed_its_process_runs_alone(crashes: int, outcome: Outcome, solo: bool) -> None:
    assert decide(FRESH._replace(crashes=crashes), outcome, 0.5).solo == solo


@given(charges, outcomes, draws)
def test_a_suspect_is_one_until_it_ends(job: Charges, outcome: Outcome, draw: float) -> None:
    assert decide(job._replace(solo=True), outcome, draw).solo


def test_later_crashes_wait_longer() -> None:
    job = FRESH._replace(max_crashes=9)

    delays = [decide(job._replace(crashes=crashes), Crashed("x"), 0.5).delay for crashes in range(8)]

    assert delays == [None, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_outcomes_are_written_in_one_word() -> None:
    every: list[Outcome] = [Completed(), Failed(""), Snoozed(1), Released(), Cancelled(), Crashed("")]

    names = [outcome_name(outcome) for outcome in every]

    assert names == ["completed", "failed", "snoozed", "released", "cancelled", "crashed"]


def test_an_outcome_cannot_be_changed_after_the_fact() -> None:
    outcome: Any = Failed("boom")

    with pytest.raises(FrozenInstanceError):
        outcome.final = True


def test_the_examples_in_the_docstrings_are_true() -> None:
    result = doctest.testmod(lifecycle)

    assert result.attempted > 0
    assert result.failed == 0
