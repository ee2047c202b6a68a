"""Decides a guard's call: a run, or the reason why there is none. `Store.change` writes it, as it does every tick."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from math import floor

import msgspec

from tenure.core.durations import spell
from tenure.core.lifecycle import GUARD
from tenure.errors import InvalidOption
from tenure.ports import Draft
from tenure.ports.schedules import Cause, Change, Run, Schedule, Tick
from tenure.schedules.cron import Every, Rule
from tenure.schedules.plan import ON_TIME, Plan, PlannedChange

EARLY = timedelta(minutes=5)  #: a guard's call counts for a cron tick up to this long before its time


class Began:
    """The plan of a guard's run: `change` starts it, `job_id` is its job, `late` the seconds since its time."""

    def __init__(self, change: Change, late: float) -> None:
        self.change = change
        self.job_id = change.drafts[0].id
        self.late = late


class Held:
    """A guard's call that does not run, and why. `locked`: another run holds the lock; else the tick already ran."""

    def __init__(self, says: str, *, locked: bool) -> None:
        self.says = says
        self.locked = locked


def other_rule(stands: Schedule, new: Schedule, now: datetime) -> str:
    """Why a call by another rule than the one on record is refused; empty: it may change the rule.

    Two callers that disagree, such as two hosts of which one has no --tz, would each run what they take for the tick.
    So the rule changes only once a call by the old one is overdue. An interval may change at once: its tick is the
    call itself, refused within half of the call's own period.
    """
    same = (stands.rule, stands.tz, stands.dst) == (new.rule, new.tz, new.dst)
    if same or stands.rev == 0 or stands.kind != "guard" or stands.unread or stands.next_tick is None:
        return ""
    if stands.rule.startswith("every ") and new.rule.startswith("every "):
        return ""
    if now > stands.next_tick + timedelta(seconds=stands.grace):
        return ""
    return (
        f"{new.name}: this call has the rule {_rule(new)}, and the calls before it {_rule(stands)}: not run, as both "
        "would run. Give all callers of a guard the same rule and time zone, and put a changed one on record by: "
        f"tenure guard declare {new.name} …"
    )


def _rule(s: Schedule) -> str:
    return f"{s.rule!r} ({s.tz})"


def other_command(stands: Schedule, new: Schedule) -> bool:
    """Do two commands use one name? Numbers are ignored: `backup.sh $(date +%F)` is one command on all days."""
    ran, called = (re.sub(r"\d+", "", s.command) for s in (stands, new))
    return bool(ran and called) and ran != called


def expect_guard(plan: Plan, new: Schedule) -> Plan:
    """Declare a guard before its first call, so that it is overdue if none comes."""
    plan.declare(new)
    if plan.schedule.next_tick is None:
        rule = plan.rule
        period = timedelta(seconds=rule.seconds) if isinstance(rule, Every) else None
        plan.set(next_tick=plan.after(plan.now) if period is None else plan.now + period)
    return plan


def begin_guard(
    plan: PlannedChange,
    job_id: str,
    worker_id: str,
    host: str,
    *,
    now: datetime,
    force: bool = False,
    past: Collection[datetime] = (),
    command: str = "",
) -> Began | Held:
    """Start a guard's run, or say why not. `past`: ticks near now that have run, if the clock was set back.

    With a cron expression the tick is the *nearest* one, but never one more than five minutes ahead: a crontab that
    is 300 ms early must not lose the day's run, and a manual call in the evening must not use up tomorrow's tick. With
    an interval the tick is the call itself, refused within half a period of the last accepted one; the times at which
    calls are expected count from the first one, so that a late call moves none after it.
    """
    s, rule = plan.schedule, plan.rule
    if plan.live:
        held = Held(f"still locked until {_locked_until(plan.live[0], now)}", locked=True)
        skip_call(plan, now, f"overlap: {held.says}")
        return held
    tick = _called_for(rule, now)
    if tick is None:
        raise InvalidOption(f"{s.name}: {s.rule!r} has no tick")
    again = _ran(s, rule, tick, past)
    if again is not None and not force:
        ran = again.isoformat(timespec="seconds")
        how = s.last_status or "started"
        return Held(f"the tick of {ran} has already run ({how}); --force runs it again", locked=False)
    expected = s.next_tick if isinstance(rule, Every) else tick
    late = 0.0 if expected is None else max(0.0, (now - expected).total_seconds())
    _missed_calls(plan, tick, now)
    cause: Cause = "tick" if again is None else "trigger"
    tick = tick if again is None else now
    draft = Draft(
        id=job_id,
        task=s.name,
        payload=msgspec.json.encode({"command": command} if command else {}).decode(),
        queue=GUARD,
        max_failures=1,
        max_crashes=0,
        meta=msgspec.json.encode({"schedule": s.name, "tick": tick.isoformat()}).decode(),
    )
    if again is None:  # a clock that was set back does not move the last tick back
        plan.set(last_tick=max(tick, s.last_tick or tick), next_tick=_tick_after(s, rule, tick))
    plan.set(command=command)
    plan.ticks.append(
        Tick(schedule=s.name, tick=tick, cause=cause, job_id=draft.id, decided_at=now, started_at=now, host=host)
    )
    plan.drafts.append(draft)
    change = plan.change()
    assert change is not None
    return Began(replace(change, owner=worker_id), late)


