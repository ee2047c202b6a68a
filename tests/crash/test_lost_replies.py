"""A claim that committed, but got no reply: the beat finds its jobs."""

from __future__ import annotations

import pytest

from . import shop
from .conftest import Tell
from .harness import FULL, Site, boot, overlaps, runs_of, spread

LOST = 100 if FULL else 8
BEAT = 80.0  #: longer than the test waits for any of them: what runs was found by a beat that came at once


@pytest.mark.everyday
@pytest.mark.everywhere
def test_every_job_whose_claim_was_not_heard_runs_once_within_a_beat(site: Site, tell: Tell) -> None:
    site.supervisor(concurrency=4, lease=f"{3 * BEAT:g}s", faults={"drop_replies": LOST})
    jobs = [shop.effect.enqueue(0.02) for _ in range(LOST * 4)]

    views = site.ended(*jobs, seconds=70)

    assert len(site.lines(event="dropped")) == LOST
    assert {(view.state, view.attempt, view.crashes_total) for view in views} == {("completed", 1, 0)}
    runs = runs_of(site.lines())
    assert {len(each) for each in runs.values()} == {1}
    assert overlaps(runs) == []
    since_boot = site.store.now().timestamp() - boot()
    begins = {job: each[0].begin for job, each in runs.items()}
    waits = [begins[view.id] - (view.started_at.timestamp() - since_boot) for view in views if view.started_at]
    tell(f"{LOST} replies lost; from claim to start: {spread(waits)}")
