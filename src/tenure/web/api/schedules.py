"""Schedules: their health, outcomes of past ticks, next ticks, and the operator's actions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query, Response

from tenure.errors import InvalidOption
from tenure.operations.schedule_health import ScheduleHealth, coming
from tenure.ports.schedules import Dst, Schedule, Status
from tenure.schedules import advice, cron
from tenure.schedules.cron import Rule
from tenure.schedules.plan import rule_of
from tenure.web.api.common import Administrator, Caller, NameOf, Operator, Reader, can, operation_id
from tenure.web.models import schedules as models
from tenure.web.models.values import AskedAt, Changed, Cursor, Length, shown
from tenure.web.security import Problem

router = APIRouter(tags=["schedules"], generate_unique_id_function=operation_id)
Count = Annotated[int, Query(ge=1, le=100, description="How many ticks.")]
After = Annotated[AskedAt | None, Query(description="Ticks after this time instead of now.")]
Expression = Annotated[str, Query(min_length=1, max_length=1000, examples=["0 6 * * *"])]
Zone = Annotated[str, Query(min_length=1, max_length=100, examples=["Europe/Paris"])]


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/schedules")
def get_schedules(caller: Reader) -> models.Schedules:
    """All schedules, sorted by name."""
    now = caller.admin.now()
    found = [ScheduleHealth.of(each, now) for each in caller.site.schedules()]
    return models.Schedules(schedules=[models.ScheduleSummary.of(each) for each in found])


@router.get("/schedules/{name}", responses=can(404))
def get_schedule(caller: Reader, name: NameOf) -> models.Schedule:
    """Its declaration and its current state."""
    return models.Schedule.detailed(caller.admin.schedules.health(name), caller.user.payloads)


@router.get("/schedules/{name}/history", responses=can(404))
def get_history(
    caller: Reader,
    name: NameOf,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most to return.")] = 50,
    before: Annotated[AskedAt | None, Query(description="Only ticks before this time.")] = None,
) -> models.History:
    """Outcomes of its ticks, newest first."""
    health, sees = caller.admin.schedules.health(name), caller.user.payloads
    ticks = caller.admin.schedules.ticks(health.schedule, limit=limit, before=before)
    return models.History(payloads=shown(sees), ticks=[models.TickDone.of(each, sees) for each in health.views(ticks)])


@router.get("/ticks")
def get_ticks(
    caller: Reader,
    since: Annotated[AskedAt | None, Query(description="Decided at or after this time; default: 24 hours ago.")] = None,
    until: Annotated[AskedAt | None, Query(description="Decided at or before this time; default: now.")] = None,
    status: Annotated[list[Status] | None, Query(description="Only these outcomes.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="The most to return.")] = 100,
    cursor: Cursor | None = None,
) -> models.Ticks:
    """What became of the ticks of all schedules: runs in progress, then those decided last first.

    A run is decided when it is fired, a missed tick when it is found."""
    sees, schedules, now = caller.user.payloads, caller.admin.schedules, caller.admin.now()
    only = frozenset(status or ())
    found = schedules.happened(since or now - timedelta(days=1), until or now, limit=limit, cursor=cursor, only=only)
    return models.Ticks(
        payloads=shown(sees), ticks=[models.TickOfAll.of(each, sees) for each in found.ticks], next=found.cursor
    )


@router.get("/schedules/{name}/preview", responses=can(404, 409))
def preview_schedule(caller: Reader, name: NameOf, count: Count = 10, after: After = None) -> models.Preview:
    """Its next ticks."""
    s, now = caller.admin.schedules.get(name).schedule, caller.admin.now()
    return _preview(_rule(s), after or now, count, s)


@router.get("/preview")
def preview_rule(
    caller: Reader,
    cron_: Annotated[
        Expression | None, Query(alias="cron", description="A cron expression: either this or `every`.")
    ] = None,
    every: Annotated[Length | None, Query(description="An interval: either this or `cron`.")] = None,
    tz: Annotated[Zone | None, Query(description="The time zone of `cron`; default UTC.")] = None,
    dst: Annotated[Dst | None, Query(description="How clock changes are handled; default debian.")] = None,
    count: Count = 10,
    after: After = None,
) -> models.Preview:
    """The next ticks of an expression, before it becomes a schedule."""
    if every is not None and (tz or dst):
        raise InvalidOption("every: an interval has no time zone; leave out tz and dst, or give cron")
    rule = cron.rule(cron_, every=every, tz=tz or "UTC", dst=dst or "debian")
    return _preview(rule, after or datetime.now(UTC), count)


def _rule(s: Schedule) -> Rule:
    try:
        return rule_of(s)
    except InvalidOption as error:
        raise Problem(
            HTTPStatus.CONFLICT, "Not understood", f"schedule {s.name} can't be read by this release: {error}"
        ) from error


def _preview(rule: Rule, since: datetime, count: int, schedule: Schedule | None = None) -> models.Preview:
    return models.Preview(
        rule=str(rule),
        tz="UTC" if isinstance(rule, cron.Every) else rule.tz,
        ticks=[models.Coming.of(each) for each in coming(rule, since, count, schedule)],
        lint=advice.lint(rule, since),
    )


@router.get("/overdue")
def get_overdue(caller: Reader) -> models.OverdueSchedules:
    """The schedules that should have run and did not."""
    found = caller.site.memo.get("overdue", caller.admin.schedules.overdue, fresh=1.0)
    return models.OverdueSchedules(schedules=[models.OverdueSchedule.like(each) for each in found])


# ── Acting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@router.post("/schedules/{name}/trigger", status_code=HTTPStatus.CREATED, responses=can(404, 409))
def trigger_schedule(
    caller: Operator, name: NameOf, response: Response, how: Annotated[models.Trigger | None, Body()] = None
) -> models.Triggered:
    """Run it now, in addition to its ticks."""
    admin, _ = caller.admin, _known(caller, name)
    job_id = admin.schedules.trigger(name, force=how is not None and how.force)
    caller.site.acted()
    response.headers["Location"] = f"{caller.root}/api/v1/jobs/{job_id}"
    return models.Triggered(schedule=name, job=UUID(job_id))


@router.post("/schedules/{name}/pause", responses=can(404))
def pause_schedule(caller: Operator, name: NameOf, why: Annotated[models.Why | None, Body()] = None) -> Changed:
    """No tick is fired until it is resumed; a run in progress continues."""
    admin, before = caller.admin, _known(caller, name)
    admin.schedules.pause(name, why.why if why else "by an operator")
    caller.site.acted()
    was = before.paused_at is not None
    return Changed(changed=not was, says=f"it was already paused: {before.paused_why}" if was else "paused")


@router.post("/schedules/{name}/resume", responses=can(404))
def resume_schedule(caller: Operator, name: NameOf) -> Changed:
    """Ticks are fired again; those that passed meanwhile are recorded in the history as skipped."""
    admin, before = caller.admin, _known(caller, name)
    admin.schedules.resume(name)
    caller.site.acted()
    was = before.paused_at is not None
    return Changed(changed=was, says="resumed" if was else "it was not paused")


@router.post("/schedules/{name}/backfill", responses=can(404, 409))
def backfill_schedule(caller: Operator, name: NameOf, span: models.Span) -> models.Backfilled:
    """Run past ticks that did not become runs. With `dry_run` they are only counted: do that first."""
    admin, s = caller.admin, _known(caller, name)
    _rule(s)
    now = admin.now()
    until = span.until or now
    if until > now or span.since > until:
        raise InvalidOption(f"backfill: expected times of the past, since before until, got {span.since} to {until}")
    ticks = admin.schedules.to_backfill(name, span.since, until, again=span.again)
    ids = list[str]()
    if ticks and not span.dry_run:
        ids = admin.schedules.backfill(name, span.since, until, again=span.again)
        caller.site.acted()
    ends = (ticks[0], ticks[-1]) if ticks else (None, None)
    return models.Backfilled(ticks=len(ticks), first=ends[0], last=ends[1], jobs=[UUID(each) for each in ids])


@router.post("/schedules/{name}/rename", responses=can(404, 409))
def rename_schedule(caller: Administrator, name: NameOf, to: models.NewName) -> Changed:
    """Give it a new name; its history goes along. Refused while an app declares the old one, and during a run."""
    admin, _ = caller.admin, _undeclared(caller, name, f"deploy the code without it, then rename it to {to.name}")
    admin.schedules.rename(name, to.name)
    caller.site.acted()
    return Changed(changed=True, says=f"renamed to {to.name} with its history")


@router.delete("/schedules/{name}", responses=can(404, 409))
def delete_schedule(caller: Administrator, name: NameOf) -> Changed:
    """Deleted with its history; its jobs stay. One that an app declares would be added again, so it is refused."""
    admin, _ = caller.admin, _undeclared(caller, name, "pause it, or remove it from the code")
    admin.schedules.remove(name)
    caller.site.acted()
    return Changed(changed=True, says="removed with its history")


def _known(caller: Caller, name: str) -> Schedule:
    """Checked before anything is recorded. Raises UnknownSchedule."""
    return caller.admin.schedules.declared(name)


def _undeclared(caller: Caller, name: str, instead: str) -> Schedule:
    """Raises UnknownSchedule, and Problem if an app would declare it again."""
    s = _known(caller, name)
    if s.source and s.retired_at is None:
        raise Problem(
            HTTPStatus.CONFLICT,
            "Declared by an app",
            f"{name} is declared by app {s.source}, which would add it again at its next start: {instead}",
        )
    return s
