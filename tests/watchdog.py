"""A test run that can't hang, and children that start as in a fresh shell, wherever the run was started.

pytest-timeout raises in the test when its time is up. That is not enough where the test then waits for a child
process that does not end either (`Popen.__exit__` has no limit). So a thread watches: past the limit it kills the
processes that the test started. If even that does not end the test, it dumps all stacks and ends the process, which
pytest-xdist reports as the failure of that test.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from time import monotonic, sleep  # by name: a test may patch the module's
from typing import TextIO, cast

import psutil  # type: ignore[import-untyped]
import pytest

CHILDREN_SECONDS = 10.0  #: past a test's limit: what it started is killed
PROCESS_SECONDS = 40.0  #: past a test's limit: the process that runs it is ended
FOLDER = "TESTS_RUN_FOLDER"  #: where run.py finds the test that each process is running; tests do not clear this name
_INHERITED = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGUSR1", "SIGUSR2")


def start_afresh() -> None:
    """Give children a clean state: no signal ignored or blocked, the usual umask, no Tenure or terminal settings.

    A signal that is ignored stays ignored in every child, one with a handler is reset to its default (execve(2)). So
    `nohup make test &`, which ignores SIGINT and SIGHUP, gets handlers: SIGINT interrupts, as tests interrupt
    themselves, and the others do nothing here.
    """
    for name in _INHERITED:
        number = signal.Signals[name]
        if signal.getsignal(number) == signal.SIG_IGN:
            does = signal.default_int_handler if number == signal.SIGINT else lambda number, frame: None
            signal.signal(number, does)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    for name in list(os.environ):
        if name.startswith("TENURE_") and not name.startswith("TENURE_TEST_"):
            del os.environ[name]
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "PYTHONWARNINGS"):
        os.environ.pop(name, None)


class Watchdog:
    """Ends what the time limit of a test could not end. One for each process that runs tests."""

    def __init__(self, name: str, default: float) -> None:
        self._default = default
        self._test = ""
        self._ends = 0.0
        self._children_killed = False
        folder = os.environ.get(FOLDER)
        self._where = Path(folder, f"{name}-{os.getpid()}.test") if folder else None
        stacks = Path(folder, f"{name}-{os.getpid()}.stacks").open("w", encoding="utf-8") if folder else sys.__stderr__  # noqa: SIM115
        self._stacks = cast(TextIO, stacks)
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)
        threading.Thread(target=self._watch, name="tests-watchdog", daemon=True).start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        mark = item.get_closest_marker("timeout")
        limit = float(mark.args[0]) if mark and mark.args else self._default
        self._begin(item.nodeid, limit)
        try:
            return (yield)
        finally:
            self._begin("", 0.0)

    def _begin(self, test: str, limit: float) -> None:
        self._children_killed = False
        self._ends = monotonic() + limit if limit else 0.0
        self._test = test
        if self._where is not None:
            self._where.write_text(test)

    def _watch(self) -> None:
        while True:
            sleep(1.0)
            test, ends = self._test, self._ends
            late = monotonic() - ends if test and ends else 0.0
            if late > PROCESS_SECONDS:
                print(f"\n{test} did not end, {late:.0f} s past its limit", file=self._stacks)
                faulthandler.dump_traceback(self._stacks, all_threads=True)
                os._exit(70)
            if late > CHILDREN_SECONDS and not self._children_killed:
                self._children_killed = True
                _kill_children()


def _kill_children() -> None:
    """Kill all except the servers that the tests share, and their keepers."""
    for child in psutil.Process().children():
        try:
            if "servers.py" in " ".join(child.cmdline()):
                continue
            for process in (*child.children(recursive=True), child):
                process.kill()
        except psutil.Error:
            continue
