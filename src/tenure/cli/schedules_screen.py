"""Display of schedules: a mark for each of the last runs, times in their zone, rules in words."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tenure.cli.output import brief, console, pairs, plain, print_line, table
from tenure.core.durations import spell
from tenure.core.text import clean
from tenure.events import headline
from tenure.operations.schedule_health import ScheduleHealth, TickView, clock, definition, origin, wall
from tenure.ports.schedules import Run, Status, Tick
from tenure.schedules.advice import Outlook
from tenure.schedules.cron import Rule
from tenure.schedules.timetable import Declared, Overdue, Record

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
_LONGEST_ERROR = 300  #: of a line; `show` and --json have all of it
_BY_MARK = {mark: _COLOURS[status] for status, mark in MARKS.items()}


# ── Times ───────────────────────────────────────────────────────────────────────────────────────────────────────


def away(at: datetime, now: datetime) -> str:
    """How far in the future or past, in one unit."""
    seconds = (at - now).total_seconds()
    return f"in {brief(seconds)}" if seconds >= 0 else f"{brief(-seconds)} ago"


# ── Marks ───────────────────────────────────────────────────────────────────────────────────────────────────────


def strip(ticks: Sequence[Tick]) -> str:
    """One mark per run, in their order."""
    return "".join(MARKS[tick.status] for tick in ticks)


def show_strip(ticks: Sequence[Tick]) -> None:
    """The marks on their own line, newest last, and a legend."""
    legend = "  ".join(f"{mark} {status}" for status, mark in MARKS.items())
    for line in (strip(ticks), f"{legend}; newest last"):
        if sys.stdout.isatty():
            console().print(_coloured(line), soft_wrap=True)
        else:
            print_line(line)


def _coloured(line: str) -> Text:
    from rich.text import Text

    pieces = groupby(line, lambda character: _BY_MARK.get(character, ""))
    return Text.assemble(*(("".join(characters), colour) for colour, characters in pieces))


def paint(head: str, text: str) -> Text:
    """A table cell, with marks and statuses in their colours."""
    from rich.text import Text

    return _coloured(text) if head == "runs" else Text(text, _COLOURS.get(text, "") if head == "status" else "")


# ── list ────────────────────────────────────────────────────────────────────────────────────────────────────────

LIST_HEADS = ("name", "schedule", "last", "took", "status", "next", "fails", "runs", "note")
LIST_FIXED = ("last", "took", "status", "next", "fails", "runs")


def list_row(health: ScheduleHealth) -> list[str]:
    """A schedule's line in the list."""
    found = health.record
    return [
        found.name,
        found.schedule,
        "" if found.last_run_at is None else away(found.last_run_at, health.at),
        _took(found),
        found.last_status or "",
        "" if found.next_expected_at is None else _next(found.next_expected_at, health.at),
        str(found.failure_count or ""),
        strip(health.marks),
        "; ".join(notes(health)),
    ]


def _took(found: Record) -> str:
    return "" if found.last_duration_ms is None else spell(found.last_duration_ms / 1000)


def _next(at: datetime, now: datetime) -> str:
    return away(at, now) if at > now else "due"


def notes(health: ScheduleHealth) -> list[str]:
    """Notes about it, the most urgent first."""
    s, found, rule = health.schedule, health.record, health.rule
    said = [
        f"OVERDUE by {spell(health.late)}" if health.late is not None else "",
        f"retired {away(s.retired_at, health.at)}: no longer declared" if s.retired_at else "",
        f"paused {away(s.paused_at, health.at)}: {s.paused_why}" if s.paused_at else "",
        f"locked until {clock(rule, found.locked_until)}" if found.locked_until else "",
        "its job is queued" if health.waiting and health.late is None else "",
        f"the tick of {clock(rule, s.pending_tick)} is waiting for the run to end" if s.pending_tick else "",
        f"next {clock(rule, found.next_expected_at)}" if found.next_expected_at else "",
        clean(headline(s.last_error), _LONGEST_ERROR) if found.last_status == "failure" and s.last_error else "",
    ]
    return [each for each in said if each]


def list_json(health: ScheduleHealth) -> dict[str, Any]:
    """The columns of the list, and further values under other keys."""
    s = health.schedule
    return {
        **plain(health.record),
        "kind": s.kind,
        "tz": s.tz,
        "paused_at": plain(s.paused_at),
        "paused_why": s.paused_why,
        "retired_at": plain(s.retired_at),
        "overdue_by": health.late,
        "last_error": s.last_error,
        "runs": [tick.status for tick in health.marks],
    }


# ── show ────────────────────────────────────────────────────────────────────────────────────────────────────────


_LABEL = len("the one before")


def show_facts(health: ScheduleHealth) -> None:
    """Everything known about a schedule: its declaration, then its current state."""
    for place, rows in enumerate((_declared(health), _stands(health))):
        if place:
            print_line("")
        pairs((f"{name:<{_LABEL}}", value) for name, value in rows if value)


