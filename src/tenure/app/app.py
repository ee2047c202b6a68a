"""The app: `Tenure` wires the parts together."""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import date, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack
from uuid import UUID

from tenure import config
from tenure.app import backends
from tenure.app.backends import OpenClient
from tenure.codecs import Codec, checked
from tenure.config import Settings
from tenure.core.durations import Duration, seconds
from tenure.core.imports import import_named
from tenure.core.retry import Retry
from tenure.core.signatures import signature_of
from tenure.errors import InvalidOption
from tenure.operations.app_limits import WithLimits
from tenure.ports import Notifier, Store
from tenure.ports.schedules import Dst, Schedule
from tenure.schedules.declarations import Declarations, Options, Scheduled, calling_app, calling_place, schedule
from tenure.tasks.app_once import WithOnce
from tenure.tasks.arguments import decode_any
from tenure.tasks.edges import check_same_store
from tenure.tasks.flow import WithFlows
from tenure.tasks.handle import JobHandle, handle_of
from tenure.tasks.hints import APP, foreign_names, unknown_options
from tenure.tasks.job import Job
from tenure.tasks.limits import DeclaredLimits
from tenure.tasks.loops import aside, refuse_on_loop
from tenure.tasks.named import ByName
from tenure.tasks.registry import Registry, task_decorator
from tenure.tasks.task import NewJob, common_tx
from tenure.tasks.tracing import Traced
from tenure.worker.program import Program

if TYPE_CHECKING:
    from tenure.guards.guard import Guard, GuardOptions
    from tenure.tasks.client import Client
    from tenure.tasks.registry import TaskDecorator
    from tenure.testing import TestQueue
    from tenure.worker.embedded import Embedded, IdleWorker

T = TypeVar("T")
R = TypeVar("R")


