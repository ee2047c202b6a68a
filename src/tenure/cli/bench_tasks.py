"""What `tenure bench` runs: jobs that do nothing, and jobs that return their start latency."""

from __future__ import annotations

import time

from tenure import Tenure

jobs = Tenure()


@jobs.task
async def nothing(n: int) -> None:
    """No work, so that the whole cost of the job is Tenure's."""


@jobs.task
async def stamp(sent: int) -> int:
    """Nanoseconds from just before the call of enqueue to here."""
    return time.monotonic_ns() - sent
