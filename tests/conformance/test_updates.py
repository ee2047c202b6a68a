"""`updates`: what has become of many jobs, in one read that says nothing of those that stayed as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from conformance.factories import World, bring, finish, look, put, running, start
from tenure.core.lifecycle import ENDED, Cancelled, Completed, Failed, Lease, Outcome, Released, State
from tenure.ports import GONE, Draft, Progress, Status, Store, Update


def first(store: Store, job_id: str) -> Update:
    (update,) = store.updates({job_id: ""})
    return update


def status_in(store: Store, job_id: str) -> Status:
    view = look(store, job_id)
    return Status(**{each.name: getattr(view, each.name) for each in fields(Status)})


@pytest.mark.parametrize("state", State)
def test_an_update_is_what_get_shows(state: State, store: Store) -> None:
    job_id = bring(store, state).job_id

    update = first(store, job_id)

    assert (update.id, update.status) == (job_id, status_in(store, job_id))
    assert update.result == ('"done"' if state is State.COMPLETED else None)


def test_a_job_that_stayed_as_it_was_is_not_returned(store: Store) -> None:
    ids = [bring(store, state).job_id for state in State if state is not State.QUEUED] + [put(store)]
    marks = {update.id: update.mark for update in store.updates(dict.fromkeys(ids, ""))}

    assert set(marks) == set(ids)
    assert store.updates(marks) == []
    assert [update.id for update in store.updates({**marks, ids[2]: "another mark"})] == [ids[2]]
    assert store.updates({}) == []


def test_a_job_that_is_not_there_is_told_once_and_again_when_it_goes(store: Store) -> None:
    never, strange = "00000000-0000-0000-0000-0000000000ff", "no id at all"
    asked = {never: "", strange: ""}

    assert sorted(store.updates(asked)) == [Update(never, GONE, None, None), Update(strange, GONE, None, None)]
    assert store.updates({never: GONE, strange: GONE}) == []
    store.enqueue([Draft(id=never, task="work", payload="{}")])
    mark = first(store, never).mark
    assert mark != GONE
    store.delete([never])
    assert store.updates({never: mark}) == [Update(never, GONE, None, None)]


REPORTS: list[dict[str, Any]] = [
    {"fraction": 0.5},
    {"stage": "loading"},
    {"message": "row 7"},
    {"fraction": 0.75, "stage": "storing", "message": "row 8"},
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: " and ".join(report))
def test_each_report_is_an_update(report: dict[str, Any], store: Store) -> None:
    """All in one millisecond of the store's clock, which stands still."""
    lease = running(store)
    mark = first(store, lease.job_id).mark

    store.progress([Progress(lease=lease, **report)])
    (update,) = store.updates({lease.job_id: mark})

    assert update.status == status_in(store, lease.job_id)
    assert (update.status.progress, update.status.stage) == (report.get("fraction"), report.get("stage"))


STEPS: dict[str, Callable[[Store, Lease], object]] = {
    "completed": lambda store, lease: finish(store, lease, Completed("1")),
    "failed": lambda store, lease: finish(store, lease, Failed("no", retry_in=60)),
    "failed at once": lambda store, lease: finish(store, lease, Failed("no", retry_in=0)),
    "dead": lambda store, lease: finish(store, lease, Failed("no", final=True)),
    "cancelled": lambda store, lease: finish(store, lease, Cancelled("no")),
    "released": lambda store, lease: finish(store, lease, Released("drained")),
    "asked to stop": lambda store, lease: store.cancel([lease.job_id], "enough"),
}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_an_update(name: str, store: Store) -> None:
    lease = running(store)
    mark = first(store, lease.job_id).mark

    STEPS[name](store, lease)
    (update,) = store.updates({lease.job_id: mark})

    assert update.status == status_in(store, lease.job_id)
    assert store.updates({lease.job_id: update.mark}) == []


@pytest.mark.parametrize("outcome", [Released("drained"), Failed("no", retry_in=0)], ids=repr)
def test_what_left_its_state_and_came_back_to_it_has_changed(outcome: Outcome, store: Store) -> None:
    worker = start(store)
    lease = running(store, worker)
    mark = first(store, lease.job_id).mark

    finish(store, lease, outcome)
    while not (claimed := store.claim(worker, {"default": 1}, 1)):
        store.promote()
    (update,) = store.updates({lease.job_id: mark})

    assert claimed[0].id == lease.job_id
    assert update.status is not None
    assert (update.status.state, update.status.attempt) == (State.PROCESSING, 2)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_a_replay_is_an_update_even_if_it_ends_the_same_way(state: State, world: World) -> None:
    store = world.store()
    worker = start(store)
    ways: dict[State, Outcome] = {
        State.COMPLETED: Completed("1"),
        State.DEAD: Failed("no", final=True),
        State.CANCELLED: Cancelled("no"),
    }
    lease = running(store, worker)
    finish(store, lease, ways[state])
    mark = first(store, lease.job_id).mark

    store.replay([lease.job_id])
    finish(store, Lease(lease.job_id, store.claim(worker, {"default": 1}, 1)[0].attempt, worker), ways[state])

    (update,) = store.updates({lease.job_id: mark})
    assert update.status == status_in(store, lease.job_id)


def test_few_are_returned_at_once_and_the_others_later(store: Store) -> None:
    seen = {put(store): "" for _ in range(250)}  # more than one script of Redis looks at

    found: list[str] = []
    while updates := store.updates(seen, limit=40):
        assert len(updates) <= 40
        found += [update.id for update in updates]
        seen |= {update.id: update.mark for update in updates}

    assert sorted(found) == sorted(seen)
    assert len(found) == len(seen)


def test_a_thousand_are_one_read(store: Store) -> None:
    ids = [put(store) for _ in range(1000)]

    assert len(store.updates(dict.fromkeys(ids, ""), limit=1000)) == 1000
