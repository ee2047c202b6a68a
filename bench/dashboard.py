"""The dashboard under load: pages while a worker drains, the drain while pages are viewed, and many watchers."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

import psutil

from bench.measure import cpu_seconds
from bench.report import here, judged
from bench.schedules import opened, place
from tenure.app.backends import open_notifier
from tenure.config import load
from tenure.core.clock import system_clock
from tenure.core.ids import new_id
from tenure.core.lifecycle import Completed, Failed, Lease, Outcome, State
from tenure.ports import Draft, Notifier, Ring, Store, WorkerIdentity
from tenure.ports.schedules import Schedule, Standing
from tenure.schedules.plan import Plan

BATCH = 500
DRAINED, LIGHT, LATER, PAST = "default", "light", "later", "past"  #: queues
MARKER = "feed" * 2  #: then two digits, at the end of an id
MIB = 1 << 20
YEAR = 365 * 86_400.0
DEAD = 1_000
RARE = 5
SCHEDULES = 100
LOOKS = 6  #: spans in which pages are looked at
BETWEEN_VIEWS = 0.1  #: seconds at most
SPAN = 4.0  #: seconds of one measurement of the drain
SETTLE = 1.5  #: seconds until the worker is at its speed again
WATCHERS = 200
MARKERS = 40
EVERY = 0.5  #: seconds from one marker to the next
A_BIT = 4  #: jobs enqueued with each of them, for the worker: the page shows the last ten
LAST = 5.0  #: seconds in which the last marker must be seen
PATIENCE = 60.0
ERROR = "Traceback (most recent call last):\n" + '  File "shop/tasks.py", line 42, in pay\n    card.charge()\n' * 8


@dataclass
class Bench:
    """One store with its jobs, a worker and a dashboard."""

    store: Store
    bell: Notifier  #: rung at each enqueue, as a client does
    random: Random
    scheduled: int  #: jobs
    look_at: str  #: the id of a dead job
    jobs: int  #: in the store, without those queued for the next drain
    port: int
    dashboard: int  #: its process
    rate: float = 5_000.0  #: jobs/s, of the fastest drain so far: the next drain gets enough jobs for this rate
    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])  #: milliseconds, by page

    def pages(self) -> dict[str, str]:
        """The path of each page, by its name in the table."""
        return {
            "/": "/",
            "/jobs": "/jobs",
            "/jobs?state=dead": "/jobs?state=dead",
            "/jobs?text=… (of one dead job)": "/jobs?text=card+417+",
            "/jobs?state=dead&text=…": "/jobs?state=dead&text=card+417+",
            "/jobs?task=… (a rare one)": "/jobs?task=rare",
            "/jobs/{id}": f"/jobs/{self.look_at}",
            "/queues": "/queues",
            "/workers": "/workers",
            "/schedules": "/schedules",
            "/dead": "/dead",
            "/audit": "/audit",
        }


@dataclass(frozen=True, slots=True)
class Watched:
    """The cost of many watchers, and their lag: in bytes and seconds."""

    memory: int
    jobs: list[float]  #: from a job's enqueue until it is seen to have ended
    counts: list[float]  #: until a watcher sees it counted
    spreads: list[float]  #: from the first watcher that sees a job to the last


def run(asked: Namespace) -> str:
    signal.signal(signal.SIGTERM, stop)
    random = Random(42)
    with place(asked.store) as (url, _):
        store = opened(url)
        say(f"{asked.store}: {asked.jobs:,} jobs are put into the store")
        scheduled, look_at = filled(store, url, asked.jobs)
        with worker(url, asked.slots), dashboard(url) as (port, pid):
            bell = open_notifier(load({"url": url}), store)
            bench = Bench(store, bell, random, scheduled, look_at, asked.jobs, port, pid)
            many = watched_by_many(bench)
            drain(bench, SPAN, sleep_until)
            for _ in range(LOOKS):
                rate = drain(bench, SPAN, lambda until: look(bench, until))
                say(f"pages: {sum(map(len, bench.times.values()))} views, {rate:,.0f} jobs/s meanwhile")
            without, watched = compared(bench, asked.rounds)
            there = sum(store.counts().values())
        store.close()
    views = min(map(len, bench.times.values()))
    ratios = [one / other for one, other in zip(watched, without, strict=True)]
    slowest = max(bench.times, key=lambda page: quantile(bench.times[page], 0.95))
    return "\n".join(
        [
            (
                f"{asked.jobs:,} jobs in the store at the start and {there:,} at the end: half of them completed, "
                f"{scheduled:,} scheduled, the others queued for one worker of {asked.slots} slots, whose jobs do "
                f"nothing; server, worker, `tenure dashboard` and its viewers share the cores; {here()}."
            ),
            "",
            f"First byte of a page while the worker drains at full speed, {views} views each:",
            "",
            "| page | p50 ms | p95 ms | max ms |",
            "| --- | ---: | ---: | ---: |",
            *(
                f"| `{page}` | {' | '.join(f'{each:.0f}' for each in cut(found))} |"
                for page, found in bench.times.items()
            ),
            "",
            f"The drain, by the store's own counts, in alternating spans of {SPAN:g} s:",
            "",
            f"- without viewers: {shown(without, ',.0f')} jobs/s",
            f"- one page view a second and one watcher of the overview: {shown(watched, ',.0f')} jobs/s",
            "",
            f"{WATCHERS} browsers watch the overview while {A_BIT / EVERY:.0f} jobs a second are enqueued and run:",
            "",
            f"- memory of the dashboard's process: {many.memory / MIB:.0f} MiB at most",
            f"- from a job's enqueue until a browser shows that it has ended: {stretch(many.jobs)}",
            f"- of that, from the first browser to the last: {stretch(many.spreads)}",
            f"- until a browser shows the new number of jobs, which is counted now and then: {stretch(many.counts)}",
            "",
            "Targets:",
            "",
            judged(
                f"first byte, p95 of the slowest page ({slowest}) ≤ 300 ms",
                [cut(bench.times[slowest])[1]],
                300,
                at_most=True,
            ),
            judged("drain with viewers ≥ 0.95 × without", ratios, 0.95),
            judged(f"memory with {WATCHERS} watchers ≤ 150 MiB", [many.memory / MIB], 150, at_most=True),
            judged("lag of what they see ≤ 1 s", [max(many.jobs)], 1, at_most=True),
        ]
    )


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Exit by an exception, so that all processes started here end too."""
    sys.exit("stopped")


