"""How schedules look: a mark for each of the last runs, times as the clocks of their zone show them, rules in words."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tenure.cli.output import brief, console, pairs, plain, say, table
from tenure.core.durations import spell
from tenure.errors import InvalidOption
from tenure.events import headline
from tenure.ports.schedules import Run, Schedule, Standing, Status, Tick
from tenure.schedules import advice
from tenure.schedules.advice import Outlook
from tenure.schedules.cron import Cron, Every, Rule
from tenure.schedules.plan import overdue_by, rule_of
from tenure.schedules.timetable import Declared, Overdue, Record, record

if TYPE_CHECKING:
    from rich.text import Text

MARKS: Mapping[Status, str] = {
    "success": "✓",
    "failure": "✗",
    "cancelled": "/",
    "skipped": "-",
    "missed": "_",
    "open": ">",
}
_COLOURS: Mapping[str, str] = {
    "success": "green",
    "failure": "bold red",
    "cancelled": "bright_black",
    "skipped": "blue",
    "missed": "bold yellow",
    "open": "cyan",
    "started": "cyan",
}
_BY_MARK = {mark: _COLOURS[status] for status, mark in MARKS.items()}
_OVERLAP = {
    "skip": "a tick is skipped while the run before it goes on",
    "queue": "one tick waits for the run before it to end, further ones are skipped",
    "replace": "a tick stops the run before it and takes its place",
    "allow": "runs may overlap",
}


# ── Times ───────────────────────────────────────────────────────────────────────────────────────────────────────


def understood(schedule: Schedule) -> Rule | None:
    """Its rule; None: nobody here understands it, its zone is no more, say."""
    try:
        return rule_of(schedule)
    except InvalidOption:
        return None


def clock(rule: Rule | None, at: datetime) -> str:
    """A time as the clocks of the rule's zone show it."""
    return _wall(rule.local(at) if rule else at.astimezone(UTC))


def _wall(local: datetime) -> str:
    return f"{local:%a %Y-%m-%d %H:%M}{f':{local:%S}' if local.second else ''} {local.tzname()}"


def away(at: datetime, now: datetime) -> str:
    """How far off, in one unit."""
    seconds = (at - now).total_seconds()
    return f"in {brief(seconds)}" if seconds >= 0 else f"{brief(-seconds)} ago"


def _length(tick: Tick) -> float | None:
    return (tick.ended_at - tick.started_at).total_seconds() if tick.started_at and tick.ended_at else None


# ── Marks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def strip(ticks: Sequence[Tick]) -> str:
    """One mark a run, the newest last."""
    return "".join(MARKS[tick.status] for tick in reversed(ticks))


def show_strip(ticks: Sequence[Tick]) -> None:
    """The marks on a line of their own, and what they mean."""
    legend = "  ".join(f"{mark} {status}" for status, mark in MARKS.items())
    for line in (strip(ticks), f"{legend}; newest last"):
        if sys.stdout.isatty():
            console().print(_coloured(line), soft_wrap=True)
        else:
            say(line)


def _coloured(line: str) -> Text:
    from rich.text import Text

    pieces = groupby(line, lambda character: _BY_MARK.get(character, ""))
    return Text.assemble(*(("".join(characters), colour) for colour, characters in pieces))


def draw(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    fixed: Collection[str] = (),
    right: Collection[str] = (),
    below: str | None = None,
) -> None:
    """`output.table`, with marks and statuses in their colours."""
    if not sys.stdout.isatty():
        table(heads, rows)
        return
    from rich.text import Text

    from tenure.cli.grid import grid

    def cell(head: str, text: str) -> Text:
        flat = " ".join(text.split())
        return _coloured(flat) if head == "runs" else Text(flat, _COLOURS.get(flat, "") if head == "status" else "")

    screen = console()
    cells = [[cell(head, text) for head, text in zip(heads, row, strict=True)] for row in rows]
    screen.print(grid(heads, cells, screen.width, fixed=fixed, right=right, below=below), soft_wrap=True)


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────

LIST_HEADS = ("name", "schedule", "last", "took", "status", "next", "fails", "runs", "note")
LIST_FIXED = ("last", "took", "status", "next", "fails", "runs")


def list_row(standing: Standing, marks: Sequence[Tick], now: datetime) -> list[str]:
    """A schedule's line on the health page."""
    found = record(standing)
    return [
        found.name,
        found.schedule,
        "" if found.last_run_at is None else away(found.last_run_at, now),
        _took(found),
        found.last_status or "",
        "" if found.next_expected_at is None else _next(found.next_expected_at, now),
        str(found.failure_count or ""),
        strip(marks),
        "; ".join(notes(standing, now)),
    ]


def _took(found: Record) -> str:
    return "" if found.last_duration_ms is None else spell(found.last_duration_ms / 1000)


def _next(at: datetime, now: datetime) -> str:
    return away(at, now) if at > now else "due"


