"""The rings that a listener has received, and a descriptor that is readable while any wait."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock

from tenure.ports import Ring


class Inbox:
    """Safe from every thread, never blocks. Equal rings are merged into one; after `close` rings are ignored.

    A listener's thread puts rings into it; or `drain` reads them from the listener's line itself, see `read_by_drain`.
    """

    def __init__(self) -> None:
        with ExitStack() as made:  # no file may be left, just now
            self._out, self._in = os.pipe()  # not an eventfd: macOS has none
            for each in (self._out, self._in):
                made.callback(os.close, each)
                os.set_blocking(each, False)
            self._fileno = self._out
            self._poll: select.epoll | None = None
            if hasattr(select, "epoll"):  # gevent removes it, and macOS has none
                self._poll = made.enter_context(select.epoll())
                self._fileno = self._poll.fileno()
                self._poll.register(self._out, select.EPOLLIN)
            made.pop_all()
        self._lock = Lock()
        self._rings: dict[Ring, None] = {}
        self._awake = False
        self._closed = False
        self._line: _Line | None = None

    def fileno(self) -> int:
        return self._fileno

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
        line = self._line
        if line is not None:
            line.read_if_free()
        with self._lock:
            if self._awake:
                self._awake = False
                os.read(self._out, 1)
            rings, self._rings = list(self._rings), {}
            return rings

    @contextmanager
    def read_by_drain(
        self, fileno: int, read: Callable[[], Iterable[Ring]], failed: Callable[[], None]
    ) -> Generator[_Line]:
        """In the block, `fileno()` is readable when this line is, and `drain` calls `read`: no thread has to be woken.

        If `read` raises there, `failed` is called, and the line's `read` raises it in the listener's thread.
        """
        with self._lock:
            line = self._line = _Line(self, None if self._closed else self._poll, fileno, read, failed)
        try:
            yield line
        finally:
            self._line = None
            line.leave()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed, self._awake = True, False
                self._rings.clear()
                if self._poll is not None:
                    self._poll.close()
                os.close(self._in)
                os.close(self._out)


class _Line:
    """A descriptor on which rings arrive. One thread at a time reads it."""

    def __init__(
        self,
        inbox: Inbox,
        poll: select.epoll | None,
        fileno: int,
        read: Callable[[], Iterable[Ring]],
        failed: Callable[[], None],
    ) -> None:
        self._inbox, self._poll, self._read, self._failed = inbox, poll, read, failed
        self._pid = os.getpid()
        self._lock = Lock()
        self._error: Exception | None = None
        # A duplicate, which only this object closes: one that a driver has closed can't be unregistered any more, and
        # would be readable for good if a forked child had a copy.
        self._fileno: int | None = None
        if poll is not None:
            with suppress(OSError), ExitStack() as made:  # too many open files, or watches: the thread reads
                copy = os.dup(fileno)
                made.callback(os.close, copy)
                poll.register(copy, select.EPOLLIN)
                made.pop_all()
                self._fileno = copy

    @property
    def by_drain(self) -> bool:
        """False: the listener's thread has to wait for the line, and to call `read`."""
        return self._fileno is not None

    def read(self) -> None:
        """In the listener's thread: read what has arrived. Raises what reading raised, here or in `drain`."""
        with self._lock:
            if self._error is None:
                self._take(self._read())
            else:
                raise self._error

    def read_if_free(self) -> None:
        """In `drain`: the same, unless the listener's thread is reading just now. It raises nothing."""
        if self._pid != os.getpid() or not self._lock.acquire(blocking=False):  # after a fork the line is the parent's
            return
        try:
            if self.by_drain and self._error is None:
                self._take(self._read())
        except Exception as error:
            self._error = error
            self._unregister()
            self._failed()
        finally:
            self._lock.release()

    def _take(self, rings: Iterable[Ring]) -> None:
        if rings := list(rings):
            self._inbox.put(rings)

    def leave(self) -> None:
        with self._lock:
            self._unregister()

    def _unregister(self) -> None:
        if self._poll is not None and self._fileno is not None:
            with suppress(OSError, ValueError):  # the inbox is closed
                self._poll.unregister(self._fileno)
            os.close(self._fileno)
            self._fileno = None
