-- What an attempt logged last, for people.
CREATE TABLE job_logs (
  job_id  TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
  attempt INTEGER NOT NULL,
  lines   TEXT NOT NULL,
  PRIMARY KEY (job_id, attempt)
) STRICT;

ALTER TABLE workers ADD COLUMN memory INTEGER;  -- bytes of its process, when it was renewed last
