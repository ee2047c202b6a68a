"""When each job of a replay is due, at a given number a minute. No process has to stay: the store keeps them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256

from tenure.core.ids import new_id
from tenure.errors import InvalidOption, StoreBusy
from tenure.ports import Filter, Store

MOST_A_MINUTE = 60_000
_PREFIX = "pace:"
_TRIES = 100


class Pace:
    """The moments at which jobs of one replay are due. Example: `Pace(store, 60, where).take(22)`, delays in seconds.

    The next free moment of a filter is a note in the store: a replay that was cut short goes on behind the jobs that it
    has placed, and two at the same time share the minutes. A replay with another number a minute begins now: the former
    pace was a mistake. `last` is when the last of the jobs is due.
    """

    def __init__(self, store: Store, per_minute: int, where: Filter | None = None) -> None:
        if not 1 <= per_minute <= MOST_A_MINUTE:
            raise InvalidOption(f"per minute: expected 1 to {MOST_A_MINUTE:,} jobs a minute, got {per_minute:,}")
        self.per_minute, self.last = per_minute, store.now()
        self._store, self._step = store, timedelta(minutes=1) / per_minute
        self._free: datetime | None = None
        self._key = ""
        if where is not None:
            # Without times, which differ at each call: a page adds that of its count, and an age is counted from now.
            same = replace(where, enqueued_since=None, enqueued_until=None, ended_since=None, ended_until=None)
            self._key = (
                _PREFIX
                + sha256(repr((sorted(same.states), replace(same, states=frozenset()))).encode()).hexdigest()[:16]
            )

    def take(self, count: int) -> list[float]:
        """Seconds until each of the next `count` jobs is due; 0.0: at once. No other replay gets these moments."""
        now = self._store.now()
        first = self._taken(now, count) if self._key else max(now, self._free or now)
        self._free, self.last = first + count * self._step, first + (count - 1) * self._step
        return [(first - now + number * self._step).total_seconds() for number in range(count)]

    def _taken(self, now: datetime, count: int) -> datetime:
        """The first free moment, if the note could be moved behind the last one."""
        for _ in range(_TRIES):
            old = self._store.notes(self._key).get(self._key)
            until, pace, *_ = [*(old or "").split(" "), ""]
            first = max(now, datetime.fromisoformat(until)) if pace == str(self.per_minute) else now
            free = first + count * self._step
            ttl = (free - now).total_seconds()
            if self._store.swap(self._key, old, f"{free.isoformat()} {self.per_minute} {new_id()}", ttl=ttl).landed:
                return first
        raise StoreBusy(f"{self._store.url}: many replays of the same jobs are under way; try again")
