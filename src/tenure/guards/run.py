"""One run of a guard under its lease: how it begins, is kept alive, and is recorded. `guard.py` runs functions in it,
`command.py` and `command_run.py` commands.

Life of a run:

1. `begin` registers a worker of its own, rescues a run that a dead guard left, and starts the new run in one
   compare-and-set write; or it raises why not. A lock is never just cleared: either its owner's process is provably
   gone, or its lease has ended by the store's clock.
2. A heartbeat renews the lease while the code runs, and checks for cancels. If the lease can't be renewed, the code is
   asked to stop at two thirds of it, counted from when the last successful renewal was *sent*.
3. `end` records the outcome under the lease and the tick, and releases the lock. The code runs outside any transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import random
from time import sleep
from typing import TypedDict, Unpack

from tenure.config import Settings, valid_name
from tenure.core.clock import system_clock
from tenure.core.durations import Duration, spell
from tenure.core.ids import new_id
from tenure.core.lifecycle import GUARD, Cancelled, Completed, Failed, Lease, Outcome
from tenure.core.logs import logger
from tenure.errors import InvalidOption, LeaseLost, StoreAway, StoreError
from tenure.guards.begin import Begun, try_to_begin
from tenure.guards.progress import Unstored
from tenure.guards.stop import Stop, Stopping
from tenure.maintenance.duty import Duty
from tenure.maintenance.holder import RETRY_SECONDS, LeaseHolder, Renewal, identity
from tenure.ports import Busy, Landed, Notifier, Progress, Store
from tenure.ports.schedules import Change, Schedule, Standing
from tenure.schedules.declarations import Options, schedule
from tenure.schedules.plan import Plan

Open = Callable[[], tuple[Store, Notifier, Settings]]

PATIENCE = 30.0  #: how many seconds `begin` retries while the store is unavailable
ALERT_AFTER = 1  #: failures in a row, until an alert: a command has no retries, and the next call may be a day away
_TRIES = 50
_NEVER = float("inf")
_log = logger("tenure.guard")


class GuardRule(TypedDict, total=False):
    """When a guard's code may run, and what is alerted on. None means the default."""

    every: Duration | None
    cron: str | None
    tz: str  #: of `cron`: UTC
    alert_after: int | None  #: alert after this many failures in a row: 1
    overdue_after: Duration | None  #: alert when no call has come this long after its time: 5 minutes
    too_long: Duration | None  #: alert on a run that takes longer; default: one that still runs at its next two ticks


def declared(name: str, **rule: Unpack[GuardRule]) -> Schedule:
    """The schedule that a guard with this rule declares. Raises InvalidOption."""
    every, alert_after = rule.get("every"), rule.get("alert_after")
    if alert_after == 0:
        raise InvalidOption("alert_after: expected a whole number from 1 to 10,000, got 0")
    options = Options(
        alert_after=alert_after or ALERT_AFTER, grace=rule.get("overdue_after"), too_long=rule.get("too_long")
    )
    zone = rule.get("tz", "UTC") if every is None else "UTC"
    return schedule(valid_name(name, "guard"), rule.get("cron"), every=every, tz=zone, **options).but(kind="guard")


def nothing(*_: object) -> None:
    """The default callback."""


