"""Opens stores, notifiers and clients from their URLs, and what every process that uses them needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import RLock
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tenure import config
from tenure.codecs import Codec
from tenure.config import Settings
from tenure.core import forks
from tenure.core.durations import spell
from tenure.core.logs import logger
from tenure.core.sealed import ALTERED, is_sealed, why_sealed
from tenure.core.text import install
from tenure.errors import InvalidOption, Locked, UnknownJob
from tenure.ports import Field, Notifier, Place, Store, Text

if TYPE_CHECKING:
    from tenure.maintenance.maintenance import Alarm
    from tenure.maintenance.roster import Lag
    from tenure.stores.sealed.rotation import Rotated
    from tenure.tasks.client import Client
    from tenure.tasks.handle import AppPort
    from tenure.tasks.registry import Registry
    from tenure.testing import TestQueue
    from tenure.testing.transactions import Fates
    from tenure.worker.embedded import Embedded, IdleWorker
    from tenure.worker.program import Program

_NATS = ("nats://", "tls://")
_REDIS = (
    *(f"{kind}{tls}{via}" for kind in ("redis", "valkey") for tls in ("", "s") for via in ("", "+sentinel")),
    "unix",
)
_POSTGRES = ("postgresql://", "postgres://")

_KNOWN = "known: sqlite, postgresql, redis, valkey"


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

            command = "manage.py migrate" if settings.app == config.DJANGO_APP else "tenure migrate"
            return PostgresStore(
                settings.url, schema=settings.namespace, password=settings.password, migrated_by=command
            )
        case scheme if scheme in _REDIS:
            with extra("redis"):
                from tenure.stores.redis import RedisStore

            rings = settings.notifier == "auto"
            return RedisStore(settings.url, namespace=settings.namespace, password=settings.password, rings=rings)
        case "memory":
            raise InvalidOption("url: every process would have its own memory store; for tests use jobs.testing()")
        case _:
            if settings.url.startswith(_NATS):
                raise InvalidOption(
                    f'url: NATS delivers beside a store: Tenure("postgresql://…", notifier="{scheme}://…")'
                )
            if scheme in ("redis+socket", "valkey+socket"):
                raise InvalidOption(f"unknown store {scheme!r}; write unix:{rest}")
            plain, driver, _ = scheme.partition("+")
            known = plain if plain in ("sqlite", "postgresql", "postgres", *_REDIS) else ""
            advice = f"write {known}:, without the driver" if known and driver else _KNOWN
            raise InvalidOption(f"unknown store {scheme!r}; {advice}")


def connect(settings: Settings, codec: Codec | None = None) -> Store:
    """The store that `url` names, connected and checked, with its bucket; values are encrypted if there is a codec."""
    store = with_bucket(open_store(settings), settings)
    store.open()
    return store if codec is None else _sealed().sealed(store, codec)


def with_bucket(store: Store, settings: Settings) -> Store:
    """The store, with the bucket that `offload` names behind it, if it names one."""
    if settings.offload is None:
        return store
    from tenure.stores.offload import offloading

    most = settings.max_result
    largest: dict[Place, int] = {"payload": settings.max_payload, "result": most, "checkpoint": most, "once": most}
    return offloading(store, settings.offload, settings.namespace, largest, settings.keep_offloaded)


def connecting(codec: Codec | None) -> Callable[[Settings], Store]:
    """What connects the workers of an app with this codec."""
    return connect if codec is None else partial(connect, codec=codec)


def connect_both(settings: Settings, codec: Codec | None = None) -> tuple[Store, Notifier]:
    store = connect(settings, codec)
    return store, notifier_of(settings, store)


def notifier_of(settings: Settings, store: Store) -> Notifier:
    """The notifier for a store that was just opened, which is closed if there can be none."""
    try:
        return open_notifier(settings, store)
    except BaseException:
        store.close()
        raise


def shown(store: Store, codec: Codec | None = None) -> Store:
    """The store as people see it: where a value can't be decrypted, it says why."""
    return store if store.capabilities.sealed else _sealed().sealed(store, codec)


def rotation(store: Store, codec: Codec) -> Iterator[Rotated]:
    """Encrypt what this store holds with the codec's first key. Yields what was done so far, after each page."""
    from tenure.stores.sealed.rotation import rotate

    return rotate(store, codec)


def bucket(settings: Settings, codec: Codec | None) -> Any:
    """The OffloadStore, opened; what it fetches is decrypted if there is a codec. Raises InvalidOption."""
    if settings.offload is None:
        raise InvalidOption(f"{config.PREFIX}OFFLOAD is not set: no value is kept elsewhere")
    return connect(settings, codec)


def value_of(store: Store, job_id: str, place: Field) -> str | None:
    """A value of a job, from wherever it is kept. Raises UnknownJob, Locked."""
    job = _sealed().beneath(store).get(job_id)
    if job is None:
        raise UnknownJob(f"no job {job_id} in {config.redact(store.url)}: never enqueued there, deleted, or pruned")
    text: str | None = getattr(job, place)
    if text is None:
        return None
    found = store.fetch(Text(place, job.id, "", text))
    if is_sealed(found):
        raise Locked(f"its {place}", why_sealed(found), altered=found == ALTERED)
    return found


