"""The client's side of an open store: enqueue, wait for results, cancel, join transactions.

Concurrent `aenqueue` calls share a write: the first one stores what has come in, and while it does the next ones
gather. Bells ring after the commit, never before.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from tenure.config import Settings
from tenure.core.durations import spell
from tenure.core.lifecycle import ENDED, State
from tenure.errors import JobFailed, StoreAway, StoreBusy, StoreError, UnknownJob
from tenure.events import current
from tenure.ports import Draft, Enqueued, JobView, Notifier, Ring, Store
from tenure.tasks.loops import awaited, settled
from tenure.tasks.once import HOLD_SECONDS, Key, encode_result

T = TypeVar("T")

PATIENCE = 5.0  #: seconds in which an enqueue is tried again, and a result asked for again, while the store is away
_FIRST_LOOK, _SLOWEST_LOOK = 0.002, 0.2
_MOST_TOGETHER = 1000
_JOIN = "a job joins it: write task.using(tx=tx).enqueue(…)"


@dataclass
class _Transaction:
    """An open transaction of ours, and the one thread that may use it, if any."""

    tx: object
    thread: ThreadPoolExecutor | None = None


#: The transaction of ours that this code is in. A write beside it would wait for it for ever on a one-writer store.
_inside: ContextVar[_Transaction | None] = ContextVar("tenure_transaction", default=None)


class Client:
    """What tasks and handles talk to. Safe from every thread and event loop."""

    def __init__(self, store: Store, notifier: Notifier, settings: Settings) -> None:
        self.store = store
        self.notifier = notifier
        self.settings = settings
        self._open: dict[int, _Transaction] = {}
        self._gatherings: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering] = WeakKeyDictionary()

    def close(self) -> None:
        for gathering in list(self._gatherings.values()):
            gathering.close()
        self.store.close()  # it may still learn that a transaction has committed, and ring
        self.notifier.close()

    # ── enqueue ──

    def enqueue(self, drafts: Sequence[Draft], *, tx: object = None, shared: bool = False) -> list[Enqueued]:
        """Store all of them or none. While the store is away it is tried again: ids make that harmless.

        `shared`: they are several callers', who are not to wait together for what one of them needs.
        """
        if not drafts:
            return []
        if tx is not None:
            rings: list[Ring] = []
            answers = self.store.enqueue(drafts, tx=tx, committed=lambda: self.notifier.announce(rings))
            rings += rings_of(drafts, answers)
            return answers
        self._refuse_beside_transaction()
        tries = count(1)
        tried, answers = _patiently(
            lambda: (next(tries), self.store.enqueue(drafts)), hasty=StoreBusy if shared else ()
        )
        if tried > 1:
            answers = _ours(drafts, answers)
        self.notifier.announce(rings_of(drafts, answers))
        return answers

    async def aenqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]:
        """Store all of them or none, in one write with the other callers of this moment."""
        if tx is not None:
            ours = self._open.get(id(tx))
            return await settled(partial(self.enqueue, drafts, tx=awaited(tx)), ours.thread if ours else None)
        self._refuse_beside_transaction()
        loop = asyncio.get_running_loop()
        gathering = self._gatherings.get(loop)
        if gathering is None:
            gathering = self._gatherings[loop] = _Gathering(self.enqueue)
        return await gathering.add(drafts)

    def _refuse_beside_transaction(self, what: str = _JOIN) -> None:
        ours = _inside.get()
        if ours is not None and id(ours.tx) in self._open:
            raise StoreError(f"inside jobs.transaction() {what}; on its own it would wait for this very transaction")

    # ── once ──

    def once(self, key: str, fn: Callable[[], object], ttl: float | None, wait: float | None) -> str:
        """The first result of this key, as JSON."""
        self._refuse_beside_transaction("jobs.once(…) keeps its record beside it: call it before or after the block")
        mine = Key(self.store, key, ttl, wait)
        while isinstance(found := _patiently(mine.claim), int | float):
            time.sleep(found)
        if found is not None:
            return found
        with mine.held():
            try:
                value = encode_result(key, fn(), self.settings.max_result)
            except BaseException:
                mine.let_go()
                raise
            return _patiently(partial(mine.keep, value), HOLD_SECONDS)

    async def aonce(self, key: str, fn: Callable[[], Awaitable[object]], ttl: float | None, wait: float | None) -> str:
        """The first result of this key, as JSON."""
        self._refuse_beside_transaction("jobs.aonce(…) keeps its record beside it: call it before or after the block")
        mine = Key(self.store, key, ttl, wait)
        try:
            while isinstance(found := await settled(partial(_patiently, mine.claim)), int | float):
                await asyncio.sleep(found)
        except asyncio.CancelledError:
            await settled(mine.let_go)  # a claim that was on its way may have landed
            raise
        if found is not None:
            return found
        with mine.held():
            try:
                value = encode_result(key, await fn(), self.settings.max_result)
            except BaseException:
                await settled(mine.let_go)
                raise
            return await settled(partial(_patiently, partial(mine.keep, value), HOLD_SECONDS))

    # ── transactions ──

    @contextmanager
    def transaction(self) -> Generator[Any]:
        """The store's transaction; its bells ring when it has committed."""
        with self.store.transaction() as tx:
            ours = self._open[id(tx)] = _Transaction(tx)
            token = _inside.set(ours)
            try:
                yield tx
            finally:
                _inside.reset(token)
                del self._open[id(tx)]

    @asynccontextmanager
    async def atransaction(self) -> AsyncGenerator[Any]:
        """The same from an event loop: begin, the jobs and commit run on one thread of its own."""
        with ThreadPoolExecutor(1, "tenure-tx") as thread:
            manager = self.store.transaction()
            try:
                tx = await settled(manager.__enter__, thread)
            except asyncio.CancelledError as error:
                thread.submit(manager.__exit__, type(error), error, None)  # it may have begun: nobody else would end it
                raise
            ours = self._open[id(tx)] = _Transaction(tx, thread=thread)
            token = _inside.set(ours)
            try:
                yield tx
            except BaseException as error:
                await settled(partial(manager.__exit__, type(error), error, error.__traceback__), thread)
                raise
            else:
                await settled(partial(manager.__exit__, None, None, None), thread)
            finally:
                _inside.reset(token)
                del self._open[id(tx)]

    # ── afterwards ──

    def result(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed."""
        if running := current.get():
            warnings.warn(
                f"{running.task} waits for job {job_id} in its own slot; if every slot waits, nothing runs. "
                "Let the other job enqueue what comes next, or raise Snooze and look again",
                RuntimeWarning,
                stacklevel=3,
            )
        watch = _Watch(job_id, timeout, self.settings)
        while True:
            found, pause = watch.look(partial(self.store.get, job_id))
            if found is not None:
                return found
            time.sleep(pause)

    async def aresult(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed."""
        watch = _Watch(job_id, timeout, self.settings)
        while True:
            found, pause = await asyncio.to_thread(watch.look, partial(self.store.get, job_id))
            if found is not None:
                return found
            await asyncio.sleep(pause)

    def cancel(self, job_id: str, reason: str) -> bool:
        """Cancel or ask to stop. False: it had ended already."""
        before = self.store.get(job_id)
        if before is None:
            raise _unknown(job_id, self.settings)
        if before.state in ENDED:
            return False
        state = self.store.cancel([job_id], reason)[job_id]
        self.notifier.announce([Ring("cancel", before.queue)])
        return state in (State.CANCELLED, State.PROCESSING)

    async def acancel(self, job_id: str, reason: str) -> bool:
        """Cancel or ask to stop. False: it had ended already."""
        return await asyncio.to_thread(self.cancel, job_id, reason)


class _Enqueue(Protocol):
    def __call__(self, drafts: Sequence[Draft], *, shared: bool) -> list[Enqueued]: ...


class _Gathering:
    """Callers of `aenqueue` on one loop: while a write is on its way, those who come share the next one."""

    def __init__(self, store: _Enqueue) -> None:
        self._store = store
        self._waiting: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None
        # One thread, which stays warm: the loop's own pool would take another one each time (measured: 615 µs a job
        # instead of 440).
        self._thread = ThreadPoolExecutor(1, "tenure-enqueue")

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    async def add(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Enqueued]] = loop.create_future()
        self._waiting.append((drafts, future))
        if self._writing is None:
            # A task of its own, not the first caller: whoever is cancelled takes only their own job along.
            self._writing = loop.create_task(self._write_all())
        return await future

    async def _write_all(self) -> None:
        try:
            while group := self._next_group():
                try:
                    loop = asyncio.get_running_loop()
                    answers = await loop.run_in_executor(self._thread, self._write, [drafts for drafts, _ in group])
                except BaseException as error:  # no thread, or this loop is ending: nobody may wait for ever
                    later, self._waiting = self._waiting, []
                    for _, future in group + later:
                        if not future.done():
                            future.set_exception(StoreAway(f"the jobs could not be handed to the store: {error!r}"))
                    raise
                for (_, future), answer in zip(group, answers, strict=True):
                    if future.done():
                        continue
                    if isinstance(answer, BaseException):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._writing = None

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and (not group or size + len(self._waiting[0][0]) <= _MOST_TOGETHER):
            drafts, future = self._waiting.pop(0)
            if not future.done():
                group.append((drafts, future))
                size += len(drafts)
        return group

    def _write(self, groups: list[Sequence[Draft]]) -> list[list[Enqueued] | Exception]:
        """An answer for each group. If the store refuses or is busy, it tries halves, until the culprit is alone."""
        try:
            together = [draft for drafts in groups for draft in drafts]
            answers = iter(self._store(together, shared=len(groups) > 1))
            return [[next(answers) for _ in drafts] for drafts in groups]
        except Exception as error:
            away = isinstance(error, StoreAway) and not isinstance(error, StoreBusy)
            if len(groups) == 1 or away:
                return [error for _ in groups]
        half = len(groups) // 2
        return self._write(groups[:half]) + self._write(groups[half:])


