"""`python -m chaos.load PROFILE SCALE SEED HAS`: puts a load on the store until SIGTERM, then cancels what is left.

HAS is what the stage has (`Stage.has`), separated by commas. A load writes down its requests as other clients do. It
has no expectations of its own: its jobs must end somehow, and the lateness that they cause shows in the innocent jobs,
for which a slot is always free; the process `lane` and some of the loads enqueue these.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from tenure import Flow, NewJob, outputs
from tenure.app.backends import connect, open_notifier
from tenure.errors import JobFailed, StoreError, TenureError
from tenure.ports import Ring, Store

from . import profiles, workload
from .history import pen

T = TypeVar("T")

BATCH = 1000
PART, CANCELLERS = 100, 8
KIB = 1024
RESULT = 240 * KIB
TURN = 0.1  #: seconds from one turn of a load to the next


class Load:
    """Enqueues, and remembers its own jobs. `turn` is called again and again; a slow store makes turns slow."""

    name: ClassVar[str]
    pause: ClassVar[float] = TURN

    def __init__(self, scale: float, seed: int, has: frozenset[str]) -> None:
        self.scale = scale
        self.draw = random.Random(seed)
        self.has = has
        self.going = asyncio.Event()
        self.ids: list[str] = []
        self._numbers = itertools.count(1)
        self._owed = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def prepare(self) -> None:
        """Bring about what has to be there before any fault."""

    async def turn(self) -> None:
        """Its share of the load."""

    async def end(self) -> None:
        """Take back what would never end by itself."""

    # ── what loads are made of ──

    def key(self, what: str = "") -> str:
        return f"{what}{pen().actor}-{next(self._numbers)}"

    def count(self, rate: float) -> int:
        """How many to enqueue now, at this many a second."""
        self._owed += rate * self.scale * self.pause
        whole = int(self._owed)
        self._owed -= whole
        return whole

    async def many(self, jobs: Sequence[tuple[str, NewJob[Any]]], due: float = 0.0, must: str = "any") -> None:
        """Enqueue them in one call."""
        keys = [key for key, _ in jobs]
        pen().note_each("enqueue", "invoke", keys, must=must, script=[], due=due, unique="")
        try:
            handles = await workload.jobs.aenqueue_many([job for _, job in jobs])
        except StoreError as error:
            pen().note_each("enqueue", "info", keys, error=repr(error)[:100])
        else:
            pen().note_each("enqueue", "ok", keys)
            self.ids += [str(handle.id) for handle in handles]

    async def one(self, task: Any, key: str, *words: Any, **about: Any) -> Any:
        """Enqueue one, as a caller of this process; its handle, if it got one."""
        if about.get("innocent") and task.queue != profiles.LANE:
            raise ValueError(f"a job of {task.queue!r} may wait for a slot: innocent are those of the lane alone")
        told = {"must": "any", "script": [], "due": 0.0, "unique": "", **about}
        pen().note("enqueue", "invoke", key=key, **told)
        try:
            handle = await task.aenqueue(key, *words)
        except StoreError as error:
            pen().note("enqueue", "info", key=key, error=repr(error)[:100])
            return None
        pen().note("enqueue", "ok", key=key, id=str(handle.id), created=handle.created)
        if not about.get("innocent"):
            self.ids.append(str(handle.id))
        return handle

    def innocent(self, delay: float = 0.0) -> None:
        """Enqueue a job into the lane, without waiting for the answer."""
        later = {"delay": f"{delay:.2f}s"} if delay else {}
        task = workload.brief.using(queue=profiles.LANE, **later)
        self.spawn(self.one(task, self.key(), must="completed", due=delay, innocent=True))

    def spawn(self, work: Awaitable[Any]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ── its life ──

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.going.set)
        about = {"profile": self.name, "scale": self.scale}
        pen().note("load", "invoke", **about)
        await self.one(workload.brief.using(queue=profiles.LANE), self.key())  # it connects, before anything is judged
        await self.prepare()
        pen().note("load", "ok", **about)
        while not self.going.is_set():
            began = time.monotonic()
            await self.turn()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.going.wait(), max(0.0, began + self.pause - time.monotonic()))
        await self.end()
        await self._take_back()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take_back(self) -> None:
        """Newest first: most old ones have ended. Several calls at once: stores cancel one job after the other."""
        store = await opened()
        parts = [self.ids[::-1][first : first + PART] for first in range(0, len(self.ids), PART)]
        at_once = asyncio.Semaphore(CANCELLERS)

        async def cancel(some: Sequence[str]) -> None:
            async with at_once:
                await patiently(lambda: store.cancel(some, "the load is over"))

        await asyncio.gather(*map(cancel, parts))
        notifier = open_notifier(workload.jobs.settings, store)
        await asyncio.to_thread(notifier.announce, [Ring("cancel", profiles.LOAD)])
        notifier.close()
        store.close()


async def opened() -> Store:
    return await patiently(lambda: connect(workload.jobs.settings, workload.jobs.codec))


async def patiently(call: Callable[[], T]) -> T:
    """Try again: some connections may have been closed since they were last used."""
    for _ in range(100):
        with suppress(StoreError):
            return await asyncio.to_thread(call)
        await asyncio.sleep(0.2)
    return await asyncio.to_thread(call)


class Lane(Load):
    """The innocent jobs of every run: some due at once, some later."""

    name = "lane"
    pause = 0.2

    async def prepare(self) -> None:
        """Wait until its worker is there."""
        handle = None
        while handle is None:
            handle = await self.one(workload.brief.using(queue=profiles.LANE), self.key(), must="completed")
        await handle.aresult(timeout="120s")

    async def turn(self) -> None:
        self.innocent()
        self.innocent(round(self.draw.uniform(0.2, 1.5), 2))

    async def end(self) -> None:
        self.ids.clear()


class Light(Load):
    """Nothing."""

    name = "light"


class Trickle(Load):
    name = "trickle"

    async def turn(self) -> None:
        delay = self.draw.uniform(0.5, 2.0)
        task = workload.brief.using(queue=profiles.LOAD, delay=f"{delay:.3f}s")
        some = [
            (key, task.bind(key))
            for key in (self.key() for _ in range(self.count(1000 if "file" in self.has else 150)))
        ]
        if some:
            await self.many(some, delay)


class Avalanche(Load):
    name = "avalanche"

    async def prepare(self) -> None:
        jobs = max(100, round(300_000 * self.scale))
        began, prefix = time.monotonic(), self.key("wave-")
        await self._some(min(BATCH, jobs), self.key("first-"), datetime.now(UTC), priority=-1)  # behind the wave
        took = time.monotonic() - began
        due = datetime.now(UTC) + timedelta(seconds=5 + 1.5 * took * jobs / BATCH)
        for first in range(0, jobs, BATCH):
            await self._some(min(BATCH, jobs - first), prefix, due)
        pen().note("wave", key=prefix, due=due.timestamp(), jobs=jobs)
        await asyncio.sleep(max(0.0, due.timestamp() - time.time() - 2.0))  # the faults begin when the wave is near

    async def _some(self, count: int, prefix: str, due: datetime, priority: int = 0) -> None:
        task = workload.brief.using(queue=profiles.LOAD, run_at=due, priority=priority)
        keys = [f"{prefix}-{next(self._numbers)}" for _ in range(count)]
        await self.many([(key, task.bind(key)) for key in keys])


class Heavy(Load):
    name = "heavy"
    pause = 20.0

    async def turn(self) -> None:
        task = workload.brief.using(queue=profiles.LOAD)
        keys = [self.key() for _ in range(max(4, round(160 * self.scale)))]
        await self.many([(key, task.bind(key, 1.0, RESULT)) for key in keys])


class HotKey(Load):
    name = "hot key"
    unique = "hot"
    hold = 4.0

    async def prepare(self) -> None:
        if not self.has >= {"server", "transactions"}:
            task = workload.brief.using(queue=profiles.LOAD, unique=self.unique, delay="1h")
            await self.one(task, self.key(), unique=self.unique, due=3600.0)
        else:
            threading.Thread(target=self._holder, daemon=True).start()
        for _ in range(max(4, round(40 * self.scale))):
            self.spawn(self._caller())

    async def turn(self) -> None:
        self.innocent()

    async def _caller(self) -> None:
        while not self.going.is_set():
            task = workload.brief.using(queue=profiles.LOAD, unique=self.unique)
            await self.one(task, self.key(), unique=self.unique)
            await asyncio.sleep(TURN)

    def _holder(self) -> None:
        """A caller's own transactions, which are rolled back."""
        while not self.going.is_set():
            key = self.key("held-")
            job = workload.brief.using(queue=profiles.LOAD, unique=self.unique).bind(key)
            about = {"must": "any", "script": [], "due": 0.0, "unique": self.unique, "tx": "rollback"}
            pen().note("enqueue", "invoke", key=key, **about)
            with suppress(_RolledBackError, TenureError), workload.jobs.transaction() as tx:
                workload.jobs.enqueue_many([job], tx=tx)
                time.sleep(self.hold)
                raise _RolledBackError
            pen().note("enqueue", "fail", key=key)
            time.sleep(1.0)


