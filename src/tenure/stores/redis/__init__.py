"""The Redis store, for Redis and Valkey: fast, and as durable as its append-only file (docs/delivery.md).

Every transition is one Lua script in `lua/`, which compares the lease itself and uses the server's TIME as its clock.
All keys of a namespace start with one hash tag, so they are on one node of a cluster:

    {tenure}:job:ID        hash    the job: state, lease (attempt, worker_id), payload, budgets spent, progress, result
    {tenure}:ready:QUEUE   zset    queued jobs, in order of priority, run_at, id: the score is priority, then time
    {tenure}:solo:QUEUE    zset    the same for jobs that must run alone
    {tenure}:scheduled     zset    by the time they are due
    {tenure}:waiting       zset    jobs that wait, by id; `waits` is a zset of those with a time-out, by it;
                                   `waitfor:KEY` one of those that wait for a shared signal, `waited` one by run_at
    {tenure}:parents:ID    zset    the edges of a job by place, `unmet:ID` those that are open, `gone:ID` those of a
                                   deleted job; `children:ID` and `pins:ID` are the same from the other end (waits.lua)
    {tenure}:asks          zset    what `admit` has to look at, by time; `asked` is a hash of those answered in part
    {tenure}:signals:ID    hash    the signals of a job, key → time, =, value; `shared` is the hash of those to all,
                                   with `shared_keys` and `shared_at`, zsets by key and by time
    {tenure}:parked:KEY NUL LANE  zset  jobs that wait for a place of a key, in order of priority, due_at, id; a lane
                                   is QUEUE, or QUEUE NUL solo. `parked_of:KEY` is a zset of these lanes
    {tenure}:places:KEY    zset    the jobs that have one, by admission; `unbegun:KEY` is a set of those not begun,
                                   `placed` a hash of all: job → its keys; `unbegun_of:LANE` is a zset of a lane's,
                                   `unbegun_of` the set of such lanes; `unbegun_at` hash: where to go on
    {tenure}:key:KEY       hash    what is known of a key in use; `keys` and `keys_of:LIMIT` are zsets of these;
                                   `begun:KEY` is a list of begins that its bucket has not counted yet
    {tenure}:key_asks      zset    keys that `give` has to look at, in order; `limit_asks` limits, `limit_asked` where
                                   to go on; `key_dues`, `key_found` and `key_fades` are zsets of keys by time
    {tenure}:limits, key_limits    hash  the rows of limits and of keys; `limit_names` and `limited_keys` are zsets
                                   of these, `rated` and `rated_keys` sets of those with a rate
    {tenure}:idle:QUEUE    set     keys under which a queue was passed over, `idle` the set of such queues;
                                   `serves:QUEUE` is a zset of the workers that serve it
    {tenure}:members:FLOW  zset    the jobs of a flow; `flows` is a zset by time, `flow_names` a hash
    {tenure}:sealed        zset    calls of many linked jobs that are not yet stored in full, each with
                                   staged:CALL list, stands:CALL hash, answers:CALL list
    {tenure}:processing:WORKER   hash  the leases of a worker: job → attempt; `owners` is the set of workers with any
    {tenure}:stale         zset    processing jobs with a `stale_after`, by the time at which they count as hung
    {tenure}:completed, cancelled, dead    zset    by the time they ended; `holding` is one of the dead for which
                                   live jobs wait
    {tenure}:jobs          zset    all jobs, by id
    {tenure}:attempts:ID, once:ID, log:ID  hash  ended attempts by number, first results by key, logs by attempt
    {tenure}:unique        hash    TASK NUL KEY → the live job that holds it
    {tenure}:schedule:NAME hash    rev and body of a schedule; `schedules` is a zset of the names, `due` one by due_at
    {tenure}:ticks:NAME    zset    its ticks by their time, MS|CAUSE; `tick:NAME` is the hash of their bodies
    {tenure}:open:NAME     zset    its open ticks; `open` is a hash of those of all schedules: MS|CAUSE|NAME → job
    {tenure}:decided       zset    the closed ticks of all schedules, MS|CAUSE|NAME, by the time they were decided
    {tenure}:notes         hash    key → expiry, =, text; `noted` is a zset of the keys, `fading` one by expiry
    {tenure}:worker:ID     hash    a worker; `alive` is a zset by the end of its lease, `died` by the time of death,
                                   `protocols` by what its code knows
    {tenure}:queues set, paused hash, scheduled_of and waiting_of hashes (how many of each queue), bell stream, schema;
    pruned and walk hashes: where to go on

`decide` stays in Python: its inputs are read first, and the script that ends the attempt checks that they still hold.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tenure.core.clock import Clock
from tenure.errors import StoreError
from tenure.ports import Capabilities
from tenure.stores.redis.jobs import NO_TRANSACTIONS, RedisJobs
from tenure.stores.redis.reads import RedisReads
from tenure.stores.redis.schedules import RedisSchedules
from tenure.stores.redis.server import Server
from tenure.stores.redis.texts import RedisTexts
from tenure.stores.redis.wait_reads import RedisWaitReads
from tenure.stores.redis.waiting import RedisWaiting
from tenure.stores.redis.workers import RedisWorkers

SCHEMA = 1


class RedisStore(RedisJobs, RedisWorkers, RedisWaiting, RedisSchedules, RedisWaitReads, RedisReads, RedisTexts):
    """`RedisStore("redis://me@host/0")`, `valkey://…`, `rediss://…` or `redis+sentinel://…`; needs no migration.

    With `rings` its scripts ring the doorbell themselves, so that no caller has to do it after them.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "tenure",
        password: str | None = None,
        clock: Clock | None = None,
        rings: bool = False,
    ) -> None:
        super().__init__(Server(url, namespace, password, clock, rings=rings))
        self.capabilities = Capabilities(transactions=False, durable=True, steady_clock=False)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def server(self) -> Server:
        """The server, for a notifier, which needs connections of its own."""
        return self._server

    def migrate(self) -> int:
        return SCHEMA

    def open(self) -> None:
        self._server.open(SCHEMA)

    def close(self) -> None:
        self._server.close()

    def upkeep(self) -> None:
        """Nothing to do: the server maintains its append-only file itself."""

    def transaction(self) -> AbstractContextManager[Any]:
        raise StoreError(NO_TRANSACTIONS)
