"""A store under a virtual clock with live workers; its problems are looked for and reported."""

from __future__ import annotations

import json
from pathlib import Path

from conformance.factories import LEASE, World, claim, draft, identity, put
from tenure.config import load
from tenure.core.lifecycle import Completed, Lease, Outcome
from tenure.notifiers.poll import PollNotifier
from tenure.operations.alerts import Watch
from tenure.operations.problems import Problem, problems
from tenure.operations.sinks import QUEUE, open_sinks
from tenure.ports import Claimed, Filter, Store
from tenure.ports.schedules import Schedule
from tenure.schedules.guard_plan import Began, begin_guard
from tenure.schedules.plan import Plan
from tenure.schedules.timetable import Timetable

RENEWED = 0.8 * LEASE  #: seconds between renewals: no lease ends
HOOK = "https://hooks.example/T0/B0?token=s3cret"


class Scene:
    """A store under a virtual clock, live workers, and a look at its problems."""

    def __init__(self, world: World, folder: Path, **settings: str) -> None:
        self.world, self.store, self.folder = world, world.store(), folder
        self.settings = load({"alerts": HOOK, **settings}, environ={}, folder=folder)
        self.timetable = Timetable(self.store, PollNotifier())
        self.living: list[str] = []

    def watch(self, store: Store | None = None, **settings: str) -> Watch:
        """A process that checks, with these settings of its own."""
        its = load({"alerts": HOOK, **settings}, environ={}, folder=self.folder) if settings else self.settings
        return Watch(store or self.store, PollNotifier(), its, open_sinks(its))

    def worker(self, *queues: str, tasks: tuple[str, ...] = ("work",), **options: object) -> str:
        row = identity(queues=queues or ("default",), tasks=tasks, **options)
        self.store.register(row)
        self.living.append(row.id)
        return row.id

    def dies(self, worker: str) -> None:
        self.living.remove(worker)
        self.store.declare_dead([worker])

    def passes(self, seconds: float) -> None:
        """Time passes, and the workers renew."""
        while seconds > 0:
            self.world.advance(min(seconds, RENEWED))
            self.store.renew(self.living)
            seconds -= RENEWED

    def scheduled(self, name: str = "nightly", **options: object) -> None:
        given = {"name": name, "rule": "every 1h", "job": draft(max_failures=1), **options}
        self.timetable.put(Schedule(**given))  # type: ignore[arg-type]

    def fires(self) -> None:
        self.timetable.fire_due()

    def runs(self, worker: str, outcome: Outcome) -> None:
        """The next tick comes, and its job ends with this outcome."""
        self.passes(3600)
        self.fires()
        (job,) = claim(self.store, worker)
        self.ends(job, worker, outcome)
        self.fires()

    def runs_for(self, worker: str, *seconds: float, times: int = 1, **options: object) -> None:
        """Jobs run for these times, one after another, and complete."""
        for length in seconds * times:
            put(self.store, **options)
            (job,) = claim(self.store, worker, queue=str(options.get("queue", "default")))
            self.passes(length)
            self.ends(job, worker)

    def ends(self, job: Claimed, worker: str, outcome: Outcome | None = None) -> None:
        self.store.finish([(Lease(job.id, job.attempt, worker), outcome or Completed())])

    def call(self, name: str = "backup") -> None:
        """A guard is called, and its run completes."""
        row = identity(runner="guard", queues=(), tasks=())
        self.store.register(row)
        (standing,) = self.store.schedules([name])
        now = self.store.now()
        plan = Plan(standing, now).close(self.store.attempts)
        began = begin_guard(plan, draft().id, row.id, "host", now=now)
        assert isinstance(began, Began)
        assert self.store.change([began.change]) == [True]
        self.store.finish([(Lease(began.job_id, 1, row.id), Completed())])
        self.store.declare_dead([row.id])
        self.fires()

    def problems(self, kind: str = "") -> list[Problem]:
        return [each for each in problems(self.store, self.settings) if kind in ("", each.kind)]

    def told(self, kind: str = "") -> list[tuple[str, str]]:
        """What the alerts of this kind said, oldest first."""
        jobs = self.store.search(Filter(queue=QUEUE), limit=1000).jobs
        messages = [json.loads(job.payload)["message"] for job in sorted(jobs, key=lambda job: job.id)]
        return [
            (each["type"].partition(".")[2], each["data"]["key"])
            for each in messages
            if each["data"]["key"].startswith(kind)
        ]


def paused_and_late(world: World, store: Store, timetable: Timetable) -> None:
    """Queue `reports` is paused; the schedule `nightly` is late in it, and a job has waited for an hour."""
    store.register(identity(queues=("reports",), lease=9e5))
    store.pause("reports", paused=True)
    timetable.put(Schedule(name="nightly", rule="every 1h", job=draft(queue="reports", max_failures=1)))
    put(store, queue="reports")
    world.advance(3600)
    timetable.fire_due()
    world.advance(301)
