"""No verb waits for ever: a connection that gets no answer in time is closed by whoever waits for it.

Keepalives don't help there. A server that hangs, or a pooler or a firewall that has lost the way, goes on
acknowledging packets, and libpq waits for an answer without a limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

T = TypeVar("T")


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One that can be given a time to answer in."""

    _seconds = _answer_by = math.inf

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """What is asked in the block has to be answered in so many seconds."""
        self._seconds, self._answer_by = seconds, time.monotonic() + seconds
        try:
            yield
        finally:
            self._seconds = self._answer_by = math.inf

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Where psycopg waits, however it was asked."""
        return super().wait(self._in_time(gen), *args, **options)

    def _in_time(self, gen: PQGen[T]) -> PQGen[T]:
        """It is gone on with ten times a second, whether there is something to read or not."""
        ready: Any = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            ready = yield wanted
            if time.monotonic() > self._answer_by:
                self.close()
                raise psycopg.OperationalError(f"no answer in {self._seconds:g}s")