_Waiting = tuple[Sequence[Draft], "asyncio.Future[list[Enqueued]]"]


class _Watch:
    """When to look at a job again, and what was seen."""

    def __init__(self, job_id: str, timeout: float | None, settings: Settings) -> None:
        self._job_id = job_id
        self._settings = settings
        self._timeout = timeout
        self._started = time.monotonic()
        self._pause = _FIRST_LOOK
        self._away_since: float | None = None

    def look(self, get: Callable[[], JobView | None]) -> tuple[str | None, float]:
        """The result, or the seconds until the next look."""
        try:
            job = get()
        except StoreAway:
            now = time.monotonic()
            self._away_since = self._away_since or now
            if now - self._away_since > PATIENCE or self._left() <= 0:
                raise
            return None, self._next_pause()
        self._away_since = None
        if job is None:
            raise _unknown(self._job_id, self._settings)
        if job.state is State.COMPLETED:
            return job.result or "null", 0.0
        if job.state in ENDED:
            raise JobFailed(job.id, job.state, job.error or job.cancel_reason or "")
        if self._left() <= 0:
            raise TimeoutError(_still(job, self._timeout or 0.0))
        return None, self._next_pause()

    def _left(self) -> float:
        return float("inf") if self._timeout is None else self._started + self._timeout - time.monotonic()

    def _next_pause(self) -> float:
        pause, self._pause = self._pause, min(self._pause * 2, _SLOWEST_LOOK)
        return max(min(pause, self._left()), 0.0)


