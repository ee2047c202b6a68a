"""Jobs: search, and act on the selected ones or on all that match, after counting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tenure.config import Role
from tenure.core.ids import canonical
from tenure.core.lifecycle import ENDED, GUARD, State
from tenure.core.text import preview
from tenure.errors import InvalidOption, UnknownJob
from tenure.events import headline
from tenure.operations.explain import doing, stamp, waits_for
from tenure.operations.job_query import JobQuery
from tenure.operations.job_search import checked
from tenure.operations.jobs import DONE, LOOK_SECONDS, VERBS, Acted, JobRef, Verb
from tenure.ports import JobView
from tenure.web.pages import Action, Page, View, back, count, here
from tenure.web.security import Problem
from tenure.web.site import light

SIZE = 25
_WIDTH = 160  #: characters of a preview of arguments
_SUGGESTED = 200  #: names
_READ = 1_000  #: running jobs, to list those that run longest
LASTS = ("15m", "1h", "1d", "7d")  #: offered as links
NEEDS: Mapping[Verb, Role] = {"cancel": "operate", "promote": "operate", "replay": "operate", "delete": "admin"}


# ── What a row shows ──


@dataclass(frozen=True, slots=True)
class Row:
    job: JobView
    says: str  #: its progress, or the first line of its error
    args: str  #: a preview, for those who see payloads


class Listed(NamedTuple):
    """A page of a list, and how far it goes. `looked`: the search ended early, after that many jobs."""

    rows: tuple[Row, ...] = ()
    cursor: str | None = None
    looked: int = 0
    reached: datetime | None = None  #: when the last of these was enqueued


class Order(NamedTuple):
    """Another order than newest first. `says`: what is listed then."""

    sort: str
    label: str
    says: str


def says(job: JobView) -> str:
    if job.state is State.PROCESSING:
        if job.cancel_reason is not None:
            return "asked to stop"
        return doing(job)
    if job.state is State.WAITING:
        return f"waits {waits_for(job)}"
    if job.state is State.COMPLETED:
        return ""
    text = job.error or job.cancel_reason
    return headline(text) if text else ""


def search(view: View, ask: JobQuery, cursor: str | None) -> Listed:
    """A page of jobs, shared by concurrent viewers who may see the same. Raises InvalidOption."""
    where = ask.filter(view.admin.now(), payloads=view.user.payloads)

    def read() -> Listed:
        jobs, cursor_after, looked, reached = view.admin.jobs.search(where, limit=SIZE, cursor=cursor)
        rows = tuple(Row(light(job), says(job), preview(job.payload, _WIDTH)) for job in jobs)
        return Listed(rows, cursor_after, looked, reached)

    return view.site.memo.get(("jobs", str(ask.query), cursor), read, fresh=0.2)


def _order_of(ask: JobQuery) -> Order | None:
    """How else the store can list these without reading all of them."""
    if ask.state == (State.PROCESSING,):
        return Order("started", "running longest", f"Of the first {_READ:,} that match, those that run longest.")
    if len(ask.state) == 1 and ask.state[0] in ENDED and not ask.rest:
        return Order("ended", "ended last", f"The {SIZE} that ended last, without those of guards.")
    return None


def _sorted(view: View, ask: JobQuery, order: Order) -> Listed:
    """The first page in this order. Raises InvalidOption."""
    where = ask.filter(view.admin.now(), payloads=view.user.payloads)

    def read() -> Listed:
        if order.sort == "ended":
            jobs: Sequence[JobView] = view.admin.jobs.ended_last(State(ask.state[0]), SIZE)
        else:
            found = view.admin.jobs.search(where, limit=_READ).jobs
            jobs = sorted(found, key=lambda job: (job.started_at or job.enqueued_at, job.id))[:SIZE]
        return Listed(tuple(Row(light(job), says(job), preview(job.payload, _WIDTH)) for job in jobs))

    return view.site.memo.get(("jobs", str(ask.query), order.sort), read, fresh=0.5)


def _look(view: View) -> Mapping[str, Any]:
    ask, problem, found = JobQuery.of(view.all.multi_items()), "", Listed()
    order = _order_of(ask)
    chosen = order is not None and view.query.get("sort") == order.sort
    try:
        if order is not None and chosen:
            found = _sorted(view, ask, order)
        else:
            found = search(view, ask, view.query.get("cursor") or None)
    except InvalidOption as error:
        problem = str(error)
    return {
        "ask": ask,
        "order": order,
        "chosen": chosen,
        "problem": problem,
        **shown(view, found),
        "here": here(view),
        "states": list(State),
        "suggested": _suggested(view),
        "lasts": LASTS,
        "verbs": verbs(view),
    }


def shown(view: View, found: Listed) -> Mapping[str, Any]:
    """What the list's template needs."""
    return {**found._asdict(), "payloads": view.user.payloads, "later": bool(view.query.get("cursor"))}


