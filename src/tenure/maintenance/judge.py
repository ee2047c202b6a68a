"""Who was away declares nobody dead."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.core.clock import system_clock
from tenure.liveness.holder import AWAY_AFTER


class Judge:
    """May this process declare others dead? Only while its own renewals are regular, and have been for a lease.

    After its start, or a gap in its own renewals, it waits one lease, so that an outage or a suspend costs no living
    worker its jobs. Proof of death needs no wait.
    """

    def __init__(self, lease: float) -> None:
        self._lease, self._boot = lease, system_clock().boot
        self._renewed = self._boot()
        self.witness: str | None = None  #: one of ours that was renewed last
        self.quiet_until = self._renewed + lease

    def renewed(self, sent: float, alive: Iterable[str]) -> None:
        """A renewal of our own has landed. After a gap, everybody else gets a lease to renew too."""
        self.witness = next(iter(alive), None)
        now = self._boot()
        if now - self._renewed > self._lease * AWAY_AFTER:  # until now: it may have been sent in time, and held up
            self.quiet_until = now + self._lease
        self._renewed = sent

    def may_declare(self) -> bool:
        """Are our own renewals so regular that another's silence is not our own absence?"""
        now = self._boot()
        return now >= self.quiet_until and now - self._renewed <= self._lease * AWAY_AFTER
