"""A search for one argument among many jobs: how long it takes, and what it costs a concurrent drain.

python -m bench.search --store postgres --jobs 1000000
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import quote

from bench.dashboard import (
    BATCH,
    LATER,
    SPAN,
    YEAR,
    Bench,
    cut,
    dashboard,
    drain,
    drains,
    enqueue,
    first_byte,
    queued,
    say,
    shown,
    sleep_until,
    stop,
    worker,
)
from bench.report import here, judged
from bench.schedules import opened, place
from tenure.app.backends import open_notifier
from tenure.config import load
from tenure.core.ids import new_id
from tenure.operations.admin import Admin
from tenure.operations.job_search import parsed
from tenure.ports import Draft, Store

PAUSE = 1.0  #: seconds from one look to the next, while a drain is measured
CITIES = ("Berlin", "Lagos", "Lima", "Oslo", "Osaka", "Quito")


@dataclass(frozen=True, slots=True)
class Search:
    """From the first look until the job was found."""

    seconds: float
    looks: tuple[float, ...]  #: milliseconds
    looked: int  #: jobs, in the looks that did not find it


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "redis"), default="sqlite")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--searches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    sys.stdout.write(run(asked.store, asked.jobs, asked.searches, asked.rounds) + "\n")


def run(name: str, jobs: int, searches: int, rounds: int) -> str:
    random = Random(42)
    with place(name) as (url, _):
        store = opened(url)
        say(f"{name}: {jobs:,} jobs are put into the store")
        filled(store, jobs)
        admin = Admin(store, open_notifier(load({"url": url}), store), load({"url": url}), who="bench")
        with worker(url, BATCH), dashboard(url) as (port, pid):
            found = [searched(admin, random.randrange(jobs)) for _ in range(searches)]
            say("searched; now the pages, and the drain with searches")
            pages = [first_byte(port, page(random, jobs)) for _ in range(searches + 1)][1:]  # the first one is cold
            bench = Bench(store, open_notifier(load({"url": url}), store), random, 0, "", jobs, port, pid)
            drain(bench, SPAN, sleep_until)
            rates: tuple[list[float], list[float]] = ([], [])
            search = looking(port, random, jobs)
            for number in range(rounds):
                # In this order, whatever changes in the course of a drain affects both alike.
                spans = drains(bench, SPAN / 2, [sleep_until, search, search, sleep_until])
                rates[False].append((spans[0] + spans[3]) / 2)
                rates[True].append((spans[1] + spans[2]) / 2)
                say(f"round {number + 1}: without, with, with, without searches: {shown(spans, ',.0f')} jobs/s")
        store.close()
    looks = [each for search in found for each in search.looks]
    whole = [search.seconds * 1000 for search in found]
    speed = sum(search.looked for search in found) / sum(search.seconds for search in found)
    ratios = [one / other for one, other in zip(rates[True], rates[False], strict=True)]
    return "\n".join(
        [
            f"{name}: {jobs:,} jobs, one for each `args.user` = N; {searches} searches for a random one; {here()}.",
            "",
            "| | p50 ms | p95 ms | max ms |",
            "| --- | ---: | ---: | ---: |",
            *(
                f"| {what} | {' | '.join(f'{each:,.0f}' for each in cut(times))} |"
                for what, times in (
                    ("one look", looks),
                    ("until it is found, one look after another", whole),
                    ("first byte of `/jobs?q=args.user=N`", pages),
                )
            ),
            "",
            (
                f"A search passes {speed:,.0f} jobs a second. The drain: {shown(rates[False], ',.0f')} jobs/s without "
                f"searches, {shown(rates[True], ',.0f')} with one look a second."
            ),
            "",
            judged("first byte, p95 ≤ 300 ms", [cut(pages)[1]], 300, at_most=True),
            judged("drain with searches ≥ 0.9 × without", ratios, 0.9),
        ]
    )


def filled(store: Store, jobs: int) -> None:
    """Jobs that no worker takes, each with a number of its own. They are of different batches, so not in order."""
    for first in range(0, jobs, BATCH):
        store.enqueue([draft(number) for number in range(first, min(first + BATCH, jobs))])
        if first and first % 100_000 == 0:
            say(f"  {first:,}")
    enqueue(store, BATCH, queued("default"))


def draft(number: int) -> Draft:
    arguments = {"user": number, "order": f"A-{number * 7919 % 1_000_003:07}", "city": CITIES[number % len(CITIES)]}
    payload = json.dumps({**arguments, "note": "leave it at the door " * 3}, separators=(",", ":"))
    return Draft(id=new_id(), task="ship", payload=payload, queue=LATER, delay=YEAR)


def searched(admin: Admin, user: int) -> Search:
    began, looks, looked, cursor = time.perf_counter(), list[float](), 0, None
    where = parsed(f"args.user={user}", admin.now())
    while True:
        at = time.perf_counter()
        found = admin.jobs.search(where, limit=1, cursor=cursor)
        looks.append((time.perf_counter() - at) * 1000)
        looked, cursor = looked + found.looked, found.cursor
        if found.jobs:
            return Search(time.perf_counter() - began, tuple(looks), looked)
        if cursor is None:
            raise RuntimeError(f"the job of user {user} is not found")


def page(random: Random, jobs: int) -> str:
    return f"/jobs?q={quote(f'args.user={random.randrange(jobs)}')}"


def looking(port: int, random: Random, jobs: int) -> Callable[[float], None]:
    """Searches, one look each, one a second."""

    def meanwhile(until: float) -> None:
        while time.monotonic() < until:
            first_byte(port, page(random, jobs))
            time.sleep(min(PAUSE, max(until - time.monotonic(), 0)))

    return meanwhile


if __name__ == "__main__":
    main()
