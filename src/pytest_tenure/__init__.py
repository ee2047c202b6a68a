"""The pytest plugin: the fixture `tenure_queue` is the queue of `with jobs.testing()`, for one test.

It is loaded in every run of pytest where Tenure is installed, so it imports Tenure only when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure import Tenure
    from tenure.testing import TestQueue


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "tenure_app", "the app of tenure_queue, module:attribute; default: TENURE_APP, [tool.tenure] app", default=""
    )


@pytest.fixture
def tenure_jobs(pytestconfig: pytest.Config) -> Tenure:
    """The app of `tenure_queue`: the ini option `tenure_app`, else what `tenure worker` would run. Override it."""
    from tenure.processes import load_app

    return load_app(pytestconfig.getini("tenure_app") or None)


@pytest.fixture
def tenure_queue(tenure_jobs: Tenure) -> Iterator[TestQueue]:
    """The app's jobs are kept in memory in this test. Example: `def test_it(tenure_queue): … tenure_queue.drain()`"""
    with tenure_jobs.testing() as queue:
        yield queue
