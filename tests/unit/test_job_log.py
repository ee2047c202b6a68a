"""What a job's code logs: gathered per attempt, bounded and clean, and stored before the attempt has ended."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import Job, Retry, Tenure
from tenure.config import Settings
from tenure.core.clock import system_clock
from tenure.core.host import memories
from tenure.core.lifecycle import Lease, Outcome
from tenure.errors import BadData, StoreAway
from tenure.events import Running, current
from tenure.ports import Progress
from tenure.stores.memory import MemoryStore
from tenure.tasks.handle import JobHandle
from tenure.worker.attempts import Attempts
from tenure.worker.embedded import _Serving
from tenure.worker.executor import Attempt
from tenure.worker.job_log import MAX_BYTES, MAX_LINES, JobLog, JobLogHandler, Log, LogLine, decode, encode
from waiting import until

log = logging.getLogger("shop.parcels")
AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
ONE, OTHER = (Running(name, "pack", "default", 1, "host-1-aa") for name in ("one", "other"))


class Bench:
    """Attempts that run here, and what each of them has logged."""

    def __init__(self) -> None:
        self.logs = {ONE.job_id: JobLog(), OTHER.job_id: JobLog()}
        self.handler = JobLogHandler(self.find)

    def find(self, running: Running) -> Sink | None:
        kept = self.logs.get(running.job_id)
        return None if kept is None else Sink(kept)

    def log(self, running: Running = ONE) -> Log:
        return decode(self.logs[running.job_id].text())

    def texts(self, running: Running = ONE) -> list[str]:
        return [line.text for line in self.log(running).lines]


class Sink:
    def __init__(self, kept: JobLog) -> None:
        self.logged = kept.add


@contextmanager
def within(running: Running) -> Iterator[None]:
    """Run as the code of this attempt."""
    token = current.set(running)
    yield
    current.reset(token)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.handler.install()
    yield bench
    bench.handler.remove()
    assert bench.handler not in logging.getLogger().handlers


@pytest.fixture(autouse=True)
def all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "level", logging.DEBUG)
    monkeypatch.setattr(log, "_cache", {})


# ── Gathering ──


def test_a_line_has_its_time_its_level_and_its_text(bench: Bench) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    with within(ONE):
        log.info("packed %d of %s", 3, "Ada")
        log.log(25, "between")

    first, second = bench.log().lines
    assert (first.level, first.text, second.level, second.text) == ("info", "packed 3 of Ada", "level 25", "between")
    assert before <= first.at <= second.at <= datetime.now(UTC)


def test_jobs_do_not_mix_and_their_tasks_and_threads_are_theirs(bench: Bench) -> None:
    async def pack(running: Running) -> None:
        current.set(running)

        async def part(number: int) -> None:
            await asyncio.sleep(0)
            log.info("%s part %d", running.job_id, number)
            await asyncio.to_thread(log.info, "%s thread %d", running.job_id, number)

        await asyncio.gather(*(asyncio.create_task(part(number)) for number in range(20)))

    async def both() -> None:
        await asyncio.gather(asyncio.create_task(pack(ONE)), asyncio.create_task(pack(OTHER)))

    asyncio.run(both())

    for running in (ONE, OTHER):
        mine = {f"{running.job_id} {kind} {number}" for kind in ("part", "thread") for number in range(20)}
        assert set(bench.texts(running)) == mine


def test_what_belongs_to_no_job_or_to_the_engine_is_not_gathered(bench: Bench) -> None:
    log.warning("nobody's")
    with within(ONE):
        logging.getLogger("tenure.worker").warning("the engine's")
        logging.getLogger("tenured").warning("somebody else's")
        logging.getLogger("tenure.demo.code_evolution").warning("an example's")
    with within(ONE._replace(job_id="elsewhere")):
        log.warning("of a job that runs elsewhere")

    assert bench.texts() == ["somebody else's", "an example's"]


def test_the_levels_and_the_filters_of_others_stay_as_they_are(bench: Bench) -> None:
    bench.handler.addFilter(lambda record: "secret" not in record.getMessage())
    log.setLevel(logging.WARNING)
    with within(ONE):
        log.info("not passed on")
        log.warning("a secret")
        log.warning("passed on")

    assert bench.texts() == ["passed on"]


def test_without_logging_configuration_warnings_still_go_to_standard_error(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(logging.getLogger(), "handlers", [bench.handler, JobLogHandler(bench.find)])
        log.warning("once, as ever")
        log.info("not a warning")
        with within(ONE):
            log.error("also of a job")
        logging.getLogger().addHandler(logging.NullHandler())
        log.warning("told to somebody else")

    assert capsys.readouterr().err.splitlines() == ["once, as ever", "also of a job"]


# ── Odd messages ──


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("message", "args", "kept"),
    [
        ("%d parcels", ("three",), "%d parcels (its arguments can't be shown: TypeError)"),
        ("one %s", (1, 2), "one %s (its arguments can't be shown: TypeError)"),
        ("see %s", (Broken(),), "see %s (its arguments can't be shown: RuntimeError)"),
        (Broken(), (), "Broken (its arguments can't be shown: RuntimeError)"),
        ("\x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07!", (), "red link!"),
        ("a\0b\ud800c\x1b\x7f", (), "a�b�c��"),
        ("1\r\n2\r3\n\t4", (), "1\n2\n3\n\t4"),
        ("", (), ""),
        ({"not": "text"}, (), "{'not': 'text'}"),
        ('"quoted" \\ ключ 🗝', (), '"quoted" \\ ключ 🗝'),
    ],
)
def test_odd_messages_are_kept_as_they_can_be_shown(
    bench: Bench, message: Any, args: tuple[object, ...], kept: str
) -> None:
    with within(ONE):  # not by the logger: pytest's own handler wants arguments that fit
        bench.handler.handle(logging.LogRecord("shop", logging.INFO, "shop.py", 1, message, args, None))

    assert bench.texts() == [kept]


def test_a_traceback_is_kept_without_the_values_of_its_frames(bench: Bench) -> None:
    def fail(password: str) -> None:
        raise ValueError("no such parcel")

    password = "s3cret"
    with within(ONE):
        try:
            fail(password)
        except ValueError:
            log.exception("it failed")
        log.error("no error is there", exc_info=True)

    first, second = bench.texts()
    assert first.startswith("it failed\nTraceback (most recent call last):")
    assert first.endswith("ValueError: no such parcel")
    assert "in fail" in first
    assert password not in first
    assert second == "no error is there"


def test_a_long_traceback_keeps_its_end(bench: Bench) -> None:
    def deep(level: int) -> None:
        if level:
            deeper(level - 1)
        raise KeyError("at the bottom")

    def deeper(level: int) -> None:
        deep(level)

    with within(ONE):
        try:
            deep(50)
        except KeyError:
            log.exception("m" * 1000)

    (text,) = bench.texts()
    assert text.startswith("mmm")
    assert "m…\n…" in text
    assert text.endswith("KeyError: 'at the bottom'")
    assert 2000 < len(text.encode()) <= 2048


# ── Bounds ──


def test_a_long_line_is_cut(bench: Bench) -> None:
    with within(ONE):
        log.info("é" * 1024)
        log.info("é" * 1025)
        log.info("x" * 10_000_000)
        log.info("\x1b[0m" * 2000 + "behind")

    whole, cut, huge, escaped = bench.texts()
    assert whole == "é" * 1024
    assert cut == "é" * 1022 + "…"
    assert huge == "x" * 2045 + "…"
    assert escaped == "…", "nobody looks for words behind so many escapes"


def test_the_last_lines_are_kept_and_the_others_counted(bench: Bench) -> None:
    with within(ONE):
        for number in range(MAX_LINES + 37):
            log.info("%d", number)

    kept = bench.log()
    assert [line.text for line in kept.lines] == [str(number) for number in range(37, MAX_LINES + 37)]
    assert kept.dropped == 37


@pytest.mark.parametrize("line", ["x" * 3000, '"\\' * 3000, "🗝" * 3000, "\n" * 3000, "x" * 300])
def test_all_that_is_kept_of_an_attempt_has_a_bound(bench: Bench, line: str) -> None:
    with within(ONE):
        for _ in range(150):
            log.info(line)

    assert MAX_BYTES * 0.7 < len(bench.logs[ONE.job_id].text().encode()) <= MAX_BYTES
    assert len(bench.log().lines) + bench.log().dropped == 150


def test_what_is_encoded_is_decoded_alike() -> None:
    lines = (LogLine(AT, "info", "packed ✓\n"), LogLine(AT, "error", ""))

    assert decode(encode(lines, 3)) == Log(lines, 3)
    assert decode(encode(())) == Log()
    assert decode(encode([LogLine(AT, "info", "x")] * 500)).dropped == 300


@pytest.mark.parametrize("text", ["", "[]", '{"dropped":0}', '{"dropped":0,"lines":[[1e400,"a","b"]]}', "\ud800"])
def test_what_is_no_log_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(BadData, match="a job's log: expected lines"):
        decode(text)


def test_a_reader_sees_whole_logs_while_they_are_written() -> None:
    kept, stop = JobLog(), threading.Event()
    first = encode([LogLine(AT, "info", "x")]).encode()
    line = first[first.index(b"[[") + 1 : -2]

    def write() -> None:
        while not stop.is_set():
            kept.add(line)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: decode(kept.text()).dropped, "a log that is full")
        seen = [decode(kept.text()) for _ in range(300)]
    finally:
        stop.set()
        writer.join()
    assert [each.dropped for each in seen] == sorted(each.dropped for each in seen)
    assert all(len(each.lines) == MAX_LINES for each in seen if each.dropped)


# ── In a worker ──


class Shop:
    """An app with an embedded worker, and the store that it writes to."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def opened(settings: Settings) -> MemoryStore:
            return store

        monkeypatch.setattr("tenure.app.backends.open_store", opened)
        self.store = store
        self.jobs = Tenure("memory:", notifier="poll", retry=Retry(3, base="10ms", cap="10ms"))
        self.jobs.configure({"poll_interval": "50ms"})

    def run(self, *handles: JobHandle[Any]) -> None:
        with self.jobs.worker(concurrency=4):
            for handle in handles:
                handle.result("60s")

    def texts(self, handle: JobHandle[Any]) -> dict[int, list[str]]:
        stored = self.store.logs(str(handle.id))
        return {attempt: [line.text for line in decode(text).lines] for attempt, text in stored.items()}


