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
import os
import pwd
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import random
from time import sleep
from typing import Literal

from tenure.config import Settings, valid_name
from tenure.core.clock import system_clock
from tenure.core.durations import Duration, spell
from tenure.core.ids import new_id
from tenure.core.lifecycle import GUARD, Cancelled, Completed, Failed, Lease, Outcome, State
from tenure.errors import GuardSkipped, InvalidOption, LeaseLost, StoreAway, StoreError
from tenure.liveness.host import end_leftovers, host_name, new_token, pid_namespace, started, token_of, worker_id
from tenure.liveness.lifeline import ASK_AFTER, KILL_AFTER, in_time
from tenure.ports import Busy, Landed, Notifier, Progress, Store, WorkerIdentity
from tenure.ports.schedules import Change, Schedule, Standing, Tick
from tenure.schedules.cron import Every, rule
from tenure.schedules.guard_plan import Began, Held, begin_guard, skip_call
from tenure.schedules.plan import ON_TIME, Plan

Stopping = Literal["cancel", "timeout", "lease_lost"]
Open = Callable[[], tuple[Store, Notifier, Settings]]

PATIENCE = 30.0  #: seconds to try for, when the store is out of reach at the start
RETRY_SECONDS = 1.0
_PROGRESS_SECONDS = 1.0
_TRIES = 50
_NEVER = float("inf")
_log = logging.getLogger("tenure.guard")


def declared(name: str, *, every: Duration | None = None, cron: str | None = None, tz: str = "UTC") -> Schedule:
    """The schedule that a guard with this rule declares. Raises InvalidOption."""
    spec = rule(cron, every=every, tz=tz)
    return Schedule(name=valid_name(name, "guard"), rule=str(spec), tz=tz, kind="guard")


