"""When a schedule ticks: cron expressions in a time zone, and plain intervals. Pure arithmetic, the same on every host.

`expression.py` reads the expression and decides which days match. Here time is divided at the zone's changes into
stretches of one offset. Inside a stretch wall time is plain arithmetic; at a change Debian cron's rule applies, in one
place (`Cron.swallows` and `Cron._floor`):

- *Fixed times* (neither minute nor hour starts with a star): a tick that the clocks jump over runs once, at the first
  instant after the jump; a tick that occurs twice runs the first time.
- All others follow the wall clock: they tick at every instant whose wall time matches, so none in a gap and two in an
  overlap.

Debian applies this to changes under three hours. Here it applies to all, so that a date skipped at the date line still
runs. Six-field expressions follow the same rule; their seconds do not affect it.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from math import isfinite

from tenure.core import durations
from tenure.core.durations import Duration
from tenure.errors import InvalidOption
from tenure.ports.schedules import Dst
from tenure.schedules.expression import FIELDS, MACROS, BadField, Expression, OneValueStep
from tenure.schedules.zones import DAY, EARLIEST, LATEST, Change, changes_after, changes_back, offset_at, zone_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EPOCH_DAY = _EPOCH.toordinal()
_SECOND = timedelta(seconds=1)
_MICROSECOND = timedelta(microseconds=1)
_MOST_CRONS, _MOST_DATES = 50, 1000
_YEARS = 50  # an expression without a tick for this long is treated as having none


# ── expressions ──


class _Times:
    """The wall times that match an expression, in seconds since 1970-01-01 00:00, as if in UTC."""

    __slots__ = ("expression", "fixed", "minutes", "seconds")

    def __init__(self, expression: Expression) -> None:
        self.expression = each = expression
        self.fixed = not each.parts[1].startswith("*") and not each.parts[2].startswith("*")
        self.minutes = array(
            "H", (hour * 60 + minute for hour in sorted(each.hours) for minute in sorted(each.minutes))
        )
        self.seconds = array("H", sorted(each.seconds))

    def after(self, wall: int) -> int | None:
        """The first match strictly after."""
        day, rest = divmod(wall + 1, DAY)
        if self._on(day):
            minute, second = divmod(rest, 60)
            at = bisect_left(self.minutes, minute)
            if at < len(self.minutes):
                if self.minutes[at] > minute:
                    return day * DAY + self.minutes[at] * 60 + self.seconds[0]
                if second <= self.seconds[-1]:
                    return day * DAY + minute * 60 + self.seconds[bisect_left(self.seconds, second)]
                if at + 1 < len(self.minutes):
                    return day * DAY + self.minutes[at + 1] * 60 + self.seconds[0]
        found = self._day(day, 1)
        return None if found is None else found * DAY + self.minutes[0] * 60 + self.seconds[0]

    def upto(self, wall: int) -> int | None:
        """The last match at or before."""
        day, rest = divmod(wall, DAY)
        if self._on(day):
            minute, second = divmod(rest, 60)
            at = bisect_right(self.minutes, minute) - 1
            if at >= 0:
                if self.minutes[at] < minute:
                    return day * DAY + self.minutes[at] * 60 + self.seconds[-1]
                if second >= self.seconds[0]:
                    return day * DAY + minute * 60 + self.seconds[bisect_right(self.seconds, second) - 1]
                if at > 0:
                    return day * DAY + self.minutes[at - 1] * 60 + self.seconds[-1]
        found = self._day(day, -1)
        return None if found is None else found * DAY + self.minutes[-1] * 60 + self.seconds[-1]

    def between(self, first: int, end: int) -> list[int]:
        """The first four with first <= wall < end: enough to know whether there are any, and to name them."""
        found: list[int] = []
        wall = self.after(first - 1)
        while wall is not None and wall < end and len(found) < 4:
            found.append(wall)
            wall = self.after(wall)
        return found

    def _on(self, day: int) -> bool:
        try:
            return self.expression.on(date.fromordinal(day + EPOCH_DAY))
        except (ValueError, OverflowError):
            return False

    def _day(self, day: int, step: int) -> int | None:
        """The next matching day in that direction, excluding this one."""
        try:
            now = date.fromordinal(day + step + EPOCH_DAY)
            end = now.year + step * _YEARS
            while (end - now.year) * step >= 0:
                if self.expression.on(now):
                    return now.toordinal() - EPOCH_DAY
                if now.month not in self.expression.months:
                    now = now.replace(day=monthrange(now.year, now.month)[1] if step > 0 else 1)
                now += timedelta(days=step)
        except (ValueError, OverflowError):
            pass  # before year 1 or after 9999: never
        return None


@lru_cache(maxsize=4096)
def _times(expression: str) -> _Times:
    return _Times(Expression.read(MACROS.get(expression, expression)))


def _normal(expression: object) -> str:
    if not isinstance(expression, str):
        raise InvalidOption(f'cron: expected an expression like "0 6 * * *", got {expression!r}')
    plain = expression.replace("\t", " ")
    if len(plain) > 1000:
        raise InvalidOption(f"cron: expected at most 1000 characters, got {len(plain)}")
    if not plain.isascii() or not plain.isprintable():
        raise InvalidOption(
            f"cron: expected one line of plain ASCII, got {expression[:80]!r}; write digits, names and * ? , - / #"
        )
    return " ".join(plain.upper().split())


def _refuse(expression: str, error: ValueError) -> InvalidOption:
    """The error that says which field is wrong and what to write instead."""
    parts = expression.split()
    got = f'got "{expression.lower()}"'
    if expression.startswith("@REBOOT"):
        return InvalidOption(f"cron: expected times, {got}; a schedule never reboots, use @hourly or an interval")
    if expression.startswith(("EVERY ", "@EVERY ")):
        return InvalidOption(f'cron: expected an expression, {got}; for an interval use every="{parts[1].lower()}"')
    if expression.startswith("@"):
        return InvalidOption(f"cron: expected one of {' '.join(MACROS).lower()}, {got}")
    if expression.startswith(("TZ=", "CRON_TZ=")):
        return InvalidOption(f"cron: {got}; leave out {parts[0].partition('=')[0]}=, and pass the time zone as tz")
    if len(parts) == 7:
        return InvalidOption(f"cron: expected 5 or 6 fields, {got}, which has 7; for years use start and end")
    if not isinstance(error, BadField):
        return InvalidOption(
            f"cron: expected 5 fields (minute hour day-of-month month day-of-week), or 6 with seconds first, {got}, "
            f"which has {len(parts)}"
        )
    name, part = error.name, error.part
    if isinstance(error, OneValueStep):
        return InvalidOption(f"cron: bad {name} {part.lower()!r}, {got}; write {error.meant.lower()}")
    if re.match(r"[HR](\b|\()", part):
        return InvalidOption(f"cron: {got}; instead of {part[0]}, choose a number, or spread the runs with jitter")
    if "?" in part:
        return InvalidOption(f"cron: {got}; ? stands for a whole day-of-month or day-of-week; else write *")
    return InvalidOption(
        f"cron: bad {name} {part.lower()!r} in {expression.lower()!r}; expected {FIELDS[name]}, "
        "* for all, a-b for a range, a,b for a list, */n for steps"
    )


def _never(expression: str) -> InvalidOption:
    return InvalidOption(f'cron: expected a date that exists, got "{expression.lower()}"; no day of any month matches')


# ── the two rules ──


def epoch_seconds(instant: datetime) -> int:
    if instant.tzinfo is None:
        raise InvalidOption(f"expected a time with its zone, got {instant}; use datetime.now(UTC)")
    return (instant - _EPOCH) // _SECOND


def _nearest(rule: Rule, instant: datetime) -> datetime | None:
    before, after = rule.upto(instant), rule.after(instant)
    if before is None or after is None:
        return before or after
    return before if instant - before <= after - instant else after


@dataclass(frozen=True, slots=True)
class Cron:
    """One cron expression in a time zone: 5 fields, or 6 with seconds first, or @hourly, @daily and so on.

    >>> Cron("30 2 * * *", "America/New_York").after(datetime(2026, 3, 8, 5, tzinfo=UTC))
    datetime.datetime(2026, 3, 8, 7, 0, tzinfo=datetime.timezone.utc)

    `dst="run_once"` adds one run, right after the gap, on a day when a gap swallows every tick (`*/20 2 * * *`).
    Times are aware and returned in UTC; None means never within 50 years. Raises InvalidOption.
    """

    expression: str
    tz: str = "UTC"
    dst: Dst = "debian"

    def __post_init__(self) -> None:
        expression = _normal(self.expression)
        try:
            times = _times(expression)
        except ValueError as error:
            raise _refuse(expression, error) from None
        if times.after(0) is None:
            raise _never(expression)
        written = expression.lower() if expression.startswith("@") else times.expression.written
        object.__setattr__(self, "expression", written)
        if self.dst not in ("debian", "run_once"):
            raise InvalidOption(f'dst: expected "debian" or "run_once", got {self.dst!r}')
        zone_of(str(self.tz))

    def __str__(self) -> str:
        return self.expression

    def after(self, instant: datetime) -> datetime | None:
        """The first tick strictly after."""
        return self._datetime(next(self._from(epoch_seconds(instant)), None))

    def upto(self, instant: datetime) -> datetime | None:
        """The last tick at or before."""
        return self._datetime(self._upto(epoch_seconds(instant)))

    def nearest(self, instant: datetime) -> datetime | None:
        """The tick closest to that instant, before or after; of two equally close ones, the earlier."""
        return _nearest(self, instant)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks with after < tick <= until, one by one."""
        end = min(epoch_seconds(until), LATEST)
        for at in takewhile(lambda at: at <= end, self._from(epoch_seconds(after))):
            yield _EPOCH + timedelta(seconds=at)

    def count(self, after: datetime, until: datetime, most: int) -> int:
        """How many ticks `between` has, counting no further than `most`."""
        return sum(1 for _ in islice(self.between(after, until), most))

    def local(self, tick: datetime) -> datetime:
        """The tick in the wall time of its zone."""
        return tick.astimezone(zone_of(self.tz))

    @property
    def times(self) -> _Times:
        return _times(self.expression.upper())

    @staticmethod
    def _datetime(at: int | None) -> datetime | None:
        return None if at is None or not EARLIEST <= at <= LATEST else _EPOCH + timedelta(seconds=at)

    def _from(self, at: int) -> Iterator[int]:
        """The ticks after an instant, stretch by stretch."""
        times, offset = self.times, offset_at(self.tz, at)
        wall = times.after(max(at + offset, self._floor(at) - 1))
        while wall is not None:
            change = next(changes_after(self.tz, at, wall + 2 * DAY), None)
            end = change.last if change else wall + DAY
            while wall is not None and wall < end:
                at = wall - offset
                yield at
                wall = times.after(wall)
            if change is None or wall is None:
                continue
            at, offset = change.at, change.after
            if self.swallows(change):
                yield at
                wall = times.after(change.first)
            elif not times.fixed or wall < change.first:
                wall = times.after(change.first - 1)

    def _upto(self, at: int) -> int | None:
        times = self.times
        offset = offset_at(self.tz, at)
        wall = times.upto(at + offset)
        while wall is not None:
            change = next(changes_back(self.tz, at, wall - 2 * DAY), None)
            if change is None or wall >= max(change.first, change.last if times.fixed else change.first):
                return wall - offset
            if self.swallows(change):
                return change.at
            at, offset = change.at - 1, change.before
            wall = times.upto(at + offset)
        return None

    def _floor(self, at: int) -> int:
        """Wall times below this have already run: clocks went back, and fixed times run only the first time."""
        change = next(changes_back(self.tz, at, at - 2 * DAY), None) if self.times.fixed else None
        return change.last if change else at - 2 * DAY

    def swallows(self, change: Change) -> bool:
        """Do clocks jump forward over ticks that must run, at this change?"""
        times = self.times
        if change.after < change.before or not times.between(change.last, change.first):
            return False
        if times.fixed or self.dst == "debian":
            return times.fixed
        for day in range(change.last // DAY, (change.first - 1) // DAY + 1):
            first, last = times.after(day * DAY - 1), times.upto((day + 1) * DAY - 1)
            if first is not None and last is not None and change.last <= first <= last < change.first:
                return True
        return False


@dataclass(frozen=True, slots=True)
class Every:
    """An interval in seconds, anchored to 1970-01-01 UTC and not to a process start: ticks at k * seconds + offset.

    >>> Every(5400).after(datetime(2026, 1, 1, 1, tzinfo=UTC))
    datetime.datetime(2026, 1, 1, 1, 30, tzinfo=datetime.timezone.utc)

    Whole milliseconds, 100 ms or more. Raises InvalidOption.
    """

    seconds: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        given: list[tuple[str, object]] = [("every", self.seconds), ("offset", self.offset)]
        for name, value in given:
            fits = isinstance(value, int | float) and isfinite(value) and abs(value * 1000 - _millis(value)) < 1e-3
            if not fits:
                raise InvalidOption(f"{name}: expected whole milliseconds, got {value!r} seconds")
        if not 100 <= _millis(self.seconds) <= _YEARS * 366 * DAY * 1000:
            raise InvalidOption(
                f"every: expected between 100ms and {_YEARS} years, got {self.seconds!r} seconds; for continuous work, "
                "let each job enqueue the next one"
            )
        if not 0 <= _millis(self.offset) < _millis(self.seconds):
            raise InvalidOption(f"offset: expected less than the interval {self.seconds!r} s, got {self.offset!r} s")
        object.__setattr__(self, "seconds", _millis(self.seconds) / 1000)
        object.__setattr__(self, "offset", _millis(self.offset) / 1000)

    def __str__(self) -> str:
        return f"every {_exact(self.seconds)}" + (f" offset {_exact(self.offset)}" if self.offset else "")

    def after(self, instant: datetime) -> datetime | None:
        """The first tick strictly after."""
        return self._tick(self._index(instant) + 1)

    def upto(self, instant: datetime) -> datetime | None:
        """The last tick at or before."""
        return self._tick(self._index(instant))

    def nearest(self, instant: datetime) -> datetime | None:
        """The tick closest to that instant, before or after; of two equally close ones, the earlier."""
        return _nearest(self, instant)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks with after < tick <= until, one by one."""
        for index in range(self._index(after) + 1, self._index(until) + 1):
            tick = self._tick(index)
            if tick is not None:
                yield tick

    def count(self, after: datetime, until: datetime, most: int) -> int:
        """How many ticks `between` has, capped at `most`. Takes constant time."""
        return max(0, min(most, self._index(until) - self._index(after)))

    def local(self, tick: datetime) -> datetime:
        """The tick in UTC: an interval has no time zone."""
        return tick.astimezone(UTC)

    def _index(self, instant: datetime) -> int:
        epoch_seconds(instant)
        return ((instant - _EPOCH) // _MICROSECOND - _millis(self.offset) * 1000) // (_millis(self.seconds) * 1000)

    def _tick(self, index: int) -> datetime | None:
        try:
            return _EPOCH + timedelta(milliseconds=index * _millis(self.seconds) + _millis(self.offset))
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class Several:
    """Cron expressions of one time zone, each of whose ticks counts once, without those on some dates of that zone.

    >>> work = rule("0 6 * * MON-FRI | 0 10 * * SAT", except_dates=[date(2026, 12, 25)])
    >>> str(work)
    '0 6 * * MON-FRI | 0 10 * * SAT except 2026-12-25'
    """

    crons: tuple[Cron, ...]
    dates: tuple[date, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.crons) <= _MOST_CRONS or len(self.dates) > _MOST_DATES:
            raise InvalidOption(
                f"cron: expected at most {_MOST_CRONS} expressions and {_MOST_DATES:,} dates, "
                f"got {len(self.crons)} and {len(self.dates):,}"
            )
        object.__setattr__(self, "dates", tuple(sorted(set(self.dates))))

    def __str__(self) -> str:
        dates = f" except {','.join(each.isoformat() for each in self.dates)}" if self.dates else ""
        return " | ".join(map(str, self.crons)) + dates

    @property
    def tz(self) -> str:
        return self.crons[0].tz

    def after(self, instant: datetime) -> datetime | None:
        """The first tick strictly after."""
        while True:
            tick = min((tick for each in self.crons if (tick := each.after(instant))), default=None)
            if tick is None or (day := self.local(tick).date()) not in self.dates:
                return tick
            instant = max(tick, self._begin(day + timedelta(days=1)) - _MICROSECOND)

    def upto(self, instant: datetime) -> datetime | None:
        """The last tick at or before."""
        while True:
            tick = max((tick for each in self.crons if (tick := each.upto(instant))), default=None)
            if tick is None or (day := self.local(tick).date()) not in self.dates:
                return tick
            instant = min(tick, self._begin(day)) - _MICROSECOND

    def _begin(self, day: date) -> datetime:
        """When this date begins in the zone."""
        return datetime.combine(day, time(), zone_of(self.tz)).astimezone(UTC)

    def nearest(self, instant: datetime) -> datetime | None:
        """The tick closest to that instant, before or after; of two equally close ones, the earlier."""
        return _nearest(self, instant)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """The ticks with after < tick <= until, one by one."""
        tick = self.after(after)
        while tick is not None and tick <= until:
            yield tick
            tick = self.after(tick)

    def count(self, after: datetime, until: datetime, most: int) -> int:
        """How many ticks `between` has, counting no further than `most`."""
        return sum(1 for _ in islice(self.between(after, until), most))

    def local(self, tick: datetime) -> datetime:
        """The tick in the wall time of its zone."""
        return self.crons[0].local(tick)


Rule = Cron | Several | Every


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


def _exact(seconds: float) -> str:
    rest = _millis(seconds)
    spelt = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        spelt += f"{count}{unit}" if count else ""
    return spelt


def rule(
    cron: str | None = None,
    *,
    every: Duration | None = None,
    tz: str = "UTC",
    dst: Dst = "debian",
    except_dates: Iterable[date] = (),
) -> Rule:
    """The rule of a schedule, from exactly one of a cron expression and an interval.

    >>> rule("0 6 * * *", tz="Europe/Paris"), rule(every="1h30m")
    (Cron(expression='0 6 * * *', tz='Europe/Paris', dst='debian'), Every(seconds=5400.0, offset=0.0))
    """
    if (cron is None) == (every is None):
        raise InvalidOption(f'expected either a cron expression or every="…", got cron={cron!r}, every={every!r}')
    if not isinstance(except_dates, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"except_dates: expected dates like [date(2026, 12, 25)], got {except_dates!r}")
    dates = tuple(except_dates)
    found = Every(durations.seconds(every, "every")) if cron is None else _of_text(cron, tz, dst)
    if not dates:
        return found
    if isinstance(found, Every):
        raise InvalidOption("except_dates: an interval has no dates: write a cron expression")
    for each in dates:
        if type(each) is not date:
            raise InvalidOption(f"except_dates: expected dates like date(2026, 12, 25), got {each!r}")
    return Several((found,), dates) if isinstance(found, Cron) else Several(found.crons, (*found.dates, *dates))


def _of_text(text: object, tz: str, dst: Dst) -> Rule:
    """One expression, or several with `|` between them; then `except` and dates. `@every 5m` is an interval."""
    if not isinstance(text, str):
        raise InvalidOption(f'cron: expected an expression like "0 6 * * *", got {text!r}')
    if text.isprintable() and (found := re.fullmatch(r"@every\s+(\S+)", text.strip(), re.IGNORECASE)):
        return Every(durations.seconds(found[1].lower(), "@every"))
    head, *tails = re.split(r"\bexcept\b", text, flags=re.IGNORECASE)
    crons = tuple(Cron(each, tz, dst) for each in head.split("|"))
    if not tails and len(crons) == 1:
        return crons[0]
    return Several(crons, tuple(_date(each) for tail in tails for each in tail.replace(",", " ").split() or [tail]))


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidOption(f"cron: expected dates like 2026-12-25 after except, got {text[:80]!r}") from None


def read(spec: str, tz: str = "UTC", dst: Dst = "debian") -> Rule:
    """The rule that `str(rule)` wrote: `every 1h30m`, or cron expressions.

    >>> str(read("every 90s"))
    'every 1m30s'
    """
    words = spec.lower().split() if spec.isprintable() else []
    match words:
        case ["every", every]:
            return Every(durations.seconds(every, "every"))
        case ["every", every, "offset", offset]:
            return Every(durations.seconds(every, "every"), durations.seconds(offset, "offset"))
        case _:
            return _of_text(spec, tz, dst)
