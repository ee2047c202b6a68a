from __future__ import annotations

from typing import Any

import pytest

from conformance.factories import World, bring, finish, put, running, start
from tenure.errors import InvalidOption
from tenure.lifecycle import Completed, Failed, State
from tenure.ports import Filter, Store


def found(store: Store, **wanted: Any) -> list[str]:
    return [view.id for view in store.search(Filter(**wanted)).jobs]


def test_what_has_ended_since_is_found_however_old_it_is(world: World) -> None:
    store = world.store()
    old = bring(store, State.DEAD).job_id
    late = running(store)
    world.advance(100)
    since = store.now()
    finish(store, late, Failed("at last", final=True))

    found = store.search(Filter(states=frozenset({State.DEAD}), ended_since=since))
    assert [job.id for job in found.jobs] == [late.job_id]
    assert {job.id for job in store.search(Filter(ended_since=since)).jobs} == {late.job_id}
    assert old not in {job.id for job in found.jobs}


def test_nothing_is_found_where_nothing_is(store: Store) -> None:
    assert store.get("00000000-0000-0000-0000-000000000000") is None
    assert store.search(Filter()).jobs == ()
    assert store.search(Filter()).cursor is None
    assert store.counts() == dict.fromkeys(State, 0)
    assert store.queues() == []
    assert store.workers() == []


def test_counts_name_every_state(store: Store) -> None:
    for state in (state for state in State if state is not State.QUEUED):
        bring(store, state)
    put(store)
    put(store)

    assert store.counts() == {state: 2 if state is State.QUEUED else 1 for state in State}


def test_search_goes_newest_first(world: World) -> None:
    store = world.store()
    early = [put(store) for _ in range(2)]
    world.advance(1)
    late = [put(store) for _ in range(2)]

    assert found(store) == [*late[::-1], *early[::-1]]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_pages_show_every_job_once(size: int, world: World) -> None:
    store = world.store()
    expected: list[str] = []
    for n in range(7):
        expected.insert(0, put(store))
        world.advance(n % 2)
    seen: list[str] = []
    cursor: str | None = None
    while cursor is not None or not seen:
        page = store.search(Filter(), limit=size, cursor=cursor)
        seen += [view.id for view in page.jobs]
        assert len(page.jobs) <= size
        assert seen == expected[: len(seen)]
        put(store)  # what arrives while someone turns pages is newer, and moves nothing
        cursor = page.cursor

    assert seen == expected


@pytest.mark.parametrize("cursor", ["", "7", "no cursor", "£", "a b c", "eyJ9", "1,2,3"])
def test_a_cursor_that_no_page_gave_is_refused(cursor: str, store: Store) -> None:
    put(store)

    with pytest.raises(InvalidOption, match="cursor"):
        store.search(Filter(), cursor=cursor)


def test_a_filter_takes_each_word_exactly(store: Store) -> None:
    worker = start(store)
    plain = put(store)
    other_task, other_queue = put(store, task="mail"), put(store, queue="slow")
    keyed = put(store, unique="k:1")
    (claimed,) = store.claim(worker, {"slow": 1}, 1)

    assert found(store, task="mail") == [other_task]
    assert found(store, queue="slow") == found(store, worker_id=worker) == [claimed.id] == [other_queue]
    assert found(store, unique="k:1") == [keyed]
    assert found(store, states=frozenset({State.PROCESSING})) == [other_queue]
    live = frozenset({State.QUEUED, State.PROCESSING})
    assert set(found(store, states=live)) == {plain, other_task, other_queue, keyed}
    assert found(store, task="mail", queue="slow") == found(store, task="mai") == found(store, unique="k") == []


def test_text_is_looked_for_in_error_and_id_as_it_stands(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Failed("disk 100% full_on 'sda'"))
    other = put(store)

    for text in ("100% full", "full_on", "'sda'", lease.job_id, lease.job_id[5:]):
        assert found(store, text=text) == [lease.job_id], text
    for text in ("100_ full", "%", "_"):
        assert other not in found(store, text=text), text
    assert found(store, text="nowhere") == []


def test_a_page_of_ended_jobs_has_what_they_ended_with(store: Store) -> None:
    lease = bring(store, State.PROCESSING)
    finish(store, lease, Completed('{"n": 1}'))

    (view,) = store.search(Filter(states=frozenset({State.COMPLETED}))).jobs

    assert view == store.get(lease.job_id)
    assert view.result == '{"n": 1}'


def test_times_are_aware_and_by_the_stores_clock(world: World) -> None:
    store = world.store()
    now = store.now()
    world.advance(90)

    assert now.tzinfo is not None
    assert (store.now() - now).total_seconds() == 90
    assert now.timestamp() + 90 == pytest.approx(world.clock.unix())


def test_a_url_says_what_kind_of_store_it_is(store: Store) -> None:
    kind, separator, _ = store.url.partition("://")

    assert kind
    assert separator
