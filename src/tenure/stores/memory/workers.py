"""Workers in memory: their rows, their leases, and the jobs of workers that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure.core.lifecycle import MOST_GROUPS, MOST_TOGETHER, Crashed, Lease, Outcome, State, groups_of, legal
from tenure.ports import Hung, Rescued, WorkerIdentity
from tenure.stores.memory.base import MemoryBase, atomic
from tenure.stores.memory.rows import Row, Worker, over
from tenure.stores.rules import Beside, Cause, check_outcomes, cleared, ended_note, lost, rescued, settled, used_before


class MemoryWorkers(MemoryBase):
    """The verbs of `WorkerStore`."""

    @atomic
    def register(self, worker: WorkerIdentity) -> None:
        if worker.id in self._workers:
            raise used_before(worker.id)
        now = self.now()
        self._workers[worker.id] = Worker(worker, now, now, self._clock.boot() + worker.lease)

    @atomic
    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        renewed = [worker for worker in map(self._workers.get, worker_ids) if worker and not worker.died_at]
        for worker in renewed:
            name, ends = worker.identity.id, self._clock.boot() + worker.identity.lease
            note, size = (notes or {}).get(name, ""), (memory or {}).get(name, worker.memory)
            self._workers[name] = replace(worker, renewed_at=self.now(), lease_ends=ends, note=note, memory=size)
        return frozenset(worker.identity.id for worker in renewed)

    @atomic
    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return self._declare(worker_ids, "crash")

    @atomic
    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        if not self._credible(witness, until):
            return frozenset()
        return self._declare([name for name, worker in self._workers.items() if self._lease_over(worker)], "host")

    @atomic
    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        check_outcomes((*verdicts.values(), rest))
        self._declare([worker_id], "crash")
        held = self._held_by(worker_id)
        beside = self._beside(worker_id)
        if how and (worker := self._workers.get(worker_id)) is not None:
            note = ended_note(how, [(lease.job_id, row.view.task) for row, lease in held])
            self._workers[worker_id] = replace(worker, note=note)
        return [
            self._take_back("finish", row, lease, *settled(lease.job_id, verdicts, rest), beside) for row, lease in held
        ]

    @atomic
    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        held = [(row, row.lease) for row in self._rows() if row.lease and legal("rescue", row.view.state)]
        found = [(row, lease, self._lost(row, lease.worker_id)) for row, lease in held]
        taken = sorted(((r, lease, *why) for r, lease, why in found if why), key=lambda each: (each[0].active, each[1]))
        beside = {lease.worker_id: self._beside(lease.worker_id) for _, lease, _, _ in taken}
        return [self._take_back("rescue", *each, beside[each[1].worker_id]) for each in taken[:limit]]

    @atomic
    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        row = self._jobs.get(job_id)
        if row is None or row.lease is None:
            return row.view.state if row else None
        worker = self._workers.get(row.lease.worker_id)
        if declare and worker and self._lease_over(worker) and self._credible(witness, until):
            self._declare([worker.identity.id], "host")
        why = self._lost(row, row.lease.worker_id)
        if why is None:
            return row.view.state
        return self._take_back("rescue", row, row.lease, why[0], "queue", self._beside(row.lease.worker_id))

    @atomic
    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        held = [each for worker_id in dict.fromkeys(worker_ids) for each in self._held_by(worker_id)]
        silent = [(row, lease, self._silent(row)) for row, lease in held]
        return [Hung(lease, r.view.task, age) for r, lease, age in silent if over(age, r.view.stale_after)]

    @atomic
    def solo_waiting(self, queues: Sequence[str], *, slots: int = MOST_TOGETHER) -> int:
        lanes = [self._waiting(queue, solo=True) for queue in set(queues) - set(self._paused)]
        return min(sum(groups_of([row.view.together for row in lane], slots) for lane in lanes), MOST_GROUPS)

    def _credible(self, witness: str | None, until: datetime | None) -> bool:
        """Is the call in time, and its witness renewed recently enough that an expired lease proves the others dead?"""
        if until is not None and self.now() > until:
            return False
        worker = self._workers.get(witness or "")
        if worker is None:
            return witness is None
        return not worker.died_at and worker.lease_ends - self._clock.boot() > worker.identity.lease / 3

    def _declare(self, worker_ids: Iterable[str], cause: Cause) -> frozenset[str]:
        died = [worker for worker in map(self._workers.get, set(worker_ids)) if worker and not worker.died_at]
        for worker in died:
            self._workers[worker.identity.id] = replace(worker, died_at=self.now(), died_of=cause)
        return frozenset(worker.identity.id for worker in died)

    def _lost(self, row: Row, worker_id: str) -> tuple[Crashed, Cause] | None:
        """Why a processing job may be rescued; None: its owner is alive and reports activity."""
        worker = self._workers.get(worker_id)
        if worker is None:
            return lost("missing", worker_id)
        if worker.died_at:
            return lost(worker.died_of, worker_id)
        patience = 2 * worker.identity.lease
        return lost("hung", worker_id) if over(self._silent(row) - patience, row.view.stale_after) else None

    def _silent(self, row: Row) -> float:
        return self._clock.boot() - row.active

    def _beside(self, worker_id: str) -> Beside:
        worker = self._workers.get(worker_id)
        return Beside(worker.identity.slots if worker else 1, len(self._held_by(worker_id)) > 1)

    def _take_back(self, verb: str, row: Row, lease: Lease, outcome: Outcome, cause: Cause, beside: Beside) -> Rescued:
        message = cleared(lease, outcome)
        after = self._end(verb, row, lease, outcome, beside, **({} if message is None else {"message": message}))
        return rescued(lease, after.task, after.queue, cause, after.state, outcome)