def _sealed() -> Any:
    from tenure.stores import sealed

    return sealed


def new_alarm(settings: Settings, store: Store, notifier: Notifier, lags: Callable[[], list[Lag]]) -> Alarm:
    """The alarm that checks for problems beside a supervisor or an embedded worker."""
    from tenure.operations import alerts

    store = shown(_sealed().beneath(store))  # an alert leaves the store: it quotes nothing that is encrypted there
    return alerts.Alarm(store, notifier, settings, connect, open_notifier, lags)


@contextmanager
def extra(name: str) -> Generator[None]:
    """Imports in this block need an optional dependency (an extra) of the package."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidOption(f"{error.name} is not installed: {install(name)}") from error


def open_notifier(settings: Settings, store: Store) -> Notifier:
    """The notifier that the setting names; `auto` is the store's own."""
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


def embedded(
    program: Program,
    settings: Settings,
    codec: Codec | None,
    queues: object,
    concurrency: object,
    unknown: Collection[str],
    *,
    idle: bool,
) -> Embedded | IdleWorker:
    """A worker embedded in this process, not yet started. Raises InvalidOption."""
    from tenure.worker.embedded import Embedded, IdleWorker
    from tenure.worker.options import checked
    from tenure.worker.worker import queue_caps

    asked, slots = checked(queues, concurrency, unknown)
    caps = asked or queue_caps(program, settings)
    if warning := program.unnamed(caps):
        logger("tenure.worker").warning(warning)
    check_timers(program, settings, caps)
    if idle:
        return IdleWorker()
    slots = slots or settings.concurrency
    return Embedded(program, connecting(codec), open_notifier, settings, caps, slots, new_alarm=new_alarm)


def test_queue(
    app: AppPort,
    program: Program,
    new_client: Callable[[Store, Notifier], Client],
    resources: Mapping[type, object],
    elsewhere: Sequence[str],
    limits: bool,
) -> TestQueue:
    """The queue of `jobs.testing()`: in memory, under a virtual clock."""
    from tenure.notifiers.poll import PollNotifier
    from tenure.stores.memory import MemoryStore
    from tenure.testing import TestQueue, VirtualClock

    clock = VirtualClock()
    client = new_client(MemoryStore(clock.clock), PollNotifier())
    return TestQueue(app, program, client, clock, resources, elsewhere, _fates, limits=limits)


def _fates() -> Fates:
    with extra("postgres"):
        from tenure.stores.postgres import fates

    return fates.Fates()


def dashboard(
    client: Callable[[], Client],
    load: Callable[[], Registry],
    tasks: Registry,
    settings: Settings,
    auth: Callable[..., Any] | None,
) -> Any:
    """The dashboard as an ASGI app. On its first use it opens the client and loads the modules of tasks.

    It follows the app to another client: into `testing()`, and from one opening of the app to the next.
    """
    from tenure.operations.admin import Admin

    def admin() -> Admin:
        found = client()
        load()
        return Admin(shown(found.store), found.notifier, settings)

    with extra("web"):
        from tenure.web.dashboard import create

        return create(admin, settings, tasks=tasks, auth=auth, client=client)


def check_timers(program: Program, settings: Settings, queues: Iterable[str]) -> None:
    """Refuse an `ack_wait` so short that the queue would redeliver a hung job before its hang is noticed."""
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
                f"before it is rescued: set ack_wait to more than {spell(least)}, or use a shorter stale_after"
            )


def _nats() -> ModuleType:
    with extra("nats"):
        return import_module("tenure.notifiers.nats")


def _sqlite_path(rest: str, namespace: str) -> str:
    path = rest.removeprefix("///")
    if "?" in path:
        plain, _, options = path.partition("?")
        raise InvalidOption(f"url: the SQLite store takes no options; write sqlite:///{plain}, without ?{options}")
    if path == rest or not Path(path).name or path == ":memory:":
        raise InvalidOption(f"url: expected sqlite:///NAME.db or sqlite:////FOLDER/NAME.db, got 'sqlite:{rest}'")
    if namespace == "tenure":
        return path
    return str(Path(path).with_name(f"{Path(path).stem}.{namespace}{Path(path).suffix}"))


class OpenClient:
    """An app's client: opened on first use, reopened after `close`; a forked child opens its own."""

    def __init__(self) -> None:
        self.current: Client | None = None
        self._lock = RLock()
        forks.add(self)

    def open(
        self, given: Callable[[], tuple[Settings, Codec | None]], new: Callable[[Store, Notifier], Client]
    ) -> Client:
        with self._lock:  # the imports, too: a fork waits for them, or its child would wait for the importing thread
            if self.current is None:
                self.current = new(*connect_both(*given()))
            return self.current

    def close(self) -> None:
        with self._lock:
            client, self.current = self.current, None
        if client is not None:
            client.close()

    # ── forks ──

    def pause(self, until: float) -> bool:
        return self._lock.acquire(timeout=max(until - monotonic(), 0.0))

    def resume(self) -> None:
        self._lock.release()

    def forget(self, *, paused: bool) -> bool:
        self._lock = RLock()
        if self.current is not None:
            forks.keep_forever(self.current)  # closing it would disturb the parent's connections
            self.current = None
        forks.add(self)
        return True