def notes(standing: Standing, now: datetime) -> list[str]:
    """What there is to say of it, the most urgent first."""
    s, found = standing.schedule, record(standing)
    rule, late = understood(s), overdue_by(standing, now)
    waits = [run for run in standing.runs if run.live and run.job and run.job.attempt == 0]
    said = [
        f"OVERDUE by {spell(late)}" if late is not None else "",
        f"retired {away(s.retired_at, now)}: no longer declared" if s.retired_at else "",
        f"paused {away(s.paused_at, now)}: {s.paused_why}" if s.paused_at else "",
        f"locked until {clock(rule, found.locked_until)}" if found.locked_until else "",
        "its job waits for a worker" if waits and late is None else "",
        f"the tick of {clock(rule, s.pending_tick)} waits for the run to end" if s.pending_tick else "",
        f"next {clock(rule, found.next_expected_at)}" if found.next_expected_at else "",
        headline(s.last_error) if found.last_status == "failure" and s.last_error else "",
    ]
    return [each for each in said if each]


def list_json(standing: Standing, marks: Sequence[Tick], now: datetime) -> dict[str, Any]:
    """The columns of the health page, and more under other keys."""
    s = standing.schedule
    return {
        **plain(record(standing)),
        "kind": s.kind,
        "tz": s.tz,
        "paused_at": plain(s.paused_at),
        "paused_why": s.paused_why,
        "retired_at": plain(s.retired_at),
        "overdue_by": overdue_by(standing, now),
        "last_error": s.last_error,
        "runs": [tick.status for tick in reversed(marks)],
    }


# ── show ────────────────────────────────────────────────────────────────────────────────────────────────────────


_LABEL = len("the one before")


def show_facts(standing: Standing, now: datetime) -> None:
    """All that is known of a schedule: what was declared, then where it stands."""
    for place, rows in enumerate((_declared(standing.schedule), _stands(standing, now))):
        if place:
            say("")
        pairs((f"{name:<{_LABEL}}", value) for name, value in rows if value)


def _declared(s: Schedule) -> list[tuple[str, str]]:
    rule, job = understood(s), s.job
    guard = s.kind == "guard"
    return [
        ("name", s.name),
        ("runs", _when(s, rule)),
        ("clock changes", "" if not isinstance(rule, Cron) or s.tz == "UTC" else _dst(s)),
        ("from", clock(rule, s.start) if s.start else ""),
        ("until", clock(rule, s.end) if s.end else ""),
        ("jitter", f"up to {spell(s.jitter)} later, another length for each tick" if s.jitter else ""),
        ("overlap", "" if guard else f"{s.overlap}: {_OVERLAP[s.overlap]}"),
        ("catch up", "" if guard else f"{s.catch_up}: {_catch_up(s)}"),
        ("expires", f"not begun {spell(s.expires)} after its time, a run is given up" if s.expires is not None else ""),
        ("pause after", f"{_failures(s.pause_after)} in a row" if s.pause_after is not None else ""),
        ("alert after", f"{_failures(s.alert_after)} in a row"),
        ("overdue", f"{spell(s.grace)} after its time"),
        ("too long", f"a run that takes longer than {spell(s.too_long)}" if s.too_long is not None else ""),
        ("task", job.task if job else "none: a guard, it runs where it is called"),
        ("queue", f"{job.queue}, priority {job.priority}" if job else ""),
        ("arguments", job.payload if job else ""),
        ("declared by", _origin(s)),
    ]


def _when(s: Schedule, rule: Rule | None) -> str:
    if rule is None:
        return f"{s.rule} in {s.tz}"
    return str(rule) if isinstance(rule, Every) else f"{s.rule} in {s.tz}"


def _dst(s: Schedule) -> str:
    said = "a fixed time that is jumped over runs right after, one that comes twice runs the first time"
    more = "; if all ticks of a day are jumped over, one run right after" if s.dst == "run_once" else ""
    return f"{s.dst}: {said}{more}"


def _catch_up(s: Schedule) -> str:
    match s.catch_up:
        case "skip":
            return "ticks that nobody fired in time are not made up for"
        case "latest":
            return (
                f"of ticks that nobody fired the newest one is run, if it is not older than {spell(s.catch_up_window)}"
            )
        case "all":
            return (
                "ticks that nobody fired are run one after another, the newest "
                f"{s.catch_up_max:,} and none older than {spell(s.catch_up_window)}"
            )


def _failures(count: int) -> str:
    return f"{count} failure{'' if count == 1 else 's'}"


def _origin(s: Schedule) -> str:
    if s.kind == "guard":
        return "its own calls"
    if not s.source:
        return "an operator"
    return f"app {s.source}, release {s.release}" + (
        f", first seen {clock(None, s.released_at)}" if s.released_at else ""
    )


