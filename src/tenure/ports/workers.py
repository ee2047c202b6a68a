"""Worker rows, their leases, and what becomes of the jobs of a worker that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from tenure.core.lifecycle import Lease, Outcome, State

Runner = Literal["worker", "embedded", "solo", "guard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """One process start. `id` is `hostname-pid-random`, never used again."""

    id: str
    host: str
    pid: int
    started: str  #: the process's start time as its kernel tells it; with pid, boot and pid namespace it proves death
    boot_id: str
    pid_namespace: str
    runner: Runner
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    lease: float  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """One job taken back, and from whom. `cause`: crash (proof of death), host (lease ended), stale (hung), queue."""

    id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    cause: Literal["crash", "host", "stale", "queue"]
    state: State


class Hung(NamedTuple):
    """A job of a living worker that has been silent for longer than its `stale_after`."""

    lease: Lease
    task: str
    silent: float


class WorkerStore(Protocol):
    """The verbs of supervisors: who lives, who is dead, and what happens to the jobs of the dead."""

    def register(self, worker: WorkerIdentity) -> None:
        """A new worker's row, alive for `worker.lease` seconds. Raises StoreError if its id has a row already."""
        ...

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        """Extend each row that is not dead by its lease. Who is missing from the answer is dead, for ever.

        For people, by worker id: `notes` replace those stored (none: all is well with it), `memory` is in bytes (none:
        what is stored stays).
        """
        ...

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        """Proof of death is the caller's (its process is gone): died_at = now. Which of them died just now."""
        ...

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        """died_at = now for every row that is not dead and whose lease has run out. Which.

        `witness` is a worker of the caller's: nobody is declared unless that one lives and has more than a third of its
        lease left. A call may be held up on its way for as long as an outage lasts, and must not then judge those whom
        the same outage kept from renewing. Nor after `until`, by the store's clock: a renewal of the witness may have
        been held up with it, and be carried out first.
        """
        ...

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome) -> list[Rescued]:
        """The worker's process is gone: declare it dead, end each lease it held by its verdict (by job id) or `rest`.

        One transaction. Only for leases of this worker: what was rescued meanwhile is left alone.
        """
        ...

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        """processing, with an owner that is dead, missing, or hung two leases too long → where Crashed leads.

        Longest silent first, at most `limit`: call again while the answer is full. The predicate stands in the write.
        """
        ...

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        """A queue delivered this job again: the rescue of one job, with the cause `queue`.

        Its owner is first declared dead if its lease has run out and the caller may `declare` (who was away may not;
        `witness` and `until` as above). Else where the job is now; None: no such job.
        """
        ...

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        """Jobs of these living workers that have been silent for longer than their `stale_after`. Changes nothing."""
        ...

    def solo_waiting(self, queues: Sequence[str]) -> int:
        """How many queued jobs of these queues must run alone. Changes nothing."""
        ...
