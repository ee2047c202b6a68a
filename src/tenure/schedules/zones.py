"""The time zones, from the package `tzdata` only: two hosts must not disagree about a future tick.

Times are whole seconds since the epoch. A zone's wall time is the instant plus an offset, and the offset changes at
known instants.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tenure.errors import InvalidOption

DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
EARLIEST, LATEST = -62_135_424_000, 253_402_128_000  # within these every zone has a wall time
_BLOCK = 25  # zone data is looked up in blocks of 2**25 seconds, 388 days


class Change(NamedTuple):
    """A zone's clocks change at the instant `at`, from one offset to another, all in seconds."""

    at: int
    before: int
    after: int

    @property
    def last(self) -> int:
        """The wall time at the change by the old offset."""
        return self.at + self.before

    @property
    def first(self) -> int:
        """The wall time at the change by the new offset."""
        return self.at + self.after


def tzdata_version() -> str:
    """The version of the time zone data in use: that of the package `tzdata`, regardless of the host's own.

    >>> tzdata_version()
    '2026f'
    """
    with files("tzdata.zoneinfo").joinpath("tzdata.zi").open(encoding="utf-8") as data:
        return data.readline().rpartition(" ")[2].strip()


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    names = files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    return {name.lower(): name for name in names}


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    # ZoneInfo(name) would prefer the host's own files, and two hosts could disagree about a future tick.
    if name not in _names().values():
        near = [_names()[low] for low in get_close_matches(name.lower()[:100], _names(), n=3, cutoff=0.6)]
        hint = f"did you mean {' or '.join(near)}?" if near else "write a name like Europe/Paris"
        raise InvalidOption(f"tz: expected a name of the IANA time zone database, got {name!r}; {hint}")
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, key=name)


def _probe(zone: ZoneInfo, at: int) -> int:
    instant = _EPOCH + timedelta(seconds=min(max(at, EARLIEST), LATEST))
    return (instant.astimezone(zone).utcoffset() or timedelta()) // _SECOND


@lru_cache(maxsize=8192)
def _block(name: str, number: int) -> tuple[int, tuple[Change, ...]]:
    """The offset at the start of a block of time, and the changes in it."""
    zone, start, end = zone_of(name), number << _BLOCK, (number + 1) << _BLOCK
    found: list[Change] = []
    low, before = start - 1, _probe(zone, start - 1)
    first = before
    while low < end - 1:
        high = min(low + DAY, end - 1)
        after = _probe(zone, high)
        if after != before:
            while high - low > 1:
                middle = (low + high) // 2
                if _probe(zone, middle) == before:
                    low = middle
                else:
                    high = middle
            after = _probe(zone, high)
            found.append(Change(high, before, after))
        low, before = high, after
    return first, tuple(found)


def offset_at(name: str, at: int) -> int:
    offset, changes = _block(name, at >> _BLOCK)
    for change in changes:
        if change.at <= at:
            offset = change.after
    return offset


def changes_after(name: str, after: int, until: int) -> Iterator[Change]:
    """The changes with after < at <= until."""
    for number in range(after >> _BLOCK, (until >> _BLOCK) + 1):
        for change in _block(name, number)[1]:
            if after < change.at <= until:
                yield change


def changes_back(name: str, until: int, after: int) -> Iterator[Change]:
    """The changes with after < at <= until, the latest first."""
    for number in range(until >> _BLOCK, (after >> _BLOCK) - 1, -1):
        for change in reversed(_block(name, number)[1]):
            if after < change.at <= until:
                yield change
