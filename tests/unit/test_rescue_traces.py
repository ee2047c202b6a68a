"""How a worker tells its app's tracer of rescued attempts."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.core.lifecycle import State
from tenure.events import Events, JobRescued
from tenure.ports import Rescued
from tenure.worker import rescues
from tenure.worker.rescues import RescueTraces
from waiting import until


class Slow:
    """A store whose reads wait, and a tracer that notes what it is told."""

    def __init__(self) -> None:
        self.reads, self.answers, self.traced = list[str](), threading.Event(), list[str]()
        self.events = Events()
        given: Any = self
        self.traces = RescueTraces(given, given, lambda: "mine", self.events)

    def get(self, job_id: str) -> object:
        self.reads.append(job_id)
        assert self.answers.wait(60.0)
        return SimpleNamespace()

    def attempts(self, _: str) -> list[object]:
        return [SimpleNamespace(attempt=1)]

    def rescued(self, rescued: Rescued, *_: object) -> None:
        self.traced.append(rescued.id)

    def hear_of(self, count: int) -> None:
        for number in range(count):
            rescued = Rescued(
                id=str(number),
                task="task",
                queue="default",
                attempt=1,
                worker_id="other",
                cause="host",
                state=State.QUEUED,
            )
            self.events.emit(JobRescued(rescued=rescued))


def test_what_was_rescued_is_traced_before_the_worker_ends() -> None:
    slow = Slow()
    slow.answers.set()
    slow.hear_of(100)
    slow.traces.close()
    slow.traces.close()
    assert slow.traced == [str(number) for number in range(100)]


def test_the_end_of_a_worker_does_not_wait_for_a_slow_store_to_answer_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescues, "FLUSH_SECONDS", 0.05)
    slow = Slow()
    slow.hear_of(100)
    until(lambda: slow.reads, "the first read")
    closing = threading.Thread(target=slow.traces.close)
    closing.start()
    closing.join(20.0)
    waits = closing.is_alive()
    slow.answers.set()
    closing.join()
    slow.traces._thread.shutdown()
    assert not waits
    assert slow.reads == ["0"]
