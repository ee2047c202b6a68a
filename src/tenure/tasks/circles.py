"""Circles: jobs that wait for each other, so that none of them would ever end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tenure.ports import Store

MOST_WALKED = 1000  #: edges that are followed
_AT_ONCE = 200  #: jobs whose edges are read at once
_SHOWN = 6


def circle(store: Store, mine: str, starts: Iterable[str]) -> list[str]:
    """The jobs from `mine` by one of `starts` back to it, each of which waits for the next; empty: none was found."""
    came = dict.fromkeys(starts, mine)
    left, walked = list(came), 0
    while left and mine not in came and walked < MOST_WALKED:
        some, left = left[:_AT_ONCE], left[_AT_ONCE:]
        edges = store.edges(some, limit=MOST_WALKED - walked)
        walked += max(len(edges), len(some) // 10, 1)  # jobs that wait for nothing cost a little, too
        for edge in edges:
            if edge.open and edge.parent not in came:
                came[edge.parent] = edge.child
                left.append(edge.parent)
    if mine not in came:
        return []
    path, at = [mine], came[mine]
    while at != mine:
        path.append(at)
        at = came[at]
    return [*path, mine][::-1]


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
