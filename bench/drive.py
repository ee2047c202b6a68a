"""One contestant on one store, in a process of its own: `python -m bench.drive` carries out BENCH_ORDER.

Its worker is one more process: the same module with the action `work`. (The order is in the environment because its
URL has a password, and every user can read a command line.)
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from threading import Timer
from typing import Any

from bench import measure
from bench.measure import STARTS, awaited_rate
from bench.postgres_peers import Peer
from tenure.cli.bench import cuts

PR_SET_PDEATHSIG = 1
SINGLE = 2000
TOGETHER = 100
STAMPS = 20  #: a second, of a soak
SETTLING = 0.3  # seconds: pgqueuer acknowledges after 0.1 at the latest
GIVE_UP = 300.0  # seconds of one measurement


@dataclass(frozen=True, slots=True)
class Order:
    """One measurement of one peer. `servers` are the processes whose CPU time counts as the server's."""

    action: str
    name: str
    url: str
    servers: tuple[int, ...]
    slots: int
    jobs: int  #: of one lap
    nats: str = ""
    laps: int = 1
    store: str = "postgres"

    def command(self) -> tuple[list[str], dict[str, str]]:
        """How to carry it out, and in which environment."""
        return [sys.executable, "-m", "bench.drive"], os.environ | {"BENCH_ORDER": json.dumps(asdict(self))}


async def measured(peer: Peer, order: Order) -> dict[str, float]:
    """Bulk enqueue, drain, start latency; then, with the worker gone, single and concurrent enqueues."""
    watch = Timer(GIVE_UP, give_up, (order.name,))  # a thread: what hangs may block the loop
    watch.daemon = True
    watch.start()
    await peer.open()
    figures = {"bulk": await awaited_rate(order.jobs, peer.many(order.jobs))}
    with working(order) as (folder, worker):
        [lap] = measure.laps(folder, 1, worker)
        figures |= lap
        settled(peer)
        if peer.starts:
            p50, p99 = cuts([await start(peer, folder, n, worker) for n in range(1, STARTS + 1)])
            figures |= {"start_p50_ms": p50, "start_p99_ms": p99}
    if peer.enqueues:
        figures["single"] = await awaited_rate(SINGLE, enqueues(peer, SINGLE))
        if peer.together:
            each = SINGLE // TOGETHER
            figures["together"] = await awaited_rate(
                SINGLE, asyncio.gather(*(enqueues(peer, each) for _ in range(TOGETHER)))
            )
    else:
        del figures["bulk"]
    await peer.close()
    return figures


def give_up(name: str) -> None:
    sys.stderr.write(f"{name} was not done after {GIVE_UP:g} s, so it was stopped\n")
    sys.stderr.flush()
    os._exit(1)


async def enqueues(peer: Peer, count: int) -> None:
    for n in range(count):
        await peer.one(n)


async def start(peer: Peer, folder: str, number: int, worker: Popen[bytes]) -> float:
    """Milliseconds until one job starts on a queue at rest."""
    await asyncio.sleep(0.005)
    await peer.stamp(time.monotonic_ns())
    return measure.start(folder, number, worker)


async def lap(peer: Peer, order: Order) -> dict[str, float]:
    """Enqueue one lap's jobs, drain them with a fresh worker."""
    await peer.open()
    await peer.many(order.jobs)
    await peer.close()
    with working(order) as (folder, worker):
        return measure.laps(folder, 1, worker)[0]


async def churn(peer: Peer, order: Order) -> list[dict[str, float]]:
    """Lap after lap with one worker while an old snapshot is open. It is taken after a first lap, which warms up."""
    import psycopg

    await peer.open()
    with working(order) as (folder, worker), psycopg.connect(order.url) as old:
        for number in range(1, order.laps + 2):
            await peer.many(order.jobs)
            measure.laps(folder, number, worker)
            await asyncio.sleep(SETTLING)
            if number == 1:
                old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                old.execute("SELECT count(*) FROM pg_class")
        found = measure.laps(folder, order.laps + 1, worker)[1:]
    await peer.close()
    return found


