"""Jobs in SQLite: the verbs of clients and owners.

The hot path uses JSON arrays, one SQLite step for a whole batch: each step releases and reacquires the GIL, which
costs more than a row.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw's stubs leave the type of a blob open)
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import apsw
import msgspec

from tenure.core.lifecycle import MOST_TOGETHER, Lease, Outcome, State, group_size
from tenure.core.text import a
from tenure.errors import LeaseLost, StoreError
from tenure.ports import (
    BATCH_BYTES,
    NO_DELAYS,
    NO_EDITS,
    NONE_KNOWN,
    Answer,
    Awaited,
    Busy,
    Claimed,
    Draft,
    Edit,
    Enqueued,
    Landed,
    NotLanded,
    OnceRecord,
    OnLoop,
    Owned,
    Progress,
    Promoted,
)
from tenure.stores.fields import CLAIMED, LIMITED, keys_of, listed
from tenure.stores.rules import (
    COMPLETED,
    MANY_QUEUES,
    NOT_DELETED,
    WORKER_KEPT,
    ages,
    check_outcomes,
    check_replay,
    check_reports,
    check_text,
    key_held,
    lease_facts,
    promoted,
    shortest,
    why_not_replayed,
)
from tenure.stores.sqlite import links, places, steps
from tenure.stores.sqlite.base import SqliteBase
from tenure.stores.sqlite.file import Transaction, fetch, first
from tenure.stores.sqlite.limits import FORGET_IDLE
from tenure.stores.sqlite.links import LIVE_STATES
from tenure.stores.sqlite.schedules import open_again
from tenure.stores.sqlite.steps import OWNS, SUSPECTS, UNDER_LEASE

T = TypeVar("T")

_CLAIMED = listed(
    CLAIMED,
    attempt="{attempt}",
    enqueued_ms="enqueued_at",
    expired="{attempt} = 1 AND coalesce(expires_at < :now, 0)",
    limited=LIMITED,
)
_decode_claimed = msgspec.json.Decoder(list[Claimed], strict=False).decode  # SQLite has 0 and 1 where JSON has bools

# The worker's row must exist, be neither dead nor expired, and the queue must not be paused: checked where the jobs are
# chosen, in the transaction that claims them.
_NEXT = """
    SELECT seq, octet_length(payload) + coalesce(octet_length(checkpoint), 0) + octet_length(meta) AS bytes
    FROM jobs INDEXED BY jobs_queued
    WHERE state = 'queued' AND queue = :queue AND solo = :solo
      AND EXISTS (SELECT 1 FROM workers WHERE id = :worker AND died_at IS NULL
                  AND boot_id = :boot_id AND expires_boot > :boot)
      AND NOT EXISTS (SELECT 1 FROM queues WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY priority DESC, run_at, id LIMIT :want"""
_TAKEN = _CLAIMED.format(attempt="attempt + 1")
# A sum over a window makes the choice of one job a quarter as expensive again, and that of 500 three quarters. Jobs
# that are all smaller than their share need none.
_CHOOSE = f"""
    SELECT json_group_array(json_array({_TAKEN})) FILTER (WHERE bytes < :share), json_group_array(seq),
        sum(bytes), max(bytes)
    FROM ({_NEXT}) CROSS JOIN jobs USING (seq)"""
_FITTING = f"""
    FROM (
        SELECT seq, total FROM (SELECT seq, bytes, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM ({_NEXT}))
        WHERE total - bytes < :room) CROSS JOIN jobs USING (seq)"""
_CHOOSE_FITTING = f"SELECT json_group_array(json_array({_TAKEN})), json_group_array(seq), max(total) {_FITTING}"
_CHOOSE_LARGE = f"SELECT {_TAKEN}, json_array(seq), total {_FITTING}"
_TAKE = """
    UPDATE jobs SET state = 'processing', attempt = attempt + 1, worker_id = :worker, started_at = :now,
        last_activity_at = :now, active_boot = :boot
    WHERE seq IN (SELECT value FROM json_each(:chosen)) AND +state = 'queued'"""
_LEASES = "SELECT id, attempt, cancel_reason FROM jobs WHERE state = 'processing' AND worker_id = ?"
_OWNED = f"""
    SELECT {_CLAIMED.format(attempt="attempt")} FROM jobs
    WHERE id = :id AND attempt = :attempt AND +state = 'processing' AND +worker_id = :worker"""

_PROGRESS = f"""
    UPDATE jobs SET progress = coalesce(:fraction, progress), stage = coalesce(:stage, stage),
        message = coalesce(:message, message), last_activity_at = :now, active_boot = :boot,
        crashes = iif(:checkpoint IS NOT NULL AND :checkpoint IS NOT checkpoint, 0, crashes),
        checkpoint = coalesce(:checkpoint, checkpoint)
    WHERE {UNDER_LEASE}"""
_LOG = """
    INSERT INTO job_logs (job_id, attempt, lines) VALUES (?, ?, ?)
    ON CONFLICT (job_id, attempt) DO UPDATE SET lines = excluded.lines"""
_REFUSED = """
    UPDATE attempts SET evidence = json_set(evidence, '$.refused', :why)
    WHERE job_id = :id AND attempt = :attempt AND worker_id = :worker AND evidence ->> '$.refused' IS NULL"""


_NO_JOB_LEFT = "NOT EXISTS (SELECT 1 FROM jobs WHERE flow = flows.id)"


def _choose(connection: apsw.Connection, facts: Mapping[str, Any], room: int) -> tuple[list[Claimed], str, int]:
    """The next jobs of a queue, the seqs of these as JSON, and how many bytes they are."""
    share = room // facts["want"]
    try:
        [(jobs, seqs, size, largest)] = fetch(connection, _CHOOSE, {**facts, "share": share})
        if size is not None and largest >= share:
            [(jobs, seqs, size)] = fetch(connection, _CHOOSE_FITTING, {**facts, "room": room})
    except apsw.TooBigError:  # as one JSON text: take the first job alone, column by column, as it was stored
        [(*job, seqs, size)] = fetch(connection, _CHOOSE_LARGE, {**facts, "room": 1})
        return [_claimed(job)], seqs, size
    return ([], "[]", 0) if size is None else (_decode_claimed(jobs), seqs, size)


def _claimed(row: Sequence[Any]) -> Claimed:
    return Claimed._make((*row[:-3], *map(bool, row[-3:])))


def _is_one_row(draft: Draft) -> bool:
    """Nothing but its own row is to be stored."""
    return draft.links is None and not draft.limits


class SqliteJobs(SqliteBase):
    """The verbs of `JobStore`."""

    def _within(self, tx: object, call: Callable[[apsw.Connection], T]) -> T:
        if tx is None:
            return self._file.write(call)
        block = "async with jobs.atransaction()" if isinstance(tx, Awaited) else "with jobs.transaction()"
        tx = tx.tx if isinstance(tx, Awaited) else tx
        if isinstance(tx, Transaction) and tx.path == self._file.path:
            return tx.run(call)
        path = self._file.path
        if isinstance(tx, Transaction):
            said = f"a transaction of {tx.path}: a job in {path} can only join one of that file"
        else:
            said = (
                f"{a(type(tx).__name__)}: a job in {path} can only join a transaction that Tenure opens; one in "
                "PostgreSQL can also join one of SQLAlchemy, Django or its driver"
            )
        raise StoreError(f"tx is {said}; use `{block} as tx:`")

    # ── clients ──

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        now = self._now()
        rows = steps.rows_of(drafts, now)
        if tx is None and len(rows) == 1 and _is_one_row(drafts[0]) and self._file.change(steps.INSERT, rows[0]) == 1:
            return [steps.created(rows[0])]
        plain = all(map(_is_one_row, drafts))

        def step(connection: apsw.Connection) -> list[Enqueued]:
            if plain:
                return store(connection)
            links.check(connection, drafts)
            answers = store(connection)
            links.link(connection, drafts, answers, now)
            steps.limit(connection, drafts, answers)
            return answers

        def store(connection: apsw.Connection) -> list[Enqueued]:
            if len(rows) == 1:
                return [steps.enqueue_one(connection, rows[0])]
            before = connection.total_changes()
            connection.execute("SAVEPOINT enqueue")
            connection.executemany(steps.INSERT, rows)
            if connection.total_changes() - before == len(rows):
                connection.execute("RELEASE enqueue")
                return [steps.created(row) for row in rows]
            # Some existed already: insert again, one by one, to learn which.
            connection.execute("ROLLBACK TO enqueue; RELEASE enqueue")
            return [steps.enqueue_one(connection, row) for row in rows]

        answers = self._within(tx, step)
        inner = tx.tx if isinstance(tx, Awaited) else tx
        if isinstance(inner, Transaction) and committed is not None:
            inner.committed.append(committed)
        return answers

    def enqueue_on_loop(self, draft: Draft) -> OnLoop[Enqueued]:
        yield from ()
        if not _is_one_row(draft):
            return None
        (row,) = steps.rows_of([draft], self._now())
        return steps.created(row) if self._file.change_at_once(steps.INSERT, row) else None  # or its id or key is taken

    def cancel(self, ids: Iterable[str], reason: str) -> dict[str, State | None]:
        check_text(reason)
        now = self._now()
        return self._each(ids, lambda connection, job_id: steps.cancel(connection, job_id, reason, now))

    def promote(self, *, limit: int = 1000) -> Promoted:
        now = self._now()

        def next_due(connection: apsw.Connection) -> float | None:
            found = first(connection, "SELECT min(run_at) FROM jobs WHERE state = 'scheduled'")
            return None if found is None or found[0] is None else (found[0] - now) / 1000

        def step(connection: apsw.Connection) -> Promoted:
            rows = fetch(  # in the order of the index: ordering by id too would sort all that are due at one instant
                connection,
                f"UPDATE jobs SET state = iif({LIMITED}, 'waiting', 'queued'), {places.PARKED.format(due_at='NULL')} "
                "WHERE seq IN (SELECT seq FROM jobs WHERE state = 'scheduled' "
                "AND run_at <= ? ORDER BY run_at LIMIT ?) AND state = 'scheduled' RETURNING queue, id, "
                "CASE WHEN last_outcome = 'crashed' THEN message END, limits",
                (now, limit),
            )
            limited = [limits for *_, limits in rows if limits is not None]
            places.ask(connection, {keys_of(limits)[0] for limits in limited})
            queued = [row[:3] for row in rows if row[3] is None]
            then = next_due(connection)
            return promoted(queued, None if then is None else max(0.0, then), len(limited))

        then = self._file.read(next_due)
        if then is None or then > 0:  # a read is enough: nothing is due, and a write would cost an fsync
            return Promoted({}, then)
        return self._file.write(step)

    def promote_now(self, ids: Iterable[str]) -> dict[str, State | None]:
        now = self._now()

        def step(connection: apsw.Connection, job_id: str) -> State | None:
            connection.execute(
                f"UPDATE jobs SET state = iif({LIMITED}, 'waiting', 'queued'), run_at = min(run_at, ?1), "
                f"{places.PARKED.format(due_at='min(run_at, ?1)')} WHERE id = ?2 AND state = 'scheduled'",
                (now, job_id),
            )
            if connection.changes() == 1:
                places.park(connection, job_id)
            return steps.state_of(connection, job_id)

        return self._each(ids, step)

    def replay(
        self, ids: Iterable[str], *, edits: Mapping[str, Edit] = NO_EDITS, delays: Mapping[str, float] = NO_DELAYS
    ) -> dict[str, Answer | None]:
        now, wanted = self._now(), list(ids)
        check_replay(wanted, edits, delays)
        return self._each(
            wanted,
            lambda c, job_id: _replay(c, job_id, now + round(1000 * delays.get(job_id, 0.0)), now, edits.get(job_id)),
        )

    def delete(self, ids: Iterable[str]) -> dict[str, Answer | None]:
        return self._each(ids, _delete)

    def _each(self, ids: Iterable[str], step: Callable[[apsw.Connection, str], T]) -> dict[str, T]:
        wanted = list(dict.fromkeys(ids))
        return self._file.write(lambda connection: {job_id: step(connection, job_id) for job_id in wanted})

    def prune(self, *, keep: float, keep_dead: float | None, limit: int = 1000) -> int:
        now = self._now()

        def step(connection: apsw.Connection) -> int:
            gone = 0
            for state, age in ages(keep, keep_dead):
                connection.execute(
                    "DELETE FROM jobs WHERE seq IN (SELECT seq FROM jobs WHERE state = ? AND ended_at IS NOT NULL "
                    f"AND ended_at < ? AND NOT linked AND {links.NOT_HELD} ORDER BY ended_at LIMIT ?)",
                    (state, now - int(age * 1000), limit - gone),
                )
                gone += connection.changes()
            old = now - int(keep * 1000)
            connection.execute("DELETE FROM signals WHERE job_id IS NULL AND sent_at < ?", (old,))
            connection.execute(
                f"DELETE FROM flows WHERE id IN (SELECT id FROM flows WHERE created_at < ? AND {_NO_JOB_LEFT} "
                "ORDER BY created_at LIMIT ?)",
                (now - int(shortest(keep, keep_dead) * 1000), limit),
            )
            connection.execute("DELETE FROM workers WHERE died_at < ?", (now - int(WORKER_KEPT * 1000),))
            connection.execute(FORGET_IDLE, (limit,))
            return gone

        return self._file.write(step)

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

    # ── owners ──

    def claim_on_loop(
        self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False
    ) -> OnLoop[list[Claimed]]:
        yield from ()  # there is no socket to wait for, and the switches to a thread and back take longer than a claim
        return self.claim(worker_id, wants, limit, solo=solo)

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        if len(wants) >= MANY_QUEUES:  # the write lock is taken only if there are jobs, and for their queues
            wants = {queue: wants[queue] for queue in self._with_jobs(list(wants), solo=solo)}
            if not wants:
                return []

        def step(connection: apsw.Connection) -> list[Claimed]:
            now, boot = self._now(), self._boot()  # this write may have waited for its turn
            claimed: list[Claimed] = []
            room = BATCH_BYTES
            if solo and first(connection, OWNS, (worker_id,)) is not None:
                return claimed
            for queue, most in wants.items():
                want = min(most, limit - len(claimed))
                if solo:
                    want = 0 if claimed else self._group(connection, queue, want)  # a group is from one queue
                if want <= 0 or room <= 0:
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
                some, chosen, size = _choose(connection, facts, room)
                if some:
                    connection.execute(_TAKE, {"chosen": chosen, "worker": worker_id, "now": now, "boot": boot})
                    if limited := [job.id for job in some if job.limited]:
                        places.begun(connection, limited, now / 1000)
                    claimed += some
                    room -= size
            return claimed

        return self._file.write(step)

    def _group(self, connection: apsw.Connection, queue: str, want: int) -> int:
        return group_size(row[0] for row in fetch(connection, SUSPECTS, (queue, min(want, MOST_TOGETHER))))

    def owned(self, worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        now = self._now()

        def step(connection: apsw.Connection) -> list[Owned]:
            held: list[Owned] = []
            for job_id, attempt, reason in fetch(connection, _LEASES, (worker_id,)):
                lease = Lease(job_id, attempt, worker_id)
                if lease in known:
                    held.append(Owned(known[lease], reason))
                elif row := first(connection, _OWNED, {**lease_facts(lease), "now": now}):
                    held.append(Owned(_claimed(row), reason))
            return held

        return self._file.read(step)

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        now, boot = self._now(), self._boot()
        check_reports(reports)

        def step(connection: apsw.Connection) -> list[bool]:
            landed: list[bool] = []
            for report in reports:
                connection.execute(
                    _PROGRESS,
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
                    connection.execute(_LOG, (report.lease.job_id, report.lease.attempt, report.log))
            return landed

        return self._file.write(step)

    def refused(self, refusals: Sequence[tuple[Lease, str]]) -> None:
        check_text(*(why for _, why in refusals))
        rows = [{**lease_facts(lease), "why": why} for lease, why in refusals]
        self._file.write(lambda connection: connection.executemany(_REFUSED, rows))

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
        check_outcomes([outcome for _, outcome in ends])

        facts = steps.all_completed(ends, now) if tx is None else None
        if facts is not None and self._file.change(steps.COMPLETE, facts) == len(ends):
            return [COMPLETED] * len(ends)  # else one of them was lost

        answers = self._within(tx, lambda connection: steps.finish(connection, ends, now))
        if tx is not None:
            for answer in answers:
                if isinstance(answer, NotLanded):  # rolls back everything the caller did in the transaction
                    raise LeaseLost(answer.stands)
        return [*answers]


# ── One job, as an operator asks; None: there is no such job ────────────────────────────────────────────────────

#: With new arguments, the progress and the checkpoint of the old ones are void.
_WITH_OTHERS = ", payload = ?, meta = ?, checkpoint = NULL, progress = NULL, stage = NULL, message = NULL"


def _replay(connection: apsw.Connection, job_id: str, due: int, now: int, edit: Edit | None) -> Answer | None:
    found = first(connection, f"SELECT state, task, unique_key, queue, {LIMITED} FROM jobs WHERE id = ?", (job_id,))
    if found is None:
        return None
    state, task, unique, queue, is_limited = State(found[0]), *found[1:]
    refused = why_not_replayed(state, queue)
    if refused is not None:
        return refused
    holder = first(
        connection,
        f"SELECT id FROM jobs WHERE task = ? AND unique_key = ? AND state IN {LIVE_STATES}",
        (task, unique),
    )
    if holder is not None:
        return key_held(holder[0], unique)
    refused = links.why_not_replayed(connection, job_id, state)
    if refused is not None:
        return refused
    others, values = (_WITH_OTHERS, tuple(edit)) if edit else ("", ())
    to = State.SCHEDULED if due > now else State.QUEUED
    if links.open_again(connection, job_id):
        to = State.WAITING
        links.ask(connection, [job_id])
    limited = to is State.QUEUED and is_limited
    to = State.WAITING if limited else to
    connection.execute(
        "UPDATE jobs SET state = ?, run_at = ?, due_at = NULL, solo = isolated, together = 1, failures = 0, "
        "crashes = 0, crashes_total = 0, error = NULL, result = NULL, started_at = NULL, last_activity_at = NULL, "
        "active_boot = NULL, ended_at = NULL, cancel_reason = NULL, "
        f"expires_at = NULL, last_worker_id = NULL, last_outcome = NULL{others} "
        "WHERE id = ? AND state IN ('completed', 'dead', 'cancelled')",
        (to, due, *values, job_id),
    )
    if limited:
        places.park(connection, job_id)
    open_again(connection, job_id)
    return Landed(to)


def _delete(connection: apsw.Connection, job_id: str) -> Answer | None:
    found = first(connection, "SELECT state, flow FROM jobs WHERE id = ?", (job_id,))
    if found is None:
        return None
    state, flow = State(found[0]), found[1]
    refused = NOT_DELETED if state is State.PROCESSING else links.why_not_deleted(connection, job_id)
    if refused is not None:
        return refused
    connection.execute("DELETE FROM jobs WHERE id = ?", (job_id,))
    if flow is not None:
        connection.execute(f"DELETE FROM flows WHERE id = ? AND {_NO_JOB_LEFT}", (flow,))
    return Landed(state)
