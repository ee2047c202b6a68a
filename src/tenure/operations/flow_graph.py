"""The jobs of a flow by step: siblings are folded, so that a flow of ten thousand jobs is a handful of steps.

Two jobs are siblings when they are of one task and have the same place between the others: equally far from the first
jobs and from the last, behind siblings and before siblings.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from tenure.core.lifecycle import State
from tenure.ports import EdgeView, Member, Store

MOST_MEMBERS = 10_000  #: jobs of a flow that are read
MOST_READ = 30_000  #: edges
MOST_STEPS = 200  #: of a graph: with more of them, jobs of a task are folded wherever they are
NAMED = 5  #: jobs of a step that are named
_PAGE, _CHUNK = 1_000, 500
_ROUNDS = 20  #: in which siblings are told apart by their neighbours
_FIRST = (State.DEAD, State.PROCESSING, State.QUEUED, State.SCHEDULED, State.WAITING)  #: named before others


@dataclass(frozen=True, slots=True)
class Step:
    """Siblings of a flow. `outside`: jobs that do not belong to it, but for which jobs of it wait, or waited."""

    number: int
    task: str
    level: int  #: how many steps are before it, on the longest path
    counts: Mapping[State, int]  #: without jobs that are gone
    jobs: Sequence[str]  #: the first five, dead and running ones before others
    total: int
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """The edges from the jobs of one step to those of another."""

    source: int
    target: int
    edges: int
    open: int
    skipped: int
    ended: bool  #: any end of the source will do
    mine: bool  #: the target gathers the source


@dataclass(frozen=True, slots=True)
class Graph:
    """Steps in order of their levels, and the arrows between them."""

    steps: Sequence[Step]
    arrows: Sequence[Arrow]
    complete: bool = True  #: False: the flow has more than 10,000 jobs or 30,000 edges, and the rest is not shown
    folded: bool = False  #: there were more than 200 steps: jobs of a task are one step wherever they are


def graph_of(store: Store, flow_id: str) -> Graph:
    """Reads the flow in parts: at most 10,000 jobs and 30,000 edges."""
    members, all_read = _members(store, flow_id)
    edges, all_edges = _edges(store, list(members))
    if not all_read:  # a parent that is not among those read may be one of the flow
        edges = [edge for edge in edges if edge.parent in members]
    outside = _outside(store, {edge.parent for edge in edges} - members.keys())
    return _drawn(members, outside, edges, complete=all_read and all_edges)


def _members(store: Store, flow_id: str) -> tuple[dict[str, Member], bool]:
    found: dict[str, Member] = {}
    start = ""
    while len(found) < MOST_MEMBERS:
        asked = min(_PAGE, MOST_MEMBERS - len(found))
        page = store.members(flow_id, start=start, limit=asked)
        found |= {each.id: each for each in page}
        if len(page) < asked:
            return found, True
        start = page[-1].id
    return found, not store.members(flow_id, start=start, limit=1)


def _edges(store: Store, ids: Sequence[str]) -> tuple[list[EdgeView], bool]:
    found: list[EdgeView] = []
    for at in range(0, len(ids), _CHUNK):
        room = MOST_READ - len(found)
        page = store.edges(ids[at : at + _CHUNK], limit=room + 1)
        found += page[:room]
        if len(page) > room:
            return found, False
    return found, True


def _outside(store: Store, ids: set[str]) -> dict[str, Member | None]:
    """The jobs outside a flow that its jobs wait for; None: the job is gone, or is beyond the first thousand."""
    found: dict[str, Member | None] = dict.fromkeys(sorted(ids))
    asked = dict.fromkeys(list(found)[:_PAGE], "")
    for each in store.updates(asked, limit=len(asked)) if asked else ():
        if (status := each.status) is not None:
            found[each.id] = Member(status.id, status.task, status.queue, status.state)
    return found


def _drawn(
    members: Mapping[str, Member], outside: Mapping[str, Member | None], edges: Sequence[EdgeView], *, complete: bool
) -> Graph:
    known: dict[str, Member | None] = {**members, **outside}
    tasks = {job_id: each.task if each is not None else "" for job_id, each in known.items()}
    first: dict[str, Hashable] = {job_id: (task, job_id in outside) for job_id, task in tasks.items()}
    kinds, levels = _siblings(first, edges), _levels(known, edges)
    folded = len(set(kinds.values())) > MOST_STEPS
    if folded:
        kinds = first
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for job_id, kind in kinds.items():
        groups[kind].append(job_id)
    order = sorted(groups.values(), key=lambda ids: (min(levels[each] for each in ids), tasks[ids[0]], ids[0]))
    steps = tuple(_step(number, ids, known, levels, outside=ids[0] in outside) for number, ids in enumerate(order))
    number_of = {job_id: step.number for step, ids in zip(steps, order, strict=True) for job_id in ids}
    arrows: dict[tuple[int, int], list[EdgeView]] = defaultdict(list)
    for edge in edges:
        ends = number_of[edge.parent], number_of[edge.child]
        if ends[0] != ends[1]:  # only where jobs are folded by their task
            arrows[ends].append(edge)
    drawn = tuple(_arrow(*ends, found) for ends, found in sorted(arrows.items()))
    return Graph(steps, drawn, complete=complete, folded=folded)


def _step(
    number: int, ids: Sequence[str], known: Mapping[str, Member | None], levels: Mapping[str, int], *, outside: bool
) -> Step:
    there = [each for job_id in ids if (each := known[job_id]) is not None]
    rank = {state: place for place, state in enumerate(_FIRST)}
    named = sorted(there, key=lambda each: (rank.get(each.state, len(rank)), each.id))[:NAMED]
    return Step(
        number,
        there[0].task if there else "(gone)",
        min(levels[each] for each in ids),
        Counter(each.state for each in there),
        tuple(each.id for each in named),
        len(ids),
        outside,
    )


def _arrow(source: int, target: int, edges: Sequence[EdgeView]) -> Arrow:
    return Arrow(
        source,
        target,
        len(edges),
        sum(edge.open for edge in edges),
        sum(edge.skipped for edge in edges),
        all(edge.until == "ended" for edge in edges),
        all(edge.mine for edge in edges),
    )


def _siblings(first: Mapping[str, Hashable], edges: Sequence[EdgeView]) -> Mapping[str, Hashable]:
    """The kind of each job, told apart by the kinds of its neighbours until no further kind appears."""
    back = [edge._replace(child=edge.parent, parent=edge.child) for edge in edges]
    before, behind = _levels(first, edges), _levels(first, back)
    kinds = _numbered({job_id: (kind, before[job_id], behind[job_id]) for job_id, kind in first.items()})
    around: dict[str, list[tuple[int, str]]] = {job_id: [] for job_id in kinds}
    for edge in edges:  # on which side the neighbour is, and whether any end of the parent will do
        how = 1 if edge.until == "ended" else 0
        around[edge.child].append((how, edge.parent))
        around[edge.parent].append((how + 2, edge.child))
    for _ in range(_ROUNDS):
        finer = _numbered(
            {
                job_id: (kind, frozenset([4 * kinds[other] + side for side, other in around[job_id]]))
                for job_id, kind in kinds.items()
            }
        )
        if len(set(finer.values())) == len(set(kinds.values())):
            break
        kinds = finer
    return kinds


def _numbered(kinds: Mapping[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {job_id: numbers.setdefault(kind, len(numbers)) for job_id, kind in kinds.items()}


def _levels(ids: Mapping[str, object], edges: Sequence[EdgeView]) -> dict[str, int]:
    """How many edges the longest path to each job has; 0 for jobs that wait in a cycle."""
    children: dict[str, list[str]] = defaultdict(list)
    left = dict.fromkeys(ids, 0)
    for edge in edges:
        children[edge.parent].append(edge.child)
        left[edge.child] += 1
    levels = dict.fromkeys(ids, 0)
    ready = [job_id for job_id, number in left.items() if not number]
    while ready:
        job_id = ready.pop()
        for child in children[job_id]:
            levels[child] = max(levels[child], levels[job_id] + 1)
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    return levels
