"""`tenure flows` and `tenure signals`, run as their users run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import claim, draft, finish, look, put, start
from tenure.core.clock import system_clock
from tenure.core.lifecycle import EXPIRED, Cancelled, Completed, Edge, Failed, Lease, Outcome, State, Suspended
from tenure.ports import Draft, Links, Store
from tenure.stores.sqlite import SqliteStore
from terminals import on_a_terminal, plain

APP = """
from dataclasses import dataclass
from tenure import Job, Tenure

jobs = Tenure()

@dataclass
class Approval:
    by: str

@jobs.task(signals={"approved": Approval})
def approve(job: Job, order: int) -> None: ...
"""
FLOW = "0190a0a0-0000-7000-8000-00000000000a"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(folder: Path) -> Iterable[Store]:
    store = SqliteStore(str(folder / "tenure.db"))
    store.open()
    yield store
    store.close()


def step(*parents: Draft, **options: Any) -> Draft:
    links = Links(after=tuple(Edge(each.id) for each in parents), flow=FLOW, name="nightly")
    return draft(links=links, **options)


def settled(store: Store) -> None:
    while store.admit().more:
        pass


def ends(store: Store, fates: dict[str, Outcome]) -> None:
    """A worker runs what is queued; `fates`: how these jobs end, by task."""
    worker = start(store, boot_id=system_clock().boot_id, lease=3600.0)
    for each in claim(store, worker, 100):
        finish(store, Lease(each.id, each.attempt, worker), fates.get(each.task, Completed("1")))
    settled(store)


def held_flow(store: Store) -> tuple[Draft, list[Draft], Draft]:
    """load, then three renders of which the last is dead, then combine."""
    load = step(task="load")
    renders = [step(load, task="render") for _ in range(2)]
    bad = step(load, task="break")
    last = step(*renders, bad, task="combine", payload='{"pages":{"$outputs":[0,3]}}')
    store.enqueue([load, *renders, bad, last])
    settled(store)
    ends(store, {})
    ends(store, {"break": Failed("no disk", final=True)})
    return load, [*renders, bad], last


def waiting_for(store: Store, signal: str) -> str:
    job_id = put(store, task="approve")
    worker = start(store, boot_id=system_clock().boot_id, lease=3600.0)
    (claimed,) = claim(store, worker)
    finish(store, Lease(job_id, claimed.attempt, worker), Suspended(signal=signal))
    return job_id


def test_flows_are_listed_with_how_far_they_are(run: Run, store: Store) -> None:
    held_flow(store)
    code, out, said = run("flows")
    heads, row = [line.split("\t") for line in out.splitlines()]
    assert (code, said) == (0, "")
    assert heads == ["id", "state", "ended", "age", "name", "what"]
    assert row[:3] == [FLOW, "held", "80%"]
    assert row[4:] == ["nightly", "5 jobs: 1 waiting, 3 completed, 1 dead"]
    assert run("flows", "list")[1] == out

    found = json.loads(run("flows", "list", "--json")[1])
    (flow,) = found["flows"]
    assert (flow["id"], flow["state"], flow["progress"], flow["counts"]["dead"]) == (FLOW, "held", 0.8, 1)
    store.enqueue([draft(links=Links(flow=FLOW[:-1] + "b", name="hourly"))])
    code, out, said = run("flows", "list", "-n", "1")
    assert (code, len(out.splitlines())) == (0, 2)
    cursor = said.removeprefix("there are more: --cursor ").strip()
    assert FLOW in run("flows", "list", "--cursor", cursor)[1]


def test_a_flow_is_shown_by_step(run: Run, store: Store) -> None:
    _, renders, _ = held_flow(store)
    code, out, _ = run("flows", "show", FLOW)
    dead = renders[-1].id
    head, _, drawn = out.partition("\n\n")
    said = dict(line.split(maxsplit=1) for line in head.splitlines())
    assert (code, said.pop("since")[-3:]) == (0, "UTC")
    assert said == {
        "flow": FLOW,
        "name": "nightly",
        "state": "held, 80% of 5 jobs ended",
        "jobs": "1 waiting, 3 completed, 1 dead",
        "held": f"by  {dead}",
    }
    assert [line.split("\t")[:4] for line in drawn.splitlines()[:-1]] == [
        ["step", "task", "jobs", "after"],
        ["1", "load", "1", ""],
        ["2", "break", "1", "1"],
        ["3", "render", "2", "1"],
        ["4", "combine", "1", "2, 3"],
    ]
    assert drawn.splitlines()[-1] == "→ why, and what to do: tenure jobs explain ID"

    shown = json.loads(run("flows", "show", FLOW, "--json")[1])
    assert [each["task"] for each in shown["steps"]] == ["load", "break", "render", "combine"]
    assert (shown["held"], shown["complete"]) == ([dead], True)


@pytest.mark.parametrize("argv", [("list",), ("show", FLOW)])
def test_sixty_columns_are_enough(argv: tuple[str, ...], store: Store) -> None:
    held_flow(store)
    code, seen = on_a_terminal(60, "flows", *argv)
    lines = plain(seen)
    assert (code, len(lines) > 2) == (0, True)
    assert max(map(len, lines)) <= 60


def test_a_flow_goes_on_without_a_job(run: Run, store: Store) -> None:
    _, renders, last = held_flow(store)
    code, out, _ = run("flows", "skip", renders[0].id)
    why = "nothing done: it is completed: only a dead or cancelled job can be skipped"
    assert (code, out) == (1, f"{renders[0].id}: {why}\n")

    code, out, _ = run("flows", "skip", renders[-1].id[-8:])
    settled(store)
    assert (code, out) == (0, f"{renders[-1].id}: skipped: what waited for it goes on\n")
    assert look(store, last.id).state is State.QUEUED
    assert run("flows", "skip")[0] == 2


def test_what_died_in_a_flow_is_replayed(run: Run, store: Store) -> None:
    _, renders, _ = held_flow(store)
    assert run("flows", "replay", FLOW) == (
        2,
        "",
        "replay 1 job of flow nightly? There is no terminal to ask on: use --yes.\n",
    )
    assert run("flows", "replay", FLOW, "-y")[:2] == (0, "1 job queued again\n")
    assert look(store, renders[-1].id).state is State.QUEUED


def test_what_expired_in_a_flow_is_asked_about_too(run: Run, store: Store) -> None:
    (only,) = flow = [step(task="late")]
    store.enqueue(flow)
    settled(store)
    ends(store, {"late": Cancelled(EXPIRED)})

    code, _, said = run("flows", "replay", FLOW)

    assert (code, said) == (2, "replay 1 job of flow nightly? There is no terminal to ask on: use --yes.\n")
    assert look(store, only.id).state is State.CANCELLED
    assert run("flows", "replay", FLOW, "-y")[:2] == (0, "1 job queued again\n")
    assert run("flows", "replay", FLOW)[:2] == (0, "0 jobs queued again\n")


def test_a_flow_is_cancelled(run: Run, store: Store) -> None:
    _, _, last = held_flow(store)
    code, out, _ = run("flows", "cancel", FLOW, "--reason", "wrong day", "--yes")
    assert (code, out) == (0, "1 job cancelled or asked to stop\n")
    assert look(store, last.id).cancel_reason == "wrong day"
    assert json.loads(run("flows", "cancel", FLOW, "--json")[1]) == {"done": 0, "refusals": 0, "refused": []}
    code, _, said = run("flows", "cancel", "nowhere")
    assert (code, said.startswith("no flow nowhere in sqlite:///")) == (1, True)


def test_a_signal_is_encrypted_by_the_app_of_the_settings(run: Run, folder: Path, store: Store) -> None:
    app = APP.replace("Tenure()", "Tenure(codec=AesSiv(AesSiv.new_key()))")
    (folder / "shop.py").write_text(f"from tenure.codecs import AesSiv\n{app}")
    job_id = waiting_for(store, "own:approved")

    assert run("signals", "send", job_id, "approved", '{"by":"ada-lovelace"}')[0] == 0

    (sent,) = store.signals(job_id)
    assert "ada-lovelace" not in sent.value


def test_a_signal_is_checked_sent_and_listed(run: Run, store: Store) -> None:
    job_id = waiting_for(store, "own:approved")
    assert run("signals", "list", job_id[-8:])[1].startswith("waits for  approved, without a time-out\n")

    code, _, said = run("signals", "send", job_id, "approved", '{"bye": 1}')
    assert (code, "approve: signal 'approved'" in said) == (2, True)
    code, _, said = run("signals", "send", job_id, "aproved", "1")
    assert (code, "takes no signal 'aproved' (it takes: approved)" in said) == (2, True)
    assert run("signals", "send", job_id[-8:], "approved", '{"by":"ada"}') == (
        0,
        "approved is sent; the job goes on if it waits for it\n",
        "",
    )
    code, _, said = run("signals", "send", job_id, "approved", '{"by":"bob"}')
    assert (code, "it arrives once; to replace it" in said) == (1, True)
    assert run("signals", "send", job_id, "approved", '{"by":"bob"}', "--replace")[0] == 0
    lines = [line.split("\t") for line in run("signals", "list", job_id)[1].splitlines()[1:]]
    assert [lines[0], lines[1][::2]] == [["signal", "sent", "value"], ["approved", '{"by":"bob"}']]
    (sent,) = json.loads(run("signals", "list", job_id, "--json")[1])["sent"]
    assert (sent["name"], sent["value"]) == ("approved", {"by": "bob"})


def test_a_shared_signal_is_sent_to_all(run: Run, store: Store) -> None:
    jobs = [waiting_for(store, "shared:open") for _ in range(2)]
    assert run("signals", "send", "--shared", "open", "true")[:2] == (0, "sent to all jobs that wait for it\n")
    settled(store)
    assert {look(store, each).state for each in jobs} == {State.QUEUED}
    assert run("signals", "send", "--shared", "open", "true")[0] == 1
    code, _, said = run("signals", "send", "one")
    assert (code, said) == (2, "send: expected JOB NAME JSON, got one\n")


def test_a_waiting_job_says_in_lists_what_it_waits_for(run: Run, store: Store) -> None:
    _, _, last = held_flow(store)
    job_id = waiting_for(store, "own:approved")
    rows = {line.split("\t")[0]: line.split("\t") for line in run("jobs", "list", "-s", "waiting")[1].splitlines()[1:]}
    assert (rows[last.id][5], rows[job_id][5]) == ("for other jobs", "for the signal approved")
    assert f"flow       {FLOW}\n" in run("jobs", "show", last.id)[1]
    assert len(run("jobs", "list", f"flow={FLOW}")[1].splitlines()) == 6
    code, out, _ = run("jobs", "explain", last.id)
    assert (code, out.splitlines()[0]) == (0, f"combine {last.id} (waiting): it waits for 1 of 3 jobs to complete")
    heads, queue = [line.split("\t") for line in run("queues")[1].splitlines()]
    assert (heads[4], queue[4]) == ("waiting", "2")
