"""How schedules stand: whether each runs when it should, what became of its ticks, which ones come; in words, too.

The command line, the pages and the API show these values; none of them works anything out by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenure.core.durations import spell
from tenure.errors import InvalidOption
from tenure.events import headline
from tenure.ports import JobView
from tenure.ports.schedules import Run, Schedule, Standing, Tick
from tenure.schedules import advice
from tenure.schedules.advice import Outlook, outlook
from tenure.schedules.cron import Cron, Every, Rule
from tenure.schedules.plan import overdue_by, rule_of, understood
from tenure.schedules.timetable import Record, record, why_overdue

_MOMENT = timedelta(milliseconds=1)
_OVERLAP = {
    "skip": "a tick is skipped while the run before it goes on",
    "queue": "one tick waits for the run before it to end, further ones are skipped",
    "replace": "a tick stops the run before it and takes its place",
    "allow": "runs may overlap",
}
_CATCH_UP = {
    "skip": "ticks that nobody fired in time are not made up for",
    "latest": "of ticks that nobody fired the newest one is run, if it is not older than {window}",
    "all": "ticks that nobody fired are run one after another, the newest {most:,} and none older than {window}",
}


# ── How one stands ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ScheduleHealth:
    """A schedule as it stands `at` a moment. `late` is in seconds; None: it is not overdue."""

    standing: Standing
    at: datetime  #: by the store's clock
    marks: Sequence[Tick]  #: its last ticks, the newest last
    record: Record
    rule: Rule | None  #: None: this release can't read it, its time zone is gone, say
    late: float | None

    @classmethod
    def of(cls, standing: Standing, now: datetime, marks: Sequence[Tick] = ()) -> ScheduleHealth:
        schedule = standing.schedule
        rule = rule_of(schedule) if understood(schedule) else None
        return cls(standing, now, marks, record(standing), rule, overdue_by(standing, now))

    @property
    def schedule(self) -> Schedule:
        return self.standing.schedule

    @property
    def running(self) -> list[Run]:
        return [run for run in self.standing.runs if run.live]

    @property
    def waiting(self) -> bool:
        """Its job waits for a worker."""
        return any(run.job is not None and run.job.attempt == 0 for run in self.running)

    @property
    def due(self) -> datetime | None:
        """When it is late: since when; the same at every look, whatever is lost in arithmetic."""
        if self.late is None:
            return None
        due = self.at - timedelta(seconds=self.late) + _MOMENT / 2
        return due.replace(microsecond=due.microsecond // 1000 * 1000)

    @property
    def why_late(self) -> str:
        return "" if self.late is None else why_overdue(self.standing, self.at)

    @property
    def status(self) -> str:
        """In one word; how its last run went, unless something else matters more."""
        s = self.schedule
        if self.late is not None:
            return "overdue"
        return "retired" if s.retired_at else "paused" if s.paused_at else self.record.last_status or "never run"

    @property
    def local(self) -> str:
        """The next tick as the clocks of its zone show it; empty where that is UTC."""
        at = self.record.next_expected_at
        return "" if at is None or self.schedule.tz == "UTC" else clock(self.rule, at)

    @property
    def worry(self) -> tuple[float, ...]:
        """To sort by: the worst first."""
        return (-(self.late or 0.0), -self.schedule.failure_count)

    @property
    def lint(self) -> list[str]:
        """What its rule does that people do not expect."""
        return surprises(self.schedule, self.at)

    def coming(self, limit: int) -> list[Outlook]:
        """Its next ticks."""
        return [] if self.rule is None else coming(self.rule, self.at, limit, self.schedule)

    def told(self, ticks: Iterable[Tick]) -> list[TickView]:
        """These ticks of it, each with its job where that still runs."""
        jobs = {run.tick.job_id: run.job for run in self.standing.runs}
        return [TickView(tick, jobs.get(tick.job_id), self.rule) for tick in ticks]


def surprises(schedule: Schedule, now: datetime) -> list[str]:
    """What its rule does that people do not expect."""
    try:
        return (
            [f"its rule can't be understood here: {schedule.unread}"]
            if schedule.unread
            else advice.lint(rule_of(schedule), now)
        )
    except InvalidOption as error:
        return [f"its rule can't be understood here: {error}"]


def held_back(s: Schedule) -> list[str]:
    """Why ticks may not become runs at these very times."""
    said = [
        "it is retired: none of these will be fired" if s.retired_at else "",
        "it is paused: none of these is fired until it is resumed" if s.paused_at else "",
        f"each is fired up to {spell(s.jitter)} later (jitter)" if s.jitter else "",
    ]
    return [each for each in said if each]


# ── What became of its ticks, and which ones come ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TickView:
    """What became of one tick, or of a run of missed ones."""

    tick: Tick
    job: JobView | None  #: while its run goes on
    rule: Rule | None

    @property
    def local(self) -> str:
        """Its time as the clocks of the rule's zone show it."""
        return clock(self.rule, self.tick.tick)

    @property
    def until(self) -> str:
        """The same of the last one of a run of missed ticks; empty: it stands for one."""
        return clock(self.rule, self.tick.until) if self.tick.until else ""

    @property
    def started_at(self) -> datetime | None:
        return self.tick.started_at or (self.job.started_at if self.job else None)

    @property
    def took(self) -> float | None:
        """Seconds."""
        tick = self.tick
        return (tick.ended_at - tick.started_at).total_seconds() if tick.started_at and tick.ended_at else None

    @property
    def took_ms(self) -> int | None:
        return None if self.took is None else round(self.took * 1000)

    @property
    def late_by(self) -> float | None:
        """Seconds from its time to its start. What an operator started has no time of its own."""
        began = self.started_at
        if began is None or self.tick.cause != "tick":
            return None
        return max(0.0, (began - self.tick.tick).total_seconds())

    @property
    def why(self) -> str:
        """The reason, the first line of the error, or how far it is."""
        if self.tick.status == "open":
            return str(self.job.state) if self.job else "its job is gone"
        return headline(self.tick.why) if self.tick.why else ""


