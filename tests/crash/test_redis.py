"""What a Redis server can do to us: die, lose the end of its append-only file, forget its scripts, be full.

With `appendfsync always` nothing that was answered is lost. `everysec` may lose the last seconds before a power cut:
that loss is made here, by a restart from a copy of the file, and a checker holds every job against what the copy knows.
"""

# pyright: reportUnknownMemberType=false
# (redis-py leaves some of its types open)
from __future__ import annotations

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conformance.factories import draft
from servers import Valkey
from tenure.core.clock import system_clock
from tenure.core.lifecycle import ENDED
from tenure.errors import StoreAway
from tenure.ports import JobView, Store
from tenure.stores.redis import RedisStore
from tenure.tasks.handle import JobHandle

from . import shop
from .altered import altered
from .backends import Place
from .conftest import Tell
from .harness import FULL, Line, Site, Supervised, boot, runs_of
from .storm import SIZES, Report, Storm
from .test_lost_replies_redis import all_jobs, assert_counted

LEASE = 9.0
WINDOW = 2.0  #: what `appendfsync everysec` may lose
LONGER = 20.0  #: so long that the loss costs no worker its lease, however slow this machine is


@pytest.fixture
def fsync() -> str:
    return "everysec"


@pytest.fixture
def server(fsync: str) -> Iterator[Valkey]:
    with Valkey({"appendfsync": fsync}) as server:
        yield server


@pytest.fixture
def site(server: Valkey, tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, Place(server.url)) as site:
        yield site
        if server.running:
            assert_counted(site.store)


