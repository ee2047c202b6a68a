"""One grammar for durations, everywhere: `500ms 90s 5m 1h30m 7d 2w`, or a timedelta. A bare number is refused."""

from __future__ import annotations

import re
from datetime import timedelta
from math import isfinite

from tenure.errors import InvalidOption

Duration = timedelta | str
#: Of a time that somebody gives: with others, a zone or a duration leads out of what a datetime can be.
YEARS = range(1971, 9000)

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_WHOLE = re.compile(r"(?:(?:\d+(?:\.\d+)?)(?:w|d|h|ms|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(w|d|h|ms|m|s)", re.ASCII)
_LONGEST = 100 * 365 * 86_400.0


def seconds(value: object, name: str = "duration") -> float:
    """The duration in seconds.

    >>> seconds("1h30m"), seconds("500ms"), seconds(timedelta(minutes=2))
    (5400.0, 0.5, 120.0)

    Raises InvalidOption for a bare number, an unknown unit, a negative duration or one over 100 years.
    """
    if isinstance(value, timedelta):
        total = value.total_seconds()
    elif isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    elif _is_number(value):
        raise InvalidOption(f'{name}: {value!r} has no unit; write "{value}s", "{value}m" or "{value}ms"')
    else:
        raise InvalidOption(f"{name}: expected a duration like 500ms 90s 5m 1h30m 7d 2w, got {value!r}")
    if not 0.0 <= total <= _LONGEST:
        raise InvalidOption(f"{name}: expected between 0s and 100 years, got {value!r}")
    return total


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value.strip().replace(".", "", 1).isdigit()
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def spell(value: float) -> str:
    """A number of seconds as people write it, in at most two units.

    >>> spell(5400), spell(0.25), spell(42.35), spell(90061)
    ('1h30m', '250ms', '42.4s', '1d1h')
    """
    if value < 0:
        return "-" + spell(-value)
    if value < 1:
        return f"{round(value * 1000)}ms"
    if value < 60:
        return f"{value:.1f}".rstrip("0").rstrip(".") + "s"
    whole = round(value)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
        elif parts:
            break
    return "".join(parts[:2])
