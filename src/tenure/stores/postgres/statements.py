"""The statements of the PostgreSQL store. `@.` stands for its schema, `@now` for the server's clock.

Two rules keep them fast when the statistics lie, as they do when a queue goes from empty to a million and back:

- what comes with ids must be found by the primary key. A condition on `state`, or on a worker that is a constant,
  would let the planner believe that next to no row meets it: it would read a whole index, or a partial one that was
  empty when it was last analysed, and join every finished job with every running one (measured: 2,300 jobs/s instead
  of 22,000). So all of a lease is compared with what came with the id.
- what is chosen by an index is locked there, and then written by its place (ctid), not looked up again.
"""

from __future__ import annotations

_CLAIMED = """j.id::text, {attempt}, j.task, j.queue, j.payload, j.failures, j.crashes, j.meta, j.checkpoint, j.timeout,
    j.stale_after, (date_part('epoch', j.enqueued_at) * 1000)::bigint,
    coalesce({attempt} = 1 AND j.expires_at < @now, false)"""
# A row has a worker exactly while it is processing: a CHECK says so, and so the lease need not name the state.
UNDER_LEASE = "j.id = {lease}.id AND j.attempt = {lease}.attempt AND j.worker_id = {lease}.worker"
CHARGES = """j.failures, j.crashes, j.crashes_total, j.max_failures, j.max_crashes, j.retry_base, j.retry_cap,
    j.isolated, j.cancel_reason"""

# ── enqueue ──

_DRAFTS = """json_to_recordset(:p::json) AS (id uuid, task text, payload text, queue text, priority integer,
    delay float8, run_at timestamptz, expires float8, "unique" text, isolated boolean, timeout float8,
    stale_after float8, max_failures integer, max_crashes integer, retry_base float8, retry_cap float8, meta text)"""

ENQUEUE = f"""
    WITH given AS MATERIALIZED (
        SELECT *, coalesce(@now + delay * interval '1 second', run_at, @now) AS due
        FROM ROWS FROM ({_DRAFTS}) WITH ORDINALITY AS d
    ), stored AS (
        INSERT INTO @.jobs (id, state, task, unique_key, queue, priority, run_at, solo, isolated, max_failures,
            max_crashes, retry_base, retry_cap, timeout, stale_after, enqueued_at, expires_at, meta, payload)
        SELECT id, CASE WHEN due > @now THEN 'scheduled' ELSE 'queued' END, task, "unique", queue, priority, due,
            isolated, isolated, max_failures, max_crashes, retry_base, retry_cap, timeout, stale_after, @now,
            due + expires * interval '1 second', meta, payload
        FROM given ORDER BY ordinality
        ON CONFLICT DO NOTHING RETURNING id, state
    )
    SELECT id::text, state, pg_current_xact_id()::text FROM stored"""

#: One job alone, as most are: no batch has to be taken apart.
ENQUEUE_ONE = """
    INSERT INTO @.jobs (id, state, task, unique_key, queue, priority, run_at, solo, isolated, max_failures,
        max_crashes, retry_base, retry_cap, timeout, stale_after, enqueued_at, expires_at, meta, payload)
    SELECT %(id)s::uuid, CASE WHEN due > @now THEN 'scheduled' ELSE 'queued' END, %(task)s::text, %(unique)s::text,
        %(queue)s::text, %(priority)s::smallint, due, %(isolated)s::boolean, %(isolated)s::boolean,
        %(max_failures)s::integer, %(max_crashes)s::integer, %(retry_base)s::float8, %(retry_cap)s::float8,
        %(timeout)s::float8, %(stale_after)s::float8, @now, due + %(expires)s::float8 * interval '1 second',
        %(meta)s::text, %(payload)s::text
    FROM (SELECT coalesce(@now + %(delay)s::float8 * interval '1 second', %(run_at)s::timestamptz, @now) AS due) AS d
    ON CONFLICT DO NOTHING RETURNING state"""

#: Who stands where an insert did nothing: the same id, else the live holder of the unique key.
STANDING = """
    SELECT d.ordinality, j.id::text, j.state
    FROM ROWS FROM (json_to_recordset(:p::json) AS (id uuid, task text, "unique" text)) WITH ORDINALITY AS d
    CROSS JOIN LATERAL (
        SELECT id, state FROM @.jobs WHERE id = d.id
        UNION ALL
        SELECT id, state FROM @.jobs WHERE task = d.task AND unique_key = d."unique"
            AND state IN ('scheduled', 'queued', 'processing')
        LIMIT 1) AS j"""

