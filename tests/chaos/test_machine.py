"""The hard faults: the power is cut, the disk is full or broken, a clock is set, a store comes back as an older copy.

The clients' records are checked afterwards: whatever was answered must be there, each claim must be a new one, and
every accepted outcome must be that of the attempt which the ledger saw last. Where a store loses by its settings, the
loss has to lie within what the docs declare.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (apsw and nats-py leave some of their types open)
from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from nats import connect
from nats.js.api import DiscardPolicy

from conformance.factories import claim_one, draft, finish, put, running, start
from crash import shop
from crash.backends import Place, migrate
from crash.conftest import Tell
from crash.harness import FULL, HERE, SOURCE, Site, Supervised, boot, overlaps, runs_of, send, spread
from crash.storm import verdict
from crash.test_lost_replies_redis import all_jobs
from crash.test_redis import WINDOW, Loss, enqueueing
from servers import Nats, Postgres
from tenure.core.clock import system_clock
from tenure.core.lifecycle import ENDED, Completed, State
from tenure.errors import StoreAway
from tenure.ports import JobView, Progress
from tenure.stores.postgres import PostgresStore
from tenure.stores.sqlite import SqliteStore
from tenure.stores.sqlite.upkeep import LARGEST_LOG

from .machine import FailingDisk, FailingPostgres, FailingValkey, pgbouncer, put_in_its_place, replica, start_again

LEASE = 30.0  #: no fault here lasts two thirds of it
CUTS = 10 if FULL else 2
SOME = 60 if FULL else 20

PATIENCE = 120.0
pytestmark = pytest.mark.timeout(900)
on_servers = pytest.mark.skipif(not FULL, reason="TENURE_TEST_FULL=1 (make evidence) runs it; it needs a C compiler")


# ── Judging ─────────────────────────────────────────────────────────────────────────────────────────────────────


def lost_or_twice(site: Site, answered: Sequence[str], ended: Mapping[str, JobView]) -> list[str]:
    """What is wrong, as sentences, when nothing may be lost. `ended`: jobs that somebody has seen at their end."""
    now = {view.id: view for view in all_jobs(site.store)}
    wrong = [f"{job} was answered, and is gone" for job in answered if job not in now]
    for job, then in ended.items():
        if job in now and (now[job].state, now[job].attempt, now[job].result) != (
            then.state,
            then.attempt,
            then.result,
        ):
            wrong.append(f"{job} had {then.state} in attempt {then.attempt}, and now is {now[job].state}")
    begins = Counter((line.job, line.attempt) for line in site.lines(event="begin"))
    wrong += [f"attempt {attempt} of {job} was issued twice" for (job, attempt), count in begins.items() if count > 1]
    runs = runs_of(site.lines())
    # An attempt whose process died has no end in the ledger.
    wrong += [
        each
        for view in now.values()
        if view.task == shop.effect.name
        for each in verdict(view, runs.get(view.id, []), site)
        if "neither ended nor was killed" not in each
    ]
    return wrong


def seen_ended(site: Site) -> dict[str, JobView]:
    return {view.id: view for view in all_jobs(site.store) if view.state in ENDED}


def more(site: Site, count: int) -> None:
    """Wait until so many more attempts have ended."""
    before = len(site.lines(event="end"))
    site.until(lambda: len(site.lines(event="end")) >= before + count, f"{count} more attempts to end", PATIENCE)


def drained(site: Site) -> None:
    def idle() -> bool:
        try:
            return not any(sum(queue.counts.values()) for queue in site.store.queues())
        except StoreAway:
            return False

    site.until(idle, "all jobs to end", PATIENCE)


# ── SQLite: the power is cut, and the disk can't sync ───────────────────────────────────────────────────────────


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    platter = tmp_path / "platter"
    platter.mkdir()
    disk = FailingDisk(platter)
    yield disk
    disk.unregister()


def frail(site: Site, disk: FailingDisk, **order: Any) -> Supervised:
    """A supervisor whose processes have their files on that disk."""
    path = (Path(__file__).with_name("failing_disk"), SOURCE, HERE, HERE.parent)
    env = {"TENURE_TEST_DISK": str(disk.platter), "PYTHONPATH": os.pathsep.join(map(str, path))}
    return site.supervisor(lease=f"{LEASE:g}s", env=env, **order)


@pytest.mark.parametrize(("synchronous", "left"), [("FULL", 100), ("NORMAL", 0)])
def test_this_disk_forgets_what_was_not_synced(tmp_path: Path, disk: FailingDisk, synchronous: str, left: int) -> None:
    database = tmp_path / "any.db"
    connection = apsw.Connection(str(database))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.pragma("synchronous", synchronous)
    connection.execute("CREATE TABLE t (x)")
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    for number in range(100):
        connection.execute("INSERT INTO t VALUES (?)", (number,))
    safe = disk.cut()
    connection.close()

    disk.revert(database, safe)

    again = apsw.Connection(str(database))
    assert again.execute("SELECT count(*) FROM t").fetchone() == (left,)
    again.close()


def test_a_power_cut_loses_nothing_of_what_sqlite_answered(tmp_path: Path, disk: FailingDisk, tell: Tell) -> None:
    place = Place(f"sqlite:///{tmp_path / 'tenure.db'}")
    answered: dict[str, float] = {}
    ended: dict[str, JobView] = {}
    interrupted = 0
    for _ in range(CUTS):
        with Site(tmp_path, place) as site:
            frail(site, disk, workers=2)
            with enqueueing(answered, []):
                more(site, SOME)
            ended |= seen_ended(site)
            site.clear()
            safe = disk.cut()
            interrupted += sum(view.state == "processing" for view in all_jobs(site.store))
        disk.revert(tmp_path / "tenure.db", safe)
    with Site(tmp_path, place) as site:
        frail(site, disk, workers=2)
        drained(site)
        wrong = lost_or_twice(site, list(answered), ended)
        again = sum(view.attempt > 1 for view in all_jobs(site.store))

    assert wrong == []
    assert overlaps(runs_of(site.lines())) == []
    tell(f"{CUTS} cuts among {len(answered)} jobs: {interrupted} were running, {again} ran again, none lost")


def test_a_disk_that_can_not_sync_refuses_and_loses_nothing(tmp_path: Path, disk: FailingDisk, tell: Tell) -> None:
    with Site(tmp_path, Place(f"sqlite:///{tmp_path / 'tenure.db'}")) as site:
        supervisor = frail(site, disk, workers=2)
        answered: dict[str, float] = {}
        with enqueueing(answered, []):
            more(site, SOME)
            ended = seen_ended(site)
            with disk.broken():
                refused = shop.effect.bind(0.0)
                with pytest.raises(StoreAway, match="the disk returned an error"):
                    refused.enqueue()
                site.until(lambda: "store is unavailable" in supervisor.log(), "the workers to report it", PATIENCE)
            more(site, SOME)
        drained(site)

        assert lost_or_twice(site, list(answered), ended) == []
        assert overlaps(runs_of(site.lines())) == []
        assert max(view.crashes_total for view in all_jobs(site.store)) == 0
        tell(f"{len(answered)} jobs, {sum(view.attempt > 1 for view in all_jobs(site.store))} ran again")


# ── Servers, one bad machine each ───────────────────────────────────────────────────────────────────────────────

AServer = FailingPostgres | FailingValkey
Fault = Callable[[AServer, Site], AbstractContextManager[None]]


def postgres() -> FailingPostgres:
    """Its own settings are weaker than what is promised: a claim raises them."""
    return FailingPostgres({"synchronous_commit": "off"})


def valkey_always() -> FailingValkey:
    return FailingValkey({"appendfsync": "always"})


def valkey_everysec() -> FailingValkey:
    return FailingValkey({"appendfsync": "everysec"})


def on(*servers: Callable[[], AServer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("new", servers, ids=lambda new: new.__name__)


@pytest.fixture
def server(new: Callable[[], AServer]) -> Iterator[AServer]:
    with new() as server:
        yield server


@pytest.fixture
def site(server: AServer, tmp_path: Path) -> Iterator[Site]:
    place = Place(server.url() if isinstance(server, FailingPostgres) else server.url)
    migrate(place)
    with Site(tmp_path, place) as site:
        yield site


@contextmanager
def full_disk(server: AServer, site: Site) -> Generator[None]:
    with server.machine.full():
        yield


@contextmanager
def full_disk_for_the_log(server: AServer, site: Site) -> Generator[None]:
    """Without room for its log, PostgreSQL panics, and can't even recover."""
    with server.machine.full():
        with suppress(psycopg.Error):
            server.execute("SELECT pg_switch_wal()")
        yield


