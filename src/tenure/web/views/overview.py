"""The overview: current activity, and what is wrong right now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tenure.core.lifecycle import State
from tenure.operations.problems import Problem
from tenure.operations.pulse import rates
from tenure.operations.trends import Trend
from tenure.operations.workers import Workforce, stalls
from tenure.ports import Filter, JobView
from tenure.web.charts import charts
from tenure.web.pages import Action, Page, View
from tenure.web.site import Site, light
from tenure.web.words import some, workforce_text

_SHOWN = 10
_READ = 100


class Advice(NamedTuple):
    """A problem as shown on the page: title, description, what to do, and a link."""

    title: str
    says: str
    do: str
    path: str
    query: Mapping[str, str]
    more: str


def look(view: View) -> dict[str, Any]:
    site = view.site
    counts = site.counts()
    slices, workforce = site.slices(), Workforce.of(site.workers())
    return {
        "counts": counts.by_state,
        "counted_at": _moment(counts.age) if counts.age > 2 else None,
        "empty": not any(counts.by_state.values()),
        "rates": rates(slices),
        "problems": [*map(advice, site.problems()), *map(_stall, stalls(site.workers()))],
        "looked_at": _looked_at(site),
        "charts": site.memo.get("charts", lambda: charts(Trend("15m", slices)), fresh=0.9),
        "queues": site.listed_queues(),
        "workforce": workforce,
        "workforce_text": workforce_text(workforce),
        "running": site.memo.get("running", lambda: _running(view), fresh=0.15),
        "completed": site.memo.get("completed", lambda: _completed(view), fresh=0.3),
    }


PAGES: list[Page] = [Page("/", "overview.html", look, title="Overview")]
ACTIONS: list[Action] = []


# ── Problems ────────────────────────────────────────────────────────────────────────────────────────────────────

_NO_FIRE = "Start a worker on any host: tenure worker."


def advice(problem: Problem) -> Advice:
    """What to do about a problem, and the page to open."""
    subject = problem.subject
    nothing: Mapping[str, str] = {}
    one = (f"/schedules/{subject}", nothing, "The schedule")
    schedule = one if subject != "*" else ("/schedules", nothing, "Schedules")
    match problem.kind:
        case "scheduler-silent":
            return Advice("No supervisor fires the schedules", problem.says, _NO_FIRE, "/schedules", {}, "Schedules")
        case "duty-late":
            do = "Restart that process if its duty stays late."
            return Advice("A duty of the maintenance is late", problem.says, do, "/workers", {}, "Workers")
        case "overdue":
            return Advice(
                "A schedule is overdue", problem.says, "Check that its caller and a worker are running.", *schedule
            )
        case "late":
            do = "Its job is waiting: check whether workers have free slots."
            return Advice("A schedule is late", problem.says, do, *schedule)
        case "too-long":
            do = "Check the progress and log of its job; cancel it if it hangs."
            return Advice("A schedule's job is running for too long", problem.says, do, *schedule)
        case "failures":
            do = "Read its last error; resume it once the cause is fixed."
            return Advice("A schedule is failing", problem.says, do, *schedule)
        case "dead-letters":
            where: dict[str, str] = {} if subject == "*" else {"task": subject}
            do = "Read the errors; replay the jobs once the cause is fixed."
            return Advice("New dead letters", problem.says, do, "/dead", where, "Dead letters")
        case "queue-age":
            do = "Resume it, or add workers or slots."
            return Advice("A queue is behind", problem.says, do, "/queues", {}, "Queues")
        case "no-worker":
            kind, _, name = subject.partition(" ")
            if kind == "task":
                do = "Deploy the code that has it, or cancel its jobs."
                return Advice("No worker knows a task", problem.says, do, "/jobs", {"task": name}, "Its jobs")
            do = "Start a worker that serves it."
            return Advice("No worker serves a queue", problem.says, do, "/queues", {}, "Queues")
        case "arguments-misfit":
            do = "Deploy the code that takes their arguments, or cancel them."
            return Advice("Arguments fit no worker's code", problem.says, do, "/jobs", {"task": subject}, "Its jobs")


def _stall(says: str) -> Advice:
    do = "Its other jobs are blocked. Move the blocking code into a thread (a plain def) or a separate process."
    return Advice("A worker is stalled", says, do, "/workers", {}, "Workers")


def _looked_at(site: Site) -> str:
    queues, workers, schedules = len(site.queues()), Workforce.of(site.workers()).alive, len(site.schedules())
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
