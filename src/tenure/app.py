"""The app: `Tenure` puts the parts together, `load_app` finds one. The only file that knows stores and runtime."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import timedelta
from functools import partial
from importlib import import_module, util
from pathlib import Path
from threading import RLock
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from uuid import UUID
from weakref import WeakSet

import msgspec

from tenure import config
from tenure.config import Settings
from tenure.cron import Dst
from tenure.declarations import Declarations, Options, Scheduled, calling_app, calling_place, schedule
from tenure.durations import Duration, seconds, spell
from tenure.errors import InvalidOption
from tenure.job import Desk, Job, JobHandle, handle_of, refuse_on_loop, valid_key
from tenure.once import decode_result
from tenure.ports import Notifier, Store
from tenure.retry import Retry
from tenure.schedule import Schedule
from tenure.task import NewJob, Program, Registry, returned, task_decorator

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.embedded import Embedded
    from tenure.guard import Guard
    from tenure.task import _TaskDecorator
    from tenure.testing import TestQueue
    from tenure.timetable import Declared

T = TypeVar("T")
R = TypeVar("R")

_everyone: WeakSet[Tenure] = WeakSet()
_inherited: list[object] = []  #: clients of the parent process: closing one here would pull at the parent's connections


class Tenure:
    """An app: its tasks, and the store their jobs are in. None means unset: environment, `.env`, default.

    Example: `jobs = Tenure()`, then `@jobs.task` above a function. It opens on first use; `with jobs:` closes it.
    `imports` names the modules whose tasks a worker must know.
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
    ) -> None:
        if isinstance(imports, str):
            raise InvalidOption(f"imports: expected a list of module names, got {imports!r}; write [{imports!r}]")
        self._retry = None if retry is None else Retry.of(retry)
        self._code = {
            "url": url,
            "notifier": notifier,
            "namespace": namespace,
            "keep": keep,
            "keep_dead": keep_dead,
            **(_numbers(self._retry) if self._retry else {}),
        }
        self._flags: Mapping[str, object] = {}
        self._settings: Settings | None = None
        self._policy: Retry | None = None
        self._imports = tuple(imports)
        self._registry = Registry()
        self._declarations = Declarations(calling_app(1))
        self._resources: list[Callable[[], Any]] = []
        self._arounds: list[Callable[[Job[Any]], Any]] = []
        self._client: Client | None = None
        self._testing: TestQueue | None = None
        self._lock = RLock()
        for name, value in (("keep", keep), ("keep_dead", keep_dead)):
            if value is not None:
                seconds(value, name)
        _everyone.add(self)

    def __repr__(self) -> str:
        return f"Tenure({config.redact(str(self._code['url'] or ''))!r}, {len(self._registry)} tasks)"

    # ── declaring ──

    @property
    def task(self) -> _TaskDecorator:
        """`@jobs.task`, or `@jobs.task(queue="slow", retry=3)`: make a function a task."""
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
        **options: Unpack[Options],
    ) -> Callable[[Scheduled], Scheduled]:
        """Run a task at these times, without a scheduler of its own: every supervisor fires, each tick runs once.

        Example: `@jobs.schedule("0 6 * * *", tz="Europe/Paris", expires="2h")` above `@jobs.task`; with arguments,
        `jobs.schedule(every="10m", name="sync-eu")(sync.bind(region="eu"))`. What the options do, and the rules for
        days when the clocks change (those of Debian's cron): docs/schedules.md. Raises InvalidOption.
        """
        place = calling_place(1)
        make = partial(schedule, expression=cron, every=every, tz=tz, dst=dst, **options)
        make(name or "jobs.schedule")  # a typo is told where it stands, also when the decorator is never applied
        return lambda target: self._declarations.add(target, name, make, place)

    def guard(
        self,
        name: str,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        timeout: Duration | None = None,
    ) -> Guard:
        """Guard a function that another scheduler calls: one run at a time on all hosts, each tick once, all recorded.

        Example: `@jobs.guard("daily-report", every="1d")` above a function, plain or async, which returns None when it
        is skipped; `with jobs.guard("sync", every="5m") as job:` raises GuardSkipped. Raises InvalidOption.
        """
        from tenure.guard import Guard

        return Guard(name, every=every, cron=cron, tz=tz, timeout=timeout, open=self._ground)

    def _ground(self) -> tuple[Store, Notifier, Settings]:
        if self._testing is not None:
            return self._testing.client.store, self._testing.client.notifier, self.settings
        store = _open(self.settings)
        return store, open_notifier(self.settings, store), self.settings

    def resource(self, fn: Callable[[], AsyncIterator[Any] | Iterator[Any]], /) -> None:
        """Open what this generator yields once a worker process; `job.resource(Kind)` finds it by its type."""
        self._resources.append(_generator(fn, "resource", parameters=0))

    def around(self, fn: Callable[[Job], AsyncIterator[None] | Iterator[None]], /) -> None:
        """Wrap every attempt in this generator: before its `yield`, and after. A plain one runs in a `def`'s thread."""
        self._arounds.append(_generator(fn, "around", parameters=1))

    # ── enqueueing ──

    def enqueue_many(self, jobs: Iterable[NewJob[R]], *, tx: object = None) -> list[JobHandle[R]]:
        """Store many at once. Example: `jobs.enqueue_many(render.bind(n) for n in range(1000))`"""
        refuse_on_loop("enqueue_many()", "await jobs.aenqueue_many(…)")
        new = list(jobs)
        answers = self.desk().enqueue([job.draft() for job in new], tx=_common_tx(new, tx))
        return [job.stored(answer) for job, answer in zip(new, answers, strict=True)]

    async def aenqueue_many(self, jobs: Iterable[NewJob[R]], *, tx: object = None) -> list[JobHandle[R]]:
        """Store many at once. Example: `await jobs.aenqueue_many(render.bind(n) for n in range(1000))`"""
        new = list(jobs)
        desk = await self.adesk()
        answers = await desk.aenqueue([job.draft() for job in new], tx=_common_tx(new, tx))
        return [job.stored(answer) for job, answer in zip(new, answers, strict=True)]

    def handle(self, id: UUID | str) -> JobHandle:  # noqa: A002
        """The handle of any job; its result comes as plain JSON. `some_task.handle(id)` is typed."""
        return handle_of(self, id, msgspec.json.decode)

    def once(self, key: str, fn: Callable[[], T], *, ttl: Duration | None = None, wait: Duration | None = None) -> T:
        """The result of the first `fn` that was called under this key, in any process; it is called once.

        Example: `jobs.once(f"payout:{invoice}", lambda: bank.pay(invoice), ttl="30d")`. The result is stored as JSON,
        for `ttl` (None: for ever), and read back by the return annotation of `fn`. While another acts it waits, or at
        most for `wait`: then TimeoutError. If `fn` raises the key is free again. Code that dies after it has acted and
        before that is stored acts again: give the other side the key too, or act and record in one transaction, with
        `job.finish(tx=…)`.
        """
        refuse_on_loop("jobs.once(…)", "await jobs.aonce(…)")
        key, life, patience = _once_options(key, ttl, wait)
        value: T = decode_result(key, self._opened().once(key, fn, life, patience), returned(fn))
        return value

    async def aonce(
        self, key: str, fn: Callable[[], Awaitable[T]], *, ttl: Duration | None = None, wait: Duration | None = None
    ) -> T:
        """The result of the first `await fn()` under this key. Example: `await jobs.aonce("k", pay, ttl="30d")`"""
        key, life, patience = _once_options(key, ttl, wait)
        found = await (await self._aopened()).aonce(key, fn, life, patience)
        value: T = decode_result(key, found, returned(fn))
        return value

    @contextmanager
    def transaction(self) -> Generator[Any]:
        """The store's own transaction. Example: `with jobs.transaction() as tx: greet.using(tx=tx).enqueue("Ada")`"""
        refuse_on_loop("with jobs.transaction()", "async with jobs.atransaction()")
        with self._opened().transaction() as tx:
            yield tx

    @asynccontextmanager
    async def atransaction(self) -> AsyncGenerator[Any]:
        """The store's own transaction, for `await task.using(tx=tx).aenqueue(…)`."""
        async with (await self._aopened()).atransaction() as tx:
            yield tx

    # ── running ──

    def worker(self, *, queues: Sequence[str] | None = None, concurrency: int | None = None) -> Embedded:
        """A worker inside this process, in a web app or a script. Example: `with jobs.worker(): …`"""
        from tenure.embedded import Embedded
        from tenure.worker import queue_caps

        program = self.program
        program.tasks.resolve()
        check_timers(program, self.settings, queue_caps(program, self.settings, queues))
        return Embedded(program, _open, open_notifier, self.settings, queues, concurrency)

    def dashboard(self, *, auth: Callable[..., Any] | None = None) -> Any:
        """Its pages and REST API, an ASGI app. Example: `app.mount("/jobs", jobs.dashboard(auth=require_staff))`

        `auth(request)`, plain or async, says who comes: a `tenure.web.access.User`, a role (read, operate, admin), True
        (an admin) or None (nobody). Without it TENURE_TOKENS count; without those only this machine gets in.
        """
        from tenure.admin import Admin

        def connect() -> Admin:
            client = self._opened()
            _ = self.tasks
            return Admin(client.store, client.notifier, self.settings)

        with extra("web"):
            from tenure.web.site import create

            return create(connect, self.settings, tasks=self._registry, auth=auth)

    @contextmanager
    def testing(self, *, resources: Mapping[type, object] = MappingProxyType({})) -> Generator[TestQueue]:
        """Keep jobs in memory, under a clock that stands still, and run them when the test says so.

        Example: `with jobs.testing() as queue: signup(); queue.assert_enqueued(send_welcome, "a@b.c"); queue.drain()`
        """
        from tenure.client import Client
        from tenure.notifiers.poll import PollNotifier
        from tenure.stores.memory import MemoryStore
        from tenure.testing import TestQueue, VirtualClock

        clock = VirtualClock()
        client = Client(MemoryStore(clock.clock), PollNotifier(), self.settings)
        before = self._testing
        self._testing = TestQueue(self, self.program, client, clock, resources)
        try:
            yield self._testing
        finally:
            self._testing = before

    @property
    def tasks(self) -> Registry:
        """Its tasks, those of `imports` too."""
        for name in self._imports:
            _import(name, "imports")
        return self._registry

    @property
    def program(self) -> Program:
        """What a worker runs."""
        declared = self._declarations
        return Program(self.tasks, tuple(self._resources), tuple(self._arounds), declared.source, declared.all)

    @property
    def schedules(self) -> Sequence[Schedule]:
        """Its schedules as they are declared, those of `imports` too. Raises InvalidOption."""
        return self.program.schedules()

    def declare(self, *, force: bool = False) -> Declared:
        """Put its schedules into the store, as its workers do at start. `force`: over those of a newer release."""
        from tenure.timetable import Timetable

        client, program = self._opened(), self.program
        timetable = Timetable(client.store, client.notifier)
        return timetable.declare(program.source, self.settings.release or "", program.schedules(), force=force)

    # ── what its tasks need ──

    @property
    def settings(self) -> Settings:
        """Flag > code > environment > `.env` > default; settled on first use."""
        if self._settings is None:
            self._settings = config.load(self._flags, self._code)
        return self._settings

    def configure(self, flags: Mapping[str, object]) -> None:
        """Let the flags of a command line win over the code. Only before first use."""
        self._flags = flags
        self._settings = self._policy = None

    @property
    def retry(self) -> Retry:
        """The policy of tasks without one of their own."""
        if self._policy is None:
            settings, own = self.settings, self._retry or Retry()
            self._policy = Retry(
                settings.retry_max,
                base=timedelta(seconds=settings.retry_base),
                cap=timedelta(seconds=settings.retry_cap),
                on=own.on,
                never=own.never,
                delay=own.delay,
            )
        return self._policy

    @property
    def resources(self) -> Mapping[type, object]:
        """What `.call()` finds: the resources given to `testing`."""
        return self._testing.resources if self._testing else {}

    def desk(self) -> Desk:
        """The client, opened on first use."""
        return self._opened()

    async def adesk(self) -> Desk:
        """The client, opened on first use in a thread."""
        return await self._aopened()

    # ── opening and closing ──

    def _opened(self) -> Client:
        if self._testing is not None:
            return self._testing.client
        client = self._client
        if client is not None:
            return client
        from tenure.client import Client

        with self._lock:
            if self._client is None:
                store = _open(self.settings)
                self._client = Client(store, open_notifier(self.settings, store), self.settings)
            return self._client

    async def _aopened(self) -> Client:
        if self._client is not None or self._testing is not None:
            return self._opened()
        from asyncio import to_thread

        return await to_thread(self._opened)

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> Self:
        refuse_on_loop("with jobs", "async with jobs")
        self._opened()
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    async def __aenter__(self) -> Self:
        await self._aopened()
        return self

    async def __aexit__(self, *exc: object) -> None:
        from asyncio import to_thread

        await to_thread(self._close)

    def _forget(self) -> None:
        self._lock = RLock()  # another thread of the parent may have held it
        if self._client is not None:
            _inherited.append(self._client)
            self._client = None