@contextmanager
def disk_that_can_not_sync(server: AServer, site: Site) -> Generator[None]:
    with server.machine.broken():
        yield


def back(server: AServer, site: Site) -> None:
    """Wait until it takes writes again. If the fault ended it, it is started; if it still refuses, it is killed first:
    a Redis that failed to sync in the background tries again only when it has something new to sync, and
    PostgreSQL 18 waits for ever for a recovery that has failed.
    """
    patient_until = boot() + 10.0

    def answer() -> bool:
        nonlocal patient_until
        if not server.running:
            start_again(server)
        try:
            shop.effect.enqueue(0.0)
        except StoreAway:
            if boot() > patient_until:
                server.kill()
                server.start()
                patient_until = boot() + 10.0
            return False
        return True

    site.until(answer, "the server to take writes", PATIENCE)


def hosts(site: Site) -> list[Supervised]:
    return [site.supervisor(lease=f"{LEASE:g}s", env={"TENURE_HOST_ID": name}, workers=2) for name in ("one", "other")]


@on_servers
@on(postgres, valkey_always)
def test_a_power_cut_loses_nothing_of_what_a_server_answered(site: Site, server: AServer, tell: Tell) -> None:
    hosts(site)
    answered: dict[str, float] = {}
    ended: dict[str, JobView] = {}
    lost = 0
    with enqueueing(answered, []):
        for _ in range(CUTS):
            more(site, SOME)
            ended |= seen_ended(site)
            lost += server.cut_power()
            server.start()
            back(server, site)
        more(site, SOME)
    drained(site)

    assert lost_or_twice(site, list(answered), ended) == []
    assert overlaps(runs_of(site.lines())) == []
    assert lost > 0, "it had nothing unsynced: the cuts were none"
    tell(f"{CUTS} cuts among {len(answered)} jobs took {lost} unsynced bytes, and nothing that was answered")


