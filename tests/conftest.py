"""The stores under test: the only file of the tests that names them."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import secrets
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from threading import enumerate as living_threads
from time import monotonic
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql
from xdist.scheduler import LoadScopeScheduling

import servers
import watchdog
from conformance.factories import NewWorld, World
from servers import Keys, redis_is_here, shared_cluster, shared_postgres, shared_redis, shared_valkey
from tenure.core.clock import Clock
from tenure.ports import Store
from tenure.stores.memory import MemoryStore

watchdog.start_afresh()
settings.register_profile("tenure", parent=settings(), deadline=None)  # a stall of a busy machine is not a slow example
settings.load_profile("tenure")


def memory(_: Path) -> Callable[[Clock], Store]:
    stores: dict[Clock, Store] = {}
    return lambda clock: stores.setdefault(clock, MemoryStore(clock, seed=1))


def sqlite(folder: Path) -> Callable[[Clock], Store]:
    from tenure.stores.sqlite import SqliteStore

    path = folder / "tenure.db"
    path.write_bytes(_migrated())
    return lambda clock: SqliteStore(str(path), clock=clock)


@functools.cache
def _migrated() -> bytes:
    """An empty database, made once: that takes longer than most tests."""
    from tenure.stores.sqlite import SqliteStore

    with TemporaryDirectory() as folder:
        store = SqliteStore(f"{folder}/tenure.db")
        store.migrate()
        store.close()
        return Path(folder, "tenure.db").read_bytes()


_schemas = count(1)
_run = secrets.token_hex(4)  # a server of TENURE_TEST_… outlives a run, and another process may have this one's id


def postgres(_: Path) -> Callable[[Clock], Store]:
    from tenure.stores.postgres import PostgresStore

    url, schema = shared_postgres().url(), _left.pop() if _left else f"world_{_run}_{next(_schemas)}"
    _taken.append(schema)
    return lambda clock: PostgresStore(url, schema=schema, clock=clock)


_taken, _left = list[str](), list[str]()


def _leave_empty() -> None:
    """Later worlds reuse the schemas of closed ones: making a schema takes longer than most tests."""
    while _taken:
        schema = _taken.pop()
        _emptying().execute(_deletions(schema))
        _left.append(schema)


@functools.cache
def _deletions(schema: str) -> bytes:
    """One message, which is one transaction. The deletion of a job may store asks, so these go last."""
    named = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY tablename LIKE '%%asks'"
    tables = [table for (table,) in _emptying().execute(named, [schema]) if table != "migrations"]
    return b"; ".join(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, each)).as_bytes() for each in tables)


@functools.cache
def _emptying() -> psycopg.Connection:
    connection = psycopg.connect(shared_postgres().url(), autocommit=True)
    atexit.register(connection.close)
    return connection


def redis(_: Path, *, server: Callable[[], Keys] = shared_valkey) -> Callable[[Clock], Store]:
    from tenure.stores.redis import RedisStore

    url, namespace = server().url, f"world_{_run}_{next(_schemas)}"
    return lambda clock: RedisStore(url, namespace=namespace, clock=clock)


def redis_cluster(folder: Path) -> Callable[[Clock], Store]:
    """A namespace on any of its nodes; the URL is always that of the first one."""
    return redis(folder, server=shared_cluster)


def redis_7(folder: Path) -> Callable[[Clock], Store]:
    return redis(folder, server=shared_redis)


def sealed(folder: Path) -> Callable[[Clock], Store]:
    """The memory store behind a codec: it keeps every promise of a store."""
    from tenure.codecs import AesSiv
    from tenure.stores.sealed import sealed as behind

    codec, make = AesSiv([AesSiv.new_key()]), memory(folder)
    return lambda clock: behind(make(clock), codec)


def offloaded(folder: Path) -> Callable[[Clock], Store]:
    """The memory store with a bucket behind it that has every value; reads fetch them."""
    from conformance.fetching import fetching

    make = memory(folder)
    return lambda clock: fetching(make(clock), folder)


STORES = [memory, sqlite, postgres, redis, *([redis_7] if redis_is_here() else [])]
#: What the stores do in another place, or behind something: only `make test-all` asks all of it again.
VARIANTS = [pytest.param(each, marks=pytest.mark.thorough) for each in (redis_cluster, sealed, offloaded)]


@pytest.fixture(params=[*STORES, *VARIANTS], ids=lambda make: make.__name__)
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewWorld]:
    """Empty worlds. They are closed after the test, and must leave no thread behind."""
    before = set(living_threads())
    numbers = count(1)
    worlds: list[World] = []

    def make() -> World:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        worlds.append(World(request.param(folder)))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()
    until = monotonic() + 30.0
    for thread in set(living_threads()) - before:
        thread.join(max(until - monotonic(), 0.0))  # it was told to end just now
    left = set(living_threads()) - before
    assert not left, f"closing the store left its threads alive: {left}"
    _leave_empty()


@pytest.fixture
def world(new_world: NewWorld) -> World:
    return new_world()


@pytest.fixture
def store(world: World) -> Store:
    return world.store()


# ── What a test must leave as it was ──

_SHARED = {(owner, name): getattr(owner, name) for owner, name in ((Thread, "start"), (ThreadPoolExecutor, "submit"))}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test says what its servers said last: their folders go with them."""
    report = yield
    if report.failed:
        report.sections += [(f"{server!r} at the end", server.last_words(100)) for server in servers.started]
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """A library that patches these for good, as tracers do, fails the test that let it do so, not a later one."""
    yield
    patched = [(owner, name) for (owner, name), ours in _SHARED.items() if getattr(owner, name) is not ours]
    for owner, name in patched:
        setattr(owner, name, _SHARED[owner, name])
    left = ", ".join(f"{owner.__name__}.{name}" for owner, name in patched)
    assert not patched, f"the test left {left} patched for all that come after it: run what patches in a child process"


