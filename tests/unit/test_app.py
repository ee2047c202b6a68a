from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import Job, Retry, Tenure, config
from tenure.app.backends import open_notifier, open_store
from tenure.app.processes import load_app
from tenure.config import Settings
from tenure.errors import InvalidOption, StoreError

APP = "from tenure import Tenure\njobs = Tenure('memory:')\n@jobs.task\ndef greet() -> None: ...\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder, and the interpreter as it was afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.delenv("TENURE_APP", raising=False)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def settings(here: Path, **code: Any) -> Settings:
    return config.load(code=code, environ={}, folder=here)


# ── stores by URL ──


@pytest.mark.parametrize(
    ("url", "namespace", "file"),
    [
        ("sqlite:///tenure.db", "tenure", "tenure.db"),
        ("sqlite:///tenure.db", "billing", "tenure.billing.db"),
        ("sqlite:///data/jobs.db", "billing", "data/jobs.billing.db"),
        ("sqlite:///jobs", "billing", "jobs.billing"),
    ],
)
def test_a_namespace_is_a_file_of_its_own(here: Path, url: str, namespace: str, file: str) -> None:
    store = open_store(settings(here, url=url, namespace=namespace))
    assert store.url == f"sqlite:///{here / file}"


def test_four_slashes_name_an_absolute_path(here: Path) -> None:
    assert open_store(settings(here, url="sqlite:////srv/tenure.db")).url == "sqlite:////srv/tenure.db"


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://x.db", "sqlite:///:memory:"])
def test_an_sqlite_url_without_a_file_is_refused(here: Path, url: str) -> None:
    with pytest.raises(InvalidOption, match=r"expected sqlite:///NAME\.db or sqlite:////FOLDER/NAME\.db"):
        open_store(settings(here, url=url))


def test_an_unknown_store_or_notifier_is_never_replaced_by_a_known_one(here: Path) -> None:
    with pytest.raises(InvalidOption, match="unknown store 'mysql'; known: sqlite"):
        open_store(settings(here, url="mysql://u:p@h/d"))
    with pytest.raises(InvalidOption, match=r"its own memory store; for tests use jobs.testing\(\)"):
        open_store(settings(here, url="memory:"))
    wrong = settings(here, url="sqlite:///x.db", notifier="carrier://u:pigeon@h")
    with pytest.raises(InvalidOption, match=r"unknown notifier 'carrier://u:\*\*\*@h'; known: auto, poll"):
        open_notifier(wrong, open_store(wrong))


# ── opening and closing ──


def test_it_opens_on_first_use_and_again_after_it_was_closed(here: Path) -> None:
    jobs = Tenure("sqlite:///tenure.db", notifier="poll")

    @jobs.task
    def greet(name: str) -> str:
        return name

    assert not (here / "tenure.db").exists()
    with jobs:
        first = greet.enqueue("Ada")
        assert (here / "tenure.db").exists()
    with jobs:
        assert greet.handle(first.id).cancel()
        assert not greet.using(id=first.id).enqueue("Ada").created


def test_it_opens_without_blocking_the_loop(here: Path) -> None:
    jobs = Tenure("sqlite:///tenure.db", notifier="poll")

    @jobs.task
    def greet(name: str) -> str:
        return name

    async def main() -> bool:
        async with jobs:
            async with jobs.atransaction() as tx:
                await greet.using(tx=tx).aenqueue("Bob")
            return (await greet.aenqueue("Ada")).created

    assert asyncio.run(main())


def test_a_store_that_does_not_open_says_so_each_time(here: Path) -> None:
    jobs = Tenure("sqlite:///missing/tenure.db")
    for _ in range(2):
        with pytest.raises(StoreError, match="is not a folder"):
            jobs.__enter__()


def test_a_worker_inside_this_process_runs_what_is_enqueued(here: Path) -> None:
    jobs = Tenure("sqlite:///tenure.db", notifier="poll")

    @jobs.task
    def greet(name: str) -> str:
        return f"hello {name}"

    @jobs.task
    async def later(job: Job, name: str) -> str:
        return f"{name} {job.attempt}"

    with jobs, jobs.worker(concurrency=2):
        assert greet.enqueue("Ada").result("60s") == "hello Ada"
        assert later.using(delay="10ms").enqueue("Bob").result("60s") == "Bob 1"


def test_the_code_settles_what_it_says_and_flags_win_over_it(here: Path) -> None:
    jobs = Tenure("memory:", keep="1d", keep_dead=timedelta(days=30), retry=Retry(3, base="2s"))
    assert (jobs.settings.keep, jobs.settings.keep_dead) == (86_400.0, 2_592_000.0)
    assert (jobs.retry.max_failures, jobs.retry.base, jobs.retry.cap) == (3, 2.0, 30.0)

    jobs.configure({"url": "sqlite:///other.db"})
    assert jobs.settings.url.endswith("/other.db")
    assert jobs.settings.keep == 86_400.0


def test_what_can_not_be_is_refused_when_it_is_said() -> None:
    wrong: Any = 7
    with pytest.raises(InvalidOption, match="keep: 7 has no unit"):
        Tenure(keep=wrong)
    with pytest.raises(InvalidOption, match=r"imports: expected a list of module names, got 'shop'; write \['shop'\]"):
        Tenure(imports="shop")


