"""Jobs in PostgreSQL: the verbs of clients and owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, LiteralString, TypeVar

import psycopg

from tenure.core.lifecycle import Completed, Lease, Outcome, State
from tenure.errors import BadData, StoreBusy, StoreError
from tenure.ports import (
    NO_DELAYS,
    NO_EDITS,
    Answer,
    Awaited,
    Busy,
    Draft,
    Edit,
    Enqueued,
    OnceRecord,
    OnLoop,
    Progress,
    Promoted,
)
from tenure.stores.postgres import operated, steps
from tenure.stores.postgres.claims import PostgresClaims
from tenure.stores.postgres.commits import STATUS, CommitWatch
from tenure.stores.postgres.drafts import (
    COPY,
    COPY_AT_ONCE,
    COPY_FROM,
    ENQUEUE_ONE,
    enqueue_steps,
    facts_of,
    lines,
    parts,
)
from tenure.stores.postgres.joins import WHERE, Database, Joins, Rows
from tenure.stores.postgres.server import Connection, Server, Transaction, one
from tenure.stores.postgres.serving import forget_idle
from tenure.stores.postgres.steps import UNDER_LEASE
from tenure.stores.rules import (
    COMPLETED,
    ages,
    check_drafts,
    check_outcomes,
    check_replay,
    check_reports,
    check_text,
    json_of,
    lease_facts,
    promoted,
    shortest,
    size_of,
)

T = TypeVar("T")

HELD_SECONDS = 0.5
WARY_SECONDS = 5.0

_LOG_ALONE = {"id", "attempt", "worker", "log"}
_PROGRESS = f"""
    WITH r AS MATERIALIZED (
        SELECT l.*
        FROM json_to_recordset(%s) AS l (id uuid, attempt integer, worker text, fraction float8, stage text,
            message text, checkpoint text, log text)
        JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")}
        ORDER BY l.id FOR NO KEY UPDATE OF j SKIP LOCKED){{logged}}
    UPDATE @.jobs AS j SET progress = coalesce(r.fraction, j.progress), stage = coalesce(r.stage, j.stage),
        message = coalesce(r.message, j.message), last_activity_at = @now,
        crashes = CASE WHEN r.checkpoint IS NOT NULL AND r.checkpoint IS DISTINCT FROM j.checkpoint
            THEN 0 ELSE j.crashes END,
        checkpoint = coalesce(r.checkpoint, j.checkpoint)
    FROM r WHERE {UNDER_LEASE.format(lease="r")}
    RETURNING j.id::text, j.attempt, j.worker_id"""

PROGRESS = _PROGRESS.format(logged="")
#: The same for a batch with logs: the rows of the jobs are locked first, so two batches never conflict in job_logs.
PROGRESS_LOGGED = _PROGRESS.format(
    logged=""", logged AS (
        INSERT INTO @.job_logs (job_id, attempt, lines)
        SELECT id, attempt, log FROM r WHERE log IS NOT NULL ORDER BY id
        ON CONFLICT (job_id, attempt) DO UPDATE SET lines = excluded.lines)"""
)

#: Log lines alone leave the row of their job as it is, so that a finish in a transaction with an older snapshot lands.
#: They are activity, which only jobs with `stale_after` need to record.
LOGGED = f"""
    WITH r AS MATERIALIZED (
        SELECT l.*
        FROM json_to_recordset(%s) AS l (id uuid, attempt integer, worker text, log text)
        JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")} ORDER BY l.id
    ), logged AS (
        INSERT INTO @.job_logs (job_id, attempt, lines) SELECT id, attempt, log FROM r ORDER BY id
        ON CONFLICT (job_id, attempt) DO UPDATE SET lines = excluded.lines
    ), active AS (
        UPDATE @.jobs AS j SET last_activity_at = @now
        FROM r WHERE {UNDER_LEASE.format(lease="r")} AND j.stale_after IS NOT NULL)
    SELECT id::text, attempt, worker FROM r"""

#: The first refusal of an attempt is kept: a row that changed since it was read is checked again before the write.
REFUSED = """
    WITH r AS MATERIALIZED (
        SELECT a.job_id, a.attempt, l.why
        FROM json_to_recordset(%s) AS l (id uuid, attempt integer, worker text, why text)
        JOIN @.attempts AS a ON a.job_id = l.id AND a.attempt = l.attempt AND a.worker_id = l.worker
        ORDER BY a.job_id, a.attempt FOR NO KEY UPDATE OF a)
    UPDATE @.attempts AS a SET evidence = (a.evidence::jsonb || jsonb_build_object('refused', r.why))::text
    FROM r WHERE a.job_id = r.job_id AND a.attempt = r.attempt AND a.evidence::jsonb -> 'refused' IS NULL"""

ONCE_READ = f"""
    SELECT o.value FROM (SELECT %s::uuid AS id, %s::integer AS attempt, %s::text AS worker, %s::text AS key) AS l
    JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")} LEFT JOIN @.once AS o ON o.job_id = j.id AND o.key = l.key"""

