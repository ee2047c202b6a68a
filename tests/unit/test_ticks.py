"""What becomes of a tick, decided by pure functions: overlap, catch-up, expiry, pauses, changes, guards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest

from conformance.factories import draft, schedule
from tenure.core.lifecycle import ENDED, GUARD, State
from tenure.errors import InvalidOption
from tenure.ports import AttemptView, JobView
from tenure.ports.schedules import (
    CATCH_UPS,
    OVERLAPS,
    CatchUp,
    Change,
    Dst,
    Overlap,
    Run,
    Schedule,
    Standing,
    Tick,
    decode_schedule,
    decode_tick,
)
from tenure.schedules.cron import Cron, Every, read
from tenure.schedules.guard_plan import Began, Held, begin_guard
from tenure.schedules.plan import RECHECK_SECONDS, Plan, Refused, jitter, overdue_by, run_id, set_back
from tenure.stores.rules import body_of

NOON = datetime(2027, 1, 15, 12, tzinfo=UTC)
HOUR, DAY = 3_600.0, 86_400.0


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def no_attempts(_: str) -> Sequence[AttemptView]:
    return ()


def declared(now: datetime = NOON, **options: Any) -> Schedule:
    """A schedule as it is once declared; hourly, named s."""
    new = schedule(**{"name": "s", "rule": "every 1h", **options})
    change = Plan(Standing(new.but(rev=0)), now).declare(new).change()
    assert change is not None
    return change.stored


def job(state: State, job_id: str = "job", **options: Any) -> JobView:
    given: dict[str, Any] = dict.fromkeys(field.name for field in fields(JobView))
    given |= dict.fromkeys(("attempt", "failures", "crashes", "crashes_total", "priority"), 0)
    given |= {
        "id": job_id,
        "task": "work",
        "queue": "default",
        "payload": "{}",
        "meta": {"schedule": "s"},
        "state": state,
    }
    given |= {"max_failures": 10, "max_crashes": 3, "solo": False, "isolated": False}
    given |= {"enqueued_at": NOON, "run_at": NOON, "ended_at": NOON if state in ENDED else None, **options}
    return JobView(**given)


def run(seconds: float, state: State | None = State.PROCESSING, cause: str = "tick", **options: Any) -> Run:
    """An open run of the tick `seconds` after noon, with a job in that state (None: deleted)."""
    opened: dict[str, Any] = {"schedule": "s", "tick": at(seconds), "cause": cause, "decided_at": at(seconds)}
    view = None if state is None else job(state, f"job-{seconds:g}", **options)
    return Run(Tick(**opened, job_id=f"job-{seconds:g}"), view, None)


def succeeded(seconds: float, *, until: float) -> Run:
    return run(seconds, State.COMPLETED, attempt=1, started_at=at(seconds), ended_at=at(until))


def fired(stands: Schedule, seconds: float, *runs: Run) -> Change:
    change = Plan(Standing(stands, runs), at(seconds)).close(no_attempts).fire().change()
    assert change is not None
    return change


def after_one(**options: Any) -> Schedule:
    """A schedule whose tick at one o'clock was fired in time."""
    return fired(declared(**options), HOUR).stored


def nothing(stands: Schedule, seconds: float, *runs: Run) -> bool:
    return Plan(Standing(stands, runs), at(seconds)).close(no_attempts).fire().change() is None


def offset(moment: datetime | None) -> float | None:
    return None if moment is None else (moment - NOON).total_seconds()


def began(change: Change) -> list[float | None]:
    """The ticks of the jobs that begin, in seconds after noon."""
    ids = {draft.id for draft in change.drafts}
    return [offset(tick.tick) for tick in change.ticks if tick.job_id in ids]


def told(change: Change) -> list[tuple[str, float | None, float | None, int]]:
    """What the history says of ticks that did not become jobs: status, from, to, how many."""
    return [(t.status, offset(t.tick), offset(t.until), t.count) for t in change.ticks if t.status != "open"]


# ── declared ──


def test_the_first_tick_comes_after_the_declaration() -> None:
    stands = declared()

    assert (stands.rev, stands.since, stands.next_tick, stands.due_at) == (1, NOON, at(HOUR), at(HOUR))
    assert nothing(stands, HOUR - 1)


def test_the_same_declaration_changes_nothing() -> None:
    stands = declared()

    assert Plan(Standing(stands), at(5)).declare(stands.but(rev=0, since=None, next_tick=None)).change() is None


@pytest.mark.parametrize(("start", "end", "ticks"), [(HOUR, 3 * HOUR, [1, 2, 3]), (HOUR + 1, 3 * HOUR - 1, [2])])
def test_ticks_lie_between_start_and_end(start: float, end: float, ticks: list[int]) -> None:
    stands, found = declared(start=at(start), end=at(end)), list[float | None]()
    for _ in range(5):
        if stands.due_at is None:
            break
        change = fired(stands, offset(stands.due_at) or 0)
        found += began(change)
        stands = change.stored

    assert found == [tick * HOUR for tick in ticks]
    assert (stands.next_tick, stands.due_at) == (None, None)
    assert nothing(stands, 10 * DAY)


def test_a_start_may_lie_as_far_back_as_times_go() -> None:
    assert declared(start=datetime.min.replace(tzinfo=UTC)).next_tick == at(HOUR)


def test_a_schedule_that_was_over_before_it_was_declared_never_fires() -> None:
    stands = declared(end=at(-1))

    assert (stands.next_tick, stands.due_at) == (None, None)


def test_what_was_missed_before_the_end_is_made_up_for_after_it() -> None:
    change = fired(declared(end=at(2 * HOUR)), 5 * HOUR)

    assert (told(change), began(change)) == ([("missed", HOUR, None, 1)], [2 * HOUR])
    assert change.stored.due_at is None


# ── on time ──


def test_a_tick_becomes_one_job_that_names_it() -> None:
    stands = declared(job=draft(id="", task="report", queue="mail", payload='{"a":1}', meta='{"by":"me"}', priority=4))

    change = fired(stands, HOUR + 0.2)

    (opened,), (work,) = change.ticks, change.drafts
    assert stands.job is not None
    assert work == stands.job.but(id=run_id("s", at(HOUR), "tick"), meta=work.meta)
    assert json.loads(work.meta) == {"by": "me", "schedule": "s", "tick": "2027-01-15T13:00:00+00:00"}
    assert opened == Tick(schedule="s", tick=at(HOUR), job_id=work.id, decided_at=at(HOUR + 0.2))
    after = change.stored
    assert (after.rev, after.last_tick, after.next_tick, after.due_at) == (2, at(HOUR), at(2 * HOUR), at(2 * HOUR))
    assert nothing(after, HOUR + 0.3, run(HOUR))


def test_a_late_tick_does_not_move_the_next_one() -> None:
    change = fired(declared(), HOUR + 1_000)

    assert began(change) == [HOUR]
    assert change.stored.next_tick == at(2 * HOUR)


def test_a_clock_that_is_set_back_fires_nothing_twice() -> None:
    after = fired(declared(), HOUR).stored

    assert nothing(after, HOUR - 10)
    assert nothing(after, -DAY)
    assert began(fired(after, 2 * HOUR)) == [2 * HOUR]


