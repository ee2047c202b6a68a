"""Workers: which of them are alive, what each may run, and their total capacity."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from time import monotonic, sleep
from typing import Literal, NamedTuple

from tenure.core.durations import spell
from tenure.errors import Refused, UnknownWorker
from tenure.maintenance import orders
from tenure.maintenance.orders import Order
from tenure.operations.access import Access
from tenure.operations.sinks import QUEUE
from tenure.ports import Store, WorkerView

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


StopVerb = Literal["drain", "restart"]
_DONE = {"drain": "drained", "restart": "restarted"}
_LOOK_SECONDS = 0.1


class Stop(NamedTuple):
    """Who has had a worker drained or restarted. `taken`: its supervisor has begun."""

    verb: str
    who: str
    at: datetime
    taken: bool

    def __str__(self) -> str:
        return f"{self.verb} ordered by {self.who}{'' if self.taken else ', not begun yet'}"


def stops(store: Store) -> dict[str, Stop]:
    """By id, the workers that an operator has had drained or restarted within the last day. They claim nothing more."""
    taken, waiting = orders.stops(store), orders.open_orders(store)
    found = [(each, True) for each in taken.values()]
    found += [(each, False) for each in waiting if each.verb != "stack" and each.worker not in taken]
    return {each.worker: Stop(each.verb, each.who, each.at, taken) for each, taken in found}


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
    def of(cls, rows: Iterable[WorkerView], now: datetime) -> Workforce:
        """Counts of these; a guard runs no other jobs, so it counts only once it is dead."""
        found = list(rows)
        living = [row for row in found if ended_at(row, now) is None]
        alive = [row for row in living if row.identity.runner != "guard"]
        return cls(
            alive=len(alive),
            hosts=len({row.identity.host for row in alive}),
            busy=sum(row.processing for row in alive),
            slots=sum(row.identity.slots for row in alive),
            stalled=sum(bool(row.note) for row in alive),
            died=len(found) - len(living),
        )


@dataclass(frozen=True, slots=True)
class HostView:
    """The workers of a host, added up."""

    host: str
    workers: int
    busy: int
    slots: int
    stalled: int
    draining: int
    memory: int  #: bytes


def hosts(rows: Iterable[WorkerView], stops: Mapping[str, Stop]) -> list[HostView]:
    """The hosts of these workers, by name."""
    ordered = sorted(rows, key=lambda row: row.identity.host)
    return [_host(name, list(some), stops) for name, some in groupby(ordered, key=lambda row: row.identity.host)]


def _host(name: str, rows: Sequence[WorkerView], stops: Mapping[str, Stop]) -> HostView:
    return HostView(
        host=name,
        workers=len(rows),
        busy=sum(row.processing for row in rows),
        slots=sum(row.identity.slots for row in rows),
        stalled=sum(is_in(row, "stalled", stops) for row in rows),
        draining=sum(is_in(row, "draining", stops) for row in rows),
        memory=sum(row.memory or 0 for row in rows),
    )


STATES = ("alive", "busy", "idle", "stalled", "draining", "ended")


def is_in(row: WorkerView, state: str, stops: Mapping[str, Stop]) -> bool:
    """Whether it is one of the workers in this state, one of `STATES`."""
    if row.died_at is not None or state == "ended":
        return row.died_at is not None and state == "ended"
    match state:
        case "busy":
            return row.processing > 0
        case "idle":
            return row.processing == 0
        case "stalled":
            return bool(row.note)
        case "draining":
            return row.identity.id in stops
        case _:
            return True


def mentions(row: WorkerView, text: str) -> bool:
    """Whether its id, its host, a queue or a task of it contains this text, in either case."""
    me, text = row.identity, text.casefold()
    return not text or any(text in each.casefold() for each in (me.id, me.host, me.runner, *me.queues, *me.tasks))


class Workers:
    """The workers of a store. Example: `admin.workers.all(dead=True)`"""

    def __init__(self, access: Access) -> None:
        self._access, self._store = access, access.store

    def all(self, *, dead: bool = False) -> list[WorkerView]:
        """Live workers, newest first; with `dead` also those of the last day."""
        return self._store.workers(dead=dead)

    def recent(self, within: timedelta) -> list[WorkerView]:
        """Live workers, and those that died within this time, newest first."""
        rows, since = self._store.workers(dead=True), self._store.now() - within
        return [row for row in rows if row.died_at is None or row.died_at > since]

    def stops(self) -> Mapping[str, Stop]:
        """By id, the workers that an operator has had drained or restarted within the last day."""
        return stops(self._store)

    def get(self, worker_id: str) -> WorkerView:
        """A worker of the last day. Raises UnknownWorker."""
        found = next((row for row in self._store.workers(dead=True) if row.identity.id == worker_id), None)
        if found is None:
            raise UnknownWorker(
                f"no worker of the last day is {worker_id!r}: see tenure workers list --dead for those that are known"
            )
        return found

    # ── acting ──

    def stop(self, worker_id: str, verb: StopVerb, *, grace: float | None = None, within: float = 0.0) -> str:
        """Drain a worker; with the verb restart, its supervisor then starts another one. Returns what happens.

        It claims nothing more, and ends when its jobs have ended; those that still run after `grace` seconds (None: the
        grace in its settings) are handed back, uncharged. Waits up to `within` seconds for its supervisor to begin.
        Raises UnknownWorker, and Refused: it has ended, an operator has stopped it before, or nothing supervises it.

        Example: `admin.workers.stop(worker_id, "restart")`
        """
        row, now = self.get(worker_id), self._store.now()
        _check_stops(row, verb, now)
        order = Order(verb, worker_id, self._access.who, now, grace=None if grace is None else float(grace))
        detail = {} if grace is None else {"grace": spell(grace)}
        with self._access.recorded(f"workers.{verb}", worker_id, **detail) as said:
            first = orders.stops(self._store).get(worker_id) or orders.give(self._store, order)
            if first != order:
                ago = spell(int((now - first.at).total_seconds()))
                raise Refused(f"{first.who} ordered a {first.verb} of worker {worker_id} {ago} ago: {_busy(row)}")
            until = monotonic() + within
            while not (taken := worker_id in orders.stops(self._store)) and monotonic() < until:
                sleep(_LOOK_SECONDS)
            if within and not taken:
                raise Refused(
                    f"the supervisor of worker {worker_id} has not taken the order within {spell(within)}: it hangs, "
                    "can't reach the store, or its release knows no orders; the order is void after a minute"
                )
            said.append("it drains" if taken else "ordered")
        after = "; then its supervisor starts another one" if verb == "restart" else "; nothing takes its place"
        return f"worker {worker_id} {'drains' if taken else 'is told to drain'}: {_busy(row)}{after}"


def can_stop(row: WorkerView) -> tuple[StopVerb, ...]:
    """What may be ordered of it while it is alive."""
    offers: dict[str, tuple[StopVerb, ...]] = {"worker": ("drain", "restart"), "solo": ("drain",)}
    return offers.get(row.identity.runner, ())


def _check_stops(row: WorkerView, verb: StopVerb, now: datetime) -> None:
    """Raise Refused if a supervisor can't drain or restart it."""
    me = row.identity
    if (ended := ended_at(row, now)) is not None:
        how = ending(row)
        raise Refused(
            f"worker {me.id} ended {spell(int((now - ended).total_seconds()))} ago"
            + (f": {how.how}" if how else ", as far as its lease tells: the next scan declares it dead")
        )
    if me.runner == "embedded":
        raise Refused(
            f"worker {me.id} is embedded in a program (pid {me.pid} on {me.host}), so it can't be {_DONE[verb]} alone: "
            "stop or restart that program, which lets its jobs finish within the grace"
        )
    if me.runner == "guard":
        raise Refused(
            f"worker {me.id} is a guard, which ends with its own command: to stop that, cancel its job "
            f"(tenure jobs list --worker {me.id})"
        )
    if me.runner == "solo" and verb == "restart":
        raise Refused(
            f"worker {me.id} is a solo worker, which its supervisor starts when a job needs one: drain it instead"
        )


def _busy(row: WorkerView) -> str:
    jobs = row.processing
    return f"it finishes {jobs:,} job{'' if jobs == 1 else 's'}" if jobs else "it runs no job"
