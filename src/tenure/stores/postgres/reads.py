"""What people look at: short reads, each a statement of its own, so that none holds back the vacuum."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any
from uuid import UUID

from tenure.errors import InvalidOption
from tenure.lifecycle import ENDED, GUARD, LIVE, State
from tenure.ports import AttemptView, Filter, JobView, Page, QueueView, WorkerIdentity, WorkerView
from tenure.stores.postgres.server import Server

_JOB = """id::text, task, queue, state, priority, payload, result, error, attempt, failures, max_failures, crashes,
    crashes_total, max_crashes, solo, isolated, unique_key, worker_id, stage, progress, message, checkpoint, meta,
    timeout, stale_after, enqueued_at, run_at, expires_at, started_at, last_activity_at, ended_at, cancel_reason"""


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
    )


is_id = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch  #: nothing else is the id of a job


def get(server: Server, job_id: str) -> JobView | None:
    if not is_id(job_id):
        return None
    rows = server.read(f"SELECT {_JOB} FROM @.jobs WHERE id = %s", job_id)
    return _job(rows[0]) if rows else None


def search(server: Server, where: Filter, limit: int, cursor: str | None) -> Page:
    conditions, bindings = ["TRUE"], list[Any]()
    if where.states:
        conditions.append("state = ANY(%s)")
        bindings.append(sorted(where.states))
    columns = {"task": where.task, "queue": where.queue, "worker_id": where.worker_id, "unique_key": where.unique}
    for column, value in columns.items():
        if value is not None:
            conditions.append(f"{column} = %s")
            bindings.append(value)
    if where.ended_since is not None:
        conditions.append("ended_at >= %s")
        bindings.append(where.ended_since)
    if not where.guards:
        conditions.append("queue <> %s")
        bindings.append(GUARD)
    if where.text is not None:
        conditions.append("(strpos(error, %s) > 0 OR strpos(id::text, %s) > 0)")
        bindings += [where.text, where.text]
    if cursor is not None:
        before = cursor.removeprefix("before-")
        try:
            bindings.append(UUID(before))
        except ValueError:
            before = cursor
        if before == cursor:
            raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one")
        conditions.append("id < %s")
    # By id, not by time: it rises with time (UUIDv7), and the primary key has the order already.
    rows = server.read(
        f"SELECT {_JOB} FROM @.jobs WHERE {' AND '.join(conditions)} ORDER BY id DESC LIMIT %s", *bindings, limit + 1
    )
    jobs = tuple(_job(row) for row in rows[:limit])
    return Page(jobs, f"before-{jobs[-1].id}" if len(rows) > limit else None)


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
        "renewed_at, expires_at, died_at, note, (SELECT count(*) FROM @.jobs WHERE state = 'processing' "
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
            processing=row[16],
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
