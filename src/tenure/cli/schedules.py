"""`tenure schedules …`: what runs when, whether it did, and what an operator can do about it."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli import schedules_screen as screen
from tenure.cli.output import complain, plain, say, show_json, table
from tenure.cli.schedules_add import WHEN, When, instant
from tenure.cli.shared import Shared, admin_of, awaited, confirm, told, wait_limit
from tenure.core.durations import seconds
from tenure.errors import InvalidOption
from tenure.operations.schedule_health import ScheduleHealth, clock, coming, held_back
from tenure.schedules import advice
from tenure.schedules.plan import rule_of

if TYPE_CHECKING:
    from tenure.operations.admin import Admin

schedules = App(name="schedules", help="Schedules: what runs when, and whether it did.", help_epilogue="")
schedules.command("tenure.cli.schedules_add:add", name="add", help="Make a schedule by hand.")
schedules.command("tenure.cli.schedules_add:declare", name="declare", help="Put an app's schedules into the store.")

Name = Annotated[str, Parameter(help="The schedule.")]
Limit = Annotated[int, Parameter(name=["--limit", "-n"])]
SHARED = Shared()
_MARKS, _STRIP = 10, 50
_SILENCE = logging.NullHandler()


@contextmanager
def _admin(shared: Shared) -> Generator[Admin]:
    """The store in an operator's hands. How runs ended is shown here; it is no news to be logged on a terminal."""
    logging.getLogger("tenure.schedules").addHandler(_SILENCE)
    with admin_of(shared) as admin:
        yield admin


def _refuse_limit(limit: int, most: int) -> None:
    if not 1 <= limit <= most:
        raise InvalidOption(f"--limit: expected 1 to {most}, got {limit}")


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@schedules.command(name="list")
def list_(*, every: Annotated[bool, Parameter(name="--all")] = False, shared: Shared = SHARED) -> int:
    """The health page: how each schedule's last runs went, and when the next one is expected.

    Parameters
    ----------
    every
        Also those that are retired: no longer declared by their app.
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
        complain("no schedule is here: declare one with @jobs.schedule, or make one with tenure schedules add")
    return 0


@schedules.command
def show(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Everything the store knows of a schedule, secrets starred."""
    with _admin(shared) as admin:
        found = admin.schedules.health(name)
    if shared.json:
        shown = {"record": found.record, **plain(found.standing), "overdue_by": found.late, "lint": found.lint}
        show_json(shown)
        return 0
    screen.show_facts(found)
    if found.standing.runs:
        say("")
        rows = [screen.run_row(run, found.rule, found.at) for run in found.standing.runs]
        table(screen.RUN_HEADS, rows, fixed=("tick", "state", "since"), below="job", paint=screen.paint)
    _say_all(found.lint, before="")
    return 0


