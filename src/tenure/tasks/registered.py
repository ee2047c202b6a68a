"""Whether the workers of a store have registered a task that this process does not have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from tenure.errors import InvalidOption, UnknownTask
from tenure.ports import WorkerView


def check_registered(rows: Iterable[WorkerView], task: str, queue: str, store: str, own: Collection[str] = ()) -> None:
    """Raise UnknownTask if no worker has registered this task, InvalidOption if none that has serves the queue.

    `own`: the tasks of this app, whose names an error may suggest, too.
    """
    workers = [row for row in rows if row.identity.runner != "guard"]
    if not workers:
        near = difflib.get_close_matches(task, own, n=1)
        meant = f"did you mean {near[0]!r}, a task of this app? Otherwise start" if near else "start"
        raise UnknownTask(
            f"{task!r} can't be checked: no worker has used this store ({store}) in the last day; {meant} a worker, or "
            "write unchecked=True (in a shell --unchecked)"
        )
    living = [row for row in workers if row.died_at is None] or workers
    able = [row for row in living if task in row.identity.tasks] or [
        row for row in workers if task in row.identity.tasks
    ]
    if not able:
        raise _unknown(task, {*own, *(name for row in workers for name in row.identity.tasks)})
    served = {name for row in able for name in row.identity.queues}
    if queue not in served and all(row.identity.queues for row in able):
        raise InvalidOption(
            f"{task}: the workers that run it serve {', '.join(sorted(served))}, not the queue {queue!r}: "
            f"give queue={min(served)!r}"
        )


def _unknown(task: str, known: Collection[str]) -> UnknownTask:
    """The error for a name that no worker has registered."""
    near = difflib.get_close_matches(task, known, n=3)
    which = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(sorted(known)) or 'none'};"
    return UnknownTask(
        f"no worker of this store has registered a task named {task!r}; {which} "
        "unchecked=True (in a shell --unchecked) stores the job all the same"
    )
