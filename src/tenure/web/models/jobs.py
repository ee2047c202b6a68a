"""Models of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, Field

from tenure.core.lifecycle import State
from tenure.operations import error_groups, stacks
from tenure.operations.explain import Explanation
from tenure.operations.jobs import Acted, Bulk, Edited, JobDetail, Verb
from tenure.operations.pace import MOST_A_MINUTE
from tenure.ports import AttemptView, Filter, JobView, Update
from tenure.web.models.values import (
    AskedAt,
    At,
    Cursor,
    Json,
    Length,
    Model,
    Name,
    Payloads,
    Search,
    Stored,
    Text,
    Words,
    ours,
    read,
    shown,
)
from tenure.worker.job_log import Log


class Where(Model):
    """A filter for jobs in any state. Omitted fields match any job."""

    q: Search | None = Field(
        None,
        description="A search in the words of docs/search.md; all other fields must match too. Searching arguments and "
        "results needs the right to see payloads.",
        examples=["args.user=4711 error~timeout ended<2h"],
    )
    task: Text | None = Field(None, description="Of this task.")
    queue: Text | None = Field(None, description="In this queue.")
    worker: Text | None = Field(None, description="Running on this worker.")
    unique: Text | None = Field(None, description="With this unique key.")
    flow: UUID | None = Field(None, description="Of this flow.")
    text: Text | None = Field(None, description="With this text in the error or the id.")
    enqueued_since: AskedAt | None = Field(None, description="Enqueued at or after this time.")
    enqueued_until: AskedAt | None = Field(None, description="Enqueued before this time.")
    ended_since: AskedAt | None = Field(None, description="Ended at or after this time.")
    ended_until: AskedAt | None = Field(None, description="Ended before this time.")

    def filter(self, states: Sequence[State] = ()) -> Filter:
        return Filter(
            states=frozenset(states),
            task=self.task,
            queue=self.queue,
            worker_id=self.worker,
            unique=self.unique,
            flow=None if self.flow is None else str(self.flow),
            text=self.text,
            ended_since=self.ended_since,
            ended_until=self.ended_until,
            enqueued_since=self.enqueued_since,
            enqueued_until=self.enqueued_until,
        )


class JobFilter(Where):
    """A filter for jobs. Omitted fields match any job."""

    state: list[State] = Field([], description="In any of these states.", max_length=7)


_limit = Field(50, ge=1, le=200, description="The most to return.")


class JobQuery(JobFilter):
    limit: int = _limit
    cursor: Cursor | None = None


class DeadQuery(Where):
    limit: int = _limit
    cursor: Cursor | None = None


class JobSummary(Model):
    """A job as it appears in lists."""

    id: UUID
    task: str
    queue: str
    state: State
    priority: int = Field(description="-100 to 100; higher runs first.")
    attempt: int = Field(description="How often it was started.")
    failures: int
    crashes: int
    unique: str | None = Field(description="Its key: at most one live job of a task has it.")
    flow: UUID | None = Field(description="The flow to which it belongs.")
    worker: str | None = Field(description="The worker that runs it or completed it.")
    progress: float | None = Field(description="0 to 1.")
    stage: str | None
    message: str | None
    error: str | None = Field(description="The last error.")
    enqueued_at: At
    run_at: At = Field(description="When it is due.")
    expires_at: At | None
    started_at: At | None
    last_activity_at: At | None
    ended_at: At | None
    cancel_reason: str | None = Field(description="Why a cancel was requested; null: it was not.")

    @classmethod
    def of(cls, job: JobView) -> Self:
        return cls.like(job, worker=_worker(job))


def _worker(job: JobView) -> str | None:
    return job.worker_id or job.completed_by


class Jobs(Model):
    """A page of jobs, newest first."""

    jobs: list[JobSummary]
    next: str | None = Field(
        description="`cursor` of the next page; null: this is the last. A page may be short or empty and still have a "
        "next one, since each looks for a limited time.",
    )
    looked: int | None = Field(None, description="How many jobs were looked at, if the search ended early.")
    reached: At | None = Field(None, description="And when the last of these was enqueued.")


class ErrorGroup(Model):
    """Dead letters whose errors differ only in numbers, ids, quoted text, paths and addresses."""

    fingerprint: str = Field(description="Finds them: `q=fingerprint=3f9a2c11`.", examples=["3f9a2c11"])
    says: str = Field(description="What their errors have in common.")
    jobs: int
    tasks: dict[str, int] = Field(description="How many of them are of which task.")
    last_id: UUID = Field(description="The one that died last.")
    last_at: At | None = Field(description="And when it died.")

    @classmethod
    def of(cls, group: error_groups.ErrorGroup) -> Self:
        return cls.like(group, tasks=dict(group.tasks))


class Errors(Model):
    """The largest group first."""

    groups: list[ErrorGroup]
    jobs: int = Field(description="How many dead letters were read, the newest.")
    more: bool = Field(description="There are older ones, which are not counted.")

    @classmethod
    def of(cls, found: error_groups.ErrorGroups) -> Self:
        return cls.like(found, groups=[ErrorGroup.of(each) for each in found.groups])


class LogLine(Model):
    at: At = Field(description="By the clock of the machine that logged it.")
    level: str = Field(examples=["info"])
    text: str


class AttemptLog(Model):
    """The last log lines of an attempt, oldest first."""

    attempt: int
    dropped: int = Field(description="How many earlier lines were not kept.")
    lines: list[LogLine]

    @classmethod
    def of(cls, attempt: int, log: Log) -> Self:
        return cls(attempt=attempt, dropped=log.dropped, lines=[LogLine.like(line) for line in log.lines])


class Attempt(Model):
    """An attempt that did not complete."""

    attempt: int
    worker: str
    outcome: str = Field(examples=["failed", "crashed"])
    error: str
    evidence: dict[str, str] = Field(description="Evidence about its process: signal, peak memory, last line.")
    refused: str | None = Field(description="Why a later write of this attempt was refused.")
    started_at: At
    ended_at: At

    @classmethod
    def of(cls, attempt: AttemptView) -> Self:
        evidence = dict(attempt.evidence)
        refused = evidence.pop("refused", None)
        return cls.like(attempt, worker=attempt.worker_id, evidence=evidence, refused=refused)


class Edit(Model):
    """A change of a job's arguments before a replay."""

    at: At
    who: str
    before: Stored = Field(description="The arguments before the change.")

    @classmethod
    def of(cls, edited: Edited) -> Self:
        return cls.like(edited, before=read(edited.before, shown=True))


