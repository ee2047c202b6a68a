"""Random kills, thousands of jobs: see storm.py."""

from __future__ import annotations

import os
import random

import pytest

from .conftest import Tell
from .harness import FULL, Site
from .storm import storm


@pytest.mark.everywhere
def test_a_storm_of_kills_loses_nothing_and_runs_nothing_twice_at_once(site: Site, tell: Tell) -> None:
    seed = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)

    report = storm(site, jobs=5000 if FULL else 400, kills=200 if FULL else 10, seed=seed)

    tell(str(report))
    assert not report.wrong, report
    assert report.kills.total() == (200 if FULL else 10), "every kill found work"
