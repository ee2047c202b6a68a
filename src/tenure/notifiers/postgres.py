"""LISTEN and NOTIFY: a doorbell that all machines of one PostgreSQL hear.

1. Rings never travel in anybody's transaction: commits that notify take a lock of the whole cluster, so a side
   connection sends them, a hundred batches a second at most. The first ring after a quiet moment leaves at once.
2. A listener believes that it hears only when a token sent over that side connection has come back. (One sent over
   its own connection would come back through a pooler too, though no other ring ever does.) Until then, and
   whenever the token stays away, it rings by itself each second.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
from collections.abc import Iterable
from contextlib import closing, suppress
from hashlib import blake2s
from random import uniform
from secrets import token_hex
from threading import Condition, Thread
from time import monotonic
from typing import Any, Literal, TypeVar, cast
from weakref import WeakSet, finalize

import msgspec
import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.errors import InvalidOption
from tenure.notifiers.inbox import Inbox
from tenure.ports import ANY, Ring

T = TypeVar("T")

CHANNEL_LIMIT = 63  # bytes of an identifier
PAYLOAD_LIMIT = 7999  # bytes of a notification
_DEBOUNCE, _ANSWER, _SILENCE, _LAST_WORDS = 0.01, 8.0, 60.0, 1.0
_BURST = 10  #: rings that may go at once after a quiet moment: somebody waits for those
_PROOF_EVERY, _PROOF_WITHIN = 10.0, 5.0
_KINDS: tuple[Literal["queued", "due", "cancel"], ...] = ("queued", "due", "cancel")
_PROOF = "proof"
_NOTIFY = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}
_DEAF = (
    "LISTEN does not work through this connection (a pooler in transaction mode?): polling every second; "
    "give a direct URL as notifier=postgresql://…"
)
_STANDBY = (
    "this PostgreSQL is a read-only standby, where LISTEN and NOTIFY are refused: polling every second; "
    "give the primary's URL as notifier=postgresql://…"
)

_Words = set[tuple[str, str]]  # kind and queue of a ring, or a proof and its token
_decoder = msgspec.json.Decoder(dict[str, list[str]])
_log = logging.getLogger("tenure.notifier")


class PostgresNotifier:
    """The doorbell of one namespace in one PostgreSQL, connected only once somebody rings or listens.

    `PostgresNotifier("postgresql://me@db/app", "tenure")`
    """

    def __init__(self, conninfo: str, namespace: str) -> None:
        self._server = _Server(conninfo, namespace)
        self._announcer = _Announcer(self._server)
        self._listeners: WeakSet[PostgresListener] = WeakSet()
        self._at_exit = finalize(self, self._announcer.close)

    def announce(self, rings: Iterable[Ring]) -> None:
        self._announcer.add({(ring.kind, ring.queue) for ring in rings})

    def listen(self) -> PostgresListener:
        listener = PostgresListener(self._server, self._announcer)
        self._listeners.add(listener)
        return listener

    def problem(self) -> str:
        return self._announcer.problem or next((each.problem for each in self._listeners if each.problem), "")

    def close(self) -> None:
        self._at_exit()


class PostgresListener:
    """One ear, with a connection and a thread of its own. It connects again for ever."""

    permits = None
    interval = 1.0

    def __init__(self, server: _Server, announcer: _Announcer) -> None:
        self.problem = ""
        self._server, self._announcer = server, announcer
        self._inbox = Inbox()
        self._hears = False
        self._closing = False
        self._pid = os.getpid()
        self._woken, self._wake = socket.socketpair()
        self._thread = Thread(target=self._run, name="tenure-listen", daemon=True)
        self._thread.start()

    def fileno(self) -> int | None:
        return self._inbox.fileno()

    def drain(self) -> list[Ring]:
        rings = self._inbox.drain()
        return rings if self._hears or ANY in rings else [*rings, ANY]

    def close(self) -> None:
        self._closing = True
        if self._pid == os.getpid():  # after a fork, thread and connection are the parent's
            with suppress(OSError):
                self._wake.send(b"\0")
            self._thread.join(_LAST_WORDS)  # longer only if it connects just now to a server that does not answer
        self._inbox.close()

    # ── its thread ──

    def _run(self) -> None:
        failures = 0
        with self._woken, self._wake:
            while not self._closing:
                try:
                    with closing(self._server.connect("tenure-listen")) as connection:
                        self._listen(connection)
                except (psycopg.Error, _NotHeard) as error:
                    failures = 0 if self._hears else failures + 1
                    self._hears = False
                    self.problem = _DEAF if isinstance(error, _NotHeard) else self._server.told(error)
                    self._wait(_backoff(failures))
        self.problem = ""

    def _listen(self, connection: psycopg.Connection) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._server.channel)))
        self._inbox.put([ANY])  # for the rings that nobody heard until now
        token, due = "", 0.0
        while not self._closing:
            if self._wait(due - monotonic(), connection.fileno()):
                words = _heard(connection)
                self._inbox.put(Ring(kind, queue) for kind in _KINDS for said, queue in words if said == kind)
                # what others send proves as much, once it is known that this is no pooler's connection
                if (_PROOF, token) in words or (words and self._hears and not self._announcer.problem):
                    self._hears, self.problem = True, ""
                    token, due = "", monotonic() + _PROOF_EVERY * uniform(0.8, 1)
            elif self._closing:
                return
            elif token:
                raise _NotHeard
            else:
                token, due = token_hex(8), monotonic() + _PROOF_WITHIN
                self._announcer.add({(_PROOF, token)})

    def _wait(self, seconds: float, fileno: int | None = None) -> bool:
        """Until there is something to read, the time is up, or `close` is called."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if fileno is not None:
            poll.register(fileno, select.POLLIN)
        return any(ready == fileno for ready, _ in poll.poll(max(seconds, 0) * 1000))


