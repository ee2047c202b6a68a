"""The app of the walk through all crash points: jobs of every kind, and the client that keeps them coming.

Every id follows from the number of a round and a name, so a client that died does its last round once more, and
nothing is stored twice. Handlers write down what they do, in the ledger of tests/crash.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from crash.shop import note
from tenure import Fail, Job, NewJob, Retry, Snooze, Task, Tenure, outputs
from tenure.app.backends import open_store
from tenure.app.processes import load_app
from tenure.core.lifecycle import Released, State
from tenure.errors import UnknownLimit
from tenure.ports import Store, Text
from tenure.worker.executor import Attempt

from . import points

ROWS = "rows_of_{}"  #: the user's own table, by namespace: CREATE TABLE … (job TEXT, attempt INTEGER)
FAR = "1h"
STOP = "enough"
MOST_WAITING = 12
LATER = 3  #: rounds after which a client comes back to what it left
BATCH = [f"batch {n}" for n in range(5)]
STEPS = 3
PARTS = [f"part {n}" for n in range(3)]

jobs = Tenure(retry=Retry(30, base="50ms", cap="200ms"))
often = jobs.task(max_crashes=20)
one, two = jobs.limit("one", concurrency=1), jobs.limit("two", concurrency=2)

if points.LEDGER in os.environ:  # not where the test itself only looks at this file
    points.install()
here = points.process


def id_of(number: int | str, name: str) -> UUID:
    return uuid5(NAMESPACE_OID, f"{number} {name}")


def rows() -> str:
    return ROWS.format(jobs.settings.namespace)


@contextmanager
def noted(job: Job[Any], more: str = "") -> Generator[None]:
    """The ledger's lines of an attempt: begin, and end however it leaves."""
    note(job, f"begin {more}".rstrip())
    here().reach("a handler starts")
    try:
        yield
    finally:
        note(job, "end")


# ── Handlers ────────────────────────────────────────────────────────────────────────────────────────────────────


@often
async def plain(job: Job, seconds: float) -> int:
    with noted(job):
        await asyncio.sleep(seconds)
    return job.attempt


@often
def threaded(job: Job) -> int:
    with noted(job):
        time.sleep(0.02)
    return job.attempt


@jobs.task(isolation="process", max_crashes=20)
async def alone(job: Job) -> int:
    with noted(job):
        job.progress(0.5, stage="alone")
        await job.aflush()
    return job.attempt


@often
async def flaky(job: Job) -> int:
    with noted(job):
        if job.attempt == 1:
            note(job, "raised")
            raise RuntimeError("the first time")
    return job.attempt


@often
async def sleepy(job: Job) -> int:
    with noted(job):
        if job.attempt == 1:
            note(job, "snoozed")
            raise Snooze("100ms")
    return job.attempt


@often
async def steps(job: Job[int]) -> int:
    """An effect, then its checkpoint."""
    done = job.checkpoint or 0
    with noted(job, str(done)):
        for step in range(done + 1, STEPS + 1):
            note(job, f"effect {step}")
            here().reach("between an effect and its checkpoint")
            job.progress(checkpoint=step)
            await job.aflush()
            note(job, f"stored {step}")
            here().reach("between a checkpoint and the next effect")
    return job.attempt


@often
async def pays(job: Job) -> int:
    """What `once` gives stays the same."""

    async def pay() -> str:
        receipt = os.urandom(4).hex()
        note(job, f"paid {receipt}")
        here().reach("after the function of once, before its record")
        return receipt

    with noted(job):
        note(job, f"receipt {await job.aonce('pay', pay)}")
    return job.attempt


@often
async def parent(job: Job) -> int:
    with noted(job):
        await plain.using(id=id_of(str(job.id), "child")).aenqueue(0.0)
    return job.attempt


@often
def hands_in(job: Job) -> None:
    """Its outcome, and a row, in one transaction."""
    with noted(job), jobs.transaction() as tx:
        tx.execute(f"INSERT INTO {rows()} VALUES ('{job.id}', {job.attempt})")
        here().reach("between two effects in a transaction")
        job.finish(job.attempt, tx=tx)


@often
async def gives_away(job: Job) -> int:
    """Ends its own attempt behind its worker's back: what it writes after that is refused."""
    attempt: Attempt = job._attempt  # type: ignore[assignment]
    with noted(job):
        pass
    if job.attempt == 1:
        await asyncio.to_thread(attempt.host.store.finish, [(attempt.lease, Released("given away"))])
        job.progress(0.9)
        await job.aflush()
    return job.attempt


@often
async def waits(job: Job) -> None:
    """Waits for its cancel."""
    with noted(job):
        await asyncio.sleep(1000)


@often
async def lingers(job: Job) -> int:
    """Runs longer than the grace of these workers: it is handed back when its worker is told to stop."""
    with noted(job):
        await asyncio.sleep(0.5)
    return job.attempt


@often
async def fails(job: Job) -> None:
    with noted(job):
        note(job, "raised")
        raise Fail("for good", final=True)


@often
async def gathers(job: Job) -> int:
    """Its list is made anew until it is stored, and then never again."""

    def listed() -> list[NewJob[int]]:
        note(job, "listed")
        here().reach("after the function of a gather, before its list is stored")
        return [plain.bind(0.0) for _ in range(STEPS)]

    with noted(job):
        note(job, f"gathered {len(await job.agather('parts', listed))}")
    return job.attempt


