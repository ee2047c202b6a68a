"""The processes that a guarded command has started itself: they are of its group, and may need a moment to end."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import until

GUARD = (sys.executable, "-c", "from tenure.cli.main import run; run()", "guard", "report", "--every", "1h")
#: Its shell ends with SIGTERM at once; what it runs cleans up first.
SLOW = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(1.5)
    pathlib.Path("cleaned").touch()
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path("begun").touch()
time.sleep(60)
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path}/tenure.db")
    monkeypatch.setenv("TENURE_NOTIFIER", "poll")
    (tmp_path / "slow.py").write_text(SLOW)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("how", [pytest.param("timeout", marks=pytest.mark.thorough), "signal"])
def test_what_a_stopped_command_has_started_ends_before_the_guard_does(how: str, tmp_path: Path) -> None:
    options = ("--timeout", "3s", "--grace", "30s") if how == "timeout" else ("--grace", "30s")
    guard = subprocess.Popen([*GUARD, *options, "--", "sh", "-c", f"{shlex.quote(sys.executable)} slow.py; true"])
    until((tmp_path / "begun").exists, "its command to begin")
    if how == "signal":
        guard.send_signal(signal.SIGTERM)

    guard.wait(60)

    assert (tmp_path / "cleaned").exists()


@pytest.mark.usefixtures("environment")
@pytest.mark.thorough
def test_a_guard_with_retries_ends_when_its_reader_is_gone() -> None:
    """The command was never told: a retry that waited held its pipe."""
    guard = subprocess.Popen([*GUARD, "--retries", "1", "--timeout", "50s", "--", "yes"], stdout=subprocess.PIPE)
    assert guard.stdout is not None
    assert guard.stdout.read(4) == b"y\ny\n"
    guard.stdout.close()

    assert guard.wait(45) not in (0, 124)


@pytest.mark.usefixtures("environment")
def test_a_guard_to_which_orphans_are_given_does_not_wait_for_those_that_have_ended(tmp_path: Path) -> None:
    """As PID 1 of a container it has to reap them itself."""
    subreaper = f"import ctypes; ctypes.CDLL(None).prctl(36, 1); {GUARD[2]}"
    script = "sleep 100 & touch begun; sleep 100"
    guard = subprocess.Popen([GUARD[0], "-c", subreaper, *GUARD[3:], "--grace", "80s", "--", "sh", "-c", script])
    until((tmp_path / "begun").exists, "its command to begin")

    guard.send_signal(signal.SIGTERM)

    assert guard.wait(60) == 128 + signal.SIGTERM
