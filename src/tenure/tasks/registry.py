"""Declaring tasks, and finding them by name: `@jobs.task` and the `Registry` of an app."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from tenure.config import valid_name, valid_queue
from tenure.core.durations import Duration
from tenure.core.retry import Retry
from tenure.errors import InvalidOption, UnknownTask
from tenure.tasks.arguments import Arguments
from tenure.tasks.detached import detached_job
from tenure.tasks.handle import AppPort
from tenure.tasks.hints import option_of_one_job, unknown_options
from tenure.tasks.job import Job
from tenure.tasks.limits import Limits, limits_of
from tenure.tasks.signals import declared_signals
from tenure.tasks.task import Task, positive, priority_of

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """`@jobs.task`, bare or with options."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Job[Any], P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Job[Any], P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        retry: Retry | int | None = None,
        timeout: Duration | None = None,
        stale_after: Duration | None = None,
        isolation: Literal["process"] | None = None,
        unique: str | None = None,
        max_crashes: int = 3,
        aliases: Sequence[str] = (),
        signals: Mapping[str, Any] | None = None,
        limit: Limits = (),
    ) -> TaskDecorator: ...


def task_decorator(app: AppPort, registry: Registry, **options: Any) -> TaskDecorator:
    """The decorator that declares tasks of this app with these options."""

    def decorate(fn: Callable[..., Any] | None = None, /, **more: Any) -> Any:
        if unknown := [option for option in more if option not in _OPTIONS]:
            raise unknown_options("@jobs.task", unknown, _OPTIONS, beyond=option_of_one_job)
        if fn is None:
            return task_decorator(app, registry, **options, **more)
        return registry.add(declared(app, fn, **options, **more))

    return cast("TaskDecorator", decorate)


def declared(
    app: AppPort,
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int = 0,
    retry: Retry | int | None = None,
    timeout: Duration | None = None,
    stale_after: Duration | None = None,
    isolation: Literal["process"] | None = None,
    unique: str | None = None,
    max_crashes: int = 3,
    aliases: Sequence[str] = (),
    signals: Mapping[str, Any] | None = None,
    limit: Limits = (),
) -> Task[..., Any]:
    """The task that this function and these options make. Raises InvalidOption."""
    if not callable(fn) or isinstance(fn, type | Task):
        raise InvalidOption(f"@jobs.task: expected a function, got {fn!r}; a name goes in name=")
    own = getattr(fn, "__name__", "<partial>")
    if name is None and own.startswith("<"):
        raise InvalidOption(
            "@jobs.task: this function has no name of its own; write it with def, or give @jobs.task a name="
        )
    label = valid_name(own if name is None else name, "task name")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise InvalidOption(f"{label}: a task returns once; a generator function can't be one")
    if isinstance(aliases, str):
        raise InvalidOption(f"{label}: aliases: expected a list of names, got {aliases!r}; write [{aliases!r}]")
    if isolation not in (None, "process"):
        raise InvalidOption(f"{label}: isolation: expected 'process' or nothing, got {isolation!r}")
    if isinstance(max_crashes, bool) or not isinstance(max_crashes, int) or max_crashes < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"{label}: max_crashes: expected a whole number from 0, got {max_crashes!r}")
    task = Task[..., Any](
        name=label,
        fn=fn,
        place=_place(fn),
        arguments=Arguments(label, fn, Job),
        detached=detached_job,
        app=app,
        queue=valid_queue(queue),
        priority=priority_of(priority),
        own_retry=None if retry is None else Retry.of(retry),
        timeout=None if timeout is None else positive(timeout, "timeout"),
        stale_after=None if stale_after is None else positive(stale_after, "stale_after"),
        isolation=isolation,
        unique=unique,
        max_crashes=max_crashes,
        aliases=tuple(valid_name(alias, "alias") for alias in aliases),
        signals=declared_signals(label, signals),
        limits=limits_of(label, app, limit),
    )
    with suppress(NameError):  # a forward reference: `resolve` checks it later
        task.check()
    return task


_OPTIONS = tuple(name for name in inspect.signature(declared).parameters if name not in ("app", "fn"))


def _place(fn: Callable[..., Any]) -> str:
    code: CodeType | None = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None:
        return str(getattr(fn, "__module__", "?"))
    try:
        path = os.path.relpath(code.co_filename)
    except OSError:  # the current folder was deleted
        path = code.co_filename
    return f"{code.co_filename if path.startswith('..') else path}:{code.co_firstlineno}"


def _run_again(one: Task[..., Any], other: Task[..., Any]) -> bool:
    """Is it the same function, from two cells of a notebook or two statements at a prompt? Neither has a file."""
    mine, theirs = inspect.unwrap(one.fn), inspect.unwrap(other.fn)
    space = getattr(mine, "__globals__", {})
    return (
        space.get("__name__") == "__main__"
        and "__file__" not in space
        and space is getattr(theirs, "__globals__", None)
        and mine.__qualname__ == theirs.__qualname__
        and mine.__code__.co_filename != theirs.__code__.co_filename
    )


class Registry:
    """The tasks of one app, by name and alias."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._named: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> Task[..., Any]:
        """Register a task. A second one of its name is refused, unless it is the same lines or cell, run again."""
        names = (task.name, *task.aliases)
        for name in names:
            other = self._named.get(name)
            if other is None or (other.place, other.name) == (task.place, task.name):
                continue
            if not _run_again(task, other):
                raise InvalidOption(f"two tasks are named '{name}': {other.place} and {task.place}; give one a name=")
        self._named.update(dict.fromkeys(names, task))
        self._tasks[task.name] = task
        return task

    def find(self, name: str) -> Task[..., Any] | None:
        """The task of this name or alias."""
        return self._named.get(name)

    def __getitem__(self, name: str) -> Task[..., Any]:
        found = self._named.get(name)
        if found is None:
            raise UnknownTask(f"no task is named {name!r}; known: {', '.join(sorted(self._tasks)) or 'none'}")
        return found

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that a job may carry, including aliases."""
        return tuple(self._named)

    def resolve(self) -> None:
        """Resolve all annotations now, so that a worker that starts can run every task. Raises InvalidOption."""
        for task in self:
            task.resolve()
