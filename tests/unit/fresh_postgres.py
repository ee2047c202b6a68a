"""Fixtures for tests of one store: a database of its own, the store in it, and another client."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from servers import shared_postgres
from tenure.stores.postgres import PostgresStore


@pytest.fixture
def url() -> Iterator[str]:
    databases = shared_postgres()
    url = databases.create_database()
    yield url
    databases.drop_database(url)


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    store.migrate()
    store.open()
    yield store
    store.close()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection]:
    """In a transaction, as an older version or a program that leaves one open would be."""
    with psycopg.connect(url) as connection:
        yield connection