def _forget_all() -> None:
    for app in list(_everyone):
        app._forget()


os.register_at_fork(after_in_child=_forget_all)


def _numbers(retry: Retry) -> dict[str, object]:
    base, cap = timedelta(seconds=retry.base), timedelta(seconds=retry.cap)
    return {"retry_max": retry.max_failures, "retry_base": base, "retry_cap": cap}


def _generator(fn: Callable[..., Any], what: str, *, parameters: int) -> Callable[..., Any]:
    if not (inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)):
        raise InvalidOption(f"@jobs.{what}: expected a function with one `yield`, plain or async, got {fn!r}")
    takes = inspect.signature(fn).parameters.values()
    if len([each for each in takes if each.default is each.empty]) != parameters:
        raise InvalidOption(f"@jobs.{what}: {fn.__name__} must take {'only the job' if parameters else 'nothing'}")
    return fn


def _once_options(key: str, ttl: Duration | None, wait: Duration | None) -> tuple[str, float | None, float | None]:
    life = None if ttl is None else seconds(ttl, "ttl")
    if life == 0:
        raise InvalidOption(f"ttl: expected how long the result is kept, like 30d, got {ttl!r}; None: for ever")
    return valid_key(key, "once key"), life, None if wait is None else seconds(wait, "wait")


