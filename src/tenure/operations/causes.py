"""Problems in the order in which to mend them: causes first, each with the problems that go away with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tenure.operations.sinks import KINDS, Kind

Remedy = Literal["", "resume-queue", "resume-limit", "resume-schedule", "trigger", "cancel", "promote", "replay"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong right now."""

    kind: Kind
    subject: str  #: the schedule, task, queue, limit or key that it is about
    says: str
    fix: str = ""  #: what to do about it: a command, or a change of the code
    remedy: Remedy = ""  #: the action that mends it, of a queue, a schedule or `jobs`
    queue: str = ""
    task: str = ""
    jobs: Sequence[str] = ()  #: some of the jobs that it is about
    cause: str = ""  #: the key of the problem that causes it; empty: none is known

    @property
    def key(self) -> str:
        """Identifies the same problem at the next check."""
        return f"{self.kind}:{self.subject}"

    @property
    def told(self) -> str:
        """What it says and what to do, for a shell."""
        return "; ".join(filter(None, (self.says, self.fix)))


@dataclass(frozen=True, slots=True)
class Case:
    """A problem without a known cause, and the problems that it causes: its symptoms."""

    problem: Problem
    symptoms: Sequence[Problem] = ()


def attributed(found: Sequence[Problem], blocked: Mapping[str, str]) -> list[Problem]:
    """The same problems, causes first; each symptom names its cause and follows it.

    `blocked`: queues whose workers can start nothing, with the key of the problem that says so.
    """
    by_queue, by_task, held = dict(blocked), dict[str, str](), dict[str, str]()
    died = {each.task: each.key for each in found if each.kind == "dead-letters"}
    admission = {each.subject: each.key for each in found if each.kind == "admission-held"}
    for each in found:
        if each.kind == "no-worker":
            by, name = (by_queue, each.queue) if each.queue else (by_task, each.task)
            by[name] = each.key
        elif each.kind == "slots-held":
            held |= dict.fromkeys(each.jobs, each.key)
    by_queue |= {each.queue: each.key for each in found if each.kind == "queue-paused"}

    def cause(each: Problem) -> str:
        match each.kind:
            case "queue-age":
                return by_queue.get(each.queue, "")
            case "late":
                return by_queue.get(each.queue) or by_task.get(each.task, "")
            case "flow-held":
                return died.get(each.task, "")
            case "waits-long":
                return admission.get("all") or each.cause
            case "limit-behind":
                return next(iter(admission.values()), "") or by_queue.get(each.queue) or each.cause
            case "too-long" | "stuck-jobs" if each.jobs:
                keys = {held.get(job, "") for job in each.jobs}
                return keys.pop() if len(keys) == 1 else ""
            case _:
                return ""

    return [each for case in cases(replace(each, cause=cause(each)) for each in found) for each in _listed(case)]


def cases(found: Iterable[Problem]) -> list[Case]:
    """Each problem without a cause, with those that name it as theirs, in the order in which to mend them."""
    roots, symptoms = list[Problem](), defaultdict[str, list[Problem]](list)
    known = sorted(found, key=lambda each: (KINDS.index(each.kind), each.subject))
    keys = {each.key for each in known}
    for each in known:
        if each.cause in keys:
            symptoms[each.cause].append(each)
        else:
            roots.append(each)
    return [Case(each, tuple(symptoms[each.key])) for each in roots]


def _listed(case: Case) -> list[Problem]:
    return [case.problem, *case.symptoms]
