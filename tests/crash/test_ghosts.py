"""A former owner wakes up: nothing it writes lands, and its code is stopped before the next one's starts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Lease, Outcome, Released, Snoozed
from tenure.errors import LeaseLost
from tenure.ports import NotLanded, Progress, Store

from . import shop
from .conftest import Tell
from .harness import Site, Supervised, boot, send

LEASE = 9.0  #: a fifth of it is how late a worker may end itself
OUTCOMES: tuple[Outcome, ...] = (
    Completed('"ghost"'),
    Failed("ghost"),
    Failed("ghost", final=True),
    Snoozed(60.0, "ghost"),
    Released("ghost"),
    Cancelled("ghost"),
    Crashed("ghost", process_died=True),
)


def writes(store: Store, lease: Lease) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Every kind of owner's write, and whether it landed."""
    yield "progress", lambda: store.progress([Progress(lease=lease, fraction=0.99, message="ghost")])[0]
    yield "a sign of life", lambda: store.progress([Progress(lease=lease)])[0]
    yield "checkpoint", lambda: store.progress([Progress(lease=lease, checkpoint="99")])[0]
    yield "once, read", lambda: store.once(lease, "mail", None) is not None
    yield "once, recorded", lambda: store.once(lease, "mail", '"ghost"') is not None
    for outcome in OUTCOMES:
        yield f"finish {outcome}", lambda outcome=outcome: landed(store, lease, outcome)  # type: ignore[misc]
    if store.capabilities.transactions:
        yield "finish within a transaction", lambda: landed_within(store, lease)


def landed(store: Store, lease: Lease, outcome: Outcome) -> bool:
    return not isinstance(store.finish([(lease, outcome)])[0], NotLanded)


def landed_within(store: Store, lease: Lease) -> bool:
    try:
        with store.transaction() as tx:
            return not isinstance(store.finish([(lease, Completed('"ghost"'))], tx=tx)[0], NotLanded)
    except LeaseLost:
        return False


@pytest.mark.everyday
@pytest.mark.everywhere
def test_every_write_under_an_old_lease_is_refused(site: Site, tell: Tell) -> None:
    site.supervisor()
    job = shop.tick.enqueue()
    line = site.seen(job, "tick")
    owner = site.job(job).worker_id
    assert owner is not None
    old = Lease(str(job.id), 1, owner)
    send(line.pid, signal.SIGKILL)
    site.seen(job, "tick", attempt=2)

    before = site.job(job)
    refused = [what for what, write in writes(site.store, old) if not write()]
    stolen = [what for what, write in writes(site.store, old._replace(attempt=2)) if not write()]
    assert site.job(job) == before
    site.go()
    (ended,) = site.ended(job)
    # The crash may be reported again: the answer is the known one, and nothing changes.
    after = [what for what, write in writes(site.store, old) if not write()]

    everything = [what for what, _ in writes(site.store, old)]
    known = f"finish {OUTCOMES[-1]}"
    assert set(everything) - set(refused) <= {known}
    assert stolen == everything
    assert set(everything) - set(after) <= {known}
    assert site.job(job) == ended
    assert (ended.state, ended.attempt, ended.checkpoint) == ("completed", 2, None)
    tell(f"{len(refused) + len(stolen) + len(after)} ghost writes refused, none landed")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("frozen", ["worker", "supervisor", "both"])
def test_frozen_code_does_not_run_beside_its_successor(site: Site, tell: Tell, frozen: str) -> None:
    first = site.supervisor(lease=f"{LEASE:g}s")
    job = shop.tick.enqueue()
    worker = site.seen(job, "tick").pid
    site.supervisor(lease=f"{LEASE:g}s")
    site.until(lambda: watched_for_a_lease(site, first), "the second supervisor to have watched for a lease", 90)

    victims = {"worker": [worker], "supervisor": [first.pid], "both": [first.pid, worker]}[frozen]
    # So that none is stopped in the middle of a write, holding a file's one lock.
    with site.store.transaction() if site.store.capabilities.transactions else nullcontext():
        for pid in victims:
            send(pid, signal.SIGSTOP)
    frozen_at = boot()
    site.seen(job, "tick", attempt=2, seconds=90)
    time.sleep(max(0.0, frozen_at + 1.5 * LEASE - boot()))  # the freeze itself, not a wait for something
    for pid in victims:
        send(pid, signal.SIGCONT)
    continued_at = boot()
    # On a machine too slow to renew in time, the successor has a successor.
    site.until(
        lambda: max(line.at for line in site.lines(job) if line.attempt > 1) > continued_at + 1,
        "its successor to go on",
    )
    site.go()

    (view,) = site.ended(job)
    successor = site.lines(job, attempt=2)[0].at
    beside = [line.at for line in site.lines(job, attempt=1) if line.at > successor]
    overlap = max(beside, default=continued_at) - continued_at
    tell(
        f"attempt 2 began {successor - frozen_at:.2f} s after the freeze (lease {LEASE:g} s); "
        f"{len(beside)} lines of old code beside it, up to {overlap * 1000:.0f} ms after SIGCONT"
    )
    assert (view.state, view.attempt >= 2) == ("completed", True)
    # A second of lines, one every 50 ms: if that second takes longer, that is the machine's doing.
    assert len(beside) < 20
    if frozen != "both":
        assert not beside


def watched_for_a_lease(site: Site, first: Supervised) -> bool:
    """Is there a worker of the other supervisor that was renewed a lease after its start?"""
    theirs = [each for each in site.store.workers() if each.identity.pid not in first.workers()]
    return any((each.renewed_at - each.started_at).total_seconds() > LEASE for each in theirs)
