"""The rules that all stores share: valid values, what an operator may do, why a job is rescued or a write refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from random import random
from typing import Any, Literal, NamedTuple

import msgspec

from tenure.core.conditions import Part, folded
from tenure.core.lifecycle import (
    ENDED,
    EXPIRED,
    GUARD,
    Charges,
    Completed,
    Crashed,
    Edge,
    Failed,
    Lease,
    Outcome,
    Snoozed,
    State,
    Suspended,
    decide,
    error_after,
    outcome_name,
    reason_of,
)
from tenure.core.limits import Key
from tenure.core.text import clean
from tenure.errors import BadData, FlowMade, InvalidOption, StoreError
from tenure.ports import (
    MOST_EDGES,
    Answer,
    Claimed,
    Draft,
    Edit,
    Filter,
    Ids,
    JobView,
    Landed,
    LimitRow,
    NotLanded,
    Progress,
    Promoted,
    Rescued,
    Retried,
)
from tenure.ports.schedules import Schedule, Tick

CLEARED = "Cleared: "  #: how the message of a rescued job begins
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_encode = msgspec.json.Encoder().encode
is_id = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch  #: nothing else is the id of a job
PAST_IDS = "~"  #: sorts after every character of an id
COMPLETED = Landed(State.COMPLETED)
ATTEMPTS_KEPT = 100  #: the latest attempts of a job, with their logs; also the first, which says when it began
MOST_NOTED = 20  #: jobs in the note of a worker that has ended
LONGEST_NOTE = 500  #: characters about how it ended
MANY_QUEUES = 20  #: a claim from this many queues first reads which of them have jobs
WORKER_KEPT = 86_400.0  #: seconds a worker's row outlives its death
Cause = Literal["crash", "host", "stale", "queue"]
_RESCUES: dict[str, tuple[Cause, Crashed]] = {
    "crash": ("crash", Crashed("the process of {worker} is gone", process_died=True)),
    "host": ("host", Crashed("the lease of {worker} ended: its host or its supervisor is lost")),
    "missing": ("host", Crashed("there is no row of worker {worker}")),
    "hung": ("stale", Crashed("silent for longer than its stale_after, on {worker}", at_fault=True)),
}


class Beside(NamedTuple):
    """What a rescue knows of the process of an attempt. The names are those of `Charges`."""

    slots: int
    neighbours: bool


#: The worker itself reports the outcome, so its process is alive.
AMONG_OTHERS = Beside(1, True)


def json_of(value: object) -> str:
    return _encode(value).decode()


# ── What can be stored ──────────────────────────────────────────────────────────────────────────────────────────


def check_text(*texts: str | None) -> None:
    """PostgreSQL can't store a NUL, SQLite's functions cut the text there; neither can store a lone surrogate."""
    if _storable("".join(filter(None, texts))):  # one look at all of them
        return
    for text in texts:
        if text is not None and not _storable(text):
            raise BadData(f"text with a NUL or a lone surrogate can't be stored: {text[:60]!r}")


def _storable(text: str) -> bool:
    return "\x00" not in text and (text.isascii() or _encodable(text))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_drafts(drafts: Iterable[Draft], *, ranges: bool = False) -> None:
    """`ranges`: check the numbers too, for a store whose rows have no constraints."""
    for draft in drafts:
        check_text(draft.id, draft.task, draft.payload, draft.queue, draft.unique, draft.meta)
        if draft.limits:
            check_text(*(text for key in draft.limits for text in key))
        if ranges:
            _check_range("priority", draft.priority, -100, 100)


def check_reports(reports: Iterable[Progress], *, ranges: bool = False) -> None:
    for report in reports:
        check_text(report.stage, report.message, report.checkpoint, report.log)
        if ranges:
            _check_range("fraction", report.fraction or 0, 0, 1)


def _check_range(name: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadData(f"{name}: expected {low} to {high}, got {value!r}")


def check_outcomes(outcomes: Collection[Outcome]) -> None:
    results = [each.result for each in outcomes if type(each) is Completed]
    check_text(*results)
    for each in outcomes if len(results) < len(outcomes) else ():
        if isinstance(each, Completed):
            continue
        _check_outcome(each)


def _check_outcome(outcome: Outcome) -> None:
    if isinstance(outcome, Crashed):
        check_text(outcome.reason, *outcome.evidence, *outcome.evidence.values())
    else:
        check_text(reason_of(outcome))
        if isinstance(outcome, Suspended):
            check_text(outcome.signal)
        elif isinstance(outcome, Snoozed) and outcome.pause is not None:
            check_text(*outcome.pause)


def check_replay(ids: Collection[str], edits: Mapping[str, Edit], delays: Mapping[str, float]) -> None:
    for name, given in (("edits", edits), ("delays", delays)):
        if strange := sorted(given.keys() - set(ids)):
            raise ValueError(f"{name}: expected only ids of jobs that this call replays, got {strange[0]!r}")
    for edit in edits.values():
        check_text(*edit)


def body_of(value: Schedule | Tick) -> str:
    """The JSON of a schedule or a tick, the same in every store. Raises BadData."""
    try:
        body = json_of(value)
    except UnicodeEncodeError as error:
        raise BadData(f"text with a lone surrogate can't be stored: {error.object[:60]!r}") from None
    if "\\u0000" in body and (found := _NUL.search(body)):  # an encoded NUL, and not text that merely quotes one
        raise BadData(f"text with a NUL can't be stored: {body[max(0, found.start() - 40) : found.end()]!r}")
    return body


# ── Jobs that wait ──────────────────────────────────────────────────────────────────────────────────────────────

MOST_ASKS = 1_000  #: if there are more, `lost_waits` finds nothing: what it looks at may be about to be answered
MOST_LOOKED_AT = 200  #: open edges of a job that `lost_waits` looks at
SHARED = "shared:"  #: how the key of a shared signal begins; that of a signal to one job begins with `own:`


def check_links(drafts: Iterable[Draft]) -> set[str]:
    """The parents that must be stored already. Raises BadData."""
    earlier: set[str] = set()
    needed: set[str] = set()
    for draft in drafts:
        links = draft.links
        if links is not None:
            if len(links.after) > MOST_EDGES:
                raise BadData(
                    f"job {draft.id}: expected at most {MOST_EDGES:,} jobs to wait for, got {len(links.after):,}"
                )
            check_text(links.flow, links.name)
            for edge in links.after:
                if edge.parent == draft.id:
                    raise waits_for_itself(draft.id)
                if edge.parent not in earlier:
                    needed.add(edge.parent)
            if links.gatherer is not None:
                needed.add(links.gatherer)
        earlier.add(draft.id)
    return needed


def stricter(edges: Iterable[Edge]) -> list[Edge]:
    """One edge per parent, in the order given: of two, the stricter one."""
    found: dict[str, Edge] = {}
    for edge in edges:
        if edge.parent not in found or edge.until == "completed":
            found[edge.parent] = edge
    return list(found.values())


def flows_made_once(drafts: Iterable[Draft]) -> dict[str, str]:
    """The names of the flows that only one call may store, by id."""
    links = (draft.links for draft in drafts if draft.links is not None)
    return {each.flow: each.name for each in links if each.once and each.flow is not None}


def flow_made(flow: str) -> FlowMade:
    return FlowMade(
        f"the flow {flow} was made before, by another call or an earlier try of this one: nothing was stored"
    )


def waits_for_itself(job_id: str) -> BadData:
    return BadData(f"job {job_id} would wait for itself: let it wait for other jobs")


def no_parent(job_id: str) -> BadData:
    return BadData(
        f"no such job: {job_id}, for which a new one would wait; it was deleted, or belongs to another store"
    )


Fate = Literal["close", "hold", "cancel"]


def closes(until: Literal["completed", "ended"], state: State | None, error: str | None) -> Fate:
    """What the state of a parent, None if it is gone, means to an edge: it closes, holds, or its child is cancelled."""
    if state is State.COMPLETED or (until == "ended" and (state is None or state in ENDED)):
        return "close"
    if state is None:
        return "cancel"
    return "cancel" if state is State.CANCELLED and error != EXPIRED else "hold"


def parent_lost(parent: str, *, gone: bool) -> str:
    return f"it needs the result of job {parent}, which {'was deleted' if gone else 'was cancelled'}"


def gatherer_ended(job_id: str, state: State) -> str:
    return f"job {job_id}, which gathers it, ended as {state}"


def held_by_child(child: str) -> NotLanded:
    return NotLanded(f"job {child} waits for it: cancel that one first")


def gathers(gathered: str) -> NotLanded:
    return NotLanded(f"it gathers job {gathered}, which has not ended: cancel it first, then delete it when that ends")


def still_gathers(gathered: str) -> NotLanded:
    return NotLanded(f"job {gathered}, which it gathers, has not ended: replay this one when that has")


def not_replayed_for(child: str) -> NotLanded:
    return NotLanded(f"it completed, and job {child} goes on with its result: cancel that one first")


def parent_missing(parent: str, *, gone: bool) -> NotLanded:
    return NotLanded(
        f"it needs the result of job {parent}, which {'is gone' if gone else 'was cancelled: replay that one first'}"
    )


def not_skipped(state: State) -> NotLanded:
    return NotLanded(f"it is {state}: only a dead or cancelled job can be skipped")


def too_late(state: State) -> NotLanded:
    return NotLanded(f"it is {state}: a signal reaches only a job that has not ended")


def sent_before(key: str, sent_at: datetime) -> NotLanded:
    name = key.partition(":")[2]
    return NotLanded(f"signal {name!r} was sent at {sent_at:%Y-%m-%d %H:%M:%S} UTC: it arrives once")


# ── Limits ──────────────────────────────────────────────────────────────────────────────────────────────────────


def limits_text(limits: Iterable[Key]) -> str | None:
    """The column of a job's keys; None: it has none."""
    return json_of([*limits]) if limits else None


