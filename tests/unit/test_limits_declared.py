"""Limits as users write them: what is refused, the keys of jobs, and what a store holds of what is declared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import pytest

from tenure import Ended, Job, Limit, Secret, Snooze, Task, Tenure
from tenure.codecs import AesSiv
from tenure.core.lifecycle import State
from tenure.core.limits import Bounds, Key, Rate
from tenure.errors import InvalidArguments, InvalidOption, StoreError, UnknownLimit, WouldBlock
from tenure.maintenance.limits import declare_limits
from tenure.operations.admin import Admin
from tenure.ports import FOREVER, LimitRow
from tenure.stores.memory import MemoryStore
from tenure.testing import TestQueue
from waiting import until


class Size(Enum):
    SMALL = "s"


@dataclass
class Shop:
    id: int


Id = NewType("Id", int)


@pytest.fixture
def jobs() -> Tenure:
    return Tenure("sqlite:////nowhere/at/all.db")


# ── jobs.limit ──


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("", "expected a template like"),
        (7, "expected a template like"),
        ("x" * 201, "at most 200 characters, got 201"),
        ("a b", "got ' '"),
        ("shop:{", "got '{'"),
        ("shop:}", "got '}'"),
        ("shop:{}", "expected the name of an argument in braces"),
        ("shop:{0}", "expected the name of an argument in braces"),
        ("shop:{shop.id}", "expected the name of an argument in braces"),
        ("shop:{shop!r}", "expected the name of an argument in braces"),
        ("shop:{shop:>5}", "expected the name of an argument in braces"),
        ("{{shop}}", "got '{'"),
        ("{shop}{region}", "two arguments side by side"),
        ("shop\n", "got '\\\\n'"),
    ],
)
def test_a_template_says_what_is_wrong_with_it(jobs: Tenure, template: Any, says: str) -> None:
    with pytest.raises(InvalidOption, match=says.replace("{", r"\{").replace("}", r"\}")):
        jobs.limit(template, concurrency=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "expected what it allows, got nothing"),
        ({"concurrency": 0}, "concurrency: expected a whole number from 1"),
        ({"concurrency": True}, "concurrency: expected a whole number"),
        ({"concurrency": 1.5}, "concurrency: expected a whole number"),
        ({"rate": "0/1s"}, "to stop a key, pause it"),
        ({"rate": "5/0s"}, "to stop a key, pause it"),
        ({"rate": "1/0.0001ms"}, "to stop a key, pause it"),
        ({"rate": "0/s"}, "expected a duration"),
        ({"rate": "100/60"}, "has no unit"),
        ({"rate": "100"}, 'expected a number and a duration like "100/1m"'),
        ({"rate": "-1/1m"}, 'expected a number and a duration like "100/1m"'),
        ({"rate": 100}, 'expected a number and a duration like "100/1m"'),
        ({"rate": "100/1m", "burst": 0}, "burst: expected a whole number from 1 to 100"),
        ({"rate": "100/1m", "burst": 101}, "from 1 to 100, the number of its rate, got 101"),
        ({"concurrency": 1, "burst": 2}, "burst is a part of a rate"),
    ],
)
def test_bounds_say_what_is_wrong_with_them(jobs: Tenure, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        jobs.limit("github", **options)


def test_a_limit_has_its_bounds_and_a_burst_by_default(jobs: Tenure) -> None:
    limit = jobs.limit("github", rate="100/1m", concurrency=3)

    assert limit.bounds == Bounds(3, Rate(100, 60.0, 10))
    assert repr(limit) == "Limit('github', concurrency=3, rate='100/1m', burst=10)"
    assert jobs.limit("few", rate="5/1h").bounds.rate == Rate(5, 3600.0, 1)


def test_a_template_is_declared_once_in_an_app(jobs: Tenure) -> None:
    first = jobs.limit("shop:{shop}", concurrency=2)

    assert jobs.limit("shop:{shop}", concurrency=2) is first
    with pytest.raises(InvalidOption, match="declared twice, with concurrency=2 and with concurrency=3"):
        jobs.limit("shop:{shop}", concurrency=3)


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("shop:{shop}", "shop:special", True),
        ("shop:{shop}", "shop:{shop}:{region}", True),
        ("{a}-x", "y-{b}", True),
        ("shop:{shop}", "shop", False),
        ("shop:{shop}", "shop:", False),
        ("shop:{shop}", "shops:{shop}", False),
        ("a:{x}:b", "a:{x}:c", False),
        ("renders", "github", False),
    ],
)
def test_two_limits_give_no_key_in_common(jobs: Tenure, one: str, other: str, meet: bool) -> None:
    jobs.limit(one, concurrency=1)
    if meet:
        with pytest.raises(InvalidOption, match="may give the same key"):
            jobs.limit(other, concurrency=1)
        assert [each.template for each in jobs._limits] == [one]
    else:
        jobs.limit(other, concurrency=1)


# ── the limits of a task ──


def of(jobs: Tenure, fn: Callable[..., Any], limit: Any) -> Task[..., Any]:
    return jobs.task(limit=limit)(fn)


def test_a_template_names_arguments_of_its_task(jobs: Tenure) -> None:
    def render(shop: int) -> None: ...

    with pytest.raises(InvalidOption, match=r"render: limit 'shop:\{tenant\}': no argument is named 'tenant'"):
        of(jobs, render, jobs.limit("shop:{tenant}", concurrency=1))


@pytest.mark.parametrize("kind", [list[int], dict[str, int], Shop, Secret[str], Ended[int], float, bytes, set[str]])
def test_an_argument_that_makes_no_key_is_refused_at_once(jobs: Tenure, kind: Any) -> None:
    def render(shop: Any) -> None: ...

    render.__annotations__["shop"] = kind
    with pytest.raises(InvalidOption, match="a key can't be made of 'shop'"):
        of(jobs, render, jobs.limit("shop:{shop}", concurrency=1))


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (str, "a b", "shop:a b"),
        (int, -7, "shop:-7"),
        (bool, True, "shop:true"),
        (UUID, UUID(int=7), f"shop:{UUID(int=7)}"),
        (date, date(2026, 1, 2), "shop:2026-01-02"),
        (Size, Size.SMALL, "shop:s"),
        (Literal["a"], "a", "shop:a"),
        (Id, 7, "shop:7"),
        (Annotated[int, "id"], 7, "shop:7"),
        (int | None, 7, "shop:7"),
        (list[int] | int, 7, "shop:7"),
        (Any, 7, "shop:7"),
    ],
)
def test_a_key_is_made_of_what_json_has(jobs: Tenure, kind: Any, value: Any, key: str) -> None:
    def render(job: Job, shop: Any) -> None: ...

    render.__annotations__["shop"] = kind
    limit = jobs.limit("shop:{shop}", concurrency=1)
    task = of(jobs, render, limit)

    assert task.bind(value).draft().limits == (Key(key, "shop:{shop}"),)
    assert jobs.bind("render", {"shop": 7 if key == "shop:7" else value}).draft().limits[0].key == key
    assert limit.key(shop=value) == key


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "got None"),
        ([1], "got a list"),
        ({"a": 1}, "got an object"),
        (1.5, "got a float"),
        (Secret("t0p"), "got a Secret, which no key may show"),
        ("", "got an empty one"),
        ("a\nb", "got one with a control character"),
        ("x" * 200, "would have 205 characters, at most 200"),
    ],
)
def test_a_value_that_makes_no_key_is_refused_at_enqueue(jobs: Tenure, value: Any, says: str) -> None:
    def render(job: Job, shop: Any) -> None: ...

    task = of(jobs, render, jobs.limit("shop:{shop}", concurrency=1))
    with pytest.raises(InvalidArguments, match=says):
        task.bind(value)


def test_what_is_no_limit_of_this_app_is_refused(jobs: Tenure) -> None:
    def render(shop: int) -> None: ...

    mine, bad = jobs.limit("renders", concurrency=1), [jobs.limit(f"n{n}", concurrency=1) for n in range(9)]
    for limit, says in (
        ("renders", "expected jobs.limit"),
        (7, "expected jobs.limit"),
        ([mine, 7], "expected jobs.limit"),
        (Tenure().limit("renders", concurrency=1), "belongs to another app"),
        ((mine, mine), "one is given twice"),
        (bad, "expected at most 8, got 9"),
    ):
        with pytest.raises(InvalidOption, match=says):
            of(jobs, render, limit)


def test_using_replaces_the_limits_of_a_task(jobs: Tenure) -> None:
    def render(shop: int) -> None: ...

    shops, renders = jobs.limit("shop:{shop}", concurrency=1), jobs.limit("renders", concurrency=5)
    task = of(jobs, render, (shops, renders))

    assert [key.key for key in task.bind(7).draft().limits] == ["shop:7", "renders"]
    assert [key.key for key in task.using(limit=renders).bind(7).draft().limits] == ["renders"]
    assert task.using(limit=()).bind(7).draft().limits == ()
    assert [key.key for key in task.using(delay="5s").bind(7).draft().limits] == ["shop:7", "renders"]
    assert [key.key for key in jobs.bind("elsewhere", {"shop": 3}, unchecked=True, limit=shops).draft().limits] == [
        "shop:3"
    ]
    with pytest.raises(InvalidArguments, match=r"expected the argument 'shop'.* got 'order'"):
        jobs.bind("elsewhere", {"order": 3}, unchecked=True, limit=shops)


def test_a_schedule_and_a_step_have_the_keys_of_their_arguments(jobs: Tenure) -> None:
    def render(shop: int) -> int:
        return shop

    task = of(jobs, render, jobs.limit("shop:{shop}", concurrency=1))
    jobs.schedule(every="1h", name="eu")(task.bind(7))

    (schedule,) = jobs.schedules
    assert schedule.job is not None and schedule.job.limits == (Key("shop:7", "shop:{shop}"),)
    with jobs.testing(limits=True), jobs.flow("nightly") as flow:
        step = flow.add(task.bind(7))
        with pytest.raises(InvalidArguments, match=r"render.shop: .* does not exist before the flow runs, but"):
            task.bind(step.output)
    with jobs.testing(limits=True) as queue, jobs.flow("nightly") as flow:
        step = flow.add(task.bind(7))
        flow.add(task.bind(8), after=[step])
    assert step.handle is not None and [job.id for job in queue.enqueued(task)]


def test_snooze_takes_a_limit_only() -> None:
    with pytest.raises(InvalidOption, match=r"Snooze limit: expected jobs.limit\(…\), got 'github'"):
        Snooze("30s", limit="github")  # type: ignore[arg-type]


# ── in a test's queue ──


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def shop(jobs: Tenure, ran: list[int]) -> Task[..., Any]:
    def render(job: Job, shop: int, n: int) -> int:
        ran.append(n)
        if n == 0 and job.attempt == 1:
            raise Snooze("30s", "429", limit=limit)
        return n

    limit = jobs.limit("shop:{shop}", concurrency=1, rate="10/1m", burst=2)
    return of(jobs, render, limit)


def test_a_test_ignores_limits_unless_it_asks_for_them(jobs: Tenure, shop: Task[..., Any], ran: list[int]) -> None:
    with jobs.testing() as queue:
        for n in range(4):
            shop.enqueue(7, n)
        queue.drain()
        assert ran == [0, 1, 2, 3]


@pytest.mark.parametrize("limits", [False, True])
def test_the_job_of_a_tick_needs_a_place_only_where_limits_hold(jobs: Tenure, limits: bool) -> None:
    one = jobs.limit("one", concurrency=1)
    ran: list[int] = []

    @jobs.schedule("@daily", name="daily")
    @jobs.task(limit=one)
    def nightly() -> None:
        ran.append(jobs.limits.status(one).key.held if limits else 0)

    with jobs.testing(limits=limits) as queue:
        jobs.declare()
        client = jobs.client()
        Admin(client.store, client.notifier).schedules.trigger("daily")
        assert queue.drain() == 1
    assert ran == [int(limits)]


def test_a_key_is_read_and_changed_before_anything_ran(jobs: Tenure, shop: Task[..., Any]) -> None:
    with jobs.testing(limits=True):
        assert jobs.limits.status("shop:7").key.held == 0
        jobs.limits.pause("shop:7")


def test_a_snooze_with_a_limit_pauses_its_key(jobs: Tenure, shop: Task[..., Any], ran: list[int]) -> None:
    with jobs.testing(limits=True) as queue:
        first, second, other = shop.enqueue(7, 0), shop.enqueue(7, 1), shop.enqueue(8, 2)
        queue.drain()
        assert ran == [0, 2]
        queue.assert_waiting(second, limit="shop:7")
        with pytest.raises(AssertionError, match="for a place of 'shop:8'; it waits for a place of 'shop:7'"):
            queue.assert_waiting(second, limit="shop:8")
        assert (found := jobs.limits.status("shop:7")).key.paused_until is not None and found.key.waiting == 1
        assert [str(job.id) for job in found.parked] == [str(second.id)]
        queue.advance("31s")
        queue.drain()
        assert sorted(ran) == [0, 0, 1, 2]
        assert {each.status().state for each in (first, second, other)} == {State.COMPLETED}


def test_a_queue_that_no_task_names_is_served_in_a_test(jobs: Tenure, shop: Task[..., Any], ran: list[int]) -> None:
    with jobs.testing(limits=True) as queue:
        shop.enqueue(7, 1)
        queue.drain()
        shop.using(queue="slow").enqueue(7, 2)
        queue.drain()
        assert ran == [1, 2]


# ── jobs.limits ──


@pytest.fixture
def queue(jobs: Tenure, shop: Task[..., Any]) -> Any:
    with jobs.testing(limits=True) as queue:
        shop.enqueue(1, 1)
        queue.drain()
        yield queue


def test_a_pause_holds_a_key_until_it_is_resumed(
    jobs: Tenure, shop: Task[..., Any], ran: list[int], queue: TestQueue
) -> None:
    jobs.limits.pause("shop:7", why="a sale")
    handle = shop.enqueue(7, 2)
    queue.drain()
    queue.assert_waiting(handle, limit="shop:7")
    per_shop, other = jobs.limit("shop:{shop}", concurrency=1, rate="10/1m", burst=2), jobs.limit("x", concurrency=1)
    queue.assert_waiting(handle, limit=per_shop)
    with pytest.raises(AssertionError, match="does not wait for a place of 'x'; it waits for a place of 'shop:7'"):
        queue.assert_waiting(handle, limit=other)
    status = jobs.limits.status("shop:7")
    assert (status.key.paused_until, status.key.why) == (FOREVER, "a sale")
    assert status.paused_by is not None and status.paused_by.who == jobs.program.source
    assert jobs.limits.resume("shop:7")
    assert not jobs.limits.resume("shop:7")
    queue.drain()
    assert ran == [1, 2]


def test_a_pause_of_a_limit_holds_all_its_keys(
    jobs: Tenure, shop: Task[..., Any], ran: list[int], queue: TestQueue
) -> None:
    (limit,) = jobs._limits
    jobs.limits.pause(limit, "10m")
    (found,) = jobs.limits.list()
    assert found.paused_until is not None and found.paused_by is not None and found.keyed
    shop.enqueue(7, 2)
    queue.drain()
    assert ran == [1]
    queue.advance("11m")
    queue.drain()
    assert ran == [1, 2]
    assert jobs.limits.list()[0].paused_until is None


def test_what_is_set_takes_the_place_of_what_is_declared(jobs: Tenure, queue: TestQueue) -> None:
    jobs.limits.set("shop:7", concurrency=9)
    jobs.limits.set("shop:7", burst=1)
    jobs.limits.set("shop:{shop}", concurrency=4)

    status = jobs.limits.status("shop:7")
    assert status.key.bounds == Bounds(9, Rate(10, 60.0, 1))
    assert status.set == status.key.bounds and status.set_by is not None
    (limit,) = jobs.limits.list()
    assert (limit.bounds, limit.declared) == (Bounds(4, Rate(10, 60.0, 2)), Bounds(1, Rate(10, 60.0, 2)))
    assert jobs.limits.status("shop:1").key.bounds.concurrency == 4
    assert jobs.limits.reset("shop:7") and not jobs.limits.reset("shop:7")
    assert jobs.limits.status("shop:7").key.bounds.concurrency == 4
    assert jobs.limits.status("shop:7").set is None
    client = jobs.client()
    entries = Admin(client.store, client.notifier).audit().entries
    assert [entry.action for entry in entries if entry.subject == "shop:7"] == ["limits.reset"] * 2 + ["limits.set"] * 2


def test_what_is_asked_of_limits_says_what_is_wrong(jobs: Tenure, queue: TestQueue) -> None:
    with pytest.raises(UnknownLimit, match=r"no limit of this store is named 'github'.*known: 'shop:\{shop\}'"):
        jobs.limits.pause("github")
    with pytest.raises(UnknownLimit, match="did you mean"):
        jobs.limits.status("shop:")
    with pytest.raises(InvalidOption, match="is a limit with many keys: name one of them, like 'shop:42'"):
        jobs.limits.status("shop:{shop}")
    with pytest.raises(InvalidOption, match="expected concurrency, rate or burst"):
        jobs.limits.set("shop:7")
    with pytest.raises(InvalidOption, match="burst: expected a whole number from 1 to 10"):
        jobs.limits.set("shop:7", burst=11)
    with pytest.raises(InvalidOption, match="concurrency: expected a whole number from 1"):
        jobs.limits.set("shop:7", concurrency=0)
    with pytest.raises(InvalidOption, match="to end a pause, resume it"):
        jobs.limits.pause("shop:7", "0s")
    with jobs.transaction(), pytest.raises(StoreError, match="a limit is read and changed beside it"):
        jobs.limits.pause("shop:7")


def test_limits_are_awaited_on_a_loop(jobs: Tenure, queue: TestQueue) -> None:
    async def all_of_them() -> None:
        with pytest.raises(WouldBlock, match=r"await jobs.limits.apause"):
            jobs.limits.pause("shop:7")
        await jobs.limits.apause("shop:7", "1m")
        await jobs.limits.aset("shop:7", concurrency=3)
        assert (await jobs.limits.astatus("shop:7")).key.bounds.concurrency == 3
        assert await jobs.limits.aresume("shop:7")
        assert await jobs.limits.areset("shop:7")
        assert [each.name for each in await jobs.limits.alist()] == ["shop:{shop}"]

    asyncio.run(all_of_them())


def test_a_replay_keeps_the_keys_of_its_job(jobs: Tenure, shop: Task[..., Any], queue: TestQueue) -> None:
    (handle,) = queue.enqueued(shop)
    client = jobs.client()
    admin = Admin(client.store, client.notifier, jobs.settings)

    with pytest.raises(InvalidArguments, match="it needs a place of 'shop:1', and with these arguments of 'shop:2'"):
        admin.jobs.replay_edited(str(handle.id), {"shop": 2})
    assert admin.jobs.replay_edited(str(handle.id), {"n": 5}).landed
    assert handle.status().state is State.WAITING


# ── declaring ──


def row(name: str, concurrency: int) -> LimitRow:
    return LimitRow(name=name, declared=Bounds(concurrency))


@pytest.fixture
def store(queue: TestQueue, jobs: Tenure) -> Any:
    return jobs.client().store


def stands(store: Any) -> dict[str, Bounds | None]:
    return {each.name: each.declared for each in store.limits() if each.source == "app" and each.retired_at is None}


def test_an_older_release_overwrites_nothing(store: Any) -> None:
    assert declare_limits(store, "app", "1", [row("a", 1)]).made == ("a",)
    assert declare_limits(store, "app", "1", [row("a", 1)]) == declare_limits(store, "other", "1", [])
    done = declare_limits(store, "app", "2", [row("a", 2), row("b", 1)])
    assert (done.made, done.changed, done.retired) == (("b",), ("a",), ())
    assert declare_limits(store, "app", "1", [row("a", 1)]).older == "2"
    assert stands(store) == {"a": Bounds(2), "b": Bounds(1)}
    assert declare_limits(store, "app", "1", [row("a", 1)], force=True).retired == ("b",)
    assert stands(store) == {"a": Bounds(1)}


def test_a_limit_that_is_no_longer_declared_limits_nothing(store: Any) -> None:
    declare_limits(store, "app", "1", [row("a", 1)])
    assert declare_limits(store, "app", "2", []).retired == ("a",)
    assert store.limits(["a"])[0].retired_at is not None
    assert declare_limits(store, "app", "3", [row("a", 1)]).made == ()
    assert stands(store) == {"a": Bounds(1)}


def test_what_an_operator_has_set_outlives_a_deploy(store: Any) -> None:
    declare_limits(store, "app", "1", [row("a", 1)])
    (before,) = store.limits(["a"])
    store.change_limits([before.but(set=Bounds(9))])
    declare_limits(store, "app", "2", [row("a", 2)])

    (after,) = store.limits(["a"])
    assert (after.set, after.declared) == (Bounds(9), Bounds(2))


def test_who_loses_a_race_declares_again(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.schedules.releases.sleep", lambda seconds: None)
    inner, lost = store.change_limits, [True]

    class Rival:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def change_limits(self, rows: Any) -> list[bool]:
            if lost and lost.pop():
                inner([LimitRow(name="a", set=Bounds(5))])
            return list(inner(rows))

    rival: Any = Rival()
    declare_limits(rival, "app", "1", [row("a", 1)])
    (found,) = store.limits(["a"])
    assert (found.set, found.declared) == (Bounds(5), Bounds(1))


def test_a_limit_is_a_value() -> None:
    jobs = Tenure()
    limit = jobs.limit("shop:{shop}", concurrency=1)

    assert limit == Tenure().limit("shop:{shop}", concurrency=1)
    assert isinstance(limit, Limit) and limit.names == ("shop",)
    with pytest.raises(AttributeError):
        limit.template = "x"  # type: ignore[misc]


# ── keys that a stored job does not have ──


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_snooze_is_uncharged_although_the_key_that_it_pauses_can_not_be_told(
    encrypts: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codec = AesSiv(AesSiv.new_key()) if encrypts else None
    jobs = Tenure(f"sqlite:///{tmp_path}/tenure.db", codec=codec)
    shops = jobs.limit("shop:{shop}", concurrency=1)

    @jobs.task
    def other(number: int) -> None:
        raise Snooze("1m", "too many", limit=shops)

    with jobs, jobs.worker():
        handle = other.enqueue(1)
        until(lambda: handle.status().state == "scheduled", "it is put off")
    assert "the key to pause can't be told" in caplog.text
    assert ("too many (the key" in caplog.text) is not encrypts, "the log shows no text that is encrypted"


def test_an_app_that_still_declares_what_another_one_dropped_restores_it() -> None:
    store, row = MemoryStore(), LimitRow(name="x", declared=Bounds(1))
    store.open()
    declare_limits(store, "b", "b1", [row])
    declare_limits(store, "a", "a1", [row])
    declare_limits(store, "a", "a2", [])
    assert store.limits(["x"])[0].retired_at is not None
    declare_limits(store, "b", "b1", [row])
    assert store.limits(["x"])[0].retired_at is None
