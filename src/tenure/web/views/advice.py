"""What is wrong right now, as the overview shows it: causes first, each with the button that mends it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tenure.config import Role
from tenure.operations.causes import Case, Problem, cases
from tenure.operations.sinks import Kind
from tenure.operations.workers import stalls
from tenure.ports import WorkerView
from tenure.web.views.dead import PER_MINUTE
from tenure.web.views.jobs import NEEDS, counted

_FIRST = 2  #: of a kind that are shown in full
_MOST = 6  #: of all kinds
_FOLDED = 100  #: of a kind in a fold
_ASKED = 50  #: jobs that a button takes along


class Button(NamedTuple):
    """A form that sends a POST. Lists in `fields` are sent value by value."""

    label: str
    path: str
    needs: Role = "operate"
    fields: Mapping[str, str | Sequence[str]] = {}
    hint: str = ""  #: for screen readers: of what


class Link(NamedTuple):
    label: str
    path: str
    query: Mapping[str, str | Sequence[str]] = {}


@dataclass(frozen=True, slots=True)
class Advice:
    """A problem as shown on the page."""

    key: str
    title: str
    says: str
    do: str
    link: Link
    button: Button | None = None
    mild: bool = False  #: a warning
    symptoms: Sequence[Advice] = ()
    causes: str = ""  #: its symptoms, in words


@dataclass(frozen=True, slots=True)
class Advised:
    """Problems to show in full, and by kind those that are folded: `57 more late schedules`."""

    first: Sequence[Advice] = ()
    folds: Sequence[tuple[str, Sequence[Advice]]] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.first)


def advised(problems: Iterable[Problem], workers: Iterable[WorkerView]) -> Advised:
    """All of it, of a bounded height."""
    first, rest = list[Advice](), defaultdict[Kind, list[Advice]](list)
    kinds = Counter[Kind]()
    for case in cases(problems):
        kind = case.problem.kind
        kinds[kind] += 1
        if kinds[kind] > _FIRST or len(first) >= _MOST:
            rest[kind].append(_of(case))
        else:
            first.append(_of(case))
    stalled = [_stall(says) for says in stalls(workers)]
    first[:0] = stalled[:_FIRST]
    folds = [(f"{len(some)} more {_NOUNS[kind][len(some) != 1]}", some[:_FOLDED]) for kind, some in rest.items()]
    if more := stalled[_FIRST:]:
        folds.append((f"{len(more)} more stalled workers", more[:_FOLDED]))
    return Advised(first, folds)


def _of(case: Case) -> Advice:
    found = advice(case.problem)
    symptoms = [advice(each) for each in case.symptoms]
    if not symptoms:
        return found
    kinds: Counter[Kind] = Counter(each.kind for each in case.symptoms)
    causes = ", ".join(nouns(kind, number) for kind, number in kinds.items())
    return Advice(
        found.key,
        found.title,
        found.says,
        found.do,
        found.link,
        found.button,
        found.mild,
        symptoms[:_FOLDED],
        f"It causes {causes}",
    )


_NOUNS: Mapping[Kind, tuple[str, str]] = {
    "scheduler-silent": ("silent scheduler", "silent schedulers"),
    "queue-paused": ("paused queue", "paused queues"),
    "limit-paused": ("paused limit", "paused limits"),
    "no-worker": ("queue or task without a worker", "queues or tasks without a worker"),
    "slots-held": ("worker whose slots are held", "workers whose slots are held"),
    "admission-held": ("release whose workers hold up all waiting jobs", "releases whose workers hold up waiting jobs"),
    "flow-held": ("task whose dead letters hold other jobs", "tasks whose dead letters hold other jobs"),
    "waits-long": ("task whose jobs have waited too long", "tasks whose jobs have waited too long"),
    "duty-late": ("late duty", "late duties"),
    "wait-lost": ("task whose jobs waited in vain", "tasks whose jobs waited in vain"),
    "stuck-jobs": ("task with jobs that hang", "tasks with jobs that hang"),
    "too-long": ("run that takes too long", "runs that take too long"),
    "arguments-misfit": ("task whose arguments fit no code", "tasks whose arguments fit no code"),
    "key-missing": ("task whose key no worker has", "tasks whose key no worker has"),
    "value-missing": ("task whose values can't be fetched", "tasks whose values can't be fetched"),
    "dead-letters": ("task with new dead letters", "tasks with new dead letters"),
    "failures": ("failing schedule", "failing schedules"),
    "queue-age": ("queue that is behind", "queues that are behind"),
    "limit-behind": ("key that is behind", "keys that are behind"),
    "late": ("late schedule", "late schedules"),
    "overdue": ("overdue schedule", "overdue schedules"),
}


def nouns(kind: Kind, number: int) -> str:
    return f"{number} {_NOUNS[kind][number != 1]}"


def advice(problem: Problem) -> Advice:
    """What to do about a problem, the page to open, and the button."""
    title, do, link = _words(problem)
    mild = problem.kind in ("late", "queue-age", "stuck-jobs", "limit-behind", "waits-long")
    return Advice(problem.key, title, problem.says, do, link, _button(problem), mild)


def _words(problem: Problem) -> tuple[str, str, Link]:
    subject, several = problem.subject, problem.subject == "*"
    schedule = Link("Schedules", "/schedules") if several else Link("Open the schedule", f"/schedules/{subject}")
    its_jobs = Link("Its jobs", "/jobs", {"task": problem.task or subject})
    waiting = Link("Its queued jobs", "/jobs", {"queue": problem.queue, "state": "queued"} if problem.queue else {})
    limit = Link("Limits", "/limits") if several else Link("See the limit", "/limits/show", {"name": subject})
    job = (
        Link("Open the job", f"/jobs/{problem.jobs[0]}")
        if problem.jobs
        else Link("Running jobs", "/jobs", {"state": "processing"})
    )
    match problem.kind:
        case "scheduler-silent":
            do = "Start a worker on any host: it also fires schedules."
            return "No supervisor fires the schedules", do, Link("Schedules", "/schedules")
        case "queue-paused":
            return (
                "A queue is paused, and its jobs are late",
                "Resume it, if the reason for the pause is gone.",
                waiting,
            )
        case "limit-paused":
            return "A limit is paused, and its jobs wait", "Resume it, if the reason for the pause is gone.", limit
        case "limit-behind":
            return "Jobs have waited too long for a place", "See which jobs have the places, and allow more.", limit
        case "no-worker" if problem.task or subject.startswith("task "):
            return "No worker knows a task", "Deploy the code that has it, or cancel its jobs.", its_jobs
        case "no-worker":
            return "No worker serves a queue", "Start a worker that serves it.", waiting
        case "slots-held":
            do = "Look at one of the jobs; cancel them if they hang. A worker process kills code that does not stop."
            return "Silent jobs hold every slot", do, Link("Workers", "/workers")
        case "duty-late":
            do = "Restart that process if its duty stays late."
            return "A duty of the maintenance is late", do, Link("Workers", "/workers")
        case "wait-lost":
            do = "It goes on now. Unless a program of an older release runs, report this with its logs."
            return "A job waited in vain", do, job
        case "stuck-jobs":
            return (
                "A job takes many times as long as usual",
                "Look at its progress and log; cancel it if it hangs.",
                job,
            )
        case "too-long":
            return "A schedule's run takes too long", "Look at its progress and log; cancel it if it hangs.", job
        case "arguments-misfit":
            do = "Deploy the code that takes their arguments, then run them now; or cancel them."
            return "Arguments fit no worker's code", do, its_jobs
        case "key-missing":
            return "Workers have no key for encrypted values", "Give it to all workers, then run them now.", its_jobs
        case "value-missing":
            do = "Look at the bucket, or bring back what it has lost; then run them now."
            return "Values that are kept elsewhere can't be fetched", do, its_jobs
        case "dead-letters":
            do = "Read the errors; replay the jobs once the cause is fixed."
            return "New dead letters", do, Link("Dead letters", "/dead", {} if several else {"task": subject})
        case "admission-held":
            do = "Restart these workers on this release."
            return "Workers of an older release hold up all jobs that wait", do, Link("Workers", "/workers")
        case "flow-held":
            do = "Remove the cause of its error, then replay it; or let the jobs that wait for it go on without it."
            return "A dead letter holds other jobs", do, job
        case "waits-long":
            return "Jobs have waited too long", "Open one: it says what it waits for, and what to do.", job
        case "failures":
            return "A schedule is failing", "Read its last error, and fix the cause.", schedule
        case "queue-age":
            return "A queue is behind", "Add workers or slots, or wait if the oldest job gets younger.", waiting
        case "late":
            do = "Its job waits for a slot, or for a place of its limit."
            return "A schedule is late", do, job if problem.jobs else schedule
        case "overdue":
            return "A schedule is overdue", "Check that its caller and a supervisor are running.", schedule


def _button(problem: Problem) -> Button | None:
    jobs = problem.jobs[:_ASKED]
    many = "its job" if len(jobs) == 1 else counted(len(problem.jobs))
    match problem.remedy:
        case "resume-queue":
            return Button("Resume queue", f"/queues/{problem.queue}/resume", hint=problem.queue)
        case "resume-limit":
            return Button("Resume it", "/limits/resume", fields={"name": problem.subject}, hint=problem.subject)
        case "resume-schedule":
            return Button("Resume the schedule", f"/schedules/{problem.subject}/resume", hint=problem.subject)
        case "trigger":
            return Button("Run it now", f"/schedules/{problem.subject}/trigger", hint=problem.subject)
        case "cancel":
            return Button(f"Cancel {many}…", "/jobs/bulk/ask", NEEDS["cancel"], {"verb": "cancel", "id": jobs})
        case "promote":
            return Button(f"Run {many} now…", "/jobs/bulk/ask", NEEDS["promote"], {"verb": "promote", "id": jobs})
        case "replay":
            fields = {"verb": "replay", "all": "yes", "state": "dead", "task": problem.task, "guards": "no"}
            fields["per_minute"] = str(PER_MINUTE)
            return Button("Replay…", "/jobs/bulk/ask", NEEDS["replay"], fields, problem.task)
        case "":
            return None


def _stall(says: str) -> Advice:
    do = "Its other jobs are blocked. Move the blocking code into a thread (a plain def) or a separate process."
    return Advice(f"stall:{says[:60]}", "A worker is stalled", says, do, Link("Workers", "/workers"), mild=True)
