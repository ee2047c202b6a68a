"""A worker: slots, claims, beats and flushes on one event loop, inside a process of its own or of somebody else.

Life of one job here:

1. A ring, a freed slot or the poll wakes the claim loop (claims.py). It claims for free slots only, in one batch.
2. Each claimed job becomes an `Attempt` (attempts.py). A task we don't know is snoozed, an expired one cancelled.
3. Its code stops, with an outcome, and frees the slot (slots.py). The outcome joins the next flush: the flush in flight
   gathers the one after it, so a thousand outcomes may cost one commit (flusher.py). Never more than that, nor for
   longer than 50 ms, run ahead of the store; then slots wait.
4. The beat reads what the store holds in our name, while no claim of ours is in flight, and settles the difference:
   ours no more: stop the code; ours, but unknown here: a reply was lost, run it; a cancel asked: stop it (beat.py).
5. Code that was asked to stop and did not within 10 s makes the worker *stuck*: it claims nothing more, gives its
   other jobs the drain grace, and asks its supervisor to kill it (stops.py). Only then does that attempt end in the
   store.

Each of these parts is a task of the event loop; `Slots` is the state they share, `StoreAccess` their way to the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from math import inf
from typing import TypeVar

from tenure.config import Settings
from tenure.core.lifecycle import Outcome, Released
from tenure.events import Drained, Events
from tenure.ports import Notifier, Store
from tenure.worker.access import StoreAccess
from tenure.worker.attempts import Attempts
from tenure.worker.beat import LeaseBeat
from tenure.worker.claims import ClaimLoop, PermitLoop
from tenure.worker.doorbell import Doorbell
from tenure.worker.executor import Attempt
from tenure.worker.flusher import OutcomeFlusher
from tenure.worker.job_log import Gather
from tenure.worker.permits import HeldPermits
from tenure.worker.program import Program
from tenure.worker.progress import ProgressFlusher
from tenure.worker.slots import Plan, Slots, woken
from tenure.worker.stops import StopWatch
from tenure.worker.tally import Tally

T = TypeVar("T")

SETTLE_SECONDS = 5.0  #: left, and nothing runs: how long the store may still be unavailable
LOOK_SECONDS = 1.0  #: between two looks whether the block has been left


def queue_caps(program: Program, settings: Settings, asked: Sequence[str] | None = None) -> dict[str, int | None]:
    """The queues asked for, else those of the settings, else all that the tasks name; with their caps."""
    if asked is not None:
        return dict.fromkeys(asked)
    return dict(settings.queues) or dict.fromkeys(sorted({task.queue for task in program.tasks}))


class Worker:
    """Runs jobs on the running event loop until it is drained or stuck.

    `on_due` is called when a ring tells of a job due later (the promoter should look), `on_tick` four times a second,
    `on_stuck` once, with the verdicts of the attempts whose code did not stop. Without an `on_stuck` nothing may be
    killed here: such code keeps its slot until it ends. Rings are listened for from the beginning, jobs claimed after
    `start`.
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
    ) -> None:
        self.plan = plan
        self.worker_id = plan.worker_id
        tally = tally or Tally()
        self._loop = asyncio.get_running_loop()
        self._events = events
        slots = self._slots = Slots(plan, StoreAccess(store, events))
        progress = ProgressFlusher(slots.access, tally)
        attempts = self._attempts = Attempts(slots, progress, program, resources, tally)
        beat = LeaseBeat(slots, attempts)
        doorbell = self._doorbell = Doorbell(slots, beat, notifier, events, on_due)
        claims = ClaimLoop
        if doorbell.listener.permits is not None and plan.runner != "solo":
            # Which jobs must run alone no message says: workers that run them heed the rings, and hold no permits.
            slots.permits = HeldPermits(doorbell.listener.permits, store, plan.worker_id, plan.lease, may_declare)
            claims = PermitLoop
        self._flusher = OutcomeFlusher(slots, progress, notifier, events, tally)
        stops, claiming = StopWatch(slots, on_tick, on_stuck), claims(slots, attempts, beat, doorbell)
        self._parts = (self._flusher, progress, beat, stops, claiming, doorbell)
        self._tasks: list[asyncio.Task[None]] = []
        self._gather = Gather(slots.running_as)

    # ── life ──

    def start(self) -> None:
        """Begin to claim. Needs the worker's row to be registered."""
        self._doorbell.start()
        self._tasks = [self._loop.create_task(part.run(), name=type(part).__name__) for part in self._parts]
        for task in self._tasks:
            task.add_done_callback(self._die_loudly)
        self._gather.install()

    async def drain(self, grace: float, *, left: Callable[[], bool] = lambda: False) -> None:
        """Claim nothing more, wait for what runs, then ask it to stop. Returns when nothing runs, or when stuck.

        `left`: has its block been left? Then an unavailable store is waited for `SETTLE_SECONDS`, and no longer; so is,
        in any case, another's transaction that holds the rows of what has ended.
        """
        self.stop_claiming()
        await self._slots.wait_idle(grace)
        self.hand_back("drained")
        await self._slots.wait_idle(None)
        if self._slots.access.available:
            async with self._slots.claim_turn:  # what a claim on its way brings goes back now, not when our lease ends
                pass
        await self._wait_flushed(left)
        self._events.emit(Drained(worker_id=self.worker_id, released=self._flusher.released))

    def stop_claiming(self) -> None:
        self._slots.stop_claiming()

    def hand_back(self, reason: str) -> None:
        """Ask all that runs to stop, and run nothing more, also not what a claim in flight still brings."""
        self._slots.stop_claiming()
        self._slots.handing_back = reason
        for attempt in list(self.running.values()):
            attempt.ask("shutdown", Released(reason))

    async def close(self) -> None:
        """Let go of everything. What still runs is left to the process's end."""
        self._gather.remove()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._doorbell.stop()
        self._slots.access.close()
        self._attempts.close()

    @property
    def running(self) -> dict[str, Attempt]:
        return self._slots.running

    @property
    def idle(self) -> bool:
        return not self.running and self._slots.backlog.empty()

    @property
    def unstored(self) -> int:
        """How many outcomes the store has not confirmed."""
        return self._slots.backlog.unstored()

    async def _wait_flushed(self, left: Callable[[], bool]) -> None:
        slots, backlog = self._slots, self._slots.backlog
        leave_at = inf
        while not backlog.empty():
            now = self._loop.time()
            held = not backlog  # all that is left: rows in a transaction that may be open for ever
            leave_at = min(leave_at, now + SETTLE_SECONDS) if held or (left() and slots.access.fails("write")) else inf
            if now >= leave_at:
                return
            slots.idle.clear()
            await woken(slots.idle, LOOK_SECONDS)

    def _die_loudly(self, task: asyncio.Task[None]) -> None:
        """One of the worker's own parts must never end by itself: a silent stop is the worst it could do."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._gather.remove()
            self._loop.call_exception_handler(
                {"message": f"tenure: {task.get_name()} failed; this worker can't go on", "exception": error}
            )
            self._loop.stop()


def run_loop(serve: Coroutine[object, object, T]) -> T:
    """Like asyncio.run, but a handler's own task that calls sys.exit() ends itself and not its worker."""
    runner = asyncio.Runner()
    serving = runner.get_loop().create_task(serve)
    while True:
        try:
            result = runner.get_loop().run_until_complete(serving)
        except (SystemExit, KeyboardInterrupt) as stray:
            if serving.done():
                raise
            logging.getLogger("tenure.worker").error("a task that a handler started ended with %r", stray)
        else:
            runner.close()  # only now: on a failure it would wait for handlers, and for threads that never end
            return result
