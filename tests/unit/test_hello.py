"""What a worker process tells its supervisor about its app."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tenure import Tenure
from tenure.app.backends import connect, open_notifier
from tenure.worker.child import Loaded, _hello


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


def test_a_decorated_handler_is_known_by_its_own_lines() -> None:
    """A stack of a hung worker names the task whose lines are on it: the decorator's are the same for all."""
    jobs = Tenure("sqlite:///unused.db")

    @jobs.task
    @logged
    def first() -> None: ...

    @jobs.task
    @logged
    def second() -> None: ...

    functions = _hello(Loaded(jobs.program, jobs.settings, connect, open_notifier))["functions"]

    assert {task: name for task, (_, name) in functions.items()} == {"first": "first", "second": "second"}


def test_a_worker_serves_the_queues_that_its_program_names_besides_its_tasks_own() -> None:
    jobs = Tenure("sqlite:///unused.db")

    @jobs.task(queue="own")
    def first() -> None: ...

    program = replace(jobs.program, queues=frozenset({"more"}))

    assert _hello(Loaded(program, jobs.settings, connect, open_notifier))["queues"] == {"more": None, "own": None}
