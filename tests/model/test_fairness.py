from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tenure.maintenance import roster as module
from tenure.maintenance.roster import Roster

from .fairness import counterexample


def sound(clock: Callable[[], float]) -> Roster:
    return Roster([], answers=lambda: None, clock=clock)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random", lambda: 0.5)
    monkeypatch.setattr(logging.getLogger("tenure.maintenance"), "disabled", True)


def test_whatever_becomes_of_a_turn_no_duty_that_is_due_is_left_waiting() -> None:
    assert counterexample(sound) == []


def test_a_roster_that_lets_a_full_batch_go_on_starves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def min_or_first(*values: Any, key: object = None) -> Any:
        return min(*values) if key is None else values[0][0]  # in the table's order, as the maintenance once was

    monkeypatch.setattr(module, "min", min_or_first, raising=False)

    story = counterexample(sound)

    print("\n".join(story))
    assert story[-1] == "=> fire is due, and has had no turn for 3 turns"


def test_a_roster_that_retries_a_failure_at_once_starves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Roster._failed

    def at_once(self: Roster, place: module._Place, error: Exception, began: float) -> None:
        failed(self, place, error, began)
        place.not_before = 0.0

    monkeypatch.setattr(Roster, "_failed", at_once)

    story = counterexample(sound)

    print("\n".join(story))
    assert story
