"""Flows and signals in the REST API: over SQLite, through the whole dashboard, security included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import World, claim, draft, finish, look, put, start
from tenure import Job, Tenure
from tenure.config import load
from tenure.core.lifecycle import Completed, Edge, Failed, Lease, Outcome, State, Suspended
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.ports import Draft, Links, Store
from tenure.stores.sqlite import SqliteStore
from tenure.web.dashboard import create

from .test_api import NOWHERE, TOKENS, Api, refused

FLOW = "0190a0a0-0000-7000-8000-00000000000a"
pytestmark = pytest.mark.usefixtures("unhurried")


@dataclass
class Approval:
    by: str


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    world = World(lambda clock: SqliteStore(str(tmp_path / "tenure.db"), clock=clock))
    yield world.store()
    world.close()


@pytest.fixture
def api(store: Store, tmp_path: Path) -> Api:
    app = Tenure(f"sqlite:///{tmp_path}/elsewhere.db")

    @app.task(signals={"approved": Approval})
    def approve(job: Job) -> None: ...

    settings = load(code={"tokens": ",".join(TOKENS.values())}, environ={}, folder=tmp_path)
    return Api(create(lambda: Admin(store, PollNotifier(), settings), settings, tasks=app.tasks))


def step(*parents: Draft, **options: Any) -> Draft:
    links = Links(after=tuple(Edge(each.id) for each in parents), flow=FLOW, name="nightly")
    return draft(links=links, **options)


def settled(store: Store) -> None:
    while store.admit().more:
        pass


def ends(store: Store, fates: dict[str, Outcome]) -> None:
    worker = start(store)
    for each in claim(store, worker, 100):
        finish(store, Lease(each.id, each.attempt, worker), fates.get(each.task, Completed("1")))
    settled(store)


def held_flow(store: Store, argument: str = '{"$outputs":[0,2]}') -> tuple[Draft, Draft, Draft]:
    good, bad = step(task="render"), step(task="break")
    last = step(good, bad, task="combine", payload=f'{{"pages":{argument}}}')
    store.enqueue([good, bad, last])
    settled(store)
    ends(store, {"break": Failed("no disk", final=True)})
    return good, bad, last


def waiting_for(store: Store, signal: str, timeout: float | None = None) -> str:
    job_id = put(store, task="approve")
    worker = start(store)
    (claimed,) = claim(store, worker)
    finish(store, Lease(job_id, claimed.attempt, worker), Suspended(signal=signal, timeout=timeout))
    return job_id


# ── Flows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_flows_are_listed_in_pages(api: Api, store: Store) -> None:
    held_flow(store)
    store.enqueue([draft(links=Links(flow=FLOW[:-1] + "b", name="hourly"))])
    first = api.by("bob").get("/api/v1/flows", limit=1)
    second = api.get("/api/v1/flows", limit=1, cursor=first["next"])
    (flow,) = [each for each in (*first["flows"], *second["flows"]) if each["id"] == FLOW]
    assert (flow["name"], flow["state"], flow["total"], round(flow["progress"], 2)) == ("nightly", "held", 3, 0.67)
    assert flow["counts"] == {**dict.fromkeys(State, 0), "waiting": 1, "completed": 1, "dead": 1}
    assert second["next"] is None
    refused(api("GET", "/api/v1/flows", params={"cursor": "x"}), 422)


def test_a_flow_is_shown_by_step(api: Api, store: Store) -> None:
    _, bad, _ = held_flow(store)
    found = api.by("bob").get(f"/api/v1/flows/{FLOW}")
    assert [(each["task"], each["level"], each["total"]) for each in found["steps"]] == [
        ("break", 0, 1),
        ("render", 0, 1),
        ("combine", 1, 1),
    ]
    assert [(each["source"], each["target"], each["open"]) for each in found["arrows"]] == [(0, 2, 1), (1, 2, 0)]
    assert (found["held"], found["complete"], found["folded"]) == ([bad.id], True, False)
    assert len(api.get("/api/v1/jobs", flow=FLOW)["jobs"]) == 3
    (waiting,) = api.get("/api/v1/jobs", flow=FLOW, state="waiting")["jobs"]
    assert waiting["flow"] == FLOW
    assert refused(api("GET", f"/api/v1/flows/{NOWHERE}"), 404)["title"] == "No such flow"


def test_operators_cancel_and_replay_flows(api: Api, store: Store) -> None:
    _, bad, last = held_flow(store)
    for verb in ("cancel", "replay"):
        refused(api.by("bob")("POST", f"/api/v1/flows/{FLOW}/{verb}"), 403)
        refused(api.by("ada")("POST", f"/api/v1/flows/{NOWHERE}/{verb}"), 404)

    assert api.by("ada").post(f"/api/v1/flows/{FLOW}/replay") == {"done": 1, "refusals": 0, "refused": []}
    assert look(store, bad.id).state is State.QUEUED
    assert api.by("ada").post(f"/api/v1/flows/{FLOW}/cancel", reason="wrong day")["done"] == 2
    assert look(store, last.id).cancel_reason == "wrong day"
    entries = api.get("/api/v1/audit")["entries"]
    assert [(each["who"], each["action"]) for each in entries] == [("ada", "flows.cancel"), ("ada", "flows.replay")]


def test_a_flow_goes_on_without_a_job(api: Api, store: Store) -> None:
    good, bad, last = held_flow(store)
    refused(api.by("bob")("POST", f"/api/v1/jobs/{bad.id}/skip"), 403)
    assert "it is completed" in refused(api("POST", f"/api/v1/jobs/{good.id}/skip"), 409)["detail"]
    assert api.by("ada").post(f"/api/v1/jobs/{bad.id}/skip")["done"]
    settled(store)
    assert look(store, last.id).state is State.QUEUED


def test_a_job_whose_result_is_needed_is_not_skipped(api: Api, store: Store) -> None:
    _, bad, last = held_flow(store, '{"$output":1}')
    said = refused(api("POST", f"/api/v1/jobs/{bad.id}/skip"), 409)
    assert said["detail"] == f"job {bad.id}: job {last.id} takes its result: replay this one, or cancel that one"


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signal_is_checked_and_arrives_once(api: Api, store: Store) -> None:
    job_id = waiting_for(store, "own:approved", 60.0)
    path = f"/api/v1/jobs/{job_id}/signals"
    asked = api.by("bob").get(path)
    assert (asked["waits_for"], asked["shared"], asked["sent"]) == ("approved", False, [])
    assert asked["until"] == api.get(f"/api/v1/jobs/{job_id}")["wait_until"]
    assert api.get(f"/api/v1/jobs/{job_id}")["wait_for"] == "own:approved"

    refused(api.by("bob")("POST", f"{path}/approved", json={"value": {"by": "ada"}}), 403)
    assert "approve: signal 'approved'" in refused(api("POST", f"{path}/approved", json={"value": 1}), 422)["detail"]
    refused(api("POST", f"{path}/aproved", json={"value": 1}), 422)
    refused(api("POST", f"/api/v1/jobs/{NOWHERE}/signals/approved", json={"value": 1}), 404)
    said = api.by("ada").post(f"{path}/approved", value={"by": "ada"})["says"]
    assert said == "approved is sent; the job goes on if it waits for it"
    assert "arrives once" in refused(api("POST", f"{path}/approved", json={"value": {"by": "bob"}}), 409)["detail"]
    api.post(f"{path}/approved", value={"by": "bob"}, replace=True)
    assert [each["value"] for each in api.get(path)["sent"]] == [{"by": "bob"}]
    hidden = api.by("bob").get(path)
    assert (hidden["payloads"], [each["value"] for each in hidden["sent"]]) == ("hidden", [None])

    store.cancel([job_id], "no")
    said = refused(api("POST", f"{path}/approved", json={"value": {"by": "bob"}, "replace": True}), 409)["detail"]
    assert "a signal reaches only a job that has not ended" in said


def test_a_shared_signal_is_sent_to_all(api: Api, store: Store) -> None:
    jobs = [waiting_for(store, "shared:open") for _ in range(2)]
    refused(api.by("bob")("POST", "/api/v1/signals", json={"key": "open", "value": True}), 403)
    assert api.by("ada").post("/api/v1/signals", key="open", value=True) == {
        "says": "sent to all jobs that wait for it"
    }
    settled(store)
    assert {look(store, each).state for each in jobs} == {State.QUEUED}
    refused(api("POST", "/api/v1/signals", json={"key": "open", "value": True}), 409)


def test_a_waiting_job_is_explained_to_programs(api: Api, store: Store) -> None:
    _, bad, last = held_flow(store)
    found = api.get(f"/api/v1/jobs/{last.id}/explain")
    assert found["verdict"] == "it waits for 1 of 2 jobs to complete"
    assert found["reasons"] == [f"1 is a dead letter, which holds it: break {bad.id} (no disk)"]
    assert f"tenure flows skip {bad.id}" in found["what_to_do"]
    (queue,) = api.get("/api/v1/queues")["queues"]
    assert queue["waiting"] == 1
