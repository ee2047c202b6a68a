"""Operator queries and actions on schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure.errors import InvalidOption
from tenure.operations.access import Access
from tenure.operations.schedule_health import ScheduleHealth, TickView
from tenure.ports.schedules import Schedule, Standing, Tick
from tenure.schedules.timetable import Overdue, Timetable

_PAGE = 500


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
        return ScheduleHealth.of(self.get(name), self._access.store.now())

    def healths(self, *, marks: int = 0, retired: bool = False) -> list[ScheduleHealth]:
        """Health of all schedules, each with its last `marks` ticks; with `retired` also those no longer declared."""
        found = [each for each in self.all() if retired or each.schedule.retired_at is None]
        ticks = self.marks([each.schedule.name for each in found] if marks else (), marks)
        now = self._access.store.now()
        return [ScheduleHealth.of(each, now, ticks.get(each.schedule.name, ())) for each in found]

    def marks(self, names: Iterable[str], limit: int) -> Mapping[str, Sequence[Tick]]:
        """The last ticks of each of these schedules, newest last."""
        return {name: self.ticks(name, limit=limit)[::-1] for name in names}

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """The outcomes of its ticks, newest first; without runs that ended since the schedule was last read."""
        return self._access.store.ticks(name, limit=limit, before=before)

    def since(self, at: datetime, limit: int) -> list[TickView]:
        """What became of the ticks of all schedules since then: the newest `limit` of them, newest first."""
        found: list[TickView] = []
        for health in self.healths(retired=True):
            found += health.views(self._ticks_since(health.schedule.name, at, limit))
        return sorted(found, key=lambda each: (each.tick.tick, each.tick.schedule), reverse=True)[:limit]

    def _ticks_since(self, name: str, at: datetime, limit: int) -> Iterator[Tick]:
        before: datetime | None = None
        while limit > 0:
            page = self.ticks(name, limit=min(limit, _PAGE), before=before)
            wanted = [tick for tick in page if (tick.until or tick.tick) >= at]
            yield from wanted
            if len(wanted) < len(page) or len(page) < min(limit, _PAGE):
                return
            before, limit = page[-1].tick, limit - len(page)

    def overdue(self, grace: float | None = None) -> list[Overdue]:
        """Overdue schedules, the longest overdue first; `grace`: seconds, in place of each schedule's own."""
        return self._timetable.overdue(grace)

    def to_backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[datetime]:
        """The ticks that `backfill` would run. Raises UnknownSchedule, and Refused if there are too many."""
        return self._timetable.to_backfill(name, since, until, again=again)

    def removable(self, name: str) -> Schedule:
        """Raises UnknownSchedule, and InvalidOption if its app would declare it again."""
        s = self.declared(name)
        if s.source and s.retired_at is None:
            raise InvalidOption(
                f"{name} is declared by app {s.source}, which would add it again at its next start: "
                f"tenure schedules pause {name}, or remove it from the code"
            )
        return s

    def _redacted(self, standing: Standing) -> Standing:
        job, access = standing.schedule.job, self._access
        schedule = standing.schedule.but(job=replace(job, payload=access.stars.hide(job.payload)) if job else None)
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
            said.append(f"{len(ids)} jobs")
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
