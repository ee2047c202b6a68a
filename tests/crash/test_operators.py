"""What operators see and do of workers: how one ended, the stack of a running handler, a drain, a restart."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tenure.operations.workers import Ending, Ran, ending
from tenure.tasks.handle import JobHandle

from . import shop
from .harness import Site, Supervised, send


def pid_of(site: Site, job: JobHandle[Any]) -> int:
    return site.seen(job, "begin").pid


def ends(site: Site, pid: int) -> Ending | None:
    """How the worker with this pid ended."""
    return next((ending(each) for each in site.store.workers(dead=True) if each.identity.pid == pid), None)


# ── how a worker ended ──


@pytest.mark.everyday
@pytest.mark.everywhere
def test_a_killed_worker_is_on_record_with_its_signal_and_the_jobs_it_ran(site: Site) -> None:
    jobs = [shop.wait.enqueue(), shop.wait_in_thread.enqueue()]
    site.supervisor(concurrency=2)
    pids = {pid_of(site, job) for job in jobs}
    (pid,) = pids

    send(pid, signal.SIGKILL)

    end = site.until(lambda: ends(site, pid), "how it ended")
    assert end.how == "its process ended: signal 9 (SIGKILL)"
    assert set(end.ran) == {Ran(str(jobs[0].id), "wait"), Ran(str(jobs[1].id), "wait_in_thread")}
    site.go()
    assert [view.state for view in site.ended(*jobs)] == ["completed"] * 2


def test_a_worker_that_exits_by_itself_is_on_record_with_its_exit_code(site: Site) -> None:
    job = shop.leave.enqueue(3)
    site.supervisor()

    pid = pid_of(site, job)

    end = site.until(lambda: ends(site, pid), "how it ended")
    assert (end.how, [each.task for each in end.ran]) == ("its process ended: exit code 3", ["leave"])


def test_a_worker_that_drained_says_so(site: Site) -> None:
    supervisor: Supervised = site.supervisor()
    job = shop.wait.enqueue()
    pid = pid_of(site, job)

    send(pid, signal.SIGTERM)
    site.go()

    end = site.until(lambda: ends(site, pid), "how it ended")
    assert end == Ending("it drained, and stopped")
    assert supervisor.stop() == 0
