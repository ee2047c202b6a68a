"""Guards in the runtime whose removal no other test would notice (tests/guards removes them)."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import LEASE, World, put, running, start
from conformance.factories import schedule as some_schedule
from tenure import Job, Retry, Snooze, Tenure
from tenure.config import load
from tenure.core import host
from tenure.core.clock import system_clock
from tenure.core.host import TOKEN_ENV
from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, Outcome, Released, State
from tenure.errors import JobStopped, LeaseLost, StoreAway, TenureError
from tenure.events import Events
from tenure.guards.guard import Guard
from tenure.maintenance.maintenance import Maintenance
from tenure.notifiers.poll import PollNotifier
from tenure.ports import NONE_KNOWN, Answer, Busy, Claimed, Filter, JobView, Owned, Permit, Runner
from tenure.ports.schedules import Change, Standing
from tenure.schedules.plan import Plan as Ticks
from tenure.schedules.timetable import Timetable, _declare
from tenure.stores.memory import MemoryStore
from tenure.tasks.handle import JobHandle
from tenure.worker.executor import Attempt, _Inline
from tenure.worker.flusher import OutcomeFlusher
from tenure.worker.permits import HeldPermits
from tenure.worker.slots import End, Plan
from tenure.worker.worker import Worker
from waiting import until

SECONDS = 30.0


class Shop:
    """An app with an embedded worker that looks at what it owns every second."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.jobs = Tenure("memory:", notifier="poll", retry=Retry(1))
        self.jobs.configure({"poll_interval": "50ms", "grace": "0s"})
        self.runs: list[int] = []
        self.begun, self.stopped = threading.Event(), threading.Event()

    def take_it_away(self) -> None:
        """Another caller ends the running attempt, and no worker runs the job again."""
        assert self.begun.wait(SECONDS)
        self.store.pause("default", paused=True)
        self.end_it()

    def end_it(self) -> None:
        (job,) = [view for view in self.views() if view.state is State.PROCESSING]
        lease = Lease(job.id, job.attempt, job.worker_id or "")
        self.store.finish([(lease, Released("taken back"))])

    def views(self) -> list[JobView]:
        return list(self.store.search(Filter()).jobs)

    def view(self, handle: JobHandle[Any]) -> JobView:
        (view,) = [each for each in self.views() if each.id == str(handle.id)]
        return view

    def outcomes(self, handle: JobHandle[Any]) -> list[str]:
        return [each.outcome for each in self.store.attempts(str(handle.id))]


def away(*_: object, **__: object) -> Any:
    raise StoreAway("nobody there")


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    store = MemoryStore(system_clock())
    monkeypatch.setattr("tenure.app.backends.open_store", lambda _: store)
    monkeypatch.setattr("tenure.worker.access.RETRY_SECONDS", 0.02)
    return Shop(store)


# ── a worker and what the store says it owns ──


