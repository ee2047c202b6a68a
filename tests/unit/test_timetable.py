"""Schedules in a store, from their declaration to the health of their last run; fired by several, led by none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conformance.factories import World, begin_guarded, claim_one, draft, finish, look, put, schedule, start
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Lease, Outcome, State
from tenure.core.limits import Key
from tenure.errors import StoreError
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Ring
from tenure.ports.schedules import REPLACED, Change, Schedule, Standing, Tick
from tenure.schedules.guard_plan import Began, Held, begin_guard
from tenure.schedules.plan import Plan, Refused, jitter
from tenure.schedules.timetable import HELD_SECONDS, Declared, Timetable, UnknownSchedule, record
from tenure.stores.memory import MemoryStore

HOUR = 3_600.0


class Bell(PollNotifier):
    """Remembers its rings."""

    def __init__(self) -> None:
        self.rung: list[Ring] = []

    def announce(self, rings: Any) -> None:
        self.rung += rings


class Clockwork:
    """A timetable under a virtual clock that starts at a full hour, and a worker that does what it is told."""

    def __init__(self) -> None:
        self.world = World(MemoryStore)
        self.store = self.world.store()
        assert isinstance(self.store, MemoryStore)
        self.bell = Bell()
        self.table = Timetable(self.store, self.bell)
        self.zero = self.store.now()

    def at(self, hours: float) -> datetime:
        return self.zero + timedelta(hours=hours)

    def advance(self, hours: float) -> None:
        """Time passes, and no supervisor is there."""
        self.world.advance(hours * HOUR)

    def fire(self, hours: float = 0.0) -> float | None:
        self.advance(hours)
        while (next_due := self.table.fire_due()) == 0.0:
            pass
        return next_due

    def work(self, outcome: Outcome | None = None, *, takes: float = 0.0) -> str:
        """Claim one job and end it with this outcome; its id."""
        lease = claim_one(self.store, start(self.store))
        self.advance(takes)
        assert finish(self.store, lease, outcome or Completed()) is not None
        return lease.job_id

    def told(self, name: str = "s") -> list[tuple[str, float, float, int]]:
        """The history, oldest first: status, hours from and to, how many."""
        ticks = self.store.ticks(name, limit=1_000)[::-1]
        return [(t.status, self.hours(t.tick), self.hours(t.until or t.tick), t.count) for t in ticks]

    def hours(self, moment: datetime) -> float:
        return (moment - self.zero) / timedelta(hours=1)

    def stands(self, name: str = "s") -> Schedule:
        return self.table.get(name).schedule

    def waiting(self) -> int:
        return self.store.counts()[State.QUEUED]


@pytest.fixture
def clock() -> Clockwork:
    return Clockwork()


def hourly(name: str = "s", **options: Any) -> Schedule:
    return schedule(**{"name": name, "rule": "every 1h", **options})


# ── firing ──


@pytest.mark.parametrize("longest", [6600.0, 1e6])
def test_the_jitter_of_a_tick_ends_before_the_next_one(longest: float) -> None:
    """The clocks go forward between them, so they are one hour apart and not two."""
    first, second = datetime(2026, 3, 29, 0, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC)
    names = [f"s{number}" for number in range(40)]

    waits = [
        jitter(hourly(name, rule="0 1,3 * * *", tz="Europe/Berlin", jitter=longest), first).total_seconds()
        for name in names
    ]

    assert max(waits) < (second - first).total_seconds()
    assert len(set(waits)) == len(names)


def test_each_tick_becomes_one_job_and_the_next_is_told(clock: Clockwork) -> None:
    clock.table.put(hourly())

    assert clock.fire() == pytest.approx(HOUR)
    for _ in range(3):
        assert clock.fire(1) == pytest.approx(HOUR)
        assert clock.waiting() == 1
        clock.work()

    clock.fire()
    assert clock.told() == [("success", hour, hour, 1) for hour in range(1, 4)]


def test_nothing_to_fire_waits_for_nothing(clock: Clockwork) -> None:
    assert clock.fire() is None


def test_the_doorbell_rings_for_new_jobs_and_for_cancels(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="replace", job=draft(id="", queue="mail")))
    clock.fire(1)
    (first,) = clock.store.ticks("s")
    assert clock.bell.rung == [Ring("queued", "mail", (first.job_id or "",))]

    clock.fire(1)

    assert Ring("cancel", "") in clock.bell.rung


def test_a_queued_tick_begins_as_soon_as_the_run_before_it_has_ended(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="queue"))
    clock.fire(1)
    clock.fire(1)
    assert clock.waiting() == 1
    clock.work()

    clock.fire()

    assert clock.waiting() == 1
    assert clock.told() == [("success", 1, 1, 1), ("open", 2, 2, 1)]


def test_a_look_at_the_history_holds_up_no_tick_that_waits(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="queue"))
    clock.fire(1)
    clock.fire(1)
    clock.work()

    assert [tick.status for tick in clock.table.history("s")] == ["success"]
    clock.fire()

    assert clock.waiting() == 1


def test_replace_stops_the_run_and_the_newest_tick_follows(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="replace"))
    clock.fire(1)
    lease = claim_one(clock.store, start(clock.store))
    for _ in range(3):
        clock.fire(1)
    assert look(clock.store, lease.job_id).cancel_reason == REPLACED

    finish(clock.store, lease, Cancelled(REPLACED))
    clock.fire()

    assert clock.told() == [("cancelled", 1, 1, 1), ("skipped", 2, 2, 1), ("skipped", 3, 3, 1), ("open", 4, 4, 1)]


def test_replace_of_a_job_that_no_worker_had_starts_the_newest_at_once(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="replace"))
    clock.fire(1)

    clock.fire(1)

    assert clock.told() == [("cancelled", 1, 1, 1), ("open", 2, 2, 1)]


def test_skip_skips_also_while_the_job_waits_to_retry(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    clock.work(Failed("not yet", retry_in=2 * HOUR))

    clock.fire(1)

    assert clock.told() == [("open", 1, 1, 1), ("skipped", 2, 2, 1)]


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_all_makes_up_for_what_was_missed_one_by_one_in_order(overlap: str, clock: Clockwork) -> None:
    clock.table.put(hourly(catch_up="all", overlap=overlap))
    clock.fire(5.1)
    ran = list[str]()
    for _ in range(5):
        assert clock.waiting() == 1
        ran.append(look(clock.store, clock.work()).meta["tick"])
        clock.fire()

    assert ran == [clock.at(hour).isoformat() for hour in range(1, 6)]
    assert clock.told() == [("success", hour, hour, 1) for hour in range(1, 6)]
    assert clock.waiting() == 0


def test_all_after_a_run_that_outlived_the_outage_goes_on_when_it_ends(clock: Clockwork) -> None:
    clock.table.put(hourly(catch_up="all"))
    clock.fire(1)
    lease = claim_one(clock.store, start(clock.store))
    clock.fire(2.5)
    assert clock.waiting() == 0
    finish(clock.store, lease, Completed())
    clock.fire()
    clock.work()
    clock.fire()

    assert clock.told() == [("success", 1, 1, 1), ("success", 2, 2, 1), ("open", 3, 3, 1)]


def test_all_makes_up_for_an_outage_and_then_skips_again_if_runs_take_longer_than_the_interval(
    clock: Clockwork,
) -> None:
    clock.table.put(hourly(catch_up="all"))
    clock.fire(2.75)
    for _ in range(10):
        lease = claim_one(clock.store, start(clock.store))
        for _ in range(6):
            clock.fire(0.25)
        finish(clock.store, lease, Completed())
        clock.fire()
        while not clock.waiting():
            clock.fire(0.25)

    ticks = clock.store.ticks("s", limit=1_000)[::-1]
    late = [clock.hours(t.tick) for t in ticks if t.job_id is not None and t.decided_at > t.tick]
    assert late == [1, 2], "those of the outage, and no later one"
    assert ("skipped", 3, 4, 2) in clock.told()
    assert sum(t.count for t in ticks) == clock.hours(ticks[-1].tick), "no tick is lost"


def test_a_store_whose_clock_is_set_back_fires_no_tick_twice_and_loses_none(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="allow", catch_up="all"))
    clock.fire(1)
    clock.fire(1)
    clock.world.step_wall_clock(-1.5 * HOUR)

    assert clock.fire() == pytest.approx(2.5 * HOUR)
    for _ in range(3):
        clock.fire(1)

    assert clock.told() == [("open", hour, hour, 1) for hour in (1, 2, 3)]


def test_resume_after_the_clock_was_set_back_runs_again_what_had_run_by_the_other_clock(clock: Clockwork) -> None:
    clock.table.put(hourly())
    before = set[str]()
    for _ in range(4):
        clock.fire(1)
        before.add(clock.work())
    clock.world.step_wall_clock(-3.5 * HOUR)
    clock.fire(0.5)
    assert clock.waiting() == 0, "decided ticks are not fired again"

    clock.table.resume("s")

    for hour in (2, 3, 4, 5):
        clock.fire(1)
        assert clock.work() not in before, f"the tick of {hour}"


def test_a_run_that_began_by_a_clock_that_was_set_back_is_a_run_again_when_it_is_replayed(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.world.step_wall_clock(-HOUR / 2)
    job_id = clock.table.trigger("s")
    clock.work(Failed("x", final=True))
    clock.fire()

    clock.store.replay([job_id])

    assert [run.tick.job_id for run in clock.table.get("s").runs] == [job_id]


def test_a_tick_that_waits_begins_also_when_the_clock_was_set_back(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="queue"))
    clock.fire(1)
    clock.fire(1)
    clock.world.step_wall_clock(-24 * HOUR)
    clock.work()

    clock.fire()

    assert clock.told() == [("success", 1, 1, 1), ("open", 2, 2, 1)]


def test_one_that_cannot_be_understood_is_paused_and_holds_up_no_other(
    clock: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    odd = hourly("odd", rule="0 * * * *", due_at=clock.zero)
    clock.table.put(hourly())
    clock.store.change([Change(schedule=odd)])
    begun = Change(schedule=odd.but(rev=1), ticks=(Tick(schedule="odd", tick=clock.zero, decided_at=clock.zero),))
    clock.store.change([begun])
    clock.store.change([Change(schedule=odd.but(rev=2, tz="Europe/Atlantis"))])

    clock.fire(1)

    assert [status for status, *_ in clock.told()] == ["open"]
    stands = clock.stands("odd")
    assert "Europe/Atlantis" in stands.paused_why
    assert len(told_by_schedules(caplog)) == 1
    clock.fire(1)
    clock.table.settle(clock.table.all())
    assert clock.stands("odd") == stands, "nobody writes it again and again"
    clock.table.remove("odd")


def test_what_nobody_foresaw_in_one_schedule_holds_up_no_other(
    clock: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    clock.table.put(hourly("odd", job=draft(id="", meta="[]")))
    clock.table.put(hourly())

    clock.fire(1)

    assert [status for status, *_ in clock.told()] == ["open"]
    assert clock.stands("odd").paused_at == clock.at(1)
    (record,) = told_by_schedules(caplog)
    assert record.exc_info


def told_by_schedules(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Threads that other tests have left may log meanwhile, too."""
    return [each for each in caplog.records if each.name == "tenure.schedules"]


