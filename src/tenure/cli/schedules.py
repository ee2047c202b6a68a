"""`tenure schedules …`: what runs when, whether it ran, and the operator's actions."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli import schedules_screen as screen
from tenure.cli.output import plain, print_error, print_line, show_json, table
from tenure.cli.schedules_add import WHEN, When, instant
from tenure.cli.shared import Shared, admin_of, awaited, confirm, print_result, wait_limit
from tenure.core.durations import seconds
from tenure.errors import InvalidOption
from tenure.operations.schedule_health import ScheduleHealth, clock, coming, held_back
from tenure.schedules import advice
from tenure.schedules.cron import Every
from tenure.schedules.plan import rule_of
from tenure.schedules.timetable import backfilled

if TYPE_CHECKING:
    from tenure.operations.admin import Admin

schedules = App(name="schedules", help="Schedules: what runs when, and whether it ran.", help_epilogue="")
schedules.command("tenure.cli.schedules_add:add", name="add", help="Add a schedule by hand.")
schedules.command("tenure.cli.schedules_add:declare", name="declare", help="Put an app's schedules into the store.")

Name = Annotated[str, Parameter(help="The schedule.")]
Limit = Annotated[int, Parameter(name=["--limit", "-n"])]
SHARED = Shared()
_MARKS, _STRIP = 10, 50
_DAYS = {"today": 0, "yesterday": 1}
_MOST_SHOWN = 10_000
_SILENCE = logging.NullHandler()


@contextmanager
def _admin(shared: Shared, *, large: bool = False) -> Generator[Admin]:
    """Operator access to the store. Outcomes of runs are shown here, so they are not also logged to the terminal."""
    logging.getLogger("tenure.schedules").addHandler(_SILENCE)
    with admin_of(shared, large=large) as admin:
        yield admin


def _refuse_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise InvalidOption(f"--limit: expected 1 to {most}, got {limit}")


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@schedules.command(name="list")
def list_(*, every: Annotated[bool, Parameter(name="--all")] = False, shared: Shared = SHARED) -> int:
    """List schedules: the outcomes of their last runs, and when the next one is expected.

    Parameters
    ----------
    every
        Also list retired ones: those no longer declared by their app.
    """
    with _admin(shared) as admin:
        found = admin.schedules.healths(marks=_MARKS, retired=every)
    if shared.json:
        show_json([screen.list_json(each) for each in found])
        return 0
    table(
        screen.LIST_HEADS,
        [screen.list_row(each) for each in found],
        fixed=screen.LIST_FIXED,
        right=("fails",),
        below="note",
        paint=screen.paint,
    )
    if not found:
        print_error("there are no schedules: declare one with @jobs.schedule, or add one with tenure schedules add")
    return 0


@schedules.command
def show(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Show everything the store knows about a schedule, secrets redacted."""
    with _admin(shared) as admin:
        found = admin.schedules.health(name)
    if shared.json:
        shown = {"record": found.record, **plain(found.standing), "overdue_by": found.late, "lint": found.lint}
        show_json(shown)
        return 0
    screen.show_facts(found)
    if found.standing.runs:
        print_line("")
        rows = [screen.run_row(run, found.rule, found.at) for run in found.standing.runs]
        table(screen.RUN_HEADS, rows, fixed=("tick", "state", "since"), below="job", paint=screen.paint)
    _say_all(found.lint, before="")
    return 0


def _say_all(sentences: Sequence[str], before: str | None = None) -> None:
    if sentences and before is not None:
        print_line(before)
    for sentence in sentences:
        print_line(f"note: {sentence}")


@schedules.command
def preview(
    name: str | None = None,
    /,
    *,
    when: When = WHEN,
    limit: Limit = 10,
    after: str | None = None,
    shared: Shared = SHARED,
) -> int:
    """Show the next ticks of a schedule, or of an expression before it becomes one.

    Parameters
    ----------
    name
        The schedule; or use --cron or --every, which need no store.
    limit
        How many ticks. Default: 10.
    after
        Ticks after this time instead of now: ISO 8601; without a zone, in the schedule's.
    """
    _refuse_limit(limit, 1000)
    if (name is not None) == bool(when):
        raise InvalidOption("preview: expected one of a schedule's name, --cron or --every")
    stored, now = None, datetime.now(UTC)
    if name is not None:
        if when.tz or when.dst:
            raise InvalidOption(f"preview: {name} has its own time zone; --tz and --dst go with --cron")
        with _admin(shared) as admin:
            stored, now = admin.schedules.get(name).schedule, admin.now()
    rule = rule_of(stored) if stored else when.rule()
    since = now if after is None else instant(after, "--after", rule)
    ticks = coming(rule, since, limit, stored)
    lint = advice.lint(rule, since)
    if shared.json:
        show_json({"rule": str(rule), "tz": getattr(rule, "tz", "UTC"), "ticks": ticks, "lint": lint})
        return 0
    rows = [screen.preview_row(each, now) for each in ticks]
    table(screen.PREVIEW_HEADS, rows, fixed=("local", "utc", "in"), right=("in",), below="note", paint=screen.paint)
    if not ticks:
        print_error("there are no more ticks")
    _say_all([*lint, *(held_back(stored) if stored else [])], before="")
    return 0