def _common_tx(jobs: Sequence[NewJob[Any]], tx: object) -> object:
    found = {id(each): each for each in (tx, *(job.tx for job in jobs)) if each is not None}
    if len(found) > 1:
        raise InvalidOption("enqueue_many: these jobs name different transactions; one call can join only one")
    return next(iter(found.values()), None)


# ── Stores and notifiers by name ────────────────────────────────────────────────────────────────────────────────


def open_store(settings: Settings) -> Store:
    """The store that `url` names, not yet connected."""
    scheme, _, rest = settings.url.partition(":")
    match scheme:
        case "sqlite":
            from tenure.stores.sqlite import SqliteStore

            return SqliteStore(_sqlite_path(rest, settings.namespace))
        case "postgresql" | "postgres":
            with extra("postgres"):
                from tenure.stores.postgres import PostgresStore

            return PostgresStore(settings.url, schema=settings.namespace, password=settings.password)
        case scheme if scheme in _REDIS:
            with extra("redis"):
                from tenure.stores.redis import RedisStore

            rings = settings.notifier == "auto"
            return RedisStore(settings.url, namespace=settings.namespace, password=settings.password, rings=rings)
        case "memory":
            raise InvalidOption("a store in memory would be another one in every process; for tests: jobs.testing()")
        case _:
            raise InvalidOption(f"unknown store {scheme!r}; known: sqlite, postgresql, redis, valkey")


