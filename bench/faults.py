"""The throughput that remains while workers are killed, and after a restart of PostgreSQL.

Every job appends a line to a ledger when it begins and when its effect is done: all figures come from that ledger.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, current_thread
from typing import NamedTuple

from tests.servers import Postgres

from bench.faults_job import JOB_SECONDS
from bench.faults_peers import PEERS, Order
from bench.report import here, in_rounds, judged

TITLE = "PostgreSQL through faults"
WORKERS = 4
SLOTS = 5
RATE = 75.0  #: jobs a second fed: three workers of the slowest peer can process them
RESTART_SECONDS = 0.1  #: systemd's default RestartSec
FRESH_SECONDS = 5.0  #: a job older than one that began this long ago has been passed over
SIGHT_SECONDS = 1.0  #: momentary throughput is measured over this time
STEP_SECONDS = 0.05
PATIENCE = 90.0  #: until all workers have begun
KEPT = 0.95


@dataclass(frozen=True, slots=True)
class Spans:
    """Seconds, except for `kills`."""

    settle: float = 4.0
    quiet: float = 15.0
    kills: int = 6
    between: float = 10.0
    after: float = 30.0  #: a restart
    left: float = 45.0  #: a job that has not begun again this long after the last fault counts as left


QUICK = Spans(quiet=3.0, kills=2, between=4.0, after=6.0, left=6.0)


class Line(NamedTuple):
    at: float
    pid: int
    job: int
    done: bool


@dataclass
class Ledger:
    """What the jobs wrote, by job and by time; `begun` and `done` hold each job's first."""

    lines: Sequence[Line]
    begun: dict[int, float] = field(default_factory=dict[int, float])
    done: dict[int, float] = field(default_factory=dict[int, float])

    def __post_init__(self) -> None:
        for line in self.lines:
            (self.done if line.done else self.begun).setdefault(line.job, line.at)
        self._begun, self._done = sorted(self.begun.values()), sorted(self.done.values())

    @classmethod
    def read(cls, path: Path) -> Ledger:
        return cls([_line(each) for each in path.read_text(encoding="utf-8").splitlines()] if path.exists() else [])

    def rate(self, since: float, until: float) -> float:
        """Jobs a second whose effect was done for the first time."""
        return (bisect_left(self._done, until) - bisect_left(self._done, since)) / (until - since)

    def first_begun(self, since: float) -> float:
        """Seconds from `since` until a job begins for the first time; infinite: none does."""
        place = bisect_left(self._begun, since)
        return self._begun[place] - since if place < len(self._begun) else math.inf

    def regained(self, rate: float, since: float, until: float) -> float:
        """Seconds from `since` to the first moment with that throughput; infinite: never."""
        steps = range(int((until - SIGHT_SECONDS - since) / STEP_SECONDS) + 1)
        moments = (since + step * STEP_SECONDS for step in steps)
        return next((at - since for at in moments if self.rate(at, at + SIGHT_SECONDS) >= rate), math.inf)

    def interrupted(self, pid: int, at: float) -> list[float]:
        """Seconds from the end of that process until each of its unfinished jobs began again; infinite: never."""
        mine = [line for line in self.lines if line.pid == pid]
        unfinished = {line.job for line in mine if not line.done} - {line.job for line in mine if line.done}
        again = {line.job: line.at - at for line in reversed(self.lines) if not line.done and line.at > at}
        return [again.get(job, math.inf) for job in unfinished]

    def twice(self) -> int:
        """Jobs whose effect was done more than once."""
        return sum(count > 1 for count in Counter(line.job for line in self.lines if line.done).values())

    def left(self, until: float) -> int:
        """Jobs passed over: not done, though younger jobs began long ago. (All are enqueued in order.)"""
        front = max((job for job, at in self.begun.items() if at < until - FRESH_SECONDS), default=-1)
        return sum(job not in self.done for job in range(front + 1))


def _line(text: str) -> Line:
    at, pid, job, what = text.split()
    return Line(float(at), int(pid), int(job), what == "-")


Figures = Mapping[str, float]


def run(asked: Namespace) -> str:
    spans = QUICK if asked.quick else Spans()
    names = [name for name in PEERS if not asked.only or name in asked.only]
    found: dict[str, list[dict[str, float]]] = {name: [{} for _ in range(asked.rounds)] for name in names}
    again: dict[str, list[float]] = {name: [] for name in names}
    with Postgres({"max_connections": 300}) as server:
        [(version,)] = server.execute("SELECT current_setting('server_version')")
        for number in range(asked.rounds):
            for scene in SCENES:
                for name in names:
                    figures = scene(server, name, spans, again[name])
                    found[name][number] |= figures
                    words = ", ".join(f"{key} {value:.2f}" for key, value in figures.items())
                    sys.stderr.write(f"round {number + 1}: {name}: {words}\n")
    return report(found, again, spans, version)


