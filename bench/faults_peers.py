"""The contestants of `bench.faults`, each recovering as its own documentation says.

A process of a contestant carries out FAULTS_ORDER: `install`, `fill` (a backlog), `feed` (enqueue at a rate until it is
killed) or `work`. (The order is in the environment because its URL has a password, and every user can read a command
line.)
"""

# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false
from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench import postgres_peers
from bench.faults_job import LEDGER, effect

PR_SET_PDEATHSIG = 1
BATCH = 5_000
FEED_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    action: Literal["install", "fill", "feed", "work"]
    name: str
    url: str
    ledger: str
    slots: int  #: of one worker
    workers: int
    jobs: int = 0  #: to fill in
    rate: float = 0.0  #: jobs a second to feed

    def command(self) -> tuple[list[str], dict[str, str]]:
        """How to carry it out, and in which environment."""
        environment = os.environ | {"FAULTS_ORDER": json.dumps(asdict(self)), LEDGER: self.ledger}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # else a peer without installed bytecode would be compiled at every start
        return [sys.executable, "-m", "bench.faults_peers"], environment


class Tenure(postgres_peers.TenurePeer):
    """As `tenure worker -w WORKERS -c SLOTS` runs it, with the default lease; the process becomes the supervisor."""

    processes = 1  #: to start, for all of its workers

    async def open(self) -> None:
        from bench import faults_app

        self.app = faults_app
        self.opened = AsyncExitStack()
        await self.opened.enter_async_context(faults_app.jobs)

    async def some(self, numbers: range) -> object:
        return await self.app.jobs.aenqueue_many(self.app.nothing.bind(n) for n in numbers)

    async def join(self, order: Order) -> None:
        asked = {"app": "bench.faults_app", "workers": order.workers, "concurrency": order.slots}
        os.execv(sys.executable, [sys.executable, "-m", "tenure.cli.supervise", json.dumps(asked)])


class Procrastinate(postgres_peers.Procrastinate):
    """ "Retry stalled jobs" of its documentation: a periodic task that the app defines, every ten minutes."""

    processes = 4

    async def open(self) -> None:
        from procrastinate import App, PsycopgConnector

        connector = PsycopgConnector(conninfo=self.url, min_size=5, max_size=postgres_peers.CONNECTIONS)
        app = self.app = App(connector=connector)

        @app.task(name="nothing")
        async def nothing(n: int) -> None:
            await effect(n)

        @app.periodic(cron="*/10 * * * *")
        @app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
        async def retry_stalled_jobs(context: Any, timestamp: int) -> None:
            for job in await app.job_manager.get_stalled_jobs():
                await app.job_manager.retry_job(job)

        self.nothing = nothing
        await app.open_async()

    async def some(self, numbers: range) -> object:
        return await self.nothing.batch_defer_async(*[{"n": n} for n in numbers])

    async def join(self, order: Order) -> None:
        await self.open()
        await self.app.run_worker_async(concurrency=order.slots)


class Pgqueuer(postgres_peers.Pgqueuer):
    """`pgq run FACTORY --shutdown-on-listener-failure`, as under "Process Supervision" of its documentation.

    The slots are its `--max-concurrent-tasks`; its batch may be half of that at most. A job whose heartbeat is 30 s old
    may be picked again by any worker, which is its default.
    """

    processes = 4

    async def some(self, numbers: range) -> object:
        payloads: list[bytes | None] = [b"%d" % n for n in numbers]
        return await self.queries.enqueue(["nothing"] * len(numbers), payloads, [0] * len(numbers))

    async def join(self, order: Order) -> None:
        from pgqueuer.adapters.cli.supervisor import run

        await run(
            self._made,
            batch_size=order.slots // 2,
            max_concurrent_tasks=order.slots,
            shutdown_on_listener_failure=True,
        )

    @asynccontextmanager
    async def _made(self) -> AsyncGenerator[Any]:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.models import Job

        pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @pgq.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            await effect(int(job.payload or b""))

        yield pgq


Contestant = Tenure | Procrastinate | Pgqueuer
PEERS: dict[str, type[Contestant]] = {"tenure": Tenure, "procrastinate": Procrastinate, "pgqueuer": Pgqueuer}


async def carry_out(peer: Contestant, order: Order) -> None:
    match order.action:
        case "install":
            await peer.install()
        case "work":
            await peer.join(order)
        case "fill":
            await peer.open()
            for first in range(0, order.jobs, BATCH):
                await peer.some(range(first, min(first + BATCH, order.jobs)))
            await peer.close()
        case "feed":
            await peer.open()
            await feed(peer, order.rate)


async def feed(peer: Contestant, rate: float) -> None:
    began, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - began) * rate)
        if due > sent:
            await peer.some(range(sent, due))
            sent = due
        await asyncio.sleep(FEED_SECONDS)


def main() -> None:
    if sys.platform == "linux":  # however the bench ends, its processes end with it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    order = Order(**json.loads(os.environ["FAULTS_ORDER"]))
    peer = PEERS[order.name](order.url)
    if peer.uvloop:
        import uvloop

        uvloop.run(carry_out(peer, order))
    else:
        asyncio.run(carry_out(peer, order))


if __name__ == "__main__":
    main()
