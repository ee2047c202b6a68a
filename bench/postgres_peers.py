"""The contestants on PostgreSQL. Each has the settings its own documentation recommends for speed, and keeps the
durability it has by default.

A `Peer` is made in two processes: one enqueues (`open`, `many`, `one`, `stamp`), the other one is the worker (`work`,
which never returns). Only Tenure, awa, Oban (by time) and the bare loop refuse what a former owner finishes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from bench.measure import worker

QUEUE = "default"
CONNECTIONS = 20  # of the enqueuing process; workers of peers with a pool get as many


@dataclass
class Peer:
    """One contestant."""

    url: str
    nats: str = ""

    supervised = False  #: one process that the bench starts runs all its workers
    left = ""  #: SQL that counts the unfinished jobs, if there is a cheap way
    uvloop = False  #: its documentation or its own command line uses it
    together = True  #: its enqueue can be called concurrently
    starts = True  #: its worker is notified of new jobs
    enqueues = True  #: its enqueue figures are comparable
    keeps_ended = True  #: in the database
    python = (3, 11)

    def __post_init__(self) -> None:
        self.ready()

    def ready(self) -> None:
        """Set up what the peer needs before anything else."""

    async def install(self) -> None: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def many(self, count: int) -> object:
        """Its best call to enqueue many."""
        raise NotImplementedError

    async def one(self, n: int) -> object:
        raise NotImplementedError

    async def stamp(self, sent: int) -> object:
        raise NotImplementedError

    async def work(self, slots: int) -> None:
        raise NotImplementedError

    async def fill(self, what: str, count: int) -> None:
        """Fill the tables by the SQL of `rows`; a peer that SQL cannot fill overrides this."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(self.rows(what, count).encode())

    def rows(self, what: str, count: int) -> str:
        """SQL for jobs in addition to those of `many`: `others` queued in another queue, others in the `same` queue
        and behind them, or `ended` ones."""
        raise NotImplementedError


class TenurePeer(Peer):
    """As `tenure worker -c SLOTS` runs it."""

    supervised = True
    left = "SELECT count(*) FROM tenure.jobs WHERE state IN ('scheduled', 'queued', 'processing')"

    def ready(self) -> None:
        os.environ |= {"TENURE_URL": self.url, "TENURE_NAMESPACE": "tenure", "TENURE_NOTIFIER": self.nats or "auto"}

    async def install(self) -> None:
        from tenure.app.backends import open_store
        from tenure.config import load

        open_store(load({})).migrate()

    async def open(self) -> None:
        from bench import tenure_app

        self.app = tenure_app
        self.opened = AsyncExitStack()
        await self.opened.enter_async_context(tenure_app.jobs)

    async def close(self) -> None:
        await self.opened.aclose()

    async def many(self, count: int) -> object:
        return await self.app.jobs.aenqueue_many(self.app.nothing.bind(n) for n in range(count))

    async def one(self, n: int) -> object:
        return await self.app.nothing.aenqueue(n)

    async def stamp(self, sent: int) -> object:
        return await self.app.stamp.aenqueue(sent)

    async def work(self, slots: int) -> None:
        workers = json.loads(os.environ["BENCH_WORKER"]).get("workers", 1)
        order = {"app": "bench.tenure_app", "concurrency": slots, "workers": workers, "grace": "1s"}
        os.execv(sys.executable, [sys.executable, "-m", "tenure.cli.supervise", json.dumps(order)])

    def rows(self, what: str, count: int) -> str:
        return _TENURE_ROWS.format(
            count=count,
            queue="other" if what == "others" else QUEUE,
            priority=-1 if what == "same" else 0,
            state="completed" if what == "ended" else "queued",
            ended="now()" if what == "ended" else "NULL",
        )


