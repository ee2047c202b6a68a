"""The contestants on Redis: each with the settings its own documentation recommends for speed, and no results kept.

Only Tenure refuses what a former owner finishes. A killed worker's jobs are lost with huey and celery (as they are by
default), marked failed with rq, and come back with the others: after a minute or more with streaq,
dramatiq and saq (if told to retry), after five with arq, after ten with taskiq-redis.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from typing import Any, ClassVar

from bench.measure import Worker
from bench.postgres_peers import CONNECTIONS, QUEUE, Peer, TenurePeer, worker

BATCH = 500  # of peers whose best bulk enqueue is many calls at once
TOGETHER = 100  # the same for arq: each of its calls needs a connection


class RedisPeer(Peer):
    """One contestant with its share of a drain's jobs: slow ones get fewer, which is enough to measure their rate."""

    share = 1.0


class SyncPeer(RedisPeer):
    """A contestant that has nothing to await."""

    together = False


class Tenure(TenurePeer, RedisPeer):
    left = ""


class Taskiq(RedisPeer):
    """Streams: its only broker that acknowledges (the list broker is no faster, and loses a killed worker's jobs).

    `--no-parse`; its command line runs on uvloop, if that is installed. It has no bulk call.
    """

    uvloop = True

    async def open(self) -> None:
        from taskiq_redis import RedisStreamBroker

        self.broker = RedisStreamBroker(self.url, xread_count=BATCH, max_connection_pool_size=CONNECTIONS)

        @self.broker.task(task_name="nothing")
        async def nothing(n: int) -> None:
            self.counted.ran()

        @self.broker.task(task_name="stamp")
        async def stamp(sent: int) -> None:
            self.counted.started(sent)

        self.nothing, self.stamped = nothing, stamp
        await self.broker.startup()

    async def close(self) -> None:
        await self.broker.shutdown()

    async def many(self, count: int) -> None:
        for first in range(0, count, BATCH):
            await asyncio.gather(*(self.nothing.kiq(n) for n in range(first, min(first + BATCH, count))))

    async def one(self, n: int) -> object:
        return await self.nothing.kiq(n)

    async def stamp(self, sent: int) -> object:
        return await self.stamped.kiq(sent)

    async def work(self, slots: int) -> None:
        from taskiq.api import run_receiver_task

        self.counted = worker()
        await self.open()
        await run_receiver_task(self.broker, max_async_tasks=slots, validate_params=False)


class Dramatiq(SyncPeer):
    """Four threads, its fastest here, and as many messages prefetched as there are slots. It has no bulk call."""

    async def open(self) -> None:
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self.broker = RedisBroker(url=self.url)

        @dramatiq.actor(broker=self.broker, actor_name="nothing")
        def nothing(n: int) -> None:
            self.counted.ran()

        @dramatiq.actor(broker=self.broker, actor_name="stamp")
        def stamp(sent: int) -> None:
            self.counted.started(sent)

        self.nothing, self.stamped = nothing, stamp

    async def close(self) -> None:
        self.broker.close()

    async def many(self, count: int) -> None:
        for n in range(count):
            self.nothing.send(n)

    async def one(self, n: int) -> object:
        return self.nothing.send(n)

    async def stamp(self, sent: int) -> object:
        return self.stamped.send(sent)

    async def work(self, slots: int) -> None:
        os.environ["dramatiq_queue_prefetch"] = str(slots)  # noqa: SIM112 (its name)
        import dramatiq

        self.counted = worker()
        await self.open()
        dramatiq.Worker(self.broker, worker_threads=4).start()
        await asyncio.Event().wait()


class Huey(SyncPeer):
    """Two threads, its fastest here; a blocking pop, no results, no periodic tasks. No bulk call."""

    async def open(self) -> None:
        from huey import RedisHuey

        self.huey = RedisHuey("bench", url=self.url, results=False)

        @self.huey.task()
        def nothing(n: int) -> None:
            self.counted.ran()

        @self.huey.task()
        def stamp(sent: int) -> None:
            self.counted.started(sent)

        self.nothing, self.stamped = nothing, stamp

    async def many(self, count: int) -> None:
        for n in range(count):
            self.nothing(n)

    async def one(self, n: int) -> object:
        return self.nothing(n)

    async def stamp(self, sent: int) -> object:
        return self.stamped(sent)

    async def work(self, slots: int) -> None:
        self.counted = worker()
        await self.open()
        self.huey.create_consumer(workers=2, periodic=False).run()


