"""How a guarded run begins: a run left by a dead guard is rescued, then one compare-and-set write starts the new one.

A lock is never just cleared: either its owner's process is provably gone, or its lease has ended by the store's clock.
"""

from __future__ import annotations

import os
import pwd
from datetime import datetime, timedelta
from typing import NamedTuple

from tenure.core.durations import spell
from tenure.core.host import end_leftovers, host_name, token_of
from tenure.core.lifecycle import State
from tenure.errors import GuardSkipped, InvalidOption
from tenure.maintenance.holder import provably_gone
from tenure.maintenance.lifeline import in_time
from tenure.ports import Store, WorkerIdentity
from tenure.ports.schedules import Schedule, Standing, Tick
from tenure.schedules.cron import Every
from tenure.schedules.guard_plan import (
    EARLY,
    Began,
    Held,
    begin_guard,
    expect_next,
    other_command,
    other_rule,
    skip_call,
)
from tenure.schedules.plan import ON_TIME, Plan, rule_of, why_unread
from tenure.schedules.timetable import ticks_of

_MOST_READ = 200


class Begun(NamedTuple):
    tick: Tick
    late: str = ""  #: such as "late by 2h"; '' if on time
    changed: str = ""  #: how its interval has changed
    room: float | None = None  #: seconds until its next call is expected


def try_to_begin(store: Store, schedule: Schedule, me: WorkerIdentity, job_id: str, *, force: bool) -> Begun | None:
    """Begin the run. None: another writer was first, so try again. Raises GuardSkipped when it may not run."""
    found = store.schedules([schedule.name])
    standing = found[0] if found else Standing(schedule)
    if standing.schedule.unread:
        raise InvalidOption(why_unread(standing.schedule))
    if standing.schedule.kind == "task":
        owner = standing.schedule.source or "an operator"
        raise InvalidOption(
            f"{schedule.name} is a schedule of {owner} that enqueues jobs: give this guard another name"
        )
    mine = next((run.tick for run in standing.runs if run.live and run.tick.job_id == job_id), None)
    if mine is not None:  # the reply to the write was lost
        return Begun(mine, room=_room(standing.schedule, store.now()))
    if _took_back(store, standing, me):
        return None
    now = store.now()
    if why := other_rule(standing.schedule, schedule, now):
        raise InvalidOption(why)
    plan = Plan(standing, now).close(store.attempts).declare(schedule)
    paused = plan.schedule.paused_at is not None and not force
    if paused:
        why = plan.schedule.paused_why
        skip_call(plan, now, f"paused: {why}")
        began: Began | Held = Held(f"paused: {why}; tenure schedules resume {schedule.name}, or --force", locked=False)
    else:
        past = _ran_near(store, standing.schedule, now)
        began = begin_guard(
            plan, job_id, me.id, user_and_host(), now=now, force=force, past=past, command=schedule.command
        )
    if isinstance(began, Held):
        expect_next(plan)
        change = plan.change()
        if change is not None:
            store.change([change])
        if not paused and other_command(standing.schedule, schedule):
            raise InvalidOption(
                f"{schedule.name}: {began.says}. That was another command: {standing.schedule.command}; "
                "give each command a guard with a name of its own"
            )
        raise GuardSkipped(f"skipped: {began.says}")
    if not store.change([began.change])[0]:
        return None
    on_time = min(ON_TIME, plan.rule.seconds / 2) if isinstance(plan.rule, Every) else ON_TIME
    tick = next(tick for tick in began.change.ticks if tick.job_id == job_id)
    before = standing.schedule.rule
    changed = f"its rule was {before}, and is now {schedule.rule}" if found and before != schedule.rule else ""
    late = f"late by {spell(began.late)}" if began.late > on_time else ""
    return Begun(tick, late, changed, _room(began.change.schedule, now))


def _room(s: Schedule, now: datetime) -> float | None:
    return None if s.next_tick is None else (s.next_tick - now).total_seconds()


def _ran_near(store: Store, stands: Schedule, now: datetime) -> list[datetime]:
    """The ticks near now that have run, if the clock was set back since the last one: `last_tick` is only that one."""
    if stands.last_tick is None or stands.last_tick <= now:
        return []
    rule = rule_of(stands)
    ahead = timedelta(seconds=rule.seconds) if isinstance(rule, Every) else EARLY
    found = ticks_of(store, stands, limit=_MOST_READ, before=now + ahead)
    return [each.tick for each in found if each.job_id is not None and each.cause == "tick"]


def user_and_host() -> str:
    """The user and host of this run, for the history."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # an id without a name, as in many containers
        user = str(os.geteuid())
    return f"{user}@{host_name()}"


def _took_back(store: Store, standing: Standing, me: WorkerIdentity) -> bool:
    """Rescue live runs of dead guards, and of guards with an ended lease. True if there were any."""
    took = False
    for job in (run.job for run in standing.runs if run.live):
        if job is not None and job.worker_id is not None:
            _declare_if_gone(store, job.worker_id)
            until = in_time(store, me.lease)
            found = store.redelivered(job.id, declare=True, witness=me.id, until=until)
            took |= found is not State.PROCESSING
    return took


def _declare_if_gone(store: Store, owner: str) -> None:
    for worker in (view.identity for view in store.workers() if view.identity.id == owner):
        if provably_gone(worker):
            end_leftovers(token_of(owner))
            store.declare_dead([owner])
