-- Schedules, what became of their ticks, and notes. Safe while workers of the version before run. Read it in an incident:
--   SELECT * FROM tenure.schedules ORDER BY failure_count DESC, next_expected_at;
--   SELECT * FROM tenure.ticks WHERE schedule = 'nightly' ORDER BY tick DESC LIMIT 20;
-- What is found or compared by is a column, all else is in `body`, which is JSON. Names are in the order of their bytes,
-- whatever the database's collation: everybody locks them in one order, and no new libc makes an index wrong.

CREATE TABLE @.schedule_rows (
  name   text COLLATE "C" PRIMARY KEY,
  rev    integer NOT NULL,                  -- rises with every write; who writes compares it
  due_at timestamptz,                       -- when a supervisor looks at it next
  body   text NOT NULL
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX schedule_rows_due ON @.schedule_rows (due_at) WHERE due_at IS NOT NULL;

CREATE TABLE @.tick_rows (
  schedule   text COLLATE "C" NOT NULL,
  tick       timestamptz NOT NULL,
  cause      text COLLATE "C" NOT NULL,
  job_id     uuid,
  open       boolean NOT NULL,              -- it became a job, and nobody has written down yet how that ended
  decided_at timestamptz NOT NULL,
  body       text NOT NULL,
  PRIMARY KEY (schedule, tick, cause)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX tick_rows_open ON @.tick_rows (schedule, tick, cause) WHERE open;
CREATE INDEX tick_rows_job ON @.tick_rows (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX tick_rows_decided ON @.tick_rows (decided_at) WHERE NOT open;

CREATE TABLE @.notes (
  key        text COLLATE "C" PRIMARY KEY,
  value      text NOT NULL,
  expires_at timestamptz
);

CREATE INDEX notes_expiring ON @.notes (expires_at) WHERE expires_at IS NOT NULL;

-- One row a schedule: its health. What runs, and what has ended since anybody wrote it down, is told as it is now.
CREATE VIEW @.schedules AS
SELECT s.name,
  b.rule || CASE b.tz WHEN 'UTC' THEN '' ELSE ' ' || b.tz END AS schedule,
  coalesce(r.running_since, e.started_at, b.last_run_at) AS last_run_at,
  coalesce((date_part('epoch', e.ended_at - e.started_at) * 1000)::bigint, b.last_duration_ms) AS last_duration_ms,
  coalesce(r.status, e.status, b.last_status) AS last_status,
  r.locked_until,
  CASE WHEN b.paused_at IS NULL AND b.retired_at IS NULL THEN b.next_tick END AS next_expected_at,
  CASE e.status WHEN 'success' THEN 0 WHEN 'failure' THEN b.failure_count + 1 ELSE b.failure_count END AS failure_count
FROM @.schedule_rows AS s
CROSS JOIN json_to_record(s.body::json) AS b (rule text, tz text, last_run_at timestamptz, last_duration_ms bigint,
  last_status text, paused_at timestamptz, retired_at timestamptz, next_tick timestamptz, failure_count integer)
CROSS JOIN LATERAL (
  SELECT max(coalesce(j.started_at, t.decided_at)) AS running_since, max(w.expires_at) AS locked_until,
    CASE WHEN count(*) > 0 THEN 'started' END AS status
  FROM @.tick_rows AS t JOIN @.jobs AS j ON j.id = t.job_id LEFT JOIN @.workers AS w ON w.id = j.worker_id
  WHERE t.schedule = s.name AND t.open AND j.attempt > 0 AND j.state IN ('processing', 'scheduled', 'queued')) AS r
LEFT JOIN LATERAL (
  SELECT a.started_at, j.ended_at,
    CASE j.state WHEN 'completed' THEN 'success' WHEN 'dead' THEN 'failure' ELSE 'cancelled' END AS status
  FROM @.tick_rows AS t JOIN @.jobs AS j ON j.id = t.job_id
  CROSS JOIN LATERAL (
    SELECT least(j.started_at, min(started_at)) AS started_at FROM @.attempts WHERE job_id = j.id) AS a
  WHERE t.schedule = s.name AND t.open AND j.ended_at IS NOT NULL AND a.started_at IS NOT NULL
  ORDER BY j.ended_at DESC LIMIT 1) AS e ON true;

-- What became of each tick; `tick` to `until`, `count` of them, where nobody fired a run of them.
CREATE VIEW @.ticks AS
SELECT t.schedule, t.tick, b."until", b."count", t.cause, b.status, b.why, t.job_id, t.decided_at, b.started_at, b.ended_at,
  (date_part('epoch', b.ended_at - b.started_at) * 1000)::bigint AS duration_ms, b.host
FROM @.tick_rows AS t
CROSS JOIN json_to_record(t.body::json) AS b ("until" timestamptz, "count" bigint, status text, why text,
  started_at timestamptz, ended_at timestamptz, host text);

-- Last, for it holds up every claim until the commit. Whoever reads this table for long (pg_dump does) must not make
-- the workers wait behind us: rather than that, `migrate` lets them go first and tries again.
SET LOCAL lock_timeout = '1500ms';  -- longer than deadlock_timeout, after which autovacuum gives way
ALTER TABLE @.workers DROP CONSTRAINT workers_runner_check,
  ADD CONSTRAINT workers_runner_check CHECK (runner IN ('worker', 'embedded', 'solo', 'guard'));
