"""One Redis or Valkey, as a store needs it: its address, connections, scripts, mapped errors.

All keys of a namespace share one hash tag, so one node has them all. Its address is found on use: from the URL, from
the Sentinels, or from a cluster's node that answers MOVED. ASK is not followed: while a slot migrates, the keys of a
namespace are split between two nodes, and a script would treat those on the other node as missing.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Protocol, TypeVar, cast

from redis import exceptions
from redis.connection import Connection as PlainConnection
from redis.connection import SSLConnection, UnixDomainSocketConnection

from tenure.core.clock import Clock
from tenure.errors import BadData, InvalidOption, StoreAway, StoreError
from tenure.stores.redis.fitness import refuse_schema, refuse_unfit, version_of
from tenure.stores.redis.place import Address, read
from tenure.stores.redis.scripts import Scripts, commands
from tenure.stores.redis.sentinels import Sentinels

T = TypeVar("T")

MOST_CONNECTIONS = 20
BUSY_SECONDS = 5.0
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 8.0  #: a renewal that times out after this can still be repeated in time
SENTINEL_SECONDS = 1.0  #: to be connected to one, and for its answer: the others know the primary too
MOST_MOVES = 5
AHEAD = 4  #: commands of a pipeline that may be sent before the first answer is read
_KEEPALIVE = {"TCP_KEEPIDLE": 3, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}
# redis-py removes the first word of an error for which it has a class
_AWAY = (exceptions.ClusterDownError, exceptions.TryAgainError)
_AWAY_WORDS = ("BUSY", "MISCONF", "NOREPLICAS", "max number of")
_REFUSED = (
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.NoPermissionError,
)
_REFUSED_WORDS = (
    "invalid username-password",
    "without any password configured",
    "ACL failure in script",
    "The user executing the script can't",
)


class Connection(Protocol):
    """The used part of `redis.connection.Connection`, also for the doorbell; redis-py leaves most of its types open."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float = 0) -> Any: ...
    def pack_command(self, *args: Any) -> Any: ...
    def send_packed_command(self, command: Any, check_health: bool = True) -> Any: ...
    def read_response(self, disable_decoding: bool = False) -> Any: ...
    def _get_socket(self) -> socket.socket | None: ...


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────────────────────


def mapped(error: Exception, server: Server) -> StoreError:
    """The one place that maps the driver's errors to ours. None of the texts contains a password."""
    message = " ".join(str(error).split())[:300] or type(error).__name__
    if isinstance(error, _REFUSED) or any(word in message for word in _REFUSED_WORDS):
        return StoreError(
            f"{server.url} can't be used: {message}; correct TENURE_URL (or TENURE_PASSWORD), or give the user its "
            f"rights: ~{server.prefix}* +@all -@dangerous +info +role (before Redis 7 also +client +cluster)"
        )
    if _read_only(error):
        return StoreAway(f"{server.url} is a read-only replica: nothing can be stored there until it is a primary")
    if out_of_memory(error):
        return StoreAway(
            f"{server.url} is out of memory ({message}): raise its maxmemory, or keep ended jobs for a shorter time "
            "(TENURE_KEEP)"
        )
    if isinstance(error, exceptions.AskError) and not isinstance(error, exceptions.MovedError):
        return StoreAway(f"{server.url} is moving the slot of {server.prefix} to another node: wait until it is done")
    if (
        isinstance(error.__cause__ or error.__context__, ssl.SSLCertVerificationError)
        or "CERTIFICATE_VERIFY" in message
    ):
        return StoreError(f"{server.url} has a certificate that can't be trusted ({message}): give ssl_ca_certs=FILE")
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return StoreAway(f"{server.url} is out of reach: {message}")
    if isinstance(error, _AWAY) or any(word in message for word in _AWAY_WORDS):
        return StoreAway(f"{server.url} can't do this now: {message}")
    return StoreError(f"{server.url}: {message}")


