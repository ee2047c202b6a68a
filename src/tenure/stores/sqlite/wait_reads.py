"""Jobs that wait, in SQLite: the verbs of `WaitReads`."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import apsw

from tenure.core.lifecycle import State
from tenure.ports import NEWEST_FLOWS, PROTOCOL, EdgeView, FlowView, Input, JobView, Member, SignalView, Waits
from tenure.stores.instants import millis_at
from tenure.stores.rules import MOST_ASKS, MOST_LOOKED_AT, closes, json_of
from tenure.stores.sqlite import links
from tenure.stores.sqlite.base import SqliteBase, instant
from tenure.stores.sqlite.file import at_once, fetch, first
from tenure.stores.sqlite.reads import JOB, job_of

_OUTDATED = """
    SELECT id FROM workers
    WHERE died_at IS NULL AND boot_id = :boot_id AND expires_boot > :boot AND protocol < :protocol ORDER BY id"""
_MEMBERS = """
    SELECT id, task, queue, state FROM jobs INDEXED BY jobs_flow
    WHERE flow = ? AND flow IS NOT NULL AND id > ? ORDER BY id LIMIT ?"""
_EDGES = """
    SELECT e.child, e.parent, e.until, e.open, e.skipped, e.mine
    FROM json_each(?) AS asked CROSS JOIN edges AS e INDEXED BY edges_places ON e.child = asked.value
    ORDER BY asked.key, e.place LIMIT ?"""
_HOLDING = f"""
    SELECT {JOB} FROM jobs INDEXED BY jobs_holding WHERE state = 'dead' AND linked ORDER BY ended_at DESC LIMIT ?"""
_WAITED = f"SELECT {JOB} FROM jobs INDEXED BY jobs_waited WHERE state = 'waiting' ORDER BY run_at LIMIT ?"
_WAITS = f"""
    SELECT (SELECT count(*) FROM (SELECT 1 FROM asks UNION ALL SELECT 1 FROM key_asks LIMIT :most)),
        (SELECT count(*) FROM (SELECT id FROM flows ORDER BY created_at DESC LIMIT :newest) AS f WHERE EXISTS (
            SELECT 1 FROM jobs INDEXED BY jobs_flow
            WHERE flow = f.id AND flow IS NOT NULL AND state IN {links.LIVE_STATES}))"""

#: What `lost_waits` leaves out: it is about to be looked at.
_ASKED = f"SELECT item FROM asks LIMIT {MOST_ASKS + 1}"
_WAITER = """
    SELECT wait_for, wait_for IS NULL OR EXISTS (
            SELECT 1 FROM signals AS s
            WHERE s.key = jobs.wait_for AND s.job_id IS iif(s.key GLOB 'own:*', jobs.id, NULL))
    FROM jobs WHERE id = ? AND state = 'waiting' AND parked IS NULL"""
_PARENTS = f"""
    SELECT e.parent, e.until, p.state, p.error
    FROM edges AS e INDEXED BY edges_open LEFT JOIN jobs AS p ON p.id = e.parent
    WHERE e.open AND e.child = ? LIMIT {MOST_LOOKED_AT}"""


class SqliteWaitReads(SqliteBase):
    """The verbs of `WaitReads`."""

    def outdated(self, protocol: int = PROTOCOL) -> list[str]:
        facts = {"protocol": protocol, "boot": self._boot(), "boot_id": self._clock.boot_id}
        return [row[0] for row in self._fetch(_OUTDATED, facts)]

    def signals(self, job_id: str | None, keys: Iterable[str] | None = None, *, start: str = "") -> list[SignalView]:
        wanted = "" if keys is None else "AND key IN (SELECT value FROM json_each(?))"
        sql = f"SELECT key, value, sent_at FROM signals WHERE job_id IS ? AND key > ? {wanted} ORDER BY key LIMIT 1000"
        found = self._fetch(sql, (job_id, start) if keys is None else (job_id, start, json_of(list(keys))))
        return [SignalView(key, value, instant(sent_at)) for key, value, sent_at in found]

    def inputs(self, job_id: str, *, start: int = 0, limit: int = 200) -> list[Input]:
        return [links.input_of(row) for row in self._fetch(links.INPUTS, (job_id, start, limit))]

    def dependents(self, job_id: str, *, start: str = "", limit: int = 200) -> list[tuple[str, Input]]:
        found = self._fetch(links.DEPENDENTS, (job_id, start, limit))
        return [(child, links.input_of(row)) for child, *row in found]

    def flows(
        self, ids: Iterable[str] | None = None, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> list[FlowView]:
        asked: list[str] = ["TRUE"]
        values: list[Any] = []
        if ids is not None:
            asked.append("id IN (SELECT value FROM json_each(?))")
            values.append(json_of(list(ids)))
        if before is not None:
            asked.append("(created_at, id) < (?, ?)")
            values += [millis_at(before[0]), before[1]]
        where = " AND ".join(asked)
        sql = f"SELECT id, name, created_at FROM flows WHERE {where} ORDER BY created_at DESC, id DESC LIMIT ?"

        def step(connection: apsw.Connection) -> list[FlowView]:
            return [_flow(connection, *row) for row in fetch(connection, sql, (*values, limit))]

        return self._file.read(step)

    def members(self, flow: str, *, start: str = "", limit: int = 1000) -> list[Member]:
        found = self._fetch(_MEMBERS, (flow, start, limit))
        return [Member(job_id, task, queue, State(state)) for job_id, task, queue, state in found]

    def edges(self, ids: Sequence[str], *, limit: int = 2000) -> list[EdgeView]:
        found = self._fetch(_EDGES, (json_of(list(ids)), limit))
        return [EdgeView(*names, *map(bool, flags)) for *names, flags in ((*row[:3], row[3:]) for row in found)]

    def holding(self, *, limit: int = 50) -> list[JobView]:
        return [job_of(row) for row in self._fetch(_HOLDING, (limit,))]

    def waited_longest(self, *, limit: int = 50) -> list[JobView]:
        return [job_of(row) for row in self._fetch(_WAITED, (limit,))]

    def lost_waits(self, ids: Iterable[str]) -> dict[str, list[str]]:
        wanted = list(ids)

        def step(connection: apsw.Connection) -> dict[str, list[str]]:
            asked = {item for (item,) in fetch(connection, _ASKED)}
            if len(asked) > MOST_ASKS:
                return {}
            found: dict[str, list[str]] = {}
            for each in wanted:
                waiter = None if each in asked else first(connection, _WAITER, (each,))
                if waiter is None or waiter[0] in asked:
                    continue
                left = fetch(connection, _PARENTS, (each,))
                missed = [
                    parent
                    for parent, until, state, error in left
                    if parent not in asked and closes(until, state and State(state), error) != "hold"
                ]
                if missed or (not left and waiter[1]):
                    found[each] = missed
            return found

        return self._file.read(at_once(step))

    def waits(self, *, most: int = 10_000) -> Waits:
        found = self._file.read(lambda connection: first(connection, _WAITS, {"most": most, "newest": NEWEST_FLOWS}))
        return Waits(*(found or (0, 0)))


def _flow(connection: apsw.Connection, flow_id: str, name: str, created_at: int) -> FlowView:
    counts = dict(fetch(connection, "SELECT state, count(*) FROM jobs WHERE flow = ? GROUP BY state", (flow_id,)))
    return FlowView(
        id=flow_id, name=name, created_at=instant(created_at), counts={state: counts.get(state, 0) for state in State}
    )