class GuardedRun:
    """One run, from `begin` to `end`, and the heartbeat that renews its lease.

    `on_asked` is called when the code is asked to stop (`stopping` is the reason), `on_renewed` for each successful
    renewal; both in the heartbeat's thread, or `on_asked` where `stopping` is read.
    """

    def __init__(
        self,
        schedule: Schedule,
        open_store: Open,
        *,
        force: bool = False,
        timeout: float | None = None,
        on_renewed: Callable[[Renewal], None] = nothing,
        on_asked: Callable[[], None] = nothing,
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
        self._heartbeat: Duty | None = None
        self._beat_at = self._began_at = 0.0
        self._last_failure = ""  # the heartbeat's last error, to log it once

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
        return self._heartbeat is not None

    @property
    def begun(self) -> Begun:
        assert self._begun is not None, "begin() begins it"
        return self._begun

    @property
    def next_at(self) -> float:
        """When the next tick is due, by the boot clock."""
        return self._began_at + (_NEVER if self.begun.room is None else self.begun.room)

    # ── beginning ──

    def begin(self) -> None:
        """Begin the run. Raises GuardSkipped when it may not run, StoreAway if the store is unavailable for 30 s."""
        deadline = self._boot() + PATIENCE
        try:
            while (why := self._try_to_begin()) is not None:
                if self._boot() > deadline:
                    raise StoreAway(f"{self.name}: the store was out of reach for {spell(PATIENCE)}: {why}")
            self._began_at = self._boot()
            if self._timeout is not None:
                self.stop.timeout_at = self._boot() + self._timeout
            self._beat_at = self.holder.landed.next_at
            self._on_renewed(self.holder.landed)
            self._heartbeat = Duty("tenure-guard", self._beat, failed=self._failed)
            self._heartbeat.start()
        except BaseException:
            self._release()
            raise

    def _try_to_begin(self) -> str | None:
        """Why the run has not begun yet; None: it has."""
        try:
            if self._opened is None:
                self._opened = self._open()
            self._ensure_registered()
            self._begun = try_to_begin(self.store, self._schedule, self.holder.worker, self._job_id, force=self._force)
        except StoreAway as away:
            sleep(min(RETRY_SECONDS, PATIENCE / 10))
            return str(away)
        if self._begun is None:
            sleep(0.02 * random())
            return "other processes kept changing the schedule first"
        return None

    def _ensure_registered(self) -> None:
        """Make sure that the worker's row is alive. After a long outage, register a new one."""
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
        self._check_deadlines()
        return self.stop.reason

    @property
    def asked_in(self) -> float:
        """Seconds until the code is asked to stop, if its lease is not renewed until then."""
        return max(0.0, min(self.holder.landed.ask_at, self.stop.timeout_at) - self._boot())

    def _check_deadlines(self) -> None:
        if self.holder.must_stop:
            self.stop.ask("lease_lost", "its lease could not be renewed")
        if self._boot() >= self.stop.timeout_at:
            self.stop.ask("timeout")

    def _beat(self) -> float:
        """Do everything that is due. Returns the seconds until the next step is due."""
        if self.stop.timeout_at <= self._boot():
            self._check_deadlines()
            self.stop.timeout_at = _NEVER
        if self._unstored.due_at <= self._boot():
            self._attempt(self.store_report)
        if self._beat_at <= self._boot():
            pause = self.holder.pause(landed=self._attempt(self._renew))
            self._beat_at = self._boot() + pause
            self._check_deadlines()
        if self.stop.dead and self._heartbeat is not None:
            self._heartbeat.stop()
        next_at = min(self._beat_at, self._unstored.due_at, self.stop.timeout_at, self._boot() + 3600.0)
        return max(0.0, next_at - self._boot())

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Run a step of the heartbeat. False: it failed and is retried; repeated errors are logged once.

        The heartbeat must not end on an error, since then the code would never be asked to stop.
        """
        try:
            step()
        except (StoreError, LeaseLost):
            return False
        except Exception as error:
            if repr(error) != self._last_failure:
                self._last_failure = repr(error)
                with suppress(Exception):  # of the program's own logging
                    _log.critical("%s: its heartbeat has failed, and is retried", self.name, exc_info=True)
            return False
        return True

    def _failed(self, error: BaseException) -> None:
        self.stop.lose("its heartbeat has ended")
        _log.critical("%s: its heartbeat has ended", self.name, exc_info=error)

    def _renew(self) -> None:
        ask_at, alive = self.holder.landed.ask_at, self.holder.renew()
        if self._boot() >= ask_at:  # a renewal that succeeds too late does not undo that
            self.stop.ask("lease_lost", "its lease could not be renewed")
        if not alive:
            self.stop.lose("it was declared dead")
            return
        self._on_renewed(self.holder.landed)
        with suppress(StoreError):
            held = next((each for each in self.store.owned(self.holder.id) if each.claimed.id == self._job_id), None)
            if held is None:
                self.stop.lose("another process has ended it")
            elif held.cancel_reason is not None:
                self.stop.ask("cancel", held.cancel_reason)

    # ── called by Job ──

    def report(self, new: Progress) -> None:
        self._unstored.add(new)
        if self._heartbeat is not None:
            self._heartbeat.wake()

    def store_report(self) -> None:
        """Store the newest report now. Raises LeaseLost if the store refuses it."""
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
        """The outcome of the run: a request to stop takes precedence over how the code ended."""
        match self.stopping:
            case "timeout":
                return Failed(f"timed out after {spell(self._timeout or 0.0)}", final=True)
            case "lease_lost":
                return Failed(f"stopped: {self.stop.why}", final=True)
            case "cancel" if error is not None:
                return Cancelled(self.stop.why)
            case _:
                return Completed() if error is None else Failed(failed(), final=True)

    def end(self, outcome: Outcome, output: str = "", tries: int = 1) -> bool:
        """Record the outcome. False: the lease was lost, so another process records what became of the run."""
        landed, why = False, "its outcome could not be recorded"
        try:
            self.stop.end()
            while not landed and not self.stop.dead and not self.holder.over:
                try:
                    landed = self._recorded(outcome, output, tries)
                    break
                except StoreAway as away:
                    why = str(away)
                    sleep(min(RETRY_SECONDS, self.settings.lease / 10))
        finally:
            self._release()
        if not landed:
            self.stop.why = self.stop.why or why
        return landed

    def _recorded(self, outcome: Outcome, output: str, tries: int) -> bool:
        with suppress(LeaseLost):
            self.store_report()
        if output or tries > 1:  # before finishing: a process that sees the finished job first may record the tick
            self._write(partial(_with_output, job_id=self._job_id, output=output, tries=tries))
        answer = self.store.finish([(self.lease, outcome)])[0]
        if isinstance(answer, Busy):
            raise StoreAway("another transaction holds the job")
        if isinstance(answer, Landed):
            self._write(lambda standing: Plan(standing, self.store.now()).close(self.store.attempts).change())
        return isinstance(answer, Landed)

    def _write(self, decide: Callable[[Standing], Change | None]) -> None:
        """Read, decide, compare and set; retried while other writers are first."""
        for _ in range(_TRIES):
            found = self.store.schedules([self.name])
            change = decide(found[0]) if found else None
            if change is None or self.store.change([change])[0]:
                return
            sleep(0.01 * random())
        _log.warning("%s: other processes keep changing this schedule; a supervisor will record its tick", self.name)

    def _release(self) -> None:
        """Stop the heartbeat, give up the worker's row, and close the connections."""
        self.stop.end()
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat.join()
        if self._opened is None:
            return
        store, notifier, _ = self._opened
        with suppress(StoreError):
            if self._holder is not None and not self._holder.over:
                store.declare_dead([self._holder.id])
        notifier.close()
        store.close()


def _with_output(standing: Standing, job_id: str, output: str, tries: int) -> Change | None:
    tick = next((run.tick for run in standing.runs if run.tick.job_id == job_id), None)
    if tick is None or standing.schedule.unread or (tick.output, tick.tries) == (output, tries):
        return None
    return Change(schedule=standing.schedule, ticks=(replace(tick, output=output, tries=tries),))