class Picky(MemoryStore):
    """Refuses some log lines, as a store may; and is away this many times."""

    away = 0

    def progress(self, reports: Sequence[Progress]) -> list[bool]:
        if self.away:
            self.away -= 1
            raise StoreAway("away")
        if any(report.log is not None and "unspeakable" in report.log for report in reports):
            raise BadData("unspeakable")
        return super().progress(reports)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(Picky(system_clock()), monkeypatch)


def test_lines_are_stored_before_the_job_has_ended_of_every_attempt(shop: Shop) -> None:
    @shop.jobs.task
    def pack(job: Job, name: str) -> None:
        log.info("%s, attempt %d", name, job.attempt)
        if job.attempt == 1:
            raise ValueError("torn")

    @shop.jobs.task
    async def apack(job: Job, name: str) -> None:
        log.info("%s, attempt %d", name, job.attempt)
        await asyncio.create_task(asyncio.to_thread(log.info, "and more"))

    one, other = pack.enqueue("Ada"), apack.enqueue("Bob")
    shop.run(one, other)

    assert shop.texts(one) == {1: ["Ada, attempt 1"], 2: ["Ada, attempt 2"]}
    assert shop.texts(other) == {1: ["Bob, attempt 1", "and more"]}
    assert not any(isinstance(each, JobLogHandler) for each in logging.getLogger().handlers), "the worker has closed"


