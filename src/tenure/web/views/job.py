"""One job: its history and why, what it is waiting for, and the possible actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import msgspec

from tenure.core.ids import canonical
from tenure.core.lifecycle import ENDED, State
from tenure.core.offloaded import ELSEWHERE
from tenure.core.sealed import ENCRYPTED
from tenure.errors import InvalidArguments, InvalidOption, Refused, UnknownJob
from tenure.events import headline
from tenure.operations.jobs import CAN, JobDetail, Verb
from tenure.operations.stacks import JobStack, trace_lines
from tenure.ports import AttemptView, JobView
from tenure.tasks.arguments import STARS
from tenure.web.pages import Action, Again, Page, View, back
from tenure.web.security import Problem
from tenure.web.views import waits
from tenure.web.views.jobs import NEEDS, is_guards
from tenure.web.words import duration, pretty
from tenure.worker.job_log import Log

STEPS = 100  #: the most attempts shown, the newest
_TOLD = re.compile(r"attempt \d+ |progress: |its last activity was ")  #: reasons that the page shows elsewhere
#: Labels for the evidence of an attempt that ended badly.
_EVIDENCE = {"exit": "exit", "peak_memory": "peak memory", "line": "at", "worker": "process of", "cause": "cause"}


# ── Reading ──


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt. `outcome` is that of the attempt, or `processing` while it runs."""

    number: int
    worker_id: str
    outcome: str
    started_at: datetime | None
    ended_at: datetime | None
    error: str = ""
    evidence: Sequence[tuple[str, str]] = ()
    refused: str = ""  #: why a write of it was refused: it no longer owned the job
    after: str = ""  #: what happened next
    log: Log | None = None

    @property
    def ran(self) -> float | None:
        """Seconds."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at).total_seconds())

    @property
    def headline(self) -> str:
        return headline(self.error)

    @property
    def log_text(self) -> str:
        """One line per record: time in UTC, level, text."""
        lines = self.log.lines if self.log else ()
        return "\n".join(
            f"{each.at:%H:%M:%S}.{each.at.microsecond // 1000:03} {each.level:<7} {each.text}" for each in lines
        )


class Editable(NamedTuple):
    """An argument in the form. `hidden`: it contains secrets, and is kept unchanged unless it is replaced."""

    name: str
    text: str
    hidden: bool
    drop: bool = False
    replace: bool = False
    problem: str = ""


def _detail(view: View) -> JobDetail:
    try:
        job_id = canonical(view.given["id"])
        return view.site.memo.get(("job", job_id), lambda: view.admin.jobs.show(job_id), fresh=0.2)
    except (UnknownJob, InvalidOption):
        raise Problem(
            HTTPStatus.NOT_FOUND,
            "No such job",
            f"no job {view.given['id']} is in this store: it was never enqueued here, or it has been deleted; "
            "completed and cancelled jobs are deleted automatically once their retention time is over",
        ) from None


def _look(view: View) -> Mapping[str, Any]:
    detail = _detail(view)
    job, steps = detail.job, _steps(detail)
    stack = _stack(view, job)
    try:
        why = view.site.memo.get(("explain", job.id), lambda: view.admin.jobs.explain(job.id), fresh=0.5)
    except UnknownJob:  # deleted meanwhile
        why = None
    return {
        "job": job,
        "why": why,
        "reasons": [each for each in why.reasons if not _TOLD.match(each)] if why else [],
        "held": (job.state in (State.SCHEDULED, State.QUEUED) or job.parked) and job.queue in view.site.paused(),
        "steps": steps[-STEPS:],
        "earlier": max(0, len(steps) - STEPS),
        "edits": detail.edits,
        "times": detail.times,
        "schedule": job.meta.get("schedule"),
        "may": _may(view, job),
        "sees": view.user.payloads,
        "guard": is_guards(job),
        "stack": stack,
        **waits.look(view, job),
        "traces": [(each, "\n".join(trace_lines(each))) for each in stack.traces] if stack else [],
    }


def _stack(view: View, job: JobView) -> JobStack | None:
    """The last stack that somebody has asked for."""
    if not job.attempt or not view.user.may("operate"):
        return None
    try:
        return view.site.memo.get(("stack", job.id), lambda: view.admin.jobs.stack(job.id), fresh=0.3)
    except UnknownJob:  # deleted meanwhile
        return None


def _may(view: View, job: JobView) -> Mapping[str, bool]:
    """The actions that the viewer may take on it now."""

    def fits(verb: Verb) -> bool:
        return view.user.may(NEEDS[verb]) and job.state in CAN[verb]

    replay = fits("replay") and not is_guards(job)
    return {
        "cancel": fits("cancel") and not (job.state is State.PROCESSING and job.cancel_reason is not None),
        "promote": fits("promote"),
        "replay": replay,
        "edit": replay and view.user.payloads,
        "stack": view.user.may("operate") and job.state is State.PROCESSING and not is_guards(job),
        "delete": fits("delete"),
    }


def _steps(detail: JobDetail) -> list[Step]:
    """Oldest first. The current attempt, or the one that completed, comes from the job itself."""
    job, rows = detail.job, {each.attempt: each for each in detail.attempts}
    last = job.attempt if job.state in (State.PROCESSING, State.COMPLETED) else None
    begins: datetime | None = None
    steps: list[Step] = []
    for number in range(job.attempt, 0, -1):
        if (row := rows.get(number)) is not None:
            steps.append(_ended(detail, row, begins))
            begins = row.started_at
        elif number == last:
            owner = job.worker_id or job.completed_by or ""
            steps.append(Step(number, owner, job.state.value, job.started_at, job.ended_at))
            begins = job.started_at
        else:  # only completed attempts leave no row
            steps.append(Step(number, "", State.COMPLETED.value, None, None, after="it was replayed"))
            begins = None
    return [replace(step, log=detail.logs.get(step.number)) for step in reversed(steps)]


def _ended(detail: JobDetail, row: AttemptView, begins: datetime | None) -> Step:
    return Step(
        number=row.attempt,
        worker_id=row.worker_id,
        outcome=row.outcome,
        started_at=row.started_at,
        ended_at=row.ended_at,
        error=row.error,
        evidence=[
            (_EVIDENCE.get(name, name.replace("_", " ")), text)
            for name, text in row.evidence.items()
            if name != "refused" and text != row.worker_id
        ],
        refused=row.evidence.get("refused", ""),
        after=_after(detail, row, begins),
    )


def _after(detail: JobDetail, attempt: AttemptView, begins: datetime | None) -> str:
    if begins is not None:
        pause = (begins - attempt.ended_at).total_seconds()
        later = f"the next attempt started {f'{duration(pause)} later' if pause >= 0.001 else 'at once'}"
        changed = next((each for each in detail.edits if attempt.ended_at <= each.at <= begins), None)
        return f"{changed.who} changed its arguments and replayed it; {later}" if changed else later
    if attempt.attempt < detail.job.attempt:
        return ""
    match detail.job.state:
        case State.SCHEDULED:
            return "it is due for its next attempt later"
        case State.WAITING:
            return "it waits, and then starts from the top"
        case State.QUEUED:
            return "it is queued again"
        case State.DEAD:
            return "it became a dead letter"
        case State.CANCELLED:
            return "it was cancelled"
        case _:
            return ""


# ── Acting ──


def _act(verb: Verb, view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    job = _detail(view).job
    if verb == "delete" and form.get("confirm", "").strip().lower() != job.id[-8:]:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "Nothing is deleted",
            f"to delete this job, type the last eight characters of its id, {job.id[-8:]}: go back and try again",
        )
    ((acted,),) = view.admin.jobs.act(verb, [view.admin.jobs.ref(job.id)], form.get("reason", "").strip())
    gone = verb == "delete" and acted.landed
    return f"{job.task}: {acted.says}", back(form, "/jobs" if gone else f"/jobs/{job.id}")


def _ask_for_stack(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    job = _detail(view).job
    try:
        view.admin.jobs.ask_for_stack(job.id)
    except Refused as error:
        return str(error), back(form, f"/jobs/{job.id}")
    return "", f"/jobs/{job.id}#stack"


def _signal(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    job = _detail(view).job
    says, problem = waits.send(view, job, form)
    if problem:
        typed = {"signal_text": form.get("value", ""), "signal_problem": problem}
        raise Again(JOB, {**_look(view), **typed}, problem)
    return says, f"/jobs/{job.id}"


# ── Edit and replay ──


def _look_at_edit(view: View) -> Mapping[str, Any]:
    job = _to_edit(view)
    return {
        "job": job,
        "arguments": _arguments(job),
        "new_name": "",
        "new_text": "",
        "new_problem": "",
        "problem": "",
        "takes": _takes(view, job),
        "stars": STARS,
    }


def _to_edit(view: View) -> JobView:
    if not (view.user.payloads and view.user.may(NEEDS["replay"])):
        raise Problem(
            HTTPStatus.FORBIDDEN,
            "Not allowed",
            "changing arguments needs the role operate and the right to see payloads",
        )
    job = _detail(view).job
    if job.state not in ENDED or is_guards(job):
        what = "it belongs to a guard, which runs it at its next call" if is_guards(job) else f"it is {job.state}"
        raise Problem(
            HTTPStatus.CONFLICT,
            "Can't be edited",
            f"only a job that has ended can be replayed with other arguments: {what}",
        )
    return job


def _arguments(job: JobView) -> list[Editable]:
    given = _decoded(job.payload)
    return [Editable(name, pretty(_encode(value)), STARS in _encode(value)) for name, value in given.items()]


def _decoded(payload: str) -> Mapping[str, object]:
    try:
        found: object = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Problem(
            HTTPStatus.CONFLICT,
            "Can't be edited",
            f"its arguments are {_why_opaque(payload)}, so it can only be replayed unchanged",
        )
    return cast("Mapping[str, object]", found)


def _why_opaque(payload: str) -> str:
    if ELSEWHERE in payload:
        return "kept elsewhere, being large"
    return "encrypted" if ENCRYPTED in payload else "not a JSON object"


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _takes(view: View, job: JobView) -> str:
    """The task's signature, if the task is known."""
    task = view.site.tasks.find(job.task) if view.site.tasks else None
    return f"{job.task}{task.arguments}" if task else ""


