"""What a job costs, and how the rate changes with more workers, with a network in between, and after a long time.

    python -m bench --scale --write docs/scale.md                # all parts, for about an hour
    python -m bench --scale --parts soak --soak 3600             # one part; only its blocks of the page are replaced

The parts: `workers` (1 to 8 of them drain), `idle` (1 to 200 of them wait), `trips` (a round trip to the store), `soak`
(an old snapshot stays open). Each is measured with the peers that are installed, on the same server. The rate covers
the time in which all workers work: from when the last worker has begun until the last job has.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any

import psycopg
from tests.servers import Postgres, Valkey

from bench import postgres_peers, redis_peers
from bench.drive import Order
from bench.line import Line
from bench.measure import cpu_seconds, tallies
from bench.postgres import ask
from bench.report import here, in_rounds
from bench.scale_limits import Cost, limits
from tenure.cli.bench import cuts

NAMES = {"postgres": ("tenure", "pgqueuer", "awa"), "redis": ("tenure", "dramatiq", "taskiq-redis")}
MODULES = {"awa": "awa", "pgqueuer": "pgqueuer", "dramatiq": "dramatiq", "taskiq-redis": "taskiq_redis"}
WORKERS = (1, 2, 4, 8)
IDLE = (1, 8, 40, 200)
A_SUPERVISOR = 8  #: idle workers under one supervisor, at most
TRIPS = (0.0, 0.001, 0.005)  #: seconds
SINGLE = 300
SETTLED = 3.0  #: seconds without a new connection, after which the workers have settled
PATIENCE_SECONDS = 180.0
PAUSE = 0.05
ENDING = 20.0
MOST_CONNECTIONS = 1200
ACKNOWLEDGED = 1.0  #: seconds after the last job, by which the last batch is acknowledged

Row = Sequence[str]


# ── Servers, and what they count ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server has counted since it was started, or in a span of time."""

    log: float  #: bytes of WAL, or of the append-only file
    commits: float
    syncs: float
    outdated: float  #: row versions left behind: each is dead as soon as no snapshot sees it any more
    cpu: float  #: seconds
    connections: float

    def since(self, before: Counts) -> Counts:
        """The difference; connections are those of now."""
        return Counts(
            self.log - before.log,
            self.commits - before.commits,
            self.syncs - before.syncs,
            self.outdated - before.outdated,
            self.cpu - before.cpu,
            self.connections,
        )


_COUNTS = """
SELECT pg_current_wal_insert_lsn() - '0/0', d.xact_commit,
  (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'),
  (SELECT sum(n_tup_upd + n_tup_del) FROM pg_stat_user_tables),
  (SELECT count(*) FROM pg_stat_activity WHERE datname = d.datname AND pid <> pg_backend_pid())
FROM pg_stat_database AS d WHERE d.datname = current_database()
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """One server of one store."""

    store: str
    server: Any
    version: str

    @contextmanager
    def contestant(self, name: str, asked: Namespace) -> Generator[Order]:
        """One contestant's tables in a fresh database, or an emptied server."""
        redis = self.store == "redis"
        url = self.server.url if redis else self.server.create_database()
        order = Order("install", name, url, (self.server.pid,), asked.slots, asked.jobs, store=self.store)
        if redis:
            self.server.execute("FLUSHALL", "SYNC")
            yield order
            return
        ask(order)
        yield order
        self.server.drop_database(order.url)

    def counts(self, order: Order) -> Counts:
        """The counts of the contestant's database."""
        cpu = cpu_seconds(self.server.pid)
        if self.store == "redis":
            found = self.server.execute("INFO", "everything")
            numbers = [float(found[key]) for key in ("aof_current_size", "total_commands_processed")]
            return Counts(numbers[0], numbers[1], 0.0, 0.0, cpu, float(found["connected_clients"]) - 1)
        with psycopg.connect(order.url, autocommit=True) as connection:
            row = connection.execute(_COUNTS).fetchone()
        assert row
        log, commits, syncs, outdated, connections = map(float, row)
        return Counts(log, commits, syncs, outdated, cpu, connections)


@contextmanager
def server(store: str) -> Generator[Bench]:
    if store == "postgres":
        with Postgres({"max_connections": MOST_CONNECTIONS}) as postgres:
            [(version,)] = postgres.execute("SELECT current_setting('server_version')")
            yield Bench(store, postgres, f"PostgreSQL {version} with its default durability")
    else:
        with Valkey({"appendonly": "yes", "auto-aof-rewrite-percentage": 0}) as valkey:
            version = valkey.execute("INFO", "server")["valkey_version"]
            yield Bench(store, valkey, f"Valkey {version} with an append-only file that is synced every second")


