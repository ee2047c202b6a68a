from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from tenure import Fail, Job, Retry, Secret, Snooze, Tenure
from tenure.errors import InvalidOption, JobFailed, TenureError, UnknownTask, WouldBlock


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
        assert queue.drain() == 0


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
        assert queue.drain() == 1

        queue.advance("1m")
        with pytest.raises(LookupError, match="no such host"):
            queue.drain()
        with pytest.raises(JobFailed, match="no such host"):
            handle.result("0s")


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
        with pytest.raises(JobFailed, match="at most 256 KiB are kept"):
            queue.drain()


def test_a_job_that_expired_is_not_run(jobs: Tenure) -> None:
    @jobs.task
    def report() -> None:
        pytest.fail("it was too late")

    with jobs.testing() as queue:
        handle = report.using(expires="1h").enqueue()
        queue.advance("2h")
        queue.drain()
        with pytest.raises(JobFailed, match="is cancelled"):
            handle.result("0s")


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


def test_a_job_whose_task_is_gone_is_named(jobs: Tenure) -> None:
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
        queue.drain()
        queue.advance("1m")
        queue.drain()
        assert handle.result("0s") == 7

    assert (seen, charged) == ([None, 3], [1])


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
