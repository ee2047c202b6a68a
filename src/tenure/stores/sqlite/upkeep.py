"""Checkpoints, which move the write-ahead log into the file."""

from __future__ import annotations

from contextlib import suppress

import apsw

LARGEST_LOG = 64 << 20  # bytes of write-ahead log that a checkpoint leaves allocated for reuse
ENOUGH_FRAMES, MOST_FRAMES = 1000, 16_000  # of 4 KiB: upkeep checkpoints from the first, a writer from the second
_LARGEST_WRITE = 100  # frames of one new job


def checkpoint(connection: apsw.Connection) -> None:
    """Move the write-ahead log into the file once it is long enough. Blocks no writer."""
    if _unmoved(connection) >= ENOUGH_FRAMES:
        with suppress(apsw.BusyError):  # another process is doing it
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)


def is_due(connection: apsw.Connection) -> bool:
    """May the next commit have to make a checkpoint?"""
    return _unmoved(connection) >= MOST_FRAMES - _LARGEST_WRITE


def _unmoved(connection: apsw.Connection) -> int:
    """Frames of the write-ahead log that no checkpoint has moved into the file."""
    frames, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return frames - moved
