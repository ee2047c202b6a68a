"""The Redis store, for Redis and Valkey: fast, and as durable as its append-only file (docs/delivery.md).

Every transition is one Lua script in `lua/`, with the lease compared inside and the server's TIME for a clock. All keys
of a namespace begin with one hash tag, so they live on one node of a cluster:

    {tenure}:job:ID        hash    the job: state, lease (attempt, worker_id), payload, budgets spent, progress, result
    {tenure}:ready:QUEUE   zset    queued jobs, in order of priority, run_at, id: the score is priority, then time
    {tenure}:solo:QUEUE    zset    the same of those that must run alone
    {tenure}:scheduled     zset    by the time they are due
    {tenure}:processing:WORKER   hash  the leases a worker holds: job → attempt; `owners` is the set of who holds any
    {tenure}:stale         zset    those of them that must show progress, by the time they will have hung
    {tenure}:completed, cancelled, dead    zset    by the time they ended
    {tenure}:jobs          zset    all of them, by id
    {tenure}:attempts:ID, once:ID, log:ID  hash  ended attempts by number, first results by key, logs by attempt
    {tenure}:unique        hash    TASK NUL KEY → the live job that holds it
    {tenure}:schedule:NAME hash    rev and body of a schedule; `schedules` is a zset of the names, `due` one by due_at
    {tenure}:ticks:NAME    zset    its ticks by their time, MS|CAUSE; `tick:NAME` is the hash of their bodies
    {tenure}:open:NAME     zset    those of them whose runs go on; `open` is a hash of all such: MS|CAUSE|NAME → job
    {tenure}:decided       zset    the other ticks of all, MS|CAUSE|NAME, by the time they were decided
    {tenure}:notes         hash    key → when it is over, =, text; `noted` is a zset of the keys, `fading` by time
    {tenure}:worker:ID     hash    a worker; `alive` is a zset by the end of its lease, `died` by the time of death
    {tenure}:queues set, paused hash, scheduled_of hash (how many of each queue), bell stream, schema

`decide` stays in Python: what it has to know is read first, and the script that ends an attempt compares it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from itertools import chain
from random import random
from typing import Any

import msgspec

from tenure.core.clock import Clock
from tenure.core.lifecycle import (
    Charges,
    Completed,
    Crashed,
    Lease,
    Outcome,
    State,
    decide,
    error_after,
    outcome_name,
    reason_of,
)
from tenure.errors import BadData, StoreAway, StoreError
from tenure.ports import (
    NO_EDITS,
    Answer,
    AttemptView,
    Busy,
    Capabilities,
    Claimed,
    Draft,
    Edit,
    Ended,
    Enqueued,
    Filter,
    Hung,
    JobView,
    Landed,
    NotLanded,
    OnceRecord,
    Owned,
    Page,
    Progress,
    Promoted,
    QueueView,
    Rescued,
    WorkerIdentity,
    WorkerView,
)
from tenure.ports.schedules import Change, Due, Standing, Swapped, Tick
from tenure.stores.outcomes import (
    COMPLETED,
    RESCUES,
    Cause,
    check_edits,
    check_outcome,
    check_text,
    cleared,
    encode,
    standing,
)
from tenure.stores.redis import reads, schedules
from tenure.stores.redis.drafts import MOST, batches, check, values
from tenure.stores.redis.facts import decode_facts, millis, with_meta
from tenure.stores.redis.server import Server

_End = tuple[int, Lease, Outcome]  #: with its place in the batch
_Taken = tuple[Sequence[Any], Outcome, Cause]  #: what `lost` and `held` answer of a job, how it ends, why

SCHEMA = 1
MOST_CLAIMED = 500
WORKER_KEPT = 86_400_000  #: milliseconds a worker's row outlives its death
_TRIES = 20
_STATES = {1: State.QUEUED, 2: State.SCHEDULED}
CHANGED = 2  #: `replay`: decided by facts that are no longer so
_NO_PAST = ("0", "0", None, 0)
_decode = msgspec.json.decode


class RedisStore:
    """`RedisStore("redis://me@host/0")`, `valkey://…`, `rediss://…` or `redis+sentinel://…`; needs no migration.

    With `rings` its scripts ring the doorbell themselves, so that nobody has to do it after them.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "tenure",
        password: str | None = None,
        clock: Clock | None = None,
        rings: bool = False,
    ) -> None:
        self._server = Server(url, namespace, password, clock, rings=rings)
        self.capabilities = Capabilities(transactions=False, durable=True, steady_clock=False, local=self._server.local)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def server(self) -> Server:
        """For a notifier, which needs connections of its own."""
        return self._server

    def migrate(self) -> int:
        return SCHEMA

    def open(self) -> None:
        self._server.open(SCHEMA)

    def close(self) -> None:
        self._server.close()

    def now(self) -> datetime:
        return reads.instant(self._server.call("now"))

    def transaction(self) -> AbstractContextManager[Any]:
        raise StoreError(_NO_TRANSACTIONS)

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        """As the port says; but of more than 200 jobs some may be stored when it breaks off: send them all again."""
        if tx is not None:
            raise StoreError(_NO_TRANSACTIONS)
        for draft in drafts:
            check(draft)
        answers: list[Enqueued] = []
        sent = list(batches(drafts, lambda draft: len(draft.payload)))
        for batch, told in zip(sent, self._server.call_each("enqueue", sent, values), strict=True):
            for draft, answer in zip(batch, told, strict=True):
                if isinstance(answer, int):
                    answers.append(Enqueued(draft.id, True, _STATES[answer]))
                else:
                    answers.append(Enqueued(answer[0], False, State(answer[1])))
        return answers

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        return self._states("cancel", ids, reason)

    def promote(self, *, limit: int = 1000) -> Promoted:
        jobs: dict[str, list[str]] = {}
        while True:
            next_due, *moved = self._server.call("promote", min(limit, MOST))
            for queue, job_id in zip(moved[::2], moved[1::2], strict=True):
                jobs.setdefault(queue, []).append(job_id)
            limit -= len(moved) // 2
            if not limit or len(moved) // 2 < MOST:
                return Promoted(jobs, None if next_due is None else next_due / 1000)

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        return self._states("promote_now", ids)

    def replay(self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS) -> dict[str, Answer | None]:
        wanted = list(dict.fromkeys(ids))
        check_edits(wanted, edits)
        answers: dict[str, Answer | None] = {}
        waiting = [each for each in wanted if reads.is_id(each)]
        for _ in range(_TRIES):
            again: list[str] = []
            asked = [(each, *self._edited(each, edits.get(each))) for each in waiting]
            for batch in batches(asked, lambda each: sum(map(len, each))):
                told = self._server.call("replay", *chain.from_iterable(batch))
                for (job_id, *_), answer in zip(batch, told, strict=True):
                    if answer == CHANGED:
                        again.append(job_id)
                    else:
                        answers[job_id] = _replayed(answer)
            if not again:
                return {each: answers.get(each) for each in wanted}
            waiting = again
        raise StoreAway(f"{self.url}: what these jobs are changed faster than it could be read")

    def _edited(self, job_id: str, edit: Edit | None) -> tuple[str, str, str]:
        """As the script `replay` is given it: the facts it has, the facts it shall have, and the payload."""
        facts = edit and self._server.run("HGET", f"{self._server.prefix}job:{job_id}", "facts")
        return (facts, with_meta(facts, edit.meta), edit.payload) if edit and facts else ("", "", "")

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        answers: dict[str, Answer | None] = {}
        for job_id, state in self._states("delete", ids).items():
            if state is State.PROCESSING:
                answers[job_id] = NotLanded("the job is processing; cancel it first, then delete it")
            else:
                answers[job_id] = None if state is None else Landed(state)
        return answers

    def _states(self, script: str, ids: Iterable[str], *values: str) -> dict[str, State | None]:
        wanted = list(dict.fromkeys(ids))
        found: dict[str, State | None] = {}
        for batch in batches(wanted):
            known = [each for each in batch if reads.is_id(each)]
            told = dict(zip(known, self._server.call(script, *values, *known), strict=True)) if known else {}
            found |= {each: None if told.get(each) is None else State(told[each]) for each in batch}
        return found

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        ages = [("completed", keep), ("cancelled", keep)] + ([("dead", keep_dead)] if keep_dead is not None else [])
        gone = 0
        for state, age in ages:
            went = MOST
            while went == MOST and gone < limit:
                went = self._server.call("prune", state, millis(age), min(limit - gone, MOST))
                gone += went
        self._server.call("tidy", WORKER_KEPT)
        return gone

    # ── owners ──

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        left, claimed = dict(wants), list[Claimed]()
        while True:
            asked = min(limit - len(claimed), MOST_CLAIMED)
            asks = [each for want in left.items() for each in want]
            told = self._server.call("claim", worker_id, asked, int(solo), *asks)
            some = [_claimed(*told[place : place + 6]) for place in range(0, len(told), 6)]
            claimed += some
            if len(some) < MOST_CLAIMED:
                return claimed
            for each in some:
                left[each.queue] -= 1

    def owned(self, worker_id: str) -> list[Owned]:
        return [Owned(_claimed(*row[:6]), row[6]) for row in self._server.call("owned", worker_id)]

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        said_of: list[tuple[Any, ...]] = []
        for report in reports:
            check_text(report.stage, report.message, report.checkpoint, report.log)
            if report.fraction is not None and not 0 <= report.fraction <= 1:
                raise BadData(f"fraction: expected 0 to 1, got {report.fraction!r}")
            said = {
                "progress": report.fraction,
                "stage": report.stage,
                "message": report.message,
                "checkpoint": report.checkpoint,
                "log": report.log,
            }
            said_of.append((*_lease(report.lease), _json({k: v for k, v in said.items() if v is not None})))
        sent = list(batches(said_of, lambda each: len(each[3])))
        answers = self._server.call_each("progress", sent, lambda batch: list(chain.from_iterable(batch)))
        return [bool(landed) for told in answers for landed in told]

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        check_text(*(why for _, why in refusals))
        told = [(*_lease(lease), why) for lease, why in refusals]
        for batch in batches(told, lambda each: len(each[3])):
            self._server.call("refused", *chain.from_iterable(batch))

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        check_text(key, value)
        told = self._server.call("once", *_lease(lease), key, *([] if value is None else [value]))
        return None if told is None else OnceRecord(told[0])

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        if tx is not None:
            raise StoreError(_NO_TRANSACTIONS)
        for _, outcome in ends:
            check_outcome(outcome)
        landed: dict[int, Answer] = {}
        waiting: list[_End] = [(n, lease, outcome) for n, (lease, outcome) in enumerate(ends)]
        while waiting:  # of one lease twice in a batch, the first counts
            first = {lease: n for n, lease, _ in reversed(waiting)}
            landed |= self._finish([each for each in waiting if first[each[1]] == each[0]])
            waiting = [each for each in waiting if first[each[1]] != each[0]]
        return [landed[n] for n in range(len(ends))]

    def _finish(self, ends: Sequence[_End]) -> dict[int, Answer]:
        landed: dict[int, Answer] = {}
        for worker_id in dict.fromkeys(lease.worker_id for _, lease, _ in ends):
            mine = [(n, lease, end) for n, lease, end in ends if lease.worker_id == worker_id]
            landed |= self._complete(
                worker_id, [(n, lease, end) for n, lease, end in mine if isinstance(end, Completed)]
            )
        landed |= self._end([each for each in ends if not isinstance(each[2], Completed)])
        return landed

    def _complete(self, worker_id: str, done: Sequence[tuple[int, Lease, Completed]]) -> dict[int, Answer]:
        sent = list(batches(done, lambda each: len(each[2].result)))

        def told(batch: Sequence[tuple[int, Lease, Completed]]) -> list[Any]:
            return [worker_id, *(text for _, lease, end in batch for text in (lease.job_id, lease.attempt, end.result))]

        landed: dict[int, Answer] = {}
        for batch, refused in zip(sent, self._server.call_each("complete", sent, told), strict=True):
            landed |= dict.fromkeys((n for n, _, _ in batch), COMPLETED)
            for place, stands in refused:
                n, lease, outcome = batch[int(place)]
                landed[n] = _standing(lease, outcome, stands)
        return landed

    def _end(self, ends: Sequence[_End]) -> dict[int, Answer]:
        """End attempts otherwise than completed: read what each was charged, decide, and write if that still holds."""
        landed: dict[int, Answer] = {}
        for batch in batches(ends):
            waiting = list(batch)
            for _ in range(_TRIES):
                told = self._server.call("charges", *(text for _, lease, _ in waiting for text in _lease(lease)))
                written: list[tuple[int, State, str]] = []
                again: list[_End] = []
                for (n, lease, outcome), (held, *found) in zip(waiting, told, strict=True):
                    if not held:
                        landed[n] = _standing(lease, outcome, found[0])
                        continue
                    state, end = _decided(lease, outcome, found, None)
                    written.append((n, state, end))
                    again.append((n, lease, outcome))
                if not written:
                    break
                fits = self._server.call("end", "", *(end for _, _, end in written))
                landed |= {n: Landed(state) for (n, state, _), fit in zip(written, fits, strict=True) if fit}
                waiting = [each for each, fit in zip(again, fits, strict=True) if not fit]
                if not waiting:
                    break
            else:
                raise StoreAway(f"{self.url}: what these jobs were charged changed faster than it could be read")
        return landed

    # ── supervisors ──

    def register(self, worker: WorkerIdentity) -> None:
        check_text(worker.id)
        if not self._server.call("register", worker.id, millis(worker.lease), _json(worker)):
            raise StoreError(f"worker id {worker.id} was used before: every process start takes a new one")

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        said, sizes = notes or {}, memory or {}
        told = [text for each in worker_ids for text in (each, said.get(each, ""), sizes.get(each, ""))]
        return frozenset(self._server.call("renew", *told))

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(self._server.call("declare", *worker_ids))

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        died: frozenset[str] = frozenset()
        while True:
            more = self._server.call("declare_expired", witness or "", _until(until))
            died |= frozenset(more)
            if len(more) < MOST:
                return died

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> list[Rescued]:
        for outcome in (*verdicts.values(), rest):
            check_outcome(outcome)
        # All in one: a death that stood alone for a moment would let a scan charge these jobs with a crash.
        for _ in range(_TRIES):
            held = self._server.call("held", worker_id)
            taken: list[_Taken] = [(row, verdicts.get(row[0], rest), "crash") for row in held]
            rescued, ends = _taken(taken, lost=False)
            if self._server.call("end", worker_id, *ends) == [1]:
                return rescued
        raise StoreAway(f"{self.url}: what worker {worker_id} holds changed faster than it could be read")

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        return self._rescue(self._server.call("lost", min(limit, MOST)))

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        if not reads.is_id(job_id):
            return None
        told = self._server.call("redelivered", job_id, int(declare), witness or "", _until(until))
        if told is None:
            return None
        state, *lost = told
        return next(iter(self._rescue(lost, "queue")), State(state))

    def _rescue(self, lost: Sequence[Sequence[Any]], told: Cause | None = None) -> list[Rescued]:
        taken: list[_Taken] = []
        for row in lost:
            cause, outcome = RESCUES[row[3]]
            taken.append((row, replace(outcome, reason=outcome.reason.format(worker=row[2])), told or cause))
        if not taken:
            return []
        rescued, ends = _taken(taken, lost=True)
        fits = self._server.call("end", "", *ends)
        return [each for each, fit in zip(rescued, fits, strict=True) if fit]

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        rows = self._server.call("hung", *worker_ids)
        return [Hung(Lease(*row[:3]), decode_facts(row[3]).task, row[4] / 1000) for row in rows]

    def solo_waiting(self, queues: Sequence[str]) -> int:
        return int(self._server.call("solo_waiting", *queues))

    def upkeep(self) -> None:
        """Nothing: what the server does to its append-only file is its own business."""

    def pause(self, queue: str, *, paused: bool) -> bool:
        check_text(queue)
        return bool(self._server.call("pause", queue, int(paused)))

    def paused(self) -> frozenset[str]:
        return frozenset(self._server.run("HKEYS", f"{self._server.prefix}paused"))

    # ── schedules and notes ──

    def due(self, *, limit: int = 500) -> Due:
        return schedules.due(self._server, limit)

    def change(self, changes: Sequence[Change]) -> list[bool]:
        return schedules.change(self._server, changes)

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        if names is None:
            return schedules.everything(self._server)
        return schedules.read(self._server, sorted(set(names)))

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        return schedules.ticks(self._server, name, limit, before)

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        return schedules.forget(self._server, keep, limit)

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        return schedules.swap(self._server, key, old, new, ttl, drafts)

    def notes(self, prefix: str) -> dict[str, str]:
        return schedules.notes(self._server, prefix)

    # ── reads ──

    def get(self, job_id: str) -> JobView | None:
        return reads.views(self._server, [job_id])[0]

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        return reads.search(self._server, where, limit, cursor, within)

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        return reads.ended(self._server, since, until, most, sample)

    def logs(self, job_id: str) -> dict[int, str]:
        return reads.logs(self._server, job_id)

    def counts(self) -> dict[State, int]:
        return reads.counts(self._server)

    def attempts(self, job_id: str) -> list[AttemptView]:
        return reads.attempts(self._server, job_id)

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        return reads.workers(self._server, dead=dead)

    def queues(self) -> list[QueueView]:
        return reads.queues(self._server)