def skip_call(plan: PlannedChange, now: datetime, why: str) -> None:
    """Record that a call came and did not run, unless it is for the tick of the last run."""
    rule = plan.rule
    tick = _called_for(rule, now)
    if tick is not None and _ran(plan.schedule, rule, tick) is None:
        _missed_calls(plan, tick, now)
        plan.note("skipped", tick, why)
        plan.set(next_tick=_tick_after(plan.schedule, rule, tick))


def _called_for(rule: Rule, now: datetime) -> datetime | None:
    """The tick that a call at this moment is for."""
    if isinstance(rule, Every):
        return now
    nearest = rule.nearest(now)
    return nearest if nearest is None or nearest - now <= EARLY else rule.upto(now) or nearest


def _ran(s: Schedule, rule: Rule, tick: datetime, past: Collection[datetime] = ()) -> datetime | None:
    """The run of this tick that was already accepted."""
    near = rule.seconds / 2 if isinstance(rule, Every) else 0.0
    ran = [*past, s.last_tick] if s.last_tick is not None else past
    return next((each for each in ran if each == tick or abs((tick - each).total_seconds()) < near), None)


def expect_next(plan: Plan) -> None:
    """A guard whose timing was changed by a call that did not run: without this it would never be overdue."""
    s = plan.schedule
    if s.next_tick is None and s.last_tick is not None:
        plan.set(next_tick=_tick_after(s, plan.rule, s.last_tick))


def _tick_after(s: Schedule, rule: Rule, tick: datetime) -> datetime | None:
    """When the next call is expected.

    Of an interval, one period after the time this call was expected at: a late call must not move those after it. The
    first call sets the times. So does a second call in a row that is off by as much: its caller calls at other times
    now, as after a change of the crontab.
    """
    if not isinstance(rule, Every):
        return rule.after(tick)
    period = timedelta(seconds=rule.seconds)
    if s.next_tick is None or s.last_tick is None:
        return tick + period
    on_time = timedelta(seconds=min(ON_TIME, rule.seconds / 2))
    off = _off(tick - s.next_tick, period)
    moved = abs(off) > on_time and abs(_off(tick - s.last_tick, period)) <= on_time
    return tick - (timedelta() if moved else off) + period


def _off(distance: timedelta, period: timedelta) -> timedelta:
    """How far this distance is from the nearest multiple of the period."""
    return distance - period * floor(distance / period + 0.5)


def _missed_calls(plan: PlannedChange, tick: datetime, now: datetime) -> None:
    """Record the ticks for which no call came."""
    s, rule = plan.schedule, plan.rule
    if s.next_tick is None or s.next_tick >= tick:
        return
    if not isinstance(rule, Every):
        plan.miss(s.next_tick, tick, "no call came")
        return
    count = int((tick - s.next_tick).total_seconds() / rule.seconds + 0.5)
    if count:
        last = s.next_tick + timedelta(seconds=rule.seconds * (count - 1))
        plan.ticks.append(
            Tick(
                schedule=s.name,
                tick=s.next_tick,
                status="missed",
                why="no call came",
                until=None if count == 1 else last,
                count=count,
                decided_at=now,
            )
        )


def _locked_until(run: Run, now: datetime) -> str:
    until = (run.locked_until or now).isoformat(timespec="seconds")
    began = run.tick.started_at or run.tick.decided_at
    return f"{until} ({run.tick.host or 'unknown host'}, running for {spell((now - began).total_seconds())})"
