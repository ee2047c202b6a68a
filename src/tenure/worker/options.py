"""The options of `jobs.worker(…)`, checked at the call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tenure.config import SETTINGS
from tenure.errors import InvalidOption
from tenure.tasks.hints import unknown_options

_PARSE: Mapping[str, Any] = {row.name: row.parse for row in SETTINGS}


def checked(queues: object, concurrency: object, unknown: Collection[str]) -> tuple[Mapping[str, int | None], int]:
    """The queues with their caps, and the slots; an empty mapping and 0 if not given. Raises InvalidOption."""
    if unknown:
        raise unknown_options("jobs.worker", unknown, ("queues", "concurrency"))
    if queues is not None and (isinstance(queues, str) or not isinstance(queues, Collection) or not queues):
        advice = f"write [{queues!r}]" if isinstance(queues, str) else "leave it out to serve those of all tasks"
        raise InvalidOption(f"jobs.worker: queues: expected a list of names, got {queues!r}; {advice}")
    if isinstance(concurrency, str):
        raise InvalidOption(f"jobs.worker: concurrency: expected a whole number, got the text {concurrency!r}")
    return (
        {} if queues is None else _PARSE["queues"]([*queues], "jobs.worker: queues"),
        0 if concurrency is None else _PARSE["concurrency"](concurrency, "jobs.worker: concurrency"),
    )