@jobs.task(max_crashes=20, signals={"go": int})
async def expects(job: Job) -> int:
    with noted(job):
        note(job, f"heard {await job.aexpect('go', int)}")
    return job.attempt


@often
async def adds(job: Job, parts: list[int]) -> int:
    with noted(job):
        note(job, f"given {len(parts)}")
    return job.attempt


@jobs.task(max_crashes=20, limit=one)
async def by_itself(job: Job) -> int:
    return await _limited(job)


@jobs.task(max_crashes=20, limit=two)
async def beside_one(job: Job) -> int:
    return await _limited(job)


@jobs.task(max_crashes=20, limit=(two, one))
async def of_both(job: Job) -> int:
    return await _limited(job)


async def _limited(job: Job) -> int:
    with noted(job):
        await asyncio.sleep(0.02)
    return job.attempt


@jobs.schedule(every="1s", overlap="allow", catch_up="all")
@often
async def each_second(job: Job) -> None:
    with noted(job):
        note(job, f"tick {job.meta['tick']}")


# ── The client ──────────────────────────────────────────────────────────────────────────────────────────────────

LIMITED: tuple[Task[..., Any], ...] = (by_itself, beside_one, of_both)
#: What every round leaves behind, by the task's name: {name: task}.
SINGLES: dict[str, Task[..., Any]] = {
    each.name: each
    for each in (
        *(threaded, alone, flaky, sleepy, steps, pays, parent, gives_away, waits, fails, lingers, *LIMITED),
        *(gathers, expects),
    )
}


class Client:
    """Does one round after the other, and says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._joins = store.capabilities.transactions

    def run(self, first: int) -> None:
        for number in count(first):
            here().write(f"- 0 round {number}")
            self.round(number)  # also one in which a client was killed: what it has not cancelled would wait for ever
            if (here().ledger.parent / STOP).exists():
                return
            while sum(sum(view.counts.values()) for view in self._store.queues()) > MOST_WAITING + 2 * LATER:
                time.sleep(0.02)

    def round(self, number: int) -> None:
        def new(task: Task[..., Any], name: str, **more: Any) -> Task[..., Any]:
            return task.using(id=id_of(number, name), **more)

        for name, task in SINGLES.items():
            new(task, name).enqueue()
        jobs.enqueue_many([new(plain, name).bind(0.0) for name in BATCH])
        new(plain, "later", delay="200ms").enqueue(0.0)
        new(plain, "far", delay=FAR).enqueue(0.0)
        asyncio.run(new(plain, "lone").aenqueue(0.0))
        keyed = new(plain, "keyed", unique=f"key {number}").enqueue(0.0)
        new(plain, "then", after=[keyed]).enqueue(0.0)
        new(expects, "early", delay="200ms").enqueue().signal("go", number)
        with jobs.flow("parts", unique=str(number)) as flow:
            parts = [flow.add(new(plain, name).bind(0.0)) for name in PARTS]
            flow.add(new(adds, "sum").bind(outputs(parts)))
        if far := self._store.get(str(id_of(number, "far"))):
            self._store.rewrite([(Text("payload", far.id, "", far.payload), far.payload)])
        if self._joins:
            new(hands_in, "hands_in").enqueue()
            self._join(number)
        self._store.promote_now([str(id_of(number, "far"))])
        self._cancel(id_of(number, "waits"))
        expects.handle(id_of(number, "expects")).signal("go", number)  # late: it waits by now, most likely
        jobs.once(f"round {number}", lambda: here().write(f"- 0 acted {number}"))
        for paused in (True, False):
            self._store.pause("nobody's", paused=paused)
        with suppress(UnknownLimit):  # in the first rounds
            jobs.limits.pause("one", "50ms")
        if number > LATER:
            self._come_back(number - LATER)

    def _join(self, number: int) -> None:
        """A row and a job, both or neither. A second try checks first, as any client must."""
        job = id_of(number, "joined")
        with jobs.transaction() as tx:
            if not tx.execute(f"SELECT 1 FROM {rows()} WHERE job = '{job}'").fetchall():
                tx.execute(f"INSERT INTO {rows()} VALUES ('{job}', 0)")
                plain.using(id=job, tx=tx).enqueue(0.0)

    def _cancel(self, job: UUID) -> None:
        """While it runs, if that is soon: a waiting job is cancelled without a worker."""
        patience = time.monotonic() + 1.0
        while time.monotonic() < patience:
            view = self._store.get(str(job))
            if view is None or view.state is not State.QUEUED:
                break
            time.sleep(0.01)
        jobs.handle(job).cancel("no more")

    def _come_back(self, number: int) -> None:
        """To jobs that have ended by now, most likely: one is replayed, another one deleted."""
        dead, done = str(id_of(number, "fails")), str(id_of(number, "later"))
        here().write(f"{dead} 0 replaying", f"{done} 0 deleting")
        self._store.skip([dead])
        self._store.ask([dead])  # as if its ask was lost
        self._store.replay([dead])
        self._store.delete([done])


def client(first: int) -> None:
    load_app("chaos.points_app")
    store = open_store(jobs.settings)
    store.open()
    Client(store).run(first)


def embedded() -> None:
    """A worker inside this process, until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with jobs.worker(concurrency=2):
        signal.sigwait({signal.SIGTERM})


def run(role: str, words: list[str]) -> None:
    if role == "client":
        client(int(words[0]))
    else:
        embedded()
    sys.exit()