def peers(store: str) -> dict[str, type[postgres_peers.Peer]]:
    return dict({"postgres": postgres_peers.PEERS, "redis": redis_peers.PEERS}[store])


def entrants(bench: Bench, asked: Namespace) -> list[str]:
    """Tenure, and the peers that are installed."""
    names = [name for name in NAMES[bench.store] if not asked.only or name in asked.only]
    return [name for name in names if name not in MODULES or find_spec(MODULES[name])]


# ── Workers ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes that work for one contestant, and the folder where they count. Supervisors start their workers."""

    folder: str
    processes: Sequence[Popen[bytes]]

    def cpu(self) -> float:
        return sum(cpu_seconds(each.pid) for each in self.processes)

    def check(self, what: str) -> None:
        """Raises RuntimeError with the workers' output if one of them has ended."""
        for each in self.processes:
            if each.poll() is not None:
                raise RuntimeError(f"a worker ended with {each.returncode} before {what}:\n{self._log()}")

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Wait for it. Raises TimeoutError if nothing has run for long."""
        moved, deadline = -1, 0.0
        while not done():
            self.check(what)
            ran = sum(calls for calls, _, _ in tallies(self.folder))
            if ran != moved:
                moved, deadline = ran, time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: nothing ran for {PATIENCE_SECONDS:g} s, {ran} jobs in all:\n{self._log()}")
            time.sleep(PAUSE)

    def memory(self) -> float:
        """MiB of all processes, shared pages counted once."""
        total = 0.0
        for each in self.processes:
            for pid in (each.pid, *_children(each.pid)):
                found = re.search(
                    r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"), re.MULTILINE
                )
                total += int(found[1]) / 1024 if found else 0.0
        return total

    def _log(self) -> str:
        return Path(self.folder, "log").read_text(encoding="utf-8")[-3000:]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


@contextmanager
def crew(order: Order, workers: int, most: int = sys.maxsize) -> Generator[Crew]:
    """Workers of one contestant, at most `most` under each supervisor; without a supervisor each is a process."""
    most = most if peers(order.store)[order.name].supervised else 1
    sizes = [min(most, workers - first) for first in range(0, workers, most)]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Path(folder, "log").open("wb") as log:
        command, environment = replace(order, action="work").command()
        processes: list[Popen[bytes]] = []
        try:
            for size in sizes:
                config = json.dumps({"folder": folder, "workers": size})
                more = {"BENCH_WORKER": config, "TENURE_RUNTIME_DIR": folder}
                processes.append(Popen(command, env=environment | more, stdout=log, stderr=log, start_new_session=True))
            yield Crew(folder, processes)
        finally:
            for each in processes:
                each.terminate()
            deadline = time.monotonic() + ENDING
            for each in processes:
                try:
                    each.wait(max(0.1, deadline - time.monotonic()))
                except TimeoutExpired:
                    os.killpg(each.pid, signal.SIGKILL)
                    each.wait()


def drained(bench: Bench, order: Order, workers: int) -> dict[str, float]:
    """Store the jobs, run them, and say what both have cost."""
    before = bench.counts(order)
    took = float(ask(replace(order, action="store")))
    stored = bench.counts(order)
    with crew(order, workers) as working:
        began = (0, 0, bench.counts(order).cpu, working.cpu())
        waiting = True

        def done() -> bool:
            nonlocal began, waiting
            found = tallies(working.folder)
            ran = sum(calls for calls, _, _ in found)
            if waiting and (len(found) == workers or ran >= order.jobs // 2):
                waiting = False
                began = (ran, time.monotonic_ns(), cpu_seconds(bench.server.pid), working.cpu())
            return ran >= order.jobs

        working.until(done, "the last job")
        last = max(last for _, _, last in tallies(working.folder))
        ran, at, server, client = began
        counted = order.jobs - ran
        seconds = max(last - at, 1) / 1e9
        figures = {
            "rate": counted / seconds,
            "server_us": (cpu_seconds(bench.server.pid) - server) / counted * 1e6,
            "worker_us": (working.cpu() - client) / counted * 1e6,
        }
        time.sleep(ACKNOWLEDGED)
    ended, jobs = bench.counts(order), order.jobs
    kept, spent = stored.since(before), ended.since(stored)
    return figures | {
        "stored": jobs / took,
        "log_stored": kept.log / jobs,
        "log_run": spent.log / jobs,
        "commits": (kept.commits + spent.commits) / jobs,
        "syncs": (kept.syncs + spent.syncs) / jobs,
        "outdated": (kept.outdated + spent.outdated) / jobs,
    }


# ── The parts ───────────────────────────────────────────────────────────────────────────────────────────────────


def of_workers(bench: Bench, asked: Namespace) -> list[str]:
    """How the drain grows with workers, and what one job costs."""
    found = {name: {workers: list[dict[str, float]]() for workers in asked.workers} for name in entrants(bench, asked)}
    for number in range(asked.rounds):
        for workers in asked.workers:
            for name, points in found.items():
                with bench.contestant(name, asked) as order:
                    points[workers].append(drained(bench, order, workers))
                _told(f"round {number + 1}: {bench.store}: {name}, {workers} workers", points[workers][-1]["rate"])
    medians = {name: [_medians(runs) for runs in points.values()] for name, points in found.items()}
    rates = [
        [name, *(f"{each['rate']:,.0f} ({each['worker_us']:.0f} + {each['server_us']:.0f})" for each in points)]
        for name, points in medians.items()
    ]
    postgres = bench.store == "postgres"
    kinds = ["WAL, bytes: stored + run", "commits", "fsyncs", "row versions left"] if postgres else [
        "append-only file, bytes: stored + run"]  # fmt: skip
    costs = [
        [name, f"{one['log_stored']:,.0f} + {one['log_run']:,.0f}",
         *([f"{one['commits']:.4f}", f"{one['syncs']:.4f}", f"{one['outdated']:.2f}"] if postgres else [])]
        for name, [one, *_] in medians.items()
    ]  # fmt: skip
    said = f"{asked.jobs:,} no-op jobs a point, {asked.slots} slots a worker, {in_rounds(asked.rounds, '')}"
    lines = [
        f"{said}; {_where(bench)}",
        "",
        "Jobs a second, and in brackets worker CPU + server CPU, µs a job:",
        "",
        *_table(["workers", *map(str, asked.workers)], rates),
        "",
        "What one job costs in the first column, from its enqueue to its end:",
        "",
        *_table(["", *kinds], costs),
    ]
    if "tenure" in medians:
        one = medians["tenure"][0]
        cost = Cost(one["worker_us"], one["server_us"], one["log_stored"] + one["log_run"], one["syncs"])
        lines += ["", *limits(cost, one_core=not postgres)]
    return lines


def of_idle(bench: Bench, asked: Namespace) -> list[str]:
    """What idle workers cost."""
    kind = "transactions" if bench.store == "postgres" else "commands"
    heads = ["", "workers", f"{kind} a second", "connections", "bytes of log a second", "server CPU", "MiB of all"]
    rows: list[Row] = []
    for name in entrants(bench, asked):
        for workers in asked.idle:
            try:
                spent, seconds, memory = waited(bench, name, workers, asked)
            except psycopg.OperationalError:
                if name == "tenure":
                    raise
                rows.append([name, f"{workers}", "–", f"more than {MOST_CONNECTIONS:,}", *"–––"])
                continue
            cells = (f"{spent.commits / seconds:.1f}", f"{spent.connections:.0f}", f"{spent.log / seconds:,.0f}")
            rows.append([name, f"{workers}", *cells, f"{spent.cpu / seconds:.1%}", f"{memory:,.0f}"])
            _told(f"{bench.store}: {name}, {workers} idle: {kind}", spent.commits / seconds)
    said = f"{asked.seconds:g} s a point; up to {A_SUPERVISOR} of Tenure's workers under a supervisor"
    return [f"{said}; {_where(bench)}", "", *_table(heads, rows)]


def waited(bench: Bench, name: str, workers: int, asked: Namespace) -> tuple[Counts, float, float]:
    """What idle workers cost, in how many seconds, and their memory. Raises OperationalError at the server's limit."""
    with bench.contestant(name, asked) as order, crew(order, workers, A_SUPERVISOR) as waiting:
        settled(bench, order, waiting)
        before, began = bench.counts(order), time.monotonic()
        time.sleep(asked.seconds)
        waiting.check("the end of the measurement")
        spent, seconds = bench.counts(order).since(before), time.monotonic() - began
        return spent, seconds, waiting.memory()


