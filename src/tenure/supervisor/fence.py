"""Kills workers before their leases end, in a thread that waits for nothing else."""

from __future__ import annotations

from tenure.core.host import kill_carriers
from tenure.supervisor.process import WorkerProcess
from tenure.supervisor.shared import Shared


class Fence:
    """Kills each worker whose lease could not be renewed in time: others may rescue its jobs soon.

    A worker does that itself, unless its code holds the GIL. The main thread can't do it: it settles and registers
    workers, and waits for the store, for files and for the reader of its log. So what a worker left behind outside its
    process group is killed here, too, until the main thread has removed that worker.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._ended: set[str] = set()  #: tokens of late workers that have left nothing behind
        self._pause = min(0.25, shared.settings.lease / 30)  # so that a kill comes well before the lease ends

    def step(self) -> float:
        late = {worker.token: worker for worker in self._shared.processes if self._is_late(worker)}
        for worker in late.values():
            worker.fence()
        self._ended &= late.keys()
        if left := late.keys() - self._ended:  # looking at every process takes time, in which other workers may be late
            self._ended |= left - kill_carriers(left)
        return self._pause

    def _is_late(self, worker: WorkerProcess) -> bool:
        return worker.registered and 0.0 < worker.lifeline.kill_at < self._shared.boot()