def user_and_host() -> str:
    """Who runs it, and where: what a history is read for."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # an id without a name, as in many containers
        user = str(os.geteuid())
    return f"{user}@{host_name()}"


def _nothing(*_: float) -> None:
    """Nobody listens."""


class GuardedRun:
    """One run, from `begin` to `end`, and the heartbeat that keeps its lease. `on_asked`: `stopping` says why.

    `on_renewed` hears of each renewal the two moments, on the boot clock, by which the code must be asked to stop,
    and gone. Both are called in the heartbeat's thread.
    """

    def __init__(
        self,
        schedule: Schedule,
        open_store: Open,
        *,
        force: bool = False,
        timeout: float | None = None,
        on_renewed: Callable[[float, float], None] = _nothing,
        on_asked: Callable[[], None] = _nothing,
    ) -> None:
        self._schedule, self._open, self._force, self._timeout = schedule, open_store, force, timeout
        self._on_renewed, self._on_asked = on_renewed, on_asked
        self._boot = system_clock().boot
        self._opened: tuple[Store, Notifier, Settings] | None = None
        self._job_id = new_id()
        self.worker_id = ""
        self._renewed = 0.0
        self._timeout_at = _NEVER
        self._stopping: Stopping | None = None
        self._why = ""
        self.dead = False  #: somebody else has taken it back: the code must be gone by now
        self._lock = threading.Lock()
        self._report: Progress | None = None
        self._next_report = 0.0
        self._wake = threading.Event()
        self._ending = self._over = False
        self._heart: threading.Thread | None = None
        self._told = ""  # of what its heart failed last
        self.late = ""  #: "late by 2h", if it is

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
    def lease(self) -> Lease:
        return Lease(self._job_id, 1, self.worker_id)

    @property
    def began(self) -> bool:
        return self._heart is not None

    # ── beginning ──

    def begin(self) -> None:
        """Start it. Raises GuardSkipped when it may not run, StoreAway when the store was out of reach for 30 s."""
        deadline = self._boot() + PATIENCE
        try:
            while not self._begun():
                if self._boot() > deadline:
                    raise StoreAway(f"{self.name}: the store was out of reach for {spell(PATIENCE)}: {self._why}")
        except BaseException:
            self._leave()
            raise
        self._timeout_at = _NEVER if self._timeout is None else self._boot() + self._timeout
        self._on_renewed(self.ask_at, self.kill_at)
        self._heart = threading.Thread(target=self._beat, name="tenure-guard", daemon=True)
        self._heart.start()

    def _begun(self) -> bool:
        try:
            if self._opened is None:
                self._opened = self._open()
            self._live()
            tick = self._try_to_begin()
        except StoreAway as away:
            self._why = str(away)
            sleep(min(RETRY_SECONDS, PATIENCE / 10))
            return False
        if tick is None:
            self._why = "others wrote first, again and again"
            sleep(0.02 * random())
            return False
        self.tick, self._why = tick, ""
        return True

    def _live(self) -> None:
        """Have a row that lives. After a long outage that is a new one."""
        lease, sent = self.settings.lease, self._boot()
        if self.worker_id:
            if sent - self._renewed < lease / 3:
                return
            if self.worker_id in self.store.renew([self.worker_id]):
                self._renewed = sent
                return
        clock, pid = system_clock(), os.getpid()
        name = worker_id(pid, new_token())
        self.store.register(
            WorkerIdentity(
                id=name,
                host=host_name(),
                pid=pid,
                started=started(pid),
                boot_id=clock.boot_id,
                pid_namespace=pid_namespace(),
                runner="guard",
                queues=(GUARD,),
                tasks=(self.name,),
                slots=1,
                lease=lease,
            )
        )
        self.worker_id, self._renewed, self._job_id = name, sent, new_id()

    def _try_to_begin(self) -> Tick | None:
        """The tick of the run; None: read again."""
        found = self.store.schedules([self.name])
        standing = found[0] if found else Standing(self._schedule)
        if standing.schedule.kind == "task":
            whose = standing.schedule.source or "an operator"
            raise InvalidOption(
                f"{self.name} is a schedule of {whose}, whose ticks are jobs: name this guard otherwise"
            )
        mine = next((run.tick for run in standing.runs if run.live and run.tick.job_id == self._job_id), None)
        if mine is not None:  # the reply to the write was lost
            return mine
        if self._took_back(standing):
            return None
        now = self.store.now()
        plan = Plan(standing, now).close(self.store.attempts).declare(self._schedule)
        paused = plan.schedule.paused_at is not None and not self._force
        if paused:
            why = plan.schedule.paused_why
            skip_call(plan, now, f"paused: {why}")
            began: Began | Held = Held(f"paused: {why}; tenure schedules resume {self.name}, or --force", locked=False)
        else:
            began = begin_guard(plan, self._job_id, self.worker_id, user_and_host(), now=now, force=self._force)
        if isinstance(began, Held):
            change = plan.change()
            if change is not None:
                self.store.change([change])
            raise GuardSkipped(f"skipped: {began.says}")
        if not self.store.change([began.change])[0]:
            return None
        on_time = min(ON_TIME, plan.rule.seconds / 2) if isinstance(plan.rule, Every) else ON_TIME
        self.late = f"late by {spell(began.late)}" if began.late > on_time else ""
        return next(tick for tick in began.change.ticks if tick.job_id == self._job_id)

    def _took_back(self, standing: Standing) -> bool:
        """Did a run that goes on belong to a guard that is dead, or whose lease has ended?"""
        took = False
        for job in (run.job for run in standing.runs if run.live):
            if job is not None and job.worker_id is not None:
                self._declare_if_gone(job.worker_id)
                until = in_time(self.store, self.settings.lease)
                found = self.store.redelivered(job.id, declare=True, witness=self.worker_id, until=until)
                took |= found is not State.PROCESSING
        return took

    def _declare_if_gone(self, owner: str) -> None:
        boot_id, namespace = system_clock().boot_id, pid_namespace()
        for identity in (view.identity for view in self.store.workers() if view.identity.id == owner):
            here = identity.boot_id == boot_id and identity.pid_namespace == namespace
            if here and started(identity.pid) != identity.started:
                end_leftovers(token_of(owner))
                self.store.declare_dead([owner])

    # ── while it runs ──

    @property
    def stopping(self) -> Stopping | None:
        """Why the code is asked to stop, or None."""
        self._look()
        return self._stopping

    @property
    def why(self) -> str:
        """Why it is asked to stop."""
        return self._why

    @property
    def kill_at(self) -> float:
        """When the code must be gone, on the boot clock."""
        return self._renewed + self.settings.lease * KILL_AFTER

    @property
    def ask_at(self) -> float:
        """When the code is asked to stop, unless a renewal lands before."""
        return self._renewed + self.settings.lease * ASK_AFTER

    def _look(self) -> None:
        now = self._boot()
        if now >= self.ask_at:
            self._ask("lease_lost", "its lease could not be renewed")
        if now >= self._timeout_at:
            self._ask("timeout")

    def _ask(self, reason: Stopping, why: str = "") -> None:
        """The first reason stands; only a lost lease overrules it."""
        with self._lock:
            if self._ending or self._stopping == reason or (self._stopping is not None and reason != "lease_lost"):
                return
            self._stopping, self._why = reason, why
        self._on_asked()

    def _beat(self) -> None:
        beat, lease = self._renewed + self.settings.lease / 3, self.settings.lease
        while not self._over and not self.dead:
            report_at = _NEVER if self._report is None else self._next_report
            self._wake.wait(max(0.0, min(beat, report_at, self._timeout_at, 3600.0 + self._boot()) - self._boot()))
            self._wake.clear()
            if self._timeout_at <= self._boot():
                self._look()
                self._timeout_at = _NEVER
            if self._report is not None and self._next_report <= self._boot():
                self._done(self.store_report)
            if beat <= self._boot() and not self._over:
                pause = lease / 3 if self._done(self._renew) else min(RETRY_SECONDS, lease / 3)
                beat = self._boot() + pause
                self._look()

    def _done(self, duty: Callable[[], None]) -> bool:
        """A heart that ended silently would never ask the code to stop. What fails is tried again, and told once."""
        try:
            duty()
        except (StoreError, LeaseLost):
            return False
        except Exception as error:
            if repr(error) != self._told:
                self._told = repr(error)
                _log.critical("%s: its heartbeat has failed, and is tried again", self.name, exc_info=True)
            return False
        return True

    def _renew(self) -> None:
        sent = self._boot()
        alive = self.worker_id in self.store.renew([self.worker_id])
        self._look()  # a renewal that lands too late does not undo that it was late
        if not alive:
            self._lose("it was declared dead")
            return
        self._renewed = sent
        self._on_renewed(self.ask_at, self.kill_at)
        with suppress(StoreError):
            held = next((each for each in self.store.owned(self.worker_id) if each.claimed.id == self._job_id), None)
            if held is None:
                self._lose("somebody else has ended it")
            elif held.cancel_reason is not None:
                self._ask("cancel", held.cancel_reason)

    def _lose(self, why: str) -> None:
        if not self._ending:
            self.dead = True
            self._ask("lease_lost", why)

    # ── what a Job asks of it ──

    def report(self, news: Progress) -> None:
        with self._lock:
            self._report = news if self._report is None else _merged(self._report, news)
        self._wake.set()

    def store_report(self) -> None:
        """Store the newest word now. Raises LeaseLost when it is refused."""
        with self._lock:
            report, self._report = self._report, None
        if report is None:
            return
        self._next_report = self._boot() + _PROGRESS_SECONDS
        try:
            landed = self.store.progress([report])[0]
        except StoreError:
            with self._lock:
                self._report = report if self._report is None else _merged(report, self._report)
            raise
        if not landed:
            self._lose("its progress was refused")
            raise LeaseLost(f"{self.name}, job {self._job_id}")

    # ── ending ──

    def outcome(self, error: BaseException | None, failed: Callable[[], str]) -> Outcome:
        """How it ended: what it was asked to stop for counts more than what came of it."""
        match self.stopping:
            case "timeout":
                return Failed(f"timed out after {spell(self._timeout or 0.0)}", final=True)
            case "lease_lost":
                return Failed(f"stopped: {self._why}", final=True)
            case "cancel" if error is not None:
                return Cancelled(self._why)
            case _:
                return Completed() if error is None else Failed(failed(), final=True)

    def end(self, outcome: Outcome, output: str = "") -> bool:
        """Record how it ended; False: it was no longer ours, somebody else writes down what became of it."""
        landed = False
        try:
            with self._lock:
                self._ending = True
            while not landed and not self.dead and self._boot() < self._renewed + self.settings.lease:
                try:
                    landed = self._recorded(outcome, output)
                    break
                except StoreAway:
                    sleep(min(RETRY_SECONDS, self.settings.lease / 10))
        finally:
            self._leave()
        if not landed:
            self._why = self._why or "it could not be recorded how it ended"
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
        self._ending = self._over = True
        self._wake.set()
        if self._heart is not None:
            self._heart.join()
        if self._opened is None:
            return
        store, notifier, _ = self._opened
        with suppress(StoreError):
            if self.worker_id and self._boot() < self._renewed + self.settings.lease:
                store.declare_dead([self.worker_id])
        notifier.close()
        store.close()


def _merged(old: Progress, new: Progress) -> Progress:
    said = {name: getattr(new, name) for name in ("fraction", "stage", "message", "checkpoint")}
    return replace(old, **{name: value for name, value in said.items() if value is not None})


def _with_output(standing: Standing, job_id: str, output: str) -> Change | None:
    tick = next((run.tick for run in standing.runs if run.tick.job_id == job_id), None)
    if tick is None or tick.output == output:
        return None
    return Change(schedule=standing.schedule, ticks=(replace(tick, output=output),))