class _Announcer:
    """Gathers what is to be said, and says it from a thread and a connection of its own."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._start_over()

    def _start_over(self) -> None:
        self.problem = ""
        self._pid = os.getpid()
        self._changed = Condition()
        self._waiting: _Words = set()
        self._closing = False
        self._thread: Thread | None = None

    def add(self, words: _Words) -> None:
        if self._pid != os.getpid():  # after a fork the thread and what it was to say are the parent's
            self._start_over()
        if not words:
            return
        with self._changed:
            if self._closing:
                return
            if not self._waiting:
                self._changed.notify()
            self._waiting |= words
            if self._thread is None:
                thread = Thread(target=self._run, name="tenure-notify", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: the interpreter ends, or the machine is full
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_WORDS)

    # ── its thread ──

    def _run(self) -> None:
        connection: psycopg.Connection | None = None
        failures = 0
        rest_until = even = 0.0  # even: when all that was sent would have been sent at the steady rate
        while True:
            words = self._next(rest_until, None if connection is None else _SILENCE)
            if words:
                started = monotonic()
                connection = self._send(connection, words)
                failures = failures + 1 if connection is None else 0
                even = max(even, started) + _DEBOUNCE
                rest_until = even - _BURST * _DEBOUNCE if connection is not None else started + _backoff(failures)
            else:
                if connection is not None:
                    connection.close()
                    connection = None
                if self._closing:
                    return

    def _next(self, rest_until: float, silence: float | None) -> _Words:
        """What gathers until `rest_until`, or what comes next. Empty: nothing came for so long, or it is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing, max(rest_until - monotonic(), 0))
            self._changed.wait_for(lambda: self._closing or self._waiting, silence)
            words, self._waiting = self._waiting, set()
            return words

    def _send(self, connection: psycopg.Connection | None, words: _Words) -> psycopg.Connection | None:
        """The connection to go on with; None: it failed, and so may the next one for a while."""
        reused = connection is not None
        try:
            connection = connection or self._server.connect("tenure-notify")
            connection.execute(_NOTIFY, (self._server.channel, _payloads(words)))
        except psycopg.Error as error:
            if connection is not None:
                connection.close()
            if reused:  # it may have died in its sleep
                return self._send(None, words)
            told = self._server.told(error)
            if not self.problem:
                _log.warning("rings can't be sent: %s", told)
            self.problem = told
            return None
        if self.problem:
            _log.info("rings are sent again")
            self.problem = ""
        return connection


