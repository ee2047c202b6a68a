from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from conformance.factories import World, begin_guarded, bring, claim_one, finish, made, put, running, start
from tenure.core.conditions import Condition, Field
from tenure.core.lifecycle import ENDED, Cancelled, Completed, Failed, Lease, State
from tenure.errors import InvalidOption
from tenure.ports import Ended, Filter, JobView, Page, Store
from tenure.stores.rules import json_of


def found(store: Store, **wanted: Any) -> list[str]:
    return [view.id for view in store.search(Filter(**wanted)).jobs]


def pages(store: Store, where: Filter, **options: Any) -> Iterator[Page]:
    """Every page, by the cursor of the one before."""
    page = store.search(where, **options)
    yield page
    while page.cursor is not None:
        page = store.search(where, cursor=page.cursor, **options)
        yield page


def walk(store: Store, where: Filter, **options: Any) -> list[JobView]:
    return [view for page in pages(store, where, **options) for view in page.jobs]


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


def test_the_jobs_that_ended_last_come_first_without_those_of_guards(world: World) -> None:
    store = world.store()
    dead = list[str]()
    for _ in range(4):
        dead.append(bring(store, State.DEAD).job_id)
        world.advance(1)
    bring(store, State.COMPLETED)
    ends = store.get(dead[2])
    assert ends is not None

    assert [job.id for job in store.latest_ended(State.DEAD)] == dead[::-1]
    assert [job.id for job in store.latest_ended(State.DEAD, limit=2)] == [dead[3], dead[2]]
    assert [job.id for job in store.latest_ended(State.DEAD, since=ends.ended_at)] == [dead[3], dead[2]]
    assert store.latest_ended(State.CANCELLED) == []
    assert store.latest_ended(State.DEAD)[0] == store.get(dead[3])


def test_ids_are_found_by_their_beginning_and_their_end(store: Store) -> None:
    early, late, other = (
        "0199aaaa-0000-7000-8000-00000000beef",
        "0199aaaa-0001-7000-8000-0000deadbeef",
        "0299aaaa-0000-7000-8000-00000000f00d",
    )
    for job_id in (early, other, late):
        put(store, id=job_id)

    assert store.ids().ids == (other, late, early)
    assert store.ids("0199aaaa").ids == (late, early)
    assert store.ids("0199aaaa-0001").ids == (late,)
    assert store.ids(early).ids == (early,)
    assert store.ids(end="beef").ids == (late, early)
    assert store.ids(end="deadbeef").ids == (late,)
    assert store.ids("0299", "beef").ids == ()
    assert store.ids("0299aaaa_").ids == ()
    assert store.ids("0199aaaa-0001-7000-8000-0000deadbeef-").ids == ()


def test_ids_are_looked_at_a_few_at_a_time_and_each_once(store: Store) -> None:
    stored = sorted((put(store) for _ in range(7)), reverse=True)
    end = stored[4][-8:]
    for within in (1, 2, 3, 7, 8):
        seen, looks, page = list[str](), 1, store.ids(within=within)
        ending = list(store.ids(end=end, within=within).ids)
        while page.cursor is not None:
            seen += page.ids
            assert len(page.ids) == within
            ending += store.ids(end=end, within=within, cursor=page.cursor).ids
            page, looks = store.ids(within=within, cursor=page.cursor), looks + 1
        assert seen + list(page.ids) == stored
        assert looks == 7 // within + 1
        assert ending == [stored[4]]


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
        put(store)  # a job that arrives between two pages is newer, and shifts nothing
        cursor = page.cursor

    assert seen == expected


def test_what_was_enqueued_in_a_span_is_found(world: World) -> None:
    store = world.store()
    put(store)
    world.advance(10)
    since, first = store.now(), put(store)
    world.advance(10)
    second = put(store)
    world.advance(10)
    until, late = store.now(), put(store)

    assert found(store, enqueued_since=since, enqueued_until=until) == [second, first]
    assert found(store, enqueued_since=until) == [late]
    assert len(found(store, enqueued_until=until)) == 3
    assert found(store, enqueued_since=until, enqueued_until=until) == []
    assert found(store, enqueued_since=since, enqueued_until=until, task="other") == []


