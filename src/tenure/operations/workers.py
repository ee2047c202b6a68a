"""Workers: which of them are alive, what each may run, and their total capacity."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from tenure.operations.access import Access
from tenure.operations.sinks import QUEUE
from tenure.ports import WorkerView

_RAN, _MORE = re.compile(r"([0-9a-f-]{36}) (.+)"), re.compile(r"\+[0-9]{1,6}")  # the note that `settle` leaves

# ── One worker ──────────────────────────────────────────────────────────────────────────────────────────────────


def ended_at(row: WorkerView, now: datetime) -> datetime | None:
    """When it was declared dead, or when its lease ended; None: it is alive."""
    if row.died_at is not None:
        return row.died_at
    return row.expires_at if row.expires_at < now else None


def runs_user_jobs(row: WorkerView) -> bool:
    """Whether it is neither a guard, which runs only its own job, nor a worker that delivers alerts."""
    return row.identity.runner != "guard" and row.identity.queues != (QUEUE,)


def serves(queue: str, row: WorkerView) -> bool:
    """Whether it lists this queue, or lists none and takes jobs from all."""
    return queue in row.identity.queues or (not row.identity.queues and runs_user_jobs(row))


def knows(task: str, row: WorkerView) -> bool:
    return task in row.identity.tasks


def has_free_slot(row: WorkerView) -> bool:
    return row.processing < row.identity.slots


def stalls(rows: Iterable[WorkerView]) -> list[str]:
    """The problem that each live worker reports about itself, after its id."""
    return [f"{row.identity.id}: {row.note}" for row in rows if row.note and row.died_at is None]


class Ran(NamedTuple):
    """A job that a worker ran when it ended."""

    id: str
    task: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker ended, and what it ran then: of more than 20 jobs `more` are not named."""

    how: str
    ran: tuple[Ran, ...] = ()
    more: int = 0

    def __str__(self) -> str:
        ran = [f"{task} {job_id}" for job_id, task in self.ran] + [f"{self.more:,} more"] * bool(self.more)
        return f"{self.how}; it ran {', '.join(ran)}" if ran else self.how


def ending(row: WorkerView) -> Ending | None:
    """How it ended, as far as its supervisor saw it; None: it has not been declared dead."""
    if row.died_at is None:
        return None
    if row.note:
        how, *lines = row.note.splitlines()
        named = [found for line in lines if (found := _RAN.fullmatch(line))]
        more = [int(line) for line in lines if _MORE.fullmatch(line)]
        return Ending(how, tuple(Ran(found[1], found[2]) for found in named), sum(more))
    if row.died_at >= row.expires_at:
        return Ending("its lease expired without a renewal, so its jobs were rescued")
    return Ending("its process ended, by a normal stop or a kill; its jobs were settled at once")


# ── All workers ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Workforce:
    """Counts over a set of workers."""

    alive: int
    hosts: int
    busy: int
    slots: int
    stalled: int
    died: int

    @classmethod
    def of(cls, rows: Iterable[WorkerView]) -> Workforce:
        """Counts of these; a guard runs no other jobs, so it counts only once it is dead."""
        found = list(rows)
        alive = [row for row in found if row.died_at is None and row.identity.runner != "guard"]
        return cls(
            alive=len(alive),
            hosts=len({row.identity.host for row in alive}),
            busy=sum(row.processing for row in alive),
            slots=sum(row.identity.slots for row in alive),
            stalled=sum(bool(row.note) for row in alive),
            died=sum(row.died_at is not None for row in found),
        )


class Workers:
    """The workers of a store. Example: `admin.workers.all(dead=True)`"""

    def __init__(self, access: Access) -> None:
        self._store = access.store

    def all(self, *, dead: bool = False) -> list[WorkerView]:
        """Live workers, newest first; with `dead` also those of the last day."""
        return self._store.workers(dead=dead)

    def recent(self, within: timedelta) -> list[WorkerView]:
        """Live workers, and those that died within this time, newest first."""
        rows, since = self._store.workers(dead=True), self._store.now() - within
        return [row for row in rows if row.died_at is None or row.died_at > since]
