"""Passes what was rescued on to a worker, which has the app's tracer: the supervisor runs no user code."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from tenure.events import Events, JobRescued
from tenure.ports import Rescued
from tenure.supervisor.process import WorkerProcess

MOST_KEPT = 1000  #: while no worker is ready
PORTION = 10  #: jobs a turn: the link to a worker holds only so much


class TraceRelay:
    """Keeps what was rescued until a worker is ready. `wanted`: a worker has said that its app has a tracer."""

    def __init__(self, events: Events) -> None:
        self.wanted = False
        self._kept = deque[Rescued](maxlen=MOST_KEPT)
        events.subscribe(JobRescued, self._keep)

    def _keep(self, event: JobRescued) -> None:
        if self.wanted:
            self._kept.append(event.rescued)

    def turn(self, workers: Iterable[WorkerProcess]) -> None:
        """Send some of them, if a worker can take them."""
        if not self._kept:
            return
        worker = next(filter(_reads, workers), None)
        if worker is not None:
            some = [self._kept.popleft() for _ in range(min(PORTION, len(self._kept)))]
            if not worker.link.offer("rescued", jobs=msgspec.to_builtins(some)):
                self._kept.extendleft(reversed(some))


def _reads(worker: WorkerProcess) -> bool:
    return worker.ready and not worker.draining and not worker.stall and worker.stopped_since is None
