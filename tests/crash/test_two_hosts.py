"""Two hosts, one server: one host falls silent, the other runs its jobs, and when it is back no write of it lands."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from proxy import Proxy
from tenure.tasks.handle import JobHandle

from . import shop
from .backends import Place, by_way_of
from .conftest import Tell
from .harness import FULL, Site, Supervised, alive, boot, send, spread

T = TypeVar("T")

pytestmark = [pytest.mark.needs("server"), pytest.mark.timeout(300)]

LEASE = 30.0 if FULL else 9.0
PROMISED = LEASE + LEASE / 6 * 1.2 + 4.0  #: its lease ends, a scan comes by, and the job starts: 40 s by default
TICK = 0.05  #: between two lines of a marking job
WAKING = 1.0  #: how long old code may run when a paused machine wakes (docs/delivery.md)
ROUNDS = 3 if FULL else 1


@pytest.fixture
def line(place: Place) -> Iterator[Proxy]:
    """The wire between the far host and the server."""
    server = urlsplit(place.url)
    with Proxy(server.hostname or "", server.port or 5432) as line:
        yield line


@contextmanager
def frozen(far: Supervised, line: Proxy) -> Iterator[float]:
    """The whole host is paused. Yields how long it may run on when it wakes."""
    pids = [far.pid, *far.workers()]
    for pid in pids:
        send(pid, signal.SIGSTOP)
    yield WAKING
    for pid in pids:
        send(pid, signal.SIGCONT)


@contextmanager
def unheard(far: Supervised, line: Proxy) -> Iterator[float]:
    """Its packets go nowhere, and none reaches it."""
    line.blackhole()
    yield 0.0
    line.heal()


@contextmanager
def refused(far: Supervised, line: Proxy) -> Iterator[float]:
    line.refuse()
    yield 0.0
    line.heal()


Silence = Callable[[Supervised, Proxy], AbstractContextManager[float]]


@pytest.mark.parametrize("silence", [frozen, unheard, refused], ids=lambda silence: silence.__name__)
def test_the_jobs_of_a_silent_host_run_on_the_other_and_nothing_it_does_later_lands(
    site: Site, line: Proxy, tell: Tell, silence: Silence
) -> None:
    wire = {"TENURE_HOST_ID": "far", "TENURE_URL": by_way_of(site.place.url, line.port)}
    far = site.supervisor(lease=f"{LEASE:g}s", workers=2, env=wire)
    near = site.supervisor(lease=f"{LEASE:g}s", concurrency=50, env={"TENURE_HOST_ID": "near"})
    site.until(lambda: watched_for_a_lease(site, "near"), "the near host to have watched for a lease", 10 * LEASE)
    waits: list[float] = []
    late: list[float] = []

    for silent in (f"silent {number}" for number in range(ROUNDS)):
        marking = [running_on("far", site, shop.mark.enqueue) for _ in range(2)]
        brief = running_on("far", site, partial(shop.effect_once_told.enqueue, silent, LEASE / 3))
        workers, ids = far.workers(), living(site, "far")
        at = boot()
        with silence(far, line) as may_run_on:
            site.go(silent)
            begins = [site.seen(job, "begin", attempt=2, seconds=10 * LEASE).at for job in (*marking, brief)]
            stored = [site.job(job) for job in marking]
            back = boot()
        waits += [begin - at for begin in begins]

        site.until(partial(all_ended, workers), "its former workers to end")
        site.until(partial(replaced, site, "far", ids), "others in their place", 10 * LEASE)
        assert [site.job(job) for job in marking] == stored, "no progress, no checkpoint and no outcome has landed"
        site.go()
        for job, begin in zip((*marking, brief), begins, strict=True):
            (view,) = site.ended(job)
            assert (view.state, view.attempt, view.failures, view.crashes_total) == ("completed", 2, 0, 1)
            assert site.outcomes(job) == ["crashed"]
            beside = [line.at - back for line in site.lines(job, attempt=1) if line.at > begin]
            # Counted in lines: a host that wakes on a busy machine takes longer for the same code.
            assert sum(at > 0 for at in beside) <= may_run_on / TICK
            late += beside
        assert site.job(brief).result == "2", "what its first attempt returned was refused"
        site.hold()

    near.stop()
    job = shop.effect.enqueue(0.0)
    site.ended(job)
    assert site.seen(job, "end").pid in far.workers(), "it works on"
    tell(
        f"from the silence to the next start elsewhere, with a lease of {LEASE:g} s: {spread(waits)}, where "
        f"{PROMISED:g} s are promised; {len(late)} lines of old code beside it, up to "
        f"{max(late, default=0.0) * 1000:.0f} ms after its host was back"
    )


def a_worker_dies(site: Site, far: Supervised, other: int, line: Proxy) -> None:
    """As the line goes dark, so that its supervisor settles its jobs over it."""
    line.blackhole()
    send(other, signal.SIGKILL)


def a_worker_starts(site: Site, far: Supervised, other: int, line: Proxy) -> None:
    """It was started before the line went dark, and reports only afterwards."""
    before = living(site, "far")
    send(other, signal.SIGKILL)
    site.until(lambda: living(site, "far") < before, "its death to be settled")
    line.blackhole()


Meanwhile = Callable[[Site, Supervised, int, Proxy], None]


@pytest.mark.parametrize("meanwhile", [a_worker_dies, a_worker_starts], ids=lambda meanwhile: meanwhile.__name__)
def test_code_that_holds_the_gil_is_killed_in_time_whatever_else_its_supervisor_waits_for(
    site: Site, line: Proxy, meanwhile: Meanwhile
) -> None:
    """The worker can't fence itself, and its supervisor, because of another worker, waits for a store that is away."""
    wire = {"TENURE_HOST_ID": "far", "TENURE_URL": by_way_of(site.place.url, line.port)}
    far = site.supervisor(lease=f"{LEASE:g}s", workers=2, env=wire)
    job = shop.hold_the_gil.enqueue()
    first = site.seen(job, "begin").pid
    near = site.supervisor(lease=f"{LEASE:g}s", env={"TENURE_HOST_ID": "near"})
    site.until(lambda: watched_for_a_lease(site, "near"), "the near host to have watched for a lease", 10 * LEASE)
    assert alive(first)

    (other,) = set(far.workers()) - {first}
    meanwhile(site, far, other, line)
    second = site.seen(job, "begin", attempt=2, seconds=10 * LEASE)
    assert not alive(first), "it runs on beside the next attempt"
    assert second.pid in near.workers()
    line.heal()
    site.go()
    (view,) = site.ended(job)
    assert (view.state, view.attempt, view.failures) == ("completed", 2, 0)


def watched_for_a_lease(site: Site, host: str) -> bool:
    """Has this host been renewing for long enough to judge others?"""
    theirs = [each for each in site.store.workers() if each.identity.host == host]
    return any((each.renewed_at - each.started_at).total_seconds() > LEASE for each in theirs)


def living(site: Site, host: str) -> set[str]:
    return {each.identity.id for each in site.store.workers() if each.identity.host == host}


def replaced(site: Site, host: str, former: set[str]) -> bool:
    now = living(site, host)
    return len(now) == len(former) and not now & former


def all_ended(pids: Sequence[int]) -> bool:
    return not any(map(alive, pids))


def running_on(host: str, site: Site, enqueue: Callable[[], JobHandle[T]]) -> JobHandle[T]:
    """A job that this host happens to have taken."""
    while True:
        job = enqueue()
        site.seen(job, "begin")
        if site.worker(job).identity.host == host:
            return job
