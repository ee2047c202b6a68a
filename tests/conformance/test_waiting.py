"""Jobs that wait: for jobs before them, or for a signal. Every store answers alike, whenever and however often
`admit` is called. W1 to W8 are the rules of docs/flows.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from conformance.factories import DAY, World, claim, claim_one, draft, finish, look, lose_asks, put, running, start
from tenure.core.lifecycle import (
    EXPIRED,
    LIVE,
    Cancelled,
    Completed,
    Crashed,
    Edge,
    Failed,
    Lease,
    Outcome,
    Released,
    Snoozed,
    State,
    Suspended,
)
from tenure.errors import BadData
from tenure.ports import Edit, Filter, Landed, Links, NotLanded, Store, Waits

FLOW = "0190a0a0-0000-7000-8000-000000000001"
ALL = ("completed", "ended")


def settle_waits(store: Store) -> list[str]:
    """Admit until no ask is left; the jobs that were queued. A job that still waits then has something to wait for."""
    admitted: list[str] = []
    for _ in range(1000):
        found = store.admit()
        admitted += [each for ids in found.jobs.values() for each in ids]
        if not found.more:
            waiting = store.search(Filter(states=frozenset({State.WAITING})), limit=1000).jobs
            assert store.lost_waits([job.id for job in waiting]) == {}
            return admitted
    raise AssertionError("admit never comes to an end")


def after(*parents: str, until: Any = "completed", **options: Any) -> Links:
    return Links(after=tuple(Edge(parent, until) for parent in parents), **options)


def child_of(store: Store, *parents: str, until: Any = "completed", **options: Any) -> str:
    job_id = put(store, links=after(*parents, until=until), **options)
    assert look(store, job_id).state is State.WAITING
    return job_id


def end(store: Store, job_id: str, outcome: Outcome | None = None) -> None:
    """A worker claims this job, which is queued, and ends it with this outcome."""
    worker = start(store)
    claimed = claim(store, worker, 100, solo=look(store, job_id).solo)
    assert job_id in [each.id for each in claimed]
    for each in claimed:
        wanted = outcome or Completed('"done"') if each.id == job_id else Released("not its turn")
        finish(store, Lease(each.id, each.attempt, worker), wanted)


def state(store: Store, job_id: str) -> State:
    return look(store, job_id).state


def gathered(store: Store, lease: Lease, *, number: int = 2, until: Any = "completed", **options: Any) -> list[str]:
    """Children of a running job, which is then suspended."""
    links = Links(gatherer=lease.job_id, gathered=until)
    drafts = [draft(links=links, **options) for _ in range(number)]
    ids = [answer.id for answer in store.enqueue(drafts)]
    assert finish(store, lease, Suspended("for its children")) is State.WAITING
    return ids


def resumed(store: Store, job_id: str) -> Lease:
    assert job_id in settle_waits(store)
    lease = claim_one(store, start(store))
    assert lease.job_id == job_id
    return lease


# ── One after another ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("until", ALL)
def test_a_child_waits_until_its_parent_has_completed(until: str, store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent, until=until)

    assert settle_waits(store) == []
    assert state(store, child) is State.WAITING
    end(store, parent)
    assert settle_waits(store) == [child]

    assert state(store, child) is State.QUEUED
    assert look(store, child).attempt == 0


@pytest.mark.parametrize("looked", [False, True])
def test_a_child_of_two_waits_for_the_last(looked: bool, store: Store) -> None:
    first, second = put(store), put(store)
    child = child_of(store, first, second)
    if looked:
        assert settle_waits(store) == []
    end(store, second)
    assert settle_waits(store) == []
    end(store, first)
    assert settle_waits(store) == [child]


def test_parents_that_have_ended_before_are_no_wait(store: Store) -> None:
    parent = put(store)
    end(store, parent)
    assert settle_waits(store) == []
    child = child_of(store, parent)
    assert settle_waits(store) == [child]


def test_a_chain_runs_in_its_order(store: Store) -> None:
    first = draft()
    second = draft(links=after(first.id))
    third = draft(links=after(second.id))
    store.enqueue([first, second, third])
    settle_waits(store)
    for each, following in ((first, [second.id]), (second, [third.id]), (third, [])):
        end(store, each.id)
        assert settle_waits(store) == following


def test_a_diamond_ends_in_one(store: Store) -> None:
    top = draft()
    left, right = draft(links=after(top.id)), draft(links=after(top.id))
    bottom = draft(links=after(left.id, right.id))
    store.enqueue([top, left, right, bottom])
    end(store, top.id)
    assert sorted(settle_waits(store)) == sorted([left.id, right.id])
    end(store, left.id)
    assert settle_waits(store) == []
    end(store, right.id)
    assert settle_waits(store) == [bottom.id]


@pytest.mark.parametrize("limit", [1, 3, 200])
def test_a_wide_fan_in_is_admitted_once_whatever_the_batch(limit: int, store: Store) -> None:
    parents = [draft() for _ in range(250)]
    child = draft(links=after(*(each.id for each in parents)))
    store.enqueue([*parents, child])
    worker = start(store)
    admitted: list[str] = []

    def step() -> bool:
        found = store.admit(limit=limit)
        admitted.extend(each for ids in found.jobs.values() for each in ids)
        return found.more

    step()
    for _ in range(5):
        ends = [(Lease(each.id, each.attempt, worker), Completed()) for each in claim(store, worker, 50)]
        assert admitted == []
        store.finish(ends)
        step()
    for _ in range(2000):
        if not step():
            break

    assert admitted == [child.id]
    inputs = [each for start_at in range(0, 250, 100) for each in store.inputs(child.id, start=start_at, limit=100)]
    assert [each.parent for each in inputs] == [each.id for each in parents]
    assert [each.place for each in inputs] == list(range(250))
    assert not any(each.open for each in inputs)


def test_a_wide_fan_out_is_admitted_wholly(store: Store) -> None:
    parent = put(store)
    drafts = [draft(links=after(parent)) for _ in range(450)]
    store.enqueue(drafts)
    settle_waits(store)
    end(store, parent)
    assert sorted(settle_waits(store)) == sorted(each.id for each in drafts)


def test_admission_makes_due_at_once_in_the_order_of_admission(world: World) -> None:
    """W6."""
    store = world.store()
    parent = put(store)
    child = child_of(store, parent)
    world.advance(100)
    end(store, parent)
    now = store.now()
    settle_waits(store)
    assert look(store, child).run_at >= now


def test_a_child_that_is_due_later_is_scheduled(world: World) -> None:
    """W6."""
    store = world.store()
    parent = put(store)
    child = child_of(store, parent, delay=100)
    due = look(store, child).run_at
    end(store, parent)
    assert settle_waits(store) == []
    assert state(store, child) is State.SCHEDULED
    assert look(store, child).run_at == due
    world.advance(101)
    assert store.promote().jobs == {"default": [child]}


def test_expires_counts_from_the_admission(world: World) -> None:
    """W6."""
    store = world.store()
    parent = put(store)
    child = child_of(store, parent, expires=60)
    world.advance(1000)
    end(store, parent)
    settle_waits(store)
    view = look(store, child)
    assert view.expires_at is not None
    assert view.expires_at - view.run_at == timedelta(seconds=60)
    (claimed,) = claim(store, start(store))
    assert (claimed.id, claimed.expired) == (child, False)


# ── Parents that end otherwise ──────────────────────────────────────────────────────────────────────────────────


def test_a_dead_parent_holds_its_child_until_it_is_mended(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    end(store, parent, Failed("boom", final=True))
    assert settle_waits(store) == []
    assert state(store, child) is State.WAITING
    assert isinstance(store.replay([parent])[parent], Landed)
    assert settle_waits(store) == []
    end(store, parent)
    assert settle_waits(store) == [child]


def test_a_parent_that_was_dead_already_holds_too(store: Store) -> None:
    parent = put(store)
    end(store, parent, Failed("boom", final=True))
    child = child_of(store, parent)
    assert settle_waits(store) == []
    assert isinstance(store.replay([parent])[parent], Landed)
    end(store, parent)
    assert settle_waits(store) == [child]


def test_a_retry_of_the_parent_is_no_end(world: World) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent, until="ended")
    settle_waits(store)
    end(store, parent, Failed("later", retry_in=10))
    assert settle_waits(store) == []
    world.advance(11)
    store.promote()
    end(store, parent)
    assert settle_waits(store) == [child]


@pytest.mark.parametrize("outcome", [Failed("boom", final=True), Cancelled("unwanted")])
def test_after_any_end_means_any(outcome: Outcome, store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent, until="ended")
    settle_waits(store)
    end(store, parent, outcome)
    assert settle_waits(store) == [child]


def test_a_cancelled_parent_cancels_those_that_need_its_result_and_theirs(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    grandchild = child_of(store, child)
    other = child_of(store, parent, until="ended")
    settle_waits(store)
    store.cancel([parent], "unwanted")
    assert settle_waits(store) == [other]
    for each in (child, grandchild):
        assert state(store, each) is State.CANCELLED
    assert parent in str(look(store, child).error)
    assert child in str(look(store, grandchild).error)


def test_a_parent_that_was_cancelled_before_cancels_too(store: Store) -> None:
    parent = put(store)
    store.cancel([parent], "unwanted")
    child = child_of(store, parent)
    assert settle_waits(store) == []
    assert state(store, child) is State.CANCELLED


def test_a_parent_that_expired_holds(world: World) -> None:
    store = world.store()
    parent = put(store, expires=1)
    child = child_of(store, parent)
    settle_waits(store)
    world.advance(10)
    (claimed,) = claim(store, worker := start(store))
    assert claimed.expired

    finish(store, Lease(claimed.id, claimed.attempt, worker), Cancelled(EXPIRED))
    assert settle_waits(store) == []
    assert state(store, child) is State.WAITING
    store.replay([parent])
    end(store, parent)
    assert settle_waits(store) == [child]


def test_a_parent_whose_owner_died_is_no_end_and_the_rescued_one_is(store: Store) -> None:
    lease = running(store)
    child = child_of(store, lease.job_id)
    settle_waits(store)
    store.declare_dead([lease.worker_id])
    store.rescue()
    assert settle_waits(store) == []
    end(store, lease.job_id)
    assert settle_waits(store) == [child]


def test_a_parent_that_a_rescue_makes_dead_holds_and_lets_others_go(store: Store) -> None:
    lease = running(store, max_crashes=0, isolated=True)
    held, free = child_of(store, lease.job_id), child_of(store, lease.job_id, until="ended")
    settle_waits(store)
    store.settle(lease.worker_id, {}, Crashed("killed by signal 9", process_died=True))
    assert state(store, lease.job_id) is State.DEAD
    assert settle_waits(store) == [free]
    assert state(store, held) is State.WAITING


def test_skipping_a_dead_parent_lets_its_children_go(store: Store) -> None:
    parent, other = put(store), put(store)
    child = child_of(store, parent, other)
    end(store, parent, Failed("boom", final=True))
    end(store, other)
    settle_waits(store)
    assert isinstance(store.skip([parent])[parent], Landed)
    assert settle_waits(store) == [child]
    assert [(each.skipped, each.open) for each in store.inputs(child)] == [(True, False), (False, False)]


@pytest.mark.parametrize("found", [State.QUEUED, State.COMPLETED, None])
def test_only_a_dead_or_cancelled_job_is_skipped(found: State | None, store: Store) -> None:
    parent = put(store) if found else draft().id
    if found is State.COMPLETED:
        end(store, parent)
    answer = store.skip([parent])[parent]
    assert answer is None if found is None else isinstance(answer, NotLanded)


# ── What is refused ─────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unknown_parent_is_refused_by_name_and_nothing_is_stored(store: Store) -> None:
    unknown, known = draft().id, draft()
    with pytest.raises(BadData, match=unknown):
        store.enqueue([known, draft(links=after(known.id, unknown))])
    assert store.get(known.id) is None


def test_a_job_does_not_wait_for_itself(store: Store) -> None:
    job = draft()
    with pytest.raises(BadData, match="itself"):
        store.enqueue([draft(id=job.id, links=after(job.id))])
    assert store.get(job.id) is None


def test_a_parent_later_in_the_batch_is_unknown(store: Store) -> None:
    later = draft()
    with pytest.raises(BadData, match=later.id):
        store.enqueue([draft(links=after(later.id)), later])


def test_more_edges_than_the_limit_are_refused(store: Store) -> None:
    parent = put(store)
    many = Links(after=(Edge(parent),) * 10_001)
    with pytest.raises(BadData, match="10,000"):
        store.enqueue([draft(links=many)])


def test_the_same_parent_twice_is_one_edge(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent, parent)
    assert [(each.place, each.parent) for each in store.inputs(child)] == [(0, parent)]
    end(store, parent)
    assert settle_waits(store) == [child]


def test_enqueueing_again_changes_nothing(store: Store) -> None:
    parent = put(store)
    child = draft(links=after(parent, flow=FLOW, name="nightly"))
    store.enqueue([child])
    (again,) = store.enqueue([child])
    assert (again.created, again.state) == (False, State.WAITING)
    assert len(store.inputs(child.id)) == 1
    end(store, parent)
    assert settle_waits(store) == [child.id]


def test_an_edge_leads_from_the_job_that_holds_the_unique_key(store: Store) -> None:
    holder = put(store, unique="report")
    twin = draft(unique="report")
    child = draft(links=after(twin.id))
    answers = store.enqueue([twin, child])
    assert (answers[0].id, answers[0].created) == (holder, False)
    assert [each.parent for each in store.inputs(child.id)] == [holder]
    end(store, holder)
    assert settle_waits(store) == [child.id]


def test_an_edge_leads_from_the_one_of_two_in_a_call_that_holds_their_key(store: Store) -> None:
    holder, twin = draft(unique="k"), draft(unique="k")
    child = draft(links=after(twin.id))
    first, second, _ = store.enqueue([holder, twin, child])
    assert (first.id, second.id, second.created) == (holder.id, holder.id, False)
    assert settle_waits(store) == []

    end(store, holder.id)
    assert settle_waits(store) == [child.id]


def test_a_waiting_job_holds_its_unique_key(store: Store) -> None:
    child = child_of(store, put(store), unique="report")
    (again,) = store.enqueue([draft(unique="report")])
    assert (again.id, again.created, again.state) == (child, False, State.WAITING)
    store.cancel([child], "unwanted")
    assert store.enqueue([draft(unique="report")])[0].created


# ── What an operator asks of a job that waits ───────────────────────────────────────────────────────────────────


def test_a_waiting_job_is_cancelled_at_once(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    assert store.cancel([child], "unwanted") == {child: State.CANCELLED}
    end(store, parent)
    assert settle_waits(store) == []


def test_a_waiting_job_is_not_promoted(store: Store) -> None:
    child = child_of(store, put(store))
    assert store.promote_now([child]) == {child: State.WAITING}


def test_a_waiting_job_is_deleted_with_its_edges(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    assert store.delete([child]) == {child: Landed(State.WAITING)}
    assert store.dependents(parent) == []
    end(store, parent)
    assert settle_waits(store) == []
    assert store.delete([parent]) == {parent: Landed(State.COMPLETED)}


def test_nobody_claims_a_waiting_job(store: Store) -> None:
    child_of(store, put(store), queue="other")
    assert claim(store, start(store, queues=("other",)), queue="other") == []


def test_it_is_counted_found_and_seen(store: Store) -> None:
    parent = put(store, links=Links(flow=FLOW, name="nightly"))
    child = put(store, links=after(parent, flow=FLOW, name="nightly"))
    assert store.counts()[State.WAITING] == 1
    (queue,) = store.queues()
    assert (queue.counts[State.WAITING], queue.counts[State.QUEUED]) == (1, 1)
    assert [job.id for job in store.search(Filter(states=frozenset({State.WAITING}))).jobs] == [child]
    assert {job.id for job in store.search(Filter(flow=FLOW)).jobs} == {parent, child}
    assert store.search(Filter(flow=FLOW.replace("1", "2"))).jobs == ()
    assert look(store, child).flow == FLOW
    (update,) = store.updates({child: ""})
    assert update.status is not None
    assert update.status.state is State.WAITING


# ── W7: what is needed is kept ──────────────────────────────────────────────────────────────────────────────────


def test_a_result_is_kept_for_as_long_as_a_live_job_needs_it(world: World) -> None:
    store = world.store()
    parent, slow = put(store), put(store)
    child = child_of(store, parent, slow)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=7 * DAY) == 0
    refused = store.delete([parent])[parent]
    assert isinstance(refused, NotLanded)
    assert child in refused.stands
    end(store, slow)
    settle_waits(store)
    assert [each.result for each in store.inputs(child)] == ['"done"', '"done"']
    end(store, child)
    settle_waits(store)
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=7 * DAY) == 3


def test_the_parent_of_a_job_that_was_stored_just_now_is_not_pruned(world: World) -> None:
    store = world.store()
    parent = put(store)
    end(store, parent)
    settle_waits(store)
    world.advance(8 * DAY)
    child = child_of(store, parent)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 0
    assert settle_waits(store) == [child]


def test_a_completed_parent_of_a_live_job_is_not_replayed(store: Store) -> None:
    parent, slow = put(store), put(store)
    child = child_of(store, parent, slow)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    refused = store.replay([parent])[parent]
    assert isinstance(refused, NotLanded)
    assert child in refused.stands


@pytest.mark.parametrize("runs", [False, True], ids=["queued", "processing"])
def test_a_completed_parent_is_kept_as_it_is_while_a_job_goes_on_with_its_result(world: World, *, runs: bool) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    assert settle_waits(store) == [child]
    if runs:
        claim_one(store, start(store))
    world.advance(8 * DAY)

    for verb in (store.replay, store.delete):
        refused = verb([parent])[parent]
        assert isinstance(refused, NotLanded)
        assert child in refused.stands
    assert store.prune(keep=7 * DAY, keep_dead=7 * DAY) == 0
    assert look(store, parent).state is State.COMPLETED


def test_a_replayed_child_waits_for_a_parent_that_is_live_again(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    end(store, child, Failed("boom", final=True))
    settle_waits(store)
    assert store.replay([parent]) == {parent: Landed(State.QUEUED)}
    assert store.replay([child]) == {child: Landed(State.WAITING)}
    assert settle_waits(store) == []
    end(store, parent)
    assert settle_waits(store) == [child]


def test_a_replayed_child_of_completed_parents_runs_at_once(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    end(store, child, Failed("boom", final=True))
    settle_waits(store)
    assert store.replay([child]) == {child: Landed(State.QUEUED)}


def test_a_child_is_not_replayed_without_what_it_needs(world: World) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    store.cancel([parent], "unwanted")
    settle_waits(store)
    refused = store.replay([child])[child]
    assert isinstance(refused, NotLanded)
    assert parent in refused.stands
    assert store.delete([parent]) == {parent: Landed(State.CANCELLED)}
    refused = store.replay([child])[child]
    assert isinstance(refused, NotLanded)
    assert parent in refused.stands


@pytest.mark.parametrize("beside", [0, 250])
def test_a_child_of_an_expired_parent_is_replayed_and_waits(beside: int, world: World) -> None:
    store = world.store()
    parent = put(store, expires=1)
    others = [put(store) for _ in range(beside)]
    child = put(store, links=Links(after=(*(Edge(each, "ended") for each in others), Edge(parent, "completed"))))
    settle_waits(store)
    store.cancel([*others, child], "unwanted")
    world.advance(10)
    (claimed,) = claim(store, worker := start(store))
    finish(store, Lease(claimed.id, claimed.attempt, worker), Cancelled(EXPIRED))
    settle_waits(store)
    assert store.replay([child]) == {child: Landed(State.WAITING)}
    assert settle_waits(store) == []
    store.replay([parent])
    end(store, parent)
    assert settle_waits(store) == [child]


def test_a_parent_that_is_gone_cancels_those_that_need_it(store: Store) -> None:
    parent = put(store)
    end(store, parent)
    child, other = child_of(store, parent), child_of(store, parent, until="ended")
    # Nothing marks the parent as needed before the first look: a caller's transaction takes no lock on it.
    answer = store.delete([parent])[parent]
    settle_waits(store)
    if isinstance(answer, Landed):
        assert (state(store, child), state(store, other)) == (State.CANCELLED, State.QUEUED)
    else:
        assert {state(store, child), state(store, other)} == {State.QUEUED}


def test_the_parents_of_a_replayed_child_are_kept_for_it(world: World) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    end(store, child, Failed("boom", final=True))
    settle_waits(store)
    assert store.replay([child]) == {child: Landed(State.QUEUED)}
    settle_waits(store)
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 0
    end(store, child)
    settle_waits(store)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 1


def test_a_parent_is_not_kept_for_a_child_that_was_deleted(world: World) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent, put(store))
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    store.delete([child])
    settle_waits(store)
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 1


def test_a_gatherer_is_not_deleted_before_its_children_have_ended(store: Store) -> None:
    lease = running(store)
    (child,) = gathered(store, lease, number=1)
    settle_waits(store)
    refused = store.delete([lease.job_id])[lease.job_id]
    assert isinstance(refused, NotLanded)
    assert child in refused.stands
    store.cancel([lease.job_id], "unwanted")
    settle_waits(store)
    assert store.delete([lease.job_id]) == {lease.job_id: Landed(State.CANCELLED)}


def test_a_gatherer_is_not_replayed_before_its_children_have_ended(store: Store) -> None:
    lease = running(store)
    (answer,) = store.enqueue([draft(links=Links(gatherer=lease.job_id))])
    finish(store, lease, Completed())
    settle_waits(store)
    refused = store.replay([lease.job_id])[lease.job_id]
    assert isinstance(refused, NotLanded)
    assert answer.id in refused.stands
    end(store, answer.id)
    settle_waits(store)
    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}


def test_a_gatherer_that_has_just_ended_is_not_pruned_before_its_children_are_told(world: World) -> None:
    store = world.store()
    lease = running(store)
    (answer,) = store.enqueue([draft(links=Links(gatherer=lease.job_id))])
    finish(store, lease, Failed("boom", final=True))
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=7 * DAY) == 0
    settle_waits(store)
    assert state(store, answer.id) is State.CANCELLED


def test_a_wait_that_timed_out_beside_open_edges_is_over(world: World) -> None:
    store = world.store()
    lease = running(store)
    other = put(store)
    finish(store, lease, Suspended(after=(Edge(other),), signal="own:go", timeout=60))
    settle_waits(store)
    world.advance(61)
    assert settle_waits(store) == []
    assert store.admit().next_due is None
    view = look(store, lease.job_id)
    assert (view.state, view.wait_for, view.wait_until) == (State.WAITING, None, None)
    end(store, other)
    assert settle_waits(store) == [lease.job_id]


def test_a_parent_that_was_suspended_still_lets_its_child_go(store: Store) -> None:
    lease = running(store)
    child = child_of(store, lease.job_id)
    settle_waits(store)
    finish(store, lease, Suspended(signal="own:go"))
    store.signal(lease.job_id, "own:go", "1")
    again = resumed(store, lease.job_id)
    assert finish(store, again, Completed()) is State.COMPLETED
    assert settle_waits(store) == [child]


# ── Flows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_flows_are_counted_newest_first_and_go_with_their_jobs(world: World) -> None:
    store = world.store()
    first, second = FLOW, FLOW.replace("1", "2")
    for flow in (first, second):
        job = draft(links=Links(flow=flow, name="nightly"))
        store.enqueue([job, draft(links=after(job.id, flow=flow, name="nightly"))])
        world.advance(1)
    found = store.flows()
    assert [(each.id, each.name, each.total) for each in found] == [(second, "nightly", 2), (first, "nightly", 2)]
    assert found[0].counts[State.WAITING] == 1
    assert [each.id for each in store.flows(before=(found[0].created_at, found[0].id))] == [first]
    assert [each.id for each in store.flows([first])] == [first]
    store.delete([job.id for job in store.search(Filter(flow=first, states=frozenset({State.WAITING}))).jobs])
    store.delete([job.id for job in store.search(Filter(flow=first)).jobs])
    world.advance(8 * DAY)
    store.prune(keep=7 * DAY, keep_dead=None)
    assert [each.id for each in store.flows()] == [second]


def test_a_job_whose_ask_was_lost_goes_on_once_it_is_asked_for_again(store: Store) -> None:
    """W1: no ask is ever lost. If one was after all, asking again ends each of the three kinds of wait."""
    signalled = running(store)
    finish(store, signalled, Suspended("for a word", signal="own:go"))
    parent = put(store)
    told = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    store.signal(signalled.job_id, "own:go", "1")
    late = child_of(store, parent)
    lose_asks(store)
    assert store.waits().asks == 0

    store.ask([signalled.job_id, told, parent, late])
    assert sorted(settle_waits(store)) == sorted([signalled.job_id, told, late])


def test_a_job_that_is_asked_for_without_cause_is_left_as_it_is(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    plain, gone = put(store), put(store)
    store.delete([gone])

    store.ask([parent, child, plain, gone, "no-job"])
    assert settle_waits(store) == []
    assert [look(store, each).state for each in (parent, child, plain)] == [State.QUEUED, State.WAITING, State.QUEUED]
    end(store, parent)
    assert settle_waits(store) == [child]


def test_the_edges_of_a_job_are_read_from_both_ends(store: Store) -> None:
    parent = put(store)
    children = sorted(child_of(store, parent) for _ in range(3))
    found = store.dependents(parent, limit=2)
    assert [child for child, _ in found] == children[:2]
    assert [child for child, _ in store.dependents(parent, start=children[1])] == children[2:]
    assert {edge.parent for _, edge in found} == {parent}
    assert store.inputs(parent) == []


def test_the_jobs_of_a_flow_and_their_edges_are_read_in_parts(store: Store) -> None:
    jobs = [draft(links=Links(flow=FLOW, name="nightly")) for _ in range(3)]
    last = draft(links=after(*(each.id for each in jobs), flow=FLOW, name="nightly"), task="sum", queue="sums")
    store.enqueue([*jobs, last, draft(links=after(last.id))])
    ids = sorted([*(each.id for each in jobs), last.id])

    assert [each.id for each in store.members(FLOW)] == ids
    assert [each.id for each in store.members(FLOW, limit=3)] == ids[:3]
    assert [each.id for each in store.members(FLOW, start=ids[2])] == ids[3:]
    (member,) = [each for each in store.members(FLOW) if each.id == last.id]
    assert member == (last.id, "sum", "sums", State.WAITING)
    assert store.members(FLOW.replace("1", "9")) == []
    assert store.edges([last.id, jobs[0].id]) == [(last.id, each.id, "completed", True, False, False) for each in jobs]
    assert [each.parent for each in store.edges([last.id], limit=2)] == [each.id for each in jobs[:2]]
    end(store, jobs[1].id, Failed("no", final=True))
    store.skip([jobs[1].id])
    assert [(each.open, each.skipped) for each in store.edges([last.id])] == [
        (True, False),
        (False, True),
        (True, False),
    ]


def test_dead_jobs_for_which_live_ones_wait_are_found(world: World) -> None:
    store = world.store()
    parents = [put(store) for _ in range(3)]
    children = [child_of(store, parent) for parent in parents]
    child_of(store, put(store, delay=60))
    settle_waits(store)
    for parent in parents:
        assert store.holding() == [] or parent not in [each.id for each in store.holding()]
        end(store, parent, Failed("no disk", final=True))
        settle_waits(store)
        world.advance(1)
    bystander = put(store)
    end(store, bystander, Failed("no disk", final=True))
    settle_waits(store)

    assert [each.id for each in store.holding()] == parents[::-1]
    assert [each.id for each in store.holding(limit=1)] == parents[2:]
    store.skip(parents[2:])
    store.cancel(children[:1], "no")
    settle_waits(store)
    worker = start(store)
    for each in claim(store, worker, 10):
        finish(store, Lease(each.id, each.attempt, worker), Completed())
    settle_waits(store)
    assert [each.id for each in store.holding()] == parents[1:2]


def test_the_jobs_that_have_waited_longest_come_first(world: World) -> None:
    store = world.store()
    parent = put(store, delay=3600)
    children: list[str] = []
    for _ in range(3):
        children.append(child_of(store, parent))
        world.advance(10)
    settle_waits(store)
    assert [each.id for each in store.waited_longest()] == children
    assert [each.id for each in store.waited_longest(limit=1)] == children[:1]
    store.cancel(children[:1], "no")
    assert [each.id for each in store.waited_longest()] == children[1:]


def test_what_is_left_to_do_is_counted(world: World) -> None:
    store = world.store()
    flows = [FLOW.replace("1", number) for number in "123"]
    for flow in flows:
        job = draft(links=Links(flow=flow, name="nightly"))
        store.enqueue([job, draft(links=after(job.id, flow=flow, name="nightly"))])
        world.advance(1)
    settle_waits(store)
    assert store.waits() == Waits(asks=0, flows=3)
    store.cancel([each.id for flow in flows[:2] for each in store.members(flow)], "no")
    assert store.waits().asks >= 4
    assert store.waits(most=2).asks == 2
    settle_waits(store)
    assert store.waits() == Waits(asks=0, flows=1)


# ── Suspended: gathering and signals ────────────────────────────────────────────────────────────────────────────


def test_a_gatherer_waits_for_its_children_uncharged(store: Store) -> None:
    lease = running(store)
    children = gathered(store, lease)
    assert settle_waits(store) == []
    view = look(store, lease.job_id)
    assert (view.state, view.failures, view.crashes, view.worker_id) == (State.WAITING, 0, 0, None)
    assert [each.outcome for each in store.attempts(lease.job_id)] == ["suspended"]
    for child in children:
        end(store, child)
    again = resumed(store, lease.job_id)
    assert again.attempt == 2
    assert [(each.parent, each.result, each.mine) for each in store.inputs(lease.job_id)] == [
        (child, '"done"', True) for child in children
    ]
    assert finish(store, again, Completed()) is State.COMPLETED


def test_a_gatherer_whose_children_ended_before_it_was_suspended_goes_on(store: Store) -> None:
    lease = running(store)
    (answer,) = store.enqueue([draft(links=Links(gatherer=lease.job_id))])
    end(store, answer.id)
    settle_waits(store)
    assert finish(store, lease, Suspended()) is State.WAITING
    assert settle_waits(store) == [lease.job_id]


@pytest.mark.parametrize("until", ALL)
def test_a_dead_child_holds_its_gatherer_unless_any_end_will_do(until: str, store: Store) -> None:
    lease = running(store)
    (child,) = gathered(store, lease, number=1, until=until)
    settle_waits(store)
    end(store, child, Failed("boom", final=True))
    assert settle_waits(store) == ([] if until == "completed" else [lease.job_id])
    if until == "completed":
        store.replay([child])
        end(store, child)
        assert settle_waits(store) == [lease.job_id]


@pytest.mark.parametrize("how", ["cancelled", "dead", "cancelled while it runs"])
def test_a_gatherer_that_ends_otherwise_cancels_its_live_children(how: str, store: Store) -> None:
    lease = running(store)
    foreign = put(store, unique="foreign")
    links = Links(gatherer=lease.job_id)
    done, left, _ = store.enqueue([draft(links=links), draft(links=links), draft(links=links, unique="foreign")])
    settle_waits(store)
    if how == "dead":
        finish(store, lease, Failed("boom", final=True))
    elif how == "cancelled while it runs":
        store.cancel([lease.job_id], "unwanted")
        assert finish(store, lease, Suspended()) is State.CANCELLED
    else:
        finish(store, lease, Suspended())
        end(store, done.id)
        settle_waits(store)
        store.cancel([lease.job_id], "unwanted")
    assert settle_waits(store) == []
    assert state(store, left.id) is State.CANCELLED
    assert lease.job_id in str(look(store, left.id).error)
    assert state(store, foreign) in LIVE


def test_a_gatherer_that_completed_leaves_its_children_alone(store: Store) -> None:
    lease = running(store)
    (answer,) = store.enqueue([draft(links=Links(gatherer=lease.job_id))])
    settle_waits(store)
    finish(store, lease, Completed())
    settle_waits(store)
    assert state(store, answer.id) is State.QUEUED


def test_children_stored_for_a_gatherer_that_has_ended_are_cancelled(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Failed("boom", final=True))
    settle_waits(store)
    (answer,) = store.enqueue([draft(links=Links(gatherer=lease.job_id))])
    settle_waits(store)
    assert state(store, answer.id) is State.CANCELLED


def test_a_job_does_not_gather_itself(store: Store) -> None:
    lease = running(store, unique="mine")
    with pytest.raises(BadData, match="itself"):
        store.enqueue([draft(links=Links(gatherer=lease.job_id), unique="mine")])


def test_a_replayed_gatherer_gathers_anew(store: Store) -> None:
    lease = running(store)
    done, cancelled = gathered(store, lease)
    settle_waits(store)
    end(store, done)
    settle_waits(store)
    store.cancel([lease.job_id], "unwanted")
    settle_waits(store)
    assert state(store, cancelled) is State.CANCELLED
    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}
    assert [each.parent for each in store.inputs(lease.job_id)] == [done]
    again = claim_one(store, start(store))
    (child,) = gathered(store, again, number=1)
    settle_waits(store)
    end(store, child)
    assert settle_waits(store) == [lease.job_id]


def test_a_replayed_gatherer_goes_on_without_what_was_skipped(store: Store) -> None:
    lease = running(store)
    done, dead = gathered(store, lease)
    settle_waits(store)
    worker = start(store)
    for each in claim(store, worker, 2):
        outcome = Completed('"done"') if each.id == done else Failed("no", final=True)
        finish(store, Lease(each.id, each.attempt, worker), outcome)
    settle_waits(store)
    store.skip([dead])
    finish(store, resumed(store, lease.job_id), Failed("a bug", final=True))
    settle_waits(store)

    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}
    assert [(each.parent, each.skipped) for each in store.inputs(lease.job_id)] == [(done, False), (dead, True)]
    settle_waits(store)


def test_a_replayed_gatherer_gathers_anew_what_is_gone(world: World) -> None:
    store = world.store()
    lease = running(store)
    (child,) = gathered(store, lease, number=1, until="ended")
    settle_waits(store)
    end(store, child)
    finish(store, resumed(store, lease.job_id), Failed("a bug", final=True))
    settle_waits(store)
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 1

    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}
    assert store.inputs(lease.job_id) == []


def test_a_dead_job_that_nothing_gathers_any_more_holds_nothing(store: Store) -> None:
    """Its gatherer is replayed before `admit` has looked at how it ended."""
    lease = running(store)
    (child,) = gathered(store, lease, number=1)
    settle_waits(store)
    end(store, child, Failed("no", final=True))
    settle_waits(store)
    assert [each.id for each in store.holding()] == [child]

    store.cancel([lease.job_id], "unwanted")
    store.replay([lease.job_id])
    settle_waits(store)

    assert store.holding() == []


def test_a_crash_before_it_was_suspended_loses_no_child(store: Store) -> None:
    lease = running(store)
    links = Links(gatherer=lease.job_id)
    children = [draft(links=links) for _ in range(2)]
    store.enqueue(children)
    store.declare_dead([lease.worker_id])
    store.rescue()
    settle_waits(store)
    (claimed,) = claim(store, worker := start(store), solo=look(store, lease.job_id).solo, limit=1)
    while claimed.id != lease.job_id:  # its children are queued too
        finish(store, Lease(claimed.id, claimed.attempt, worker), Completed('"done"'))
        (claimed,) = claim(store, worker)
    store.enqueue(children)
    again = Lease(claimed.id, claimed.attempt, worker)
    finish(store, again, Suspended())
    for child in children:
        if state(store, child.id) is State.QUEUED:
            end(store, child.id)
    assert settle_waits(store) == [lease.job_id]
    assert len(store.inputs(lease.job_id)) == 2


def test_it_waits_for_jobs_that_it_does_not_gather(store: Store) -> None:
    other = put(store)
    end(store, other, Snoozed(3600))
    lease = running(store)
    assert finish(store, lease, Suspended(after=(Edge(other, "ended"),))) is State.WAITING
    assert settle_waits(store) == []
    store.cancel([other], "unwanted")
    assert settle_waits(store) == [lease.job_id]


def test_a_job_waits_again_for_one_that_lives_again(store: Store) -> None:
    lease = running(store)
    first, second = gathered(store, lease, until="ended")
    settle_waits(store)
    end(store, first, Failed("boom", final=True))
    end(store, second)
    again = resumed(store, lease.job_id)
    assert store.replay([first]) == {first: Landed(State.QUEUED)}
    assert finish(store, again, Suspended(after=(Edge(first, "ended"), Edge(second, "ended")))) is State.WAITING
    assert settle_waits(store) == []
    assert [(each.parent, each.place, each.open, each.mine) for each in store.inputs(lease.job_id)] == [
        (first, 0, True, True),
        (second, 1, False, True),
    ]
    end(store, first)
    assert settle_waits(store) == [lease.job_id]


def test_a_job_waits_for_very_many_that_live_again(store: Store) -> None:
    lease = running(store)
    children = gathered(store, lease, number=120, until="ended")
    settle_waits(store)
    store.cancel(children, "unwanted")
    again = resumed(store, lease.job_id)
    store.replay(children)
    finish(store, again, Suspended(after=tuple(Edge(each, "ended") for each in children)))
    assert settle_waits(store) == []
    store.cancel(children[1:], "unwanted")
    assert settle_waits(store) == []
    store.cancel(children[:1], "unwanted")
    assert settle_waits(store) == [lease.job_id]


def test_a_replayed_job_that_was_enqueued_again_for_its_gatherer_is_waited_for(store: Store) -> None:
    lease = running(store)
    child = draft(links=Links(gatherer=lease.job_id, gathered="ended"))
    store.enqueue([child])
    settle_waits(store)
    end(store, child.id, Failed("boom", final=True))
    settle_waits(store)
    store.replay([child.id])
    store.enqueue([child])
    finish(store, lease, Suspended())
    assert settle_waits(store) == []
    end(store, child.id)
    assert settle_waits(store) == [lease.job_id]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize(("first", "second"), [ALL, ALL[::-1]])
def test_of_two_waits_for_one_job_the_stricter_holds(first: Any, second: Any, ended: bool, store: Store) -> None:
    lease = running(store)
    child = draft()
    store.enqueue([child.but(links=Links(gatherer=lease.job_id, gathered=first))])
    settle_waits(store)
    if ended:
        end(store, child.id, Failed("boom", final=True))
        settle_waits(store)
    store.enqueue([child.but(links=Links(gatherer=lease.job_id, gathered=second))])
    finish(store, lease, Suspended())
    if not ended:
        settle_waits(store)
        end(store, child.id, Failed("boom", final=True))
    assert settle_waits(store) == []
    (edge,) = store.inputs(lease.job_id)
    assert (edge.place, edge.until, edge.open, edge.mine) == (0, "completed", True, True)
    store.replay([child.id])
    end(store, child.id)
    assert settle_waits(store) == [lease.job_id]


@pytest.mark.parametrize("how", ["new", "suspended"])
def test_of_two_waits_in_one_call_the_stricter_holds(how: str, store: Store) -> None:
    parent, other = put(store), put(store)
    edges = Edge(parent, "ended"), Edge(parent, "completed"), Edge(other, "completed"), Edge(other, "ended")
    if how == "new":
        child = put(store, links=Links(after=edges))
    else:
        end(store, parent, Snoozed(3600))
        end(store, other, Snoozed(3600))
        lease = running(store)
        child = lease.job_id
        finish(store, lease, Suspended(after=edges))
    assert [(each.parent, each.place, each.until) for each in store.inputs(child)] == [
        (parent, 0, "completed"),
        (other, 1, "completed"),
    ]


def test_a_job_that_ended_as_asked_is_not_waited_for_again(store: Store) -> None:
    lease = running(store)
    child = draft(links=Links(gatherer=lease.job_id))
    store.enqueue([child])
    end(store, child.id)
    settle_waits(store)
    finish(store, lease, Suspended())
    again = resumed(store, lease.job_id)
    store.enqueue([child])
    assert not store.inputs(lease.job_id)[0].open
    finish(store, again, Suspended(after=(Edge(child.id, "completed"),)))
    assert not store.inputs(lease.job_id)[0].open
    assert settle_waits(store) == [lease.job_id]


def test_a_job_that_was_skipped_is_not_waited_for_again(store: Store) -> None:
    lease = running(store)
    child = draft(links=Links(gatherer=lease.job_id))
    store.enqueue([child])
    settle_waits(store)
    end(store, child.id, Failed("boom", final=True))
    settle_waits(store)
    store.skip([child.id])
    store.enqueue([child])
    finish(store, lease, Suspended(after=(Edge(child.id, "completed"),)))
    (edge,) = store.inputs(lease.job_id)
    assert (edge.open, edge.skipped) == (False, True)
    assert settle_waits(store) == [lease.job_id]


def test_a_cancel_that_was_asked_ends_a_suspended_attempt(store: Store) -> None:
    lease = running(store)
    store.cancel([lease.job_id], "unwanted")
    assert finish(store, lease, Suspended(signal="own:go")) is State.CANCELLED
    assert look(store, lease.job_id).wait_for is None


def test_a_ghost_suspends_nothing(store: Store) -> None:
    lease = running(store)
    store.declare_dead([lease.worker_id])
    store.rescue()
    (answer,) = store.finish([(lease, Suspended(signal="own:go"))])
    assert isinstance(answer, NotLanded)
    assert state(store, lease.job_id) is State.QUEUED


def test_suspending_twice_under_one_lease_lands_once(store: Store) -> None:
    lease = running(store)
    outcome = Suspended(signal="own:go", timeout=60)
    assert finish(store, lease, outcome) is State.WAITING
    assert finish(store, lease, outcome) is State.WAITING
    assert len(store.attempts(lease.job_id)) == 1


def test_a_signal_wakes_the_job_that_waits_for_it(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Suspended(signal="own:go", timeout=60))
    assert settle_waits(store) == []
    view = look(store, lease.job_id)
    assert view.wait_for == "own:go"
    assert view.wait_until is not None
    assert store.signal(lease.job_id, "own:other", "0") == Landed(State.WAITING)
    assert settle_waits(store) == []
    assert store.signal(lease.job_id, "own:go", '{"by":"ada"}') == Landed(State.WAITING)
    assert settle_waits(store) == [lease.job_id]
    view = look(store, lease.job_id)
    assert (view.wait_for, view.wait_until) == (None, None)
    assert [(each.key, each.value) for each in store.signals(lease.job_id)] == [
        ("own:go", '{"by":"ada"}'),
        ("own:other", "0"),
    ]
    assert [each.key for each in store.signals(lease.job_id, ["own:go", "own:none"])] == ["own:go"]


def test_a_signal_sent_early_is_not_lost(store: Store) -> None:
    job_id = put(store)
    assert store.signal(job_id, "own:go", "1") == Landed(State.QUEUED)
    lease = claim_one(store, start(store))
    finish(store, lease, Suspended(signal="own:go"))
    assert settle_waits(store) == [job_id]


def test_a_signal_sent_while_it_is_being_suspended_is_not_lost(store: Store) -> None:
    lease = running(store)
    store.signal(lease.job_id, "own:go", "1")
    settle_waits(store)
    finish(store, lease, Suspended(signal="own:go"))
    assert settle_waits(store) == [lease.job_id]


def test_a_signal_arrives_once_unless_it_is_replaced(store: Store) -> None:
    job_id = put(store)
    store.signal(job_id, "own:go", "1")
    again = store.signal(job_id, "own:go", "2")
    assert isinstance(again, NotLanded)
    assert "go" in again.stands
    assert store.signal(job_id, "own:go", "3", replace=True) == Landed(State.QUEUED)
    assert [each.value for each in store.signals(job_id)] == ["3"]


def test_an_ended_job_gets_no_signal_and_a_missing_one_neither(store: Store) -> None:
    job_id = put(store)
    end(store, job_id)
    refused = store.signal(job_id, "own:go", "1")
    assert isinstance(refused, NotLanded)
    assert "completed" in refused.stands
    assert store.signal(draft().id, "own:go", "1") is None
    assert store.signals(job_id) == []


def test_a_wait_times_out(world: World) -> None:
    """W6."""
    store = world.store()
    lease = running(store)
    finish(store, lease, Suspended(signal="own:go", timeout=60))
    found = store.admit()
    assert found.next_due is not None
    assert 55 < found.next_due <= 60
    world.advance(59)
    assert settle_waits(store) == []
    world.advance(2)
    assert settle_waits(store) == [lease.job_id]
    assert store.admit().next_due is None


def test_a_shared_signal_wakes_all_that_wait_for_it_now_or_later(store: Store) -> None:
    leases = [running(store) for _ in range(3)]
    for lease in leases[:2]:
        finish(store, lease, Suspended(signal="shared:open"))
    settle_waits(store)
    assert store.signal(None, "shared:open", '"yes"') == Landed(State.WAITING)
    assert sorted(settle_waits(store)) == sorted(lease.job_id for lease in leases[:2])
    finish(store, leases[2], Suspended(signal="shared:open"))
    assert settle_waits(store) == [leases[2].job_id]
    assert [(each.key, each.value) for each in store.signals(None)] == [("shared:open", '"yes"')]
    assert isinstance(store.signal(None, "shared:open", '"no"'), NotLanded)


def test_shared_signals_are_pruned_and_those_of_a_job_go_with_it(world: World) -> None:
    store = world.store()
    job_id = put(store)
    store.signal(job_id, "own:go", "1")
    store.signal(None, "shared:open", "1")
    store.delete([job_id])
    store.enqueue([draft(id=job_id)])
    assert store.signals(job_id) == []
    world.advance(8 * DAY)
    store.prune(keep=7 * DAY, keep_dead=None)
    assert store.signals(None) == []


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
def test_text_that_no_store_keeps_is_refused(text: str, store: Store) -> None:
    lease = running(store)
    with pytest.raises(BadData):
        store.signal(lease.job_id, "own:go", text)
    with pytest.raises(BadData):
        store.finish([(lease, Suspended(signal=text))])
    assert state(store, lease.job_id) is State.PROCESSING


# ── W1, W5: cut anywhere, alongside an older worker ─────────────────────────────────────────────────────────────


def test_asks_outlive_the_process_that_stored_them(world: World) -> None:
    if not world.store().capabilities.durable:
        pytest.skip("what it knew has ended with its process")
    store = world.store()
    parent = put(store)
    child = child_of(store, parent)
    end(store, parent)
    store.close()
    assert settle_waits(world.store()) == [child]


def test_nothing_is_admitted_beside_a_worker_of_an_older_protocol(world: World) -> None:
    store = world.store()
    old = start(store, protocol=1)
    parent = put(store)
    child = child_of(store, parent)
    end(store, parent)
    assert settle_waits(store) == []
    assert store.outdated() == [old]
    assert state(store, child) is State.WAITING
    store.declare_dead([old])
    assert store.outdated() == []
    assert settle_waits(store) == [child]


def test_the_wall_clock_stepped_back_admits_nothing_early(world: World) -> None:
    store = world.store()
    parent = put(store)
    child = child_of(store, parent)
    world.step_wall_clock(-3600)
    end(store, parent)
    assert settle_waits(store) == [child]
    (claimed,) = claim(store, start(store))
    assert claimed.id == child


def test_a_claim_says_which_jobs_are_linked(store: Store) -> None:
    plain, parent = draft(), draft()
    store.enqueue([plain, parent, draft(links=after(parent.id))])
    settle_waits(store)
    found = {each.id: each.linked for each in claim(store, start(store), 2)}
    assert found == {plain.id: False, parent.id: True}


def test_an_edited_replay_keeps_its_edges(store: Store) -> None:
    parent = put(store)
    child = child_of(store, parent)
    settle_waits(store)
    end(store, parent)
    settle_waits(store)
    end(store, child, Failed("boom", final=True))
    settle_waits(store)
    answer = store.replay([child], edits={child: Edit('{"n":1}', "{}")})
    assert answer == {child: Landed(State.QUEUED)}
    assert len(store.inputs(child)) == 1


def test_a_release_of_a_job_that_had_waited_queues_it(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Suspended(signal="own:go"))
    store.signal(lease.job_id, "own:go", "1")
    again = resumed(store, lease.job_id)
    assert finish(store, again, Released("drain")) is State.QUEUED


@pytest.mark.parametrize("parents", [1, 250])
def test_a_waiting_job_that_is_given_twice_in_a_call_waits(parents: int, store: Store) -> None:
    before = [draft() for _ in range(parents)]
    store.enqueue(before)
    child = draft(links=after(*(each.id for each in before)))

    first, second = store.enqueue([child, child])

    assert (first.created, second.created, first.id, second.id) == (True, False, child.id, child.id)
    assert settle_waits(store) == []
    assert len(store.inputs(child.id, limit=1000)) == parents


def test_a_gatherer_is_not_replayed_or_deleted_beside_a_job_it_gathers_that_lives_again(store: Store) -> None:
    lease = running(store)
    (child,) = gathered(store, lease, number=1, until="ended")
    settle_waits(store)
    end(store, child, Failed("boom", final=True))
    finish(store, resumed(store, lease.job_id), Failed("boom", final=True))
    settle_waits(store)
    store.replay([child])

    for verb in (store.replay, store.delete):
        assert isinstance(verb([lease.job_id])[lease.job_id], NotLanded)
