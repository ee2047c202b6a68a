"""Figures are printed at the end of the test run, as those of the crash tests are."""

from __future__ import annotations

import pytest

from crash import conftest as crash

Tell = crash.Tell
tell = crash.tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(str(crash.__file__)):  # else it prints them all
        crash.pytest_terminal_summary(terminalreporter)
