"""Flows: how long they take, how long the store's longest step is, and a comparison with Celery's chord.

    python -m bench.flows sqlite postgres redis                 fan-in and fan-out of 10,000, a chain of 1,000
    python -m bench.flows redis --waiting 1000000               what a look at asks costs with waiting jobs
    python -m bench.flows --chords 20 --parts 200               Celery's chord on the same Valkey, workers killed

The first two drive a store from one thread, which claims, completes and admits as a worker and its supervisor do: what
is measured is the store. The third runs `--chords` chords on Tenure, then on Celery: `--parts` parts of 20 ms and one
job after them, while the worker is killed and started again. It counts the chords that have not ended a minute later.
Celery runs as its documentation says for tasks that must not be lost: acks_late, reject_on_worker_lost, a short
visibility timeout.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from servers import Valkey, shared_postgres
from tenure.app.backends import connect, open_store
from tenure.config import load
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Edge, Lease
from tenure.maintenance.holder import identity
from tenure.ports import Draft, Links, Store

SLOTS = 500
PATIENCE = 60.0  #: seconds after the last kill
KILL_SECONDS = 1.5


# ── The store alone ─────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def opened(kind: str) -> Generator[tuple[Store, Any]]:
    """A fresh store, and its server if that can list its slow scripts."""
    with tempfile.TemporaryDirectory() as folder:
        server: Any = None
        if kind == "sqlite":
            url = f"sqlite:///{folder}/flows.db"
        else:
            server = Valkey() if kind == "redis" else None
            url = server.url if server else shared_postgres().create_database()
        settings = load({"url": url, "namespace": f"flows_{os.getpid()}"}, environ={}, folder=Path(folder))
        open_store(settings).migrate()
        store = connect(settings)
        try:
            yield store, server
        finally:
            store.close()
            if server is not None:
                server.close()


def job(*parents: Draft) -> Draft:
    edges = tuple(Edge(parent.id) for parent in parents)
    return Draft(id=new_id(), task="nothing", payload="{}", links=Links(after=edges))


def fan_in(size: int) -> list[Draft]:
    parts = [job() for _ in range(size)]
    return [*parts, job(*parts)]


def fan_out(size: int) -> list[Draft]:
    first = job()
    return [first, *(job(first) for _ in range(size))]


def chain(size: int) -> list[Draft]:
    jobs = [job()]
    while len(jobs) < size:
        jobs.append(job(jobs[-1]))
    return jobs


def drive(store: Store, drafts: Sequence[Draft], server: Any) -> str:
    worker = identity("worker", ("default",), ("nothing",), SLOTS, 3600.0)
    store.register(worker)
    if server is not None:
        server.execute("CONFIG", "SET", "slowlog-log-slower-than", 1000)
        server.execute("SLOWLOG", "RESET")
    began = time.perf_counter()
    store.enqueue(drafts)
    stored, longest, done = time.perf_counter(), 0.0, 0
    while done < len(drafts):
        at = time.perf_counter()
        store.admit()
        longest = max(longest, time.perf_counter() - at)
        claimed = store.claim(worker.id, {"default": SLOTS}, SLOTS)
        store.finish([(Lease(each.id, each.attempt, worker.id), Completed()) for each in claimed])
        done += len(claimed)
    ended = time.perf_counter()
    store.declare_dead([worker.id])
    slow = f", longest script {_slowest(server):.1f} ms" if server is not None else ""
    return (
        f"stored in {stored - began:.2f} s, run in {ended - stored:.2f} s, longest call of admit {longest * 1e3:.0f} ms"
        f"{slow}"
    )


def _slowest(server: Any) -> float:
    found = server.execute("SLOWLOG", "GET", 128)
    return max((entry["duration"] if isinstance(entry, dict) else entry[2] for entry in found), default=0) / 1000


def look(store: Store, waiting: int) -> str:
    """The cost of a look that finds nothing, and of one ask, before and while so many jobs wait."""

    def cost() -> tuple[float, float]:
        while store.admit().more:
            pass
        times = [_timed(store.admit) for _ in range(50)]
        parent = job()
        store.enqueue([parent, *(job(parent) for _ in range(1))])
        while store.admit().more:
            pass
        asked = _timed(lambda: (store.cancel([parent.id], "bench"), store.admit()))
        return sorted(times)[25] * 1e3, asked * 1e3

    before = cost()
    held = job()
    store.enqueue([Draft(id=held.id, task="nothing", payload="{}", delay=86_400.0)])
    for first in range(0, waiting, 5000):
        store.enqueue([job(held) for _ in range(min(5000, waiting - first))])
        store.admit(limit=1000)
    after = cost()
    return (
        f"nothing to do {before[0]:.2f} ms, with {waiting:,} waiting jobs {after[0]:.2f} ms; a cancelled parent and "
        f"its ask {before[1]:.1f} ms, with them {after[1]:.1f} ms"
    )


def _timed(call: Any) -> float:
    at = time.perf_counter()
    call()
    return time.perf_counter() - at


# ── Against Celery's chord ──────────────────────────────────────────────────────────────────────────────────────

_CELERY = """
import os, sys, time, celery
app = celery.Celery("flows", broker=os.environ["FLOWS_URL"], backend=os.environ["FLOWS_URL"])
app.conf.update(
    task_acks_late=True, task_reject_on_worker_lost=True, worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 5}, result_backend_transport_options={"visibility_timeout": 5},
)

@app.task
def part(n):
    time.sleep(0.02)
    return n

@app.task
def last(values):
    return len(values)
"""
_TENURE = """
import os, time
from tenure import Tenure
jobs = Tenure(os.environ["FLOWS_URL"], namespace="chords")

