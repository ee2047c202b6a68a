"""The SQLite store: one file, every process of one machine.

How it keeps the promises of `ports.Store`:

1. One writer at a time: each verb is one `BEGIN IMMEDIATE … COMMIT` with `synchronous=FULL`, so what it read is what
   it changes, and what it answered is on the disk. Verbs that wait together are committed together.
2. Every guard stands in the statement that writes, all the same: state, attempt and worker of the lease.
3. Leases and silences compare CLOCK_BOOTTIME and the boot id: a clock step ends no lease, a reboot ends them all.
4. The hot path goes through JSON arrays, one step of SQLite for a whole batch: each step hands the GIL back and
   forth, which costs more than the row.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from random import random
from typing import Any, TypeVar

import apsw
import msgspec

from tenure.core.clock import Clock, system_clock
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
from tenure.errors import LeaseLost, StoreError
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
from tenure.stores.sqlite import operators, reads, schedules
from tenure.stores.sqlite.file import DatabaseFile, Transaction, fetch, first, migrations
from tenure.stores.sqlite.statements import (
    CHARGES,
    CLAIM_CHOOSE,
    CLAIM_TAKE,
    COMPLETE,
    END,
    EXPIRED,
    INSERT,
    LOG,
    OWNED,
    PROGRESS,
    REFUSED,
    TO_RESCUE,
    UNDER_LEASE,
    enqueue_one,
    lease_facts,
    row_of,
)

T = TypeVar("T")

_decode_claimed = msgspec.json.Decoder(list[Claimed]).decode
_KEEP_WORKERS_MS = 86_400_000


class SqliteStore:
    """`SqliteStore("tenure.db")`: the default store. Makes its tables on first use."""

    capabilities = Capabilities(transactions=True, durable=True, steady_clock=True, local=True)

    def __init__(self, path: str, *, clock: Clock | None = None) -> None:
        self._file = DatabaseFile(path)
        self._clock = clock or system_clock()

    @property
    def url(self) -> str:
        return f"sqlite:///{self._file.path}"

    def open(self) -> None:
        self._file.open()
        try:
            self._file.migrate(migrations())
        except BaseException:
            self._file.close()
            raise

    def migrate(self) -> int:
        file = DatabaseFile(self._file.path)
        file.open()
        try:
            return file.migrate(migrations())
        finally:
            file.close()

    def close(self) -> None:
        self._file.close()

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy the database to a new file while work goes on; `progress(done, total)` in pages."""
        self._file.backup(path, progress)

    def damage(self) -> list[str]:
        """What SQLite's own quick check finds wrong with the file; empty when nothing."""
        found = self._file.read(lambda connection: fetch(connection, "PRAGMA quick_check"))
        return [row[0] for row in found if row[0] != "ok"]

    # ── clocks ──

    def _now(self) -> int:
        return int(self._clock.unix() * 1000)

    def _boot(self) -> int:
        return int(self._clock.boot() * 1000)

    def _moment(self) -> dict[str, Any]:
        return {"now": self._now(), "boot": self._boot(), "boot_id": self._clock.boot_id}

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now() / 1000, UTC)

    # ── transactions ──

    @contextmanager
    def transaction(self) -> Generator[Transaction]:
        with self._file.transaction() as transaction:
            yield transaction

    def _within(self, tx: object, call: Callable[[apsw.Connection], T]) -> T:
        if tx is None:
            return self._file.write(call)
        tx = tx.tx if isinstance(tx, Awaited) else tx
        if isinstance(tx, Transaction) and tx.path == self._file.path:
            return tx.run(call)
        raise StoreError(
            f"tx is a {type(tx).__name__}: a job in {self._file.path} can only join a transaction of that file; "
            "use `with jobs.transaction() as tx:`"
        )

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        now = self._now()
        rows = [row_of(draft, now) for draft in drafts]

        def step(connection: apsw.Connection) -> list[Enqueued]:
            if len(rows) == 1:
                return [enqueue_one(connection, rows[0])]
            before = connection.total_changes()
            connection.execute("SAVEPOINT enqueue")
            connection.executemany(INSERT, rows)
            if connection.total_changes() - before == len(rows):
                connection.execute("RELEASE enqueue")
                return [Enqueued(row[0], True, State(row[1])) for row in rows]
            # Some were there already: once more, one by one, to tell which.
            connection.execute("ROLLBACK TO enqueue; RELEASE enqueue")
            return [enqueue_one(connection, row) for row in rows]

        answers = self._within(tx, step)
        inner = tx.tx if isinstance(tx, Awaited) else tx
        if isinstance(inner, Transaction) and committed is not None:
            inner.committed.append(committed)
        return answers

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        now = self._now()
        return self._each(ids, lambda connection, job_id: operators.cancel(connection, job_id, reason, now))

    def promote(self, *, limit: int = 1000) -> Promoted:
        now = self._now()

        def next_due(connection: apsw.Connection) -> float | None:
            found = first(connection, "SELECT min(run_at) FROM jobs WHERE state = 'scheduled'")
            return None if found is None or found[0] is None else (found[0] - now) / 1000

        def step(connection: apsw.Connection) -> Promoted:
            rows = fetch(
                connection,
                "UPDATE jobs SET state = 'queued' WHERE seq IN (SELECT seq FROM jobs WHERE state = 'scheduled' "
                "AND run_at <= ? ORDER BY run_at, id LIMIT ?) AND state = 'scheduled' RETURNING queue, id",
                (now, limit),
            )
            jobs: dict[str, list[str]] = {}
            for queue, job_id in rows:
                jobs.setdefault(queue, []).append(job_id)
            then = next_due(connection)
            return Promoted(jobs, None if then is None else max(0.0, then))

        then = self._file.read(next_due)
        if then is None or then > 0:  # a look is enough: nothing is due, and a write would cost an fsync
            return Promoted({}, then)
        return self._file.write(step)

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        now = self._now()
        return self._each(ids, lambda connection, job_id: operators.promote(connection, job_id, now))

    def replay(self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS) -> dict[str, Answer | None]:
        now, wanted = self._now(), list(ids)
        check_edits(wanted, edits)

        def step(connection: apsw.Connection, job_id: str) -> Answer | None:
            answer = operators.replay(connection, job_id, now, edits.get(job_id))
            if isinstance(answer, Landed):
                schedules.open_again(connection, job_id)
            return answer

        return self._each(wanted, step)

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return self._each(ids, operators.delete)

    def _each(self, ids: Iterable[str], step: Callable[[apsw.Connection, str], T]) -> dict[str, T]:
        wanted = list(dict.fromkeys(ids))
        return self._file.write(lambda connection: {job_id: step(connection, job_id) for job_id in wanted})

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        now = self._now()
        ages = [("completed", keep), ("cancelled", keep)] + ([("dead", keep_dead)] if keep_dead is not None else [])

        def step(connection: apsw.Connection) -> int:
            gone = 0
            for state, age in ages:
                connection.execute(
                    "DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE state = ? AND ended_at IS NOT NULL "
                    "AND ended_at < ? ORDER BY ended_at LIMIT ?)",
                    (state, now - int(age * 1000), limit - gone),
                )
                gone += connection.changes()
            connection.execute("DELETE FROM workers WHERE died_at < ?", (now - _KEEP_WORKERS_MS,))
            return gone

        return self._file.write(step)

    # ── owners ──

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        def step(connection: apsw.Connection) -> list[Claimed]:
            now, boot = self._now(), self._boot()  # it may have waited for its turn
            claimed: list[Claimed] = []
            for queue, most in wants.items():
                want = min(most, limit - len(claimed))
                if want <= 0:
                    continue
                facts = {
                    "queue": queue,
                    "solo": int(solo),
                    "want": want,
                    "now": now,
                    "boot": boot,
                    "boot_id": self._clock.boot_id,
                    "worker": worker_id,
                }
                row = first(connection, CLAIM_CHOOSE, facts)
                if row is None or row[1] == "[]":
                    continue
                connection.execute(CLAIM_TAKE, {"chosen": row[1], "worker": worker_id, "now": now, "boot": boot})
                claimed += _decode_claimed(row[0])
            return claimed

        return self._file.write(step)

    def owned(self, worker_id: str) -> list[Owned]:
        now = self._now()

        def step(connection: apsw.Connection) -> list[Owned]:
            rows = fetch(
                connection,
                f"SELECT json_array({OWNED}), cancel_reason FROM jobs "
                "WHERE state = 'processing' AND worker_id = :worker",
                {"now": now, "worker": worker_id},
            )
            return [Owned(_decode_claimed(row[0])[0], row[1]) for row in rows]

        return self._file.read(step)

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        now, boot = self._now(), self._boot()
        for report in reports:
            check_text(report.stage, report.message, report.checkpoint, report.log)

        def step(connection: apsw.Connection) -> list[bool]:
            landed: list[bool] = []
            for report in reports:
                connection.execute(
                    PROGRESS,
                    {
                        "fraction": report.fraction,
                        "stage": report.stage,
                        "message": report.message,
                        "checkpoint": report.checkpoint,
                        "now": now,
                        "boot": boot,
                        **lease_facts(report.lease),
                    },
                )
                landed.append(connection.changes() == 1)
                if landed[-1] and report.log is not None:
                    connection.execute(LOG, (report.lease.job_id, report.lease.attempt, report.log))
            return landed

        return self._file.write(step)

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        check_text(*(why for _, why in refusals))
        rows = [{**lease_facts(lease), "why": why} for lease, why in refusals]
        self._file.write(lambda connection: connection.executemany(REFUSED, rows))

    def once(self, lease: Lease, key: str, value: str | None) -> OnceRecord | None:
        check_text(key, value)

        def step(connection: apsw.Connection) -> OnceRecord | None:
            if first(connection, f"SELECT 1 FROM jobs WHERE {UNDER_LEASE}", lease_facts(lease)) is None:
                return None
            if value is not None:
                connection.execute(
                    "INSERT INTO once (job_id, key, value) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (lease.job_id, key, value),
                )
            found = first(connection, "SELECT value FROM once WHERE job_id = ? AND key = ?", (lease.job_id, key))
            return OnceRecord(None if found is None else found[0])

        return self._file.write(step) if value is not None else self._file.read(step)

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        now = self._now()
        for _, outcome in ends:
            check_outcome(outcome)

        def step(connection: apsw.Connection) -> list[Answer]:
            done: dict[str, list[tuple[str, int, str]]] = {}
            for lease, outcome in ends:
                if type(outcome) is Completed:
                    done.setdefault(lease.worker_id, []).append((lease.job_id, lease.attempt, outcome.result))
            landed = True
            for worker_id, batch in done.items():
                connection.execute(COMPLETE, {"ends": encode(batch).decode(), "worker": worker_id, "now": now})
                landed = landed and connection.changes() == len(batch)
            if landed and sum(map(len, done.values())) == len(ends):
                return [COMPLETED] * len(ends)
            return [
                COMPLETED if landed and type(outcome) is Completed else self._end(connection, lease, outcome, now)
                for lease, outcome in ends
            ]

        answers = self._within(tx, step)
        if tx is not None:
            for answer in answers:
                if isinstance(answer, NotLanded):  # undoes all that its caller did in the transaction
                    raise LeaseLost(answer.stands)
        return [*answers]

    def _end(
        self, connection: apsw.Connection, lease: Lease, outcome: Outcome, now: int, *, message: str | None = None
    ) -> Answer:
        facts = first(connection, f"SELECT {CHARGES}, started_at FROM jobs WHERE {UNDER_LEASE}", lease_facts(lease))
        if facts is None:
            return self._standing(connection, lease, outcome)
        if isinstance(outcome, Completed):
            ends = encode([(lease.job_id, lease.attempt, outcome.result)]).decode()
            connection.execute(COMPLETE, {"ends": ends, "worker": lease.worker_id, "now": now})
            return COMPLETED
        *budgets, isolated, cancel_reason, started_at = facts
        charges = Charges._make((*budgets, bool(isolated), cancel_reason is not None))
        decision = decide(charges, outcome, random())
        connection.execute(
            END,
            {
                "state": decision.state,
                "failures": decision.failures,
                "crashes": decision.crashes,
                "total": decision.crashes_total,
                "solo": int(decision.solo),
                "outcome": outcome_name(outcome),
                "run_at": None if decision.delay is None else now + round(decision.delay * 1000),
                "ended_at": now if decision.state in ENDED else None,
                "error": error_after(outcome, decision.state, cancel_reason),
                "cleared": message,
                **lease_facts(lease),
            },
        )
        connection.execute(
            "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*lease, outcome_name(outcome), reason_of(outcome), evidence_of(outcome), started_at, now),
        )
        return Landed(decision.state)

    def _standing(self, connection: apsw.Connection, lease: Lease, outcome: Outcome) -> Answer:
        found = first(
            connection,
            "SELECT state, attempt, worker_id, last_worker_id, last_outcome, result FROM jobs WHERE id = ?",
            (lease.job_id,),
        )
        past = first(connection, "SELECT worker_id, outcome FROM attempts WHERE job_id = ? AND attempt = ?", lease[:2])
        return standing(lease, outcome, found, past)

    # ── supervisors ──

    def register(self, worker: WorkerIdentity) -> None:
        def step(connection: apsw.Connection) -> None:
            now, boot = self._now(), self._boot()  # it may have waited for its turn
            connection.execute(
                "INSERT INTO workers (id, host, pid, started, boot_id, pid_namespace, runner, queues, tasks, slots, "
                "lease, started_at, renewed_at, expires_boot) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (
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
                    now,
                    now,
                    boot + round(worker.lease * 1000),
                ),
            )
            if connection.changes() == 0:
                raise StoreError(f"worker id {worker.id} was used before: every process start takes a new one")

        self._file.write(step)

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        def step(connection: apsw.Connection) -> frozenset[str]:
            now, boot = self._now(), self._boot()  # it may have waited for its turn
            alive: set[str] = set()
            for worker_id in worker_ids:
                connection.execute(
                    "UPDATE workers SET renewed_at = ?, expires_boot = ? + CAST(round(lease * 1000) AS INTEGER), "
                    "memory = coalesce(?, memory), note = ? WHERE id = ? AND died_at IS NULL",
                    (now, boot, (memory or {}).get(worker_id), (notes or {}).get(worker_id, ""), worker_id),
                )
                if connection.changes() == 1:
                    alive.add(worker_id)
            return frozenset(alive)

        return self._file.write(step)

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        wanted, now = list(worker_ids), self._now()
        return self._file.write(lambda connection: frozenset(w for w in wanted if _declare(connection, w, now)))

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        look = {**self._moment(), "witness": witness, "until": None if until is None else reads.millis(until)}
        if self._file.read(lambda c: first(c, f"SELECT 1 FROM workers WHERE {EXPIRED} LIMIT 1", look)) is None:
            return frozenset()

        def step(connection: apsw.Connection) -> frozenset[str]:
            facts = {**look, **self._moment()}  # it may have waited for its turn
            rows = fetch(
                connection, f"UPDATE workers SET died_at = :now, death = 'host' WHERE {EXPIRED} RETURNING id", facts
            )
            return frozenset(row[0] for row in rows)

        return self._file.write(step)

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> list[Rescued]:
        now = self._now()
        for outcome in (*verdicts.values(), rest):
            check_outcome(outcome)

        def step(connection: apsw.Connection) -> list[Rescued]:
            _declare(connection, worker_id, now)
            held = fetch(
                connection,
                "SELECT id, attempt, task, queue FROM jobs WHERE state = 'processing' AND worker_id = ? "
                "ORDER BY last_activity_at, id",
                (worker_id,),
            )
            return [self._take(connection, row, worker_id, verdicts.get(row[0], rest), "crash", now) for row in held]

        return self._file.write(step)

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        now, boot = self._now(), self._boot()
        facts = {"boot": boot, "id": None, "limit": limit}
        if not self._file.read(lambda c: fetch(c, TO_RESCUE, {**facts, "limit": 1})):
            return []
        return self._file.write(lambda connection: self._rescue(connection, facts, now))

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        def step(connection: apsw.Connection) -> Rescued | State | None:
            now, boot = self._now(), self._boot()
            found = first(connection, "SELECT state, worker_id FROM jobs WHERE id = ?", (job_id,))
            if found is None:
                return None
            if declare and found[1] is not None:
                connection.execute(
                    f"UPDATE workers SET died_at = :now, death = 'host' WHERE id = :id AND {EXPIRED}",
                    {
                        **self._moment(),
                        "id": found[1],
                        "witness": witness,
                        "until": None if until is None else reads.millis(until),
                    },
                )
            facts = {"boot": boot, "id": job_id, "limit": 1}
            return next(iter(self._rescue(connection, facts, now, "queue")), State(found[0]))

        return self._file.write(step)

    def _rescue(
        self, connection: apsw.Connection, facts: Mapping[str, Any], now: int, told: Cause | None = None
    ) -> list[Rescued]:
        rescued: list[Rescued] = []
        for job_id, attempt, task, queue, worker_id, death in fetch(connection, TO_RESCUE, facts):
            cause, outcome = RESCUES[death]
            outcome = replace(outcome, reason=outcome.reason.format(worker=worker_id))
            row = (job_id, attempt, task, queue)
            rescued.append(self._take(connection, row, worker_id, outcome, told or cause, now))
        return rescued

    def _take(
        self,
        connection: apsw.Connection,
        row: tuple[Any, ...],
        worker_id: str,
        outcome: Outcome,
        cause: Cause,
        now: int,
    ) -> Rescued:
        job_id, attempt, task, queue = row
        message = cleared(outcome)
        answer = self._end(connection, Lease(job_id, attempt, worker_id), outcome, now, message=message)
        assert isinstance(answer, Landed), "read and written in one transaction"
        return Rescued(
            id=job_id, task=task, queue=queue, attempt=attempt, worker_id=worker_id, cause=cause, state=answer.state
        )

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        boot = self._boot()

        def step(connection: apsw.Connection) -> list[Hung]:
            rows = fetch(
                connection,
                "SELECT j.id, j.attempt, j.worker_id, j.task, (:boot - j.active_boot) / 1000.0 FROM jobs j "
                "WHERE j.state = 'processing' AND j.worker_id IN (SELECT value FROM json_each(:workers)) "
                "AND j.stale_after IS NOT NULL AND :boot - j.active_boot > j.stale_after * 1000",
                {"boot": boot, "workers": encode(list(worker_ids)).decode()},
            )
            return [Hung(Lease(row[0], row[1], row[2]), row[3], row[4]) for row in rows]

        return self._file.read(step)

    def solo_waiting(self, queues: Sequence[str]) -> int:
        return self._file.read(
            lambda connection: sum(
                first(
                    connection,
                    "SELECT count(*) FROM jobs WHERE queue = ? AND solo = 1 AND state = 'queued' AND NOT EXISTS "
                    "(SELECT 1 FROM queues WHERE name = jobs.queue AND paused_at IS NOT NULL)",
                    (queue,),
                )[0]  # type: ignore[index]
                for queue in queues
            )
        )

    def upkeep(self) -> None:
        self._file.checkpoint()

    def pause(self, queue: str, *, paused: bool) -> bool:
        now = self._now()

        def step(connection: apsw.Connection) -> bool:
            if paused:
                connection.execute(
                    "INSERT INTO queues (name, paused_at) VALUES (?, ?) ON CONFLICT DO NOTHING", (queue, now)
                )
            else:
                connection.execute("DELETE FROM queues WHERE name = ?", (queue,))
            return connection.changes() == 1

        return self._file.write(step)

    def paused(self) -> frozenset[str]:
        rows = self._file.read(lambda c: fetch(c, "SELECT name FROM queues WHERE paused_at IS NOT NULL"))
        return frozenset(row[0] for row in rows)

    # ── schedules ──

    def due(self, *, limit: int = 500) -> Due:
        now, boot = self._now(), self._boot()
        return self._file.read(lambda connection: schedules.due(connection, now, boot, limit))

    def change(self, changes: Sequence[Change]) -> list[bool]:
        def step(connection: apsw.Connection) -> list[bool]:
            now, boot = self._now(), self._boot()  # it may have waited for its turn
            return [schedules.change(connection, each, now, boot, self._clock.boot_id) for each in changes]

        return self._file.write(step)

    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        now, boot, wanted = self._now(), self._boot(), None if names is None else sorted(set(names))
        return self._file.read(lambda connection: schedules.standings(connection, wanted, now, boot))

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        return self._file.read(lambda connection: schedules.ticks(connection, name, limit, before))

    def forget(self, *, keep: float, limit: int = 1000) -> int:
        now = self._now()
        return self._file.write(lambda connection: schedules.forget(connection, now - int(keep * 1000), now, limit))

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        check_text(key, old, new)
        now = self._now()
        ends = None if ttl is None else now + round(ttl * 1000)
        return self._file.write(lambda connection: schedules.swap(connection, key, old, new, ends, drafts, now))

    def notes(self, prefix: str) -> dict[str, str]:
        now = self._now()
        return self._file.read(lambda connection: schedules.notes(connection, prefix, now))

    # ── reads ──

    def get(self, job_id: str) -> JobView | None:
        return self._file.read(lambda connection: reads.get(connection, job_id))

    def search(self, where: Filter, *, limit: int = 50, cursor: str | None = None, within: int | None = None) -> Page:
        return self._file.read(lambda connection: reads.search(connection, where, limit, cursor, within))

    def ended(self, since: datetime, until: datetime, *, most: int = 10_000, sample: int = 100) -> Ended:
        return self._file.read(lambda connection: reads.ended(connection, since, until, most, sample))

    def logs(self, job_id: str) -> dict[int, str]:
        return self._file.read(lambda connection: reads.logs(connection, job_id))

    def counts(self) -> dict[State, int]:
        return self._file.read(reads.counts)

    def attempts(self, job_id: str) -> list[AttemptView]:
        return self._file.read(lambda connection: reads.attempts(connection, job_id))

    def workers(self, *, dead: bool = False) -> list[WorkerView]:
        now, boot = self._now(), self._boot()
        return self._file.read(lambda connection: reads.workers(connection, dead=dead, now=now, boot=boot))

    def queues(self) -> list[QueueView]:
        now = self._now()
        return self._file.read(lambda connection: reads.queues(connection, now))


def _declare(connection: apsw.Connection, worker_id: str, now: int) -> bool:
    connection.execute(
        "UPDATE workers SET died_at = ?, death = 'crash' WHERE id = ? AND died_at IS NULL", (now, worker_id)
    )
    return connection.changes() == 1
