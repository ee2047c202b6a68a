"""What people look at: short reads, each a statement of its own, so that none holds back the vacuum."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from tenure.core.lifecycle import ENDED, GUARD, LIVE, State
from tenure.errors import InvalidOption
from tenure.ports import AttemptView, Ended, Filter, JobView, Page, QueueView, WorkerIdentity, WorkerView
from tenure.stores.postgres.server import Server

Sql = tuple[Any, ...]  #: a text, then the values for its %s

FEW = 10_000  #: so many that an index leads to are looked at; of more, all jobs are walked through from the newest

_JOB = """id::text, task, queue, state, priority, payload, result, error, attempt, failures, max_failures, crashes,
    crashes_total, max_crashes, solo, isolated, unique_key, worker_id, stage, progress, message, checkpoint, meta,
    timeout, stale_after, enqueued_at, run_at, expires_at, started_at, last_activity_at, ended_at, cancel_reason,
    CASE WHEN state = 'completed' THEN last_worker_id END"""


def _job(row: tuple[Any, ...]) -> JobView:
    return JobView(
        id=row[0],
        task=row[1],
        queue=row[2],
        state=State(row[3]),
        priority=row[4],
        payload=row[5],
        result=row[6],
        error=row[7],
        attempt=row[8],
        failures=row[9],
        max_failures=row[10],
        crashes=row[11],
        crashes_total=row[12],
        max_crashes=row[13],
        solo=row[14],
        isolated=row[15],
        unique=row[16],
        worker_id=row[17],
        stage=row[18],
        progress=row[19],
        message=row[20],
        checkpoint=row[21],
        meta=json.loads(row[22]),
        timeout=row[23],
        stale_after=row[24],
        enqueued_at=row[25],
        run_at=row[26],
        expires_at=row[27],
        started_at=row[28],
        last_activity_at=row[29],
        ended_at=row[30],
        cancel_reason=row[31],
        completed_by=row[32],
    )


is_id = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch  #: nothing else is the id of a job


def get(server: Server, job_id: str) -> JobView | None:
    if not is_id(job_id):
        return None
    rows = server.read(f"SELECT {_JOB} FROM @.jobs WHERE id = %s", job_id)
    return _job(rows[0]) if rows else None


def search(server: Server, where: Filter, limit: int, cursor: str | None, within: int | None) -> Page:
    """By id, not by time: it rises with time (UUIDv7), and the primary key has the order already.

    Where an index holds few enough jobs that can match, all these are looked at; else all jobs, from the newest.
    """
    span: list[Sql] = [] if cursor is None else [("id < %s", _before(cursor))]
    conditions, floor = _conditions(where) + span, None
    looked = _few(server, where, FEW if within is None else within)
    if looked is None:
        if within is not None and (floor := _floor(server, span, within)) is not None:
            span.append(("id >= %s", floor))
        # OFFSET 0 keeps the conditions out: for their sake the planner would take another index, and sort a million.
        looked = _all("SELECT * FROM @.jobs WHERE {} ORDER BY id DESC OFFSET 0", span)
    inner, *given = looked
    # Not by `id` alone: that would be the text in front.
    sql, *values = _all(
        f"SELECT {_JOB} FROM ({inner}) AS looked WHERE {{}} ORDER BY looked.id DESC LIMIT %s", conditions
    )
    rows = server.read(sql, *given, *values, limit + 1)
    jobs = tuple(_job(row) for row in rows[:limit])
    last = jobs[-1].id if len(rows) > limit else floor
    return Page(jobs, None if last is None else f"before-{last}")


def _before(cursor: str) -> UUID:
    with suppress(ValueError):
        if cursor.startswith("before-"):
            return UUID(cursor.removeprefix("before-"))
    raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one")


def _all(sql: str, conditions: Sequence[Sql]) -> Sql:
    """`sql` with its {} filled in, and their values."""
    values = [value for _, *some in conditions for value in some]
    return sql.format(" AND ".join(text for text, *_ in conditions) or "TRUE"), *values


def _floor(server: Server, span: Sequence[Sql], within: int) -> str | None:
    """The last of the next `within` ids, if there are more behind it."""
    sql, *values = _all("SELECT id::text FROM @.jobs AS j WHERE {} ORDER BY j.id DESC OFFSET %s LIMIT 2", span)
    rows = server.read(sql, *values, max(within, 1) - 1)
    return rows[0][0] if len(rows) == 2 else None


def _few(server: Server, where: Filter, most: int) -> Sql | None:
    """All jobs that can match, from the indexes that lead to them, if these hold at most so many."""
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


def _parts(where: Filter) -> tuple[list[Sql], bool]:
    """Conditions with an index for each, one of which every match meets; and whether it is sure that few rows do."""
    if where.worker_id is not None:
        return [("state = 'processing' AND worker_id = %s", where.worker_id)], True
    states = where.states or (ENDED if where.ended_since is not None else frozenset[State]())
    if where.unique is not None and where.task is not None and states and states <= LIVE:
        held = "task = %s AND unique_key = %s AND state IN ('scheduled', 'queued', 'processing')"
        return [(held, where.task, where.unique)], True
    parts: list[Sql] = []
    for state in sorted(states):
        part = f"state = '{state}'" + (" AND ended_at IS NOT NULL" if state in ENDED else "")
        if state in ENDED and where.ended_since is not None:
            parts.append((f"{part} AND ended_at >= %s", where.ended_since))
        elif state is State.QUEUED and where.queue is not None:
            parts.append((f"{part} AND queue = %s", where.queue))
        else:
            parts.append((part,))
    return parts, False


def _union(sql: str, parts: Sequence[Sql]) -> Sql:
    return " UNION ALL ".join(sql.format(text) for text, *_ in parts), *(value for _, *some in parts for value in some)


def _conditions(where: Filter) -> list[Sql]:
    found: list[Sql] = []
    exactly = {"task": where.task, "queue": where.queue, "worker_id": where.worker_id, "unique_key": where.unique}
    found += [(f"{column} = %s", value) for column, value in exactly.items() if value is not None]
    times = {
        "ended_at >= %s": where.ended_since,
        "enqueued_at >= %s": where.enqueued_since,
        "enqueued_at < %s": where.enqueued_until,
    }
    found += [(text, value) for text, value in times.items() if value is not None]
    if where.states:
        found.append(("state = ANY(%s)", sorted(where.states)))
    if not where.guards:
        found.append(("queue <> %s", GUARD))
    if where.text is not None:
        found.append(("(strpos(error, %s) > 0 OR strpos(id::text, %s) > 0)", where.text, where.text))
    return found


def ended(server: Server, since: datetime, until: datetime, most: int, sample: int) -> Ended:
    span = "ended_at >= %s AND ended_at < %s"
    states = sorted(ENDED)
    numbers = ", ".join(
        f"(SELECT count(*) FROM (SELECT FROM @.jobs WHERE state = '{state}' AND {span} LIMIT %s) AS seen)"
        for state in states
    )
    (counts,) = server.read(f"SELECT {numbers}", *[since, until, most] * len(states))
    times = server.read(
        "SELECT date_part('epoch', greatest(started_at - run_at, '0')), "
        "date_part('epoch', greatest(ended_at - started_at, '0')), id::text "
        f"FROM @.jobs WHERE state = 'completed' AND {span} ORDER BY ended_at DESC LIMIT %s",
        *(since, until, sample),
    )
    waits, runs, ids = zip(*times, strict=True) if times else ((), (), ())
    return Ended(dict(zip(states, counts, strict=True)), waits, runs, ids)


def logs(server: Server, job_id: str) -> dict[int, str]:
    if not is_id(job_id):
        return {}
    return dict(server.read("SELECT attempt, lines FROM @.job_logs WHERE job_id = %s ORDER BY attempt", job_id))


def counts(server: Server) -> dict[State, int]:
    live = ", ".join(f"(SELECT count(*) FROM @.jobs WHERE state = '{state}')" for state in LIVE)
    ended = ", ".join(
        f"(SELECT count(*) FROM @.jobs WHERE state = '{state}' AND ended_at IS NOT NULL)" for state in ENDED
    )
    (numbers,) = server.read(f"SELECT {live}, {ended}")
    found = dict(zip((*LIVE, *ENDED), numbers, strict=True))
    return {state: found[state] for state in State}


def attempts(server: Server, job_id: str) -> list[AttemptView]:
    if not is_id(job_id):
        return []
    rows = server.read(
        "SELECT job_id::text, attempt, worker_id, outcome, error, evidence, started_at, ended_at FROM @.attempts "
        "WHERE job_id = %s ORDER BY attempt",
        job_id,
    )
    return [
        AttemptView(
            job_id=row[0],
            attempt=row[1],
            worker_id=row[2],
            outcome=row[3],
            error=row[4],
            evidence=json.loads(row[5]),
            started_at=row[6],
            ended_at=row[7],
        )
        for row in rows
    ]


def workers(server: Server, *, dead: bool) -> list[WorkerView]:
    rows = server.read(
        "SELECT id, host, pid, started, boot_id, pid_namespace, runner, queues, tasks, slots, lease, started_at, "
        "renewed_at, expires_at, died_at, note, memory, (SELECT count(*) FROM @.jobs WHERE state = 'processing' "
        "AND worker_id = w.id) FROM @.workers AS w WHERE %s OR died_at IS NULL ORDER BY started_at DESC, id DESC",
        dead,
    )
    return [
        WorkerView(
            identity=WorkerIdentity(
                id=row[0],
                host=row[1],
                pid=row[2],
                started=row[3],
                boot_id=row[4],
                pid_namespace=row[5],
                runner=row[6],
                queues=tuple(json.loads(row[7])),
                tasks=tuple(json.loads(row[8])),
                slots=row[9],
                lease=row[10],
            ),
            started_at=row[11],
            renewed_at=row[12],
            expires_at=row[13],
            died_at=row[14],
            note=row[15],
            memory=row[16],
            processing=row[17],
        )
        for row in rows
    ]


def queues(server: Server) -> list[QueueView]:
    rows = server.read(
        "SELECT queue, 'queued', count(*), date_part('epoch', @now - min(run_at)) FROM @.jobs WHERE state = 'queued' "
        "GROUP BY queue UNION ALL SELECT queue, 'scheduled', count(*), NULL FROM @.jobs WHERE state = 'scheduled' "
        "GROUP BY queue UNION ALL SELECT queue, 'processing', count(*), NULL FROM @.jobs WHERE state = 'processing' "
        "GROUP BY queue"
    )
    found: defaultdict[str, dict[State, int]] = defaultdict(dict)
    oldest: dict[str, float] = {}
    for queue, state, number, age in rows:
        found[queue][State(state)] = number
        if age is not None:
            oldest[queue] = max(age, 0.0)
    paused = dict(server.read("SELECT name, paused_at FROM @.queues"))
    return [
        QueueView(
            name=name,
            paused_at=paused.get(name),
            counts={state: found[name].get(state, 0) for state in (State.SCHEDULED, State.QUEUED, State.PROCESSING)},
            oldest_queued=oldest.get(name),
        )
        for name in sorted({*found, *paused})
    ]
