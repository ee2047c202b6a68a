"""What operators see of limits, on every store: why a job has no place, the keys most waited for, who paused one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import World, identity, look, put, start
from conformance.test_limits import ALL, OTHER, SHOP, began, change, declare, finish, limited
from conformance.test_waiting import settle_waits
from tenure.core.clock import Clock
from tenure.core.lifecycle import Completed, Edge, Snoozed
from tenure.core.limits import Bounds, Key, Rate
from tenure.errors import InvalidOption, UnknownLimit
from tenure.notifiers.poll import PollNotifier
from tenure.operations import keys
from tenure.operations.admin import Admin
from tenure.operations.explain import Explanation, waits_for
from tenure.ports import FOREVER, Links, Store
from tenure.stores.sqlite import SqliteStore


@pytest.fixture
def admin(store: Store) -> Admin:
    return Admin(store, PollNotifier(), who="ada")


def why(admin: Admin, job_id: str) -> Explanation:
    return admin.jobs.explain(job_id)


def sqlite(folder: Path) -> Callable[[Clock], Store]:
    return lambda clock: SqliteStore(str(folder / "tenure.db"), clock=clock)


#: Tests that do not depend on the store run on one.
once = pytest.mark.parametrize("new_world", [sqlite], indirect=True, ids=["sqlite"])


# ── Why a job has no place ──


def test_the_holders_of_its_key_are_named(admin: Admin, store: Store, world: World) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 2)
    first, second, third, last = limited(store, number=4, task="render")
    settle_waits(store)
    (lease,) = began(store, worker, 1)
    world.advance(3)

    found = why(admin, last)

    held = {lease.job_id} ^ {first, second}
    (unbegun,) = held
    assert found.verdict == (
        "it waits for a place of shop:7: 2 of 2 places of shop:7 are held by "
        + ", ".join(f"render {j}" for j in (first, second))
    )
    assert f"render {lease.job_id} has a place and runs for 3s on {worker}" in found.reasons
    assert f"render {unbegun} has a place and has not begun for 3s" in found.reasons
    assert "1 job goes before it" in found.reasons
    assert found.what_to_do == "wait, or allow more: tenure limits set shop:7 --concurrency N"
    assert found.in_words == "wait, or allow more"
    assert waits_for(look(store, third)) == "for a place of shop:7"
    assert "it has a place of shop:7" in why(admin, unbegun).reasons


def test_the_next_token_is_told(admin: Admin, store: Store, world: World) -> None:
    worker = start(store)
    declare(store, SHOP.limit, rate=Rate(60, 60.0, 1))
    first, second = limited(store, number=2)
    settle_waits(store)
    began(store, worker)
    settle_waits(store)
    world.advance(0.6)

    said = "it waits for a place of shop:7: shop:7 allows 60 in 1m, 1 at once: next token in 400ms"
    assert why(admin, second).verdict == said
    declare(store, SHOP.limit, 1, Rate(60, 60.0, 1))
    held = f"1 of 1 place of shop:7 is held by work {first}; next token in 400ms"
    assert why(admin, second).verdict == f"it waits for a place of shop:7: {held}"


@once
@pytest.mark.parametrize("name", [SHOP.key, SHOP.limit])
def test_a_pause_is_told_with_its_end_its_reason_and_who_made_it(name: str, admin: Admin, store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    (job,) = limited(store)
    what = "shop:7 is" if name == SHOP.key else "its limit shop:{shop} is"
    admin.limits.pause(name, why="too many 429")
    settle_waits(store)
    found = why(admin, job)
    assert found.verdict == (
        f"it waits for a place of shop:7: {what} paused until somebody resumes it; ada paused it: too many 429"
    )
    assert found.what_to_do == f"resume it: {keys.command('resume', name)}"
    assert found.in_words == "resume it"
    admin.limits.pause(name, "1h")
    assert ", which is in 1h; ada paused it" in why(admin, job).verdict


def test_a_pause_replaces_the_one_that_a_job_asked_for(admin: Admin, store: Store, world: World) -> None:
    worker, only = start(store), Key("github", "github")
    declare(store, "github", 2)
    limited(store, only, number=3)
    settle_waits(store)
    finish(store, began(store, worker)[0], Snoozed(3600.0, pause=only))
    settle_waits(store)
    admin.limits.pause("github", "2s")
    world.advance(3)
    assert admin.limits.key("github").pause is None
    assert settle_waits(store) != []


def test_a_pause_by_a_job_is_nobodys_although_somebody_paused_it_before(
    admin: Admin, store: Store, world: World
) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 2)
    limited(store, number=3)
    admin.limits.pause(SHOP.key, "1s")
    world.advance(2)
    settle_waits(store)
    lease = began(store, worker)[0]
    finish(store, lease, Snoozed(60.0, pause=SHOP))
    settle_waits(store)
    pause = admin.limits.key(SHOP.key).pause
    assert pause is not None
    assert (pause.name, pause.by, pause.why) == (SHOP.key, None, "a job snoozed it")


def test_another_key_that_has_no_room_is_told_too(admin: Admin, store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    declare(store, ALL.limit, 1)
    first = limited(store, SHOP, ALL)
    second = limited(store, SHOP, ALL)
    settle_waits(store)
    found = why(admin, second[0])
    other = f"it needs a place of renders, too: 1 of 1 place of renders is held by work {first[0]}"
    assert other in found.reasons


@once
@pytest.mark.parametrize(
    ("how", "says", "do"),
    [
        ("paused", "its queue default is paused since", "resume it: tenure queues resume default"),
        ("unserved", "no live worker serves queue default; they serve mail", "serve it: tenure worker -q default"),
        ("nobody", "no worker", "start a worker there: tenure worker"),
        ("older", "no place is given while a worker of an older release lives", "restart it on this release: "),
        ("room", "there is room, and it is queued at the next scan", ""),
    ],
)
def test_a_job_without_a_place_is_never_without_a_reason(
    how: str, says: str, do: str, admin: Admin, store: Store
) -> None:
    if how != "nobody":
        store.register(identity(queues=("mail",) if how == "unserved" else ("default",)))
    if how == "older":
        store.register(identity(protocol=2))
    if how == "paused":
        store.pause("default", paused=True)
    declare(store, SHOP.limit, 1)
    (job,) = limited(store)
    if how != "room":
        assert settle_waits(store) == []
    found = why(admin, job)
    assert found.verdict.startswith(f"it waits for a place of shop:7: {says}")
    assert found.what_to_do.startswith(do)
    assert bool(found.what_to_do) is bool(do)


def test_jobs_before_it_and_its_end_are_told(admin: Admin, store: Store) -> None:
    declare(store, SHOP.limit, 1)
    jobs = [each for _ in range(2) for each in limited(store, expires=60.0)]
    assert any(each.startswith("if it has not begun, it expires in ") for each in why(admin, jobs[1]).reasons)
    limited(store, number=50, priority=1)
    assert "at least 51 jobs go before it" in why(admin, jobs[1]).reasons


@once
def test_an_older_worker_that_knows_waiting_jobs_holds_only_limits(admin: Admin, store: Store) -> None:
    store.register(identity(protocol=2))
    child = put(store, links=Links(after=(Edge(put(store)),)))
    assert "older release" not in why(admin, child).verdict


# ── The keys most waited for ──


def test_keys_are_told_in_the_order_in_which_they_are_waited_for(admin: Admin, store: Store) -> None:
    start(store)
    declare(store, SHOP.limit, 1)
    declare(store, ALL.limit, 5)
    limited(store, OTHER, number=4)
    limited(store, number=2)
    limited(store, ALL)
    settle_waits(store)
    idle = Key("shop:1", SHOP.limit)
    change(store, idle, set=Bounds(9))
    found = admin.limits.usage()
    assert [each.key for each in found.keys] == ["shop:8", "shop:7", "renders", "shop:1"]
    assert found.sums == {SHOP.limit: keys.Sum(3, 2, 4, 0), ALL.limit: keys.Sum(1, 1, 0, 0)}
    assert (set(found.oldest), found.complete) == ({"shop:7", "shop:8"}, True)
    assert [each.key for each in admin.limits.usage(ALL.limit).keys] == ["renders"]


def test_a_key_that_is_waited_for_is_not_missed_among_many(
    admin: Admin, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST_LOOKED_AT", 2)
    start(store)
    declare(store, SHOP.limit, 1)
    for number in range(3):
        limited(store, Key(f"shop:{number}", SHOP.limit))
    limited(store, Key("shop:9", SHOP.limit), number=3)
    settle_waits(store)
    found = admin.limits.usage()
    assert [each.key for each in found.keys] == ["shop:9", "shop:0", "shop:1"]
    assert not found.complete


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (Bounds(), "any number"),
        (Bounds(1_000), "1,000 at a time"),
        (Bounds(2, Rate(100, 60.0, 10)), "2 at a time; 100 in 1m, 10 at once"),
    ],
)
def test_bounds_are_told_in_words(bounds: Bounds, says: str) -> None:
    assert keys.allowed(bounds) == says


def test_a_pause_is_told_in_words() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    by = keys.By("ada", now)
    later = (now + timedelta(minutes=2)).timestamp()
    assert keys.Paused("x", later, "429", by).told(now) == "for 2m more by ada: 429"
    assert keys.Paused("x", FOREVER, "", None).told(now) == "until somebody resumes it"
    assert keys.Paused("x", now.timestamp() - 1, "", None).told(now) == "for 0ms more"  # it ended a moment ago


@once
def test_a_limit_that_is_retired_has_no_bounds(admin: Admin, store: Store) -> None:
    declare(store, SHOP.limit, 1, retired_at=store.now())

    assert (admin.limits.get(SHOP.limit).bounds, admin.limits.key(SHOP.key).key.bounds) == (Bounds(), Bounds())
    assert admin.limits.get(SHOP.limit).declared == Bounds(1)


@once
@pytest.mark.parametrize(("limit", "key"), [(SHOP.limit, SHOP.key), (ALL.limit, ALL.key)])
def test_a_pause_of_a_limit_is_told_of_a_key_that_no_job_has_used(
    limit: str, key: str, admin: Admin, store: Store
) -> None:
    declare(store, limit, rate=Rate(60, 60.0, 6))
    assert (admin.limits.key(key).pause, admin.limits.key(key).key.next_token) == (None, 0.0)

    until = admin.limits.pause(limit, "10m", "too many 429")

    found = admin.limits.key(key)
    assert (found.key.paused_until, found.key.why, found.key.next_token) == (until, "too many 429", None)
    assert found.pause is not None
    assert found.pause.by is not None
    assert (found.pause.name, found.pause.why, found.pause.by.who) == (limit, "too many 429", "ada")


def test_a_paused_key_has_no_next_token(admin: Admin, store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, rate=Rate(60, 60.0, 1))
    limited(store, number=2)
    settle_waits(store)
    began(store, worker)
    settle_waits(store)
    assert 0 < (admin.limits.key(SHOP.key).key.next_token or 0) <= 1
    admin.limits.pause(SHOP.key)
    found = admin.limits.key(SHOP.key).key
    assert (found.next_token, found.tokens is None) == (None, False)


@once
def test_who_set_the_only_key_of_a_limit_is_told(admin: Admin, store: Store) -> None:
    declare(store, ALL.limit, 5)
    declare(store, SHOP.limit, 5)
    for name in (ALL.limit, SHOP.limit, OTHER.key):
        admin.limits.set(name, concurrency=2)

    told = {name: admin.limits.key(name) for name in (ALL.key, OTHER.key, SHOP.key)}

    assert {name: each.set for name, each in told.items()} == {
        ALL.key: Bounds(2),
        OTHER.key: Bounds(2),
        SHOP.key: None,
    }
    assert [each.set_by and each.set_by.who for each in told.values()] == ["ada", "ada", None]


@once
def test_what_is_set_for_a_retired_limit_holds_once_it_is_declared_again(admin: Admin, store: Store) -> None:
    declare(store, SHOP.limit, 1, retired_at=store.now())

    assert [admin.limits.set(name, concurrency=3) for name in (SHOP.limit, SHOP.key)] == [Bounds(), Bounds()]
    retired = "; no app declares the limit any more, so it limits nothing"
    assert [admin.limits.besides(name) for name in (SHOP.limit, SHOP.key)] == [retired, retired]

    declare(store, SHOP.limit, 1, retired_at=None)
    assert admin.limits.bounds(SHOP.key) == Bounds(3)
    assert admin.limits.besides(SHOP.key) == ""


@once
def test_what_stays_paused_is_told_of_a_limit_and_of_its_key(admin: Admin, store: Store) -> None:
    declare(store, SHOP.limit, 1)
    for name in (SHOP.key, OTHER.key, SHOP.limit):
        admin.limits.pause(name)
    limit = keys.command("resume", SHOP.limit)

    assert admin.limits.resume(SHOP.key)
    assert admin.limits.besides(SHOP.key) == f"; its limit is paused: {limit}"
    assert admin.limits.resume(SHOP.limit)
    one = f"; 1 of its keys is paused: see {keys.command('show', SHOP.limit)}"
    assert (admin.limits.besides(SHOP.limit), admin.limits.besides(SHOP.key)) == (one, "")


@once
def test_a_key_whose_limit_nobody_has_declared_is_changed_and_says_so(admin: Admin, store: Store) -> None:
    start(store)
    limited(store)
    settle_waits(store)
    says = "; no app has declared its limit, so it has no bounds"

    admin.limits.pause(SHOP.key)
    assert admin.limits.key(SHOP.key).pause is not None
    assert (admin.limits.besides(SHOP.key), admin.limits.set(SHOP.key, concurrency=3)) == (says, Bounds())
    assert admin.limits.resume(SHOP.key) and admin.limits.reset(SHOP.key)


@once
@pytest.mark.parametrize("impossible", ["", "shop:", "shop:" + "7" * 200, "shop:7\n"])
def test_what_no_job_can_have_as_its_key_is_unknown(impossible: str, admin: Admin, store: Store) -> None:
    declare(store, SHOP.limit, 1)

    for act in (admin.limits.pause, admin.limits.resume, admin.limits.reset, admin.limits.key, admin.limits.bounds):
        with pytest.raises(UnknownLimit):
            act(impossible)
    with pytest.raises(UnknownLimit):
        admin.limits.set(impossible, concurrency=2)


@once
@pytest.mark.parametrize("name", [7, None, b"shop:7", ["shop:7"]])
def test_a_name_that_is_no_text_is_refused(name: Any, admin: Admin) -> None:
    for act in (admin.limits.pause, admin.limits.resume, admin.limits.get, admin.limits.key, admin.limits.bounds):
        with pytest.raises(InvalidOption, match="limit: expected its name, or that of a key, as a text, got"):
            act(name)


@once
def test_a_key_that_ended_is_no_more(admin: Admin, store: Store) -> None:
    worker = start(store)
    declare(store, SHOP.limit, 1)
    limited(store)
    settle_waits(store)
    for lease in began(store, worker):
        finish(store, lease, Completed())
    settle_waits(store)
    assert all(not each.held and not each.waiting for each in admin.limits.usage().keys)
