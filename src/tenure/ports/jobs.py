"""What a job is on its way into, through and out of a store, and the verbs of clients and owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tenure.core.lifecycle import Lease, Outcome, State

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


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


class Promoted(NamedTuple):
    """The ids that each queue got, and the seconds until the next job is due (None: none waits)."""

    jobs: Mapping[str, Sequence[str]]
    next_due: float | None


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


class JobStore(Protocol):
    """The verbs that move jobs. Each is one atomic step; under concurrency exactly one caller wins it."""

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

    def pause(self, queue: str, *, paused: bool) -> bool:
        """Stop or resume claims from a queue; False: it was so already. Running jobs go on."""
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
