"""Schedules: whether each runs on time, and a page for each with its past and next ticks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from tenure.core.durations import seconds
from tenure.errors import InvalidOption, Refused
from tenure.events import headline
from tenure.operations.job_search import moment
from tenure.operations.schedule_health import ScheduleHealth, clock, definition, held_back, origin
from tenure.operations.schedules import Happened
from tenure.ports.schedules import Schedule, Standing, Status, Tick
from tenure.schedules.cron import Rule
from tenure.schedules.timetable import UnknownSchedule, backfilled
from tenure.web.pages import Action, Page, Sorting, View, back, count
from tenure.web.security import Problem

SIZE = 15
TICKS = 25  #: of all schedules, on a page
STRIP = 50
PREVIEW = 10
LASTS = ("12h", "1d", "7d")  #: offered as links; the first one is the default
WRONG = frozenset[Status]({"failure", "missed", "skipped", "cancelled"})
_KINDS = {"overdue": "bad", "failure": "bad", "success": "good", "started": "info"}


# ── Descriptions ──


def strip_in_words(marks: Sequence[Tick]) -> str:
    """A strip of marks in words, for screen readers."""
    counts = Counter[Status](tick.status for tick in marks)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f"the last {len(marks)}: {told}; newest last" if marks else "no runs yet"


def mark_in_words(tick: Tick, rule: Rule | None) -> str:
    why = f": {headline(tick.why)[:200]}" if tick.why else ""
    return f"{clock(rule, tick.tick)}, {tick.status}{why}"


# ── The list ──

_KEYS: Mapping[str, Callable[[Standing], Any]] = {
    "name": lambda each: each.schedule.name,
    "last": lambda each: each.schedule.last_run_at,
    "fails": lambda each: each.schedule.failure_count,
    "next": lambda each: None if each.schedule.idle else each.schedule.next_tick,
}


def _look(view: View) -> Mapping[str, Any]:
    now, asked = view.admin.now(), view.query
    text, worst, retired = asked.get("name", "").strip(), asked.get("order") == "worst", asked.get("retired") == "yes"
    every = view.site.schedules()
    found = [
        each
        for each in every
        if text.lower() in each.schedule.name.lower() and (retired or each.schedule.retired_at is None)
    ]
    query = {"name": text, "order": "worst" if worst else None, "retired": "yes" if retired else None}
    sorting = Sorting.of(view, "/schedules", _KEYS, query)
    found = sorting.sorted(found, _KEYS)
    if worst and not sorting.by:
        found = sorted(found, key=lambda each: ScheduleHealth.of(each, now).worry)
    number = count(asked.get("page", ""), 1)
    first = (max(1, number) - 1) * SIZE
    shown = found[first : first + SIZE]
    marks = _marks(view, [each.schedule for each in shown])
    return {
        "schedules": [ScheduleHealth.of(each, now, marks[each.schedule.name], view.site.paused()) for each in shown],
        "now": now,
        "name": text,
        "worst": worst,
        "retired": retired,
        "hidden": 0 if retired else sum(each.schedule.retired_at is not None for each in every),
        "query": query | {"sort": sorting.text},
        "sorting": sorting,
        "none": not every,
        "found": len(found),
        "first": first,
        "number": number,
        "more": first + SIZE < len(found),
        "strip_in_words": strip_in_words,
        "mark_in_words": mark_in_words,
    }


def _marks(view: View, schedules: Sequence[Schedule]) -> Mapping[str, Sequence[Tick]]:
    """Marks of their last runs, oldest first. One read per page, since many are expensive on a busy server."""
    names = [each.name for each in schedules]
    return view.site.memo.get(("ticks", *names), lambda: view.admin.schedules.marks(schedules, STRIP), fresh=1.0)


# ── What happened ──


def _look_back(view: View) -> Mapping[str, Any]:
    """What became of the ticks of all schedules in a span of time."""
    now, query = view.admin.now(), view.query
    last = query.get("last") or ("" if query.get("since") or query.get("until") else LASTS[0])
    only = WRONG if query.get("only") == "wrong" else frozenset[Status]()
    cursor = query.get("cursor") or None
    found, problem = Happened((), None), ""

    def read() -> Happened:
        return view.admin.schedules.happened(since, until, limit=TICKS, cursor=cursor, only=only)

    try:
        until = now if last or not query.get("until") else moment(query["until"], "until")
        if last or not query.get("since"):
            since = until - timedelta(seconds=seconds(last or "1d", "last"))
        else:
            since = moment(query["since"], "from")
        key = ("happened", last, query.get("since"), query.get("until"), bool(only), cursor)
        found = view.site.memo.get(key, read, fresh=1.0)
    except InvalidOption as error:
        problem = str(error)
    given = {name: query.get(name) or None for name in ("last", "since", "until", "only")}
    return {
        "ticks": found.ticks,
        "problem": problem,
        "query": given | {"last": last or None},
        "lasts": LASTS,
        "last": last,
        "older": found.cursor,
        "later": cursor is not None,
        "counts": Counter(each.tick.status for each in found.ticks).most_common(),
    }


# ── One schedule ──


def _look_at_one(view: View) -> Mapping[str, Any]:
    name = view.given["name"]
    standing = _standing(view, name)
    now, s = view.admin.now(), standing.schedule
    found = ScheduleHealth.of(standing, now, _marks(view, [s])[name], view.site.paused())
    before = _before(view)
    ticks = view.site.memo.get(
        ("history", name, before), lambda: view.admin.schedules.ticks(s, limit=SIZE + 1, before=before), fresh=0.5
    )
    return {
        "health": found,
        "held": s.job.queue if s.job and found.late is not None and s.job.queue in view.site.paused() else "",
        "kind": _KINDS.get(found.status, "off"),
        "s": s,
        "now": now,
        "facts": _facts(found),
        "history": found.views(ticks[:SIZE]),
        "older": ticks[SIZE - 1].tick.isoformat() if len(ticks) > SIZE else None,
        "later": before is not None,
        "coming": found.coming(PREVIEW),
        "lint": [*found.lint, *held_back(s)],
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
        return view.site.memo.get(("schedule", name), lambda: view.admin.schedules.get(name), fresh=0.2)
    except UnknownSchedule:
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "No such schedule",
            f"no schedule {name!r} is in this store: it was never declared here, or it has been removed",
        ) from None


def _before(view: View) -> datetime | None:
    text = view.query.get("before", "")
    return moment(text, "before") if text else None


def _facts(health: ScheduleHealth) -> list[tuple[str, str]]:
    s, rule = health.schedule, health.rule
    rows = [
        *definition(s, rule),
        ("declared by", origin(s)),
        ("last tick", clock(rule, s.last_tick) if s.last_tick else ""),
        (
            "waiting tick",
            f"{clock(rule, s.pending_tick)}, waiting for the previous run to end" if s.pending_tick else "",
        ),
        ("catching up", f"up to {clock(rule, s.catching_up_to)}" if s.catching_up_to else ""),
    ]
    return [(name, text) for name, text in rows if text]


# ── Acting ──


@dataclass(frozen=True, slots=True)
class Backfill:
    """The past ticks that were requested, counted; or why they can't be run."""

    since: str
    until: str
    again: bool
    problem: str = ""
    ticks: Sequence[datetime] | None = None  #: None: nothing was requested yet
    first: datetime | None = None
    last: datetime | None = None


