"""Settles the jobs of workers that have ended, by their verdicts, however long the store is unavailable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tenure.core.host import cause_of
from tenure.core.lifecycle import Crashed, Outcome, Released, outcome_name
from tenure.errors import StoreError
from tenure.maintenance.holder import RETRY_SECONDS
from tenure.supervisor import stalls
from tenure.supervisor.process import Ended, WorkerProcess
from tenure.supervisor.shared import Shared, suspects_waiting

SETTLE_SECONDS = 5.0  #: how long to wait for an unavailable store when stopping, once no worker is left


def rest_of(worker: WorkerProcess, ended: Ended) -> Outcome:
    """The outcome of the jobs that the worker held, except those with a verdict of their own."""
    if worker.drained:
        return Released("drained")
    if worker.lifeline.fenced:
        return Released("its worker's lease could not be renewed")
    if worker.verdicts:
        return Released("its worker was killed because of another job")
    if worker.kill_reason and worker.stopped_since is None:
        return Released(worker.kill_reason)
    evidence = {"exit": cause_of(ended.code), "peak_memory": f"{ended.peak / 1024:.0f} MiB", "worker": worker.id}
    place = stalls.last_frame(worker.dump.fileno())
    if place:
        evidence["line"] = place
    reason = worker.kill_reason or f"its worker died: {cause_of(ended.code)}"
    return Crashed(reason, process_died=True, evidence=evidence)


def how_ended(worker: WorkerProcess, ended: Ended) -> str:
    """How its process ended, in a line for people."""
    if worker.drained:
        return "it drained, and stopped"
    reason = worker.kill_reason or ("its lease could not be renewed in time" if worker.lifeline.fenced else "")
    if reason:
        return f"it was killed: {reason}"
    place = stalls.last_frame(worker.dump.fileno())
    at, stall = f" at {place}" if place else "", f", while {worker.stall}" if worker.stall else ""
    return f"its process ended: {cause_of(ended.code)}{at}{stall}"


class Unsettled(NamedTuple):
    """A worker that has ended, and the outcomes of the jobs that it held."""

    worker_id: str
    how: str  #: how its process ended
    verdicts: Mapping[str, Outcome]  #: by job id
    rest: Outcome


class Settler:
    """Used by the main thread only. Calls `settled` after each worker that it has settled."""

    def __init__(self, shared: Shared, settled: Callable[[], None]) -> None:
        self._shared = shared
        self._store, self._maintenance, self._processes = shared.store, shared.maintenance, shared.processes
        self._outage, self._boot, self._settled = shared.outage, shared.boot, settled
        self._unsettled: list[Unsettled] = []
        self._retry_at = 0.0
        self._give_up_at = 0.0  # 0: not stopping, or workers are left

    @property
    def pending(self) -> bool:
        return bool(self._unsettled)

    def settle(self, found: Unsettled) -> None:
        if self._unsettled or not self._try(found):  # don't try while others wait for the store: it may take seconds
            self._unsettled.append(found)

    def retry(self, *, stopping: int) -> int:
        """Retry the unsettled workers when it is time. Returns how many of them are given up for good."""
        now = self._boot()
        if not self._unsettled or now < self._retry_at:
            return 0
        self._retry_at = now + RETRY_SECONDS
        if stopping and not self._processes:
            self._give_up_at = self._give_up_at or now + SETTLE_SECONDS
        while self._unsettled:  # each call may block for a server's whole timeout, so the first failure ends the turn
            found = self._unsettled.pop(0)
            if not self._try(found):
                self._unsettled.append(found)
                break
        if not self._unsettled:
            self._outage.end()
        elif stopping > 1 or (self._give_up_at and now >= self._give_up_at):
            count = len(self._unsettled)
            self._unsettled.clear()
            return count
        return 0

    def _try(self, found: Unsettled) -> bool:
        worker_id, how, verdicts, rest = found
        try:
            settled = self._store.settle(worker_id, verdicts, rest, how=how)
            outcomes = {each.id: outcome_name(verdicts.get(each.id, rest)) for each in settled}
            self._maintenance.report_rescued(settled, outcomes)
            self._processes.want_solo(suspects_waiting(self._shared))
        except StoreError as error:
            self._outage.begin(error)
            return False
        self._processes.ending -= {worker_id}
        self._settled()
        return True
