"""A worker: slots, claims, beats and flushes on one event loop, in its own process or embedded in another program.

How a job runs:

1. A ring, a freed slot or the poll interval wakes the claim loop (claims.py). It claims in one batch, for free slots
   only.
2. Each claimed job becomes an `Attempt` (attempts.py). A job of an unknown task or with arguments that do not
   fit its code is snoozed, an expired one cancelled.
3. The attempt's code stops with an outcome, which frees the slot (slots.py). The outcome joins the next flush; while
   one flush is in flight the next batch accumulates, so a thousand outcomes may cost one commit (flusher.py). If more
   than a thousand are unflushed, or any for longer than 50 ms, free slots are held back until the store catches up.
4. The beat reads which jobs the store says this worker owns, while none of its claims is in flight, and reconciles
   (beat.py). Running but no longer owned: stop the code. Owned but not running: a claim's reply was lost, so run it.
   A cancel was requested: stop the code.
5. If code does not stop within 10 s of being asked, the worker is *stuck*: it claims nothing more, gives its other
   jobs the drain grace, and asks its supervisor to kill it (stops.py). Only then does that attempt end in the store.

Each part is a task on the event loop. `Slots` is the state they share; they reach the store through `StoreAccess`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import inf
from time import monotonic
from typing import TypeVar

from tenure.config import Settings
from tenure.core.lifecycle import Outcome, Released
from tenure.core.logs import logger
from tenure.events import Drained, Events
from tenure.maintenance.maintenance import Declaration
from tenure.ports import Notifier, Store
from tenure.worker import forked
from tenure.worker.access import StoreAccess
from tenure.worker.attempts import Attempts
from tenure.worker.beat import LeaseBeat
from tenure.worker.caller import CallersLoop
from tenure.worker.claims import ClaimLoop, PermitLoop
from tenure.worker.doorbell import Doorbell
from tenure.worker.executor import Attempt
from tenure.worker.flusher import OutcomeFlusher
from tenure.worker.hand_over import HandOver
from tenure.worker.job_log import JobLogHandler
from tenure.worker.keeping import Keeping
from tenure.worker.permits import HeldPermits
from tenure.worker.program import Program
from tenure.worker.progress import ProgressFlusher
from tenure.worker.slots import Plan, Slots, woken
from tenure.worker.stops import StopWatch
from tenure.worker.tally import Tally

T = TypeVar("T")

_log = logger("tenure.worker")
SETTLE_SECONDS = 5.0  #: how long to wait for an unavailable store once the block has ended and nothing runs
KEEP_SECONDS = 20.0  #: how long to wait for a bucket in that case
CHECK_SECONDS = 1.0  #: between two checks whether the block has ended
END_SECONDS = 1.0  #: how long the end of the loop waits for tasks and threads that handlers have left


def queue_caps(program: Program, settings: Settings) -> dict[str, int | None]:
    """The queues to serve, with their caps: those in the settings, else all that tasks name."""
    return dict(settings.queues) or dict.fromkeys(sorted(program.named_queues))


def declaration(program: Program, settings: Settings) -> Declaration:
    """What a worker of this program declares before it claims anything."""
    return Declaration(program.source, settings.release or "", tuple(program.schedules()), tuple(program.limits()))


class Worker:
    """Runs jobs on the running event loop until it is drained or stuck.

    `on_due` is called when a ring announces a job that is due later (the promoter should check), `on_tick` four times
    a second, and `on_stuck` once, with the verdicts of the attempts that did not stop. Without `on_stuck` the process
    can't be killed: an attempt that does not stop keeps its slot until its code ends. The worker listens for rings as
    soon as it is constructed; it claims jobs after `start`. With a `caller`, `async` handlers run on the caller's loop
    instead of this one.
    """

    def __init__(
        self,
        plan: Plan,
        program: Program,
        store: Store,
        notifier: Notifier,
        events: Events,
        *,
        resources: Mapping[type, object],
        on_due: Callable[[], None],
        on_tick: Callable[[], None],
        on_stuck: Callable[[dict[str, Outcome]], None] | None,
        may_declare: Callable[[], bool],
        tally: Tally | None = None,
        caller: CallersLoop | None = None,
    ) -> None:
        self.plan = plan
        self.worker_id = plan.worker_id
        tally = tally or Tally()
        self._loop = asyncio.get_running_loop()
        self._events = events
        slots = self._slots = Slots(plan, StoreAccess(store, events))
        keeping = Keeping(slots.access, tally)
        progress = ProgressFlusher(slots.access, tally, keeping)
        attempts = self._attempts = Attempts(slots, progress, program, resources, tally, caller)
        beat = LeaseBeat(slots, attempts)
        try:
            doorbell = self._doorbell = Doorbell(slots, beat, notifier, events, on_due)
        except BaseException:  # no file or no thread is left for its listener
            slots.access.close()
            attempts.close()
            raise
        claims = ClaimLoop
        if doorbell.listener.permits is not None and plan.runner != "solo":
            # No message says which jobs must run alone, so the workers that run those use rings instead of permits.
            slots.permits = HeldPermits(doorbell.listener.permits, store, plan.worker_id, plan.lease, may_declare)
            claims = PermitLoop
        hand_over, tracing = HandOver(slots, notifier), program.tracing
        self._flusher = OutcomeFlusher(
            slots, progress, hand_over, notifier, events, tally, keeping, traced=tracing is not None
        )
        if tracing is not None:
            tracing.counts(tally.counted)
        stops, claiming = StopWatch(slots, on_tick, on_stuck, caller), claims(slots, attempts, beat, doorbell)
        self._parts = (keeping, self._flusher, hand_over, progress, beat, stops, claiming, doorbell)
        self._tasks: list[asyncio.Task[None]] = []
        self._log_handler = JobLogHandler(slots.running_as)

    # ── start and stop ──

    def start(self) -> None:
        """Start claiming. The worker's row must be registered."""
        self._doorbell.start()
        self._tasks = [self._loop.create_task(part.run(), name=type(part).__name__) for part in self._parts]
        for task in self._tasks:
            task.add_done_callback(self._fail_loudly)
        self._log_handler.install()

    async def drain(
        self, grace: float, *, block_ended: Callable[[], bool] = lambda: False, patience: float | None = None
    ) -> None:
        """Stop claiming, let running jobs finish for `grace` seconds, then ask them to stop. Returns when none runs.

        With `patience` it returns so many seconds after they were asked, although some still run.
        Once `block_ended()` is true, the worker waits no longer than `SETTLE_SECONDS` for an unavailable store. The
        same limit always applies when another transaction holds the rows of jobs that have ended, and `KEEP_SECONDS`
        when a bucket does not take their results.
        """
        self.stop_claiming()
        await self._slots.wait_idle(grace)
        self.hand_back("drained")
        await self._slots.wait_idle(patience)
        if self._slots.access.available:
            async with self._slots.claim_turn:  # jobs from a claim in flight are released now, not when the lease ends
                pass
        await self._wait_flushed(block_ended)
        self._events.emit(Drained(worker_id=self.worker_id, released=self._flusher.released))

    def take_over(self, left: Mapping[str, Attempt]) -> None:
        """Before `start`: code of an earlier worker of this process that runs on. Each keeps a slot until it ends."""
        self._attempts.take_over(left)

    def stop_claiming(self) -> None:
        self._slots.stop_claiming()

    def hand_back(self, reason: str) -> None:
        """Ask all running code to stop, and start nothing more: jobs from a claim in flight are released unstarted."""
        self._slots.stop_claiming()
        self._slots.handing_back = reason
        for attempt in list(self.running.values()):
            attempt.request_stop("shutdown", Released(reason))

    async def close(self) -> None:
        """Release all resources. Code that is still running ends with the process."""
        self._log_handler.remove()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._release()

    def _release(self) -> None:
        self._doorbell.stop()
        self._slots.access.close()
        self._attempts.close()

    @property
    def running(self) -> dict[str, Attempt]:
        return self._slots.running

    @property
    def idle(self) -> bool:
        return self._slots.empty

    @property
    def unstored(self) -> int:
        """The number of outcomes the store has not confirmed."""
        return self._slots.backlog.unstored()

    @property
    def store_is_away(self) -> bool:
        """Are there outcomes that the store does not take, just now?"""
        return self.unstored > 0 and self._slots.access.fails("write")

    async def _wait_flushed(self, block_ended: Callable[[], bool]) -> None:
        slots, backlog = self._slots, self._slots.backlog
        give_up_at = inf
        while not backlog.empty():
            now = self._loop.time()
            held = not backlog  # all that remains is locked by a transaction that may stay open indefinitely
            patience = KEEP_SECONDS if backlog.keeping else SETTLE_SECONDS
            limited = held or (block_ended() and slots.access.fails("write"))
            give_up_at = min(give_up_at, now + patience) if limited else inf
            if now >= give_up_at:
                return
            slots.idle.clear()
            await woken(slots.idle, CHECK_SECONDS)

    def _fail_loudly(self, task: asyncio.Task[None]) -> None:
        """Stop the loop if one of the worker's own parts fails: a worker that silently does nothing is worse."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log_handler.remove()
            self._loop.call_exception_handler(
                {"message": f"tenure: {task.get_name()} failed; this worker stops", "exception": error}
            )
            self._loop.stop()  # at the end of this turn, whatever the rest raises
            for each in self._tasks:
                each.cancel()
            for attempt in list(self.running.values()):  # nothing renews its lease any more
                attempt.request_stop("lease_lost", None)
            self._release()  # the program may go on, and embed another worker


def own_threads(slots: int) -> ThreadPoolExecutor:
    """The default pool of a worker's own loop: `asyncio.to_thread` in one handler waits for no other handler."""
    return ThreadPoolExecutor(max(slots, min(32, (os.cpu_count() or 1) + 4)), "tenure-to-thread")