@on_servers
@pytest.mark.parametrize(
    ("new", "fault"),
    [
        *product((postgres, valkey_always, valkey_everysec), (full_disk, disk_that_can_not_sync)),
        (postgres, full_disk_for_the_log),
    ],
    ids=lambda each: each.__name__,
)
def test_a_server_whose_disk_is_full_or_broken_refuses_and_loses_nothing(
    site: Site, server: AServer, fault: Fault, tell: Tell
) -> None:
    hosts(site)
    answered: dict[str, float] = {}
    with enqueueing(answered, []):
        more(site, SOME)
        ended = seen_ended(site)
        said = ""
        with fault(server, site):

            def refuses() -> bool:
                nonlocal said
                try:
                    shop.jobs.enqueue_many([shop.effect.bind(0.0) for _ in range(100)])
                except StoreAway as error:
                    said = str(error)
                return bool(said)

            site.until(refuses, "an enqueue to be refused", PATIENCE)
            at = boot()
            site.until(lambda: boot() - at > 1.0, "a second of it")
        back(server, site)
        more(site, SOME)
    drained(site)

    assert server.machine.refused > 0
    assert lost_or_twice(site, list(answered), ended) == []
    assert overlaps(runs_of(site.lines())) == []
    assert max(view.crashes_total for view in all_jobs(site.store)) == 0
    tell(f"refused {server.machine.refused} times, told as: {said}")


@on_servers
@on(valkey_everysec)
@pytest.mark.parametrize("cut", range(3))
def test_a_power_cut_loses_no_more_than_is_declared(site: Site, server: AServer, tell: Tell, cut: int) -> None:
    hosts(site)
    answered: dict[str, float] = {}
    with enqueueing(answered, []):
        more(site, SOME)
        kept = all_jobs(site.store)
        loss = Loss(boot(), 0.0, 0.0)
        time.sleep(WINDOW)  # the window itself, not a wait for something
        last = all_jobs(site.store)
        lost = server.cut_power()
        loss.killed = loss.restarted = boot()
        server.start()
        back(server, site)
    drained(site)
    loss.judge(site, answered, kept, last)

    assert loss.wrong == [], loss.wrong
    assert lost > 0, "it had nothing unsynced: the cut was none"
    tell(f"{lost} unsynced bytes: {loss}")


