"""`tenure limits`, run as its users run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from conformance.factories import claim, start
from conformance.test_limits import ALL, OTHER, SHOP, declare, limited
from conformance.test_waiting import settle_waits
from tenure.core.clock import system_clock
from tenure.core.limits import Bounds, Key, Rate
from tenure.ports import Store
from tenure.stores.sqlite import SqliteStore
from terminals import on_a_terminal, plain

APP = """
from tenure import Tenure

jobs = Tenure()
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(folder: Path) -> Iterable[Store]:
    store = SqliteStore(str(folder / "tenure.db"))
    store.open()
    yield store
    store.close()


@pytest.fixture
def busy(store: Store) -> tuple[list[str], list[str]]:
    """A key with two places: the two jobs that hold them, and three parked ones. A second limit: one begin a minute."""
    worker = start(store, boot_id=system_clock().boot_id, lease=3600.0)
    declare(store, SHOP.limit, 2)
    declare(store, ALL.limit, rate=Rate(1, 60.0, 1))
    jobs = limited(store, number=5)
    limited(store, OTHER)
    limited(store, ALL, number=2)
    settle_waits(store)
    claim(store, worker, 1)
    return jobs[:2], jobs[2:]


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


def facts(out: str) -> dict[str, str]:
    head = out.partition("\n\n")[0]
    return {name: value.strip() for name, _, value in (line.partition("  ") for line in head.splitlines())}


@pytest.mark.usefixtures("busy")
def test_limits_are_listed_with_what_waits_for_them(run: Run) -> None:
    code, out, said = run("limits")
    assert (code, said) == (0, "")
    assert rows(out) == [
        ["limit", "keys", "held", "waiting", "allows", "note"],
        ["renders", "1", "1", "1", "1 in 1m, 1 at once", ""],
        ["shop:{shop}", "2", "3", "3", "2 at a time", ""],
    ]
    assert run("limits", "list")[1] == out

    run("limits", "set", "renders", "--concurrency", "3")
    run("limits", "pause", "shop:{shop}", "--why", "a sale")
    notes = [row[-1].partition(" by ")[0] for row in rows(run("limits", "list")[1])[1:]]
    assert notes == ["set", "paused until somebody resumes it"]

    renders, shops = json.loads(run("limits", "list", "--json")[1])
    assert (renders["set"]["concurrency"], renders["sum"]["waiting"]) == (3, 1)
    assert (shops["paused_until"], shops["why"], shops["sum"]["paused"]) == ("resumed", "a sale", 2)


def test_a_key_is_shown_with_its_holders_and_the_next(run: Run, busy: tuple[list[str], list[str]]) -> None:
    holders, parked = busy
    code, out, _ = run("limits", "show", "shop:7")
    said = facts(out)
    assert (code, said["limit"], said["allows"]) == (0, "shop:{shop}", "2 at a time")
    assert (said["places"], said["waiting"]) == ("2 of 2 held, 1 of them not begun", "3")
    _, held, following = out.split("\n\n")
    assert [line.split("\t")[0] for line in held.splitlines()[2:]] == holders
    assert [line.split("\t")[0] for line in following.splitlines()[2:]] == parked

    job = facts(run("jobs", "show", parked[0])[1])
    assert (job["limits"], job["waits for"]) == ("shop:7", "for a place of shop:7")
    assert f"2 of 2 places of shop:7 are held by work {holders[0]}" in run("jobs", "explain", parked[0])[1]

    found = json.loads(run("limits", "show", "shop:7", "--json")[1])
    assert (found["key"]["held"], [each["id"] for each in found["parked"]]) == (2, parked)
    assert "the next one in" in facts(run("limits", "show", "renders")[1])["tokens"]


