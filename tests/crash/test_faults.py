"""The environment: a full disk, a file opened behind our back, a task that is gone, a folder that can't be written."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw
import pytest

from . import shop
from .backends import Backend
from .conftest import Tell
from .harness import Site, boot, filled, overlaps, runs_of, small_disk

LEASE = 3.0


@contextmanager
def full(site: Site, disk: Path | None, pids: list[int]) -> Iterator[None]:
    """No process can write a byte to the database meanwhile."""
    if disk is not None:
        connection = apsw.Connection(str(disk / "tenure.db"))
        connection.set_busy_timeout(5_000)
        connection.pragma("wal_checkpoint", "TRUNCATE")  # otherwise its log has room for a while
        connection.close()
        with filled(disk):
            yield
        return
    limits = resource.prlimit(pids[0], resource.RLIMIT_FSIZE)
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
    yield
    for pid in (pids[0], *site.living()):  # the supervisor first: what it has started meanwhile has its limit
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@pytest.mark.needs("file")
@pytest.mark.parametrize("leases", [0.25, 2.0], ids=["shorter than a beat", "two leases"])
def test_a_full_disk_loses_nothing(backend: Backend, tmp_path: Path, tell: Tell, leases: float) -> None:
    with small_disk(tmp_path) as disk, backend.place(disk or tmp_path) as place, Site(tmp_path, place) as site:
        supervisor = site.supervisor(lease=f"{LEASE:g}s", workers=2, concurrency=2)
        jobs = [shop.effect.enqueue(0.05) for _ in range(300)]
        site.until(lambda: len(site.lines(event="end")) > 20, "some jobs to have run")

        with full(site, disk, [supervisor.pid, *supervisor.workers()]):
            site.until(lambda: "the store is unavailable" in supervisor.log(), "the store to be missed")
            at = boot()
            ended = len(site.lines(event="end"))
            site.until(lambda: boot() - at > leases * LEASE, "the disk to stay full", 60)
            during = len(site.lines(event="end")) - ended

        views = site.ended(*jobs, seconds=90)
        assert {view.state for view in views} == {"completed"}
        runs = runs_of(site.lines())
        assert overlaps(runs) == []
        assert all(len(runs[view.id]) <= view.attempt for view in views)
        assert max(view.crashes_total for view in views) == 0
        assert supervisor.stop() == 0
        again = sum(view.attempt > 1 for view in views)
        how = "a small tmpfs" if disk else "RLIMIT_FSIZE"
        tell(f"{how}, full for {leases * LEASE:g} s: {during} jobs ended meanwhile, {again} of {len(jobs)} ran again")


@pytest.mark.needs("file")
@pytest.mark.parametrize("how", ["sqlite3", "open"])
def test_a_handler_that_opens_the_databases_file_is_refused_with_a_sentence(site: Site, how: str) -> None:
    site.supervisor()
    job = shop.peek.enqueue(str(site.folder / "tenure.db"), how)

    (view,) = site.ended(job)

    assert view.state == "dead"
    assert "is open in Tenure in this process" in (view.error or "")
    assert "tenure backup" in (view.error or "")


@pytest.mark.everyday
def test_a_task_that_is_gone_is_snoozed_uncharged_and_runs_when_it_is_back(site: Site) -> None:
    without = site.supervisor(faults={"without": "seasonal"})
    job = shop.seasonal.enqueue()

    site.until(lambda: site.job(job).state == "scheduled", "the snooze")
    view = site.job(job)
    assert (view.failures, view.crashes_total, site.outcomes(job)) == (0, 0, ["snoozed"])
    assert "knows no task 'seasonal'" in site.attempts(job)[0].error
    assert without.stop() == 0

    site.supervisor()
    site.store.promote_now([str(job.id)])
    (view,) = site.ended(job)
    assert (view.state, view.failures, view.crashes_total) == ("completed", 0, 0)


@pytest.mark.needs("file")
@pytest.mark.parametrize(
    ("folder", "sentence"),
    [("/proc", "can't be written"), ("/nowhere/at/all", "is not a folder: create it")],
    ids=["not writable", "not there"],
)
def test_a_folder_that_cannot_hold_the_store_ends_the_start_with_2_and_a_sentence(
    site: Site, folder: str, sentence: str
) -> None:
    supervisor = site.supervisor(url=f"sqlite:///{folder}/tenure.db")

    assert supervisor.exit_code() == 2

    log = supervisor.log()
    assert sentence in log
    assert "Traceback" not in log
    assert len(re.findall(re.escape(sentence), log)) == 1
