"""Kill -9, of a worker and of a supervisor: what ran starts again at once, and nothing of it was left running."""

from __future__ import annotations

import signal
from functools import partial

import pytest

from . import shop
from .altered import altered
from .conftest import Tell
from .harness import FULL, Site, Supervised, alive, boot, overlaps, runs_of, send, spread, state

KILLS = 50 if FULL else 4
ROUNDS, MOST_ROUNDS = 15 if FULL else 3, 15
SOONER = 0.75  #: on a quiet machine it is a sixth; bench.respawn measures it


@pytest.mark.everyday
@pytest.mark.everywhere
def test_a_job_of_a_killed_worker_starts_again_from_its_checkpoint_at_once(site: Site, tell: Tell) -> None:
    supervisor = site.supervisor(lease="4m", spares=1)  # neither beat nor scan comes soon enough to start it again
    waits: list[float] = []
    killed: dict[int, float] = {}

    for _ in range(KILLS):
        job = shop.climb.enqueue()
        victim = site.seen(job, "half").pid
        killed[victim] = boot()
        send(victim, signal.SIGKILL)
        again = site.seen(job, "begin", attempt=2)
        waits.append(again.at - killed[victim])

        (view,) = site.ended(job)
        assert (view.state, view.result, view.attempt, view.failures) == ("completed", "7", 2, 0)
        assert again.event == "begin checkpoint=7 left=0", "its children were gone, its checkpoint was there"
        (attempt,) = site.attempts(job)
        assert attempt.outcome == "crashed"
        assert attempt.evidence["exit"] == "signal 9 (SIGKILL)"

    assert overlaps(runs_of(site.lines(), killed)) == []
    assert supervisor.stop() == 0
    tell(f"from kill -9 of the worker to its job's next start: first {waits[0] * 1000:.0f} ms, {spread(waits)}")


def test_a_killed_one_slot_worker_is_started_again_at_once_too(site: Site, tell: Tell) -> None:
    site.supervisor(env={"TENURE_RETRY_CAP": "50ms"}, spares=1)
    job = shop.tick.enqueue()
    waits: list[float] = []

    for attempt in range(1, 5):
        victim = site.seen(job, "tick", attempt=attempt).pid
        at = boot()
        send(victim, signal.SIGKILL)
        waits.append(site.seen(job, "begin", attempt=attempt + 1).at - at)
    site.go()

    (view,) = site.ended(job)
    assert (view.state, view.attempt, view.crashes_total) == ("completed", 5, 4)
    tell(f"from kill -9 to the next start, each in a fresh process: {spread(waits)}")


@pytest.mark.everyday
@pytest.mark.everywhere
def test_workers_die_with_their_supervisor_and_the_next_one_takes_their_jobs_back_at_once(
    site: Site, tell: Tell
) -> None:
    first = site.supervisor(lease="4m", workers=2, concurrency=2)
    jobs = [shop.climb.enqueue() for _ in range(4)]
    for job in jobs:
        site.seen(job, "half")
    workers = first.workers()
    assert len(workers) == 2

    at = boot()
    first.kill()
    site.until(lambda: not any(map(alive, workers)), "its workers to die with it")
    died = boot()
    site.supervisor(lease="4m")

    again = [site.seen(job, "begin", attempt=2) for job in jobs]
    assert all(line.event == "begin checkpoint=7 left=0" for line in again)
    assert [view.state for view in site.ended(*jobs)] == ["completed"] * 4
    tell(
        f"kill -9 of the supervisor: its workers were gone after {(died - at) * 1000:.0f} ms; from the start of the "
        f"next one to the jobs' next start {spread([line.at - died for line in again])}"
    )


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_a_child_that_kept_the_workers_descriptors_holds_nothing_up(site: Site, victim: str) -> None:
    supervisor = site.supervisor(lease="4m")
    job = shop.leak.enqueue()
    line = site.seen(job, "forked")

    send(line.pid if victim == "worker" else supervisor.pid, signal.SIGKILL)
    if victim == "supervisor":
        site.supervisor(lease="4m")

    (view,) = site.ended(job)
    assert (view.state, view.attempt) == ("completed", 2)


NO_PIDFD = """
import os
def pidfd_open(pid, flags=0):
    raise OSError(38, "Function not implemented")
os.pidfd_open = pidfd_open
"""


