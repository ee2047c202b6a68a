"""What people who know another queue write first, and the sentence that says what to write instead."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import pytest

from tenure import Job, Retry, Secret, Task, Tenure
from tenure.app.backends import open_store
from tenure.cli.worker import warn_of_queues
from tenure.config import load
from tenure.core.lifecycle import State
from tenure.errors import InvalidOption, StoreError, UnknownTask
from tenure.events import DEPLOY
from tenure.tasks.hints import USING
from tenure.testing import TestQueue
from waiting import until


class Order: ...


class Name(str): ...


@dataclass
class Line:
    order: int


@pytest.fixture
def app(tmp_path: Path) -> Tenure:
    return Tenure(f"sqlite:///{tmp_path}/tenure.db")


@pytest.fixture
def add(app: Tenure) -> Any:
    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    return add


def said(call: Callable[[], object], kind: type[BaseException] = InvalidOption) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("delay", "add.enqueue(…)"),
        ("apply_async", "add.using(…).enqueue(…)"),
        ("s", "add.bind(…)"),
        ("si", "add.bind(…)"),
        ("kiq", "add.enqueue(…)"),
        ("schedule", 'add.using(delay="5s").enqueue(…)'),
        ("map", "jobs.enqueue_many(add.bind(n) for n in …)"),
        ("starmap", "jobs.enqueue_many("),
        ("chunks", "jobs.enqueue_many("),
    ],
)
def test_a_method_of_another_queue_names_the_one_here(add: Any, name: str, instead: str) -> None:
    words = said(lambda: getattr(add, name)(1, 2), AttributeError)

    assert words.startswith(f"the task add has no {name!r}; write ")
    assert instead in words
    assert not hasattr(add, "__wrapped__")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("max_retries", "write retry=Retry("),
        ("time_limit", "write timeout="),
        ("timout", "did you mean timeout=?"),
        ("countdown", 'that is an option of one job: task.using(delay="5s").enqueue(…)'),
        ("delay", 'that is an option of one job: task.using(delay="5s").enqueue(…)'),
        ("eta", "that is an option of one job: task.using(run_at=…).enqueue(…)"),
        ("expires", 'that is an option of one job: task.using(expires="1h").enqueue(…)'),
        ("meta", "that is an option of one job: task.using(meta=…).enqueue(…)"),
        ("rate_limit", 'write limit=jobs.limit("mails", rate="100/1m")'),
        ("acks_late", "it is always so: "),
        ("ignore_result", "results are always kept, for the setting `keep`"),
    ],
)
def test_an_option_that_a_task_does_not_have_names_the_right_one(app: Tenure, option: str, instead: str) -> None:
    words = said(lambda: app.task(**{option: 3}))  # type: ignore[call-overload]

    assert words.startswith(f"@jobs.task: there is no option {option!r}; {instead}")


def test_all_wrong_options_are_named_at_once(app: Tenure, add: Any) -> None:
    words = said(lambda: app.task(bind=True, max_retries=3))  # type: ignore[call-overload]

    assert words.startswith("@jobs.task: there is no option 'bind'; write a first parameter job: Job. And there is no")
    assert "option 'max_retries'; write retry=Retry(…)" in words
    assert "'eta'" in (both := said(lambda: add.using(countdown=1, eta=2)))
    assert "'countdown'" in both


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("countdown", 'write delay="5s"'),
        ("eta", "write run_at="),
        ("quue", "did you mean queue=?"),
        ("zz", "queue, pri"),
        ("link", "write after=[handle], or a flow: with jobs.flow(…) as flow:"),
    ],
)
def test_an_option_that_using_does_not_have_names_the_right_one(add: Any, option: str, instead: str) -> None:
    words = said(lambda: add.using(**{option: 5}))

    assert words.startswith(f"add.using: there is no option {option!r}; ")
    assert instead in words
    assert "unknown" not in words


@pytest.mark.parametrize(
    ("name", "instead"), [("get", 'handle.result("10s")'), ("ready", "handle.status().state"), ("revoke", ".cancel()")]
)
def test_a_handle_has_no_methods_of_another_queue_and_names_its_own(add: Any, name: str, instead: str) -> None:
    handle = add.handle("01a20563-b655-7000-a3c9-4604273b155f")

    words = said(lambda: getattr(handle, name)(), AttributeError)

    assert words.startswith(f"a JobHandle has no {name!r}; write ")
    assert instead in words
    assert copy(handle) == handle


_CELERY = [
    *((name, "with jobs.flow(…) as flow:") for name in ("chain", "group", "chord")),
    ("signature", "task.bind("),
    ("control", ".cancel()"),
    ("conf", "TENURE_CONCURRENCY"),
]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("send_task", "jobs.enqueue("), ("periodic_task", "jobs.schedule("), ("actor", "jobs.task"), *_CELERY],
)
def test_the_app_has_no_methods_of_another_queue_and_names_its_own(app: Tenure, name: str, instead: str) -> None:
    words = said(lambda: getattr(app, name), AttributeError)

    assert words.startswith(f"the app has no {name!r}; write ")
    assert instead in words
    assert not hasattr(app, "__wrapped__")


def test_a_running_job_names_what_does_the_same_here(app: Tenure) -> None:
    @app.task
    def work(job: Job, name: str) -> None:
        getattr(job, name)(countdown=5)

    with app.testing() as queue:
        for name, instead in [("retry", "raise Fail("), ("update_state", "job.progress("), ("request", "job.id")]:
            work.enqueue(name)
            words = said(queue.drain, AttributeError)
            assert words.startswith(f"a Job has no {name!r}; write ")
            assert instead in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"broker": "redis://h"}, "Tenure: there is no option 'broker'; write Tenure(\"redis://…\")"),
        ({"backend": "redis://h"}, "Tenure: there is no option 'backend'; the store of the jobs keeps their results"),
        ({"namespac": "a"}, "Tenure: there is no option 'namespac'; did you mean namespace=?"),
        (
            {"concurency": 3},
            "Tenure: there is no option 'concurency'; it may be TENURE_CONCURRENCY, in the environment",
        ),
        ({"lease": "5s"}, "Tenure: there is no option 'lease'; it may be TENURE_LEASE, in the environment or .env"),
    ],
)
def test_an_option_that_an_app_does_not_have_names_the_right_one(options: dict[str, Any], words: str) -> None:
    assert said(lambda: Tenure(**options)).startswith(words)


def test_an_option_that_a_retry_does_not_have_names_them_all() -> None:
    policy: Any = Retry
    for name in ("max", "max_attempts"):
        words = said(partial(policy, **{name: 3}))
        assert words.startswith(f"Retry: there is no option {name!r}; write Retry(3) for at most 3 failures, ")


def test_a_task_is_not_told_to_retry_by_calling_its_policy(add: Any) -> None:
    words = said(lambda: add.retry(countdown=5))

    assert words == (
        'a Retry is a policy: to run a job again, its handler raises Fail("why", retry_in="5s"), or Snooze("5s"), '
        "which is charged to nothing"
    )


def test_values_of_the_wrong_kind_are_answered_with_the_right_one(add: Any) -> None:
    for value in ("tomorrow", 5):
        assert said(partial(add.using, run_at=value)) == (
            f"run_at: expected a datetime with a time zone, like datetime.now(UTC) + timedelta(hours=1), got {value!r}"
        )
    assert said(lambda: add.using(meta="x")) == 'meta: expected texts by name, like {"user": "4711"}, got \'x\''


def test_a_path_is_answered_with_its_url() -> None:
    assert said(lambda: Tenure("/tmp/z.db").settings) == "url: expected a URL like sqlite:////tmp/z.db, got '/tmp/z.db'"
    assert "sqlite:///z.db (relative)" in said(lambda: Tenure("z.db").settings)


def test_several_queues_in_one_name_are_answered_with_several(app: Tenure) -> None:
    app.configure({"queues": ["default,slow"]})

    assert said(lambda: app.settings).endswith("got 'default,slow'; give each on its own: -q default -q slow")


def test_a_task_by_name_that_is_nearly_one_of_this_app_names_it(app: Tenure, add: Any) -> None:
    with app:
        words = said(lambda: app.enqueue("ad"), UnknownTask)
        assert "; did you mean 'add', a task of this app? Otherwise start a worker, or write unchecked=True" in words
        with app.worker():
            assert "did you mean 'add'?" in said(lambda: app.enqueue("ad"), UnknownTask)
            assert "known: add; unchecked=True" in said(lambda: app.enqueue("zzzz"), UnknownTask)


def test_every_parameter_without_an_annotation_is_named(app: Tenure) -> None:
    def f(a, b, *, c: int):  # type: ignore[no-untyped-def]
        ...

    words = said(lambda: app.task(f))
    assert words == "f: parameters 'a', 'b' have no annotation; write a: Job, or its type; b: its type"


def test_a_type_that_no_json_stands_for_is_refused_when_the_task_is_declared(app: Tenure) -> None:
    def pay(order: Order) -> None: ...

    def greet(name: Name) -> None: ...

    def keep(line: Line, token: Secret[str], folder: Order | None, *, it: Any) -> Order: ...

    assert said(lambda: app.task(pay)) == (
        "pay: parameter 'order' is an Order, which JSON can't represent; take plain values, a dataclass, a msgspec "
        "Struct or a pydantic model, or the id of a row"
    )
    assert "parameter 'name' is a Name, which JSON can't represent" in said(lambda: app.task(greet))
    assert app.task(keep).name == "keep"


def test_a_session_that_is_no_transaction_of_the_file_is_answered_with_one(app: Tenure, add: Any) -> None:
    class AsyncSession: ...

    async def on_a_loop() -> str:
        with pytest.raises(StoreError) as caught:
            await add.using(tx=AsyncSession()).aenqueue(1, 2)
        return str(caught.value)

    with app:
        words = said(lambda: add.using(tx=AsyncSession()).enqueue(1, 2), StoreError)
        assert words.startswith("tx is an AsyncSession: ")
        assert "one in PostgreSQL can also join one of SQLAlchemy, Django or its driver" in words
        assert said(lambda: add.using(tx=7).enqueue(1, 2), StoreError).startswith("tx is an int: a job in ")
        assert words.endswith("use `with jobs.transaction() as tx:`")
        assert asyncio.run(on_a_loop()).endswith("use `async with jobs.atransaction() as tx:`")


def test_a_transaction_of_another_file_is_named(app: Tenure, add: Any, tmp_path: Path) -> None:
    with app, Tenure(f"sqlite:///{tmp_path}/other.db") as other, other.transaction() as tx:
        words = said(lambda: add.using(tx=tx).enqueue(1, 2), StoreError)

    assert words.startswith(f"tx is a transaction of {tmp_path}/other.db: a job in {tmp_path}/tenure.db can only join ")


def test_a_result_in_a_test_that_has_not_drained_is_answered_at_once(app: Tenure, add: Any) -> None:
    with app.testing() as queue:
        handle, later = add.enqueue(1, 2), add.using(delay="1h").enqueue(1, 2)
        for timeout in (None, "600s"):  # longer than the watchdog of the tests waits
            assert said(partial(handle.result, timeout), TimeoutError).endswith(
                "; a job of jobs.testing() runs when the test calls queue.drain()"
            )
        assert said(later.result, TimeoutError).endswith("calls queue.drain(), after queue.advance(…)")
        queue.drain()
        assert handle.result() == 3


def test_a_result_in_a_test_is_waited_for_beside_the_drain(app: Tenure, add: Any) -> None:
    async def both(queue: TestQueue) -> int:
        handle = await add.aenqueue(1, 2)
        waiting = asyncio.create_task(handle.aresult("30s"))
        await asyncio.sleep(0)
        await queue.adrain()
        answer: int = await waiting
        return answer

    with app.testing() as queue:
        assert asyncio.run(both(queue)) == 3


def test_the_name_of_a_task_is_not_what_is_looked_for(app: Tenure, add: Any) -> None:
    with app.testing() as queue:
        assert said(lambda: queue.assert_enqueued("add", 1, 2)) == (  # type: ignore[arg-type]
            "assert_enqueued: expected a task, got 'add'; write assert_enqueued_by_name(\"add\", {…})"
        )


def test_a_worker_logs_once_that_it_does_not_know_a_task(
    app: Tenure, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with app, app.worker():
        for _ in range(3):
            app.enqueue("seasonal_sale", unchecked=True)
        until(lambda: app.client().store.counts()[State.SCHEDULED] == 3, "the snoozes")

    assert [each.getMessage() for each in caplog.records if "seasonal_sale" in each.getMessage()] == [
        f"jobs of seasonal_sale wait for a worker that knows the task: {DEPLOY}"
    ]


def test_the_options_that_are_named_are_those_of_using() -> None:
    assert set(USING) == set(inspect.signature(Task.using).parameters) - {"self", "unknown"}


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("crontab", 'write the expression first, without a name: jobs.schedule("0 6 * * *")'),
        ("hour", 'write the expression first, without a name: jobs.schedule("0 6 * * *")'),
        ("minutes", 'write every="10m"'),
        ("timezone", "write tz=…"),
        ("max_instances", 'write overlap="skip"'),
        ("misfire_grace_time", "write expires=…"),
        ("args", "write jobs.schedule(…)(task.bind(…))"),
        ("start_date", "did you mean start=?"),
        ("cathc_up", "did you mean catch_up=?"),
        ("zz", "the options are every, tz, name, dst, except_dates, overlap, "),
    ],
)
def test_an_option_that_a_schedule_does_not_have_names_the_right_one(app: Tenure, option: str, instead: str) -> None:
    words = said(lambda: app.schedule("@daily", **{option: 5}))  # type: ignore[arg-type]

    assert words.startswith(f"jobs.schedule: there is no option {option!r}; {instead}")


@pytest.mark.parametrize(("option", "advice"), [("countdown", 'write delay="5s"'), ("zz", "the options are queue, ")])
def test_an_argument_among_the_options_of_a_job_by_name_says_where_arguments_go(
    app: Tenure, add: Any, option: str, advice: str
) -> None:
    for name in ("add", "elsewhere"):
        words = said(partial(app.enqueue, name, **{option: 5}))  # type: ignore[arg-type]
        assert words.startswith(f"{name}: there is no option {option!r}; {advice}")
        assert words.endswith(f'; arguments go into a dict: {{"{option}": …}}')


def test_a_guard_names_the_nearest_option(app: Tenure) -> None:
    words = said(lambda: app.guard("report", every="1d", overdue="5m"), InvalidOption)  # type: ignore[call-arg]

    assert words == "jobs.guard: there is no option 'overdue'; did you mean overdue_after=?"


@pytest.mark.parametrize("option", ["countdown", "delay", "queue", "eta"])
def test_an_option_among_the_arguments_says_where_options_go(add: Any, option: str) -> None:
    words = said(lambda: add.bind(1, 2, **{option: 5}), TypeError)

    assert words.startswith(f"add: unexpected argument {option!r}; it takes (a: int, b: int); ")
    assert words.endswith("options go into add.using(…), before .enqueue(…)")
    assert "options" not in said(lambda: add.bind(1, 2, c=5), TypeError)


def test_a_retry_that_is_none_says_what_to_write(app: Tenure, add: Any) -> None:
    def work() -> None: ...

    for call in (lambda: add.using(retry={"max": 3}), lambda: app.task(retry=True)(work)):
        words = said(call)
        assert words.startswith("retry: expected a number of failures, or Retry(…), got ")


def test_functions_that_can_not_be_tasks_are_answered_kindly(app: Tenure) -> None:
    class Shop:
        def pay(self, order: int) -> None: ...

    assert said(lambda: app.task(lambda: None)) == (
        "@jobs.task: this function has no name of its own; write it with def, or give @jobs.task a name="
    )
    assert "has no name of its own" in said(lambda: app.task(partial(print, 1)))
    assert said(lambda: app.task(Shop.pay)).startswith("pay: a method can't be a task: a worker has no 'self'")


def test_enqueue_many_says_what_it_takes(app: Tenure, add: Any) -> None:
    assert said(lambda: app.enqueue_many(add)).startswith("enqueue_many: expected jobs like add.bind(1, 2), got Task(")
    assert said(lambda: app.enqueue_many([1])) == (  # type: ignore[list-item]
        "enqueue_many: expected jobs like add.bind(1, 2), got 1"
    )
    assert "expected jobs like add.bind(1, 2), got Task(add" in said(lambda: app.enqueue_many([add]))


def test_jobs_of_an_app_with_another_store_are_not_enqueued_here(app: Tenure, add: Any, tmp_path: Path) -> None:
    """They were stored where no worker knows them, and their handles looked elsewhere."""
    other, same = Tenure(f"sqlite:///{tmp_path}/other.db"), Tenure(app.settings.url)

    assert said(lambda: other.enqueue_many([add.bind(1, 2)])) == (
        "enqueue_many: add belongs to an app with another store: enqueue it there"
    )
    with app, same:
        (handle,) = same.enqueue_many([add.bind(1, 2)])
        assert handle.status().state == "queued"


def test_collected_arguments_are_named_as_they_are_written(app: Tenure) -> None:
    def many(*args: int) -> None: ...

    def more(**kw: Any) -> None: ...

    assert said(lambda: app.task(many)).startswith("many: *args can't be stored by name")
    assert said(lambda: app.task(more)).startswith("more: **kw can't be stored by name")


def test_a_value_that_is_no_json_is_named_by_its_type(app: Tenure) -> None:
    @app.task
    def keep(n: int, it: Any) -> None: ...

    class User: ...

    assert "a value of type object can't be written as JSON" in said(lambda: keep.bind(1, object()), TypeError)
    assert "a value of type User can't be written as JSON" in said(lambda: keep.bind(1, User()), TypeError)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("postgresql+asyncpg://db/shop", "write postgresql:, without the driver"),
        ("postgres+psycopg2://db/shop", "write postgres:, without the driver"),
        ("mysql://db/shop", "known: sqlite, postgresql, redis, valkey"),
        ("sqlite:///shop.db?timeout=10", "shop.db, without ?timeout=10"),
        ("nats://host:4222", 'NATS delivers beside a store: Tenure("postgresql://…", notifier="nats://…")'),
        ("redis+socket:///run/redis.sock", "write unix:///run/redis.sock"),
    ],
)
def test_a_url_with_a_driver_says_to_leave_it_out(url: str, advice: str, tmp_path: Path) -> None:
    assert said(lambda: open_store(load({"url": url}, environ={}, folder=tmp_path))).endswith(advice)


def test_a_worker_of_a_queue_that_no_task_names_says_so(
    app: Tenure, add: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    app.configure({"queues": ["default", "nope"]})
    warn_of_queues(app)

    assert "no task names the queue nope; the tasks name default" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queues": "nope"}, "jobs.worker: queues: expected a list of names, got 'nope'; write ['nope']"),
        ({"queues": 5}, "jobs.worker: queues: expected a list of names, got 5"),
        (
            {"queues": []},
            "jobs.worker: queues: expected a list of names, got []; leave it out to serve those of all tasks",
        ),
        ({"queues": ["a b"]}, "jobs.worker: queues: expected letters, digits and _ . - (at most 100"),
        ({"queues": [5]}, "jobs.worker: queues: expected text, got 5"),
        ({"concurrency": 0}, "jobs.worker: concurrency: expected a whole number from 1 to 10000, got 0"),
        ({"concurrency": "5"}, "jobs.worker: concurrency: expected a whole number, got the text '5'"),
        ({"concurrency": True}, "jobs.worker: concurrency: expected a whole number from 1 to 10000, got True"),
        ({"threads": 5}, "jobs.worker: there is no option 'threads'; write concurrency="),
        ({"queue": "nope"}, "jobs.worker: there is no option 'queue'; did you mean queues=?"),
    ],
)
def test_an_embedded_worker_checks_its_options_at_the_call(
    app: Tenure, add: Any, options: dict[str, Any], words: str
) -> None:
    assert said(lambda: app.worker(**options)).startswith(words)


def test_an_embedded_worker_of_a_queue_that_no_task_names_warns(
    app: Tenure, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app.worker(queues=["default"])
    assert caplog.text == ""
    app.worker(queues=("default", "nope"))

    assert "no task names the queue nope; the tasks name default" in caplog.text


def test_an_embedded_worker_takes_slots_of_a_queue_as_the_settings_do(app: Tenure, add: Any) -> None:
    begun, free, most = Semaphore(0), Event(), list[int]()

    @app.task(queue="one")
    def alone(n: int) -> None:
        begun.release()
        most.append(n)
        free.wait(30)

    with app, app.worker(queues=["one=1", "default"], concurrency=4):
        first, second = alone.enqueue(1), alone.enqueue(2)
        assert begun.acquire(timeout=30)
        assert add.enqueue(1, 2).result("30s") == 3
        assert len(most) == 1
        free.set()
        assert (first.result("30s"), second.result("30s")) == (None, None)


def test_a_result_that_does_not_come_says_why(app: Tenure, add: Any, tmp_path: Path) -> None:
    begun, free = Event(), Event()

    @app.task
    def hold() -> None:
        begun.set()
        free.wait(30)

    with app:
        handle = add.enqueue(1, 2)
        words = said(lambda: handle.result("10ms"), TimeoutError)
        assert "is still queued after 10ms; no live worker of this store (sqlite:///" in words
        assert words.endswith("serves the queue 'default'")
        assert str(tmp_path) in words

        with app.worker(concurrency=1):
            assert handle.result("30s") == 3
            app.client().store.pause("default", paused=True)
            paused = add.enqueue(1, 2)
            words = said(lambda: paused.result("10ms"), TimeoutError)
            assert "; the queue 'default' of this store (sqlite:///" in words
            assert words.endswith("is paused")
            app.client().store.pause("default", paused=False)
            assert paused.result("30s") == 3

            busy = hold.enqueue()
            assert begun.wait(30)
            waiting = add.enqueue(1, 2)
            words = said(lambda: waiting.result("10ms"), TimeoutError)
            assert "; 1 live worker of this store (sqlite:///" in words
            assert f"serves the queue 'default'; tenure jobs explain {waiting.id} says more" in words
            free.set()
            assert busy.result("30s") is None
        later = add.using(delay="1h").enqueue(1, 2)
        assert "worker" not in said(lambda: later.result("10ms"), TimeoutError)
