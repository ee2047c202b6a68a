from __future__ import annotations

import asyncio
import functools
import importlib
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tenure import Fail, Job, Retry, Secret, Snooze, Tenure
from tenure.core.ids import new_id
from tenure.errors import InvalidArguments, InvalidOption, TenureError, UnknownTask, WouldBlock
from tenure.operations.admin import Admin
from tenure.ports import Draft


@dataclass
class Summary:
    commits: int


@pytest.fixture
def jobs() -> Tenure:
    return Tenure("memory:")


def draft_of(task: Any, *args: Any, **kwargs: Any) -> Draft:
    draft: Draft = task.bind(*args, **kwargs).draft()
    return draft


# ── options ──


def test_a_bare_task_takes_every_default(jobs: Tenure) -> None:
    @jobs.task
    def greet(name: str) -> str:
        return name

    draft = draft_of(greet, "Ada")

    assert draft == Draft(id=draft.id, task="greet", payload='{"name":"Ada"}')
    assert UUID(draft.id).version == 7


def test_options_of_the_task_travel_with_every_job(jobs: Tenure) -> None:
    @jobs.task(
        name="shop.analyse",
        queue="slow",
        priority=5,
        retry=Retry(8, base="5s", cap="10m"),
        timeout="2h",
        stale_after="5m",
        isolation="process",
        unique="repo:{url}",
        max_crashes=1,
    )
    def analyse(job: Job, url: str) -> None: ...

    draft = draft_of(analyse, "x")

    assert draft == Draft(
        id=draft.id,
        task="shop.analyse",
        payload='{"url":"x"}',
        queue="slow",
        priority=5,
        unique="repo:x",
        isolated=True,
        timeout=7200.0,
        stale_after=300.0,
        max_failures=8,
        max_crashes=1,
        retry_base=5.0,
        retry_cap=600.0,
    )


def test_using_returns_a_copy_and_leaves_the_task_alone(jobs: Tenure) -> None:
    @jobs.task(unique="repo:{url}")
    def analyse(url: str) -> None: ...

    chosen, due = UUID(new_id()), datetime(2030, 1, 1, tzinfo=UTC)
    sent = (
        analyse.using(
            queue="slow", priority=-5, run_at=due, expires="1h", unique="mine", retry=2, timeout="1m", id=chosen
        )
        .using(meta={"tenant": "a"})
        .using(meta={"trace": "b"})
    )
    draft = draft_of(sent, "x")

    assert (draft.id, draft.queue, draft.priority, draft.run_at) == (str(chosen), "slow", -5, due)
    assert (draft.expires, draft.unique, draft.max_failures, draft.timeout) == (3600.0, "mine", 2, 60.0)
    assert draft.meta == '{"tenant":"a","trace":"b"}'
    assert draft_of(analyse, "x").queue == "default"
    assert draft_of(analyse.using(delay="5s"), "x").delay == 5.0


def test_a_job_keeps_the_apps_retry_unless_its_task_has_its_own() -> None:
    jobs = Tenure("memory:", retry=Retry(3, base="2s", cap="8s", on=OSError))

    @jobs.task
    def plain() -> None: ...
    @jobs.task(retry=1)
    def own() -> None: ...

    assert (draft_of(plain).max_failures, draft_of(plain).retry_base, draft_of(plain).retry_cap) == (3, 2.0, 8.0)
    assert plain.retry.on == (OSError,)
    assert draft_of(own).max_failures == 1
    assert own.retry.on == (Exception,)


