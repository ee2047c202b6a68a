"""The pytest plugin, as a project uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import shared_postgres

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


REAL = """
from shop import greet, jobs

def test_a_real_worker_runs_it(tenure_store):
    assert tenure_store is jobs
    with tenure_store.worker():
        assert greet.enqueue("Ada").result("30s") == "hello Ada"

def test_the_next_test_has_a_store_of_its_own(tenure_store):
    with tenure_store.transaction() as tx:
        handle = greet.using(tx=tx).enqueue("Ada")
    from tenure.ports import Filter
    page = tenure_store.client().store.search(Filter())
    assert [job.id for job in page.jobs] == [str(handle.id)]
"""


def run(folder: Path, *arguments: str, shop: str = SHOP, **environ: str) -> str:
    (folder / "shop.py").write_text(shop)
    if not (folder / "test_shop.py").exists():
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


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/people.db"
    else:
        yield (url := shared_postgres().create_database())
        shared_postgres().drop_database(url)


def test_a_real_store_is_empty_for_each_test_and_gone_after_it(url: str, tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(REAL)
    shop = SHOP.replace('Tenure("sqlite:////nowhere/at/all.db")', f'Tenure("{url}")')
    (tmp_path / "pytest.ini").write_text("[pytest]\ntenure_app = shop:jobs\nfilterwarnings = error\n")

    said = run(tmp_path, shop=shop)

    assert "2 passed" in said
    if url.startswith("sqlite"):
        assert not (tmp_path / "people.db").exists()
    else:
        schemas = shared_postgres().execute(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE %s OR nspname = %s",
            ["test%", "tenure"],
            database=url.rpartition("/")[2],
        )
        assert schemas == []


@pytest.mark.thorough
def test_a_store_that_has_no_such_mode_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(REAL)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntenure_app = shop:jobs\n")
    assert "expected an app on SQLite or PostgreSQL, got redis" in run(
        tmp_path, TENURE_URL="redis://h", shop=SHOP.replace('"sqlite:////nowhere/at/all.db"', "")
    )


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_built_wheel_brings_the_plugin_and_the_command(tmp_path: Path) -> None:
    """In a throwaway environment, where nothing but the wheel and pytest was asked for."""
    root = Path(__file__).resolve().parents[2]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE_", "PYTEST_", "PYTHON"))}
    subprocess.run(
        [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, root], check=True, env=env, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("tenure-*.whl")
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, env=env)
    there = home / "bin" / "python"
    subprocess.run(
        [*pip, "--python", there, "install", "--quiet", "--constraint", root / "constraints.txt", wheel, "pytest"],
        check=True,
        env=env,
        cwd=tmp_path,
    )
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(TEST.partition("def test_a_failure")[0] + REAL)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntenure_app = shop:jobs\n")

    ran = subprocess.run(
        [there, "-m", "pytest", "-q", "test_shop.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "4 passed" in ran.stdout, ran.stdout
    said = subprocess.check_output([home / "bin" / "tenure", "tasks", "--app", "shop:jobs"], cwd=tmp_path, env=env)
    assert b"greet" in said
