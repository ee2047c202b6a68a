"""The program that a worker runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tenure.errors import InvalidOption
from tenure.ports import LimitRow
from tenure.ports.schedules import Schedule
from tenure.tasks.job import Job
from tenure.tasks.registry import Registry
from tenure.tasks.tracing import Tracing


@dataclass(frozen=True)
class Program:
    """What a worker runs: tasks, resources opened once a process, and the generators wrapped around each attempt."""

    tasks: Registry
    resources: tuple[Callable[[], Any], ...] = ()
    arounds: tuple[Callable[[Job[Any]], Any], ...] = ()
    source: str = ""  #: the module where the app is created, which owns these schedules and limits
    schedules: Callable[[], Sequence[Schedule]] = tuple
    limits: Callable[[], Sequence[LimitRow]] = tuple
    tracing: Tracing | None = None
    queues: frozenset[str] = frozenset()  #: queues that its tasks may be put into, besides their own

    @property
    def named_queues(self) -> frozenset[str]:
        """The queues that its tasks name or may be put into."""
        return self.queues.union(task.queue for task in self.tasks)

    def unnamed(self, queues: Iterable[str]) -> str:
        """A warning about those of these queues that no task names, usually misspelled; empty: there are none."""
        named = self.named_queues
        unknown = ", ".join(queue for queue in queues if queue not in named)
        return unknown and (
            f"no task names the queue {unknown}; the tasks name {', '.join(sorted(named))}. "
            "Only jobs enqueued with using(queue=…) are in it"
        )

    def check(self) -> None:
        """Raise InvalidOption for what could not run: annotations, and arounds that do not fit the tasks."""
        self.tasks.resolve()
        plain = next((task.name for task in self.tasks if not task.is_async), "")
        for around in self.arounds:
            if plain and inspect.isasyncgenfunction(around):
                raise InvalidOption(
                    f"@jobs.around {around.__name__} is async, but the task {plain} is a plain function that runs "
                    "in a thread: write the around as a plain generator, which wraps both, or the task with async def"
                )