class _RolledBackError(Exception):
    pass


class FullMemory(Load):
    """A fault of its runs fills the memory."""

    name = "full memory"

    async def turn(self) -> None:
        task = workload.brief.using(queue=profiles.LOAD)
        keys = [self.key() for _ in range(self.count(50))]
        if keys:
            await self.many([(key, task.bind(key, 0.0, 2 * KIB)) for key in keys])


class ManyQueues(Load):
    name = "1,000 queues"

    async def prepare(self) -> None:
        """The scale sets the number of queues; the jobs are not scaled down as well."""
        self._queues = next(each for each in profiles.PROFILES if each.name == self.name).queues(self.scale)[1:]
        self.scale = 1.0

    async def turn(self) -> None:
        keys = [self.key() for _ in range(self.count(200))]
        await self.many([(key, workload.brief.using(queue=self.draw.choice(self._queues)).bind(key)) for key in keys])


class Waiters(Load):
    name = "800 waiters"

    async def prepare(self) -> None:
        for _ in range(max(8, round(800 * self.scale))):
            self.spawn(self._waiter())

    async def turn(self) -> None:
        self.innocent()

    async def _waiter(self) -> None:
        await asyncio.sleep(self.draw.uniform(0.0, 5.0))
        while not self.going.is_set():
            delay = self.draw.uniform(2.0, 12.0)
            task = workload.brief.using(queue=profiles.LOAD, delay=f"{delay:.3f}s")
            handle = await self.one(task, key := self.key(), due=delay)
            if handle is None:
                await asyncio.sleep(1.0)
                continue
            with suppress(StoreError, TimeoutError, JobFailed):
                await handle.aresult(timeout="60s")
                pen().note("answer", key=key)


