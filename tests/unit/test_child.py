from __future__ import annotations

import asyncio
from typing import Any, cast

from tenure.worker.child import Child


class SentMessages:
    """A link that notes what is sent."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def send(self, kind: str, **_: Any) -> None:
        self.kinds.append(kind)


def test_a_ring_just_after_another_is_sent_a_little_later_and_not_dropped() -> None:
    link, unused = SentMessages(), cast("Any", None)
    child = Child(cast("Any", link), unused, unused, 1)

    async def ring() -> list[int]:
        counts: list[int] = []
        for rings in (1, 5):
            for _ in range(rings):
                child._send_due()
            await asyncio.sleep(0.05)
            counts.append(len(link.kinds))
        await asyncio.sleep(0.5)
        return [*counts, len(link.kinds)]

    first, _, last = asyncio.run(ring())
    assert (first, last) == (1, 2)