def renewed_since(site: Site, at: datetime) -> bool:
    """Has every worker that is not dead been renewed? And there are some."""
    living = [each for each in site.store.workers() if each.died_at is None]
    return bool(living) and all(at < each.renewed_at < at + timedelta(minutes=30) for each in living)


@on_servers
@on(postgres, valkey_always)
@pytest.mark.parametrize("hours", [1, -1])
def test_a_store_whose_clock_is_set_accepts_nothing_twice(site: Site, server: AServer, tell: Tell, hours: int) -> None:
    hosts(site)
    long = [shop.wait.enqueue() for _ in range(4)]
    answered: dict[str, float] = {}
    with enqueueing(answered, []):
        for job in long:
            site.seen(job, "begin", seconds=PATIENCE)
        more(site, SOME)
        ended = seen_ended(site)
        before = site.store.now()
        server.machine.set_clock(hours * 3600.0)
        assert abs((site.store.now() - before).total_seconds() - hours * 3600.0) < 60.0
        more(site, SOME)
        set_at = site.store.now()
        site.until(lambda: renewed_since(site, set_at), "the workers to be renewed by the new time", PATIENCE)
        site.go()
        more(site, SOME)
    drained(site)

    assert lost_or_twice(site, list(answered), ended) == []
    twice = overlaps(runs_of(site.lines()))
    views = all_jobs(site.store)
    assert hours > 0 or (not twice and max(view.crashes_total for view in views) == 0)
    tell(
        f"{hours:+d} h: {sum(view.crashes_total for view in views)} attempts of the living were taken back, "
        f"{len(twice)} ran on beside their successors, and nothing of them was accepted"
    )


# ── A store comes back as an older copy ─────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def test_a_postgres_that_fails_over_to_an_older_copy_loses_that_and_touches_nothing_else(
    primary: Postgres, tmp_path: Path, tell: Tell
) -> None:
    place = Place(primary.create_database())
    migrate(place)
    with Site(tmp_path, place) as site:
        site.supervisor(lease="60s", concurrency=20, env={"TENURE_QUEUES": "default,held"})
        site.store.pause("held", paused=True)
        answered: dict[str, float] = {}
        with enqueueing(answered, []):
            older = [shop.wait.enqueue() for _ in range(3)]
            for job in older:
                site.seen(job, "begin", seconds=PATIENCE)
            more(site, SOME)
            held = [shop.wait.using(queue="held").enqueue() for _ in range(3)]
            brief = [shop.effect.using(queue="held").enqueue(0.02) for _ in range(5)]
            kept = all_jobs(site.store)
            loss = Loss(boot(), 0.0, 0.0)
            copy = replica(primary)
            site.store.pause("held", paused=False)
            for job in held:
                site.seen(job, "begin", seconds=PATIENCE)
            site.ended(*brief, seconds=PATIENCE)
            last = all_jobs(site.store)
            primary.kill()
            loss.killed = boot()
            put_in_its_place(primary, copy)
            loss.restarted = boot()
            primary.start()
            for job in held:
                site.seen(job, "stopped lease_lost", seconds=PATIENCE)
            site.store.pause("held", paused=False)  # that, too, was lost
            for job in held:
                site.until(lambda job=job: len(site.lines(job, "begin")) == 2, "a lost claim", PATIENCE)  # type: ignore[misc]
        site.go()
        drained(site)
        loss.judge(site, answered, kept, last)

        assert loss.wrong == [], loss.wrong
        assert loss.gone, "a client was told of jobs that the copy does not have"
        assert {str(job.id) for job in brief} <= {*loss.accepted_again}
        for job in held:
            assert [line.event for line in site.lines(job)] == ["begin", "stopped lease_lost", "begin", "end"]
        for job in older:
            assert [line.event for line in site.lines(job)] == ["begin", "end"], "whose claim is kept runs on"
        tell(str(loss))


