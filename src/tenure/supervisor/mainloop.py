"""The event loop of a supervisor's main thread: readable files, signals, and calls scheduled by other threads."""

from __future__ import annotations

import os
import queue
import selectors
import signal
from collections.abc import Callable
from types import FrameType

from tenure.worker.link import Link


class MainLoop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain_wakes)

    def on_stop_signal(self, stop: Callable[[], None]) -> None:
        """Call `stop` at each SIGTERM, SIGINT and SIGHUP; one that `nohup` had ignored stays so.

        From the main thread only.
        """

        def by_signal(number: int, frame: FrameType | None) -> None:
            stop()

        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, by_signal)

    def watch(self, file: int | Link, readable: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, readable)

    def forget(self, file: int | Link) -> None:
        self._selector.unregister(file)

    def call(self, function: Callable[[], None]) -> None:
        """Schedule a call in the main thread. From any thread."""
        self._calls.put(function)
        try:
            os.write(self._wake_out, b"\0")
        except BlockingIOError:
            return  # it is awake already

    def turn(self, timeout: float) -> None:
        """Wait for an event, and run its handlers and the scheduled calls."""
        for key, _ in self._selector.select(timeout):
            key.data()
        while not self._calls.empty():
            self._calls.get()()

    def _drain_wakes(self) -> None:
        try:
            while os.read(self._wake_in, 4096):
                pass
        except BlockingIOError:
            return
