"""Flows, gathering and signals in a worker on a real store: all that waits goes on by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tenure import Ended, Fail, Job, Tenure, outputs
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


def test_a_wait_times_out_by_itself(jobs: Tenure) -> None:
    @jobs.task(signals={"go": int})
    def waits(job: Job) -> str:
        return str(job.expect("go", int, timeout="100ms", default="nobody"))

    with jobs.worker(concurrency=1):
        assert waits.enqueue().result("60s") == "nobody"
