"""Notes: small texts that are compared and set, together with jobs that are stored if the change lands."""

from __future__ import annotations

from functools import partial

import pytest

from conformance.factories import World, bring, draft, everything, look, made, put, race
from tenure.core.lifecycle import State
from tenure.errors import BadData
from tenure.ports import Store
from tenure.ports.schedules import Swapped

NUL, SURROGATE = "a\x00b", "a\ud800b"
bad_text = pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["nul", "surrogate"])


def test_a_note_is_written_changed_and_removed(store: Store) -> None:
    assert store.notes("") == {}
    assert store.swap("key", None, "one") == Swapped(True, "one")
    assert store.notes("key") == {"key": "one"}
    assert store.swap("key", "one", "two") == Swapped(True, "two")
    assert store.notes("key") == {"key": "two"}
    assert store.swap("key", "two", None) == Swapped(True, None)
    assert store.notes("key") == {}


@pytest.mark.parametrize("old", [None, "", "One", "one ", "two"], ids=repr)
def test_a_swap_from_another_text_changes_nothing_and_tells_what_stands(old: str | None, store: Store) -> None:
    store.swap("key", None, "one")
    job = draft()

    assert store.swap("key", old, "new", drafts=[job]) == Swapped(False, "one")
    assert store.swap("key", old, None, drafts=[job]) == Swapped(False, "one")

    assert store.notes("") == {"key": "one"}
    assert store.get(job.id) is None


def test_a_swap_from_a_text_where_none_stands_tells_that(store: Store) -> None:
    assert store.swap("key", "one", "two", drafts=[draft()]) == Swapped(False, None)

    assert store.notes("") == {}
    assert everything(store) == []


@pytest.mark.parametrize("text", ["", " ", "null", "0", "Zoë ☃ 𝄞\n\t\r\x01", "x" * 300_000], ids=lambda text: text[:4])
def test_any_text_comes_back_as_it_was(text: str, store: Store) -> None:
    assert store.swap(f"key{text[:50]}", None, text) == Swapped(True, text)

    assert store.notes("") == {f"key{text[:50]}": text}
    assert store.swap(f"key{text[:50]}", text, "") == Swapped(True, "")
    assert store.swap(f"key{text[:50]}", "", None) == Swapped(True, None)


def test_an_empty_text_is_a_note(store: Store) -> None:
    store.swap("key", None, "")

    assert store.swap("key", None, "other") == Swapped(False, "")
    assert store.notes("") == {"key": ""}


def test_notes_of_two_keys_do_not_meet(store: Store) -> None:
    for key in ("a", "A", "a ", "á", "a:b"):
        assert store.swap(key, None, f"of {key}").landed

    assert store.notes("") == {key: f"of {key}" for key in ("a", "A", "a ", "á", "a:b")}


# ── time ──


def test_a_note_is_over_by_the_stores_clock(world: World) -> None:
    store = world.store()
    store.swap("key", None, "one", ttl=60)
    store.swap("other", None, "stays")
    world.advance(59)
    assert store.notes("") == {"key": "one", "other": "stays"}
    assert not store.swap("key", None, "two").landed

    world.advance(2)

    assert store.notes("") == {"other": "stays"}
    assert store.swap("key", "one", "two") == Swapped(False, None)
    assert store.swap("key", None, "two") == Swapped(True, "two")


def test_a_new_text_brings_its_own_time(world: World) -> None:
    store = world.store()
    store.swap("key", None, "one", ttl=60)
    store.swap("key", "one", "two")
    store.swap("other", None, "one")
    store.swap("other", "one", "two", ttl=60)
    world.advance(61)

    assert store.notes("") == {"key": "two"}


def test_the_same_text_renews_its_time(world: World) -> None:
    store = world.store()
    store.swap("key", None, "one", ttl=60)
    world.advance(40)
    assert store.swap("key", "one", "one", ttl=60) == Swapped(True, "one")
    world.advance(40)

    assert store.notes("") == {"key": "one"}
    world.advance(21)
    assert store.notes("") == {}


@pytest.mark.parametrize("old", ["one", None])
def test_a_note_that_is_over_is_not_renewed_but_written_anew(old: str | None, world: World) -> None:
    store = world.store()
    store.swap("key", None, "one", ttl=60)
    world.advance(61)
    job = draft()

    swapped = store.swap("key", old, "one", ttl=60, drafts=[job])

    assert swapped == (Swapped(True, "one") if old is None else Swapped(False, None))
    assert (store.get(job.id) is not None) == swapped.landed


def test_fractions_of_a_second_count(world: World) -> None:
    store = world.store()
    store.swap("key", None, "one", ttl=0.5)
    world.advance(0.25)
    assert store.notes("") == {"key": "one"}
    world.advance(0.5)
    assert store.notes("") == {}


def test_forget_clears_away_notes_whose_time_is_over(world: World) -> None:
    store = world.store()
    for number in range(5):
        store.swap(f"over {number}", None, "x", ttl=10)
    store.swap("later", None, "x", ttl=1000)
    store.swap("never", None, "x")
    made(store)
    assert store.forget(keep=0) == 0
    world.advance(11)

    assert [store.forget(keep=0, limit=3) for _ in range(3)] == [3, 2, 0]

    assert sorted(store.notes("")) == ["later", "never"]


# ── with jobs ──


