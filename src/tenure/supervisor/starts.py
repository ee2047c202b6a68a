"""Reports workers that take long to start: an import or a resource may hang, and nothing else would show it.

They are not killed: a model may take minutes to load.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

from tenure.core.host import catches
from tenure.events import Events, StartDelayed
from tenure.supervisor import stalls
from tenure.supervisor.process import WorkerProcess

LONG_SECONDS = 60.0


class Starts:
    """Checks each worker that is not ready yet. It is reported after a minute, after two, after four…"""

    def __init__(self, workers: Iterable[WorkerProcess], events: Events, boot: Callable[[], float]) -> None:
        self._workers, self._events, self._boot = workers, events, boot
        self._since: dict[str, tuple[float, float]] = {}  #: when each was first seen here, and after how long reported

    def turn(self) -> None:
        now = self._boot()
        late = [each for each in self._workers if not (each.ready or each.draining or each.kill_reason)]
        self._since = {each.id: self._since.get(each.id, (now, LONG_SECONDS)) for each in late}
        for worker in late:
            since, due = self._since[worker.id]
            if now - since >= due:
                self._since[worker.id] = since, 2 * (now - since)
                self._events.emit(
                    StartDelayed(worker_id=worker.id, pid=worker.process.pid, seconds=now - since, doing=_doing(worker))
                )


def _doing(worker: WorkerProcess) -> str:
    if worker.opening:
        doing = f"it opens the resource {worker.opening}"
    else:
        doing = "it opens the store" if worker.registered else "it imports the app"
    place = ""
    if catches(worker.process.pid, signal.SIGUSR1):  # it would be killed by the signal before it has a handler
        place = stalls.place(stalls.dump(worker.process.pid, worker.dump.fileno()))
    return f"{doing}, at {place}" if place else doing
