"""Deadlines for every statement: a connection that is silent for too long is closed by its waiting thread.

Silence is counted, not duration: a large batch on a slow line may take long as long as something is sent or received.
The system takes megabytes from us before it has sent them, so while nothing else happens it is asked how many are left.

Keepalives don't help here. A server that hangs, or a pooler or firewall that has lost the route, keeps acknowledging
packets, and libpq waits for an answer without a limit.
"""

from __future__ import annotations

import fcntl
import math
import struct
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.waiting import Ready, Wait

from tenure.ports import Readable
from tenure.stores.postgres.joins import Rows

T = TypeVar("T")


class Silent(psycopg.OperationalError):
    """The server has not answered in time. It may still be at work."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a time limit for answers."""

    _seconds = _answer_by = math.inf
    _strict = False
    _unsent = 0  #: bytes that the other side has not acknowledged, when we last asked
    reached = False  #: a caller has this object, and may use it at any time

    @contextmanager
    def within(self, seconds: float, *, strict: bool = False) -> Generator[None]:
        """In the block, the line is never silent for longer. `strict`: the whole block takes no longer."""
        self._seconds, self._answer_by, self._strict = seconds, time.monotonic() + seconds, strict
        try:
            yield
        finally:
            self._seconds = self._answer_by = math.inf

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """The method in which psycopg waits for every answer."""
        return super().wait(self._in_time(gen), *args, **options)

    def _in_time(self, gen: PQGen[T]) -> PQGen[T]:
        """psycopg resumes this generator ten times a second, whether or not there is something to read."""
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            ready = yield wanted
            if not self._strict and (ready or self._sends()):  # it was received, or accepted for sending, or sent
                self._answer_by = time.monotonic() + self._seconds
            elif time.monotonic() > self._answer_by:
                self.close()
                raise Silent(f"no answer in {self._seconds:g}s")

    def _sends(self) -> bool:
        """Has the other side acknowledged some of what it had not when we last asked?"""
        before = self._unsent
        try:
            (self._unsent,) = struct.unpack("i", fcntl.ioctl(self.pgconn.socket, termios.TIOCOUTQ, bytes(4)))
        except OSError:  # where the system does not tell
            return False
        return self._unsent < before

    def on_loop(
        self, sql: LiteralString, params: Any, seconds: float, *, binary: bool = False
    ) -> Generator[Readable, None, Rows]:
        """The rows of one statement, for a caller on an event loop, which waits for what this yields."""
        cursor = self.cursor()
        waiting = cursor._execute_gen(sql, params, binary=binary)
        try:
            wanted = next(waiting)
            while wanted == Wait.R:
                yield Readable(self.pgconn.socket, seconds)
                wanted = waiting.send(Ready.R)
        except StopIteration:
            return cursor.fetchall()
        except TimeoutError:
            raise Silent(f"no answer in {seconds:g}s") from None
        raise psycopg.OperationalError("the line accepts no more at once")


class GivenCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor for a caller: if the caller takes the connection from it, that connection is marked as `reached`."""

    given = False  #: until then only the driver asks for the connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        if self.given and isinstance(self._conn, Connection):
            self._conn.reached = True
        return self._conn
