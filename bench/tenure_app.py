"""Tenure's contestant in the PostgreSQL bench: the two tasks that every contestant has."""

from __future__ import annotations

import os

from bench.measure import worker
from tenure import Tenure

jobs = Tenure()
counted = worker() if "BENCH_WORKER" in os.environ else None  # None where jobs are only enqueued


@jobs.task
async def nothing(n: int) -> None:
    assert counted
    counted.ran()


@jobs.task
async def stamp(sent: int) -> None:
    assert counted
    counted.started(sent)
