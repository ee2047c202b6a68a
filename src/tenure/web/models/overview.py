"""Models of queues, workers, counts and the audit trail."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, Self
from uuid import UUID

from pydantic import Field

from tenure.core.lifecycle import LIVE, State
from tenure.operations import queues, workers
from tenure.operations.trends import RollUp, TaskTrend
from tenure.ports import QueueView, WorkerView
from tenure.web.models.values import At, Length, Model, Words


class Queue(Model):
    name: str
    paused_at: At | None
    waiting: int = Field(description="For other jobs, or a signal.")
    scheduled: int
    queued: int
    processing: int
    oldest_queued: float | None = Field(description="Seconds that the longest-waiting job has been due.")

    @classmethod
    def of(cls, queue: QueueView) -> Self:
        live = {state.value: queue.counts.get(state, 0) for state in LIVE}
        return cls.like(queue, **live)


class QueueDetail(Queue):
    workers: int = Field(description="Live workers that serve it.")
    slots: int = Field(description="Their slots.")
    paused_by: str | None = Field(description="Null: it is not paused, or that is not on record.")
    paused_why: str | None
    growth: float | None = Field(
        description="Jobs a second by which its backlog grew lately; negative: it shrank. Null: not measured yet."
    )
    empty_in: float | None = Field(description="Seconds until it is empty at this pace; null: never, or not known.")
    outlook: str = Field(description="The same for people.")

    @classmethod
    def detailed(cls, row: queues.QueueHealth) -> Self:
        pace, pause = row.pace, row.pause
        return cls(
            **Queue.of(row.queue).model_dump(),
            workers=row.workers,
            slots=row.slots,
            paused_by=None if pause is None else pause.who,
            paused_why=None if pause is None else pause.why,
            growth=None if pace is None else pace.growth,
            empty_in=None if pace is None else pace.empty_in,
            outlook=row.outlook,
        )


class PauseQueue(Model):
    why: Words = Field("", description="The reason, kept with the queue while it is paused.")


class Queues(Model):
    queues: list[QueueDetail]


class Ran(Model):
    """A job that a worker ran when it ended."""

    id: UUID
    task: str


class Ending(Model):
    """How a worker ended."""

    how: str = Field(description="For people: signal or exit code, or why it was killed.")
    ran: list[Ran] = Field(description="The jobs that it ran then, at most 20.")
    more: int = Field(description="How many more it ran.")

    @classmethod
    def of(cls, end: workers.Ending) -> Self:
        return cls.like(end, ran=[Ran.like(each) for each in end.ran])


class Worker(Model):
    id: str
    host: str
    pid: int
    runner: str = Field(
        description="worker, embedded, solo (for jobs that must run alone, or in a small group) or guard."
    )
    queues: list[str] = Field(description="Empty: all.")
    tasks: list[str]
    slots: int
    processing: int = Field(description="Slots in use.")
    lease: float = Field(description="Seconds without a renewal after which its jobs are rescued.")
    memory: int | None = Field(description="Memory of its process, in bytes.")
    note: str = Field(description="What is wrong with it; empty: nothing.")
    started_at: At
    renewed_at: At
    expires_at: At
    died_at: At | None
    ended: Ending | None = Field(description="How it ended; null: it is alive.")

    @classmethod
    def of(cls, worker: WorkerView) -> Self:
        end = workers.ending(worker)
        names = ("id", "host", "pid", "runner", "queues", "tasks", "slots", "lease")
        return cls.like(
            worker,
            **{name: getattr(worker.identity, name) for name in names},
            note=worker.note if end is None else "",
            ended=None if end is None else Ending.of(end),
        )


class StopWorker(Model):
    grace: Length | None = Field(
        None,
        description="Running jobs that have not ended by then are handed back, uncharged; default: its own grace.",
    )


class Stopping(Model):
    """A worker that has been told to drain."""

    worker: str
    verb: Literal["drain", "restart"]
    says: str = Field(description="For people.")


class Stop(Model):
    """Who has had a worker drained or restarted."""

    verb: Literal["drain", "restart"]
    who: str
    at: At
    taken: bool = Field(description="Its supervisor has begun.")


class WorkerDetail(Worker):
    stop: Stop | None = Field(description="Null: no operator has stopped it.")

    @classmethod
    def detailed(cls, worker: WorkerView, stop: workers.Stop | None) -> Self:
        return cls(**Worker.of(worker).model_dump(), stop=None if stop is None else Stop.like(stop))


class Workers(Model):
    workers: list[WorkerDetail]


class Counts(Model):
    """Jobs by state."""

    waiting: int
    scheduled: int
    queued: int
    processing: int
    completed: int
    dead: int
    cancelled: int

    @classmethod
    def of(cls, counts: Mapping[State, int]) -> Self:
        return cls(**{state.value: counts.get(state, 0) for state in State})


class Rates(Model):
    """Jobs per second by how they ended, over the last few seconds."""

    completed: float
    dead: float
    cancelled: float

    @classmethod
    def of(cls, rates: Mapping[State, float]) -> Self:
        return cls(**{name: rates.get(State(name), 0.0) for name in cls.model_fields})


class Trouble(Model):
    """Something that is wrong right now."""

    kind: str
    subject: str = Field(description="The schedule, task, queue, limit or key that it is about.")
    says: str
    fix: str = Field(description="What to do about it: a command, or a change of the code. Empty: read `says`.")
    cause: str = Field(description="`kind:subject` of the problem that causes it; empty: none is known.")
    jobs: list[UUID] = Field(description="Some of the jobs that it is about.")


class Stats(Model):
    """The whole store at a glance."""

    counts: Counts
    counts_age: float = Field(description="How many seconds ago they were counted.")
    rates: Rates
    queues: list[Queue]
    workers: list[Worker]
    problems: list[Trouble] = Field(description="Causes first, each followed by what it causes.")


class Point(Model):
    """The jobs that ended in a step of a trend. Null: nothing was recorded."""

    at: At
    seconds: int = Field(description="How long the step is; the last one is in progress.")
    completed: int | None
    dead: int | None
    cancelled: int | None
    wait_p50: float | None = Field(description="Seconds from due to started, of the completed ones.")
    wait_p95: float | None

    @classmethod
    def of(cls, point: RollUp) -> Self:
        names = ("completed", "dead", "cancelled", "wait_p50", "wait_p95")
        figures = TaskTrend.of("", point.total)
        found = {name: getattr(figures, name) if point.known else None for name in names}
        return cls(at=datetime.fromtimestamp(point.at, UTC), seconds=point.seconds, **found)


class TaskFigures(Model):
    task: str = Field(description="(others): the tasks beyond the first fifty.")
    completed: int
    dead: int
    cancelled: int
    stumbled: int = Field(description="Ended after at least one failure or crash.")
    failure_rate: float | None = Field(description="The share of its completed and dead jobs that are dead.")
    wait_p50: float | None = Field(description="Seconds from due to started, of the completed ones, to 5%.")
    wait_p95: float | None
    run_p50: float | None = Field(description="Seconds from started to ended, of the completed ones, to 5%.")
    run_p95: float | None


class Trend(Model):
    """What ended, over time and by task."""

    span: str
    points: list[Point] = Field(description="Oldest first.")
    tasks: list[TaskFigures] = Field(description="Those of which most jobs ended first.")


class AuditEntry(Model):
    id: UUID
    at: At
    who: str
    action: str = Field(examples=["jobs.replay"])
    subject: str
    detail: dict[str, str]
    outcome: str = Field(description="For people; `asked`: it was interrupted.")


class Audit(Model):
    """Newest first."""

    entries: list[AuditEntry]
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.")


class Health(Model):
    status: Literal["ok", "away"]
