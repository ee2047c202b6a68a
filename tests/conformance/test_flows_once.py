"""A flow that is made once: of all calls that make it, one stores its jobs, and the others store nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import pytest

from conformance.factories import DAY, World, claim_one, draft, everything, finish, look, put, race, start
from conformance.test_races import Doors, many_times
from conformance.test_races import doors as doors
from conformance.test_races import threads_that_take_turns_often as threads_that_take_turns_often
from conformance.test_waiting import FLOW, after, settle_waits
from tenure.core.lifecycle import Completed, Failed, State
from tenure.errors import BadData, FlowMade, StoreAway
from tenure.ports import Draft, Enqueued, Landed, Links, Store

ONCE = Links(flow=FLOW, name="nightly", once=True)


def parts(number: int, *, flow: str = FLOW) -> list[Draft]:
    """This many jobs, and one that waits for them all."""
    jobs = [draft(links=Links(flow=flow, name="nightly", once=True)) for _ in range(number)]
    return [*jobs, draft(links=after(*(each.id for each in jobs), flow=flow, name="nightly", once=True))]


def making(store: Store, drafts: list[Draft]) -> Callable[[], list[Enqueued] | None]:
    def make() -> list[Enqueued] | None:
        try:
            return store.enqueue(drafts)
        except FlowMade:
            return None

    return make


def ids(store: Store, flow: str = FLOW) -> set[str]:
    return {each.id for each in store.members(flow)}


@pytest.mark.parametrize("number", [1, 250])  # where a call takes several scripts, the larger flow is staged
def test_another_call_stores_nothing(number: int, store: Store) -> None:
    first, second = parts(2), parts(number)
    store.enqueue(first)

    with pytest.raises(FlowMade, match=FLOW):
        store.enqueue(second)

    assert {each.id for each in everything(store)} == ids(store) == {each.id for each in first}
    assert [edge.parent for edge in store.inputs(first[-1].id)] == [each.id for each in first[:-1]]
    assert settle_waits(store) == []


@pytest.mark.parametrize("number", [1, 250])
def test_a_call_that_is_repeated_hears_that_it_is_made(number: int, store: Store) -> None:
    drafts = parts(number)
    assert all(each.created for each in store.enqueue(drafts))

    with pytest.raises(FlowMade):
        store.enqueue(drafts)

    assert ids(store) == {each.id for each in drafts}
    assert [each.total for each in store.flows()] == [number + 1]


def test_other_jobs_of_the_call_are_not_stored_either(store: Store) -> None:
    store.enqueue(parts(1))
    other, plain = parts(1, flow=FLOW.replace("1", "2")), draft()

    with pytest.raises(FlowMade):
        store.enqueue([plain, *other, *parts(1)])
    assert len(everything(store)) == 2
    assert [each.id for each in store.flows()] == [FLOW]

    assert all(each.created for each in store.enqueue([plain, *other]))


def test_it_was_made_also_if_what_it_waits_for_is_gone(store: Store) -> None:
    before = put(store)
    store.enqueue([draft(links=ONCE), draft(links=after(before, flow=FLOW, name="nightly", once=True))])
    store.cancel([before], "no")
    settle_waits(store)
    store.delete([before])
    assert store.get(before) is None

    with pytest.raises(FlowMade):
        store.enqueue([draft(links=after(before, flow=FLOW, name="nightly", once=True))])


def test_one_that_is_refused_was_not_made(store: Store) -> None:
    missing = draft().id
    with pytest.raises(BadData, match=missing):
        store.enqueue([draft(links=ONCE), draft(links=after(missing, flow=FLOW, name="nightly", once=True))])

    assert store.flows() == []
    assert all(each.created for each in store.enqueue(parts(2)))


def test_one_whose_jobs_are_all_others_is_not_made(store: Store) -> None:
    held = put(store, unique="k")

    (answer,) = store.enqueue([draft(unique="k", links=ONCE)])

    assert (answer.id, answer.created) == (held, False)
    assert store.flows() == []
    assert all(each.created for each in store.enqueue(parts(2)))


def test_it_is_made_again_when_its_jobs_were_pruned(world: World) -> None:
    store = world.store()
    store.enqueue([draft(links=ONCE)])
    assert finish(store, claim_one(store, start(store)), Completed()) is State.COMPLETED
    with pytest.raises(FlowMade):
        store.enqueue(parts(1))
    world.advance(8 * DAY)
    for _ in range(3):
        store.prune(keep=7 * DAY, keep_dead=None)

    assert all(each.created for each in store.enqueue(parts(1)))


def test_it_is_made_again_when_its_last_job_was_deleted(store: Store) -> None:
    first, *others = [each.id for each in store.enqueue(parts(3))]
    other = parts(1, flow=FLOW.replace("1", "2"))
    store.enqueue(other)
    store.cancel([first, *others], "no")

    assert {*store.delete(others[::-1]).values()} == {Landed(State.CANCELLED)}
    assert [(each.id, each.total) for each in store.flows([FLOW])] == [(FLOW, 1)]
    with pytest.raises(FlowMade):
        store.enqueue(parts(1))

    store.delete([first, first])
    assert [each.id for each in store.flows()] == [other[0].links.flow if other[0].links else None]
    assert all(each.created for each in store.enqueue(parts(1)))


def test_it_is_made_again_when_its_dead_letters_were_pruned(world: World) -> None:
    store = world.store()
    store.enqueue([draft(links=ONCE)])
    assert finish(store, claim_one(store, start(store)), Failed("no", final=True)) is State.DEAD
    world.advance(2 * DAY)
    for _ in range(3):
        store.prune(keep=7 * DAY, keep_dead=DAY)

    assert store.flows() == []
    assert all(each.created for each in store.enqueue(parts(1)))


def test_other_flows_take_more_jobs(store: Store) -> None:
    links = Links(flow=FLOW, name="nightly")
    for _ in range(2):
        store.enqueue([draft(links=links)])
    assert [each.total for each in store.flows()] == [2]


# ── At the same moment ──────────────────────────────────────────────────────────────────────────────────────────


@many_times
def test_of_two_calls_at_once_one_makes_it(doors: Doors) -> None:
    here, there = doors
    flow = draft().id
    mine, theirs = parts(2, flow=flow), parts(4, flow=flow)

    answers = race(making(here, mine), making(there, theirs))

    (made,) = [drafts for drafts, answer in zip((mine, theirs), answers, strict=True) if answer is not None]
    assert ids(here, flow) == {each.id for each in made}
    assert all(here.get(each.id) is None for each in (*mine, *theirs) if each not in made)


def test_of_two_large_calls_at_once_one_makes_it(doors: Doors) -> None:
    here, there = doors
    for _ in range(3):
        flow = draft().id
        mine, theirs = parts(250, flow=flow), parts(300, flow=flow)

        answers = race(making(here, mine), making(there, theirs), making(there, parts(3, flow=flow)))

        (made,) = [answer for answer in answers if answer is not None]
        settle_waits(here)
        assert ids(here, flow) == {each.id for each in made}
        assert len(everything(here)) == sum(each.total for each in here.flows())


@many_times
def test_of_two_that_delete_its_last_jobs_at_once_one_forgets_it(doors: Doors) -> None:
    here, there = doors
    flow = draft().id
    links = Links(flow=flow, name="nightly", once=True)
    first, second = (each.id for each in here.enqueue([draft(links=links), draft(links=links)]))

    race(lambda: here.delete([first]), lambda: there.delete([second]))

    assert here.flows([flow]) == []


@many_times
def test_a_flow_is_known_that_gets_a_job_while_its_last_one_is_deleted(doors: Doors) -> None:
    here, there = doors
    flow = draft().id
    links = Links(flow=flow, name="nightly")
    old = put(here, links=links)

    race(lambda: here.delete([old]), lambda: put(there, links=links))

    assert [each.total for each in here.flows([flow])] == [1]


@many_times
def test_one_that_is_made_while_its_last_job_is_deleted_is_made_once(doors: Doors) -> None:
    here, there = doors
    flow = draft().id
    (old,) = here.enqueue([draft(links=Links(flow=flow, name="nightly", once=True))])
    again = parts(1, flow=flow)

    gone, answer = race(lambda: here.delete([old.id]), making(there, again))

    assert gone == {old.id: Landed(State.QUEUED)}
    assert ids(here, flow) == ({each.id for each in again} if answer else set[str]())
    assert [each.total for each in here.flows([flow])] == ([2] if answer else [])


@pytest.mark.parametrize("end", ["committed", "rolled back"])
def test_a_transaction_that_stores_a_job_of_it_keeps_it(end: str, doors: Doors) -> None:
    here, there = doors
    if not here.capabilities.transactions:
        pytest.skip("this store joins no transactions")
    links = Links(flow=FLOW, name="nightly")
    old, new = put(here, links=links), draft(links=links)
    other = Thread(target=lambda: race(lambda: there.delete([old])))

    with suppress(ZeroDivisionError), here.transaction() as tx:
        here.enqueue([new], tx=tx)
        other.start()
        other.join(0.3)  # in some stores it waits for our end
        if end == "rolled back":
            raise ZeroDivisionError
    other.join()

    assert here.get(old) is None
    assert ids(here) == ({new.id} if end == "committed" else set[str]())
    assert [each.total for each in here.flows()] == ([1] if end == "committed" else [])


@pytest.mark.parametrize("end", ["committed", "rolled back"])
def test_a_call_waits_for_a_transaction_that_makes_it(end: str, doors: Doors) -> None:
    here, there = doors
    if not here.capabilities.transactions:
        pytest.skip("this store joins no transactions")
    mine, theirs = parts(2), parts(4)
    answers: list[list[Enqueued] | None] = []
    other = Thread(target=lambda: answers.extend(race(making(there, theirs))))

    with suppress(StoreAway, ZeroDivisionError), here.transaction() as tx:
        here.enqueue(mine, tx=tx)
        other.start()
        other.join(0.3)  # in most stores it waits for our commit
        if end == "rolled back":
            raise ZeroDivisionError
    other.join()

    made = theirs if answers[0] else mine
    assert made is theirs or end == "committed"
    assert {each.id for each in everything(here)} == {each.id for each in made}


def test_a_transaction_that_finds_it_made_goes_on(store: Store) -> None:
    if not store.capabilities.transactions:
        pytest.skip("this store joins no transactions")
    store.enqueue(parts(1))
    other, plain = parts(1, flow=FLOW.replace("1", "2")), draft()
    with store.transaction() as tx:
        with pytest.raises(FlowMade):
            store.enqueue([*parts(1, flow=FLOW.replace("1", "3")), *parts(1)], tx=tx)
        with pytest.raises(BadData):
            store.enqueue(
                [draft(links=after(draft().id, flow=FLOW.replace("1", "4"), name="nightly", once=True))], tx=tx
            )
        assert all(each.created for each in store.enqueue(other, tx=tx))
        with pytest.raises(FlowMade):
            store.enqueue(other, tx=tx)
        store.enqueue([plain], tx=tx)

    assert {each.id for each in store.flows()} == {FLOW, other[0].links.flow if other[0].links else None}
    assert look(store, plain.id).state is State.QUEUED
