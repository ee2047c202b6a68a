"""Ten thousand schedules: all due in the same minute, and none due for a day, under one supervisor with one worker."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from tests.servers import Postgres, Valkey

from bench.report import here, in_rounds
from tenure.app.backends import open_store
from tenure.config import load
from tenure.ports import Draft, Store
from tenure.ports.schedules import Schedule, Standing
from tenure.schedules.plan import Plan

TITLE = "Schedules"
MANY = 10_000
BATCH = 500
SETTLE_SECONDS = 6.0
IDLE_SECONDS = 90.0  #: alerts look at all schedules every half a minute: a shorter span may miss that
PATIENCE = timedelta(seconds=55)
AT_ONCE = timedelta(seconds=20)  #: at least, from now until the minute in which all are due


def run(asked: Namespace) -> str:
    wanted = ("sqlite", "postgres", "redis") if asked.only is None else asked.only
    rows, idle = list[str](), list[str]()
    for name in wanted:
        fired, started, costs = list[float](), list[float](), list[float]()
        for number in range(asked.rounds):
            with place(name) as (url, pids):
                first, last = due_at_once(url)
                fired.append(first)
                started.append(last)
            with place(name) as (url, pids):
                costs.append(idle_cost(url, pids))
            sys.stderr.write(
                f"{name}, round {number + 1}: fired {first:.2f} s, ran {last:.2f} s, idle {costs[-1]:.2f}%\n"
            )
        rows.append(f"| {name} | {shown(fired)} | {shown(started)} | {shown(costs)} |")
        idle.append(verdict(f"{name}: all fired within 5 s", statistics.median(fired), 5.0))
        idle.append(verdict(f"{name}: idle under 1% of a core", statistics.median(costs), 1.0))
    return "\n".join(
        [
            (
                f"{MANY:,} schedules, one supervisor with one worker of five slots, which runs the jobs meanwhile; "
                f"{in_rounds(asked.rounds, '')}, {here()}. Idle cost: CPU of supervisor, worker and server "
                f"with {MANY:,} schedules that are not due, less the same with none, over {IDLE_SECONDS:.0f} s."
            ),
            "",
            "| store | all fired after, s | all run after, s | idle cost, % of a core |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
            "Targets:",
            "",
            *idle,
        ]
    )


def shown(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} ({', '.join(f'{each:.2f}' for each in figures)})"


def verdict(target: str, figure: float, most: float) -> str:
    return f"- {target}: {figure:.2f}, {'met' if figure <= most else '**short**'}"


@contextmanager
def place(name: str) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """A fresh store, and the processes of its server."""
    with ExitStack() as later:
        if name == "sqlite":
            folder = later.enter_context(TemporaryDirectory())
            yield f"sqlite:///{folder}/tenure.db", list
        elif name == "postgres":
            server = later.enter_context(Postgres())
            yield server.url(), lambda: family(server.pid)
        else:
            # A rewrite of the append-only file would take the second core for seconds, in some rounds but not others.
            settings = {"appendfsync": "everysec", "auto-aof-rewrite-percentage": 0}
            valkey = later.enter_context(Valkey(settings))
            yield valkey.url, lambda: family(valkey.pid)


def family(pid: int) -> list[int]:
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def opened(url: str) -> Store:
    store = open_store(load({"url": url}))
    store.migrate()
    store.open()
    return store


def put(store: Store, expression: str) -> None:
    now = store.now()
    job = Draft(id="", task="nothing", payload="{}")
    for start in range(0, MANY, BATCH):
        wanted = [Schedule(name=f"s{n}", rule=expression, job=job) for n in range(start, start + BATCH)]
        changes = [Plan(Standing(each), now).declare(each).change() for each in wanted]
        assert all(store.change([change for change in changes if change is not None]))


@contextmanager
def supervised(url: str) -> Iterator[int]:
    root = Path(__file__).parents[1]
    with TemporaryDirectory() as folder:
        env = {**os.environ, "TENURE_URL": url, "PYTHONPATH": str(root), "TENURE_RUNTIME_DIR": folder}
        command = [Path(sys.executable).with_name("tenure"), "worker", "bench.scheduled_app"]
        worker = subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.DEVNULL)
        try:
            yield worker.pid
        finally:
            worker.terminate()
            worker.wait()


def due_at_once(url: str) -> tuple[float, float]:
    """Seconds from the minute in which all are due until the last was fired, and until the last job had ended."""
    store = opened(url)
    while store.now().second > 60 - AT_ONCE.seconds:
        time.sleep(0.5)
    put(store, "* * * * *")
    with supervised(url):
        minute = store.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
        time.sleep((minute - store.now()).total_seconds() + 5)
        decided, ended = list[datetime](), list[datetime]()
        while len(ended) < MANY:
            assert store.now() < minute + PATIENCE, f"{len(decided)} fired, {len(ended)} ran"
            time.sleep(2)
            decided.clear()
            ended.clear()
            for number in range(MANY):
                for tick in store.ticks(f"s{number}", limit=3):
                    if tick.tick == minute:
                        decided.append(tick.decided_at)
                        ended += [tick.ended_at] if tick.ended_at else []
    store.close()
    assert len(decided) == MANY
    return (max(decided) - minute).total_seconds(), (max(ended) - minute).total_seconds()


def idle_cost(url: str, server: Callable[[], list[int]]) -> float:
    """What schedules that are not due cost a second, in percent of a core."""
    costs = list[float]()
    store = opened(url)
    for full in (False, True):
        if full:
            put(store, "0 0 1 1 *")
        with supervised(url) as supervisor:
            time.sleep(SETTLE_SECONDS)
            before = cpu([*family(supervisor), *server()])
            time.sleep(IDLE_SECONDS)
            costs.append((cpu([*family(supervisor), *server()]) - before) / IDLE_SECONDS * 100)
    store.close()
    return costs[1] - costs[0]


def cpu(pids: Sequence[int]) -> float:
    """Seconds these processes have run."""
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
