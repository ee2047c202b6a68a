"""What `after=[…]` names: the jobs that another one waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tenure.core.lifecycle import Edge
from tenure.errors import InvalidOption
from tenure.ports import MOST_EDGES
from tenure.tasks.ended import Ended
from tenure.tasks.handle import AppPort, JobHandle
from tenure.tasks.placeholders import Placeholder, Source, Until

After = Sequence[JobHandle[Any] | Source | Ended[Any]]


def parents_of(after: object, what: str) -> list[tuple[Source | JobHandle[Any], Until]]:
    """The jobs named by `after`, and how far each must have got. Raises InvalidOption."""
    if not isinstance(after, Iterable) or isinstance(after, str):
        raise InvalidOption(f"{what}: expected a list of handles or steps, got {after!r:.80}; write after=[…]")
    found: list[tuple[Source | JobHandle[Any], Until]] = []
    for each in cast("Iterable[object]", after):
        if isinstance(each, Source):
            found.append((each, "completed"))
        elif isinstance(each, JobHandle):
            found.append((cast("Any", each), "completed"))
        elif isinstance(each, Placeholder) and each.name == "ended":
            found.append((each.sources[0], "ended"))
        else:
            raise InvalidOption(
                f"{what}: expected handles or steps, got {each!r:.200}; write after=[step], or after=[step.ended] "
                "to go on after any end"
            )
    return found


def edges_to(app: AppPort, after: object, what: str) -> tuple[Edge, ...]:
    """The edges of a job outside a flow."""
    untils: dict[str, Until] = {}
    for parent, until in parents_of(after, what):
        handle = parent.handle if isinstance(parent, Source) else parent
        check_store(app, handle, what)
        want(untils, str(handle.id), until)
    check_number(untils, what)
    return tuple(Edge(parent, until) for parent, until in untils.items())


def want(untils: dict[Any, Until], parent: object, until: Until) -> None:
    """Note how far this parent must get: `completed` wins, since it includes `ended`."""
    if untils.get(parent) != "completed":
        untils[parent] = until


def check_number(edges: Mapping[Any, Until], what: str) -> None:
    if len(edges) > MOST_EDGES:
        raise InvalidOption(
            f"{what}: a job can wait for at most {MOST_EDGES:,} others, got {len(edges):,}; put a step between that "
            "combines some of them"
        )


def check_store(app: AppPort, handle: JobHandle[Any], what: str) -> None:
    """Raise InvalidOption for a job of another store."""
    if not _have_one_store(app, handle.app):
        raise InvalidOption(f"{what}: job {handle.id} is in another store; a job can wait only for jobs of its own")


def check_same_store(app: AppPort, other: AppPort, what: str) -> None:
    """Raise InvalidOption for a task of an app with another store."""
    if not _have_one_store(app, other):
        raise InvalidOption(f"{what} belongs to an app with another store: enqueue it there")


def _have_one_store(app: AppPort, other: AppPort) -> bool:
    if other is app:
        return True
    ours, theirs = app.settings, other.settings
    return (ours.url, ours.namespace) == (theirs.url, theirs.namespace)