def settled(bench: Bench, order: Order, waiting: Crew) -> None:
    """Wait until all workers have connected, and none opens another connection."""
    seen, since = -1.0, time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since
        found = bench.counts(order).connections
        if found != seen:
            seen, since = found, time.monotonic()
        time.sleep(0.5)
        return found >= len(waiting.processes) and time.monotonic() - since > SETTLED

    waiting.until(quiet, "the last connection")


def of_trips(bench: Bench, asked: Namespace) -> list[str]:
    """What a network between worker and store costs."""
    rows: list[Row] = []
    for name in entrants(bench, asked):
        cells: list[str] = []
        for trip in asked.trips:
            with bench.contestant(name, asked) as order, Line("127.0.0.1", bench.server.port, trip) as line:
                ask(replace(order, action="store"))
                far = replace(order, url=order.url.replace(f":{bench.server.port}", f":{line.port}"))
                rate = run_only(far)
                single = float(ask(replace(far, action="single", jobs=min(SINGLE, asked.jobs))))
            cells.append(f"{rate:,.0f}; {single:,.0f}")
            _told(f"{bench.store}: {name}, round trip of {trip * 1000:g} ms", rate)
        rows.append([name, *cells])
    return [
        f"{asked.jobs:,} no-op jobs a point, one worker, {asked.slots} slots; {_where(bench)}",
        "",
        "Jobs a second drained; single awaited enqueues a second:",
        "",
        *_table(["round trip", *(f"{trip * 1000:g} ms" for trip in asked.trips)], rows),
    ]


