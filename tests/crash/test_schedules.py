"""Ticks under fire: supervisors that die, clocks that are wrong. Every tick becomes one job, none is left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import cycle, pairwise

import pytest

from tenure.ports.schedules import Tick

from .conftest import Tell
from .harness import FULL, HERE, SOURCE, Site, Supervised, boot

HOUR = 3600.0
SCHEDULES = 20 if FULL else 10
SUPERVISORS = 20 if FULL else 3
TICKS = 1000 if FULL else 60
KILL_EVERY = 2.0
SECOND = timedelta(seconds=1)


class Clocks:
    """A wall clock for each supervisor and its workers: a file that says by how much it is off."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._count = 0

    def set(self, name: str, seconds: float) -> None:
        new = self._site.folder / f"clock-{name}.new"
        new.write_text(str(seconds))
        new.rename(self._site.folder / f"clock-{name}")

    def supervisor(self, clock: str) -> Supervised:
        env = {
            "TENURE_TEST_SCHEDULES": str(SCHEDULES),
            "TENURE_TEST_CLOCK": str(self._site.folder / f"clock-{clock}"),
            "PYTHONPATH": os.pathsep.join(map(str, (HERE / "other_clock", SOURCE, HERE.parent))),
        }
        return self._site.supervisor(app="crash.timed", env=env, lease="10s")


@pytest.fixture
def clocks(site: Site) -> Iterator[Clocks]:
    return Clocks(site)


def fired(site: Site) -> list[Tick]:
    return [tick for name in names() for tick in site.store.ticks(name, limit=100_000)]


def names() -> list[str]:
    return [f"every-second-{number}" for number in range(SCHEDULES)]


def judge(site: Site) -> int:
    """Each tick of each schedule is there, once, and became exactly one job. Returns how many."""
    jobs = Counter[str]()
    for name in names():
        ticks = sorted(site.store.ticks(name, limit=100_000), key=lambda each: each.tick)
        assert {each.status for each in ticks} <= {"open", "success"}, [t for t in ticks if t.status == "missed"][:3]
        gaps = {after.tick - before.tick for before, after in pairwise(ticks)}
        assert gaps == {SECOND}, f"{name}: {sorted(gaps)}"
        jobs.update(each.job_id or "none" for each in ticks)
    assert set(jobs.values()) == {1}
    told = {line.event: set[str]() for line in site.lines(event="tick")}
    for line in site.lines(event="tick"):
        told[line.event].add(line.job)
    assert told, "no tick ran"
    twice = {tick: ids for tick, ids in told.items() if len(ids) > 1}
    assert not twice, f"a tick ran as several jobs: {twice}"
    unknown = {line.job for line in site.lines(event="tick")} - jobs.keys()
    assert not unknown, f"jobs ran that no tick knows: {unknown}"
    return jobs.total()


def storm(site: Site, clocks: Clocks, clock_of: Callable[[int], str], step: Callable[[int, int], None]) -> int:
    """Supervisors, one of them killed every two seconds and replaced, until enough ticks have passed.

    `step(place, killed)` sets the clocks when one is killed.
    """
    running = [clocks.supervisor(clock_of(place)) for place in range(SUPERVISORS)]
    killed, next_kill = 0, boot() + KILL_EVERY
    next_ticks = SCHEDULES
    places = cycle(range(SUPERVISORS))

    def enough() -> bool:
        nonlocal killed, next_kill, next_ticks
        ticks = len(fired(site))
        # Not before they have fired again: if a start took longer than the time between kills, none ever would.
        if boot() >= next_kill and ticks >= next_ticks:
            place = next(places)
            running[place].kill()
            step(place, killed)
            running[place] = clocks.supervisor(clock_of(place))
            killed += 1
            next_kill, next_ticks = boot() + KILL_EVERY, ticks + SCHEDULES
        return killed >= SUPERVISORS and ticks >= TICKS

    site.until(enough, f"{TICKS} ticks", seconds=600.0)
    for supervisor in running:
        supervisor.kill()
    return killed


@pytest.mark.needs("server")
def test_each_tick_is_one_job_whatever_dies_and_whatever_time_the_hosts_think_it_is(
    site: Site, clocks: Clocks, tell: Tell
) -> None:
    wrong = cycle([-HOUR, HOUR, 12.5])
    for place in range(SUPERVISORS):
        clocks.set(str(place), next(wrong))

    killed = storm(site, clocks, str, lambda place, _: clocks.set(str(place), next(wrong)))

    tell(f"{judge(site)} ticks, each one job; {SUPERVISORS} supervisors, {killed} killed, clocks off by up to an hour")


@pytest.mark.needs("file")
def test_each_tick_is_one_job_though_the_hosts_clock_is_set_forth_and_back(
    site: Site, clocks: Clocks, tell: Tell
) -> None:
    clocks.set("host", 0)
    off, steps = 0.0, cycle([11.0, -3.0])

    def step(place: int, killed: int) -> None:
        nonlocal off
        off += next(steps)
        clocks.set("host", off)

    killed = storm(site, clocks, lambda _: "host", step)

    tell(f"{judge(site)} ticks, each one job; {SUPERVISORS} supervisors, {killed} killed, the clock set at each kill")
