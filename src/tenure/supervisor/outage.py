"""Whether the store is unavailable to a supervisor, since when, and why."""

from __future__ import annotations

from collections.abc import Callable

from tenure.core.durations import spell
from tenure.errors import TenureError
from tenure.events import Events, StoreAway, StoreBack


class Outage:
    """Any thread reports whether the store answered; `recovered` is called when it answers again."""

    def __init__(self, events: Events, boot: Callable[[], float], recovered: Callable[[], None]) -> None:
        self._events, self._boot, self._recovered = events, boot, recovered
        self._since: float | None = None
        self._why = ""
        self._closed = False

    @property
    def ongoing(self) -> bool:
        return self._since is not None

    def begin(self, error: TenureError) -> None:
        """The store did not answer."""
        if self._since is None and not self._closed:
            self._since, self._why = self._boot(), str(error)
            self._events.emit(StoreAway(error=str(error)))

    def end(self) -> None:
        """The store answered."""
        since, self._since = self._since, None
        if since is not None:
            self._events.emit(StoreBack(seconds=self._boot() - since))
            self._recovered()

    def close(self) -> None:
        """Ignore errors from now on: closing the store interrupts calls that are still in flight."""
        self._closed = True

    def describe(self) -> str:
        """For how long, and why; '' while the store is available."""
        since = self._since
        return "" if since is None else f"unavailable for {spell(self._boot() - since)}: {self._why}"
