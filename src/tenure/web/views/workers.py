"""Workers: which ones are alive, on which host, and what each is running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, NamedTuple

from tenure.core.lifecycle import State
from tenure.operations.workers import Ending, Workforce, ending
from tenure.ports import Filter, JobView, WorkerView
from tenure.web.pages import Action, Page, View
from tenure.web.site import light
from tenure.web.words import workforce_text

_ASKED = 50  #: workers whose jobs are shown
_JOBS = 20  #: jobs shown for each
_STEPS = 20  #: steps of a bar: it is sent again only when it visibly moves

RUNNERS: Mapping[str, str] = {
    "worker": "a process of tenure worker, watched by its supervisor",
    "embedded": "inside an app's own process: it asks code to stop, and never kills it",
    "solo": "for jobs that run alone, or in a small group: a process in which they ran died, or they are isolated",
    "guard": "a user's own function or command, while it runs",
}


class Row(NamedTuple):
    worker: WorkerView
    left: float  #: share of its lease left, 0…1
    jobs: Sequence[JobView]
    asked: bool  #: whether `jobs` are known


class Gone(NamedTuple):
    worker: WorkerView
    end: Ending


def look(view: View) -> dict[str, Any]:
    workers = view.site.workers()
    now = view.admin.now()
    live = [each for each in workers if each.died_at is None]
    live.sort(key=_place)
    doing = view.site.memo.get("doing", lambda: _doing(view, live), fresh=0.15)
    rows = [_row(each, now, doing) for each in live]
    gone = [Gone(each, end) for each in workers if (end := ending(each)) is not None]
    gone.sort(key=lambda each: each.worker.died_at or now, reverse=True)
    return {
        "workforce_text": workforce_text(Workforce.of(workers)),
        "hosts": [(host, list(some)) for host, some in groupby(rows, key=lambda each: each.worker.identity.host)],
        "gone": gone,
        "runners": RUNNERS,
    }


def _place(worker: WorkerView) -> tuple[str, bool, datetime, str]:
    me = worker.identity
    return me.host, me.runner != "worker", worker.started_at, me.id


def _row(worker: WorkerView, now: datetime, doing: Mapping[str, Sequence[JobView]]) -> Row:
    left = (worker.expires_at - now).total_seconds() / worker.identity.lease
    steps = round(min(max(left, 0.0), 1.0) * _STEPS)
    return Row(worker, steps / _STEPS, doing.get(worker.identity.id, ()), worker.identity.id in doing)


def _doing(view: View, live: Sequence[WorkerView]) -> dict[str, Sequence[JobView]]:
    """Running jobs by worker, for the first fifty busy workers."""
    busy = [each.identity.id for each in live if each.processing]
    processing = frozenset({State.PROCESSING})
    return {
        worker: list(map(light, view.admin.jobs.search(Filter(states=processing, worker_id=worker), limit=_JOBS).jobs))
        for worker in busy[:_ASKED]
    }


PAGES: list[Page] = [Page("/workers", "workers.html", look, title="Workers")]
ACTIONS: list[Action] = []
