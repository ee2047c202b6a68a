from __future__ import annotations

import json
from datetime import timedelta

import pytest

from conformance.factories import (
    LEASE,
    World,
    bring,
    claim,
    claim_one,
    draft,
    finish,
    kept_elsewhere,
    look,
    put,
    running,
    start,
)
from tenure.core.lifecycle import Crashed, Failed, Lease, Outcome, Released, State
from tenure.ports import BATCH_BYTES, Claimed, Owned, Progress, Store, may_be_cut


def ids(claimed: list[Claimed]) -> list[str]:
    return [each.id for each in claimed]


def test_a_claim_hands_over_all_that_running_needs(store: Store) -> None:
    worker = start(store)
    job_id = put(store, task="resize", payload='{"w": 1}', meta='{"a": "b"}', timeout=5.0, stale_after=60.0)

    (claimed,) = claim(store, worker)

    assert claimed == Claimed(
        id=job_id,
        attempt=1,
        task="resize",
        queue="default",
        payload='{"w": 1}',
        failures=0,
        crashes=0,
        meta='{"a": "b"}',
        checkpoint=None,
        timeout=5.0,
        stale_after=60.0,
        enqueued_ms=round(store.now().timestamp() * 1000),
        expired=False,
    )
    view = look(store, job_id)
    assert (view.state, view.worker_id, view.attempt) == (State.PROCESSING, worker, 1)
    assert view.started_at == view.last_activity_at == store.now()


def test_higher_priority_goes_first_then_time_then_id(world: World) -> None:
    store = world.store()
    worker = start(store)
    low, early, twin = put(store, priority=-100), put(store), put(store)
    world.advance(1)
    late, high = put(store), put(store, priority=100)

    assert ids(claim(store, worker, 5)) == [high, early, twin, late, low]


def test_ids_order_jobs_of_the_same_moment_however_they_arrived(store: Store) -> None:
    worker = start(store)
    names = [f"00000000-0000-7000-8000-00000000000{n}" for n in (3, 1, 2)]
    for name in names:
        put(store, id=name)

    assert ids(claim(store, worker, 3)) == sorted(names)


@pytest.mark.parametrize("keeps_its_place", [Released("drain"), Crashed("hung")], ids=repr)
def test_released_and_first_rescued_jobs_keep_their_place(keeps_its_place: Outcome, world: World) -> None:
    store = world.store()
    worker = start(store)
    first = put(store)
    world.advance(1)
    second = put(store)
    finish(store, claim_one(store, worker), keeps_its_place)

    assert ids(claim(store, worker, 2)) == [first, second]


def test_a_retry_takes_its_new_place(world: World) -> None:
    store = world.store()
    worker = start(store)
    retried = running(store, worker)
    second = put(store)
    finish(store, retried, Failed("boom", retry_in=5))
    assert look(store, retried.job_id).run_at == store.now() + timedelta(seconds=5)
    world.advance(5)
    store.promote()

    assert ids(claim(store, worker, 2)) == [second, retried.job_id]


def test_a_claim_takes_no_more_than_asked(store: Store) -> None:
    worker = start(store)
    for queue in ("a", "b", "c"):
        for _ in range(3):
            put(store, queue=queue)

    claimed = store.claim(worker, {"c": 2, "nothing-here": 9, "a": 9}, 4)

    assert [each.queue for each in claimed] == ["c", "c", "a", "a"]
    assert store.claim(worker, {"b": 3}, 0) == []
    assert store.claim(worker, {"b": 0}, 3) == []
    assert store.claim(worker, {}, 3) == []
    assert len(store.claim(worker, {"b": 9}, 9)) == 3


def test_the_attempt_number_rises_with_every_claim(world: World) -> None:
    store = world.store()
    worker = start(store)
    put(store)

    for attempt in range(1, 5):
        lease = claim_one(store, worker)
        assert lease.attempt == attempt
        finish(store, lease, Released("drain"))


def test_the_next_attempt_finds_what_the_last_one_left(store: Store) -> None:
    lease = running(store)
    left = Progress(lease=lease, fraction=0.5, stage="fetch", message="half", checkpoint='{"n": 5}')
    assert store.progress([left]) == [True]
    finish(store, lease, Released("drain"))

    (claimed,) = claim(store, start(store))

    view = look(store, lease.job_id)
    assert claimed.checkpoint == view.checkpoint == '{"n": 5}'
    assert (view.stage, view.progress, view.message) == ("fetch", 0.5, "half")


def test_a_claim_tells_what_was_charged_before(world: World) -> None:
    store = world.store()
    finish(store, running(store), Failed("boom", retry_in=1))
    world.advance(1)
    store.promote()
    finish(store, claim_one(store, start(store)), Crashed("hung"))

    (claimed,) = claim(store, start(store))

    assert (claimed.attempt, claimed.failures, claimed.crashes) == (3, 1, 1)


