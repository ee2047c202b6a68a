"""One job, as an operator asks. None: there is no such job."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg

from tenure.core.lifecycle import EXPIRED, State
from tenure.ports import Answer, Edit, Landed, NotLanded
from tenure.stores.postgres.server import Connection, Sql
from tenure.stores.rules import (
    NOT_DELETED,
    gathers,
    held_by_child,
    key_held,
    not_replayed_for,
    not_skipped,
    parent_missing,
    still_gathers,
    why_not_replayed,
)

#: With new arguments, the progress and the checkpoint of the old ones are void.
_WITH_OTHERS = ", payload = %s, meta = %s, checkpoint = NULL, progress = NULL, stage = NULL, message = NULL"
#: A replayed job is a run of its schedule again, if that had its name then (see `Schedule.named_at`). The new rev
#: refuses a writer that still saw the run as ended.
_RUN_AGAIN = """
    WITH again AS (
        UPDATE @.tick_rows AS t SET open = true,
            body = (t.body::jsonb || '{"status": "open", "why": "", "started_at": null, "ended_at": null}')::text
        FROM @.schedule_rows AS s
        WHERE t.job_id = %s AND s.name = t.schedule AND t.decided_at >= coalesce(greatest(
            (s.body::jsonb ->> 'since')::timestamptz, (s.body::jsonb -> 'formerly' -> -1 ->> 1)::timestamptz
        ), t.decided_at) RETURNING t.schedule)
    UPDATE @.schedule_rows SET rev = rev + 1, body = (body::jsonb || jsonb_build_object('rev', rev + 1))::text
    WHERE name IN (SELECT schedule FROM again)"""

#: A live job that waits for this one, or goes on with its result.
LIVE_CHILD = """
    SELECT e.child::text FROM @.edges AS e
    WHERE e.parent = %s AND e.live
      AND (SELECT true FROM @.jobs AS c WHERE c.id = e.child AND c.ended_at IS NULL LIMIT 1)
    LIMIT 1"""

#: A parent whose result is needed and will not come. One that expired holds its child, as a dead one does.
LOST = """
    SELECT e.parent::text, p.id IS NULL FROM @.edges AS e LEFT JOIN @.jobs AS p ON p.id = e.parent
    WHERE e.child = %s AND e.until = 'completed' AND NOT e.mine AND e.state <> 'skipped'
      AND (p.id IS NULL OR (p.state || '') = 'cancelled' AND p.error IS DISTINCT FROM %s) ORDER BY e.place LIMIT 1"""

#: Has the parent of an edge ended as the edge asks?
_MET = "coalesce((p.state || '') = 'completed' OR (e.until = 'ended' AND p.ended_at IS NOT NULL), false)"

#: A live job that this one gathers.
_GATHERED = """
    SELECT p.id::text FROM @.edges AS e JOIN @.jobs AS p ON p.id = e.parent
    WHERE e.child = %s AND e.mine AND p.ended_at IS NULL LIMIT 1"""

#: Edges to gathered jobs that have not ended as asked: the handler gathers anew.
DROP_UNMET = f"""
    WITH dropped AS (
        DELETE FROM @.edges WHERE child = %(id)s AND mine AND (parent, child) IN (
            SELECT e.parent, e.child FROM @.edges AS e LEFT JOIN @.jobs AS p ON p.id = e.parent
            WHERE e.child = %(id)s AND e.mine AND e.state <> 'skipped' AND NOT {_MET})
        RETURNING parent)
    INSERT INTO @.asks (item) SELECT parent FROM dropped"""

#: All other edges that are not met are new again: the next look marks their parents, and reads them under their locks.
#: So is one whose parent is locked elsewhere: it may be replayed, or deleted, at this moment.
REOPEN = f"""
    WITH found AS MATERIALIZED (
        SELECT e.ctid AS place, p.id IS NULL AS gone, {_MET} AND e.parent = ANY (%(locked)s::uuid[]) AS met
        FROM @.edges AS e LEFT JOIN @.jobs AS p ON p.id = e.parent WHERE e.child = %(id)s FOR UPDATE OF e)
    UPDATE @.edges AS w SET live = true, state = CASE
        WHEN w.state = 'skipped' OR (f.gone AND w.until = 'ended') THEN w.state WHEN f.met THEN 'closed' ELSE 'new' END
    FROM found AS f WHERE w.ctid = f.place"""

#: The parents are needed again, and can't change after this; the next look marks those that are locked elsewhere.
PIN = """
    UPDATE @.jobs SET linked = true WHERE id IN (
        SELECT p.id FROM @.edges AS e JOIN @.jobs AS p ON p.id = e.parent WHERE e.child = %s
        ORDER BY p.id FOR NO KEY UPDATE OF p SKIP LOCKED)
    RETURNING id::text"""

_OPEN = "SELECT EXISTS (SELECT FROM @.edges WHERE child = %s AND state IN ('new', 'armed'))"
_ASK = "INSERT INTO @.asks (item) VALUES (%s)"

SKIP = """
    WITH skipped AS (
        UPDATE @.edges SET state = 'skipped' WHERE parent = %s AND (state || '') IN ('new', 'armed') RETURNING child)
    INSERT INTO @.asks (item) SELECT child FROM skipped"""


LOCK_FLOWS = "SELECT id::text FROM @.flows WHERE id = ANY (%s::uuid[]) ORDER BY id FOR UPDATE"
LOCK_FREE_FLOWS = f"{LOCK_FLOWS} SKIP LOCKED"  #: without those in which somebody stores jobs
FORGET_FLOWS = """
    DELETE FROM @.flows AS f WHERE id = ANY (%s::uuid[]) AND NOT EXISTS (SELECT FROM @.jobs WHERE flow = f.id)"""


def cancel(connection: Connection, sql: Sql, job_id: str, reason: str) -> State | None:
    # Locked first: a job that moves from one of these states to another in between would escape both writes below.
    connection.execute(sql("SELECT FROM @.jobs WHERE id = %s FOR NO KEY UPDATE"), (job_id,))
    connection.execute(
        sql(
            "UPDATE @.jobs SET cancel_reason = %(reason)s, state = 'cancelled', ended_at = @now, error = %(reason)s, "
            "wait_for = NULL, wait_until = NULL, parked = NULL "
            "WHERE id = %(id)s AND (state || '') IN ('waiting', 'scheduled', 'queued')"
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


def replay(connection: Connection, sql: Sql, job_id: str, edit: Edit | None, delay: float) -> Answer | None:
    found = connection.execute(
        sql("SELECT state, task, unique_key, queue FROM @.jobs WHERE id = %s FOR NO KEY UPDATE"), (job_id,)
    ).fetchone()
    if found is None:
        return None
    state, task, unique = State(found[0]), found[1], found[2]
    refused = why_not_replayed(state, found[3])
    if refused is not None:
        return refused
    holder = connection.execute(
        sql(
            "SELECT id::text FROM @.jobs WHERE task = %s AND unique_key = %s "
            "AND state IN ('waiting', 'scheduled', 'queued', 'processing')"
        ),
        (task, unique),
    ).fetchone()
    if holder is not None:
        return key_held(holder[0], unique)
    refused = _why_not_again(connection, sql, job_id, state)
    if refused is not None:
        return refused
    try:
        with connection.transaction():
            to = _again(connection, sql, job_id, edit, delay)
    except psycopg.errors.UniqueViolation:  # another job took it between the read and the write
        return NotLanded(f"its unique key {unique!r} has just been taken by another job")
    connection.execute(sql(_RUN_AGAIN), (job_id,))
    return Landed(to)


def _why_not_again(connection: Connection, sql: Sql, job_id: str, state: State) -> NotLanded | None:
    """Why other jobs prevent it. Read in statements after the lock on the job: a look that marks it waits for us."""
    child = connection.execute(sql(LIVE_CHILD), (job_id,)).fetchone()
    if state is State.COMPLETED and child is not None:
        return not_replayed_for(child[0])
    gathered = connection.execute(sql(_GATHERED), (job_id,)).fetchone()
    if gathered is not None:
        return still_gathers(gathered[0])
    lost = connection.execute(sql(LOST), (job_id, EXPIRED)).fetchone()
    return None if lost is None else parent_missing(lost[0], gone=lost[1])


def _again(connection: Connection, sql: Sql, job_id: str, edit: Edit | None, delay: float) -> State:
    edges = connection.execute(sql("SELECT FROM @.edges WHERE child = %s LIMIT 1"), (job_id,)).rowcount > 0
    to = State.SCHEDULED if delay > 0 else State.QUEUED
    if edges:
        connection.execute(sql(DROP_UNMET), {"id": job_id})
        locked = [row[0] for row in connection.execute(sql(PIN), (job_id,)).fetchall()]
        connection.execute(sql(REOPEN), {"id": job_id, "locked": locked})
        if connection.execute(sql(_OPEN), (job_id,)).fetchall() == [(True,)]:
            to = State.WAITING
            connection.execute(sql(_ASK), (job_id,))
    other, values = (_WITH_OTHERS, tuple(edit)) if edit else ("", ())
    connection.execute(
        sql(
            "UPDATE @.jobs SET state = %s, run_at = @now + %s * interval '1 second', due_at = NULL, "
            "linked = CASE WHEN %s THEN true ELSE linked END, "
            "solo = isolated, together = 1, failures = 0, crashes = 0, crashes_total = 0, error = NULL, result = NULL, "
            "started_at = NULL, last_activity_at = NULL, ended_at = NULL, cancel_reason = NULL, "
            f"expires_at = NULL, last_worker_id = NULL, last_outcome = NULL{other} WHERE id = %s"
        ),
        (to, delay, edges, *values, job_id),
    )
    return _state(connection, sql, job_id) or to  # with limits it is parked, not queued


def delete(connection: Connection, sql: Sql, job_id: str, flows: set[str]) -> Answer | None:
    """`flows`: to it the flow of the job is added, which `forget_flows` has to look at in the same transaction."""
    # Locked first: which jobs wait for it is read after a look that marks it as needed has committed.
    connection.execute(sql("SELECT FROM @.jobs WHERE id = %s FOR UPDATE"), (job_id,))
    state = _state(connection, sql, job_id)
    if state is None:
        return None
    if state is State.PROCESSING:
        return NOT_DELETED
    child = connection.execute(sql(LIVE_CHILD), (job_id,)).fetchone()
    if child is not None:
        return held_by_child(child[0])
    gathered = connection.execute(sql(_GATHERED), (job_id,)).fetchone()
    if gathered is not None:
        return gathers(gathered[0])
    gone = connection.execute(sql("DELETE FROM @.jobs WHERE id = %s RETURNING flow::text"), (job_id,)).fetchall()
    flows.update(flow for (flow,) in gone if flow is not None)
    return Landed(state)


def forget_flows(connection: Connection, sql: Sql, flows: Iterable[str], *, lock: str = LOCK_FLOWS) -> None:
    """Delete those of these flows of which no job is left.

    They are locked first, in an order that all share: whether one has jobs is read after every transaction that deletes
    its other jobs, or stores more of them, has ended.
    """
    wanted = sorted(set(flows))
    if wanted:
        locked = [row[0] for row in connection.execute(sql(lock), (wanted,)).fetchall()]
        connection.execute(sql(FORGET_FLOWS), (locked,))


def skip(connection: Connection, sql: Sql, job_id: str) -> Answer | None:
    connection.execute(sql("SELECT FROM @.jobs WHERE id = %s FOR NO KEY UPDATE"), (job_id,))
    state = _state(connection, sql, job_id)
    if state is None:
        return None
    if state not in (State.DEAD, State.CANCELLED):
        return not_skipped(state)
    connection.execute(sql(SKIP), (job_id,))
    return Landed(state)


def _state(connection: Connection, sql: Sql, job_id: str) -> State | None:
    found = connection.execute(sql("SELECT state FROM @.jobs WHERE id = %s"), (job_id,)).fetchone()
    return None if found is None else State(found[0])
