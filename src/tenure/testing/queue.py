"""The queue of `with jobs.testing() as queue`: inspects and runs the jobs that a test enqueued, and injects faults.

A fault is injected at a *point* of an attempt. These points have names (the second of a name ends in ` #2`):

    start            no line of the handler has run
    call NAME        a function that it called has returned, or raised
    progress         job.progress(…) is stored
    checkpoint lost  job.progress(checkpoint=…) was called, and is not stored
    checkpoint       …is stored
    acted KEY        the function of job.once(KEY, …) or jobs.once has run, and is not recorded
    once KEY         …is recorded
    listed KEY       the list of job.gather(KEY, …) is recorded, its jobs are not stored
    gather KEY       …are stored; the job is not suspended yet
    expect NAME      what job.expect(NAME, …) returns is recorded, or that it did not come in time
    flow NAME        the jobs of a flow are stored
    signal NAME      the handler has sent a signal
    enqueue TASK     the handler has enqueued another job
    cancel           the handler has cancelled another job
    finish           job.finish(…, tx=…) was called; its transaction has not committed
    end              the handler has ended, its outcome is not stored
    outcome          …is stored
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar, cast

from tenure.core.clock import Clock
from tenure.core.durations import Duration, seconds, spell
from tenure.core.lifecycle import ENDED, EXPIRED, Cancelled, Crashed, Failed, Lease, Outcome, Snoozed, State
from tenure.errors import InvalidOption, JobFailed, StoreError
from tenure.events import LOST, MISFIT
from tenure.ports import Answer, Busy, Claimed, Draft, Enqueued, JobView, Landed, Store
from tenure.ports.schedules import Change
from tenure.tasks.client import Client
from tenure.tasks.handle import AppPort, JobHandle
from tenure.tasks.job import Job
from tenure.tasks.loops import refuse_on_loop
from tenure.tasks.task import NewJob, Task
from tenure.testing.listing import Listing
from tenure.testing.owner import LEASE, Owner
from tenure.testing.transactions import Fates, Transactions
from tenure.testing.trap import Call, Killed, Trap
from tenure.testing.watch import TestWatch
from tenure.worker.executor import Attempt, run_inline
from tenure.worker.program import Program

P = ParamSpec("P")
R = TypeVar("R")

Failures = Literal["raise", "retry"]
Point = str | Callable[..., object]  #: a name as above, or a function: the end of its first call

_ELSEWHERE_SECONDS = 300.0
_MOST_POINTS = 1000
_MOST_ATTEMPTS = 100  # a job that always snoozes never ends


class VirtualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self) -> None:
        self._now = time.time()
        self.clock = Clock(self._read, self._read, "testing")

    def _read(self) -> float:
        return self._now

    def advance(self, by: float) -> None:
        self._now += by


class TestQueue(Listing):
    """The jobs of a test. `drain` runs them, in this thread; `advance` lets time pass."""

    __test__ = False  # pytest must not collect it

    def __init__(
        self,
        app: AppPort,
        program: Program,
        client: Client,
        clock: VirtualClock,
        resources: Mapping[type, object],
        elsewhere: Sequence[str],
        new_fates: Callable[[], Fates],
        *,
        limits: bool,
    ) -> None:
        self.client = client
        self._drains = 0  #: how many run now
        client.in_test, client.watch = True, TestWatch(client.watch.look, lambda: self._drains > 0)
        self.resources = resources
        self._elsewhere = frozenset(elsewhere)
        self._clock = clock
        self._program = replace(program, arounds=(self._watch, *program.arounds))
        super().__init__(app, client.store)
        self._transactions = Transactions(client.store, new_fates)
        self._owner = _Gate(client.store, self._transactions, limits)  # a handler's: its lease is checked
        self._gate = _Gate(client.store, self._transactions, limits)
        self._limits = limits
        client.store = cast("Store", self._gate)
        self._trap: Trap | None = None
        self._me = Owner(self._store, clock.clock, self._program, self._elsewhere, limits=limits)

    def drain(self, *, failures: Failures = "raise") -> int:
        """Run all due jobs until none is left, and return the number of attempts. The first failure is raised here.

        It raises what the handler raised, else JobFailed. `failures="retry"` raises only the error of a job
        that ends dead; others wait for their retry, as in production, and are due after `advance`.
        """
        refuse_on_loop("drain()", "await queue.adrain()")
        return asyncio.run(self.adrain(failures=failures))

    async def adrain(self, *, failures: Failures = "raise") -> int:
        """Run all due jobs until none is left, and return the number of attempts. The first failure is raised here."""
        if failures not in ("raise", "retry"):
            raise InvalidOption(f"failures: expected 'raise' or 'retry', got {failures!r}")
        self._drains += 1
        try:
            return await self._drained(failures)
        finally:
            self._drains -= 1

    async def _drained(self, failures: Failures) -> int:
        count = 0
        while claimed := self._claim():
            if claimed.task in self._elsewhere:  # as a worker does with a task that it does not know
                lease = Lease(claimed.id, claimed.attempt, self._me.id)
                self._store.finish([(lease, Snoozed(_ELSEWHERE_SECONDS, "its task runs elsewhere"))])
                continue
            count += not claimed.expired
            await self._run(claimed, failures=failures)
        return count

    def advance(self, by: Duration) -> None:
        """Let time pass. Jobs that become due run at the next `drain`."""
        self._clock.advance(seconds(by, "advance"))

    # ── faults ──

    def run_twice(self, job: JobHandle[R] | NewJob[R]) -> JobHandle[R]:
        """Run a job to its end, kill its worker before the outcome is stored, and run it again.

        Example: `queue.run_twice(pay.bind(order=7)); assert gateway.charges == [7]`
        """
        refuse_on_loop("run_twice()", "await queue.arun_twice(…)")
        return asyncio.run(self.arun_twice(job))

    async def arun_twice(self, job: JobHandle[R] | NewJob[R]) -> JobHandle[R]:
        """Run a job to its end, kill its worker before the outcome is stored, and run it again."""
        handle = await self.akill_after(job, "end")
        if wait := _wait(self._store, handle):
            self._clock.advance(wait)
        if (found := self._store.get(str(handle.id))) is None or found.state not in ENDED:
            await self._run(await self._reach(handle))
        return handle

    def kill_after(self, job: JobHandle[R] | NewJob[R], point: Point) -> JobHandle[R]:
        """Run a job until it reaches this point, and kill its process there. `drain` then runs it again.

        Example: `queue.kill_after(pay.enqueue(7), gateway.charge)`. Raises AssertionError if the job never reaches the
        point. From its second crash on, a job waits to run again: `advance` first. Past its `max_crashes`: JobFailed.
        """
        refuse_on_loop("kill_after()", "await queue.akill_after(…)")
        return asyncio.run(self.akill_after(job, point))

    async def akill_after(self, job: JobHandle[R] | NewJob[R], point: Point) -> JobHandle[R]:
        """Run a job until it reaches this point, and kill its process there. `adrain` then runs it again."""
        return await self._strike(job, point, self._kill)

    def steal_lease(self, job: JobHandle[R] | NewJob[R], point: Point = "start") -> JobHandle[R]:
        """Run a job, and let its lease end at this point (a minute passes): its host is presumed dead, the job rescued.

        Its code keeps running, as on a machine that was only paused: its writes are refused (LeaseLost), and so is its
        outcome. `drain` then runs the job again. Example: `queue.steal_lease(pay.enqueue(7), "once charge")`
        """
        refuse_on_loop("steal_lease()", "await queue.asteal_lease(…)")
        return asyncio.run(self.asteal_lease(job, point))

    async def asteal_lease(self, job: JobHandle[R] | NewJob[R], point: Point = "start") -> JobHandle[R]:
        """Run a job, and let its lease end at this point: its host is presumed dead, the job is rescued."""
        return await self._strike(job, point, self._steal)

    def kill_everywhere(
        self, new: Callable[[], JobHandle[Any] | NewJob[Any]], check: Callable[[], object]
    ) -> list[str]:
        """Kill a new job at the first point it reaches, run it again to its end, and check; the next at its second; …

        The last one reaches its end without being killed, and is checked, too. Returns the points of the kills.
        Example: `queue.kill_everywhere(lambda: pay.bind(new_order()), gateway.assert_each_charged_once)`
        """
        refuse_on_loop("kill_everywhere()", "await queue.akill_everywhere(…)")
        tried: list[str] = []
        for trap in self._traps():
            with trap.annotated():
                asyncio.run(self._try(_made(new), trap))
                check()
            tried += filter(None, [trap.struck])
        return tried

    async def akill_everywhere(self, new: Callable[[], NewJob[Any]], check: Callable[[], object]) -> list[str]:
        """The same on an event loop, for jobs from `task.bind(…)`."""
        tried: list[str] = []
        for trap in self._traps():
            with trap.annotated():
                await self._try(_made(new), trap)
                check()
            tried += filter(None, [trap.struck])
        return tried

    # ── inside ──

    def close(self) -> None:
        """Warn of jobs in transactions that are still open."""
        self._transactions.close()

    def _jobs(self, task: Task[..., Any]) -> list[JobView]:
        self._transactions.settle()
        return super()._jobs(task)

    def _claim(self) -> Claimed | None:
        self._transactions.settle()
        self._me.renew()
        wants = {queue.name: 1 for queue in self._store.queues()}
        if self._limits:
            self._me.limit(frozenset(wants))
        while (promoted := self._store.promote()).jobs or promoted.limited:
            pass
        while self._store.admit().more:
            pass
        for solo in (False, True):
            if claimed := self._store.claim(self._me.id, wants, 1, solo=solo):
                return claimed[0]
        return None

    async def _run(self, claimed: Claimed, trap: Trap | None = None, *, failures: Failures = "raise") -> None:
        lease = Lease(claimed.id, claimed.attempt, self._me.id)
        if claimed.expired:
            self._store.finish([(lease, Cancelled(EXPIRED))])
            return
        self._trap = trap
        raised: BaseException | None = None
        failed = False
        try:
            raised, failed = await self._attempt(claimed, lease, trap)
        except Killed:
            pass
        finally:
            self._trap = None
            if trap is not None and trap.struck is not None:
                self._gate.shut = False
                self._me.start()
        job = self._store.get(claimed.id)
        if job is None or (job.state is not State.DEAD and not (failed and failures == "raise")):
            return
        error = _to_raise(job, raised)
        if job.state is not State.DEAD:
            error.add_note(
                f"{job.task} {job.id} failed in attempt {claimed.attempt} and would be tried again: "
                'queue.drain(failures="retry") leaves it to its retries'
            )
        if error is raised:
            raise error  # with its own cause
        raise error from raised

    async def _attempt(self, claimed: Claimed, lease: Lease, trap: Trap | None) -> tuple[BaseException | None, bool]:
        """What the handler raised, and whether the attempt failed: a retry would follow, or the job is dead."""
        outcome, raised = await run_inline(
            self._program, cast("Store", self._owner), claimed, lease.worker_id, self.resources
        )
        if trap is not None:
            trap.at("end")
        failed = False
        if isinstance(outcome, Snoozed) and not self._limits:
            outcome = replace(outcome, pause=None)
        if outcome is not None:
            (answer,) = self._store.finish([(lease, outcome)])
            landed = isinstance(answer, Landed) and answer.state is not State.CANCELLED
            failed = landed and isinstance(outcome, Failed)
            if landed and _is_no_fault(outcome):
                assert raised is not None
                failed, raised = True, raised.__cause__
        if trap is not None:
            trap.at("outcome")
        return raised, failed

    def _watch(self, job: Job[Any]) -> Iterator[None]:
        trap = self._trap
        before = sys.getprofile()
        try:
            if trap is not None:
                trap.watch(cast("Attempt", job._attempt))
            yield
        finally:
            if trap is not None:
                sys.setprofile(before)

    # ── inside: faults ──

    async def _strike(self, job: JobHandle[R] | NewJob[R], point: Point, fault: Callable[[str], None]) -> JobHandle[R]:
        trap = Trap(fault, name=point) if isinstance(point, str) else Trap(fault, call=Call(point))
        handle = await _stored(job)
        claimed = await self._run_to(handle, trap)
        if trap.struck is None:
            reached = "\n  ".join(trap.passed)
            raise AssertionError(
                f"{claimed.task} {claimed.id} ended and never reached {trap.wanted}; it reached:\n  {reached}"
            )
        return handle

    def _kill(self, point: str) -> None:
        self._gate.shut = True
        died = Crashed(f"its process was killed at {point!r}, by a test", process_died=True)
        self._store.settle(self._me.id, {}, died)
        raise Killed(point)

    def _steal(self, point: str) -> None:
        self._clock.advance(LEASE + 1)
        self._store.declare_expired()
        self._store.rescue()

    async def _run_to(self, handle: JobHandle[Any], trap: Trap) -> Claimed:
        """Run a job until the trap strikes or it ends: what it does after being suspended is part of it."""
        claimed = await self._reach(handle)
        await self._run(claimed, trap, failures="retry")
        while trap.struck is None and (again := await self._resumed(handle)):
            await self._run(again, trap, failures="retry")
        return claimed

    async def _resumed(self, handle: JobHandle[Any]) -> Claimed | None:
        """Claim a job that was suspended, when its wait is over: other jobs run, and time passes. None: it is not."""
        job_id = str(handle.id)
        while (job := self._store.get(job_id)) and job.state is State.WAITING:
            while claimed := self._claim():
                if claimed.id == job_id:
                    return claimed
                await self._run(claimed, failures="retry")
            if not (wait := _wait(self._store, handle)):
                return None
            self._clock.advance(wait)
        return None

    async def _reach(self, handle: JobHandle[Any]) -> Claimed:
        """Claim this job when its turn comes: jobs before it in its queue run first."""
        job_id = str(handle.id)
        while claimed := self._claim():
            if claimed.id == job_id:
                return claimed
            await self._run(claimed)
        raise _unreachable(handle, self._store.get(job_id), _wait(self._store, handle))

    def _traps(self) -> Iterator[Trap]:
        """A trap for the first point, one for the second, …, until an attempt does not reach its point."""
        for number in range(1, _MOST_POINTS + 1):
            yield (trap := Trap(self._kill, number=number))
            if trap.struck is None:
                return
        raise AssertionError(f"it reaches more than {_MOST_POINTS} points: give it less to do, or use queue.kill_after")

    async def _try(self, job: JobHandle[Any] | NewJob[Any], trap: Trap) -> None:
        handle = await _stored(job)
        await self._run_to(handle, trap)
        await self._see_through(handle)

    async def _see_through(self, handle: JobHandle[Any]) -> None:
        for _ in range(_MOST_ATTEMPTS):
            await self.adrain(failures="retry")
            if not (wait := _wait(self._store, handle)):
                return
            self._clock.advance(wait)
        raise AssertionError(f"{handle} has not ended after {_MOST_ATTEMPTS} attempts")


async def _stored(job: JobHandle[R] | NewJob[R]) -> JobHandle[R]:
    if isinstance(job, NewJob):
        return await job.aenqueue()
    if not isinstance(job, JobHandle):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"expected a job like pay.bind(7), or the handle of one, got {job!r:.80}")
    return job


def _made(new: Callable[[], JobHandle[Any] | NewJob[Any]]) -> JobHandle[Any] | NewJob[Any]:
    if not callable(new):  # pyright: ignore[reportUnnecessaryComparison]
        raise InvalidOption(
            f"expected a function that makes a job each time, like lambda: pay.bind(7), got {new!r:.80}"
        )
    return new()


def _wait(store: Store, handle: JobHandle[Any]) -> float:
    """The seconds until it is due, or its wait for a signal times out; 0 if neither will happen."""
    job = store.get(str(handle.id))
    if job is None or job.state not in (State.SCHEDULED, State.WAITING):
        return 0.0
    until = job.run_at if job.state is State.SCHEDULED else job.wait_until
    return 0.0 if until is None else max((until - store.now()).total_seconds(), 0.001)


def _to_raise(job: JobView, raised: BaseException | None) -> Exception:
    """The error of a test whose job has failed: what its handler raised, if it raised something."""
    if isinstance(raised, StopIteration):
        return RuntimeError(f"{job.task} raised StopIteration, which no coroutine can pass on")
    return raised if isinstance(raised, Exception) else JobFailed(job.id, job.state, job.error or "")


def _unreachable(handle: JobHandle[Any], job: JobView | None, wait: float) -> AssertionError:
    """Why this job can't be run now."""
    if job is None:
        return AssertionError(f"{handle} is not in this queue: enqueue it inside `with jobs.testing()`")
    match job.state:
        case State.SCHEDULED:
            what = f"is due in {spell(wait)}: queue.advance(…) first"
        case State.WAITING:
            signal = (job.wait_for or "").partition(":")[2]
            for_ = f"the signal {signal!r}" if signal else f"a place of {job.parked}" if job.parked else "other jobs"
            what = f"waits for {for_}: let that happen first"
        case State.QUEUED:
            what = f"is queued, and its queue {job.queue!r} is paused: resume it first"
        case _:
            what = f"is {job.state} already: enqueue another one"
    return AssertionError(f"{job.task} {job.id} {what}")