def test_braces_in_a_given_key_are_plain_text(jobs: Tenure) -> None:
    @jobs.task
    def fetch(url: str) -> None: ...

    assert draft_of(fetch.using(unique="url:{id}"), "x").unique == "url:{id}"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"priority": 101}, "priority: expected a whole number from -100 to 100"),
        ({"priority": True}, "priority: expected a whole number"),
        ({"queue": "no spaces"}, "queue: expected letters, digits"),
        ({"delay": 5}, 'delay: 5 has no unit; write "5s"'),
        ({"timeout": "0s"}, "timeout: expected more than 0s"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at: 2030-01-01 00:00:00 is naive"),
        ({"run_at": datetime(9999, 12, 31, 23, tzinfo=UTC)}, "run_at: expected a year from 1970 to 9000, got 9999"),
        ({"delay": "1s", "run_at": datetime.now(UTC)}, "delay and run_at both say when"),
        ({"unique": "x" * 201}, "unique: expected 1 to 200 characters without control characters, got 201"),
        ({"unique": "a\nb"}, "unique: expected 1 to 200 characters"),
        ({"unique": ""}, "unique: expected 1 to 200 characters"),
        ({"meta": {"n": 1}}, "meta: expected texts by name, got 'n': 1"),
        ({"id": "seven"}, "id: expected a job's id, a UUID, got 'seven'"),
        ({"retry": 0}, "max_failures: expected a whole number from 1"),
        ({"retry": Retry(2, on=OSError)}, "using(retry=…): only max_failures, base and cap are stored with a job"),
    ],
)
def test_an_option_that_can_not_be_is_refused(jobs: Tenure, options: dict[str, Any], why: str) -> None:
    @jobs.task
    def greet(name: str) -> None: ...

    with pytest.raises(InvalidOption) as caught:
        greet.using(**options)
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "no spaces"}, "task name: expected letters, digits"),
        ({"name": ""}, "task name: expected letters, digits"),
        ({"aliases": ["9"]}, "alias: expected letters, digits"),
        ({"aliases": "old"}, "greet: aliases: expected a list of names, got 'old'; write ['old']"),
        ({"isolation": "thread"}, "greet: isolation: expected 'process' or nothing, got 'thread'"),
        ({"max_crashes": -1}, "greet: max_crashes: expected a whole number from 0"),
        ({"stale_after": "5m"}, "greet: stale_after needs progress, and only a Job can report it"),
        ({"unique": "x:{nome}"}, "greet: unique: no argument is named 'nome'; it takes (name: str)"),
        ({"unique": "x:{}"}, "greet: unique: no argument is named ''"),
        ({"unique": "x:{name"}, "unique: 'x:{name' is not a template"),
    ],
)
def test_a_declaration_that_can_not_be_is_refused(jobs: Tenure, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption) as caught:

        @jobs.task(**options)
        def greet(name: str) -> None: ...

    assert str(caught.value).startswith(why)
    assert not jobs.tasks


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [generator, async_generator])
def test_a_generator_is_no_task(jobs: Tenure, fn: Callable[..., Any]) -> None:
    with pytest.raises(InvalidOption, match="a generator function can't be one"):
        jobs.task(fn)


@pytest.mark.parametrize("thing", ["name", int, lambda: None])
def test_what_has_no_name_or_is_no_function_is_refused(jobs: Tenure, thing: Any) -> None:
    with pytest.raises(InvalidOption, match=r"expected a function|has no name of its own"):
        jobs.task(thing)


def test_a_key_made_from_arguments_is_checked_when_it_is_made(jobs: Tenure) -> None:
    @jobs.task(unique="{summary.commits}:{name}")
    def keep(summary: Summary, name: str) -> None: ...
    @jobs.task(unique="{token}")
    def hide(token: Secret[str]) -> None: ...

    assert draft_of(keep, Summary(3), "x").unique == "3:x"
    with pytest.raises(InvalidOption, match="keep: unique: expected 1 to 200 characters"):
        keep.bind(Summary(3), "x" * 200)
    with pytest.raises(InvalidOption, match="hide: unique can't use 'token': a Secret"):
        hide.bind(Secret("t0p"))


@dataclass
class Card:
    token: Secret[str]


