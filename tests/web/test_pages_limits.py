"""The pages of limits, and what a parked job's page shows: through the whole dashboard, without a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from conformance.factories import World, start
from conformance.test_limits import ALL, OTHER, SHOP, began, change, declare, limited
from conformance.test_waiting import settle_waits
from tenure.config import Settings, load
from tenure.core.limits import Bounds, Key, Rate
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Store
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create
from tenure.web.views import limits
from web.test_pages_jobs import SCRIPT, TOKENS, Web, said

pytestmark = pytest.mark.usefixtures("unhurried")
KEY, LIMIT = "/limits/show?name=shop%3A7", "/limits/show?name=shop%3A%7Bshop%7D"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store()


@pytest.fixture
def web(store: Store, tmp_path: Path) -> Web:
    settings: Settings = load(code={"tokens": ",".join(TOKENS.values())}, environ={}, folder=tmp_path)
    return Web(create(lambda: Admin(store, PollNotifier(), settings), settings))


@pytest.fixture
def jobs(store: Store) -> list[str]:
    """Two of them have the places of a key, one has begun; two wait for it."""
    worker = start(store)
    declare(store, SHOP.limit, 2, source="shop")
    declare(store, ALL.limit, rate=Rate(1, 60.0, 1))
    jobs = limited(store, number=4, task="render")
    settle_waits(store)
    began(store, worker, 1)
    limited(store, OTHER)
    limited(store, ALL, number=2)
    settle_waits(store)
    began(store, worker)
    settle_waits(store)
    return jobs


def keys(html: str) -> list[str]:
    """In the order in which they are listed."""
    main = html.partition("most waited-for first")[2].partition("</main>")[0]
    return [row.partition('"')[0] for row in main.split('<tr data-key="')[1:]]


def test_limits_are_listed_and_their_keys_the_most_waited_for_first(web: Web, jobs: list[str]) -> None:
    page = web.by("bob").get("/limits")
    assert keys(page) == ["shop:7", "renders", "shop:8"]
    rows = said(page)
    assert "shop:{shop} 2 at a time 2 3 2" in rows
    assert "renders 1 in 1m, 1 at once 1 1 1" in rows
    assert "shop:7 2 of 2 held 2" in rows
    assert f"render {jobs[0][-8:]} , render {jobs[1][-8:]}" in rows
    assert "0 of 1 next in" in rows or "0 of 1 next 20" in rows
    assert "<button" not in page.partition('data-live="live_limits"')[2].partition("</main>")[0]
    assert keys(web.get("/limits?q=shop")) == ["shop:7", "shop:8"]
    assert "No limit and no key matches" in web.get("/limits?q=nothing")


def test_many_keys_are_folded(web: Web, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SIZE", 2)
    monkeypatch.setattr(limits, "FOLDED", 3)
    declare(store, SHOP.limit, 1)
    for number in range(7):
        limited(store, Key(f"shop:{number}", SHOP.limit), number=7 - number)
    settle_waits(store)
    page = web.get("/limits")
    assert keys(page) == [f"shop:{number}" for number in range(5)]
    assert "5 more keys" in page
    assert "2 more are not listed: search by name" in page
    assert keys(web.get("/limits?q=shop%3A6")) == ["shop:6"]


def test_a_key_has_a_page_with_its_holders_and_the_next(web: Web, jobs: list[str]) -> None:
    page = web.by("bob").get(KEY)
    main = said(page)
    assert "A key of the limit shop:{shop}" in main
    held, _, following = page.partition('id="next"')
    assert all(job in held for job in jobs[:2])
    assert all(job in following for job in jobs[2:])
    assert "not begun 0 of those with a place" in main
    assert "<form" not in page.partition("<main")[2].partition("</main>")[0]
    assert "did you mean &#39;renders&#39;" in web.get("/limits/show?name=render", 404)


def test_a_limit_has_a_page_with_its_keys(web: Web, jobs: list[str]) -> None:
    page = web.get(LIMIT)
    assert keys(page) == ["shop:7", "shop:8"]
    assert "2, 3 places held, 2 jobs waiting app shop" in said(page)


def test_operators_pause_and_resume_a_key(web: Web, store: Store, jobs: list[str]) -> None:
    for verb in ("pause", "resume", "set", "reset"):
        web.by("bob").refused(f"/limits/{verb}", 403, name="shop:7")
    fields = {"name": "shop:7", "for": "1h", "why": "too many 429", "back": KEY}
    to, says = web.by("ada").post("/limits/pause", **fields)
    assert (to, says) == (KEY, "shop:7 is paused: its jobs that have a place go on, no other gets one.")
    for path in (KEY, "/limits"):
        assert "too many 429" in said(web.get(path))
    assert "by ada: too many 429" in said(web.get(KEY))
    parked = web.by("ada").get(f"/jobs/{jobs[3]}")
    assert "See which jobs have the places of shop:7" in parked
    assert "Resume shop:7" in said(parked)
    assert "Resume shop:7" not in said(web.by("bob").get(f"/jobs/{jobs[3]}"))
    assert web.by("ada").post("/limits/resume", name="shop:7", back=f"/jobs/{jobs[3]}")[1] == "shop:7 is resumed."

    web.post("/limits/pause", name=SHOP.limit)
    assert "(the whole limit)" in said(web.get(KEY))
    assert "Resume the limit" in said(web.get(KEY))
    row = web.get("/limits?q=shop%3A7").partition("most waited-for first")[2]
    assert f'<input type="hidden" name="name" value="{SHOP.limit}">' in row.partition("Resume the limit")[0]
    assert web.post("/limits/resume", name=SHOP.limit) == ("/limits", f"{SHOP.limit} is resumed.")


def test_a_paused_limit_is_mended_on_the_overview(web: Web, world: World, store: Store, jobs: list[str]) -> None:
    web.by("ada").post("/limits/pause", name=SHOP.limit, why="too many 429")
    world.advance(700)
    page = web.by("ada").get("/")
    assert "A limit is paused, and its jobs wait" in said(page)
    assert 'action="/limits/resume"' in page
    assert f'href="{LIMIT}"' in page
    assert 'action="/limits/resume"' not in web.by("bob").get("/")
    assert web.by("ada").post("/limits/resume", name=SHOP.limit, back="/")[0] == "/"
    assert "A limit is paused" not in said(web.get("/"))


def test_operators_set_and_reset_what_it_allows(web: Web, store: Store, jobs: list[str]) -> None:
    assert web.by("ada").post("/limits/set", name="shop:7", concurrency="3")[1] == "shop:7 allows 3 at a time."
    assert settle_waits(store) == jobs[2:3]
    assert "set 3 at a time by ada" in said(web.get(KEY))
    assert "Reset to what is declared" in said(web.get(KEY))
    assert web.post("/limits/reset", name="shop:7")[1] == "shop:7 allows 2 at a time again."
    assert web.post("/limits/reset", name="shop:7")[1] == "shop:7 is as declared: nothing was set."
    for fields, says in (
        ({"concurrency": "many"}, "oncurrency: expected a whole number, got 'many'"),
        ({"concurrency": "0"}, "expected a whole number from 1"),
        ({}, "expected concurrency, rate or burst, got nothing"),
    ):
        assert says in said(web.refused("/limits/set", 422, name="shop:7", **fields))


def test_a_queued_jobs_page_links_to_its_keys(web: Web, jobs: list[str]) -> None:
    assert f'href="{KEY}">shop:7</a>' in web.get(f"/jobs/{jobs[1]}")


def test_a_key_is_text_and_no_more(web: Web, store: Store) -> None:
    bad = Key(f"shop:{SCRIPT}?a=b&c#d/../e", SHOP.limit)
    start(store)
    declare(store, SHOP.limit, 1)
    jobs = limited(store, bad, number=2)
    change(store, bad, set=Bounds(1), paused_until=None)
    settle_waits(store)
    path = f"/limits/show?name={quote(bad.key, safe='')}"
    for each in ("/limits", path, f"/jobs/{jobs[1]}"):
        page = web.get(each)
        assert SCRIPT not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert web.post("/limits/pause", name=bad.key, why=SCRIPT, back=path)[0] == path
    assert SCRIPT not in web.get(path)


def test_without_limits_the_page_says_how_to_declare_one(web: Web) -> None:
    assert "jobs.limit(" in web.get("/limits")
