"""Cancel, timeout and hang: which process requests the stop, how soon it takes effect, and what is charged."""

from __future__ import annotations

import pytest

from tenure import Task

from . import shop
from .conftest import Tell
from .harness import Site, boot

BEAT = 80.0  #: longer than the test waits
BOTH = pytest.mark.parametrize("task", [shop.wait, shop.wait_in_thread], ids=["on the loop", "in a thread"])


@pytest.mark.everyday
@pytest.mark.everywhere
@pytest.mark.needs("bell")
@BOTH
def test_a_cancel_is_heard_at_once_by_the_ring(site: Site, tell: Tell, task: Task[[], str]) -> None:
    site.supervisor(lease="4m")  # so that it can't be a beat that brings it
    job = task.enqueue()
    site.seen(job, "begin")

    at = boot()
    assert job.cancel("not needed any more")
    stopped = site.seen(job, "stopped cancel", seconds=60)

    (view,) = site.ended(job)
    assert (view.state, view.attempt, view.failures, view.crashes_total) == ("cancelled", 1, 0, 0)
    assert view.cancel_reason == "not needed any more"
    assert site.outcomes(job) == ["cancelled"]
    tell(f"from cancel() to the handler's stop {(stopped.at - at) * 1000:.0f} ms, under a beat of 80 s")


@BOTH
def test_a_cancel_without_a_ring_is_heard_within_a_beat(site: Site, tell: Tell, task: Task[[], str]) -> None:
    site.supervisor(lease=f"{3 * BEAT:g}s", env={"TENURE_NOTIFIER": "poll"})
    job = task.enqueue()
    site.seen(job, "begin")

    at = boot()
    site.store.cancel([str(job.id)], "quietly")
    stopped = site.seen(job, "stopped cancel", seconds=60)

    assert site.ended(job)[0].state == "cancelled"
    tell(f"after {stopped.at - at:.2f} s, with a beat of {BEAT:g} s")


@pytest.mark.parametrize("task", [shop.late, shop.late_in_thread], ids=["on the loop", "in a thread"])
def test_a_timeout_is_charged_as_a_failure(site: Site, task: Task[[], None]) -> None:
    site.supervisor()
    again, last = task.using(retry=3).enqueue(), task.using(retry=1).enqueue()

    views = site.ended(again, last)

    assert [(view.state, view.failures, view.crashes_total) for view in views] == [("dead", 3, 0), ("dead", 1, 0)]
    assert site.outcomes(again) == ["failed"] * 3
    assert all("timed out after 300ms" in (view.error or "") for view in views)


def test_a_silent_job_is_charged_as_a_crash(site: Site) -> None:
    site.supervisor()
    job = shop.hang.enqueue()

    (view,) = site.ended(job)

    assert (view.state, view.failures, view.crashes) == ("dead", 0, 1)
    assert "hung: no progress for 500ms" in (view.error or "")


def test_a_silent_thread_takes_its_process_along_before_it_is_charged(site: Site) -> None:
    site.supervisor(grace="500ms", faults={"stop_seconds": 1.0})
    neighbour, job = shop.wait.enqueue(), shop.hang_in_thread.enqueue()
    site.seen(neighbour, "begin")
    site.seen(job, "begin")

    (view,) = site.ended(job)
    site.go()

    assert (view.state, view.failures, view.crashes) == ("dead", 0, 1)
    assert "hung" in (view.error or "")
    (beside,) = site.ended(neighbour)
    assert (beside.state, beside.failures, beside.crashes_total) == ("completed", 0, 0)
