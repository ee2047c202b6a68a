-- Times ending in _at are Unix milliseconds by this machine's clock. Times ending in _boot are CLOCK_BOOTTIME
-- milliseconds: leases and silences compare those, so that no clock step can end one.

CREATE TABLE workers (
  id            TEXT PRIMARY KEY,          -- hostname-pid-random, never used again
  host          TEXT NOT NULL,
  pid           INTEGER NOT NULL,
  started       TEXT NOT NULL,
  boot_id       TEXT NOT NULL,
  pid_namespace TEXT NOT NULL,
  runner        TEXT NOT NULL CHECK (runner IN ('worker', 'embedded', 'solo')),
  queues        TEXT NOT NULL,
  tasks         TEXT NOT NULL,
  slots         INTEGER NOT NULL CHECK (slots > 0),
  lease         REAL NOT NULL CHECK (lease > 0),
  started_at    INTEGER NOT NULL,
  renewed_at    INTEGER NOT NULL,
  expires_boot  INTEGER NOT NULL,
  died_at       INTEGER,                   -- set once, never cleared
  death         TEXT CHECK (death IN ('crash', 'host')),
  note          TEXT NOT NULL DEFAULT '',
  CHECK ((died_at IS NULL) = (death IS NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE queues (
  name      TEXT PRIMARY KEY,
  paused_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
  seq              INTEGER PRIMARY KEY,
  id               TEXT NOT NULL UNIQUE,
  state            TEXT NOT NULL,
  queue            TEXT NOT NULL,
  priority         INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
  run_at           INTEGER NOT NULL,
  solo             INTEGER NOT NULL,
  isolated         INTEGER NOT NULL,
  attempt          INTEGER NOT NULL DEFAULT 0,
  worker_id        TEXT,
  started_at       INTEGER,
  last_activity_at INTEGER,
  active_boot      INTEGER,
  ended_at         INTEGER,
  last_worker_id   TEXT,                   -- attempt, last_worker_id and last_outcome tell how it last ended
  last_outcome     TEXT,
  task             TEXT NOT NULL,
  failures         INTEGER NOT NULL DEFAULT 0,
  crashes          INTEGER NOT NULL DEFAULT 0,
  crashes_total    INTEGER NOT NULL DEFAULT 0,
  max_failures     INTEGER NOT NULL,
  max_crashes      INTEGER NOT NULL,
  retry_base       REAL NOT NULL,
  retry_cap        REAL NOT NULL,
  timeout          REAL,
  stale_after      REAL,
  enqueued_at      INTEGER NOT NULL,
  expires_at       INTEGER,
  unique_key       TEXT,
  cancel_reason    TEXT,
  stage            TEXT,
  progress         REAL CHECK (progress BETWEEN 0 AND 1),
  message          TEXT,
  meta             TEXT NOT NULL,
  payload          TEXT NOT NULL,
  checkpoint       TEXT,
  error            TEXT,
  result           TEXT,
  CHECK (CASE                              -- one expression: each CHECK is evaluated anew by every claim and finish
    WHEN state = 'processing' THEN worker_id IS NOT NULL AND ended_at IS NULL
    WHEN state IN ('queued', 'scheduled') THEN worker_id IS NULL AND ended_at IS NULL
    WHEN state IN ('completed', 'dead', 'cancelled') THEN worker_id IS NULL AND ended_at IS NOT NULL
    ELSE FALSE END)
) STRICT;

CREATE INDEX jobs_queued ON jobs (queue, solo, priority DESC, run_at, id) WHERE state = 'queued';
CREATE INDEX jobs_scheduled ON jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX jobs_processing ON jobs (worker_id) WHERE state = 'processing';
CREATE INDEX jobs_ended ON jobs (state, ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX jobs_unique ON jobs (task, unique_key)
  WHERE unique_key IS NOT NULL AND state IN ('scheduled', 'queued', 'processing');

-- One row an attempt that ended otherwise than completed: the happy path pays nothing for history.
CREATE TABLE attempts (
  job_id     TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  attempt    INTEGER NOT NULL,
  worker_id  TEXT NOT NULL,
  outcome    TEXT NOT NULL,
  error      TEXT NOT NULL,
  evidence   TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  ended_at   INTEGER NOT NULL,
  PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE once (
  job_id TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  key    TEXT NOT NULL,
  value  TEXT NOT NULL,
  PRIMARY KEY (job_id, key)
) STRICT, WITHOUT ROWID;