@jobs.task
def part(n: int) -> int:
    time.sleep(0.02)
    return n

@jobs.task
def last(values: list[int]) -> int:
    return len(values)
"""


def chords(number: int, parts: int, *, killed: bool) -> str:
    """Tenure, then Celery, each in a Valkey and a folder of its own."""
    lines = []
    for name in ("tenure", "celery"):
        with Valkey() as server, tempfile.TemporaryDirectory() as folder:
            Path(folder, f"{name}_flows.py").write_text(_CELERY if name == "celery" else _TENURE, encoding="utf-8")
            os.environ |= {"FLOWS_URL": server.url, "TENURE_LEASE": "3s"}
            sys.path.insert(0, folder)
            try:
                took, hung, wrong = (_celery if name == "celery" else _tenure)(folder, number, parts, killed=killed)
            finally:
                sys.path.remove(folder)
                sys.modules.pop(f"{name}_flows", None)
        lines.append(
            f"{name}: {number} of {parts} parts, workers {'killed' if killed else 'left alone'}: "
            f"{took:.1f} s, {hung} did not end, {wrong} with a wrong number"
        )
    return "\n".join(lines)


def _tenure(folder: str, number: int, parts: int, *, killed: bool) -> tuple[float, int, int]:
    import tenure_flows as app  # pyright: ignore[reportMissingImports]

    from tenure import outputs

    program = str(Path(sys.executable).with_name("tenure"))
    command = [program, "worker", "tenure_flows:jobs", "-w", "1", "-c", "4"]
    with app.jobs:
        handles = []
        for n in range(number):
            with app.jobs.flow(f"chord {n}") as flow:
                steps = [flow.add(app.part.bind(each)) for each in range(parts)]
                end = flow.add(app.last.bind(outputs(steps)))
            handles.append(end.handle)
        began = time.monotonic()
        with _workers(command, folder, killed=killed) as quiet_since:
            values = _all(handles, lambda handle: handle.status().state == "completed", quiet_since)
        results = [handle.result(timeout="1s") for handle, done in zip(handles, values, strict=True) if done]
    return time.monotonic() - began, values.count(False), sum(each != parts for each in results)


def _celery(folder: str, number: int, parts: int, *, killed: bool) -> tuple[float, int, int]:
    import celery_flows as app  # pyright: ignore[reportMissingImports]
    from celery import chord

    command = [sys.executable, "-m", "celery", "-A", "celery_flows", "worker", "--concurrency", "4", "-l", "ERROR"]
    results = [chord([app.part.s(each) for each in range(parts)])(app.last.s()) for _ in range(number)]
    began = time.monotonic()
    with _workers(command, folder, killed=killed) as quiet_since:
        values = _all(results, lambda result: result.ready(), quiet_since)
    right = sum(result.get(timeout=1) != parts for result, done in zip(results, values, strict=True) if done)
    return time.monotonic() - began, values.count(False), right


def _all(items: Sequence[Any], ready: Any, quiet_since: Any) -> list[bool]:
    """Which have ended, when all have, or a minute after the last kill."""
    done = [False] * len(items)
    while not all(done):
        done = [each or bool(ready(item)) for each, item in zip(done, items, strict=True)]
        if time.monotonic() - quiet_since() > PATIENCE:
            break
        time.sleep(0.1)
    return done


@contextmanager
def _workers(command: Sequence[str], folder: str, *, killed: bool) -> Generator[Any]:
    """A worker in a process group of its own. With `killed`, the group is killed five times and started again."""
    from threading import Event, Thread

    over, last_kill = Event(), [time.monotonic()]
    environment = os.environ | {"PYTHONPATH": folder, "C_FORCE_ROOT": "1"}
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        quiet = subprocess.DEVNULL
        running.append(
            subprocess.Popen(
                command, cwd=folder, env=environment, start_new_session=True, stdout=quiet, stderr=quiet, stdin=quiet
            )
        )

    def kill() -> None:
        os.killpg(running[-1].pid, signal.SIGKILL)
        running[-1].wait()

    def nemesis() -> None:
        for _ in range(5 if killed else 0):
            if over.wait(KILL_SECONDS + 1.5):
                return
            kill()
            start()
            last_kill[0] = time.monotonic()

    start()
    thread = Thread(target=nemesis)
    thread.start()
    try:
        yield lambda: time.monotonic() if thread.is_alive() else last_kill[0]
    finally:
        over.set()
        thread.join()
        kill()


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.flows", description=__doc__)
    parser.add_argument("stores", nargs="*", metavar="STORE", help="sqlite, postgres, redis")
    parser.add_argument("--size", type=int, default=10_000, help="of a fan-in and a fan-out (10,000); chains: a tenth")
    parser.add_argument("--waiting", type=int, default=0, help="measure the look at asks with this many waiting jobs")
    parser.add_argument("--chords", type=int, default=0, help="run this many, in Tenure and in Celery")
    parser.add_argument("--parts", type=int, default=50, help="of each chord (50)")
    asked = parser.parse_args()
    for kind in asked.stores:
        if asked.waiting:
            with opened(kind) as (store, _):
                print(f"{kind}: {look(store, asked.waiting)}", flush=True)
            continue
        shapes = {"fan-in": fan_in(asked.size), "fan-out": fan_out(asked.size), "chain": chain(asked.size // 10)}
        for name, drafts in shapes.items():
            with opened(kind) as (store, server):
                print(f"{kind}, {name} of {len(drafts):,}: {drive(store, drafts, server)}", flush=True)
    for killed in (False, True) if asked.chords else ():
        print(chords(asked.chords, asked.parts, killed=killed), flush=True)


if __name__ == "__main__":
    main()
