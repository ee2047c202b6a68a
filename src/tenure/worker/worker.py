"""A worker: slots, claims, beats and flushes on one event loop, inside a process of its own or of somebody else.

Life of one job here:

1. A ring, a freed slot or the poll wakes the claim loop. It claims for free slots only, in one batch.
2. Each claimed job becomes an `Attempt` (executor.py). A task we don't know is snoozed, an expired one cancelled.
3. Its code stops, with an outcome, and frees the slot. The outcome joins the next flush: the flush in flight gathers
   the one after it, so a thousand outcomes may cost one commit. Never more than that, nor for longer than 50 ms,
   run ahead of the store; then slots wait.
4. The beat reads what the store holds in our name, while no claim of ours is in flight, and settles the difference:
   ours no more: stop the code; ours, but unknown here: a reply was lost, run it; a cancel asked: stop it.
5. Code that was asked to stop and did not within 10 s makes the worker *stuck*: it claims nothing more, gives its
   other jobs the drain grace, and asks its supervisor to kill it. Only then does that attempt end in the store.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import attrgetter
from random import random
from time import monotonic
from typing import Literal, NamedTuple, TypeVar

from tenure.config import Settings
from tenure.core.durations import spell
from tenure.core.lifecycle import (
    Cancelled,
    Completed,
    Crashed,
    Failed,
    Lease,
    Outcome,
    Released,
    Snoozed,
    State,
    outcome_name,
)
from tenure.core.text import clean
from tenure.errors import BadData, LeaseLost, StoreError
from tenure.events import (
    RESCUE_REASONS,
    AttemptFailed,
    Drained,
    Events,
    JobDied,
    JobRescued,
    LeaseRefused,
    NotifierBack,
    NotifierDegraded,
    Running,
    StoreAway,
    StoreBack,
)
from tenure.ports import (
    ANY,
    Answer,
    Busy,
    Claimed,
    Landed,
    Listener,
    Notifier,
    NotLanded,
    Progress,
    Ring,
    Runner,
    Store,
)
from tenure.worker.executor import MAX_ERROR, Attempt
from tenure.worker.job_log import Gather
from tenure.worker.permits import BACK_SOON_SECONDS, PAUSED_SECONDS, Hand, Looked
from tenure.worker.program import Program
from tenure.worker.tally import Tally

T = TypeVar("T")
_Duty = Literal["claim", "store", "beat"]

_QUEUE, _TASK = attrgetter("queue"), attrgetter("claimed.task")
STOP_SECONDS = 10.0  #: from being asked to stop to being stuck
MAX_UNFLUSHED = 1000
MAX_UNFLUSHED_SECONDS = 0.05
MANY_SLOTS = 128
PROGRESS_SECONDS = 0.5
MAX_REFUSAL = 500  # characters that tell of a refused write
TICK_SECONDS = 0.25
RETRY_SECONDS = 1.0
ANY_SECONDS = 1.0
SETTLE_SECONDS = 5.0  #: left, and nothing runs: how long the store may still be away
HOLD_SECONDS = 1.0  #: how long permits may wait in hand for a slot
DEAF_SECONDS = 1.0  #: between two polls while the notifier is down
FULL_SECONDS = 0.01  #: so long permits may take to come before a poll that came back full comes again


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a worker works: which queues with which caps, how many slots, and its timers in seconds."""

    worker_id: str
    runner: Runner
    queues: Mapping[str, int | None]
    slots: int
    lease: float
    poll_interval: float
    grace: float


def queue_caps(program: Program, settings: Settings, asked: Sequence[str] | None = None) -> dict[str, int | None]:
    """The queues asked for, else those of the settings, else all that the tasks name; with their caps."""
    if asked is not None:
        return dict.fromkeys(asked)
    return dict(settings.queues) or dict.fromkeys(sorted({task.queue for task in program.tasks}))


class End(NamedTuple):
    """How an attempt ended, on its way to the store. `outcome` None: there is nothing left to write."""

    lease: Lease
    claimed: Claimed
    outcome: Outcome | None
    attempt: Attempt | None  #: None: it was never started


