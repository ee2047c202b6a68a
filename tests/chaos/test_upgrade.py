"""A rolling upgrade from the release before this code, and the way back, under faults: no promise is broken."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import previous
from conformance.factories import claim, finish, put, start
from crash.conftest import Tell
from crash.harness import FULL
from tenure.core.lifecycle import Lease, Suspended
from tenure.stores.memory import MemoryStore

from . import evidence, faults, history, upgrade
from .nemesis import Nemesis
from .profiles import LOAD
from .run import play
from .stage import STORES, TODAY, Host, Stage

SECONDS = 300.0 if FULL else 40.0
IN_SHORT = ("sqlite", "postgres", "redis")


@pytest.mark.skipif(not previous.has_history(), reason=previous.NO_HISTORY)
@pytest.mark.timeout(1800 if FULL else 600)
@pytest.mark.parametrize("place", STORES if FULL else IN_SHORT)
def test_two_releases_on_one_store_break_no_promise(place: str, tmp_path: Path, tell: Tell) -> None:
    seed = int(os.environ.get("TENURE_TEST_SEED", 0)) or random.SystemRandom().randrange(1, 1 << 32)

    result = play(place, tmp_path, seconds=SECONDS, seed=seed, upgraded=True)

    tell(evidence.summary(result))
    assert not result.verdict.violations and not result.oddities, evidence.summary(result)
    assert result.verdict.kills >= len(upgrade.PHASES) and result.verdict.rescues, evidence.summary(result)
    events = history.read(tmp_path / "history.jsonl")
    assert upgrade.began(events) == {phase.name: phase.begins for phase in upgrade.PHASES}
    waited = {event.key for event in events if event.op == "waits"}
    if FULL:  # in the eight seconds of a short run a busy machine may begin none
        assert waited & {event.key for event in events if event.op == "given"}, "no flow ran to its end"


def test_a_job_that_may_still_begin_to_wait_keeps_the_release_before_away() -> None:
    store = MemoryStore()
    worker = start(store, queues=("default", LOAD))
    put(store)
    assert upgrade.flows_have_ended(store.queues())

    gatherer = put(store, queue=LOAD)
    assert not upgrade.flows_have_ended(store.queues())
    (claimed,) = claim(store, worker, queue=LOAD)
    finish(store, Lease(gatherer, claimed.attempt, worker), Suspended("for a word", signal="own:go"))
    assert not upgrade.flows_have_ended(store.queues())
    store.cancel([gatherer], "not wanted")
    assert upgrade.flows_have_ended(store.queues())


def test_a_deploy_starts_a_supervisor_that_had_ended_having_found_no_store() -> None:
    """It has no workers, and never will: the deploy used to wait for them."""
    noted, restarted = list[str](), list[bool]()
    ended = SimpleNamespace(process=SimpleNamespace(poll=lambda: 3), workers=list, log=str, stop=lambda: 3, pid=1)
    host = SimpleNamespace(supervisor=ended, release=None, restart=lambda: restarted.append(True))
    pen = SimpleNamespace(note=lambda name, **_: noted.append(name))
    nemesis = Nemesis(cast(Stage, SimpleNamespace(seed=1, pen=pen)))

    nemesis.deploy(cast(Host, host), TODAY)

    assert (noted, restarted, host.release) == (["ended"], [True], TODAY)


def test_each_phase_of_an_upgrade_kills_a_worker_first() -> None:
    kinds = faults.possible(["server", "transactions"])

    for number, phase in enumerate(upgrade.PHASES):
        first, *_ = faults.plan(7, SECONDS / len(upgrade.PHASES), 3.0, phase.of(kinds), number)
        assert (first.name, first.phase) == ("kill worker", number)


@pytest.mark.skipif(not previous.has_history(), reason=previous.NO_HISTORY)
def test_a_clone_without_the_release_before_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "previous.txt"
    named.write_text("1" * 40)
    monkeypatch.setattr(previous, "NAMED", named)
    monkeypatch.setattr(previous, "_tags", list)

    with pytest.raises(previous.PreviousMissing, match=r"git fetch --unshallow --tags"):
        previous.commit()
