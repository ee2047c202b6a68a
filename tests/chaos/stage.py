"""What a run is played on: servers of its own, two hosts behind lines that can fail, clients, and one history.

The only file of the runs that names stores. Two supervisors stand for two hosts: each has a host id, a line to the
server and a wall clock of its own. Clients have a line of their own too; the stage itself asks the store directly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from crash.backends import BACKENDS, SERVERS, Place, Server, by_way_of, migrate
from crash.harness import HERE as CRASH
from crash.harness import SOURCE, Site, Supervised, alive, children, small_disk
from proxy import Answered, Proxy
from servers import Nats, Postgres, Valkey, ValkeyCluster

from . import workload
from .history import Pen

TESTS = Path(__file__).parent.parent
HOSTS, WORKERS, SLOTS, CLIENTS = 2, 2, 5, 2
DISK_MIB = 128
#: each with the doorbell that is named, or its own
STORES = (
    *("sqlite", "sqlite-nats"),
    *("postgres", "postgres-poll", "postgres-nats"),
    *("redis", "redis-nats", "redis-cluster"),
)


@dataclass(frozen=True, slots=True)
class Reply:
    """A request whose answer can be lost: how it is known, and how its answer is."""

    pattern: bytes
    answered: Answered | None = None


def _ran(reply: bytes) -> bool:
    return not reply.startswith(b"-") and reply.endswith(b"\r\n")


_STATEMENTS = [Reply(b"UPDATE"), Reply(b"INSERT"), Reply(b"COMMIT")]
REPLIES = {"postgres": _STATEMENTS, "redis": [Reply(b"EVALSHA", _ran)]}
PUBLISHED = Reply(b"PUB", bool)


class Host:
    """A supervisor, its workers and its wall clock."""

    def __init__(self, stage: Stage, name: str, line: Proxy | None) -> None:
        self.line = line
        self._stage, self._name = stage, name
        self._clock = stage.site.folder / f"clock-{name}"
        self.set_clock(0.0)
        self.supervisor = self._start()

    def set_clock(self, seconds: float) -> None:
        """Its wall clock is off by so many seconds from now on."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._clock)

    def restart(self) -> None:
        self.supervisor = self._start()

    def pids(self) -> list[int]:
        """All its processes, its supervisor first."""
        return [self.supervisor.pid, *_descendants(self.supervisor.pid)]

    def _start(self) -> Supervised:
        env = {
            **self._stage.env(self.line),
            **({} if "file" in self._stage.has else {"TENURE_HOST_ID": self._name}),  # a file is of one machine
            "TENURE_TEST_CLOCK": str(self._clock),
            "TENURE_TEST_ACTOR": f"host-{self._name}",
        }
        order: dict[str, Any] = {"app": "chaos.workload", "workers": WORKERS, "concurrency": SLOTS, "grace": "1s"}
        return self._stage.site.supervisor(lease=f"{self._stage.lease:g}s", env=env, **order)


def _descendants(pid: int) -> list[int]:
    found = [child for child in children(pid) if alive(child)]
    return found + [each for child in found for each in _descendants(child)]


