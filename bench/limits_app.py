"""The app of `bench --limits`: each job writes when it began, and its key, for the driver to read."""

from __future__ import annotations

import asyncio
import os
import struct
import time

from tenure import Tenure

BEGAN = struct.Struct("<QQ")  #: the job's number, and monotonic ns
SECONDS = 0.005  #: of a job that does something

jobs = Tenure()
_file = os.open(os.environ.get("LIMITS_BEGAN", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _began(number: int) -> None:
    os.write(_file, BEGAN.pack(number, time.monotonic_ns()))


@jobs.task
async def plain(n: int) -> None:
    _began(n)


@jobs.task(limit=jobs.limit("shop:{n}", concurrency=10))
async def of_a_shop(n: int) -> None:
    _began(n)


@jobs.task
async def five_ms(n: int) -> None:
    _began(n)
    await asyncio.sleep(SECONDS)


three = jobs.limit("three", concurrency=3)


@jobs.task(limit=three)
async def three_at_a_time(n: int) -> None:
    _began(n)
    await asyncio.sleep(SECONDS)


@jobs.task(limit=three, queue="other")
async def of_another_queue(n: int) -> None:
    _began(n)


@jobs.task(limit=jobs.limit("fair:{n}", concurrency=2))
async def fair(n: int) -> None:
    _began(n)
    await asyncio.sleep(4 * SECONDS)
