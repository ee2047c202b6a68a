"""Every contract between the engine and the outside: `Store` (the source of truth) and `Notifier` (the doorbell).

The ports are synchronous and safe to call from several threads: a worker calls them from two threads of its own, the
supervisor, the CLI and a plain `enqueue()` call them directly. Values are frozen; times are aware UTC datetimes by
the *store's* clock, ids are canonical UUID text, durations are seconds, payloads and results are JSON text.

Every verb of an owner carries a `Lease` and says whether it landed. A store maps its driver's errors once, at this
boundary: `StoreAway` (try again later), `BadData` (one value is at fault), `StoreError` (anything else).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from tenure.lifecycle import Lease, Outcome, State

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from tenure.schedule import Change, Due, Standing, Swapped, Tick

# ── Values ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the common contract. The shared suite reads it; nobody asks for a store's name."""

    transactions: bool  #: `enqueue` and `finish` can join a transaction (`tx=`)
    durable: bool  #: what it answered survives the death of every process
    steady_clock: bool  #: nobody can set the clock that its leases are counted by
    local: bool  #: no network is between us and it: asking it on an event loop holds up nobody for long


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A job not yet stored. `delay` counts from the store's now; `run_at` is an instant; neither means now."""

    id: str
    task: str
    payload: str
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    run_at: datetime | None = None
    expires: float | None = None  #: seconds after it is due in which its first attempt must have started
    unique: str | None = None
    isolated: bool = False
    timeout: float | None = None
    stale_after: float | None = None
    max_failures: int = 10
    max_crashes: int = 3
    retry_base: float = 1.0
    retry_cap: float = 30.0
    meta: str = "{}"


class Enqueued(NamedTuple):
    """`id` is the caller's, or that of the live job that holds the unique key. `state` is that job's."""

    id: str
    created: bool
    state: State


class Claimed(NamedTuple):
    """A job under its fresh lease, with all that running it needs."""

    id: str
    attempt: int
    task: str
    queue: str
    payload: str
    failures: int
    crashes: int
    meta: str
    checkpoint: str | None
    timeout: float | None
    stale_after: float | None
    enqueued_ms: int  #: Unix milliseconds; a datetime is made only for the handler that asks
    expired: bool  #: it was claimed after its `expires`: finish it as Cancelled, do not run it


class Owned(NamedTuple):
    """A lease the store holds in a worker's name, and the reason of a cancel asked since, if any."""

    claimed: Claimed
    cancel_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The newest word of an attempt. None leaves what is stored. A new checkpoint sets `crashes` back to 0."""

    lease: Lease
    fraction: float | None = None
    stage: str | None = None
    message: str | None = None
    checkpoint: str | None = None
    log: str | None = None  #: the last lines of this attempt's log, as `logs` gives them back; replaces those stored


class Edit(NamedTuple):
    """What a job is to be run again with: JSON texts, as in `Draft`."""

    payload: str
    meta: str


NO_EDITS: Mapping[str, Edit] = MappingProxyType({})


class Landed(NamedTuple):
    """The write is stored. `state` is where the job is now: the store may know of a cancel the caller did not."""

    state: State


class NotLanded(NamedTuple):
    """The write changed nothing: `stands` says what the store holds instead, for a person to read."""

    stands: str


class Busy(NamedTuple):
    """Somebody's open transaction holds the row: nothing is known yet. Ask again, with the same lease and outcome."""


Answer = Landed | NotLanded

