"""The check that no ask was lost (W1): it finds those that a test loses, and nothing else, on every store."""

from __future__ import annotations

import logging

import pytest

from conformance.factories import World, claim, finish, lose_asks, put, race, running, start
from conformance.test_limits import SHOP, declare, limited
from conformance.test_waiting import child_of, end, settle_waits
from tenure.core.lifecycle import Cancelled, Completed, Failed, Lease, Suspended
from tenure.maintenance import wait_check
from tenure.maintenance.wait_check import WaitCheck, lost_waits
from tenure.ports import LINKS_PROTOCOL, Claimed, Filter, Store
from tenure.stores.rules import MOST_ASKS


def test_a_job_waits_for_one_whose_end_was_not_noticed(store: Store) -> None:
    ended, other = put(store), put(store, delay=3600)
    child, both = child_of(store, ended), child_of(store, other, ended)
    settle_waits(store)
    end(store, ended)
    assert store.lost_waits([child, both]) == {}, "an ask is left"

    lose_asks(store)
    assert store.lost_waits([child, both, ended, "no-job"]) == {child: [ended], both: [ended]}
    store.ask([child, ended])
    assert settle_waits(store) == [child]
    assert store.lost_waits([child, both]) == {}


def test_a_job_was_stored_and_nobody_looked(store: Store) -> None:
    ended = put(store)
    end(store, ended)
    child = child_of(store, ended)
    assert store.lost_waits([child]) == {}

    lose_asks(store)
    assert store.lost_waits([child]) == {child: [ended]}
    store.ask([child])
    assert settle_waits(store) == [child]


@pytest.mark.parametrize("shared", [False, True])
def test_a_signal_was_not_noticed(store: Store, *, shared: bool) -> None:
    key, owner = ("shared:go", None) if shared else ("own:go", "it")
    lease = running(store)
    finish(store, lease, Suspended("for a word", signal=key))
    settle_waits(store)
    assert store.lost_waits([lease.job_id]) == {}
    store.signal(owner and lease.job_id, key, "1")
    assert store.lost_waits([lease.job_id]) == {}

    lose_asks(store)
    assert store.lost_waits([lease.job_id]) == {lease.job_id: []}
    store.ask([lease.job_id])
    assert settle_waits(store) == [lease.job_id]


def test_a_parent_was_cancelled_or_deleted_and_nobody_told_its_child(store: Store) -> None:
    other = put(store, delay=3600)
    for ends in (lambda job: store.cancel([job], "unwanted"), lambda job: store.delete([job])):
        parent = put(store, delay=3600)
        store.cancel([parent], "unwanted")
        child = child_of(store, parent, other)
        lose_asks(store)
        ends(parent)
        lose_asks(store)

        assert store.lost_waits([child]) == {child: [parent]}
        store.ask([child, parent])
        settle_waits(store)
        assert store.lost_waits([child]) == {}
        assert [job.id for job in store.search(Filter(), limit=1).jobs if not job.ended_at] == []


def test_what_something_holds_is_not_lost(world: World) -> None:
    store = world.store()
    dead, expired = put(store, max_failures=1), put(store, expires=60.0, delay=30.0)
    end(store, dead, Failed("no disk"))
    lease = running(store)
    finish(store, lease, Suspended("for a word", signal="own:go", timeout=3600.0))
    gatherer = running(store)
    gathered = put(store, delay=3600)
    timed = running(store)
    finish(store, timed, Suspended("for a word", signal="own:go", timeout=60.0))
    held = [
        timed.job_id,
        child_of(store, dead),
        child_of(store, expired),
        child_of(store, gathered, until="ended"),
        lease.job_id,
    ]
    held.append(child_of(store, lease.job_id, gatherer.job_id))
    declare(store, SHOP.limit, 1)
    held += limited(store, number=3)
    settle_waits(store)
    world.advance(90)
    assert store.lost_waits([timed.job_id]) == {}, "its time finds it"
    store.declare_expired()
    settle_waits(store)
    lose_asks(store)

    assert store.lost_waits(held) == {}


def test_what_ends_at_this_moment_is_not_lost(world: World) -> None:
    """While a process ends what jobs wait for and admits them, the check finds nothing: it reads all at one moment."""
    store, other = world.store(), world.store()
    far, worker = put(store, delay=3600), start(store)
    waiting = [child_of(store, far) for _ in range(100)]
    for _ in range(30):
        parents = [put(store) for _ in range(5)]
        children = [child_of(store, parent) for parent in parents]
        settle_waits(store)
        claimed = claim(store, worker, 10)

        def ends(claimed: list[Claimed] = claimed) -> dict[str, list[str]]:
            for each in claimed:
                finish(store, Lease(each.id, each.attempt, worker), Completed())
            while store.admit().more:
                pass
            return {}

        found = race(ends, *[lambda ids=(*waiting, *children): other.lost_waits(ids)] * 2)  # type: ignore[misc]
        assert found == [{}, {}, {}]
        store.cancel(children, "enough")


