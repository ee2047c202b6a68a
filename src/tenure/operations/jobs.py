"""Operator queries on jobs: search, count, show in detail, explain. Nothing here changes a job."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Literal, NamedTuple, get_args

import msgspec

from tenure.core.lifecycle import ENDED, LIVE, State
from tenure.errors import InvalidOption, UnknownJob
from tenure.operations import job_ids
from tenure.operations.access import Access
from tenure.operations.error_groups import ErrorGroups, grouped
from tenure.operations.explain import Explanation, explain
from tenure.operations.job_search import meets
from tenure.ports import EDITS, AttemptView, Ended, Filter, JobView, Page, Update
from tenure.worker.job_log import Log
from tenure.worker.job_log import decode as decode_log

BATCH = 500
_AT_ONCE = 50  #: jobs whose states are read at once: a completed one is read with its result
MOST_ENDED = 100_000  #: jobs counted at a time, for each ended state
WITHIN = 10_000  #: rows that one step of a long walk reads, so that no single read takes long
MOST_AT_ONCE = 10_000  #: jobs that one bulk action acts on; its result says if there are more
LOOK_SECONDS = 0.1  #: for one look at a page, so that others can use the store; the next look continues
_FIRST, _SMALLEST, _LARGEST = 1_000, 200, 20_000  #: jobs in a batch of a search
_GROUPED = 2_000  #: jobs whose errors are grouped
_QUICK = 0.01  #: seconds: a batch that takes less is followed by a larger one
Verb = Literal["cancel", "promote", "replay", "delete"]
VERBS: tuple[Verb, ...] = get_args(Verb)
#: The states that each verb applies to: a bulk action reads no other jobs.
CAN: Mapping[Verb, frozenset[State]] = {
    "cancel": LIVE,
    "promote": frozenset({State.SCHEDULED}),
    "replay": ENDED,
    "delete": frozenset(State) - {State.PROCESSING},
}
DONE: Mapping[Verb, str] = {
    "cancel": "cancelled or asked to stop",
    "promote": "queued",
    "replay": "queued again",
    "delete": "deleted",
}
_LATELY, _SOON = timedelta(minutes=15), timedelta(seconds=1)
SECRET = "$secret"  #: how a Secret is stored


@dataclass(frozen=True, slots=True)
class Edited:
    """An edit of a job's arguments before a replay: the previous arguments."""

    at: datetime
    who: str
    before: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job, its attempts that did not end as Completed, and its previous arguments; oldest first."""

    job: JobView
    attempts: tuple[AttemptView, ...]
    logs: Mapping[int, Log]  #: by attempt
    edits: tuple[Edited, ...] = ()

    @property
    def times(self) -> list[tuple[str, datetime]]:
        """Every known time of the job, with its name."""
        job = self.job
        times = [
            ("enqueued", job.enqueued_at),
            ("due", job.run_at),
            ("expires", job.expires_at),
            ("started", job.started_at),
            ("last activity", job.last_activity_at),
            ("ended", job.ended_at),
        ]
        return [(name, at) for name, at in times if at is not None]


class JobRef(NamedTuple):
    id: str
    queue: str
    state: State


class Acted(NamedTuple):
    """The result of an action on one job. `says` is for people."""

    id: str
    landed: bool
    says: str


class Bulk(NamedTuple):
    """The result of a bulk action. `cursor` continues with the jobs that it did not reach; None: there are none."""

    done: int
    refused: tuple[Acted, ...]  #: at most a hundred of them
    refusals: int
    cursor: str | None
    until: datetime | None = None  #: of a replay with a pace: when the last of the jobs is due


class Found(NamedTuple):
    """Jobs, newest first. `cursor` continues; None: there are no more."""

    jobs: tuple[JobView, ...]
    cursor: str | None = None
    looked: int = 0  #: if the search ended early: how many jobs it has looked at
    reached: datetime | None = None  #: and when the last of these was enqueued


class Counted(NamedTuple):
    """How many jobs a bulk action would find; with `more` at least that many."""

    jobs: int
    more: bool


class JobReads:
    """Queries on jobs. All results have their secrets redacted."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def no_such_task(self, name: str) -> str:
        """A sentence if neither a worker of the last day nor a job has a task of this name; else an empty text."""
        known = {task for row in self._access.store.workers(dead=True) for task in row.identity.tasks}
        if name in known or self._access.store.search(Filter(task=name), limit=1, within=WITHIN).jobs:
            return ""
        near = difflib.get_close_matches(name, known, n=3)
        which = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(sorted(known)[:10]) or 'none'}"
        return f"no worker of the last day and no job of this store has a task named {name!r}; {which}"

    def search(
        self, where: Filter, *, limit: int = 50, cursor: str | None = None, seconds: float = LOOK_SECONDS
    ) -> Found:
        """Jobs, newest first: read in batches until there are `limit`, or for about `seconds`.

        A batch takes a few milliseconds, so that a search holds up nothing. One that ends early says how far it has
        looked; its cursor continues from there.
        """
        found: list[JobView] = []
        until, size, largest, looked = monotonic() + seconds, _FIRST, _LARGEST, 0
        while True:
            began, room = monotonic(), limit - len(found)
            page, read = self._batch(where, room, cursor, size)
            if read < size:  # most jobs are candidates here
                size = largest = read
            found += page.jobs
            cursor = page.cursor
            if cursor is None or len(page.jobs) >= room:
                return Found(tuple(found), cursor)
            looked += size
            if monotonic() >= until:
                return Found(tuple(found), cursor, looked, page.reached)
            took = monotonic() - began
            if took < _QUICK:
                size = min(2 * size, largest)
            elif took > 3 * _QUICK:
                size = max(size // 2, _SMALLEST)

    def _batch(self, where: Filter, room: int, cursor: str | None, size: int) -> tuple[Page, int]:
        """The matches, redacted, among the next jobs, and how many those are: `size`, or fewer.

        If the page has a cursor, that is at a match or at the end of the batch, and never at a job that only a hidden
        value makes a candidate: a cursor there would reveal it.
        """
        search, redacted = self._access.store.search, self._access.redacted
        if not where.conditions:
            page = search(where, limit=room, cursor=cursor, within=size)
            return replace(page, jobs=tuple(map(redacted, page.jobs))), size
        page = search(where, limit=_SMALLEST, cursor=cursor, within=size)
        if len(page.jobs) == _SMALLEST < size:  # too many candidates for one batch: look at fewer
            size = _SMALLEST
            page = search(where, limit=size, cursor=cursor, within=size)
        jobs = [redacted(job) for job in page.jobs]
        at = [place for place, job in enumerate(jobs) if meets(job, where)]
        if len(at) > room:
            page = search(where, limit=at[room - 1] + 1, cursor=cursor, within=size)
            jobs = [redacted(job) for job in page.jobs]
        return replace(page, jobs=tuple(job for job in jobs if meets(job, where))), size

    def errors(self, where: Filter, *, seconds: float = LOOK_SECONDS) -> ErrorGroups:
        """The newest jobs that match, at most 2,000, grouped by what their errors have in common."""
        found = self.search(where, limit=_GROUPED, seconds=seconds)
        return grouped(found.jobs, more=found.cursor is not None)

    def count(self, where: Filter, verb: Verb, *, cursor: str | None = None) -> Counted:
        """How many jobs `act_on_all` would find, up to ten thousand."""
        found = 0
        for page in self.matches(actionable(verb, where), cursor, MOST_AT_ONCE):
            found, cursor = found + len(page.jobs), page.cursor
        return Counted(found, more=cursor is not None)

    def matches(self, where: Filter, cursor: str | None = None, most: float = inf) -> Iterator[Page]:
        """All jobs to act on, or the first `most`, in pages of at most `BATCH`; fewer may have a cursor."""
        size = WITHIN
        while most > 0:
            # Where most jobs are candidates, the next step too looks at fewer: else its first read is for nothing.
            page, size = self._batch(where, int(min(BATCH, most)), cursor, size)
            yield page
            if (cursor := page.cursor) is None:
                return
            most -= len(page.jobs)

    def ended(self, since: datetime, until: datetime, *, sample: int = 100) -> Ended:
        """How many jobs ended in this span of time, and the wait and run times of the last ones."""
        return self._access.store.ended(since, until, most=MOST_ENDED, sample=sample)

    def completed(self, most: int) -> list[JobView]:
        """Jobs that completed within the last 15 minutes, newest first."""
        now, found = self._access.store.now(), list[JobView]()
        for job in self._access.store.ended(now - _LATELY, now + _SOON, most=1, sample=most).completed:
            with suppress(UnknownJob):  # deleted meanwhile
                found.append(self.get(job.id))
        return found

    def ended_last(self, state: State, most: int) -> list[JobView]:
        """The jobs of an ended state that ended last, latest first, without those of guards."""
        return list(map(self._access.redacted, self._access.store.latest_ended(state, limit=most)))

    def get(self, job_id: str) -> JobView:
        """Raises UnknownJob."""
        job = self._access.store.get(job_id)
        if job is None:
            raise UnknownJob(f"no job {job_id} in {self._access.store.url}: never enqueued there, deleted, or pruned")
        return self._access.redacted(job)

    def named(self, text: str, *, seconds: float = job_ids.LOOK_SECONDS) -> str:
        """The id of the one job whose id this is, begins or ends. Raises InvalidOption, UnknownJob."""
        return job_ids.whole(self._access.store, text, seconds=seconds)

    def updates(self, seen: Mapping[str, str], *, limit: int) -> list[Update]:
        """At most `limit` of the jobs whose mark is not the one in `seen`."""
        found = self._access.store.updates(seen, limit=limit)
        hide = self._access.stars.hide
        return [each if each.result is None else each._replace(result=hide(each.result)) for each in found]

    def show(self, job_id: str) -> JobDetail:
        """Raises UnknownJob."""
        job = self.get(job_id)
        logs = {attempt: decode_log(text) for attempt, text in self._access.store.logs(job_id).items()}
        stored = self._access.store.get(job_id)
        earlier = edits_in(stored.meta if stored else {})
        edits = tuple(replace(each, before=self._access.stars.hide(each.before)) for each in earlier)
        return JobDetail(job, tuple(self._access.store.attempts(job_id)), logs, edits)

    def explain(self, job_id: str) -> Explanation:
        """Why this job is not running, or how it ended. Raises UnknownJob."""
        return explain(self._access.store, self.get(job_id))

    def refs(self, where: Filter) -> list[JobRef]:
        """All jobs that match now, oldest first: count them, ask for confirmation, then act on exactly these."""
        found = [JobRef(job.id, job.queue, job.state) for page in self.matches(where) for job in page.jobs]
        return found[::-1]

    def states(self, ids: Sequence[str]) -> dict[str, State | None]:
        """The state of each of these jobs now. None: there is no such job."""
        found = dict[str, State | None]()
        for start in range(0, len(ids), _AT_ONCE):
            seen = dict.fromkeys(ids[start : start + _AT_ONCE], "")
            for each in self._access.store.updates(seen, limit=_AT_ONCE):
                found[each.id] = each.status.state if each.status else None
        return found

    def ref(self, job_id: str, among: frozenset[State] = frozenset()) -> JobRef:
        """One job, if it is in one of these states (none: any). Raises UnknownJob."""
        job = self.get(job_id)
        if among and job.state not in among:
            wanted = " or ".join(sorted(among))
            raise UnknownJob(f"job {job_id} is {job.state}, not {wanted}: see tenure jobs explain {job_id}")
        return JobRef(job.id, job.queue, job.state)


def is_secret(value: object) -> bool:
    return isinstance(value, dict) and SECRET in value


def actionable(verb: Verb, where: Filter) -> Filter:
    """The filter, restricted to the states that this verb applies to. Raises InvalidOption."""
    states = (where.states or CAN[verb]) & CAN[verb]
    if not states:
        asked, can = ", ".join(sorted(where.states)), ", ".join(sorted(CAN[verb]))
        raise InvalidOption(f"{verb}: no job that is {asked} can be; only those that are {can}")
    return replace(where, states=states)


def edits_in(meta: Mapping[str, str]) -> list[Edited]:
    """The previous arguments, oldest first."""
    try:
        return _decode_edits(meta[EDITS]) if EDITS in meta else []
    except msgspec.DecodeError:
        return []  # the user's own meta, under our key


_decode_edits = msgspec.json.Decoder(list[Edited]).decode