class Worker:
    """Runs jobs on the running event loop until it is drained or stuck.

    `on_due` is called when a ring tells of a job due later (whoever promotes should look), `on_tick` four times a
    second, `on_stuck` once, with the verdicts of the attempts whose code did not stop. Without an `on_stuck` nobody may
    be killed here: such code keeps its slot until it ends.
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
        self.program = program
        self.store = store
        self.worker_id = plan.worker_id
        self.resources = resources
        self.running: dict[str, Attempt] = {}
        self._notifier = notifier
        self._events = events
        self._on_due, self._on_tick, self._on_stuck = on_due, on_tick, on_stuck
        self._may_declare = may_declare
        self._loop = asyncio.get_running_loop()
        self._wants = list(plan.queues)
        self._capped = any(cap is not None for cap in plan.queues.values())
        self._alone = False  # an embedded worker holds one job that must run alone
        # Half the slots run while the store hands out the other half; few slots are not worth a second trip.
        self._most_at_once = plan.slots if plan.slots < MANY_SLOTS else plan.slots // 2
        self._claiming = True
        self._dry = False
        self._handing_back = ""
        self._claim_wake = asyncio.Event()
        self._claim_turn = asyncio.Lock()
        self._beat_wake = asyncio.Event()
        self._flush_wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._ends: list[End] = []
        self._flushing: list[End] = []
        self._held: dict[Lease, End] = {}  # somebody's open transaction holds their rows: they wait aside
        self._oldest_end = 0.0
        self._flushed_since_read: set[Lease] | None = None
        self._read_at = 0.0
        self._poll_now = False
        self._waiting_for_old: dict[str, Claimed] = {}
        self._asked: dict[Attempt, float] = {}
        self._stuck_since: float | None = None
        self._told_stuck = False
        self._reported: set[Attempt] = set()
        self._telling: set[Attempt] = set()  # of those reported, who is on the way to the store
        self._storing = threading.Lock()
        self._away_since: float | None = None
        self._failing: set[_Duty] = set()
        self._released = 0
        self._tally = tally or Tally()
        self._begun: dict[str, float] = {}
        self._durations: defaultdict[str, list[float]] = defaultdict(list)  # by task; floats are no work for the gc
        # Threads of our own, so that a handler that fills the loop's default pool can't hold up claims or outcomes.
        self._claims = ThreadPoolExecutor(1, "tenure-claims")
        self._writes = ThreadPoolExecutor(1, "tenure-writes")
        self._pool = ThreadPoolExecutor(plan.slots + 1, "tenure-job")
        self._asides = ThreadPoolExecutor(1, "tenure-asides")  # what nobody waits for
        self._gather = Gather(self._logs)
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: Listener | None = None
        self._hand: Hand | None = None  # None: the notifier is a doorbell and deals out no permits
        self._deaf_since: float | None = None
        self._problem = ""

    # ── life ──

    def start(self) -> None:
        """Begin to claim. Needs the worker's row to be registered."""
        self._watch_notifier()
        self._listener = self._notifier.listen()
        claiming = self._claim_loop
        if self._listener.permits is not None and self.plan.runner != "solo":
            # Which jobs must run alone no message says: those who run them hear the rings, and hold no permits.
            plan, permits = self.plan, self._listener.permits
            self._hand = Hand(permits, self.store, plan.worker_id, plan.lease, self._may_declare)
            claiming = partial(self._permit_loop, self._hand)
        fileno = self._listener.fileno()
        if fileno is not None:
            self._loop.add_reader(fileno, self._hear)
        loops = (self._flush_loop, self._progress_loop, self._beat_loop, self._tick_loop)
        self._tasks = [self._loop.create_task(each(), name=each.__name__) for each in loops]
        self._tasks.append(self._loop.create_task(claiming(), name="_claim_loop"))
        self._tasks.append(self._loop.create_task(self._look_loop(self._listener), name="look"))
        for task in self._tasks:
            task.add_done_callback(self._die_loudly)
        self._gather.install()

    async def drain(self, grace: float, *, left: Callable[[], bool] = lambda: False) -> None:
        """Claim nothing more, wait for what runs, then ask it to stop. Returns when nothing runs, or when stuck.

        `left`: has its block been left? Then a store that is away is waited for `SETTLE_SECONDS`, and no longer.
        """
        self.stop_claiming()
        await self._wait_idle(grace)
        self.hand_back("drained")
        await self._wait_idle(None)
        if self._away_since is None:
            async with self._claim_turn:  # what a claim on its way brings goes back now, not when our lease ends
                pass
        await self._wait_flushed(left)
        self._events.emit(Drained(worker_id=self.worker_id, released=self._released))

    def stop_claiming(self) -> None:
        self._claiming = False
        self._claim_wake.set()  # permits that wait for a slot go back

    def hand_back(self, reason: str) -> None:
        """Ask all that runs to stop, and run nothing more, also not what a claim in flight still brings."""
        self.stop_claiming()
        self._handing_back = reason
        for attempt in list(self.running.values()):
            attempt.ask("shutdown", Released(reason))

    async def close(self) -> None:
        """Let go of everything. What still runs is left to the process's end."""
        self._gather.remove()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            fileno = self._listener.fileno()
            if fileno is not None:
                self._loop.remove_reader(fileno)
            self._listener.close()
        for pool in (self._claims, self._writes, self._pool, self._asides):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def idle(self) -> bool:
        return not self.running and not self._ends and not self._flushing

    @property
    def unstored(self) -> int:
        """How many outcomes the store has not confirmed."""
        return sum(end.outcome is not None for end in (*self._flushing, *self._ends))

    async def _wait_idle(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self.running:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return

    async def _wait_flushed(self, left: Callable[[], bool]) -> None:
        leave_at = inf
        while self._ends or self._flushing:
            now = self._loop.time()
            leave_at = min(leave_at, now + SETTLE_SECONDS) if left() and "store" in self._failing else inf
            if now >= leave_at:
                return
            self._idle.clear()
            await self._sleep(self._idle, RETRY_SECONDS)

    async def _in(self, pool: ThreadPoolExecutor, call: Callable[..., T], *args: object) -> T:
        return await self._loop.run_in_executor(pool, call, *args)

    # ── hearing ──

    def _hear(self) -> None:
        assert self._listener is not None
        for ring in self._listener.drain():
            if ring == ANY:
                self._on_due()
                self._poll_now = True
                self._claim_wake.set()
                if self._loop.time() - self._read_at > ANY_SECONDS:  # a cancel may have rung unheard
                    self._beat_wake.set()
            elif ring.kind == "queued" and ring.queue in self.plan.queues:
                if self._hand is None:
                    self._claim_wake.set()
                else:  # its permits come by themselves, unless it was paused until now
                    self._hand.forget_pauses()
            elif ring.kind == "due":
                self._on_due()
            elif ring.kind == "cancel":
                self._beat_wake.set()
        if self._hand is not None and self._hand.take():
            self._claim_wake.set()

    async def _look_loop(self, listener: Listener) -> None:
        while True:
            await asyncio.sleep(listener.interval)
            self._hear()
            self._watch_notifier()

    def _watch_notifier(self) -> None:
        problem = self._notifier.problem()
        if problem == self._problem:
            return
        if not problem:
            self._events.emit(NotifierBack(seconds=self._loop.time() - (self._deaf_since or self._loop.time())))
            self._deaf_since = None
        elif self._deaf_since is None:
            self._events.emit(NotifierDegraded(problem=problem))
            self._deaf_since = self._loop.time()
            self._claim_wake.set()
        self._problem = problem

    # ── claiming ──

    def _free(self) -> int:
        if not self._claiming or self._alone or self._stuck_since is not None:
            return 0
        free = self.plan.slots - len(self.running) - len(self._waiting_for_old)
        unflushed = len(self._ends) + len(self._flushing)
        if unflushed >= MAX_UNFLUSHED:
            return 0
        if unflushed and self._loop.time() - self._oldest_end > MAX_UNFLUSHED_SECONDS:
            free -= unflushed
        return max(free, 0)

    def _wanted(self, free: int) -> dict[str, int]:
        if not self._capped:
            wants = dict.fromkeys(self._wants, free)
        else:
            held = [attempt.claimed.queue for attempt in self.running.values()]
            wants = {
                queue: free if (cap := self.plan.queues[queue]) is None else max(cap - held.count(queue), 0)
                for queue in self._wants
            }
        if len(self._wants) > 1:  # every queue comes first in its turn
            self._wants.append(self._wants.pop(0))
        return wants

    async def _claim_loop(self) -> None:
        wake, turn = self._claim_wake, self._claim_turn
        while True:
            wake.clear()
            self._dry = False
            limit = min(self._free(), self._most_at_once)
            if not limit:
                await wake.wait()  # a slot will free itself
                continue
            async with turn:
                claimed = await self._claim(limit)
            if len(claimed) < limit and "claim" not in self._failing:
                self._dry = not self._capped  # the queues are empty: a slot that frees itself is no news
                await self._sleep(wake, self._poll_seconds())

    def _poll_seconds(self) -> float:
        interval = self.plan.poll_interval
        return (interval if self._deaf_since is None else min(interval, DEAF_SECONDS)) * (0.8 + 0.4 * random())

    async def _permit_loop(self, hand: Hand) -> None:
        """There are two reasons to claim: permits in hand, and the poll, for what no message told of.

        A poll that came back full comes again at once, but for the moment that permits need to come first.
        """
        wake = self._claim_wake
        poll_at, full, hungry_at = 0.0, False, 0.0
        while True:
            wake.clear()
            free = self._free()
            limit = min(free, self._most_at_once)
            if not limit:  # a slot will free itself, and may want what is in hand
                hungry_at = 0.0
                if self._claiming and hand.unused and await self._woken(wake, HOLD_SECONDS):
                    continue
                hand.give_back(BACK_SOON_SECONDS if self._claiming else 0.0)
                await wake.wait()
                continue
            now = self._loop.time()
            if self._deaf_since is not None:
                poll_at = min(poll_at, now + DEAF_SECONDS)
            if self._poll_now:
                self._poll_now, poll_at = False, now
            if full and not hungry_at:
                hungry_at = now + (FULL_SECONDS if self._deaf_since is None else 0.0)
            try:
                if now >= poll_at or "claim" in self._failing or (not hand.unused and 0.0 < hungry_at <= now):
                    async with self._claim_turn:
                        claimed = await self._claim(limit)
                    full, hungry_at = len(claimed) == limit, 0.0
                    poll_at = self._loop.time() + self._poll_seconds()
                elif not hand.pauses_are_known:
                    await self._in(self._claims, hand.look_for_pauses)
                elif hand.unused:
                    hungry_at = 0.0
                    await self._use_permits(hand, limit)
                else:
                    hand.want(self._wanted(free), free)
                    due = min(poll_at, hungry_at or poll_at) - now
                    await self._sleep(wake, min(due, PAUSED_SECONDS))
            except StoreError as error:
                self._away("claim", error)
                hand.store_is_away()
                await asyncio.sleep(RETRY_SECONDS)

    async def _use_permits(self, hand: Hand, limit: int) -> None:
        again = hand.offer(self._wanted(limit))
        if again:
            looked = await self._in(self._claims, hand.look, again)
            hand.withdraw(looked.owned)
            self._tell_rescued(looked)
        wants = hand.wants
        if not wants:  # no room for these queues, or nothing but jobs that others run
            hand.give_back()
            return
        limit = min(limit, sum(wants.values()))
        async with self._claim_turn:
            claimed = await self._claim(limit, wants)
        if len(claimed) < limit:
            hand.nothing_left()
        else:
            hand.claimed_all()

    def _tell_rescued(self, looked: Looked) -> None:
        for each in (*looked.rescued, *looked.beside):
            self._events.emit(JobRescued(rescued=each))
            if each.state is State.SCHEDULED:
                self._notifier.announce([Ring("due", each.queue)])
            elif each.state is State.QUEUED and each in looked.beside:
                reason = f"Cleared: {RESCUE_REASONS[each.cause]}"
                self._notifier.announce([Ring("queued", each.queue, (each.id,), reason)])

    async def _claim(self, free: int, wants: dict[str, int] | None = None) -> list[Claimed]:
        solo = self.plan.runner == "solo"
        if wants is None:
            wants = self._wanted(free)
        try:
            if self.running or self._ends or not self.store.capabilities.local:
                claimed = await self._in(self._claims, self._ask_store, wants, free, solo)
            else:  # nothing runs that could be held up: two changes of threads less until the first job starts
                claimed = self._ask_store(wants, free, solo)
            if not claimed and self.plan.runner == "embedded" and not self.running:
                claimed = await self._in(self._claims, self._ask_store, self._wanted(1), 1, True)
                self._alone = bool(claimed)
        except StoreError as error:
            self._away("claim", error)
            if self._hand is not None:
                self._hand.store_is_away()
            await asyncio.sleep(RETRY_SECONDS)
            self._beat_wake.set()  # it may have been claimed all the same: only the store knows
            return []
        self._back("claim")
        if self._hand is not None:
            self._hand.bind(claimed)
        self._count_claims(claimed)
        for each in claimed:
            self._begin(each)
        return claimed

    def _count_claims(self, claimed: Iterable[Claimed]) -> None:
        found = Counter(map(_QUEUE, claimed))
        self._tally.count_all({("claims", queue): number for queue, number in found.items()})

    def _ask_store(self, wants: dict[str, int], limit: int, solo: bool) -> list[Claimed]:
        return self.store.claim(self.worker_id, wants, limit, solo=solo)

    def _begin(self, claimed: Claimed) -> None:
        old = self.running.get(claimed.id)
        if old is not None:  # the store lost a commit: never two of one job in one process
            self._waiting_for_old[claimed.id] = claimed
            old.ask("lease_lost", None)
            return
        task = self.program.tasks.find(claimed.task)
        if self._handing_back:
            self._refuse(claimed, Released(self._handing_back))
        elif task is None:
            tries = max(claimed.attempt - claimed.failures - claimed.crashes - 1, 0)
            delay = min(5.0 * 2.0 ** min(tries, 10), 300.0)
            self._refuse(claimed, Snoozed(delay, f"this worker knows no task {claimed.task!r}"))
        elif claimed.expired:
            self._refuse(claimed, Cancelled("it expired before a worker was free to start it"))
        else:
            attempt = Attempt(self, task, claimed, self._loop)
            self.running[claimed.id] = attempt
            self._begun[claimed.id] = monotonic()
            attempt.start(self.program, self._pool)

    def _refuse(self, claimed: Claimed, outcome: Outcome) -> None:
        """End a claimed job without running it."""
        self._alone = False
        self._push(End(Lease(claimed.id, claimed.attempt, self.worker_id), claimed, outcome, None))

    # ── what attempts tell us ──

    def ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        del self.running[attempt.claimed.id]
        self._durations[attempt.claimed.task].append(monotonic() - self._begun.pop(attempt.claimed.id))
        self._alone = False
        if self._asked:
            self._asked.pop(attempt, None)
        if self._waiting_for_old:
            successor = self._waiting_for_old.pop(attempt.claimed.id, None)
            if successor is not None:
                self._begin(successor)
        self._push(End(attempt.lease, attempt.claimed, outcome, attempt))

    def _push(self, end: End) -> None:
        if not self._ends and not self._flushing:
            self._oldest_end = self._loop.time()
        self._ends.append(end)
        self._flush_wake.set()
        if not self._dry:
            self._claim_wake.set()
        self._idle.set()

    def asked(self, attempt: Attempt) -> None:
        self._asked.setdefault(attempt, self._loop.time())

    def reported(self, attempt: Attempt) -> None:
        self._reported.add(attempt)

    def store_now(self, attempt: Attempt) -> None:
        with self._storing:
            report = attempt.take_report()
            if report is None:
                return
            try:
                landed = self._store_one(report)
            except StoreError:
                attempt.put_back(report)
                raise
        if not landed and not attempt.finished:
            self._tally.count("refused", attempt.claimed.task)
            self.refused(attempt.lease, "progress refused")
            self._loop.call_soon_threadsafe(attempt.ask, "lease_lost", None)
            raise LeaseLost(f"job {attempt.claimed.id}, attempt {attempt.claimed.attempt}")

    def refused(self, lease: Lease, why: str) -> None:
        with suppress(RuntimeError):  # closed meanwhile
            self._asides.submit(self._tell_refused, lease, clean(why, MAX_REFUSAL))

    def _tell_refused(self, lease: Lease, why: str) -> None:
        with suppress(StoreError):  # who looks into it later finds our log only
            self.store.refused([(lease, why)])

    def _logs(self, running: Running) -> Attempt | None:
        """The attempt whose code logs this, if it runs here. Called from any thread."""
        attempt = self.running.get(running.job_id)
        lease = Lease(running.job_id, running.attempt, running.worker_id)
        return attempt if attempt is not None and attempt.lease == lease else None

    # ── progress ──

    async def _progress_loop(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._reported:
                attempts = self._telling = self._reported.copy()  # in one step each: other threads add to it
                self._reported -= attempts
                try:
                    refused = await self._in(self._writes, self._store_progress, attempts)
                except StoreError as error:
                    self._away("store", error)
                    self._reported.update(attempts)
                else:
                    self._back("store")
                    for attempt in refused:
                        # Who has ended is told by the answer to its outcome, and asked nothing any more.
                        if not attempt.finished and self.running.get(attempt.claimed.id) is attempt:
                            self._tally.count("refused", attempt.claimed.task)
                            self.refused(attempt.lease, "progress refused")
                            attempt.ask("lease_lost", None)
                self._telling = set()

    def _store_progress(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Store the newest word of each; who was refused. On an error all are put back for the next time."""
        with self._storing:
            taken = [(attempt, report) for attempt in attempts if (report := attempt.take_report()) is not None]
            if not taken:
                return []
            try:
                landed = self._progress_halving([report for _, report in taken])
            except StoreError:
                for attempt, report in taken:
                    attempt.put_back(report)
                raise
        return [attempt for (attempt, _), yes in zip(taken, landed, strict=True) if not yes]

    def _progress_halving(self, reports: list[Progress]) -> list[bool]:
        try:
            return self.store.progress(reports) if len(reports) > 1 else [self._store_one(reports[0])]
        except BadData:
            if len(reports) == 1:  # nothing of it can be kept; the attempt goes on
                return [True]
            half = len(reports) // 2
            return self._progress_halving(reports[:half]) + self._progress_halving(reports[half:])

    def _store_one(self, report: Progress) -> bool:
        """A log that can't be kept takes nothing else of the report with it."""
        try:
            return self.store.progress([report])[0]
        except BadData:
            if report.log is None:
                raise
            return self.store.progress([replace(report, log=None)])[0]

    # ── flushing ──

    async def _flush_loop(self) -> None:
        while True:
            await self._flush_wake.wait()
            self._flush_wake.clear()
            while self._ends:
                self._flushing, self._ends = self._ends[:MAX_UNFLUSHED], self._ends[MAX_UNFLUSHED:]
                self._oldest_end = self._loop.time()
                await self._flush(self._flushing)
                if self._flushed_since_read is not None:
                    self._flushed_since_read.update(end.lease for end in self._flushing)
                self._flushing = []
                if not self._dry:
                    self._claim_wake.set()
            self._idle.set()

    async def _flush(self, batch: list[End]) -> None:
        last_words = set[Attempt]()
        ends = [end for end in batch if end.outcome is not None]
        while True:
            try:
                for unstored in (self._reported, self._telling):  # what is being told right now may fail
                    if unstored:
                        last_words |= {end.attempt for end in batch if end.attempt in unstored}
                self._reported -= last_words
                if last_words:
                    await self._in(self._writes, self._store_progress, last_words)
                answers = await self._in(self._writes, self._finish, ends)
            except StoreError as error:
                self._away("store", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        self._back("store")
        odd: list[tuple[End, Answer]] = []
        held: list[End] = []
        for end, answer in zip(ends, answers, strict=True):
            if isinstance(answer, Busy):
                held.append(end)
            elif type(end.outcome) is not Completed or type(answer) is NotLanded:
                odd.append((end, answer))
        self._count_ends(ends, [end for end, _ in odd] + held)
        rings = set[Ring]()
        for end, answer in odd:
            self._tell(end, answer)
            if type(answer) is Landed and answer.state is State.QUEUED:
                rings.add(Ring("queued", end.claimed.queue, (end.claimed.id,)))
            elif type(answer) is Landed and answer.state is State.SCHEDULED:
                rings.add(Ring("due", end.claimed.queue))
        if rings:
            self._notifier.announce(rings)
        if held:
            self._held.update((end.lease, end) for end in held)
            self._loop.call_later(RETRY_SECONDS, self._push_held)
        if self._hand is not None:
            self._hand.done(end.lease for end in batch if end.lease not in self._held)

    def _push_held(self) -> None:
        """Once more: whoever held their rows may have let go."""
        held, self._held = self._held, {}
        for end in held.values():
            self._push(end)

    def _count_ends(self, ends: list[End], odd: list[End]) -> None:
        """All durations, and all outcomes but the odd ones: `_tell` counts those one by one."""
        durations, self._durations = self._durations, defaultdict(list)
        for task, found in durations.items():
            self._tally.time_all("attempt", task, found)
        completed = Counter(map(_TASK, ends)) - Counter(map(_TASK, odd))
        self._tally.count_all({("outcomes", task, "completed"): number for task, number in completed.items()})

    def _finish(self, ends: list[End]) -> list[Answer | Busy]:
        if not ends:
            return []
        try:
            return self.store.finish([(end.lease, end.outcome) for end in ends if end.outcome is not None])
        except BadData as error:
            if len(ends) == 1:  # the culprit stands alone
                instead = Failed(clean(f"its outcome can't be stored: {error}", MAX_ERROR))
                return self.store.finish([(ends[0].lease, instead)])
            half = len(ends) // 2
            return self._finish(ends[:half]) + self._finish(ends[half:])

    def _tell(self, end: End, answer: Answer) -> None:
        job, outcome = end.claimed, end.outcome
        about = Running(job.id, job.task, job.queue, job.attempt, self.worker_id)._asdict()
        if isinstance(answer, NotLanded):
            if end.attempt is None or not end.attempt.finished:
                self._events.emit(LeaseRefused(**about, stands=answer.stands))
                if outcome is not None:
                    self.refused(end.lease, f"{outcome_name(outcome)} refused: {answer.stands}")
            else:  # it completed before, in its own transaction
                self._tally.count("outcomes", job.task, "completed")
            return
        if outcome is not None:
            self._tally.count("outcomes", job.task, outcome_name(outcome))
        if isinstance(outcome, Released):
            self._released += 1
        elif isinstance(outcome, Failed | Crashed):
            error = outcome.error if isinstance(outcome, Failed) else outcome.reason
            if answer.state is State.DEAD:
                self._events.emit(JobDied(**about, error=error))
            elif isinstance(outcome, Failed):
                self._events.emit(AttemptFailed(**about, error=error, failures=job.failures + 1))

    # ── the beat ──

    async def _beat_loop(self) -> None:
        while True:
            await self._sleep(self._beat_wake, self.plan.lease / 3)
            self._beat_wake.clear()
            try:
                await self._settle_owned()
            except StoreError as error:
                self._away("beat", error)
                await asyncio.sleep(RETRY_SECONDS)
                self._beat_wake.set()
            else:
                self._back("beat")
                if not self._free():  # nothing is claimed that could tell
                    self._back("claim")

    async def _settle_owned(self) -> None:
        async with self._claim_turn:  # with a claim in flight, its jobs would be there and not here
            self._read_at = self._loop.time()
            ended_meanwhile = self._flushed_since_read = set[Lease]()
            try:
                owned = await self._in(self._claims, self.store.owned, self.worker_id)
            finally:
                self._flushed_since_read = None
            unflushed = {end.lease for end in (*self._flushing, *self._ends)} | self._held.keys() | ended_meanwhile
            there = {Lease(each.claimed.id, each.claimed.attempt, self.worker_id): each for each in owned}
            for attempt in list(self.running.values()):
                held = there.pop(attempt.lease, None)
                if held is None and attempt.finished:
                    continue  # its outcome has committed with its own transaction; its code may still tidy up
                if held is None:
                    attempt.ask("lease_lost", None)
                elif held.cancel_reason is not None:
                    attempt.ask("cancel", Cancelled(clean(held.cancel_reason, MAX_ERROR)))
            for lease, held in there.items():
                if lease not in unflushed and held.claimed.id not in self._waiting_for_old:
                    self._count_claims([held.claimed])
                    self._begin(held.claimed)

    # ── hangs, and code that does not stop ──

    async def _tick_loop(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._on_tick()
            now = self._loop.time()
            for attempt in list(self.running.values()):
                limit = attempt.claimed.stale_after
                if limit is not None and now - attempt.active > limit:
                    attempt.ask("timeout", Crashed(f"hung: no progress for {spell(limit)}"))
            if self._on_stuck is not None and (self._asked or self._stuck_since is not None):
                self._watch_asked(now, self._on_stuck)

    def _watch_asked(self, now: float, on_stuck: Callable[[dict[str, Outcome]], None]) -> None:
        stuck = [attempt for attempt, since in self._asked.items() if now - since > STOP_SECONDS]
        if not stuck:
            if self._stuck_since is not None:  # it has stopped after all, and nobody killed us: go on
                self._stuck_since, self._told_stuck = None, False
                self._claim_wake.set()
            return
        if self._stuck_since is None:
            self._stuck_since = now
        lost = any(attempt.stopping == "lease_lost" for attempt in stuck)
        neighbours = len(self.running) - len(stuck) + len(self._ends) + len(self._flushing)
        if not self._told_stuck and (not neighbours or lost or now - self._stuck_since > self.plan.grace):
            self._told_stuck = True
            verdicts = {attempt.claimed.id: attempt.verdict for attempt in stuck if attempt.verdict is not None}
            on_stuck(verdicts)

    # ── small things ──

    async def _woken(self, wake: asyncio.Event, seconds: float) -> bool:
        timer = self._loop.call_later(seconds, wake.set)
        await wake.wait()
        timer.cancel()
        return self._loop.time() < timer.when()

    async def _sleep(self, wake: asyncio.Event, seconds: float) -> None:
        timer = self._loop.call_later(seconds, wake.set)
        try:
            await wake.wait()
        finally:
            timer.cancel()

    def _away(self, duty: _Duty, error: StoreError) -> None:
        self._failing.add(duty)
        if self._away_since is None:
            self._away_since = self._loop.time()
            self._events.emit(StoreAway(error=str(error)))

    def _back(self, duty: _Duty) -> None:
        """What failed works again. Another duty that works tells nothing: a full disk can be read."""
        self._failing.discard(duty)
        if self._away_since is not None and not self._failing:
            self._events.emit(StoreBack(seconds=self._loop.time() - self._away_since))
            self._away_since = None

    def _die_loudly(self, task: asyncio.Task[None]) -> None:
        """One of the worker's own loops must never end by itself: a silent stop is the worst it could do."""
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