def test_a_span_is_exact_to_the_microsecond(world: World) -> None:
    store = world.store()
    job = bring(store, State.DEAD).job_id
    at = store.now()
    for micros in (1, 400, 600, 999):
        before, after = at - timedelta(microseconds=micros), at + timedelta(microseconds=micros)

        for what in ("enqueued", "ended"):
            assert found(store, **{f"{what}_since": before}) == [job]
            assert found(store, **{f"{what}_since": after}) == []
            assert found(store, **{f"{what}_until": before}) == []
            assert found(store, **{f"{what}_until": after}) == [job]
        assert [view.id for view in store.latest_ended(State.DEAD, since=before)] == [job]
        assert store.latest_ended(State.DEAD, since=after) == []
        assert store.ended(before, after).counts[State.DEAD] == 1
        assert store.ended(before, before).counts[State.DEAD] == store.ended(after, after).counts[State.DEAD] == 0


def town(world: World) -> tuple[Store, dict[str, Filter]]:
    """Sixty jobs of every kind, and filters that find few or many of them, at the top, the bottom or nowhere."""
    store = world.store()
    worker, oldest = start(store), put(store, task="rare", queue="attic")
    began = store.now()
    for _ in range(7):
        world.advance(1)
        busy = running(store, worker)
        for state in sorted(set(State) - {State.QUEUED}):
            bring(store, state)
        put(store, queue="slow")
        put(store, queue="slow", delay=3600.0)
        put(store, task="mail", queue="mail")
        store.cancel([busy.job_id], "no longer")
    middle = store.now() - timedelta(seconds=3)
    states = {f"states {state}": Filter(states=frozenset({state})) for state in State}
    in_slow = {f"slow {state}": Filter(states=frozenset({state}), queue="slow") for state in State}
    return store, {
        **states,
        **in_slow,
        "any": Filter(),
        "live": Filter(states=frozenset(State) - ENDED),
        "dead or queued": Filter(states=frozenset({State.DEAD, State.QUEUED})),
        "of a worker": Filter(worker_id=worker),
        "of a worker, but of another state": Filter(worker_id=worker, states=frozenset({State.DEAD})),
        "of nobody": Filter(worker_id="host-0-nobody"),
        "a rare task, the oldest": Filter(task="rare"),
        "by text": Filter(text=oldest),
        "by the text of errors": Filter(text="for good"),
        "ended since": Filter(ended_since=middle),
        "dead since": Filter(states=frozenset({State.DEAD}), ended_since=middle),
        "dead since, mail": Filter(states=frozenset({State.DEAD}), ended_since=middle, task="mail"),
        "live, ended since": Filter(states=frozenset({State.QUEUED}), ended_since=began),
        "ended until": Filter(ended_until=middle),
        "enqueued since": Filter(enqueued_since=middle),
        "enqueued until": Filter(enqueued_until=middle),
        "dead, enqueued until": Filter(states=frozenset({State.DEAD}), enqueued_until=middle),
    }


@pytest.mark.parametrize(
    "narrow",
    [
        pytest.param([(3, 1), (10, 25)], id="two widths"),
        pytest.param([(1, 1), (2, 5), (5, 2), (4, 4), (100, 1000)], id="many", marks=pytest.mark.thorough),
    ],
)
def test_pages_that_look_at_few_rows_show_all_that_any_page_shows(world: World, narrow: list[tuple[int, int]]) -> None:
    store, filters = town(world)
    everything = walk(store, Filter(), limit=1000)
    assert len(everything) > 60

    for name, where in filters.items():
        expected = walk(store, where, limit=1000)
        assert expected == [view for view in everything if view in expected], name
        for limit, within in narrow:
            assert walk(store, where, limit=limit) == expected, (name, limit)
            walked = list(pages(store, where, limit=limit, within=within))
            assert [view for page in walked for view in page.jobs] == expected, (name, limit, within)
            assert all(len(page.jobs) <= limit for page in walked), (name, limit, within)