def test_a_key_is_made_of_no_secret_inside_an_argument(jobs: Tenure) -> None:
    """All jobs would have the same key, and all but the first would not be stored."""

    @jobs.task(unique="{card.token}")
    def charge(card: Card) -> None: ...
    @jobs.task(unique="{card}")
    def refund(card: Card) -> None: ...

    for task, named in ((charge, "card.token"), (refund, "card")):
        with pytest.raises(InvalidOption, match=f"unique can't use '{named}': a Secret"):
            task.bind(Card(Secret("t0p")))


def scaled(factor: int, n: int) -> int:
    return factor * n


class Adder:
    async def __call__(self, n: int) -> int:
        return n + 1


def prefixed(job: Job[Any], mark: str) -> Iterator[None]:
    assert mark == "x"
    yield


def test_a_partial_and_an_object_that_can_be_called_are_tasks(jobs: Tenure) -> None:
    jobs.around(functools.partial(prefixed, mark="x"))
    double = jobs.task(name="double")(functools.partial(scaled, 2))
    adder = jobs.task(name="adder")(Adder())

    with jobs.testing() as queue:
        handles = [double.enqueue(4), adder.enqueue(4)]
        queue.drain()
        assert [handle.result("0s") for handle in handles] == [8, 5]


def test_an_error_that_is_never_retried_asks_for_no_delay(jobs: Tenure) -> None:
    asked = []

    def delay(error: Exception, failures: int) -> None:
        asked.append(error)
        raise RuntimeError("it has no header")

    @jobs.task(retry=Retry(3, never=KeyError, delay=delay))
    def charge() -> None:
        raise KeyError("declined")

    with jobs.testing() as queue:
        handle = charge.enqueue()
        with pytest.raises(KeyError):
            queue.drain(failures="retry")
        assert (handle.status().state, handle.status().attempt, asked) == ("dead", 1, [])


def test_a_task_is_declared_where_the_current_folder_was_deleted(
    jobs: Tenure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()

    jobs.task(name="scaled")(scaled)


# ── binding ──


def test_calling_a_task_says_what_to_call(jobs: Tenure) -> None:
    @jobs.task
    def analyse() -> None: ...

    call: Any = analyse
    with pytest.raises(TypeError, match=r"analyse is a task: \.enqueue\(…\) stores a job, \.call\(…\) runs it here"):
        call()


def test_a_new_job_is_checked_but_not_stored_and_its_meta_may_grow(jobs: Tenure) -> None:
    @jobs.task
    def greet(name: str) -> None: ...

    with jobs.testing() as queue:
        job = greet.bind("Ada")
        assert queue.enqueued(greet) == []
        job.meta["trace"] = "1"
        first, again = job.enqueue(), job.enqueue()

    assert (first.id, first.created, again.created) == (job.id, True, False)
    assert job.draft().meta == '{"trace":"1"}'


def test_ids_rise_within_a_process() -> None:
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))


# ── registry ──


def test_two_tasks_of_one_name_are_refused_naming_both_places(jobs: Tenure) -> None:
    @jobs.task(aliases=["post"])
    def send() -> None: ...

    with pytest.raises(InvalidOption) as caught:

        @jobs.task(name="post")
        def other() -> None: ...

    here = Path(__file__).name
    assert str(caught.value).count(f"{here}:") == 2
    assert str(caught.value).startswith("two tasks are named 'post': ")
    assert str(caught.value).endswith("give one a name=")


def test_an_old_name_still_finds_its_task(jobs: Tenure) -> None:
    @jobs.task(aliases=["send_mail"])
    def send() -> None: ...

    assert jobs.tasks.find("send_mail") is jobs.tasks["send"]
    assert jobs.tasks.names == ("send", "send_mail")
    assert [task.name for task in jobs.tasks] == ["send"]
    assert jobs.tasks.find("gone") is None
    with pytest.raises(UnknownTask, match="no task is named 'gone'; known: send"):
        _ = jobs.tasks["gone"]