@contextmanager
def extra(name: str) -> Generator[None]:
    """What is imported here comes with an extra of the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidOption(f'{error.name} is not installed: pip install "tenure[{name}]"') from error


def open_notifier(settings: Settings, store: Store) -> Notifier:
    """The doorbell that `notifier` names; `auto` is the store's own."""
    from tenure.notifiers.poll import PollNotifier

    match settings.notifier:
        case "poll":
            return PollNotifier()
        case "auto" if store.url.startswith("sqlite:///"):
            from tenure.notifiers.sqlite import SqliteNotifier

            return SqliteNotifier(store.url.removeprefix("sqlite:///"), str(settings.runtime_dir))
        case url if url.startswith(_NATS):
            notifier: Notifier = _nats().NatsNotifier(url, settings.namespace)
            return notifier
        case url if url.startswith(_POSTGRES) or (url == "auto" and store.url.startswith(_POSTGRES)):
            with extra("postgres"):
                from tenure.notifiers.postgres import PostgresNotifier

            return PostgresNotifier(getattr(store, "conninfo", "") if url == "auto" else url, settings.namespace)
        case url if url.partition(":")[0] in _REDIS or (url == "auto" and store.url.partition(":")[0] in _REDIS):
            with extra("redis"):
                from tenure.notifiers.redis import RedisNotifier
                from tenure.stores.redis.server import Server

            theirs: Any = getattr(store, "server", None) if url == "auto" else None
            server = theirs or Server(url, settings.namespace, None)
            return RedisNotifier(server, settings.namespace, rung=theirs is not None)
        case name:
            known = "auto, poll, nats://host:port, postgresql://host/database (one without a pooler), redis://host:port"
            raise InvalidOption(f"unknown notifier {config.redact(name)!r}; known: {known}")


