"""Instants as whole milliseconds, as SQLite and Redis keep them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def millis_at(when: datetime) -> int:
    """The first whole millisecond that is not before `when`: nothing is due too early."""
    return -((_EPOCH - when) // _MILLISECOND)


def last_millis(when: datetime) -> int:
    """The last whole millisecond that is not after `when`."""
    return (when - _EPOCH) // _MILLISECOND
