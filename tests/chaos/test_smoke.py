"""A minute of faults on each store: nothing that was promised is broken, and something was tried.

Loads have a few seconds here, at a fraction of their size: that shows that they are played and judged, not more.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from crash.conftest import Tell
from crash.harness import FULL

from . import evidence, faults, profiles
from .load import LOADS as LOADS_BY_NAME
from .run import play
from .stage import STORES, Values

SECONDS, EVERYDAY_SECONDS = (300.0 if FULL else 60.0), 20.0
IN_SHORT = ("sqlite", "postgres", "redis")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames and "load" not in metafunc.fixturenames:
        short = IN_SHORT[:1] if metafunc.config.getoption("everyday") else IN_SHORT
        metafunc.parametrize("place", STORES if FULL else short)


#: each on the store that suffers most from it: its scale, and how many jobs it enqueues at least
LOADS = [
    pytest.param("postgres", "trickle", 0.3, 100, id="trickle"),
    pytest.param("sqlite", "avalanche", 0.01, 3000, id="avalanche"),
    pytest.param("redis", "heavy", 0.1, 16, id="heavy"),
    pytest.param("postgres", "hot key", 0.2, 40, id="hot key"),
    pytest.param("redis", "full memory", 0.5, 100, id="full memory"),
    pytest.param("sqlite", "1,000 queues", 0.1, 300, id="1,000 queues"),
    pytest.param("redis", "800 waiters", 0.1, 60, id="800 waiters"),
    pytest.param("postgres", "bulk cancel", 0.2, 300, id="bulk cancel"),
    pytest.param("postgres", "flows", 0.6, 30, id="flows on postgres"),
    pytest.param("sqlite", "flows", 0.6, 30, id="flows on sqlite"),
    pytest.param("redis", "flows", 0.6, 30, id="flows on redis"),
    pytest.param("postgres", "limits", 0.6, 100, id="limits on postgres"),
    pytest.param("sqlite", "limits", 0.6, 100, id="limits on sqlite"),
    pytest.param("redis", "limits", 0.6, 100, id="limits on redis"),
]
LOAD_SECONDS = 10.0
BOUNDS = {"I15", "I16", "I17", "I18"}  #: so few seconds, on a machine with other tests, say too little about these


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("place", "load", "scale", "least"), LOADS)
def test_a_load_is_played_and_measured_and_nothing_is_lost(
    place: str, load: str, scale: float, least: int, tmp_path: Path, tell: Tell
) -> None:
    seed = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)

    result = play(place, tmp_path, seconds=LOAD_SECONDS, seed=seed, load=load, scale=scale, least=least)

    tell(evidence.summary(result))
    assert {each.invariant for each in result.verdict.violations} <= BOUNDS, evidence.summary(result)
    assert not result.oddities, evidence.summary(result)
    assert result.verdict.machine is not None
    assert {"start", "promote", "tick", "enqueue"} <= result.verdict.lags.keys()


def test_a_load_that_is_unknown_or_that_a_store_cannot_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no load is called 'none'; there are: light, trickle, avalanche"):
        profiles.named("none")
    with pytest.raises(profiles.Unfit, match="the load 'full memory' needs memory or small-disk"):
        profiles.refuse_unfit(profiles.named("full memory"), {"server"})


def test_each_profile_has_a_load_and_a_smoke_test() -> None:
    known = {each.name for each in profiles.PROFILES}

    assert known == LOADS_BY_NAME.keys() - {"lane"}
    assert known == {str(each.values[1]) for each in LOADS} | {"light"}


@pytest.mark.everyday
@pytest.mark.timeout(1800)
def test_random_faults_break_no_promise(place: str, tmp_path: Path, tell: Tell, request: pytest.FixtureRequest) -> None:
    everyday = request.config.getoption("everyday")
    seed = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)

    result = play(place, tmp_path, seconds=EVERYDAY_SECONDS if everyday else SECONDS, seed=seed)

    tell(evidence.summary(result))
    assert not result.verdict.violations and not result.oddities, evidence.summary(result)
    assert everyday or not result.toothless, evidence.summary(result)  # in so few seconds not every kind of fault comes


@pytest.mark.timeout(600)
@pytest.mark.parametrize("values", ["sealed", "offloaded"])
def test_values_that_are_encrypted_or_elsewhere_are_lost_by_no_fault(
    place: str, values: Values, tmp_path: Path, tell: Tell
) -> None:
    seed = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)

    result = play(place, tmp_path, seconds=LOAD_SECONDS, seed=seed, values=values)

    tell(evidence.summary(result))
    assert not result.verdict.violations and not result.oddities, evidence.summary(result)


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


def test_the_document_keeps_what_was_not_run_this_time_with_its_date(tmp_path: Path) -> None:
    document = tmp_path / "evidence.md"
    document.write_text(
        "`make chaos` wrote this, on 2026-01-02, 2 cores\n\n## All runs\n\n| store | runs |\n| --- | ---: |\n"
        "| redis | 6 |\n| redis-nats | 1 |\n| sqlite-nats (2025-03-04) | 2 |\n\n"
        "## Under load\n\n| load | store |\n| --- | ---: |\n"
        "| light × 1 | redis | 1 s |\n| light × 1 | redis-nats | 2 s |\n"
        "| trickle × 1 | redis-nats | 3 s |\n| trickle × 1 | sqlite-nats (2025-03-04) | 4 s |\n\n"
        "## redis\n\nold\n\n## redis-nats\n\nkept\n\n## sqlite-nats (2025-03-04)\n\nkept, too\n\n## The matrix\n\nnew\n"
        "\n## Guards removed\n\n| a claim is fair | redis-nats | a test |\n"
    )

    found = evidence._earlier(document.read_text(), {"redis"})

    assert found == [
        (
            "| redis-nats (2026-01-02) | 1 |",
            "## redis-nats (2026-01-02)\n\nkept",
            ["| light × 1 | redis-nats (2026-01-02) | 2 s |", "| trickle × 1 | redis-nats (2026-01-02) | 3 s |"],
        ),
        (
            "| sqlite-nats (2025-03-04) | 2 |",
            "## sqlite-nats (2025-03-04)\n\nkept, too",
            ["| trickle × 1 | sqlite-nats (2025-03-04) | 4 s |"],
        ),
    ]
