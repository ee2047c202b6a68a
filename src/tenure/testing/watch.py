"""Waiting for a job inside `jobs.testing()`, where it runs only while the test drains the queue."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

from tenure.core.lifecycle import ENDED
from tenure.events import current
from tenure.ports import Update
from tenure.tasks.watch import Look, Watch

PATIENCE_SECONDS = 5.0  #: how long a wait without a time limit lasts without a drain
RUNS = "a job of jobs.testing() runs when the test calls queue.drain()"


class TestWatch(Watch):
    """No wait lasts for ever: one that nothing can end is not begun, others end some time after the last drain."""

    __test__ = False  # pytest must not collect it

    def __init__(self, look: Look, draining: Callable[[], bool]) -> None:
        super().__init__(look)
        self._draining = draining
        self._thread = get_ident()

    def wait(self, job_id: str, seen: str = "", *, ended: bool = False, timeout: float | None = None) -> Update:
        """As a Watch does. In a handler, and in the test's own thread, which would have to drain, it does not wait."""
        limit = 0.0 if get_ident() == self._thread or current.get() is not None else _limit(timeout)
        while True:
            drains = self._draining()
            update = super().wait(job_id, seen, ended=ended, timeout=limit)
            if not limit or not self._goes_on(update, seen, timeout, ended=ended, drains=drains):
                return _changed(update, seen)

    async def await_(self, job_id: str, seen: str = "", *, ended: bool = False, timeout: float | None = None) -> Update:
        """The same on an event loop, where something else may drain."""
        limit = 0.0 if current.get() is not None else _limit(timeout)
        while True:
            drains = self._draining()
            update = await super().await_(job_id, seen, ended=ended, timeout=limit)
            if not limit or not self._goes_on(update, seen, timeout, ended=ended, drains=drains):
                return _changed(update, seen)

    def refuse_endless(self, what: str) -> None:
        if get_ident() == self._thread or current.get() is not None:
            raise TimeoutError(f"{what}; {RUNS}")

    def _goes_on(self, update: Update, seen: str, timeout: float | None, *, ended: bool, drains: bool) -> bool:
        """`drains`: when the wait began. A drain that ended in it may have stored the outcome after the look."""
        over = update.status is None or update.status.state in ENDED if ended else update.mark != seen
        return timeout is None and not over and (drains or self._draining())


def _limit(timeout: float | None) -> float:
    return PATIENCE_SECONDS if timeout is None else timeout


def _changed(update: Update, seen: str) -> Update:
    if seen and update.mark == seen and update.status is not None:
        raise TimeoutError(f"{update.status.task} {update.id} is still {update.status.state}; {RUNS}")
    return update
