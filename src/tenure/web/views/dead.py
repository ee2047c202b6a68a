"""Dead letters, grouped by task and error, with actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tenure.core.lifecycle import GUARD, State
from tenure.events import headline
from tenure.operations.job_query import JobQuery
from tenure.ports import Filter
from tenure.web.pages import Action, Page, View, here
from tenure.web.views.jobs import search, shown, verbs

_BATCH, _MOST = 250, 2_000
_GROUPS = 8
_LONGEST = 160  #: characters of an error's first line that name a group and find it


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts of the newest dead letters. `more`: there are older ones, which are not counted."""

    count: int
    more: bool
    tasks: list[tuple[str, int]]
    errors: list[tuple[str, int]]


def _look(view: View) -> Mapping[str, Any]:
    ask = _asked(view)
    found = search(view, ask, view.query.get("cursor") or None)
    return {
        "ask": ask,
        "summary": view.site.memo.get(("dead", ask.rest["guards"]), lambda: _summary(view, ask), fresh=2.0),
        **shown(view, found),
        "here": here(view),
        "verbs": [verb for verb in verbs(view) if verb in ("replay", "delete")],
        "acts": ("edit" if view.user.payloads else "replay") if view.user.may("operate") else "",
        "query": {name: text for name, text in ask.rest.items() if name != "guards"},
    }


def _asked(view: View) -> JobQuery:
    """Dead letters of guards are reported by their schedules; they are shown here only on request."""
    ask = JobQuery.of(view.all.multi_items())
    rest = {name: text for name, text in ask.rest.items() if name in ("task", "queue", "text")}
    rest["guards"] = "yes" if rest.get("queue") == GUARD else "no"
    return replace(ask, state=(State.DEAD.value,), rest=rest)


def _summary(view: View, ask: JobQuery) -> Summary:
    where = Filter(states=frozenset({State.DEAD}), guards=ask.rest["guards"] == "yes")
    tasks, errors, cursor, looked = Counter[str](), Counter[str](), None, 0
    while True:
        page = view.admin.jobs.search(where, limit=_BATCH, cursor=cursor)
        looked += len(page.jobs)
        tasks.update(job.task for job in page.jobs)
        errors.update(headline(job.error)[:_LONGEST] for job in page.jobs if job.error)
        cursor = page.cursor
        if cursor is None or page.looked or looked >= _MOST:
            return Summary(tasks.total(), cursor is not None, tasks.most_common(_GROUPS), errors.most_common(_GROUPS))


PAGES: list[Page] = [Page("/dead", "dead.html", _look, title="Dead letters")]
ACTIONS: list[Action] = []
