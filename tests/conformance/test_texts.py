"""Texts are rewritten one by one, wherever each is kept, and nothing else about a job changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, permutations
from threading import Event
from typing import Any

import pytest

from conformance.factories import World, bring, claim, claim_one, draft, finish, look, put, running, start
from tenure.core.lifecycle import Completed, Failed, Lease, State
from tenure.errors import BadData
from tenure.ports import EDITS, Edit, Field, Progress, Store, Text

ABSENT = "00000000-0000-0000-0000-00000000ffff"


def busy(store: Store) -> str:
    """A processing job with a text in every field, and a past attempt; it has waited for a signal, and was edited."""
    worker = start(store)
    lease = running(store, worker, payload='{"n":1}')
    store.progress([Progress(lease=lease, log="log 1")])
    assert finish(store, lease, Failed("error 1", final=True)) is State.DEAD
    store.replay([lease.job_id], edits={lease.job_id: Edit('{"n":2}', f'{{"who":"ada","{EDITS}":"[1]"}}')})
    lease = claim_one(store, worker)
    store.progress([Progress(lease=lease, stage="stage", message="message", checkpoint='{"c":1}', log="log 2")])
    store.once(lease, "key", '"once"')
    store.signal(lease.job_id, "own:go", '"now"')
    return lease.job_id


FIELDS: dict[Field, tuple[str, str]] = {
    "payload": ('{"n":2}', '{"n":3}'),
    "checkpoint": ('{"c":1}', '{"c":2}'),
    "stage": ("stage", "later"),
    "message": ("message", "another"),
    "meta": (f'{{"who":"ada","{EDITS}":"[1]"}}', f'{{"who":"ada","{EDITS}":"[2]"}}'),
}


def test_fields_of_a_running_job_are_rewritten_and_nothing_else(store: Store) -> None:
    job_id = busy(store)
    before = look(store, job_id)

    for field, (old, new) in FIELDS.items():
        assert store.rewrite([(Text(field, job_id, "", old), new)]) == 1

    changed: dict[str, Any] = {field: new for field, (_, new) in FIELDS.items()}
    assert look(store, job_id) == replace(before, **{**changed, "meta": {"who": "ada", EDITS: "[2]"}})


def test_texts_that_have_changed_are_left(store: Store) -> None:
    job_id = busy(store)
    before = look(store, job_id)

    for field, (old, new) in FIELDS.items():
        assert store.rewrite([(Text(field, job_id, "", new), old), (Text(field, ABSENT, "", old), new)]) == 0

    assert look(store, job_id) == before
    assert store.get(ABSENT) is None


def test_result_and_error_of_ended_jobs_are_rewritten(store: Store) -> None:
    done, dead = bring(store, State.COMPLETED).job_id, bring(store, State.DEAD).job_id

    changes = [(Text("result", done, "", '"done"'), '"re"'), (Text("error", dead, "", "for good"), "other")]
    assert store.rewrite([*changes, (Text("attempt", dead, "1", "for good"), "other")]) == 3

    assert (look(store, done).result, look(store, dead).error) == ('"re"', "other")
    (attempt,) = store.attempts(dead)
    assert (attempt.error, attempt.outcome) == ("other", "failed")


def test_attempts_logs_records_and_signals_are_rewritten_one_by_one(store: Store) -> None:
    job_id = busy(store)
    changes = [
        (Text("attempt", job_id, "1", "error 1"), "error one"),
        (Text("log", job_id, "2", "log 2"), "log two"),
        (Text("once", job_id, "key", '"once"'), '"again"'),
        (Text("signal", job_id, "own:go", '"now"'), '"later"'),
    ]
    wrong = [
        (Text("attempt", job_id, "2", "error 1"), "x"),
        (Text("log", job_id, "1", "log 2"), "x"),
        (Text("once", job_id, "other", '"once"'), "x"),
        (Text("signal", job_id, "own:other", '"now"'), "x"),
        (Text("attempt", ABSENT, "1", "error 1"), "x"),
    ]

    assert store.rewrite([*changes, *wrong]) == 4

    assert [each.error for each in store.attempts(job_id)] == ["error one"]
    assert store.logs(job_id) == {1: "log 1", 2: "log two"}
    assert store.records(job_id) == {"key": '"again"'}
    (signal,) = store.signals(job_id)
    assert (signal.key, signal.value) == ("own:go", '"later"')


def test_shared_signals_and_notes_keep_their_time_to_live(world: World) -> None:
    store = world.store()
    note = '{"by":"me","state":"done","value":"1"}'
    store.signal(None, "shared:go", '"now"')
    (sent,) = store.signals(None)
    store.swap("once:k", None, note, ttl=60.0)
    store.swap("once:forever", None, note)
    new = note.replace('"1"', '"2"')

    changes = [(Text("note", key, "", note), new) for key in ("once:k", "once:forever", "once:absent")]
    assert store.rewrite([(Text("signal", "", "shared:go", '"now"'), '"later"'), *changes]) == 3

    assert store.signals(None) == [sent._replace(value='"later"')]
    assert store.notes("once:") == {"once:forever": new, "once:k": new}
    assert store.rewrite([(Text("note", "once:k", "", note), note)]) == 0
    world.advance(61.0)
    assert store.notes("once:") == {"once:forever": new}


def test_signals_go_on_after_a_key(store: Store) -> None:
    for key in ("shared:a", "shared:b", "shared:c"):
        store.signal(None, key, "1")

    assert [each.key for each in store.signals(None, start="shared:a")] == ["shared:b", "shared:c"]
    assert [each.key for each in store.signals(None, ["shared:a", "shared:c"], start="shared:b")] == ["shared:c"]
    assert store.signals(None, start="shared:c") == []


def test_records_are_those_of_one_job(store: Store) -> None:
    lease, other = running(store), running(store)
    store.once(lease, "b", "2")
    store.once(lease, "a", "1")
    store.once(other, "c", "3")

    assert list(store.records(lease.job_id).items()) == [("a", "1"), ("b", "2")]
    assert store.records(put(store)) == {}
    assert store.records(ABSENT) == {}


def test_a_job_goes_on_after_its_texts_were_rewritten(store: Store) -> None:
    lease = running(store, payload='{"n":1}')

    assert store.rewrite([(Text("payload", lease.job_id, "", '{"n":1}'), '{"n":2}')]) == 1

    assert finish(store, lease, Completed("1")) is State.COMPLETED


def test_text_that_no_store_can_keep_is_refused(store: Store) -> None:
    job_id = put(store, payload='{"n":1}')

    with pytest.raises(BadData):
        store.rewrite([(Text("payload", job_id, "", '{"n":1}'), "a\x00b")])
    assert look(store, job_id).payload == '{"n":1}'


def test_what_is_rewritten_while_it_is_claimed_is_claimed(world: World) -> None:
    """A claim that skipped such jobs would take the queue for empty. Its writer may have each locked at some moment."""
    here, there = world.store(), world.store()
    worker = start(here)
    last: list[str] = []
    over = Event()

    def rewrite() -> None:
        for old, new in cycle(permutations(['"one"', '"two"'])):
            if over.wait(0.001):
                return
            for job_id in last:
                there.rewrite([(Text("payload", job_id, "", old), new)])

    with ThreadPoolExecutor(1) as threads:
        rewriting = threads.submit(rewrite)
        try:
            for _ in range(12):
                given = here.enqueue([draft(payload='"one"') for _ in range(200)])
                last[:] = [each.id for each in given[-10:]]
                claimed = claim(here, worker, len(given))
                assert len(claimed) >= len(given) - len(last)
                claimed += claim(here, worker, len(given))
                here.finish([(Lease(each.id, each.attempt, worker), Completed()) for each in claimed])
        finally:
            over.set()
        rewriting.result()
