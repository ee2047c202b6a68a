"""One watch for all callers that wait for jobs: a thread of the client looks at all awaited jobs in one read.

The thread starts with the first waiter and ends when there has been none for a while. Its state is its own: waiters
come and go through a queue. A job is looked at often at first and then less often, in the end together with all others.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import repeat
from queue import Empty, SimpleQueue

from tenure.core import forks
from tenure.core.lifecycle import ENDED
from tenure.errors import StoreAway, StoreError
from tenure.ports import Update

SHORTEST, LONGEST = 0.002, 0.2  #: seconds between two looks at a job
LOOKED = 1000  #: jobs at once
RETURNED = 50  #: updates at once
AWAY_SECONDS = 5.0  #: how long a look is repeated while the store is unavailable
SIGNAL_SECONDS = 0.5  #: how long a Ctrl-C may go unnoticed
GRACE_SECONDS = 5.0  #: how long after its time a waiter gives up, if a look hangs: then no one tells it anything
_PIECES = 4  # of the grace: if this process or its machine was stopped meanwhile, one of them is over, not all
_LONGEST_PIECE = 3600.0
IDLE_SECONDS = 1.0  #: the thread ends after this long without waiters
_TICK = 1e-6
_SHARE = 25  #: the longest pause is at least this many times the processor time of the last look

Look = Callable[[Mapping[str, str]], Sequence[Update]]  #: at most `RETURNED` updates of the jobs with these marks
News = Update | Exception


@dataclass(eq=False, slots=True)
class _Waiter:
    """Waits until the mark of the job is not `seen`, or with `ended` until the job has ended or does not exist."""

    job_id: str
    seen: str
    ended: bool
    until: float  #: the monotonic time at which it is told how the job is, whatever it waits for
    tell: Callable[[News], object]
    lost: Callable[[], bool] = lambda: False  #: can it no longer be told?
    away_since: float | None = None
    last: Update | None = None  #: how the job was at the last look

    def wants(self, update: Update) -> bool:
        if self.ended:
            return update.status is None or update.status.state in ENDED
        return update.mark != self.seen


@dataclass(eq=False, slots=True)
class _Job:
    id: str
    due: float = 0.0
    pause: float = SHORTEST
    last: Update | None = None
    waiters: set[_Waiter] = field(default_factory=set[_Waiter])


_Calls = SimpleQueue[tuple[_Waiter, bool] | None]  #: waiters that come (True) or go; None: the watch was closed


class Unanswered(StoreAway):
    """The time of a wait is over, and the store does not answer. `last` is what it said before, if it said anything."""

    def __init__(self, job_id: str, last: Update | None) -> None:
        super().__init__(f"the store did not answer in time: how job {job_id} is, is not known")
        self.last = last


class Watch:
    """Waits for jobs. Safe from every thread and event loop."""

    _calls: _Calls

    def __init__(self, look: Look) -> None:
        self.look = look
        self._closed = self._running = False
        self.forget(paused=True)

    def refuse_endless(self, what: str) -> None:
        """Nothing to refuse: jobs run without this thread."""

    def wait(self, job_id: str, seen: str = "", *, ended: bool = False, timeout: float | None = None) -> Update:
        """The job's update, once its mark is no longer `seen`, or it has `ended`; after `timeout` at the latest.

        With neither, it returns at once. Raises StoreAway after `AWAY_SECONDS` without an answer, or at the timeout.
        A look that hangs holds up only those without a timeout: after it the others get `Unanswered`.
        """
        news: SimpleQueue[News] = SimpleQueue()  # no Event: a signal's exception inside one would leave it locked
        waiter = _Waiter(job_id, seen, ended, _until(timeout), news.put)
        try:
            if not self._call(waiter):
                alone = _Looks(self.look)
                alone.take(waiter, comes=True)
                while news.empty():
                    time.sleep(pause := alone.pause())
                    alone.pass_time(pause)
                    alone.look()
            told = _received(news, timeout)
            if told is None:
                raise Unanswered(job_id, waiter.last)
        except BaseException:
            self._calls.put((waiter, False))
            raise
        return _said(told)

    async def await_(self, job_id: str, seen: str = "", *, ended: bool = False, timeout: float | None = None) -> Update:
        """The same on an event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[News] = loop.create_future()

        def tell(news: News) -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_settle, future, news)

        waiter = _Waiter(job_id, seen, ended, _until(timeout), tell, loop.is_closed)
        if not self._call(waiter):
            raise StoreError(f"can't wait for job {job_id}: no thread can be started, as this process is ending")
        try:
            told = await future if timeout is None else await _awaited(future, timeout)
            if told is None:
                raise Unanswered(job_id, waiter.last)
        except BaseException:
            self._calls.put((waiter, False))
            raise
        return _said(told)

    def close(self) -> None:
        """Callers that still wait get a StoreError."""
        forks.discard(self)
        with self._lock:
            self._closed = True
            self._calls.put(None)

    def _call(self, waiter: _Waiter) -> bool:
        """Hand it to the thread. False: none can be started, as at the end of the interpreter."""
        with self._lock:
            if self._closed:
                raise _was_closed()
            if not self._running:
                try:
                    _thread.start_new_thread(self._run, (self._calls,))
                except RuntimeError:
                    return False
                self._running = True
            self._calls.put((waiter, True))
        return True

    # ── the thread ──

    def _run(self, calls: _Calls) -> None:
        looks = _Looks(self.look)
        error: Exception = _was_closed()
        try:
            while self._hear(calls, looks):
                looks.look()
        except BaseException as failed:
            error = StoreError(f"waiting for jobs failed: {failed!r}")
            raise
        finally:
            with self._lock:
                if calls is self._calls:
                    self._running = False
                while not calls.empty():
                    if call := calls.get():
                        looks.take(*call)
            looks.fail(error)

    def _hear(self, calls: _Calls, looks: _Looks) -> bool:
        """Learn which waiters have come and gone until a look is due. False: closed, or no waiter is left."""
        pause = looks.pause() if looks.jobs else IDLE_SECONDS
        try:
            call = calls.get(timeout=pause)
        except Empty:
            looks.pass_time(pause)
            with self._lock:
                self._running = bool(looks.jobs) or not calls.empty() or calls is not self._calls
                if not self._running:  # a caller that comes now starts another thread, with calls of its own
                    self._calls = _Calls()
                return self._running
        while call is not None:
            looks.take(*call)
            try:
                call = calls.get_nowait()
            except Empty:
                return True
        return False

    # ── forks: a child has no thread, and no waiters ──

    def pause(self, until: float) -> bool:
        return True

    def resume(self) -> None:
        pass

    def forget(self, *, paused: bool) -> bool:
        self._lock = _thread.allocate_lock()  #: held to call the thread, to start it and to end it
        self._calls = _Calls()
        self._running = False
        forks.add(self)
        return True