def test_a_module_imported_again_takes_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reloaded_app.py").write_text("from tenure import Tenure\njobs = Tenure('memory:')\n")
    (tmp_path / "reloaded_tasks.py").write_text("from reloaded_app import jobs\n@jobs.task\ndef send() -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloaded_tasks")

    importlib.reload(module)

    assert sys.modules["reloaded_app"].jobs.tasks["send"] is module.send


def test_a_cell_that_is_run_again_replaces_its_task() -> None:
    """Each run of a notebook's cell, and each statement at a prompt, is a file of its own to Python."""
    jobs = Tenure("memory:")
    session: dict[str, object] = {"__name__": "__main__", "jobs": jobs}
    for cell, line in (("<cell 1>", "@jobs.task"), ("<cell 2>", "@jobs.task(retry=3)")):
        exec(compile(f"{line}\ndef greet(name: str) -> None: ...\n", cell, "exec"), session)

    assert jobs.tasks["greet"] is session["greet"]
    with pytest.raises(InvalidOption, match=r"^two tasks are named 'greet': .*<cell 2>:1 and .*<cell 3>:1"):
        exec(compile("@jobs.task(name='greet')\ndef other() -> None: ...\n", "<cell 3>", "exec"), session)
    twice = "@jobs.task\ndef send() -> None: ...\n" * 2
    with pytest.raises(InvalidOption, match=r"^two tasks are named 'send': .*<cell 4>:1 and .*<cell 4>:3"):
        exec(compile(twice, "<cell 4>", "exec"), session)


def test_two_files_of_a_program_declare_no_task_twice() -> None:
    program: dict[str, object] = {"__name__": "__main__", "__file__": "app.py", "jobs": Tenure("memory:")}
    line = "@jobs.task\ndef greet(name: str) -> None: ...\n"
    exec(compile(line, "app.py", "exec"), program)

    with pytest.raises(InvalidOption, match=r"^two tasks are named 'greet': app\.py:1 and more\.py:1"):
        exec(compile(line, "more.py", "exec"), program)


