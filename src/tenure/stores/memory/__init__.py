"""The executable specification: every promise of `ports.Store` in plain Python, for tests and for readers.

Rows are immutable and every verb runs under one lock, so each verb is atomic. A transaction is a list of steps: each is
tried and undone when it is called, and all are run when the block ends. Only `_move` changes a state, by the table.
"""

from __future__ import annotations

from tenure.ports import Capabilities, Draft, Enqueued, OnLoop
from tenure.stores.memory.jobs import MemoryJobs
from tenure.stores.memory.reads import MemoryReads
from tenure.stores.memory.schedules import MemorySchedules
from tenure.stores.memory.texts import MemoryTexts
from tenure.stores.memory.waiting import MemoryWaiting
from tenure.stores.memory.workers import MemoryWorkers


class MemoryStore(MemoryJobs, MemoryWorkers, MemoryWaiting, MemorySchedules, MemoryReads, MemoryTexts):
    """A `Store` in this process's memory, lost when the process ends. `clock` and `seed` make tests deterministic."""

    capabilities = Capabilities(transactions=True, durable=False, steady_clock=True)
    url = "memory://"

    def open(self) -> None:
        """There is nothing to connect to."""

    def migrate(self) -> int:
        """There is no schema to migrate."""
        return 1

    def close(self) -> None:
        """There is nothing to release: the data lives as long as this object."""

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        """Never: it has neither a disk nor a network, so there is no time to be gained."""
        yield from ()
        return None

    def upkeep(self) -> None:
        """There is nothing to maintain."""
