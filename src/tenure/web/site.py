"""Shared by pages, API and live streams: reads of the store, cached for all viewers."""

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
from tenure.operations.backlogs import STEP_SECONDS, Backlogs, Growth
from tenure.operations.keys import Usage
from tenure.operations.pulse import Pulse
from tenure.operations.queues import with_idle
from tenure.operations.trends import RollUp, Trend, span_of
from tenure.operations.workers import Workforce
from tenure.ports import Ended, JobView, QueueView, WorkerView
from tenure.ports.schedules import Standing
from tenure.tasks.watch import RETURNED, Watch
from tenure.web.memo import Memo
from tenure.web.threads import ThreadPool

if TYPE_CHECKING:
    from tenure.operations.causes import Problem
    from tenure.tasks.registry import Registry

_HOUR = timedelta(hours=1)
_JUST_NOW = 1.0  #: seconds: a count this recent needs no correction
_RARELY = 200  #: as `SHARE` of the memo: if counting all jobs is expensive, those that ended since are added instead


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo: a page of buttons that enqueue its tasks. One of them empties `queue`, and no other queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs by state, and how many seconds ago they were counted: counting millions takes time."""

    by_state: Mapping[State, int]
    age: float


def light(job: JobView) -> JobView:
    """The job without the large values that only its own page shows: for lists that are cached."""
    return replace(job, payload="", result=None, checkpoint=None)


class Site:
    """Shared by pages, API and live streams. `connect` is called on first use: a mounted app gets no lifespan.

    `client` gives what a mounted app uses now: another one, as in a test or after the app was closed, is another store.
    The reads below are shared by all viewers, and rare enough to put little load on the store.
    """

    def __init__(
        self,
        connect: Callable[[], Admin],
        settings: Settings,
        *,
        tasks: Registry | None = None,
        demo: Demo | None = None,
        client: Callable[[], object] | None = None,
    ) -> None:
        self.settings = settings
        self.tasks = tasks  #: needed to enqueue jobs and to check edited arguments
        self.demo = demo
        self.memo = Memo()
        self.threads = ThreadPool("page", threads=16, patience=20.0)
        self.feeders = ThreadPool("feed", threads=3, patience=20.0)
        self.probe = ThreadPool("health", threads=1, patience=2.0)  #: answers even while all others wait for the store
        self.watch = self._new_watch()
        self._connect = connect
        self._client = client or (lambda: None)
        self._opened: tuple[object, Admin] | None = None  #: with the client it was opened for
        self._lock = Lock()
        self._pulse = Pulse()
        self._backlogs = Backlogs()

    @property
    def admin(self) -> Admin:
        """Raises StoreAway; the next call retries."""
        now, opened = self._client(), self._opened
        if opened is None or opened[0] is not now:
            with self._lock:
                opened = self._opened
                if opened is None or opened[0] is not now:
                    self._opened = opened = (now, self._connect())
                    self._forget_store()
        return opened[1]

    def counts(self) -> Counts:
        """Live jobs by the last count of their queues; ended ones as of now: those since the last count are added."""
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

    def paused(self) -> set[str]:
        """The paused queues."""
        return {queue.name for queue in self.queues() if queue.paused_at is not None}

    def workers(self) -> Sequence[WorkerView]:
        """Live workers, and those that died within the last hour."""
        return self.memo.get("workers", lambda: self.admin.workers.recent(_HOUR), fresh=0.15)

    def workforce(self) -> Workforce:
        """Counts of these workers."""
        return Workforce.of(self.workers(), self.admin.now())

    def listed_queues(self) -> list[QueueView]:
        """Queues that hold live jobs or are paused, and empty ones that a worker serves by name."""
        return with_idle(self.queues(), self.workers(), self.admin.now())

    def paces(self) -> Mapping[str, Growth]:
        """How the backlogs of queues change, as far as they have been read here."""

        def look() -> Mapping[str, Growth]:
            queues, now = self.queues(), self.admin.now()  # first: with another store they begin anew
            return self._backlogs.look(queues, now)

        return self.memo.get("paces", look, fresh=STEP_SECONDS)

    def declared_queues(self) -> set[str]:
        """The queues of the app's tasks."""
        return {task.queue for task in self.tasks or ()}

    def schedules(self) -> Sequence[Standing]:
        return self.memo.get("schedules", self.admin.schedules.all, fresh=0.5)

    def usage(self, limit: str | None = None) -> Usage:
        """The keys of this limit, or of all, the most waited-for first. Raises UnknownLimit."""
        return self.memo.get(("usage", limit), lambda: self.admin.limits.usage(limit), fresh=0.5)

    def problems(self) -> Sequence[Problem]:
        """What is wrong right now."""
        return self.memo.get("problems", lambda: self.admin.problems(self.queues()), fresh=1.0)

    def slices(self) -> Sequence[RollUp]:
        """Jobs that ended in the last 15 minutes, in slices of five seconds."""
        return self.memo.get("pulse", self._look, fresh=0.9)

    def _look(self) -> Sequence[RollUp]:
        admin = self.admin  # first: with another store the pulse begins anew
        return self._pulse.look(admin.jobs, admin.now())

    def trend(self, span: str) -> Trend:
        """Jobs that ended in a span of time. Raises InvalidOption."""
        if span_of(span) == "15m":
            return Trend("15m", self.slices())
        return self.memo.get(("trend", span), lambda: self.admin.trends.look(span), fresh=10.0)

    def close(self) -> None:
        """Release the threads."""
        self.memo.close()
        for each in (self.threads, self.feeders, self.probe):
            each.close()
        self.watch.close()
        self.watch = self._new_watch()

    def _new_watch(self) -> Watch:
        """One read for all jobs whose events are watched. Its thread starts with the first of them."""
        return Watch(lambda seen: self.admin.jobs.updates(seen, limit=RETURNED))

    def acted(self) -> None:
        """After a change: what is shown next is read again."""
        self.memo.forget()

    def _forget_store(self) -> None:
        """What was read so far is of another store."""
        self.memo.clear()
        self._pulse, self._backlogs = Pulse(), Backlogs()

    def _counted(self) -> tuple[Mapping[State, int], datetime]:
        counts = self.admin.counts()
        return counts, self.admin.now()  # better a few too few for a moment than too many

    @cached_property
    def version(self) -> str:
        from importlib.metadata import version

        return version("tenure")
