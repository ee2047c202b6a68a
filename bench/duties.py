"""How late is each duty of the maintenance while jobs fall due without pause?

    python -m bench.duties sqlite postgres redis --rate 150 --latency 0.003 --seconds 15
    python -m bench.duties sqlite postgres redis --at-once 300000

For each store: a thread stores `--rate` jobs a second that fall due one to two seconds later, and the maintenance runs
as in a supervisor. With `--at-once N`, N jobs are due before it begins, and it runs until all are promoted. The figure
printed for a duty is its longest wait between two turns. `--latency` delays each direction of the connection to a
server; SQLite has none.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import random
from typing import Any, cast
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from proxy import Proxy
from servers import shared_postgres, shared_valkey
from tenure.app.backends import connect, open_store
from tenure.config import Settings, load
from tenure.core.ids import new_id
from tenure.core.lifecycle import State
from tenure.events import Events
from tenure.maintenance import maintenance as module
from tenure.maintenance.maintenance import Maintenance
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Draft, Store

STORES = ("sqlite", "postgres", "redis")
VERBS = {"promote": "promotion", "rescue": "rescue", "due": "ticks", "prune": "pruning"}
PRUNE_SECONDS = 2.0  #: instead of 60, so that a short run has several prunings
LEASE = 6.0  #: a scan a second
EVERY = 0.05
BATCH = 5000


class Noted:
    """A store that notes when each duty has called it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.ends: dict[str, list[float]] = {verb: [time.monotonic()] for verb in VERBS}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in VERBS:
            return found

        def noted(*args: Any, **options: Any) -> Any:
            answer = found(*args, **options)
            self.ends[name].append(time.monotonic())
            return answer

        return noted

    def longest_waits(self) -> dict[str, float]:
        now = time.monotonic()
        times = {verb: [*ends, now] for verb, ends in self.ends.items()}
        return {verb: max(after - before for before, after in pairwise(each)) for verb, each in times.items()}


@contextmanager
def place(kind: str, latency: float) -> Generator[tuple[Settings, Settings]]:
    """The settings of the maintenance, whose connection is slow, and those of the producer."""
    with ExitStack() as stack:
        if kind == "sqlite":
            near = far = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/tenure.db"
        else:
            near = shared_postgres().create_database() if kind == "postgres" else shared_valkey().url
            host, port = urlsplit(near).hostname or "127.0.0.1", urlsplit(near).port or 0
            proxy = stack.enter_context(Proxy(host, port))
            proxy.latency(latency)
            far = near.replace(f"{host}:{port}", f"127.0.0.1:{proxy.port}")
        settings = replace(load({"lease": f"{LEASE:g}s"}, environ={}), url=near)
        open_store(settings).migrate()
        yield replace(settings, url=far), settings


def trickle(store: Store, rate: int, until: float) -> None:
    begun, sent = time.monotonic(), 0
    while (now := time.monotonic()) < until:
        due = int((now - begun) * rate) - sent
        drafts = [Draft(id=new_id(), task="t", payload="{}", delay=1.0 + random()) for _ in range(due)]
        sent += len(store.enqueue(drafts))
        time.sleep(EVERY)


def avalanche(store: Store, count: int) -> None:
    due = store.now() + timedelta(seconds=5.0)
    for first in range(0, count, BATCH):
        many = range(min(BATCH, count - first))
        store.enqueue([Draft(id=new_id(), task="t", payload="{}", run_at=due) for _ in many])
    time.sleep(max(0.0, (due - store.now()).total_seconds()))


def gone(store: Store, noted: Noted) -> float:
    """Wait until no job is scheduled. Returns for how long the promotion worked."""
    begun = time.monotonic()
    while store.counts().get(State.SCHEDULED):
        time.sleep(0.2)
    return noted.ends["promote"][-1] - begun


def run(kind: str, asked: Namespace) -> tuple[dict[str, float], float]:
    """The longest wait of each duty, and the jobs promoted per second."""
    module.PRUNE_SECONDS = PRUNE_SECONDS
    with place(kind, asked.latency if kind != "sqlite" else 0.0) as (far, near):
        producer = connect(near)
        if asked.at_once:
            avalanche(producer, asked.at_once)
        store = Noted(connect(far))
        maintenance = Maintenance(cast("Store", store), PollNotifier(), Events(), far, mine=lambda: frozenset[str]())
        until = time.monotonic() + asked.seconds
        thread = threading.Thread(target=trickle, args=(producer, asked.rate, until))
        if not asked.at_once:
            thread.start()
        maintenance.start(failed=lambda error: sys.stderr.write(f"{error!r}\n"))
        took = gone(producer, store) if asked.at_once else asked.seconds
        if not asked.at_once:
            thread.join()
        waits = store.longest_waits()
        maintenance.stop()
        maintenance.join()
        producer.close()
        return waits, (asked.at_once or asked.rate * asked.seconds) / took


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("stores", nargs="*", help="sqlite, postgres, redis; all if none is named")
    parser.add_argument("--rate", type=int, default=150)
    parser.add_argument("--latency", type=float, default=0.003)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--at-once", type=int, default=0, metavar="JOBS")
    asked = parser.parse_args()
    sys.stdout.write(f"| longest wait, seconds | {' | '.join(VERBS.values())} | promoted a second |\n")
    for kind in asked.stores or STORES:
        waits, speed = run(kind, asked)
        sys.stdout.write(f"| {kind} | {' | '.join(f'{waits[verb]:.2f}' for verb in VERBS)} | {speed:,.0f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