class Saq(RedisPeer):
    """Its default concurrency of 10: each has a connection that waits, and more are no faster. No bulk call."""

    share = 0.5

    async def open(self) -> None:
        from saq.queue.redis import RedisQueue

        self.queue = RedisQueue.from_url(self.url)

    async def close(self) -> None:
        await self.queue.disconnect()

    async def many(self, count: int) -> None:
        for first in range(0, count, BATCH):
            await asyncio.gather(*(self.one(n) for n in range(first, min(first + BATCH, count))))

    async def one(self, n: int) -> object:
        return await self.queue.enqueue("nothing", n=n, ttl=-1)

    async def stamp(self, sent: int) -> object:
        return await self.queue.enqueue("stamp", sent=sent, ttl=-1)

    async def work(self, slots: int) -> None:
        import saq

        counted = worker()
        await self.open()

        async def nothing(_: object, *, n: int) -> None:
            counted.ran()

        async def stamp(_: object, *, sent: int) -> None:
            counted.started(sent)

        functions: Any = [("nothing", nothing), ("stamp", stamp)]
        await saq.Worker(self.queue, functions=functions).start()


class Streaq(RedisPeer):
    """`concurrency` is its slots and its batch; uvloop, as its documentation says; nothing logged, no results."""

    share = 0.5
    uvloop = True

    async def open(self, slots: int = 1) -> None:
        import streaq

        self.streaq: Any = streaq.Worker(redis_url=self.url, concurrency=slots)

        @self.streaq.task(name="nothing", silent=True, ttl=0)
        async def nothing(n: int) -> None:
            self.counted.ran()

        @self.streaq.task(name="stamp", silent=True, ttl=0)
        async def stamp(sent: int) -> None:
            self.counted.started(sent)

        self.nothing, self.stamped = nothing, stamp
        if slots == 1:
            await self.streaq.__aenter__()

    async def close(self) -> None:
        await self.streaq.__aexit__(None, None, None)

    async def many(self, count: int) -> object:
        return await self.streaq.enqueue_many([self.nothing.enqueue(n) for n in range(count)])

    async def one(self, n: int) -> object:
        return await self.nothing.enqueue(n)

    async def stamp(self, sent: int) -> object:
        return await self.stamped.enqueue(sent)

    async def work(self, slots: int) -> None:
        self.counted = worker()
        await self.open(slots)
        await self.streaq.run_async()


class Arq(RedisPeer):
    """`max_jobs` is its slots; it polls, here every 10 ms; faster on uvloop. No results, no log, no bulk call."""

    share = 0.5
    uvloop = True

    async def open(self, slots: int = TOGETHER) -> None:
        from arq import ArqRedis
        from redis.asyncio import ConnectionPool

        self.pool = ArqRedis(ConnectionPool.from_url(self.url, max_connections=slots + CONNECTIONS))

    async def close(self) -> None:
        await self.pool.close()

    async def many(self, count: int) -> None:
        for first in range(0, count, TOGETHER):
            await asyncio.gather(*(self.one(n) for n in range(first, min(first + TOGETHER, count))))

    async def one(self, n: int) -> object:
        return await self.pool.enqueue_job("nothing", n)

    async def stamp(self, sent: int) -> object:
        return await self.pool.enqueue_job("stamp", sent)

    async def work(self, slots: int) -> None:
        from arq.worker import Worker as ArqWorker
        from arq.worker import func

        counted = worker()
        await self.open(slots)

        async def nothing(_: object, n: int) -> None:
            counted.ran()

        async def stamp(_: object, sent: int) -> None:
            counted.started(sent)

        await ArqWorker(
            [func(nothing, name="nothing"), func(stamp, name="stamp")],
            redis_pool=self.pool,
            max_jobs=slots,
            poll_delay=0.01,
            keep_result=0,
            log_results=False,
        ).async_run()


class Rq(SyncPeer):
    """SimpleWorker, one job at a time without a fork: its documentation's choice for very short jobs. No results."""

    share = 0.1
    counting: ClassVar[Worker]  #: for the functions below: rq imports them, so they have no peer

    async def open(self) -> None:
        from redis import Redis
        from rq import Queue

        self.queue = Queue(QUEUE, connection=Redis.from_url(self.url))

    async def many(self, count: int) -> object:
        return self.queue.enqueue_many([self.queue.prepare_data(rq_nothing, (n,), result_ttl=0) for n in range(count)])

    async def one(self, n: int) -> object:
        return self.queue.enqueue(rq_nothing, n, result_ttl=0)

    async def stamp(self, sent: int) -> object:
        return self.queue.enqueue(rq_stamp, sent, result_ttl=0)

    async def work(self, slots: int) -> None:
        from rq import SimpleWorker

        await self.open()
        Rq.counting = worker()
        SimpleWorker([self.queue], connection=self.queue.connection, log_job_description=False).work(
            logging_level=logging.WARNING
        )


