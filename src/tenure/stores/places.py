"""How `admit` gives places, as every store does it: what a key allows now, and which of the jobs parked there go on.

A store reads a key's `State` and the jobs that come next, in one transaction in which no other gives places; `serve`
decides; the store writes what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.core.limits import Bounds, Bucket, Key, after_begins, next_token, room
from tenure.ports import SUSPECT_SECONDS, UNBEGUN_SECONDS, KeyView, LimitRow


class Lane(NamedTuple):
    """Jobs that are claimed one after another. `solo`: suspects and isolated ones, which run in small groups."""

    queue: str
    solo: bool

    @property
    def patience(self) -> float:
        """Seconds for which it may hold a place without a begin while another lane waits; then it comes last."""
        return SUSPECT_SECONDS if self.solo else UNBEGUN_SECONDS


class Candidate(NamedTuple):
    """A parked job. Jobs are served in the order of these fields."""

    order: tuple[int, int]  #: minus its priority, and when it was due
    id: str
    queue: str
    limits: tuple[Key, ...]
    expired: bool  #: it has never begun, and now it is too late to
    solo: bool

    @property
    def lane(self) -> Lane:
        return Lane(self.queue, self.solo)


@dataclass(slots=True)
class Count:
    """The places of a key, with those that this call has given.

    There is only one, even where two templates give the same key: a release may rename an argument, two apps may
    share a store. Each job is then admitted as its own limit says, and counts for both.
    """

    held: int
    unbegun: int


@dataclass(slots=True)
class State:
    """What is known of a key."""

    key: Key
    bounds: Bounds
    paused_until: float | None
    bucket: Bucket | None  #: if it has a rate: its tokens now
    count: Count
    slow_lane: Lane | None = None  #: it did not use its places, so it comes last
    slow_until: float = 0.0

    def room(self) -> int | None:
        """How many more jobs may be admitted; None: any number."""
        if self.paused_until is not None:
            return 0
        return room(self.bounds, self.bucket, held=self.count.held, unbegun=self.count.unbegun)

    def slow(self, now: float) -> Lane | None:
        """The lane that comes last. Not for longer than it may, whatever became of the clock."""
        return self.slow_lane if 0 < self.slow_until - now <= UNBEGUN_SECONDS else None

    def take(self) -> None:
        self.count.held += 1
        self.count.unbegun += 1

    def due(self, now: float) -> float | None:
        """When it may have room again by itself, in Unix time; None: only when a place is freed."""
        if self.paused_until is not None:
            return self.paused_until
        if self.bucket is None or self.bounds.rate is None:
            return None
        if self.bounds.concurrency is not None and self.count.held >= self.bounds.concurrency:
            return None
        return max(now, self.bucket.at) + next_token(self.bucket, self.bounds.rate, self.count.unbegun)

    def full_at(self) -> float:
        """When its bucket will be full, in Unix time: from then on nothing has to be kept about it."""
        if self.bucket is None or self.bounds.rate is None:
            return 0.0
        return self.bucket.at + max(0.0, self.bounds.rate.burst - self.bucket.tokens) / self.bounds.rate.refill


@dataclass(slots=True)
class Served:
    """What becomes of the candidates of a key: their ids, and the other keys under which some are parked now."""

    admitted: list[Candidate] = field(default_factory=list[Candidate])
    moved: list[tuple[str, Key]] = field(default_factory=list[tuple[str, Key]])
    expired: list[str] = field(default_factory=list[str])

    @property
    def any(self) -> bool:
        """Has any of them left this key? If not, another look would find the same ones."""
        return bool(self.admitted or self.moved or self.expired)


def bounds_of(limit: LimitRow | None, key: LimitRow | None) -> Bounds:
    """The bounds of a key: each as it is set for the key, else as set for its limit, else as declared.

    A limit that is no longer declared limits nothing.
    """
    if limit is None or limit.retired_at is not None:
        return Bounds()
    known = [each for each in (key.set if key else None, limit.set, limit.declared) if each is not None]
    concurrency = next((each.concurrency for each in known if each.concurrency is not None), None)
    return Bounds(concurrency, next((each.rate for each in known if each.rate is not None), None))


def paused(limit: LimitRow | None, key: LimitRow | None, now: float) -> tuple[float | None, str]:
    """Until when a key is paused, and why; None: it is not. What is no longer declared holds no job."""
    if limit is not None and limit.retired_at is not None:
        return None, ""
    ends = [(row.paused_until, row.why) for row in (limit, key) if row is not None and row.paused_until is not None]
    return max(((until, why) for until, why in ends if until > now), default=(None, ""))


def state_of(
    key: Key,
    rows: tuple[LimitRow | None, LimitRow | None],
    bucket: Bucket | None,
    begins: Iterable[float],
    count: Count,
    now: float,
) -> State:
    """`rows`: of its limit, and of the key. `bucket`: as it was stored; `begins`: those since then."""
    bounds = bounds_of(*rows)
    tokens = None if bounds.rate is None else after_begins(bucket, bounds.rate, begins, now)
    return State(key, bounds, paused(*rows, now)[0], tokens, count)


def paused_by_jobs(row: LimitRow | None, key: Key, until: Sequence[float]) -> LimitRow | None:
    """The row of a key, with the pauses that its jobs asked for; None: nothing changes."""
    if not until or (row is not None and row.paused_until is not None and row.paused_until >= max(until)):
        return None
    row = row or LimitRow(name=key.key, key=True, limit=key.limit)
    return row.but(paused_until=max(until), why="a job snoozed it", rev=row.rev + 1)


def fades(state: State, row: LimitRow | None) -> float | None:
    """From when on nothing has to be kept about a key that no job uses, in Unix time; None: something is set for it.

    `row`: of the key.
    """
    return None if row and row.fades is None else max(state.full_at(), state.slow_until, (row and row.fades) or 0.0)


def serve(key: Key, candidates: Iterable[Candidate], state: Callable[[Key], State]) -> Served:
    """Give places to these jobs, which are parked under this key, in their order, while there is room for each.

    A job that another key refuses is parked under that one: only what happens there can help it.
    """
    served = Served()
    for job in candidates:
        if job.expired:
            served.expired.append(job.id)
            continue
        states = [state(key) for key in job.limits]
        refused = next((each.key for each in states if each.room() == 0), None)
        if refused is not None:
            if refused.key != key.key:
                served.moved.append((job.id, refused))
            continue
        for each in states:
            each.take()
        served.admitted.append(job)
    return served


def dues(states: Iterable[State], keys: Container[str], now: float) -> dict[str, float]:
    """When these keys, under which jobs are parked, may have room again by themselves."""
    found: dict[str, float] = {}
    for state in states:
        due = state.due(now) if state.key.key in keys and state.room() == 0 else None
        if due is not None:
            found[state.key.key] = min(due, found.get(state.key.key, due))
    return found


def key_view(state: State, *, waiting: int, why: str, now: float) -> KeyView:
    due = None if state.bucket is None or state.paused_until is not None else state.due(now)
    return KeyView(
        key=state.key.key,
        limit=state.key.limit,
        bounds=state.bounds,
        held=state.count.held,
        unbegun=state.count.unbegun,
        waiting=waiting,
        tokens=None if state.bucket is None else state.bucket.tokens,
        next_token=None if due is None else max(0.0, due - now),
        paused_until=state.paused_until,
        why=why,
    )
