"""Why the code of a guarded run is asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

Stopping = Literal["cancel", "timeout", "lease_lost"]


class Stop:
    """A request to stop: the first reason is kept, unless the lease is lost. Calls `asked` when the reason is set."""

    def __init__(self, asked: Callable[[], None]) -> None:
        self._asked = asked
        self._lock = threading.Lock()
        self._ending = False
        self.reason: Stopping | None = None
        self.why = ""
        self.timeout_at = float("inf")
        self.dead = False  #: the run was ended or rescued by another process: the code must not run any more

    def ask(self, reason: Stopping, why: str = "") -> None:
        with self._lock:
            if self._ending or self.reason == reason or (self.reason is not None and reason != "lease_lost"):
                return
            self.reason, self.why = reason, why
        self._asked()

    def lose(self, why: str) -> None:
        if not self._ending:
            self.dead = True
            self.ask("lease_lost", why)

    def end(self) -> None:
        """Ignore later requests: the code has ended."""
        with self._lock:
            self._ending = True