@schedules.command
def history(
    name: str | None = None,
    /,
    *,
    limit: Limit = 50,
    before: str | None = None,
    since: str | None = None,
    until: str | None = None,
    cursor: str | None = None,
    shared: Shared = SHARED,
) -> int:
    """Show the outcomes of its ticks, newest first; without a name those of all schedules: what happened last night.

    Parameters
    ----------
    name
        The schedule. Default: all.
    limit
        At most this many lines. Default: 50.
    before
        Of one schedule: only ticks before this time: ISO 8601; without a zone, in the schedule's.
    since
        Of all: only what was decided or run since then: 12h, yesterday, today, 6:00, or a time; in UTC without a
        zone. Default: 24h.
    until
        Of all: only what was decided until then: 4h, or a time as above.
    cursor
        Of all: continue where an earlier list ended.
    """
    _refuse_limit(limit, _MOST_SHOWN)
    if name is None:
        if before is not None:
            raise InvalidOption("--before goes with a schedule's name; for all schedules: --since, --until")
        return _history_of_all(since or "24h", until or "0s", limit, cursor, shared)
    if since or until or cursor:
        raise InvalidOption("--since, --until and --cursor are for all schedules; with a name: --before, --limit")
    with _admin(shared) as admin:
        found = admin.schedules.health(name)
        last = None if before is None else instant(before, "--before", rule_of(found.schedule))
        marks = admin.schedules.marks([found.schedule], _STRIP)[name]
        views = found.views(admin.schedules.ticks(found.schedule, limit=limit, before=last))
    if shared.json:
        show_json([screen.history_json(each) for each in views])
        return 0
    if not views:
        print_error("it has no ticks" + (" before that" if before else " yet"))
        return 0
    screen.show_strip(marks)
    print_line("")
    screen.show_history(views)
    if len(views) == limit:
        print_error(f"there may be more: --before {views[-1].tick.tick.isoformat()}")
    return 0


def _history_of_all(since: str, until: str, limit: int, cursor: str | None, shared: Shared) -> int:
    with _admin(shared) as admin:
        now = admin.now()
        first, last = moment(since, "--since", now), moment(until, "--until", now)
        if last < first:
            raise InvalidOption(f"--until: expected a time after --since, got {since!r} and {until!r}")
        found = admin.schedules.happened(first, last, limit=limit, cursor=cursor)
    if shared.json:
        show_json([{"schedule": view.tick.schedule, **screen.history_json(view)} for view in found.ticks])
    elif found.ticks:
        screen.show_history_of_all(found.ticks)
    else:
        end = "" if until == "0s" else f" until {last.isoformat(timespec='seconds')}"
        print_error(f"no schedule has had a tick since {first.isoformat(timespec='seconds')}{end}")
    if found.cursor is not None:
        print_error(f"there may be more: --cursor '{found.cursor}'")
    return 0


def moment(text: str, label: str, now: datetime) -> datetime:
    """The latest past time that this text means: a duration ago, a day's midnight, a time of day, or a time."""
    if re.fullmatch(r"[\d.]+[a-z].*", text):
        return now - timedelta(seconds=seconds(text, label))
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in _DAYS:
        return midnight - timedelta(days=_DAYS[text])
    if of_day := re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", text):
        at = midnight + timedelta(hours=int(of_day[1]), minutes=int(of_day[2]))
        return at if at <= now else at - timedelta(days=1)
    try:
        return instant(text, label, Every(1))
    except InvalidOption:
        raise InvalidOption(
            f"{label}: expected 12h, yesterday, today, 6:00 or a time like 2030-01-31T06:00, got {text!r}; "
            "a time without its zone is in UTC"
        ) from None


@schedules.command
def overdue(*, grace: str | None = None, shared: Shared = SHARED) -> int:
    """List schedules that should have run and did not. Exits with 1 if there are any.

    Parameters
    ----------
    grace
        How late counts as overdue, for all of them: 5m. Default: each schedule's own grace.
    """
    allowed = None if grace is None else seconds(grace, "--grace")
    with _admin(shared) as admin:
        rules = {each.record.name: each.rule for each in admin.schedules.healths(retired=True)}
        found = admin.schedules.overdue(allowed)
    if shared.json:
        show_json(found)
    else:
        screen.show_overdue(found, rules)
    return 1 if found else 0


@schedules.command
def lint(*names: str, shared: Shared = SHARED) -> int:
    """Find rules that do not do what people expect. Exits with 1 if there are any.

    Parameters
    ----------
    names
        Which schedules. Default: all that are not retired.
    """
    with _admin(shared) as admin:
        chosen = [admin.schedules.health(name) for name in dict.fromkeys(names)]
        looked = chosen if names else admin.schedules.healths()
    said = {each.schedule.name: each.lint for each in looked}
    found = [(name, sentence) for name, sentences in said.items() for sentence in sentences]
    if shared.json:
        show_json(said)
    elif not found:
        print_line(f"no surprises in {len(looked):,} schedule{'' if len(looked) == 1 else 's'}")
    for name, sentence in () if shared.json else found:
        print_line(f"{name}: {sentence}")
    return 1 if found else 0