def check_limit_rows(rows: Iterable[LimitRow]) -> None:
    for row in rows:
        check_text(row.name, row.limit, row.source, row.release, row.why)


# ── What an operator asks ───────────────────────────────────────────────────────────────────────────────────────


GUARDED = NotLanded("it ran under a guard: run its command again there, with tenure guard … --force")
NOT_DELETED = NotLanded("it is processing: cancel it first, then delete it when its code has stopped")


def why_not_replayed(state: State, queue: str) -> NotLanded | None:
    """Only an ended job is replayed, and never one that ran under a guard."""
    if state not in ENDED:
        return not_ended(state)
    return GUARDED if queue == GUARD else None


def not_ended(state: State) -> NotLanded:
    return NotLanded(f"it is {state}: only an ended job can be replayed")


def key_held(holder: str, unique: str | None) -> NotLanded:
    return NotLanded(f"its unique key {unique!r} is held by job {holder}")


def ages(keep: float, keep_dead: float | None) -> list[tuple[State, float]]:
    """The states that are pruned, and how long each is kept."""
    dead = [] if keep_dead is None else [(State.DEAD, keep_dead)]
    return [(State.COMPLETED, keep), (State.CANCELLED, keep), *dead]


def shortest(keep: float, keep_dead: float | None) -> float:
    """How long the first jobs are kept: an older flow may have none left."""
    return min(age for _, age in ages(keep, keep_dead))


