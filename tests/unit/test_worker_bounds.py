"""How a worker calls its store: batches of bounded size, halved after a failure, repeated without a needless pause."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tenure import Retry, Tenure
from tenure.core.clock import system_clock
from tenure.core.lifecycle import Completed, Lease, Outcome, State
from tenure.errors import StoreAway
from tenure.events import Events, StoreBack
from tenure.ports import BATCH_BYTES, NONE_KNOWN, Answer, Busy, Claimed, Owned, Ring
from tenure.stores.memory import MemoryStore
from tenure.worker import access
from tenure.worker.access import StoreAccess
from waiting import until

SECONDS = 30.0


class SlowLine(MemoryStore):
    """A memory store that answers no call with more than `most` jobs or outcomes."""

    def __init__(self) -> None:
        super().__init__(system_clock())
        self.most = 1000
        self.ends: list[int] = []  #: the bytes of each call of `finish`
        self.refused = 0

    def claim(self, worker_id: str, wants: Mapping[str, int], limit: int, *, solo: bool = False) -> list[Claimed]:
        self._answer(limit)
        return super().claim(worker_id, wants, limit, solo=solo)

    def finish(self, ends: Sequence[tuple[Lease, Outcome]], *, tx: object = None) -> list[Answer | Busy]:
        self._answer(len(ends))
        self.ends.append(sum(len(end.result) for _, end in ends if isinstance(end, Completed)))
        return super().finish(ends, tx=tx)

    def _answer(self, number: int) -> None:
        if number > self.most:
            self.refused += 1
            raise StoreAway("no answer in 8s")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SlowLine:
    store = SlowLine()
    monkeypatch.setattr("tenure.app.backends.open_store", lambda _: store)
    return store


def made(store: SlowLine, number: int, result: str, *, slots: int) -> list[Any]:
    """Run this many jobs with this result; their ids."""
    jobs = Tenure("memory:", notifier="poll", retry=Retry(1))
    jobs.configure({"poll_interval": "50ms", "grace": "0s"})
    together = threading.Barrier(slots)

    @jobs.task
    def pack() -> str:
        together.wait(SECONDS)  # so that their outcomes come together
        return result

    ids = [job.id for job in jobs.enqueue_many([pack.bind() for _ in range(number)])]
    with jobs.worker(concurrency=slots):
        for job_id in ids:
            jobs.client().result(str(job_id), SECONDS)
    return ids


def test_what_failed_as_a_large_batch_is_sent_in_smaller_ones(store: SlowLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "RETRY_SECONDS", 0.02)
    store.most = 3

    made(store, 20, "done", slots=10)

    assert store.counts()[State.COMPLETED] == 20
    assert store.refused, "the first ones were larger"


def test_outcomes_are_sent_in_batches_of_so_many_bytes(store: SlowLine) -> None:
    size = BATCH_BYTES // 20

    made(store, 60, "x" * size, slots=60)

    assert sum(store.ends) > BATCH_BYTES * 2
    assert max(store.ends) <= BATCH_BYTES
    assert not store.refused


def test_a_call_that_failed_once_is_repeated_at_once(store: SlowLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dropped connection must not cost a pause."""
    monkeypatch.setattr(access, "RETRY_SECONDS", 1000.0)
    drops = {"claim": 1, "finish": 1}
    claim, finish = store.claim, store.finish

    def drop(verb: str) -> None:
        drops[verb] -= 1
        if drops[verb] == 0:
            raise StoreAway("the connection was reset")

    def dropping_claim(*given: Any, **options: Any) -> Any:
        drop("claim")
        return claim(*given, **options)

    def dropping_finish(*given: Any, **options: Any) -> Any:
        drop("finish")
        return finish(*given, **options)

    monkeypatch.setattr(store, "claim", dropping_claim)
    monkeypatch.setattr(store, "finish", dropping_finish)

    made(store, 1, "done", slots=1)

    assert max(drops.values()) <= 0


