"""Signals: one lets running jobs finish, two hand them back; one worker can be drained alone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tenure.tasks.handle import JobHandle

from . import shop
from .altered import altered
from .backends import Place, Server, there
from .conftest import Tell
from .harness import Site, Supervised, alive, boot, children, send

BRIEFLY = "from tenure.supervisor import watch; watch.END_SECONDS = 1.0"
#: Once the file is there, 1,000 s have passed while the machine slept.
SLEEPY = """
import dataclasses, pathlib
from tenure.supervisor import supervisor
true, slept = supervisor.system_clock(), pathlib.Path("slept")
told = dataclasses.replace(true, boot=lambda: true.boot() + 1000.0 * slept.exists())
supervisor.system_clock = lambda: told
"""
#: The store is away the first three times that a process asks what is in the queues.
BLINKING = """
from tenure.errors import StoreAway
from tenure.stores.sqlite import SqliteStore
looks, queues = iter(range(3)), SqliteStore.queues
def blink(store):
    for look in looks:
        raise StoreAway(f"gone for a moment, {look}")
    return queues(store)
SqliteStore.queues = blink
"""
#: A resource that does not close, and says so on its own loop, which goes on.
HANGING = """
import asyncio, pathlib
from tenure import Tenure
jobs = Tenure()
class Pool: ...
@jobs.resource
async def pool():
    yield Pool()
    pathlib.Path("closing").touch()
    await asyncio.Event().wait()
@jobs.task
async def quick():
    return 1