Runner = Literal["worker", "embedded", "solo", "guard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """One process start. `id` is `hostname-pid-random`, never used again."""

    id: str
    host: str
    pid: int
    started: str  #: the process's start time as its kernel tells it; with pid, boot and pid namespace it proves death
    boot_id: str
    pid_namespace: str
    runner: Runner
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    lease: float  #: seconds


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
    memory: int | None  #: bytes of its process, when its row was renewed last; None: nobody has said


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """One job taken back, and from whom. `cause`: crash (proof of death), host (lease ended), stale (hung), queue."""

    id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    cause: Literal["crash", "host", "stale", "queue"]
    state: State


class Promoted(NamedTuple):
    """The ids that each queue got, and the seconds until the next job is due (None: none waits)."""

    jobs: Mapping[str, Sequence[str]]
    next_due: float | None


class Hung(NamedTuple):
    """A job of a living worker that has been silent for longer than its `stale_after`."""

    lease: Lease
    task: str
    silent: float


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
    cancel_reason: str | None  #: a cancel was asked for, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt that ended otherwise than Completed. (A completed one is told by the job itself.)"""

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
    """Which jobs. Empty means any; `text` is looked for in error and id."""

    states: frozenset[State] = frozenset()
    task: str | None = None
    queue: str | None = None
    worker_id: str | None = None
    unique: str | None = None
    text: str | None = None
    guards: bool = True  #: also the jobs that ran under guards
    ended_since: datetime | None = None
    enqueued_since: datetime | None = None
    enqueued_until: datetime | None = None  #: before it


@dataclass(frozen=True, slots=True)
class Page:
    """Newest first. `cursor` continues after the last one looked at; None: that was all."""

    jobs: tuple[JobView, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What ended in a span of time. `counts` stops at the most that was asked for, of each state."""

    counts: Mapping[State, int]
    waits: tuple[float, ...] = ()  #: of the last completed ones, newest first: seconds from due to started
    runs: tuple[float, ...] = ()  #: of the same, seconds from started to ended
    ids: tuple[str, ...] = ()  #: of the same


class Awaited(NamedTuple):
    """A caller's transaction whose driver may have to be awaited, and the event loop it lives on.

    The verbs stay synchronous: a store that is handed one runs its statements on that loop, from another thread.
    """

    tx: object
    loop: AbstractEventLoop


@dataclass(frozen=True, slots=True)
class OnceRecord:
    """What `once` found: `value` is the first call's JSON if there was one."""

    value: str | None = None


# ── The store ───────────────────────────────────────────────────────────────────────────────────────────────────


class Store(Protocol):
    """The source of truth. Each verb is one atomic step; under concurrency exactly one caller wins it.

    Every method may raise StoreAway (out of reach, full, locked for too long: nothing or all of it happened, ask
    again with the same ids and leases) and StoreError.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Where it is, absolute, without a password: for banners, logs and `explain`."""
        ...

    def migrate(self) -> int:
        """Bring the schema up to date; forward only, safe when many start at once. Returns the version reached.

        Comes before `open`, and needs no open store.
        """
        ...

    def open(self) -> None:
        """Connect and check. Raises StoreError that says what to do: not ours, newer than this code, not migrated."""
        ...

    def close(self) -> None: ...

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        """nothing → queued, or scheduled when due later. All or none; idempotent by id, answers in order.

        An id already kept, or a unique key held by a live job of that task, creates nothing and names the job that
        stands. With `tx` the jobs exist exactly when that transaction commits; `committed` is called then, in whatever
        thread learns of it, after the outermost commit, never after a rollback, and not at all if that can't be learnt.
        """
        ...

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        """scheduled, queued → cancelled; processing: asked, its owner stops it. State after; None: no such job."""
        ...

    def promote(self, *, limit: int = 1000) -> Promoted:
        """scheduled and due → queued, in order of their time; at most `limit`, so call again while queues come back."""
        ...

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        """scheduled → queued by an operator's word, due or not. State after; None: no such job."""
        ...

    def replay(self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS) -> dict[str, Answer | None]:
        """ended → queued, failures and crashes 0, attempt goes on. Not landed while live, or if its key is taken.

        `edits`, by id: run it with these instead; its checkpoint, which belongs to the old arguments, is gone then.
        """
        ...

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        """any state but processing → gone, with its attempts. `Landed` names the state it was deleted in."""
        ...

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        """completed and cancelled older than `keep`, dead older than `keep_dead` (None: never) → gone. How many."""
        ...

    # ── owners ──

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        """queued → processing under a fresh lease, for up to `limit` jobs, `wants[queue]` of each queue.

        Order in a queue: priority (higher first), run_at, id; queues are served in the order of `wants`. `solo` takes
        only jobs that must run alone, False only the others. Nothing is claimed by a worker whose row is missing,
        dead or expired, nor from a paused queue. One statement: two claimers never get one job.
        """
        ...

    def owned(self, worker_id: str) -> list[Owned]:
        """Every lease held in this worker's name, and the cancels asked. Changes nothing."""
        ...

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        """processing, unchanged; the report is stored under its lease. Answers per report whether it landed.

        What is logged is kept for each attempt, as long as its job.
        """
        ...

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        """For who looks into it later: a write under this lease did not land. Its attempt's row, if there, keeps why.

        It becomes `evidence["refused"]` where the row is of that worker and has none yet. Nothing else changes.
        """
        ...

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        """Read (`value` None) or record, under the lease, the first result of `key` in this job.

        None: the lease is lost. A record already there stands and comes back.
        """
        ...

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        """processing → where `decide` says, per lease. The same lease with the same outcome hears Landed again.

        Who is Busy holds up nobody else of the batch.

        What only the store knows it applies: a cancel asked turns a retry, release or snooze into cancelled.
        Raises BadData when a value is refused: nothing of the batch landed.
        """
        ...

    # ── supervisors ──

    def register(self, worker: WorkerIdentity) -> None:
        """A new worker's row, alive for `worker.lease` seconds. Raises StoreError if its id has a row already."""
        ...

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        """Extend each row that is not dead by its lease. Who is missing from the answer is dead, for ever.

        For people, by worker id: `notes` replace those stored (none: all is well with it), `memory` is in bytes (none:
        what is stored stays).
        """
        ...

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        """Proof of death is the caller's (its process is gone): died_at = now. Which of them died just now."""
        ...

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        """died_at = now for every row that is not dead and whose lease has run out. Which.

        `witness` is a worker of the caller's: nobody is declared unless that one lives and has more than a third of its
        lease left. A call may be held up on its way for as long as an outage lasts, and must not then judge those whom
        the same outage kept from renewing. Nor after `until`, by the store's clock: a renewal of the witness may have
        been held up with it, and be carried out first.
        """
        ...

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> list[Rescued]:
        """The worker's process is gone: declare it dead, end each lease it held by its verdict (by job id) or `rest`.

        One transaction. Only for leases of this worker: what was rescued meanwhile is left alone.
        """
        ...

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        """processing, with an owner that is dead, missing, or hung two leases too long → where Crashed leads.

        Longest silent first, at most `limit`: call again while the answer is full. The predicate stands in the write.
        """
        ...

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        """A queue delivered this job again: the rescue of one job, with the cause `queue`.

        Its owner is first declared dead if its lease has run out and the caller may `declare` (who was away may not;
        `witness` and `until` as above). Else where the job is now; None: no such job.
        """
        ...

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        """Jobs of these living workers that have been silent for longer than their `stale_after`. Changes nothing."""
        ...

    def solo_waiting(self, queues: Sequence[str]) -> int:
        """How many queued jobs of these queues must run alone. Changes nothing."""
        ...

    def upkeep(self) -> None:
        """Whatever this store needs now and then, off everybody's path. Called every second by who maintains it."""
        ...

    def pause(self, queue: str, *, paused: bool) -> bool:
        """Stop or resume claims from a queue; False: it was so already. Running jobs go on."""
        ...

    def paused(self) -> frozenset[str]:
        """The queues nobody may claim from. Cheap enough to be asked every second."""
        ...

    # ── schedules (values and their meaning: schedule.py, ticks.py) ──

    def due(self, *, limit: int = 500) -> Due:
        """Schedules with `due_at` ≤ now, earliest first, and those with an open run whose job has ended or is gone.

        Each with all its open runs; at most about `limit`, so call again after they were changed. Changes nothing.
        """
        ...

    def change(self, changes: Sequence[Change]) -> list[bool]:
        """Write schedules, with the ticks and jobs that belong to it: each change is one step, and guarded by `rev`.

        False: somebody else wrote first (or the owner of a guard's job does not live): read again. Of two changes
        that were made from the same reading at most one lands.
        """
        ...

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        """These (None: all), in order of their names, each with its open runs."""
        ...

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """What became of its ticks, newest first; with `before`, of those before that instant."""
        ...

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        """Ticks decided more than `keep` seconds ago, unless open → gone; and notes whose time is over. How many."""
        ...

    # ── notes: the first result of a key, an incident that is open ──

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        """Compare and set one small text, together with `drafts`: they are enqueued if it lands, and only then.

        Lands when the note says `old` (None: there is none, or its time is over); `new` None removes it. `ttl` seconds
        from now it is over. Where it says `new` already it has landed before: nothing is enqueued again.
        """
        ...

    def notes(self, prefix: str) -> dict[str, str]:
        """Every note whose key begins so and whose time is not over."""
        ...

    # ── reads ──

    def get(self, job_id: str) -> JobView | None: ...

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        """Jobs that match, newest first.

        `within`: look at about so many rows at most. The page may be short or empty then, and still have a cursor.
        """
        ...

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        """How many jobs ended in since ≤ t < until, at most `most` of each state, and how fast the last ones were.

        Its cost grows with what it counts, not with the table.
        """
        ...

    def logs(self, job_id: str) -> dict[int, str]:
        """By attempt, what was logged last (`Progress.log`)."""
        ...

    def counts(self) -> dict[State, int]: ...

    def attempts(self, job_id: str) -> list[AttemptView]: ...

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        """Live workers, or with `dead` also those whose rows are still kept; newest first."""
        ...

    def queues(self) -> list[QueueView]: ...

    def now(self) -> datetime:
        """The store's clock."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """The store's own connection in a transaction, for `tx=`. Raises StoreError without the capability."""
        ...


# ── The notifier ────────────────────────────────────────────────────────────────────────────────────────────────


class Ring(NamedTuple):
    """Why a doorbell rings: jobs are queued, a job is due earlier than any before, or a cancel was asked.

    Who announces names the jobs, and why they come again (`reason`, of a rescue); who listens hears kind and queue.
    """

    kind: Literal["queued", "due", "cancel"]
    queue: str
    jobs: tuple[str, ...] = ()
    reason: str = ""


ANY = Ring("queued", "")  #: something may have changed: look for yourself


class Notifier(Protocol):
    """The doorbell. Losing a ring costs latency, never a job: every listener also asks the store by itself."""

    def announce(self, rings: Iterable[Ring]) -> None:
        """Ring strictly after the commit. Never blocks, never raises: a ring that cannot be sent is lost."""
        ...

    def listen(self) -> Listener:
        """Start to hear. One listener a process is enough; close it when done."""
        ...

    def problem(self) -> str:
        """Empty while rings are heard; else one sentence that says why this process polls instead. It may change."""
        ...

    def close(self) -> None:
        """Let go of what announcing needed, when what is on its way has left (a second at most).

        Listeners are closed by themselves, before it.
        """
        ...


class Listener(Protocol):
    """One open ear. `fileno()` is readable when a ring waits, so an event loop or a selector can wait on it."""

    @property
    def permits(self) -> Permits | None:
        """None for a doorbell; else what a queue deals out."""
        ...

    def fileno(self) -> int | None:
        """None: there is nothing to wait on; call `drain()` every `interval` seconds."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between two looks when there is no fileno, or as a fallback beside it."""
        ...

    def drain(self) -> list[Ring]:
        """All rings heard since the last call. Never blocks."""
        ...

    def close(self) -> None:
        """Hear no more. Permits still held go back to the queue."""
        ...


class Permit(NamedTuple):
    """A message: whoever holds it may claim one job from its queue. It names a job for people and for `redelivered`."""

    queue: str
    job_id: str
    again: bool  #: the queue had delivered it before, and never heard what became of it
    receipt: str  #: the queue's own name for this delivery


class Permits(Protocol):
    """The flow of permits to one listener. It also keeps telling the queue that what is held is still worked on."""

    def want(self, slots: Mapping[str, int]) -> None:
        """How many more may come of each queue from now on; replaces what was wanted. Never of a queue not named."""
        ...

    def take(self) -> list[Permit]:
        """All that have come since the last call; `fileno()` of the listener is readable when some wait."""
        ...

    def settle(self, permits: Iterable[Permit], *, again_in: float | None = None) -> None:
        """Let go of them: done with (acknowledged), or to be dealt out again after `again_in` seconds."""
        ...
