"""A few numbers that a supervisor and its worker share in memory, so that neither has to be running to be read.

The supervisor moves the two deadlines on with every renewal that has landed. If it stops, or the store is away, they
pass: the worker's watch thread then asks the handlers to stop, and later kills its own process group.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from datetime import datetime, timedelta

from tenure.ports import Store

_ASK, _KILL, _TICK, _FENCED, _QUIET, _AWAY = range(6)
_SIZE = 64

ASK_AFTER = 2 / 3  #: of a lease, counted from when the last renewal that landed was sent
KILL_AFTER = 4 / 5
AWAY_AFTER = 1 / 2  #: who was not answered for longer declares nobody: the others need the time that is left


class Lifeline:
    """Times are boot-clock seconds; 0 means not yet. Once closed, writing does nothing and reading gives 0."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _SIZE)
        # Eight aligned bytes at once: struct.pack_into clears them first, and a reader would see the zero.
        self._numbers = memoryview(self._memory).cast("d")
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def create(cls) -> Lifeline:
        with tempfile.TemporaryFile() as file:  # unlinked at once: only who inherits it can reach it
            file.truncate(_SIZE)
            return cls(os.dup(file.fileno()))

    def renewed(self, sent: float, lease: float) -> None:
        """A renewal sent at `sent` has landed."""
        self._put(_AWAY, sent + lease * AWAY_AFTER)
        self._put(_ASK, sent + lease * ASK_AFTER)
        self._put(_KILL, sent + lease * KILL_AFTER)

    @property
    def ask_at(self) -> float:
        return self._get(_ASK)

    @property
    def kill_at(self) -> float:
        return self._get(_KILL)

    @property
    def tick(self) -> float:
        """When the worker's event loop last came round."""
        return self._get(_TICK)

    @tick.setter
    def tick(self, now: float) -> None:
        self._put(_TICK, now)

    @property
    def quiet_until(self) -> float:
        """Until then this worker declares nobody dead, as its supervisor does not: they may have been away."""
        return self._get(_QUIET)

    @quiet_until.setter
    def quiet_until(self, at: float) -> None:
        self._put(_QUIET, at)

    def well_renewed(self, now: float) -> bool:
        """May this worker judge others? Only while its own lease is renewed as it should be, and has been for long."""
        return 0.0 < self.quiet_until <= now < self._get(_AWAY)

    @property
    def fenced(self) -> bool:
        """The worker killed itself, or let go, because its lease could not be renewed: nobody is charged."""
        return self._get(_FENCED) != 0

    def fence(self) -> None:
        self._put(_FENCED, 1.0)

    def close(self) -> None:
        with self._lock:  # a renewal that is on its way may land after its worker's end
            if not self._closed:
                self._closed = True
                self._numbers.release()
                self._memory.close()
                os.close(self.fd)

    def _get(self, slot: int) -> float:
        with self._lock:
            return 0.0 if self._closed else self._numbers[slot]

    def _put(self, slot: int, value: float) -> None:
        with self._lock:
            if not self._closed:
                self._numbers[slot] = value


def in_time(store: Store, lease: float) -> datetime:
    """Until when a declaration may be carried out that is sent now: one that an outage holds up is void."""
    return store.now() + timedelta(seconds=lease / 3)
