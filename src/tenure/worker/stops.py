"""Finds jobs that hang, and code that does not stop when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tenure.core.durations import spell
from tenure.core.lifecycle import Crashed, Outcome
from tenure.worker.caller import BLOCKED_SECONDS, CallersLoop
from tenure.worker.executor import Attempt
from tenure.worker.slots import Slots

STOP_SECONDS = 10.0  #: from being asked to stop to being stuck
TICK_SECONDS = 0.25


class StopWatch:
    """Checks all running attempts four times a second.

    `on_stuck` is called once, with the verdicts of the attempts that did not stop.
    """

    def __init__(
        self,
        slots: Slots,
        on_tick: Callable[[], None],
        on_stuck: Callable[[dict[str, Outcome]], None] | None,
        caller: CallersLoop | None,
    ) -> None:
        self._slots, self._on_tick, self._on_stuck, self._caller = slots, on_tick, on_stuck, caller
        self._stuck_since = 0.0
        self._reported = False

    async def run(self) -> None:
        before = self._slots.loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._on_tick()
            before, elapsed = (now := self._slots.loop.time()), self._slots.loop.time() - before
            blocked = elapsed - TICK_SECONDS if self._caller is None else self._look_at(self._caller, elapsed)
            stuck = list[Attempt]()
            for attempt in list(self._slots.running.values()):
                limit = attempt.claimed.stale_after
                if limit is not None:
                    attempt.active += blocked  # it could not report while other code blocked the loop
                if limit is not None and now - attempt.active > limit:
                    attempt.request_stop("timeout", Crashed(f"hung: no progress for {spell(limit)}", at_fault=True))
                if attempt.stop_requested_at is not None and now - attempt.stop_requested_at > STOP_SECONDS:
                    stuck.append(attempt)
            if self._on_stuck is not None:
                self._judge(stuck, now, self._on_stuck)

    def _look_at(self, caller: CallersLoop, elapsed: float) -> float:
        """For how long of the elapsed time the caller's loop was blocked. A blocked loop is given no new jobs."""
        slots, blocked = self._slots, caller.silent > BLOCKED_SECONDS
        if caller.closed:
            for attempt in list(slots.running.values()):
                attempt.release_unrunnable()
        if slots.stuck and not blocked:
            slots.wake.set()
        slots.stuck = blocked
        return elapsed if caller.silent > TICK_SECONDS else 0.0

    def _judge(self, stuck: list[Attempt], now: float, on_stuck: Callable[[dict[str, Outcome]], None]) -> None:
        slots = self._slots
        if not stuck:
            if slots.stuck:  # the code stopped after all, and this process was not killed: continue
                slots.stuck = self._reported = False
                slots.wake.set()
            return
        if not slots.stuck:
            slots.stuck, self._stuck_since = True, now
        lost = any(attempt.stopping == "lease_lost" for attempt in stuck)
        neighbours = len(slots.running) - len(stuck) + slots.backlog.unstored()
        if not self._reported and (not neighbours or lost or now - self._stuck_since > slots.plan.grace):
            self._reported = True
            on_stuck({attempt.claimed.id: attempt.verdict for attempt in stuck if attempt.verdict is not None})
