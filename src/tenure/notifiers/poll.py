"""No doorbell at all: every worker polls, often."""

from __future__ import annotations

from collections.abc import Iterable

from tenure.ports import ANY, Ring


class PollListener:
    """Rings on its own, every `interval` seconds."""

    permits = None

    def __init__(self, interval: float) -> None:
        self.interval = interval

    def fileno(self) -> int | None:
        return None

    def drain(self) -> list[Ring]:
        return [ANY]

    def close(self) -> None:
        pass


class PollNotifier:
    """`notifier="poll"`: no rings are sent, and every listener polls every `interval` seconds."""

    def __init__(self, interval: float = 1.0, problem: str = "") -> None:
        self._interval = interval
        self._problem = problem

    def announce(self, rings: Iterable[Ring]) -> None:
        pass

    def listen(self) -> PollListener:
        return PollListener(self._interval)

    def problem(self) -> str:
        return self._problem

    def close(self) -> None:
        pass