def killed(
    server: Postgres, name: str, spans: Spans, again: list[float], *, rate: float = 0.0, prefix: str = "full"
) -> Figures:
    """Kill one worker after the other; all jobs are enqueued before, or meanwhile at `rate`."""
    with at_work(server, name, spans, rate) as ledger_of:
        quiet = pause(spans.quiet)
        began, kills = quiet[1], list[tuple[int, float]]()
        for number in range(spans.kills):
            if pid := oldest(ledger_of()):
                os.kill(pid, signal.SIGKILL)
                kills.append((pid, time.monotonic()))
            wait_until(began + (number + 1) * spans.between)
        ended = time.monotonic()
        ledger = settled(ledger_of, kills, ended + spans.left)
        looked = time.monotonic()
    before = rate or ledger.rate(*quiet)
    again += [seconds for pid, at in kills for seconds in ledger.interrupted(pid, at)]
    return {
        f"{prefix}_before": before,
        f"{prefix}_kept": ledger.rate(began, ended) / before,
        f"{prefix}_left": ledger.left(looked),
        f"{prefix}_twice": ledger.twice(),
    }


def fed(server: Postgres, name: str, spans: Spans, again: list[float]) -> Figures:
    return killed(server, name, spans, again, rate=RATE, prefix="fed")


def restarted(server: Postgres, name: str, spans: Spans, again: list[float]) -> Figures:
    """Restart the server once, while all slots are busy."""
    with at_work(server, name, spans) as ledger_of:
        quiet = pause(spans.quiet)
        server.stop("fast")
        server.start()
        back = time.monotonic()
        wait_until(back + max(spans.after, spans.left))
        ledger, looked = ledger_of(), time.monotonic()
    before, after = ledger.rate(*quiet), back + spans.after
    return {
        "back_before": before,
        "back_away": back - quiet[1],
        "back_kept": ledger.rate(back, after) / before,
        "back_first": ledger.first_begun(back),
        "back_regained": ledger.regained(before * KEPT, back, looked),
        "back_left": ledger.left(looked),
        "back_twice": ledger.twice(),
    }


SCENES: tuple[Callable[[Postgres, str, Spans, list[float]], Figures], ...] = (killed, fed, restarted)


# ── processes ──


@contextmanager
def at_work(server: Postgres, name: str, spans: Spans, rate: float = 0.0) -> Generator[Callable[[], Ledger]]:
    """Workers in steady state on a fresh database, with a backlog that outlasts the run or a process that feeds it."""
    seconds = spans.settle + spans.quiet + spans.kills * spans.between + spans.after + spans.left + PATIENCE / 3
    with ExitStack() as later:
        folder = Path(later.enter_context(TemporaryDirectory(prefix="bench-")))
        url = server.create_database()
        later.callback(server.drop_database, url)
        jobs = 0 if rate else math.ceil(seconds * WORKERS * SLOTS / JOB_SECONDS)
        order = Order("install", name, url, str(folder / "ledger"), SLOTS, WORKERS, jobs, rate)
        carried_out(order)
        if jobs:
            carried_out(replace(order, action="fill"))
            server.execute("VACUUM (ANALYZE)", database=url.rpartition("/")[2])
        work = replace(order, action="work")
        kept = later.enter_context(Kept(work, PEERS[name].processes, folder))
        if rate:
            later.enter_context(Kept(replace(order, action="feed"), 1, folder))
        ledger = Path(order.ledger)
        deadline = time.monotonic() + PATIENCE
        while len({line.pid for line in Ledger.read(ledger).lines}) < WORKERS:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: its {WORKERS} workers had not begun after {PATIENCE:g} s:\n{kept.log()}")
            time.sleep(0.5)
        time.sleep(spans.settle)
        yield lambda: Ledger.read(ledger)


def carried_out(order: Order) -> None:
    command, environment = order.command()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{order.name} failed:\n{done.stderr[-4000:]}")


class Kept:
    """Processes that are started again when they end, as systemd does with Restart=always."""

    def __init__(self, order: Order, count: int, folder: Path) -> None:
        self._command, self._environment = order.command()
        self._environment |= {"TENURE_RUNTIME_DIR": str(folder)}
        self._log = folder / f"{order.action}.log"
        self._over = Event()
        self._running: dict[Thread, subprocess.Popen[bytes]] = {}
        self._threads = [Thread(target=self._keep) for _ in range(count)]

    def __enter__(self) -> Kept:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Kill them. Tenure's workers end with their supervisor."""
        self._over.set()
        while any(thread.is_alive() for thread in self._threads):
            for process in list(self._running.values()):
                process.kill()
            time.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def _keep(self) -> None:
        while not self._over.is_set():
            with self._log.open("ab") as log:
                process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
            self._running[current_thread()] = process
            process.wait()
            self._over.wait(RESTART_SECONDS)


