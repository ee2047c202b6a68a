"""The duties that keep the store in order: rescue, promotion, pruning. Every supervisor does them, without a leader.

There are two rosters, each with a thread: *urgent*, for what users wait for, and *rest*. A store with a bucket has a
third one, for the sweep. Supervisors and embedded workers run the same ones; a supervisor adds duties of its own to
the second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from random import random
from types import MappingProxyType
from typing import Protocol

from tenure.config import Settings
from tenure.core.host import end_leftovers, token_of
from tenure.core.lifecycle import State
from tenure.core.logs import logger
from tenure.errors import BadData, InvalidOption, StoreError
from tenure.events import Events, JobRescued
from tenure.maintenance.duty import Duty
from tenure.maintenance.holder import provably_gone
from tenure.maintenance.judge import Judge
from tenure.maintenance.lifeline import in_time
from tenure.maintenance.limits import declare_limits
from tenure.maintenance.rollups import SLOT, RollUps
from tenure.maintenance.roster import Lag, Roster, Row, Turn
from tenure.maintenance.wait_check import WaitCheck
from tenure.ports import LimitRow, Notifier, Promoted, Rescued, Ring, Store
from tenure.ports.schedules import Schedule
from tenure.schedules.timetable import Declared, Timetable

_DONE = Turn()
RESCUE_BATCH = 100
PROMOTE_BATCH = 1000
ADMIT_BATCH = 200
WITHDRAW_BATCH = 200
FIRE_BATCH = 500
PRUNE_BATCH = 1000
LOOK_SECONDS = 1.0  #: between two looks for due jobs and ticks, if nothing is known to be due earlier
PRUNE_SECONDS = 60.0
CHECK_SECONDS = 30.0
CHECK_BATCH = 100
SWEEP_SECONDS = 600.0  #: at most between two checks whether a walk over the bucket is due
SWEEP_BATCH = 500
SWEEP_BUDGET = 5.0
ROLL_UP_FIRST = 30.0  #: seconds after the start, or twice that
PROMOTE_SPACING = 0.02  #: jobs that fall due one after another are promoted together


@dataclass(frozen=True, slots=True)
class Declaration:
    """The schedules and limits of an app, as one of its workers declares them."""

    source: str
    release: str
    schedules: tuple[Schedule, ...]
    limits: tuple[LimitRow, ...] = ()
    force: bool = False  #: also overwrite what a newer release has declared


class Alarm(Protocol):
    """A thread that checks for problems and sends alerts. Every process that maintains a store has one."""

    def start(self) -> None: ...

    def stop(self, until: float = inf) -> None: ...


NewAlarm = Callable[[Settings, Store, Notifier, Callable[[], list[Lag]]], Alarm]


class Maintenance:
    """Does each duty when it is due. `judge` decides whether expired workers may be declared dead."""

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        events: Events,
        settings: Settings,
        *,
        mine: Callable[[], frozenset[str]],
    ) -> None:
        self._store, self._notifier, self._events, self._settings = store, notifier, events, settings
        self._timetable = Timetable(store, notifier)
        self._undeclared: Declaration | None = None
        self._mine = mine
        self.judge = Judge(settings.lease)
        self._seen_gone: frozenset[str] | None = None  # None: the first scan, which rescues at once
        self._duties: tuple[Duty, ...] = ()
        scan = settings.lease / 6
        self.urgent = self._roster(
            Row("promote", self.promote, LOOK_SECONDS, PROMOTE_BATCH, spacing=PROMOTE_SPACING),
            Row("admit", self.admit, LOOK_SECONDS, ADMIT_BATCH),
            Row("withdraw", self.withdraw, LOOK_SECONDS, WITHDRAW_BATCH),
            Row("fire", self.fire, LOOK_SECONDS, FIRE_BATCH),
            Row("rescue", self.rescue, scan, RESCUE_BATCH),
        )
        self.rest = self._roster(
            Row("declare dead", self.declare_the_dead, scan),
            Row("declare schedules", self.declare_schedules, LOOK_SECONDS),
            Row("upkeep", self._upkeep, LOOK_SECONDS),
            Row("prune", self.prune, PRUNE_SECONDS, PRUNE_BATCH, first=PRUNE_SECONDS * random()),
            Row("forget", self.forget, PRUNE_SECONDS, PRUNE_BATCH, first=PRUNE_SECONDS * random()),
            Row("check waits", WaitCheck(store).turn, CHECK_SECONDS, CHECK_BATCH, first=CHECK_SECONDS * random()),
            Row("roll up", RollUps(store).turn, SLOT, first=ROLL_UP_FIRST * (1 + random())),
        )
        self._rosters = {"tenure-urgent": self.urgent, "tenure-maintain": self.rest}
        if store.capabilities.inline < sys.maxsize:  # no other duty waits for a bucket
            row = Row("sweep", self.sweep, SWEEP_SECONDS, SWEEP_BATCH, SWEEP_BUDGET, first=SWEEP_SECONDS * random())
            self._rosters["tenure-sweep"] = self._roster(row)

    def _roster(self, *rows: Row) -> Roster:
        # When a duty fails although the store answers, the store may be full: pruning may help.
        return Roster(rows, answers=self._store.paused, short=lambda: self.hurry("prune"))

    # ── its threads ──

    def start(
        self, *, failed: Callable[[BaseException], None], unavailable: Callable[[StoreError], None] = lambda _: None
    ) -> None:
        self._duties = tuple(
            Duty(name, roster.step, failed=failed, unavailable=unavailable) for name, roster in self._rosters.items()
        )
        for duty in self._duties:
            duty.start()

    def stop(self) -> None:
        """End its threads, after the current call if there is one."""
        for duty in self._duties:
            duty.stop()

    def join(self, until: float = inf) -> None:
        for duty in self._duties:
            duty.join(until)

    def hurry(self, *names: str) -> None:
        """Have these duties done at once. From any thread; those that are in no roster are ignored."""
        for place, roster in enumerate(self._rosters.values()):
            if roster.hurry(*names) and self._duties:
                self._duties[place].wake()

    def look_again(self) -> None:
        """A job or a tick may be due earlier than is known, or a wait may be over. From any thread."""
        self.hurry("promote", "admit", "fire")

    def lags(self) -> list[Lag]:
        """How late each duty is. From any thread."""
        return [lag for roster in self._rosters.values() for lag in roster.lags()]

    # ── rescue ──

    def scan(self) -> None:
        """Declare workers dead, and rescue their jobs: one batch; the roster does the rest."""
        self.declare_the_dead()
        self.rescue(RESCUE_BATCH)

    def declare_the_dead(self, _: int = 1) -> Turn:
        """Declare dead the workers that are provably gone, and those whose lease has ended if this process may."""
        self.declare_the_provably_dead()
        until = in_time(self._store, self._settings.lease)  # before judging: if this call blocked, we were cut off
        if self.judge.may_declare() and self.judge.witness is not None:
            self._store.declare_expired(witness=self.judge.witness, until=until)
        self.hurry("rescue")
        return _DONE

    def declare_the_provably_dead(self) -> None:
        """Declare dead the workers of this boot and pid namespace if their process is gone or its pid is reused."""
        mine = self._mine()
        known = (view.identity for view in self._store.workers())
        gone = [worker.id for worker in known if worker.id not in mine and provably_gone(worker)]
        # A living supervisor settles its own dead workers, with their verdicts: it has until the next scan for that.
        seen, self._seen_gone = self._seen_gone, frozenset(gone)
        sure = [worker_id for worker_id in gone if seen is None or worker_id in seen]
        for worker_id in sure:  # kill the processes it left behind before its jobs run again
            end_leftovers(token_of(worker_id))
        if sure:
            self._store.declare_dead(sure)

    def rescue(self, limit: int) -> Turn:
        rescued = self.report_rescued(self._store.rescue(limit=limit))
        if rescued:
            self.hurry("solo")  # some of them may have to run alone now
        return Turn(more=len(rescued) >= limit)

    # ── due jobs and ticks ──

    def promote(self, limit: int) -> Turn:
        """Queue due jobs."""
        promoted = self._store.promote(limit=limit)
        if promoted.jobs:
            self._notifier.announce(_rings_of(promoted))
            self.hurry("solo")
        if promoted.limited:
            self.hurry("admit")
        return Turn(sum(map(len, promoted.jobs.values())) + promoted.limited >= limit, promoted.next_due)

    def admit(self, limit: int) -> Turn:
        """Queue the jobs whose wait is over."""
        admitted = self._store.admit(limit=limit)
        if admitted.jobs:
            self._notifier.announce(Ring("queued", queue, tuple(ids)) for queue, ids in admitted.jobs.items())
            self.hurry("solo")
        if admitted.scheduled:
            self.hurry("promote")
        return Turn(admitted.more, admitted.next_due)

    def withdraw(self, limit: int) -> Turn:
        """Take back the places that queued jobs do not use, and have `admit` give them to others."""
        withdrawn = self._store.withdraw(limit=limit)
        if withdrawn.asked:
            self.hurry("admit")
        return Turn(withdrawn.more)

    def fire(self, limit: int) -> Turn:
        """Turn due ticks into jobs."""
        next_due = self._timetable.fire_due(limit)
        return Turn(next_due == 0.0, next_due)

    def declare_limits(self, declaration: Declaration) -> None:
        """Store these limits now, before a worker of this app is registered: nothing it claims runs without them."""
        source, release, limits = declaration.source, declaration.release, declaration.limits
        log_declared(
            source, release, "limits", declare_limits(self._store, source, release, limits, force=declaration.force)
        )
        self.hurry("admit")

    def declare(self, declaration: Declaration) -> None:
        """Store these schedules as soon as the store answers."""
        self._undeclared = declaration
        self.hurry("declare schedules")

    def declare_schedules(self, _: int = 1) -> Turn:
        declaration = self._undeclared
        if declaration is not None:
            try:
                log_declared(declaration.source, declaration.release, "schedules", self._declared(declaration))
            except (InvalidOption, BadData) as error:  # a retry would fail again; the other schedules are still fired
                logger("tenure.schedules").error("the schedules of %s can't be declared: %s", declaration.source, error)
            if self._undeclared is declaration:
                self._undeclared = None
            self.hurry("fire")
        return _DONE

    def _declared(self, declaration: Declaration) -> Declared:
        source, release, schedules = declaration.source, declaration.release, declaration.schedules
        return self._timetable.declare(source, release, schedules, force=declaration.force)

    # ── the store ──

    def _upkeep(self, _: int) -> Turn:
        self._store.upkeep()
        return _DONE

    def prune(self, limit: int) -> Turn:
        settings = self._settings
        return Turn(self._store.prune(keep=settings.keep, keep_dead=settings.keep_dead, limit=limit) >= limit)

    def forget(self, limit: int) -> Turn:
        return Turn(self._store.forget(keep=self._settings.keep_history, limit=limit) >= limit)

    def sweep(self, limit: int) -> Turn:
        """Delete from the bucket what no row has named for long."""
        left = self._store.sweep(limit)
        return Turn(more=not left, next_due=left)

    def report_rescued(
        self, rescued: list[Rescued], outcomes: Mapping[str, str] = MappingProxyType({})
    ) -> list[Rescued]:
        """Emit an event for each rescued job, and ring for it. `outcomes` is by job id; the default is crashed."""
        rings: list[Ring] = []
        for each in rescued:
            may_run = each.cause == "stale" and each.id not in outcomes
            self._events.emit(JobRescued(rescued=each, outcome=outcomes.get(each.id, "crashed"), may_run=may_run))
            if each.state is State.QUEUED:
                rings.append(Ring("queued", each.queue, (each.id,), each.message))
            elif each.state in (State.SCHEDULED, State.WAITING):
                rings.append(Ring("due", each.queue))
        self._notifier.announce(rings)
        if rescued:
            self.hurry("admit")  # each may have held places
        return rescued


def _rings_of(promoted: Promoted) -> list[Ring]:
    """One ring a queue; each job that had been rescued has a ring of its own, which says why it is queued again."""
    cleared = promoted.cleared
    rings: list[Ring] = []
    for queue, ids in promoted.jobs.items():
        plain = tuple(job_id for job_id in ids if job_id not in cleared) if cleared else tuple(ids)
        if plain:
            rings.append(Ring("queued", queue, plain))
        rings += [Ring("queued", queue, (job_id,), cleared[job_id]) for job_id in ids if job_id in cleared]
    return rings


def log_declared(source: str, release: str, what: str, done: Declared) -> None:
    """Say what a declaration has changed. `what`: schedules, or limits."""
    log = logger(f"tenure.{what}")
    if done.older:
        log.warning(
            "the %s of %s stay as release %s declares them, which was first seen later than %s; to use these "
            "instead: tenure schedules declare --force",
            what,
            source,
            done.older,
            release or "this one",
        )
    for how, names in (("created", done.made), ("changed", done.changed)):
        if names:
            log.info("%s %s: %s", what, how, ", ".join(names))
    if done.retired:
        log.warning(
            "%s retired, as %s no longer declares them: %s (if it never did, two apps have modules of the same "
            "name: rename one of them)",
            what,
            source,
            ", ".join(done.retired),
        )
