"""JetStream delivers, the store decides: its messages lost, doubled, late or garbled, itself away, wiped or alone."""

# pyright: reportUnknownMemberType=false
# (nats-py leaves the type of its callbacks' options open)
from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from nats.aio.client import Client

from proxy import Proxy
from servers import Nats, flipped, free_port
from tenure.core.ids import new_id
from tenure.tasks.handle import JobHandle

from . import shop
from .backends import Place, by_way_of, postgres, sqlite
from .conftest import Tell
from .harness import FULL, HERE, Site, Supervised, boot, overlaps, runs_of, send, spread
from .storm import verdict
from .test_two_hosts import watched_for_a_lease

LEASE = 9.0  #: a third of it is how late a renewal may be on a slow machine
ACK_WAIT = 2 * LEASE + 1.0  #: more than two leases and the longest `stale_after` of the shop's tasks
WAIT = f"?ack_wait={ACK_WAIT:g}s"
NEVER = {"TENURE_POLL_INTERVAL": "1h"}  #: a worker that hears rings does not poll

pytestmark = pytest.mark.timeout(300)

TENURE = (sys.executable, "-c", "from tenure.cli.main import run; run()")

Keeper = Callable[[Path], AbstractContextManager[Place]]


class Stream:
    """The queue as a stranger with a connection of their own sees it, and what they can do to it."""

    def __init__(self, url: str, namespace: str) -> None:
        self._url = url
        self._namespace = namespace
        self.name = f"tenure_{namespace}"

    def api(self, verb: str) -> dict[str, Any]:
        return asyncio.run(self._ask(f"$JS.API.{verb}"))

    async def _ask(self, subject: str) -> dict[str, Any]:
        client = await self._connected()
        try:
            found: dict[str, Any] = json.loads((await client.request(subject, b"", timeout=60)).data)
            return found
        finally:
            await client.close()

    def publish(self, bodies: Sequence[bytes], queue: str = "default") -> None:
        asyncio.run(self._publish(f"tenure.{self._namespace}.queue.{queue}", bodies))

    async def _publish(self, subject: str, bodies: Sequence[bytes]) -> None:
        client = await self._connected()
        try:
            for body in bodies:
                await client.publish(subject, body)
            await client.flush()
        finally:
            await client.close()

    async def _connected(self) -> Client:
        client = Client()
        await client.connect(self._url, allow_reconnect=False, connect_timeout=60)
        return client

    def size(self) -> int:
        """How many messages it has; -1: there is no such stream."""
        return int(self.api(f"STREAM.INFO.{self.name}").get("state", {}).get("messages", -1))

    def published(self) -> int:
        """How many messages it was ever given, including those that a free slot took at once."""
        return int(self.api(f"STREAM.INFO.{self.name}").get("state", {}).get("last_seq", 0))

    def consumer(self) -> dict[str, Any]:
        return self.api(f"CONSUMER.INFO.{self.name}.default")

    def purge(self) -> None:
        assert self.api(f"STREAM.PURGE.{self.name}")["success"]

    def delete(self) -> None:
        assert self.api(f"STREAM.DELETE.{self.name}")["success"]


