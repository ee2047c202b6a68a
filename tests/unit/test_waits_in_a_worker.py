"""Flows, gathering and signals in a worker on a real store: all that waits goes on by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tenure import Ended, Fail, Job, JobHandle, Tenure, outputs
from tenure.core.lifecycle import ENDED, State
from tenure.tasks import waits
from waiting import until


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Tenure]:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db")
    with jobs:
        yield jobs


def test_a_flow_of_several_hundred_steps_ends(jobs: Tenure) -> None:
    @jobs.task
    def page(number: int) -> int:
        if number == 13:
            raise Fail("no page 13", final=True)
        return number

    @jobs.task
    def combine(pages: Iterable[int], first: int) -> list[int]:
        return [first, *pages]

    @jobs.task
    async def clean(end: Ended[int], numbers: list[int]) -> str:
        return f"{end.state}: {end.error}, {sum(numbers)}"

    with jobs.worker(concurrency=8):
        with jobs.flow("nightly", unique="nightly:7") as flow:
            pages = [flow.add(page.bind(n)) for n in range(300) if n != 13]
            unlucky = flow.add(page.bind(13))
            numbers = flow.add(combine.bind(outputs(pages), pages[7].output))
            last = flow.add(clean.bind(unlucky.ended, numbers.output), after=[pages[0]])

        assert last.handle.result("60s") == f"dead: no page 13, {sum(range(300)) - 13 + 7}"
        assert numbers.handle.result("0s") == [7, *(n for n in range(300) if n != 13)]
        assert [each.progress for each in flow.handle.updates()][-1] == 1.0
        assert (flow.handle.status().total, flow.handle.status().live) == (302, 0)


def test_a_gatherer_and_its_signal_in_few_slots(jobs: Tenure) -> None:
    @jobs.task
    def double(n: int) -> int:
        return n * 2

    @jobs.task(signals={"go": int})
    async def total(job: Job, count: int) -> int:
        doubles = await job.agather("doubles", lambda: [double.bind(n) for n in range(count)])
        factor = await job.aexpect("go", int, timeout="1h")
        async with job.flow("last") as flow:
            step = flow.add(double.bind(factor))
        return sum(doubles) * (await job.ajoin(step)).value

    with jobs.worker(concurrency=1):
        handles = [total.enqueue(n) for n in range(1, 6)]  # more of them than slots: none holds one while it waits
        first = handles[0]
        until(lambda: jobs.client().store.get(str(first.id)).wait_for == "own:go", "the first one asks")  # type: ignore[union-attr]
        for factor, handle in enumerate(handles):
            assert handle.signal("go", factor)

        assert [each.result("60s") for each in handles] == [n * (n - 1) * 2 * (n - 1) for n in range(1, 6)]
        assert {(each.status().failures, each.status().attempt >= 3) for each in handles} == {(0, True)}


@pytest.mark.parametrize("verbs", [("join", "join"), ("join", "gather"), ("gather", "join")])
def test_of_two_jobs_that_begin_to_wait_for_each_other_at_one_moment_one_is_refused(
    jobs: Tenure, verbs: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look for a circle at one moment, before either has given its slot back: else both would wait for good."""
    both, handles, look = threading.Barrier(2), dict[int, JobHandle[str]](), waits.circle
    met = threading.Event()

    def look_together(*asked: Any) -> list[str]:
        with suppress(threading.BrokenBarrierError):
            both.wait(5.0 if met.is_set() else 30.0)  # it is broken when a job that was refused looks again, alone
        met.set()
        return look(*asked)

    monkeypatch.setattr(waits, "circle", look_together)

    @jobs.task(retry=1)
    def meets(job: Job, number: int) -> str:
        until(lambda: len(handles) == 2, "both are enqueued")
        other = handles[1 - number]
        if verbs[number] == "join":
            return job.join(other).state
        return str(job.gather("it", lambda: [meets.using(unique=str(1 - number)).bind(1 - number)]))

    with jobs.worker(concurrency=2):
        for number in (0, 1):
            handles[number] = meets.using(unique=str(number)).enqueue(number)
        until(lambda: any(each.status().state in ENDED for each in handles.values()), "one of them has ended")

    refused = [each.status() for each in handles.values() if each.status().state is State.DEAD]
    assert refused and all("would ever end" in (each.error or "") for each in refused)


def test_a_wait_times_out_by_itself(jobs: Tenure) -> None:
    @jobs.task(signals={"go": int})
    def waits(job: Job) -> str:
        return str(job.expect("go", int, timeout="100ms", default="nobody"))

    with jobs.worker(concurrency=1):
        assert waits.enqueue().result("60s") == "nobody"
