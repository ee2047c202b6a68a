"""Jobs, as the API takes and gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self
from uuid import UUID

from pydantic import AfterValidator, Field

from tenure.core.lifecycle import State
from tenure.operations.explain import Explanation
from tenure.operations.jobs import Acted, Bulk, Edited, JobDetail, Verb
from tenure.ports import AttemptView, Filter, JobView
from tenure.web.models.values import (
    AskedAt,
    At,
    Cursor,
    Json,
    Length,
    Model,
    Name,
    Payloads,
    Text,
    Words,
    ours,
    read,
    shown,
)
from tenure.worker.job_log import Log


class Where(Model):
    """Which jobs, in any state. What is left out means any."""

    task: Text | None = Field(None, description="Of this task.")
    queue: Text | None = Field(None, description="In this queue.")
    worker: Text | None = Field(None, description="This worker runs them.")
    unique: Text | None = Field(None, description="With this unique key.")
    text: Text | None = Field(None, description="This is in the error or the id.")
    enqueued_since: AskedAt | None = Field(None, description="Enqueued then or later.")
    enqueued_until: AskedAt | None = Field(None, description="Enqueued before.")
    ended_since: AskedAt | None = Field(None, description="Ended then or later.")

    def filter(self, states: Sequence[State] = ()) -> Filter:
        return Filter(
            states=frozenset(states),
            task=self.task,
            queue=self.queue,
            worker_id=self.worker,
            unique=self.unique,
            text=self.text,
            ended_since=self.ended_since,
            enqueued_since=self.enqueued_since,
            enqueued_until=self.enqueued_until,
        )


class JobFilter(Where):
    """Which jobs. What is left out means any."""

    state: list[State] = Field([], description="In any of these states.", max_length=6)


_limit = Field(50, ge=1, le=200, description="So many at most.")


class JobQuery(JobFilter):
    limit: int = _limit
    cursor: Cursor | None = None


class DeadQuery(Where):
    limit: int = _limit
    cursor: Cursor | None = None


class JobSummary(Model):
    """A job, as lists show it."""

    id: UUID
    task: str
    queue: str
    state: State
    priority: int = Field(description="-100 to 100; higher runs first.")
    attempt: int = Field(description="How often it was begun.")
    failures: int
    crashes: int
    unique: str | None = Field(description="Its key, of which there is one live job of a task.")
    worker: str | None = Field(description="Who runs it, or has completed it.")
    progress: float | None = Field(description="0 to 1.")
    stage: str | None
    message: str | None
    error: str | None = Field(description="The last one.")
    enqueued_at: At
    run_at: At = Field(description="When it is due.")
    expires_at: At | None
    started_at: At | None
    last_activity_at: At | None
    ended_at: At | None
    cancel_reason: str | None = Field(description="A cancel was asked for, and why.")

    @classmethod
    def of(cls, job: JobView) -> Self:
        return cls.like(job, worker=_worker(job))


def _worker(job: JobView) -> str | None:
    return job.worker_id or job.completed_by


class Jobs(Model):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]
    next: str | None = Field(
        description="`cursor` of the next page; null: that was all. A page may be short, or empty, and have a next "
        "one: each looks through so many jobs at most.",
    )


class LogLine(Model):
    at: At = Field(description="By the clock of the machine that logged it.")
    level: str = Field(examples=["info"])
    text: str


class AttemptLog(Model):
    """The last lines that an attempt logged, oldest first."""

    attempt: int
    dropped: int = Field(description="So many lines came before them.")
    lines: list[LogLine]

    @classmethod
    def of(cls, attempt: int, log: Log) -> Self:
        return cls(attempt=attempt, dropped=log.dropped, lines=[LogLine.like(line) for line in log.lines])


class Attempt(Model):
    """An attempt that ended otherwise than completed."""

    attempt: int
    worker: str
    outcome: str = Field(examples=["failed", "crashed"])
    error: str
    evidence: dict[str, str] = Field(description="What was seen of its process: signal, peak memory, last line.")
    refused: str | None = Field(description="A later write of this attempt did not land, and why.")
    started_at: At
    ended_at: At

    @classmethod
    def of(cls, attempt: AttemptView) -> Self:
        evidence = dict(attempt.evidence)
        refused = evidence.pop("refused", None)
        return cls.like(attempt, worker=attempt.worker_id, evidence=evidence, refused=refused)


class Edit(Model):
    """Somebody changed a job's arguments and had it run again."""

    at: At
    who: str
    before: Json = Field(description="The arguments until then.")

    @classmethod
    def of(cls, edited: Edited) -> Self:
        return cls.like(edited, before=read(edited.before, shown=True))


