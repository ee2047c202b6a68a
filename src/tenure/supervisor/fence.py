"""Kills workers before their leases end, in a thread that waits for nothing else."""

from __future__ import annotations

from tenure.supervisor.shared import Shared

CHECK_SECONDS = 0.25


class Fence:
    """Kills each worker whose lease could not be renewed in time: others may rescue its jobs soon.

    A worker does that itself, unless its code holds the GIL. The main thread can't do it: it settles and registers
    workers, and waits for the store, for files and for whoever reads its log.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def step(self) -> float:
        now = self._shared.boot()
        for worker in self._shared.processes:
            if worker.registered and 0.0 < worker.lifeline.kill_at < now:
                worker.fence()
        return CHECK_SECONDS
