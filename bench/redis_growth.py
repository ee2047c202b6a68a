"""The cost of a million delayed jobs: to enqueue one more, and to other clients when ten thousand are due at once."""

from __future__ import annotations

import math
import socket
import statistics
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from tests.servers import Valkey

from bench.report import here, in_rounds
from tenure.core.ids import new_id
from tenure.ports import Draft
from tenure.stores.redis import RedisStore

TITLE = "Redis as it grows"
DUE = 10_000
WEEK = 604_800.0
DELAY = 2.0
FIRST = 10_000
BATCH = 400
SLOW = 500  #: microseconds from which a script is logged; logging every command would take longest of all


def run(asked: Namespace) -> str:
    levels = [FIRST * 10**n for n in range(9) if FIRST * 10**n <= asked.others]
    costs: dict[int, list[float]] = {level: [] for level in levels}
    blocked: list[float] = []
    scripts: list[float] = []
    quiet: list[float] = []
    for number in range(asked.rounds):
        with Valkey({"appendonly": "no", "slowlog-log-slower-than": SLOW}) as server:
            store = RedisStore(server.url)
            store.open()
            random, stored = Random(number), 0
            for level in levels:
                while stored < level:
                    stored += delayed(store, random, min(10_000, level - stored))
                costs[level].append(cost(store, server, random))
                stored += DUE
                sys.stderr.write(f"round {number + 1}: {level:,} delayed: {costs[level][-1]:.1f} us\n")
            quiet.append(max(probed(server, 0.5)))
            found, longest = promoted(store, server)
            blocked.append(max(found))
            scripts.append(longest)
            sys.stderr.write(f"round {number + 1}: probe at most {blocked[-1]:.1f} ms, script {longest:.1f} ms\n")
            store.close()
    middle = {level: statistics.median(found) for level, found in costs.items()}
    growth, allowed = middle[levels[-1]] / middle[FIRST], math.log(levels[-1]) / math.log(FIRST)
    return "\n".join(
        [
            (
                f"Jobs delayed by up to a week, 200 a script; Valkey on this machine without an append-only file; "
                f"{in_rounds(asked.rounds, '')}, {here()}."
            ),
            "",
            "| jobs delayed already | server CPU of one more, µs |",
            "| ---: | ---: |",
            *(f"| {level:,} | {middle[level]:.1f} ({shown(costs[level])}) |" for level in levels),
            "",
            f"Then {DUE:,} are due at once, and a client that does nothing but PING waits:",
            "",
            f"- at rest at most {statistics.median(quiet):.1f} ms ({shown(quiet)})",
            f"- while they are promoted at most {statistics.median(blocked):.1f} ms ({shown(blocked)})",
            f"- the server's slow log: the longest script took {statistics.median(scripts):.1f} ms ({shown(scripts)})",
            "",
            "Targets:",
            "",
            verdict(f"one more costs no more than log N allows, {allowed:.2f} ×", growth, allowed),
            verdict("promoting delays no client by 10 ms", statistics.median(blocked), 10),
        ]
    )


def verdict(target: str, figure: float, most: float) -> str:
    return f"- {target}: {figure:.2f}, {'met' if figure <= most else '**short**'}"


def shown(figures: Sequence[float]) -> str:
    return ", ".join(f"{figure:.1f}" for figure in figures)


def delayed(store: RedisStore, random: Random, count: int) -> int:
    store.enqueue([draft(60 + random.random() * WEEK) for _ in range(count)])
    return count


def draft(delay: float) -> Draft:
    return Draft(id=new_id(), task="work", payload='{"n": 1}', delay=delay)


def cost(store: RedisStore, server: Valkey, random: Random) -> float:
    """Microseconds of the server's CPU for one more job: the median of many batches."""
    found: list[float] = []
    for _ in range(DUE // BATCH):
        before = cpu(server)
        delayed(store, random, BATCH)
        found.append((cpu(server) - before) / BATCH)
    return statistics.median(found)


def cpu(server: Valkey) -> float:
    """Microseconds that the server's main thread has run."""
    return int(Path(f"/proc/{server.pid}/schedstat").read_text(encoding="utf-8").split()[0]) / 1000


def promoted(store: RedisStore, server: Valkey) -> tuple[list[float], float]:
    """How long a client waited while all that was due was promoted, and the longest script, in milliseconds."""
    store.enqueue([draft(DELAY) for _ in range(DUE)])
    time.sleep(DELAY)
    while (store.promote(limit=0).next_due or 0.0) > 0:
        time.sleep(0.01)
    server.execute("SLOWLOG", "RESET")
    with probing(server) as waited:
        moved = 0
        while moved < DUE:
            moved += sum(map(len, store.promote(limit=1000).jobs.values()))
    slow = server.execute("SLOWLOG", "GET", -1)
    return waited, max((each[2] / 1000 for each in slow if each[3][0] in (b"EVALSHA", "EVALSHA")), default=SLOW / 1000)


def probed(server: Valkey, seconds: float) -> list[float]:
    with probing(server) as waited:
        time.sleep(seconds)
    return waited


@contextmanager
def probing(server: Valkey) -> Generator[list[float]]:
    """How long another process waits for each PING, in milliseconds; the list is filled when the block ends."""
    ours, theirs = Pipe()
    probe = get_context("spawn").Process(target=ping, args=(server.url, theirs), daemon=True)
    probe.start()
    ours.recv()
    waited: list[float] = []
    yield waited
    ours.send("stop")
    waited += ours.recv()
    probe.join()


def ping(url: str, line: Connection) -> None:
    place = urlsplit(url)
    waited: list[float] = []
    stopped = threading.Event()
    with socket.create_connection((place.hostname or "", place.port or 0)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(f"AUTH {place.password}\r\n".encode())
        link.recv(100)
        line.send("ready")
        threading.Thread(target=lambda: (line.recv(), stopped.set()), daemon=True).start()
        while not stopped.is_set():
            at = time.perf_counter()
            link.sendall(b"PING\r\n")
            link.recv(100)
            waited.append((time.perf_counter() - at) * 1000)
            time.sleep(0.0005)
    line.send(waited)
