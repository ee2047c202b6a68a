"""The keys of limits as they are used now: the most waited-for first, their sums by limit, who paused one.

No store keeps them in the order in which they are waited for, so a bounded number of them is read: the first by name,
and those of the jobs that have waited longest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import NamedTuple

import msgspec

from tenure.core.durations import spell
from tenure.core.limits import Bounds, Rate
from tenure.ports import FOREVER, KeyView, LimitRow, Store

MOST_LOOKED_AT = 2_000  #: keys, by name
MOST_JOBS = 50  #: those that have waited longest: their keys are looked at too
SET, PAUSED = "limit.set:", "limit.pause:"
SNOOZED = "a job snoozed it"  #: the reason that stores write for a pause which no operator made


@dataclass(frozen=True, slots=True)
class By:
    """Who changed it last, and when."""

    who: str
    at: datetime


class Sum(NamedTuple):
    """The keys of one limit, together."""

    keys: int = 0
    held: int = 0
    waiting: int = 0
    paused: int = 0  #: keys

    def plus(self, key: KeyView) -> Sum:
        paused = key.paused_until is not None
        return Sum(self.keys + 1, self.held + key.held, self.waiting + key.waiting, self.paused + paused)


@dataclass(frozen=True, slots=True)
class Usage:
    """The keys that are known now. `complete`: there are no others than these."""

    keys: tuple[KeyView, ...]  #: the most waited-for first
    oldest: Mapping[str, datetime]  #: since when a key's oldest job waits, of the fifty that have waited longest
    complete: bool
    at: datetime  #: when they were read

    @property
    def sums(self) -> dict[str, Sum]:
        """By limit."""
        found: dict[str, Sum] = defaultdict(Sum)
        for key in self.keys:
            found[key.limit] = found[key.limit].plus(key)
        return dict(found)


class Paused(NamedTuple):
    """The pause of a key. `name`: what to resume, the key or its whole limit; `by` None: one of its jobs snoozed it."""

    name: str
    until: float
    why: str
    by: By | None

    @property
    def until_at(self) -> datetime | None:
        """None: it lasts until it is resumed."""
        return None if self.until >= FOREVER else datetime.fromtimestamp(self.until, UTC)

    def told(self, now: datetime) -> str:
        """Until when, by whom and why: "for 2m more by ada: too many 429"."""
        at = self.until_at
        until = "until somebody resumes it" if at is None else f"for {spell(max(0.0, (at - now).total_seconds()))} more"
        return f"{until}{f' by {self.by.who}' if self.by else ''}{f': {self.why}' if self.why else ''}"


def usage(store: Store, limit: str | None = None) -> Usage:
    """The keys of one limit, or of all: at most the first 2,000 by name, and those that were waited for longest.

    Example: `usage(store).keys[:20]`, the twenty most waited-for
    """
    longest = [job for job in store.waited_longest(limit=MOST_JOBS) if job.parked is not None]
    oldest: dict[str, datetime] = {}
    for job in longest:
        oldest.setdefault(str(job.parked), job.run_at)
    found = store.keys(limited_by=limit, limit=MOST_LOOKED_AT + 1)
    complete = len(found) <= MOST_LOOKED_AT
    found = found[:MOST_LOOKED_AT]
    if not complete and (others := oldest.keys() - {key.key for key in found}):
        found += store.keys(others, limited_by=limit, limit=len(others))
    return Usage(tuple(sorted(found, key=_order)), oldest, complete, store.now())


def _order(key: KeyView) -> tuple[int, bool, int, str]:
    return -key.waiting, key.paused_until is None, -key.held, key.key


def oldest_of(store: Store, found: Usage, keys: Iterable[KeyView]) -> dict[str, datetime]:
    """Since when the oldest job waits for each of these keys: the one that gets the next place, or one of the fifty."""
    since: dict[str, datetime] = {}
    for key in keys:
        jobs = [job.run_at for job in store.parked(key.key, limit=1)] if key.waiting else []
        if known := [*jobs, *filter(None, [found.oldest.get(key.key)])]:
            since[key.key] = min(known)
    return since


def pause_of(store: Store, key: KeyView) -> Paused | None:
    """What pauses a key, the longer one of its own pause and that of its limit; None: it is not paused."""
    if key.paused_until is None:
        return None
    rows = [*store.limits([key.key], keys=True), *store.limits([key.limit])]
    row = max(rows, key=lambda row: row.paused_until or 0.0, default=LimitRow(name=key.key, key=True))
    by = None if key.why == SNOOZED else note_of(store, PAUSED, row.name, key=row.key)
    return Paused(row.name, key.paused_until, key.why, by)


def about(name: str, *, key: bool) -> str:
    """The end of the note about who changed a key, or a limit."""
    return f"{'key' if key else 'limit'}:{name}"


def note_of(store: Store, kind: str, name: str, *, key: bool) -> By | None:
    return notes_of(store, kind, about(name, key=key)).get(about(name, key=key))


def notes_of(store: Store, kind: str, begins: str = "limit:") -> dict[str, By]:
    """Who changed what, by `about`."""
    texts = store.notes(kind + begins).items()
    return {note.removeprefix(kind): _decode(text) for note, text in texts}


def allowed(bounds: Bounds) -> str:
    """What bounds allow, in words.

    >>> allowed(Bounds(2, Rate(100, 60.0, 10)))
    '2 at a time; 100 in 1m, 10 at once'
    """
    parts = [] if bounds.concurrency is None else [f"{bounds.concurrency:,} at a time"]
    if bounds.rate is not None:
        parts.append(allowed_rate(bounds.rate))
    return "; ".join(parts) or "any number"


def allowed_rate(rate: Rate) -> str:
    """Example: `allowed_rate(Rate(100, 60.0, 10))`, which is "100 in 1m, 10 at once"."""
    return f"{rate.most:,} in {spell(rate.period)}, {rate.burst:,} at once"


def held_of(key: KeyView) -> str:
    """How many of its places are held: "2 of 3"; "2", if their number is not limited."""
    most = key.bounds.concurrency
    return f"{key.held:,}" if most is None else f"{key.held:,} of {most:,}"


def next_of(key: KeyView) -> str:
    """When its next token comes: "now", "in 400ms"; empty: it has no rate, no free place, or is paused."""
    if key.next_token is None:
        return ""
    return "now" if key.next_token == 0 else f"in {spell(key.next_token)}"


def command(verb: str, name: str) -> str:
    """As a shell takes it.

    >>> command("resume", "shop:{shop}")
    "tenure limits resume 'shop:{shop}'"
    """
    return f"tenure limits {verb} {quote(name)}"


def most_waited(keys: Iterable[KeyView], number: int) -> list[KeyView]:
    """Of keys in the order of `usage`, the first ones that jobs wait for or that are paused."""
    return [key for key in keys if key.waiting or key.paused_until is not None][:number]


_decode = msgspec.json.Decoder(By).decode
