"""The duties that only a supervisor has: rows for the roster of its maintenance."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from tenure.core.lifecycle import Lease, State
from tenure.maintenance.maintenance import ADMIT_BATCH, WITHDRAW_BATCH
from tenure.maintenance.roster import Row, Turn
from tenure.ports import Hung
from tenure.supervisor.process import HUNG_GRACE_SECONDS
from tenure.supervisor.shared import Shared, suspects_waiting

MOST_HALTS = 100  #: of a worker that are remembered
SOON_SECONDS = 60.0  #: --until-empty waits for jobs that are due sooner than this
CHECK_SECONDS = 0.5  #: between two checks whether the queues are empty or a file has changed
SOLO_SECONDS = 1.0
SOLO_SPACING = 0.2


class Upkeep:
    """Its duties run in the thread of the roster, and schedule what follows from them in the main thread.

    `empty` is called when nothing is left that can be done, with the jobs that are left, in words; `changed` with the
    first source file that has changed. None: not checked.
    """

    def __init__(
        self, shared: Shared, *, empty: Callable[[str], None] | None, changed: Callable[[str], None] | None
    ) -> None:
        self._shared = shared
        self._store, self._maintenance, self._boot = shared.store, shared.maintenance, shared.boot
        self._lease = shared.settings.lease
        self._loop, self._processes = shared.loop, shared.processes
        self._empty, self._changed = empty, changed
        self._hung_since: dict[Lease, float] = {}
        self._looked_at = self._boot()
        self._halts: dict[str, deque[tuple[float, float]]] = {}  #: of a worker, by its id: until when, and how long
        self._files: dict[str, int] = {}

    def rows(self) -> list[Row]:
        rows = [
            Row("solo", _turn(self._find_solo_jobs), SOLO_SECONDS, spacing=SOLO_SPACING),
            Row("hung", _turn(self._find_hung_jobs), self._lease / 6),
        ]
        if self._empty is not None:
            rows.append(Row("empty", _turn(partial(self._check_empty, self._empty)), CHECK_SECONDS))
        if self._changed is not None:
            rows.append(Row("reload", _turn(partial(self._check_files, self._changed)), CHECK_SECONDS))
        return rows

    def _find_solo_jobs(self) -> None:
        groups = suspects_waiting(self._shared)
        if groups:
            self._loop.call(partial(self._processes.want_solo, groups))

    def _find_hung_jobs(self) -> None:
        hung = self._store.hung([worker.id for worker in self._processes if worker.ready])
        now = self._boot()
        self._note_halts(now)
        hung = [each for each in hung if self._could_report(each, now)]
        self._hung_since = {each.lease: self._hung_since.get(each.lease, now) for each in hung}
        for each in hung:
            if now - self._hung_since[each.lease] > HUNG_GRACE_SECONDS:
                self._loop.call(partial(self._kill_hung, each.lease, each.silent))

    def _note_halts(self, now: float) -> None:
        """For how long since the last look each worker did not run: it was stopped, or the machine slept."""
        gap, self._looked_at = now - self._looked_at, now
        period = self._lease / 6
        slept = gap - period if gap > 1.5 * period + HUNG_GRACE_SECONDS else 0.0  # the roster varies it by a fifth
        before, self._halts = self._halts, {}
        for worker in self._processes:
            halts = self._halts[worker.id] = before.get(worker.id) or deque(maxlen=MOST_HALTS)
            halted = gap if worker.stopped_since is not None else slept
            if halted:
                halts.append((now, halted))

    def _could_report(self, hung: Hung, now: float) -> bool:
        """Did its worker run for the whole `stale_after` of the job in its silence? Else it may have had no chance."""
        halted = sum(
            seconds for until, seconds in self._halts.get(hung.lease.worker_id, ()) if until > now - hung.silent
        )
        if not halted:
            return True
        job = self._store.get(hung.lease.job_id)
        return job is not None and job.stale_after is not None and hung.silent - halted > job.stale_after

    def _kill_hung(self, lease: Lease, silent: float) -> None:
        for worker in self._processes:
            if worker.id != lease.worker_id or worker.stopped_since is not None:
                continue
            if guilty := worker.blame(lease.job_id, silent, self._boot()):
                worker.verdicts.update(guilty)
                worker.kill("one of its jobs hung, and did not stop when asked")

    def _check_empty(self, empty: Callable[[str], None]) -> None:
        if self._is_empty():
            self._loop.call(partial(empty, "; ".join(self._left()[1])))

    def _is_empty(self) -> bool:
        """True if nothing is queued, running or due soon: --until-empty waits for a retry, but not for tomorrow's job.

        Nor does it wait for jobs and signals from elsewhere: a waiting job counts only while an ask is left, or its
        time-out is near.
        """
        if not any(worker.ready and not worker.draining for worker in self._processes):
            return False
        left, _ = self._left()
        if any(counts[State.QUEUED] or counts[State.PROCESSING] for counts in left.values()):
            return False
        turns: list[Turn] = []
        if any(counts[State.SCHEDULED] for counts in left.values()):
            turns.append(self._maintenance.promote(1))
        if any(counts[State.WAITING] for counts in left.values()):
            turns.append(self._maintenance.withdraw(WITHDRAW_BATCH))  # first: it stores asks for unserved jobs
            turns.append(self._maintenance.admit(ADMIT_BATCH))
        soon = any(turn.more or (turn.next_due is not None and turn.next_due < SOON_SECONDS) for turn in turns)
        return not soon and (not turns or self._left()[0] == left)  # else a job has moved between the reads

    def _left(self) -> tuple[dict[str, Mapping[State, int]], list[str]]:
        """The live jobs of each served queue, without those that a pause holds; and those left, in words."""
        counts, held = dict[str, Mapping[State, int]](), list[str]()
        for view in self._store.queues():
            if view.name in self._processes.served:
                counts[view.name] = view.counts
                if view.paused_at is not None and view.counts[State.QUEUED]:
                    counts[view.name] = {**view.counts, State.QUEUED: 0}
                    held.append(f"{view.counts[State.QUEUED]:,} queued in {view.name}, which is paused")
                if waiting := view.counts[State.WAITING]:
                    held.append(f"{waiting:,} waiting in {view.name}, for other jobs, a signal or a place")
        return counts, held

    def _check_files(self, changed: Callable[[str], None]) -> None:
        file = self._changed_file()
        if file:
            self._loop.call(partial(changed, file))

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


def _turn(do: Callable[[], None]) -> Callable[[int], Turn]:
    def turn(_: int) -> Turn:
        do()
        return Turn()

    return turn
