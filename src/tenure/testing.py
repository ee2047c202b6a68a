"""What `with jobs.testing() as queue` gives a test: the jobs it enqueued, and the hand that runs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from tenure.arguments import redacted
from tenure.client import Client
from tenure.clock import Clock
from tenure.durations import Duration, seconds
from tenure.errors import JobFailed
from tenure.executor import run_inline
from tenure.job import Home, Job, JobHandle, refuse_on_loop
from tenure.lifecycle import Cancelled, Lease, State
from tenure.ports import Claimed, Filter, JobView, WorkerIdentity
from tenure.task import Program, Task

P = ParamSpec("P")
R = TypeVar("R")

_WORKER = "test-worker"


class VirtualClock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self._now = time.time()
        self.clock = Clock(self._read, self._read, "testing")

    def _read(self) -> float:
        return self._now

    def advance(self, by: float) -> None:
        self._now += by


class TestQueue:
    """The jobs of a test. They run when `drain` is called, in this thread, and time passes when `advance` is."""

    __test__ = False  # it is no test of pytest's

    def __init__(
        self, home: Home, program: Program, client: Client, clock: VirtualClock, resources: Mapping[type, object]
    ) -> None:
        self.client = client
        self.resources = resources
        self._home = home
        self._clock = clock
        self._errors: dict[str, Exception] = {}
        self._program = replace(program, arounds=(self._watch, *program.arounds))
        self._store = client.store
        self._store.register(
            WorkerIdentity(
                id=_WORKER,
                host="testing",
                pid=0,
                started="",
                boot_id="testing",
                pid_namespace="",
                runner="embedded",
                queues=(),
                tasks=program.tasks.names,
                slots=1,
                lease=60.0,
            )
        )

    def enqueued(self, task: Task[..., R]) -> list[JobHandle[R]]:
        """Every job of this task so far, oldest first."""
        return [self._handle(task, job) for job in self._jobs(task)]

    def assert_enqueued(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """The newest job of this task with these arguments, or AssertionError with those there are."""
        wanted = task.arguments.dump(task.arguments.bind(args, kwargs), self._home.settings.max_payload)
        jobs = self._jobs(task)
        for job in reversed(jobs):
            if job.payload == wanted:
                return self._handle(task, job)
        there = "\n  ".join(redacted(job.payload) for job in jobs) or "none"
        raise AssertionError(f"no job of {task.name} with {redacted(wanted)}; there are:\n  {there}")

    def drain(self) -> int:
        """Run what is due until nothing is, and say how many attempts that were.

        A job that ends dead raises its error here. One that failed and waits to retry is due after `advance`.
        """
        refuse_on_loop("drain()", "await queue.adrain()")
        return asyncio.run(self.adrain())

    async def adrain(self) -> int:
        """Run what is due until nothing is, and say how many attempts that were."""
        count = 0
        while claimed := self._claim():
            count += 1
            await self._run(claimed)
        return count

    def advance(self, by: Duration) -> None:
        """Let time pass. Jobs that become due run at the next `drain`."""
        self._clock.advance(seconds(by, "advance"))

    # ── inside ──

    def _jobs(self, task: Task[..., Any]) -> list[JobView]:
        found: list[JobView] = []
        cursor: str | None = None
        while True:
            page = self._store.search(Filter(task=task.name), limit=1000, cursor=cursor)
            found += page.jobs
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda job: (job.enqueued_at, job.id))

    def _handle(self, task: Task[..., R], job: JobView) -> JobHandle[R]:
        return JobHandle(self._home, job.id, created=True, decode=task.decode_result)

    def _claim(self) -> Claimed | None:
        self._store.renew([_WORKER])  # its lease is real, and time may have jumped over its end
        while self._store.promote().jobs:
            pass
        wants = {queue.name: 1 for queue in self._store.queues()}
        for solo in (False, True):
            if claimed := self._store.claim(_WORKER, wants, 1, solo=solo):
                return claimed[0]
        return None

    async def _run(self, claimed: Claimed) -> None:
        lease = Lease(claimed.id, claimed.attempt, _WORKER)
        if claimed.expired:
            self._store.finish([(lease, Cancelled("expired before it could start"))])
            return
        outcome = await run_inline(self._program, self._store, claimed, _WORKER, self.resources)
        if outcome is None:
            return
        self._store.finish([(lease, outcome)])
        job = self._store.get(claimed.id)
        error = self._errors.pop(claimed.id, None)
        if job is not None and job.state is State.DEAD:
            raise error or JobFailed(job.id, job.state, job.error or "")

    def _watch(self, job: Job[Any]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._errors[str(job.id)] = error
            raise