@pytest.fixture
def monitor() -> str:
    """Where this test's server reports its counts."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def nats(monitor: str) -> Iterator[Nats]:
    """A server that may be stopped, killed and wiped."""
    with Nats(settings={"http": monitor}) as server:
        yield server


@pytest.fixture
def keeper() -> Keeper:
    return postgres


@pytest.fixture
def place(keeper: Keeper, nats: Nats, tmp_path: Path) -> Iterator[Place]:
    with keeper(tmp_path) as place:
        yield replace(place, notifier=nats.url + WAIT)


@pytest.fixture
def stream(nats: Nats, place: Place) -> Stream:
    return Stream(nats.url, place.namespace)


@pytest.fixture
def line(place: Place) -> Iterator[Proxy]:
    """The wire between a host and the store."""
    server = urlsplit(place.url)
    with Proxy(server.hostname or "", server.port or 5432) as line:
        yield line


ON_BOTH = pytest.mark.parametrize("keeper", [postgres, sqlite], ids=lambda keeper: keeper.__name__)


def enqueued(site: Site, stream: Stream, number: int, seconds: float = 0.0) -> list[JobHandle[int]]:
    """This many short jobs, each with its message."""
    before = stream.published()
    jobs = shop.jobs.enqueue_many([shop.effect.bind(seconds) for _ in range(number)])
    site.until(lambda: stream.published() >= before + number, f"{number} messages")
    return jobs


def each_ran_once(site: Site, jobs: Sequence[JobHandle[int]]) -> None:
    views = site.ended(*jobs, seconds=120)
    runs = runs_of(site.lines())
    assert {(view.state, view.attempt) for view in views} == {("completed", 1)}
    assert [sentence for view in views for sentence in verdict(view, runs[view.id], site)] == []


def emptied(site: Site, stream: Stream) -> None:
    site.until(lambda: stream.size() == 0, "the last message to be acknowledged", 150)


def start(site: Site, **order: Any) -> Supervised:
    """A supervisor with leases that fit the ack_wait."""
    return site.supervisor(lease=f"{LEASE:g}s", **order)


def busy(site: Site, slots: int, **order: Any) -> Supervised:
    """A supervisor with a worker that is up and has no free slot until told."""
    supervisor = start(site, concurrency=slots, **order)
    for blocker in [shop.wait.enqueue() for _ in range(slots)]:
        site.seen(blocker, "begin")
    return supervisor


# ── What is lost ────────────────────────────────────────────────────────────────────────────────────────────────


def purged(nats: Nats, stream: Stream) -> None:
    stream.purge()


def deleted(nats: Nats, stream: Stream) -> None:
    stream.delete()


def wiped(nats: Nats, stream: Stream) -> None:
    nats.wipe()


@ON_BOTH
@pytest.mark.parametrize("lose", [purged, deleted, wiped], ids=lambda lose: lose.__name__)
def test_a_thousand_jobs_whose_messages_are_all_lost_run_all_the_same(
    site: Site, nats: Nats, stream: Stream, tell: Tell, lose: Callable[[Nats, Stream], None]
) -> None:
    supervisor = busy(site, 5)
    jobs = enqueued(site, stream, 1000)

    lose(nats, stream)
    assert stream.size() in (0, -1)
    at = boot()
    site.go()

    each_ran_once(site, jobs)
    ends = [line.at - at for line in site.lines(event="end") if line.at > at]
    tell(f"1,000 jobs without a message: the first ended {min(ends):.2f} s after the loss, the last {max(ends):.2f} s")
    site.until(lambda: stream.size() == 0, "a stream to be there again")
    each_ran_once(site, enqueued(site, stream, 1))
    assert supervisor.stop() == 0


# ── JetStream lies: between two starts its files change, or what it acknowledged is gone ─────────────────────────────


def first_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def bits_flipped(content: bytes) -> bytes:
    return flipped(content, random.Random(1))


def unknown_field(content: bytes) -> bytes:
    """One bit: the server then takes the file for a newer release's, and stops the stream."""
    return content.replace(b"max_deliver", b"map_deliver")


def whole(stream: Stream, messages: int) -> bool:
    """Would it deliver all of them?"""
    return stream.size() == messages and stream.consumer().get("num_pending", -1) >= 0


#: which of its files are changed, and how
DAMAGES = [
    pytest.param("**/msgs/*.blk", bits_flipped, id="bits of messages"),
    pytest.param("**/msgs/*.blk", first_half, id="half of the messages"),
    pytest.param("**/tenure_*/meta.*", bits_flipped, id="bits of the stream's settings"),
    pytest.param("**/obs/*/meta.inf", first_half, id="half of the consumer's settings"),
    pytest.param("**/obs/*/meta.inf", unknown_field, id="a bit of the consumer's settings"),
    pytest.param("**/obs/*/o.dat", first_half, id="half of the consumer's state"),
]