class Rivals(MemoryStore):
    """Before a change lands, another process changes the same schedules, `rivals` times."""

    rivals = 0

    def change(self, changes: Sequence[Change]) -> list[bool]:
        if self.rivals:
            self.rivals -= 1
            for each in changes:
                stands = self.schedules([each.schedule.name])
                super().change([Change(schedule=one.schedule) for one in stands])
        return super().change(changes)


def test_who_loses_reads_again_and_says_so_when_it_never_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("tenure.schedules.releases.sleep", waits.append)
    world = World(Rivals)
    store = world.store()
    assert isinstance(store, Rivals)
    table = Timetable(store, Bell())
    table.put(hourly())

    store.rivals = 3
    assert table.pause("s").schedule.paused_at == store.now()
    table.resume("s")
    world.advance(HOUR)
    store.rivals = 1
    assert table.fire_due() == HELD_SECONDS
    assert store.ticks("s") == []
    table.fire_due()
    assert len(store.ticks("s")) == 1
    store.rivals = 1_000
    with pytest.raises(StoreError, match="changed by other processes"):
        table.pause("s")
    assert max(waits) < 1


# ── how runs end ──


def test_the_record_of_a_schedule_is_its_health_in_one_row(clock: Clockwork) -> None:
    clock.table.put(hourly(rule="0 * * * *", tz="Europe/Paris"))
    clock.fire(1)
    worker = start(clock.store, lease=60.0)
    lease = claim_one(clock.store, worker)

    going = record(clock.table.get("s"))
    assert (going.schedule, going.last_status, going.last_run_at) == ("0 * * * * Europe/Paris", "started", clock.at(1))
    assert going.locked_until == clock.at(1) + timedelta(seconds=60)
    assert going.next_expected_at == clock.at(2)

    clock.world.advance(90)
    finish(clock.store, lease, Failed("boom", final=True))
    clock.fire()
    ended = record(clock.table.get("s"))
    assert (ended.last_status, ended.last_duration_ms, ended.failure_count) == ("failure", 90_000, 1)
    assert (ended.locked_until, ended.last_run_at) == (None, clock.at(1))
    assert record(clock.table.pause("s")).next_expected_at is None


