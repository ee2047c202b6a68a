"""What keeps the store honest: rescue, promotion, pruning. Every supervisor does it; there is no leader.

`Maintenance` is one pass at a time, without threads of its own: a supervisor and an embedded worker both drive it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import random
from types import MappingProxyType
from typing import Protocol

from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.lifecycle import State
from tenure.errors import BadData, InvalidOption
from tenure.events import RESCUE_REASONS, Events, JobRescued
from tenure.liveness.host import end_leftovers, pid_namespace, started, token_of
from tenure.liveness.lifeline import AWAY_AFTER, in_time
from tenure.ports import Notifier, Rescued, Ring, Store
from tenure.ports.schedules import Schedule
from tenure.schedules.timetable import Declared, Timetable

_log = logging.getLogger("tenure.schedules")
BATCH = 100
PRUNE_BATCH = 1000
PRUNE_SECONDS = 60.0
UPKEEP_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Declaration:
    """The schedules of an app, as one of its workers brings them."""

    source: str
    release: str
    schedules: tuple[Schedule, ...]
    force: bool = False  #: also where a newer release has declared others


class Alarm(Protocol):
    """A thread that looks for what is wrong and has somebody told. Every process that maintains a store has one."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


NewAlarm = Callable[[Settings, Store, Notifier], Alarm]


class Maintenance:
    """The scan, and the promotion of due jobs.

    Who was away declares nobody: after a start, or a gap in its own renewals, it waits one lease before it declares
    silent workers dead, so that an outage or a suspend costs no living worker its jobs. Proof of death needs no wait.
    """

    def __init__(
        self,
        store: Store,
        notifier: Notifier,
        events: Events,
        *,
        lease: float,
        keep: float,
        keep_dead: float | None,
        keep_history: float,
        mine: Callable[[], frozenset[str]],
    ) -> None:
        self._store, self._notifier, self._events = store, notifier, events
        self._lease, self._keep, self._keep_dead = lease, keep, keep_dead
        self._keep_history = keep_history
        self._timetable = Timetable(store, notifier)
        self._undeclared: Declaration | None = None
        self._mine = mine
        self._boot = system_clock().boot
        self._renewed = self._boot()
        self._witness: str | None = None  #: one of ours that was renewed last
        self._quiet_until = self._renewed + lease
        self._next_scan = 0.0
        self._seen_gone: frozenset[str] | None = None  # None: this is a start, which takes back at once
        self._next_prune = time.monotonic() + PRUNE_SECONDS * random()
        self._next_upkeep = 0.0

    def renewed(self, sent: float, alive: Iterable[str]) -> None:
        """A renewal of our own has landed. After a gap, everybody else gets a lease to renew too."""
        self._witness = next(iter(alive), None)
        now = self._boot()
        if now - self._renewed > self._lease * AWAY_AFTER:  # until now: it may have been sent in time, and held up
            self._quiet_until = now + self._lease
        self._renewed = sent

    @property
    def quiet_until(self) -> float:
        return self._quiet_until

    def may_declare(self) -> bool:
        """Are our own renewals so regular that another's silence is not our own absence?"""
        now = self._boot()
        return now >= self._quiet_until and now - self._renewed <= self._lease * AWAY_AFTER

    def scan_if_due(self) -> bool:
        if time.monotonic() < self._next_scan:
            return False
        self._next_scan = time.monotonic() + self._lease / 6 * (0.8 + 0.4 * random())
        self.scan()
        return True

    def scan(self) -> None:
        """Declare the dead, take back their jobs."""
        self.declare_the_provably_dead()
        until = in_time(self._store, self._lease)  # first: it may be held up too, and then we were away
        if self.may_declare() and self._witness is not None:
            self._store.declare_expired(witness=self._witness, until=until)
        while len(self.tell(self._store.rescue(limit=BATCH))) == BATCH:
            pass

    def declare_the_provably_dead(self) -> None:
        """Workers of this boot and pid namespace whose process is gone, or is another one by now."""
        boot_id, namespace, mine = system_clock().boot_id, pid_namespace(), self._mine()
        gone = [
            view.identity
            for view in self._store.workers()
            if view.identity.boot_id == boot_id
            and view.identity.pid_namespace == namespace
            and view.identity.id not in mine
            and started(view.identity.pid) != view.identity.started
        ]
        # A supervisor that lives settles its own dead, with their verdicts: it gets one scan's time for that.
        seen, self._seen_gone = self._seen_gone, frozenset(identity.id for identity in gone)
        sure = [identity.id for identity in gone if seen is None or identity.id in seen]
        for worker_id in sure:  # what it left running ends before its jobs start again
            end_leftovers(token_of(worker_id))
        if sure:
            self._store.declare_dead(sure)

    def promote(self) -> float | None:
        """Due jobs are queued; seconds until the next one is due."""
        while True:
            promoted = self._store.promote()
            self._notifier.announce(Ring("queued", queue, tuple(ids)) for queue, ids in promoted.jobs.items())
            if not promoted.jobs:
                return promoted.next_due

    def declare(self, declaration: Declaration) -> None:
        """Put these schedules, at the next `fire` for which the store is there."""
        self._undeclared = declaration

    def fire(self) -> float | None:
        """Ticks whose time has come become jobs; seconds until the next one's has."""
        declaration = self._undeclared
        if declaration is not None:
            try:
                _say(declaration, self._declared(declaration))
            except (InvalidOption, BadData) as error:  # of no use to try again; the others are fired all the same
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
            gone = self._store.prune(keep=self._keep, keep_dead=self._keep_dead, limit=PRUNE_BATCH)
            gone += self._store.forget(keep=self._keep_history, limit=PRUNE_BATCH)
            if gone >= PRUNE_BATCH:
                self._next_prune = 0.0  # there may be more; the other duties come first

    def next_wake(self, *next_due: float | None) -> float:
        """Seconds to sleep: until the next scan, upkeep or prune, or until the next job or tick is due."""
        duty = min(self._next_scan, self._next_upkeep, self._next_prune) - time.monotonic()
        return max(0.0, min((duty, *(each for each in next_due if each is not None))))

    def tell(self, rescued: list[Rescued], outcomes: Mapping[str, str] = MappingProxyType({})) -> list[Rescued]:
        """Log who was rescued, and ring for them. `outcomes` by job id; else they crashed."""
        rings: list[Ring] = []
        for each in rescued:
            self._events.emit(JobRescued(rescued=each, outcome=outcomes.get(each.id, "crashed")))
            if each.state is State.QUEUED:
                rings.append(Ring("queued", each.queue, (each.id,), f"Cleared: {RESCUE_REASONS[each.cause]}"))
            elif each.state is State.SCHEDULED:
                rings.append(Ring("due", each.queue))
        self._notifier.announce(rings)
        return rescued


def _say(declaration: Declaration, done: Declared) -> None:
    if done.older:
        _log.warning(
            "the schedules of %s stay as release %s declares them, which was seen later than %s; to go back to these: "
            "tenure schedules declare --force",
            declaration.source,
            done.older,
            declaration.release or "this one",
        )
    for what, names in (("made", done.made), ("changed", done.changed)):
        if names:
            _log.info("schedules %s: %s", what, ", ".join(names))
    if done.retired:
        _log.warning(
            "schedules retired, as %s declares them no more: %s (if it never did, two apps have modules of one name: "
            "give one of them another)",
            declaration.source,
            ", ".join(done.retired),
        )
