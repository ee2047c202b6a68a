"""Limits in the REST API: over SQLite, through the whole dashboard, security included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.factories import World, start
from conformance.test_limits import ALL, OTHER, SHOP, change, declare, limited
from conformance.test_waiting import settle_waits
from tenure.config import load
from tenure.core.limits import Bounds, Key, Rate
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Store
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create

from .test_api import TOKENS, Api, refused

SLASHED = Key("shop:a/b c?d=1&e", SHOP.limit)
pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    yield world.store()
    world.close()


@pytest.fixture
def api(store: Store, tmp_path: Path) -> Api:
    settings = load(code={"tokens": ",".join(TOKENS.values())}, environ={}, folder=tmp_path)
    return Api(create(lambda: Admin(store, PollNotifier(), settings), settings))


@pytest.fixture
def jobs(store: Store) -> list[str]:
    """Two of them have the places of a key, two wait for it."""
    start(store)
    declare(store, SHOP.limit, 2)
    declare(store, ALL.limit, 5, Rate(100, 60.0, 10))
    jobs = limited(store, number=4)
    limited(store, OTHER)
    settle_waits(store)
    return jobs


@pytest.mark.usefixtures("jobs")
def test_limits_are_listed_with_their_sums(api: Api) -> None:
    found = api.by("bob").get("/api/v1/limits")
    renders, shops = found["limits"]
    rate = {"most": 100, "period": 60.0, "burst": 10}
    assert (renders["name"], renders["bounds"]) == ("renders", {"concurrency": 5, "rate": rate})
    assert shops["sum"] == {"keys": 2, "held": 3, "waiting": 2, "paused": 0}
    assert found["complete"]


@pytest.mark.usefixtures("jobs")
def test_keys_are_listed_by_name_and_by_how_much_they_are_waited_for(api: Api) -> None:
    first = api.by("bob").get("/api/v1/limits/keys", of=SHOP.limit, limit=1)
    second = api.get("/api/v1/limits/keys", of=SHOP.limit, limit=1, start=first["next"])
    assert [each["key"] for page in (first, second) for each in page["keys"]] == ["shop:7", "shop:8"]
    (most,) = api.get("/api/v1/limits/keys/waited", limit=1)["keys"]
    assert (most["key"], most["held"], most["waiting"], most["paused"]) == ("shop:7", 2, 2, False)
    for path in ("keys", "keys/waited"):
        assert refused(api("GET", f"/api/v1/limits/{path}", params={"of": "shop"}), 404)["title"] == "No such limit"


def test_a_key_is_shown_with_its_holders(api: Api, jobs: list[str]) -> None:
    found = api.by("bob").get("/api/v1/limits/key", name="shop:7")
    assert [each["id"] for each in found["holders"]] == jobs[:2]
    assert [each["id"] for each in found["parked"]] == jobs[2:]
    detail = api.get(f"/api/v1/jobs/{jobs[2]}")
    assert (detail["limits"], detail["parked"]) == (["shop:7"], "shop:7")
    assert (
        "did you mean 'renders'" in refused(api("GET", "/api/v1/limits/key", params={"name": "render"}), 404)["detail"]
    )
    said = refused(api("GET", "/api/v1/limits/key", params={"name": SHOP.limit}), 422)["detail"]
    assert "name one of them, like 'shop:42'" in said


def test_operators_set_and_reset_them(api: Api, store: Store, jobs: list[str]) -> None:
    refused(api.by("bob")("POST", "/api/v1/limits/set", json={"name": "shop:7", "concurrency": 3}), 403)
    set_ = api.by("ada").post("/api/v1/limits/set", name="shop:7", concurrency=3)
    assert (set_["changed"], set_["bounds"]["concurrency"]) == (True, 3)
    assert not api.by("ada").post("/api/v1/limits/set", name="shop:7", concurrency=3)["changed"]
    assert settle_waits(store) == jobs[2:3]
    assert api.get("/api/v1/limits/key", name="shop:7")["set_by"]["who"] == "ada"
    assert api.by("ada").post("/api/v1/limits/reset", name="shop:7")["bounds"]["concurrency"] == 2
    assert not api.post("/api/v1/limits/reset", name="shop:7")["changed"]
    for body, says in (({}, "expected concurrency"), ({"rate": "0/1s"}, "pause it"), ({"burst": 2}, "it has no rate")):
        assert says in refused(api("POST", "/api/v1/limits/set", json={"name": "shop:7", **body}), 422)["detail"]
    for number in (True, "3", 1.5):
        for body in ({"concurrency": number}, {"rate": "100/1m", "burst": number}):
            found = refused(api("POST", "/api/v1/limits/set", json={"name": "shop:7", **body}), 422)
            assert "integer" in found["detail"]
    for verb in ("set", "reset", "pause", "resume"):
        body = {"name": "render", **({"concurrency": 1} if verb == "set" else {})}
        refused(api("POST", f"/api/v1/limits/{verb}", json=body), 404)


def test_operators_pause_and_resume_them(api: Api, store: Store, jobs: list[str]) -> None:
    for verb in ("pause", "resume"):
        refused(api.by("bob")("POST", f"/api/v1/limits/{verb}", json={"name": "shop:7"}), 403)
    api.by("ada").post("/api/v1/limits/pause", name="shop:7", why="too many 429", **{"for": "1h"})
    pause = api.get("/api/v1/limits/key", name="shop:7")["pause"]
    assert (pause["name"], pause["why"], pause["by"]["who"], bool(pause["until"])) == (
        "shop:7",
        "too many 429",
        "ada",
        True,
    )
    api.by("ada").post("/api/v1/limits/pause", name=SHOP.limit)
    assert api.get("/api/v1/limits/key", name="shop:7")["pause"]["name"] == SHOP.limit
    (other,) = [each for each in api.get("/api/v1/limits/keys")["keys"] if each["key"] == "shop:8"]
    assert (other["paused"], other["paused_until"]) == (True, None)
    paused = "; 1 of its keys is paused: see tenure limits show 'shop:{shop}'"
    assert api.post("/api/v1/limits/resume", name=SHOP.limit) == {"changed": True, "says": f"resumed{paused}"}
    assert api.post("/api/v1/limits/resume", name=SHOP.limit)["says"] == f"it was not paused{paused}"
    assert api.post("/api/v1/limits/resume", name="shop:7")["says"] == "resumed"
    assert api.post("/api/v1/limits/resume", name=SHOP.limit)["says"] == "it was not paused"
    acts = [(each["who"], each["action"], each["subject"]) for each in api.get("/api/v1/audit")["entries"]]
    assert acts[-2:] == [("ada", "limits.pause", SHOP.limit), ("ada", "limits.pause", "shop:7")]


def test_a_key_may_have_any_character(api: Api, store: Store, jobs: list[str]) -> None:
    limited(store, SLASHED)
    change(store, SLASHED, set=Bounds(1))
    settle_waits(store)
    assert api.get("/api/v1/limits/key", name=SLASHED.key)["key"]["held"] == 1
    assert api.post("/api/v1/limits/pause", name=SLASHED.key)["changed"]
    assert api.get("/api/v1/limits/key", name=SLASHED.key)["key"]["paused"]
