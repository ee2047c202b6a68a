"""Flows: how far each is and what holds it; the graph of one, and what an operator may do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any, NamedTuple

from tenure.core.ids import canonical
from tenure.core.lifecycle import LIVE, State
from tenure.errors import InvalidOption, UnknownJob
from tenure.events import headline
from tenure.operations.flow_graph import Arrow, Graph, Step
from tenure.operations.flows import Flow, FlowActed
from tenure.operations.neighbours import Holder
from tenure.ports import JobView
from tenure.web.graphs import Part, in_words, parts, picture
from tenure.web.pages import Action, Page, View, back, here
from tenure.web.security import Problem
from tenure.web.words import some

SIZE = 12  #: flows of a page; up to twice as many when they are searched
STEPS = 12  #: rows of the table of steps before the rest is folded
STANDS = ("running", "held", "waiting", "completed", "dead", "cancelled")
_MOST_LOOKED_AT = 300  #: flows that one search looks at
_LONGEST_LOOK = 0.2  #: seconds
_LONGEST = 200
_BAR = 120
_WIDE_BAR = 600
_SHARE = 25  #: a graph that takes 0.3 s is read again after 8 s
_SAYS: Mapping[str, str] = {
    "running": "It is running",
    "held": "It is held",
    "waiting": "It waits",
    "completed": "It has completed",
    "dead": "It ended with dead letters",
    "cancelled": "It ended with cancelled jobs",
}


class Row(NamedTuple):
    """`holder`: the dead job for which others wait."""

    flow: Flow
    bar: Sequence[Part]
    says: str
    holder: JobView | None
    why: str


class Line(NamedTuple):
    """A step in the table. `before`: what it waits for, and how many edges to that are open."""

    step: Step
    before: Sequence[tuple[Step, Arrow]]


# ── The list ──


def look(view: View) -> dict[str, Any]:
    text, stands = view.query.get("q", "").strip()[:_LONGEST], view.query.get("stands", "")
    stands = stands if stands in STANDS else ""
    cursor = view.query.get("cursor") or None
    found, after, looked = view.site.memo.get(
        ("flows", text, stands, cursor), partial(_found, view, text.lower(), stands, cursor), fresh=0.5
    )
    holders = view.site.memo.get("flows held", view.admin.neighbours.holding, fresh=0.5)
    asked = {"q": text, "stands": stands}
    return {
        "rows": [_row(each, holders.get(each.id)) for each in found],
        "text": text,
        "stands": stands,
        "pills": STANDS,
        "query": {name: value for name, value in asked.items() if value},
        "cursor": after,
        "looked": looked if (text or stands) and after else 0,
        "later": bool(cursor),
        "here": here(view),
        "width": _BAR,
    }


def _found(view: View, text: str, stands: str, cursor: str | None) -> tuple[list[Flow], str | None, int]:
    """A page of flows, newest first, where to go on, and how many were looked at. Raises InvalidOption."""
    found, looked, began = list[Flow](), 0, monotonic()
    while True:
        page = view.admin.flows.all(limit=SIZE, cursor=cursor)
        looked, cursor = looked + len(page.flows), page.cursor
        found += [
            each
            for each in page.flows
            if stands in ("", each.stands) and (text in each.name.lower() or each.id.endswith(text))
        ]
        slow = looked >= _MOST_LOOKED_AT or monotonic() - began > _LONGEST_LOOK
        if cursor is None or len(found) >= SIZE or slow:
            return found, cursor, looked


def _row(flow: Flow, holder: JobView | None) -> Row:
    holder = holder if flow.live else None
    why = headline(holder.error) if holder is not None and holder.error else ""
    return Row(flow, parts(flow.counts, _BAR), in_words(flow.counts), holder, why)


# ── One flow ──


def look_at_flow(view: View) -> Mapping[str, Any]:
    flow_id = _id(view)
    flow = view.site.memo.get(("flow", flow_id), lambda: view.admin.flows.get(flow_id), fresh=0.2)
    graph, age = view.site.memo.aged(("graph", flow_id), lambda: _graph(view, flow_id), fresh=0.4, share=_SHARE)
    bad = list[Holder]()
    if flow.counts.get(State.DEAD, 0) or flow.counts.get(State.CANCELLED, 0):
        bad = view.site.memo.get(("failed", flow_id), lambda: view.admin.neighbours.failed(flow_id), fresh=0.4)
    may = view.user.may("operate")
    return {
        "flow": flow,
        "says": _SAYS[flow.stands],
        "in_words": in_words(flow.counts),
        "bar": parts(flow.counts, _WIDE_BAR),
        "width": _WIDE_BAR,
        "states": [state for state in State if flow.counts.get(state, 0)],
        "graph": graph,
        "aged": age > 2.0,
        "picture": picture(graph),
        "lines": _lines(graph),
        "first": STEPS,
        "failed": bad,
        "dead": flow.counts.get(State.DEAD, 0),
        "expired": any(each.job.state is State.CANCELLED for each in bad),
        "headline": headline,
        "may_cancel": may and any(flow.counts.get(state, 0) for state in LIVE),
        "may_replay": may and bool(bad),
        "may": may,
    }


def _id(view: View) -> str:
    try:
        return canonical(view.given["id"])
    except InvalidOption:
        raise Problem(
            HTTPStatus.NOT_FOUND, "No such flow", f"expected a flow's id, got {view.given['id'][:100]!r}"
        ) from None


def _graph(view: View, flow_id: str) -> Graph:
    return view.admin.flows.show(flow_id).graph


def _lines(graph: Graph) -> list[Line]:
    steps = {step.number: step for step in graph.steps}
    before: dict[int, list[tuple[Step, Arrow]]] = {number: [] for number in steps}
    for arrow in graph.arrows:
        before[arrow.target].append((steps[arrow.source], arrow))
    return [Line(step, before[step.number]) for step in graph.steps]


def _cancel(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    flow_id = _id(view)
    acted = view.admin.flows.cancel(flow_id, form.get("reason", "").strip()[:500])
    return _told(acted, "cancelled, or asked to stop"), back(form, f"/flows/{flow_id}")


def _replay(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    flow_id = _id(view)
    return _told(view.admin.flows.replay(flow_id), "queued again"), back(form, f"/flows/{flow_id}")


def _told(acted: FlowActed, done: str) -> str:
    told = f"{some(acted.done, 'job')} {done}"
    if not acted.refusals:
        return told
    first = f", {acted.refused[0].id}: {acted.refused[0].says}" if acted.refused else ""
    return f"{told}; {some(acted.refusals, 'job')} left as before{first}"


def _skip(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    try:
        job_id = canonical(view.given["id"])
        (acted,) = view.admin.flows.skip([job_id])
    except (UnknownJob, InvalidOption) as error:
        raise Problem(HTTPStatus.NOT_FOUND, "No such job", str(error)) from None
    return f"Job {job_id[-8:]}: {acted.says}", back(form, f"/jobs/{job_id}")


PAGES: list[Page] = [
    Page("/flows", "flows.html", look, title="Flows"),
    Page("/flows/{id}", "flow.html", look_at_flow, every=0.4),
]
ACTIONS: list[Action] = [
    Action("/flows/{id}/cancel", "operate", _cancel),
    Action("/flows/{id}/replay", "operate", _replay),
    Action("/jobs/{id}/skip", "operate", _skip),
]
