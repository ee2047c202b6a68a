"""What a Job asks of the store under the lease of its attempt: records, waits, an outcome in a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from tenure.core.lifecycle import Completed, Failed, Lease, Suspended
from tenure.core.offloaded import MARK, is_offloaded
from tenure.core.sealed import is_sealed
from tenure.errors import JobStopped, LeaseLost, StoreError, TenureError
from tenure.ports import Claimed, NotLanded, Store, Text
from tenure.tasks.arguments import unreadable
from tenure.tasks.job import Stopping
from tenure.tasks.task import Task
from tenure.tasks.waits import Waits
from tenure.worker.inputs import waits_for_others
from tenure.worker.misfits import misfit, sealed_in

T = TypeVar("T")


class Owner(Protocol):
    """The worker that holds the lease."""

    store: Store
    worker_id: str
    resources: Mapping[type, object]

    def refused(self, lease: Lease, why: str) -> None:
        """Record that a write under this lease was refused, and why. Called from any thread; does not block."""
        ...


W = TypeVar("W", bound=Owner)


class Leased(Generic[W]):
    """The part of an attempt that calls the store for its Job."""

    host: W
    task: Task[..., Any]
    claimed: Claimed
    lease: Lease
    loop: asyncio.AbstractEventLoop
    stopping: Stopping | None = None
    lost = False  #: a write under its lease was refused
    finished = False  #: job.finish(tx=…) was called; if that transaction did not commit, the outcome of the code counts
    _waits: Waits | None = None

    @property
    def store(self) -> Store:
        return self.host.store

    def is_elsewhere(self) -> bool:
        """Does it have to fetch its arguments or its checkpoint?"""
        claimed = self.claimed  # runs for every attempt: no further call
        if claimed.payload.startswith(MARK):
            return True
        return claimed.checkpoint is not None and claimed.checkpoint.startswith(MARK)

    def fetch(self) -> None:
        """Fetch them. Blocks, for a bounded time. Raises Locked."""
        claimed, fetch = self.claimed, self.store.fetch
        if is_offloaded(claimed.payload):
            claimed = claimed._replace(payload=fetch(Text("payload", claimed.id, "", claimed.payload)))
        if claimed.checkpoint is not None and is_offloaded(claimed.checkpoint):
            claimed = claimed._replace(checkpoint=fetch(Text("checkpoint", claimed.id, "", claimed.checkpoint)))
        if (sealed := sealed_in(claimed)) is not None:  # what was fetched is encrypted, and this worker has no key
            raise sealed
        self.claimed = claimed

    @property
    def waits(self) -> Waits:
        """What it waits for."""
        return self._waits or self.__dict__.setdefault("_waits", Waits(self))  # two threads get the same one

    @property
    def suspended(self) -> Suspended | Failed | None:
        """The outcome of the wait that its code began, even if the code has swallowed the exception since."""
        began = None if self._waits is None else self._waits.suspended
        return None if began is None else began.outcome

    def waits_for_others(self) -> bool:
        """Was the job enqueued to wait for others?"""
        return waits_for_others(self.store, self.claimed)

    def lease_lost(self) -> LeaseLost:
        """Its lease is lost: what its code is told."""
        self.lost = True
        return LeaseLost(f"job {self.claimed.id}, attempt {self.claimed.attempt}")

    def misfit(self, why: str) -> Exception:
        """What to raise for stored values that do not fit this code."""
        return misfit(self.store, self.claimed, why)

    def check(self) -> None:
        """Raise JobStopped or LeaseLost if this attempt is to stop."""
        if self.stopping == "lease_lost":
            raise self.lease_lost()
        if self.stopping is not None and not self.task.is_async:
            raise JobStopped(self.stopping)

    def recall(self, key: str) -> str | None:
        self.check()
        return self._once(key, None)

    def record(self, key: str, value: str) -> str:
        recorded = self._once(key, value)
        assert recorded is not None, "it was just recorded"
        return recorded

    def _once(self, key: str, value: str | None) -> str | None:
        found = self.store.once(self.lease, key, value)
        if found is None:
            self.host.refused(self.lease, "once refused")
            self.loop.call_soon_threadsafe(self._lose_lease)
            raise self.lease_lost()
        if found.value is not None and is_sealed(found.value):  # this worker has no codec
            raise unreadable(f"the record {key!r}", found.value)
        return found.value

    def _lose_lease(self) -> None:
        raise NotImplementedError

    def finish(self, result: str, tx: object) -> None:
        if tx is None:
            raise StoreError("job.finish() needs tx=, the transaction the outcome commits with; without one, return")
        if self.suspended is not None:
            raise StoreError("job.finish() after the job was suspended: let the exception of job.gather(…) leave")
        answer = self.store.finish([(self.lease, Completed(result))], tx=tx)[0]
        if isinstance(answer, NotLanded):
            self.host.refused(self.lease, f"completed refused: {answer.stands}")
            self.lost = True
            raise LeaseLost(answer.stands)
        self.finished = True

    def resource(self, kind: type[T]) -> T:
        return find_resource(self.host.resources, kind)


def find_resource(resources: Mapping[type, object], kind: type[T]) -> T:
    found = resources.get(kind)
    if found is None:
        found = next((value for value in resources.values() if isinstance(value, kind)), None)
    if found is None:
        known = ", ".join(sorted(each.__name__ for each in resources)) or "none"
        raise TenureError(
            f"no resource of type {kind.__name__} (there are: {known}); open one with @jobs.resource, or in a test "
            f"give it: jobs.testing(resources={{{kind.__name__}: …}})"
        )
    return found  # type: ignore[return-value]