def test_resolving_finds_what_the_declaration_could_not_know(jobs: Tenure) -> None:
    def late(job: Unknown, n: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    jobs.task(late)

    with pytest.raises(InvalidOption, match="late: 'Unknown' in its annotations is undefined"):
        jobs.tasks.resolve()


def test_a_decorated_coroutine_keeps_its_signature_and_is_awaited(jobs: Tenure) -> None:
    def logged(fn: Callable[[str], Awaitable[int]]) -> Callable[[str], Awaitable[int]]:
        @functools.wraps(fn)
        async def wrapper(name: str) -> int:
            return await fn(name)

        return wrapper

    @jobs.task
    @logged
    async def size(name: str) -> int:
        return len(name)

    def promise(name: str) -> Awaitable[int]:
        return size.acall(name)

    assert size.is_async
    assert size.call("Ada") == 3
    assert jobs.task(promise).call("Ada") == 3
    assert jobs.tasks["promise"].decode_result("3") == 3


# ── what a handler holds ──


def test_call_runs_it_here_with_a_job_of_its_own(jobs: Tenure) -> None:
    seen: list[Any] = []

    @jobs.task(queue="slow")
    def work(job: Job[int], n: int) -> Summary:
        job.progress(0.5, stage="half", message="x", checkpoint=3)
        job.flush()
        seen.extend([job.task, job.queue, job.attempt, job.failures, job.crashes, dict(job.meta), job.checkpoint])
        seen.append(job.stopping)
        job.finish(tx=None)
        assert job.enqueued_at.tzinfo is UTC
        assert job.id.version == 7
        return Summary(job.once("n", lambda: n) + job.once("n", lambda: 100))

    assert work.call(2) == Summary(4)
    assert seen == ["work", "slow", 1, 0, 0, {}, None, None]


def test_acall_awaits_a_coroutine_and_puts_a_plain_function_in_a_thread(jobs: Tenure) -> None:
    @jobs.task
    async def on_loop(job: Job, n: int) -> int:
        await job.aflush()
        return await job.aonce("n", lambda: asyncio.sleep(0, n))

    @jobs.task
    def in_thread(n: int) -> int:
        return asyncio.run(asyncio.sleep(0, n))  # would be refused on the loop's thread

    async def both() -> tuple[int, int]:
        return await on_loop.acall(1), await in_thread.acall(2)

    assert asyncio.run(both()) == (1, 2)
    assert on_loop.call(3) == 3


def test_acall_passes_on_whatever_a_plain_function_raises(jobs: Tenure) -> None:
    @jobs.task
    def first(limit: int) -> int:
        return next(n for n in range(3) if n > limit)

    with pytest.raises(StopIteration):
        first.call(5)
    with pytest.raises(RuntimeError, match="first raised StopIteration, which no coroutine can pass on"):
        asyncio.run(asyncio.wait_for(first.acall(5), 60))


def test_a_template_where_a_key_is_expected_is_refused(jobs: Tenure) -> None:
    """All jobs would have the same key, and only the first would be stored."""

    @jobs.task
    def fetch(url: str, depth: int = 1) -> None: ...

    for key, name in (("fetch:{url}", "url"), ("{depth:03}", "depth"), ("{url.host}", "url")):
        why = f"fetch.using: unique is the key itself, so {{{name}}} would not be filled in"
        with pytest.raises(InvalidOption, match=re.escape(why)):
            fetch.using(unique=key)
        with pytest.raises(InvalidOption, match=re.escape(why)):
            jobs.bind("fetch", {"url": "x"}, unique=key)
    with pytest.raises(InvalidOption, match=r"elsewhere: unique is the key itself, so \{order\} would not be"):
        jobs.bind("elsewhere", {"order": 7}, unique="charge:{order}", unchecked=True)
    for key in ('{"url": 1}', "{other}", "{", "{}", "{url", "url}"):
        assert draft_of(fetch.using(unique=key), "x").unique == key


def test_call_checks_arguments_as_enqueue_does(jobs: Tenure) -> None:
    @jobs.task
    def greet(name: str) -> None: ...

    wrong: Any = 5
    with pytest.raises(InvalidArguments, match="expected str, got int"):
        greet.call(wrong)


@pytest.mark.parametrize("signal", [Snooze("10m"), Fail("no")])
def test_call_lets_signals_through(jobs: Tenure, signal: Exception) -> None:
    @jobs.task
    def stop() -> None:
        raise signal

    with pytest.raises(type(signal)):
        stop.call()


def test_a_synchronous_call_on_a_running_loop_names_its_twin(jobs: Tenure) -> None:
    @jobs.task
    async def send_receipt(job: Job) -> None:
        for call, twin in (
            (job.flush, "await job.aflush()"),
            (lambda: job.once("a", int), "await job.aonce(…)"),
            (lambda: job.finish(tx=None), "await job.afinish(…)"),
            (send_receipt.enqueue, "await send_receipt.aenqueue(…)"),
            (send_receipt.bind().enqueue, "await send_receipt.aenqueue(…)"),
            (send_receipt.call, "await send_receipt.acall(…)"),
            (send_receipt.handle(job.id).result, "await handle.aresult(…)"),
            (send_receipt.handle(job.id).cancel, "await handle.acancel(…)"),
            (lambda: jobs.enqueue_many([]), "await jobs.aenqueue_many(…)"),
            (jobs.__enter__, "async with jobs"),
            (jobs.transaction().__enter__, "async with jobs.atransaction()"),
        ):
            with pytest.raises(WouldBlock) as caught:
                call()
            assert str(caught.value).endswith(f"would block this event loop; write: {twin}")

    asyncio.run(send_receipt.acall())


def test_progress_takes_a_fraction_and_forgives_rounding(jobs: Tenure) -> None:
    @jobs.task
    def work(job: Job, fraction: float) -> None:
        job.progress(fraction)

    for fine in (0, 0.0, 1, sum([0.1] * 11) - 0.1):
        work.call(fine)
    for wrong in (1.5, -0.5, 50):
        with pytest.raises(InvalidOption, match=f"expected a fraction from 0 to 1, got {wrong}"):
            work.call(wrong)


def test_progress_is_text_that_every_store_can_keep(jobs: Tenure) -> None:
    told: list[Any] = []

    @jobs.task
    def work(job: Job[dict[str, int]]) -> None:
        attempt: Any = job._attempt
        attempt.report = lambda *words: told.append(words)
        job.progress(stage="a\0b", message="x" * 5000, checkpoint={"n": 1})
        job.progress()
        wrong: Any = 3
        with pytest.raises(InvalidOption, match="stage: expected text, got 3"):
            job.progress(stage=wrong)

    work.call()

    assert told == [(None, "a\ufffdb", "x" * 1999 + "…", '{"n":1}'), (None, None, None, None)]


def test_a_checkpoint_is_what_the_job_says_it_is(jobs: Tenure) -> None:
    @jobs.task
    def typed(job: Job[Summary]) -> None: ...
    @jobs.task
    def bare(job: Job) -> None: ...

    assert typed.load_checkpoint(typed.dump_checkpoint(Summary(3))) == Summary(3)
    assert bare.load_checkpoint(bare.dump_checkpoint([1, "a"])) == [1, "a"]
    with pytest.raises(TenureError, match="typed: its checkpoint does not fit its type: expected object, got int"):
        typed.dump_checkpoint(3)


def test_once_comes_back_as_its_function_says_in_every_attempt(jobs: Tenure) -> None:
    calls: list[int] = []

    def charge() -> Summary:
        calls.append(1)
        return Summary(7)

    charge.__annotations__ = {"return": Summary}

    @jobs.task
    def pay(job: Job) -> None:
        assert [job.once("charge", charge) for _ in range(2)] == [Summary(7), Summary(7)]
        with pytest.raises(InvalidOption, match="once key: expected 1 to 200 characters"):
            job.once("", charge)

    pay.call()
    assert calls == [1]


def test_a_detached_job_finds_the_resources_of_the_test(jobs: Tenure) -> None:
    @jobs.task
    def work(job: Job) -> Summary:
        return job.resource(Summary)

    with jobs.testing(resources={Summary: Summary(9)}):
        assert work.call() == Summary(9)
    with pytest.raises(InvalidOption, match=r"work: \.call\(\) opens no resources; .*resources={Summary: …}"):
        work.call()


# ── results ──


def test_results_come_back_as_annotated(jobs: Tenure) -> None:
    @jobs.task
    async def summarise() -> Summary:
        return Summary(3)

    @jobs.task
    def untyped():  # type: ignore[no-untyped-def]
        return {"a": 1}

    assert summarise.decode_result(summarise.encode_result(Summary(3))) == Summary(3)
    assert untyped.decode_result('{"a":1}') == {"a": 1}
    assert summarise.encode_result(None) == "null"
    with pytest.raises(TenureError, match="summarise: its result does not fit its type: expected object, got null"):
        summarise.decode_result("null")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (object(), "work: result: a value of type object can't be written as JSON"),
        ("x" * 300_000, "work: result: 293 KiB as JSON, the limit is 256 KiB; store a path or a key instead"),
        ("\ud800", "work: result: it has a lone surrogate"),
        (datetime(2026, 1, 1), "work: result: a naive datetime"),
    ],
)
def test_a_result_that_can_not_be_stored_says_why(jobs: Tenure, result: object, why: str) -> None:
    @jobs.task
    def work() -> None: ...

    with pytest.raises(InvalidArguments) as caught:
        work.encode_result(result)
    assert str(caught.value).startswith(why)


