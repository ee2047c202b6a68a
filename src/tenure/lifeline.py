"""A few numbers that a supervisor and its worker share in memory, so that neither has to be running to be read.

The supervisor moves the two deadlines on with every renewal that has landed. If it stops, or the store is away, they
pass: the worker's watch thread then asks the handlers to stop, and later kills its own process group.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass

_SLOT = struct.Struct("d")
_ASK, _KILL, _TICK, _FENCED = (index * _SLOT.size for index in range(4))
_SIZE = 64

ASK_AFTER = 2 / 3  #: of a lease, counted from when the last renewal that landed was sent
KILL_AFTER = 4 / 5


@dataclass(slots=True)
class Lifeline:
    """Times are boot-clock seconds; 0 means not yet."""

    fd: int
    _memory: mmap.mmap

    @classmethod
    def create(cls) -> Lifeline:
        with tempfile.TemporaryFile() as file:  # unlinked at once: only who inherits it can reach it
            file.truncate(_SIZE)
            return cls.attach(os.dup(file.fileno()))

    @classmethod
    def attach(cls, fd: int) -> Lifeline:
        return cls(fd, mmap.mmap(fd, _SIZE))

    def renewed(self, sent: float, lease: float) -> None:
        """A renewal sent at `sent` has landed."""
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
    def fenced(self) -> bool:
        """The worker killed itself, or let go, because its lease could not be renewed: nobody is charged."""
        return self._get(_FENCED) != 0

    def fence(self) -> None:
        self._put(_FENCED, 1.0)

    def close(self) -> None:
        self._memory.close()
        os.close(self.fd)

    def _get(self, offset: int) -> float:
        return float(_SLOT.unpack_from(self._memory, offset)[0])

    def _put(self, offset: int, value: float) -> None:
        _SLOT.pack_into(self._memory, offset, value)
