"""The world of the model: a job, two workers, what is on its way between them, and the rules that can be left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from tenure.core.lifecycle import (
    ENDED,
    MOVES,
    Cancelled,
    Charges,
    Completed,
    Crashed,
    Failed,
    Outcome,
    Released,
    State,
    decide,
    legal,
    outcome_name,
)

from .search import Step

MISHAPS = 2


@dataclass(frozen=True, slots=True)
class Guards:
    """Every rule of the protocol that can be left out."""

    lease_attempt_checked: bool = True  #: an owner's write lands only under the attempt it names
    lease_worker_checked: bool = True  #: … and only under the worker it names
    state_checked_in_finish: bool = True  #: … and only while the job is processing
    finish_remembers_last_end: bool = True  #: a repeated finish hears that it has landed, not that it is refused
    claim_checks_queued: bool = True  #: a claim looks at the job's state again when it commits
    claim_checks_worker_alive: bool = True  #: a worker whose row is expired or dead is granted nothing
    attempt_rises_with_every_claim: bool = True  #: no two claims share an attempt number
    death_needs_expiry: bool = True  #: a worker is declared dead only when its lease has run out
    renew_refuses_dead: bool = True  #: a row that was declared dead is never renewed
    new_worker_id_each_start: bool = True  #: a replacement starts under an id that was never used
    scanner_waits_after_absence: bool = True  #: after an outage or a start, no worker is declared dead for one lease
    rescue_level_triggered: bool = True  #: every scan takes jobs of dead workers, not only the one that declares them
    rescue_predicate_in_write: bool = True  #: a rescue looks at the owner again when it commits
    settle_checks_owner: bool = True  #: a supervisor settles only what its own worker still owns
    owned_adopts_lost_reply: bool = True  #: what the store holds in my name and I do not have, I run
    owned_drops_lost_lease: bool = True  #: what I have and the store does not hold in my name, I stop
    owned_tells_cancel: bool = True  #: a cancel that was asked for reaches the code
    owned_read_while_no_claim_in_flight: bool = True  #: a worker reads what it owns only between its claims
    owned_skips_what_just_ended: bool = True  #: it adopts nothing that it still had when it sent that read
    second_claim_stops_old_code_first: bool = True  #: a worker handed a job that it still runs stops the old code
    code_stops_before_finish: bool = True  #: an attempt is ended in the store only after its code has stopped
    group_killed_before_settle: bool = True  #: … and all that a crashed worker had started
    self_fence_before_expiry: bool = True  #: code that is not renewed is killed before its lease runs out
    stopped_worker_is_killed: bool = True  #: a worker under SIGSTOP is killed, not renewed for ever
    cancel_turns_retry_into_cancelled: bool = True  #: a job that is to be cancelled is not run again


# ── The world ───────────────────────────────────────────────────────────────────────────────────────────────────


class Row(StrEnum):
    """A worker's row in the store."""

    FRESH = "fresh"
    EXPIRED = "expired"
    DEAD = "dead"  #: declared


class Process(StrEnum):
    UP = "up"
    STOPPED = "stopped"  #: this process alone, by SIGSTOP
    PAUSED = "paused"  #: its whole machine, supervisor included
    CRASHED = "crashed"  #: what it had started may run on; its supervisor has yet to settle
    KILLED = "killed"  #: with all that it had started, by its deadline or its supervisor
    GONE = "gone"  #: with its supervisor


class Supervisor(StrEnum):
    STEADY = "steady"  #: it has renewed without a gap for a lease
    BACK = "back"  #: it was away, or has just started
    AWAY = "away"  #: stopped, cut off from the store, or gone


class Claim(StrEnum):
    NONE = "none"
    OPEN = "open"  #: the statement has checked, and not yet committed
    GRANTED = "granted"  #: committed; the reply is on its way


class Look(NamedTuple):
    """The answer to an `owned` read, on its way: the attempt that the store holds in my name (0: none)."""

    seen: int
    known: bool  #: I had it already when I asked
    cancel: bool


class Stray(NamedTuple):
    """A request whose sender no longer waits for the reply: a claim (`attempt` 0), or a finish."""

    worker: int
    attempt: int = 0
    ending: str = ""


class Worker(NamedTuple):
    row: Row = Row.FRESH
    process: Process = Process.UP
    supervisor: Supervisor = Supervisor.STEADY
    claim: Claim = Claim.NONE
    granted: int = 0  #: the attempt in the reply to its claim
    look: Look | tuple[()] = ()
    holds: int = 0  #: the attempt that it believes it owns; 0: none
    runs: bool = False  #: the code of that attempt runs
    ending: str = ""  #: while it runs: what it was asked to stop for; afterwards: the outcome to be stored
    begun: int = 0  #: bit n: it has started its attempt n (kept as long as it might do so again)


class Job(NamedTuple):
    state: State = State.QUEUED
    attempt: int = 0
    owner: int = -1  #: while processing; afterwards, whose attempt was the last
    failures: int = 0
    crashes: int = 0
    cancel_asked: bool = False
    ends: tuple[tuple[int, int, str], ...] = ()  #: (attempt, worker, outcome), as long as someone may ask