def test_a_page_that_may_look_no_further_says_where_to_go_on(store: Store) -> None:
    oldest = put(store)
    for _ in range(199):
        put(store)
    where = Filter(text=oldest)

    walked = list(pages(store, where, within=10))

    assert (walked[0].jobs, walked[0].cursor is not None) == ((), True)
    assert [view.id for page in walked for view in page.jobs] == [oldest]
    assert len(walked) > 5
    assert [view.id for view in store.search(where).jobs] == [oldest]


def test_a_walk_goes_on_where_the_last_job_looked_at_was_deleted(store: Store) -> None:
    jobs = [put(store, task="mail" if n % 3 else "work") for n in range(9)][::-1]
    page = store.search(Filter(), limit=2, within=5)
    store.delete([view.id for view in page.jobs])

    rest = store.search(Filter(), limit=10, cursor=page.cursor)

    assert [view.id for view in (*page.jobs, *rest.jobs)] == jobs


# ── how much ended, and how fast ──


def times(ended: Ended) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    return tuple(job.wait for job in ended.completed), tuple(job.run for job in ended.completed)


def test_what_ended_in_a_span_is_counted_by_state(world: World) -> None:
    store = world.store()
    began = store.now()
    bring(store, State.COMPLETED)
    world.advance(10)
    since = store.now()
    for state in (State.COMPLETED, State.COMPLETED, State.DEAD, State.SCHEDULED, State.PROCESSING):
        bring(store, state)
    put(store, queue="slow")
    waiting = put(store, delay=60.0)
    store.cancel([waiting], "not wanted")
    world.advance(10)
    until = store.now()
    bring(store, State.DEAD)

    assert store.ended(since, until).counts == {State.COMPLETED: 2, State.DEAD: 1, State.CANCELLED: 1}
    after = until + timedelta(seconds=1)
    assert store.ended(began, after).counts == {State.COMPLETED: 3, State.DEAD: 2, State.CANCELLED: 1}
    assert store.ended(until, after).counts == {State.COMPLETED: 0, State.DEAD: 1, State.CANCELLED: 0}
    assert store.ended(after, after + timedelta(days=1)) == Ended(dict.fromkeys(ENDED, 0))
    assert store.ended(until, since) == Ended(dict.fromkeys(ENDED, 0))


def test_a_count_of_what_ended_stops_at_the_most_of_each_state(world: World) -> None:
    store = world.store()
    since = store.now()
    for state in (State.DEAD, State.COMPLETED, State.COMPLETED, State.COMPLETED):
        bring(store, state)
    until = since + timedelta(seconds=1)

    assert store.ended(since, until, most=2).counts == {State.COMPLETED: 2, State.DEAD: 1, State.CANCELLED: 0}
    assert store.ended(since, until, most=3).counts == {State.COMPLETED: 3, State.DEAD: 1, State.CANCELLED: 0}
    assert len(store.ended(since, until, most=1).completed) == 3


def test_the_last_completed_ones_tell_how_long_they_waited_and_ran(world: World) -> None:
    store = world.store()
    since, worker = store.now(), start(store, lease=3600.0)
    for waits, runs in ((1, 10), (2, 20), (3, 30)):
        put(store)
        world.advance(waits)
        lease = claim_one(store, worker)
        world.advance(runs)
        finish(store, lease, Completed())
    bring(store, State.DEAD)
    finish(store, running(store), Cancelled("not wanted"))
    until = store.now() + timedelta(seconds=1)

    ended = store.ended(since, until)
    assert times(ended) == ((3.0, 2.0, 1.0), (30.0, 20.0, 10.0))
    ended = store.ended(since, until, sample=2)
    assert times(ended) == ((3.0, 2.0), (30.0, 20.0))
    ended = store.ended(since, since + timedelta(seconds=34))
    assert times(ended) == ((2.0, 1.0), (20.0, 10.0))
    ended = store.ended(since, until, sample=0)
    assert (ended.counts[State.COMPLETED], ended.last) == (3, ())


