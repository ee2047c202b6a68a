"""What an operator may do to one job, each a step inside a transaction; None: there is no such job."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

import apsw

from tenure.core.lifecycle import ENDED, GUARD, State
from tenure.ports import Answer, Edit, Landed, NotLanded
from tenure.stores.outcomes import GUARDED
from tenure.stores.sqlite.file import first
from tenure.stores.sqlite.statements import LIVE_STATES

#: With other arguments, what was said and saved about the old ones is void.
_WITH_OTHERS = ", payload = ?, meta = ?, checkpoint = NULL, progress = NULL, stage = NULL, message = NULL"


def cancel(connection: apsw.Connection, job_id: str, reason: str, now: int) -> State | None:
    connection.execute(
        "UPDATE jobs SET state = 'cancelled', ended_at = :now, cancel_reason = :reason, error = :reason "
        "WHERE id = :id AND state IN ('scheduled', 'queued')",
        {"now": now, "reason": reason, "id": job_id},
    )
    connection.execute(
        "UPDATE jobs SET cancel_reason = ? WHERE id = ? AND state = 'processing' AND cancel_reason IS NULL",
        (reason, job_id),
    )
    return _state(connection, job_id)


def promote(connection: apsw.Connection, job_id: str, now: int) -> State | None:
    connection.execute(
        "UPDATE jobs SET state = 'queued', run_at = min(run_at, ?) WHERE id = ? AND state = 'scheduled'",
        (now, job_id),
    )
    return _state(connection, job_id)


def replay(connection: apsw.Connection, job_id: str, now: int, edit: Edit | None) -> Answer | None:
    found = first(connection, "SELECT state, task, unique_key, queue FROM jobs WHERE id = ?", (job_id,))
    if found is None:
        return None
    state, task, unique, queue = State(found[0]), *found[1:]
    if state not in ENDED:
        return NotLanded(f"it is {state}: only an ended job can be replayed")
    if queue == GUARD:
        return NotLanded(GUARDED)
    holder = first(
        connection,
        f"SELECT id FROM jobs WHERE task = ? AND unique_key = ? AND state IN {LIVE_STATES}",
        (task, unique),
    )
    if holder is not None:
        return NotLanded(f"its unique key {unique!r} is held by job {holder[0]}")
    others, values = (_WITH_OTHERS, tuple(edit)) if edit else ("", ())
    connection.execute(
        "UPDATE jobs SET state = 'queued', run_at = ?, solo = isolated, failures = 0, crashes = 0, "
        "crashes_total = 0, error = NULL, result = NULL, started_at = NULL, last_activity_at = NULL, "
        "active_boot = NULL, ended_at = NULL, cancel_reason = NULL, "
        f"expires_at = NULL, last_worker_id = NULL, last_outcome = NULL{others} "
        "WHERE id = ? AND state IN ('completed', 'dead', 'cancelled')",
        (now, *values, job_id),
    )
    return Landed(State.QUEUED)


def delete(connection: apsw.Connection, job_id: str) -> Answer | None:
    state = _state(connection, job_id)
    if state is None:
        return None
    connection.execute("DELETE FROM jobs WHERE id = ? AND state <> 'processing'", (job_id,))
    if connection.changes() == 1:
        return Landed(state)
    return NotLanded("it is processing: cancel it first, then delete it when its code has stopped")


def _state(connection: apsw.Connection, job_id: str) -> State | None:
    found = first(connection, "SELECT state FROM jobs WHERE id = ?", (job_id,))
    return None if found is None else State(found[0])
