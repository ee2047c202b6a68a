"""The jobs that a test has enqueued, found by their task and arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ParamSpec, TypeVar, overload

from tenure.core.lifecycle import ENDED, State
from tenure.errors import InvalidOption
from tenure.ports import Filter, Input, JobView, Store
from tenure.tasks.arguments import redacted
from tenure.tasks.handle import AppPort, JobHandle
from tenure.tasks.limits import Limit, gives, name_of
from tenure.tasks.named import elsewhere, payload_of
from tenure.tasks.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class Listing:
    """The jobs of a test."""

    def __init__(self, app: AppPort, store: Store) -> None:
        self._app = app
        self._store = store

    @overload
    def enqueued(self, task: Task[..., R]) -> list[JobHandle[R]]: ...
    @overload
    def enqueued(self, task: str) -> list[JobHandle]: ...
    def enqueued(self, task: Task[..., Any] | str) -> list[JobHandle]:
        """Every job of this task, or of the task of this name, so far; oldest first."""
        known = elsewhere(self._app, task) if isinstance(task, str) else task
        if not isinstance(known, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
            name = getattr(known, "module_path", None)
            advice = f"; for a task of Django's write enqueued({name!r})" if name else ""
            raise InvalidOption(f"enqueued: expected a task or its name, got {known!r:.80}{advice}")
        return [self._handle(known, job) for job in self._jobs(known)]

    def assert_enqueued(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """The newest job of this task with these arguments. Else an AssertionError that lists the jobs there are."""
        if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]
            advice = f'; write assert_enqueued_by_name("{task}", {{…}})' if isinstance(task, str) else ""
            raise InvalidOption(f"assert_enqueued: expected a task, got {task!r}{advice}")
        return self._newest(
            task, task.arguments.dump(task.arguments.bind(args, kwargs), self._app.settings.largest_payload)
        )

    def assert_enqueued_by_name(self, task: str, args: Mapping[str, object], /) -> JobHandle:
        """The same for a task of another process: `queue.assert_enqueued_by_name("charge", {"order": 7})`."""
        return self._newest(elsewhere(self._app, task), payload_of(self._app, task, args))

    def assert_waiting(
        self, job: JobHandle[Any], *, signal: str = "", after: JobHandle[Any] | None = None, limit: str | Limit = ""
    ) -> None:
        """The job waits: for this signal, this other job, a place of this key, or for anything. Else an AssertionError.

        Example: `queue.assert_waiting(handle, signal="approved")`. `signal` is also the key of a shared one; `limit`
        is a key, as "shop:7", or what `jobs.limit(…)` returned, with `jobs.testing(limits=True)`.
        """
        if not isinstance(job, JobHandle):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"assert_waiting: expected the handle of a job, got {job!r:.80}")
        view = self._store.get(str(job.id))
        if view is None:
            raise AssertionError(f"{job} is not in this queue: enqueue it inside `with jobs.testing()`")
        if view.state is not State.WAITING:
            advice = "" if view.state in ENDED else ": run it with queue.drain()"
            raise AssertionError(f"{view.task} {view.id} is {view.state}, it does not wait{advice}")
        asked = (view.wait_for or "").partition(":")[2]
        open_ = [each for each in self._inputs(view.id) if each.open]
        waits = [*([f"the signal {asked!r}"] if asked else []), *(f"{each.task} {each.parent}" for each in open_)]
        waits += [f"a place of {view.parked!r}"] if view.parked else []
        wrong: list[str] = []
        if signal and asked != signal:
            wrong.append(f"the signal {signal!r}")
        if after is not None and str(after.id) not in [each.parent for each in open_]:
            wrong.append(f"job {after.id}")
        if limit and not _parked(view, limit):
            wrong.append(f"a place of {name_of(limit)!r}")
        if wrong:
            said = " or ".join(wrong)
            raise AssertionError(f"{view.task} {view.id} does not wait for {said}; it waits for {', '.join(waits)}")

    def _inputs(self, job_id: str) -> Iterator[Input]:
        start = 0
        while page := self._store.inputs(job_id, start=start):
            yield from page
            start = page[-1].place + 1

    def _jobs(self, task: Task[..., Any]) -> list[JobView]:
        found: list[JobView] = []
        cursor: str | None = None
        while True:
            page = self._store.search(Filter(task=task.name), limit=1000, cursor=cursor)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda job: (job.enqueued_at, job.id))

    def _newest(self, task: Task[..., R], wanted: str) -> JobHandle[R]:
        jobs = self._jobs(task)
        for job in reversed(jobs):
            if json.loads(job.payload) == json.loads(wanted):
                return self._handle(task, job)
        there = "\n  ".join(redacted(job.payload) for job in jobs) or "none"
        raise AssertionError(f"no job of {task.name} with {redacted(wanted)}; there are:\n  {there}")

    def _handle(self, task: Task[..., R], job: JobView) -> JobHandle[R]:
        return JobHandle(self._app, job.id, created=True, decode=task.decode_result)


def _parked(view: JobView, limit: str | Limit) -> bool:
    """Does it wait for a place of this key, or of any key of this limit?"""
    key = view.parked or ""
    return gives(limit.template, key) if isinstance(limit, Limit) else key == limit
