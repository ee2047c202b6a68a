"""Schedules, as operators read them, and what they do to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from tenure.errors import InvalidOption
from tenure.operations.access import Access
from tenure.operations.schedule_health import ScheduleHealth
from tenure.ports.schedules import Schedule, Standing, Tick
from tenure.schedules.timetable import Overdue, Timetable


class ScheduleReads:
    """Schedules, read. Whatever is shown has its secrets starred."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._timetable = Timetable(access.store, access.notifier)

    def all(self) -> list[Standing]:
        """All schedules as they stand now, in order of their names."""
        found = self._timetable.all()
        if any(not run.live for each in found for run in each.runs):
            self._timetable.settle(found)
            found = self._timetable.all()
        return [self._starred(each) for each in found]

    def get(self, name: str) -> Standing:
        """One schedule as it stands now. Raises UnknownSchedule."""
        self._timetable.settle([self._timetable.get(name)])
        return self._starred(self._timetable.get(name))

    def declared(self, name: str) -> Schedule:
        """What was declared, without a look at its runs. Raises UnknownSchedule."""
        return self._timetable.get(name).schedule

    def health(self, name: str) -> ScheduleHealth:
        """How one stands now; it has no marks. Raises UnknownSchedule."""
        return ScheduleHealth.of(self.get(name), self._access.store.now())

    def healths(self, *, marks: int = 0, retired: bool = False) -> list[ScheduleHealth]:
        """How all stand now, each with so many of its last ticks; with `retired` also those no longer declared."""
        found = [each for each in self.all() if retired or each.schedule.retired_at is None]
        ticks = self.marks([each.schedule.name for each in found] if marks else (), marks)
        now = self._access.store.now()
        return [ScheduleHealth.of(each, now, ticks.get(each.schedule.name, ())) for each in found]

    def marks(self, names: Iterable[str], limit: int) -> Mapping[str, Sequence[Tick]]:
        """The last ticks of each of these, the newest last."""
        return {name: self.ticks(name, limit=limit)[::-1] for name in names}

    def ticks(self, name: str, *, limit: int = 50, before: datetime | None = None) -> list[Tick]:
        """What became of its ticks, newest first; of runs that have ended since it was last read nothing yet."""
        return self._access.store.ticks(name, limit=limit, before=before)

    def overdue(self, grace: float | None = None) -> list[Overdue]:
        """Those that should run and do not, the longest overdue first; `grace`: seconds instead of each one's own."""
        return self._timetable.overdue(grace)

    def to_backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[datetime]:
        """The ticks that `backfill` would run. Raises UnknownSchedule, and Refused when they are too many."""
        return self._timetable.to_backfill(name, since, until, again=again)

    def removable(self, name: str) -> Schedule:
        """Raises UnknownSchedule, and InvalidOption if it would come back."""
        s = self.declared(name)
        if s.source and s.retired_at is None:
            raise InvalidOption(
                f"{name} is declared by app {s.source} and would come back at its next start: "
                f"tenure schedules pause {name}, or take it out of the code"
            )
        return s

    def _starred(self, standing: Standing) -> Standing:
        job, access = standing.schedule.job, self._access
        schedule = standing.schedule.but(job=replace(job, payload=access.stars.hide(job.payload)) if job else None)
        runs = tuple(run._replace(job=access.starred(run.job) if run.job else None) for run in standing.runs)
        return Standing(schedule, runs)


class Schedules(ScheduleReads):
    """Schedules, read and acted on. Example: `admin.schedules.pause("nightly", "until Monday")`"""

    def trigger(self, name: str, *, force: bool = False) -> str:
        """Run a schedule now; the job's id. Raises UnknownSchedule, and Refused while a run goes on."""
        with self._access.recorded("schedule.trigger", name, **({"force": "yes"} if force else {})) as said:
            job_id = self._timetable.trigger(name, force=force)
            said.append(f"job {job_id}")
        return job_id

    def pause(self, name: str, why: str) -> Standing:
        """Fire no ticks until it is resumed; runs go on. Raises UnknownSchedule."""
        with self._access.recorded("schedule.pause", name, why=why):
            return self._timetable.pause(name, why)

    def resume(self, name: str) -> Standing:
        """Raises UnknownSchedule."""
        with self._access.recorded("schedule.resume", name):
            return self._timetable.resume(name)

    def backfill(self, name: str, since: datetime, until: datetime, *, again: bool = False) -> list[str]:
        """Run the ticks of a time that is past; `to_backfill` tells which. The ids of the jobs."""
        span = f"{since.isoformat()} to {until.isoformat()}"
        with self._access.recorded("schedule.backfill", name, span=span) as said:
            ids = self._timetable.backfill(name, since, until, again=again)
            said.append(f"{len(ids)} jobs")
        return ids

    def put(self, new: Schedule) -> Standing:
        """Make or change one that no app declares."""
        with self._access.recorded("schedule.put", new.name, rule=new.rule):
            return self._timetable.put(new)

    def remove(self, name: str) -> None:
        """Delete it with its history; its jobs stay. Refused while an app declares it: it would come back."""
        self.removable(name)
        with self._access.recorded("schedule.remove", name):
            self._timetable.remove(name)