COPY = """
    COPY @.jobs (id, state, task, queue, priority, run_at, solo, isolated, max_failures, max_crashes, retry_base,
        retry_cap, timeout, stale_after, enqueued_at, expires_at, meta, payload) FROM STDIN"""

# ── owners ──

# The worker's row must be there, not dead, not expired, and the queue not paused: asked in the statement that takes.
# Each queue is read from a place on (rank, run_at, id), so that a claim need not step over all that ended since an old
# snapshot was taken; what has a higher priority is read from the start.
CLAIM = f"""
    WITH chosen AS MATERIALIZED (
        SELECT j.ctid AS place
        FROM unnest(%(queues)s::text[], %(wants)s::integer[], %(ranks)s::integer[], %(times)s::timestamptz[],
            %(ids)s::uuid[]) AS w (queue, want, rank, run_at, id)
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT ctid FROM @.jobs
                WHERE state = 'queued' AND queue = w.queue AND solo = %(solo)s AND (-priority) < w.rank
                ORDER BY (-priority), run_at, id LIMIT w.want FOR NO KEY UPDATE SKIP LOCKED) AS before
            UNION ALL
            SELECT * FROM (
                SELECT ctid FROM @.jobs
                WHERE state = 'queued' AND queue = w.queue AND solo = %(solo)s
                    AND ((-priority), run_at, id) > (w.rank, w.run_at, w.id)
                ORDER BY (-priority), run_at, id LIMIT w.want FOR NO KEY UPDATE SKIP LOCKED) AS past
            LIMIT w.want) AS j
        WHERE EXISTS (SELECT FROM @.workers WHERE id = %(worker)s AND died_at IS NULL AND expires_at > @now)
          AND NOT EXISTS (SELECT FROM @.queues WHERE name = w.queue)
        LIMIT %(limit)s)
    UPDATE @.jobs AS j SET state = 'processing', attempt = j.attempt + 1, worker_id = %(worker)s,
        started_at = @now, last_activity_at = @now
    FROM chosen WHERE j.ctid = chosen.place
    RETURNING {_CLAIMED.format(attempt="j.attempt")}"""

PLACE = "SELECT -priority, run_at::text, id::text FROM @.jobs WHERE id = %s"

OWNED = f"""
    SELECT {_CLAIMED.format(attempt="j.attempt")}, j.cancel_reason
    FROM @.jobs AS j WHERE j.state = 'processing' AND j.worker_id = %s"""

_PROGRESS = f"""
    WITH r AS MATERIALIZED (
        SELECT l.*
        FROM json_to_recordset(%s) AS l (id uuid, attempt integer, worker text, fraction float8, stage text,
            message text, checkpoint text, log text)
        JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")}
        ORDER BY l.id FOR NO KEY UPDATE OF j SKIP LOCKED){{logged}}
    UPDATE @.jobs AS j SET progress = coalesce(r.fraction, j.progress), stage = coalesce(r.stage, j.stage),
        message = coalesce(r.message, j.message), last_activity_at = @now,
        crashes = CASE WHEN r.checkpoint IS NOT NULL AND r.checkpoint IS DISTINCT FROM j.checkpoint
            THEN 0 ELSE j.crashes END,
        checkpoint = coalesce(r.checkpoint, j.checkpoint)
    FROM r WHERE {UNDER_LEASE.format(lease="r")}
    RETURNING j.id::text, j.attempt, j.worker_id"""

PROGRESS = _PROGRESS.format(logged="")
#: The same for a batch in which somebody logged: the jobs' rows are locked first, so nobody meets another in the logs.
PROGRESS_LOGGED = _PROGRESS.format(
    logged=""", logged AS (
        INSERT INTO @.job_logs (job_id, attempt, lines)
        SELECT id, attempt, log FROM r WHERE log IS NOT NULL ORDER BY id
        ON CONFLICT (job_id, attempt) DO UPDATE SET lines = excluded.lines)"""
)

