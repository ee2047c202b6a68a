"""Reads for people and their tools: short, each a statement of its own, so that none holds back the vacuum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure.core.lifecycle import ENDED, GUARD, LIVE, State
from tenure.ports import GONE, AttemptView, Ended, Filter, Ids, JobView, Page, QueueView, Update, WorkerView
from tenure.stores.fields import (
    COMPLETED_BY,
    IDENTITY,
    STATUS,
    VIEW,
    ended_job,
    listed,
    names_of,
    queue_views,
    reader,
    update_reader,
    worker_reader,
)
from tenure.stores.postgres.base import PostgresBase
from tenure.stores.postgres.server import Server
from tenure.stores.rules import bad_cursor, is_id, json_of

Values = tuple[Any, ...]  #: a SQL text, then the values for its %s

FEW = 10_000  #: up to this many matches of an index are sorted; beyond, all jobs are scanned from the newest

_FOLDED = 'lower({} COLLATE "C")'  #: A to Z only, whatever the database's collation

JOB = listed(
    VIEW,
    id="id::text",
    unique="unique_key",
    flow="flow::text",
    linked="linked IS NOT NULL",
    completed_by=COMPLETED_BY,
    limits="coalesce(limits, '[]')",
)
job_of = reader(JobView)
_attempt = reader(AttemptView)
_worker = worker_reader()
_update = update_reader()

# A row's mark is the transaction that wrote it.
_MARK = f"coalesce(j.xmin::text, '{GONE}')"
UPDATES = f"""
    SELECT seen.key, {_MARK}, CASE WHEN state = 'completed' THEN result END, {listed(STATUS, id="id::text")}
    FROM json_each_text(%s::json) AS seen LEFT JOIN @.jobs AS j ON j.id = seen.key::uuid
    WHERE {_MARK} <> seen.value LIMIT %s"""
# The server reads the primary key alone, and selects: a walk over a million jobs sends only the ids that match.
_IDS = """
    SELECT coalesce(array_agg(id ORDER BY id DESC) FILTER (WHERE right(id, length(%s::text)) = %s), '{}'),
        min(id), count(*)
    FROM (SELECT j.id::text COLLATE "C" AS id FROM @.jobs AS j WHERE j.id >= %s AND j.id {below} %s
        ORDER BY j.id DESC LIMIT %s) AS looked"""
IDS, IDS_BELOW = (_IDS.replace("{below}", each) for each in ("<=", "<"))
_ATTEMPTS = f"""
    SELECT {listed(names_of(AttemptView), job_id="job_id::text")} FROM @.attempts WHERE job_id = %s ORDER BY attempt"""
_QUEUES = """
    SELECT queue, 'queued', count(*), date_part('epoch', @now - min(run_at)) FROM @.jobs WHERE state = 'queued'
    GROUP BY queue
    UNION ALL SELECT queue, 'scheduled', count(*), NULL FROM @.jobs WHERE state = 'scheduled' GROUP BY queue
    UNION ALL SELECT queue, 'waiting', count(*), NULL FROM @.jobs WHERE state = 'waiting' GROUP BY queue
    UNION ALL SELECT queue, 'processing', count(*), NULL FROM @.jobs WHERE state = 'processing' GROUP BY queue"""
_WORKERS = f"""
    SELECT {listed(IDENTITY)}, started_at, renewed_at, expires_at, died_at, note,
        (SELECT count(*) FROM @.jobs WHERE state = 'processing' AND worker_id = w.id), memory
    FROM @.workers AS w WHERE %s OR died_at IS NULL ORDER BY started_at DESC, id DESC"""
_BOUNDS = [str(UUID(each * 32)) for each in "0f"]  #: the lowest possible id, and the highest


class PostgresReads(PostgresBase):
    """The verbs of `ReadStore`."""

    def get(self, job_id: str) -> JobView | None:
        if not is_id(job_id):
            return None
        rows = self._server.read(f"SELECT {JOB} FROM @.jobs WHERE id = %s", job_id)
        return job_of(rows[0]) if rows else None

    def ids(self, start: str = "", end: str = "", *, cursor: str | None = None, within: int = 10_000) -> Ids:
        first, last = (start + each[len(start) :] for each in _BOUNDS)
        if not is_id(first):
            return Ids(())
        sql, top = (IDS, last) if cursor is None else (IDS_BELOW, cursor)
        ((found, lowest, looked),) = self._server.read(sql, end, end, first, top, within)
        return Ids(tuple(found), lowest if looked == within else None)

    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        known = {job_id: mark for job_id, mark in seen.items() if is_id(job_id)}
        gone = [Update(each, GONE, None, None) for each in seen if each not in known and seen[each] != GONE]
        rows = self._server.fetch(UPDATES, json_of(known), limit)  # handlers and callers wait for it, not people
        return [*gone, *map(_update, rows)][:limit]

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        """Ordered by id: it rises with time (UUIDv7), and the primary key already has that order.

        If an index holds few enough jobs that can match, only these are examined; else all jobs, from the newest.
        """
        span: list[Values] = [] if cursor is None else [("id < %s", _before(cursor))]
        looked, floor = _few(self._server, where, FEW if within is None else within), None
        if looked is None:
            if within is not None and (floor := _floor(self._server, span, within)) is not None:
                span.append(("id >= %s", floor[0]))
            # OFFSET 0 keeps the conditions out: the planner would choose another index for them and sort a million.
            looked = _all("SELECT * FROM @.jobs WHERE {} ORDER BY id DESC OFFSET 0", span)
        inner, *given = looked
        conditions = _conditions(where) + span
        # Not by `id` alone: that would be the selected text.
        sql, *values = _all(
            f"SELECT {JOB} FROM ({inner}) AS looked WHERE {{}} ORDER BY looked.id DESC LIMIT %s", conditions
        )
        rows = self._server.read(sql, *given, *values, limit + 1)
        jobs = tuple(job_of(row) for row in rows[:limit])
        if len(rows) > limit:
            return Page(jobs, f"before-{jobs[-1].id}")
        return Page(jobs) if floor is None else Page(jobs, f"before-{floor[0]}", floor[1])

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        span = "ended_at >= %s AND ended_at < %s"
        states = sorted(ENDED)
        numbers = ", ".join(
            f"(SELECT count(*) FROM (SELECT FROM @.jobs WHERE state = '{state}' AND {span} LIMIT %s) AS seen)"
            for state in states
        )
        (counts,) = self._server.read(f"SELECT {numbers}", *[since, until, most] * len(states))
        last = " UNION ALL ".join(
            f"(SELECT id::text, task, '{state}', failures + crashes_total > 0, "
            "date_part('epoch', started_at - run_at), date_part('epoch', ended_at - started_at) "
            f"FROM @.jobs WHERE state = '{state}' AND {span} ORDER BY ended_at DESC LIMIT %s)"
            for state in states
        )
        rows = self._server.read(last, *[since, until, sample] * len(states))
        return Ended(dict(zip(states, counts, strict=True)), tuple(ended_job(*row) for row in rows))

    def latest_ended(self, state: State, *, since: datetime | None = None, limit: int = 50) -> list[JobView]:
        rows = self._server.read(
            f"SELECT {JOB} FROM @.jobs WHERE state = %s AND ended_at IS NOT NULL "
            "AND ended_at >= coalesce(%s::timestamptz, '-infinity') AND queue <> %s ORDER BY ended_at DESC LIMIT %s",
            *(state, since, GUARD, limit),
        )
        return [job_of(row) for row in rows]

    def logs(self, job_id: str) -> dict[int, str]:
        if not is_id(job_id):
            return {}
        sql = "SELECT attempt, lines FROM @.job_logs WHERE job_id = %s ORDER BY attempt"
        return dict(self._server.read(sql, job_id))

    def counts(self) -> dict[State, int]:
        live = ", ".join(f"(SELECT count(*) FROM @.jobs WHERE state = '{state}')" for state in LIVE)
        ended = ", ".join(
            f"(SELECT count(*) FROM @.jobs WHERE state = '{state}' AND ended_at IS NOT NULL)" for state in ENDED
        )
        (numbers,) = self._server.read(f"SELECT {live}, {ended}")
        found = dict(zip((*LIVE, *ENDED), numbers, strict=True))
        return {state: found[state] for state in State}

    def attempts(self, job_id: str) -> list[AttemptView]:
        return [_attempt(row) for row in self._server.read(_ATTEMPTS, job_id)] if is_id(job_id) else []

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        return [_worker(row) for row in self._server.read(_WORKERS, dead)]

    def queues(self) -> list[QueueView]:
        rows = self._server.read(_QUEUES)
        found: defaultdict[str, dict[State, int]] = defaultdict(dict)
        oldest: dict[str, float] = {}
        for queue, state, number, age in rows:
            found[queue][State(state)] = number
            if age is not None:
                oldest[queue] = max(age, 0.0)
        paused = dict(self._server.read("SELECT name, paused_at FROM @.queues"))
        return queue_views(found, paused, oldest)

    def paused(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._server.fetch("SELECT name FROM @.queues"))


def _before(cursor: str) -> UUID:
    with suppress(ValueError):
        if cursor.startswith("before-"):
            return UUID(cursor.removeprefix("before-"))
    raise bad_cursor(cursor)


def _all(sql: str, conditions: Sequence[Values]) -> Values:
    """`sql` with its {} replaced by conditions, and the values of these."""
    values = [value for _, *some in conditions for value in some]
    return sql.format(" AND ".join(text for text, *_ in conditions) or "TRUE"), *values


def _floor(server: Server, span: Sequence[Values], within: int) -> tuple[str, datetime] | None:
    """The last of the next `within` ids, and when it was enqueued, if there are more after it."""
    sql, *values = _all("SELECT j.id FROM @.jobs AS j WHERE {} ORDER BY j.id DESC OFFSET %s LIMIT 2", span)
    rows = server.read(
        f"SELECT id::text, (SELECT enqueued_at FROM @.jobs WHERE id = near.id) FROM ({sql}) AS near",
        *(*values, max(within, 1) - 1),
    )
    return rows[0] if len(rows) == 2 else None


def _few(server: Server, where: Filter, most: int) -> Values | None:
    """All jobs that can match, from the indexes that contain them, if there are at most `FEW`."""
    parts, few = _parts(where)
    if not parts:
        return None
    if not few:
        each = "SELECT FROM (SELECT FROM @.jobs WHERE {} LIMIT %s) AS part"
        seen, *values = _union(each, [(*part, most + 1) for part in parts])
        ((number,),) = server.read(f"SELECT count(*) FROM ({seen} LIMIT %s) AS seen", *values, most + 1)
        if number > most:
            return None
    looked, *values = _union("SELECT * FROM @.jobs WHERE {}", parts)
    return f"{looked} OFFSET 0", *values


def _parts(where: Filter) -> tuple[list[Values], bool]:
    """Conditions, each with an index; every match meets one of them. And whether few rows are certain to meet them."""
    if where.worker_id is not None:
        return [("state = 'processing' AND worker_id = %s", where.worker_id)], True
    if where.flow is not None:
        return [_in_flow(where.flow)], False
    spanned = where.ended_since is not None or where.ended_until is not None
    states = where.states or (ENDED if spanned else frozenset[State]())
    if where.unique is not None and where.task is not None and states and states <= LIVE:
        held = "task = %s AND unique_key = %s AND state IN ('waiting', 'scheduled', 'queued', 'processing')"
        return [(held, where.task, where.unique)], True
    parts: list[Values] = []
    for state in sorted(states):
        part = f"state = '{state}'" + (" AND ended_at IS NOT NULL" if state in ENDED else "")
        if state in ENDED and spanned:
            ends = {"ended_at >= %s": where.ended_since, "ended_at < %s": where.ended_until}
            given = {text: at for text, at in ends.items() if at is not None}
            parts.append((" AND ".join((part, *given)), *given.values()))
        elif state is State.QUEUED and where.queue is not None:
            parts.append((f"{part} AND queue = %s", where.queue))
        else:
            parts.append((part,))
    return parts, False


def _in_flow(flow: str) -> Values:
    return ("flow = %s", flow) if is_id(flow) else ("FALSE",)


def _union(sql: str, parts: Sequence[Values]) -> Values:
    return " UNION ALL ".join(sql.format(text) for text, *_ in parts), *(value for _, *some in parts for value in some)


def _conditions(where: Filter) -> list[Values]:
    found: list[Values] = []
    exactly = {"task": where.task, "queue": where.queue, "worker_id": where.worker_id, "unique_key": where.unique}
    found += [(f"{column} = %s", value) for column, value in exactly.items() if value is not None]
    if where.flow is not None:
        found.append(_in_flow(where.flow))
    times = {
        "ended_at >= %s": where.ended_since,
        "ended_at < %s": where.ended_until,
        "enqueued_at >= %s": where.enqueued_since,
        "enqueued_at < %s": where.enqueued_until,
    }
    found += [(text, value) for text, value in times.items() if value is not None]
    if where.states:
        found.append(("state = ANY(%s)", sorted(where.states)))
    if not where.guards:
        found.append(("queue <> %s", GUARD))
    for field, text in where.parts:
        columns = (_FOLDED.format("error"), "id::text") if field == "text" else (_FOLDED.format(field),)
        found.append((f"({' OR '.join(f'strpos({each}, %s) > 0' for each in columns)})", *[text] * len(columns)))
    return found
