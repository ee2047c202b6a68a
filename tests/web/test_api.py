"""The REST API by its promises: over SQLite, through the whole dashboard, security included."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from conformance.factories import World, begin, begin_guarded, bring, identity, look, made, put, running, tick
from tenure import Secret, Tenure
from tenure.config import Settings, load
from tenure.core.lifecycle import Crashed, Failed, State
from tenure.errors import StoreAway
from tenure.maintenance import orders
from tenure.maintenance.orders import Frame, Order, Stack, Trace
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Filter, JobView, Progress, Store
from tenure.ports.schedules import Change
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create
from tenure.web.errors import PROBLEM
from tenure.web.site import Demo
from tenure.worker.job_log import LogLine, encode

TOKENS = {
    "root": "root:admin:root-secret-0123456789",
    "ada": "ada:operate:ada-secret-0123456789",
    "bob": "bob:read:bob-secret-0123456789",
    "eve": "eve:read+payloads:eve-secret-0123456789",
    "tom": "tom:operate-payloads:tom-secret-0123456789",
}
NOWHERE = "00000000-0000-0000-0000-00000000dead"
LATE = "2100-01-01T00:00:00Z"

pytestmark = pytest.mark.usefixtures("unhurried")


@dataclass(frozen=True)
class Api:
    """The dashboard's API, called as somebody."""

    app: Any
    who: str = "root"

    def by(self, who: str) -> Api:
        return replace(self, who=who)

    def __call__(self, method: str, path: str, **more: Any) -> httpx.Response:
        return asyncio.run(self._call(method, path, **more))

    async def _call(self, method: str, path: str, **more: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.request(method, path, **more)

    def client(self) -> httpx.AsyncClient:
        secret = TOKENS[self.who].rpartition(":")[2] if self.who else ""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://localhost",
            headers={"Authorization": f"Bearer {secret}"} if secret else {},
        )

    def get(self, path: str, **query: Any) -> Any:
        return answered(self("GET", path, params=query))

    def post(self, path: str, **body: Any) -> Any:
        return answered(self("POST", path, json=body))

    def delete(self, path: str) -> Any:
        return answered(self("DELETE", path))


