"""Walks through all jobs that wait, some at each look, for one that nothing holds up and that is not admitted.

Whatever ends a wait stores an ask, and `admit` deletes that once its work is done, so there should be none. If an ask
was lost after all, its job would wait for good, without a word. It is told, and asked for again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from tenure.config import Settings
from tenure.core.durations import spell
from tenure.core.lifecycle import State
from tenure.operations.causes import Problem
from tenure.operations.waiting import has_arrived, parents_by_kind, wait_of
from tenure.ports import LINKS_PROTOCOL, MOST_EDGES, EdgeView, Filter, JobView, Store

_WAITING = Filter(states=frozenset({State.WAITING}))
_PAGE = 100  #: jobs that one look reads
_MOST_EDGES = 2_000  #: of them; if there are more, the next look reads fewer jobs
_WITHIN = 10_000  #: jobs among which a look searches for them
_MOST_KEPT = 50  #: found jobs that each look reads again
_BUSY = 1_000  #: asks; with so many, those of a job may be among them


class _Wait(NamedTuple):
    """One wait of a job: it may be suspended again later."""

    job: str
    attempt: int


class WaitWalk:
    """The walk of one process. Each look goes on where the one before ended, and begins anew after the last job."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._patience = store, settings.alert_queue_age
        self._soon = timedelta(seconds=3 * settings.alert_every)
        self._cursor: str | None = None
        self._page = _PAGE
        self._looked_at: datetime | None = None
        self._since: dict[_Wait, datetime] = {}  #: what nothing held up when it was last read, since when

    def look(self) -> list[Problem]:
        """Jobs of which nothing has held up the admission for as long as a job may be late in its queue.

        They are asked for again, so that `admit` looks at them.
        """
        now = self._store.now()
        if not self._is_steady(now):
            self._since.clear()  # what they wait for may not have been looked at yet
        again = [job for wait in self._since if (job := self._store.get(wait.job)) is not None]
        free = {_Wait(job.id, job.attempt): job for job in (*self._free(again, now), *self._free(self._next(), now))}
        self._since = {wait: self._since.get(wait, now) for wait in list(free)[:_MOST_KEPT]}
        lost = [free[each] for each, since in self._since.items() if (now - since).total_seconds() > self._patience]
        if lost:
            self._store.ask(dict.fromkeys(each for job in lost for each in (job.id, *self._ended_parents(job))))
        by_task: dict[str, list[JobView]] = defaultdict(list)
        for job in lost:
            by_task[job.task].append(job)
        return [self._problem(task, jobs) for task, jobs in by_task.items()]

    def _is_steady(self, now: datetime) -> bool:
        """Does `admit` keep up, as far as one can see, since the look before, and was that a moment ago?"""
        before, self._looked_at = self._looked_at, now
        if before is None or not timedelta() <= now - before <= self._soon:
            return False
        return self._store.waits(most=_BUSY).asks < _BUSY and not self._store.outdated(LINKS_PROTOCOL)

    def _problem(self, task: str, jobs: Sequence[JobView]) -> Problem:
        first = jobs[0].id
        many = f"{len(jobs)} jobs of {task} waited" if len(jobs) > 1 else f"a job of {task} waited"
        return Problem(
            "wait-lost",
            task,
            f"{many} for nothing: what {first} waits for happened more than {spell(self._patience)} ago; "
            f"{'they are' if len(jobs) > 1 else 'it is'} asked for again",
            fix=f"tenure jobs explain {first}",
            task=task,
            jobs=tuple(job.id for job in jobs),
        )

    def _next(self) -> Sequence[JobView]:
        """The next jobs that wait."""
        page = self._store.search(_WAITING, limit=self._page, cursor=self._cursor, within=_WITHIN)
        if self._page > 1 and len(self._edges(page.jobs)) == _MOST_EDGES:
            self._page //= 2
            return ()
        self._page, self._cursor = min(2 * self._page, _PAGE), page.cursor
        return page.jobs

    def _edges(self, jobs: Sequence[JobView]) -> Sequence[EdgeView]:
        return self._store.edges([job.id for job in jobs], limit=_MOST_EDGES) if jobs else ()

    def _free(self, jobs: Sequence[JobView], now: datetime) -> list[JobView]:
        """Those of them that nothing holds up. For a place of a limit `limit-behind` is told."""
        waiting = [job for job in jobs if job.state is State.WAITING and job.parked is None]
        edges = self._edges(waiting)
        first: dict[str, EdgeView] = {}  # of the edges of each that are open
        for edge in edges:
            if edge.open:
                first.setdefault(edge.child, edge)
        kinds = parents_by_kind(self._store, list(first.values()))
        ended = {parent for parent, _ in kinds.pop("ended", ())}
        whole = len(edges) < _MOST_EDGES
        return [
            job
            for job in waiting
            if (job.id not in first or first[job.id].parent in ended)
            and (self._is_over(job, now) if whole and job.id not in first else wait_of(self._store, job, None).over)
        ]

    def _is_over(self, job: JobView, now: datetime) -> bool:
        """Has its signal come, or its time-out, if it waits for one?"""
        timed_out = job.wait_until is not None and job.wait_until < now
        return job.wait_for is None or timed_out or has_arrived(self._store, job)

    def _ended_parents(self, job: JobView) -> Iterator[str]:
        """Those of which its edges are open still: their asks may be what was lost."""
        return (edge.parent for edge in self._store.edges([job.id], limit=MOST_EDGES) if edge.open)
