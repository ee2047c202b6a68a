"""Django's database connections around each attempt, as Django treats them around each request.

Connections belong to threads. A `def` handler uses those of its own thread; an async handler reaches the database
through `sync_to_async`, in the one thread that asgiref keeps for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from threading import Lock, current_thread, local
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import Error as DatabaseError
from django.db import close_old_connections, connections

from tenure.core.logs import logger
from tenure.tasks.job import Job
from tenure.tasks.loops import aside

_log = logger("tenure.worker")
CLOSE_SECONDS = 5.0  #: how long the end of a worker waits for the thread of async handlers
_using = local()  #: `count`: how many attempts this thread's connections are for; async ones share a thread
_lent: list[Any] = []  #: the connections of a test, which its handlers use too: their rows are not committed


def fresh_connections(job: Job[Any]) -> Iterator[None]:
    """No attempt meets a connection that an earlier one left broken, or that the server has closed since."""
    run, mine = _thread_of_connections(), tuple(_lent)  # its end may come to that thread when the test is over
    run(partial(_before, mine))
    try:
        yield
    finally:
        run(partial(_after, mine))


def _thread_of_connections() -> Callable[[Callable[[], None]], object]:
    if not _on_loop():
        return lambda step: step()
    # The call is not awaited: that thread runs one call after another, and the handler's queries come later.
    return SyncToAsync.single_thread_executor.submit


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class KeptConnections:
    """The connections that threads keep between attempts, as `CONN_MAX_AGE` says. The resource of a worker.

    They are closed when a worker has ended: its threads are gone, and in a test their connections would keep its
    database from being dropped.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[Any, bool] = {}  #: True: kept by the thread of async handlers, which others use too

    def keep(self) -> None:
        """The attempt in this thread has ended."""
        shared = current_thread() in SyncToAsync.single_thread_executor._threads
        with self._lock:
            self._kept.update(dict.fromkeys(connections.all(initialized_only=True), shared))

    def take(self) -> None:
        """An attempt begins in this thread."""
        with self._lock:
            for connection in connections.all(initialized_only=True):
                self._kept.pop(connection, None)

    def close(self) -> None:
        """Close them all; those of the thread of async handlers in that thread, once it gets to it."""
        with self._lock:
            found, self._kept = self._kept, {}
            for connection in (each for each, shared in found.items() if not shared):
                connection.inc_thread_sharing()
                _closed(connection)
                connection.dec_thread_sharing()
        theirs = [SyncToAsync.single_thread_executor.submit(_closed, each) for each, shared in found.items() if shared]
        wait(theirs, CLOSE_SECONDS)


_kept = KeptConnections()


async def kept_connections() -> AsyncIterator[KeptConnections]:
    """Close the connections of a worker's threads when it ends."""
    yield _kept
    await aside(_kept.close)


def _closed(connection: Any) -> None:
    try:
        if not connection.in_atomic_block:
            connection.close()
    except DatabaseError:
        _log.warning("a database connection could not be closed", exc_info=True)


def _before(mine: Sequence[Any]) -> None:
    if mine:
        for connection in mine:
            connections[connection.alias] = connection
        return
    others = getattr(_using, "count", 0)
    if others:
        _close_broken()
    else:
        _kept.take()
        _close_old()
        for connection in connections.all(initialized_only=True):
            # Checked by the first query of this attempt, if there is one: it may have been closed while nothing ran.
            connection.health_check_enabled = True
    _using.count = others + 1


def _after(mine: Sequence[Any]) -> None:
    if mine:
        for connection in mine:
            del connections[connection.alias]
        return
    _using.count -= 1
    if _using.count:
        return
    _close_old()
    _kept.keep()


def _close_broken() -> None:
    """Others use these connections: close one only if it failed and is of no use, and never because of its age."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block or not connection.errors_occurred:
            continue
        if connection.is_usable():
            connection.errors_occurred = False
        else:
            _closed(connection)


def _close_old() -> None:
    try:
        close_old_connections()
    except DatabaseError:  # the work is done: what remains of a broken connection must not fail the attempt
        _log.warning("a database connection could not be closed", exc_info=True)


@contextmanager
def lent() -> Generator[None]:
    """Let the handlers of this block use this thread's connections, on which a test has opened a transaction.

    An async test's are those of another thread, which can't be reached from here: its handlers use their own.
    """
    mine = [] if _on_loop() else connections.all()
    for connection in mine:
        connection.inc_thread_sharing()
    before = list(_lent)
    _lent[:] = mine
    try:
        yield
    finally:
        _lent[:] = before
        for connection in mine:
            connection.dec_thread_sharing()
