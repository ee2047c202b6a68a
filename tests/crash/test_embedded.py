"""A worker inside another process: it drains at the end of its block, and stops when its lease is lost."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest

from tenure import Retry
from tenure.errors import TenureError

from . import shop
from .backends import Server, there
from .conftest import Tell
from .harness import HERE, Site, boot, overlaps, runs_of

LEASE = 9.0


@pytest.fixture(autouse=True)
def ledger_here(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers run in this very process."""
    monkeypatch.setenv("TENURE_TEST_LEDGER", str(site.ledger))
    shop._ledger.cache_clear()


@pytest.mark.everyday
@pytest.mark.everywhere
def test_it_runs_jobs_and_leaves_a_declared_death(site: Site) -> None:
    with shop.jobs.worker(concurrency=2):
        jobs = [shop.effect.enqueue(0.05), shop.effect_in_thread.enqueue(0.05)]
        assert [job.result("60s") for job in jobs] == [1, 1]
        (row,) = site.store.workers()
        assert row.identity.runner == "embedded"

    assert site.store.workers() == []
    assert [each.identity.id for each in site.store.workers(dead=True)] == [row.identity.id]


def test_it_drains_at_the_end_of_its_block(site: Site) -> None:
    with shop.jobs.worker():
        job = shop.effect.enqueue(0.5)
        site.seen(job, "begin")

    view = site.job(job)
    assert (view.state, view.attempt) == ("completed", 1)
    assert site.lines(job, "end")


def test_jobs_that_outlast_its_grace_are_handed_back(site: Site) -> None:
    site.configure(grace="200ms")
    with shop.jobs.worker():
        job = shop.wait.enqueue()
        site.seen(job, "begin")

    view = site.job(job)
    assert (view.state, view.failures, view.crashes_total) == ("queued", 0, 0)
    assert set(site.outcomes(job)) == {"released"}  # once more for a claim that was on its way


@pytest.mark.everywhere
def test_it_stops_what_it_runs_when_it_is_declared_dead_and_begins_anew(site: Site, tell: Tell) -> None:
    site.configure(lease="9s", grace="5s")  # too long to expire by itself: it is lost because it is declared dead
    with shop.jobs.worker():
        job = shop.wait.enqueue()
        site.seen(job, "begin")
        old = site.worker(job).identity.id
        at = boot()
        assert site.store.declare_dead([old]) == {old}
        stopped = site.seen(job, "stopped lease_lost")
        site.seen(job, "begin", attempt=2)
        assert site.worker(job).identity.id != old
        site.go()
        assert job.result("60s") == "told"

    assert overlaps(runs_of(site.lines())) == []
    assert [each.died_at is not None for each in site.store.workers(dead=True)] == [True, True]
    tell(f"stopped {stopped.at - at:.2f} s after its death was declared, under a lease of 9 s")


@pytest.mark.needs("transactions")
def test_a_finish_that_is_rolled_back_is_an_ordinary_failure(site: Site) -> None:
    with shop.jobs.worker():
        job = shop.hand_in.using(retry=Retry(3, base="10ms")).enqueue("roll back")
        (view,) = site.ended(job)

    assert (view.state, view.result, view.attempt, view.failures) == ("completed", '"with it"', 2, 1)
    assert overlaps(runs_of(site.lines())) == []


@pytest.mark.needs("transactions")
def test_a_finish_that_committed_stands_whatever_comes_after(site: Site) -> None:
    with shop.jobs.worker():
        job = shop.hand_in.enqueue("raise")
        (view,) = site.ended(job)

    view = site.job(job)
    assert (view.state, view.result, view.attempt, view.failures) == ("completed", '"with it"', 1, 0)


