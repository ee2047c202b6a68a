"""The overview: current activity, and what is wrong right now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.core.lifecycle import State
from tenure.operations.pulse import rates
from tenure.operations.trends import Trend
from tenure.ports import Filter, JobView
from tenure.web.charts import charts
from tenure.web.pages import Action, Page, View
from tenure.web.site import Site, light
from tenure.web.views.advice import advised
from tenure.web.words import some, workforce_text

_SHOWN = 10
_READ = 100


def look(view: View) -> dict[str, Any]:
    site = view.site
    counts = site.counts()
    slices, workforce = site.slices(), site.workforce()
    return {
        "counts": counts.by_state,
        "counted_at": _moment(counts.age) if counts.age > 2 else None,
        "empty": not any(counts.by_state.values()),
        "rates": rates(slices),
        "problems": advised(site.problems(), site.workers()),
        "looked_at": _looked_at(site),
        "charts": site.memo.get("charts", lambda: charts(Trend("15m", slices)), fresh=0.9),
        **_queues(site),
        "workforce": workforce,
        "workforce_text": workforce_text(workforce),
        "running": site.memo.get("running", lambda: _running(view), fresh=0.15),
        "completed": site.memo.get("completed", lambda: _completed(view), fresh=0.3),
    }


PAGES: list[Page] = [Page("/", "overview.html", look, title="Overview")]
ACTIONS: list[Action] = []


def _queues(site: Site) -> Mapping[str, Any]:
    """Those that somebody may have to look at first: paused, or behind."""
    every = site.listed_queues()
    first = sorted(every, key=lambda each: (each.paused_at is None, -(each.oldest_queued or 0.0), each.name))
    return {"queues": sorted(first[:_SHOWN], key=lambda each: each.name), "all_queues": len(every)}


def _looked_at(site: Site) -> str:
    queues, workers, schedules = len(site.listed_queues()), site.workforce().alive, len(site.schedules())
    return (
        f"Checked {some(queues, 'queue')}, {some(workers, 'worker')}, {some(schedules, 'schedule')} "
        "and the dead letters of the last hour."
    )


# ── Running and completed jobs ───────────────────────────────────────────────────────────────────────────────────


def _running(view: View) -> list[JobView]:
    """The jobs that have been running longest."""
    found = view.admin.jobs.search(Filter(states=frozenset({State.PROCESSING})), limit=_READ).jobs
    return list(map(light, sorted(found, key=lambda job: (job.started_at or job.enqueued_at, job.id))[:_SHOWN]))


def _completed(view: View) -> list[JobView]:
    """The jobs that completed last."""
    return list(map(light, view.admin.jobs.completed(_SHOWN)))


def _moment(age: float) -> datetime:
    return (datetime.now(UTC) - timedelta(seconds=age)).replace(microsecond=0)
