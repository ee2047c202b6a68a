"""Decides each tick: overlap, catch-up, expiry, pauses. Decisions are made only here; `Store.change` writes them.

A `Plan` is one schedule at one moment of the store's clock. Its methods decide what happens to the schedule;
`change()` returns the single guarded write. A tick ends in exactly one row: a job, or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, lru_cache
from hashlib import sha256
from sys import maxsize
from typing import Any

import msgspec

from tenure.core.durations import spell
from tenure.core.lifecycle import EXPIRED, State
from tenure.core.sealed import is_sealed
from tenure.errors import InvalidOption
from tenure.errors import Refused as Refused
from tenure.ports import AttemptView, Draft, JobView
from tenure.ports.schedules import BROKEN, Cause, Change, Dst, Ended, Former, Run, Schedule, Standing, Status, Tick
from tenure.schedules.cron import Every, Rule, read

ON_TIME = 60.0  #: a tick fired within this many seconds of its time was not missed
SET_BACK = 3600.0  #: a clock set back by less is waited out: earlier jobs are kept for at least this long
RECHECK_SECONDS = 60.0  #: the end of a run fires the tick that waits for it; this bounds the wait if that ring is lost
MOST_COUNTED = 10_000  #: missed ticks are counted up to this number
_ERROR_SHOWN = 2_000
_OUTRUN = "overlap: missed ticks were being run meanwhile, and a run takes longer than the time between two ticks"
_MOMENT = timedelta(milliseconds=1)
ZONE_SHIFT = timedelta(hours=3)  #: by how much a change of a time zone moves a tick at most
_TIMING = ("rule", "tz", "dst", "start", "end")
_DEFINITION = (
    *("kind", "source", "release", "released_at", "job", "overlap", "catch_up", "catch_up_window", "catch_up_max"),
    *("expires", "jitter", "pause_after", "alert_after", "grace", "too_long"),
)
_STATUS: dict[State, Ended] = {
    State.COMPLETED: "success",
    State.DEAD: "failure",
    State.CANCELLED: "cancelled",
}


def rule_of(schedule: Schedule) -> Rule:
    return _read(schedule.rule, schedule.tz, schedule.dst)


_read = lru_cache(10_000)(read)


@lru_cache(20_000)  # each check of thousands of schedules calls this
def _before(rule: str, tz: str, dst: Dst, tick: datetime) -> datetime | None:
    """The tick before this one."""
    return _read(rule, tz, dst).upto(tick - _MOMENT)


def understood(schedule: Schedule) -> bool:
    """Can its ticks be computed? A time zone may have been removed, or a newer Tenure may have written the schedule."""
    if schedule.unread:
        return False
    try:
        rule_of(schedule)
    except InvalidOption:
        return False
    return True


def why_unread(schedule: Schedule) -> str:
    return f"{schedule.name} was written by a newer Tenure, which this version can't read: {schedule.unread}"


def run_id(schedule: str, tick: datetime, cause: str) -> str:
    """The id of a tick's job: a UUIDv7 of the tick's own time, the same in every supervisor.

    So a tick can't become two jobs while the first one is kept, even if every other check fails.
    """
    millis = f"{max(0, round(tick.timestamp() * 1000)):012x}"
    tail = sha256(f"{schedule}\0{millis}\0{cause}".encode()).hexdigest()
    return f"{millis[:8]}-{millis[8:]}-7{tail[:3]}-{int(tail[3], 16) & 3 | 8:x}{tail[4:7]}-{tail[7:19]}"


def jitter(schedule: Schedule, tick: datetime) -> timedelta:
    """How long after its time this tick is fired: the same in every process, different for every schedule and tick.

    It is fired before the next one is due, however close that is on the day the clocks go forward: a tick that is due
    after the next one was fired would be recorded as missed.
    """
    if not schedule.jitter:
        return timedelta()
    most = schedule.jitter
    with suppress(InvalidOption):  # a rule that can no longer be read
        if following := rule_of(schedule).after(tick):
            most = min(most, (following - tick).total_seconds())
    drawn = int.from_bytes(sha256(f"{schedule.name}\0{tick.isoformat()}".encode()).digest()[:7], "big") / 2**56
    return timedelta(milliseconds=int(most * 1000 * drawn))


def same_definition(one: Schedule, other: Schedule) -> bool:
    """Do both have the same definition, and are both or neither retired? Release and state are ignored."""
    names = {*_DEFINITION, *_TIMING} - {"release", "released_at"}
    retired = (one.retired_at is None) == (other.retired_at is None)
    return retired and all(getattr(one, name) == getattr(other, name) for name in names)


class PlannedChange:
    """One schedule at one moment of the store's clock, and the write that is being built for it."""

    def __init__(self, standing: Standing, now: datetime) -> None:
        self._read = self.schedule = standing.schedule
        self.now = now
        self.live = [run for run in standing.runs if run.live]
        self.ticks: list[Tick] = []
        self.drafts: list[Draft] = []
        self.cancel: list[str] = []

    @property
    def rule(self) -> Rule:
        """Raises InvalidOption for a rule that can no longer be read."""
        return rule_of(self.schedule)

    def change(self) -> Change | None:
        """The write; None if nothing changes."""
        if self.schedule.unread or (self.schedule == self._read and not self.ticks and not self.cancel):
            return None
        return Change(
            schedule=self.schedule, ticks=tuple(self.ticks), drafts=tuple(self.drafts), cancel=tuple(self.cancel)
        )

    def set(self, **changes: Any) -> None:
        self.schedule = self.schedule.but(**changes)

    def upto(self, instant: datetime) -> datetime | None:
        """The last tick at or before the instant, within the schedule's own end."""
        end = self.schedule.end
        return self.rule.upto(instant if end is None else min(instant, end))

    def move_past(self, tick: datetime) -> None:
        self.set(next_tick=self.after(tick))

    def after(self, instant: datetime) -> datetime | None:
        """The first tick strictly after the instant, within the schedule's own start and end."""
        start, end = self.schedule.start, self.schedule.end
        if start is not None and start > instant:
            instant = start - _MOMENT
        tick = self.rule.after(instant)
        return None if tick is None or (end is not None and tick > end) else tick

    def miss(self, first: datetime, until: datetime, why: str, status: Status = "missed") -> None:
        """Record one row for all ticks from `first` up to, but excluding, `until`."""
        if until <= first:
            return
        last = self.upto(until - _MOMENT)
        if last is None or last < first:
            return
        most = maxsize if isinstance(self.rule, Every) else MOST_COUNTED
        count = self.rule.count(first - _MOMENT, last, most)
        if count == MOST_COUNTED == most:
            why += f"; counted up to {MOST_COUNTED}"
        self.ticks.append(
            Tick(
                schedule=self.schedule.name,
                tick=first,
                status=status,
                why=why,
                until=None if last == first else last,
                count=count,
                decided_at=self.now,
            )
        )

    def skip_passed(self, why: str, idle_since: datetime | None = None) -> None:
        """Record the ticks up to now, and the one that waits for a run, as skipped.

        One that came before the schedule was idle, and still waits for its jitter, did not pass meanwhile: it stays.
        """
        s = self.schedule
        if s.job is None:
            return
        if s.pending_tick is not None:
            self.note("skipped", s.pending_tick, why)
        if s.next_tick is not None and s.next_tick <= self.now:
            until, following = self.now + _MOMENT, self.after(self.now)
            last = None if idle_since is None else self.upto(min(idle_since, self.now))
            if last is not None and last >= s.next_tick and last + jitter(s, last) > self.now:
                until = following = last
            self.miss(s.next_tick, until, why, "skipped")
            self.set(next_tick=following)
        self.set(pending_tick=None, catching_up_to=None)

    def rename(self, name: str, formerly: tuple[Former, ...]) -> None:
        """Jitter is drawn by the name: a tick that waits for that of the old name would now have another time to be
        fired at, which may have passed. So it is due at once."""
        s = self.schedule
        if not s.idle and s.job is not None:
            tick = s.next_tick
            if tick is not None and s.pending_tick is None and tick <= self.now < tick + jitter(s, tick):
                self.set(pending_tick=tick)
                self.move_past(tick)
            self.set(due_at=self.now)  # when its next tick is due is then found by the new name
        self.set(name=name, formerly=formerly)

    def note(self, status: Status, tick: datetime, why: str) -> None:
        self.ticks.append(Tick(schedule=self.schedule.name, tick=tick, status=status, why=why, decided_at=self.now))


