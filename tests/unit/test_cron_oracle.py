"""The oracle: every minute around every change of the clocks by Debian cron's rules, against schedules/cron.py.

Nothing here is shared with the code under test: its own parser, its own table of each zone's minutes. Per zone: three
days around every change of five years, and sixty other days; five expressions, each compared tick by tick.
"""

from __future__ import annotations

import calendar
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import pytest

from tenure.errors import InvalidOption
from tenure.schedules.cron import Cron

SEED = 20260329
PAIRS = 5
DAY = 1440
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Half-hour changes, two-hour ones, changes at midnight and across it, days that never were, zones that gave up or took
# up daylight saving, negative saving in Ramadan: the years are those in which it happened.
ODD = {
    "Australia/Lord_Howe": 2022,
    "Antarctica/Troll": 2021,
    "Pacific/Apia": 2009,
    "Pacific/Fakaofo": 2009,
    "Pacific/Kiritimati": 1992,
    "Pacific/Kwajalein": 1991,
    "Pacific/Kanton": 1992,
    "Asia/Beirut": 2022,
    "Africa/Cairo": 2021,
    "Africa/Casablanca": 2022,
    "Africa/El_Aaiun": 2017,
    "Pacific/Chatham": 2020,
    "Asia/Kathmandu": 1984,
    "America/Santiago": 2022,
    "Asia/Gaza": 2022,
    "Asia/Hebron": 2008,
    "America/Havana": 2021,
    "Asia/Pyongyang": 2014,
    "America/Caracas": 2006,
    "America/St_Johns": 2008,
    "America/Goose_Bay": 2007,
    "Antarctica/Casey": 2019,
    "Antarctica/Vostok": 2020,
    "America/Asuncion": 2021,
    "America/Scoresbysund": 2021,
    "America/Nuuk": 2021,
    "Asia/Tehran": 2019,
    "Asia/Amman": 2020,
    "Asia/Damascus": 2019,
    "Europe/Istanbul": 2013,
    "Europe/Volgograd": 2016,
    "Europe/Moscow": 2010,
    "Africa/Juba": 2018,
    "Africa/Sao_Tome": 2016,
    "America/Sao_Paulo": 2016,
    "America/Mexico_City": 2020,
    "America/New_York": 2024,
    "Europe/Paris": 2024,
    "Europe/London": 2026,
    "Europe/Dublin": 2025,
    "Pacific/Fiji": 2017,
    "Pacific/Norfolk": 2018,
    "Pacific/Easter": 2023,
    "Asia/Kolkata": 2020,
    "UTC": 2024,
}


def _zones() -> dict[str, int]:
    rng = random.Random(SEED)
    every = sorted(set(files("tzdata").joinpath("zones").read_text().split()) - set(ODD) - {"Factory"})
    return ODD | {name: rng.randrange(1980, 2035) for name in rng.sample(every, 100 - len(ODD))}


ZONES = _zones()
EVERYDAY = list(ODD)[::4]


# ── a zone's minutes ──


@dataclass(frozen=True)
class Window:
    """Minutes since 1970: the UTC ones from `start` to `end`, and what the wall clock reads at each."""

    start: int
    end: int
    walls: list[int]
    once: list[tuple[int, int]]  # (UTC, wall), without wall minutes that have already been
    gaps: list[tuple[int, int, int]]  # at this UTC minute, wall minutes from..to were jumped over


def _offset(zone: ZoneInfo, minute: int) -> int:
    offset = (EPOCH + timedelta(minutes=minute)).astimezone(zone).utcoffset()
    assert offset is not None
    assert offset.seconds % 60 == 0
    return offset // timedelta(minutes=1)


def _changes(zone: ZoneInfo, start: int, end: int) -> list[int]:
    return [
        next(minute for minute in range(low, low + 181) if _offset(zone, minute) != _offset(zone, low))
        for low in range(start, end, 180)
        if _offset(zone, low) != _offset(zone, low + 180)
    ]


def _window(zone: ZoneInfo, changes: list[int], start: int, end: int) -> Window:
    """Scan minute by minute, from two days before, like a cron daemon that was already running."""
    walls: list[int] = []
    once: list[tuple[int, int]] = []
    gaps: list[tuple[int, int, int]] = []
    minute = start - 2 * DAY
    offset = _offset(zone, minute)
    if not any(minute <= change < end for change in changes):
        walls = list(range(start + offset, end + offset))
        return Window(start, end, walls, list(zip(range(start, end), walls, strict=True)), [])
    reached = minute + offset - 1
    while minute < end:
        if minute in changes:
            offset = _offset(zone, minute)
        wall = minute + offset
        if minute >= start:
            walls.append(wall)
            if wall > reached + 1:
                gaps.append((minute, reached + 1, wall))
            if wall > reached:
                once.append((minute, wall))
        reached = max(reached, wall)
        minute += 1
    return Window(start, end, walls, once, gaps)


