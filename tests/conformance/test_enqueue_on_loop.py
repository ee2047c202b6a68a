"""A job that is stored from an event loop: as by `enqueue`, or not at all, and then the caller must call `enqueue`."""

from __future__ import annotations

import select
from contextlib import suppress

import pytest

from conformance.factories import World, draft, everything, look
from tenure.core.lifecycle import State
from tenure.errors import BadData
from tenure.ports import Draft, Enqueued, Store


def on_loop(store: Store, job: Draft) -> Enqueued | None:
    """Wait for what the call waits for, as a loop does."""
    call = store.enqueue_on_loop(job)
    try:
        while True:
            wanted = next(call)
            assert select.select([wanted.fileno], [], [], wanted.seconds)[0], "no answer"
    except StopIteration as end:
        return end.value


def test_it_stores_what_enqueue_stores(store: Store) -> None:
    plain, other = draft(queue="images", priority=-7, delay=60.0), draft(queue="images", priority=-7, delay=60.0)
    store.enqueue([plain])

    found = on_loop(store, other)

    if found is None:  # the store has nothing to wait for
        assert store.get(other.id) is None
        return
    assert found == Enqueued(other.id, created=True, state=State.SCHEDULED)
    mine, theirs = look(store, other.id), look(store, plain.id)
    for name in ("task", "payload", "queue", "priority", "state", "run_at", "enqueued_at", "max_failures"):
        assert getattr(mine, name) == getattr(theirs, name), name


def test_what_stands_is_never_stored_twice(store: Store) -> None:
    holder = draft(unique="k")
    store.enqueue([holder])

    for again in (holder, draft(unique="k")):
        assert on_loop(store, again) in (None, Enqueued(holder.id, created=False, state=State.QUEUED))
    assert [view.id for view in everything(store)] == [holder.id]


def test_a_call_that_is_given_up_leaves_the_store_usable(world: World) -> None:
    store = world.store()
    for _ in range(25):  # more than there are connections
        call = store.enqueue_on_loop(draft())
        next(call, None)
        call.close()

    assert store.enqueue([draft()])[0].created


def test_a_call_that_waits_too_long_leaves_the_store_usable(store: Store) -> None:
    late = draft()
    call = store.enqueue_on_loop(late)
    if next(call, None) is not None:
        with pytest.raises(Exception, match="no answer in 8s"):
            call.throw(TimeoutError("no answer in 8s"))

    assert store.enqueue([late])[0].id == late.id
    assert len(everything(store)) == 1


def test_a_value_that_is_refused_raises_as_enqueue_does(store: Store) -> None:
    bad = draft(payload='"\0"')
    with pytest.raises(BadData):
        store.enqueue([bad])
    with suppress(BadData):
        assert on_loop(store, bad) is None
    assert everything(store) == []
