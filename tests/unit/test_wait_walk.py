"""A job that waits for nothing is told and asked for again, wherever it stands among those that wait for something."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from conformance.factories import World, claim, lose_asks, put
from conformance.scene import Scene
from conformance.test_limits import SHOP, declare, limited
from conformance.test_waiting import child_of, settle_waits
from tenure.config import load
from tenure.core.lifecycle import Completed, Failed, Suspended
from tenure.notifiers.poll import PollNotifier
from tenure.operations import alerts, wait_walk
from tenure.operations.alerts import Alarm, open_incidents
from tenure.operations.causes import Problem
from tenure.operations.wait_walk import WaitWalk
from tenure.ports import LINKS_PROTOCOL
from tenure.stores.memory import MemoryStore
from waiting import until

PATIENCE = 600.0  #: TENURE_ALERT_QUEUE_AGE
BETWEEN = 30.0  #: TENURE_ALERT_EVERY


@pytest.fixture
def scene(world: World, tmp_path: Path) -> Scene:
    return Scene(world, tmp_path)


@pytest.fixture
def walk(scene: Scene) -> WaitWalk:
    """The walk of a process that has looked before."""
    walk = WaitWalk(scene.store, scene.settings)
    walk.look()
    return walk


def looks(scene: Scene, walk: WaitWalk, seconds: float) -> list[Problem]:
    """It looks as often as a supervisor does, for so long; what the last look has found."""
    found: list[Problem] = []
    while seconds > 0:
        scene.passes(min(seconds, BETWEEN))
        found = walk.look()
        seconds -= BETWEEN
    return found


def lost(scene: Scene, task: str = "work") -> str:
    """A job whose parent has completed, and of which nobody knows that."""
    worker = scene.worker()
    parent = put(scene.store)
    child = child_of(scene.store, parent, task=task)
    settle_waits(scene.store)
    for job in claim(scene.store, worker, 10):
        scene.ends(job, worker, Completed("1"))
    lose_asks(scene.store)
    return child


def test_a_job_that_waits_for_nothing_is_told_and_asked_for_again(scene: Scene, walk: WaitWalk) -> None:
    child = lost(scene)

    assert looks(scene, walk, PATIENCE) == [], "its ask may be answered soon"
    assert scene.store.waits().asks == 0
    (problem,) = looks(scene, walk, 2 * BETWEEN)
    assert (problem.kind, problem.subject, problem.jobs) == ("wait-lost", "work", (child,))
    assert f"a job of work waited for nothing: what {child} waits for happened more than 10m ago" in problem.says

    assert settle_waits(scene.store) == [child]
    assert looks(scene, walk, BETWEEN) == []


def test_one_that_is_not_admitted_even_then_is_told_until_it_is(scene: Scene, walk: WaitWalk) -> None:
    child = lost(scene)
    for _ in range(3):
        (problem,) = looks(scene, walk, PATIENCE + 2 * BETWEEN)
        assert problem.jobs == (child,)


def test_jobs_that_something_holds_up_are_not_told(scene: Scene, walk: WaitWalk) -> None:
    worker = scene.worker()
    put(scene.store, max_failures=1)
    (failed,) = claim(scene.store, worker)
    scene.ends(failed, worker, Failed("no disk"))
    child_of(scene.store, failed.id)  # a dead letter holds it
    child_of(scene.store, put(scene.store, delay=1e6), put(scene.store, delay=1e6))
    put(scene.store)
    (waits,) = claim(scene.store, worker)
    scene.ends(waits, worker, Suspended("waits for the signal 'go'", signal="own:go"))
    declare(scene.store, SHOP.limit, 1)
    limited(scene.store, number=3)
    settle_waits(scene.store)

    for _ in range(3):
        assert looks(scene, walk, PATIENCE) == []
        settle_waits(scene.store)


@pytest.mark.parametrize("how", ["it has come", "it has timed out"])
def test_a_signal_that_is_over_holds_nothing_up(scene: Scene, walk: WaitWalk, how: str) -> None:
    worker = scene.worker()
    put(scene.store)
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Suspended("waits for the signal 'go'", signal="own:go", timeout=30.0))
    settle_waits(scene.store)
    if how == "it has come":
        scene.store.signal(job.id, "own:go", "1")
        lose_asks(scene.store)
    else:
        scene.passes(31)

    (problem,) = looks(scene, walk, PATIENCE + 2 * BETWEEN)
    assert problem.jobs == (job.id,)
    assert settle_waits(scene.store) == [job.id]


def test_a_wait_that_begins_later_is_another(scene: Scene, walk: WaitWalk) -> None:
    worker = scene.worker()
    child = lost(scene)
    assert looks(scene, walk, PATIENCE - BETWEEN) == []
    scene.store.ask([child, *(edge.parent for edge in scene.store.edges([child]))])
    settle_waits(scene.store)
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Suspended("waits for the signal 'go'", signal="own:go"))
    settle_waits(scene.store)
    scene.store.signal(child, "own:go", "1")
    lose_asks(scene.store)

    assert looks(scene, walk, PATIENCE) == []
    (problem,) = looks(scene, walk, 2 * BETWEEN)
    assert problem.jobs == (child,)


@pytest.mark.parametrize("why", ["an older worker lives", "very many asks are left", "it has not looked for long"])
def test_what_nobody_could_admit_has_its_time_from_then_on(
    scene: Scene, walk: WaitWalk, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost(scene)
    assert looks(scene, walk, PATIENCE) == []
    match why:
        case "an older worker lives":
            older = scene.worker(protocol=LINKS_PROTOCOL - 1)
            assert looks(scene, walk, 4 * BETWEEN) == []
            scene.dies(older)
        case "very many asks are left":
            with monkeypatch.context() as patch:
                patch.setattr(wait_walk, "_BUSY", 1)
                scene.store.ask([put(scene.store, delay=1e6)])
                assert looks(scene, walk, 4 * BETWEEN) == []
            lose_asks(scene.store)
        case _:
            scene.passes(4 * BETWEEN)

    assert looks(scene, walk, PATIENCE) == []
    assert len(looks(scene, walk, 3 * BETWEEN)) == 1


def test_the_walk_reaches_every_job_and_begins_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_walk, "_PAGE", 4)
    walk = WaitWalk(scene.store, scene.settings)
    child = lost(scene)
    far = put(scene.store, delay=1e6)
    for _ in range(10):
        child_of(scene.store, far)
    lose_asks(scene.store)

    (problem,) = looks(scene, walk, PATIENCE + 6 * BETWEEN)
    assert problem.jobs == (child,)
    other = lost(scene, task="other")  # while it is made, the first one is admitted
    (problem,) = looks(scene, walk, PATIENCE + 6 * BETWEEN)
    assert problem.jobs == (other,)


def test_jobs_with_many_edges_are_read_a_few_at_a_time(
    scene: Scene, walk: WaitWalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_walk, "_MOST_EDGES", 3)
    child = lost(scene)
    parents = [put(scene.store, delay=1e6) for _ in range(5)]
    for _ in range(3):
        child_of(scene.store, *parents)
    settle_waits(scene.store)

    (problem,) = looks(scene, walk, PATIENCE + 30 * BETWEEN)
    assert problem.jobs == (child,)


def test_whoever_looks_for_problems_walks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem("wait-lost", "work", "a job of work waited for nothing")
    monkeypatch.setattr(WaitWalk, "look", lambda _: [problem])
    store, settings = MemoryStore(), load({"alert_every": "100ms"}, environ={}, folder=tmp_path)
    alarm = Alarm(store, PollNotifier(), settings, lambda _: store, lambda _, __: PollNotifier(), list)
    alarm.start()
    found = until(lambda: open_incidents(store), "its incident")
    alarm.stop()
    assert [(each.kind, each.key) for each in found] == [("wait-lost", "wait-lost:work")]


def test_a_walk_that_fails_hides_no_other_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: WaitWalk) -> list[Problem]:
        raise ZeroDivisionError

    monkeypatch.setattr(WaitWalk, "look", fails)
    store, settings = MemoryStore(), load({"alert_every": "100ms"}, environ={}, folder=tmp_path)
    monkeypatch.setattr(alerts, "problems", lambda *_: [Problem("queue-paused", "default", "it is paused")])
    alarm = Alarm(store, PollNotifier(), settings, lambda _: store, lambda _, __: PollNotifier(), list)
    with caplog.at_level(logging.ERROR):
        alarm.start()
        found = until(lambda: open_incidents(store), "the incident of the other problem")
        alarm.stop()
    assert [each.key for each in found] == ["queue-paused:default"]
    assert "the walk through the jobs that wait failed" in caplog.text