class Plan(PlannedChange):
    """Call the decisions in order, then `change()`. Example: `Plan(standing, now).close(…).fire().change()`"""

    def __init__(self, standing: Standing, now: datetime) -> None:
        super().__init__(standing, now)
        self._ended = [run for run in standing.runs if not run.live]
        self._running = len(self.live)
        self._falls_behind = False  # a missed tick that was being made up for ran longer than the time to the next one

    # ── runs that have ended ──

    def close(self, attempts: Callable[[str], Sequence[AttemptView]], output: str = "") -> Plan:
        """Record how runs ended. `attempts` of a job give the time of its first start.

        Several ticks may follow one job, which held their unique key: each is closed, and the job counts once.
        """
        attempts, counted = cache(attempts), set[str | None]()
        for run in sorted(self._ended, key=lambda run: (run.job and run.job.ended_at) or self.now):
            self._close(run, attempts, output, counts=run.tick.job_id not in counted)
            counted.add(run.tick.job_id)
        if self._ended and self.schedule.due_at is not None:  # a tick may have waited for these runs:
            self.set(due_at=min(self.now, self.schedule.due_at))  # a reader that closes them leaves the tick to fire
        self._ended = []
        return self

    def _close(self, run: Run, attempts: Callable[[str], Sequence[AttemptView]], output: str, *, counts: bool) -> None:
        job, tick = run.job, replace(run.tick, output=output or run.tick.output)
        if job is None:
            self.ticks.append(replace(tick, status="cancelled", why="its job was deleted", ended_at=self.now))
            return
        earlier = attempts(job.id) if job.attempt > 1 or job.started_at is None else ()
        started = min((each.started_at for each in earlier), default=job.started_at)
        status, why = _STATUS[job.state], "" if job.state is State.COMPLETED else _error_of(job)
        why = why[:_ERROR_SHOWN]
        if status == "cancelled" and why == EXPIRED:  # it was claimed, and its code did not start
            self.ticks.append(replace(tick, status="skipped", why=f"too late: {why}", ended_at=job.ended_at))
            return
        self.ticks.append(replace(tick, status=status, why=why, started_at=started, ended_at=job.ended_at))
        self._falls_behind |= self._outran(tick, job)
        if started is None or job.ended_at is None or not counts:
            return  # cancelled before it began: no run
        s = self.schedule
        failures = s.failure_count + 1 if status == "failure" else 0 if status == "success" else s.failure_count
        self.set(
            last_run_at=started,
            last_duration_ms=max(0, round((job.ended_at - started).total_seconds() * 1000)),
            last_status=status,
            last_error=why,
            failure_count=failures,
        )
        if s.pause_after is not None and status == "failure" and failures >= s.pause_after and not s.paused_at:
            self.pause(f"{failures} failures in a row")

    def _outran(self, tick: Tick, job: JobView) -> bool:
        """Was this a tick that was being made up for, and did its run last until the next one or longer?"""
        upto, ended_at = self.schedule.catching_up_to, job.ended_at
        if upto is None or ended_at is None or tick.cause != "tick" or tick.tick > upto:
            return False
        if not understood(self.schedule):  # its next tick can't be computed
            return False
        following = self.after(tick.tick)
        return following is not None and ended_at - tick.decided_at >= following - tick.tick

    # ── ticks ──

    def fire(self, *, spread: bool = True) -> Plan:
        """Decide every tick whose time has come. `spread` False: also those that wait for their jitter."""
        if self.schedule.idle or self.schedule.job is None:
            return self
        heed_zone(self)
        newest, pending = self._newest_due() if spread else self.upto(self.now), self.schedule.pending_tick
        if pending is not None and (not self._running or self.schedule.overlap == "allow"):
            self.set(pending_tick=None)
            newer = newest is not None and self.schedule.next_tick is not None and self.schedule.next_tick <= newest
            if newer and self.schedule.overlap == "replace":
                self.note("skipped", pending, "overlap: a newer tick replaced it while it waited")
            else:
                self._start(pending)
        while newest is not None and self.schedule.next_tick is not None and self.schedule.next_tick <= newest:
            if not self._decide(self.schedule.next_tick, newest):
                break
        return self._set_due()

    def _newest_due(self) -> datetime | None:
        tick = self.upto(self.now)
        while tick is not None and tick + jitter(self.schedule, tick) > self.now:
            tick = self.upto(tick - _MOMENT)
        return tick

    def _decide(self, first: datetime, newest: datetime) -> bool:
        """Decide the ticks from `first` on; False: the rest wait for the previous run to end."""
        s = self.schedule
        if s.catching_up_to is not None and first <= s.catching_up_to:
            if self._running and s.overlap != "allow":
                return False
            self._start(first)
            self.move_past(first)
            return True
        skips = s.catching_up_to is not None and (s.overlap, s.catch_up) == ("skip", "all") and self._falls_behind
        self.set(catching_up_to=None)
        late = (self.now - newest - jitter(s, newest)).total_seconds()
        if late > (ON_TIME if s.catch_up == "skip" else max(ON_TIME, s.catch_up_window)):
            why = f"no supervisor fired it in time: {spell(late)} late (catch_up={s.catch_up})"
            self.miss(first, newest + _MOMENT, why)
        elif skips:  # to make up for these, too, would take longer still, and for ever
            on_time = late <= ON_TIME
            self.miss(first, newest if on_time else newest + _MOMENT, _OUTRUN, "skipped")
            if on_time:
                self._start_or_overlap(newest)
        elif s.catch_up == "all" and (first < newest or late > ON_TIME):
            oldest = self._oldest_to_catch_up(first, newest)
            self.miss(first, oldest, f"more than catch_up_max ({s.catch_up_max}), or before catch_up_window")
            self.set(next_tick=oldest, catching_up_to=newest)
            return True
        else:
            self.miss(first, newest, f"no supervisor fired it in time (catch_up={s.catch_up})")
            self._start_or_overlap(newest)
        self.move_past(newest)
        return True

    def _oldest_to_catch_up(self, first: datetime, newest: datetime) -> datetime:
        """The oldest of the newest `catch_up_max` ticks that lie in the window."""
        s, oldest = self.schedule, newest
        horizon = max(first, self.now - timedelta(seconds=s.catch_up_window))
        for _ in range(s.catch_up_max - 1):
            before = self.upto(oldest - _MOMENT)
            if before is None or before < horizon:
                break
            oldest = before
        return oldest

    def _start_or_overlap(self, tick: datetime) -> None:
        """Start a tick that is on time, or the newest missed one, or apply `overlap` if a run is still running."""
        s = self.schedule
        if not self._running or s.overlap == "allow":
            self._start(tick)
        elif s.overlap == "skip":
            self.note("skipped", tick, f"overlap: {self._previous_run()}")
        elif s.overlap == "queue" and s.pending_tick is not None:
            waits = s.pending_tick.isoformat(timespec="seconds")
            self.note("skipped", tick, f"overlap: the tick of {waits} is already waiting, and {self._previous_run()}")
        else:
            if s.overlap == "replace":
                if s.pending_tick is not None:
                    self.note("skipped", s.pending_tick, "overlap: a newer tick replaced it while it waited")
                self.cancel = [run.job.id for run in self.live if run.job and self._replaceable(run.tick, run.job)]
            self.set(pending_tick=tick)

    def _replaceable(self, tick: Tick, job: JobView) -> bool:
        """Is this a run of a tick, not one started by an operator, nor another job that holds the unique key?"""
        own = tick.cause == "tick" and job.meta.get("schedule") == tick.schedule
        return own and job.cancel_reason is None

    def _previous_run(self) -> str:
        if not self.live or self.live[0].job is None:
            return "the previous run has not ended"
        job = self.live[0].job
        since = job.started_at or job.enqueued_at
        return f"job {job.id} of the previous run has been {job.state} for {spell((self.now - since).total_seconds())}"

    def _start(self, tick: datetime, cause: Cause = "tick", *, again: str = "") -> None:
        s = self.schedule
        assert s.job is not None, "a guard's run is started by its guard"
        left = None if s.expires is None else s.expires - (self.now - tick).total_seconds()
        if left is not None and left <= 0 and cause == "tick":
            late, may = spell((self.now - tick).total_seconds()), spell(s.expires or 0)
            self.note("skipped", tick, f"too late: {late} after its time, and it expires after {may}")
            return
        if cause == "tick" and s.reset_at is not None:  # the jobs of these ticks by the other clock may be kept
            again = str(s.reset_at)
        meta: dict[str, Any] = msgspec.json.decode(s.job.meta)
        meta |= {"schedule": s.name, "tick": tick.isoformat()}
        draft = s.job.but(
            id=run_id(s.name, tick, cause + again),
            meta=msgspec.json.encode(meta).decode(),
            expires=left if cause == "tick" else None,
        )
        self.drafts.append(draft)
        decided_at = max(self.now, s.named_at or self.now)  # it is this schedule's also if the clock was set back since
        self.ticks.append(Tick(schedule=s.name, tick=tick, cause=cause, job_id=draft.id, decided_at=decided_at))
        self._running += 1
        if cause == "tick":
            self.set(last_tick=tick)

    def _set_due(self) -> Plan:
        s = self.schedule
        if s.idle or s.job is None:
            self.set(due_at=None)
            return self
        moments = [] if s.next_tick is None else [s.next_tick + jitter(s, s.next_tick)]
        backlog = bool(moments) and moments[0] <= self.now
        if s.pending_tick is not None or backlog:
            moments = [self.now + timedelta(seconds=RECHECK_SECONDS), *(() if backlog else moments)]
        self.set(due_at=min(moments, default=None))
        return self

    # ── declarations ──

    def declare(self, new: Schedule) -> Plan:
        """Apply a declaration to the existing schedule. Ticks that were due by the old rule are fired first."""
        if self._read.rev == 0:
            self.schedule = new.but(since=self.now)
            if new.kind == "task":
                self.set(next_tick=self.after(self.now))
            return self._set_due()
        before = self.schedule
        moved = any(getattr(before, name) != getattr(new, name) for name in ("kind", *_TIMING))
        if before.kind != new.kind and understood(before):  # a guard's next tick is a call, not a tick of a task
            self.skip_passed(f"it has become a {new.kind}")
            self.set(next_tick=None)
        # By a new jitter, a tick that waits for the old one would be fired at another time, which may have passed.
        respread = before.jitter != new.jitter
        self.set(**{name: getattr(new, name) for name in _DEFINITION} | {"jitter": before.jitter})
        if before.paused_why.startswith(BROKEN):
            self.set(paused_at=None, paused_why="")
        if understood(before):
            self._decide_by_old_rule(moved, spread=not (moved or respread))
        else:  # its ticks since then can't be computed
            self.set(retired_at=None, pending_tick=None, unread="")
        self.set(jitter=new.jitter)
        if moved or before.unread:
            self.set(**{name: getattr(new, name) for name in _TIMING}, catching_up_to=None)
            self.set(next_tick=self.after(self.now) if new.kind == "task" else None)
        return self._set_due()

    def _decide_by_old_rule(self, moved: bool, *, spread: bool) -> None:
        """Fire the ticks that are due by the old rule, and record those that will not be fired."""
        if (retired_at := self.schedule.retired_at) is not None:
            self.set(retired_at=None)
            self.skip_passed("no app declared it", retired_at)
        if moved and self.schedule.paused_at is not None:
            self.skip_passed("paused", self.schedule.paused_at)
        # A row has one next tick: once that is one of another rule, no tick of the old one can wait for its jitter.
        next_tick = self.fire(spread=spread).schedule.next_tick
        if moved and next_tick is not None and next_tick <= self.now and self.schedule.job:
            self.miss(next_tick, self.now + _MOMENT, "its schedule was changed before it was fired")

    def retire(self) -> Plan:
        """No longer declared: keep the schedule and its history, but fire no ticks."""
        if self.schedule.retired_at is None:
            self.set(retired_at=self.now)
        return self._set_due()

    def pause(self, why: str) -> Plan:
        self._readable()
        if self.schedule.paused_at is None:
            self.set(paused_at=self.now, paused_why=why)
        return self._set_due()

    def resume(self) -> Plan:
        """Record the ticks that passed during the pause as skipped, and reset the count of failures.

        After the store's clock was set back, ticks count from now on, also those that have run by the other clock.
        """
        self._readable()
        if (paused_at := self.schedule.paused_at) is None:
            if set_back(self.schedule, self.now):
                self.set(next_tick=self.after(self.now), pending_tick=None, catching_up_to=None)
                self.set(since=min(self.schedule.since or self.now, self.now), reset_at=self.now)
                return self._set_due()
            return self  # keep due_at: a tick that is due stays due now
        self.set(paused_at=None, paused_why="", failure_count=0)
        self.skip_passed("paused", paused_at)
        return self._set_due()

    def _readable(self) -> None:
        if self.schedule.unread:
            raise Refused(why_unread(self.schedule))

    # ── operator actions ──

    def trigger(self, *, force: bool = False) -> Plan:
        """Run it now, in addition to its ticks. Raises Refused during a run that it may not overlap, unless `force`."""
        self._readable()
        s = self.schedule
        if s.job is None:
            raise Refused(f"{s.name} is a guard, which runs where it is called: run its command there, with --force")
        if self._running and s.overlap != "allow" and not force:
            raise Refused(
                f"{s.name} (overlap={s.overlap}) is not triggered: {self._previous_run()}; --force runs it in parallel"
            )
        self._start(self.now, "trigger")
        return self

    def backfill(self, ticks: Iterable[datetime], *, again: bool = False) -> Plan:
        """Run these ticks of the past, `again` if they were backfilled before. Raises Refused for a guard."""
        self._readable()
        if self.schedule.job is None:
            raise Refused(f"{self.schedule.name} is a guard: a worker can't backfill its runs")
        for tick in ticks:
            # Kept jobs of a removed schedule of this name do not count as this one's.
            self._start(tick, "backfill", again=str(self.now if again else self.schedule.since))
        return self