#: A value that another thread of the attempt records meanwhile is later than this statement's snapshot: only the row
#: that the conflict locks has it.
ONCE_WRITE = f"""
    WITH held AS MATERIALIZED (
        SELECT j.id, l.key, l.value
        FROM (SELECT %s::uuid AS id, %s::integer AS attempt, %s::text AS worker, %s::text AS key, %s::text AS value) l
        JOIN @.jobs AS j ON {UNDER_LEASE.format(lease="l")} FOR NO KEY UPDATE OF j
    )
    INSERT INTO @.once AS o (job_id, key, value) SELECT id, key, value FROM held
    ON CONFLICT (job_id, key) DO UPDATE SET value = o.value RETURNING o.value"""

#: In the order of the index alone: ordering by id too would sort all that are due at one instant, for each batch. A
#: trigger parks those that have limits.
PROMOTE = """
    WITH due AS MATERIALIZED (
        SELECT ctid AS place FROM @.jobs WHERE state = 'scheduled' AND run_at <= @now
        ORDER BY run_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
    ), moved AS (
        UPDATE @.jobs AS j SET state = 'queued' FROM due WHERE j.ctid = due.place
        RETURNING j.queue, j.id, j.run_at, j.limits, CASE WHEN j.last_outcome = 'crashed' THEN j.message END AS message)
    SELECT queue, id::text, message, limits IS NOT NULL FROM moved ORDER BY run_at, id"""

NEXT_DUE = "SELECT date_part('epoch', min(run_at) - @now) FROM @.jobs WHERE state = 'scheduled'"

PRUNE = """
    DELETE FROM @.jobs WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM @.jobs AS j WHERE state = %s AND ended_at IS NOT NULL AND linked IS NULL
            AND ended_at < @now - %s * interval '1 second'
            AND (SELECT true FROM @.edges AS e WHERE e.parent = j.id AND e.live LIMIT 1) IS NULL
            AND (SELECT true FROM @.edges AS e WHERE e.child = j.id AND e.live LIMIT 1) IS NULL
        ORDER BY ended_at LIMIT %s FOR UPDATE SKIP LOCKED))"""

PRUNE_SHARED = """
    DELETE FROM @.shared_signals WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM @.shared_signals WHERE sent_at < @now - %s * interval '1 second'
        ORDER BY sent_at LIMIT %s FOR UPDATE SKIP LOCKED))"""
OLD_FLOWS = """
    SELECT id::text, (SELECT true FROM @.jobs WHERE flow = f.id LIMIT 1) FROM @.flows AS f
    WHERE created_at < @now - %s * interval '1 second' AND id > %s::uuid ORDER BY id LIMIT %s"""
_FIRST_ID = "00000000-0000-0000-0000-000000000000"

PRUNE_WORKERS = "DELETE FROM @.workers WHERE died_at < @now - interval '1 day'"


