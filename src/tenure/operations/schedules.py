"""Operator queries and actions on schedules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from tenure.config import valid_name
from tenure.errors import InvalidOption
from tenure.operations.access import Access
from tenure.operations.schedule_health import ScheduleHealth, TickView
from tenure.ports.schedules import Schedule, Standing, Status, Tick
from tenure.schedules.timetable import Overdue, Timetable, owners

_MOST_READ = 2_000
_MOST_SKIPPED = 100_000


class Happened(NamedTuple):
    """What became of ticks. `cursor` continues; None: there are no more."""

    ticks: tuple[TickView, ...]
    cursor: str | None


def _position(cursor: str | None, until: datetime) -> tuple[datetime, int]:
    if cursor is None:
        return until, 0
    at, _, skip = cursor.partition("|")
    try:
        moment = datetime.fromisoformat(at)
        if moment.tzinfo is not None and 0 <= int(skip) <= _MOST_SKIPPED:
            return min(moment, until), int(skip)
    except ValueError:
        pass
    raise InvalidOption(f"cursor: expected one that a page of ticks ended with, got {cursor!r}")


class ScheduleReads:
    """Queries on schedules. All results have their secrets redacted."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._timetable = Timetable(access.store, access.notifier)

    def all(self) -> list[Standing]:
        """The current state of all schedules, sorted by name."""
        found = self._timetable.all()
        if any(not run.live for each in found for run in each.runs):
            self._timetable.settle(found)
            found = self._timetable.all()
        return [self._redacted(each) for each in found]

    def get(self, name: str) -> Standing:
        """The current state of one schedule. Raises UnknownSchedule."""
        self._timetable.settle([self._timetable.get(name)])
        return self._redacted(self._timetable.get(name))

    def declared(self, name: str) -> Schedule:
        """What was declared, without reading its runs. Raises UnknownSchedule."""
        return self._timetable.get(name).schedule

    def health(self, name: str) -> ScheduleHealth:
        """The health of one schedule now, without marks. Raises UnknownSchedule."""
        return ScheduleHealth.of(self.get(name), self._access.store.now(), paused=self._access.store.paused())

    def healths(self, *, marks: int = 0, retired: bool = False) -> list[ScheduleHealth]:
        """Health of all schedules, each with its last `marks` ticks; with `retired` also those no longer declared."""
        found = [each for each in self.all() if retired or each.schedule.retired_at is None]
        ticks = self.marks((each.schedule for each in found) if marks else (), marks)
        now, paused = self._access.store.now(), self._access.store.paused()
        return [ScheduleHealth.of(each, now, ticks.get(each.schedule.name, ()), paused) for each in found]

    def marks(self, schedules: Iterable[Schedule], limit: int) -> Mapping[str, Sequence[Tick]]:
        """The last ticks of each of these schedules, by its name, newest last."""
        return {each.name: self.ticks(each, limit=limit)[::-1] for each in schedules}

    def ticks(self, schedule: Schedule, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """The outcomes of its ticks, newest first; without runs that ended since the schedule was last read."""
        return self._timetable.ticks(schedule, limit=limit, before=before)

    def happened(
        self,
        since: datetime,
        until: datetime,
        *,
        limit: int = 50,
        cursor: str | None = None,
        only: frozenset[Status] = frozenset(),
    ) -> Happened:
        """Runs in progress, then what was decided of the ticks of all schedules from `since` to `until`, newest first.

        A run is decided when it is fired, a missed tick when it is found. Reads at most about 2,000 ticks; fewer than
        `limit` may have a cursor. Raises InvalidOption for a cursor of something else.
        """
        healths = {each.schedule.name: each for each in self.healths(retired=True)}
        owner = owners(each.schedule for each in healths.values())
        at, skip = _position(cursor, until)
        found: list[TickView] = []
        if cursor is None and (not only or "open" in only):
            runs = [(each, run.tick) for each in healths.values() for run in each.standing.runs]
            runs = [(each, tick) for each, tick in runs if since <= tick.decided_at <= until]
            for health, tick in sorted(runs, key=lambda run: run[1].decided_at, reverse=True)[: limit - 1]:
                found += health.views([tick])
        for _ in range(0, _MOST_READ, limit):
            page, first, skipped = self._access.store.decided(since, at, skip=skip, limit=limit), at, skip
            for number, tick in enumerate(page, 1):
                whose = healths.get(owner(tick))
                if whose is not None and (not only or tick.status in only):
                    found += whose.views([replace(tick, schedule=whose.schedule.name)])
                same = sum(each.decided_at == tick.decided_at for each in page[:number])
                at, skip = tick.decided_at, same + (skipped if tick.decided_at == first else 0)
                if len(found) >= limit:
                    return Happened(tuple(found), f"{at.isoformat()}|{skip}")
            if len(page) < limit:
                return Happened(tuple(found), None)
        return Happened(tuple(found), f"{at.isoformat()}|{skip}")

    def overdue(self, grace: float | None = None) -> list[Overdue]:
        """Overdue schedules, the longest overdue first; `grace`: seconds, in place of each schedule's own."""
        return self._timetable.overdue(grace)

    def to_backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[datetime]:
        """The ticks that `backfill` would run. Raises UnknownSchedule, and Refused if there are too many."""
        return self._timetable.to_backfill(name, since, until, again=again)

    def removable(self, name: str, instead: str = "") -> Schedule:
        """Raises UnknownSchedule, and InvalidOption if its app would declare it again; `instead`: what to do then."""
        s = self.declared(name)
        if s.source and s.retired_at is None:
            raise InvalidOption(
                f"{name} is declared by app {s.source}, which would add it again at its next start: "
                + (instead or f"tenure schedules pause {name}, or remove it from the code")
            )
        return s

    def _redacted(self, standing: Standing) -> Standing:
        job, access = standing.schedule.job, self._access
        schedule = standing.schedule.but(job=job.but(payload=access.stars.hide(job.payload)) if job else None)
        runs = tuple(run._replace(job=access.redacted(run.job) if run.job else None) for run in standing.runs)
        return Standing(schedule, runs)


class Schedules(ScheduleReads):
    """Queries and actions on schedules. Example: `admin.schedules.pause("nightly", "until Monday")`"""

    def trigger(self, name: str, *, force: bool = False) -> str:
        """Run a schedule now. Returns the job's id. Raises UnknownSchedule, and Refused while a run is in progress."""
        with self._access.recorded("schedule.trigger", name, **({"force": "yes"} if force else {})) as said:
            job_id = self._timetable.trigger(name, force=force)
            said.append(f"job {job_id}")
        return job_id

    def pause(self, name: str, why: str) -> Standing:
        """Fire no ticks until it is resumed; runs in progress continue. Raises UnknownSchedule."""
        with self._access.recorded("schedule.pause", name, why=why):
            return self._timetable.pause(name, why)

    def resume(self, name: str) -> Standing:
        """Raises UnknownSchedule."""
        with self._access.recorded("schedule.resume", name):
            return self._timetable.resume(name)

    def backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[str]:
        """Run ticks of the past, as listed by `to_backfill`. Returns the ids of the jobs."""
        span = f"{since.isoformat()} to {until.isoformat()}"
        with self._access.recorded("schedule.backfill", name, span=span) as said:
            ids = self._timetable.backfill(name, since, until, again=again)
            said.append(f"{len(set(ids))} jobs")
        return ids

    def put(self, new: Schedule) -> Standing:
        """Create or change a schedule that no app declares."""
        with self._access.recorded("schedule.put", new.name, rule=new.rule):
            return self._timetable.put(new)

    def expect(self, new: Schedule) -> Standing:
        """Declare a guard before its first call, or change its rule. Raises InvalidOption for a schedule of jobs."""
        with self._access.recorded("schedule.put", new.name, rule=new.rule):
            return self._timetable.expect(new)

    def remove(self, name: str) -> None:
        """Delete it with its history; its jobs stay. Refused while an app declares it, which would add it again."""
        self.removable(name)
        with self._access.recorded("schedule.remove", name):
            self._timetable.remove(name)

    def rename(self, name: str, new: str) -> Standing:
        """Give it a new name; its history goes along. Refused while an app declares the old one, or during a run."""
        valid_name(new, "name")
        again = f"deploy the code without it, rename it, then declare it as {new}, which takes its history over"
        self.removable(name, again)
        with self._access.recorded("schedule.rename", name, new=new):
            return self._timetable.rename(name, new)
