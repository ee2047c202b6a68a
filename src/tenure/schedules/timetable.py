"""Schedules in a store: firing, declaring, and operator actions. Every change is read, planned, then compared and set.

There is no leader: of all supervisors that fire a tick one succeeds, and the others read again. `plan.py` decides,
`Store.change` compares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import msgspec

from tenure.core.logs import logger
from tenure.errors import BadData, InvalidOption, StoreError, TenureError
from tenure.ports import Notifier, Ring, Store
from tenure.ports.schedules import BROKEN, Change, Former, Run, RunStatus, Schedule, Standing, Tick
from tenure.schedules.guard_plan import EARLY, expect_guard
from tenure.schedules.plan import Plan, Refused, lost_run, overdue_by, rule_of, same_definition, set_back, why_unread
from tenure.schedules.releases import release_of, tries

_log = logger("tenure.schedules")
_BATCH = 500
HELD_SECONDS = 0.5
_NAMES_KEPT = 10
_MOMENT = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_BACKFILLED = 10_000
CANCEL = Ring("cancel", "")


encode_schedules = msgspec.json.Encoder(order="deterministic").encode


class UnknownSchedule(TenureError):
    """No schedule has this name."""


class Record(NamedTuple):
    """The health of a schedule in one row: the columns of the view `schedules`."""

    name: str
    schedule: str
    last_run_at: datetime | None
    last_duration_ms: int | None
    last_status: RunStatus | None
    locked_until: datetime | None
    next_expected_at: datetime | None
    failure_count: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """A schedule that should have run and did not."""

    name: str
    expected_at: datetime
    overdue_by: float  #: seconds
    grace: float
    why: str


@dataclass(frozen=True, slots=True)
class Declared:
    """The result of a declaration, by name.

    `older`: a newer release is in force, so nothing was changed. `kept`: those that a newer release of another app has
    declared, which stay as they are.
    """

    made: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    older: str = ""
    kept: tuple[str, ...] = ()


def record(standing: Standing) -> Record:
    """Example: `record(timetable.get("daily-report")).failure_count`"""
    s = standing.schedule
    began = [run for run in standing.runs if run.live and run.job and run.job.attempt > 0]  # also between two attempts
    locked = [run.locked_until for run in began if run.locked_until]
    return Record(
        name=s.name,
        schedule=s.rule if s.tz == "UTC" else f"{s.rule} {s.tz}",
        last_run_at=max(
            ((run.job and run.job.started_at) or run.tick.decided_at for run in began), default=s.last_run_at
        ),
        last_duration_ms=s.last_duration_ms,
        last_status="started" if began else s.last_status,
        locked_until=max(locked, default=None),
        next_expected_at=None if s.idle else s.next_tick,
        failure_count=s.failure_count,
    )


class Timetable:
    """The schedules of a store. Example: `Timetable(store, notifier).pause("nightly", "until Monday")`"""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self.store, self._notifier = store, notifier

    # ── firing ──

    def fire_due(self, limit: int = _BATCH) -> float | None:
        """Decide due ticks and close ended runs, of at most `limit` schedules. Returns the seconds until the next is
        due; 0.0: there may be more at once."""
        due = self.store.due(limit=limit)
        read = {standing.schedule.name: standing.schedule for standing in due.standings}
        decided = (self._decided(standing, due.now) for standing in due.standings)
        changes = [change for change in decided if change is not None]
        if not changes:
            return due.next_due
        return 0.0 if any(self._land(changes, read, due.now)) else HELD_SECONDS  # another was first, or holds the rows

    def _decided(self, standing: Standing, now: datetime) -> Change | None:
        try:
            return Plan(standing, now).close(self.store.attempts).fire().change()
        except StoreError:
            raise
        except Exception as error:  # e.g. a removed time zone: it must not block other schedules or end the supervisor
            # Its runs are recorded once it can be read again.
            return None if standing.schedule.idle else _paused(standing.schedule, now, error)

    def _land(self, changes: Sequence[Change], read: Mapping[str, Schedule], now: datetime) -> list[bool]:
        try:
            return self._write(changes)
        except BadData as error:  # one of them can't be stored, and must not block the others
            if len(changes) > 1:
                return [self._land([change], read, now)[0] for change in changes]
            return self._write([_paused(read[changes[0].schedule.name], now, error)])

    def _write(self, changes: Sequence[Change]) -> list[bool]:
        landed = self.store.change(changes) if changes else []
        rings: list[Ring] = []
        for change, lands in zip(changes, landed, strict=True):
            if lands:
                rings += [Ring("queued", draft.queue, (draft.id,)) for draft in change.drafts]
                rings += [CANCEL] if change.cancel else []
                _log_ticks(change)
        self._notifier.announce(rings)
        return landed

    # ── declaring ──

    def declare(self, source: str, release: str, schedules: Sequence[Schedule], *, force: bool = False) -> Declared:
        """Store an app's declared schedules and retire those it no longer declares. An older release changes nothing.

        Of two releases the one first seen is the older; without a `release`, a hash of the schedules identifies it.
        `force` makes this one the newest: a rollback.
        """
        key = release or sha256(encode_schedules(schedules)).hexdigest()[:12]
        released_at, newest = release_of(self.store, f"declared:{source}", key, force=force)
        if key != newest:
            return Declared(older=newest)
        known = {standing.schedule.name: standing for standing in self.store.schedules()}
        wanted = [new.but(source=source, release=key, released_at=released_at) for new in schedules]
        names = {new.name for new in wanted}
        left = [s for s in (each.schedule for each in known.values()) if s.source == source and s.name not in names]
        steps = {new.name: partial(_declare, new=new) for new in wanted}
        steps |= {s.name: partial(_retire, released_at=released_at) for s in left if s.retired_at is None}
        now = self.store.now()
        rows = {**{s.name: s for s in left}, **{new.name: new for new in wanted}}
        plans = [
            step(Plan(known.get(name) or Standing(rows[name]), now).close(self.store.attempts))
            for name, step in steps.items()
        ]
        changes = [change for plan in plans if (change := plan.change()) is not None]
        for start in range(0, len(changes), _BATCH):
            batch = changes[start : start + _BATCH]
            for change, lands in zip(batch, self._write(batch), strict=True):
                if not lands:
                    name = change.schedule.name
                    self._act(name, steps[name], new=rows[name])
        put = [change.schedule for change in changes if change.schedule.name in names]
        return Declared(
            made=tuple(s.name for s in put if s.name not in known),
            changed=tuple(s.name for s in put if s.name in known and not same_definition(known[s.name].schedule, s)),
            retired=tuple(s.name for s in left if s.name in steps),
            kept=tuple(plan.schedule.name for plan in plans if plan.schedule.source not in ("", source)),
        )

    def put(self, schedule: Schedule) -> Standing:
        """Create or change one schedule for an operator."""
        return self._act(schedule.name, lambda plan: plan.declare(schedule), new=schedule)

    def expect(self, guard: Schedule) -> Standing:
        """Declare a guard before its first call. Raises InvalidOption if the name is that of a schedule of jobs, or a
        newer release wrote it."""
        found = self.store.schedules([guard.name])
        if found and found[0].schedule.unread:
            raise InvalidOption(why_unread(found[0].schedule))
        if found and found[0].schedule.kind != "guard":
            raise InvalidOption(f"{guard.name} is a schedule that enqueues jobs: give this guard another name")
        return self._act(guard.name, lambda plan: expect_guard(plan, guard), new=guard)

    # ── reading ──

    def all(self) -> list[Standing]:
        return self.store.schedules()

    def get(self, name: str) -> Standing:
        """Raises UnknownSchedule."""
        found = self.store.schedules([name])
        if not found:
            known = ", ".join(standing.schedule.name for standing in self.store.schedules()[:20]) or "none"
            raise UnknownSchedule(f"no schedule {name!r} in {self.store.url}; known: {known}")
        return found[0]

    def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """Its ticks and their results, newest first. Raises UnknownSchedule."""
        self.settle([self.get(name)])
        return self.ticks(self.get(name).schedule, limit=limit, before=before)

    def ticks(self, s: Schedule, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """Its ticks, also those under its former names, newest first."""
        return ticks_of(self.store, s, limit=limit, before=before)

    def settle(self, standings: Iterable[Standing]) -> None:
        """Record the ended runs of these schedules, so that the next read is up to date."""
        now = self.store.now()
        decided = (self._closed(each, now) for each in standings if any(not run.live for run in each.runs))
        self._write([change for change in decided if change is not None])

    def _closed(self, standing: Standing, now: datetime) -> Change | None:
        try:
            return Plan(standing, now).close(self.store.attempts).change()
        except InvalidOption:
            return None  # `fire_due` pauses it and logs why

    def overdue(self, grace: float | None = None) -> list[Overdue]:
        """The schedules that should have run and did not, by the store's clock; the longest overdue first.

        `grace`: seconds instead of each schedule's own.
        """
        now, paused, found = self.store.now(), self.store.paused(), list[Overdue]()
        for standing in self.store.schedules():
            s = standing.schedule if grace is None else standing.schedule.but(grace=grace)
            late = 0.0 if set_back(s, now) else overdue_by(replace(standing, schedule=s), now)
            if late is not None:
                why = why_overdue(standing, now, paused)
                found.append(Overdue(s.name, now - timedelta(seconds=late), late, s.grace, why))
        return sorted(found, key=lambda each: -each.overdue_by)

    # ── acting ──

    def pause(self, name: str, why: str = "by an operator") -> Standing:
        """Fire no ticks until `resume`; current runs continue. Raises UnknownSchedule."""
        return self._act(name, lambda plan: plan.pause(why))

    def resume(self, name: str) -> Standing:
        """Fire ticks again; those that passed during the pause are recorded as skipped. Raises UnknownSchedule."""
        standing = self._act(name, lambda plan: plan.resume())
        self._notifier.announce([Ring("due", "")])
        return standing

    def trigger(self, name: str, *, force: bool = False) -> str:
        """Run it now; returns the job's id. Raises UnknownSchedule, and Refused during a run."""
        return self._started(name, lambda plan: plan.trigger(force=force))[0]

    def backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[str]:
        """Run the ticks from `since` to `until` that did not become runs (`again`: all, except those
        whose run is in progress). Returns the ids of the jobs.

        Raises UnknownSchedule, and Refused when there are more than 10,000 of them.
        """
        ticks = self.to_backfill(name, since, until, again=again)
        return self._started(name, lambda plan: plan.backfill(ticks, again=again)) if ticks else []

    def to_backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[datetime]:
        """The ticks that `backfill` would run."""
        standing = self.get(name)
        s = standing.schedule
        rule, start = rule_of(s), max(since, _EPOCH, s.start or _EPOCH) - _MOMENT
        until = min(until, self.store.now(), s.end or until)
        if s.next_tick is not None and not s.idle:
            until = min(until, s.next_tick - _MOMENT)  # later ticks will be fired anyway
        if rule.count(start, until, MOST_BACKFILLED + 1) > MOST_BACKFILLED:
            raise Refused(f"{name}: more than {MOST_BACKFILLED:,} ticks in this range; choose a shorter one")
        ran = {run.tick.tick for run in standing.runs if run.live and run.tick.cause != "trigger"}
        if not again:
            ran |= {tick.tick for tick in self._runs_between(s, since, until)}
        return [tick for tick in rule.between(start, until) if tick not in ran and tick != s.pending_tick]

    def _runs_between(self, s: Schedule, since: datetime, until: datetime) -> Iterable[Tick]:
        before: datetime | None = until + _MOMENT
        while before is not None:
            page = self.ticks(s, limit=_BATCH, before=before)
            yield from (tick for tick in page if _ran(tick) and tick.cause != "trigger")
            more = len(page) == _BATCH and page[-1].tick > since
            before = page[-1].tick + timedelta(milliseconds=1) if more else None  # another row may have that instant

    def remove(self, name: str) -> None:
        """Delete it and its history; its jobs stay. Raises UnknownSchedule."""
        for _ in tries("a schedule"):
            s = self.get(name).schedule
            others = [each.schedule for each in self.store.schedules() if each.schedule.name != name]
            until: dict[str, datetime] = {}  # until when others had the name: those ticks are theirs
            for former in (former for each in others for former in each.formerly):
                until[former.name] = max(until.get(former.name, _EPOCH), former.until)
            if self.store.change([Change(schedule=s, delete=True, keep_until=until.get(name))])[0]:
                free = [Schedule(name=former.name, rule=s.rule) for former in s.formerly]  # lands if none has the name
                self.store.change(
                    [Change(schedule=each, delete=True, keep_until=until.get(each.name)) for each in free]
                )
                return

    def rename(self, name: str, new: str) -> Standing:
        """Give it a new name; its history goes along. Raises UnknownSchedule, and Refused during a run, if another
        schedule has that name, or if a newer release wrote it."""
        for _ in tries("a schedule"):
            self.settle([self.get(name)])
            standing = self.get(name)
            s = standing.schedule
            if s.unread:
                raise Refused(why_unread(s))
            if any(run.live for run in standing.runs):
                raise Refused(f"{name}: a run of it is in progress; rename it when that has ended, or cancel its job")
            if self.store.schedules([new]):
                raise Refused(f"a schedule {new!r} exists already: choose another name, or remove that one first")
            if standing.runs:
                continue  # one has ended just now
            now = self.store.now()
            formerly = tuple(each for each in (*s.formerly, Former(name, now)) if each.name != new)
            plan = Plan(standing, now)
            plan.rename(new, formerly[-_NAMES_KEPT:])
            if self.store.change([Change(schedule=plan.schedule, former=name)])[0]:
                self._notifier.announce([Ring("due", "")])
                return self.get(new)
        raise AssertionError("the tries end with an error")

    def _started(self, name: str, decide: Callable[[Plan], Plan]) -> list[str]:
        began: list[Tick] = []

        def decided(plan: Plan) -> Plan:
            decide(plan)
            change = plan.change()
            began[:] = [tick for tick in change.ticks if tick.status == "open"] if change else []
            return plan

        runs = self._act(name, decided).runs
        # an existing job may hold the unique key
        existing = {(run.tick.tick, run.tick.cause): run.tick.job_id for run in runs}
        return [existing.get((each.tick, each.cause)) or each.job_id or "" for each in began]

    def _act(self, name: str, decide: Callable[[Plan], Plan], new: Schedule | None = None) -> Standing:
        for _ in tries("a schedule"):
            found = self.store.schedules([name])
            standing = found[0] if found else self.get(name) if new is None else Standing(new.but(rev=0))
            plan = decide(Plan(standing, self.store.now()).close(self.store.attempts))
            change = plan.change()
            if change is None or self._write([change])[0]:
                return self.get(name)
        raise AssertionError("the tries end with an error")


