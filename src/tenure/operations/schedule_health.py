"""Health of schedules: whether each runs on time, the outcomes of its ticks, its next ticks; and texts for them.

The command line, the pages and the API show these values and derive nothing themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenure.core.durations import spell
from tenure.errors import InvalidOption
from tenure.events import headline
from tenure.ports import JobView
from tenure.ports.schedules import Run, Schedule, Standing, Tick
from tenure.schedules import advice
from tenure.schedules.advice import Outlook, outlook
from tenure.schedules.cron import Every, Rule
from tenure.schedules.plan import overdue_by, rule_of, understood
from tenure.schedules.timetable import Record, record, why_overdue

_MOMENT = timedelta(milliseconds=1)
_OVERLAP = {
    "skip": "a tick is skipped while the previous run is still in progress",
    "queue": "one tick waits for the previous run to end, further ones are skipped",
    "replace": "a tick cancels the previous run and replaces it",
    "allow": "runs may overlap",
}
_CATCH_UP = {
    "skip": "ticks that were not fired in time are not run later",
    "latest": "of the ticks that were not fired, the newest is run if it is not older than {window}",
    "all": "ticks that were not fired are run one after another: the newest {most:,}, none older than {window}",
}


# ── Health of one schedule ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ScheduleHealth:
    """The state of a schedule `at` a moment. `late` is in seconds; None: it is not overdue."""

    standing: Standing
    at: datetime  #: by the store's clock
    marks: Sequence[Tick]  #: its last ticks, the newest last
    record: Record
    rule: Rule | None  #: None: this release can't read it, for example because its time zone is gone
    late: float | None
    why_late: str  #: empty: it is not

    @classmethod
    def of(
        cls, standing: Standing, now: datetime, marks: Sequence[Tick] = (), paused: Collection[str] = ()
    ) -> ScheduleHealth:
        """`paused`: the paused queues."""
        schedule = standing.schedule
        rule = rule_of(schedule) if understood(schedule) else None
        late = overdue_by(standing, now)
        why = "" if late is None else why_overdue(standing, now, paused)
        return cls(standing, now, marks, record(standing), rule, late, why)

    @property
    def schedule(self) -> Schedule:
        return self.standing.schedule

    @property
    def running(self) -> list[Run]:
        return [run for run in self.standing.runs if run.live]

    @property
    def waiting(self) -> bool:
        """Its job is queued: no worker has taken it yet."""
        return any(run.job is not None and run.job.attempt == 0 for run in self.running)

    @property
    def due(self) -> datetime | None:
        """If it is late, since when; computed so that rounding gives the same value at every call."""
        if self.late is None:
            return None
        due = self.at - timedelta(seconds=self.late) + _MOMENT / 2
        return due.replace(microsecond=due.microsecond // 1000 * 1000)

    @property
    def status(self) -> str:
        """One word: the status of its last run, unless something else matters more."""
        s = self.schedule
        if self.late is not None:
            return "overdue"
        return "retired" if s.retired_at else "paused" if s.paused_at else self.record.last_status or "never run"

    @property
    def local(self) -> str:
        """The next tick in local time of its zone; empty if that is UTC."""
        at = self.record.next_expected_at
        return "" if at is None or self.schedule.tz == "UTC" else clock(self.rule, at)

    @property
    def worry(self) -> tuple[float, ...]:
        """Sort key: worst first."""
        return (-(self.late or 0.0), -self.schedule.failure_count)

    @property
    def lint(self) -> list[str]:
        """What its rule does that people do not expect."""
        return surprises(self.schedule, self.at)

    def coming(self, limit: int) -> list[Outlook]:
        """Its next ticks."""
        return [] if self.rule is None else coming(self.rule, self.at, limit, self.schedule)

    def views(self, ticks: Iterable[Tick]) -> list[TickView]:
        """These ticks, each with its job if that is still live."""
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
    """Why ticks may not become runs at exactly these times."""
    said = [
        "it is retired: none of these will be fired" if s.retired_at else "",
        "it is paused: none of these is fired until it is resumed" if s.paused_at else "",
        f"each is fired up to {spell(s.jitter)} late (jitter)" if s.jitter else "",
    ]
    return [each for each in said if each]


# ── Outcomes of past ticks, and the next ticks ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class TickView:
    """The outcome of one tick, or of a series of missed ones."""

    tick: Tick
    job: JobView | None  #: while its run is in progress
    rule: Rule | None

    @property
    def local(self) -> str:
        """Its local time in the rule's zone."""
        return clock(self.rule, self.tick.tick)

    @property
    def until(self) -> str:
        """Local time of the last of a series of missed ticks; empty: it is a single tick."""
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
        """Seconds from its due time to its start. Runs started by an operator have no due time."""
        began = self.started_at
        if began is None or self.tick.cause != "tick":
            return None
        return max(0.0, (began - self.tick.tick).total_seconds())

    @property
    def why(self) -> str:
        """The reason, the first line of the error, or the progress."""
        if self.tick.status == "open":
            return str(self.job.state) if self.job else "its job is gone"
        if self.tick.status == "success" and self.tick.tries > 1:
            return f"at try {self.tick.tries}"
        return headline(self.tick.why) if self.tick.why else ""


