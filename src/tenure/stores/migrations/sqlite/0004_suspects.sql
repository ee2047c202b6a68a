-- How many jobs may share a process with this one, if it is solo. Safe while workers of the version before run: these run
-- every solo job alone, and leave the value as it is.
ALTER TABLE jobs ADD COLUMN together INTEGER NOT NULL DEFAULT 1;
