"""Schedules, their ticks, and notes in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tenure.ports import Draft
from tenure.ports.schedules import REPLACED, Change, Due, Run, Schedule, Standing, Swapped, Tick, decode_schedule
from tenure.stores.memory.base import MemoryBase, atomic
from tenure.stores.memory.rows import age, tick_order
from tenure.stores.rules import body_of, check_drafts, check_text


class MemorySchedules(MemoryBase):
    """The verbs of `ScheduleStore`."""

    @atomic
    def due(self, *, limit: int = 500) -> Due:
        now = self.now()
        times = sorted((s.due_at, s.name) for s in self._schedules.values() if s.due_at is not None)
        names = [name for due_at, name in times if due_at <= now][:limit]
        ended = [run.tick.schedule for run in self._open_runs() if not run.live]
        later = [(due_at - now).total_seconds() for due_at, _ in times if due_at > now]
        standings = [self._standing(self._schedules[name]) for name in dict.fromkeys([*names, *ended[:limit]])]
        return Due(now, standings, later[0] if later else None)

    @atomic
    def change(self, changes: Sequence[Change]) -> list[bool]:
        for change in changes:
            _check(change)
        return [self._change(change) for change in changes]

    @atomic
    def schedules(self, names: Iterable[str] | None = None) -> list[Standing]:
        wanted = sorted(self._schedules if names is None else set(names) & self._schedules.keys())
        return [self._standing(self._schedules[name]) for name in wanted]

    @atomic
    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        found = [
            each for each in self._ticks.values() if each.schedule == name and not (before and each.tick >= before)
        ]
        return sorted(found, key=lambda each: (each.tick, each.cause), reverse=True)[:limit]

    @atomic
    def decided(self, since: datetime, until: datetime, *, skip: int = 0, limit: int = 50) -> list[Tick]:
        found = [each for each in self._ticks.values() if each.status != "open" and since <= each.decided_at <= until]
        order = sorted(found, key=lambda each: (each.decided_at, each.tick, each.cause, each.schedule), reverse=True)
        return order[skip : skip + limit]

    @atomic
    def forget(self, *, keep: float, limit: int = 1000) -> int:
        now = self.now()
        old = [key for key, t in self._ticks.items() if t.status != "open" and age(now, t.decided_at) > keep][:limit]
        for tick in old:
            del self._ticks[tick]
        over = [key for key, (_, ends) in self._notes.items() if ends is not None and ends <= self._clock.unix()]
        for note in over[: limit - len(old)]:
            del self._notes[note]
        return len(old) + len(over[: limit - len(old)])

    # ── notes ──

    @atomic
    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        check_text(key, old, new)
        check_drafts(drafts, ranges=True)
        stands = self.notes(key).get(key)
        if stands not in (old, new):
            return Swapped(False, stands)
        if stands == old != new:
            for draft in drafts:
                self._enqueue(draft)
        if new is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = (new, None if ttl is None else self._clock.unix() + ttl)
        return Swapped(True, new)

    @atomic
    def notes(self, prefix: str) -> dict[str, str]:
        now = self._clock.unix()
        return {
            key: text
            for key, (text, ends) in sorted(self._notes.items())
            if key.startswith(prefix) and (ends is None or ends > now)
        }

    # ── one schedule ──

    def _open_runs(self) -> list[Run]:
        return [self._run(tick) for tick in sorted(self._ticks.values(), key=tick_order) if tick.status == "open"]

    def _run(self, tick: Tick) -> Run:
        row = self._jobs.get(tick.job_id or "")
        owner = self._workers.get(row.lease.worker_id) if row and row.lease else None
        until = owner.renewed_at + timedelta(seconds=owner.identity.lease) if owner else None
        return Run(tick, row.view if row else None, until)

    def _standing(self, schedule: Schedule) -> Standing:
        return Standing(schedule, tuple(run for run in self._open_runs() if run.tick.schedule == schedule.name))

    def _change(self, change: Change) -> bool:
        name, stands = change.schedule.name, self._schedules.get(change.replaces)
        if change.schedule.rev != (stands.rev if stands else 0) or not self._may_own(change.owner):
            return False
        if change.former and name in self._schedules:
            return False
        if change.delete:
            self._schedules.pop(name, None)
            kept = change.keep_until
            self._ticks = {
                key: tick
                for key, tick in self._ticks.items()
                if tick.schedule != name or (kept is not None and tick.status != "open" and tick.decided_at <= kept)
            }
            return True
        follow = {draft.id: self._enqueue(draft, change.owner).id for draft in change.drafts}
        for tick in change.ticks:
            job_id = follow.get(tick.job_id or "", tick.job_id)
            self._ticks[name, tick.tick, tick.cause] = replace(tick, job_id=job_id)
        for _, row in self._named(change.cancel):
            if row:
                self._cancel(row, REPLACED)
        self._schedules.pop(change.former, None)
        self._schedules[name] = decode_schedule(body_of(change.stored))  # the round trip of the stores that keep JSON
        return True


def _check(change: Change) -> None:
    check_drafts(change.drafts, ranges=True)
    check_text(change.owner, *change.cancel)
    body_of(change.stored)
    for tick in change.ticks:
        body_of(tick)
