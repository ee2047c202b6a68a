"""A value that cannot be kept is refused, and takes nothing else with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from conformance.factories import assert_sound, draft, everything, finish, look, memory_of, put, running
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Outcome, Released, Snoozed, State
from tenure.errors import BadData
from tenure.ports import Progress, Store

LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
NUL, SURROGATE = "a\x00b", "a\ud800b"
bad_text = pytest.mark.parametrize("bad", [NUL, SURROGATE], ids=["nul", "surrogate"])


@bad_text
@pytest.mark.parametrize("name", ["task", "payload", "queue", "unique", "meta"])
def test_a_bad_draft_refuses_its_batch(name: str, bad: str, store: Store) -> None:
    with pytest.raises(BadData):
        store.enqueue([draft(), draft(**{name: bad}), draft()])

    assert everything(store) == []


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_out_of_bounds_is_refused(priority: int, store: Store) -> None:
    with pytest.raises(BadData):
        store.enqueue([draft(), draft(priority=priority)])

    assert everything(store) == []


@pytest.mark.parametrize("bad", [{"priority": 101}, {"payload": NUL}, {"meta": SURROGATE}], ids=str)
def test_a_bad_draft_refuses_a_great_batch(bad: dict[str, Any], store: Store) -> None:
    batch = [draft() for _ in range(1_000)]

    with pytest.raises(BadData):
        store.enqueue([*batch, draft(**bad), draft()])

    assert everything(store) == []
    assert all(answer.created for answer in store.enqueue(batch))


@bad_text
@pytest.mark.parametrize("name", ["stage", "message", "checkpoint"])
def test_bad_progress_refuses_its_batch(name: str, bad: str, store: Store) -> None:
    good, other = running(store), running(store)
    before = memory_of(store, good.job_id)
    said: dict[str, Any] = {name: bad}

    with pytest.raises(BadData):
        store.progress([Progress(lease=good, message="fine"), Progress(lease=other, **said)])

    assert memory_of(store, good.job_id) == before


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_out_of_bounds_is_refused(fraction: float, store: Store) -> None:
    lease = running(store)

    with pytest.raises(BadData):
        store.progress([Progress(lease=lease, fraction=fraction)])

    assert look(store, lease.job_id).progress is None


@bad_text
@pytest.mark.parametrize("kind", [Completed, Failed, Released, Cancelled, Crashed])
def test_a_bad_outcome_refuses_its_batch_and_halving_finds_it(kind: type[Any], bad: str, store: Store) -> None:
    good, culprit = running(store), running(store)
    outcome: Outcome = kind(bad)
    before = memory_of(store, good.job_id), memory_of(store, culprit.job_id)

    with pytest.raises(BadData):
        store.finish([(good, Completed()), (culprit, outcome)])
    assert (memory_of(store, good.job_id), memory_of(store, culprit.job_id)) == before

    assert finish(store, good, Completed()) is State.COMPLETED
    with pytest.raises(BadData):
        store.finish([(culprit, outcome)])
    assert finish(store, culprit, Failed("its result could not be stored")) is State.SCHEDULED
    assert_sound(store)


@bad_text
def test_bad_words_of_a_snooze_and_of_evidence_are_refused(bad: str, store: Store) -> None:
    lease = running(store)
    outcomes: list[Outcome] = [
        Snoozed(1, bad),
        Crashed("died", evidence={bad: "x"}),
        Crashed("died", evidence={"x": bad}),
    ]
    for outcome in outcomes:
        with pytest.raises(BadData):
            store.finish([(lease, outcome)])
        with pytest.raises(BadData):
            store.settle(lease.worker_id, {}, outcome)

    assert look(store, lease.job_id).state is State.PROCESSING


@bad_text
def test_bad_words_of_once_and_cancel_are_refused(bad: str, store: Store) -> None:
    lease = running(store)

    with pytest.raises(BadData):
        store.once(lease, "key", bad)
    with pytest.raises(BadData):
        store.cancel([lease.job_id], bad)

    found = store.once(lease, "key", None)
    assert found is not None
    assert found.value is None
    assert look(store, lease.job_id).cancel_reason is None


def test_text_of_every_script_is_kept_letter_by_letter(store: Store) -> None:
    text = "é ß 漢字 עברית 😀 \u2028 \x01 \x7f ' \" \\ \\u0000 %s :name $1 ?"
    job_id = put(store, payload=text, queue=text, task=text, unique=text)

    view = look(store, job_id)
    assert (view.payload, view.queue, view.task, view.unique) == (text, text, text, text)


@pytest.mark.parametrize("number", [1, 60])
@pytest.mark.parametrize("text", ["\\N", "\\.", "\\", "", "\n\\.\n", "\t\r\n\v\f\b\\t\\x41", "{}", ",\"'"], ids=repr)
def test_text_that_means_something_to_a_driver_is_text(text: str, number: int, store: Store) -> None:
    batch = [draft(payload=text, queue=text, task=text) for _ in range(number)]
    store.enqueue(batch)

    view = look(store, batch[-1].id)
    assert (view.payload, view.queue, view.task) == (text, text, text)


@pytest.mark.parametrize("number", [1, 60])
def test_the_first_and_the_last_instants_of_the_calendar_are_kept(number: int, store: Store) -> None:
    for instant in (datetime.min.replace(tzinfo=UTC), datetime(1969, 7, 20, 20, 17, tzinfo=UTC), LAST):
        batch = [draft(run_at=instant) for _ in range(number)]
        store.enqueue(batch)
        assert look(store, batch[-1].id).run_at == instant


def test_a_long_text_is_kept_whole(store: Store) -> None:
    lease = running(store, payload='"' + "x" * 262_142 + '"')
    finish(store, lease, Completed('"' + "é" * 131_071 + '"'))

    view = look(store, lease.job_id)
    assert (len(view.payload), len(view.result or "")) == (262_144, 131_073)
