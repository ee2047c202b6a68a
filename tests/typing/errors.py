"""Wrong uses. Each ignored line must stay an error for mypy and for basedpyright, which refuse an unused ignore."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from tenure import Fail, Job, Retry, Secret, Snooze, Task, Tenure, outputs

jobs = Tenure()


@jobs.task
def plain(name: str, times: int = 1) -> str:
    return name * times


@jobs.task
async def with_job(job: Job[int], repo_url: str) -> int:
    job.progress(checkpoint="three")  # type: ignore[arg-type]
    job.progress(stage=3)  # type: ignore[arg-type]
    job.finish(1)  # type: ignore[call-arg]
    return len(repo_url)


@jobs.task
def bare(job: Job, n: int) -> None:
    job.checkpoint + n  # type: ignore[operator]


# ── arguments ──

plain.enqueue(3)  # type: ignore[arg-type]
plain.enqueue()  # type: ignore[call-arg]
plain.enqueue("Ada", 1, 2)  # type: ignore[call-arg]
plain.enqueue(nome="Ada")  # type: ignore[call-arg]
plain.enqueue("Ada", queue="slow")  # type: ignore[call-arg]
plain.bind(3)  # type: ignore[arg-type]
plain.call(3)  # type: ignore[arg-type]
with_job.enqueue(3)  # type: ignore[arg-type]
with_job.enqueue(job=None, repo_url="…")  # type: ignore[call-arg]
bare.enqueue("three")  # type: ignore[arg-type]
plain("Ada")  # type: ignore[operator]

# ── options ──

plain.using(delay=5)  # type: ignore[arg-type]
plain.using(name="Ada")  # type: ignore[arg-type]
plain.using(meta={"n": 1})  # type: ignore[dict-item]
jobs.task(timeout=60)  # type: ignore[call-overload]
jobs.task(isolation="thread")  # type: ignore[call-overload]
jobs.task("name")  # type: ignore[call-overload]
Tenure(keep=7)  # type: ignore[arg-type]
Retry(on=KeyboardInterrupt)  # type: ignore[arg-type]
Snooze(10)  # type: ignore[arg-type]
Fail("no", True)  # type: ignore[call-arg, arg-type]

# ── results ──

number: int = plain.enqueue("Ada").result()  # type: ignore[assignment]
text: str = with_job.enqueue("…").result("5s")  # type: ignore[assignment]
plain.enqueue("Ada").result(5)  # type: ignore[arg-type]
taken: Task[[int], str] = plain  # type: ignore[assignment]
jobs.enqueue_many([plain])  # type: ignore[arg-type]
secret: Secret[int] = Secret("t0p")  # type: ignore[arg-type]


async def lost() -> None:
    plain.aenqueue("Ada")  # type: ignore[unused-coroutine]
    plain.bind("Ada").aenqueue()  # type: ignore[unused-coroutine]
    await plain.enqueue("Ada")  # type: ignore[misc]
    with jobs.atransaction():  # type: ignore[attr-defined]
        pass


# ── schedules and keys ──

jobs.schedule("@daily", every=60)  # type: ignore[arg-type]
jobs.schedule("@daily", overlap="wait")  # type: ignore[arg-type]
jobs.schedule("@daily", catch_up=True)  # type: ignore[arg-type]
jobs.schedule("@daily", jitter=5)  # type: ignore[arg-type]
jobs.schedule("@daily", cathc_up="all")  # type: ignore[call-arg]
jobs.schedule(60)  # type: ignore[arg-type]
jobs.once("k", lambda: 3, ttl=60)  # type: ignore[arg-type]
kept: str = jobs.once("k", lambda: 3)  # type: ignore[assignment]
jobs.once("k", plain)  # type: ignore[arg-type]


@jobs.schedule("@daily")  # type: ignore[type-var]
def no_task() -> None: ...


@jobs.schedule("@daily")  # type: ignore[type-var]
@jobs.task
def needs_arguments(region: str) -> None: ...


# ── resources and arounds ──


@jobs.resource  # type: ignore[arg-type]
def no_generator() -> int:
    return 1


@jobs.around  # type: ignore[arg-type]
def no_job() -> None: ...


def in_tests() -> None:
    with jobs.testing() as queue:
        queue.assert_enqueued(plain, 3)  # type: ignore[arg-type]
        queue.assert_enqueued(plain, nome="Ada")  # type: ignore[call-arg]
        queue.advance(3600)  # type: ignore[arg-type]


# ── flows and signals ──


@jobs.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@jobs.task(signals={"approved": str})
def waits(job: Job) -> int:
    job.gather("k", lambda: [plain.bind("a")])[0] + 1  # type: ignore[operator]
    job.gather("k", lambda: [plain])  # type: ignore[arg-type, return-value]
    job.gather("k", plain.bind("a"))  # type: ignore[call-overload]
    job.join(plain)  # type: ignore[arg-type]
    job.expect("approved", str, timeout=5)  # type: ignore[call-overload]
    found: str = job.expect("approved", str, default=None)  # type: ignore[assignment]
    return len(found)


def flows() -> None:
    with jobs.flow("f") as flow:
        text = flow.add(plain.bind("Ada"))
        flow.add(total.bind(text.output))  # type: ignore[arg-type]
        flow.add(total.bind(outputs([text])))  # type: ignore[list-item]
        flow.add(plain.bind(text))  # type: ignore[arg-type]
        flow.add(plain.bind(text.ended))  # type: ignore[arg-type]
        flow.add(plain)  # type: ignore[arg-type]
        flow.add(plain.bind("b"), after=[text.output])  # type: ignore[list-item]
        flow.add(plain.bind("b"), after=text)  # type: ignore[arg-type]
    number: int = text.handle.result()  # type: ignore[assignment]
    plain.using(after=["0192…"])  # type: ignore[list-item]
    jobs.flow()  # type: ignore[call-arg]
    jobs.task(signals=["approved"])  # type: ignore[call-overload]
    plain.handle("0192…").signal("approved", 1, 2)  # type: ignore[call-arg]
    print(number)


def limits() -> None:
    jobs.limit("github", rate=100)  # type: ignore[arg-type]
    jobs.limit("github", at_most=3)  # type: ignore[call-arg]
    jobs.task(limit="github")  # type: ignore[arg-type]
    plain.using(limit="github")  # type: ignore[arg-type]
    Snooze("30s", limit="github")  # type: ignore[arg-type]
    jobs.limits.pause(7)  # type: ignore[arg-type]
