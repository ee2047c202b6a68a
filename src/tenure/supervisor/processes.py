"""The table of worker processes: starts them, replaces them with backoff, and removes them when they have ended.

Only the main thread changes it; any thread may read it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any

from tenure.core.host import end_leftovers, kill_group
from tenure.core.lifecycle import MOST_GROUPS
from tenure.ports import Runner
from tenure.supervisor.mainloop import MainLoop
from tenure.supervisor.process import WorkerProcess
from tenure.supervisor.spares import Spares
from tenure.worker.link import Link

MAX_BACKOFF_SECONDS = 30.0
FIRST_SPARE_SECONDS = 5.0  #: after the first worker is ready: until then the queued jobs have the processors


def _readable(link: Link) -> bool:
    poll = select.poll()  # not select(2), which takes no file numbers from 1024 on
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0))


class ProcessTable:
    """Calls `on_message` for each message of a worker, `on_exit` when it exits. Starts nothing while `stopping()`."""

    def __init__(
        self,
        command: Sequence[str],
        loop: MainLoop,
        boot: Callable[[], float],
        *,
        on_message: Callable[[WorkerProcess, dict[str, Any]], None],
        on_exit: Callable[[WorkerProcess], None],
        stopping: Callable[[], bool],
        echo: Callable[[str], None],
    ) -> None:
        self._loop, self._boot, self._echo = loop, boot, echo
        self.spares = Spares(command)
        self._on_message, self._on_exit, self._stopping = on_message, on_exit, stopping
        self._workers: dict[int, WorkerProcess] = {}
        self._failed_starts = 0
        self._start_at: list[float] = []
        self._solo_wanted = 0
        self._spares_from = inf  #: when spares may be started; no worker has been ready yet
        self.retired = 0  #: how many workers were not replaced, by an operator's order
        self.served: frozenset[str] = frozenset()  #: the queues that the workers serve
        self.ending: frozenset[str] = frozenset()  #: ids of workers that have ended, but are not settled yet

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, worker: WorkerProcess) -> bool:
        return worker.process.pid in self._workers

    def mine(self) -> frozenset[str]:
        """The ids of this supervisor's workers, including those that have ended but are not settled yet."""
        return frozenset(worker.id for worker in self) | self.ending  # in this order: ids move from here to `ending`

    # ── starting ──

    @property
    def waits_to_start(self) -> bool:
        """Is a start scheduled for later?"""
        return bool(self._start_at)

    def start(self, runner: Runner, replaces: str = "") -> None:
        if self._stopping():
            return
        try:
            worker = self.spares.take()
        except OSError as error:
            self._echo(f"a new worker can't be started: {error}")
            if runner == "worker":
                self._schedule_start()
            return
        self._workers[worker.process.pid] = worker
        if worker.pidfd >= 0:
            self._loop.watch(worker.pidfd, partial(self._on_exit, worker))
        self._loop.watch(worker.link, partial(self._receive, worker))
        worker.load(runner, replaces)
        if self._stopping():  # the signal arrived before this worker was in the table
            worker.kill("the supervisor was stopped before it was ready")

    def started(self, worker: WorkerProcess) -> None:
        """It is ready: forget the backoff, and start a spare if no other worker is starting."""
        worker.ready = True
        self._failed_starts = 0
        if self._spares_from == inf:
            self._spares_from = self._boot() + FIRST_SPARE_SECONDS
        self._fill_spares()

    def _fill_spares(self) -> None:
        starting = self.waits_to_start or not all(each.ready for each in self)
        if self._boot() >= self._spares_from and not starting and not self._stopping():
            self.spares.fill()

    def replace(self, worker: WorkerProcess) -> None:
        """Start another worker in place of one that has ended, at once if that one had become ready."""
        if worker.runner == "solo":
            return
        if worker.retired:
            self.retired += 1
            return
        if worker.ready:
            self.start_due()  # solo workers first: a job that must run alone is already queued
            self.start("worker", replaces=worker.id)
        else:
            self._schedule_start()

    def want_solo(self, groups: int) -> None:
        """Set how many groups of suspects are queued."""
        self._solo_wanted = groups

    def start_due(self) -> None:
        now = self._boot()
        due = [at for at in self._start_at if at <= now]
        self._start_at = [at for at in self._start_at if at > now]
        for _ in due:
            self.start("worker")
        if self._solo_wanted:
            running = [worker for worker in self if worker.runner == "solo" and not worker.draining]
            waits_for_others = all(worker.ready for worker in running)  # they may all be busy, for hours
            wanted = max(self._solo_wanted, len(running) + waits_for_others)
            for _ in range(min(wanted, MOST_GROUPS) - len(running)):
                self.start("solo")
        self._solo_wanted = 0
        self._fill_spares()

    def start_now(self) -> None:
        """Skip the backoff: the store has recovered, and starts failed only because it was unavailable."""
        self._failed_starts, self._start_at = 0, [0.0] * len(self._start_at)

    def _schedule_start(self) -> None:
        self._failed_starts += 1
        delay = min(2.0 ** min(self._failed_starts - 1, 10), MAX_BACKOFF_SECONDS)
        self._start_at.append(self._boot() + delay)

    # ── messages and exits ──

    def _receive(self, worker: WorkerProcess) -> None:
        if worker.link.closed:
            return  # its exit and the end of its link were reported in the same turn
        for message in worker.link.receive():
            self._on_message(worker, message)
        if worker.link.closed:
            self._loop.forget(worker.link)
            if worker.pidfd < 0:
                self._on_exit(worker)

    def notice_exits(self) -> None:
        """Where there is no pidfd: a process that a handler has forked may hold the link of a dead worker open."""
        for worker in self:
            if worker.pidfd < 0 and worker.reap():
                self._on_exit(worker)

    def remove(self, worker: WorkerProcess) -> None:
        """Remove a worker that has ended: kill the processes it left behind, and read its remaining messages."""
        pid = worker.process.pid
        if worker.registered:
            self.ending |= {worker.id}
        del self._workers[pid]
        if worker.pidfd >= 0:
            self._loop.forget(worker.pidfd)
            os.close(worker.pidfd)
        kill_group(pid)
        end_leftovers(worker.token)  # before reading: a process that it forked may hold its end of the link open
        while not worker.link.closed and _readable(worker.link):
            self._receive(worker)
        if not worker.link.closed:
            self._loop.forget(worker.link)

    def reap_orphans(self) -> None:
        """As PID 1, reap inherited orphans. The supervisor's own children are reaped through their pidfd."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in self._workers:
                return
            os.waitpid(found.si_pid, 0)

    def kill_all(self) -> None:
        """Kill all workers, as the supervisor is about to exit."""
        self.spares.end()
        for pid in self._workers:
            kill_group(pid)