def rq_nothing(n: int) -> None:
    Rq.counting.ran()


def rq_stamp(sent: int) -> None:
    Rq.counting.started(sent)


class Celery(SyncPeer):
    """Its solo pool, faster here than threads or prefork; 500 prefetched; no results, no gossip between workers."""

    share = 0.25

    async def open(self) -> None:
        import celery

        self.celery = celery.Celery("bench", broker=self.url, set_as_current=False)
        self.celery.conf.update(task_ignore_result=True, worker_prefetch_multiplier=BATCH)

        @self.celery.task(name="nothing")
        def nothing(n: int) -> None:
            self.counted.ran()

        @self.celery.task(name="stamp")
        def stamp(sent: int) -> None:
            self.counted.started(sent)

        self.nothing, self.stamped = nothing, stamp

    async def close(self) -> None:
        self.celery.close()

    async def many(self, count: int) -> None:
        with self.celery.producer_or_acquire() as producer:
            for n in range(count):
                self.nothing.apply_async((n,), producer=producer)

    async def one(self, n: int) -> object:
        return self.nothing.delay(n)

    async def stamp(self, sent: int) -> object:
        return self.stamped.delay(sent)

    async def work(self, slots: int) -> None:
        self.counted = worker()
        await self.open()
        quiet = ("--loglevel", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat")
        self.celery.worker_main(["worker", "--pool", "solo", *quiet])


class BareLoop(SyncPeer):
    """The floor: what redis-py and Redis can do with the same moves; one script claims, one finishes, no fence."""

    starts = False

    async def open(self) -> None:
        from redis import Redis

        self.redis = Redis.from_url(self.url)
        self.claim = self.redis.register_script(_BARE_CLAIM)
        self.finish = self.redis.register_script(_BARE_FINISH)

    async def close(self) -> None:
        self.redis.close()

    async def many(self, count: int) -> None:
        for first in range(0, count, BATCH):
            pipe = self.redis.pipeline(transaction=False)
            for n in range(first, min(first + BATCH, count)):
                pipe.hset(f"job:{n}", mapping={"task": "t", "payload": json.dumps({"n": n})})
                pipe.zadd("ready", {str(n): n})
            pipe.execute()

    async def one(self, n: int) -> None:
        pipe = self.redis.pipeline()
        pipe.hset(f"job:{n}", mapping={"task": "t", "payload": "{}"})
        pipe.zadd("ready", {str(n): n})
        pipe.execute()

    async def work(self, slots: int) -> None:
        counted = worker()
        await self.open()
        while claimed := self.claim(args=[min(slots, 100)]):
            for payload in claimed[1::2]:
                json.loads(payload)
                counted.ran()
            self.finish(args=claimed[::2])
        await asyncio.Event().wait()


_BARE_CLAIM = """
local ids, claimed, processing = redis.call('ZRANGE', 'ready', 0, ARGV[1] - 1), {}, {}
if #ids == 0 then return claimed end
for n, id in ipairs(ids) do
  local key = 'job:' .. id
  redis.call('HSET', key, 'state', 'processing', 'worker', 'w')
  claimed[2 * n - 1], claimed[2 * n] = id, redis.call('HGET', key, 'payload')
  processing[2 * n - 1], processing[2 * n] = id, id
end
redis.call('ZADD', 'processing', unpack(processing))
redis.call('ZREM', 'ready', unpack(ids))
return claimed
"""
_BARE_FINISH = """
for _, id in ipairs(ARGV) do
  redis.call('HSET', 'job:' .. id, 'state', 'completed', 'ended', 1)
end
return redis.call('ZREM', 'processing', unpack(ARGV))
"""

DURABLE = "tenure, append-only file"
PEERS: dict[str, type[RedisPeer]] = {
    "tenure": Tenure,
    DURABLE: Tenure,
    "bare Lua loop": BareLoop,
    "taskiq-redis": Taskiq,
    "dramatiq": Dramatiq,
    "huey": Huey,
    "saq": Saq,
    "streaq": Streaq,
    "arq": Arq,
    "celery": Celery,
    "rq": Rq,
}
RIVALS = tuple(PEERS)[3:]  #: all but Tenure and the bare loop
