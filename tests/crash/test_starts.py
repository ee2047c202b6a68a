"""A worker whose app or resource hangs is reported, with the line at which it is, and starts once that goes on."""

from __future__ import annotations

import re

import pytest

from .altered import altered
from .harness import Site

SOON = altered("from tenure.supervisor import starts; starts.LONG_SECONDS = 0.5")
APP = """
import asyncio, time
from pathlib import Path
from tenure import Tenure

jobs = Tenure()

def waits() -> None:
    while not Path("go-on").exists():
        time.sleep(0.05)

{hangs}

@jobs.task
def works() -> None: ...
"""
IN_IMPORT = "waits()"
IN_A_RESOURCE = """
class Model: ...

@jobs.resource
def model():
    waits()
    yield Model()
"""
IN_AN_ASYNC_RESOURCE = """
class Bank: ...

@jobs.resource
async def bank():
    while not Path("go-on").exists():
        await asyncio.sleep(0.05)
    yield Bank()
"""


@pytest.mark.parametrize(
    ("hangs", "doing"),
    [
        pytest.param(IN_IMPORT, r"it imports the app, at \S+late\.py:10", id="import"),
        pytest.param(IN_A_RESOURCE, r"it opens the resource model, at \S+late\.py:10", id="resource"),
        pytest.param(IN_AN_ASYNC_RESOURCE, r"it opens the resource bank", id="async resource"),
    ],
)
def test_a_worker_that_does_not_start_is_reported_and_starts_once_it_can(site: Site, hangs: str, doing: str) -> None:
    (site.folder / "late.py").write_text(APP.format(hangs=hangs))
    supervisor = site.supervisor(app="late", lease="9s", before=SOON)
    told = re.compile(rf"worker \S+ has not started after \S+: {doing}")
    site.until(lambda: told.search(supervisor.log()), "the report")
    site.until(lambda: len(told.findall(supervisor.log())) >= 2, "the next one, after twice as long")
    (site.folder / "go-on").touch()
    site.until(lambda: "started with" in supervisor.log(), "its start")
    assert "died" not in supervisor.log()
