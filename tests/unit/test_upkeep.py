"""The duties that only a supervisor has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tenure.core.lifecycle import Lease
from tenure.ports import Hung
from tenure.supervisor.process import HUNG_GRACE_SECONDS
from tenure.supervisor.upkeep import Upkeep


def test_each_attempt_that_hangs_has_its_own_time_to_be_stopped_by_its_worker() -> None:
    """The next attempt of a job has another lease: it must not be killed for the silence of the one before."""
    now, killed = [0.0], list[str]()
    hung: list[Hung] = []
    shared = SimpleNamespace(
        store=SimpleNamespace(hung=lambda _: list(hung)),
        maintenance=None,
        boot=lambda: now[0],
        settings=SimpleNamespace(lease=30.0),
        loop=SimpleNamespace(call=lambda kill: killed.append(kill.args[0].attempt)),
        processes=[],
    )
    upkeep = Upkeep(cast(Any, shared), empty=None, changed=None)
    for attempt, seconds in ((1, 0.0), (2, HUNG_GRACE_SECONDS + 1), (2, 2 * HUNG_GRACE_SECONDS)):
        now[0], hung[:] = seconds, [Hung(Lease("a", attempt, "w"), "task", 5.0)]
        upkeep._find_hung_jobs()
    assert killed == []

    now[0] = 2 * HUNG_GRACE_SECONDS + 2
    upkeep._find_hung_jobs()
    assert killed == [2]