@pytest.mark.parametrize("late", [False, True])
def test_a_job_claimed_after_its_time_says_so(late: bool, world: World) -> None:
    store = world.store()
    job_id = put(store, delay=10.0, expires=60.0)
    world.advance(10)
    store.promote()
    world.advance(61 if late else 59)

    worker = start(store)
    (claimed,) = claim(store, worker)

    assert (claimed.id, claimed.expired) == (job_id, late)
    assert store.owned(worker)[0].claimed.expired == late


def test_a_worker_nobody_knows_claims_nothing(store: Store) -> None:
    put(store)

    assert claim(store, "host-1-never-registered") == []


def test_a_dead_worker_claims_nothing(store: Store) -> None:
    worker = start(store)
    put(store)
    store.declare_dead([worker])

    assert claim(store, worker) == []


def test_a_worker_whose_lease_is_over_claims_nothing_until_it_renews(world: World) -> None:
    store = world.store()
    worker = start(store)
    job_id = put(store)
    world.advance(LEASE + 1)

    assert claim(store, worker) == []
    assert look(store, job_id).state is State.QUEUED

    assert store.renew([worker]) == {worker}
    assert ids(claim(store, worker)) == [job_id]


def test_solo_jobs_and_the_others_never_mix(store: Store) -> None:
    worker = start(store)
    shared, alone = put(store), put(store, isolated=True)

    assert store.solo_waiting(["default"]) == 1
    assert store.solo_waiting(["other"]) == 0
    assert ids(claim(store, worker, 5, solo=True)) == [alone]
    assert store.solo_waiting(["default"]) == 0
    put(store, isolated=True)
    assert ids(claim(store, worker, 5)) == [shared]
    assert store.solo_waiting(["default"]) == 1


def test_no_one_slot_worker_is_needed_for_a_paused_queue(store: Store) -> None:
    put(store, isolated=True)
    store.pause("default", paused=True)

    assert store.solo_waiting(["default"]) == 0


def test_a_job_that_saw_its_process_die_runs_alone_next(store: Store) -> None:
    lease = running(store)
    store.settle(lease.worker_id, {}, Crashed("killed by signal 9", process_died=True))

    assert claim(store, start(store)) == []
    assert claim_one(store, start(store), solo=True).job_id == lease.job_id


def test_owned_answers_every_lease_and_every_cancel_asked(store: Store) -> None:
    worker = start(store)
    jobs = [put(store) for _ in range(3)]
    claimed = claim(store, worker, 3)
    running(store)
    store.cancel([jobs[1]], "not needed")

    owned = store.owned(worker)

    assert sorted(owned) == [Owned(c, "not needed" if c.id == jobs[1] else None) for c in claimed]
    assert store.owned("host-1-nobody") == []


def test_owned_reads_only_what_the_caller_does_not_know(store: Store) -> None:
    worker = start(store)
    jobs = [put(store, payload=f"[{n}]") for n in range(3)]
    claimed = {Lease(each.id, each.attempt, worker): each for each in claim(store, worker, 3)}
    store.cancel([jobs[0]], "not needed")
    first, second, third = claimed
    mine = claimed[first]._replace(payload="as the caller has it")

    known = {first: mine, second._replace(attempt=7): mine, Lease(put(store), 1, worker): mine}
    owned = store.owned(worker, known)

    assert sorted(owned) == [Owned(mine, "not needed"), Owned(claimed[second], None), Owned(claimed[third], None)]


def test_owned_forgets_what_has_ended(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Released("drain"))

    assert store.owned(lease.worker_id) == []


@pytest.mark.parametrize("state", [state for state in State if state is not State.QUEUED])
def test_only_queued_jobs_are_claimed(state: State, store: Store) -> None:
    bring(store, state)

    assert claim(store, start(store), 5) == []


def test_a_claimed_job_is_not_claimed_again(store: Store) -> None:
    lease = running(store)

    assert claim(store, lease.worker_id) == claim(store, start(store)) == []
    assert look(store, lease.job_id).attempt == 1


def test_what_takes_an_earlier_place_amid_a_long_queue_is_not_passed_over(world: World) -> None:
    store = world.store()
    worker = start(store)
    world.advance(10)
    store.enqueue([draft() for _ in range(300)])
    assert len(claim(store, worker, 100)) == 100
    urgent, earlier = put(store, priority=10), put(store, delay=-5.0)

    assert claim(store, worker)[0].id == urgent
    rest = [each.id for each in claim(store, worker, 250)]
    assert len(rest) == 201
    assert earlier in rest


def test_a_long_queue_does_not_hide_another(world: World) -> None:
    store = world.store()
    worker = start(store)
    store.enqueue([draft(queue="long") for _ in range(300)])
    for _ in range(2):
        store.claim(worker, {"long": 100, "short": 100}, 100)
    put(store, queue="short")

    assert len(store.claim(worker, {"short": 100, "long": 100}, 100)) == 100
    assert len(store.claim(worker, {"long": 100, "short": 100}, 100)) == 1


