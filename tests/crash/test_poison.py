"""Handlers that take their process along, or can't be stopped: only the guilty are charged, and only afterwards."""

from __future__ import annotations

import pytest

from . import shop
from .conftest import Tell
from .harness import Site, alive, boot, overlaps, runs_of

KILLERS = 8


@pytest.mark.everyday
def test_a_job_that_kills_its_process_is_dead_after_its_budget_and_its_neighbours_complete(
    site: Site, tell: Tell
) -> None:
    site.supervisor(concurrency=21, spares=1)
    jobs = [shop.effect.enqueue(0.6) for _ in range(20)]
    poison = shop.abort.enqueue()

    (dead,) = site.ended(poison)
    views = site.ended(*jobs)

    assert (dead.state, dead.crashes, dead.failures) == ("dead", 4, 0)
    attempts = site.attempts(poison)
    assert [each.outcome for each in attempts] == ["crashed"] * 4
    assert {each.evidence["exit"] for each in attempts} == {"signal 6 (SIGABRT)"}
    assert all("in abort" in each.evidence.get("line", "") for each in attempts), [
        each.evidence.get("line") for each in attempts
    ]
    assert all("MiB" in each.evidence["peak_memory"] for each in attempts)
    assert {view.state for view in views} == {"completed"}
    charged = sorted((view.crashes_total for view in views), reverse=True)
    assert charged[0] <= 2
    assert charged[2] <= 1, "after the common crash at most three run together, with 21 slots"
    tell(f"of 20 neighbours {sum(map(bool, charged))} were charged, {charged.count(2)} of them twice")


@pytest.mark.everywhere
@pytest.mark.timeout(900)
def test_nobody_is_dead_for_the_crashes_of_others(site: Site) -> None:
    """The guilty run one after another in the same few processes as those whose outcomes have just been stored."""
    innocent = [shop.report.enqueue() for _ in range(3)]
    guilty = [shop.kill_itself.enqueue() for _ in range(KILLERS)]
    site.supervisor(concurrency=KILLERS + 3, spares=1)

    dead, ended = site.ended(*guilty, seconds=600.0), site.ended(*innocent)

    assert [(view.state, view.crashes) for view in dead] == [("dead", 4)] * KILLERS
    assert [(view.state, view.crashes_total <= 1) for view in ended] == [("completed", True)] * 3, [
        (view.state, view.crashes_total) for view in ended
    ]


def test_a_thread_that_ignores_its_timeout_has_no_outcome_before_its_process_is_gone(site: Site) -> None:
    site.supervisor(grace="1s", faults={"stop_seconds": 1.0})
    neighbours = [shop.wait.enqueue(), shop.wait_in_thread.enqueue()]
    for job in neighbours:
        site.seen(job, "begin")
    deaf = shop.deaf_in_thread.enqueue()
    pid = site.seen(deaf, "begin").pid

    site.until(lambda: site.job(deaf).state != "processing", "its outcome")
    assert not alive(pid), "it had an outcome while its code ran"
    site.go()

    (view,) = site.ended(deaf)
    assert (view.state, view.failures, view.crashes_total) == ("dead", 1, 0)
    assert "timed out after 300ms" in (view.error or "")
    for neighbour, ended in zip(neighbours, site.ended(*neighbours), strict=True):
        assert (ended.state, ended.attempt, ended.failures, ended.crashes_total) == ("completed", 2, 0, 0)
        assert site.outcomes(neighbour) == ["released"]
    assert overlaps(runs_of(site.lines())) == []


def test_a_coroutine_that_swallows_every_cancel_is_stopped_with_its_process(site: Site) -> None:
    site.supervisor(faults={"stop_seconds": 1.0})
    job = shop.deaf.using(timeout="300ms").enqueue()
    pid = site.seen(job, "begin").pid

    site.seen(job, "swallowed timeout")
    (view,) = site.ended(job)

    assert not alive(pid)
    assert (view.state, view.failures, view.crashes_total) == ("dead", 1, 0)
    assert "timed out after 300ms" in (view.error or "")


@pytest.mark.parametrize("code", [0, 3])
def test_a_handler_that_exits_the_process_has_crashed(site: Site, code: int) -> None:
    site.supervisor(env={"TENURE_RETRY_CAP": "50ms"})
    job = shop.leave.enqueue(code)

    (view,) = site.ended(job)

    assert (view.state, view.crashes, view.failures) == ("dead", 4, 0)
    assert {each.evidence["exit"] for each in site.attempts(job)} == {f"exit code {code}"}


def test_garbage_on_standard_output_harms_nobody(site: Site) -> None:
    supervisor = site.supervisor()
    noisy, quiet = shop.garble.enqueue(), shop.effect.enqueue(0.1)

    (said, other) = site.ended(noisy, quiet)

    assert "UnicodeEncodeError" in (said.error or "") or said.state == "completed"
    assert other.state == "completed"
    assert supervisor.stop() == 0


def test_what_a_finished_handler_left_behind_ends_with_its_worker(site: Site) -> None:
    supervisor = site.supervisor()
    job = shop.litter.enqueue()
    child = int(site.seen(job, "child").event.split()[1])
    (view,) = site.ended(job)
    assert (view.state, view.attempt) == ("completed", 1)
    assert alive(child)

    assert supervisor.stop() == 0

    site.until(lambda: not alive(child), "what it left behind to end")


def test_a_thread_that_never_ends_is_released_at_drain_only_when_its_process_is_gone(site: Site, tell: Tell) -> None:
    supervisor = site.supervisor(grace="500ms", faults={"stop_seconds": 1.0})
    job = shop.stay.enqueue()
    pid = site.seen(job, "begin").pid

    at = boot()
    assert supervisor.stop() == 0
    took = boot() - at

    assert not alive(pid)
    view = site.job(job)
    assert (view.state, view.failures, view.crashes_total) == ("queued", 0, 0)
    assert set(site.outcomes(job)) == {"released"}  # twice if a claim was on its way
    site.supervisor()
    assert site.ended(job)[0].state == "completed"
    tell(f"drained in {took:.1f} s with 0.5 s of grace and 1 s to stop")
