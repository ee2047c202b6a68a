"""What does a job with many watchers cost the process that serves them?

    python -m bench.watchers sqlite postgres redis --watchers 1000 --seconds 10

For each store: one running job is watched by `--watchers`, first by `async for … in handle.updates()`, then over the
API's events of a job, whose responses are read inside this process, without a socket. Measured once all of them watch,
while the job reports progress `--reports` times a second: the processor time of the process, including its calls of
the store, and how often the store was asked for updates.
"""

from __future__ import annotations

import asyncio
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable
from itertools import count

from bench.waiters import STORES, opened
from conformance.factories import identity
from tenure import Tenure
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Lease
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Progress, Store
from tenure.web import live
from tenure.web.job_events import JobFeeds, JobStream
from tenure.web.live import Places
from tenure.web.site import Site

WORKER = "bench-1-abc"
Watch = Callable[[Tenure, str, Callable[[], None]], Awaitable[None]]


async def by_handle(jobs: Tenure, job_id: str, told: Callable[[], None]) -> None:
    async for _ in jobs.handle(job_id).updates():
        told()


def by_events(jobs: Tenure) -> Watch:
    store = jobs.client().store
    feeds = JobFeeds(Site(lambda: Admin(store, PollNotifier(), jobs.settings), jobs.settings), Places())

    async def watch(jobs: Tenure, job_id: str, told: Callable[[], None]) -> None:
        async def send(message: object) -> None:
            if b"data: " in getattr(message, "get", lambda *_: b"")("body", b""):
                told()

        await JobStream(feeds, job_id, True, "")({"type": "http"}, asyncio.Event().wait, send)

    return watch


def running(jobs: Tenure, number: int) -> Lease:
    """A job that runs, as far as the store knows."""

    @jobs.task(name=f"watched_{number}", queue="one")
    def watched() -> None: ...

    store = jobs.client().store
    store.register(identity(id=f"{WORKER}{number}", lease=3600.0, queues=("one",), boot_id=system_clock().boot_id))
    watched.enqueue()
    (claimed,) = store.claim(f"{WORKER}{number}", {"one": 1}, 1)
    return Lease(claimed.id, claimed.attempt, f"{WORKER}{number}")


async def measured(jobs: Tenure, watch: Watch, lease: Lease, asked: Namespace) -> tuple[float, float, float]:
    """Share of a core, reads a second, events a second."""
    store, reads, events = jobs.client().store, list[None](), list[None]()
    look = store.updates

    def updates(*args: object, **options: object) -> object:
        reads.append(None)
        return look(*args, **options)  # type: ignore[arg-type]

    store.updates = updates  # type: ignore[assignment,method-assign]
    tasks = [asyncio.create_task(watch(jobs, lease.job_id, lambda: events.append(None))) for _ in range(asked.watchers)]
    while len(events) < asked.watchers:
        await asyncio.sleep(0.05)
    reads.clear()
    events.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.to_thread(report, store, lease, asked)
    took, spent = time.perf_counter() - wall, time.process_time() - cpu
    shares = spent / took, len(reads) / took, len(events) / took
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    store.updates = look  # type: ignore[method-assign]
    return shares


def report(store: Store, lease: Lease, asked: Namespace) -> None:
    until = time.perf_counter() + asked.seconds
    for n in count(1):
        if asked.reports:
            store.progress([Progress(lease=lease, message=f"row {n}")])
        time.sleep(max(0.0, min(1 / asked.reports if asked.reports else asked.seconds, until - time.perf_counter())))
        if time.perf_counter() >= until:
            return


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.watchers", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("stores", nargs="*", default=STORES, metavar="STORE", help=", ".join(STORES))
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--reports", type=float, default=0.0, help="reports of progress a second (default: none)")
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    live.MOST_WATCHERS = asked.watchers
    for kind in asked.stores:
        with opened(kind) as jobs:
            for number, (name, watch) in enumerate({"updates()": by_handle, "events": by_events(jobs)}.items()):
                share, reads, told = asyncio.run(measured(jobs, watch, running(jobs, number), asked))
                sys.stdout.write(
                    f"{kind:9} {asked.watchers} watchers by {name:9}: {share:6.1%} of a core, {reads:.1f} reads/s, "
                    f"{told:.0f} events/s\n"
                )
                sys.stdout.flush()


if __name__ == "__main__":
    main()
