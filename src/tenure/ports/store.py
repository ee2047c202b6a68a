"""The whole contract of a store: its six parts, and its lifecycle from `migrate` to `close`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tenure.ports.jobs import JobStore
from tenure.ports.limits import LimitStore
from tenure.ports.reads import ReadStore
from tenure.ports.schedules import ScheduleStore
from tenure.ports.texts import TextStore
from tenure.ports.waiting import WaitStore
from tenure.ports.workers import WorkerStore


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the common contract. Read by the shared suite; no code asks for a store's name."""

    transactions: bool  #: `enqueue` and `finish` can join a transaction (`tx=`)
    durable: bool  #: what it acknowledged survives the death of every process
    steady_clock: bool  #: its leases are counted by a clock that can't be set
    one_writer: bool = False  #: a write beside an open transaction waits for its end
    sealed: bool = False  #: values are encrypted before it keeps them: no log may show them either
    inline: int = sys.maxsize  #: a value of fewer characters is never too large for its row


class Store(JobStore, WorkerStore, WaitStore, LimitStore, ScheduleStore, ReadStore, TextStore, Protocol):
    """The source of truth. Each verb is one atomic step; under concurrency exactly one caller wins it.

    Every method may raise StoreAway (unreachable, full, locked for too long: nothing or all of it happened, retry
    with the same ids and leases) and StoreError.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """The store's absolute location, without a password: for banners, logs and `explain`."""
        ...

    def migrate(self) -> int:
        """Bring the schema up to date; forward only, safe when several run at once. Returns the version reached.

        Call it before `open`; it needs no open store.
        """
        ...

    def open(self) -> None:
        """Connect and check. Raises a StoreError that says what to do: not ours, newer than this code, not migrated."""
        ...

    def close(self) -> None: ...

    def upkeep(self) -> None:
        """Periodic maintenance, outside the other verbs. The process that maintains the store calls it every second."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """The store's own connection in a transaction, for `tx=`. Raises StoreError without the capability."""
        ...
