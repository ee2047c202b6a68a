"""What `tenure bench` runs: jobs that do nothing, and jobs that say how late they start."""

from __future__ import annotations

import time

from tenure import Tenure

jobs = Tenure()


@jobs.task
async def nothing(n: int) -> None:
    """The whole cost of a job is Tenure's."""


@jobs.task
async def stamp(sent: int) -> int:
    """Nanoseconds from just before the call of enqueue to here."""
    return time.monotonic_ns() - sent
