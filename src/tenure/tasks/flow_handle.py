"""`FlowHandle`: how far a flow has got, and what can be done with it as a whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar
from uuid import UUID

from tenure.core.lifecycle import ENDED, EXPIRED, LIVE, State
from tenure.errors import UnknownJob
from tenure.ports import Filter, Landed, Ring
from tenure.tasks.loops import aside, refuse_on_loop
from tenure.tasks.texts import checked_text

if TYPE_CHECKING:
    from tenure.tasks.handle import AppPort, ClientPort

T = TypeVar("T")

PAGE = 200  #: jobs in one call of the store
LOOK_SECONDS = 0.2
_FIRST = (frozenset({State.WAITING}), LIVE)  #: those that wait are cancelled first: nothing is admitted meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """How far a flow is: how many of its jobs are in each state. Example: `status.counts["dead"]`"""

    id: str
    name: str
    created_at: datetime  #: UTC
    counts: Mapping[str, int]  #: by state: waiting, scheduled, queued, processing, completed, dead, cancelled

    @property
    def total(self) -> int:
        """All its jobs."""
        return sum(self.counts.values())

    @property
    def progress(self) -> float:
        """The share of its jobs that have ended in any way, from 0 to 1; a replay lowers it."""
        return sum(self.counts.get(state, 0) for state in ENDED) / max(self.total, 1)

    @property
    def live(self) -> int:
        """Its jobs that have not ended. With a dead job beside them, some may wait for its replay."""
        return sum(self.counts.get(state, 0) for state in LIVE)


class FlowHandle:
    """A reference to a flow. Example: `jobs.flow_handle(id).status().progress`"""

    __slots__ = ("_app", "_id")

    def __init__(self, app: AppPort, flow_id: str) -> None:
        self._app, self._id = app, flow_id

    def __repr__(self) -> str:
        return f"FlowHandle({self._id})"

    @property
    def id(self) -> UUID:
        return UUID(self._id)

    def status(self) -> FlowStatus:
        """How many of its jobs are in each state. Raises UnknownJob if there is no such flow."""
        refuse_on_loop("status()", "await handle.astatus()")
        return _status(self._app.client(), self._id)

    def refuse_endless_wait(self, status: FlowStatus) -> None:
        """In `jobs.testing()`, where only this thread could end a wait for another status, raise TimeoutError."""
        self._app.client().watch.refuse_endless(f"{status.live} jobs of flow {self._id} have not ended")

    async def astatus(self) -> FlowStatus:
        """How many of its jobs are in each state. Raises UnknownJob if there is no such flow."""
        return await aside(partial(_status, await self._app.aclient(), self._id))

    def updates(self) -> FlowUpdates:
        """Its status now, and after each change, until all its jobs have ended. For `for` and for `async for`.

        Example: `async for status in handle.updates(): print(status.progress)`. It looks every 0.2 s.
        """
        return FlowUpdates(self)

    def cancel(self, reason: str = "") -> int:
        """Cancel its jobs that have not ended, and request a stop of those that run. Returns how many there were."""
        refuse_on_loop("cancel()", "await handle.acancel(…)")
        return _cancel(self._app.client(), self._id, checked_text(reason, "reason", 2000))

    async def acancel(self, reason: str = "") -> int:
        """Cancel its jobs that have not ended, and request a stop of those that run. Returns how many there were."""
        reason = checked_text(reason, "reason", 2000)
        return await aside(partial(_cancel, await self._app.aclient(), self._id, reason))

    def replay(self) -> int:
        """Run its dead and expired jobs again, with fresh budgets, so that the flow goes on. Returns how many."""
        refuse_on_loop("replay()", "await handle.areplay()")
        return _replay(self._app.client(), self._id)

    async def areplay(self) -> int:
        """Run its dead and expired jobs again, with fresh budgets, so that the flow goes on. Returns how many."""
        return await aside(partial(_replay, await self._app.aclient(), self._id))


class FlowUpdates:
    """The changes of a flow, from `handle.updates()`."""

    __slots__ = ("_handle", "_last")

    def __init__(self, handle: FlowHandle) -> None:
        self._handle = handle
        self._last: FlowStatus | None = None

    def __iter__(self) -> Self:
        refuse_on_loop("for … in handle.updates()", "async for … in handle.updates()")
        return self

    def __next__(self) -> FlowStatus:
        while self._last is None or self._last.live:
            if self._is_news(status := self._handle.status()):
                return status
            self._handle.refuse_endless_wait(status)
            time.sleep(LOOK_SECONDS)
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FlowStatus:
        from asyncio import sleep

        while self._last is None or self._last.live:
            if self._is_news(status := await self._handle.astatus()):
                return status
            await sleep(LOOK_SECONDS)
        raise StopAsyncIteration

    def _is_news(self, status: FlowStatus) -> bool:
        before, self._last = self._last, status
        return status != before


def _retried(call: Callable[[], T]) -> T:
    from tenure.tasks.client import retried

    return retried(call)


def _status(client: ClientPort, flow_id: str) -> FlowStatus:
    found = _retried(partial(client.store.flows, [flow_id]))
    if not found:
        raise UnknownJob(f"there is no flow {flow_id}: it was never stored, or its jobs were deleted or pruned")
    (view,) = found
    counts = {str(state): number for state, number in view.counts.items()}
    return FlowStatus(id=view.id, name=view.name, created_at=view.created_at, counts=counts)


def _members(
    client: ClientPort, flow_id: str, states: frozenset[State], error: str | None = None
) -> Iterator[dict[str, str]]:
    """The ids of its jobs in these states, and with this error if one is given, with their queues, page by page."""
    cursor: str | None = None
    while True:
        where = Filter(flow=flow_id, states=states, text=error)
        page = _retried(partial(client.store.search, where, limit=PAGE, cursor=cursor))
        found = {job.id: job.queue for job in page.jobs if error in (None, job.error)}
        if found:
            yield found
        cursor = page.cursor
        if cursor is None:
            return


def _cancel(client: ClientPort, flow_id: str, reason: str) -> int:
    _status(client, flow_id)
    client.refuse_beside_transaction("a cancel writes beside it: call it before or after the block")
    asked = set[str]()
    for states in _FIRST:
        for page in list(_members(client, flow_id, states)):
            fresh = {job_id: queue for job_id, queue in page.items() if job_id not in asked}
            answers = _retried(partial(client.store.cancel, fresh, reason))
            asked |= {job_id for job_id, state in answers.items() if state in (State.CANCELLED, State.PROCESSING)}
            client.notifier.announce([Ring(kind, queue) for queue in {*fresh.values()} for kind in ("cancel", "due")])
    return len(asked)


def _replay(client: ClientPort, flow_id: str) -> int:
    _status(client, flow_id)
    client.refuse_beside_transaction("a replay writes beside it: call it before or after the block")
    number = 0
    dead = _members(client, flow_id, frozenset({State.DEAD}))
    expired = _members(client, flow_id, frozenset({State.CANCELLED}), EXPIRED)
    for page in [*dead, *expired]:
        answers = client.store.replay(page)
        landed = [(job_id, answer.state) for job_id, answer in answers.items() if isinstance(answer, Landed)]
        rings = {Ring("queued" if state is State.QUEUED else "due", page[job_id]) for job_id, state in landed}
        client.notifier.announce(rings)
        number += len(landed)
    return number
