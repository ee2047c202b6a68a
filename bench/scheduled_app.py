"""The app whose worker runs the jobs of the schedules in `bench.schedules`."""

from __future__ import annotations

from tenure import Tenure

jobs = Tenure()


@jobs.task
def nothing() -> None:
    """Done."""
