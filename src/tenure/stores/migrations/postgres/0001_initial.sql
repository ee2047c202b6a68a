-- @ stands for the schema. All times are the server's. Read it in an incident:
--   SELECT id, state, worker_id, last_activity_at, stage, progress FROM tenure.jobs WHERE state = 'processing';

CREATE TABLE @.workers (
  id            text PRIMARY KEY,           -- hostname-pid-random, never used again
  host          text NOT NULL,
  pid           integer NOT NULL,
  started       text NOT NULL,
  boot_id       text NOT NULL,
  pid_namespace text NOT NULL,
  runner        text NOT NULL CHECK (runner IN ('worker', 'embedded', 'solo')),
  queues        text NOT NULL,
  tasks         text NOT NULL,
  slots         integer NOT NULL CHECK (slots > 0),
  lease         float8 NOT NULL CHECK (lease > 0),  -- seconds
  started_at    timestamptz NOT NULL,
  renewed_at    timestamptz NOT NULL,
  expires_at    timestamptz NOT NULL,
  died_at       timestamptz,                -- set once, never cleared
  death         text CHECK (death IN ('crash', 'host')),
  note          text NOT NULL DEFAULT '',
  CHECK ((died_at IS NULL) = (death IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

CREATE TABLE @.queues (
  name      text PRIMARY KEY,
  paused_at timestamptz NOT NULL
);

-- What every claim and finish reads stands first: a row is taken apart from its start.
CREATE TABLE @.jobs (
  id               uuid PRIMARY KEY,
  attempt          integer NOT NULL DEFAULT 0,
  failures         integer NOT NULL DEFAULT 0,
  crashes          integer NOT NULL DEFAULT 0,
  crashes_total    integer NOT NULL DEFAULT 0,
  max_failures     integer NOT NULL,
  max_crashes      integer NOT NULL,
  retry_base       float8 NOT NULL,         -- seconds, as all durations
  retry_cap        float8 NOT NULL,
  enqueued_at      timestamptz NOT NULL,
  run_at           timestamptz NOT NULL,
  priority         smallint NOT NULL CHECK (priority BETWEEN -100 AND 100),
  solo             boolean NOT NULL,
  isolated         boolean NOT NULL,
  state            text NOT NULL,
  queue            text NOT NULL,
  task             text NOT NULL,
  meta             text NOT NULL,
  payload          text NOT NULL,
  worker_id        text,
  timeout          float8,
  stale_after      float8,
  expires_at       timestamptz,
  started_at       timestamptz,
  last_activity_at timestamptz,
  ended_at         timestamptz,
  last_worker_id   text,                    -- attempt, last_worker_id and last_outcome tell how it last ended
  last_outcome     text,
  unique_key       text,
  cancel_reason    text,
  stage            text,
  progress         float8 CHECK (progress BETWEEN 0 AND 1),
  message          text,
  checkpoint       text,
  error            text,
  result           text,
  CONSTRAINT jobs_owned_while_processing CHECK (CASE
    WHEN state = 'processing' THEN worker_id IS NOT NULL AND started_at IS NOT NULL AND ended_at IS NULL
    WHEN state IN ('queued', 'scheduled') THEN worker_id IS NULL AND ended_at IS NULL
    WHEN state IN ('completed', 'dead', 'cancelled') THEN worker_id IS NULL AND ended_at IS NOT NULL
    ELSE false END)
) WITH (
  fillfactor = 90,                          -- room for progress to stay on its page (HOT: it is in no index)
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
  vacuum_truncate = off                     -- truncating takes a lock that would hold up every claim
);

-- Five partial indexes; a beat or a progress touches none of them.
CREATE INDEX jobs_queued ON @.jobs (queue, solo, (-priority), run_at, id) WHERE state = 'queued';
CREATE INDEX jobs_scheduled ON @.jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX jobs_processing ON @.jobs (worker_id) WHERE state = 'processing';
CREATE INDEX jobs_ended ON @.jobs (state, ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_unique ON @.jobs (task, unique_key)
  WHERE unique_key IS NOT NULL AND state IN ('scheduled', 'queued', 'processing');

-- One row an attempt that ended otherwise than completed: the happy path pays nothing for history.
CREATE TABLE @.attempts (
  job_id     uuid NOT NULL REFERENCES @.jobs ON DELETE CASCADE,
  attempt    integer NOT NULL,
  worker_id  text NOT NULL,
  outcome    text NOT NULL,
  error      text NOT NULL,
  evidence   text NOT NULL,
  started_at timestamptz NOT NULL,
  ended_at   timestamptz NOT NULL,
  PRIMARY KEY (job_id, attempt)
);

CREATE TABLE @.once (
  job_id uuid NOT NULL REFERENCES @.jobs ON DELETE CASCADE,
  key    text NOT NULL,
  value  text NOT NULL,
  PRIMARY KEY (job_id, key)
);