class BulkCancel(Load):
    name = "bulk cancel"
    pause = 1.0

    async def prepare(self) -> None:
        self._store = await opened()
        self._notifier = open_notifier(workload.jobs.settings, self._store)

    async def turn(self) -> None:
        ballast = "x" * (200 * KIB)
        big = [self.key() for _ in range(self.count(20))]
        if big:  # each runs for 5 s: 100 at a time
            task = workload.brief.using(queue=profiles.LOAD)
            await self.many([(key, task.bind(key, 5.0, 0, ballast)) for key in big])
        before = len(self.ids)
        task = workload.brief.using(queue=profiles.LOAD, delay="1h")
        keys = [self.key() for _ in range(self.count(500))]
        await self.many([(key, task.bind(key)) for key in keys], 3600.0)
        with suppress(StoreError):
            await asyncio.to_thread(self._cancel, self.ids[before:])

    def _cancel(self, ids: Sequence[str]) -> None:
        self._store.cancel(ids, "nobody needs them")
        self._notifier.announce([Ring("cancel", profiles.LOAD)])


class Flows(Load):
    name = "flows"
    pause = 0.5

    async def turn(self) -> None:
        for _ in range(self.count(2.0)):
            shape = self.draw.choices((self._fan_in, self._chain, self._gathers, self._signalled), (3, 3, 3, 4))[0]
            self.spawn(shape())

    def _size(self, most: int) -> int:
        """Small ones are the most frequent."""
        return round(2 * (most / 2) ** self.draw.random())

    def _part(self, key: str) -> NewJob[Any]:
        return workload.brief.using(queue=profiles.LOAD).bind(key, round(self.draw.uniform(0.0, 0.1), 3))

    def _last(self, key: str, parts: Any, parents: Sequence[str]) -> NewJob[Any]:
        pen().note("waits", key=key, of="parts", parents=list(parents), gathered=False)
        return workload.combine.using(queue=profiles.LOAD).bind(key, parts)

    async def _fan_in(self) -> None:
        keys = [self.key() for _ in range(self._size(200))]
        last = self.key()

        def describe(flow: Flow) -> None:
            steps = [flow.add(self._part(key)) for key in keys]
            flow.add(self._last(last, outputs(steps), keys))

        await self._store([*keys, last], describe)

    async def _chain(self) -> None:
        keys = [self.key() for _ in range(self._size(12))]

        def describe(flow: Flow) -> None:
            step = flow.add(self._part(keys[0]))
            for before, key in itertools.pairwise(keys):
                step = flow.add(self._last(key, outputs([step]), [before]))

        await self._store(keys, describe)

    async def _store(self, keys: Sequence[str], describe: Callable[[Flow], None]) -> None:
        """All of it, or nothing: what was not acknowledged may be there, or not."""
        pen().note_each("enqueue", "invoke", keys, must="completed", script=[], due=0.0, unique="")
        try:
            async with workload.jobs.flow("load") as flow:
                describe(flow)
        except StoreError as error:
            pen().note_each("enqueue", "info", keys, error=repr(error)[:100])
        else:
            pen().note_each("enqueue", "ok", keys)

    async def _gathers(self) -> None:
        task = workload.gatherer.using(queue=profiles.LOAD)
        await self.one(task, self.key(), self._size(50), 0.02, must="completed")

    async def _signalled(self) -> None:
        """Sent again until there is an answer: a job that waits without a time-out would otherwise never end."""
        task, key = workload.listener.using(queue=profiles.LOAD), self.key()
        patience = self.draw.choice((0.0, 0.0, 1.0))
        handle = await self.one(task, key, patience, must="completed")
        while handle is not None:
            await asyncio.sleep(self.draw.choice((0.0, 0.5, 2.0)))
            pen().note("signal", "invoke", key=key, value=f"{key}!")
            try:
                taken = await handle.asignal("go", f"{key}!")
            except StoreError as error:
                pen().note("signal", "info", key=key, error=repr(error)[:100])
                continue
            pen().note("signal", "ok", key=key, taken=taken)
            return

    async def end(self) -> None:
        """What it has asked for ends by itself, once its signals are sent."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.ids.clear()


class Limits(Load):
    """More than their places could take at once, and fewer than they take in a second."""

    name = "limits"
    pause = 0.5

    async def prepare(self) -> None:
        self._next_paced = time.monotonic()

    async def turn(self) -> None:
        drawn = [workload.limited] * self.count(40)
        if self._next_paced <= time.monotonic():
            self._next_paced += 2.0  # seconds; its rate would allow one each 1.25 s
            drawn.append(workload.paced)
        keys = [(self.key(), self.draw.choice(("default", profiles.LOAD))) for _ in drawn]
        jobs = [(key, draw(self.draw, key, queue=queue)) for draw, (key, queue) in zip(drawn, keys, strict=True)]
        alone = jobs[: len(jobs) // 4]  # what a loop stores alone goes another way than what it stores together
        await self.many(jobs[len(alone) :], must="completed")
        for each in alone:
            await self.many([each], must="completed")

    async def end(self) -> None:
        """What it has asked for ends by itself."""
        self.ids.clear()


LOADS = {
    each.name: each
    for each in (
        *(Lane, Light, Trickle, Avalanche, Heavy, HotKey, FullMemory, ManyQueues, Waiters, Flows, Limits),
        BulkCancel,
    )
}


def main(name: str, scale: str, seed: str, has: str) -> None:
    asyncio.run(LOADS[name](float(scale), int(seed), frozenset(has.split(","))).run())


if __name__ == "__main__":
    main(*sys.argv[1:])
