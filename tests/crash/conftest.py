"""Sites for real processes, and a place for the figures that the tests measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .harness import FULL, Site

FIGURES = pytest.StashKey[list[str]]()
Tell = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FULL and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Have a figure printed at the end of the test run."""
    figures = request.config.stash.setdefault(FIGURES, [])
    return lambda text: figures.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("measured" if FULL else "measured (TENURE_TEST_FULL=1 for the full figures)")
        for figure in figures:
            terminalreporter.write_line(figure)