def backfilled(ids: Sequence[str]) -> str:
    """What became of the ticks of a backfill, whose jobs these are. With a unique key, several ticks follow one job."""
    if not ids:
        return "every tick in that time already has a run"
    jobs = len(set(ids))
    follow = len(ids) - jobs
    told = f"{jobs:,} job{'' if jobs == 1 else 's'} stored"
    if not follow:
        return told
    return f"{told}; {follow:,} tick{' follows' if follow == 1 else 's follow'} {'it' if jobs == 1 else 'them'}"


def ticks_of(store: Store, s: Schedule, *, limit: int, before: datetime | None = None) -> list[Tick]:
    """The ticks of a schedule, also those under its former names, newest first."""
    whose = owners([s, *(each.schedule for each in store.schedules() if each.schedule.name != s.name)])
    latest = {former.name: former.until + EARLY for former in s.formerly}  # others may have had the name since then
    found: list[Tick] = []
    for name in {s.name: None, **latest}:
        ends = [at for at in (before, latest.get(name) if name != s.name else None) if at is not None]
        found += _own(store, name, min(ends, default=None), limit, lambda tick: whose(tick) == s.name)
    own = [replace(tick, schedule=s.name) for tick in found]
    return sorted(own, key=lambda tick: (tick.tick, tick.cause), reverse=True)[:limit] if s.formerly else own