#: The first refusal of an attempt stands: a row changed since we looked is looked at again before it is written.
REFUSED = """
    WITH r AS MATERIALIZED (
        SELECT a.job_id, a.attempt, l.why
        FROM json_to_recordset(%s) AS l (id uuid, attempt integer, worker text, why text)
        JOIN @.attempts AS a ON a.job_id = l.id AND a.attempt = l.attempt AND a.worker_id = l.worker
        ORDER BY a.job_id, a.attempt FOR NO KEY UPDATE OF a)
    UPDATE @.attempts AS a SET evidence = (a.evidence::jsonb || jsonb_build_object('refused', r.why))::text
    FROM r WHERE a.job_id = r.job_id AND a.attempt = r.attempt AND a.evidence::jsonb -> 'refused' IS NULL"""

ONCE_READ = f"""
    SELECT o.value FROM (SELECT %s::uuid AS id, %s::integer AS attempt, %s::text AS worker, %s::text AS key) AS l
    JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")} LEFT JOIN @.once AS o ON o.job_id = j.id AND o.key = l.key"""

ONCE_WRITE = f"""
    WITH held AS MATERIALIZED (
        SELECT j.id, l.key, l.value
        FROM (SELECT %s::uuid AS id, %s::integer AS attempt, %s::text AS worker, %s::text AS key, %s::text AS value) l
        JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")} FOR NO KEY UPDATE OF j
    ), recorded AS (
        INSERT INTO @.once (job_id, key, value) SELECT id, key, value FROM held ON CONFLICT DO NOTHING RETURNING value)
    SELECT coalesce((SELECT value FROM recorded), o.value)
    FROM held LEFT JOIN @.once AS o ON o.job_id = held.id AND o.key = held.key"""

_COMPLETE = """
    UPDATE @.jobs AS j SET state = 'completed', result = e.result, ended_at = @now, last_worker_id = j.worker_id,
        last_outcome = 'completed', worker_id = NULL
    FROM {ends} AS e {columns} WHERE """ + UNDER_LEASE.format(lease="e")

COMPLETE = _COMPLETE.format(
    # A CASE, or the worker would be that constant.
    ends="(SELECT *, CASE WHEN attempt > 0 THEN %s::text END AS worker "
    "FROM unnest(%s::uuid[], %s::integer[], %s::text[]) AS u (id, attempt, result))",
    columns="",
)
#: The same inside a caller's transaction, where there is one text to give.
COMPLETE_THERE = (
    _COMPLETE.format(ends="json_to_recordset(:p::json)", columns="(id uuid, attempt integer, worker text, result text)")
    + " RETURNING j.id::text, j.attempt, j.worker_id"
)

#: `{waiting}`: whether to wait for a row that somebody holds.
LOCK = f"""
    SELECT j.id::text, j.attempt, j.worker_id, {CHARGES}
    FROM json_to_recordset(:p::json) AS l (id uuid, attempt integer, worker text)
    JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")}
    ORDER BY j.id FOR NO KEY UPDATE OF j {{waiting}}"""

END = f"""
    WITH e AS MATERIALIZED (
        SELECT * FROM json_to_recordset(:p::json) AS e (id uuid, attempt integer, worker text, state text,
            failures integer, crashes integer, total integer, solo boolean, outcome text, delay float8,
            ended boolean, error text, reason text, evidence text, message text)
    ), told AS (
        INSERT INTO @.attempts (job_id, attempt, worker_id, outcome, error, evidence, started_at, ended_at)
        SELECT j.id, j.attempt, j.worker_id, e.outcome, e.reason, e.evidence, j.started_at, @now
        FROM e JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="e")})
    UPDATE @.jobs AS j SET state = e.state, failures = e.failures, crashes = e.crashes, crashes_total = e.total,
        solo = e.solo, run_at = coalesce(@now + e.delay * interval '1 second', j.run_at),
        ended_at = CASE WHEN e.ended THEN @now END, error = coalesce(e.error, j.error),
        message = coalesce(e.message, j.message), last_worker_id = j.worker_id, last_outcome = e.outcome,
        worker_id = NULL, started_at = NULL, last_activity_at = NULL
    FROM e WHERE {UNDER_LEASE.format(lease="e")}
    RETURNING j.id::text"""

STANDS = """
    SELECT l.ordinality, j.state, j.attempt, j.worker_id, j.last_worker_id, j.last_outcome, j.result,
        a.worker_id, a.outcome
    FROM ROWS FROM (json_to_recordset(:p::json) AS (id uuid, attempt integer)) WITH ORDINALITY AS l
    JOIN @.jobs AS j ON j.id = l.id LEFT JOIN @.attempts AS a ON a.job_id = j.id AND a.attempt = l.attempt"""

