"""Events reach their subscribers, in order, and a subscriber can break nothing."""

from __future__ import annotations

import logging
import threading

import pytest

from tenure.core.lifecycle import State
from tenure.events import Drained, Event, Events, JobDied, JobRescued, StoreBack, WorkerDied
from tenure.ports import Rescued

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

    here = threading.get_ident()  # a thread of a test before may still have something to say
    (record,) = [record for record in caplog.records if record.thread == here]
    assert (record.name, record.levelno) == ("tenure.worker", logging.ERROR)
    assert record.getMessage() == "add 1 is dead after attempt 3: ValueError: no"
    told = {name: record.__dict__[name] for name in ("job_id", "task", "queue", "attempt", "worker_id")}
    assert told == {"job_id": "1", "task": "add", "queue": "sums", "attempt": 3, "worker_id": "w"}


def test_a_rescue_tells_its_cause_for_metrics() -> None:
    rescued = Rescued(id="1", task="add", queue="sums", attempt=2, worker_id="w", cause="stale", state=State.QUEUED)

    event = JobRescued(rescued=rescued)

    assert event.fields()["cause"] == "stale"
    assert "old code may still run" in str(event)


def test_sentences_say_nothing_twice() -> None:
    died = WorkerDied(worker_id="w", pid=1, cause="exit code 1", evidence={"exit": "exit code 1", "memory": "32 MiB"})

    assert str(died) == "worker w died: exit code 1, memory 32 MiB"
    assert str(Drained(worker_id="w", released=0)) == "worker w has drained"
    assert str(Drained(worker_id="w", released=1)) == "worker w has drained, 1 job handed back"
