"""The identity of a worker, and how its row is registered, renewed and lost.

`LeaseHolder` is for a process that renews its own row. A supervisor renews many rows at once with `renew`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tenure.core.clock import Clock, system_clock
from tenure.core.host import has_ended, host_name, new_token, pid_namespace, started, worker_id
from tenure.ports import Runner, Store, WorkerIdentity

# Parts of a lease, counted from when the last successful renewal was sent.
ASK_AFTER = 2 / 3
KILL_AFTER = 4 / 5
AWAY_AFTER = 1 / 2  #: a process without a renewal for longer declares no worker dead: others need the time that is left
RETRY_SECONDS = 1.0  #: between two tries while the store is unavailable


def identity(
    runner: Runner,
    queues: Iterable[str],
    tasks: Iterable[str],
    slots: int,
    lease: float,
    *,
    pid: int | None = None,
    token: str | None = None,
) -> WorkerIdentity:
    """The row of a worker in this process, or in the child process with this pid and token."""
    pid = os.getpid() if pid is None else pid
    return WorkerIdentity(
        id=worker_id(pid, token or new_token()),
        host=host_name(),
        pid=pid,
        started=started(pid),
        boot_id=system_clock().boot_id,
        pid_namespace=pid_namespace(),
        runner=runner,
        queues=tuple(queues),
        tasks=tuple(tasks),
        slots=slots,
        lease=lease,
    )


def provably_gone(worker: WorkerIdentity) -> bool:
    """True if it ran in this boot and pid namespace, and its process is gone or its pid is reused.

    False where that is not known, as with a row whose process could not be read: then its lease decides.
    """
    return (
        worker.boot_id == system_clock().boot_id
        and worker.pid_namespace == pid_namespace()
        and bool(worker.pid_namespace or sys.platform != "linux")
        and bool(worker.started)
        and has_ended(worker.pid, worker.started)
    )


class Renewal(NamedTuple):
    """A successful renewal and its deadlines, by the boot clock, counted from when it was *sent*."""

    sent: float
    next_at: float  #: when to send the next one
    away_at: float  #: from then on no other worker is declared dead: the same outage may have stopped its renewals
    ask_at: float  #: when the code is asked to stop
    kill_at: float  #: when the code is killed
    ends_at: float  #: when the lease ends, and others may rescue its jobs

    @classmethod
    def of(cls, sent: float, lease: float) -> Renewal:
        moments = (lease / 3, lease * AWAY_AFTER, lease * ASK_AFTER, lease * KILL_AFTER, lease)
        return cls(sent, *(sent + moment for moment in moments))


def renew(
    store: Store,
    worker_ids: Sequence[str],
    lease: float,
    boot: Callable[[], float],
    *,
    notes: Mapping[str, str] | None = None,
    memory: Mapping[str, int] | None = None,
) -> tuple[Renewal, frozenset[str]]:
    """Renew these rows in one call. Returns the renewal and the ids it holds for; the other workers are dead."""
    sent = boot()
    alive = store.renew(worker_ids, notes=notes, memory=memory)
    return Renewal.of(sent, lease), alive


class LeaseHolder:
    """One worker's row in the store, and until when its code may run. Times are boot-clock seconds.

    A renewal that was refused or not answered moves no deadline: the last successful one counts.
    """

    def __init__(self, store: Store, worker: WorkerIdentity, clock: Clock) -> None:
        self.worker = worker
        self._store, self._boot = store, clock.boot
        self.landed = Renewal.of(clock.boot(), worker.lease)  #: the last successful one; at first, the registration

    @property
    def id(self) -> str:
        return self.worker.id

    def register(self) -> None:
        landed = Renewal.of(self._boot(), self.worker.lease)
        self._store.register(self.worker)
        self.landed = landed

    def renew(self, *, memory: Mapping[str, int] | None = None) -> bool:
        """Extend the lease. False: the worker was declared dead, for good. After a StoreError the result is unknown."""
        renewal, alive = renew(self._store, [self.id], self.worker.lease, self._boot, memory=memory)
        if self.id in alive:
            self.landed = renewal
        return self.id in alive

    def pause(self, *, landed: bool) -> float:
        """Seconds until the next renewal is to be sent, after one that succeeded or failed."""
        beat = self.worker.lease / 3
        return beat if landed else min(RETRY_SECONDS, beat)

    @property
    def must_stop(self) -> bool:
        """Has the last successful renewal been so long ago that the code must be asked to stop?"""
        return self._boot() >= self.landed.ask_at

    @property
    def over(self) -> bool:
        """Has the lease ended, so that others may have rescued its jobs?"""
        return self._boot() >= self.landed.ends_at
