-- How many jobs may share a process with this one, if it is solo. Safe while workers of the version before run: these run
-- every solo job alone, and leave the value as it is. No row is rewritten. Claims wait until the commit, for a moment;
-- an open transaction that wrote jobs (`tx=`) must not make them wait for long: rather than that, migrating is refused
-- and can be tried again.
SET LOCAL lock_timeout = '1s';
ALTER TABLE @.jobs ADD COLUMN together smallint NOT NULL DEFAULT 1;
