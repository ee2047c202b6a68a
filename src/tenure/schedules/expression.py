"""Cron expressions: their fields as sets of numbers, and which days match. It knows no time zone and no clock.

An expression has one written form, in which the notations of other crons become the common ones: `FRI-MON` is
`FRI-SAT,SUN-MON`, `?` is `*`, `25-L` is `25-31`, `MONL` is `1L`. It is stored in that form, so releases that lack these
notations can read it too. `15W` and `L-3` have no such form: `ports.schedules` marks these rules for older releases.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}
FIELDS = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L, L-3, LW or 15W",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT (0 and 7 are Sunday), 5L, MON#2",
}
DAYS_IN_MONTH = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DAY, _WEEKDAY = "day-of-month", "day-of-week"
_LAST = -1
_NAMES = {
    "month": ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
    _WEEKDAY: ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"),
}
_BOUNDS = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), _DAY: (1, 31), "month": (1, 12), _WEEKDAY: (0, 7)}


class BadField(ValueError):
    """A field that can't be read: its name, and its text."""

    def __init__(self, name: str, part: str) -> None:
        super().__init__(f"bad {name} {part!r}")
        self.name, self.part = name, part


class OneValueStep(BadField):
    """`5-5/2`: other crons read it as 5, 7, 9 and so on, while the range itself means only 5. So it is refused."""

    def __init__(self, name: str, part: str, begin: str, step: str) -> None:
        super().__init__(name, part)
        last = f"{_BOUNDS[name][1]}"
        steps = "" if begin == last else f", or {begin}-{last}/{int(step)} for steps up to the end"
        self.meant = f"{begin} for one value{steps}"