def test_what_an_ended_attempt_left_running_says_nothing_in_the_name_of_the_next(shop: Shop) -> None:
    left: list[asyncio.Task[None]] = []

    @shop.jobs.task
    async def pack(job: Job) -> None:
        next_runs = asyncio.Event()

        async def linger() -> None:
            await next_runs.wait()
            log.warning("of the first attempt")

        if job.attempt == 1:
            left.append(asyncio.create_task(linger()))
            nexts.append(next_runs)
            raise ValueError("torn")
        nexts[0].set()
        await left[0]
        log.info("of the second")

    nexts: list[asyncio.Event] = []
    job = pack.enqueue()
    shop.run(job)

    assert shop.texts(job) == {2: ["of the second"]}


def test_a_job_that_logs_nothing_writes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(reports: Sequence[Progress]) -> list[bool]:
        raise AssertionError("there was nothing to say")

    @shop.jobs.task
    async def quiet() -> None: ...

    monkeypatch.setattr(shop.store, "progress", never)
    job = quiet.enqueue()
    shop.run(job)

    assert shop.texts(job) == {}


def test_progress_and_lines_are_one_write_and_a_flush_stores_both(shop: Shop) -> None:
    @shop.jobs.task
    def pack(job: Job[int]) -> str:
        log.info("half way")
        job.progress(0.5, stage="pack", checkpoint=7)
        job.flush()
        view = shop.store.get(str(job.id))
        assert view is not None
        return f"{view.progress} {view.stage} {view.checkpoint} {decode(shop.store.logs(view.id)[1]).lines[0].text}"

    job = pack.enqueue()
    with shop.jobs.worker():
        assert job.result("60s") == "0.5 pack 7 half way"


