"""Codecs: what they refuse, where the values of jobs pass through them, and what a process without the key does."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from conformance.factories import World, claim, claim_one, draft, finish, look, put, running, start
from conformance.scene import Scene
from tenure import Job, Tenure
from tenure.app.backends import new_alarm, shown
from tenure.codecs import AesSiv
from tenure.core.clock import Clock, system_clock
from tenure.core.lifecycle import GUARD, Completed, Failed, Lease, Released, Snoozed, State
from tenure.core.sealed import MARK, is_sealed
from tenure.errors import InvalidArguments, InvalidOption, JobFailed, Locked, StoreAway
from tenure.events import LOST, NO_KEY, NOT_FETCHED, UNKNOWN_TASK
from tenure.notifiers.poll import PollNotifier
from tenure.operations.admin import Admin
from tenure.operations.alerts import _undelivered, open_incidents
from tenure.operations.job_search import parsed
from tenure.operations.jobs import JobReads
from tenure.ports import (
    AttemptView,
    Claimed,
    Draft,
    Filter,
    Input,
    JobView,
    Page,
    Progress,
    SignalView,
    Status,
    Store,
    Text,
    Update,
)
from tenure.ports.schedules import Change, Schedule, Tick
from tenure.stores.memory import MemoryStore
from tenure.stores.sealed import SealedStore, beneath, history, sealed
from tenure.stores.sealed.rotation import rotate
from tenure.stores.sealed.values import Seal
from waiting import until

OLD, NEW, OTHER = AesSiv.new_key(), AesSiv.new_key(), AesSiv.new_key()

# ── The codec ──


def test_a_value_is_read_where_it_was_written_and_nowhere_else() -> None:
    codec = AesSiv([NEW])
    made = codec.encode(b"data", "result 1")

    assert b"data" not in made
    assert codec.decode(made, "result 1", codec.key) == b"data"
    for data, about in ((made, "result 2"), (made, "payload 1"), (made[:-1], "result 1"), (b"", "result 1")):
        with pytest.raises(ValueError, match="key"):
            codec.decode(data, about, codec.key)


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    before, both, after = AesSiv(OLD), AesSiv(f"{NEW}, {OLD}"), AesSiv([NEW])

    assert both.key == after.key != before.key
    assert both.decode(before.encode(b"x", "a"), "a", before.key) == b"x"
    with pytest.raises(LookupError):
        after.decode(before.encode(b"x", "a"), "a", before.key)
    assert NEW not in repr(both)


BAD_KEYS = {
    "none": [],
    "an empty text": "",
    "short": "short",
    "a good and a bad one": [NEW, "x" * 43 + "!"],
    "no ASCII": ["ä" * 43],
    "cut": [NEW[:60]],
}


@pytest.mark.parametrize("keys", BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_bad_key_is_refused_and_not_shown(keys: Any) -> None:
    with pytest.raises(InvalidOption, match="tenure codec key") as refused:
        AesSiv(keys)
    assert not any(key and key in str(refused.value) for key in keys if len(key) > 5)


@pytest.mark.parametrize(
    "keys",
    [None, NEW.encode(), [NEW.encode()], [NEW, None], 5],
    ids=["unset", "bytes", "a list of bytes", "one unset", "a number"],
)
def test_what_is_no_key_is_told_by_its_type(keys: Any) -> None:
    """An unset variable is the likeliest mistake of a deploy."""
    with pytest.raises(InvalidOption, match="codec: expected keys as text, one or several, got a") as refused:
        AesSiv(keys)
    assert NEW not in str(refused.value)


@pytest.mark.parametrize("codec", [NEW, NEW.encode(), [NEW]], ids=["a text", "bytes", "a list"])
def test_a_key_in_place_of_a_codec_is_not_shown(codec: Any) -> None:
    with pytest.raises(InvalidOption, match=r"codec: expected one like AesSiv\(keys\), got a") as refused:
        Tenure("sqlite:///x.db", codec=codec)
    assert NEW[:20] not in str(refused.value)


class Plain:
    """A codec with one fault at a time."""

    key = "k1"

    def encode(self, data: bytes, about: str) -> bytes:
        return data

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        return data


class Random(Plain):
    def encode(self, data: bytes, about: str) -> bytes:
        import secrets

        return secrets.token_bytes(8) + data

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        return data[8:]


class Named(Plain):
    key = "a key"


class Texts(Plain):
    def encode(self, data: bytes, about: str) -> Any:
        return data.hex()

    def decode(self, data: Any, about: str, key: str) -> bytes:
        return bytes.fromhex(data)


class Anywhere(Plain):
    def encode(self, data: bytes, about: str) -> bytes:
        return data[::-1]

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        return data[::-1]


class Untold(Texts):
    def encode(self, data: bytes, about: str) -> bytes:
        return about.encode() + data

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        if not data.startswith(about.encode()):
            raise OSError("of the library")
        return data.removeprefix(about.encode())


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Plain(), "it has to encrypt"),
        (Random(), "deterministic"),
        (Named(), "named"),
        (Texts(), "its encode has to return bytes, got a str"),
        (Anywhere(), "it decodes a value of one place at another one"),
        (Untold(), "its decode has to raise ValueError, else it is tried again for ever; it raised an OSError"),
        ("x", "AesSiv"),
    ],
)
def test_an_app_refuses_a_codec_that_is_none(codec: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Tenure("sqlite:///x.db", codec=codec)


# ── The seam ──

#: The verbs that carry no text of an app's code: names, times, states, counts, what the engine or an operator says.
PASSED_ON = frozenset(
    (
        *("capabilities", "url", "migrate", "open", "close", "upkeep", "transaction", "now", "counts", "ended"),
        *("cancel", "promote", "promote_now", "delete", "prune", "pause", "paused", "queues", "refused", "skip", "ask"),
        "ids",
        *("admit", "register", "renew", "declare_dead", "declare_expired", "rescue", "redelivered", "hung"),
        *("solo_waiting", "workers", "outdated", "flows", "members", "edges", "waits", "lost_waits"),
        *("limits", "keys", "change_limits", "withdraw"),
        # What runs of a schedule show stays encrypted, so that nothing copies it into a tick.
        *("due", "schedules", "ticks", "decided", "forget", "sweep"),
    )
)
#: The texts of a job that stay readable: names, keys, and what the engine or an operator says.
READABLE = frozenset(
    (
        *("id", "task", "queue", "unique", "state", "worker_id", "completed_by", "last_worker_id", "outcome"),
        *("meta", "cancel_reason", "flow", "wait_for", "job_id", "evidence", "key", "parent", "until", "lease"),
        *("signal", "mark", "links", "ours", "parked"),
    )
)
ENCRYPTED = frozenset(("payload", "result", "checkpoint", "error", "stage", "message", "log", "value", "unread"))
#: An outcome's reason is encrypted if a handler gave it; `reason` is the engine's in all others.
REASONS = {Snoozed: "reason"}


def test_every_verb_of_a_store_is_looked_at() -> None:
    verbs = {name for name, _ in inspect.getmembers(Store) if not name.startswith("_")}
    sealing = {name for name in vars(SealedStore) if not name.startswith("_")}

    assert verbs - sealing == PASSED_ON
    assert sealing < verbs


@pytest.mark.parametrize(
    "kind", [Draft, Progress, Claimed, JobView, Status, Update, AttemptView, Input, SignalView, Completed, Failed]
)
def test_every_text_of_a_job_is_encrypted_or_known_to_stay_readable(kind: type) -> None:
    texts = {name for name, note in kind.__annotations__.items() if "str" in str(note)}

    assert texts
    assert texts <= ENCRYPTED | READABLE


# ── A process without the key ──


def app(folder: Path, *keys: str) -> Tenure:
    jobs = Tenure(f"sqlite:///{folder}/tenure.db", codec=AesSiv(keys) if keys else None)

    @jobs.task(retry=1, unique="for:{text}")
    def echo(text: str) -> str:
        return text

    @jobs.task(retry=1)
    def repeat(job: Job[str], text: str) -> str:
        assert job.once("key", lambda: text) == text
        return text

    return jobs


def runs(jobs: Tenure, handle: Any, state: str) -> None:
    """A worker of this app takes the job, and leaves it in this state."""
    before = handle.status().attempt
    with jobs.worker(concurrency=1):
        until(lambda: handle.status().attempt > before and handle.status().state == state, f"it is {state}")


def test_a_worker_without_the_key_leaves_the_job_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with app(tmp_path, NEW) as right, app(tmp_path) as without, app(tmp_path, OLD) as rotated_out:
        handle = right.tasks["echo"].enqueue("hello")
        for wrong in (without, rotated_out):
            right.client().store.promote_now([str(handle.id)])
            runs(wrong, handle, "scheduled")

        status, attempts = handle.status(), right.client().store.attempts(str(handle.id))
        assert (status.failures, status.error) == (0, None)
        assert [each.outcome for each in attempts] == ["snoozed"] * 2
        for each in without.client().store.attempts(str(handle.id)):  # readable without the key, too
            assert each.error.startswith(f"{NO_KEY} for its payload: it needs the key {AesSiv(NEW).key}, which")
        assert "jobs of echo wait for a worker with their key: it needs the key" in caplog.text
        client = without.client()
        explained = Admin(shown(client.store), client.notifier, without.settings).jobs.explain(str(handle.id))
        assert "could not decrypt it" in explained.verdict
        assert "start a worker with that key" in explained.what_to_do

        right.client().store.promote_now([str(handle.id)])
        runs(right, handle, "completed")
        assert handle.result("0s") == "hello"


def test_a_result_is_not_read_without_the_key(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as right, app(tmp_path) as without, app(tmp_path, OLD) as rotated_out:
        handle, failed = right.tasks["echo"].enqueue("hello"), right.tasks["repeat"].enqueue("1")
        runs(right, handle, "completed")
        for wrong in (without, rotated_out):
            for other in (wrong.tasks["echo"].handle(handle.id), wrong.handle(handle.id)):
                with pytest.raises(
                    Locked, match=f"it needs the key {AesSiv(NEW).key}, which this process does not have; give it"
                ):
                    other.result("60s")
        assert failed.result("60s") == "1"


def test_a_value_from_before_the_codec_is_read(tmp_path: Path) -> None:
    with app(tmp_path) as before, app(tmp_path, NEW) as after:
        old = before.tasks["echo"].enqueue("hello")
        handle = after.tasks["echo"].handle(old.id)
        runs(after, handle, "completed")

        assert handle.result("0s") == "hello"
        stored = before.client().store.get(str(old.id))
        assert stored is not None
        assert stored.payload == '{"text":"hello"}'
        assert is_sealed(stored.result or "")


@pytest.mark.parametrize("cut", [True, False], ids=["cut short", "of another job"])
def test_a_job_whose_payload_was_altered_is_a_dead_letter(cut: bool, tmp_path: Path) -> None:
    with app(tmp_path, NEW) as jobs:
        mine, other = jobs.tasks["repeat"].enqueue("mine"), jobs.tasks["repeat"].enqueue("other")
        store = beneath(jobs.client().store)
        (stands, theirs) = (look(store, str(each.id)).payload for each in (mine, other))
        put_there = f'{stands[:-9]}"' if cut else theirs
        assert store.rewrite([(Text("payload", str(mine.id), "", stands), put_there)]) == 1

        with jobs.worker(), pytest.raises(JobFailed, match="it was cut short, changed, or moved here from another job"):
            mine.result("60s")
        assert other.result("0s") == "other"


def test_a_result_that_was_altered_is_refused(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as jobs:
        handle = jobs.tasks["echo"].enqueue("hello")
        runs(jobs, handle, "completed")
        store = beneath(jobs.client().store)
        view = look(store, str(handle.id))
        assert store.rewrite([(Text("result", view.id, "", view.result or ""), view.payload)]) == 1  # of another field

        with pytest.raises(Locked, match="restore it from a backup"):
            handle.result("0s")


def test_what_a_running_job_reads_and_cannot_decrypt_snoozes_it(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as right, app(tmp_path, OLD) as wrong, app(tmp_path) as without:
        with right.flow("pair") as flow:
            step = flow.add(right.tasks["echo"].bind("hello"))
            last = flow.add(right.tasks["repeat"].bind(step.output))
        runs(right, last.handle, "completed")
        store = beneath(right.client().store)
        first, second = (look(store, str(each.handle.id)) for each in (step, last))
        plain = right.client().store.get(second.id)
        assert plain is not None
        assert store.rewrite([(Text("payload", second.id, "", second.payload), plain.payload)]) == 1
        for without_key in (wrong, without):
            store.replay([second.id])
            runs(without_key, last.handle, "scheduled")
            error = store.attempts(second.id)[-1].error
            assert error.startswith(f"{NO_KEY} for the result of echo {first.id}: ")
            store.promote_now([second.id])
            store.cancel([second.id], "")


def test_a_record_that_cannot_be_decrypted_snoozes_the_job(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as right, app(tmp_path) as without:
        handle, store = without.tasks["repeat"].enqueue("x"), right.client().store
        lease = claim_one(store, start(store, boot_id=system_clock().boot_id))
        assert lease.job_id == str(handle.id)
        store.once(lease, "key", '"x"')
        finish(store, lease, Released("drained"))
        runs(without, handle, "scheduled")

        assert store.attempts(lease.job_id)[-1].error.startswith(f"{NO_KEY} for the record 'key': ")


# ── Operators ──


def test_with_the_key_jobs_are_found_and_edited_by_their_arguments(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as jobs:
        found, other = (str(jobs.tasks["repeat"].enqueue(text).id) for text in ("needle", "hay"))
        client = jobs.client()
        client.store.cancel([found, other], "")
        reader = Admin(shown(client.store), client.notifier, jobs.settings).jobs
        by_argument = search(reader, "args.text=needle")

        assert [job.id for job in by_argument] == [found]
        assert reader.replay_edited(found, {"text": "thread"}).landed
        assert reader.show(found).edits[0].before == '{"text":"needle"}'
        assert look(beneath(client.store), found).payload.startswith(MARK)


def test_without_the_key_people_see_that_a_value_is_encrypted_and_cannot_edit_it(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as jobs, app(tmp_path) as without:
        job_id = str(jobs.tasks["repeat"].enqueue("needle").id)
        jobs.client().store.cancel([job_id], "")
        client = without.client()
        reader = Admin(shown(client.store), client.notifier, without.settings).jobs

        assert (
            reader.get(job_id).payload
            == f'"encrypted: it needs the key {AesSiv(NEW).key}, which this process does not have"'
        )
        for text in ("args.text=needle", "args~key", "error~process", "key"):  # words of what is shown instead
            assert search(reader, text) == []
        with pytest.raises(InvalidArguments, match="its arguments are encrypted"):
            reader.replay_edited(job_id, {"text": "thread"})


def test_a_key_made_of_arguments_is_stored_as_its_digest(tmp_path: Path) -> None:
    with app(tmp_path, NEW) as jobs:
        first, again = jobs.tasks["echo"].enqueue("needle"), jobs.tasks["echo"].enqueue("needle")

        assert (again.id, again.created) == (first.id, False)
        unique = look(beneath(jobs.client().store), str(first.id)).unique
        assert unique is not None
        assert "needle" not in unique


# ── Logs, spans and alerts ──


def scene_of(tmp_path: Path) -> tuple[Scene, MemoryStore]:
    """A world whose store is behind a codec, and the store beneath it."""
    made: list[MemoryStore] = []

    def make(clock: Clock) -> Store:
        made.append(MemoryStore(clock, seed=1))
        return sealed(made[0], AesSiv([NEW]))

    return Scene(World(make), tmp_path), made[0]


def test_a_tick_says_that_its_error_is_encrypted(tmp_path: Path) -> None:
    scene, under = scene_of(tmp_path)
    scene.scheduled()
    scene.runs(scene.worker(), Failed("needle", final=True))

    (tick,) = [each for each in scene.store.ticks("nightly") if each.status == "failure"]
    assert tick.why == f"its error is encrypted, and shown with job {tick.job_id}"
    (stands,) = under.schedules(["nightly"])
    assert stands.schedule.last_error == tick.why
    assert look(scene.store, str(tick.job_id)).error == "needle"


def test_an_alert_quotes_nothing_that_is_encrypted(tmp_path: Path) -> None:
    scene, under = scene_of(tmp_path)
    put(scene.store, max_failures=1)
    worker = scene.worker()
    (job,) = claim(scene.store, worker)
    scene.ends(job, worker, Failed("needle"))

    alarm: Any = new_alarm(scene.settings, scene.store, PollNotifier(), list)
    assert alarm._watch.look()

    (incident,) = open_incidents(under)
    assert "encrypted: it needs the key" in incident.says
    assert "needle" not in repr(under.notes("")) + repr([job.payload for job in under.search(Filter()).jobs])


# ── Rotation ──


def full(store: Store) -> str:
    """A dead job with a text in every place, a shared signal and a record of `jobs.once`."""
    lease = running(store, payload='{"n":1}')
    store.progress([Progress(lease=lease, stage="s", message="m", checkpoint="1", log='{"dropped":0,"lines":[]}')])
    store.once(lease, "key", "1")
    store.signal(lease.job_id, "own:go", "1")
    finish(store, lease, Failed("it failed", final=True))
    store.signal(None, "shared:go", "1")
    store.swap("once:k", None, '{"by":"me","state":"done","value":"1"}')
    return lease.job_id


def test_rotation_encrypts_with_the_first_key_what_another_one_did_or_none(tmp_path: Path) -> None:
    store, old, new = MemoryStore(), AesSiv([OLD]), AesSiv([NEW, OLD])
    ids = [full(sealed(store, old)), put(store, payload='{"plain":1}'), put(sealed(store, new), payload='{"n":3}')]
    store.swap("once:k2", None, '{"by":"me"}')
    before = [sealed(store, new).get(job_id) for job_id in ids]

    *_, done = rotate(store, new)
    *_, again = rotate(store, new)

    assert (done.jobs, done.written, done.raced, dict(done.unread)) == (3, 12, 0, {})
    assert (again.jobs, again.written) == (3, 0)
    assert [sealed(store, AesSiv([NEW])).get(job_id) for job_id in ids] == before
    assert old.key not in repr(vars(store))


def test_rotation_encrypts_all_signals_of_a_job_that_has_many() -> None:
    store, old, new = MemoryStore(), AesSiv([OLD]), AesSiv([NEW, OLD])
    job_id = put(store)
    for number in range(1001):
        sealed(store, old).signal(job_id, f"own:{number}", "1")

    *_, done = rotate(store, new)

    assert (done.written, done.unread) == (1001, {})
    assert old.key not in repr(vars(store))


def test_rotation_leaves_no_error_in_a_schedule_whose_job_is_gone_but_what_the_engine_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In pages; two ticks of one instant may be in different ones."""
    monkeypatch.setattr(history, "_PAGE", 4)
    store, now = MemoryStore(), datetime.now(UTC)
    runs = [("failure", "secret"), ("cancelled", "by ann"), ("failure", "secret")] * 4
    made = [
        Tick(
            schedule="s",
            tick=now - timedelta(hours=number // 2),
            cause="tick" if number % 2 else "trigger",
            decided_at=now,
            status=status,
            why=why,
            job_id="gone",
        )
        for number, (status, why) in enumerate(runs)
    ]
    assert store.change([Change(schedule=Schedule(name="s", rule="@daily", last_error="secret"), ticks=tuple(made))])

    *_, done = rotate(store, AesSiv([NEW]))
    *_, again = rotate(store, AesSiv([NEW]))

    whys = [(each.status, each.why) for each in store.ticks("s")]
    assert sorted(set(whys)) == [("cancelled", "by ann"), ("failure", history._GONE)]
    assert store.schedules()[0].schedule.last_error == history._GONE
    assert (done.written, done.raced, again.written) == (9, 0, 0)


def test_rotation_leaves_and_counts_what_it_cannot_read(tmp_path: Path) -> None:
    store, new = MemoryStore(), AesSiv([NEW])
    job_id = put(sealed(store, AesSiv([OTHER])), payload='{"n":1}')
    before = look(store, job_id)

    *_, done = rotate(store, new)

    assert dict(done.unread) == {f"it needs the key {AesSiv(OTHER).key}, which this process does not have": 1}
    assert (done.written, look(store, job_id)) == (0, before)


@pytest.mark.parametrize("why", [UNKNOWN_TASK, NO_KEY, NOT_FETCHED, LOST])
def test_rotation_leaves_what_the_engine_says(why: str) -> None:
    store = MemoryStore()
    unknown, cancelled = running(store), put(store)
    store.cancel([cancelled], "not wanted")
    finish(store, unknown, Snoozed(60.0, f"{why} 'x'", ours=True))

    *_, done = rotate(store, AesSiv([NEW]))

    assert done.written == 0
    assert look(store, cancelled).error == "not wanted"
    assert store.attempts(unknown.job_id)[0].error == f"{why} 'x'"


def test_rotation_leaves_the_engine_s_own_jobs_and_what_is_kept_of_a_command() -> None:
    """They are delivered, and read, where no app names the codec."""
    store, now = MemoryStore(), datetime.now(UTC)
    alert = put(store, queue="tenure.alerts", task="tenure.alert", payload='{"sink":"hook"}')
    guard = start(store, runner="guard", queues=(GUARD,))
    drafts = (draft(queue=GUARD, payload='{"command":"backup.sh"}'),)
    made = Schedule(name="s", rule="@daily", kind="guard", command="backup.sh", last_error="exit status 3")
    assert store.change([Change(schedule=made, drafts=drafts, owner=guard)])
    backup = drafts[0].id
    finish(store, Lease(backup, 1, guard), Failed("exit status 3", final=True))
    tick = Tick(
        schedule="s", tick=now, cause="tick", decided_at=now, status="failure", why="exit status 3", job_id=backup
    )
    (stands,) = store.schedules()
    assert store.change([Change(schedule=stands.schedule, ticks=(tick,))])
    before = repr([store.get(alert), store.get(backup), store.attempts(backup), store.ticks("s"), store.schedules()])

    *_, done = rotate(store, AesSiv([NEW]))

    assert done.written == 0
    after = repr([store.get(alert), store.get(backup), store.attempts(backup), store.ticks("s"), store.schedules()])
    assert after == before


def test_rotation_encrypts_jobs_of_an_app_in_a_queue_named_as_that_of_alerts() -> None:
    store = MemoryStore()
    job_id = put(store, queue="tenure.alerts", payload='{"n":1}')

    *_, done = rotate(store, AesSiv([NEW]))

    assert (done.written, is_sealed(look(store, job_id).payload)) == (1, True)


def test_an_alert_that_an_earlier_release_encrypted_stops_no_other() -> None:
    store = MemoryStore()
    put(sealed(store, AesSiv([NEW])), queue="tenure.alerts", task="tenure.alert", payload='{"sink":"hook"}')
    readable = put(store, queue="tenure.alerts", task="tenure.alert", payload='{"sink":"hook"}')

    assert _undelivered(shown(store), {"hook": cast("Any", None)}) == {readable}


def test_a_job_that_ends_during_a_rotation_keeps_its_result() -> None:
    class Ends(MemoryStore):
        def rewrite(self, changes: Any) -> int:
            assert finish(before, lease, Completed("1")) is State.COMPLETED
            return super().rewrite(changes)

    store, old, new = Ends(), AesSiv([OLD]), AesSiv([NEW, OLD])
    before = sealed(store, old)
    lease = running(before, payload='{"n":1}')

    *_, done = rotate(store, new)

    assert done.written == 1
    assert look(sealed(store, new), lease.job_id).result == "1"


# ── The command line ──

APP = """
import os
from tenure import Tenure
from tenure.codecs import AesSiv

jobs = Tenure(codec=AesSiv(os.environ["KEYS"]) if "KEYS" in os.environ else None)

@jobs.task
def echo(text: str) -> str:
    return text
"""
Run = Callable[..., tuple[int, str, str]]


def test_the_command_line_makes_keys_and_rotates_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (run("codec", "key")[1].strip() for _ in range(2))
    monkeypatch.setenv("KEYS", old)
    job_id = run("enqueue", "echo", "text=needle")[1].strip()

    assert "needle" not in run("jobs", "show", job_id)[1]
    assert "which this process does not have" in run("jobs", "show", job_id)[1]
    assert "needle" in run("jobs", "show", job_id, "--app", "shop")[1]

    forget_the_app(monkeypatch)
    monkeypatch.setenv("KEYS", f"{new},{old}")
    code, said, _ = run("codec", "rotate")
    assert (code, said) == (0, f"1 jobs read, 1 texts encrypted with the key {AesSiv(new).key}\n")

    forget_the_app(monkeypatch)
    monkeypatch.setenv("KEYS", new)
    assert "needle" in run("jobs", "show", job_id, "--app", "shop")[1]

    forget_the_app(monkeypatch)
    monkeypatch.setenv("KEYS", old)
    code, _, said = run("codec", "rotate")
    assert code == 1
    assert f"1 texts can't be read, and stay as they are: it needs the key {AesSiv(new).key}" in said

    forget_the_app(monkeypatch)
    monkeypatch.delenv("KEYS")
    assert run("codec", "rotate")[0] == 2


def forget_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shop", raising=False)


def search(jobs: JobReads, text: str) -> list[JobView]:
    where = parsed(text, datetime.now(UTC))
    return [*jobs.search(where, seconds=5.0).jobs]


@pytest.mark.parametrize("limit", [1, 40, 150])
def test_encrypted_values_are_searched_in_few_reads(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sealed(MemoryStore(), AesSiv(NEW))
    store.open()
    ids = [put(store, payload=f'{{"user":{number % 3}}}') for number in range(600)][::-1]
    wanted = [job_id for place, job_id in enumerate(ids) if (599 - place) % 3 == 1]
    reads, below = [0], beneath(store).search

    def counting(*args: Any, **options: Any) -> Page:
        reads[0] += 1
        return below(*args, **options)

    monkeypatch.setattr(beneath(store), "search", counting)
    where = parsed("args.user=1", datetime.now(UTC))
    pages = [store.search(where, limit=limit)]
    assert reads[0] <= 8
    while (cursor := pages[-1].cursor) is not None:
        reads[0] = 0
        pages.append(store.search(where, limit=limit, cursor=cursor, within=600))
        assert reads[0] <= 8
        assert len(pages[-1].jobs) <= limit

    assert [job.id for page in pages for job in page.jobs] == wanted


class Failing(Plain):
    """As one that asks a key server, which is away."""

    def encode(self, data: bytes, about: str) -> bytes:
        raise ConnectionError("the key server is away")

    def decode(self, data: bytes, about: str, key: str) -> bytes:
        raise ConnectionError("the key server is away")


def test_a_codec_that_fails_costs_time_and_no_job(caplog: pytest.LogCaptureFixture) -> None:
    """It runs in the engine's own threads: an error there would end the worker."""
    sealed = Seal(Plain()).close('"text"', "payload", "job")

    with pytest.raises(StoreAway, match="the codec can't encrypt: ConnectionError"):
        Seal(Failing()).close('"text"', "payload", "job")
    assert Seal(Failing()).open(sealed, "payload", "job") == sealed, "as without the key: another worker may have it"
    assert "the codec can't decrypt: ConnectionError" in caplog.text