_TENURE_ROWS = """
INSERT INTO tenure.jobs (id, attempt, max_failures, max_crashes, retry_base, retry_cap, enqueued_at, run_at, priority,
  solo, isolated, state, queue, task, meta, payload, ended_at)
SELECT uuidv7(), 0, 10, 3, 1, 30, now(), now(), {priority}, false, false, '{state}', '{queue}', 'nothing', '{{}}',
  '{{"n":' || n || '}}', {ended} FROM generate_series(1, {count}) AS n
"""


class Pgqueuer(Peer):
    """Performance tuning guide: asyncpg, `pgq autovac`, a connection of its own for the worker, a pool to enqueue.

    Its command line runs on uvloop. No `max_concurrent_tasks`: none is the default, and makes its statement leaner.
    """

    left = "SELECT count(*) FROM pgqueuer WHERE status IN ('queued', 'picked')"
    uvloop = True

    async def install(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        connection = await asyncpg.connect(self.url)
        await Queries(AsyncpgDriver(connection)).install()
        await Queries(AsyncpgDriver(connection)).optimize_autovacuum()
        await connection.close()

    async def open(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        self.pool = await asyncpg.create_pool(self.url, min_size=5, max_size=CONNECTIONS)
        self.queries = Queries(AsyncpgPoolDriver(self.pool))

    async def close(self) -> None:
        await self.pool.close()

    async def many(self, count: int) -> object:
        payloads: list[bytes | None] = [b"%d" % n for n in range(count)]
        return await self.queries.enqueue(["nothing"] * count, payloads, [0] * count)

    async def one(self, n: int) -> object:
        return await self.queries.enqueue("nothing", b"%d" % n)

    async def stamp(self, sent: int) -> object:
        return await self.queries.enqueue("stamp", b"%d" % sent)

    async def work(self, slots: int) -> None:
        import asyncpg
        from pgqueuer import PgQueuer
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.models import Job

        counted = worker()
        pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.url)))

        @pgq.entrypoint("nothing")
        async def nothing(job: Job) -> None:
            counted.ran()

        @pgq.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            counted.started(int(job.payload or b""))

        await pgq.run(batch_size=slots)

    def rows(self, what: str, count: int) -> str:
        if what == "ended":  # it deletes them, and keeps a log
            return (
                "INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, aggregated) "
                f"SELECT n, 'successful', 0, 'nothing', true FROM generate_series(1, {count}) AS n"
            )
        entrypoint, priority = ("nothing", -1) if what == "same" else ("other", 0)
        return (
            "INSERT INTO pgqueuer (priority, status, entrypoint, payload) "
            f"SELECT {priority}, 'queued', '{entrypoint}', '1' FROM generate_series(1, {count})"
        )


class Awa(Peer):
    """Its benchmarking notes: one queue, and (queues × 4 + 20) connections; COPY into its queue storage."""

    keeps_ended = False  # its ended jobs are in a ring of tables that it truncates

    async def install(self) -> None:
        await self.open()
        await self.client.migrate()
        await self.client.install_queue_storage()
        await self.close()

    async def open(self) -> None:
        import awa

        self.client = awa.AsyncClient(self.url, max_connections=24)

    async def close(self) -> None:
        await self.client.close()

    async def many(self, count: int) -> object:
        return await self.client.enqueue_many_copy([Nothing(n) for n in range(count)], queue=QUEUE)

    async def one(self, n: int) -> object:
        return await self.client.insert(Nothing(n), queue=QUEUE)

    async def stamp(self, sent: int) -> object:
        return await self.client.insert(Stamp(sent), queue=QUEUE)

    async def work(self, slots: int) -> None:
        counted = worker()
        await self.open()

        @self.client.task(Nothing, queue=QUEUE)
        async def nothing(job: Any) -> None:
            counted.ran()

        @self.client.task(Stamp, queue=QUEUE)
        async def stamp(job: Any) -> None:
            counted.started(job.args.sent)

        await self.client.start([(QUEUE, slots)])
        await asyncio.Event().wait()

    async def fill(self, what: str, count: int) -> None:
        """By its own COPY: its queues have counters that a plain INSERT would miss. Priority 4 is its lowest."""
        await self.open()
        queue, priority = (QUEUE, 4) if what == "same" else ("other", 2)
        for first in range(0, count, 50_000):
            more = [Nothing(n) for n in range(first, min(first + 50_000, count))]
            await self.client.enqueue_many_copy(more, queue=queue, priority=priority)
        await self.close()


