"""Limits in Redis: its scripts decide as core/limits.py and stores/places.py say, and heal what older code left."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import secrets
from collections.abc import Iterator
from random import Random

import pytest

from conformance.factories import World, claim, draft, finish, look, start
from conformance.test_limits import OTHER, SHOP, declare, key, limited
from conformance.test_waiting import settle_waits, state
from servers import shared_valkey
from tenure.core.clock import Clock
from tenure.core.lifecycle import Completed, Lease, State
from tenure.core.limits import Bounds, Key, Rate
from tenure.ports import LimitRow, Store
from tenure.stores.memory import MemoryStore
from tenure.stores.redis import RedisStore

HISTORIES = 12
STEPS = 60
VERBS = "enqueue", "claim", "finish", "advance", "advance", "set", "declare", "pause", "clock"
EIGHTHS = 8  #: of a second: exact both in the scripts' milliseconds and in Python's seconds


@pytest.fixture
def world() -> Iterator[World]:
    namespace = f"t_{secrets.token_hex(6)}"

    def opened(clock: Clock) -> RedisStore:
        return RedisStore(shared_valkey().url, namespace=namespace, clock=clock)

    world = World(opened)
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> RedisStore:
    store = world.store()
    assert isinstance(store, RedisStore)
    return store


def left(store: RedisStore, *known: str) -> set[str]:
    """The kinds of keys about limits that are on the server, without those that stay."""
    names: list[str] = store.server.run("KEYS", f"{store.server.prefix}*")
    kinds = {name.removeprefix(store.server.prefix).partition(":")[0] for name in names}
    of_limits = {"key", "keys", "keys_of", "key_asks", "key_dues", "key_found", "key_fades", "placed", "places"}
    of_limits |= {"parked", "parked_of", "unbegun", "unbegun_of", "begun", "idle", "limit_asks", "limit_asked"}
    return kinds & of_limits - set(known)


# ── The same answers as Python ──


class Pair:
    """One history, in Redis and in memory."""

    def __init__(self, world: World, redis: Store, random: Random) -> None:
        self.world, self.random = world, random
        self.stores: tuple[Store, Store] = redis, MemoryStore(clock=world.clock)
        self.leases: list[Lease] = []
        self.worker = ""

    def serve(self) -> None:
        self.worker = f"host-1-{secrets.token_hex(4)}"
        for store in self.stores:
            start(store, id=self.worker)
            store.withdraw()

    def bounds(self) -> Bounds:
        most = self.random.randint(1, 9)
        rate = Rate(most, self.random.choice([1.0, 2.7, 10.0, 60.0]), self.random.randint(1, most))
        return Bounds(self.random.choice([None, 1, 3, 7]), self.random.choice([None, rate, rate]))

    def step(self) -> None:
        verb = self.random.choice(VERBS)
        if verb in ("set", "declare", "clock"):
            self.look()
            self.compare()
        match verb:
            case "enqueue":
                drafts = [draft(limits=(SHOP,), priority=self.random.choice([0, 0, 5])) for _ in range(3)]
                for store in self.stores:
                    store.enqueue(drafts)
            case "claim":
                number = self.random.randint(1, 4)
                mine, others = (
                    [(each.id, each.attempt) for each in claim(store, self.worker, number)] for store in self.stores
                )
                assert mine == others
                self.leases += [Lease(*each, self.worker) for each in mine]
            case "finish" if self.leases:
                lease = self.leases.pop(self.random.randrange(len(self.leases)))
                assert finish(self.stores[0], lease, Completed()) is finish(self.stores[1], lease, Completed())
            case "advance":
                self.world.advance(self.random.choice([1, 3, 20, 90]) / EIGHTHS)
            case "clock":
                self.world.step_wall_clock(self.random.choice([-400, -8, 8]) / EIGHTHS)
                self.look()
            case "declare":
                self.write(LimitRow(name=SHOP.limit), declared=self.bounds())
                self.look()
            case "set":
                self.write(LimitRow(name=SHOP.key, key=True, limit=SHOP.limit), set=self.bounds())
            case "pause":
                until = self.world.clock.unix() + self.random.choice([-1, 2])
                self.write(LimitRow(name=SHOP.key, key=True, limit=SHOP.limit), paused_until=until, why="busy")
            case _:
                pass

    def look(self) -> None:
        """A bucket that no job waits for, and a pause that has passed: stores look at different times; here both do."""
        found = self.stores[0].limits([SHOP.key], keys=True)
        passed = found and (found[0].paused_until or 0) <= self.world.clock.unix()
        gone: dict[str, object] = {"paused_until": None, "why": ""} if passed or not found else {}
        self.write(LimitRow(name=SHOP.key, key=True, limit=SHOP.limit), **gone)

    def write(self, new: LimitRow, **changes: object) -> None:
        for store in self.stores:
            found = store.limits([new.name], keys=new.key)
            assert store.change_limits([(found[0] if found else new).but(**changes)]) == [True]

    def compare(self) -> None:
        mine, others = (settle_waits(each) for each in self.stores)
        assert mine == others
        seen, wanted = ({each.key: each for each in store.keys(limit=50)}.get(SHOP.key) for store in self.stores)
        if seen is not None and wanted is not None:
            assert seen._replace(tokens=None, next_token=None) == wanted._replace(tokens=None, next_token=None)
            for one, other in ((seen.tokens, wanted.tokens), (seen.next_token, wanted.next_token)):
                assert one == (None if other is None else pytest.approx(other, abs=1e-9))
        dues = [store.admit().next_due for store in self.stores]
        if dues[0] is not None and dues[1] is not None:
            assert dues[0] == pytest.approx(dues[1], abs=0.0011)


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_the_scripts_and_python_decide_alike_whatever_has_happened(seed: int, world: World, store: RedisStore) -> None:
    pair = Pair(world, store, Random(seed))
    pair.write(LimitRow(name=SHOP.limit), declared=Bounds(3, Rate(5, 10.0, 2)))
    for _ in range(STEPS):
        pair.serve()
        pair.step()
        pair.compare()


# ── What is kept ──


def test_nothing_is_kept_of_keys_that_nobody_uses(world: World, store: RedisStore) -> None:
    declare(store, SHOP.limit, 2, Rate(6, 60.0, 3))
    worker = start(store)
    jobs = limited(store, SHOP, OTHER, number=5)
    settle_waits(store)
    for each in claim(store, worker, 5):
        finish(store, Lease(each.id, each.attempt, worker), Completed())
    store.cancel(jobs, "enough")
    settle_waits(store)
    assert [each.key for each in store.keys(limit=50)] == [SHOP.key, OTHER.key]  # their buckets are not full

    world.advance(60)
    start(store)
    store.withdraw()
    settle_waits(store)

    assert store.keys() == []
    assert left(store) == set()


def test_the_keys_of_a_limit_that_is_changed_are_looked_at_two_hundred_a_step(store: RedisStore) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    drafts = [draft(limits=(Key(f"shop:{n}", SHOP.limit),)) for n in range(450) for _ in range(2)]
    store.enqueue(drafts)
    assert len(settle_waits(store)) == 450

    declare(store, SHOP.limit, 2)

    assert len(settle_waits(store)) == 450


def test_what_older_code_took_and_ended_unseen_is_freed(world: World, store: RedisStore) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    first, second = limited(store, number=2)
    assert settle_waits(store) == [first]
    prefix = store.server.prefix
    store.server.run("ZREM", f"{prefix}ready:default", first)  # as older scripts did
    store.server.run("HSET", f"{prefix}job:{first}", "state", "cancelled")
    assert settle_waits(store) == []

    world.advance(11)
    start(store)

    assert settle_waits(store) == [second]
    assert (key(store).held, key(store).unbegun) == (1, 1)


def test_a_parked_job_that_older_code_ended_holds_up_nobody(store: RedisStore) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    first, second = limited(store, number=2)
    store.server.run("HSET", f"{store.server.prefix}job:{first}", "state", "cancelled")

    assert settle_waits(store) == [second]
    assert state(store, second) is State.QUEUED
    assert look(store, first).state is State.CANCELLED
