"""An app whose jobs have limits. Its handlers write down when they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

from tenure import Job, Retry, Task, Tenure

from .shop import note, until_told

PLACES: Mapping[str, int] = {"one": 1, "three": 3, "fifty": 50}
MOST, BURST = 100, 10
PERIOD = float(os.environ.get("TENURE_TEST_PERIOD", "6"))  #: seconds

jobs = Tenure(retry=Retry(10, base="50ms", cap="200ms"))
one, three, fifty = (jobs.limit(name, concurrency=places) for name, places in PLACES.items())
pace = jobs.limit("pace", rate=f"{MOST}/{PERIOD:g}s", burst=BURST)
#: A release may allow more places than the one before, or have no such limit (0).
DEPLOYED = int(os.environ.get("TENURE_TEST_PLACES", "1"))
deployed = (jobs.limit("deployed", concurrency=DEPLOYED),) if DEPLOYED else ()


async def _run(job: Job[Any], seconds: float) -> int:
    note(job, "begin")
    await asyncio.sleep(seconds)
    note(job, "end")
    return job.attempt


@jobs.task(max_crashes=100, limit=one)
async def of_one(job: Job, seconds: float) -> int:
    return await _run(job, seconds)


@jobs.task(max_crashes=100, limit=three)
async def of_three(job: Job, seconds: float) -> int:
    return await _run(job, seconds)


@jobs.task(max_crashes=100, limit=(three, fifty))
async def of_three_and_fifty(job: Job, seconds: float) -> int:
    return await _run(job, seconds)


@jobs.task(max_crashes=100, limit=fifty)
async def of_fifty(job: Job, seconds: float) -> int:
    return await _run(job, seconds)


@jobs.task(max_crashes=100, limit=pace)
async def paced(job: Job, fails: bool) -> int:
    """Its first attempt fails if it is told to: the begin of the second one counts for the pace, too."""
    attempt = await _run(job, 0.05)
    if fails and attempt == 1:
        raise RuntimeError("the first time")
    return attempt


@jobs.task(limit=deployed)
async def held(job: Job) -> None:
    note(job, "begin")
    await until_told()
    note(job, "end")


#: The keys of each task's jobs.
KEYS: Mapping[Task[..., int], tuple[str, ...]] = {
    of_one: ("one",),
    of_three: ("three",),
    of_three_and_fifty: ("three", "fifty"),
    of_fifty: ("fifty",),
}
