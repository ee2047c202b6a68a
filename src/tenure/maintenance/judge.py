"""Decides whether this process may declare other workers dead."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.core.clock import system_clock
from tenure.maintenance.holder import AWAY_AFTER


class Judge:
    """A process may declare others dead only while its own renewals are regular, and have been for a lease.

    After its start, or a gap in its own renewals, it waits one lease, so that an outage or a suspend costs no living
    worker its jobs. If its process is provably gone, a worker may be declared dead without waiting.
    """

    def __init__(self, lease: float) -> None:
        self._lease, self._boot = lease, system_clock().boot
        self._renewed = self._boot()
        self.witness: str | None = None  #: a worker of this process that the last renewal covered
        self.quiet_until = self._renewed + lease

    def renewed(self, sent: float, alive: Iterable[str]) -> None:
        """Record a successful renewal of our own. After a gap, all other workers get a lease to renew, too."""
        self.witness = next(iter(alive), None)
        now = self._boot()
        if now - self._renewed > self._lease * AWAY_AFTER:  # not `sent`: a renewal sent in time may have been delayed
            self.quiet_until = now + self._lease
        self._renewed = sent

    def may_declare(self) -> bool:
        """Are our own renewals regular, so that another worker's silence can't be due to our own outage?"""
        now = self._boot()
        return now >= self.quiet_until and now - self._renewed <= self._lease * AWAY_AFTER