def test_a_child_that_kept_the_link_holds_nothing_up_where_there_are_no_pidfds(site: Site) -> None:
    site.supervisor(lease="4m", before=altered(NO_PIDFD))
    job = shop.leak.enqueue()
    send(site.seen(job, "forked").pid, signal.SIGKILL)

    (view,) = site.ended(job)
    assert (view.state, view.attempt) == ("completed", 2)
    (killed,) = site.attempts(job)
    assert killed.evidence["exit"] == "signal 9 (SIGKILL)"


IMPORTED = """
import os
with open("imported", "a") as file:
    file.write(f"{os.getpid()}\\n")
from shop import jobs
"""


@pytest.mark.everyday
def test_a_spare_takes_the_place_of_a_killed_worker_and_imports_the_app_only_then(site: Site) -> None:
    (site.folder / "imported.py").write_text(IMPORTED)
    supervisor = site.supervisor(app="imported", lease="4m", spares=1)
    job = shop.wait.enqueue()
    victim = site.seen(job, "begin").pid
    (spare,) = site.until(lambda: set(supervisor.workers()) - {victim}, "the spare")

    def imported() -> set[int]:
        return set(map(int, (site.folder / "imported").read_text().split()))

    assert imported() == {victim}
    assert [each.identity.pid for each in site.store.workers()] == [victim]
    send(victim, signal.SIGKILL)

    assert site.seen(job, "begin", attempt=2).pid == spare
    # One in place of the victim; on a slow machine also a second one for suspects, if the spare is ready and has not
    # claimed the job yet when they are counted.
    site.until(lambda: len(imported()) >= 3, "another worker")
    site.until(lambda: set(supervisor.workers()) - imported(), "another spare")
    site.go()
    assert site.ended(job)[0].state == "completed"
    site.until(
        lambda: imported() == {each.identity.pid for each in site.store.workers(dead=True)},
        "each process that has imported the app to be a worker",
    )
    left = supervisor.workers()
    assert supervisor.stop() == 0
    assert not any(map(alive, left))


@pytest.mark.timeout(1800 if FULL else 300)
def test_with_a_spare_a_killed_workers_job_starts_again_sooner_than_without(site: Site, tell: Tell) -> None:
    """In turns, so that a busy machine is busy for both."""
    waits: dict[int, list[float]] = {0: [], 1: []}

    def told() -> bool:
        return len(waits[1]) >= ROUNDS and min(waits[1]) < SOONER * min(waits[0])

    for spares in (0, 1) * MOST_ROUNDS:
        if spares == 0 and told():  # a busy machine may hold up some rounds, and then there are more of them
            break
        supervisor = site.supervisor(lease="4m", spares=spares, concurrency=1)
        job = shop.climb.enqueue()
        victim = site.seen(job, "half").pid
        site.until(partial(ready, supervisor, victim, spares), "what waits to be ready")
        at = boot()
        send(victim, signal.SIGKILL)
        waits[spares].append(site.seen(job, "begin", attempt=2).at - at)
        site.ended(job)
        assert supervisor.stop() == 0

    without, with_one = (min(waits[spares]) for spares in (0, 1))
    tell(f"from kill -9 to the next start: {with_one * 1000:.0f} ms with a spare, {without * 1000:.0f} ms without")
    assert told()


def ready(supervisor: Supervised, victim: int, spares: int) -> bool:
    """Have all spares loaded what they can? Then they sleep, until they are told to load the app."""
    others = set(supervisor.workers()) - {victim}
    return len(others) == spares and all(state(pid) == "S" for pid in others)


def test_a_spare_that_has_died_is_not_missed(site: Site) -> None:
    supervisor = site.supervisor(lease="4m", spares=1)
    job = shop.wait.enqueue()
    victim = site.seen(job, "begin").pid
    (spare,) = site.until(lambda: set(supervisor.workers()) - {victim}, "the spare")

    for pid in (spare, victim):
        send(pid, signal.SIGKILL)

    assert site.seen(job, "begin", attempt=2).pid not in (spare, victim)
    site.go()
    assert site.ended(job)[0].state == "completed"


def test_a_worker_whose_own_loop_fails_is_replaced(site: Site) -> None:
    site.supervisor(lease="3s", faults={"break_the_beat": True})
    job = shop.wait_in_thread.enqueue()
    first = site.seen(job, "begin")

    site.until(lambda: not alive(first.pid), "the broken worker to end")
    site.go()

    (view,) = site.ended(job)
    assert (view.state, view.failures) == ("completed", 0)
