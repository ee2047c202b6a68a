"""Queues: their backlog and workers; pause and resume."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from types import MappingProxyType

import msgspec

from tenure.config import valid_name
from tenure.core.durations import spell
from tenure.core.lifecycle import GUARD, State
from tenure.core.text import clean
from tenure.errors import UnknownQueue
from tenure.operations.access import Access
from tenure.operations.backlogs import Growth, Latency
from tenure.operations.workers import ended_at, runs_user_jobs, serves
from tenure.ports import Filter, QueueView, Ring, WorkerView

DEFAULT = "default"  #: the queue of tasks that name none
_LOOKED_THROUGH = 2_000  #: rows, the newest, among which a job of the queue is searched
_NAMED = 10
_PAUSE = "pause:"
_SAME_PAUSE = 60.0  #: seconds between a pause and the record of who made it, at most
_LONGEST_WHY = 500


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a queue, when, and why; `why` may be empty."""

    who: str
    at: datetime
    why: str

    def __str__(self) -> str:
        return f"by {self.who}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """A queue, and the live workers that serve it."""

    queue: QueueView
    workers: int
    slots: int
    pause: Pause | None = None
    pace: Growth | None = None  #: None: it has not been looked at for long enough
    latency: Latency | None = None  #: None: no job of it completed lately

    @property
    def needs_care(self) -> bool:
        """It is paused, or its backlog grows, or no worker serves it."""
        waits = self.queue.counts.get(State.QUEUED, 0) > 0
        grows = self.pace is not None and self.pace.growth > 0 and not self.pace.steady
        unserved = not self.workers and not self.guards
        return self.queue.paused_at is not None or (waits and (grows or unserved))

    @property
    def outlook(self) -> str:
        """When its queued jobs will have been run, in words; empty: there are none."""
        if not self.queue.counts.get(State.QUEUED, 0) or self.guards:
            return ""
        if self.queue.paused_at is not None:
            return "paused"
        if not self.workers:
            return "no worker"
        pace = self.pace
        if pace is None:
            return "being measured"
        if pace.empty_in is not None:
            return f"empty in about {_roughly(pace.empty_in)}"
        return "steady" if pace.steady else f"grows by {_rate(pace.growth)}"

    @property
    def guards(self) -> bool:
        """Its jobs run outside Tenure's workers, under guards."""
        return self.queue.name == GUARD


def idle(queues: Iterable[QueueView], served: Iterable[str]) -> list[QueueView]:
    """Served queues without a live job that are not paused: the store has no record of them."""
    names = set(served) - {queue.name for queue in queues}
    return [QueueView(name=name, paused_at=None, counts={}, oldest_queued=None) for name in sorted(names)]


def with_idle(queues: Sequence[QueueView], workers: Iterable[WorkerView], now: datetime) -> list[QueueView]:
    """Queues that hold live jobs, are paused, or are empty but served by a live worker by name; sorted by name."""
    living = [row for row in workers if ended_at(row, now) is None and runs_user_jobs(row)]
    served = {name for row in living for name in row.identity.queues}
    return sorted([*queues, *idle(queues, served)], key=lambda queue: queue.name)


def _roughly(seconds: float) -> str:
    """To two digits or so: an estimate."""
    step = next(step for most, step in ((60, 1), (600, 10), (3600, 60), (86_400, 600), (inf, 3600)) if seconds < most)
    return spell(max(round(seconds / step) * step, 1))


def _rate(growth: float) -> str:
    return f"{growth:,.0f} a second" if growth >= 1 else f"{max(growth * 60, 1):.0f} a minute"


def health(
    queues: Iterable[QueueView],
    workers: Iterable[WorkerView],
    now: datetime,
    *,
    pauses: Mapping[str, Pause] = MappingProxyType({}),
    paces: Mapping[str, Growth] = MappingProxyType({}),
    latencies: Mapping[str, Latency] = MappingProxyType({}),
) -> list[QueueHealth]:
    """Each queue with its live workers, who paused it, its pace and its latency, by name."""
    alive = [row for row in workers if ended_at(row, now) is None]
    found: list[QueueHealth] = []
    for queue in queues:
        serving, name = [row for row in alive if serves(queue.name, row)], queue.name
        slots = sum(row.identity.slots for row in serving)
        pause = _pause_of(queue, pauses.get(name))
        found.append(QueueHealth(queue, len(serving), slots, pause, paces.get(name), latencies.get(name)))
    return found


def _pause_of(queue: QueueView, pause: Pause | None) -> Pause | None:
    """The record, if it is of this pause: one that an older release ended and began again has none."""
    if pause is None or queue.paused_at is None:
        return None
    return pause if -_SAME_PAUSE <= (pause.at - queue.paused_at).total_seconds() <= _SAME_PAUSE else None


class Queues:
    """Queries and actions on queues. Example: `admin.queues.pause("reports")`"""

    def __init__(self, access: Access) -> None:
        self._access = access

    # ── reading ──

    def all(self) -> list[QueueView]:
        """Queues that hold live jobs or are paused."""
        return self._access.store.queues()

    def pauses(self) -> dict[str, Pause]:
        """Who paused which queue, and why, as far as it is on record."""
        texts = self._access.store.notes(_PAUSE).items()
        return {key.removeprefix(_PAUSE): _decode(text) for key, text in texts}

    def _record(self, queue: str, pause: Pause | None) -> None:
        key, store = _PAUSE + queue, self._access.store
        old, new = store.notes(key).get(key), None if pause is None else msgspec.json.encode(pause).decode()
        if old != new:
            store.swap(key, old, new)

    def check_known(self, name: str, declared: Iterable[str] = ()) -> None:
        """Raise UnknownQueue for a name that is probably misspelled.

        Known are the queues of `declared` and of schedules, those that are paused, that a worker of the last day serves
        by name, or that a job is, or lately was, in: if workers serve all queues, nothing else shows that an empty
        one exists.
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
                f"no job, worker or schedule of this store has a queue named {name!r}; {which} A queue is "
                "paused before its first job with tenure queues pause NAME --unchecked, or ?unchecked=true in the API"
            )

    # ── acting ──

    def pause(self, queue: str, why: str = "") -> bool:
        """Stop claims from a queue; running jobs continue. False: it was already paused, and keeps its reason."""
        why = clean(why.strip(), _LONGEST_WHY)
        with self._access.recorded("queue.pause", valid_name(queue, "queue"), **({"why": why} if why else {})) as said:
            paused = self._access.store.pause(queue, paused=True)
            if paused:
                self._record(queue, Pause(self._access.who, self._access.store.now(), why))
            said.append("paused" if paused else "it was already paused")
        return paused

    def resume(self, queue: str) -> bool:
        """False: it was not paused."""
        with self._access.recorded("queue.resume", valid_name(queue, "queue")) as said:
            resumed = self._access.store.pause(queue, paused=False)
            self._record(queue, None)
            said.append("resumed" if resumed else "it was not paused")
        self._access.notifier.announce([Ring("queued", queue)])
        return resumed


_decode = msgspec.json.Decoder(Pause).decode
