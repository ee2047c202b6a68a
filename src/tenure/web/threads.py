"""A fixed pool of threads: a store that hangs blocks neither the host app nor requests that need no store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from tenure.errors import StoreAway

T = TypeVar("T")


class ThreadPool:
    """Example: `await ThreadPool("page", threads=16, patience=15.0).run(render, page)`; `patience` is in seconds."""

    def __init__(self, name: str, threads: int, patience: float) -> None:
        self._threads = partial(ThreadPoolExecutor, threads, f"tenure-{name}")
        self._pool = self._threads()
        self._patience = patience

    def close(self) -> None:
        """Let idle threads end, without waiting for them; a later call starts new ones."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._threads()

    async def run(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run a call. Raises StoreAway on a timeout: a queued call is dropped, a running one continues unobserved."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, partial(fn, *args, **options))
        try:
            async with asyncio.timeout(self._patience):  # wait_for() swallows a cancel that arrives with the result
                return await work
        except TimeoutError as error:
            late = f"the store has not answered for {self._patience:.0f}s; an action may still complete: check first"
            raise StoreAway(late) from error