# ── What runs in `make test`, and what only in `make test-all` ──────────────────────────────────────────────────

#: Of these, and of the tests that drive a browser, `make test` runs those that are marked `everyday`; of all others,
#: those that are not marked `thorough`.
THOROUGH = ("tests/chaos/", "tests/crash/", "tests/django/", "tests/programs/", "tests/web/test_browser")
#: Each of their tests plays faults on a dozen processes, and measures delays: two at once would be each other's load.
PLAYS = ("tests/chaos/test_smoke.py", "tests/chaos/test_upgrade.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--everyday", action="store_true", help="leave out what only make test-all runs")
    parser.addoption("--rest", action="store_true", help="leave out what --everyday runs no shorter than without it")


def pytest_configure(config: pytest.Config) -> None:
    name = os.environ.get("PYTEST_XDIST_WORKER", "main")
    config.pluginmanager.register(watchdog.Watchdog(name, float(config.getini("timeout"))))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file without an everyday test need not be imported."""
    if not config.getoption("everyday") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    if str(collection_path.relative_to(config.rootpath)).startswith(THOROUGH):
        return True if "pytest.mark.everyday" not in text else None
    return True if "\npytestmark = pytest.mark.thorough" in text else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


class Together(LoadScopeScheduling):
    """Some tests run in one process, one after the other. The groups of xdist 3.8 are lost under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in PLAYS:
            return "chaos"
        # Files of their own would be the largest scopes, which begin first: several browsers at once, and the plays.
        return "browser" if file.startswith("tests/web/test_browser") else nodeid


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("everyday"):
        chosen = [item for item in items if _is_everyday(item)]
    elif config.getoption("rest"):
        chosen = [item for item in items if _is_slow(item) or not _is_everyday(item)]
    else:
        return
    config.hook.pytest_deselected(items=list(set(items).difference(chosen)))
    items[:] = chosen if config.getoption("rest") else _long_ones_early(chosen)


def _long_ones_early(items: list[pytest.Item]) -> list[pytest.Item]:
    """One that begins as the last would keep the run waiting. xdist deals out the first quarter at once: among it."""
    long, others = [each for each in items if _is_slow(each)], [each for each in items if not _is_slow(each)]
    places = [*enumerate(others), *((at * len(others) / (4 * len(long)), each) for at, each in enumerate(long))]
    return [each for _, each in sorted(places, key=lambda place: place[0])]


def pytest_collection_finish() -> None:
    """Or each full collection of garbage would go through the items of thousands of tests, and some tests make many."""
    gc.collect()
    gc.freeze()


def _is_everyday(item: pytest.Item) -> bool:
    if item.get_closest_marker("thorough") is not None:
        return False
    return not _is_slow(item) or item.get_closest_marker("everyday") is not None


def _is_slow(item: pytest.Item) -> bool:
    return item.nodeid.startswith(THOROUGH) or "browser" in getattr(item, "fixturenames", ())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not redis_is_here():
        terminalreporter.write_line(
            "Redis itself was not tested, only Valkey: no redis-server on PATH, and TENURE_TEST_REDIS_URL is not set",
            yellow=True,
        )