def test_a_forked_child_forgets_what_its_parent_held(site: Site) -> None:
    script = site.folder / "forks.py"
    script.write_text(FORKS)
    told = subprocess.run(
        [sys.executable, str(script)],
        env=site.env("30s", {}, {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == ["parent", "child", "parent"], told.stderr


FORKS = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
import shop

with shop.jobs.worker():
    assert shop.effect.enqueue(0.0).result("60s") == 1
    print("parent", flush=True)
    pid = os.fork()
    if pid == 0:
        with shop.jobs.worker():
            assert shop.effect.enqueue(0.0).result("60s") == 1
        print("child", flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shop.effect.enqueue(0.0).result("60s") == 1
    print("parent", flush=True)
"""


def test_code_that_does_not_stop_keeps_its_slot_and_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.worker.stops.STOP_SECONDS", 0.2)
    with shop.jobs.worker(concurrency=2):
        deaf = shop.effect_in_thread.using(timeout="100ms", retry=1).enqueue(3.0)  # never asks whether it must stop
        site.seen(deaf, "begin")
        later = [shop.effect.enqueue(0.1) for _ in range(8)]
        assert [job.result("60s") for job in later] == [1] * 8

    assert site.ended(deaf)[0].state == "dead"


def test_an_embedded_worker_keeps_its_lease_until_its_last_handler_has_ended(site: Site) -> None:
    site.configure(lease=f"{LEASE:g}s", grace="10m")

    def go_after_a_lease() -> None:
        began = renewed(site)
        site.until(lambda: renewed(site) - began > timedelta(seconds=LEASE), "its lease to be renewed all the while")
        site.go()

    with ThreadPoolExecutor(1) as threads:
        with shop.jobs.worker():
            job = shop.wait_in_thread.enqueue()
            site.seen(job, "begin")
            site.supervisor(lease=f"{LEASE:g}s")  # it takes back what is not renewed
            gone = threads.submit(go_after_a_lease)
        gone.result()

    view = site.job(job)
    assert (view.state, view.attempt, view.crashes_total) == ("completed", 1, 0)


def renewed(site: Site) -> datetime:
    (at,) = (each.renewed_at for each in site.store.workers() if each.identity.runner == "embedded")
    return at


@pytest.mark.needs("server")
def test_its_block_can_be_left_while_the_store_is_away_and_its_job_runs_again(
    site: Site, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = there(site.place, server)
    site.configure(url=here.url)
    script = site.folder / "leaves.py"
    script.write_text(LEAVES)
    left = subprocess.Popen(
        [sys.executable, str(script)],
        env=site.env("30s", {}, {"TENURE_URL": here.url}),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        site.until(lambda: site.lines(event="begin"), "its job to begin")
        server.stop()
        site.go()
        _, told = left.communicate(timeout=60)
    finally:
        with left:
            left.kill()

    assert (left.returncode, len(site.lines(event="end"))) == (0, 1), told
    assert told.count("1 outcome not stored") == 1
    with monkeypatch.context() as patch:
        patch.delenv("TENURE_TEST_LEDGER")  # at its end a site kills what carries it
        server.process.start()
    with shop.jobs.worker():
        site.until(lambda: site.lines(event="end", attempt=2), "its job to run again")


LEAVES = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import shop

with shop.jobs.worker():
    shop.wait.enqueue()
    while not shop.gone_ahead():
        shop.time.sleep(0.01)
"""


def test_a_heartbeat_that_fails_takes_the_worker_down_and_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("a mistake in the store")

    site.configure(lease="9s")
    with pytest.raises(TenureError, match="failed while the block ran") as raised, shop.jobs.worker():
        job = shop.wait.enqueue()
        site.seen(job, "begin")
        monkeypatch.setattr(type(site.store), "renew", broken)
        site.seen(job, "stopped shutdown")
        site.until(lambda: not site.store.workers(), "its death to be declared")
        later = shop.effect.enqueue(0.0)

    assert isinstance(raised.value.__cause__, TypeError)
    assert "TypeError: a mistake in the store" in caplog.text
    assert set(site.outcomes(job)) == {"released"}  # once more for a claim that was on its way
    assert (site.job(job).state, site.job(later).state) == ("queued", "queued")