def oldest(ledger: Ledger) -> int:
    """The worker that has been running longest; 0 if there is none. A nearly idle one does not count."""
    recent = Counter(line.pid for line in ledger.lines if line.at > time.monotonic() - 2 and alive(line.pid))
    busy = {pid for pid, count in recent.items() if count * 2 > max(recent.values())}
    return next((line.pid for line in ledger.lines if line.pid in busy), 0)


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def settled(ledger_of: Callable[[], Ledger], kills: Sequence[tuple[int, float]], deadline: float) -> Ledger:
    """Wait until all interrupted jobs have begun again, and have had the time to end."""
    while True:
        ledger = ledger_of()
        waiting = any(math.isinf(seconds) for pid, at in kills for seconds in ledger.interrupted(pid, at))
        if time.monotonic() > deadline or not (waiting or ledger.left(time.monotonic())):
            return ledger
        time.sleep(1)


def pause(seconds: float) -> tuple[float, float]:
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def wait_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))


# ── the report ──


def report(
    found: Mapping[str, Sequence[Figures]], again: Mapping[str, Sequence[float]], spans: Spans, version: str
) -> str:
    rounds = len(next(iter(found.values())))

    def column(name: str, key: str, places: int = 2) -> str:
        each = [figures[key] for figures in found[name]]
        return f"{shown(statistics.median(each), places)} ({', '.join(shown(one, places) for one in each)})"

    def total(name: str, *keys: str) -> str:
        return " + ".join(f"{sum(figures[key] for figures in found[name]):.0f}" for key in keys)

    lines = [
        (
            f"{WORKERS} workers of {SLOTS} slots, jobs of {JOB_SECONDS * 1000:.0f} ms that sleep and write a line, "
            f"PostgreSQL {version} on this machine with its default durability; {in_rounds(rounds)}, "
            f"{here()}. Throughput counts each job's effect once. Tenure's workers are replaced by its "
            f"supervisor; procrastinate and pgqueuer have none, so theirs are started again {RESTART_SECONDS:g} s "
            "after they end, as systemd does. Each recovers as its documentation says: procrastinate by a periodic "
            "task of the app that looks every ten minutes, pgqueuer by taking jobs whose heartbeat is 30 s old."
        ),
        "",
        (
            f"One worker is killed every {spans.between:.0f} s, {spans.kills} in all: first with every slot busy, then "
            f"with {RATE:.0f} jobs a second coming in:"
        ),
        "",
        (
            "| | busy: jobs/s before | busy: kept | coming in: kept | interrupted | begun again after, p50 s | max s | "
            f"not done {spans.left:.0f} s after the last kill | effects done twice |"
        ),
        "| --- |" + " ---: |" * 8,
    ]
    for name in found:
        seconds = sorted(again[name]) or [math.nan]
        lines.append(
            f"| {name} | {column(name, 'full_before', 0)} | {column(name, 'full_kept')} | "
            f"{column(name, 'fed_kept')} | {len(again[name])} | {shown(seconds[len(seconds) // 2])} | "
            f"{shown(seconds[-1])} | {total(name, 'full_left', 'fed_left')}"
            f" | {total(name, 'full_twice', 'fed_twice')} |"
        )
    lines += [
        "",
        "PostgreSQL is restarted (`stop -m fast`, `start`) with every slot busy; times count from its first answer:",
        "",
        (
            f"| | away, s | kept in the first {spans.after:.0f} s | first job begun after, s | back at {KEPT:.0%} "
            f"after, s | not done {max(spans.after, spans.left):.0f} s later | effects done twice |"
        ),
        "| --- |" + " ---: |" * 6,
    ]
    for name in found:
        lines.append(
            f"| {name} | {column(name, 'back_away')} | {column(name, 'back_kept')} | {column(name, 'back_first')} | "
            f"{column(name, 'back_regained')} | {total(name, 'back_left')} | {total(name, 'back_twice')} |"
        )
    if ours := found.get("tenure"):
        lines += [
            "",
            "Targets:",
            "",
            *(
                judged(f"{words}, kept ≥ {KEPT}", [figures[key] for figures in ours], KEPT)
                for words, key in (
                    ("one of four workers killed, every slot busy", "full_kept"),
                    ("one of four workers killed, jobs coming in", "fed_kept"),
                    ("after a restart of PostgreSQL", "back_kept"),
                )
            ),
        ]
    return "\n".join(lines)


def shown(figure: float, places: int = 2) -> str:
    return "not seen" if math.isinf(figure) else f"{figure:.{places}f}"
