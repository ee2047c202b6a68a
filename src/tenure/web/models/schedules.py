"""Models of schedules and of the actions on them."""

from __future__ import annotations

from typing import Any, Literal, Self
from uuid import UUID

from pydantic import Field

from tenure.core.lifecycle import State
from tenure.operations.schedule_health import ScheduleHealth, TickView
from tenure.ports import schedules
from tenure.ports.schedules import Cause, RunStatus, Status
from tenure.schedules.advice import Outlook
from tenure.web.models.values import AskedAt, At, Model, Name, Payloads, Stored, Words, read, shown


class ScheduleSummary(Model):
    """A schedule's health in one row."""

    name: str
    schedule: str = Field(description="Its rule and time zone, for people.", examples=["0 6 * * * Europe/Paris"])
    kind: Literal["task", "guard"]
    rule: str = Field(examples=["0 6 * * *", "every 1h30m"])
    tz: str = Field(examples=["Europe/Paris"])
    last_run_at: At | None
    last_duration_ms: int | None = Field(description="Milliseconds.")
    last_status: RunStatus | None
    last_error: str
    next_expected_at: At | None = Field(description="null: paused, retired, or there are no more ticks.")
    locked_until: At | None = Field(description="A run is in progress, with a lease until this time.")
    failure_count: int = Field(description="Failures in a row.")
    overdue_by: float | None = Field(description="Seconds; null: it is not overdue.")
    paused_at: At | None
    paused_why: str
    retired_at: At | None = Field(description="No longer declared by its app: kept, not fired.")

    @classmethod
    def of(cls, health: ScheduleHealth) -> Self:
        return cls.like(health.schedule, **_stands(health))


def _stands(health: ScheduleHealth) -> dict[str, Any]:
    return {**health.record._asdict(), "overdue_by": health.late}


class Schedules(Model):
    schedules: list[ScheduleSummary]


class Run(Model):
    """A run in progress."""

    tick: At
    cause: Cause
    job: UUID | None
    state: State | None = Field(description="null: its job was deleted.")

    @classmethod
    def of(cls, run: schedules.Run) -> Self:
        tick, job = run.tick, run.job
        return cls.like(tick, job=job.id if job else None, state=job.state if job else None)


class FormerName(Model):
    name: str
    until: At


class Schedule(ScheduleSummary):
    """A schedule with all details."""

    formerly: list[FormerName] = Field(description="The names that it had, oldest first.")
    source: str = Field(description="The module that declares it; empty: an operator or a guard made it.")
    release: str
    dst: str
    overlap: str
    catch_up: str
    catch_up_window: float = Field(description="Seconds.")
    catch_up_max: int
    expires: float | None = Field(description="Seconds.")
    jitter: float = Field(description="Seconds.")
    start: At | None
    end: At | None
    pause_after: int | None
    alert_after: int
    grace: float = Field(description="Seconds after which it is overdue.")
    too_long: float | None = Field(description="Seconds.")
    task: str | None
    queue: str | None
    payloads: Payloads
    args: Stored = Field(description="Arguments of its task, secrets redacted; null if payloads are hidden.")
    runs: list[Run]
    lint: list[str] = Field(description="What its rule does that people do not expect.")

    @classmethod
    def detailed(cls, health: ScheduleHealth, payloads: bool) -> Self:
        s, job = health.schedule, health.schedule.job
        return cls.like(
            s,
            **_stands(health),
            task=job.task if job else None,
            queue=job.queue if job else None,
            payloads=shown(payloads),
            args=read(job.payload, payloads) if job else None,
            formerly=[FormerName.like(each) for each in s.formerly],
            runs=[Run.of(run) for run in health.standing.runs],
            lint=health.lint,
        )


class TickDone(Model):
    """The outcome of one tick, or of a series of missed ones."""

    tick: At
    until: At | None = Field(description="The last one of a series of missed ticks.")
    count: int
    cause: Cause
    status: Status
    why: str = Field(description="The reason if it was skipped or missed, the error if it failed.")
    job: UUID | None
    decided_at: At
    started_at: At | None
    ended_at: At | None
    duration_ms: int | None = Field(description="Milliseconds.")
    host: str
    tries: int = Field(description="How often a guarded command was run for it.")
    output: str | None = Field(description="The end of what a guarded command printed; null if payloads are hidden.")

    @classmethod
    def of(cls, view: TickView, payloads: bool) -> Self:
        tick, took = view.tick, view.took_ms
        output = tick.output if payloads else None
        return cls.like(tick, job=tick.job_id or None, started_at=view.started_at, duration_ms=took, output=output)


class History(Model):
    """Newest first."""

    payloads: Payloads
    ticks: list[TickDone]


class TickOfAll(TickDone):
    """The outcome of one tick, and whose it is."""

    schedule: str


class Ticks(Model):
    """Runs in progress, then the ticks that were decided last first."""

    payloads: Payloads
    ticks: list[TickOfAll]
    next: str | None = Field(description="`cursor` of the next page, which may be short; null: this is the last.")


class NewName(Model):
    name: Name


class Coming(Model):
    """A future tick."""

    tick: At
    local: str = Field(description="Local time in its zone.", examples=["2030-01-31T07:00:00+01:00"])
    note: str = Field(description="The effect of a clock change on it; usually empty.")

    @classmethod
    def of(cls, coming: Outlook) -> Self:
        return cls.like(coming, local=coming.local.isoformat())


class Preview(Model):
    rule: str
    tz: str
    ticks: list[Coming]
    lint: list[str] = Field(description="What the rule does that people do not expect.")


class OverdueSchedule(Model):
    name: str
    expected_at: At
    overdue_by: float = Field(description="Seconds.")
    grace: float = Field(description="Seconds after which it is overdue.")
    why: str


class OverdueSchedules(Model):
    """The longest overdue first."""

    schedules: list[OverdueSchedule]


class Trigger(Model):
    force: bool = Field(False, description="Even while a run of it is in progress.")


class Triggered(Model):
    schedule: str
    job: UUID


class Why(Model):
    why: Words = Field("by an operator", description="The reason, kept with the schedule.")


class Span(Model):
    since: AskedAt = Field(description="No tick before this time.")
    until: AskedAt | None = Field(None, description="No tick after this time; default now.")
    again: bool = Field(False, description="Also ticks that did become runs.")
    dry_run: bool = Field(False, description="Only count them.")


class Backfilled(Model):
    ticks: int = Field(description="How many are run, or would be.")
    first: At | None
    last: At | None
    jobs: list[UUID] = Field(description="Empty for a dry run.")
