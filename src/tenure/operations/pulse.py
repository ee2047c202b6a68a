"""How fast jobs end, and how long they wait and run: the last quarter of an hour, in slices, for the charts.

Nobody has to watch for it: what is missing is read from the store when someone looks, the newest first, a bit at a
time, each second of it once.
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
_SETTLED = 1.0  #: seconds: what ended so recently may still be on its way into the store
_BUDGET = 0.04  #: seconds of one look for what is long past
_SAMPLE = 200


@dataclass(slots=True)
class Slice:
    """What ended in five seconds. `known` is false where nobody has looked yet."""

    at: datetime
    counts: dict[State, int] = field(default_factory=lambda: dict.fromkeys(ENDED, 0))
    waits: tuple[float, ...] = ()  #: of a sample: seconds from due to started
    runs: tuple[float, ...] = ()
    until: float = 0.0  #: it is read up to here, in Unix seconds
    known: bool = False

    def add(self, ended: Ended, until: float) -> None:
        for state, count in ended.counts.items():
            self.counts[state] += count
        self.waits = (*ended.waits, *self.waits)[:_SAMPLE]
        self.runs = (*ended.runs, *self.runs)[:_SAMPLE]
        self.until, self.known = until, True


def quantile(values: Sequence[float], share: float) -> float | None:
    """Example: `quantile(slice.waits, 0.95)`, in seconds; None of nothing."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


class Pulse:
    def __init__(self) -> None:
        self._slices: dict[int, Slice] = {}
        self._lock = Lock()

    def look(self, jobs: JobReads, at: datetime) -> list[Slice]:
        """All slices, oldest first; the last one is not over yet."""
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
    """Jobs a second over the last five seconds that are read whole."""
    whole = next((each for each in reversed(slices[:-1]) if each.known), None)
    return {state: 0.0 if whole is None else whole.counts[state] / SLICE for state in ENDED}


def _slice(number: int) -> Slice:
    return Slice(_instant(number * SLICE))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