@foreign_names("the app", APP)
class Tenure(ByName, WithFlows, WithLimits, WithOnce, Traced):
    """An app: its tasks, and the store of their jobs. None means unset: environment, `.env` or default apply.

    Example: `jobs = Tenure()`, then `@jobs.task` above a function. It opens on first use; `with jobs:` closes it.
    `imports` names the modules of tasks that a worker must import; `codec` encrypts at rest (docs/encryption.md);
    `offload`, as in "s3://bucket/jobs", is where values too large for the store are kept (docs/large-values.md).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        notifier: str | None = None,
        namespace: str | None = None,
        imports: Sequence[str] = (),
        retry: Retry | int | None = None,
        keep: Duration | None = None,
        keep_dead: Duration | None = None,
        codec: Codec | None = None,
        offload: str | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unknown_options("Tenure", unknown, _OPTIONS, beyond=config.setting_named)
        if isinstance(imports, str):
            raise InvalidOption(f"imports: expected a list of module names, got {imports!r}; write [{imports!r}]")
        self._retry = None if retry is None else Retry.of(retry)
        self.codec = None if codec is None else checked(codec)
        self._code = {
            "url": url,
            "notifier": notifier,
            "namespace": namespace,
            "keep": keep,
            "keep_dead": keep_dead,
            "offload": offload,
            **(_numbers(self._retry) if self._retry else {}),
        }
        self._folder = config.current_folder()  # now, not at first use: a program may change it
        self._flags: Mapping[str, object] = {}
        self._settings: Settings | None = None
        self._policy: Retry | None = None
        self._imports = tuple(imports)
        self._registry = Registry()
        self._declarations = Declarations(calling_app(1))
        self._limits = DeclaredLimits()
        self._resources: list[Callable[[], Any]] = []
        self._arounds: list[Callable[[Job[Any]], Any]] = []
        self._client = OpenClient()
        self._testing: TestQueue | None = None
        _check_durations(keep=keep, keep_dead=keep_dead)

    def __repr__(self) -> str:
        return f"Tenure({config.redact(str(self._code['url'] or ''))!r}, {len(self._registry)} tasks)"

    # ── declaring ──

    @property
    def task(self) -> TaskDecorator:
        """Register a function as a task: `@jobs.task`, or `@jobs.task(queue="slow", retry=3)`."""
        return task_decorator(self, self._registry)

    def schedule(
        self,
        cron: str | None = None,
        /,
        *,
        every: Duration | None = None,
        tz: str = "UTC",
        name: str | None = None,
        dst: Dst = "debian",
        except_dates: Iterable[date] = (),
        **options: Unpack[Options],
    ) -> Callable[[Scheduled], Scheduled]:
        """Run a task at these times, without a separate scheduler: every supervisor fires ticks, each tick runs once.

        Example: `@jobs.schedule("0 6 * * *", tz="Europe/Paris", expires="2h")` above `@jobs.task`; with arguments,
        `jobs.schedule(every="10m", name="sync-eu")(sync.bind(region="eu"))`. `|` separates several expressions;
        no tick falls on one of `except_dates`, dates in the time zone. What the options do, and the rules for
        days when the clocks change (those of Debian's cron): docs/schedules.md. Raises InvalidOption.
        """
        place = calling_place(1)
        dates = tuple(except_dates)
        make = partial(schedule, expression=cron, every=every, tz=tz, dst=dst, except_dates=dates, **options)
        make(name or "jobs.schedule")  # so an error points at this call, even if the decorator is never applied
        return lambda target: self._declarations.add(target, name, make, place)

    def guard(self, name: str, **options: Unpack[GuardOptions]) -> Guard:
        """Guard a function that another scheduler calls: one run at a time on all hosts, each tick once, all recorded.

        Example: `@jobs.guard("daily-report", every="1d")` above a function, plain or async; a skipped call returns
        None. `with jobs.guard("sync", every="5m") as job:` raises GuardSkipped instead. `cron="0 6 * * *"` with `tz`
        gives times instead of `every`; `timeout` limits a run. Alerts: after one failure, when no call has come
        5 minutes after its time, and when a run still runs at its next two ticks; other limits are `alert_after`
        (a number), `overdue_after` and `too_long`. Raises InvalidOption.
        """
        from tenure.guards.guard import Guard

        return Guard(name, open=self._connect, **options)

    def _connect(self) -> tuple[Store, Notifier, Settings]:
        if self._testing is not None:
            return self._testing.client.store, self._testing.client.notifier, self.settings
        return *backends.connect_both(self.settings, self.codec), self.settings

    def resource(self, fn: Callable[[], AsyncIterator[Any] | Iterator[Any]], /) -> None:
        """Open what this generator yields once per worker process; `job.resource(Kind)` finds it by its type."""
        self._resources.append(_generator(fn, "resource", parameters=0))

    def around(self, fn: Callable[[Job], AsyncIterator[None] | Iterator[None]], /) -> None:
        """Wrap every attempt: run the code before and after the `yield`. A plain one runs in a `def` task's thread.

        An async one can't wrap `def` tasks: a worker of an app that has both refuses to start.
        """
        self._arounds.append(_generator(fn, "around", parameters=1))

    # ── enqueueing ──

    def enqueue_many(self, jobs: Iterable[NewJob[R]], *, tx: object = None) -> list[JobHandle[R]]:
        """Store many jobs in one call, all or none; on Redis an error may leave some of more than 200 stored.

        Example: `jobs.enqueue_many(render.bind(n) for n in range(1000))`
        """
        refuse_on_loop("enqueue_many()", "await jobs.aenqueue_many(…)")
        new = _new_jobs(self, jobs)
        answers = self.client().enqueue([job.draft() for job in new], tx=common_tx(new, tx, "enqueue_many"))
        return [job.stored(answer) for job, answer in zip(new, answers, strict=True)]

    async def aenqueue_many(self, jobs: Iterable[NewJob[R]], *, tx: object = None) -> list[JobHandle[R]]:
        """Store many jobs in one call. Example: `await jobs.aenqueue_many(render.bind(n) for n in range(1000))`"""
        new = _new_jobs(self, jobs)
        client = await self.aclient()
        answers = await client.aenqueue([job.draft() for job in new], tx=common_tx(new, tx, "enqueue_many"))
        return [job.stored(answer) for job, answer in zip(new, answers, strict=True)]

    def handle(self, id: UUID | str) -> JobHandle:  # noqa: A002
        """The handle of any job; its result is decoded as plain JSON. `some_task.handle(id)` is typed."""
        return handle_of(self, id, decode_any)

    @contextmanager
    def transaction(self) -> Generator[Any]:
        """The store's own transaction. Example: `with jobs.transaction() as tx: greet.using(tx=tx).enqueue("Ada")`"""
        refuse_on_loop("with jobs.transaction()", "async with jobs.atransaction()")
        with self.client().transaction() as tx:
            yield tx

    @asynccontextmanager
    async def atransaction(self) -> AsyncGenerator[Any]:
        """The store's own transaction, for `await task.using(tx=tx).aenqueue(…)`."""
        async with (await self.aclient()).atransaction() as tx:
            yield tx

    # ── running ──

    def worker(
        self, *, queues: Sequence[str] | None = None, concurrency: int | None = None, **unknown: Never
    ) -> Embedded | IdleWorker:
        """A worker embedded in this process, a web app or a script. Example: `async with jobs.worker(): yield`

        In `async with`, `async` tasks and resources run on the caller's event loop, so they may share its engine and
        clients. `with jobs.worker():` runs them on a loop in another thread: what they use must be opened there, by
        `@jobs.resource`. Plain tasks always run in threads of the worker. Leaving the block waits for running jobs, up
        to `grace`; a block that is cancelled hands them back at once. Raises TenureError if the worker failed.
        `queues` are as in `tenure worker`: "reports", or "reports=2" for at most two slots. Raises InvalidOption.
        Within `jobs.testing()` it claims nothing: `drain` runs the jobs.
        """
        program, idle = self.program, self._testing is not None
        program.check()
        return backends.embedded(program, self.settings, self.codec, queues, concurrency, unknown, idle=idle)

    def dashboard(self, *, auth: Callable[..., Any] | None = None) -> Any:
        """The dashboard and REST API, an ASGI app. Example: `app.mount("/jobs", jobs.dashboard(auth=require_staff))`

        `auth(request)`, plain or async, returns the user: a `tenure.web.access.User`, a role (read, operate, admin),
        True (an admin) or None (access denied). Without it TENURE_TOKENS apply; without those only requests from this
        machine are accepted.
        """
        return backends.dashboard(self.client, lambda: self.tasks, self._registry, self.settings, auth)

    @contextmanager
    def testing(
        self,
        *,
        resources: Mapping[type, object] = MappingProxyType({}),
        elsewhere: Sequence[str] = (),
        limits: bool = False,
    ) -> Generator[TestQueue]:
        """Keep jobs in memory, under a virtual clock, and run them when the test says so.

        Example: `with jobs.testing() as queue: signup(); queue.assert_enqueued(send_welcome, "a@b.c"); queue.drain()`
        `elsewhere` names tasks of other processes, which `jobs.enqueue("name", …)` may name: `drain` leaves their jobs.
        `limits=True`: limits hold; else every job is due at once, and nothing pauses a key.
        """
        if not isinstance(resources, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"testing: resources: expected values by type, like {{Pool: Pool()}}, got {resources!r:.80}"
            )
        if isinstance(elsewhere, str):
            raise InvalidOption(f"testing: elsewhere: expected names of tasks, like [{elsewhere!r}], got {elsewhere!r}")
        before = self._testing
        self._testing = queue = backends.test_queue(self, self.program, self._new_client, resources, elsewhere, limits)
        try:
            yield queue
        finally:
            self._testing = before
            queue.close()

    @property
    def tasks(self) -> Registry:
        """Its tasks, including those of `imports`."""
        for name in self._imports:
            import_named(name, "imports")
        return self._registry

    @property
    def program(self) -> Program:
        """What a worker runs."""
        own, around = self._declarations, tuple(self._arounds)
        resources, limits = tuple(self._resources), self._limits.rows
        return Program(self.tasks, resources, around, own.source, own.all, limits, self.tracing)

    @property
    def schedules(self) -> Sequence[Schedule]:
        """Its schedules as declared, including those of `imports`. Raises InvalidOption."""
        return self.program.schedules()

    # ── for its tasks ──

    @property
    def settings(self) -> Settings:
        """Flag > code > environment > `.env` > default; resolved on first use, in the folder where the app was made."""
        if self._settings is None:
            self._settings = config.load(self._flags, self._code, folder=self._folder)
        return self._settings

    def configure(self, flags: Mapping[str, object]) -> None:
        """Let command-line flags override the code. Only before first use."""
        self._flags = flags
        self._settings = self._policy = None

    @property
    def retry(self) -> Retry:
        """The retry policy of tasks that declare none."""
        if self._policy is None:
            self._policy = _policy(self.settings, self._retry or Retry())
        return self._policy

    @property
    def resources(self) -> Mapping[type, object]:
        """The resources available to `.call()`: those passed to `testing`."""
        return self._testing.resources if self._testing else {}

    def client(self) -> Client:
        """The client, opened on first use."""
        if self._testing is not None:
            return self._testing.client
        return self._client.current or self._client.open(lambda: (self.settings, self.codec), self._new_client)

    def _new_client(self, store: Store, notifier: Notifier) -> Client:
        from tenure.tasks.client import Client

        return Client(store, notifier, self.settings, lambda: self.tracing)

    async def aclient(self) -> Client:
        """The client, opened on first use in a thread."""
        if self._client.current is not None or self._testing is not None:
            return self.client()
        return await aside(self.client)

    # ── opening and closing ──

    def __enter__(self) -> Self:
        refuse_on_loop("with jobs", "async with jobs")
        self.client()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    async def __aenter__(self) -> Self:
        await self.aclient()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await aside(self._client.close)


_OPTIONS = tuple(inspect.signature(Tenure).parameters)[:-1]


def _check_durations(**given: Duration | None) -> None:
    for name, value in given.items():
        if value is not None:
            seconds(value, name)


def _numbers(retry: Retry) -> dict[str, object]:
    base, cap = timedelta(seconds=retry.base), timedelta(seconds=retry.cap)
    return {"retry_max": retry.max_failures, "retry_base": base, "retry_cap": cap}


def _policy(settings: Settings, own: Retry) -> Retry:
    """The numbers from the settings, with the exception types and the delay that only code can give."""
    base, cap = timedelta(seconds=settings.retry_base), timedelta(seconds=settings.retry_cap)
    return Retry(settings.retry_max, base=base, cap=cap, on=own.on, never=own.never, delay=own.delay)


def _generator(fn: Callable[..., Any], what: str, *, parameters: int) -> Callable[..., Any]:
    if not (inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)):
        raise InvalidOption(f"@jobs.{what}: expected a function with one `yield`, plain or async, got {fn!r}")
    takes = signature_of(fn).parameters.values()
    if len([each for each in takes if each.default is each.empty]) != parameters:
        raise InvalidOption(f"@jobs.{what}: {fn.__name__} must take {'only the job' if parameters else 'nothing'}")
    return fn


def _new_jobs(app: Tenure, jobs: Iterable[NewJob[R]]) -> list[NewJob[R]]:
    given: Any = jobs
    listed: list[Any] = [*given] if isinstance(given, Iterable) else [given]  # pyright: ignore[reportUnknownArgumentType]
    for job in listed:
        if not isinstance(job, NewJob):
            raise InvalidOption(f"enqueue_many: expected jobs like add.bind(1, 2), got {job!r:.80}")
    new: list[NewJob[R]] = listed
    for job in new:
        if job.of.app is not app:
            check_same_store(app, job.of.app, f"enqueue_many: {job.of.name}")
    return new
