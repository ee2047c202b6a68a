from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest

from garbage import nothing_dropped_open
from tenure import Fail, Job, JobHandle, Retry, Secret, Snooze, Task, Tenure
from tenure.core.lifecycle import State
from tenure.errors import InvalidArguments, InvalidOption, JobFailed, LeaseLost, TenureError, UnknownTask, WouldBlock
from tenure.testing import TestQueue
from tenure.testing import queue as testing
from tenure.testing import watch as waits


@dataclass
class Mailer:
    sent: list[str]


@pytest.fixture
def jobs() -> Tenure:
    return Tenure("sqlite:////nowhere/at/all.db")


def test_jobs_are_kept_in_memory_and_run_when_told_to(jobs: Tenure) -> None:
    ran: list[str] = []

    @jobs.task
    def greet(name: str) -> str:
        ran.append(name)
        return f"hello {name}"

    with jobs.testing() as queue:
        handle = greet.enqueue("Ada")
        assert ran == []

        assert queue.drain() == 1

        assert ran == ["Ada"]
        assert handle.result("0s") == "hello Ada"
        assert [status.state for status in handle.updates()] == [handle.status().state] == [State.COMPLETED]
        assert queue.drain() == 0


def test_a_worker_within_a_test_leaves_all_jobs_to_drain(tmp_path: Path) -> None:
    """Jobs of the test, and jobs of the real store, which a worker would really run."""
    jobs, ran = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll"), Event()

    @jobs.task
    def work() -> None:
        ran.set()

    with jobs:
        real = work.enqueue()
        with jobs.testing() as queue:
            work.enqueue()
            with jobs.worker():
                assert not ran.wait(1.0)
            asyncio.run(_within(jobs))
            assert not ran.is_set()
            assert queue.drain() == 1
        assert real.status().state == "queued"


async def _within(jobs: Tenure) -> None:
    async with jobs.worker() as worker:
        assert worker is None


def test_both_kinds_of_handler_run_in_order(jobs: Tenure) -> None:
    ran: list[str] = []

    @jobs.task
    async def on_loop(job: Job, name: str) -> None:
        ran.append(f"{name} {job.attempt}")
        await follow.aenqueue(name)

    @jobs.task
    def follow(name: str) -> None:
        ran.append(f"after {name}")

    with jobs.testing() as queue:
        on_loop.enqueue("a")
        assert queue.drain() == 2

    assert ran == ["a 1", "after a"]


def test_an_event_loop_drains_too(jobs: Tenure) -> None:
    @jobs.task
    async def double(n: int) -> int:
        return n * 2

    async def main() -> int:
        with jobs.testing() as queue:
            handle = await double.aenqueue(4)
            with pytest.raises(WouldBlock, match=r"await queue\.adrain\(\)"):
                queue.drain()
            assert await queue.adrain() == 1
            return await handle.aresult("0s")

    assert asyncio.run(main()) == 8