@pytest.mark.parametrize(
    ("outcome", "status", "failures"),
    [
        (Completed(), "success", 0),
        (Failed("boom", final=True), "failure", 2),
        (Cancelled("stopped"), "cancelled", 1),
    ],
    ids=["success", "failure", "cancel"],
)
def test_the_end_of_a_run_is_counted(outcome: Outcome, status: str, failures: int, clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    clock.work(Failed("first", final=True))
    clock.fire(1)
    clock.work(outcome, takes=0.5)
    clock.fire()

    s = clock.stands()
    assert (s.last_status, s.failure_count) == (status, failures)
    assert (s.last_run_at, s.last_duration_ms) == (clock.at(2), 1_800_000)


def test_a_crash_that_is_one_too_many_is_a_failure(clock: Clockwork) -> None:
    clock.table.put(hourly(job=draft(id="", max_crashes=0, isolated=True)))
    clock.fire(1)
    lease = claim_one(clock.store, start(clock.store), solo=True)
    clock.store.settle(lease.worker_id, {}, Crashed("killed by signal 9", process_died=True))
    clock.fire()

    s = clock.stands()
    assert (s.last_status, s.last_error, s.failure_count) == ("failure", "killed by signal 9", 1)


def test_a_job_that_was_deleted_or_cancelled_before_it_began_counts_for_nothing(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="allow"))
    clock.fire(1)
    clock.work(Failed("boom", final=True))
    clock.fire(1)
    clock.fire(1)
    (third, second) = [tick.job_id or "" for tick in clock.store.ticks("s")][:2]
    clock.store.cancel([third], "no")
    clock.store.delete([second])
    clock.fire()

    assert [status for status, *_ in clock.told()] == ["failure", "cancelled", "cancelled"]
    assert (clock.stands().failure_count, clock.stands().last_status) == (1, "failure")


