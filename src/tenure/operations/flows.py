"""Flows: how far each is, its jobs by step, and what an operator may do: cancel, replay what died, go on without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, cast

import msgspec

from tenure.core.lifecycle import ENDED, EXPIRED, LIVE, State
from tenure.errors import InvalidOption, UnknownFlow
from tenure.operations.access import Access
from tenure.operations.flow_graph import MOST_MEMBERS, Graph, graph_of
from tenure.operations.jobs import Acted, JobReads
from tenure.operations.waiting import open_edges
from tenure.ports import Answer, Filter, FlowView, Landed, Member, NotLanded, Ring, Store

BATCH = 200  #: jobs that one step of an action changes
_PAGE = 1_000
_MOST_REFUSED = 100
_AT = "%Y-%m-%dT%H:%M:%S.%f%z"


@dataclass(frozen=True, slots=True)
class Flow:
    """A flow, and how far it is."""

    id: str
    name: str
    created_at: datetime
    counts: Mapping[State, int]

    @classmethod
    def of(cls, view: FlowView) -> Flow:
        return cls(view.id, view.name, view.created_at, view.counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def live(self) -> int:
        return sum(self.counts.get(state, 0) for state in LIVE)

    @property
    def progress(self) -> float:
        """The share of its jobs that have ended in any way, from 0 to 1; a replay lowers it."""
        ended = sum(self.counts.get(state, 0) for state in ENDED)
        return ended / self.total if self.total else 1.0

    @property
    def stands(self) -> str:
        """`running`; `held`, when all its live jobs wait and one is dead; `waiting`; or how it ended."""
        counts = self.counts
        if any(counts.get(state, 0) for state in LIVE - {State.WAITING}):
            return "running"
        if self.live:
            return "held" if counts.get(State.DEAD, 0) else "waiting"
        return next((str(state) for state in (State.DEAD, State.CANCELLED) if counts.get(state, 0)), "completed")


class Page(NamedTuple):
    """Flows, newest first. `cursor` continues; None: there are no more."""

    flows: tuple[Flow, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class FlowDetail:
    """A flow with its jobs by step, and the jobs that hold others."""

    flow: Flow
    graph: Graph
    held: Sequence[str]  #: dead jobs of it for which others wait, at most fifty


class FlowActed(NamedTuple):
    """The result of an action on the jobs of a flow. `refused` has at most a hundred of the refusals."""

    done: int
    refusals: int
    refused: tuple[Acted, ...]


class Flows:
    """Queries and actions on flows. Example: `admin.flows.replay(flow_id)`"""

    def __init__(self, access: Access) -> None:
        self._access = access

    # ── reading ──

    def all(self, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Newest first. Raises InvalidOption."""
        found = self._access.store.flows(limit=limit + 1, before=None if cursor is None else _read_cursor(cursor))
        shown = found[:limit]
        more = f"{shown[-1].created_at.strftime(_AT)}~{shown[-1].id}" if len(found) > limit else None
        return Page(tuple(map(Flow.of, shown)), more)

    def get(self, flow_id: str) -> Flow:
        """Raises UnknownFlow."""
        found = self._access.store.flows([flow_id])
        if not found:
            raise UnknownFlow(
                f"no flow {flow_id} in {self._access.store.url}: never enqueued there, or all of its jobs are gone"
            )
        return Flow.of(found[0])

    def show(self, flow_id: str) -> FlowDetail:
        """Its jobs by step: those of one task that have the same place between the others. Raises UnknownFlow."""
        flow, store = self.get(flow_id), self._access.store
        held = [job.id for job in store.holding() if job.flow == flow_id]
        return FlowDetail(flow, graph_of(store, flow_id), held)

    def members(self, flow_id: str, *, start: str = "", limit: int = _PAGE) -> list[Member]:
        """The jobs of a flow in order of their ids, those after `start`."""
        return self._access.store.members(flow_id, start=start, limit=limit)

    # ── acting ──

    def cancel(self, flow_id: str, reason: str = "") -> FlowActed:
        """Cancel its jobs that have not ended, 200 at a time; running ones are asked to stop. Raises UnknownFlow.

        Jobs of other flows are left alone, also one that holds a step's unique key, and so stands in for its job.
        """
        store = self._access.store

        def cancelled(batch: Sequence[Member]) -> Iterator[Acted]:
            for job_id, state in store.cancel([each.id for each in batch], reason).items():
                done = state in (State.CANCELLED, State.PROCESSING)
                yield Acted(job_id, done, f"it is {state}" if state else "no such job")

        detail = {"why": reason} if reason else {}
        return self._act("flows.cancel", flow_id, detail, self._batches(flow_id, LIVE), cancelled, "cancel", "due")

    def replayable(self, flow: Flow) -> int:
        """How many of its jobs `replay` would run again: the dead and the expired ones."""
        expired = self._expired(flow.id) if flow.counts.get(State.CANCELLED, 0) else ()
        return flow.counts.get(State.DEAD, 0) + sum(map(len, expired))

    def replay(self, flow_id: str) -> FlowActed:
        """Run its dead and expired jobs again, with fresh budgets: the flow continues. Raises UnknownFlow."""
        store = self._access.store

        def replayed(batch: Sequence[Member]) -> Iterator[Acted]:
            for job_id, answer in store.replay([each.id for each in batch]).items():
                yield _acted(job_id, answer, "queued again")

        def failed() -> Iterator[Sequence[Member]]:
            yield from self._batches(flow_id, frozenset({State.DEAD}))
            yield from self._expired(flow_id)

        return self._act("flows.replay", flow_id, {}, failed(), replayed, "queued", "due")

    def skip(self, ids: Sequence[str]) -> list[Acted]:
        """Let the jobs that wait for these dead or cancelled ones go on without them. A result for each.

        Refused for one whose result a job takes as an argument of its own: that job could only fail. A list of
        results (`outputs(…)`) leaves it out. Raises UnknownJob.
        """
        if not ids:
            return []
        store, reads = self._access.store, JobReads(self._access)
        jobs = [reads.get(job_id) for job_id in dict.fromkeys(ids)]
        subject = jobs[0].id if len(jobs) == 1 else f"{len(jobs)} jobs, {jobs[0].id} to {jobs[-1].id}"
        with self._access.recorded("flows.skip", subject) as said:
            acted: list[Acted] = []
            for job in jobs:
                needed = _why_needed(store, job.id) if job.state in ENDED else ""
                if needed:
                    why = f"nothing done: {needed}: replay this one, or cancel that one"
                    acted.append(Acted(job.id, landed=False, says=why))
                    continue
                acted.append(_acted(job.id, store.skip([job.id])[job.id], "skipped: what waited for it goes on"))
            landed = [each for each in acted if each.landed]
            said.append(acted[0].says if len(acted) == 1 else f"{len(landed)} of {len(acted)}")
        queues = {job.queue for job, each in zip(jobs, acted, strict=True) if each.landed}
        self._access.notifier.announce([Ring("due", queue) for queue in sorted(queues)])
        return acted

    def _act(
        self,
        action: str,
        flow_id: str,
        detail: Mapping[str, str],
        batches: Iterator[Sequence[Member]],
        apply: Callable[[Sequence[Member]], Iterator[Acted]],
        *rings: Any,
    ) -> FlowActed:
        flow = self.get(flow_id)
        done, refusals, refused = 0, 0, list[Acted]()
        with self._access.recorded(action, flow_id, name=flow.name, **detail) as said:
            for batch in batches:
                acted = list(apply(batch))
                done += sum(each.landed for each in acted)
                others = [each for each in acted if not each.landed]
                refusals += len(others)
                refused += others[: _MOST_REFUSED - len(refused)]
                queues = sorted({each.queue for each in batch})
                self._access.notifier.announce(Ring(kind, queue) for kind in rings for queue in queues)
            said.append(f"{done} done, {refusals} refused")
        return FlowActed(done, refusals, tuple(refused))

    def _batches(self, flow_id: str, states: frozenset[State]) -> Iterator[Sequence[Member]]:
        """Its jobs in these states, at most 200 at a time."""
        start, left = "", list[Member]()
        while True:
            page = self._access.store.members(flow_id, start=start, limit=_PAGE)
            left += [each for each in page if each.state in states]
            while len(left) >= BATCH:
                yield left[:BATCH]
                left = left[BATCH:]
            if len(page) < _PAGE:
                break
            start = page[-1].id
        if left:
            yield left

    def _expired(self, flow_id: str) -> Iterator[Sequence[Member]]:
        """Its jobs that expired. They are read first, since a replay changes what is read."""
        where = Filter(flow=flow_id, states=frozenset({State.CANCELLED}), text=EXPIRED)
        found, cursor = list[Member](), None
        while len(found) < MOST_MEMBERS:
            page = self._access.store.search(where, limit=BATCH, cursor=cursor, within=MOST_MEMBERS)
            found += [Member(job.id, job.task, job.queue, job.state) for job in page.jobs if job.error == EXPIRED]
            if (cursor := page.cursor) is None:
                break
        for at in range(0, len(found), BATCH):
            yield found[at : at + BATCH]