@lru_cache(maxsize=2)
def windows(name: str) -> list[Window]:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
        zone = ZoneInfo.from_file(data)
    start = (datetime(ZONES[name], 1, 1, tzinfo=UTC) - EPOCH) // timedelta(minutes=1)
    end = start + 5 * 365 * DAY
    changes = _changes(zone, start - 4 * DAY, end + 4 * DAY)
    rng = random.Random(f"{SEED} {name}")
    spans = [(change - 3 * DAY, change + 3 * DAY) for change in changes]
    spans += [(day, day + DAY) for day in (rng.randrange(start, end) for _ in range(60))]
    return [_window(zone, changes, *span) for span in spans]


# ── expressions, read as the manual page says ──

MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


def numbers(field: str, low: int, high: int, names: list[str], first: int) -> set[int]:
    found: set[int] = set()
    values: Sequence[int]
    for term in field.split(","):
        span, _, step = term.partition("/")
        begin, dash, end = span.partition("-")
        if span == "*":
            values = range(low, high + 1)
        else:
            a = names.index(begin) + first if begin in names else int(begin)
            b = names.index(end) + first if end in names else int(end) if dash else high if step else a
            values = range(a, b + 1)
            if b < a:  # a range that wraps, as minutes do around the hour; 7 is Sunday again, not an eighth day
                values = [*range(a, 7 if high == 7 else high + 1), *range(low, b + 1)]
        found |= set(values[:: int(step or 1)])
    return found


def day_rule(dom: str, month: str, dow: str) -> Callable[[date], bool]:
    months = numbers(month, 1, 12, MONTHS, 1)

    def by_dom(day: date) -> bool:
        last = calendar.monthrange(day.year, day.month)[1]
        for term in dom.split(","):
            if term == "L":
                hit = day.day == last
            elif term.startswith("L-"):
                hit = day.day == last - int(term[2:])
            elif term[0].isdigit() and term.endswith("W"):
                wanted = int(term[:-1])
                near = [(abs(d - wanted), d) for d in range(1, last + 1) if date(day.year, day.month, d).weekday() < 5]
                hit = wanted <= last and day.day == min(near)[1]
            elif term == "LW":
                working = [d for d in range(1, last + 1) if date(day.year, day.month, d).weekday() < 5]
                hit = day.day == working[-1]
            else:
                hit = day.day in numbers(term, 1, 31, [], 0)
            if hit:
                return True
        return False

    def by_dow(day: date) -> bool:
        last = calendar.monthrange(day.year, day.month)[1]
        for term in dow.split(","):
            name, mark, nth = term.partition("#")
            if mark:
                hit = next(iter(numbers(name, 0, 7, DAYS, 0))) % 7 == day.isoweekday() % 7 and int(nth) == -(
                    -day.day // 7
                )
            elif term.endswith("L"):
                hit = int(term[:-1]) % 7 == day.isoweekday() % 7 and day.day > last - 7
            else:
                hit = day.isoweekday() % 7 in {number % 7 for number in numbers(term, 0, 7, DAYS, 0)}
            if hit:
                return True
        return False

    both = dom.startswith("*") or dow.startswith("*")
    return lambda day: day.month in months and (by_dom(day) and by_dow(day) if both else by_dom(day) or by_dow(day))


