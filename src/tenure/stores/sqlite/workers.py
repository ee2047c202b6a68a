"""Workers in SQLite: their rows, their leases, and the jobs of workers that died.

Leases and silence are measured by CLOCK_BOOTTIME and the boot id: a clock step ends no lease, a reboot ends all.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import apsw

from tenure.core.lifecycle import MOST_GROUPS, MOST_TOGETHER, Lease, Outcome, State, groups_of
from tenure.ports import Hung, Landed, Rescued, WorkerIdentity
from tenure.stores.fields import IDENTITY, identity_row, listed
from tenure.stores.instants import last_millis
from tenure.stores.rules import (
    MANY_QUEUES,
    Beside,
    Cause,
    check_outcomes,
    cleared,
    ended_note,
    json_of,
    lost,
    rescued,
    settled,
    used_before,
)
from tenure.stores.sqlite.base import SqliteBase
from tenure.stores.sqlite.file import fetch, first
from tenure.stores.sqlite.steps import SUSPECTS, end

_REGISTER = f"""
    INSERT INTO workers ({listed(IDENTITY)}, started_at, renewed_at, expires_boot)
    VALUES ({", ".join("?" * len(IDENTITY))}, ?, ?, ?) ON CONFLICT DO NOTHING"""
_EXPIRED = """died_at IS NULL AND (expires_boot < :boot OR boot_id <> :boot_id)
    AND (:until IS NULL OR :now <= :until) AND (:witness IS NULL OR EXISTS (
    SELECT 1 FROM workers AS w WHERE w.id = :witness AND w.died_at IS NULL AND w.boot_id = :boot_id
        AND w.expires_boot - :boot > w.lease * 1000 / 3))"""
_TO_RESCUE = """
    SELECT j.id, j.attempt, j.task, j.queue, j.worker_id,
        CASE WHEN w.id IS NULL THEN 'missing' WHEN w.died_at IS NOT NULL THEN w.death ELSE 'hung' END,
        coalesce(w.slots, 1), EXISTS (SELECT 1 FROM jobs AS o INDEXED BY jobs_processing
            WHERE o.state = 'processing' AND o.worker_id = j.worker_id AND o.seq <> j.seq)
    FROM jobs j INDEXED BY jobs_processing LEFT JOIN workers w ON w.id = j.worker_id
    WHERE j.state = 'processing' AND (w.id IS NULL OR w.died_at IS NOT NULL
        OR :boot - j.active_boot > (j.stale_after + 2 * w.lease) * 1000)
        AND (:id IS NULL OR j.id = :id)
    ORDER BY j.last_activity_at, j.id LIMIT :limit"""


_PAUSED = "SELECT 1 FROM queues WHERE name = ? AND paused_at IS NOT NULL"


class SqliteWorkers(SqliteBase):
    """The verbs of `WorkerStore`."""

    def register(self, worker: WorkerIdentity) -> None:
        def step(connection: apsw.Connection) -> None:
            now, boot = self._now(), self._boot()  # this write may have waited for its turn
            connection.execute(_REGISTER, (*identity_row(worker), now, now, boot + round(worker.lease * 1000)))
            if connection.changes() == 0:
                raise used_before(worker.id)

        self._file.write(step)

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        def step(connection: apsw.Connection) -> frozenset[str]:
            now, boot = self._now(), self._boot()  # this write may have waited for its turn
            alive: set[str] = set()
            for worker_id in worker_ids:
                connection.execute(
                    "UPDATE workers SET renewed_at = ?, expires_boot = ? + CAST(round(lease * 1000) AS INTEGER), "
                    "memory = coalesce(?, memory), note = ? WHERE id = ? AND died_at IS NULL",
                    (now, boot, (memory or {}).get(worker_id), (notes or {}).get(worker_id, ""), worker_id),
                )
                if connection.changes() == 1:
                    alive.add(worker_id)
            return frozenset(alive)

        return self._file.write(step)

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        wanted, now = list(worker_ids), self._now()
        return self._file.write(lambda connection: frozenset(w for w in wanted if _declare(connection, w, now)))

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        look = {**self._moment(), **_by(witness, until)}
        if self._file.read(lambda c: first(c, f"SELECT 1 FROM workers WHERE {_EXPIRED} LIMIT 1", look)) is None:
            return frozenset()

        def step(connection: apsw.Connection) -> frozenset[str]:
            facts = {**look, **self._moment()}  # this write may have waited for its turn
            rows = fetch(
                connection, f"UPDATE workers SET died_at = :now, death = 'host' WHERE {_EXPIRED} RETURNING id", facts
            )
            return frozenset(row[0] for row in rows)

        return self._file.write(step)

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        now = self._now()
        check_outcomes((*verdicts.values(), rest))

        def step(connection: apsw.Connection) -> list[Rescued]:
            _declare(connection, worker_id, now)
            held = fetch(
                connection,
                "SELECT id, attempt, task, queue FROM jobs WHERE state = 'processing' AND worker_id = ? "
                "ORDER BY last_activity_at, id",
                (worker_id,),
            )
            if how:
                note = ended_note(how, [(row[0], row[2]) for row in held])
                connection.execute("UPDATE workers SET note = ? WHERE id = ?", (note, worker_id))
            slots = first(connection, "SELECT slots FROM workers WHERE id = ?", (worker_id,))
            beside = Beside(slots[0] if slots else 1, len(held) > 1)
            return [_take(connection, row, worker_id, *settled(row[0], verdicts, rest), now, beside) for row in held]

        return self._file.write(step)

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        now, boot = self._now(), self._boot()
        facts = {"boot": boot, "id": None, "limit": limit}
        if not self._file.read(lambda c: fetch(c, _TO_RESCUE, {**facts, "limit": 1})):
            return []
        return self._file.write(lambda connection: self._rescue(connection, facts, now))

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        def step(connection: apsw.Connection) -> Rescued | State | None:
            now, boot = self._now(), self._boot()
            found = first(connection, "SELECT state, worker_id FROM jobs WHERE id = ?", (job_id,))
            if found is None:
                return None
            if declare and found[1] is not None:
                connection.execute(
                    f"UPDATE workers SET died_at = :now, death = 'host' WHERE id = :id AND {_EXPIRED}",
                    {**self._moment(), **_by(witness, until), "id": found[1]},
                )
            facts = {"boot": boot, "id": job_id, "limit": 1}
            return next(iter(self._rescue(connection, facts, now, "queue")), State(found[0]))

        return self._file.write(step)

    def _rescue(
        self, connection: apsw.Connection, facts: Mapping[str, Any], now: int, forced: Cause | None = None
    ) -> list[Rescued]:
        taken: list[Rescued] = []
        for *row, worker_id, death, slots, neighbours in fetch(connection, _TO_RESCUE, facts):
            outcome, cause = lost(death, worker_id)
            beside = Beside(slots, bool(neighbours))
            taken.append(_take(connection, row, worker_id, outcome, forced or cause, now, beside))
        return taken

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        rows = self._fetch(
            "SELECT j.id, j.attempt, j.worker_id, j.task, (:boot - j.active_boot) / 1000.0 FROM jobs j "
            "WHERE j.state = 'processing' AND j.worker_id IN (SELECT value FROM json_each(:workers)) "
            "AND j.stale_after IS NOT NULL AND :boot - j.active_boot > j.stale_after * 1000",
            {"boot": self._boot(), "workers": json_of(list(worker_ids))},
        )
        return [Hung(Lease(*row[:3]), row[3], row[4]) for row in rows]

    def solo_waiting(self, queues: Sequence[str], *, slots: int = MOST_TOGETHER) -> int:
        if len(queues) >= MANY_QUEUES:
            queues = self._with_jobs(queues, solo=True)

        def step(connection: apsw.Connection) -> int:
            groups = 0
            for queue in queues:
                suspects = [row[0] for row in fetch(connection, SUSPECTS, (queue, MOST_TOGETHER * MOST_GROUPS))]
                if suspects and first(connection, _PAUSED, (queue,)) is None:
                    groups += groups_of(suspects, slots)
            return min(groups, MOST_GROUPS)

        return self._file.read(step)


def _take(
    connection: apsw.Connection,
    row: Sequence[Any],
    worker_id: str,
    outcome: Outcome,
    cause: Cause,
    now: int,
    beside: Beside,
) -> Rescued:
    job_id, attempt, task, queue = row
    lease = Lease(job_id, attempt, worker_id)
    answer = end(connection, lease, outcome, now, message=cleared(lease, outcome), beside=beside)
    assert isinstance(answer, Landed), "read and written in one transaction"
    return rescued(lease, task, queue, cause, answer.state, outcome)


def _by(witness: str | None, until: datetime | None) -> dict[str, Any]:
    return {"witness": witness, "until": None if until is None else last_millis(until)}


def _declare(connection: apsw.Connection, worker_id: str, now: int) -> bool:
    connection.execute(
        "UPDATE workers SET died_at = ?, death = 'crash' WHERE id = ? AND died_at IS NULL", (now, worker_id)
    )
    return connection.changes() == 1
