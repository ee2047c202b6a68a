"""How attempts end: verbs as steps, which run on a connection of the store or in a caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from tenure.core.lifecycle import Charges, Completed, Lease, Outcome, Snoozed, State
from tenure.errors import LeaseLost
from tenure.ports import Answer, Busy, NotLanded
from tenure.stores.fields import CHARGED, listed
from tenure.stores.postgres.links import suspend
from tenure.stores.postgres.server import Connection, Sql, Steps
from tenure.stores.rules import (
    AMONG_OTHERS,
    ATTEMPTS_KEPT,
    COMPLETED,
    Beside,
    ending,
    evidence_of,
    json_of,
    landed,
    lease_facts,
    standing,
)

# A row has a worker if and only if it is processing (a CHECK ensures it), so the condition need not name the state.
UNDER_LEASE = "j.id = {lease}.id AND j.attempt = {lease}.attempt AND j.worker_id = {lease}.worker"

CHARGES = listed(CHARGED, **{name: f"j.{name}" for name in CHARGED} | {"limited": "j.limits IS NOT NULL"})

_COMPLETE = """
    UPDATE @.jobs AS j SET state = 'completed', result = e.result, ended_at = @now, last_worker_id = j.worker_id,
        last_outcome = 'completed', worker_id = NULL
    FROM {ends} AS e {columns} WHERE """ + UNDER_LEASE.format(lease="e")

COMPLETE = _COMPLETE.format(
    # The CASE hides the constant from the planner (see the package's second rule about ids), the SELECTs how long the
    # arrays are: it would plan the statement at each use, which takes a fifth of the call that completes one job.
    ends="(SELECT *, CASE WHEN attempt > 0 THEN %s::text END AS worker FROM unnest("
    "(SELECT %s::uuid[]), (SELECT %s::integer[]), (SELECT %s::text[])) AS u (id, attempt, result))",
    columns="",
)
#: The same inside a caller's transaction, which takes a single text parameter.
COMPLETE_THERE = (
    _COMPLETE.format(ends="json_to_recordset(:p::json)", columns="(id uuid, attempt integer, worker text, result text)")
    + " RETURNING j.id::text, j.attempt, j.worker_id"
)

#: `{waiting}`: whether to wait for a locked row.
LOCK = f"""
    SELECT j.id::text, j.attempt, j.worker_id, {CHARGES}
    FROM json_to_recordset(:p::json) AS l (id uuid, attempt integer, worker text)
    JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")}
    ORDER BY j.id FOR NO KEY UPDATE OF j {{waiting}}"""

END = f"""
    WITH e AS MATERIALIZED (
        SELECT * FROM json_to_recordset(:p::json) AS e (id uuid, attempt integer, worker text, state text,
            failures integer, crashes integer, total integer, solo boolean, together smallint,
            outcome text, delay float8, ended boolean, error text, reason text, evidence text, message text)
    ), history AS (
        INSERT INTO @.attempts (job_id, attempt, worker_id, outcome, error, evidence, started_at, ended_at)
        SELECT j.id, j.attempt, j.worker_id, e.outcome, e.reason, e.evidence, j.started_at, @now
        FROM e JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="e")}
    ), old_attempts AS (
        DELETE FROM @.attempts AS a USING e
        WHERE e.attempt > {ATTEMPTS_KEPT} AND a.job_id = e.id AND a.attempt > 1
            AND a.attempt <= e.attempt - {ATTEMPTS_KEPT}
    ), old_logs AS (
        DELETE FROM @.job_logs AS a USING e
        WHERE e.attempt > {ATTEMPTS_KEPT} AND a.job_id = e.id AND a.attempt > 1
            AND a.attempt <= e.attempt - {ATTEMPTS_KEPT})
    UPDATE @.jobs AS j SET state = e.state, failures = e.failures, crashes = e.crashes, crashes_total = e.total,
        solo = e.solo, together = e.together, run_at = coalesce(@now + e.delay * interval '1 second', j.run_at),
        ended_at = CASE WHEN e.ended THEN @now END, error = coalesce(e.error, j.error),
        message = coalesce(e.message, j.message), last_worker_id = j.worker_id, last_outcome = e.outcome,
        worker_id = NULL, started_at = NULL, last_activity_at = NULL
    FROM e WHERE {UNDER_LEASE.format(lease="e")}
    RETURNING j.id::text"""

#: A job has asked that no job begins under its key for a while.
PAUSE = """
    INSERT INTO @.key_asks (key, limit_name, what, at)
    SELECT p.key, p.name, 'pause', date_part('epoch', @now) + p.delay
    FROM json_to_recordset(:p::json) AS p (key text, name text, delay float8) RETURNING seq"""

STANDS = """
    SELECT l.ordinality, j.state, j.attempt, j.worker_id, j.last_worker_id, j.last_outcome, j.result,
        a.worker_id, a.outcome
    FROM ROWS FROM (json_to_recordset(:p::json) AS (id uuid, attempt integer)) WITH ORDINALITY AS l
    JOIN @.jobs AS j ON j.id = l.id LEFT JOIN @.attempts AS a ON a.job_id = j.id AND a.attempt = l.attempt"""


def complete(connection: Connection, sql: Sql, done: Sequence[tuple[Lease, Completed]]) -> int:
    """Complete attempts, one batch per worker. Returns how many landed."""
    landed = 0
    for worker_id in dict.fromkeys(lease.worker_id for lease, _ in done):
        mine = sorted((end for end in done if end[0].worker_id == worker_id), key=itemgetter(0))
        values = (
            worker_id,
            "{" + ",".join(lease.job_id for lease, _ in mine) + "}",
            "{" + ",".join(str(lease.attempt) for lease, _ in mine) + "}",
            [outcome.result for _, outcome in mine],
        )
        landed += connection.execute(sql(COMPLETE), values).rowcount
    return landed


def finish(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[dict[Lease, Answer]]:
    """End each attempt with its outcome, in a transaction. Returns those that landed."""
    done = sorted(((lease, end) for lease, end in ends if isinstance(end, Completed)), key=itemgetter(0))
    rows = [{**lease_facts(lease), "result": end.result} for lease, end in done]
    landed: dict[Lease, Answer] = {}
    if rows:
        landed = {Lease(*row): COMPLETED for row in (yield COMPLETE_THERE, rows)}
    others = [(lease, outcome, None) for lease, outcome in ends if not isinstance(outcome, Completed)]
    if others:
        landed |= yield from end(others)
    return landed


def finish_free(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[dict[Lease, Answer]]:
    """The same for those whose rows are not locked now."""
    rows = yield LOCK.format(waiting="SKIP LOCKED"), [lease_facts(lease) for lease, _ in ends]
    free = {Lease(*row[:3]) for row in rows}
    return (yield from finish([end for end in ends if end[0] in free]))


def finish_or_raise(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[list[Answer | Busy]]:
    """The same in a caller's transaction: a lost lease raises, so that all of it is rolled back."""
    landed = yield from finish(ends)
    refused = [end for end in ends if end[0] not in landed]
    answers = (yield from stands(refused)) if refused else []
    for answer in answers:
        if isinstance(answer, NotLanded):
            raise LeaseLost(answer.stands)
    return [landed.get(lease) or answers.pop(0) for lease, _ in ends]


