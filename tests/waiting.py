"""How a test waits for what another thread or process does: for its effect, never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """The first true answer; an AssertionError that says what was waited for, if none comes in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for: {what}"
        time.sleep(0.005)
    return found
