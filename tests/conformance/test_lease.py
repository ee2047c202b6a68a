"""The ghost: a former owner wakes up and acts as if the job were still its own."""

from __future__ import annotations

from conformance.factories import (
    LEASE,
    World,
    assert_sound,
    claim_one,
    finish,
    look,
    memory_of,
    put,
    running,
    start,
)
from tenure.core.lifecycle import Completed, Failed, Lease, Released, State
from tenure.ports import Landed, NotLanded, OnceRecord, Progress, Store


def hand_over(world: World, store: Store) -> tuple[Lease, Lease]:
    """A worker goes silent for its whole lease, its job is rescued, another one claims it: (ghost, owner)."""
    ghost = running(store)
    world.advance(LEASE + 1)
    store.declare_expired()
    (rescued,) = store.rescue()
    assert (rescued.id, rescued.worker_id, rescued.cause) == (ghost.job_id, ghost.worker_id, "host")
    return ghost, claim_one(store, start(store))


def test_a_ghost_writes_nothing_over_the_new_owner(world: World) -> None:
    store = world.store()
    ghost, owner = hand_over(world, store)
    before = memory_of(store, owner.job_id)

    assert store.progress([Progress(lease=ghost, fraction=0.99, checkpoint='"old"')]) == [False]
    assert store.once(ghost, "mail", '"sent"') is None
    (refused,) = store.finish([(ghost, Completed('"ghost"'))])

    assert isinstance(refused, NotLanded)
    assert memory_of(store, owner.job_id) == before
    assert finish(store, owner, Completed('"owner"')) is State.COMPLETED
    assert look(store, owner.job_id).result == '"owner"'


def test_a_ghost_is_told_what_stands(world: World) -> None:
    store = world.store()
    ghost, owner = hand_over(world, store)

    (owned_by_another,) = store.finish([(ghost._replace(attempt=7), Completed())])
    finish(store, owner, Failed("boom", final=True))
    (ended,) = store.finish([(owner, Completed())])
    (unknown,) = store.finish([(ghost._replace(job_id="00000000-0000-0000-0000-000000000000"), Completed())])

    assert isinstance(owned_by_another, NotLanded)
    assert owner.worker_id in owned_by_another.stands
    assert isinstance(ended, NotLanded)
    assert "failed" in ended.stands
    assert str(owner.attempt) in ended.stands
    assert unknown == NotLanded("no such job")


def test_a_ghost_of_the_same_worker_is_still_a_ghost(store: Store) -> None:
    worker = start(store)
    first = running(store, worker)
    finish(store, first, Released("drain"))
    second = claim_one(store, worker)

    assert finish(store, first, Completed()) is None
    assert store.progress([Progress(lease=first)]) == [False]
    assert finish(store, second, Completed()) is State.COMPLETED


def test_a_ghost_does_not_end_the_job_after_its_owner_did(world: World) -> None:
    store = world.store()
    ghost, owner = hand_over(world, store)
    finish(store, owner, Completed('"owner"'))
    before = memory_of(store, owner.job_id)

    assert finish(store, ghost, Completed('"ghost"')) is None
    assert finish(store, ghost, Failed("ghost")) is None

    assert memory_of(store, owner.job_id) == before
    assert_sound(store)


def test_a_ghost_that_was_declared_dead_is_told_so_and_never_revived(world: World) -> None:
    store = world.store()
    ghost, _ = hand_over(world, store)
    put(store)

    assert store.renew([ghost.worker_id]) == frozenset()
    assert store.claim(ghost.worker_id, {"default": 1}, 1) == []
    assert store.owned(ghost.worker_id) == []


def test_a_lease_outlives_silence_as_long_as_nobody_took_the_job(world: World) -> None:
    store = world.store()
    lease = running(store)
    world.advance(LEASE * 10)

    assert store.progress([Progress(lease=lease, fraction=0.5)]) == [True]
    assert store.finish([(lease, Completed())]) == [Landed(State.COMPLETED)]


def test_a_replayed_job_is_safe_from_its_former_owner(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Failed("boom", final=True))
    store.replay([lease.job_id])
    again = claim_one(store, start(store))

    assert again.attempt == lease.attempt + 1
    assert finish(store, lease, Completed()) is None
    assert finish(store, again, Completed()) is State.COMPLETED


def test_once_keeps_the_first_word_across_attempts(store: Store) -> None:
    first = running(store)
    assert store.once(first, "charge", None) == OnceRecord(None)
    assert store.once(first, "charge", '"receipt 1"') == OnceRecord('"receipt 1"')
    assert store.once(first, "charge", '"receipt 2"') == OnceRecord('"receipt 1"')
    finish(store, first, Released("drain"))

    second = claim_one(store, start(store))

    assert store.once(second, "charge", None) == OnceRecord('"receipt 1"')
    assert store.once(second, "charge", '"receipt 3"') == OnceRecord('"receipt 1"')
    assert store.once(second, "mail", None) == OnceRecord(None)


def test_once_keys_belong_to_their_job(store: Store) -> None:
    here, there = running(store), running(store)
    store.once(here, "key", '"here"')

    assert store.once(there, "key", None) == OnceRecord(None)


def test_once_survives_a_replay_and_ends_with_the_job(store: Store) -> None:
    lease = running(store)
    store.once(lease, "key", "1")
    finish(store, lease, Completed())
    store.replay([lease.job_id])
    again = claim_one(store, start(store))
    assert store.once(again, "key", None) == OnceRecord("1")
    finish(store, again, Completed())

    store.delete([lease.job_id])

    fresh = running(store, id=lease.job_id)
    assert store.once(fresh, "key", None) == OnceRecord(None)


def test_progress_is_the_newest_word_of_the_attempt(world: World) -> None:
    store = world.store()
    lease = running(store)
    world.advance(7)
    said = Progress(lease=lease, fraction=0.25, stage="fetch", message="1 of 4", checkpoint="1")
    assert store.progress([said]) == [True]
    world.advance(7)
    assert store.progress([Progress(lease=lease, message="still 1 of 4")]) == [True]

    view = look(store, lease.job_id)
    assert (view.progress, view.stage, view.message, view.checkpoint) == (0.25, "fetch", "still 1 of 4", "1")
    assert view.last_activity_at == store.now()
    assert view.state is State.PROCESSING


def test_progress_answers_each_report(store: Store) -> None:
    good, other = running(store), running(store)
    lost = good._replace(attempt=9)

    answers = store.progress([Progress(lease=lost), Progress(lease=good, fraction=0.0), Progress(lease=other)])

    assert answers == [False, True, True]
    assert look(store, good.job_id).progress == 0.0
    assert store.progress([]) == []


def test_two_reports_of_one_batch_land_in_order(store: Store) -> None:
    lease = running(store)

    store.progress([Progress(lease=lease, message="older", checkpoint="1"), Progress(lease=lease, message="newer")])

    view = look(store, lease.job_id)
    assert (view.message, view.checkpoint) == ("newer", "1")


def test_log_lines_alone_are_stored_under_the_lease_and_are_activity(world: World) -> None:
    store = world.store()
    lease = running(store, stale_after=5.0)
    world.advance(3)

    assert store.progress([Progress(lease=lease, log="a line")]) == [True]
    assert store.progress([Progress(lease=lease._replace(attempt=9), log="another")]) == [False]

    seen = look(store, lease.job_id)
    assert store.logs(lease.job_id) == {1: "a line"}
    assert (seen.progress, seen.stage, seen.message, seen.checkpoint) == (None, None, None, None)
    assert seen.last_activity_at == store.now()