_NO_TRANSACTIONS = (
    "tx: a job in Redis can't join a transaction of another database, and Redis has none to lend: enqueue after the "
    "commit, or keep the jobs in PostgreSQL or SQLite"
)


# ── What scripts are given, and what they answer ────────────────────────────────────────────────────────────────


def _claimed(
    job_id: str, attempt: str, facts_text: str, payload: str, enqueued_at: str, past: Sequence[Any] | None
) -> Claimed:
    facts = decode_facts(facts_text)
    failures, crashes, checkpoint, expired = past or _NO_PAST
    return Claimed(
        job_id,
        int(attempt),
        facts.task,
        facts.queue,
        payload,
        int(failures),
        int(crashes),
        facts.meta,
        checkpoint,
        facts.timeout,
        facts.stale_after,
        int(enqueued_at),
        bool(expired),
    )


def _until(instant: datetime | None) -> str:
    return "" if instant is None else str(int(instant.timestamp() * 1000))


def _replayed(told: Any) -> Answer | None:
    if told is None:
        return None
    if told == 1:
        return Landed(State.QUEUED)
    if told == 0:
        return NotLanded("it ran under a guard: run its command again, with tenure guard … --force")
    if isinstance(told, str):
        return NotLanded(f"the job is {told}; only a job that has ended is replayed")
    return NotLanded(f"job {told[0]} holds its unique key and is {told[1]}")


