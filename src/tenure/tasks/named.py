"""Jobs of tasks by name, in a process that does not have their code: `jobs.enqueue("charge", {"order": 7})`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, cast
from uuid import UUID

from tenure.core.durations import Duration
from tenure.core.retry import Retry
from tenure.errors import InvalidArguments, InvalidOption
from tenure.tasks.arguments import dump
from tenure.tasks.handle import AppPort, JobHandle
from tenure.tasks.hints import USING, unknown_options
from tenure.tasks.loops import aside, refuse_on_loop
from tenure.tasks.placeholders import Placeholder
from tenure.tasks.registry import Registry, declared
from tenure.tasks.task import NewJob, Task
from tenure.tasks.texts import refuse_template

if TYPE_CHECKING:
    from tenure.tasks.client import Client
    from tenure.tasks.edges import After
    from tenure.tasks.limits import Limits

_NO_ARGUMENTS: Mapping[str, object] = MappingProxyType({})


class Using(TypedDict, total=False):
    """The options of `task.using`."""

    queue: str | None
    priority: int | None
    delay: Duration | None
    run_at: datetime | None
    expires: Duration | None
    unique: str | None
    retry: Retry | int | None
    timeout: Duration | None
    meta: Mapping[str, str] | None
    id: UUID | None
    tx: object
    after: After | None
    limit: Limits | None


class NamedTasks(AppPort, Protocol):
    """What `ByName` needs of its app."""

    @property
    def tasks(self) -> Registry: ...

    def client(self) -> Client: ...

    async def aclient(self) -> Client: ...


class ByName:
    """The part of an app that enqueues jobs of tasks by name."""

    def bind(
        self: NamedTasks,
        task: str,
        args: Mapping[str, object] = _NO_ARGUMENTS,
        /,
        *,
        unchecked: bool = False,
        **options: Unpack[Using],
    ) -> NewJob:
        """A job of the task of this name, not yet stored; for `enqueue_many`. Otherwise like `enqueue`."""
        refuse_on_loop("jobs.bind(…)", "await jobs.abind(…)")
        job = job_of(self, task, args, options)
        if not unchecked and self.tasks.find(task) is None:
            self.client().check_registered(task, job.of.queue, self.tasks.names)
        return job

    async def abind(
        self: NamedTasks,
        task: str,
        args: Mapping[str, object] = _NO_ARGUMENTS,
        /,
        *,
        unchecked: bool = False,
        **options: Unpack[Using],
    ) -> NewJob:
        """A job of the task of this name, not yet stored; for `aenqueue_many`. Otherwise like `aenqueue`."""
        job = job_of(self, task, args, options)
        if not unchecked and self.tasks.find(task) is None:
            client = await self.aclient()
            await aside(partial(client.check_registered, task, job.of.queue, self.tasks.names))
        return job

    def enqueue(
        self,
        task: str,
        args: Mapping[str, object] = _NO_ARGUMENTS,
        /,
        *,
        unchecked: bool = False,
        **options: Unpack[Using],
    ) -> JobHandle:
        """Store a job of a task whose code this process does not have; options as in `task.using`.

        Example: `jobs.enqueue("charge", {"order": 7}, queue="billing", unique="charge:7")`. The name and the queue are
        checked against what the workers of this store have registered; `unchecked=True` stores the job as it is. Only
        the worker can check the arguments: a job whose arguments do not fit waits. A task of this app is checked here,
        arguments too. Of any other, this process does not know the queue, retries, timeout and limits that `@jobs.task`
        gives it: give those that matter; limits as `limit=` with those of this app, which hold after `jobs.declare()`.
        Raises UnknownTask, InvalidOption, InvalidArguments.
        """
        refuse_on_loop("jobs.enqueue(…)", "await jobs.aenqueue(…)")
        app: Any = self
        job: NewJob = app.bind(task, args, unchecked=unchecked, **options)
        return job.enqueue()

    async def aenqueue(
        self,
        task: str,
        args: Mapping[str, object] = _NO_ARGUMENTS,
        /,
        *,
        unchecked: bool = False,
        **options: Unpack[Using],
    ) -> JobHandle:
        """Store a job by its task's name. Example: `await jobs.aenqueue("charge", {"order": 7}, queue="billing")`"""
        app: Any = self
        job: NewJob = await app.abind(task, args, unchecked=unchecked, **options)
        return await job.aenqueue()


def job_of(app: NamedTasks, name: str, args: Mapping[str, object], options: Using) -> NewJob:
    """A job of the app's own task of this name, or else of one elsewhere."""
    if unknown := [each for each in options if each not in USING]:
        told = unknown_options(name, unknown, USING)
        raise InvalidOption(f'{told}; arguments go into a dict: {{"{unknown[0]}": …}}')
    known = app.tasks.find(name)
    holes = _holes(args)
    if known is not None:
        return with_options(known, options).bind(**args) if holes else own_job(known, args, options)
    task = with_options(elsewhere(app, name), options)
    refuse_template(task.key, args, name)
    rest = {each: value for each, value in args.items() if each not in holes} if holes else args
    return NewJob(task, payload_of(app, name, rest), task.key, holes)


def _holes(args: object) -> dict[str, Placeholder]:
    """The placeholders among these arguments, by name; `payload_of` checks the others."""
    named: Mapping[str, object] = cast("Any", args) if isinstance(args, Mapping) else {}
    return {name: value for name, value in named.items() if isinstance(value, Placeholder)}


def own_job(task: Task[..., Any], args: Mapping[str, object], options: Using) -> NewJob:
    """A job of a task whose code is here, from arguments by name, as JSON has them."""
    positional, keywords = task.arguments.load(payload_of(task.app, task.name, args), bind=True)
    return with_options(task, options).bind(*positional, **keywords)


def with_options(task: Task[..., Any], options: Using) -> Task[..., Any]:
    """`task.using(**options)`."""
    using: Callable[..., Task[..., Any]] = task.using  # checkers take a TypedDict to have keys beyond its own
    return using(**options)


def elsewhere(app: AppPort, name: str) -> Task[..., Any]:
    """A task that another process has: its name, and the defaults of every other option."""
    return declared(app, _code_elsewhere, name=name)


def _code_elsewhere() -> Any:
    """Stands for code that this process does not have."""


def payload_of(app: AppPort, name: str, args: Mapping[str, object] = _NO_ARGUMENTS) -> str:
    """Arguments by name as the JSON of a payload. Raises InvalidArguments."""
    if not isinstance(args, Mapping) or not all(isinstance(each, str) for each in args):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArguments(f'{name}: expected arguments by name like {{"order": 7}}, got {args!r:.80}')
    return dump(dict(args), name, app.settings.largest_payload).decode()