class Job(JobSummary):
    """A job and all that is known of it."""

    payloads: Payloads
    args: Json = Field(description="Arguments by name, secrets starred; null if payloads are hidden.")
    result: Json = Field(description="Of a completed one; null if payloads are hidden.")
    checkpoint: Json = Field(description="What the next attempt goes on from; null if payloads are hidden.")
    meta: dict[str, str]
    max_failures: int
    max_crashes: int
    crashes_total: int = Field(description="Also those before a checkpoint set crashes back to 0.")
    isolated: bool = Field(description="Its task runs alone in a process, always.")
    solo: bool = Field(description="It runs alone in a process next.")
    timeout: float | None = Field(description="Seconds that an attempt may take.")
    stale_after: float | None = Field(description="Seconds without progress after which it has hung.")
    attempts: list[Attempt] = Field(description="Those that ended otherwise than completed, oldest first.")
    logs: list[AttemptLog] | None = Field(description="By attempt; null if payloads are hidden.")
    edits: list[Edit] | None = Field(description="Oldest first; null if payloads are hidden.")

    @classmethod
    def detailed(cls, detail: JobDetail, payloads: bool) -> Self:
        job = detail.job
        logs = [AttemptLog.of(attempt, log) for attempt, log in sorted(detail.logs.items())]
        return cls.like(
            job,
            worker=_worker(job),
            payloads=shown(payloads),
            args=read(job.payload, payloads),
            result=read(job.result, payloads),
            checkpoint=read(job.checkpoint, payloads),
            meta=dict(job.meta),
            attempts=[Attempt.of(each) for each in detail.attempts],
            logs=logs if payloads else None,
            edits=[Edit.of(each) for each in detail.edits] if payloads else None,
        )


class Explained(Model):
    """Why a job is not running, or how it ended."""

    id: UUID
    verdict: str
    reasons: list[str] = Field(description="What the verdict rests on.")
    what_to_do: str = Field(description="Empty: nothing needs doing.")

    @classmethod
    def of(cls, found: Explanation) -> Self:
        return cls.like(found, id=found.job.id)


class NewJob(Model):
    """A job to be stored."""

    task: Text = Field(description="The name of a task of the app.", examples=["greet"])
    args: dict[str, Json] = Field({}, description="By name, as the task's signature asks for them.")
    queue: Name | None = Field(None, description="Another queue than the task's own.")
    priority: int | None = Field(None, ge=-100, le=100, description="Higher runs first. Default: the task's own.")
    delay: Length | None = Field(None, description="Run it so much later.")
    run_at: AskedAt | None = Field(None, description="Run it then. Either this or `delay`.")
    expires: Length | None = Field(None, description="Cancelled if it is not begun so long after it is due.")
    unique: Text | None = Field(None, description="If a live job of this task has this key, that one is answered.")
    meta: Annotated[dict[Text, Words], AfterValidator(ours)] = Field({}, description="Travels with the job.")
    id: UUID | None = Field(None, description="Yours: sent again with it, nothing is stored twice.")


class Enqueued(Model):
    id: UUID = Field(description="Of the new job, or of the one that was there already.")
    created: bool = Field(description="false: the id or the unique key was there already, nothing was stored.")
    state: State


class Reason(Model):
    reason: Words = Field("", description="Kept with the job, and in the audit trail.")


class Changes(Model):
    """Other arguments to run a job with; nothing: the same ones."""

    put: dict[str, Json] = Field({}, description="These instead, or as well.")
    drop: list[Text] = Field([], description="Without these.", max_length=100)


class Outcome(Model):
    """What became of one job."""

    id: UUID
    done: bool
    says: str = Field(description="For people.", examples=["queued again"])

    @classmethod
    def of(cls, acted: Acted) -> Self:
        return cls.like(acted, done=acted.landed)


class BulkCount(Model):
    verb: Verb
    filter: JobFilter


class Counted(Model):
    jobs: int = Field(description="So many would be acted on.")
    more: bool = Field(description="These are only the first: each call acts on ten thousand.")
    confirm: str | None = Field(description="What to send as `confirm`; null: this needs no confirmation.")


class BulkAction(BulkCount):
    """Act on all jobs that match, on the server's side, newest first; on ten thousand in one call."""

    reason: Words = Field("", description="Kept with the jobs, and in the audit trail.")
    expected: int | None = Field(
        None, ge=0, le=1_000_000, description="How many were counted: 409 if a tenth more than these match now."
    )
    confirm: Words | None = Field(
        None, description="To delete: `delete N` with the number that was counted.", examples=["delete 12"]
    )
    cursor: Cursor | None = Field(None, description="`next` of the call before: goes on with the others.")


class BulkDone(Model):
    done: int
    refusals: int
    refused: list[Outcome] = Field(description="At most a hundred of them.")
    next: str | None = Field(description="`cursor` of the next call; null: that was all.")

    @classmethod
    def of(cls, bulk: Bulk) -> Self:
        return cls.like(bulk, refused=[Outcome.of(each) for each in bulk.refused], next=bulk.cursor)
