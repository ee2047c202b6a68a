"""A few numbers that a supervisor and its worker share in memory, so that each can read them while the other hangs.

The supervisor extends the two deadlines with every successful renewal. If it stops, or the store is unavailable, they
pass: the worker's watch thread then asks the handlers to stop, and later kills its own process group.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from datetime import datetime, timedelta

from tenure.maintenance.holder import Renewal
from tenure.ports import Store

_ASK, _KILL, _TICK, _FENCED, _QUIET, _AWAY = range(6)
_SIZE = 64


class _Number:
    """A shared number as an attribute."""

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def __get__(self, line: Lifeline, owner: type[Lifeline]) -> float:
        return line._get(self._slot)

    def __set__(self, line: Lifeline, value: float) -> None:
        line._put(self._slot, value)


class Lifeline:
    """Times are boot-clock seconds; 0 means not yet. Once closed, writing does nothing and reading gives 0."""

    ask_at, kill_at = _Number(_ASK), _Number(_KILL)
    tick = _Number(_TICK)  #: when the worker's event loop last ran
    #: Until then neither this worker nor its supervisor declares others dead: they may have been cut off themselves.
    quiet_until = _Number(_QUIET)

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, _SIZE)
        # Writes eight aligned bytes at once: struct.pack_into clears them first, so a reader could see a zero.
        self._numbers = memoryview(self._memory).cast("d")
        self._lock = threading.Lock()
        self._closed = False

    @classmethod
    def create(cls) -> Lifeline:
        """One for a new worker. Raises OSError if there is no space for it."""
        fd = _new_file()
        try:
            # Written, not truncated: a hole gets its page at the first number, and a full disk then ends the process.
            os.write(fd, bytes(_SIZE))
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def renewed(self, renewal: Renewal) -> None:
        """Extend the deadlines after a successful renewal."""
        self._put(_AWAY, renewal.away_at)
        self._put(_ASK, renewal.ask_at)
        self._put(_KILL, renewal.kill_at)

    def well_renewed(self, now: float) -> bool:
        """May this worker declare others dead? Only while its renewals are on time, and have been for a whole lease."""
        return 0.0 < self.quiet_until <= now < self._get(_AWAY)

    @property
    def fenced(self) -> bool:
        """The worker killed itself, or released its jobs, because its lease could not be renewed: no job is charged."""
        return self._get(_FENCED) != 0

    def fence(self) -> None:
        self._put(_FENCED, 1.0)

    def close(self) -> None:
        with self._lock:  # a renewal in flight may succeed after its worker has ended
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


def _new_file() -> int:
    """An empty file without a name: only a process that inherits it can open it."""
    try:
        if hasattr(os, "memfd_create"):
            return os.memfd_create("tenure-lifeline")
    except OSError:  # an old kernel, or a sandbox that forbids it
        pass
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def in_time(store: Store, lease: float) -> datetime:
    """The time limit for a declaration of death that is sent now: if an outage delays it for longer, it is void."""
    return store.now() + timedelta(seconds=lease / 3)
