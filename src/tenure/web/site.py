"""What pages, API and live streams share: the store's answers, read for all who look together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from tenure.config import Settings
from tenure.core.lifecycle import ENDED, LIVE, State
from tenure.operations.admin import Admin
from tenure.operations.pulse import Pulse, Slice
from tenure.operations.queues import with_idle
from tenure.ports import Ended, JobView, QueueView, WorkerView
from tenure.ports.schedules import Standing
from tenure.web.crew import Crew
from tenure.web.memo import Memo

if TYPE_CHECKING:
    from tenure.operations.problems import Problem
    from tenure.tasks.registry import Registry

_HOUR = timedelta(hours=1)
_JUST_NOW = 1.0  #: seconds: a count so fresh needs nothing added
_RARELY = 200  #: as `SHARE` of the memo: where all jobs are dear to count, those that ended since are added instead
LOOK = 2_000  #: jobs that one look for a page goes through, at most


@dataclass(frozen=True, slots=True)
class Demo:
    """There is a page of buttons, which enqueue the demo's tasks. `queue` may be emptied by one of them, no other."""

    queue: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs by state, and how many seconds ago they were counted: counting takes its time where there are millions."""

    by_state: Mapping[State, int]
    age: float


def light(job: JobView) -> JobView:
    """Without what only its own page shows, and may be long: for lists that are kept for a while."""
    return replace(job, payload="", result=None, checkpoint=None)


class Site:
    """What pages, API and live streams share. `connect` is called on first use: a mounted app gets no lifespan.

    The reads below are made for all who look together, and rarely enough to cost the store little.
    """

    def __init__(
        self,
        connect: Callable[[], Admin],
        settings: Settings,
        *,
        tasks: Registry | None = None,
        demo: Demo | None = None,
    ) -> None:
        self.settings = settings
        self.tasks = tasks  #: with them jobs can be enqueued, and edited arguments are checked
        self.demo = demo
        self.memo = Memo()
        self.crew = Crew("page", threads=16, patience=20.0)
        self.feeders = Crew("feed", threads=3, patience=20.0)
        self.probe = Crew("health", threads=1, patience=2.0)  #: it answers also when all others wait for the store
        self._connect = connect
        self._opened: Admin | None = None
        self._lock = Lock()
        self._pulse = Pulse()

    @property
    def admin(self) -> Admin:
        """Raises StoreAway; the next call tries again."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._connect()
        return self._opened

    def counts(self) -> Counts:
        """Live jobs as their queues were counted last; ended ones as of now: those since the last count are added."""
        (base, at), age = self.memo.aged("counts", self._counted, fresh=0.15, share=_RARELY)
        if age < _JUST_NOW:
            return Counts(base, age)
        queues, age = self.memo.aged("queues", self.admin.queues.all, fresh=0.15)
        live = {state: sum(each.counts.get(state, 0) for each in queues) for state in LIVE}

        def lately() -> Ended:
            return self.admin.jobs.ended(at, self.admin.now(), sample=1)

        since = self.memo.get(("ended since", at), lately, fresh=0.3)
        ended = {state: base[state] + since.counts[state] for state in ENDED}
        return Counts({state: ended[state] if state in ENDED else live[state] for state in State}, age)

    def queues(self) -> Sequence[QueueView]:
        return self.memo.get("queues", self.admin.queues.all, fresh=0.15)

    def workers(self) -> Sequence[WorkerView]:
        """The living, and those that died within the last hour."""
        return self.memo.get("workers", lambda: self.admin.workers.recent(_HOUR), fresh=0.15)

    def listed_queues(self) -> list[QueueView]:
        """Those that hold live jobs or are paused, and the empty ones that some worker serves by name."""
        return with_idle(self.queues(), self.workers())

    def schedules(self) -> Sequence[Standing]:
        return self.memo.get("schedules", self.admin.schedules.all, fresh=0.5)

    def problems(self) -> Sequence[Problem]:
        """What is wrong right now."""
        return self.memo.get("problems", lambda: self.admin.problems(self.queues()), fresh=1.0)

    def slices(self) -> Sequence[Slice]:
        """What ended in the last quarter of an hour, in slices of five seconds."""
        return self.memo.get("pulse", lambda: self._pulse.look(self.admin.jobs, self.admin.now()), fresh=0.9)

    def close(self) -> None:
        """Let its threads go."""
        self.memo.close()
        for each in (self.crew, self.feeders, self.probe):
            each.close()

    def acted(self) -> None:
        """Somebody changed something: what is shown next is read anew."""
        self.memo.forget()

    def _counted(self) -> tuple[Mapping[State, int], datetime]:
        counts = self.admin.counts()
        return counts, self.admin.now()  # rather a few too few for a moment than a few too many

    @cached_property
    def version(self) -> str:
        from importlib.metadata import version

        return version("tenure")
