"""Threads of our own, a fixed number: a store that hangs holds up neither a host app nor what needs no store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from tenure.errors import StoreAway

T = TypeVar("T")


class Crew:
    """Example: `await Crew("page", threads=16, patience=15.0).run(render, page)`; `patience` is in seconds."""

    def __init__(self, name: str, threads: int, patience: float) -> None:
        self._threads = partial(ThreadPoolExecutor, threads, f"tenure-{name}")
        self._pool = self._threads()
        self._patience = patience

    def close(self) -> None:
        """Its threads end when they have nothing more to do. Nobody waits for that; others come when needed."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._threads()

    async def run(self, fn: Callable[..., T], *args: Any, **options: Any) -> T:
        """Raises StoreAway when it takes too long: what has not begun is left, what has goes on unheard."""
        work = asyncio.get_running_loop().run_in_executor(self._pool, partial(fn, *args, **options))
        try:
            async with asyncio.timeout(self._patience):  # wait_for() swallows a cancel that comes with the answer
                return await work
        except TimeoutError as error:
            late = f"the store has not answered for {self._patience:.0f}s; an action goes on: look before you ask again"
            raise StoreAway(late) from error
