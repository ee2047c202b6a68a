"""Worker processes that have loaded Tenure and the store's driver, and wait to be told to load the app.

Most of what a new worker does before its first job is to import modules, and none of that needs the app. A spare runs
no user code, is in no table, and has no row in the store: until it is taken it is an idle process, nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tenure.supervisor.process import WorkerProcess

_OWN = ("tenure.stores.", "tenure.notifiers.")


class Spares:
    """Used by the main thread only, which must start every worker."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._waiting: list[WorkerProcess] = []
        self.wanted = 0

    def take(self) -> WorkerProcess:
        """A spare that lives, else a new process. Raises OSError if none can be started."""
        while self._waiting:
            spare = self._waiting.pop(0)
            if spare.process.poll() is None:
                return spare
            spare.end()
        return WorkerProcess.start(self._command)

    def fill(self) -> None:
        """Start those that are missing. Call it when no worker is starting, which this would slow down."""
        while len(self._waiting) < self.wanted:
            try:
                spare = WorkerProcess.start(self._command)
            except OSError:
                return  # nothing waits for it; the next start of a worker reports the error
            # This process uses the same store and notifier, and has loaded what they need.
            spare.link.send("prepare", modules=[name for name in list(sys.modules) if name.startswith(_OWN)])
            self._waiting.append(spare)

    def end(self) -> None:
        """End them all, and start no others."""
        self.wanted = 0
        while self._waiting:
            self._waiting.pop().end()
