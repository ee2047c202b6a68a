"""What `tenure check` says of the notifier: "no problem" only once something has proved it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tenure import config
from tenure.notifiers import postgres as bell
from tenure.notifiers.poll import PollNotifier
from tenure.operations import checkup
from tenure.operations.checkup import examine
from tenure.ports import ANY, Notifier, Ring
from tenure.stores.memory import MemoryStore

QUEUED = Ring("queued", "mail")


class Ear:
    """A notifier and its listener, which hears these, one after the other, and the last one again and again."""

    permits = None
    interval = 1.0

    def __init__(self, *hears: Sequence[Ring], problem_after: int | None = None, broken: bool = False) -> None:
        self._hears, self._problem_after, self._broken = hears, problem_after, broken
        self.drains = 0
        self.closed = list[str]()

    def announce(self, rings: Iterable[Ring]) -> None:
        pass

    def listen(self) -> Listening:
        return Listening(self)

    def problem(self) -> str:
        late = self._problem_after is not None and self.drains >= self._problem_after
        return "LISTEN does not work through this connection" if late else ""

    def close(self) -> None:
        self.closed.append("notifier")

    def drain(self) -> list[Ring]:
        if self._broken:
            raise OSError("too many open files")
        self.drains += 1
        return list(self._hears[min(self.drains, len(self._hears)) - 1])


class Listening:
    permits = None
    interval = 1.0

    def __init__(self, ear: Ear) -> None:
        self._ear = ear
        self.drain = ear.drain

    def fileno(self) -> int | None:
        return 0

    def close(self) -> None:
        self._ear.closed.append("listener")


def told(notifier: Notifier, tmp_path: Path) -> str:
    settings = config.load(environ={"TENURE_NOTIFIER": "postgresql://host/db"}, folder=tmp_path)
    (says,) = [each.says for each in examine(MemoryStore(), settings, lambda *_: notifier) if each.what == "notifier"]
    return says


def test_a_notifier_of_which_nothing_is_proved_in_time_is_said_to_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "_EAR_SECONDS", 0.05)
    ear = Ear([ANY])

    assert told(ear, tmp_path) == "polling: no ring has arrived within 50ms"
    assert ear.closed == ["listener", "notifier"]


def test_a_late_problem_is_waited_for(tmp_path: Path) -> None:
    assert told(Ear([ANY], problem_after=5), tmp_path) == "polling: LISTEN does not work through this connection"
    assert bell._PROOF_WITHIN < checkup._EAR_SECONDS
    assert bell._DEFAULTS["connect_timeout"] < checkup._EAR_SECONDS


@pytest.mark.parametrize("hears", [[[]], [[ANY], []], [[ANY], [QUEUED]]], ids=["at once", "soon", "on a busy line"])
def test_what_is_heard_proves_that_there_is_no_problem(hears: list[list[Ring]], tmp_path: Path) -> None:
    ear = Ear(*hears)

    assert told(ear, tmp_path) == "postgresql://host/db: no problem"
    assert ear.drains == len(hears)


def test_plain_polling_has_nothing_to_prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "_EAR_SECONDS", 0.0)

    assert told(PollNotifier(), tmp_path).endswith(": no problem")


def test_a_listener_that_raises_is_closed(tmp_path: Path) -> None:
    ear = Ear(broken=True)

    with pytest.raises(OSError, match="too many open files"):
        told(ear, tmp_path)
    assert ear.closed == ["listener", "notifier"]
