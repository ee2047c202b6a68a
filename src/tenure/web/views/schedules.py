"""Schedules: whether each runs when it should, and one by one what it did and will do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from tenure.core.durations import spell
from tenure.errors import InvalidOption
from tenure.events import headline
from tenure.ports.schedules import Run, Schedule, Standing, Status, Tick
from tenure.schedules import advice
from tenure.schedules.advice import Outlook, outlook
from tenure.schedules.cron import Cron, Every, Rule
from tenure.schedules.plan import Refused, overdue_by, rule_of
from tenure.schedules.timetable import Record, UnknownSchedule, record, why_overdue
from tenure.web.pages import Action, Page, View, back, count
from tenure.web.security import Problem

SIZE = 50
STRIP = 50
PREVIEW = 20
_MOMENT = timedelta(milliseconds=1)
_KINDS = {"overdue": "bad", "failure": "bad", "success": "good", "started": "info"}
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


# ── What is said of a schedule ──


@dataclass(frozen=True, slots=True)
class Health:
    """A schedule as it stands. `late` is in seconds; None: it is not overdue."""

    schedule: Schedule
    record: Record
    rule: Rule | None
    late: float | None
    due: datetime | None  #: when it is late: since when
    why_late: str
    marks: Sequence[Tick]
    running: Sequence[Run]
    waiting: bool  #: its job waits for a worker

    @property
    def status(self) -> str:
        """In one word; how its last run went, unless something else matters more."""
        s = self.schedule
        if self.late is not None:
            return "overdue"
        return "retired" if s.retired_at else "paused" if s.paused_at else self.record.last_status or "never run"

    @property
    def kind(self) -> str:
        """How good or bad that is."""
        return _KINDS.get(self.status, "off")

    @property
    def local(self) -> str:
        """The next tick as the clocks of its zone show it; empty where that is UTC."""
        at = self.record.next_expected_at
        return "" if at is None or self.schedule.tz == "UTC" else clock(self.rule, at)

    @property
    def worry(self) -> tuple[float, ...]:
        """To sort by: the worst first."""
        return (-(self.late or 0.0), -self.schedule.failure_count)


def health(standing: Standing, now: datetime, marks: Sequence[Tick]) -> Health:
    late = overdue_by(standing, now)
    live = [run for run in standing.runs if run.live]
    return Health(
        schedule=standing.schedule,
        record=record(standing),
        rule=understood(standing.schedule),
        late=late,
        due=None if late is None else _to_the_millisecond(now - timedelta(seconds=late)),
        why_late="" if late is None else why_overdue(standing, now),
        marks=marks,
        running=live,
        waiting=any(run.job is not None and run.job.attempt == 0 for run in live),
    )


def _to_the_millisecond(at: datetime) -> datetime:
    """The same at every look, whatever is lost in arithmetic."""
    at += _MOMENT / 2
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def understood(schedule: Schedule) -> Rule | None:
    """Its rule; None: nobody here understands it, its zone is no more, say."""
    try:
        return None if schedule.unread else rule_of(schedule)
    except InvalidOption:
        return None


def clock(rule: Rule | None, at: datetime) -> str:
    """A time as the clocks of the rule's zone show it."""
    local = rule.local(at) if rule else at.astimezone(UTC)
    return f"{local:%a %Y-%m-%d %H:%M}{f':{local:%S}' if local.second else ''} {local.tzname()}"


def strip_in_words(marks: Sequence[Tick]) -> str:
    """What a strip of marks shows, for who can't see it."""
    counts = Counter[Status](tick.status for tick in marks)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"the last {len(marks)}: {told}; newest last" if marks else "no runs yet"


def mark_in_words(tick: Tick, rule: Rule | None) -> str:
    why = f": {headline(tick.why)[:200]}" if tick.why else ""
    return f"{clock(rule, tick.tick)}, {tick.status}{why}"


# ── All of them ──


def _look(view: View) -> Mapping[str, Any]:
    now, query = view.admin.store.now(), view.query
    text, worst, retired = query.get("name", "").strip(), query.get("order") == "worst", query.get("retired") == "yes"
    every = view.site.schedules()
    found = [
        each
        for each in every
        if text.lower() in each.schedule.name.lower() and (retired or each.schedule.retired_at is None)
    ]
    if worst:
        found = sorted(found, key=lambda each: health(each, now, ()).worry)
    number = count(query.get("page", ""), 1)
    first = (max(1, number) - 1) * SIZE
    shown = found[first : first + SIZE]
    marks = _marks(view, [each.schedule.name for each in shown])
    return {
        "schedules": [health(each, now, marks[each.schedule.name]) for each in shown],
        "now": now,
        "name": text,
        "worst": worst,
        "retired": retired,
        "hidden": 0 if retired else sum(each.schedule.retired_at is not None for each in every),
        "query": {"name": text, "order": "worst" if worst else None, "retired": "yes" if retired else None},
        "none": not every,
        "found": len(found),
        "first": first,
        "number": number,
        "more": first + SIZE < len(found),
        "strip_in_words": strip_in_words,
        "mark_in_words": mark_in_words,
    }


