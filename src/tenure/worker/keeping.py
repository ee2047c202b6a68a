"""Brings large results and checkpoints into the bucket before they are stored, while other jobs go on.

Such an outcome has left its slot and joins a flush when the bucket has its value: no other outcome waits for it. A
bucket that is away is tried again until it answers. If the values take too much memory, nothing more is claimed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

from tenure.core.lifecycle import Completed
from tenure.errors import StoreAway
from tenure.ports import Text
from tenure.worker.access import StoreAccess
from tenure.worker.slots import End
from tenure.worker.tally import Tally

AGAIN_SECONDS = 1.0


class Keeping:
    """The tasks that wait for the bucket. `run` has to be running."""

    def __init__(self, access: StoreAccess, tally: Tally) -> None:
        self._access, self._tally = access, tally
        self._inline = access.store.capabilities.inline
        self.has_bucket = self._inline < sys.maxsize
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            await asyncio.get_running_loop().create_future()  # until it is cancelled, and the group's tasks with it

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None, "it is running"
        return self._group.create_task(work)

    def is_large(self, text: str | None) -> bool:
        """May it be too large for its row?"""
        return text is not None and len(text) >= self._inline

    def result_of(self, end: End) -> Sequence[Text]:
        """Its result, if that is large."""
        if isinstance(end.outcome, Completed) and self.is_large(end.outcome.result):
            return [Text("result", end.claimed.id, "", end.outcome.result)]
        return []

    async def kept(self, texts: Sequence[Text]) -> None:
        """Return when the bucket has those of these texts that are too large for a row."""
        keep: Callable[..., Any] = self._access.store.keep
        began, waited = monotonic(), False
        while texts:
            try:
                keeping = await self._access.beside(keep, texts)
                if keeping is None:
                    break
                waited = True
                await asyncio.shield(asyncio.wrap_future(keeping))
            except StoreAway:  # the bucket, or the server that has the codec's keys
                await asyncio.sleep(AGAIN_SECONDS)
        if waited:
            self._tally.time("store", "offload", monotonic() - began)
