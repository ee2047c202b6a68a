"""Flows: steps whose outputs are the arguments of other steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import identity
from tenure import Ended, Fail, FlowHandle, Job, JobHandle, Secret, Tenure, outputs
from tenure.core.lifecycle import State
from tenure.errors import (
    BadData,
    InvalidArguments,
    InvalidOption,
    JobFailed,
    StoreError,
    TenureError,
    UnknownJob,
    UnknownTask,
)
from tenure.stores.rules import is_id
from tenure.tasks.placeholders import marker, split


@dataclass
class Page:
    number: int


jobs = Tenure("sqlite:////nowhere/at/all.db")
seen: list[Any] = []
fails: set[int] = set()


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()
    fails.clear()


@jobs.task
def render(number: int) -> Page:
    if number in fails:
        raise Fail(f"no page {number}", final=True)
    return Page(number)


@jobs.task
async def arender(number: int) -> Page:
    return Page(number)


@jobs.task
def add(one: Page, other: Page) -> int:
    return one.number + other.number


@jobs.task
def combine(pages: list[Page], title: str = "") -> str:
    return title + ",".join(str(page.number) for page in pages)


@jobs.task
def stream(pages: Iterator[Page]) -> list[int]:
    return [page.number for page in pages]


@jobs.task
def twice(pages: Iterable[Page]) -> int:
    return sum(1 for _ in pages) + sum(1 for _ in pages)


@jobs.task
async def astream(pages: Iterable[Page]) -> list[int]:
    return [page.number for page in pages]


@jobs.task
def mail(text: str, copies: int = 1) -> None:
    seen.append((text, copies))


@jobs.task
def clean(page: Ended[Page]) -> str:
    seen.append(page)
    return page.state


@jobs.task
def take(value: dict[str, Any] | list[Any] | int) -> str:
    return repr(value)


def state(handle: JobHandle[Any]) -> str:
    return handle.status().state


# ── what flows do ──


def test_the_output_of_a_step_is_an_argument_of_the_next() -> None:
    with jobs.testing() as queue:
        with jobs.flow("chain") as flow:
            page = flow.add(render.bind(3))
            text = flow.add(combine.bind(outputs([page]), title="p"))
            sent = flow.add(mail.bind(text.output, copies=2))
        assert (state(page.handle), state(text.handle), state(sent.handle)) == ("queued", "waiting", "waiting")
        assert flow.created

        assert queue.drain() == 3

    assert seen == [("p3", 2)]


def test_one_marker_stands_for_any_number_of_outputs() -> None:
    with jobs.testing() as queue:
        with jobs.flow("map-reduce") as flow:
            pages = [flow.add(render.bind(n)) for n in range(450)]
            listed = flow.add(combine.bind(outputs(pages)))
            streamed = flow.add(stream.bind(outputs(pages)))
            again = flow.add(twice.bind(outputs(pages)))
            on_loop = flow.add(astream.bind(outputs(pages)))
        assert queue._store.get(str(listed.handle.id)).payload == '{"title":"","pages":{"$outputs":[0,450]}}'  # type: ignore[union-attr]
        queue.drain()

        assert listed.handle.result("0s") == ",".join(map(str, range(450)))
        assert streamed.handle.result("0s") == on_loop.handle.result("0s") == list(range(450))
        assert again.handle.result("0s") == 900


def test_a_step_may_be_used_twice_and_in_any_order() -> None:
    with jobs.testing() as queue:
        with jobs.flow("diamond") as flow:
            one, two, three = (flow.add(render.bind(n)) for n in (1, 2, 3))
            same = flow.add(add.bind(two.output, two.output))
            mixed = flow.add(combine.bind(outputs([three, one, two, three])))
            both = flow.add(add.bind(other=three.output, one=one.output), after=[two, one])
        queue.drain()

        assert same.handle.result("0s") == 4
        assert mixed.handle.result("0s") == "3,1,2,3"
        assert both.handle.result("0s") == 4


def test_a_step_that_takes_an_output_and_the_end_of_the_same_step_needs_its_output() -> None:
    @jobs.task
    def both(end: Ended[Page], page: Page) -> int:
        return end.value.number + page.number

    fails.add(1)
    with jobs.testing() as queue:
        with jobs.flow("both") as flow:
            bad, good = flow.add(render.bind(1)), flow.add(render.bind(2))
            held = flow.add(both.bind(bad.ended, bad.output))
            runs = flow.add(both.bind(page=good.output, end=good.ended), after=[good.ended])
        with pytest.raises(Fail):
            queue.drain()
        queue.drain()

        queue.assert_waiting(held.handle, after=bad.handle)
        assert runs.handle.result("0s") == 4


def test_tasks_by_name_are_steps_too() -> None:
    with jobs.testing(elsewhere=["bill"]) as queue:
        with jobs.flow("by name") as flow:
            page = flow.add(jobs.bind("render", {"number": 3}))
            text = flow.add(jobs.bind("combine", {"pages": outputs([page]), "title": "p"}))
            far = flow.add(jobs.bind("bill", {"text": text.output, "cents": 5}, unchecked=True))
        queue.drain()

        assert text.handle.result("0s") == "p3"
        assert queue._store.get(str(far.handle.id)).payload == '{"cents":5,"text":{"$output":0}}'  # type: ignore[union-attr]
        assert queue._store.inputs(str(far.handle.id))[0].result == '"p3"'


def test_a_step_by_name_is_checked_against_what_workers_have_registered() -> None:
    with jobs.testing(elsewhere=["bill"]) as queue, jobs.flow("by name") as flow:
        text = flow.add(render.bind(1))
        queue._store.register(identity(tasks=("bill",)))
        far = jobs.bind("bill", {"text": text.output})
        with pytest.raises(UnknownTask):
            jobs.bind("bil", {"text": text.output})
        flow.add(far)


def test_no_outputs_are_an_empty_list() -> None:
    with jobs.testing() as queue:
        with jobs.flow("nothing") as flow:
            none = flow.add(combine.bind(outputs([]), title="none"))
        queue.drain()

        assert none.handle.result("0s") == "none"


def test_a_step_that_takes_an_end_runs_after_any_end() -> None:
    fails.add(1)
    with jobs.testing() as queue:
        with jobs.flow("saga") as flow:
            bad, good = flow.add(render.bind(1)), flow.add(render.bind(2))
            ends = [flow.add(clean.bind(step.ended)) for step in (bad, good)]
            last = flow.add(mail.bind("done"), after=[bad.ended, good])
            held = flow.add(combine.bind(outputs([bad, good])))
        with pytest.raises(Fail):
            queue.drain()
        queue.drain()

        assert [end.handle.result("0s") for end in ends] == ["dead", "completed"]
        assert state(last.handle) == "completed"
        queue.assert_waiting(held.handle, after=bad.handle)
    failed, worked = sorted((each for each in seen if isinstance(each, Ended)), key=lambda each: each.ok)
    assert (failed.ok, failed.error, failed.handle) == (False, "no page 1", bad.handle)
    assert (worked.ok, worked.value, worked.handle.id) == (True, Page(2), good.handle.id)
    with pytest.raises(JobFailed, match="no page 1"):
        _ = failed.value


def test_a_dead_step_holds_the_next_until_it_is_replayed() -> None:
    fails.add(1)
    with jobs.testing() as queue:
        with jobs.flow("held") as flow:
            page = flow.add(render.bind(1))
            text = flow.add(combine.bind(outputs([page])))
        with pytest.raises(Fail):
            queue.drain()
        status = flow.handle.status()
        assert (status.counts[State.DEAD], status.live, status.progress) == (1, 1, 0.5)

        fails.clear()
        assert flow.handle.replay() == 1
        queue.drain()

        assert text.handle.result("0s") == "1"
        assert flow.handle.status().progress == 1.0


def test_a_cancelled_step_cancels_those_that_need_its_output_and_no_others() -> None:
    with jobs.testing() as queue:
        with jobs.flow("cancelled") as flow:
            page = flow.add(render.bind(1))
            text = flow.add(combine.bind(outputs([page])))
            end = flow.add(clean.bind(page.ended))
        page.handle.cancel("no need")
        queue.drain()

        assert (state(text.handle), state(end.handle)) == ("cancelled", "completed")
        assert f"job {page.handle.id}, which was cancelled" in (text.handle.status().error or "")


def test_a_flow_is_cancelled_as_a_whole_and_those_that_wait_never_run() -> None:
    with jobs.testing() as queue:
        with jobs.flow("whole") as flow:
            pages = [flow.add(render.bind(n)) for n in range(250)]
            flow.add(combine.bind(outputs(pages)))
            flow.add(clean.bind(pages[0].ended))

        assert flow.handle.cancel("closed today") == 252
        assert queue.drain() == 0
        status = flow.handle.status()
        assert (status.counts[State.CANCELLED], status.progress) == (252, 1.0)
        assert [each.progress for each in flow.handle.updates()] == [1.0]
        assert flow.handle.cancel() == 0


def test_a_step_that_was_skipped_is_left_out_and_its_output_alone_is_an_error() -> None:
    fails.add(1)
    with jobs.testing() as queue:
        with jobs.flow("skipped") as flow:
            bad, good = flow.add(render.bind(1)), flow.add(render.bind(2))
            text = flow.add(combine.bind(outputs([bad, good])))
            sums = flow.add(add.bind(bad.output, good.output))
        with pytest.raises(Fail):
            queue.drain()
        queue.drain()
        queue._store.skip([str(bad.handle.id)])
        with pytest.raises(Fail, match=f"add needs the result of render {bad.handle.id}, which was skipped"):
            queue.drain()
        queue.drain()

        assert text.handle.result("0s") == "2"
        assert state(sums.handle) == "dead"


def test_nothing_is_stored_if_the_block_raises() -> None:
    with jobs.testing() as queue:
        with pytest.raises(ZeroDivisionError), jobs.flow("broken") as flow:
            page = flow.add(render.bind(1 // 1))
            flow.add(render.bind(1 // 0))

        assert queue.enqueued(render) == []
        with pytest.raises(UnknownJob, match="there is no flow"):
            flow.handle.status()
        with pytest.raises(TenureError, match="is stored at the end of the flow's block"):
            _ = page.handle


def test_a_flow_with_unique_is_made_once() -> None:
    def make(numbers: Iterable[int]) -> tuple[bool, list[JobHandle[Page]], FlowHandle]:
        with jobs.flow("once", unique="day:7") as flow:
            pages = [flow.add(render.bind(n)) for n in numbers]
        return flow.created, [page.handle for page in pages], flow.handle

    with jobs.testing() as queue:
        created, first, handle = make(range(3))
        again, second, same = make(range(5))  # another release makes more steps: the flow stays as it was made

        assert (created, again, handle.id == same.id) == (True, False, True)
        assert first == second[:3]
        assert queue.enqueued(render) == sorted(first, key=lambda each: str(each.id)) == first
        assert all(is_id(str(each.id)) for each in second)
        assert [each.created for each in second] == [False] * 5
        with jobs.flow("once", unique="day:8") as other:
            other.add(render.bind(1))
        with jobs.flow("another", unique="day:7") as third:
            third.add(render.bind(1))
        assert other.created
        assert third.created


def test_a_flow_joins_a_transaction(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    task = jobs.task(name="one")(lambda: 1)
    with jobs:
        with pytest.raises(ZeroDivisionError), jobs.transaction() as tx:
            with jobs.flow("rolled back", unique="x", tx=tx) as lost:
                lost.add(task.bind())
            raise ZeroDivisionError
        with jobs.transaction() as tx, jobs.flow("kept", tx=tx) as kept:
            kept.add(task.bind())

        with pytest.raises(UnknownJob):
            lost.handle.status()
        assert kept.handle.status().total == 1
        with pytest.raises(InvalidOption, match="different transactions"), jobs.flow("two", tx=object()) as two:
            two.add(task.using(tx=object()).bind())


def test_a_flow_on_an_event_loop() -> None:
    async def main() -> tuple[int, str, list[float]]:
        with jobs.testing() as queue:
            async with jobs.flow("async", unique="k") as flow:
                page = flow.add(arender.bind(1))
                text = flow.add(combine.bind(outputs([page])))
            async with jobs.flow("async", unique="k") as again:
                again.add(arender.bind(1))
            assert (flow.created, again.created) == (True, False)
            with pytest.raises(TenureError, match=r"async with jobs\.flow"), jobs.flow("sync"):
                pass
            ran = await queue.adrain()
            progress = [each.progress async for each in flow.handle.updates()]
            assert await flow.handle.acancel() == await flow.handle.areplay() == 0
            return ran, await text.handle.aresult("0s"), progress

    assert asyncio.run(main()) == (2, "1", [1.0])


def test_a_member_whose_unique_key_is_held_by_another_job_waits_for_that_one() -> None:
    with jobs.testing() as queue:
        foreign = render.using(unique="page").enqueue(9)
        with jobs.flow("shared") as flow:
            page, other = flow.add(render.using(unique="page").bind(1)), flow.add(render.bind(2))
            text = flow.add(combine.bind(outputs([page, other])))
        assert page.handle == foreign
        assert not page.handle.created
        flow.handle.cancel()
        assert state(foreign) == "queued"  # it belongs to no flow
        queue.drain()
        assert state(text.handle) == "cancelled"

        with jobs.flow("shared") as flow:
            foreign = render.using(unique="page").enqueue(8)
            page, other = flow.add(render.using(unique="page").bind(1)), flow.add(render.bind(2))
            text = flow.add(combine.bind(outputs([page, other])))
        queue.drain()
        assert text.handle.result("0s") == "8,2"


def test_jobs_outside_a_flow_wait_for_others() -> None:
    with jobs.testing() as queue:
        first = render.enqueue(1)
        second = mail.using(after=[first]).enqueue("second")
        queue.assert_waiting(second, after=first)
        queue.drain()
        third = mail.using(after=[first, second]).enqueue("third")
        assert queue.drain() == 1

        assert seen == [("second", 1), ("third", 1)]
        assert state(third) == "completed"
        with jobs.flow("later") as flow:
            page = flow.add(render.bind(1), after=[third])
        last = mail.using(after=[page, page.ended]).enqueue("last")
        assert queue.drain() == 2
        assert state(last) == "completed"


def test_a_handler_is_called_with_an_end_made_by_hand() -> None:
    assert clean.call(Ended("dead", error="no space left")) == "dead"
    assert clean.call(Ended("completed", value=Page(7))) == "completed"
    assert seen == [Ended("dead", error="no space left"), Ended("completed", value=Page(7))]
    assert seen[1].value == Page(7)
    with pytest.raises(InvalidOption, match="expected 'completed', 'dead' or 'cancelled'"):
        Ended("queued")
    with pytest.raises(TenureError, match="made by hand"):
        _ = seen[0].handle
    with pytest.raises(InvalidArguments, match=r"clean\.page"):
        clean.call(Ended("completed", value="seven"))  # type: ignore[arg-type]
    assert stream.call(iter([Page(1)]) and [Page(1)]) == [1]  # type: ignore[arg-type]


# ── what does not fit ──


def test_a_result_that_does_not_fit_any_more_waits_for_other_code() -> None:
    @jobs.task
    def old() -> Any:
        return {"numero": 3}

    with jobs.testing() as queue:
        with jobs.flow("deploy") as flow:
            page, wrong = flow.add(render.bind(1)), flow.add(old.bind())
            text = flow.add(combine.bind(outputs([page, wrong])))
            streamed = flow.add(stream.bind(outputs([page, wrong])))
        with pytest.raises(InvalidArguments, match=f"combine.pages: .*; it is the result of old {wrong.handle.id}"):
            queue.drain()
        assert state(text.handle) == "scheduled"
        assert text.handle.status().failures == 0
        with pytest.raises(InvalidArguments, match=f"stream.pages: .*; it is the result of old {wrong.handle.id}"):
            queue.drain()
        assert state(streamed.handle) == "scheduled"


def test_a_parent_that_does_not_exist_or_is_deleted_is_refused_by_name() -> None:
    with jobs.testing() as queue:
        gone = render.enqueue(1)
        queue._store.delete([str(gone.id)])
        with pytest.raises(BadData, match=f"no such job: {gone.id}"):
            mail.using(after=[gone]).enqueue("x")
        with pytest.raises(BadData, match=f"no such job: {gone.id}"), jobs.flow("gone") as flow:
            flow.add(mail.bind("x"), after=[gone])
        assert queue.enqueued(mail) == []


def test_a_job_has_at_most_ten_thousand_edges() -> None:
    with jobs.testing():
        with pytest.raises(InvalidOption, match="at most 10,000 others, got 10,001"), jobs.flow("wide") as flow:
            flow.add(combine.bind(outputs([flow.add(render.bind(n)) for n in range(10_001)])))


_MISUSES: list[tuple[str, Callable[[Any], object]]] = [
    ("an operator", lambda page: page + 1),
    ("an operator", lambda page: 1 + page),
    ("str(…)", str),
    ("str(…)", lambda page: f"{page}"),
    ("an attribute, 'number'", lambda page: page.number),
    ("iteration", list),
    ("a test for truth", lambda page: page or 1),
    ("a comparison", lambda page: page == 1),
    ("a comparison", lambda page: page < 1),
    ("an index or a key", lambda page: page[0]),
    ("an index or a key", lambda page: {page: 1}),
    ("len(…)", len),
    ("a number", int),
    ("a call", lambda page: page()),
    ("a placeholder inside another value", lambda page: take.bind([page])),
    ("a placeholder inside another value", lambda page: take.bind({"page": page})),
    ("a placeholder inside another value", lambda page: take.bind(Page(page))),
    ("a placeholder inside another value", lambda page: take.bind(Secret(page))),
    ("needs a flow", lambda page: take.enqueue(page)),
    ("needs a flow", lambda page: jobs.enqueue_many([take.bind(page)])),
    ("a placeholder inside another value", lambda page: take.call(page)),
]


@pytest.mark.parametrize(("use", "misuse"), _MISUSES)
def test_a_placeholder_is_an_argument_on_its_own_and_nothing_else(use: str, misuse: Callable[[Any], object]) -> None:
    with jobs.testing(), jobs.flow("misuse") as flow:
        page = flow.add(render.bind(1))
        with pytest.raises(InvalidArguments) as raised:
            misuse(page.output)

    assert use in str(raised.value)
    assert "the output of render (step 1 of the flow 'misuse')" in str(raised.value)


def test_a_placeholder_belongs_to_its_flow() -> None:
    with jobs.testing():
        with jobs.flow("one") as one:
            page = one.add(render.bind(1))
            with pytest.raises(InvalidArguments, match=r"is a step: give what it will return, step\.output"):
                one.add(take.bind(page))
        with pytest.raises(InvalidArguments, match=r"step 1 of the flow 'one'\) belongs to another flow than 'two'"):
            with jobs.flow("two") as two:
                two.add(take.bind(page.output))
        with pytest.raises(InvalidArguments, match="belongs to another flow"), jobs.flow("three") as three:
            three.add(take.bind(1), after=[page])
        with pytest.raises(InvalidOption, match="the block of the flow 'one' has ended"):
            one.add(take.bind(page.output))
        with pytest.raises(InvalidArguments, match=r"outputs: expected steps of a flow"):
            outputs([page.output])  # type: ignore[list-item]


def test_what_is_not_a_step_is_refused_in_a_sentence(tmp_path: Path) -> None:
    other = Tenure(f"sqlite:///{tmp_path}/other.db", notifier="poll")
    far = other.task(name="far")(lambda: 1)
    with jobs.testing():
        with jobs.flow("wrong") as flow:
            page = flow.add(render.bind(1))
            wrongs: list[tuple[Callable[[], object], str]] = [
                (lambda: flow.add(render), "expected a job like add.bind"),  # type: ignore[arg-type]
                (lambda: flow.add(far.bind()), "belongs to another app"),
                (lambda: flow.add(render.bind(2), after=page), "expected a list of handles or steps"),  # type: ignore[arg-type]
                (lambda: flow.add(render.bind(2), after=[page.output]), r"after=\[step.ended\]"),  # type: ignore[list-item]
                (lambda: flow.add(render.bind(2), after=[far.handle(flow.id)]), "is in another store"),
                (lambda: render.using(after=[far.handle(flow.id)]), "is in another store"),
                (lambda: flow.add(take.bind({"$output": 0}), after=[page]), r"take.value: a value like \{"),
            ]
            for wrong, sentence in wrongs:
                with pytest.raises((InvalidOption, InvalidArguments), match=sentence):
                    wrong()
            with pytest.raises(InvalidOption, match="use that step twice"):
                flow.add(render.using(unique="k").bind(1))
                flow.add(render.using(unique="k").bind(2))
        with pytest.raises(InvalidOption, match="the flow 'empty' has no steps"), jobs.flow("empty"):
            pass
        with pytest.raises(InvalidOption, match="was used before"), flow:
            pass
        with pytest.raises(InvalidOption, match="flow: expected a name"):
            jobs.flow("")
        with pytest.raises(InvalidArguments, match=r"take.value: a value like \{"):
            take.using(after=[page.handle]).enqueue({"$outputs": [0, 2]})


@pytest.mark.parametrize("value", [{"$output": 0}, {"$ended": 0}, {"$outputs": [0, 1]}])
def test_a_value_with_the_shape_of_a_marker_is_one_where_nothing_is_waited_for(value: object) -> None:
    @jobs.task
    def gathers(job: Job, value: Any) -> str:
        job.gather("k", lambda: [render.bind(1)])
        return repr(value)

    with jobs.testing() as queue:
        kept = take.enqueue(value)
        after = mail.using(after=[kept]).enqueue("x")
        wrong = gathers.enqueue(value)
        with pytest.raises(InvalidArguments, match="'value' of this job has the shape of a marker"):
            queue.drain()
        queue.drain()

        assert kept.result("0s") == repr(value)
        assert state(after) == "completed"
        assert state(wrong) == "scheduled"


def test_markers_are_read_as_they_were_written() -> None:
    for kind, places in (("output", [3]), ("ended", [0]), ("outputs", [0, 1, 2]), ("outputs", [5, 0, 0, 7])):
        (found,) = split(f'{{"a":{marker(kind, places)}}}')[1].values()
        assert (found.kind, list(found.places)) == (kind, places)
    for other in (
        '{"$output":-1}',
        '{"$output":true}',
        '{"$outputs":[0]}',
        '{"$outputs":[[0]]}',
        '{"$output":0,"b":1}',
    ):
        assert split(f'{{"a":{other}}}')[1] == {}


def test_a_transaction_around_a_flow_names_the_flow_that_would_wait(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", notifier="poll")
    task = jobs.task(name="one")(lambda: 1)
    with jobs, jobs.transaction(), pytest.raises(StoreError, match=r"inside jobs\.transaction"):
        with jobs.flow("beside") as flow:
            flow.add(task.bind())


def test_the_updates_of_a_flow_in_a_test_do_not_wait_for_what_only_the_test_can_do(tmp_path: Path) -> None:
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db")

    @jobs.task
    def page(n: int) -> int:
        return n

    with jobs.testing() as queue:
        with jobs.flow("pages") as flow:
            flow.add(page.bind(1))
        updates = flow.handle.updates()
        assert next(updates).live == 1
        with pytest.raises(TimeoutError, match="drain"):
            next(updates)
        queue.drain()
        assert [each.progress for each in updates] == [1.0]