def _own(
    store: Store, name: str, before: datetime | None, limit: int, is_own: Callable[[Tick], bool]
) -> Sequence[Tick]:
    """Up to `limit` of them, among the newest 10,000 of this name."""
    size = limit
    while True:
        page = store.ticks(name, limit=size, before=before)
        own = [tick for tick in page if is_own(tick)]
        if len(own) >= limit or len(page) < size or size >= MOST_BACKFILLED:
            return own[:limit]
        size *= 4


def owners(schedules: Iterable[Schedule]) -> Callable[[Tick], str]:
    """The name of the schedule that a tick belongs to: the one that had the tick's name when it was decided."""
    had: dict[str, list[tuple[datetime, str]]] = {}
    for s in schedules:
        for former in s.formerly:
            had.setdefault(former.name, []).append((former.until, s.name))

    def owner(tick: Tick) -> str:
        later = [each for each in had.get(tick.schedule, ()) if each[0] >= tick.decided_at]
        return min(later)[1] if later else tick.schedule

    return owner


def _paused(schedule: Schedule, now: datetime, error: Exception) -> Change:
    unexpected = None if isinstance(error, TenureError) else error
    _log.error("schedule %s is paused, its ticks can't be fired: %s", schedule.name, error, exc_info=unexpected)
    return Change(schedule=schedule.but(paused_at=now, paused_why=f"{BROKEN}: {error}", due_at=None))


