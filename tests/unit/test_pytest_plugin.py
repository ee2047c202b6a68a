"""The pytest plugin, as a project uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
from tenure import Tenure

jobs, other = Tenure("sqlite:////nowhere/at/all.db"), Tenure()

@jobs.task
def greet(name: str) -> str:
    if not name:
        raise ValueError("nobody to greet")
    return f"hello {name}"
"""
TEST = """
from shop import greet

def test_a_job_runs(tenure_queue):
    handle = greet.enqueue("Ada")
    assert tenure_queue.drain() == 1
    assert handle.result("0s") == "hello Ada"

def test_the_next_test_has_a_queue_of_its_own(tenure_queue):
    assert tenure_queue.enqueued(greet) == []

def test_a_failure_fails_the_test(tenure_queue):
    greet.enqueue("")
    tenure_queue.drain()
"""
OVERRIDE = """
import pytest, shop

@pytest.fixture
def tenure_jobs():
    return shop.jobs
"""


def run(folder: Path, *arguments: str, **environ: str) -> str:
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TEST)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTEST_"))}
    paths = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "pytest_tenure", *arguments],
        cwd=folder,
        env={**env, "PYTHONPATH": paths, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout


@pytest.mark.parametrize(
    "way",
    ["ini", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("pyproject", "environment", "fixture"))],
)
def test_the_queue_is_that_of_the_app(way: str, tmp_path: Path) -> None:
    environ = {}
    match way:
        case "ini":
            (tmp_path / "pytest.ini").write_text("[pytest]\ntenure_app = shop:jobs\n")
        case "pyproject":
            (tmp_path / "pyproject.toml").write_text('[tool.tenure]\napp = "shop:jobs"\n')
        case "environment":
            environ["TENURE_APP"] = "shop:jobs"
        case _:
            (tmp_path / "conftest.py").write_text(OVERRIDE)

    said = run(tmp_path, **environ)

    assert "2 passed" in said
    assert "1 failed" in said
    assert "ValueError: nobody to greet" in said


@pytest.mark.thorough
def test_an_app_that_is_named_nowhere_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    assert "no app: name its module" in run(tmp_path)


def test_a_run_that_does_not_use_it_imports_nothing_of_tenure() -> None:
    script = "import sys, pytest_tenure; print([name for name in sys.modules if name.partition('.')[0] == 'tenure'])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True)
    assert ran.stdout.strip() == "[]"
