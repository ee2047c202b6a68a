"""The values of a job as it enters, moves through and leaves a store, and the verbs of clients and owners."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from tenure.core.lifecycle import Edge, Lease, Outcome, State
from tenure.core.limits import Key

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")

#: The most text in one batch of jobs, outcomes or reports. What is larger goes alone; a claim ends with the job that
#: reaches it.
BATCH_BYTES = 4 << 20


RESERVED = "tenure."  #: names in a job's meta that begin with this are Tenure's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a new job waits for, and the flow it belongs to. The order of `after` is kept: arguments refer to it."""

    after: tuple[Edge, ...] = ()
    flow: str | None = None  #: the flow's id, canonical UUID text
    name: str = ""  #: of the flow
    once: bool = False  #: the flow is stored by one call only, which names all of its jobs
    gatherer: str | None = None  #: the job that gathers this one; if that job ends early, this one is cancelled
    gathered: Literal["completed", "ended"] = "completed"  #: how far the gatherer waits for this one


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job not yet stored. `delay` counts from the store's now; `run_at` is an instant; with neither it is due now."""

    id: str
    task: str
    payload: str
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    run_at: datetime | None = None
    expires: float | None = None  #: its first attempt must have started within this many seconds after it is due
    unique: str | None = None
    isolated: bool = False
    timeout: float | None = None
    stale_after: float | None = None
    max_failures: int = 10
    max_crashes: int = 3
    retry_base: float = 1.0
    retry_cap: float = 30.0
    meta: str = "{}"
    links: Links | None = None  #: what it waits for, and its flow; None: neither
    limits: tuple[Key, ...] = ()  #: it needs a place under each of these

    def but(self, **changes: Any) -> Draft:
        """A copy with these changes."""
        return msgspec.structs.replace(self, **changes)


class Enqueued(NamedTuple):
    """`id` is the caller's, or that of the live job that holds the unique key. `state` is the state of that job."""

    id: str
    created: bool
    state: State


class Readable(NamedTuple):
    """What a call on an event loop waits for: that this descriptor is readable, for at most this many seconds."""

    fileno: int
    seconds: float


#: A call on an event loop. It is resumed once what it yields is readable, or thrown a TimeoutError when that takes too
#: long; it returns the answer. Closing it gives it up: whether it was executed is then unknown.
OnLoop = Generator[Readable, None, T | None]


class Claimed(NamedTuple):
    """A job under its new lease, with everything needed to run it."""

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
    enqueued_ms: int  #: Unix milliseconds; converted to a datetime only when a handler reads it
    expired: bool  #: it was claimed after its `expires`: finish it as Cancelled, do not run it
    linked: bool = False  #: another job may wait for its end: ring `due` when it has ended
    limited: bool = False  #: it holds places: ring `due` when the attempt has ended

    @property
    def is_plain(self) -> bool:
        """Is its payload here as it was enqueued, without a checkpoint? Encrypted or elsewhere, it is a JSON string."""
        return self.payload.startswith("{") and self.checkpoint is None


def may_be_cut(claimed: Iterable[Claimed]) -> bool:
    """Can a short claim have ended because of its size, and not because there were no more jobs?"""
    characters = sum(len(each.payload) + len(each.checkpoint or "") + len(each.meta) for each in claimed)
    return 4 * characters >= BATCH_BYTES  # UTF-8 has at most four bytes for each


class Owned(NamedTuple):
    """A lease that the store records for a worker, and the reason for a cancel requested since, if any."""

    claimed: Claimed
    cancel_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The latest report of an attempt. None keeps the stored value. A new checkpoint resets `crashes` to 0."""

    lease: Lease
    fraction: float | None = None
    stage: str | None = None
    message: str | None = None
    checkpoint: str | None = None
    log: str | None = None  #: the last lines of this attempt's log, as `logs` returns them; replaces the stored lines


EDITS = "tenure.edits"  #: key in a job's meta: its earlier arguments, and when and by whom they were changed


class Edit(NamedTuple):
    """The new payload and meta of a replayed job: JSON texts, as in `Draft`."""

    payload: str
    meta: str


NO_EDITS: Mapping[str, Edit] = MappingProxyType({})
NO_DELAYS: Mapping[str, float] = MappingProxyType({})


NONE_KNOWN: Mapping[Lease, Claimed] = MappingProxyType({})


class Retried(NamedTuple):
    """What the store has decided after a failure: seconds until the retry, and the failures the job may have."""

    retry_in: float
    max_failures: int


class Landed(NamedTuple):
    """The write is stored. `state` is the job's new state: the store may know of a cancel the caller did not."""

    state: State
    retried: Retried | None = None  #: after a failure that was written just now and is retried


class NotLanded(NamedTuple):
    """The write changed nothing: `stands` says, in a sentence for people, what the store holds instead."""

    stands: str


class Busy(NamedTuple):
    """Another open transaction has locked the row: the result is unknown. Retry with the same lease and outcome."""


Answer = Landed | NotLanded


class Promoted(NamedTuple):
    """The promoted ids by queue, and the seconds until the next job is due (None: no job is scheduled).

    `cleared`: the messages of those that had been rescued and then waited, by id. `limited`: how many others were
    promoted, which wait for their places now.
    """

    jobs: Mapping[str, Sequence[str]]
    next_due: float | None
    cleared: Mapping[str, str] = MappingProxyType({})
    limited: int = 0


