"""The demo's buttons: jobs that succeed, wait, fail, crash their process, and are rescued."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from tenure.core.lifecycle import State
from tenure.errors import UnknownTask
from tenure.ports import Draft, Filter
from tenure.web.pages import Action, Page, View
from tenure.web.security import Problem
from tenure.web.site import Demo, light

_SHOWN = 20
_BURST = 100
_NAMES = ("Ada", "Grace", "Alan", "Barbara", "Edsger", "Radia", "Donald", "Frances")


class Trial(NamedTuple):
    """A button, and what it enqueues: `jobs` jobs of a task, with these arguments, after `delay`."""

    label: str
    says: str
    task: str
    arguments: Callable[[], Mapping[str, object]] = dict
    delay: str | None = None
    jobs: int = 1
    kind: str = ""


def _name() -> Mapping[str, object]:
    return {"name": random.choice(_NAMES)}


def _order() -> Mapping[str, object]:
    return {"order": random.randrange(1000, 10_000)}


TRIALS: Mapping[str, Trial] = {
    "success": Trial("Success", "A job that completes at once.", "greet", _name, kind="primary"),
    "delayed": Trial("Delayed", "Scheduled for 5 seconds from now, then run.", "later", _name, delay="5s"),
    "fails-once": Trial("Fails once", "Its first attempt fails. It is retried, and completes.", "flaky"),
    "fails-for-good": Trial(
        "Fails permanently",
        "When its retries are used up it is a dead letter, which you can inspect and replay.",
        "doomed",
        _order,
    ),
    "crash": Trial(
        "Crash a worker",
        "It kills the process that runs it. The job is rescued, and completes in a new one.",
        "crash_once",
        kind="danger",
    ),
    "burst": Trial(f"Burst of {_BURST}", "Many jobs at once: watch the queue drain.", "greet", _name, jobs=_BURST),
}


def look(view: View) -> dict[str, Any]:
    demo = _demo(view)
    jobs = view.site.memo.get(
        "demo",
        lambda: list(map(light, view.admin.jobs.search(Filter(queue=demo.queue), limit=_SHOWN).jobs)),
        fresh=0.1,
    )
    return {"demo": demo, "trials": TRIALS, "jobs": jobs, "live": view.site.workforce().alive > 0}


def _demo(view: View) -> Demo:
    if view.site.demo is None:
        raise Problem(HTTPStatus.NOT_FOUND, "No demo here", "this page exists only in: tenure demo --web")
    return view.site.demo


def _try(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    demo = _demo(view)
    trial = TRIALS.get(view.given["trial"])
    if trial is None:
        raise Problem(HTTPStatus.NOT_FOUND, "No such button", f"expected one of {', '.join(TRIALS)}")
    drafts = [_draft(view, demo, trial) for _ in range(trial.jobs)]
    answers = view.admin.jobs.enqueue(drafts)
    if len(answers) > 1:
        return f"{trial.label}: {len(answers)} jobs enqueued.", "/try"
    return f"{trial.label}: job {answers[0].id[-8:]} is {answers[0].state}.", "/try"


def _draft(view: View, demo: Demo, trial: Trial) -> Draft:
    if view.site.tasks is None:
        raise UnknownTask(
            f"the task {trial.task} of the demo is not known here: start the dashboard with tenure demo --web"
        )
    task = view.site.tasks[trial.task].using(queue=demo.queue, delay=trial.delay)
    return task.bind(**trial.arguments()).draft()


def _reset(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    demo = _demo(view)
    if form.get("confirm", "").strip() != demo.queue:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "Not confirmed", f"confirm: expected the name {demo.queue}")
    asked = view.admin.jobs.act_on_all(
        "cancel", Filter(queue=demo.queue, states=frozenset({State.PROCESSING})), "the demo is reset"
    ).done
    deleted = view.admin.jobs.delete_all(Filter(queue=demo.queue))
    stopping = f"; {asked:,} running jobs are asked to stop" if asked else ""
    return f"The demo is reset: {deleted:,} jobs deleted{stopping}.", "/try"


PAGES: list[Page] = [Page("/try", "try.html", look, title="Try it")]
ACTIONS: list[Action] = [Action("/try/reset", "operate", _reset), Action("/try/{trial}", "operate", _try)]
