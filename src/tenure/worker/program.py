"""The program that a worker runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.ports.schedules import Schedule
from tenure.tasks.job import Job
from tenure.tasks.registry import Registry


@dataclass(frozen=True)
class Program:
    """What a worker runs: tasks, resources opened once a process, and the generators wrapped around each attempt."""

    tasks: Registry
    resources: tuple[Callable[[], Any], ...] = ()
    arounds: tuple[Callable[[Job[Any]], Any], ...] = ()
    source: str = ""  #: the module where the app is created, which owns these schedules
    schedules: Callable[[], Sequence[Schedule]] = tuple
