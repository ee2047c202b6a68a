"""An idempotency key between processes: one acts, and neither its death nor an outage makes another wait for ever."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from proxy import Proxy

from .backends import by_way_of
from .conftest import Tell
from .harness import HERE, PATIENCE, Line, Site, boot

HOLD = 4.0  #: two thirds of it is how late a renewal may be on a slow machine
LONGER = 9.0  #: where it has to be renewed again and again

#: Calls once for the key, and records the result, which names the process that acted.
SCRIPT = f"""
import os, sys, time
sys.path.insert(0, {str(HERE)!r})
import shop
from tenure.tasks import once
from tenure.errors import StoreAway

once.HOLD_SECONDS = float(sys.argv[1])

def note(event):
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.write(shop._ledger(), f"{{now}} - 0 {{os.getpid()}} {{event}}\\n".encode())

def noted(call, after):
    def wrapped(*args):
        try:
            answer = call(*args)
        except StoreAway:
            note("away")
            raise
        if isinstance(answer, float):
            note("waits")
        note(after)
        return answer
    return wrapped

def act() -> int:
    note("acts")
    while not shop.gone_ahead():
        time.sleep(0.01)
    return os.getpid()

once.Key.claim, once.Key.keep = noted(once.Key.claim, "asked"), noted(once.Key.keep, "kept")
with shop.jobs:
    print(shop.jobs.once("payout:7", act))
"""


_asking: list[Asks] = []


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """A process that failed a test is not left behind."""
    yield
    while _asking:
        with _asking.pop().process as process:
            process.kill()


class Asks:
    """A process that asks for the key."""

    def __init__(self, site: Site, *, url: str = "", hold: float = HOLD) -> None:
        self._site = site
        script = site.folder / "asks.py"
        script.write_text(SCRIPT)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(hold)],
            env=site.env("30s", {}, {"TENURE_URL": url or site.place.url}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        _asking.append(self)

    def lines(self, event: str) -> list[Line]:
        return [line for line in self._site.lines(event=event) if line.pid == self.process.pid]

    def seen(self, event: str) -> Line:
        return self._site.until(lambda: self.lines(event), f"{event!r} of {self.process.pid}")[0]

    def answer(self) -> int:
        """The process that acted."""
        told, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors
        return int(told)

    def kill(self) -> float:
        self.process.kill()
        self.process.communicate()
        return boot()


def who_acted(site: Site) -> list[int]:
    return [line.pid for line in site.lines(event="acts")]


def test_of_two_processes_one_acts_for_as_long_as_it_takes_and_both_get_what_it_got(site: Site) -> None:
    one = Asks(site, hold=LONGER)
    began = one.seen("acts").at
    two = Asks(site, hold=LONGER)
    two.seen("waits")
    site.until(lambda: boot() - began > 1.5 * LONGER, "its hold, and one that was renewed but once, to pass")
    assert who_acted(site) == [one.process.pid]
    site.go()

    assert [one.answer(), two.answer(), Asks(site).answer()] == [one.process.pid] * 3
    assert who_acted(site) == [one.process.pid]


@pytest.mark.everyday
@pytest.mark.everywhere
def test_when_the_acting_process_is_killed_another_acts_once_its_hold_has_ended(site: Site, tell: Tell) -> None:
    one = Asks(site)
    one.seen("acts")
    two = Asks(site)
    two.seen("waits")
    killed = one.kill()
    took_over = two.seen("acts").at
    site.go()

    assert [two.answer(), Asks(site).answer()] == [two.process.pid] * 2
    assert who_acted(site) == [one.process.pid, two.process.pid]
    tell(f"acted {took_over - killed:.2f} s after the other was killed, under a hold of {HOLD:g} s")


@pytest.fixture
def line(site: Site) -> Iterator[Proxy]:
    server = urlsplit(site.place.url)
    with Proxy(server.hostname or "", server.port or 0) as line:
        yield line


@pytest.mark.needs("server")
def test_a_store_that_is_away_when_the_result_is_to_be_kept_hears_of_it_when_it_is_back(
    site: Site, line: Proxy
) -> None:
    one = Asks(site, url=by_way_of(site.place.url, line.port), hold=20.0)
    one.seen("acts")
    line.refuse()
    site.go()
    one.seen("away")
    line.heal()

    assert [one.answer(), Asks(site).answer()] == [one.process.pid] * 2
    assert who_acted(site) == [one.process.pid]


@pytest.mark.needs("server")
def test_an_outage_while_it_acts_that_is_shorter_than_the_hold_changes_nothing(site: Site, line: Proxy) -> None:
    one = Asks(site, url=by_way_of(site.place.url, line.port), hold=9.0)
    at = one.seen("acts").at
    line.refuse()
    two = Asks(site)
    site.until(lambda: boot() - at > 4.0, "the first renewal to fail")
    line.heal()
    two.seen("waits")
    site.until(lambda: boot() - at > 9.5, "the first hold to pass")
    assert who_acted(site) == [one.process.pid]
    site.go()

    assert [one.answer(), two.answer()] == [one.process.pid] * 2
    assert who_acted(site) == [one.process.pid]