class Awaited(NamedTuple):
    """A caller's transaction whose driver may have to be awaited, and the event loop it belongs to.

    The verbs stay synchronous: given one, a store runs its statements on that loop, from another thread.
    """

    tx: object
    loop: AbstractEventLoop


@dataclass(frozen=True, slots=True)
class OnceRecord:
    """The result of `once`: `value` is the JSON that the first call recorded, None if there was none."""

    value: str | None = None


class JobStore(Protocol):
    """The verbs that move jobs. Each is one atomic step; under concurrency exactly one caller wins it."""

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        """nothing → queued, scheduled when due later, or waiting. All or none; idempotent by id, answers in order.

        Redis stores more than 200 jobs, or a mebibyte of text, in parts: an error may leave some stored, unless one of
        the drafts has links.

        Wherever this or another verb would queue a job, one with limits is waiting, and parked under its first key.

        A draft with edges (`links.after`) is waiting until `admit` finds that they are closed. Each parent must be
        stored, or come earlier in `drafts`; if that one was not created, its edges lead from the existing job.
        Raises BadData that names a parent which does not exist.

        If a flow of these drafts is to be stored only once (`links.once`) and exists already, nothing is stored, and
        FlowMade is raised: also for a flow that is committed while this call waits for it, and for this very call if
        it is repeated. A flow exists while one of its jobs does: `delete` and `prune` forget it with the last one.

        If the id is already stored, or a live job of that task holds the unique key, nothing is created and the answer
        names the existing job. With `tx` the jobs exist if and only if that transaction commits; `committed` is then
        called after the outermost commit, in whichever thread learns of it: never after a rollback, and not at all if
        the store can't find out whether the transaction committed.

        Without `tx` it waits only for a moment for a key or a flow that another open transaction holds, then raises
        StoreBusy.
        """
        ...

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        """`enqueue` for one draft without links, called in the thread of an event loop, which it does not block.

        None: that is not possible now, and nothing was stored. Call `enqueue` in another thread.
        """
        ...

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        """waiting, scheduled, queued → cancelled; processing: requested, its owner stops it.

        Returns the new state of each; None: no such job.
        """
        ...

    def promote(self, *, limit: int = 1000) -> Promoted:
        """scheduled and due → queued, or waiting if limited, in order of `run_at`; at most `limit`.

        Call again while that many were promoted.
        """
        ...

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        """scheduled → queued at an operator's request, due or not; waiting: stays. New state; None: no such job."""
        ...

    def replay(
        self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS, delays: Mapping[str, float] = NO_DELAYS
    ) -> dict[str, Answer | None]:
        """ended → queued; failures and crashes reset, `attempt` keeps counting. NotLanded if live or its key is held.

        A job with edges is waiting again while a parent has not ended as the edge asks. NotLanded if a parent that it
        needs completed was cancelled or is gone, or if the job completed and a job that waits for it is live.

        `edits`, by id: run the job with these instead; its checkpoint belongs to the old arguments and is removed.
        `delays`, by id: seconds until it is due; it is scheduled, not queued.
        """
        ...

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        """any state but processing → deleted, with its attempts. `Landed` names the state it was deleted in.

        NotLanded also if a live job has an edge from it.
        """
        ...

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        """Delete completed and cancelled jobs older than `keep`, dead ones older than `keep_dead` (None: never).

        A job from which a live job has an edge is kept. Flows with no job left are deleted too, and shared signals
        that are older than `keep`.
        """
        ...

    def pause(self, queue: str, *, paused: bool) -> bool:
        """Stop or resume claims from a queue; False: no change. Running jobs are not affected."""
        ...

    # ── owners ──

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        """queued → processing under a new lease, for up to `limit` jobs, at most `wants[queue]` of each queue.

        Order in a queue: priority (higher first), run_at, id; queues are served in the order of `wants`. `solo` takes
        only suspects and isolated jobs, False only the others. With `solo` the answer is one group: the first such jobs
        of one queue, no more of them than each may run with (`together`), and none for a worker that owns a job. A
        worker whose row is missing, dead or expired claims nothing, and nothing is claimed from a paused queue. One
        statement: two workers never claim the same job.
        The claim ends with the job whose payload, checkpoint and meta make it `BATCH_BYTES` or more: `may_be_cut`.
        """
        ...

    def claim_on_loop(
        self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False
    ) -> OnLoop[list[Claimed]]:
        """`claim`, called in the thread of an event loop, which it does not block.

        A store on this machine may do it at once instead: that takes less time than to wait. None: that is not possible
        now, and nothing was claimed. Call `claim` in another thread.
        """
        ...

    def owned(self, worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        """Every lease of this worker, and the cancels requested. Changes nothing.

        `known`: what the caller already has of some of them: this is returned, and their payloads are not read again.
        """
        ...

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        """processing, state unchanged; the report is stored under its lease. Returns per report whether it landed.

        Logs are kept per attempt, for as long as the job is.
        """
        ...

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        """Record, for diagnosis, that a write under this lease did not land, in the row of its attempt if there is one.

        The reason becomes `evidence["refused"]` if the row is that worker's and has none yet. Nothing else changes.
        """
        ...

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        """Read (`value` None) or record, under the lease, the first result of `key` in this job.

        None: the lease is lost. An existing record is kept and returned.
        """
        ...

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        """processing → the state that `decide` gives, per lease. The same lease and outcome again returns Landed again.

        A Busy job delays no other job of its batch.

        The store applies what only it knows: a requested cancel turns a retry, release or snooze into cancelled.
        Raises BadData when a value is refused: no outcome of the batch landed.
        """
        ...