async def filled(peer: Peer, order: Order) -> None:
    """Store as many jobs of the kind that the action names. Vacuum at once, or that would be measured too."""
    import psycopg

    await peer.fill(order.action, order.jobs)
    with psycopg.connect(order.url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


async def stored(peer: Peer, order: Order) -> float:
    """Enqueue the jobs, and return how many seconds that took."""
    await peer.open()
    took = order.jobs / await awaited_rate(order.jobs, peer.many(order.jobs))
    await peer.close()
    return took


async def single(peer: Peer, order: Order) -> float:
    """Awaited enqueues a second, one after another."""
    await peer.open()
    await peer.one(0)  # the first one connects
    rate = await awaited_rate(order.jobs, enqueues(peer, order.jobs))
    await peer.close()
    return rate


async def soaked(peer: Peer, order: Order) -> int:
    """For `laps` seconds enqueue `jobs` a second in ten calls, and jobs that time their start. Returns how many."""
    await peer.open()
    began = time.monotonic()

    async def steady(a_second: int, call: Callable[[], Awaitable[object]]) -> None:
        for n in range(order.laps * a_second):
            await asyncio.sleep(max(0.0, began + n / a_second - time.monotonic()))
            await call()

    await asyncio.gather(
        steady(10, lambda: peer.many(order.jobs // 10)), steady(STAMPS, lambda: peer.stamp(time.monotonic_ns()))
    )
    await peer.close()
    return order.laps * (order.jobs // 10 * 10 + STAMPS)


async def installed(peer: Peer, order: Order) -> None:
    await peer.install()


async def working_off(peer: Peer, order: Order) -> None:
    await peer.work(order.slots)


@contextmanager
def working(order: Order) -> Generator[tuple[str, Popen[bytes]]]:
    """The worker, and the folder where it records its laps. Its output is shown if it fails."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = {"folder": folder, "lap": order.jobs, "servers": order.servers}
        command, environment = replace(order, action="work").command()
        environment |= {"BENCH_WORKER": json.dumps(config), "TENURE_RUNTIME_DIR": folder}
        log = Path(folder, "log")
        with log.open("wb") as file:
            worker = Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
        try:
            yield folder, worker
        except (RuntimeError, TimeoutError):
            sys.stderr.write(log.read_text(encoding="utf-8")[-4000:])
            raise
        finally:
            worker.terminate()
            try:
                worker.wait(5)
            except TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def settled(peer: Peer) -> None:
    """Wait until the store says that nothing is left: the last batch is acknowledged a little later."""
    import psycopg

    if not peer.left:
        time.sleep(SETTLING)
        return
    deadline = time.monotonic() + 30
    with psycopg.connect(peer.url, autocommit=True) as connection:
        while True:
            row = connection.execute(peer.left.encode()).fetchone()
            if row and not row[0]:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{row} jobs are still not finished 30 s after the last one ran")
            time.sleep(0.05)


ACTIONS: dict[str, Any] = {
    "install": installed,
    "measure": measured,
    "lap": lap,
    "churn": churn,
    "others": filled,
    "same": filled,
    "ended": filled,
    "store": stored,
    "single": single,
    "soak": soaked,
    "work": working_off,
}


def main() -> None:
    if sys.platform == "linux":  # however the bench ends, its processes end with it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    order = Order(**json.loads(os.environ["BENCH_ORDER"]))
    peers: dict[str, type[Peer]] = importlib.import_module(f"bench.{order.store}_peers").PEERS
    peer = peers[order.name](order.url, order.nats)
    answer: Coroutine[Any, Any, object] = ACTIONS[order.action](peer, order)
    if peer.uvloop:
        import uvloop

        found = uvloop.run(answer)
    else:
        found = asyncio.run(answer)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
