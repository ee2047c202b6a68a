"""Whether a backlog shrinks or grows is measured between two looks, and reported with care."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tenure.core.lifecycle import State
from tenure.operations.backlogs import Backlogs, Growth
from tenure.operations.queues import QueueHealth
from tenure.ports import QueueView

BEGIN = datetime(2030, 1, 31, 6, tzinfo=UTC)


def view(queued: int, processing: int = 0, *, name: str = "mail", paused: bool = False) -> QueueView:
    counts = {State.QUEUED: queued, State.PROCESSING: processing, State.SCHEDULED: 50}
    return QueueView(name=name, paused_at=BEGIN if paused else None, counts=counts, oldest_queued=None)


def paces(*looks: tuple[float, int]) -> list[Growth | None]:
    """What each look at the queue says. A look: seconds since BEGIN, and how many jobs were queued then."""
    backlogs = Backlogs()
    return [backlogs.look([view(queued)], BEGIN + timedelta(seconds=at)).get("mail") for at, queued in looks]


def test_a_first_look_and_one_too_soon_after_it_say_nothing() -> None:
    assert paces((0, 500), (9, 400)) == [None, None]


def test_a_backlog_that_shrinks_is_empty_some_day() -> None:
    *_, pace = paces((0, 500), (10, 400))
    assert pace == Growth(400, -10.0, 10.0)
    assert pace.empty_in == 40.0


def test_what_runs_belongs_to_the_backlog_and_what_is_due_later_does_not() -> None:
    backlogs = Backlogs()
    backlogs.look([view(10, 5)], BEGIN)
    assert backlogs.look([view(0, 5)], BEGIN + timedelta(seconds=10))["mail"] == Growth(5, -1.0, 10.0)


def test_the_last_minute_counts_if_somebody_looked_then() -> None:
    assert paces((0, 900), (100, 500), (130, 200), (150, 100))[-1] == Growth(100, -8.0, 50.0)
    assert paces((0, 900), (100, 500), (170, 150))[-1] == Growth(150, -5.0, 70.0)
    assert paces((0, 900), (301, 500))[-1] is None


def test_a_clock_that_is_set_back_begins_again() -> None:
    assert paces((100, 900), (0, 500), (10, 300))[1:] == [None, Growth(300, -20.0, 10.0)]


def test_a_queue_that_was_not_there_before_grew_from_nothing() -> None:
    backlogs = Backlogs()
    backlogs.look([], BEGIN)
    assert backlogs.look([view(30)], BEGIN + timedelta(seconds=10))["mail"].growth == 3.0


@pytest.mark.parametrize(
    ("queue", "workers", "pace", "said"),
    [
        (view(0, 3), 1, Growth(3, -1.0, 60.0), ""),
        (view(300), 1, None, "being measured"),
        (view(300), 1, Growth(300, -2.0, 60.0), "empty in about 2m30s"),
        (view(300), 1, Growth(300, -0.2, 60.0), "empty in about 25m"),
        (view(300), 1, Growth(300, -0.02, 60.0), "empty in about 4h10m"),
        (view(300), 1, Growth(300, 2.4, 60.0), "grows by 2 a second"),
        (view(300), 1, Growth(300, 0.1, 60.0), "grows by 6 a minute"),
        (view(300), 1, Growth(300, 0.0, 60.0), "steady"),
        (view(100_000), 1, Growth(100_000, -1.0, 60.0), "empty in about 1d4h"),
        (view(300), 0, Growth(300, -2.0, 60.0), "no worker"),
        (view(300, paused=True), 1, Growth(300, -2.0, 60.0), "paused"),
    ],
)
def test_the_outlook_says_when_it_is_empty_or_that_it_grows(
    queue: QueueView, workers: int, pace: Growth | None, said: str
) -> None:
    row = QueueHealth(queue, workers, 5, pace=pace)
    assert row.outlook == said
    care = queue.paused_at is not None or said.startswith(("grows", "no worker"))
    assert row.needs_care == care