class Job(JobSummary):
    """A job with all details."""

    payloads: Payloads
    args: Stored = Field(description="Arguments by name, secrets redacted; null if payloads are hidden.")
    result: Stored = Field(description="The result of a completed job; null if payloads are hidden.")
    checkpoint: Stored = Field(description="Where the next attempt continues; null if payloads are hidden.")
    meta: dict[str, str]
    max_failures: int
    max_crashes: int
    crashes_total: int = Field(description="Including those before a checkpoint reset crashes to 0.")
    isolated: bool = Field(description="Its task always runs alone in a process.")
    solo: bool = Field(description="Its next attempt runs in a worker for jobs that run alone, or in a small group.")
    timeout: float | None = Field(description="The most seconds an attempt may take.")
    stale_after: float | None = Field(description="Seconds without progress after which it counts as hung.")
    wait_for: str | None = Field(description="The signal it waits for: `own:NAME`, or `shared:KEY`.")
    wait_until: At | None = Field(
        description="When that wait times out, or while it is parked, when it expires; null: never."
    )
    limits: list[str] = Field(description="The keys of its limits.")
    parked: str | None = Field(description="The key under which it waits for a place.")
    attempts: list[Attempt] = Field(description="Attempts that did not complete, oldest first.")
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
            limits=[key.key for key in job.limits],
            attempts=[Attempt.of(each) for each in detail.attempts],
            logs=logs if payloads else None,
            edits=[Edit.of(each) for each in detail.edits] if payloads else None,
        )


class JobUpdate(Model):
    """How far a job is: an event of its stream. The fields are those of the job."""

    id: UUID
    task: str
    queue: str
    state: State
    attempt: int = Field(description="How often it was started.")
    failures: int
    progress: float | None = Field(description="0 to 1.")
    stage: str | None
    message: str | None
    error: str | None = Field(description="The last error.")
    cancel_reason: str | None = Field(description="Why a cancel was requested; null: it was not.")
    enqueued_at: At
    run_at: At = Field(description="When it is due.")
    started_at: At | None
    ended_at: At | None
    payloads: Payloads
    result: Stored = Field(description="The result of a completed job; null if payloads are hidden.")

    @classmethod
    def of(cls, update: Update, payloads: bool) -> Self:
        return cls.like(update.status, payloads=shown(payloads), result=read(update.result, payloads))


