"""The keys that the code of one attempt uses: its tasks and threads run alongside each other, and it may loop."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Lock

from tenure.errors import InvalidOption


class KeysInUse:
    """The keys of one attempt."""

    def __init__(self) -> None:
        self._under_way, self._lock = set[tuple[str, str]](), Lock()
        self._flows: dict[str, Sequence[object]] = {}

    @contextmanager
    def alone(self, verb: str, key: str, *, word: str = "key") -> Generator[None]:
        """Around a call: only one at a time for each key. Raises InvalidOption."""
        place = verb.removeprefix("a"), key
        with self._lock:
            under_way = place in self._under_way
            self._under_way.add(place)
        if under_way:
            raise InvalidOption(f"job.{verb}({key!r}) is under way already: give each its own {word}")
        try:
            yield
        finally:
            self._under_way.discard(place)

    def made(self, key: str, flow: str, steps: Sequence[object]) -> None:
        """A flow is stored under this key. Raises InvalidOption if another one was: it would be taken for this one."""
        if self._flows.setdefault(flow, steps) != steps:
            raise InvalidOption(
                f"job.flow({key!r}): this attempt has made another flow under this key; give each flow a key of its "
                "own, like f'report:{shop}'"
            )
