"""The duties that only a supervisor has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

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


STALE = 60.0


class Hangs:
    """A supervisor with one worker, whose only job reported last at time 0. `lease`: looks come every sixth of it."""

    def __init__(self, lease: float = 30.0) -> None:
        self.now, self.period, self.verdicts = 0.0, lease / 6, list[str]()
        self.lease = Lease("a", 1, "w")
        self.calls: list[Any] = []
        self.worker = SimpleNamespace(
            id="w",
            ready=True,
            stopped_since=None,
            verdicts={},
            blame=lambda job_id, *_: {job_id: "guilty"},
            kill=self.verdicts.append,
        )
        shared = SimpleNamespace(
            store=SimpleNamespace(
                hung=lambda _: [Hung(self.lease, "task", self.now)] if self.now > STALE else [],
                get=lambda _: SimpleNamespace(stale_after=STALE),
            ),
            maintenance=None,
            boot=lambda: self.now,
            settings=SimpleNamespace(lease=lease),
            loop=SimpleNamespace(call=self.calls.append),
            processes=[self.worker],
        )
        self.upkeep = Upkeep(cast(Any, shared), empty=None, changed=None)

    def killed_until(self, ends: float) -> bool:
        """Time passes, with looks as late as the roster makes them. Was the worker killed by then?"""
        while self.now < ends:
            self.now = min(self.now + 1.2 * self.period, ends)
            self.look()
        return bool(self.verdicts)

    def look(self) -> None:
        self.upkeep._find_hung_jobs()
        while self.calls:
            self.calls.pop(0)()


@pytest.mark.parametrize("lease", [30.0, 240.0, 600.0, 3600.0])
def test_a_worker_with_a_hung_job_is_killed(lease: float) -> None:
    hangs = Hangs(lease)
    assert not hangs.killed_until(STALE + HUNG_GRACE_SECONDS)
    assert hangs.killed_until(STALE + HUNG_GRACE_SECONDS + 3 * hangs.period)
    assert hangs.worker.verdicts == {"a": "guilty"}


def test_no_job_is_said_to_hang_for_the_time_in_which_its_worker_was_stopped() -> None:
    hangs = Hangs()
    assert not hangs.killed_until(30.0)
    hangs.worker.stopped_since = 30.0
    assert not hangs.killed_until(300.0)
    hangs.worker.stopped_since = None
    assert not hangs.killed_until(330.0 + HUNG_GRACE_SECONDS)
    assert hangs.killed_until(330.0 + HUNG_GRACE_SECONDS + 20.0), "the time is added, and does not begin again"


def test_a_worker_that_was_stopped_since_it_was_judged_is_not_killed_for_a_hung_job() -> None:
    hangs = Hangs()
    hangs.upkeep._kill_hung(hangs.lease, STALE)
    assert hangs.verdicts
    hangs.verdicts.clear()
    hangs.worker.stopped_since = 1.0
    hangs.upkeep._kill_hung(hangs.lease, STALE)
    assert not hangs.verdicts


def test_no_job_is_said_to_hang_for_the_time_in_which_its_machine_slept() -> None:
    hangs = Hangs()
    assert not hangs.killed_until(30.0)
    hangs.now += 3600.0
    hangs.look()
    assert not hangs.killed_until(3660.0 + HUNG_GRACE_SECONDS - 10.0)
    assert hangs.killed_until(3660.0 + HUNG_GRACE_SECONDS + 20.0), "the time is added, and does not begin again"
