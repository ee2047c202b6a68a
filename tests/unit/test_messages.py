"""What people who know another queue write first, and the sentence that says what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.backends import open_store
from tenure.cli.worker import warn_of_queues
from tenure.config import load
from tenure.errors import InvalidOption


@pytest.fixture
def app(tmp_path: Path) -> Tenure:
    return Tenure(f"sqlite:///{tmp_path}/tenure.db")


@pytest.fixture
def add(app: Tenure) -> Any:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    return add


def said(call: Callable[[], object], kind: type[BaseException] = InvalidOption) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "instead"),
    [("delay", "add.enqueue(…)"), ("apply_async", "add.using(…).enqueue(…)"), ("s", "add.bind(…)")],
)
def test_a_method_of_another_queue_names_the_one_here(add: Any, name: str, instead: str) -> None:
    words = said(lambda: getattr(add, name)(1, 2), AttributeError)

    assert words.startswith(f"the task add has no {name!r}; write ")
    assert instead in words
    assert not hasattr(add, "__wrapped__")


@pytest.mark.parametrize(
    ("option", "instead"),
    [("max_retries", "write retry=Retry("), ("time_limit", "write timeout="), ("timout", "did you mean timeout=?")],
)
def test_an_option_that_a_task_does_not_have_names_the_right_one(app: Tenure, option: str, instead: str) -> None:
    words = said(lambda: app.task(**{option: 3}))  # type: ignore[call-overload]

    assert words.startswith(f"@jobs.task: there is no option {option!r}; {instead}")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("countdown", 'write delay="5s"'),
        ("eta", "write run_at="),
        ("quue", "did you mean queue=?"),
        ("zz", "queue, pri"),
    ],
)
def test_an_option_that_using_does_not_have_names_the_right_one(add: Any, option: str, instead: str) -> None:
    words = said(lambda: add.using(**{option: 5}))

    assert words.startswith(f"add.using: there is no option {option!r}; ")
    assert instead in words
    assert "unknown" not in words


def test_enqueue_many_says_what_it_takes(app: Tenure, add: Any) -> None:
    assert said(lambda: app.enqueue_many([1])) == (  # type: ignore[list-item]
        "enqueue_many: expected jobs like add.bind(1, 2), got 1"
    )
    assert "expected jobs like add.bind(1, 2), got Task(add" in said(lambda: app.enqueue_many([add]))


def test_collected_arguments_are_named_as_they_are_written(app: Tenure) -> None:
    def many(*args: int) -> None: ...

    def more(**kw: Any) -> None: ...

    assert said(lambda: app.task(many)).startswith("many: *args can't be stored by name")
    assert said(lambda: app.task(more)).startswith("more: **kw can't be stored by name")


def test_a_value_that_is_no_json_has_its_article(app: Tenure) -> None:
    @app.task
    def keep(n: int, it: Any) -> None: ...

    assert "an object can't be written as JSON" in said(lambda: keep.bind(1, object()), TypeError)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgresql+asyncpg://db/shop", "write postgresql:, without the driver"),
        ("postgres+psycopg2://db/shop", "write postgres:, without the driver"),
        ("mysql://db/shop", "known: sqlite, postgresql, redis, valkey"),
    ],
)
def test_a_url_with_a_driver_says_to_leave_it_out(url: str, advice: str, tmp_path: Path) -> None:
    assert said(lambda: open_store(load({"url": url}, environ={}, folder=tmp_path))).endswith(advice)


def test_a_worker_of_a_queue_that_no_task_names_says_so(
    app: Tenure, add: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    app.configure({"queues": ["default", "nope"]})
    warn_of_queues(app)

    assert "no task names the queue nope; the tasks name default" in capsys.readouterr().err


def test_a_result_that_does_not_come_says_that_no_worker_serves_the_queue(
    app: Tenure, add: Any, tmp_path: Path
) -> None:
    with app:
        handle = add.enqueue(1, 2)
        words = said(lambda: handle.result("10ms"), TimeoutError)
        assert "is still queued after 10ms; no live worker of this store (sqlite:///" in words
        assert words.endswith("serves the queue 'default'")
        assert str(tmp_path) in words

        with app.worker():
            assert handle.result("30s") == 3
        later = add.using(delay="1h").enqueue(1, 2)
        assert "worker" not in said(lambda: later.result("10ms"), TimeoutError)
