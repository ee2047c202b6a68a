"""What a worker runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.ports.schedules import Schedule
from tenure.tasks.job import Job
from tenure.tasks.registry import Registry


@dataclass(frozen=True)
class Program:
    """What a worker runs: the tasks, the resources opened once a process, and what goes around each attempt."""

    tasks: Registry
    resources: tuple[Callable[[], Any], ...] = ()
    arounds: tuple[Callable[[Job[Any]], Any], ...] = ()
    source: str = ""  #: the module where the app is made: whose schedules these are
    schedules: Callable[[], Sequence[Schedule]] = tuple
