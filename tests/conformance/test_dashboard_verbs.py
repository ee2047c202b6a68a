"""What the dashboard shows and does beyond the life of a job: logs, late writes, edits, and the memory of workers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from conformance.factories import (
    DAY,
    World,
    begin_guarded,
    bring,
    claim,
    claim_one,
    draft,
    finish,
    look,
    made,
    memory_of,
    put,
    running,
    start,
)
from tenure.core.lifecycle import Completed, Crashed, Failed, Lease, Released, State
from tenure.errors import BadData
from tenure.ports import Edit, Landed, NotLanded, OnceRecord, Progress, Store

NOBODY = "00000000-0000-0000-0000-000000000000"
bad_text = pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"], ids=["nul", "surrogate"])


def log(store: Store, lease: Lease, lines: str) -> bool:
    return store.progress([Progress(lease=lease, log=lines)]) == [True]


def memory(store: Store) -> dict[str, int | None]:
    return {view.identity.id: view.memory for view in store.workers(dead=True)}


# ── logs ──


def test_the_last_lines_of_each_attempt_are_kept(store: Store) -> None:
    first = running(store)
    assert store.logs(first.job_id) == {}
    assert log(store, first, "one")
    assert log(store, first, "one\ntwo")
    assert store.progress([Progress(lease=first, fraction=0.5)]) == [True]
    finish(store, first, Released("drain"))
    second = claim_one(store, start(store))
    assert store.logs(first.job_id) == {1: "one\ntwo"}
    assert log(store, second, "again")
    finish(store, second, Completed())

    assert store.logs(first.job_id) == {1: "one\ntwo", 2: "again"}

    store.replay([first.job_id])
    third = claim_one(store, start(store))
    assert store.progress([Progress(lease=third, log="older"), Progress(lease=third, log="")]) == [True, True]
    assert list(store.logs(first.job_id).items()) == [(1, "one\ntwo"), (2, "again"), (3, "")]


def test_a_log_comes_with_the_rest_of_a_report(store: Store) -> None:
    lease, other = running(store), running(store)

    store.progress(
        [Progress(lease=lease, fraction=0.5, message="half", checkpoint="1", log="l"), Progress(lease=other)]
    )

    view = look(store, lease.job_id)
    assert (view.progress, view.message, view.checkpoint) == (0.5, "half", "1")
    assert (store.logs(lease.job_id), store.logs(other.job_id), store.logs(NOBODY)) == ({1: "l"}, {}, {})


def test_a_report_of_nothing_but_a_log_is_a_sign_of_life(world: World) -> None:
    store = world.store()
    lease = running(store, start(store, lease=DAY), stale_after=60.0)
    store.progress([Progress(lease=lease, fraction=0.5, stage="fetch", message="half", checkpoint="1")])
    before = look(store, lease.job_id)
    world.advance(50)

    assert log(store, lease, "still here")

    after = look(store, lease.job_id)
    assert after.last_activity_at == store.now()
    assert (after.progress, after.stage, after.message, after.checkpoint) == (0.5, "fetch", "half", "1")
    assert after.state is before.state is State.PROCESSING
    world.advance(50)
    assert store.hung([lease.worker_id]) == []
    world.advance(20)
    assert [each.lease for each in store.hung([lease.worker_id])] == [lease]


def test_only_the_owner_logs(store: Store) -> None:
    lease = running(store)
    assert log(store, lease, "mine")

    for wrong in (
        lease._replace(attempt=2),
        lease._replace(attempt=0),
        lease._replace(worker_id="host-0-nobody"),
        lease._replace(job_id=NOBODY),
    ):
        assert not log(store, wrong, "stolen"), wrong
    finish(store, lease, Released("drain"))
    assert not log(store, lease, "late")

    assert store.logs(lease.job_id) == {1: "mine"}
    assert store.logs(NOBODY) == {}


def test_logs_go_with_their_job(world: World) -> None:
    store = world.store()
    deleted, pruned = running(store), running(store)
    for lease in (deleted, pruned):
        assert log(store, lease, "lines")
        finish(store, lease, Completed())

    store.delete([deleted.job_id])
    assert (store.logs(deleted.job_id), store.logs(pruned.job_id)) == ({}, {1: "lines"})
    world.advance(8 * DAY)
    assert store.prune(keep=7 * DAY, keep_dead=None) == 1

    for lease in (deleted, pruned):
        assert store.logs(lease.job_id) == {}
        again = running(store, id=lease.job_id)
        assert store.logs(lease.job_id) == {}
        assert log(store, again, "new")
        assert store.logs(lease.job_id) == {1: "new"}


@bad_text
def test_a_bad_log_refuses_its_batch(bad: str, store: Store) -> None:
    good, other = running(store), running(store)
    before = memory_of(store, good.job_id)

    with pytest.raises(BadData):
        store.progress([Progress(lease=good, log="fine"), Progress(lease=other, log=bad)])

    assert memory_of(store, good.job_id) == before
    assert (store.logs(good.job_id), store.logs(other.job_id)) == ({}, {})


def test_a_log_is_kept_letter_by_letter(store: Store) -> None:
    lease = running(store)
    text = "é 漢字 עברית 😀 \u2028 \x01 \x7f \t\r\n ' \" \\ \\u0000 %s :name $1 ?" + "x" * 70_000

    assert log(store, lease, text)

    assert store.logs(lease.job_id) == {1: text}


# ── writes that came too late ──


def late(store: Store, outcome: Failed | Crashed | Released) -> Lease:
    lease = running(store)
    finish(store, lease, outcome)
    return lease


def evidence(store: Store, lease: Lease) -> Mapping[str, str]:
    (found,) = [each for each in store.attempts(lease.job_id) if each.attempt == lease.attempt]
    return found.evidence


def test_the_attempt_keeps_what_was_refused(store: Store) -> None:
    failed = late(store, Failed("boom"))
    crashed = late(store, Crashed("the process is gone", evidence={"signal": "9"}))
    views = look(store, crashed.job_id), look(store, failed.job_id)

    store.refused([(crashed, "finish: it is queued, after attempt 1"), (failed, "progress: 'é' \"\\")])

    assert evidence(store, crashed) == {"signal": "9", "refused": "finish: it is queued, after attempt 1"}
    assert evidence(store, failed) == {"refused": "progress: 'é' \"\\"}
    assert (look(store, crashed.job_id), look(store, failed.job_id)) == views


def test_the_first_word_about_a_refused_write_stands(store: Store) -> None:
    lease = late(store, Released("drain"))

    store.refused([(lease, "first"), (lease, "second")])
    store.refused([(lease, "third")])

    assert evidence(store, lease) == {"refused": "first"}


def test_only_the_attempt_that_was_refused_says_so(store: Store) -> None:
    lease = late(store, Released("drain"))
    again = claim_one(store, start(store))
    finish(store, again, Failed("boom"))
    completed, owned = bring(store, State.COMPLETED), running(store)
    before = [memory_of(store, each.job_id) for each in (lease, completed, owned)]

    store.refused([])
    store.refused(
        [
            (lease._replace(worker_id=again.worker_id), "another worker's"),
            (lease._replace(attempt=3), "an attempt that never was"),
            (lease._replace(job_id=NOBODY), "no such job"),
            (completed, "it completed, and left no row"),
            (owned, "it still runs"),
        ]
    )
    assert [memory_of(store, each.job_id) for each in (lease, completed, owned)] == before

    store.refused([(owned, "it still runs"), (again, "that one")])
    assert (evidence(store, lease), evidence(store, again)) == ({}, {"refused": "that one"})


@bad_text
def test_a_bad_word_about_a_refused_write_is_refused(bad: str, store: Store) -> None:
    good, other = late(store, Failed("boom")), late(store, Failed("boom"))

    with pytest.raises(BadData):
        store.refused([(good, "fine"), (other, bad)])

    assert (evidence(store, good), evidence(store, other)) == ({}, {})


def test_a_lease_that_was_refused_still_hears_how_it_ended(store: Store) -> None:
    lease = running(store)
    store.finish([(lease, Failed("boom", final=True))])
    store.refused([(lease, "late")])

    assert store.finish([(lease, Failed("boom", final=True))]) == [Landed(State.DEAD)]


# ── edit and run again ──


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_a_job_is_run_again_with_what_it_was_edited_to(state: State, world: World) -> None:
    store = world.store()
    job_id = put(store, payload='{"n": 1}', meta='{"trace": "a"}')
    lease = claim_one(store, start(store))
    said = Progress(lease=lease, fraction=0.5, stage="fetch", message="half", checkpoint='"here"')
    assert store.progress([said]) == [True]
    if state is State.CANCELLED:
        store.cancel([job_id], "wrong")
    finish(store, lease, Completed('"done"') if state is State.COMPLETED else Failed("boom", final=True))
    assert look(store, job_id).state is state
    world.advance(10)

    edits = {job_id: Edit('{"n": 2}', '{"edited": "yes"}')}
    assert store.replay([job_id], edits=edits) == {job_id: Landed(State.QUEUED)}

    view = look(store, job_id)
    assert (view.payload, view.meta, view.attempt, view.run_at) == ('{"n": 2}', {"edited": "yes"}, 1, store.now())
    assert (view.progress, view.stage, view.message, view.checkpoint) == (None, None, None, None)
    assert (view.result, view.error, view.ended_at, view.cancel_reason) == (None, None, None, None)
    assert (view.failures, view.crashes, view.crashes_total) == (0, 0, 0)
    (claimed,) = claim(store, start(store))
    assert (claimed.id, claimed.payload, claimed.meta) == (job_id, '{"n": 2}', '{"edited": "yes"}')
    assert (claimed.attempt, claimed.checkpoint) == (2, None)


def test_only_the_edited_ones_begin_anew(store: Store) -> None:
    edited, plain = running(store, payload="1"), running(store, payload="1")
    for lease in (edited, plain):
        store.progress([Progress(lease=lease, fraction=0.5, message="half", checkpoint="7")])
        store.once(lease, "mail", '"sent"')
        finish(store, lease, Failed("boom", final=True))

    store.replay([edited.job_id, plain.job_id], edits={edited.job_id: Edit("2", "{}")})

    view, other = look(store, edited.job_id), look(store, plain.job_id)
    assert (view.payload, view.progress, view.message, view.checkpoint) == ("2", None, None, None)
    assert (other.payload, other.progress, other.message, other.checkpoint) == ("1", 0.5, "half", "7")
    worker = start(store)
    for claimed in claim(store, worker, 2):
        assert store.once(Lease(claimed.id, claimed.attempt, worker), "mail", None) == OnceRecord('"sent"')


def test_an_edit_of_a_job_that_is_not_replayed_is_a_mistake(store: Store) -> None:
    dead, other = bring(store, State.DEAD), bring(store, State.DEAD)
    before = memory_of(store, dead.job_id), memory_of(store, other.job_id)

    with pytest.raises(ValueError, match=other.job_id):
        store.replay([dead.job_id], edits={dead.job_id: Edit("2", "{}"), other.job_id: Edit("3", "{}")})

    assert (memory_of(store, dead.job_id), memory_of(store, other.job_id)) == before


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.PROCESSING])
def test_an_edit_does_not_reach_a_live_job(state: State, store: Store) -> None:
    job_id = bring(store, state).job_id
    before = memory_of(store, job_id)

    edit = Edit('{"n": 2}', "{}")
    answers = store.replay([job_id, NOBODY], edits={job_id: edit, NOBODY: edit})

    assert isinstance(answers[job_id], NotLanded)
    assert answers[NOBODY] is None
    assert memory_of(store, job_id) == before


def test_an_edited_job_takes_no_key_that_is_held_and_keeps_its_own(store: Store) -> None:
    dead = bring(store, State.DEAD, unique="k").job_id
    holder, edits = put(store, unique="k"), {dead: Edit("2", "{}")}
    before = memory_of(store, dead)

    (answer,) = store.replay([dead], edits=edits).values()
    assert isinstance(answer, NotLanded)
    assert holder in answer.stands
    assert memory_of(store, dead) == before

    store.cancel([holder], "make room")
    assert store.replay([dead], edits=edits) == {dead: Landed(State.QUEUED)}
    assert look(store, dead).unique == "k"
    assert store.enqueue([draft(unique="k")])[0].id == dead


def test_a_guards_job_is_not_replayed_with_an_edit_either(store: Store) -> None:
    name, guard = made(store).name, start(store, runner="guard", queues=())
    job_id = begin_guarded(store, name, guard)
    finish(store, Lease(job_id, 1, guard), Failed("exit 1", final=True))
    before = memory_of(store, job_id)

    (answer,) = store.replay([job_id], edits={job_id: Edit("2", "{}")}).values()

    assert isinstance(answer, NotLanded)
    assert memory_of(store, job_id) == before


@bad_text
@pytest.mark.parametrize("name", ["payload", "meta"])
def test_a_bad_edit_refuses_its_batch(name: str, bad: str, store: Store) -> None:
    good, other = bring(store, State.DEAD), bring(store, State.DEAD)
    before = memory_of(store, good.job_id), memory_of(store, other.job_id)
    edit = Edit("2", "{}")

    with pytest.raises(BadData):
        store.replay([good.job_id, other.job_id], edits={good.job_id: edit, other.job_id: edit._replace(**{name: bad})})

    assert (memory_of(store, good.job_id), memory_of(store, other.job_id)) == before


# ── the memory of workers ──


def test_a_worker_shows_the_size_that_was_told_last(store: Store) -> None:
    large, small = start(store), start(store)
    assert memory(store) == {large: None, small: None}

    assert store.renew([large, small], memory={large: 40 << 30}) == {large, small}
    assert memory(store) == {large: 40 << 30, small: None}
    store.renew([large, small], notes={large: "its loop is blocked"}, memory={small: 1_000})
    assert memory(store) == {large: 40 << 30, small: 1_000}
    store.renew([large, small])
    store.renew([small], memory={large: 1, small: 2_000})

    assert memory(store) == {large: 40 << 30, small: 2_000}


def test_the_dead_show_the_size_they_died_with(store: Store) -> None:
    worker = start(store)
    store.renew([worker], memory={worker: 7})
    store.declare_dead([worker])

    assert store.renew([worker], memory={worker: 8}) == frozenset()
    assert memory(store) == {worker: 7}