@contextmanager
def enqueueing(answered: dict[str, float], handles: list[JobHandle[int]]) -> Generator[None]:
    """A client that sends job after job, each again under the same id until it is answered; `answered` says when."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.01):
            job = shop.effect.bind(0.02)
            while str(job.id) not in answered:
                try:
                    handles.append(job.enqueue())
                except StoreAway:
                    time.sleep(0.01)
                else:
                    answered[str(job.id)] = boot()

    client = threading.Thread(target=send, daemon=True)
    client.start()
    try:
        yield
    finally:
        over.set()
        client.join(30)


# ── Another one starts ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_starts_beside_a_hundred_long_jobs_takes_none_of_them(site: Site, tell: Tell) -> None:
    site.supervisor(lease=f"{LEASE:g}s", concurrency=100)
    jobs = shop.jobs.enqueue_many([shop.wait.bind() for _ in range(100)])
    site.until(lambda: len(site.lines(event="begin")) == 100, "all hundred to run")
    (owner,) = site.store.workers()
    before = [site.job(job) for job in jobs]

    for host in ({}, {"TENURE_HOST_ID": "other"}):
        site.supervisor(lease=f"{LEASE:g}s", env=host)
    site.until(lambda: len(site.store.workers()) == 3, "the others")
    site.until(lambda: all(scanned(each) > 3 for each in others(site, owner.identity.id)), "three scans of each", 60)

    assert [site.job(job) for job in jobs] == before
    assert {(view.attempt, view.worker_id) for view in before} == {(1, owner.identity.id)}
    taken = shop.effect.enqueue(0.0)
    site.ended(taken)
    assert site.seen(taken, "begin").pid != owner.identity.pid, "they do work"
    site.go()
    views = site.ended(*jobs)
    assert {(view.state, view.attempt, view.crashes_total) for view in views} == {("completed", 1, 0)}
    assert {Counter(line.event for line in site.lines(job))["begin"] for job in jobs} == {1}
    assert {Counter(line.event for line in site.lines(job))["end"] for job in jobs} == {1}
    tell(f"100 jobs ran on beside {len(others(site, owner.identity.id))} others: 100 begins, 100 ends, attempts all 1")


def others(site: Site, owner: str) -> list[float]:
    """For how long each has been there after its first lease, in which a new process declares no worker dead."""
    return [
        (each.renewed_at - each.started_at).total_seconds() - LEASE
        for each in site.store.workers()
        if each.identity.id != owner
    ]


def scanned(seconds: float) -> float:
    """How many scans there were at least: one is due every sixth of a lease, give or take a fifth."""
    return seconds / (LEASE / 6 * 1.2)


# ── It dies, and loses nothing ──────────────────────────────────────────────────────────────────────────────────


class ServerStorm(Storm):
    """…in which the server dies too, as often as the others, while a client goes on enqueueing."""

    def __init__(self, site: Site, server: Valkey, jobs: int, kills: int, seed: int) -> None:
        super().__init__(site, jobs, kills, seed)
        self._server = server

    def run(self) -> Report:
        site, began = self._site, boot()
        handles = shop.jobs.enqueue_many([shop.effect.bind(round(seconds, 3)) for seconds in self._seconds])
        supervisors = [self._start(size) for size in SIZES]
        with enqueueing({}, handles):
            for _ in range(self._kills):
                time.sleep(self._draw.uniform(0.2, 0.8))
                # A supervisor that can't reach the server when it starts ends with 75, as it should.
                site.until(lambda: self._all_up(supervisors), "every supervisor to have begun")
                self._server.kill()
                self._server.start()
                self._count["server"] += 1
                self._kill_one(supervisors)
        site.ended(*handles, seconds=120 + len(handles) / 10)
        seconds = boot() - began
        return self._judge(handles, seconds, self._stopped(supervisors))

    def _all_up(self, supervisors: Sequence[Supervised]) -> bool:
        registered = {each.identity.pid for each in self._site.store.workers()}
        return all(registered.intersection(each.workers()) for each in supervisors)


@pytest.mark.parametrize("fsync", ["always"])
def test_a_server_that_syncs_always_loses_nothing_and_accepts_nothing_twice(
    site: Site, server: Valkey, tell: Tell
) -> None:
    kills, seed = 50 if FULL else 5, random.SystemRandom().randrange(1, 1 << 32)

    report = ServerStorm(site, server, 2000 if FULL else 150, kills, seed).run()

    tell(f"the server killed {report.kills['server']} times; {report}")
    assert not report.wrong, report
    assert set(Counter((line.job, line.attempt) for line in site.lines(event="begin")).values()) == {1}
    assert report.kills["server"] == kills


# ── It dies, and loses two seconds ──────────────────────────────────────────────────────────────────────────────


@dataclass
class Loss:
    """What a restart from an older copy has undone. Whatever that does not explain is `wrong`."""

    since: float  #: all that was answered before is in the copy
    killed: float  #: nothing was answered later, until…
    restarted: float  #: …it was started again
    gone: list[str] = field(default_factory=list[str])
    begun_again: list[str] = field(default_factory=list[str])
    accepted_again: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])

    def judge(
        self,
        site: Site,
        answered: Mapping[str, float],
        kept: Sequence[JobView],
        last: Sequence[JobView],
    ) -> None:
        """`answered`: when each enqueue was; `kept`, `last`: all jobs before the copy was made, and before the kill."""
        now = {view.id: view for view in all_jobs(site.store)}
        begins = site.lines(event="begin")
        again = {line.job for line in begins if line.at > self.restarted}
        for job, at in answered.items():
            if job not in now:
                self.gone.append(job)
                if at < self.since:
                    self.wrong.append(f"{job} was answered {self.since - at:.3f} s before the loss, and is gone")
        self.wrong += [f"{job} is gone and was started again" for job in again.intersection(self.gone)]
        for view in kept:
            later = {line.attempt for line in begins if line.job == view.id and line.at > self.restarted}
            if view.id not in now:
                self.wrong.append(f"{view.id} was there before the loss, and is gone")
            elif view.state in ENDED and (now[view.id] != view or later):
                self.wrong.append(f"{view.id} had ended before the loss, and was touched")
            if min(later, default=view.attempt + 1) < view.attempt + (view.state != "processing"):
                self.wrong.append(f"{view.id} had attempt {view.attempt} before the loss, and then began {later}")
        first: dict[tuple[str, int], Line] = {}
        for line in begins:
            before = first.setdefault((line.job, line.attempt), line)
            if before is line:
                continue
            self.begun_again.append(line.job)
            if (
                before.at < self.since and line.pid != before.pid
            ):  # otherwise it still has its lease: only the outcome is lost
                self.wrong.append(
                    f"{line.job} was claimed before the loss, and its attempt {line.attempt} issued again"
                )
            if line.at < self.killed:
                self.wrong.append(f"{line.job} began its attempt {line.attempt} twice before the loss was there")
        self.accepted_again = [view.id for view in last if view.state in ENDED and view.id in again]
        self.wrong += [f"{view.id} is {view.state}" for view in now.values() if view.state != "completed"]
        self.wrong += beside(site.lines())

    def __str__(self) -> str:
        return (
            f"{self.killed - self.since:.2f} s lost: {len(self.gone)} jobs gone, {len(self.begun_again)} attempts "
            f"begun twice, {len(self.accepted_again)} outcomes accepted twice; outside of them: {len(self.wrong)}"
        )


def beside(lines: Sequence[Line]) -> list[str]:
    """Jobs that began in a process before their former code in it had stopped."""
    running: set[tuple[str, int]] = set()
    found: list[str] = []
    for line in lines:
        code = line.job, line.pid
        if line.event == "begin":
            if code in running:
                found.append(f"{line.job} began in process {line.pid}, which still ran it")
            running.add(code)
        elif line.event == "end" or line.event.startswith("stopped"):
            running.discard(code)
    return found


@contextmanager
def losing(server: Valkey, copy: Path) -> Generator[Loss]:
    """At the end the server forgets what it was told in here: it restarts from a copy made at the beginning."""
    aof = server.folder / "appendonlydir"
    loss = Loss(boot(), 0.0, 0.0)
    with server.client() as client:
        client.set("mark", "1")
        synced: Any = client.waitaof(1, 0, 10_000)
    assert synced[0] == 1
    shutil.copytree(aof, copy)
    yield loss
    server.kill()
    loss.killed = boot()
    shutil.rmtree(aof)
    shutil.copytree(copy, aof)
    loss.restarted = boot()
    server.start()


@pytest.mark.parametrize("round_", range(10 if FULL else 1))
def test_a_server_that_syncs_every_second_loses_that_and_touches_nothing_else(
    site: Site, server: Valkey, tmp_path: Path, tell: Tell, round_: int
) -> None:
    first = site.supervisor(lease=f"{LONGER:g}s", concurrency=20, env={"TENURE_QUEUES": "default,held"})
    site.store.pause("held", paused=True)  # no worker has claimed its jobs before the copy is made
    answered: dict[str, float] = {}
    fresh: list[JobHandle[int]] = []
    with enqueueing(answered, fresh):
        older = [shop.wait.enqueue() for _ in range(3)]
        for job in older:
            site.seen(job, "begin")
        site.until(lambda: len(site.lines(event="end")) > 30, "some jobs to have ended")
        held: dict[str, Any] = {"queue": "held", "delay": "500ms"}
        soon = [shop.wait.using(**held).enqueue() for _ in range(3)]
        slow = shop.effect_in_thread.using(**held).enqueue(3.5)  # it can't be stopped before it ends
        brief = [shop.effect.using(**held).enqueue(0.02) for _ in range(10)]
        elsewhere = shop.wait.using(queue="second").enqueue()
        kept = all_jobs(site.store)

        with losing(server, tmp_path / "copy") as loss:
            site.store.pause("held", paused=False)
            second = site.supervisor(lease=f"{LONGER:g}s", env={"TENURE_QUEUES": "second"})
            stranger = site.seen(elsewhere, "begin").pid
            site.until(lambda: all(site.lines(job, "begin") for job in (*soon, slow)), "the others to begin")
            site.ended(*brief)
            site.until(lambda: boot() - loss.since > WINDOW, "two seconds")
            workers = {each.identity.id: each.identity.pid for each in site.store.workers()}
            last = all_jobs(site.store)

        site.store.pause("held", paused=False)  # that, too, was lost
        lost: list[JobHandle[Any]] = [*soon, slow, elsewhere]
        site.until(lambda: all(len(site.lines(job, "begin")) == 2 for job in lost), "what was lost to begin again")
    site.go()
    site.until(lambda: not any(sum(queue.counts.values()) for queue in site.store.queues()), "all to end")
    # The claim of its first run was lost: that run's outcome fits the second run's lease, and may be stored first.
    site.until(lambda: len(site.lines(slow, "end")) == 2, "the end of what nobody can stop")
    loss.judge(site, answered, kept, last)

    tell(str(loss))
    assert not loss.wrong, loss.wrong
    assert {str(job.id) for job in lost} <= {*loss.begun_again}
    assert {str(job.id) for job in brief} <= {*loss.accepted_again}
    assert loss.gone, "a client was told of jobs within the window"
    for job in soon:
        assert [line.event for line in site.lines(job)] == ["begin", "stopped lease_lost", "begin", "end"]
    assert [line.event for line in site.lines(slow)] == ["begin", "end", "begin", "end"]
    for job in older:
        assert [line.event for line in site.lines(job)] == ["begin", "end"], "an attempt with a kept claim runs on"
    (successor,) = second.workers()
    assert stranger in workers.values()
    assert stranger != successor, "a worker of which nothing is known is replaced"
    assert {each.identity.pid for each in site.store.workers()} == {successor, *first.workers()}


# ── It forgets its scripts, and it is full ──────────────────────────────────────────────────────────────────────


def test_scripts_that_are_flushed_again_and_again_are_sent_again(site: Site, server: Valkey, tell: Tell) -> None:
    count = 2000 if FULL else 300
    over, flushed = threading.Event(), [0]

    def flush() -> None:
        with server.client() as client:
            while not over.wait(0.002):
                client.script_flush()
                flushed[0] += 1

    flusher = threading.Thread(target=flush)
    flusher.start()
    try:
        site.supervisor(concurrency=10, workers=2)
        jobs = shop.jobs.enqueue_many([shop.effect.bind(0.01) for _ in range(count)])
        views = site.ended(*jobs)
    finally:
        over.set()
        flusher.join()

    assert {(view.state, view.attempt) for view in views} == {("completed", 1)}
    assert {len(runs) for runs in runs_of(site.lines()).values()} == {1}
    tell(f"scripts flushed {flushed[0]} times while {count} jobs ran: each completed in its attempt 1")


@contextmanager
def full(server: Valkey, store: Store) -> Generator[list[str]]:
    """Limit it to a little above what it uses, and use that up. Yields the ids of the jobs that could be stored."""
    used = server.execute("INFO", "memory")["used_memory"]
    server.execute("CONFIG SET", "maxmemory", used + (1 << 20))
    stored: list[str] = []
    with pytest.raises(StoreAway, match=r"out of memory .*: raise its maxmemory, .* Nothing of this was stored"):
        while True:
            stored += [each.id for each in store.enqueue([draft(queue="ballast", payload=f'"{"x" * 10_000}"')])]
    server.execute("CONFIG SET", "maxmemory", used)  # its use varies, and it must be full at every moment
    yield stored
    server.execute("CONFIG SET", "maxmemory", 0)


def test_what_runs_when_the_server_is_full_ends_and_all_goes_on_when_it_is_not(
    site: Site, server: Valkey, tell: Tell
) -> None:
    supervisor = site.supervisor(lease=f"{LEASE:g}s", concurrency=10, env={"TENURE_QUEUES": "default"})
    jobs = [task.enqueue() for task in (shop.wait, shop.wait_in_thread) * 3]  # the latter has always something to say
    for job in jobs:
        site.seen(job, "begin")
    waiting = shop.jobs.enqueue_many([shop.effect.bind(0.02) for _ in range(20)])
    site.store.pause("default", paused=True)
    later = shop.jobs.enqueue_many([shop.effect.bind(0.02) for _ in range(20)])
    workers = supervisor.workers()

    with full(server, site.store) as stored:
        with pytest.raises(StoreAway, match="out of memory"):
            shop.effect.enqueue(0.0)
        at = site.store.now()
        (worker,) = site.store.workers()
        site.until(lambda: site.store.workers()[0].renewed_at - at > timedelta(seconds=LEASE), "a lease to be renewed")
        site.store.pause("default", paused=False)
        site.go()
        views = site.ended(*jobs, *waiting, *later)
        assert supervisor.workers() == workers
    views += site.ended(shop.effect.enqueue(0.0))

    assert {(view.state, view.attempt, view.crashes_total) for view in views} == {("completed", 1, 0)}
    assert site.store.workers()[0].identity == worker.identity
    assert not site.lines(event="stopped")
    assert {view.id for view in all_jobs(site.store)} == {*stored, *(view.id for view in views)}
    tell(f"{len(stored)} jobs were stored until it was full; {len(jobs + waiting + later)} ended while it was")


TICKING = """
from shop import Job, jobs, note

