"""`tenure bench`: the throughput of this machine and store, measured with a real worker in a separate process."""

from __future__ import annotations

import json as jsonlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.cli.output import print_line, show_json
from tenure.cli.shared import signals_end_it
from tenure.core.lifecycle import LIVE, State
from tenure.errors import InvalidOption, StoreError
from tenure.ports import Store
from tenure.tasks.handle import JobHandle
from tenure.tasks.task import Task

PATIENCE_SECONDS = 120.0
STARTS = 400
SINGLES = 2000


@dataclass(frozen=True, slots=True)
class Figures:
    """Jobs per second, microseconds of worker CPU per job, milliseconds from the call of enqueue to the start."""

    drain: float
    cpu_us: float
    bulk: float
    single: float
    start_p50_ms: float
    start_p99_ms: float


def bench(url: str | None = None, jobs: int = 20_000, slots: int = 500, *, json: bool = False) -> int:
    """Measure enqueueing, draining and start latency, on a temporary database.

    Parameters
    ----------
    url
        A store to measure instead; its queue "default" must be empty.
    jobs
        How many no-op jobs are drained.
    slots
        Slots of the one worker that drains them.
    """
    for name, number in (("--jobs", jobs), ("--slots", slots)):
        if number < 1:
            raise InvalidOption(f"{name}: expected a whole number from 1, got {number}")
    with signals_end_it(), tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        figures = measure(url or f"sqlite:///{folder}/bench.db", jobs, slots, folder)
    if json:
        show_json(asdict(figures))
    else:
        cpu = f"{figures.cpu_us:.1f} µs of worker CPU a job, {slots} slots"
        print_line(f"drain          {figures.drain:>10,.0f} jobs/s ({cpu})")
        print_line(f"enqueue, bulk  {figures.bulk:>10,.0f} jobs/s")
        print_line(f"enqueue, single{figures.single:>10,.0f} jobs/s")
        print_line(f"enqueue→start  {figures.start_p50_ms:>10.2f} ms median, {figures.start_p99_ms:.2f} ms p99")
    return 0


def measure(url: str, count: int, slots: int, folder: str) -> Figures:
    """All figures of one store, one after another: bulk enqueue, drain, single enqueue, start latency."""
    from tenure.app.backends import open_store
    from tenure.cli.bench_tasks import jobs, nothing, stamp
    from tenure.config import load

    jobs.configure({"url": url})
    with jobs, closing(open_store(load({"url": url}))) as store:
        store.open()
        handles: list[JobHandle[None]] = []
        bulk = _rate(count, lambda: handles.extend(jobs.enqueue_many(nothing.bind(n) for n in range(count))))
        drain = _Drain(store, handles)
        with _worker(url, slots, folder):
            speed, cpu_us = drain.measure()
            start = cuts(_start_latency(stamp) for _ in range(STARTS))
        singles: list[JobHandle[None]] = []
        single = _rate(SINGLES, lambda: singles.extend(nothing.enqueue(n) for n in range(SINGLES)))
        store.delete(str(job.id) for job in singles)  # no worker is left to run them
    return Figures(speed, cpu_us, bulk, single, *start)


def cuts(latencies: Iterable[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    found = statistics.quantiles(latencies, n=100)
    return found[49], found[98]


def _start_latency(stamp: Task[[int], int]) -> float:
    """Milliseconds until a job starts on an otherwise empty queue. Its result is not polled while it starts."""
    handle = stamp.enqueue(time.monotonic_ns())
    time.sleep(0.005)
    return handle.result("30s") / 1e6


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


@contextmanager
def _worker(url: str, slots: int, folder: str) -> Generator[None]:
    order = {"app": "tenure.cli.bench_tasks", "url": url, "concurrency": slots, "grace": "5s"}
    with Path(folder, "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tenure.cli.supervise", jsonlib.dumps(order)], stderr=log, stdout=log
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


class _Drain:
    """Waits until these jobs are done, and reads from the store how long that took.

    Counting jobs is work for some stores, which would slow down what is measured: it gets a twentieth of the time.
    """

    def __init__(self, store: Store, handles: Sequence[JobHandle[None]]) -> None:
        self._store, self._first, self._count = store, str(handles[0].id), len(handles)
        self._others = {each.identity.id for each in store.workers()}
        self._left = self._waiting() - self._count  #: live jobs that remain when these are done
        self._deadline = time.monotonic() + PATIENCE_SECONDS

    def measure(self) -> tuple[float, float]:
        """Jobs per second from the first start to the last end, and the worker's CPU per job since its row appeared."""
        while not (pid := self._worker()):
            self._rest(0.0, "no worker has started")
        cpu, asked = _cpu_seconds(pid), time.perf_counter()
        while (more := self._waiting() - self._left) > 0:
            self._rest(20 * (time.perf_counter() - asked), f"{more} of {self._count} jobs are not done")
            asked = time.perf_counter()
        cpu = _cpu_seconds(pid) - cpu
        first, (last,) = self._store.get(self._first), self._store.latest_ended(State.COMPLETED, limit=1)
        if first is None or first.started_at is None or last.ended_at is None:
            raise StoreError("a measured job is gone: nothing else may delete or prune jobs meanwhile")
        seconds = (last.ended_at - first.started_at).total_seconds()
        return self._count / seconds, cpu / self._count * 1e6

    def _rest(self, seconds: float, problem: str) -> None:
        if time.monotonic() > self._deadline:
            raise StoreError(f"{problem} after {PATIENCE_SECONDS:g}s")
        time.sleep(min(max(seconds, 0.01), 1.0))

    def _waiting(self) -> int:
        """Counts live jobs, not completed ones: old completed jobs may be pruned meanwhile."""
        counts = self._store.counts()
        return sum(counts[state] for state in LIVE)

    def _worker(self) -> int:
        """The pid of the worker whose row is new; 0: there is none yet."""
        rows = (each.identity for each in self._store.workers())
        return next((each.pid for each in rows if each.id not in self._others), 0)


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process (on Linux; 0 where /proc is missing)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
