"""The life of a job, as data. Read this file first.

    enqueue ──► scheduled ──promote──► queued ──claim──► processing ──finish──► completed
                    ▲                    ▲                   │
                    │                    └─ released, rescue ┤──► dead       (failures or crashes used up)
                    └─ failed, snoozed, later rescues ───────┤
                                                             └──► cancelled  (requested, and the code has stopped)

    start ──► processing: a guard's job begins under its guard's lease, and ends completed, dead or cancelled.

A *claim* grants a **lease**: (job, attempt, worker). Every later write of the owner carries it and lands only
while the job is `processing` under exactly that attempt and worker. The attempt number rises by one with every
claim and is never lowered, so a former owner can never be mistaken for the present one.

`MOVES` is the whole protocol. The memory store applies it, the conformance suite tries every verb from every state
on every store, `tests/model` searches it exhaustively, and the chart in `docs/lifecycle.md` is drawn from it. A new
verb starts with a new row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, assert_never

from tenure.core.retry import full_jitter


class State(StrEnum):
    SCHEDULED = "scheduled"  #: due later: delayed by the caller, snoozed, or waiting to retry
    QUEUED = "queued"  #: due, owned by no worker
    PROCESSING = "processing"  #: owned by exactly one worker, under one lease
    COMPLETED = "completed"  #: its handler returned; the result is kept
    DEAD = "dead"  #: a dead letter: failures or crashes used up; kept until an operator decides
    CANCELLED = "cancelled"  #: stopped on request, or too late to start


GUARD = "guard"  #: the queue of jobs that run outside workers, under a guard: never claimed, retried or replayed

LIVE = frozenset({State.SCHEDULED, State.QUEUED, State.PROCESSING})
ENDED = frozenset(State) - LIVE


class Needs(StrEnum):
    """What a move requires besides the state it starts from."""

    NOTHING = "nothing"
    DUE = "its time has come, or an operator promotes it"
    LIVE_WORKER = "a worker whose row exists, is not dead and has not expired; grants a lease"
    LEASE = "the lease: this attempt, this worker"
    DEAD_OWNER = "an owner that is dead or missing, or hung for two leases longer than it may be silent"
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
    """The handler asked to run again later. Nothing is charged."""

    delay: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """Handed back: a drain, a self-fence, another job's fault. Nothing is charged, and it keeps its place."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Stopped by a cancel request, or expired before it could start."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process died, stopped or hung, or its lease ended: charged as a crash. Never raised by a handler.

    `process_died` makes the next attempt run alone in a one-slot worker, so that only the job at fault spends its
    budget. `evidence` (signal, peak memory, last line) is kept with the attempt, to diagnose the dead letter.
    """

    reason: str
    process_died: bool = False
    evidence: Mapping[str, str] = field(default_factory=dict[str, str])


Outcome = Completed | Failed | Snoozed | Released | Cancelled | Crashed


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
_S, _Q, _P = State.SCHEDULED, State.QUEUED, State.PROCESSING
_C, _D, _X = State.COMPLETED, State.DEAD, State.CANCELLED

MOVES: tuple[Move, ...] = (
    Move("enqueue", _NEW, _states(_Q, _S), Needs.NOTHING),
    Move("start", _NEW, _states(_P), Needs.LIVE_WORKER),  # a guard's own job, which no worker claims
    Move("promote", _states(_S), _states(_Q), Needs.DUE),
    Move("claim", _states(_Q), _states(_P), Needs.LIVE_WORKER),
    Move("progress", _states(_P), _states(_P), Needs.LEASE),
    Move("once", _states(_P), _states(_P), Needs.LEASE),
    Move("finish", _states(_P), _states(_C), Needs.LEASE, Completed),
    Move("finish", _states(_P), _states(_S, _D, _X), Needs.LEASE, Failed),
    Move("finish", _states(_P), _states(_S, _X), Needs.LEASE, Snoozed),
    Move("finish", _states(_P), _states(_Q, _X), Needs.LEASE, Released),
    Move("finish", _states(_P), _states(_X), Needs.LEASE, Cancelled),
    Move("finish", _states(_P), _states(_Q, _S, _D, _X), Needs.LEASE, Crashed),
    Move("rescue", _states(_P), _states(_Q, _S, _D, _X), Needs.DEAD_OWNER, Crashed),
    Move("redelivered", _states(_P), _states(_Q, _S, _D, _X), Needs.DEAD_OWNER, Crashed),
    Move("cancel", _states(_S, _Q), _states(_X), Needs.OPERATOR),
    Move("cancel", _states(_P), _states(_P), Needs.OPERATOR),  # a request: the owner stops the code, then finishes
    Move("replay", _states(_C, _D, _X), _states(_Q), Needs.OPERATOR),
    Move("delete", _states(_S, _Q, _C, _D, _X), _GONE, Needs.OPERATOR),
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

TOTAL_CRASHES = 20  #: checkpoints reset `crashes` to 0; this many in total still end a job (or max_crashes, if higher)


class Charges(NamedTuple):
    """What `decide` needs of a job: its budgets, what is spent, and whether a cancel was requested."""

    failures: int
    crashes: int
    crashes_total: int
    max_failures: int
    max_crashes: int
    retry_base: float  #: seconds
    retry_cap: float  #: seconds
    isolated: bool
    cancel_asked: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """Where an outcome leads. `delay` counts from the store's now; None keeps `run_at`, and so the job's place."""

    state: State
    failures: int
    crashes: int
    crashes_total: int
    solo: bool
    delay: float | None = None


def decide(job: Charges, outcome: Outcome, draw: float) -> Decision:
    """The single place that defines what an outcome means. Pure: `draw` (0 ≤ draw < 1) is the only source of jitter.

    >>> job = Charges(0, 0, 0, max_failures=2, max_crashes=3, retry_base=1, retry_cap=30,
    ...               isolated=False, cancel_asked=False)
    >>> decide(job, Failed("boom"), draw=0.5)
    Decision(state=<State.SCHEDULED: 'scheduled'>, failures=1, crashes=0, crashes_total=0, solo=False, delay=1.0)
    """
    failures, crashes, total = job.failures, job.crashes, job.crashes_total
    solo = job.isolated or crashes >= 2
    delay: float | None = None
    match outcome:
        case Completed():
            return Decision(State.COMPLETED, failures, crashes, total, solo)
        case Cancelled():
            return Decision(State.CANCELLED, failures, crashes, total, solo)
        case Failed(retry_in=retry_in, final=final):
            failures += 1
            if final or failures >= job.max_failures:
                return Decision(State.CANCELLED if job.cancel_asked else State.DEAD, failures, crashes, total, solo)
            state = State.SCHEDULED
            delay = retry_in if retry_in is not None else full_jitter(failures, job.retry_base, job.retry_cap, draw)
        case Snoozed(delay=snooze):
            state, delay = State.SCHEDULED, snooze
        case Released():
            state = State.QUEUED
        case Crashed(process_died=process_died):
            crashes, total = crashes + 1, total + 1
            solo = job.isolated or process_died or crashes >= 2
            if crashes > job.max_crashes or total > max(TOTAL_CRASHES, job.max_crashes):
                return Decision(State.CANCELLED if job.cancel_asked else State.DEAD, failures, crashes, total, solo)
            state = State.QUEUED if crashes == 1 else State.SCHEDULED
            delay = None if crashes == 1 else full_jitter(crashes - 2, job.retry_base, job.retry_cap, draw)
        case _:
            assert_never(outcome)
    if job.cancel_asked:
        return Decision(State.CANCELLED, failures, crashes, total, solo)
    return Decision(state, failures, crashes, total, solo, delay)


def outcome_name(outcome: Outcome) -> str:
    """An outcome's name in the store: 'completed', 'failed', 'snoozed', 'released', 'cancelled', 'crashed'."""
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
