"""Whether the backlogs of queues shrink or grow, and how long they last, from how they changed lately.

Nothing runs in the background: each look at the queues is kept for a few minutes, in the process that looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock

from tenure.core.lifecycle import State
from tenure.ports import JobView, QueueView

STEP_SECONDS = 5.0  #: at least, between two looks that are kept
SPAN_SECONDS = 60.0  #: over which a change is measured, if there was a look then
LEAST_SECONDS = 10.0  #: a change over a shorter time gives no pace
KEPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Growth:
    """How the backlog of a queue changes: jobs a second over the last `seconds`, and the jobs that are left."""

    backlog: int
    growth: float
    seconds: float

    @property
    def empty_in(self) -> float | None:
        """Seconds until it is empty at this pace; None: it does not shrink."""
        return self.backlog / -self.growth if self.growth < 0 and not self.steady else None

    @property
    def steady(self) -> bool:
        return abs(self.growth) * self.seconds < 1


class Backlogs:
    """Example: `paces = backlogs.look(admin.queues.all(), admin.now()); paces["reports"].empty_in`"""

    def __init__(self) -> None:
        self._looks = deque[tuple[datetime, dict[str, int]]]()
        self._lock = Lock()

    def look(self, queues: Iterable[QueueView], at: datetime) -> dict[str, Growth]:
        """The pace of each of these queues, by name; empty until looks are ten seconds apart."""
        sizes = {queue.name: _backlog(queue) for queue in queues}
        with self._lock:
            looks = self._looks
            while looks and not 0.0 <= (at - looks[0][0]).total_seconds() <= KEPT_SECONDS:
                looks.popleft()
            then = _base(looks, at)
            if not looks or (at - looks[-1][0]).total_seconds() >= STEP_SECONDS:
                looks.append((at, sizes))
        if then is None:
            return {}
        seconds = (at - then[0]).total_seconds()
        return {name: Growth(size, (size - then[1].get(name, 0)) / seconds, seconds) for name, size in sizes.items()}


def _base(looks: Sequence[tuple[datetime, dict[str, int]]], at: datetime) -> tuple[datetime, dict[str, int]] | None:
    """The look to compare with: the oldest of the last minute, else the latest before it."""
    ages = [((at - look[0]).total_seconds(), look) for look in looks]
    lately = [look for age, look in ages if LEAST_SECONDS <= age <= SPAN_SECONDS]
    before = [look for age, look in ages if age > SPAN_SECONDS]
    return lately[0] if lately else before[-1] if before else None


def _backlog(queue: QueueView) -> int:
    return sum(queue.counts.get(state, 0) for state in (State.QUEUED, State.PROCESSING))


@dataclass(frozen=True, slots=True)
class Latency:
    """How long jobs of a queue waited, from due to started, in seconds: of its last `jobs` that completed lately."""

    median: float
    p95: float
    jobs: int


def latencies(completed: Iterable[JobView]) -> Mapping[str, Latency]:
    """By queue."""
    waits: dict[str, list[float]] = {}
    for job in completed:
        if job.started_at is not None:
            waits.setdefault(job.queue, []).append(max(0.0, (job.started_at - job.run_at).total_seconds()))
    return {queue: _latency(sorted(found)) for queue, found in waits.items()}


def _latency(ordered: Sequence[float]) -> Latency:
    return Latency(ordered[len(ordered) // 2], ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)], len(ordered))
