"""The line breaks after PostgreSQL has committed and before its reply: asked again, all is as if it had been heard.

A proxy lets the request through and resets the connection when the answer comes, again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

from conformance.factories import assert_sound, claim, draft, everything, look, memory_of, running, start
from proxy import Proxy
from servers import shared_postgres
from tenure.core.lifecycle import Cancelled, Completed, Crashed, Failed, Lease, Outcome, Released, Snoozed, State
from tenure.errors import StoreAway
from tenure.ports import Landed
from tenure.stores.postgres import PostgresStore

from .conftest import Tell

T = TypeVar("T")

TIMES = 100


class Line:
    """A store behind a line that can be cut, and the same store over a sound one."""

    def __init__(self, proxy: Proxy, cut: PostgresStore, sound: PostgresStore) -> None:
        self.proxy = proxy
        self.store = cut
        self.sound = sound

    def lose(self, pattern: str, call: Callable[[], object]) -> None:
        """The call is carried out, and its answer does not come."""
        cuts = self.proxy.cuts
        self.proxy.cut_reply_to(pattern.encode())
        with pytest.raises(StoreAway):
            call()
        self.proxy.heal()
        assert self.proxy.cuts == cuts + 1, f"nothing was cut: {pattern} was never said"

    def twice(self, pattern: str, call: Callable[[], T]) -> T:
        """Lose the answer to a call, and return the answer when it is made again."""
        self.lose(pattern, call)
        return call()


@pytest.fixture
def line() -> Iterator[Line]:
    url = shared_postgres().create_database()
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    with Proxy(parts.hostname, parts.port) as proxy:
        login = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username}@"
        through = parts._replace(netloc=f"{login}127.0.0.1:{proxy.port}").geturl()
        cut, sound = PostgresStore(through), PostgresStore(url)
        sound.migrate()
        cut.open()
        sound.open()
        yield Line(proxy, cut, sound)
        cut.close()
        sound.close()


INSERTED, COPIED = "INSERT INTO", "COPY"
CLAIMED, COMPLETED = "SKIP LOCKED", "SET state = 'completed'"


def test_enqueues_whose_replies_were_lost_are_one_job_each(line: Line, tell: Tell) -> None:
    sent = [draft(unique=f"key-{n}" if n % 2 else None) for n in range(TIMES)]

    answers = [line.twice(INSERTED, lambda each=each: line.store.enqueue([each])[0]) for each in sent]  # type: ignore[misc]

    assert [answer.id for answer in answers] == [each.id for each in sent]
    assert {answer.created for answer in answers} == {False}  # they were there already
    assert {view.id for view in everything(line.sound)} == {each.id for each in sent}
    tell(f"{line.proxy.cuts} replies to an enqueue lost: {len(everything(line.sound))} jobs of {TIMES}")


def test_a_copied_batch_whose_reply_was_lost_is_stored_once(line: Line) -> None:
    batch = [draft() for _ in range(60)]

    answers = line.twice(COPIED, lambda: line.store.enqueue(batch))

    assert [answer.id for answer in answers] == [each.id for each in batch]
    assert len(everything(line.sound)) == 60


def test_jobs_of_a_transaction_whose_commit_was_not_heard_are_stored_once(line: Line) -> None:
    batch, called = [draft() for _ in range(3)], list[int]()

    def together() -> None:
        with line.store.transaction() as tx:
            line.store.enqueue(batch, tx=tx, committed=lambda: called.append(1))

    line.proxy.cut_reply_to(b"COMMIT")
    together()

    assert line.proxy.cuts == 1
    assert called == [1]
    assert {view.id for view in everything(line.sound)} == {each.id for each in batch}
    line.proxy.heal()
    together()
    assert called == [1, 1]
    assert len(everything(line.sound)) == 3


def test_jobs_of_a_transaction_that_broke_before_its_commit_are_not_there(line: Line) -> None:
    batch = [draft() for _ in range(3)]

    def together() -> None:
        with line.store.transaction() as tx:
            line.store.enqueue(batch, tx=tx)
            line.proxy.cut()
            tx.execute("SELECT 1")

    with pytest.raises(StoreAway):
        together()
    assert everything(line.sound) == []


def test_claims_whose_replies_were_lost_are_found_among_what_is_owned(line: Line, tell: Tell) -> None:
    worker = start(line.sound)
    jobs = {each.id for each in line.sound.enqueue([draft() for _ in range(TIMES * 2)])}
    found: list[str] = []
    for _ in range(TIMES):
        line.lose(CLAIMED, lambda: claim(line.store, worker, 2))
        owned = line.store.owned(worker)
        assert len(owned) == 2
        found += [each.claimed.id for each in owned]
        leases = [Lease(each.claimed.id, each.claimed.attempt, worker) for each in owned]
        assert {lease.attempt for lease in leases} == {1}
        assert line.store.finish([(lease, Completed()) for lease in leases]) == [Landed(State.COMPLETED)] * 2

    assert line.proxy.cuts == TIMES
    assert len(found) == len(jobs)
    assert set(found) == jobs
    assert_sound(line.sound)
    tell(f"{line.proxy.cuts} replies to a claim lost: {len(found)} jobs found by owned, each in its attempt 1")


def test_finishes_whose_replies_were_lost_hear_that_they_landed(line: Line, tell: Tell) -> None:
    worker = start(line.sound)
    for n in range(TIMES):
        lease = running(line.sound, worker)
        end = (lease, Completed(str(n)))
        (answer,) = line.twice(COMPLETED, lambda end=end: line.store.finish([end]))  # type: ignore[misc]
        assert answer == Landed(State.COMPLETED)
        assert look(line.sound, lease.job_id).result == str(n)

    tell(f"{line.proxy.cuts} replies to a finish lost: all heard Landed when they asked again")


@pytest.mark.parametrize(
    "outcome",
    [Failed("boom"), Failed("no", final=True), Snoozed(5), Released("drain"), Cancelled("unwanted"), Crashed("gone")],
    ids=repr,
)
def test_other_outcomes_whose_replies_were_lost_are_charged_once(outcome: Outcome, line: Line) -> None:
    worker = start(line.sound)
    ends = [(running(line.sound, worker, max_failures=3), outcome), (running(line.sound, worker), Completed())]
    line.lose("COMMIT", lambda: line.store.finish(ends))
    after = [memory_of(line.sound, lease.job_id) for lease, _ in ends]

    answers = line.store.finish(ends)

    assert answers == [Landed(look(line.sound, lease.job_id).state) for lease, _ in ends]
    assert [memory_of(line.sound, lease.job_id) for lease, _ in ends] == after
    assert len(line.sound.attempts(ends[0][0].job_id)) == 1


def test_a_rescue_whose_reply_was_lost_charges_once(line: Line) -> None:
    lease = running(line.sound)
    line.sound.declare_dead([lease.worker_id])

    assert line.twice("COMMIT", line.store.rescue) == []

    view = look(line.sound, lease.job_id)
    assert (view.state, view.crashes, len(line.sound.attempts(view.id))) == (State.QUEUED, 1, 1)


def test_a_settle_whose_reply_was_lost_charges_once(line: Line) -> None:
    lease = running(line.sound)
    verdict = {lease.job_id: Crashed("killed", process_died=True)}

    assert line.twice("COMMIT", lambda: line.store.settle(lease.worker_id, verdict, Released())) == []

    view = look(line.sound, lease.job_id)
    assert (view.state, view.crashes, len(line.sound.attempts(view.id))) == (State.QUEUED, 1, 1)
