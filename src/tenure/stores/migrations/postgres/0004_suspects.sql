-- How many jobs may share a process with this one, if it is solo. Safe while workers of the version before run: these run
-- every solo job alone, and leave the value as it is. No row is rewritten. Claims wait until the commit, for a moment;
-- an open transaction that wrote jobs (`tx=`) must not make them wait for long: rather than that, `migrate` lets
-- them go first and tries again.
SET LOCAL lock_timeout = '1500ms';  -- longer than deadlock_timeout, after which autovacuum gives way
ALTER TABLE @.jobs ADD COLUMN together smallint NOT NULL DEFAULT 1;