def test_the_last_ones_of_each_state_tell_their_task_and_whether_they_stumbled(world: World) -> None:
    store = world.store()
    since = store.now()
    done = bring(store, State.COMPLETED).job_id
    failed = running(store, task='odd "name"')
    finish(store, failed, Failed("not yet", retry_in=1))
    world.advance(2)
    store.promote()
    finish(store, claim_one(store, start(store)), Completed())
    world.advance(1)
    dead = bring(store, State.DEAD).job_id
    waiting = put(store, task="mail", delay=60.0)
    store.cancel([waiting], "not wanted")

    ended = store.ended(since, store.now() + timedelta(seconds=1))
    said = {job.id: (job.state, job.task, job.stumbled, job.wait is None, job.run is None) for job in ended.last}
    assert said == {
        done: (State.COMPLETED, store.get(done).task, False, False, False),  # type: ignore[union-attr]
        failed.job_id: (State.COMPLETED, 'odd "name"', True, False, False),
        dead: (State.DEAD, store.get(dead).task, True, True, True),  # type: ignore[union-attr]
        waiting: (State.CANCELLED, "mail", False, True, True),
    }
    assert [job.id for job in ended.completed] == [failed.job_id, done]


def test_a_wait_is_that_of_the_last_try(world: World) -> None:
    store = world.store()
    since, worker = store.now(), start(store, lease=3600.0)
    job_id = put(store, delay=100.0)
    world.advance(105)
    store.promote()
    world.advance(3)
    finish(store, claim_one(store, worker), Failed("not yet", retry_in=50))
    world.advance(54)
    store.promote()
    lease = claim_one(store, worker)
    world.advance(6)
    assert (lease.job_id, finish(store, lease, Completed())) == (job_id, State.COMPLETED)

    ended = store.ended(since, store.now() + timedelta(seconds=1))

    assert times(ended) == ((4.0,), (6.0,))


def test_a_guards_run_counts_like_any(world: World) -> None:
    store = world.store()
    name, guard = made(store).name, start(store, runner="guard", queues=())
    since, job_id = store.now(), begin_guarded(store, name, guard)
    world.advance(5)
    finish(store, Lease(job_id, 1, guard), Completed())

    ended = store.ended(since, store.now() + timedelta(seconds=1))

    assert (ended.counts[State.COMPLETED], times(ended)) == (1, ((0.0,), (5.0,)))


def test_no_time_is_less_than_none_where_somebody_set_the_clock_back(world: World) -> None:
    store = world.store()
    worker = start(store)
    put(store)
    world.step_wall_clock(-10)
    lease = claim_one(store, worker)
    world.step_wall_clock(-10)
    finish(store, lease, Completed())

    ended = store.ended(store.now(), store.now() + timedelta(seconds=1))

    assert times(ended) == ((0.0,), (0.0,))


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


def test_text_is_looked_for_in_error_and_id_letter_by_letter(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Failed("disk 100% full_on 'sda'"))
    other = put(store)

    for text in ("100% full", "full_on", "'sda'", "DISK 100% Full", lease.job_id, lease.job_id[5:]):
        assert found(store, text=text) == [lease.job_id], text
    for text in ("100_ full", "%", "_"):
        assert other not in found(store, text=text), text
    assert found(store, text="nowhere") == []


def holds(field: Field, path: str, text: str, *, exactly: bool = False) -> Filter:
    return Filter(conditions=(Condition(field, path, exactly, text),))


