"""Reads for people and their tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from tenure.core.lifecycle import ENDED, GUARD, State
from tenure.ports import (
    GONE,
    AttemptView,
    Ended,
    EndedJob,
    Filter,
    Ids,
    JobView,
    Page,
    QueueView,
    Status,
    Update,
    WorkerIdentity,
    WorkerView,
)
from tenure.stores.fields import VIEW, ended_job
from tenure.stores.instants import millis_at
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import MOST
from tenure.stores.redis.facts import Facts, decode_facts, instant, keys_of, maybe_instant, task_in
from tenure.stores.redis.server import Server
from tenure.stores.rules import PAST_IDS, bad_cursor, is_id, matches, with_end

IDS_AT_ONCE = 2_000
AT_ONCE = 50  #: jobs per read, since they may have long arguments
LOOKED_AT = 1_000  #: jobs of guards that `latest_ended` steps over
SIFTED = 1 << 20  #: bytes of text that one script compares; it always reads one job
FEW = 5_000  #: up to this many ids are sorted here; beyond, all jobs are scanned from the newest
#: The fields of a job that are facts, and those that its hash has under the same name: numbers, texts, times.
_FACTS = tuple(name for name in VIEW if name in Facts.__struct_fields__ and name != "meta")
_QUEUE_COUNTS = (State.WAITING, State.SCHEDULED, State.QUEUED, State.PROCESSING)
_NUMBERS = ("attempt", "failures", "crashes", "crashes_total")
_TEXTS = ("error", "stage", "message", "checkpoint", "cancel_reason", "flow", "wait_for", "parked")
_TIMES = ("enqueued_at", "run_at", "expires_at", "started_at", "wait_until", "due_at")


class RedisReads(RedisBase):
    """The verbs of `ReadStore`."""

    def get(self, job_id: str) -> JobView | None:
        return views_of(self._server, [job_id])[0]

    def ids(self, start: str = "", end: str = "", *, cursor: str | None = None, within: int = 10_000) -> Ids:
        # The server does nothing else meanwhile: no more ids at once than take it about a millisecond.
        key, found = f"{self._server.prefix}jobs", list[str]()
        before = f"({cursor or start + PAST_IDS}"
        while (room := min(within - len(found), IDS_AT_ONCE)) > 0:
            some = self._server.run("ZREVRANGEBYLEX", key, before, f"[{start}", "LIMIT", 0, room)
            found += some
            if len(some) < room:
                break
            before = f"({some[-1]}"
        return with_end(found, end, within)

    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        known = [each for each in seen if is_id(each)]
        found = [Update(each, GONE, None, None) for each in seen if not is_id(each) and seen[each] != GONE]
        for first in range(0, len(known), MOST):
            if len(found) < limit:
                pairs = [text for each in known[first : first + MOST] for text in (each, seen[each])]
                found += [_update(*row) for row in self._server.call("updates", limit - len(found), *pairs)]
        return found[:limit]

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        """Ordered by id, which rises with time (UUIDv7)."""
        before = None
        if cursor is not None:
            before = cursor.removeprefix("before-")
            if before == cursor or not is_id(before):
                raise bad_cursor(cursor)
        found: list[JobView] = []
        looked, last = 0, ""
        for ids in _newest(self._server, where, before):
            some = ids if within is None else ids[: max(within, 1) - looked]
            for view in _matching(self._server, where, some):
                if len(found) == limit:
                    return Page(tuple(found), f"before-{found[-1].id}")
                found.append(view)
            if len(some) < len(ids):
                last = some[-1] if some else last
                return Page(tuple(found), f"before-{last}", self._enqueued_at(last))
            looked, last = looked + len(some), some[-1]
        return Page(tuple(found))

    def _enqueued_at(self, job_id: str) -> datetime | None:
        return maybe_instant(self._server.run("HGET", f"{self._server.prefix}job:{job_id}", "enqueued_at"))

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        span = millis_at(since), millis_at(until)
        counts: dict[State, int] = {}
        last: list[EndedJob] = []
        for state in sorted(ENDED):
            rows: list[list[str]] = []
            while True:
                room = min(sample - len(rows), MOST)
                number, page = self._server.call("ended", state, *span, len(rows), room)
                rows += page
                if len(page) < room or len(rows) >= sample:
                    break
            counts[state] = min(number, most)
            last += [_ended_job(state, row) for row in rows if row[1]]  # the others were deleted by other means
        return Ended(counts, tuple(last))

    def latest_ended(self, state: State, *, since: datetime | None = None, limit: int = 50) -> list[JobView]:
        first, found = "-inf" if since is None else millis_at(since), list[JobView]()
        for page in range(0, LOOKED_AT + limit, AT_ONCE):
            ids: list[str] = self._server.run(
                "ZREVRANGEBYSCORE", f"{self._server.prefix}{state}", "+inf", first, "LIMIT", page, AT_ONCE
            )
            views = views_of(self._server, ids)
            found += [view for view in views if view is not None and view.state is state and view.queue != GUARD]
            if len(found) >= limit or len(ids) < AT_ONCE:
                break
        return found[:limit]

    def logs(self, job_id: str) -> dict[int, str]:
        if not is_id(job_id):
            return {}
        flat: list[str] = self._server.run("HGETALL", f"{self._server.prefix}log:{job_id}")
        return dict(sorted(zip(map(int, flat[::2]), flat[1::2], strict=True)))

    def counts(self) -> dict[State, int]:
        order = (
            State.QUEUED,
            State.PROCESSING,
            State.WAITING,
            State.SCHEDULED,
            State.COMPLETED,
            State.DEAD,
            State.CANCELLED,
        )
        found = dict(zip(order, self._server.call("counts"), strict=True))
        return {state: found[state] for state in State}

    def attempts(self, job_id: str) -> list[AttemptView]:
        if not is_id(job_id):
            return []
        flat: list[str] = self._server.run("HGETALL", f"{self._server.prefix}attempts:{job_id}")
        rows = sorted(
            (int(number), msgspec.json.decode(text)) for number, text in zip(flat[::2], flat[1::2], strict=True)
        )
        return [
            AttemptView(
                job_id=job_id,
                attempt=number,
                worker_id=row["worker"],
                outcome=row["outcome"],
                error=row["error"],
                evidence=row["evidence"] or {},
                started_at=instant(row["started_at"]),
                ended_at=instant(row["ended_at"]),
            )
            for number, row in rows
        ]

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        found = [_worker(*row) for row in self._server.call("workers", int(dead))]
        return sorted(found, key=lambda worker: (worker.started_at, worker.identity.id), reverse=True)

    def queues(self) -> list[QueueView]:
        found: list[QueueView] = []
        for name, paused_at, *numbers, oldest in self._server.call("queues"):
            counts: dict[State, int] = dict(zip(_QUEUE_COUNTS, numbers, strict=True))
            if paused_at is not None or any(counts.values()):
                found.append(
                    QueueView(
                        name=name,
                        paused_at=maybe_instant(paused_at),
                        counts=counts,
                        oldest_queued=None if oldest is None else oldest / 1000,
                    )
                )
        return sorted(found, key=lambda queue: queue.name)

    def paused(self) -> frozenset[str]:
        return frozenset(self._server.run("HKEYS", f"{self._server.prefix}paused"))


def _ended_job(state: State, row: Sequence[str]) -> EndedJob:
    job_id, task, failures, crashes, run_at, started_at, ended_at = row
    wait = run = None
    if started_at and run_at:
        wait, run = ((float(started_at) - float(run_at)) / 1000, (float(ended_at) - float(started_at)) / 1000)
    return ended_job(job_id, task, state, failures != "0" or crashes != "0", wait, run)


def _update(job_id: str, mark: str, ended_at: str | None, often: Sequence[Any], rest: Sequence[Any]) -> Update:
    if mark == GONE:
        return Update(job_id, GONE, None, None)
    _, state, attempt, failures, run_at, started_at, progress, stage, message, cancel_reason = often
    error, enqueued_at, facts, result = rest
    of_all = decode_facts(facts)
    status = Status(
        id=job_id,
        task=of_all.task,
        queue=of_all.queue,
        state=State(state),
        attempt=int(attempt or 0),
        failures=int(failures or 0),
        progress=None if progress is None else float(progress),
        stage=stage,
        message=message,
        error=error,
        cancel_reason=cancel_reason,
        enqueued_at=instant(enqueued_at),
        run_at=instant(run_at),
        started_at=maybe_instant(started_at),
        ended_at=maybe_instant(ended_at),
    )
    return Update(job_id, mark, status, (result or "null") if status.state is State.COMPLETED else None)


def views_of(server: Server, ids: Sequence[str]) -> list[JobView | None]:
    known = [each for each in ids if is_id(each)]
    found = dict(zip(known, server.call("views", *known), strict=True)) if known else {}
    return [_job(each, *found[each]) if each in found and found[each][0] else None for each in ids]


def _job(job_id: str, flat: Sequence[str], ended_at: str | None = None) -> JobView:
    row: dict[str, str] = dict(zip(flat[::2], flat[1::2], strict=True))
    facts = decode_facts(row["facts"])
    state = State(row["state"])
    fraction, unique = row.get("progress"), row.get("unique")
    values: dict[str, Any] = {name: getattr(facts, name) for name in _FACTS}
    values |= {name: int(row.get(name, 0)) for name in _NUMBERS}
    values |= {name: row.get(name) for name in _TEXTS}
    values |= {name: maybe_instant(row.get(name)) for name in _TIMES}
    return JobView(
        **values,
        id=job_id,
        state=state,
        payload=row["payload"],
        result=row.get("result", "null" if state is State.COMPLETED else None),
        solo=row.get("solo") == "1",
        linked=row.get("linked") == "1",
        limits=keys_of(row.get("limits")),
        together=int(row.get("together", 1)),
        unique=None if unique is None else unique.partition("\0")[2],
        worker_id=row.get("worker_id") if state is State.PROCESSING else None,
        completed_by=row.get("worker_id") if state is State.COMPLETED else None,
        progress=None if fraction is None else float(fraction),
        meta=msgspec.json.decode(facts.meta),
        last_activity_at=maybe_instant(row.get("last_activity_at") or row.get("started_at")),
        ended_at=maybe_instant(ended_at),
    )


def _newest(server: Server, where: Filter, before: str | None) -> Iterator[list[str]]:
    """The ids of all jobs that can match, from the newest; if no index holds few enough of them, all ids."""
    ids = _few(server, where)
    if ids is not None:
        newest = sorted((each for each in ids if before is None or each < before), reverse=True)
        for first in range(0, len(newest), MOST):
            yield newest[first : first + MOST]
        return
    key = f"{server.prefix}jobs" if where.flow is None else f"{server.prefix}members:{where.flow}"
    high = "+" if before is None else f"({before}"
    while some := server.run("ZREVRANGEBYLEX", key, high, "-", "LIMIT", 0, MOST):
        yield some
        high = f"({some[-1]}"


def _few(server: Server, where: Filter) -> list[str] | None:
    if where.flow is not None:
        return None
    if where.worker_id is not None:
        return list(server.run("HKEYS", f"{server.prefix}processing:{where.worker_id}"))
    spanned = where.ended_since is not None or where.ended_until is not None
    states = where.states or (ENDED if spanned else frozenset[State]())
    if not states:
        return None
    since = "-inf" if where.ended_since is None else millis_at(where.ended_since)
    until = "+inf" if where.ended_until is None else f"({millis_at(where.ended_until)}"
    found: list[str] | None = server.call("indexed", FEW, since, until, where.queue or "", *sorted(states))
    return found


def _matching(server: Server, where: Filter, ids: Sequence[str]) -> Iterator[JobView]:
    """The script reads the few fields that can exclude a job; only jobs that pass are read in full."""
    if where != Filter():
        wanted: dict[str, Any] = {
            "states": dict.fromkeys(where.states, True) or None,
            "task": None if where.task is None else task_in(where.task),
            "queue": where.queue,
            "but": None if where.guards else GUARD,
            "worker": where.worker_id,
            "unique": where.unique,
            "parts": where.parts or None,
            "since": None if where.enqueued_since is None else millis_at(where.enqueued_since),
            "til": None if where.enqueued_until is None else millis_at(where.enqueued_until),
            "ended": None if where.ended_since is None else millis_at(where.ended_since),
            "ended_til": None if where.ended_until is None else millis_at(where.ended_until),
        }
        sieve = msgspec.json.encode({name: value for name, value in wanted.items() if value is not None}).decode()
        ids = [each for some in _sifted(server, sieve, ids) for each in some]
    for first in range(0, len(ids), AT_ONCE):
        for view in views_of(server, ids[first : first + AT_ONCE]):
            if view is not None and matches(view, where):
                yield view


def _sifted(server: Server, sieve: str, ids: Sequence[str]) -> Iterator[list[str]]:
    """The ids of those that can match. Each script reads only so much text, since nothing else runs meanwhile."""
    while ids:
        read, *found = server.call("sift", SIFTED, sieve, *ids)
        yield found
        ids = ids[read:]


def _worker(flat: Sequence[str], lease_ends: str | None, holds: int) -> WorkerView:
    row: Mapping[str, str] = dict(zip(flat[::2], flat[1::2], strict=True))
    identity = msgspec.json.decode(row["identity"], type=WorkerIdentity)
    renewed = instant(row["renewed_at"])
    return WorkerView(
        identity=identity,
        started_at=instant(row["started_at"]),
        renewed_at=renewed,
        expires_at=maybe_instant(lease_ends) or renewed + timedelta(seconds=identity.lease),
        died_at=maybe_instant(row.get("died_at")),
        note=row["note"],
        memory=int(row["memory"]) if "memory" in row else None,
        processing=holds,
    )