@dataclass
class Nothing:
    n: int


@dataclass
class Stamp:
    sent: int


class OBan(Peer):
    """A queue's `limit` is both its slots and its batch, and there is nothing else to set. It depends on uvloop."""

    left = "SELECT count(*) FROM oban_jobs WHERE state IN ('available', 'scheduled', 'executing', 'retryable')"
    uvloop = True
    python = (3, 12)

    async def install(self) -> None:
        from oban import Oban
        from oban.schema import install

        pool = await Oban.create_pool(self.url)
        await install(pool)
        await pool.close()

    async def open(self, **queues: Any) -> None:
        from oban import Oban, job

        self.pool = await Oban.create_pool(self.url, min_size=5, max_size=CONNECTIONS)
        self.oban = Oban(pool=self.pool, **queues)
        counted = worker() if queues else None

        @job(queue=QUEUE)
        async def nothing(n: int) -> None:
            assert counted
            counted.ran()

        @job(queue=QUEUE)
        async def stamp(sent: int) -> None:
            assert counted
            counted.started(sent)

        self.nothing, self.stamped = nothing, stamp

    async def close(self) -> None:
        await self.pool.close()

    async def many(self, count: int) -> object:
        return await self.oban.enqueue_many(self.nothing.new(n) for n in range(count))

    async def one(self, n: int) -> object:
        return await self.oban.enqueue(self.nothing.new(n))

    async def stamp(self, sent: int) -> object:
        return await self.oban.enqueue(self.stamped.new(sent))

    async def work(self, slots: int) -> None:
        await self.open(queues={QUEUE: slots})
        async with self.oban:
            await asyncio.Event().wait()


class Procrastinate(Peer):
    """`concurrency` is its slots; it fetches one job at a time."""

    left = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"

    async def install(self) -> None:
        await self.open()
        await self.app.schema_manager.apply_schema_async()
        await self.close()

    async def open(self) -> None:
        from procrastinate import App, PsycopgConnector

        self.app = App(connector=PsycopgConnector(conninfo=self.url, min_size=5, max_size=CONNECTIONS))

        @self.app.task(name="nothing")
        async def nothing(n: int) -> None:
            self.counted.ran()

        @self.app.task(name="stamp")
        async def stamp(sent: int) -> None:
            self.counted.started(sent)

        self.nothing, self.stamped = nothing, stamp
        await self.app.open_async()

    async def close(self) -> None:
        await self.app.close_async()

    async def many(self, count: int) -> object:
        return await self.nothing.batch_defer_async(*[{"n": n} for n in range(count)])

    async def one(self, n: int) -> object:
        return await self.nothing.defer_async(n=n)

    async def stamp(self, sent: int) -> object:
        return await self.stamped.defer_async(sent=sent)

    async def work(self, slots: int) -> None:
        self.counted = worker()
        await self.open()
        await self.app.run_worker_async(concurrency=slots)


class BareLoop(Peer):
    """The floor: what psycopg and PostgreSQL can do with the same durable, fenced work and no engine around it."""

    left = "SELECT count(*) FROM jobs WHERE state IN ('queued', 'processing')"
    together = starts = False

    async def install(self) -> None:
        await self.open()
        self.connection.execute(_BARE_SCHEMA)
        await self.close()

    async def open(self) -> None:
        import psycopg

        self.connection = psycopg.connect(self.url, autocommit=True)

    async def close(self) -> None:
        self.connection.close()

    async def many(self, count: int) -> None:
        with self.connection.cursor() as cursor:
            with cursor.copy("COPY jobs (queue, priority, task, payload) FROM STDIN") as rows:
                for n in range(count):
                    rows.write_row(("q", 0, "t", json.dumps({"n": n})))

    async def one(self, n: int) -> object:
        return self.connection.execute(
            "INSERT INTO jobs (queue, priority, task, payload) VALUES ('q', 0, 't', %s)", (json.dumps({"n": n}),)
        )

    async def work(self, slots: int) -> None:
        counted = worker()
        await self.open()
        with self.connection.cursor(binary=True) as cursor:
            while claimed := cursor.execute(_BARE_CLAIM, (slots,)).fetchall():
                for job in claimed:
                    json.loads(job[3])
                    counted.ran()
                cursor.execute(_BARE_FINISH, ([job[0] for job in claimed], [job[1] for job in claimed]))
                assert cursor.rowcount == len(claimed)
        await asyncio.Event().wait()


