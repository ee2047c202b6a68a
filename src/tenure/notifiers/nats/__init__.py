"""Doorbells and permits over NATS: `notifier="nats://…"`, with any store.

    tenure.<namespace>.queue.<token>   JetStream, WorkQueue: one message a job. Its receiver may claim one job.
    tenure.<namespace>.ring            core NATS: a few bytes a ring, received by every listener at once

The queue delivers, the store owns: a lost message costs the wait for a poll, a duplicate costs a query.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakSet

from tenure.notifiers.inbox import Inbox
from tenure.notifiers.nats.address import Names, parse_url
from tenure.notifiers.nats.connection import RETRY_SECONDS
from tenure.notifiers.nats.thread import NatsThread
from tenure.ports import Ring

_notifiers: WeakSet[NatsNotifier] = WeakSet()
_inherited: list[object] = []  #: the parent's connections: closing one here would disturb its sockets


class NatsNotifier:
    """Rings and permits of one namespace. It connects on first use, and starts no thread before."""

    def __init__(self, url: str, namespace: str = "tenure", password: str | None = None) -> None:
        self.address = parse_url(url, password)
        self._namespace = namespace
        self._lock = threading.Lock()
        self._thread: NatsThread | None = None
        self._closed = False
        _notifiers.add(self)

    def announce(self, rings: Iterable[Ring]) -> None:
        posted = list(rings)
        if posted:
            # It is closed; the interpreter is shutting down and starts no more threads; too many files are open.
            with suppress(RuntimeError, OSError):
                self._opened().post(posted)

    def listen(self) -> NatsListener:
        return NatsListener(self._opened())

    def problem(self) -> str:
        return "" if self._closed else self._opened().problem()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self.close)
            thread.close()

    def _opened(self) -> NatsThread:
        with self._lock:
            if self._closed:
                raise RuntimeError("this notifier is closed; open another one")
            if self._thread is None:
                self._thread = NatsThread(self.address, Names(self._namespace))
                atexit.register(self.close)
            return self._thread

    def _forget(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self._thread is not None:
            _inherited.append(self._thread)
            self._thread = None


def _forget_all() -> None:
    for notifier in list(_notifiers):
        notifier._forget()


os.register_at_fork(after_in_child=_forget_all)


class NatsListener:
    """Receives every ring, and hands out the permits that were requested."""

    interval = RETRY_SECONDS

    def __init__(self, thread: NatsThread) -> None:
        self._thread = thread
        self._inbox = Inbox()
        self.permits = thread.attach(self._inbox)

    def fileno(self) -> int:
        return self._inbox.fileno()

    def drain(self) -> list[Ring]:
        return self._inbox.drain()

    def close(self) -> None:
        self._thread.detach(self.permits)
        self._inbox.close()