def coming(rule: Rule, since: datetime, limit: int, schedule: Schedule | None = None) -> list[Outlook]:
    """The next ticks of a rule; those of a schedule lie between its start and its end."""
    start, end = (schedule.start, schedule.end) if schedule else (None, None)
    since = max(since, start - _MOMENT) if start else since
    return [each for each in outlook(rule, since, limit) if end is None or each.tick <= end]


# ── In words ────────────────────────────────────────────────────────────────────────────────────────────────────


def clock(rule: Rule | None, at: datetime) -> str:
    """A time as the clocks of the rule's zone show it."""
    return wall(rule.local(at) if rule else at.astimezone(UTC))


def wall(local: datetime) -> str:
    return f"{local:%a %Y-%m-%d %H:%M}{f':{local:%S}' if local.second else ''} {local.tzname()}"


def definition(s: Schedule, rule: Rule | None) -> list[tuple[str, str]]:
    """What was declared, name by name; what does not apply has an empty text."""
    job, guard = s.job, s.kind == "guard"
    catch_up = _CATCH_UP[s.catch_up].format(window=spell(s.catch_up_window), most=s.catch_up_max)
    return [
        ("runs", str(rule) if isinstance(rule, Every) else f"{s.rule} in {s.tz}"),
        ("clock changes", _clock_changes(s) if isinstance(rule, Cron) and s.tz != "UTC" else ""),
        ("from", clock(rule, s.start) if s.start else ""),
        ("until", clock(rule, s.end) if s.end else ""),
        ("jitter", f"up to {spell(s.jitter)} later, another length for each tick" if s.jitter else ""),
        ("overlap", "" if guard else f"{s.overlap}: {_OVERLAP[s.overlap]}"),
        ("catch up", "" if guard else f"{s.catch_up}: {catch_up}"),
        ("expires", f"not begun {spell(s.expires)} after its time, a run is given up" if s.expires is not None else ""),
        ("pause after", _failures(s.pause_after) if s.pause_after is not None else ""),
        ("alert after", _failures(s.alert_after)),
        ("overdue", f"{spell(s.grace)} after its time"),
        ("too long", f"a run that takes longer than {spell(s.too_long)}" if s.too_long is not None else ""),
        ("task", job.task if job else "none: a guard, it runs where it is called"),
        ("queue", f"{job.queue}, priority {job.priority}" if job else ""),
    ]


def _clock_changes(s: Schedule) -> str:
    said = "a fixed time that is jumped over runs right after, one that comes twice runs the first time"
    more = "; if all ticks of a day are jumped over, one run right after" if s.dst == "run_once" else ""
    return f"{s.dst}: {said}{more}"


def _failures(count: int) -> str:
    return f"{count} failure{'' if count == 1 else 's'} in a row"


def origin(s: Schedule) -> str:
    """Who declares it."""
    if s.kind == "guard":
        return "its own calls"
    return f"app {s.source}, release {s.release}" if s.source else "an operator"
