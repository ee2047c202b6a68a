"""The read side of a store, for people and their tools. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from tenure.core.conditions import Condition, Part
from tenure.core.lifecycle import State
from tenure.core.limits import Key
from tenure.ports.workers import WorkerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker as people see it."""

    identity: WorkerIdentity
    started_at: datetime
    renewed_at: datetime
    expires_at: datetime
    died_at: datetime | None
    note: str  #: what is wrong with it right now ("its loop is blocked by …"), else empty
    processing: int
    memory: int | None  #: bytes of its process at the last renewal; None: not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as people see it."""

    id: str
    task: str
    queue: str
    state: State
    priority: int
    payload: str
    result: str | None
    error: str | None
    attempt: int
    failures: int
    max_failures: int
    crashes: int
    crashes_total: int
    max_crashes: int
    solo: bool
    together: int = 1  #: if `solo`: how many jobs, at most, its next attempt's process runs; 1: it runs alone
    isolated: bool
    unique: str | None
    worker_id: str | None
    completed_by: str | None  #: the worker whose attempt completed it
    stage: str | None
    progress: float | None
    message: str | None
    checkpoint: str | None
    meta: Mapping[str, str]
    timeout: float | None
    stale_after: float | None
    enqueued_at: datetime
    run_at: datetime
    expires_at: datetime | None
    started_at: datetime | None
    last_activity_at: datetime | None
    ended_at: datetime | None
    cancel_reason: str | None  #: why a cancel was requested, if it was
    flow: str | None = None  #: the id of its flow
    linked: bool = False  #: it waits for other jobs, or they for it
    wait_for: str | None = None  #: the key of the signal for which it waits
    wait_until: datetime | None = None  #: when that wait times out; of a parked job: when it expires
    limits: tuple[Key, ...] = ()  #: its keys
    parked: str | None = None  #: the key under which it waits for a place
    due_at: datetime | None = None  #: of a limited job: when it was due first, which is its order under its keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How far a job is. Example: `handle.status().progress`

    Times are UTC. `run_at` is when it is or was due; `error` is that of its last failed attempt; `cancel_reason` is why
    a cancel was requested, if it was. `progress` (0 to 1), `stage` and `message` are what its handler reported last.
    """

    id: str
    task: str
    queue: str
    state: State
    attempt: int
    failures: int
    progress: float | None
    stage: str | None
    message: str | None
    error: str | None
    cancel_reason: str | None
    enqueued_at: datetime
    run_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class Update(NamedTuple):
    """What has become of a job. `mark` changes whenever `status` or `result` does; it is compared, and never parsed."""

    id: str
    mark: str
    status: Status | None  #: None: there is no such job
    result: str | None  #: of a completed job
    unread: str | None = None  #: its error as it is stored, where a program can't read it and `status` tells people so


GONE = "gone"  #: the mark of a job that does not exist


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt that ended otherwise than Completed. (The job itself describes a completed one.)"""

    job_id: str
    attempt: int
    worker_id: str
    outcome: str
    error: str
    evidence: Mapping[str, str]
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    name: str
    paused_at: datetime | None
    counts: Mapping[State, int]  #: live states only; ended jobs are counted by `counts`
    oldest_queued: float | None  #: seconds the longest-waiting queued job has been due


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which jobs to read. Empty means any; `text` is searched in error and id, A to Z in either case."""

    states: frozenset[State] = frozenset()
    task: str | None = None
    queue: str | None = None
    worker_id: str | None = None
    unique: str | None = None
    flow: str | None = None
    text: str | None = None
    guards: bool = True  #: also the jobs that ran under guards
    conditions: tuple[Condition, ...] = ()
    ended_since: datetime | None = None
    ended_until: datetime | None = None  #: exclusive
    enqueued_since: datetime | None = None
    enqueued_until: datetime | None = None  #: exclusive

    @property
    def parts(self) -> list[Part]:
        """Texts that every match contains. A store compares these, and its caller the `conditions`."""
        text = [] if self.text is None else [Condition("text", "", False, self.text)]
        return [part for condition in (*text, *self.conditions) for part in condition.parts]


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. `cursor` continues after the last job examined; None: there are no more."""

    jobs: tuple[JobView, ...]
    cursor: str | None = None
    reached: datetime | None = None  #: when the last job examined was enqueued, if the page is short but has a cursor


class Ids(NamedTuple):
    """Ids of jobs, newest first. `cursor` continues after the last one looked at; None: there are no more."""

    ids: tuple[str, ...]
    cursor: str | None = None


class EndedJob(NamedTuple):
    """A job that has ended. `stumbled`: it did so after a failure or a crash. Times are seconds."""

    id: str
    task: str
    state: State
    stumbled: bool
    wait: float | None  #: from due to started; None unless it completed
    run: float | None  #: from started to ended; None unless it completed


@dataclass(frozen=True, slots=True)
class Ended:
    """The jobs that ended in a time range. `counts` stops at the requested maximum, per state."""

    counts: Mapping[State, int]
    last: tuple[EndedJob, ...] = ()  #: the last ones of each state, newest first

    @property
    def completed(self) -> list[EndedJob]:
        """Those of the last ones that completed, newest first."""
        return [job for job in self.last if job.state is State.COMPLETED]


class ReadStore(Protocol):
    """The reads. None of them changes anything."""

    def get(self, job_id: str) -> JobView | None: ...

    def ids(self, start: str = "", end: str = "", *, cursor: str | None = None, within: int = 10_000) -> Ids:
        """The ids that begin with `start` and end with `end`, by the index of the ids alone: no row is read.

        Looks at no more than `within` of those that begin with `start`.
        """
        ...

    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        """Which of these jobs have changed: `seen` has the mark of each as it was last seen, or "" for none.

        One read for all of them, at most 1,000. Its cost grows with their number, not with the table: for programs that
        look again and again. At most `limit` are returned, since a result may be long; if fewer, there are no others.
        """
        ...

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        """Jobs that match, newest first. Of `conditions` only the `parts` are compared: the caller checks the rest.

        `within`: examine at most about that many rows. The page may then be short or empty, and still have a cursor.
        """
        ...

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        """How many jobs ended in since ≤ t < until, at most `most` of each state, and the last `sample` of each state.

        Its cost grows with the jobs it counts, not with the table.
        """
        ...

    def latest_ended(self, state: State, *, since: datetime | None = None, limit: int = 50) -> list[JobView]:
        """The jobs of this ended state that ended last, latest first, without those of guards; at most `limit`.

        `since`: only those that ended at or after it. Its cost grows with `limit`, not with the table: for programs
        that look again and again.
        """
        ...

    def logs(self, job_id: str) -> dict[int, str]:
        """The last log lines (`Progress.log`), by attempt."""
        ...

    def counts(self) -> dict[State, int]: ...

    def attempts(self, job_id: str) -> list[AttemptView]: ...

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        """Live workers, or with `dead` also those whose rows are still kept; newest first."""
        ...

    def queues(self) -> list[QueueView]: ...

    def paused(self) -> frozenset[str]:
        """The paused queues. Cheap enough to be called every second."""
        ...

    def now(self) -> datetime:
        """The store's clock."""
        ...
