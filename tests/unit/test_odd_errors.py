"""Errors that are odd themselves: whatever a handler raises, its attempt ends and its worker goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure import Job, Tenure
from tenure.errors import JobFailed, StoreAway, TenureError
from tenure.worker.attempts import Attempts
from tenure.worker.doorbell import Doorbell
from waiting import until


class Unspeakable(StoreAway):
    """It looks like a lost connection, of which the engine wants to say more."""

    def __str__(self) -> str:
        raise ValueError("no text")


def from_itself() -> BaseException:
    error = ValueError("in a circle")
    error.__cause__ = error
    return error


def too_deep() -> BaseException:
    error: Exception = ValueError("at the bottom")
    for _ in range(1_200):
        error = ExceptionGroup("a group", [error])
    return error


ODD = {"raised from itself": from_itself, "without a text": lambda: Unspeakable("gone"), "too deep": too_deep}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Tenure]:
    with Tenure(f"sqlite:///{tmp_path}/tenure.db") as app:
        yield app


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_error_ends_its_attempt_and_nothing_else(name: str, kind: str, jobs: Tenure) -> None:
    @jobs.task(retry=1)
    def fails() -> None:
        raise ODD[name]()

    @jobs.task(retry=1)
    async def afails() -> None:
        raise ODD[name]()

    @jobs.task
    def after() -> str:
        return "done"

    with jobs.worker(concurrency=1):
        handle = (fails if kind == "def" else afails).enqueue()
        until(lambda: handle.status().state in ("dead", "scheduled"), "the attempt to end")
        assert after.enqueue().result("60s") == "done"


def test_a_group_that_is_a_thousand_groups_deep_is_read_without_recursion(jobs: Tenure) -> None:
    """At the limit of recursion, whatever is garbage collected meanwhile is not closed."""

    @jobs.task(retry=1)
    def fails() -> None:
        raise too_deep()

    with jobs.worker():
        handle = fails.enqueue()
        until(lambda: handle.status().state == "dead", "the attempt to end")
    view = jobs.client().store.get(str(handle.id))
    assert view is not None
    assert view.error.startswith("ExceptionGroup: a group (1 sub-exception)")
    assert "RecursionError" not in view.error


def test_a_job_keeps_what_is_in_a_group_and_what_an_error_came_from(jobs: Tenure) -> None:
    @jobs.task(retry=1)
    async def fans_out() -> None:
        async def call() -> None:
            raise OSError("connection reset by peer")

        async with asyncio.TaskGroup() as group:
            group.create_task(call())

    @jobs.task(retry=1)
    def reads() -> None:
        try:
            raise FileNotFoundError("no such file")
        except FileNotFoundError as error:
            try:
                raise KeyError("no default") from error
            except KeyError as second:
                raise RuntimeError("could not load the report") from second

    with jobs.worker():
        ids = [str(fans_out.enqueue().id), str(reads.enqueue().id)]
        store = jobs.client().store
        until(lambda: all(view and view.state == "dead" for view in map(store.get, ids)), "the attempts to end")
    group, report = (view.error for view in map(store.get, ids) if view is not None)
    assert group.startswith(
        "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): OSError: connection reset by peer\n\n"
    )
    assert "one of them: OSError: connection reset by peer\n\n  File" in group
    assert [line for line in report.splitlines() if line and line[0] != " "] == [
        "RuntimeError: could not load the report",
        "caused by: KeyError: 'no default'",
        "caused by: FileNotFoundError: no such file",
    ]


def test_where_no_thread_can_be_started_a_job_is_put_off_and_that_is_told(
    jobs: Tenure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It used to be claimed again at once, for ever."""

    @jobs.task
    def plain() -> None: ...

    made = Attempts.__init__

    def without_threads(attempts: Attempts, *given: object, **named: object) -> None:
        made(attempts, *given, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(attempts._pool, "submit", no_thread)

    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Attempts, "__init__", without_threads)
    with jobs.worker():
        handle = plain.enqueue()
        until(lambda: handle.status().state == "scheduled", "it to be put off")
    view = jobs.client().store.get(str(handle.id))
    assert view is not None
    assert (view.attempt, view.failures, view.crashes) == (1, 0, 0)
    assert "no thread can be started" in caplog.text


def test_code_of_an_embedded_worker_that_has_failed_is_asked_to_stop(
    jobs: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing renews its lease any more: others will run its jobs."""
    begun, stopped, over = threading.Event(), threading.Event(), threading.Event()

    @jobs.task
    def runs(job: Job[None]) -> None:
        begun.set()
        while job.stopping is None and not over.is_set():
            time.sleep(0.005)
        if job.stopping is not None:
            stopped.set()

    def broken(_: Doorbell) -> None:
        raise ZeroDivisionError

    with pytest.raises(TenureError, match="failed while the block ran"), jobs.worker():
        runs.enqueue()
        assert begun.wait(60)
        monkeypatch.setattr(Doorbell, "_check_notifier", broken)
        try:
            assert stopped.wait(60)
        finally:
            over.set()


def test_a_handler_that_fails_is_told_as_before(jobs: Tenure) -> None:
    @jobs.task(retry=1)
    def fails() -> None:
        raise ValueError("plain")

    with jobs.worker(), pytest.raises(JobFailed, match="ValueError: plain"):
        fails.enqueue().result("60s")
