"""Places of keys in SQLite, as steps inside a transaction: a job is parked, and `admit` lets the next ones go on."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from math import ceil

import apsw

from tenure.core.lifecycle import EXPIRED
from tenure.core.limits import Bucket, Key
from tenure.ports import LimitRow
from tenure.ports.limits import decode_limit
from tenure.stores.fields import keys_of
from tenure.stores.places import Candidate, Lane, State, fades, paused_by_jobs, serve, state_of
from tenure.stores.rules import json_of
from tenure.stores.sqlite.file import fetch, first

#: Wherever another job would be queued: `state` is set beside it.
PARKED = """
    parked = limits ->> '$[0][0]', due_at = iif(limits IS NULL, NULL, coalesce({due_at}, run_at)),
    wait_until = iif(limits IS NOT NULL AND attempt = 0, expires_at, NULL)"""
PARK = f"UPDATE jobs SET {PARKED.format(due_at='due_at')} WHERE id = ?"
_ASK_FOR = """
    INSERT INTO key_asks (key, limit_name, what)
    SELECT limits ->> '$[0][0]', limits ->> '$[0][1]', 'look' FROM jobs WHERE id = ? AND parked IS NOT NULL"""
_SERVED = """
    SELECT DISTINCT q.value FROM workers AS w, json_each(w.queues) AS q
    WHERE w.died_at IS NULL AND w.boot_id = :boot_id AND w.expires_boot > :boot
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = q.value AND paused_at IS NOT NULL)"""
#: The queues of which jobs are parked under a key: one look into the index for each.
_QUEUES = """
    WITH RECURSIVE names (queue) AS (
        SELECT min(queue) FROM jobs INDEXED BY jobs_parked WHERE parked = :key
        UNION ALL
        SELECT (SELECT min(queue) FROM jobs INDEXED BY jobs_parked WHERE parked = :key AND queue > names.queue)
        FROM names WHERE names.queue IS NOT NULL)
    SELECT queue FROM names WHERE queue IS NOT NULL"""
_NEXT = """
    SELECT -priority, due_at, id, limits, attempt = 0 AND expires_at < ? FROM jobs INDEXED BY jobs_parked
    WHERE parked = ? AND queue = ? AND solo = ? ORDER BY priority DESC, due_at, id LIMIT ?"""
_BUCKET = "SELECT tokens, at, slow_queue, slow_solo, slow_until FROM limit_keys WHERE key = ?"
_HELD = "SELECT count(*), count(*) FILTER (WHERE NOT begun) FROM places WHERE key = ?"
_KEEP = """
    INSERT INTO limit_keys (key, limit_name, tokens, at, full_at, due, found_at, fades)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
        iif(EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked = ?1), NULL, ?8))
    ON CONFLICT DO UPDATE SET limit_name = excluded.limit_name, tokens = excluded.tokens, at = excluded.at,
        full_at = excluded.full_at, due = coalesce(excluded.due, due), found_at = coalesce(excluded.found_at, found_at),
        fades = excluded.fades"""
_ASK_DUE = """
    INSERT INTO key_asks (key, limit_name, what)
    SELECT key, limit_name, 'look' FROM limit_keys WHERE due IS NOT NULL AND (due <= :now OR found_at > :now)"""
_ADMIT = """
    UPDATE jobs SET state = 'queued', run_at = ?, parked = NULL, wait_until = NULL
    WHERE id = ? AND state = 'waiting' AND parked IS NOT NULL"""
_PLACE = "INSERT INTO places (key, limit_name, job_id, admitted_at) VALUES (?, ?, ?, ?)"
EXPIRE = f"""
    UPDATE jobs SET state = 'cancelled', ended_at = ?1, error = '{EXPIRED}', parked = NULL, wait_until = NULL
    WHERE id = ?2 AND state = 'waiting' AND parked IS NOT NULL AND wait_until <= ?1"""
_BEGIN = "UPDATE places SET begun = 1 WHERE job_id IN (SELECT value FROM json_each(?))"
_TELL_BEGUN = """
    INSERT INTO key_asks (key, limit_name, what, at)
    SELECT key, limit_name, 'begun', ?2 FROM places AS p WHERE job_id IN (SELECT value FROM json_each(?1)) AND (
        EXISTS (SELECT 1 FROM limits AS l WHERE l.key = 0 AND l.name = p.limit_name AND l.rated)
        OR EXISTS (SELECT 1 FROM limits AS l WHERE l.key = 1 AND l.name = p.key AND l.rated))"""


def begun(connection: apsw.Connection, job_ids: Sequence[str], at: float) -> None:
    """These jobs have places, and are claimed: each takes a token, where its limit or its key has a rate."""
    ids = json_of(job_ids)
    connection.execute(_TELL_BEGUN, (ids, at))
    connection.execute(_BEGIN, (ids,))


def ask(connection: apsw.Connection, keys: Iterable[Key], what: str = "look", at: float | None = None) -> None:
    connection.executemany(
        "INSERT INTO key_asks (key, limit_name, what, at) VALUES (?, ?, ?, ?)", [(*key, what, at) for key in keys]
    )


def park(connection: apsw.Connection, job_id: str) -> None:
    """A limited job that is waiting now: under its first key, in its order."""
    connection.execute(PARK, (job_id,))
    connection.execute(_ASK_FOR, (job_id,))


def settings(connection: apsw.Connection, key: Key) -> tuple[LimitRow | None, LimitRow | None]:
    """The rows of its limit and of the key."""
    rows = dict(
        fetch(
            connection,
            "SELECT key, body FROM limits WHERE (key, name) IN (VALUES (0, ?), (1, ?))",
            (key.limit, key.key),
        )
    )
    of_limit, of_key = rows.get(0), rows.get(1)
    return None if of_limit is None else decode_limit(of_limit), None if of_key is None else decode_limit(of_key)


def write_row(connection: apsw.Connection, row: LimitRow) -> None:
    facts = row.key, row.name, json_of(row), row.rated, row.fades
    connection.execute("INSERT OR REPLACE INTO limits (key, name, body, rated, fades) VALUES (?, ?, ?, ?, ?)", facts)


def state(connection: apsw.Connection, key: Key, begins: Iterable[float], now: float) -> State:
    bucket = first(connection, _BUCKET, (key.key,))
    held, unbegun = first(connection, _HELD, (key.key,)) or (0, 0)
    known = None if bucket is None or bucket[0] is None else Bucket(*bucket[:2])
    found = state_of(key, settings(connection, key), known, begins, held, unbegun, now)
    if bucket is not None:
        queue, solo, found.slow_until = bucket[2:]
        found.slow_lane = None if queue is None else Lane(queue, bool(solo))
    return found


def queues_of(connection: apsw.Connection, key: str) -> list[str]:
    return [queue for (queue,) in fetch(connection, _QUEUES, {"key": key})]


def next_of(
    connection: apsw.Connection, key: str, queues: Iterable[str], most: int, now: int, slow: Lane | None = None
) -> list[Candidate]:
    """The jobs parked under this key in their order, those of these queues; those of a slow lane come last."""
    found = [
        Candidate((priority, due), job_id, queue, keys_of(limits), bool(expired), solo)
        for queue in queues
        for solo in (False, True)
        for priority, due, job_id, limits, expired in fetch(connection, _NEXT, (now, key, queue, solo, most))
    ]
    return sorted(found, key=lambda job: (job.lane == slow, job))[:most]


def served(connection: apsw.Connection, boot: int, boot_id: str) -> set[str]:
    """The queues that are not paused, and that a live worker serves."""
    return {queue for (queue,) in fetch(connection, _SERVED, {"boot": boot, "boot_id": boot_id})}


class Serving:
    """One call of `admit`, in its transaction: the keys that somebody asked for, at most `limit` jobs of them."""

    def __init__(self, connection: apsw.Connection, now: datetime, served: Collection[str]) -> None:
        self._connection, self._now, self._served = connection, now.timestamp(), served
        self._millis = round(self._now * 1000)
        self._states: dict[Key, State] = {}
        self._rows: dict[Key, LimitRow | None] = {}  #: of these keys
        self._dues: dict[Key, float] = {}
        self._admitted: list[Candidate] = []  #: written at the end: what a key has room for is known of its state
        self.jobs: dict[str, list[str]] = {}
        self.cancelled = 0

    def work(self, limit: int) -> None:
        self._connection.execute(_ASK_DUE, {"now": self._now})
        self._connection.execute(
            "UPDATE limit_keys SET due = NULL WHERE due IS NOT NULL AND (due <= :now OR found_at > :now)",
            {"now": self._now},
        )
        asks = fetch(self._connection, "SELECT key, limit_name FROM key_asks ORDER BY seq LIMIT ?", (max(limit, 1),))
        for key in dict.fromkeys(Key(*each) for each in asks):
            if limit > 0:
                limit -= max(self._serve(key, limit), 1)
        self._admit(self._admitted)
        self._remember()

    def _serve(self, key: Key, most: int) -> int:
        """How many jobs were looked at."""
        self._connection.execute("DELETE FROM key_asks WHERE key = ? AND what = 'look'", (key.key,))
        mine, room = self._state(key), self._state(key).room()
        queues = queues_of(self._connection, key.key)
        idle = [queue for queue in queues if queue not in self._served]
        self._connection.executemany(
            "INSERT OR IGNORE INTO idle_keys VALUES (?, ?, ?)", [(queue, *key) for queue in idle]
        )
        ready = [queue for queue in queues if queue in self._served]
        want = most if room is None else min(room, most)
        slow = mine.slow_lane if mine.slow_until > self._now else None
        found = next_of(self._connection, key.key, ready, want, self._millis, slow) if want else []
        done = serve(found, self._state)
        self._admitted += done.admitted
        for job_id, other in done.moved:
            self._connection.execute("UPDATE jobs SET parked = ? WHERE id = ?", (other.key, job_id))
        ask(self._connection, {other for _, other in done.moved})
        for job_id in done.expired:
            self.expire(job_id)
        if found and len(found) == want and mine.room() != 0:
            ask(self._connection, [key])  # there may be more than this step takes
        due = mine.due(self._now) if ready and mine.room() == 0 else None
        if due is not None:
            self._dues[key] = ceil(due * 1000) / 1000
        return len(found)

    def _remember(self) -> None:
        """What was found of keys, with what has become of it in this step."""
        for key, found in self._states.items():
            due = self._dues.get(key)
            unused = fades(found, self._rows[key]) if found.held == 0 else None
            times = found.full_at(), due, None if due is None else self._now, unused
            self._connection.execute(_KEEP, (*key, *(found.bucket or (None, None)), *times))

    def _state(self, key: Key) -> State:
        """What is known of a key, with what its jobs have told since: that is written down."""
        if key not in self._states:
            told = fetch(
                self._connection,
                "DELETE FROM key_asks WHERE key = ? AND what <> 'look' RETURNING what, at",
                (key.key,),
            )
            of_key = settings(self._connection, key)[1]
            row = paused_by_jobs(of_key, key, [at for what, at in told if what == "pause"])
            if row is not None:
                write_row(self._connection, row)
            self._rows[key] = row or of_key
            self._states[key] = state(self._connection, key, [at for what, at in told if what == "begun"], self._now)
        return self._states[key]

    def _admit(self, jobs: Sequence[Candidate]) -> None:
        self._connection.executemany(_ADMIT, [(self._millis, job.id) for job in jobs])
        rows = [(*key, job.id, self._millis) for job in jobs for key in job.limits]
        self._connection.executemany(_PLACE, rows)
        for job in jobs:
            self.jobs.setdefault(job.queue, []).append(job.id)

    def expire(self, job_id: str) -> None:
        """A job that is to be cancelled, as its time to begin is over."""
        self._connection.execute(EXPIRE, (self._millis, job_id))
        self.cancelled += self._connection.changes()
