-- Jobs that wait: edges, asks, signals, flows; limits: keys, the places that jobs hold, what is told of keys. In an incident:
--   SELECT * FROM tenure.edges WHERE child = '…' AND state <> 'closed';  SELECT count(*) FROM tenure.asks;
--   SELECT * FROM tenure.places WHERE key = 'shop:7';  SELECT id, parked FROM tenure.jobs WHERE parked IS NOT NULL;
-- Safe while workers of the version before run: triggers ask for what they end and free its places, and park a job with
-- limits that they would queue. No row is rewritten, but five indexes of jobs are built: about a second for a million rows,
-- in which every session that uses that table waits. An open transaction that wrote jobs (`tx=`) must not make them wait for longer:
-- rather than that, `migrate` lets them go first and tries again.
SET LOCAL lock_timeout = '1500ms';  -- longer than deadlock_timeout, after which autovacuum gives way

ALTER TABLE @.jobs
  -- true: edges lead to or from it, so its end is asked, and it is not pruned. Else none, and never false: all columns
  -- here that are in an index are empty in a plain job, as every update compares them, and walks to those with a value.
  ADD COLUMN linked boolean,
  ADD COLUMN flow uuid,
  ADD COLUMN wait_for text COLLATE "C",              -- own:NAME or shared:KEY
  ADD COLUMN wait_until timestamptz,
  ADD COLUMN limits text,                            -- [[key, limit], …]; none: it has none
  ADD COLUMN parked text COLLATE "C",                -- the key under which it waits for a place
  ADD COLUMN due_at timestamptz,                     -- when it was due first: its order under its keys
  DROP CONSTRAINT jobs_owned_while_processing,
  -- Not validated, which would read the whole table: every row met the narrower one.
  ADD CONSTRAINT jobs_owned_while_processing CHECK (CASE
    WHEN state = 'processing' THEN worker_id IS NOT NULL AND started_at IS NOT NULL AND ended_at IS NULL
    WHEN state IN ('waiting', 'queued', 'scheduled') THEN worker_id IS NULL AND ended_at IS NULL
    WHEN state IN ('completed', 'dead', 'cancelled') THEN worker_id IS NULL AND ended_at IS NOT NULL
    ELSE false END) NOT VALID;

ALTER TABLE @.workers ADD COLUMN protocol integer NOT NULL DEFAULT 1;

-- `child` waits until `parent` has completed, or ended. A parent may be gone: it has no foreign key.
-- new: nobody has looked at the parent since; armed: the parent's end will be asked; then closed or skipped.
CREATE TABLE @.edges (
  child   uuid NOT NULL REFERENCES @.jobs ON DELETE CASCADE,
  parent  uuid NOT NULL,
  place   integer NOT NULL,
  "until" text NOT NULL CHECK ("until" IN ('completed', 'ended')),
  mine    boolean NOT NULL,
  state   text NOT NULL CHECK (state IN ('new', 'armed', 'closed', 'skipped')),
  live    boolean NOT NULL DEFAULT true,    -- the end of its child has not been worked off: its parent is kept
  PRIMARY KEY (parent, child)
) WITH (
  fillfactor = 80,
  autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX edges_in_order ON @.edges (child, place);
CREATE INDEX edges_open ON @.edges (child, state, parent) WHERE state IN ('new', 'armed');
CREATE INDEX edges_live ON @.edges (parent, child) WHERE live;

-- What may have ended a wait: the id of a job, or the key of a shared signal. The rest says how far it was worked off.
CREATE TABLE @.asks (
  id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  item  text NOT NULL,
  phase smallint NOT NULL DEFAULT 0,
  place integer NOT NULL DEFAULT -1,
  start uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE @.signals (
  job_id  uuid NOT NULL REFERENCES @.jobs ON DELETE CASCADE,
  key     text COLLATE "C" NOT NULL,
  value   text NOT NULL,
  sent_at timestamptz NOT NULL,
  PRIMARY KEY (job_id, key)
);

CREATE TABLE @.shared_signals (
  key     text COLLATE "C" PRIMARY KEY,
  value   text NOT NULL,
  sent_at timestamptz NOT NULL
);
CREATE INDEX shared_signals_sent ON @.shared_signals (sent_at);

CREATE TABLE @.flows (
  id         uuid PRIMARY KEY,
  name       text NOT NULL,
  created_at timestamptz NOT NULL
);
CREATE INDEX flows_created ON @.flows (created_at, id);

-- Before its edges go along: those that wait for it, and those that were kept for it.
CREATE FUNCTION @.ask_gone() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  INSERT INTO @.asks (item) SELECT OLD.id UNION ALL SELECT parent FROM @.edges WHERE child = OLD.id;
  RETURN OLD;
END $function$;
CREATE TRIGGER ask_gone BEFORE DELETE ON @.jobs FOR EACH ROW WHEN (OLD.linked) EXECUTE FUNCTION @.ask_gone();

-- A waiting job holds its key, and a run of a schedule that waits has not ended.
DO $block$ BEGIN
  EXECUTE replace(pg_get_functiondef('@.enqueue'::regproc), $$('scheduled', 'queued', 'processing')$$,
    $$('waiting', 'scheduled', 'queued', 'processing')$$);
END $block$;

CREATE OR REPLACE VIEW @.schedules AS
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
  WHERE t.schedule = s.name AND t.open AND j.attempt > 0
    AND j.state IN ('processing', 'waiting', 'scheduled', 'queued')) AS r
LEFT JOIN LATERAL (
  SELECT a.started_at, j.ended_at,
    CASE j.state WHEN 'completed' THEN 'success' WHEN 'dead' THEN 'failure' ELSE 'cancelled' END AS status
  FROM @.tick_rows AS t JOIN @.jobs AS j ON j.id = t.job_id
  CROSS JOIN LATERAL (
    SELECT least(j.started_at, min(started_at)) AS started_at FROM @.attempts WHERE job_id = j.id) AS a
  WHERE t.schedule = s.name AND t.open AND j.ended_at IS NOT NULL AND a.started_at IS NOT NULL
  ORDER BY j.ended_at DESC LIMIT 1) AS e ON true;

CREATE UNIQUE INDEX jobs_held ON @.jobs (task, unique_key)
  WHERE unique_key IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'processing');