"""
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def running(site: Site, supervisor: Supervised, *jobs: JobHandle[str]) -> Supervised:
    for job in jobs:
        site.seen(job, "begin")
    return supervisor


@pytest.mark.everyday
@pytest.mark.everywhere
def test_one_signal_lets_running_jobs_finish(site: Site) -> None:
    one_signal_lets_running_jobs_finish(site, signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_so_does_one_of_another_kind(site: Site, number: int) -> None:
    one_signal_lets_running_jobs_finish(site, number)


def one_signal_lets_running_jobs_finish(site: Site, number: int) -> None:
    jobs = [shop.wait.enqueue(), shop.wait_in_thread.enqueue()]
    supervisor = running(site, site.supervisor(concurrency=2), *jobs)

    supervisor.signal(number)
    site.go()

    assert supervisor.exit_code() == 0
    assert [(site.job(job).state, site.job(job).attempt) for job in jobs] == [("completed", 1)] * 2
    assert site.store.workers() == [], "nobody is left to wait for"


@pytest.mark.everyday
@pytest.mark.everywhere
def test_a_second_signal_hands_running_jobs_back_uncharged(site: Site, tell: Tell) -> None:
    jobs = [shop.wait.enqueue(), shop.wait_in_thread.enqueue()]
    supervisor = running(site, site.supervisor(grace="10m"), *jobs)

    supervisor.signal(signal.SIGTERM)
    at = boot()
    supervisor.signal(signal.SIGINT)  # a different one: two of the same that are pending together arrive as one
    assert supervisor.exit_code() == 0
    took = boot() - at

    for job in jobs:
        view = site.job(job)
        assert (view.state, view.failures, view.crashes_total) == ("queued", 0, 0)
        # Twice, if a claim that was on its way when the worker was told got the job that had just been handed back.
        assert site.outcomes(job) in (["released"], ["released", "released"])
        assert site.lines(job, "stopped shutdown")
    handed_back = [len(site.outcomes(job)) for job in jobs]
    site.go()
    site.supervisor()
    assert [(view.state, view.attempt - 1) for view in site.ended(*jobs)] == [("completed", n) for n in handed_back]
    tell(f"two signals: ended after {took * 1000:.0f} ms")


def test_jobs_that_outlast_the_grace_are_handed_back(site: Site) -> None:
    job = shop.wait.enqueue()
    supervisor = running(site, site.supervisor(grace="300ms"), job)

    assert supervisor.stop() == 0

    assert site.job(job).state == "queued"
    assert set(site.outcomes(job)) == {"released"}  # twice if a claim was on its way


def test_sigterm_to_one_worker_drains_it_alone_and_it_is_replaced(site: Site) -> None:
    supervisor = site.supervisor(workers=2, concurrency=1)
    jobs = [shop.wait.enqueue(), shop.wait.enqueue()]
    first, other = (site.seen(job, "begin").pid for job in jobs)
    before = set(supervisor.workers())
    assert {first, other} == before

    send(first, signal.SIGTERM)
    later = shop.effect.enqueue(0.0)
    site.go()

    assert [(view.state, view.attempt) for view in site.ended(*jobs, later)] == [("completed", 1)] * 3
    site.until(lambda: not alive(first), "the drained worker to end")
    site.until(lambda: len(set(supervisor.workers()) - before) == 1, "its replacement")
    assert alive(other)
    assert supervisor.process.poll() is None


def test_ctrl_c_for_the_whole_foreground_group_is_one_signal(site: Site) -> None:
    job = shop.wait.enqueue()
    supervisor = running(site, site.supervisor(), job)

    os.killpg(supervisor.pid, signal.SIGINT)
    for worker in supervisor.workers():  # a terminal's Ctrl-C also reaches those that share its group
        send(worker, signal.SIGINT)
    site.go()

    assert supervisor.exit_code() == 0
    assert (site.job(job).state, site.job(job).attempt) == ("completed", 1)


def test_three_signals_kill(site: Site) -> None:
    job = shop.stay.enqueue()
    supervisor = site.supervisor(grace="10m", faults={"stop_seconds": 600.0})
    site.seen(job, "begin")

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        supervisor.signal(number)
    supervisor.exit_code(60)  # it did not wait for the thread

    assert site.job(job).state == "queued"
    assert site.outcomes(job) == ["released"]


@pytest.mark.parametrize(
    ("grace", "signals"),
    [("100ms", [signal.SIGTERM]), ("10m", [signal.SIGTERM, signal.SIGINT])],
    ids=["once", "twice, in its grace"],
)
def test_a_worker_that_does_not_even_hear_that_it_is_to_end_is_ended(
    site: Site, grace: str, signals: Sequence[int]
) -> None:
    neighbour = shop.wait.enqueue()
    supervisor = running(site, site.supervisor(grace=grace, lease="1h", before=altered(BRIEFLY)), neighbour)
    job = shop.block_the_loop.enqueue()
    pid = site.seen(job, "begin").pid

    for number in signals:
        supervisor.signal(number)

    assert supervisor.exit_code(60) == 0
    assert not alive(pid)
    for each in (job, neighbour):
        view = site.job(each)
        assert (view.state, view.failures, view.crashes_total) == ("queued", 0, 0)
        assert site.outcomes(each) == ["released"]


@pytest.mark.thorough
def test_a_worker_that_drains_by_itself_and_does_not_end_is_replaced(site: Site) -> None:
    (site.folder / "hanging.py").write_text(HANGING)
    supervisor = site.supervisor(app="hanging", workers=1, grace="100ms", before=altered(BRIEFLY))
    (pid,) = site.until(lambda: [each.identity.pid for each in site.store.workers()], "it to begin")

    send(pid, signal.SIGTERM)  # to the worker alone
    site.until((site.folder / "closing").exists, "its resource to close")
    site.until(lambda: not alive(pid), "it to be killed")

    (after,) = site.until(lambda: [each for each in site.store.workers() if each.identity.pid != pid], "another one")
    assert after.identity.pid in supervisor.workers()
    assert "it was told to exit, and did not" in supervisor.log()
    assert "its loop is blocked" not in supervisor.log()


def test_nobody_is_ended_for_the_time_in_which_the_machine_slept(site: Site) -> None:
    job = shop.block_the_loop.enqueue()
    supervisor = site.supervisor(grace="1m", lease="1h", before=altered(SLEEPY))
    site.seen(job, "begin")

    supervisor.signal(signal.SIGTERM)
    (site.folder / "slept").touch()
    site.until(lambda: re.search(r"its loop is blocked for 1\dm", supervisor.log()), "its supervisor to wake up")
    site.go()

    assert supervisor.exit_code(60) == 0
    assert (site.job(job).state, site.job(job).attempt) == ("completed", 1)


@pytest.mark.needs("server")
def test_nobody_is_ended_for_the_time_in_which_the_store_was_away(place: Place, server: Server, tmp_path: Path) -> None:
    with Site(tmp_path, there(place, server)) as site:
        job = shop.wait.enqueue()
        patience = "from tenure.supervisor import watch; watch.END_SECONDS = 10.0"
        supervisor = running(site, site.supervisor(grace="100ms", lease="2m", before=altered(patience)), job)
        server.stop()
        site.until(lambda: "the store is unavailable" in supervisor.log(), "its absence to be noticed", 60.0)
        site.go()
        site.seen(job, "end")

        supervisor.signal(signal.SIGTERM)
        time.sleep(14.0)  # the absence itself: nothing is waited for
        server.process.start()

        assert supervisor.exit_code(60) == 0
        assert (site.job(job).state, site.job(job).attempt) == ("completed", 1)


@pytest.mark.needs("file")
def test_until_empty_outlives_a_store_that_is_away_when_it_looks_what_is_left(site: Site) -> None:
    job = shop.effect.enqueue(0.01)
    supervisor = site.supervisor(until_empty=True, before=altered(BLINKING))

    assert supervisor.exit_code(60) == 0
    assert site.job(job).state == "completed"
    assert "gone for a moment" in supervisor.log()


def test_until_empty_runs_what_there_is_and_exits_0(site: Site) -> None:
    jobs = [shop.effect.enqueue(0.01) for _ in range(30)]

    supervisor = site.supervisor(until_empty=True, workers=2)

    assert supervisor.exit_code() == 0
    assert {site.job(job).state for job in jobs} == {"completed"}


def test_until_empty_says_what_a_paused_queue_holds_and_ends(site: Site) -> None:
    site.store.pause("default", paused=True)
    job = shop.effect.enqueue(0.01)

    supervisor = site.supervisor(until_empty=True)

    assert supervisor.exit_code(60) == 0
    assert site.job(job).state == "queued"
    assert "1 queued in default, which is paused" in supervisor.log()


def test_until_empty_runs_what_waits_for_its_own_jobs(site: Site) -> None:
    first = shop.effect.enqueue(0.01)
    second = shop.effect.using(after=[first]).enqueue(0.01)
    third = shop.effect.using(after=[second]).enqueue(0.01)

    supervisor = site.supervisor(until_empty=True)

    assert supervisor.exit_code(60) == 0
    assert {site.job(job).state for job in (first, second, third)} == {"completed"}


def test_until_empty_does_not_wait_for_the_jobs_of_tomorrow(site: Site) -> None:
    tomorrow = shop.effect.using(delay="1d").enqueue(0.01)
    after = shop.effect.using(after=[tomorrow]).enqueue(0.01)

    supervisor = site.supervisor(until_empty=True)

    assert supervisor.exit_code(60) == 0
    assert site.job(after).state == "waiting"
    assert "1 waiting in default, for other jobs, a signal or a place" in supervisor.log()


def test_until_empty_waits_for_a_job_that_must_run_alone(site: Site) -> None:
    job = shop.climb.enqueue()
    supervisor = site.supervisor(until_empty=True)
    send(site.seen(job, "half").pid, signal.SIGKILL)

    assert supervisor.exit_code() == 0

    assert (site.job(job).state, site.job(job).attempt) == ("completed", 2)


def unshare_works() -> bool:
    return (
        shutil.which("unshare") is not None and subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0
    )


def test_it_works_as_pid_1_and_reaps_what_it_inherits(site: Site) -> None:
    if not unshare_works():
        pytest.skip("unshare --pid is not permitted here")
    outer = site.supervisor(before=UNSHARE)
    orphaned, job = shop.orphan.enqueue(), shop.wait.enqueue()
    site.seen(job, "begin")
    site.ended(orphaned)
    (first,) = children(outer.pid)

    site.until(lambda: len(children(first)) == 1, "no zombie, and nobody but its worker, to be left")
    crashed = shop.leave.using(retry=1).enqueue(0)
    site.seen(crashed, "begin", attempt=2)  # a worker that died was replaced
    send(first, signal.SIGTERM)
    site.go()

    assert outer.exit_code() == 0
    assert site.job(job).state == "completed"
