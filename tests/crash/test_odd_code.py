"""What odd code of users may do to its worker and its neighbours: nothing."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from tenure.core.ids import new_id
from tenure.ports import Draft, JobView

from . import shop
from .altered import altered
from .harness import Site, alive, send

THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
#: A supervisor that is told to stop at the moment when it has started a worker, and has not yet recorded it.
INTERRUPTED = """
import signal
from tenure.supervisor.process import WorkerProcess
start = WorkerProcess.start
def interrupted(*given):
    child = start(*given)
    with open("started", "a") as file:
        file.write(f"{child.process.pid}\\n")
    signal.raise_signal(signal.SIGTERM)
    return child
WorkerProcess.start = interrupted
"""
ODD = """
import asyncio, sys, time
from tenure import Fail, Job, Snooze, Tenure

jobs = Tenure()

@jobs.task
async def leaves() -> None:
    asyncio.create_task(exits())
    await asyncio.sleep(0.5)

async def exits() -> None:
    sys.exit(3)

@jobs.task
async def neighbour() -> None:
    await asyncio.sleep(1.5)

@jobs.task(retry=1)
def fails() -> None:
    raise Fail(ValueError("no such order"))

@jobs.task(retry=1)
async def snoozes(job: Job) -> None:
    if job.attempt == 1:
        raise Snooze("50ms", None)

@jobs.task
def tidies_up(job: Job) -> None:
    with jobs.transaction() as tx:
        job.finish(tx=tx)
    time.sleep(4.5)
    open("tidied", "a").write(".")

@jobs.task
async def tidies_up_on_the_loop(job: Job) -> None:
    job.progress(1.0)
    async with jobs.atransaction() as tx:
        await job.afinish(tx=tx)
    await asyncio.sleep(4.5)
    open("tidied", "a").write(".")
"""


def run(site: Site, *tasks: str, **order: object) -> list[JobView]:
    """Run one job of each task in one worker, to their ends."""
    (site.folder / "odd.py").write_text(ODD)
    drafts = [Draft(id=new_id(), task=task, payload="{}", max_failures=1) for task in tasks]
    site.store.enqueue(drafts)
    site.supervisor(app="odd", **order)  # type: ignore[arg-type]
    return [site.until(lambda name=draft.id: ended(site, name), f"the end of {draft.task}") for draft in drafts]  # type: ignore[misc]


def ended(site: Site, job_id: str) -> JobView | None:
    view = site.store.get(job_id)
    return view if view is not None and view.ended_at is not None else None


def attempts(views: Sequence[JobView]) -> list[tuple[str, int, int]]:
    return [(str(view.state), view.attempt, view.crashes_total) for view in views]


def test_a_task_of_a_handler_that_exits_takes_nobody_along(site: Site) -> None:
    assert attempts(run(site, "leaves", "neighbour")) == [("completed", 1, 0)] * 2


def test_a_reason_that_is_no_text_ends_the_attempt_all_the_same(site: Site) -> None:
    failed, snoozed = run(site, "fails", "snoozes")
    assert (failed.state, failed.error, snoozed.state, snoozed.attempt) == ("dead", "no such order", "completed", 2)


@pytest.mark.needs("transactions")
def test_code_that_goes_on_after_its_finish_has_not_lost_its_lease(site: Site) -> None:
    views = run(site, "tidies_up", "tidies_up_on_the_loop", "neighbour", lease="12s")  # a beat comes while they run on
    assert attempts(views) == [("completed", 1, 0)] * 3
    tidied = site.folder / "tidied"
    site.until(lambda: tidied.exists() and len(tidied.read_text()) == 2, "their code to end")
    assert "lost its lease" not in site.logs()
    assert "asked to stop" not in site.logs()


@pytest.mark.everyday
def test_an_app_that_hangs_in_its_import_ends_at_the_first_signal(site: Site) -> None:
    (site.folder / "odd.py").write_text("import os, time\nopen('importing', 'w').close()\ntime.sleep(1000)\n")
    supervisor = site.supervisor(app="odd")
    site.until((site.folder / "importing").exists, "the import to hang")

    supervisor.signal(signal.SIGTERM)

    assert supervisor.exit_code() == 0


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("from tenure import Tenure\njobs = Tenure()\n", "the app has no tasks"),
        ("raise RuntimeError('no')\n", "the app can't be imported: RuntimeError: no"),
        ("import sys; sys.exit(0)\n", "the app can't be imported: SystemExit: 0"),
    ],
    ids=["without tasks", "broken", "exits"],
)
def test_an_app_that_is_refused_ends_also_if_it_has_started_a_thread(site: Site, app: str, told: str) -> None:
    (site.folder / "odd.py").write_text(THREAD + app)
    supervisor = site.supervisor(app="odd")

    assert supervisor.exit_code(60) == 2
    assert told in supervisor.log()


def test_no_worker_outlives_a_signal_that_came_while_it_was_being_started(site: Site) -> None:
    (site.folder / "odd.py").write_text("import time\ntime.sleep(1000)\n")
    supervisor = site.supervisor(app="odd", workers=2, before=altered(INTERRUPTED))

    assert supervisor.exit_code(60) == 0
    (pid,) = (site.folder / "started").read_text().split()  # and none was started after it
    assert not alive(int(pid))


def test_until_empty_is_not_ended_by_a_worker_that_drains_alone(site: Site) -> None:
    jobs = [shop.effect.enqueue(0.3) for _ in range(8)]
    supervisor = site.supervisor(concurrency=1, until_empty=True)
    site.seen(jobs[0], "begin")
    (worker,) = site.store.workers()

    send(worker.identity.pid, signal.SIGTERM)

    assert supervisor.exit_code() == 0
    assert [view.state for view in site.ended(*jobs)] == ["completed"] * 8
