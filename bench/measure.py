"""Shared by all contestants: rates, laps counted in the worker, latencies, and the CPU time of processes."""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from subprocess import Popen
from threading import Lock

STARTS = 300
PATIENCE_SECONDS = 180.0
TICKS = os.sysconf("SC_CLK_TCK")


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


async def awaited_rate(count: int, work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return count / (time.perf_counter() - began)


class Worker:
    """Used in a worker's process by its handlers: counts laps of `size` calls, and notes how late a job starts.

    A lap is from the first of its calls to the last. It is written to `laps`, one JSON line each; starts to `starts`.
    """

    def __init__(self, folder: str, size: int, servers: Sequence[int] = ()) -> None:
        self._laps = Path(folder, "laps")
        self._starts = Path(folder, "starts")
        self._size = size
        self._servers = servers
        self._calls = 0
        self._began = (0.0, 0.0, 0.0)
        self._lock = Lock()

    def ran(self) -> None:
        with self._lock:
            self._calls += 1
            place = self._calls % self._size
            if place == 1:
                server = sum(map(cpu_seconds, self._servers))
                self._began = (server, time.process_time(), time.perf_counter())
            elif place == 0:
                wall, worker = time.perf_counter(), time.process_time()
                server = sum(map(cpu_seconds, self._servers))
                lap = {
                    "drain": self._size / (wall - self._began[2]),
                    "cpu_us": (worker - self._began[1]) / self._size * 1e6,
                    "server_us": (server - self._began[0]) / self._size * 1e6,
                }
                with self._laps.open("a") as file:
                    file.write(json.dumps(lap) + "\n")

    def started(self, sent: int) -> None:
        late = time.monotonic_ns() - sent
        with self._starts.open("a") as file:
            file.write(f"{late / 1e6}\n")


class Tally(Worker):
    """Used instead of Worker where several processes work: each writes its number of calls, the first and the last.

    The driver can read that at any time from the file of each process: `tallies`.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(folder, 1)
        self._folder = folder
        self._map: mmap.mmap | None = None
        self._first = 0

    def ran(self) -> None:
        with self._lock:
            now = time.monotonic_ns()
            if self._map is None:  # only now: workers may be forked from a process that has this object
                path = Path(self._folder, f"tally-{os.getpid()}")
                path.write_bytes(bytes(_TALLY.size))
                with path.open("r+b") as file:
                    self._map = mmap.mmap(file.fileno(), _TALLY.size)
                self._first = now
            self._calls += 1
            _TALLY.pack_into(self._map, 0, self._calls, self._first, now)


_TALLY = struct.Struct("<QQQ")


def tallies(folder: str) -> list[tuple[int, int, int]]:
    """For each process that has run a job: how many, and when it began the first and the last (monotonic ns)."""
    found = [path.read_bytes() for path in Path(folder).glob("tally-*")]
    read = [_TALLY.unpack(each) for each in found if len(each) == _TALLY.size]
    return [(calls, first, last) for calls, first, last in read if calls]


def laps(folder: str, wanted: int, worker: Popen[bytes]) -> list[dict[str, float]]:
    """Wait until the worker has written this many laps, and read them."""
    return [dict(json.loads(line)) for line in lines(Path(folder, "laps"), wanted, worker, pause=0.02)]


def start(folder: str, wanted: int, worker: Popen[bytes]) -> float:
    """Wait until this many stamped jobs have started. Returns milliseconds from the last one's enqueue to its start."""
    return float(lines(Path(folder, "starts"), wanted, worker, pause=0.001)[-1])


def lines(path: Path, wanted: int, worker: Popen[bytes], pause: float) -> list[str]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if len(found) >= wanted:
            return found
        if worker.poll() is not None:
            raise RuntimeError(f"the worker ended with {worker.returncode} before line {wanted} of {path.name}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(found)} of {wanted} lines in {path.name} after {PATIENCE_SECONDS:g} s")
        time.sleep(pause)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children, ended ones included (on Linux; 0 where /proc is missing).

    A server that forks for each connection spends most of its time in children, which end with their connections.
    """
    try:
        own = _ticks(Path(f"/proc/{pid}/stat"))
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:
        return 0.0
    total = sum(own)
    for child in children:
        try:
            total += sum(_ticks(Path(f"/proc/{child}/stat"))[:2])
        except OSError:
            continue  # ended meanwhile: its parent's counters have its time
    return total / TICKS


def _ticks(stat: Path) -> list[int]:
    """utime, stime, cutime, cstime"""
    return [int(field) for field in stat.read_text(encoding="utf-8").rpartition(")")[2].split()[11:15]]


def worker() -> Worker:
    """The counter of this process, as configured by the process that started it."""
    order = json.loads(os.environ["BENCH_WORKER"])
    if "workers" in order:
        return Tally(order["folder"])
    return Worker(order["folder"], order["lap"], order["servers"])