def test_beside_very_many_asks_nothing_is_looked_at(store: Store) -> None:
    child = child_of(store, put(store, delay=3600))
    lost = child_of(store, *[end_of(store) for _ in range(2)])
    lose_asks(store)
    far = [put(store, delay=3600) for _ in range(MOST_ASKS + 1)]
    store.ask(far)
    assert store.lost_waits([child, lost]) == {}
    while store.admit().more:
        pass
    assert list(store.lost_waits([child, lost])) == [lost]


def end_of(store: Store) -> str:
    """A job that has ended."""
    job = put(store)
    end(store, job)
    return job


def test_jobs_with_very_many_edges_keep_no_other_from_being_looked_at(store: Store) -> None:
    ended = [end_of(store) for _ in range(3)]
    wide = [child_of(store, *ended, *(put(store, delay=3600) for _ in range(250))) for _ in range(2)]
    lose_asks(store)
    narrow = [child_of(store, *ended) for _ in range(120)]
    lose_asks(store)
    assert set(store.lost_waits([*wide, *narrow])) >= set(narrow)


# ── The walk ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lost_wait_is_asked_for_told_and_kept_for_a_day(world: World, caplog: pytest.LogCaptureFixture) -> None:
    store = world.store()
    check, parent = WaitCheck(store), put(store)
    children = [child_of(store, parent) for _ in range(3)]
    settle_waits(store)
    end(store, parent)
    with caplog.at_level(logging.ERROR):
        check.turn(200)
        assert (caplog.messages, list(lost_waits(store))) == ([], [])
        lose_asks(store)
        check.turn(200)

    assert sorted(settle_waits(store)) == sorted(children)
    (message,) = caplog.messages
    assert message.startswith(
        "3 jobs of work waited for something that had happened, with no ask left; asked for again: "
    )
    (told,) = lost_waits(world.store())
    assert (told.task, set(told.jobs), told.many, told.at) == ("work", set(children), 3, store.now())
    check.turn(200)
    assert len(caplog.messages) == 1
    world.advance(wait_check.KEPT_SECONDS + 1)
    assert list(lost_waits(store)) == []


def test_the_walk_reaches_every_job_and_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_check, "_OLDEST", 1)
    store = world.store()
    check, parent = WaitCheck(store), put(store)
    put(store, delay=3600)
    far = put(store, delay=3600)
    child_of(store, far)
    for _ in range(2):
        first, *_, last = [child_of(store, parent if n in (0, 9) else far) for n in range(10)]
        settle_waits(store)
        end(store, parent)
        lose_asks(store)
        for _ in range(12):
            check.turn(3)
        assert sorted(settle_waits(store)) == sorted([first, last])
        parent = put(store)


def test_an_old_one_is_found_at_once(world: World) -> None:
    store = world.store()
    parent, far = put(store), put(store, delay=1e6)
    old = child_of(store, parent)
    world.advance(60)
    for _ in range(5):
        child_of(store, far)
    settle_waits(store)
    end(store, parent)
    lose_asks(store)
    WaitCheck(store).turn(1)
    assert settle_waits(store) == [old]


def test_nothing_is_told_while_an_older_worker_lives(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    lose_asks(store)
    older = start(store, protocol=LINKS_PROTOCOL - 1)
    WaitCheck(store).turn(200)
    assert list(lost_waits(store)) == []

    store.declare_dead([older])
    WaitCheck(store).turn(200)
    assert settle_waits(store) == [child]


def test_two_processes_tell_of_all_that_they_found(world: World) -> None:
    one, other = world.store(), world.store()
    found = set[str]()
    for store in (one, other):
        parent = put(store)
        found.add(child_of(store, parent))
        settle_waits(store)
        end(store, parent)
        lose_asks(store)
        WaitCheck(store).turn(200)
        settle_waits(store)
    (told,) = lost_waits(one)
    assert set(told.jobs) == found


def test_a_claim_between_is_no_loss(store: Store) -> None:
    """A cancelled job and one that was admitted are no longer waiting."""
    parent = put(store)
    child, cancelled = child_of(store, parent), child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    store.cancel([cancelled], "unwanted")
    lease = claim(store, start(store), 10)
    assert child in [each.id for each in lease]
    lose_asks(store)
    assert store.lost_waits([child, cancelled]) == {}


def test_a_cancelled_run_of_a_gatherer_is_no_loss(store: Store) -> None:
    gatherer = running(store)
    finish(store, gatherer, Cancelled("unwanted"))
    child = child_of(store, gatherer.job_id, until="ended")
    assert settle_waits(store) == [child]
    assert store.lost_waits([child, gatherer.job_id]) == {}
