"""Advice about a rule before it is used: its next ticks, and what is surprising about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from itertools import islice

from tenure.schedules.cron import EPOCH_DAY, Cron, Every, Rule, Several, epoch_seconds
from tenure.schedules.expression import DAYS_IN_MONTH, FIELDS, Expression
from tenure.schedules.zones import DAY, Change, changes_after, offset_at

_CYCLES = ((60, "minute"), (60, "hour"), (24, "day"), (31, "month"), (12, "year"), (7, "week"))
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@dataclass(frozen=True, slots=True)
class Outlook:
    """A future tick, its wall time, and a note on clock changes that affect it: '' on most days."""

    tick: datetime
    local: datetime
    note: str


def outlook(rule: Rule, after: datetime, count: int) -> list[Outlook]:
    """The next ticks, for people to check before they rely on a schedule."""
    found: list[Outlook] = []
    tick = rule.after(after)
    while tick is not None and len(found) < count:
        note = next((note for each in _crons(rule, tick) if (note := _note(each, epoch_seconds(tick)))), "")
        found.append(Outlook(tick, rule.local(tick), note))
        tick = rule.after(tick)
    return found


def _crons(rule: Rule, tick: datetime) -> Iterator[Cron]:
    """The expressions that this tick comes from."""
    if isinstance(rule, Cron):
        yield rule
    elif isinstance(rule, Several):
        yield from (each for each in rule.crons if each.upto(tick) == tick)


def lint(rule: Rule, now: datetime | None = None) -> list[str]:
    """Sentences about what is surprising in this rule; empty if nothing is. Looks two years ahead of `now`.

    >>> lint(Cron("*/7 * * * *"))
    ['minute */7 is not every 7 minutes: after :56 comes :00, 4 minutes later']
    """
    now = now or datetime.now(UTC)
    if isinstance(rule, Every):
        return _uneven_days(rule, now)
    if isinstance(rule, Several):
        return [sentence for each in rule.crons for sentence in lint(each, now)]
    start = epoch_seconds(now)
    read = rule.times.expression
    return [*_uneven(read), *_often(read), *_days(rule, start), *_clocks(rule, start)]


# ── fields ──


def _often(read: Expression) -> Iterator[str]:
    if len(read.seconds) > 1:
        yield f"second {read.parts[0]} runs {len(read.seconds)} times in every minute that matches"


def _uneven(read: Expression) -> Iterator[str]:
    """Steps start over with every hour, day, month or year, so the last one can be shorter."""
    days = {day % 7 for day in read.weekdays}
    numbers = (read.seconds, read.minutes, read.hours, read.days, read.months, days)
    fields = zip(FIELDS, read.parts, numbers, strict=True)
    for (name, part, values), (size, whole) in zip(fields, _CYCLES, strict=True):
        found = re.fullmatch(r"(?:\*|\w+)/(\d+)", part)
        step = int(found[1]) if found else 1
        if step == 1 or not values:
            continue
        first, last = min(values), max(values)
        rest = first + size - last
        unit = "day" if name.startswith("day") else name
        if rest == step:
            continue
        if step > size:
            yield f"{name} {part} steps beyond the {whole}: it means once a {whole}, at {_value(name, first)}"
        elif whole == "month":
            yield f"{name} {part} is not every {step} days: it starts again with each month, at {_value(name, first)}"
        else:
            comes = f"after {_value(name, last)} comes {_value(name, first)}"
            yield f"{name} {part} is not every {step} {unit}s: {comes}, {rest} {unit}{'' if rest == 1 else 's'} later"


def _value(name: str, value: int) -> str:
    match name:
        case "second" | "minute":
            return f":{value:02d}"
        case "hour":
            return f"{value:02d}:00"
        case "month":
            return _MONTHS[value - 1]
        case "day-of-week":
            return _DAYS[value]
        case _:
            return f"day {value}"


def _uneven_days(rule: Every, now: datetime) -> list[str]:
    if rule.seconds > DAY:
        said = "is counted from Thursday 1970-01-01 UTC"
    elif rule.seconds >= 3600 and DAY * 1000 % round(rule.seconds * 1000):
        said = "does not divide a day evenly, so its times of day shift"
    else:
        return []
    ticks = islice(rule.between(now, datetime.max.replace(tzinfo=UTC)), 3)
    return [f"{rule} {said}; next at {', '.join(f'{tick:%a %Y-%m-%d %H:%M}' for tick in ticks)} UTC"]


# ── days ──


def _days(rule: Cron, now: int) -> Iterator[str]:
    read = rule.times.expression
    dom, dow = read.parts[3], read.parts[5]
    if "*" not in (dom, dow):
        how = (
            "one of them starts with *, so both have to match"
            if read.day_and
            else "cron runs when one of them matches, not only when both do"
        )
        yield f"day-of-month {dom} and day-of-week {dow}: {how}; next on {_dates(rule, now)}"
    named = read.days | (read.nearest - {0})
    if named and not dom.startswith("*") and max(named) > 28 and not read.days.issuperset(range(1, 29)):
        last = max(named)
        if max(read.months) == 2 == min(read.months):
            yield f"Feb {last} exists in leap years only{f'; next on {_dates(rule, now)}' if dow == '*' else ''}"
        elif short := [_MONTHS[month - 1] for month in sorted(read.months) if last > DAYS_IN_MONTH[month]]:
            yield f"day {last} does not exist in {', '.join(short)}, so nothing runs there; L is a month's last"
        elif last == 29 and 2 in read.months:
            yield "day 29 exists in Feb in leap years only; L is a month's last"
    for day in sorted(day for day, nth in read.nth if nth == 5):
        yield f"a month without a fifth {_DAYS[day]} has no such run; next on {_dates(rule, now)}"


def _dates(rule: Cron, now: int) -> str:
    """The next three dates with a tick."""
    found: list[int] = []
    wall = rule.times.after(now + offset_at(rule.tz, now))
    while wall is not None and len(found) < 3:
        found.append(wall)
        wall = rule.times.after((wall // DAY + 1) * DAY - 1)
    return ", ".join(f"{_DAYS[(day // DAY + 4) % 7][:3]} {_day(day)}" for day in found)


# ── clocks ──


def _clocks(rule: Cron, now: int) -> Iterator[str]:
    """The first gap and the first overlap within two years that affect a tick."""
    if rule.times.expression.parts[2] == "*":
        return  # every hour of the day: a skipped hour surprises no user
    seen: set[bool] = set()
    for change in changes_after(rule.tz, now, now + 731 * DAY):
        low, high = sorted((change.last, change.first))
        walls = rule.times.between(low, high)
        if walls and (change.after > change.before) not in seen:
            seen.add(change.after > change.before)
            yield f"{_day(low)}: {_described(change)} in {rule.tz}; {_fate(rule, change, walls)}"


def _note(rule: Cron, at: int) -> str:
    """How the clocks change on the day of this tick, and what that does to the tick."""
    wall = at + offset_at(rule.tz, at)
    for change in changes_after(rule.tz, at - 2 * DAY, at + 2 * DAY):
        low, high = sorted((change.last, change.first))
        if wall // DAY not in (low // DAY, (high - (change.after < change.before)) // DAY):
            continue
        if change.at == at and rule.swallows(change):
            return f"{_described(change)} today; {_fate(rule, change, rule.times.between(low, high))}"
        if change.after < change.before and low <= wall < high:
            return f"{_described(change)} today; {_fate(rule, change, [wall])}"
        return f"{_described(change)} today"
    return ""


def _fate(rule: Cron, change: Change, walls: list[int]) -> str:
    """What happens to the ticks in a gap or an overlap."""
    it = "it" if len(walls) == 1 else "they"
    s = "s" if it == "it" else ""
    if change.after < change.before:
        return f"{_listed(walls)} occur{s} twice, {it} run{s} {'the first time' if rule.times.fixed else 'both times'}"
    missing = f"{_listed(walls)} do{'es' if s else ''} not exist, {it}"
    if not rule.swallows(change):
        return f"{missing} {'is' if s else 'are'} skipped"
    return f"{missing} run{s} {'' if s else 'once, '}at {_hhmm(change.first)}"


def _day(wall: int) -> str:
    return date.fromordinal(wall // DAY + EPOCH_DAY).isoformat()


def _hhmm(wall: int) -> str:
    return f"{wall // 3600 % 24:02d}:{wall // 60 % 60:02d}"


def _listed(walls: list[int]) -> str:
    return ", ".join(_hhmm(wall) for wall in walls[:3]) + (", …" if len(walls) > 3 else "")


def _described(change: Change) -> str:
    way = "forward" if change.after > change.before else "back"
    if change.last // DAY == change.first // DAY:
        return f"clocks go {way} {_hhmm(change.last)}→{_hhmm(change.first)}"
    return f"clocks go {way} {_day(change.last)} {_hhmm(change.last)}→{_day(change.first)} {_hhmm(change.first)}"