CONSUMERS = ("**/obs/**/*",)


@pytest.mark.parametrize(("part", "change"), DAMAGES)
def test_jobs_of_a_jetstream_whose_files_are_damaged_start_late_and_none_is_lost(
    site: Site, nats: Nats, stream: Stream, tell: Tell, part: str, change: Callable[[bytes], bytes]
) -> None:
    supervisor = busy(site, 5)
    jobs = enqueued(site, stream, 300)
    messages = stream.size()

    nats.spoil(change, part)
    assert not whole(stream, messages)

    run_late(site, jobs, tell)
    each_ran_once(site, enqueued_somehow(20))
    assert supervisor.stop() == 0


@ON_BOTH
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((), id="all of it"),
        pytest.param(("**/msgs/*",), id="its messages only"),
        pytest.param(CONSUMERS, id="what was acknowledged to it only"),
    ],
)
def test_jobs_of_a_jetstream_that_forgot_what_it_acknowledged_run_all_the_same(
    site: Site, nats: Nats, stream: Stream, tell: Tell, parts: Sequence[str]
) -> None:
    """As after a power cut: it syncs its files every two minutes, and acknowledges at once."""
    supervisor = busy(site, 5)
    early = enqueued(site, stream, 100, 0.05)
    copy = nats.copy()
    late = enqueued(site, stream, 200, 0.05)
    site.go()
    site.until(lambda: len(site.lines(event="end")) > 50, "some to have run")

    nats.restore(copy, *parts)
    assert parts == CONSUMERS or stream.published() < 305, "the last 200 messages are there"

    run_late(site, [*early, *late], tell)
    each_ran_once(site, enqueued_somehow(20))
    assert supervisor.stop() == 0


def enqueued_somehow(number: int) -> list[JobHandle[int]]:
    """Enqueue jobs, whether there is a stream for their messages or not."""
    return shop.jobs.enqueue_many([shop.effect.bind(0.0) for _ in range(number)])


def run_late(site: Site, jobs: Sequence[JobHandle[int]], tell: Tell) -> None:
    at = boot()
    site.go()
    each_ran_once(site, jobs)
    ends = [line.at - at for line in site.lines(event="end") if line.at > at]
    tell(f"{len(jobs)} jobs: the first ended {min(ends):.2f} s after the restart, the last {max(ends):.2f} s")


# ── What comes too often, out of order, too late or garbled ──────────────────────────────────────────────────────


GARBAGE = (b"", b"\xff\xfe\x00", b"{}", b"[]", b"null", b'{"job": 1, "queue": "default"}', b'{"job": "x"}', b"{" * 500)


@ON_BOTH
def test_messages_twice_reordered_late_and_garbled_are_one_accepted_outcome_each(
    site: Site, stream: Stream, tell: Tell
) -> None:
    number = 1000 if FULL else 200
    jobs = enqueued(site, stream, number)
    copies = [json.dumps({"job": str(job.id), "queue": "default"}).encode() for job in jobs]
    strangers = [json.dumps({"job": new_id(), "queue": "default"}).encode() for _ in range(20)]
    shuffled = random.Random(1).sample([*copies, *strangers, *GARBAGE], number + 20 + len(GARBAGE))
    stream.publish(shuffled)
    site.until(lambda: stream.size() == 2 * number + 20 + len(GARBAGE), "all of them to be stored")

    supervisors = [start(site, workers=2, concurrency=20) for _ in range(2)]
    site.until(lambda: len(site.store.workers()) == 4, "all workers")
    each_ran_once(site, jobs)
    emptied(site, stream)
    before = stream.published()
    stream.publish(shuffled)  # like messages that come ten minutes late
    site.until(lambda: stream.published() == before + len(shuffled), "all of them to be stored once more")
    emptied(site, stream)

    each_ran_once(site, jobs)
    assert [each.stop() for each in supervisors] == [0, 0]
    logs = "\n".join(each.log() for each in supervisors)
    assert not re.search(r"ERROR|CRITICAL|Traceback", logs), logs
    warnings = logs.count("a message that no worker can read is discarded")
    tell(f"{number} jobs, {4 * number + 40 + 2 * len(GARBAGE)} messages, {warnings} warnings of garbage")
    assert 1 <= warnings <= 2 * len(GARBAGE)


