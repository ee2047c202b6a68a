"""What does waiting for many jobs cost the process that waits, and how soon does a waiter learn of a job's end?

    python -m bench.waiters sqlite postgres redis --waiters 800 --seconds 10

For each store: `--waiters` jobs that no worker runs are awaited, by `aresult()` on one event loop (with `--threads` by
`result()` in as many threads), and the process's processor time is measured once all of them wait. Then single jobs
are awaited, each ended some milliseconds later by another thread; the figure is the time from its end to the result.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from conformance.factories import identity
from servers import shared_postgres, shared_valkey
from tenure import JobHandle, Tenure
from tenure.app.backends import open_store
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Lease
from tenure.errors import JobFailed
from tenure.ports import Store

STORES = ("sqlite", "postgres", "redis")
SETTLED = 3.0  #: seconds after which every waiter looks at the slowest pace
ENDS_AFTER = (0.003, 0.01, 0.03, 0.1, 0.3, 0.7)  #: seconds
WORKER = "bench-1-abc"


@contextmanager
def opened(kind: str) -> Generator[Tenure]:
    with tempfile.TemporaryDirectory() as folder:
        if kind == "sqlite":
            url = f"sqlite:///{folder}/tenure.db"
        else:
            url = shared_postgres().create_database() if kind == "postgres" else shared_valkey().url
        jobs = Tenure(url, namespace=f"waiters_{time.time_ns()}")
        open_store(jobs.settings).migrate()
        with jobs:
            yield jobs


def waiting(jobs: Tenure, asked: Namespace) -> float:
    """The share of one core that the waiters cost."""

    @jobs.task
    def never() -> None: ...

    handles = jobs.enqueue_many(never.bind() for _ in range(asked.waiters))
    spent = timedelta(seconds=SETTLED + asked.seconds + 60.0)

    def measured() -> float:
        time.sleep(SETTLED)
        wall, cpu = time.perf_counter(), time.process_time()
        time.sleep(asked.seconds)
        return (time.process_time() - cpu) / (time.perf_counter() - wall)

    def wait(handle: JobHandle[None]) -> None:
        with suppress(JobFailed):
            handle.result(spent)

    async def wait_for_all() -> float:
        tasks = [asyncio.create_task(handle.aresult(spent)) for handle in handles]
        share = await asyncio.to_thread(measured)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return share

    if not asked.threads:
        return asyncio.run(wait_for_all())
    threads = [threading.Thread(target=wait, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    share = measured()
    assert all(thread.is_alive() for thread in threads)
    for handle in handles:
        handle.cancel()
    for thread in threads:
        thread.join()
    return share


def latencies(jobs: Tenure, rounds: int) -> list[float]:
    """Milliseconds from the end of a job to its result, for one waiter."""
    store, found = jobs.client().store, list[float]()
    store.register(identity(id=WORKER, lease=3600.0, queues=("one",), boot_id=system_clock().boot_id))

    @jobs.task(queue="one")
    def one() -> int: ...

    for after in ENDS_AFTER * rounds:
        handle, ended = one.enqueue(), list[float]()
        thread = threading.Thread(target=end, args=(store, after, ended))
        thread.start()
        handle.result("30s")
        heard = time.perf_counter()
        thread.join()
        found.append((heard - ended[0]) * 1000)
    return found


def end(store: Store, after: float, ended: list[float]) -> None:
    (claimed,) = store.claim(WORKER, {"one": 1}, 1)
    time.sleep(after)
    store.finish([(Lease(claimed.id, claimed.attempt, WORKER), Completed("1"))])
    ended.append(time.perf_counter())


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.waiters", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("stores", nargs="*", default=STORES, metavar="STORE", help=", ".join(STORES))
    parser.add_argument("--waiters", type=int, default=800)
    parser.add_argument("--threads", action="store_true", help="result() in threads instead of aresult() on a loop")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    for kind in asked.stores:
        with opened(kind) as jobs:
            share = waiting(jobs, asked)
            late = latencies(jobs, asked.rounds)
        sys.stdout.write(
            f"{kind:9} {asked.waiters} waiters: {share:6.1%} of a core; one waiter learns of the end after "
            f"{median(late):.1f} ms (median; 90 %: {quantiles(late, n=10)[-1]:.1f} ms)\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
