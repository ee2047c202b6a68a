"""The app whose worker runs what the schedules of `bench.schedules` fire."""

from __future__ import annotations

from tenure import Tenure

jobs = Tenure()


@jobs.task
def nothing() -> None:
    """Done."""