def _is_no_fault(outcome: Outcome) -> bool:
    """Its arguments do not fit, or a connection was lost. A worker tries it again; a test has to be told."""
    return isinstance(outcome, Snoozed) and outcome.reason.startswith((MISFIT, LOST))


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Gate:
    """The store as the app sees it: shut while the code of a killed process is still running."""

    def __init__(self, store: Store, transactions: Transactions, limits: bool) -> None:
        self._store = store
        self._transactions = transactions
        self._limits = limits
        self.shut = False

    def __getattr__(self, name: str) -> Any:
        # A hold of jobs.once expires after its process has died; here no time passes, so it is released.
        if name != "swap":
            self._refuse(name)
        self._transactions.settle()
        return getattr(self._store, name)

    def change(self, changes: Sequence[Change]) -> list[bool]:
        self._refuse("change")
        self._transactions.settle()
        return self._store.change([replace(each, drafts=self._without_limits(each.drafts)) for each in changes])

    def _without_limits(self, drafts: Sequence[Draft]) -> tuple[Draft, ...]:
        """Unless they are asked for."""
        return tuple(draft.but(limits=()) if draft.limits and not self._limits else draft for draft in drafts)

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        self._refuse("enqueue")
        drafts = self._without_limits(drafts)

        def enqueue() -> None:
            self._refuse("commit")
            self._store.enqueue(drafts)
            if committed is not None:
                committed()

        waiting = self._transactions.late(drafts, tx, enqueue)
        if waiting is not None:
            return waiting
        return self._store.enqueue(drafts, tx=self._transactions.joined(tx, drafts), committed=committed)

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        self._refuse("finish")
        return self._store.finish(ends, tx=self._transactions.joined(tx))

    @contextmanager
    def transaction(self) -> Generator[Any]:
        with self._store.transaction() as tx:
            yield tx
            self._refuse("commit")

    def _refuse(self, what: str) -> None:
        if self.shut:
            raise StoreError(f"{what}: a test has killed this process; nothing it does is stored")