def _edit(view: View, form: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> tuple[str, str]:
    job = _to_edit(view)
    before = _decoded(job.payload)
    typed = [_typed(form, each) for each in _arguments(job)]
    put: dict[str, object] = {}
    read = [_read(each, before, put) for each in typed]
    name, text = form.get("new_name", "").strip(), form.get("new_text", "")
    new_problem = _read_new(name, text, before, put)
    problem = ""
    if not new_problem and not any(each.problem for each in read):
        task = view.site.tasks.find(job.task) if view.site.tasks else None
        try:
            acted = view.admin.jobs.replay_edited(job.id, put, [each.name for each in read if each.drop], task)
            if acted.landed:
                return f"{job.task}: {acted.says}", f"/jobs/{job.id}"
            problem = acted.says
        except (InvalidArguments, ValueError) as error:
            read, problem = _at_field(read, str(error))
    shown = {"arguments": read, "new_name": name, "new_text": text, "new_problem": new_problem, "problem": problem}
    said = (problem, new_problem, *(each.problem for each in read))
    raise Again(EDIT, {**_look_at_edit(view), **shown}, "; ".join(filter(None, said)))


def _typed(form: Mapping[str, str], each: Editable) -> Editable:
    """The argument as submitted; fields missing in the form keep their values."""
    text = form.get(f"value:{each.name}", each.text).replace("\r\n", "\n")
    return each._replace(text=text, drop=f"drop:{each.name}" in form, replace=f"replace:{each.name}" in form)


def _read(each: Editable, before: Mapping[str, object], put: dict[str, object]) -> Editable:
    """Add a changed value to `put`; report an invalid one."""
    if each.drop or (each.hidden and not each.replace):
        return each
    try:
        value = _json(each.text)
    except ValueError as error:
        return each._replace(problem=str(error))
    if each.hidden or _encode(value) != _encode(before[each.name]):  # in Python 1 == True, also inside of a list
        put[each.name] = value
    return each


def _read_new(name: str, text: str, before: Mapping[str, object], put: dict[str, object]) -> str:
    if not name:
        return "expected the name of the argument, got only a value" if text.strip() else ""
    if name in before:
        return f"argument {name!r} already exists: change it above"
    try:
        put[name] = _json(text)
    except ValueError as error:
        return str(error)
    return ""


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text.encode())
    except RecursionError:
        raise ValueError("expected JSON that is not nested so deeply") from None
    except (ValueError, UnicodeError) as error:
        got = f"{text.strip()[:40]!r}" if text.strip() else "nothing"
        said = str(error).removeprefix("JSON is malformed: ")
        raise ValueError(f'expected JSON, such as "text", 12, true or ["a"]; got {got}: {said}') from None


def _at_field(read: list[Editable], said: str) -> tuple[list[Editable], str]:
    """Puts the message at the argument that it names, else above the arguments."""
    named = re.match(r"[^:\s]+\.(\w+): ", said)
    if named and any(each.name == named[1] for each in read):
        return [each._replace(problem=said) if each.name == named[1] else each for each in read], ""
    return read, said


EDIT = Page("/jobs/{id}/edit", "edit.html", _look_at_edit, every=5.0)
JOB = Page("/jobs/{id}", "job.html", _look)
PAGES: list[Page] = [JOB, EDIT]
ACTIONS: list[Action] = [
    *(Action(f"/jobs/{{id}}/{verb}", NEEDS[verb], partial(_act, verb)) for verb in NEEDS),
    Action("/jobs/{id}/edit", "operate", _edit),
    Action("/jobs/{id}/stack", "operate", _ask_for_stack),
    Action("/jobs/{id}/signal", "operate", _signal),
]
