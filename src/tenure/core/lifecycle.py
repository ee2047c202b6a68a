"""The life of a job, as data. Read this file first.

    enqueue ──► scheduled ──promote──► queued ──claim──► processing ──finish──► completed
                    ▲                    ▲                   │
                    │                    └─ released, rescue ┤──► dead       (failures or crashes used up)
                    └─ failed, snoozed, later rescues ───────┤
                                                             └──► cancelled  (requested, and the code has stopped)

    enqueue, or suspended ──► waiting ──admit──► queued  (what had to happen first has happened)

    A job with a limit is waiting wherever another would be queued; admit gives it its places, withdraw takes them back.

    start ──► processing: a guard's job begins under its guard's lease, and ends completed, dead or cancelled.

A *claim* grants a **lease**: (job, attempt, worker). Every later write of the owner carries it and lands only
while the job is `processing` under exactly that attempt and worker. The attempt number rises by one with every
claim and is never lowered, so a former owner can never be mistaken for the present one.

`MOVES` is the whole protocol. The memory store applies it, the conformance suite tries every verb from every state
on every store, `tests/model` searches it exhaustively, and the chart in `docs/lifecycle.md` is drawn from it. A new
verb starts with a new row here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, NamedTuple, assert_never

from tenure.core.limits import Key
from tenure.core.retry import full_jitter


class State(StrEnum):
    WAITING = "waiting"  #: something must happen first: jobs before it must end, a signal arrive, a limit have room
    SCHEDULED = "scheduled"  #: due later: delayed by the caller, snoozed, or to be retried
    QUEUED = "queued"  #: due, owned by no worker
    PROCESSING = "processing"  #: owned by exactly one worker, under one lease
    COMPLETED = "completed"  #: its handler returned; the result is kept
    DEAD = "dead"  #: a dead letter: failures or crashes used up; kept until an operator decides
    CANCELLED = "cancelled"  #: stopped on request, or too late to start


EXPIRED = "it expired before a worker was free to start it"  #: the reason of such a job
#: The task and the queue of the engine's own jobs, which deliver alerts.
ALERT, ALERTS = "tenure.alert", "tenure.alerts"
GUARD = "guard"  #: the queue of jobs that run outside workers, under a guard: never claimed, retried or replayed

LIVE = frozenset({State.WAITING, State.SCHEDULED, State.QUEUED, State.PROCESSING})
ENDED = frozenset(State) - LIVE


class Needs(StrEnum):
    """What a move requires besides the state it starts from."""

    NOTHING = "nothing"
    DUE = "its time has come, or an operator promotes it"
    LIVE_WORKER = "a worker whose row exists, is not dead and has not expired; grants a lease"
    LEASE = "the lease: this attempt, this worker"
    DEAD_OWNER = "an owner that is dead or missing, or hung for two leases longer than it may be silent"
    CONDITION = "what the job waits for has happened, as the store sees it"
    UNUSED = "it has a limit and has not begun, and its queue is paused, unserved, or keeps a place from another queue"
    OPERATOR = "an operator"
    AGE = "kept for long enough"


class Lease(NamedTuple):
    """The right that a claim grants. Writes to a running job need its lease, which ends with the attempt."""

    job_id: str
    attempt: int
    worker_id: str


# ── Outcomes: how an attempt ends. `finish` takes one, `settle` takes those of a process that has exited. ──────────


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned. `result` is JSON text."""

    result: str = "null"


@dataclass(frozen=True, slots=True)
class Failed:
    """The code raised or timed out: charged as a failure. `retry_in` seconds overrides the job's own backoff."""

    error: str
    retry_in: float | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to run again later, or this worker can't run it. Nothing is charged.

    `pause`: no job of this key is admitted until then.
    """

    delay: float
    reason: str = ""
    pause: Key | None = None
    ours: bool = False  #: the reason is the engine's own, not text of the handler: readable without a key


@dataclass(frozen=True, slots=True)
class Released:
    """Handed back: a drain, a self-fence, another job's fault. Nothing is charged, and it keeps its place."""

    reason: str = ""


