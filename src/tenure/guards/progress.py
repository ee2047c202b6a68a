"""The progress of a guarded run that is not stored yet."""

from __future__ import annotations

import threading
from dataclasses import replace

from tenure.ports import Progress

PROGRESS_SECONDS = 1.0


class Unstored:
    """One report, into which each newer one is merged; it is due a second after the last one was stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._report: Progress | None = None
        self._next = 0.0

    @property
    def due_at(self) -> float:
        return float("inf") if self._report is None else self._next

    def add(self, news: Progress) -> None:
        with self._lock:
            self._report = news if self._report is None else _merged(self._report, news)

    def take(self, now: float) -> Progress | None:
        with self._lock:
            report, self._report = self._report, None
        if report is not None:
            self._next = now + PROGRESS_SECONDS
        return report

    def put_back(self, old: Progress) -> None:
        """It could not be stored; what came meanwhile is newer."""
        with self._lock:
            self._report = old if self._report is None else _merged(old, self._report)


def _merged(old: Progress, new: Progress) -> Progress:
    said = {name: getattr(new, name) for name in ("fraction", "stage", "message", "checkpoint")}
    return replace(old, **{name: value for name, value in said.items() if value is not None})
