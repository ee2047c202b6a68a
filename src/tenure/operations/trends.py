"""How many jobs ended over 15 minutes, six hours or seven days, and how fast and how well each task did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tenure.core.spread import quantile
from tenure.errors import InvalidOption
from tenure.maintenance.rollups import SLOT, Figures, RollUp, collect, joined, read, total
from tenure.operations.access import Access

__all__ = ["SPANS", "Figures", "RollUp", "Span", "TaskTrend", "Trend", "Trends", "span_of", "total"]

Span = Literal["15m", "6h", "7d"]
SPANS: tuple[Span, ...] = get_args(Span)
_SOON = 3  #: slots: 15 minutes


@dataclass(frozen=True, slots=True)
class TaskTrend:
    """What became of a task's jobs. Counts are estimates where very many ended; times are seconds, to 5%.

    `stumbled`: ended after a failure or a crash. `wait`: from due to started, `run`: from started to ended, of the
    completed ones.
    """

    task: str
    completed: int
    dead: int
    cancelled: int
    stumbled: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None

    @classmethod
    def of(cls, task: str, figures: Figures) -> TaskTrend:
        counts = (round(getattr(figures, name)) for name in ("completed", "dead", "cancelled", "stumbled"))
        times = (quantile(spread, share) for spread in (figures.waits, figures.runs) for share in (0.5, 0.95))
        return cls(task, *counts, *times)

    @property
    def ended(self) -> int:
        return self.completed + self.dead + self.cancelled

    @property
    def failure_rate(self) -> float | None:
        """The share of its completed and dead jobs that are dead; None if there are none."""
        return self.dead / (self.completed + self.dead) if self.completed + self.dead else None


@dataclass(frozen=True, slots=True)
class Trend:
    """`points`: oldest first, the last one in progress. A point without tasks was not recorded."""

    span: Span
    points: Sequence[RollUp]

    @property
    def tasks(self) -> list[TaskTrend]:
        """By how many of their jobs ended, most first; beyond the first fifty together."""
        found = joined(self.points, 0, 0).tasks or {}
        tasks = (TaskTrend.of(task, figures) for task, figures in found.items())
        return sorted(tasks, key=lambda each: (-each.ended, each.task))

    def of(self, task: str) -> Trend:
        """The same for one task."""
        points = [
            RollUp(each.at, each.seconds, None if each.tasks is None else {task: each.tasks.get(task) or Figures()})
            for each in self.points
        ]
        return Trend(self.span, points)


class Trends:
    """Example: `admin.trends.look("6h").tasks`"""

    def __init__(self, access: Access) -> None:
        self._access = access

    def look(self, span: str) -> Trend:
        """Six hours in steps of five minutes, seven days by the hour, from what the maintenance has rolled up; 15
        minutes are read from the jobs. Raises InvalidOption."""
        store, known = self._access.store, span_of(span)
        now = store.now()
        if known == "15m":
            current = int(now.timestamp()) // SLOT * SLOT
            starts = range(current - _SOON * SLOT, current + 1, SLOT)
            return Trend(known, [collect(store, at, SLOT) for at in starts])
        return Trend(known, read(store, now, hours=6 if known == "6h" else 168))


def span_of(text: str) -> Span:
    """Raises InvalidOption."""
    for span in SPANS:
        if span == text:
            return span
    raise InvalidOption(f"span: expected one of {', '.join(SPANS)}, got {text!r}")