def run_loop(serve: Coroutine[object, object, T], threads: ThreadPoolExecutor | None = None) -> T:
    """Like asyncio.run, but a task started by a handler that calls sys.exit() ends only itself, not the worker.

    `threads` become the default pool of the loop. The end does not wait for what may never stop.
    """
    loop, pid = asyncio.new_event_loop(), os.getpid()
    asyncio.set_event_loop(loop)
    if threads is not None:
        loop.set_default_executor(threads)
    serving = loop.create_task(serve)
    while True:
        try:
            result = loop.run_until_complete(serving)
        except Exception:
            _end(loop, threads)
            raise
        except (SystemExit, KeyboardInterrupt) as stray:
            if os.getpid() != pid:  # of a task that a handler has started, in a child that it has forked
                forked.leave(stray)
            if serving.done():
                raise
            _log.error("a task started by a handler ended with %r", stray)
        else:
            _end(loop, threads)
            return result


def _end(loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor | None) -> None:
    """Cancel what handlers have left on the loop, and close it. asyncio.run would wait for all of it, without limit."""
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=END_SECONDS))
        closing = loop.create_task(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.wait([closing], timeout=END_SECONDS))
        if threads is not None and (running := _running_in(threads)):
            _log.warning(
                "code of jobs that have ended still runs in %d thread%s of asyncio.to_thread: the worker ends without "
                "waiting for it, but the program will wait when it exits",
                running,
                "s" * (running > 1),
            )
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _running_in(threads: ThreadPoolExecutor) -> int:
    """How many of them run on, a moment after they were told to end. Those without a call end at once."""
    threads.shutdown(wait=False)
    over = monotonic() + END_SECONDS
    for thread in threads._threads:
        thread.join(max(over - monotonic(), 0.0))
    return sum(thread.is_alive() for thread in threads._threads)
