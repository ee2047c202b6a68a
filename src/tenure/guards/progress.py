"""The progress of a guarded run that is not stored yet."""

from __future__ import annotations

import threading
from dataclasses import replace

from tenure.ports import Progress

PROGRESS_SECONDS = 1.0


class Unstored:
    """The unstored report, into which newer ones are merged; it is due a second after the last one was stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._report: Progress | None = None
        self._next = 0.0

    @property
    def due_at(self) -> float:
        return float("inf") if self._report is None else self._next

    def add(self, new: Progress) -> None:
        with self._lock:
            self._report = new if self._report is None else _merged(self._report, new)

    def take(self, now: float) -> Progress | None:
        with self._lock:
            report, self._report = self._report, None
        if report is not None:
            self._next = now + PROGRESS_SECONDS
        return report

    def put_back(self, old: Progress) -> None:
        """Keep a report that could not be stored; values reported since take precedence."""
        with self._lock:
            self._report = old if self._report is None else _merged(old, self._report)


def _merged(old: Progress, new: Progress) -> Progress:
    fields = {name: getattr(new, name) for name in ("fraction", "stage", "message", "checkpoint", "log")}
    return replace(old, **{name: value for name, value in fields.items() if value is not None})
