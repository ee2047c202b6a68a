"""Events reach their subscribers, in order, and a subscriber can break nothing."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tenure import Retry, Tenure
from tenure.core.lifecycle import State
from tenure.events import AttemptFailed, Drained, Event, Events, JobDied, JobRescued, StoreBack, WorkerDied
from tenure.ports import Rescued
from waiting import until

DIED = JobDied(job_id="1", task="add", queue="sums", attempt=3, worker_id="w", error="ValueError: no\n\n  File …")
BACK = StoreBack(seconds=90.0)


def test_a_subscriber_receives_its_kind_until_it_unsubscribes() -> None:
    events, received, all_received = Events(), list[Event](), list[Event]()
    unsubscribe = events.subscribe(JobDied, received.append)
    events.subscribe(Event, all_received.append)

    events.emit(DIED)
    events.emit(BACK)
    unsubscribe()
    unsubscribe()
    events.emit(DIED)

    assert received == [DIED]
    assert all_received == [DIED, BACK, DIED]


def test_a_subscriber_that_raises_is_logged_and_the_next_one_is_called(caplog: pytest.LogCaptureFixture) -> None:
    events, received = Events(), list[Event]()
    events.subscribe(Event, lambda _: 1 / 0)
    events.subscribe(Event, received.append)

    events.emit(BACK)

    assert received == [BACK]
    assert "a subscriber raised on: the store is available again after 1m30s" in caplog.text


def test_every_event_is_logged_as_a_sentence_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")

    Events().emit(DIED)

    here = threading.get_ident()  # a thread of an earlier test may still emit events
    (record,) = [record for record in caplog.records if record.thread == here]
    assert (record.name, record.levelno) == ("tenure.worker", logging.ERROR)
    assert record.getMessage() == "add 1 is dead after attempt 3: ValueError: no"
    told = {name: record.__dict__[name] for name in ("job_id", "task", "queue", "attempt", "worker_id")}
    assert told == {"job_id": "1", "task": "add", "queue": "sums", "attempt": 3, "worker_id": "w"}


def test_a_rescue_tells_its_cause_for_metrics() -> None:
    rescued = Rescued(id="1", task="add", queue="sums", attempt=2, worker_id="w", cause="stale", state=State.QUEUED)

    assert JobRescued(rescued=rescued).fields()["cause"] == "stale"
    assert str(JobRescued(rescued=rescued)) == "add 1 was rescued from w: it hung; now queued"
    assert "it hung, and its old code may still run" in str(JobRescued(rescued=rescued, may_run=True))


def test_sentences_say_nothing_twice() -> None:
    died = WorkerDied(worker_id="w", pid=1, cause="exit code 1", evidence={"exit": "exit code 1", "memory": "32 MiB"})

    assert str(died) == "worker w died: exit code 1, memory 32 MiB"
    assert str(Drained(worker_id="w", released=0)) == "worker w has drained"
    assert str(Drained(worker_id="w", released=1)) == "worker w has drained, 1 job handed back"


def test_a_failure_is_logged_with_its_budget_and_when_the_job_runs_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", retry=Retry(7, base="1h", cap="1h"))

    @jobs.task
    async def fails() -> None:
        raise ValueError("no")

    with jobs, jobs.worker(concurrency=1):
        handle = fails.enqueue()
        until(lambda: "ValueError: no" in caplog.text, "the failure is logged")

    told = [each.getMessage() for each in caplog.records if str(handle.id) in each.getMessage()]
    retried = re.compile(r": failure 1 of 7, will be retried in [0-9hms. ]+: ValueError: no")
    assert any(map(retried.search, told)), told


def test_events_of_a_kind_have_one_template_and_failures_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenure")
    try:
        raise ValueError("no")
    except ValueError as error:
        raised = error
    about: dict[str, Any] = {"queue": "sums", "attempt": 1, "worker_id": "w", "exception": raised}
    for job_id, task in (("1", "add"), ("2", "50% off")):
        Events().emit(JobDied(job_id=job_id, task=task, error="ValueError: 100%", **about))
        known: dict[str, Any] = {"max_failures": 10, "retry_in": 12.34} if job_id == "2" else {}
        Events().emit(AttemptFailed(job_id=job_id, task=task, error="ValueError: no", failures=1, **known, **about))

    here = [record for record in caplog.records if record.thread == threading.get_ident()]
    assert len(here) == 4
    assert len({record.msg for record in here}) == 2
    assert here[1].getMessage() == "add 1: failure 1, will be retried: ValueError: no"
    assert here[3].getMessage() == "50% off 2: failure 1 of 10, will be retried in 12.3s: ValueError: no"
    assert all(record.exc_info and record.exc_info[1] is raised for record in here)
    assert here[2].getMessage() == "50% off 2 is dead after attempt 1: ValueError: 100%"
    assert "test_events.py" in caplog.text
