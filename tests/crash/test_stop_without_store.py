"""A supervisor told to stop while the store is away: it tries a little longer, says what it leaves, and ends."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator

import pytest

from . import shop
from .backends import Place, Server, there
from .harness import Site

pytestmark = pytest.mark.needs("server")

#: The supervisor of the command that follows, but it waits longer than any server takes to start.
PATIENT = """
import runpy, sys
from tenure.supervisor import settler
settler.SETTLE_SECONDS = 60.0
del sys.argv[: sys.argv.index("-m") + 1]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def place(place: Place, server: Server) -> Iterator[Place]:
    yield there(place, server)
    if not server.process.running:
        server.process.start()


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_an_idle_one_ends_and_says_that_the_store_was_away(site: Site, server: Server, times: int) -> None:
    supervisor = site.supervisor(workers=2)
    site.until(lambda: len(site.store.workers()) == 2, "both workers")
    server.stop()

    for _ in range(times):
        supervisor.signal(signal.SIGTERM)
        site.until(lambda: not supervisor.workers(), "its workers to end")

    assert supervisor.exit_code() == 75
    told = re.findall(
        r"the jobs of (\d) workers? are rescued at the next start, or when their leases end", supervisor.log()
    )
    assert sum(map(int, told)) == 2


def test_what_it_leaves_is_taken_up_by_the_next_start(site: Site, server: Server) -> None:
    supervisor = site.supervisor(lease="6s", grace="100ms")
    job = shop.wait.enqueue()
    site.seen(job, "begin")
    server.stop()

    supervisor.signal(signal.SIGTERM)
    assert supervisor.exit_code() == 75
    server.process.start()
    site.go()
    site.supervisor(lease="30s")

    (view,) = site.ended(job)
    assert (view.state, view.attempt) == ("completed", 2)


def test_a_store_that_comes_back_in_time_is_told_all(site: Site, server: Server) -> None:
    supervisor = site.supervisor(before=(sys.executable, "-c", PATIENT))
    site.ended(shop.effect.enqueue(0.0))
    server.stop()

    supervisor.signal(signal.SIGTERM)
    site.until(lambda: not supervisor.workers(), "its worker to end")
    server.process.start()

    assert supervisor.exit_code(60) == 0
    assert site.store.workers() == []
