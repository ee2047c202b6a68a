"""The table of worker processes: started, replaced with backoff, and let go of when they have ended.

Only the main thread changes it; any thread may look through it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tenure.liveness.host import end_leftovers, kill_group
from tenure.ports import Runner
from tenure.supervisor.mainloop import MainLoop
from tenure.supervisor.process import WorkerProcess

MOST_BACKOFF_SECONDS = 30.0


class ProcessTable:
    """Each message of a worker goes to `heard`, its exit to `ended`. Nothing is started while `stopping` says so."""

    def __init__(
        self,
        command: Sequence[str],
        loop: MainLoop,
        boot: Callable[[], float],
        *,
        heard: Callable[[WorkerProcess, dict[str, Any]], None],
        ended: Callable[[WorkerProcess], None],
        stopping: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._command, self._loop, self._boot, self._say = command, loop, boot, say
        self._heard, self._ended, self._stopping = heard, ended, stopping
        self._workers: dict[int, WorkerProcess] = {}
        self._failed_starts = 0
        self._start_at: list[float] = []
        self._solo_wanted = 0
        self.served: frozenset[str] = frozenset()  #: the queues that its workers serve
        self.ending: frozenset[str] = frozenset()  #: gone, and not yet settled: ours, with what we know of them

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, worker: WorkerProcess) -> bool:
        return worker.process.pid in self._workers

    def mine(self) -> frozenset[str]:
        """The ids of its workers, also of those that are gone and not yet settled."""
        return frozenset(worker.id for worker in self) | self.ending  # in this order: they go from here to there

    # ── starting ──

    @property
    def waits_to_start(self) -> bool:
        """Is one to be started later?"""
        return bool(self._start_at)

    def start(self, runner: Runner, replaces: str = "") -> None:
        if self._stopping():
            return
        try:
            worker = WorkerProcess.start(self._command, runner, replaces)
        except OSError as error:
            self._say(f"a new worker can't be started: {error}")
            if runner == "worker":
                self._try_again_later()
            return
        self._workers[worker.process.pid] = worker
        if worker.pidfd >= 0:
            self._loop.watch(worker.pidfd, partial(self._ended, worker))
        self._loop.watch(worker.link, partial(self._receive, worker))
        if self._stopping():  # the signal came while nobody knew of this one
            worker.kill("told to stop before it had begun")

    def started_well(self) -> None:
        self._failed_starts = 0

    def replace(self, worker: WorkerProcess) -> None:
        """It has ended: start another one in its place, at once if it had begun to work."""
        if worker.runner == "solo":
            return
        if worker.ready:
            self.start_due()  # a job that must run alone comes first: it is the one that waits
            self.start("worker", replaces=worker.id)
        else:
            self._try_again_later()

    def want_solo(self, waiting: int) -> None:
        """So many jobs wait that must run alone."""
        self._solo_wanted = waiting

    def start_due(self) -> None:
        now = self._boot()
        due = [at for at in self._start_at if at <= now]
        self._start_at = [at for at in self._start_at if at > now]
        for _ in due:
            self.start("worker")
        if self._solo_wanted:
            running = sum(worker.runner == "solo" and not worker.draining for worker in self)
            for _ in range(min(self._solo_wanted, os.cpu_count() or 1) - running):
                self.start("solo")
        self._solo_wanted = 0

    def hurry(self) -> None:
        """The store has recovered: what would have failed without it need not sit out its backoff."""
        self._failed_starts, self._start_at = 0, [0.0] * len(self._start_at)

    def _try_again_later(self) -> None:
        self._failed_starts += 1
        delay = min(2.0 ** (self._failed_starts - 1), MOST_BACKOFF_SECONDS)
        self._start_at.append(self._boot() + delay)

    # ── hearing, ending ──

    def _receive(self, worker: WorkerProcess) -> None:
        if worker.link.closed:
            return  # it ended in this very turn, and both its exit and its closed link were in it
        for message in worker.link.receive():
            self._heard(worker, message)
        if worker.link.closed:
            self._loop.forget(worker.link)
            if worker.pidfd < 0:
                self._ended(worker)

    def remove(self, worker: WorkerProcess) -> None:
        """It has ended: hear its last words, and end all that it left."""
        pid = worker.process.pid
        if worker.registered:
            self.ending |= {worker.id}
        del self._workers[pid]
        if worker.pidfd >= 0:
            self._loop.forget(worker.pidfd)
            os.close(worker.pidfd)
        kill_group(pid)
        end_leftovers(worker.token)  # first: what it forked may hold its end of the link open
        while not worker.link.closed and select.select([worker.link], [], [], 0)[0]:  # its last words
            self._receive(worker)
        if not worker.link.closed:
            self._loop.forget(worker.link)

    def reap_strangers(self) -> None:
        """As PID 1 we inherit orphans. Our own children are left to their pidfd."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in self._workers:
                return
            os.waitpid(found.si_pid, 0)

    def kill_all(self) -> None:
        """With us they end too."""
        for pid in self._workers:
            kill_group(pid)
