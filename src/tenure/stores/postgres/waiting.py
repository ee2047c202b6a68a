"""Jobs that wait, in PostgreSQL: the verbs of `WaitStore`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from tenure.core.lifecycle import ENDED, State
from tenure.errors import StoreBusy
from tenure.ports import LINKS_PROTOCOL, PROTOCOL, Admitted, Answer, FlowView, Input, Landed, SignalView
from tenure.stores.postgres import operated
from tenure.stores.postgres.admission import OF_PARENT, Admission, Step
from tenure.stores.postgres.jobs import HELD_SECONDS, PostgresJobs
from tenure.stores.postgres.limits import PostgresLimits
from tenure.stores.postgres.server import Connection
from tenure.stores.postgres.serving import Given, Serving
from tenure.stores.rules import check_text, is_id, sent_before, too_late

MOST_ASKS = 200  #: in one transaction
MOST_SERVED = 500  #: jobs that are given places in one transaction
MOST_SIGNALS = 1_000

_LIVES = "died_at IS NULL AND expires_at > @now"
_NEXT_DUE = """(
    SELECT date_part('epoch', wait_until - @now) FROM @.jobs
    WHERE state = 'waiting' AND wait_until IS NOT NULL ORDER BY wait_until LIMIT 1)"""
#: Seconds until a key may have room by itself; 0 also after the clock was set back.
_KEYS_DUE = """CASE WHEN EXISTS (
        SELECT FROM @.limit_keys WHERE due IS NOT NULL AND due_found_at > date_part('epoch', @now)) THEN 0
        ELSE (SELECT due FROM @.limit_keys WHERE due IS NOT NULL ORDER BY due LIMIT 1) - date_part('epoch', @now) END"""
#: What every supervisor asks, again and again: it costs the same however many jobs wait.
LOOK = f"""
    SELECT coalesce((SELECT min(protocol) FROM @.workers WHERE {_LIVES}), {PROTOCOL}), EXISTS (SELECT FROM @.asks),
        {_NEXT_DUE}, EXISTS (SELECT FROM @.key_asks), {_KEYS_DUE}"""
#: Asks that no transaction has taken, except for those that were left because of a lock.
LEFT = f"""
    SELECT EXISTS (SELECT FROM (
        SELECT id FROM @.asks WHERE id <> ALL (%s::bigint[]) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) AS free),
        {_NEXT_DUE}, EXISTS (SELECT FROM @.key_asks WHERE seq <> ALL (%s::bigint[]) LIMIT 1), {_KEYS_DUE}"""

SENT = """
    INSERT INTO @.signals (job_id, key, value, sent_at) VALUES (%s, %s, %s, @now)
    ON CONFLICT (job_id, key) DO {standing} RETURNING key"""
SENT_TO_ALL = """
    INSERT INTO @.shared_signals (key, value, sent_at) VALUES (%s, %s, @now)
    ON CONFLICT (key) DO {standing} RETURNING key"""
_REPLACE = "UPDATE SET value = excluded.value, sent_at = excluded.sent_at"

_INPUT = """e.place, e.parent::text, e."until", e.state IN ('new', 'armed'), e.state = 'skipped', e.mine,
        p.task, p.state, p.result, p.error"""
INPUTS = f"""
    SELECT {_INPUT} FROM @.edges AS e LEFT JOIN @.jobs AS p ON p.id = e.parent
    WHERE e.child = %s AND e.place >= %s ORDER BY e.place, e.parent LIMIT %s"""
DEPENDENTS = f"""
    SELECT e.child::text, {_INPUT} FROM (SELECT %s::uuid AS item, %s::uuid AS start) AS a
    CROSS JOIN LATERAL (SELECT * FROM @.edges AS e WHERE {OF_PARENT} ORDER BY parent, child LIMIT %s) AS e
    LEFT JOIN @.jobs AS p ON p.id = e.parent ORDER BY e.child"""

_BEFORE_ALL = "00000000-0000-0000-0000-000000000000"


class PostgresWaiting(PostgresJobs, PostgresLimits):
    """The verbs of `WaitStore`."""

    def admit(self, *, limit: int = MOST_ASKS) -> Admitted:
        protocol, asked, due, told, keys_due = self._server.fetch(LOOK)[0]
        if protocol < LINKS_PROTOCOL:
            return Admitted({})
        limited, most = protocol >= PROTOCOL, min(limit, MOST_ASKS)
        looks, serves = asked or _is_due(due), limited and (told or _is_due(keys_due))
        if not looks and not serves:
            return Admitted({}, next_due=_first(due, keys_due if limited else None))
        done, given, busy = Step(), Given(), False
        if looks:
            done = self._locking(lambda connection: Admission(connection, self._sql).run(most), sent=0)
        if serves:
            try:
                given = self._locking(lambda connection: Serving(connection, self._sql).run(min(limit, MOST_SERVED)))
            except StoreBusy:  # another transaction has the lock for long: the asks are left
                busy = True
        left, due, told, keys_due = self._server.fetch(LEFT, done.left, given.left)[0]
        if _is_due(due) and not done.full:  # its row is locked: to ask at once would be a busy loop
            due = HELD_SECONDS
        held = HELD_SECONDS if done.left or given.left or busy else None
        due = _first(due, held, keys_due if limited and not busy else None)
        for queue, jobs in given.jobs.items():
            done.jobs[queue] += jobs
        more = left or done.full or (limited and told and not busy)
        return Admitted(done.jobs, done.scheduled, done.cancelled + given.cancelled, more, due)

    def outdated(self, protocol: int = PROTOCOL) -> list[str]:
        sql = f"SELECT id FROM @.workers WHERE {_LIVES} AND protocol < %s ORDER BY id"
        return [row[0] for row in self._server.fetch(sql, protocol)]

    def signal(self, job_id: str | None, key: str, value: str, *, replace: bool = False) -> Answer | None:
        check_text(key, value)
        if job_id is not None and not is_id(job_id):
            return None
        return self._locking(lambda connection: self._signal(connection, job_id, key, value, replace=replace))

    def _signal(
        self, connection: Connection, job_id: str | None, key: str, value: str, *, replace: bool
    ) -> Answer | None:
        # Whichever commits last, this or the suspension of the job, its ask sees both. Only a delete has to wait.
        state = State.WAITING
        if job_id is not None:
            found = connection.execute(
                self._sql("SELECT state FROM @.jobs WHERE id = %s FOR KEY SHARE"), (job_id,)
            ).fetchone()
            if found is None:
                return None
            state = State(found[0])
            if state in ENDED:
                return too_late(state)
        sql, owner = (SENT_TO_ALL, ()) if job_id is None else (SENT, (job_id,))
        sent = sql.format(standing=_REPLACE if replace else "NOTHING")
        table, mine = ("shared_signals", "true") if job_id is None else ("signals", "job_id = %s")
        before = f"SELECT sent_at FROM @.{table} WHERE {mine} AND key = %s"
        while not connection.execute(self._sql(sent), (*owner, key, value)).rowcount:
            standing = connection.execute(self._sql(before), (*owner, key)).fetchone()
            if standing is not None:  # else it was forgotten since
                return sent_before(key, standing[0])
        connection.execute(self._sql("INSERT INTO @.asks (item) VALUES (%s)"), (job_id or key,))
        return Landed(state)

    def signals(self, job_id: str | None, keys: Iterable[str] | None = None, *, start: str = "") -> list[SignalView]:
        table, conditions, values = "@.shared_signals", ["key > %s"], list[object]([start])
        if job_id is not None:
            if not is_id(job_id):
                return []
            table, conditions = "@.signals", [*conditions, "job_id = %s"]
            values.append(job_id)
        if keys is not None:
            conditions.append("key = ANY (%s::text[])")
            values += [list(keys)]
        sql = f"SELECT key, value, sent_at FROM {table} WHERE {' AND '.join(conditions)} ORDER BY key LIMIT %s"
        return [SignalView(*row) for row in self._server.fetch(sql, *values, MOST_SIGNALS)]

    def inputs(self, job_id: str, *, start: int = 0, limit: int = 200) -> list[Input]:
        if not is_id(job_id):
            return []
        return [_input(row) for row in self._server.fetch(INPUTS, job_id, start, limit)]

    def dependents(self, job_id: str, *, start: str = "", limit: int = 200) -> list[tuple[str, Input]]:
        if not is_id(job_id):
            return []
        rows = self._server.fetch(DEPENDENTS, job_id, start or _BEFORE_ALL, limit)
        return [(row[0], _input(row[1:])) for row in rows]

    def ask(self, ids: Iterable[str]) -> None:
        sql = "INSERT INTO @.asks (item) SELECT unnest(%s::text[])"
        wanted = [each for each in ids if is_id(each)]
        self._server.run(lambda connection: connection.execute(self._sql(sql), (wanted,)))

    def skip(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return self._each(ids, lambda connection, job_id: operated.skip(connection, self._sql, job_id))

    def flows(
        self, ids: Iterable[str] | None = None, *, limit: int = 50, before: tuple[datetime, str] | None = None
    ) -> list[FlowView]:
        conditions, values = ["true"], list[object]()
        if ids is not None:
            conditions.append("id = ANY (%s::uuid[])")
            values += [[each for each in ids if is_id(each)]]
        if before is not None:
            conditions.append("(created_at, id) < (%s, %s::uuid)")
            values += before
        sql = (
            f"SELECT id::text, name, created_at FROM @.flows WHERE {' AND '.join(conditions)} "
            "ORDER BY created_at DESC, id DESC LIMIT %s"
        )
        found = self._server.read(sql, *values, limit)
        counts = self._states([row[0] for row in found])
        return [
            FlowView(id=flow, name=name, created_at=at, counts={each: counts[flow].get(each, 0) for each in State})
            for flow, name, at in found
        ]

    def _states(self, flows: Sequence[str]) -> dict[str, dict[State, int]]:
        counts: defaultdict[str, dict[State, int]] = defaultdict(dict)
        sql = "SELECT flow::text, state, count(*) FROM @.jobs WHERE flow = ANY (%s::uuid[]) GROUP BY flow, state"
        for flow, state, number in self._server.read(sql, flows) if flows else ():
            counts[flow][State(state)] = number
        return counts


def _is_due(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0


def _first(*dues: float | None) -> float | None:
    """The earliest of these times, in seconds from now."""
    return max(0.0, min(known)) if (known := [each for each in dues if each is not None]) else None


def _input(row: Sequence[Any]) -> Input:
    known = Input._make(row)
    return known if known.state is None else known._replace(state=State(known.state))