def _marks(view: View, names: Sequence[str]) -> Mapping[str, Sequence[Tick]]:
    """Of their last runs, the oldest first. One read for all of a page: together they are dear on a busy server."""
    ticks = view.admin.store.ticks

    def read() -> Mapping[str, Sequence[Tick]]:
        return {name: ticks(name, limit=STRIP)[::-1] for name in names}

    return view.site.memo.get(("ticks", *names), read, fresh=1.0)


# ── One of them ──


def _look_at_one(view: View) -> Mapping[str, Any]:
    name = view.given["name"]
    standing = _standing(view, name)
    now, s = view.admin.store.now(), standing.schedule
    found = health(standing, now, _marks(view, [name])[name])
    before = _before(view)
    ticks = view.site.memo.get(
        ("history", name, before), lambda: view.admin.store.ticks(name, limit=SIZE + 1, before=before), fresh=0.5
    )
    runs = {run.tick.job_id: run for run in standing.runs}
    return {
        "health": found,
        "s": s,
        "now": now,
        "facts": _facts(s, found.rule),
        "history": [_Line(tick, runs.get(tick.job_id), found.rule) for tick in ticks[:SIZE]],
        "older": ticks[SIZE - 1].tick.isoformat() if len(ticks) > SIZE else None,
        "later": before is not None,
        "coming": _coming(s, found.rule, now),
        "lint": _lint(s, found.rule, now),
        "output": next((tick for tick in reversed(found.marks) if tick.output), None),
        "sees": view.user.payloads,
        "backfill": _to_backfill(view, s, found.rule, now),
        "declared": bool(s.source) and s.retired_at is None,
        "clock": clock,
        "strip_in_words": strip_in_words,
        "mark_in_words": mark_in_words,
    }


def _standing(view: View, name: str) -> Standing:
    try:
        return view.site.memo.get(("schedule", name), lambda: view.admin.schedule(name), fresh=0.2)
    except UnknownSchedule:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "No such schedule",
            f"no schedule {name!r} is in this store: it was never declared here, or it has been removed",
        ) from None


def _before(view: View) -> datetime | None:
    text = view.query.get("before", "")
    return _instant(text, "before", None) if text else None


