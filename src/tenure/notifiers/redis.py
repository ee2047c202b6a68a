"""A stream for a doorbell: everyone who uses one namespace of one Redis hears it.

1. A ring is an entry of one short stream, and its sender does not wait for the answer: answers are read when the next
   ring is sent. What is not answered when a connection ends is sent again by a thread that connects anew.
2. Listeners read from where they were. The server keeps no list of them that could grow old. What was said while one
   was away is still in the stream, and one that can't know whether it missed something looks for itself.
"""

from __future__ import annotations

import logging
import os
import select
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from random import uniform
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Literal, Protocol
from weakref import WeakSet, finalize

from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from tenure.notifiers.inbox import Inbox
from tenure.ports import ANY, Ring

KEPT = 256  #: entries the stream has at least, once it has had so many
MOST_WAITING, MOST_UNANSWERED = 1_000, 1_000
_BLOCK_SECONDS = 5.0  #: between two looks whether the stream still is the one that we heard
_ANSWER_SECONDS = 3.0
_GLANCE_SECONDS = 0.001  #: for the first reading, which shows that we may read
_REST_SECONDS = 0.002  #: in a flood, between two readings
_LAST_WORDS = 1.0
_REPLICA = (
    "this Redis is a read-only replica, where nobody can ring: polling every second; "
    "give the primary's URL as notifier=redis://…"
)
_KINDS: dict[bytes, Literal["queued", "due", "cancel"]] = {b"queued": "queued", b"due": "due", b"cancel": "cancel"}
_START = (0, 0)

_Words = set[tuple[str, str]]  # kind and queue of a ring
_Id = tuple[int, int]
_log = logging.getLogger("tenure.notifier")


class Connection(Protocol):
    """What is used of a `redis.connection.AbstractConnection`."""

    def pack_command(self, *args: Any) -> Any: ...
    def send_packed_command(self, command: Any, check_health: bool = True) -> Any: ...
    def can_read(self, timeout: float = 0) -> Any: ...
    def read_response(self, disable_decoding: bool = False) -> Any: ...
    def disconnect(self) -> Any: ...
    def _get_socket(self) -> socket.socket | None: ...


class Server(Protocol):
    """Where and how to connect."""

    def connect(self, name: str) -> Connection:
        """A connection of the caller's own, logged in, to whoever has the namespace's keys. Raises RedisError."""
        ...

    def told(self, error: Exception) -> str:
        """What went wrong, without a password."""
        ...


class RedisNotifier:
    """The doorbell of one namespace in one Redis, connected only once somebody rings or listens.

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
            self._announcer.say({(ring.kind, ring.queue) for ring in rings})

    def listen(self) -> RedisListener:
        listener = RedisListener(self._server, self._bell)
        self._listeners.add(listener)
        return listener

    def problem(self) -> str:
        return self._announcer.look() or next((each.problem for each in self._listeners if each.problem), "")

    def close(self) -> None:
        self._at_exit()


class RedisListener:
    """One ear, with a connection and a thread of its own. It connects again for ever."""

    permits = None
    interval = 1.0

    def __init__(self, server: Server, bell: bytes) -> None:
        self.problem = ""
        self._server, self._bell = server, bell
        self._inbox = Inbox()
        self._last: _Id | None = None
        self._hears = False
        self._closing = False
        self._pid = os.getpid()
        self._woken, self._wake = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
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
                    self._hear()
                except (RedisError, OSError) as error:
                    failures = 0 if self._hears else failures + 1
                    self._hears, self.problem = False, _told(self._server, error)
                    self._wait(_backoff(failures))
        self.problem = ""

    def _hear(self) -> None:
        connection = self._server.connect("tenure-listen")
        fileno = _socket(connection).fileno()
        self._poll.register(fileno, select.POLLIN)
        try:
            self._find_place(connection)
            while not self._closing:
                entries = self._next(connection, _BLOCK_SECONDS if self._hears else _GLANCE_SECONDS)
                rings = _rings(entries)
                if (
                    not self._hears  # so the stream may have had something before we came
                    or len(entries) >= KEPT  # with fewer, all since the last are still in it
                    or (not entries and self._find_place(connection))
                ):
                    rings.append(ANY)
                if rings:
                    self._inbox.put(rings)
                self._hears, self.problem = True, ""
                if entries:
                    self._last = _id(entries[-1][0])
                if len(entries) > 1:  # a flood: hear the next ones together
                    self._wait(_REST_SECONDS)
        except _Closed:
            pass
        finally:
            self._poll.unregister(fileno)
            connection.disconnect()

    def _next(self, connection: Connection, seconds: float) -> list[tuple[bytes, list[bytes]]]:
        """What was said since the last; waits for it, for so long. Each entry has an id and its words."""
        assert self._last is not None
        last = b"%d-%d" % self._last
        block = int(seconds * 1000)
        answer = self._ask(connection, b"XREAD", b"COUNT", KEPT, b"BLOCK", block, b"STREAMS", self._bell, last)
        if not answer:
            return []
        streams: dict[bytes, list[tuple[bytes, list[bytes]]]] = dict(answer)  # the older protocol has pairs instead
        return streams[self._bell]

    def _find_place(self, connection: Connection) -> bool:
        """Go to the stream's end if it ends before where we were: then it lost what it had, and maybe more."""
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
        raise RedisTimeout("it has stopped answering")

    def _wait(self, seconds: float) -> bool:
        """Until there is something to read, the time is up, or `close` is called."""
        return bool(self._poll.poll(seconds * 1000)) and not self._closing


