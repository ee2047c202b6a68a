"""The worker of a test: a row in its store that owns the jobs that run, under one id after another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tenure.core.clock import Clock
from tenure.maintenance.holder import LeaseHolder, identity
from tenure.maintenance.limits import declare_limits
from tenure.ports import LimitRow, Store
from tenure.worker.program import Program

LEASE = 60.0


class Owner:
    """Registers a worker of this program, and another one when it was declared dead: no id is used again."""

    def __init__(
        self, store: Store, clock: Clock, program: Program, elsewhere: Collection[str], *, limits: bool
    ) -> None:
        self._store, self._clock, self._program, self._elsewhere = store, clock, program, elsewhere
        self._served, self._declared = frozenset[str](), list[LimitRow]()
        self._number = 0
        self.start()
        if limits:
            self.limit(frozenset())

    def start(self) -> None:
        """Register a new worker."""
        self._number += 1
        me = identity("embedded", self._served, (*self._program.tasks.names, *self._elsewhere), 1, LEASE)
        self._holder = LeaseHolder(self._store, replace(me, id=f"test-worker-{self._number}"), self._clock)
        self._holder.register()

    @property
    def id(self) -> str:
        return self._holder.id

    def renew(self) -> None:
        """Renew its lease: time may have advanced past the end."""
        self._holder.renew()

    def limit(self, queues: frozenset[str]) -> None:
        """Declare the program's limits, and serve these queues by name: `admit` gives places to no others."""
        declared = [*self._program.limits()]
        if declared != self._declared:
            declare_limits(self._store, self._program.source, "", declared)
            self._declared = declared
        if not queues <= self._served:
            self._store.declare_dead([self.id])
            self._served |= queues
            self.start()
