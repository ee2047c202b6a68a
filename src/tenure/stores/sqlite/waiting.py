"""Jobs that wait, in SQLite: the verbs of `WaitStore`. With one writer at a time, a look and its writes are atomic."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import apsw

from tenure.core.lifecycle import ENDED, State
from tenure.ports import LINKS_PROTOCOL, Admitted, Answer, Landed
from tenure.stores.instants import millis_at
from tenure.stores.rules import (
    SHARED,
    check_text,
    closes,
    gatherer_ended,
    json_of,
    not_skipped,
    parent_lost,
    sent_before,
    too_late,
)
from tenure.stores.sqlite import links, places, steps
from tenure.stores.sqlite.base import instant
from tenure.stores.sqlite.file import fetch, first
from tenure.stores.sqlite.limits import SqliteLimits
from tenure.stores.sqlite.wait_reads import SqliteWaitReads

_AT_ONCE = 200  #: edges or jobs in one part of an ask
_LEFT = """
    SELECT EXISTS (SELECT 1 FROM asks), EXISTS (SELECT 1 FROM key_asks),
        (SELECT min(wait_until) / 1000.0 FROM jobs INDEXED BY jobs_wait_until WHERE wait_until IS NOT NULL),
        (SELECT min(due) FROM limit_keys INDEXED BY limit_keys_due WHERE due IS NOT NULL),
        EXISTS (SELECT 1 FROM limit_keys INDEXED BY limit_keys_found WHERE due IS NOT NULL AND found_at > :now)"""
_UNARMED = """
    SELECT e.parent, e.until, p.state, p.error
    FROM edges AS e INDEXED BY edges_open LEFT JOIN jobs AS p ON p.id = e.parent
    WHERE e.open AND e.child = ? AND NOT e.armed LIMIT ?"""
_CHILDREN = """
    SELECT e.child, e.until FROM edges AS e WHERE e.parent = ? AND e.child > ? AND e.open ORDER BY e.child LIMIT ?"""
_MINE = f"""
    SELECT e.parent FROM edges AS e JOIN jobs AS p ON p.id = e.parent
    WHERE e.child = ? AND e.parent > ? AND e.mine AND p.state IN {links.LIVE_STATES} ORDER BY e.parent LIMIT ?"""
_ADMIT = """
    UPDATE jobs SET wait_for = NULL, wait_until = NULL, run_at = :due, due_at = NULL,
        expires_at = expires_at + :due - run_at, state = :state
    WHERE id = :id AND state = 'waiting' AND parked IS NULL"""
_SIGNALLED = """
    SELECT wait_for IS NULL OR wait_until <= :now OR EXISTS (
            SELECT 1 FROM signals AS s
            WHERE s.key = jobs.wait_for AND s.job_id IS iif(s.key GLOB 'own:*', jobs.id, NULL)),
        run_at, enqueued_at, queue, limits IS NOT NULL
    FROM jobs WHERE id = :id AND parked IS NULL"""


class SqliteWaiting(SqliteWaitReads, SqliteLimits):
    """The verbs of `WaitStore` that change something."""

    def admit(self, *, limit: int = 200) -> Admitted:
        now, limited = self._now() / 1000, True

        def left(connection: apsw.Connection) -> tuple[bool, float | None]:
            """Is there something to do now, and if not, in how many seconds?"""
            asks, key_asks, until, due, set_back = first(connection, _LEFT, {"now": now}) or (0, 0, None, None, 0)
            times = [each for each in (until, due if limited else None) if each is not None]
            then = max(0.0, min(times) - now) if times else None
            return bool(asks or (limited and (key_asks or set_back)) or then == 0), then

        asks, next_due = self._file.read(left)
        if asks:
            limited = not self.outdated()
            asks = (limited or self._file.read(left)[0]) and not self.outdated(LINKS_PROTOCOL)
        if not asks:
            return Admitted({}, next_due=next_due or None)  # a write would cost an fsync

        def step(connection: apsw.Connection) -> tuple[_Admission, bool, float | None]:
            moment = self.now()  # one for all: what is due now is also over
            served = places.served(connection, self._boot(), self._clock.boot_id)
            done = _Admission(connection, millis_at(moment), places.Serving(connection, moment, served))
            rest = done.work(limit)
            if limited:
                done.keys.work(rest)
            return done, *left(connection)

        done, asks, next_due = self._file.write(step)
        jobs = {queue: done.jobs.get(queue, []) + done.keys.jobs.get(queue, []) for queue in done.jobs | done.keys.jobs}
        return Admitted(jobs, done.scheduled, done.cancelled + done.keys.cancelled, asks, next_due)

    def signal(self, job_id: str | None, key: str, value: str, *, replace: bool = False) -> Answer | None:
        check_text(key, value)
        now = self._now()

        def step(connection: apsw.Connection) -> Answer | None:
            state = State.WAITING if job_id is None else steps.state_of(connection, job_id)
            if state is None:
                return None
            if state in ENDED:
                return too_late(state)
            sent = first(connection, "SELECT sent_at FROM signals WHERE job_id IS ? AND key = ?", (job_id, key))
            if sent is not None and not replace:
                return sent_before(key, instant(sent[0]))
            connection.execute("DELETE FROM signals WHERE job_id IS ? AND key = ?", (job_id, key))
            connection.execute("INSERT INTO signals VALUES (?, ?, ?, ?)", (job_id, key, value, now))
            links.ask(connection, [key if job_id is None else job_id])
            return Landed(state)

        return self._file.write(step)

    def ask(self, ids: Iterable[str]) -> None:
        wanted = list(ids)
        self._file.write(lambda connection: links.ask(connection, wanted))

    def skip(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        wanted = list(dict.fromkeys(ids))
        return self._file.write(lambda connection: {job_id: _skip(connection, job_id) for job_id in wanted})


def _skip(connection: apsw.Connection, job_id: str) -> Answer | None:
    state = steps.state_of(connection, job_id)
    if state is None:
        return None
    if state not in (State.DEAD, State.CANCELLED):
        return not_skipped(state)
    children = fetch(
        connection,
        "UPDATE edges SET open = 0, skipped = 1 WHERE parent = ? AND open RETURNING child",
        (job_id,),
    )
    links.ask(connection, [child for (child,) in children])
    return Landed(state)


def _left_alone(parent: str) -> None:
    """The jobs of a gatherer that has completed go on."""


class _Admission:
    """One call of `admit`, in its transaction."""

    def __init__(self, connection: apsw.Connection, now: int, keys: places.Serving) -> None:
        self._connection, self._now, self.keys = connection, now, keys
        self.jobs: dict[str, list[str]] = {}
        self.scheduled, self.cancelled = False, 0
        self._left = 0

    def work(self, limit: int) -> int:
        """Answer asks until there are none, or about `limit` edges and jobs have been looked at; returns the rest."""
        self._left = limit
        due = "SELECT id FROM jobs INDEXED BY jobs_wait_until WHERE wait_until <= ? ORDER BY wait_until LIMIT ?"
        for (job_id,) in fetch(self._connection, due, (self._now, limit)):
            self._look(job_id)
            self.keys.expire(job_id)
            self._connection.execute(  # it still waits for jobs
                "UPDATE jobs SET wait_for = NULL, wait_until = NULL WHERE id = ? AND wait_until IS NOT NULL", (job_id,)
            )
        asks = fetch(self._connection, "SELECT seq, item, part, past FROM asks ORDER BY seq LIMIT ?", (limit,))
        done: list[int] = []
        for seq, item, part, past in asks:
            if self._left <= 0:
                break
            self._left -= 1
            rest = self._answer(item, part, past)
            if rest is None:
                done.append(seq)
            else:
                self._connection.execute("UPDATE asks SET part = ?, past = ? WHERE seq = ?", (*rest, seq))
        self._connection.execute("DELETE FROM asks WHERE seq IN (SELECT value FROM json_each(?))", (json_of(done),))
        return max(self._left, 0)

    def _answer(self, item: str, part: int, past: str) -> tuple[int, str] | None:
        """None: the ask is answered; else where it goes on."""
        if item.startswith(SHARED):
            sql = "SELECT id FROM jobs INDEXED BY jobs_wait_for WHERE wait_for = ? AND id > ? ORDER BY id LIMIT ?"
            return self._each(sql, (item, past), self._look, 0)
        found = first(self._connection, "SELECT state, error FROM jobs WHERE id = ?", (item,))
        if found is None:
            return self._each(_CHILDREN, (item, past), partial(self._parent_gone, item), 0)
        state = State(found[0])
        if state is State.WAITING:
            return None if self._look(item) else (0, "")
        return self._tell(item, state, found[1], part, past) if state in ENDED else None

    def _each(self, sql: str, key: tuple[str, str], call: Any, part: int) -> tuple[int, str] | None:
        """Call for each of at most 200 rows; where to go on if there may be more."""
        rows = fetch(self._connection, sql, (*key, _AT_ONCE))
        for row in rows:
            call(*row)
        self._left -= len(rows)
        return (part, rows[-1][0]) if len(rows) == _AT_ONCE else None

    # ── a waiting job ──

    def _look(self, job_id: str) -> bool:
        """Admit the job if nothing is left for which it waits. False: look again, its edges were too many."""
        rows = fetch(self._connection, _UNARMED, (job_id, _AT_ONCE))
        if rows:
            self._left -= len(rows)
            self._connection.execute(
                "UPDATE jobs SET linked = 1 WHERE id IN (SELECT value FROM json_each(?)) AND NOT linked",
                (json_of([row[0] for row in rows]),),
            )
            if self._close(job_id, rows):
                return True
            if len(rows) == _AT_ONCE:
                return False
        if not self._waits(job_id):
            self._let_go(job_id)
        return True

    def _close(self, child: str, rows: list[tuple[Any, ...]]) -> bool:
        """Close the edges whose parents have ended as they ask. True: the child is cancelled instead."""
        closed: list[str] = []
        for parent, until, state, error in rows:
            fate = closes(until, state and State(state), error)
            if fate == "cancel":
                self._cancel(child, parent_lost(parent, gone=state is None))
                return True
            if fate == "close":
                closed.append(parent)
        for flag, names in (("open = 0", closed), ("armed = 1", [row[0] for row in rows if row[0] not in closed])):
            self._connection.execute(
                f"UPDATE edges SET {flag} WHERE child = ? AND parent IN (SELECT value FROM json_each(?))",
                (child, json_of(names)),
            )
        return False

    def _parent_gone(self, parent: str, child: str, until: Any) -> None:
        """The parent was deleted after this edge was armed, by SQL or by a release that knows no edges."""
        if not self._close(child, [(parent, until, None, None)]) and not self._waits(child):
            self._let_go(child)

    def _waits(self, child: str) -> bool:
        sql = "SELECT 1 FROM edges INDEXED BY edges_open WHERE open AND child = ? LIMIT 1"
        return first(self._connection, sql, (child,)) is not None

    def _let_go(self, job_id: str) -> None:
        found = first(self._connection, _SIGNALLED, {"id": job_id, "now": self._now})
        if found is None or not found[0]:
            return
        _, run_at, enqueued_at, queue, limited = found
        due = run_at if run_at > max(self._now, enqueued_at) else self._now
        state = State.SCHEDULED if due > self._now else State.WAITING if limited else State.QUEUED
        self._connection.execute(_ADMIT, {"id": job_id, "due": due, "state": state})
        if self._connection.changes() == 0:
            return
        if state is State.WAITING:
            places.park(self._connection, job_id)
        elif state is State.QUEUED:
            self.jobs.setdefault(queue, []).append(job_id)
        else:
            self.scheduled = True

    def _cancel(self, job_id: str, reason: str) -> None:
        if steps.cancel(self._connection, job_id, reason, self._now) is State.CANCELLED:
            self.cancelled += 1

    # ── a job that has ended ──

    def _tell(self, job_id: str, state: State, error: str | None, part: int, past: str) -> tuple[int, str] | None:
        """An ended job: its children are looked at, what it still gathers ends, and no job is kept for it any more."""

        def child(child: str, until: Any) -> None:
            match closes(until, state, error):
                case "close":
                    self._connection.execute(
                        "UPDATE edges SET open = 0 WHERE child = ? AND parent = ?", (child, job_id)
                    )
                    if not self._waits(child):
                        self._let_go(child)
                case "cancel":
                    self._cancel(child, parent_lost(job_id, gone=False))
                case "hold":
                    pass

        def gathered(parent: str) -> None:
            self._cancel(parent, gatherer_ended(job_id, state))

        def release(parent: str) -> None:
            self._connection.execute("UPDATE edges SET held = 0 WHERE child = ? AND parent = ?", (job_id, parent))
            self._release(parent)

        parts: list[tuple[str, Any]] = [
            (_CHILDREN, child),
            (_MINE, gathered if state is not State.COMPLETED else _left_alone),
            ("SELECT parent FROM edges WHERE child = ? AND parent > ? ORDER BY parent LIMIT ?", release),
        ]
        for number, (sql, call) in enumerate(parts):
            if number >= part:
                rest = self._each(sql, (job_id, past if number == part else ""), call, number)
                if rest is not None:
                    return rest
        self._release(job_id)
        return None

    def _release(self, job_id: str) -> None:
        """An ended job is kept for the jobs that need it, and no longer."""
        self._connection.execute(
            f"UPDATE jobs SET linked = 0 WHERE id = ? AND linked AND ended_at IS NOT NULL AND {links.NOT_NEEDED}",
            (job_id,),
        )
