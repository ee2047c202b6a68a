"""Queues: their backlog, how it changes, and their workers; pause and resume."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenure.config import valid_queue
from tenure.core.lifecycle import State
from tenure.operations.backlogs import Latency, latencies
from tenure.operations.queues import QueueHealth, health
from tenure.web.pages import Action, Page, Sorting, View, back

_KEYS: Mapping[str, Callable[[QueueHealth], Any]] = {
    "name": lambda row: row.queue.name,
    "queued": lambda row: row.queue.counts.get(State.QUEUED, 0),
    "oldest": lambda row: row.queue.oldest_queued,
    "waits": lambda row: row.latency and row.latency.p95,
    "waiting": lambda row: row.queue.counts.get(State.WAITING, 0),
    "scheduled": lambda row: row.queue.counts.get(State.SCHEDULED, 0),
    "processing": lambda row: row.queue.counts.get(State.PROCESSING, 0),
    "slots": lambda row: row.slots,
}

SIZE = 10  #: queues in full; if there are more, the others are folded
FOLDED = 200  #: the most that are listed there
_SAMPLE = 100  #: completed jobs whose waits are shown


def look(view: View) -> dict[str, Any]:
    text = view.query.get("q", "").strip()[:100]
    site = view.site
    found = health(
        site.listed_queues(),
        site.workers(),
        view.admin.now(),
        pauses=site.memo.get("pauses", view.admin.queues.pauses, fresh=0.5),
        paces=site.paces(),
        latencies=site.memo.get("latencies", lambda: _latencies(view), fresh=5.0),
    )
    rows = [row for row in found if text.casefold() in row.queue.name.casefold()]
    sorting = Sorting.of(view, "/queues", _KEYS, {"q": text} if text else {})
    rows.sort(key=lambda row: (not row.needs_care, not any(row.queue.counts.values()), row.queue.name))
    rows[SIZE:] = sorted(rows[SIZE:], key=lambda row: row.queue.name)
    rows = sorting.sorted(rows, _KEYS)
    return {
        "sorting": sorting,
        "rows": rows[:SIZE],
        "folded": rows[SIZE : SIZE + FOLDED],
        "left": max(0, len(rows) - SIZE - FOLDED),
        "text": text,
        "care": sum(row.needs_care for row in rows),
        "total": len(found),
        "waits_of": _waits_of,
    }


def _latencies(view: View) -> Mapping[str, Latency]:
    return latencies(view.admin.jobs.completed(_SAMPLE))


def _waits_of(row: QueueHealth) -> str:
    """The latency of a queue, in a sentence."""
    latency = row.latency
    assert latency is not None
    jobs = "the last job that" if latency.jobs == 1 else f"the last {latency.jobs} jobs that"
    return f"the median and the 95th percentile of the waits of {jobs} completed within 15 minutes"


def _pause(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    name = valid_queue(view.given["name"])
    view.admin.queues.check_known(name, view.site.declared_queues())
    paused = view.admin.queues.pause(name, form.get("why", ""))
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
