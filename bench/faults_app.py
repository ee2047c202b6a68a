"""Tenure's contestant in the bench of faults: the one task that every contestant has."""

from __future__ import annotations

from bench.faults_job import effect
from tenure import Tenure

jobs = Tenure()


@jobs.task
async def nothing(n: int) -> None:
    await effect(n)
