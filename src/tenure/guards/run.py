"""One run of a guard under its lease: how it begins, is kept alive, and is written down. `guard.py` and `command.py`
run functions and commands in it.

Life of a run:

1. `begin` registers a worker of its own, takes back what a dead guard before it left, and starts the run in one
   guarded write; or it says why not. Nobody clears a lock for somebody else: it is proved that its process is gone,
   or its lease has ended by the store's clock.
2. A heartbeat renews the lease for as long as the code runs, and hears of cancels. What can't be renewed is asked to
   stop at two thirds of the lease, counted from when the last renewal that landed was *sent*.
3. `end` records the outcome under the lease, writes the tick down, and lets go. The code runs outside any transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import random
from time import sleep

from tenure.config import Settings, valid_name
from tenure.core.clock import system_clock
from tenure.core.durations import Duration, spell
from tenure.core.ids import new_id
from tenure.core.lifecycle import GUARD, Cancelled, Completed, Failed, Lease, Outcome
from tenure.errors import LeaseLost, StoreAway, StoreError
from tenure.guards.begin import Begun, try_to_begin
from tenure.guards.progress import Unstored
from tenure.guards.stop import Stop, Stopping
from tenure.liveness.duty import Duty
from tenure.liveness.holder import RETRY_SECONDS, LeaseHolder, Renewal, identity
from tenure.ports import Busy, Landed, Notifier, Progress, Store
from tenure.ports.schedules import Change, Schedule, Standing
from tenure.schedules.cron import rule
from tenure.schedules.plan import Plan

Open = Callable[[], tuple[Store, Notifier, Settings]]

PATIENCE = 30.0  #: seconds to try for, when the store is out of reach at the start
_TRIES = 50
_NEVER = float("inf")
_log = logging.getLogger("tenure.guard")


def declared(name: str, *, every: Duration | None = None, cron: str | None = None, tz: str = "UTC") -> Schedule:
    """The schedule that a guard with this rule declares. Raises InvalidOption."""
    spec = rule(cron, every=every, tz=tz)
    return Schedule(name=valid_name(name, "guard"), rule=str(spec), tz=tz, kind="guard")


def _nothing(*_: object) -> None:
    """Nobody listens."""


class GuardedRun:
    """One run, from `begin` to `end`, and the heartbeat that keeps its lease. `on_asked`: `stopping` says why.

    `on_renewed` hears of each renewal that landed. Both are called in the heartbeat's thread.
    """

    def __init__(
        self,
        schedule: Schedule,
        open_store: Open,
        *,
        force: bool = False,
        timeout: float | None = None,
        on_renewed: Callable[[Renewal], None] = _nothing,
        on_asked: Callable[[], None] = _nothing,
    ) -> None:
        self._schedule, self._open, self._force, self._timeout = schedule, open_store, force, timeout
        self._on_renewed = on_renewed
        self._boot = system_clock().boot
        self._opened: tuple[Store, Notifier, Settings] | None = None
        self._holder: LeaseHolder | None = None
        self._job_id = ""
        self._begun: Begun | None = None
        self.stop = Stop(on_asked)
        self._unstored = Unstored()
        self._heart: Duty | None = None
        self._beat_at = 0.0
        self._heart_failed = ""  # of what, the last time

    @property
    def name(self) -> str:
        return self._schedule.name

    @property
    def store(self) -> Store:
        assert self._opened is not None, "begin() opens it"
        return self._opened[0]

    @property
    def settings(self) -> Settings:
        assert self._opened is not None, "begin() opens it"
        return self._opened[2]

    @property
    def holder(self) -> LeaseHolder:
        assert self._holder is not None, "begin() registers it"
        return self._holder

    @property
    def lease(self) -> Lease:
        return Lease(self._job_id, 1, self.holder.id)

    @property
    def began(self) -> bool:
        return self._heart is not None

    @property
    def begun(self) -> Begun:
        assert self._begun is not None, "begin() begins it"
        return self._begun

    # ── beginning ──

    def begin(self) -> None:
        """Start it. Raises GuardSkipped when it may not run, StoreAway when the store was out of reach for 30 s."""
        deadline = self._boot() + PATIENCE
        try:
            while (why := self._tried()) is not None:
                if self._boot() > deadline:
                    raise StoreAway(f"{self.name}: the store was out of reach for {spell(PATIENCE)}: {why}")
        except BaseException:
            self._leave()
            raise
        if self._timeout is not None:
            self.stop.timeout_at = self._boot() + self._timeout
        self._beat_at = self.holder.landed.next_at
        self._on_renewed(self.holder.landed)
        self._heart = Duty("tenure-guard", self._beat, failed=self._failed)
        self._heart.start()

    def _tried(self) -> str | None:
        """Why it has not begun yet; None: it has."""
        try:
            if self._opened is None:
                self._opened = self._open()
            self._live()
            self._begun = try_to_begin(self.store, self._schedule, self.holder.worker, self._job_id, force=self._force)
        except StoreAway as away:
            sleep(min(RETRY_SECONDS, PATIENCE / 10))
            return str(away)
        if self._begun is None:
            sleep(0.02 * random())
            return "others wrote first, again and again"
        return None

    def _live(self) -> None:
        """Have a row that lives. After a long outage that is a new one."""
        holder = self._holder
        if holder is not None and (self._boot() < holder.landed.next_at or holder.renew()):
            return
        row = identity("guard", (GUARD,), (self.name,), 1, self.settings.lease)
        holder = LeaseHolder(self.store, row, system_clock())
        holder.register()
        self._holder, self._job_id = holder, new_id()

    # ── while it runs ──

    @property
    def stopping(self) -> Stopping | None:
        """Why the code is asked to stop, or None."""
        self._look()
        return self.stop.reason

    def _look(self) -> None:
        if self.holder.must_stop:
            self.stop.ask("lease_lost", "its lease could not be renewed")
        if self._boot() >= self.stop.timeout_at:
            self.stop.ask("timeout")

    def _beat(self) -> float:
        """Everything that is due now; the seconds until something else is."""
        if self.stop.timeout_at <= self._boot():
            self._look()
            self.stop.timeout_at = _NEVER
        if self._unstored.due_at <= self._boot():
            self._done(self.store_report)
        if self._beat_at <= self._boot():
            pause = self.holder.pause(landed=self._done(self._renew))
            self._beat_at = self._boot() + pause
            self._look()
        if self.stop.dead and self._heart is not None:
            self._heart.stop()
        next_at = min(self._beat_at, self._unstored.due_at, self.stop.timeout_at, self._boot() + 3600.0)
        return max(0.0, next_at - self._boot())

    def _done(self, duty: Callable[[], None]) -> bool:
        """A heart that ended silently would never ask the code to stop. What fails is tried again, and told once."""
        try:
            duty()
        except (StoreError, LeaseLost):
            return False
        except Exception as error:
            if repr(error) != self._heart_failed:
                self._heart_failed = repr(error)
                _log.critical("%s: its heartbeat has failed, and is tried again", self.name, exc_info=True)
            return False
        return True

    def _failed(self, error: BaseException) -> None:
        _log.critical("%s: its heartbeat has ended", self.name, exc_info=error)

    def _renew(self) -> None:
        ask_at, alive = self.holder.landed.ask_at, self.holder.renew()
        if self._boot() >= ask_at:  # a renewal that lands too late does not undo that it was late
            self.stop.ask("lease_lost", "its lease could not be renewed")
        if not alive:
            self.stop.lose("it was declared dead")
            return
        self._on_renewed(self.holder.landed)
        with suppress(StoreError):
            held = next((each for each in self.store.owned(self.holder.id) if each.claimed.id == self._job_id), None)
            if held is None:
                self.stop.lose("somebody else has ended it")
            elif held.cancel_reason is not None:
                self.stop.ask("cancel", held.cancel_reason)

    # ── what a Job asks of it ──

    def report(self, news: Progress) -> None:
        self._unstored.add(news)
        if self._heart is not None:
            self._heart.wake()

    def store_report(self) -> None:
        """Store the newest word now. Raises LeaseLost when it is refused."""
        report = self._unstored.take(self._boot())
        if report is None:
            return
        try:
            landed = self.store.progress([report])[0]
        except StoreError:
            self._unstored.put_back(report)
            raise
        if not landed:
            self.stop.lose("its progress was refused")
            raise LeaseLost(f"{self.name}, job {self._job_id}")

    # ── ending ──

    def outcome(self, error: BaseException | None, failed: Callable[[], str]) -> Outcome:
        """How it ended: what it was asked to stop for counts more than what came of it."""
        match self.stopping:
            case "timeout":
                return Failed(f"timed out after {spell(self._timeout or 0.0)}", final=True)
            case "lease_lost":
                return Failed(f"stopped: {self.stop.why}", final=True)
            case "cancel" if error is not None:
                return Cancelled(self.stop.why)
            case _:
                return Completed() if error is None else Failed(failed(), final=True)

    def end(self, outcome: Outcome, output: str = "") -> bool:
        """Record how it ended; False: it was no longer ours, somebody else writes down what became of it."""
        landed = False
        try:
            self.stop.end()
            while not landed and not self.stop.dead and not self.holder.over:
                try:
                    landed = self._recorded(outcome, output)
                    break
                except StoreAway:
                    sleep(min(RETRY_SECONDS, self.settings.lease / 10))
        finally:
            self._leave()
        if not landed:
            self.stop.why = self.stop.why or "it could not be recorded how it ended"
        return landed

    def _recorded(self, outcome: Outcome, output: str) -> bool:
        with suppress(LeaseLost):
            self.store_report()
        if output:  # before the end: whoever sees that first may write the tick down
            self._write(partial(_with_output, job_id=self._job_id, output=output))
        answer = self.store.finish([(self.lease, outcome)])[0]
        if isinstance(answer, Busy):
            raise StoreAway("somebody's transaction holds the job")
        if isinstance(answer, Landed):
            self._write(lambda standing: Plan(standing, self.store.now()).close(self.store.attempts).change())
        return isinstance(answer, Landed)

    def _write(self, decide: Callable[[Standing], Change | None]) -> None:
        """Read, decide, compare and write; again while others were first."""
        for _ in range(_TRIES):
            found = self.store.schedules([self.name])
            change = decide(found[0]) if found else None
            if change is None or self.store.change([change])[0]:
                return
            sleep(0.01 * random())
        _log.warning("%s: others change this schedule all the time; a supervisor writes its tick down", self.name)

    def _leave(self) -> None:
        """Let go of all it holds in this process, and of its row."""
        self.stop.end()
        if self._heart is not None:
            self._heart.stop()
            self._heart.thread.join()
        if self._opened is None:
            return
        store, notifier, _ = self._opened
        with suppress(StoreError):
            if self._holder is not None and not self._holder.over:
                store.declare_dead([self._holder.id])
        notifier.close()
        store.close()


def _with_output(standing: Standing, job_id: str, output: str) -> Change | None:
    tick = next((run.tick for run in standing.runs if run.tick.job_id == job_id), None)
    if tick is None or tick.output == output:
        return None
    return Change(schedule=standing.schedule, ticks=(replace(tick, output=output),))
