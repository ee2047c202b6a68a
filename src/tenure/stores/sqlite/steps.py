"""Steps on one job that several verbs share, inside a transaction: create it, cancel it, end its attempt."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from tenure.core.lifecycle import Charges, Completed, Lease, Outcome, Snoozed, State, Suspended
from tenure.ports import Answer, Draft, Enqueued
from tenure.stores.fields import CHARGED, LIMITED, NEW, kept, listed
from tenure.stores.instants import millis_at
from tenure.stores.rules import (
    AMONG_OTHERS,
    ATTEMPTS_KEPT,
    COMPLETED,
    Beside,
    check_drafts,
    ending,
    evidence_of,
    json_of,
    landed,
    lease_facts,
    limits_text,
    standing,
)
from tenure.stores.sqlite import links, places
from tenure.stores.sqlite.file import first
from tenure.stores.sqlite.links import LIVE_STATES

UNDER_LEASE = "id = :id AND +state = 'processing' AND attempt = :attempt AND +worker_id = :worker"

OWNS = "SELECT 1 FROM jobs INDEXED BY jobs_processing WHERE state = 'processing' AND worker_id = ? LIMIT 1"
#: How many each of the first suspects of a queue may run with, in the order in which they are claimed.
SUSPECTS = """
    SELECT together FROM jobs INDEXED BY jobs_queued WHERE state = 'queued' AND queue = ? AND solo = 1
    ORDER BY priority DESC, run_at, id LIMIT ?"""

# ── Made ────────────────────────────────────────────────────────────────────────────────────────────────────────

INSERT = f"INSERT INTO jobs ({listed(NEW)}) VALUES ({', '.join('?' * len(NEW))}) ON CONFLICT DO NOTHING"
_ID, _STATE, _TASK, _UNIQUE = map(NEW.index, ("id", "state", "task", "unique_key"))
_SCHEDULED, _QUEUED = State.SCHEDULED, State.QUEUED  # Python 3.11 looks up a member slowly


def rows_of(drafts: Sequence[Draft], now: int) -> list[tuple[Any, ...]]:
    check_drafts(drafts)
    return [_row(draft, now) for draft in drafts]


def _row(draft: Draft, now: int) -> tuple[Any, ...]:
    run_at = now
    if draft.delay is not None:
        run_at = now + round(draft.delay * 1000)
    elif draft.run_at is not None:
        run_at = millis_at(draft.run_at)
    state = _SCHEDULED if run_at > now else _QUEUED
    if (draft.links is not None and draft.links.after) or (draft.limits and state is _QUEUED):
        state = State.WAITING
    expires_at = None if draft.expires is None else run_at + round(draft.expires * 1000)
    return (*kept(draft), state, run_at, expires_at, now, draft.isolated)


def created(row: tuple[Any, ...]) -> Enqueued:
    return Enqueued(row[_ID], True, row[_STATE])


def enqueue_one(connection: apsw.Connection, row: tuple[Any, ...]) -> Enqueued:
    connection.execute(INSERT, row)
    if connection.changes() == 1:
        return created(row)
    found = first(connection, "SELECT id, state FROM jobs WHERE id = ?", (row[_ID],)) or first(
        connection,
        f"SELECT id, state FROM jobs WHERE task = ? AND unique_key = ? AND state IN {LIVE_STATES}",
        (row[_TASK], row[_UNIQUE]),
    )
    assert found is not None, "an insert without effect conflicts with an id or a unique key"
    return Enqueued(found[0], False, State(found[1]))


def limit(connection: apsw.Connection, drafts: Sequence[Draft], answers: Sequence[Enqueued]) -> None:
    """Store the keys of new jobs, and park those that are due: jobs without limits cost nothing here."""
    for draft, answer in zip(drafts, answers, strict=True):
        if draft.limits and answer.created:
            connection.execute("UPDATE jobs SET limits = ? WHERE id = ?", (limits_text(draft.limits), answer.id))
            if answer.state is State.WAITING and not (draft.links and draft.links.after):
                connection.execute(places.PARK, (answer.id,))
    due = zip(drafts, answers, strict=True)
    places.ask(connection, {draft.limits[0] for draft, answer in due if draft.limits and answer.created})


# ── Cancelled ───────────────────────────────────────────────────────────────────────────────────────────────────


def cancel(connection: apsw.Connection, job_id: str, reason: str, now: int) -> State | None:
    connection.execute(
        "UPDATE jobs SET state = 'cancelled', ended_at = :now, cancel_reason = :reason, error = :reason, "
        "wait_for = NULL, wait_until = NULL, parked = NULL "
        "WHERE id = :id AND state IN ('waiting', 'scheduled', 'queued')",
        {"now": now, "reason": reason, "id": job_id},
    )
    connection.execute(
        "UPDATE jobs SET cancel_reason = ? WHERE id = ? AND state = 'processing' AND cancel_reason IS NULL",
        (reason, job_id),
    )
    return state_of(connection, job_id)


def state_of(connection: apsw.Connection, job_id: str) -> State | None:
    found = first(connection, "SELECT state FROM jobs WHERE id = ?", (job_id,))
    return None if found is None else State(found[0])


# ── Ended ───────────────────────────────────────────────────────────────────────────────────────────────────────

# The unary plus keeps the planner from using jobs_processing: it would join every finished job with every job of this
# worker (measured: 2,000 jobs/s instead of 80,000 in batches of 1,000).
COMPLETE = """
    UPDATE jobs SET state = 'completed', result = done.result, ended_at = :now, last_worker_id = worker_id,
        last_outcome = 'completed', worker_id = NULL
    FROM (SELECT value ->> 0 AS id, value ->> 1 AS attempt, value ->> 2 AS result FROM json_each(:ends)) AS done
    WHERE jobs.id = done.id AND +jobs.state = 'processing' AND jobs.attempt = done.attempt
      AND +jobs.worker_id = :worker"""

_END = f"""
    UPDATE jobs SET state = :state, failures = :failures, crashes = :crashes, crashes_total = :total, solo = :solo,
        together = :together, run_at = coalesce(:run_at, run_at), ended_at = :ended_at, error = coalesce(:error, error),
        message = coalesce(:message, message), last_worker_id = worker_id, last_outcome = :outcome,
        worker_id = NULL, started_at = NULL, last_activity_at = NULL, active_boot = NULL
    WHERE {UNDER_LEASE}"""

_CHARGES = f"SELECT {listed(CHARGED, limited=LIMITED)}, started_at FROM jobs WHERE {UNDER_LEASE}"


def all_completed(ends: Sequence[tuple[Lease, Outcome]], now: int) -> dict[str, object] | None:
    """The bindings of COMPLETE, if all of these are completed jobs of one worker. It changes as many rows as land."""
    done = [(lease.job_id, lease.attempt, end.result) for lease, end in ends if type(end) is Completed]
    workers = {lease.worker_id for lease, _ in ends}
    if len(done) < len(ends) or len(workers) != 1:
        return None
    return {"ends": json_of(done), "worker": workers.pop(), "now": now}


def complete(connection: apsw.Connection, worker_id: str, ends: Sequence[tuple[str, int, str]], now: int) -> bool:
    """Whether all of these (job, attempt, result) landed."""
    connection.execute(COMPLETE, {"ends": json_of(ends), "worker": worker_id, "now": now})
    return connection.changes() == len(ends)


def finish(connection: apsw.Connection, ends: Sequence[tuple[Lease, Outcome]], now: int) -> list[Answer]:
    done: dict[str, list[tuple[str, int, str]]] = {}
    for lease, outcome in ends:
        if type(outcome) is Completed:
            done.setdefault(lease.worker_id, []).append((lease.job_id, lease.attempt, outcome.result))
    landed = True
    for worker_id, batch in done.items():
        landed = complete(connection, worker_id, batch, now) and landed
    if landed and sum(map(len, done.values())) == len(ends):
        return [COMPLETED] * len(ends)
    return [
        COMPLETED if landed and type(outcome) is Completed else end(connection, lease, outcome, now)
        for lease, outcome in ends
    ]


def end(
    connection: apsw.Connection,
    lease: Lease,
    outcome: Outcome,
    now: int,
    *,
    message: str | None = None,
    beside: Beside = AMONG_OTHERS,
) -> Answer:
    found = first(connection, _CHARGES, lease_facts(lease))
    if found is None:
        return _standing(connection, lease, outcome)
    if isinstance(outcome, Completed):
        complete(connection, lease.worker_id, [(lease.job_id, lease.attempt, outcome.result)], now)
        return COMPLETED
    *budgets, isolated, queue, solo, together, cancel_reason, limited, started_at = found
    suspect = bool(isolated), queue, bool(solo), together
    charges = Charges._make((*budgets, *suspect, cancel_reason is not None, *beside, bool(limited)))
    facts = ending(lease, outcome, charges, cancel_reason, message)
    delay = facts["delay"]
    facts["run_at"] = None if delay is None else now + round(delay * 1000)
    facts["ended_at"] = now if facts["ended"] else None
    connection.execute(_END, facts)
    if isinstance(outcome, Suspended) and facts["state"] is State.WAITING:
        _suspend(connection, lease.job_id, outcome, now)
    elif facts["state"] is State.WAITING:
        places.park(connection, lease.job_id)
    if isinstance(outcome, Snoozed) and outcome.pause is not None:
        places.ask(connection, [outcome.pause], "pause", now / 1000 + outcome.delay)
    evidence = json_of(evidence_of(outcome))
    connection.execute(
        "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*lease, facts["outcome"], facts["reason"], evidence, started_at, now),
    )
    if lease.attempt > ATTEMPTS_KEPT:
        old = (lease.job_id, lease.attempt - ATTEMPTS_KEPT)
        connection.execute("DELETE FROM attempts WHERE job_id = ? AND attempt > 1 AND attempt <= ?", old)
        connection.execute("DELETE FROM job_logs WHERE job_id = ? AND attempt > 1 AND attempt <= ?", old)
    return landed(outcome, facts, charges.max_failures)


def _suspend(connection: apsw.Connection, job_id: str, outcome: Suspended, now: int) -> None:
    """What a suspended job waits for."""
    for edge in outcome.after:
        links.add(connection, job_id, edge)
    until = None if outcome.timeout is None else now + round(outcome.timeout * 1000)
    connection.execute(
        "UPDATE jobs SET wait_for = ?2, wait_until = ?3, "
        "linked = linked OR EXISTS (SELECT 1 FROM edges WHERE child = ?1) WHERE id = ?1",
        (job_id, outcome.signal, until),
    )
    links.ask(connection, [job_id])


def _standing(connection: apsw.Connection, lease: Lease, outcome: Outcome) -> Answer:
    found = first(
        connection,
        "SELECT state, attempt, worker_id, last_worker_id, last_outcome, result FROM jobs WHERE id = ?",
        (lease.job_id,),
    )
    past = first(connection, "SELECT worker_id, outcome FROM attempts WHERE job_id = ? AND attempt = ?", lease[:2])
    return standing(lease, outcome, found, past)
