"""A handler that fails because a connection was lost: what it costs its job."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tenure import Fail, Retry, Task, Tenure
from tenure.errors import StoreAway, StoreBusy
from tenure.events import LOST
from tenure.worker.lost import FREE

AWAY = StoreAway("the server is gone")


def of(error: Exception, cause: Exception = AWAY) -> Exception:
    error.__cause__ = cause
    return error


def task_that_raises(jobs: Tenure, error: Exception, retry: Retry | int, *, is_async: bool) -> Task[..., Any]:
    if is_async:

        @jobs.task(name="act", retry=retry)
        async def aact() -> None:
            raise error

        return aact

    @jobs.task(name="act", retry=retry)
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("error", "retry", "costs"),
    [
        (AWAY, 1, False),
        (of(ValueError("not stored")), Retry(1, on=OSError), False),
        (ExceptionGroup("", [AWAY, of(ValueError("not stored"))]), 1, False),
        (ExceptionGroup("", [AWAY, ValueError("broken")]), 1, True),
        (of(Fail("no such page", final=True)), 2, True),
        (AWAY, Retry(1, never=StoreAway), True),
        (StoreBusy("another transaction has it"), 1, True),
        (ValueError("broken"), 1, True),
    ],
)
def test_a_lost_connection_is_no_failure_of_the_code(
    is_async: bool, error: Exception, retry: Retry | int, costs: bool
) -> None:
    jobs = Tenure()
    task = task_that_raises(jobs, error, retry, is_async=is_async)
    with jobs.testing() as queue:
        handle = task.enqueue()
        with pytest.raises(type(error)):
            queue.drain()

        job = queue.client.store.get(str(handle.id))
        assert job is not None
        assert (job.state, job.failures) == (("dead", 1) if costs else ("scheduled", 0))


def test_a_job_that_loses_its_connection_each_time_ends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Tenure()
    task = task_that_raises(jobs, AWAY, 1, is_async=False)
    with jobs.testing() as queue, caplog.at_level(logging.WARNING, "tenure.worker"):
        handle = task.enqueue()
        for _ in range(FREE):
            queue.drain(failures="retry")
            queue.advance("30s")
        with pytest.raises(StoreAway):
            queue.drain(failures="retry")

        attempts = queue.client.store.attempts(str(handle.id))
        assert [each.outcome for each in attempts] == ["snoozed"] * FREE + ["failed"]
        assert attempts[0].error == f"{LOST}: StoreAway: the server is gone"
        assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [AWAY] * FREE
