"""The whole contract of a store: its four parts, and its life from `migrate` to `close`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tenure.ports.jobs import JobStore
from tenure.ports.reads import ReadStore
from tenure.ports.schedules import ScheduleStore
from tenure.ports.workers import WorkerStore


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the common contract. The shared suite reads it; nobody asks for a store's name."""

    transactions: bool  #: `enqueue` and `finish` can join a transaction (`tx=`)
    durable: bool  #: what it answered survives the death of every process
    steady_clock: bool  #: nobody can set the clock that its leases are counted by
    local: bool  #: no network is between us and it: asking it on an event loop holds up nobody for long


class Store(JobStore, WorkerStore, ScheduleStore, ReadStore, Protocol):
    """The source of truth. Each verb is one atomic step; under concurrency exactly one caller wins it.

    Every method may raise StoreAway (out of reach, full, locked for too long: nothing or all of it happened, ask
    again with the same ids and leases) and StoreError.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Where it is, absolute, without a password: for banners, logs and `explain`."""
        ...

    def migrate(self) -> int:
        """Bring the schema up to date; forward only, safe when many start at once. Returns the version reached.

        Comes before `open`, and needs no open store.
        """
        ...

    def open(self) -> None:
        """Connect and check. Raises StoreError that says what to do: not ours, newer than this code, not migrated."""
        ...

    def close(self) -> None: ...

    def upkeep(self) -> None:
        """Whatever this store needs now and then, off everybody's path. Called every second by who maintains it."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """The store's own connection in a transaction, for `tx=`. Raises StoreError without the capability."""
        ...
