"""Throughput and wait times of the last 15 minutes, in slices, for the charts.

Nothing runs in the background: missing slices are read from the store on demand, newest first, a few at a time, and
each second only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from time import monotonic

from tenure.core.lifecycle import ENDED, State
from tenure.operations.jobs import JobReads
from tenure.ports import Ended

SLICE = 5  #: seconds
SLICES = 180
_SETTLED = 1.0  #: seconds: outcomes this recent may not be stored yet
_BUDGET = 0.04  #: seconds that one call spends on older slices
_SAMPLE = 200


@dataclass(slots=True)
class Slice:
    """The jobs that ended in five seconds. `known` is false for a slice that has not been read."""

    at: datetime
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(ENDED, 0))
    waits: tuple[float, ...] = ()  #: seconds from due to started, for a sample
    runs: tuple[float, ...] = ()
    until: float = 0.0  #: read up to here, in Unix seconds
    known: bool = False

    def add(self, ended: Ended, until: float) -> None:
        for state, count in ended.counts.items():
            self.counts[state] += count
        self.waits = (*ended.waits, *self.waits)[:_SAMPLE]
        self.runs = (*ended.runs, *self.runs)[:_SAMPLE]
        self.until, self.known = until, True


def quantile(values: Sequence[float], share: float) -> float | None:
    """Example: `quantile(slice.waits, 0.95)`, in seconds; None if there are no values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


class Pulse:
    def __init__(self) -> None:
        self._slices: dict[int, Slice] = {}
        self._lock = Lock()

    def look(self, jobs: JobReads, at: datetime) -> list[Slice]:
        """All slices, oldest first; the last one is still in progress."""
        with self._lock:
            now = at.timestamp()
            newest = int(now) // SLICE
            numbers = range(newest - SLICES + 1, newest + 1)
            self._slices = {number: self._slices.get(number) or _slice(number) for number in numbers}
            ends = monotonic() + _BUDGET
            for number in reversed(numbers):
                each = self._slices[number]
                since = max(each.until, number * SLICE)
                until = min((number + 1) * SLICE, now - _SETTLED)
                if since < until:
                    each.add(jobs.ended(_instant(since), _instant(until)), until)
                if monotonic() > ends:
                    break
            return [self._slices[number] for number in numbers]


def rates(slices: Sequence[Slice]) -> Mapping[State, float]:
    """Jobs per second over the last slice that was read completely."""
    whole = next((each for each in reversed(slices[:-1]) if each.known), None)
    return {state: 0.0 if whole is None else whole.counts[state] / SLICE for state in ENDED}


def _slice(number: int) -> Slice:
    return Slice(_instant(number * SLICE))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
