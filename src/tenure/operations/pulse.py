"""What ended in the last 15 minutes, in slices, for the charts and rates of the dashboard.

Nothing runs in the background: missing slices are read from the store on demand, newest first, a few at a time, and
each second only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from time import monotonic

from tenure.core.lifecycle import ENDED, State
from tenure.maintenance.rollups import RollUp, by_task, joined
from tenure.operations.jobs import JobReads

SLICE = 5  #: seconds
SLICES = 180
_SETTLED = 1.0  #: seconds: outcomes this recent may not be stored yet
_BUDGET = 0.04  #: seconds that one call spends on older slices


class Pulse:
    def __init__(self) -> None:
        self._slices: dict[int, RollUp] = {}
        self._until: dict[int, float] = {}  #: each slice is read up to here, in Unix seconds
        self._lock = Lock()

    def look(self, jobs: JobReads, at: datetime) -> list[RollUp]:
        """All slices, oldest first; the last one is still in progress."""
        with self._lock:
            now = at.timestamp()
            newest = int(now) // SLICE
            numbers = range(newest - SLICES + 1, newest + 1)
            self._slices = {n: self._slices.get(n) or RollUp(n * SLICE, SLICE) for n in numbers}
            self._until = {n: self._until.get(n, 0.0) for n in numbers}
            ends = monotonic() + _BUDGET
            for n in reversed(numbers):
                since, until = max(self._until[n], n * SLICE), min((n + 1) * SLICE, now - _SETTLED)
                if since < until:
                    found = RollUp(n * SLICE, SLICE, by_task(jobs.ended(_instant(since), _instant(until))))
                    self._slices[n], self._until[n] = joined((self._slices[n], found), n * SLICE, SLICE), until
                if monotonic() > ends:
                    break
            return [self._slices[n] for n in numbers]


def rates(slices: Sequence[RollUp]) -> Mapping[State, float]:
    """Jobs per second over the last slice that was read completely."""
    whole = next((each.total for each in reversed(slices[:-1]) if each.known), None)
    return {state: 0.0 if whole is None else getattr(whole, state) / SLICE for state in ENDED}


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
