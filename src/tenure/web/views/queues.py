"""Queues: how full they are, who serves them; stop and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tenure.config import valid_queue
from tenure.core.lifecycle import GUARD, State
from tenure.operations.alerts import works_for_all
from tenure.ports import QueueView, WorkerView
from tenure.web.pages import Action, Page, View, back
from tenure.web.site import Site


class Row(NamedTuple):
    queue: QueueView
    workers: int  #: live ones that serve it
    slots: int
    guards: bool  #: what is in it runs outside, under guards


def look(view: View) -> dict[str, Any]:
    live = [each for each in view.site.workers() if each.died_at is None]
    return {"rows": [_row(each, live) for each in listed(view.site)]}


def listed(site: Site) -> list[QueueView]:
    """The queues that hold live jobs or are paused, and the empty ones that somebody serves by name."""
    found = {each.name: each for each in site.queues()}
    crew = [each for each in site.workers() if each.died_at is None and works_for_all(each)]
    served = {name for each in crew for name in each.identity.queues}
    nothing: Mapping[State, int] = {}
    empty = [QueueView(name=name, paused_at=None, counts=nothing, oldest_queued=None) for name in served - set(found)]
    return sorted([*found.values(), *empty], key=lambda each: each.name)


def _row(queue: QueueView, live: Sequence[WorkerView]) -> Row:
    serving = [each for each in live if _serves(each, queue.name)]
    return Row(queue, len(serving), sum(each.identity.slots for each in serving), queue.name == GUARD)


def _serves(worker: WorkerView, queue: str) -> bool:
    if queue in worker.identity.queues:
        return True
    return not worker.identity.queues and works_for_all(worker)


def _pause(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = valid_queue(view.given["name"])
    paused = view.admin.pause(name)
    says = "is paused: its running jobs go on, no other starts" if paused else "was paused already"
    return f"Queue {name} {says}.", back(form, "/queues")


def _resume(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = valid_queue(view.given["name"])
    resumed = view.admin.resume(name)
    return f"Queue {name} {'goes on' if resumed else 'was not paused'}.", back(form, "/queues")


PAGES: list[Page] = [Page("/queues", "queues.html", look, title="Queues")]
ACTIONS: list[Action] = [
    Action("/queues/{name}/pause", "operate", _pause),
    Action("/queues/{name}/resume", "operate", _resume),
]
