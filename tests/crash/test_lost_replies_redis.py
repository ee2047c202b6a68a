"""The line breaks after Redis has run a script and before its reply: asked again, all is as if it had been heard.

A proxy lets the request through and resets the connection when the answer comes, again and again, for each transition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from conformance.factories import (
    LEASE,
    assert_sound,
    bring,
    claim,
    draft,
    everything,
    identity,
    look,
    memory_of,
    put,
    running,
    start,
)
from proxy import Proxy
from servers import Valkey
from tenure.core.clock import Clock
from tenure.core.lifecycle import LIVE, Cancelled, Completed, Crashed, Failed, Lease, Outcome, Released, Snoozed, State
from tenure.errors import StoreAway, StoreError
from tenure.ports import Enqueued, Filter, JobView, Landed, NotLanded, OnceRecord, Progress, Rescued, Store
from tenure.stores.redis import RedisStore
from tenure.stores.redis.scripts import compose

from . import shop
from .backends import Place, by_way_of
from .conftest import Tell
from .harness import FULL, Site, overlaps, runs_of

T = TypeVar("T")

TIMES = 100 if FULL else 10
LATER = 0.125
BULK = 450  #: more than are given to one script


def answered(reply: bytes) -> bool:
    """The script has run: the reply is not an error."""
    return not reply.startswith(b"-") and reply.endswith(b"\r\n")


class Line:
    """A store behind a line that can be cut, and the same store over a sound one; this test advances their clock."""

    def __init__(self, server: Valkey, proxy: Proxy, namespace: str) -> None:
        self._unix = 1_800_000_000.0
        clock = Clock(lambda: self._unix, lambda: 0.0, "the-only-boot")
        self.proxy = proxy
        self.store = RedisStore(by_way_of(server.url, proxy.port), namespace=namespace, clock=clock)
        self.sound = RedisStore(server.url, namespace=namespace, clock=clock)
        self._server = server

    def advance(self, seconds: float) -> None:
        self._unix += seconds

    def lose(self, script: str, call: Callable[[], object]) -> None:
        """The call is carried out, and its answer does not come."""
        cuts = self.proxy.cuts
        self.proxy.cut_reply_to(digest(self._server, script, given_time=True, rings=False), answered=answered)
        with pytest.raises(StoreAway, match="out of reach"):
            call()
        self.proxy.heal()
        self.advance(LATER)  # so that what is done twice is done at another time
        assert self.proxy.cuts == cuts + 1, f"nothing was cut: {script} did not run"

    def twice(self, script: str, call: Callable[[], T]) -> T:
        """Lose the answer to a call, and return the answer when it is made again."""
        self.lose(script, call)
        return call()


def digest(server: Valkey, script: str, **how: bool) -> bytes:
    """The name by which a script is run. The server then has the script, so the first try is not refused."""
    return str(server.execute("SCRIPT LOAD", compose(script, shebang=True, **how).text)).encode()


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture
def proxy(server: Valkey) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def line(server: Valkey, proxy: Proxy) -> Iterator[Line]:
    with server.namespace() as namespace:
        line = Line(server, proxy, namespace)
        with closing(line.store), closing(line.sound):
            line.store.open()
            line.sound.open()
            yield line
            assert_sound(line.sound)
            assert_counted(line.sound)


def all_jobs(store: Store) -> list[JobView]:
    """Page after page."""
    page = store.search(Filter(), limit=1000)
    views = list(page.jobs)
    while page.cursor is not None:
        page = store.search(Filter(), limit=1000, cursor=page.cursor)
        views += page.jobs
    return views


def assert_counted(store: Store) -> None:
    """Every count and every index says what the jobs themselves say."""
    views = all_jobs(store)
    states, queues = Counter(view.state for view in views), Counter((view.queue, view.state) for view in views)
    assert {state: number for state, number in store.counts().items() if number} == states
    for queue in store.queues():
        assert queue.counts == {state: queues[queue.name, state] for state in LIVE}, queue
    held = Counter(view.worker_id for view in views if view.worker_id)
    for worker in store.workers(dead=True):
        assert worker.processing == held[worker.identity.id] == len(store.owned(worker.identity.id))


# ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_enqueues_whose_replies_were_lost_are_one_job_each(line: Line) -> None:
    sent = [
        draft(unique=f"key-{n}" if n % 2 else None, delay=60.0 if n % 3 == 0 else None, isolated=n % 5 == 0)
        for n in range(TIMES)
    ]
    states = [State.QUEUED if each.delay is None else State.SCHEDULED for each in sent]

    answers = [line.twice("enqueue", lambda each=each: line.store.enqueue([each])[0]) for each in sent]  # type: ignore[misc]

    assert answers == [Enqueued(each.id, False, state) for each, state in zip(sent, states, strict=True)]
    assert {view.id for view in everything(line.sound)} == {each.id for each in sent}


def test_a_bulk_whose_reply_was_lost_is_stored_once_when_it_is_sent_again(line: Line) -> None:
    for _ in range(TIMES // 5):
        batch = [draft(unique=f"k{n}" if n % 2 else None) for n in range(BULK)]

        answers = line.twice("enqueue", lambda batch=batch: line.store.enqueue(batch))  # type: ignore[misc]

        assert [each.id for each in answers] == [each.id for each in batch]
        assert sum(not each.created for each in answers) >= 200, "the first script of them had run"
        assert line.sound.counts()[State.QUEUED] == BULK
        assert_counted(line.sound)
        assert {each.state for each in line.sound.delete([each.id for each in batch]).values() if each} == {  # type: ignore[union-attr]
            State.QUEUED
        }


@pytest.mark.parametrize("state", [State.SCHEDULED, State.QUEUED, State.PROCESSING])
def test_cancels_whose_replies_were_lost_are_asked_once(state: State, line: Line) -> None:
    for _ in range(TIMES):
        lease = bring(line.sound, state)
        line.lose("cancel", lambda lease=lease: line.store.cancel([lease.job_id], "unwanted"))  # type: ignore[misc]
        after = memory_of(line.sound, lease.job_id)

        told = line.store.cancel([lease.job_id], "once more")

        assert told == {lease.job_id: State.PROCESSING if state is State.PROCESSING else State.CANCELLED}
        assert memory_of(line.sound, lease.job_id) == after
        assert look(line.sound, lease.job_id).cancel_reason == "unwanted"


def test_promotions_whose_replies_were_lost_queue_each_job_once(line: Line) -> None:
    for _ in range(TIMES):
        jobs = {put(line.sound, delay=60.0), put(line.sound, delay=60.0, isolated=True)}
        line.advance(60.0)
        line.lose("promote", line.store.promote)

        assert line.store.promote().jobs == {}
        assert {look(line.sound, each).state for each in jobs} == {State.QUEUED}
        worker = start(line.sound)
        taken = [*claim(line.sound, worker, 9), *claim(line.sound, start(line.sound), 9, solo=True)]
        assert sorted((each.id, each.attempt) for each in taken) == sorted((each, 1) for each in jobs)


def test_promotions_by_an_operator_whose_replies_were_lost_queue_each_job_once(line: Line) -> None:
    for _ in range(TIMES):
        job = put(line.sound, delay=60.0)
        line.lose("promote_now", lambda job=job: line.store.promote_now([job]))  # type: ignore[misc]
        after = memory_of(line.sound, job)

        assert line.store.promote_now([job]) == {job: State.QUEUED}
        assert memory_of(line.sound, job) == after
        assert [each.id for each in claim(line.sound, start(line.sound), 9)] == [job]


@pytest.mark.parametrize("state", [State.COMPLETED, State.DEAD, State.CANCELLED])
def test_replays_whose_replies_were_lost_queue_each_job_once(state: State, line: Line) -> None:
    for n in range(TIMES):
        lease = bring(line.sound, state, unique=f"key-{n}" if n % 2 else None)
        line.lose("replay", lambda lease=lease: line.store.replay([lease.job_id]))  # type: ignore[misc]
        after = memory_of(line.sound, lease.job_id)

        (told,) = line.store.replay([lease.job_id]).values()

        assert isinstance(told, NotLanded)
        assert memory_of(line.sound, lease.job_id) == after
        (again,) = claim(line.sound, start(line.sound), 9)
        assert (again.id, again.attempt, again.failures, again.crashes) == (lease.job_id, 2, 0, 0)


@pytest.mark.parametrize("state", [state for state in State if state is not State.PROCESSING])
def test_deletions_whose_replies_were_lost_leave_nothing_of_the_job(state: State, line: Line) -> None:
    for _ in range(TIMES):
        lease, other = bring(line.sound, state, unique="key"), put(line.sound)

        told = line.twice("delete", lambda lease=lease: line.store.delete([lease.job_id]))  # type: ignore[misc]

        assert told == {lease.job_id: None}
        assert [view.id for view in everything(line.sound)] == [other]
        assert memory_of(line.sound, lease.job_id) == (None, [])
        line.sound.delete([other])


def test_prunings_whose_replies_were_lost_take_only_what_was_old(line: Line) -> None:
    for _ in range(TIMES):
        old = [bring(line.sound, state).job_id for state in (State.COMPLETED, State.CANCELLED, State.DEAD)]
        line.advance(1.0)
        line.lose("prune", lambda: line.store.prune(keep=0.0, keep_dead=None))
        assert line.sound.get(old[0]) is None

        assert line.store.prune(keep=0.0, keep_dead=0.0) == 2
        assert everything(line.sound) == []


def test_a_pause_and_a_resumption_whose_replies_were_lost_stand(line: Line) -> None:
    worker = start(line.sound)
    for _ in range(TIMES):
        job = put(line.sound)
        assert not line.twice("pause", lambda: line.store.pause("default", paused=True))
        assert line.sound.paused() == {"default"}
        assert claim(line.sound, worker) == []
        assert not line.twice("pause", lambda: line.store.pause("default", paused=False))
        assert [each.id for each in claim(line.sound, worker)] == [job]


# ── Owners ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_claims_whose_replies_were_lost_are_found_among_what_is_owned(line: Line, tell: Tell) -> None:
    worker = start(line.sound)
    jobs = {each.id for each in line.sound.enqueue([draft() for _ in range(TIMES * 2)])}
    found: list[str] = []
    for _ in range(TIMES):
        line.lose("claim", lambda: claim(line.store, worker, 2))
        owned = line.store.owned(worker)
        assert len(owned) == 2
        found += [each.claimed.id for each in owned]
        leases = [Lease(each.claimed.id, each.claimed.attempt, worker) for each in owned]
        assert {lease.attempt for lease in leases} == {1}
        assert line.store.finish([(lease, Completed()) for lease in leases]) == [Landed(State.COMPLETED)] * 2

    assert len(found) == len(jobs)
    assert set(found) == jobs
    tell(f"{line.proxy.cuts} replies to a claim lost: {len(found)} jobs found by owned, each in its attempt 1")


def test_finishes_whose_replies_were_lost_hear_that_they_landed(line: Line, tell: Tell) -> None:
    worker = start(line.sound)
    for n in range(TIMES):
        lease = running(line.sound, worker)
        end = (lease, Completed(str(n)))
        line.lose("complete", lambda end=end: line.store.finish([end]))  # type: ignore[misc]
        after = memory_of(line.sound, lease.job_id)

        assert line.store.finish([end]) == [Landed(State.COMPLETED)]
        (other,) = line.store.finish([(lease, Completed('"other"'))])
        assert isinstance(other, NotLanded)
        assert memory_of(line.sound, lease.job_id) == after
        assert look(line.sound, lease.job_id).result == str(n)

    tell(f"{line.proxy.cuts} replies to a finish lost: all heard Landed when they asked again")


@pytest.mark.parametrize(
    "outcome",
    [Failed("boom"), Failed("no", final=True), Snoozed(5), Released("drain"), Cancelled("unwanted"), Crashed("gone")],
    ids=repr,
)
@pytest.mark.parametrize("asked", [False, True], ids=["", "cancel asked"])
def test_other_outcomes_whose_replies_were_lost_are_charged_once(outcome: Outcome, asked: bool, line: Line) -> None:
    for _ in range(TIMES):
        worker = start(line.sound)
        ends = [(running(line.sound, worker, max_failures=3), outcome), (running(line.sound, worker), Completed())]
        if asked:
            line.sound.cancel([lease.job_id for lease, _ in ends], "unwanted")
        line.lose("end", lambda ends=ends: line.store.finish(ends))  # type: ignore[misc]
        after = [memory_of(line.sound, lease.job_id) for lease, _ in ends]

        answers = line.store.finish(ends)

        assert answers == [Landed(look(line.sound, lease.job_id).state) for lease, _ in ends]
        assert [memory_of(line.sound, lease.job_id) for lease, _ in ends] == after
        view, (attempt,) = look(line.sound, ends[0][0].job_id), line.sound.attempts(ends[0][0].job_id)
        assert (view.failures, view.crashes) == (isinstance(outcome, Failed), isinstance(outcome, Crashed))
        assert (attempt.attempt, attempt.worker_id) == (1, worker)
        line.sound.delete([lease.job_id for lease, _ in ends])


def test_outcomes_whose_replies_were_lost_hear_the_same_when_the_job_runs_again(line: Line) -> None:
    worker = start(line.sound)
    for _ in range(TIMES):
        lease = running(line.sound, worker)
        line.lose("end", lambda lease=lease: line.store.finish([(lease, Released("drain"))]))  # type: ignore[misc]
        (again,) = claim(line.sound, worker)
        after = memory_of(line.sound, lease.job_id)

        assert line.store.finish([(lease, Released("drain"))]) == [Landed(State.PROCESSING)]
        assert memory_of(line.sound, lease.job_id) == after
        assert (again.id, again.attempt) == (lease.job_id, 2)
        line.sound.finish([(Lease(again.id, 2, worker), Completed())])


def test_reports_whose_replies_were_lost_are_stored_once(line: Line) -> None:
    worker = start(line.sound)
    for n in range(TIMES):
        lease = running(line.sound, worker)
        report = Progress(lease=lease, fraction=0.5, stage="half", message=f"{n}", checkpoint=f"{n}")

        assert line.twice("progress", lambda report=report: line.store.progress([report])) == [True]  # type: ignore[misc]

        view = look(line.sound, lease.job_id)
        assert (view.progress, view.stage, view.message, view.checkpoint) == (0.5, "half", f"{n}", f"{n}")
        assert (view.state, view.attempt, view.worker_id) == (State.PROCESSING, 1, worker)


def test_the_first_result_of_a_key_stands_when_its_reply_was_lost(line: Line) -> None:
    lease = running(line.sound)
    for n in range(TIMES):
        line.lose("once", lambda n=n: line.store.once(lease, f"mail-{n}", f"{n}"))  # type: ignore[misc]

        assert line.store.once(lease, f"mail-{n}", '"another"') == OnceRecord(f"{n}")
        assert line.store.once(lease, f"mail-{n}", None) == OnceRecord(f"{n}")


# ── Supervisors ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_whose_registration_was_not_heard_is_there_once_and_works(line: Line) -> None:
    for _ in range(TIMES):
        worker, job = identity(), put(line.sound)
        line.lose("register", lambda worker=worker: line.store.register(worker))  # type: ignore[misc]

        with pytest.raises(StoreError, match="was used before"):
            line.store.register(worker)

        assert [each.identity for each in line.sound.workers()].count(worker) == 1
        assert [each.id for each in claim(line.sound, worker.id)] == [job]


def test_renewals_whose_replies_were_lost_keep_the_living_and_revive_nobody(line: Line) -> None:
    living, dead = start(line.sound), start(line.sound)
    line.sound.declare_dead([dead])
    for n in range(TIMES):
        line.advance(10.0)
        notes = {living: f"note {n}"}
        line.lose("renew", lambda notes=notes: line.store.renew([living, dead], notes=notes))  # type: ignore[misc]
        (renewed,) = line.sound.workers()

        assert line.store.renew([living, dead], notes=notes) == {living}
        (again,) = line.sound.workers()
        assert (renewed.note, again.note) == (f"note {n}", f"note {n}")
        assert (
            again.expires_at
            == renewed.expires_at + timedelta(seconds=LATER)
            == line.sound.now() + timedelta(seconds=LEASE)
        )


def test_deaths_whose_replies_were_lost_are_declared_once_and_for_ever(line: Line) -> None:
    for _ in range(TIMES):
        lease = running(line.sound)
        line.lose("declare", lambda lease=lease: line.store.declare_dead([lease.worker_id]))  # type: ignore[misc]
        died = {each.identity.id: each.died_at for each in line.sound.workers(dead=True)}

        assert line.store.declare_dead([lease.worker_id]) == frozenset()
        assert line.store.renew([lease.worker_id]) == frozenset()
        assert {each.identity.id: each.died_at for each in line.sound.workers(dead=True)} == died
        (rescued,) = line.store.rescue()
        assert (rescued.id, rescued.cause) == (lease.job_id, "crash")
        assert_crashed_once(line.sound, lease)


def test_ended_leases_whose_declaration_was_not_heard_are_declared_once(line: Line) -> None:
    for _ in range(TIMES):
        lease = running(line.sound)
        line.advance(LEASE + 1)
        line.lose("declare_expired", line.store.declare_expired)

        assert line.store.declare_expired() == frozenset()
        assert line.sound.workers() == []
        (rescued,) = line.store.rescue()
        assert (rescued.id, rescued.cause) == (lease.job_id, "host")
        assert_crashed_once(line.sound, lease)


def test_rescues_whose_replies_were_lost_charge_once(line: Line) -> None:
    for _ in range(TIMES):
        lease = running(line.sound)
        line.sound.declare_dead([lease.worker_id])

        assert line.twice("end", line.store.rescue) == []

        assert_crashed_once(line.sound, lease)


def test_settles_whose_replies_were_lost_charge_once(line: Line) -> None:
    for _ in range(TIMES):
        worker = start(line.sound)
        guilty, neighbour = running(line.sound, worker), running(line.sound, worker)
        verdict = {guilty.job_id: Crashed("killed", process_died=True)}

        def settle(worker: str = worker, verdict: dict[str, Crashed] = verdict) -> list[Rescued]:
            return line.store.settle(worker, verdict, Released())

        assert line.twice("end", settle) == []

        assert_crashed_once(line.sound, guilty)
        view = look(line.sound, neighbour.job_id)
        assert (view.state, view.crashes, len(line.sound.attempts(view.id))) == (State.QUEUED, 0, 1)
        assert line.sound.renew([worker]) == frozenset()
        line.sound.delete([neighbour.job_id])


@pytest.mark.parametrize("script", ["redelivered", "end"])
def test_redeliveries_whose_replies_were_lost_charge_once(script: str, line: Line) -> None:
    for _ in range(TIMES):
        lease = running(line.sound)
        line.advance(LEASE + 1)

        told = line.twice(script, lambda lease=lease: line.store.redelivered(lease.job_id, declare=True))  # type: ignore[misc]

        assert told == State.QUEUED or (isinstance(told, Rescued) and told.cause == "queue")
        assert line.sound.workers() == []
        assert_crashed_once(line.sound, lease)


def assert_crashed_once(store: Store, lease: Lease) -> None:
    view = look(store, lease.job_id)
    assert (view.state, view.crashes, view.crashes_total) == (State.QUEUED, 1, 1)
    assert [each.attempt for each in store.attempts(view.id)] == [1]
    store.delete([view.id])


# ── A whole worker ──────────────────────────────────────────────────────────────────────────────────────────────

LOST = 100 if FULL else 5
SLOTS = 4


@pytest.fixture
def site(server: Valkey, tmp_path: Path) -> Iterator[Site]:
    with server.namespace() as namespace, Site(tmp_path, Place(server.url, namespace)) as site:
        yield site


def test_a_worker_runs_once_what_it_claimed_and_was_not_told_of(
    site: Site, server: Valkey, proxy: Proxy, tell: Tell
) -> None:
    jobs = shop.jobs.enqueue_many([shop.effect.bind(0.02) for _ in range(LOST * SLOTS)])
    claimed = digest(server, "claim", given_time=False, rings=True)
    proxy.cut_reply_to(claimed, LOST, answered=lambda reply: answered(reply) and reply[:2] != b"*0")
    site.supervisor(concurrency=SLOTS, env={"TENURE_URL": by_way_of(site.place.url, proxy.port)})

    views = site.ended(*jobs, seconds=LOST * 2 + 60)

    assert proxy.cuts == LOST
    assert {(view.state, view.attempt, view.crashes_total) for view in views} == {("completed", 1, 0)}
    runs = runs_of(site.lines())
    assert {len(each) for each in runs.values()} == {1}
    assert overlaps(runs) == []
    assert_counted(site.store)
    tell(f"{LOST} replies to the claims of a worker lost: {len(jobs)} jobs run once, all in their attempt 1")