@jobs.schedule(every="1s", name="chimes", catch_up="all")
@jobs.task
async def chime(job: Job) -> None:
    note(job, "chime")
"""
PRUNES_WHEN_TOLD = """
import tenure.maintenance.maintenance as duties
duties.PRUNE_SECONDS, duties.random = 1e6, lambda: 1.0
"""


def test_a_full_memory_is_freed_by_pruning_then_the_tick_fires_and_until_empty_ends(
    site: Site, server: Valkey, tell: Tell
) -> None:
    """Firing is refused until several batches are pruned, and here nothing is pruned before room is needed."""
    (site.folder / "ticking.py").write_text(TICKING)
    supervisor = site.supervisor(app="ticking", until_empty=True, before=altered(PRUNES_WHEN_TOLD))
    job = shop.wait.enqueue()
    site.seen(job, "begin")
    site.until(lambda: site.lines(event="chime"), "a first tick")
    clock = system_clock()
    long_ago = RedisStore(server.url, clock=replace(clock, unix=lambda: clock.unix() - 7 * 86400 - 3600))
    long_ago.open()
    ballast = [draft(queue="ballast", payload=f'"{"x" * 10_000}"') for _ in range(3000)]
    long_ago.cancel([each.id for each in long_ago.enqueue(ballast)], "no longer needed")
    long_ago.close()

    server.execute("CONFIG SET", "maxmemory", server.execute("INFO", "memory")["used_memory"] - (20 << 20))
    site.until(lambda: "fire fails" in supervisor.log(), "a tick to be refused")
    since = boot()
    site.until(lambda: site.lines(event="chime")[-1].at > since, "a tick to be fired")
    freed = boot() - since
    site.ended(shop.effect.enqueue(0.0))
    site.until(lambda: not any(view.state == "cancelled" for view in all_jobs(site.store)), "the rest to be pruned")
    site.go()

    assert supervisor.exit_code() == 0
    assert site.job(job).state == "completed"
    assert "fire works again" in supervisor.log()
    assert "out of memory" in supervisor.log()
    assert "out of reach" not in supervisor.log()
    assert "unavailable" not in supervisor.log(), "a store that answers is there, full or not"
    tell(f"from the first tick that a full memory refused to the next one that was fired: {freed:.1f} s")