def _declared(health: ScheduleHealth) -> list[tuple[str, str]]:
    s = health.schedule
    seen = f", first seen {clock(None, s.released_at)}" if s.kind == "task" and s.source and s.released_at else ""
    return [
        ("name", s.name),
        *definition(s, health.rule),
        ("arguments", s.job.payload if s.job else ""),
        ("command", s.command),
        ("declared by", f"{origin(s)}{seen}"),
    ]


def _stands(health: ScheduleHealth) -> list[tuple[str, str]]:
    s, found, rule = health.schedule, health.record, health.rule
    last = f"{found.last_status} {clock(rule, found.last_run_at)}" if found.last_run_at else "never"
    running = found.last_status == "started"
    took = "" if running or not _took(found) else f", took {_took(found)}"
    return [
        ("now", "; ".join(notes(health)) or "nothing is due"),
        ("last run", f"{last}{took}"),
        ("the one before", f"{s.last_status}, took {_took(found)}" if running and s.last_run_at else ""),
        ("last error", s.last_error.strip()),
        ("failures", f"{s.failure_count} in a row" if s.failure_count else ""),
        ("last tick", clock(rule, s.last_tick) if s.last_tick else ""),
        ("catching up", f"up to {clock(rule, s.catching_up_to)}" if s.catching_up_to else ""),
    ]


RUN_HEADS = ("tick", "began by", "state", "since", "job")


def run_row(run: Run, rule: Rule | None, now: datetime) -> list[str]:
    """A line for a run in progress."""
    job = run.job
    since = (job.started_at or job.enqueued_at) if job else run.tick.decided_at
    state = str(job.state) if job else "deleted"
    return [clock(rule, run.tick.tick), run.tick.cause, state, away(since, now), run.tick.job_id or ""]


# ── history ─────────────────────────────────────────────────────────────────────────────────────────────────────

HISTORY_HEADS = ("tick", "by", "started", "late", "took", "status")


def show_history(views: Sequence[TickView]) -> None:
    """A line per tick; on a terminal the job's id and the reason share a column, which may move below the row."""
    rows = [(history_row(view), why(view), view.tick.job_id or "") for view in views]
    if sys.stdout.isatty():
        told = [[*row, ": ".join(filter(None, (job_id, reason)))] for row, reason, job_id in rows]
        table(
            (*HISTORY_HEADS, "job, why"),
            told,
            fixed=HISTORY_HEADS,
            right=("late", "took"),
            below="job, why",
            paint=paint,
        )
    else:
        table((*HISTORY_HEADS, "why", "job"), [[*row, reason, job_id] for row, reason, job_id in rows])


def show_history_of_all(views: Sequence[TickView]) -> None:
    """A line per tick, with its schedule's name."""
    heads = ("schedule", *HISTORY_HEADS, "why")
    rows = [[view.tick.schedule, *history_row(view), why(view)] for view in views]
    table(heads, rows, fixed=HISTORY_HEADS, right=("late", "took"), below="why", paint=paint)


def history_row(view: TickView) -> list[str]:
    """A run, or the reason why there was none."""
    rule, began = view.rule, view.started_at
    return [
        view.local,
        view.tick.cause,
        "" if began is None else f"{(rule.local(began) if rule else began):%H:%M:%S}",
        "" if view.late_by is None else spell(view.late_by),
        "" if view.took is None else spell(view.took),
        view.tick.status,
    ]


def why(view: TickView) -> str:
    """The reason, and for a series of missed ticks their number."""
    said = f"{view.tick.count:,} ticks up to {view.until}: {view.tick.why}" if view.until else view.why
    return clean(said, _LONGEST_ERROR)


def history_json(view: TickView) -> dict[str, Any]:
    return {
        **plain(view.tick),
        "started_at": plain(view.started_at),
        "late_by": view.late_by,
        "duration_ms": view.took_ms,
    }


# ── overdue ─────────────────────────────────────────────────────────────────────────────────────────────────────


def show_overdue(found: Sequence[Overdue], rules: Mapping[str, Rule | None]) -> None:
    if not found:
        print_line("nothing is overdue")
        return
    rows = [[each.name, clock(rules[each.name], each.expected_at), spell(each.overdue_by), each.why] for each in found]
    table(("name", "expected", "overdue by", "why"), rows, fixed=("expected", "overdue by"), below="why", paint=paint)


# ── preview, declare ────────────────────────────────────────────────────────────────────────────────────────────

PREVIEW_HEADS = ("local", "utc", "in", "note")


def preview_row(each: Outlook, now: datetime) -> list[str]:
    away_by = (each.tick - now).total_seconds()
    return [wall(each.local), f"{each.tick:%Y-%m-%d %H:%M:%S}", brief(away_by) if away_by > 0 else "", each.note]


def declared_words(done: Declared) -> list[str]:
    """The effect of a declaration, a line for each kind of change."""
    if done.older:
        return [f"nothing changed: a newer release is in place, {done.older}; to go back to this one, use --force"]
    kinds = (("made", done.made), ("changed", done.changed), ("retired", done.retired))
    words = [f"{kind}: {', '.join(names)}" for kind, names in kinds if names]
    if done.kept:
        words.append(
            f"not changed, as a newer release of another app has them: {', '.join(done.kept)}; --force takes them"
        )
    return words or ["all schedules are as declared"]