def test_of_a_lost_timeline_no_outcome_is_taken_for_that_of_another_worker(primary: Postgres) -> None:
    """The copy knows nothing of a claim, and grants the same attempt again: to another worker."""
    with closing(PostgresStore(primary.create_database())) as store:
        store.migrate()
        store.open()
        one, other = start(store), start(store)
        job = put(store)
        copy = replica(primary)
        lost = claim_one(store, one)
        primary.kill()
        put_in_its_place(primary, copy)
        primary.start()
        early = finish(store, lost, Completed('"early"'))
        granted = claim_one(store, other)
        late = finish(store, lost, Completed('"late"'))
        (told,) = store.progress([Progress(lease=lost, checkpoint="7")])
        landed = finish(store, granted, Completed('"mine"'))

        assert (granted.job_id, granted.attempt) == (lost.job_id, lost.attempt)
        assert (early, late, told, landed) == (None, None, False, State.COMPLETED)
        assert (view := store.get(job)) is not None
        assert (view.state, view.result) == (State.COMPLETED, '"mine"')


def test_a_restored_backup_of_sqlite_is_what_there_was_and_all_of_it_goes_on(tmp_path: Path, tell: Tell) -> None:
    database, copy = tmp_path / "tenure.db", tmp_path / "copy.db"
    place = Place(f"sqlite:///{database}")
    answered: dict[str, float] = {}
    with Site(tmp_path, place) as site:
        site.supervisor(workers=2)
        with enqueueing(answered, []):
            running = [shop.wait.enqueue() for _ in range(3)]
            for job in running:
                site.seen(job, "begin", seconds=PATIENCE)
            more(site, SOME)
            kept, loss = all_jobs(site.store), Loss(boot(), 0.0, 0.0)
            tenure = [sys.executable, "-c", "from tenure.cli.main import run; run()"]
            env = {**os.environ, "PYTHONPATH": str(SOURCE)}
            subprocess.run([*tenure, "backup", str(copy), "--url", place.url], check=True, capture_output=True, env=env)
            more(site, SOME)
        last = all_jobs(site.store)
        site.clear()
        loss.killed = boot()
    shutil.move(copy, database)
    for left in ("-wal", "-shm"):
        database.with_name(f"{database.name}{left}").unlink(missing_ok=True)
    with Site(tmp_path, place) as site:
        loss.restarted = boot()
        site.supervisor(workers=2)
        site.go()
        drained(site)
        loss.judge(site, answered, kept, last)

        assert loss.wrong == [], loss.wrong
        assert loss.gone
        assert {site.job(job).attempt for job in running} == {2}
        tell(str(loss))


# ── Somebody else holds the store up ────────────────────────────────────────────────────────────────────────────


@contextmanager
def old_snapshot(server: AServer) -> Generator[None]:
    """A transaction that somebody forgot: vacuum may remove nothing that has died since."""
    assert isinstance(server, FailingPostgres)
    with psycopg.connect(server.url()) as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM pg_class")
        yield


@contextmanager
def slow_script(server: AServer) -> Generator[None]:
    """For seconds the server runs nothing but this script, and tells every client that it is busy."""
    assert isinstance(server, FailingValkey)
    server.execute("CONFIG SET", "busy-reply-threshold", 5)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(server.execute, "EVAL", "while true do end", 0)
        time.sleep(3.0)  # the slowness itself, not a wait for something
        server.execute("SCRIPT", "KILL")
        assert "killed by user" in str(running.exception())
    yield


@on_servers
@pytest.mark.parametrize(
    ("new", "held_up"), [(postgres, old_snapshot), (valkey_always, slow_script)], ids=["old snapshot", "slow script"]
)
def test_work_goes_on_though_somebody_holds_the_server_up(
    site: Site, server: AServer, held_up: Callable[[AServer], AbstractContextManager[None]], tell: Tell
) -> None:
    hosts(site)
    answered: dict[str, float] = {}
    with enqueueing(answered, []):
        more(site, SOME)
        with held_up(server):
            shop.jobs.enqueue_many([shop.effect.bind(0.0) for _ in range(2000)])
            more(site, 2000)
            waits = [begun_after(site) for _ in range(20)]
    drained(site)

    assert lost_or_twice(site, list(answered), {}) == []
    assert overlaps(runs_of(site.lines())) == []
    assert max(view.crashes_total for view in all_jobs(site.store)) == 0
    tell(f"after 2000 jobs of it, from enqueue to start: {spread(waits)}")