def _to_backfill(view: View, s: Schedule, rule: Rule | None, now: datetime) -> Backfill:
    since, until = view.query.get("since", ""), view.query.get("until", "")
    again = view.query.get("again") == "yes"
    if not since or rule is None or not view.user.may("operate"):
        return Backfill(since, until, again)
    try:
        first = moment(since, "from", rule)
        last = min(moment(until, "until", rule), now) if until else now
        if first > last:
            raise InvalidOption(
                f"expected times of the past, from before until, got {clock(rule, first)} to {clock(rule, last)}"
            )
        key = ("backfill", s.name, since, until, again)
        ticks = view.site.memo.get(
            key, lambda: view.admin.schedules.to_backfill(s.name, first, last, again=again), fresh=2.0
        )
    except (InvalidOption, Refused) as error:
        return Backfill(since, until, again, problem=str(error))
    return Backfill(since, until, again, ticks=ticks, first=first, last=last)


def at(name: str) -> str:
    """The page of a schedule, with its name escaped."""
    return f"/schedules/{quote(name, safe='')}"


def _trigger(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    job_id = view.admin.schedules.trigger(name, force=form.get("force") == "yes")
    return f"{name} is triggered: job {job_id}", back(form, at(name))


def _pause(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    view.admin.schedules.pause(name, form.get("why", "").strip() or f"by {view.user.name}")
    return f"{name} is paused: its ticks are not fired until it is resumed", back(form, at(name))


def _resume(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    s = view.admin.schedules.resume(name).schedule
    said = "; it is still retired, and fires again once an app declares it" if s.retired_at else ""
    return f"{name} is resumed{said}", back(form, at(name))


def _backfill(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    first, last = (moment(form.get(each, ""), each) for each in ("first", "last"))
    ids = view.admin.schedules.backfill(name, first, last, again=form.get("again") == "yes")
    return f"{name}: {backfilled(ids)}", at(name)


def _rename(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name, new = view.given["name"], form.get("new", "").strip()
    guard = view.admin.schedules.rename(name, new).schedule.kind == "guard"
    said = "; change its crontab line too: a call by the old name makes a new guard" if guard else ""
    return f"{name} is now {new}{said}", at(new)


def _remove(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = view.given["name"]
    if form.get("confirm", "").strip() != name:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "Nothing is removed",
            f"to remove this schedule and its history, type its name, {name}: go back and try again",
        )
    view.admin.schedules.remove(name)
    return f"schedule {name} is removed; its jobs stay", "/schedules"


PAGES: list[Page] = [
    Page("/schedules", "schedules.html", _look, every=0.5, title="Schedules"),
    Page("/ticks", "ticks.html", _look_back, every=2.0),
    Page("/schedules/{name:path}", "schedule.html", _look_at_one, every=0.5),
]
ACTIONS: list[Action] = [
    Action("/schedules/{name:path}/trigger", "operate", _trigger),
    Action("/schedules/{name:path}/pause", "operate", _pause),
    Action("/schedules/{name:path}/resume", "operate", _resume),
    Action("/schedules/{name:path}/backfill", "operate", _backfill),
    Action("/schedules/{name:path}/rename", "admin", _rename),
    Action("/schedules/{name:path}/remove", "admin", _remove),
]
