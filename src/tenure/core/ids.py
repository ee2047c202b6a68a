"""Job ids: UUIDv7 text that rises within a process, so that jobs of one millisecond keep their enqueue order."""

from __future__ import annotations

import os
import time
from random import Random
from threading import Lock
from uuid import UUID

from tenure.errors import InvalidOption

_lock = Lock()
_random = Random()
_last = 0  #: milliseconds << 12 | counter


def new_id() -> str:
    """A new UUIDv7 (RFC 9562, method 1): 48 bits of milliseconds, a 12-bit counter, 62 random bits.

    More than 4,096 ids in a millisecond borrow from the next one.
    """
    global _last
    with _lock:
        stamp = time.time_ns() // 1_000_000 << 12
        if stamp <= _last:
            stamp = _last + 1
        _last = stamp
        bits = _random.getrandbits(62)
    parts = stamp >> 28, stamp >> 12 & 0xFFFF, stamp & 0xFFF, bits >> 48 | 0x8000, bits & 0xFFFF_FFFF_FFFF
    return "%08x-%04x-7%03x-%x-%012x" % parts  # noqa: UP031 (an f-string takes a third longer)


def canonical(value: UUID | str) -> str:
    """A job's id as the store writes it. Raises InvalidOption if it is not a UUID."""
    try:
        return str(value if isinstance(value, UUID) else UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(f"id: expected a job's id, a UUID, got {value!r}") from None


def _after_fork() -> None:
    # Another thread of the parent may have held the lock, and two children must not draw the same random bits.
    global _lock, _random
    _lock, _random = Lock(), Random()


os.register_at_fork(after_in_child=_after_fork)
