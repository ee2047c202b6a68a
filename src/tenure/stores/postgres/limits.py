"""Limits in PostgreSQL: the verbs of `LimitStore`. How places are given is in `serving`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenure.core.limits import Key
from tenure.ports import SUSPECT_SECONDS, UNBEGUN_SECONDS, JobView, KeyView, LimitRow, Withdrawn
from tenure.ports.limits import decode_limit
from tenure.stores.places import Count, Lane, key_view, paused, state_of
from tenure.stores.postgres.base import PostgresBase
from tenure.stores.postgres.reads import JOB, job_of
from tenure.stores.postgres.server import READ_SECONDS, Connection, Server
from tenure.stores.postgres.serving import COUNTED, SERVED, SETTINGS, known_of, lock
from tenure.stores.rules import check_limit_rows, json_of

MOST_LIMITS = 10_000
PLACES_AT_ONCE = 1_000  #: that `withdraw` looks at
_NAMES_AT_ONCE = 200

MAKE = """
    INSERT INTO @.limits (rev, body, rated, fades, key, name) VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"""
SET = "UPDATE @.limits SET rev = %s, body = %s, rated = %s, fades = %s WHERE key = %s AND name = %s AND rev = %s"
REMOVE = "DELETE FROM @.limits WHERE key = %s AND name = %s AND rev = %s"
ASK = "INSERT INTO @.key_asks (key, limit_name, what) VALUES (%s, %s, %s)"

#: The next places, of all keys in turn; for those that have not begun, the lane, and whether they are to go back.
START = ("", "00000000-0000-0000-0000-000000000000")
UNBEGUN = f"""
    WITH served AS MATERIALIZED (SELECT {SERVED} AS names)
    SELECT p.key, p.job_id::text, j.queue, j.solo, j.queue <> ALL (served.names),
        abs(date_part('epoch', @now - p.admitted_at)) >= CASE WHEN j.solo THEN {SUSPECT_SECONDS}
            ELSE {UNBEGUN_SECONDS} END AND EXISTS (
            SELECT FROM unnest(served.names) AS q (name) CROSS JOIN (VALUES (false), (true)) AS s (solo)
            CROSS JOIN LATERAL (
                SELECT FROM @.jobs WHERE parked = p.key AND queue = q.name AND solo = s.solo LIMIT 1) AS w
            WHERE (q.name, s.solo) <> (j.queue, j.solo))
    FROM served CROSS JOIN (
        SELECT key, job_id, admitted_at FROM @.places WHERE (key, job_id) > (%s, %s::uuid)
        ORDER BY key, job_id LIMIT %s) AS p
    LEFT JOIN LATERAL (
        SELECT queue, solo FROM @.jobs WHERE id = p.job_id AND (state || '') = 'queued' LIMIT 1) AS j ON true
    ORDER BY p.key, p.job_id"""
#: Forget keys whose buckets are full and where nothing waits for a time, and rows with nothing but a pause that has
#: passed. And is a queue served again?
FORGET = f"""
    WITH now AS MATERIALIZED (SELECT date_part('epoch', @now) AS at), unused AS (
        DELETE FROM @.limit_keys WHERE ctid = ANY (ARRAY (
            SELECT ctid FROM @.limit_keys
            WHERE greatest(full_at, slow_until, 0) <= (SELECT at FROM now) AND due IS NULL
                AND NOT EXISTS (SELECT FROM @.key_asks AS a WHERE a.key = limit_keys.key)
            ORDER BY greatest(full_at, slow_until, 0) LIMIT %s FOR UPDATE SKIP LOCKED))
        RETURNING 1), past AS (
        DELETE FROM @.limits WHERE ctid = ANY (ARRAY (
            SELECT ctid FROM @.limits WHERE fades <= (SELECT at FROM now)
            ORDER BY fades LIMIT %s FOR UPDATE SKIP LOCKED))
        RETURNING 1)
    SELECT greatest((SELECT count(*) FROM unused), (SELECT count(*) FROM past)), EXISTS (
        SELECT FROM unnest({SERVED}) AS q (name) CROSS JOIN LATERAL (
            SELECT FROM @.idle_keys WHERE queue = q.name LIMIT 1) AS i)"""
#: Queues that are served again: their keys get asks.
AWAKE = f"""
    WITH gone AS (
        DELETE FROM @.idle_keys WHERE ctid = ANY (ARRAY (
            SELECT i.place FROM unnest({SERVED}) AS q (name) CROSS JOIN LATERAL (
                SELECT ctid AS place FROM @.idle_keys WHERE queue = q.name LIMIT %(most)s) AS i LIMIT %(most)s))
        RETURNING key, limit_name)
    INSERT INTO @.key_asks (key, limit_name) SELECT DISTINCT key, limit_name FROM gone"""
#: A trigger parks these jobs, frees their places and stores the asks.
TAKE_BACK = """
    UPDATE @.jobs SET state = 'waiting' WHERE id IN (
        SELECT id FROM @.jobs WHERE id = ANY (%s::uuid[]) AND (state || '') = 'queued' AND limits IS NOT NULL
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)"""
SLOW = """
    INSERT INTO @.limit_keys (key, limit_name, slow_queue, slow_solo, slow_until)
    SELECT s.key, p.limit_name, s.queue, s.solo, date_part('epoch', @now) + s.patience
    FROM unnest(%s::text[], %s::text[], %s::boolean[], %s::float8[]) AS s (key, queue, solo, patience)
    CROSS JOIN LATERAL (SELECT limit_name FROM @.places WHERE key = s.key LIMIT 1) AS p
    ON CONFLICT (key) DO UPDATE SET slow_queue = excluded.slow_queue, slow_solo = excluded.slow_solo,
        slow_until = excluded.slow_until"""

#: The next names of keys in use, set or still counted: one look-up in an index for each.
NAMES = """
    SELECT name FROM (
        (WITH RECURSIVE keys AS (
            (SELECT key FROM @.places WHERE key > %(start)s ORDER BY key LIMIT 1)
            UNION ALL
            SELECT following.key FROM keys CROSS JOIN LATERAL (
                SELECT key FROM @.places WHERE key > keys.key ORDER BY key LIMIT 1) AS following)
        SELECT key AS name FROM keys LIMIT %(most)s)
        UNION
        (WITH RECURSIVE keys AS (
            (SELECT parked AS key FROM @.jobs WHERE parked > %(start)s ORDER BY parked LIMIT 1)
            UNION ALL
            SELECT following.parked FROM keys CROSS JOIN LATERAL (
                SELECT parked FROM @.jobs WHERE parked > keys.key ORDER BY parked LIMIT 1) AS following)
        SELECT key FROM keys LIMIT %(most)s)
        UNION
        (SELECT name FROM @.limits WHERE key AND name > %(start)s ORDER BY name LIMIT %(most)s)
        UNION
        (SELECT key FROM @.limit_keys WHERE full_at > date_part('epoch', @now) AND key > %(start)s
            ORDER BY key LIMIT %(most)s)) AS found
    ORDER BY name LIMIT %(most)s"""
#: The limit of each of these keys that is known.
OF_LIMIT = """
    SELECT a.key, f.limit_name FROM unnest(%s::text[]) AS a (key) CROSS JOIN LATERAL (
        SELECT limit_name FROM (SELECT limit_name FROM @.places WHERE key = a.key LIMIT 1) AS p
        UNION ALL
        SELECT each ->> 1 FROM (SELECT limits FROM @.jobs WHERE parked = a.key LIMIT 1) AS j
        CROSS JOIN LATERAL json_array_elements(j.limits::json) AS each WHERE each ->> 0 = a.key
        UNION ALL
        SELECT body::json ->> 'limit' FROM @.limits AS l WHERE l.key AND l.name = a.key
        UNION ALL
        SELECT limit_name FROM @.limit_keys WHERE key = a.key AND full_at > date_part('epoch', @now)
        LIMIT 1) AS f
    ORDER BY a.key"""
NOW = (
    """
    WITH told AS (SELECT key, what, at FROM @.key_asks WHERE key = ANY (%(keys)s::text[]) AND what = 'begun')
    SELECT c.*, (SELECT count(*) FROM (SELECT FROM @.jobs WHERE parked = c.key LIMIT %(waiting)s) AS parked),
        (SELECT count(*) FROM @.places AS p CROSS JOIN LATERAL (
            SELECT FROM @.jobs WHERE id = p.job_id AND (state || '') = 'queued' LIMIT 1) AS j WHERE p.key = c.key),
        date_part('epoch', @now)
    FROM ("""
    + COUNTED.format(more="")
    + ") AS c"
)
HOLDERS = f"""
    SELECT j.* FROM (
        SELECT job_id, admitted_at FROM @.places WHERE key = %s ORDER BY admitted_at, job_id LIMIT %s) AS p
    CROSS JOIN LATERAL (SELECT {JOB} FROM @.jobs WHERE id = p.job_id) AS j ORDER BY p.admitted_at, p.job_id"""
PARKED = f"SELECT {JOB} FROM @.jobs WHERE parked = %s ORDER BY (-priority), due_at, jobs.id LIMIT %s"


class PostgresLimits(PostgresBase):
    """The verbs of `LimitStore`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._unbegun_from = START

    def change_limits(self, rows: Sequence[LimitRow]) -> list[bool]:
        check_limit_rows(rows)
        return self._locking(lambda connection: [self._change_limit(connection, row) for row in rows])

    def _change_limit(self, connection: Connection, row: LimitRow) -> bool:
        place, rev = (row.key, row.name), row.rev + 1
        written = rev, json_of(row.but(rev=rev)), row.rated, row.fades
        if row.rev == 0:
            landed = connection.execute(self._sql(MAKE), (*written, *place)).rowcount
            if landed and row.blank:
                connection.execute(self._sql(REMOVE), (*place, rev))
        elif row.blank:
            landed = connection.execute(self._sql(REMOVE), (*place, row.rev)).rowcount
        else:
            landed = connection.execute(self._sql(SET), (*written, *place, row.rev)).rowcount
        if landed:
            ask = (row.name, row.limit, "look") if row.key else ("", row.name, "all")
            connection.execute(self._sql(ASK), ask)
        return landed == 1

    def withdraw(self, *, limit: int = 200) -> Withdrawn:
        found = self._server.fetch(UNBEGUN, *self._unbegun_from, PLACES_AT_ONCE)
        unused = [row for row in found if row[4] or row[5]]
        ids = list(dict.fromkeys(row[1] for row in unused))
        taken = set(ids[:limit])
        more = len(ids) > limit
        if more:
            found = found[: next(n for n, row in enumerate(found) if row[1] == ids[limit])]
        whole = len(found) < PLACES_AT_ONCE and not more
        if whole or found:  # else the first of them is one of those that are left for the next call
            self._unbegun_from = START if whole else (found[-1][0], found[-1][1])
        slow = {row[0]: Lane(row[2], row[3]) for row in unused if row[5] and row[1] in taken}
        ((forgotten, awake),) = self._server.fetch(FORGET, limit, limit)
        more = more or forgotten >= limit
        if not taken and not awake:
            return Withdrawn(0, more=more)

        def step(connection: Connection) -> tuple[int, int]:
            lock(connection, self._sql)
            asked = connection.execute(self._sql(AWAKE), {"most": limit}).rowcount
            if slow:
                rows = [(key, *lane, lane.patience) for key, lane in slow.items()]
                connection.execute(self._sql(SLOW), list(map(list, zip(*rows, strict=True))))
            back = connection.execute(self._sql(TAKE_BACK), (sorted(taken),)).rowcount if taken else 0
            return back, asked

        back, asked = self._locking(step, sent=0)
        return Withdrawn(back, bool(back or asked), more or asked >= limit)

    # ── reads ──

    def limits(self, names: Iterable[str] | None = None, *, keys: bool = False) -> list[LimitRow]:
        if names is None:
            sql, given = "SELECT body FROM @.limits WHERE key = %s ORDER BY name LIMIT %s", (keys, MOST_LIMITS)
            rows = self._server.fetch(sql, *given)
        else:
            sql = "SELECT body FROM @.limits WHERE key = %s AND name = ANY (%s::text[]) ORDER BY name LIMIT %s"
            rows = self._server.fetch(sql, keys, list(names), MOST_LIMITS)
        return [decode_limit(body) for (body,) in rows]

    def keys(
        self,
        names: Iterable[str] | None = None,
        *,
        limited_by: str | None = None,
        start: str = "",
        limit: int = 50,
        most: int = 10_000,
    ) -> list[KeyView]:
        wanted = None if names is None else [name for name in sorted(set(names)) if name > start]
        found: list[Key] = []
        while len(found) < limit:
            if wanted is None:
                some = [row[0] for row in self._read(NAMES, {"start": start, "most": _NAMES_AT_ONCE})]
            else:
                some, wanted = wanted[:_NAMES_AT_ONCE], wanted[_NAMES_AT_ONCE:]
            if not some:
                break
            known = [Key(*row) for row in self._server.read(OF_LIMIT, some)]
            found += [key for key in known if limited_by in (None, key.limit)]
            start = some[-1]
        return self._views(found[:limit], most) if found else []

    def _views(self, keys: Sequence[Key], most: int) -> list[KeyView]:
        settings = self._server.read(SETTINGS, *map(list, zip(*keys, strict=True)))
        known = {each.key.key: each for each in map(known_of, settings)}
        facts = {"keys": list(known), "most": [None] * len(known), "waiting": most}
        views: dict[str, KeyView] = {}
        for key, held, _, begins, _, waiting, unbegun, now in self._read(NOW, facts):
            each = known[key]
            state = state_of(each.key, each.rows, each.bucket, begins, Count(held, unbegun), now)
            views[key] = key_view(state, waiting=waiting, why=paused(*each.rows, now)[1], now=now)
        return [views[key.key] for key in keys if key.key in views]

    def _read(self, statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        sql = self._sql(statement)
        return self._server.run(lambda each: each.execute(sql, values).fetchall(), READ_SECONDS)

    def holders(self, key: str, *, limit: int = 50) -> list[JobView]:
        return [job_of(row) for row in self._server.read(HOLDERS, key, limit)]

    def parked(self, key: str, *, limit: int = 50) -> list[JobView]:
        return [job_of(row) for row in self._server.read(PARKED, key, limit)]
