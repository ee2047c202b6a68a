"""Tasks: how many of their jobs ended, how many failed, and how long they took, over minutes, hours or days."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.operations.trends import SPANS, span_of
from tenure.web.charts import SPANS as WORDS
from tenure.web.charts import charts
from tenure.web.pages import Action, Page, View


def look(view: View) -> Mapping[str, Any]:
    span, task = span_of(view.query.get("span") or "15m"), view.query.get("task", "")
    trend = view.site.trend(span)
    rows = view.site.memo.get(("tasks", span), lambda: trend.tasks, fresh=0.9)
    shown = view.site.memo.get(("charts", span, task), lambda: charts(trend.of(task) if task else trend), fresh=0.9)
    return {
        "span": span,
        "spans": SPANS,
        "span_words": WORDS[span][0],
        "task": task,
        "rows": [each for each in rows if task in ("", each.task)],
        "charts": shown,
    }


PAGES: list[Page] = [Page("/tasks", "tasks.html", look, every=1.0, title="Tasks")]
ACTIONS: list[Action] = []