def why_overdue(standing: Standing, now: datetime, paused: Collection[str] = ()) -> str:
    """`paused`: the paused queues."""
    s = standing.schedule
    if set_back(s, now):
        return (
            f"the store's clock was set back; it fires again from {s.next_tick}, or: tenure schedules resume {s.name}"
        )
    if s.kind == "guard":
        lost = lost_run(standing, now)
        return "no call came" if lost is None else lease_ended(lost)
    waiting = [run for run in standing.runs if run.live]
    held = [run.job.queue for run in waiting if run.job and run.job.queue in paused]
    if held:
        return f"its queue {held[0]} is paused"
    for job in (run.job for run in waiting):
        if job is not None and job.parked is not None:
            return f"its job waits for a place of {job.parked}: tenure jobs explain {job.id}"
    return "no worker started its job" if waiting else "no supervisor fired it"


def lease_ended(lost: Run) -> str:
    """Why a guard is overdue whose run is lost."""
    host = lost.tick.host or "an unknown host"
    return f"the lease of its run on {host} has ended, and nothing has called it since"


def _declare(plan: Plan, new: Schedule) -> Plan:
    s = plan.schedule
    others = bool(s.rev) and s.source not in ("", new.source)
    dropped = others and s.retired_at is not None  # by another app: this one still declares it
    if s.released_at and new.released_at and s.released_at > new.released_at and not dropped:
        if others:
            whose, newer = f"that of app {s.source}, whose release {s.release} is newer", f"release {new.release}"
            _log.warning("schedule %s stays %s than %s of app %s", s.name, whose, newer, new.source)
        return plan  # a newer release was first
    if others:
        _log.warning("schedule %s of app %s is now declared by app %s", s.name, s.source, new.source)
    return plan.declare(new)


def _retire(plan: Plan, released_at: datetime) -> Plan:
    newer = plan.schedule.released_at
    return plan if newer and newer > released_at else plan.retire()


def _log_ticks(change: Change) -> None:
    """Log what an operator would want to know: nothing for a tick that simply ran."""
    for tick in change.ticks:
        if tick.status in ("skipped", "missed"):
            span = f" to {tick.until.isoformat()} ({tick.count} ticks)" if tick.until else ""
            level = logging.WARNING if tick.status == "missed" else logging.INFO
            _log.log(level, "%s: tick %s%s %s: %s", tick.schedule, tick.tick.isoformat(), span, tick.status, tick.why)
        elif tick.status == "failure":
            _log.warning("%s: tick %s failed: %s", tick.schedule, tick.tick.isoformat(), tick.why.partition("\n")[0])


def _ran(tick: Tick) -> bool:
    """Did it become a run? Not if its job expired, or was cancelled before it started.

    A backfilled one did in any case: the job of a second backfill would have the same id.
    """
    backfilled = tick.cause == "backfill" and tick.job_id is not None
    return backfilled or tick.status in ("open", "success", "failure") or tick.started_at is not None
