"""Queues: their backlog and workers; pause and resume."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenure.config import valid_name
from tenure.core.lifecycle import GUARD
from tenure.errors import UnknownQueue
from tenure.operations.access import Access
from tenure.operations.workers import runs_user_jobs, serves
from tenure.ports import Filter, QueueView, Ring, WorkerView

DEFAULT = "default"  #: the queue of tasks that name none
_LOOKED_THROUGH = 2_000  #: rows, the newest, among which a job of the queue is searched
_NAMED = 10


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """A queue, and the live workers that serve it."""

    queue: QueueView
    workers: int
    slots: int

    @property
    def guards(self) -> bool:
        """Its jobs run outside Tenure's workers, under guards."""
        return self.queue.name == GUARD


def idle(queues: Iterable[QueueView], served: Iterable[str]) -> list[QueueView]:
    """Served queues without a live job that are not paused: the store has no record of them."""
    names = set(served) - {queue.name for queue in queues}
    return [QueueView(name=name, paused_at=None, counts={}, oldest_queued=None) for name in sorted(names)]


def with_idle(queues: Sequence[QueueView], workers: Iterable[WorkerView]) -> list[QueueView]:
    """Queues that hold live jobs, are paused, or are empty but served by a live worker by name; sorted by name."""
    served = {name for row in workers if row.died_at is None and runs_user_jobs(row) for name in row.identity.queues}
    return sorted([*queues, *idle(queues, served)], key=lambda queue: queue.name)


def health(queues: Iterable[QueueView], workers: Iterable[WorkerView]) -> list[QueueHealth]:
    """Each queue with its live workers."""
    alive = [row for row in workers if row.died_at is None]
    return [_health(queue, [row for row in alive if serves(queue.name, row)]) for queue in queues]


def _health(queue: QueueView, serving: Sequence[WorkerView]) -> QueueHealth:
    return QueueHealth(queue, len(serving), sum(row.identity.slots for row in serving))


class Queues:
    """Queries and actions on queues. Example: `admin.queues.pause("reports")`"""

    def __init__(self, access: Access) -> None:
        self._access = access

    # ── reading ──

    def all(self) -> list[QueueView]:
        """Queues that hold live jobs or are paused."""
        return self._access.store.queues()

    def check_known(self, name: str, declared: Iterable[str] = ()) -> None:
        """Raise UnknownQueue for a name that is probably misspelled.

        Known are the queues of `declared` and of schedules, those that are paused, that a worker of the last day serves
        by name, or that a job is or lately was in: with workers that serve all queues, nothing else tells of an empty
        one.
        """
        store = self._access.store
        if name == DEFAULT or name in (known := {queue.name for queue in store.queues()}.union(declared)):
            return
        if store.search(Filter(queue=name), limit=1, within=_LOOKED_THROUGH).jobs:
            return
        known.update(*(row.identity.queues for row in store.workers(dead=True)))
        known.update(each.schedule.job.queue for each in store.schedules() if each.schedule.job)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            names = sorted(known - {GUARD})[:_NAMED]
            which = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names) or 'none'}."
            raise UnknownQueue(
                f"no job, worker or schedule of this store has a queue named {name!r}; {which} To pause it before its "
                "first job: tenure queues pause NAME --unchecked, or ?unchecked=true in the API"
            )

    # ── acting ──

    def pause(self, queue: str) -> bool:
        """Stop claims from a queue; running jobs continue. False: it was already paused."""
        with self._access.recorded("queue.pause", valid_name(queue, "queue")) as said:
            paused = self._access.store.pause(queue, paused=True)
            said.append("paused" if paused else "it was already paused")
        return paused

    def resume(self, queue: str) -> bool:
        """False: it was not paused."""
        with self._access.recorded("queue.resume", valid_name(queue, "queue")) as said:
            resumed = self._access.store.pause(queue, paused=False)
            said.append("resumed" if resumed else "it was not paused")
        self._access.notifier.announce([Ring("queued", queue)])
        return resumed
