"""No verb waits for ever: a connection that gets no answer in time is shut down under whoever waits for it.

Keepalives don't help there. A server that hangs, or a pooler or a firewall that has lost the way, goes on
acknowledging packets, and libpq waits for an answer without a limit.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

_LOOK_SECONDS = 0.5
_IDLE_SECONDS = 5.0


class Deadlines:
    """One thread looks after all connections of a store, while any of them is in use and a little longer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._until: dict[psycopg.Connection[Any], float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def within(self, seconds: float, connection: psycopg.Connection[Any]) -> Generator[None]:
        """What is asked through this connection in the block has to be answered in so many seconds."""
        with self._changed:
            self._until[connection] = time.monotonic() + seconds
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._watch, name="tenure-deadlines", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                del self._until[connection]

    def close(self) -> None:
        """End the thread; the next use starts one again."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._closed = False

    def _watch(self) -> None:
        idle_since = time.monotonic()
        with self._changed:
            while not self._closed:
                self._changed.wait(_LOOK_SECONDS)
                now = time.monotonic()
                if self._until:
                    idle_since = now
                elif now - idle_since > _IDLE_SECONDS:
                    break
                for connection, until in self._until.items():
                    if now > until:
                        _shut(connection)
            self._thread = None


def _shut(connection: psycopg.Connection[Any]) -> None:
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)
