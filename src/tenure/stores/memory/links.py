"""What the memory store knows of jobs that wait: edges, asks, signals, flows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal, NamedTuple

from tenure.core.limits import Bucket, Key
from tenure.ports import LimitRow
from tenure.stores.places import Lane


@dataclass(slots=True)
class Edge:
    """`child` waits until `parent` has completed, or ended."""

    child: str
    parent: str
    until: Literal["completed", "ended"]
    place: int
    mine: bool = False
    open: bool = True
    skipped: bool = False


class Told(NamedTuple):
    """An ask for a key: look at it; a job began then; it is paused until then (Unix times)."""

    what: Literal["look", "begun", "pause"]
    at: float


@dataclass(slots=True)
class Known:
    """Edges by child and by parent, asks in their order, signals, flows and limits."""

    parents: dict[str, dict[str, Edge]] = field(default_factory=dict[str, dict[str, Edge]])
    children: dict[str, dict[str, Edge]] = field(default_factory=dict[str, dict[str, Edge]])
    asks: dict[str, None] = field(default_factory=dict[str, None])
    signals: dict[tuple[str, str], tuple[str, datetime]] = field(
        default_factory=dict[tuple[str, str], tuple[str, datetime]]
    )
    flows: dict[str, tuple[str, datetime]] = field(default_factory=dict[str, tuple[str, datetime]])
    limits: dict[tuple[bool, str], LimitRow] = field(default_factory=dict[tuple[bool, str], LimitRow])  #: of keys: True
    told: dict[Key, list[Told]] = field(default_factory=dict[Key, list[Told]])
    buckets: dict[Key, Bucket] = field(default_factory=dict[Key, Bucket])  #: those that are not full
    #: when a key may have room again by itself, and when that was found: a later time means that the clock was set back
    dues: dict[Key, tuple[float, float]] = field(default_factory=dict[Key, tuple[float, float]])
    slow: dict[str, tuple[Lane, float]] = field(default_factory=dict[str, tuple[Lane, float]])
    idle: set[tuple[str, Key]] = field(default_factory=set[tuple[str, Key]])  #: queues that were passed over

    def tell(self, key: Key, what: Literal["look", "begun", "pause"], at: float = 0.0) -> None:
        self.told.setdefault(key, []).append(Told(what, at))

    def copy(self) -> Known:
        """One that changes apart from this one. Only edges change in place; everything else in it is replaced."""
        parents = {child: {name: replace(edge) for name, edge in mine.items()} for child, mine in self.parents.items()}
        return Known(
            parents=parents,
            children={name: {child: parents[child][name] for child in mine} for name, mine in self.children.items()},
            asks=self.asks.copy(),
            signals=self.signals.copy(),
            flows=self.flows.copy(),
            limits=self.limits.copy(),
            told={key: told.copy() for key, told in self.told.items()},
            buckets=self.buckets.copy(),
            dues=self.dues.copy(),
            slow=self.slow.copy(),
            idle=self.idle.copy(),
        )

    def add(self, child: str, parent: str, until: Literal["completed", "ended"], *, mine: bool = False) -> Edge:
        """The edge between these two. One that exists keeps its place, and the stricter need holds."""
        known = self.parents.setdefault(child, {})
        if parent not in known:
            edge = Edge(child, parent, until, 1 + max((each.place for each in known.values()), default=-1), mine)
            known[parent] = self.children.setdefault(parent, {})[child] = edge
        elif until == "completed":
            known[parent].until = until
        return known[parent]

    def drop(self, edge: Edge) -> None:
        del self.parents[edge.child][edge.parent], self.children[edge.parent][edge.child]

    def before(self, child: str) -> list[Edge]:
        return list(self.parents.get(child, {}).values())

    def behind(self, parent: str) -> list[Edge]:
        return list(self.children.get(parent, {}).values())

    def waits(self, child: str) -> bool:
        return any(edge.open for edge in self.parents.get(child, {}).values())

    def ask(self, item: str) -> None:
        """An ask that is already there has yet to be answered, so it covers this one too."""
        self.asks.setdefault(item)

    def forget(self, job_id: str) -> None:
        """The job is gone: drop its edges to its parents, and its signals. Its children keep their edges."""
        for edge in self.before(job_id):
            self.drop(edge)
        for key in [key for key in self.signals if key[0] == job_id]:
            del self.signals[key]

    def keys(self, job_id: str) -> Iterator[str]:
        return (key for owner, key in self.signals if owner == job_id)
