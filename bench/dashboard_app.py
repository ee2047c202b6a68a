"""The app whose jobs `bench.dashboard` has drained while it looks at them."""

from __future__ import annotations

from tenure import Tenure

jobs = Tenure()


@jobs.task
async def nothing(n: int) -> None:
    """Done."""


@jobs.task
async def rare(n: int) -> None:
    """Done, and seldom: looking for it goes through many others."""
