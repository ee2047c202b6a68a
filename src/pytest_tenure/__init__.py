"""The pytest plugin: `tenure_queue` is the queue of `with jobs.testing()`, `tenure_store` a real store, for one test.

It is loaded in every run of pytest where Tenure is installed, so it imports Tenure only when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tenure import Tenure
    from tenure.config import Settings
    from tenure.testing import TestQueue


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "tenure_app",
        "the app of tenure_queue and tenure_store, module:attribute; default: TENURE_APP, [tool.tenure] app",
        default="",
    )


@pytest.fixture
def tenure_jobs(pytestconfig: pytest.Config) -> Tenure:
    """The app of the other fixtures: the ini option `tenure_app`, else what `tenure worker` would run. Override it."""
    from tenure.app.processes import load_app

    return load_app(pytestconfig.getini("tenure_app") or None)


@pytest.fixture
def tenure_queue(tenure_jobs: Tenure) -> Iterator[TestQueue]:
    """The app's jobs are kept in memory in this test. Example: `def test_it(tenure_queue): … tenure_queue.drain()`"""
    with tenure_jobs.testing() as queue:
        yield queue


@pytest.fixture
def tenure_store(tenure_jobs: Tenure, tmp_path: Path) -> Iterator[Tenure]:
    """The app on a real store that is empty and its own in this test: an SQLite file, or a schema in its PostgreSQL.

    Example: `def test_it(tenure_store): … with tenure_store.worker(): assert greet.enqueue("Ada").result("10s")`
    """
    from tenure.app.backends import open_store

    flags, used = tenure_jobs._flags, tenure_jobs.settings
    scheme = used.url.partition(":")[0]
    if scheme not in ("sqlite", "postgresql", "postgres"):
        pytest.fail(
            f"tenure_store: expected an app on SQLite or PostgreSQL, got {scheme}; give it another URL in tests"
        )
    own = {"url": f"sqlite:///{tmp_path}/tenure.db"} if scheme == "sqlite" else {"namespace": f"test_{token_hex(6)}"}
    tenure_jobs.__exit__()  # close what is open: it opens again on next use, elsewhere
    tenure_jobs.configure({**flags, **own})
    try:
        open_store(tenure_jobs.settings).migrate()
        yield tenure_jobs
    finally:
        tenure_jobs.__exit__()
        if scheme != "sqlite":
            _drop(tenure_jobs.settings)
        tenure_jobs.configure(flags)


def _drop(settings: Settings) -> None:
    import psycopg
    from psycopg import sql

    with psycopg.connect(settings.url, password=settings.password or None, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(settings.namespace)))
