"""`jobs.flow(unique=)` by callers that describe it at the same time, with different steps: one of them makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from tenure import Flow, Tenure, outputs
from tenure.errors import StoreAway, StoreBusy
from tenure.ports import Draft, Enqueued, Ring
from tenure.stores.postgres import PostgresStore
from tenure.tasks import client
from unit.fresh_postgres import url as url
from waiting import until


def make(jobs: Tenure, pages: int, **options: Any) -> Flow:
    with jobs.flow("nightly", unique="day:1", **options) as flow:
        steps = [flow.add(jobs.task(name="page")(page).bind(n)) for n in range(pages)]
        flow.add(jobs.task(name="combine")(combine).bind(outputs(steps)))
    return flow


def page(n: int) -> int:
    return n


def combine(pages: list[int]) -> int:
    return sum(pages)


def calls(jobs: Tenure, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., list[Enqueued]]) -> None:
    monkeypatch.setattr(jobs.client().store, "enqueue", answer)


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_makes_it_in_a_transaction_keeps_the_others_waiting(
    end: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.retried, "__defaults__", (60.0,))
    jobs = Tenure(url, notifier="poll")
    PostgresStore(url).migrate()
    refused = list[Exception]()
    with jobs, psycopg.connect(url) as theirs, ThreadPoolExecutor(1) as thread:
        first = make(jobs, 2, tx=theirs)
        enqueue = jobs.client().store.enqueue

        def watched(drafts: list[Draft], **options: Any) -> list[Enqueued]:
            try:
                return enqueue(drafts, **options)
            except StoreBusy as error:
                refused.append(error)
                raise

        calls(jobs, monkeypatch, watched)
        second = thread.submit(make, jobs, 4)
        until(lambda: len(refused) > 3, "the second waits for the first")
        cast("Callable[[], None]", getattr(theirs, end))()

        made = second.result(60)
        assert (first.created, made.created) == (True, end == "rollback")
        assert made.id == first.id
        assert made.handle.status().total == (3 if end == "commit" else 5)


def test_of_callers_on_one_event_loop_one_makes_it(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    one, task = jobs.task(name="page")(page), jobs.task(name="combine")(combine)

    async def amake(pages: int) -> Flow:
        async with jobs.flow("nightly", unique="day:1") as flow:
            flow.add(task.bind(outputs([flow.add(one.bind(n)) for n in range(pages)])))
        return flow

    async def main() -> tuple[list[Flow], int]:
        async with jobs:
            await one.aenqueue(1)
            beside = asyncio.gather(one.aenqueue(2), one.aenqueue(3))
            flows = await asyncio.gather(*(amake(pages) for pages in (2, 4, 6)))
            await beside
            return flows, (await flows[0].handle.astatus()).total

    flows, total = asyncio.run(main())
    assert [flow.created for flow in flows].count(True) == 1
    assert total == next(pages for pages, flow in zip((3, 5, 7), flows, strict=True) if flow.created)


def test_one_that_its_own_transaction_has_made_knows_its_steps(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db")
    combined = jobs.task(name="combine")(combine)

    def made(tx: object) -> Flow:
        with jobs.flow("nightly", unique="day:1", tx=tx) as flow:
            step = flow.add(combined.using(unique="all").bind([1]))
        ids.append(step.handle.id)
        return flow

    ids = list[object]()
    with jobs, jobs.transaction() as tx:
        assert [made(tx).created, made(tx).created] == [True, False]
    assert len(set(ids)) == 1


def test_one_whose_reply_is_lost_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    with jobs:
        enqueue, tries = jobs.client().store.enqueue, list[int]()

        def lossy(drafts: list[Draft], **options: Any) -> list[Enqueued]:
            tries.append(len(drafts))
            answers = enqueue(drafts, **options)
            raise StoreAway(f"the line broke after {len(answers)}")

        calls(jobs, monkeypatch, lossy)
        rung = list[Ring]()
        monkeypatch.setattr(jobs.client().notifier, "announce", rung.extend)
        flow = make(jobs, 2)

        assert tries == [3, 3]
        assert [(each.kind, each.queue, len(each.jobs)) for each in rung] == [("queued", "default", 2)]
        assert flow.handle.status().total == 3
        assert make(jobs, 2).id == flow.id
