"""How the parts of a worker call the store, and whether it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from random import uniform
from typing import Literal, TypeVar

from tenure.core.lifecycle import Lease
from tenure.core.text import clean
from tenure.errors import BadData, StoreError
from tenure.events import Events, StoreAway, StoreBack
from tenure.ports import BATCH_BYTES, OnLoop, Store
from tenure.tasks.loops import drive, in_thread

T = TypeVar("T")
A = TypeVar("A")
Duty = Literal["claim", "write", "beat"]

RETRY_SECONDS = 1.0  #: the longest pause before a failed call is made again; the first retry is immediate
MAX_REFUSAL = 500  # characters kept about a refused write


class StoreAccess:
    """The threads that call the store, and the store's availability: which duties fail, and since when.

    It has threads of its own, so that a handler that fills the loop's default pool can't delay claims or outcomes. They
    are started at once: where no thread can be started later, the worker can still store what it runs.
    """

    def __init__(self, store: Store, events: Events) -> None:
        self.store = store
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._claims = ThreadPoolExecutor(1, "tenure-claims")
        self._writes = ThreadPoolExecutor(1, "tenure-writes")
        self._background = ThreadPoolExecutor(1, "tenure-background")  # for writes that no job waits for
        try:
            for pool in self._pools:
                pool.submit(int)
        except RuntimeError:  # no thread can be started now
            self.close()
            raise
        self._failing: dict[Duty, int] = {}  #: how often in a row
        self._answered = asyncio.Event()  #: a duty that had failed has succeeded: the others may, too
        self._asked_at = self._wrote_at = 0.0
        self._unavailable_since: float | None = None

    def ask(self, call: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the call in the thread for claims and reads."""
        self._asked_at = self._loop.time()
        return in_thread(self._loop, self._claims, call, *args, waits=True)

    async def ask_on_loop(self, call: OnLoop[T]) -> T | None:
        """Run a call of the store on this loop. None: not possible now; use `ask`. Once begun, it runs to its end."""
        self._asked_at = self._loop.time()
        answer: asyncio.Future[T | None] = self._loop.create_future()

        def answered(found: T | Exception | None) -> None:
            if answer.done():  # cancelled
                return
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        drive(call, answered)
        return await answer

    def write(self, call: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the call in the thread for outcomes and progress."""
        self._wrote_at = self._loop.time()
        return in_thread(self._loop, self._writes, call, *args, waits=True)

    def beside(self, call: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run the call in the thread for writes that neither claims nor outcomes wait for."""
        return in_thread(self._loop, self._background, call, *args, waits=True)

    def refused(self, lease: Lease, why: str) -> None:
        """Record with the job that a write under this lease was refused. Called from any thread."""
        with suppress(RuntimeError):  # closed meanwhile
            self._background.submit(self._note_refused, lease, clean(why, MAX_REFUSAL))

    def _note_refused(self, lease: Lease, why: str) -> None:
        with suppress(StoreError):  # then the refusal is only in the log
            self.store.refused([(lease, why)])

    @property
    def _pools(self) -> tuple[ThreadPoolExecutor, ...]:
        return self._claims, self._writes, self._background

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)

    # ── availability ──

    @property
    def available(self) -> bool:
        return self._unavailable_since is None

    def fails(self, duty: Duty) -> bool:
        return duty in self._failing

    def unavailable(self, duty: Duty, error: StoreError) -> None:
        self._failing[duty] = self._failing.get(duty, 0) + 1
        if self._unavailable_since is None:
            self._unavailable_since = self._wrote_at if duty == "write" else self._asked_at
            self._events.emit(StoreAway(error=str(error)))

    async def retry_later(self, duty: Duty, error: StoreError) -> None:
        """Record the failure, and return when it is time to retry: at once after the first, then ever later."""
        self.unavailable(duty, error)
        failures = self._failing[duty]
        if failures == 1:
            return
        self._answered.clear()
        with suppress(TimeoutError):
            pause = min(RETRY_SECONDS, RETRY_SECONDS / 16 * 2.0 ** min(failures, 10))
            async with asyncio.timeout(pause * uniform(0.8, 1.2)):
                await self._answered.wait()

    def recovered(self, duty: Duty) -> None:
        """This duty works again. That proves nothing about the others: a full disk can still be read."""
        if self._unavailable_since is None:
            return
        if self._failing.pop(duty, 0):
            self._answered.set()
        if not self._failing:
            self._events.emit(StoreBack(seconds=self._loop.time() - self._unavailable_since))
            self._unavailable_since = None


class Portion:
    """How many items the next call is given: half as many after one that failed, for it may have been too large."""

    def __init__(self, most: int) -> None:
        self.most = self._full = most

    def failed(self, number: int) -> None:
        self.most = max(1, min(number, self.most) // 2)

    def landed(self) -> None:
        if self.most < self._full:
            self.most = min(self.most * 2, self._full)

    def of(self, items: Sequence[T], size: Callable[[T], int]) -> Sequence[T]:
        """The first items: `most` of them, or as many as have `BATCH_BYTES`, but at least one."""
        total = 0
        for n, item in enumerate(islice(items, self.most)):
            total += size(item)
            if total > BATCH_BYTES:
                return items[: max(n, 1)]
        return items[: self.most]


def halving(write: Callable[[Sequence[T]], list[A]], alone: Callable[[T, BadData], A], items: Sequence[T]) -> list[A]:
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
