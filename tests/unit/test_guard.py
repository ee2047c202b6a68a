"""A guarded function: once a tick, never twice at a time, and everything it did is written down."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import Any, cast

import pytest

from tenure import Job
from tenure.cli.main import main
from tenure.config import Settings, load
from tenure.core.clock import Clock, system_clock
from tenure.core.lifecycle import Completed, Lease, Outcome, State
from tenure.errors import GuardSkipped, InvalidOption, JobStopped, LeaseLost, StoreAway, TenureError, WouldBlock
from tenure.guards import command
from tenure.guards import run as guarded
from tenure.guards.guard import Guard
from tenure.guards.run import GuardedRun, declared
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Answer, Busy, Draft, Filter, Notifier, Store, WorkerIdentity
from tenure.ports.schedules import Change, Schedule, Standing, Tick
from tenure.schedules.timetable import Timetable
from tenure.stores.memory import MemoryStore
from waiting import until

OFTEN = "100ms"
PATIENT = 30.0
HASTE = 200  #: how much faster the wall clock runs, lest a second call be refused for coming within half a period
BEAT, LEASE = 0.4, 1.0  #: how often it renews and hears of cancels; at two thirds of a lease it would be asked to stop


class Unreliable(MemoryStore):
    """Loses what it is told to lose: a reply after the work is done, or the whole call.

    The time of leases passes only when a test says so: none ends because this process had to wait for a processor.
    """

    def __init__(self) -> None:
        began = time()
        self._passed = 1_000.0
        self.clock = Clock(lambda: began + (time() - began) * HASTE, lambda: self._passed, system_clock().boot_id)
        super().__init__(self.clock)
        self.lost_replies: set[str] = set()
        self.away: set[str] = set()

    def passes(self, seconds: float) -> None:
        """Let the time of leases and of timeouts pass."""
        self._passed += seconds

    def _lose(self, verb: str) -> None:
        if verb in self.lost_replies:
            self.lost_replies.remove(verb)
            raise StoreAway(f"the reply to {verb} was lost")

    def _reach(self, verb: str) -> None:
        if verb in self.away:
            raise StoreAway(f"{verb}: nobody there")

    def register(self, worker: WorkerIdentity) -> None:
        super().register(worker)
        self._lose("register")

    def change(self, changes: Sequence[Change]) -> list[bool]:
        self._reach("change")
        done = super().change(changes)
        self._lose("change")
        return done

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        self._reach("finish")
        answers = super().finish(ends, tx=tx)
        self._lose("finish")
        return answers

    def renew(
        self,
        worker_ids: Sequence[str],
        *,
        notes: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        self._reach("renew")
        return super().renew(worker_ids, notes=notes, memory=memory)

    def declare_dead(self, worker_ids: Iterable[str]) -> frozenset[str]:
        self._reach("finish")
        return super().declare_dead(worker_ids)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Unreliable:
    store = Unreliable()
    monkeypatch.setattr(guarded, "system_clock", lambda: store.clock)
    return store


@pytest.fixture
def opened(store: Unreliable, tmp_path: Path) -> Callable[[], tuple[Store, Notifier, Settings]]:
    settings = load({"lease": f"{LEASE:g}s"}, environ={}, folder=tmp_path)
    return lambda: (store, PollNotifier(), settings)


Opened = Callable[[], tuple[Store, Notifier, Settings]]


def ticks(store: Store, name: str = "report") -> list[Tick]:
    """The ticks that ran or were to run, oldest first."""
    return [tick for tick in reversed(store.ticks(name, limit=10_000)) if tick.status not in ("missed", "skipped")]


def job_of(store: Store, tick: Tick) -> State:
    job = store.get(tick.job_id or "")
    assert job is not None
    return job.state


@contextmanager
def elsewhere(guard: Guard) -> Generator[None]:
    """Meanwhile another run of the guard goes on in another thread."""
    begun, go = threading.Event(), threading.Event()

    def hold() -> None:
        with guard:
            begun.set()
            assert go.wait(PATIENT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(PATIENT)
    yield
    go.set()
    thread.join()


# ── Functions ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_guarded_function_runs_returns_its_value_and_is_written_down(store: Store, opened: Opened) -> None:
    @Guard("report", every="1d", open=opened)
    def report(what: str, *, copies: int = 1) -> str:
        """Print it."""
        return what * copies

    assert report("ab", copies=2) == "abab"

    (tick,) = ticks(store)
    assert (tick.status, tick.why, job_of(store, tick)) == ("success", "", State.COMPLETED)
    assert tick.host
    assert tick.started_at and tick.ended_at
    assert (report.__name__, report.__doc__) == ("report", "Print it.")
    assert store.workers() == []


def test_a_second_call_within_half_a_period_is_skipped_and_logged(
    store: Store, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.guard")
    report = Guard("report", every="1d", open=opened)(lambda: "done")

    answers = [report(), report()]

    assert answers == ["done", None]
    assert "skipped: the tick of" in caplog.text
    assert len(ticks(store)) == 1
    assert store.workers() == []


def test_while_one_run_goes_on_another_is_skipped_and_says_until_when(opened: Opened) -> None:
    guard = Guard("report", every=OFTEN, open=opened)

    with (
        elsewhere(guard),
        pytest.raises(GuardSkipped, match=r"^skipped: still locked until \S+ \(.+, running for .+\)$"),
    ):
        guard.__enter__()

    with guard:
        pass


def test_what_a_function_raises_is_written_down_and_raised(store: Store, opened: Opened) -> None:
    @Guard("report", every=OFTEN, open=opened)
    def report() -> None:
        raise ZeroDivisionError("no rows")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="no rows"):
            report()

    first, second = ticks(store)
    assert (first.status, second.status, job_of(store, first)) == ("failure", "failure", State.DEAD)
    assert "ZeroDivisionError: no rows" in first.why
    assert "in report" in first.why
    assert store.schedules(["report"])[0].schedule.failure_count == 2


def test_a_script_that_exits_with_zero_has_succeeded_and_with_one_failed(store: Store, opened: Opened) -> None:
    @Guard("report", every=OFTEN, open=opened)
    def script(code: int) -> None:
        raise SystemExit(code)

    for code in (0, 1):
        with pytest.raises(SystemExit):
            script(code)

    assert [tick.status for tick in ticks(store)] == ["success", "failure"]


def test_an_async_function_is_guarded_on_its_loop(store: Store, opened: Opened) -> None:
    @Guard("report", every="1d", open=opened)
    async def report(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def main() -> list[int | None]:
        return [await report(1), await report(2)]

    assert asyncio.run(main()) == [1, None]
    assert [tick.status for tick in ticks(store)] == ["success"]


def test_a_plain_function_on_an_event_loop_is_refused_with_what_to_write(opened: Opened) -> None:
    report = Guard("report", every="1d", open=opened)(lambda: None)

    async def main() -> None:
        report()

    with pytest.raises(WouldBlock, match=r"asyncio\.to_thread"):
        asyncio.run(main())


def test_one_guard_serves_many_threads_and_one_of_them_runs(
    store: Store, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    read, together, been = store.schedules, threading.Barrier(10), threading.local()

    def schedules(names: Iterable[str] | None = None) -> list[Standing]:
        found = read(names)
        if not hasattr(been, "there"):
            been.there = True
            together.wait(PATIENT)  # all have read that it is free before the first one writes
        return found

    monkeypatch.setattr(store, "schedules", schedules)
    report = Guard("report", every="1d", open=opened)(ran.append)
    threads = [threading.Thread(target=report, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(ran) == 1
    assert len(ticks(store)) == 1


def test_ten_tasks_of_one_loop_share_a_guard(opened: Opened) -> None:
    ran: list[int] = []

    async def main() -> None:
        guard = Guard("report", every="1d", open=opened)

        async def once(n: int) -> None:
            try:
                async with guard:
                    ran.append(n)
                    await asyncio.sleep(0.01)
            except GuardSkipped:
                return

        await asyncio.gather(*map(once, range(10)))

    asyncio.run(main())
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "every"),
        ({"every": "1d", "cron": "0 6 * * *"}, "either"),
        ({"every": "5"}, "no unit"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "0 6 * * *", "tz": "Europe/Pariss"}, "Paris"),
        ({"every": "1d", "timeout": "0s"}, "timeout"),
        ({"every": "1d", "name": "daily report"}, "letters"),
    ],
)
def test_what_cannot_be_is_refused_at_once_and_opens_no_store(options: dict[str, str], says: str) -> None:
    def never() -> tuple[Store, Notifier, Settings]:
        raise AssertionError("it was opened")

    with pytest.raises(InvalidOption, match=says):
        Guard(**{"name": "report", **options}, open=never)


def test_a_generator_function_cannot_be_guarded(opened: Opened) -> None:
    def rows() -> Iterator[int]:
        yield 1

    with pytest.raises(InvalidOption, match="expected a function"):
        Guard("report", every="1d", open=opened)(rows)


def test_the_name_of_a_schedule_of_tasks_is_refused(store: Store, opened: Opened) -> None:
    job = Draft(id="", task="report", payload="{}")
    Timetable(store, PollNotifier()).put(Schedule(name="report", rule="every 1d", job=job))

    with pytest.raises(InvalidOption, match="report is a schedule of an operator"):
        Guard("report", every="1d", open=opened)(lambda: None)()


def test_a_guard_that_a_newer_release_wrote_is_left_as_it_is(store: Store, opened: Opened) -> None:
    run = GuardedRun(declared("report", every="1d"), opened)
    run.begin()
    (stands,) = store.schedules(["report"])
    newer = stands.schedule.but(overlap=cast(Any, "a word of tomorrow"))
    assert store.change([Change(schedule=newer)]) == [True]
    stored = store.schedules(["report"])

    assert run.end(Completed(), "its output")

    assert [each.schedule for each in store.schedules(["report"])] == [each.schedule for each in stored]
    with pytest.raises(InvalidOption, match="report was written by a newer Tenure, which this version can't read"):
        Guard("report", every="1d", open=opened)(lambda: None)()
    with pytest.raises(InvalidOption, match="report was written by a newer Tenure, which this version can't read"):
        Timetable(store, PollNotifier()).expect(declared("report", every="1d"))


def test_a_paused_guard_is_skipped_until_it_is_resumed(store: Store, opened: Opened) -> None:
    guard, timetable = Guard("report", every=OFTEN, open=opened), Timetable(store, PollNotifier())
    with guard:
        pass
    timetable.pause("report", "until Monday")

    with pytest.raises(GuardSkipped, match="paused: until Monday"):
        guard.__enter__()

    timetable.resume("report")
    with guard:
        pass


# ── Its job ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_job_of_a_block_shows_progress_and_remembers_once(store: Store, opened: Opened) -> None:
    with Guard("report", every="1d", open=opened) as job:
        job.progress(0.5, stage="rows", message="half", checkpoint={"row": 7})
        job.flush()
        seen = store.get(str(job.id))
        mails = [job.once("mail", lambda: 1), job.once("mail", lambda: 2)]
        meta, stopping = dict(job.meta), job.stopping

    assert seen is not None
    assert (seen.progress, seen.stage, seen.message, seen.checkpoint) == (0.5, "rows", "half", '{"row":7}')
    assert seen.state is State.PROCESSING
    assert mails == [1, 1]
    assert (meta["schedule"], stopping) == ("report", None)


def test_progress_is_stored_within_a_second_without_a_flush(store: Store, opened: Opened) -> None:
    with Guard("report", every="1d", open=opened) as job:
        job.progress(0.25)
        until(lambda: (view := store.get(str(job.id))) and view.progress == 0.25, "progress to be stored")


def test_a_cancel_stops_a_block_at_its_next_word_and_an_async_one_where_it_waits(
    store: Unreliable, opened: Opened
) -> None:
    guard = Guard("report", every=OFTEN, open=opened)
    with pytest.raises(JobStopped, match="cancel"), guard as job:
        store.cancel([str(job.id)], "not today")
        store.passes(BEAT)
        until(lambda: job.stopping == "cancel", "the cancel to be heard")
        job.progress(0.5)

    async def main() -> None:
        async with guard as job:
            store.cancel([str(job.id)], "nor tomorrow")
            store.passes(BEAT)
            await asyncio.sleep(PATIENT)

    with pytest.raises(JobStopped, match="cancel"):
        asyncio.run(main())

    assert [(tick.status, tick.why) for tick in ticks(store)] == [
        ("cancelled", "not today"),
        ("cancelled", "nor tomorrow"),
    ]


def test_a_timeout_is_a_failure_whatever_the_function_returns(store: Unreliable, opened: Opened) -> None:
    guard = Guard("report", every=OFTEN, timeout="50ms", open=opened)
    with pytest.raises(JobStopped, match="timeout"), guard as job:
        store.passes(0.05)
        until(lambda: job.stopping, "the timeout")
        job.progress()
    with guard as job:
        store.passes(0.05)
        until(lambda: job.stopping, "the timeout")

    @guard
    async def slow() -> None:
        store.passes(0.05)
        await asyncio.sleep(PATIENT)

    with pytest.raises(JobStopped, match="timeout"):
        asyncio.run(slow())

    assert [(tick.status, tick.why) for tick in ticks(store)] == [("failure", "timed out after 50ms")] * 3


def test_a_caller_that_is_cancelled_hears_of_that_and_it_is_written_down(store: Store, opened: Opened) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        @Guard("report", every="1d", open=opened)
        async def slow() -> None:
            begun.set()
            await asyncio.sleep(PATIENT)

        task = asyncio.create_task(slow())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (tick,) = ticks(store)
    assert tick.status == "failure"
    assert "CancelledError" in tick.why


def test_a_cancel_that_comes_while_an_async_block_is_left_is_its_callers(store: Unreliable, opened: Opened) -> None:
    async def main() -> None:
        async def tidy() -> None:
            async with Guard("report", every="1d", open=opened) as job:
                store.cancel([str(job.id)], "not today")
                store.passes(BEAT)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(PATIENT)
                asyncio.get_running_loop().call_soon(task.cancel)

        task = asyncio.create_task(tidy())
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [tick.status for tick in ticks(store)] == ["success"]


def test_a_block_ends_only_by_being_left(opened: Opened) -> None:
    with Guard("report", every="1d", open=opened) as job, pytest.raises(TenureError, match="when it exits"):
        job.finish(tx=object())


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        (lambda job: job.gather("k", list), "it can't wait for jobs or signals; enqueue a job"),
        (lambda job: job.join(object()), "it can't wait for jobs or signals"),
        (lambda job: job.expect("go", int), "it can't wait for jobs or signals"),
        (lambda job: job.flow("k"), "has no flow of its own; use jobs.flow"),
    ],
    ids=["gather", "join", "expect", "flow"],
)
def test_a_block_that_would_wait_is_told_what_to_do(opened: Opened, verb: Callable[[Job], object], told: str) -> None:
    with Guard("report", every="1d", open=opened) as job, pytest.raises(TenureError, match=told):
        verb(job)


# ── Faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["register", "change", "finish"])
def test_a_reply_that_is_lost_costs_no_run_and_makes_no_second_one(
    store: Unreliable, opened: Opened, verb: str
) -> None:
    ran: list[int] = []
    store.lost_replies = {verb}

    Guard("report", every="1d", open=opened)(lambda: ran.append(1))()

    assert ran == [1]
    assert [tick.status for tick in ticks(store)] == ["success"]


def test_a_store_that_stays_away_is_waited_for_and_then_said(
    store: Unreliable, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "PATIENCE", 0.05)
    monkeypatch.setattr(guarded, "sleep", store.passes)
    store.away = {"change"}

    with pytest.raises(StoreAway, match="report: the store was out of reach for 50ms: change: nobody there"):
        Guard("report", every="1d", open=opened)(lambda: None)()


def test_an_outcome_waits_for_the_store_until_the_lease_ends(
    store: Unreliable, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        store.passes(seconds)
        if len(waits) == 3:
            store.away.clear()

    monkeypatch.setattr(guarded, "sleep", wait)
    with Guard("report", every="1d", open=opened):
        store.away = {"finish"}

    assert len(waits) == 3
    assert [tick.status for tick in ticks(store)] == ["success"]


def test_an_outcome_that_was_never_stored_says_why(
    store: Unreliable, opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(guarded, "sleep", store.passes)
    with Guard("report", every="1d", open=opened):
        store.away = {"finish"}

    assert "its lock was lost (finish: nobody there), so this outcome is not recorded" in caplog.text


def test_a_guard_that_cannot_renew_is_asked_to_stop_and_its_lock_is_taken_over(
    store: Unreliable, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "sleep", store.passes)  # it tries to record its end until its lease has ended
    guard = Guard("report", every=OFTEN, open=opened)
    with pytest.raises(LeaseLost), guard as job:
        store.away = {"renew", "finish"}
        store.passes(LEASE * 0.7)
        until(lambda: job.stopping == "lease_lost", "the fence")
        job.progress(0.5)
    store.away.clear()
    store.passes(0.1)

    until(lambda: Guard("report", every=OFTEN, open=opened)(lambda: "ran")(), "the lock to end")

    assert [tick.status for tick in ticks(store)] == ["failure", "success"]
    assert "its host or its supervisor is lost" in ticks(store)[0].why


@pytest.mark.parametrize("logs", [True, False], ids=["told", "with a log that raises"])
def test_a_heart_that_fails_asks_its_block_to_stop_before_the_lease_ends_and_tells_why(
    logs: bool, store: Unreliable, opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Event()

    def unloggable(record: logging.LogRecord) -> bool:
        raise KeyError("its heartbeat" in record.getMessage())

    if not logs:  # a filter of the program's own
        monkeypatch.setattr(logging.getLogger("tenure.guard"), "filters", [unloggable])

    def broken(*_: object, **__: object) -> None:
        tried.set()
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        async with Guard("report", every="1d", open=opened):
            monkeypatch.setattr(store, "renew", broken)
            store.passes(BEAT)
            assert await asyncio.to_thread(tried.wait, PATIENT)
            store.passes(BEAT)
            await asyncio.sleep(PATIENT)

    with pytest.raises(LeaseLost):
        asyncio.run(main())

    assert [(tick.status, tick.why) for tick in ticks(store)] == [
        ("failure", "stopped: its lease could not be renewed")
    ]
    assert caplog.text.count("report: its heartbeat has failed") == logs
    assert ("RuntimeError: can't start new thread" in caplog.text) is logs


@pytest.mark.parametrize(
    ("timeout", "passes", "raises"),
    [(None, BEAT, LeaseLost), ("500ms", BEAT / 2, JobStopped)],
    ids=["lease", "timeout"],
)
def test_an_async_block_is_asked_to_stop_in_time_while_a_renewal_hangs(
    timeout: str | None,
    passes: float,
    raises: type[Exception],
    store: Unreliable,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried, go, hung = threading.Event(), threading.Event(), list[bool]()

    def hangs(*_: object, **__: object) -> frozenset[str]:
        tried.set()
        assert go.wait(PATIENT)
        raise StoreAway("nobody there")

    async def main() -> None:
        async with Guard("report", every="1d", open=opened, timeout=timeout):
            monkeypatch.setattr(store, "renew", hangs)
            store.passes(BEAT)
            assert await asyncio.to_thread(tried.wait, PATIENT)
            store.passes(passes)
            try:
                await asyncio.sleep(PATIENT)
            finally:
                hung.append(not go.is_set())
                go.set()

    waits = threading.Timer(PATIENT / 2, go.set)
    waits.start()
    with pytest.raises(raises):
        asyncio.run(main())
    waits.cancel()

    assert hung == [True], "the renewal still hung"


def test_progress_that_fails_does_not_end_the_heartbeat(
    store: Unreliable, opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Event()

    def broken(*_: object) -> None:
        tried.set()
        raise TypeError("a mistake in the store")

    with pytest.raises(JobStopped, match="cancel"), Guard("report", every="1d", open=opened) as job:
        with monkeypatch.context() as patch:
            patch.setattr(store, "progress", broken)
            job.progress(0.5)
            assert tried.wait(PATIENT)
        store.cancel([str(job.id)], "not today")
        store.passes(BEAT)
        until(lambda: job.stopping == "cancel", "the cancel to be heard")
        job.progress(0.6)

    assert "TypeError: a mistake in the store" in caplog.text


def test_a_guard_that_was_declared_dead_has_lost_its_lock_and_records_nothing(
    store: Unreliable, opened: Opened
) -> None:
    with pytest.raises(LeaseLost), Guard("report", every="1d", open=opened) as job:
        store.declare_dead([view.identity.id for view in store.workers()])
        store.rescue()
        store.passes(BEAT)
        until(lambda: job.stopping == "lease_lost", "the fence")
        job.flush()

    (tick,) = ticks(store)
    assert job_of(store, tick) is State.DEAD
    assert store.search(Filter(states=frozenset({State.QUEUED}))).jobs == ()


# ── The command line ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["report", "--every", "1d", "--", "true"], "expected an absolute path"),
        (["report", "--", "true"], "expected either --every"),
        (["report", "--every", "1d", "--cron", "0 6 * * *", "--", "true"], "expected either --every"),
        (["report", "--cron", "99 * * * *", "--", "true"], "minute"),
        (["report", "--every", "1d", "--skip-exit", "300", "--", "true"], "--skip-exit: expected 0 to 255"),
        (["report", "--every", "1d", "--timeout", "0s", "--", "true"], "--timeout: expected more than 0s"),
        (["report", "--every", "1d", "--timeout", "10", "--", "true"], "no unit"),
        (["report", "--every", "1d"], "expected a command"),
        (["daily report", "--every", "1d", "--", "true"], "letters"),
    ],
)
def test_bad_input_ends_with_2_and_a_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_URL", "sqlite:///tenure.db")

    assert main(["guard", *words]) == 2

    out, err = capsys.readouterr()
    assert (out, says in err) == ("", True)


def test_output_is_held_back_in_memory_where_no_temporary_folder_can_be_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)

    held = command._buffer()
    with os.fdopen(held, "w+b") as file:
        file.write(b"done")
        file.seek(0)
        assert file.read() == b"done"
