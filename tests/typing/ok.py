"""Correct uses of the API, and the type of each: checked by mypy and basedpyright, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from tenure import (
    Ended,
    Fail,
    Flow,
    FlowHandle,
    FlowStatus,
    Job,
    JobHandle,
    Limit,
    NewJob,
    Retry,
    Secret,
    Snooze,
    Step,
    Task,
    Tenure,
    outputs,
)
from tenure.testing import TestQueue

jobs = Tenure(keep="7d", keep_dead=timedelta(days=90), retry=Retry(3, on=OSError), imports=["shop.tasks"])


@dataclass
class Summary:
    commits: int


# ── the four kinds of handler, bare and with options ──


@jobs.task
def plain(name: str, times: int = 1) -> str:
    return name * times


@jobs.task(queue="slow", priority=5, retry=8, timeout="10m", aliases=["old_name"])
async def plain_async(name: str, *, loud: bool = False) -> Summary:
    return Summary(len(name) + loud)


@jobs.task
def with_job(job: Job, name: str) -> int:
    assert_type(job, Job[object])
    assert_type(job.checkpoint, object | None)
    return len(name)


@jobs.task(stale_after="5m", unique="repo:{repo_url}", isolation="process", max_crashes=1)
async def with_job_async(job: Job[int], repo_url: str) -> Summary:
    assert_type(job.checkpoint, int | None)
    assert_type(job.id, UUID)
    assert_type(job.attempt, int)
    job.progress(0.5, stage="analyse", message=repo_url, checkpoint=3)
    await job.aflush()
    assert_type(await job.aonce("fetch", fetch), bytes)
    assert_type(job.resource(Summary), Summary)
    return Summary(1)


@jobs.task
def only_job(job: Job[dict[str, int]]) -> None:
    assert_type(job.checkpoint, dict[str, int] | None)
    assert_type(job.once("charge", lambda: 3), int)
    job.finish(tx=object())


@jobs.task(timeout=timedelta(minutes=5))
def nothing(token: Secret[str]) -> None:
    assert_type(token.reveal(), str)
    raise Fail("rate limited", retry_in="90s") if token.reveal() else Snooze("10m")


async def fetch() -> bytes:
    return b""


def logged(fn: Callable[[str], Awaitable[int]]) -> Callable[[str], Awaitable[int]]:
    return fn


@jobs.task
@logged
async def decorated(name: str) -> int:
    return len(name)


def passed_around(task: Task[[str], int]) -> JobHandle[int]:
    return task.enqueue("x")


# ── schedules ──


@jobs.schedule("0 6 * * *", tz="Europe/Paris", overlap="queue", catch_up="all", expires="2h", jitter="5m")
@jobs.task
def daily_report() -> int:
    return 1


@jobs.schedule(every=timedelta(minutes=5), name="heart", start=datetime.now(UTC), pause_after=3, grace=None)
@jobs.task(queue="slow")
async def heartbeat(job: Job, what: str = "beat") -> None: ...


assert_type(daily_report, Task[[], int])
assert_type(daily_report.enqueue(), JobHandle[int])
assert_type(jobs.schedule(every="10m", name="sync-eu")(plain.bind("eu", times=2)), NewJob[str])
assert_type(jobs.schedule("@daily")(heartbeat.using(priority=5)).enqueue(what="x"), JobHandle[None])


# ── idempotency keys ──


def pay() -> Summary:
    return Summary(1)


def keys() -> None:
    assert_type(jobs.once("k", pay), Summary)
    assert_type(jobs.once("k", lambda: 3, ttl="30d", wait=timedelta(seconds=5)), int)


async def async_keys() -> None:
    assert_type(await jobs.aonce("k", fetch, ttl="30d"), bytes)


# ── enqueue, and what comes back ──


def sync_use() -> None:
    assert_type(plain.enqueue("Ada"), JobHandle[str])
    assert_type(plain.enqueue(name="Ada", times=2).result("5s"), str)
    assert_type(plain_async.enqueue("Ada", loud=True).result(), Summary)
    assert_type(with_job.enqueue("Ada").result(), int)
    assert_type(with_job_async.enqueue(repo_url="…").result(timedelta(seconds=5)), Summary)
    assert_type(decorated.enqueue("Ada"), JobHandle[int])
    assert_type(only_job.enqueue(), JobHandle[None])
    assert_type(nothing.enqueue(Secret("t0p")).created, bool)
    assert_type(plain.enqueue("Ada").cancel("no need"), bool)
    assert_type(passed_around(with_job), JobHandle[int])

    assert_type(plain.using(delay="5s", priority=-5, meta={"tenant": "a"}).enqueue("Ada"), JobHandle[str])
    assert_type(plain.using(run_at=datetime.now(UTC), retry=Retry(2)).enqueue("Ada").id, UUID)
    assert_type(with_job_async.using(unique="x", tx=object()).enqueue("…"), JobHandle[Summary])

    assert_type(plain.call("Ada"), str)
    assert_type(with_job.call("Ada"), int)
    assert_type(plain_async.call("Ada"), Summary)

    assert_type(plain.bind("Ada"), NewJob[str])
    assert_type(plain.bind("Ada").enqueue(), JobHandle[str])
    assert_type(jobs.enqueue_many(plain.bind(str(n)) for n in range(3)), list[JobHandle[str]])
    assert_type(plain.handle("0192…").result(), str)
    assert_type(jobs.handle("0192…").result(), Any)

    with jobs.transaction() as tx:
        plain.using(tx=tx).enqueue("Ada")
    with jobs, jobs.worker(queues=["default"], concurrency=2):
        pass


async def async_use() -> None:
    assert_type(await plain.aenqueue("Ada"), JobHandle[str])
    assert_type(await (await with_job_async.aenqueue("…")).aresult("5s"), Summary)
    assert_type(await (await plain.aenqueue("Ada")).acancel(), bool)
    assert_type(await plain.acall("Ada"), str)
    assert_type(await plain_async.acall("Ada"), Summary)
    assert_type(await plain.bind("Ada").aenqueue(), JobHandle[str])
    assert_type(await jobs.aenqueue_many([with_job.bind("a"), with_job.bind("b")]), list[JobHandle[int]])
    async with jobs, jobs.worker():
        pass
    async with jobs.atransaction() as tx:
        await plain.using(tx=tx).aenqueue("Ada")


# ── resources, arounds, tests ──


@jobs.resource
async def pool() -> AsyncIterator[Summary]:
    yield Summary(0)


@jobs.resource
def connection() -> Iterator[Summary]:
    yield Summary(0)


@jobs.around
def tenant(job: Job) -> Iterator[None]:
    assert_type(job.meta["tenant"], str)
    yield


@jobs.around
async def traced(job: Job) -> AsyncIterator[None]:
    yield


def in_tests() -> None:
    with jobs.testing(resources={Summary: Summary(1)}) as queue:
        assert_type(queue, TestQueue)
        assert_type(queue.assert_enqueued(plain, "Ada", times=2), JobHandle[str])
        assert_type(queue.enqueued(with_job_async), list[JobHandle[Summary]])
        assert_type(queue.drain(), int)
        queue.advance("1h")
        assert_type(queue.run_twice(plain.bind("Ada")), JobHandle[str])
        assert_type(queue.kill_after(plain.enqueue("Ada"), "checkpoint #2"), JobHandle[str])
        assert_type(queue.steal_lease(plain.enqueue("Ada"), "start"), JobHandle[str])
        assert_type(queue.kill_everywhere(lambda: plain.bind("Ada"), queue.drain), list[str])


store_transaction: AbstractContextManager[Any] = jobs.transaction()
store_atransaction: AbstractAsyncContextManager[Any] = jobs.atransaction()


# ── flows ──


@dataclass
class Page:
    number: int


@dataclass
class Approval:
    by: str


@jobs.task
def render(shop: int, number: int) -> Page:
    return Page(number)


@jobs.task
async def combine(pages: list[Page]) -> Summary:
    return Summary(len(pages))


@jobs.task
def count(pages: Iterable[Page]) -> int:
    return sum(1 for _ in pages)


@jobs.task
def mail(summary: Summary, copies: int = 1) -> None: ...


@jobs.task
def clean(summary: Ended[Summary]) -> bool:
    assert_type(summary.handle, JobHandle[Summary])
    assert_type(summary.value, Summary)
    return summary.ok


def chain() -> None:
    with jobs.flow("chain", unique="chain:7", tx=object()) as flow:
        assert_type(flow, Flow)
        page = flow.add(render.bind(7, 1))
        assert_type(page, Step[Page])
        assert_type(page.output, Page)
        assert_type(page.ended, Ended[Page])
        summary = flow.add(combine.bind(outputs([page])))
        flow.add(mail.bind(summary.output, copies=2), after=[page])
    assert_type(summary.handle, JobHandle[Summary])
    assert_type(summary.handle.result("1h"), Summary)
    assert_type(flow.created, bool)
    assert_type(flow.id, UUID)
    assert_type(flow.handle, FlowHandle)
    assert_type(jobs.flow_handle(flow.id).status(), FlowStatus)
    assert_type(jobs.flow_handle("0192…").status().progress, float)
    assert_type(jobs.flow_handle("0192…").cancel("no need"), int)


async def map_reduce() -> None:
    async with jobs.flow("map-reduce") as flow:
        pages = [flow.add(render.bind(7, n)) for n in range(3)]
        assert_type(outputs(pages), list[Page])
        summary = flow.add(combine.bind(outputs(pages)))
        flow.add(count.bind(outputs(pages)))
        flow.add(clean.bind(summary.ended))
    assert_type(await summary.handle.aresult(), Summary)
    async for status in flow.handle.updates():
        assert_type(status, FlowStatus)


def diamond(earlier: JobHandle[int]) -> None:
    with jobs.flow("diamond") as flow:
        top = flow.add(plain.bind("a"), after=[earlier])
        left, right = flow.add(plain.bind(top.output)), flow.add(plain.bind(name=top.output, times=2))
        flow.add(daily_report.bind(), after=[left, right, top.ended])
    assert_type(daily_report.using(after=[earlier, left, right.handle]).enqueue(), JobHandle[int])


@jobs.task
def saga(job: Job, shop: int) -> int:
    done = job.gather("book", lambda: [render.bind(shop, n) for n in range(3)], ended=True)
    assert_type(done, list[Ended[Page]])
    assert_type(job.gather("plain", lambda: [render.bind(shop, n) for n in range(3)]), list[Page])
    with job.flow("undo") as flow:
        undone = flow.add(plain.bind("undo"))
    assert_type(job.join(undone), Ended[str])
    assert_type(job.join(render.enqueue(1, 2)), Ended[Page])
    return sum(each.ok for each in done)


@jobs.task(signals={"approved": Approval})
async def approval(job: Job, order: int) -> str:
    assert_type(await job.aexpect("approved", Approval), Approval)
    assert_type(await job.aexpect("approved", Approval, timeout="2d", default=None), Approval | None)
    assert_type(await job.aexpect(f"paid:{order}", int, shared=True, name="pay", default="none"), int | str)
    assert_type(await job.agather("k", lambda: [render.bind(order, 1)]), list[Page])
    assert_type(await job.agather("a", listed, ended=True), list[Ended[Page]])
    async with job.flow("more") as flow:
        step = flow.add(render.bind(order, 2))
    assert_type(await job.ajoin(step), Ended[Page])
    return "approved"


async def listed() -> list[NewJob[Page]]:
    return [render.bind(1, 2)]


@jobs.task(signals={"approved": Approval})
def plain_approval(job: Job, order: int) -> str:
    assert_type(job.expect("approved", Approval), Approval)
    assert_type(job.expect("approved", Approval, timeout="2d", default=None), Approval | None)
    return "approved"


def signals() -> None:
    assert_type(approval.handle("0192…").signal("approved", Approval("ada")), bool)
    assert_type(jobs.signal("paid:7", 40), bool)
    with jobs.testing() as queue:
        queue.assert_waiting(approval.enqueue(7), signal="approved")


async def async_signals() -> None:
    assert_type(await approval.handle("0192…").asignal("approved", Approval("ada")), bool)
    assert_type(await jobs.asignal("paid:7", 40), bool)


per_shop = jobs.limit("shop:{shop}", concurrency=2, rate="100/1m", burst=10)
assert_type(per_shop, Limit)


@jobs.task(limit=per_shop)
def limited(shop: int) -> int:
    raise Snooze("30s", limit=per_shop)


@jobs.task(limit=(per_shop, jobs.limit("renders", concurrency=50)))
async def limited_twice(shop: int) -> int:
    await jobs.limits.apause(per_shop, "30s")
    return (await jobs.limits.astatus(per_shop.key(shop=shop))).key.held


def limits() -> None:
    assert_type(limited.using(limit=()).enqueue(7), JobHandle[int])
    assert_type(limited.using(limit=[per_shop]).enqueue(7), JobHandle[int])
    assert_type(jobs.limits.resume("shop:42"), bool)
    jobs.limits.set("shop:42", concurrency=10)
    assert_type([each.bounds.concurrency for each in jobs.limits.list()], list[int | None])
    with jobs.testing(limits=True) as queue:
        queue.assert_waiting(limited.enqueue(7), limit="shop:7")
