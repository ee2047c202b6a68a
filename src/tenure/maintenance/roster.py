"""The roster: every duty of a loop gets its turn, the earliest due first.

A turn is one call with a bounded batch. What is left after a full batch is due at once, but behind the duties that are
due already: no duty works until nothing is left while another one waits. A duty that fails is retried later, alone.

    roster = Roster([Row("prune", prune, period=60.0, batch=1000)], answers=store.paused)
    pause = roster.step()  # does one turn, if one is due; the seconds until the next one
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import random
from threading import Lock
from typing import NamedTuple

from tenure.core.durations import spell
from tenure.core.logs import logger
from tenure.errors import StoreError, TenureError
from tenure.maintenance.holder import RETRY_SECONDS

_log = logger("tenure.maintenance")
BUDGET_SECONDS = 0.1
LEAST = 16  #: a slow batch shrinks at most by this factor: where each call is slow, a smaller one is no faster
SHARE = 4.0  #: after a failure that took a second, the duty leaves the loop to the others for at least four


class Turn(NamedTuple):
    """What a turn left to do. `more`: the batch was full. `next_due`: seconds until there is something to do."""

    more: bool = False
    next_due: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A duty. `turn` does one batch, of the size it is given at most; times are seconds."""

    name: str
    turn: Callable[[int], Turn]
    period: float  #: between two turns, ± 20%; less if the turn before says that something is due earlier
    batch: int = 1
    budget: float = BUDGET_SECONDS  #: a full batch that takes longer is halved, down to 1/16; one that fails, down to 1
    spacing: float = 0.0  #: between two turns at the least, unless the batch was full
    first: float = 0.0  #: until the first turn


class Lag(NamedTuple):
    """How late a duty is: `seconds` since its turn was due, 0 while on time. `error`: why it fails, if it does."""

    duty: str
    seconds: float
    error: str


@dataclass(slots=True)
class _Place:
    """The place of a duty in its roster."""

    row: Row
    due: float
    batch: int
    not_before: float = 0.0
    hurried: bool = False  #: `hurry` was called during its turn
    failures: int = 0
    failed_at: float = 0.0
    error: str = ""

    @property
    def starts(self) -> float:
        return max(self.due, self.not_before)


class Roster:
    """The duties of one loop. `step` is called by one thread, all else by any.

    `answers` asks the store for something small: when a duty fails and this fails too, the store is unavailable, and
    `step` raises the error, and the duty does not count as failed. Else `short` is called: the store may be full.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        answers: Callable[[], object],
        short: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answers, self._short, self._clock = answers, short, clock
        self._lock = Lock()
        self._places: dict[str, _Place] = {}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        self._places[row.name] = _Place(row, self._clock() + row.first, row.batch)

    def hurry(self, *names: str) -> bool:
        """Make these duties due now, as far as they are in this roster. False: none of them is."""
        with self._lock:
            found = [self._places[name] for name in names if name in self._places]
            for place in found:
                place.hurried, place.due = True, min(place.due, self._clock())
            return bool(found)

    def lags(self) -> list[Lag]:
        now = self._clock()
        return [Lag(name, max(0.0, now - place.due), place.error) for name, place in list(self._places.items())]

    def step(self) -> float:
        """Do one turn, if a duty is due. Returns the seconds until the next one. Raises StoreError: see the class."""
        now = self._clock()
        with self._lock:
            ready = [place for place in self._places.values() if place.starts <= now]
            if not ready:
                return min(place.starts for place in self._places.values()) - now
            place = min(ready, key=lambda each: each.due)
            place.hurried = False
        try:
            turn = place.row.turn(place.batch)
        except StoreError as error:
            self._answers()
            self._failed(place, error, now)
            self._short()
        except Exception as error:  # a bug in one duty must not stop the others
            self._failed(place, error, now)
        else:
            self._done(place, turn, now)
        return 0.0

    def _done(self, place: _Place, turn: Turn, began: float) -> None:
        row, now = place.row, self._clock()
        least = max(1, row.batch // LEAST)
        if turn.more and now - began > row.budget and place.batch > least:
            place.batch = max(least, place.batch // 2)
        elif turn.more and (now - began < row.budget / 2 or place.batch < least):
            place.batch = min(row.batch, place.batch * 2)
        if place.error:
            _log.warning("%s works again after %s", row.name, spell(round(now - place.failed_at, 1)))
            place.error, place.failures = "", 0
        period = row.period * (0.8 + 0.4 * random())
        pause = 0.0 if turn.more else period if turn.next_due is None else min(period, turn.next_due)
        with self._lock:
            place.not_before = now if turn.more else now + row.spacing
            place.due = now if place.hurried else now + pause

    def _failed(self, place: _Place, error: Exception, began: float) -> None:
        """Its deadline stays, so its lag grows until it succeeds."""
        row, now = place.row, self._clock()
        pause = max(min(RETRY_SECONDS * 2.0**place.failures, row.period), RETRY_SECONDS, SHARE * (now - began))
        place.failures, place.batch = min(place.failures + 1, 30), max(1, place.batch // 2)
        place.not_before = now + pause
        if not place.error:
            place.failed_at = now
            unexpected = None if isinstance(error, TenureError) else error
            _log.error("%s fails, and is retried until it works: %s", row.name, error, exc_info=unexpected)
        place.error = str(error) or type(error).__name__