class Oracle:
    def __init__(self, expression: str, run_once: bool) -> None:
        minute, hour, dom, month, dow = expression.split()
        minutes, hours = numbers(minute, 0, 59, [], 0), numbers(hour, 0, 23, [], 0)
        self.of_day = [m // 60 in hours and m % 60 in minutes for m in range(DAY)]
        self.on = lru_cache(maxsize=None)(day_rule(dom, month, dow))
        self.fixed = minute[0] != "*" and hour[0] != "*"
        self.run_once = run_once

    def comes(self) -> bool:
        return any(self.on(date(2000, 1, 1) + timedelta(days=day)) for day in range(50 * 366))

    def matches(self, wall: int) -> bool:
        return self.of_day[wall % DAY] and self.on(date(1970, 1, 1) + timedelta(days=wall // DAY))

    def ticks(self, window: Window) -> list[int]:
        of_day = self.of_day
        if self.fixed:
            found = {at for at, wall in window.once if of_day[wall % DAY] and self.matches(wall)}
        else:
            found = {
                at for at, wall in enumerate(window.walls, window.start) if of_day[wall % DAY] and self.matches(wall)
            }
        for at, begin, end in window.gaps:
            jumped = [wall for wall in range(begin, end) if self.matches(wall)]
            days = {wall // DAY for wall in jumped} if self.run_once else set[int]()
            whole = any(
                begin <= wall < end
                for day in days
                if all(begin <= w < end for w in range(day * DAY, day * DAY + DAY) if self.matches(w))
                for wall in jumped
            )
            if jumped and (self.fixed or whole):
                found.add(at)
        return sorted(found)


# ── random expressions, weighted towards the hours at which clocks change ──


def expression(rng: random.Random) -> str:
    night = [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 22, 23, 23]

    def values(pool: list[int], most: int) -> str:
        return ",".join(str(v) for v in sorted({rng.choice(pool) for _ in range(rng.randint(1, most))}))

    def span(low: int, high: int, step: str = "") -> str:
        begin = rng.randint(low, high)
        end = rng.randint(begin, high)
        return f"{begin}-{end}{step if end > begin else ''}"

    minute = rng.choices(
        ["*", f"*/{rng.randint(2, 70)}", values(list(range(60)), 3), "0", "30", span(0, 59, f"/{rng.randint(2, 20)}"),
         f"{rng.randint(0, 30)}/{rng.randint(7, 30)}", f"*,{rng.randint(0, 59)}"],
        [1, 8, 10, 8, 8, 4, 4, 1],
    )[0]  # fmt: skip
    hour = rng.choices(
        ["*", f"*/{rng.randint(2, 26)}", values(night, 4), str(rng.choice(night)), "0-3", span(0, 23),
         span(0, 23, f"/{rng.randint(1, 9)}"), f"{rng.randint(0, 4)}/{rng.randint(2, 9)}", "22-3", "23-4/2"],
        [4, 6, 12, 16, 4, 4, 3, 3, 3, 2],
    )[0]  # fmt: skip
    dom = rng.choices(
        ["*", f"*/{rng.randint(2, 20)}", values(list(range(1, 32)), 5), span(1, 31), "L", "LW", "1,L", "1W,15W", "L-2"],
        [24, 3, 5, 4, 1, 1, 1, 1, 1],
    )[0]
    month = rng.choices(["*", "*/2", "MAR-OCT", span(1, 12), "jan,apr,NOV", "3/4"], [24, 1, 2, 2, 1, 1])[0]
    dow = rng.choices(
        [
            "*",
            "*/2",
            "SUN",
            "5-7",
            "mon-fri",
            values(list(range(8)), 3),
            "SUN#2",
            "7#5",
            "0L",
            "SAT,1#1",
            "*/3",
            "SAT-MON",
        ],
        [24, 1, 3, 2, 2, 2, 2, 1, 2, 1, 1, 2],
    )[0]
    return f"{minute} {hour} {dom} {month} {dow}"


def instant(minute: float) -> datetime:
    return EPOCH + timedelta(minutes=minute)


def label(at: int, cron: Cron) -> str:
    return f"{instant(at):%Y-%m-%dT%H:%MZ} = {cron.local(instant(at)).isoformat()}"


def test_a_hundred_zones_are_compared_and_the_odd_ones_are_among_them() -> None:
    assert len(ZONES) == 100
    assert all(any(window.gaps for window in windows(name)) for name in ("Asia/Beirut", "Pacific/Apia"))


@pytest.mark.parametrize(
    "name", [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.thorough) for name in ZONES]
)
def test_every_tick_is_the_one_debian_cron_would_run(name: str) -> None:
    for number in range(PAIRS):
        seed = f"{SEED} {name} {number}"
        rng = random.Random(seed)
        spec = expression(rng)
        while not Oracle(spec.upper(), False).comes():
            with pytest.raises(InvalidOption, match="expected a date that exists"):
                Cron(spec, name)
            spec = expression(rng)
        run_once = rng.random() < 0.3
        cron = Cron(spec, name, "run_once" if run_once else "debian")
        oracle = Oracle(spec.upper(), run_once)

        for window in windows(name):
            expected = oracle.ticks(window)
            got = [
                (tick - EPOCH) // timedelta(minutes=1)
                for tick in cron.between(instant(window.start - 0.5), instant(window.end - 0.5))
            ]
            odd = [label(at, cron) for at in sorted(set(got) ^ set(expected))]
            assert got == expected, f"seed {seed!r}: {cron!r} differs at {odd[:5]}"

            middle = (window.start + window.end) // 2  # where clocks change, if they do
            asked = rng.sample(range(window.start, window.end), 2) + rng.sample(range(middle - 90, middle + 90), 4)
            for at in asked + rng.sample(expected, min(2, len(expected))):
                place = bisect_right(expected, at)
                where = f"seed {seed!r}: {cron!r} at {label(at, cron)}"
                if place:
                    assert cron.upto(instant(at)) == instant(expected[place - 1]), f"{where}: upto"
                if place < len(expected):
                    assert cron.after(instant(at)) == instant(expected[place]), f"{where}: after"
