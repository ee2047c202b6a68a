"""Workers in PostgreSQL: their rows, their leases, and the jobs of workers that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, LiteralString

from tenure.core.lifecycle import MOST_GROUPS, MOST_TOGETHER, Completed, Lease, Outcome, State, groups_of
from tenure.errors import StoreBusy
from tenure.ports import Answer, Hung, Landed, Rescued, WorkerIdentity
from tenure.stores.fields import IDENTITY, identity_row, listed
from tenure.stores.postgres import steps
from tenure.stores.postgres.base import PostgresBase, cut_off_after
from tenure.stores.postgres.server import Connection
from tenure.stores.rules import (
    COMPLETED,
    MANY_QUEUES,
    Beside,
    Cause,
    check_outcomes,
    cleared,
    ended_note,
    is_id,
    lost,
    rescued,
    settled,
    size_of,
    used_before,
)

REGISTER = f"""
    INSERT INTO @.workers ({listed(IDENTITY)}, started_at, renewed_at, expires_at)
    VALUES ({", ".join(["%s"] * len(IDENTITY))}, @now, @now, @now + %s * interval '1 second')
    ON CONFLICT DO NOTHING"""

RENEW = """
    UPDATE @.workers AS w SET renewed_at = @now, expires_at = @now + w.lease * interval '1 second', note = r.note,
        memory = coalesce(r.memory, w.memory)
    FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS r (id, note, memory)
    WHERE w.id = r.id AND w.died_at IS NULL RETURNING w.id"""

DECLARE = """
    UPDATE @.workers SET died_at = @now, death = 'crash' WHERE id = ANY(%s::text[]) AND died_at IS NULL RETURNING id"""

DECLARE_EXPIRED = """
    UPDATE @.workers SET died_at = @now, death = 'host'
    WHERE died_at IS NULL AND expires_at < @now AND (%(id)s::text IS NULL OR id = %(id)s)
      AND @now <= coalesce(%(until)s::timestamptz, 'infinity')
      AND (%(witness)s::text IS NULL OR EXISTS (SELECT FROM @.workers AS w WHERE w.id = %(witness)s
        AND w.died_at IS NULL AND w.expires_at - @now > w.lease / 3 * interval '1 second'))
    RETURNING id"""

#: Slots of the worker, and whether it owns another job: also one whose row is locked, or beyond the batch.
_BESIDE = """EXISTS (SELECT FROM @.jobs AS o
        WHERE o.state = 'processing' AND o.worker_id = j.worker_id AND o.id <> j.id)"""

HELD = f"""
    SELECT j.id::text, j.attempt, j.task, j.queue,
        coalesce((SELECT slots FROM @.workers WHERE id = j.worker_id), 1), {_BESIDE}
    FROM @.jobs AS j WHERE j.state = 'processing' AND j.worker_id = %s
    ORDER BY j.last_activity_at NULLS FIRST, j.id FOR NO KEY UPDATE"""
HELD_MS = 500  # how long `settle` waits for locked rows

_TO_RESCUE = f"""
    SELECT j.id::text, j.attempt, j.task, j.queue, coalesce(w.slots, 1), {_BESIDE}, j.worker_id,
        CASE WHEN w.id IS NULL THEN 'missing' WHEN w.died_at IS NOT NULL THEN w.death ELSE 'hung' END
    FROM @.jobs AS j LEFT JOIN @.workers AS w ON w.id = j.worker_id
    WHERE {{which}} AND (w.id IS NULL OR w.died_at IS NOT NULL
        OR @now - j.last_activity_at > (j.stale_after + 2 * w.lease) * interval '1 second')
    ORDER BY j.last_activity_at NULLS FIRST, j.id LIMIT %s FOR NO KEY UPDATE OF j {{waiting}}"""

TO_RESCUE = _TO_RESCUE.format(which="j.state = 'processing'", waiting="SKIP LOCKED")
REDELIVERED = _TO_RESCUE.format(which="j.id = %s AND (j.state || '') = 'processing'", waiting="")

HUNG = """
    SELECT j.id::text, j.attempt, j.worker_id, j.task, date_part('epoch', @now - j.last_activity_at)
    FROM @.jobs AS j WHERE j.state = 'processing' AND j.worker_id = ANY(%s::text[])
      AND j.stale_after IS NOT NULL AND @now - j.last_activity_at > j.stale_after * interval '1 second'"""

SOLO_WAITING = """
    SELECT ARRAY (SELECT together FROM @.jobs WHERE state = 'queued' AND queue = w.queue AND solo
        ORDER BY (-priority), run_at, id LIMIT %s)
    FROM unnest(%s::text[]) AS w (queue) WHERE NOT EXISTS (SELECT FROM @.queues WHERE name = w.queue)"""


class PostgresWorkers(PostgresBase):
    """The verbs of `WorkerStore`."""

    def register(self, worker: WorkerIdentity) -> None:
        values = (*identity_row(worker), worker.lease)
        if self._server.run(lambda c: c.execute(self._sql(REGISTER), values).rowcount) == 0:
            raise used_before(worker.id)

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        ids, texts, sizes = sorted(worker_ids), notes or {}, memory or {}
        given = (ids, [texts.get(name, "") for name in ids], [sizes.get(name) for name in ids])
        sql = self._sql(RENEW)
        rows = self._server.run(lambda each: each.execute(sql, given, binary=True).fetchall(), strict=True)
        return frozenset(row[0] for row in rows)

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(row[0] for row in self._server.fetch(DECLARE, list(worker_ids)))

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        sql, given = self._sql(DECLARE_EXPIRED), {"id": None, "witness": witness, "until": until}
        return frozenset(row[0] for row in self._server.run(lambda each: each.execute(sql, given).fetchall()))

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        check_outcomes((*verdicts.values(), rest))

        # One transaction: if the death were visible before the jobs end, a scan could charge these jobs with a crash.
        # The dead worker's last statement may lock a row for a moment, since the server runs it to its end, as after
        # an outage. Rows locked for longer are left to `rescue`: the server has yet to notice that its client is gone.
        def step(connection: Connection, sql: LiteralString) -> list[Rescued]:
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{HELD_MS}ms",))
            connection.execute(self._sql(DECLARE), ([worker_id],))
            held = connection.execute(self._sql(sql), (worker_id,)).fetchall()
            rows = [(*row, worker_id, *settled(row[0], verdicts, rest)) for row in held]
            cut_off_after(connection, size_of((row[0], row[-2]) for row in rows))
            if how:
                note = ended_note(how, [(row[0], row[2]) for row in held])
                connection.execute(self._sql("UPDATE @.workers SET note = %s WHERE id = %s"), (note, worker_id))
            return self._take(connection, rows)

        try:
            return self._locking(lambda connection: step(connection, HELD), sent=0)
        except StoreBusy:
            return self._locking(lambda connection: step(connection, HELD + " SKIP LOCKED"), sent=0)

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        sql = self._sql(TO_RESCUE)
        return self._locking(lambda connection: self._rescue(connection, sql, (limit,)), sent=0)

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        if not is_id(job_id):
            return None
        sql = self._sql(REDELIVERED)

        def step(connection: Connection) -> Rescued | State | None:
            found = connection.execute(self._sql("SELECT state, worker_id FROM @.jobs WHERE id = %s"), (job_id,))
            row = found.fetchone()
            if row is None:
                return None
            if declare and row[1] is not None:
                given = {"id": row[1], "witness": witness, "until": until}
                connection.execute(self._sql(DECLARE_EXPIRED), given)
            return next(iter(self._rescue(connection, sql, (job_id, 1), "queue")), State(row[0]))

        return self._locking(step, sent=0)

    def _rescue(
        self, connection: Connection, sql: LiteralString, values: tuple[Any, ...], forced: Cause | None = None
    ) -> list[Rescued]:
        taken: list[tuple[Any, ...]] = []
        for *row, worker_id, death in connection.execute(sql, values).fetchall():
            outcome, cause = lost(death, worker_id)
            taken.append((*row, worker_id, outcome, forced or cause))
        return self._take(connection, taken)

    def _take(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> list[Rescued]:
        """End the attempts of dead owners. Rows: id, attempt, task, queue, *Beside, worker, outcome, cause."""
        ends: list[tuple[Lease, Outcome, str | None]] = []
        beside: dict[Lease, Beside] = {}
        done: list[tuple[Lease, Completed]] = []
        for job_id, attempt, _, _, slots, neighbours, worker_id, outcome, _ in rows:
            lease = Lease(job_id, attempt, worker_id)
            beside[lease] = Beside(slots, neighbours)
            if isinstance(outcome, Completed):
                done.append((lease, outcome))
            else:
                ends.append((lease, outcome, cleared(lease, outcome)))
        steps.complete(connection, self._sql, done)
        landed: dict[Lease, Answer] = {lease: COMPLETED for lease, _ in done}
        if ends:
            landed |= self._drive_on(connection, steps.end(ends, beside))
        taken: list[Rescued] = []
        for job_id, attempt, task, queue, _, _, worker_id, outcome, cause in rows:
            lease = Lease(job_id, attempt, worker_id)
            answer = landed[lease]
            assert isinstance(answer, Landed), "locked and written in one transaction"
            taken.append(rescued(lease, task, queue, cause, answer.state, outcome))
        return taken

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        rows = self._server.fetch(HUNG, list(worker_ids))
        return [Hung(Lease(*row[:3]), row[3], row[4]) for row in rows]

    def solo_waiting(self, queues: Sequence[str], *, slots: int = MOST_TOGETHER) -> int:
        if len(queues) >= MANY_QUEUES:
            queues = self._with_jobs(queues, solo=True)
        rows = self._server.fetch(SOLO_WAITING, MOST_TOGETHER * MOST_GROUPS, list(queues)) if queues else []
        return min(sum(groups_of(row[0], slots) for row in rows), MOST_GROUPS)
