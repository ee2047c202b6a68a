"""Queues: their backlog and workers; pause and resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.config import valid_queue
from tenure.operations.queues import health
from tenure.web.pages import Action, Page, View, back


def look(view: View) -> dict[str, Any]:
    return {"rows": health(view.site.listed_queues(), view.site.workers())}


def _pause(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = valid_queue(view.given["name"])
    view.admin.queues.check_known(name, view.site.declared_queues())
    paused = view.admin.queues.pause(name)
    says = "is paused: its running jobs continue, no other starts" if paused else "was already paused"
    return f"Queue {name} {says}.", back(form, "/queues")


def _resume(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = valid_queue(view.given["name"])
    resumed = view.admin.queues.resume(name)
    return f"Queue {name} {'is resumed' if resumed else 'was not paused'}.", back(form, "/queues")


PAGES: list[Page] = [Page("/queues", "queues.html", look, title="Queues")]
ACTIONS: list[Action] = [
    Action("/queues/{name}/pause", "operate", _pause),
    Action("/queues/{name}/resume", "operate", _resume),
]
