"""Renews the leases of all workers of a supervisor in one call, on a connection of its own."""

from __future__ import annotations

from contextlib import suppress

from tenure.core.host import memories
from tenure.maintenance.holder import Renewal, renew
from tenure.ports import Store
from tenure.supervisor.shared import Shared


class Renewer:
    """Extends the leases of living workers, and kills those that were declared dead."""

    def __init__(self, shared: Shared, renewals: Store) -> None:
        self._store, self._lease, self._boot = renewals, shared.settings.lease, shared.boot
        self._processes, self._outage = shared.processes, shared.outage
        self._judge = shared.maintenance.judge
        self.landed: Renewal | None = None  #: the last renewal that succeeded

    def step(self) -> float:
        workers = [worker for worker in self._processes if worker.registered]
        notes = {worker.id: worker.stall for worker in workers if worker.stall}
        memory = memories({worker.id: worker.process.pid for worker in workers})
        ids = [worker.id for worker in workers]
        renewal, alive = renew(self._store, ids, self._lease, self._boot, notes=notes, memory=memory)
        self.landed = renewal
        if workers or not self._processes.ending:  # an empty renewal proves nothing
            self._judge.renewed(renewal.sent, alive)
        for worker in workers:
            if worker.id in alive:
                with suppress(ValueError):  # the worker has ended meanwhile, and its shared memory is closed
                    worker.lifeline.quiet_until = self._judge.quiet_until  # before the worker may judge others
                    worker.lifeline.renewed(renewal)
            else:
                worker.kill("it was declared dead")
        self._outage.end()  # last: it writes to the log, and blocks if nothing reads that
        return self._lease / 3
