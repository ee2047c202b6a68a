"""The event loop of the program around an embedded worker, on which its `async` handlers run.

The program's engine, client and session belong to that loop, so the handlers do too. The worker's own parts (claims,
beats, flushes) keep a loop in a thread of their own: whatever blocks, stops or closes the program's loop, the worker
sees it and hands its jobs back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tenure.tasks.loops import settled
from tenure.worker.forked import LoopGuard

SETTLE_SECONDS = 5.0  #: how long a cancelled block waits for running code to stop and for the store
LOOK_SECONDS = 0.25
BLOCKED_SECONDS = 1.0  #: a loop that has not answered for this long is given no new jobs


class CallersLoop:
    """The caller's running loop, watched from the worker's loop."""

    def __init__(self, boot: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = LoopGuard(self._loop, handlers=True)
        self._boot = boot
        self._asked = False
        self._left = asyncio.Event()
        self._sentinel = self._loop.create_task(self._wait_for_the_end(), name="tenure worker")
        self.seen_at = boot()  #: when it last ran a callback, by the boot clock
        self.over = asyncio.Event()  #: set on the caller's loop once the worker has ended
        self.on_end: Callable[[], None] = lambda: None  #: called once if the loop ends before the block does

    def call(self, call: Callable[..., object], *args: object) -> bool:
        """Run the call on the loop, from any thread. False: the loop is closed, so the call never runs."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            return False
        return True

    @property
    def closed(self) -> bool:
        """No code on it runs any more."""
        return self._loop.is_closed()

    @property
    def ending(self) -> bool:
        """Are all of its tasks being cancelled, as `asyncio.run` does before it closes the loop? Or is it closed?"""
        return not self._left.is_set() and (self._sentinel.cancelling() > 0 or self._sentinel.done() or self.closed)

    @property
    def silent(self) -> float:
        """Seconds for which it has not answered."""
        return max(self._boot() - self.seen_at - LOOK_SECONDS, 0.0)

    # ── on the worker's loop ──

    async def watch(self) -> None:
        """Check four times a second that the loop still runs, until it is closed."""
        while not self.closed:
            if not self._asked:
                self._asked = True
                self.call(self._answer)
            await asyncio.sleep(LOOK_SECONDS)
        self.on_end()

    def _answer(self) -> None:
        self._asked = False
        self.seen_at = self._boot()

    # ── on the caller's loop ──

    async def _wait_for_the_end(self) -> None:
        """If the loop ends before the block does, delay that until the jobs have been handed back."""
        try:
            await self._left.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # the task of the block is cancelled as well, and leaves it
            self.on_end()
            await shielded(self.over, hurried=True)
            raise

    def leave(self) -> None:
        """The block is left: the loop may end."""
        self._left.set()


async def shielded(event: asyncio.Event, *, hurried: bool, hurry: Callable[[], None] = lambda: None) -> bool:
    """Wait until the event is set, however often this task is cancelled. True if it was cancelled.

    `hurry` is called at the first cancellation. From then on the wait ends after `SETTLE_SECONDS`, and so it does from
    the start if `hurried`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_SECONDS if hurried else None
    cancelled = False
    waiting = loop.create_task(event.wait())
    while not waiting.done() and (deadline is None or loop.time() < deadline):
        try:
            await asyncio.wait([waiting], timeout=None if deadline is None else deadline - loop.time())
        except asyncio.CancelledError:
            if not cancelled:
                cancelled = True
                hurry()
                deadline = deadline or loop.time() + SETTLE_SECONDS
    waiting.cancel()
    return cancelled


async def in_thread(call: Callable[[], None]) -> None:
    """Run the call in a thread of its own: the loop's pool belongs to the program, and may be full."""
    with ThreadPoolExecutor(1, "tenure-open") as thread:
        await settled(call, thread)