def begun_after(site: Site) -> float:
    at = boot()
    return site.seen(shop.effect.using(priority=100).enqueue(0.0), "begin", seconds=PATIENCE).at - at


def test_the_log_of_sqlite_grows_while_somebody_reads_an_old_state_and_shrinks_when_they_are_done(
    tmp_path: Path, tell: Tell
) -> None:
    database = tmp_path / "tenure.db"
    log = database.with_name("tenure.db-wal")
    read = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN'); "
    read += "c.execute('SELECT count(*) FROM jobs').fetchone(); print(flush=True); sys.stdin.read()"
    with closing(SqliteStore(str(database))) as store:
        store.open()
        with subprocess.Popen(
            [sys.executable, "-c", read, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            while log.stat().st_size < LARGEST_LOG * 1.2:
                store.enqueue([draft(queue="ballast", payload=f'"{"x" * 200_000}"') for _ in range(20)])
                store.upkeep()
            largest = log.stat().st_size
            lease = running(store, start(store, boot_id=system_clock().boot_id))
            assert finish(store, lease, Completed()) is State.COMPLETED, "work goes on meanwhile"
        for _ in range(2):  # the first moves it all into the file, and the next write restarts the log
            store.upkeep()
            put(store)

        assert log.stat().st_size <= LARGEST_LOG
        tell(f"{largest >> 20} MiB while it was read, {log.stat().st_size >> 20} MiB afterwards")


@on_servers
def test_behind_a_real_pgbouncer_all_goes_on_and_it_says_that_it_polls(
    primary: Postgres, tmp_path: Path, tell: Tell
) -> None:
    with pgbouncer(primary) as url:
        place = Place(url)
        migrate(place)
        with Site(tmp_path, place) as site:
            supervisors = hosts(site)
            answered: dict[str, float] = {}
            with enqueueing(answered, []):
                more(site, SOME)
                send(site.seen(shop.wait.enqueue(), "begin", seconds=PATIENCE).pid, signal.SIGKILL)
                site.until(lambda: site.lines(event="begin", attempt=2), "its job to begin again", PATIENCE)
                more(site, SOME)
            site.go()
            drained(site)

            assert lost_or_twice(site, list(answered), {}) == []
            assert all("polling" in each.log() for each in supervisors)
            tell(f"{len(answered)} jobs through 4 sessions, which are another's at each transaction")


# ── The queue that only delivers is full ────────────────────────────────────────────────────────────────────────


def limited(nats: Nats, stream: str, most: int) -> None:
    """This many messages, and further ones are refused: a publisher's view of a full disk."""

    async def update() -> None:
        client = await connect(nats.url, allow_reconnect=False)
        manager = client.jetstream()
        config = (await manager.stream_info(stream)).config
        await manager.update_stream(config.evolve(max_msgs=most, discard=DiscardPolicy.NEW))
        await client.close()

    asyncio.run(update())


def test_a_full_nats_costs_latency_and_no_job(tmp_path: Path, tell: Tell) -> None:
    with Nats() as nats:
        place = Place(f"sqlite:///{tmp_path / 'tenure.db'}", notifier=nats.url)
        with Site(tmp_path, place) as site:
            site.supervisor(concurrency=5)
            site.ended(shop.effect.enqueue(0.0), seconds=PATIENCE)
            limited(nats, f"tenure_{place.namespace}", 1)
            jobs = shop.jobs.enqueue_many([shop.effect.bind(0.0) for _ in range(100)])
            site.ended(*jobs, seconds=PATIENCE)
            full = begun_after(site)
            limited(nats, f"tenure_{place.namespace}", -1)
            site.ended(shop.effect.enqueue(0.0), seconds=PATIENCE)

            assert {view.attempt for view in all_jobs(site.store)} == {1}
            assert overlaps(runs_of(site.lines())) == []
            tell(f"102 jobs ran once each; one enqueued while it was full began after {full:.2f} s")
