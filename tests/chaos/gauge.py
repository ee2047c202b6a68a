"""`python -m chaos.gauge URL FOLDER`: what the machine and the store are like by themselves, once a second.

The machine: how much too long a sleep of 10 ms takes, and how much longer a computation takes than the processor time
it is given. The store: how long a write takes that has nothing to do with Tenure: on the same server but on none of the
lines, or to another file on the same disk. A write that fails is not recorded.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import redis

from .history import pen

NAP, PAUSE = 0.01, 0.05
WORK = 20_000  #: steps of a computation: a millisecond or so, ten times a second


class Worst:
    """The greatest value since it was last asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._most = 0.0

    def add(self, value: float) -> None:
        with self._lock:
            self._most = max(self._most, value)

    def take(self) -> float:
        with self._lock:
            most, self._most = self._most, 0.0
            return most


def writes(url: str, folder: Path) -> Callable[[], object]:
    """An unrelated write, on a connection that is reopened when it was lost."""
    if url.startswith("postgres"):
        return _Postgres(url)
    if url.startswith("redis"):
        client = redis.Redis.from_url(url, socket_timeout=30)
        return lambda: client.set("chaos-gauge", "1")
    return _Sqlite(folder / "gauge.db")


class _Postgres:
    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection | None = None

    def __call__(self) -> None:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._url, autocommit=True, connect_timeout=5)
                self._connection.execute("CREATE TABLE IF NOT EXISTS public.chaos_gauge (at timestamptz)")
                self._connection.execute("INSERT INTO public.chaos_gauge VALUES (now())")
            self._connection.execute("UPDATE public.chaos_gauge SET at = now()")
        except psycopg.Error:
            self._connection = None
            raise


class _Sqlite:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        with suppress(sqlite3.Error):
            self._connection.execute("CREATE TABLE IF NOT EXISTS gauge (n integer)")

    def __call__(self) -> None:
        self._connection.execute("DELETE FROM gauge")
        self._connection.execute("INSERT INTO gauge VALUES (1)")


def watch(write: Callable[[], object], worst: Worst) -> None:
    while True:
        began = time.monotonic()
        with suppress(psycopg.Error, redis.RedisError, sqlite3.Error, OSError):
            write()
            worst.add(time.monotonic() - began)
        time.sleep(PAUSE)


def slowness() -> float:
    """The wall time of a computation, as a multiple of its processor time."""
    wall, mine = time.monotonic(), time.thread_time()
    sum(range(WORK))
    return (time.monotonic() - wall) / max(time.thread_time() - mine, 1e-6)


def main(url: str, folder: str) -> None:
    late, store, slow = Worst(), Worst(), list[float]()
    threading.Thread(target=watch, args=(writes(url, Path(folder)), store), daemon=True).start()
    told = time.monotonic()
    while True:
        began = time.monotonic()
        time.sleep(NAP)
        now = time.monotonic()
        late.add(now - began - NAP)
        if now - told >= (len(slow) + 1) / 10:
            slow.append(slowness())
        if now - told >= 1.0:
            told = now
            load = os.getloadavg()[0]
            times = sum(slow) / len(slow)
            pen().note("gauge", late=late.take(), store=store.take(), slow=times, load=load, unix=time.time())
            slow.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