def _say_all(sentences: Sequence[str], before: str | None = None) -> None:
    if sentences and before is not None:
        say(before)
    for sentence in sentences:
        say(f"note: {sentence}")


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
    """The next ticks of a schedule, or of an expression before it becomes one.

    Parameters
    ----------
    name
        The schedule; or say --cron or --every, which need no store.
    limit
        So many ticks; 10 if not given.
    after
        Those after this time instead of now: ISO 8601; without a zone it is in the schedule's.
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
        complain("no tick comes")
    _say_all([*lint, *(held_back(stored) if stored else [])], before="")
    return 0


@schedules.command
def history(name: Name, /, *, limit: Limit = 50, before: str | None = None, shared: Shared = SHARED) -> int:
    """What became of its ticks, newest first.

    Parameters
    ----------
    limit
        At most so many lines; 50 if not given.
    before
        Only ticks before this time: ISO 8601; without a zone it is in the schedule's.
    """
    _refuse_limit(limit, 10_000)
    with _admin(shared) as admin:
        found = admin.schedules.health(name)
        until = None if before is None else instant(before, "--before", rule_of(found.schedule))
        marks = admin.schedules.marks([name], _STRIP)[name]
        views = found.told(admin.schedules.ticks(name, limit=limit, before=until))
    if shared.json:
        show_json([screen.history_json(each) for each in views])
        return 0
    if not views:
        complain("no tick of it was decided" + (" before that" if before else " yet"))
        return 0
    screen.show_strip(marks)
    say("")
    screen.show_history(views)
    if len(views) == limit:
        complain(f"there may be more: --before {views[-1].tick.tick.isoformat()}")
    return 0


@schedules.command
def overdue(*, grace: str | None = None, shared: Shared = SHARED) -> int:
    """Those that should run and do not. Ends with 1 if there are any.

    Parameters
    ----------
    grace
        How late is overdue, for all of them: 5m. Default: what each one says.
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
    """What in these rules does not do what people expect. Ends with 1 if there is any.

    Parameters
    ----------
    names
        Which schedules; none: all that are not retired.
    """
    with _admin(shared) as admin:
        chosen = [admin.schedules.health(name) for name in dict.fromkeys(names)]
        looked = chosen if names else admin.schedules.healths()
    said = {each.schedule.name: each.lint for each in looked}
    found = [(name, sentence) for name, sentences in said.items() for sentence in sentences]
    if shared.json:
        show_json(said)
    elif not found:
        say(f"nothing surprises in {len(looked):,} schedule{'' if len(looked) == 1 else 's'}")
    for name, sentence in () if shared.json else found:
        say(f"{name}: {sentence}")
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
    """Run it now, beside its ticks, and print the job's id.

    Parameters
    ----------
    force
        Also while a run of it goes on.
    wait
        Wait for the result and print it.
    timeout
        Wait no longer than this.
    """
    limit = wait_limit(wait, timeout)
    with _admin(shared) as admin:
        job_id = admin.schedules.trigger(name, force=force)
        if not wait:
            return told(shared, {"schedule": name, "job": job_id}, job_id)
        result = awaited(job_id, lambda: admin.jobs.result(job_id, limit))
    return told(shared, {"schedule": name, "job": job_id, "state": "completed", "result": json.loads(result)}, result)


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
    """Run ticks of the past that did not become runs, after telling how many they are.

    Parameters
    ----------
    since
        The first tick is not before this time: ISO 8601; without a zone it is in the schedule's.
    until
        The last tick is not after this time; now if not given. A date alone is its midnight.
    again
        Also those that did become runs.
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
    words = f"{len(ids):,} job{'' if len(ids) == 1 else 's'} stored" if ids else "no tick in that time is without a run"
    return told(shared, {"schedule": name, "ticks": plain(ticks), "jobs": ids}, words)


def _ticks(ticks: Sequence[datetime], ends: Sequence[str]) -> str:
    if len(ticks) == 1:
        return f"1 tick, {ends[0]}"
    return f"{len(ticks):,} ticks, the first {ends[0]}, the last {ends[1]}"


@schedules.command
def pause(name: Name, /, *, why: str = "by an operator", shared: Shared = SHARED) -> int:
    """Fire no tick until it is resumed; a run that goes on is left alone.

    Parameters
    ----------
    why
        Kept with it, for those who wonder.
    """
    with _admin(shared) as admin:
        before = admin.schedules.declared(name)
        admin.schedules.pause(name, why)
    was = f"paused already: {before.paused_why}"
    return _turned(shared, name, "paused", was, changed=before.paused_at is None)


@schedules.command
def resume(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Fire its ticks again; those that passed meanwhile are in the history as skipped."""
    with _admin(shared) as admin:
        before = admin.schedules.declared(name)
        health = ScheduleHealth.of(admin.schedules.resume(name), admin.now())
    after = health.schedule
    if after.retired_at is not None and not shared.json:
        complain(f"schedule {name} is retired all the same: it fires again once an app declares it")
    tick = health.record.next_expected_at
    coming = "" if tick is None else f", next {clock(health.rule, tick)}, {screen.away(tick, health.at)}"
    return _turned(shared, name, "active", f"not paused{coming}", changed=before.paused_at is not None, more=coming)


def _turned(shared: Shared, name: str, state: str, was: str, *, changed: bool, more: str = "") -> int:
    answer: dict[str, object] = {"schedule": name, "state": state, "changed": changed}
    return told(shared, answer, f"schedule {name} {f'is {state}{more}' if changed else f'was {was}'}")


@schedules.command
def remove(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Delete a schedule with its history; its jobs stay."""
    with _admin(shared) as admin:
        back = "; a guard comes back at its next call" if admin.schedules.removable(name).kind == "guard" else ""
        confirm(shared, f"remove schedule {name} and its history{back}?")
        admin.schedules.remove(name)
    return told(shared, {"schedule": name, "removed": True}, f"schedule {name} is removed")