def end(
    ends: Sequence[tuple[Lease, Outcome, str | None]], beside: Mapping[Lease, Beside] = MappingProxyType({})
) -> Steps[dict[Lease, Answer]]:
    """End attempts otherwise than completed, each with a message for people. Returns those that landed."""
    locked = yield LOCK.format(waiting=""), [lease_facts(lease) for lease, _, _ in ends]
    charges = {Lease(*row[:3]): row[3:] for row in locked}
    rows: list[dict[str, Any]] = []
    answers: dict[Lease, Answer] = {}
    for lease, outcome, message in ends:
        if lease not in charges or lease in answers:
            continue
        *budgets, cancel_reason, limited = charges[lease]
        charged = Charges._make((*budgets, cancel_reason is not None, *beside.get(lease, AMONG_OTHERS), limited))
        facts = ending(lease, outcome, charged, cancel_reason, message)
        rows.append({**facts, "evidence": json_of(evidence_of(outcome))})
        answers[lease] = landed(outcome, facts, charged.max_failures)
    if rows:
        yield END, rows
        waiting = {row["id"] for row in rows if row["state"] is State.WAITING}
        if waiting:
            yield from suspend((lease, outcome) for lease, outcome, _ in ends if lease.job_id in waiting)
        pauses = [
            {"key": outcome.pause.key, "name": outcome.pause.limit, "delay": outcome.delay}
            for lease, outcome, _ in ends
            if lease in answers and isinstance(outcome, Snoozed) and outcome.pause is not None
        ]
        if pauses:
            yield PAUSE, pauses
    return answers


def stands(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[list[Answer | Busy]]:
    rows = yield STANDS, [{"id": lease.job_id, "attempt": lease.attempt} for lease, _ in ends]
    found = {row[0]: (row[1:7], row[7:]) for row in rows}
    answers: list[Answer | Busy] = []
    for place, (lease, outcome) in enumerate(ends, start=1):
        job, past = found.get(place, (None, None))
        if job is not None and job[:3] == (State.PROCESSING, lease.attempt, lease.worker_id):
            answers.append(Busy())
        else:
            answers.append(standing(lease, outcome, job, past if past and past[0] is not None else None))
    return answers
