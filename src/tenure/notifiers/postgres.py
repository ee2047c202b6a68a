"""LISTEN and NOTIFY: a doorbell for all machines that use one PostgreSQL.

1. Rings are never sent in a caller's transaction: commits that notify take a lock on the whole cluster, so a separate
   connection sends them, at most 200 batches a second. They change no row, and do not wait for the disk. The first ring
   after a quiet moment is sent at once.
2. A listener relies on rings only after a token sent over that separate connection has arrived. (One sent over its own
   connection would arrive through a pooler too, though no other ring does.) Until then, and whenever a token does not
   arrive, the listener rings on its own every second.
"""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from functools import partial
from hashlib import blake2s
from random import uniform
from secrets import token_hex
from threading import Condition, Thread
from time import monotonic
from typing import Any, Literal, TypeVar, cast
from weakref import WeakSet, finalize

import msgspec
import psycopg
from psycopg import generators, pq, sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.core.logs import logger
from tenure.errors import InvalidOption
from tenure.notifiers.inbox import Inbox
from tenure.ports import ANY, Ring

T = TypeVar("T")

CHANNEL_LIMIT = 63  # bytes of an identifier
PAYLOAD_LIMIT = 7999  # bytes of a notification
_DEBOUNCE, _ANSWER, _SILENCE, _CLOSE_SECONDS = 0.005, 8.0, 60.0, 1.0
_BURST = 10  #: batches that may be sent at once after a quiet moment: a client may be waiting for them
_PROOF_EVERY, _PROOF_WITHIN = 10.0, 5.0
_KINDS: tuple[Literal["queued", "due", "cancel"], ...] = ("queued", "due", "cancel")
_PROOF = "proof"
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}
_NO_RINGS = (
    "LISTEN does not work through this connection (a pooler in transaction mode?): polling every second; "
    "give a direct URL as notifier=postgresql://…"
)
_STANDBY = (
    "this PostgreSQL is a read-only standby, where LISTEN and NOTIFY are refused: polling every second; "
    "give the primary's URL as notifier=postgresql://…"
)

_Signals = set[tuple[str, str]]  # kind and queue of a ring, or `_PROOF` and its token
_decoder = msgspec.json.Decoder(dict[str, list[str]])
_log = logger("tenure.notifier")


class PostgresNotifier:
    """The doorbell of one namespace in one PostgreSQL, connected on the first ring or listener.

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
    """One listener, with a connection of its own, and a thread that keeps it. It never stops reconnecting.

    `drain` reads what arrives, in the thread of its caller: to wake another one would take a tenth of a millisecond.
    """

    permits = None
    interval = 1.0

    def __init__(self, server: _Server, announcer: _Announcer) -> None:
        self.problem = ""
        self._server, self._announcer = server, announcer
        self._listening = False
        self._token, self._due = "", 0.0  #: the token that is to arrive, and by when; or when to send the next one
        self._closing = False
        self._pid = os.getpid()
        self._thread = Thread(target=self._run, name="tenure-listen", daemon=True)
        with ExitStack() as made:  # no file or no thread may be left, just now
            self._inbox = made.enter_context(closing(Inbox()))
            self._woken, self._wake = map(made.enter_context, socket.socketpair())
            self._thread.start()
            made.pop_all()

    def fileno(self) -> int | None:
        return self._inbox.fileno()

    def drain(self) -> list[Ring]:
        rings = self._inbox.drain()
        return rings if self._listening or ANY in rings else [*rings, ANY]

    def close(self) -> None:
        self._closing = True
        if self._pid == os.getpid():  # after a fork, thread and connection are the parent's
            self._wake_thread()
            self._thread.join(_CLOSE_SECONDS)  # it takes longer only while the server does not answer
        self._inbox.close()

    # ── its thread ──

    def _run(self) -> None:
        failures = 0
        with self._woken, self._wake:
            while not self._closing:
                try:
                    with closing(self._server.connect("tenure-listen")) as connection:
                        self._listen(connection)
                except (psycopg.Error, OSError, UnicodeError, _TokenLost) as error:  # OSError: too many open files
                    failures = 0 if self._listening else failures + 1
                    self._listening = False
                    self.problem = _NO_RINGS if isinstance(error, _TokenLost) else self._server.describe(error)
                    self._wait(_backoff(failures))
        self.problem = ""

    def _listen(self, connection: psycopg.Connection) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._server.channel)))
        self._inbox.put([ANY])  # for rings that were sent before this LISTEN
        self._token, self._due = "", 0.0
        with self._inbox.read_by_drain(connection.fileno(), partial(self._read, connection), self._wake_thread) as line:
            while not self._closing and not (self._token and monotonic() > self._due):
                if not self._token and monotonic() > self._due:
                    self._token, self._due = token_hex(8), monotonic() + _PROOF_WITHIN
                    self._announcer.add({(_PROOF, self._token)})
                by_drain = line.by_drain and self._listening  # until it is known to hear, this thread reads, too
                self._wait(self._due - monotonic(), None if by_drain else connection.fileno())
                line.read()
        if not self._closing:
            self._listening = False
            connection.execute("SELECT 1")  # if the server answers nothing at all, LISTEN is not at fault
            raise _TokenLost

    def _read(self, connection: psycopg.Connection) -> Iterable[Ring]:
        """What has arrived. Called by `drain`, too, but never in two threads at once."""
        signals = _received(connection)
        # The rings of others prove as much, once it is known that this is not a pooler's connection.
        if (_PROOF, self._token) in signals or (signals and self._listening and not self._announcer.problem):
            self._listening, self.problem = True, ""
            self._token, self._due = "", monotonic() + _PROOF_EVERY * uniform(0.8, 1)
        return [Ring(kind, queue) for kind in _KINDS for sent, queue in signals if sent == kind]

    def _wake_thread(self) -> None:
        with suppress(OSError):
            self._wake.send(b"\0")

    def _wait(self, seconds: float, fileno: int | None = None) -> None:
        """Wait until there is something to read, the time is up, or the thread is woken."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if fileno is not None:
            poll.register(fileno, select.POLLIN)
        if any(ready == self._woken.fileno() for ready, _ in poll.poll(max(seconds, 0) * 1000)):
            self._woken.recv(64)