class Edge(NamedTuple):
    """A job waits for its `parent` until that has completed, or has ended in any way."""

    parent: str
    until: Literal["completed", "ended"] = "completed"


@dataclass(frozen=True, slots=True)
class Suspended:
    """The handler waits for jobs or a signal, and gives its slot back. Nothing is charged; it runs again from the top.

    `after`: jobs to wait for, besides those that it gathers. `signal`: the key of a signal (`own:NAME`, `shared:KEY`),
    for at most `timeout` seconds.
    """

    reason: str = ""
    after: tuple[Edge, ...] = ()
    signal: str | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Stopped by a cancel request, or expired before it could start (EXPIRED)."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process died, stopped or hung, or its lease ended: charged as a crash. Never raised by a handler.

    `process_died`: there is proof that the process is gone, but any of its jobs may have been the cause. `at_fault`:
    this job was the cause, because it hung. With neither, the lease has ended, for an unknown reason. `evidence`
    (signal, peak memory, last line) is kept with the attempt, to diagnose the dead letter.
    """

    reason: str
    process_died: bool = False
    at_fault: bool = False
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])


Outcome = Completed | Failed | Snoozed | Suspended | Released | Cancelled | Crashed


# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Move:
    verb: str
    sources: frozenset[State]
    targets: frozenset[State]
    needs: Needs
    outcome: type[Outcome] | None = None


def _states(*states: State) -> frozenset[State]:
    return frozenset(states)


_NEW = frozenset[State]()
_GONE = frozenset[State]()
_W, _S, _Q, _P = State.WAITING, State.SCHEDULED, State.QUEUED, State.PROCESSING
_C, _D, _X = State.COMPLETED, State.DEAD, State.CANCELLED

MOVES: tuple[Move, ...] = (
    Move("enqueue", _NEW, _states(_Q, _S, _W), Needs.NOTHING),
    Move("start", _NEW, _states(_P), Needs.LIVE_WORKER),  # a guard's own job, which no worker claims
    Move("promote", _states(_S), _states(_Q, _W), Needs.DUE),
    Move("admit", _states(_W), _states(_Q, _S, _X), Needs.CONDITION),
    Move("withdraw", _states(_Q), _states(_W), Needs.UNUSED),
    Move("claim", _states(_Q), _states(_P), Needs.LIVE_WORKER),
    Move("progress", _states(_P), _states(_P), Needs.LEASE),
    Move("once", _states(_P), _states(_P), Needs.LEASE),
    Move("finish", _states(_P), _states(_C), Needs.LEASE, Completed),
    Move("finish", _states(_P), _states(_S, _D, _X), Needs.LEASE, Failed),
    Move("finish", _states(_P), _states(_S, _X), Needs.LEASE, Snoozed),
    Move("finish", _states(_P), _states(_W, _X), Needs.LEASE, Suspended),
    Move("finish", _states(_P), _states(_Q, _X, _W), Needs.LEASE, Released),
    Move("finish", _states(_P), _states(_X), Needs.LEASE, Cancelled),
    Move("finish", _states(_P), _states(_Q, _S, _D, _X, _W), Needs.LEASE, Crashed),
    Move("rescue", _states(_P), _states(_Q, _S, _D, _X, _W), Needs.DEAD_OWNER, Crashed),
    Move("redelivered", _states(_P), _states(_Q, _S, _D, _X, _W), Needs.DEAD_OWNER, Crashed),
    Move("cancel", _states(_W, _S, _Q), _states(_X), Needs.OPERATOR),
    Move("cancel", _states(_P), _states(_P), Needs.OPERATOR),  # a request: the owner stops the code, then finishes
    Move("replay", _states(_C, _D, _X), _states(_Q, _S, _W), Needs.OPERATOR),
    Move("delete", _states(_W, _S, _Q, _C, _D, _X), _GONE, Needs.OPERATOR),
    Move("prune", _states(_C, _D, _X), _GONE, Needs.AGE),
)
VERBS: tuple[str, ...] = tuple(dict.fromkeys(move.verb for move in MOVES))


def legal(verb: str, source: State) -> bool:
    """Does the table allow this verb from this state?

    >>> legal("claim", State.QUEUED), legal("claim", State.DEAD)
    (True, False)
    """
    return any(move.verb == verb and source in move.sources for move in MOVES)


# ── The decision ────────────────────────────────────────────────────────────────────────────────────────────────

TOTAL_CRASHES = 20  #: checkpoints reset `crashes` to 0; more than this in all (or max_crashes, if higher) end a job
MOST_TOGETHER = 64  #: suspects in one process
FEW_TOGETHER = 8  #: suspects in one process, if one more crash uses up their budgets
MOST_GROUPS = 8  #: groups of suspects that one supervisor runs at a time
NARROWER = 8  #: how many groups the jobs of a process that died are divided into, at least


class Charges(NamedTuple):
    """What `decide` needs of a job: its budgets, what is spent, what ran beside it, and whether a cancel was requested.

    The last two describe the process of the attempt. Their defaults are for an outcome that its own worker reports.
    """

    failures: int
    crashes: int
    crashes_total: int
    max_failures: int
    max_crashes: int
    retry_base: float  #: seconds
    retry_cap: float  #: seconds
    isolated: bool
    queue: str
    solo: bool  #: it was claimed as a suspect, or because it is isolated
    together: int  #: how many jobs the process may have run then, this one included
    cancel_asked: bool
    slots: int = 1  #: of the worker, for a job that was not solo
    neighbours: bool = True  #: the same worker owned other jobs when the attempt ended
    limited: bool = False  #: it has a limit: it waits for its places again where another would be queued


@dataclass(frozen=True, slots=True)
class Decision:
    """Where an outcome leads. `delay` counts from the store's now; None keeps `run_at`, and so the job's place."""

    state: State
    failures: int
    crashes: int
    crashes_total: int
    solo: bool
    together: int = 1
    delay: float | None = None


def decide(job: Charges, outcome: Outcome, draw: float) -> Decision:
    """The single place that defines what an outcome means. Pure: `draw` (0 ≤ draw < 1) is the only source of jitter.

    >>> job = Charges(0, 0, 0, max_failures=2, max_crashes=3, retry_base=1, retry_cap=30,
    ...               isolated=False, queue="default", solo=False, together=1, cancel_asked=False)
    >>> decision = decide(job, Failed("boom"), draw=0.5)
    >>> decision.state, decision.failures, decision.delay
    (<State.SCHEDULED: 'scheduled'>, 1, 1.0)
    """
    spent = Decision(State.QUEUED, job.failures, job.crashes, job.crashes_total, job.solo, job.together)
    match outcome:
        case Completed():
            return replace(spent, state=State.COMPLETED)
        case Cancelled():
            return replace(spent, state=State.CANCELLED)
        case Failed(retry_in=retry_in, final=final):
            failures = job.failures + 1
            delay = retry_in if retry_in is not None else full_jitter(failures, job.retry_base, job.retry_cap, draw)
            dead = final or failures >= job.max_failures
            decision = replace(spent, state=State.SCHEDULED, failures=failures, delay=delay)
        case Snoozed(delay=delay):
            dead, decision = False, replace(spent, state=State.SCHEDULED, delay=delay)
        case Suspended():
            dead, decision = False, replace(spent, state=State.WAITING)
        case Released():
            dead, decision = False, spent
        case Crashed():
            dead, decision = _crashed(job, outcome, draw)
        case _:
            assert_never(outcome)
    if job.cancel_asked:
        return replace(decision, state=State.CANCELLED, delay=None)
    if dead:
        return replace(decision, state=State.DEAD, delay=None)
    if job.limited and decision.state is State.QUEUED:
        return replace(decision, state=State.WAITING)
    return decision


def _crashed(job: Charges, crash: Crashed, draw: float) -> tuple[bool, Decision]:
    """Whether the job is dead, and the decision if it is not.

    A job is dead only if it was the cause: it hung, or its process died while it ran nothing else. Where that is not
    known, a job that has used up its budget keeps it used up, and runs alone next. Without proof that the process
    died, more than twenty crashes in all end a job that ran alone: it may be what brings its host down each time.
    """
    crashes, total = job.crashes + 1, job.crashes_total + 1
    worn_out = total > max(TOTAL_CRASHES, job.max_crashes)
    spent = crashes > job.max_crashes or worn_out
    alone = job.solo and job.together == 1 and not job.neighbours
    known = crash.at_fault or job.queue == GUARD  # a guard's process runs nothing else, and its job never again
    dead = spent and (known or (alone and (crash.process_died or worn_out)))
    tries = total if spent else crashes
    solo = job.solo or job.isolated or crash.process_died or crashes >= 2 or spent
    decision = Decision(
        State.QUEUED if tries == 1 else State.SCHEDULED,
        job.failures,
        crashes if dead else min(crashes, max(job.max_crashes, job.crashes)),
        total,
        solo=solo,
        together=_together(job, job.max_crashes - crashes) if solo and not (crash.at_fault or spent) else 1,
        delay=None if tries == 1 else full_jitter(tries - 2, job.retry_base, job.retry_cap, draw),
    )
    return dead, decision


def _together(job: Charges, left: int) -> int:
    """How many suspects may run together, by what is left of the job's budget: each crash makes the group smaller."""
    most = MOST_TOGETHER if left >= 2 else FEW_TOGETHER if left == 1 else 1
    was = job.together if job.solo else job.slots
    return min(most, narrowed(was))


