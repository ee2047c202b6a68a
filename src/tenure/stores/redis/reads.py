"""What people look at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

import msgspec

from tenure.errors import InvalidOption
from tenure.lifecycle import ENDED, GUARD, State
from tenure.ports import AttemptView, Filter, JobView, Page, QueueView, WorkerIdentity, WorkerView
from tenure.stores.redis.facts import decode_facts
from tenure.stores.redis.server import Server

AT_ONCE = 50  #: jobs of one look, which may have long arguments
FEW = 10_000  #: so many ids are sorted here; of more, all jobs are walked through from the newest
_INDEXED = {*ENDED, State.SCHEDULED}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

is_id = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch  #: nothing else is the id of a job


def instant(milliseconds: float | str) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=float(milliseconds))
    except OverflowError:  # later than the last year there is a name for
        return datetime.max.replace(tzinfo=UTC)


def _instant(milliseconds: str | None) -> datetime | None:
    return None if milliseconds is None else instant(milliseconds)


def views(server: Server, ids: Sequence[str]) -> list[JobView | None]:
    known = [each for each in ids if is_id(each)]
    found = dict(zip(known, server.call("views", *known), strict=True)) if known else {}
    return [_job(each, *found[each]) if each in found and found[each][0] else None for each in ids]


def _job(job_id: str, flat: Sequence[str], ended_at: str | None = None) -> JobView:
    row: dict[str, str] = dict(zip(flat[::2], flat[1::2], strict=True))
    facts = decode_facts(row["facts"])
    state = State(row["state"])
    fraction, unique = row.get("progress"), row.get("unique")
    return JobView(
        id=job_id,
        task=facts.task,
        queue=facts.queue,
        state=state,
        priority=facts.priority,
        payload=row["payload"],
        result=row.get("result", "null" if state is State.COMPLETED else None),
        error=row.get("error"),
        attempt=int(row.get("attempt", 0)),
        failures=int(row.get("failures", 0)),
        max_failures=facts.max_failures,
        crashes=int(row.get("crashes", 0)),
        crashes_total=int(row.get("crashes_total", 0)),
        max_crashes=facts.max_crashes,
        solo=row.get("solo") == "1",
        isolated=facts.isolated,
        unique=None if unique is None else unique.partition("\0")[2],
        worker_id=row.get("worker_id") if state is State.PROCESSING else None,
        stage=row.get("stage"),
        progress=None if fraction is None else float(fraction),
        message=row.get("message"),
        checkpoint=row.get("checkpoint"),
        meta=msgspec.json.decode(facts.meta),
        timeout=facts.timeout,
        stale_after=facts.stale_after,
        enqueued_at=instant(row["enqueued_at"]),
        run_at=instant(row["run_at"]),
        expires_at=_instant(row.get("expires_at")),
        started_at=_instant(row.get("started_at")),
        last_activity_at=_instant(row.get("last_activity_at") or row.get("started_at")),
        ended_at=_instant(ended_at),
        cancel_reason=row.get("cancel_reason"),
    )


def search(server: Server, where: Filter, limit: int, cursor: str | None) -> Page:
    before = None
    if cursor is not None:
        before = cursor.removeprefix("before-")
        if before == cursor or not is_id(before):
            raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one")
    found = list(islice(_found(server, where, before), limit + 1))
    return Page(tuple(found[:limit]), f"before-{found[limit - 1].id}" if len(found) > limit else None)


def _found(server: Server, where: Filter, before: str | None) -> Iterator[JobView]:
    """Newest first: by id, which rises with time (UUIDv7)."""
    for ids in _newest(server, where, before):
        for view in views(server, ids):
            if view is not None and _matches(view, where):
                yield view


def _newest(server: Server, where: Filter, before: str | None) -> Iterator[list[str]]:
    ids = _few(server, where)
    if ids is not None:
        newest = sorted((each for each in ids if before is None or each < before), reverse=True)
        for first in range(0, len(newest), AT_ONCE):
            yield newest[first : first + AT_ONCE]
        return
    key, high = f"{server.prefix}jobs", "+" if before is None else f"({before}"
    while some := server.run("ZREVRANGEBYLEX", key, high, "-", "LIMIT", 0, AT_ONCE):
        yield some
        high = f"({some[-1]}"


def _few(server: Server, where: Filter) -> list[str] | None:
    """The ids of all that can match, where an index holds few enough of them."""
    if where.worker_id is not None:
        return list(server.run("HKEYS", f"{server.prefix}processing:{where.worker_id}"))
    if not where.states:
        return None
    keys = [f"{server.prefix}{state}" for state in where.states if state in _INDEXED]
    if State.QUEUED in where.states:
        queues = [where.queue] if where.queue is not None else server.run("SMEMBERS", f"{server.prefix}queues")
        keys += [f"{server.prefix}{lane}:{queue}" for queue in queues for lane in ("ready", "solo")]
    if where.ended_since is not None and where.states <= ENDED:
        since = str(where.ended_since.timestamp() * 1000)
        return [each for key in keys for each in server.run("ZRANGEBYSCORE", key, since, "+inf")]
    if sum(server.run("ZCARD", key) for key in keys) > FEW:
        return None
    ids = [each for key in keys for each in server.run("ZRANGE", key, 0, FEW)]
    if State.PROCESSING in where.states:
        for worker in server.run("SMEMBERS", f"{server.prefix}owners"):
            ids += server.run("HKEYS", f"{server.prefix}processing:{worker}")
    return ids


def _matches(view: JobView, where: Filter) -> bool:
    wanted = {"task": where.task, "queue": where.queue, "worker_id": where.worker_id, "unique": where.unique}
    return (
        (not where.states or view.state in where.states)
        and all(value is None or getattr(view, name) == value for name, value in wanted.items())
        and (where.text is None or where.text in view.id or where.text in (view.error or ""))
        and (where.guards or view.queue != GUARD)
        and (where.ended_since is None or (view.ended_at is not None and view.ended_at >= where.ended_since))
    )


def counts(server: Server) -> dict[State, int]:
    order = (State.QUEUED, State.PROCESSING, State.SCHEDULED, State.COMPLETED, State.DEAD, State.CANCELLED)
    found = dict(zip(order, server.call("counts"), strict=True))
    return {state: found[state] for state in State}


def attempts(server: Server, job_id: str) -> list[AttemptView]:
    if not is_id(job_id):
        return []
    flat: list[str] = server.run("HGETALL", f"{server.prefix}attempts:{job_id}")
    rows = sorted((int(number), msgspec.json.decode(text)) for number, text in zip(flat[::2], flat[1::2], strict=True))
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


def workers(server: Server, *, dead: bool) -> list[WorkerView]:
    found = [_worker(*row) for row in server.call("workers", int(dead))]
    return sorted(found, key=lambda worker: (worker.started_at, worker.identity.id), reverse=True)


def _worker(flat: Sequence[str], lease_ends: str | None, holds: int) -> WorkerView:
    row: Mapping[str, str] = dict(zip(flat[::2], flat[1::2], strict=True))
    identity = msgspec.json.decode(row["identity"], type=WorkerIdentity)
    renewed = instant(row["renewed_at"])
    return WorkerView(
        identity=identity,
        started_at=instant(row["started_at"]),
        renewed_at=renewed,
        expires_at=_instant(lease_ends) or renewed + timedelta(seconds=identity.lease),
        died_at=_instant(row.get("died_at")),
        note=row["note"],
        processing=holds,
    )


def queues(server: Server) -> list[QueueView]:
    found: list[QueueView] = []
    for name, paused_at, scheduled, queued, processing, oldest in server.call("queues"):
        counts = {State.SCHEDULED: scheduled, State.QUEUED: queued, State.PROCESSING: processing}
        if paused_at is not None or any(counts.values()):
            found.append(
                QueueView(
                    name=name,
                    paused_at=_instant(paused_at),
                    counts=counts,
                    oldest_queued=None if oldest is None else oldest / 1000,
                )
            )
    return sorted(found, key=lambda queue: queue.name)