_BARE_SCHEMA = """
CREATE TABLE jobs (id uuid PRIMARY KEY DEFAULT uuidv7(), state text NOT NULL DEFAULT 'queued', queue text NOT NULL,
  priority smallint NOT NULL, run_at timestamptz NOT NULL DEFAULT now(), attempt integer NOT NULL DEFAULT 0,
  worker_id text, ended_at timestamptz, task text NOT NULL, payload text NOT NULL, result text);
CREATE INDEX queued ON jobs (queue, priority DESC, run_at, id) WHERE state = 'queued';
CREATE INDEX processing ON jobs (worker_id) WHERE state = 'processing';
CREATE INDEX ended ON jobs (ended_at) WHERE ended_at IS NOT NULL;
"""
_BARE_CLAIM = """
WITH picked AS MATERIALIZED (SELECT id FROM jobs WHERE state = 'queued' AND queue = 'q'
  ORDER BY priority DESC, run_at, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED)
UPDATE jobs SET state = 'processing', attempt = attempt + 1, worker_id = 'w' FROM picked WHERE jobs.id = picked.id
RETURNING jobs.id, attempt, task, payload
"""
# The expressions keep the planner off the index on worker_id: it would join every ended job with every running one.
_BARE_FINISH = """
UPDATE jobs SET state = 'completed', result = 'null', ended_at = now(), worker_id = NULL
FROM unnest(%s::uuid[], %s::integer[]) AS done (id, attempt)
WHERE jobs.id = done.id AND jobs.state || '' = 'processing' AND jobs.attempt = done.attempt
  AND jobs.worker_id || '' = 'w'
"""


class TaskiqNats(Peer):
    """Pull consumers in batches; uvloop, as on its command line. There is no database: only its drain is measured."""

    uvloop = True
    enqueues = starts = False

    async def open(self, slots: int = 0) -> None:
        from taskiq_nats import PullBasedJetStreamBroker

        self.broker = PullBasedJetStreamBroker(
            self.nats, subject="bench.taskiq", stream_name="bench_taskiq", durable="x", pull_consume_batch=slots or 1
        )
        self.broker.is_worker_process = bool(slots)
        counted = worker() if slots else None

        @self.broker.task(task_name="nothing")
        async def nothing(n: int) -> None:
            assert counted
            counted.ran()

        self.nothing = nothing
        await self.broker.startup()

    async def close(self) -> None:
        await self.broker.shutdown()

    async def many(self, count: int) -> object:
        for sent in range(0, count, 500):
            await asyncio.gather(*(self.nothing.kiq(n) for n in range(sent, min(sent + 500, count))))
        return None

    async def work(self, slots: int) -> None:
        from taskiq.api import run_receiver_task

        await self.open(slots)
        await run_receiver_task(self.broker, max_async_tasks=slots)


PEERS: dict[str, type[Peer]] = {
    "tenure": TenurePeer,
    "tenure + JetStream": TenurePeer,
    "bare psycopg loop": BareLoop,
    "pgqueuer": Pgqueuer,
    "awa": Awa,
    "oban": OBan,
    "procrastinate": Procrastinate,
    "taskiq-nats": TaskiqNats,
}
WITH_NATS = frozenset({"tenure + JetStream", "taskiq-nats"})
