"""Limits in memory: the verbs of `LimitStore`, and how `admit` gives places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice

from tenure.core.lifecycle import EXPIRED
from tenure.core.lifecycle import State as JobState
from tenure.core.limits import Key, stem
from tenure.ports import JobView, KeyView, LimitRow, Withdrawn
from tenure.stores.memory.base import HOLDS, MemoryBase, atomic
from tenure.stores.memory.rows import Row
from tenure.stores.places import Candidate, Count, Lane, State, dues, key_view, paused, paused_by_jobs, serve, state_of
from tenure.stores.rules import check_limit_rows


class MemoryLimits(MemoryBase):
    """The verbs of `LimitStore`."""

    @atomic
    def change_limits(self, rows: Sequence[LimitRow]) -> list[bool]:
        check_limit_rows(rows)
        return [self._change_limit(row) for row in rows]

    def _change_limit(self, row: LimitRow) -> bool:
        stands = self._known.limits.get((row.key, row.name))
        if (stands.rev if stands else 0) != row.rev:
            return False
        if row.blank:
            self._known.limits.pop((row.key, row.name), None)
        else:
            self._known.limits[row.key, row.name] = row.but(rev=row.rev + 1)
        if row.key:
            self._known.tell(Key(row.name, row.limit), "look")
        for key in {key for each in self._rows() for key in each.view.limits if key.key == each.view.parked}:
            if not row.key and key.key.startswith(stem(row.name)):
                self._known.tell(key, "look")
        return True

    @atomic
    def withdraw(self, *, limit: int = 200) -> Withdrawn:
        served, asked = self._served(), False
        for queue, key in sorted(self._known.idle):
            if queue in served:
                self._known.idle.discard((queue, key))
                self._known.tell(key, "look")
                asked = True
        unused = [row for row in self._limited() if row.view.state is JobState.QUEUED and self._unused(row, served)]
        for row in unused[:limit]:
            self._due("withdraw", row)
        self._forget_keys(self._clock.unix())
        return Withdrawn(len(unused[:limit]), asked or bool(unused), len(unused) > limit)

    def _forget_keys(self, now: float) -> None:
        used = {key.key for key in self._used()}
        for place, row in list(self._known.limits.items()):
            if row.fades is not None and row.fades <= now and row.name not in used:
                del self._known.limits[place]
        for key in list(self._known.buckets):
            if key.key not in used and self._state(key).full_at() <= now:
                del self._known.buckets[key]
        parked = {(row.view.queue, row.view.parked) for row in self._rows()}
        self._known.idle = {(queue, key) for queue, key in self._known.idle if (queue, key.key) in parked}

    def _unused(self, row: Row, served: set[str]) -> bool:
        """Does this job's lane hold places that it can't use, or has not used for long while another lane waits?"""
        lane = _lane(row.view)
        if lane.queue not in served:
            return True
        if abs((self.now() - row.view.run_at).total_seconds()) < lane.patience:  # the clock may have been set back
            return False
        names = {key.key for key in row.view.limits}
        others = (each.view for each in self._rows() if each.view.queue in served and _lane(each.view) != lane)
        wait = {each.parked for each in others}
        for name in names & wait:
            self._known.slow[str(name)] = (lane, self._clock.unix() + lane.patience)
        return bool(names & wait)

    @atomic
    def limits(self, names: Iterable[str] | None = None, *, keys: bool = False) -> list[LimitRow]:
        known = {name: row for (key, name), row in self._known.limits.items() if key is keys}
        return [known[name] for name in sorted(known if names is None else known.keys() & set(names))][:10_000]

    @atomic
    def keys(
        self,
        names: Iterable[str] | None = None,
        *,
        limited_by: str | None = None,
        start: str = "",
        limit: int = 50,
        most: int = 10_000,
    ) -> list[KeyView]:
        known = {key.key: key for key in self._known.buckets}
        known |= {row.name: Key(row.name, row.limit) for (key, _), row in self._known.limits.items() if key}
        known |= {key.key: key for key in self._used()}
        wanted = known.keys() if names is None else known.keys() & set(names)
        found = [known[name] for name in sorted(wanted) if name > start]
        found = [key for key in found if limited_by is None or key.limit == limited_by][:limit]
        now = self._clock.unix()
        parked = [row.view.parked for row in self._rows()]
        return [
            key_view(
                self._state(key),
                waiting=min(parked.count(key.key), most),
                why=paused(*self._settings(key), now)[1],
                now=now,
            )
            for key in found
        ]

    @atomic
    def holders(self, key: str, *, limit: int = 50) -> list[JobView]:
        found = [row.view for row in self._limited() if row.view.parked is None and self._needs(row, key)]
        held = [view for view in found if view.state in (JobState.QUEUED, JobState.PROCESSING)]
        return sorted(held, key=lambda view: (view.run_at, view.id))[:limit]

    @atomic
    def parked(self, key: str, *, limit: int = 50) -> list[JobView]:
        return [self._jobs[each.id].view for each in self._next(key)][:limit]

    # ── places ──

    def _limited(self) -> list[Row]:
        return [row for row in self._rows() if row.view.limits]

    def _used(self) -> list[Key]:
        """The keys that jobs have a place of, or are parked under."""
        rows = self._limited()
        return [key for row in rows for key in row.view.limits if row.view.state in HOLDS or key.key == row.view.parked]

    def _needs(self, row: Row, key: str) -> bool:
        return any(each.key == key for each in row.view.limits)

    def _settings(self, key: Key) -> tuple[LimitRow | None, LimitRow | None]:
        return self._known.limits.get((False, key.limit)), self._known.limits.get((True, key.key))

    def _state(self, key: Key) -> State:
        states = [row.view.state for row in self._limited() if self._needs(row, key.key)]
        unbegun, begun = states.count(JobState.QUEUED), states.count(JobState.PROCESSING)
        told = self._known.told.get(key, [])
        begins = [each.at for each in told if each.what == "begun"]
        bucket = self._known.buckets.get(key)
        count = Count(unbegun + begun, unbegun)
        state = state_of(key, self._settings(key), bucket, begins, count, self._clock.unix())
        state.slow_lane, state.slow_until = self._known.slow.get(key.key, (None, 0.0))
        return state

    def _opened(self, key: Key) -> State:
        """The state of a key, once its begins and pauses are written down."""
        now, told = self._clock.unix(), self._known.told.get(key, [])
        row = paused_by_jobs(self._settings(key)[1], key, [each.at for each in told if each.what == "pause"])
        if row is not None:
            self._known.limits[True, key.key] = row
        state = self._state(key)
        self._known.told[key] = [each for each in told if each.what == "look"]
        if not self._known.told[key]:
            del self._known.told[key]
        if state.bucket is not None and state.full_at() > now:
            self._known.buckets[key] = state.bucket
        elif state.bucket is not None:
            self._known.buckets.pop(key, None)
        return state

    def _serve(self, key: Key, most: int) -> list[tuple[str, JobState]]:
        """Give at most this many places of a key. Returns what became of which jobs."""
        states, counts = dict[Key, State](), dict[str, Count]()

        def state(key: Key) -> State:
            if key not in states:
                states[key] = self._opened(key)
                states[key].count = counts.setdefault(key.key, states[key].count)
            return states[key]

        self._known.told[key] = [each for each in self._known.told.get(key, []) if each.what != "look"]
        mine = state(key)
        room = mine.room()
        served = self._served()
        waiting = self._next(key.key)
        self._known.idle |= {(each.queue, key) for each in waiting if each.queue not in served}
        waiting = [each for each in waiting if each.queue in served]
        slow = mine.slow(self._clock.unix())
        if slow is not None:
            waiting.sort(key=lambda each: each.lane == slow)
        found = list(islice(waiting, most if room is None else min(room, most)))
        done = serve(key, found, state)
        for job_id, other in done.moved:
            self._keep(self._jobs[job_id], parked=other.key)
            self._known.tell(other, "look")
        if len(found) < len(waiting) and done.any:
            self._known.tell(key, "look")  # there are more than this step takes, or some were parked elsewhere
        for due in dues(states.values(), {key.key} if waiting else (), self._clock.unix()).values():
            self._known.dues[key] = due, self._clock.unix()
        return [(each.id, self._admitted(each.id)) for each in done.admitted] + [
            (job_id, self._expired(job_id)) for job_id in done.expired
        ]

    def _admitted(self, job_id: str) -> JobState:
        now = self.now()
        row = self._move("admit", self._jobs[job_id], JobState.QUEUED, run_at=now, parked=None, wait_until=None)
        return row.view.state

    def _expired(self, job_id: str) -> JobState:
        blank = dict.fromkeys(("parked", "wait_until"))
        row = self._move("admit", self._jobs[job_id], JobState.CANCELLED, error=EXPIRED, ended_at=self.now(), **blank)
        return row.view.state

    def _next(self, key: str) -> list[Candidate]:
        found = [_candidate(row.view, self.now()) for row in self._rows() if row.view.parked == key]
        return sorted(found)

    def _served(self) -> set[str]:
        """The queues that are not paused, and that a live worker serves."""
        living = [worker for worker in self._workers.values() if not worker.died_at and not self._lease_over(worker)]
        return {queue for worker in living for queue in worker.identity.queues} - self._paused.keys()


def _lane(view: JobView) -> Lane:
    return Lane(view.queue, view.solo)


def _candidate(view: JobView, now: datetime) -> Candidate:
    due = view.due_at or view.run_at
    expired = view.attempt == 0 and view.expires_at is not None and view.expires_at < now
    order = -view.priority, round(due.timestamp() * 1000)
    return Candidate(order, view.id, view.queue, view.limits, expired, view.solo)
