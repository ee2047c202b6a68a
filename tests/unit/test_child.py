from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tenure.worker.child import Child


class SentMessages:
    """A link that notes what is sent."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.fields: list[dict[str, Any]] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.kinds.append(kind)
        self.fields.append(fields)


def test_a_ring_just_after_another_is_sent_a_little_later_and_not_dropped() -> None:
    link, unused = SentMessages(), cast("Any", None)
    child = Child(cast("Any", link), unused, unused, 1)

    async def ring() -> None:
        for number, rings in ((1, 1), (2, 5)):
            for _ in range(rings):
                child._send_due()
            async with asyncio.timeout(60):
                while len(link.kinds) < number:
                    await asyncio.sleep(0.005)

    asyncio.run(ring())
    assert link.kinds == ["due"] * 2
    assert not child._due_waits


def test_a_drain_that_comes_with_an_order_for_a_stack_is_obeyed_even_if_the_stack_cannot_be_read() -> None:
    link, unused = SentMessages(), cast("Any", None)
    child = Child(cast("Any", link), unused, unused, 1)
    child._worker = cast("Any", SimpleNamespace(running={"1": object()}))
    drain = {"kind": "drain", "grace": 1.0}

    child._obey([{"kind": "stack", "job": "1", "key": "order:a:1"}, drain])

    assert child._orders.get_nowait() == drain
    says = "its stack could not be read (AttributeError); ask again"
    assert link.fields == [{"key": "order:a:1", "says": says, "traces": ()}]