@contextmanager
def mapping_errors(server: Server) -> Generator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise BadData(f"{server.url} can't store a value: {error}") from error
    except (exceptions.RedisError, OSError) as error:
        raise mapped(error, server) from error


def out_of_memory(error: BaseException | None) -> bool:
    return isinstance(error, exceptions.OutOfMemoryError) or "OOM command not allowed" in str(error)


def _read_only(error: Exception) -> bool:
    """Before Redis 7 the error of a script starts with a text of its own, before that of its cause."""
    return isinstance(error, exceptions.ReadOnlyError) or "-READONLY" in str(error)


# ── The server ──────────────────────────────────────────────────────────────────────────────────────────────────


class Server:
    """Connections to one namespace of one server. Safe from every thread; a forked child must make its own."""

    def __init__(
        self, url: str, namespace: str, password: str | None, clock: Clock | None = None, *, rings: bool = False
    ) -> None:
        self._place, self.url = read(url, password)
        self.namespace = namespace
        self.prefix = f"{{{_checked(namespace)}}}:"
        self._clock = clock
        self._scripts = Scripts(given_time=clock is not None, rings=rings)
        self._idle: list[Connection] = []
        self._lock = threading.RLock()  # the collector may end a call of a closed loop, which returns its connection
        self.room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._at: Address | None = None  #: where the namespace was last seen
        self._nodes: tuple[Address, ...] = ()  #: the nodes of a cluster
        self._sentinels = Sentinels(self._place.hosts, self._place.service, self._ask_sentinel)
        self.epoch = 0  #: how often the idle connections were dropped
        self._open = False
        self.pid = os.getpid()

    # ── life ──

    def open(self, schema: int) -> None:
        self._open = True
        try:
            self._check()
            self._check_schema(schema)
            self._check_rights()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._open = False
        if os.getpid() == self.pid:
            self._drop_idle()

    def _drop_idle(self, at: Address | None = None) -> None:
        """Their server may be gone, or not the primary, which is at `at`. What is in use is not used again, either."""
        with self._lock:
            idle, self._idle, self._at = self._idle, [], at
            self.epoch += 1
        for connection in idle:
            connection.disconnect()

    # ── connections ──

    def connect(self, name: str) -> Connection:
        """A new connection that only the caller uses, to the node that has the namespace."""
        problem: Exception = exceptions.ConnectionError("no host is known")
        candidates, moved, tried = self._candidates(), list[Address](), set[Address]()
        while address := moved.pop() if moved else next(candidates, None):
            if address in tried:
                continue
            tried.add(address)
            connection = self._new(address, self._place.login, name)
            try:
                connection.connect()
                self._refuse_wrong_node(connection)
            except _REFUSED:
                connection.disconnect()
                raise
            except exceptions.MovedError as error:  # from a cluster's node that knows which one has our slot
                connection.disconnect()
                moved.append(self._named(error, address))
            except (exceptions.RedisError, OSError) as error:
                connection.disconnect()
                problem = error
            else:
                self._at = address
                return connection
        self._at = None
        raise problem

    def _refuse_wrong_node(self, connection: Connection) -> None:
        """Raise if this node can't be the right one: MOVED, or, with several hosts or Sentinels, a replica."""
        _ask(connection, "EXISTS", self.prefix)
        if not self._place.service and len(self._place.hosts) < 2:
            return
        try:
            role = _ask(connection, "ROLE")[0]
        except exceptions.ResponseError:  # the user may not ask, or the command has another name
            if not self._place.service:
                raise
            return  # the Sentinels are believed
        if role == "slave":
            raise exceptions.ReadOnlyError("it is a replica")

    def _named(self, error: exceptions.MovedError, asked: Address) -> Address:
        host = cast(str, error.host)  # pyright: ignore[reportUnknownMemberType]
        return host or asked[0], error.port

    def describe(self, error: Exception) -> str:
        """The error as a sentence without any password."""
        return str(mapped(error, self))

    def _candidates(self) -> Iterator[Address]:
        if self._place.service:
            yield from self._sentinels.primaries()
            return
        if self._at is not None:
            yield self._at
        yield from self._place.hosts
        yield from self._nodes

    def _ask_sentinel(self, address: Address) -> Any:
        connection = self._new(address, self._place.sentinel_login, "tenure", SENTINEL_SECONDS)
        try:
            connection.connect()
            return _ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._place.service)
        finally:
            connection.disconnect()

    def _new(self, address: Address, login: Mapping[str, Any], name: str, most: float = inf) -> Connection:
        """`most`: seconds to be connected, and for each answer, if less than the usual ones."""
        shared: dict[str, Any] = {
            **login,
            "client_name": name,
            "protocol": 2,
            "decode_responses": True,
            "socket_timeout": min(ANSWER_SECONDS, most),
            "socket_connect_timeout": min(CONNECT_SECONDS, most),
        }
        host, port = address
        if not port:
            return cast(Callable[..., Connection], UnixDomainSocketConnection)(path=host, **shared)
        kind = cast(Callable[..., Connection], SSLConnection if self._place.secure else PlainConnection)
        return kind(
            host=host,
            port=port,
            **shared,
            **(self._place.tls if self._place.secure else {}),
            socket_keepalive=True,
            socket_keepalive_options=_keepalive(),
        )

    @contextmanager
    def _lent(self) -> Generator[Connection]:
        self.refuse_child()
        if not self._open:
            raise StoreError(f"{self.url} is not open")
        if not self.room.acquire(timeout=BUSY_SECONDS):
            raise StoreAway(f"all {MOST_CONNECTIONS} connections of this process to {self.url} are busy")
        try:
            if self.sentinels_due():
                self._follow_sentinels()
            epoch = self.epoch  # before it is taken
            with self.returned(self.take() or self.connect("tenure"), epoch) as connection:
                yield connection
        finally:
            self.room.release()

    @contextmanager
    def returned(self, connection: Connection, epoch: int) -> Generator[Connection]:
        """Put it back afterwards, unless it is broken, or idle ones were dropped since `epoch`."""
        try:
            yield connection
        except exceptions.ResponseError as error:
            if _read_only(error):  # a failover: find the primary again
                connection.disconnect()
                self._drop_idle()
            else:
                self._put_back(connection, epoch)
            raise
        except BaseException:
            connection.disconnect()
            self._drop_idle()  # its server is gone, so the other connections are dead too
            raise
        else:
            self._put_back(connection, epoch)

    def refuse_child(self) -> None:
        if os.getpid() != self.pid:
            raise StoreError(f"{self.url} was opened before a fork(): a child process must open the store itself")

    def sentinels_due(self) -> bool:
        return self._sentinels.due()

    def take(self) -> Connection | None:
        """An idle connection."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return None
            with suppress(exceptions.RedisError, OSError):
                if not connection.can_read(timeout=0):
                    return connection
            connection.disconnect()  # closed by the server, or out of sync

    def _follow_sentinels(self) -> None:
        """A former primary accepts writes until it learns of the failover: ten seconds of writes that are all lost."""
        with suppress(exceptions.RedisError, OSError):
            if self._at not in (None, self._sentinels.primary()):
                self._drop_idle()

    def _put_back(self, connection: Connection, epoch: int) -> None:
        with self._lock:
            if self._open and os.getpid() == self.pid and epoch == self.epoch:
                self._idle.append(connection)
                return
        connection.disconnect()

    # ── asking ──

    def run(self, *command: Any) -> Any:
        """Run one command."""
        return self._moving(lambda connection: _ask(connection, *command))

    def call(self, name: str, *values: Any) -> Any:
        """Run one script."""
        (answer,) = self.call_each(name, [values], list)
        return answer

    def call_each(self, name: str, batches: Sequence[T], values: Callable[[T], Sequence[Any]]) -> list[Any]:
        """Run one script for several batches, each its own transition. The server works while we encode the next."""
        script = self._scripts.load(name)
        time = self._time()

        def ask(connection: Connection) -> list[Any]:
            answers: list[Any] = []
            for sent, batch in enumerate(batches):
                _say(connection, "EVALSHA", script.digest, 1, self.prefix, *values(batch), *time)
                if sent >= AHEAD:
                    answers.append(_read_answer(connection))
            while len(answers) < len(batches):
                answers.append(_read_answer(connection))
            for place, answer in enumerate(answers):
                if isinstance(answer, exceptions.NoScriptError):  # a restart, a failover, SCRIPT FLUSH
                    _say(connection, "EVAL", script.text, 1, self.prefix, *values(batches[place]), *time)
                    answers[place] = _read_answer(connection)
            for answer in answers:
                if isinstance(answer, exceptions.ResponseError):
                    raise answer
            return answers

        return self._moving(ask)

    def evalsha(self, name: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The command that runs a script."""
        return ("EVALSHA", self._scripts.load(name).digest, 1, self.prefix, *values, *self._time())

    def _time(self) -> tuple[int, ...]:
        return () if self._clock is None else (int(self._clock.unix() * 1000),)

    def _moving(self, ask: Callable[[Connection], T]) -> T:
        """Run `ask`; repeat it on another node if a cluster's node answers MOVED: that node has executed nothing."""
        with mapping_errors(self):
            for _ in range(MOST_MOVES):
                try:
                    with self._lent() as connection:
                        return ask(connection)
                except exceptions.MovedError as error:
                    self._drop_idle(self._named(error, self._at or self._place.hosts[0]))
            raise StoreAway(f"{self.url}: the nodes of the cluster do not agree on which of them has {self.prefix}")

    # ── is it fit to be a store? ──

    def _check(self) -> None:
        info = self._info()
        refuse_unfit(self.url, info)
        self._scripts.server_version = version_of(info)
        if info.get("cluster_enabled") == "1":
            self._learn_nodes()

    def _check_schema(self, newest: int) -> None:
        """The schema key is created on first use: the first process writes its version, later ones read it."""
        key = f"{self.prefix}schema"
        version = self.run("GET", key) or (self.run("SETNX", key, newest) and str(newest)) or self.run("GET", key)
        refuse_schema(self.url, key, cast(str, version), newest)

    def _check_rights(self) -> None:
        """A script that is refused its third command has executed two: the user must be allowed all of them."""
        answer: Any = self.call("rights", *commands()) if self._scripts.shebang else self.call("now") and []
        missing = cast("list[str]", answer)
        if missing:
            refused = exceptions.NoPermissionError(f"the user may not run {', '.join(missing)}")
            raise mapped(refused, self)

    def _info(self) -> dict[str, str]:
        lines = cast(str, self.run("INFO")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _learn_nodes(self) -> None:
        """The nodes of a cluster, for when those of the URL are gone."""
        found = cast("list[Any]", self.run("CLUSTER", "SLOTS"))
        self._nodes = tuple((node[0], int(node[1])) for row in found for node in row[2:] if node[0])


def _say(connection: Connection, *command: Any) -> None:
    connection.send_packed_command(connection.pack_command(*command))


def _read_answer(connection: Connection) -> Any:
    """An answer, even if it is an error: other answers may follow it on the connection."""
    try:
        return connection.read_response()
    except exceptions.ResponseError as error:
        return error


def _ask(connection: Connection, *command: Any) -> Any:
    _say(connection, *command)
    return connection.read_response()


def _checked(namespace: str) -> str:
    """It is part of the hash tag of every key and of ACL patterns, where braces and * have a meaning."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", namespace, re.ASCII) is None:
        raise InvalidOption(f"namespace: expected letters, digits, _ and - (a letter or _ first), got {namespace!r}")
    return namespace


def _keepalive() -> dict[int, int]:
    """Options to notice a dead peer in seconds, not in two hours. Not every system has all of them."""
    return {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