def coming(rule: Rule, since: datetime, limit: int, schedule: Schedule | None = None) -> list[Outlook]:
    """The next ticks of a rule; for a schedule, between its start and its end."""
    start, end = (schedule.start, schedule.end) if schedule else (None, None)
    since = max(since, start - _MOMENT) if start else since
    return [each for each in outlook(rule, since, limit) if end is None or each.tick <= end]


# ── Texts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def clock(rule: Rule | None, at: datetime) -> str:
    """Local time in the rule's zone."""
    return wall(rule.local(at) if rule else at.astimezone(UTC))


def wall(local: datetime) -> str:
    return f"{local:%a %Y-%m-%d %H:%M}{f':{local:%S}' if local.second else ''} {local.tzname()}"


def definition(s: Schedule, rule: Rule | None) -> list[tuple[str, str]]:
    """What was declared, as names and texts; a text is empty if it does not apply."""
    job, guard = s.job, s.kind == "guard"
    catch_up = _CATCH_UP[s.catch_up].format(window=spell(s.catch_up_window), most=s.catch_up_max)
    return [
        ("runs", str(rule) if isinstance(rule, Every) else f"{s.rule} in {s.tz}"),
        ("clock changes", _clock_changes(s) if rule and not isinstance(rule, Every) and s.tz != "UTC" else ""),
        ("from", clock(rule, s.start) if s.start else ""),
        ("until", clock(rule, s.end) if s.end else ""),
        ("jitter", f"up to {spell(s.jitter)} late, different for each tick" if s.jitter else ""),
        ("overlap", "" if guard else f"{s.overlap}: {_OVERLAP[s.overlap]}"),
        ("catch up", "" if guard else f"{s.catch_up}: {catch_up}"),
        (
            "expires",
            f"a run that has not started {spell(s.expires)} after its time is cancelled"
            if s.expires is not None
            else "",
        ),
        ("pause after", _failures(s.pause_after) if s.pause_after is not None else ""),
        ("alert after", _failures(s.alert_after)),
        ("overdue", f"{spell(s.grace)} after its time"),
        ("too long", f"a run that takes longer than {spell(s.too_long)}" if s.too_long is not None else ""),
        ("task", job.task if job else "none: a guard, which runs where it is called"),
        ("queue", f"{job.queue}, priority {job.priority}" if job else ""),
        ("formerly", ", ".join(f"{each.name} until {each.until:%Y-%m-%d}" for each in s.formerly)),
    ]


def _clock_changes(s: Schedule) -> str:
    said = "a fixed time that is skipped runs right after, one that occurs twice runs the first time"
    more = "; if all ticks of a day are skipped, one run right after" if s.dst == "run_once" else ""
    return f"{s.dst}: {said}{more}"


def _failures(count: int) -> str:
    return f"{count} failure{'' if count == 1 else 's'} in a row"


def origin(s: Schedule) -> str:
    """What declares it."""
    if s.kind == "guard":
        return "its own calls"
    return f"app {s.source}, release {s.release}" if s.source else "an operator"
