-- Schedules. What the store compares, or finds by, is a column; all else of a row is in its body, one JSON text that is
-- the same in every store (tenure/schedule.py says what is in it). People read the views.

CREATE TABLE schedule_rows (
  name   TEXT PRIMARY KEY,
  rev    INTEGER NOT NULL,               -- rises with every write: who read another one writes nothing
  due_at INTEGER,                        -- when a supervisor looks at it next
  body   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_rows_due ON schedule_rows (due_at) WHERE due_at IS NOT NULL;

-- What became of a tick, or of a range of missed ones: one row each.
CREATE TABLE tick_rows (
  schedule   TEXT NOT NULL,
  tick       INTEGER NOT NULL,
  cause      TEXT NOT NULL,
  job_id     TEXT,
  open       INTEGER NOT NULL,           -- its job has not been seen to end
  decided_at INTEGER NOT NULL,
  body       TEXT NOT NULL,
  PRIMARY KEY (schedule, tick, cause)
) STRICT, WITHOUT ROWID;
CREATE INDEX tick_rows_open ON tick_rows (schedule) WHERE open;
CREATE INDEX tick_rows_job ON tick_rows (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX tick_rows_decided ON tick_rows (decided_at) WHERE NOT open;

CREATE TABLE notes (
  key        TEXT PRIMARY KEY,
  value      TEXT NOT NULL,
  expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX notes_expires ON notes (expires_at) WHERE expires_at IS NOT NULL;

-- A guard is a worker of its own.
CREATE TABLE workers_2 (
  id            TEXT PRIMARY KEY,
  host          TEXT NOT NULL,
  pid           INTEGER NOT NULL,
  started       TEXT NOT NULL,
  boot_id       TEXT NOT NULL,
  pid_namespace TEXT NOT NULL,
  runner        TEXT NOT NULL CHECK (runner IN ('worker', 'embedded', 'solo', 'guard')),
  queues        TEXT NOT NULL,
  tasks         TEXT NOT NULL,
  slots         INTEGER NOT NULL CHECK (slots > 0),
  lease         REAL NOT NULL CHECK (lease > 0),
  started_at    INTEGER NOT NULL,
  renewed_at    INTEGER NOT NULL,
  expires_boot  INTEGER NOT NULL,
  died_at       INTEGER,
  death         TEXT CHECK (death IN ('crash', 'host')),
  note          TEXT NOT NULL DEFAULT '',
  CHECK ((died_at IS NULL) = (death IS NULL))
) STRICT, WITHOUT ROWID;
INSERT INTO workers_2 SELECT * FROM workers;
DROP TABLE workers;
ALTER TABLE workers_2 RENAME TO workers;

CREATE VIEW schedules AS
SELECT s.name,
  body ->> 'rule' || iif(body ->> 'tz' = 'UTC', '', ' ' || (body ->> 'tz')) AS schedule,
  coalesce(strftime('%Y-%m-%dT%H:%M:%fZ', run.started_at / 1000.0, 'unixepoch'), body ->> 'last_run_at') AS last_run_at,
  body ->> 'last_duration_ms' AS last_duration_ms,
  iif(run.schedule IS NULL, body ->> 'last_status', 'started') AS last_status,
  strftime('%Y-%m-%dT%H:%M:%fZ', run.locked_until / 1000.0, 'unixepoch') AS locked_until,
  iif(body ->> 'paused_at' IS NULL AND body ->> 'retired_at' IS NULL, body ->> 'next_tick', NULL) AS next_expected_at,
  body ->> 'failure_count' AS failure_count
FROM schedule_rows AS s LEFT JOIN (
  SELECT t.schedule, max(coalesce(j.started_at, t.decided_at)) AS started_at, max(w.renewed_at + w.lease * 1000) AS locked_until
  FROM tick_rows AS t JOIN jobs AS j ON j.id = t.job_id LEFT JOIN workers AS w ON w.id = j.worker_id
  WHERE t.open AND j.attempt > 0 AND j.state IN ('processing', 'scheduled', 'queued') GROUP BY t.schedule
) AS run ON run.schedule = s.name;

CREATE VIEW ticks AS
SELECT schedule, cause, body ->> 'tick' AS tick, body ->> 'until' AS until, body ->> 'count' AS count,
  body ->> 'status' AS status, body ->> 'why' AS why, job_id, body ->> 'decided_at' AS decided_at,
  body ->> 'started_at' AS started_at, body ->> 'ended_at' AS ended_at, body ->> 'host' AS host
FROM tick_rows;