def _suggested(view: View) -> Mapping[str, Sequence[str]]:
    """Known names for the fields of the search."""
    workers = view.site.workers()
    tasks = {name for worker in workers for name in worker.identity.tasks}
    queues = {queue.name for queue in view.site.listed_queues()}
    return {
        "task": sorted(tasks)[:_SUGGESTED],
        "queue": sorted(queues)[:_SUGGESTED],
        "worker": sorted(worker.identity.id for worker in workers if worker.died_at is None)[:_SUGGESTED],
    }


def verbs(view: View) -> list[Verb]:
    """The actions that the viewer may take."""
    return [verb for verb in VERBS if view.user.may(NEEDS[verb])]


def _find(view: View, form: Mapping[str, str], _: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Go to a job, by its id, or by the beginning or end of it."""
    text = form.get("id", "").strip().lower()
    if not text:
        return "", "/jobs"
    try:
        return "", f"/jobs/{view.admin.jobs.get(view.admin.jobs.named(text, seconds=LOOK_SECONDS)).id}"
    except (InvalidOption, UnknownJob):  # it may also be a text of an error
        return "", f"/jobs?{urlencode({'text': checked(text, 'id')})}"


# ── Bulk: count, ask, act ──


def verb_of(text: str) -> Verb:
    """Raises InvalidOption."""
    for verb in VERBS:
        if verb == text:
            return verb
    raise InvalidOption(f"verb: expected one of {', '.join(VERBS)}, got {text!r}")


def _allowed(view: View, verb: Verb) -> None:
    if not view.user.may(NEEDS[verb]):
        raise Problem(
            HTTPStatus.FORBIDDEN, "Not allowed", f"{view.user.name} is {view.user.role}; {verb} needs {NEEDS[verb]}"
        )


def _ask(view: View, form: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Go to the page that counts the jobs and asks for confirmation."""
    verb, to, ids = verb_of(form.get("verb", "")), back(form, "/jobs"), [text for name, text in fields if name == "id"]
    if form.get("all") == "yes":
        query = {"verb": verb, "all": "yes", "back": to, **_pace(form), **JobQuery.of(fields).query}
    elif ids:
        query = {"verb": verb, "back": to, "id": ids}
    else:
        return "No job is selected: tick some, or choose all that match.", to
    return "", f"/jobs/bulk?{urlencode(query, doseq=True)}"


def _pace(form: Mapping[str, str]) -> dict[str, str]:
    return {"per_minute": text} if (text := form.get("per_minute", "").strip()) else {}


def _per_minute(verb: Verb, form: Mapping[str, str]) -> int | None:
    """Raises InvalidOption."""
    text = form.get("per_minute", "").strip()
    if not text or verb != "replay":
        return None
    if (number := count(text, 0)) == 0:
        raise InvalidOption(f"per minute: expected a number of jobs, or nothing to replay them at once, got {text!r}")
    return number


def _look_at_bulk(view: View) -> Mapping[str, Any]:
    verb = verb_of(view.query.get("verb", ""))
    _allowed(view, verb)
    every = view.query.get("all") == "yes"
    ids = [] if every else list(dict.fromkeys(text for text in view.all.getlist("id") if text))
    cursor = view.query.get("cursor") or None
    shown: dict[str, Any] = {"verb": verb, "back": back(view.query, "/jobs"), "cursor": cursor}
    shown["per_minute"] = view.query.get("per_minute", "")
    if not every:
        was = view.admin.jobs.states(ids)
        return {
            **shown,
            "ask": None,
            "ids": ids,
            "was": was,
            "count": len(ids),
            "more": False,
            "done": 0,
            "only": "",
            "words": "",
        }
    now, given = view.admin.now(), JobQuery.of(view.all.multi_items())
    ask = given.fixed(now, payloads=view.user.payloads)
    key, where = ("bulk", verb, str(given.query), cursor), ask.filter(now, payloads=view.user.payloads)
    counted = view.site.memo.get(key, lambda: view.admin.jobs.count(where, verb, cursor=cursor), fresh=1.0)
    done = view.query.get("done", "")
    return {
        **shown,
        "ask": ask,
        "words": str(given),
        "only": ask.left_for(verb),
        "ids": [],
        "count": counted.jobs,
        "more": counted.more,
        "done": count(done, 0),
    }


def _bulk(view: View, form: Mapping[str, str], fields: Sequence[tuple[str, str]]) -> tuple[str, str]:
    verb = verb_of(form.get("verb", ""))
    _allowed(view, verb)
    if verb == "delete":
        confirm(form.get("confirm", ""), form.get("count", ""))
    to, reason, per_minute = back(form, "/jobs"), form.get("reason", "").strip(), _per_minute(verb, form)
    if form.get("all") != "yes":
        was = dict(text.split(":", 1) for name, text in fields if name == "was" and ":" in text)
        return _act(view, verb, [text for name, text in fields if name == "id"], was, reason, per_minute), to
    ask = JobQuery.of(fields)
    if "count" in form:
        _recount(view, verb, ask, form)
    where = ask.filter(view.admin.now(), payloads=view.user.payloads)
    bulk = view.admin.jobs.act_on_all(verb, where, reason, cursor=form.get("cursor") or None, per_minute=per_minute)
    told = _told(verb, bulk.done, bulk.refusals, bulk.refused, bulk.until, per_minute)
    if bulk.cursor is None:
        return told, to
    done = bulk.done + count(form.get("done", ""), 0)
    query = {"verb": verb, "all": "yes", "cursor": bulk.cursor, "done": done, "back": to, **_pace(form), **ask.query}
    return f"{told}; there are more", f"/jobs/bulk?{urlencode(query, doseq=True)}"


def _recount(view: View, verb: Verb, ask: JobQuery, form: Mapping[str, str]) -> None:
    """The number that was shown is the most: more may match since they were counted. Raises Problem."""
    where = ask.filter(view.admin.now(), payloads=view.user.payloads)
    found = view.admin.jobs.count(where, verb, cursor=form.get("cursor") or None).jobs
    typed = count(form.get("count", ""), 0)
    if found > typed + typed // 10:
        detail = f"{typed:,} were counted, and {found:,} match now: go back and count again"
        raise Problem(HTTPStatus.CONFLICT, f"Nothing is {DONE[verb]}", detail)


def confirm(typed: str, number: str) -> None:
    """An irreversible action needs a typed confirmation: `delete 12`, or the number alone. Raises Problem."""
    words = typed.lower().replace(",", "").split()
    if not number or words not in (["delete", number], [number]):
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "Nothing is deleted",
            f"to delete them, type delete {number}; got {typed.strip()!r}: go back and try again",
        )


