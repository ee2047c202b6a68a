"""Schedules, their ticks, and notes: the query that a supervisor runs every second, and the guarded write of a batch.

If another transaction has locked the row of a change, or a job that it cancels, the answer is the same as if that
transaction had written first: this schedule waits, the others of its batch do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg

from tenure.errors import BadData, StoreAway
from tenure.ports import Draft
from tenure.ports.schedules import (
    REPLACED,
    Change,
    Due,
    Run,
    Standing,
    Swapped,
    Tick,
    decode_schedule,
    decode_tick,
)
from tenure.stores.postgres.base import PostgresBase
from tenure.stores.postgres.reads import JOB, job_of
from tenure.stores.postgres.server import Connection
from tenure.stores.rules import body_of, check_drafts, check_text, is_id, json_of

_ENDED = "('completed', 'dead', 'cancelled')"
_LAST = "\U0010ffff"  #: the highest code point
_TRIES = 5


# An open tick whose job has ended is found through the job ids of open ticks: a condition on the state alone would let
# the planner start from all jobs that ever ended.
_DUE = f"""
    SELECT @now, (SELECT min(due_at) FROM @.schedule_rows WHERE due_at > @now),
        ARRAY (SELECT name::text FROM @.schedule_rows WHERE due_at <= @now ORDER BY due_at LIMIT %(limit)s) || ARRAY (
            SELECT t.schedule::text FROM @.tick_rows AS t LEFT JOIN @.jobs AS j ON j.id = t.job_id
            WHERE t.open AND (j.id IS NULL OR (j.state || '') IN {_ENDED}) LIMIT %(limit)s)"""

_STANDINGS = f"""
    SELECT s.body, t.body, w.expires_at, j.*
    FROM {{which}} AS s LEFT JOIN @.tick_rows AS t ON t.schedule = s.name AND t.open
    LEFT JOIN LATERAL (SELECT {JOB} FROM @.jobs WHERE id = t.job_id) AS j ON true
    LEFT JOIN @.workers AS w ON w.id = j.worker_id
    ORDER BY s.name, t.tick, t.cause"""

_ALL = _STANDINGS.format(which="@.schedule_rows")
_NAMED = _STANDINGS.format(which="(SELECT * FROM @.schedule_rows WHERE name = ANY (%s::text[]))")

_DECIDED = """
    SELECT body FROM @.tick_rows WHERE NOT open AND decided_at BETWEEN %s AND %s
    ORDER BY decided_at DESC, schedule DESC, tick DESC, cause DESC LIMIT %s OFFSET %s"""

_TICKS = """
    SELECT body FROM @.tick_rows WHERE schedule = %s AND tick < coalesce(%s::timestamptz, 'infinity')
    ORDER BY tick DESC, cause DESC LIMIT %s"""


#: The ids of these jobs that another transaction has locked; the others are locked by this statement.
_HELD = """
    WITH free AS MATERIALIZED (
        SELECT id FROM @.jobs WHERE id = ANY (%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
    SELECT id::text FROM @.jobs WHERE id = ANY (%(ids)s::uuid[]) AND id NOT IN (SELECT id FROM free)"""

# The statement that writes checks the guards, against the rows as they were when it locked them, not as read earlier.
_WRITE = """
    WITH given AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%s::json) AS g (name text, rev integer, due_at timestamptz, body text,
            owner text, gone boolean, replaces text, keep_until timestamptz)
        WHERE (owner IS NULL OR (SELECT died_at IS NULL AND expires_at > @now FROM @.workers WHERE id = g.owner))
          AND (replaces = name OR NOT EXISTS (SELECT FROM @.schedule_rows WHERE name = g.name))
    ), held AS MATERIALIZED (
        SELECT g.* FROM given AS g JOIN @.schedule_rows AS s ON s.name = g.replaces AND s.rev = g.rev
        ORDER BY s.name FOR UPDATE OF s SKIP LOCKED
    ), changed AS (
        UPDATE @.schedule_rows AS s SET name = held.name, rev = held.rev + 1, due_at = held.due_at, body = held.body
        FROM held WHERE s.name = held.replaces AND NOT held.gone RETURNING s.name
    ), made AS (
        INSERT INTO @.schedule_rows (name, rev, due_at, body)
        SELECT name, 1, due_at, body FROM given WHERE rev = 0 AND NOT gone ORDER BY name
        ON CONFLICT DO NOTHING RETURNING name
    ), removed AS (
        DELETE FROM @.schedule_rows AS s USING held WHERE s.name = held.name AND held.gone RETURNING s.name
    ), absent AS (
        SELECT name FROM given AS g
        WHERE rev = 0 AND gone AND NOT EXISTS (SELECT FROM @.schedule_rows WHERE name = g.name)
    ), history AS (
        DELETE FROM @.tick_rows AS t USING given AS g
        WHERE t.schedule = g.name AND g.name IN (SELECT name::text FROM removed UNION ALL SELECT name FROM absent)
          AND (t.open OR t.decided_at > coalesce(g.keep_until, '-infinity')))
    SELECT name::text FROM changed UNION ALL SELECT name::text FROM made UNION ALL SELECT name::text FROM removed
    UNION ALL SELECT name FROM absent"""

#: The job of a guard, which this transaction has just created.
_START = """
    UPDATE @.jobs SET state = 'processing', attempt = 1, worker_id = %s, started_at = @now, last_activity_at = @now
    WHERE id = ANY (%s::uuid[])"""

_DECIDE = """
    INSERT INTO @.tick_rows (schedule, tick, cause, job_id, open, decided_at, body)
    SELECT * FROM json_to_recordset(%s::json) AS t (schedule text, tick timestamptz, cause text, job_id uuid,
        open boolean, decided_at timestamptz, body text)
    ORDER BY schedule, tick, cause
    ON CONFLICT (schedule, tick, cause) DO UPDATE SET job_id = excluded.job_id, open = excluded.open,
        decided_at = excluded.decided_at, body = excluded.body"""

_CANCEL = """
    UPDATE @.jobs SET cancel_reason = %(reason)s, wait_for = NULL, wait_until = NULL, parked = NULL,
        state = CASE state WHEN 'processing' THEN state ELSE 'cancelled' END,
        ended_at = CASE state WHEN 'processing' THEN ended_at ELSE @now END,
        error = CASE state WHEN 'processing' THEN error ELSE %(reason)s END
    WHERE id = ANY (%(ids)s::uuid[]) AND (state || '') IN ('waiting', 'scheduled', 'queued', 'processing')
      AND cancel_reason IS NULL"""


_FORGET_TICKS = """
    DELETE FROM @.tick_rows WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM @.tick_rows WHERE NOT open AND decided_at < @now - %s * interval '1 second'
        ORDER BY decided_at LIMIT %s FOR UPDATE SKIP LOCKED))"""

_FORGET_NOTES = """
    DELETE FROM @.notes WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM @.notes WHERE expires_at <= @now ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED))"""


_NOTE = "SELECT value, coalesce(expires_at > @now, true) FROM @.notes WHERE key = %s FOR UPDATE"
_SET_NOTE = "UPDATE @.notes SET value = %s, expires_at = @now + %s::float8 * interval '1 second' WHERE key = %s"
_MAKE_NOTE = """
    INSERT INTO @.notes (value, expires_at, key) VALUES (%s, @now + %s::float8 * interval '1 second', %s)
    ON CONFLICT DO NOTHING"""
_REMOVE_NOTE = "DELETE FROM @.notes WHERE key = %s"

# Sorted by bytes, which is the order of code points: all keys with one prefix are adjacent.
_NOTES = """
    SELECT key, value FROM @.notes WHERE key >= %s AND key <= %s AND coalesce(expires_at > @now, true) ORDER BY key"""


class PostgresSchedules(PostgresBase):
    """The verbs of `ScheduleStore`."""

    def due(self, *, limit: int = 500) -> Due:
        sql = self._sql(_DUE)
        now, later, names = self._server.run(lambda c: c.execute(sql, {"limit": limit}, binary=True).fetchall())[0]
        found = {each.schedule.name: each for each in self.schedules(names)} if names else {}
        standings = [found[name] for name in dict.fromkeys(names) if name in found]
        return Due(now.astimezone(UTC), standings, None if later is None else (later - now).total_seconds())

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        rows = self._server.read(_ALL) if names is None else self._server.read(_NAMED, list(names))
        runs: dict[str, list[Run]] = {}
        for schedule, tick, locked_until, *job in rows:
            open_runs = runs.setdefault(schedule, [])
            if tick is not None:
                open_runs.append(Run(decode_tick(tick), None if job[0] is None else job_of(job), locked_until))
        return [Standing(decode_schedule(schedule), tuple(open_runs)) for schedule, open_runs in runs.items()]

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        return [decode_tick(body) for (body,) in self._server.read(_TICKS, name, before, limit)]

    def decided(self, since: datetime, until: datetime, *, skip: int = 0, limit: int = 50) -> list[Tick]:
        return [decode_tick(body) for (body,) in self._server.read(_DECIDED, since, until, limit, skip)]

    def change(self, changes: Sequence[Change]) -> list[bool]:
        """Changes of the same schedule are made one after another, those of different schedules together."""

        def step(connection: Connection) -> list[bool]:
            return self._change_all(connection, changes)

        try:
            return self._locking(step, sent=0)
        except BadData as error:  # a schedule just got a name that was free when the statement began: now it is not
            if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                raise
        return self._locking(step, sent=0)

    def _change_all(self, connection: Connection, changes: Sequence[Change]) -> list[bool]:
        landed: set[int] = set()
        left = dict(enumerate(changes))
        while left:
            landed |= self._change(connection, {n: left.pop(n) for n in _apart(left)})
        return [n in landed for n in range(len(changes))]

    def _change(self, connection: Connection, changes: Mapping[int, Change]) -> set[int]:
        """The changes that landed; no two have a name in common."""
        cancels = [job_id for each in changes.values() for job_id in each.cancel if is_id(job_id)]
        held = {row[0] for row in connection.execute(self._sql(_HELD), {"ids": cancels})} if cancels else set[str]()
        rows = [_row(each) for each in changes.values() if held.isdisjoint(each.cancel)]
        written = {row[0] for row in connection.execute(self._sql(_WRITE), (json_of(rows),))}
        landed = {n: each for n, each in changes.items() if each.schedule.name in written}
        made = [each for each in landed.values() if not each.delete]
        check_drafts(draft for each in made for draft in each.drafts)
        drafts = [draft for each in made for draft in each.drafts]
        stands = iter(self._enqueue(connection, drafts) if drafts else [])
        ticks: dict[tuple[str, datetime, str], dict[str, Any]] = {}
        for each in made:
            jobs = {draft.id: next(stands) for draft in each.drafts}
            if each.owner is not None:
                connection.execute(self._sql(_START), (each.owner, [job.id for job in jobs.values() if job.created]))
            follow = {draft_id: job.id for draft_id, job in jobs.items()}
            for tick in each.ticks:
                ticks[each.schedule.name, tick.tick, tick.cause] = _tick_row(each.schedule.name, tick, follow)
        if ticks:
            connection.execute(self._sql(_DECIDE), (json_of(list(ticks.values())),))
        cancels = [job_id for each in made for job_id in each.cancel if is_id(job_id)]
        if cancels:
            connection.execute(self._sql(_CANCEL), {"ids": cancels, "reason": REPLACED})
        return set(landed)

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        gone = self._server.run(lambda each: each.execute(self._sql(_FORGET_TICKS), (keep, limit)).rowcount)
        return gone + self._server.run(lambda each: each.execute(self._sql(_FORGET_NOTES), (limit - gone,)).rowcount)

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        check_text(key, old, new)
        check_drafts(drafts)
        return self._locking(lambda connection: self._swap(connection, key, old, new, ttl, drafts))

    def _swap(
        self,
        connection: Connection,
        key: str,
        old: str | None,
        new: str | None,
        ttl: float | None,
        drafts: Sequence[Draft],
    ) -> Swapped:
        for _ in range(_TRIES):
            row = connection.execute(self._sql(_NOTE), (key,)).fetchone()
            stands: str | None = row[0] if row and row[1] else None
            if stands not in (old, new):
                return Swapped(False, stands)
            if new is None:
                connection.execute(self._sql(_REMOVE_NOTE), (key,))
            elif connection.execute(self._sql(_SET_NOTE if row else _MAKE_NOTE), (new, ttl, key)).rowcount == 0:
                continue  # another caller created it between the read and the write
            if drafts and stands == old != new:
                self._enqueue(connection, drafts)
            return Swapped(True, new)
        raise StoreAway(f"the note {key!r} is created and removed faster than it can be read; try again")

    def notes(self, prefix: str) -> dict[str, str]:
        return dict(self._server.fetch(_NOTES, prefix, prefix + _LAST))


def _apart(changes: Mapping[int, Change]) -> list[int]:
    """The first of these changes for each schedule: one statement makes its changes in no order."""
    seen, found = set[str](), list[int]()
    for n, each in changes.items():
        names = {each.schedule.name, each.replaces}
        if names.isdisjoint(seen):
            found.append(n)
        seen |= names
    return found


def _row(change: Change) -> dict[str, Any]:
    schedule = change.schedule
    return {
        "name": schedule.name,
        "rev": schedule.rev,
        "due_at": schedule.due_at,
        "body": body_of(change.stored),
        "owner": change.owner,
        "gone": change.delete,
        "replaces": change.replaces,
        "keep_until": change.keep_until,
    }


def _tick_row(name: str, tick: Tick, follow: Mapping[str, str]) -> dict[str, Any]:
    job_id = follow.get(tick.job_id or "", tick.job_id)
    if job_id != tick.job_id:
        tick = replace(tick, job_id=job_id)
    return {
        "schedule": name,
        "tick": tick.tick,
        "cause": tick.cause,
        "job_id": job_id,
        "open": tick.status == "open",
        "decided_at": tick.decided_at,
        "body": body_of(tick),
    }
