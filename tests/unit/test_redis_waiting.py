"""Jobs that wait, in Redis: calls and jobs too large for one script, cut anywhere; and what older releases left."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from conformance.factories import World, claim, claim_one, draft, finish, look, put, running, start
from servers import shared_valkey
from tenure.core.clock import Clock
from tenure.core.lifecycle import EXPIRED, Completed, Edge, Failed, Lease, Released, State, Suspended
from tenure.errors import BadData, FlowMade, StoreAway
from tenure.ports import Draft, Landed, Links, NotLanded, Store
from tenure.stores.redis import RedisStore, links
from tenure.stores.redis.drafts import MOST
from tenure.stores.redis.server import Server

FLOW = "0190a0a0-0000-7000-8000-000000000001"
MANY = 2 * MOST + 50


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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each script ran."""
    seen: dict[str, int] = {}
    call_each = Server.call_each

    def counted(server: Server, name: str, batches: Sequence[Any], values: Callable[[Any], Sequence[Any]]) -> list[Any]:
        seen[name] = seen.get(name, 0) + len(batches)
        return call_each(server, name, batches, values)

    monkeypatch.setattr(Server, "call_each", counted)
    return seen


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have the line break once at this script, before it was run or before its answer came."""

    def arm(script: str, *, after: bool, skip: int = 0) -> None:
        call, left = Server.call, [skip]

        def broken(server: Server, name: str, *values: Any) -> Any:
            if name != script or left[0] < 0:
                return call(server, name, *values)
            left[0] -= 1
            if left[0] >= 0:
                return call(server, name, *values)
            if after:
                call(server, name, *values)
            raise StoreAway("the line broke")

        monkeypatch.setattr(Server, "call", broken)

    return arm


def admitted(store: Store) -> list[str]:
    found: list[str] = []
    while True:
        some = store.admit()
        found += [each for ids in some.jobs.values() for each in ids]
        if not some.more:
            return found


def after(*parents: str, **options: Any) -> Links:
    return Links(after=tuple(Edge(parent) for parent in parents), **options)


def flow() -> list[Draft]:
    """Very many roots, one job behind them all, and one behind that."""
    roots = [draft(links=Links(flow=FLOW)) for _ in range(MANY)]
    gate = draft(links=after(*(each.id for each in roots), flow=FLOW))
    return [*roots, gate, draft(links=after(gate.id, flow=FLOW))]


def complete(store: Store, number: int) -> None:
    worker = start(store, slots=number)
    while number:
        ends = [(Lease(each.id, each.attempt, worker), Completed()) for each in claim(store, worker, number)]
        assert ends
        store.finish(ends)
        number -= len(ends)


def keys(store: RedisStore, kind: str) -> list[str]:
    found: list[str] = store.server.run("KEYS", f"{store.server.prefix}{kind}*")
    return found


def stored(store: Store) -> int:
    return sum(store.counts().values())


def runs_whole(store: RedisStore, drafts: Sequence[Draft]) -> None:
    *_, gate, last = drafts
    assert admitted(store) == []
    assert store.flows()[0].counts == {**dict.fromkeys(State, 0), State.QUEUED: MANY, State.WAITING: 2}
    assert len(store.inputs(gate.id, limit=MANY + 1)) == MANY
    complete(store, MANY)
    assert admitted(store) == [gate.id]
    complete(store, 1)
    assert admitted(store) == [last.id]
    complete(store, 1)
    assert admitted(store) == []
    assert [
        kind
        for kind in ("staged", "sealed", "stands", "answers", "asks", "asked", "pins", "unmet")
        if keys(store, kind)
    ] == []


# ── W8: calls that do not fit one script ────────────────────────────────────────────────────────────────────────


def test_a_large_flow_is_stored_and_runs(store: RedisStore) -> None:
    drafts = flow()
    answers = store.enqueue(drafts)
    assert [each.id for each in answers] == [each.id for each in drafts]
    assert all(each.created for each in answers)
    runs_whole(store, drafts)


@pytest.mark.parametrize("script", ["stage", "seal"])
def test_of_a_call_that_was_cut_before_its_seal_nothing_is_ever_seen(
    script: str, store: RedisStore, breaks: Callable[..., None]
) -> None:
    drafts = flow()
    breaks(script, after=False, skip=1 if script == "stage" else 0)
    with pytest.raises(StoreAway):
        store.enqueue(drafts)

    assert admitted(store) == []
    assert (stored(store), store.flows()) == (0, [])
    (left,) = keys(store, "staged")
    assert 0 < store.server.run("TTL", left) <= 3600
    store.enqueue(drafts)
    store.server.run("UNLINK", left)
    runs_whole(store, drafts)


@pytest.mark.parametrize("enqueued_again", [False, True])
@pytest.mark.parametrize(("script", "late", "skip"), [("seal", True, 0), ("unpack", False, 0), ("unpack", True, 1)])
def test_a_call_that_was_cut_after_its_seal_is_stored_whole_and_once(
    script: str, late: bool, skip: int, enqueued_again: bool, store: RedisStore, breaks: Callable[..., None]
) -> None:
    drafts = flow()
    breaks(script, after=late, skip=skip)
    with pytest.raises(StoreAway):
        store.enqueue(drafts)

    (left,) = keys(store, "staged")
    assert store.server.run("TTL", left) == -1
    if enqueued_again:
        assert [each.id for each in store.enqueue(drafts)] == [each.id for each in drafts]
    assert admitted(store) == []
    assert stored(store) == len(drafts)
    assert [store.server.run("TTL", each) > 0 for each in keys(store, "answers")] == [True]
    store.server.run("UNLINK", *keys(store, "answers"))
    runs_whole(store, drafts)


def test_a_flow_that_is_made_once_stands_from_its_seal_on(store: RedisStore, breaks: Callable[..., None]) -> None:
    made = Links(flow=FLOW, name="nightly", once=True)
    drafts = [each.but(links=replace(made, after=each.links.after if each.links else ())) for each in flow()]
    breaks("unpack", after=False)
    with pytest.raises(StoreAway):
        store.enqueue(drafts)
    store.prune(keep=0, keep_dead=None)  # none of its jobs is there yet

    for again in (drafts, drafts[:2]):
        with pytest.raises(FlowMade):
            store.enqueue(again)

    assert admitted(store) == []
    assert len(store.members(FLOW)) == stored(store) == len(drafts)
    store.server.run("UNLINK", *keys(store, "answers"))
    runs_whole(store, drafts)


def test_of_two_large_calls_that_are_staged_the_one_that_is_sealed_first_makes_the_flow(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Links(flow=FLOW, name="nightly", once=True)
    first, second = ([draft(links=made) for _ in range(MANY)] for _ in range(2))
    call, calls = Server.call, [first]

    def beaten(server: Server, name: str, *values: Any) -> Any:
        if name == "seal" and calls:
            store.enqueue(calls.pop())
        return call(server, name, *values)

    monkeypatch.setattr(Server, "call", beaten)
    with pytest.raises(FlowMade):
        store.enqueue(second)
    assert admitted(store) == []
    assert {each.id for each in store.members(FLOW)} == {each.id for each in first}
    assert (stored(store), keys(store, "staged")) == (MANY, [])


def test_nothing_is_admitted_before_all_its_edges_are_stored(
    store: RedisStore, breaks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MOST", 3)
    parents = [put(store) for _ in range(8)]
    child = draft(links=after(*parents))
    breaks("unpack", after=True, skip=1)
    with pytest.raises(StoreAway):
        store.enqueue([child])
    complete(store, 7)
    assert store.server.run("ZCARD", f"{store.server.prefix}sealed") == 1
    assert admitted(store) == []
    complete(store, 1)
    assert admitted(store) == [child.id]


def test_a_job_whose_edges_are_not_all_stored_is_not_lost(
    store: RedisStore, breaks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MOST", 3)
    parents = [put(store) for _ in range(8)]
    complete(store, 8)
    child = draft(links=after(*parents))
    breaks("unpack", after=True, skip=1)
    with pytest.raises(StoreAway):
        store.enqueue([child])
    assert look(store, child.id).state is State.WAITING
    assert store.server.run("ZCARD", f"{store.server.prefix}asks") == 0
    assert store.lost_waits([child.id]) == {}
    assert admitted(store) == [child.id]


def test_a_job_that_is_deleted_before_all_its_edges_are_stored_leaves_none(
    world: World, store: RedisStore, breaks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MOST", 3)
    parents = [put(store) for _ in range(8)]
    child = draft(links=after(*parents, flow=FLOW, name="nightly"))
    breaks("unpack", after=True, skip=1)
    with pytest.raises(StoreAway):
        store.enqueue([child])
    assert store.delete([child.id]) == {child.id: Landed(State.WAITING)}
    complete(store, 8)
    admitted(store)

    assert store.get(child.id) is None
    world.advance(1)
    assert store.prune(keep=0, keep_dead=0) == 8
    assert [keys(store, kind) for kind in ("pins", "unmet", "parents", "children", "job:")] == [[]] * 5


def test_a_call_whose_seal_is_lost_in_a_failover_can_be_made_again(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafts, call = [draft(links=Links(flow=FLOW)) for _ in range(MANY)], Server.call

    def lose(server: Server, name: str, *values: Any) -> Any:
        answer = call(server, name, *values)
        if name == "seal":
            server.run("UNLINK", f"{server.prefix}sealed", *keys(store, "staged"))
        return answer

    with monkeypatch.context() as lossy:
        lossy.setattr(Server, "call", lose)
        with pytest.raises(StoreAway, match="lost in a failover"):
            store.enqueue(drafts)
    assert stored(store) == 0
    assert all(each.created for each in store.enqueue(drafts))


def test_an_unknown_parent_in_a_large_call_is_named_and_nothing_is_left(store: RedisStore) -> None:
    unknown, known = draft().id, [put(store) for _ in range(MANY)]
    with pytest.raises(BadData, match=unknown):
        store.enqueue([draft(links=after(*known, unknown))])
    assert stored(store) == MANY
    assert keys(store, "staged") == []


def test_an_edge_of_another_part_leads_from_the_holder_of_the_key(store: RedisStore) -> None:
    holder = put(store, unique="k")
    twin = draft(unique="k")
    others = [draft() for _ in range(MANY)]
    child = draft(links=after(twin.id))
    answers = store.enqueue([twin, *others, child])
    assert (answers[0].id, answers[0].created) == (holder, False)
    assert [each.parent for each in store.inputs(child.id)] == [holder]


def test_very_many_children_are_gathered(store: RedisStore) -> None:
    lease = running(store)
    children = [draft(links=Links(gatherer=lease.job_id)) for _ in range(MANY)]
    store.enqueue(children)
    assert finish(store, lease, Suspended()) is State.WAITING
    assert admitted(store) == []
    complete(store, MANY)
    assert admitted(store) == [lease.job_id]
    assert [each.parent for each in store.inputs(lease.job_id, limit=MANY)] == [each.id for each in children]


def test_a_job_is_suspended_for_very_many(store: RedisStore) -> None:
    lease = running(store)
    others = [put(store) for _ in range(MANY)]
    assert finish(store, lease, Suspended(after=tuple(Edge(each) for each in others))) is State.WAITING
    assert admitted(store) == []
    complete(store, MANY)
    assert admitted(store) == [lease.job_id]


@pytest.mark.parametrize("then", ["sent again", "released"])
def test_a_suspension_that_was_cut_between_its_edges_and_its_end(then: str, world: World, store: RedisStore) -> None:
    lease, others = running(store), [put(store) for _ in range(MANY)]
    end = Suspended(after=tuple(Edge(each) for each in others))
    links.tied(store.server, lease, end)
    if then == "sent again":
        assert finish(store, lease, end) is State.WAITING
        assert admitted(store) == []
        complete(store, MANY)
        assert admitted(store) == [lease.job_id]
        complete(store, 1)
    else:
        assert finish(store, lease, Released("its process died")) is State.QUEUED
        complete(store, MANY + 1)
    assert admitted(store) == []
    world.advance(10)
    while store.prune(keep=1, keep_dead=1) + len(admitted(store)):
        pass
    assert stored(store) == 0
    assert [kind for kind in ("parents", "children", "pins", "unmet", "asks") if keys(store, kind)] == []


def test_a_replay_that_was_cut_while_it_opened_the_edges_is_asked_for_again(store: RedisStore) -> None:
    others = [put(store) for _ in range(MANY)]
    child = put(store, links=Links(after=tuple(Edge(each, "ended") for each in others)))
    admitted(store)
    store.cancel([child], "unwanted")
    assert isinstance(store.server.call("reopen", child, "-inf", EXPIRED), str), "there is more to open"

    assert store.replay([child]) == {child: Landed(State.WAITING)}
    assert admitted(store) == []
    complete(store, MANY)
    assert admitted(store) == [child]


def test_a_job_that_is_to_be_cancelled_waits_for_nothing(store: RedisStore) -> None:
    lease = running(store)
    others = [put(store) for _ in range(MANY)]
    store.cancel([lease.job_id], "unwanted")
    assert finish(store, lease, Suspended(after=tuple(Edge(each) for each in others))) is State.CANCELLED
    assert store.inputs(lease.job_id) == []
    assert store.replay([lease.job_id]) == {lease.job_id: Landed(State.QUEUED)}


# ── W8: jobs with very many edges ───────────────────────────────────────────────────────────────────────────────


def wide(store: Store, **options: Any) -> tuple[list[str], str]:
    parents = [put(store) for _ in range(MANY)]
    child = put(store, links=after(*parents), **options)
    complete(store, MANY)
    assert admitted(store) == [child]
    return parents, child


def test_a_job_with_very_many_edges_is_replayed(store: RedisStore) -> None:
    parents, child = wide(store)
    end(store, child, Failed("boom", final=True))
    assert admitted(store) == []
    assert store.replay(parents[-1:]) == {parents[-1]: Landed(State.QUEUED)}
    assert store.replay([child]) == {child: Landed(State.WAITING)}
    assert admitted(store) == []
    complete(store, 1)
    assert admitted(store) == [child]
    assert isinstance(store.delete(parents[:1])[parents[0]], NotLanded)


def test_a_job_with_very_many_edges_is_not_replayed_without_the_last(store: RedisStore) -> None:
    parents, child = wide(store)
    end(store, child, Failed("boom", final=True))
    assert admitted(store) == []
    store.delete(parents[-1:])
    refused = store.replay([child])[child]
    assert isinstance(refused, NotLanded)
    assert parents[-1] in refused.stands


def test_many_jobs_with_edges_are_replayed_at_once(store: RedisStore) -> None:
    parents = [put(store) for _ in range(30)]
    children = [put(store, links=after(*parents)) for _ in range(30)]
    complete(store, 30)
    assert sorted(admitted(store)) == children
    complete_with(store, 30, Failed("boom", final=True))
    assert admitted(store) == []
    assert store.replay(children) == dict.fromkeys(children, Landed(State.QUEUED))


def test_a_job_with_very_many_edges_goes_with_all_of_them(store: RedisStore) -> None:
    parents, child = wide(store)
    assert store.delete([child]) == {child: Landed(State.QUEUED)}
    store.enqueue([draft(id=child, links=after(parents[0]))])  # a new job with the same id has edges of its own
    assert admitted(store) == [child]
    assert [each for each, _ in store.dependents(parents[0])] == [child]
    assert store.dependents(parents[-1]) == []
    assert [store.delete([each])[each] for each in parents[1:]] == [Landed(State.COMPLETED)] * (MANY - 1)
    assert keys(store, "gone") == []


# ── What is kept ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_prune_steps_over_what_is_kept_whatever_ended_when(world: World, store: RedisStore) -> None:
    kept = [put(store) for _ in range(MANY)]
    slow = put(store, queue="slow")
    put(store, links=after(slow, *kept[:1]))
    for each in kept[1:]:
        store.enqueue([draft(links=after(slow, each))])
    complete(store, MANY)
    assert admitted(store) == []
    others = [put(store) for _ in range(MANY)]
    complete(store, MANY)
    world.advance(60)

    assert sum(store.prune(keep=1, keep_dead=1, limit=100) for _ in range(20)) == len(others)
    assert all(store.get(each) for each in kept)


# ── Alongside an older release ──────────────────────────────────────────────────────────────────────────────────


def unseen(store: RedisStore, job_id: str, change: Callable[[], object]) -> None:
    """Change this job as an older release would: no ask is stored."""
    prefix = store.server.prefix
    asks = store.server.run("ZRANGE", f"{prefix}asks", 0, -1)
    change()
    if job_id not in asks:
        assert store.server.run("ZREM", f"{prefix}asks", job_id) == 1


def test_what_ended_beside_an_older_worker_is_found_when_it_has_gone(world: World, store: RedisStore) -> None:
    parents = [put(store) for _ in range(MANY)]
    children = [draft(links=after(each)) for each in parents]
    for each in children:
        store.enqueue([each])
    assert admitted(store) == []
    old = start(store, protocol=1)
    complete(store, MANY)
    store.server.run("DEL", f"{store.server.prefix}asks")
    assert admitted(store) == []
    store.declare_dead([old])
    assert admitted(store) == [each.id for each in children]


def test_what_a_client_of_an_older_release_ended_is_found_in_time(world: World, store: RedisStore) -> None:
    parent = put(store)
    child = put(store, links=after(parent))
    assert admitted(store) == admitted(store) == []  # all waiting jobs have just been looked at
    unseen(store, parent, lambda: store.cancel([parent], "no"))
    assert admitted(store) == []
    assert look(store, child).state is State.WAITING
    world.advance(11)
    assert admitted(store) == []
    assert look(store, child).state is State.CANCELLED


def test_a_worker_of_an_older_release_has_registered_no_protocol(store: RedisStore) -> None:
    worker = start(store)
    assert store.outdated() == []
    store.server.run("DEL", f"{store.server.prefix}protocols")
    assert store.outdated() == [worker]


def test_a_parent_kept_for_a_child_that_ended_unseen_is_pruned_in_the_end(world: World, store: RedisStore) -> None:
    parent = put(store)
    child = put(store, links=after(parent))
    complete(store, 1)
    assert admitted(store) == [child]
    unseen(store, child, lambda: complete(store, 1))
    world.advance(60)
    assert store.prune(keep=1, keep_dead=1) == 0
    assert admitted(store) == []
    assert store.prune(keep=1, keep_dead=1) == 2


def test_a_flow_whose_jobs_an_older_release_deleted_goes(store: RedisStore) -> None:
    job_id = put(store, links=Links(flow=FLOW))
    store.server.run("UNLINK", f"{store.server.prefix}job:{job_id}")
    store.prune(keep=60, keep_dead=None)
    assert store.flows() == []


# ── What it costs ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_look_at_no_asks_costs_the_same_however_many_wait(world: World, store: RedisStore) -> None:
    def cost() -> int:
        store.admit()
        before = commands(store)
        store.admit()
        return commands(store) - before

    few = cost()
    parent = put(store)
    store.enqueue([draft(links=after(parent)) for _ in range(5 * MOST)])
    admitted(store)
    assert cost() <= few + 5


def commands(store: RedisStore) -> int:
    told: str = store.server.run("INFO", "commandstats")
    return sum(int(number) for number in re.findall(r"calls=(\d+)", told))


def test_plain_jobs_cost_no_command_more_beside_linked_ones(store: RedisStore) -> None:
    def cost() -> int:
        worker = start(store)
        before = commands(store)
        put(store)
        finish(store, claim_one(store, worker), Completed())
        return commands(store) - before

    cost()
    plain = cost()
    slow = put(store, queue="slow")
    store.enqueue([draft(links=after(slow)) for _ in range(10)])
    assert cost() == plain


def test_no_admit_does_more_than_a_few_hundred_steps(store: RedisStore, calls: dict[str, int]) -> None:
    parent = put(store)
    store.enqueue([draft(links=after(parent)) for _ in range(5 * MOST)])
    admitted(store)
    complete(store, 1)
    calls.clear()
    assert len(admitted(store)) == 5 * MOST
    assert calls["admit"] >= 5


def end(store: Store, job_id: str, outcome: Failed) -> None:
    worker = start(store)
    lease = claim_one(store, worker)
    assert lease.job_id == job_id
    finish(store, lease, outcome)


def complete_with(store: Store, number: int, outcome: Failed) -> None:
    worker = start(store, slots=number)
    found = claim(store, worker, number)
    assert len(found) == number
    store.finish([(Lease(each.id, each.attempt, worker), outcome) for each in found])