def _why_needed(store: Store, job_id: str) -> str:
    """Which job waits for this one and takes its result as an argument of its own, or may; empty: none."""
    for child, edge in open_edges(store, job_id):
        job = store.get(child)
        if job is None:
            continue
        taken = taken_alone(job.payload)
        if taken is None:
            shown = msgspec.json.decode(job.payload)
            return f"job {child} waits for it and may take its result, its arguments can't be read here ({shown})"
        if edge.place in taken:
            return f"job {child} takes its result"
    return ""


def taken_alone(payload: str) -> frozenset[int] | None:
    """The places of the edges whose result is an argument of its own, `{"$output": 3}`; None: it can't be read here."""
    try:
        given: object = msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return frozenset()
    if isinstance(given, str):  # what is shown for arguments that are encrypted, or kept elsewhere
        return None
    values = cast("dict[str, object]", given).values() if isinstance(given, dict) else ()
    marks = [cast("dict[str, object]", each) for each in values if isinstance(each, dict)]
    return frozenset(place for each in marks if isinstance(place := each.get("$output"), int))


def _acted(job_id: str, answer: Answer | None, done: str) -> Acted:
    match answer:
        case None:
            return Acted(job_id, landed=False, says="no such job")
        case Landed():
            return Acted(job_id, landed=True, says=done)
        case NotLanded():
            return Acted(job_id, landed=False, says=f"nothing done: {answer.stands}")


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    at, _, flow_id = cursor.partition("~")
    try:
        return datetime.strptime(at, _AT), flow_id
    except ValueError:
        raise InvalidOption(f"cursor: expected one that a page gave, got {cursor!r}; start without one") from None
