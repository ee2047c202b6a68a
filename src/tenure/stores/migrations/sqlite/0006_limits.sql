-- Limits. Safe while workers of the version before run: no job with limits is admitted while one of them is alive, and a
-- trigger gives places back whoever ends a job.
ALTER TABLE jobs ADD COLUMN limits TEXT;     -- [[key, limit], …]; NULL: none
ALTER TABLE jobs ADD COLUMN parked TEXT;     -- the key under which it waits for a place
ALTER TABLE jobs ADD COLUMN due_at INTEGER;  -- of a limited job: its order under its keys

CREATE INDEX jobs_parked ON jobs (parked, queue, priority DESC, due_at, id) WHERE parked IS NOT NULL;

-- What an app declares and operators set, by template and by key.
CREATE TABLE limits (
  key  INTEGER NOT NULL,
  name TEXT NOT NULL,
  body TEXT NOT NULL,
  PRIMARY KEY (key, name)
) STRICT, WITHOUT ROWID;

-- The keys in use. Times are Unix seconds.
CREATE TABLE limit_keys (
  key        TEXT PRIMARY KEY,
  limit_name TEXT NOT NULL,
  tokens     REAL,
  at         REAL,                       -- when it had so many
  full_at    REAL NOT NULL DEFAULT 0,    -- when it will have all of them
  due        REAL,                       -- when it may have room again by itself
  found_at   REAL,                       -- when that was found: if that is later than now, the clock was set back
  slow_queue TEXT,
  slow_until REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX limit_keys_limit ON limit_keys (limit_name, key);
CREATE INDEX limit_keys_due ON limit_keys (due) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_found ON limit_keys (found_at) WHERE due IS NOT NULL;

CREATE TABLE places (
  key         TEXT NOT NULL,
  limit_name  TEXT NOT NULL,
  job_id      TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  queue       TEXT NOT NULL,
  rated       INTEGER NOT NULL,
  begun       INTEGER NOT NULL DEFAULT 0,
  admitted_at INTEGER NOT NULL,
  PRIMARY KEY (key, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX places_jobs ON places (job_id);
CREATE INDEX places_unbegun ON places (queue, admitted_at) WHERE NOT begun;

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

CREATE TRIGGER jobs_limited_moved AFTER UPDATE OF state ON jobs WHEN NEW.limits IS NOT NULL BEGIN
  INSERT INTO key_asks (key, limit_name, what, at)
    SELECT key, limit_name, iif(NEW.state = 'processing', 'begun', 'look'), NEW.started_at / 1000.0 FROM places
    WHERE job_id = NEW.id AND (rated OR NEW.state <> 'processing') AND NEW.state <> 'queued';
  UPDATE places SET begun = 1 WHERE job_id = NEW.id AND NEW.state = 'processing';
  DELETE FROM places WHERE job_id = NEW.id AND NEW.state NOT IN ('queued', 'processing');
END;

CREATE TRIGGER jobs_limited_deleted BEFORE DELETE ON jobs WHEN OLD.limits IS NOT NULL BEGIN
  INSERT INTO key_asks (key, limit_name, what) SELECT key, limit_name, 'look' FROM places WHERE job_id = OLD.id;
END;
