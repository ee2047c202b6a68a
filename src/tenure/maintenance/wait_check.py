"""A slow walk through all jobs that wait: a check that no ask was lost.

Whatever may end a wait stores an ask, and `admit` deletes it once its work is done, so the walk should find nothing.
If an ask was lost after all, its job would silently wait forever. The walk asks for it again, and reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from tenure.core.lifecycle import State
from tenure.core.logs import logger
from tenure.maintenance.roster import Turn
from tenure.ports import LINKS_PROTOCOL, Filter, JobView, Store

_log = logger("tenure.maintenance")
KEPT_SECONDS = 86_400.0  #: how long lost waits are reported
_LOST = "wait-lost:"
_WAITING = Filter(states=frozenset({State.WAITING}))
#: The jobs that have waited longest. Each turn looks at these too: the walk starts over with each new process.
_OLDEST = 50
_WITHIN = 10_000  #: jobs among which a turn searches for those that wait
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class LostWaits:
    """The jobs of a task that were asked for again: some of them, how many at least, and when the last one was."""

    task: str
    jobs: tuple[str, ...]
    many: int
    at: datetime


class WaitCheck:
    """The walk of one process, from the newest job to the oldest, again and again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cursor: str | None = None

    def turn(self, limit: int) -> Turn:
        """Look at the next jobs that wait."""
        store = self._store
        page = store.search(_WAITING, limit=limit, cursor=self._cursor, within=_WITHIN)
        jobs = {job.id: job for job in (*page.jobs, *store.waited_longest(limit=_OLDEST))}
        if jobs and not store.outdated(LINKS_PROTOCOL):  # while any runs, no ask is answered, and some are not stored
            lost = store.lost_waits(jobs)
            if lost:
                self._tell([jobs[each] for each in lost])  # first: once they are asked for, no walk finds them
                store.ask(dict.fromkeys(each for job, parents in lost.items() for each in (job, *parents)))
        self._cursor = page.cursor
        return Turn()

    def _tell(self, lost: Iterable[JobView]) -> None:
        by_task: dict[str, list[str]] = {}
        for job in lost:
            by_task.setdefault(job.task, []).append(job.id)
        for task, ids in by_task.items():
            _log.error(
                "%s of %s waited for something that had happened, with no ask left; asked for again: %s",
                "a job" if len(ids) == 1 else f"{len(ids)} jobs",
                task,
                ", ".join(ids[:_MOST_NAMED]),
            )
            self._note(task, ids)

    def _note(self, task: str, ids: list[str]) -> None:
        key = _LOST + task
        for _ in range(3):  # another process may write it at the same time; each has logged what it found
            old = self._store.notes(key).get(key)
            before = None if old is None else msgspec.json.decode(old, type=LostWaits)
            told = tuple(dict.fromkeys((*ids, *(before.jobs if before else ()))))
            many = max(len(told), before.many if before else 0)
            new = LostWaits(task, told[:_MOST_NAMED], many, self._store.now())
            if self._store.swap(key, old, msgspec.json.encode(new).decode(), ttl=KEPT_SECONDS).landed:
                return


def lost_waits(store: Store) -> Iterator[LostWaits]:
    """What the walks of all processes have found within a day."""
    return (msgspec.json.decode(text, type=LostWaits) for text in store.notes(_LOST).values())
