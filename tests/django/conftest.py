"""Django projects on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import Project, new_project, postgres, sqlite

from servers import shared_postgres


@pytest.fixture
def database_url() -> Iterator[str]:
    """A database of its own."""
    server = shared_postgres()
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A project with its tables."""
    database = sqlite(tmp_path) if request.param == "sqlite" else postgres(request.getfixturevalue("database_url"))
    made = new_project(tmp_path, database)
    made.manage("migrate", "--run-syncdb", "-v", "0")
    return made
