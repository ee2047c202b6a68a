"""Doorbells between the processes of one machine: a datagram socket for each listener, in the runtime folder.

    RUNTIME/<hash of the database's path>/<pid>-<random>

`announce` sends one small datagram to every socket it finds there. Nothing blocks and nothing is kept: a full
buffer already holds a ring, a socket that refuses belongs to a process that is gone and is removed. In addition each
listener compares SQLite's `data_version` four times a second (3.6 µs each), which also notices processes that use
another runtime folder.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2s
from pathlib import Path
from typing import Literal, cast

import apsw

from tenure.core import forks
from tenure.ports import ANY, Ring

LONGEST_PATH = 107  # bytes, sockaddr_un on Linux
_POLL_SECONDS = 0.25
_FAST_POLL_SECONDS = 0.05
_Kind = Literal["queued", "due", "cancel"]
_KINDS: dict[_Kind, bytes] = {"queued": b"q", "due": b"d", "cancel": b"c"}
_NAMES: dict[bytes, _Kind] = {code: kind for kind, code in _KINDS.items()}


class SqliteNotifier:
    """The doorbell of one database file. If sockets can't be created, listeners poll, and `problem()` says why."""

    def __init__(self, database: str, runtime_dir: str) -> None:
        # Made here and not by the first ring: two threads that ring first would make two, and one is never closed. A
        # forked child may use it too, since each datagram names its receiver.
        self._sender = _datagrams()
        self._deaf = ""  #: why its last listener has no socket
        self._database = os.path.realpath(database)
        self._folder = Path(runtime_dir) / blake2s(self._database.encode(), digest_size=6).hexdigest()
        self._path = str(self._folder)
        self._problem = self._prepare()
        self._seen: tuple[int, list[str]] = (-1, [])

    def _prepare(self) -> str:
        if self._sender is None:
            return "no Unix socket can be made here (not allowed, or too many open files); polling instead"
        longest = len(os.fsencode(self._folder)) + len("/4194304-ffffff")
        if longest > LONGEST_PATH:
            return (
                f"the runtime folder's path is too long for sockets ({longest} bytes, the limit is {LONGEST_PATH}): "
                "set TENURE_RUNTIME_DIR to a shorter one; polling until then"
            )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.stat()
        except OSError as error:
            return f"the runtime folder {self._folder} can't be created ({error.strerror}); polling instead"
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return (
                f"the runtime folder {self._folder} belongs to another user, or others can write to it; polling instead"
            )
        return ""

    def problem(self) -> str:
        return self._problem or self._deaf

    def announce(self, rings: Iterable[Ring]) -> None:
        sender = self._sender
        if self._problem or sender is None:
            return
        rung: set[tuple[_Kind, str]] = {(ring.kind, ring.queue) for ring in rings}
        for kind, queue in rung:
            message = _KINDS[kind] + queue.encode()
            for address in self._listeners():
                _send(sender, message, address)

    def _listeners(self) -> list[str]:
        try:
            changed = os.stat(self._path).st_mtime_ns  # noqa: PTH116 (a Path takes twice as long, for each ring)
            if changed != self._seen[0]:
                self._seen = (changed, [entry.path for entry in os.scandir(self._folder)])
        except OSError:
            return []
        return self._seen[1]

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()

    __del__ = close  # an app that was only read from may be dropped without a word

    def listen(self) -> SqliteListener:
        self._problem = self._prepare()  # again: a cleaner of temporary files may have removed the folder
        listener = SqliteListener(self._database, None if self._problem else self._folder)
        lacks = listener.fileno() is None
        self._deaf = f"no socket can be made in the runtime folder {self._folder}; polling instead" if lacks else ""
        return listener


def _datagrams() -> socket.socket | None:
    """None: no socket can be made. A service may be allowed Internet sockets only, a process have too many files."""
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        return None
    made.setblocking(False)
    return made


def _send(sender: socket.socket, message: bytes, address: str) -> None:
    try:
        sender.sendto(message, address)
    except (ConnectionRefusedError, FileNotFoundError):
        with suppress(OSError):
            Path(address).unlink(missing_ok=True)
    except OSError:
        return  # a full buffer already holds a ring; or the notifier is closed, and it is only a ring


class SqliteListener:
    permits = None

    def __init__(self, database: str, folder: Path | None) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: apsw.Connection | None = None
        forks.refuse_sqlite()
        forks.add(self)
        self._version: int | None = None
        with suppress(apsw.Error):  # as `drain` does: the file may be away for a moment
            self._version = self._data_version()
        self._pid = os.getpid()
        self._socket: socket.socket | None = None
        self._path = Path()
        self.interval = _FAST_POLL_SECONDS
        if folder is not None:
            self._path = folder / f"{os.getpid()}-{secrets.token_hex(3)}"
            self._socket = self._bound()
        if self._socket is not None:
            self.interval = _POLL_SECONDS

    def _bound(self) -> socket.socket | None:
        made = _datagrams()
        if made is None:
            return None
        try:
            made.bind(str(self._path))
        except OSError:
            made.close()
            return None
        return made

    def _data_version(self) -> int:
        with self._lock:
            if self._connection is None:
                self._connection = apsw.Connection(self._database, flags=apsw.SQLITE_OPEN_READWRITE)
            return cast(int, self._connection.pragma("data_version"))

    def fileno(self) -> int | None:
        return None if self._socket is None else self._socket.fileno()

    def drain(self) -> list[Ring]:
        rings: set[Ring] = set()
        while self._socket is not None:
            try:
                message = self._socket.recv(256)
            except OSError:
                break
            kind = _NAMES.get(message[:1])
            if kind is not None:  # anything else is foreign, or from a newer version
                rings.add(Ring(kind, message[1:].decode(errors="replace")))
        if not rings:
            try:
                version = self._data_version()
            except apsw.Error:  # costs no more than time: the listener asks the store
                return [ANY]
            if version != self._version:
                rings.add(ANY)
            self._version = version
        return list(rings)

    def close(self) -> None:
        forks.discard(self)
        if self._socket is not None:
            self._socket.close()
            if os.getpid() == self._pid:
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._version = None  # another connection counts from elsewhere
        if connection is not None:
            connection.close()

    # ── forks: as for the store's own connections ──

    def pause(self, until: float) -> bool:
        if not self._lock.acquire(timeout=max(until - time.monotonic(), 0.0)):
            return False
        if self._connection is not None:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        self._disconnect()
        return True

    def resume(self) -> None:
        self._lock.release()

    def forget(self, *, paused: bool) -> bool:
        if self._connection is not None:
            forks.keep_forever(self._connection)
            self._connection = None
        self._lock = threading.Lock()
        if self._socket is not None:
            self._socket.close()  # what is sent there is for the parent
        return paused
