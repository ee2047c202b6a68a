"""A supervisor's maintenance: a pass of the shared duties, plus the checks that only a supervisor makes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from tenure.core.durations import spell
from tenure.core.lifecycle import Crashed, Lease, Outcome, State
from tenure.supervisor.shared import Shared

SOON_SECONDS = 60.0  #: --until-empty waits for jobs that are due sooner than this
HUNG_GRACE_SECONDS = 10.0  #: how long a worker has to stop a hung job by itself
CHECK_SECONDS = 0.5  #: between two checks whether the queues are empty or a file has changed


class Upkeep:
    """Its steps run in a thread of their own, and schedule what follows from them in the main thread.

    `empty` is called when nothing is left to do, `changed` with the first source file that has changed. None: not
    checked.
    """

    def __init__(
        self, shared: Shared, *, empty: Callable[[], None] | None, changed: Callable[[str], None] | None
    ) -> None:
        self._store, self._maintenance, self._boot = shared.store, shared.maintenance, shared.boot
        self._loop, self._processes = shared.loop, shared.processes
        self._empty, self._changed = empty, changed
        self._hung_since: dict[str, float] = {}
        self._files: dict[str, int] = {}

    def step(self) -> float:
        done = self._maintenance.run_pass(promoted=self._find_solo_jobs, scanned=self._find_hung_jobs)
        if self._empty is not None and self._is_empty(done.next_job):
            self._loop.call(self._empty)
        if self._changed is not None and (file := self._changed_file()):
            self._loop.call(partial(self._changed, file))
        return min(done.pause, CHECK_SECONDS) if self._empty or self._changed else done.pause

    def _find_solo_jobs(self) -> None:
        waiting = self._store.solo_waiting(sorted(self._processes.served))
        if waiting:
            self._loop.call(partial(self._processes.want_solo, waiting))

    def _find_hung_jobs(self) -> None:
        hung = self._store.hung([worker.id for worker in self._processes if worker.ready])
        now = self._boot()
        self._hung_since = {each.lease.job_id: self._hung_since.get(each.lease.job_id, now) for each in hung}
        for each in hung:
            if now - self._hung_since[each.lease.job_id] > HUNG_GRACE_SECONDS:
                verdict = Crashed(f"hung: silent for {spell(each.silent)}")
                self._loop.call(partial(self._kill_hung, each.lease, verdict))

    def _kill_hung(self, lease: Lease, verdict: Outcome) -> None:
        for worker in self._processes:
            if worker.id == lease.worker_id:
                worker.verdicts[lease.job_id] = verdict
                worker.kill("one of its jobs hung, and did not stop when asked")

    def _is_empty(self, next_due: float | None) -> bool:
        """True if nothing is queued, running or due soon: it waits for a retry, but not for tomorrow's job."""
        if not any(worker.ready and not worker.draining for worker in self._processes):
            return False
        mine = [view.counts for view in self._store.queues() if view.name in self._processes.served]
        waiting = any(counts[State.QUEUED] or counts[State.PROCESSING] for counts in mine)
        soon = next_due is not None and next_due < SOON_SECONDS and any(counts[State.SCHEDULED] for counts in mine)
        return not waiting and not soon

    def _changed_file(self) -> str:
        """The first source file that has changed since the last check; '' if none has."""
        files = {file for worker in self._processes for file in worker.hello.get("files", ())}
        seen = {file: _changed_at(file) for file in files}
        before, self._files = self._files, seen
        return next((file for file, at in seen.items() if before.get(file, at) != at), "")


def _changed_at(file: str) -> int:
    try:
        return os.stat(file).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0
