"""A folder and a store for the scripts of a test, on every kind of store where that makes a difference."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from crash.backends import BACKENDS, Backend

from .harness import LIMIT, Programs, runtime_folder

HERE = Path(__file__).parent
_STORES = {backend.name: backend for backend in BACKENDS}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2 * LIMIT))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `programs` runs on SQLite; marked `stores(*names)`, on these."""
    if "programs" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("stores")
        chosen = [_STORES[name] for name in (mark.args if mark is not None else ("sqlite",))]
        metafunc.parametrize("_backend", chosen, ids=lambda backend: backend.name)


@pytest.fixture
def _backend() -> None:
    """Parametrized above."""


@pytest.fixture
def programs(_backend: Backend, tmp_path: Path) -> Iterator[Programs]:
    runtime = runtime_folder()
    folder = tmp_path / "programs"
    folder.mkdir()
    with _backend.place(folder) as place:
        environment = {f"TENURE_{name.upper()}": value for name, value in asdict(place).items()}
        yield Programs(folder, environment, runtime)
    shutil.rmtree(runtime)
