"""How places are given in PostgreSQL: to some keys at a time, in one transaction under one lock.

1. The transaction waits for the lock, and reads everything else in later statements: of two that give places, the
   second sees what the first has given. Claims, outcomes and callers' transactions never take the lock.
2. Counts of places, what was told of a key and where its jobs are parked are read by the statement that removes the
   asks: a job that has just begun is counted either as not begun, or as a begin, never as neither; and a job that has
   just been parked is either seen, or its ask is left.
3. It locks candidates without waiting. Another transaction that has one may leave it as it is: its key is asked again.
4. It does not wait for its commit to be on disk: whatever follows from it, such as a claim, is in the log behind it. If
   the server loses the end of its log, the asks are there again, and the jobs are parked again. Only the end of a job
   waits for the disk.
5. A session that stops in this transaction is ended by the server after a while: nothing waits for a paused machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tenure.core.lifecycle import EXPIRED
from tenure.core.limits import Bucket, Key, stem
from tenure.ports import LimitRow
from tenure.ports.limits import decode_limit
from tenure.stores.fields import keys_of
from tenure.stores.places import Candidate, Count, Lane, State, bounds_of, dues, paused_by_jobs, serve, state_of
from tenure.stores.postgres.server import Connection, Sql
from tenure.stores.rules import json_of

_SERVING = 0x54454E56  # next to the lock of a migration
WAIT_MS = 500  #: for the lock: its holder does what we would do
IDLE_MS = 5_000  #: after which the server ends a session that stopped while it had the lock
KEYS_AT_ONCE = 200  #: of one limit

#: The queues that are not paused, and that a live worker serves.
SERVED = """ARRAY (
        SELECT DISTINCT q.name
        FROM @.workers AS w CROSS JOIN LATERAL json_array_elements_text(w.queues::json) AS q (name)
        WHERE w.died_at IS NULL AND w.expires_at > @now
          AND NOT EXISTS (SELECT FROM @.queues AS paused WHERE paused.name = q.name))"""
LOCK = f"""
    SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_MS}ms', true),
        set_config('lock_timeout', '{WAIT_MS}ms', true), pg_advisory_xact_lock({_SERVING}, hashtext('@.places'))"""

#: Keys that were asked for, then those that may have room again by themselves: now, or before the clock was set back.
TAKE = f"""
    WITH now AS (SELECT date_part('epoch', @now) AS at)
    SELECT a.*, now.at, {SERVED} FROM now CROSS JOIN LATERAL (
        (SELECT key, limit_name, what, seq FROM @.key_asks ORDER BY seq LIMIT %(most)s)
        UNION ALL
        (SELECT key, limit_name, 'look', 0 FROM @.limit_keys WHERE due <= now.at ORDER BY due LIMIT %(most)s)
        UNION ALL
        (SELECT key, limit_name, 'look', 0 FROM @.limit_keys WHERE due IS NOT NULL AND due_found_at > now.at
            ORDER BY due_found_at LIMIT %(most)s)) AS a"""

#: The queues in which jobs are parked under a key: one look-up in the index for each.
_LANES = """ARRAY (
        WITH RECURSIVE lanes AS (
            (SELECT queue FROM @.jobs WHERE parked = a.key ORDER BY queue LIMIT 1)
            UNION ALL
            SELECT (SELECT queue FROM @.jobs WHERE parked = a.key AND queue > lanes.queue ORDER BY queue LIMIT 1)
            FROM lanes WHERE lanes.queue IS NOT NULL)
        SELECT queue FROM lanes WHERE queue IS NOT NULL)"""
SETTINGS = """
    SELECT a.key, a.limit_name, l.body, k.body, s.tokens, s.at, s.due, s.slow_queue, s.slow_solo, s.slow_until,
        s.full_at, s.key IS NOT NULL
    FROM unnest(%s::text[], %s::text[]) AS a (key, limit_name)
    LEFT JOIN @.limits AS l ON NOT l.key AND l.name = a.limit_name
    LEFT JOIN @.limits AS k ON k.key AND k.name = a.key
    LEFT JOIN @.limit_keys AS s ON s.key = a.key"""

#: Of the places of a key, only a rate needs to know how many jobs have not begun. By the state, so that a begin writes
#: no place.
_UNBEGUN = "(SELECT state = 'queued' FROM @.jobs WHERE id = p.job_id)"
COUNTED = f"""
    SELECT a.key, p.held, p.unbegun, coalesce(t.begins, '{{{{}}}}'), coalesce(t.pauses, '{{{{}}}}'){{more}}
    FROM unnest(%(keys)s::text[], %(most)s::integer[]) AS a (key, most)
    LEFT JOIN (
        SELECT key, array_agg(at) FILTER (WHERE what = 'begun') AS begins,
            array_agg(at) FILTER (WHERE what = 'pause') AS pauses
        FROM told WHERE what <> 'look' GROUP BY key) AS t ON t.key = a.key
    CROSS JOIN LATERAL (
        SELECT count(*) AS held, count(*) FILTER (WHERE unbegun) AS unbegun FROM (
            SELECT CASE WHEN a.most IS NULL THEN {_UNBEGUN} END AS unbegun
            FROM @.places AS p WHERE key = a.key LIMIT a.most) AS counted) AS p"""
#: An ask to look is done only for keys whose jobs are looked at in this transaction. A begin is left for the template
#: whose rate counts it, where another one gives the same key.
OPEN = f"""
    WITH told AS (
        DELETE FROM @.key_asks WHERE key = ANY (%(keys)s::text[]) AND what <> 'all' AND (%(looked)s OR what <> 'look')
            AND (what <> 'begun' OR key = ANY (%(rated)s::text[])
                OR (key, limit_name) IN (SELECT * FROM unnest(%(of_keys)s::text[], %(of_limits)s::text[])))
        RETURNING key, what, at)
{COUNTED.format(more=f", {_LANES}")}"""

#: The first jobs of each key, in the order of the keys; those whose lane was slow come last.
CANDIDATES = """
    SELECT a.key, j.id::text, -j.priority, (date_part('epoch', j.due_at) * 1000)::bigint, j.queue, j.limits,
        coalesce(j.attempt = 0 AND j.expires_at < @now, false), j.solo
    FROM unnest(%s::text[], %s::integer[], %s::text[], %s::boolean[]) AS a (key, want, slow_queue, slow_solo)
    CROSS JOIN LATERAL (
        SELECT p.* FROM unnest(%s::text[]) AS q (queue) CROSS JOIN (VALUES (false), (true)) AS s (solo)
        CROSS JOIN LATERAL (
            SELECT id, priority, due_at, queue, solo, limits, attempt, expires_at FROM @.jobs
            WHERE parked = a.key AND queue = q.queue AND solo = s.solo
            ORDER BY (-priority), due_at, id LIMIT a.want FOR NO KEY UPDATE SKIP LOCKED) AS p
        ORDER BY (p.queue, p.solo) IS NOT DISTINCT FROM (a.slow_queue, a.slow_solo), (-p.priority), p.due_at, p.id
        LIMIT a.want) AS j
    LIMIT %s"""

GIVE = """
    WITH admitted AS (
        UPDATE @.jobs SET state = 'queued', parked = NULL, wait_until = NULL, run_at = @now
        WHERE id = ANY (string_to_array(%s, ',')::uuid[]) RETURNING id, limits)
    INSERT INTO @.places (key, limit_name, job_id, admitted_at)
    SELECT each ->> 0, each ->> 1, id, @now FROM admitted CROSS JOIN json_array_elements(limits::json) AS each"""
EXPIRE = """
    UPDATE @.jobs SET state = 'cancelled', parked = NULL, wait_until = NULL, error = %s, ended_at = @now
    WHERE id = ANY (%s::uuid[])"""
MOVE = """
    UPDATE @.jobs AS j SET parked = m.key FROM unnest(%s::uuid[], %s::text[]) AS m (id, key) WHERE j.id = m.id"""
STILL = """
    SELECT a.key FROM unnest(%s::text[]) AS a (key) WHERE EXISTS (
        SELECT FROM unnest(%s::text[]) AS q (queue)
        CROSS JOIN LATERAL (SELECT FROM @.jobs WHERE parked = a.key AND queue = q.queue LIMIT 1) AS j)"""
KEEP = """
    INSERT INTO @.limit_keys (key, limit_name, tokens, at, full_at, due, due_found_at)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::float8[])
    ON CONFLICT (key) DO UPDATE SET limit_name = excluded.limit_name, tokens = excluded.tokens, at = excluded.at,
        full_at = excluded.full_at, due = excluded.due, due_found_at = excluded.due_found_at"""
PASSED_OVER = """
    INSERT INTO @.idle_keys (queue, key, limit_name) SELECT * FROM unnest(%s::text[], %s::text[], %s::text[])
    ON CONFLICT DO NOTHING"""
_NOTHING_PARKED = "NOT EXISTS (SELECT FROM @.jobs AS j WHERE j.parked = i.key AND j.queue = i.queue)"
IDLE = f"SELECT queue, key FROM @.idle_keys AS i WHERE {_NOTHING_PARKED} LIMIT %s"
FORGET_IDLE = f"""
    DELETE FROM @.idle_keys AS i USING unnest(%s::text[], %s::text[]) AS f (queue, key)
    WHERE i.queue = f.queue AND i.key = f.key AND {_NOTHING_PARKED}"""
ASK = """
    INSERT INTO @.key_asks (key, limit_name, what, at) SELECT * FROM unnest(%s::text[], %s::text[], %s::text[],
        %s::float8[]) RETURNING seq"""
PAUSED = """
    INSERT INTO @.limits (key, name, rev, body, rated, fades) VALUES (true, %s, %s, %s, %s, %s)
    ON CONFLICT (key, name) DO UPDATE SET rev = excluded.rev, body = excluded.body, rated = excluded.rated,
        fades = excluded.fades
    WHERE limits.rev = excluded.rev - 1"""

#: The next keys under which jobs are parked, each with the limits of one of these jobs.
PARKED_KEYS = """
    WITH RECURSIVE keys AS (
        (SELECT parked, limits FROM @.jobs WHERE parked > %s ORDER BY parked LIMIT 1)
        UNION ALL
        SELECT following.* FROM keys CROSS JOIN LATERAL (
            SELECT parked, limits FROM @.jobs WHERE parked > keys.parked ORDER BY parked LIMIT 1) AS following)
    SELECT parked, limits FROM keys LIMIT %s"""
DONE_WITH = "DELETE FROM @.key_asks WHERE seq = ANY (%s::bigint[])"


class Ask(NamedTuple):
    key: str
    limit: str
    what: str = "look"
    at: float | None = None


class Known(NamedTuple):
    """A key as it was read: what limits it, its bucket, when it may have room again, and where jobs are parked."""

    key: Key
    rows: tuple[LimitRow | None, LimitRow | None]
    bucket: Bucket | None
    due: float | None
    slow: tuple[Lane | None, float]
    full_at: float | None
    stored: bool

    @property
    def most(self) -> int | None:
        """How many places must be counted to know whether it has room; None: all."""
        bounds = bounds_of(*self.rows)
        return None if bounds.rate is not None else bounds.concurrency or 0


def known_of(row: Sequence[Any]) -> Known:
    key, limit, of_limit, of_key, tokens, at, due, slow_queue, slow_solo, slow_until, full_at, stored = row
    rows = tuple(None if body is None else decode_limit(body) for body in (of_limit, of_key))
    bucket = None if tokens is None else Bucket(tokens, at)
    slow = None if slow_queue is None else Lane(slow_queue, slow_solo), slow_until or 0.0
    return Known(Key(key, limit), (rows[0], rows[1]), bucket, due, slow, full_at, stored)


@dataclass(slots=True)
class Found:
    """What is read of a key, whichever template gave it: its places, what its jobs told, where jobs are parked."""

    count: Count
    begins: Sequence[float]
    queues: Sequence[str]
    paused: LimitRow | None = None  #: its row, if a job has paused it


@dataclass(slots=True)
class Given:
    """What one transaction has done."""

    jobs: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))
    cancelled: int = 0
    left: list[int] = field(default_factory=list[int])  #: the asks that it left because of a lock


def limit_of(key: str, limits: str) -> str:
    """Of the limits of a job, the one that gives this key."""
    return next(each.limit for each in keys_of(limits) if each.key == key)


class Serving:
    """One transaction of `admit` that gives places."""

    def __init__(self, connection: Connection, sql: Sql) -> None:
        self._connection = connection
        self._sql = sql
        self._done = Given()
        self._again: list[Ask] = []
        self._found: dict[str, Found] = {}
        self._known: dict[Key, Known] = {}
        self._states: dict[Key, State] = {}
        self._dues: dict[str, float | None] = {}
        self._now = 0.0

    def run(self, most: int) -> Given:
        lock(self._connection, self._sql)
        rows = self._rows(TAKE, {"most": most})
        if not rows:
            return self._done
        self._now, served = rows[0][4], set(rows[0][5])
        for key, limit, what, seq, *_ in rows:
            if what == "all":
                self._expand(key, limit, seq)
        mine = {key: Key(key, limit) for key, limit, what, *_ in rows if what != "all"}
        if mine:  # what was told of a key is written down under each template that it was told under
            told = {Key(key, limit) for key, limit, what, *_ in rows if what != "all"}
            self._open([*told.difference(mine.values()), *mine.values()], looked=True)
            self._serve(list(mine.values()), served, most)
            self._remember()
        if self._again:
            self._ask(self._again)
        return self._done

    def _rows(self, statement: str, values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._sql(statement), values).fetchall()

    def _write(self, statement: str, *values: object) -> int:
        return self._connection.execute(self._sql(statement), values).rowcount

    def _ask(self, asks: list[Ask]) -> list[int]:
        return [row[0] for row in self._rows(ASK, list(map(list, zip(*asks, strict=True))))]

    def _expand(self, start: str, limit: str, seq: int) -> None:
        """A limit has changed: each of its keys gets an ask."""
        found = self._rows(PARKED_KEYS, (start, KEYS_AT_ONCE))
        self._again += [Ask(key, limit_of(key, keys)) for key, keys in found if key.startswith(stem(limit))]
        if len(found) == KEYS_AT_ONCE:
            self._again.append(Ask(found[-1][0], limit, "all"))
        self._write(DONE_WITH, [seq])

    # ── keys ──

    def _open(self, keys: Iterable[Key], *, looked: bool) -> None:
        """Read the states of these keys, with what was told of them."""
        known = [known_of(row) for row in self._rows(SETTINGS, list(map(list, zip(*keys, strict=True))))]
        self._find(known, looked=looked)
        self._known |= {each.key: each for each in known}
        names = {each.key.key for each in known}
        for each in [each for each in self._known.values() if each.key.key in names]:
            found, rows = self._found[each.key.key], each.rows
            rows = rows if found.paused is None else (rows[0], found.paused)
            state = state_of(each.key, rows, each.bucket, found.begins, found.count, self._now)
            state.slow_lane, state.slow_until = each.slow
            self._states[each.key] = state

    def _find(self, known: Sequence[Known], *, looked: bool) -> None:
        names: dict[str, Known] = {}
        most: dict[str, int | None] = {}
        for each in known:  # under a second template, all is read again: the first one counted as far as it needed
            again = each.key.key in names or each.key.key in self._found
            most[each.key.key] = None if again else each.most
            names[each.key.key] = each
        rated = [each.key.key for each in known if bounds_of(*each.rows).rate is not None]
        of = {"of_keys": [each.key.key for each in known], "of_limits": [each.key.limit for each in known]}
        facts = {"keys": list(most), "most": list(most.values()), "looked": looked, "rated": rated, **of}
        for key, held, unbegun, begins, pauses, queues in self._rows(OPEN, facts) if names else ():
            before = self._found.get(key)
            found = self._found[key] = Found(Count(held, unbegun), begins, queues)
            if before is not None:
                found.begins, found.paused = [*before.begins, *begins], before.paused
            if pauses:
                found.paused = self._paused(names[key], pauses)
            if not looked and before is None:
                self._dues[key] = names[key].due

    def _paused(self, known: Known, until: Sequence[float]) -> LimitRow | None:
        row = paused_by_jobs(known.rows[1], known.key, until)
        if row is None:
            return known.rows[1]
        if not self._write(PAUSED, row.name, row.rev, json_of(row), row.rated, row.fades):  # an operator was faster
            self._again.append(Ask(*known.key, "pause", max(until)))
        return row

    def _remember(self) -> None:
        rows: list[tuple[Any, ...]] = []
        keys = {key.key: key for key in self._states}
        keys |= {key.key: key for key, state in self._states.items() if state.bucket is not None}
        for key in keys.values():
            known, state, due = self._known[key], self._states[key], self._dues.get(key.key)
            bucket, full_at = known.bucket, known.full_at
            if state.bucket is not None:  # else there is no rate, or only under another template
                left = state.full_at() > self._now
                bucket, full_at = (state.bucket, state.full_at()) if left else (None, None)
            if known.stored or bucket is not None or due is not None:
                found = None if due is None else self._now
                rows.append((*known.key, *(bucket or (None, None)), full_at, due, found))
        if rows:
            self._write(KEEP, *map(list, zip(*rows, strict=True)))

    # ── jobs ──

    def _serve(self, mine: list[Key], served: set[str], most: int) -> None:
        lanes = {key: served.intersection(self._found[key.key].queues) for key in mine}
        self._pass_over(mine, served)
        rooms = {key: self._states[key].room() for key in mine if lanes[key]}
        wants = {key: most if room is None else min(room, most) for key, room in rooms.items() if room != 0}
        found = self._candidates(wants, sorted(set[str]().union(*lanes.values())), most)
        others = {key for jobs in found.values() for job in jobs for key in job.limits} - self._states.keys()
        if others:
            self._open(others, looked=False)
        cut = sum(map(len, found.values())) == most
        last = next(reversed(found), None)
        admitted, expired, moved = list[Candidate](), list[str](), list[tuple[str, Key]]()
        held: dict[str, Key] = {}
        reached = True  # the keys after the one at which the candidates were cut off have not been looked at
        for key, want in wants.items():
            jobs = found.get(key.key, [])
            done = serve(key, jobs, self._states.__getitem__)
            admitted += done.admitted
            expired += done.expired
            moved += done.moved
            reached = reached and not (cut and key.key == last)
            if ((done.any and len(jobs) == want) or not reached) and self._states[key].room() != 0:
                self._again.append(Ask(*key))
            elif len(jobs) < want and reached:
                held[key.key] = key
        self._put(admitted, expired, moved)
        if held:
            still = [held[name] for (name,) in self._rows(STILL, (list(held), sorted(served)))]
            waits = [Ask(*key) for key in still if self._states[key].room() != 0]
            self._done.left += self._ask(waits) if waits else []
        parked = {key.key for key in rooms} | {to.key for _, to in moved}
        self._dues |= dues(self._states.values(), parked, self._now)

    def _pass_over(self, mine: list[Key], served: set[str]) -> None:
        idle = [(queue, *key) for key in mine for queue in self._found[key.key].queues if queue not in served]
        if idle:
            self._write(PASSED_OVER, *map(list, zip(*sorted(idle), strict=True)))

    def _candidates(self, wants: dict[Key, int], queues: list[str], most: int) -> dict[str, list[Candidate]]:
        if not wants:
            return {}
        states = [self._states[key] for key in wants]
        slow = [each.slow(self._now) for each in states]
        queues_of_slow, solo_of_slow = [each and each.queue for each in slow], [each and each.solo for each in slow]
        found: defaultdict[str, list[Candidate]] = defaultdict(list)
        for key, job_id, rank, due, queue, keys, expired, solo in self._rows(
            CANDIDATES,
            ([key.key for key in wants], list(wants.values()), queues_of_slow, solo_of_slow, queues, most),
        ):
            found[key].append(Candidate((rank, due), job_id, queue, keys_of(keys), expired, solo))
        return found

    def _put(self, admitted: list[Candidate], expired: list[str], moved: list[tuple[str, Key]]) -> None:
        if admitted:
            self._write(GIVE, ",".join(job.id for job in admitted))
            for job in admitted:
                self._done.jobs[job.queue].append(job.id)
        if expired:
            self._write(EXPIRE, EXPIRED, expired)
            self._done.cancelled += len(expired)
        if moved:
            self._write(MOVE, [job_id for job_id, _ in moved], [to.key for _, to in moved])


def lock(connection: Connection, sql: Sql) -> None:
    """No other transaction gives places until this one ends. Raises psycopg's LockNotAvailable after a moment."""
    connection.execute(sql(LOCK))


def forget_idle(connection: Connection, sql: Sql, limit: int) -> None:
    """Forget idle queues that have nothing parked. Under the lock: `admit` may just pass over the next job of one."""
    found = connection.execute(sql(IDLE), (limit,)).fetchall()
    if found:
        lock(connection, sql)
        connection.execute(sql(FORGET_IDLE), list(map(list, zip(*found, strict=True))))
