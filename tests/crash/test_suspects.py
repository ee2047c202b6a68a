"""Kill -9 of a worker with many jobs: they run again in groups, and only those that crash alone are dead."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tenure.core.lifecycle import narrowed
from tenure.tasks.handle import JobHandle

from . import shop
from .conftest import Tell
from .harness import FULL, Site, alive, boot, send

pytestmark = [pytest.mark.everywhere, pytest.mark.thorough, pytest.mark.timeout(1200)]

MANY = 500 if FULL else 100
TIMES = 25.0  #: how much longer than undisturbed they may take; two at a time, they took 250 times as long


def all_begin(site: Site, jobs: Sequence[JobHandle[Any]]) -> int:
    """Wait until all have begun: the process that runs them."""
    names = {str(job.id) for job in jobs}
    site.until(lambda: names <= {line.job for line in site.lines(event="begin")}, "all jobs to begin", 120.0)
    return site.lines(jobs[0], "begin")[0].pid


def together(site: Site, jobs: Sequence[JobHandle[Any]]) -> int:
    """How many second attempts one process had begun, at most, when the first of them ended."""
    names, open_in, most = {str(job.id) for job in jobs}, Counter[int](), 0
    for line in sorted(site.lines(attempt=2)):
        if line.job in names:
            open_in[line.pid] += {"begin": 1, "end": -1}[line.event]
            most = max(most, open_in[line.pid])
    return most


def test_the_jobs_of_a_killed_worker_run_again_in_groups(site: Site, tell: Tell) -> None:
    site.supervisor(concurrency=MANY)
    jobs = [shop.effect.enqueue(1.0) for _ in range(MANY)]
    all_begin(site, jobs)
    began = boot()
    site.ended(*jobs, seconds=300.0)
    undisturbed = boot() - began

    jobs = [shop.effect_once_told.enqueue("killed", 1.0) for _ in range(MANY)]
    victim = all_begin(site, jobs)
    send(victim, signal.SIGKILL)
    killed = boot()
    site.until(lambda: not alive(victim), "it to be dead")
    site.go("killed")
    views = site.ended(*jobs, seconds=900.0)
    took = boot() - killed

    assert {(view.state, view.attempt, view.crashes_total) for view in views} == {("completed", 2, 1)}
    assert 1 < together(site, jobs) <= narrowed(MANY)
    if FULL:
        assert took < TIMES * undisturbed
    tell(f"{MANY} jobs of 1 s on one worker: {undisturbed:.1f} s, and {took:.1f} s after its kill -9")


def test_the_guilty_are_found_among_many_and_nobody_else_is_dead(site: Site, tell: Tell) -> None:
    site.supervisor(concurrency=MANY)
    innocent = [shop.report.enqueue() for _ in range(MANY - 3)]
    guilty = [shop.abort.enqueue() for _ in range(3)]

    began = boot()
    dead = site.ended(*guilty, seconds=900.0)
    ended = site.ended(*innocent, seconds=300.0)

    assert [(view.state, view.crashes, view.together) for view in dead] == [("dead", 4, 1)] * 3
    assert {view.state for view in ended} == {"completed"}
    tell(f"3 of {MANY} kill their process: all is over after {boot() - began:.1f} s")
