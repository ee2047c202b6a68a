"""Counters and timings: collected in a worker, summed in its supervisor, and exposed by operations/metrics.py.

A worker counts in batches, and hands over the increments when its supervisor asks. Labels come from bounded sets only
(queue, task, outcome, cause, verb): an id in a label would create a time series for every job.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, cast

from tenure.config import Settings
from tenure.events import Events, JobRescued, LeaseRefused, StallSeen, WorkerDied
from tenure.ports import Claimed, OnLoop, Store

#: Upper bounds of the buckets, in seconds; one more bucket is for longer durations.
BOUNDS: Mapping[str, tuple[float, ...]] = {
    "store": (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    "attempt": (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
}
_TIMED = frozenset(
    (
        *("claim", "owned", "progress", "refused", "once", "finish", "fetch"),
        *("register", "renew", "settle", "hung", "rescue", "redelivered", "declare_dead", "declare_expired"),
        *("promote", "prune", "solo_waiting", "sweep"),
    )
)


@dataclass(slots=True)
class Times:
    """A histogram of durations: the count in each bucket, and the sum."""

    buckets: list[int]
    total: float = 0.0


class Reading(NamedTuple):
    """Everything counted since the start. A key is the counter's name, followed by its labels."""

    counts: dict[tuple[str, ...], int]
    times: dict[tuple[str, str], Times]


class Tally:
    """Counters and durations of one process. Thread-safe by a lock, so count batches, not single jobs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = Counter[tuple[str, ...]]()
        self._times: dict[tuple[str, str], Times] = {}
        self._taken = Counter[tuple[str, ...]]()

    def count(self, what: str, *labels: str) -> None:
        with self._lock:
            self._counts[what, *labels] += 1

    def count_all(self, found: Mapping[tuple[str, ...], int]) -> None:
        """Add several counts at once; each key is `(what, *labels)`."""
        with self._lock:
            self._counts.update(found)

    def time(self, what: str, label: str, seconds: float) -> None:
        with self._lock:
            times = self._of(what, label)
            times.buckets[bisect_left(BOUNDS[what], seconds)] += 1
            times.total += seconds

    def time_all(self, what: str, label: str, durations: Sequence[float]) -> None:
        """Durations in seconds. Sorting them all costs less than finding the bucket of each."""
        ordered = sorted(durations)
        ends = [bisect_right(ordered, bound) for bound in BOUNDS[what]]
        with self._lock:
            times = self._of(what, label)
            for bucket, (begin, end) in enumerate(pairwise((0, *ends, len(ordered)))):
                times.buckets[bucket] += end - begin
            times.total += sum(ordered)

    def _of(self, what: str, label: str) -> Times:
        times = self._times.get((what, label))
        if times is None:
            times = self._times[what, label] = Times([0] * (len(BOUNDS[what]) + 1))
        return times

    def follow(self, events: Events) -> None:
        """Count rescues, refused leases, deaths and stalls from these events."""
        events.subscribe(JobRescued, self._rescued)
        events.subscribe(LeaseRefused, lambda event: self.count("refused", event.task))
        events.subscribe(WorkerDied, lambda event: self.count("deaths"))
        events.subscribe(StallSeen, lambda event: self.count("stalls"))

    def _rescued(self, event: JobRescued) -> None:
        self.count("rescues", event.rescued.cause)
        self.count("outcomes", event.rescued.task, event.outcome)

    def read(self) -> Reading:
        with self._lock:
            times = {key: Times(list(each.buckets), each.total) for key, each in self._times.items()}
            return Reading(dict(self._counts), times)

    def counted(self) -> dict[tuple[str, ...], int]:
        """The counts since the start, including those that `take` has handed over."""
        with self._lock:
            return dict(self._counts + self._taken)

    # ── from a worker to its supervisor, as JSON ──

    def take(self) -> dict[str, Any]:
        """Return what was counted since the last call, and reset it."""
        with self._lock:
            counts, self._counts = self._counts, Counter[tuple[str, ...]]()
            self._taken += counts
            times, self._times = self._times, {}
        return {
            "counts": [[*key, number] for key, number in counts.items()],
            "times": [[*key, each.total, each.buckets] for key, each in times.items()],
        }

    def add(self, taken: Mapping[str, Any]) -> None:
        """Add what `take` returned in another process."""
        with self._lock:
            for *key, number in taken["counts"]:
                self._counts[tuple(key)] += number
            for what, label, total, buckets in taken["times"]:
                # A worker may run newer code than the supervisor that started it.
                if what in BOUNDS and len(buckets) == len(BOUNDS[what]) + 1:
                    times = self._of(what, label)
                    times.buckets = [sum(pair) for pair in zip(times.buckets, buckets, strict=True)]
                    times.total += total


class _Timed:
    """A store that times its calls as the caller sees them, whether they succeed or fail."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store, self._tally = store, tally

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name == "claim_on_loop":
            return self._claim_on_loop
        if name not in _TIMED:
            return found

        def timed(*args: Any, **options: Any) -> Any:
            began = perf_counter()
            try:
                return found(*args, **options)
            finally:
                self._tally.time("store", name, perf_counter() - began)

        setattr(self, name, timed)  # so that the next call bypasses __getattr__
        return timed

    def _claim_on_loop(self, *args: Any, **options: Any) -> OnLoop[list[Claimed]]:
        began, claimed = perf_counter(), None
        try:
            claimed = yield from self._store.claim_on_loop(*args, **options)
            return claimed
        finally:
            if claimed is not None or sys.exception() is not None:
                self._tally.time("store", "claim", perf_counter() - began)


def timed(store: Store, tally: Tally) -> Store:
    """This store, with the calls of workers and supervisors timed in the tally."""
    return cast("Store", _Timed(store, tally))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The state of a supervisor, known without querying the store or a worker."""

    settings: Settings | None  #: None: no worker has reported the settings yet
    store: str  #: its URL, without a password
    renewed_ago: float | None  #: seconds since the last renewal that landed was sent
    away: str  #: how long the store has been unavailable, and why; else empty
    notifier: str  #: why this supervisor or a worker polls instead of listening; else empty
    queues: frozenset[str]  #: those that its workers serve
    workers: int  #: wanted
    ready: int
    slots: int  #: of the ready workers
    busy: int
    stopping: bool
    lags: Mapping[str, float]  #: by duty of the maintenance: how many seconds it is later than it should be
