"""A stream as the doorbell for everything that uses one namespace of one Redis.

1. A ring is an entry in one short stream, and its sender does not wait for the answer: answers are read when the next
   ring is sent. Rings that are unanswered when a connection ends are sent again by a thread that reconnects.
2. Listeners continue from their last position. The server keeps no list of them that could become stale. Rings sent
   while a listener was disconnected are still in the stream, and a listener that may have missed some asks the store.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from random import uniform
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Literal, Protocol
from weakref import WeakSet, finalize

from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from tenure.core.logs import logger
from tenure.notifiers.inbox import Inbox
from tenure.ports import ANY, Ring

KEPT = 256  #: the minimum number of entries that trimming leaves in the stream
MOST_WAITING, MOST_UNANSWERED = 1_000, 1_000
_BLOCK_SECONDS = 5.0  #: between two checks that the stream is still the same one
_ANSWER_SECONDS = 3.0
_GLANCE_SECONDS = 0.001  #: for the first read, which proves that reading is permitted
_REST_SECONDS = 0.002  #: between two reads while many rings arrive
_CLOSE_SECONDS = 1.0
_REPLICA = (
    "this Redis is a read-only replica, where rings are refused: polling every second; "
    "give the primary's URL as notifier=redis://…"
)
_KINDS: dict[bytes, Literal["queued", "due", "cancel"]] = {b"queued": "queued", b"due": "due", b"cancel": "cancel"}
_START = (0, 0)

_Signals = set[tuple[str, str]]  # kind and queue of a ring
_Id = tuple[int, int]
_log = logger("tenure.notifier")


class Connection(Protocol):
    """The used part of `redis.connection.AbstractConnection`."""

    def pack_command(self, *args: Any) -> Any: ...
    def send_packed_command(self, command: Any, check_health: bool = True) -> Any: ...
    def can_read(self, timeout: float = 0) -> Any: ...
    def read_response(self, disable_decoding: bool = False) -> Any: ...
    def disconnect(self) -> Any: ...
    def _get_socket(self) -> socket.socket | None: ...


class Server(Protocol):
    """Where and how to connect."""

    def connect(self, name: str) -> Connection:
        """A new connection for the caller, logged in, to the node with the namespace's keys. Raises RedisError."""
        ...

    def describe(self, error: Exception) -> str:
        """The error as a sentence, without a password."""
        ...


class RedisNotifier:
    """The doorbell of one namespace in one Redis, connected on the first ring or listener.

    `RedisNotifier(server, "tenure")`. With `rung` it only listens: the store's own scripts ring.
    """

    def __init__(self, server: Server, namespace: str, *, rung: bool = False) -> None:
        bell = f"{{{namespace}}}:bell".encode()
        self._server, self._bell, self._rung = server, bell, rung
        self._announcer = _Announcer(server, bell)
        self._listeners: WeakSet[RedisListener] = WeakSet()
        self._at_exit = finalize(self, self._announcer.close)

    def announce(self, rings: Iterable[Ring]) -> None:
        if not self._rung:
            self._announcer.send({(ring.kind, ring.queue) for ring in rings})

    def listen(self) -> RedisListener:
        listener = RedisListener(self._server, self._bell)
        self._listeners.add(listener)
        return listener

    def problem(self) -> str:
        return self._announcer.check() or next((each.problem for each in self._listeners if each.problem), "")

    def close(self) -> None:
        self._at_exit()