def bad_cursor(cursor: str) -> InvalidOption:
    return InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one")


def with_end(looked: list[str], end: str, within: int) -> Ids:
    """The answer of `ids`, from the next `within` of them, or all that are left."""
    cursor = looked[-1] if len(looked) == within else None
    return Ids(tuple(each for each in looked if each.endswith(end)), cursor)


def matches(view: JobView, where: Filter) -> bool:
    wanted = {"task": where.task, "queue": where.queue, "worker_id": where.worker_id}
    wanted |= {"unique": where.unique, "flow": where.flow}
    return (
        (not where.states or view.state in where.states)
        and all(value is None or getattr(view, name) == value for name, value in wanted.items())
        and (where.guards or view.queue != GUARD)
        and (where.ended_since is None or (view.ended_at is not None and view.ended_at >= where.ended_since))
        and (where.ended_until is None or (view.ended_at is not None and view.ended_at < where.ended_until))
        and (where.enqueued_since is None or view.enqueued_at >= where.enqueued_since)
        and (where.enqueued_until is None or view.enqueued_at < where.enqueued_until)
        and all(_contains(view, part) for part in where.parts)
    )


def _contains(view: JobView, part: Part) -> bool:
    match part.field:
        case "text":
            return part.text in folded(view.error or "") or part.text in view.id
        case "meta":
            return part.text in folded(json_of(view.meta))
        case field:
            return part.text in folded(getattr(view, field) or "")


def bytes_of(claimed: Claimed) -> int:
    """What a claimed job adds to a batch."""
    return sum(len(text.encode()) for text in (claimed.payload, claimed.checkpoint or "", claimed.meta))


# ── How an attempt ends ─────────────────────────────────────────────────────────────────────────────────────────


def ending(
    lease: Lease, outcome: Outcome, charges: Charges, cancel_reason: str | None, message: str | None = None
) -> dict[str, Any]:
    """The values that a store writes for this outcome; `message` is for people."""
    decision = decide(charges, outcome, random())
    return {
        **lease_facts(lease),
        "state": decision.state,
        "failures": decision.failures,
        "crashes": decision.crashes,
        "total": decision.crashes_total,
        "solo": decision.solo,
        "together": decision.together,
        "delay": decision.delay,
        "ended": decision.state in ENDED,
        "outcome": outcome_name(outcome),
        "reason": reason_of(outcome),
        "error": error_after(outcome, decision.state, cancel_reason),
        "message": message,
    }


def landed(outcome: Outcome, facts: Mapping[str, Any], max_failures: int) -> Landed:
    """The answer to an outcome that was written just now, with these facts of `ending`."""
    if not isinstance(outcome, Failed) or facts["state"] is not State.SCHEDULED:
        return Landed(facts["state"])
    return Landed(State.SCHEDULED, Retried(facts["delay"], max_failures))


def lease_facts(lease: Lease) -> dict[str, Any]:
    return {"id": lease.job_id, "attempt": lease.attempt, "worker": lease.worker_id}