class _Looks:
    """Which jobs are waited for, and when each is looked at next."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.jobs: dict[str, _Job] = {}
        self._now = time.monotonic()
        self._longest = LONGEST

    def take(self, waiter: _Waiter, comes: bool) -> None:
        """A waiter comes, or goes."""
        job = self.jobs.get(waiter.job_id)
        if comes:
            self.pass_time()
            if job is None:
                job = self.jobs[waiter.job_id] = _Job(waiter.job_id, self._now + LONGEST, LONGEST)
            job.waiters.add(waiter)
            if not waiter.seen:
                job.due, job.pause = self._now, 0.0
            job.due = min(job.due, waiter.until)
        elif job is not None:
            job.waiters.discard(waiter)
            self._schedule(job)

    def pause(self) -> float:
        """Seconds until the next look."""
        self.pass_time()
        return max(min((job.due for job in self.jobs.values()), default=self._now) - self._now, 0.0)

    def pass_time(self, waited: float = 0.0) -> None:
        """These seconds are past, even if a test has stopped the clock."""
        self._now = max(self._now + waited, time.monotonic())

    def look(self) -> None:
        due = [job for job in self.jobs.values() if job.due <= self._now + _TICK]
        for first in range(0, len(due), LOOKED):
            self._look_at(due[first : first + LOOKED])

    def fail(self, error: Exception) -> None:
        for job in list(self.jobs.values()):
            self._tell_all(job, error)

    def _look_at(self, jobs: Sequence[_Job]) -> None:
        began = time.thread_time()
        try:
            found = self._look({job.id: job.last.mark if job.last else "" for job in jobs})
        except StoreAway as error:
            self.pass_time()
            for job in jobs:
                self._tell_of_outage(job, error)
            return
        except Exception as error:
            for job in jobs:
                self._tell_all(job, error)
            return
        self.pass_time()
        updates = {update.id: update for update in found}
        for job in jobs:
            if job.id in updates:
                job.last = updates[job.id]
            elif len(updates) >= RETURNED:
                continue  # there may be an update of it: it stays due, and is looked at again at once
            self._tell_of_state(job)
        self._longest = max(LONGEST, _SHARE * (time.thread_time() - began))

    def _tell_of_state(self, job: _Job) -> None:
        for waiter in list(job.waiters):
            if job.last is not None and (waiter.until <= self._now or waiter.wants(job.last)):
                job.waiters.discard(waiter)
                waiter.tell(job.last)
            elif waiter.lost():
                job.waiters.discard(waiter)
            else:
                waiter.away_since, waiter.last = None, job.last
        self._schedule(job)

    def _tell_of_outage(self, job: _Job, error: StoreAway) -> None:
        for waiter in list(job.waiters):
            waiter.away_since = self._now if waiter.away_since is None else waiter.away_since
            if waiter.until <= self._now or self._now - waiter.away_since > AWAY_SECONDS or waiter.lost():
                job.waiters.discard(waiter)
                waiter.tell(_own(error))
        self._schedule(job)

    def _tell_all(self, job: _Job, error: Exception) -> None:
        for waiter in job.waiters:
            waiter.tell(_own(error))
        job.waiters.clear()
        self._schedule(job)

    def _schedule(self, job: _Job) -> None:
        """Schedule the next look at it, at the same moment as at all other jobs that are looked at as often."""
        if not job.waiters:
            del self.jobs[job.id]
        elif job.due <= self._now + _TICK:
            job.pause = min(max(job.pause * 2, SHORTEST), self._longest)
            together = (self._now // job.pause + 1) * job.pause
            job.due = min(max(together, self._now + job.pause / 2), *(waiter.until for waiter in job.waiters))


def _until(timeout: float | None) -> float:
    return float("inf") if timeout is None else time.monotonic() + timeout


def _pauses(timeout: float, longest: float) -> Iterator[float]:
    """How long to wait for what the watch tells: until the timeout, and a little longer."""
    while timeout > 0:
        yield min(timeout, longest)
        timeout -= longest
    yield from repeat(GRACE_SECONDS / _PIECES, _PIECES)


def _received(news: SimpleQueue[News], timeout: float | None) -> News | None:
    """None: nothing was told in time.

    The main thread wakes up now and then: a signal that comes just before it waits can't interrupt the wait.
    """
    longest = SIGNAL_SECONDS if threading.current_thread() is threading.main_thread() else _LONGEST_PIECE
    for pause in repeat(longest) if timeout is None else _pauses(timeout, longest):
        with suppress(Empty):
            return news.get(timeout=pause)
    return None


async def _awaited(future: asyncio.Future[News], timeout: float) -> News | None:
    """None: nothing was told in time."""
    for pause in _pauses(timeout, _LONGEST_PIECE):
        if (await asyncio.wait([future], timeout=pause))[0]:
            return future.result()
    return None


def _own(error: Exception) -> Exception:
    """A copy for one waiter: each that is raised gets a traceback of its own."""
    try:
        own = copy(error)
    except Exception:
        return error
    own.__cause__ = error
    return own


def _settle(future: asyncio.Future[News], news: News) -> None:
    if not future.done():  # its caller was cancelled
        future.set_result(news)


def _said(news: News) -> Update:
    if isinstance(news, Exception):
        raise news
    return news


def _was_closed() -> StoreError:
    return StoreError("the client was closed while this call waited for a job: keep it open, or wait before its end")
