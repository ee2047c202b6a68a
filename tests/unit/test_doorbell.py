"""Which parts of a worker a ring wakes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from conformance.factories import LEASE, start
from tenure import Tenure
from tenure.core.clock import system_clock
from tenure.events import Events
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Ring
from tenure.stores.memory import MemoryStore
from tenure.worker.slots import Plan
from tenure.worker.worker import Worker


class Rung(PollNotifier):
    """A notifier whose listeners hear these rings, once."""

    def __init__(self, *rings: Ring) -> None:
        super().__init__(1000.0)
        self.rings = list(rings)

    def listen(self) -> Any:
        listener = cast(Any, super().listen())
        listener.drain = lambda: [self.rings.pop() for _ in self.rings[:]]
        return listener


@pytest.mark.parametrize(
    ("ring", "woken"),
    [
        pytest.param(Ring("cancel", "billing"), True, id="of its queue"),
        pytest.param(Ring("cancel", ""), True, id="of any queue"),
        pytest.param(Ring("cancel", "mail"), False, id="of another queue"),
        pytest.param(Ring("queued", "billing"), False, id="of a new job"),
    ],
)
def test_only_a_cancel_in_its_queues_makes_a_worker_read_what_it_owns(ring: Ring, woken: bool) -> None:
    """Every worker hears every cancel, and each read costs the store a look at all that the worker runs."""

    async def heard() -> bool:
        store, jobs = MemoryStore(system_clock()), Tenure("memory:")
        plan = Plan(
            worker_id=start(store),
            runner="worker",
            queues={"billing": None},
            slots=3,
            lease=LEASE,
            poll_interval=1000.0,
            grace=0.0,
        )
        worker = Worker(
            plan,
            jobs.program,
            store,
            Rung(ring),
            Events(),
            resources={},
            on_due=lambda: None,
            on_tick=lambda: None,
            on_stuck=lambda _: None,
            may_declare=lambda: False,
        )
        doorbell = worker._doorbell
        doorbell._read_rings()
        return doorbell._beat.wake.is_set()

    assert asyncio.run(heard()) is woken
