"""How a running job waits: for jobs that it gathers or joins, and for signals.

A wait gives the slot back: the attempt ends as Suspended, uncharged, and when what it waits for has happened, the
handler runs again from the top. So each wait must find again what it began. `gather` records the list of its jobs
under the lease before it stores them, and then the ids of those stored; `expect` records the value that it consumed, or
that its time ran out. All of that is kept as `job.once` keeps results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from inspect import isawaitable
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from tenure.core.durations import Duration
from tenure.core.lifecycle import ENDED, Edge, State, Suspended
from tenure.core.retry import Fail
from tenure.errors import InvalidArguments, InvalidOption, Locked, Refused, StoreError, TenureError, UnknownJob
from tenure.ports import MOST_EDGES, Claimed, Draft, Enqueued, Input, Links, Store, Text
from tenure.tasks.arguments import decode_any, error_of, readable
from tenure.tasks.circles import announced, circle, told, withdrawn
from tenure.tasks.client import in_transaction
from tenure.tasks.edges import check_store
from tenure.tasks.ended import Ended
from tenure.tasks.expects import Asked, asked_for
from tenure.tasks.gathered import Gathered, new_jobs
from tenure.tasks.handle import JobHandle
from tenure.tasks.in_use import KeysInUse
from tenure.tasks.loops import settled
from tenure.tasks.placeholders import Source, marked
from tenure.tasks.signals import fitting
from tenure.tasks.suspends import Suspend as Suspend
from tenure.tasks.suspends import Suspends
from tenure.tasks.suspends import together as together
from tenure.tasks.task import NewJob, Task

PAGE = 200  #: edges read at once
CHUNK = 200_000  #: characters of a list in one record
_MINE = "\x1f"  #: no handler's own key begins like this
_encode, _decode = msgspec.json.encode, msgspec.json.decode
_DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(Draft)}


class Waiting(Protocol):
    """What waits need of the attempt."""

    @property
    def claimed(self) -> Claimed: ...
    @property
    def task(self) -> Task[..., Any]: ...
    @property
    def store(self) -> Store: ...

    def recall(self, key: str) -> str | None: ...
    def record(self, key: str, value: str) -> str: ...
    def check(self) -> None:
        """Raise JobStopped or LeaseLost if this attempt is to stop."""
        ...

    def waits_for_others(self) -> bool: ...

    def misfit(self, why: str) -> Exception:
        """What to raise for stored values that do not fit this code."""
        ...


class _Plan(NamedTuple):
    """What is known of a gather: its jobs, and the ids of those stored. None: not yet recorded."""

    key: str  #: of its records
    drafts: list[Draft] | None = None
    ids: list[str] | None = None
    known: dict[str, Input] | None = None  #: the jobs by id, if they were read for this


class Waits:
    """The waits of one attempt. Used by the threads and tasks of its handler."""

    def __init__(self, attempt: Waiting) -> None:
        self._attempt = attempt
        self._keys = KeysInUse()
        self._gathered = Gathered()
        self.suspends = Suspends()
        self._too_late = set[str]()  #: names of waits whose time-out ends the job

    @property
    def suspended(self) -> Suspend | None:
        """What was raised in the handler, which must not swallow it."""
        return self.suspends.first

    # ── gather ──

    def gather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]:
        with self._begun("gather", key), self._gathered.once(key):
            plan = self._plan(key)
            if plan.drafts is None and plan.ids is None:
                plan = self._list(key, plan, _drafts(self._attempt, key, fn(), ended=ended))
            if plan.ids is None:
                plan = self._store(key, plan)
            return self._results(key, plan, ended=ended)

    async def agather(self, key: str, fn: Callable[[], Any], *, ended: bool) -> list[Any]:
        with self._begun("agather", key), self._gathered.once(key):
            plan = await settled(partial(self._plan, key))
            if plan.drafts is None and plan.ids is None:
                jobs = fn()
                drafts = _drafts(self._attempt, key, await jobs if isawaitable(jobs) else jobs, ended=ended)
                plan = await self._alist(key, plan, drafts)
            if plan.ids is None:
                plan = await self._astore(key, plan)
            return await settled(partial(self._results, key, plan, ended=ended))

    def _plan(self, key: str) -> _Plan:
        """The records of this gather. A list is given up when some of its jobs are no longer waited for.

        That is so after a replay of this job, if they had not ended as it needs. Other arguments make another list.
        """
        digest = sha256(self._attempt.claimed.payload.encode()).hexdigest()[:16]
        generation, known = 0, None
        while True:
            records = f"{_MINE}gather {digest} {generation} {key}"
            ids = self._attempt.recall(f"{records}{_MINE}ids")
            if ids is None:
                head = self._attempt.recall(records)
                drafts = None if head is None else self._recalled(records, head)
                if drafts is None:
                    return _Plan(records)
                known = self._known() if known is None else known
                if not self._given_up(drafts, known):
                    return _Plan(records, drafts)
                generation += 1
                continue
            plan = _Plan(records, ids=_decode(ids, type=list[str]))
            if plan.ids:
                known = self._known() if known is None else known
                plan = plan._replace(known=known)
            if known is None or known.keys() >= set(plan.ids or ()):
                return plan
            generation += 1

    def _given_up(self, drafts: Iterable[Draft], known: Mapping[str, Input]) -> bool:
        """A process stored these jobs just before it died: has a replay of this job let go of some since?"""
        views = (self._attempt.store.get(draft.id) for draft in drafts if draft.id not in known)
        return any(view is not None and view.state in ENDED for view in views)

    def _list(self, key: str, plan: _Plan, drafts: list[Draft]) -> _Plan:
        """Record the list of jobs: from now on the function is not called again."""
        texts = [_written(draft) for draft in drafts]
        chunks, size = list[list[msgspec.Raw]]([[]]), 0
        for text in texts:
            if size + len(text) > CHUNK and chunks[-1]:
                chunks.append([])
                size = 0
            chunks[-1].append(msgspec.Raw(text))
            size += len(text)
        own_run = drafts[0].id if drafts else ""  # an earlier call may have recorded some chunks of another list
        for number, chunk in enumerate(chunks[1:]):
            self._attempt.record(f"{plan.key}{_MINE}{own_run} {number}", _encode(chunk).decode())
        head = _encode([len(chunks) - 1, own_run, chunks[0]]).decode()
        recorded = self._attempt.record(plan.key, head)
        return plan._replace(drafts=drafts if recorded == head else self._recalled(plan.key, recorded))

    async def _alist(self, key: str, plan: _Plan, drafts: list[Draft]) -> _Plan:
        return await settled(partial(self._list, key, plan, drafts))

    def _recalled(self, records: str, head: str) -> list[Draft]:
        more, own_run, first = _decode(head, type=tuple[int, str, list[Draft]])
        drafts = first
        for number in range(more):
            chunk = self._attempt.recall(f"{records}{_MINE}{own_run} {number}")
            drafts += _decode(chunk or "[]", type=list[Draft])
        return drafts

    def _store(self, key: str, plan: _Plan) -> _Plan:
        """Store the jobs, and record the ids: a unique key may be held by another job, which then counts."""
        drafts = plan.drafts or []
        # Apart from a transaction of the handler, which the suspension undoes.
        answers = self._attempt.task.app.client().enqueue_apart(drafts)
        self._refuse_circles(key, drafts, answers)
        ids = self._attempt.record(f"{plan.key}{_MINE}ids", _encode([answer.id for answer in answers]).decode())
        return plan._replace(ids=_decode(ids, type=list[str]))

    def _refuse_circles(self, key: str, drafts: Sequence[Draft], answers: Sequence[Enqueued]) -> None:
        """Raise a final Fail if one of these jobs waits for this one. A new one can only if it has an `after`.

        The jobs are stored by now: of two that gather each other at the same time, at least one sees the other's edge.
        """
        both = zip(drafts, answers, strict=True)
        suspect = [answer.id for draft, answer in both if answer.id != draft.id or (draft.links and draft.links.after)]
        found = circle(self._attempt.store, self._attempt.claimed.id, suspect)
        if found:
            raise Fail(f"job.gather({key!r}): {told(found)}", final=True)

    async def _astore(self, key: str, plan: _Plan) -> _Plan:
        return await settled(partial(self._store, key, plan))

    def _results(self, key: str, plan: _Plan, *, ended: bool) -> list[Any]:
        ids = plan.ids or []
        known = (plan.known or self._known()) if ids else {}
        found = [known[job_id] for job_id in ids if job_id in known]
        waits = _gathers(key, ids, found, ended=ended)
        if waits:
            raise self._suspend(waits)
        given = [each for each in found if not each.skipped]
        return [self._end(each) if ended else self._value(each) for each in given]

    def _known(self) -> dict[str, Input]:
        """The jobs that this one waits for, by id."""
        start, known = 0, dict[str, Input]()
        while True:
            page = self._attempt.store.inputs(self._attempt.claimed.id, start=start, limit=PAGE)
            known |= {each.parent: each for each in page}
            if len(page) < PAGE:
                return known
            start = page[-1].place + 1

    def _value(self, each: Input) -> Any:
        return self._decoded(each.task, each.parent, each.result)

    def _decoded(self, task: str | None, job_id: str, result: str | None) -> Any:
        known = self._attempt.task.app.tasks.find(task or "")
        decode = decode_any if known is None else known.decode_result
        try:
            return decode(self._attempt.store.fetch(Text("result", job_id, "", result or "null")))
        except Locked:
            raise
        except (TenureError, msgspec.DecodeError) as error:
            why = f"{error}; it is the result of {task} {job_id}"
            raise self._attempt.misfit(why) from InvalidArguments(why)

    def _end(self, each: Input) -> Ended[Any]:
        return self._ended(each.parent, each.task, each.state or State.CANCELLED, each.result, error_of(each))

    def _ended(self, job_id: str, task: str | None, state: State, result: str | None, error: str) -> Ended[Any]:
        app = self._attempt.task.app
        value = self._decoded(task, job_id, result) if state is State.COMPLETED else None
        known = app.tasks.find(task or "")
        decode = decode_any if known is None else known.decode_result
        shown = "" if state is State.COMPLETED else error
        return Ended(state, value=value, error=shown, id=job_id, app=app, decode=decode)

    # ── join ──

    def join(self, target: object) -> Ended[Any]:
        job_id = self._target(target)
        with self._begun("join", job_id):
            return self._joined(job_id)

    async def ajoin(self, target: object) -> Ended[Any]:
        job_id = self._target(target)
        with self._begun("ajoin", job_id):
            return await settled(partial(self._joined, job_id))

    def _target(self, target: object) -> str:
        handle = target.handle if isinstance(target, Source) else target
        if isinstance(handle, JobHandle):
            found = cast("JobHandle[Any]", cast("object", handle))
            check_store(self._attempt.task.app, found, "job.join")
            return str(found.id)
        raise InvalidOption(f"job.join: expected a handle or a step, got {target!r:.80}")

    def _joined(self, job_id: str) -> Ended[Any]:
        attempt, records = self._attempt, f"{_MINE}joined {job_id}"
        (update,) = attempt.store.updates({job_id: ""})
        status = update.status
        if status is None:
            recorded = attempt.recall(records)
            if recorded is None:
                raise UnknownJob(f"job.join: there is no job {job_id}: it was never enqueued, or was deleted")
            return self._ended(job_id, *_decode(recorded, type=tuple[str, State, str | None, str]))
        if status.state in ENDED:
            error = readable(f"the error of {status.task} {job_id}", update.unread or status.error or "")
            error, result = error or status.cancel_reason or "", update.result
            if status.state is State.COMPLETED:
                result = attempt.store.fetch(Text("result", job_id, "", result or "null"))
            ended = self._ended(job_id, status.task, status.state, result, error)
            # No edge keeps a job that had ended: a later attempt may not find it any more.
            attempt.record(records, _encode([status.task, status.state, result, error]).decode())
            return ended
        self._refuse_circle(job_id)
        raise self._suspend(Suspended(f"waits for {status.task} {job_id} to end", after=(Edge(job_id, "ended"),)))

    def _refuse_circle(self, job_id: str) -> None:
        """Raise Refused if that job waits for this one, or is about to: neither would ever end."""
        mine, attempt = self._attempt.claimed.id, self._attempt.claimed.attempt
        self._attempt.record(announced(attempt, job_id), "true")
        if circle(self._attempt.store, mine, [job_id]):
            self._attempt.record(withdrawn(attempt, job_id), "true")
            raise Refused(f"job.join: job {job_id} waits for this job, {mine}: neither would ever end")

    # ── expect ──

    def expect(
        self, signal: str, kind: Any, *, timeout: Duration | None, default: object, name: str | None, shared: bool
    ) -> Any:
        asked = asked_for(self._attempt.task, signal, kind, timeout, default, name, shared=shared)
        with self._begun("expect", asked.name):
            return asked.heard(self._decide(asked.name, asked))

    async def aexpect(
        self, signal: str, kind: Any, *, timeout: Duration | None, default: object, name: str | None, shared: bool
    ) -> Any:
        asked = asked_for(self._attempt.task, signal, kind, timeout, default, name, shared=shared)
        with self._begun("aexpect", asked.name):
            try:
                return asked.heard(await self._adecide(asked.name, asked))
            except Fail:
                raise
            except BaseException:  # cancelled, as beside a task that waits: the handler may never see the time-out
                if asked.name in self._too_late:
                    self.suspends.late.append(asked.late)
                raise

    def _decide(self, key: str, asked: Asked) -> str:
        """The record of how this wait ended. Raises Suspend if it has not."""
        attempt, records = self._attempt, f"{_MINE}expect {asked.key}{_MINE}{key}"
        generation = 0
        while (recorded := attempt.recall(records)) is not None:
            if not asked.is_anew(recorded, attempt.claimed, attempt.store):
                return self._noted(asked, recorded)
            generation += 1
            records = f"{_MINE}expect {asked.key}{_MINE}{key}{_MINE}{generation}"
        left = None
        if asked.timeout is not None:  # the clock is read before the signals: one that was sent in time is not lost
            now = attempt.store.now().timestamp()
            left = float(attempt.record(f"{records}{_MINE}until", str(now + asked.timeout))) - now
        owner = None if asked.task is None else attempt.claimed.id
        found = attempt.store.signals(owner, [asked.key])
        if found:
            fitting(asked.what, asked.kind, found[0].value)
            return attempt.record(records, _encode({"value": msgspec.Raw(found[0].value.encode())}).decode())
        if left is not None and left <= 0:
            return self._noted(asked, attempt.record(records, _encode({"attempt": attempt.claimed.attempt}).decode()))
        raise self._suspend(Suspended(f"waits for the {asked.what}", signal=asked.key, timeout=left))

    def _noted(self, asked: Asked, record: str) -> str:
        if asked.is_fatal(record):
            self._too_late.add(asked.name)
        return record

    async def _adecide(self, key: str, asked: Asked) -> str:
        return await settled(partial(self._decide, key, asked))

    # ── all of them ──

    @contextmanager
    def _begun(self, verb: str, key: str) -> Generator[None]:
        """One call at a time for each key, and none where waiting is not allowed."""
        what = f"job.{verb}({key!r})"
        self._attempt.check()
        if in_transaction():
            raise StoreError(f"{what} inside jobs.transaction(): it may end this attempt; call it before or after it")
        name = marked(self._attempt.claimed.payload)
        if name and not self._attempt.waits_for_others():
            raise InvalidArguments(
                f"{what}: the argument {name!r} of this job has the shape of a marker for another job's result; a job "
                "that waits can't have one: rename its key, or wrap it in another object"
            )
        with self._keys.alone(verb, key, word="name=" if "expect" in verb else "key"):
            yield

    def _suspend(self, outcome: Suspended) -> Suspend:
        return self.suspends.add(outcome)


def _drafts(attempt: Waiting, key: str, jobs: object, *, ended: bool) -> list[Draft]:
    what = f"job.gather({key!r})"
    links = Links(gatherer=attempt.claimed.id, gathered="ended" if ended else "completed")
    drafts: list[Draft] = []
    for job in new_jobs(what, jobs):
        if job.tx is not None:
            raise InvalidOption(f"{what}: {job!r} is to join a transaction; a gather stores its jobs by itself")
        bound = cast("NewJob[Any]", cast("object", job))
        check_store(attempt.task.app, bound.of.handle(bound.id), what)
        draft = job.draft()
        drafts.append(draft.but(links=replace(links, after=draft.links.after if draft.links else ())))
    if len(drafts) > MOST_EDGES:
        raise InvalidOption(f"{what}: a job can gather at most {MOST_EDGES:,} others, got {len(drafts):,}")
    return drafts


def _gathers(key: str, ids: Sequence[str], found: Sequence[Input], *, ended: bool) -> Suspended | None:
    """The wait for those that have not ended. One that had ended, and was replayed since, needs its edge again."""
    live = [each for each in found if not _is_over(each, ended=ended)]
    left = len(live) + len(ids) - len(found)
    again = tuple(Edge(each.parent, "ended" if ended else "completed") for each in live if not each.open)
    return Suspended(f"gathers {key!r}: {left} of {len(ids)} jobs have not ended", after=again) if left else None


def _is_over(each: Input, *, ended: bool) -> bool:
    return each.skipped or each.state is State.COMPLETED or (ended and (each.state is None or each.state in ENDED))


def _written(draft: Draft) -> bytes:
    """The draft as JSON, without fields at their defaults."""
    return _encode({name: value for name in _DEFAULTS if (value := getattr(draft, name)) != _DEFAULTS[name]})
