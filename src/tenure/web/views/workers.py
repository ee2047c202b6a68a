"""Workers: which ones are alive, on which host, what each is running, and how others ended; drain, restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from tenure.core.lifecycle import State
from tenure.errors import Refused
from tenure.operations.workers import (
    STATES,
    Ending,
    Stop,
    StopVerb,
    Workforce,
    can_stop,
    ending,
    hosts,
    is_in,
    mentions,
)
from tenure.ports import Filter, JobView, WorkerView
from tenure.web.pages import Action, Page, Sorting, View, back, count, here
from tenure.web.site import light
from tenure.web.words import workforce_text

SIZE = 7  #: workers on a page; if there are more on several hosts, hosts are listed instead
HOSTS = 15  #: on a page
_ENDED = 3  #: shown below the live ones
_JOBS = 20  #: jobs shown for each worker, if they are few
_FEW = 4
_STEPS = 20  #: steps of a bar: it is sent again only when it visibly moves
_LONGEST = 200

RUNNERS: Mapping[str, str] = {
    "worker": "a process of tenure worker, watched by its supervisor",
    "embedded": "inside an app's own process: it asks code to stop, and never kills it",
    "solo": "for jobs that run alone, or in a small group: a process in which they ran died, or they are isolated",
    "guard": "a user's own function or command, while it runs",
}


_KEYS: Mapping[str, Callable[[WorkerView], Any]] = {
    "started": lambda worker: worker.started_at,
    "lease": lambda worker: worker.expires_at,
    "busy": lambda worker: worker.processing,
    "memory": lambda worker: worker.memory,
}


class Row(NamedTuple):
    worker: WorkerView
    left: float  #: share of its lease left, 0…1
    jobs: Sequence[JobView]
    stop: Stop | None
    offers: Sequence[StopVerb]  #: what the viewer may have it do


class Gone(NamedTuple):
    worker: WorkerView
    end: Ending
    stop: Stop | None


def look(view: View) -> dict[str, Any]:
    workers, now = view.site.workers(), view.admin.now()
    stops = view.site.memo.get("stops", view.admin.workers.stops, fresh=0.3)
    text, host = (view.query.get(name, "").strip()[:_LONGEST] for name in ("q", "host"))
    state = view.query.get("state", "") if view.query.get("state") in STATES else "alive"
    found = [each for each in workers if mentions(each, text) and host in ("", each.identity.host)]
    chosen = [each for each in found if is_in(each, state, stops)]
    asked = {"q": text, "host": host, "state": "" if state == "alive" else state}
    query = {name: value for name, value in asked.items() if value}
    sorting = Sorting.of(view, "/workers", _KEYS, query)
    folded = (
        state != "ended"
        and not host
        and not sorting.by
        and len(chosen) > SIZE
        and len({each.identity.host for each in chosen}) > 1
    )
    size, page = HOSTS if folded else SIZE, max(1, count(view.query.get("page", ""), 1))
    first = (page - 1) * size
    chosen = sorting.sorted(sorted(chosen, key=_place), _KEYS)
    live = [] if folded or state == "ended" else chosen[first : first + size]
    doing = _doing(view, live)
    rows = [_row(view, each, now, doing, stops) for each in live]
    gone = [Gone(each, end, stops.get(each.identity.id)) for each in found if (end := ending(each)) is not None]
    gone.sort(key=lambda each: each.worker.died_at or now, reverse=True)
    listed = hosts(chosen, stops) if folded else chosen
    return {
        "workforce_text": workforce_text(Workforce.of(workers, now)),
        "hosts": [(name, list(some)) for name, some in groupby(rows, key=partial(_group, sorting.by))],
        "sorting": sorting,
        "folded": listed[first : first + size] if folded else [],
        "gone": gone[first : first + SIZE] if state == "ended" else gone[:_ENDED],
        "few": len(live) <= _FEW,
        "ended": len(gone),
        "any": any(each.died_at is None for each in workers),
        "text": text,
        "host": host,
        "state": state,
        "pills": [(name, sum(is_in(each, name, stops) for each in found)) for name in STATES],
        "query": query | {"sort": sorting.text},
        "number": page,
        "first": first,
        "total": len(listed),
        "more": first + size < len(listed),
        "here": here(view),
        "runners": RUNNERS,
    }


def _group(by: str, row: Row) -> str:
    """Its host, unless the workers of all hosts are sorted."""
    return "All hosts" if by else row.worker.identity.host


def _place(worker: WorkerView) -> tuple[str, bool, datetime, str]:
    me = worker.identity
    return me.host, me.runner != "worker", worker.started_at, me.id


def _row(
    view: View, worker: WorkerView, now: datetime, doing: Mapping[str, Sequence[JobView]], stops: Mapping[str, Stop]
) -> Row:
    left = (worker.expires_at - now).total_seconds() / worker.identity.lease
    steps = round(min(max(left, 0.0), 1.0) * _STEPS)
    stop = stops.get(worker.identity.id)
    offers = can_stop(worker) if stop is None and view.user.may("operate") else ()
    return Row(worker, steps / _STEPS, doing.get(worker.identity.id, ()), stop, offers)


def _doing(view: View, live: Sequence[WorkerView]) -> Mapping[str, Sequence[JobView]]:
    """Running jobs by worker: all of a few workers, the newest of many."""
    busy = tuple(each.identity.id for each in live if each.processing)
    limit = _JOBS if len(live) <= _FEW else _FEW

    def read() -> Mapping[str, Sequence[JobView]]:
        search, processing = view.admin.jobs.search, frozenset({State.PROCESSING})
        return {
            worker: list(map(light, search(Filter(states=processing, worker_id=worker), limit=limit).jobs))
            for worker in busy
        }

    return view.site.memo.get(("doing", busy), read, fresh=0.15)


def _stop(verb: StopVerb, view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    try:
        says = view.admin.workers.stop(view.given["id"], verb)
    except Refused as error:
        says = str(error)
    return f"{says[0].upper()}{says[1:]}.", back(form, "/workers")


PAGES: list[Page] = [Page("/workers", "workers.html", look, title="Workers")]
ACTIONS: list[Action] = [
    Action("/workers/{id}/drain", "operate", partial(_stop, "drain")),
    Action("/workers/{id}/restart", "operate", partial(_stop, "restart")),
]