def away() -> None:
    raise StoreAway("nobody there")


def test_an_outage_is_counted_from_the_call_that_failed_to_the_one_that_is_answered(
    store: SlowLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "RETRY_SECONDS", 1000.0)
    events, told = Events(), list[float]()
    events.subscribe(StoreBack, lambda event: told.append(event.seconds))

    async def main() -> float:
        loop = asyncio.get_running_loop()
        here = StoreAccess(store, events)
        since = loop.time()
        hanging = here.write(threading.Event().wait, 0.3)
        await hanging
        here.unavailable("write", StoreAway("no answer"))
        with pytest.raises(StoreAway):
            await here.ask(away)
        await here.retry_later("beat", StoreAway("no answer"))
        later = asyncio.ensure_future(here.retry_later("beat", StoreAway("no answer")))
        await asyncio.sleep(0)
        here.recovered("write")
        await asyncio.wait_for(later, SECONDS)  # another duty was answered: no need to wait longer
        here.recovered("beat")
        here.close()
        return loop.time() - since

    took = asyncio.run(main())

    (seconds,) = told
    assert 0.3 <= seconds <= took


def test_a_store_that_is_away_for_long_is_asked_again_without_end(
    store: SlowLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "RETRY_SECONDS", 0.0)

    async def main() -> None:
        here = StoreAccess(store, Events())
        for _ in range(1100):
            await here.retry_later("write", StoreAway("no answer"))
        here.close()

    asyncio.run(main())


class Bell:
    """A notifier and its only listener: what is rung is heard at the next look, of which there are many a second."""

    permits = None
    interval = 0.02

    def __init__(self) -> None:
        self.waiting: list[Ring] = []
        self.looks = 0

    def announce(self, rings: Iterable[Ring]) -> None: ...

    def listen(self) -> Bell:
        return self

    def fileno(self) -> int | None:
        return None

    def drain(self) -> list[Ring]:
        self.looks += 1
        heard, self.waiting = self.waiting, []
        return heard

    def problem(self) -> str:
        return ""

    def close(self) -> None: ...

    def ring(self, *rings: Ring) -> None:
        """Returns once they are heard and the worker has begun what they make it do."""
        self.waiting += rings
        until(lambda: not self.waiting, "the rings are heard")
        before = self.looks
        until(lambda: self.looks > before + 5, "the loop has had other turns")


def test_a_cancel_makes_those_look_that_serve_its_queue_and_they_read_what_they_do_not_know(
    store: SlowLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell, looks = Bell(), list[set[Lease]]()
    monkeypatch.setattr("tenure.app.backends.open_notifier", lambda *_: bell)
    owned = store.owned

    def look(worker_id: str, known: Mapping[Lease, Claimed] = NONE_KNOWN) -> list[Owned]:
        looks.append(set(known))
        return owned(worker_id, known)

    monkeypatch.setattr(store, "owned", look)
    jobs = Tenure("memory:")
    jobs.configure({"lease": "10m", "poll_interval": "10m", "grace": "0s"})  # no other reason to look comes soon
    begun, over = threading.Event(), threading.Event()

    @jobs.task(queue="mine")
    def pack() -> None:
        begun.set()
        over.wait(SECONDS)

    job = pack.enqueue()
    try:
        with jobs.worker(queues=["mine"]):
            assert begun.wait(SECONDS)
            (running,) = [
                Lease(view.id, view.attempt, view.worker_id or "") for view in [store.get(str(job.id))] if view
            ]
            bell.ring(Ring("cancel", "others"), Ring("queued", "others"), Ring("queued", "mine"))
            assert looks == []

            bell.ring(Ring("cancel", "mine"))
            until(lambda: looks == [{running}], "it looks, and says what it has")
            bell.ring(Ring("cancel", ""))
            until(lambda: looks == [{running}] * 2, "it looks: this one may be of any queue")
            over.set()
    finally:
        over.set()