class _Announcer:
    """Says at once what is to be said. Only while it has no connection a thread gathers it, connects and says it."""

    def __init__(self, server: Server, bell: bytes) -> None:
        self._server, self._bell = server, bell
        self._start_over()

    def _start_over(self) -> None:
        self.problem = ""
        self._pid = os.getpid()
        self._lock = Lock()
        self._waiting: _Words = set()
        self._packed: tuple[_Words, Any] = set(), None
        self._unanswered: deque[tuple[float, _Words]] = deque()  # when it was said, and what
        self._closing = Event()
        self._connection: Connection | None = None
        self._thread: Thread | None = None

    def say(self, words: _Words) -> None:
        if self._pid != os.getpid():  # after a fork connection, thread and what was to be said are the parent's
            self._start_over()
        if not words:
            return
        with self._lock:
            if self._closing.is_set():
                return
            self._unanswered.append((monotonic(), words))
            if self._connection is not None:
                try:
                    self._send(self._connection, words)
                    self._read_answers(self._connection)  # after the sending: somebody waits for that
                except (RedisError, OSError):
                    self._disconnect()
            if self._connection is None:
                self._connect_aside()

    def look(self) -> str:
        """Read what has been answered, and tell what is wrong, if anything is."""
        if self._pid == os.getpid() and self._lock.acquire(blocking=False):
            try:
                if self._connection is not None:
                    self._read_answers(self._connection)
            except (RedisError, OSError):
                self._disconnect()
                self._connect_aside()
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
            thread.join(_LAST_WORDS)
        if connection is not None:  # unread answers would make the kernel take back what is on its way
            with suppress(RedisError, OSError):
                self._read_answers(connection, monotonic() + _LAST_WORDS)
            connection.disconnect()

    # ── with the lock held ──

    def _send(self, connection: Connection, words: _Words) -> None:
        if words != self._packed[0]:  # mostly it is what was said before, and packing would cost as much as sending
            said = [part.encode(errors="replace") for word in words for part in word]
            self._packed = words, connection.pack_command(b"XADD", self._bell, b"MAXLEN", b"~", KEPT, b"*", *said)
        connection.send_packed_command(self._packed[1], check_health=False)

    def _read_answers(self, connection: Connection, until: float = 0.0) -> None:
        """Those that are here already, or all, `until` then. Raises what the server said against a ring."""
        while self._unanswered and connection.can_read(max(until - monotonic(), 0)):
            connection.read_response(disable_decoding=True)
            self._unanswered.popleft()
        if self._unanswered and monotonic() - self._unanswered[0][0] > _ANSWER_SECONDS:
            raise RedisTimeout("it has stopped answering")
        if len(self._unanswered) > MOST_UNANSWERED:
            raise RedisTimeout("it does not answer fast enough")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    def _connect_aside(self) -> None:
        """Let the thread say all that is not known to have been said."""
        self._keep(*(words for _, words in self._unanswered))
        self._unanswered.clear()
        if self._thread is None and self._waiting:
            thread = Thread(target=self._run, name="tenure-announce", daemon=True)
            with suppress(RuntimeError):  # no thread can be started: the interpreter ends, or the machine is full
                thread.start()
                self._thread = thread

    def _keep(self, *said: _Words) -> None:
        self._waiting = self._waiting.union(*said)
        if len(self._waiting) > MOST_WAITING:
            self._waiting = {(ANY.kind, ANY.queue)}

    # ── its thread ──

    def _run(self) -> None:
        connection: Connection | None = None
        failures = 0
        while words := self._next(connection):
            try:
                connection = connection or self._server.connect("tenure-announce")
                self._send(connection, words)
                connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                if connection is not None:
                    connection.disconnect()
                    connection = None
                self._failed(words, error)
                failures += 1
                if self._closing.wait(_backoff(failures)):
                    return
            else:
                failures = 0
                if self.problem:
                    _log.info("rings are sent again")
                    self.problem = ""

    def _next(self, connection: Connection | None) -> _Words:
        """What has gathered. Nothing: then `connection` has its turn, and this thread ends."""
        with self._lock:
            words, self._waiting = self._waiting, set()
            if not words:
                self._thread = None
                if connection is not None and self._closing.is_set():
                    connection.disconnect()
                elif connection is not None:
                    _socket(connection).settimeout(0)  # a full buffer fails at once instead of waiting
                    self._connection = connection
            return words

    def _failed(self, words: _Words, error: Exception) -> None:
        told = _told(self._server, error)
        if not self.problem:
            _log.warning("rings can't be sent: %s", told)
        with self._lock:
            self.problem = told
            self._keep(words)


class _Closed(Exception):
    """`close` was called while we waited for an answer."""


def _told(server: Server, error: Exception) -> str:
    if isinstance(error, ReadOnlyError):
        return _REPLICA
    return f"Redis's doorbell is out of reach: polling every second until it answers ({server.told(error)})"


def _backoff(failures: int) -> float:
    return min(0.1 * 2.0 ** min(failures, 10), 5.0) * uniform(0.5, 1)


def _socket(connection: Connection) -> socket.socket:
    found = connection._get_socket()  # redis-py has no other way to wait for two things, or not at all
    if found is None:
        raise RedisTimeout("the connection is closed")
    return found


def _id(said: bytes) -> _Id:
    milliseconds, _, number = said.partition(b"-")
    return int(milliseconds), int(number)


def _rings(entries: Iterable[tuple[bytes, list[bytes]]]) -> list[Ring]:
    rings: list[Ring] = []
    for _, words in entries:
        for kind, queue in zip(words[::2], words[1::2], strict=True):
            if kind in _KINDS:
                with suppress(UnicodeDecodeError):  # else it is not ours
                    rings.append(Ring(_KINDS[kind], queue.decode()))
    return rings
