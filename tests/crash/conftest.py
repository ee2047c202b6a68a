"""Sites for real processes on every backend, and a place for the figures that the tests measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from .backends import SERVERS, Backend, Place, Server, backends
from .harness import FULL, Site

MEASURED = "measured"
Tell = Callable[[str], None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    needed = [what for mark in metafunc.definition.iter_markers("needs") for what in mark.args]
    marked = metafunc.definition.get_closest_marker("everywhere") is not None
    everywhere = FULL or (marked and not metafunc.config.getoption("everyday"))
    chosen = backends(*needed, everywhere=everywhere)
    metafunc.parametrize("backend", chosen, ids=lambda backend: backend.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FULL and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture
def place(backend: Backend, tmp_path: Path) -> Iterator[Place]:
    with backend.place(tmp_path) as place:
        yield place


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, place) as site:
        yield site


@pytest.fixture(scope="module")
def started() -> Iterator[Callable[[str], Server]]:
    """The server of each store that the tests of one module may stop."""
    with ExitStack() as later:

        @cache
        def start(store: str) -> Server:
            server = SERVERS[store]()
            later.callback(server.process.close)
            return server

        yield start


@pytest.fixture
def server(backend: Backend, started: Callable[[str], Server]) -> Server:
    """A server of this backend's store that may be stopped and killed."""
    return started(backend.name.partition("-")[0])


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Tell:
    """Have a figure printed at the end of the test run."""
    return lambda text: request.node.user_properties.append((MEASURED, text))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [each for how in ("passed", "failed") for each in terminalreporter.getreports(how)]
    figures = [
        f"{report.nodeid.rpartition('::')[2]}: {text}"
        for report in reports
        if report.when == "call"
        for name, text in report.user_properties
        if name == MEASURED
    ]
    if figures:
        terminalreporter.section("measured" if FULL else "measured (TENURE_TEST_FULL=1 for the full figures)")
        for figure in figures:
            terminalreporter.write_line(figure)
