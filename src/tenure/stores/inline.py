"""A store that keeps every value in its row."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tenure.core.offloaded import is_offloaded
from tenure.errors import NotFetched
from tenure.ports import Text


class Inline:
    """What such a store answers where one with a bucket has something to do."""

    def keep(self, texts: Iterable[Text]) -> None:
        """There is nothing to wait for."""

    def fetch(self, text: Text) -> str:
        """Raises NotFetched for what a process with a bucket has stored."""
        if is_offloaded(text.value):
            raise NotFetched(told(text), "this process has no bucket; give it the setting offload, as the others have")
        return text.value

    def sweep(self, limit: int) -> float:
        return inf


def told(text: Text) -> str:
    """The name of this value, to begin a sentence with."""
    key = f" {text.key!r}" if text.key else ""
    return f"the {'record' if text.place == 'once' else text.place}{key} of job {text.owner}"
