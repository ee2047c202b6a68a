"""A handler that blocks everything in its process costs nobody a job, and is named."""

from __future__ import annotations

import re

import pytest

from tenure import Task
from tenure.core.ids import new_id
from tenure.ports import Draft, JobView

from . import shop
from .altered import altered
from .conftest import Tell
from .harness import Site, boot

LEASE = 9.0


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


BLOCKS = """
import asyncio, time
from pathlib import Path
from tenure import Job, Tenure

jobs = Tenure()

@jobs.task(max_crashes=0)
async def blocks(job: Job) -> None:
    Path("blocked").touch()
    time.sleep(1000)

@jobs.task(stale_after="1s", max_crashes=0)
async def reports(job: Job) -> None:
    while not Path("blocked").exists() or job.attempt == 1:
        job.progress(0.5)
        await asyncio.sleep(0.1)
"""
IMPATIENT = "import tenure.supervisor.upkeep as upkeep, tenure.supervisor.process as process\n" + "\n".join(
    f"{module}.HUNG_GRACE_SECONDS = 2.0" for module in ("upkeep", "process")
)


def test_code_that_never_unblocks_the_loop_is_charged_and_not_those_it_silences(site: Site) -> None:
    (site.folder / "blocks.py").write_text(BLOCKS)
    victims = [Draft(id=new_id(), task="reports", payload="{}", stale_after=1.0, max_crashes=0) for _ in range(3)]
    site.store.enqueue(victims)
    site.supervisor(app="blocks", lease="9s", before=altered(IMPATIENT))
    site.until(lambda: all((row := site.store.get(each.id)) and row.progress for each in victims), "their reports")
    blocker = Draft(id=new_id(), task="blocks", payload="{}", max_crashes=0)
    site.store.enqueue([blocker])

    def ended() -> list[JobView] | None:
        rows = [row for each in (blocker, *victims) if (row := site.store.get(each.id)) is not None]
        return rows if all(row.ended_at is not None for row in rows) else None

    guilty, *innocent = site.until(ended, "their ends")
    assert (guilty.state, guilty.crashes_total) == ("dead", 1)
    assert "it blocked its worker's event loop" in (guilty.error or "")
    assert [(row.state, row.crashes_total) for row in innocent] == [("completed", 0)] * 3