@pytest.mark.parametrize("idle", ["paused_at", "retired_at"])
def test_an_idle_schedule_fires_nothing(idle: str) -> None:
    since: dict[str, Any] = {idle: NOON}

    assert nothing(declared().but(**since, due_at=None), 5 * HOUR)


# ── the id of a run ──


def test_the_id_of_a_run_is_a_uuid7_of_its_tick_whoever_fires_it() -> None:
    ids = {run_id(name, at(n), cause) for name in ("s", "t") for n in range(200) for cause in ("tick", "backfill")}

    assert len(ids) == 800
    for each in map(UUID, ids):
        assert (each.version, each.variant) == (7, "specified in RFC 4122")
        assert NOON.timestamp() <= (each.int >> 80) / 1000 < at(200).timestamp()
    assert run_id("s", NOON, "tick") == "01a31938-0a00-70d0-a7e7-7f7eb58eb98b"
    paris = NOON.astimezone(Every(60).local(NOON).tzinfo)
    assert run_id("s", paris, "tick") == run_id("s", NOON, "tick")


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_a_tick_of_any_year_has_an_id(year: int) -> None:
    UUID(run_id("s", datetime(year, 6, 1, tzinfo=UTC), "tick"))


# ── missed ──


@pytest.mark.parametrize(
    ("catch_up", "missed", "runs"),
    [("skip", (HOUR, 3 * HOUR, 3), []), ("latest", (HOUR, 2 * HOUR, 2), [3 * HOUR]), ("all", None, [HOUR])],
)
def test_down_across_three_ticks(catch_up: CatchUp, missed: tuple[float, float, int] | None, runs: list[float]) -> None:
    change = fired(declared(catch_up=catch_up), 3.5 * HOUR)

    assert told(change) == ([] if missed is None else [("missed", *missed)])
    assert began(change) == runs
    if catch_up != "all":
        assert change.stored.next_tick == at(4 * HOUR)
        assert change.stored.due_at == at(4 * HOUR)


def test_one_missed_tick_is_a_row_without_an_end() -> None:
    change = fired(declared(catch_up="skip"), 1.5 * HOUR)

    assert told(change) == [("missed", HOUR, None, 1)]
    assert "30m late" in change.ticks[0].why


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_a_tick_a_minute_late_was_not_missed(catch_up: CatchUp) -> None:
    change = fired(declared(catch_up=catch_up), HOUR + 59)

    assert (told(change), began(change)) == ([], [HOUR])


def test_skip_runs_the_newest_tick_that_is_still_on_time() -> None:
    change = fired(declared(catch_up="skip"), 3 * HOUR + 20)

    assert told(change) == [("missed", HOUR, 2 * HOUR, 2)]
    assert began(change) == [3 * HOUR]


def caught_up(stands: Schedule, now: float, takes: float) -> tuple[list[float | None], list[tuple[Any, ...]]]:
    """Fire until nothing waits; each run takes `takes` seconds. Which ran, in order, and what else the history says."""
    ran, notes, runs = list[float | None](), list[tuple[Any, ...]](), tuple[Run, ...]()
    for _ in range(200):
        change = Plan(Standing(stands, runs), at(now)).close(no_attempts).fire().change()
        if change is None:
            break
        stands = change.stored
        ran += began(change)
        notes += [told for told in told(change) if told[0] in ("missed", "skipped")]
        ended = (succeeded(each or 0, until=now + takes) for each in began(change))
        runs = tuple(each._replace(tick=replace(each.tick, decided_at=at(now))) for each in ended)
        now += takes
    return ran, notes


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_all_runs_what_was_missed_one_after_another_oldest_first(overlap: Overlap) -> None:
    ran, notes = caught_up(declared(catch_up="all", overlap=overlap), 5.1 * HOUR, takes=60)

    assert (ran, notes) == ([HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 5 * HOUR], [])


def test_all_with_allow_runs_what_was_missed_at_once() -> None:
    change = fired(declared(catch_up="all", overlap="allow"), 3.1 * HOUR)

    assert began(change) == [HOUR, 2 * HOUR, 3 * HOUR]
    assert change.stored.due_at == at(4 * HOUR)


def test_all_catches_up_what_became_due_meanwhile_too() -> None:
    ran, notes = caught_up(declared(catch_up="all"), 3.9 * HOUR, takes=0.2 * HOUR)

    assert ran[:4] == [HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]
    assert notes == []


@pytest.mark.parametrize(
    ("limit", "missed", "oldest"),
    [
        ({"catch_up_max": 3}, (HOUR, 7 * HOUR, 7), 8 * HOUR),
        ({"catch_up_window": 4 * HOUR}, (HOUR, 6 * HOUR, 6), 7 * HOUR),
        ({"catch_up_window": 4 * HOUR, "catch_up_max": 1}, (HOUR, 9 * HOUR, 9), 10 * HOUR),
    ],
)
def test_all_is_limited_by_window_and_number(
    limit: dict[str, Any], missed: tuple[float, float, int], oldest: float
) -> None:
    ran, notes = caught_up(declared(catch_up="all", **limit), 10.5 * HOUR, takes=60)

    assert notes == [("missed", *missed)]
    assert ran == [hour * HOUR for hour in range(int(oldest / HOUR), 11)]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_ticks_before_the_window_are_not_made_up_for(catch_up: CatchUp) -> None:
    stands = declared(rule="every 1d", catch_up=catch_up, catch_up_window=HOUR)
    first = offset(stands.next_tick) or 0

    change = fired(stands, first + 2 * DAY + 2 * HOUR)

    assert told(change) == [("missed", first, first + 2 * DAY, 3)]
    assert began(change) == []


@pytest.mark.parametrize("month", [3, 10], ids=["clocks go forward", "clocks go back"])
@pytest.mark.parametrize("dst", get_args(Dst))
@pytest.mark.parametrize("rule", ["30 2 * * *", "*/20 2 * * *", "0,30 1-3 * * *", "*/15 * * * *", "0 0 * * *"])
def test_the_same_ticks_come_on_time_and_made_up_for_when_the_clocks_change(rule: str, dst: Dst, month: int) -> None:
    since = datetime(2027, month, 26 if month == 3 else 29, 12, tzinfo=UTC)
    until = since + timedelta(days=4)
    before = declared(since, rule=rule, tz="Europe/Paris", dst=dst, overlap="allow", catch_up="all", catch_up_max=1_000)
    stands, on_time = before, list[datetime]()
    while stands.due_at is not None and stands.due_at <= until:
        change = Plan(Standing(stands), stands.due_at).fire().change()
        assert change is not None
        (opened,) = change.ticks
        on_time.append(opened.tick)
        stands = change.stored

    made_up = Plan(Standing(before), until).fire().change()
    latest = Plan(Standing(before.but(catch_up="latest")), until).fire().change()

    assert made_up is not None
    assert [tick.tick for tick in made_up.ticks] == on_time
    assert latest is not None
    assert sum(tick.count for tick in latest.ticks) == len(on_time)
    assert made_up.stored.next_tick == latest.stored.next_tick == stands.next_tick