def check_timers(program: Program, settings: Settings, queues: Iterable[str]) -> None:
    """Refuse an `ack_wait` within which a hung job may not have been noticed: the queue would deliver it too early."""
    if not settings.notifier.startswith(_NATS):
        return
    ack_wait = _nats().parse_url(settings.notifier).ack_wait
    served = set(queues)
    for task in sorted(program.tasks, key=lambda task: task.stale_after or 0.0, reverse=True):
        least = (task.stale_after or 0.0) + 2 * settings.lease
        if task.stale_after is not None and task.queue in served and ack_wait <= least:
            raise InvalidOption(
                f"notifier: ack_wait is {spell(ack_wait)}, but task {task.name} of queue {task.queue} may be silent "
                f"for {spell(task.stale_after)} (stale_after), and two leases ({spell(settings.lease)} each) pass "
                f"before it is taken back: set ack_wait to more than {spell(least)}, or a shorter stale_after"
            )


_NATS = ("nats://", "tls://")
_REDIS = tuple(f"{kind}{tls}{via}" for kind in ("redis", "valkey") for tls in ("", "s") for via in ("", "+sentinel"))
_POSTGRES = ("postgresql://", "postgres://")


def _nats() -> ModuleType:
    with extra("nats"):
        return import_module("tenure.notifiers.nats")


def _sqlite_path(rest: str, namespace: str) -> str:
    path = rest.removeprefix("///")
    if path == rest or not Path(path).name or path == ":memory:":
        raise InvalidOption(f"url: expected sqlite:///NAME.db or sqlite:////FOLDER/NAME.db, got 'sqlite:{rest}'")
    if namespace == "tenure":
        return path
    return str(Path(path).with_name(f"{Path(path).stem}.{namespace}{Path(path).suffix}"))


# ── Finding the app ─────────────────────────────────────────────────────────────────────────────────────────────


