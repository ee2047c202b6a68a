"""The state that the parts of a supervisor share, available once its first worker has reported the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenure.config import Settings
from tenure.core.lifecycle import MOST_TOGETHER, narrowed
from tenure.events import Events
from tenure.maintenance.maintenance import Maintenance
from tenure.ports import Store
from tenure.supervisor.mainloop import MainLoop
from tenure.supervisor.outage import Outage
from tenure.supervisor.processes import ProcessTable


@dataclass(frozen=True, slots=True)
class Shared:
    settings: Settings
    store: Store
    maintenance: Maintenance
    events: Events
    boot: Callable[[], float]
    loop: MainLoop
    processes: ProcessTable
    outage: Outage


def solo_slots(settings: Settings) -> int:
    """The slots of a worker for suspects: as many as the largest group of jobs whose worker died here."""
    return min(narrowed(settings.concurrency), MOST_TOGETHER)


def suspects_waiting(shared: Shared) -> int:
    """How many groups of suspects wait for a worker of this supervisor."""
    return shared.store.solo_waiting(sorted(shared.processes.served), slots=solo_slots(shared.settings))