CREATE INDEX jobs_waiting ON @.jobs (wait_until, queue) WHERE state = 'waiting';
-- Only a query that says starts_with fits: with the plain condition the planner would prefer it to the other indexes.
CREATE INDEX jobs_waited ON @.jobs (run_at) WHERE starts_with(state, 'waiting');
-- First what costs least to look at: it is asked of every row that is written.
CREATE INDEX jobs_holding ON @.jobs (ended_at) WHERE linked AND state = 'dead';
CREATE INDEX jobs_shared ON @.jobs (wait_for, id)
  WHERE wait_for IS NOT NULL AND state = 'waiting' AND starts_with(wait_for, 'shared:');
CREATE INDEX jobs_flow ON @.jobs (flow, state) WHERE flow IS NOT NULL;
CREATE INDEX jobs_parked ON @.jobs (parked, queue, solo, (-priority), due_at, id) WHERE parked IS NOT NULL;
DROP INDEX @.jobs_unique;
ALTER INDEX @.jobs_held RENAME TO jobs_unique;

-- A job with limits that is queued or processing has one for each of its keys. Written only by the session that locked its job's
-- row. No foreign key: that would cost each job that is deleted a look here; the trigger looks only for those with limits.
CREATE TABLE @.places (
  key         text COLLATE "C" NOT NULL,
  limit_name  text NOT NULL,
  job_id      uuid NOT NULL,
  admitted_at timestamptz NOT NULL,
  PRIMARY KEY (key, job_id)
) WITH (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX places_of_job ON @.places (job_id);

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
  key   boolean NOT NULL,
  name  text COLLATE "C" NOT NULL,
  rev   integer NOT NULL,
  body  text NOT NULL,
  rated boolean NOT NULL,                  -- it has a rate: begins are told
  fades float8,                            -- Unix time at which it can go; none: it is kept
  PRIMARY KEY (key, name)
);
CREATE INDEX limits_fades ON @.limits (fades) WHERE fades IS NOT NULL;
CREATE INDEX limits_rated ON @.limits (name) WHERE rated;

