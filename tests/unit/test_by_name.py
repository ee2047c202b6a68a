"""Jobs of tasks by name, in a process that does not have their code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenure import Job, JobHandle, Retry, Tenure
from tenure.errors import InvalidArguments, InvalidOption, UnknownTask, WouldBlock
from tenure.maintenance.holder import identity
from tenure.testing import TestQueue

ID = UUID("018f0000-0000-7000-8000-000000000001")


@pytest.fixture
def shop(tmp_path: Path) -> Tenure:
    """The app of the workers: it has the code."""
    return Tenure(f"sqlite:///{tmp_path}/tenure.db")


@pytest.fixture
def sender(tmp_path: Path) -> Tenure:
    """An app without tasks on the same store."""
    return Tenure(f"sqlite:///{tmp_path}/tenure.db")


def register(app: Tenure, *tasks: str, queues: tuple[str, ...] = ("default",), worker: str = "w-1") -> None:
    from dataclasses import replace

    app.client().store.register(replace(identity("worker", queues, tasks, 1, 60.0), id=worker))


def test_a_process_without_the_code_enqueues_a_job_that_a_worker_runs(shop: Tenure, sender: Tenure) -> None:
    @shop.task
    def charge(order: int, cents: int = 100) -> str:
        return f"{order}: {cents}"

    with shop, sender, shop.worker(concurrency=1):
        handle = sender.enqueue("charge", {"order": 7})
        assert handle.result("30s") == "7: 100"
        many = sender.enqueue_many(sender.bind("charge", {"order": n}) for n in range(3))
        assert [each.result("30s") for each in many] == ["0: 100", "1: 100", "2: 100"]

        async def twins() -> Any:
            with pytest.raises(WouldBlock, match=r"await jobs\.aenqueue"):
                sender.enqueue("charge", {"order": 8})
            (first,) = await sender.aenqueue_many([await sender.abind("charge", {"order": 8})])
            return await first.aresult("30s"), await (await sender.aenqueue("charge", {"order": 9})).aresult("30s")

        assert asyncio.run(twins()) == ("8: 100", "9: 100")


def test_a_name_that_no_worker_has_registered_is_refused_with_the_nearest(sender: Tenure) -> None:
    with sender:
        register(sender, "charge", "change", "mail")
        with pytest.raises(UnknownTask, match="did you mean 'charge'"):
            sender.enqueue("chrage", {"order": 7})
        with pytest.raises(UnknownTask, match="known: change, charge, mail"):
            sender.enqueue("zzz")
        assert sender.client().store.search(where()).jobs == ()


def where() -> Any:
    from tenure.ports import Filter

    return Filter()


def test_a_store_that_no_worker_has_used_can_not_be_asked(sender: Tenure) -> None:
    with sender:
        with pytest.raises(UnknownTask, match="no worker has used this store"):
            sender.enqueue("charge", {"order": 7})
        assert sender.enqueue("charge", {"order": 7}, unchecked=True).created


def test_what_the_last_workers_registered_counts_when_none_is_alive(sender: Tenure) -> None:
    with sender:
        register(sender, "charge", queues=("billing",))
        sender.client().store.declare_dead(["w-1"])
        assert sender.enqueue("charge", {"order": 7}, queue="billing").created
        with pytest.raises(UnknownTask):
            sender.enqueue("mail")


def test_a_queue_that_no_worker_with_this_task_serves_is_refused(sender: Tenure) -> None:
    with sender:
        register(sender, "charge", queues=("billing",))
        register(sender, "mail", queues=("default",), worker="w-2")
        with pytest.raises(InvalidOption, match="serve billing, not the queue 'default': give queue='billing'"):
            sender.enqueue("charge", {"order": 7})
        assert sender.enqueue("charge", {"order": 7}, queue="billing").created
        assert sender.enqueue("charge", {"order": 7}, unchecked=True).created


def test_every_option_of_using_reaches_the_job(sender: Tenure) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    with sender:
        register(sender, "charge", queues=("billing",))
        handle = sender.enqueue(
            "charge",
            {"order": 7},
            queue="billing",
            priority=5,
            run_at=at,
            unique="order:7",
            retry=Retry(3),
            timeout="90s",
            meta={"request": "r-1"},
            id=ID,
        )
        job = sender.client().store.get(str(ID))
        assert job is not None
        assert (job.queue, job.priority, job.run_at, job.unique) == ("billing", 5, at, "order:7")
        assert (job.max_failures, job.timeout, job.meta["request"]) == (3, 90.0, "r-1")
        again = sender.enqueue("charge", {"order": 8}, queue="billing", unique="order:7")
        assert (again.created, again.id) == (False, handle.id)


@pytest.mark.parametrize(
    ("args", "options", "error", "says"),
    [
        ({"order": object()}, {}, InvalidArguments, "charge"),
        ({"order": "x" * 300_000}, {}, InvalidArguments, "the limit is 256 KiB"),
        ([7], {}, InvalidArguments, r"expected arguments by name like \{\"order\": 7\}, got \[7\]"),
        ({7: 7}, {}, InvalidArguments, "expected arguments by name"),
        ({}, {"priority": 101}, InvalidOption, "priority: expected"),
        ({}, {"delay": "5s", "run_at": datetime(2040, 1, 1, tzinfo=UTC)}, InvalidOption, "only one of them"),
        ({}, {"countdown": 5}, InvalidOption, "write delay="),
        ({}, {"queue": "guard"}, InvalidOption, "reserved"),
    ],
)
def test_bad_input_is_refused_before_the_store_is_asked(
    args: Any, options: Mapping[str, Any], error: type[Exception], says: str
) -> None:
    nowhere = Tenure("sqlite:////nowhere/at/all.db")
    with pytest.raises(error, match=says):
        nowhere.enqueue("charge", args, unchecked=True, **options)


def test_a_name_of_no_task_is_refused(sender: Tenure) -> None:
    with pytest.raises(InvalidOption, match="task name: expected letters"):
        sender.enqueue("no good", unchecked=True)


def test_a_task_of_this_app_is_checked_here_with_its_arguments_and_its_options(shop: Tenure) -> None:
    @shop.task(queue="billing", unique="order:{order}", retry=3)
    def charge(order: int) -> None: ...

    with shop:
        with pytest.raises(InvalidArguments, match="order"):
            shop.enqueue("charge", {"euros": 1})
        handle = shop.enqueue("charge", {"order": 7})
        job = shop.client().store.get(str(handle.id))
        assert job is not None
        assert (job.queue, job.unique, job.max_failures) == ("billing", "order:7", 3)


def test_a_task_with_an_iterator_is_enqueued_by_name_and_gathered_by_a_call(shop: Tenure) -> None:
    @shop.task
    def total(numbers: Iterator[int], start: int = 0) -> int:
        return sum(numbers, start)

    @shop.task
    def parent(job: Job) -> list[int]:
        return job.gather("k", lambda: [total.bind([1, 2]), total.bind([3])])  # type: ignore[list-item]

    with shop.testing() as queue:
        handle = shop.enqueue("total", {"numbers": [1, 2], "start": 4})
        queue.drain()
        assert handle.result("0s") == 7
    assert parent.call() == [3, 3]

    async def acall() -> list[int]:
        return await aparent.acall()

    @shop.task
    async def aparent(job: Job) -> list[int]:
        return await job.agather("k", lambda: [total.bind([1, 2])])  # type: ignore[list-item]

    assert asyncio.run(acall()) == [3]


def test_the_names_are_read_once_for_many_jobs(sender: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    with sender:
        register(sender, "charge")
        store, asked = sender.client().store, list[bool]()
        workers = store.workers
        monkeypatch.setattr(store, "workers", lambda dead=False: asked.append(dead) or workers(dead=dead))
        sender.enqueue_many(sender.bind("charge", {"order": n}) for n in range(100))
    assert asked == [True]


def test_it_joins_a_transaction(sender: Tenure) -> None:
    with sender:
        register(sender, "charge")
        with pytest.raises(ZeroDivisionError), sender.transaction() as tx:
            sender.enqueue("charge", {"order": 7}, tx=tx)
            raise ZeroDivisionError
        assert sender.client().store.search(where()).jobs == ()


# ── in tests ──


def _by_call(app: Tenure, queue: TestQueue) -> JobHandle:
    return app.enqueue("charge", {"order": 7}, queue="billing")


def _by_bind(app: Tenure, queue: TestQueue) -> JobHandle:
    return app.enqueue_many([app.bind("charge", {"order": 7}, queue="billing")])[0]


@pytest.mark.parametrize("enqueue", [_by_call, _by_bind])
def test_a_test_names_the_tasks_that_run_elsewhere(
    enqueue: Callable[[Tenure, TestQueue], JobHandle], sender: Tenure
) -> None:
    @sender.task
    def here() -> None: ...

    with sender.testing(elsewhere=["charge"]) as queue:
        handle = enqueue(sender, queue)
        here.enqueue()
        assert queue.assert_enqueued_by_name("charge", {"order": 7}) == handle
        assert queue.enqueued("charge") == [handle]
        with pytest.raises(AssertionError, match=r"no job of charge with \{\"order\":8\}"):
            queue.assert_enqueued_by_name("charge", {"order": 8})
        with pytest.raises(UnknownTask, match="did you mean 'charge'"):
            sender.enqueue("chrge", {"order": 7})

        assert queue.drain() == 1  # it leaves jobs that run elsewhere