class World(NamedTuple):
    job: Job = Job()
    workers: tuple[Worker, Worker] = (Worker(), Worker())
    stray: Stray | tuple[()] = ()
    scan: bool = False  #: a rescue has read that the job's owner is dead, and is about to write
    outage: bool = False  #: no process can reach the store
    faults: int = 0
    guilty: int = 0  #: those of them that may cost a job a crash: all but those of the store
    turns: int = 0
    excused: bool = False  #: two workers may run for a moment: see `together`


START = World()
Next = Step[World]
BOTH = (0, 1)
FORMER = 2
NAMES = ("A", "B", "a former worker")
LOST = "lost"  #: asked to stop because the lease is lost: nothing will be stored
OUTCOMES: dict[str, Outcome] = {
    outcome_name(outcome): outcome
    for outcome in (Completed(), Failed("it raised"), Cancelled(), Released(), Crashed("it died", process_died=True))
}


def put(world: World, w: int, worker: Worker) -> World:
    a, b = world.workers
    return world._replace(workers=(worker, b) if w == 0 else (a, worker))


def active(worker: Worker) -> bool:
    """Code of it runs right now, neither stopped nor paused."""
    return worker.runs and worker.process in (Process.UP, Process.CRASHED)


def owns(job: Job, w: int) -> bool:
    return job.state is State.PROCESSING and job.owner == w


def wanted(world: World, w: int) -> bool:
    """What w runs is the present owner's attempt, and nobody asked to cancel it."""
    job = world.job
    return owns(job, w) and job.attempt == world.workers[w].holds and not job.cancel_asked


def owner_is_dead(world: World) -> bool:
    job = world.job
    return job.state is State.PROCESSING and (job.owner == FORMER or world.workers[job.owner].row is Row.DEAD)


def stands(job: Job) -> str:
    """What the store holds."""
    if job.state is State.PROCESSING:
        return f"{NAMES[job.owner]} owns attempt {job.attempt}"
    return f"the job is {job.state}"


def at_rest(world: World) -> bool:
    """The end every story must be able to reach: the job has ended, and no worker runs its code."""
    return world.job.state in ENDED and not any(map(active, world.workers))


def together(world: World) -> str:
    """Two workers at once, which no single fault may cause, but for a paused machine and a store that lost a commit."""
    a, b = world.workers
    if a.runs and b.runs and not world.excused and active(a) and active(b):
        return "A and B run the job's code at once"
    return ""


@cache
def decided(failures: int, crashes: int, cancel_asked: bool, ending: str) -> tuple[State, int, int]:
    charges = Charges(
        failures=failures,
        crashes=crashes,
        crashes_total=crashes,
        max_failures=2,
        max_crashes=1,
        retry_base=1.0,
        retry_cap=30.0,
        isolated=False,
        queue="default",
        solo=True,
        together=1,
        cancel_asked=cancel_asked,
        neighbours=False,  # there is one job
    )
    decision = decide(charges, OUTCOMES[ending], draw=0.0)
    return decision.state, decision.failures, decision.crashes


@cache
def in_table(verb: str, source: State, target: State, ending: str) -> bool:
    return any(
        move.verb == verb
        and source in move.sources
        and target in move.targets
        and move.outcome is type(OUTCOMES[ending])
        for move in MOVES
    )


allows = cache(legal)


# ── Which worlds are the same ───────────────────────────────────────────────────────────────────────────────────

_MIRROR = (1, 0, FORMER, -1)


def normal(world: World) -> World:
    """One for all worlds that differ only in what can't be asked for any more, or in which worker is called A."""
    world = _forget(world)
    a, b = world.workers
    if a < b:
        return world
    job, stray = world.job, world.stray
    mirrored = world._replace(
        job=job._replace(
            owner=_MIRROR[job.owner],
            ends=tuple((attempt, _MIRROR[w], ending) for attempt, w, ending in job.ends),
        ),
        workers=(b, a),
        stray=stray._replace(worker=_MIRROR[stray.worker]) if stray else stray,
    )
    return mirrored if b < a else min(world, mirrored)


def _forget(world: World) -> World:
    job, (a, b), stray = world.job, world.workers, world.stray
    askers = (a.holds, b.holds, stray.attempt if stray else 0)
    if job.ends and not all(attempt in askers for attempt, _, _ in job.ends):
        job = job._replace(ends=tuple(end for end in job.ends if end[0] in askers))
    if job.owner != -1 and job.state is not State.PROCESSING and job.attempt not in askers:
        job = job._replace(owner=-1)
    if job is not world.job:
        world = world._replace(job=job)
    for w in BOTH:
        worker = world.workers[w]
        if worker.begun:
            again = {worker.granted, worker.look.seen if worker.look else 0, job.attempt if owns(job, w) else 0}
            begun = sum(1 << attempt for attempt in again if worker.begun >> attempt & 1)
            if begun != worker.begun:
                world = put(world, w, worker._replace(begun=begun))
    return world
