"""Workers: which of them are alive, what each may run, and what all of them together have room for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.operations.access import Access
from tenure.operations.sinks import QUEUE
from tenure.ports import WorkerView

# ── One of them ─────────────────────────────────────────────────────────────────────────────────────────────────


def ended_at(row: WorkerView, now: datetime) -> datetime | None:
    """When it was declared dead, or when its lease ended; None: it is alive."""
    if row.died_at is not None:
        return row.died_at
    return row.expires_at if row.expires_at < now else None


def runs_user_jobs(row: WorkerView) -> bool:
    """Neither a guard, which runs its own job only, nor one that delivers alerts."""
    return row.identity.runner != "guard" and row.identity.queues != (QUEUE,)


def serves(queue: str, row: WorkerView) -> bool:
    """It names the queue, or names none and takes jobs of any."""
    return queue in row.identity.queues or (not row.identity.queues and runs_user_jobs(row))


def knows(task: str, row: WorkerView) -> bool:
    return task in row.identity.tasks


def has_free_slot(row: WorkerView) -> bool:
    return row.processing < row.identity.slots


def stalls(rows: Iterable[WorkerView]) -> list[str]:
    """What each of the living says is wrong with it, behind its id."""
    return [f"{row.identity.id}: {row.note}" for row in rows if row.note and row.died_at is None]


def why_ended(row: WorkerView) -> str:
    """Of one that was declared dead."""
    if row.note:
        return row.note
    if row.died_at is not None and row.died_at >= row.expires_at:
        return "its lease ended: nobody heard of it any more, so its jobs were taken back"
    return "its process ended: stopped in order, or killed; its jobs were settled at once"


# ── All of them ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Workforce:
    """Some workers, counted."""

    alive: int
    hosts: int
    busy: int
    slots: int
    stalled: int
    died: int

    @classmethod
    def of(cls, rows: Iterable[WorkerView]) -> Workforce:
        """Of these; a guard is none that works for others, and counts only once it is dead."""
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
        """Live workers, and those that died in this time, newest first."""
        rows, since = self._store.workers(dead=True), self._store.now() - within
        return [row for row in rows if row.died_at is None or row.died_at > since]
