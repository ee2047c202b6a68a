"""The watch of a client: what a thousand waiters cost, and what one of them is told."""

from __future__ import annotations

import _thread
import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from conformance.factories import draft
from tenure.errors import StoreAway, StoreError
from tenure.ports import GONE, Update
from tenure.stores.memory import MemoryStore
from tenure.tasks import watch as module
from tenure.tasks.watch import Watch
from waiting import until


class Rig:
    """A watch of a memory store that notes how many jobs each look was for."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.looks: list[int] = []
        self.looking: Callable[[], None] = lambda: None
        self.watch = Watch(self.look)

    def look(self, seen: Mapping[str, str]) -> list[Update]:
        self.looks.append(len(seen))
        self.looking()
        return self.store.updates(seen, limit=module.RETURNED)

    def put(self, jobs: int = 1) -> list[str]:
        return [each.id for each in self.store.enqueue([draft() for _ in range(jobs)])]

    def seen(self, jobs: int, looks: int = 1) -> None:
        """Wait until at least `jobs` jobs were looked at together, `looks` times."""
        until(lambda: sum(each >= jobs for each in self.looks) >= looks, f"{looks} looks at {jobs} jobs together")


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.watch.close()


def _stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its current time: a leap would end whatever else in this process counts by it."""
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    monkeypatch.setattr(module.time, "thread_time", lambda: 0.0)


