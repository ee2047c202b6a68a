"""Ownership in PostgreSQL: claims, and the reads that tell a worker what it owns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from time import monotonic
from typing import Any

from tenure.core.lifecycle import MOST_TOGETHER, Lease, group_size
from tenure.ports import BATCH_BYTES, NONE_KNOWN, Claimed, OnLoop, Owned, may_be_cut
from tenure.stores.fields import CLAIMED, listed
from tenure.stores.postgres.base import PostgresBase
from tenure.stores.postgres.marks import START, Marks, Place
from tenure.stores.postgres.server import Asking, Server
from tenure.stores.rules import MANY_QUEUES

SLOW_READ_SECONDS = 0.05  #: no claim is made meanwhile
SLOW_READS = 3
READ_SHARE = 100  #: a slow read is repeated after this many times its own time
CLAIM_TRIES = 10  #: if other workers claimed the jobs first, or they were changed meanwhile

_CLAIMED = listed(
    CLAIMED,
    **{name: f"j.{name}" for name in CLAIMED}
    | {
        "id": "j.id::text",
        "enqueued_ms": "(date_part('epoch', j.enqueued_at) * 1000)::bigint",
        "linked": "j.linked IS NOT NULL",
        "limited": "j.limits IS NOT NULL",
        "expired": "coalesce(j.attempt = 1 AND j.expires_at < @now, false)",
    },
)

# Known without reading a large text.
_BYTES = "octet_length(payload) + coalesce(octet_length(checkpoint), 0) + octet_length(meta)"
_TAKE = f"""
    UPDATE @.jobs AS j SET state = 'processing', attempt = j.attempt + 1, worker_id = %(worker)s,
        started_at = @now, last_activity_at = @now
    FROM chosen WHERE j.ctid = chosen.place
    RETURNING {_CLAIMED}"""

# The worker's row must exist, be neither dead nor expired, and the queue must not be paused: checked in the statement
# that claims. Each queue is read from a place (rank, run_at, id) on, so that a claim need not step over the index
# entries of jobs that ended since an old snapshot was taken; jobs of a higher priority are read from the start.
_CHOOSE = f"""
    WITH chosen AS MATERIALIZED (
        SELECT place FROM (SELECT place, bytes, sum(bytes) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM (
        SELECT j.ctid AS place, j.bytes
        FROM unnest(%(queues)s::text[], %(wants)s::integer[], %(ranks)s::integer[], %(times)s::timestamptz[],
            %(ids)s::uuid[]) AS w (queue, want, rank, run_at, id)
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT ctid, {_BYTES} AS bytes FROM @.jobs
                WHERE state = 'queued' AND queue = w.queue AND NOT solo AND (-priority) < w.rank
                ORDER BY (-priority), run_at, id LIMIT w.want FOR NO KEY UPDATE SKIP LOCKED) AS before
            UNION ALL
            SELECT * FROM (
                SELECT ctid, {_BYTES} AS bytes FROM @.jobs
                WHERE state = 'queued' AND queue = w.queue AND NOT solo
                    AND ((-priority), run_at, id) > (w.rank, w.run_at, w.id)
                ORDER BY (-priority), run_at, id LIMIT w.want FOR NO KEY UPDATE SKIP LOCKED) AS past
            LIMIT w.want) AS j
        WHERE EXISTS (SELECT FROM @.workers WHERE id = %(worker)s AND died_at IS NULL AND expires_at > @now)
          AND NOT EXISTS (SELECT FROM @.queues WHERE name = w.queue)
        LIMIT %(limit)s) AS found) AS summed WHERE total - bytes < {BATCH_BYTES})"""

# A job that was changed between the statement's snapshot and its lock is chosen in its new version, whose place the
# snapshot does not show, so it is not taken. Therefore each row says how many were chosen; and in how many seconds.
_CHOSEN_IN = "date_part('epoch', clock_timestamp() - statement_timestamp())"
CLAIM = f"{_CHOOSE} {_TAKE}, {_CHOSEN_IN}, (SELECT count(*) FROM chosen)"
#: The same, with one row if none was taken. It costs more, as the jobs that were taken are materialised first.
CLAIM_TOLD = f"""{_CHOOSE}, taken AS ({_TAKE})
    SELECT taken.*, 0.0, number FROM (SELECT count(*) AS number FROM chosen) AS all_chosen LEFT JOIN taken ON true"""

#: How many each of the first suspects of a queue may run with, and its size, in the order in which they are claimed.
SUSPECTS = f"""
    SELECT id::text, together, {_BYTES} FROM @.jobs WHERE state = 'queued' AND queue = %s AND solo
        AND NOT EXISTS (SELECT FROM @.queues WHERE name = queue)
    ORDER BY (-priority), run_at, id LIMIT %s"""

#: A group of suspects, all or those that no other worker has just claimed.
CLAIM_GROUP = f"""
    WITH chosen AS MATERIALIZED (
        SELECT ctid AS place FROM @.jobs
        WHERE id = ANY(%(ids)s::uuid[]) AND (state || '') = 'queued' AND solo AND together >= %(size)s
          AND NOT EXISTS (SELECT FROM @.jobs WHERE state = 'processing' AND worker_id = %(worker)s)
          AND EXISTS (SELECT FROM @.workers WHERE id = %(worker)s AND died_at IS NULL AND expires_at > @now)
          AND NOT EXISTS (SELECT FROM @.queues WHERE name = queue)
        ORDER BY (-priority), run_at, id FOR NO KEY UPDATE SKIP LOCKED)
{_TAKE}"""

OWNED = f"""
    SELECT {_CLAIMED}, j.cancel_reason
    FROM @.jobs AS j WHERE (j.state || '') = 'processing' AND j.worker_id = %s AND j.id = ANY(%s::uuid[])"""
LEASES = "SELECT id::text, attempt, cancel_reason FROM @.jobs WHERE state = 'processing' AND worker_id = %s"
LEASES_OF = """
    SELECT id::text, attempt, cancel_reason FROM @.jobs
    WHERE (state || '') = 'processing' AND worker_id = %s AND id = ANY(%s::uuid[])"""


def _claiming(
    worker_id: str, wants: Mapping[str, int], limit: int, places: Sequence[Place]
) -> Asking[tuple[list[Claimed], float]]:
    """The jobs, and in how many seconds the server chose the first of them."""
    claimed: list[Claimed] = []
    seconds = 0.0
    for number in range(CLAIM_TRIES):
        facts = {
            "queues": _array(wants),
            "wants": _array(want - sum(each.queue == queue for each in claimed) for queue, want in wants.items()),
            "ranks": _array(place[0] for place in places),
            "times": _array(place[1] for place in places),
            "ids": _array(place[2] for place in places),
            "worker": worker_id,
            "limit": limit - len(claimed),
        }
        rows = yield CLAIM_TOLD if number else CLAIM, facts
        taken = [Claimed._make(row[:-2]) for row in rows if row[0] is not None]
        claimed += taken
        seconds = seconds or (rows[0][-2] if rows else 0.0)
        if (rows and len(taken) == rows[0][-1]) or may_be_cut(claimed):
            break
    return claimed, seconds


def _array(items: Iterable[object]) -> str:
    """As PostgreSQL writes it: five lists take the driver 25 µs, of the 190 that a claim takes that finds no job."""
    quoted = (str(each).replace("\\", "\\\\").replace('"', '\\"') for each in items)
    return "{" + ",".join(f'"{each}"' for each in quoted) + "}"


class PostgresClaims(PostgresBase):
    """`claim` and `owned` of `JobStore`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._marks = Marks(server)
        self._slow_reads = 0  #: of all leases, in a row
        self._by_id_until = 0.0

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        try:
            if len(wants) >= MANY_QUEUES:
                wants = {queue: wants[queue] for queue in self._with_jobs(list(wants), solo=solo)}
            return (self._claim_suspects if solo else self._claim_all)(worker_id, wants, limit) if wants else []
        except BaseException:
            self._by_id_until = 0.0  # the reply may be lost, and `owned` must find its jobs
            raise

    def claim_on_loop(
        self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False
    ) -> OnLoop[list[Claimed]]:
        if solo or not wants or len(wants) >= MANY_QUEUES or self._marks.in_use:
            return None
        try:
            found = yield from self._server.on_loop(
                _claiming(worker_id, wants, limit, [START] * len(wants)), binary=True
            )
        except BaseException:
            self._by_id_until = 0.0  # as in `claim`
            raise
        if found is None:
            return None
        claimed, seconds = found
        self._marks.took(claimed, seconds)
        return claimed

    def _claim_suspects(self, worker_id: str, wants: Mapping[str, int], limit: int) -> list[Claimed]:
        for queue, want in wants.items():
            if group := self._claim_group(worker_id, queue, min(want, limit)):
                return group
        return []

    def _claim_all(self, worker_id: str, wants: Mapping[str, int], limit: int) -> list[Claimed]:
        marks = self._marks
        marks.refresh()
        ask = self._server.ask
        claimed, seconds = ask(_claiming(worker_id, wants, limit, [marks.of(queue) for queue in wants]))
        short = len(claimed) < limit and not may_be_cut(claimed)
        if short and marks and not marks.believes(claimed):
            left = {queue: want - sum(each.queue == queue for each in claimed) for queue, want in wants.items()}
            marks.clear()
            more, seconds = ask(_claiming(worker_id, left, limit - len(claimed), [START] * len(left)))
            claimed += more
            short = len(claimed) < limit
        marks.after(claimed, seconds, short=short)
        return claimed

    def _claim_group(self, worker_id: str, queue: str, want: int) -> list[Claimed]:
        for _ in range(CLAIM_TRIES if want > 0 else 0):
            first = self._server.fetch(SUSPECTS, queue, min(want, MOST_TOGETHER))
            size = group_size(row[1] for row in first)
            before = accumulate((row[2] for row in first), initial=0)
            ids = [row[0] for row, total in zip(first[:size], before, strict=False) if total < BATCH_BYTES]
            facts = {"ids": ids, "size": size, "worker": worker_id}
            claimed = self._take_queued(CLAIM_GROUP, facts) if size else []
            if claimed or not size:
                return claimed
        return []  # other workers were faster each time; the next poll asks again

    def _take_queued(self, statement: str, facts: Mapping[str, Any]) -> list[Claimed]:
        sql = self._sql(statement)
        return self._server.run(
            lambda connection: list(map(Claimed._make, connection.execute(sql, facts, binary=True).fetchall()))
        )

    def owned(self, worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        held: list[Owned] = []
        unknown: list[str] = []
        for job_id, attempt, cancel_reason in self._leases(worker_id, known):
            claimed = known.get(Lease(job_id, attempt, worker_id))
            if claimed is None:
                unknown.append(job_id)
            else:
                held.append(Owned(claimed, cancel_reason))
        rows = self._server.fetch(OWNED, worker_id, unknown) if unknown else []
        return held + [Owned(Claimed._make(row[:-1]), row[-1]) for row in rows]

    def _leases(self, worker_id: str, known: Iterable[Lease]) -> list[tuple[Any, ...]]:
        """Of all its jobs; of those it knows for a time, if the entries of what it has ended make that slow.

        It owns no other job, unless the reply of a claim was lost.
        """
        if monotonic() < self._by_id_until:
            return self._server.fetch(LEASES_OF, worker_id, [lease.job_id for lease in known])
        began = monotonic()
        rows = self._server.fetch(LEASES, worker_id)
        seconds = monotonic() - began
        self._slow_reads = self._slow_reads + 1 if seconds > SLOW_READ_SECONDS else 0
        if self._slow_reads >= SLOW_READS:
            self._by_id_until = monotonic() + READ_SHARE * seconds
        return rows
