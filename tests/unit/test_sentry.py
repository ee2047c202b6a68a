"""What Sentry's own SDK makes of our log: failures of one cause are one issue, other causes are others."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from tenure import Tenure
from tenure.errors import JobFailed


class Kept(Transport):
    """Sends nothing, and keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(dict(event))


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    logger = logging.getLogger("tenure")
    level = logger.level
    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=kept,
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[LoggingIntegration(level=logging.INFO, event_level=logging.ERROR)],
    )
    yield kept
    sentry_sdk.get_client().close(0)
    # Not init(): that would patch threads, pools and web frameworks for the tests after this one, and trace them.
    sentry_sdk.get_global_scope().set_client(None)
    logger.setLevel(level)


def issue(event: dict[str, Any]) -> tuple[object, ...]:
    """What Sentry groups by when an event has a stack: types and frames, not values. And the log line's template."""
    values = event["exception"]["values"]
    frames = [(f["module"], f["function"], f["context_line"]) for each in values for f in each["stacktrace"]["frames"]]
    return (event["logentry"]["message"], tuple(each["type"] for each in values), *frames)


def test_two_failures_of_one_cause_are_one_issue(kept: Kept, tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db")

    @jobs.task(retry=1)
    def charge(user: int) -> None:
        if user > 100:
            raise ValueError(f"no user {user} at {id(object())}")
        raise KeyError(user)

    with jobs, jobs.worker():
        for user in (4711, 4712, 7):
            with pytest.raises(JobFailed):
                charge.enqueue(user).result("30s")

    assert len(kept.events) == 3
    first, second, other = map(issue, kept.events)
    assert first == second
    assert first != other
    assert [event["logger"] for event in kept.events] == ["tenure.worker"] * 3
    assert len({event["logentry"]["formatted"] for event in kept.events}) == 3  # what people read names the job


#: As the recipe has it: with all that the SDK patches by default.
TRACED = """
import asyncio, threading

import sentry_sdk

sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", shutdown_timeout=0)

from tenure import Tenure
from tenure.app import backends
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin

jobs = Tenure("sqlite:///tenure.db")
begun, gate = threading.Event(), threading.Event()

def read():
    begun.set()
    gate.wait(60)

@jobs.task
async def load():
    await asyncio.to_thread(read)

job_id = str(load.enqueue().id)
store = backends.open_store(jobs.settings)
store.open()
admin = Admin(store, PollNotifier())
with jobs, jobs.worker():
    assert begun.wait(60)
    admin.jobs.ask_for_stack(job_id)
    stack = admin.jobs.stack(job_id, within=60.0)
    gate.set()
store.close()
for trace in stack.traces:
    print(trace.name, *(each.function for each in trace.frames if each.function in ("load", "read")))
"""


@pytest.mark.thorough
def test_what_a_traced_handler_runs_by_to_thread_is_in_its_stack(tmp_path: Path) -> None:
    """In a process of its own: what the SDK patches stays patched."""
    done = subprocess.run([sys.executable, "-c", TRACED], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["its asyncio task load", "a thread of asyncio.to_thread read"], done.stderr
