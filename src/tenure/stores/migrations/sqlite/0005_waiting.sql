-- Jobs that wait: for others, for a signal, for a place of a limit. Safe while workers of the version before run: triggers
-- store the asks for what they end or delete and give its places back; they claim no waiting job, and none with limits is
-- admitted while one of them is alive.
ALTER TABLE workers ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;

ALTER TABLE jobs ADD COLUMN linked INTEGER NOT NULL DEFAULT 0;  -- it waits for other jobs, or they for it: kept till then
ALTER TABLE jobs ADD COLUMN flow TEXT;
ALTER TABLE jobs ADD COLUMN wait_for TEXT;                      -- the key of a signal
ALTER TABLE jobs ADD COLUMN wait_until INTEGER;
ALTER TABLE jobs ADD COLUMN limits TEXT;                        -- [[key, limit], …]; NULL: none
ALTER TABLE jobs ADD COLUMN parked TEXT;                        -- the key under which it waits for a place
ALTER TABLE jobs ADD COLUMN due_at INTEGER;                     -- of a limited job: its order under its keys

CREATE INDEX jobs_waiting ON jobs (queue) WHERE state = 'waiting';
CREATE INDEX jobs_waited ON jobs (run_at) WHERE state = 'waiting';
CREATE INDEX jobs_holding ON jobs (ended_at) WHERE state = 'dead' AND linked;
CREATE INDEX jobs_wait_for ON jobs (wait_for, id) WHERE wait_for IS NOT NULL;
CREATE INDEX jobs_wait_until ON jobs (wait_until) WHERE wait_until IS NOT NULL;
CREATE INDEX jobs_parked ON jobs (parked, queue, solo, priority DESC, due_at, id) WHERE parked IS NOT NULL;
CREATE INDEX jobs_flow ON jobs (flow, state) WHERE flow IS NOT NULL;
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (state, ended_at, linked) WHERE ended_at IS NOT NULL;
DROP INDEX jobs_unique;
CREATE UNIQUE INDEX jobs_unique ON jobs (task, unique_key)
  WHERE unique_key IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'processing');

