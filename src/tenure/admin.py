"""Reading and acting, for people: the one way for the CLI, the API and the pages.

Whatever it shows has its secrets starred. Whatever it does, it rings the doorbell after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from tenure.arguments import redacted
from tenure.config import valid_name
from tenure.errors import UnknownJob
from tenure.explain import Explanation, explain
from tenure.lifecycle import ENDED, State
from tenure.ports import AttemptView, Filter, JobView, Landed, Notifier, Page, QueueView, Ring, Store, WorkerView
from tenure.schedule import Standing
from tenure.timetable import Timetable

_BATCH = 500
Verb = Literal["cancel", "promote", "replay", "delete"]


@dataclass(frozen=True, slots=True)
class Overview:
    """One reading of everything that moves. `rates` are ended jobs a second since the reading before it."""

    at: datetime
    counts: Mapping[State, int]
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerView, ...]
    rates: Mapping[State, float]


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job and those of its attempts that ended otherwise than Completed, oldest first."""

    job: JobView
    attempts: tuple[AttemptView, ...]


class JobRef(NamedTuple):
    id: str
    queue: str
    state: State


class Acted(NamedTuple):
    """What became of one job that an operator wanted something of. `says` is for people."""

    id: str
    landed: bool
    says: str


class Admin:
    """An operator's hands and eyes on a store."""

    def __init__(self, store: Store, notifier: Notifier) -> None:
        self.store = store
        self.notifier = notifier
        self.timetable = Timetable(store, notifier)

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

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None) -> Page:
        """Jobs, newest first."""
        page = self.store.search(where, limit=limit, cursor=cursor)
        return Page(tuple(map(_without_secrets, page.jobs)), page.cursor)

    def get(self, job_id: str) -> JobView:
        """Raises UnknownJob."""
        job = self.store.get(job_id)
        if job is None:
            raise UnknownJob(f"no job {job_id} in {self.store.url}: never enqueued there, deleted, or pruned")
        return _without_secrets(job)

    def show(self, job_id: str) -> JobDetail:
        """Raises UnknownJob."""
        return JobDetail(self.get(job_id), tuple(self.store.attempts(job_id)))

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
        return [_discreet(each) for each in found]

    def schedule(self, name: str) -> Standing:
        """One schedule as it stands now. Raises UnknownSchedule."""
        self.timetable.settle([self.timetable.get(name)])
        return _discreet(self.timetable.get(name))

    # ── acting ──

    def refs(self, where: Filter) -> list[JobRef]:
        """All jobs that match now, oldest first: count them, ask, then act on exactly these."""
        found: list[JobRef] = []
        cursor: str | None = None
        while True:
            page = self.store.search(where, limit=_BATCH, cursor=cursor)
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
        return self.store.pause(valid_name(queue, "queue"), paused=True)

    def resume(self, queue: str) -> bool:
        """False: it was not paused."""
        resumed = self.store.pause(valid_name(queue, "queue"), paused=False)
        self.notifier.announce([Ring("queued", queue)])
        return resumed


def metrics_text(store: Store) -> str:
    """The metrics of a whole store in Prometheus's text format, as `tenure worker --listen` shows them too."""
    from tenure import metrics

    return metrics.text(metrics.store_families(store)).decode()


def metrics_samples(store: Store) -> list[dict[str, Any]]:
    """The same numbers, each with its name and labels."""
    from tenure.metrics import store_families

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


def _without_secrets(job: JobView) -> JobView:
    return replace(job, payload=redacted(job.payload), result=_maybe(job.result), checkpoint=_maybe(job.checkpoint))


def _discreet(standing: Standing) -> Standing:
    job = standing.schedule.job
    schedule = replace(standing.schedule, job=replace(job, payload=redacted(job.payload)) if job else None)
    runs = tuple(run._replace(job=_without_secrets(run.job) if run.job else None) for run in standing.runs)
    return Standing(schedule, runs)


def _maybe(text: str | None) -> str | None:
    return None if text is None else redacted(text)
