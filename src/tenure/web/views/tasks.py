"""Tasks: how many of their jobs ended, how many failed, and how long they took, over minutes, hours or days."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from tenure.operations.trends import SPANS, TaskTrend, span_of
from tenure.web.charts import SPANS as WORDS
from tenure.web.charts import charts
from tenure.web.pages import Action, Page, Sorting, View

KEYS: Mapping[str, Callable[[TaskTrend], Any]] = {
    "task": attrgetter("task"),
    **{name: attrgetter(name) for name in ("completed", "dead", "cancelled", "failure_rate", "stumbled")},
    **{name: attrgetter(name) for name in ("wait_p50", "wait_p95", "run_p50", "run_p95")},
}


def look(view: View) -> Mapping[str, Any]:
    span, task = span_of(view.query.get("span") or "15m"), view.query.get("task", "")
    trend = view.site.trend(span)
    rows = view.site.memo.get(("tasks", span), lambda: trend.tasks, fresh=0.9)
    shown = view.site.memo.get(("charts", span, task), lambda: charts(trend.of(task) if task else trend), fresh=0.9)
    sorting = Sorting.of(view, "/tasks", KEYS, {"span": span, "task": task or None})
    return {
        "span": span,
        "spans": SPANS,
        "span_words": WORDS[span][0],
        "task": task,
        "rows": sorting.sorted([each for each in rows if task in ("", each.task)], KEYS),
        "sorting": sorting,
        "charts": shown,
    }


PAGES: list[Page] = [Page("/tasks", "tasks.html", look, every=1.0, title="Tasks")]
ACTIONS: list[Action] = []
