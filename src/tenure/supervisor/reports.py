"""The reports of workers for metrics and health, and when they are requested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenure.supervisor.process import WorkerProcess
from tenure.worker.tally import Tally

COUNT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of a worker."""

    busy: int  #: slots in use
    notifier: str  #: the problem of its notifier; '' if none


class Reports:
    """The last report of each worker, by its id. Their counters are added to the tally."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._requested = set[str]()
        self._request_at = 0.0
        self._last: dict[str, Report] = {}

    def request(self, workers: Iterable[WorkerProcess], now: float) -> None:
        """Request reports once a second, but not from a worker with a blocked loop: requests would pile up."""
        if now < self._request_at:
            return
        self._request_at = now + COUNT_SECONDS
        for worker in workers:
            if worker.ready and worker.id not in self._requested:
                self._requested.add(worker.id)
                worker.link.send("count")

    def receive(self, worker_id: str, message: Mapping[str, Any]) -> None:
        self._requested.discard(worker_id)
        self._last[worker_id] = Report(message["busy"], message["notifier"])
        self._tally.add(message["tally"])

    def forget(self, worker_id: str) -> None:
        self._requested.discard(worker_id)
        self._last.pop(worker_id, None)

    def of(self, workers: Iterable[WorkerProcess]) -> list[Report]:
        return [report for worker in workers if (report := self._last.get(worker.id))]