class PostgresJobs(PostgresClaims):
    """The verbs of `JobStore`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._joins = Joins(self._here)
        self._commits: CommitWatch | None = None
        self._wary_until = 0.0
        self._flows_from = _FIRST_ID

    def _within(self, tx: object) -> Callable[[LiteralString, str], Rows]:
        inner = _inner(tx)
        if not isinstance(inner, Transaction):
            return partial(self._joins.run, tx)
        mine, its = self._server, inner.server
        if its is not mine and (its.conninfo, its.schema) != (mine.conninfo, mine.schema):
            raise StoreError(
                f"tx is a transaction of {its.url}, schema {its.schema}: "
                f"the jobs are in {mine.url}, schema {mine.schema}"
            )
        return inner.run

    def _here(self) -> Database:
        return Database(*self._server.fetch(WHERE)[0])

    def _ended(self, xids: Sequence[str]) -> Mapping[str, str | None]:
        return dict(self._server.fetch(STATUS, list(xids)))

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        check_drafts(drafts)
        if tx is not None:
            answers, xid = self._drive(enqueue_steps(drafts), self._within(tx))
            if isinstance(inner := _inner(tx), Transaction):
                inner.joined(answers, xid, committed)
            elif committed is not None and xid and self._commits is not None:
                self._commits.add(xid, committed)
            return answers
        if any(draft.links for draft in drafts):
            return self._in_steps(lambda: enqueue_steps(drafts, soon=True))[0]
        limited = any(draft.limits for draft in drafts)
        if len(drafts) >= COPY_FROM and not limited and not any(draft.unique for draft in drafts):
            try:
                return self._server.run(lambda connection: self._copy(connection, drafts))
            except BadData as error:
                if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                    raise
        if len(drafts) == 1 and not limited:
            one, facts = self._sql(ENQUEUE_ONE), facts_of(drafts[0])
            if rows := self._server.run(lambda connection: connection.execute(one, facts).fetchall()):
                return [Enqueued(drafts[0].id, True, State(rows[0][0]))]
        if len(parts(drafts)) > 1:
            return self._locking(lambda connection: self._enqueue(connection, drafts))
        return self._server.run(lambda connection: self._drive_on(connection, enqueue_steps(drafts, soon=True))[0])

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        check_drafts([draft])
        plain = not draft.limits and not draft.links  # the statement stores neither
        rows = (yield from self._server.on_loop(one(ENQUEUE_ONE, facts_of(draft)))) if plain else None
        return Enqueued(draft.id, True, State(rows[0][0])) if rows else None  # `enqueue` finds the job that stands

    def _copy(self, connection: Connection, drafts: Sequence[Draft]) -> list[Enqueued]:
        now = connection.execute(self._sql("SELECT @now"), binary=True).fetchall()[0][0]
        answers: list[Enqueued] = []
        with connection.cursor() as cursor, cursor.copy(self._sql(COPY)) as copy:
            for first in range(0, len(drafts), COPY_AT_ONCE):  # the server stores one part while we encode the next
                text, some = lines(drafts[first : first + COPY_AT_ONCE], now)
                copy.write("".join(text))
                answers += some
        return answers

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        return self._each(ids, lambda connection, job_id: operated.cancel(connection, self._sql, job_id, reason))

    def promote(self, *, limit: int = 1000) -> Promoted:
        def next_due() -> float | None:
            then: float | None = self._server.fetch(NEXT_DUE)[0][0]
            return None if then is None else max(0.0, then)

        then = next_due()
        if then is None or then > 0:
            return Promoted({}, then)
        moved = self._server.fetch(PROMOTE, limit)
        then = next_due()
        queued = [(queue, job_id, message) for queue, job_id, message, limited in moved if not limited]
        # Due but not promoted: another transaction has locked it. Calling again at once would be a busy loop.
        then = then if moved or then is None else max(then, HELD_SECONDS)
        return promoted(queued, then, len(moved) - len(queued))

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        return self._each(ids, lambda connection, job_id: operated.promote(connection, self._sql, job_id))

    def replay(
        self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS, delays: Mapping[str, float] = NO_DELAYS
    ) -> dict[str, Answer | None]:
        wanted = list(ids)
        check_replay(wanted, edits, delays)
        return self._each(
            wanted,
            lambda c, job_id: operated.replay(c, self._sql, job_id, edits.get(job_id), delays.get(job_id, 0.0)),
            sent=sum(len(edit.payload) + len(edit.meta) for edit in edits.values()),
        )

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        flows = set[str]()
        return self._each(
            ids,
            lambda connection, job_id: operated.delete(connection, self._sql, job_id, flows),
            last=lambda connection: operated.forget_flows(connection, self._sql, flows),
        )

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        gone = 0
        for state, age in ages(keep, keep_dead):
            values = (state, age, limit - gone)
            gone += self._server.run(lambda c, values=values: c.execute(self._sql(PRUNE), values).rowcount)  # type: ignore[misc]
        self._server.run(lambda connection: connection.execute(self._sql(PRUNE_WORKERS)))
        self._server.run(lambda connection: connection.execute(self._sql(PRUNE_SHARED), (keep, limit)))
        self._prune_flows(shortest(keep, keep_dead), limit)
        with suppress(StoreBusy):  # then the next call forgets them
            self._locking(lambda connection: forget_idle(connection, self._sql, limit))
        return gone

    def _prune_flows(self, keep: float, limit: int) -> None:
        """Delete flows of which no job is left. Those that have one are looked at again after all others."""
        rows = self._server.fetch(OLD_FLOWS, keep, self._flows_from, limit)
        empty = [row[0] for row in rows if not row[1]]
        if empty:
            self._locking(lambda c: operated.forget_flows(c, self._sql, empty, lock=operated.LOCK_FREE_FLOWS))
        self._flows_from = rows[-1][0] if len(rows) == limit else _FIRST_ID

    def pause(self, queue: str, *, paused: bool) -> bool:
        if paused:
            sql = "INSERT INTO @.queues (name, paused_at) VALUES (%s, @now) ON CONFLICT DO NOTHING RETURNING name"
        else:
            sql = "DELETE FROM @.queues WHERE name = %s RETURNING name"
        return bool(self._server.fetch(sql, queue))

    # ── owners ──

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        check_reports(reports)
        newest: dict[Lease, dict[str, Any]] = {}
        for report in sorted(reports, key=lambda report: report.lease):
            fields = {name: getattr(report, name) for name in ("fraction", "stage", "message", "checkpoint", "log")}
            known = newest.setdefault(report.lease, lease_facts(report.lease))
            known.update({name: value for name, value in fields.items() if value is not None})
        logs = [row for row in newest.values() if row.keys() == _LOG_ALONE]
        rows = [row for row in newest.values() if row.keys() != _LOG_ALONE]
        sql = PROGRESS_LOGGED if any("log" in row for row in rows) else PROGRESS
        landed = {Lease(*row) for row in self._server.fetch(sql, json_of(rows))} if rows else set[Lease]()
        if logs:
            landed |= {Lease(*row) for row in self._server.fetch(LOGGED, json_of(logs))}
        if len(landed) < len(newest):
            landed |= self._held(reports, landed)
        return [report.lease in landed for report in reports]

    def _held(self, reports: Sequence[Progress], landed: set[Lease]) -> set[Lease]:
        """Valid leases in rows that another transaction has locked: reports may be lost there, checkpoints may not."""
        missing = [report for report in reports if report.lease not in landed]
        answers = self._standing([(report.lease, Completed()) for report in missing])
        held = [report for report, answer in zip(missing, answers, strict=True) if isinstance(answer, Busy)]
        if any(report.checkpoint is not None for report in held):
            raise StoreBusy("another open transaction has locked the row of a job: its checkpoint can't be stored now")
        return {report.lease for report in held}

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        first: dict[Lease, dict[str, Any]] = {}
        for lease, why in refusals:
            check_text(why)
            first.setdefault(lease, {**lease_facts(lease), "why": why})
        sql, given = self._sql(REFUSED), json_of(list(first.values()))
        self._server.run(lambda connection: connection.execute(sql, (given,)))

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        check_text(key, value)
        if value is None:
            rows = self._server.fetch(ONCE_READ, *lease, key)
        else:
            rows = self._server.fetch(ONCE_WRITE, *lease, key, value)
        return OnceRecord(rows[0][0]) if rows else None

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        check_outcomes([outcome for _, outcome in ends])
        if tx is not None:
            return self._drive(steps.finish_or_raise(ends), self._within(tx))
        landed: dict[Lease, Answer] = {}
        try:
            if monotonic() < self._wary_until:
                raise StoreBusy("a row was locked by another transaction a moment ago")
            done = [(lease, outcome) for lease, outcome in ends if isinstance(outcome, Completed)]
            if len(done) < len(ends):
                landed = self._in_steps(lambda: steps.finish(ends), sent=size_of(ends))
            elif self._server.run(lambda connection: steps.complete(connection, self._sql, done)) == len(ends):
                return [COMPLETED] * len(ends)
        except StoreBusy:  # a locked row must not delay the other jobs
            landed = self._in_steps(lambda: steps.finish_free(ends), sent=size_of(ends))
        answers = self._standing([end for end in ends if end[0] not in landed])
        if any(isinstance(answer, Busy) for answer in answers):
            self._wary_until = monotonic() + WARY_SECONDS
        return [landed.get(lease) or answers.pop(0) for lease, _ in ends]

    def _standing(self, ends: Sequence[tuple[Lease, Outcome]]) -> list[Answer | Busy]:
        """The answers for leases whose outcome did not land in this call: it may have landed before."""
        return self._server.run(lambda connection: self._drive_on(connection, steps.stands(ends)))


def _inner(tx: object) -> object:
    return tx.tx if isinstance(tx, Awaited) else tx
