"""The audit trail: every action of an operator, stored in the store it acted on.

An entry is written before the action and updated with its outcome: one that stays "asked" was interrupted.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from tenure.core.durations import YEARS
from tenure.core.ids import canonical, new_id
from tenure.errors import InvalidOption, StoreError
from tenure.ports import Store

KEEP_SECONDS = 90 * 86_400.0
_DAYS = 92  #: how far back entries are read; each day has its own notes
_PREFIX = "audit:"


@dataclass(frozen=True, slots=True)
class Entry:
    """One action. `who` is `NAME` of a token, `user@host` of a command line; `outcome` is for people."""

    id: str
    at: datetime
    who: str
    action: str  #: "jobs.replay", "queue.pause", "schedule.trigger"
    subject: str  #: the job, queue or schedule; for a bulk action the filter
    detail: Mapping[str, str] = field(default_factory=dict[str, str])
    outcome: str = "asked"


class Entries(NamedTuple):
    """A page of the trail. `cursor` continues with older entries; None: there are none."""

    entries: tuple[Entry, ...]
    cursor: str | None


class Trail:
    """The trail of a store. Example: `with trail.recorded("ada", "queue.pause", "reports"): store.pause(…)`"""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextmanager
    def recorded(self, who: str, action: str, subject: str, **detail: str) -> Generator[list[str]]:
        """Whatever the block appends to the list is the outcome; so is an exception."""
        entry = Entry(new_id(), self._store.now(), who, action, subject, detail)
        said = list[str]()
        text = self._write(entry, None)
        try:
            yield said
        except BaseException as error:
            outcome = f"failed: {error}" if isinstance(error, Exception) else "cut short"
            with suppress(StoreError):  # the store may be unavailable by now: the entry stays "asked"
                self._write(replace(entry, outcome=outcome), text)
            raise
        self._write(replace(entry, outcome="; ".join(said) or "done"), text)

    def entries(self, *, limit: int = 100, cursor: str | None = None) -> Entries:
        """Newest first. Raises InvalidOption."""
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
        if at.year not in YEARS:
            raise ValueError
        return at, canonical(last)
    except (ValueError, InvalidOption):
        raise InvalidOption(
            f"cursor: expected the cursor of an earlier page, got {cursor!r}; start without one"
        ) from None


def _of_day(at: datetime) -> str:
    return f"{_PREFIX}{at:%Y-%m-%d}:"


_decode = msgspec.json.Decoder(Entry).decode