def test_so_many_failures_in_a_row_pause_it(clock: Clockwork) -> None:
    clock.table.put(hourly(pause_after=2))
    for _ in range(4):
        clock.fire(1)
        if clock.waiting():
            clock.work(Failed("boom", final=True))
    clock.fire()

    assert clock.told() == [("failure", 1, 1, 1), ("failure", 2, 2, 1)]
    assert clock.stands().paused_why == "2 failures in a row"
    clock.table.resume("s")
    assert clock.told()[-1] == ("skipped", 3, 4, 2)
    assert clock.stands().failure_count == 0


def test_a_replayed_run_is_a_run_of_its_schedule_again(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    job_id = clock.work(Failed("boom", final=True))
    clock.fire(0.1)
    assert [status for status, *_ in clock.told()] == ["failure"]

    clock.store.replay([job_id])
    clock.fire(0.9)
    assert clock.told() == [("open", 1, 1, 1), ("skipped", 2, 2, 1)]
    clock.work()
    clock.fire()

    assert clock.told() == [("success", 1, 1, 1), ("skipped", 2, 2, 1)]
    assert (clock.stands().last_status, clock.stands().failure_count) == ("success", 0)


# ── declaring ──


def declare(clock: Clockwork, app: str, release: str, *new: Schedule, force: bool = False) -> Declared:
    clock.world.advance(1)
    return clock.table.declare(app, release, new, force=force)


def test_what_an_app_declares_is_made_changed_and_retired(clock: Clockwork) -> None:
    assert declare(clock, "app", "1", hourly("a"), hourly("b")) == Declared(made=("a", "b"))
    assert declare(clock, "app", "1", hourly("a"), hourly("b")) == Declared()

    answer = declare(clock, "app", "2", hourly("a", rule="every 2h"), hourly("c"))

    assert answer == Declared(made=("c",), changed=("a",), retired=("b",))
    assert (clock.stands("a").rule, clock.stands("a").source, clock.stands("a").release) == ("every 2h", "app", "2")
    assert clock.stands("b").retired_at is not None
    clock.fire(3)
    assert clock.told("b") == []


def test_an_older_release_changes_nothing(clock: Clockwork) -> None:
    declare(clock, "app", "1", hourly("a"), hourly("old"))
    declare(clock, "app", "2", hourly("a", rule="every 2h"), hourly("new"))
    before = clock.table.all()

    assert declare(clock, "app", "1", hourly("a"), hourly("old")) == Declared(older="2")

    assert clock.table.all() == before


def test_a_roll_back_is_forced_and_stays(clock: Clockwork) -> None:
    declare(clock, "app", "1", hourly("a"), hourly("old"))
    declare(clock, "app", "2", hourly("a", rule="every 2h"), hourly("new"))

    answer = declare(clock, "app", "1", hourly("a"), hourly("old"), force=True)

    assert answer == Declared(changed=("a", "old"), retired=("new",))
    assert clock.stands("a").rule == "every 1h"
    assert declare(clock, "app", "1", hourly("a"), hourly("old")) == Declared()
    assert declare(clock, "app", "2", hourly("a", rule="every 2h")).older == "1"


def test_a_release_is_older_however_many_have_followed_it(clock: Clockwork) -> None:
    for n in range(60):
        declare(clock, "app", f"r{n}", hourly("a", rule=f"every {n + 1}h"))
    before = clock.table.all()

    assert declare(clock, "app", "r0", hourly("a")) == Declared(older="r59")

    assert clock.table.all() == before


@pytest.mark.parametrize("step", [0.0, -2 * HOUR])
def test_a_release_first_seen_later_is_newer_whatever_the_stores_clock_says(step: float, clock: Clockwork) -> None:
    clock.table.declare("app", "1", [hourly("a")])
    clock.world.step_wall_clock(step)

    answer = clock.table.declare("app", "2", [hourly("a", rule="every 2h")])

    assert answer == Declared(changed=("a",))
    assert clock.table.declare("app", "1", [hourly("a")]).older == "2"


def test_without_a_release_the_content_stands_for_it(clock: Clockwork) -> None:
    declare(clock, "app", "", hourly("a"))

    assert declare(clock, "app", "", hourly("a")) == Declared()
    assert declare(clock, "app", "", hourly("a", jitter=5.0)).changed == ("a",)
    assert declare(clock, "app", "", hourly("a")).older == clock.stands("a").release


def test_two_apps_do_not_retire_each_others_schedules(clock: Clockwork) -> None:
    clock.table.put(hourly("by hand"))
    declare(clock, "shop", "1", hourly("shop"))
    declare(clock, "mail", "1", hourly("mail"))

    assert declare(clock, "shop", "2").retired == ("shop",)

    assert [each.schedule.name for each in clock.table.all() if each.schedule.retired_at] == ["shop"]


def test_a_schedule_that_another_app_takes_over_is_told(clock: Clockwork, caplog: pytest.LogCaptureFixture) -> None:
    declare(clock, "shop", "1", hourly("a"))

    declare(clock, "mail", "1", hourly("a"))

    assert "schedule a of app shop is now declared by app mail" in caplog.text
    assert declare(clock, "shop", "2").retired == ()


def test_an_app_that_still_declares_what_another_one_dropped_restores_it(clock: Clockwork) -> None:
    declare(clock, "shop", "1", hourly("x"))
    declare(clock, "mail", "1", hourly("x"), hourly("y"))
    assert declare(clock, "mail", "2", hourly("y")).retired == ("x",)

    assert declare(clock, "shop", "1", hourly("x")).changed == ("x",)

    assert (clock.stands("x").source, clock.stands("x").retired_at) == ("shop", None)


def test_of_two_apps_the_one_whose_release_is_newer_keeps_a_schedule_and_the_other_is_told(
    clock: Clockwork, caplog: pytest.LogCaptureFixture
) -> None:
    declare(clock, "shop", "1", hourly("a"))
    declare(clock, "mail", "1", hourly("a", rule="every 2h"))

    assert declare(clock, "shop", "1", hourly("a")) == Declared(kept=("a",))

    assert (clock.stands("a").source, clock.stands("a").rule) == ("mail", "every 2h")
    assert "schedule a stays that of app mail, whose release 1 is newer than release 1 of app shop" in caplog.text


def test_what_was_retired_and_is_declared_again_goes_on_and_tells_what_it_skipped(clock: Clockwork) -> None:
    declare(clock, "app", "1", hourly())
    declare(clock, "app", "2")
    clock.fire(3)

    assert declare(clock, "app", "3", hourly()).changed == ("s",)

    assert clock.told() == [("skipped", 1, 3, 3)]
    clock.fire(1)
    assert clock.told()[-1][0] == "open"


def test_a_changed_rule_moves_the_schedule_and_makes_no_second_one(clock: Clockwork) -> None:
    declare(clock, "app", "1", hourly())
    clock.advance(1)

    declare(clock, "app", "2", hourly(rule="every 30m"))

    assert len(clock.table.all()) == 1
    assert clock.told() == [("open", 1, 1, 1)]
    clock.work()
    clock.fire(0.5)
    assert clock.told() == [("success", 1, 1, 1), ("open", 1.5, 1.5, 1)]


# ── acting ──


def test_pause_and_resume_leave_one_row_of_what_was_skipped(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.table.pause("s", "until Monday")
    assert clock.fire(3.5) is None

    clock.table.resume("s")

    assert clock.told() == [("skipped", 1, 3, 3)]
    assert Ring("due", "") in clock.bell.rung
    assert clock.fire() == pytest.approx(HOUR / 2)


def test_a_rule_that_changes_during_a_pause_leaves_one_row_of_what_was_skipped_by_each(clock: Clockwork) -> None:
    """It used to say that these ticks were missed."""
    clock.table.put(hourly())
    clock.table.pause("s")
    clock.advance(3.5)

    clock.table.put(hourly(rule="every 2h"))
    clock.advance(3)
    clock.table.resume("s")

    assert clock.told() == [("skipped", 1, 3, 3), ("skipped", 4, 6, 2)]
    assert {tick.why for tick in clock.store.ticks("s")} == {"paused"}


def test_a_trigger_runs_now_and_names_its_job(clock: Clockwork) -> None:
    clock.table.put(hourly())

    job_id = clock.table.trigger("s")

    assert look(clock.store, job_id).state is State.QUEUED
    with pytest.raises(Refused, match="--force"):
        clock.table.trigger("s")
    clock.work()
    clock.advance(0.1)
    assert clock.table.trigger("s") != job_id


def test_a_trigger_whose_key_is_held_names_the_job_that_holds_it(clock: Clockwork) -> None:
    holder = put(clock.store, unique="one")
    clock.table.put(hourly(job=draft(id="", unique="one")))

    assert clock.table.trigger("s") == holder
    assert clock.waiting() == 1


def test_a_backfill_runs_the_ticks_that_did_not_become_runs(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    clock.work()
    clock.table.pause("s")
    clock.advance(3)
    clock.table.resume("s")

    jobs = clock.table.backfill("s", clock.at(-1), clock.at(3))

    assert [look(clock.store, job_id).meta["tick"] for job_id in jobs] == [
        clock.at(hour).isoformat() for hour in (-1, 0, 2, 3)
    ]
    assert clock.table.backfill("s", clock.at(-1), clock.at(3)) == []
    assert clock.waiting() == 4


def test_a_backfill_runs_the_ticks_whose_jobs_never_started(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    (tick,) = clock.store.ticks("s")
    clock.store.cancel([str(tick.job_id)], "no need")
    clock.table.settle(clock.table.all())
    assert [(each.status, each.started_at) for each in clock.store.ticks("s")] == [("cancelled", None)]

    (again,) = clock.table.backfill("s", clock.at(1), clock.at(1))

    assert look(clock.store, again).meta["tick"] == clock.at(1).isoformat()


def test_a_backfill_again_runs_all_of_them_again_and_again(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="allow"))
    clock.fire(1)
    clock.work()

    for _ in range(2):
        clock.advance(0.01)
        jobs = clock.table.backfill("s", clock.at(0), clock.at(1), again=True)
        assert {clock.work(), clock.work()} == set(jobs)


def test_a_backfill_again_leaves_the_ticks_that_one_still_runs(clock: Clockwork) -> None:
    clock.table.put(hourly())
    jobs = clock.table.backfill("s", clock.at(-1), clock.at(0))
    clock.work()
    clock.advance(0.01)

    again = clock.table.backfill("s", clock.at(-1), clock.at(0), again=True)

    assert clock.waiting() == 2
    assert len(again) == 1
    assert {run.tick.job_id for run in clock.table.get("s").runs} == {jobs[1], again[0]}


def test_a_backfill_again_leaves_a_tick_whose_own_run_goes_on(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="allow"))
    clock.fire(1)
    claim_one(clock.store, start(clock.store))

    assert clock.table.to_backfill("s", clock.at(1), clock.at(1), again=True) == []


@pytest.mark.parametrize("bound", ["start", "end"])
def test_a_backfill_has_no_tick_outside_of_start_and_end(bound: str, clock: Clockwork) -> None:
    given = {"start": {"start": clock.at(2)}, "end": {"end": clock.at(2)}}[bound]
    clock.table.put(hourly(**given))
    clock.table.pause("s")
    clock.advance(4)

    found = clock.table.to_backfill("s", clock.at(1), clock.at(3))

    assert [clock.hours(tick) for tick in found] == {"start": [2, 3], "end": [1, 2]}[bound]
    far = clock.table.to_backfill("s", clock.at(-20_000 if bound == "start" else 1), clock.at(3))
    assert len(far) == 2, "only ticks within them are counted"


def test_a_backfill_takes_no_job_of_a_removed_schedule_of_that_name_for_its_own(clock: Clockwork) -> None:
    clock.table.put(hourly())
    (before,) = clock.table.backfill("s", clock.at(0), clock.at(0))
    clock.work()
    clock.table.remove("s")
    clock.advance(0.01)
    clock.table.put(hourly())

    (after,) = clock.table.backfill("s", clock.at(0), clock.at(0))

    assert after != before
    assert look(clock.store, after).state is State.QUEUED


def test_a_backfill_leaves_to_the_schedule_what_it_still_fires_by_itself(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="queue"))
    clock.fire(1)
    clock.fire(1)
    clock.advance(1.5)
    assert clock.stands().pending_tick == clock.at(2)

    assert clock.table.to_backfill("s", clock.at(0), clock.at(24)) == [clock.at(0)]
    clock.table.pause("s")
    assert clock.table.to_backfill("s", clock.at(0), clock.at(24)) == [clock.at(0), clock.at(3)]


def test_the_ticks_after_a_backfill_come_as_ever(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="allow"))
    clock.fire(1)

    clock.table.backfill("s", clock.at(-2), clock.at(0))
    clock.fire(1)

    assert [(status, hour) for status, hour, *_ in clock.told()] == [("open", hour) for hour in (-2, -1, 0, 1, 2)]


