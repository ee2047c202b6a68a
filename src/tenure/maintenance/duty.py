"""A background thread that repeats one step, and never ends silently."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from time import monotonic

from tenure.errors import StoreError
from tenure.maintenance.holder import RETRY_SECONDS


class Duty:
    """Calls `step` again and again in a thread of its own.

    `step` returns the seconds until the next call; `wake` shortens them. While the store is unavailable, it is retried
    every second. Any other error ends the thread and is passed to `failed`: a thread that ended silently would leave
    workers without renewals, or jobs without rescue.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        *,
        failed: Callable[[BaseException], None],
        unavailable: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        self._step, self._failed, self._unavailable = step, failed, unavailable
        self._stopped = False
        self._wake = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def wake(self) -> None:
        """Have the step called at once. From any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread, after the current call if there is one."""
        self._stopped = True
        self._wake.set()

    def join(self, until: float = inf) -> None:
        """Return when its thread has ended, or at this time; at once if it was never started."""
        if self.thread.ident is not None:
            join_until(self.thread, until)

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._wake.wait(self._call())
                self._wake.clear()
        except BaseException as error:
            self._failed(error)

    def _call(self) -> float:
        try:
            return self._step()
        except StoreError as error:
            self._unavailable(error)
            return RETRY_SECONDS


def join_until(thread: threading.Thread, until: float) -> None:
    """Return when the thread has ended, or at this time of `monotonic`."""
    thread.join(None if until == inf else max(until - monotonic(), 0.0))