def _instant(text: str, label: str, rule: Rule | None) -> datetime:
    """A time as a form sends it; without a zone it is what the clocks of the rule's zone show."""
    try:
        at = datetime.fromisoformat(text)
        zone = (rule.local(datetime.now(UTC)) if rule else datetime.now(UTC)).tzinfo
        return (at.replace(tzinfo=zone) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidOption(f"{label}: expected a time like 2030-01-31T06:00, got {text!r}") from None


class _Line:
    """A line of the history: a run, or why there was none."""

    def __init__(self, tick: Tick, run: Run | None, rule: Rule | None) -> None:
        self.tick = tick
        self.local = clock(rule, tick.tick)
        self.until = clock(rule, tick.until) if tick.until else ""
        self.started = tick.started_at or (run.job.started_at if run and run.job else None)
        self.took = (tick.ended_at - tick.started_at).total_seconds() if tick.started_at and tick.ended_at else None
        on_time = self.started is None or tick.cause != "tick"  # what an operator started has no time of its own
        self.late = None if on_time or self.started is None else max(0.0, (self.started - tick.tick).total_seconds())
        self.why = self._why(run)

    def _why(self, run: Run | None) -> str:
        if self.tick.status == "open":
            return str(run.job.state) if run and run.job else "its job is gone"
        return headline(self.tick.why) if self.tick.why else ""


def _coming(s: Schedule, rule: Rule | None, now: datetime) -> list[Outlook]:
    if rule is None:
        return []
    since = max(now, s.start - _MOMENT) if s.start else now
    return [each for each in outlook(rule, since, PREVIEW) if s.end is None or each.tick <= s.end]


def _lint(s: Schedule, rule: Rule | None, now: datetime) -> list[str]:
    """What in its rule surprises, and why its ticks may not become runs at their very times."""
    held = [
        "it is retired: none of these will be fired" if s.retired_at else "",
        "it is paused: none of these is fired until it is resumed" if s.paused_at else "",
        f"each is fired up to {spell(s.jitter)} later (jitter)" if s.jitter else "",
    ]
    odd = advice.lint(rule, now) if rule else [f"its rule can't be understood here: {s.unread or _flaw(s)}"]
    return [*odd, *filter(None, held)]


def _flaw(s: Schedule) -> str:
    try:
        rule_of(s)
    except InvalidOption as error:
        return str(error)
    return ""


def _facts(s: Schedule, rule: Rule | None) -> list[tuple[str, str]]:
    job, guard = s.job, s.kind == "guard"
    catch_up = _CATCH_UP[s.catch_up].format(window=spell(s.catch_up_window), most=s.catch_up_max)
    rows = [
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
        ("declared by", _origin(s)),
        ("last tick", clock(rule, s.last_tick) if s.last_tick else ""),
        ("waiting tick", f"{clock(rule, s.pending_tick)}, for the run before it to end" if s.pending_tick else ""),
        ("catching up", f"up to {clock(rule, s.catching_up_to)}" if s.catching_up_to else ""),
    ]
    return [(name, text) for name, text in rows if text]


def _clock_changes(s: Schedule) -> str:
    said = "a fixed time that is jumped over runs right after, one that comes twice runs the first time"
    more = "; if all ticks of a day are jumped over, one run right after" if s.dst == "run_once" else ""
    return f"{s.dst}: {said}{more}"


def _failures(count: int) -> str:
    return f"{count} failure{'' if count == 1 else 's'} in a row"


def _origin(s: Schedule) -> str:
    if s.kind == "guard":
        return "its own calls"
    return f"app {s.source}, release {s.release}" if s.source else "an operator"


# ── Acting ──


@dataclass(frozen=True, slots=True)
class Backfill:
    """What was asked to be run of the past, counted; or why it can't be."""

    since: str
    until: str
    again: bool
    problem: str = ""
    ticks: Sequence[datetime] | None = None  #: None: nothing was asked yet
    first: datetime | None = None
    last: datetime | None = None


def _to_backfill(view: View, s: Schedule, rule: Rule | None, now: datetime) -> Backfill:
    since, until = view.query.get("since", ""), view.query.get("until", "")
    again = view.query.get("again") == "yes"
    if not since or rule is None or not view.user.may("operate"):
        return Backfill(since, until, again)
    try:
        first = _instant(since, "from", rule)
        last = min(_instant(until, "until", rule), now) if until else now
        if first > last:
            raise InvalidOption(
                f"expected times of the past, from before until, got {clock(rule, first)} to {clock(rule, last)}"
            )
        key = ("backfill", s.name, since, until, again)
        ticks = view.site.memo.get(
            key, lambda: view.admin.timetable.to_backfill(s.name, first, last, again=again), fresh=2.0
        )
    except (InvalidOption, Refused) as error:
        return Backfill(since, until, again, problem=str(error))
    return Backfill(since, until, again, ticks=ticks, first=first, last=last)


def at(name: str) -> str:
    """The page of a schedule. Whatever stands in its name."""
    return f"/schedules/{quote(name, safe='')}"


def _trigger(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    job_id = view.admin.trigger(name, force=form.get("force") == "yes")
    return f"{name} is triggered: job {job_id}", back(form, at(name))


def _pause(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    view.admin.pause_schedule(name, form.get("why", "").strip() or f"by {view.user.name}")
    return f"{name} is paused: its ticks are not fired until it is resumed", back(form, at(name))


def _resume(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    s = view.admin.resume_schedule(name).schedule
    said = "; it is retired all the same, and fires again once an app declares it" if s.retired_at else ""
    return f"{name} is resumed{said}", back(form, at(name))


def _backfill(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    first, last = (_instant(form.get(each, ""), each, None) for each in ("first", "last"))
    ids = view.admin.backfill(name, first, last, again=form.get("again") == "yes")
    told = f"{len(ids):,} job{'' if len(ids) == 1 else 's'} stored" if ids else "no tick of that time is without a run"
    return f"{name}: {told}", at(name)


def _remove(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    if form.get("confirm", "").strip() != name:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "Nothing is removed",
            f"to remove this schedule and its history type its name, {name}: go back and try again",
        )
    view.admin.remove_schedule(name)
    return f"schedule {name} is removed; its jobs stay", "/schedules"


PAGES: list[Page] = [
    Page("/schedules", "schedules.html", _look, every=0.5, title="Schedules"),
    Page("/schedules/{name:path}", "schedule.html", _look_at_one, every=0.5),
]
ACTIONS: list[Action] = [
    Action("/schedules/{name:path}/trigger", "operate", _trigger),
    Action("/schedules/{name:path}/pause", "operate", _pause),
    Action("/schedules/{name:path}/resume", "operate", _resume),
    Action("/schedules/{name:path}/backfill", "operate", _backfill),
    Action("/schedules/{name:path}/remove", "admin", _remove),
]
