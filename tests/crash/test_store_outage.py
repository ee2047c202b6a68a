"""The server is away: a moment touches nothing, two leases stop every handler, and no job is charged for either."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime

import pytest

from proxy import Proxy
from tenure.errors import StoreAway
from tenure.tasks.handle import JobHandle

from . import shop
from .backends import Place, Server, by_way_of, there
from .conftest import Tell
from .harness import FULL, Site, Supervised, alive, boot, children, overlaps, runs_of, send, spread
from .storm import verdict

pytestmark = [pytest.mark.needs("server"), pytest.mark.timeout(300)]

LEASE = 30.0 if FULL else 9.0
LONGER = 30.0 if FULL else 12.0  #: where several things have to happen within a lease
LONG = 30.0 if FULL else 24.0  #: a third, some of a quarter and two seconds of retries are over well before two thirds


@pytest.fixture
def line(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.process.port) as line:
        yield line


@pytest.fixture
def place(place: Place, server: Server) -> Place:
    return there(place, server)


@contextmanager
def stopped(server: Server, line: Proxy) -> Generator[None]:
    server.stop()
    yield
    server.process.start()


@contextmanager
def frozen(server: Server, line: Proxy) -> Generator[None]:
    """The server keeps its connections, and its port, and does nothing."""
    pids = [server.process.pid, *children(server.process.pid)]
    for pid in pids:
        send(pid, signal.SIGSTOP)
    yield
    for pid in pids:
        send(pid, signal.SIGCONT)


@contextmanager
def unheard(server: Server, line: Proxy) -> Generator[None]:
    """Packets go nowhere."""
    line.blackhole()
    yield
    line.heal()


@contextmanager
def refused(server: Server, line: Proxy) -> Generator[None]:
    line.refuse()
    yield
    line.heal()


Outage = Callable[[Server, Proxy], AbstractContextManager[None]]


def outages(*by_default: Outage) -> pytest.MarkDecorator:
    all_of_them = (stopped, unheard, frozen, refused)
    return pytest.mark.parametrize("outage", all_of_them if FULL else by_default, ids=lambda outage: outage.__name__)


def host(name: str, site: Site, line: Proxy, lease: float, **order: object) -> Supervised:
    """A supervisor of this host, behind the line."""
    env = {"TENURE_HOST_ID": name, "TENURE_URL": by_way_of(site.place.url, line.port)}
    return site.supervisor(lease=f"{lease:g}s", env=env, **order)  # type: ignore[arg-type]


def begun(site: Site, *jobs: JobHandle[object]) -> tuple[JobHandle[object], ...]:
    for job in jobs:
        site.seen(job, "begin")
    return jobs


def back(site: Site) -> datetime:
    """Wait until the server answers us, and forget the connections it has closed."""

    def answer() -> list[datetime]:
        try:
            return [site.store.now()]
        except StoreAway:
            return []

    return site.until(answer, "the server to answer")[0]


def renewed_again(site: Site) -> None:
    first = {each.identity.id: each.renewed_at for each in site.store.workers()}
    site.until(
        lambda: all(each.renewed_at > first[each.identity.id] for each in site.store.workers()),
        "their next renewals",
        LONG,
    )


def sent_ago(site: Site) -> float:
    return (site.store.now() - min(each.renewed_at for each in site.store.workers())).total_seconds()


@pytest.mark.everyday
@outages(frozen)
def test_an_outage_of_a_quarter_of_a_lease_stops_no_handler(
    site: Site, server: Server, line: Proxy, outage: Outage
) -> None:
    supervisor = host("one", site, line, LONG, workers=2)
    jobs = begun(site, *(task.enqueue() for task in (shop.tick, shop.wait, shop.wait_in_thread) * 2))
    (brief,) = begun(site, shop.effect.enqueue(1.0))
    workers = supervisor.workers()

    # A little before the next renewal is due: the outage hits it, and most of the lease is left for a slow machine.
    renewed_again(site)
    site.until(lambda: sent_ago(site) > LONG / 3 - 3.0, "the one after that to be due soon", LONG)
    at = boot()
    with outage(server, line):
        site.until(lambda: boot() - at > LONG / 4 - 0.5, "the outage to last", LONG)
    now = back(site)
    site.until(lambda: all(each.renewed_at > now for each in site.store.workers()), "their next renewals", LONG)
    site.go()

    views = site.ended(brief, *jobs)
    assert {(view.state, view.attempt, view.failures, view.crashes_total) for view in views} == {("completed", 1, 0, 0)}
    assert not site.lines(event="stopped")
    assert supervisor.workers() == workers


@outages(unheard)  # a server that is stopped for as long: the next test
def test_an_outage_of_two_leases_stops_every_handler_and_charges_nobody(
    site: Site, server: Server, line: Proxy, tell: Tell, outage: Outage
) -> None:
    hosts = [host(name, site, line, LEASE, concurrency=8) for name in ("one", "other")]
    obedient = begun(site, *(task.enqueue() for task in (shop.wait, shop.wait_in_thread) * 4))
    deaf = begun(site, *(shop.deaf.enqueue() for _ in range(2)))
    workers = [pid for each in hosts for pid in each.workers()]

    renewed_again(site)  # from now on the leases count from when this was sent
    with outage(server, line):
        at = boot()  # no lease was renewed later than this
        site.until(lambda: not any(map(alive, workers)), "the workers to end", 2 * LEASE)
        site.until(lambda: boot() - at > 2 * LEASE, "the outage to last", 3 * LEASE)
    ended = boot()
    back(site)
    again = [site.seen(job, "begin", attempt=2, seconds=60).at for job in (*obedient, *deaf)]
    site.go()

    for job in (*obedient, *deaf):
        (view,) = site.ended(job)
        assert (view.state, view.attempt, view.failures, view.crashes_total) == ("completed", 2, 0, 0), site.attempts(
            job
        )
        assert site.outcomes(job) == ["released"]
    assert overlaps(runs_of(site.lines())) == []
    assert not any("its worker's lease ended" in each.log() for each in hosts), (
        "after an outage no worker is declared dead"
    )
    words = [(job, "stopped shutdown") for job in obedient] + [(job, "swallowed shutdown") for job in deaf]
    asked = [line.at - at for job, word in words for line in site.lines(job, word, attempt=1)[:1]]
    last = [site.lines(job, attempt=1)[-1].at - at for job in (*obedient, *deaf)]
    # One host's worker may have been held up until it was killed; the slots of one don't hold all of these jobs.
    assert asked, "asked first, killed later"
    assert max(last) < LEASE, "and gone before anybody else could have their jobs"
    tell(
        f"lease {LEASE:g} s: asked after {min(asked):.2f} to {max(asked):.2f} s, the last line was written after "
        f"{max(last):.2f} s; from the server's return to the next start {spread([each - ended for each in again])}"
    )


def test_the_first_process_back_leaves_the_others_a_lease_to_come_back_too(
    site: Site, server: Server, line: Proxy
) -> None:
    far = host("far", site, line, LONGER)
    jobs = begun(site, *(shop.wait.enqueue() for _ in range(3)))
    near = site.supervisor(lease=f"{LONGER:g}s", env={"TENURE_HOST_ID": "near"})
    site.until(lambda: len(site.store.workers()) == 2, "the near host")
    workers = far.workers()

    with ExitStack() as later:
        later.callback(line.heal)
        at = boot()
        with stopped(server, line):
            site.until(lambda: boot() - at > 2 * LONGER, "the outage to last", 3 * LONGER)
            line.refuse()
        back(site)
        site.until(lambda: "the store is available again" in near.log(), "the near host to see it")
        time.sleep(LONGER / 3)  # the far one's absence itself, not a wait for something
    site.until(lambda: not any(map(alive, workers)), "its former workers to end")
    site.go()

    for job in jobs:
        (view,) = site.ended(job)
        assert (view.state, view.attempt, view.crashes_total) == ("completed", 2, 0)
        assert site.outcomes(job) == ["released"]


def killed(server: Server) -> None:
    server.process.kill()


def immediately(server: Server) -> None:
    server.stop()


@pytest.mark.parametrize("end", [killed, immediately] if FULL else [killed], ids=lambda end: end.__name__)
def test_a_server_that_dies_among_short_jobs_loses_none_and_accepts_none_twice(
    site: Site, server: Server, tell: Tell, end: Callable[[Server], None]
) -> None:
    supervisor = site.supervisor(lease="20s", workers=2)
    jobs = shop.jobs.enqueue_many([shop.effect.bind(0.02) for _ in range(2000 if FULL else 400)])
    missed, over = [0], threading.Event()

    def go_on_enqueueing() -> None:
        while not over.wait(0.01):
            try:
                jobs.append(shop.effect.enqueue(0.02))
            except StoreAway:
                missed[0] += 1

    clients = threading.Thread(target=go_on_enqueueing)
    clients.start()
    try:
        for _ in range(10 if FULL else 3):
            ended = len(site.lines(event="end"))
            site.until(lambda: len(site.lines(event="end")) > ended + 40, "some jobs to have run")  # noqa: B023
            end(server)
            server.process.start()
    finally:
        over.set()
        clients.join()
    back(site)

    views = site.ended(*jobs, seconds=120)
    runs = runs_of(site.lines())
    assert overlaps(runs) == []
    assert set(Counter((line.job, line.attempt) for line in site.lines(event="begin")).values()) == {1}
    assert [sentence for view in views for sentence in verdict(view, runs[view.id], site)] == []
    assert max(view.crashes_total for view in views) == 0
    assert supervisor.stop() == 0
    tell(f"{len(jobs)} jobs, {sum(view.attempt > 1 for view in views)} ran again; {missed[0]} enqueues heard StoreAway")
