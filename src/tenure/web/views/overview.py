"""The overview: current activity, and what is wrong right now."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from tenure.core.lifecycle import State
from tenure.operations.problems import Problem
from tenure.operations.pulse import SLICE, Slice, quantile, rates
from tenure.operations.workers import Workforce, stalls
from tenure.ports import Filter, JobView
from tenure.web.pages import Action, Page, View
from tenure.web.site import Site, light
from tenure.web.words import duration, number, some, workforce_text

_SHOWN = 10
_READ = 100
_WIDTH, _HEIGHT = 720, 150


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
        "charts": site.memo.get("charts", lambda: (throughput(slices), latency(slices)), fresh=0.9),
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


# ── Charts ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart. `kind` selects its colour and dashes, `area` is the filled path below it."""

    name: str
    kind: str
    now: str
    path: str
    area: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """15 minutes of data for the macro `chart`. `ticks`: evenly spaced from the top; `rows`: the data by minute."""

    title: str
    unit: str
    says: str
    lines: Sequence[Line]
    ticks: Sequence[str]
    unknown: Sequence[tuple[float, float]]
    rows: Sequence[tuple[datetime, Sequence[str]]]
    width: int = _WIDTH
    height: int = _HEIGHT


def throughput(slices: Sequence[Slice]) -> Chart:
    """Jobs ended per second."""
    whole = slices[:-1]  # the last one is still in progress
    states = (State.COMPLETED, State.DEAD, State.CANCELLED)
    series = {state: [each.counts[state] / SLICE if each.known else None for each in whole] for state in states}
    top = _nice(max((value for values in series.values() for value in values if value), default=1.0))
    now, total = rates(slices), Counter[State]()
    for each in slices:
        total.update(each.counts)

    def place(value: float) -> float:
        return value / top

    shown = {state: values if state is State.COMPLETED else _seldom(values) for state, values in series.items()}
    lines = [_line(state, state, f"{_rate(now[state])}/s", shown[state], place) for state in states]
    lines[0] = replace(lines[0], area=_area(shown[State.COMPLETED], place))
    ended = ", ".join(f"{total[state]:,} {state}" for state in states)
    most = max((value for value in series[State.COMPLETED] if value), default=0.0)
    return Chart(
        "Throughput",
        "jobs per second",
        f"Jobs that ended in the last 15 minutes: {ended}; at most {number(most)} completed per second",
        lines,
        [number(top), number(top / 2), "0"],
        _unknown(whole),
        [
            (at, [_rate(sum(each.counts[state] for each in some) / (SLICE * len(some))) for state in states])
            for at, some in _minutes(whole)
        ],
    )


def latency(slices: Sequence[Slice]) -> Chart:
    """How long completed jobs waited from due to started, on a logarithmic scale."""
    whole = slices[:-1]
    shares = (("p50", 0.5), ("p95", 0.95))
    series = {name: [quantile(each.waits, share) for each in whole] for name, share in shares}
    seen = [max(value, 0.001) for values in series.values() for value in values if value is not None]
    low = math.floor(math.log10(min(seen, default=0.001)))
    high = max(math.ceil(math.log10(max(seen, default=1.0))), low + 1)
    every = [wait for each in slices for wait in each.waits]
    typical = " and ".join(f"{duration(quantile(every, share))} at {name}" for name, share in shares)

    def place(value: float) -> float:
        return (math.log10(max(value, 10.0**low)) - low) / (high - low)

    last = next((each for each in reversed(whole) if each.waits), None)
    return Chart(
        "Waiting",
        "from due to started",
        f"How long jobs waited in the last 15 minutes: {typical}"
        if every
        else "No job completed in the last 15 minutes",
        [
            _line(name, name, duration(quantile(last.waits, share)) if last else "–", series[name], place)
            for name, share in shares
        ],
        [f"{10**power:,}s" if power >= 0 else duration(10.0**power) for power in range(high, low - 1, -1)],
        _unknown(whole),
        [
            (at, [duration(quantile([wait for each in some for wait in each.waits], share)) for _, share in shares])
            for at, some in _minutes(whole)
        ],
    )


def _line(name: str, kind: str, now: str, values: Sequence[float | None], place: Callable[[float], float]) -> Line:
    runs = [" L".join(f"{x:.1f} {y:.1f}" for x, y in run) for run in _runs(values, place)]
    return Line(name, kind, now, " ".join(f"M{run}" if " L" in run else f"M{run} h1" for run in runs))


def _seldom(values: Sequence[float | None]) -> list[float | None]:
    """Without the stretches of zeros, so that a line which is mostly 0 is visible where it is not."""
    around = zip([0.0, *values[:-1]], values, [*values[1:], 0.0], strict=True)
    return [here if any(three) else None for three in around for here in three[1:2]]


def _area(values: Sequence[float | None], place: Callable[[float], float]) -> str:
    return " ".join(
        f"M{run[0][0]:.1f} {_HEIGHT} L{' L'.join(f'{x:.1f} {y:.1f}' for x, y in run)} L{run[-1][0]:.1f} {_HEIGHT} Z"
        for run in _runs(values, place)
    )


def _runs(values: Sequence[float | None], place: Callable[[float], float]) -> list[list[tuple[float, float]]]:
    """The points of a line, in segments: unknown values are gaps."""
    step = _WIDTH / max(len(values) - 1, 1)
    found = list[list[tuple[float, float]]]()
    for known, group in groupby(enumerate(values), key=lambda each: each[1] is not None):
        if known:
            found.append([(at * step, _HEIGHT * (1 - place(value))) for at, value in group if value is not None])
    return found


def _unknown(slices: Sequence[Slice]) -> list[tuple[float, float]]:
    """Ranges that have not been read yet: from, to."""
    step = _WIDTH / max(len(slices) - 1, 1)
    found = list[tuple[float, float]]()
    for known, group in groupby(enumerate(slices), key=lambda each: each[1].known):
        if not known:
            places = [at for at, _ in group]
            found.append((round(max(places[0] - 1, 0) * step, 1), round(min((places[-1] + 1) * step, _WIDTH), 1)))
    return found


def _minutes(slices: Sequence[Slice]) -> list[tuple[datetime, list[Slice]]]:
    """Newest first, without those that have not been read."""
    by_minute = groupby(slices, key=lambda each: each.at.replace(second=0, microsecond=0))
    whole = [(at, [each for each in some if each.known]) for at, some in by_minute]
    return [(at, some) for at, some in reversed(whole) if some]


def _rate(value: float) -> str:
    return f"{value:.2g}" if 0 < value < 1 else number(value)


def _nice(value: float) -> float:
    """The next 1, 2, 4 or 10 times a power of ten: half of it is a round number too."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 10) if step * power >= value)
