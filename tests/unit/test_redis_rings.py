"""A Redis store that rings: the doorbell is rung by the very step that gives a listener a reason to look."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from conformance.factories import finish, put, start
from servers import shared_valkey
from tenure.core.lifecycle import Completed, Failed, Lease, Released, State
from tenure.notifiers.redis import RedisNotifier
from tenure.ports import Ring
from tenure.stores.redis import RedisStore

LIMIT = 30.0

Move = Callable[[], object]


@pytest.fixture
def store() -> Iterator[RedisStore]:
    """A store whose own scripts ring, as with `notifier=auto`."""
    server = shared_valkey()
    with server.namespace() as namespace:
        store = RedisStore(server.url, namespace=namespace, rings=True)
        store.open()
        yield store
        store.close()


def bell(store: RedisStore) -> list[list[str]]:
    """All rings so far, the newest first."""
    return [entry for _, entry in store.server.run("XREVRANGE", f"{store.server.prefix}bell", "+", "-")]


# Each function brings a job to where its move begins, and returns the move.


def enqueue(store: RedisStore) -> Move:
    return lambda: put(store, queue="mail")


def delay(store: RedisStore) -> Move:
    return lambda: put(store, queue="mail", delay=3600)


def promote_now(store: RedisStore) -> Move:
    job_id = put(store, queue="mail", delay=3600)
    return lambda: store.promote_now([job_id])


def promote(store: RedisStore) -> Move:
    put(store, queue="mail", delay=0.001)

    def until_due() -> None:
        while not store.promote().jobs:
            time.sleep(0.001)

    return until_due


def retry(store: RedisStore) -> Move:
    lease = claimed(store)
    return lambda: finish(store, lease, Failed("not yet", retry_in=60))


def release(store: RedisStore) -> Move:
    lease = claimed(store)
    return lambda: finish(store, lease, Released("drained"))


def rescue(store: RedisStore) -> Move:
    store.declare_dead([claimed(store).worker_id])
    return store.rescue


def settle(store: RedisStore) -> Move:
    lease = claimed(store)
    return lambda: store.settle(lease.worker_id, {}, Released("its worker has ended"))


def replay(store: RedisStore) -> Move:
    lease = claimed(store)
    finish(store, lease, Failed("for good", final=True))
    return lambda: store.replay([lease.job_id])


def resume(store: RedisStore) -> Move:
    store.pause("mail", paused=True)
    return lambda: store.pause("mail", paused=False)


def cancel(store: RedisStore) -> Move:
    lease = claimed(store)
    return lambda: store.cancel([lease.job_id], "not wanted")


def claimed(store: RedisStore) -> Lease:
    job_id, worker = put(store, queue="mail"), start(store)
    (found,) = store.claim(worker, {"mail": 1}, 1)
    assert found.id == job_id
    return Lease(job_id, found.attempt, worker)


RINGS = {
    "queued": [enqueue, promote_now, promote, release, rescue, settle, replay, resume],
    "due": [delay, retry],
    "cancel": [cancel],
}


@pytest.mark.parametrize(
    ("kind", "prepare"),
    [pytest.param(kind, each, id=each.__name__) for kind, prepared in RINGS.items() for each in prepared],
)
def test_a_store_rings_once_with_what_it_does(
    store: RedisStore, kind: str, prepare: Callable[[RedisStore], Move]
) -> None:
    move = prepare(store)
    before = len(bell(store))
    move()
    newest, *older = bell(store)
    assert (newest, len(older)) == ([kind, "mail"], before)


def test_what_gives_nobody_a_reason_to_look_rings_nobody(store: RedisStore) -> None:
    lease = claimed(store)
    before = bell(store)
    assert finish(store, lease, Completed()) is State.COMPLETED
    store.pause("mail", paused=True)
    store.delete([lease.job_id])
    assert bell(store) == before


def test_a_listener_hears_it_and_its_notifier_says_nothing_twice(store: RedisStore) -> None:
    notifier = RedisNotifier(store.server, store.server.namespace, rung=True)
    with closing(notifier), closing(notifier.listen()) as ear:
        while ear.drain():  # deaf until it is connected
            time.sleep(0.001)
        put(store, queue="mail")
        notifier.announce([Ring("queued", "mail")])
        assert select.select([ear.fileno()], [], [], LIMIT)[0]
        assert ear.drain() == [Ring("queued", "mail")]
    assert len(bell(store)) == 1
