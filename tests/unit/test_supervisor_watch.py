"""The watch of a supervisor's main thread, beside a store that does not answer."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tenure.supervisor.mainloop import MainLoop
from tenure.supervisor.watch import Watch
from waiting import until


def test_a_worker_that_blocks_is_killed_in_time_while_the_store_is_asked_which_jobs_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else others rescue its jobs, and its code runs on beside theirs."""
    answers, answered, times = threading.Event(), threading.Event(), [2.0]
    killed: list[str] = []
    told: list[Any] = []

    def search(*_: object, **__: object) -> Any:
        answers.wait(10.0)
        answered.set()
        return SimpleNamespace(jobs=[SimpleNamespace(id="the job")])

    worker = SimpleNamespace(
        id="w",
        registered=True,
        ready=True,
        drained=False,
        kill_reason="",
        stall="",
        stall_reported=0.0,
        stopped_since=None,
        end_by=1000.0,
        process=SimpleNamespace(pid=os.getpid()),
        dump=SimpleNamespace(fileno=lambda: 0),
        hello={"functions": {"pack": ("shop.py", "pack")}},
        lifeline=SimpleNamespace(tick=0.5, kill_at=3.0, fence=lambda: None),
        kill=killed.append,
    )
    shared: Any = SimpleNamespace(
        boot=lambda: times[0],
        outage=SimpleNamespace(ongoing=False),
        processes=[worker],
        store=SimpleNamespace(search=search),
        loop=MainLoop(),
        events=SimpleNamespace(emit=told.append),
    )
    monkeypatch.setattr("tenure.supervisor.stalls.dump", lambda *_: "")
    monkeypatch.setattr("tenure.supervisor.stalls.name", lambda *_: ("pack", "shop.py:7"))
    watch = Watch(shared, lambda: None)

    watch.turn()
    assert worker.stall == "its loop is blocked by pack at shop.py:7"
    times[0] = 3.5
    watch.turn()
    assert killed == ["its lease could not be renewed in time"]
    assert not answered.is_set()

    answers.set()
    until(lambda: shared.loop.turn(0.1) or told, "the word of it")
    assert told[0].job_ids == ("the job",)
