-- What an attempt logged last, and the memory of a worker. Safe while workers of the version before run.
-- Both hold up claims until the commit, but for a moment: nothing is read or rewritten. Who has an open transaction that
-- wrote jobs (`tx=`), or reads workers for long (pg_dump does), must not make everybody wait behind us: rather than
-- that, `migrate` lets them go first and tries again.
SET LOCAL lock_timeout = '1500ms';  -- longer than deadlock_timeout, after which autovacuum gives way

CREATE TABLE @.job_logs (
  job_id  uuid NOT NULL REFERENCES @.jobs ON DELETE CASCADE,
  attempt integer NOT NULL,
  lines   text NOT NULL,
  PRIMARY KEY (job_id, attempt)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

ALTER TABLE @.workers ADD COLUMN memory bigint;  -- bytes of its process, as of its last renewal
