"""What an operator may do to one job, each a step inside a transaction; None: there is no such job."""

from __future__ import annotations

from collections.abc import Callable
from typing import LiteralString

import psycopg

from tenure.core.lifecycle import ENDED, GUARD, State
from tenure.ports import Answer, Edit, Landed, NotLanded
from tenure.stores.postgres.server import Connection

Sql = Callable[[str], LiteralString]

#: With other arguments, what was said and saved about the old ones is void.
_WITH_OTHERS = ", payload = %s, meta = %s, checkpoint = NULL, progress = NULL, stage = NULL, message = NULL"
#: A job that was a run of a schedule is one again; and whoever saw it ended writes nothing.
_RUN_AGAIN = """
    WITH again AS (
        UPDATE @.tick_rows SET open = true,
            body = (body::jsonb || '{"status": "open", "why": "", "started_at": null, "ended_at": null}')::text
        WHERE job_id = %s RETURNING schedule)
    UPDATE @.schedule_rows SET rev = rev + 1, body = (body::jsonb || jsonb_build_object('rev', rev + 1))::text
    WHERE name IN (SELECT schedule FROM again)"""


def cancel(connection: Connection, sql: Sql, job_id: str, reason: str) -> State | None:
    # Locked first: while it changes from one of these states to another, neither of the writes below would meet it.
    connection.execute(sql("SELECT FROM @.jobs WHERE id = %s FOR NO KEY UPDATE"), (job_id,))
    connection.execute(
        sql(
            "UPDATE @.jobs SET cancel_reason = %(reason)s, state = 'cancelled', ended_at = @now, error = %(reason)s "
            "WHERE id = %(id)s AND (state || '') IN ('scheduled', 'queued')"
        ),
        {"id": job_id, "reason": reason},
    )
    connection.execute(
        sql(
            "UPDATE @.jobs SET cancel_reason = %(reason)s "
            "WHERE id = %(id)s AND (state || '') = 'processing' AND cancel_reason IS NULL"
        ),
        {"id": job_id, "reason": reason},
    )
    return _state(connection, sql, job_id)


def promote(connection: Connection, sql: Sql, job_id: str) -> State | None:
    connection.execute(
        sql(
            "UPDATE @.jobs SET state = 'queued', run_at = least(run_at, @now) "
            "WHERE id = %s AND (state || '') = 'scheduled'"
        ),
        (job_id,),
    )
    return _state(connection, sql, job_id)


def replay(connection: Connection, sql: Sql, job_id: str, edit: Edit | None) -> Answer | None:
    found = connection.execute(
        sql("SELECT state, task, unique_key, queue FROM @.jobs WHERE id = %s FOR NO KEY UPDATE"), (job_id,)
    ).fetchone()
    if found is None:
        return None
    state, task, unique = State(found[0]), found[1], found[2]
    if state not in ENDED:
        return NotLanded(f"it is {state}: only an ended job can be replayed")
    if found[3] == GUARD:
        return NotLanded("it ran under a guard: run its command again, with tenure guard … --force")
    holder = connection.execute(
        sql(
            "SELECT id::text FROM @.jobs WHERE task = %s AND unique_key = %s "
            "AND state IN ('scheduled', 'queued', 'processing')"
        ),
        (task, unique),
    ).fetchone()
    if holder is not None:
        return NotLanded(f"its unique key {unique!r} is held by job {holder[0]}")
    other, values = (_WITH_OTHERS, tuple(edit)) if edit else ("", ())
    again = sql(
        "UPDATE @.jobs SET state = 'queued', run_at = @now, solo = isolated, failures = 0, crashes = 0, "
        "crashes_total = 0, error = NULL, result = NULL, started_at = NULL, last_activity_at = NULL, "
        "ended_at = NULL, cancel_reason = NULL, expires_at = NULL, last_worker_id = NULL, last_outcome = NULL"
        f"{other} WHERE id = %s"
    )
    try:
        with connection.transaction():
            connection.execute(again, (*values, job_id))
    except psycopg.errors.UniqueViolation:  # somebody took it between the look and the write
        return NotLanded(f"its unique key {unique!r} has just been taken by another job")
    connection.execute(sql(_RUN_AGAIN), (job_id,))
    return Landed(State.QUEUED)


def delete(connection: Connection, sql: Sql, job_id: str) -> Answer | None:
    gone = connection.execute(
        sql("DELETE FROM @.jobs WHERE id = %s AND (state || '') <> 'processing' RETURNING state"), (job_id,)
    ).fetchone()
    if gone is not None:
        return Landed(State(gone[0]))
    if _state(connection, sql, job_id) is None:
        return None
    return NotLanded("it is processing: cancel it first, then delete it when its code has stopped")


def _state(connection: Connection, sql: Sql, job_id: str) -> State | None:
    found = connection.execute(sql("SELECT state FROM @.jobs WHERE id = %s"), (job_id,)).fetchone()
    return None if found is None else State(found[0])