class _Read(NamedTuple):
    """A term of a field: its numbers, how it is written, and its special days as in `Expression`."""

    numbers: frozenset[int]
    written: str
    from_end: frozenset[int] = frozenset()
    nearest: frozenset[int] = frozenset()
    nth: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Expression:
    """`Expression.read("0 6 * * MON-FRI").on(date(2026, 1, 5))` is True: it is a Monday. Raises BadField, ValueError.

    `days` and `weekdays` are the plain numbers, 7 and 0 both Sunday; `nth` the weekdays of a month, -1 for the last.
    """

    parts: Sequence[str]  #: six fields; the first is "0" if five were given
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    from_end: frozenset[int]  #: 0 for L, 3 for L-3
    nearest: frozenset[int]  #: 15 for 15W, 0 for LW
    nth: frozenset[tuple[int, int]]
    day_and: bool  #: both days have to match, as one of the fields starts with a star; else one of them has to
    written: str

    @classmethod
    def read(cls, text: str) -> Expression:
        given = text.split()
        if len(given) not in (5, 6):
            raise ValueError("expected 5 or 6 fields")
        fields = dict(zip(FIELDS, given if len(given) == 6 else ["0", *given], strict=True))
        terms = {name: _terms(name, part) for name, part in fields.items()}
        parts = [",".join(term.written for term in each) for each in terms.values()]
        numbers = {name: frozenset[int]().union(*(term.numbers for term in each)) for name, each in terms.items()}
        return cls(
            parts,
            numbers["second"],
            numbers["minute"],
            numbers["hour"],
            numbers[_DAY],
            numbers["month"],
            numbers[_WEEKDAY],
            from_end=frozenset[int]().union(*(term.from_end for term in terms[_DAY])),
            nearest=frozenset[int]().union(*(term.nearest for term in terms[_DAY])),
            nth=frozenset[tuple[int, int]]().union(*(term.nth for term in terms[_WEEKDAY])),
            day_and=parts[3].startswith("*") or parts[5].startswith("*"),
            written=" ".join(parts[-len(given) :]),
        )

    def on(self, day: date) -> bool:
        """Does this date match?"""
        if day.month not in self.months:
            return False
        if self.day_and:
            return self._of_month(day) and self._of_week(day)
        return self._of_month(day) or self._of_week(day)

    def _of_month(self, day: date) -> bool:
        if day.day in self.days:
            return True
        if not self.from_end and not self.nearest:
            return False
        last = monthrange(day.year, day.month)[1]
        near = any(_workday(day, each or last, last) == day.day for each in self.nearest)
        return near or last - day.day in self.from_end

    def _of_week(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if weekday in self.weekdays or (weekday == 0 and 7 in self.weekdays):
            return True
        if not self.nth:
            return False
        nth = (day.day + 6) // 7
        last = day.day + 7 > monthrange(day.year, day.month)[1]
        return (weekday, nth) in self.nth or (last and (weekday, _LAST) in self.nth)


def _workday(month: date, number: int, last: int) -> int:
    """The day from Monday to Friday nearest to this day of the month, within the month; 0 if it has no such day."""
    if number > last:
        return 0
    weekday = month.replace(day=number).isoweekday()
    if weekday == 6:
        return number - 1 if number > 1 else number + 2
    if weekday == 7:
        return number + 1 if number < last else number - 2
    return number


# ── Terms ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _terms(name: str, part: str) -> list[_Read]:
    if part == "?" and name in (_DAY, _WEEKDAY):
        part = "*"
    return [_term(name, part, text) for text in part.split(",")]


def _term(name: str, part: str, text: str) -> _Read:
    if name == _DAY and (special := _special_day(part, text)):
        return special
    if name == _WEEKDAY and (special := _special_weekday(part, text)):
        return special
    span, slash, step_text = text.partition("/")
    step = _digits(name, part, step_text) if slash else 1
    if step == 0:
        raise BadField(name, part)
    low, high = _BOUNDS[name]
    if span == "*":
        return _Read(frozenset(range(low, high + 1)[::step]), text)
    begin, dash, end = span.partition("-")
    first = _value(name, part, begin)
    if not dash:
        return _Read(frozenset(range(first, high + 1)[::step]) if slash else frozenset([first]), text)
    if name == _DAY and end == "L":
        text, end = f"{begin}-31{slash}{step_text}", "31"
    last = _value(name, part, end)
    if slash and last == first:
        raise OneValueStep(name, part, begin, step_text)
    if last >= first:
        return _Read(frozenset(range(first, last + 1)[::step]), text)
    return _wrapped(name, begin, end, [first, last], step)


def _wrapped(name: str, begin: str, end: str, bounds: Sequence[int], step: int) -> _Read:
    """A range beyond the end of its cycle, such as FRI-MON: two rising ranges, or with a step a list."""
    first, last = bounds
    low, high = _BOUNDS[name]
    high = 6 if name == _WEEKDAY else high
    cycle = [*range(first, high + 1), *range(low, last + 1)]  # of a weekday 7 no day is left before 0
    if step > 1:
        return _Read(frozenset(cycle[::step]), ",".join(map(str, cycle[::step])))
    names = _NAMES.get(name, ()) if begin.isalpha() and end.isalpha() else ()
    ends = (names[-1], names[0]) if names else (str(high), str(low))
    spans = [(begin, ends[0], first, high), (ends[1], end, low, last)]
    written = ",".join(one if a == b else f"{one}-{two}" for one, two, a, b in spans if a <= b)
    return _Read(frozenset(cycle), written)


def _special_day(part: str, text: str) -> _Read | None:
    """L, LW, L-3, 15W."""
    plain = text.partition("/")[0]  # a step after L or LW has no effect
    if plain == "L":
        return _Read(frozenset(), text, from_end=frozenset([0]))
    if plain == "LW":
        return _Read(frozenset(), text, nearest=frozenset([0]))
    if found := re.fullmatch(r"L-(\d+)", text):
        before = int(found[1])
        if not 1 <= before <= 30:
            raise BadField(_DAY, part)
        return _Read(frozenset(), text, from_end=frozenset([before]))
    if found := re.fullmatch(r"(\d+)W", text):
        return _Read(frozenset(), text, nearest=frozenset([_value(_DAY, part, found[1])]))
    return None


def _special_weekday(part: str, text: str) -> _Read | None:
    """5L, FRIL, L5, MON#2, MON-FRI#1."""
    days, mark, nth_text = text.partition("#")
    if mark:
        nth = _digits(_WEEKDAY, part, nth_text)
        if not 1 <= nth <= 5:
            raise BadField(_WEEKDAY, part)
        if "-" not in days:
            return _Read(frozenset(), text, nth=frozenset([(_value(_WEEKDAY, part, days) % 7, nth)]))
        numbers = sorted({number % 7 for number in _term(_WEEKDAY, part, days).numbers})
        written = ",".join(f"{number}#{nth}" for number in numbers)
        return _Read(frozenset(), written, nth=frozenset((number, nth) for number in numbers))
    if found := re.fullmatch(r"L([0-7])|([0-7]|[A-Z]{3})L", text):
        number = _value(_WEEKDAY, part, found[1] or found[2]) % 7
        return _Read(frozenset(), text if text[0].isdigit() else f"{number}L", nth=frozenset([(number, _LAST)]))
    return None


def _value(name: str, part: str, text: str) -> int:
    names, (low, high) = _NAMES.get(name, ()), _BOUNDS[name]
    value = names.index(text) + low if text in names else _digits(name, part, text)
    if not low <= value <= high:
        raise BadField(name, part)
    return value


def _digits(name: str, part: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadField(name, part)
    return int(text)
