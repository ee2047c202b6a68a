"""How the parts of a worker call the store, and whether it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Literal, TypeVar

from tenure.core.lifecycle import Lease
from tenure.core.text import clean
from tenure.errors import BadData, StoreError
from tenure.events import Events, StoreAway, StoreBack
from tenure.ports import Store

T = TypeVar("T")
A = TypeVar("A")
Duty = Literal["claim", "write", "beat"]

RETRY_SECONDS = 1.0
MAX_REFUSAL = 500  # characters kept about a refused write


class StoreAccess:
    """The threads that call the store, and the store's availability: which duties fail, and since when.

    It has threads of its own, so that a handler that fills the loop's default pool can't delay claims or outcomes.
    """

    def __init__(self, store: Store, events: Events) -> None:
        self.store = store
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._claims = ThreadPoolExecutor(1, "tenure-claims")
        self._writes = ThreadPoolExecutor(1, "tenure-writes")
        self._background = ThreadPoolExecutor(1, "tenure-background")  # for writes that no caller waits for
        self._failing: set[Duty] = set()
        self._unavailable_since: float | None = None

    def ask(self, call: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the call in the thread for claims and reads."""
        return self._loop.run_in_executor(self._claims, call, *args)

    def write(self, call: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the call in the thread for outcomes and progress."""
        return self._loop.run_in_executor(self._writes, call, *args)

    def refused(self, lease: Lease, why: str) -> None:
        """Record with the job that a write under this lease was refused. Called from any thread."""
        with suppress(RuntimeError):  # closed meanwhile
            self._background.submit(self._note_refused, lease, clean(why, MAX_REFUSAL))

    def _note_refused(self, lease: Lease, why: str) -> None:
        with suppress(StoreError):  # then the refusal is in the log only
            self.store.refused([(lease, why)])

    def close(self) -> None:
        for pool in (self._claims, self._writes, self._background):
            pool.shutdown(wait=False, cancel_futures=True)

    # ── availability ──

    @property
    def available(self) -> bool:
        return self._unavailable_since is None

    def fails(self, duty: Duty) -> bool:
        return duty in self._failing

    def unavailable(self, duty: Duty, error: StoreError) -> None:
        self._failing.add(duty)
        if self._unavailable_since is None:
            self._unavailable_since = self._loop.time()
            self._events.emit(StoreAway(error=str(error)))

    async def retry_later(self, duty: Duty, error: StoreError) -> None:
        """Record the failure, and return when it is time to retry."""
        self.unavailable(duty, error)
        await asyncio.sleep(RETRY_SECONDS)

    def recovered(self, duty: Duty) -> None:
        """This duty works again. That proves nothing about the others: a full disk can still be read."""
        self._failing.discard(duty)
        if self._unavailable_since is not None and not self._failing:
            self._events.emit(StoreBack(seconds=self._loop.time() - self._unavailable_since))
            self._unavailable_since = None


def halving(write: Callable[[list[T]], list[A]], alone: Callable[[T, BadData], A], items: list[T]) -> list[A]:
    """Write them all. On a data error, halve the batch until the bad item is isolated; `alone` answers for it."""
    if not items:
        return []
    try:
        return write(items)
    except BadData as error:
        if len(items) == 1:
            return [alone(items[0], error)]
    half = len(items) // 2
    return halving(write, alone, items[:half]) + halving(write, alone, items[half:])
