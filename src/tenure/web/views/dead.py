"""Dead letters, grouped by task and error, with actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tenure.core.lifecycle import GUARD, State
from tenure.errors import InvalidOption
from tenure.operations.error_groups import ErrorGroups
from tenure.operations.job_query import JobQuery
from tenure.ports import Filter
from tenure.web.pages import Action, Page, View, here
from tenure.web.views.jobs import Listed, search, shown, verbs

PER_MINUTE = 60  #: proposed for the replay of a group


def _look(view: View) -> Mapping[str, Any]:
    ask, problem, found = _asked(view), "", Listed()
    try:
        found = search(view, ask, view.query.get("cursor") or None)
    except InvalidOption as error:
        problem = str(error)
    return {
        "ask": ask,
        "problem": problem,
        "errors": view.site.memo.get(("dead", ask.rest["guards"]), lambda: _errors(view, ask), fresh=2.0),
        "per_minute": PER_MINUTE,
        **shown(view, found),
        "here": here(view),
        "verbs": [verb for verb in verbs(view) if verb in ("replay", "delete")],
        "acts": ("edit" if view.user.payloads else "replay") if view.user.may("operate") else "",
        "query": {name: text for name, text in ask.rest.items() if name != "guards"},
    }


def _asked(view: View) -> JobQuery:
    """Dead letters of guards are reported by their schedules; they are shown here only on request."""
    ask = JobQuery.of(view.all.multi_items())
    rest = {name: text for name, text in ask.rest.items() if name in ("q", "task", "queue", "text")}
    rest["guards"] = "yes" if rest.get("queue") == GUARD else "no"
    return replace(ask, state=(State.DEAD.value,), rest=rest)


def _errors(view: View, ask: JobQuery) -> ErrorGroups:
    return view.admin.jobs.errors(Filter(states=frozenset({State.DEAD}), guards=ask.rest["guards"] == "yes"))


PAGES: list[Page] = [Page("/dead", "dead.html", _look, title="Dead letters")]
ACTIONS: list[Action] = []
