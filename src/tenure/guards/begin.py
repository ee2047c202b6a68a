"""How a guarded run begins: what a dead guard before it left is taken back, then one guarded write starts it.

Nobody clears a lock for somebody else: it is proved that its process is gone, or its lease has ended by the store's
clock.
"""

from __future__ import annotations

import os
import pwd
from typing import NamedTuple

from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.errors import GuardSkipped, InvalidOption
from tenure.liveness.holder import provably_gone
from tenure.liveness.host import end_leftovers, host_name, token_of
from tenure.liveness.lifeline import in_time
from tenure.ports import Store, WorkerIdentity
from tenure.ports.schedules import Schedule, Standing, Tick
from tenure.schedules.cron import Every
from tenure.schedules.guard_plan import Began, Held, begin_guard, skip_call
from tenure.schedules.plan import ON_TIME, Plan


class Begun(NamedTuple):
    tick: Tick
    late: str = ""  #: "late by 2h", if it is


def try_to_begin(store: Store, schedule: Schedule, me: WorkerIdentity, job_id: str, *, force: bool) -> Begun | None:
    """The run, if it has begun; None: read again. Raises GuardSkipped when it may not run."""
    found = store.schedules([schedule.name])
    standing = found[0] if found else Standing(schedule)
    if standing.schedule.kind == "task":
        whose = standing.schedule.source or "an operator"
        raise InvalidOption(
            f"{schedule.name} is a schedule of {whose}, whose ticks are jobs: name this guard otherwise"
        )
    mine = next((run.tick for run in standing.runs if run.live and run.tick.job_id == job_id), None)
    if mine is not None:  # the reply to the write was lost
        return Begun(mine)
    if _took_back(store, standing, me):
        return None
    now = store.now()
    plan = Plan(standing, now).close(store.attempts).declare(schedule)
    if plan.schedule.paused_at is not None and not force:
        why = plan.schedule.paused_why
        skip_call(plan, now, f"paused: {why}")
        began: Began | Held = Held(f"paused: {why}; tenure schedules resume {schedule.name}, or --force", locked=False)
    else:
        began = begin_guard(plan, job_id, me.id, user_and_host(), now=now, force=force)
    if isinstance(began, Held):
        change = plan.change()
        if change is not None:
            store.change([change])
        raise GuardSkipped(f"skipped: {began.says}")
    if not store.change([began.change])[0]:
        return None
    on_time = min(ON_TIME, plan.rule.seconds / 2) if isinstance(plan.rule, Every) else ON_TIME
    tick = next(tick for tick in began.change.ticks if tick.job_id == job_id)
    return Begun(tick, f"late by {spell(began.late)}" if began.late > on_time else "")


def user_and_host() -> str:
    """Who runs it, and where: what a history is read for."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # an id without a name, as in many containers
        user = str(os.geteuid())
    return f"{user}@{host_name()}"


def _took_back(store: Store, standing: Standing, me: WorkerIdentity) -> bool:
    """Did a run that goes on belong to a guard that is dead, or whose lease has ended?"""
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
