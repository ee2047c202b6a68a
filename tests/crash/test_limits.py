"""Limits with real processes: never more than a key allows, by what its handlers wrote down, whatever is killed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest

from tenure.core.limits import Bounds

from . import limited
from .conftest import Tell
from .harness import FULL, Site
from .limited_storm import LimitedStorm, storm
from .pace import pace

KILLS = 200 if FULL else 20
PERIOD = 60.0 if FULL else 3.0


def seed() -> int:
    return random.SystemRandom().randrange(1, 1 << 32)


@pytest.mark.timeout(3600 if FULL else 600)
@pytest.mark.everywhere
def test_never_more_run_than_a_key_has_places_whatever_is_killed_and_none_is_held_then(site: Site, tell: Tell) -> None:
    report, at_once = storm(site, KILLS, seed())

    tell(f"{report}; at once, at most: {at_once}")
    assert not report.wrong, report
    assert report.kills.total() >= KILLS // 2, "it ends when no job is left, and on a slow machine that may be earlier"
    assert (at_once["one"], at_once["three"]) == (1, 3)
    assert at_once["fifty"] > (20 if FULL else 3), "in a whole storm more than one worker has slots"


@pytest.mark.timeout(1800 if FULL else 300)
@pytest.mark.everywhere
def test_no_more_begin_in_any_period_than_the_rate_says_whoever_was_away_failed_or_was_killed(
    site: Site, tell: Tell
) -> None:
    paces = pace(site, PERIOD, seed())

    tell(str(paces))
    assert paces.states == {"completed"}
    assert all(claimed <= may for claimed, may in zip(paces.claimed, paces.may, strict=True)), paces
    assert paces.claimed[0] > limited.BURST, "there was always more to do than may begin"


@pytest.fixture
def deploy(site: Site) -> Iterator[Callable[[str, int], None]]:
    """Start a release of the app, with this many places, and wait for its worker."""

    def release(name: str, places: int) -> None:
        before = len(site.store.workers())
        more = {"TENURE_RELEASE": name, "TENURE_TEST_PLACES": str(places)}
        site.supervisor(app="crash.limited", concurrency=20, env={**LimitedStorm.env, **more})
        site.until(lambda: len(site.store.workers()) > before, f"release {name}")

    limited.jobs.configure(asdict(site.place))
    with limited.jobs:
        yield release


def test_the_newest_release_says_how_many_run_and_one_without_the_limit_lets_all_go(
    site: Site, deploy: Callable[[str, int], None]
) -> None:
    def begun() -> int:
        return len(site.lines(event="begin"))

    jobs = [limited.held.enqueue() for _ in range(6)]
    deploy("1", 1)
    site.until(lambda: begun() == 1, "the first one")
    deploy("2", 3)
    site.until(lambda: begun() == 3, "three")
    deploy("1", 1)  # started late
    assert site.store.limits(["deployed"])[0].declared == Bounds(3)
    deploy("3", 2)
    assert (begun(), site.store.keys(["deployed"])[0].held) == (3, 3), "those that run go on"
    deploy("4", 0)
    site.until(lambda: begun() == 6, "all of them")

    site.go()
    assert {view.state for view in site.ended(*jobs)} == {"completed"}
    assert [view for view in site.store.keys(limit=1000) if view.held or view.waiting] == []
