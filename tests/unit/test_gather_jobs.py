"""Jobs that gather and join others: they give their slot back, and run again from the top."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tenure import Ended, Fail, Job, JobHandle, NewJob, Snooze, Tenure
from tenure.core.ids import new_id
from tenure.core.lifecycle import State
from tenure.errors import InvalidArguments, InvalidOption, Refused, StoreError, TenureError, UnknownJob, WouldBlock
from tenure.ports import Edit, Landed
from tenure.testing import TestQueue
from tenure.testing.trap import Killed

jobs = Tenure("sqlite:////nowhere/at/all.db")
calls: list[str] = []
fails: set[int] = set()
returns: dict[int, Any] = {}


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()
    fails.clear()
    returns.clear()


@pytest.fixture
def queue() -> Iterator[TestQueue]:
    with jobs.testing() as queue:
        yield queue


@jobs.task
def double(n: int) -> int:
    if n in fails:
        raise Fail(f"no {n}", final=True)
    return returns.get(n, n * 2)


def listed(count: int) -> list[NewJob[int]]:
    calls.append("listed")
    return [double.bind(n) for n in range(count)]


@jobs.task
def total(job: Job, count: int = 3) -> int:
    calls.append(f"attempt {job.attempt}")
    return sum(job.gather("doubles", lambda: listed(count)))


@jobs.task
async def atotal(job: Job, count: int = 3) -> int:
    return sum(await job.agather("doubles", lambda: listed(count)))


@jobs.task
def ends(job: Job, count: int = 3) -> list[str]:
    return [str(each.value) if each.ok else each.error for each in job.gather("e", lambda: listed(count), ended=True)]


def state(handle: JobHandle[Any]) -> str:
    return handle.status().state


def run(
    queue: TestQueue, handler: Callable[[Job], Any], *, raises: type[Exception] | None = None, match: str = "."
) -> Any:
    """The result of a job with this handler, or the error that its first failure raises."""
    task = jobs.task(name=f"handler_{len(jobs.tasks)}")(_annotated(handler))
    handle = task.enqueue()
    if raises is None:
        queue.drain()
        return handle.result("0s")
    with pytest.raises(raises, match=match) as raised:
        queue.drain()
    return raised.value


def _annotated(handler: Callable[[Job], Any]) -> Callable[[Job], Any]:
    handler.__annotations__ = {"job": Job}
    return handler


# ── what a gather does ──


def test_a_gather_returns_the_results_in_order_and_calls_its_function_once(queue: TestQueue) -> None:
    handle = total.enqueue()
    assert queue.drain() == 5

    assert handle.result("0s") == 6
    assert calls == ["attempt 1", "listed", "attempt 2"]
    status = handle.status()
    assert (status.failures, status.attempt) == (0, 2)


def test_an_async_gather_takes_a_plain_or_an_async_function(queue: TestQueue) -> None:
    @jobs.task
    async def both(job: Job) -> list[int]:
        async def found() -> list[NewJob[int]]:
            return listed(2)

        async with asyncio.TaskGroup() as group:
            one = group.create_task(job.agather("one", found))
            two = group.create_task(job.agather("two", lambda: listed(1)))
        return [*one.result(), *two.result()]

    handle, other = both.enqueue(), atotal.enqueue()
    queue.drain()

    assert handle.result("0s") == [0, 2, 0]
    assert other.result("0s") == 6
    assert calls.count("listed") == 3
    assert handle.status().attempt == 2  # both waited together


def test_a_gather_of_nothing_goes_on_at_once(queue: TestQueue) -> None:
    handle = total.enqueue(0)
    assert queue.drain() == 1

    assert handle.result("0s") == 0


def test_hundreds_of_jobs_with_long_arguments_are_gathered(queue: TestQueue) -> None:
    @jobs.task
    def length(text: str) -> int:
        return len(text)

    @jobs.task
    def long(job: Job) -> list[int]:
        return job.gather("long", lambda: [length.bind("x" * 1000 + str(n)) for n in range(450)])

    made: list[JobHandle[list[int]]] = []

    def new() -> JobHandle[list[int]]:
        made.append(long.enqueue())
        return queue.kill_after(made[-1], "listed long")

    with suppress(Killed):
        new()
    assert queue.enqueued(length) == []  # the list is recorded, and nothing else
    queue.drain()

    assert made[0].result("0s") == [1000 + len(str(n)) for n in range(450)]


@pytest.mark.parametrize("task", [total, atotal])
def test_a_gatherer_that_dies_anywhere_gathers_each_job_once(queue: TestQueue, task: Any) -> None:
    handles: list[JobHandle[int]] = []

    def new() -> JobHandle[int]:
        handles.append(task.enqueue())
        return handles[-1]

    def check() -> None:
        assert handles[-1].result("0s") == 6
        assert len(queue.enqueued(double)) == 3 * len(handles)

    points = queue.kill_everywhere(new, check)

    assert {"listed doubles", "gather doubles", "end", "start #2", "outcome #2"} <= set(points)


@pytest.mark.parametrize("task", [total, atotal])
@pytest.mark.parametrize("point", ["listed doubles", "gather doubles", "end", "outcome", "start #2", "end #2"])
def test_the_function_of_a_gather_is_not_called_again(queue: TestQueue, task: Any, point: str) -> None:
    handle = queue.kill_after(task.enqueue(), point)
    queue.drain()

    assert handle.result("0s") == 6
    assert calls.count("listed") == 1


def test_a_dead_child_holds_its_gatherer_until_it_is_replayed_or_skipped(queue: TestQueue) -> None:
    fails.add(1)
    handle, other = total.enqueue(), total.enqueue()
    for _ in range(2):
        with pytest.raises(Fail, match="no 1"):
            queue.drain()
    queue.drain()
    queue.assert_waiting(handle)
    dead = [each for each in queue.enqueued(double) if state(each) == "dead"]

    fails.clear()
    queue._store.replay([str(dead[0].id)])
    queue._store.skip([str(dead[1].id)])
    queue.drain()

    assert {handle.result("0s"), other.result("0s")} == {6, 4}


def test_with_ended_a_gather_returns_how_each_ended(queue: TestQueue) -> None:
    fails.add(1)
    handle = ends.enqueue()
    with pytest.raises(Fail, match="no 1"):
        queue.drain()
    queue.drain()

    assert handle.result("0s") == ["0", "no 1", "4"]


def test_a_gathered_job_that_was_replayed_is_waited_for_again(queue: TestQueue) -> None:
    def mends(job: Job) -> list[str]:
        calls.append("mends")
        assert calls.count("mends") < 10, "it runs again and again"
        ends = job.gather("d", lambda: [double.bind(n) for n in range(3)], ended=True)
        dead = [each.handle for each in ends if not each.ok]
        for each in dead:
            fails.clear()
            queue._store.replay([str(each.id)])
        return [job.join(each).state for each in dead] or [str(each.value) for each in ends]

    fails.add(1)
    handle = jobs.task(name="mends")(_annotated(mends)).enqueue()
    with pytest.raises(Fail, match="no 1"):
        queue.drain()
    queue.drain()

    assert handle.result("0s") == ["0", "2", "4"]
    assert calls == ["mends", "mends", "mends"]


def test_a_gathered_job_that_was_replayed_while_a_signal_is_waited_for_is_gathered_again(queue: TestQueue) -> None:
    @jobs.task(signals={"go": int})
    def saga(job: Job) -> str:
        calls.append("saga")
        assert calls.count("saga") < 10, "it runs again and again"
        ends = job.gather("d", lambda: [double.bind(n) for n in range(3)], ended=True)
        job.expect("go", int)
        return ",".join(each.state for each in ends)

    fails.add(1)
    handle = saga.enqueue()
    with pytest.raises(Fail, match="no 1"):
        queue.drain()
    queue.drain()
    (dead,) = (each for each in queue.enqueued(double) if state(each) == "dead")
    fails.clear()
    queue._store.replay([str(dead.id)], delays={str(dead.id): 60})
    handle.signal("go", 1)
    calls.clear()
    queue.drain()
    assert calls == ["saga"]
    queue.assert_waiting(handle)

    queue.advance("61s")
    queue.drain()
    assert handle.result("0s") == "completed,completed,completed"


def test_a_cancelled_child_cancels_its_gatherer_or_is_one_of_its_ends(queue: TestQueue) -> None:
    needs, takes = total.enqueue(), ends.enqueue()
    queue.kill_after(needs, "outcome")
    queue.kill_after(takes, "outcome")
    for handle in queue.enqueued(double):
        if state(handle) == "queued":
            handle.cancel("no need")
    queue.drain()

    assert state(needs) == "cancelled"
    assert "which was cancelled" in (needs.status().error or "")
    assert set(takes.result("0s")) == {"no need"}


def test_the_children_of_a_gatherer_that_is_cancelled_are_cancelled_and_a_replay_gathers_anew(
    queue: TestQueue,
) -> None:
    handle = total.enqueue()
    queue.kill_after(handle, "outcome")
    handle.cancel("no need")
    queue.drain()
    assert {state(each) for each in queue.enqueued(double)} == {"cancelled"}

    assert isinstance(queue._store.replay([str(handle.id)])[str(handle.id)], Landed)
    queue.drain()

    assert handle.result("0s") == 6
    assert calls.count("listed") == 2
    assert len(queue.enqueued(double)) == 6


def test_children_that_were_cancelled_before_it_was_known_which_they_are_are_gathered_anew(queue: TestQueue) -> None:
    handle = queue.kill_after(total.enqueue(), queue.client.enqueue)
    assert len(queue.enqueued(double)) == 3
    handle.cancel("no need")
    queue.drain()
    assert {state(each) for each in queue.enqueued(double)} == {"cancelled"}

    queue._store.replay([str(handle.id)])
    queue.drain()

    assert handle.result("0s") == 6
    assert calls.count("listed") == 2


def test_children_that_were_stored_before_it_was_known_which_they_are_are_gathered_once(queue: TestQueue) -> None:
    handle = queue.kill_after(total.enqueue(), queue.client.enqueue)
    queue.drain()

    assert handle.result("0s") == 6
    assert (calls.count("listed"), len(queue.enqueued(double))) == (1, 3)


def test_a_job_that_is_cancelled_before_it_was_known_which_they_are_is_one_of_the_ends(queue: TestQueue) -> None:
    handle = queue.kill_after(ends.enqueue(), queue.client.enqueue)
    queue.enqueued(double)[0].cancel("no need")
    queue.drain()

    assert sorted(handle.result("0s")) == ["2", "4", "no need"]
    assert (calls.count("listed"), len(queue.enqueued(double))) == (1, 3)


def test_a_gather_reads_the_results_once(queue: TestQueue) -> None:
    read: list[int] = []
    inputs = queue._store.inputs

    def counted(job_id: str, *, start: int = 0, limit: int = 200) -> Any:
        read.append(start)
        return inputs(job_id, start=start, limit=limit)

    handle = total.enqueue()
    queue._store.inputs = counted  # type: ignore[method-assign]
    queue.drain()

    assert handle.result("0s") == 6
    assert len(read) == 2  # when it had stored the jobs, and when they had ended


def test_a_job_of_another_store_is_not_gathered(queue: TestQueue) -> None:
    other = Tenure("sqlite:////nowhere/else.db")

    @other.task
    def far() -> int:
        return 7

    run(queue, lambda job: job.gather("k", lambda: [far.bind()]), raises=InvalidOption, match="is in another store")
    assert queue.enqueued(double) == []


def test_an_edited_replay_makes_another_list_and_a_plain_one_does_not(queue: TestQueue) -> None:
    handle = total.enqueue()
    queue.drain()
    queue._store.replay([str(handle.id)])
    queue.drain()
    assert calls.count("listed") == 1

    queue._store.replay([str(handle.id)], edits={str(handle.id): Edit('{"count":4}', "{}")})
    queue.drain()

    assert handle.result("0s") == 12
    assert calls.count("listed") == 2


def test_a_gathered_job_whose_unique_key_is_held_is_the_one_that_holds_it(queue: TestQueue) -> None:
    held = double.using(unique="k", delay="1h").enqueue(50)

    @jobs.task
    def holds(job: Job) -> list[int]:
        return job.gather("k", lambda: [double.using(unique="k").bind(1), double.bind(2)])

    handle = holds.enqueue()
    queue.drain()
    queue.assert_waiting(handle, after=held)
    handle.cancel()
    queue.drain()
    assert state(held) == "scheduled"  # it does not belong to this job
    again = holds.enqueue()
    queue.drain()
    queue.advance("1h")
    queue.drain()

    assert again.result("0s") == [100, 4]


def test_a_result_that_does_not_fit_any_more_waits_for_other_code(queue: TestQueue) -> None:
    returns[1] = "two"
    handle = total.enqueue()
    with pytest.raises(InvalidArguments, match=r"double: its result does not fit its type: .*; it is the result of"):
        queue.drain()

    assert (state(handle), handle.status().failures) == ("scheduled", 0)


def test_without_a_store_a_gather_runs_the_jobs_at_once() -> None:
    fails.add(1)

    assert total.call(1) == 0
    assert asyncio.run(atotal.acall(1)) == 0
    assert ends.call(2) == ["0", "Fail: no 1"]
    with pytest.raises(Fail):
        total.call(2)


# ── misuse ──


def test_a_gather_whose_function_raises_stores_nothing_and_fails(queue: TestQueue) -> None:
    run(queue, lambda job: job.gather("k", lambda: [1 // 0]), raises=ZeroDivisionError)  # type: ignore[list-item]

    assert queue.enqueued(double) == []


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        (lambda: [3], "expected jobs like render.bind"),
        (lambda: double.bind(1), "expected a list of jobs"),
        (lambda: [double], "expected jobs like render.bind"),
        (lambda: None, "expected a list of jobs"),
        (lambda: [double.enqueue(1)], "bind makes a job, enqueue stores it"),
        (lambda: [double.using(tx=object()).bind(1)], "is to join a transaction"),
        (lambda: [double.bind(n) for n in range(10_001)], "at most 10,000 others, got 10,001"),
    ],
)
def test_a_gather_takes_jobs_and_nothing_else(queue: TestQueue, fn: Any, sentence: str) -> None:
    run(queue, lambda job: job.gather("k", fn), raises=InvalidOption, match=sentence)


def test_a_second_gather_under_one_key_is_refused(queue: TestQueue) -> None:
    """It returned the results of the first one, whatever it listed."""

    def days(job: Job) -> list[int]:
        return [each for n in (1, 2) for each in job.gather("days", lambda n=n: [double.bind(n)])]  # type: ignore[misc]

    async def adays(job: Job) -> list[int]:
        return [each for n in (1, 2) for each in await job.agather("days", lambda n=n: [double.bind(n)])]  # type: ignore[misc]

    for handler in (days, adays):
        run(queue, handler, raises=InvalidOption, match="this attempt has gathered under this key")
    with pytest.raises(InvalidOption, match="a key of its own"):
        jobs.task(name="days")(days).call()


def test_a_gather_on_a_loop_is_awaited(queue: TestQueue) -> None:
    async def handler(job: Job) -> object:
        return job.gather("k", lambda: listed(1))

    run(queue, handler, raises=WouldBlock, match=r"await job\.agather")
    assert calls == []


def test_two_gathers_of_one_key_at_once_are_refused(queue: TestQueue) -> None:
    async def handler(job: Job) -> object:
        first = job.agather("k", lambda: listed(1))
        second = job.agather("k", lambda: listed(1))
        return await asyncio.gather(first, second)

    run(queue, handler, raises=InvalidOption, match="under way already: give each its own key")


def test_what_would_wait_for_the_transaction_of_a_handler_is_refused_before_it_waits(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    said: list[str] = []

    @jobs.task(retry=1)
    async def handler(job: Job) -> str:
        job.progress(0.5)
        async with jobs.atransaction() as tx:
            for wait in (lambda: job.aonce("k", lambda: 1), job.aflush):
                with pytest.raises(StoreError, match=r"inside jobs\.transaction\(\)") as raised:
                    await wait()
                said.append(str(raised.value).partition(", ")[2].partition(" writes")[0])
            await job.afinish("done", tx=tx)
        return "done"

    with jobs, jobs.worker():
        assert handler.enqueue().result("60s") == "done"
    assert said == ["await job.aonce(…)", "await job.aflush()"]


def test_nothing_is_gathered_inside_a_transaction(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    said: list[str] = []

    @jobs.task(retry=1, signals={"go": int})
    def handler(job: Job) -> None:
        with jobs.transaction():
            for wait in (
                lambda: job.gather("k", list),
                lambda: job.expect("go", int),
                lambda: job.join(handler.handle(job.id)),
            ):
                with pytest.raises(StoreError, match=r"inside jobs\.transaction\(\)") as raised:
                    wait()
                said.append(str(raised.value))

    with jobs, jobs.worker(concurrency=1):
        handler.enqueue().result("60s")
    assert len(said) == 3


@pytest.mark.parametrize("swallow", [BaseException, BaseExceptionGroup])
def test_a_handler_that_swallows_the_suspension_is_suspended_all_the_same(
    queue: TestQueue, swallow: type[BaseException]
) -> None:
    @jobs.task(name=f"swallows_{swallow.__name__}")
    async def swallows(job: Job) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(job.agather("k", lambda: listed(2)))
        except swallow:
            return "swallowed"
        return "went on"

    handle = swallows.enqueue()
    queue.drain()

    assert handle.result("0s") == "went on"


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("then", ["raises another", "goes on and fails", "fails in its finally", "fails", "snoozes"])
def test_what_a_handler_raises_after_the_suspension_does_not_count(queue: TestQueue, kind: str, then: str) -> None:
    def after() -> None:
        calls.append(then)
        raise {"fails": Fail("the gather failed"), "snoozes": Snooze("1h")}.get(then) or RuntimeError("it failed")

    def plain(job: Job) -> int:
        try:
            found = job.gather("k", lambda: listed(2))
        except BaseException:
            if then != "goes on and fails":
                after()
        finally:
            if then == "fails in its finally" and job.attempt == 1:
                after()
        return sum(found)  # pyright: ignore[reportPossiblyUnboundVariable]

    async def coroutine(job: Job) -> int:
        try:
            found = await job.agather("k", lambda: listed(2))
        except BaseException:
            if then != "goes on and fails":
                after()
        finally:
            if then == "fails in its finally" and job.attempt == 1:
                after()
        return sum(found)  # pyright: ignore[reportPossiblyUnboundVariable]

    handler = plain if kind == "def" else coroutine
    handle = jobs.task(name=f"{kind} {then}".replace(" ", "_"), retry=1)(handler).enqueue()
    queue.drain()

    assert handle.result("0s") == 2
    assert handle.status().failures == 0


def test_a_final_failure_after_the_suspension_counts(queue: TestQueue) -> None:
    def handler(job: Job) -> None:
        try:
            job.gather("k", lambda: listed(2))
        except BaseException as error:
            raise Fail("no", final=True) from error

    error = run(queue, handler, raises=Fail)
    assert str(error) == "no"


def test_beside_another_error_a_suspension_does_not_count(queue: TestQueue) -> None:
    async def handler(job: Job) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(job.agather("k", lambda: listed(2)))
            group.create_task(fail(), name="after").add_done_callback(lambda _: None)

    async def fail() -> None:
        raise OSError("disk")

    error = run(queue, handler, raises=Exception)
    assert isinstance(error, ExceptionGroup | OSError)


def test_a_gather_in_a_thread_of_the_handler_suspends_it_too(queue: TestQueue) -> None:
    def handler(job: Job) -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: job.gather("k", lambda: listed(2))).result()

    def silent(job: Job) -> str:
        thread = threading.Thread(target=lambda: suppress_all(lambda: job.gather("k", lambda: listed(2))))
        thread.start()
        thread.join()
        return "went on"

    assert run(queue, handler) == [0, 2]
    assert run(queue, silent) == "went on"


def suppress_all(call: Callable[[], object]) -> None:
    with suppress(BaseException):
        call()


def test_a_suspended_job_is_not_finished_in_a_transaction(queue: TestQueue) -> None:
    def handler(job: Job) -> None:
        suppress_all(lambda: job.gather("k", lambda: listed(1)))
        job.finish(tx=object())

    run(queue, handler, raises=StoreError, match="after the job was suspended")


# ── circles ──


def test_jobs_that_gather_each_other_are_refused(queue: TestQueue) -> None:
    links: dict[str, list[str]] = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": []}

    @jobs.task
    def crawl(job: Job, url: str) -> str:
        job.gather("links", lambda: [crawl.using(unique=each).bind(each) for each in links[url]])
        return url

    crawl.using(unique="a").enqueue("a")
    with pytest.raises(Fail, match=r"job\.gather\('links'\): this job, .*, would wait for .*, which waits") as raised:
        queue.drain()
    views = [queue._store.get(str(each.id)) for each in queue.enqueued(crawl)]
    by_key = {view.unique: jobs.handle(view.id) for view in views if view is not None}
    c, a, b = (str(by_key[each].id) for each in "cab")
    assert f"{c}, would wait for {a}, which waits for {b}, which waits for this job" in str(raised.value)
    queue.drain()
    assert [state(by_key[each]) for each in "abcd"] == ["waiting", "waiting", "dead", "completed"]


@pytest.mark.parametrize("through", ["after", "a flow"])
def test_a_gathered_job_that_waits_for_its_gatherer_is_refused(queue: TestQueue, through: str) -> None:
    def handler(job: Job) -> object:
        mine = jobs.handle(job.id)
        if through == "a flow":
            with jobs.flow("f") as flow:
                last = flow.add(double.bind(flow.add(double.bind(1), after=[mine]).output))
            mine = last.handle
        return job.gather("k", lambda: [double.bind(1), double.using(after=[mine]).bind(2)])

    error = run(queue, handler, raises=Fail, match="which waits for this job: none of them would ever end")

    assert error.final


# ── join, and flows of a job ──


def test_a_join_keeps_the_run_open_until_the_flow_has_ended(queue: TestQueue) -> None:
    fails.add(4)

    @jobs.task
    def nightly(job: Job) -> list[str]:
        calls.append("nightly")
        with job.flow("f") as flow:
            steps = [flow.add(double.bind(3)), flow.add(double.bind(4))]
        return [each.state for each in map(job.join, steps)]

    handle = nightly.enqueue()
    with pytest.raises(Fail):
        queue.drain()
    queue.drain()

    assert handle.result("0s") == ["completed", "dead"]
    assert len(queue.enqueued(double)) == 2


def test_a_job_makes_its_flow_once_wherever_it_dies(queue: TestQueue) -> None:
    made: list[int] = []

    @jobs.task
    async def parent(job: Job) -> int:
        async with job.flow("f") as flow:
            step = flow.add(double.bind(3))
        ended = await job.ajoin(step)
        assert isinstance(ended, Ended)
        return ended.value

    def check() -> None:
        made.append(1)
        assert len(queue.enqueued(double)) == len(made)

    points = queue.kill_everywhere(parent.enqueue, check)

    assert {"flow f", "flow f #2", "end"} <= set(points)


@pytest.mark.parametrize("kind", ["with", "async with"])
def test_a_second_flow_of_one_key_is_refused_if_it_has_other_steps(queue: TestQueue, kind: str) -> None:
    """It used to get the steps of the first one, and so their results."""

    def handler(job: Job) -> object:
        for n in (1, 1, 2):
            with job.flow("report") as flow:
                flow.add(double.bind(n))
        return None

    async def ahandler(job: Job) -> object:
        for n in (1, 1, 2):
            async with job.flow("report") as flow:
                flow.add(double.bind(n))
        return None

    why = r"job\.flow\('report'\): this attempt has made another flow under this key; give each flow a key of its own"
    run(queue, handler if kind == "with" else ahandler, raises=InvalidOption, match=why)
    assert len(queue.enqueued(double)) == 1


def test_a_flow_that_was_rolled_back_may_be_made_with_other_steps(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")

    @jobs.task
    def step(n: int) -> int:
        return n

    @jobs.task(retry=1)
    def parent(job: Job) -> int:
        with pytest.raises(ZeroDivisionError), jobs.transaction() as tx, job.flow("f", tx=tx) as flow:
            flow.add(step.bind(1))
            raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError), jobs.transaction() as tx:
            with job.flow("f", tx=tx) as flow:
                flow.add(step.bind(2))
            raise ZeroDivisionError
        with job.flow("f") as flow:
            last = flow.add(step.bind(3))
        return job.join(last).value

    with jobs, jobs.worker():
        assert parent.enqueue().result("60s") == 3


@pytest.mark.parametrize("others", [True, False], ids=["beside steps of its own", "all of its steps"])
def test_a_job_that_stands_for_a_step_does_so_in_every_attempt(queue: TestQueue, others: bool) -> None:
    double.using(unique="one", delay="1h").enqueue(1)

    @jobs.task(name=f"stood_for_{others}")
    def parent(job: Job) -> int:
        with job.flow("f") as flow:
            step = flow.add(double.using(unique="one").bind(1))
            if others:
                flow.add(double.bind(step.output))
        return job.join(step).value

    handle = parent.enqueue()
    queue.drain()
    queue.assert_waiting(handle)
    queue.advance("1h")
    queue.drain()

    assert handle.result("0s") == 2
    assert len(queue.enqueued(double)) == 1 + others


def test_a_step_whose_job_is_its_own_is_that_whatever_was_recorded(queue: TestQueue) -> None:
    """The record may be of an attempt whose transaction was undone: it had found another job for the step."""
    other, found = double.enqueue(1), list[Any]()
    assert other.cancel("enough")

    @jobs.task
    def maker(job: Job) -> int:
        with job.flow("f") as flow:
            job._attempt.record(flow._record, f'{{"1":"{other.id}"}}')  # type: ignore[attr-defined]
            step = flow.add(double.using(unique="one").bind(1))
            flow.add(double.bind(step.output))
        found.append(step.handle.id)
        return job.join(step).value

    handle = maker.enqueue()
    queue.drain()

    assert (handle.result("0s"), len(found), len(set(found))) == (2, 2, 1)


def test_a_flow_made_by_another_call_does_not_know_which_job_stands_for_a_step(queue: TestQueue) -> None:
    double.using(unique="one", delay="1h").enqueue(1)

    def make() -> list[Any]:
        with jobs.flow("f", unique="day") as flow:
            step = flow.add(double.using(unique="one").bind(1))
            return [step, flow.add(double.using(unique="two").bind(step.output))]

    first, again = make(), make()

    assert first[1].handle.id == again[1].handle.id
    assert first[0].handle.status().state is State.SCHEDULED
    with pytest.raises(TenureError, match="another job had its unique key and stands for it"):
        _ = again[0].handle


def test_a_join_returns_how_a_job_ended_or_says_that_there_is_none(queue: TestQueue) -> None:
    done, gone = double.enqueue(2), double.enqueue(3)
    queue.drain()
    queue._store.delete([str(gone.id)])

    assert run(queue, lambda job: job.join(done).value) == 4
    run(queue, lambda job: job.join(gone), raises=UnknownJob, match=f"there is no job {gone.id}")
    run(queue, lambda job: job.join(3), raises=InvalidOption, match="expected a handle or a step")  # type: ignore[arg-type]
    far = Tenure("sqlite:////nowhere/else.db").handle(done.id)
    run(queue, lambda job: job.join(far), raises=InvalidOption, match=r"job\.join: job .* is in another store")


def test_a_join_that_has_returned_returns_the_same_once_the_job_is_pruned(queue: TestQueue) -> None:
    done = double.enqueue(2)
    queue.drain()

    @jobs.task(signals={"go": int})
    def waits(job: Job) -> tuple[int, int]:
        return job.join(done).value, job.expect("go", int)

    handle = waits.enqueue()
    queue.drain()
    queue.advance("8d")
    assert queue._store.prune(keep=7 * 86_400.0, keep_dead=None) == 1
    handle.signal("go", 7)
    queue.drain()

    assert tuple(handle.result("0s")) == (4, 7)


def test_a_join_of_a_job_that_waits_for_this_one_is_refused(queue: TestQueue) -> None:
    later: list[JobHandle[Any]] = []

    @jobs.task(retry=1)
    def first(job: Job) -> None:
        job.join(later[0])

    handle = first.enqueue()
    between = double.using(after=[handle]).enqueue(1)
    later.append(double.using(after=[between]).enqueue(2))
    with pytest.raises(Refused, match=f"job {later[0].id} waits for this job, {handle.id}: neither would ever end"):
        queue.drain()

    itself = first.enqueue()
    later[0] = itself
    with pytest.raises(Refused, match="neither would ever end"):
        queue.drain()


def test_without_a_store_nothing_is_joined() -> None:
    @jobs.task
    def joins(job: Job) -> None:
        job.join(double.handle(job.id))

    with pytest.raises(TenureError, match=r"job\.join\(…\) needs a store, and \.call\(\) has none"):
        joins.call()


def test_what_waits_is_said_where_a_result_is_waited_for(queue: TestQueue) -> None:
    fails.add(1)
    handle = total.enqueue()
    with pytest.raises(Fail):
        queue.drain()
    queue.drain()

    with pytest.raises(TimeoutError, match=r"is still waiting after 0ms; it waits for double .*, which is dead"):
        handle.result("0s")
    assert handle.status().state is State.WAITING


def test_a_call_refuses_what_is_no_list_of_jobs_as_a_worker_does() -> None:
    def sums(job: Job, wrong: str) -> int:
        lists: dict[str, Any] = {"one job": double.bind(1), "handles": [double.handle(new_id())]}
        return sum(job.gather("parts", lambda: lists[wrong]))

    with pytest.raises(
        InvalidOption, match=r"job.gather\('parts'\): expected a list of jobs like render.bind\(1\), got"
    ):
        jobs.task(name="sums")(sums).call("one job")
    with pytest.raises(InvalidOption, match="bind makes a job, enqueue stores it"):
        jobs.task(name="sums")(sums).call("handles")