def test_a_coroutine_returned_by_mistake_is_named(jobs: Tenure) -> None:
    @jobs.task
    def work() -> None: ...

    with pytest.raises(InvalidArguments, match="the value is a coroutine; write the handler with `async def`"):
        work.encode_result(asyncio.sleep(0))


def test_times_of_any_zone_are_taken(jobs: Tenure) -> None:
    @jobs.task
    def work() -> None: ...

    due = datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert draft_of(work.using(run_at=due)).run_at == due


def test_aonce_takes_a_plain_function_too(jobs: Tenure) -> None:
    """It ran the function, and then failed at its result: the effect came again with each retry."""
    charged: list[int] = []

    def charge() -> str:
        charged.append(1)
        return "r1"

    @jobs.task(retry=3)
    async def pay(job: Job) -> str:
        return await job.aonce("charge", charge) + await job.aonce("charge", charge)

    with jobs.testing() as queue:
        handle = pay.enqueue()
        queue.drain()
        assert handle.result("0s") == "r1r1"
    assert charged == [1]


@dataclass
class Report:
    rows: dict[str, object]
    note: object = None


def test_an_object_within_an_annotation_is_plain_json(jobs: Tenure) -> None:
    @jobs.task
    def report(given: dict[str, object], more: list[object], opt: object = None) -> Report:
        return Report({**given, "more": more}, opt)

    @jobs.task
    def album(job: Job[dict[str, object]]) -> list[object]:
        def charge() -> dict[str, object]:
            return {"id": "ch_1"}

        job.progress(checkpoint={"page": 1})
        (found,) = job.gather("reports", lambda: [report.bind({"a": 1}, [None, "x"], {"n": 2.5})])
        return [found.rows, found.note, job.once("charge", charge)["id"], (job.checkpoint or {}).get("page")]

    with jobs.testing() as queue:
        handle = album.enqueue()
        queue.drain()
        assert handle.result("0s") == [{"a": 1, "more": [None, "x"]}, {"n": 2.5}, "ch_1", 1]


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("k:{card.nope}", "{card.nope} is not there"),
        ("k:{names[a]}", "{names[a]} is not there"),
        ("k:{card:d}", "has no format 'd'"),
    ],
)
def test_a_unique_key_that_can_not_be_written_says_so(jobs: Tenure, template: str, sentence: str) -> None:
    @jobs.task(unique=template)
    def pay(card: str, names: dict[str, str]) -> None: ...

    with pytest.raises(InvalidArguments, match=re.escape(sentence)):
        pay.bind("x", {})


