"""Dead letters grouped by what their errors have in common, and replayed as a group, at a rate per minute."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from conformance.factories import World, bring, finish, look, put, running
from tenure.config import load
from tenure.core.fingerprint import fingerprint, pattern
from tenure.core.lifecycle import Failed, State
from tenure.errors import InvalidOption
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.job_search import meets, parsed
from tenure.operations.pace import Pace
from tenure.ports import Filter, Store

DEAD = frozenset({State.DEAD})


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store, PollNotifier(), load(environ={}), who="ada")


def dies(store: Store, error: str, **options: object) -> str:
    lease = running(store, **options)
    assert finish(store, lease, Failed(error, final=True)) is State.DEAD
    return lease.job_id


# ── What errors have in common ──


@pytest.mark.parametrize(
    ("error", "common"),
    [
        (
            "ValueError: no address for customer 4711\n\n  File 'shop.py', line 3",
            "ValueError: no address for customer …",
        ),
        ("KeyError: 'order-17'", "KeyError: …"),
        ('no rate for "EUR" in "2026-11"', "no rate for … in …"),
        ("[Errno 2] No such file or directory: '/srv/a b/17.pdf'", "[Errno …] No such file or directory: …"),
        ("cannot open /var/spool/17/x.pdf: disk full", "cannot open …: disk full"),
        (r"cannot open C:\spool\x.pdf", "cannot open …"),
        ("GET https://api.example.com/v1/users?id=7 returned 503", "GET … returned …"),
        ("mail to ada@example.com refused by 10.0.0.7:25", "mail to … refused by …"),
        ("object at 0x7f3a9c is gone", "object at … is gone"),
        ("job 01a1fe5f-2086-7000-bfd6-70a8e7a82d4a, attempt 3 of 10", "job …, attempt … of …"),
        ("unknown ids: [1, 2, 3]", "unknown ids: […]"),
        ("unknown ids: [1, 2, 3, 4]", "unknown ids: […]"),
        ("refused: {'user': 4711, 'sums': [1.5, 2]}", "refused: {…}"),
        ("timeout=30, tries=2", "timeout=…, tries=…"),
        ("can't connect, the server doesn't answer", "can't connect, the server doesn't answer"),
        ("botocore.S3Error: bucket is gone", "botocore.S3Error: bucket is gone"),
        ("took ３０ seconds", "took … seconds"),
        ("", "no error recorded"),
        ("   \n", "no error recorded"),
        ('an unclosed "quote of 17', "an unclosed …"),
    ],
)
def test_what_differs_from_case_to_case_is_left_out(error: str, common: str) -> None:
    assert pattern(error) == common


def test_a_fingerprint_is_that_of_the_pattern() -> None:
    one, two, other = (fingerprint(text) for text in ("no user 17", "no user 4711\ntrace", "no order 17"))

    assert one == two != other
    assert (len(one), fingerprint("no user 17")) == (8, "b80a9c02")


def test_any_text_has_a_pattern_of_bounded_length() -> None:
    some = random.Random(7)
    alphabet = "ab17 '\"`/\\@:.,()[]{}=\n\x00\ud800é…"
    texts = ["".join(some.choices(alphabet, k=5_000)) for _ in range(50)]
    texts += [each * 50_000 for each in ("'", '"', "a", "a/", "[1, ", "\\", "…", "a'")]

    assert all(len(pattern(text)) <= 201 and len(fingerprint(text)) == 8 for text in texts)


# ── Groups ──


def test_two_causes_are_two_groups_however_many_jobs_they_kill(world: World, store: Store, admin: Admin) -> None:
    for number in range(22):
        dies(store, f"ValueError: no address for customer {number}", task="mail" if number % 2 else "invoice")
        world.advance(1)
        last = dies(store, f"OSError: [Errno 28] No space left on device: '/srv/{number}.pdf'", task="render")

    found = admin.jobs.errors(Filter(states=DEAD))

    assert (found.jobs, found.more, len(found.groups)) == (44, False, 2)
    disk, address = sorted(found.groups, key=lambda group: group.says)
    assert (disk.says, disk.jobs, dict(disk.tasks)) == (
        "OSError: [Errno …] No space left on device: …",
        22,
        {"render": 22},
    )
    assert (disk.last_id, disk.last_at) == (last, look(store, last).ended_at)
    assert dict(address.tasks) == {"mail": 11, "invoice": 11}
    assert {job.id for job in admin.jobs.search(parsed(f"fingerprint={disk.fingerprint}", admin.now())).jobs} == {
        job.id for job in store.search(Filter(task="render")).jobs
    }


def test_groups_are_of_the_jobs_that_match_and_the_largest_comes_first(store: Store, admin: Admin) -> None:
    for number in range(3):
        dies(store, f"no user {number}", task="mail")
    dies(store, "disk full", task="mail")
    dies(store, "disk full", task="render")
    bring(store, State.COMPLETED)

    found = admin.jobs.errors(Filter(states=DEAD, task="mail"))

    assert [(group.says, group.jobs) for group in found.groups] == [("no user …", 3), ("disk full", 1)]


@pytest.mark.parametrize("words", ["fingerprint=", "fingerprint~12345678", "fingerprint=xyz", "fingerprint.a=12345678"])
def test_what_is_no_fingerprint_is_refused(admin: Admin, words: str) -> None:
    with pytest.raises(InvalidOption):
        parsed(words, admin.now())


def test_a_dead_letter_without_an_error_is_found_by_the_fingerprint_of_its_group(store: Store, admin: Admin) -> None:
    job = replace(look(store, dies(store, "no user")), error=None)
    where = parsed(f"fingerprint={fingerprint('')}", admin.now())

    assert meets(job, where)
    assert not meets(replace(job, state=State.QUEUED), where)


# ── Replayed as a group ──


def dues(store: Store, where: Filter = Filter()) -> list[float]:  # noqa: B008
    """Seconds from now until each is due, in order."""
    return sorted((job.run_at - store.now()).total_seconds() for job in store.search(where, limit=1000).jobs)


def test_a_group_is_replayed_at_so_many_a_minute(store: Store, admin: Admin) -> None:
    ids = [dies(store, f"no user {number}") for number in range(22)]
    other = dies(store, "disk full")
    where = parsed(f"state=dead fingerprint={fingerprint('no user 1')}", admin.now())

    done = admin.jobs.act_on_all("replay", where, per_minute=60)

    assert (done.done, done.cursor) == (22, None)
    assert done.until == store.now() + timedelta(seconds=21)
    assert look(store, other).state is State.DEAD
    assert store.counts()[State.QUEUED] == 1, "the first one at once"
    assert dues(store, Filter(states=frozenset({State.QUEUED, State.SCHEDULED}))) == [float(n) for n in range(22)]
    assert {look(store, each).failures for each in ids} == {0}


@pytest.mark.thorough
def test_a_replay_that_was_cut_short_goes_on_after_the_jobs_it_has_placed(
    world: World, store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1_100):
        put(store, queue="waiting") if number % 2 else dies(store, f"no user {number}")
    where, replay, calls = Filter(states=DEAD), store.replay, list[int]()

    def cut_short(ids: list[str], **options: object) -> object:
        calls.append(len(ids))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return replay(ids, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "replay", cut_short)
    with pytest.raises(KeyboardInterrupt):
        admin.jobs.act_on_all("replay", where, per_minute=600)
    placed = 550 - store.counts()[State.DEAD]
    assert placed == 500
    monkeypatch.undo()
    world.advance(10)
    again = Admin(world.store(), PollNotifier(), load(environ={}), who="bob")

    done = again.jobs.act_on_all("replay", where, per_minute=600)

    assert (done.done, store.counts()[State.DEAD]) == (50, 0)
    due = dues(store, Filter(states=frozenset({State.QUEUED, State.SCHEDULED}), queue="default"))
    assert len(due) == 550
    assert min(after - before for before, after in pairwise(due)) == pytest.approx(0.1)


def test_two_replays_of_one_filter_share_the_minutes_and_those_of_two_do_not(store: Store, admin: Admin) -> None:
    for number in range(3):
        dies(store, f"no user {number}", task="mail")
        dies(store, f"no order {number}", task="pay")
    mail, pay = (Filter(states=DEAD, task=task) for task in ("mail", "pay"))

    admin.jobs.act_on_all("replay", mail, per_minute=60)
    admin.jobs.act_on_all("replay", pay, per_minute=60)
    dies(store, "no user 3", task="mail", priority=9)
    last = admin.jobs.act_on_all("replay", mail, per_minute=60)

    assert dues(store, Filter(task="pay")) == [0.0, 1.0, 2.0]
    assert last.until == store.now() + timedelta(seconds=3)


def test_the_age_of_the_jobs_makes_no_other_filter(store: Store) -> None:
    now = store.now()
    for n, name in enumerate(("enqueued_since", "enqueued_until", "ended_since", "ended_until")):
        where = Filter(states=DEAD, **{name: now - timedelta(hours=n)})  # type: ignore[arg-type]
        assert Pace(store, 60, where).take(1) == [float(n)]


def test_another_pace_begins_now_and_the_same_one_goes_on(store: Store) -> None:
    where = Filter(states=DEAD)
    Pace(store, 1, where).take(1_000)

    assert Pace(store, 60, where).take(2) == [0.0, 1.0]
    assert Pace(store, 60, where).take(1) == [2.0]


def test_of_two_who_take_moments_at_the_same_time_each_has_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, notes, others = Filter(states=DEAD), store.notes, list[float]()

    def read(prefix: str) -> dict[str, str]:
        found = notes(prefix)
        if not others:
            others.append(-1.0)
            others[:] = Pace(store, 60, where).take(3)
        return found

    monkeypatch.setattr(store, "notes", read)

    assert Pace(store, 60, where).take(3) == [3.0, 4.0, 5.0]
    assert others == [0.0, 1.0, 2.0]


def test_jobs_by_id_are_replayed_at_so_many_a_minute(store: Store, admin: Admin) -> None:
    refs = [admin.jobs.ref(dies(store, "no user")) for _ in range(3)]

    acted = [each for batch in admin.jobs.act("replay", refs, pace=admin.jobs.pace(30)) for each in batch]

    assert [each.says for each in acted] == ["queued again", "due again later", "due again later"]
    assert dues(store) == [0.0, 2.0, 4.0]


def test_only_a_replay_has_a_pace_and_it_is_a_number_of_jobs(store: Store, admin: Admin) -> None:
    for verb, per_minute in (("cancel", 60), ("replay", 0), ("replay", -1), ("replay", 1_000_000)):
        with pytest.raises(InvalidOption, match="minute"):
            admin.jobs.act_on_all(verb, Filter(task="none"), per_minute=per_minute)  # type: ignore[arg-type]
