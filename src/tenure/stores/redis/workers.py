"""Workers in Redis: their rows, their leases, and the jobs of workers that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tenure.core.lifecycle import MOST_GROUPS, MOST_TOGETHER, Lease, Outcome, State, groups_of
from tenure.errors import StoreAway
from tenure.ports import Hung, Rescued, WorkerIdentity
from tenure.stores.redis.base import RedisBase
from tenure.stores.redis.drafts import MOST, batches, cost
from tenure.stores.redis.facts import decode_facts, millis
from tenure.stores.redis.steps import TRIES, Taken, take
from tenure.stores.rules import (
    MANY_QUEUES,
    Cause,
    check_outcomes,
    check_text,
    ended_note,
    is_id,
    json_of,
    settled,
    used_before,
)
from tenure.stores.rules import lost as why_lost


class RedisWorkers(RedisBase):
    """The verbs of `WorkerStore`."""

    def register(self, worker: WorkerIdentity) -> None:
        check_text(worker.id)
        facts = (millis(worker.lease), json_of(worker), worker.protocol, *worker.queues)
        if not self._server.call("register", worker.id, *facts):
            raise used_before(worker.id)

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        texts, sizes = notes or {}, memory or {}
        values = [text for each in worker_ids for text in (each, texts.get(each, ""), sizes.get(each, ""))]
        return frozenset(self._server.call("renew", *values))

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return frozenset(self._server.call("declare", *worker_ids))

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        died: frozenset[str] = frozenset()
        while True:
            more = self._server.call("declare_expired", witness or "", _until(until))
            died |= frozenset(more)
            if len(more) < MOST:
                return died

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        check_outcomes((*verdicts.values(), rest))
        # The death is declared in one step with the last ends: were it visible before, a scan could charge these jobs
        # with a crash.
        done: list[Rescued] = []
        for _ in range(TRIES):
            held = [row for ids in batches(self._held(worker_id)) for row in self._server.call("held", worker_id, *ids)]
            held.sort(key=_silent_longest)
            taken: list[Taken] = [(row, *settled(row[0], verdicts, rest)) for row in held]
            found, ends = take(taken, lost=False)
            pairs = list(zip(found, ends, strict=True))
            *before, last = list(batches(pairs, lambda pair: cost(pair[1]))) or [[]]
            for batch in before:
                fits = self._server.call("end", "", "", *(end for _, end in batch))
                done += [each for (each, _), fit in zip(batch, fits, strict=True) if fit]
            note = ended_note(how, [(each.id, each.task) for each in (*done, *found)]) if how else ""
            if self._server.call("end", worker_id, note, *(end for _, end in last)) == [1]:
                return done + [each for each, _ in last]
        raise StoreAway(f"{self._server.url}: the jobs of worker {worker_id} changed faster than they could be read")

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        return self._rescue(self._server.call("lost", min(limit, MOST)))

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        if not is_id(job_id):
            return None
        result = self._server.call("redelivered", job_id, int(declare), witness or "", _until(until))
        if result is None:
            return None
        state, *lost = result
        return next(iter(self._rescue(lost, "queue")), State(state))

    def _rescue(self, lost: Sequence[Sequence[Any]], forced: Cause | None = None) -> list[Rescued]:
        taken: list[Taken] = []
        for row in lost:
            outcome, cause = why_lost(row[3], row[2])
            taken.append((row, outcome, forced or cause))
        if not taken:
            return []
        rescued, ends = take(taken, lost=True)
        fits = self._server.call("end", "", "", *ends)
        return [each for each, fit in zip(rescued, fits, strict=True) if fit]

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        rows = self._server.call("hung", *worker_ids)
        return [Hung(Lease(*row[:3]), decode_facts(row[3]).task, row[4] / 1000) for row in rows]

    def solo_waiting(self, queues: Sequence[str], *, slots: int = MOST_TOGETHER) -> int:
        if len(queues) >= MANY_QUEUES:
            queues = self._with_jobs(queues, solo=True)
        lanes = self._server.call("solo_waiting", MOST_TOGETHER * MOST_GROUPS, *queues)
        return min(sum(groups_of(lane, slots) for lane in lanes), MOST_GROUPS)


def _silent_longest(row: Sequence[Any]) -> tuple[int, str]:
    """Sorts rows of `held`: by the time of the last report, then by id."""
    return row[4], row[0]


def _until(instant: datetime | None) -> str:
    return "" if instant is None else str(int(instant.timestamp() * 1000))
