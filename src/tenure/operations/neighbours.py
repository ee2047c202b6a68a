"""The jobs before and behind a job, for the pages: the first few by what matters, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tenure.core.lifecycle import EXPIRED, State
from tenure.events import headline
from tenure.operations.access import Access
from tenure.operations.flows import taken_alone
from tenure.operations.waiting import MOST_LOOKED_UP
from tenure.ports import MOST_EDGES, EdgeView, Filter, JobView, Status

SHOWN = 8  #: jobs on either side
MOST_BEHIND = 200  #: jobs behind one that are counted
_RANK: Mapping[State, int] = {
    state: rank
    for rank, state in enumerate(
        (State.DEAD, State.CANCELLED, State.PROCESSING, State.QUEUED, State.SCHEDULED, State.WAITING, State.COMPLETED)
    )
}


class Neighbour(NamedTuple):
    """A job at the other end of an edge. `task` and `state` None: it is gone."""

    id: str
    task: str | None
    state: State | None
    open: bool
    skipped: bool
    ended: bool  #: any end of the one before will do
    mine: bool  #: the one behind gathers the one before
    error: str  #: the first line of its error, of one that is dead or cancelled


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The jobs on one side. `left`: edges that are open; `more`: there are more than were counted."""

    jobs: Sequence[Neighbour] = ()
    total: int = 0
    left: int = 0
    more: bool = False
    needed: bool = False  #: one of `jobs` takes its result as an argument of its own: none can go on without it


class Holder(NamedTuple):
    """A job of a flow that ended badly, and those that wait for it."""

    job: JobView
    behind: Neighbours


class NeighbourReads:
    """Queries. Example: `admin.neighbours.before(job_id)`"""

    def __init__(self, access: Access) -> None:
        self._access = access

    def before(self, job_id: str) -> Neighbours:
        """What a job waits, or waited, for: open edges first, and dead ones of these first; at most a thousand."""
        edges = self._access.store.edges([job_id], limit=MOST_EDGES + 1)
        left = [each for each in edges if each.open]
        looked = left[:MOST_LOOKED_UP] or edges[:SHOWN]
        known = self._known(each.parent for each in looked)
        found = sorted((_named(each.parent, each, known) for each in looked), key=_first)
        return Neighbours(found[:SHOWN], len(edges), len(left))

    def behind(self, job_id: str) -> Neighbours:
        """The jobs that wait, or waited, for this one: of the first two hundred."""
        page = self._access.store.dependents(job_id, limit=MOST_BEHIND + 1)
        more, page = len(page) > MOST_BEHIND, page[:MOST_BEHIND]
        page.sort(key=lambda each: not each[1].open)
        shown = [
            (child, EdgeView(child, job_id, edge.until, edge.open, edge.skipped, edge.mine))
            for child, edge in page[:SHOWN]
        ]
        known = self._known(child for child, _ in shown)
        found = tuple(_named(child, edge, known) for child, edge in shown)
        needed = any(edge.open and self._takes(child, edge.place) for child, edge in page[:SHOWN])
        return Neighbours(found, len(page), sum(edge.open for _, edge in page), more, needed)

    def _takes(self, child: str, place: int) -> bool:
        job = self._access.store.get(child)
        if job is None:
            return False
        taken = taken_alone(job.payload)
        return taken is None or place in taken

    def holding(self, *, limit: int = 200) -> Mapping[str, JobView]:
        """By flow, the dead job that others of it wait for: the one that died last, among the last `limit` of all."""
        found: dict[str, JobView] = {}
        for job in self._access.store.holding(limit=limit):
            if job.flow is not None:
                found.setdefault(job.flow, self._access.redacted(job))
        return found

    def failed(self, flow_id: str, *, limit: int = SHOWN) -> list[Holder]:
        """The jobs of a flow that are dead or expired, those for which others wait first."""
        found: list[JobView] = []
        for state, text in ((State.DEAD, None), (State.CANCELLED, EXPIRED)):
            where = Filter(flow=flow_id, states=frozenset({state}), text=text)
            found += self._access.store.search(where, limit=limit, within=MOST_EDGES).jobs
        shown = [job for job in found if job.state is State.DEAD or job.error == EXPIRED]
        holders = [Holder(self._access.redacted(job), self.behind(job.id)) for job in shown]
        return sorted(holders, key=lambda each: not each.behind.left)[:limit]

    def _known(self, ids: Iterable[str]) -> Mapping[str, Status | None]:
        asked = dict.fromkeys(ids, "")
        found = self._access.store.updates(asked, limit=len(asked)) if asked else ()
        return {each.id: each.status for each in found}


def _named(job_id: str, edge: EdgeView, known: Mapping[str, Status | None]) -> Neighbour:
    status = known.get(job_id)
    bad = status is not None and status.state in (State.DEAD, State.CANCELLED)
    return Neighbour(
        job_id,
        status.task if status is not None else None,
        status.state if status is not None else None,
        edge.open,
        edge.skipped,
        edge.until == "ended",
        edge.mine,
        headline(status.error) if status is not None and bad and status.error else "",
    )


def _first(each: Neighbour) -> tuple[bool, int]:
    return not each.open, _RANK[each.state] if each.state is not None else len(_RANK)