def _stands(standing: Standing, now: datetime) -> list[tuple[str, str]]:
    s, found = standing.schedule, record(standing)
    rule = understood(s)
    last = f"{found.last_status} {clock(rule, found.last_run_at)}" if found.last_run_at else "never"
    running = found.last_status == "started"
    took = "" if running or not _took(found) else f", took {_took(found)}"
    return [
        ("now", "; ".join(notes(standing, now)) or "nothing is due"),
        ("last run", f"{last}{took}"),
        ("the one before", f"{s.last_status}, took {_took(found)}" if running and s.last_run_at else ""),
        ("last error", s.last_error.strip()),
        ("failures", f"{s.failure_count} in a row" if s.failure_count else ""),
        ("last tick", clock(rule, s.last_tick) if s.last_tick else ""),
        ("catching up", f"up to {clock(rule, s.catching_up_to)}" if s.catching_up_to else ""),
    ]


RUN_HEADS = ("tick", "began by", "state", "since", "job")


def run_row(run: Run, rule: Rule | None, now: datetime) -> list[str]:
    """A line for a run that goes on."""
    job = run.job
    since = (job.started_at or job.enqueued_at) if job else run.tick.decided_at
    state = str(job.state) if job else "deleted"
    return [clock(rule, run.tick.tick), run.tick.cause, state, away(since, now), run.tick.job_id or ""]


def surprises(schedule: Schedule, now: datetime) -> list[str]:
    """What its rule does that people do not expect."""
    try:
        return advice.lint(rule_of(schedule), now)
    except InvalidOption as error:
        return [f"it can't be understood here: {error}"]


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────

HISTORY_HEADS = ("tick", "by", "started", "late", "took", "status")


def show_history(runs: Sequence[tuple[Tick, Run | None]], rule: Rule | None) -> None:
    """A line a tick; on a screen the job's id and the reason share a column, which may go below."""
    rows = [(history_row(tick, run, rule), why(tick, run, rule), tick.job_id or "") for tick, run in runs]
    if sys.stdout.isatty():
        told = [[*row, ": ".join(filter(None, (job_id, reason)))] for row, reason, job_id in rows]
        draw((*HISTORY_HEADS, "job, why"), told, fixed=HISTORY_HEADS, right=("late", "took"), below="job, why")
    else:
        table((*HISTORY_HEADS, "why", "job"), [[*row, reason, job_id] for row, reason, job_id in rows])


def history_row(tick: Tick, run: Run | None, rule: Rule | None) -> list[str]:
    """A run, or why there was none."""
    began = started(tick, run)
    took = _length(tick)
    return [
        clock(rule, tick.tick),
        tick.cause,
        "" if began is None else f"{(rule.local(began) if rule else began):%H:%M:%S}",
        spell(late) if (late := late_by(tick, run)) is not None else "",
        "" if took is None else spell(took),
        tick.status,
    ]


def why(tick: Tick, run: Run | None, rule: Rule | None) -> str:
    """The reason, the first line of the error, or how far it is."""
    if tick.until is not None:
        return f"{tick.count:,} ticks up to {clock(rule, tick.until)}: {tick.why}"
    if tick.status == "open":
        return str(run.job.state) if run and run.job else "its job is gone"
    return headline(tick.why) if tick.why else ""


def started(tick: Tick, run: Run | None) -> datetime | None:
    return tick.started_at or (run.job.started_at if run and run.job else None)


def late_by(tick: Tick, run: Run | None) -> float | None:
    """Seconds from its time to its start. What an operator started has no time of its own."""
    began = started(tick, run)
    return None if began is None or tick.cause != "tick" else max(0.0, (began - tick.tick).total_seconds())


def history_json(tick: Tick, run: Run | None) -> dict[str, Any]:
    took = _length(tick)
    return {
        **plain(tick),
        "started_at": plain(started(tick, run)),
        "late_by": late_by(tick, run),
        "duration_ms": None if took is None else round(took * 1000),
    }


# ── overdue ─────────────────────────────────────────────────────────────────────────────────────────────────────


def show_overdue(found: Sequence[Overdue], schedules: Mapping[str, Schedule]) -> None:
    if not found:
        say("nothing is overdue")
        return
    rows = [
        [each.name, clock(understood(schedules[each.name]), each.expected_at), spell(each.overdue_by), each.why]
        for each in found
    ]
    draw(("name", "expected", "overdue by", "why"), rows, fixed=("expected", "overdue by"), below="why")


# ── preview, declare ────────────────────────────────────────────────────────────────────────────────────────────

PREVIEW_HEADS = ("local", "utc", "in", "note")


def preview_row(each: Outlook, now: datetime) -> list[str]:
    away_by = (each.tick - now).total_seconds()
    return [_wall(each.local), f"{each.tick:%Y-%m-%d %H:%M:%S}", brief(away_by) if away_by > 0 else "", each.note]


def declared_words(done: Declared) -> list[str]:
    """What a declaration did, a line for each kind of change."""
    if done.older:
        return [f"nothing is changed: a newer release stands, {done.older}; to go back to this one say --force"]
    kinds = (("made", done.made), ("changed", done.changed), ("retired", done.retired))
    return [f"{kind}: {', '.join(names)}" for kind, names in kinds if names] or ["all schedules are as declared"]
