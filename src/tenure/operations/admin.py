"""Reading and acting, for people: the one way for the CLI, the API and the pages.

Whatever it shows has its secrets starred. Whatever it does is in the audit trail, with who did it, and rings the
doorbell after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

import msgspec

from tenure.config import KEY_NAMES, valid_name
from tenure.core.lifecycle import ENDED, GUARD, LIVE, State
from tenure.errors import InvalidArguments, InvalidOption, UnknownJob
from tenure.operations.audit import Entries, Trail
from tenure.operations.explain import Explanation, explain
from tenure.ports import (
    AttemptView,
    Draft,
    Edit,
    Ended,
    Enqueued,
    Filter,
    JobView,
    Landed,
    Notifier,
    Page,
    QueueView,
    Ring,
    Store,
    WorkerView,
)
from tenure.ports.schedules import Schedule, Standing, Tick
from tenure.schedules.timetable import Overdue, Timetable
from tenure.tasks.arguments import Stars
from tenure.tasks.client import rings_of
from tenure.worker.job_log import Log
from tenure.worker.job_log import decode as decode_log

if TYPE_CHECKING:
    from tenure.config import Settings
    from tenure.operations.alerts import Problem
    from tenure.tasks.task import Task

_BATCH = 500
MOST_ENDED = 100_000  #: of each state, that are counted at a time
_WITHIN = 10_000  #: rows that one step of a long walk looks at, so that no single read is long
MOST_AT_ONCE = 10_000  #: jobs that one bulk action acts on; it says if there are more
EDITS = "tenure.edits"  #: in a job's meta: what its arguments were before, when and by whom they were changed
_EDITS_KEPT = 5
Verb = Literal["cancel", "promote", "replay", "delete"]
VERBS: tuple[Verb, ...] = get_args(Verb)
#: The jobs that a verb can do anything to: a bulk action looks at no others.
CAN: Mapping[Verb, frozenset[State]] = {
    "cancel": LIVE,
    "promote": frozenset({State.SCHEDULED}),
    "replay": ENDED,
    "delete": frozenset(State) - {State.PROCESSING},
}


@dataclass(frozen=True, slots=True)
class Overview:
    """One reading of everything that moves. `rates` are ended jobs a second since the reading before it."""

    at: datetime
    counts: Mapping[State, int]
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerView, ...]
    rates: Mapping[State, float]


@dataclass(frozen=True, slots=True)
class Edited:
    """Somebody changed a job's arguments and had it run again: what they were before."""

    at: datetime
    who: str
    before: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job, those of its attempts that ended otherwise than Completed, and what its arguments were; oldest first."""

    job: JobView
    attempts: tuple[AttemptView, ...]
    logs: Mapping[int, Log]  #: by attempt
    edits: tuple[Edited, ...] = ()


class JobRef(NamedTuple):
    id: str
    queue: str
    state: State


class Acted(NamedTuple):
    """What became of one job that an operator wanted something of. `says` is for people."""

    id: str
    landed: bool
    says: str


class Bulk(NamedTuple):
    """What a bulk action did. `cursor` goes on with the jobs that it did not come to; None: that was all."""

    done: int
    refused: tuple[Acted, ...]  #: at most a hundred of them
    refusals: int
    cursor: str | None


class Counted(NamedTuple):
    """How many jobs a bulk action would find; `more`: at least so many."""

    jobs: int
    more: bool


class Admin:
    """An operator's hands and eyes on a store. `who` is the operator, for the audit trail.

    Example: `Admin(store, notifier, settings, who="ada").pause("reports")`
    """

    def __init__(
        self, store: Store, notifier: Notifier, settings: Settings | None = None, *, who: str = "operator"
    ) -> None:
        self.store = store
        self.notifier = notifier
        self.settings = settings
        self.who = who
        self.timetable = Timetable(store, notifier)
        self._trail = Trail(store)
        self._stars = Stars(settings.redact if settings else KEY_NAMES)

    def by(self, who: str) -> Admin:
        """The same, in another operator's hands."""
        return Admin(self.store, self.notifier, self.settings, who=who)

    # ── reading ──

    def overview(self, since: Overview | None = None) -> Overview:
        """Counts, queues and workers now; with the reading before it, also the rates between the two."""
        at, counts = self.store.now(), self.store.counts()
        elapsed = (at - since.at).total_seconds() if since else 0.0
        rates: dict[State, float] = {}
        if since and elapsed > 0:
            # Pruning and deleting lower a count; they are no negative work.
            rates = {state: max(counts.get(state, 0) - since.counts.get(state, 0), 0) / elapsed for state in ENDED}
        return Overview(at, counts, tuple(self.store.queues()), tuple(self.store.workers()), rates)

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        """Jobs, newest first. With `within` it looks at about so many, and may come back short, with a cursor."""
        page = self.store.search(where, limit=limit, cursor=cursor, within=within)
        return Page(tuple(map(self._discreet, page.jobs)), page.cursor)

    def count(self, where: Filter, verb: Verb, *, cursor: str | None = None) -> Counted:
        """How many jobs `act_on_all` would find, up to ten thousand."""
        found, where = 0, _for(verb, where)
        while True:
            page = self.store.search(where, limit=_BATCH, cursor=cursor, within=_WITHIN)
            found += len(page.jobs)
            if (cursor := page.cursor) is None or found >= MOST_AT_ONCE:
                return Counted(found, more=cursor is not None)

    def ended(self, since: datetime, until: datetime) -> Ended:
        """How many jobs ended in this span of time, and how fast the last ones were."""
        return self.store.ended(since, until, most=MOST_ENDED)

    def get(self, job_id: str) -> JobView:
        """Raises UnknownJob."""
        job = self.store.get(job_id)
        if job is None:
            raise UnknownJob(f"no job {job_id} in {self.store.url}: never enqueued there, deleted, or pruned")
        return self._discreet(job)

    def show(self, job_id: str) -> JobDetail:
        """Raises UnknownJob."""
        job = self.get(job_id)
        logs = {attempt: decode_log(text) for attempt, text in self.store.logs(job_id).items()}
        stored = self.store.get(job_id)
        edits = tuple(
            replace(each, before=self._stars.hide(each.before)) for each in _edits(stored.meta if stored else {})
        )
        return JobDetail(job, tuple(self.store.attempts(job_id)), logs, edits)

    def explain(self, job_id: str) -> Explanation:
        """Why this job is not running, or how it ended. Raises UnknownJob."""
        return explain(self.store, self.get(job_id))

    def queues(self) -> list[QueueView]:
        return self.store.queues()

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        """Live workers, newest first; with `dead` also those of the last day."""
        return self.store.workers(dead=dead)

    def schedules(self) -> list[Standing]:
        """All schedules as they stand now, in order of their names."""
        found = self.timetable.all()
        if any(not run.live for each in found for run in each.runs):
            self.timetable.settle(found)
            found = self.timetable.all()
        return [self._discreetly(each) for each in found]

    def schedule(self, name: str) -> Standing:
        """One schedule as it stands now. Raises UnknownSchedule."""
        self.timetable.settle([self.timetable.get(name)])
        return self._discreetly(self.timetable.get(name))

    def history(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """What became of a schedule's ticks, newest first. Raises UnknownSchedule."""
        return self.timetable.history(name, limit=limit, before=before)

    def overdue(self) -> list[Overdue]:
        """The schedules that should run and do not, the longest overdue first."""
        return self.timetable.overdue()

    def problems(self, queues: Sequence[QueueView] | None = None) -> list[Problem]:
        """What is wrong right now, in words. Needs settings. `queues`: if they have just been read."""
        from tenure.operations import alerts

        assert self.settings is not None, "problems are told by their settings: Admin(store, notifier, settings)"
        return alerts.problems(self.store, self.settings, queues)

    def audit(self, *, limit: int = 100, cursor: str | None = None) -> Entries:
        """Who did what, newest first."""
        return self._trail.entries(limit=limit, cursor=cursor)

    # ── acting ──

    def recorded(self, action: str, subject: str, **detail: str) -> AbstractContextManager[list[str]]:
        """Do this under the operator's name: it is in the audit trail before it is done, and after, with its outcome.

        Example: `with admin.recorded("schedule.pause", name): admin.timetable.pause(name)`
        """
        return self._trail.recorded(self.who, action, subject, **detail)

    def enqueue(self, drafts: Sequence[Draft]) -> list[Enqueued]:
        """Store jobs, all or none of them."""
        if not drafts:
            return []
        first, many = drafts[0], len(drafts)
        subject = first.task if many == 1 else f"{many} jobs, the first of {first.task}"
        with self.recorded("jobs.enqueue", subject, queue=first.queue) as said:
            answers = self.store.enqueue(drafts)
            created = sum(answer.created for answer in answers)
            old = "" if created == many else ", which was there already" if many == 1 else f", {created} of them new"
            said.append(f"job {answers[0].id}{old}")
        self.notifier.announce(rings_of(drafts, answers))
        return answers

    def refs(self, where: Filter) -> list[JobRef]:
        """All jobs that match now, oldest first: count them, ask, then act on exactly these."""
        found: list[JobRef] = []
        cursor: str | None = None
        while True:
            page = self.store.search(where, limit=_BATCH, cursor=cursor, within=_WITHIN)
            found.extend(JobRef(job.id, job.queue, job.state) for job in page.jobs)
            if (cursor := page.cursor) is None:
                return found[::-1]

    def ref(self, job_id: str, among: frozenset[State] = frozenset()) -> JobRef:
        """One job, if it is in one of these states (none: any). Raises UnknownJob."""
        job = self.get(job_id)
        if among and job.state not in among:
            wanted = " or ".join(sorted(among))
            raise UnknownJob(f"job {job_id} is {job.state}, not {wanted}: see tenure jobs explain {job_id}")
        return JobRef(job.id, job.queue, job.state)

    def act(self, verb: Verb, refs: Sequence[JobRef], reason: str = "") -> Iterator[list[Acted]]:
        """Cancel, promote, replay or delete these jobs, batch by batch, and say of each what became of it."""
        if not refs:
            return
        subject = refs[0].id if len(refs) == 1 else f"{len(refs)} jobs, {refs[0].id} to {refs[-1].id}"
        with self.recorded(f"jobs.{verb}", subject, **({"why": reason} if reason else {})) as said:
            landed, says = 0, ""
            for acted in self._act(verb, refs, reason):
                landed, says = landed + sum(each.landed for each in acted), acted[-1].says
                yield acted
            said.append(says if len(refs) == 1 else f"{landed} of {len(refs)}")

    def act_on_all(self, verb: Verb, where: Filter, reason: str = "", *, cursor: str | None = None) -> Bulk:
        """Act on all jobs that match, on the server's side, newest first; on ten thousand in one call.

        What is enqueued meanwhile is left alone, and so is what a verb can't be used on.
        """
        done, refusals, refused = 0, 0, list[Acted]()
        looked, where = 0, _for(verb, where)
        with self.recorded(f"jobs.{verb}", _spelled(where), **({"why": reason} if reason else {})) as said:
            while True:
                page = self.store.search(where, limit=_BATCH, cursor=cursor, within=_WITHIN)
                refs = [JobRef(job.id, job.queue, job.state) for job in page.jobs]
                for acted in self._act(verb, refs, reason):
                    done += sum(each.landed for each in acted)
                    others = [each for each in acted if not each.landed]
                    refusals += len(others)
                    refused += others[: 100 - len(refused)]
                looked, cursor = looked + len(refs), page.cursor
                if cursor is None or looked >= MOST_AT_ONCE:
                    break
            said.append(f"{done} done, {refusals} refused" + ("" if cursor is None else ", and more to come"))
        return Bulk(done, tuple(refused), refusals, cursor)

    def replay_edited(
        self,
        job_id: str,
        put: Mapping[str, object],
        drop: Sequence[str] = (),
        task: Task[..., Any] | None = None,
    ) -> Acted:
        """Run an ended job again with other arguments: `put` these, `drop` those, keep all others, secrets too.

        What they were is kept with the job, and who changed them. With its `task` they are checked against its
        signature first. Raises UnknownJob, InvalidArguments.
        """
        job = self.store.get(job_id) or self.get(job_id)
        if job.queue == GUARD:
            return Acted(job_id, landed=False, says="nothing done: a guard runs it by itself, at its next call")
        try:
            before = msgspec.json.decode(job.payload, type=dict[str, object])
        except msgspec.DecodeError:
            raise InvalidArguments(f"job {job_id}: its arguments have no names, so none can be changed") from None
        if unknown := set(drop) - set(before):
            raise InvalidArguments(f"drop: job {job_id} has no argument {', '.join(map(repr, sorted(unknown)))}")
        after = {name: value for name, value in {**before, **put}.items() if name not in drop}
        payload = msgspec.json.encode(after).decode()
        most = self.settings.max_payload if self.settings else 256 * 1024
        if len(payload.encode()) > most:
            raise InvalidArguments(f"job {job_id}: its arguments would be {len(payload.encode())} bytes, over {most}")
        if task is not None:
            task.arguments.load(payload)
        edits = [*_edits(job.meta), Edited(self.store.now(), self.who, job.payload)][-_EDITS_KEPT:]
        meta = {**job.meta, EDITS: msgspec.json.encode(edits).decode()}
        edit = Edit(payload, msgspec.json.encode(meta).decode())
        changed = ", ".join(sorted({*put, *drop})) or "nothing"
        with self.recorded("jobs.replay", job_id, changed=changed) as said:
            acted = _answers(self.store.replay([job_id], edits={job_id: edit}), "queued again")[job_id]
            said.append(acted.says)
        if acted.landed:
            self.notifier.announce([Ring("queued", job.queue, (job_id,))])
        return acted

    def _act(self, verb: Verb, refs: Sequence[JobRef], reason: str) -> Iterator[list[Acted]]:
        apply: dict[Verb, Callable[[list[str]], dict[str, Acted]]] = {
            "cancel": lambda ids: _states(self.store.cancel(ids, reason), _CANCELLED),
            "promote": lambda ids: _states(self.store.promote_now(ids), _PROMOTED),
            "replay": lambda ids: _answers(self.store.replay(ids), "queued again"),
            "delete": lambda ids: _answers(self.store.delete(ids), "deleted"),
        }
        kind = {"cancel": "cancel", "promote": "queued", "replay": "queued"}.get(verb)
        for start in range(0, len(refs), _BATCH):
            batch = refs[start : start + _BATCH]
            acted = apply[verb]([ref.id for ref in batch])
            if kind is not None:
                landed: dict[str, list[str]] = {}
                for ref in batch:
                    if acted[ref.id].landed:
                        landed.setdefault(ref.queue, []).append(ref.id)
                rung = cast(Literal["queued", "cancel"], kind)
                self.notifier.announce(Ring(rung, queue, tuple(ids)) for queue, ids in sorted(landed.items()))
            yield [acted[ref.id] for ref in batch]

    def pause(self, queue: str) -> bool:
        """Stop claims from a queue; running jobs go on. False: it was paused already."""
        with self.recorded("queue.pause", valid_name(queue, "queue")) as said:
            paused = self.store.pause(queue, paused=True)
            said.append("paused" if paused else "it was paused already")
        return paused

    def resume(self, queue: str) -> bool:
        """False: it was not paused."""
        with self.recorded("queue.resume", valid_name(queue, "queue")) as said:
            resumed = self.store.pause(queue, paused=False)
            said.append("resumed" if resumed else "it was not paused")
        self.notifier.announce([Ring("queued", queue)])
        return resumed

    def trigger(self, schedule: str, *, force: bool = False) -> str:
        """Run a schedule now; the job's id. Raises UnknownSchedule, and Refused while a run goes on."""
        with self.recorded("schedule.trigger", schedule, **({"force": "yes"} if force else {})) as said:
            job_id = self.timetable.trigger(schedule, force=force)
            said.append(f"job {job_id}")
        return job_id

    def pause_schedule(self, name: str, why: str) -> Standing:
        """Fire no ticks until it is resumed; runs go on. Raises UnknownSchedule."""
        with self.recorded("schedule.pause", name, why=why):
            return self.timetable.pause(name, why)

    def resume_schedule(self, name: str) -> Standing:
        """Raises UnknownSchedule."""
        with self.recorded("schedule.resume", name):
            return self.timetable.resume(name)

    def backfill(self, schedule: str, since: datetime, until: datetime, *, again: bool = False) -> list[str]:
        """Run the ticks of a time that is past; `timetable.to_backfill` tells which. The ids of the jobs."""
        span = f"{since.isoformat()} to {until.isoformat()}"
        with self.recorded("schedule.backfill", schedule, span=span) as said:
            ids = self.timetable.backfill(schedule, since, until, again=again)
            said.append(f"{len(ids)} jobs")
        return ids

    def put_schedule(self, new: Schedule) -> Standing:
        """Make or change one that no app declares."""
        with self.recorded("schedule.put", new.name, rule=new.rule):
            return self.timetable.put(new)

    def remove_schedule(self, name: str) -> None:
        """Delete it with its history; its jobs stay. Refused while an app declares it: it would come back."""
        self.removable(name)
        with self.recorded("schedule.remove", name):
            self.timetable.remove(name)

    def removable(self, name: str) -> Schedule:
        """Raises UnknownSchedule, and InvalidOption if it would come back."""
        s = self.timetable.get(name).schedule
        if s.source and s.retired_at is None:
            raise InvalidOption(
                f"{name} is declared by app {s.source} and would come back at its next start: "
                f"tenure schedules pause {name}, or take it out of the code"
            )
        return s

    # ── secrets ──

    def _discreet(self, job: JobView) -> JobView:
        hide = self._stars.hide
        meta = {name: text for name, text in job.meta.items() if name != EDITS}
        return replace(
            job,
            payload=hide(job.payload),
            result=None if job.result is None else hide(job.result),
            checkpoint=None if job.checkpoint is None else hide(job.checkpoint),
            meta=self._stars.hide_texts(meta),
        )

    def _discreetly(self, standing: Standing) -> Standing:
        job = standing.schedule.job
        schedule = standing.schedule.but(job=replace(job, payload=self._stars.hide(job.payload)) if job else None)
        runs = tuple(run._replace(job=self._discreet(run.job) if run.job else None) for run in standing.runs)
        return Standing(schedule, runs)


def metrics_text(store: Store) -> str:
    """The metrics of a whole store in Prometheus's text format, as `tenure worker --listen` shows them too."""
    from tenure.operations import metrics

    return metrics.text(metrics.store_families(store)).decode()


def metrics_samples(store: Store) -> list[dict[str, Any]]:
    """The same numbers, each with its name and labels."""
    from tenure.operations.metrics import store_families

    return [
        {"metric": sample.name, "labels": sample.labels, "value": sample.value}
        for family in store_families(store)
        for sample in family.samples
    ]


_CANCELLED = {State.CANCELLED: "cancelled", State.PROCESSING: "asked to stop; its worker ends it once its code has"}
_PROMOTED = {State.QUEUED: "queued", State.PROCESSING: "processing already"}


def _states(found: Mapping[str, State | None], done: Mapping[State, str]) -> dict[str, Acted]:
    def acted(job_id: str, state: State | None) -> Acted:
        if state is None:
            return Acted(job_id, landed=False, says="no such job")
        return Acted(job_id, state in done, done.get(state, f"nothing done: it is {state}"))

    return {job_id: acted(job_id, state) for job_id, state in found.items()}


def _answers(found: Mapping[str, Any], done: str) -> dict[str, Acted]:
    def acted(job_id: str, answer: object) -> Acted:
        match answer:
            case None:
                return Acted(job_id, landed=False, says="no such job")
            case Landed():
                return Acted(job_id, landed=True, says=done)
            case _:
                return Acted(job_id, landed=False, says=f"nothing done: {getattr(answer, 'stands', answer)}")

    return {job_id: acted(job_id, answer) for job_id, answer in found.items()}


def _for(verb: Verb, where: Filter) -> Filter:
    states = (where.states or CAN[verb]) & CAN[verb]
    if not states:
        asked, can = ", ".join(sorted(where.states)), ", ".join(sorted(CAN[verb]))
        raise InvalidOption(f"{verb}: no job that is {asked} can be; only those that are {can}")
    return replace(where, states=states)


def _spelled(where: Filter) -> str:
    """A filter in words: `state=dead queue=reports`."""
    said = {each.name: getattr(where, each.name) for each in fields(where)}
    states = ",".join(sorted(where.states))
    rest = [f"{name}={value}" for name, value in said.items() if name not in ("states", "guards") and value is not None]
    return " ".join([f"state={states}", *rest])


def _edits(meta: Mapping[str, str]) -> list[Edited]:
    try:
        return _decode_edits(meta[EDITS]) if EDITS in meta else []
    except msgspec.DecodeError:
        return []  # somebody's own, under our name


_decode_edits = msgspec.json.Decoder(list[Edited]).decode
