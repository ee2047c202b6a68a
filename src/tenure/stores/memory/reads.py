"""Reads for people and their tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice

from tenure.core.lifecycle import ENDED, LIVE, State
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
    WorkerView,
)
from tenure.stores.fields import STATUS, ended_job, queue_views
from tenure.stores.memory.base import MemoryBase, atomic
from tenure.stores.memory.rows import Row, age, enqueue_order, read_cursor, write_cursor
from tenure.stores.rules import matches, with_end


class MemoryReads(MemoryBase):
    """The verbs of `ReadStore`."""

    @atomic
    def get(self, job_id: str) -> JobView | None:
        row = self._jobs.get(job_id)
        return row.view if row else None

    @atomic
    def ids(self, start: str = "", end: str = "", *, cursor: str | None = None, within: int = 10_000) -> Ids:
        begin = (each for each in sorted(self._jobs, reverse=True) if each.startswith(start))
        near = list(islice((each for each in begin if cursor is None or each < cursor), within))
        return with_end(near, end, within)

    @atomic
    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        found = (_update(job_id, self._jobs.get(job_id)) for job_id in seen)
        return list(islice((update for update in found if update.mark != seen[update.id]), limit))

    @atomic
    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        views = sorted((row.view for row in self._rows()), key=enqueue_order, reverse=True)
        if cursor is not None:
            last = read_cursor(cursor)
            views = [view for view in views if enqueue_order(view) < last]
        near = views[:within]
        found = [view for view in near if matches(view, where)]
        jobs = tuple(found[:limit])
        if len(found) > limit:
            return Page(jobs, write_cursor(jobs[-1]) if jobs else None)
        if not near or len(near) == len(views):
            return Page(jobs)
        return Page(jobs, write_cursor(near[-1]), near[-1].enqueued_at)

    @atomic
    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        found = [view for view in self._ended_newest_first() if since <= (view.ended_at or until) < until]
        states = [view.state for view in found]
        by_state = {state: [view for view in found if view.state is state][:sample] for state in sorted(ENDED)}
        return Ended(
            counts={state: min(states.count(state), most) for state in State if state in ENDED},
            last=tuple(_ended_job(view) for views in by_state.values() for view in views),
        )

    @atomic
    def latest_ended(self, state: State, *, since: datetime | None = None, limit: int = 50) -> list[JobView]:
        where = Filter(states=frozenset({state}), ended_since=since, guards=False)
        return [view for view in self._ended_newest_first() if matches(view, where)][:limit]

    @atomic
    def logs(self, job_id: str) -> dict[int, str]:
        row = self._jobs.get(job_id)
        return dict(sorted(row.logs.items())) if row else {}

    @atomic
    def counts(self) -> dict[State, int]:
        states = [row.view.state for row in self._rows()]
        return {state: states.count(state) for state in State}

    @atomic
    def attempts(self, job_id: str) -> list[AttemptView]:
        row = self._jobs.get(job_id)
        return list(row.attempts) if row else []

    @atomic
    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        shown = [worker for worker in self._workers.values() if dead or not worker.died_at]
        views = [
            WorkerView(
                identity=worker.identity,
                started_at=worker.started_at,
                renewed_at=worker.renewed_at,
                expires_at=worker.renewed_at + timedelta(seconds=worker.identity.lease),
                died_at=worker.died_at,
                note=worker.note,
                memory=worker.memory,
                processing=len(self._held_by(worker.identity.id)),
            )
            for worker in shown
        ]
        return sorted(views, key=lambda view: (view.started_at, view.identity.id), reverse=True)

    @atomic
    def queues(self) -> list[QueueView]:
        counts: dict[str, Counter[State]] = {}
        oldest: dict[str, float] = {}
        for view in (row.view for row in self._rows() if row.view.state in LIVE):
            counts.setdefault(view.queue, Counter())[view.state] += 1
            if view.state is State.QUEUED:
                oldest[view.queue] = max(age(self.now(), view.run_at), oldest.get(view.queue, 0.0))
        return queue_views(counts, self._paused, oldest)

    @atomic
    def paused(self) -> frozenset[str]:
        return frozenset(self._paused)

    def _ended_newest_first(self) -> list[JobView]:
        ended = [row.view for row in self._rows() if row.view.ended_at]
        return sorted(ended, key=lambda view: (view.ended_at, view.id), reverse=True)


def _ended_job(view: JobView) -> EndedJob:
    wait = None if view.started_at is None else age(view.started_at, view.run_at)
    run = None if view.ended_at is None else age(view.ended_at, view.started_at)
    return ended_job(view.id, view.task, view.state, view.failures + view.crashes_total > 0, wait, run)


def _update(job_id: str, row: Row | None) -> Update:
    if row is None:
        return Update(job_id, GONE, None, None)
    status = Status(**{name: getattr(row.view, name) for name in STATUS})
    return Update(job_id, str(hash((status, row.view.result))), status, row.view.result)