def _lease(lease: Lease) -> tuple[str, int, str]:
    return lease.job_id, lease.attempt, lease.worker_id


def _standing(lease: Lease, outcome: Outcome, found: Sequence[Any]) -> Answer:
    state, attempt, worker_id, result, past = found
    result = "null" if result is None else result
    if state is None:
        return standing(lease, outcome, None, None)
    owner = worker_id if state == State.PROCESSING else None
    job = (state, attempt, owner, worker_id, "completed" if state == State.COMPLETED else "", result)
    told = None if past is None else _decode(past)
    return standing(lease, outcome, job, told and (told["worker"], told["outcome"]))


def _taken(rows: Sequence[_Taken], *, lost: bool) -> tuple[list[Rescued], list[str]]:
    """Attempts of owners that are gone: how they end, and the same as the script `end` is given it.

    Of each: id, attempt, worker, why, since when it is silent, and its charges.
    """
    rescued: list[Rescued] = []
    ends: list[str] = []
    for (job_id, attempt, worker_id, _, since, *charges), outcome, cause in rows:
        state, end = _decided(
            Lease(job_id, attempt, worker_id), outcome, charges, cleared(outcome), since if lost else None
        )
        facts = decode_facts(charges[0])
        ends.append(end)
        rescued.append(
            Rescued(
                id=job_id,
                task=facts.task,
                queue=facts.queue,
                attempt=attempt,
                worker_id=worker_id,
                cause=cause,
                state=state,
            )
        )
    return rescued, ends


