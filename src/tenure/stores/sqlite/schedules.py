"""Schedules, their ticks, and notes. A schedule is read before its runs, so a write based on an older one fails."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import apsw

from tenure.ports import Draft
from tenure.ports.schedules import REPLACED, Change, Due, Run, Standing, Swapped, Tick, decode_schedule, decode_tick
from tenure.stores.instants import last_millis, millis_at
from tenure.stores.rules import body_of, check_text, json_of
from tenure.stores.sqlite.base import SqliteBase, instant
from tenure.stores.sqlite.file import fetch, first
from tenure.stores.sqlite.links import LIVE_STATES
from tenure.stores.sqlite.reads import LEASE_ENDS, view_of
from tenure.stores.sqlite.steps import cancel, enqueue_one, limit, rows_of

_OWNER_ALIVE = "SELECT 1 FROM workers WHERE id = ? AND died_at IS NULL AND boot_id = ? AND expires_boot > ?"

_LEASE_OF = f"SELECT {LEASE_ENDS} FROM workers WHERE id = :id"


class SqliteSchedules(SqliteBase):
    """The verbs of `ScheduleStore`."""

    def due(self, *, limit: int = 500) -> Due:
        moment = self._moment()
        return self._file.read(lambda connection: _due(connection, moment, limit))

    def change(self, changes: Sequence[Change]) -> list[bool]:
        def step(connection: apsw.Connection) -> list[bool]:
            now, boot = self._now(), self._boot()  # this write may have waited for its turn
            return [_change(connection, each, now, boot, self._clock.boot_id) for each in changes]

        return self._file.write(step)

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        moment, wanted = self._moment(), None if names is None else sorted(set(names))
        return self._file.read(lambda connection: _standings(connection, wanted, moment))

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        rows = self._fetch(
            "SELECT body FROM tick_rows WHERE schedule = :name AND (:before IS NULL OR tick < :before) "
            "ORDER BY tick DESC, cause DESC LIMIT :limit",
            {"name": name, "before": None if before is None else millis_at(before), "limit": limit},
        )
        return [decode_tick(row[0]) for row in rows]

    def decided(self, since: datetime, until: datetime, *, skip: int = 0, limit: int = 50) -> list[Tick]:
        rows = self._fetch(
            "SELECT body FROM tick_rows INDEXED BY tick_rows_decided WHERE NOT open AND decided_at BETWEEN ? AND ? "
            "ORDER BY decided_at DESC, schedule DESC, tick DESC, cause DESC LIMIT ? OFFSET ?",
            (millis_at(since), last_millis(until), limit, skip),
        )
        return [decode_tick(row[0]) for row in rows]

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        now = self._now()

        def step(connection: apsw.Connection) -> int:
            connection.execute(
                "DELETE FROM tick_rows WHERE (schedule, tick, cause) IN (SELECT schedule, tick, cause FROM tick_rows "
                "WHERE NOT open AND decided_at < ? ORDER BY decided_at LIMIT ?)",
                (now - int(keep * 1000), limit),
            )
            gone = connection.changes()
            connection.execute(
                "DELETE FROM notes WHERE key IN "
                "(SELECT key FROM notes WHERE expires_at <= ? AND expires_at IS NOT NULL LIMIT ?)",
                (now, limit - gone),
            )
            return gone + connection.changes()

        return self._file.write(step)

    # ── notes ──

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        check_text(key, old, new)
        now = self._now()
        rows = rows_of(drafts, now)
        ends = None if ttl is None else now + round(ttl * 1000)

        def step(connection: apsw.Connection) -> Swapped:
            found = first(
                connection,
                "SELECT value FROM notes WHERE key = ? AND (expires_at IS NULL OR expires_at > ?)",
                (key, now),
            )
            stands = None if found is None else found[0]
            if stands not in (old, new):
                return Swapped(False, stands)
            if stands == old != new:
                limit(connection, drafts, [enqueue_one(connection, row) for row in rows])
            if new is None:
                connection.execute("DELETE FROM notes WHERE key = ?", (key,))
            else:
                connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (key, new, ends))
            return Swapped(True, new)

        return self._file.write(step)

    def notes(self, prefix: str) -> dict[str, str]:
        rows = self._fetch(
            "SELECT key, value FROM notes WHERE key >= :prefix AND key <= :prefix || char(1114111) "
            "AND (expires_at IS NULL OR expires_at > :now) ORDER BY key",
            {"prefix": prefix, "now": self._now()},
        )  # up to the highest code point
        return dict(rows)


def _due(connection: apsw.Connection, moment: Mapping[str, Any], limit: int) -> Due:
    now = moment["now"]
    rows = fetch(
        connection,
        "SELECT name FROM schedule_rows WHERE due_at <= ? AND due_at IS NOT NULL ORDER BY due_at, name LIMIT ?",
        (now, limit),
    )
    rows += fetch(
        connection,
        "SELECT DISTINCT t.schedule FROM tick_rows AS t WHERE t.open AND NOT EXISTS "
        f"(SELECT 1 FROM jobs AS j WHERE j.id = t.job_id AND +j.state IN {LIVE_STATES}) LIMIT ?",
        (limit,),
    )
    later = first(connection, "SELECT min(due_at) FROM schedule_rows WHERE due_at > ?", (now,))
    found = _standings(connection, list(dict.fromkeys(row[0] for row in rows)), moment) if rows else []
    next_due = None if later is None or later[0] is None else (later[0] - now) / 1000
    return Due(instant(now), found, next_due)


def _standings(connection: apsw.Connection, names: Iterable[str] | None, moment: Mapping[str, Any]) -> list[Standing]:
    """In the order of `names`; None: all, by name."""
    among = "" if names is None else "AND {} IN (SELECT value FROM json_each(:names))"
    wanted = {} if names is None else {"names": json_of(list(names))}
    found = dict(
        fetch(
            connection, f"SELECT name, body FROM schedule_rows WHERE TRUE {among.format('name')} ORDER BY name", wanted
        )
    )
    opened = fetch(
        connection,
        f"SELECT schedule, job_id, body FROM tick_rows INDEXED BY tick_rows_open WHERE open "
        f"{among.format('schedule')} ORDER BY tick, cause",
        wanted,
    )
    runs: dict[str, list[Run]] = {}
    for schedule, job_id, body in opened:
        runs.setdefault(schedule, []).append(_run(connection, job_id, decode_tick(body), moment))
    ordered = found if names is None else [name for name in names if name in found]
    return [Standing(decode_schedule(found[name]), tuple(runs.get(name, ()))) for name in ordered]


def _run(connection: apsw.Connection, job_id: str | None, tick: Tick, moment: Mapping[str, Any]) -> Run:
    job = None if job_id is None else view_of(connection, job_id)
    owner = None
    if job is not None and job.worker_id is not None:
        owner = first(connection, _LEASE_OF, {**moment, "id": job.worker_id})
    until = None if owner is None else instant(owner[0])
    return Run(tick, job, until)


def _change(connection: apsw.Connection, wanted: Change, now: int, boot: int, boot_id: str) -> bool:
    name, rev = wanted.schedule.name, wanted.schedule.rev
    stands = first(connection, "SELECT rev FROM schedule_rows WHERE name = ?", (wanted.replaces,))
    if (0 if stands is None else stands[0]) != rev:
        return False
    if wanted.former and first(connection, "SELECT 1 FROM schedule_rows WHERE name = ?", (name,)):
        return False
    if wanted.owner is not None and first(connection, _OWNER_ALIVE, (wanted.owner, boot_id, boot)) is None:
        return False
    if wanted.delete:
        kept = None if wanted.keep_until is None else last_millis(wanted.keep_until)
        connection.execute(
            "DELETE FROM tick_rows WHERE schedule = ?1 AND (?2 IS NULL OR open OR decided_at > ?2)", (name, kept)
        )
        connection.execute("DELETE FROM schedule_rows WHERE name = ?", (name,))
        return True
    follow: dict[str | None, str] = {}
    for draft, row in zip(wanted.drafts, rows_of(wanted.drafts, now), strict=True):
        made = enqueue_one(connection, row)
        limit(connection, [draft], [made])
        follow[draft.id] = made.id
        if wanted.owner is not None and made.created:
            connection.execute(
                "UPDATE jobs SET state = 'processing', attempt = 1, worker_id = :worker, started_at = :now, "
                "last_activity_at = :now, active_boot = :boot WHERE id = :id",
                {"worker": wanted.owner, "now": now, "boot": boot, "id": draft.id},
            )
    for tick in wanted.ticks:
        _put_tick(connection, replace(tick, job_id=follow.get(tick.job_id, tick.job_id)))
    for job_id in wanted.cancel:
        cancel(connection, job_id, REPLACED, now)
    stored = wanted.stored
    if wanted.former:
        connection.execute("DELETE FROM schedule_rows WHERE name = ?", (wanted.former,))
    connection.execute(
        "INSERT INTO schedule_rows VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
        "SET rev = excluded.rev, due_at = excluded.due_at, body = excluded.body",
        (name, stored.rev, None if stored.due_at is None else millis_at(stored.due_at), body_of(stored)),
    )
    return True


def _put_tick(connection: apsw.Connection, tick: Tick) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO tick_rows VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            tick.schedule,
            millis_at(tick.tick),
            tick.cause,
            tick.job_id,
            tick.status == "open",
            millis_at(tick.decided_at),
            body_of(tick),
        ),
    )


def open_again(connection: apsw.Connection, job_id: str) -> None:
    """A replayed job is a run of its schedule again; the new rev refuses a writer that still saw the run as ended."""
    for schedule, body, stored in fetch(
        connection,
        "SELECT schedule, t.body, s.body FROM tick_rows AS t JOIN schedule_rows AS s ON s.name = schedule "
        "WHERE job_id = ?",
        (job_id,),
    ):
        tick, named_at = decode_tick(body), decode_schedule(stored).named_at
        if named_at is not None and tick.decided_at < named_at:
            continue
        _put_tick(connection, tick.reopened)
        connection.execute(
            "UPDATE schedule_rows SET rev = rev + 1, body = json_set(body, '$.rev', rev + 1) WHERE name = ?",
            (schedule,),
        )
