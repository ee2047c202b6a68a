"""Whatever happens, every tick of a schedule is recorded exactly once: an accountant that only reads checks the books.

It knows when the rule in force ticks, the clock, and what the store shows; nothing of how ticks are decided.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple

import pytest

from conformance.factories import World, draft, start
from tenure.core.lifecycle import LIVE, Cancelled, Completed, Crashed, Failed, Lease, Outcome, Snoozed, State
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Filter, JobView
from tenure.ports.schedules import CATCH_UPS, OVERLAPS, Schedule, Tick
from tenure.schedules import cron
from tenure.schedules.plan import Refused, jitter
from tenure.schedules.timetable import Timetable
from tenure.stores.memory import MemoryStore

pytestmark = pytest.mark.thorough

STORIES = int(os.environ.get("TENURE_TEST_STORIES", "60"))
FIRST = int(os.environ.get("TENURE_TEST_SEED", "1"))
MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
ON_TIME, LOOKS = 60.0, 60.0  # how late a tick may be and not be missed; how often a waiting schedule is looked at
MOMENT = timedelta(milliseconds=1)
STATUS = {State.COMPLETED: "success", State.DEAD: "failure", State.CANCELLED: "cancelled"}

RULES = [
    ("every 7m", "UTC"),
    ("every 1h", "UTC"),
    ("every 25h offset 3h", "UTC"),
    ("*/20 * * * *", "UTC"),
    ("30 1,2,3 * * *", "Europe/Paris"),
    ("*/30 0-4 * * *", "America/New_York"),
    ("0 9 * * MON", "Asia/Tokyo"),
]
OUTCOMES: list[Outcome] = [
    Completed(),
    Completed(),
    Failed("boom", final=True),
    Failed("later", retry_in=600.0),
    Snoozed(1_200.0),
    Crashed("killed"),
    Cancelled("stopped"),
]
EVES = [0, 0, 57, 71, 288, 295]  # the last four: before the days on which clocks change in these zones
SPANS = [1.0, 59.0, 61.0, 5 * MINUTE, 20 * MINUTE, HOUR, 3 * HOUR, 9 * HOUR, DAY, 3 * DAY, 20 * DAY]
OPTIONS: dict[str, Sequence[Any]] = {
    "timing": RULES,
    "overlap": OVERLAPS,
    "catch_up": CATCH_UPS,
    "catch_up_window": [1.0, 90 * MINUTE, 2 * DAY, 7 * DAY],
    "catch_up_max": [1, 3, 40],
    "expires": [None, None, 10 * MINUTE, 5 * HOUR],
    "jitter": [0.0, 0.25, 300.0, 400.0],
    "start": [None, None, -HOUR, 5 * HOUR],
    "end": [None, None, None, DAY, -MINUTE],
    "pause_after": [None, None, 2],
    "max_crashes": [0, 3],
}


class Span(NamedTuple):
    """A rule, and from when until when it was in force."""

    rule: cron.Rule
    after: datetime
    until: datetime

    def next(self, last: datetime) -> datetime | None:
        tick = self.rule.after(max(last, self.after))
        return tick if tick is not None and tick <= self.until else None


class Books:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.story: list[str] = []
        self.world = World(lambda clock: MemoryStore(clock, seed=seed))  # it draws the waits: one seed, one story
        store = self.world.store()
        assert isinstance(store, MemoryStore)
        self.store = store
        self.table = Timetable(store, PollNotifier())
        self.world.advance(random.choice(EVES) * DAY)
        self.worker = start(store, lease=10_000 * DAY)
        self.leases: list[Lease] = []
        self.past: list[Span] = []  # of rules that were in force
        self.span: Span | None = None
        self.disowned: set[str] = set()  # jobs of a schedule of this name that was removed
        self.rerun: set[str] = set()  # jobs of backfilled ticks that may have been backfilled again
        self.set_back = 0.0

    def now(self) -> datetime:
        return self.store.now()

    def stands(self) -> Schedule:
        return self.table.get("s").schedule

    def jobs(self) -> dict[str, JobView]:
        found = self.store.search(Filter(), limit=1_000_000).jobs
        return {view.id: view for view in found}

    def live(self) -> list[str]:
        return [run.tick.job_id or "" for run in self.table.get("s").runs if run.live]

    # ── the schedule ──

    def options(self) -> dict[str, Any]:
        return {name: self.random.choice(among) for name, among in OPTIONS.items()}

    def changed(self) -> None:
        """Half of the changes leave its times as they are."""
        s, wanted = self.stands(), self.options()
        if self.random.random() < 0.5:
            wanted = {**wanted, "timing": (s.rule, s.tz), "start": s.start, "end": s.end}
        self.catch_up_with_the_clock()
        self.put(wanted)

    def catch_up_with_the_clock(self) -> None:
        """New times begin now: with a clock behind what was decided, they would begin in the past."""
        decided = [self.now(), *(tick.until or tick.tick for tick in self.rows())]
        pending = self.stands().pending_tick
        latest = max(decided if pending is None else [*decided, pending])
        self.world.advance((latest - self.now()).total_seconds())

    def put(self, wanted: dict[str, Any]) -> None:
        now, given = self.now(), dict(wanted)
        spec, tz = given.pop("timing")
        for name in ("start", "end"):
            if isinstance(given[name], float):
                given[name] = now + timedelta(seconds=given[name])
        if given["start"] and given["end"] and given["end"] <= given["start"]:
            given["end"] = None
        job = draft(id="", max_crashes=given.pop("max_crashes"))
        new = Schedule(name="s", rule=spec, tz=tz, job=job, **given)
        before = None if self.span is None else self.stands()
        self.table.put(new)
        after = self.stands()
        timing = [(s.rule, s.tz, s.dst, s.start, s.end) for s in (before, after) if s]
        if len(timing) == 1 or timing[0] != timing[1]:
            if self.span is not None:
                self.past.append(self.span._replace(until=min(self.span.until, now)))
            begins = max(now, after.start - MOMENT) if after.start else now
            self.span = Span(cron.read(spec, tz), begins, after.end or datetime.max.replace(tzinfo=now.tzinfo))

    def paused(self) -> None:
        self.table.pause("s")
        self.world.advance(self.random.choice([0, 0, DAY]))

    def resumed(self) -> None:
        self.table.resume("s")

    def retired_and_declared_again(self) -> None:
        self.table.declare("app", "1", [self.stands()])
        self.table.declare("app", "2", [], force=True)
        self.world.advance(HOUR)
        self.fired()
        self.table.declare("app", "1", [self.stands()], force=True)

    def removed_and_made_again(self) -> None:
        s = self.stands()
        self.table.remove("s")
        self.disowned |= self.jobs().keys()
        self.store.cancel(self.disowned, "gone")
        self.leases.clear()
        self.past, self.span = [], None
        self.world.advance(7 * MINUTE)
        fields = ("overlap", "catch_up", "catch_up_window", "catch_up_max", "expires", "jitter", "pause_after")
        made = {name: getattr(s, name) for name in fields}
        self.put({**made, "timing": (s.rule, s.tz), "start": None, "end": None, "max_crashes": 1})

    # ── time, and supervisors that fire ──

    def nobody_was_there(self) -> None:
        self.world.advance(round(self.random.choice(SPANS) * self.random.uniform(1, 2), 3))

    def the_clock_is_set_back(self) -> None:
        # By less than an hour in all: the operator is told of more, and `resume` takes it back.
        step = self.random.choice([0.5, 30.0, 10 * MINUTE])
        if self.set_back + step > 50 * MINUTE:
            return
        self.world.step_wall_clock(-step)
        self.set_back += step

    def time_passes_as_it_should(self) -> None:
        for _ in range(self.random.randint(1, 20)):
            s = self.stands()
            due_at = self.now() + timedelta(hours=1) if s.due_at is None else s.due_at
            self.world.advance(max(0.0, (due_at - self.now()).total_seconds()))
            self.fired()
            self.the_books_are_right()

    def fired(self) -> None:
        before, stood, live = self.jobs(), self.stands(), self.live()
        while self.table.fire_due() == 0.0:
            pass
        self.nothing_due_is_left()
        self.what_began_was_allowed_to(before, stood, live)
        for tick in self.rows(cause=None):
            job = None if tick.job_id is None else self.store.get(tick.job_id)
            if tick.job_id is not None and job is not None:
                assert tick.status == STATUS.get(job.state, "open"), (tick, job.state)
            elif tick.job_id is not None:
                assert tick.status != "open", tick

    def nothing_due_is_left(self) -> None:
        s, now = self.stands(), self.now()
        assert s.idle or s.pending_tick is None or self.live(), "what waits for a run waits for none"
        if s.idle or s.next_tick is None or s.next_tick + jitter(s, s.next_tick) > now:
            return
        assert s.catching_up_to is not None, "a tick whose time has come was left"
        assert s.overlap != "allow"
        assert self.live(), "what waits to be made up for waits for a run"

    def what_began_was_allowed_to(self, before: dict[str, JobView], stood: Schedule, was_live: list[str]) -> None:
        s, now = self.stands(), self.now()
        begun = sorted(
            (tick for tick in self.rows() if tick.job_id in self.jobs().keys() - before), key=lambda tick: tick.tick
        )
        if s.overlap != "allow":
            still = [job_id for job_id in self.live() if job_id in was_live]
            live = [tick for tick in begun if tick.job_id in self.live()]
            assert len(live) + bool(still and live) <= 1, "two runs at once"
        waited = {stood.pending_tick}
        fresh = [tick for tick in begun if tick.tick not in waited]
        if stood.catching_up_to is not None:
            fresh = [tick for tick in fresh if tick.tick > stood.catching_up_to]
        window = ON_TIME if s.catch_up == "skip" else max(ON_TIME, s.catch_up_window)
        for tick in fresh:
            assert tick.tick + jitter(s, tick.tick) <= now, f"{tick.tick} is not due yet"
            age = (now - tick.tick - jitter(s, tick.tick)).total_seconds()
            assert age <= max(window, ON_TIME) + s.jitter, f"{tick.tick} is {age} s late: {s.catch_up} {window}"
        number = len(fresh)
        if s.catching_up_to is not None and stood.catching_up_to is None and s.next_tick is not None:
            number += cron.read(s.rule, s.tz).count(s.next_tick - MOMENT, s.catching_up_to, 1_000)
        assert number <= (s.catch_up_max if s.catch_up == "all" else 1)
        for tick in begun:
            view = self.store.get(tick.job_id or "")
            assert view is not None
            if s.expires is not None:
                assert (now - tick.tick).total_seconds() < s.expires
                assert view.expires_at is not None
                assert abs((view.expires_at - tick.tick).total_seconds() - s.expires) < 0.01

    # ── the workers ──

    def claims(self) -> None:
        wants = {"default": self.random.randint(1, 3)}
        claimed = self.store.claim(self.worker, wants, 3) + self.store.claim(self.worker, wants, 3, solo=True)
        self.leases += [Lease(each.id, each.attempt, self.worker) for each in claimed]

    def ends_one(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.random.randrange(len(self.leases)))
            self.store.finish([(lease, self.random.choice(OUTCOMES))])

    def works_off(self) -> None:
        """As a healthy system does: each run ends before the next look."""
        for _ in range(self.random.randint(1, 8)):
            self.claims()
            self.store.finish([(lease, Completed()) for lease in self.leases])
            self.leases.clear()
            if self.random.random() < 0.3:
                self.reads()
            self.fired()
            self.the_books_are_right()

    def due_jobs_are_promoted(self) -> None:
        self.store.promote()

    # ── people ──

    def cancels(self) -> None:
        self.store.cancel(self.some_job(), "by hand")

    def replays(self) -> None:
        self.store.replay(self.some_job())

    def deletes(self) -> None:
        self.store.delete(self.some_job())

    def some_job(self) -> list[str]:
        names = sorted({tick.job_id for tick in self.rows(cause=None) if tick.job_id is not None})
        return self.random.sample(names, min(1, len(names)))

    def triggers(self) -> None:
        self.world.advance(0.01)
        live, force = self.live(), self.random.random() < 0.5
        try:
            job_id = self.table.trigger("s", force=force)
        except Refused:
            assert live
            assert not force
            return
        view = self.store.get(job_id)
        assert view is not None
        assert view.state in LIVE

    def backfills(self) -> None:
        self.world.advance(0.01)
        since, again = self.now() - timedelta(hours=self.random.randint(1, 30)), self.random.random() < 0.5
        if again:
            self.rerun |= {tick.job_id for tick in self.rows(cause="backfill") if tick.job_id is not None}
        self.table.backfill("s", since, self.now(), again=again)

    def reads(self) -> None:
        self.table.history("s")
        self.table.overdue()

    # ── the books ──

    def rows(self, cause: str | None = "tick") -> list[Tick]:
        return [tick for tick in self.store.ticks("s", limit=1_000_000) if cause in (None, tick.cause)]

    def the_books_are_right(self) -> None:
        if self.span is None:
            return
        s, spans = self.stands(), [*self.past, self.span]
        told = [(row.tick, row.until or row.tick, row.count) for row in self.rows()]
        if s.pending_tick is not None:
            told.append((s.pending_tick, s.pending_tick, 1))
        last = min(span.after for span in spans)
        for first, until, count in sorted(told):
            found = next(((span, tick) for span in spans if (tick := span.next(last)) is not None), None)
            assert found is not None, f"{first} is no tick"
            span, expected = found
            assert first == expected, f"after {last} comes {expected}, and not {first}"
            assert span.rule.upto(until) == until, f"{until} is no tick"
            assert until <= span.until
            assert span.rule.count(first - MOMENT, until, 1_000_000) == count
            last = until
        ahead = [tick for span in spans if (tick := span.next(last)) is not None]
        assert s.next_tick == (ahead[0] if ahead else None), "the first tick that is not decided"

    def it_never_stops_by_itself(self) -> None:
        if self.span is None:
            return
        s = self.stands()
        if s.idle:
            return
        if s.next_tick is None:
            assert s.end is not None
            assert self.span.rule.after(max(self.span.after, s.last_tick or self.span.after)) is not None
        waits = [] if s.next_tick is None else [s.next_tick + jitter(s, s.next_tick)]
        waits += [] if s.pending_tick is None else [self.now()]
        if waits:
            assert s.due_at is not None, "nobody would ever look at it"
            assert s.due_at <= max(min(waits), self.now()) + timedelta(seconds=LOOKS + self.set_back)

    def every_job_has_its_row(self) -> None:
        if self.span is None:
            return
        jobs = self.jobs()
        rows: dict[str, list[Tick]] = {}
        for tick in self.rows(cause=None):
            if tick.job_id is not None:
                rows.setdefault(tick.job_id, []).append(tick)
        assert all(len(each) == 1 for each in rows.values()), "a job is one tick's"
        for job_id in jobs.keys() - self.disowned:
            row = rows.get(job_id, [None])[0]
            if jobs[job_id].state in LIVE:
                assert row is not None, f"it runs, and nobody knows of it: {jobs[job_id]}"
                assert row.status == "open", "it runs, and its tick is closed"
            if row is not None:
                assert jobs[job_id].meta["tick"] == row.tick.isoformat()
            else:
                assert job_id in self.rerun, f"nobody knows of it: {jobs[job_id]}"

    # ── a story ──

    def told(self, steps: int) -> None:
        self.put(self.options())
        for _ in range(steps):
            step = self.random.choice(STEPS)
            self.story.append(f"{self.now():%a %H:%M:%S} {step.__name__}")
            step(self)
            self.the_books_are_right()
            self.it_never_stops_by_itself()
            self.every_job_has_its_row()


STEPS: list[Callable[[Books], None]] = [
    *[Books.nobody_was_there, Books.time_passes_as_it_should, Books.fired, Books.works_off] * 3,
    *[Books.claims, Books.ends_one, Books.triggers, Books.changed, Books.the_clock_is_set_back] * 2,
    *[Books.paused, Books.resumed, Books.retired_and_declared_again, Books.removed_and_made_again],
    *[Books.due_jobs_are_promoted, Books.cancels, Books.replays, Books.deletes, Books.backfills, Books.reads],
]


@pytest.mark.timeout(600)  # seconds of computing, which a busy machine stretches
def test_every_tick_is_accounted_for_exactly_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "tenure.schedules")
    for seed in range(FIRST, FIRST + STORIES):
        books = Books(seed)
        try:
            books.told(40)
        except Exception as wrong:
            wrong.add_note("\n".join([f"the story of TENURE_TEST_SEED={seed} TENURE_TEST_STORIES=1:", *books.story]))
            raise