def test_a_landing_swap_enqueues_its_drafts(store: Store) -> None:
    jobs = [draft(queue="mail", priority=5), draft(delay=60)]

    assert store.swap("key", None, "one", drafts=jobs).landed

    assert (look(store, jobs[0].id).state, look(store, jobs[0].id).priority) == (State.QUEUED, 5)
    assert look(store, jobs[1].id).state is State.SCHEDULED


def test_a_removing_swap_enqueues_its_drafts_too(store: Store) -> None:
    store.swap("key", None, "one")
    job = draft()

    assert store.swap("key", "one", None, drafts=[job]) == Swapped(True, None)

    assert look(store, job.id).state is State.QUEUED


@pytest.mark.parametrize("new", ["two", None])
def test_what_has_landed_lands_again_and_enqueues_nothing_more(new: str | None, store: Store) -> None:
    store.swap("key", None, "one")
    first, again = draft(), draft()
    assert store.swap("key", "one", new, drafts=[first]).landed
    store.delete([first.id])

    assert store.swap("key", "one", new, drafts=[first, again]) == Swapped(True, new)

    assert everything(store) == []


def test_a_first_swap_that_is_sent_twice_lands_twice_and_enqueues_once(store: Store) -> None:
    job = draft()
    assert store.swap("key", None, "one", drafts=[job]).landed
    store.delete([job.id])

    assert store.swap("key", None, "one", drafts=[job]) == Swapped(True, "one")

    assert everything(store) == []


def test_a_renewal_enqueues_nothing(store: Store) -> None:
    store.swap("key", None, "one")

    assert store.swap("key", "one", "one", drafts=[draft()]).landed
    assert store.swap("gone", None, None, drafts=[draft()]) == Swapped(True, None)

    assert everything(store) == []


def test_a_draft_whose_id_or_key_is_taken_makes_nothing_and_the_swap_lands(store: Store) -> None:
    kept, holder = bring(store, State.COMPLETED).job_id, put(store, unique="one")
    drafts = [draft(id=kept, payload='"new"'), draft(unique="one"), draft()]

    assert store.swap("key", None, "one", drafts=drafts).landed

    assert {view.id for view in everything(store)} == {kept, holder, drafts[2].id}
    assert look(store, kept).state is State.COMPLETED


# ── prefix ──


@pytest.mark.parametrize("sign", ["%", "_", "*", "?", "[a]", "[", "\\", "'", '"', "{", "^", "é", "\U0010ffff"])
def test_a_prefix_means_itself(sign: str, store: Store) -> None:
    for key in (f"k{sign}", f"k{sign}1", "k", "kx", "kxx", "ka", f"K{sign}", f"x{sign}", f"xk{sign}"):
        store.swap(key, None, key)

    assert store.notes(f"k{sign}") == {f"k{sign}": f"k{sign}", f"k{sign}1": f"k{sign}1"}


def test_notes_of_no_such_prefix_are_none(store: Store) -> None:
    store.swap("alert:1", None, "x")

    assert store.notes("alert:2") == {}
    assert store.notes("alert:10") == {}
    assert store.notes("alert:1 ") == {}


def test_many_notes_are_all_told(store: Store) -> None:
    for number in range(300):
        store.swap(f"incident:{number:03}", None, str(number))
    store.swap("incidents", None, "x")

    assert store.notes("incident:") == {f"incident:{number:03}": str(number) for number in range(300)}


# ── refused values ──


@bad_text
@pytest.mark.parametrize("where", ["key", "new", "draft"])
def test_a_bad_value_lands_nothing(where: str, bad: str, store: Store) -> None:
    store.swap("key", None, "one")
    jobs = [draft(), draft(payload=bad if where == "draft" else "{}")]

    with pytest.raises(BadData):
        store.swap(bad if where == "key" else "key", "one", bad if where == "new" else "two", drafts=jobs)

    assert store.notes("") == {"key": "one"}
    assert everything(store) == []


# ── two at once ──


def test_of_two_swaps_from_one_text_exactly_one_lands(world: World) -> None:
    doors = [world.store() for _ in range(4)]
    stands: str | None = None
    for turn in range(8):
        texts = [f"{turn} by {number}" for number in range(len(doors))]
        jobs = [draft() for _ in doors]

        answers = race(
            *(
                partial(door.swap, "key", stands, text, drafts=[job])
                for door, text, job in zip(doors, texts, jobs, strict=True)
            )
        )

        (winner,) = [number for number, answer in enumerate(answers) if answer.landed]
        assert [answer.value for answer in answers] == [texts[winner]] * len(doors)
        assert [doors[0].get(job.id) is not None for job in jobs] == [n == winner for n in range(len(doors))]
        stands = texts[winner]
        if turn == 3:
            doors[0].swap("key", stands, None)
            stands = None


def test_the_same_swap_by_two_lands_for_both_and_enqueues_once(world: World) -> None:
    here, there = world.store(), world.store()
    for number in range(8):
        mine, theirs = draft(), draft()

        answers = race(
            partial(here.swap, f"key {number}", None, "open", drafts=[mine]),
            partial(there.swap, f"key {number}", None, "open", drafts=[theirs]),
        )

        assert answers == [Swapped(True, "open")] * 2
        assert [here.get(mine.id) is None, here.get(theirs.id) is None].count(True) == 1


def test_what_one_store_notes_another_one_reads(world: World) -> None:
    here, there = world.store(), world.store()
    here.swap("key", None, "one", ttl=60)

    assert there.notes("k") == {"key": "one"}
    assert there.swap("key", "one", "two").landed
    assert here.notes("k") == {"key": "two"}
