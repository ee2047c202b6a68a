"""Figures are printed at the end of the test run, as those of the crash tests are."""

from __future__ import annotations

from pathlib import Path

import pytest

from crash import conftest as crash

HERE = Path(__file__).parent
Tell = crash.Tell
tell = crash.tell


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Each plays faults on a dozen processes, and measures delays: two at once would be each other's load.
        if item.path.parent == HERE and {"place", "tell"} <= set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("chaos"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(str(crash.__file__)):  # else it prints them all
        crash.pytest_terminal_summary(terminalreporter)
