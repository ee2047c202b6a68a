"""Limits with real processes: never more than a key allows, by what its handlers wrote down, whatever is killed."""

from __future__ import annotations

import random

import pytest

from . import limited
from .conftest import Tell
from .harness import FULL, Site
from .limited_storm import storm
from .pace import pace

KILLS = 200 if FULL else 20
PERIOD = 60.0 if FULL else 3.0


def seed() -> int:
    return random.SystemRandom().randrange(1, 1 << 32)


@pytest.mark.everywhere
def test_never_more_run_than_a_key_has_places_whatever_is_killed_and_none_is_held_then(site: Site, tell: Tell) -> None:
    report, at_once = storm(site, KILLS, seed())

    tell(f"{report}; at once, at most: {at_once}")
    assert not report.wrong, report
    assert report.kills.total() == KILLS
    assert at_once == limited.PLACES, "each place was used"


@pytest.mark.everywhere
def test_no_more_begin_in_any_period_than_the_rate_says_whoever_was_away_failed_or_was_killed(
    site: Site, tell: Tell
) -> None:
    paces = pace(site, PERIOD, seed())

    tell(str(paces))
    assert paces.states == {"completed"}
    assert all(claimed <= may for claimed, may in zip(paces.claimed, paces.may, strict=True)), paces
    assert paces.claimed[0] > 0.8 * limited.MOST, "there was always more to do than may begin"
