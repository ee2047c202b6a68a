"""`tenure queues …`: their backlog; pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from tenure.cli.output import ago, brief, plain, print_error, show_json, table
from tenure.cli.shared import Shared, admin_of, print_result
from tenure.config import valid_name
from tenure.core.lifecycle import State
from tenure.errors import UnknownQueue
from tenure.operations.queues import Pause, health
from tenure.ports import QueueView

if TYPE_CHECKING:
    from datetime import datetime

queues = App(name="queues", help="Queues: their backlog; pause and resume.", help_epilogue="")
SHARED = Shared()
Name = Annotated[str, Parameter(help="The queue.")]


@queues.default
@queues.command(name="list")
def list_(*, shared: Shared = SHARED) -> int:
    """List queues that hold live jobs or are paused."""
    with admin_of(shared) as admin:
        found, now, pauses = admin.queues.all(), admin.now(), admin.queues.pauses()
    rows = health(found, (), now, pauses=pauses)
    if shared.json:
        show_json([{**plain(row.queue), "pause": plain(row.pause)} for row in rows])
        return 0
    table(QUEUE_HEADS, [queue_row(row.queue, now, row.pause) for row in rows], fixed=QUEUE_NUMBERS, right=QUEUE_NUMBERS)
    return 0


_COUNTED = (State.QUEUED, State.PROCESSING, State.SCHEDULED, State.WAITING)
QUEUE_HEADS = ("queue", "queued", "processing", "scheduled", "waiting", "oldest", "note")
QUEUE_NUMBERS = ("queued", "processing", "scheduled", "waiting", "oldest")


def queue_row(queue: QueueView, now: datetime, pause: Pause | None = None) -> list[str]:
    """A queue's line in lists and in `top`."""
    counts = [f"{queue.counts.get(state, 0):,}" for state in _COUNTED]
    oldest = "" if queue.oldest_queued is None else brief(queue.oldest_queued)
    note = f"paused for {ago(queue.paused_at, now)} {pause or ''}".rstrip() if queue.paused_at else ""
    return [queue.name, *counts, oldest, note]


@queues.command
def pause(
    name: Name,
    /,
    *,
    why: str = "",
    unchecked: Annotated[bool, Parameter(name="--unchecked")] = False,
    shared: Shared = SHARED,
) -> int:
    """Stop claims from a queue; its running jobs continue.

    Parameters
    ----------
    why
        The reason, shown with the queue while it is paused.
    unchecked
        Also a queue that no job, worker or schedule of the store has.
    """
    with admin_of(shared) as admin:
        if not unchecked:
            admin.queues.check_known(valid_name(name, "queue"))
        changed = admin.queues.pause(name, why)
    return _turned(shared, name, "paused", changed=changed)


@queues.command
def resume(name: Name, /, *, shared: Shared = SHARED) -> int:
    """Let workers claim from a paused queue again."""
    with admin_of(shared) as admin:
        changed = admin.queues.resume(name)
        if not changed:
            try:
                admin.queues.check_known(name)
            except UnknownQueue as error:  # the one that is paused may have another name
                print_error(str(error))
    return _turned(shared, name, "running", changed=changed)


def _turned(shared: Shared, name: str, state: str, *, changed: bool) -> int:
    words = f"queue {name} is {state}" if changed else f"queue {name} was already {state}"
    return print_result(shared, {"queue": name, "state": state, "changed": changed}, words)
