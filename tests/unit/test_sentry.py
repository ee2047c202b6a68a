"""What Sentry's own SDK makes of our log: failures of one cause are one issue, other causes are others."""

from __future__ import annotations

import logging
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
    sentry_sdk.init()
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
