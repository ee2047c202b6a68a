"""What operators see of flows and signals, and do with them, on every store."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from conformance.factories import World, claim, draft, finish, look, put, running, start
from tenure.core.lifecycle import (
    EXPIRED,
    Cancelled,
    Completed,
    Edge,
    Failed,
    Lease,
    Outcome,
    Released,
    State,
    Suspended,
)
from tenure.core.limits import Key
from tenure.core.offloaded import is_offloaded
from tenure.core.sealed import is_sealed
from tenure.errors import InvalidArguments, InvalidOption, Refused, UnknownFlow, UnknownJob
from tenure.notifiers.poll import PollNotifier
from tenure.operations import flow_graph
from tenure.operations.admin import Admin
from tenure.operations.explain import Explanation
from tenure.ports import Draft, Links, Ring, Store
from tenure.tasks.flow_handle import FlowStatus

FLOW = "0190a0a0-0000-7000-8000-00000000000a"


class Bell(PollNotifier):
    def __init__(self) -> None:
        super().__init__()
        self.rung: list[Ring] = []

    def announce(self, rings: Iterable[Ring]) -> None:
        self.rung += rings


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def admin(store: Store, bell: Bell) -> Admin:
    return Admin(store, bell, who="ada")


def step(*parents: Draft | str, until: Any = "completed", flow: str = FLOW, **options: Any) -> Draft:
    """A job of the flow that waits for these."""
    after = tuple(Edge(each if isinstance(each, str) else each.id, until) for each in parents)
    return draft(links=Links(after=after, flow=flow, name="nightly"), **options)


def admitted(store: Store) -> None:
    while store.admit().more:
        pass


def end(store: Store, job_id: str, outcome: Outcome | None = None) -> None:
    worker = start(store)
    for each in claim(store, worker, 100):
        wanted = (outcome or Completed('"done"')) if each.id == job_id else Released("not its turn")
        finish(store, Lease(each.id, each.attempt, worker), wanted)
    admitted(store)


def why(admin: Admin, job_id: str) -> Explanation:
    return admin.jobs.explain(job_id)


def map_reduce(store: Store, number: int = 3) -> tuple[Draft, list[Draft], Draft]:
    first = step(task="work")
    pages = [step(first, task="render") for _ in range(number)]
    last = step(*pages, task="combine")
    store.enqueue([first, *pages, last])
    admitted(store)
    return first, pages, last


# ── Flows ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flow_says_how_far_it_is(store: Store, admin: Admin) -> None:
    first, pages, last = map_reduce(store)
    assert (admin.flows.get(FLOW).stands, admin.flows.get(FLOW).progress) == ("running", 0.0)
    end(store, first.id)
    assert admin.flows.get(FLOW).progress == 0.2
    end(store, pages[0].id, Failed("no disk", final=True))
    for page in pages[1:]:
        end(store, page.id)
    found = admin.flows.get(FLOW)
    assert (found.stands, found.total, found.live, found.progress) == ("held", 5, 1, 0.8)
    counts = {str(state): count for state, count in found.counts.items()}
    told = FlowStatus(id=FLOW, name=found.name, created_at=found.created_at, counts=counts)
    assert told.progress == found.progress, "a program and an operator read the same"
    assert admin.flows.show(FLOW).held == [pages[0].id]

    assert admin.flows.skip([pages[0].id])[0].landed
    admitted(store)
    assert admin.flows.get(FLOW).stands == "running"
    end(store, last.id)
    assert (admin.flows.get(FLOW).stands, admin.flows.get(FLOW).progress) == ("dead", 1.0)
    store.replay([pages[0].id])
    end(store, pages[0].id)
    assert (admin.flows.get(FLOW).stands, admin.flows.get(FLOW).progress) == ("completed", 1.0)


def test_flows_are_listed_in_pages(world: World) -> None:
    store = world.store()
    admin, ids = Admin(store, PollNotifier()), [FLOW.replace("a0a0", f"a0a{number}") for number in range(3)]
    for flow in ids:
        store.enqueue([step(flow=flow)])
        world.advance(1)

    first = admin.flows.all(limit=2)
    assert [each.id for each in first.flows] == ids[:0:-1]
    second = admin.flows.all(limit=2, cursor=first.cursor)
    assert ([each.id for each in second.flows], second.cursor) == (ids[:1], None)
    with pytest.raises(InvalidOption, match="cursor: expected one that a page gave"):
        admin.flows.all(cursor="x")
    with pytest.raises(UnknownFlow, match=r"no flow 0190a0a0-0000-7000-8000-00000000000b in .*: never enqueued there"):
        admin.flows.get(FLOW[:-1] + "b")


def test_siblings_are_one_step(store: Store, admin: Admin) -> None:
    first, pages, last = map_reduce(store, 4)
    end(store, first.id)
    end(store, pages[2].id, Failed("no", final=True))
    graph = admin.flows.show(FLOW).graph

    assert [(each.task, each.total, each.level) for each in graph.steps] == [
        ("work", 1, 0),
        ("render", 4, 1),
        ("combine", 1, 2),
    ]
    assert graph.steps[1].counts == {State.QUEUED: 3, State.DEAD: 1}
    assert graph.steps[1].jobs[0] == pages[2].id
    assert [(each.source, each.target, each.edges, each.open) for each in graph.arrows] == [(0, 1, 4, 0), (1, 2, 4, 4)]
    assert (graph.complete, graph.folded, last.id in graph.steps[2].jobs) == (True, False, True)


def test_jobs_of_one_task_in_two_places_are_two_steps(store: Store, admin: Admin) -> None:
    chains = [[step(task="load")] for _ in range(3)]
    for chain in chains:
        chain.append(step(chain[0], task="clean"))
        chain.append(step(chain[1], task="clean"))
    alone = step(task="clean")
    store.enqueue([*(each for chain in chains for each in chain), alone])
    graph = admin.flows.show(FLOW).graph

    assert sorted((each.task, each.total, each.level) for each in graph.steps) == [
        ("clean", 1, 0),
        ("clean", 3, 1),
        ("clean", 3, 2),
        ("load", 3, 0),
    ]
    assert [each.edges for each in graph.arrows] == [3, 3]


def test_jobs_of_others_are_shown_where_a_flow_waits_for_them(store: Store, admin: Admin) -> None:
    foreign = put(store, task="import")
    store.enqueue([step(foreign, until="ended")])
    graph = admin.flows.show(FLOW).graph
    assert [(each.task, each.outside) for each in graph.steps] == [("import", True), ("work", False)]
    assert [each.ended for each in graph.arrows] == [True]

    end(store, foreign)
    for _ in range(2):
        store.delete([foreign])
    end(store, graph.steps[1].jobs[0])
    store.delete([foreign])
    assert [each.task for each in admin.flows.show(FLOW).graph.steps] == ["(gone)", "work"]


def test_a_flow_of_many_steps_is_folded_by_task(store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_graph, "MOST_STEPS", 4)
    chain = [step()]
    for _ in range(5):
        chain.append(step(chain[-1]))
    store.enqueue(chain)
    graph = admin.flows.show(FLOW).graph
    assert ([each.total for each in graph.steps], graph.arrows, graph.folded) == ([6], (), True)


def test_a_large_flow_is_shown_in_part(store: Store, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    _, pages, _ = map_reduce(store, 6)
    monkeypatch.setattr(flow_graph, "MOST_READ", 5)
    assert not admin.flows.show(FLOW).graph.complete
    monkeypatch.undo()
    monkeypatch.setattr(flow_graph, "MOST_MEMBERS", 6)
    graph = admin.flows.show(FLOW).graph
    assert (graph.complete, sum(each.total for each in graph.steps)) == (False, 6)
    assert not any(each.outside for each in graph.steps)
    assert len(pages) == 6


def test_a_flow_is_cancelled_in_batches(
    store: Store, admin: Admin, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.operations.flows.BATCH", 2)
    first, pages, last = map_reduce(store, 4)
    foreign = put(store)
    end(store, first.id)
    lease = running(store, links=Links(flow=FLOW, name="nightly"), priority=9)

    done = admin.flows.cancel(FLOW, "wrong day")
    assert (done.done, done.refusals) == (6, 0)
    assert {look(store, each.id).state for each in (*pages, last)} == {State.CANCELLED}
    assert look(store, lease.job_id).cancel_reason == "wrong day"
    assert look(store, foreign).state is State.QUEUED
    assert {ring.kind for ring in bell.rung} == {"cancel", "due"}
    (entry,) = admin.audit().entries
    assert (entry.action, entry.subject, entry.who) == ("flows.cancel", FLOW, "ada")
    assert (entry.detail, entry.outcome) == ({"name": "nightly", "why": "wrong day"}, "6 done, 0 refused")


def test_what_died_or_expired_in_a_flow_is_replayed(world: World) -> None:
    store = world.store()
    bell = Bell()
    admin = Admin(store, bell)
    dead, late, fine = step(task="a"), step(task="b", expires=1.0), step(task="c")
    last = step(dead, late, fine, task="sum")
    store.enqueue([dead, late, fine, last])
    admitted(store)
    worker = start(store, lease=9e5)
    world.advance(5)
    for each in claim(store, worker, 10):
        fates: dict[str, Outcome] = {"a": Failed("no", final=True), "c": Completed()}
        assert each.expired == (each.task == "b")
        finish(store, Lease(each.id, each.attempt, worker), fates.get(each.task, Cancelled(EXPIRED)))
    admitted(store)
    assert look(store, last.id).state is State.WAITING

    done = admin.flows.replay(FLOW)
    assert (done.done, done.refusals, admin.flows.get(FLOW).stands) == (2, 0, "running")
    assert {look(store, each.id).state for each in (dead, late)} == {State.QUEUED}
    assert look(store, fine.id).state is State.COMPLETED
    assert {ring.kind for ring in bell.rung} == {"queued", "due"}
    assert admin.flows.replay(FLOW).done == 0


@pytest.mark.parametrize(
    ("argument", "refused"), [('{"$output":0}', True), ('{"$outputs":[0,2]}', False), ("7", False)]
)
def test_a_job_is_skipped_unless_its_result_is_an_argument(
    argument: str, refused: bool, store: Store, admin: Admin, bell: Bell
) -> None:
    dead, other = step(), step()
    child = step(dead, other, task="mail", payload=f'{{"to":"ada","what":{argument}}}')
    store.enqueue([dead, other, child])
    admitted(store)
    (acted,) = admin.flows.skip([dead.id])
    assert (acted.landed, acted.says) == (
        False,
        "nothing done: it is queued: only a dead or cancelled job can be skipped",
    )
    end(store, dead.id, Failed("no", final=True))
    end(store, other.id)
    bell.rung.clear()

    assert admin.neighbours.behind(dead.id).needed is refused, "the pages offer no skip that is refused"
    (acted,) = admin.flows.skip([dead.id])
    admitted(store)
    assert acted.landed is not refused
    if refused:
        assert acted.says == f"nothing done: job {child.id} takes its result: replay this one, or cancel that one"
        assert (look(store, child.id).state, bell.rung) == (State.WAITING, [])
    else:
        assert look(store, child.id).state is State.QUEUED
        assert [ring.kind for ring in bell.rung] == ["due"]
    with pytest.raises(UnknownJob):
        admin.flows.skip(["nowhere"])


@pytest.mark.parametrize("shown_as", ['"encrypted: it needs the key k"', '"kept elsewhere: 70,000 bytes"'])
def test_a_job_is_not_skipped_where_it_can_not_be_seen_whether_its_result_is_an_argument(
    shown_as: str, store: Store, admin: Admin
) -> None:
    dead = step()
    child = step(dead, payload=shown_as)
    store.enqueue([dead, child])
    admitted(store)
    end(store, dead.id, Failed("no", final=True))

    assert admin.neighbours.behind(dead.id).needed, "the pages offer no skip that is refused"
    (acted,) = admin.flows.skip([dead.id])
    admitted(store)

    assert not acted.landed
    assert f"{child.id} waits for it and may take its result" in acted.says
    assert shown_as.strip('"') in acted.says
    assert look(store, child.id).state is State.WAITING


# ── Explain ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_job_names_what_it_waits_for(store: Store, admin: Admin) -> None:
    first, pages, last = map_reduce(store, 7)
    end(store, first.id)
    end(store, pages[0].id, Failed("no disk", final=True))
    end(store, pages[1].id)
    lease_worker = start(store)
    (claimed,) = claim(store, lease_worker)

    found = why(admin, last.id)
    assert found.verdict == "it waits for 6 of 7 jobs to complete"
    assert found.reasons[0] == f"1 is a dead letter, which holds it: render {pages[0].id} (no disk)"
    assert found.reasons[1] == f"1 is running: render {claimed.id}"
    assert found.reasons[2].startswith("4 are queued: render ")
    assert f"tenure jobs replay {pages[0].id}; or go on without it: tenure flows skip {pages[0].id}" in found.what_to_do
    held = why(admin, pages[0].id)
    assert f"a job waits for it: {last.id}" in held.reasons
    assert held.what_to_do.endswith(f"or let them go on without it: tenure flows skip {pages[0].id}")


def test_the_first_five_are_named_and_the_others_counted(store: Store, admin: Admin) -> None:
    _, pages, last = map_reduce(store, 8)
    (reason,) = why(admin, last.id).reasons
    assert reason.startswith(f"8 are waiting themselves: render {pages[0].id}, ")
    assert reason.endswith(" and 3 more")


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Failed("no disk", final=True), "2 are dead letters, which hold it: render "),
        (Cancelled(EXPIRED), "2 expired before they could start, which hold it: render "),
    ],
)
def test_several_that_hold_a_job_are_told_in_the_plural(
    store: Store, admin: Admin, outcome: Outcome, says: str
) -> None:
    first, pages, last = map_reduce(store)
    end(store, first.id)
    for page in pages[:2]:
        end(store, page.id, outcome)
    assert why(admin, last.id).reasons[0].startswith(says)


def test_a_wait_for_any_end_and_for_a_signal(world: World) -> None:
    store = world.store()
    admin = Admin(store, PollNotifier())
    parent = put(store, delay=3600)
    lease = running(store)
    finish(store, lease, Suspended("approval", (Edge(parent, "ended"),), "own:approved", 7200.0))
    admitted(store)
    world.advance(60)

    found = why(admin, lease.job_id)
    assert found.verdict == "it waits for a job to end and the signal 'approved'"
    assert found.reasons[0] == f"1 is due later: work {parent}"
    assert found.reasons[1].startswith("nobody has sent the signal 'approved' since ")
    assert " (1m ago); it times out in 1h59m, at " in found.reasons[1]
    assert found.what_to_do == f"send it: tenure signals send {lease.job_id} approved JSON"

    shared = running(store)
    finish(store, shared, Suspended(signal="shared:open"))
    found = why(admin, shared.job_id)
    assert (found.verdict, found.what_to_do) == (
        "it waits for the signal 'open'",
        "send it: tenure signals send --shared open JSON",
    )
    assert found.reasons[0].endswith("it has no time-out")
    store.signal(None, "shared:open", "true")
    assert why(admin, shared.job_id).verdict == "what it waited for has happened: it is queued at the next scan"


def test_an_older_worker_is_named_where_it_holds_up_admission(store: Store, admin: Admin) -> None:
    older = start(store, protocol=1)
    child = step(put(store))
    store.enqueue([child])
    found = why(admin, child.id)
    assert "nothing that waits goes on while a worker of an older release lives: " + older in found.verdict
    assert found.what_to_do == f"restart it on this release: tenure workers restart {older}"


def test_a_limited_job_is_promoted_to_its_turn(store: Store, admin: Admin, bell: Bell) -> None:
    job = put(store, delay=60.0, limits=(Key("k", "k"),))
    ((acted,),) = admin.jobs.act("promote", [admin.jobs.ref(job)])
    assert (acted.landed, acted.says) == (True, "due now, and waiting for its place of a limit")
    assert [ring.kind for ring in bell.rung] == ["due"]
    ((acted,),) = admin.jobs.act("promote", [admin.jobs.ref(job)])
    assert not acted.landed


def test_promote_and_replay_say_what_a_job_waits_for(store: Store, admin: Admin, bell: Bell) -> None:
    parent, child = put(store), step()
    child = step(parent)
    store.enqueue([child])
    admitted(store)
    ((acted,),) = admin.jobs.act("promote", [admin.jobs.ref(child.id)])
    assert (acted.landed, acted.says) == (
        False,
        f"nothing done: it is waiting; see tenure jobs explain {child.id}",
    )
    ((acted,),) = admin.jobs.act("delete", [admin.jobs.ref(parent)])
    assert acted.says == f"nothing done: job {child.id} waits for it: cancel that one first"
    ((acted,),) = admin.jobs.act("cancel", [admin.jobs.ref(child.id)])
    assert acted.says == "cancelled"
    bell.rung.clear()
    ((acted,),) = admin.jobs.act("replay", [admin.jobs.ref(child.id)])
    assert (acted.landed, acted.says) == (True, "waiting again, for what must happen first")
    assert [ring.kind for ring in bell.rung] == ["due"]


# ── Signals ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signal_is_sent_once_and_told(store: Store, admin: Admin, bell: Bell) -> None:
    lease = running(store)
    finish(store, lease, Suspended(signal="own:approved", timeout=60.0))
    job_id = lease.job_id
    found = admin.signals.of(job_id)
    assert (found.waits_for, found.shared, found.sent) == ("approved", False, ())
    assert found.until is not None

    says = admin.signals.send(job_id, "approved", ' {"by": "ada", "token": "t0p"} ')
    assert says == "approved is sent; the job goes on if it waits for it"
    (sent,) = admin.signals.of(job_id).sent
    assert (sent.name, sent.value) == ("approved", '{"by":"ada","token":"***"}')
    assert [ring.kind for ring in bell.rung] == ["due"]
    with pytest.raises(Refused, match=r"'approved' was sent at .*: it arrives once; to replace it: .* --replace"):
        admin.signals.send(job_id, "approved", "1")
    admin.signals.send(job_id, "approved", "1", replace=True)
    assert [each.value for each in admin.signals.of(job_id).sent] == ["1"]
    entries = admin.audit().entries
    assert [entry.outcome.partition(" ")[0] for entry in entries] == ["approved", "failed:", "approved"]
    assert entries[0].detail == {"name": "approved", "replaced": "yes"}


def test_a_signal_that_can_not_be_is_refused(store: Store, admin: Admin) -> None:
    ended = put(store)
    store.cancel([ended], "no")
    with pytest.raises(Refused, match="it is cancelled: a signal reaches only a job that has not ended"):
        admin.signals.send(ended, "go", "1")
    with pytest.raises(UnknownJob):
        admin.signals.send("nowhere", "go", "1")
    live = put(store)
    with pytest.raises(InvalidArguments, match="expected JSON such as true"):
        admin.signals.send(live, "go", "{")
    with pytest.raises(InvalidArguments, match="at most 262,144 bytes"):
        admin.signals.send(live, "go", '"' + "x" * 300_000 + '"')

    def refuses(text: str) -> None:
        raise InvalidArguments(f"{text} does not fit")

    with pytest.raises(InvalidArguments, match="1 does not fit"):
        admin.signals.send(live, "go", "1", check=refuses)
    assert admin.signals.of(live).sent == ()


def test_a_shared_signal_is_seen_with_the_job_that_waits_for_it(store: Store, admin: Admin) -> None:
    lease = running(store)
    finish(store, lease, Suspended(signal="shared:open"))
    assert admin.signals.send_shared("open", "true") == "sent to all jobs that wait for it"
    found = admin.signals.of(lease.job_id)
    assert (found.waits_for, found.shared, [each.shared for each in found.sent]) == ("open", True, [True])
    with pytest.raises(Refused, match="arrives once"):
        admin.signals.send_shared("open", "false")
    admin.signals.send_shared("open", "false", replace=True)


@pytest.mark.parametrize("text", ["tenure:sealed:1:key:text", "tenure:sealed:altered", "tenure:offloaded:1:5:aa"])
def test_the_text_of_a_signal_is_not_taken_for_what_stands_for_another_value(
    text: str, store: Store, admin: Admin
) -> None:
    admin.signals.send_shared("open", f'"{text}"')
    (sent,) = store.signals(None)
    assert not is_sealed(sent.value)
    assert not is_offloaded(sent.value)
    assert json.loads(sent.value) == text


def test_a_signal_that_no_handler_could_send_is_refused(store: Store, admin: Admin) -> None:
    with pytest.raises(InvalidArguments, match="NUL"):
        admin.signals.send_shared("open", '"\\u0000"')
    assert store.signals(None) == []