def narrowed(slots: int) -> int:
    """How many jobs of a process with this many slots may run together after it has died.

    Groups of two would charge the innocent twice, to save the time of a few jobs: fewer than 16 run alone.

    >>> narrowed(500), narrowed(16), narrowed(15)
    (63, 2, 1)
    """
    return -(-slots // NARROWER) if slots >= 2 * NARROWER else 1


def groups_of(together: Sequence[int], slots: int) -> int:
    """How many groups these suspects make, in their order, for workers with this many slots; 8 at most.

    >>> groups_of([63] * 70, 64), groups_of([63] * 70, 5), groups_of([8, 8, 1], 64)
    (2, 8, 2)
    """
    groups, at = 0, 0
    while at < len(together) and groups < MOST_GROUPS:
        at += group_size(together[at : at + slots])
        groups += 1
    return groups


def group_size(together: Iterable[int]) -> int:
    """How many of these suspects, the first ones in order, one worker may claim as a group.

    >>> group_size([63, 63, 8, 8]), group_size([63, 63, 1, 63]), group_size([1, 63]), group_size([])
    (4, 2, 1, 0)
    """
    size, least = 0, MOST_TOGETHER
    for each in together:
        least = min(least, each)
        if size >= least:
            break
        size += 1
    return size


def outcome_name(outcome: Outcome) -> str:
    """An outcome's name in the store: its class in lower case, as 'completed' or 'suspended'."""
    return type(outcome).__name__.lower()


def reason_of(outcome: Outcome) -> str:
    """The reason for an outcome, as text; '' for Completed."""
    match outcome:
        case Completed():
            return ""
        case Failed(error=error):
            return error
        case _:
            return outcome.reason


def error_after(outcome: Outcome, state: State, cancel_reason: str | None) -> str | None:
    """The error a job shows after this outcome has led to `state`; None keeps its present one."""
    if isinstance(outcome, Failed | Crashed):
        return reason_of(outcome)
    if state is State.CANCELLED:
        return (outcome.reason if isinstance(outcome, Cancelled) else "") or cancel_reason or ""
    return None