def test_a_claim_ends_with_the_job_that_makes_it_large(store: Store) -> None:
    """A hundred at once could take longer to send than any limit allows, or be more than a store can pack."""
    if kept_elsewhere(store):
        pytest.skip("a claim has only what stands for a large value")
    worker, size = start(store), 240_000
    jobs = [put(store, payload=f'"{"ä" * (size // 2)}"', queue=queue) for queue in ("a", "b") for _ in range(15)]
    found: list[str] = []
    while some := store.claim(worker, {"a": 100, "b": 100}, 100):
        taken = sum(len(each.payload.encode()) for each in some)
        assert taken < BATCH_BYTES + 2 * size
        assert may_be_cut(some) or len(found) + len(some) == len(jobs)
        found += [each.id for each in some]
    assert found == jobs


def test_a_claim_ends_with_the_job_whose_meta_makes_it_large(store: Store) -> None:
    worker, size = start(store), 240_000
    jobs = [put(store, meta=json.dumps({"a": "ä" * size}, ensure_ascii=False)) for _ in range(25)]
    found: list[str] = []
    while some := claim(store, worker, 100):
        assert sum(len(each.meta.encode()) for each in some) < BATCH_BYTES + 4 * size
        assert may_be_cut(some) or len(found) + len(some) == len(jobs)
        found += ids(some)
    assert found == jobs


def test_a_job_larger_than_a_batch_is_claimed(store: Store) -> None:
    if kept_elsewhere(store):
        pytest.skip("a claim has only what stands for a large value")
    worker, large = start(store), f'"{"x" * (BATCH_BYTES + 1)}"'
    first, second = put(store, payload=large), put(store)

    (claimed,) = claim(store, worker, 2)

    assert (claimed.id, claimed.payload) == (first, large)
    assert may_be_cut([claimed])
    assert [each.id for each in claim(store, worker, 2)] == [second]


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_jobs_of_just_their_share_of_a_batch_are_all_handed_over(more: int, store: Store) -> None:
    """Jobs that are smaller may be packed in another way."""
    if kept_elsewhere(store):
        pytest.skip("a claim has only what stands for a large value")
    worker, size = start(store), BATCH_BYTES // 2 + more - len("{}")  # of its meta
    jobs = [put(store, payload=f'"{"x" * (size - 2)}"') for _ in range(2)]

    found = ids(claim(store, worker, 2))
    assert found + ids(claim(store, worker, 2)) == jobs


# ── From very many queues: the store looks only into those that have jobs ──


@pytest.mark.parametrize("solo", [False, True], ids=["ordinary", "solo"])
def test_a_claim_from_very_many_queues_takes_the_same_as_one_from_few(solo: bool, store: Store) -> None:
    queues = [f"queue-{number}" for number in range(100)]
    for number in (70, 7, 55, 30):
        put(store, queue=f"queue-{number}", isolated=solo)
        put(store, queue=f"queue-{number}", isolated=not solo)
    put(store, queue="queue-20", delay=60.0)
    put(store, queue="queue-21", isolated=not solo)
    put(store, queue="not-served", isolated=solo)
    store.pause("queue-30", paused=True)
    served = dict.fromkeys([*queues[50:], *queues[:50]], 5)  # in the order in which they are asked for

    taken: list[Claimed] = []
    while more := store.claim(start(store), served, 2, solo=solo):
        taken += more

    assert [each.queue for each in taken] == ["queue-55", "queue-70", "queue-7"]
    assert {view.name for view in store.queues()} >= {"queue-20", "queue-21", "queue-30", "not-served"}


def test_a_queue_that_was_empty_is_claimed_from_as_soon_as_it_has_a_job(world: World) -> None:
    store = world.store()
    served = {f"queue-{number}": 5 for number in range(100)}
    worker = start(store)
    for _ in range(3):  # what the store learned of an empty queue is forgotten in time
        assert store.claim(worker, served, 5) == []
        now, later = put(store, queue="queue-7"), put(store, queue="queue-8", delay=1.0)
        assert ids(store.claim(worker, served, 5)) == [now]
        world.advance(1)
        store.promote()
        assert ids(store.claim(worker, served, 5)) == [later]
        finish(store, Lease(later, 1, worker), Released("drain"))
        assert ids(store.claim(worker, served, 5)) == [later]


def test_among_more_queues_of_other_workers_ones_own_are_found(store: Store) -> None:
    store.enqueue([draft(queue=f"other-{number}") for number in range(100)])
    wanted = put(store, queue="zone-7")

    assert ids(store.claim(start(store), {f"zone-{number}": 5 for number in range(25)}, 5)) == [wanted]
    put(store, queue="zone-8", isolated=True)
    assert store.solo_waiting([f"zone-{number}" for number in range(25)]) == 1
