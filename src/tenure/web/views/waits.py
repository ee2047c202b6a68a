"""What a job's page shows of waiting: the jobs before and behind it, its flow, and its signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.core.lifecycle import ENDED, State
from tenure.errors import InvalidArguments, InvalidOption, Refused, UnknownFlow, UnknownJob, UnknownLimit
from tenure.operations.flows import Flow
from tenure.operations.limits import KeyStatus
from tenure.operations.neighbours import Neighbours
from tenure.operations.signals import Signals, check_of
from tenure.ports import JobView
from tenure.web.pages import View

_NONE = Neighbours()
_NO_SIGNALS = Signals(None, False, None, ())


def look(view: View, job: JobView) -> Mapping[str, Any]:
    """For the template of a job."""
    memo, neighbours = view.site.memo, view.admin.neighbours
    before = behind = _NONE
    if job.linked or job.state is State.WAITING:
        before = memo.get(("before", job.id), lambda: neighbours.before(job.id), fresh=0.5)
        behind = memo.get(("behind", job.id), lambda: neighbours.behind(job.id), fresh=0.5)
    signals = _signals(view, job)
    return {
        "place": _place(view, job),
        "before": before,
        "behind": behind,
        "flow": _flow(view, job),
        "signals": signals,
        "may_signal": view.user.may("operate") and signals.waits_for is not None and job.state is State.WAITING,
        "may_skip": view.user.may("operate")
        and job.state in ENDED - {State.COMPLETED}
        and behind.left > 0
        and not behind.needed,
        "signal_text": "",
        "signal_problem": "",
    }


def _place(view: View, job: JobView) -> KeyStatus | None:
    """The key under which it is parked."""
    key = job.parked
    if key is None:
        return None
    try:
        return view.site.memo.get(("key", key), lambda: view.admin.limits.key(key), fresh=0.3)
    except UnknownLimit:
        return None


def _flow(view: View, job: JobView) -> Flow | None:
    flow_id = job.flow
    if flow_id is None:
        return None
    try:
        return view.site.memo.get(("flow", flow_id), lambda: view.admin.flows.get(flow_id), fresh=0.2)
    except UnknownFlow:
        return None


def _signals(view: View, job: JobView) -> Signals:
    try:
        return view.site.memo.get(("signals", job.id), lambda: view.admin.signals.of(job.id), fresh=0.5)
    except UnknownJob:  # deleted meanwhile
        return _NO_SIGNALS


def send(view: View, job: JobView, form: Mapping[str, str]) -> tuple[str, str]:
    """Send the signal of a form: what became of it, or what is wrong with its value."""
    name, text = form.get("name", ""), form.get("value", "").strip()
    try:
        if form.get("shared") == "yes":
            says = view.admin.signals.send_shared(name, text)
        else:
            task = view.site.tasks.find(job.task) if view.site.tasks else None
            says = view.admin.signals.send(job.id, name, text, check=check_of(task, name))
    except (InvalidArguments, InvalidOption) as error:
        return "", str(error)
    except Refused as error:
        return str(error), ""
    return f"{job.task}: {says}", ""