def test_passwords_are_not_shown() -> None:
    assert "s3cret" not in repr(Tenure("postgresql://u:s3cret@h/d"))


# ── after a fork ──

FORK = """
import os, sys
from tenure import Tenure

jobs = Tenure("sqlite:///tenure.db", notifier="poll")

@jobs.task
def greet(name: str) -> str:
    return name

first = greet.enqueue("parent")
child = os.fork()
if child == 0:
    second = greet.enqueue("child")
    ok = second.created and second.id != first.id and greet.handle(first.id).cancel()
    sys.stdout.flush()
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
third = greet.enqueue("parent again")
print(os.waitstatus_to_exitcode(status), third.created, first.cancel())
"""


def test_a_forked_child_opens_the_store_anew_and_leaves_the_parents_alone(here: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, cwd=here, env=env, check=False)
    assert found.stdout.split() == ["0", "True", "False"], found.stderr


# ── finding the app ──


def test_the_only_app_of_a_module_needs_no_name(here: Path) -> None:
    (here / "only_one.py").write_text(APP + "again = jobs\n")

    assert load_app("only_one") is load_app("only_one:jobs") is sys.modules["only_one"].jobs
    assert load_app("only_one").tasks.names == ("greet",)


def test_a_factory_and_a_nested_name_are_found(here: Path) -> None:
    (here / "made.py").write_text(APP + "def make() -> Tenure:\n    return jobs\nclass Shop:\n    jobs = jobs\n")

    assert load_app("made:make()") is load_app("made:Shop.jobs")


def test_a_file_is_an_app_too_and_finds_its_neighbours(here: Path) -> None:
    (here / "examples").mkdir()
    (here / "examples" / "neighbour.py").write_text("NAME = 'greet'\n")
    (here / "examples" / "single.py").write_text("import neighbour\n" + APP)

    assert load_app("examples/single.py") is load_app("examples/single.py:jobs")


def test_the_environment_then_the_nearest_pyproject_name_the_app(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "pyproject.toml").write_text('[tool.tenure]\napp = "by_project"\n')
    (here / "by_project.py").write_text(APP)
    (here / "by_environment.py").write_text(APP)
    below = here / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.syspath_prepend(here)
    monkeypatch.chdir(below)

    assert load_app() is sys.modules["by_project"].jobs
    monkeypatch.setenv("TENURE_APP", "by_environment")
    assert load_app() is sys.modules["by_environment"].jobs


def test_the_modules_of_imports_bring_their_tasks(here: Path) -> None:
    (here / "split_app.py").write_text("from tenure import Tenure\njobs = Tenure('memory:', imports=['split_tasks'])\n")
    (here / "split_tasks.py").write_text("from split_app import jobs\n@jobs.task\ndef send() -> None: ...\n")

    assert load_app("split_app").tasks.names == ("send",)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (None, "no app: name its module"),
        ("nowhere", "app: there is no module 'nowhere'; looked in"),
        ("nowhere.at.all:jobs", "app: there is no module 'nowhere'"),
        ("nowhere.py", "app: there is no file"),
        ("two", "app: two: its apps: jobs, other; write two:NAME"),
        ("none", "app: none: it creates no Tenure app; write none:NAME"),
        ("two:jbos", "app: two has no attribute 'jbos'; its apps: jobs, other"),
        ("two:Tenure", "app: two:Tenure is a type, not a Tenure"),
        ("broken_imports", "imports: there is no module 'absent'"),
    ],
)
def test_an_app_that_is_not_found_says_what_is_missing(here: Path, target: str | None, why: str) -> None:
    (here / "two.py").write_text(APP + "other = Tenure('memory:')\n")
    (here / "none.py").write_text("")
    (here / "broken_imports.py").write_text("from tenure import Tenure\njobs = Tenure(imports=['absent.a'])\n")

    with pytest.raises(InvalidOption) as caught:
        load_app(target)
    assert str(caught.value).startswith(why)


def test_an_app_that_lacks_a_library_says_which(here: Path) -> None:
    (here / "lacking.py").write_text("import a_library_that_is_not_there\n" + APP)

    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        load_app("lacking")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[tool.tenure\n", "can't be read, so it names no app: Expected ']'"),
        (b"# \xff\n", "can't be read, so it names no app: 'utf-8' codec"),
        (b"[tool]\ntenure = 5\n", "tool.tenure: expected a table, [tool.tenure], got 5"),
        (b"tool = 5\n", "no app: name its module"),
    ],
)
def test_a_pyproject_that_is_broken_is_named(here: Path, text: bytes, said: str) -> None:
    (here / "pyproject.toml").write_bytes(text)
    with pytest.raises(InvalidOption) as refused:
        load_app()
    assert said in str(refused.value)
    assert "pyproject.toml" in str(refused.value)


def test_a_pyproject_that_names_no_text_is_refused(here: Path) -> None:
    (here / "pyproject.toml").write_text("[tool.tenure]\napp = 3\n")

    with pytest.raises(InvalidOption, match=r'\[tool\.tenure\] app: expected "module:attribute", got 3'):
        load_app()
