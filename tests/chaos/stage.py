"""What a run is played on: servers of its own, two hosts behind lines that can fail, clients, and one history.

The only file of the runs that names stores. Two supervisors stand for two hosts: each has a host id, a line to the
server and a wall clock of its own. Clients have a line of their own too; the stage itself asks the store directly.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from crash.backends import BACKENDS, SERVERS, Place, Server, by_way_of
from crash.harness import HERE as CRASH
from crash.harness import SOURCE, Site, Supervised, alive, children, small_disk
from previous import Release
from proxy import Answered, Proxy
from servers import Nats, Postgres, Valkey, ValkeyCluster
from tenure.app.backends import connect
from tenure.codecs import AesSiv
from tenure.ports import JobView, Store, Text

from . import faults, profiles, workload
from .client import LIMITED
from .history import Pen
from .profiles import Profile
from .seen import Bounds

TESTS = Path(__file__).parent.parent
Values = Literal["", "sealed", "offloaded"]  #: as they are; encrypted; in a bucket, nearly all of them
IN_A_ROW = 16  #: bytes: what is larger is kept in the bucket, in a run with one
TODAY = Release("2", sys.executable, (CRASH / "other_clock", SOURCE, TESTS))
HOSTS, WORKERS, SLOTS, CLIENTS = 2, 2, 5, 2
LANE_SLOTS = 50
POLL_SECONDS = 1.0  #: how often a worker asks where no ring is heard
DISK_MIB = 128
#: each with the doorbell that is named, or its own
STORES = (
    *("sqlite", "sqlite-nats"),
    *("postgres", "postgres-poll", "postgres-nats"),
    *("redis", "redis-nats", "redis-cluster"),
)


#: the store, and the tables beside it; of every release
_MAKE = """
from chaos import workload
try:
    from tenure.app.backends import open_store
except ModuleNotFoundError:  # where it stood in the release before
    from tenure.backends import open_store
store = open_store(workload.jobs.settings)
store.migrate()
if store.capabilities.transactions:
    workload.make_tables()
