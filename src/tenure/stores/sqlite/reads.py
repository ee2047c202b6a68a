"""What people look at. Short reads on their own connection: they hold up no writer, and no long snapshot."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import apsw

from tenure.core.lifecycle import ENDED, GUARD, State
from tenure.errors import InvalidOption
from tenure.ports import AttemptView, Ended, Filter, JobView, Page, QueueView, WorkerIdentity, WorkerView
from tenure.stores.sqlite.file import fetch, first

_JOB = """id, task, queue, state, priority, payload, result, error, attempt, failures, max_failures, crashes,
    crashes_total, max_crashes, solo, isolated, unique_key, worker_id, stage, progress, message, checkpoint, meta,
    timeout, stale_after, enqueued_at, run_at, expires_at, started_at, last_activity_at, ended_at, cancel_reason,
    CASE WHEN state = 'completed' THEN last_worker_id END"""
_NEWEST = (1 << 63) - 1
#: So many jobs may be gathered by an index and put in order: it takes a few milliseconds.
_GATHERED = 10_000
_BY_INDEX = {
    State.QUEUED: "INDEXED BY jobs_queued WHERE state = 'queued'",
    State.SCHEDULED: "INDEXED BY jobs_scheduled WHERE state = 'scheduled'",
    State.PROCESSING: "INDEXED BY jobs_processing WHERE state = 'processing'",
    **{state: f"INDEXED BY jobs_ended WHERE state = '{state}' AND ended_at IS NOT NULL" for state in ENDED},
}


def millis(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _maybe_at(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _at(milliseconds)


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
        solo=bool(row[14]),
        isolated=bool(row[15]),
        unique=row[16],
        worker_id=row[17],
        stage=row[18],
        progress=row[19],
        message=row[20],
        checkpoint=row[21],
        meta=json.loads(row[22]),
        timeout=row[23],
        stale_after=row[24],
        enqueued_at=_at(row[25]),
        run_at=_at(row[26]),
        expires_at=_maybe_at(row[27]),
        started_at=_maybe_at(row[28]),
        last_activity_at=_maybe_at(row[29]),
        ended_at=_maybe_at(row[30]),
        cancel_reason=row[31],
        completed_by=row[32],
    )


def get(connection: apsw.Connection, job_id: str) -> JobView | None:
    row = first(connection, f"SELECT {_JOB} FROM jobs WHERE id = ?", (job_id,))
    return None if row is None else _job(row)


def search(connection: apsw.Connection, where: Filter, limit: int, cursor: str | None, within: int | None) -> Page:
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
        # By its number a row is found in order. No other index is in order, or knows how far to go.
        f"SELECT {_JOB}, seq FROM jobs NOT INDEXED WHERE {' AND '.join(conditions)} AND seq < ? "
        "ORDER BY seq DESC LIMIT ?",
        (*bindings, before, limit + 1),
    )
    last = rows[limit - 1][-1] if len(rows) > limit else floor
    return Page(tuple(_job(row) for row in rows[:limit]), None if last is None else f"before-{last}")


def _conditions(where: Filter) -> tuple[list[str], list[Any]]:
    asked: dict[str, Any] = {
        "task = ?": where.task,
        "queue = ?": where.queue,
        "worker_id = ?": where.worker_id,
        "unique_key = ?": where.unique,
        "ended_at >= ?": where.ended_since and millis(where.ended_since),
        "enqueued_at >= ?": where.enqueued_since and millis(where.enqueued_since),
        "enqueued_at < ?": where.enqueued_until and millis(where.enqueued_until),
        "queue <> ?": None if where.guards else GUARD,
    }
    told = {condition: value for condition, value in asked.items() if value is not None}
    conditions, bindings = ["TRUE", *told], [*told.values()]
    if where.states:
        conditions.append(f"state IN ({', '.join('?' * len(where.states))})")
        bindings += sorted(where.states)
    if where.text is not None:
        conditions.append("(instr(error, ?) > 0 OR instr(id, ?) > 0)")
        bindings += [where.text, where.text]
    return conditions, bindings


def _before(cursor: str | None) -> int:
    if cursor is None:
        return _NEWEST
    before = cursor.removeprefix("before-")
    if before == cursor or not before.isdecimal() or len(before) > 18:
        raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one")
    return int(before)


def _gathered(connection: apsw.Connection, where: Filter, most: int) -> str | None:
    """The numbers of all jobs that an index knows to come into question, as JSON; None: more than `most`, or any."""
    states, narrower = where.states or frozenset(State), dict.fromkeys(State, "")
    if where.worker_id is not None:
        states &= {State.PROCESSING}
        narrower[State.PROCESSING] = " AND worker_id = :worker"
    if where.ended_since is not None:
        states &= ENDED
        narrower |= dict.fromkeys(ENDED, " AND ended_at >= :since")
    if where.queue is not None:
        narrower[State.QUEUED] = " AND queue = :queue"
    if not states:
        return "[]"
    if states == frozenset(State):
        return None
    ways = [f"SELECT * FROM (SELECT seq FROM jobs {_BY_INDEX[each]}{narrower[each]} LIMIT :most)" for each in states]
    facts = {
        "most": most + 1,
        "worker": where.worker_id,
        "queue": where.queue,
        "since": where.ended_since and millis(where.ended_since),
    }
    found = first(connection, f"SELECT count(*), json_group_array(seq) FROM ({' UNION ALL '.join(ways)})", facts)
    return None if found is None or found[0] > most else found[1]


def _floor(connection: apsw.Connection, before: int, within: int) -> int | None:
    """The last of so many rows; None: there are not as many."""
    found = first(
        connection,
        "SELECT seq FROM jobs NOT INDEXED WHERE seq < ? ORDER BY seq DESC LIMIT 1 OFFSET ?",
        (before, within - 1),
    )
    return None if found is None else found[0]


def ended(connection: apsw.Connection, since: datetime, until: datetime, most: int, sample: int) -> Ended:
    span = "ended_at >= :since AND ended_at < :until"
    facts = {"since": millis(since), "until": millis(until), "most": most, "sample": sample}
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
    last = fetch(
        connection,
        "SELECT max(started_at - run_at, 0) / 1000.0, max(ended_at - started_at, 0) / 1000.0, id FROM jobs "
        f"INDEXED BY jobs_ended WHERE state = 'completed' AND {span} ORDER BY ended_at DESC LIMIT :sample",
        facts,
    )
    waits, runs, ids = zip(*last, strict=True) if last else ((), (), ())
    return Ended(counts, waits, runs, ids)


def logs(connection: apsw.Connection, job_id: str) -> dict[int, str]:
    return dict(fetch(connection, "SELECT attempt, lines FROM job_logs WHERE job_id = ? ORDER BY attempt", (job_id,)))


def counts(connection: apsw.Connection) -> dict[State, int]:
    # Each state by its own partial index: a count over the table would read every payload's page.
    live = {"queued": "jobs_queued", "scheduled": "jobs_scheduled", "processing": "jobs_processing"}
    found = {
        state: _number(connection, f"SELECT count(*) FROM jobs INDEXED BY {index} WHERE state = '{state}'")
        for state, index in live.items()
    }
    for state in ("completed", "dead", "cancelled"):
        found[state] = _number(
            connection,
            f"SELECT count(*) FROM jobs INDEXED BY jobs_ended WHERE state = '{state}' AND ended_at IS NOT NULL",
        )
    return {state: found[state] for state in State}


def _number(connection: apsw.Connection, sql: str, bindings: Any = ()) -> int:
    row = first(connection, sql, bindings)
    return 0 if row is None else int(row[0])


def attempts(connection: apsw.Connection, job_id: str) -> list[AttemptView]:
    rows = fetch(
        connection,
        "SELECT job_id, attempt, worker_id, outcome, error, evidence, started_at, ended_at FROM attempts "
        "WHERE job_id = ? ORDER BY attempt",
        (job_id,),
    )
    return [
        AttemptView(
            job_id=row[0],
            attempt=row[1],
            worker_id=row[2],
            outcome=row[3],
            error=row[4],
            evidence=json.loads(row[5]),
            started_at=_at(row[6]),
            ended_at=_at(row[7]),
        )
        for row in rows
    ]


def workers(connection: apsw.Connection, *, dead: bool, now: int, boot: int) -> list[WorkerView]:
    rows = fetch(
        connection,
        "SELECT id, host, pid, started, boot_id, pid_namespace, runner, queues, tasks, slots, lease, started_at, "
        "renewed_at, expires_boot, died_at, note, memory, (SELECT count(*) FROM jobs INDEXED BY jobs_processing "
        "WHERE state = 'processing' AND worker_id = workers.id) FROM workers "
        "WHERE ? OR died_at IS NULL ORDER BY started_at DESC, id DESC",
        (int(dead),),
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
            started_at=_at(row[11]),
            renewed_at=_at(row[12]),
            expires_at=_at(now + row[13] - boot),
            died_at=_maybe_at(row[14]),
            note=row[15],
            memory=row[16],
            processing=row[17],
        )
        for row in rows
    ]


def queues(connection: apsw.Connection, now: int) -> list[QueueView]:
    found: defaultdict[str, dict[State, int]] = defaultdict(dict)
    for state, index in (("queued", "jobs_queued"), ("scheduled", "jobs_scheduled"), ("processing", "jobs_processing")):
        for queue, count in connection.execute(
            f"SELECT queue, count(*) FROM jobs INDEXED BY {index} WHERE state = '{state}' GROUP BY queue"
        ):
            found[queue][State(state)] = count
    paused = dict(fetch(connection, "SELECT name, paused_at FROM queues WHERE paused_at IS NOT NULL"))
    return [
        QueueView(
            name=name,
            paused_at=_maybe_at(paused.get(name)),
            counts={state: found[name].get(state, 0) for state in (State.SCHEDULED, State.QUEUED, State.PROCESSING)},
            oldest_queued=_oldest(connection, name, now),
        )
        for name in sorted({*found, *paused})
    ]


def _oldest(connection: apsw.Connection, queue: str, now: int) -> float | None:
    row = first(
        connection, "SELECT min(run_at) FROM jobs INDEXED BY jobs_queued WHERE state = 'queued' AND queue = ?", (queue,)
    )
    return None if row is None or row[0] is None else max(0.0, (now - row[0]) / 1000)
