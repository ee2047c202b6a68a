"""A handler that blocks everything in its process costs nobody a job, and is named."""

from __future__ import annotations

import re

import pytest

from tenure import Task

from . import shop
from .conftest import Tell
from .harness import Site, boot

LEASE = 3.0


@pytest.mark.parametrize("task", [shop.block_the_loop, shop.hold_the_gil], ids=lambda task: task.name)
def test_a_handler_that_blocks_its_process_for_two_leases_keeps_its_job_and_is_named(
    site: Site, tell: Tell, task: Task[[], None]
) -> None:
    supervisor = site.supervisor(lease=f"{LEASE:g}s")
    neighbour = shop.tick.enqueue()
    site.seen(neighbour, "tick")

    job = task.enqueue()
    began = site.seen(job, "begin").at
    place = rf"{task.name} at \S*shop\.py:\d+"
    note = site.until(lambda: re.findall(f".*{place}", site.worker(job).note), "the note on its worker")
    site.until(lambda: boot() - began > 2 * LEASE, "two leases to pass")
    site.go()

    views = site.ended(job, neighbour)
    assert [(view.state, view.attempt, view.crashes_total) for view in views] == [("completed", 1, 0)] * 2
    log = supervisor.log()
    assert re.search(rf"its loop is blocked for .* by {place} \(jobs {job.id}\)", log), log
    site.until(lambda: not any(each.note for each in site.store.workers()), "the note to go")
    tell(f"{2 * LEASE:g} s under a lease of {LEASE:g} s: attempt 1 to its end; note: {note[0]}")
