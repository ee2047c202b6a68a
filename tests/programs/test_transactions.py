"""Programs that do something else inside `jobs.transaction()`: it joins, or is refused, and nothing waits for ever."""

from __future__ import annotations

import pytest

from .harness import Programs

APP = """
import asyncio, threading, time
from concurrent.futures import ThreadPoolExecutor
from tenure import Job, Tenure
from tenure.errors import StoreError

jobs = Tenure()
holding, others_ran = threading.Event(), threading.Event()

@jobs.task
def same(number: int) -> int:
    return number

@jobs.task(queue="slow")
def holds(job: Job) -> str:
    try:
        with jobs.transaction() as tx:
            same.using(tx=tx).enqueue(0)
            job.progress(0.5)
            holding.set()
            others_ran.wait(30)
    except StoreError as error:
        return str(error)
    return ""
"""


@pytest.mark.everyday
@pytest.mark.stores("sqlite", "postgres")
def test_what_writes_beside_a_transaction_is_refused_and_the_transaction_goes_on(programs: Programs) -> None:
    ran = programs.run(
        f"""{APP}
before = same.enqueue(0)

def refused(call) -> None:
    try:
        call()
    except StoreError as error:
        assert "inside jobs.transaction(), " in str(error), error
        print(error)

def nested() -> None:
    with jobs.transaction():
        print("begun")

async def again() -> None:
    async with jobs.atransaction():
        print("begun")

async def on_a_loop() -> None:
    async with jobs.atransaction() as tx:
        await same.using(tx=tx).aenqueue(2)
        for call in (before.acancel, again, lambda: same.aenqueue(3)):
            try:
                await call()
            except StoreError as error:
                print(error)

with jobs.transaction() as tx:
    for call in (nested, before.cancel, lambda: same.enqueue(3), lambda: jobs.once("k", int)):
        refused(call)
    same.using(tx=tx).enqueue(1)
asyncio.run(on_a_loop())
assert before.cancel()
""",
    )
    assert len(ran.lines) == 7, ran.out
    assert all(line.startswith("inside jobs.transaction(), ") for line in ran.lines), ran.out
    assert programs.stored() == 3


def test_operations_inside_a_transaction_do_not_wait_for_it(programs: Programs) -> None:
    ran = programs.run(
        f"""{APP}
same.enqueue(0)
with jobs.transaction() as tx:
    same.using(tx=tx).enqueue(1)
    for call in (jobs.declare, lambda: jobs.client().store.pause("default", paused=True)):
        try:
            call()
        except StoreError as error:
            print(error)
""",
    )
    assert "inside jobs.transaction(), a write would wait" in ran.lines[-1]
    assert programs.stored() == 2


def test_threads_that_enqueue_for_a_block_that_waits_for_them_are_served(programs: Programs) -> None:
    ran = programs.run(
        f"""{APP}
try:
    with jobs.transaction() as tx, ThreadPoolExecutor(4) as threads:
        same.using(tx=tx).enqueue(0)
        print(len(list(threads.map(same.enqueue, range(10)))))
except StoreError as error:
    print(error)
""",
    )
    assert ran.lines[0] == "10"
    assert "rolled back" in ran.lines[1]
    assert programs.stored() == 10


def test_a_handler_that_holds_a_transaction_for_long_costs_nobody_a_job(programs: Programs) -> None:
    ran = programs.run(f"""{APP}
with jobs.worker(concurrency=2):
    held = holds.enqueue()
    holding.wait(30)
    print([same.enqueue(number).result("30s") for number in range(3)])
    others_ran.set()
    print(held.result("30s"))
""")
    assert ran.lines[0] == "[0, 1, 2]"
    assert "rolled back" in ran.lines[1]
    assert programs.stored() == 4


# ── many jobs in one file ──

WRITES_BESIDE = """
import json, subprocess, sys, threading, time
from itertools import islice
from tenure import Tenure

jobs = Tenure()

@jobs.task
def work(n: int) -> None: ...

def write_until_told():
    waits, over = [], threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set())).start()
    work.enqueue(0)
    print("ready", flush=True)
    while not over.wait(0.002):
        since = time.monotonic()
        work.enqueue(0)
        waits.append((since, time.monotonic()))
    print(json.dumps(waits))

def write_in_several_calls():
    pipe, new, calls = subprocess.PIPE, (work.bind(n) for n in range(100_000)), []
    with subprocess.Popen([sys.executable, __file__, "beside"], stdin=pipe, stdout=pipe, text=True) as other:
        other.stdout.readline()
        while some := list(islice(new, 2_500)):
            jobs.enqueue_many(some)
            calls.append(time.monotonic())
        waits, _ = other.communicate()
    # The longest but one: a process that was held up once in the middle of its enqueue saw many calls pass.
    print(len(calls), sorted(sum(since < call < until for call in calls) for since, until in json.loads(waits))[-2])

if len(sys.argv) > 1:
    write_until_told()
else:
    work.enqueue(0)
    write_in_several_calls()
"""


def test_a_great_many_jobs_sent_in_several_calls_let_other_writers_have_their_turn(programs: Programs) -> None:
    """The recipe of docs/stores.md: other writers wait for some of the calls at most, not for all.

    Calls are counted, not seconds: a slow disk makes each of them longer, and the wait with it.
    """
    calls, passed = map(int, programs.run(WRITES_BESIDE).out.split())

    assert calls == 40
    assert passed < calls / 2