def _still(job: JobView, waited: float) -> str:
    seen = [job.stage or "", "" if job.progress is None else f"{job.progress:.0%}", job.message or ""]
    told = ", ".join(filter(None, seen))
    return f"{job.task} {job.id} is still {job.state} after {spell(waited)}{told and f' ({told})'}"


def _unknown(job_id: str, settings: Settings) -> UnknownJob:
    return UnknownJob(
        f"there is no job {job_id}: never enqueued, its transaction not committed, deleted, "
        f"or ended more than {spell(settings.keep)} ago"
    )


def rings_of(drafts: Iterable[Draft], answers: Iterable[Enqueued]) -> list[Ring]:
    """One for each queue and kind, with all the jobs."""
    jobs: defaultdict[tuple[State, str], list[str]] = defaultdict(list)
    for draft, answer in zip(drafts, answers, strict=True):
        if answer.created:
            jobs[answer.state, draft.queue].append(answer.id)
    return [
        Ring("due" if state is State.SCHEDULED else "queued", queue, tuple(ids)) for (state, queue), ids in jobs.items()
    ]


def _ours(drafts: Iterable[Draft], answers: Iterable[Enqueued]) -> list[Enqueued]:
    """Asked again: the first time it may have been done, and only its answer lost. What has our id we have created."""
    pairs = zip(drafts, answers, strict=True)
    return [answer._replace(created=answer.created or answer.id == draft.id) for draft, answer in pairs]


def _patiently(call: Callable[[], T], patience: float = PATIENCE, *, hasty: type[Exception] | tuple[()] = ()) -> T:
    """While the store is away, for a while. `hasty`: what is raised at once all the same."""
    deadline, pause = time.monotonic() + patience, 0.05
    while True:
        try:
            return call()
        except hasty:
            raise
        except StoreAway:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 1.0)
