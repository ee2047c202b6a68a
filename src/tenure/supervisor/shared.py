"""The state that the parts of a supervisor share, available once its first worker has reported the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tenure.config import Settings
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