-- What is known of keys at run time, in Unix times. Only the session with the lock of `admit` writes here.
CREATE TABLE @.limit_keys (
  key          text COLLATE "C" PRIMARY KEY,
  limit_name   text NOT NULL,
  tokens       float8,                     -- of its bucket at the time `at`; none: it is full
  at           float8,
  full_at      float8,
  due          float8,                     -- when it may have room again by itself
  due_found_at float8,                     -- if that is later than now, the clock was set back
  slow_queue   text,                       -- these of its jobs did not use their places, and come last
  slow_solo    boolean,
  slow_until   float8
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX limit_keys_due ON @.limit_keys (due) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_due_found ON @.limit_keys (due_found_at) WHERE due IS NOT NULL;
CREATE INDEX limit_keys_fades ON @.limit_keys (greatest(full_at, slow_until, 0)) WHERE due IS NULL;

-- Queues that were passed over because nobody served them.
CREATE TABLE @.idle_keys (
  queue      text COLLATE "C" NOT NULL,
  key        text COLLATE "C" NOT NULL,
  limit_name text NOT NULL,
  PRIMARY KEY (queue, key)
);

-- Whatever ends a linked job, in whichever version, its ask is stored with it; whatever ends a job with limits, its places
-- go, and what is to be looked at is told; nothing but `admit`, which takes `parked` away in the same write, queues one.
-- One trigger, as each costs every job; its condition costs less than a call, and an admission needs none.
CREATE FUNCTION @.job_moved() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  IF NEW.linked AND NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL THEN
    INSERT INTO @.asks (item) VALUES (NEW.id);
  END IF;
  IF NEW.limits IS NULL THEN
    RETURN NULL;
  END IF;
  IF OLD.state = 'queued' AND NEW.state = 'processing' THEN
    -- In an order that only this index has: where none is rated, all limits would be read to find out.
    IF (SELECT true FROM @.limits WHERE rated ORDER BY name LIMIT 1) THEN
      INSERT INTO @.key_asks (key, limit_name, what, at)
      SELECT key, limit_name, 'begun', date_part('epoch', NEW.started_at) FROM @.places AS p
      WHERE job_id = NEW.id
        AND (EXISTS (SELECT FROM @.limits AS l WHERE NOT l.key AND l.name = p.limit_name AND l.rated)
          OR EXISTS (SELECT FROM @.limits AS l WHERE l.key AND l.name = p.key AND l.rated))
      ORDER BY key;
    END IF;
  ELSIF OLD.state IN ('queued', 'processing') AND NEW.state NOT IN ('queued', 'processing') THEN
    WITH freed AS (DELETE FROM @.places WHERE job_id = OLD.id RETURNING key, limit_name)
    INSERT INTO @.key_asks (key, limit_name) SELECT key, limit_name FROM freed ORDER BY key;
  END IF;
  IF (CASE NEW.state
    WHEN 'queued' THEN OLD.state <> 'queued' AND (OLD.parked IS NULL OR NEW.parked IS NOT NULL)
    WHEN 'waiting' THEN NEW.parked IS NULL
      AND (OLD.state = 'queued' OR (OLD.state = 'processing' AND NEW.last_outcome <> 'suspended'))
    ELSE false END)
  THEN
    UPDATE @.jobs SET state = 'waiting', parked = limits::json -> 0 ->> 0,
      due_at = CASE WHEN OLD.state IN ('queued', 'processing') THEN coalesce(due_at, run_at) ELSE run_at END,
      wait_until = CASE WHEN attempt = 0 THEN expires_at END
    WHERE id = NEW.id;
    INSERT INTO @.key_asks (key, limit_name) VALUES (NEW.limits::json -> 0 ->> 0, NEW.limits::json -> 0 ->> 1);
  ELSIF NEW.parked IS NOT NULL AND NEW.state NOT IN ('waiting', 'queued') THEN
    UPDATE @.jobs SET parked = NULL WHERE id = NEW.id;
  END IF;
  RETURN NULL;
END $function$;
CREATE TRIGGER job_moved AFTER UPDATE OF state ON @.jobs FOR EACH ROW
  WHEN ((NEW.linked AND NEW.ended_at IS NOT NULL)
    OR (NEW.limits IS NOT NULL AND NOT (NEW.state = 'queued' AND OLD.parked IS NOT NULL AND NEW.parked IS NULL)))
  EXECUTE FUNCTION @.job_moved();

CREATE FUNCTION @.limited_gone() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
  WITH gone AS (DELETE FROM @.places WHERE job_id = OLD.id RETURNING key, limit_name)
  INSERT INTO @.key_asks (key, limit_name) SELECT key, limit_name FROM gone ORDER BY key;
  RETURN OLD;
END $function$;
CREATE TRIGGER limited_gone BEFORE DELETE ON @.jobs FOR EACH ROW
  WHEN (OLD.limits IS NOT NULL) EXECUTE FUNCTION @.limited_gone();