def test_too_great_a_backfill_is_refused(clock: Clockwork) -> None:
    clock.table.put(hourly(rule="every 1s"))

    with pytest.raises(Refused, match="10,000"):
        clock.table.backfill("s", clock.at(-3), clock.at(0))
    assert clock.table.to_backfill("s", clock.at(0), clock.at(-3)) == []


NOTHING_NEW: dict[str, Callable[[Timetable], object]] = {
    "resume": lambda table: table.resume("s"),
    "put": lambda table: table.put(hourly()),
}


@pytest.mark.parametrize("act", NOTHING_NEW)
def test_what_is_due_is_not_put_off_by_an_act_that_changes_nothing(act: str, clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    clock.work()
    clock.advance(1)
    NOTHING_NEW[act](clock.table)

    clock.fire()

    assert clock.told() == [("success", 1, 1, 1), ("open", 2, 2, 1)]


def test_a_guard_that_becomes_a_task_ticks_from_now_on(clock: Clockwork) -> None:
    clock.table.put(hourly(kind="guard", job=None))
    clock.advance(0.3)

    clock.table.put(hourly())
    clock.fire(1)

    assert clock.told() == [("open", 1, 1, 1)]


def test_the_calls_of_a_guard_are_no_ticks_of_the_task_that_it_becomes(clock: Clockwork) -> None:
    clock.table.put(hourly("g", kind="guard", job=None))
    clock.advance(0.3)
    called(clock, "here")
    clock.advance(3)

    clock.table.put(hourly("g"))
    clock.fire(1)

    assert clock.told("g") == [("success", 0.3, 0.3, 1), ("open", 4, 4, 1)]


def test_a_task_that_becomes_a_guard_leaves_no_tick_that_waits(clock: Clockwork) -> None:
    clock.table.put(hourly(overlap="queue"))
    clock.fire(1)
    clock.fire(1)
    clock.advance(1)

    clock.table.put(hourly(kind="guard", job=None))

    assert clock.told() == [("open", 1, 1, 1), ("skipped", 2, 2, 1), ("skipped", 3, 3, 1)]
    assert (clock.stands().pending_tick, clock.stands().due_at) == (None, None)


def test_a_removed_schedule_leaves_its_jobs(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)

    clock.table.remove("s")

    assert clock.table.all() == []
    assert clock.waiting() == 1


ACTS: dict[str, Callable[[Timetable], object]] = {
    "get": lambda table: table.get("nope"),
    "history": lambda table: table.history("nope"),
    "pause": lambda table: table.pause("nope"),
    "resume": lambda table: table.resume("nope"),
    "trigger": lambda table: table.trigger("nope"),
    "backfill": lambda table: table.backfill("nope", table.store.now(), table.store.now()),
    "remove": lambda table: table.remove("nope"),
}


@pytest.mark.parametrize("act", ACTS)
def test_an_unknown_name_is_told_with_those_that_are_known(act: str, clock: Clockwork) -> None:
    clock.table.put(hourly("nightly"))

    with pytest.raises(UnknownSchedule, match=r"no schedule 'nope' in memory://; known: nightly"):
        ACTS[act](clock.table)


def drawn(longest: float, *, over: float = 0.0, under: float = 1.0) -> str:
    """A name whose jitter at the first full hour is between these parts of the longest."""
    tick = Clockwork().at(1)
    waits = {n: jitter(hourly(n, jitter=longest), tick).total_seconds() for n in map("n{}".format, range(100))}
    return next(name for name, seconds in waits.items() if over * longest < seconds < under * longest)


def test_a_rename_loses_no_tick_that_waits_for_its_jitter(clock: Clockwork) -> None:
    before, after = drawn(3_000.0, over=0.8), drawn(3_000.0, under=0.1)
    clock.table.put(hourly(before, jitter=3_000.0, catch_up="skip"))
    clock.fire(1.5)
    assert clock.told(before) == []

    clock.bell.rung.clear()
    clock.table.rename(before, after)
    assert clock.bell.rung == [Ring("due", "")]
    clock.fire()

    assert clock.told(after) == [("open", 1, 1, 1)]


@pytest.mark.parametrize("sooner", [True, False])
def test_a_renamed_schedule_is_fired_by_the_jitter_of_its_new_name(sooner: bool, clock: Clockwork) -> None:
    names = [drawn(3_000.0, over=0.8), drawn(3_000.0, under=0.1)]
    before, after = names if sooner else names[::-1]
    clock.table.put(hourly(before, jitter=3_000.0, catch_up="skip"))
    clock.fire()

    clock.table.rename(before, after)
    clock.fire()
    s = clock.stands(after)
    assert s.due_at == clock.at(1) + jitter(s, clock.at(1))
    clock.fire((s.due_at - clock.store.now()) / timedelta(hours=1))

    assert clock.told(after) == [("open", 1, 1, 1)]


# ── overdue ──


def test_overdue_says_what_should_run_and_does_not_longest_first(clock: Clockwork) -> None:
    clock.table.put(hourly("not fired", grace=60.0))
    clock.table.put(hourly("paused"))
    clock.table.pause("paused")
    clock.table.put(hourly("not started", grace=60.0, rule="every 30m"))
    clock.fire(0.5)
    clock.advance(1)

    found = clock.table.overdue()

    assert [(each.name, round(each.overdue_by), each.why) for each in found] == [
        ("not started", HOUR, "no worker started its job"),
        ("not fired", HOUR / 2, "no supervisor fired it"),
    ]
    assert found[0].expected_at == clock.at(0.5)


def test_a_run_that_waits_for_a_place_is_overdue_by_its_limit(clock: Clockwork) -> None:
    clock.table.put(hourly(grace=60.0, job=draft(id="", limits=(Key("shop:7", "shop:{shop}"),))))
    clock.fire(1)
    clock.advance(0.5)

    (found,) = clock.table.overdue()

    (tick,) = clock.store.ticks("s")
    assert found.why == f"its job waits for a place of shop:7: tenure jobs explain {tick.job_id}"


def test_nothing_is_overdue_while_it_runs_however_long(clock: Clockwork) -> None:
    clock.table.put(hourly())
    clock.fire(1)
    claim_one(clock.store, start(clock.store))
    clock.advance(9)

    assert clock.table.overdue() == []


def test_a_guard_that_was_not_called_is_overdue(clock: Clockwork) -> None:
    clock.table.put(hourly("g", kind="guard", job=None))
    called(clock, "here")
    clock.advance(1.5)
    clock.table.settle(clock.table.all())

    (found,) = [each for each in clock.table.overdue() if each.name == "g"]

    assert (found.why, round(found.overdue_by)) == ("no call came", HOUR / 2)


# ── guards ──


def called(clock: Clockwork, host: str, *, ends: bool = True) -> Began | Held:
    """Cron on that host calls the guard `g`; if `ends`, its command succeeds at once."""
    worker = start(clock.store, runner="guard", queues=(), host=host)
    (found,) = clock.store.schedules(["g"])
    plan = Plan(Standing(found.schedule, found.runs), clock.store.now()).close(clock.store.attempts)
    answer = begin_guard(plan, draft().id, worker, host, now=clock.store.now())
    if isinstance(answer, Began):
        assert clock.store.change([answer.change]) == [True]
        (owned,) = clock.store.owned(worker)
        assert owned.claimed.id == answer.job_id
        if ends:
            assert finish(clock.store, Lease(answer.job_id, 1, worker), Completed()) is State.COMPLETED
    return answer


def test_a_guard_on_two_hosts_runs_once_a_day_for_a_hundred_days(clock: Clockwork) -> None:
    clock.table.put(hourly("g", rule="0 6 * * *", kind="guard", job=None))
    clock.advance(22 - 300 / 3_600_000)  # six o'clock, 300 ms early
    ran = 0
    for day in range(100):
        early = isinstance(called(clock, "a"), Began)
        clock.advance(0.2 / 3_600)
        late = isinstance(called(clock, "b"), Began)
        assert [early, late] == [True, False]
        ran += early + late
        clock.advance(24 - (0.2 + (0.4 if day % 2 else -0.4)) / 3_600)
    clock.table.settle(clock.table.all())

    assert ran == 100
    assert [status for status, *_ in clock.told("g")] == ["success"] * 100


def test_a_guard_that_overlaps_is_told_who_holds_it_and_until_when(clock: Clockwork) -> None:
    clock.table.put(hourly("g", kind="guard", job=None))
    assert isinstance(called(clock, "mail-1", ends=False), Began)
    clock.world.advance(20)

    answer = called(clock, "mail-2")

    assert isinstance(answer, Held)
    assert answer.locked
    until = (clock.zero + timedelta(seconds=30)).isoformat(timespec="seconds")
    assert answer.says == f"still locked until {until} (mail-1, running for 20s)"


def test_the_lock_of_a_guard_that_died_opens_by_itself(clock: Clockwork) -> None:
    clock.table.put(hourly("g", kind="guard", job=None))
    dead = start(clock.store, runner="guard", queues=())
    begin_guarded(clock.store, "g", dead)
    clock.advance(1)
    assert isinstance(called(clock, "b"), Held)

    clock.store.declare_expired()
    clock.store.rescue()

    assert isinstance(called(clock, "b"), Began)
    assert [status for status, *_ in clock.told("g")] == ["failure", "open"]
    assert clock.stands("g").failure_count == 1
