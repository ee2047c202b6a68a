"""Reads of jobs that wait, for people and their tools: none walks the jobs that wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure.core.lifecycle import EXPIRED, LIVE, State
from tenure.ports import NEWEST_FLOWS, EdgeView, JobView, Member, Waits
from tenure.stores.postgres.base import PostgresBase
from tenure.stores.postgres.reads import JOB, job_of
from tenure.stores.rules import MOST_ASKS, MOST_LOOKED_AT, is_id

_BEFORE_ALL = "00000000-0000-0000-0000-000000000000"
MEMBERS = "SELECT id::text, task, queue, state FROM @.jobs WHERE flow = %s AND id > %s ORDER BY id LIMIT %s"
EDGES = """
    SELECT e.child::text, e.parent::text, e."until", e.state IN ('new', 'armed'), e.state = 'skipped', e.mine
    FROM unnest(%s::uuid[]) WITH ORDINALITY AS asked (id, at)
    CROSS JOIN LATERAL (SELECT * FROM @.edges WHERE child = asked.id ORDER BY place, parent LIMIT %s) AS e
    ORDER BY asked.at, e.place, e.parent LIMIT %s"""
HOLDING = f"SELECT {JOB} FROM @.jobs WHERE state = 'dead' AND linked ORDER BY ended_at DESC LIMIT %s"
WAITED = f"SELECT {JOB} FROM @.jobs WHERE starts_with(state, 'waiting') ORDER BY run_at LIMIT %s"
WAITS = f"""
    SELECT (SELECT count(*) FROM (SELECT FROM @.asks LIMIT %s) AS counted),
        (SELECT count(*) FROM (SELECT id FROM @.flows ORDER BY created_at DESC, id DESC LIMIT %s) AS f
            WHERE EXISTS (SELECT FROM @.jobs WHERE flow = f.id
                AND state IN ({", ".join(f"'{state}'" for state in sorted(LIVE))})))"""

#: In the words of `closes`: these edges do not hold. `asked`: what is about to be looked at.
LOST = f"""
    WITH asked AS MATERIALIZED (SELECT item FROM @.asks LIMIT {MOST_ASKS + 1}), waiter AS MATERIALIZED (
        SELECT id, wait_for FROM @.jobs
        WHERE id = ANY (%s::uuid[]) AND (state || '') = 'waiting' AND parked IS NULL
            AND id::text NOT IN (SELECT item FROM asked)
            AND (wait_for IS NULL OR wait_for NOT IN (SELECT item FROM asked))
            AND (SELECT count(*) FROM asked) <= {MOST_ASKS})
    SELECT w.id::text, e.parent::text FROM waiter AS w
    CROSS JOIN LATERAL (
        SELECT parent, "until" FROM @.edges
        WHERE child = w.id AND state IN ('new', 'armed') LIMIT {MOST_LOOKED_AT}) AS e
    LEFT JOIN @.jobs AS p ON p.id = e.parent
    WHERE (p.id IS NULL OR p.state = 'completed' OR (p.state = 'cancelled' AND p.error IS DISTINCT FROM '{EXPIRED}')
            OR (p.ended_at IS NOT NULL AND e."until" = 'ended'))
        AND e.parent::text NOT IN (SELECT item FROM asked)
    UNION ALL
    SELECT w.id::text, NULL FROM waiter AS w
    WHERE (SELECT true FROM @.edges AS e WHERE e.child = w.id AND e.state IN ('new', 'armed') LIMIT 1) IS NULL
        AND (w.wait_for IS NULL
            OR (SELECT true FROM @.signals AS s WHERE s.job_id = w.id AND s.key = w.wait_for LIMIT 1)
            OR (SELECT true FROM @.shared_signals AS s WHERE s.key = w.wait_for LIMIT 1))"""


class PostgresWaitReads(PostgresBase):
    """The verbs of `WaitReads`, except for those that workers and supervisors depend on."""

    def members(self, flow: str, *, start: str = "", limit: int = 1000) -> list[Member]:
        if not is_id(flow):
            return []
        found = self._server.read(MEMBERS, flow, start or _BEFORE_ALL, limit)
        return [Member(job_id, task, queue, State(state)) for job_id, task, queue, state in found]

    def edges(self, ids: Sequence[str], *, limit: int = 2000) -> list[EdgeView]:
        known = [each for each in ids if is_id(each)]
        return [EdgeView(*row) for row in self._server.read(EDGES, known, limit, limit)] if known else []

    def holding(self, *, limit: int = 50) -> list[JobView]:
        return [job_of(row) for row in self._server.read(HOLDING, limit)]

    def waited_longest(self, *, limit: int = 50) -> list[JobView]:
        return [job_of(row) for row in self._server.read(WAITED, limit)]

    def lost_waits(self, ids: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for job_id, parent in self._server.read(LOST, [each for each in ids if is_id(each)]):
            found.setdefault(job_id, []).extend([] if parent is None else [parent])
        return found

    def waits(self, *, most: int = 10_000) -> Waits:
        return Waits(*self._server.read(WAITS, most, NEWEST_FLOWS)[0])
