"""Schedules, their ticks, and notes: what a supervisor asks every second, and the one guarded write of a batch.

A change that can't be made now because somebody else holds its row, or a job that it cancels, is answered as if they
had written first: that schedule waits, and none of the others of its batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, LiteralString, TypeVar

from tenure.errors import BadData, StoreAway
from tenure.lifecycle import State
from tenure.ports import Draft, Enqueued
from tenure.schedule import (
    REPLACED,
    Change,
    Due,
    Run,
    Standing,
    Swapped,
    Tick,
    decode_schedule,
    decode_tick,
    encode_schedule,
    encode_tick,
)
from tenure.stores.outcomes import check_text, encode
from tenure.stores.postgres.reads import _JOB, _job, is_id
from tenure.stores.postgres.server import Connection, Server

T = TypeVar("T")
Sql = Callable[[str], LiteralString]
Enqueue = Callable[[Sequence[Draft]], list[Enqueued]]  #: in the transaction at hand

_ENDED = "('completed', 'dead', 'cancelled')"
_LAST = "\U0010ffff"  #: the last of all characters
_TRIES = 5
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


# ── reading ──

# An open tick whose job has ended is found by the ids of the open ones: a condition on the state alone would let the
# planner start from all jobs that ever ended.
_DUE = f"""
    SELECT @now, (SELECT min(due_at) FROM @.schedule_rows WHERE due_at > @now),
        ARRAY (SELECT name::text FROM @.schedule_rows WHERE due_at <= @now ORDER BY due_at LIMIT %(limit)s) || ARRAY (
            SELECT t.schedule::text FROM @.tick_rows AS t LEFT JOIN @.jobs AS j ON j.id = t.job_id
            WHERE t.open AND (j.id IS NULL OR (j.state || '') IN {_ENDED}) LIMIT %(limit)s)"""

_STANDINGS = f"""
    SELECT s.body, s.rev, t.body, w.expires_at, j.*
    FROM {{which}} AS s LEFT JOIN @.tick_rows AS t ON t.schedule = s.name AND t.open
    LEFT JOIN LATERAL (SELECT {_JOB} FROM @.jobs WHERE id = t.job_id) AS j ON true
    LEFT JOIN @.workers AS w ON w.id = j.worker_id
    ORDER BY s.name, t.tick, t.cause"""

_ALL = _STANDINGS.format(which="@.schedule_rows")
_NAMED = _STANDINGS.format(which="(SELECT * FROM @.schedule_rows WHERE name = ANY (%s::text[]))")

_TICKS = """
    SELECT body FROM @.tick_rows WHERE schedule = %s AND tick < coalesce(%s::timestamptz, 'infinity')
    ORDER BY tick DESC, cause DESC LIMIT %s"""


def due(server: Server, limit: int) -> Due:
    sql = server.sql(_DUE)
    now, later, names = server.run(lambda c: c.execute(sql, {"limit": limit}, binary=True).fetchall())[0]
    standings: list[Standing] = []
    if names:
        found = {each.schedule.name: each for each in schedules(server, names)}
        standings = [found[name] for name in dict.fromkeys(names) if name in found]
    return Due(now.astimezone(UTC), standings, None if later is None else (later - now).total_seconds())


def schedules(server: Server, names: Iterable[str] | None) -> list[Standing]:
    rows = server.read(_ALL) if names is None else server.read(_NAMED, list(names))
    standings: dict[str, Standing] = {}
    for body, rev, tick, locked_until, *job in rows:
        ...
    return list(standings.values())


def ticks(server: Server, name: str, limit: int, before: datetime | None) -> list[Tick]:
    return [decode_tick(body) for (body,) in server.read(_TICKS, name, before, limit)]
