"""Signals: one value, once, to one job or to all that wait for a key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure import Fail, Job, JobHandle, Tenure
from tenure.errors import InvalidArguments, InvalidOption, JobFailed, StoreError, TenureError, UnknownJob, WouldBlock
from tenure.ports import Claimed, Landed, Store
from tenure.tasks.expects import asked_for
from tenure.tasks.job import MISSING

jobs = Tenure("sqlite:////nowhere/at/all.db")
asked: list[str] = []
LATE = "the signal 'approved' did not arrive in time"


@dataclass
class Approval:
    by: str


@pytest.fixture(autouse=True)
def forget() -> None:
    asked.clear()


@jobs.task(signals={"approved": Approval})
async def approve(job: Job, order: int) -> str:
    got = await job.aexpect("approved", Approval, timeout="2d", default=None)
    if got is None:
        await job.aonce("escalate", partial(escalate, order))
        got = await job.aexpect("approved", Approval, timeout="5d", default=None, name="boss")
    return got.by if got else "expired"


async def escalate(order: int) -> None:
    asked.append(f"boss of {order}")


@jobs.task(signals={"approved": Approval}, retry=1)
def needed(job: Job) -> str:
    return job.expect("approved", Approval, timeout="1h").by


@jobs.task(signals={"approved": Approval}, retry=3)
def fragile(job: Job) -> str:
    got = job.expect("approved", Approval, timeout="1h", default=Approval("nobody"))
    asked.append(got.by)
    if len(asked) < 3:
        raise OSError("once more")
    return got.by


@jobs.task
def paid(job: Job, order: int) -> int:
    return job.expect(f"paid:{order}", int, shared=True)


def state(handle: JobHandle[Any]) -> str:
    return handle.status().state


def test_a_job_waits_for_its_signal_and_gets_it_once() -> None:
    with jobs.testing() as queue:
        handle = approve.enqueue(7)
        queue.drain()
        queue.assert_waiting(handle, signal="approved")

        assert approve.handle(handle.id).signal("approved", Approval("ada"))
        assert not handle.signal("approved", Approval("bob"))
        queue.drain()

        assert handle.result("0s") == "ada"
        assert (handle.status().failures, asked) == (0, [])
        assert not handle.signal("approved", Approval("late"))


def test_a_signal_that_is_sent_early_is_not_lost() -> None:
    with jobs.testing() as queue:
        handle = approve.using(delay="1h").enqueue(7)
        assert handle.signal("approved", Approval("ada"))
        queue.advance("1h")
        assert queue.drain() == 1

        assert handle.result("0s") == "ada"


def test_time_outs_are_counted_from_the_first_call_and_recorded() -> None:
    with jobs.testing() as queue:
        handle = approve.enqueue(7)
        queue.drain()
        queue.advance("47h")
        assert queue.drain() == 0
        queue.advance("1h")
        queue.drain()
        assert asked == ["boss of 7"]
        queue.assert_waiting(handle, signal="approved")
        queue.advance("119h")
        assert queue.drain() == 0
        queue.advance("1h")
        queue.drain()

        assert handle.result("0s") == "expired"


def test_a_second_wait_may_get_the_signal_that_the_first_did_not() -> None:
    with jobs.testing() as queue:
        handle = approve.enqueue(7)
        queue.drain()
        queue.advance("2d")
        queue.drain()
        handle.signal("approved", Approval("boss"))
        queue.drain()

        assert handle.result("0s") == "boss"


def test_what_an_attempt_was_given_stands_for_the_next_ones() -> None:
    with jobs.testing() as queue:
        handle = fragile.enqueue()
        queue.drain()
        handle.signal("approved", Approval("ada"))
        for _ in range(3):
            queue.drain(failures="retry")
            queue._store.signal(str(handle.id), "own:approved", '{"by":"eve"}', replace=True)
            queue.advance("1m")

        assert handle.result("0s") == "ada"
        assert asked == ["ada"] * 3


def test_a_signal_that_comes_too_late_reverses_nothing() -> None:
    with jobs.testing() as queue:
        handle = fragile.enqueue()
        queue.drain()
        queue.advance("1h")
        queue.drain(failures="retry")
        handle.signal("approved", Approval("late"))
        for _ in range(2):
            queue.advance("1m")
            queue.drain(failures="retry")

        assert handle.result("0s") == "nobody"


def test_without_a_default_the_time_out_ends_the_job() -> None:
    with jobs.testing() as queue:
        handle = needed.enqueue()
        queue.drain()
        queue.advance("1h")
        with pytest.raises(Fail, match="the signal 'approved' did not arrive in time"):
            queue.drain()

        assert state(handle) == "dead"


def test_after_a_time_out_without_a_default_a_replay_waits_anew() -> None:
    with jobs.testing() as queue:
        handle = needed.enqueue()
        for _ in range(2):
            queue.drain()
            queue.assert_waiting(handle, signal="approved")
            queue.advance("59m")
            assert queue.drain() == 0
            queue.advance("1m")
            with pytest.raises(Fail, match="did not arrive in time"):
                queue.drain()
            assert isinstance(queue._store.replay([str(handle.id)])[str(handle.id)], Landed)
        queue.drain()
        assert handle.signal("approved", Approval("ada"))
        queue.drain()

        assert handle.result("0s") == "ada"


@pytest.mark.parametrize(
    ("ends", "anew"),
    [
        pytest.param([("crashed", "the worker died")], False, id="its process died before the time-out ended the job"),
        pytest.param([("crashed", "the worker died"), ("failed", LATE)], True, id="the attempt after that one told it"),
        pytest.param([("failed", LATE)], True, id="it died of it"),
        pytest.param([("failed", "another error")], False, id="the handler caught the time-out"),
        pytest.param([], True, id="nothing is kept of it"),
    ],
)
def test_a_job_waits_anew_if_it_died_of_the_time_out(ends: list[tuple[str, str]], anew: bool) -> None:
    asked = asked_for(needed, "approved", Approval, "1h", MISSING, None, shared=False)
    attempts = [
        SimpleNamespace(attempt=2 + number, outcome=outcome, error=error)
        for number, (outcome, error) in enumerate([("suspended", ""), *ends], start=-1)
    ]
    store, claimed = SimpleNamespace(attempts=lambda _: attempts), SimpleNamespace(id="an id", attempt=9)

    assert asked.is_anew('{"attempt":2}', cast(Claimed, claimed), cast(Store, store)) is anew


@jobs.task(signals={"approved": Approval}, retry=1)
def translates(job: Job, how: str) -> str:
    try:
        return job.expect("approved", Approval, timeout="1h").by
    except Fail as late:
        if how == "a Fail":
            raise Fail("nobody approved the order", final=True)  # noqa: B904
        if how == "from it":
            raise LookupError("nobody approved the order") from late
        raise ExceptionGroup("nobody approved the order", [OSError("the mail server is down"), late]) from None


@jobs.task(signals={"approved": Approval, "paid": str})
async def both(job: Job, how: str) -> str:
    async with asyncio.TaskGroup() as group:
        approved = group.create_task(job.aexpect("approved", Approval, timeout="1h"))
        group.create_task(job.aexpect("paid", str, timeout="1h"))
    return approved.result().by


@pytest.mark.parametrize("how", ["a Fail", "from it", "in a group", "two signals"])
def test_a_replay_waits_anew_however_the_handler_told_the_time_out(how: str) -> None:
    with jobs.testing() as queue:
        handle = (both if how == "two signals" else translates).enqueue(how)
        for _ in range(3):
            queue.drain()
            queue.assert_waiting(handle)
            queue.advance("1h")
            with pytest.raises(BaseException, match=r"nobody approved the order|unhandled errors in a TaskGroup"):
                queue.drain()
            assert isinstance(queue._store.replay([str(handle.id)])[str(handle.id)], Landed)
        queue.drain()
        handle.signal("approved", Approval("ada"))
        if how == "two signals":
            handle.signal("paid", "yes")
        queue.drain()

        assert handle.result("0s") == "ada"


@jobs.task(signals={"approved": Approval}, retry=1)
def refunds(job: Job, fails: list[int]) -> str:
    try:
        return job.expect("approved", Approval, timeout="1h").by
    except Fail:
        asked.append("refunded")
        if len(asked) in fails[:1]:
            raise OSError("the mail server is down")  # noqa: B904
    if len(asked) in fails[1:]:
        raise OSError("the disk is full")
    return "refunded"


def test_a_replay_of_a_job_that_dealt_with_the_time_out_does_not_wait_anew() -> None:
    with jobs.testing() as queue:
        handle = refunds.enqueue([1, 2])
        queue.drain()
        queue.advance("1h")
        for error in ("the mail server is down", "the disk is full"):
            with pytest.raises(OSError, match=error):
                queue.drain()
            assert isinstance(queue._store.replay([str(handle.id)])[str(handle.id)], Landed)
        queue.drain()

        assert handle.result("0s") == "refunded"


@jobs.task(signals={"approved": Approval, "go": int})
def catches(job: Job) -> int:
    try:
        job.expect("approved", Approval, timeout="1h")
    except Fail:
        asked.append("late")
    return job.expect("go", int)


def test_a_time_out_that_the_handler_caught_stands() -> None:
    with jobs.testing() as queue:
        handle = catches.enqueue()
        queue.drain()
        queue.advance("1h")
        queue.drain()
        queue.assert_waiting(handle, signal="go")
        handle.signal("approved", Approval("late"))
        handle.signal("go", 3)
        queue.drain()

        assert (handle.result("0s"), asked) == (3, ["late", "late"])


def at_once(*waits: str) -> Any:
    """A task whose handler waits for all of these at once."""
    later = one.using(delay="2h").enqueue() if "join" in waits else None

    @jobs.task(name=f"waits_for_{len(jobs.tasks)}", signals={"a": int, "b": int})
    async def task(job: Job) -> int:
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "a": lambda: job.aexpect("a", int),
            "b": lambda: job.aexpect("b", int),
            "b in 1s": lambda: job.aexpect("b", int, timeout="1s"),
            "long b": lambda: job.aexpect("b", int, timeout="1h", name="long"),
            "join": lambda: job.ajoin(later),  # type: ignore[arg-type]
            "gather": lambda: job.agather("k", lambda: [one.using(delay="1h").bind()]),
        }
        async with asyncio.TaskGroup() as group:
            for each in waits:
                group.create_task(calls[each]())
        return 1

    return task


@jobs.task
def one() -> int:
    return 1


@pytest.mark.parametrize(
    "waits",
    [("b in 1s", "long b"), ("long b", "b in 1s"), ("b in 1s", "a"), ("a", "b in 1s"), ("b in 1s", "join")],
)
def test_of_several_waits_the_earliest_time_out_counts(waits: tuple[str, ...]) -> None:
    for _ in range(5):  # which comes first is up to threads
        with jobs.testing() as queue:
            handle = at_once(*waits).enqueue()
            queue.drain()
            assert state(handle) == "waiting"
            queue.advance("1s")
            with pytest.raises((Fail, JobFailed, BaseExceptionGroup)):
                queue.drain()

            assert state(handle) == "dead"
            assert handle.status().error == "the signal 'b' did not arrive in time"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_several_signals_are_waited_for_one_after_the_other(order: tuple[str, str]) -> None:
    with jobs.testing() as queue:
        handle = at_once("b", "a").enqueue()
        queue.drain()
        for each in order:
            assert handle.signal(each, 1)
            queue.drain()

        assert handle.result("0s") == 1


def test_a_signal_without_a_time_out_may_be_expected_beside_a_gather() -> None:
    with jobs.testing() as queue:
        handle = at_once("gather", "b").enqueue()
        queue.drain()
        handle.signal("b", 3)
        queue.drain()
        assert state(handle) == "waiting"
        queue.advance("1h")
        queue.drain()

        assert handle.result("0s") == 1


def test_a_job_that_dies_anywhere_in_a_wait_waits_no_second_time() -> None:
    with jobs.testing() as queue:
        handles: list[JobHandle[str]] = []

        def new() -> JobHandle[str]:
            asked.clear()
            handles.append(approve.enqueue(7))
            return handles[-1]

        def check() -> None:
            assert handles[-1].result("0s") == "expired"

        points = queue.kill_everywhere(new, check)

        assert {"expect approved", "expect boss", "end", "start #2", "start #3"} <= set(points)


def test_a_shared_signal_reaches_every_job_that_waits_or_will_wait() -> None:
    with jobs.testing() as queue:
        early = paid.enqueue(7)
        queue.drain()
        queue.assert_waiting(early, signal="paid:7")
        other = paid.enqueue(8)

        assert jobs.signal("paid:7", 40)
        assert not jobs.signal("paid:7", 41)
        late = paid.enqueue(7)
        queue.drain()

        assert (early.result("0s"), late.result("0s")) == (40, 40)
        assert state(other) == "waiting"


def test_signals_on_an_event_loop() -> None:
    async def main() -> tuple[str, int]:
        with jobs.testing() as queue:
            one, two = await approve.aenqueue(7), await paid.aenqueue(7)
            await queue.adrain()
            with pytest.raises(WouldBlock, match=r"await handle\.asignal"):
                one.signal("approved", Approval("ada"))
            assert await one.asignal("approved", Approval("ada"))
            assert await jobs.asignal("paid:7", 40)
            await queue.adrain()
            return await one.aresult("0s"), await two.aresult("0s")

    assert asyncio.run(main()) == ("ada", 40)


def test_a_value_is_checked_when_it_is_sent() -> None:
    with jobs.testing() as queue:
        handle = approve.enqueue(7)
        for sent in (approve.handle(handle.id), jobs.handle(handle.id)):
            with pytest.raises(InvalidArguments, match="approve: signal 'approved': expected"):
                sent.signal("approved", 3)
            with pytest.raises(InvalidArguments, match="missing required field"):
                sent.signal("approved", {"from": "ada"})
            with pytest.raises(InvalidArguments, match="can't be written as JSON"):
                sent.signal("approved", object())
            with pytest.raises(InvalidOption, match=r"takes no signal 'aproved' \(it takes: approved\)"):
                sent.signal("aproved", Approval("ada"))
        queue.drain()
        assert state(handle) == "waiting"
        assert jobs.handle(handle.id).signal("approved", {"by": "ada"})
        with pytest.raises(UnknownJob):
            approve.handle("01a20563-b655-7000-a3c9-4604273b155f").signal("approved", Approval("ada"))


def test_a_value_that_does_not_fit_is_not_consumed_and_may_be_replaced() -> None:
    with jobs.testing() as queue:
        handle = approve.enqueue(7)
        assert isinstance(queue._store.signal(str(handle.id), "own:approved", '{"bye":1}'), Landed)
        with pytest.raises(InvalidArguments, match=r"signal 'approved': .*missing required field"):
            queue.drain()
        queue._store.signal(str(handle.id), "own:approved", '{"by":"ada"}', replace=True)
        queue.advance("1m")
        queue.drain()

        assert handle.result("0s") == "ada"


def test_signals_are_declared_and_expected_alike() -> None:
    @jobs.task(signals={"approved": Approval})
    def undeclared(job: Job) -> None:
        job.expect("aproved", Approval)

    @jobs.task(signals={"approved": Approval})
    def other_type(job: Job) -> None:
        job.expect("approved", int)

    @jobs.task(signals={"approved": Approval})
    async def twice(job: Job) -> None:
        await asyncio.gather(job.aexpect("approved", Approval), job.aexpect("approved", Approval))

    for task, sentence in (
        (undeclared, r"undeclared takes no signal 'aproved'"),
        (other_type, r"declared as .*Approval.*, and expected as .*int.*: write the same type"),
        (twice, r"under way already: give each its own name="),
    ):
        with jobs.testing() as queue, pytest.raises(InvalidOption, match=sentence):
            task.enqueue()
            queue.drain()
    with pytest.raises(InvalidOption, match="signals: expected types by name"):
        jobs.task(name="a", signals=["approved"])(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(InvalidOption, match="signals: only a Job can expect one"):
        jobs.task(name="b", signals={"approved": int})(lambda: None)
    with pytest.raises(TenureError, match=r"job\.aexpect\(…\) needs a store"):
        approve.call(7)


def test_a_signal_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    with jobs, jobs.transaction(), pytest.raises(StoreError, match="a signal writes beside it"):
        jobs.signal("k", 1)


def test_assert_waiting_says_what_the_job_waits_for() -> None:
    with jobs.testing() as queue:
        handle = approve.enqueue(7)
        with pytest.raises(AssertionError, match=r"is queued, it does not wait: run it with queue\.drain"):
            queue.assert_waiting(handle)
        queue.drain()
        queue.assert_waiting(handle)
        with pytest.raises(AssertionError, match=r"does not wait for the signal 'paid'; it waits for the signal 'appr"):
            queue.assert_waiting(handle, signal="paid")
        with pytest.raises(AssertionError, match="does not wait for job"):
            queue.assert_waiting(handle, after=handle)
        with pytest.raises(
            AssertionError, match="does not wait for a place of 'shop:7'; it waits for the signal 'appr"
        ):
            queue.assert_waiting(handle, signal="approved", limit="shop:7")
        with pytest.raises(InvalidOption, match="assert_waiting: expected the handle of a job, got 5"):
            queue.assert_waiting(cast("Any", 5))
        with pytest.raises(TimeoutError, match="is still waiting after 0ms; it waits for the signal 'approved'"):
            handle.result("0s")
        handle.cancel("unwanted")
        with pytest.raises(AssertionError, match=r"is cancelled, it does not wait$"):
            queue.assert_waiting(handle)
