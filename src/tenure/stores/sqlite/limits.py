"""Limits in SQLite: the verbs of `LimitStore`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from tenure.core.limits import Key, stem
from tenure.ports import JobView, KeyView, LimitRow, Withdrawn
from tenure.ports.limits import decode_limit
from tenure.stores.places import Lane, key_view, paused
from tenure.stores.rules import check_limit_rows, json_of
from tenure.stores.sqlite import places
from tenure.stores.sqlite.base import SqliteBase
from tenure.stores.sqlite.file import fetch, first
from tenure.stores.sqlite.reads import JOB, job_of

_ANYTHING = """
    SELECT EXISTS (SELECT 1 FROM idle_keys) OR EXISTS (
            SELECT 1 FROM places CROSS JOIN jobs ON jobs.id = job_id WHERE state = 'queued')
        OR EXISTS (SELECT 1 FROM limits WHERE fades <= ?1) OR EXISTS (SELECT 1 FROM limit_keys WHERE fades <= ?1)"""
_WITHDRAW = f"""
    UPDATE jobs SET state = 'waiting', {places.PARKED.format(due_at="due_at")} WHERE id = ? AND state = 'queued'"""
_UNBEGUN = """
    SELECT key, job_id, queue, solo, admitted_at FROM places CROSS JOIN jobs ON jobs.id = job_id
    WHERE state = 'queued' ORDER BY admitted_at"""
_UNBEGUN_OF = "SELECT count(*) FROM places CROSS JOIN jobs ON jobs.id = job_id WHERE key = ? AND state = 'queued'"
_WAITS = "SELECT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked = ? AND queue = ? AND solo = ?)"
_SLOW = "UPDATE limit_keys SET slow_queue = ?, slow_solo = ?, slow_until = ? WHERE key = ?"
#: The keys that a limit of this name may give; or this key.
LAST = "\U0010ffff"  #: sorts behind whatever begins with the text before it
_ASK = """
    INSERT INTO key_asks (key, limit_name, what) SELECT key, limit_name, 'look' FROM limit_keys
    WHERE key >= :start AND key < :end AND (NOT :key OR key = :name)"""
#: A key that is asked for is looked at first: it may be in use again.
_FORGET = """
    DELETE FROM limit_keys WHERE key IN (SELECT key FROM limit_keys AS k
        WHERE fades <= ? AND NOT EXISTS (SELECT 1 FROM key_asks WHERE key = k.key)
            AND NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked = k.key) ORDER BY fades LIMIT ?)"""
_FORGET_ROWS = """
    DELETE FROM limits WHERE (key, name) IN (SELECT key, name FROM limits WHERE fades <= ? ORDER BY fades LIMIT ?)"""

#: Queues that were passed over, and in which no job is parked any more.
FORGET_IDLE = """
    DELETE FROM idle_keys WHERE (queue, key) IN (SELECT queue, key FROM idle_keys AS i
        WHERE NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked = i.key AND queue = i.queue)
        LIMIT ?)"""


class SqliteLimits(SqliteBase):
    """The verbs of `LimitStore`."""

    def change_limits(self, rows: Sequence[LimitRow]) -> list[bool]:
        check_limit_rows(rows)
        return self._file.write(lambda connection: [_change(connection, row) for row in rows])

    def withdraw(self, *, limit: int = 200) -> Withdrawn:
        if not self._fetch(_ANYTHING, (self._now() / 1000,))[0][0]:  # a write would cost an fsync
            return Withdrawn(0)

        def step(connection: apsw.Connection) -> Withdrawn:
            served = places.served(connection, self._boot(), self._clock.boot_id)
            asked = _ask_again(connection, served, limit)
            unused = _unused(connection, served, self._now(), limit + 1)
            for job_id in unused[:limit]:
                connection.execute(_WITHDRAW, (job_id,))
                places.park(connection, job_id)
            forgotten = 0
            for sql in (_FORGET_ROWS, _FORGET):
                connection.execute(sql, (self._now() / 1000, limit))
                forgotten = max(forgotten, connection.changes())
            more = limit in (asked, forgotten) or len(unused) > limit
            return Withdrawn(len(unused[:limit]), bool(asked or unused), more)

        return self._file.write(step)

    def limits(self, names: Iterable[str] | None = None, *, keys: bool = False) -> list[LimitRow]:
        wanted = "" if names is None else "AND name IN (SELECT value FROM json_each(:names))"
        facts: dict[str, Any] = {"key": keys, **({} if names is None else {"names": json_of(list(names))})}
        rows = self._fetch(f"SELECT body FROM limits WHERE key = :key {wanted} ORDER BY name LIMIT 10000", facts)
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
        asked, facts = ["key > :start"], {"start": start, "limit": limit}
        if names is not None:
            asked.append("key IN (SELECT value FROM json_each(:names))")
            facts["names"] = json_of(list(names))
        if limited_by is not None:
            asked.append("limit_name = :limit_name")
            facts["limit_name"] = limited_by
        sql = f"SELECT key, limit_name FROM limit_keys WHERE {' AND '.join(asked)} ORDER BY key LIMIT :limit"
        now = self._now() / 1000

        def step(connection: apsw.Connection) -> list[KeyView]:
            return [_view(connection, Key(*row), now, most) for row in fetch(connection, sql, facts)]

        return self._file.read(step)

    def holders(self, key: str, *, limit: int = 50) -> list[JobView]:
        sql = (
            f"SELECT {JOB} FROM jobs JOIN (SELECT job_id, admitted_at FROM places WHERE key = ?) AS p ON p.job_id = id "
            "ORDER BY p.admitted_at, id LIMIT ?"
        )
        return [job_of(row) for row in self._fetch(sql, (key, limit))]

    def parked(self, key: str, *, limit: int = 50) -> list[JobView]:
        now = self._now()

        def step(connection: apsw.Connection) -> list[JobView]:
            found = places.next_of(connection, [(key, limit, places.queues_of(connection, [key])[key])], now)
            jobs = found.get(key, [])[:limit]
            rows = [first(connection, f"SELECT {JOB} FROM jobs WHERE id = ?", (job.id,)) for job in jobs]
            return [job_of(row) for row in rows if row is not None]

        return self._file.read(step)


def _change(connection: apsw.Connection, row: LimitRow) -> bool:
    found = first(connection, "SELECT body ->> 'rev' FROM limits WHERE key = ? AND name = ?", (row.key, row.name))
    if (0 if found is None else found[0]) != row.rev:
        return False
    if row.blank:
        connection.execute("DELETE FROM limits WHERE key = ? AND name = ?", (row.key, row.name))
    else:
        places.write_row(connection, row.but(rev=row.rev + 1))
    if row.key:
        connection.execute("INSERT OR IGNORE INTO limit_keys (key, limit_name) VALUES (?, ?)", (row.name, row.limit))
    start = row.name if row.key else stem(row.name)
    connection.execute(_ASK, {"name": row.name, "start": start, "end": start + LAST, "key": row.key})
    return True


def _view(connection: apsw.Connection, key: Key, now: float, most: int) -> KeyView:
    (known,) = places.known(connection, [key.key])
    begins = fetch(connection, "SELECT at FROM key_asks WHERE key = ? AND what = 'begun'", (key.key,))
    known.begins += [at for (at,) in begins]
    of_limit = places.limits_of(connection, [key.limit]).get(key.limit)
    found = known.state(key.limit, of_limit, now)
    sql = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_parked WHERE parked = ? LIMIT ?)"
    (waiting,) = first(connection, sql, (key.key, most)) or (0,)
    (known.count.unbegun,) = first(connection, _UNBEGUN_OF, (key.key,)) or (0,)
    return key_view(found, waiting=waiting, why=paused(of_limit, known.row, now)[1], now=now)


def _ask_again(connection: apsw.Connection, served: set[str], limit: int) -> int:
    """Ask for the keys under which queues were passed over that are served again."""
    left = limit
    for (queue,) in fetch(connection, "SELECT DISTINCT queue FROM idle_keys"):
        if queue in served and left > 0:
            keys = fetch(
                connection,
                "DELETE FROM idle_keys WHERE queue = ? AND key IN (SELECT key FROM idle_keys WHERE queue = ? LIMIT ?) "
                "RETURNING key, limit_name",
                (queue, queue, left),
            )
            places.ask(connection, [Key(*row) for row in keys])
            left -= len(keys)
    return limit - left


def _unused(connection: apsw.Connection, served: set[str], now: int, limit: int) -> list[str]:
    """Jobs with places that their lane can't use, or does not use while another lane waits for them."""
    found: dict[str, None] = {}
    waits: dict[tuple[str, Lane], bool] = {}
    for key, job_id, queue, solo, admitted_at in fetch(connection, _UNBEGUN):
        lane = Lane(queue, bool(solo))
        if queue in served:
            if abs(now - admitted_at) < lane.patience * 1000:  # the clock may have been set back
                continue
            if (key, lane) not in waits:
                waits[key, lane] = _another_waits(connection, key, lane, served)
            if not waits[key, lane]:
                continue
            connection.execute(_SLOW, (*lane, now / 1000 + lane.patience, key))
        found[job_id] = None
        if len(found) == limit:
            break
    return list(found)


def _another_waits(connection: apsw.Connection, key: str, lane: Lane, served: set[str]) -> bool:
    """Is a job of another lane, which is served, parked under this key?"""
    queues = served.intersection(places.queues_of(connection, [key])[key])
    lanes = {Lane(queue, solo) for queue in queues for solo in (False, True)} - {lane}
    return any(fetch(connection, _WAITS, (key, *each))[0][0] for each in lanes)
