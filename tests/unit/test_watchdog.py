"""A test run ends, red and by name, whatever a test does, and leaves no process behind."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parents[1]
CONFTEST = """
import watchdog

watchdog.CHILDREN_SECONDS, watchdog.PROCESS_SECONDS = 1.0, %g
watchdog.start_afresh()


def pytest_addoption(parser):
    parser.addoption("--everyday", action="store_true")


def pytest_configure(config):
    config.pluginmanager.register(watchdog.Watchdog("x", 120.0))
"""
SLEEP = f"4711{os.getpid()}"  # this process's, among those that run tests at the same time
HEAD = f"import os, signal, subprocess, sys, time\nimport pytest\n\nSLEEP = ['sleep', '{SLEEP}']\n\n\n"
WAITS_FOR_ITS_CHILD = """
@pytest.mark.timeout(2)
def test_that_waits_for_a_child_that_never_ends():
    with subprocess.Popen(SLEEP):
        time.sleep(3600)
"""
SWALLOWS_ALL = """
@pytest.mark.timeout(2)
def test_that_swallows_its_limit():
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            pass
"""
TAKES_LONG = """
@pytest.mark.timeout(3600)
def test_that_takes_longer_than_the_whole_run_may():
    subprocess.Popen(SLEEP, start_new_session=True)
    os.kill(int(os.environ["TESTS_PID"]), signal.SIGALRM)  # not by the clock: who knows how slow this machine is
    time.sleep(3600)
"""
HAS_A_SERVER = """
@pytest.mark.timeout(3600)
def test_that_has_a_server():
    import pathlib, servers

    server = servers.Valkey()  # it writes its title over its environment: nothing of the run is found there
    pathlib.Path("server").write_text(f"{server.pid} {server.folder}")
    os.kill(int(os.environ["TESTS_PID"]), signal.%s)
    time.sleep(3600)
"""
LEAVES_A_PROCESS = """
def test_that_leaves_a_process():
    subprocess.Popen(SLEEP, start_new_session=True)
"""
LOOKS_AT_ITS_CHILD = """
def test_that_a_child_hears_ctrl_c_and_knows_no_setting_of_ours():
    code = "import os, signal; print(signal.getsignal(signal.SIGINT).__name__, signal.getsignal(signal.SIGHUP).name, "
    code += "os.environ.get('TENURE_URL'), oct(os.umask(0)))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "default_int_handler SIG_DFL None 0o22\\n"
"""


def run(folder: Path, test: str, before: str = "", ended_after: float = 60.0) -> tuple[int, str]:
    """The exit code and output of a whole run that has only this test, of a process ended so long after its limit."""
    tests = folder / "a folder" / "tests"  # also where a path has a space
    tests.mkdir(parents=True)
    for name in ("run.py", "watchdog.py", "servers.py"):
        shutil.copy(HERE / name, tests)
    (tests / "conftest.py").write_text(CONFTEST % ended_after)
    (tests / "test_it.py").write_text(HEAD + test)
    (tests.parent / "pytest.ini").write_text("[pytest]\ntimeout = 120\n")
    command = (
        f"{before}export TESTS_PID=$$; exec {shlex.quote(sys.executable)} '{tests}/run.py' everyday -p no:cacheprovider"
    )
    env = {**os.environ, "TESTS_MINUTES": "", "TENURE_URL": "sqlite:///nowhere.db"}
    ended = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, check=False, timeout=110)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    left = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", SLEEP]]
    assert not [each for each in left if each.status() != psutil.STATUS_ZOMBIE]


def test_what_waits_for_a_child_fails_when_its_time_is_up(tmp_path: Path) -> None:
    code, said = run(tmp_path, WAITS_FOR_ITS_CHILD)

    assert code == 1, said
    assert "test_that_waits_for_a_child_that_never_ends" in said
    assert "Timeout" in said


def test_what_swallows_its_limit_takes_its_process_along_and_is_named(tmp_path: Path) -> None:
    code, said = run(tmp_path, SWALLOWS_ALL, ended_after=4.0)

    assert code != 0, said
    assert "test_that_swallows_its_limit" in said


def test_a_run_that_takes_too_long_names_where_it_was_and_ends_all_it_has_started(tmp_path: Path) -> None:
    code, said = run(tmp_path, TAKES_LONG)

    assert code == 1, said
    assert "took more than 20 minutes" in said
    assert "test_it.py::test_that_takes_longer_than_the_whole_run_may" in said
    assert "in test_that_takes_longer_than_the_whole_run_may" in said, "its stack is shown"


@pytest.mark.parametrize("sent", ["SIGALRM", "SIGTERM"])
def test_a_run_that_is_ended_leaves_no_server(tmp_path: Path, sent: str) -> None:
    code, said = run(tmp_path, HAS_A_SERVER % sent)

    assert code != 0, said
    pid, folder = (tmp_path / "a folder/server").read_text().split()
    left = psutil.pid_exists(int(pid)) and psutil.Process(int(pid))
    if left:
        left.kill()
    assert not left
    assert not Path(folder).exists()


def test_a_process_that_outlives_the_tests_is_named_and_makes_the_run_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTS_LEFT_SECONDS", "1")

    code, said = run(tmp_path, LEAVES_A_PROCESS)

    assert code == 1, said
    assert f"sleep {SLEEP}" in said


@pytest.mark.parametrize("before", ["", "trap '' INT HUP; "], ids=["from a terminal", "with nohup, in the background"])
def test_children_start_as_from_a_fresh_shell(tmp_path: Path, before: str) -> None:
    code, said = run(tmp_path, LOOKS_AT_ITS_CHILD, before=before)

    assert code == 0, said


def test_an_interrupt_is_one_also_where_the_shell_ignored_it() -> None:
    code = "import signal, watchdog; watchdog.start_afresh(); print(signal.getsignal(signal.SIGINT).__name__)"
    command = ["sh", "-c", f"trap '' INT; exec {shlex.quote(sys.executable)} -c '{code}'"]

    said = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True).stdout

    assert said == "default_int_handler\n"