# ── The queue alone ─────────────────────────────────────────────────────────────────────────────────────────────


def metric(site: Site, supervisor: Supervised, line: str) -> float:
    """One line's value at /metrics; 0 when it is not there yet."""
    said = site.until(lambda: re.search(r"metrics at (http://\S+/metrics)", supervisor.log()), "the address")
    with urllib.request.urlopen(said[1], timeout=60) as answer:
        found = re.search(rf"^{re.escape(line)} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def unscanned(site: Site, host: str, **order: Any) -> Supervised:
    """A supervisor of this host that scans for no jobs: neither those of the dead nor any for itself."""
    before = (sys.executable, str(HERE / "unscanned.py"))
    return start(site, before=before, env={"TENURE_HOST_ID": host, **NEVER}, **order)


def test_without_any_scan_the_jobs_of_a_lost_host_run_again_by_redelivery_alone(
    site: Site, stream: Stream, tell: Tell
) -> None:
    far, other = (unscanned(site, host, concurrency=10) for host in ("far", "other"))
    site.until(lambda: stream.consumer().get("num_waiting") == 2, "their first requests for messages")
    jobs = shop.jobs.enqueue_many([shop.wait.bind() for _ in range(20)])
    for job in jobs:
        site.seen(job, "begin")
    lost = [job for job in jobs if site.worker(job).identity.host == "far"]
    near = unscanned(site, "near", concurrency=10, metrics_listen="127.0.0.1:0")
    site.until(lambda: watched_for_a_lease(site, "near"), "the near host to have watched for a lease", 10 * LEASE)

    at = boot()
    for pid in [far.pid, *far.workers()]:
        send(pid, signal.SIGKILL)
    waits = [site.seen(job, "begin", attempt=2, seconds=90).at - at for job in lost]
    site.go()

    views = site.ended(*lost)
    assert {(view.state, view.attempt, view.crashes_total) for view in views} == {("completed", 2, 1)}
    assert {view.attempt for view in site.ended(*jobs) if view.id not in {str(job.id) for job in lost}} == {1}
    assert (near.log() + other.log()).count("the queue redelivered it") == len(lost) == 10
    rescued = 'tenure_rescues_total{cause="%s"}'
    site.until(lambda: metric(site, near, rescued % "queue") == 10, "the count of what the queue rescued")
    assert [metric(site, near, rescued % cause) for cause in ("crash", "host", "stale")] == [0, 0, 0]
    emptied(site, stream)
    tell(f"from the loss of the host to the next start, by an ack_wait of {ACK_WAIT:g} s alone: {spread(waits)}")


def test_a_killed_workers_job_starts_again_at_once_and_its_message_is_acknowledged_in_the_end(
    site: Site, stream: Stream, tell: Tell
) -> None:
    supervisor = start(site)
    waits: list[float] = []
    killed: dict[int, float] = {}
    for _ in range(20 if FULL else 4):
        job = shop.climb.enqueue()
        victim = site.seen(job, "half").pid
        killed[victim] = boot()
        send(victim, signal.SIGKILL)
        waits.append(site.seen(job, "begin", attempt=2).at - killed[victim])
        (view,) = site.ended(job)
        assert (view.state, view.attempt, view.failures, view.crashes_total) == ("completed", 2, 0, 1)
        (crashed,) = site.attempts(job)
        assert (crashed.outcome, crashed.evidence.get("exit")) == ("crashed", "signal 9 (SIGKILL)")

    assert "the queue redelivered it" not in supervisor.log(), "its own supervisor was faster"
    assert overlaps(runs_of(site.lines(), killed)) == []
    emptied(site, stream)
    assert supervisor.stop() == 0
    tell(f"from kill -9 of the worker to its job's next start: {spread(waits)}")


# ── Order, and pauses ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_of_priority_10_behind_a_thousand_messages_runs_next(site: Site, stream: Stream) -> None:
    busy(site, 1)
    enqueued(site, stream, 10_000 if FULL else 1000)
    urgent = shop.effect.using(priority=10).enqueue(0.0)
    site.until(lambda: stream.size() > (10_000 if FULL else 1000), "its message")
    site.go()

    site.seen(urgent, "end")
    assert site.lines(event="begin")[1].job == str(urgent.id), "the first after the one that held the slot"


def test_a_paused_queue_of_a_thousand_makes_no_traffic_and_all_run_when_it_is_resumed(
    site: Site, monitor: str, stream: Stream, tell: Tell
) -> None:
    start(site, concurrency=10, env={"TENURE_POLL_INTERVAL": "500ms"})
    each_ran_once(site, enqueued(site, stream, 10))
    operator(site, "queues", "pause", "default")
    site.until(lambda: stream.consumer()["num_waiting"] == 0, "the last request for messages to end")
    jobs = enqueued(site, stream, 1000)

    before, heard = stream.consumer()["delivered"], messages(monitor)
    time.sleep(30 if FULL else 5)  # its silence itself, not a wait for something
    told = messages(monitor) - heard
    assert stream.consumer()["delivered"] == before
    tell(f"{told} messages to the server in {30 if FULL else 5} s of a paused queue of 1,000")
    assert told < 100
    assert not site.lines(jobs[0])

    operator(site, "queues", "resume", "default")
    each_ran_once(site, jobs)
    emptied(site, stream)


def operator(site: Site, *words: str) -> None:
    """An operator's command at a terminal."""
    subprocess.run([*TENURE, *words], env=site.env("30s", {}, {}), cwd=site.folder, check=True, timeout=60)


def messages(monitor: str) -> int:
    """How many the server has heard from all its clients so far."""
    with urllib.request.urlopen(f"http://{monitor}/varz", timeout=60) as answer:
        return int(json.load(answer)["in_msgs"])


# ── One of the two is away ──────────────────────────────────────────────────────────────────────────────────────


def test_without_nats_it_says_so_once_and_polls_every_second_and_hears_again_without_a_restart(
    site: Site, nats: Nats, stream: Stream, tell: Tell
) -> None:
    nats.stop()
    supervisor = start(site, env=NEVER)
    waits = [begun_after(site, shop.effect.enqueue(0.0)) for _ in range(5)]
    workers = supervisor.workers()
    twice = "it to say so twice, once by the supervisor and once by its worker"
    site.until(lambda: supervisor.log().count("polling instead of listening") == 2, twice)

    nats.start()
    site.until(lambda: "listening again" in supervisor.log(), "it to hear again")
    heard = [begun_after(site, shop.effect.enqueue(0.0)) for _ in range(5)]

    emptied(site, stream)
    assert supervisor.workers() == workers
    assert supervisor.log().count("polling instead of listening") == 2
    tell(f"from enqueue to start: while NATS is away {spread(waits)}, when it is back {spread(heard)}")


def begun_after(site: Site, job: JobHandle[int]) -> float:
    enqueued_at = boot()
    begin = site.seen(job, "begin").at
    site.ended(job)
    return begin - enqueued_at


def test_a_nats_that_dies_and_comes_back_among_500_jobs_costs_none_of_them_a_second_attempt(
    site: Site, nats: Nats, stream: Stream, tell: Tell
) -> None:
    supervisor = start(site, workers=2, concurrency=10)
    jobs = shop.jobs.enqueue_many([shop.effect.bind(0.1) for _ in range(500)])
    site.until(lambda: len(site.lines(event="end")) > 50, "some to have run")
    nats.kill()
    down = boot()
    site.until(lambda: "polling instead of listening" in supervisor.log(), "them to notice")
    site.until(lambda: len(site.lines(event="end")) > 200, "work to go on meanwhile")
    nats.start()
    up = boot()

    each_ran_once(site, jobs)
    emptied(site, stream)
    tell(f"NATS was away for {up - down:.1f} s")
    assert supervisor.stop() == 0


def test_what_a_worker_holds_when_its_store_is_away_goes_back_and_runs_later(
    site: Site, nats: Nats, stream: Stream, line: Proxy, tell: Tell
) -> None:
    behind = {"TENURE_URL": by_way_of(site.place.url, line.port), "TENURE_NOTIFIER": f"{nats.url}?ack_wait=2m"}
    supervisor = site.supervisor(lease="50s", concurrency=10, env={**behind, **NEVER})
    site.until(lambda: stream.consumer().get("num_waiting"), "its first request for messages")
    jobs = shop.jobs.enqueue_many([shop.effect.bind(0.05) for _ in range(400)])
    site.until(lambda: len(site.lines(event="end")) > 50, "some to have run")

    line.refuse()
    site.until(lambda: "the store is unavailable" in supervisor.log(), "it to notice")
    site.until(lambda: stream.consumer()["num_waiting"] == 0, "it to ask for nothing more", 20)
    time.sleep(2)  # the outage itself, not a wait for something
    unended = sum(site.job(job).ended_at is None for job in jobs)
    assert stream.size() >= unended, "none was acknowledged before its job was done"
    line.heal()
    at = boot()

    each_ran_once(site, jobs)
    emptied(site, stream)
    tell(f"{unended} jobs were left when the store came back; the last message was gone {boot() - at:.1f} s later")


def test_a_worker_that_reaches_nats_but_not_the_store_counts_as_dead_and_its_jobs_run_elsewhere(
    site: Site, stream: Stream, line: Proxy, tell: Tell
) -> None:
    far = {"TENURE_HOST_ID": "far", "TENURE_URL": by_way_of(site.place.url, line.port)}
    start(site, concurrency=5, env=far)
    jobs = [shop.wait.enqueue() for _ in range(5)]
    for job in jobs:
        site.seen(job, "begin")
    near = start(site, concurrency=5, env={"TENURE_HOST_ID": "near"})
    site.until(lambda: watched_for_a_lease(site, "near"), "the near host to have watched for a lease", 10 * LEASE)

    line.refuse()
    at = boot()
    begins = [site.seen(job, "begin", attempt=2, seconds=90) for job in jobs]
    site.go()
    assert {begin.pid for begin in begins} <= {*near.workers()}
    views = site.ended(*jobs)
    assert {(view.state, view.attempt) for view in views} == {("completed", 2)}
    line.heal()

    emptied(site, stream)
    assert overlaps(runs_of(site.lines())) == []
    tell(f"from the loss of the store to the next start elsewhere: {spread([each.at - at for each in begins])}")


# ── Timers that can't be ────────────────────────────────────────────────────────────────────────────────────────


def test_tenure_worker_refuses_an_ack_wait_within_which_a_hang_may_not_be_noticed(site: Site, nats: Nats) -> None:
    run = subprocess.run(
        [*TENURE, "worker", "shop", "--notifier", f"{nats.url}?ack_wait=40s"],
        env=site.env("30s", {}, {}),
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 2, run.stderr
    said = " ".join(run.stderr.split())
    assert re.search(r"ack_wait is 40s, but task hang\w* of queue default may be silent for 500ms", said)
    assert re.search(r"two leases \(30s each\) .* more than 1m", said)
