"""A minute of faults on each store: nothing that was promised is broken, and something was tried."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from crash.conftest import Tell
from crash.harness import FULL

from . import evidence, faults
from .run import play
from .stage import STORES

SECONDS, EVERYDAY_SECONDS = (300.0 if FULL else 60.0), 20.0
IN_SHORT = ("sqlite", "postgres", "redis")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        short = IN_SHORT[:1] if metafunc.config.getoption("everyday") else IN_SHORT
        metafunc.parametrize("place", STORES if FULL else short)


@pytest.mark.everyday
@pytest.mark.timeout(1800)
def test_random_faults_break_no_promise(place: str, tmp_path: Path, tell: Tell, request: pytest.FixtureRequest) -> None:
    everyday = request.config.getoption("everyday")
    seed = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)

    result = play(place, tmp_path, seconds=EVERYDAY_SECONDS if everyday else SECONDS, seed=seed)

    tell(evidence.summary(result))
    assert not result.verdict.violations and not result.oddities, evidence.summary(result)
    assert everyday or not result.toothless, evidence.summary(result)  # in so few seconds not every kind of fault comes


def test_a_seed_gives_the_same_faults_again_and_they_can_be_kept(tmp_path: Path) -> None:
    kinds = faults.possible({"server", "nats", "transactions"})
    plan = faults.plan(7, 300.0, 3.0, kinds)

    faults.write(tmp_path / "faults.json", plan)

    assert faults.plan(7, 300.0, 3.0, kinds) == plan == faults.read(tmp_path / "faults.json")
    assert faults.plan(8, 300.0, 3.0, kinds) != plan


def test_every_kind_of_fault_comes_before_any_comes_twice() -> None:
    kinds = faults.possible({"server", "nats", "transactions"})

    plan = faults.plan(7, 1e6, 3.0, kinds)

    assert len({fault.name for fault in plan[: len(kinds)]}) == len(kinds)


def test_a_fault_that_a_store_cannot_have_is_not_tried_and_one_that_is_unknown_is_told() -> None:
    assert not any(kind.needs for kind in faults.possible(()))
    with pytest.raises(SystemExit, match="no fault here is called kill server; there are: deploy supervisor"):
        faults.possible((), ["kill server"])