def test_jobs_are_found_by_their_arguments_meta_result_and_error(store: Store) -> None:
    lease = running(store, payload='{"user":4711,"name":"Ada Ö","note":"a % _ b"}', meta='{"request":"Ab-12"}')
    finish(store, lease, Completed('{"Sent":true}'))
    failed = running(store, payload='{"user":17}', meta='{"request":"cd-34"}')
    finish(store, failed, Failed("TimeOut: Ö", final=True))
    waiting = put(store, payload='{"user":17,"path":"C:\\\\temp"}')

    expected = {
        holds("payload", "user", "4711"): [lease.job_id],
        holds("payload", "USER", "17"): [waiting, failed.job_id],
        holds("payload", "name", "aDA"): [lease.job_id],
        holds("payload", "name", "Ö"): [lease.job_id],
        holds("payload", "", "a % _"): [lease.job_id],
        holds("payload", "note", "a % % b"): [],
        holds("payload", "path", "C:\\temp"): [waiting],
        holds("meta", "request", "AB-12"): [lease.job_id],
        holds("meta", "", "34"): [failed.job_id],
        holds("result", "sent", "TRUE"): [lease.job_id],
        holds("error", "", "timeout: Ö"): [failed.job_id],
        holds("error", "", "timeout: ö"): [],
        holds("error", "", "4711"): [],
        holds("text", "", failed.job_id.upper()): [failed.job_id],
    }
    for where, ids in expected.items():
        assert [view.id for view in walk(store, where)] == ids, where
        walked = [view.id for page in pages(store, where, limit=2, within=1) for view in page.jobs]
        assert walked == ids, where
    both = holds("payload", "user", "17").conditions + holds("error", "", "timeout").conditions
    dead = frozenset({State.DEAD})
    assert [view.id for view in store.search(Filter(conditions=both, states=dead)).jobs] == [failed.job_id]


@pytest.mark.parametrize("text", ["'; --", "%", "_", "\\", '"', "{}", "%s", "$1", "?", "ſ", "\n", "x" * 5_000, "[.*+"])
def test_odd_texts_are_compared_as_they_are(text: str, store: Store) -> None:
    job = put(store, payload=json_of({"a": f"<{text}>"}), meta=json_of({"m": text}))
    other = put(store, payload='{"a":"plain"}', meta='{"m":"plain"}')

    for where in (holds("payload", "a", f"<{text}>", exactly=True), holds("meta", "m", text)):
        assert job in [view.id for view in walk(store, where)]
        assert where.conditions[0].met_by({"a": f"<{text}>", "m": text})
    assert [view.id for view in walk(store, holds("error", "", text))] == []
    assert {view.id for view in walk(store, Filter())} == {job, other}


def test_what_ended_in_a_span_is_found_however_old_it_is(world: World) -> None:
    store = world.store()
    first = bring(store, State.DEAD).job_id
    world.advance(100)
    since = store.now()
    middle, done = bring(store, State.DEAD).job_id, bring(store, State.COMPLETED).job_id
    put(store, queue="slow")
    world.advance(100)
    until = store.now()
    last = bring(store, State.CANCELLED).job_id

    assert found(store, ended_since=since, ended_until=until) == [done, middle]
    assert found(store, ended_until=since) == [first]
    assert found(store, ended_until=until, states=frozenset({State.DEAD})) == [middle, first]
    assert found(store, ended_since=until) == [last]
    assert found(store, ended_until=until, states=frozenset({State.QUEUED, State.SCHEDULED})) == []


def test_a_short_page_says_how_far_back_it_has_looked(world: World) -> None:
    store = world.store()
    times = [(store.now(), put(store)), *((world.advance(1), store.now(), put(store))[1:] for _ in range(9))]
    for where in (Filter(text="nowhere"), Filter(text="nowhere", states=frozenset({State.QUEUED}))):
        page = store.search(where, within=4)
        assert (page.jobs, page.reached) == ((), times[-4][0])
        assert store.search(where, within=4, cursor=page.cursor).reached == times[-8][0]
        assert store.search(where).reached is None


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


def stored(store: Store, job_id: str) -> JobView:
    found = store.get(job_id)
    assert found is not None
    return found


def test_a_completed_job_names_who_completed_it_until_it_is_replayed(store: Store) -> None:
    lease = running(store)
    finish(store, lease, Failed("later", retry_in=0.0))
    store.promote()
    worker = start(store)
    again = claim_one(store, worker)
    assert stored(store, again.job_id).completed_by is None
    finish(store, again, Completed("1"))

    assert stored(store, again.job_id).completed_by == worker
    assert [job.completed_by for job in store.search(Filter()).jobs] == [worker]

    store.replay([again.job_id])
    assert stored(store, again.job_id).completed_by is None
