"""Who did what: a trail of every operator's action, in the store itself, beside what it was done to.

An entry is written before the action, and again with what came of it: one that stays "asked" was cut short.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from tenure.core.ids import canonical, new_id
from tenure.errors import InvalidOption, StoreError
from tenure.ports import Store

KEEP_SECONDS = 90 * 86_400.0
_DAYS = 92  #: that are looked through, each by its own notes
_FIRST_YEAR = 1971
_PREFIX = "audit:"


@dataclass(frozen=True, slots=True)
class Entry:
    """One action. `who` is `NAME` of a token, `user@host` of a command line; `outcome` is for people."""

    id: str
    at: datetime
    who: str
    action: str  #: "jobs.replay", "queue.pause", "schedule.trigger"
    subject: str  #: the job, queue or schedule; of a bulk action the filter
    detail: Mapping[str, str] = field(default_factory=dict[str, str])
    outcome: str = "asked"


class Entries(NamedTuple):
    """A page of the trail. `cursor` goes on with what was done before; None: that was all."""

    entries: tuple[Entry, ...]
    cursor: str | None


class Trail:
    """The trail of a store. Example: `with trail.recorded("ada", "queue.pause", "reports"): store.pause(…)`"""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def recorded(self, who: str, action: str, subject: str, **detail: str) -> Generator[list[str]]:
        """What is appended to the list is the outcome; an exception is one, too."""
        entry = Entry(new_id(), self._store.now(), who, action, subject, detail)
        said = list[str]()
        text = self._write(entry, None)
        try:
            yield said
        except BaseException as error:
            outcome = f"failed: {error}" if isinstance(error, Exception) else "cut short"
            with suppress(StoreError):  # it is away now, say: the entry stays "asked"
                self._write(replace(entry, outcome=outcome), text)
            raise
        self._write(replace(entry, outcome="; ".join(said) or "done"), text)

    def entries(self, *, limit: int = 100, cursor: str | None = None) -> Entries:
        """The newest first. Raises InvalidOption."""
        day, last = _read_cursor(cursor) if cursor else (self._store.now(), "")
        found = list[Entry]()
        for back in range(_DAYS):
            texts = self._store.notes(_of_day(day - timedelta(days=back))).values()
            read = sorted(map(_decode, texts), key=lambda each: each.id, reverse=True)
            found += [each for each in read if back or not last or each.id < last]
            if len(found) > limit:
                return Entries(tuple(found[:limit]), f"{found[limit - 1].at:%Y-%m-%d}:{found[limit - 1].id}")
        return Entries(tuple(found), None)

    def _write(self, entry: Entry, old: str | None) -> str:
        new = msgspec.json.encode(entry).decode()
        self._store.swap(_of_day(entry.at) + entry.id, old, new, ttl=KEEP_SECONDS)
        return new


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    day, _, last = cursor.partition(":")
    try:
        at = datetime.strptime(day, "%Y-%m-%d")
        if at.year < _FIRST_YEAR:
            raise ValueError
        return at, canonical(last)
    except (ValueError, InvalidOption):
        raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one") from None


def _of_day(at: datetime) -> str:
    return f"{_PREFIX}{at:%Y-%m-%d}:"


_decode = msgspec.json.Decoder(Entry).decode
