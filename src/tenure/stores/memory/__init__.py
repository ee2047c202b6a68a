"""The executable specification: every promise of `ports.Store` in plain Python, for tests and for readers.

Rows are immutable and every verb runs under one lock, so a verb is one step, and a transaction is a list of steps:
rehearsed when it is called, run for good when its block ends. States change in `_move` alone, which asks the table.
"""

from __future__ import annotations

from tenure.ports import Capabilities
from tenure.stores.memory.jobs import MemoryJobs
from tenure.stores.memory.reads import MemoryReads
from tenure.stores.memory.schedules import MemorySchedules
from tenure.stores.memory.workers import MemoryWorkers


class MemoryStore(MemoryJobs, MemoryWorkers, MemorySchedules, MemoryReads):
    """A `Store` in this process's memory; it forgets when the process ends. `clock` and `seed` make tests exact."""

    capabilities = Capabilities(transactions=True, durable=False, steady_clock=True, local=True)
    url = "memory://"

    def open(self) -> None:
        """Nothing to connect to."""

    def migrate(self) -> int:
        """Nothing to bring up to date."""
        return 1

    def close(self) -> None:
        """Nothing to let go of: what is stored stays for as long as this object."""

    def upkeep(self) -> None:
        """Nothing."""