def test_a_log_that_cant_be_stored_costs_nobody_anything_else(shop: Shop) -> None:
    @shop.jobs.task
    def pack(job: Job[int], word: str) -> str:
        log.info("%s", word)
        job.progress(stage=word, checkpoint=1)
        if word == "unspeakable":
            job.flush()
        return word

    jobs = [pack.enqueue(word) for word in ("fine", "unspeakable", "good")]
    shop.run(*jobs)

    views = [shop.store.get(str(job.id)) for job in jobs]
    assert [(view.state, view.stage, view.checkpoint) for view in views if view] == [
        ("completed", word, "1") for word in ("fine", "unspeakable", "good")
    ]
    assert [shop.texts(job) for job in jobs] == [{1: ["fine"]}, {}, {1: ["good"]}]


def test_lines_wait_for_a_store_that_is_away_and_the_outcome_comes_after_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.access.RETRY_SECONDS", 0.02)

    @shop.jobs.task
    async def pack() -> None:
        log.info("all along")

    assert isinstance(shop.store, Picky)
    shop.store.away = 3
    job = pack.enqueue()
    shop.run(job)

    assert shop.texts(job) == {1: ["all along"]}


def test_lines_with_a_failed_write_are_stored_before_the_outcome_of_their_job(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.access.RETRY_SECONDS", 0.02)
    telling, ended = threading.Event(), threading.Event()
    progress, end = shop.store.progress, Attempts.ended

    def fail_once(reports: Sequence[Progress]) -> list[bool]:
        if telling.is_set():
            return progress(reports)
        telling.set()
        assert ended.wait(60)
        raise StoreAway("away for a moment")

    def tell(host: Attempts, attempt: Attempt, outcome: Outcome | None) -> None:
        end(host, attempt, outcome)
        asyncio.get_running_loop().call_later(0.05, ended.set)  # its outcome is on its way, behind the progress

    @shop.jobs.task
    def pack() -> None:
        log.info("just in time")
        assert telling.wait(60)

    monkeypatch.setattr(shop.store, "progress", fail_once)
    monkeypatch.setattr(Attempts, "ended", tell)
    job = pack.enqueue()
    shop.run(job)

    assert shop.texts(job) == {1: ["just in time"]}


def test_a_refused_outcome_is_recorded_with_its_job(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the refusal tells the worker that its job is another's: neither its look at what it owns nor its beat does.
    monkeypatch.setattr("tenure.worker.beat.RECENT_SECONDS", 1e9)
    monkeypatch.setattr(_Serving, "restart", lambda self, lost: None)  # pyright: ignore[reportUnknownLambdaType]
    begun, go = threading.Event(), threading.Event()

    @shop.jobs.task(max_crashes=5)
    def pack(job: Job) -> None:
        if job.attempt == 1:
            begun.set()
            go.wait(60)

    told = threading.Event()
    refused = shop.store.refused

    def listen(refusals: Sequence[tuple[Lease, str]]) -> None:
        refused(refusals)
        told.set()

    shop.store.refused = listen  # type: ignore[method-assign]
    job = pack.enqueue()
    with shop.jobs.worker(concurrency=1):
        assert begun.wait(60)
        ((owner,),) = [[each.identity.id for each in shop.store.workers()]]
        shop.store.declare_dead([owner])
        shop.store.rescue()
        go.set()
        assert told.wait(60)
        (crashed,) = shop.store.attempts(str(job.id))

    assert crashed.outcome == "crashed"
    assert crashed.evidence["refused"].startswith("completed refused: ")


def test_a_worker_tells_its_memory(shop: Shop) -> None:
    @shop.jobs.task
    def pack() -> None: ...

    seen = threading.Event()
    renew = shop.store.renew

    def renewed(*args: Any, **options: Any) -> frozenset[str]:
        alive = renew(*args, **options)
        seen.set()
        return alive

    shop.store.renew = renewed  # type: ignore[method-assign]
    with shop.jobs.worker():
        assert seen.wait(60)
        (row,) = shop.store.workers()
    assert row.memory is not None
    assert 10 << 20 < row.memory < 64 << 30


def test_a_process_that_is_gone_has_no_memory_and_nobody_minds() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    zombie = memories({"it": process.pid, "we": os.getpid()})
    process.wait()

    assert set(zombie) == {"we"}
    assert memories({"it": process.pid}) == {}