def _act(
    view: View, verb: Verb, ids: Sequence[str], was: Mapping[str, str], reason: str, per_minute: int | None
) -> str:
    """`was`: the state of each when the operator was asked. One that has ended otherwise since is left alone."""
    refs: list[JobRef] = []
    gone: list[Acted] = []
    for job_id in dict.fromkeys(ids):
        try:
            ref = view.admin.jobs.ref(canonical(job_id))
        except UnknownJob:
            gone.append(Acted(job_id, landed=False, says="no such job"))
            continue
        if verb in ("replay", "delete") and was.get(job_id, ref.state) != ref.state:
            gone.append(Acted(job_id, landed=False, says=f"nothing done: it is {ref.state} by now"))
        else:
            refs.append(ref)
    pace = None if per_minute is None else view.admin.jobs.pace(per_minute)
    acted = [each for batch in view.admin.jobs.act(verb, refs, reason, pace=pace) for each in batch]
    refused = [*gone, *(each for each in acted if not each.landed)]
    until = pace.last if pace else None
    return _told(verb, len(acted) + len(gone) - len(refused), len(refused), refused, until, per_minute)


def _told(
    verb: Verb,
    done: int,
    refusals: int,
    refused: Sequence[Acted],
    until: datetime | None,
    per_minute: int | None,
) -> str:
    told = f"{counted(done)} {DONE[verb]}"
    if until is not None:
        told += f", {per_minute:,} a minute, the last at {stamp(until)}"
    if not refusals:
        return told
    first = f", {refused[0].id}: {refused[0].says}" if refused else ""
    return f"{told}; {counted(refusals)} left as {'it was' if refusals == 1 else 'they were'}{first}"


def counted(jobs: int) -> str:
    return f"{jobs:,} job{'' if jobs == 1 else 's'}"


def is_guards(job: JobView) -> bool:
    """It runs outside Tenure's workers, under a guard: only the guard's next call runs it again."""
    return job.queue == GUARD


PAGES: list[Page] = [
    Page("/jobs", "jobs.html", _look, title="Jobs"),
    Page("/jobs/bulk", "bulk.html", _look_at_bulk, every=5.0),
]
ACTIONS: list[Action] = [
    Action("/jobs/find", "read", _find),
    Action("/jobs/bulk/ask", "operate", _ask),
    Action("/jobs/bulk", "operate", _bulk),
]