class RedisListener:
    """One listener, with a connection and a thread of its own. It never stops reconnecting."""

    permits = None
    interval = 1.0

    def __init__(self, server: Server, bell: bytes) -> None:
        self.problem = ""
        self._server, self._bell = server, bell
        self._last: _Id | None = None
        self._listening = False
        self._closing = False
        self._pid = os.getpid()
        self._poll = select.poll()
        self._thread = Thread(target=self._run, name="tenure-listen", daemon=True)
        with ExitStack() as made:  # no file or no thread may be left, just now
            self._inbox = made.enter_context(closing(Inbox()))
            self._woken, self._wake = map(made.enter_context, socket.socketpair())
            self._poll.register(self._woken, select.POLLIN)
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
            with suppress(OSError):
                self._wake.send(b"\0")
            self._thread.join(_CLOSE_SECONDS)  # it takes longer only while connecting to a server that does not answer
        self._inbox.close()

    # ── its thread ──

    def _run(self) -> None:
        failures = 0
        with self._woken, self._wake:
            while not self._closing:
                try:
                    self._receive()
                except (RedisError, OSError, UnicodeError) as error:  # the last for a host that can't be a name
                    failures = 0 if self._listening else failures + 1
                    self._listening, self.problem = False, _describe(self._server, error)
                    self._wait(_backoff(failures))
        self.problem = ""

    def _receive(self) -> None:
        connection = self._server.connect("tenure-listen")
        fileno = _socket(connection).fileno()
        self._poll.register(fileno, select.POLLIN)
        try:
            self._find_place(connection)
            while not self._closing:
                entries = self._next(connection, _BLOCK_SECONDS if self._listening else _GLANCE_SECONDS)
                rings = _rings(entries)
                if (
                    not self._listening  # the stream may have entries from before
                    or len(entries) >= KEPT  # with fewer, none since the last read was trimmed
                    or (not entries and self._find_place(connection))
                ):
                    rings.append(ANY)
                if rings:
                    self._inbox.put(rings)
                self._listening, self.problem = True, ""
                if entries:
                    self._last = _id(entries[-1][0])
                if len(entries) > 1:  # many rings: read the next ones together
                    self._wait(_REST_SECONDS)
        except _Closed:
            pass
        finally:
            self._poll.unregister(fileno)
            connection.disconnect()

    def _next(self, connection: Connection, seconds: float) -> list[tuple[bytes, list[bytes]]]:
        """The entries since the last one; waits for some up to `seconds`. Each entry has an id and its fields."""
        assert self._last is not None
        last = b"%d-%d" % self._last
        block = int(seconds * 1000)
        answer = self._ask(connection, b"XREAD", b"COUNT", KEPT, b"BLOCK", block, b"STREAMS", self._bell, last)
        if not answer:
            return []
        streams: dict[bytes, list[tuple[bytes, list[bytes]]]] = dict(answer)  # RESP2 answers with pairs instead
        return streams[self._bell]

    def _find_place(self, connection: Connection) -> bool:
        """Move to the stream's end if it is before our position: then the stream lost entries, maybe unread ones."""
        newest = self._ask(connection, b"XREVRANGE", self._bell, b"+", b"-", b"COUNT", 1)
        end = _id(newest[0][0]) if newest else _START
        if self._last is not None and end >= self._last:
            return False
        self._last = end
        return True

    def _ask(self, connection: Connection, *command: bytes | int) -> Any:
        connection.send_packed_command(connection.pack_command(*command), check_health=False)
        if self._wait(_BLOCK_SECONDS + _ANSWER_SECONDS):
            return connection.read_response(disable_decoding=True)
        if self._closing:
            raise _Closed
        raise RedisTimeout("the server has stopped answering")

    def _wait(self, seconds: float) -> bool:
        """Wait until there is something to read, the time is up, or `close` is called."""
        return bool(self._poll.poll(seconds * 1000)) and not self._closing