def say(words: str) -> None:
    sys.stderr.write(words + "\n")


def shown(figures: Sequence[float], form: str) -> str:
    return f"{statistics.median(figures):{form}} ({', '.join(f'{each:{form}}' for each in figures)})"


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def cut(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th percentile and maximum."""
    return quantile(values, 0.5), quantile(values, 0.95), max(values)


def stretch(seconds: Sequence[float]) -> str:
    return "p50 {:.2f} s, p95 {:.2f} s, at most {:.2f} s".format(*cut(seconds))


# ── What is in the store ──


def filled(store: Store, url: str, jobs: int) -> tuple[int, str]:
    """Fill the store by its own verbs, as real use would. Returns the number of scheduled jobs, and a dead one's id."""
    completed, scheduled = jobs // 2, max(jobs // 10 // 100, 10) * 100
    enqueue(store, RARE, Draft(id="", task="rare", payload='{"n":1}', queue=PAST))
    enqueue(store, completed, Draft(id="", task="nothing", payload='{"n":1}', queue=PAST))
    enqueue(store, DEAD, Draft(id="", task="pay", payload='{"card":1}', queue=PAST, max_failures=1, priority=-1))
    dead = ended(store, completed + RARE)
    enqueue(store, scheduled, Draft(id="", task="nothing", payload='{"n":1}', queue=LATER, delay=YEAR))
    enqueue(store, max(jobs - completed - scheduled - DEAD, 0), queued(DRAINED))
    now = store.now()
    for number in range(SCHEDULES):
        wanted = Schedule(name=f"s{number:03}", rule="0 0 1 1 *", job=Draft(id="", task="nothing", payload='{"n":1}'))
        change = Plan(Standing(wanted), now).declare(wanted).change()
        assert change is not None
        assert all(store.change([change]))
    if url.startswith("postgresql"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")  # as autovacuum would have by now
    return scheduled, dead


def queued(queue: str) -> Draft:
    return Draft(id="", task="nothing", payload='{"n":1}', queue=queue)


def enqueue(store: Store, count: int, like: Draft) -> None:
    for first in range(0, count, BATCH):
        store.enqueue([like.but(id=new_id()) for _ in range(min(BATCH, count - first))])
        if count > 100_000 and first and first % 100_000 == 0:
            say(f"  {first:,} of {count:,} {like.task} in queue {like.queue}")


def ended(store: Store, completed: int) -> str:
    """End all jobs of the queue PAST: this many completed, the others as dead letters. Returns the id of a dead one."""
    me = WorkerIdentity(
        id=f"past-1-{new_id()[-12:]}",
        host="past",
        pid=1,
        started="1",
        boot_id=system_clock().boot_id,
        pid_namespace="",
        runner="worker",
        queues=(PAST,),
        tasks=("nothing", "pay", "rare"),
        slots=BATCH,
        lease=3600.0,
    )
    store.register(me)
    done, dead = 0, ""
    while claimed := store.claim(me.id, {PAST: BATCH}, BATCH):
        ends: list[tuple[Lease, Outcome]] = []
        for number, job in enumerate(claimed, done):
            good = job.task != "pay"
            outcome = (
                Completed() if good else Failed(f"{ERROR}ValueError: card {number - completed} is declined", final=True)
            )
            ends.append((Lease(job.id, job.attempt, me.id), outcome))
            dead = dead if good else job.id
        store.finish(ends)
        done += len(claimed)
        if done % 100_000 < BATCH:
            say(f"  {done:,} of {completed + DEAD:,} are ended")
    store.declare_dead([me.id])
    return dead


# ── Processes ──


@contextmanager
def tenure(url: str, *arguments: str) -> Generator[tuple[subprocess.Popen[str], Callable[[str], NoReturn]]]:
    """A `tenure` command, and a function that gives up on it: it raises an error with the command's output."""
    with TemporaryDirectory(prefix="bench-") as folder:
        root = str(Path(__file__).parents[1])
        env = os.environ | {"TENURE_URL": url, "TENURE_RUNTIME_DIR": folder, "PYTHONPATH": root}
        command = [str(Path(sys.executable).with_name("tenure")), *arguments]
        log = Path(folder, "log")
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)

        def give_up(why: str) -> NoReturn:
            raise RuntimeError(f"{' '.join(arguments)}: {why}; its output:\n{log.read_text(encoding='utf-8')[-3000:]}")

        try:
            yield process, give_up
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def worker(url: str, slots: int) -> Generator[None]:
    arguments = ["bench.dashboard_app", "-q", DRAINED, "-q", LIGHT, "-c", str(slots), "-w", "1"]
    with tenure(url, "worker", *arguments):
        yield


@contextmanager
def dashboard(url: str) -> Generator[tuple[int, int]]:
    """Its port and its process."""
    arguments = ["bench.dashboard_app", "--listen", "127.0.0.1:0", "--json"]
    with tenure(url, "dashboard", *arguments) as (process, give_up):
        assert process.stdout
        line = process.stdout.readline() or give_up("it ended instead of starting")
        yield urlsplit(str(json.loads(line)["url"])).port or 0, process.pid


Seen = Sequence[Sequence[tuple[int, int]]]  #: for each pattern: which number, and when


@contextmanager
def watching(bench: Bench, clients: int) -> Generator[list[Seen]]:
    """Clients watch the overview. The list is filled at the end: what each saw of marked jobs and of the count."""
    counted = f"{bench.scheduled:,}"[:-2]  # a hundred, of which the last two digits will rise
    patterns = [rf"{MARKER}(\d\d)", rf"(?<![\d,]){counted}(\d\d)(?![\d,])"]
    command = [sys.executable, "-m", "bench.dashboard_watch", str(bench.port), str(clients), *patterns]
    seen: list[Seen] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            if process.stdout.readline() != "open\n":
                raise RuntimeError("the watcher process failed; its output is above")
            yield seen
            seen += json.loads(process.communicate(timeout=PATIENCE)[0])
        finally:
            process.kill()


# ── What is measured ──


def look(bench: Bench, until: float, *, pause: float | None = None) -> None:
    """Get one page after the other. Without `pause` the pauses are random, and the time to each first byte is noted."""
    for name, path in cycle(bench.pages().items()):
        time.sleep(bench.random.uniform(0, BETWEEN_VIEWS) if pause is None else pause)
        if time.monotonic() > until:
            return
        took = first_byte(bench.port, path)
        if pause is None:
            bench.times.setdefault(name, []).append(took)


def first_byte(port: int, path: str) -> float:
    """Milliseconds until the first byte; the whole page is read."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    began = time.perf_counter()
    connection.request("GET", path)
    response = connection.getresponse()
    took = (time.perf_counter() - began) * 1000
    body = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status}: {body.decode(errors='replace')[:2000]}")
    return took


def sleep_until(until: float) -> None:
    time.sleep(max(until - time.monotonic(), 0))


def drain(bench: Bench, seconds: float, meanwhile: Callable[[float], None]) -> float:
    """Jobs a second that the worker completes in this span, at full speed, while `meanwhile` runs."""
    return drains(bench, seconds, [meanwhile])[0]


def drains(bench: Bench, seconds: float, meanwhile: Sequence[Callable[[float], None]]) -> list[float]:
    """The rates of several consecutive spans of one drain."""
    store, spans = bench.store, list[tuple[datetime, datetime]]()
    stocked(bench, seconds * len(meanwhile))
    sleep_until(time.monotonic() + SETTLE)
    for each in meanwhile:
        began = store.now()
        each(time.monotonic() + seconds)
        spans.append((began, store.now()))
    rates = [completed(store, *span) for span in spans]
    if not left(store):
        bench.rate *= 2
        say(f"  the queue ran dry at more than {min(rates):,.0f} jobs/s: once more")
        return drains(bench, seconds, meanwhile)
    bench.rate = max(bench.rate, *rates)
    return rates


def stocked(bench: Bench, seconds: float) -> None:
    """Queue enough jobs for this long, and keep the total as at the start: the oldest ended jobs are pruned.

    The queue is paused meanwhile, or the worker would run the jobs as fast as they are enqueued.
    """
    store = bench.store
    store.pause(DRAINED, paused=True)
    wanted = int(bench.rate * (seconds + SETTLE) * 1.3)
    enqueue(store, max(wanted - left(store), 0), queued(DRAINED))
    excess = sum(store.counts().values()) - wanted - bench.jobs
    while excess > 0 and (pruned := store.prune(keep=0, keep_dead=None, limit=10 * BATCH)):
        excess -= pruned
    store.pause(DRAINED, paused=False)
    bench.bell.announce([Ring("queued", DRAINED)])


def left(store: Store) -> int:
    return sum(each.counts.get(State.QUEUED, 0) for each in store.queues() if each.name == DRAINED)


def completed(store: Store, since: datetime, until: datetime) -> float:
    counts = store.ended(since, until, most=100_000_000, sample=0).counts
    return counts[State.COMPLETED] / (until - since).total_seconds()


def compared(bench: Bench, rounds: int) -> tuple[list[float], list[float]]:
    """The drain without and with viewers; the order alternates from round to round."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for watched in (False, True) if number % 2 == 0 else (True, False):
            before, began = cpu_seconds(bench.dashboard), time.monotonic()
            if watched:
                with watching(bench, 1):
                    rate = drain(bench, SPAN, lambda until: look(bench, until, pause=1.0))
            else:
                rate = drain(bench, SPAN, sleep_until)
            busy = (cpu_seconds(bench.dashboard) - before) / (time.monotonic() - began)
            rates[watched].append(rate)
            say(
                f"round {number + 1}, {'with viewers' if watched else 'without viewers'}: {rate:,.0f} jobs/s, "
                f"the dashboard takes {busy:.1%} of a core"
            )
    return rates


def watched_by_many(bench: Bench) -> Watched:
    """A few jobs are enqueued and run now and then: how long does it take until all watchers see them?"""
    store, process, memory = bench.store, psutil.Process(bench.dashboard), list[int]()
    sent = dict[int, int]()
    store.pause(DRAINED, paused=True)
    with watching(bench, WATCHERS) as clients:
        say(f"{WATCHERS} watch: the dashboard has {process.memory_info().rss / MIB:.0f} MiB")
        busy, began = cpu_seconds(bench.dashboard), time.monotonic()
        for number in range(1, MARKERS + 1):
            sleep_until(began + number * EVERY)
            enqueue(store, A_BIT, queued(LIGHT))
            sent[number] = time.monotonic_ns()
            marked = new_id()[: -len(MARKER) - 2] + f"{MARKER}{number:02}"
            store.enqueue([queued(LIGHT).but(id=marked), queued(LATER).but(id=new_id(), delay=YEAR)])
            bench.bell.announce([Ring("queued", LIGHT)])
            memory.append(process.memory_info().rss)
        busy = (cpu_seconds(bench.dashboard) - busy) / (time.monotonic() - began)
        sleep_until(time.monotonic() + LAST)
    store.pause(DRAINED, paused=False)
    bench.bell.announce([Ring("queued", DRAINED)])
    jobs, counts = ([arrived(sent, seen[pattern]) for seen in clients] for pattern in (0, 1))
    found = Watched(
        max(memory),
        [late for client in jobs for late in client],
        [late for client in counts for late in client],
        [max(each) - min(each) for each in zip(*jobs, strict=True)],
    )
    say(f"  then {found.memory / MIB:.0f} MiB, {busy:.0%} of a core; lag: {stretch(found.jobs)}")
    return found


def arrived(sent: Mapping[int, int], seen: Sequence[tuple[int, int]]) -> list[float]:
    """Seconds from when each number was sent until it, or a later one, was seen; endless if it never was.

    Example: `arrived({1: 0, 2: 5 * 10**8}, [(2, 10**9)])` is `[1.0, 0.5]`.
    """
    found = list[float]()
    for number, at in sent.items():
        first = min((when for shown, when in seen if shown >= number and when >= at), default=None)
        found.append(math.inf if first is None else (first - at) / 1e9)
    return found