# ── Acting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@schedules.command
def trigger(
    name: Name,
    /,
    *,
    force: bool = False,
    wait: bool = False,
    timeout: str | None = None,
    shared: Shared = SHARED,
) -> int:
    """Run it now, in addition to its ticks, and print the job's id.

    Parameters
    ----------
    force
        Even while a run of it is in progress.
    wait
        Wait for the result and print it.
    timeout
        How long to wait at most.
    """
    limit = wait_limit(wait, timeout)
    with _admin(shared, large=wait) as admin:
        job_id = admin.schedules.trigger(name, force=force)
        stored = {"schedule": name, "job": job_id}
        if not wait:
            return print_result(shared, stored, job_id)
        result = awaited(shared, stored, job_id, limit, lambda wait: admin.jobs.result(job_id, wait))
    return print_result(shared, {**stored, "state": "completed", "result": json.loads(result)}, result)


@schedules.command
def backfill(
    name: Name,
    /,
    *,
    since: Annotated[str, Parameter(name="--from")],
    until: Annotated[str | None, Parameter(name="--to")] = None,
    again: bool = False,
    shared: Shared = SHARED,
) -> int:
    """Run past ticks that did not become runs, after a confirmation that shows their number.

    Parameters
    ----------
    since
        No tick before this time: ISO 8601; without a zone, in the schedule's.
    until
        No tick after this time. Default: now. A date alone means its midnight.
    again
        Also ticks that did become runs.
    """
    with _admin(shared) as admin:
        rule, now = rule_of(admin.schedules.get(name).schedule), admin.now()
        first, last = instant(since, "--from", rule), now if until is None else instant(until, "--to", rule)
        if last > now or first > last:
            raise InvalidOption(
                f"backfill: expected times of the past, --from before --to, got {clock(rule, first)} "
                f"to {clock(rule, last)}"
            )
        ticks = admin.schedules.to_backfill(name, first, last, again=again)
        if ticks:
            confirm(shared, f"{name}: run {_ticks(ticks, [clock(rule, each) for each in (ticks[0], ticks[-1])])}?")
        ids = admin.schedules.backfill(name, first, last, again=again) if ticks else []
    return print_result(shared, {"schedule": name, "ticks": plain(ticks), "jobs": ids}, backfilled(ids))


def _ticks(ticks: Sequence[datetime], ends: Sequence[str]) -> str:
    if len(ticks) == 1:
        return f"1 tick, {ends[0]}"
    return f"{len(ticks):,} ticks, the first {ends[0]}, the last {ends[1]}"


@schedules.command
def pause(name: Name, /, *, why: str = "by an operator", shared: Shared = SHARED) -> int:
    """Fire no tick until it is resumed; a run in progress continues.

    Parameters
    ----------
    why
        The reason, kept with the schedule.
    """
    with _admin(shared) as admin:
        before = admin.schedules.declared(name)
        admin.schedules.pause(name, why)
    was = f"already paused: {before.paused_why}"
    return _turned(shared, name, "paused", was, changed=before.paused_at is None)


@schedules.command
def resume(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Fire its ticks again; those that passed meanwhile are recorded in the history as skipped."""
    with _admin(shared) as admin:
        before = admin.schedules.declared(name)
        health = ScheduleHealth.of(admin.schedules.resume(name), admin.now())
    after = health.schedule
    if after.retired_at is not None and not shared.json:
        print_error(f"schedule {name} is still retired: it fires again once an app declares it")
    tick = health.record.next_expected_at
    coming = "" if tick is None else f", next {clock(health.rule, tick)}, {screen.away(tick, health.at)}"
    return _turned(shared, name, "active", f"not paused{coming}", changed=before.paused_at is not None, more=coming)


def _turned(shared: Shared, name: str, state: str, was: str, *, changed: bool, more: str = "") -> int:
    answer: dict[str, object] = {"schedule": name, "state": state, "changed": changed}
    return print_result(shared, answer, f"schedule {name} {f'is {state}{more}' if changed else f'was {was}'}")


@schedules.command
def rename(name: Name, new: Annotated[str, Parameter(help="Its new name.")], /, *, shared: Shared = SHARED) -> int:
    """Give a schedule, or a guard, a new name; its history goes along."""
    with _admin(shared) as admin:
        guard = admin.schedules.rename(name, new).schedule.kind == "guard"
    if guard and not shared.json:
        print_error(f"change its crontab line too: a call of {name} makes a new guard")
    return print_result(shared, {"schedule": new, "formerly": name}, f"schedule {name} is now {new}")


@schedules.command
def remove(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Delete a schedule with its history; its jobs stay."""
    with _admin(shared) as admin:
        back = "; the guard's next call adds it again" if admin.schedules.removable(name).kind == "guard" else ""
        confirm(shared, f"remove schedule {name} and its history{back}?")
        admin.schedules.remove(name)
    return print_result(shared, {"schedule": name, "removed": True}, f"schedule {name} is removed")