class _Server:
    """Where and how to connect. It alone knows the password, and keeps it out of every sentence."""

    def __init__(self, conninfo: str, namespace: str) -> None:
        try:
            given = cast(dict[str, Any], conninfo_to_dict(conninfo))
        except psycopg.Error:  # whose text repeats what it can't read, passwords too
            raise InvalidOption(
                "expected postgresql://USER:PASSWORD@HOST/DATABASE, got one that can't be read"
            ) from None
        host, port = str(given.get("host", "")), str(given.get("port", ""))
        if "@" in host or port.strip("0123456789,"):  # then one of them is half a password
            raise InvalidOption(
                "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, got a host with '@' in it or a port that is "
                "no number: in a password of a URL write %40 for @, %2F for / and %3A for :"
            )
        self._options = _DEFAULTS | given
        if "," in host:  # of several, only the primary can notify
            self._options.setdefault("target_session_attrs", "read-write")
        self.channel = f"tenure:{namespace}"
        if len(self.channel.encode()) > CHANNEL_LIMIT:
            self.channel = f"tenure:{blake2s(namespace.encode(), digest_size=16).hexdigest()}"

    def connect(self, name: str) -> psycopg.Connection:
        conninfo = make_conninfo(**{"application_name": name} | self._options)
        return _Connection.connect(conninfo, autocommit=True, prepare_threshold=None)

    def told(self, error: psycopg.Error) -> str:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return _STANDBY
        reason = " ".join(str(error).split())
        if password := self._options.get("password"):
            reason = reason.replace(str(password), "***")
        return f"PostgreSQL's doorbell is out of reach: polling every second until it answers ({reason[:500]})"


class _Connection(psycopg.Connection):
    """One that has to answer in time: a server that hangs goes on acknowledging packets, and keepalives too."""

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        return super().wait(_in_time(gen), *args, **options)


def _in_time(gen: PQGen[T]) -> PQGen[T]:
    """psycopg goes on with it ten times a second, whether there is something to read or not."""
    answer_by = monotonic() + _ANSWER
    ready: Any = None
    while True:
        try:
            wanted = gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        ready = yield wanted
        if monotonic() > answer_by:
            raise psycopg.OperationalError(f"no answer in {_ANSWER:g}s")


class _NotHeard(Exception):
    """A token was sent and did not come back."""


def _backoff(failures: int) -> float:
    return min(0.1 * 2.0 ** min(failures, 10), 5.0) * uniform(0.5, 1)


def _payloads(words: _Words) -> list[str]:
    """As JSON, ASCII whatever the database's encoding: {"queued": ["mail"]}. As few as the limit allows."""
    payloads: list[str] = []
    said: dict[str, list[str]] = {}
    length = 2
    for kind, name in words:
        more = len(json.dumps({kind: [name]})) + 2
        if length + more > PAYLOAD_LIMIT:
            payloads.append(json.dumps(said))
            said, length = {}, 2
        said.setdefault(kind, []).append(name)
        length += more
    return [*payloads, json.dumps(said)]


def _heard(connection: psycopg.Connection) -> _Words:
    connection.pgconn.consume_input()
    words: _Words = set()
    while (message := connection.pgconn.notifies()) is not None:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):  # else it is not ours
            words |= {(kind, name) for kind, names in _decoder.decode(message.extra).items() for name in names}
    return words
