"""The stores that a dashboard is watched on, and one browser a module: starting one is expensive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from crash.backends import Place, postgres, redis, sqlite
from crash.harness import FULL
from tenure.web import memo, site
from tenure.web.threads import ThreadPool

from .browser import NoBrowser, Visits, chromium, find_chromium, visits_of


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dashboards made in this process behave as if nothing ever held them up.

    What a read costs is measured by the real clock: one that was held up for a moment is kept for 60 times as long, and
    for a while even after somebody acted. And the health page gives a store two seconds.
    """
    monkeypatch.setattr(memo._Cell, "cost", 0.0)
    monkeypatch.setattr(memo, "_PATIENCE", 60.0)
    monkeypatch.setattr(site, "ThreadPool", lambda name, threads, patience: ThreadPool(name, threads, patience=60.0))


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    if request.config.getoption("everyday"):
        try:
            find_chromium()
        except NoBrowser as error:
            pytest.skip(str(error))
    with chromium() as browser:
        yield browser


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        places = (sqlite, postgres, redis) if FULL else (sqlite,)
        metafunc.parametrize("place", places, indirect=True, ids=lambda place: place.__name__, scope="module")


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A store with nothing in it."""
    with request.param(tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture
def visits(browser: Browser) -> Iterator[Visits]:
    """The visitors. What goes wrong in their browsers fails the test."""
    with visits_of(browser) as visits:
        yield visits