def load_app(target: str | None = None) -> Tenure:
    """Import an app and all its tasks: `module`, `module:attribute`, `module:make()`, or a file's path.

    Without a target: TENURE_APP, else `app` of [tool.tenure] in the nearest pyproject.toml. The current folder is
    first on the path. Raises InvalidOption that says what is missing.
    """
    target = target or config.load().app or _app_of_pyproject()
    if not target:
        raise InvalidOption(
            "no app: name its module (tenure worker shop.jobs), or set TENURE_APP, or app in [tool.tenure] of "
            "pyproject.toml"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    name, _, attribute = target.partition(":")
    module = _import_file(Path(name)) if name.endswith(".py") else _import(name, "app")
    app = _attribute(module, attribute) if attribute else _only_app(module)
    if not isinstance(app, Tenure):
        raise InvalidOption(f"app: {target} is a {type(app).__name__}, not a Tenure")
    _ = app.tasks
    return app


def _app_of_pyproject() -> str | None:
    import tomllib

    for folder in (Path.cwd(), *Path.cwd().parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            found = tomllib.loads(path.read_text()).get("tool", {}).get("tenure", {}).get("app")
            if found is not None and not isinstance(found, str):
                raise InvalidOption(f'{path}: [tool.tenure] app: expected "module:attribute", got {found!r}')
            return found
    return None


def _import(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
        raise InvalidOption(
            f"{what}: there is no module {error.name!r}; looked in {Path.cwd()} and on sys.path"
        ) from error


def _import_file(path: Path) -> ModuleType:
    spec = util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise InvalidOption(f"app: there is no file {path.absolute()}")
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == spec.origin:
        return known
    sys.path.insert(0, str(path.absolute().parent))
    module = sys.modules[path.stem] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, attribute: str) -> object:
    name = attribute.removesuffix("()")
    found: Any = module
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise InvalidOption(f"app: {module.__name__} has no attribute {name!r}; {_apps_told(module)}") from error
    return found() if name != attribute else found


def _only_app(module: ModuleType) -> Tenure:
    apps = _apps_in(module)
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    raise InvalidOption(f"app: {module.__name__}: {_apps_told(module)}; write {module.__name__}:NAME")


def _apps_in(module: ModuleType) -> dict[str, Tenure]:
    return {name: value for name, value in vars(module).items() if isinstance(value, Tenure)}


def _apps_told(module: ModuleType) -> str:
    names = ", ".join(_apps_in(module))
    return f"it has these apps: {names}" if names else "it makes no Tenure"


# ── The two kinds of process ────────────────────────────────────────────────────────────────────────────────────

_FLAGS = ("url", "notifier", "queues", "concurrency", "workers", "grace", "listen")


def supervise(order: Mapping[str, Any], log: Callable[[Settings], None]) -> int:
    """Become the supervisor that `tenure worker` asked for. Imports no user code: its workers do."""
    from tenure.supervisor import Options, Supervisor

    settings = config.load(_flags(order))
    log(settings)
    command = (sys.executable, "-m", "tenure.cli.child", msgspec.json.encode(order).decode())
    options = Options(
        command=command,
        workers=settings.workers,
        until_empty=bool(order.get("until_empty")),
        reload=bool(order.get("reload")),
        counts=settings.listen is not None,
    )
    supervisor = Supervisor(options, _open, open_notifier, _say)
    if settings.listen is not None:
        from tenure.metrics import Page, serve

        try:
            server = serve(settings.listen, Page(supervisor.tally, supervisor.vitals, _open))
        except OSError as error:
            _say(f"listen: {settings.listen} can't be had: {error.strerror}; name another HOST:PORT, or none")
            return 2
        with closing(server):
            _say(f"tenure: metrics at {server.url}/metrics, health at {server.url}/healthz")
            return supervisor.run()
    return supervisor.run()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def work(order: Mapping[str, Any], handles: Sequence[int], log: Callable[[Settings], None]) -> int:
    """Be a worker process of the supervisor that handed these over."""
    from tenure.child import Handles, Loaded, run_child
    from tenure.worker import queue_caps

    def load() -> Loaded:
        app = load_app(order.get("app"))
        app.configure(_flags(order))
        log(app.settings)
        app.tasks.resolve()
        check_timers(app.program, app.settings, queue_caps(app.program, app.settings))
        return Loaded(app.program, app.settings, _open, open_notifier)

    return run_child(Handles(*handles), load)


def _flags(order: Mapping[str, Any]) -> dict[str, object]:
    return {name: order[name] for name in _FLAGS if order.get(name) is not None}


def _open(settings: Settings) -> Store:
    store = open_store(settings)
    store.open()
    return store