def test_a_limit_is_shown_with_its_most_waited_for_keys(run: Run, store: Store, busy: object) -> None:
    code, out, said = run("limits", "show", "shop:{shop}")
    head, _, keys = out.partition("\n\n")
    assert (code, said, facts(head)["allows"]) == (0, "", "2 at a time")
    assert [row[:3] for row in rows(keys)] == [
        ["key", "held", "waiting"],
        ["shop:7", "2 of 2", "3"],
        ["shop:8", "1 of 2", "0"],
    ]
    code, out, said = run("limits", "show", "shop:{shop}", "-n", "1")
    assert (len(rows(out.partition("\n\n")[2])), said) == (
        2,
        "1 more keys, for which fewer jobs wait: use --limit N to see more\n",
    )
    assert run("limits", "show", "shop:{shop}", "-n", "0")[0] == 2
    declare(store, "shop:{shop}", 2, retired_at=store.now())
    retired = facts(run("limits", "show", "shop:{shop}")[1].partition("\n\n")[0])
    assert (retired["allows"], retired["declared"]) == ("any number", "2 at a time")
    assert facts(run("limits", "show", "shop:7")[1])["retired"].endswith(": it limits nothing")
    nothing = "; no app declares the limit any more, so it limits nothing\n"
    assert run("limits", "set", "shop:7", "--concurrency", "3")[1] == f"shop:7 allows any number{nothing}"
    assert run("limits", "pause", "shop:7")[1] == f"shop:7 is paused until somebody resumes it{nothing}"


def test_a_key_is_set_and_reset(run: Run, store: Store, busy: object) -> None:
    assert run("limits", "set", "shop:7", "--concurrency", "10")[:2] == (0, "shop:7 allows 10 at a time\n")
    (row,) = store.limits(["shop:7"], keys=True)
    assert row.set == Bounds(10)
    assert facts(run("limits", "show", "shop:7")[1])["set by"]
    rate = ("--rate", "100/1m", "--burst", "5")
    assert run("limits", "set", "shop:7", *rate)[1] == "shop:7 allows 10 at a time; 100 in 1m, 5 at once\n"
    assert run("limits", "reset", "shop:7")[:2] == (0, "shop:7 allows 2 at a time\n")
    assert run("limits", "reset", "shop:7")[1] == "shop:7 allows 2 at a time, as before: nothing was set\n"

    for argv, says in (
        ((), "expected concurrency, rate or burst, got nothing"),
        (("--concurrency", "0"), "expected a whole number from 1"),
        (("--rate", "0/1s"), "to stop a key, pause it"),
    ):
        code, _, said = run("limits", "set", "shop:7", *argv)
        assert (code, says in said) == (2, True)


def test_a_key_is_paused_and_resumed(run: Run, store: Store, busy: object) -> None:
    code, out, _ = run("limits", "pause", "shop:7", "--for", "1h", "--why", "too many 429")
    assert (code, out.startswith("shop:7 is paused for ")) == (0, True)
    said = facts(run("limits", "show", "shop:7")[1])
    assert said["paused"].endswith(": too many 429")
    assert said["resume"] == "tenure limits resume shop:7"
    assert run("limits", "resume", "shop:7")[:2] == (0, "shop:7 is resumed\n")
    assert run("limits", "resume", "shop:7")[1] == "shop:7 was not paused\n"

    assert run("limits", "pause", "shop:{shop}")[1] == "shop:{shop} is paused until somebody resumes it\n"
    whole = "shop:7 was not paused; its limit is paused: tenure limits resume 'shop:{shop}'\n"
    assert run("limits", "resume", "shop:7")[1] == whole


@pytest.mark.parametrize("verb", ["show", "set", "reset", "pause", "resume"])
def test_an_unknown_name_is_told_with_the_nearest(verb: str, run: Run, busy: object) -> None:
    more = ("--concurrency", "1") if verb == "set" else ()
    code, out, said = run("limits", verb, "render", *more)
    assert (code, out) == (2, "")
    assert "no limit of this store is named 'render', and none gives that key; did you mean 'renders'?" in said


def test_sixty_columns_are_enough(store: Store, busy: object) -> None:
    limited(store, Key(f"shop:{'x' * 60}", SHOP.limit))
    for argv in (("list",), ("show", "shop:{shop}")):
        code, seen = on_a_terminal(60, "limits", *argv)
        lines = plain(seen)
        assert (code, len(lines) > 2) == (0, True)
        assert max(map(len, lines)) <= 60