class Explained(Model):
    """Why a job is not running, or how it ended."""

    id: UUID
    verdict: str
    reasons: list[str] = Field(description="The reasons for the verdict.")
    what_to_do: str = Field(description="Empty: there is nothing to do.")

    @classmethod
    def of(cls, found: Explanation) -> Self:
        return cls.like(found, id=found.job.id)


class NewJob(Model):
    """A job to enqueue."""

    task: Text = Field(description="The name of a task of the app.", examples=["greet"])
    args: dict[str, Json] = Field({}, description="By name, as the task's signature asks for them.")
    queue: Name | None = Field(None, description="A queue other than the task's own.")
    priority: int | None = Field(None, ge=-100, le=100, description="Higher runs first. Default: the task's own.")
    delay: Length | None = Field(None, description="Run it after this delay.")
    run_at: AskedAt | None = Field(None, description="Run it at this time. Either this or `delay`.")
    expires: Length | None = Field(None, description="Cancel it if it has not started this long after it is due.")
    unique: Text | None = Field(None, description="If a live job of this task has this key, that job is returned.")
    meta: Annotated[dict[Text, Words], AfterValidator(ours)] = Field({}, description="Stored with the job.")
    id: UUID | None = Field(
        None, description="Chosen by you: a repeated request with the same id stores nothing twice."
    )


class Enqueued(Model):
    id: UUID = Field(description="The id of the new job, or of the one that already existed.")
    created: bool = Field(description="false: the id or the unique key already existed, nothing was stored.")
    state: State


class Reason(Model):
    reason: Words = Field("", description="Kept with the job, and in the audit trail.")


class Changes(Model):
    """Changes to a job's arguments; empty: none."""

    put: dict[str, Json] = Field({}, description="Arguments to replace or add.")
    drop: list[Text] = Field([], description="Arguments to remove.", max_length=100)


class Outcome(Model):
    """The result for one job."""

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
    jobs: int = Field(description="How many jobs would be acted on.")
    more: bool = Field(description="There are more: each call acts on at most ten thousand.")
    confirm: str | None = Field(description="What to send as `confirm`; null: this needs no confirmation.")


class BulkAction(BulkCount):
    """Act on all jobs that match, on the server's side, newest first; at most ten thousand per call."""

    reason: Words = Field("", description="Kept with the jobs, and in the audit trail.")
    expected: int | None = Field(
        None, ge=0, le=1_000_000, description="How many were counted: 409 if a tenth more than these match now."
    )
    confirm: Words | None = Field(
        None, description="To delete: `delete N` with the number that was counted.", examples=["delete 12"]
    )
    cursor: Cursor | None = Field(None, description="`next` of the previous call: continues with the others.")
    per_minute: int | None = Field(
        None,
        ge=1,
        le=MOST_A_MINUTE,
        description="To replay this many a minute: the jobs are due one after another. null: all at once.",
    )


class BulkDone(Model):
    done: int
    refusals: int
    refused: list[Outcome] = Field(description="At most a hundred of them.")
    next: str | None = Field(description="`cursor` of the next call; null: there are no more.")
    until: At | None = Field(description="Of a replay with `per_minute`: when the last of them is due.")

    @classmethod
    def of(cls, bulk: Bulk) -> Self:
        return cls.like(bulk, refused=[Outcome.of(each) for each in bulk.refused], next=bulk.cursor)


class Frame(Model):
    file: str
    line: int
    function: str


class Trace(Model):
    """Where a thread or an asyncio task is."""

    name: str
    frames: list[Frame] = Field(description="The innermost last.")
    left_out: int = Field(description="Frames in the middle that are not listed.")


class JobStack(Model):
    """Files, lines and functions, and no value of any variable; at most 16 KiB."""

    job: UUID
    worker: str
    state: Literal["asked", "answered", "silent"]
    who: str
    asked_at: At
    at: At | None = Field(description="When its worker was seen there.")
    says: str = Field(description="For people: what the traces are, or why there are none.")
    traces: list[Trace]

    @classmethod
    def of(cls, stack: stacks.JobStack) -> Self:
        traces = [Trace.like(each, frames=[Frame.like(frame) for frame in each.frames]) for each in stack.traces]
        return cls.like(stack, traces=traces)
