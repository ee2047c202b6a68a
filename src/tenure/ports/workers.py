"""Worker rows, their leases, and the jobs of workers that died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from tenure.core.lifecycle import MOST_TOGETHER, Lease, Outcome, State

PROTOCOL = 3  #: of this code's workers: those of 2 know nothing of limits, those of 1 nothing of jobs that wait
LINKS_PROTOCOL = 2  #: what a worker must know where jobs wait for jobs and signals

Runner = Literal["worker", "embedded", "solo", "guard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """One process start. `id` is `hostname-pid-random`, never used again."""

    id: str
    host: str
    pid: int
    started: str  #: the process's start time as its kernel reports it; with pid, boot and pid namespace it proves death
    boot_id: str
    pid_namespace: str
    runner: Runner
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    slots: int
    lease: float  #: seconds
    protocol: int = PROTOCOL  #: what its code knows: see `WaitStore.admit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescued:
    """One rescued job and its last owner. `cause`: crash (process died), host (lease ended), stale (hung), queue."""

    id: str
    task: str
    queue: str
    attempt: int
    worker_id: str
    cause: Literal["crash", "host", "stale", "queue"]
    state: State
    message: str = ""  #: why, as it stands in the job's row


class Hung(NamedTuple):
    """A job of a living worker that has been silent for longer than its `stale_after`."""

    lease: Lease
    task: str
    silent: float


class WorkerStore(Protocol):
    """The verbs of supervisors: which workers are alive, which are dead, and what happens to the jobs of the dead."""

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
        """Extend each row that is not dead by its lease. A worker missing from the answer is dead for good.

        For people, by worker id: `notes` replace the stored notes (no entry: nothing is wrong), `memory` is in bytes
        (no entry: the stored value is kept).
        """
        ...

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        """The caller has proof of death (the process is gone): died_at = now. Returns those that this call declared."""
        ...

    def declare_expired(self, *, witness: str | None = None, until: datetime | None = None) -> frozenset[str]:
        """died_at = now for every row that is not dead and whose lease has run out. Returns their ids.

        `witness` is a worker of the caller: no worker is declared dead unless the witness is alive and has more than a
        third of its lease left. An outage may delay a call for as long as it lasts, and the call must not then judge
        workers that the same outage kept from renewing. Nor is any declared dead after `until`, by the store's clock:
        a renewal of the witness may have been delayed with the call, and be executed first.
        """
        ...

    def settle(self, worker_id: str, verdicts: Mapping[str, Outcome], rest: Outcome, *, how: str = "") -> list[Rescued]:
        """The worker's process is gone: declare it dead, end each of its leases with its verdict (by job id) or `rest`.

        `how` its process ended, for people, in one line: it becomes the worker's note, followed by the jobs that it ran
        (at most 20), one a line, its id before its task; and a line `+5` for five more.

        A job with a verdict is why the process was killed: it hung, so its cause is `stale`; that of the rest is
        `crash`. One transaction. Only leases of this worker: a job rescued meanwhile is not touched.
        """
        ...

    def rescue(self, *, limit: int = 100) -> list[Rescued]:
        """processing, with an owner that is dead, missing, or hung for two leases too long → the state after Crashed.

        Longest silent first, at most `limit`: call again while the answer is full. The write checks the predicate.
        """
        ...

    def redelivered(
        self, job_id: str, *, declare: bool, witness: str | None = None, until: datetime | None = None
    ) -> Rescued | State | None:
        """A queue redelivered this job: the rescue of one job, with the cause `queue`.

        Its owner is first declared dead if its lease has run out and the caller may `declare` (a caller that was cut
        off from the store may not; `witness` and `until` as above). Else the job's state; None: no such job.
        """
        ...

    def hung(self, worker_ids: Sequence[str]) -> list[Hung]:
        """Jobs of these living workers that have been silent for longer than their `stale_after`. Changes nothing."""
        ...

    def solo_waiting(self, queues: Sequence[str], *, slots: int = MOST_TOGETHER) -> int:
        """How many groups the suspects queued here make, for workers with `slots` slots; 8 at most. Changes nothing."""
        ...