class _Announcer:
    """Sends rings at once. Only while it has no connection, a thread collects them, connects and sends them."""

    def __init__(self, server: Server, bell: bytes) -> None:
        self._server, self._bell = server, bell
        self._start_over()

    def _start_over(self) -> None:
        self.problem = ""
        self._pid = os.getpid()
        self._lock = Lock()
        self._waiting: _Signals = set()
        self._packed: tuple[_Signals, Any] = set(), None
        self._unanswered: deque[tuple[float, _Signals]] = deque()  # when it was sent, and what
        self._closing = Event()
        self._connection: Connection | None = None
        self._thread: Thread | None = None

    def send(self, signals: _Signals) -> None:
        if self._pid != os.getpid():  # after a fork connection, thread and rings are the parent's
            self._start_over()
        if not signals:
            return
        with self._lock:
            if self._closing.is_set():
                return
            self._unanswered.append((monotonic(), signals))
            if self._connection is not None:
                try:
                    self._send(self._connection, signals)
                    self._read_answers(self._connection)  # after the send, since a client may be waiting for that
                except (RedisError, OSError):
                    self._disconnect()
            if self._connection is None:
                self._reconnect_in_thread()

    def check(self) -> str:
        """Read the answers that have arrived; returns the problem, if there is one."""
        if self._pid == os.getpid() and self._lock.acquire(blocking=False):
            try:
                if self._connection is not None:
                    self._read_answers(self._connection)
            except (RedisError, OSError):
                self._disconnect()
                self._reconnect_in_thread()
            finally:
                self._lock.release()
        return self.problem

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closing.set()
            thread, connection, self._connection = self._thread, self._connection, None
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
        if connection is not None:  # with unread answers the kernel would reset the connection and drop data in flight
            with suppress(RedisError, OSError):
                self._read_answers(connection, monotonic() + _CLOSE_SECONDS)
            connection.disconnect()

    # ── with the lock held ──

    def _send(self, connection: Connection, signals: _Signals) -> None:
        if signals != self._packed[0]:  # usually the same rings as before, and packing costs as much as sending
            fields = [part.encode(errors="replace") for signal in signals for part in signal]
            self._packed = signals, connection.pack_command(b"XADD", self._bell, b"MAXLEN", b"~", KEPT, b"*", *fields)
        connection.send_packed_command(self._packed[1], check_health=False)

    def _read_answers(self, connection: Connection, until: float = 0.0) -> None:
        """Read the answers that have arrived, or wait for all `until` then. Raises the error of a refused ring."""
        while self._unanswered and connection.can_read(max(until - monotonic(), 0)):
            connection.read_response(disable_decoding=True)
            self._unanswered.popleft()
        if self._unanswered and monotonic() - self._unanswered[0][0] > _ANSWER_SECONDS:
            raise RedisTimeout("the server has stopped answering")
        if len(self._unanswered) > MOST_UNANSWERED:
            raise RedisTimeout("the server does not answer fast enough")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    def _reconnect_in_thread(self) -> None:
        """Have the thread send all rings that are not confirmed."""
        self._keep(*(signals for _, signals in self._unanswered))
        self._unanswered.clear()
        if self._thread is None and self._waiting:
            thread = Thread(target=self._run, name="tenure-announce", daemon=True)
            with suppress(RuntimeError):  # no thread can be started: interpreter shutdown, or a thread limit
                thread.start()
                self._thread = thread

    def _keep(self, *signals: _Signals) -> None:
        self._waiting = self._waiting.union(*signals)
        if len(self._waiting) > MOST_WAITING:
            self._waiting = {(ANY.kind, ANY.queue)}

    # ── its thread ──

    def _run(self) -> None:
        connection: Connection | None = None
        failures = 0
        while signals := self._next(connection):
            try:
                connection = connection or self._server.connect("tenure-announce")
                self._send(connection, signals)
                connection.read_response(disable_decoding=True)
            except (RedisError, OSError, UnicodeError) as error:
                if connection is not None:
                    connection.disconnect()
                    connection = None
                self._failed(signals, error)
                failures += 1
                if self._closing.wait(_backoff(failures)):
                    return
            else:
                failures = 0
                if self.problem:
                    _log.info("rings are sent again")
                    self.problem = ""

    def _next(self, connection: Connection | None) -> _Signals:
        """The collected rings. If there are none, `connection` is used for sending from now on; this thread ends."""
        with self._lock:
            signals, self._waiting = self._waiting, set()
            if not signals:
                self._thread = None
                if connection is not None and self._closing.is_set():
                    connection.disconnect()
                elif connection is not None:
                    _socket(connection).settimeout(0)  # a full buffer fails at once instead of waiting
                    self._connection = connection
            return signals

    def _failed(self, signals: _Signals, error: Exception) -> None:
        reason = _describe(self._server, error)
        if not self.problem:
            _log.warning("rings can't be sent: %s", reason)
        with self._lock:
            self.problem = reason
            self._keep(signals)


class _Closed(Exception):
    """`close` was called while waiting for an answer."""


def _describe(server: Server, error: Exception) -> str:
    if isinstance(error, ReadOnlyError):
        return _REPLICA
    return f"Redis's doorbell is out of reach: polling every second until it answers ({server.describe(error)})"


def _backoff(failures: int) -> float:
    return min(0.1 * 2.0 ** min(failures, 10), 5.0) * uniform(0.5, 1)


def _socket(connection: Connection) -> socket.socket:
    found = connection._get_socket()  # redis-py has no other way to poll, or to wait for two descriptors
    if found is None:
        raise RedisTimeout("the connection is closed")
    return found


def _id(text: bytes) -> _Id:
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number)


def _rings(entries: Iterable[tuple[bytes, list[bytes]]]) -> list[Ring]:
    rings: list[Ring] = []
    for _, signals in entries:
        for kind, queue in zip(signals[::2], signals[1::2], strict=True):
            if kind in _KINDS:
                with suppress(UnicodeDecodeError):  # otherwise it is not ours
                    rings.append(Ring(_KINDS[kind], queue.decode()))
    return rings
