"""Watches workers from outside: for a SIGSTOP, a stalled loop, an exit that is overdue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Thread

from tenure.core.durations import spell
from tenure.core.host import is_stopped
from tenure.core.lifecycle import State
from tenure.errors import StoreError
from tenure.events import StallSeen
from tenure.ports import Filter
from tenure.supervisor import stalls
from tenure.supervisor.process import WorkerProcess
from tenure.supervisor.shared import Shared

STALL_SECONDS = 1.0
END_SECONDS = 13.0  #: past the grace: a worker reports code that did not stop after 10 s, unless it is unresponsive


class Watch:
    """Checks each worker once a turn of the main thread. Calls `noted` when there is a stall to store."""

    def __init__(self, shared: Shared, noted: Callable[[], None]) -> None:
        self._shared, self._noted = shared, noted
        # When the last turn was, and a clock of the time in which workers could make progress towards their exit.
        self._turned = self._given = 0.0

    def end_by(self, grace: float) -> float:
        """The deadline of a worker that is told now to drain, by this object's own clock."""
        return self._given + grace + END_SECONDS

    def turn(self) -> None:
        now = self._shared.boot()
        if not self._shared.outage.ongoing:  # without the store no worker can drain: then the lease is the limit
            # Count no more than this: in a longer turn the machine slept, or this process was stopped.
            self._given += min(now - self._turned, STALL_SECONDS)
        self._turned = now
        for worker in self._shared.processes:
            if worker.registered and not worker.kill_reason:
                self._check(worker, now)

    def _check(self, worker: WorkerProcess, now: float) -> None:
        if is_stopped(worker.process.pid):
            worker.stopped_since = worker.stopped_since or now
            if now - worker.stopped_since > self._shared.settings.lease / 3:
                worker.kill(f"it was stopped (SIGSTOP) for {spell(now - worker.stopped_since)}")
        else:
            worker.stopped_since = None
            self._watch_for_stalls(worker, now)
            if self._given > worker.end_by:
                worker.kill("it was told to exit, and did not")

    def _watch_for_stalls(self, worker: WorkerProcess, now: float) -> None:
        silent = now - worker.lifeline.tick
        if not worker.ready or worker.drained or not worker.lifeline.tick or silent < STALL_SECONDS:
            worker.stall, worker.stall_reported = "", 0.0
            return
        worker.stalled_at = now
        if worker.stall_reported and silent < worker.stall_reported * 2:
            return
        worker.stall_reported = silent
        functions = {(file, name): task for task, (file, name) in worker.hello["functions"].items()}
        task, line = stalls.name(stalls.dump(worker.process.pid, worker.dump.fileno()), functions)
        worker.blockers, worker.blocked_at = (), line  # not those of an earlier stall
        worker.stall = f"its loop is blocked by {task or 'unknown code'} at {line or 'an unknown line'}"
        try:
            if task:
                Thread(target=self._look_up, args=(worker, task, line, silent), daemon=True).start()
                return
        except RuntimeError:  # no thread can be started
            pass
        self._tell(worker, task, line, silent, ())

    def _look_up(self, worker: WorkerProcess, task: str, line: str, silent: float) -> None:
        """Look up which jobs block it. In a thread of its own."""
        jobs = self._running_jobs(worker, task)
        self._shared.loop.call(partial(self._tell, worker, task, line, silent, jobs))

    def _tell(self, worker: WorkerProcess, task: str, line: str, silent: float, jobs: tuple[str, ...]) -> None:
        if worker.stall_reported == silent:  # else it has gone on since, or its stall was reported again
            worker.blockers = jobs
        self._shared.events.emit(StallSeen(worker_id=worker.id, job_ids=jobs, task=task, line=line, seconds=silent))
        self._noted()

    def _running_jobs(self, worker: WorkerProcess, task: str) -> tuple[str, ...]:
        where = Filter(states=frozenset({State.PROCESSING}), worker_id=worker.id, task=task)
        try:
            return tuple(job.id for job in self._shared.store.search(where, limit=10).jobs)
        except StoreError:
            return ()
