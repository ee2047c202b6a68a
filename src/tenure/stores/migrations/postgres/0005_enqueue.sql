-- Enqueueing from SQL: docs/sql.md is its contract. Safe while workers of the version before run: no table is touched.
-- What it refuses is what the client refuses, and a row that it stores is one that the client could have stored.
CREATE FUNCTION @.enqueue(
  task         text,
  args         text        DEFAULT '{}',
  queue        text        DEFAULT 'default',
  priority     integer     DEFAULT 0,
  run_at       timestamptz DEFAULT NULL,
  delay        interval    DEFAULT NULL,
  expires      interval    DEFAULT NULL,
  unique_key   text        DEFAULT NULL,
  timeout      interval    DEFAULT NULL,
  max_failures integer     DEFAULT 10
) RETURNS uuid LANGUAGE plpgsql SECURITY INVOKER VOLATILE AS $function$
DECLARE
  right_name CONSTANT text := '^[A-Za-z_][A-Za-z0-9_.-]{0,99}$';
  longest    CONSTANT integer := 262144;  -- bytes of arguments: the default of TENURE_MAX_PAYLOAD
  century    CONSTANT interval := interval '36525 days';
  namespace  CONSTANT text := (SELECT n.nspname FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = '@.jobs'::pg_catalog.regclass);
  channel    CONSTANT text := 'tenure:' || namespace;
  micros     CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
  asked_at   CONSTANT timestamptz := statement_timestamp();
  due        timestamptz;
  new_state  text;
  job_id     uuid;
  kind       text;
  flaw       text;
  todo       text := '';
BEGIN
  IF enqueue.task IS NULL OR enqueue.task COLLATE "C" !~ right_name THEN
    flaw := format('task: expected letters, digits and _ . - (at most 100, a letter or _ first), got %L', enqueue.task);
    todo := 'Give the name under which the task is registered: tenure tasks lists them.';
  ELSIF enqueue.queue IS NULL OR enqueue.queue COLLATE "C" !~ right_name THEN
    flaw := format('queue: expected letters, digits and _ . - (at most 100, a letter or _ first), got %L',
      enqueue.queue);
    todo := 'Leave it out for the queue "default".';
  ELSIF enqueue.queue = 'guard' THEN
    flaw := 'queue: ''guard'' is reserved for guards, and no worker claims from it';
    todo := 'Use another name.';
  ELSIF enqueue.priority IS NULL OR enqueue.priority NOT BETWEEN -100 AND 100 THEN
    flaw := format('priority: expected a whole number from -100 to 100 (higher runs first), got %s',
      coalesce(enqueue.priority::text, 'NULL'));
  ELSIF enqueue.max_failures IS NULL OR enqueue.max_failures < 1 THEN
    flaw := format('max_failures: expected a whole number from 1 (1 = no retry), got %s',
      coalesce(enqueue.max_failures::text, 'NULL'));
  ELSIF enqueue.delay IS NOT NULL AND enqueue.run_at IS NOT NULL THEN
    flaw := 'delay and run_at both say when the job is due';
    todo := 'Give only one of them.';
  ELSIF enqueue.run_at NOT BETWEEN '1970-01-01 00:00+00' AND '9000-12-31 23:59:59+00' THEN
    flaw := format('run_at: expected a year from 1970 to 9000, got %s', enqueue.run_at);
  ELSIF enqueue.delay NOT BETWEEN interval '0' AND century THEN
    flaw := format('delay: expected between 0s and 100 years, got %s', enqueue.delay);
  ELSIF enqueue.expires <= interval '0' OR enqueue.expires > century THEN
    flaw := format('expires: expected more than 0s and at most 100 years, got %s', enqueue.expires);
    todo := 'It counts from when the job is due.';
  ELSIF enqueue.timeout <= interval '0' OR enqueue.timeout > century THEN
    flaw := format('timeout: expected more than 0s and at most 100 years, got %s', enqueue.timeout);
  ELSIF length(enqueue.unique_key) NOT BETWEEN 1 AND 200 OR enqueue.unique_key COLLATE "C" ~ '[\x01-\x1f\x7f-\x9f]' THEN
    flaw := format('unique_key: expected 1 to 200 characters without control characters, got %s characters',
      length(enqueue.unique_key));
    todo := 'Make a shorter key: of an id, or of a hash.';
  END IF;
  IF flaw IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = flaw, ERRCODE = 'invalid_parameter_value', HINT = todo;
  END IF;
  IF octet_length(enqueue.args) > longest THEN
    RAISE EXCEPTION USING ERRCODE = 'program_limit_exceeded',
      MESSAGE = format('args: %s bytes as JSON, the limit is %s', octet_length(enqueue.args), longest),
      HINT = 'Store a path or a key instead.';
  END IF;
  BEGIN
    kind := coalesce(jsonb_typeof(enqueue.args::jsonb), 'NULL');
  EXCEPTION WHEN OTHERS THEN
    RAISE EXCEPTION USING MESSAGE = format('args: expected JSON, got %L: %s', left(enqueue.args, 60), SQLERRM),
      ERRCODE = 'invalid_text_representation',
      HINT = 'Write arguments by name, as {"order": 7}, or build them: jsonb_build_object(''order'', 7)::text.';
  END;
  IF kind <> 'object' THEN
    RAISE EXCEPTION USING MESSAGE = format('args: expected arguments by name, a JSON object, got %s', kind),
      ERRCODE = 'invalid_parameter_value',
      HINT = 'Write {"order": 7}, or leave it out if the task takes no arguments.';
  END IF;

  due := coalesce(asked_at + enqueue.delay, enqueue.run_at, asked_at);
  new_state := CASE WHEN due > asked_at THEN 'scheduled' ELSE 'queued' END;
  -- A UUIDv7: ids rise, as those of the client do, so that jobs of one transaction keep their order.
  job_id := (lpad(to_hex(micros / 1000), 12, '0') || '7' || lpad(to_hex(micros % 1000 * 4096 / 1000), 3, '0')
    || right(gen_random_uuid()::text, 17))::uuid;
  FOR tries IN 1..5 LOOP
    INSERT INTO @.jobs AS j (id, state, task, queue, priority, payload, meta, unique_key, isolated, solo, timeout,
      max_failures, max_crashes, retry_base, retry_cap, enqueued_at, run_at, expires_at)
    VALUES (job_id, new_state, enqueue.task, enqueue.queue, enqueue.priority, enqueue.args, '{}', enqueue.unique_key,
      false, false, extract(epoch FROM enqueue.timeout), enqueue.max_failures, 3, 1.0, 30.0, asked_at, due,
      due + enqueue.expires)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
      IF octet_length(channel) <= 63 THEN  -- else workers find the job when they look, within seconds
        PERFORM pg_notify(channel,
          format('{"%s": ["%s"]}', CASE new_state WHEN 'scheduled' THEN 'due' ELSE 'queued' END, enqueue.queue));
      END IF;
      RETURN job_id;
    END IF;
    SELECT j.id INTO job_id FROM @.jobs AS j WHERE j.task = enqueue.task AND j.unique_key = enqueue.unique_key
      AND j.state IN ('scheduled', 'queued', 'processing');
    IF FOUND THEN
      RETURN job_id;
    END IF;
    job_id := gen_random_uuid();
  END LOOP;
  RAISE EXCEPTION USING ERRCODE = 'serialization_failure',
    MESSAGE = 'unique_key: it changed its holder faster than the holder could be read', HINT = 'Enqueue again.';
END
$function$;
