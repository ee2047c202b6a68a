"""Reads for people and their tools: short, on their own connection, so they block no writer and keep no snapshot."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import apsw

from tenure.core.lifecycle import ENDED, GUARD, LIVE, State
from tenure.ports import GONE, AttemptView, Ended, Filter, Ids, JobView, Page, QueueView, Update, WorkerView
from tenure.stores.fields import (
    COMPLETED_BY,
    IDENTITY,
    LIMITS,
    STATUS,
    VIEW,
    Decoders,
    ended_job,
    listed,
    names_of,
    queue_views,
    reader,
    update_reader,
    worker_reader,
)
from tenure.stores.instants import millis_at
from tenure.stores.rules import PAST_IDS, bad_cursor, json_of, with_end
from tenure.stores.sqlite.base import SqliteBase, instant
from tenure.stores.sqlite.file import fetch, first

_DECODERS: Decoders = {"bool": bool, "datetime": instant}
JOB = listed(VIEW, unique="unique_key", completed_by=COMPLETED_BY, limits=LIMITS)
job_of = reader(JobView, _DECODERS)
_attempt = reader(AttemptView, _DECODERS)
_worker = worker_reader(_DECODERS)
_update = update_reader(_DECODERS)
_NEWEST = (1 << 63) - 1
# SQLite's lower() changes only A to Z, which is our rule.
_CONTAINS = {
    **{field: f"instr(lower({field}), ?) > 0" for field in ("payload", "meta", "result", "error")},
    "text": "(instr(lower(error), ?) > 0 OR instr(id, ?) > 0)",
}
#: At most this many jobs are collected through an index and sorted, which takes a few milliseconds.
_GATHERED = 10_000
_BY_INDEX = {
    State.QUEUED: "INDEXED BY jobs_queued WHERE state = 'queued'",
    State.WAITING: "INDEXED BY jobs_waiting WHERE state = 'waiting'",
    State.SCHEDULED: "INDEXED BY jobs_scheduled WHERE state = 'scheduled'",
    State.PROCESSING: "INDEXED BY jobs_processing WHERE state = 'processing'",
    **{state: f"INDEXED BY jobs_ended WHERE state = '{state}' AND ended_at IS NOT NULL" for state in ENDED},
}


class SqliteReads(SqliteBase):
    """The verbs of `ReadStore`."""

    def get(self, job_id: str) -> JobView | None:
        return self._file.read(lambda connection: view_of(connection, job_id))

    def ids(self, start: str = "", end: str = "", *, cursor: str | None = None, within: int = 10_000) -> Ids:
        sql = "SELECT id FROM jobs WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT ?"
        rows = self._fetch(sql, (start, cursor or start + PAST_IDS, within))
        return with_end([row[0] for row in rows], end, within)

    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        return [_update(row) for row in self._fetch(UPDATES, (json_of(seen), limit))]

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        return self._file.read(lambda connection: _search(connection, where, limit, cursor, within))

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        return self._file.read(lambda connection: _ended(connection, since, until, most, sample))

    def latest_ended(self, state: State, *, since: datetime | None = None, limit: int = 50) -> list[JobView]:
        sql = (
            f"SELECT {JOB} FROM jobs INDEXED BY jobs_ended WHERE state = ? AND ended_at IS NOT NULL AND ended_at >= ? "
            "AND queue <> ? ORDER BY ended_at DESC LIMIT ?"
        )
        return [
            job_of(row) for row in self._fetch(sql, (state, 0 if since is None else millis_at(since), GUARD, limit))
        ]

    def logs(self, job_id: str) -> dict[int, str]:
        sql = "SELECT attempt, lines FROM job_logs WHERE job_id = ? ORDER BY attempt"
        return dict(self._fetch(sql, (job_id,)))

    def counts(self) -> dict[State, int]:
        # Each state through its own partial index: a count over the table would read the pages of all payloads.
        def step(connection: apsw.Connection) -> dict[State, int]:
            return {state: _number(connection, f"SELECT count(*) FROM jobs {_BY_INDEX[state]}") for state in State}

        return self._file.read(step)

    def attempts(self, job_id: str) -> list[AttemptView]:
        return [_attempt(row) for row in self._fetch(_ATTEMPTS, (job_id,))]

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        return [_worker(row) for row in self._fetch(_WORKERS, {**self._moment(), "dead": int(dead)})]

    def queues(self) -> list[QueueView]:
        now = self._now()
        return self._file.read(lambda connection: _queues(connection, now))

    def paused(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._fetch("SELECT name FROM queues WHERE paused_at IS NOT NULL"))


# No column changes with every change of a row, so the mark has what changes. (A new error comes with a new count.)
UPDATES = f"""
    SELECT seen.key, coalesce(state || json_array(attempt, failures, crashes_total, run_at, started_at, ended_at,
            cancel_reason IS NULL, progress, stage, message), '{GONE}') AS mark,
        iif(state = 'completed', result, NULL), {listed(STATUS, id="jobs.id")}
    FROM json_each(?) AS seen LEFT JOIN jobs ON jobs.id = seen.key WHERE mark <> seen.value LIMIT ?"""
_ATTEMPTS = f"SELECT {listed(names_of(AttemptView))} FROM attempts WHERE job_id = ? ORDER BY attempt"
#: When a lease ends, in ms of Unix time. One of a former boot ended when this one began, at the latest: before any
#: `now` that a caller took earlier than this read.
LEASE_ENDS = """
    iif(boot_id = :boot_id, :now + expires_boot - :boot,
        min(:now - max(:boot, 1), renewed_at + CAST(lease * 1000 AS INTEGER)))"""
_WORKERS = f"""
    SELECT {listed(IDENTITY)}, started_at, renewed_at, {LEASE_ENDS}, died_at, note,
        (SELECT count(*) FROM jobs INDEXED BY jobs_processing WHERE state = 'processing' AND worker_id = workers.id),
        memory
    FROM workers WHERE :dead OR died_at IS NULL ORDER BY started_at DESC, id DESC"""


def view_of(connection: apsw.Connection, job_id: str) -> JobView | None:
    row = first(connection, f"SELECT {JOB} FROM jobs WHERE id = ?", (job_id,))
    return None if row is None else job_of(row)


def _search(connection: apsw.Connection, where: Filter, limit: int, cursor: str | None, within: int | None) -> Page:
    conditions, bindings = _conditions(where)
    before = _before(cursor)
    gathered, floor = _gathered(connection, where, within or _GATHERED), None
    if gathered is not None:
        conditions.append("seq IN (SELECT value FROM json_each(?))")
        bindings.append(gathered)
    elif within is not None:
        floor = _floor(connection, before, within)
        conditions.append("seq >= ?")
        bindings.append(floor or 0)
    rows = fetch(
        connection,
        # In order of seq, by rowid: any other index would have to sort, and could not stop at the limit.
        f"SELECT {JOB}, seq FROM jobs NOT INDEXED WHERE {' AND '.join(conditions)} AND seq < ? "
        "ORDER BY seq DESC LIMIT ?",
        (*bindings, before, limit + 1),
    )
    jobs = tuple(job_of(row[:-1]) for row in rows[:limit])
    if len(rows) > limit:
        return Page(jobs, f"before-{rows[limit - 1][-1]}")
    return Page(jobs) if floor is None else Page(jobs, f"before-{floor}", _enqueued_at(connection, floor))


def _conditions(where: Filter) -> tuple[list[str], list[Any]]:
    asked: dict[str, Any] = {
        "task = ?": where.task,
        "queue = ?": where.queue,
        "worker_id = ?": where.worker_id,
        "unique_key = ?": where.unique,
        "flow = ?": where.flow,
        "ended_at >= ?": where.ended_since and millis_at(where.ended_since),
        "ended_at < ?": where.ended_until and millis_at(where.ended_until),
        "enqueued_at >= ?": where.enqueued_since and millis_at(where.enqueued_since),
        "enqueued_at < ?": where.enqueued_until and millis_at(where.enqueued_until),
        "queue <> ?": None if where.guards else GUARD,
    }
    given = {condition: value for condition, value in asked.items() if value is not None}
    conditions, bindings = ["TRUE", *given], [*given.values()]
    if where.states:
        conditions.append(f"state IN ({', '.join('?' * len(where.states))})")
        bindings += sorted(where.states)
    for field, text in where.parts:
        conditions.append(_CONTAINS[field])
        bindings += [text] * _CONTAINS[field].count("?")
    return conditions, bindings


def _before(cursor: str | None) -> int:
    if cursor is None:
        return _NEWEST
    before = cursor.removeprefix("before-")
    if before == cursor or not before.isdecimal() or len(before) > 18:
        raise bad_cursor(cursor)
    return int(before)


def _gathered(connection: apsw.Connection, where: Filter, most: int) -> str | None:
    """The seq of every job that can match by the indexes, as JSON; None: more than `most`, or no index narrows it."""
    states, narrower = where.states or frozenset(State), dict.fromkeys(State, "")
    if where.worker_id is not None:
        states &= {State.PROCESSING}
        narrower[State.PROCESSING] = " AND worker_id = :worker"
    if where.ended_since is not None or where.ended_until is not None:
        states &= ENDED
        narrower |= dict.fromkeys(ENDED, " AND ended_at >= :since AND ended_at < :until")
    if where.queue is not None:
        narrower[State.QUEUED] = " AND queue = :queue"
    if not states:
        return "[]"
    facts: dict[str, Any] = {"flow": where.flow, "most": most + 1}
    if where.flow is not None:
        ways = ["SELECT seq FROM jobs INDEXED BY jobs_flow WHERE flow = :flow AND flow IS NOT NULL LIMIT :most"]
        return _as_json(connection, ways, facts, most)
    if states == frozenset(State):
        return None
    ways = [f"SELECT * FROM (SELECT seq FROM jobs {_BY_INDEX[each]}{narrower[each]} LIMIT :most)" for each in states]
    facts |= {
        "worker": where.worker_id,
        "queue": where.queue,
        "since": 0 if where.ended_since is None else millis_at(where.ended_since),
        "until": _NEWEST if where.ended_until is None else millis_at(where.ended_until),
    }
    return _as_json(connection, ways, facts, most)


def _as_json(connection: apsw.Connection, ways: list[str], facts: Mapping[str, Any], most: int) -> str | None:
    found = first(connection, f"SELECT count(*), json_group_array(seq) FROM ({' UNION ALL '.join(ways)})", facts)
    return None if found is None or found[0] > most else found[1]


def _floor(connection: apsw.Connection, before: int, within: int) -> int | None:
    """The seq of the last of the next `within` rows; None: there are fewer."""
    found = first(
        connection,
        "SELECT seq FROM jobs NOT INDEXED WHERE seq < ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
        (before, within - 1),
    )
    return None if found is None else found[0]


def _enqueued_at(connection: apsw.Connection, seq: int) -> datetime | None:
    row = first(connection, "SELECT enqueued_at FROM jobs WHERE seq = ?", (seq,))
    return None if row is None else instant(row[0])


def _ended(connection: apsw.Connection, since: datetime, until: datetime, most: int, sample: int) -> Ended:
    span = "ended_at >= :since AND ended_at < :until"
    facts = {"since": millis_at(since), "until": millis_at(until), "most": most, "sample": sample}
    counts = {
        state: _number(
            connection,
            "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_ended "
            f"WHERE state = '{state}' AND {span} LIMIT :most)",
            facts,
        )
        for state in State
        if state in ENDED
    }
    last = [
        ended_job(job_id, task, state, bool(stumbles), *times)
        for state in sorted(ENDED)
        for job_id, task, stumbles, *times in fetch(
            connection,
            "SELECT id, task, failures + crashes_total, (started_at - run_at) / 1000.0, "
            "(ended_at - started_at) / 1000.0 FROM jobs INDEXED BY jobs_ended "
            f"WHERE state = '{state}' AND {span} ORDER BY ended_at DESC LIMIT :sample",
            facts,
        )
    ]
    return Ended(counts, tuple(last))


def _number(connection: apsw.Connection, sql: str, bindings: Any = ()) -> int:
    row = first(connection, sql, bindings)
    return 0 if row is None else int(row[0])


def _queues(connection: apsw.Connection, now: int) -> list[QueueView]:
    found: defaultdict[str, dict[State, int]] = defaultdict(dict)
    for state in LIVE:
        for queue, count in connection.execute(f"SELECT queue, count(*) FROM jobs {_BY_INDEX[state]} GROUP BY queue"):
            found[queue][state] = count
    paused = dict(fetch(connection, "SELECT name, paused_at FROM queues WHERE paused_at IS NOT NULL"))
    oldest = {name: _oldest(connection, name, now) for name in found}
    return queue_views(found, {name: instant(at) for name, at in paused.items()}, oldest)


def _oldest(connection: apsw.Connection, queue: str, now: int) -> float | None:
    row = first(
        connection, "SELECT min(run_at) FROM jobs INDEXED BY jobs_queued WHERE state = 'queued' AND queue = ?", (queue,)
    )
    return None if row is None or row[0] is None else max(0.0, (now - row[0]) / 1000)