# ── health ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _error_of(job: JobView) -> str:
    error = job.error or job.cancel_reason or ""
    return f"its error is encrypted, and shown with job {job.id}" if is_sealed(error) else error


def set_back(schedule: Schedule, now: datetime) -> bool:
    """Was the store's clock set back so far that future ticks count as already decided?

    They are not fired until the clock reaches that point again, or `resume` resets the schedule.
    """
    s = schedule
    if s.idle or s.job is None or s.next_tick is None or (s.start is not None and s.start > now) or not understood(s):
        return False
    before = _before(s.rule, s.tz, s.dst, s.next_tick)
    return before is not None and before > now + timedelta(seconds=max(s.grace, SET_BACK))


def overdue_by(standing: Standing, now: datetime) -> float | None:
    """Seconds since a run should have begun and did not, if longer than its grace; None if it is not overdue.

    Either no supervisor fired the tick, or no worker started its job; or, of a guard, no call came.
    """
    s, lost = standing.schedule, lost_run(standing, now)
    live = [run for run in standing.runs if run.live and run is not lost]
    if s.idle or any(run.job and run.job.attempt > 0 for run in live):
        return None
    moments = [run.tick.decided_at for run in live]
    if s.next_tick is not None:
        moments.append(s.next_tick + jitter(s, s.next_tick))
    late = (now - min(moments)).total_seconds() if moments else 0.0
    return late if late > s.grace else None


def lost_run(standing: Standing, now: datetime) -> Run | None:
    """The run of a guard whose lease has ended, as its machine is gone: a supervisor, or the next call, records that.

    Where no supervisor runs and no call comes, the run stays live in the store, and does not go on.
    """
    lost = (run for run in standing.runs if run.live and run.locked_until is not None and run.locked_until < now)
    return next(lost, None) if standing.schedule.kind == "guard" else None


def heed_zone(plan: Plan) -> None:
    """If the next tick is none by the time zones of today, they have changed: it is the one that took its place.

    A tick that lies further back is that of the day before, which has run, or was decided.
    """
    s = plan.schedule
    if s.next_tick is None or plan.upto(s.next_tick) == s.next_tick:
        return
    moved, past = plan.upto(s.next_tick), max(filter(None, (s.last_tick, s.since)), default=None)
    earlier = moved is not None and s.next_tick - moved <= ZONE_SHIFT and (past is None or moved > past)
    plan.set(next_tick=moved if earlier else plan.after(s.next_tick))
