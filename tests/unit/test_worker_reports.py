"""What an attempt reports and raises in a worker: nothing of it is lost, and no job holds up or misleads another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance.factories import look, put, start
from tenure import Job, Retry, Snooze, Tenure
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Lease, Outcome, State
from tenure.errors import LeaseLost, Locked, StoreBusy
from tenure.ports import Claimed, Filter, Progress
from tenure.stores.memory import MemoryStore
from tenure.worker import misfits, reports
from tenure.worker.executor import Attempt, Host, _Inline
from tenure.worker.signals import signal_in
from tenure.worker.slots import Backlog, End, Slots
from tenure.worker.stops import StopWatch
from tenure.worker.tally import Tally
from waiting import until

SECONDS = 30.0


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    store = MemoryStore(system_clock())
    monkeypatch.setattr("tenure.app.backends.open_store", lambda _: store)
    monkeypatch.setattr("tenure.worker.access.RETRY_SECONDS", 0.02)
    monkeypatch.setattr("tenure.worker.flusher.BUSY_SECONDS", 0.02)
    return store


@pytest.fixture
def jobs() -> Tenure:
    jobs = Tenure("memory:", notifier="poll", retry=Retry(1))
    jobs.configure({"poll_interval": "50ms", "grace": "0s"})
    return jobs


def test_a_newer_report_is_not_lost_while_one_that_was_not_stored_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, jobs = MemoryStore(system_clock()), Tenure("memory:")
    worker_id = start(store)
    put(store, task="pack")
    (claimed,) = store.claim(worker_id, {"default": 1}, 1)

    @jobs.task
    async def pack() -> None: ...

    async def story() -> str | None:
        host = SimpleNamespace(worker_id=worker_id, store=store, reported=lambda _: None)
        attempt = Attempt(cast(Host, host), pack, claimed, asyncio.get_running_loop())
        reporting = threading.Thread(target=lambda: attempt.report(None, None, None, "2"))

        def replace_slowly(report: Progress, **changes: Any) -> Progress:
            reporting.start()
            reporting.join(0.2)  # it waits for its turn
            return replace(report, **changes)

        monkeypatch.setattr(reports, "replace", replace_slowly)
        attempt.put_back(Progress(lease=attempt.lease, checkpoint="1"))
        reporting.join()
        return attempt.unstored

    assert asyncio.run(story()) == "2"


def test_a_lease_that_is_found_lost_twice_interrupts_no_cleanup() -> None:
    store, jobs, story = MemoryStore(system_clock()), Tenure("memory:"), list[str]()
    worker_id = start(store)
    put(store, task="pack")
    (claimed,) = store.claim(worker_id, {"default": 1}, 1)

    @jobs.task
    async def pack() -> None:
        story.append("begins")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            story.append("tidies up")
            await asyncio.sleep(0)
            story.append("ends")

    async def main() -> Outcome | None:
        host = _Inline(store, worker_id, {})
        attempt = Attempt(host, pack, claimed, asyncio.get_running_loop())
        with ThreadPoolExecutor(1) as pool:
            attempt.start(jobs.program, pool)
            while len(story) < 2:
                if story:
                    attempt.request_stop("lease_lost", None)
                await asyncio.sleep(0)
            attempt.request_stop("lease_lost", None)  # by a claim, say, after a beat
            return await host.done

    assert asyncio.run(main()) is None
    assert story == ["begins", "tidies up", "ends"]


def test_a_report_whose_row_is_locked_delays_only_the_outcome_of_its_own_job(
    store: MemoryStore, jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, progress = set[str](), store.progress

    def refuse_locked(reported: Sequence[Progress]) -> list[bool]:
        if any(each.checkpoint and each.lease.job_id in locked for each in reported):
            raise StoreBusy("another open transaction has locked the row of a job")
        return progress(reported)

    monkeypatch.setattr(store, "progress", refuse_locked)
    both = threading.Barrier(2)

    @jobs.task
    def held(job: Job[str]) -> None:
        locked.add(str(job.id))
        job.progress(checkpoint="here")
        both.wait(SECONDS)

    @jobs.task
    def other(job: Job[str]) -> None:
        job.progress(checkpoint="there")
        both.wait(SECONDS)

    first, second = held.enqueue(), other.enqueue()
    with jobs.worker(concurrency=2):
        second.result("30s")
        assert look(store, str(first.id)).state is State.PROCESSING
        locked.clear()
        first.result("30s")


def test_the_lost_lock_of_a_guard_is_an_error_like_any_other(store: MemoryStore, jobs: Tenure) -> None:
    runs = list[int]()

    @jobs.task
    def pack() -> None:
        runs.append(1)
        raise LeaseLost("nightly, the lock of a guard")

    with jobs.worker():
        handle = pack.enqueue()
        until(lambda: handle.status().state == "dead", "its end")
    assert (runs, [each.outcome for each in store.attempts(str(handle.id))]) == ([1], ["failed"])


UNREAD = Locked("the result", "this process has no key")
ALTERED = Locked("the result", "it was cut short", altered=True)


@pytest.mark.parametrize(
    ("errors", "counts"),
    [
        ([UNREAD], UNREAD),
        ([Snooze("1s"), UNREAD], UNREAD),
        ([UNREAD, ALTERED], ALTERED),
        ([UNREAD, ValueError()], None),
    ],
    ids=["alone", "beside a snooze", "one that nobody can read", "beside a failure"],
)
def test_a_value_that_cannot_be_read_counts_in_a_group_too(errors: list[Exception], counts: Exception | None) -> None:
    group = ExceptionGroup("", [ExceptionGroup("", errors)])

    assert signal_in(group) is (counts or group)


@pytest.mark.parametrize("where", ["busy", "keeping"])
def test_code_that_does_not_stop_costs_no_neighbour_whose_outcome_is_set_aside(where: str) -> None:
    backlog, told = Backlog(), list[dict[str, Outcome]]()
    lease = Lease("a job", 1, "a worker")
    getattr(backlog, where)[lease] = End(lease, cast(Claimed, None), Completed("1"), None)
    stuck = SimpleNamespace(stopping="timeout", verdict=None)
    slots = SimpleNamespace(running={"stuck": stuck}, backlog=backlog, stuck=False, plan=SimpleNamespace(grace=20.0))
    watch = StopWatch(cast(Slots, slots), lambda: None, told.append, None)

    watch._judge([cast(Attempt, stuck)], 100.0, told.append)
    assert not told
    watch._judge([cast(Attempt, stuck)], 121.0, told.append)
    assert told == [{}]


def test_jobs_of_unknown_tasks_share_a_label(store: MemoryStore, jobs: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    monkeypatch.setattr("tenure.worker.worker.Tally", lambda: tally)

    @jobs.task
    def pack() -> None: ...

    for number in range(20):
        put(store, task=f"report_{number}")

    with jobs.worker():
        until(lambda: {each.state for each in store.search(Filter()).jobs} == {State.SCHEDULED}, "they are put off")
    counts = tally.counted()
    assert {key for key in counts if key[0] == "outcomes"} == {("outcomes", "(unknown)", "snoozed")}
    assert counts["outcomes", "(unknown)", "snoozed"] >= 20


def test_a_job_that_has_expired_is_cancelled_by_a_worker_that_could_not_run_it(
    store: MemoryStore, jobs: Tenure
) -> None:
    """Put off, it would never expire: only the first claim says that it has."""

    @jobs.task
    def pack() -> None: ...

    job_id = put(store, task="not_deployed_yet", expires=0.001)
    until(lambda: store.now() > look(store, job_id).enqueued_at + timedelta(seconds=0.01), "it has expired")

    with jobs.worker():
        until(lambda: look(store, job_id).attempt, "it was claimed")
        until(lambda: look(store, job_id).state is not State.PROCESSING, "it was answered for")

    assert look(store, job_id).state is State.CANCELLED


def test_a_replayed_misfit_has_its_whole_time_again() -> None:
    told = [f"{misfits.MISFIT} since 2026-11-25 10:00:00 UTC: no"] * 2
    before = [
        SimpleNamespace(outcome=outcome, error=error)
        for outcome, error in zip(("snoozed", "failed"), told, strict=True)
    ]

    assert misfits._since(cast("Any", before[:1])) is not None
    assert misfits._since(cast("Any", before)) is None
