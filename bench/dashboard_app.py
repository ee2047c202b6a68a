"""The app whose jobs a worker drains while `bench.dashboard` looks at the pages."""

from __future__ import annotations

from tenure import Tenure

jobs = Tenure()


@jobs.task
async def nothing(n: int) -> None:
    """Done."""


@jobs.task
async def rare(n: int) -> None:
    """A rare task: a search for its jobs passes many others."""
