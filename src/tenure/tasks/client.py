"""The client's side of an open store: enqueue, wait for results, cancel, join transactions.

Concurrent `aenqueue` calls share a write (gather.py). The notifier rings after the commit, never before.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tenure.config import Settings, redact
from tenure.core.durations import spell
from tenure.core.lifecycle import ENDED, State
from tenure.core.logs import logger
from tenure.core.offloaded import is_offloaded
from tenure.errors import FlowMade, JobFailed, StoreAway, StoreBusy, StoreError, UnknownJob
from tenure.events import LogLine, current, log_jobs
from tenure.ports import Draft, Enqueued, Notifier, NotLanded, OnLoop, Ring, Status, Store, Text, Update
from tenure.tasks.gather import RETRY_SECONDS, Gatherer
from tenure.tasks.loops import aside, awaited, settled
from tenure.tasks.once import HOLD_SECONDS, Key, encode_result
from tenure.tasks.registered import check_registered
from tenure.tasks.tracing import Tracing
from tenure.tasks.watch import RETURNED, Unanswered, Watch

T = TypeVar("T")

_log = logger("tenure.notifier")

REMEMBERED_SECONDS = 60.0  #: how long a task that workers have registered is taken to be known
MOST_ON_LOOP = 8192  #: characters of a job that is sent from the loop: the connection must accept them at once
MOST_LINES = 100  #: log lines for the jobs of one call
_LONGEST_PAUSE = 1.0
_LONGEST_BUSY_PAUSE = 0.25  # the store waits for a held key only for a moment at each try
_NESTED = "a second transaction can't begin: pass the first one on, as an argument"
_JOIN = "a job must join the transaction: write task.using(tx=tx).enqueue(…)"


@dataclass
class _Transaction:
    """An open transaction of this client, and the only thread that may use it, if any."""

    tx: object
    thread: ThreadPoolExecutor | None = None
    over: bool = False


#: This client's transaction around the current code. On a one-writer store, a write beside it would wait forever.
_inside: ContextVar[_Transaction | None] = ContextVar("tenure_transaction", default=None)


def in_transaction() -> bool:
    """Does the current code run inside `jobs.transaction()`?"""
    ours = _inside.get()
    return ours is not None and not ours.over


class Client:
    """The client that tasks and handles use. It is safe from every thread and event loop."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        settings: Settings,
        tracing: Callable[[], Tracing | None] = lambda: None,
    ) -> None:
        self.store = store
        self.notifier = notifier
        self.settings = settings
        self._tracing = tracing
        self._open: dict[int, _Transaction] = {}
        self._registered: dict[tuple[str, str], float] = {}
        self._gatherers: WeakKeyDictionary[asyncio.AbstractEventLoop, Gatherer] = WeakKeyDictionary()
        self._changing_gatherers = threading.Lock()
        self.in_test = False  #: in `jobs.testing()`, where jobs run only while the test drains
        self.watch = Watch(lambda seen: self.store.updates(seen, limit=RETURNED))

    def close(self) -> None:
        with self._changing_gatherers:
            for gatherer in list(self._gatherers.values()):
                gatherer.close()
        self.watch.close()
        self.store.close()  # before the notifier: it may still see a transaction commit, and ring
        self.notifier.close()

    # ── enqueue ──

    def check_registered(self, task: str, queue: str, own: Collection[str] = ()) -> None:
        """Check a task that this process lacks against what workers have registered. The answer is remembered."""
        now = time.monotonic()
        if self._registered.get((task, queue), 0.0) <= now:
            rows = retried(partial(self.store.workers, dead=True))
            check_registered(rows, task, queue, redact(self.store.url), own)
            self._registered[task, queue] = now + REMEMBERED_SECONDS

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, shared: bool = False, again: bool = False
    ) -> list[Enqueued]:
        """Store all of them or none; Redis may store some of more than 200. Retried while the store is unavailable.

        `shared`: others wait for this thread. StoreBusy is then raised at once, so that one caller does not delay them.
        `again`: an earlier try may have stored them.
        """
        tracing = None if shared else self._tracing()  # shared writes are traced where they are asked for
        if tracing is None or not drafts:
            return self._store(drafts, tx, shared=shared, again=again)
        with tracing.enqueue(drafts) as trace:
            answers = self._store(trace.drafts, tx, shared=shared, again=again)
            trace.stored(answers)
        return answers

    def _store(self, drafts: Sequence[Draft], tx: object, *, shared: bool, again: bool) -> list[Enqueued]:
        if not drafts:
            return []
        if tx is not None:
            inside: list[Enqueued] = []
            answers = self.store.enqueue(drafts, tx=tx, committed=lambda: self._announce(drafts, inside))
            inside += answers
            return answers
        self.refuse_beside_transaction()
        tries = count(2 if again else 1)
        try:
            tried, answers = retried(
                lambda: (next(tries), self.store.enqueue(drafts)), raised=StoreBusy if shared else ()
            )
        except FlowMade:
            if next(tries) > 2:  # perhaps by an earlier try, whose reply was lost
                _ring(self.notifier, rings_of(ready := [*filter(_is_ready, drafts)], map(_as_queued, ready)))
            raise
        if tried > 1:
            answers = _own_as_created(drafts, answers)
        self._announce(drafts, answers)
        return answers

    def joins(self) -> bool:
        """Does `enqueue` without `tx` join a transaction that the calling code has open?"""
        return False

    def enqueue_apart(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        """`enqueue`, but never with a transaction that the calling code has open."""
        return Client.enqueue(self, drafts)

    def _enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        """The store's `enqueue_on_loop`; then the job is announced."""
        if draft.links is not None or len(draft.payload) + len(draft.meta) > MOST_ON_LOOP:
            return None
        answer = yield from self.store.enqueue_on_loop(draft)
        if answer is not None:
            self._announce([draft], [answer])
        return answer

    def _announce(self, drafts: Sequence[Draft], answers: Sequence[Enqueued]) -> None:
        """The jobs are committed: ring, and log them."""
        _ring(self.notifier, rings_of(drafts, answers))
        log_jobs(_lines(drafts, answers))

    async def aenqueue(self, drafts: Sequence[Draft], *, tx: object = None) -> list[Enqueued]:
        """`enqueue`, in one write with the jobs of concurrent callers (gather.py)."""
        if tx is not None:
            ours = self._open.get(id(tx))
            return await settled(partial(self.enqueue, drafts, tx=awaited(tx)), ours.thread if ours else None)
        self.refuse_beside_transaction()
        if any(len(draft.payload) >= self.store.capabilities.inline for draft in drafts):
            await aside(partial(retried, partial(self._keep, drafts)))  # those that share the write don't wait
        tracing = self._tracing()
        if tracing is None or not drafts:
            return await self._gathered(drafts)
        with tracing.enqueue(drafts) as trace:
            answers = await self._gathered(trace.drafts)
            trace.stored(answers)
        return answers

    def _keep(self, drafts: Sequence[Draft]) -> None:
        """Bring large arguments into the bucket. Raises BucketAway."""
        keeping = self.store.keep(Text("payload", draft.id, "", draft.payload) for draft in drafts)
        if keeping is not None:
            keeping.result()

    async def _gathered(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        loop = asyncio.get_running_loop()
        gatherer = self._gatherers.get(loop) or self._new_gatherer(loop)
        return await gatherer.add(drafts)

    def _new_gatherer(self, loop: asyncio.AbstractEventLoop) -> Gatherer:
        with self._changing_gatherers:
            for ended in [other for other in self._gatherers if other.is_closed()]:
                self._gatherers.pop(ended).give_up()
            gatherer = self._gatherers[loop] = Gatherer(self.enqueue, self._enqueue_on_loop)
        return gatherer

    def refuse_beside_transaction(self, what: str = _JOIN) -> None:
        """Raise StoreError inside `jobs.transaction()`: a write outside it would wait for it."""
        ours = _inside.get()
        if ours is not None and id(ours.tx) in self._open:
            raise StoreError(f"inside jobs.transaction(), {what}; a write outside this transaction would wait for it")

    # ── once ──

    def once(self, key: str, fn: Callable[[], object], ttl: float | None, wait: float | None) -> str:
        """The first result of this key, as JSON."""
        self.refuse_beside_transaction("jobs.once(…) writes beside it: call it before or after the block")
        mine = Key(self.store, key, ttl, wait)
        while isinstance(found := retried(mine.claim), int | float):
            time.sleep(found)
        if found is not None:
            return found
        with mine.held():
            try:
                value = encode_result(key, fn(), self.settings.max_result)
            except BaseException:
                mine.release()
                raise
            return retried(partial(mine.keep, value), HOLD_SECONDS)

    async def aonce(self, key: str, fn: Callable[[], object], ttl: float | None, wait: float | None) -> str:
        """The first result of this key, as JSON."""
        self.refuse_beside_transaction("jobs.aonce(…) writes beside it: call it before or after the block")
        mine = Key(self.store, key, ttl, wait)
        try:
            while isinstance(found := await settled(partial(retried, mine.claim)), int | float):
                await asyncio.sleep(found)
        except asyncio.CancelledError:
            await settled(mine.release)  # a claim in flight may have succeeded
            raise
        if found is not None:
            return found
        with mine.held():
            try:
                made = fn()
                value = encode_result(key, await made if isawaitable(made) else made, self.settings.max_result)
            except BaseException:
                await settled(mine.release)
                raise
            return await settled(partial(retried, partial(mine.keep, value), HOLD_SECONDS))

    # ── transactions ──

    @contextmanager
    def transaction(self) -> Generator[Any]:
        """The store's transaction; the notifier rings when it has committed."""
        self.refuse_beside_transaction(_NESTED)
        with self.store.transaction() as tx:
            ours = self._open[id(tx)] = _Transaction(tx)
            token = _inside.set(ours)
            try:
                yield tx
            finally:
                self._leave(ours, token)

    @asynccontextmanager
    async def atransaction(self) -> AsyncGenerator[Any]:
        """The same from an event loop: begin, enqueues and commit run on a dedicated thread."""
        self.refuse_beside_transaction(_NESTED)
        with ThreadPoolExecutor(1, "tenure-tx") as thread:
            manager = self.store.transaction()
            try:
                tx = await settled(manager.__enter__, thread)
            except asyncio.CancelledError as error:
                thread.submit(manager.__exit__, type(error), error, None)  # it may have begun, and must be ended
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
                self._leave(ours, token)

    def _leave(self, ours: _Transaction, token: Token[_Transaction | None]) -> None:
        ours.over = True
        del self._open[id(ours.tx)]
        with suppress(ValueError):  # it was entered in another context, as a framework's dependencies are
            _inside.reset(token)

    # ── results and cancels ──

    def result(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed."""
        _warn_of_waiting_in_a_slot(job_id)
        with _in_time(self.store, job_id, timeout):
            return self._outcome(self.watch.wait(job_id, ended=True, timeout=timeout), timeout)

    async def aresult(self, job_id: str, timeout: float | None) -> str:
        """The result's JSON, once the job has completed."""
        _warn_of_waiting_in_a_slot(job_id)
        with _in_time(self.store, job_id, timeout):
            update = await self.watch.await_(job_id, ended=True, timeout=timeout)
        here = update.status is None or update.status.state in ENDED
        if here and not (update.result and is_offloaded(update.result)):
            return self._outcome(update, timeout)
        return await aside(partial(self._outcome, update, timeout))  # it reads the workers, or the bucket

    def _outcome(self, update: Update, timeout: float | None) -> str:
        job = _there(update, self.settings)
        if job.state is State.COMPLETED:
            return self.store.fetch(Text("result", job.id, "", update.result or "null"))
        if job.state in ENDED:
            raise JobFailed(job.id, job.state, job.error or job.cancel_reason or "")
        why = _why(self.store, job)
        if self.in_test:
            later = ", after queue.advance(…)" if job.state is State.SCHEDULED else ""
            why += f"; a job of jobs.testing() runs when the test calls queue.drain(){later}"
        raise TimeoutError(_still(job, timeout or 0.0) + why)

    def update(self, job_id: str, seen: str = "") -> Update:
        """The job's update, once its mark is no longer `seen`."""
        return self._existing(self.watch.wait(job_id, seen))

    async def aupdate(self, job_id: str, seen: str = "") -> Update:
        """The job's update, once its mark is no longer `seen`."""
        return self._existing(await self.watch.await_(job_id, seen))

    def _existing(self, update: Update) -> Update:
        _there(update, self.settings)
        return update

    def cancel(self, job_id: str, reason: str) -> bool:
        """Cancel it, or request a stop. False: it had already ended."""
        self.refuse_beside_transaction("a cancel writes beside it: call it before or after the block")
        before = retried(partial(self.store.get, job_id))
        if before is None:
            raise _unknown(job_id, self.settings)
        if before.state in ENDED:
            return False
        state = retried(partial(self.store.cancel, [job_id], reason))[job_id]
        rings = [Ring("cancel", before.queue)]
        if before.linked or before.limits:  # others may wait for it, or for its places
            rings.append(Ring("due", before.queue))
        _ring(self.notifier, rings)
        return state in (State.CANCELLED, State.PROCESSING)

    async def acancel(self, job_id: str, reason: str) -> bool:
        """Cancel it, or request a stop. False: it had already ended."""
        return await aside(partial(self.cancel, job_id, reason))

    # ── signals ──

    def signal(self, job_id: str | None, key: str, text: str) -> bool:
        """Send this JSON to the job, or with None to all that wait for the key. False: it does not arrive."""
        self.refuse_beside_transaction("a signal writes beside it: send it before or after the block")
        tries = count(1)
        tried, answer = retried(lambda: (next(tries), self.store.signal(job_id, key, text)))
        if answer is None:
            raise _unknown(job_id or "", self.settings)
        if isinstance(answer, NotLanded):  # perhaps an earlier try landed, and its reply was lost
            return tried > 1 and text in (each.value for each in self.store.signals(job_id, [key]))
        _ring(self.notifier, [Ring("due", _queue_of(self.store, job_id))])
        return True

    async def asignal(self, job_id: str | None, key: str, text: str) -> bool:
        """Send this JSON to the job, or with None to all that wait for the key. False: it does not arrive."""
        return await aside(partial(self.signal, job_id, key, text))


def _ring(notifier: Notifier, rings: Iterable[Ring]) -> None:
    """Whatever a notifier raises, what it was to announce is stored."""
    try:
        notifier.announce(rings)
    except Exception:
        _log.exception("a change is stored, and could not be announced: workers find it at their next look")


def _warn_of_waiting_in_a_slot(job_id: str) -> None:
    if running := current.get():
        warnings.warn(
            f"{running.task} waits for job {job_id} in its own slot; if every slot waits, nothing runs. "
            "Write job.gather(…) or job.join(…), which give the slot back until then",
            RuntimeWarning,
            stacklevel=4,
        )


def _still(job: Status, waited: float) -> str:
    seen = [job.stage or "", "" if job.progress is None else f"{job.progress:.0%}", job.message or ""]
    progress = ", ".join(filter(None, seen))
    return f"{job.task} {job.id} is still {job.state} after {spell(waited)}{progress and f' ({progress})'}"


@contextmanager
def _in_time(store: Store, job_id: str, timeout: float | None) -> Generator[None]:
    """If a wait is over while the store hangs, tell what is known, without another question to it."""
    try:
        yield
    except Unanswered as error:
        waited, last = timeout or 0.0, error.last.status if error.last else None
        if last is not None:
            raise TimeoutError(f"{_still(last, waited)}; the store has not answered since") from None
        raise StoreAway(
            f"{redact(store.url)} does not answer: after {spell(waited)} nothing is known of job {job_id}"
        ) from None


def _why(store: Store, job: Status) -> str:
    """The end of a sentence that says why a job has not begun; empty if that is not known."""
    match job.state:
        case State.QUEUED:
            return _why_queued(store, job)
        case State.SCHEDULED if job.attempt:
            return _why_again(store, job)
        case State.WAITING:
            return _why_waiting(store, job.id)
        case _:
            return ""


def _why_queued(store: Store, job: Status) -> str:
    """What to look at if a due job is still queued: an empty text, or the end of a sentence."""
    with suppress(StoreError):
        live = sum(job.queue in row.identity.queues for row in store.workers())
        where, queue = f"of this store ({redact(store.url)})", f"the queue {job.queue!r}"
        if not live:
            return f"; no live worker {where} serves {queue}"
        if job.queue in store.paused():
            return f"; {queue} {where} is paused"
        serve = "worker {} serves" if live == 1 else "workers {} serve"
        return f"; {live} live {serve.format(where)} {queue}; tenure jobs explain {job.id} says more"
    return ""


def _why_again(store: Store, job: Status) -> str:
    """How the last attempt of a job that is to run again ended: an empty text, or the end of a sentence."""
    with suppress(StoreError):
        last = [each for each in store.attempts(job.id) if each.attempt == job.attempt and each.error]
        if last:
            said, _, _ = last[0].error.partition("\n")
            return f"; attempt {job.attempt} ended with: {said}"
    return ""


def _why_waiting(store: Store, job_id: str) -> str:
    """What a job waits for: an empty text, or the end of a sentence."""
    with suppress(StoreError):
        job = store.get(job_id)
        if job is not None and job.wait_for is not None:
            return f"; it waits for the signal {job.wait_for.partition(':')[2]!r}"
        left = [each for each in store.inputs(job_id) if each.open]
        if left:
            more = f" and {len(left) - 1} more" if left[1:] else ""
            return f"; it waits for {left[0].task} {left[0].parent}, which is {left[0].state}{more}"
    return ""


def _there(update: Update, settings: Settings) -> Status:
    if update.status is None:
        raise _unknown(update.id, settings)
    return update.status


def _unknown(job_id: str, settings: Settings) -> UnknownJob:
    return UnknownJob(
        f"there is no job {job_id}: it was never enqueued, its transaction has not committed, it was deleted, "
        f"or it ended more than {spell(settings.keep)} ago"
    )


def rings_of(drafts: Iterable[Draft], answers: Iterable[Enqueued]) -> list[Ring]:
    """One ring for each queue and kind, with the ids of its jobs."""
    jobs: dict[tuple[State, str], list[str]] = {}
    for draft, answer in zip(drafts, answers, strict=True):
        if answer.created:
            jobs.setdefault((answer.state, draft.queue), []).append(answer.id)
    return [
        Ring("queued" if state is State.QUEUED else "due", queue, tuple(ids)) for (state, queue), ids in jobs.items()
    ]


def _is_ready(draft: Draft) -> bool:
    return draft.delay is None and draft.run_at is None and not (draft.links and draft.links.after)


def _as_queued(draft: Draft) -> Enqueued:
    return Enqueued(draft.id, True, State.QUEUED)


def _lines(drafts: Sequence[Draft], answers: Sequence[Enqueued]) -> Iterable[LogLine]:
    for draft, answer in zip(drafts[:MOST_LINES], answers, strict=False):
        about = {"job_id": answer.id, "task": draft.task, "queue": draft.queue}
        words = "%s %s is enqueued on %s" if answer.created else "%s %s was already stored, on %s"
        yield words, (draft.task, answer.id, draft.queue), about
    if len(drafts) > MOST_LINES:
        yield "%d more jobs are stored in the same call", (len(drafts) - MOST_LINES,), {}


def _own_as_created(drafts: Iterable[Draft], answers: Iterable[Enqueued]) -> list[Enqueued]:
    """After a retry, a job with a draft's own id counts as created: an earlier try stored it and its reply was lost."""
    pairs = zip(drafts, answers, strict=True)
    return [answer._replace(created=answer.created or answer.id == draft.id) for draft, answer in pairs]


def retried(call: Callable[[], T], limit: float = RETRY_SECONDS, *, raised: type[Exception] | tuple[()] = ()) -> T:
    """Retry the call while the store is unavailable, for `limit` seconds. `raised`: errors that are raised at once."""
    deadline, pause = time.monotonic() + limit, 0.05
    while True:
        try:
            return call()
        except raised:
            raise
        except StoreAway as error:
            if time.monotonic() + pause > deadline:
                raise
            longest = _LONGEST_BUSY_PAUSE if isinstance(error, StoreBusy) else _LONGEST_PAUSE
        time.sleep(pause)
        pause = min(pause * 2, longest)


def _queue_of(store: Store, job_id: str | None) -> str:
    """For a ring after a write that has landed, whether or not the store answers again: '' if it is not known."""
    job = None
    with suppress(StoreError):
        job = None if job_id is None else store.get(job_id)
    return "" if job is None else job.queue
