"""Calls on an event loop: as `enqueue` and `claim`, or nothing is done, and then the caller must call those."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from conformance.factories import World, claim, draft, everything, look, put, start
from tenure.core.lifecycle import State
from tenure.errors import BadData
from tenure.ports import Claimed, Draft, Enqueued, OnLoop, Readable, Store

T = TypeVar("T")


def on_loop(store: Store, job: Draft) -> Enqueued | None:
    return driven(store.enqueue_on_loop(job))


def driven(call: OnLoop[T], before: Callable[[], object] = lambda: None) -> T | None:
    """Wait for what the call waits for, as a loop does. `before`: called at each wait."""
    try:
        wanted: Readable = next(call)
        while True:
            before()
            assert select.select([wanted.fileno], [], [], wanted.seconds)[0], "no answer"
            wanted = next(call)
    except StopIteration as end:
        answer: T | None = end.value
        return answer


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
        assert store.counts() is not None  # now one is idle
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


def claim_on_loop(store: Store, worker: str, limit: int, **queues: int) -> list[Claimed] | None:
    return driven(store.claim_on_loop(worker, queues or {"default": limit}, limit))


def test_it_claims_what_claim_claims(store: Store) -> None:
    worker, other = start(store), start(store)
    images = {put(store, queue="images") for _ in range(3)}
    mail = [put(store, queue="mail", priority=priority) for priority in (-1, 7)]

    found = claim_on_loop(store, worker, 3, mail=3, images=3)

    if found is None:
        assert {view.state for view in everything(store)} == {State.QUEUED}
        return
    assert [each.id for each in found[:2]] == mail[::-1]
    assert found[2].id in images
    assert all(look(store, each.id).state is State.PROCESSING for each in found)
    rest = claim(store, other, 3, queue="images")
    assert {each.id for each in rest} == images - {found[2].id}
    assert rest[0]._replace(id=found[2].id) == found[2]._replace(queue="images")


def test_a_claim_on_a_loop_that_finds_nothing_has_found_nothing(store: Store) -> None:
    assert not claim_on_loop(store, start(store), 3)
    assert not claim_on_loop(store, "not registered", 3)
    put(store)
    assert not claim_on_loop(store, "not registered", 3)
    assert not claim_on_loop(store, start(store), 3, mail=3)


def test_a_queue_of_any_name_is_claimed_from_on_a_loop(store: Store) -> None:
    worker = start(store)
    for name in ("NULL", "null", "a b", "übergrößen", '{"a",b}', "back\\slash"):
        job_id = put(store, queue=name)
        assert (claim_on_loop(store, worker, 1, **{name: 1}) or claim(store, worker, queue=name))[0].id == job_id


def test_a_claim_on_a_loop_of_more_than_one_answer_holds_takes_all(store: Store) -> None:
    """600 jobs of 3 KiB: more than a socket's buffer holds, and more than one script claims."""
    worker = start(store)
    drafts = [draft(payload=f'{{"text":"{"x" * 3000}"}}') for _ in range(600)]
    store.enqueue(drafts)

    found = claim_on_loop(store, worker, 600)

    found = claim(store, worker, 600) if found is None else found
    assert {each.id for each in found} == {each.id for each in drafts}
    assert {each.payload for each in found} == {drafts[0].payload}


def test_claims_on_two_loops_share_no_job(world: World) -> None:
    first, second = world.store(), world.store()
    one, other = start(first), start(second)
    jobs = {put(first) for _ in range(6)}
    theirs: list[Claimed] = []

    ours = driven(
        first.claim_on_loop(one, {"default": 3}, 3), lambda: theirs.extend(claim(second, other, 3 - len(theirs)))
    )

    ours = claim(first, one, 3) if ours is None else ours
    theirs += claim(second, other, 3 - len(theirs))
    assert {each.id for each in ours} | {each.id for each in theirs} == jobs
    assert len(ours) + len(theirs) == 6


def test_a_claim_on_a_loop_that_is_given_up_leaves_the_store_usable(world: World) -> None:
    store = world.store()
    worker = start(store)
    for _ in range(25):  # more than there are connections
        assert store.owned(worker) == []  # now one is idle
        call = store.claim_on_loop(worker, {"default": 1}, 1)
        next(call, None)
        call.close()

    job_id = put(store)
    assert [each.id for each in claim(store, worker)] == [job_id]


def test_what_a_claim_on_a_loop_has_taken_is_owned_though_its_answer_was_late(store: Store) -> None:
    worker, job_id = start(store), put(store)
    call = store.claim_on_loop(worker, {"default": 1}, 1)
    wanted = next(call, None)
    if wanted is not None:
        select.select([wanted.fileno], [], [], wanted.seconds)
        with pytest.raises(Exception, match="no answer in 8s"):
            call.throw(TimeoutError("no answer in 8s"))

    assert {each.claimed.id for each in store.owned(worker)} | {each.id for each in claim(store, worker)} == {job_id}
