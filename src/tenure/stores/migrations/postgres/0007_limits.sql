-- Limits: keys, the places that jobs hold, what is told of keys. Read it in an incident:
--   SELECT * FROM tenure.places WHERE key = 'shop:7';  SELECT id, parked FROM tenure.jobs WHERE parked IS NOT NULL;
-- Safe while workers of the version before run: what they end frees its places, and a job with limits that they would
-- queue is parked, by the trigger. No row is rewritten, but an index of jobs is built: a fraction of a second for a
-- million rows, in which whoever uses that table waits. An open transaction that wrote jobs (`tx=`) must not make them
-- wait for longer: rather than that, migrating is refused and can be tried again.
SET LOCAL lock_timeout = '1s';

ALTER TABLE @.jobs
  ADD COLUMN limits text,                  -- [[key, limit], …]; none: it has none
  ADD COLUMN parked text COLLATE "C",      -- the key under which it waits for a place
  ADD COLUMN due_at timestamptz;           -- when it was due first: its order under its keys
CREATE INDEX jobs_parked ON @.jobs (parked, queue, (-priority), due_at, id) WHERE parked IS NOT NULL;

-- A job with limits that is queued or processing has one for each of its keys. Written only by who has locked its job's
-- row. No foreign key: that would cost each job that is deleted a look here; the trigger looks only for those with limits.
CREATE TABLE @.places (
  key         text COLLATE "C" NOT NULL,
  limit_name  text NOT NULL,
  job_id      uuid NOT NULL,
  queue       text COLLATE "C" NOT NULL,
  begun       boolean NOT NULL DEFAULT false,
  admitted_at timestamptz NOT NULL,
  PRIMARY KEY (key, job_id)
) WITH (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX places_of_job ON @.places (job_id);
CREATE INDEX places_unbegun ON @.places (queue, admitted_at, key, job_id) WHERE NOT begun;

-- What `admit` must know of a key. look: there may be room; begun: a job began then; pause: it is paused until then (Unix
-- times); all: look at all keys of a limit, those after `key`. Everybody inserts, only `admit` deletes.
CREATE TABLE @.key_asks (
  seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key        text COLLATE "C" NOT NULL,
  limit_name text NOT NULL,
  what       text NOT NULL DEFAULT 'look' CHECK (what IN ('look', 'begun', 'pause', 'all')),
  at         float8
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX key_asks_by_key ON @.key_asks (key);

-- What is declared, and what an operator has set: for a limit, or for one key.
CREATE TABLE @.limits (
  key  boolean NOT NULL,
  name text COLLATE "C" NOT NULL,
  rev  integer NOT NULL,
  body text NOT NULL,
  PRIMARY KEY (key, name)
);

-- What is known of keys at run time, in Unix times. Only who has the lock of `admit` writes here.
CREATE TABLE @.limit_keys (
  key          text COLLATE "C" PRIMARY KEY,
  limit_name   text NOT NULL,
  tokens       float8,                     -- of its bucket at the time `at`; none: it is full
  at           float8,
  full_at      float8,
  due          float8,                     -- when it may have room again by itself
  due_found_at float8,                     -- if that is later than now, the clock was set back
  slow_queue   text,                       -- it did not use its places, so it comes last
  slow_until   float8
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX limit_keys_due ON @.limit_keys (due) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_due_found ON @.limit_keys (due_found_at) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_full ON @.limit_keys (full_at);

-- Queues that were passed over because nobody served them.
CREATE TABLE @.idle_keys (
  queue      text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  limit_name text NOT NULL,
  PRIMARY KEY (queue, key)
);

-- Whatever ends a job with limits, in whichever version, its places go, and what is to be looked at is told; nothing but
-- `admit`, which takes `parked` away in the same write, queues one.
CREATE FUNCTION @.limited_moved() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  IF OLD.state = 'queued' AND NEW.state = 'processing' THEN
    WITH begun AS (UPDATE @.places SET begun = true WHERE job_id = NEW.id RETURNING key, limit_name)
    INSERT INTO @.key_asks (key, limit_name, what, at)
    SELECT key, limit_name, 'begun', date_part('epoch', NEW.started_at) FROM begun ORDER BY key;
  ELSIF OLD.state IN ('queued', 'processing') AND NEW.state NOT IN ('queued', 'processing') THEN
    WITH freed AS (DELETE FROM @.places WHERE job_id = NEW.id RETURNING key, limit_name)
    INSERT INTO @.key_asks (key, limit_name) SELECT key, limit_name FROM freed ORDER BY key;
  END IF;
  IF (CASE NEW.state
    WHEN 'queued' THEN OLD.state <> 'queued' AND (OLD.parked IS NULL OR NEW.parked IS NOT NULL)
    WHEN 'waiting' THEN NEW.parked IS NULL
      AND (OLD.state = 'queued' OR (OLD.state = 'processing' AND NEW.last_outcome <> 'suspended'))
    END)
  THEN
    UPDATE @.jobs SET state = 'waiting', parked = limits::json -> 0 ->> 0,
      due_at = CASE WHEN OLD.state IN ('queued', 'processing') THEN coalesce(due_at, run_at) ELSE run_at END,
      wait_until = CASE WHEN attempt = 0 THEN expires_at END
    WHERE id = NEW.id;
    INSERT INTO @.key_asks (key, limit_name) VALUES (NEW.limits::json -> 0 ->> 0, NEW.limits::json -> 0 ->> 1);
  ELSIF NEW.state <> 'waiting' AND NEW.parked IS NOT NULL THEN
    UPDATE @.jobs SET parked = NULL WHERE id = NEW.id;
  END IF;
  RETURN NULL;
END $function$;
CREATE TRIGGER limited_moved AFTER UPDATE OF state ON @.jobs FOR EACH ROW
  WHEN (NEW.limits IS NOT NULL) EXECUTE FUNCTION @.limited_moved();

CREATE FUNCTION @.limited_gone() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  WITH freed AS (DELETE FROM @.places WHERE job_id = OLD.id RETURNING key, limit_name)
  INSERT INTO @.key_asks (key, limit_name) SELECT key, limit_name FROM freed ORDER BY key;
  RETURN OLD;
END $function$;
CREATE TRIGGER limited_gone BEFORE DELETE ON @.jobs FOR EACH ROW
  WHEN (OLD.limits IS NOT NULL) EXECUTE FUNCTION @.limited_gone();