class Stage:
    """Everything that runs in one run. Leaving it ends all of it."""

    def __init__(self, backend: str, folder: Path, *, lease: float, seed: int, rate: float) -> None:
        if backend not in STORES:
            raise SystemExit(f"no store here is called {backend!r}; there are: {', '.join(STORES)}")
        self.store, _, self._notifier = backend.partition("-")
        cluster = self._notifier == "cluster"
        self.backend = next(each for each in BACKENDS if each.name == (backend if cluster else self.store))
        self.lease, self.seed, self.rate = lease, seed, rate
        self.history = folder / "history.jsonl"
        self.pen = Pen(self.history, "nemesis")
        self.server: Server | None = None
        self.cluster: ValkeyCluster | None = None
        self.nats: Nats | None = None
        self.queue_line: Proxy | None = None
        self.disk: Path | None = None
        self.lines: list[Proxy] = []
        self.hosts: list[Host] = []
        self.clients: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._started = 0
        self._later = ExitStack()

    @property
    def has(self) -> frozenset[str]:
        clock = None if "file" in self.backend.has else "its own"  # a file's is that of all its processes
        found = {"nats": self.nats, "cluster": self.cluster, "small-disk": self.disk, "clock": clock}
        also = {name for name, there in found.items() if there is not None}
        return self.backend.has | also | ({"scripts"} if self.store == "redis" else set[str]())

    @property
    def replies(self) -> list[Reply]:
        return REPLIES[self.store]

    def __enter__(self) -> Self:
        with self._later:
            self.site = self._later.enter_context(Site(self._folder, self._place()))
            workload.jobs.configure(asdict(self.site.place))
            self._later.callback(workload.jobs.__exit__, None, None, None)
            if self.site.store.capabilities.transactions:
                workload.make_tables()
            self._later.callback(self._end_clients)
            self.hosts = [Host(self, name, line) for name, line in zip("ab", self._lines(HOSTS), strict=True)]
            self._clients_line = self._lines(1)[0]
            for _ in range(CLIENTS):
                self.start_client()
            self._later = self._later.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._later.close()

    def _place(self) -> Place:
        place = replace(self._store_place(), notifier=self._notifier if self._notifier == "poll" else "auto")
        if self._notifier == "nats":
            self.nats = self._later.enter_context(Nats())
            self.queue_line = self._later.enter_context(Proxy("127.0.0.1", self.nats.port))
            place = replace(place, notifier=self.nats.url)
        migrate(place)
        return place

    def _store_place(self) -> Place:
        if self._notifier == "cluster":
            self.cluster = ValkeyCluster()
            self._later.callback(self.cluster.close)
            return Place(self.cluster.urls[0], "chaos")
        if self.store in SERVERS:
            self.server = SERVERS[self.store]()
            self._later.callback(self.server.process.close)
            return Place(self.server.url, "chaos")
        self.disk = self._later.enter_context(small_disk(self._folder, DISK_MIB))
        return self._later.enter_context(self.backend.place(self.disk or self._folder))

    def _lines(self, count: int) -> list[Proxy] | list[None]:
        if self.server is None:
            return [None] * count
        made = [self._later.enter_context(Proxy("127.0.0.1", self.server.process.port)) for _ in range(count)]
        self.lines += made
        return made

    def env(self, line: Proxy | None) -> dict[str, str]:
        """What a process of this run finds in its environment."""
        place = self.site.place
        found = {
            "PYTHONPATH": os.pathsep.join(map(str, (CRASH / "other_clock", SOURCE, TESTS))),
            "TENURE_TEST_HISTORY": str(self.history),
            "TENURE_LOG_LEVEL": "warning",
        }
        if line is not None:
            found["TENURE_URL"] = by_way_of(place.url, line.port)
        if self.queue_line is not None:
            found["TENURE_NOTIFIER"] = by_way_of(place.notifier, self.queue_line.port)
        return found

    # ── clients ──

    def start_client(self) -> None:
        self._started += 1
        clock = self._folder / "clock-clients"
        clock.write_text("0")
        more = {**self.env(self._clients_line), "TENURE_TEST_ACTOR": "client", "TENURE_TEST_CLOCK": str(clock)}
        seed = str(self.seed * 1000 + self._started)
        log = (self._folder / f"client-{self._started}.log").open("wb")
        with log:
            client = subprocess.Popen(
                [sys.executable, "-m", "chaos.client", seed, str(self.rate / CLIENTS), str(self.lease)],
                env=self.site.env(f"{self.lease:g}s", {}, more),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.clients.append(client)

    def stop_clients(self, seconds: float) -> list[int]:
        """SIGTERM to all of them; their exit codes."""
        for client in self.clients:
            client.send_signal(signal.SIGTERM)
        return [client.wait(seconds) for client in self.clients]

    def _end_clients(self) -> None:
        for client in self.clients:
            client.kill()
            client.wait()

    # ── servers ──

    def heal(self) -> None:
        """No line fails any more, and every server is there."""
        for line in (*self.lines, *([self.queue_line] if self.queue_line else [])):
            line.heal()
        for server in self.servers():
            if not server.running:
                server.start()
        if self.cluster is not None:
            self.cluster.wait()

    def servers(self) -> list[Postgres | Valkey | Nats]:
        found = [self.server.process] if self.server else []
        return [*found, *([self.nats] if self.nats else []), *(self.cluster.nodes if self.cluster else [])]
