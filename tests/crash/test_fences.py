"""How a worker ends when its lease is over: by its supervisor, or by itself if the supervisor hangs."""

from __future__ import annotations

import signal

import pytest

from . import shop
from .harness import Site, alive, send


@pytest.mark.everyday
def test_a_worker_that_was_declared_dead_is_ended_and_its_job_runs_elsewhere(site: Site) -> None:
    supervisor = site.supervisor(lease="9s")
    job = shop.wait.enqueue()
    first = site.seen(job, "begin")

    (worker,) = [each.identity.id for each in site.store.workers() if each.identity.pid == first.pid]
    site.store.declare_dead([worker])
    site.store.rescue()
    site.until(lambda: not alive(first.pid), "it to end")
    site.seen(job, "begin", attempt=2)
    site.go()

    (view,) = site.ended(job)
    assert (view.state, view.attempt) == ("completed", 2)
    site.until(lambda: "it was declared dead" in supervisor.log(), "its supervisor to say why")


def test_deaf_code_dies_with_its_own_process_while_its_supervisor_stands_still(site: Site) -> None:
    supervisor = site.supervisor(lease="3s")
    worker = site.seen(shop.deaf.enqueue(), "begin").pid

    send(supervisor.pid, signal.SIGSTOP)
    try:
        site.until(lambda: not alive(worker), "the worker to end by itself")
    finally:
        send(supervisor.pid, signal.SIGCONT)
