"""`tenure bench`: what this machine and this store can do, measured with a real worker in a process of its own."""

from __future__ import annotations

import json as jsonlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tenure.cli.output import say, show_json
from tenure.errors import StoreError
from tenure.lifecycle import State
from tenure.task import Task

PATIENCE_SECONDS = 120.0
STARTS = 400


@dataclass(frozen=True, slots=True)
class Figures:
    """Jobs a second, microseconds of CPU a job in the worker, milliseconds from the call of enqueue to the start."""

    drain: float
    cpu_us: float
    bulk: float
    single: float
    start_p50_ms: float
    start_p99_ms: float


def bench(url: str | None = None, jobs: int = 20_000, slots: int = 500, *, json: bool = False) -> int:
    """Measure enqueueing, draining and the latency of a start, on a fresh database that is thrown away.

    Parameters
    ----------
    url
        A store to measure instead; its queue "default" must be empty.
    jobs
        How many no-op jobs are drained.
    slots
        Slots of the one worker that drains them.
    """
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder:
        figures = measure(url or f"sqlite:///{folder}/bench.db", jobs, slots, folder)
    if json:
        show_json(asdict(figures))
    else:
        cpu = f"{figures.cpu_us:.1f} µs of worker CPU a job, {slots} slots"
        say(f"drain          {figures.drain:>10,.0f} jobs/s ({cpu})")
        say(f"enqueue, bulk  {figures.bulk:>10,.0f} jobs/s")
        say(f"enqueue, single{figures.single:>10,.0f} jobs/s")
        say(f"enqueue→start  {figures.start_p50_ms:>10.2f} ms median, {figures.start_p99_ms:.2f} ms p99")
    return 0


def measure(url: str, count: int, slots: int, folder: str) -> Figures:
    """All figures of one store, in turn: bulk enqueue, drain, single enqueue, start latency."""
    from tenure.cli.bench_tasks import jobs, nothing, stamp

    jobs.configure({"url": url})
    with jobs:
        bulk = _rate(count, lambda: jobs.enqueue_many(nothing.bind(n) for n in range(count)))
        with _worker(url, slots, folder):
            drain, cpu_us = _drain(url, count)
            start = cuts(_start_latency(stamp) for _ in range(STARTS))
        single = _rate(2000, lambda: [nothing.enqueue(n) for n in range(2000)])
    return Figures(drain, cpu_us, bulk, single, *start)


def cuts(latencies: Iterable[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    found = statistics.quantiles(latencies, n=100)
    return found[49], found[98]


def _start_latency(stamp: Task[[int], int]) -> float:
    """Milliseconds until one job starts on an otherwise empty queue. It is left alone to start, then asked."""
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


def _drain(url: str, count: int) -> tuple[float, float]:
    """Jobs a second and CPU a job, from the first completed ones that are seen until all are."""
    from tenure.app import open_store
    from tenure.config import load

    store = open_store(load({"url": url}))
    store.open()
    try:
        first, cpu, pid, deadline = (0, 0.0), 0.0, 0, time.monotonic() + PATIENCE_SECONDS
        while True:
            done, now = store.counts()[State.COMPLETED], time.perf_counter()
            if done and not pid:
                pid = store.workers()[0].identity.pid
                first, cpu = (done, now), _cpu_seconds(pid)
            if done >= count:
                drained = max(done - first[0], 1)
                return drained / (now - first[1]), (_cpu_seconds(pid) - cpu) / drained * 1e6
            if time.monotonic() > deadline:
                raise StoreError(f"only {done} of {count} jobs were done after {PATIENCE_SECONDS:g}s")
            time.sleep(0.01)
    finally:
        store.close()


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process (on Linux; 0 where /proc is missing)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