"""
_TENURE = "from tenure.cli.main import run; run()"


@dataclass(frozen=True, slots=True)
class Reply:
    """A request whose answer can be lost: how to recognize it, and its answer."""

    pattern: bytes
    answered: Answered | None = None


def _ran(reply: bytes) -> bool:
    return not reply.startswith(b"-") and reply.endswith(b"\r\n")


_STATEMENTS = [Reply(b"UPDATE"), Reply(b"INSERT"), Reply(b"COMMIT")]
REPLIES = {"postgres": _STATEMENTS, "redis": [Reply(b"EVALSHA", _ran)]}
PUBLISHED = Reply(b"PUB", bool)


def read(store: Store, job: JobView, place: Literal["payload", "result", "checkpoint"]) -> Any:
    """A value of a job, from wherever it is kept; None: it has none."""
    text: str | None = getattr(job, place)
    return None if text is None else json.loads(store.fetch(Text(place, job.id, "", text)))


@dataclass(frozen=True, slots=True)
class Client:
    """A process that enqueues and asks, and the code it runs."""

    process: subprocess.Popen[bytes]
    release: Release


class Host:
    """A supervisor, its workers and its wall clock."""

    def __init__(
        self, stage: Stage, name: str, line: Proxy | None, queues: Sequence[str], *, workers: int, slots: int
    ) -> None:
        self.line = line
        self._stage, self._name, self._queues = stage, name, queues
        self._workers, self._slots = workers, slots
        self._clock = stage.site.folder / f"clock-{name}"
        self.release = stage.first
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
            **self._stage.env(self.line, self.release),
            **({} if "file" in self._stage.has else {"TENURE_HOST_ID": self._name}),  # a file belongs to one machine
            "TENURE_TEST_CLOCK": str(self._clock),
            "TENURE_TEST_ACTOR": f"host-{self._name}-{self.release.name}",
            "TENURE_QUEUES": ",".join(self._queues),
        }
        slots = {"workers": self._workers, "concurrency": self._slots}
        order: dict[str, Any] = {"app": "chaos.workload", **slots, "grace": "1s"}
        lease, python = f"{self._stage.lease:g}s", self.release.python
        return self._stage.site.supervisor(lease=lease, python=python, env=env, spares=1, **order)


def _descendants(pid: int) -> list[int]:
    found = [child for child in children(pid) if alive(child)]
    return found + [each for child in found for each in _descendants(child)]


class Stage:
    """Everything that runs in one run. Leaving it ends all of it. `first`: the release that makes the store."""

    def __init__(
        self,
        backend: str,
        folder: Path,
        *,
        lease: float,
        seed: int,
        rate: float,
        load: str = "",
        scale: float = 1.0,
        first: Release = TODAY,
        values: Values = "",
    ) -> None:
        if backend not in STORES:
            raise SystemExit(f"no store here is called {backend!r}; there are: {', '.join(STORES)}")
        self.store, _, self._notifier = backend.partition("-")
        cluster = self._notifier == "cluster"
        self.backend = next(each for each in BACKENDS if each.name == (backend if cluster else self.store))
        self.lease, self.seed, self.rate, self.scale, self.first = lease, seed, rate, scale, first
        self.profile = profiles.named(load) if load else None
        self.history = folder / "history.jsonl"
        self.pen = Pen(self.history, "nemesis")
        self.server: Server | None = None
        self.cluster: ValkeyCluster | None = None
        self.nats: Nats | None = None
        self.queue_line: Proxy | None = None
        self.disk: Path | None = None
        self.lines: list[Proxy] = []
        self.hosts: list[Host] = []
        self.lane: Host | None = None
        self.clients: list[Client] = []
        self.loads: list[subprocess.Popen[bytes]] = []
        self.migrated = False  #: to today's code
        self._folder = folder
        self.values = values
        self._codec = AesSiv([key := AesSiv.new_key()]) if values == "sealed" else None
        self._bucket: dict[str, str] = {}
        self._values = {workload.KEY: key} if self._codec else {}
        if values == "offloaded":
            self._bucket = {"offload": f"file://{folder}/values"}
            self._values = {"TENURE_OFFLOAD": self._bucket["offload"], workload.IN_A_ROW: str(IN_A_ROW)}
            workload.keep_elsewhere(IN_A_ROW)
        self._started = 0
        self._later = ExitStack()

    @property
    def has(self) -> frozenset[str]:
        clock = None if "file" in self.backend.has else "its own"  # a file's is that of all its processes
        memory = self.server if self.store == "redis" else None
        found = {"nats": self.nats, "cluster": self.cluster, "small-disk": self.disk, "clock": clock, "memory": memory}
        also = {name for name, there in found.items() if there is not None}
        return self.backend.has | also | ({"scripts"} if self.store == "redis" else set[str]())

    @property
    def bounds(self) -> Bounds | None:
        """How late each duty may be: only a run with load can tell."""
        if self.profile is None:
            return None
        return Bounds(
            lease=self.lease,
            scan=self.lease / 6 * 1.2,
            start=1.0 if "bell" in self.has else POLL_SECONDS + 1.0,
            delayed=self.profile.delayed,
            away=faults.away(self.has),
            deaf=faults.away({"bell"}),
        )

    @property
    def replies(self) -> list[Reply]:
        return REPLIES[self.store]

    def __enter__(self) -> Self:
        with self._later:
            self.site = self._later.enter_context(Site(self._folder, self._place(), ready=False))
            self._run(self.first, _MAKE)
            workload.jobs.codec = self._codec
            workload.jobs.configure(asdict(self.site.place) | self._bucket)
            if self.first is TODAY:
                self._open()
            if self.profile is not None:
                profiles.refuse_unfit(self.profile, self.has)
            self._later.callback(workload.jobs.__exit__, None, None, None)
            self._later.callback(self._end_clients)
            self._start()
            self._later = self._later.pop_all()
        return self

    def _start(self) -> None:
        profile = self.profile
        lines = self._lines(HOSTS)
        for line in lines if profile and profile.rate else ():
            if line is not None:
                line.usual(latency=profile.latency, rate=profile.rate)
        queues = profile.queues(self.scale) if profile else ("default",)
        if self.first is not TODAY:
            queues = (*queues, profiles.LOAD, profiles.LANE)
        slots = profile.slots if profile else SLOTS
        self.hosts = [
            Host(self, name, line, queues, workers=WORKERS, slots=slots) for name, line in zip("ab", lines, strict=True)
        ]
        self._clients_line = self._lines(1)[0]
        if profile is not None:
            self._start_load(profile)
        for _ in range(CLIENTS):
            self.start_client(self.first)

    def _start_load(self, profile: Profile) -> None:
        """Start the load, and the lane that shows how late it makes other work, on lines that no fault hits."""
        lane = self._lines(1, sound=True)[0]
        self.lane = Host(self, "lane", lane, (profiles.LANE,), workers=1, slots=LANE_SLOTS)
        self._spawn("gauge", None, "chaos.gauge", self.site.place.url, str(self.disk or self._folder))
        self._spawn("lane", lane, "chaos.load", "lane", *self._about(self.scale))
        self.start_load(profile.name, self.scale)

    def start_load(self, name: str, scale: float) -> None:
        line = self._lines(1, sound=True)[0]
        self._spawn("load", line, "chaos.load", name, *self._about(scale))

    def end_loads(self) -> None:
        """What they wait for themselves, such as the answers to their signals, comes first."""
        for each in self.loads:
            each.terminate()
            each.wait()
        self.loads.clear()

    def _about(self, scale: float) -> tuple[str, str, str]:
        return str(scale), str(self.seed), ",".join(sorted(self.has))

    def _spawn(self, name: str, line: Proxy | None, *module: str) -> None:
        env = {**self._clients_env(line), "TENURE_TEST_ACTOR": name}
        with (self._folder / f"{name}.log").open("wb") as log:
            self.loads.append(
                subprocess.Popen(
                    [sys.executable, "-m", *module],
                    env=self.site.env(f"{self.lease:g}s", {}, env),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def __exit__(self, *_: object) -> None:
        self._later.close()

    def _place(self) -> Place:
        place = replace(self._store_place(), notifier=self._notifier if self._notifier == "poll" else "auto")
        if self._notifier == "nats":
            self.nats = self._later.enter_context(Nats())
            self.queue_line = self._later.enter_context(Proxy("127.0.0.1", self.nats.port))
            place = replace(place, notifier=self.nats.url)
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
        mib = self.profile.disk_mib if self.profile else DISK_MIB
        self.disk = self._later.enter_context(small_disk(self._folder, mib))
        return self._later.enter_context(self.backend.place(self.disk or self._folder))

    def _lines(self, count: int, *, sound: bool = False) -> list[Proxy] | list[None]:
        """This many new ones; no fault hits a `sound` one."""
        if self.server is None:
            return [None] * count
        made = [self._later.enter_context(Proxy("127.0.0.1", self.server.process.port)) for _ in range(count)]
        for line in made if self.profile else ():
            line.usual(latency=self.profile.latency)
        self.lines += [] if sound else made
        return made

    def migrate(self) -> None:
        """To today's code, as an operator does before its first process starts."""
        self._run(TODAY, _TENURE, "migrate")
        self._open()

    def _open(self) -> None:
        self.site.store.close()
        self.site.store = connect(workload.jobs.settings, self._codec)
        self.migrated = True

    def _run(self, release: Release, *program: str) -> None:
        """Run a program with these arguments by the code of this release."""
        env = self.site.env(f"{self.lease:g}s", {}, {**self._clients_env(None, release), "TENURE_TEST_ACTOR": "stage"})
        command = [release.python, "-c", *program]
        run = subprocess.run(command, env=env, cwd=self._folder, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"release {release.name} could not {program}: {run.stdout}{run.stderr}"

    def env(self, line: Proxy | None, release: Release = TODAY) -> dict[str, str]:
        """What a process of this run finds in its environment."""
        place = self.site.place
        found = {
            "PYTHONPATH": os.pathsep.join(map(str, release.path)),
            "TENURE_RELEASE": release.name,
            "TENURE_TEST_HISTORY": str(self.history),
            "TENURE_LOG_LEVEL": "warning",
            **self._values,
        }
        if line is not None:
            found["TENURE_URL"] = by_way_of(place.url, line.port)
        if self.queue_line is not None:
            found["TENURE_NOTIFIER"] = by_way_of(place.notifier, self.queue_line.port)
        return found

    def supervised(self) -> list[Host]:
        """The hosts that faults hit, and that of the lane."""
        return [*self.hosts, *([self.lane] if self.lane else [])]

    # ── clients ──

    def _clients_env(self, line: Proxy | None, release: Release = TODAY) -> dict[str, str]:
        clock = self._folder / "clock-clients"
        clock.write_text("0")
        return {**self.env(line, release), "TENURE_TEST_CLOCK": str(clock)}

    def start_client(self, release: Release) -> None:
        self._started += 1
        more = {**self._clients_env(self._clients_line, release), "TENURE_TEST_ACTOR": f"client-{release.name}"}
        more |= {LIMITED: "1"} if self.first is TODAY else {}
        seed = str(self.seed * 1000 + self._started)
        log = (self._folder / f"client-{self._started}.log").open("wb")
        with log:
            client = subprocess.Popen(
                [release.python, "-m", "chaos.client", seed, str(self.rate / CLIENTS), str(self.lease)],
                env=self.site.env(f"{self.lease:g}s", {}, more),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.clients.append(Client(client, release))

    def replace_client(self, release: Release) -> None:
        """One that has another release."""
        before = next(each for each in self.clients if each.release is not release)
        self.clients.remove(before)
        before.process.terminate()
        before.process.wait()
        self.start_client(release)

    def stop_clients(self, seconds: float) -> list[int]:
        """SIGTERM to all of them, and to the load; their exit codes. A load takes back what has not run."""
        everybody = self._asking()
        for each in everybody:
            each.send_signal(signal.SIGTERM)
        return [each.wait(seconds) for each in everybody]

    def _end_clients(self) -> None:
        for each in self._asking():
            each.kill()
            each.wait()

    def _asking(self) -> list[subprocess.Popen[bytes]]:
        return [*(each.process for each in self.clients), *self.loads]

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
