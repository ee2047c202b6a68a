"""The PostgreSQL store: many machines, one server.

How it keeps the promises of `ports.Store`:

1. Every verb is one statement where it can be; its guard (state, attempt and worker of the lease) stands in the very
   statement that writes. Where `decide` is needed, the rows are locked in the order of their ids first.
2. All times are the server's. No clock of a worker decides anything.
3. Claims and outcomes are committed with the server's full durability, whatever the role's default is.
4. Statements are written so that one index fits (statements.py); a test reads their plans.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from random import random
from time import monotonic
from typing import Any, LiteralString, TypeVar

import psycopg

from tenure.core.clock import Clock
from tenure.core.lifecycle import (
    ENDED,
    Charges,
    Completed,
    Lease,
    Outcome,
    State,
    decide,
    error_after,
    outcome_name,
    reason_of,
)
from tenure.errors import BadData, LeaseLost, StoreBusy, StoreError
from tenure.ports import (
    NO_EDITS,
    Answer,
    AttemptView,
    Awaited,
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
    evidence_of,
    standing,
)
from tenure.stores.postgres import operators, reads, schedules, statements
from tenure.stores.postgres.commits import STATUS, CommitWatch
from tenure.stores.postgres.joins import WHERE, Database, Joins, Rows
from tenure.stores.postgres.marks import START, Marks, Place
from tenure.stores.postgres.server import Connection, Server, Transaction, run

T = TypeVar("T")
Steps = Generator[tuple[str, Any], Rows, T]  #: statements, each with one `:p`, and the value it stands for as JSON

_FACTS = tuple(field.name for field in fields(Draft))
COPY_FROM = 50  #: as many drafts are worth a COPY
COPY_AT_ONCE = 500
HELD_SECONDS = 0.5
OPERATED_SECONDS = 2.0  #: of a verb's eight; what it has locked by then is let go, too
WARY_SECONDS = 5.0
MARK_FROM = 50  #: a batch of so many may be one of a long queue
_ENQUEUE_TRIES = 5


class PostgresStore:
    """`PostgresStore("postgresql://user@host/database")`. Its tables are made by `migrate`, in a schema of its own."""

    capabilities = Capabilities(transactions=True, durable=True, steady_clock=False, local=False)

    def __init__(
        self, url: str, *, schema: str = "tenure", password: str | None = None, clock: Clock | None = None
    ) -> None:
        self._server = Server(url, schema, password, clock)
        self._sql = self._server.sql
        self._joins = Joins(self._here)
        self._wary_until = 0.0
        self._marks = (Marks(), Marks())  # for ordinary jobs, and for those that must run alone
        self._commits: CommitWatch | None = None

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def conninfo(self) -> str:
        """How to connect, with the password: for a notifier, never for a person."""
        return self._server.conninfo

    def migrate(self) -> int:
        return self._server.migrate()

    def open(self) -> None:
        self._server.open()
        self._commits = CommitWatch(self._ended)

    def close(self) -> None:
        if self._commits is not None:
            self._commits.close()
        self._server.close()

    def now(self) -> datetime:
        return self._server.fetch("SELECT @now")[0][0].astimezone(UTC)  # type: ignore[no-any-return]

    # ── transactions ──

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._server.transaction() as tx:
            yield tx
        for committed in tx.committed:
            committed()

    def _drive(self, steps: Steps[T], run: Callable[[LiteralString, str], Rows]) -> T:
        """Take a verb's steps, each with `run`: on a connection of ours, or in somebody's transaction."""
        try:
            sql, given = next(steps)
            while True:
                sql, given = steps.send(run(self._sql(sql), encode(given).decode()))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _within(self, tx: object) -> Callable[[LiteralString, str], Rows]:
        inner = tx.tx if isinstance(tx, Awaited) else tx
        if not isinstance(inner, Transaction):
            return partial(self._joins.run, tx)
        if inner.server is not self._server and (inner.server.conninfo, inner.server.schema) != (
            self._server.conninfo,
            self._server.schema,
        ):
            raise StoreError(
                f"tx is a transaction of {inner.server.url}, schema {inner.server.schema}: "
                f"the jobs are in {self.url}, schema {self._server.schema}"
            )
        return inner.run

    def _here(self) -> Database:
        return Database(*self._server.fetch(WHERE)[0])

    def _ended(self, xids: Sequence[str]) -> Mapping[str, str | None]:
        return dict(self._server.fetch(STATUS, list(xids)))

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        schedules.check_drafts(drafts)
        if tx is not None:
            answers, xid = self._drive(_enqueue(drafts), self._within(tx))
            if committed is not None and isinstance(tx, Transaction):
                tx.committed.append(committed)
            elif committed is not None and xid and self._commits is not None:
                self._commits.add(xid, committed)
            return answers
        if len(drafts) >= COPY_FROM and not any(draft.unique for draft in drafts):
            try:
                return self._server.run(lambda connection: self._copy(connection, drafts))
            except BadData as error:
                if not isinstance(error.__cause__, psycopg.errors.UniqueViolation):
                    raise
        if len(drafts) == 1:
            facts = {name: getattr(drafts[0], name) for name in _FACTS}
            one = self._sql(statements.ENQUEUE_ONE)
            rows = self._server.run(lambda connection: connection.execute(one, facts).fetchall())
            if rows:
                return [Enqueued(drafts[0].id, True, State(rows[0][0]))]
        return self._server.run(lambda connection: self._enqueue(connection, drafts))

    def _enqueue(self, connection: Connection, drafts: Sequence[Draft]) -> list[Enqueued]:
        return self._drive(_enqueue(drafts), partial(run, connection))[0]

    def _copy(self, connection: Connection, drafts: Sequence[Draft]) -> list[Enqueued]:
        now = connection.execute(self._sql("SELECT @now"), binary=True).fetchall()[0][0]
        answers: list[Enqueued] = []
        with connection.cursor() as cursor, cursor.copy(self._sql(statements.COPY)) as copy:
            for first in range(0, len(drafts), COPY_AT_ONCE):  # the server stores one part while we write the next
                lines, some = _lines(drafts[first : first + COPY_AT_ONCE], now)
                copy.write("".join(lines))
                answers += some
        return answers

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        return self._each(ids, lambda connection, job_id: operators.cancel(connection, self._sql, job_id, reason))

    def promote(self, *, limit: int = 1000) -> Promoted:
        def next_due() -> float | None:
            then: float | None = self._server.fetch(statements.NEXT_DUE)[0][0]
            return None if then is None else max(0.0, then)

        then = next_due()
        if then is None or then > 0:
            return Promoted({}, then)
        jobs: dict[str, list[str]] = {}
        for queue, job_id in self._server.fetch(statements.PROMOTE, limit):
            jobs.setdefault(queue, []).append(job_id)
        then = next_due()
        # Due, and not promoted: somebody holds it. Whoever asks again at once would ask for as long as that lasts.
        return Promoted(jobs, then if jobs or then is None else max(then, HELD_SECONDS))

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        return self._each(ids, lambda connection, job_id: operators.promote(connection, self._sql, job_id))

    def replay(self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS) -> dict[str, Answer | None]:
        wanted = list(ids)
        check_edits(wanted, edits)
        return self._each(wanted, lambda c, job_id: operators.replay(c, self._sql, job_id, edits.get(job_id)))

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return self._each(ids, lambda connection, job_id: operators.delete(connection, self._sql, job_id))

    def _each(self, ids: Iterable[str], step: Callable[[Connection, str], T]) -> dict[str, T | None]:
        """One after the other, in as many transactions as it takes: on a slow line hundreds don't fit into a verb."""
        answers: dict[str, T | None] = dict.fromkeys(ids)
        left = [job_id for job_id in answers if reads.is_id(job_id)]

        def some(connection: Connection) -> dict[str, T]:
            done, until = dict[str, T](), monotonic() + OPERATED_SECONDS
            for job_id in left:
                done[job_id] = step(connection, job_id)
                if monotonic() > until:
                    break
            return done

        while left:
            done = self._locking(some)
            answers.update(done)
            del left[: len(done)]
        return answers

    def _locking(self, call: Callable[[Connection], T]) -> T:
        """Several statements, one transaction."""

        def step(connection: Connection) -> T:
            with connection.transaction():
                return call(connection)

        return self._server.run(step)

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        ages = [("completed", keep), ("cancelled", keep)] + ([("dead", keep_dead)] if keep_dead is not None else [])
        gone = 0
        for state, age in ages:
            values = (state, age, limit - gone)
            gone += self._server.run(lambda c, values=values: c.execute(self._sql(statements.PRUNE), values).rowcount)  # type: ignore[misc]
        self._server.run(lambda connection: connection.execute(self._sql(statements.PRUNE_WORKERS)))
        return gone

    # ── owners ──

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        marks = self._marks[solo]
        marks.refresh()
        claimed = self._claim(worker_id, wants, limit, solo, [marks.of(queue) for queue in wants])
        if len(claimed) < limit and marks:
            left = {queue: want - sum(each.queue == queue for each in claimed) for queue, want in wants.items()}
            marks.clear()
            claimed += self._claim(worker_id, left, limit - len(claimed), solo, [START] * len(left))
        elif len(claimed) >= MARK_FROM and marks.wanted():
            with suppress(StoreError):  # it is a hint, and what was claimed must be handed over
                for last in {each.queue: each for each in claimed}.values():
                    for place in self._server.fetch(statements.PLACE, last.id):
                        marks.put(last.queue, place)
        return claimed

    def _claim(
        self, worker_id: str, wants: Mapping[str, int], limit: int, solo: bool, places: Sequence[Place]
    ) -> list[Claimed]:
        facts = {
            "queues": list(wants),
            "wants": list(wants.values()),
            "ranks": [place[0] for place in places],
            "times": [place[1] for place in places],
            "ids": [place[2] for place in places],
            "solo": solo,
            "worker": worker_id,
            "limit": limit,
        }
        sql = self._sql(statements.CLAIM)
        return self._server.run(
            lambda connection: list(map(Claimed._make, connection.execute(sql, facts, binary=True).fetchall()))
        )

    def owned(self, worker_id: str) -> list[Owned]:
        rows = self._server.fetch(statements.OWNED, worker_id)
        return [Owned(Claimed._make(row[:-1]), row[-1]) for row in rows]

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        for report in reports:
            check_text(report.stage, report.message, report.checkpoint, report.log)
        newest: dict[Lease, dict[str, Any]] = {}
        for report in sorted(reports, key=lambda report: report.lease):
            said = {name: getattr(report, name) for name in ("fraction", "stage", "message", "checkpoint", "log")}
            known = newest.setdefault(report.lease, _lease(report.lease))
            known.update({name: value for name, value in said.items() if value is not None})
        rows = list(newest.values())
        sql = statements.PROGRESS_LOGGED if any("log" in row for row in rows) else statements.PROGRESS
        landed = {Lease(*row) for row in self._server.fetch(sql, encode(rows).decode())}
        if len(landed) < len(rows):
            landed |= self._held(reports, landed)
        return [report.lease in landed for report in reports]

    def _held(self, reports: Sequence[Progress], landed: set[Lease]) -> set[Lease]:
        """Leases that stand while somebody's transaction holds their row. It may take a report, but no checkpoint."""
        missing = [report for report in reports if report.lease not in landed]
        answers = self._standing([(report.lease, Completed()) for report in missing])
        held = [report for report, answer in zip(missing, answers, strict=True) if isinstance(answer, Busy)]
        if any(report.checkpoint is not None for report in held):
            raise StoreBusy("somebody's open transaction holds the row of a job: its checkpoint can't be stored now")
        return {report.lease for report in held}

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        first: dict[Lease, dict[str, Any]] = {}
        for lease, why in refusals:
            check_text(why)
            first.setdefault(lease, {**_lease(lease), "why": why})
        sql, given = self._sql(statements.REFUSED), encode(list(first.values())).decode()
        self._server.run(lambda connection: connection.execute(sql, (given,)))

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        check_text(key, value)
        if value is None:
            rows = self._server.fetch(statements.ONCE_READ, *lease, key)
        else:
            rows = self._server.fetch(statements.ONCE_WRITE, *lease, key, value)
        return OnceRecord(rows[0][0]) if rows else None

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        for _, outcome in ends:
            check_outcome(outcome)
        if tx is not None:
            return self._drive(_finish_or_raise(ends), self._within(tx))
        landed: dict[Lease, Answer] = {}
        try:
            if monotonic() < self._wary_until:
                raise StoreBusy("a transaction held a row a moment ago")
            done = [(lease, outcome) for lease, outcome in ends if isinstance(outcome, Completed)]
            if len(done) < len(ends):
                landed = self._locking(lambda connection: self._drive(_finish(ends), partial(run, connection)))
            elif self._server.run(lambda connection: self._complete(connection, done)) == len(ends):
                return [COMPLETED] * len(ends)
        except StoreBusy:  # whoever holds one of these rows must not hold up the others
            landed = self._locking(lambda connection: self._drive(_finish_free(ends), partial(run, connection)))
        answers = self._standing([end for end in ends if end[0] not in landed])
        if any(isinstance(answer, Busy) for answer in answers):
            self._wary_until = monotonic() + WARY_SECONDS
        return [landed.get(lease) or answers.pop(0) for lease, _ in ends]

    def _complete(self, connection: Connection, done: Sequence[tuple[Lease, Completed]]) -> int:
        """How many landed, of one batch of each worker."""
        landed = 0
        for worker_id in dict.fromkeys(lease.worker_id for lease, _ in done):
            mine = sorted((end for end in done if end[0].worker_id == worker_id), key=itemgetter(0))
            values = (
                worker_id,
                "{" + ",".join(lease.job_id for lease, _ in mine) + "}",
                "{" + ",".join(str(lease.attempt) for lease, _ in mine) + "}",
                [outcome.result for _, outcome in mine],
            )
            landed += connection.execute(self._sql(statements.COMPLETE), values).rowcount
        return landed

    def _standing(self, ends: Sequence[tuple[Lease, Outcome]]) -> list[Answer | Busy]:
        """What to tell those that may not have landed just now."""
        return self._server.run(lambda connection: self._drive(_stands(ends), partial(run, connection)))

    # ── supervisors ──

    def register(self, worker: WorkerIdentity) -> None:
        values = (
            worker.id,
            worker.host,
            worker.pid,
            worker.started,
            worker.boot_id,
            worker.pid_namespace,
            worker.runner,
            encode(worker.queues).decode(),
            encode(worker.tasks).decode(),
            worker.slots,
            worker.lease,
            worker.lease,
        )
        if self._server.run(lambda c: c.execute(self._sql(statements.REGISTER), values).rowcount) == 0:
            raise StoreError(f"worker id {worker.id} was used before: every process start takes a new one")

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        ids, told, sizes = sorted(worker_ids), notes or {}, memory or {}
        rows = self._server.fetch(
            statements.RENEW, ids, [told.get(name, "") for name in ids], [sizes.get(name) for name in ids]
        )
        return frozenset(row[0] for row in rows)

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(row[0] for row in self._server.fetch(statements.DECLARE, list(worker_ids)))

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        sql, given = self._sql(statements.DECLARE_EXPIRED), {"id": None, "witness": witness, "until": until}
        return frozenset(row[0] for row in self._server.run(lambda each: each.execute(sql, given).fetchall()))

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> list[Rescued]:
        for outcome in (*verdicts.values(), rest):
            check_outcome(outcome)

        # All in one: a death that stood alone for a moment would let a scan charge these jobs with a crash. Rows that
        # the dead worker's own last transaction still holds are left to `rescue`: the server has yet to notice its end.
        def step(connection: Connection) -> list[Rescued]:
            connection.execute(self._sql(statements.DECLARE), ([worker_id],))
            held = connection.execute(self._sql(statements.HELD), (worker_id,)).fetchall()
            return self._take(connection, [(*row, worker_id, verdicts.get(row[0], rest), "crash") for row in held])

        return self._locking(step)

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        sql = self._sql(statements.TO_RESCUE)
        return self._locking(lambda connection: self._rescue(connection, sql, (limit,)))

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        if not reads.is_id(job_id):
            return None
        sql = self._sql(statements.REDELIVERED)

        def step(connection: Connection) -> Rescued | State | None:
            found = connection.execute(self._sql("SELECT state, worker_id FROM @.jobs WHERE id = %s"), (job_id,))
            row = found.fetchone()
            if row is None:
                return None
            if declare and row[1] is not None:
                given = {"id": row[1], "witness": witness, "until": until}
                connection.execute(self._sql(statements.DECLARE_EXPIRED), given)
            return next(iter(self._rescue(connection, sql, (job_id, 1), "queue")), State(row[0]))

        return self._locking(step)

    def _rescue(
        self, connection: Connection, sql: LiteralString, values: tuple[Any, ...], told: Cause | None = None
    ) -> list[Rescued]:
        taken: list[tuple[Any, ...]] = []
        for *row, worker_id, death in connection.execute(sql, values).fetchall():
            cause, outcome = RESCUES[death]
            outcome = replace(outcome, reason=outcome.reason.format(worker=worker_id))
            taken.append((*row, worker_id, outcome, told or cause))
        return self._take(connection, taken)

    def _take(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> list[Rescued]:
        """End the attempts of owners that are gone. Rows: id, attempt, task, queue, worker, outcome, cause."""
        ends: list[tuple[Lease, Outcome, str | None]] = []
        done: list[tuple[Lease, Completed]] = []
        for job_id, attempt, _, _, worker_id, outcome, _ in rows:
            lease = Lease(job_id, attempt, worker_id)
            if isinstance(outcome, Completed):
                done.append((lease, outcome))
            else:
                ends.append((lease, outcome, cleared(outcome)))
        self._complete(connection, done)
        landed: dict[Lease, Answer] = {lease: COMPLETED for lease, _ in done}
        if ends:
            landed |= self._drive(_end(ends), partial(run, connection))
        rescued: list[Rescued] = []
        for job_id, attempt, task, queue, worker_id, _, cause in rows:
            answer = landed[Lease(job_id, attempt, worker_id)]
            assert isinstance(answer, Landed), "locked and written in one transaction"
            rescued.append(
                Rescued(
                    id=job_id,
                    task=task,
                    queue=queue,
                    attempt=attempt,
                    worker_id=worker_id,
                    cause=cause,
                    state=answer.state,
                )
            )
        return rescued

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        rows = self._server.fetch(statements.HUNG, list(worker_ids))
        return [Hung(Lease(*row[:3]), row[3], row[4]) for row in rows]

    def solo_waiting(self, queues: Sequence[str]) -> int:
        return int(self._server.fetch(statements.SOLO_WAITING, list(queues))[0][0])

    def upkeep(self) -> None:
        """Nothing: autovacuum is set by the migration."""

    def pause(self, queue: str, *, paused: bool) -> bool:
        if paused:
            sql = "INSERT INTO @.queues (name, paused_at) VALUES (%s, @now) ON CONFLICT DO NOTHING RETURNING name"
        else:
            sql = "DELETE FROM @.queues WHERE name = %s RETURNING name"
        return bool(self._server.fetch(sql, queue))

    def paused(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._server.fetch("SELECT name FROM @.queues"))

    # ── schedules ──

    def due(self, *, limit: int = 500) -> Due:
        return schedules.due(self._server, limit)

    def change(self, changes: Sequence[Change]) -> list[bool]:
        return self._locking(lambda c: schedules.change(c, self._sql, partial(self._enqueue, c), changes))

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        return schedules.schedules(self._server, names)

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        return schedules.ticks(self._server, name, limit, before)

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        return schedules.forget(self._server, keep, limit)

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        check_text(key, old, new)
        schedules.check_drafts(drafts)
        return self._locking(
            lambda c: schedules.swap(c, self._sql, partial(self._enqueue, c), key, old, new, ttl, drafts)
        )

    def notes(self, prefix: str) -> dict[str, str]:
        return schedules.notes(self._server, prefix)

    # ── reads ──

    def get(self, job_id: str) -> JobView | None:
        return reads.get(self._server, job_id)

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


def _lease(lease: Lease) -> dict[str, Any]:
    return {"id": lease.job_id, "attempt": lease.attempt, "worker": lease.worker_id}


# ── Verbs as steps, which a connection of ours takes as well as a transaction of anybody's ──────────────────────


def _enqueue(drafts: Sequence[Draft]) -> Steps[tuple[list[Enqueued], str]]:
    """Insert, then look who stands where nothing was inserted; again for those who have left meanwhile.

    Also the id of the transaction, if anything was inserted.
    """
    answers: dict[int, Enqueued] = {}
    xid = ""
    for _ in range(_ENQUEUE_TRIES):
        missing = [n for n in range(len(drafts)) if n not in answers]
        stored: dict[str, str] = {}
        for job_id, state, xid in (yield statements.ENQUEUE, [drafts[n] for n in missing]):  # noqa: B007
            stored[job_id] = state
        for n in missing:
            state = stored.pop(drafts[n].id, None)  # the same id twice in a batch is created once
            if state is not None:
                answers[n] = Enqueued(drafts[n].id, True, State(state))
        missing = [n for n in missing if n not in answers]
        if missing:
            asked = [{"id": drafts[n].id, "task": drafts[n].task, "unique": drafts[n].unique} for n in missing]
            for place, job_id, state in (yield statements.STANDING, asked):
                answers[missing[place - 1]] = Enqueued(job_id, False, State(state))
        if len(answers) == len(drafts):
            return [answers[n] for n in range(len(drafts))], xid
    raise StoreError("a unique key changed hands faster than it could be looked up; enqueue again")


def _finish(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[dict[Lease, Answer]]:
    """End each by its outcome, in a transaction; those that landed."""
    done = sorted(((lease, end) for lease, end in ends if isinstance(end, Completed)), key=itemgetter(0))
    rows = [{**_lease(lease), "result": end.result} for lease, end in done]
    landed: dict[Lease, Answer] = {}
    if rows:
        landed = {Lease(*row): COMPLETED for row in (yield statements.COMPLETE_THERE, rows)}
    others = [(lease, outcome, None) for lease, outcome in ends if not isinstance(outcome, Completed)]
    if others:
        landed |= yield from _end(others)
    return landed


def _finish_free(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[dict[Lease, Answer]]:
    """The same for those whose row nobody holds just now."""
    rows = yield statements.LOCK.format(waiting="SKIP LOCKED"), [_lease(lease) for lease, _ in ends]
    free = {Lease(*row[:3]) for row in rows}
    return (yield from _finish([end for end in ends if end[0] in free]))


def _finish_or_raise(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[list[Answer | Busy]]:
    """The same in a caller's transaction: a lost lease undoes all that was done in it."""
    landed = yield from _finish(ends)
    refused = [end for end in ends if end[0] not in landed]
    answers = (yield from _stands(refused)) if refused else []
    for answer in answers:
        if isinstance(answer, NotLanded):
            raise LeaseLost(answer.stands)
    return [landed.get(lease) or answers.pop(0) for lease, _ in ends]


def _end(ends: Sequence[tuple[Lease, Outcome, str | None]]) -> Steps[dict[Lease, Answer]]:
    """End attempts otherwise than completed, each with a message for people; those that landed."""
    locked = yield statements.LOCK.format(waiting=""), [_lease(lease) for lease, _, _ in ends]
    charges = {Lease(*row[:3]): row[3:] for row in locked}
    rows: list[dict[str, Any]] = []
    landed: dict[Lease, Answer] = {}
    for lease, outcome, message in ends:
        if lease not in charges or lease in landed:
            continue
        *budgets, cancel_reason = charges[lease]
        decision = decide(Charges._make((*budgets, cancel_reason is not None)), outcome, random())
        landed[lease] = Landed(decision.state)
        rows.append(
            {
                **_lease(lease),
                "state": decision.state,
                "failures": decision.failures,
                "crashes": decision.crashes,
                "total": decision.crashes_total,
                "solo": decision.solo,
                "outcome": outcome_name(outcome),
                "delay": decision.delay,
                "ended": decision.state in ENDED,
                "error": error_after(outcome, decision.state, cancel_reason),
                "reason": reason_of(outcome),
                "evidence": evidence_of(outcome),
                "message": message,
            }
        )
    if rows:
        yield statements.END, rows
    return landed


def _stands(ends: Sequence[tuple[Lease, Outcome]]) -> Steps[list[Answer | Busy]]:
    rows = yield statements.STANDS, [{"id": lease.job_id, "attempt": lease.attempt} for lease, _ in ends]
    found = {row[0]: (row[1:7], row[7:]) for row in rows}
    answers: list[Answer | Busy] = []
    for place, (lease, outcome) in enumerate(ends, start=1):
        job, past = found.get(place, (None, None))
        if job is not None and job[:3] == (State.PROCESSING, lease.attempt, lease.worker_id):
            answers.append(Busy())
        else:
            answers.append(standing(lease, outcome, job, past if past and past[0] is not None else None))
    return answers


_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def _lines(drafts: Sequence[Draft], now: datetime) -> tuple[list[str], list[Enqueued]]:
    """COPY's text of new jobs, and the answers if it lands."""
    at, lines, answers = now.isoformat(), list[str](), list[Enqueued]()
    commons: dict[tuple[Any, ...], tuple[str, str]] = {}
    for draft in drafts:
        if draft.delay is None and draft.run_at is None:
            due, run_at, state = now, at, State.QUEUED
        else:
            due = now + timedelta(seconds=draft.delay) if draft.delay is not None else draft.run_at or now
            run_at, state = due.isoformat(), State.SCHEDULED if due > now else State.QUEUED
        same = (
            draft.task,
            draft.queue,
            draft.priority,
            draft.isolated,
            draft.max_failures,
            draft.max_crashes,
            draft.retry_base,
            draft.retry_cap,
            draft.timeout,
            draft.stale_after,
        )
        common = commons.get(same)
        if common is None:
            options = [draft.isolated, *same[3:]]
            common = commons[same] = (
                f"\t{_escaped(draft.task)}\t{_escaped(draft.queue)}\t{draft.priority}\t",
                "\t" + "\t".join("\\N" if each is None else str(each) for each in options) + f"\t{at}\t",
            )
        expires = "\\N" if draft.expires is None else (due + timedelta(seconds=draft.expires)).isoformat()
        payload = (
            draft.payload if "\\" not in draft.payload and draft.payload.isprintable() else _escaped(draft.payload)
        )
        lines.append(f"{draft.id}\t{state}{common[0]}{run_at}{common[1]}{expires}\t{_escaped(draft.meta)}\t{payload}\n")
        answers.append(Enqueued(draft.id, True, state))
    return lines, answers


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