# ── supervisors ──

REGISTER = """
    INSERT INTO @.workers (id, host, pid, started, boot_id, pid_namespace, runner, queues, tasks, slots, lease,
        started_at, renewed_at, expires_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, @now, @now, @now + %s * interval '1 second')
    ON CONFLICT DO NOTHING"""

RENEW = """
    UPDATE @.workers AS w SET renewed_at = @now, expires_at = @now + w.lease * interval '1 second', note = r.note,
        memory = coalesce(r.memory, w.memory)
    FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS r (id, note, memory)
    WHERE w.id = r.id AND w.died_at IS NULL RETURNING w.id"""

DECLARE = """
    UPDATE @.workers SET died_at = @now, death = 'crash' WHERE id = ANY(%s::text[]) AND died_at IS NULL RETURNING id"""

DECLARE_EXPIRED = """
    UPDATE @.workers SET died_at = @now, death = 'host'
    WHERE died_at IS NULL AND expires_at < @now AND (%(id)s::text IS NULL OR id = %(id)s)
      AND @now <= coalesce(%(until)s::timestamptz, 'infinity')
      AND (%(witness)s::text IS NULL OR EXISTS (SELECT FROM @.workers AS w WHERE w.id = %(witness)s
        AND w.died_at IS NULL AND w.expires_at - @now > w.lease / 3 * interval '1 second'))
    RETURNING id"""

HELD = """
    SELECT j.id::text, j.attempt, j.task, j.queue FROM @.jobs AS j WHERE j.state = 'processing' AND j.worker_id = %s
    ORDER BY j.last_activity_at, j.id FOR NO KEY UPDATE SKIP LOCKED"""

_TO_RESCUE = """
    SELECT j.id::text, j.attempt, j.task, j.queue, j.worker_id,
        CASE WHEN w.id IS NULL THEN 'missing' WHEN w.died_at IS NOT NULL THEN w.death ELSE 'hung' END
    FROM @.jobs AS j LEFT JOIN @.workers AS w ON w.id = j.worker_id
    WHERE {which} AND (w.id IS NULL OR w.died_at IS NOT NULL
        OR @now - j.last_activity_at > (j.stale_after + 2 * w.lease) * interval '1 second')
    ORDER BY j.last_activity_at, j.id LIMIT %s FOR NO KEY UPDATE OF j {waiting}"""

TO_RESCUE = _TO_RESCUE.format(which="j.state = 'processing'", waiting="SKIP LOCKED")
REDELIVERED = _TO_RESCUE.format(which="j.id = %s AND (j.state || '') = 'processing'", waiting="")

HUNG = """
    SELECT j.id::text, j.attempt, j.worker_id, j.task, date_part('epoch', @now - j.last_activity_at)
    FROM @.jobs AS j WHERE j.state = 'processing' AND j.worker_id = ANY(%s::text[])
      AND j.stale_after IS NOT NULL AND @now - j.last_activity_at > j.stale_after * interval '1 second'"""

SOLO_WAITING = """
    SELECT count(*) FROM @.jobs WHERE state = 'queued' AND solo AND queue = ANY(%s::text[])
        AND queue NOT IN (SELECT name FROM @.queues)"""

PROMOTE = """
    WITH due AS MATERIALIZED (
        SELECT ctid AS place, run_at, id FROM @.jobs WHERE state = 'scheduled' AND run_at <= @now
        ORDER BY run_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE @.jobs AS j SET state = 'queued' FROM due WHERE j.ctid = due.place RETURNING j.queue, j.id, j.run_at)
    SELECT queue, id::text FROM moved ORDER BY run_at, id"""

NEXT_DUE = "SELECT date_part('epoch', min(run_at) - @now) FROM @.jobs WHERE state = 'scheduled'"

PRUNE = """
    DELETE FROM @.jobs WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM @.jobs WHERE state = %s AND ended_at IS NOT NULL
            AND ended_at < @now - %s * interval '1 second'
        ORDER BY ended_at LIMIT %s FOR UPDATE SKIP LOCKED))"""

PRUNE_WORKERS = "DELETE FROM @.workers WHERE died_at < @now - interval '1 day'"