class _Announcer:
    """Collects rings, and sends them over a connection of its own, from a thread.

    While that connection is idle the caller's thread sends them, and the other one reads the answer: the switch of
    threads would take as long as to send them.
    """

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._of_parent: psycopg.Connection | None = None  #: after a fork: neither used nor closed
        self._start_over()

    def _start_over(self) -> None:
        self.problem = ""
        self._pid = os.getpid()
        self._changed = Condition()
        self._waiting: _Signals = set()
        self._idle: psycopg.Connection | None = None  #: a caller may send over it
        self._sent: _Signals = set()  #: by a caller: the thread has to read the answer
        self._packed: tuple[_Signals, bytes] = set(), b""
        self._rest_until = 0.0
        self._closing = False
        self._thread: Thread | None = None

    def add(self, signals: _Signals) -> None:
        if self._pid != os.getpid():  # after a fork the thread, its rings and its connection are the parent's
            self._of_parent = self._idle
            self._start_over()
        if not signals:
            return
        with self._changed:
            if self._closing:
                return
            if not self._waiting:
                self._changed.notify()
            if self._idle is not None and not self._waiting and monotonic() >= self._rest_until:
                self._send_now(self._idle, signals)
                return
            self._waiting |= signals
            if self._thread is None:
                thread = Thread(target=self._run, name="tenure-notify", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: interpreter shutdown, or a thread limit
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _send_now(self, connection: psycopg.Connection, signals: _Signals) -> None:
        """With the lock held."""
        self._idle, self._sent = None, signals
        if signals != self._packed[0]:  # usually the same as before
            self._packed = signals, _notifying(connection, self._server.channel, _payloads(signals))
        with suppress(psycopg.Error):  # the thread will see it, and send them again
            connection.pgconn.send_query(self._packed[1])

    # ── its thread ──

    def _run(self) -> None:
        connection: psycopg.Connection | None = None
        failures = 0
        even = 0.0  # the time by which the steady rate would have sent as much
        while True:
            signals, sent = self._next(connection, None if connection is None else _SILENCE)
            if signals:
                started = monotonic()
                connection = self._send(connection, signals, sent=sent)
                failures = failures + 1 if connection is None else 0
                even = max(even, started) + _DEBOUNCE
                self._rest_until = even - _BURST * _DEBOUNCE if connection is not None else started + _backoff(failures)
            else:
                if connection is not None:
                    connection.close()
                    connection = None
                if self._closing:
                    return

    def _next(self, connection: psycopg.Connection | None, silence: float | None) -> tuple[_Signals, bool]:
        """The rings collected until the rest is over, or the next one; and whether its caller has sent it.

        Empty: none within `silence` seconds, or closing.
        """
        with self._changed:
            self._idle = connection
            self._changed.wait_for(lambda: self._closing or self._sent, max(self._rest_until - monotonic(), 0))
            self._changed.wait_for(lambda: self._closing or self._sent or self._waiting, silence)
            self._idle = None
            if self._sent:
                signals, self._sent = self._sent, set()
                return signals, True
            signals, self._waiting = self._waiting, set()
            return signals, False

    def _send(
        self, connection: psycopg.Connection | None, signals: _Signals, *, sent: bool
    ) -> psycopg.Connection | None:
        """The connection to use next; None: sending failed, back off before the next attempt."""
        reused = connection is not None
        try:
            connection = connection or self._server.connect("tenure-notify")
            if not sent:
                connection.pgconn.send_query(_notifying(connection, self._server.channel, _payloads(signals)))
            connection.wait(_answers(connection.pgconn))
        except (psycopg.Error, OSError, UnicodeError) as error:  # UnicodeError: a host that can't be a name
            if connection is not None:
                connection.close()
            if reused:  # it may have died while idle
                return self._send(None, signals, sent=False)
            reason = self._server.describe(error)
            if not self.problem:
                _log.warning("rings can't be sent: %s", reason)
            self.problem = reason
            return None
        if self.problem:
            _log.info("rings are sent again")
            self.problem = ""
        return connection


class _Server:
    """Where and how to connect. Only this class knows the password, and keeps it out of all texts."""

    def __init__(self, conninfo: str, namespace: str) -> None:
        try:
            given = cast(dict[str, Any], conninfo_to_dict(conninfo))
        except psycopg.Error:  # its text repeats what it can't parse, passwords too
            raise InvalidOption(
                "expected postgresql://USER:PASSWORD@HOST/DATABASE, got one that can't be read"
            ) from None
        host, port = str(given.get("host", "")), str(given.get("port", ""))
        if "@" in host or port.strip("0123456789,"):  # a part of the password was taken for it
            raise InvalidOption(
                "expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, got a host with '@' in it or a port that is "
                "no number: in a password of a URL write %40 for @, %2F for / and %3A for :"
            )
        if not all(each.startswith("/") or _can_be_a_name(each) for each in host.split(",")):
            raise InvalidOption("expected postgresql://USER:PASSWORD@HOST/DATABASE, got a host that can't be a name")
        self._options = _DEFAULTS | given
        if "," in host:  # of several, only the primary can notify
            self._options.setdefault("target_session_attrs", "read-write")
        self.channel = f"tenure:{namespace}"
        if len(self.channel.encode()) > CHANNEL_LIMIT:
            self.channel = f"tenure:{blake2s(namespace.encode(), digest_size=16).hexdigest()}"

    def connect(self, name: str) -> psycopg.Connection:
        conninfo = make_conninfo(**{"application_name": name} | self._options)
        return _Connection.connect(conninfo, autocommit=True, prepare_threshold=None)

    def describe(self, error: psycopg.Error | OSError | UnicodeError) -> str:
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            return _STANDBY
        reason = " ".join(str(error).split())
        if password := self._options.get("password"):
            reason = reason.replace(str(password), "***")
        return f"PostgreSQL's doorbell is out of reach: polling every second until it answers ({reason[:500]})"


class _Connection(psycopg.Connection):
    """A connection with a time limit: a server that hangs keeps acknowledging packets and keepalives."""

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        return super().wait(_in_time(gen), *args, **options)


def _in_time(gen: PQGen[T]) -> PQGen[T]:
    """psycopg resumes this generator ten times a second, whether or not there is something to read."""
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


class _TokenLost(Exception):
    """A token was sent and did not arrive."""


def _can_be_a_name(host: str) -> bool:
    try:
        host.encode("idna")
    except UnicodeError:  # an empty label, or one that is too long
        return False
    return True


def _backoff(failures: int) -> float:
    return min(0.1 * 2.0 ** min(failures, 10), 5.0) * uniform(0.5, 1)


def _payloads(signals: _Signals) -> list[str]:
    """JSON in ASCII, for any encoding of the database: {"queued": ["mail"]}. As few payloads as the limit allows."""
    payloads: list[str] = []
    batch: dict[str, list[str]] = {}
    length = 2
    for kind, name in signals:
        more = len(json.dumps({kind: [name]})) + 2
        if length + more > PAYLOAD_LIMIT:
            payloads.append(json.dumps(batch))
            batch, length = {}, 2
        batch.setdefault(kind, []).append(name)
        length += more
    return [*payloads, json.dumps(batch)]


def _notifying(connection: psycopg.Connection, channel: str, payloads: Iterable[str]) -> bytes:
    """As one plain text: with parameters it takes half as long again or more, and a client is waiting."""
    to, quote = sql.Identifier(channel).as_bytes(connection), pq.Escaping(connection.pgconn).escape_literal
    return b"; ".join(b"NOTIFY %b, %b" % (to, quote(payload.encode())) for payload in payloads)


def _answers(line: pq.abc.PGconn) -> PQGen[None]:
    results = yield from generators.execute(line)
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)
    if not results:
        raise psycopg.OperationalError("nothing was sent")


def _received(connection: psycopg.Connection) -> _Signals:
    connection.pgconn.consume_input()
    signals: _Signals = set()
    while (message := connection.pgconn.notifies()) is not None:
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeError):  # otherwise it is not ours
            signals |= {(kind, name) for kind, names in _decoder.decode(message.extra).items() for name in names}
    return signals