def test_looks_at_a_job_grow_rarer_up_to_five_a_second(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a stopped clock: the time that a look takes does not count."""
    (job_id,) = rig.put()
    _stop_the_clock(monkeypatch)
    looks = module._Looks(rig.look)
    looks.take(module._Waiter(job_id, "", True, float("inf"), lambda _: None), comes=True)
    pauses = list[float]()

    while len(pauses) < 20:
        pauses.append(looks.pause())
        looks.pass_time(pauses[-1])
        looks.look()

    assert len(rig.looks) == 20
    assert pauses[0] == 0.0
    assert pauses[1] <= module.SHORTEST
    assert sum(pauses[:8]) < 0.4, "a short job is answered soon"
    assert all(module.LONGEST * 0.499 <= pause <= module.LONGEST * 1.001 for pause in pauses[10:])


def test_a_look_for_all_however_many_wait(rig: Rig) -> None:
    ids = rig.put(300)

    async def main() -> tuple[int, list[Update]]:
        waits = [asyncio.ensure_future(rig.watch.await_(each, ended=True)) for each in ids]
        await asyncio.to_thread(rig.seen, 300, 10)
        looks = len(rig.looks)
        rig.store.cancel(ids, "enough")
        return looks, await asyncio.gather(*waits)

    looks, updates = asyncio.run(main())

    assert looks < 300, "each was looked at ten times: 3,000 looks, if each waiter had its own"
    assert [update.id for update in updates] == ids
    assert {update.status.state for update in updates if update.status} == {"cancelled"}


def test_a_thousand_who_wait_for_one_job_are_one_look(rig: Rig) -> None:
    (job_id,) = rig.put()

    async def main() -> int:
        waits = [asyncio.ensure_future(rig.watch.await_(job_id, ended=True)) for _ in range(1000)]
        await asyncio.sleep(0)
        await asyncio.to_thread(rig.seen, 1, 3)
        rig.store.cancel([job_id], "enough")
        return len(await asyncio.gather(*waits))

    assert asyncio.run(main()) == 1000
    assert set(rig.looks) == {1}
    assert len(rig.looks) < 1000, "each would look three times by itself"


def test_threads_and_loops_share_their_looks(rig: Rig) -> None:
    ids = rig.put(20)

    async def on_a_loop() -> list[Update]:
        return await asyncio.gather(*(rig.watch.await_(each, ended=True) for each in ids[10:]))

    with ThreadPoolExecutor(11) as threads:
        waits = [threads.submit(rig.watch.wait, each, ended=True) for each in ids[:10]]
        loop = threads.submit(asyncio.run, on_a_loop())
        rig.seen(20)
        rig.store.cancel(ids, "enough")
        updates = [wait.result(30.0) for wait in waits] + loop.result(30.0)

    assert [update.id for update in updates] == ids


def test_a_caller_that_is_cancelled_is_not_looked_for_any_more(rig: Rig) -> None:
    first, second = rig.put(2)

    async def main() -> None:
        gone = asyncio.ensure_future(rig.watch.await_(first, ended=True))
        stays = asyncio.ensure_future(rig.watch.await_(second, ended=True))
        await asyncio.to_thread(rig.seen, 2)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        rig.looks.clear()
        await asyncio.to_thread(rig.seen, 1, 4)
        rig.store.cancel([second], "enough")
        await stays

    asyncio.run(main())
    assert rig.looks[-1] == 1


def test_waiters_of_a_closed_loop_are_forgotten(rig: Rig) -> None:
    (job_id,) = rig.put()
    loop = asyncio.new_event_loop()
    wait = loop.create_task(rig.watch.await_(job_id, ended=True))
    loop.run_until_complete(asyncio.sleep(0.01))
    rig.seen(1)
    wait._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()

    deadline = time.monotonic() + 30.0
    while rig.watch._running:
        assert time.monotonic() < deadline, "the thread goes on for nobody"
        time.sleep(0.02)


def test_the_thread_ends_when_nobody_waits_and_starts_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    for (job_id,) in (rig.put(), rig.put()):
        assert rig.watch.wait(job_id).id == job_id
        deadline = time.monotonic() + 30.0
        while rig.watch._running:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_caller_that_comes_as_the_thread_ends_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    (first,), (second,) = rig.put(), rig.put()
    hear, run, ended, answers = Watch._hear, Watch._run, threading.Event(), list[Update]()
    caller = threading.Thread(target=lambda: answers.append(rig.watch.wait(second)))

    def hear_late(watch: Watch, calls: Any, looks: Any) -> bool:
        if caller.ident is not None:  # the second thread: the first one ends before it hears anything
            assert ended.wait(30.0)
        goes_on = hear(watch, calls, looks)
        if not goes_on and caller.ident is None:
            caller.start()
            while watch._calls.empty():
                time.sleep(0.001)
        return goes_on

    def run_and_tell(watch: Watch, calls: Any) -> None:
        try:
            run(watch, calls)
        finally:
            ended.set()

    monkeypatch.setattr(Watch, "_hear", hear_late)
    monkeypatch.setattr(Watch, "_run", run_and_tell)
    assert rig.watch.wait(first).id == first
    assert ended.wait(30.0)
    caller.join(30.0)

    assert [each.id for each in answers] == [second]


def test_a_signal_that_does_not_interrupt_the_wait_is_noticed_soon(rig: Rig) -> None:
    """One that comes just before the main thread waits, as by `interrupt_main`, used to be noticed only at the end."""
    (job_id,) = rig.put()
    ended = threading.Event()
    looks = count(1)

    def interrupt() -> None:
        if next(looks) == 8:  # the watch looks only while the main thread is inside `wait`, so nothing else is struck
            _thread.interrupt_main()

    def end() -> None:
        ended.set()
        rig.store.cancel([job_id], "enough")

    rig.looking = interrupt
    timer = threading.Timer(60.0, end)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            rig.watch.wait(job_id, ended=True)
        assert not ended.is_set()
    finally:
        timer.cancel()
        timer.join()


def test_the_time_a_caller_gave_is_over_although_nothing_has_changed(rig: Rig) -> None:
    (job_id,) = rig.put()

    began = time.monotonic()
    update = rig.watch.wait(job_id, ended=True, timeout=0.3)

    assert time.monotonic() - began >= 0.3
    assert update.status is not None
    assert update.status.state == "queued"


def test_a_clock_that_a_test_has_stopped_stops_no_look(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    _stop_the_clock(monkeypatch)
    (job_id,) = rig.put()

    with ThreadPoolExecutor(1) as threads:
        wait = threads.submit(rig.watch.wait, job_id, ended=True)
        rig.seen(1, 12)
        rig.store.cancel([job_id], "enough")
        assert wait.result(30.0).id == job_id
        assert rig.watch.wait(*rig.put(), ended=True, timeout=0.5).status is not None


def test_a_job_that_is_not_there_is_told_at_once(rig: Rig) -> None:
    assert rig.watch.wait(draft().id, ended=True).mark == GONE


def test_each_waiter_gets_an_error_of_its_own(rig: Rig) -> None:
    def broken() -> None:
        raise StoreError("no such table")

    rig.looking = broken
    ids = rig.put(3)

    async def main() -> list[Any]:
        return await asyncio.gather(*(rig.watch.await_(each, ended=True) for each in ids), return_exceptions=True)

    errors = asyncio.run(main())

    assert [(type(error), str(error)) for error in errors] == [(StoreError, "no such table")] * 3
    assert len({id(error) for error in errors}) == 3


def test_an_outage_is_waited_out_by_all_and_told_to_those_whose_time_is_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 60.0)
    outage = threading.Event()
    outage.set()

    def away() -> None:
        if outage.is_set():
            raise StoreAway("out of reach")

    rig.looking = away
    patient, hasty = rig.put(2)

    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(rig.watch.wait, patient, timeout=60.0)
        with pytest.raises(StoreAway, match="out of reach"):
            rig.watch.wait(hasty, timeout=0.05)
        outage.clear()
        assert waits.result(30.0).id == patient

    outage.set()
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.1)
    with pytest.raises(StoreAway, match="out of reach"):
        rig.watch.wait(patient)


class Hang:
    """Looks that hang from a moment on, until released. The time of a waiter counts from that moment."""

    def __init__(self, rig: Rig, patch: pytest.MonkeyPatch, after: int = 0) -> None:
        self._looks, self._after = count(), after
        self._released = threading.Event()
        self.held = threading.Event()
        rig.looking = self._look
        pauses = getattr(module, "_pauses", None)

        def once_held(*given: Any) -> Any:
            assert self.held.wait(30.0)
            return pauses(*given)  # type: ignore[misc]

        patch.setattr(module, "_pauses", once_held, raising=False)
        patch.setattr(module, "_until", lambda _: float("inf"))
        patch.setattr(module, "GRACE_SECONDS", 0.1, raising=False)

    def _look(self) -> None:
        if next(self._looks) >= self._after:
            self.held.set()
            assert self._released.wait(30.0), "nobody gave up"

    def release(self) -> None:
        assert not self._released.is_set()
        self._released.set()


def _on_a_thread(watch: Watch, job_id: str) -> Update:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(watch.wait, job_id, ended=True, timeout=0.05).result()


WAYS: list[Callable[[Watch, str], Update]] = [
    lambda watch, job_id: watch.wait(job_id, ended=True, timeout=0.05),
    _on_a_thread,
    lambda watch, job_id: asyncio.run(watch.await_(job_id, ended=True, timeout=0.05)),
]


@pytest.mark.parametrize("wait", WAYS, ids=["main", "thread", "loop"])
@pytest.mark.parametrize("looks", [0, 1])
def test_a_look_that_hangs_outlasts_no_callers_time(
    wait: Callable[[Watch, str], Update], looks: int, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told how the job was before, is not looked for any more, and a caller without a time waits on."""
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    (job_id,), (patient,) = rig.put(), rig.put()
    hang = Hang(rig, monkeypatch, after=looks)

    with pytest.raises(StoreAway) as caught:
        wait(rig.watch, job_id)
    assert isinstance(caught.value, module.Unanswered)
    assert (caught.value.last is not None) == (looks > 0)

    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(rig.watch.wait, patient)
        hang.release()
        assert waits.result(30.0).id == patient
    until(lambda: not rig.watch._running, "the thread to look for nobody")


def test_a_waiter_waits_for_all_its_time_and_then_in_pieces() -> None:
    """A process that was stopped for a while, as by SIGSTOP, has lost one piece when it goes on."""
    short, long = list(module._pauses(1.25, 0.5)), list(module._pauses(0.0, 0.5))

    assert short[:3] == [0.5, 0.5, 0.25]
    assert short[3:] == long
    assert sum(long) == module.GRACE_SECONDS
    assert len(long) > 1


def test_closing_tells_everybody(rig: Rig) -> None:
    (job_id,) = rig.put()

    with ThreadPoolExecutor(1) as threads:
        wait = threads.submit(rig.watch.wait, job_id, ended=True)
        rig.seen(1)
        rig.watch.close()
        with pytest.raises(StoreError, match="the client was closed"):
            wait.result(30.0)
    with pytest.raises(StoreError, match="the client was closed"):
        rig.watch.wait(job_id)


def test_where_no_thread_can_be_started_a_caller_looks_itself(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(module._thread, "start_new_thread", refuse)
    (job_id,) = rig.put()
    looks = count()

    def end() -> None:
        if next(looks) == 3:
            rig.store.cancel([job_id], "enough")

    rig.looking = end
    update = rig.watch.wait(job_id, ended=True)

    assert update.status is not None
    assert update.status.state == "cancelled"


PROGRAM = """
import os, sys, threading, time
from tenure import Tenure

jobs = Tenure(sys.argv[1])

@jobs.task
def add(a: int, b: int) -> int:
    return a + b

from tenure.app.backends import open_store
open_store(jobs.settings).migrate()
never = add.using(queue="nobody").enqueue(1, 2)
for _ in range(20):
    threading.Thread(target=lambda: never.result(), daemon=True).start()
while [each.f_code.co_name for each in sys._current_frames().values()].count("_received") < 20:
    time.sleep(0.01)
for _ in range(5):
    if not (child := os.fork()):
        with jobs.worker():
            assert add.enqueue(3, 4).result("60s") == 7
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child of a process that waits"
print("done")
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork")
def test_a_child_of_a_process_that_waits_can_wait_and_an_exit_waits_for_nobody(tmp_path: Any) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "program.py", f"sqlite:///{tmp_path}/tenure.db"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip

    assert (found.stdout, found.returncode) == ("done\n", 0), found.stderr
