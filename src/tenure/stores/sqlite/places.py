"""Places of keys in SQLite, as steps inside a transaction: a job is parked, and `admit` lets the next ones go on."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import ceil
from typing import Any

import apsw
import msgspec

from tenure.core.lifecycle import EXPIRED
from tenure.core.limits import Bucket, Key
from tenure.ports import LimitRow
from tenure.ports.limits import decode_limit
from tenure.stores.places import Candidate, Count, Lane, State, dues, fades, paused_by_jobs, serve, state_of
from tenure.stores.rules import json_of
from tenure.stores.sqlite.file import fetch, first

#: Wherever a job without limits would be queued; the statement sets `state` itself.
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
_NAMES = "(SELECT value FROM json_each(?))"
_SETTINGS = f"SELECT name, body FROM limits WHERE key = ? AND name IN {_NAMES}"
_STORED = f"""
    SELECT key, limit_name, tokens, at, full_at, due, found_at, fades, slow_queue, slow_solo, slow_until
    FROM limit_keys WHERE key IN {_NAMES}"""
#: Of the places of a key, only a rate needs to know how many jobs have not begun.
_RATED = "EXISTS (SELECT 1 FROM limits WHERE rated)"
_UNBEGUN = f"iif({_RATED}, (SELECT state = 'queued' FROM jobs WHERE id = job_id), 0)"
_HELD = f"""
    SELECT json_group_array(json_array(key, held, unbegun)) FROM (
        SELECT key, count(*) AS held, sum({_UNBEGUN}) AS unbegun FROM places WHERE key IN {_NAMES} GROUP BY key)"""
#: The queues of which jobs are parked under a key: one look-up in the index for each.
_QUEUES = """
    WITH RECURSIVE names (key, queue) AS (
        SELECT asked.value, (SELECT min(queue) FROM jobs INDEXED BY jobs_parked WHERE parked = asked.value)
        FROM json_each(?) AS asked
        UNION ALL
        SELECT key, (SELECT min(queue) FROM jobs INDEXED BY jobs_parked WHERE parked = key AND queue > names.queue)
        FROM names WHERE names.queue IS NOT NULL)
    SELECT json_group_array(json_array(key, queue)) FROM names WHERE queue IS NOT NULL"""
#: The first jobs of each lane, in no order, for keys, each with its queues.
_NEXT = """
    SELECT json_group_array(json_array(parked, json_array(
        json_array(-priority, due_at), jobs.id, queue, json(limits),
        coalesce(attempt = 0 AND expires_at < ?, 0), solo)))
    FROM json_each(?) AS asked CROSS JOIN json_each(asked.value ->> 1) AS lane CROSS JOIN json_each('[0, 1]') AS half
    CROSS JOIN jobs ON seq IN (
        SELECT seq FROM jobs INDEXED BY jobs_parked
        WHERE parked = asked.value ->> 0 AND queue = lane.value AND solo = half.value
        ORDER BY priority DESC, due_at, id LIMIT ?)"""
_ASKS = """
    SELECT json_group_array(json_array(key, limit_name))
    FROM (SELECT key, limit_name FROM key_asks ORDER BY seq LIMIT ?)"""
_TOLD = f"DELETE FROM key_asks WHERE key IN {_NAMES} AND what <> 'look' RETURNING key, limit_name, what, at"
_LOOKED = f"DELETE FROM key_asks WHERE key IN {_NAMES} AND what = 'look'"
_KEEP = """
    INSERT INTO limit_keys (key, limit_name, tokens, at, full_at, due, found_at, fades)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7,
        iif(EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked = ?1), NULL, ?8))
    ON CONFLICT DO UPDATE SET limit_name = excluded.limit_name, tokens = excluded.tokens, at = excluded.at,
        full_at = excluded.full_at, due = excluded.due, found_at = excluded.found_at, fades = excluded.fades"""
_ASK_DUE = """
    INSERT INTO key_asks (key, limit_name, what)
    SELECT key, limit_name, 'look' FROM limit_keys WHERE due IS NOT NULL AND (due <= :now OR found_at > :now)"""
_ADMIT = f"""
    UPDATE jobs SET state = 'queued', run_at = ?, parked = NULL, wait_until = NULL
    WHERE id IN {_NAMES} AND +state = 'waiting' AND +parked IS NOT NULL"""
_PLACE = """
    INSERT INTO places (key, limit_name, job_id, admitted_at)
    SELECT value ->> 0, value ->> 1, value ->> 2, ? FROM json_each(?)"""
EXPIRE = f"""
    UPDATE jobs SET state = 'cancelled', ended_at = ?1, error = '{EXPIRED}', parked = NULL, wait_until = NULL
    WHERE id = ?2 AND state = 'waiting' AND parked IS NOT NULL AND wait_until <= ?1"""
_TELL_BEGUN = f"""
    INSERT INTO key_asks (key, limit_name, what, at)
    SELECT key, limit_name, 'begun', ?2 FROM places AS p
    WHERE {_RATED} AND job_id IN (SELECT value FROM json_each(?1)) AND (
        EXISTS (SELECT 1 FROM limits AS l WHERE l.key = 0 AND l.name = p.limit_name AND l.rated)
        OR EXISTS (SELECT 1 FROM limits AS l WHERE l.key = 1 AND l.name = p.key AND l.rated))"""

_decode_candidates = msgspec.json.Decoder(list[tuple[str, Candidate]], strict=False).decode  # 0 and 1 are its booleans
_decode_rows = msgspec.json.Decoder(list[Any]).decode


def _text(connection: apsw.Connection, sql: str, bindings: tuple[Any, ...]) -> str:
    """The rows of a statement that collects them as JSON in one row.

    After each row apsw waits for the interpreter's lock, which the handlers of the same process may have: an admission
    of many jobs that was read and written row by row took a quarter longer.
    """
    (found,) = first(connection, sql, bindings) or ("[]",)
    return str(found)


def _rows(connection: apsw.Connection, sql: str, bindings: tuple[Any, ...]) -> list[Any]:
    """The same, for columns that hold no fractions: SQLite writes those with 15 digits."""
    return _decode_rows(_text(connection, sql, bindings))


def begun(connection: apsw.Connection, job_ids: Sequence[str], at: float) -> None:
    """These jobs have places, and are claimed: each takes a token, where its limit or its key has a rate."""
    connection.execute(_TELL_BEGUN, (json_of(job_ids), at))


def ask(connection: apsw.Connection, keys: Iterable[Key], what: str = "look", at: float | None = None) -> None:
    connection.executemany(
        "INSERT INTO key_asks (key, limit_name, what, at) VALUES (?, ?, ?, ?)", [(*key, what, at) for key in keys]
    )


def park(connection: apsw.Connection, job_id: str) -> None:
    """A limited job that is waiting now: under its first key, in its order."""
    connection.execute(PARK, (job_id,))
    connection.execute(_ASK_FOR, (job_id,))


def write_row(connection: apsw.Connection, row: LimitRow) -> None:
    facts = row.key, row.name, json_of(row), row.rated, row.fades
    connection.execute("INSERT OR REPLACE INTO limits (key, name, body, rated, fades) VALUES (?, ?, ?, ?, ?)", facts)


@dataclass(slots=True)
class Known:
    """What is read of a key: what is set for it, its row of `limit_keys`, its places; and what its jobs told since."""

    key: str
    row: LimitRow | None
    stored: tuple[Any, ...] | None
    count: Count
    begins: list[float] = field(default_factory=list[float])

    def state(self, limit: str, of_limit: LimitRow | None, now: float) -> State:
        """What it allows to jobs that have it of this limit."""
        _, tokens, at, *_, queue, solo, until = self.stored or ((None,) * 9 + (0.0,))
        bucket = None if tokens is None or at is None else Bucket(tokens, at)
        found = state_of(Key(self.key, limit), (of_limit, self.row), bucket, self.begins, self.count, now)
        found.slow_lane, found.slow_until = None if queue is None else Lane(queue, bool(solo)), until
        return found


def known(connection: apsw.Connection, keys: Collection[str]) -> list[Known]:
    names = json_of(list(keys))
    rows = _settings(connection, keys, of_keys=True)
    stored = {name: tuple(rest) for name, *rest in fetch(connection, _STORED, (names,))}
    counts = {name: Count(held, unbegun) for name, held, unbegun in _rows(connection, _HELD, (names,))}
    return [Known(key, rows.get(key), stored.get(key), counts.get(key) or Count(0, 0)) for key in keys]


def limits_of(connection: apsw.Connection, names: Collection[str]) -> dict[str, LimitRow]:
    return _settings(connection, names, of_keys=False)


def _settings(connection: apsw.Connection, names: Collection[str], *, of_keys: bool) -> dict[str, LimitRow]:
    found = fetch(connection, _SETTINGS, (of_keys, json_of(list(names))))
    return {name: decode_limit(body) for name, body in found}


def queues_of(connection: apsw.Connection, keys: Collection[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {key: [] for key in keys}
    for key, queue in _rows(connection, _QUEUES, (json_of(list(keys)),)):
        found[key].append(queue)
    return found


def next_of(
    connection: apsw.Connection, asked: Iterable[tuple[str, int, Sequence[str]]], now: int
) -> dict[str, list[Candidate]]:
    """The jobs parked under keys, at least this many of each lane of these queues, in their order."""
    alike: dict[int, list[tuple[str, Sequence[str]]]] = {}  # a statement has one LIMIT: one for each size
    for key, most, queues in asked:
        alike.setdefault(1 << (most - 1).bit_length(), []).append((key, queues))
    found: dict[str, list[Candidate]] = {}
    for most, some in alike.items():
        for key, job in _decode_candidates(_text(connection, _NEXT, (now, json_of(some), most))):
            found.setdefault(key, []).append(job)
    return {key: sorted(jobs) for key, jobs in found.items()}


def served(connection: apsw.Connection, boot: int, boot_id: str) -> set[str]:
    """The queues that are not paused, and that a live worker serves."""
    return {queue for (queue,) in fetch(connection, _SERVED, {"boot": boot, "boot_id": boot_id})}


class Serving:
    """One call of `admit`, in its transaction: the keys that were asked for, at most `limit` jobs of them.

    Each statement handles all of them: most of the cost of a look at a key is in executing statements.
    """

    def __init__(self, connection: apsw.Connection, now: datetime, served: Collection[str]) -> None:
        self._connection, self._now, self._served = connection, now.timestamp(), served
        self._millis = round(self._now * 1000)
        self._known: dict[str, Known] = {}
        self._limits: dict[str, LimitRow | None] = {}
        self._states: dict[Key, State] = {}
        self._ready = set[str]()  #: the keys under which jobs are parked that could go on
        self._admitted: list[Candidate] = []  #: written at the end: the states of the keys count them already
        self.jobs: dict[str, list[str]] = {}
        self.cancelled = 0

    def work(self, limit: int) -> None:
        self._connection.execute(_ASK_DUE, {"now": self._now})
        self._connection.execute(
            "UPDATE limit_keys SET due = NULL WHERE due IS NOT NULL AND (due <= :now OR found_at > :now)",
            {"now": self._now},
        )
        asks = _rows(self._connection, _ASKS, (max(limit, 1),))
        keys = [Key(*each) for each in dict(asks).items()]
        self._open(keys)
        while keys and limit > 0:
            wants = self._wants(keys, limit)
            limit -= self._serve(wants)
            keys = keys[len(wants) :]
        self._admit(self._admitted)
        self._remember()

    def _wants(self, keys: Iterable[Key], limit: int) -> dict[Key, int]:
        """The next of these keys, and how many jobs to look at for each: `limit` in all, where a key counts as one."""
        wants: dict[Key, int] = {}
        for key in keys:
            if limit <= 0:
                break
            room = self._states[key].room()
            wants[key] = limit if room is None else min(room, limit)
            limit -= max(wants[key], 1)
        return wants

    def _serve(self, wants: Mapping[Key, int]) -> int:
        """How many jobs and keys were looked at."""
        names = [key.key for key in wants]
        self._connection.execute(_LOOKED, (json_of(names),))
        queues = queues_of(self._connection, names)
        idle = [(queue, *key) for key in wants for queue in queues[key.key] if queue not in self._served]
        self._connection.executemany("INSERT OR IGNORE INTO idle_keys VALUES (?, ?, ?)", idle)
        ready = {key: [queue for queue in queues[key.key] if queue in self._served] for key in wants}
        self._ready |= {key.key for key, some in ready.items() if some}
        asked = [(key.key, want, ready[key]) for key, want in wants.items() if want and ready[key]]
        parked = next_of(self._connection, asked, self._millis) if asked else {}
        self._open(each for jobs in parked.values() for job in jobs for each in job.limits)
        looked, asks, moved = 0, set[Key](), list[tuple[str, str]]()
        for key, want in wants.items():
            mine = self._states[key]
            slow = mine.slow(self._now)
            found = parked.get(key.key, [])
            if slow is not None:
                found.sort(key=lambda job: job.lane == slow)
            found = found[:want]
            done = serve(key, found, self._states.__getitem__)
            self._admitted += done.admitted
            for job_id in done.expired:
                self.expire(job_id)
            moved += [(other.key, job_id) for job_id, other in done.moved]
            asks.update(other for _, other in done.moved)
            if done.any and len(found) == want and mine.room() != 0:
                asks.add(key)  # there may be more than this step takes
            looked += max(len(found), 1)
        self._connection.executemany("UPDATE jobs SET parked = ? WHERE id = ?", moved)
        ask(self._connection, asks)
        return looked

    def _open(self, keys: Iterable[Key]) -> None:
        """Read what is stored about keys, and write down the begins and pauses that their jobs have told since."""
        new = [key for key in dict.fromkeys(keys) if key not in self._states]
        names = {key.key: key for key in new if key.key not in self._known}
        if names:
            self._known |= {each.key: each for each in known(self._connection, names)}
            pauses: dict[str, list[float]] = {}
            told = set[Key]()
            for name, limit, what, at in fetch(self._connection, _TOLD, (json_of(list(names)),)):
                (self._known[name].begins if what == "begun" else pauses.setdefault(name, [])).append(at)
                told.add(Key(name, limit))  # another template may give the same key, and only its rate counts this
            new = [*(told - self._states.keys() - set(new)), *new]
            for name, until in pauses.items():
                row = paused_by_jobs(self._known[name].row, names[name], until)
                if row is not None:
                    write_row(self._connection, row)
                    self._known[name].row = row
        limits = {key.limit for key in new} - self._limits.keys()
        if limits:
            self._limits |= dict.fromkeys(limits) | limits_of(self._connection, limits)
        for key in new:
            self._states[key] = self._known[key.key].state(key.limit, self._limits[key.limit], self._now)

    def _remember(self) -> None:
        """Store what is known of keys after this step, where it differs from what is stored; most often it does not."""
        rows: list[tuple[Any, ...]] = []
        soon = dues(self._states.values(), self._ready, self._now)
        found = {key.key: state for key, state in self._states.items()}
        found |= {key.key: state for key, state in self._states.items() if state.bucket is not None}
        for name, state in found.items():
            known = self._known[name]
            due, found_at = (None, None) if known.stored is None else known.stored[4:6]
            if name in soon:
                due, found_at = ceil(soon[name] * 1000) / 1000, self._now
            unused = fades(state, known.row) if state.count.held == 0 else None
            bucket = (None, None, 0.0) if known.stored is None else known.stored[1:4]
            if state.bucket is not None:
                bucket = *state.bucket, state.full_at()
            elif unused is not None:  # there is no rate, or only under another template: its bucket stays
                unused = max(unused, bucket[2])
            row = state.key.limit, *bucket, due, found_at, unused
            if known.stored is None or row != known.stored[:7]:
                rows.append((name, *row))
        self._connection.executemany(_KEEP, rows)

    def _admit(self, jobs: Sequence[Candidate]) -> None:
        if jobs:
            self._connection.execute(_ADMIT, (self._millis, json_of([job.id for job in jobs])))
            rows = [(*key, job.id) for job in jobs for key in job.limits]
            self._connection.execute(_PLACE, (self._millis, json_of(rows)))
        for job in jobs:
            self.jobs.setdefault(job.queue, []).append(job.id)

    def expire(self, job_id: str) -> None:
        """Cancel this job if its time to begin is over."""
        self._connection.execute(EXPIRE, (self._millis, job_id))
        self.cancelled += self._connection.changes()