def test_a_wait_that_nothing_can_end_is_an_error(jobs: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the test itself, in a handler, and on a loop once nothing has drained for a while."""
    monkeypatch.setattr(waits, "PATIENCE_SECONDS", 0.05)
    drain = r"is still scheduled.*; a job of jobs.testing\(\) runs when the test calls queue.drain\(\)"

    @jobs.task
    async def child() -> int:
        return 7

    @jobs.task
    def waits_for(child_id: str) -> None:
        child.handle(child_id).result("1h")

    @jobs.task
    async def awaits(child_id: str) -> None:
        await child.handle(child_id).aresult()

    with jobs.testing() as queue:
        handle = child.using(delay="1h").enqueue()
        with pytest.raises(TimeoutError, match=drain):
            handle.result()
        with pytest.raises(TimeoutError, match=drain):
            list(handle.updates())
        with pytest.raises(TimeoutError, match=drain):
            asyncio.run(handle.aresult())
        for task in (waits_for, awaits):
            task.enqueue(str(handle.id))
            with pytest.warns(RuntimeWarning, match=r"job\.join"), pytest.raises(TimeoutError, match=drain):
                queue.drain()


def test_a_wait_lasts_as_long_as_the_test_drains(jobs: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "PATIENCE_SECONDS", 0.01)

    @jobs.task
    async def slow() -> int:
        await asyncio.sleep(0.1)
        return 7

    async def main() -> list[int]:
        with jobs.testing() as queue:
            handles = [await slow.aenqueue() for _ in range(2)]
            waiting = asyncio.gather(*(each.aresult() for each in handles))
            await queue.adrain()
            return await waiting

    assert asyncio.run(main()) == [7, 7]


def test_time_passes_only_when_it_is_told_to(jobs: Tenure) -> None:
    ran: list[int] = []

    @jobs.task
    def later(n: int) -> None:
        ran.append(n)

    with jobs.testing() as queue:
        later.using(delay="1h").enqueue(1)
        later.using(delay="7d").enqueue(2)
        assert queue.drain() == 0

        queue.advance("1h")
        assert queue.drain() == 1
        queue.advance("7d")
        assert queue.drain() == 1

    assert ran == [1, 2]


def test_a_failure_waits_for_its_retry_and_then_the_jobs_death_raises_its_error(jobs: Tenure) -> None:
    @jobs.task(retry=Retry(2, base="1m", cap="1m"))
    def fetch() -> None:
        raise LookupError("no such host")

    with jobs.testing() as queue:
        handle = fetch.enqueue()
        assert queue.drain(failures="retry") == 1

        queue.advance("1m")
        with pytest.raises(LookupError, match="no such host"):
            queue.drain(failures="retry")
        with pytest.raises(JobFailed, match="no such host"):
            handle.result("0s")


@dataclass(frozen=True)
class Failing:
    """A handler that fails, what `drain` raises for it, and a line of the traceback."""

    declare: Callable[[Tenure], Task[[], Any]]
    raises: type[BaseException]
    says: str
    line: str = ""


def _plain(jobs: Tenure) -> Task[[], Any]:
    @jobs.task
    def fetch() -> None:
        raise LookupError("no such host")

    return fetch


def _async(jobs: Tenure) -> Task[[], Any]:
    @jobs.task
    async def fetch() -> None:
        raise LookupError("no such host")

    return fetch


def _given_up(jobs: Tenure) -> Task[[], Any]:
    @jobs.task
    def fetch() -> None:
        raise Fail("no such host", retry_in="1m")

    return fetch


def _late(jobs: Tenure) -> Task[[], Any]:
    @jobs.task(timeout="20ms")
    async def fetch() -> None:
        await asyncio.sleep(60)

    return fetch


def _late_in_a_thread(jobs: Tenure) -> Task[[], Any]:
    @jobs.task(timeout="20ms")
    def fetch(job: Job) -> None:
        while True:
            job.progress(0.5)

    return fetch


def _too_large(jobs: Tenure) -> Task[[], Any]:
    @jobs.task
    def fetch() -> str:
        return "x" * 300_000

    return fetch


def _exiting(jobs: Tenure) -> Task[[], Any]:
    @jobs.task
    def fetch() -> None:
        sys.exit("no such host")

    return fetch


@pytest.mark.parametrize(
    "case",
    [
        Failing(_plain, LookupError, "no such host", "raise LookupError"),
        Failing(_async, LookupError, "no such host", "raise LookupError"),
        Failing(_given_up, Fail, "no such host", "raise Fail"),
        Failing(_late, JobFailed, "timed out after 20ms"),
        Failing(_late_in_a_thread, JobFailed, "timed out after 20ms"),
        Failing(_too_large, JobFailed, "the limit is 256 KiB"),
        Failing(_exiting, JobFailed, "no such host"),
    ],
    ids=lambda case: case.declare.__name__.strip("_"),
)
def test_the_first_failure_of_a_job_is_raised_though_it_would_be_retried(case: Failing, jobs: Tenure) -> None:
    fetch = case.declare(jobs)

    with jobs.testing() as queue:
        handle = fetch.enqueue()
        with pytest.raises(case.raises, match=case.says) as caught:
            queue.drain()

        shown = "".join(traceback.format_exception(caught.value))
        assert case.line in shown
        assert f"fetch {handle.id} failed in attempt 1" in shown
        assert 'drain(failures="retry")' in shown

        job = jobs.client().store.get(str(handle.id))  # it is stored, as in production
        assert job is not None
        assert (job.state, job.failures) == (State.SCHEDULED, 1)


def test_a_failure_is_raised_with_the_cause_that_its_handler_gave_it(jobs: Tenure) -> None:
    @jobs.task
    def fetch() -> None:
        raise LookupError("no such host") from ConnectionError("refused")

    with jobs.testing() as queue:
        fetch.enqueue()
        with pytest.raises(LookupError) as caught:
            queue.drain()

    assert str(caught.value.__cause__) == "refused"


@pytest.mark.parametrize("make", [_plain, _async])
def test_a_failure_is_raised_on_a_loop_too(make: Callable[[Tenure], Task[[], Any]], jobs: Tenure) -> None:
    fetch = make(jobs)

    async def main() -> None:
        with jobs.testing() as queue:
            await fetch.aenqueue()
            with pytest.raises(LookupError, match="no such host"):
                await queue.adrain()
            await fetch.aenqueue()
            assert await queue.adrain(failures="retry") == 1

    asyncio.run(main())


def test_arguments_that_do_not_fit_are_raised_though_a_worker_would_wait_for_other_code(jobs: Tenure) -> None:
    @jobs.task
    def charge(cents: int) -> None: ...

    with jobs.testing() as queue:
        job = charge.bind(1)
        job._payload = '{"euros":1}'
        job.enqueue()
        with pytest.raises(InvalidArguments, match="euros"):
            queue.drain()


def test_what_costs_no_failure_is_not_raised(jobs: Tenure) -> None:
    @jobs.task
    def wait() -> None:
        raise Snooze("10m")

    @jobs.task
    def unwanted(job: Job) -> None:
        jobs.handle(job.id).cancel("not wanted")
        raise LookupError("it has lost its interest")

    with jobs.testing() as queue:
        wait.enqueue()
        handle = unwanted.enqueue()
        assert queue.drain() == 2
        with pytest.raises(JobFailed, match="is cancelled"):
            handle.result("0s")


def test_jobs_before_the_one_that_is_to_be_killed_and_its_second_run_may_not_fail_unseen(jobs: Tenure) -> None:
    fetch = _plain(jobs)

    @jobs.task
    def fine() -> None: ...

    with jobs.testing() as queue:
        fetch.enqueue()
        with pytest.raises(LookupError, match="no such host"):
            queue.kill_after(fine.bind(), "start")
        queue.drain()
        with pytest.raises(LookupError, match="no such host"):
            queue.run_twice(fetch.bind())


def test_another_word_for_failures_is_refused(jobs: Tenure) -> None:
    with jobs.testing() as queue, pytest.raises(InvalidOption, match="failures: expected 'raise' or 'retry'"):
        queue.drain(failures="ignore")  # type: ignore[arg-type]


def test_signals_of_the_handler_are_obeyed(jobs: Tenure) -> None:
    @jobs.task
    def wait(job: Job) -> None:
        if job.attempt == 1:
            raise Snooze("10m")

    @jobs.task
    def give_up() -> None:
        raise Fail("no such page", final=True)

    with jobs.testing() as queue:
        handle = wait.enqueue()
        assert queue.drain() == 1
        queue.advance("10m")
        assert queue.drain() == 1
        assert handle.result("0s") is None

        give_up.enqueue()
        with pytest.raises(Fail, match="no such page"):
            queue.drain()


def test_a_result_that_can_not_be_stored_fails_the_job(jobs: Tenure) -> None:
    @jobs.task(retry=1)
    def large() -> str:
        return "x" * 300_000

    with jobs.testing() as queue:
        large.enqueue()
        with pytest.raises(JobFailed, match="the limit is 256 KiB"):
            queue.drain()


def test_a_job_that_expired_is_not_run(jobs: Tenure) -> None:
    @jobs.task
    def report() -> None:
        pytest.fail("it was too late")

    with jobs.testing() as queue:
        handle = report.using(expires="1h").enqueue()
        queue.advance("2h")
        assert queue.drain() == 0, "no attempt has run"
        with pytest.raises(JobFailed, match="is cancelled"):
            handle.result("0s")


def test_a_handler_that_raises_stop_iteration_fails_as_with_any_error(jobs: Tenure) -> None:
    @jobs.task
    def first(limit: int) -> int:
        return next(n for n in range(3) if n > limit)

    with jobs.testing() as queue:
        first.enqueue(5)
        with pytest.raises(RuntimeError, match="first raised StopIteration, which no coroutine can pass on") as caught:
            queue.drain()
    assert isinstance(caught.value.__cause__, StopIteration)
    assert "failed in attempt 1" in caught.value.__notes__[0]


def test_what_a_test_does_not_have_is_told(jobs: Tenure) -> None:
    @jobs.resource
    def mailer() -> Iterator[Mailer]:
        yield Mailer([])

    @jobs.task
    def send(job: Job) -> None:
        job.resource(Mailer)

    @jobs.task
    def pay(job: Job) -> None:
        with jobs.transaction() as tx:
            tx.execute("INSERT INTO receipts VALUES (1)")

    wrong: Any = [Mailer([])]
    with pytest.raises(
        InvalidOption, match=r"testing: resources: expected values by type, like \{Pool: Pool\(\)\}, got"
    ):
        jobs.testing(resources=wrong).__enter__()
    with pytest.raises(InvalidOption, match=r"testing: elsewhere: expected names of tasks, like \['charge'\], got"):
        jobs.testing(elsewhere="charge").__enter__()
    with jobs.testing() as queue:
        send.enqueue()
        with pytest.raises(TenureError, match=r"or in a test give it: jobs.testing\(resources=\{Mailer: …\}\)"):
            queue.drain()
        pay.enqueue()
        with pytest.raises(
            AttributeError, match=r"tx.execute: the store of jobs.testing\(\) has no SQL; test this with"
        ):
            queue.drain()


def test_a_lonely_job_is_run_too(jobs: Tenure) -> None:
    @jobs.task(isolation="process")
    def render(n: int) -> int:
        return n

    with jobs.testing() as queue:
        handle = render.enqueue(3)
        assert queue.drain() == 1
        assert handle.result("0s") == 3


def test_a_job_sent_by_an_old_name_runs_the_task_that_took_it(jobs: Tenure) -> None:
    @jobs.task(name="old_name")
    def before(n: int) -> int:
        return n

    with jobs.testing() as queue:
        sent = before.bind(3)
        renamed = Tenure("memory:")

        @renamed.task(aliases=["old_name"])
        def new_name(n: int) -> int:
            return n + 1

        renamed._testing = queue
        queue._program = renamed.program
        handle = sent.enqueue()
        assert queue.drain() == 1
        assert handle.result("0s") == 4


def test_a_job_of_a_missing_task_is_named(jobs: Tenure) -> None:
    @jobs.task
    def removed() -> None: ...

    with jobs.testing() as queue:
        removed.enqueue()
        queue._program = Tenure("memory:").program
        with pytest.raises(UnknownTask, match="no task is named 'removed'"):
            queue.drain()


def test_a_checkpoint_and_once_survive_into_the_next_attempt(jobs: Tenure) -> None:
    charged: list[int] = []
    seen: list[int | None] = []

    def charge() -> int:
        charged.append(1)
        return 7

    @jobs.task
    def work(job: Job[int]) -> int:
        seen.append(job.checkpoint)
        job.progress(0.5, checkpoint=3)
        paid = job.once("charge", charge)
        if job.attempt == 1:
            raise OSError
        return paid

    with jobs.testing() as queue:
        handle = work.enqueue()
        queue.drain(failures="retry")
        queue.advance("1m")
        queue.drain()
        assert handle.result("0s") == 7

    assert (seen, charged) == ([None, 3], [1])


def test_once_under_one_key_runs_its_function_for_one_call_at_a_time(jobs: Tenure) -> None:
    charged: list[str] = []

    async def charge() -> int:
        charged.append("async")
        return 7

    @jobs.task
    async def pay(job: Job) -> list[str]:
        calls = (job.aonce("charge", charge) for _ in range(2))
        ended = [str(each) for each in await asyncio.gather(*calls, return_exceptions=True)]
        return [*ended, str(await job.aonce("charge", charge))]

    @jobs.task
    def pay_in_itself(job: Job) -> int:
        return job.once("charge", lambda: job.once("charge", lambda: len(charged)))

    with jobs.testing() as queue:
        handle = pay.enqueue()
        queue.drain()
        refused = "job.aonce('charge') is under way already: give each its own key"
        assert handle.result("0s") == ["7", refused, "7"]
        pay_in_itself.enqueue()
        with pytest.raises(InvalidOption, match=r"job\.once\('charge'\) is under way already"):
            queue.drain()
    assert charged == ["async"]


def test_a_function_of_once_whose_result_can_not_be_stored_is_not_run_again(jobs: Tenure) -> None:
    charged: list[int] = []

    def charge() -> object:
        charged.append(1)
        return object()

    @jobs.task(retry=3)
    def pay(job: Job) -> object:
        return job.once("charge", charge)

    with jobs.testing() as queue:
        pay.enqueue()
        with pytest.raises(Fail, match=r"a value of type object .* the function has run, and a retry would run it"):
            queue.drain(failures="retry")
    assert charged == [1]


@dataclass
class Receipt:
    amount: int = 7


class Pay:
    def __call__(self) -> Receipt:
        return Receipt()


def test_once_returns_a_value_of_the_type_that_its_function_returns_whatever_sort_of_function_it_is(
    jobs: Tenure,
) -> None:
    kinds: list[type] = []

    @jobs.task
    def pay(job: Job) -> None:
        for key, fn in enumerate((Pay(), Receipt, partial(Receipt, 8), Pay().__call__, lambda: Receipt())):
            kinds.append(type(job.once(str(key), fn)))

    with jobs.testing() as queue:
        pay.enqueue()
        queue.drain()

    assert kinds == [Receipt, Receipt, Receipt, Receipt, dict]


def test_what_is_no_job_is_refused(jobs: Tenure) -> None:
    @jobs.task
    def pay() -> None: ...

    with jobs.testing() as queue:
        for call in (queue.run_twice, partial(queue.kill_after, point="start")):
            with pytest.raises(InvalidOption, match=r"expected a job like pay\.bind\(7\), or the handle of one, got 5"):
                call(5)  # type: ignore[call-arg, arg-type, operator]
        with pytest.raises(InvalidOption, match=r"expected a function that makes a job each time, like lambda: pay"):
            queue.kill_everywhere(pay.bind(), lambda: None)  # type: ignore[arg-type]


def test_assert_enqueued_finds_a_job_by_its_arguments(jobs: Tenure) -> None:
    @jobs.task
    def send(email: str, *, token: Secret[str], copies: int = 1) -> None: ...

    with jobs.testing() as queue:
        first = send.enqueue("a@b.c", token=Secret("x"))
        second = send.enqueue("d@e.f", token=Secret("y"), copies=2)

        assert queue.enqueued(send) == [first, second]
        assert queue.assert_enqueued(send, email="a@b.c", token=Secret("x"), copies=1) == first
        with pytest.raises(AssertionError) as caught:
            queue.assert_enqueued(send, "d@e.f", token=Secret("secret"))

    assert str(caught.value).splitlines() == [
        'no job of send with {"email":"d@e.f","token":"***","copies":1}; there are:',
        '  {"email":"a@b.c","token":"***","copies":1}',
        '  {"email":"d@e.f","token":"***","copies":2}',
    ]


def test_handlers_find_the_resources_of_the_test_and_its_arounds_run(jobs: Tenure) -> None:
    around: list[str] = []

    @jobs.around
    def tenant(job: Job) -> Iterator[None]:
        around.append(f"before {job.meta['tenant']}")
        yield
        around.append("after")

    @jobs.resource
    async def mailer() -> AsyncIterator[Mailer]:
        pytest.fail("a test brings its own")
        yield Mailer([])

    @jobs.task
    def send(job: Job, to: str) -> None:
        job.resource(Mailer).sent.append(to)

    fake = Mailer([])
    with jobs.testing(resources={Mailer: fake}) as queue:
        send.using(meta={"tenant": "acme"}).enqueue("ada")
        queue.drain()

    assert fake.sent == ["ada"]
    assert around == ["before acme", "after"]


def test_transactions_work_as_in_the_store(jobs: Tenure) -> None:
    @jobs.task
    def greet() -> None: ...

    with jobs.testing() as queue:
        with pytest.raises(ZeroDivisionError), jobs.transaction() as tx:
            greet.using(tx=tx).enqueue()
            raise ZeroDivisionError
        assert queue.enqueued(greet) == []

        with jobs.transaction() as tx:
            greet.using(tx=tx).enqueue()
        assert queue.drain() == 1


def test_finishing_with_a_transaction_commits_the_outcome_with_it(jobs: Tenure) -> None:
    @jobs.task
    def pay(job: Job) -> int:
        with jobs.transaction() as tx:
            job.finish(7, tx=tx)
        return 8

    with jobs.testing() as queue:
        handle = pay.enqueue()
        queue.drain()
        assert handle.result("0s") == 7


def test_a_test_inside_a_test_has_jobs_of_its_own(jobs: Tenure) -> None:
    @jobs.task
    def greet() -> None: ...

    with jobs.testing() as outer:
        greet.enqueue()
        with jobs.testing() as inner:
            assert inner.enqueued(greet) == []
        assert len(outer.enqueued(greet)) == 1

    with pytest.raises(TenureError):
        greet.enqueue()


def test_a_resource_or_around_that_can_not_be_one_is_refused(jobs: Tenure) -> None:
    def returns() -> Iterator[int]:
        return iter([1])

    def takes(n: int) -> Iterator[int]:
        yield n

    for wrong in (returns, takes):
        with pytest.raises(InvalidOption, match=r"@jobs\.resource: "):
            jobs.resource(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"@jobs\.around: no_job must take only the job"):

        @jobs.around  # type: ignore[arg-type]
        def no_job() -> Iterator[None]:
            yield


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Till:
    """What a handler acts on: it records every charge, and knows no keys."""

    def __init__(self) -> None:
        self.paid: list[int] = []

    def charge(self, order: int) -> int:
        self.paid.append(order)
        return order

    async def acharge(self, order: int) -> int:
        await asyncio.sleep(0)
        await asyncio.to_thread(self.paid.append, order)
        return order


@dataclass
class Shop:
    """Handlers of both kinds that do the same, and a test's way into them."""

    jobs: Tenure
    till: Till
    pay: Task[[int], int]
    pay_once: Task[[int], int]
    book: Task[[int], int]
    receipt: Task[[int], None]
    checkpoints: list[int | None]

    def outcomes(self, queue: TestQueue, handle: JobHandle[object]) -> list[str]:
        ended = [each.outcome for each in queue.client.store.attempts(str(handle.id))]
        job = queue.client.store.get(str(handle.id))
        assert job is not None
        return [*ended, str(job.state)]


def plain_shop(jobs: Tenure) -> Shop:
    till, checkpoints = Till(), list[int | None]()

    @jobs.task
    def receipt(order: int) -> None: ...

    @jobs.task
    def pay(job: Job[int], order: int) -> int:
        checkpoints.append(job.checkpoint)
        till.charge(order)
        job.progress(0.3, stage="charged")
        job.progress(0.6, checkpoint=1)
        receipt.enqueue(order)
        return order

    @jobs.task
    def pay_once(job: Job, order: int) -> int:
        return job.once("charge", lambda: till.charge(order))

    @jobs.task
    def book(job: Job, order: int) -> int:
        with jobs.transaction() as tx:
            receipt.using(tx=tx).enqueue(order)
            job.finish(order, tx=tx)
        return order

    return Shop(jobs, till, pay, pay_once, book, receipt, checkpoints)


def async_shop(jobs: Tenure) -> Shop:
    till, checkpoints = Till(), list[int | None]()

    @jobs.task
    async def receipt(order: int) -> None: ...

    @jobs.task
    async def pay(job: Job[int], order: int) -> int:
        checkpoints.append(job.checkpoint)
        await till.acharge(order)
        job.progress(0.3, stage="charged")
        job.progress(0.6, checkpoint=1)
        await receipt.aenqueue(order)
        return order

    @jobs.task
    async def pay_once(job: Job, order: int) -> int:
        return await job.aonce("charge", lambda: till.acharge(order))

    @jobs.task
    async def book(job: Job, order: int) -> int:
        async with jobs.atransaction() as tx:
            await receipt.using(tx=tx).aenqueue(order)
            await job.afinish(order, tx=tx)
        return order

    return Shop(jobs, till, pay, pay_once, book, receipt, checkpoints)


@pytest.fixture(params=[plain_shop, async_shop], ids=lambda make: make.__name__)
def shop(request: pytest.FixtureRequest, jobs: Tenure) -> Shop:
    made: Shop = request.param(jobs)
    return made


def test_a_job_that_dies_before_its_outcome_is_stored_acts_twice(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.run_twice(shop.pay.bind(7))

        assert shop.till.paid == [7, 7]
        assert len(queue.enqueued(shop.receipt)) == 2
        assert handle.result("0s") == 7
        assert shop.outcomes(queue, handle) == ["crashed", "completed"]


def test_a_once_step_runs_once_in_a_job_that_runs_twice(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        assert queue.run_twice(shop.pay_once.enqueue(7)).result("0s") == 7

        assert shop.till.paid == [7]


def test_an_outcome_that_went_with_a_transaction_stands_when_its_worker_dies(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.run_twice(shop.book.bind(7))

        assert len(queue.enqueued(shop.receipt)) == 1
        assert shop.outcomes(queue, handle) == ["completed"]


@pytest.mark.parametrize(
    ("point", "paid", "receipts", "checkpoint"),
    [
        ("start", [7], 1, None),
        ("progress", [7, 7], 1, None),
        ("checkpoint lost", [7, 7], 1, None),
        ("checkpoint", [7, 7], 1, 1),
        ("enqueue receipt", [7, 7], 2, 1),
        ("end", [7, 7], 2, 1),
    ],
)
def test_a_process_dies_at_a_point_and_what_it_did_until_then_is_done(
    point: str, paid: list[int], receipts: int, checkpoint: int | None, shop: Shop
) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.kill_after(shop.pay.enqueue(7), point)
        assert shop.outcomes(queue, handle) == ["crashed", "queued"]

        queue.drain()

        assert (shop.till.paid, len(queue.enqueued(shop.receipt))) == (paid, receipts)
        assert shop.checkpoints[-1] == checkpoint
        assert handle.result("0s") == 7


def test_a_process_that_dies_after_its_outcome_is_stored_costs_nothing(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.kill_after(shop.pay.bind(7), "outcome")
        queue.drain()

        assert shop.till.paid == [7]
        assert shop.outcomes(queue, handle) == ["completed"]


def test_between_an_act_and_its_record_even_once_acts_again(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        for order, point in ((1, "acted charge"), (2, "once charge")):
            queue.kill_after(shop.pay_once.bind(order), point)
            queue.drain()

    assert shop.till.paid == [1, 1, 2]


def test_a_transaction_that_its_process_does_not_live_to_commit_leaves_nothing(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.kill_after(shop.book.bind(7), "finish")

        assert queue.enqueued(shop.receipt) == []
        queue.drain()
        assert len(queue.enqueued(shop.receipt)) == 1
        assert handle.result("0s") == 7


def test_a_function_is_a_point_too(shop: Shop) -> None:
    till = shop.till
    with shop.jobs.testing() as queue:
        handle = queue.kill_after(shop.pay.bind(7), till.charge if shop.pay.is_async is False else till.acharge)

        assert till.paid == [7]
        assert shop.outcomes(queue, handle) == ["crashed", "queued"]
        with pytest.raises(AssertionError, match=r"never reached the end of Till\.charge"):
            queue.kill_after(shop.pay.bind(8), Till().charge)  # another till's


def test_functions_of_c_and_mocks_are_points_too(jobs: Tenure) -> None:
    sent, mail = list[int](), Mock()

    @jobs.task
    def send(n: int) -> None:
        sent.append(n)
        mail(n)

    with jobs.testing() as queue:
        queue.kill_after(send.bind(1), sent.append)
        assert (sent, mail.call_count) == ([1], 0)
        queue.drain()

        queue.kill_after(send.bind(2), mail)
        assert (sent, mail.call_count) == ([1, 1, 2], 2)


@pytest.mark.parametrize("point", [Till, 3, type])
def test_what_can_not_be_a_point_is_refused_before_anything_runs(point: Any, shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        with pytest.raises(InvalidOption, match="point: expected a function, a method or the name of a point, got "):
            queue.kill_after(shop.pay.bind(7), point)
        assert queue.enqueued(shop.pay) == []


def test_an_unknown_point_raises_an_error_that_lists_the_points_reached(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        with pytest.raises(AssertionError) as caught:
            queue.kill_after(shop.pay_once.bind(7), "checkpoint")

    told = str(caught.value).splitlines()
    assert told[0].startswith("pay_once ")
    assert told[0].endswith(" ended and never reached checkpoint; it reached:")
    assert {"  start", "  acted charge", "  once charge", "  end", "  outcome"} <= set(told)


def test_the_second_of_a_name_has_a_number(jobs: Tenure) -> None:
    seen: list[int | None] = []

    @jobs.task
    def count(job: Job[int]) -> None:
        seen.append(job.checkpoint)
        for n in range(3):
            job.progress(checkpoint=n)

    with jobs.testing() as queue:
        queue.kill_after(count.bind(), "checkpoint #2")
        queue.drain()
        queue.kill_after(count.bind(), "checkpoint lost #3")
        queue.drain()

    assert seen == [None, 1, None, 1]


def test_a_dead_process_is_not_saved_by_catching_everything_and_stores_nothing_more(jobs: Tenure) -> None:
    went: list[str] = []

    @jobs.task
    def child() -> None: ...

    @jobs.task
    def stubborn(job: Job[int]) -> str:
        if job.attempt > 1:
            return f"came back from {job.checkpoint}"
        for attempt in (
            lambda: job.progress(0.1),
            lambda: child.enqueue(),
            lambda: job.once("key", lambda: 1),
            lambda: jobs.once("key", lambda: 1),
            lambda: job.progress(0.9, checkpoint=9),
            lambda: job.flush(),
        ):
            try:
                attempt()
            except Exception as error:
                went.append(f"caught {type(error).__name__}")
            except BaseException as error:
                went.append(type(error).__name__)
        return "lived on"

    with jobs.testing() as queue:
        handle = queue.kill_after(stubborn.bind(), "progress")
        assert queue.enqueued(child) == []
        queue.drain()
        assert handle.result("0s") == "came back from None"

    assert (went[0], went[1], went[2]) == ("Killed", "caught StoreError", "LeaseLost")
    assert went[-1] == "LeaseLost"


def test_a_transaction_that_a_dead_process_goes_on_with_is_not_committed(jobs: Tenure) -> None:
    @jobs.task
    def child() -> None: ...

    @jobs.task
    def sly(job: Job) -> None:
        if job.attempt > 1:
            return
        with jobs.transaction() as tx:
            child.using(tx=tx).enqueue()
            with suppress(BaseException):
                job.progress(0.5)

    with jobs.testing() as queue:
        queue.kill_after(sly.bind(), "progress")
        queue.drain()
        assert queue.enqueued(child) == []


def test_a_process_dies_with_all_its_tasks(jobs: Tenure) -> None:
    till, went_on = Till(), list[str]()

    @jobs.task
    async def both(job: Job) -> None:
        if job.attempt > 1:
            return
        side = asyncio.create_task(till.acharge(1))
        await asyncio.sleep(3600)
        went_on.append("it lived")
        await side

    with jobs.testing() as queue:
        handle = queue.kill_after(both.bind(), asyncio.to_thread)
        queue.drain()
        assert handle.result("0s") is None

    assert (till.paid, went_on) == ([1], [])


def test_each_death_is_charged_waited_for_and_one_too_many_ends_the_job(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.kill_after(shop.pay.bind(7), "start")
        queue.kill_after(handle, "start")
        with pytest.raises(AssertionError, match=r"is due in .+: queue\.advance\(…\) first"):
            queue.kill_after(handle, "start")
        queue.advance("30s")
        queue.kill_after(handle, "start")
        assert queue.drain() == 0
        queue.advance("30s")
        with pytest.raises(JobFailed, match="is dead: its process was killed at 'start', by a test"):
            queue.kill_after(handle, "start")
        assert shop.outcomes(queue, handle) == ["crashed"] * 4 + ["dead"]


def test_a_job_that_may_not_crash_at_all_dies_of_the_first_crash_alone(jobs: Tenure) -> None:
    @jobs.task(max_crashes=0)
    def fragile() -> None: ...

    with jobs.testing() as queue:
        queue.run_twice(fragile.bind())
        handle = queue.kill_after(fragile.bind(), "start")
        with pytest.raises(JobFailed, match="killed at 'end'"):
            queue.kill_after(handle, "end")


@pytest.mark.parametrize("point", ["start", "progress", "checkpoint lost", "checkpoint", "enqueue receipt", "end"])
def test_an_attempt_that_lost_its_lease_stores_nothing_and_the_job_runs_again(point: str, shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        handle = queue.steal_lease(shop.pay.bind(7), point)
        assert shop.outcomes(queue, handle) == ["crashed", "queued"]

        queue.drain()

        assert shop.checkpoints[1:] == [1 if point in ("checkpoint", "enqueue receipt", "end") else None]
        assert shop.outcomes(queue, handle) == ["crashed", "completed"]
        why = "the lease of test-worker-1 ended: its host or its supervisor is lost"
        assert queue.client.store.attempts(str(handle.id))[0].error == why


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "async"])
def test_each_write_after_a_lost_lease_is_refused(plain: bool, jobs: Tenure) -> None:
    refused: list[str] = []

    @jobs.task
    def child() -> None: ...

    @jobs.task
    def write(job: Job[int], how: str) -> None:
        if job.attempt > 1:
            return
        try:
            match how:
                case "once":
                    job.once("key", lambda: 1)
                case "progress":
                    job.progress(0.5, checkpoint=3)
                case _:
                    with jobs.transaction() as tx:
                        child.using(tx=tx).enqueue()
                        job.finish(tx=tx)
        except LeaseLost:
            refused.append(how)
            raise

    @jobs.task
    async def awrite(job: Job[int], how: str) -> None:
        if job.attempt > 1:
            return
        try:
            match how:
                case "once":
                    await job.aonce("key", partial(asyncio.sleep, 0, 1))
                case "progress":
                    job.progress(0.5, checkpoint=3)
                case _:
                    async with jobs.atransaction() as tx:
                        await child.using(tx=tx).aenqueue()
                        await job.afinish(tx=tx)
        except (LeaseLost, asyncio.CancelledError):  # it is cancelled as soon as one of its writes is refused
            refused.append(how)
            raise

    with jobs.testing() as queue:
        for how in ("once", "progress", "finish"):
            handle = queue.steal_lease((write if plain else awrite).bind(how))
            job = queue.client.store.get(str(handle.id))
            assert job is not None
            assert (job.state, job.checkpoint) == (State.QUEUED, None)
        assert queue.enqueued(child) == []

    assert refused == ["once", "progress", "finish"]


def test_a_handler_is_killed_wherever_it_can_be(shop: Shop) -> None:
    orders = count(1)

    with shop.jobs.testing() as queue:
        points = queue.kill_everywhere(lambda: shop.pay.enqueue(next(orders)), lambda: None)

    named = [point for point in points if not point.startswith("call ")]
    assert named == [
        "start",
        "progress",
        "checkpoint lost",
        "checkpoint",
        "enqueue receipt",
        "end",
        "outcome",
    ]
    assert any(point.endswith("charge") for point in points)
    assert set(range(1, len(points) + 2)) == set(shop.till.paid)  # each got a job of its own, and one came through


def test_a_job_that_loses_half_of_its_work_in_a_crash_is_detected(jobs: Tenure) -> None:
    paid: set[int] = set()
    mailed: list[int] = []
    orders = count(1)

    def mark(order: int) -> None:
        paid.add(order)

    def mail(order: int) -> None:
        mailed.append(order)

    @jobs.task
    def pay(order: int) -> None:
        if order in paid:  # meant to prevent a second payment
            return
        mark(order)
        mail(order)

    @jobs.task
    def repaired(order: int) -> None:
        mark(order)
        if order not in mailed:
            mail(order)

    def check() -> None:
        assert paid == set(mailed)

    with jobs.testing() as queue:
        with pytest.raises(AssertionError) as caught:
            queue.kill_everywhere(lambda: pay.bind(next(orders)), check)
        assert caught.value.__notes__ == ["when it was killed at 'call set.add'"]

        paid.clear()
        mailed.clear()
        assert "call mark" in queue.kill_everywhere(lambda: repaired.bind(next(orders)), check)


def test_what_fails_unharmed_is_said_to(jobs: Tenure) -> None:
    @jobs.task
    def fine() -> None: ...

    def check() -> None:
        assert jobs_seen == ["never"]

    jobs_seen: list[str] = []
    with jobs.testing() as queue:
        with pytest.raises(AssertionError) as caught:
            queue.kill_everywhere(fine.bind, check)
        assert caught.value.__notes__ == ["when it was killed at 'start'"]
        trap = next(iter(queue._traps()))
        with pytest.raises(ZeroDivisionError) as raised, trap.annotated():
            raise ZeroDivisionError
        assert raised.value.__notes__ == ["when nothing was killed"]


def test_what_never_ends_is_not_waited_for(jobs: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "_MOST_POINTS", 5)

    @jobs.task
    def forever() -> None:
        raise Snooze("1h")

    @jobs.task
    def endless(job: Job) -> None:
        for _ in range(10):
            job.progress(0.1)

    with jobs.testing() as queue:
        with pytest.raises(AssertionError, match="has not ended after 100 attempts"):
            queue.kill_everywhere(forever.bind, lambda: None)
        with pytest.raises(AssertionError, match="more than 5 points: give it less to do, or use"):
            queue.kill_everywhere(endless.bind, lambda: None)


def test_faults_are_tried_on_a_loop_too(shop: Shop) -> None:
    async def main() -> None:
        with shop.jobs.testing() as queue:
            for call in (queue.run_twice, queue.steal_lease, lambda job: queue.kill_after(job, "end")):
                with pytest.raises(WouldBlock, match=r"await queue\.a"):
                    call(shop.pay.bind(1))
            with pytest.raises(WouldBlock, match=r"await queue\.akill_everywhere"):
                queue.kill_everywhere(lambda: shop.pay.bind(1), lambda: None)
            assert shop.till.paid == []

            await queue.arun_twice(await shop.pay_once.aenqueue(2))
            await queue.akill_after(shop.pay_once.bind(3), "once charge")
            await queue.asteal_lease(shop.pay_once.bind(4), "end")
            await queue.adrain()
            assert sorted(shop.till.paid) == [2, 3, 4]
            assert "once charge" in await queue.akill_everywhere(lambda: shop.pay_once.bind(5), lambda: None)

    asyncio.run(main())


def test_what_comes_first_runs_first_and_what_can_not_run_is_named(shop: Shop) -> None:
    with shop.jobs.testing() as queue:
        before = shop.pay.enqueue(1)
        handle = shop.pay.enqueue(2)
        queue.kill_after(handle, "start")
        assert before.result("0s") == 1
        assert shop.till.paid == [1]

        queue.client.store.pause("default", paused=True)
        with pytest.raises(AssertionError, match="is queued, and its queue 'default' is paused"):
            queue.run_twice(handle)
        queue.client.store.pause("default", paused=False)
        with pytest.raises(AssertionError, match="is completed already: enqueue another one"):
            queue.run_twice(before)
        with pytest.raises(AssertionError, match="is not in this queue"):
            queue.run_twice(shop.pay.handle("01900000-0000-7000-8000-000000000000"))


def test_a_profiler_goes_on_after_a_fault_and_none_is_set_without(jobs: Tenure) -> None:
    seen: list[object] = []

    def mine(frame: object, event: str, arg: object) -> None: ...

    @jobs.task
    async def look() -> None:
        seen.append(sys.getprofile())

    with jobs.testing() as queue:
        before = sys.getprofile()
        sys.setprofile(mine)
        try:
            look.enqueue()
            queue.drain()
            queue.kill_after(look.bind(), "end")
            assert sys.getprofile() is mine
        finally:
            sys.setprofile(before)

    assert seen[0] is mine
    assert seen[1] is not mine


def test_a_process_that_dies_while_jobs_once_acts_does_not_hold_its_key(jobs: Tenure) -> None:
    acted: list[int] = []

    def act() -> int:
        acted.append(1)
        return len(acted)

    @jobs.task
    def send() -> int:
        return jobs.once("mail", act, wait="1s")

    with jobs.testing() as queue:
        handle = queue.kill_after(send.bind(), "acted mail")
        queue.drain()

        assert handle.result("0s") == 2
        assert queue.kill_after(send.bind(), "once mail")
        queue.drain()

    assert len(acted) == 2


def test_a_death_is_charged_as_one_whatever_the_handler_makes_of_it(jobs: Tenure) -> None:
    @jobs.task(max_crashes=0)
    def disguise(job: Job) -> None:
        try:
            job.progress(0.5)
        except BaseException as error:
            raise LookupError("not what it was") from error

    with jobs.testing() as queue:
        handle = queue.kill_after(disguise.bind(), "progress")
        with pytest.raises(JobFailed, match="killed at 'progress'"):
            queue.kill_after(handle, "progress")


def test_what_a_handler_has_entered_it_leaves(jobs: Tenure) -> None:
    entered = left = 0

    @contextmanager
    def made_of_a_generator() -> Iterator[None]:
        with Room():
            yield

    class Room:
        def __enter__(self) -> None:
            nonlocal entered
            entered += 1

        def __exit__(self, *exc: object) -> None:
            nonlocal left
            left += 1

    @jobs.task
    def visit() -> None:
        with Room():
            pass
        with made_of_a_generator():
            pass

    def check() -> None:
        assert entered == left > 0

    with jobs.testing() as queue:
        left_by = [point for point in queue.kill_everywhere(visit.bind, check) if point.endswith("__exit__")]

    assert left_by == ["call Room.__exit__", "call made_of_a_generator.__exit__"]


@pytest.mark.thorough
def test_a_garbage_collection_within_a_handler_is_no_call_of_it(jobs: Tenure) -> None:
    collected = 0

    def look_on(phase: str, _: object) -> None:  # like one that a library may have left
        nonlocal collected
        collected += phase == "start"

    @jobs.task
    def tidy() -> None:
        gc.collect()

    gc.callbacks.append(look_on)
    try:
        with nothing_dropped_open(), jobs.testing() as queue:
            assert queue.kill_everywhere(tidy.bind, lambda: None) == ["start", "call collect", "end", "outcome"]
    finally:
        gc.callbacks.remove(look_on)
    assert collected >= 3


def test_each_call_after_a_lost_lease_raises(jobs: Tenure) -> None:
    told: list[str] = []

    @jobs.task
    def deaf(job: Job) -> None:
        for _ in range(2 if job.attempt == 1 else 0):
            try:
                job.progress(0.5)
            except LeaseLost as error:
                told.append(error.reason)

    with jobs.testing() as queue:
        queue.steal_lease(deaf.bind())

    assert told == ["lease_lost", "lease_lost"]


def test_only_what_the_handler_itself_has_called_to_its_end_is_a_point(jobs: Tenure) -> None:
    till = Till()

    def make() -> Coroutine[Any, Any, int]:
        return till.acharge(1)

    def beside() -> None: ...

    @jobs.task
    async def wait(job: Job) -> None:
        started.set()
        await go_on.wait()
        await make()

    async def main() -> list[str]:
        async def other() -> None:
            await started.wait()
            beside()
            go_on.set()

        with jobs.testing() as queue:
            side = asyncio.create_task(other())
            with pytest.raises(AssertionError) as caught:
                await queue.akill_after(wait.bind(), "nowhere")
            await side
            return str(caught.value).splitlines()[1:]

    started, go_on = asyncio.Event(), asyncio.Event()
    points = asyncio.run(main())

    assert "  call Till.acharge" in points
    assert [point for point in points if "make" in point or "beside" in point] == []


def test_a_decorated_function_is_a_point_of_its_own(jobs: Tenure) -> None:
    went: list[str] = []

    def loud(fn: Callable[[], None]) -> Callable[[], None]:
        @wraps(fn)
        def louder() -> None:
            fn()

        return louder

    @loud
    def first() -> None:
        went.append("first")

    @loud
    def second() -> None:
        went.append("second")

    @jobs.task
    def both() -> None:
        first()
        second()
        went.append("third")

    with jobs.testing() as queue:
        queue.kill_after(both.bind(), second)

    assert went == ["first", "second"]