def test_what_has_ended_and_is_not_stored_yet_is_not_run_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    ending, looked = threading.Event(), threading.Event()
    finish, owned, looks = shop.store.finish, shop.store.owned, list[int]()

    def finish_late(ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        ending.set()
        assert looked.wait(SECONDS)
        return finish(ends, tx=tx)

    def look(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        if ending.is_set():
            looks.append(1)
        if len(looks) > 1:  # what the first look saw has been settled
            looked.set()
        return owned(worker_id, known)

    monkeypatch.setattr(shop.store, "finish", finish_late)
    monkeypatch.setattr(shop.store, "owned", look)

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)

    job = pack.enqueue()
    with shop.jobs.worker(concurrency=2):
        job.result("30s")
    assert shop.runs == [1]


def test_what_is_stored_while_the_owned_ones_are_read_is_not_run_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, flushed, again = threading.Event(), threading.Event(), threading.Event()
    owned, flush = shop.store.owned, OutcomeFlusher._flush

    def look(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        if flushed.is_set():
            again.set()
        found = owned(worker_id, known)
        if found:
            go.set()
            assert flushed.wait(SECONDS)
        return found

    async def flush_and_tell(flusher: OutcomeFlusher, batch: list[End]) -> None:
        await flush(flusher, batch)
        asyncio.get_running_loop().call_soon(flushed.set)

    monkeypatch.setattr(shop.store, "owned", look)
    monkeypatch.setattr(OutcomeFlusher, "_flush", flush_and_tell)

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)
        assert go.wait(SECONDS)

    job = pack.enqueue()
    with shop.jobs.worker(concurrency=2):
        job.result("30s")
        assert again.wait(SECONDS)
    assert shop.runs == [1]


def test_a_claim_waits_until_the_owned_ones_are_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, enqueued, claimed, again = (threading.Event() for _ in range(4))
    owned, claim = shop.store.owned, shop.store.claim

    def look(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        found = owned(worker_id, known)
        if reading.is_set():
            again.set()
        else:
            reading.set()
            assert enqueued.wait(SECONDS)
            claimed.wait(1.0)  # the claim must not come
        return found

    def tell(worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        found = claim(worker_id, wants, limit, solo=solo)
        if found:
            claimed.set()
        return found

    monkeypatch.setattr(shop.store, "owned", look)
    monkeypatch.setattr(shop.store, "claim", tell)

    @shop.jobs.task
    async def pack() -> None:
        shop.runs.append(1)
        await asyncio.to_thread(again.wait, SECONDS)

    with shop.jobs.worker(concurrency=2):
        assert reading.wait(SECONDS)
        job = pack.enqueue()
        enqueued.set()
        job.result("30s")
    assert shop.runs == [1]


def test_code_that_ended_in_its_own_transaction_goes_on_until_it_is_done(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, looked, looks, owned = threading.Event(), threading.Event(), list[int](), shop.store.owned

    def look(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        if ended.is_set():
            looks.append(1)
        if len(looks) > 1:  # what the first look saw has been settled
            looked.set()
        return owned(worker_id, known)

    monkeypatch.setattr(shop.store, "owned", look)

    @shop.jobs.task
    async def pack(job: Job) -> None:
        with shop.store.transaction() as tx:
            await job.afinish(tx=tx)
        ended.set()
        try:
            await asyncio.to_thread(looked.wait, SECONDS)
            shop.runs.append(1)
        finally:
            shop.stopped.set()

    pack.enqueue()
    with shop.jobs.worker():
        assert shop.stopped.wait(SECONDS)
    assert shop.runs == [1]


def test_a_lease_that_is_lost_stops_its_code_at_the_next_look(shop: Shop) -> None:
    @shop.jobs.task
    async def pack() -> None:
        shop.begun.set()
        try:
            await asyncio.sleep(SECONDS * 2)
        finally:
            shop.stopped.set()

    job = pack.enqueue()
    with shop.jobs.worker():
        shop.take_it_away()
        assert shop.stopped.wait(SECONDS)
    assert shop.view(job).state is State.QUEUED


def test_a_lease_that_is_lost_stops_its_code_at_its_next_progress(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.store, "owned", away)

    @shop.jobs.task
    async def pack(job: Job) -> None:
        shop.begun.set()
        try:
            while True:
                job.progress(0.5)
                await asyncio.sleep(0.01)
        finally:
            shop.stopped.set()

    pack.enqueue()
    with shop.jobs.worker():
        shop.take_it_away()
        assert shop.stopped.wait(SECONDS)


@pytest.mark.parametrize("word", ["flush", "once"])
def test_a_lease_that_is_lost_stops_its_code_at_its_word(
    word: str, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shop.store, "owned", away)
    monkeypatch.setattr("tenure.worker.progress.PROGRESS_SECONDS", SECONDS)
    taken, raised = threading.Event(), list[BaseException]()

    @shop.jobs.task
    def pack(job: Job) -> None:
        shop.begun.set()
        assert taken.wait(SECONDS)
        try:
            if word == "flush":
                job.progress(0.5)
                job.flush()
            else:
                job.once("key", lambda: 1)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            shop.stopped.set()

    pack.enqueue()
    with shop.jobs.worker():
        shop.take_it_away()
        taken.set()
        assert shop.stopped.wait(SECONDS)
    assert [type(each) for each in raised] == [LeaseLost]


def test_code_that_swallows_its_cancel_hears_at_its_next_word_that_its_lease_is_lost(shop: Shop) -> None:
    raised = list[BaseException]()

    @shop.jobs.task
    async def pack(job: Job) -> None:
        shop.begun.set()
        try:
            await asyncio.sleep(SECONDS * 2)
        except asyncio.CancelledError:
            try:
                job.progress(1.0)
            except LeaseLost as error:
                raised.append(error)
        shop.stopped.set()

    pack.enqueue()
    with shop.jobs.worker():
        shop.take_it_away()
        assert shop.stopped.wait(SECONDS)
    assert len(raised) == 1


def test_two_attempts_of_one_job_never_run_in_one_process(shop: Shop) -> None:
    story: list[str] = []

    @shop.jobs.task
    async def pack(job: Job) -> None:
        story.append(f"begin {job.attempt}")
        shop.begun.set()
        try:
            if job.attempt == 1:
                await asyncio.sleep(SECONDS * 2)
        finally:
            await asyncio.sleep(0.2)  # it tidies up
            story.append(f"end {job.attempt}")

    job = pack.enqueue()
    with shop.jobs.worker(concurrency=2):
        assert shop.begun.wait(SECONDS)
        shop.end_it()
        job.result("30s")
    assert story == ["begin 1", "end 1", "begin 2", "end 2"]


def test_an_outcome_is_sent_until_the_store_has_answered(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, tries = shop.store.finish, list[int]()

    def fail_often(ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        tries.append(1)
        return finish(ends, tx=tx) if len(tries) > 3 else away()

    monkeypatch.setattr(shop.store, "finish", fail_often)

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)

    job = pack.enqueue()
    with shop.jobs.worker():
        job.result("30s")
    assert (shop.runs, shop.view(job).attempt) == ([1], 1)


def test_a_draining_worker_waits_for_outcomes_with_locked_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, tries = shop.store.finish, list[int]()

    def hold_at_first(ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        tries.append(1)
        return finish(ends, tx=tx) if len(tries) > 3 else [Busy() for _ in ends]

    monkeypatch.setattr(shop.store, "finish", hold_at_first)
    monkeypatch.setattr("tenure.worker.flusher.BUSY_SECONDS", 0.02)
    ran = threading.Event()

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)
        ran.set()

    job = pack.enqueue()
    with shop.jobs.worker():
        assert ran.wait(SECONDS)
    assert (shop.runs, shop.view(job).state) == ([1], State.COMPLETED)


def test_what_a_late_claim_brings_to_a_drained_worker_goes_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    claiming, drained = threading.Event(), threading.Event()
    claim, hand_back = shop.store.claim, Worker.hand_back

    def claim_late(worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        found = claim(worker_id, wants, limit, solo=solo)
        if found:
            claiming.set()
            assert drained.wait(SECONDS)
        return found

    def tell(worker: Worker, reason: str) -> None:
        hand_back(worker, reason)
        drained.set()

    monkeypatch.setattr(shop.store, "claim", claim_late)
    monkeypatch.setattr(shop.store, "claim_on_loop", lambda *_, **__: (each for each in ()))
    monkeypatch.setattr(Worker, "hand_back", tell)

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)

    job = pack.enqueue()
    with shop.jobs.worker():
        assert claiming.wait(SECONDS)
    assert (shop.runs, shop.view(job).state, shop.outcomes(job)) == ([], State.QUEUED, ["released"])


def test_a_job_that_is_claimed_too_late_is_not_run(shop: Shop) -> None:
    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)

    job, after = pack.using(expires="1ms").enqueue(), threading.Event()
    after.wait(0.05)  # until it has expired
    with shop.jobs.worker():
        until(lambda: shop.view(job).state is State.CANCELLED or shop.runs, "its end")
    assert shop.runs == []


def test_a_stuck_worker_claims_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store, jobs, go = MemoryStore(system_clock()), Tenure("memory:"), threading.Event()
    stop_soon(monkeypatch)

    @jobs.task
    def deaf() -> None:
        assert go.wait(SECONDS)

    put(store, task="deaf", timeout=0.05)

    async def story() -> tuple[dict[str, Outcome], int]:
        stuck: asyncio.Future[dict[str, Outcome]] = asyncio.get_running_loop().create_future()
        worker = worker_of(store, jobs, stuck.set_result)
        worker.start()
        verdicts = await stuck
        free = worker._slots.free()
        go.set()
        await worker.close()
        return verdicts, free

    verdicts, free = asyncio.run(story())
    assert (len(verdicts), free) == (1, 0)


def test_code_that_has_ended_is_not_stuck_though_it_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    store, jobs, attempts = MemoryStore(system_clock()), Tenure("memory:"), list[Attempt]()
    stop_soon(monkeypatch)

    @jobs.task
    async def pack(job: Job) -> None:
        attempts.append(job._attempt)  # type: ignore[arg-type]

    put(store, task="pack")

    async def story() -> tuple[list[object], int]:
        stuck = list[object]()
        worker = worker_of(store, jobs, stuck.append)
        worker.start()
        while not attempts or not worker.idle:
            await asyncio.sleep(0.01)
        attempts[0].request_stop("lease_lost", None)  # as a thread does when its last write is late, and refused
        await asyncio.sleep(0.3)  # the time to stop is over
        free = worker._slots.free()
        await worker.close()
        return stuck, free

    assert asyncio.run(story()) == ([], 3)


@pytest.mark.parametrize("runner", ["solo", "embedded"])
def test_a_worker_claims_nothing_beside_the_outcome_of_a_job_that_ran_alone(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job may kill the process: the store would charge the one that has ended, too."""
    store, jobs = MemoryStore(system_clock()), Tenure("memory:")
    finish, claim, let, held = store.finish, store.claim, threading.Event(), list[set[State]]()

    @jobs.task
    async def pack(job: Job) -> None:
        job.progress(0.5)

    first, second = put(store, task="pack", isolated=True), put(store, task="pack", isolated=True)

    def finish_late(ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        assert let.wait(SECONDS)
        return finish(ends, tx=tx)

    def told(worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        before = {each.state for each in map(store.get, (first, second)) if each is not None}
        claimed = claim(worker_id, wants, limit, solo=solo)
        if claimed:
            held.append(before)
        return claimed

    monkeypatch.setattr(store, "finish", finish_late)
    monkeypatch.setattr(store, "claim", told)

    async def story() -> None:
        worker = worker_of(store, jobs, lambda _: None, runner=runner)
        worker.start()
        while not worker.unstored:
            await asyncio.sleep(0.01)
        for _ in range(20):  # a ring, a poll, and the time after which unstored outcomes hold slots back
            worker._slots.wake.set()
            await asyncio.sleep(0.01)
            assert worker._slots.free() == 0
        let.set()
        while len(held) < 2 or not worker.idle:
            await asyncio.sleep(0.01)
        await worker.close()

    asyncio.run(asyncio.wait_for(story(), SECONDS))
    assert held == [{State.QUEUED}, {State.COMPLETED, State.QUEUED}]


def isolated(store: MemoryStore) -> None:
    put(store, task="pack", isolated=True)


def crashed(store: MemoryStore) -> None:
    """A job whose process has died: the next attempt runs alone."""
    lease = running(store, task="pack")
    store.settle(lease.worker_id, {}, Crashed("killed by signal 9", process_died=True))


@pytest.mark.parametrize("come", [isolated, crashed])
def test_an_embedded_worker_runs_a_job_alone_beside_steady_traffic(
    come: Callable[[MemoryStore], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, jobs, beside = MemoryStore(system_clock()), Tenure("memory:"), list[int]()
    monkeypatch.setattr("tenure.worker.claims.ALONE_SECONDS", 0.2)
    begun = following = 0

    @jobs.task
    async def follow() -> None:
        nonlocal begun, following
        begun, following = begun + 1, following + 1
        mine, until = begun, asyncio.get_running_loop().time() + 1.0
        put(store, task="follow")
        while begun == mine and asyncio.get_running_loop().time() < until:  # so that one always runs, if more come
            await asyncio.sleep(0.005)
        following -= 1

    @jobs.task
    async def pack() -> None:
        beside.append(following)

    come(store)
    for _ in range(6):  # twice as many as there are slots
        put(store, task="follow")

    async def story() -> None:
        worker = worker_of(store, jobs, lambda _: None, runner="embedded")
        worker.start()
        while not beside:
            await asyncio.sleep(0.01)
        await worker.close()

    asyncio.run(asyncio.wait_for(story(), SECONDS / 2))
    assert beside == [0]


def test_a_worker_of_jobs_that_run_alone_claims_the_next_as_soon_as_the_outcome_is_stored() -> None:
    store, jobs, runs = MemoryStore(system_clock()), Tenure("memory:"), list[str]()

    @jobs.task
    async def pack(job: Job) -> None:
        runs.append(str(job.id))

    ids = [put(store, task="pack", isolated=number % 2 == 0) for number in range(6)]

    async def story() -> None:
        worker = worker_of(store, jobs, lambda _: None, runner="embedded", poll_interval=1000.0)
        worker.start()
        while len(runs) < len(ids):
            await asyncio.sleep(0.01)
        await worker.close()

    asyncio.run(asyncio.wait_for(story(), SECONDS))
    assert sorted(runs) == sorted(ids)


def stop_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.worker.stops.STOP_SECONDS", 0.1)
    monkeypatch.setattr("tenure.worker.stops.TICK_SECONDS", 0.02)


def worker_of(
    store: MemoryStore,
    jobs: Tenure,
    on_stuck: Callable[[dict[str, Outcome]], None],
    *,
    runner: Runner = "worker",
    poll_interval: float = 0.02,
) -> Worker:
    plan = Plan(
        worker_id=start(store),
        runner=runner,
        queues={"default": None},
        slots=1 if runner == "solo" else 3,
        lease=LEASE,
        poll_interval=poll_interval,
        grace=0.0,
    )
    return Worker(
        plan,
        jobs.program,
        store,
        PollNotifier(0.02),
        Events(),
        resources={},
        on_due=lambda: None,
        on_tick=lambda: None,
        on_stuck=on_stuck,
        may_declare=lambda: False,
    )


def test_a_disk_that_is_full_is_told_of_once_though_it_can_be_read(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tenure.store")
    looks, claim, owned = list[int](), shop.store.claim, shop.store.owned

    def told() -> list[str]:
        return [each.levelname for each in caplog.records if each.name == "tenure.store"]

    def look(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        looks.append(1)
        return owned(worker_id, known)

    monkeypatch.setattr(shop.store, "owned", look)

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)

    with shop.jobs.worker():
        monkeypatch.setattr(shop.store, "claim", away)
        job = pack.enqueue()
        until(told, "the first word of it")
        seen = len(looks)
        until(lambda: len(looks) > seen + 5, "looks at what it owns")
        monkeypatch.setattr(shop.store, "claim", claim)
        job.result("30s")
        until(lambda: len(told()) > 1, "the word that it is back")  # a claim in flight may have taken the job
    assert told() == ["WARNING", "INFO"], "away, and back"


# ── code stops first ──


def test_what_comes_back_after_its_time_is_no_success(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told_of_asking(monkeypatch)

    @shop.jobs.task(timeout="50ms")
    def pack() -> str:
        assert asked.wait(SECONDS)
        return "late"

    job = pack.enqueue()
    with shop.jobs.worker():
        until(lambda: shop.outcomes(job), "its end")
    assert shop.outcomes(job) == ["failed"]


@pytest.mark.parametrize(("limits", "ended"), [({"timeout": "50ms"}, "failed"), ({"stale_after": "1s"}, "crashed")])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_snooze_that_comes_too_late_is_charged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, kind: str, limits: dict[str, str], ended: str
) -> None:
    asked = told_of_asking(monkeypatch)

    def plain(job: Job) -> None:
        assert asked.wait(SECONDS)
        raise Snooze("1h", "the warehouse is closed")

    async def on_the_loop(job: Job) -> None:
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            raise Snooze("1h", "the warehouse is closed") from None

    options: dict[str, Any] = limits
    pack = shop.jobs.task(name="pack", **options)(plain if kind == "plain" else on_the_loop)
    job = pack.enqueue()
    with shop.jobs.worker():
        until(lambda: shop.outcomes(job), "its end")
    assert shop.outcomes(job)[0] == ended  # what crashed once is queued again at once: the next attempt may have ended


def told_of_asking(monkeypatch: pytest.MonkeyPatch, reason: str = "timeout") -> threading.Event:
    asked, request_stop = threading.Event(), Attempt.request_stop

    def request_and_note(attempt: Attempt, why: Any, verdict: Outcome | None) -> None:
        request_stop(attempt, why, verdict)
        if why == reason:
            asked.set()

    monkeypatch.setattr(Attempt, "request_stop", request_and_note)
    return asked


def test_the_first_reason_to_stop_stands(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = told_of_asking(monkeypatch, "cancel")

    @shop.jobs.task(timeout="50ms")
    def pack(job: Job) -> None:
        try:
            while True:
                job.progress(0.5)
        except JobStopped:
            shop.begun.set()
            assert asked.wait(SECONDS)
            raise

    job = pack.enqueue()
    with shop.jobs.worker():
        assert shop.begun.wait(SECONDS)
        job.cancel()
        until(lambda: shop.outcomes(job), "its end")
    assert shop.outcomes(job) == ["failed"]


def test_an_attempt_that_is_asked_to_stop_before_it_began_does_not_begin() -> None:
    store, jobs, runs = MemoryStore(system_clock()), Tenure("memory:"), list[int]()
    worker_id = start(store)
    put(store, task="pack")
    (claimed,) = store.claim(worker_id, {"default": 1}, 1)

    @jobs.task
    async def pack() -> None:
        await asyncio.sleep(0)  # an eager task has begun by then, and is cancelled here
        runs.append(1)

    async def story() -> Outcome | None:
        host = _Inline(store, worker_id, {})
        attempt = Attempt(host, pack, claimed, asyncio.get_running_loop())
        with ThreadPoolExecutor(1) as pool:
            attempt.start(jobs.program, pool)
            attempt.request_stop("shutdown", Released("drained"))
            return await host.done

    assert (asyncio.run(story()), runs) == (Released("drained"), [])


def test_a_thread_has_no_outcome_before_it_has_stopped_even_if_its_waiter_is_cancelled() -> None:
    store, jobs, begun, go = MemoryStore(system_clock()), Tenure("memory:"), threading.Event(), threading.Event()
    worker_id = start(store)
    put(store, task="pack")
    (claimed,) = store.claim(worker_id, {"default": 1}, 1)

    @jobs.task
    def pack() -> None:
        begun.set()
        assert go.wait(SECONDS)

    async def story() -> tuple[bool, Outcome | None]:
        host = _Inline(store, worker_id, {})
        attempt = Attempt(host, pack, claimed, asyncio.get_running_loop())
        with ThreadPoolExecutor(1) as pool:
            attempt.start(jobs.program, pool)
            while not begun.is_set():
                await asyncio.sleep(0.01)
            assert attempt.handle is not None
            attempt.handle.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            early = host.done.done()
            go.set()
            return early, await host.done

    assert asyncio.run(story()) == (False, Completed())


def test_an_embedded_worker_that_cannot_renew_stops_what_it_runs(shop: Shop) -> None:
    shop.jobs.configure({"poll_interval": "50ms", "grace": "0s", "lease": "1s"})
    patch = pytest.MonkeyPatch()

    @shop.jobs.task
    async def pack() -> None:
        if not shop.stopped.is_set():
            patch.setattr(shop.store, "renew", away)  # here: a lease that ran out before would stop it too
        try:
            await asyncio.sleep(SECONDS * 2)
        finally:
            shop.stopped.set()

    pack.enqueue()
    with shop.jobs.worker():
        assert shop.stopped.wait(SECONDS)
        patch.undo()


def test_an_embedded_worker_that_was_declared_dead_stops_what_it_runs_at_its_next_beat(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.maintenance.holder.ASK_AFTER", 1e9)  # and not because its lease is nearly over
    shop.jobs.configure({"poll_interval": "50ms", "grace": "0s", "lease": "1s"})

    @shop.jobs.task
    async def pack() -> None:
        shop.begun.set()
        try:
            await asyncio.sleep(SECONDS * 2)
        finally:
            shop.stopped.set()

    pack.enqueue()
    with shop.jobs.worker():
        assert shop.begun.wait(SECONDS)
        shop.store.pause("default", paused=True)
        monkeypatch.setattr(shop.store, "owned", away)
        shop.store.declare_dead([each.identity.id for each in shop.store.workers()])
        assert shop.stopped.wait(SECONDS)


def test_a_block_that_is_left_waits_a_while_for_a_store_that_is_away(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenure.worker.worker.SETTLE_SECONDS", 600.0)
    finish, leaving, drain = shop.store.finish, threading.Event(), Worker.drain

    def finish_late(ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        return finish(ends, tx=tx) if leaving.is_set() else away()

    async def tell(worker: Worker, grace: float, *, block_ended: Callable[[], bool], patience: float | None) -> None:
        asyncio.get_running_loop().call_later(0.1, leaving.set)
        await drain(worker, grace, block_ended=block_ended, patience=patience)

    monkeypatch.setattr(shop.store, "finish", finish_late)
    monkeypatch.setattr(Worker, "drain", tell)

    @shop.jobs.task
    def pack() -> None:
        shop.runs.append(1)

    job = pack.enqueue()
    with shop.jobs.worker():
        until(lambda: shop.runs, "its run")
    assert (shop.runs, shop.view(job).state) == ([1], State.COMPLETED)
    assert "not stored" not in caplog.text


def test_a_block_can_be_left_at_the_moment_its_worker_fails(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TypeError("a mistake in the store")

    @shop.jobs.task
    def pack() -> None: ...

    worker, here = shop.jobs.worker(), threading.current_thread()
    with pytest.raises(TenureError, match="failed while the block ran"), worker:
        loop = worker._serving.loop
        assert loop is not None
        say = loop.call_soon_threadsafe

        def say_too_late(callback: Callable[[], object], *args: Any, context: Any = None) -> Any:
            if threading.current_thread() is here:  # it has seen no failure, and says that the block is left
                monkeypatch.setattr(worker._beating, "_step", broken)
                worker._beating.wake()
                worker._threads[0].join(SECONDS)
            return say(callback, *args, context=context)

        monkeypatch.setattr(loop, "call_soon_threadsafe", say_too_late)

    assert not any(thread.is_alive() for thread in worker._threads)


# ── a process that was cut off declares no worker dead ──


class Scanner:
    """A supervisor's maintenance under a virtual clock, and the workers it sees."""

    def __init__(self, world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.store, self.processes = world, store, dict[int, str]()
        self.mine = start(store)
        monkeypatch.setattr("tenure.maintenance.judge.system_clock", lambda: world.clock)
        monkeypatch.setattr("tenure.maintenance.holder.system_clock", lambda: world.clock)
        monkeypatch.setattr("tenure.maintenance.holder.pid_namespace", lambda: "ours")
        monkeypatch.setattr(
            "tenure.maintenance.holder.has_ended", lambda pid, started: self.processes.get(pid) != started
        )
        settings = replace(load(environ={}), lease=LEASE)
        self.maintenance = Maintenance(store, PollNotifier(), Events(), settings, mine=lambda: frozenset({self.mine}))
        self.beat()

    def beat(self, seconds: float = 0.0) -> None:
        self.world.advance(seconds)
        self.store.renew([self.mine])
        self.maintenance.judge.renewed(self.world.clock.boot(), [self.mine])

    def watch(self, seconds: float) -> None:
        """Renew regularly for this long."""
        for _ in range(round(seconds / 10)):
            self.beat(10)

    def dead(self) -> set[str]:
        self.maintenance.scan()
        return {each.identity.id for each in self.store.workers(dead=True) if each.died_at is not None}


def made_up() -> tuple[World, MemoryStore]:
    world = World(MemoryStore)
    store = world.store()
    assert isinstance(store, MemoryStore)
    return world, store


@pytest.fixture
def scanner(monkeypatch: pytest.MonkeyPatch) -> Scanner:
    return Scanner(*made_up(), monkeypatch)


def test_a_process_that_has_just_started_declares_no_worker_dead_for_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    world, store = made_up()
    other = start(store)
    world.advance(LEASE + 1)
    scanner = Scanner(world, store, monkeypatch)

    assert scanner.dead() == set()
    scanner.watch(LEASE)
    assert scanner.dead() == {other}


def test_a_process_that_no_longer_renews_declares_no_worker_dead(scanner: Scanner) -> None:
    other = start(scanner.store)
    scanner.watch(2 * LEASE)
    start(scanner.store)
    scanner.world.advance(LEASE - 1)
    scanner.store.renew([scanner.mine])  # it landed, but its answer never came

    assert not scanner.maintenance.judge.may_declare()
    assert scanner.dead() == set()
    scanner.maintenance.judge.renewed(scanner.world.clock.boot(), [scanner.mine])
    scanner.watch(LEASE)
    assert other in scanner.dead()


def test_after_an_outage_other_workers_have_a_lease_to_renew(scanner: Scanner) -> None:
    scanner.watch(2 * LEASE)
    other = start(scanner.store)
    scanner.beat(2 * LEASE)

    assert scanner.dead() == set()
    scanner.watch(LEASE)
    assert scanner.dead() == {other}


def test_a_process_with_a_dead_worker_of_its_own_declares_no_worker_dead(scanner: Scanner) -> None:
    start(scanner.store)
    scanner.watch(2 * LEASE)
    scanner.store.declare_dead([scanner.mine])

    assert scanner.dead() == {scanner.mine}


def test_a_declaration_that_was_delayed_in_flight_declares_no_worker_dead(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanner.watch(2 * LEASE)
    start(scanner.store)
    declare = scanner.store.declare_expired

    def arrive_late(**given: Any) -> frozenset[str]:
        scanner.world.advance(2 * LEASE)
        scanner.store.renew([scanner.mine])  # this renewal was held up, too, and is carried out first
        return declare(**given)

    monkeypatch.setattr(scanner.store, "declare_expired", arrive_late)

    assert scanner.dead() == set()


def test_only_a_process_of_this_boot_and_container_that_is_gone_is_proof_of_death(scanner: Scanner) -> None:
    here = {"boot_id": "the-only-boot", "pid_namespace": "ours"}
    living, gone, followed = (start(scanner.store, started="1", **here) for _ in range(3))
    start(scanner.store, started="1", boot_id="another-boot", pid_namespace="ours")
    start(scanner.store, started="1", boot_id="the-only-boot", pid_namespace="another")
    scanner.mine = start(scanner.store, started="1", **here)
    pids = {each.identity.id: each.identity.pid for each in scanner.store.workers()}
    scanner.processes = {pids[living]: "1", pids[followed]: "2"}

    assert scanner.dead() == {gone, followed}


def test_a_process_of_which_nothing_is_known_is_not_proof_of_death(scanner: Scanner) -> None:
    """Its /proc could not be read when it registered: the end of its lease decides."""
    start(scanner.store, started="", boot_id="the-only-boot", pid_namespace="ours")

    assert scanner.dead() == set()


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), PermissionError(), FileNotFoundError()],
    ids=["too many open files", "not allowed", "hidden"],
)
def test_a_process_that_can_not_be_looked_at_has_not_ended(error: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc may be mounted with hidepid, which shows a user no processes of others."""
    living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, TOKEN_ENV: "t"})
    start, read = host.started(living.pid), Path.read_bytes

    def unreadable(path: Path) -> bytes:
        if path.parts[:3] == ("/", "proc", str(living.pid)):
            raise error
        return read(path)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", unreadable)
            assert not host.has_ended(living.pid, start)
            assert host.started(living.pid) == ""
            if not isinstance(error, FileNotFoundError | PermissionError):
                assert host.kill_carriers(["t"]) == {"t"}, "there may be one"
            assert living.poll() is None
        assert not host.has_ended(living.pid, start)
        assert host.has_ended(living.pid, "another start")
    finally:
        living.kill()
        assert host.has_ended(living.pid, start) or living.wait(60) is not None
    assert host.has_ended(living.pid, start)


def test_a_worker_that_dies_later_is_left_to_its_own_supervisor_for_one_scan(scanner: Scanner) -> None:
    assert scanner.dead() == set()
    gone = start(scanner.store, boot_id="the-only-boot", pid_namespace="ours")

    assert scanner.dead() == set()
    assert scanner.dead() == {gone}


def test_what_a_dead_worker_left_is_gone_before_it_is_declared(
    scanner: Scanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = start(scanner.store, id="host-1-left", boot_id="the-only-boot", pid_namespace="ours")
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, TOKEN_ENV: "left"}
    )
    told, declare = list[int | None](), scanner.store.declare_dead

    def look_and_declare(worker_ids: Iterable[str]) -> frozenset[str]:
        told.append(left.poll())
        return declare(worker_ids)

    monkeypatch.setattr(scanner.store, "declare_dead", look_and_declare)
    until(lambda: carries(left.pid, "left"), "the process")
    try:
        assert scanner.dead() == {dead}
        assert told != [None]
    finally:
        left.kill()
        left.wait()


def carries(pid: int, token: str) -> bool:
    return f"{TOKEN_ENV}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


# ── permits ──


class Dealt:
    """Where permits are given back."""

    def __init__(self) -> None:
        self.settled: list[tuple[Permit, float | None]] = []
        self.arriving: list[Permit] = []

    def want(self, slots: Mapping[str, int]) -> None: ...

    def take(self) -> list[Permit]:
        arrived, self.arriving = self.arriving, []
        return arrived

    def settle(self, permits: Iterable[Permit], *, again_in: float | None = None) -> None:
        self.settled += [(permit, again_in) for permit in permits]


def permits_of(store: MemoryStore, worker_id: str, *, may_declare: bool = True) -> tuple[HeldPermits, Dealt]:
    dealt = Dealt()
    permits = HeldPermits(dealt, store, worker_id, LEASE, lambda: may_declare)
    permits._scan_at = float("inf")
    return permits, dealt


@pytest.mark.parametrize("why", ["it may not", "its own worker is dead"])
def test_a_worker_that_may_not_judge_others_takes_no_job_for_a_redelivered_permit(why: str) -> None:
    world, store = made_up()
    lease = running(store)
    world.advance(LEASE + 1)
    me = start(store)
    if why == "its own worker is dead":
        store.declare_dead([me])
    permits, _ = permits_of(store, me, may_declare=why != "it may not")

    permit = Permit("default", lease.job_id, True, "1")
    answer = permits.rescue_redelivered([permit])

    assert (answer.rescued, answer.owned) == ([], [permit])
    assert store.renew([lease.worker_id]) == {lease.worker_id}


def test_a_permit_is_kept_until_the_outcome_of_its_job_is_stored() -> None:
    _, store = made_up()
    me, job_id = start(store), put(store)
    permits, dealt = permits_of(store, me)
    permit = Permit("default", job_id, False, "1")
    permits._unused["default"] = [permit]
    permits.offer({"default": 1})
    (claimed,) = store.claim(me, permits.offered, 1)

    permits.bind([claimed])
    assert dealt.settled == []
    permits.done([Lease(job_id, 1, me)])
    assert dealt.settled == [(permit, None)]


def test_a_permit_that_comes_after_a_poll_claimed_its_job_is_kept_until_the_outcome_is_stored() -> None:
    _, store = made_up()
    me, job_id = start(store), put(store)
    permits, dealt = permits_of(store, me)
    permit, other = Permit("default", job_id, False, "1"), Permit("default", "another job", False, "2")
    permits.bind(store.claim(me, {"default": 1}, 1))

    dealt.arriving = [permit]
    assert not permits.take(), "no other job may be claimed for it"
    permits.offer({"default": 1})
    permits.settle_rest()
    assert dealt.settled == []
    permits.done([Lease(job_id, 1, me)])
    assert dealt.settled == [(permit, None)]

    dealt.arriving = [permit, other]  # its job has ended: the permit may be used for others
    assert permits.take()
    permits.offer({"default": 2})
    assert permits.offered == {"default": 2}


# ── schedules ──


def test_a_newer_release_that_was_faster_stands() -> None:
    _, store = made_up()
    now = store.now()
    newer = some_schedule(name="s", released_at=now, release="2", rule="every 2m")
    older = some_schedule(name="s", released_at=now - timedelta(days=1), release="1")

    assert _declare(Ticks(Standing(newer.but(rev=3)), now), older).change() is None


class Rival(MemoryStore):
    """Another process is first, `rivals` times."""

    rivals = 0

    def change(self, changes: Sequence[Change]) -> list[bool]:
        if self.rivals:
            self.rivals -= 1
            theirs = [replace(each, schedule=each.schedule.but(release="1")) for each in changes]
            super().change([each for each in theirs if each.schedule.rev == 0])
        return super().change(changes)


def test_a_declaration_that_was_not_first_is_read_and_made_again() -> None:
    world = World(Rival)
    store = world.store()
    assert isinstance(store, Rival)
    table = Timetable(store, PollNotifier())
    table.declare("shop", "1", [some_schedule(name="s", rule="every 1m")])
    store.rivals = 1

    table.declare("shop", "2", [some_schedule(name="s", rule="every 1m"), some_schedule(name="t", rule="every 1m")])

    assert {name: table.get(name).schedule.release for name in "st"} == {"s": "2", "t": "2"}


# ── other people's schedulers ──


def test_a_guard_has_lost_its_lock_when_another_process_ended_its_run(tmp_path: Path) -> None:
    store = MemoryStore(system_clock())
    settings = load({"lease": "1s"}, environ={}, folder=tmp_path)

    with pytest.raises(LeaseLost), Guard("report", every="1d", open=lambda: (store, PollNotifier(), settings)) as job:
        (worker,) = [each.identity.id for each in store.workers()]
        store.finish([(Lease(str(job.id), 1, worker), Failed("an operator did", final=True))])
        until(lambda: job.stopping == "lease_lost", "the fence")
        job.flush()


def test_a_guard_that_was_declared_dead_has_lost_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.maintenance.holder.ASK_AFTER", 1e9)  # and not because its lease is nearly over
    store = MemoryStore(system_clock())
    settings = load({"lease": "1s"}, environ={}, folder=tmp_path)

    with pytest.raises(LeaseLost), Guard("report", every="1d", open=lambda: (store, PollNotifier(), settings)) as job:
        store.declare_dead(each.identity.id for each in store.workers())
        until(lambda: job.stopping == "lease_lost", "the fence")
        raise LeaseLost


@pytest.mark.timeout(40)
def test_a_guard_gives_up_when_its_lease_ends_while_the_store_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(system_clock())
    settings = load({"lease": "1s"}, environ={}, folder=tmp_path)

    with Guard("report", every="1d", open=lambda: (store, PollNotifier(), settings)):
        monkeypatch.setattr(store, "finish", away)
        monkeypatch.setattr(store, "renew", away)

    (tick,) = store.ticks("report")
    assert tick.status == "open"