@pytest.mark.parametrize("template", [True, "", lambda card: card])
def test_a_unique_that_is_no_template_is_refused_where_it_is_declared(jobs: Tenure, template: Any) -> None:
    def pay(card: str) -> None: ...

    with pytest.raises(InvalidOption, match="unique: expected a template"):
        jobs.task(unique=template)(pay)
        jobs.program.check()


def test_a_replay_with_other_arguments_keeps_no_unique_key_of_the_old_ones(tmp_path: Path) -> None:
    """The key stayed: enqueues of the old arguments met this job, and those of the new ones ran beside it."""
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db")

    @jobs.task(unique="order:{n}")
    def pay(n: int, note: str = "") -> None: ...

    with jobs:
        handle, chosen = pay.enqueue(7), pay.using(unique="mine").enqueue(7)
        for each in (handle, chosen):
            each.cancel()
        client = jobs.client()
        admin = Admin(client.store, client.notifier, jobs.settings)
        with pytest.raises(InvalidArguments, match=r"its unique key is 'order:7', .* would be 'order:8'"):
            admin.jobs.replay_edited(str(handle.id), {"n": 8}, task=pay)
        assert admin.jobs.replay_edited(str(handle.id), {"note": "again"}, task=pay).landed
        assert admin.jobs.replay_edited(str(chosen.id), {"n": 8}, task=pay).landed