def test_what_waits_to_be_caught_up_waits_for_the_run_and_looks_again() -> None:
    first = fired(declared(catch_up="all"), 3.5 * HOUR).stored
    going = run(HOUR)

    assert first.due_at == at(3.5 * HOUR + RECHECK_SECONDS)
    looked = fired(first, 3.5 * HOUR + RECHECK_SECONDS, going)
    assert (looked.ticks, looked.drafts) == ((), ())
    assert looked.stored.due_at == at(3.5 * HOUR + 2 * RECHECK_SECONDS)
    again = fired(looked.stored, 3.6 * HOUR, succeeded(HOUR, until=3.55 * HOUR))
    assert began(again) == [2 * HOUR]


def test_whoever_only_writes_down_the_end_of_a_run_leaves_what_waited_to_be_fired_now() -> None:
    waiting = fired(declared(catch_up="all"), 3.5 * HOUR).stored

    change = (
        Plan(Standing(waiting, (succeeded(HOUR, until=3.5 * HOUR),)), at(3.5 * HOUR + 1)).close(no_attempts).change()
    )

    assert change is not None
    assert change.stored.due_at == at(3.5 * HOUR + 1)


TEN_YEARS = 3_652 * DAY


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every question that a rule is asked."""
    asked: list[str] = []

    def counted(kind: type[Any], name: str) -> None:
        ask: Callable[..., Any] = getattr(kind, name)

        def asks(*args: Any) -> Any:
            asked.append(name)
            return ask(*args)

        monkeypatch.setattr(kind, name, asks)

    for kind in (Every, Cron):
        for name in ("after", "upto", "between", "count"):
            counted(kind, name)
    return asked


@pytest.mark.parametrize("catch_up", CATCH_UPS)
def test_ten_years_of_seconds_are_one_row_with_their_number_and_no_loop(catch_up: CatchUp, steps: list[str]) -> None:
    stands = declared(rule="every 1s", catch_up=catch_up, overlap="allow")
    steps.clear()

    change = fired(stands, TEN_YEARS + 0.5)

    ran = {"skip": 1, "latest": 1, "all": 100}[catch_up]
    assert told(change) == [("missed", 1, TEN_YEARS - ran, TEN_YEARS - ran)]
    assert began(change) == [TEN_YEARS - n for n in reversed(range(ran))]
    assert "between" not in steps
    assert len(steps) < 300


def test_ten_years_of_pause_are_one_row(steps: list[str]) -> None:
    stands = declared(rule="every 1s").but(paused_at=NOON)
    steps.clear()

    change = Plan(Standing(stands), at(TEN_YEARS + 0.5)).resume().change()

    assert change is not None
    assert told(change) == [("skipped", 1, TEN_YEARS, TEN_YEARS)]
    assert len(steps) < 10


def test_ten_years_of_a_cron_expression_are_counted_up_to_a_number(steps: list[str]) -> None:
    stands = declared(rule="* * * * *")
    steps.clear()

    change = fired(stands, TEN_YEARS + 1)

    ((status, since, until, count),) = told(change)
    assert (status, since, until, count) == ("missed", 60, TEN_YEARS - 60, 10_000)
    assert "10000" in change.ticks[0].why
    assert len(steps) < 20


# ── overlap ──


def test_skip_says_which_run_goes_on() -> None:
    change = fired(after_one(), 2 * HOUR, run(HOUR, started_at=at(HOUR)))

    assert told(change) == [("skipped", 2 * HOUR, None, 1)]
    assert "job job-3600 of the previous run has been processing for 1h" in change.ticks[0].why
    assert change.stored.next_tick == at(3 * HOUR)


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.PROCESSING])
def test_skip_skips_as_long_as_the_job_has_not_ended_also_while_it_waits_to_retry(state: State) -> None:
    change = fired(after_one(), 2 * HOUR, run(HOUR, state, attempt=1))

    assert (told(change), began(change)) == ([("skipped", 2 * HOUR, None, 1)], [])


@pytest.mark.parametrize("ended", [State.COMPLETED, State.DEAD, State.CANCELLED, None])
def test_the_next_tick_runs_once_the_job_has_ended_or_is_gone(ended: State | None) -> None:
    assert began(fired(after_one(), 2 * HOUR, run(HOUR, ended))) == [2 * HOUR]


def test_queue_keeps_one_tick_and_skips_the_later_ones() -> None:
    going = run(HOUR)
    first = fired(after_one(overlap="queue"), 2 * HOUR, going)
    assert (first.ticks, first.drafts, first.stored.pending_tick) == ((), (), at(2 * HOUR))
    assert first.stored.due_at == at(2 * HOUR + RECHECK_SECONDS)

    second = fired(first.stored, 3 * HOUR, going)
    assert told(second) == [("skipped", 3 * HOUR, None, 1)]
    assert "is already waiting" in second.ticks[0].why

    third = fired(second.stored, 3.2 * HOUR, succeeded(HOUR, until=3.2 * HOUR))
    assert began(third) == [2 * HOUR]
    assert third.stored.pending_tick is None
    assert third.stored.due_at == at(4 * HOUR)


def test_a_tick_that_waited_begins_before_the_one_that_comes_just_then() -> None:
    waiting = fired(after_one(overlap="queue"), 2 * HOUR, run(HOUR)).stored

    change = fired(waiting, 3 * HOUR, succeeded(HOUR, until=3 * HOUR))

    assert began(change) == [2 * HOUR]
    assert change.stored.pending_tick == at(3 * HOUR)


def test_replace_asks_the_run_to_stop_and_the_newest_waits() -> None:
    going = run(HOUR)
    first = fired(after_one(overlap="replace"), 2 * HOUR, going)
    assert (first.cancel, first.drafts, first.stored.pending_tick) == (("job-3600",), (), at(2 * HOUR))

    asked = run(HOUR, cancel_reason="a newer tick")
    second = fired(first.stored, 3 * HOUR, asked)
    assert second.cancel == ()
    assert told(second) == [("skipped", 2 * HOUR, None, 1)]
    assert second.stored.pending_tick == at(3 * HOUR)

    third = fired(second.stored, 3.1 * HOUR, run(HOUR, State.CANCELLED))
    assert began(third) == [3 * HOUR]


def test_replace_runs_the_newest_when_the_run_stops_as_a_newer_tick_comes() -> None:
    waiting = fired(after_one(overlap="replace"), 2 * HOUR, run(HOUR)).stored

    change = fired(waiting, 3 * HOUR, run(HOUR, State.CANCELLED))

    assert began(change) == [3 * HOUR]
    assert ("skipped", 2 * HOUR, None, 1) in told(change)
    assert change.stored.pending_tick is None


def test_allow_runs_beside() -> None:
    assert began(fired(after_one(overlap="allow"), 2 * HOUR, run(HOUR))) == [2 * HOUR]


# ── too late ──


@pytest.mark.parametrize(("late", "left"), [(0.0, 600.0), (59.0, 541.0), (599.0, 1.0)])
def test_a_job_has_what_is_left_of_its_time(late: float, left: float) -> None:
    (work,) = fired(declared(expires=600.0), HOUR + late).drafts

    assert work.expires == pytest.approx(left)


def test_a_tick_that_is_too_late_is_skipped_and_says_so() -> None:
    change = fired(declared(expires=600.0), HOUR + 600)

    assert (told(change), began(change)) == ([("skipped", HOUR, None, 1)], [])
    assert "too late: 10m after its time" in change.ticks[0].why
    assert change.stored.next_tick == at(2 * HOUR)


def test_a_tick_that_waited_too_long_is_skipped_as_too_late() -> None:
    waiting = fired(after_one(overlap="queue", expires=600.0), 2 * HOUR, run(HOUR)).stored

    change = fired(waiting, 2 * HOUR + 700, succeeded(HOUR, until=2 * HOUR + 700))

    assert ("skipped", 2 * HOUR, None, 1) in told(change)
    assert began(change) == []
    assert change.stored.pending_tick is None


def test_all_skips_those_that_are_too_late_and_runs_the_rest() -> None:
    change = fired(declared(catch_up="all", expires=1.5 * HOUR), 3.2 * HOUR)

    assert told(change) == [("skipped", HOUR, None, 1)]
    assert began(change) == [2 * HOUR]


def test_what_an_operator_asks_for_is_never_too_late() -> None:
    plan = Plan(Standing(declared(expires=60.0)), at(5 * HOUR)).backfill([at(HOUR)]).trigger(force=True)

    assert [work.expires for work in plan.drafts] == [None, None]


# ── jitter ──


def test_jitter_is_the_same_for_everyone_and_within_its_bounds() -> None:
    stands = declared(jitter=600.0)
    drawn = [jitter(stands, at(n * HOUR)).total_seconds() for n in range(500)]

    assert drawn == [jitter(stands.but(rev=9), at(n * HOUR)).total_seconds() for n in range(500)]
    assert all(0 <= each < 600 for each in drawn)
    assert min(drawn) < 60
    assert max(drawn) > 540
    assert len(set(drawn)) > 450
    assert drawn != [jitter(stands.but(name="t"), at(n * HOUR)).total_seconds() for n in range(500)]


def test_a_tick_with_jitter_is_fired_after_it_and_keeps_its_own_time() -> None:
    stands = declared(jitter=600.0)
    waits = jitter(stands, at(HOUR)).total_seconds()

    assert stands.due_at == at(HOUR + waits)
    assert nothing(stands, HOUR + waits - 0.001)
    assert began(fired(stands, HOUR + waits)) == [HOUR]


def test_jitter_alone_misses_nothing() -> None:
    stands, ran = declared(rule="every 1m", jitter=59.0, catch_up="skip", overlap="allow"), list[float | None]()
    for _ in range(200):
        change = fired(stands, offset(stands.due_at) or 0)
        assert told(change) == []
        ran += began(change)
        stands = change.stored

    assert ran == [60.0 * n for n in range(1, 201)]


# ── pause, resume, retire ──


def planned(stands: Schedule, seconds: float, *runs: Run) -> Plan:
    return Plan(Standing(stands, runs), at(seconds)).close(no_attempts)


def test_resume_writes_one_row_of_what_was_skipped() -> None:
    paused = planned(declared(), 100).pause("until Monday").change()
    assert paused is not None
    assert (paused.stored.paused_at, paused.stored.paused_why, paused.stored.due_at) == (at(100), "until Monday", None)

    change = planned(paused.stored, 3.5 * HOUR).resume().change()

    assert change is not None
    assert told(change) == [("skipped", HOUR, 3 * HOUR, 3)]
    assert change.ticks[0].why == "paused"
    assert (change.stored.paused_at, change.stored.paused_why) == (None, "")
    assert (change.stored.next_tick, change.stored.due_at) == (at(4 * HOUR), at(4 * HOUR))


def test_a_short_pause_between_two_ticks_skips_none() -> None:
    paused = planned(declared(), 100).pause("x").change()
    assert paused is not None

    change = planned(paused.stored, 200).resume().change()

    assert change is not None
    assert change.ticks == ()
    assert change.stored.next_tick == at(HOUR)


def test_pausing_what_is_paused_changes_nothing_nor_does_resuming_what_is_not() -> None:
    stands = declared()
    paused = planned(stands, 1).pause("first").change()
    assert paused is not None

    assert planned(paused.stored, 2).pause("second").change() is None
    assert planned(stands, 1).resume().change() is None


def test_a_tick_that_waited_when_it_was_paused_is_skipped() -> None:
    waiting = fired(after_one(overlap="queue"), 2 * HOUR, run(HOUR)).stored
    paused = planned(waiting, 2.1 * HOUR, run(HOUR)).pause("x").change()
    assert paused is not None

    change = planned(paused.stored, 2.5 * HOUR).resume().change()

    assert change is not None
    assert told(change) == [("skipped", 2 * HOUR, None, 1)]
    assert change.stored.pending_tick is None


@pytest.mark.parametrize("idle", ["paused", "retired"])
def test_a_tick_that_waits_for_its_jitter_stays_due_if_a_pause_is_over_by_then(idle: str) -> None:
    stands = declared(rule="every 6h", jitter=5 * HOUR)
    waits = jitter(stands, at(6 * HOUR)).total_seconds()
    assert waits > 120
    plan = planned(stands, 6 * HOUR + 30)
    stopped = (plan.pause("x") if idle == "paused" else plan.retire()).change()
    assert stopped is not None

    def again(seconds: float) -> Change:
        plan = planned(stopped.stored, seconds)
        change = (plan.resume() if idle == "paused" else plan.declare(stands.but(rev=0))).change()
        assert change is not None
        return change

    soon, late = again(6 * HOUR + 60), again(6 * HOUR + waits)
    assert (soon.ticks, soon.stored.next_tick, soon.stored.due_at) == ((), at(6 * HOUR), at(6 * HOUR + waits))
    assert began(fired(soon.stored, 6 * HOUR + waits)) == [6 * HOUR]
    assert (told(late), late.stored.next_tick) == ([("skipped", 6 * HOUR, None, 1)], at(12 * HOUR))


def test_a_tick_during_a_pause_is_skipped_also_if_its_jitter_ends_after_it() -> None:
    paused = planned(declared(rule="every 6h", jitter=5 * HOUR), 6 * HOUR - 30).pause("x").change()
    assert paused is not None

    change = planned(paused.stored, 6 * HOUR + 30).resume().change()

    assert change is not None
    assert (told(change), change.stored.next_tick) == ([("skipped", 6 * HOUR, None, 1)], at(12 * HOUR))


def test_a_pause_while_it_catches_up_skips_the_rest() -> None:
    first = fired(declared(catch_up="all"), 3.5 * HOUR).stored
    paused = planned(first, 3.6 * HOUR, run(HOUR)).pause("x").change()
    assert paused is not None

    change = planned(paused.stored, 4.5 * HOUR).resume().change()

    assert change is not None
    assert told(change) == [("skipped", 2 * HOUR, 4 * HOUR, 3)]
    assert (change.stored.catching_up_to, change.stored.next_tick) == (None, at(5 * HOUR))


def test_a_schedule_is_paused_after_so_many_failures_in_a_row() -> None:
    stands = after_one(pause_after=2, overlap="allow")
    first = fired(stands, 2 * HOUR, run(HOUR, State.DEAD, attempt=1, started_at=at(HOUR)))
    assert (first.stored.failure_count, first.stored.paused_at) == (1, None)

    second = fired(first.stored, 3 * HOUR, run(2 * HOUR, State.DEAD, attempt=1, started_at=at(2 * HOUR)))

    assert (second.stored.failure_count, second.stored.paused_at) == (2, at(3 * HOUR))
    assert second.stored.paused_why == "2 failures in a row"
    assert began(second) == []
    assert second.stored.due_at is None
    resumed = planned(second.stored, 3.5 * HOUR).resume().change()
    assert resumed is not None
    assert resumed.stored.failure_count == 0


def test_what_is_retired_and_declared_again_says_what_it_skipped() -> None:
    stands = declared(source="app")
    retired = planned(stands, 1).retire().change()
    assert retired is not None
    assert (retired.stored.retired_at, retired.stored.due_at) == (at(1), None)
    assert planned(retired.stored, 2).retire().change() is None

    change = planned(retired.stored, 3.5 * HOUR).declare(stands.but(rev=0)).change()

    assert change is not None
    assert told(change) == [("skipped", HOUR, 3 * HOUR, 3)]
    assert "no app declared it" in change.ticks[0].why
    assert (change.stored.retired_at, change.stored.due_at) == (None, at(4 * HOUR))


# ── changed ──


def test_a_changed_rule_moves_the_schedule_and_fires_first_what_was_due() -> None:
    stands = declared()

    change = planned(stands, HOUR + 10).declare(schedule(name="s", rule="*/10 * * * *")).change()

    assert change is not None
    assert began(change) == [HOUR]
    assert (change.stored.rule, change.stored.next_tick) == ("*/10 * * * *", at(HOUR + 600))
    assert (change.stored.since, change.stored.rev) == (NOON, 2)


@pytest.mark.parametrize(
    "new", [{"rule": "every 2h"}, {"tz": "Europe/Paris", "rule": "0 3 * * *"}, {"start": at(9 * HOUR)}], ids=str
)
def test_a_moved_schedule_catches_up_by_its_old_rule_only(new: dict[str, Any]) -> None:
    change = planned(declared(), 3.5 * HOUR).declare(schedule(**{"name": "s", "rule": "every 1h", **new})).change()

    assert change is not None
    assert (told(change), began(change)) == ([("missed", HOUR, 2 * HOUR, 2)], [3 * HOUR])
    assert change.stored.next_tick is not None
    assert change.stored.next_tick > at(3.5 * HOUR)


def test_what_was_still_to_be_caught_up_is_written_down_when_the_rule_changes() -> None:
    first = fired(declared(catch_up="all"), 3.5 * HOUR).stored

    change = planned(first, 3.6 * HOUR, run(HOUR)).declare(schedule(name="s", rule="every 2h", catch_up="all")).change()

    assert change is not None
    assert told(change) == [("missed", 2 * HOUR, 3 * HOUR, 2)]
    assert (change.stored.catching_up_to, change.stored.next_tick) == (None, at(4 * HOUR))


def test_a_tick_that_waits_begins_when_runs_may_overlap() -> None:
    waits = after_one(overlap="queue").but(pending_tick=at(2 * HOUR), next_tick=at(3 * HOUR), overlap="allow")

    change = fired(waits, 2.5 * HOUR, run(HOUR))

    assert began(change) == [2 * HOUR]
    assert change.stored.pending_tick is None


def test_a_look_at_what_is_due_puts_it_not_off() -> None:
    stands = declared()

    change = Plan(Standing(stands, (succeeded(0, until=60),)), at(2 * HOUR)).close(no_attempts).change()

    assert change is not None
    assert change.stored.due_at == stands.due_at, "a clock that is set back now would put it off"


def test_a_tick_that_waits_outlives_a_change_of_the_rule() -> None:
    waiting = fired(after_one(overlap="queue"), 2 * HOUR, run(HOUR)).stored
    new = schedule(name="s", rule="every 3h", overlap="queue", job=draft(id="", task="other"))
    moved = planned(waiting, 2.1 * HOUR, run(HOUR)).declare(new).change()
    assert moved is not None

    change = fired(moved.stored, 2.2 * HOUR, succeeded(HOUR, until=2.2 * HOUR))

    assert began(change) == [2 * HOUR]
    assert [work.task for work in change.drafts] == ["other"]
    assert change.stored.next_tick == at(3 * HOUR)


def test_a_tick_that_waits_for_its_jitter_is_fired_before_a_change_of_the_rule() -> None:
    stands = declared(rule="0 0 * * *", jitter=6 * HOUR)
    midnight = 12 * HOUR
    assert stands.due_at is not None
    assert stands.due_at > at(midnight + 60)

    new = schedule(name="s", rule="0 3 * * *", jitter=6 * HOUR)
    change = planned(stands, midnight + 60).declare(new).change()

    assert change is not None
    assert (began(change), told(change)) == ([midnight], [])
    assert change.stored.next_tick == at(15 * HOUR)


@pytest.mark.parametrize("new", [{}, {"jitter": 60.0}, {"rule": "0 3 * * *"}], ids=str)
def test_a_tick_that_waits_for_its_jitter_is_not_late_if_the_jitter_is_changed(new: dict[str, Any]) -> None:
    stands = declared(rule="0 0 * * *", jitter=6 * HOUR, catch_up="skip")
    now = 12 * HOUR + 1800
    assert jitter(stands, at(12 * HOUR)).total_seconds() > 1800

    change = planned(stands, now).declare(schedule(**{"name": "s", "rule": "0 0 * * *", "catch_up": "skip", **new}))
    written = change.change()

    assert written is not None
    assert (began(written), told(written)) == ([12 * HOUR], [])
    assert written.stored.jitter == new.get("jitter", 0.0)
    assert written.stored.next_tick is not None
    assert written.stored.due_at == written.stored.next_tick + jitter(written.stored, written.stored.next_tick)


def test_a_changed_job_is_what_the_next_tick_runs() -> None:
    new = schedule(name="s", rule="every 1h", job=draft(id="", task="other"))
    change = planned(declared(), 10).declare(new).change()
    assert change is not None

    assert change.stored.next_tick == at(HOUR)
    assert [work.task for work in fired(change.stored, HOUR).drafts] == ["other"]


def test_a_change_of_what_is_paused_leaves_it_paused() -> None:
    paused = planned(declared(), 1).pause("x").change()
    assert paused is not None

    change = planned(paused.stored, 2.5 * HOUR).declare(schedule(name="s", rule="every 2h")).change()

    assert change is not None
    assert (change.stored.paused_at, change.stored.due_at, began(change)) == (at(1), None, [])
    assert told(change) == [("skipped", HOUR, 2 * HOUR, 2)]


# ── how runs end ──


def test_a_success_is_recorded() -> None:
    stands = declared().but(failure_count=3, last_error="earlier", last_status="failure")

    change = Plan(Standing(stands, (succeeded(HOUR, until=HOUR + 1.5),)), at(HOUR + 2)).close(no_attempts).change()

    assert change is not None
    (tick,) = change.ticks
    assert (tick.status, tick.why, tick.started_at, tick.ended_at) == ("success", "", at(HOUR), at(HOUR + 1.5))
    s = change.stored
    assert (s.last_run_at, s.last_duration_ms, s.last_status, s.last_error) == (at(HOUR), 1_500, "success", "")
    assert s.failure_count == 0


@pytest.mark.parametrize("error", ["ValueError: x", "killed by signal 9", "the start " + "x" * 5_000, None])
def test_a_failure_is_recorded_with_the_start_of_its_error(error: str | None) -> None:
    ended = run(HOUR, State.DEAD, attempt=1, error=error, ended_at=at(HOUR + 3))
    earlier = AttemptView(
        job_id="x", attempt=1, worker_id="w", outcome="failed", error="", evidence={}, started_at=at(HOUR + 1),
        ended_at=at(HOUR + 3),
    )  # fmt: skip

    change = Plan(Standing(declared(), (ended,)), at(HOUR + 4)).close(lambda _: [earlier]).change()

    assert change is not None
    s, (tick,) = change.stored, change.ticks
    assert (s.last_status, s.failure_count, s.last_duration_ms) == ("failure", 1, 2_000)
    assert s.last_error == tick.why == (error or "")[:2_000]
    assert tick.started_at == at(HOUR + 1)


def test_a_run_lasts_from_its_first_attempt_to_its_end() -> None:
    attempts = [
        AttemptView(
            job_id="x", attempt=n, worker_id="w", outcome="failed", error="", evidence={}, started_at=at(HOUR + n),
            ended_at=at(HOUR + n + 1),
        )
        for n in (1, 2)
    ]  # fmt: skip
    ended = run(HOUR, State.COMPLETED, attempt=3, started_at=at(HOUR + 50), ended_at=at(HOUR + 60))

    change = Plan(Standing(declared(), (ended,)), at(2 * HOUR)).close(lambda _: attempts).change()

    assert change is not None
    assert (change.stored.last_run_at, change.stored.last_duration_ms) == (at(HOUR + 1), 59_000)


def test_a_job_cancelled_before_it_began_is_no_run() -> None:
    stands = declared().but(failure_count=2, last_status="failure", last_run_at=NOON, last_error="x")
    ended = run(HOUR, State.CANCELLED, cancel_reason="not wanted")

    change = Plan(Standing(stands, (ended,)), at(2 * HOUR)).close(no_attempts).change()

    assert change is not None
    assert [(tick.status, tick.why) for tick in change.ticks] == [("cancelled", "not wanted")]
    s = change.stored
    assert (s.failure_count, s.last_status, s.last_run_at, s.last_error) == (2, "failure", NOON, "x")


def test_a_run_cancelled_while_it_ran_neither_fails_nor_forgives() -> None:
    stands = declared().but(failure_count=2)
    ended = run(HOUR, State.CANCELLED, attempt=1, started_at=at(HOUR), ended_at=at(HOUR + 5), error="stopped")

    change = Plan(Standing(stands, (ended,)), at(2 * HOUR)).close(no_attempts).change()

    assert change is not None
    s = change.stored
    assert (s.failure_count, s.last_status, s.last_error, s.last_run_at) == (2, "cancelled", "stopped", at(HOUR))


def test_a_run_whose_job_was_deleted_is_closed_and_counts_as_none() -> None:
    stands = declared().but(failure_count=2, last_status="failure")

    change = Plan(Standing(stands, (run(HOUR, None),)), at(2 * HOUR)).close(no_attempts).change()

    assert change is not None
    assert [(tick.status, tick.why, tick.ended_at) for tick in change.ticks] == [
        ("cancelled", "its job was deleted", at(2 * HOUR))
    ]
    assert (change.stored.failure_count, change.stored.last_status) == (2, "failure")


def test_runs_are_counted_in_the_order_in_which_they_ended() -> None:
    failed = run(HOUR, State.DEAD, attempt=1, started_at=at(HOUR), ended_at=at(4 * HOUR))
    fine = succeeded(2 * HOUR, until=2.5 * HOUR)

    change = Plan(Standing(declared(), (failed, fine)), at(5 * HOUR)).close(no_attempts).change()

    assert change is not None
    assert (change.stored.failure_count, change.stored.last_status) == (1, "failure")
    assert len(change.ticks) == 2


def test_a_job_that_several_ticks_follow_counts_once_and_closes_all_of_them() -> None:
    dead = job(State.DEAD, "shared", attempt=2, started_at=at(HOUR), ended_at=at(2 * HOUR))
    following = [run(seconds, cause=cause) for seconds, cause in [(HOUR, "tick"), (30, "backfill"), (40, "trigger")]]
    runs = tuple(Run(replace(each.tick, job_id="shared"), dead, None) for each in following)
    read: list[str] = []

    change = Plan(Standing(declared(pause_after=2), runs), at(3 * HOUR)).close(lambda name: read.append(name) or ())
    written = change.change()

    assert written is not None
    assert [tick.status for tick in written.ticks] == ["failure"] * 3
    assert (written.stored.failure_count, written.stored.paused_at) == (1, None)
    assert read == ["shared"]


def test_what_a_command_printed_is_kept_with_its_run() -> None:
    change = (
        Plan(Standing(declared(), (succeeded(HOUR, until=HOUR),)), at(2 * HOUR)).close(no_attempts, "tail ☃").change()
    )

    assert change is not None
    assert [tick.output for tick in change.ticks] == ["tail ☃"]


# ── at an operator's request ──


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_a_trigger_runs_now_beside_the_ticks(overlap: Overlap) -> None:
    change = planned(declared(overlap=overlap), 100).trigger().change()

    assert change is not None
    assert [(tick.tick, tick.cause) for tick in change.ticks] == [(at(100), "trigger")]
    assert (change.stored.next_tick, change.stored.last_tick) == (at(HOUR), None)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_a_trigger_is_refused_while_a_run_goes_on_unless_it_is_forced(overlap: Overlap) -> None:
    stands = declared(overlap=overlap)

    with pytest.raises(Refused, match=f"overlap={overlap}.* is not triggered: job job-0 .*processing for .*--force"):
        planned(stands, 100, run(0)).trigger()
    assert planned(stands, 100, run(0)).trigger(force=True).change() is not None
    assert planned(declared(overlap="allow"), 100, run(0)).trigger().change() is not None


def test_a_triggered_run_holds_up_the_next_tick_like_any_other() -> None:
    assert told(fired(declared(), HOUR, run(100, cause="trigger"))) == [("skipped", HOUR, None, 1)]


def test_a_paused_schedule_may_be_triggered() -> None:
    change = planned(declared().but(paused_at=NOON, due_at=None), 100).trigger().change()

    assert change is not None
    assert change.stored.due_at is None


def test_a_backfill_runs_the_past_and_leaves_the_future() -> None:
    stands = fired(declared(), HOUR).stored

    change = planned(stands, 1.5 * HOUR, run(HOUR)).backfill([at(-HOUR), at(-2 * HOUR)]).change()

    assert change is not None
    assert [(offset(tick.tick), tick.cause) for tick in change.ticks] == [(-HOUR, "backfill"), (-2 * HOUR, "backfill")]
    assert (change.stored.next_tick, change.stored.last_tick) == (stands.next_tick, stands.last_tick)


def test_a_guard_is_neither_triggered_nor_backfilled() -> None:
    stands = declared(kind="guard", job=None)

    with pytest.raises(Refused, match="guard"):
        planned(stands, 1).trigger(force=True)
    with pytest.raises(Refused, match="guard"):
        planned(stands, 1).backfill([at(-HOUR)])
    assert nothing(stands, 5 * HOUR)


# ── guards ──


def guard(**options: Any) -> Schedule:
    given: dict[str, Any] = {"kind": "guard", "job": None, "rule": "every 1d", **options}
    return declared(**given)


def called(stands: Schedule, seconds: float, *runs: Run, force: bool = False, host: str = "a") -> Began | Held:
    plan = Plan(Standing(stands, runs), at(seconds)).close(no_attempts)
    return begin_guard(plan, draft().id, "worker", host, now=at(seconds), force=force)


def accepted(stands: Schedule, seconds: float, *runs: Run, force: bool = False) -> Change:
    answer = called(stands, seconds, *runs, force=force)
    assert isinstance(answer, Began), answer
    return answer.change


def held(stands: Schedule, seconds: float, *runs: Run, force: bool = False) -> Held:
    answer = called(stands, seconds, *runs, force=force)
    assert isinstance(answer, Held), answer
    return answer


def test_a_guards_run_is_a_job_of_its_own_worker() -> None:
    answer = called(guard(), 10, host="mail-1")

    assert isinstance(answer, Began)
    change = answer.change
    (tick,), (work,) = change.ticks, change.drafts
    assert (answer.job_id, change.owner, work.queue, work.task) == (work.id, "worker", GUARD, "s")
    assert (work.max_failures, work.max_crashes) == (1, 0)
    assert (tick.tick, tick.job_id, tick.started_at, tick.host) == (at(10), work.id, at(10), "mail-1")
    assert change.stored.due_at is None
    assert change.stored.next_tick == at(10 + DAY)
    assert answer.late == 0


@pytest.mark.parametrize("rule", ["every 1d", "0 6 * * *"])
def test_a_guard_that_is_called_a_little_early_or_late_runs_every_day(rule: str) -> None:
    stands, days = guard(rule=rule), list[datetime]()
    for day in range(1, 101):
        wobble = 0.3 if day % 3 else -0.3
        change = accepted(stands, 18 * HOUR + day * DAY + wobble)
        (tick,) = change.ticks
        days.append(tick.tick)
        stands = change.stored

    assert len(set(days)) == 100
    if not rule.startswith("every"):
        assert days == [at(18 * HOUR + day * DAY) for day in range(1, 101)]


def test_a_call_by_hand_in_the_evening_does_not_take_the_place_of_tomorrows() -> None:
    stands = accepted(guard(rule="0 6 * * *"), 18 * HOUR).stored

    held(stands, 18 * HOUR + 13 * HOUR)
    by_hand = accepted(stands, 18 * HOUR + 13 * HOUR, force=True).stored
    change = accepted(by_hand, 18 * HOUR + DAY - 0.3)

    assert [tick.tick for tick in change.ticks] == [at(18 * HOUR + DAY)]


def test_a_call_of_a_tick_that_was_missed_runs_it_late() -> None:
    answer = called(guard(rule="0 6 * * *"), 18 * HOUR + 13 * HOUR)

    assert isinstance(answer, Began)
    assert [tick.tick for tick in answer.change.ticks] == [at(18 * HOUR)]
    assert answer.late == 13 * HOUR


@pytest.mark.parametrize("rule", ["every 1d", "0 6 * * *"])
@pytest.mark.parametrize("other", [-0.2, 0.2])
def test_of_two_hosts_almost_at_once_one_runs(rule: str, other: float) -> None:
    stands = guard(rule=rule)
    for day in range(1, 30):
        time = 18 * HOUR + day * DAY
        stands = accepted(stands, time).stored
        stands = stands.but(last_status="success")

        refused = held(stands, time + other)

        assert not refused.locked
        assert "has already run (success); --force runs it again" in refused.says


def test_a_second_call_is_told_who_runs_and_until_when() -> None:
    stands = accepted(guard(), 10).stored
    going = Run(
        Tick(schedule="s", tick=at(10), decided_at=at(10), started_at=at(10), host="mail-1", job_id="j"),
        job(State.PROCESSING),
        at(130),
    )

    refused = held(stands, 100, going)

    assert refused.locked
    assert refused.says == "still locked until 2027-01-15T12:02:10+00:00 (mail-1, running for 1m30s)"
    assert held(stands, 100, going, force=True).locked, "force runs no two at once"


def test_force_runs_a_tick_again_beside_it_and_moves_nothing() -> None:
    stands = accepted(guard(rule="0 6 * * *"), 18 * HOUR).stored

    change = accepted(stands, 18 * HOUR + 60, force=True)

    assert [(tick.tick, tick.cause) for tick in change.ticks] == [(at(18 * HOUR + 60), "trigger")]
    assert (change.stored.last_tick, change.stored.next_tick) == (stands.last_tick, stands.next_tick)


@pytest.mark.parametrize(("rule", "first"), [("every 1d", 10.0), ("0 6 * * *", 18 * HOUR)])
def test_calls_that_did_not_come_are_missed(rule: str, first: float) -> None:
    stands = accepted(guard(rule=rule), first).stored

    answer = called(stands, first + 4 * DAY + 5)

    assert isinstance(answer, Began)
    assert told(answer.change) == [("missed", first + DAY, first + 3 * DAY, 3)]
    assert answer.change.ticks[0].why == "no call came"
    assert answer.late == pytest.approx(5 if rule.startswith("0") else 3 * DAY + 5)


def test_an_interval_is_refused_within_half_of_it_only() -> None:
    stands = accepted(guard(rule="every 1h"), 0).stored

    held(stands, 0.49 * HOUR)
    accepted(stands, 0.51 * HOUR)


@pytest.mark.parametrize("late", [90.0, 3 * HOUR, 11 * HOUR])
def test_a_late_call_of_an_interval_moves_none_after_it(late: float) -> None:
    stands = accepted(guard(rule="every 1d"), 10).stored

    stands = accepted(stands, DAY + 10 + late).stored
    assert stands.next_tick == at(2 * DAY + 10)
    assert called(stands, 2 * DAY + 10).late == 0  # type: ignore[union-attr]

    stands = accepted(stands, 5 * DAY + 15).stored
    assert stands.next_tick == at(6 * DAY + 10), "after missed ones too"


def test_the_times_of_an_interval_follow_a_caller_that_calls_at_other_times_from_now_on() -> None:
    stands = accepted(guard(rule="every 1d"), 0).stored
    stands = accepted(stands, DAY + 9 * HOUR).stored
    assert stands.next_tick == at(2 * DAY)

    stands = accepted(stands, 2 * DAY + 9 * HOUR + 20).stored

    assert stands.next_tick == at(3 * DAY + 9 * HOUR + 20)


def test_a_caller_that_takes_a_little_longer_every_time_misses_no_tick() -> None:
    stands, missed = accepted(guard(rule="every 5m"), 0).stored, 0
    for number in range(1, 200):
        change = accepted(stands, number * 307.0)
        missed += sum(tick.status == "missed" for tick in change.ticks)
        stands = change.stored

    assert missed == 0


def test_a_guard_whose_clock_was_set_back_a_little_does_not_run_twice() -> None:
    daily = accepted(guard(rule="0 6 * * *"), 18 * HOUR).stored
    often = accepted(guard(rule="every 1h"), 0).stored

    assert "has already run" in held(daily, 18 * HOUR - 300).says
    assert "has already run" in held(often, -300).says


def test_a_cron_expression_that_never_comes_again_is_told() -> None:
    with pytest.raises(InvalidOption):
        called(guard(rule="0 6 31 2 *"), 10)


# ── overdue ──


def test_a_tick_that_nobody_fired_is_overdue_after_its_grace() -> None:
    stands = declared(grace=300.0)

    assert overdue_by(Standing(stands), at(HOUR + 300)) is None
    assert overdue_by(Standing(stands), at(HOUR + 301)) == 301


def test_jitter_is_no_delay() -> None:
    stands = declared(jitter=3_000.0, grace=1.0)
    waits = jitter(stands, at(HOUR)).total_seconds()

    assert overdue_by(Standing(stands), at(HOUR + waits)) is None
    assert overdue_by(Standing(stands), at(HOUR + waits + 2)) == pytest.approx(2)


@pytest.mark.parametrize("state", [State.PROCESSING, State.SCHEDULED, State.QUEUED])
def test_nothing_is_overdue_while_a_run_goes_on_or_waits_to_retry(state: State) -> None:
    assert overdue_by(Standing(declared(), (run(HOUR, state, attempt=1),)), at(9 * HOUR)) is None


@pytest.mark.parametrize("idle", ["paused_at", "retired_at"])
def test_nothing_idle_is_overdue(idle: str) -> None:
    since: dict[str, Any] = {idle: NOON}

    assert overdue_by(Standing(declared().but(**since)), at(9 * HOUR)) is None


@pytest.mark.parametrize("rule", ["every 1h", "0 * * * *"])
def test_a_clock_that_is_set_back_by_more_than_an_hour_or_the_grace_is_told(rule: str) -> None:
    stands, patient = declared(rule=rule), declared(rule=rule, grace=2 * HOUR)

    assert [set_back(stands, at(now)) for now in (HOUR, 0, -HOUR, -HOUR - 1)] == [False, False, False, True]
    assert [set_back(patient, at(now)) for now in (-HOUR - 1, -2 * HOUR, -2 * HOUR - 1)] == [False, False, True]
    assert not set_back(stands.but(paused_at=NOON), at(-DAY))
    assert not set_back(stands.but(start=NOON), at(-DAY)), "it was to begin later"
    assert not set_back(declared(rule="0 0 1 1 *"), at(-DAY)), "its next tick is the one that comes"


@pytest.mark.parametrize("cause", ["tick", "trigger", "backfill"])
def test_a_job_that_no_worker_started_is_overdue(cause: str) -> None:
    stands = fired(declared(), HOUR).stored

    assert overdue_by(Standing(stands, (run(HOUR, State.QUEUED, cause),)), at(HOUR + 400)) == 400


def test_a_backfill_is_late_from_when_it_was_asked_for() -> None:
    stands = fired(declared(), HOUR).stored
    old = run(-1000 * DAY, State.QUEUED, "backfill")
    old = old._replace(tick=replace(old.tick, decided_at=at(HOUR)))

    assert overdue_by(Standing(stands, (old,)), at(HOUR + 10)) is None
    assert overdue_by(Standing(stands, (old,)), at(HOUR + 301)) == 301


def test_a_schedule_without_a_tick_to_come_is_not_overdue() -> None:
    assert overdue_by(Standing(declared(end=at(-1))), at(9 * DAY)) is None


# ── values ──


def test_schedules_and_ticks_are_the_same_after_a_journey_through_text() -> None:
    stands = declared(start=NOON, jitter=0.25, job=draft(id="", payload='"☃"'), pause_after=3)
    tick = Tick(schedule="s", tick=NOON, decided_at=at(0.001), until=at(5), count=6, output="ü")

    assert decode_schedule(body_of(stands)) == stands
    assert decode_tick(body_of(tick)) == tick


def test_a_schedule_of_a_later_version_is_read() -> None:
    text = body_of(declared())

    assert decode_schedule(text.replace("{", '{"a_new_field":[1],', 1)) == decode_schedule(text)


@pytest.mark.parametrize("rule", ["0 6 15W * *", "0 6 L-3 * *", "0 6 * * 1 | 0 7 * * 2", "0 6 * * * except 2026-12-25"])
def test_a_rule_that_older_releases_cannot_read_is_marked_so_that_they_leave_it_alone(rule: str) -> None:
    """They would take it for broken, and pause it. What their decoder refuses they leave alone."""
    text = body_of(Change(schedule=declared(rule=rule)).stored)

    with pytest.raises(msgspec.ValidationError, match="unread"):
        msgspec.json.decode(text, type=Schedule)
    read_by_this_one = decode_schedule(text)
    assert read_by_this_one == declared(rule=rule).but(rev=read_by_this_one.rev, unread="")


@pytest.mark.parametrize("rule", ["0 6 * * FRI-MON", "0 6 ? * MONL", "0 22-2 25-L NOV-FEB *", "@every 5m", "@daily"])
def test_a_notation_of_another_cron_is_stored_so_that_older_releases_read_it(rule: str) -> None:
    assert not Change(schedule=declared(rule=str(read(rule)))).stored.unread


def test_a_schedule_that_this_release_cannot_read_keeps_its_runs_open_for_one_that_can() -> None:
    stands = after_one()
    assert not nothing(stands, 30, succeeded(0, until=10))

    assert nothing(stands.but(unread="a word of tomorrow"), 30, succeeded(0, until=10))


CAIRO = {"rule": "0 0 1 * *", "tz": "Africa/Cairo"}  # 21:00Z the day before, in summer time


def of_older_zones(shift: timedelta, **options: Any) -> Plan:
    """A plan just after the tick that was stored when the time zone still was another one."""
    stands = declared(datetime(2027, 6, 15, tzinfo=UTC), **options)
    assert stands.next_tick is not None
    stored = stands.but(next_tick=stands.next_tick + shift, due_at=stands.next_tick + shift)
    return Plan(Standing(stored), max(stored.next_tick, stands.next_tick) + timedelta(seconds=1)).fire()


def test_a_tick_that_a_change_of_its_time_zone_has_moved_is_fired_once() -> None:
    tick = datetime(2027, 6, 30, 21, tzinfo=UTC)

    for shift in (timedelta(hours=1), timedelta(hours=-1), timedelta()):
        fired = of_older_zones(shift, **CAIRO)
        assert [(each.tick, each.status) for each in fired.ticks] == [(tick, "open")], shift
        assert fired.schedule.next_tick == datetime(2027, 7, 31, 21, tzinfo=UTC)


def test_no_tick_of_the_day_before_is_fired_again_where_the_time_zone_has_moved() -> None:
    stands = declared(datetime(2027, 6, 15, tzinfo=UTC), rule="0 0 * * *", tz="Africa/Cairo")
    assert stands.next_tick is not None
    last = stands.next_tick - timedelta(days=1, hours=1)  # an hour earlier, by the older zones
    stored = stands.but(last_tick=last, next_tick=stands.next_tick - timedelta(hours=1))

    fired = Plan(Standing(stored), stored.next_tick + timedelta(seconds=1)).fire()

    assert fired.ticks == []
    assert fired.schedule.next_tick == stands.next_tick