def answered(response: httpx.Response) -> Any:
    assert response.is_success, (response.status_code, response.text)
    return response.json()


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """Problem details of this status."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.store()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(code={"tokens": ",".join(TOKENS.values())}, environ={}, folder=tmp_path)


@pytest.fixture
def jobs(tmp_path: Path) -> Tenure:
    app = Tenure(f"sqlite:///{tmp_path}/elsewhere.db")

    @app.task(queue="letters", unique="to:{name}")
    def greet(name: str, *, times: int = 1) -> str:
        return f"hello {name}" * times

    @app.task(unique="card:{pin}")
    def charge(pin: Secret[str]) -> None:
        pin.reveal()

    @app.task
    def work(n: int = 0) -> int:
        return n

    return app


@pytest.fixture
def make(store: Store, settings: Settings, jobs: Tenure) -> Callable[..., Api]:
    def made(**options: Any) -> Api:
        given = {"tasks": jobs.tasks, **options}
        return Api(create(lambda: Admin(store, PollNotifier(), settings), settings, **given))

    return made


@pytest.fixture
def api(make: Callable[..., Api]) -> Api:
    return make()


def ids(page: dict[str, Any]) -> list[str]:
    return [job["id"] for job in page["jobs"]]


# ── At a glance ──


def test_stats_tell_counts_rates_queues_workers_and_problems(api: Api, store: Store) -> None:
    bring(store, State.DEAD)
    put(store)

    stats = api.get("/api/v1/stats")

    assert stats["counts"] == {**dict.fromkeys(State, 0), "queued": 1, "dead": 1}
    assert stats["counts_age"] >= 0
    assert set(stats["rates"]) == {"completed", "dead", "cancelled"}
    assert [queue["name"] for queue in stats["queues"]] == ["default"]
    assert [worker["host"] for worker in stats["workers"]] == ["host"]
    (problem,) = stats["problems"]
    assert (problem["kind"], problem["subject"], problem["cause"]) == ("dead-letters", "work", "")
    assert (problem["fix"], len(problem["jobs"])) == ("tenure dead list", 1)
    assert "tenure dead list" not in problem["says"]


def test_a_trend_tells_what_ended_over_time_and_by_task(api: Api, store: Store) -> None:
    bring(store, State.DEAD)
    bring(store, State.COMPLETED)

    trend = api.get("/api/v1/trend", span="6h")

    assert (trend["span"], len(trend["points"]), trend["points"][-1]["seconds"]) == ("6h", 72, 300)
    assert (trend["points"][0]["completed"], trend["points"][0]["wait_p50"]) == (None, None), "nobody recorded it"
    (task,) = trend["tasks"]
    assert (task["task"], task["completed"], task["dead"], task["failure_rate"]) == ("work", 1, 1, 0.5)
    assert task["run_p50"] is not None
    assert api.get("/api/v1/trend", span="6h", task="nobody")["tasks"] == []
    assert api.get("/api/v1/trend")["span"] == "15m"
    refused(api("GET", "/api/v1/trend", params={"span": "9y"}), 422)


def test_a_paused_queue_says_since_when_and_resumes(api: Api, store: Store) -> None:
    assert api.post("/api/v1/queues/letters/pause", why="no paper") == {"changed": True, "says": "paused"}
    assert api.post("/api/v1/queues/letters/pause")["changed"] is False
    assert store.paused() == {"letters"}
    (queue,) = api.get("/api/v1/queues")["queues"]
    assert queue["paused_at"].endswith("Z")
    assert (queue["paused_by"], queue["paused_why"], queue["workers"], queue["outlook"]) == ("root", "no paper", 0, "")
    assert (queue["growth"], queue["empty_in"]) == (None, None)

    assert api.post("/api/v1/queues/letters/resume")["changed"] is True
    assert not store.paused()


def test_dead_letters_are_grouped_by_error_and_replayed_at_so_many_a_minute(api: Api, store: Store) -> None:
    for number in range(3):
        last = running(store, task="mail")
        store.finish([(last, Failed(f"no user {number}", final=True))])
    bring(store, State.DEAD, task="pdf")

    found = api.get("/api/v1/dead/errors", task="mail")
    (group,) = found["groups"]
    assert (found["jobs"], found["more"]) == (3, False)
    assert (group["says"], group["jobs"], group["tasks"]) == ("no user …", 3, {"mail": 3})
    words = f"fingerprint={group['fingerprint']}"
    assert len(api.get("/api/v1/dead", q=words)["jobs"]) == 3

    bulk = {"verb": "replay", "filter": {"q": words, "state": ["dead"]}}
    done = api.post("/api/v1/jobs/bulk", **bulk, per_minute=60)

    assert (done["done"], done["until"]) == (3, "2027-01-15T08:00:02Z")
    assert store.counts()[State.SCHEDULED] == 2
    for wrong in ({**bulk, "verb": "cancel", "per_minute": 60}, {**bulk, "per_minute": 0}):
        refused(api("POST", "/api/v1/jobs/bulk", json=wrong), 422)


def test_workers_show_the_living_or_also_the_dead(api: Api, store: Store) -> None:
    living, dead = identity(), identity()
    for worker in (living, dead):
        store.register(worker)
    store.renew([living.id], memory={living.id: 32 << 20})
    job_id = running(store, dead.id).job_id
    store.settle(dead.id, {}, Crashed("gone"), how="its process ended: exit code 3")

    (worker,) = api.get("/api/v1/workers")["workers"]
    both = api.get("/api/v1/workers", dead="true")["workers"]

    assert (worker["id"], worker["memory"], worker["tasks"]) == (living.id, 32 << 20, ["work"])
    how = {"how": "its process ended: exit code 3", "ran": [{"id": job_id, "task": "work"}], "more": 0}
    assert {each["id"]: each["ended"] for each in both} == {living.id: None, dead.id: how}


def test_a_worker_is_told_to_drain_once_and_those_that_can_t_say_why(api: Api, store: Store) -> None:
    worker, host, guard = identity(), identity(runner="embedded"), identity(runner="guard")
    for each in (worker, host, guard):
        store.register(each)

    told = api.by("ada").post(f"/api/v1/workers/{worker.id}/restart", grace="5m")
    again = refused(api("POST", f"/api/v1/workers/{worker.id}/drain"), 409)

    assert told["says"].endswith("it runs no job; then its supervisor starts another one")
    assert again["detail"].startswith(f"ada ordered a restart of worker {worker.id}")
    stops = {each["id"]: each["stop"] for each in api.get("/api/v1/workers")["workers"]}
    assert (stops[worker.id]["verb"], stops[worker.id]["who"], stops[worker.id]["taken"]) == ("restart", "ada", False)
    assert stops[host.id] is None
    assert "embedded in a program" in refused(api("POST", f"/api/v1/workers/{host.id}/restart"), 409)["detail"]
    assert "is a guard" in refused(api("POST", f"/api/v1/workers/{guard.id}/drain"), 409)["detail"]
    assert refused(api("POST", "/api/v1/workers/nobody/drain"), 404)["title"] == "No such worker"
    store.declare_dead([worker.id])
    assert f"worker {worker.id} ended" in refused(api("POST", f"/api/v1/workers/{worker.id}/drain"), 409)["detail"]
    refused(api.by("bob")("POST", f"/api/v1/workers/{worker.id}/drain"), 403)


def test_the_stack_of_a_running_job_is_for_operators(api: Api, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lease, queued = running(store), put(store)
    path = f"/api/v1/jobs/{lease.job_id}/stack"
    monkeypatch.setattr(orders, "give", lambda store, order: orders.answer(store, answer(order)))

    def answer(order: Order) -> Stack:
        frames = (Frame("/srv/shop.py", 7, "charge"),)
        return Stack(order.job, order.worker, order.who, order.at, order.at, "", (Trace("its thread", frames),))

    found = api.by("ada").post(path)

    assert (found["state"], found["worker"], found["who"]) == ("answered", lease.worker_id, "ada")
    frame = {"file": "/srv/shop.py", "line": 7, "function": "charge"}
    assert found["traces"] == [{"name": "its thread", "frames": [frame], "left_out": 0}]
    assert "only a running job" in refused(api("POST", f"/api/v1/jobs/{queued}/stack"), 409)["detail"]
    refused(api.by("bob")("POST", path), 403)


def test_the_audit_trail_names_who_did_what_and_is_for_admins(api: Api) -> None:
    api.by("ada").post("/api/v1/queues/letters/pause")

    (entry,) = api.get("/api/v1/audit")["entries"]

    assert (entry["who"], entry["action"], entry["subject"]) == ("ada", "queue.pause", "letters")
    assert entry["outcome"] == "paused"
    refused(api.by("ada")("GET", "/api/v1/audit"), 403)


def test_metrics_are_prometheus_text(api: Api, store: Store) -> None:
    put(store)

    response = api.by("bob")("GET", "/metrics")

    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "tenure_" in response.text


def test_health_is_told_to_anybody_and_nothing_else(make: Callable[..., Api], store: Store, settings: Settings) -> None:
    def away() -> Admin:
        raise StoreAway("nobody listens at 10.0.0.7")

    well, ill = make().by(""), Api(create(away, settings), "")

    assert well.get("/healthz") == {"status": "ok"}
    response = ill("GET", "/healthz")
    assert (response.status_code, response.json()) == (503, {"status": "away"})
    refused(well("GET", "/metrics"), 401)


def test_a_head_is_answered_like_a_get_without_its_body(api: Api) -> None:
    for path in ("/healthz", "/metrics", "/api/v1/queues", "/jobs"):
        head, get = api("HEAD", path), api("GET", path)
        assert (head.status_code, head.content) == (200, b""), path
        assert head.headers["content-type"] == get.headers["content-type"]
    assert api("HEAD", "/api/v1/events").status_code == 405  # it would never end
    assert api("HEAD", "/api/v1/jobs/nowhere").status_code == api("GET", "/api/v1/jobs/nowhere").status_code


# ── Looking for jobs ──


def test_jobs_are_found_by_every_filter_newest_first(api: Api, world: World, store: Store) -> None:
    first = put(store, queue="letters", unique="a")
    world.advance(60)
    dead = bring(store, State.DEAD).job_id
    second = put(store, task="greet")
    then = store.now() - timedelta(seconds=30)

    assert ids(api.get("/api/v1/jobs")) == [second, dead, first]
    assert ids(api.get("/api/v1/jobs", queue="letters")) == [first]
    assert ids(api.get("/api/v1/jobs", unique="a")) == [first]
    assert ids(api.get("/api/v1/jobs", task="greet")) == [second]
    assert ids(api.get("/api/v1/jobs", state="dead")) == [dead]
    assert ids(api.get("/api/v1/jobs", state=["dead", "queued"])) == [second, dead, first]
    assert ids(api.get("/api/v1/jobs", text="for good")) == [dead]
    assert ids(api.get("/api/v1/jobs", enqueued_until=then.isoformat())) == [first]
    assert ids(api.get("/api/v1/jobs", enqueued_since=then.isoformat())) == [second, dead]
    assert ids(api.get("/api/v1/jobs", ended_since=then.isoformat())) == [dead]
    assert ids(api.get("/api/v1/jobs", ended_until=then.isoformat())) == []
    assert ids(api.get("/api/v1/dead")) == [dead]


def test_a_search_in_arguments_needs_the_right_to_see_them_everywhere(api: Api, store: Store) -> None:
    _, job_id = put(store, payload='{"user":47110}'), put(store, payload='{"user":4711}', meta='{"r":"x"}')

    assert ids(api.get("/api/v1/jobs", q="args.user=4711")) == [job_id]
    assert ids(api.get("/api/v1/jobs", q="args.user=4711 meta.r=X", state="queued", task="work")) == [job_id]
    assert ids(api.get("/api/v1/dead", q="args.user=4711")) == []
    assert ids(api.by("tom").get("/api/v1/jobs", q="meta.r=x")) == [job_id]
    bulk = {"verb": "cancel", "filter": {"q": "args.user=4711"}}
    for who in ("tom",):
        for path in ("/api/v1/jobs", "/api/v1/dead"):
            problem = refused(api.by(who)("GET", f"{path}?q=args.user%3D4711"), 422)
            assert "may not see arguments" in problem["detail"]
        refused(api.by(who)("POST", "/api/v1/jobs/bulk/count", json=bulk), 422)
        refused(api.by(who)("POST", "/api/v1/jobs/bulk", json=bulk), 422)
    assert api.by("ada").post("/api/v1/jobs/bulk/count", **bulk)["jobs"] == 1
    assert api.by("ada").post("/api/v1/jobs/bulk", **bulk)["done"] == 1
    assert "quote" in refused(api("GET", "/api/v1/jobs?q=user%3D1"), 422)["detail"]


def test_jobs_of_a_worker_are_those_it_runs(api: Api, store: Store) -> None:
    put(store)
    lease = running(store, queue="default", priority=5)

    assert ids(api.get("/api/v1/jobs", worker=lease.worker_id)) == [lease.job_id]


def test_pages_of_jobs_follow_each_other(api: Api, store: Store) -> None:
    stored = [put(store) for _ in range(5)]
    found, cursor = list[str](), dict[str, str]()

    for _ in range(3):
        page = api.get("/api/v1/jobs", limit=2, **cursor)
        found += ids(page)
        cursor = {"cursor": page["next"]}

    assert found == stored[::-1]
    assert page["next"] is None


def test_a_job_is_shown_whatever_is_stored_with_it(api: Api, store: Store) -> None:
    """SQL, or a release with other rules, may have stored it."""
    odd = '{"s":"a\\u0000b"}'
    job_id = bring(store, State.DEAD, payload=odd).job_id

    assert api.get(f"/api/v1/jobs/{job_id}")["args"]["s"] == "a\0b"
    assert job_id in {each["id"] for each in api.get("/api/dlq")}


def test_a_job_is_shown_with_attempts_evidence_refusals_and_logs(api: Api, store: Store) -> None:
    lease = running(store, payload='{"n":1,"password":"t0p"}')
    line = LogLine(store.now(), "info", "half-way")
    store.progress([Progress(lease=lease, fraction=0.5, checkpoint='{"n":1}', log=encode([line], 3))])
    store.finish([(lease, Crashed("it was killed", evidence={"signal": "SIGKILL"}))])
    store.refused([(lease, "it came back late")])

    job = api.get(f"/api/v1/jobs/{lease.job_id}")

    assert (job["payloads"], job["args"], job["checkpoint"]) == ("shown", {"n": 1, "password": "***"}, {"n": 1})
    (attempt,) = job["attempts"]
    assert (attempt["outcome"], attempt["evidence"]) == ("crashed", {"signal": "SIGKILL"})
    assert attempt["refused"] == "it came back late"
    (log,) = job["logs"]
    assert (log["dropped"], log["lines"][0]["text"]) == (3, "half-way")


def test_who_may_not_see_payloads_is_told_so(api: Api, store: Store) -> None:
    done = bring(store, State.COMPLETED, payload='{"n":1}').job_id
    dead = bring(store, State.DEAD, payload='{"n":2}').job_id
    plan = made(store)

    job = api.by("bob").get(f"/api/v1/jobs/{done}")
    (letter,) = api.by("bob").get("/api/dlq")
    shown = api.by("bob").get(f"/api/v1/schedules/{plan.name}")

    assert job["payloads"] == letter["payloads"] == shown["payloads"] == "hidden"
    hidden = [job[name] for name in ("args", "result", "checkpoint", "logs", "edits")]
    assert [*hidden, letter["payload"], shown["args"]] == [None] * 7
    assert api.by("eve").get(f"/api/v1/jobs/{done}")["args"] == {"n": 1}
    assert api.by("eve").get("/api/dlq")[0]["id"] == dead


def test_json_too_deep_for_an_answer_is_given_as_text(api: Api, store: Store) -> None:
    deep = '{"a":' + "[" * 300 + "]" * 300 + "}"
    job_id = put(store, payload=deep)

    assert api.get(f"/api/v1/jobs/{job_id}")["args"] == deep


def test_why_a_job_does_not_run_is_explained(api: Api, store: Store) -> None:
    job_id = put(store)

    said = api.get(f"/api/v1/jobs/{job_id}/explain")

    assert "no worker has opened" in said["verdict"]
    assert said["what_to_do"]


OF_A_JOB = [
    ("GET", ""),
    ("GET", "/explain"),
    ("POST", "/cancel"),
    ("POST", "/promote"),
    ("POST", "/replay"),
    ("DELETE", ""),
]


def test_a_job_that_is_not_there_is_not_found(api: Api) -> None:
    for method, path in OF_A_JOB:
        problem = refused(api(method, f"/api/v1/jobs/{NOWHERE}{path}"), 404)

    assert problem["type"] == "/problems/no-such-job"
    assert not api.get("/api/v1/audit")["entries"]


# ── Storing ──


def test_a_job_is_stored_with_all_its_options_and_where_it_is_told(api: Api, store: Store) -> None:
    body = {
        "task": "greet",
        "args": {"name": "Ada", "times": 2},
        "queue": "slow",
        "priority": 7,
        "delay": "1h",
        "expires": "2h",
        "unique": "mine",
        "meta": {"from": "test"},
    }

    response = api.by("ada")("POST", "/api/v1/jobs", json=body)

    assert response.status_code == 201
    answer = response.json()
    assert (answer["created"], answer["state"]) == (True, "scheduled")
    assert response.headers["location"] == f"/api/v1/jobs/{answer['id']}"
    job = api.get(response.headers["location"])
    same = ("task", "queue", "priority", "unique", "args", "meta")
    assert {name: job[name] for name in same} == {name: body[name] for name in same}


def test_a_job_sent_again_with_its_id_is_there_already(api: Api, store: Store) -> None:
    body = {"task": "work", "id": str(UUID(int=7))}

    first, again = (api("POST", "/api/v1/jobs", json=body) for _ in range(2))

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"id": body["id"], "created": False, "state": "queued"}
    assert len(store.search(Filter()).jobs) == 1


def test_a_live_job_with_the_same_key_is_answered(api: Api) -> None:
    first = api.post("/api/v1/jobs", task="greet", args={"name": "Ada"})

    assert api.post("/api/v1/jobs", task="greet", args={"name": "Ada"}) == {**first, "created": False}


def test_arguments_that_do_not_fit_are_refused_with_what_the_task_takes(api: Api) -> None:
    wrong = refused(api("POST", "/api/v1/jobs", json={"task": "greet", "args": {"name": 5}}), 422)
    strange = refused(api("POST", "/api/v1/jobs", json={"task": "greet", "args": {"nmae": "Ada"}}), 422)

    assert wrong["detail"] == "greet.name: expected str, got int (at $.name)"
    assert "it takes (name: str, *, times: int = 1)" in strange["detail"]


def test_an_unknown_task_is_not_found_and_the_known_ones_are_named(api: Api) -> None:
    assert "greet" in refused(api("POST", "/api/v1/jobs", json={"task": "gret"}), 404)["detail"]


def test_a_secret_never_becomes_part_of_a_unique_key(api: Api) -> None:
    body = {"task": "charge", "args": {"pin": {"$secret": "1234"}}}

    assert "1234" not in refused(api("POST", "/api/v1/jobs", json=body), 422)["detail"]


def test_without_an_app_nothing_can_be_enqueued_and_it_is_said_how(make: Callable[..., Api]) -> None:
    problem = refused(make(tasks=None)("POST", "/api/v1/jobs", json={"task": "work"}), 409)

    assert "TENURE_APP" in problem["detail"]


IMPOSSIBLE_JOBS: list[object] = [
    {"task": "work", "meta": {"tenure.edits": "[]"}},
    {"task": "work", "meta": {"a": "\0"}},
    {"task": "greet", "args": {"name": "a\0b"}},
    {"task": "greet", "args": {"name": "Ada", "times": 1.5}},
    {"task": "work", "run_at": LATE, "delay": "5s"},
    {"task": "work", "run_at": "9999-12-31T23:59:59Z"},
    {"task": "work", "run_at": "2100-01-01T00:00:00"},
    {"task": "work", "delay": "5"},
    {"task": "work", "queue": "guard"},
    {"task": "work", "queue": "a b"},
    {"task": "work", "priority": 101},
    {"task": "work", "unique": ""},
    {"task": "work", "id": "7"},
    {"task": "work", "surprise": 1},
    {"args": {}},
    [],
]


def test_what_can_not_be_is_refused_before_it_is_stored(api: Api, store: Store) -> None:
    for body in IMPOSSIBLE_JOBS:
        refused(api("POST", "/api/v1/jobs", json=body), 422)

    assert not store.search(Filter()).jobs


IMPOSSIBLE_JSON = [
    b'{"task":"greet","args":{"name":"\\ud800"}}',
    b'{"task":"greet","args":{"\\ud800":1}}',
    b'{"task":"work","args":{"n":NaN}}',
    b'{"task":"work","args":{"n":1e999}}',
    b'{"task":"work","args":{"n":' + b"[" * 200 + b"]" * 200 + b"}}",
    b'{"task":"\\ud800"}',
    b'{"task":',
]


def test_json_that_no_store_can_keep_is_refused(api: Api) -> None:
    for body in IMPOSSIBLE_JSON:
        refused(api("POST", "/api/v1/jobs", content=body, headers={"Content-Type": "application/json"}), 422)


# ── Acting ──


def test_a_waiting_job_is_cancelled_promoted_replayed_and_deleted(api: Api, store: Store) -> None:
    job_id = put(store, delay=60)

    says = [api.post(f"/api/v1/jobs/{job_id}/{verb}")["says"] for verb in ("promote", "cancel", "replay")]
    deleted = api.delete(f"/api/v1/jobs/{job_id}")

    assert says == ["queued", "cancelled", "queued again"]
    assert deleted == {"id": job_id, "done": True, "says": "deleted"}
    assert store.get(job_id) is None


def test_a_cancel_says_why(api: Api, store: Store) -> None:
    job_id = running(store).job_id

    api.by("ada").post(f"/api/v1/jobs/{job_id}/cancel", reason="not needed")

    assert api.get(f"/api/v1/jobs/{job_id}")["cancel_reason"] == "not needed"


def test_what_a_job_can_not_do_in_its_state_is_a_conflict(api: Api, store: Store) -> None:
    done, runs = bring(store, State.COMPLETED).job_id, running(store).job_id

    problem = refused(api("POST", f"/api/v1/jobs/{done}/cancel"), 409)
    refused(api("POST", f"/api/v1/jobs/{runs}/replay"), 409)
    refused(api("DELETE", f"/api/v1/jobs/{runs}"), 409)

    assert problem["detail"] == f"job {done}: it is completed"


def test_a_replay_with_other_arguments_keeps_what_they_were_and_who_changed_them(api: Api, store: Store) -> None:
    job_id = bring(store, State.DEAD, payload='{"n":1,"old":2}').job_id

    said = api.by("ada").post(f"/api/v1/jobs/{job_id}/replay", put={"n": 5}, drop=["old"])

    assert said["says"] == "queued again"
    job = api.get(f"/api/v1/jobs/{job_id}")
    assert job["args"] == {"n": 5}
    assert [(edit["who"], edit["before"]) for edit in job["edits"]] == [("ada", {"n": 1, "old": 2})]


def test_what_replaces_a_secret_is_a_secret_also_where_no_task_is_known(make: Callable[..., Api], store: Store) -> None:
    job_id, api = bring(store, State.DEAD, payload='{"n":1,"card":{"$secret":"4111"}}').job_id, make(tasks=None)

    api.post(f"/api/v1/jobs/{job_id}/replay", put={"card": "5500"})

    assert json.loads(look(store, job_id).payload) == {"n": 1, "card": {"$secret": "5500"}}
    assert api.get(f"/api/v1/jobs/{job_id}")["args"] == {"n": 1, "card": "***"}


def test_arguments_are_changed_only_by_who_sees_them_and_only_as_the_task_takes_them(api: Api, store: Store) -> None:
    job_id = bring(store, State.DEAD).job_id

    refused(api.by("tom")("POST", f"/api/v1/jobs/{job_id}/replay", json={"put": {"n": 1}}), 403)
    refused(api("POST", f"/api/v1/jobs/{job_id}/replay", json={"put": {"n": "one"}}), 422)
    refused(api("POST", f"/api/v1/jobs/{job_id}/replay", json={"drop": ["m"]}), 422)

    assert api.by("tom").post(f"/api/v1/jobs/{job_id}/replay")["done"] is True


def test_other_arguments_are_json_that_every_store_keeps_also_where_no_task_checks_them(
    make: Callable[..., Api], store: Store
) -> None:
    job_id, api = bring(store, State.DEAD).job_id, make(tasks=None)

    for put_ in (b'"\\ud800"', b'"\\u0000"', b'{"\\ud800":1}', b"NaN", b"[" * 200 + b"]" * 200):
        body, kind = b'{"put":{"n":%b}}' % put_, {"Content-Type": "application/json"}
        refused(api("POST", f"/api/v1/jobs/{job_id}/replay", content=body, headers=kind), 422)

    assert api.post(f"/api/v1/jobs/{job_id}/replay", put={"n": [10**30, "\N{SNOWMAN}"]})["done"] is True


# ── Acting on all that match ──


def test_all_that_match_are_counted_then_acted_on(api: Api, store: Store) -> None:
    for _ in range(3):
        bring(store, State.DEAD)
    other = bring(store, State.DEAD, task="greet").job_id
    bulk: dict[str, Any] = {"verb": "replay", "filter": {"task": "work", "state": ["dead"]}}

    counted = api.by("ada").post("/api/v1/jobs/bulk/count", **bulk)
    done = api.by("ada").post("/api/v1/jobs/bulk", **bulk, expected=counted["jobs"], reason="fixed")

    assert counted == {"jobs": 3, "more": False, "confirm": None}
    assert done == {"done": 3, "refusals": 0, "refused": [], "next": None, "until": None}
    assert ids(api.get("/api/v1/dead")) == [other]


def test_nothing_is_done_when_many_more_match_than_were_counted(api: Api, store: Store) -> None:
    for _ in range(3):
        put(store)

    problem = refused(api("POST", "/api/v1/jobs/bulk", json={"verb": "cancel", "filter": {}, "expected": 2}), 409)

    assert problem["detail"] == "2 were counted, 3 match now: count again"
    assert store.counts()[State.QUEUED] == 3
    assert api.post("/api/v1/jobs/bulk", verb="cancel", filter={}, expected=5)["done"] == 3


def test_a_bulk_delete_takes_an_admin_who_types_the_number(api: Api, store: Store) -> None:
    for _ in range(2):
        bring(store, State.DEAD)
    bulk = {"verb": "delete", "filter": {"state": ["dead"]}}
    confirm = api.post("/api/v1/jobs/bulk/count", **bulk)["confirm"]

    refused(api.by("ada")("POST", "/api/v1/jobs/bulk", json={**bulk, "confirm": confirm}), 403)
    for wrong in (None, "delete", "delete two", "yes"):
        refused(api("POST", "/api/v1/jobs/bulk", json={**bulk, "confirm": wrong}), 422)
    refused(api("POST", "/api/v1/jobs/bulk", json={**bulk, "confirm": "delete 1"}), 409)
    assert store.counts()[State.DEAD] == 2

    assert confirm == "delete 2"
    assert api.post("/api/v1/jobs/bulk", **bulk, confirm=confirm)["done"] == 2


def test_a_verb_that_fits_no_job_of_these_states_is_refused(api: Api) -> None:
    bulk = {"verb": "promote", "filter": {"state": ["dead"]}}

    assert "promote" in refused(api("POST", "/api/v1/jobs/bulk/count", json=bulk), 422)["detail"]


# ── Schedules ──


def test_schedules_show_their_health_and_one_all_that_is_known(api: Api, store: Store) -> None:
    plan = made(store, rule="0 6 * * *", tz="Europe/Paris", next_tick=store.now() - timedelta(hours=1))
    job_id = begin(store, plan.name)

    (row,) = api.get("/api/v1/schedules")["schedules"]
    one = api.get(f"/api/v1/schedules/{plan.name}")

    assert (row["name"], row["schedule"]) == (plan.name, "0 6 * * * Europe/Paris")
    assert {name: one[name] for name in row if name != "overdue_by"} == {
        name: row[name] for name in row if name != "overdue_by"
    }
    assert [run["job"] for run in one["runs"]] == [job_id]
    assert one["task"] == "work"


def test_overdue_schedules_are_told(api: Api, store: Store) -> None:
    plan = made(store, next_tick=store.now() - timedelta(hours=1))

    (late,) = api.get("/api/v1/overdue")["schedules"]

    assert (late["name"], late["overdue_by"], late["why"]) == (plan.name, 3600.0, "no supervisor fired it")


def test_history_is_newest_first_and_its_output_is_a_payload(api: Api, store: Store) -> None:
    plan, now = made(store), store.now()
    rows = [
        tick(plan, now - timedelta(minutes=n), status="skipped", why="overlap", output="it said so") for n in (3, 2, 1)
    ]
    store.change([Change(schedule=plan, ticks=tuple(rows))])

    history = api.get(f"/api/v1/schedules/{plan.name}/history", limit=2)
    before = api.by("bob").get(f"/api/v1/schedules/{plan.name}/history", before=history["ticks"][1]["tick"])

    assert [each["output"] for each in history["ticks"]] == ["it said so"] * 2
    assert [(each["tick"], each["output"]) for each in before["ticks"]] == [
        (rows[0].tick.isoformat().replace("+00:00", "Z"), None)
    ]


def test_the_ticks_of_all_schedules_are_told_since_a_time(api: Api, store: Store) -> None:
    one, two, now = made(store), made(store), store.now()
    for plan, minutes in ((one, 30), (two, 20), (one, 10)):
        done = tick(plan, now - timedelta(minutes=minutes), status="skipped", why="overlap", output="it said so")
        store.change([Change(schedule=store.schedules([plan.name])[0].schedule, ticks=(done,))])

    newest = api.get("/api/v1/ticks", since=(now - timedelta(minutes=25)).isoformat().replace("+00:00", "Z"))
    hidden = api.by("bob").get("/api/v1/ticks", limit=1)

    assert [(each["schedule"], each["output"]) for each in newest["ticks"]] == [
        (one.name, "it said so"),
        (two.name, "it said so"),
    ]
    assert [(each["schedule"], each["output"]) for each in hidden["ticks"]] == [(one.name, None)]


def test_the_ticks_of_all_schedules_are_read_page_by_page_and_by_what_became_of_them(api: Api, store: Store) -> None:
    plan, now = made(store), store.now()
    states = ("success", "failure", "success", "missed")
    ticks = (
        tick(plan, now - timedelta(minutes=n), status=status, why="x", decided_at=now - timedelta(minutes=5))
        for n, status in enumerate(states, 5)
    )
    store.change([Change(schedule=plan, ticks=tuple(ticks))])

    first = api.get("/api/v1/ticks", limit=3)
    rest = api.get("/api/v1/ticks", limit=3, cursor=first["next"])
    wrong = api.get("/api/v1/ticks", status=["failure", "missed"])

    assert ([each["status"] for each in (*first["ticks"], *rest["ticks"])], rest["next"]) == (list(states), None)
    assert [each["status"] for each in wrong["ticks"]] == ["failure", "missed"]
    early = (now - timedelta(minutes=6)).isoformat().replace("+00:00", "Z")
    assert api.get("/api/v1/ticks", until=early)["ticks"] == []
    refused(api("GET", "/api/v1/ticks", params={"cursor": "x"}), 422)


def test_a_schedule_is_renamed_with_its_history_by_an_admin(api: Api, store: Store) -> None:
    plan, now = made(store, name="old"), store.now()
    store.change([Change(schedule=plan, ticks=(tick(plan, now, status="failure", why="no disk"),))])
    made(store, name="taken")
    made(store, name="declared", source="shop")

    refused(api.by("ada")("POST", "/api/v1/schedules/old/rename", json={"name": "new"}), 403)
    refused(api("POST", "/api/v1/schedules/old/rename", json={"name": "taken"}), 409)
    refused(api("POST", "/api/v1/schedules/declared/rename", json={"name": "new"}), 409)
    refused(api("POST", "/api/v1/schedules/nobody/rename", json={"name": "new"}), 404)
    assert api.post("/api/v1/schedules/old/rename", name="new")["changed"]

    assert [each["name"] for each in api.get("/api/v1/schedules/new")["formerly"]] == ["old"]
    assert [each["why"] for each in api.get("/api/v1/schedules/new/history")["ticks"]] == ["no disk"]
    assert [each["schedule"] for each in api.get("/api/v1/ticks")["ticks"]] == ["new"]
    refused(api("GET", "/api/v1/schedules/old"), 404)


def test_the_next_ticks_are_told_of_a_schedule_or_of_an_expression(api: Api, store: Store) -> None:
    plan = made(store, rule="0 6 * * *", tz="Europe/Paris", end=store.now() + timedelta(days=2))

    own = api.get(f"/api/v1/schedules/{plan.name}/preview", count=5)
    new = api.get("/api/v1/preview", cron="0 6 * * *", tz="Europe/Paris", count=1, after="2030-01-31T12:00:00Z")
    often = api.get("/api/v1/preview", every="1h30m", count=2)

    assert len(own["ticks"]) == 2
    assert new["ticks"] == [{"tick": "2030-02-01T05:00:00Z", "local": "2030-02-01T06:00:00+01:00", "note": ""}]
    assert (often["rule"], len(often["ticks"])) == ("every 1h30m", 2)


IMPOSSIBLE_RULES: list[dict[str, Any]] = [
    {},
    {"cron": "0 6 * *"},
    {"cron": "0 6 * * *", "every": "1h"},
    {"every": "1h", "tz": "UTC"},
    {"cron": "0 6 * * *", "tz": "Mars/Base"},
    {"cron": "0 6 * * *", "tz": "../../etc/passwd"},
    {"cron": "0 6 * * *", "dst": "never"},
    {"cron": "0 6 * * *", "count": 1000},
    {"cron": "0 0 30 2 *"},
    {"cron": "0 6 * * *\0"},
]


def test_a_rule_that_can_not_be_is_refused_with_the_reason(api: Api) -> None:
    for query in IMPOSSIBLE_RULES:
        refused(api("GET", "/api/v1/preview", params=query), 422)


def test_a_schedule_is_triggered_once_at_a_time(api: Api, world: World, store: Store) -> None:
    plan = made(store)
    path = f"/api/v1/schedules/{plan.name}/trigger"

    answer = api.by("ada").post(path)

    assert api.get(f"/api/v1/jobs/{answer['job']}")["task"] == "work"
    world.advance(1)
    refused(api("POST", path), 409)
    assert api.post(path, force=True)["job"] != answer["job"]
    assert [(each["who"], each["action"]) for each in api.get("/api/v1/audit")["entries"]][-1] == (
        "ada",
        "schedule.trigger",
    )


def test_a_paused_schedule_says_why_until_it_is_resumed(api: Api, store: Store) -> None:
    path = f"/api/v1/schedules/{made(store).name}"

    assert api.post(f"{path}/pause", why="until Monday") == {"changed": True, "says": "paused"}
    assert api.get(path)["paused_why"] == "until Monday"
    assert api.post(f"{path}/pause")["says"] == "it was already paused: until Monday"
    assert api.post(f"{path}/resume")["changed"] is True
    assert api.get(path)["paused_at"] is None


def test_a_backfill_is_counted_first_then_run(api: Api, store: Store) -> None:
    plan, now = made(store, overlap="allow"), store.now()
    path, since = f"/api/v1/schedules/{plan.name}/backfill", (now - timedelta(minutes=5)).isoformat()

    counted = api.post(path, since=since, dry_run=True)
    assert not store.search(Filter()).jobs
    done = api.post(path, since=since)

    assert counted["jobs"] == []
    assert counted["ticks"] == done["ticks"] == len(done["jobs"]) > 0
    refused(api("POST", path, json={"since": LATE}), 422)
    refused(api("POST", path, json={"since": "1971-01-01T00:00:00Z"}), 409)


def test_a_schedule_is_deleted_unless_an_app_declares_it(api: Api, store: Store) -> None:
    made(store, name="by-hand")
    made(store, name="by-app", source="shop")

    assert api.delete("/api/v1/schedules/by-hand")["changed"] is True
    refused(api("DELETE", "/api/v1/schedules/by-app"), 409)
    refused(api.by("ada")("DELETE", "/api/v1/schedules/by-app"), 403)

    assert [each.schedule.name for each in store.schedules()] == ["by-app"]


def test_what_this_release_can_not_understand_is_shown_and_left_alone(api: Api, store: Store) -> None:
    plan = made(store, rule="0 6 * * *", tz="Mars/Base")

    assert "can't be understood" in api.get(f"/api/v1/schedules/{plan.name}")["lint"][0]
    refused(api("GET", f"/api/v1/schedules/{plan.name}/preview"), 409)
    refused(api("POST", f"/api/v1/schedules/{plan.name}/backfill", json={"since": "2020-01-01T00:00:00Z"}), 409)


def test_a_guard_is_a_schedule_that_nobody_triggers(api: Api, store: Store) -> None:
    worker = identity(runner="guard", queues=("guard",))
    store.register(worker)
    plan = made(store, kind="guard", job=None)
    job_id = begin_guarded(store, plan.name, worker.id)

    refused(api("POST", f"/api/v1/schedules/{plan.name}/trigger"), 409)
    assert api.get(f"/api/v1/schedules/{plan.name}")["runs"][0]["job"] == job_id
    assert api.get(f"/api/v1/jobs/{job_id}")["queue"] == "guard"


OF_A_SCHEDULE = [
    ("GET", ""),
    ("GET", "/history"),
    ("GET", "/preview"),
    ("POST", "/trigger"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("DELETE", ""),
]


def test_a_schedule_that_is_not_there_is_not_found(api: Api) -> None:
    for method, path in OF_A_SCHEDULE:
        refused(api(method, f"/api/v1/schedules/nobody{path}"), 404)

    assert not api.get("/api/v1/audit")["entries"]


# ── The origin's endpoints ──


def test_the_endpoints_of_the_origin_answer(api: Api, store: Store) -> None:
    dead = bring(store, State.DEAD, payload='{"n":2}')
    first = api.post("/api/enqueue", name="work", payload={"n": 1})
    later = api.post("/api/enqueue", type="greet", payload={"name": "Ada"}, delay=2.5)
    last = api.post("/api/enqueue", name="work", delay="5m")

    (letter,) = api.get("/api/dlq")
    stats = api.get("/api/stats")

    assert [each["state"] for each in (first, later, last)] == ["queued", "scheduled", "scheduled"]
    assert (letter["id"], letter["payload"], letter["error"]) == (dead.job_id, {"n": 2}, "for good")
    assert letter["failed_at"]
    assert (stats["active"], stats["delayed"], stats["dead"]) == (1, 2, 1)
    refused(api("POST", "/api/enqueue", json={"payload": {}}), 422)
    refused(api("POST", "/api/enqueue", json={"name": "work", "delay": -1}), 422)
    refused(api("POST", "/api/enqueue", json={"name": "work", "delay": "soon"}), 422)


def test_a_job_enqueued_over_the_api_of_the_demo_goes_where_its_workers_are(
    make: Callable[..., Api], store: Store
) -> None:
    site = make(demo=Demo("demo"))

    plain = [site.post("/api/enqueue", type="greet", payload={"name": "Ada"}), site.post("/api/enqueue", name="work")]
    other = site.post("/api/enqueue", name="work", queue="elsewhere")
    newer = site.post("/api/v1/jobs", task="work")

    assert [job_of(store, each).queue for each in (*plain, other, newer)] == ["demo", "demo", "elsewhere", "demo"]
    assert site.post("/api/flush") == {"deleted": 3, "left": 0}


def test_the_endpoints_of_the_origin_use_the_tasks_own_queue(api: Api, store: Store) -> None:
    own = api.post("/api/enqueue", type="greet", payload={"name": "Ada"})
    other = api.post("/api/enqueue", type="greet", payload={"name": "Bob"}, queue="elsewhere")

    assert [job_of(store, each).queue for each in (own, other)] == ["letters", "elsewhere"]
    refused(api("POST", "/api/enqueue", json={"name": "work", "queue": "no such/name"}), 422)


def job_of(store: Store, enqueued: dict[str, Any]) -> JobView:
    found = store.get(enqueued["id"])
    assert found is not None
    return found


BARE = [
    ({}, 200),
    ({"Origin": "http://localhost"}, 200),
    ({"Sec-Fetch-Site": "same-origin", "Cookie": "a=b"}, 200),
    ({"Origin": "http://localhost", "Content-Type": "text/plain"}, 200),
    ({"Cookie": "a=b"}, 403),
    ({"Content-Type": "text/plain"}, 403),
    ({"Sec-Fetch-Site": "none"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://localhost", "X-CSRF-Token": "wrong"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), BARE)
def test_a_bare_post_from_the_own_origin_empties_the_demo(
    store: Store, jobs: Tenure, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    open_settings = load(environ={}, folder=tmp_path)
    app = create(
        lambda: Admin(store, PollNotifier(), open_settings), open_settings, tasks=jobs.tasks, demo=Demo("demo")
    )
    site = Api(app, who="")

    assert site("POST", "/api/flush", headers=headers).status_code == status
    assert site("POST", "/api/v1/queues/demo/pause", headers=headers).status_code == 403


def test_flush_empties_the_queue_of_the_demo_and_nothing_else(make: Callable[..., Api], store: Store) -> None:
    demo, other = put(store, queue="demo"), put(store)

    assert "demo" in refused(make()("POST", "/api/flush"), 403)["detail"]
    assert store.get(demo)
    site = make(demo=Demo("demo"))
    refused(site.by("ada")("POST", "/api/flush"), 403)

    assert site.post("/api/flush") == {"deleted": 1, "left": 0}
    assert store.get(other)


# ── Roles ──


READS = ("stats", "queues", "jobs", "dead", "workers", "schedules", "overdue")


def test_who_reads_changes_nothing(api: Api, store: Store) -> None:
    job_id, plan, bob = put(store), made(store).name, api.by("bob")

    for path in READS:
        bob.get(f"/api/v1/{path}")
    bob.get("/api/v1/preview", every="1h")
    for verb in ("cancel", "promote", "replay"):
        refused(bob("POST", f"/api/v1/jobs/{job_id}/{verb}"), 403)
    for verb in ("trigger", "pause", "resume"):
        refused(bob("POST", f"/api/v1/schedules/{plan}/{verb}"), 403)
    for path in ("v1/queues/default/pause", "v1/queues/default/resume", "flush"):
        refused(bob("POST", f"/api/{path}"), 403)
    refused(bob("POST", "/api/v1/jobs", json={"task": "work"}), 403)
    refused(bob("POST", "/api/enqueue", json={"name": "work"}), 403)
    refused(bob("POST", "/api/v1/jobs/bulk", json={"verb": "cancel", "filter": {}}), 403)
    refused(bob("DELETE", f"/api/v1/jobs/{job_id}"), 403)

    assert store.counts()[State.QUEUED] == 1


def test_only_an_admin_deletes(api: Api, store: Store) -> None:
    job_id = put(store)

    refused(api.by("ada")("DELETE", f"/api/v1/jobs/{job_id}"), 403)

    assert store.get(job_id)


# ── What can't be asked ──


ODD_QUESTIONS = [
    "limit=0",
    "limit=201",
    "limit=99999999999999999999999",
    "limit=many",
    "state=done",
    "task=",
    "queue=a%00b",
    "text=%0a",
    "unique=" + "x" * 201,
    "cursor=elsewhere",
    "cursor=before-%00",
    "cursor=2030-01-01%2000000000-0000-0000-0000-00000000dead",
    "enqueued_since=yesterday",
    "enqueued_since=2030-01-01",
    "enqueued_since=0001-01-01T00:00:00%2B14:00",
    "ended_since=9999-12-31T23:59:59-14:00",
    "ended_since=1700000000",
    "stat=dead",
]


def test_an_odd_question_is_answered_with_what_was_expected(api: Api) -> None:
    for query in ODD_QUESTIONS:
        refused(api("GET", f"/api/v1/jobs?{query}"), 422)


def test_a_wrong_field_is_named(api: Api) -> None:
    problem = refused(api("GET", "/api/v1/jobs?limit=0&state=done"), 422)

    assert {each["field"] for each in problem["errors"]} == {"limit", "state.0"}
    assert "limit: input should be greater than or equal to 1" in problem["detail"]


def test_a_path_that_names_nothing_possible_is_refused(api: Api) -> None:
    for path in ("jobs/7", "schedules/a%00b", "schedules/%F0%9F%A6%8A"):
        refused(api("GET", f"/api/v1/{path}"), 422)


def test_an_address_that_is_none_and_a_method_it_does_not_take_are_problems_too(api: Api) -> None:
    refused(api("GET", "/api/v1/nothing"), 404)
    response = api("PUT", "/api/v1/jobs")
    refused(response, 405)
    assert "GET" in response.headers["allow"]


def test_a_store_that_is_away_is_said_with_when_to_come_again(settings: Settings) -> None:
    def away() -> Admin:
        raise StoreAway("nobody listens at the store's address")

    response = Api(create(away, settings))("GET", "/api/v1/queues")

    assert refused(response, 503)["detail"] == "nobody listens at the store's address"
    assert int(response.headers["retry-after"]) > 0


def test_an_error_that_nobody_foresaw_is_logged_once_and_not_told(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Admin:
        raise ZeroDivisionError("the password is t0p")

    with caplog.at_level(logging.ERROR):
        problem = refused(Api(create(broken, settings))("GET", "/api/v1/queues"), 500)

    assert "t0p" not in json.dumps(problem)
    (record,) = [each for each in caplog.records if each.name.startswith("tenure")]
    assert record.exc_info
    assert record.exc_info[0] is ZeroDivisionError


def test_people_get_a_page_instead(api: Api, settings: Settings) -> None:
    def broken() -> Admin:
        raise ZeroDivisionError("the password is t0p")

    for app, path, status in ((api, "/nothing-here", 404), (Api(create(broken, settings)), "/jobs", 500)):
        response = app("GET", path)

        assert response.status_code == status
        assert response.headers["content-type"].startswith("text/html")
        assert "</html>" in response.text
        assert "t0p" not in response.text


def test_it_answers_in_another_app_too_and_says_where_it_is(api: Api) -> None:
    host = Api(Starlette(routes=[Mount("/ops", api.app)]))

    response = host("POST", "/ops/api/v1/jobs", json={"task": "work"})

    assert response.headers["location"] == f"/ops/api/v1/jobs/{response.json()['id']}"
    assert host.get(response.headers["location"])["state"] == "queued"
    assert host.get("/ops/api/openapi.json")["servers"][0]["url"] == "/ops"
    refused(host("GET", "/ops/api/v1/nothing"), 404)
    refused(host("GET", f"/ops/api/v1/jobs/{NOWHERE}"), 404)


#: What no parser, or not every one, turns into a value.
MALFORMED = {
    "cut off": b'{"task": "gr',
    "not UTF-8": b"\xff\xfe\x00",
    "two": b"{}{}",
    "deep": b'{"task": "greet", "args": ' + b"[" * 100_000,
    "a long number": b'{"task": "greet", "args": {"n": ' + b"9" * 5_000 + b"}}",
    "no object": b"[]",
    "nothing": b"",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=list(MALFORMED))
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/jobs/bulk", "/api/enqueue"])
def test_a_malformed_body_is_a_problem_of_a_kind(body: bytes, path: str, api: Api) -> None:
    response = api("POST", path, content=body, headers={"content-type": "application/json"})

    problem = refused(response, 400 if response.status_code == 400 else 422)
    assert problem["type"] in ("/problems/invalid-request", "/problems/bad-request")
    assert "body" in problem["detail"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/api/v1/nothing", 404), ("PUT", "/api/v1/jobs", 405)])
def test_every_problem_has_a_kind(method: str, path: str, status: int, api: Api) -> None:
    assert refused(api(method, path), status)["type"].startswith("/problems/")


def test_a_queue_that_nothing_has_is_not_paused(api: Api, store: Store) -> None:
    put(store, queue="reports")

    problem = refused(api("POST", "/api/v1/queues/reprots/pause"), 404)
    assert (problem["type"], store.paused()) == ("/problems/no-such-queue", frozenset())
    assert "did you mean reports?" in problem["detail"]
    assert api("POST", "/queues/reprots/pause", data={}).status_code == 404
    assert api("POST", "/api/v1/queues/letters/pause").is_success, "a task of the app names it"
    assert api("POST", "/api/v1/queues/reprots/pause?unchecked=true").is_success
    assert store.paused() == {"letters", "reprots"}


# ── Events ──


def scope_of(api: Api, path: str, **headers: str) -> dict[str, Any]:
    """A GET request, for tests that speak ASGI themselves: ASGITransport waits for the end of an answer."""
    sent = {"host": "localhost", "authorization": f"Bearer {TOKENS[api.who].rpartition(':')[2]}", **headers}
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def events_of(api: Api, most: int) -> AsyncGenerator[dict[str, Any]]:
    """Its events, as they come."""
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    listening = asyncio.create_task(api.app(scope_of(api, "/api/v1/events"), asyncio.Event().wait, sent.put))
    numbers = count(1)
    try:
        while True:
            message = await asyncio.wait_for(sent.get(), 60)
            assert message.get("status", 200) == 200
            for line in message.get("body", b"").decode().splitlines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
                    if next(numbers) == most:
                        return
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def test_events_tell_all_at_first_then_what_changed(api: Api, store: Store) -> None:
    async def watch() -> list[dict[str, Any]]:
        told = list[dict[str, Any]]()
        async with aclosing(events_of(api.by("bob"), 10)) as events:
            async for event in events:
                told.append(event)
                if len(told) == 1:
                    await asyncio.to_thread(put, store)
                elif "counts" in event:  # the queue may come first: it is another read
                    break
        return told

    first, *others = asyncio.run(watch())

    assert {"counts", "rates", "queues", "workers", "problems"} <= set(first)
    assert first["counts"]["queued"] == 0
    assert others[-1]["counts"]["queued"] == 1
    assert not any("workers" in each for each in others)


def test_an_event_says_that_the_store_is_away_and_when_it_is_back(store: Store, settings: Settings) -> None:
    here = False

    def opened() -> Admin:
        if not here:
            raise StoreAway("nobody listens")
        return Admin(store, PollNotifier(), settings)

    async def watch() -> list[dict[str, Any]]:
        nonlocal here
        told = list[dict[str, Any]]()
        async for event in events_of(Api(create(opened, settings)), 2):
            told.append(event)
            here = True
        return told

    away, back = asyncio.run(watch())

    assert away == {"away": "nobody listens"}
    assert back["away"] == ""
    assert "counts" in back


def test_who_comes_when_too_many_listen_is_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.web.live.MOST_WATCHERS", 0)

    answer = api("GET", "/api/v1/events")
    refused(answer, 503)
    assert int(answer.headers["retry-after"]) > 0


def test_of_many_that_come_at_once_no_more_listen_than_there_are_places(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a place is free again when its request ends, however early."""
    places, come = 40, 60
    monkeypatch.setattr("tenure.web.live.MOST_WATCHERS", places)

    async def watch() -> list[int]:
        answers: asyncio.Queue[int] = asyncio.Queue()

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answers.put_nowait(message["status"])

        coming = [
            asyncio.create_task(api.app(scope_of(api, "/api/v1/events"), asyncio.Event().wait, send))
            for _ in range(come)
        ]
        statuses = [await asyncio.wait_for(answers.get(), 60) for _ in coming]
        for each in coming:
            each.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        return statuses

    for _ in range(2):
        statuses = asyncio.run(watch())
        assert (statuses.count(200), statuses.count(503)) == (places, come - places)


# ── The contract ──


def test_every_operation_says_its_role_its_answers_and_its_way_in(api: Api) -> None:
    said = api.get("/api/openapi.json")
    operations = {
        operation["operationId"]: (method, operation)
        for path in said["paths"].values()
        for method, operation in path.items()
    }

    assert said["openapi"].startswith("3.1")
    assert set(said["components"]["securitySchemes"]) == {"token", "session", "csrf"}
    assert len(operations) == sum(len(path) for path in said["paths"].values()) == 59
    for name, (method, operation) in operations.items():
        assert operation["description"], name
        assert operation["tags"], name
        if name == "get_health":
            continue
        assert {"401", "403", "421", "503"} <= set(operation["responses"]), name
        assert operation["description"].rpartition("Needs the role ")[2] in ("read.", "operate.", "admin."), name
        assert ("csrf" in operation["security"][1]) == (method != "get"), name