-- `child` waits until `parent` has completed, or ended. The parent may be gone.
CREATE TABLE edges (
  child   TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  parent  TEXT NOT NULL,
  place   INTEGER NOT NULL,
  until   TEXT NOT NULL CHECK (until IN ('completed', 'ended')),
  mine    INTEGER NOT NULL,              -- the child gathers this parent
  open    INTEGER NOT NULL DEFAULT 1,
  armed   INTEGER NOT NULL DEFAULT 0,    -- the end of the parent will be told
  skipped INTEGER NOT NULL DEFAULT 0,
  held    INTEGER NOT NULL DEFAULT 1,    -- the child may still need this parent
  PRIMARY KEY (child, parent)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX edges_places ON edges (child, place);
CREATE INDEX edges_parents ON edges (parent, child);
CREATE INDEX edges_held ON edges (parent) WHERE held;
CREATE INDEX edges_open ON edges (child, armed) WHERE open;

-- What `admit` has to look at: a job, or the key of a shared signal. `past`: the last edge that it has dealt with.
CREATE TABLE asks (
  seq  INTEGER PRIMARY KEY,
  item TEXT NOT NULL,
  part INTEGER NOT NULL DEFAULT 0,
  past TEXT NOT NULL DEFAULT ''
) STRICT;

-- Before its edges go along: those that wait for it, and those that were kept for it.
CREATE TRIGGER jobs_linked_deleted BEFORE DELETE ON jobs WHEN OLD.linked BEGIN
  INSERT INTO asks (item) SELECT OLD.id UNION ALL SELECT parent FROM edges WHERE child = OLD.id;
END;

-- Signals to one job, or to all that wait for a key.
CREATE TABLE signals (
  job_id  TEXT REFERENCES jobs (id) ON DELETE CASCADE,
  key     TEXT NOT NULL,
  value   TEXT NOT NULL,
  sent_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX signals_own ON signals (job_id, key);
CREATE UNIQUE INDEX signals_shared ON signals (key) WHERE job_id IS NULL;

CREATE TABLE flows (
  id         TEXT PRIMARY KEY,
  name       TEXT NOT NULL,
  created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX flows_created ON flows (created_at, id);

-- What an app declares and operators set, by template and by key.
CREATE TABLE limits (
  key   INTEGER NOT NULL,
  name  TEXT NOT NULL,
  body  TEXT NOT NULL,
  rated INTEGER NOT NULL,                -- it has a rate: begins are told
  fades REAL,                            -- Unix time at which it can go; NULL: it is kept
  PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX limits_fades ON limits (fades) WHERE fades IS NOT NULL;
CREATE INDEX limits_rated ON limits (key) WHERE rated;

-- The keys in use. Times are Unix seconds.
CREATE TABLE limit_keys (
  key        TEXT PRIMARY KEY,
  limit_name TEXT NOT NULL,
  tokens     REAL,
  at         REAL,                       -- when it had so many
  full_at    REAL NOT NULL DEFAULT 0,    -- when it will have all of them
  due        REAL,                       -- when it may have room again by itself
  found_at   REAL,                       -- when that was found: if that is later than now, the clock was set back
  slow_queue TEXT,                       -- these of its jobs did not use their places, and come last
  slow_solo  INTEGER,
  slow_until REAL NOT NULL DEFAULT 0,
  fades      REAL                        -- when it can be forgotten; NULL: it is in use, or something is set for it
) STRICT, WITHOUT ROWID;
CREATE INDEX limit_keys_limit ON limit_keys (limit_name, key);
CREATE INDEX limit_keys_due ON limit_keys (due) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_found ON limit_keys (found_at) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_fades ON limit_keys (fades) WHERE fades IS NOT NULL;

CREATE TABLE places (
  key         TEXT NOT NULL,
  limit_name  TEXT NOT NULL,
  job_id      TEXT NOT NULL,               -- no foreign key, which would be looked up: a trigger deletes it
  admitted_at INTEGER NOT NULL,
  PRIMARY KEY (key, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX places_jobs ON places (job_id);

-- What `admit` has to know of a key: look at it, a job of it began then, its jobs pause it until then.
CREATE TABLE key_asks (
  seq        INTEGER PRIMARY KEY,
  key        TEXT NOT NULL,
  limit_name TEXT NOT NULL,
  what       TEXT NOT NULL CHECK (what IN ('look', 'begun', 'pause')),
  at         REAL
) STRICT;
CREATE INDEX key_asks_key ON key_asks (key);

-- Queues that `admit` passed over, as nobody serves them.
CREATE TABLE idle_keys (
  queue      TEXT NOT NULL,
  key        TEXT NOT NULL,
  limit_name TEXT NOT NULL,
  PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

-- One for all, as each costs every job that moves; and not on `state`, which a claim sets. A linked job ends; one with
-- limits frees its places, or is the last that was parked under its key.
CREATE TRIGGER jobs_left AFTER UPDATE OF ended_at, last_outcome, parked ON jobs
WHEN NEW.linked OR NEW.limits IS NOT NULL BEGIN
  INSERT INTO asks (item) SELECT NEW.id WHERE NEW.linked AND NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL;
  INSERT INTO key_asks (key, limit_name, what)
    SELECT key, limit_name, 'look' FROM places WHERE NEW.state NOT IN ('queued', 'processing') AND job_id = NEW.id;
  DELETE FROM places WHERE NEW.state NOT IN ('queued', 'processing') AND job_id = NEW.id;
  INSERT INTO key_asks (key, limit_name, what)
    SELECT value ->> 0, value ->> 1, 'look' FROM json_each(NEW.limits)
    WHERE OLD.state = 'waiting' AND NEW.ended_at IS NOT NULL;
END;

CREATE TRIGGER jobs_limited_deleted BEFORE DELETE ON jobs WHEN OLD.limits IS NOT NULL BEGIN
  INSERT INTO key_asks (key, limit_name, what)
    SELECT key, limit_name, 'look' FROM places WHERE job_id = OLD.id
    UNION ALL SELECT value ->> 0, value ->> 1, 'look' FROM json_each(OLD.limits) WHERE value ->> 0 = OLD.parked;
  DELETE FROM places WHERE job_id = OLD.id;
END;

DROP VIEW schedules;
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
  WHERE t.open AND j.attempt > 0 AND j.state IN ('processing', 'scheduled', 'queued', 'waiting') GROUP BY t.schedule
) AS run ON run.schedule = s.name;

-- A CHECK is not on the disk but in the schema alone; copying the table would take minutes where jobs are many
-- (the procedure of https://sqlite.org/lang_altertable.html, section 8).
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, 'WHEN state IN (''completed''',  -- IN with three costs each INSERT 1.2 us
  'WHEN state = ''waiting'' THEN worker_id IS NULL AND ended_at IS NULL
    WHEN state IN (''completed''')
WHERE type = 'table' AND name = 'jobs';
PRAGMA writable_schema = RESET;
