"""The rings that a background thread has received for a listener, and a descriptor that is readable while any wait."""

from __future__ import annotations

import os
from collections.abc import Iterable
from threading import Lock

from tenure.ports import Ring


class Inbox:
    """Safe from every thread, never blocks. Equal rings are merged into one; after `close` rings are ignored."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()  # not an eventfd: macOS has none
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._lock = Lock()
        self._rings: dict[Ring, None] = {}
        self._awake = False
        self._closed = False

    def fileno(self) -> int:
        return self._out

    def put(self, rings: Iterable[Ring]) -> None:
        """Keep these for the next `drain`. An empty iterable only makes `fileno` readable."""
        with self._lock:
            if self._closed:
                return
            for ring in rings:
                self._rings[Ring(ring.kind, ring.queue)] = None
            if not self._awake:
                self._awake = True
                os.write(self._in, b"\0")

    def drain(self) -> list[Ring]:
        """All rings since the last call, in order."""
        with self._lock:
            if self._awake:
                self._awake = False
                os.read(self._out, 1)
            rings, self._rings = list(self._rings), {}
            return rings

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed, self._awake = True, False
                self._rings.clear()
                os.close(self._in)
                os.close(self._out)