def _decided(
    lease: Lease, outcome: Outcome, found: Sequence[Any], message: str | None, silent_since: int | None = None
) -> tuple[State, str]:
    """Where an outcome leads, and the same as the script `end` is given it: with the charges it was decided by."""
    facts_text, failures, crashes, total, cancel_reason = found
    facts = decode_facts(facts_text)
    seen = [int(failures), int(crashes), int(total)]
    charges = Charges(
        failures=seen[0],
        crashes=seen[1],
        crashes_total=seen[2],
        max_failures=facts.max_failures,
        max_crashes=facts.max_crashes,
        retry_base=facts.retry_base,
        retry_cap=facts.retry_cap,
        isolated=facts.isolated,
        cancel_asked=cancel_reason is not None,
    )
    decision = decide(charges, outcome, random())
    end: dict[str, Any] = {
        "id": lease.job_id,
        "attempt": lease.attempt,
        "worker": lease.worker_id,
        "seen": seen,
        "asked": cancel_reason,
        "lost": True if silent_since is not None else None,
        "silent_since": silent_since,
        "state": decision.state,
        "failures": decision.failures,
        "crashes": decision.crashes,
        "total": decision.crashes_total,
        "solo": decision.solo,
        "delay": None if decision.delay is None else millis(decision.delay),
        "error": error_after(outcome, decision.state, cancel_reason),
        "message": message,
    }
    if isinstance(outcome, Completed):
        end["result"] = outcome.result
    else:
        evidence = dict(outcome.evidence) if isinstance(outcome, Crashed) else {}
        end |= {"outcome": outcome_name(outcome), "reason": reason_of(outcome), "evidence": evidence}
    return decision.state, _json({name: value for name, value in end.items() if value is not None})


def _json(value: object) -> str:
    return encode(value).decode()
