"""Schedules and notes in Redis: what its scripts must get right that no other store has to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from conformance.factories import (
    begin,
    begin_guarded,
    claim_one,
    draft,
    everything,
    finish,
    identity,
    look,
    made,
    put,
    running,
    schedule,
    standing,
    start,
    tick,
)
from servers import Valkey, shared_valkey
from tenure.core.clock import Clock
from tenure.core.lifecycle import GUARD, Completed, Crashed, Failed, Lease, Released, State
from tenure.errors import BadData, StoreAway
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Landed, NotLanded, Store
from tenure.ports.schedules import Change, Schedule, Tick
from tenure.schedules.timetable import Timetable
from tenure.stores.redis import RedisStore, scripts
from tenure.stores.redis.drafts import MOST, MOST_BYTES, batches


class Time:
    unix = 1_800_000_000.0
    boot = 1_000.0

    def pass_by(self, seconds: float) -> None:
        self.unix += seconds
        self.boot += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> Iterator[RedisStore]:
    """A store whose own scripts ring, as with `notifier=auto`."""
    server = shared_valkey()
    with server.namespace() as namespace:
        clock = Clock(lambda: time.unix, lambda: time.boot, "the-only-boot")
        store = RedisStore(server.url, namespace=namespace, clock=clock, rings=True)
        store.open()
        yield store
        store.close()


def keys(store: RedisStore) -> set[str]:
    """The keys of its namespace, without the prefix."""
    prefix = store.server.prefix
    found: list[str] = store.server.run("KEYS", f"{prefix}*")
    return {key.removeprefix(prefix) for key in found}


def count(store: RedisStore, command: str, key: str) -> int:
    return int(store.server.run(command, f"{store.server.prefix}{key}"))


def rings(store: RedisStore) -> list[list[str]]:
    """All rings so far, the newest first."""
    return [entry for _, entry in store.server.run("XREVRANGE", f"{store.server.prefix}bell", "+", "-")]


def began(stands: Schedule, store: Store, number: int) -> Change:
    """The change that begins this many runs, a second apart; the first one is the oldest."""
    now, jobs = store.now(), [draft(priority=1) for _ in range(number)]
    times = [now - timedelta(seconds=number - place) for place in range(number)]
    ticks = tuple(tick(stands, at, job_id=job.id, decided_at=now) for at, job in zip(times, jobs, strict=True))
    return Change(schedule=stands, ticks=ticks, drafts=tuple(jobs))


# ── many at once ──


def test_a_change_of_thousands_is_one_step(store: RedisStore) -> None:
    stands = made(store, name="hourly")
    change = began(stands, store, 3_000)

    assert store.change([change, change]) == [True, False]

    assert store.counts()[State.QUEUED] == count(store, "ZCARD", "jobs") == 3_000
    runs = standing(store, "hourly").runs
    assert [run.tick for run in runs] == list(change.ticks)
    assert all(run.live for run in runs)


def test_a_script_is_given_so_much_and_no_more() -> None:
    sizes = [1, MOST_BYTES, 5, MOST_BYTES - 5, 1, 1]
    assert [len(each) for each in batches(sizes, size=lambda size: size)] == [1, 1, 2, 2]
    weights = [150, 60, 300, 1, 1]
    assert [list(each) for each in batches(weights, things=lambda weight: weight)] == [[150], [60], [300], [1, 1]]
    assert [len(each) for each in batches(range(MOST + 1))] == [MOST, 1]


def test_the_one_ended_run_among_hundreds_is_found(store: RedisStore) -> None:
    busy, other = made(store, name="busy"), made(store, name="other")
    assert store.change([began(busy, store, 1_500)]) == [True]
    job_id = begin(store, other.name)
    assert store.due().standings == []

    store.cancel([job_id], "not wanted")

    assert [each.schedule.name for each in store.due().standings] == ["other"]


def test_ended_runs_wait_while_more_is_due(store: RedisStore, time: Time) -> None:
    ended = made(store, name="ended")
    store.cancel([begin(store, ended.name)], "not wanted")
    now = store.now()
    due = [made(store, name=f"due-{number}", due_at=now) for number in range(2)]

    assert [each.schedule.name for each in store.due(limit=2).standings] == ["due-0", "due-1"]
    store.change([Change(schedule=due[0].but(due_at=None))])

    assert [each.schedule.name for each in store.due(limit=2).standings] == ["due-1", "ended"]


def test_pages_of_history_miss_no_tick_of_one_instant(store: RedisStore) -> None:
    stands, now = made(store, name="busy"), store.now()
    moments = [now - timedelta(seconds=number) for number in range(250)]
    ticks = [
        tick(stands, at, cause=cause, status="success", decided_at=now)
        for at in moments
        for cause in ("trigger", "tick", "backfill")
    ]
    assert store.change([Change(schedule=stands, ticks=tuple(ticks))]) == [True]

    assert store.ticks("busy", limit=1_000) == ticks
    assert store.ticks("busy", limit=401, before=moments[0]) == ticks[3:404]


# ── what a replay opens ──


def test_a_replay_opens_every_tick_that_follows_the_job(store: RedisStore) -> None:
    job_id = put(store, task="work", unique="one")
    names = ["a|b", "c:ü\n{d}"]
    for name in names:
        made(store, name=name)
        begin(store, name, task="work", unique="one")
    worker = start(store)
    assert finish(store, claim_one(store, worker), Failed("no", final=True)) is State.DEAD
    odd = 'a/b \\u0000 "ß" \x7f\u2028'
    for name in names:
        (run,) = standing(store, name).runs
        assert run.tick.job_id == job_id
        closed = replace(run.tick, status="failure", why=odd, output=odd, count=10**13, started_at=store.now())
        assert store.change([Change(schedule=standing(store, name).schedule, ticks=(closed,))]) == [True]

    assert store.replay([job_id]) == {job_id: Landed(State.QUEUED)}

    for name in names:
        (run,) = standing(store, name).runs
        assert run.live
        assert run.tick == store.ticks(name)[0]
        assert (run.tick.status, run.tick.why, run.tick.started_at) == ("open", "", None)
        assert (run.tick.output, run.tick.count) == (odd, 10**13)


def test_a_replay_leaves_a_tick_alone_that_names_another_job_by_now(store: RedisStore) -> None:
    stands, now = made(store, name="hourly"), store.now()
    first = begin(store, stands.name, now)
    store.cancel([first], "not wanted")
    other = tick(stands, now, job_id=put(store), status="success", decided_at=now)
    assert store.change([Change(schedule=standing(store, "hourly").schedule, ticks=(other,))]) == [True]

    assert store.replay([first]) == {first: Landed(State.QUEUED)}

    assert store.ticks("hourly") == [other]
    assert standing(store, "hourly").runs == ()


def test_the_job_of_a_guard_is_replayed_by_nobody(store: RedisStore) -> None:
    stands, worker = made(store, kind="guard", job=None), start(store, runner="guard")
    job_id = begin_guarded(store, stands.name, worker)
    assert finish(store, Lease(job_id, 1, worker), Completed()) is State.COMPLETED

    (refused,) = store.replay([job_id]).values()

    assert isinstance(refused, NotLanded)
    assert "tenure guard" in refused.stands


# ── a job that begins as processing is held like one that was claimed ──


def guarded(store: RedisStore, **options: object) -> Lease:
    stands, worker = made(store, kind="guard", job=None), start(store, runner="guard")
    job = draft(**{"queue": GUARD, "max_failures": 1, "max_crashes": 0, **options})
    assert store.change([Change(schedule=stands, drafts=(job,), owner=worker)]) == [True]
    return Lease(job.id, 1, worker)


def test_it_is_owned_counted_and_watched(store: RedisStore, time: Time) -> None:
    lease = guarded(store, stale_after=10.0, unique="one")
    (owned,) = store.owned(lease.worker_id)
    assert (owned.claimed.id, owned.claimed.attempt, owned.claimed.stale_after) == (lease.job_id, 1, 10.0)
    assert [worker.processing for worker in store.workers()] == [1]
    assert store.counts()[State.PROCESSING] == 1
    assert count(store, "ZCARD", "ready:guard") == 0

    time.pass_by(11)

    assert [each.lease for each in store.hung([lease.worker_id])] == [lease]


def test_its_end_leaves_nothing_of_its_lease(store: RedisStore) -> None:
    lease = guarded(store, stale_after=10.0, unique="one")
    assert finish(store, lease, Completed('"done"')) is State.COMPLETED
    assert not {"owners", "stale", "unique", f"processing:{lease.worker_id}"} & keys(store)


def test_its_rescue_and_its_settlement_make_it_dead(store: RedisStore) -> None:
    rescued, settled = guarded(store), guarded(store)
    store.declare_dead([rescued.worker_id])
    assert [each.state for each in store.rescue()] == [State.DEAD]
    (one,) = store.settle(settled.worker_id, {}, Crashed("killed", process_died=True))
    assert (one.id, one.state) == (settled.job_id, State.DEAD)
    assert "owners" not in keys(store)


def test_its_cancel_is_asked_of_its_guard(store: RedisStore) -> None:
    lease = guarded(store)
    assert store.cancel([lease.job_id], "enough") == {lease.job_id: State.PROCESSING}
    assert rings(store)[0] == ["cancel", GUARD]
    assert [each.cancel_reason for each in store.owned(lease.worker_id)] == ["enough"]
    assert finish(store, lease, Released("drained")) is State.CANCELLED


def test_nothing_begins_for_an_owner_that_does_not_live(store: RedisStore, time: Time) -> None:
    stands, worker = made(store, kind="guard", job=None), start(store, runner="guard")
    job = draft(queue=GUARD)
    time.pass_by(identity().lease + 1)
    before = keys(store)
    for owner in (worker, "nobody"):
        assert store.change([Change(schedule=stands, drafts=(job,), owner=owner)]) == [False]
    assert keys(store) == before
    assert store.get(job.id) is None


# ── what is left behind: nothing ──


def test_of_a_deleted_schedule_only_what_will_be_forgotten_stays(store: RedisStore, time: Time) -> None:
    empty = keys(store)
    stands = made(store, name="gone", due_at=store.now())
    store.cancel([begin(store, "gone"), begin(store, "gone", store.now() - timedelta(seconds=1))], "not wanted")
    Timetable(store, PollNotifier()).settle(store.schedules())
    begin(store, "gone", store.now() - timedelta(seconds=2))
    assert store.change([Change(schedule=standing(store, stands.name).schedule, delete=True)]) == [True]
    assert store.due() == (store.now(), [], None)
    store.delete(view.id for view in everything(store))

    assert keys(store) - empty - {"queues", "bell", "scheduled_of"} == {"decided"}
    time.pass_by(10)
    assert store.forget(keep=5) == 0
    assert "decided" not in keys(store)


def test_a_note_that_is_over_leaves_nothing(store: RedisStore, time: Time) -> None:
    empty = keys(store)
    for number in range(450):
        assert store.swap(f"once:{number}", None, "said", ttl=5).landed
    assert store.swap("for ever", None, "").landed
    assert len(store.notes("once:")) == 450
    time.pass_by(5)
    assert store.forget(keep=5, limit=300) == 300
    assert store.forget(keep=5) == 150
    assert store.notes("") == {"for ever": ""}
    assert store.swap("for ever", "", None).landed
    assert keys(store) == empty


def test_a_note_that_is_kept_for_ever_after_all_is_not_forgotten(store: RedisStore, time: Time) -> None:
    assert store.swap("key", None, "for now", ttl=5).landed
    assert store.swap("key", "for now", "for ever").landed
    time.pass_by(6)
    assert store.forget(keep=5) == 0
    assert store.notes("key") == {"key": "for ever"}


# ── the doorbell rings with the change ──


def test_a_change_rings_for_its_jobs_and_for_those_it_cancels(store: RedisStore) -> None:
    lease = running(store)
    stands, now = made(store, name="hourly"), store.now()
    job = draft(queue="mail")
    change = Change(
        schedule=stands, ticks=(tick(stands, now, job_id=job.id),), drafts=(job,), cancel=(lease.job_id, "no-id")
    )
    assert store.change([change]) == [True]
    newest = rings(store)[0]
    said = {tuple(newest[place : place + 2]) for place in range(0, len(newest), 2)}
    assert said == {("queued", "mail"), ("cancel", "default")}
    assert look(store, lease.job_id).cancel_reason is not None


def test_a_schedule_that_becomes_due_rings_once(store: RedisStore) -> None:
    stands = made(store, name="hourly")
    before = len(rings(store))
    later = store.now() + timedelta(seconds=60)
    for due_at in (later, later + timedelta(seconds=60)):
        assert store.change([Change(schedule=stands.but(due_at=due_at))]) == [True]
        stands = standing(store, "hourly").schedule
    assert rings(store)[0] == ["due", ""]
    assert len(rings(store)) == before + 1


# ── bad and big values, a server short of memory ──


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "a\\", "\\u0000\\\\"])
def test_what_only_looks_like_a_nul_is_stored(text: str, store: RedisStore) -> None:
    made(store, name=text, last_error=text)
    assert standing(store, text).schedule.last_error == text


@pytest.mark.parametrize("text", ["\0", "\\\0", "\\\\\0", 'a"\0'])
def test_a_nul_is_refused_wherever_it_stands(text: str, store: RedisStore) -> None:
    before = keys(store)
    with pytest.raises(BadData, match="NUL"):
        store.change([Change(schedule=schedule()), Change(schedule=schedule(last_error=text))])
    assert keys(store) == before


def test_a_due_time_is_rounded_up_to_the_millisecond_and_no_further(store: RedisStore, time: Time) -> None:
    now = store.now()
    for micros, waits in ((1_000, 0.001), (1_001, 0.002), (250_000, 0.25), (999_999, 1.0)):
        made(store, name="odd", due_at=now + timedelta(microseconds=micros))
        assert store.due().next_due == waits
        assert store.change([Change(schedule=standing(store, "odd").schedule, delete=True)]) == [True]


@pytest.mark.parametrize("shebang_since", [(7, 0), (99, 0)], ids=["now", "before Redis 7"])
def test_without_memory_a_change_lands_all_or_nothing(
    shebang_since: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "SHEBANG_SINCE", shebang_since)
    with Valkey() as server:
        store = RedisStore(server.url)
        store.open()
        stands = made(store, name="hourly")
        job_id = begin(store, "hourly")
        (run,) = standing(store, "hourly").runs
        assert store.swap("over", None, "1", ttl=0.001).landed
        before = store.schedules()
        server.execute("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreAway, match="out of memory"):
            store.change([Change(schedule=before[0].schedule, ticks=(run.tick,), drafts=(draft(),))])
        with pytest.raises(StoreAway, match="out of memory"):
            store.swap("key", None, "1", drafts=[draft()])
        assert store.schedules() == before
        assert store.notes("key") == {}
        assert store.counts()[State.QUEUED] == 1
        assert store.cancel([job_id], "no") == {job_id: State.CANCELLED}
        assert [each.schedule.name for each in store.due().standings] == [stands.name]
        while not store.forget(keep=60):
            pass
        store.close()


def test_ticks_of_any_time_come_in_order(store: RedisStore) -> None:
    stands, now = made(store, name="old"), store.now()
    times = [now - timedelta(days=days) for days in (0, 20_000, 30_000)]
    ticks = [Tick(schedule="old", tick=at, status="missed", decided_at=now) for at in times]
    assert store.change([Change(schedule=stands, ticks=tuple(ticks))]) == [True]
    assert store.ticks("old") == ticks
    assert store.forget(keep=1) == 0