def size_of(ends: Iterable[tuple[object, Outcome]]) -> int:
    """About how many bytes are sent to a store for these outcomes."""
    return sum(_size_of(outcome) for _, outcome in ends)


def _size_of(outcome: Outcome) -> int:
    match outcome:
        case Completed(result):
            return 200 + len(result)
        case Crashed(reason, evidence=evidence):
            return 400 + len(reason) + sum(map(len, evidence.values()))
        case Suspended(reason, after):
            return 400 + len(reason) + 100 * len(after)
        case _:
            return 400 + len(reason_of(outcome))


def evidence_of(outcome: Outcome) -> dict[str, str]:
    return dict(outcome.evidence) if isinstance(outcome, Crashed) else {}


def standing(lease: Lease, outcome: Outcome, job: tuple[Any, ...] | None, past: tuple[str, str] | None) -> Answer:
    """The answer to a write under a lease that changed nothing: it landed before, or what the store holds instead.

    `job`: its state, attempt, worker_id, last_worker_id, last_outcome and result; `past`: worker and outcome in the
    row of this attempt, if there is one.
    """
    if job is None:
        return NotLanded("no such job")
    state, attempt, worker_id, last_worker_id, last_outcome, result = job
    ended = (attempt, last_worker_id, last_outcome) == (lease.attempt, lease.worker_id, "completed")
    if state == "completed" and ended:
        if isinstance(outcome, Completed) and outcome.result == result:
            return COMPLETED
        other = " with another result" if isinstance(outcome, Completed) else ""
        return NotLanded(f"attempt {attempt} of worker {lease.worker_id} ended as completed{other}")
    if past is not None and past[0] == lease.worker_id:
        if past[1] == outcome_name(outcome):
            return Landed(State(state))
        return NotLanded(f"attempt {lease.attempt} of worker {lease.worker_id} ended as {past[1]}")
    if worker_id is not None:
        return NotLanded(f"it is processing: attempt {attempt} is owned by {worker_id}")
    return NotLanded(f"it is {state}, after attempt {attempt}")


# ── Workers, and the jobs of the dead ───────────────────────────────────────────────────────────────────────────


def used_before(worker_id: str) -> StoreError:
    return StoreError(f"worker id {worker_id} was used before: every process start takes a new one")


def lost(death: str, worker_id: str) -> tuple[Crashed, Cause]:
    """Why a job is rescued, by the fate of its owner: crash, host, missing or hung."""
    cause, outcome = _RESCUES[death]
    return replace(outcome, reason=outcome.reason.format(worker=worker_id)), cause


def settled(job_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> tuple[Outcome, Cause]:
    """How `settle` ends this job, and the cause: with a verdict of its own it hung, else its process died under it."""
    return (verdicts[job_id], "stale") if job_id in verdicts else (rest, "crash")


def ended_note(how: str, ran: Collection[tuple[str, str]]) -> str:
    """The note of a worker that has ended: how it ended, then the jobs it was running, each by its id and task.

    >>> ended_note("signal 9 (SIGKILL)", [("0190", "charge"), ("0191", "mail")])
    'signal 9 (SIGKILL)\\n0190 charge\\n0191 mail'
    """
    more = len(ran) - MOST_NOTED
    named = [f"{job_id} {task}" for job_id, task in list(ran)[:MOST_NOTED]]
    return "\n".join([clean(" ".join(how.split()), LONGEST_NOTE), *named, *([f"+{more}"] if more > 0 else [])])


def cleared(lease: Lease, outcome: Outcome) -> str | None:
    """The message of a rescued job: in its row, and in the announcement that it is queued again."""
    if isinstance(outcome, Completed):
        return None
    reason = reason_of(outcome) or "released"
    return f"{CLEARED}{reason}" if lease.worker_id in reason else f"{CLEARED}{reason}, on {lease.worker_id}"


def rescued(lease: Lease, task: str, queue: str, cause: Cause, state: State, outcome: Outcome) -> Rescued:
    return Rescued(
        id=lease.job_id,
        task=task,
        queue=queue,
        attempt=lease.attempt,
        worker_id=lease.worker_id,
        cause=cause,
        state=state,
        message=cleared(lease, outcome) or "",
    )


def promoted(rows: Iterable[tuple[str, str, str | None]], next_due: float | None, limited: int = 0) -> Promoted:
    """What `promote` answers. Each row: queue, id, and the message if the last attempt ended in a crash."""
    jobs: dict[str, list[str]] = {}
    messages: dict[str, str] = {}
    for queue, job_id, message in rows:
        jobs.setdefault(queue, []).append(job_id)
        if message and message.startswith(CLEARED):
            messages[job_id] = message
    return Promoted(jobs, next_due, messages, limited)
