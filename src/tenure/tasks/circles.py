"""Circles: jobs that wait for each other, so that none of them would ever end.

A job looks for a circle before it waits. Two may do so at the same moment, so each must have written down what it is
about to wait for before it looks: then at least one of them sees the other. A gather has stored its edges by then. The
edge of a join is stored with the end of the attempt, so a join is announced first, in a record of that attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tenure.core.lifecycle import State
from tenure.ports import Store

MOST_WALKED = 1000  #: edges that are followed
_AT_ONCE = 200  #: jobs whose edges are read at once
_SHOWN = 6


def announced(attempt: int, job_id: str = "") -> str:
    """The key of the record that this attempt is about to join that job. No handler's own key begins like this."""
    return f"\x1fjoin {attempt} {job_id}"


def withdrawn(attempt: int, job_id: str) -> str:
    """The key of the record that it does not."""
    return f"\x1fno join {attempt} {job_id}"


def circle(store: Store, mine: str, starts: Iterable[str]) -> list[str]:
    """The jobs from `mine` by one of `starts` back to it, each of which waits for the next; empty: none was found."""
    came = dict.fromkeys(starts, mine)
    left, walked = list(came), 0
    while left and mine not in came and walked < MOST_WALKED:
        some, left = left[:_AT_ONCE], left[_AT_ONCE:]
        edges = store.edges(some, limit=MOST_WALKED - walked)
        walked += max(len(edges), len(some) // 10, 1)  # jobs that wait for nothing cost a little, too
        waits = [(edge.child, edge.parent) for edge in edges if edge.open]
        waits += _joins(store, sorted(set(some) - {child for child, _ in waits}))
        for child, parent in waits:
            if parent not in came:
                came[parent] = child
                left.append(parent)
    if mine not in came:
        return []
    path, at = [mine], came[mine]
    while at != mine:
        path.append(at)
        at = came[at]
    return [*path, mine][::-1]


def _joins(store: Store, ids: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The joins that running attempts of these jobs have announced."""
    found = store.updates(dict.fromkeys(ids, ""), limit=len(ids)) if ids else []
    for status in (each.status for each in found):
        if status is not None and status.state is State.PROCESSING:
            start, records = announced(status.attempt), store.records(status.id)
            for key in records:
                job_id = key.removeprefix(start)
                if key.startswith(start) and withdrawn(status.attempt, job_id) not in records:
                    yield status.id, job_id


def told(path: Sequence[str]) -> str:
    """The circle in a sentence.

    >>> told(["a", "b", "c", "a"])
    'this job, a, would wait for b, which waits for c, which waits for this job: none of them would ever end'
    """
    others = [*path[1:-1]]
    if len(others) > _SHOWN:
        others[_SHOWN - 1 : -1] = [f"{len(others) - _SHOWN} more"]
    named = "".join(f"{each}, which waits for " for each in others)
    return f"this job, {path[0]}, would wait for {named}this job: none of them would ever end"
