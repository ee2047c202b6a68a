"""The keys under which an attempt has gathered. A second gather under one key would return the first one's results."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tenure.errors import InvalidOption


class Gathered:
    """The keys of one attempt."""

    def __init__(self) -> None:
        self._keys = set[str]()

    @contextmanager
    def once(self, key: str) -> Generator[None]:
        """Around a gather: the key counts as used once it has returned results. Raises InvalidOption."""
        if key in self._keys:
            raise InvalidOption(
                f"job.gather({key!r}): this attempt has gathered under this key; keep its results, or give each gather "
                "a key of its own, like f'pages:{shop}'"
            )
        yield
        self._keys.add(key)
