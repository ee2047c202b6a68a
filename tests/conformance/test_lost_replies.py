"""The store did it, and the answer never came: asking again with the same ids and leases is safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from conformance.factories import (
    claim,
    claim_one,
    draft,
    everything,
    finish,
    look,
    memory_of,
    put,
    running,
    start,
)
from tenure.core.lifecycle import Completed, Crashed, Edge, Failed, Lease, Outcome, Released, Snoozed, State, Suspended
from tenure.errors import StoreAway
from tenure.ports import Landed, Links, OnceRecord, Progress, Store


class Lossy:
    """A store whose line breaks after the work and before the answer, once for each verb named in `losing`."""

    def __init__(self, store: Store, *losing: str) -> None:
        self._store = store
        self._losing = set(losing)

    def __getattr__(self, verb: str) -> Any:
        method: Callable[..., Any] = getattr(self._store, verb)
        if verb not in self._losing:
            return method

        def lost(*args: Any, **options: Any) -> None:
            self._losing.discard(verb)
            method(*args, **options)
            raise StoreAway("the line broke")

        return lost


def lossy(store: Store, *losing: str) -> Store:
    return cast("Store", Lossy(store, *losing))


def test_an_enqueue_asked_again_is_one_job(store: Store) -> None:
    line, batch = lossy(store, "enqueue"), [draft(), draft(unique="k")]
    with pytest.raises(StoreAway):
        line.enqueue(batch)

    again = line.enqueue(batch)

    assert [each.id for each in again] == [each.id for each in batch]
    assert [each.created for each in again] == [False, False]
    assert len(everything(store)) == 2


def test_a_claim_whose_reply_was_lost_is_found_and_run(store: Store) -> None:
    line, worker = lossy(store, "claim"), start(store)
    jobs = {put(store), put(store)}
    with pytest.raises(StoreAway):
        claim(line, worker, 2)
    assert claim(line, worker, 2) == []

    owned = line.owned(worker)

    assert {each.claimed.id for each in owned} == jobs
    leases = [Lease(each.claimed.id, each.claimed.attempt, worker) for each in owned]
    assert store.progress([Progress(lease=lease, fraction=0.5) for lease in leases]) == [True, True]
    assert store.finish([(lease, Completed()) for lease in leases]) == [Landed(State.COMPLETED)] * 2
    assert line.owned(worker) == []


@pytest.mark.parametrize(
    "outcome",
    [
        Completed("1"),
        Failed("boom"),
        Failed("no", final=True),
        Snoozed(5),
        Released("drain"),
        Suspended("waits for an approval", signal="own:approved", timeout=60.0),
    ],
    ids=repr,
)
def test_a_finish_asked_again_hears_that_it_landed(outcome: Outcome, store: Store) -> None:
    lease = running(store, max_failures=3)
    line = lossy(store, "finish")
    with pytest.raises(StoreAway):
        line.finish([(lease, outcome)])
    after = memory_of(store, lease.job_id)

    (answer,) = line.finish([(lease, outcome)])

    assert answer == Landed(look(store, lease.job_id).state)
    assert memory_of(store, lease.job_id) == after


def test_a_suspension_behind_another_job_asked_again_has_one_edge_and_is_admitted_once(store: Store) -> None:
    lease, other = running(store), put(store)
    line, outcome = lossy(store, "finish", "admit"), Suspended("joins another", after=(Edge(other, "ended"),))
    with pytest.raises(StoreAway):
        line.finish([(lease, outcome)])

    assert line.finish([(lease, outcome)]) == [Landed(State.WAITING)]
    assert [each.parent for each in store.inputs(lease.job_id)] == [other]
    while store.admit().more:
        pass
    finish(store, claim_one(store, start(store)), Failed("boom", final=True))
    with pytest.raises(StoreAway):
        line.admit()
    while line.admit().more:
        pass
    assert [each.id for each in claim(store, start(store), 10)] == [lease.job_id]


def test_a_skip_asked_again_is_the_same_skip(store: Store) -> None:
    parent = put(store)
    child = put(store, links=Links(after=(Edge(parent),)))
    while store.admit().more:
        pass
    finish(store, claim_one(store, start(store)), Failed("boom", final=True))
    line = lossy(store, "skip")
    with pytest.raises(StoreAway):
        line.skip([parent])

    assert line.skip([parent]) == {parent: Landed(State.DEAD)}
    while store.admit().more:
        pass
    assert [each.id for each in claim(store, start(store), 10)] == [child]


def test_a_finish_that_found_a_cancel_says_so_again(store: Store) -> None:
    lease = running(store)
    store.cancel([lease.job_id], "unwanted")
    line = lossy(store, "finish")
    with pytest.raises(StoreAway):
        line.finish([(lease, Released("asked"))])

    assert line.finish([(lease, Released("asked"))]) == [Landed(State.CANCELLED)]


def test_a_batch_asked_again_lands_what_had_not_and_confirms_the_rest(store: Store) -> None:
    worker = start(store)
    leases = [running(store, worker) for _ in range(3)]
    finish(store, leases[1], Completed("1"))

    answers = store.finish([(lease, Completed(str(n))) for n, lease in enumerate(leases)])

    assert answers == [Landed(State.COMPLETED)] * 3
    assert [look(store, lease.job_id).result for lease in leases] == ["0", "1", "2"]


def test_a_finish_asked_again_after_the_next_claim_touches_nothing(store: Store) -> None:
    lease = running(store)
    line = lossy(store, "finish")
    with pytest.raises(StoreAway):
        line.finish([(lease, Released("drain"))])
    owner = claim_one(store, start(store))
    after = memory_of(store, lease.job_id)

    assert line.finish([(lease, Released("drain"))]) == [Landed(State.PROCESSING)]

    assert memory_of(store, lease.job_id) == after
    assert finish(store, owner, Completed()) is State.COMPLETED


def test_progress_asked_again_is_the_same_progress(store: Store) -> None:
    lease = running(store)
    line, said = lossy(store, "progress"), [Progress(lease=lease, fraction=0.5, checkpoint="7")]
    with pytest.raises(StoreAway):
        line.progress(said)
    after = memory_of(store, lease.job_id)

    assert line.progress(said) == [True]
    assert memory_of(store, lease.job_id) == after


def test_once_asked_again_finds_its_own_record(store: Store) -> None:
    lease = running(store)
    line = lossy(store, "once")
    with pytest.raises(StoreAway):
        line.once(lease, "charge", '"receipt"')

    assert line.once(lease, "charge", None) == OnceRecord('"receipt"')


def test_a_settle_asked_again_charges_nothing_more(store: Store) -> None:
    lease = running(store)
    line, verdict = lossy(store, "settle"), {lease.job_id: Crashed("killed by signal 9", process_died=True)}
    with pytest.raises(StoreAway):
        line.settle(lease.worker_id, verdict, Released())
    after = memory_of(store, lease.job_id)

    assert line.settle(lease.worker_id, verdict, Released()) == []
    assert memory_of(store, lease.job_id) == after
    assert look(store, lease.job_id).crashes == 1


def test_a_rescue_asked_again_clears_nothing_twice(store: Store) -> None:
    lease = running(store)
    store.declare_dead([lease.worker_id])
    line = lossy(store, "rescue")
    with pytest.raises(StoreAway):
        line.rescue()
    owner = claim_one(store, start(store), solo=True)

    assert line.rescue() == []
    assert look(store, lease.job_id).worker_id == owner.worker_id


def test_a_declaration_asked_again_stays_declared(store: Store) -> None:
    worker = start(store)
    line = lossy(store, "declare_dead", "renew")
    with pytest.raises(StoreAway):
        line.renew([worker])
    with pytest.raises(StoreAway):
        line.declare_dead([worker])

    assert line.declare_dead([worker]) == line.renew([worker]) == frozenset()


def test_an_operators_word_asked_again_is_one_word(store: Store) -> None:
    dead = running(store)
    finish(store, dead, Failed("boom", final=True))
    line = lossy(store, "replay", "cancel", "delete")
    with pytest.raises(StoreAway):
        line.replay([dead.job_id])
    line.replay([dead.job_id])
    assert look(store, dead.job_id).state is State.QUEUED

    with pytest.raises(StoreAway):
        line.cancel([dead.job_id], "once")
    assert line.cancel([dead.job_id], "twice") == {dead.job_id: State.CANCELLED}
    assert look(store, dead.job_id).cancel_reason == "once"

    with pytest.raises(StoreAway):
        line.delete([dead.job_id])
    assert line.delete([dead.job_id]) == {dead.job_id: None}
