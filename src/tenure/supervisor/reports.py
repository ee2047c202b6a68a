"""What workers say of themselves for metrics and health, and when they are asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenure.supervisor.process import WorkerProcess
from tenure.worker.tally import Tally

COUNT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker said last of itself."""

    busy: int
    notifier: str


class Reports:
    """The last report of each worker, by its id. What they counted goes to the tally."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._asked = set[str]()
        self._ask_at = 0.0
        self._last: dict[str, Report] = {}

    def ask(self, workers: Iterable[WorkerProcess], now: float) -> None:
        """A worker that has not answered yet is not asked again: a blocked loop must not find a heap of questions."""
        if now < self._ask_at:
            return
        self._ask_at = now + COUNT_SECONDS
        for worker in workers:
            if worker.ready and worker.id not in self._asked:
                self._asked.add(worker.id)
                worker.link.send("count")

    def heard(self, worker_id: str, message: Mapping[str, Any]) -> None:
        self._asked.discard(worker_id)
        self._last[worker_id] = Report(message["busy"], message["notifier"])
        self._tally.add(message["tally"])

    def forget(self, worker_id: str) -> None:
        self._asked.discard(worker_id)
        self._last.pop(worker_id, None)

    def of(self, workers: Iterable[WorkerProcess]) -> list[Report]:
        return [report for worker in workers if (report := self._last.get(worker.id))]
