"""The statements of the SQLite store that its hot path and its guards are made of, and how values become rows."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from typing import Any

import apsw

from tenure.core.lifecycle import Lease, State
from tenure.ports import Draft, Enqueued
from tenure.stores.outcomes import check_text
from tenure.stores.sqlite.file import first

LIVE_STATES = "('scheduled', 'queued', 'processing')"
_EXPIRED = "iif({attempt} = 1 AND expires_at < :now, json('true'), json('false'))"
CLAIMED = (
    """json_array(id, {attempt}, task, queue, payload, failures, crashes, meta, checkpoint, timeout,
    stale_after, enqueued_at, """
    + _EXPIRED
    + ")"
)
OWNED = CLAIMED.format(attempt="attempt")
CHARGES = """failures, crashes, crashes_total, max_failures, max_crashes, retry_base, retry_cap, isolated,
    cancel_reason"""
INSERT = """
    INSERT INTO jobs (id, state, task, unique_key, queue, priority, run_at, solo, isolated, max_failures, max_crashes,
        retry_base, retry_cap, timeout, stale_after, enqueued_at, expires_at, meta, payload)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""

# The worker's row must be there, not dead, not expired; the queue not paused. Checked where the jobs are chosen, in
# the transaction that takes them.
CLAIM_CHOOSE = f"""
    SELECT json_group_array({CLAIMED.format(attempt="attempt + 1")}), json_group_array(seq) FROM (
        SELECT seq FROM jobs INDEXED BY jobs_queued
        WHERE state = 'queued' AND queue = :queue AND solo = :solo
          AND EXISTS (SELECT 1 FROM workers WHERE id = :worker AND died_at IS NULL
                      AND boot_id = :boot_id AND expires_boot > :boot)
          AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
        ORDER BY priority DESC, run_at, id LIMIT :want) CROSS JOIN jobs USING (seq)"""
CLAIM_TAKE = """
    UPDATE jobs SET state = 'processing', attempt = attempt + 1, worker_id = :worker, started_at = :now,
        last_activity_at = :now, active_boot = :boot
    WHERE seq IN (SELECT value FROM json_each(:chosen)) AND +state = 'queued'"""

UNDER_LEASE = "id = :id AND +state = 'processing' AND attempt = :attempt AND +worker_id = :worker"

PROGRESS = f"""
    UPDATE jobs SET progress = coalesce(:fraction, progress), stage = coalesce(:stage, stage),
        message = coalesce(:message, message), last_activity_at = :now, active_boot = :boot,
        crashes = iif(:checkpoint IS NOT NULL AND :checkpoint IS NOT checkpoint, 0, crashes),
        checkpoint = coalesce(:checkpoint, checkpoint)
    WHERE {UNDER_LEASE}"""

LOG = """
    INSERT INTO job_logs (job_id, attempt, lines) VALUES (?, ?, ?)
    ON CONFLICT (job_id, attempt) DO UPDATE SET lines = excluded.lines"""
REFUSED = """
    UPDATE attempts SET evidence = json_set(evidence, '$.refused', :why)
    WHERE job_id = :id AND attempt = :attempt AND worker_id = :worker AND evidence ->> '$.refused' IS NULL"""

# The unary plus keeps the planner off jobs_processing: it would join every finished job with every one this worker
# runs (measured: 2,000 jobs/s instead of 80,000 in batches of 1,000).
COMPLETE = """
    UPDATE jobs SET state = 'completed', result = done.result, ended_at = :now, last_worker_id = worker_id,
        last_outcome = 'completed', worker_id = NULL
    FROM (SELECT value ->> 0 AS id, value ->> 1 AS attempt, value ->> 2 AS result FROM json_each(:ends)) AS done
    WHERE jobs.id = done.id AND +jobs.state = 'processing' AND jobs.attempt = done.attempt
      AND +jobs.worker_id = :worker"""

END = f"""
    UPDATE jobs SET state = :state, failures = :failures, crashes = :crashes, crashes_total = :total, solo = :solo,
        run_at = coalesce(:run_at, run_at), ended_at = :ended_at, error = coalesce(:error, error),
        message = coalesce(:cleared, message), last_worker_id = worker_id, last_outcome = :outcome,
        worker_id = NULL, started_at = NULL, last_activity_at = NULL, active_boot = NULL
    WHERE {UNDER_LEASE}"""

EXPIRED = """died_at IS NULL AND (expires_boot < :boot OR boot_id <> :boot_id)
    AND (:until IS NULL OR :now <= :until) AND (:witness IS NULL OR EXISTS (
    SELECT 1 FROM workers AS w WHERE w.id = :witness AND w.died_at IS NULL AND w.boot_id = :boot_id
        AND w.expires_boot - :boot > w.lease * 1000 / 3))"""
TO_RESCUE = """
    SELECT j.id, j.attempt, j.task, j.queue, j.worker_id,
        CASE WHEN w.id IS NULL THEN 'missing' WHEN w.died_at IS NOT NULL THEN w.death ELSE 'hung' END
    FROM jobs j INDEXED BY jobs_processing LEFT JOIN workers w ON w.id = j.worker_id
    WHERE j.state = 'processing' AND (w.id IS NULL OR w.died_at IS NOT NULL
        OR :boot - j.active_boot > (j.stale_after + 2 * w.lease) * 1000)
        AND (:id IS NULL OR j.id = :id)
    ORDER BY j.last_activity_at, j.id LIMIT :limit"""


def row_of(draft: Draft, now: int) -> tuple[Any, ...]:
    check_text(draft.id, draft.task, draft.queue, draft.unique, draft.meta, draft.payload)
    run_at = now
    if draft.delay is not None:
        run_at = now + round(draft.delay * 1000)
    elif draft.run_at is not None:
        run_at = round(draft.run_at.timestamp() * 1000)
    return (
        draft.id,
        "scheduled" if run_at > now else "queued",
        draft.task,
        draft.unique,
        draft.queue,
        draft.priority,
        run_at,
        draft.isolated,
        draft.isolated,
        draft.max_failures,
        draft.max_crashes,
        draft.retry_base,
        draft.retry_cap,
        draft.timeout,
        draft.stale_after,
        now,
        None if draft.expires is None else run_at + round(draft.expires * 1000),
        draft.meta,
        draft.payload,
    )


def enqueue_one(connection: apsw.Connection, row: tuple[Any, ...]) -> Enqueued:
    job_id, state, task, unique = row[0], row[1], row[2], row[3]
    connection.execute(INSERT, row)
    if connection.changes() == 1:
        return Enqueued(job_id, True, State(state))
    found = first(connection, "SELECT id, state FROM jobs WHERE id = ?", (job_id,)) or first(
        connection,
        f"SELECT id, state FROM jobs WHERE task = ? AND unique_key = ? AND state IN {LIVE_STATES}",
        (task, unique),
    )
    assert found is not None, "an insert that did nothing has met an id or a key"
    return Enqueued(found[0], False, State(found[1]))


def lease_facts(lease: Lease) -> dict[str, Any]:
    return {"id": lease.job_id, "attempt": lease.attempt, "worker": lease.worker_id}
