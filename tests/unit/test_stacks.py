"""The stack of a running handler: files, lines and functions, however it waits, and no value."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tenure import Task, Tenure
from tenure.app import backends
from tenure.core.clock import system_clock
from tenure.errors import Refused
from tenure.maintenance import orders
from tenure.maintenance.orders import Frame, Order, Stack, Trace
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.stores.memory import MemoryStore
from tenure.supervisor.orders import Orders
from tenure.worker.orders import carry_out
from tenure.worker.stacks import traces
from waiting import until

HERE = str(Path(__file__))
gate = threading.Event()


async def deep(wait: Callable[[], Awaitable[object]], secret: str) -> None:
    await wait()


def functions(trace: Trace) -> list[str]:
    """The functions of this file on a trace."""
    return [each.function.rpartition(".")[2] for each in trace.frames if each.file == HERE]


class Shop:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore(system_clock())
        monkeypatch.setattr("tenure.app.backends.open_store", lambda _: store)
        self.jobs = Tenure("memory:", notifier="poll")
        self.jobs.configure({"poll_interval": "50ms", "grace": "0s"})
        self.begun = threading.Event()

    def seen(self, task: Task[[], Any], *, count: int = 1, innermost: str = "", others: str = "") -> list[Trace]:
        """The traces of a job of this task: at least `count`, the first ends in `innermost`, the others in `others`."""

        def there() -> list[Trace]:
            attempt = worker._serving._worker.running.get(job_id)
            found = [] if attempt is None else list(traces(attempt))
            ends = [each.frames[-1].function if each.frames else "" for each in found]
            rest = len(ends) >= count and ends[0].endswith(innermost) and all(end.endswith(others) for end in ends[1:])
            return found if rest and ends[0] else []

        job_id, worker = str(task.enqueue().id), self.jobs.worker()
        with worker:
            assert self.begun.wait(30)
            found = until(there, "the traces")
            gate.set()
        return found


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    gate.clear()
    return Shop(monkeypatch)


def test_a_plain_handler_is_the_stack_of_its_thread(shop: Shop) -> None:
    def below() -> None:
        shop.begun.set()
        gate.wait(30)

    @shop.jobs.task
    def pack() -> None:
        below()

    (trace,) = shop.seen(pack, innermost="wait")
    assert trace.name == "its thread"
    assert functions(trace) == ["pack", "below"]
    assert trace.frames[-1].function.endswith("wait")


async def told() -> None:
    while not gate.is_set():
        await asyncio.sleep(0.01)


def test_an_async_handler_that_waits_is_the_chain_of_its_coroutines(shop: Shop) -> None:
    async def below(order: int) -> None:
        shop.begun.set()
        await told()

    @shop.jobs.task
    async def pack() -> None:
        await below(4711)

    (trace,) = shop.seen(pack, innermost="sleep")
    assert trace.name == "its asyncio task"
    assert functions(trace) == ["pack", "below", "told"]
    assert "4711" not in repr(trace)


def test_an_async_handler_that_blocks_its_loop_is_seen_down_to_where_it_blocks(shop: Shop) -> None:
    def below() -> None:
        shop.begun.set()
        gate.wait(30)

    @shop.jobs.task
    async def pack() -> None:
        below()

    (trace,) = shop.seen(pack, innermost="wait")
    assert functions(trace) == ["pack", "below"]


@pytest.mark.parametrize("how", ["gather", "group", "wait_for", "wait", "await"])
def test_the_tasks_that_a_handler_waits_for_are_traces_of_their_own(shop: Shop, how: str) -> None:
    async def fetch() -> None:
        shop.begun.set()
        await told()

    async def unrelated() -> None:
        await told()

    @shop.jobs.task
    async def pack() -> None:
        other = asyncio.create_task(unrelated())
        match how:
            case "gather":
                await asyncio.gather(fetch(), fetch())
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(fetch())
                    group.create_task(fetch())
            case "wait_for":
                await asyncio.wait_for(asyncio.create_task(fetch()), 30)
            case "wait":
                await asyncio.wait([asyncio.create_task(fetch()), asyncio.create_task(fetch())])
            case _:
                await asyncio.create_task(fetch())
        await other

    tasks = 1 if how in ("wait_for", "await") else 2
    first, *others = shop.seen(pack, count=1 + tasks, others="sleep")
    assert functions(first) == ["pack"]
    assert [functions(each) for each in others] == [["fetch", "told"]] * tasks
    assert all(each.name.endswith(", which it waits for") for each in others)


def test_what_a_handler_runs_by_to_thread_is_a_trace_and_that_of_another_job_is_not(shop: Shop) -> None:
    def read() -> None:
        shop.begun.set()
        gate.wait(30)

    def write() -> None:
        gate.wait(30)

    @shop.jobs.task
    async def store() -> None:
        await asyncio.to_thread(write)

    @shop.jobs.task
    async def load() -> None:
        await asyncio.to_thread(read)

    store.enqueue()
    first, second = shop.seen(load, count=2)
    assert functions(first) == ["load"]
    assert (second.name, functions(second)) == ("a thread of asyncio.to_thread", ["read"])


@pytest.mark.parametrize("how", ["closure", "closures", "argument"])
def test_a_call_of_to_thread_that_a_tracer_has_wrapped_is_seen(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    submit = ThreadPoolExecutor.submit

    def run(trace: object, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return call(*args)

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            return (before, call(*args), after)[1]

        before = after = "some variables of the tracer"
        return wrapped

    def traced(self: ThreadPoolExecutor, call: Callable[..., Any], *args: Any) -> Future[Any]:
        match how:
            case "closure":
                return submit(self, wrap(call), *args)
            case "closures":
                return submit(self, wrap(wrap(call)), *args)
            case _:
                return submit(self, run, object(), call, args)

    def read() -> None:
        shop.begun.set()
        gate.wait(30)

    @shop.jobs.task
    async def load() -> None:
        await asyncio.to_thread(read)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", traced)
    _, *others = shop.seen(load)
    assert [(each.name, functions(each)[-1:]) for each in others] == [("a thread of asyncio.to_thread", ["read"])]


def test_a_handler_on_the_callers_own_loop_is_seen_there(shop: Shop) -> None:
    @shop.jobs.task
    async def pack() -> None:
        shop.begun.set()
        await told()

    async def app() -> list[Trace]:
        async with (worker := shop.jobs.worker()):
            job_id = str((await pack.aenqueue()).id)
            while not shop.begun.is_set():
                await asyncio.sleep(0.01)
            found = await asyncio.to_thread(traces, worker._serving._worker.running[job_id])
            gate.set()
        return list(found)

    (trace,) = asyncio.run(app())
    assert functions(trace) == ["pack", "told"]


def test_an_embedded_worker_answers_an_order_of_the_store(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    @shop.jobs.task
    def pack() -> None:
        shop.begun.set()
        gate.wait(30)

    store = backends.open_store(shop.jobs.settings)
    admin = Admin(store, PollNotifier(), who="ada")
    job_id, worker = str(pack.enqueue().id), shop.jobs.worker()
    with worker:
        assert shop.begun.wait(30)
        admin.jobs.ask_for_stack(job_id)
        stack = admin.jobs.stack(job_id, within=60.0)
        with pytest.raises(Refused, match=r"is embedded in a program .* can't be restarted alone"):
            admin.workers.stop(worker._serving.holder.id, "restart")
        gate.set()

    assert stack is not None
    assert (stack.state, stack.who, [functions(each) for each in stack.traces]) == ("answered", "ada", [["pack"]])
    assert store.notes("order:") == {}


# ── in the store ──


def test_a_stack_that_is_too_long_keeps_its_ends_and_says_what_is_left_out() -> None:
    store, now = MemoryStore(system_clock()), datetime.now(UTC)
    frames = tuple(Frame("/srv/shop/" + "x" * 200, number, "recurse") for number in range(1000))
    rows = [("its thread", frames)] * 20

    orders.answer(store, Stack("job", "worker", "ada", now, now, "", orders.traces_of(rows)))

    found = orders.last_stack(store, "job")
    assert found is not None
    first = found.traces[0]
    assert len(store.notes("stack:")["stack:job"]) <= orders.MOST_BYTES
    assert first.left_out == 1000 - len(first.frames) > 0
    assert (first.frames[0].line, first.frames[-1].line) == (0, 999)


def test_the_first_of_two_orders_stands_and_one_of_a_newer_release_is_passed_over() -> None:
    store, now = MemoryStore(system_clock()), datetime.now(UTC)
    ada, bob = (Order("drain", "host-1-a", who, now) for who in ("ada", "bob"))
    store.swap("order:host-1-b:stop", None, '{"verb":"freeze","worker":"host-1-b"}')

    assert orders.give(store, ada) == ada
    assert orders.give(store, bob) == ada
    assert orders.open_orders(store) == [ada]
    assert orders.open_orders(store, "host-1-b") == orders.open_orders(store, "host-1") == []
    orders.done(store, ada)
    assert orders.open_orders(store) == []


@pytest.mark.parametrize("extra", ["", ',"of_a_newer_release":1'])
def test_an_order_is_removed_however_its_text_was_written(extra: str) -> None:
    store, now = MemoryStore(system_clock()), datetime.now(UTC)
    text = '{"verb":"drain","worker":"host-1-a","who":"ada","at":"%s","grace":30%s}'  # a grace that is not a float
    store.swap("order:host-1-a:stop", None, text % (now.isoformat(), extra))
    (order,) = orders.open_orders(store)

    orders.done(store, order)

    assert orders.open_orders(store) == []


def test_of_two_orders_of_one_worker_only_the_one_that_was_carried_out_is_removed() -> None:
    store, now = MemoryStore(system_clock()), datetime.now(UTC)
    ada, bob = (Order("drain", "host-1-a", who, now, grace=30) for who in ("ada", "bob"))
    orders.give(store, bob)

    orders.done(store, ada)
    assert orders.open_orders(store) == [bob]


def test_orders_that_a_blocked_worker_does_not_answer_share_one_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    store, dumps, now = MemoryStore(system_clock()), list[int](), [0.0]
    frames = (Frame("/srv/shop.py", 7, "pack"),)

    def dump(pid: int, _: int) -> str:
        dumps.append(pid)
        return ""

    monkeypatch.setattr("tenure.supervisor.stalls.dump", dump)
    monkeypatch.setattr("tenure.supervisor.stalls.traces", lambda *_: (Trace("another thread", frames),))
    worker = SimpleNamespace(
        id="host-1-a",
        registered=True,
        link=SimpleNamespace(send=lambda *_, **__: None),
        process=SimpleNamespace(pid=4711),
        dump=SimpleNamespace(fileno=lambda: 0),
        hello={"functions": {}},
    )
    calls = list[Callable[[], None]]()
    shared = SimpleNamespace(
        store=store,
        processes=[worker],
        boot=lambda: now[0],
        loop=SimpleNamespace(call=calls.append),
        maintenance=SimpleNamespace(hurry=lambda _: None),
    )
    asked = Orders(cast("Any", shared), lambda *_: None)
    for job in ("1", "2", "3"):
        orders.give(store, Order("stack", worker.id, "ada", datetime.now(UTC), job=job))

    asked._look(0)
    now[0] = 60.0
    asked._look(0)
    asked._look(0)  # the main thread is busy with something else
    *begun, last = calls
    for call in begun:
        call()
    asked._look(0)
    last()

    assert dumps == [4711]
    assert orders.open_orders(store) == []
    stacks = [orders.last_stack(store, job) for job in ("1", "2", "3")]
    assert [stack and stack.traces[0].frames for stack in stacks] == [frames] * 3


# ── no code of the app ──

looks: list[str] = []


class Proxy:
    """An object that evaluates itself when it is inspected, as a lazy one does, and fails."""

    def __init__(self, run: Callable[[], None]) -> None:
        object.__setattr__(self, "run", run)

    def __getattribute__(self, name: str) -> object:
        looks.append(name)
        raise LookupError(name)

    def __call__(self) -> None:
        object.__getattribute__(self, "run")()

    def __await__(self) -> Waiting:
        self()
        return Waiting()


class Waiting:
    """What a coroutine waits in while it awaits a proxy."""

    def __init__(self) -> None:
        self.inner = told().__await__()

    def __getattr__(self, name: str) -> object:
        looks.append(name)
        raise LookupError(name)

    def __iter__(self) -> Waiting:
        return self

    def __next__(self) -> object:
        return next(self.inner)

    def throw(self, error: BaseException) -> object:
        return self.inner.throw(error)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("where", ["an argument", "a function", "an awaitable"])
def test_asking_for_a_stack_runs_no_code_of_the_app(shop: Shop, where: str) -> None:
    def below(*_: object) -> None:
        looks.clear()
        shop.begun.set()
        if where != "an awaitable":
            gate.wait(30)

    @shop.jobs.task
    async def pack() -> None:
        match where:
            case "an argument":
                await asyncio.to_thread(below, Proxy(below))
            case "a function":
                await asyncio.get_running_loop().run_in_executor(None, cast("Any", Proxy(below)))
            case _:
                await cast("Awaitable[None]", Proxy(below))

    first, *_ = shop.seen(pack, innermost="pack" if where == "an awaitable" else "")

    assert looks == []
    assert functions(first) == ["pack"]


def test_a_task_that_is_an_argument_is_not_one_that_the_handler_waits_for(shop: Shop) -> None:
    def below(_: object) -> None:
        shop.begun.set()
        gate.wait(30)

    @shop.jobs.task
    async def pack() -> None:
        other = asyncio.create_task(told())
        await asyncio.to_thread(below, other)
        await other

    _, *others = shop.seen(pack, count=2)

    assert [each.name for each in others] == ["a thread of asyncio.to_thread"]


def test_a_stack_that_cannot_be_read_is_an_answer_too() -> None:
    store, jobs = MemoryStore(system_clock()), cast("Any", {"1": object()})
    orders.give(store, Order("stack", "host-1-a", "ada", datetime.now(UTC), job="1"))

    carry_out(store, "host-1-a", jobs)

    stack = orders.last_stack(store, "1")
    assert stack is not None
    assert (stack.says, stack.traces) == ("its stack could not be read (AttributeError); ask again", ())
    assert orders.open_orders(store) == []
