"""The stores and doorbells that the crash tests run on: the only file of these tests that names them.

PostgreSQL is started with its own durability: its commits wait for the disk, as those of a real one do. Only
processes die here, never the machine, so `fsync=off` would show the same, and save little.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from servers import (
    Keys,
    Postgres,
    Valkey,
    redis_is_here,
    shared_cluster,
    shared_nats,
    shared_postgres,
    shared_redis,
    shared_valkey,
)
from tenure.app.backends import open_store
from tenure.config import load


@dataclass(frozen=True)
class Place:
    """The store and the notifier of one test: the settings of the same names."""

    url: str
    namespace: str = "tenure"
    notifier: str = "auto"


@dataclass(frozen=True)
class Backend:
    """A store with a doorbell. `has`, of which a test may need some:

    file          the store is a file of this machine, which processes open themselves
    server        the store is a server: it can be away, and many machines can use it
    bell          rings are heard; without it, every process polls
    transactions  jobs join those of the user (`tx=`)
    """

    name: str
    has: frozenset[str]
    place: Callable[[Path], AbstractContextManager[Place]]


@contextmanager
def sqlite(folder: Path) -> Iterator[Place]:
    yield Place(f"sqlite:///{folder / 'tenure.db'}")


@contextmanager
def postgres(folder: Path, *, notifier: Callable[[], str] = lambda: "auto") -> Iterator[Place]:
    server = shared_postgres()
    place = Place(server.url(), f"t_{secrets.token_hex(6)}", notifier())
    migrate(place)
    yield place
    server.execute(f"DROP SCHEMA IF EXISTS {place.namespace} CASCADE")


@contextmanager
def redis(folder: Path, *, server: Callable[[], Keys] = shared_valkey) -> Iterator[Place]:
    with server().namespace() as namespace:
        yield Place(server().url, namespace)


@contextmanager
def redis_cluster(folder: Path) -> Iterator[Place]:
    """The URL is that of a node that has to redirect every client to the one that has the namespace."""
    cluster = shared_cluster()
    with cluster.namespace() as namespace:
        owner = cluster.owner(f"{{{namespace}}}")
        yield Place(next(node.url for node in cluster.nodes if node is not owner), namespace)


def by_way_of(url: str, port: int) -> str:
    """This URL, through a proxy on this machine."""
    server = urlsplit(url)
    user, at, _ = server.netloc.rpartition("@")
    return server._replace(netloc=f"{user}{at}127.0.0.1:{port}").geturl()


def migrate(place: Place) -> None:
    open_store(load({"url": place.url, "namespace": place.namespace})).migrate()


_NAMED = frozenset(filter(None, os.environ.get("TENURE_TEST_BACKENDS", "").split(",")))


# ── Servers that may be stopped and killed, by the first word of a backend's name ───────────────────────────────


@dataclass(frozen=True)
class Server:
    """A server that may be stopped and killed. It keeps all that it has acknowledged."""

    process: Postgres | Valkey
    url: str
    stop: Callable[[], None]  #: at once, as an impatient operator does


def postgres_server() -> Server:
    server = Postgres()
    return Server(server, server.url(), lambda: server.stop("immediate"))


def redis_server() -> Server:
    server = Valkey({"appendfsync": "always"})
    return Server(server, server.url, server.stop)


SERVERS = {"postgres": postgres_server, "redis": redis_server}


def there(place: Place, server: Server) -> Place:
    """This place on that server."""
    here = replace(place, url=server.url)
    migrate(here)
    return here


# ── The backends ────────────────────────────────────────────────────────────────────────────────────────────────

BACKENDS = (
    Backend("sqlite", frozenset({"file", "bell", "transactions"}), sqlite),
    Backend("postgres", frozenset({"server", "bell", "transactions"}), postgres),
    Backend("postgres-poll", frozenset({"server", "transactions"}), partial(postgres, notifier=lambda: "poll")),
    Backend(
        "postgres-nats",
        frozenset({"server", "bell", "transactions"}),
        partial(postgres, notifier=lambda: shared_nats().url),
    ),
    Backend("redis", frozenset({"server", "bell"}), redis),
    Backend("redis-cluster", frozenset({"bell"}), redis_cluster),  # only the node of the URL is behind a proxy
    *(
        [Backend("redis-7", frozenset({"server", "bell"}), partial(redis, server=shared_redis))]
        if redis_is_here() or "redis-7" in _NAMED
        else []
    ),
)


def backends(*needed: str, everywhere: bool) -> list[Backend]:
    """Those on which a test runs: of those that it can run on, the ones in TENURE_TEST_BACKENDS, or else the first."""
    able = [each for each in BACKENDS if each.has.issuperset(needed)]
    if everywhere:
        return able
    return [each for each in able if each.name in _NAMED] if _NAMED else able[:1]
