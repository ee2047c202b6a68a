"""The duties that keep the store in order: rescue, promotion, pruning. Every supervisor does them, without a leader.

`Maintenance` has no thread of its own: supervisors and embedded workers call `run_pass` periodically.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import random
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tenure.config import Settings
from tenure.core.lifecycle import State
from tenure.errors import BadData, InvalidOption
from tenure.events import Events, JobRescued
from tenure.liveness.holder import provably_gone
from tenure.liveness.host import end_leftovers, token_of
from tenure.liveness.lifeline import in_time
from tenure.maintenance.judge import Judge
from tenure.ports import Notifier, Promoted, Rescued, Ring, Store
from tenure.ports.schedules import Schedule
from tenure.schedules.timetable import Declared, Timetable

_log = logging.getLogger("tenure.schedules")
BATCH = 100
PRUNE_BATCH = 1000
PRUNE_SECONDS = 60.0
UPKEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Declaration:
    """The schedules of an app, as one of its workers declares them."""

    source: str
    release: str
    schedules: tuple[Schedule, ...]
    force: bool = False  #: overwrite also what a newer release has declared


class Alarm(Protocol):
    """A thread that checks for problems and sends alerts. Every process that maintains a store has one."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


NewAlarm = Callable[[Settings, Store, Notifier], Alarm]


class Pass(NamedTuple):
    """How many seconds to wait after one pass."""

    pause: float  #: until the next duty, job or tick is due
    next_job: float | None  #: until the next job is due; None: none is scheduled


def _nothing() -> None:
    """The default for a caller that adds no step of its own."""


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
        self._next_scan = 0.0
        self._seen_gone: frozenset[str] | None = None  # None: the first scan, which rescues at once
        self._next_prune = time.monotonic() + PRUNE_SECONDS * random()
        self._next_upkeep = 0.0

    def run_pass(self, *, promoted: Callable[[], None] = _nothing, scanned: Callable[[], None] = _nothing) -> Pass:
        """Do the duties that are due. Calls `promoted` after due jobs are queued, and `scanned` after a scan."""
        next_job = self.promote()
        self.upkeep_if_due()
        promoted()
        if self.scan_if_due():
            scanned()
        next_tick = self.fire()
        self.prune_if_due()
        return Pass(self.next_wake(next_job, next_tick), next_job)

    def scan_if_due(self) -> bool:
        if time.monotonic() < self._next_scan:
            return False
        self._next_scan = time.monotonic() + self._settings.lease / 6 * (0.8 + 0.4 * random())
        self.scan()
        return True

    def scan(self) -> None:
        """Declare dead workers, and rescue their jobs."""
        self.declare_the_provably_dead()
        until = in_time(self._store, self._settings.lease)  # before judging: if this call blocked, we were cut off
        if self.judge.may_declare() and self.judge.witness is not None:
            self._store.declare_expired(witness=self.judge.witness, until=until)
        while len(self.report_rescued(self._store.rescue(limit=BATCH))) == BATCH:
            pass

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

    def promote(self) -> float | None:
        """Queue due jobs. Returns the seconds until the next one is due."""
        while True:
            promoted = self._store.promote()
            self._notifier.announce(_rings_of(promoted))
            if not promoted.jobs:
                return promoted.next_due

    def declare(self, declaration: Declaration) -> None:
        """Store these schedules at the next `fire` that reaches the store."""
        self._undeclared = declaration

    def fire(self) -> float | None:
        """Turn due ticks into jobs. Returns the seconds until the next tick is due."""
        declaration = self._undeclared
        if declaration is not None:
            try:
                _log_declared(declaration, self._declared(declaration))
            except (InvalidOption, BadData) as error:  # a retry would fail again; the other schedules are still fired
                _log.error("the schedules of %s can't be declared: %s", declaration.source, error)
            if self._undeclared is declaration:
                self._undeclared = None
        return self._timetable.fire_due()

    def _declared(self, declaration: Declaration) -> Declared:
        source, release, schedules = declaration.source, declaration.release, declaration.schedules
        return self._timetable.declare(source, release, schedules, force=declaration.force)

    def upkeep_if_due(self) -> None:
        if time.monotonic() >= self._next_upkeep:
            self._next_upkeep = time.monotonic() + UPKEEP_SECONDS
            self._store.upkeep()

    def prune_if_due(self) -> None:
        if time.monotonic() >= self._next_prune:
            self._next_prune = time.monotonic() + PRUNE_SECONDS
            settings = self._settings
            gone = self._store.prune(keep=settings.keep, keep_dead=settings.keep_dead, limit=PRUNE_BATCH)
            gone += self._store.forget(keep=settings.keep_history, limit=PRUNE_BATCH)
            if gone >= PRUNE_BATCH:
                self._next_prune = 0.0  # there may be more; the other duties come first

    def next_wake(self, *next_due: float | None) -> float:
        """Seconds to sleep: until the next scan, upkeep or prune, or until the next job or tick is due."""
        duty = min(self._next_scan, self._next_upkeep, self._next_prune) - time.monotonic()
        return max(0.0, min((duty, *(each for each in next_due if each is not None))))

    def report_rescued(
        self, rescued: list[Rescued], outcomes: Mapping[str, str] = MappingProxyType({})
    ) -> list[Rescued]:
        """Emit an event for each rescued job, and ring for it. `outcomes` is by job id; the default is crashed."""
        rings: list[Ring] = []
        for each in rescued:
            self._events.emit(JobRescued(rescued=each, outcome=outcomes.get(each.id, "crashed")))
            if each.state is State.QUEUED:
                rings.append(Ring("queued", each.queue, (each.id,), each.message))
            elif each.state is State.SCHEDULED:
                rings.append(Ring("due", each.queue))
        self._notifier.announce(rings)
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


def _log_declared(declaration: Declaration, done: Declared) -> None:
    if done.older:
        _log.warning(
            "the schedules of %s stay as release %s declares them, which was first seen later than %s; to use these "
            "instead: tenure schedules declare --force",
            declaration.source,
            done.older,
            declaration.release or "this one",
        )
    for what, names in (("created", done.made), ("changed", done.changed)):
        if names:
            _log.info("schedules %s: %s", what, ", ".join(names))
    if done.retired:
        _log.warning(
            "schedules retired, as %s no longer declares them: %s (if it never did, two apps have modules of the same "
            "name: rename one of them)",
            declaration.source,
            ", ".join(done.retired),
        )
