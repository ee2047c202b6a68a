"""Which of the Sentinels to ask, and when: one may be gone, and what another names may be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from time import monotonic
from typing import Any

from redis import exceptions

from tenure.stores.redis.place import Address

EVERY_SECONDS = 1.0  #: while connections are in use
_RIGHT, _WRONG, _SILENT = 0, 1, 2


class Sentinels:
    """The primary, as the Sentinels of a URL name it. Safe from every thread.

    Those whose last answer was right are asked first, then those that were wrong, and last those that did not answer:
    with a dead host in front of the others each call would wait for it.
    """

    def __init__(self, hosts: Sequence[Address], service: str, ask: Callable[[Address], Any]) -> None:
        self._hosts, self._service, self._ask = hosts, service, ask
        self._ranks: dict[Address, int] = {}
        self._due_at = 0.0

    def due(self) -> bool:
        return bool(self._service) and monotonic() > self._due_at

    def primary(self) -> Address:
        """What they name now. They are due again a second after they have answered."""
        self._due_at = inf  # meanwhile the other threads go on
        try:
            return next(self.primaries())
        finally:
            self._due_at = monotonic() + EVERY_SECONDS

    def primaries(self) -> Iterator[Address]:
        """All that they name, each asked for when it is needed: a caller that wants another has found the last wrong.

        One that was restarted with its first configuration, or is cut off, may name a dead primary, or a replica.
        """
        named = set[Address]()
        unknown, silent = "", ""
        for host in sorted(self._hosts, key=lambda each: self._ranks.get(each, _RIGHT)):
            try:
                found = self._ask(host)
            except (exceptions.RedisError, OSError) as error:
                self._ranks[host], silent = _SILENT, str(error)
                continue
            if not found:
                unknown = f"they know no {self._service!r}"
            elif (primary := (str(found[0]), int(found[1]))) not in named:
                named.add(primary)
                self._ranks[host] = _RIGHT
                yield primary
            self._ranks[host] = _WRONG
        if not named:
            raise exceptions.ConnectionError(f"the Sentinels name no primary: {unknown or silent}")
