"""Which source files are the app's: `--reload` watches them, and reports name their lines."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest

from tenure.core.imports import is_of_app


@pytest.mark.parametrize("file", [f"{sys.base_prefix}/src/app/shop.py", "/srv/shop/tasks.py", "tasks.py"])
def test_a_file_of_the_app_is_one_even_below_the_prefix_of_python(file: str) -> None:
    assert is_of_app(file)


@pytest.mark.parametrize(
    "file",
    [json.__file__, msgspec.__file__, "/usr/lib/python3/dist-packages/yaml/__init__.py", "<frozen runpy>", ""],
    ids=["Python's", "a package", "a package of the system", "no file", "unknown"],
)
def test_other_files_are_not(file: str) -> None:
    assert not is_of_app(file)