def run_only(order: Order) -> float:
    """Jobs a second from the first call to the last."""
    with crew(order, 1) as working:
        working.until(lambda: sum(calls for calls, _, _ in tallies(working.folder)) >= order.jobs, "the last job")
        [(calls, first, last)] = tallies(working.folder)
        time.sleep(ACKNOWLEDGED)
    return calls / max(last - first, 1) * 1e9


def of_soak(bench: Bench, asked: Namespace) -> list[str]:
    """Does the start slow down while a snapshot from the beginning keeps all dead rows?"""
    rows: list[Row] = []
    for name in entrants(bench, asked):
        with bench.contestant(name, asked) as order, psycopg.connect(order.url) as old:
            old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            old.execute("SELECT count(*) FROM pg_class")
            before = bench.counts(order)
            with crew(order, 1) as working:
                settled(bench, order, working)
                stored = int(ask(replace(order, action="soak", jobs=asked.pace, laps=asked.soak)))
                late = [float(line) for line in Path(working.folder, "starts").read_text(encoding="utf-8").splitlines()]
            spent = bench.counts(order).since(before)
            [(dead, size)] = old.execute(_LEFT).fetchall()
        sixth = max(len(late) // 6, 1)
        (p50, p99), (last50, last99) = cuts(late[:sixth]), cuts(late[-sixth:])
        starts = (f"{p50:.1f}; {p99:.1f}", f"{last50:.1f}; {last99:.1f}", f"{last99 / p99:.2f}")
        kept = (f"{spent.log / stored:,.0f}", f"{dead / stored:.2f}", f"{size / stored:,.0f}")
        rows.append([name, f"{stored:,}", *starts, *kept])
        _told(f"soak: {name}: p99 of the last sixth, ms", last99)
    heads = ["", "jobs", "start p50; p99 ms, first sixth", "the same, last sixth", "p99, last ÷ first",
             "WAL, bytes a job", "dead rows a job, at the end", "bytes on disk a job"]  # fmt: skip
    said = (
        f"{asked.soak} s each, {asked.pace:,} no-op jobs a second in ten calls, and twenty single ones whose start is "
        "timed from the call; one worker; a snapshot from before the first job is open throughout"
    )
    return [f"{said}; {_where(bench)}", "", *_table(heads, rows)]


_LEFT = "SELECT sum(n_dead_tup)::float8, pg_database_size(current_database())::float8 FROM pg_stat_user_tables"

PARTS = {"workers": of_workers, "trips": of_trips, "idle": of_idle, "soak": of_soak}


def run(asked: Namespace) -> str:
    """Measure the parts that were asked for, on each store. Each is a block of the page, and is written at once."""
    texts: list[str] = []
    for store in asked.stores:
        with server(store) as bench:
            for part in asked.parts or PARTS:
                if part == "soak" and store != "postgres":
                    continue  # Redis keeps no old versions
                texts.append("\n".join(PARTS[part](bench, asked)))
                if asked.write:
                    written(asked.write, f"{part} on {store}", texts[-1])
    return "\n\n".join(texts)


def written(page: Path, name: str, text: str) -> None:
    """Replace one block. Raises SystemExit if the page has none of that name."""
    block = re.compile(rf"(?<=<!-- measured: {name} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    new, places = block.subn(lambda _: f"{text}\n", page.read_text(encoding="utf-8"), count=1)
    if not places:
        raise SystemExit(f"{page} has no block `<!-- measured: {name} -->` … `<!-- end -->` to write to")
    page.write_text(new, encoding="utf-8")


# ── Words ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _where(bench: Bench) -> str:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{bench.version}; {here()}; load of the machine at the end (1, 5, 15 min, our own included): {load}."


def _table(heads: Row, rows: Iterable[Row]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        "| --- |" + " ---: |" * (len(heads) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _told(what: str, figure: float) -> None:
    sys.stderr.write(f"{what}: {figure:,.1f}\n")
