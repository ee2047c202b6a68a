from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenure import JobHandle, Tenure, config
from tenure.core.ids import new_id
from tenure.core.lifecycle import Cancelled, Completed, Failed, Lease, Outcome, State
from tenure.errors import BadData, InvalidOption, JobFailed, StoreAway, StoreBusy, StoreError, UnknownJob, WouldBlock
from tenure.events import Running, current
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Draft, Enqueued, Filter, Ring, Update, WorkerIdentity
from tenure.stores.memory import MemoryStore
from tenure.tasks import client, gather, watch
from tenure.tasks.client import Client
from tenure.tasks.handle import handle_of

WORKER = "host-1-abc"


class Store(MemoryStore):
    """A memory store that remembers how it was asked, and can be away or held up."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[str]] = []
        self.away = 0
        self.holding = False
        self.reading: Callable[[], None] = lambda: None
        self.writing: Callable[[], None] = lambda: None

    def enqueue(
        self, drafts: Sequence[Draft], *, tx: object = None, committed: Callable[[], None] | None = None
    ) -> list[Enqueued]:
        self.writing()
        if self.away:
            self.away -= 1
            raise StoreAway("out of reach")
        self.writes.append([draft.task for draft in drafts])
        if any(draft.task == "bad" for draft in drafts):
            raise BadData("this one")
        if any(draft.task == "busy" for draft in drafts):
            raise StoreBusy("another open transaction holds its key")
        if self.holding and any(draft.task == "held" for draft in drafts):
            raise StoreBusy("another open transaction holds its key")
        return super().enqueue(drafts, tx=tx, committed=committed)

    def updates(self, seen: Mapping[str, str], *, limit: int = 50) -> list[Update]:
        self.reading()
        return super().updates(seen, limit=limit)

    def end(self, job_id: str, outcome: Outcome) -> None:
        """Claim this job and end it, as a worker would."""
        if not self.workers():
            self.register(
                WorkerIdentity(
                    id=WORKER,
                    host="host",
                    pid=1,
                    started="",
                    boot_id="",
                    pid_namespace="",
                    runner="worker",
                    queues=(),
                    tasks=(),
                    slots=1,
                    lease=60.0,
                )
            )
        found = next(each for each in self.claim(WORKER, {"default": 100}, 100) if each.id == job_id)
        self.finish([(Lease(found.id, found.attempt, WORKER), outcome)])


class Bell(PollNotifier):
    def __init__(self) -> None:
        super().__init__()
        self.rings: list[Ring] = []

    def announce(self, rings: Iterable[Ring]) -> None:
        self.rings += sorted(rings)


class Rig:
    """An open client with its store and bell, and an app whose tasks use them."""

    def __init__(self, folder: Path) -> None:
        self.store, self.bell = Store(), Bell()
        self.client = Client(self.store, self.bell, config.load(environ={}, folder=folder))
        self.jobs = Tenure("memory:")
        self.jobs._client.current = self.client

    def handle(self, draft: Draft) -> JobHandle[Any]:
        return handle_of(self.jobs, draft.id, lambda text: text)

    def stored(self, **options: Any) -> Draft:
        new = draft(**options)
        self.client.enqueue([new])
        return new


def draft(task: str = "greet", **options: Any) -> Draft:
    return Draft(id=new_id(), task=task, payload="{}", **options)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


# ── enqueue ──


def test_bells_ring_once_a_queue_and_after_the_jobs_are_stored(rig: Rig) -> None:
    a, b, slow, later = draft(), draft(), draft(queue="slow"), draft(queue="later", delay=60.0)
    rig.client.enqueue([a, b, slow, later])

    assert rig.bell.rings == [
        Ring("due", "later", (later.id,)),
        Ring("queued", "default", (a.id, b.id)),
        Ring("queued", "slow", (slow.id,)),
    ]


def test_what_a_notifier_raises_hides_no_stored_job(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(rings: Iterable[Ring]) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(rig.bell, "announce", fail)

    async def both() -> list[list[Enqueued]]:
        return await asyncio.gather(rig.client.aenqueue([draft()]), rig.client.aenqueue([draft()]))

    answers = [rig.client.enqueue([draft()]), *asyncio.run(both())]

    assert [[each.created for each in found] for found in answers] == [[True]] * 3
    assert len(rig.store.search(Filter()).jobs) == 3
    assert "could not be announced" in caplog.text


def test_a_job_that_was_there_already_rings_nothing(rig: Rig) -> None:
    first = rig.stored(unique="one")
    rig.bell.rings.clear()

    answer = rig.client.enqueue([draft(unique="one")])

    assert answer == [Enqueued(first.id, created=False, state=State.QUEUED)]
    assert rig.bell.rings == []


def test_an_enqueue_that_hears_the_store_is_away_is_tried_again_with_the_same_id(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
    rig.store.away = 3

    answers = rig.client.enqueue([draft()])

    assert answers[0].created
    assert pauses == [0.05, 0.1, 0.2]


def test_an_enqueue_whose_answer_is_lost_is_its_callers_own_and_rings(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=lambda _: None, monotonic=lambda: 0.0))
    stored = rig.store.enqueue

    def unheard(drafts: Sequence[Draft], **options: Any) -> list[Enqueued]:
        stored(drafts, **options)
        monkeypatch.setattr(rig.store, "enqueue", stored)
        raise StoreAway("the answer was lost")

    monkeypatch.setattr(rig.store, "enqueue", unheard)
    mine = draft()

    assert rig.client.enqueue([mine]) == [Enqueued(mine.id, created=True, state=State.QUEUED)]
    assert [ring.jobs for ring in rig.bell.rings] == [(mine.id,)]


def test_a_store_that_stays_away_is_told_to_the_caller(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
    rig.store.away = 1000

    with pytest.raises(StoreAway):
        rig.client.enqueue([draft()])
    assert 0 < sum(pauses) <= client.RETRY_SECONDS


def test_nothing_to_enqueue_asks_the_store_nothing(rig: Rig) -> None:
    assert rig.client.enqueue([]) == []
    assert asyncio.run(rig.client.aenqueue([])) == []
    assert rig.store.writes == []


def test_many_at_once_are_one_write_with_answers_in_order(rig: Rig) -> None:
    @rig.jobs.task
    def square(n: int) -> int:
        return n * n

    handles = rig.jobs.enqueue_many(square.bind(n) for n in range(5))
    more = asyncio.run(rig.jobs.aenqueue_many([square.bind(9)]))

    assert [len(write) for write in rig.store.writes] == [5, 1]
    payloads = [job.payload for handle in handles if (job := rig.store.get(str(handle.id)))]
    assert payloads == [f'{{"n":{n}}}' for n in range(5)]
    assert more[0].created


# ── aenqueue shares writes ──


def test_callers_that_come_while_a_write_is_on_its_way_share_the_next_one(rig: Rig) -> None:
    started, go = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go.wait(60)

    rig.store.writing = hold

    async def main() -> list[list[Enqueued]]:
        first = asyncio.create_task(rig.client.aenqueue([draft("first")]))
        await asyncio.to_thread(started.wait)
        rest = [asyncio.create_task(rig.client.aenqueue([draft(f"t{n}"), draft(f"u{n}")])) for n in range(3)]
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(first, *rest)

    answers = asyncio.run(main())

    assert rig.store.writes == [["first"], ["t0", "u0", "t1", "u1", "t2", "u2"]]
    assert [len(answer) for answer in answers] == [1, 2, 2, 2]


def test_one_bad_job_fails_its_own_caller_and_no_other(rig: Rig) -> None:
    async def main() -> list[Any]:
        names = ["a", "b", "bad", "c", "d", "e"]
        calls = [rig.client.aenqueue([draft(name)]) for name in names]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(main())

    assert [type(answer) for answer in answers] == [list, list, BadData, list, list, list]
    assert rig.store.counts()[State.QUEUED] == 5


def test_a_job_whose_key_somebody_holds_keeps_no_other_waiting(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "BUSY_SECONDS", 0.2)

    async def main() -> tuple[list[Any], int]:
        held = [asyncio.ensure_future(rig.client.aenqueue([draft("busy", unique="k")])) for _ in range(40)]
        names = [("a", None), ("b", "x"), ("c", None), ("d", "y")]
        calls = [rig.client.aenqueue([draft(name, unique=key)]) for name, key in names]
        free = await asyncio.gather(*calls)
        waiting = sum(not call.done() for call in held)
        return free + await asyncio.gather(*held, return_exceptions=True), waiting

    answers, waiting = asyncio.run(main())

    assert [type(answer) for answer in answers] == [list] * 4 + [StoreBusy] * 40
    assert waiting == 40, "those without the held key are answered first"
    assert ["a", "c"] in rig.store.writes, "those without a unique key are not even written with one that has"
    alone = [names for names in rig.store.writes if names == ["busy"]]
    assert 2 <= len(alone) < 40, "one of them is tried again, for all that wait for the same key"


def test_a_caller_that_waits_for_a_key_gets_its_answer_once_the_key_is_free(rig: Rig) -> None:
    async def main() -> list[list[Enqueued]]:
        rig.store.holding = True
        held = [asyncio.ensure_future(rig.client.aenqueue([draft("held", unique="k")])) for _ in range(5)]
        while len(rig.store.writes) < 4:
            await asyncio.sleep(0.01)
        rig.store.holding = False
        return await asyncio.gather(*held)

    answers = asyncio.run(main())

    assert sum(answer[0].created for answer in answers) == 1
    assert len({answer[0].id for answer in answers}) == 1


def test_a_store_that_is_away_for_all_is_not_asked_for_each(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: sum(pauses)))
    rig.store.away = 1000

    async def main() -> list[Any]:
        return await asyncio.gather(*(rig.client.aenqueue([draft()]) for _ in range(4)), return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(main())] == [StoreAway] * 4
    assert sum(pauses) <= client.RETRY_SECONDS


def test_callers_of_a_closed_client_hear_that_however_many_writes_they_are(rig: Rig) -> None:
    async def main() -> list[Any]:
        await rig.client.aenqueue([draft()])
        rig.client.close()
        calls = [rig.client.aenqueue([draft()] * 600) for _ in range(3)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    assert [type(answer) for answer in asyncio.run(main())] == [StoreAway] * 3


def test_a_cancelled_caller_takes_only_its_own_job_along(rig: Rig) -> None:
    started, go = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go.wait(60)

    rig.store.writing = hold

    async def main() -> list[Enqueued]:
        leader = asyncio.create_task(rig.client.aenqueue([draft("leader")]))
        await asyncio.to_thread(started.wait)
        gone = asyncio.create_task(rig.client.aenqueue([draft("gone")]))
        stays = asyncio.create_task(rig.client.aenqueue([draft("stays")]))
        await asyncio.sleep(0)
        leader.cancel()
        gone.cancel()
        go.set()
        return await stays

    assert asyncio.run(main())[0].created
    assert rig.store.writes == [["leader"], ["stays"]]


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("name", ["free", "held"])
def test_an_enqueue_goes_on_after_all_tasks_were_cancelled_at_any_moment(rig: Rig, name: str, turns: int) -> None:
    """So do shutdown recipes: a task that waits for a write, or is to begin one, is cancelled with the callers."""
    rig.store.holding = True

    async def cancelled_after(turns: int) -> asyncio.Task[list[Enqueued]]:
        caller = asyncio.create_task(rig.client.aenqueue([draft(name, unique="k")]))
        while name == "held" and not any(gatherer._held for gatherer in rig.client._gatherers.values()):
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
        return caller

    async def main() -> list[Enqueued]:
        caller = await cancelled_after(turns)
        await asyncio.wait([caller])
        rig.store.holding = False
        return await asyncio.wait_for(rig.client.aenqueue([draft(name, unique="k")]), 20)

    assert len(asyncio.run(main())) == 1


@pytest.mark.parametrize("name", ["free", "held"])
def test_a_caller_that_enqueues_as_it_is_cancelled_stores_its_job(rig: Rig, name: str) -> None:
    """As `asyncio.run` cancels all tasks at its end, in the middle of a write."""
    started, go = threading.Event(), threading.Event()
    stored: list[Enqueued] = []

    def hold() -> None:
        started.set()
        assert go.wait(60)

    async def caller() -> None:
        try:
            await rig.client.aenqueue([draft(name, unique="k")])
        finally:
            rig.store.holding = False
            asyncio.get_running_loop().call_soon(go.set)
            stored.extend(await rig.client.aenqueue([draft(name, unique="k")]))

    async def main() -> None:
        rig.store.holding = True
        if name == "free":
            rig.store.writing = hold
        running.append(asyncio.create_task(caller()))
        if name == "free":
            await asyncio.to_thread(started.wait)
        while name == "held" and not any(gatherer._held for gatherer in rig.client._gatherers.values()):
            await asyncio.sleep(0)

    running: list[asyncio.Task[None]] = []
    asyncio.run(main())

    assert len(stored) == 1


def test_a_loop_that_closes_in_the_middle_of_a_write_leaves_no_error_behind(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    started, go = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert go.wait(60)

    async def main() -> None:
        running.append(asyncio.create_task(rig.client.aenqueue([draft("late")])))
        await asyncio.to_thread(started.wait)

    running: list[asyncio.Task[list[Enqueued]]] = []
    rig.store.writing = hold
    asyncio.run(main())
    (gatherer,) = rig.client._gatherers.values()
    go.set()
    for lane in gatherer._lanes:
        lane.thread.shutdown(wait=True)

    assert running[0].cancelled()
    assert rig.store.writes == [["late"]]
    assert caplog.records == []
    assert asyncio.run(rig.client.aenqueue([draft()]))[0].created


def test_a_client_serves_one_loop_after_the_other(rig: Rig) -> None:
    for _ in range(3):
        assert asyncio.run(rig.client.aenqueue([draft()]))[0].created


# ── transactions ──


def test_each_enqueued_job_is_logged_once_it_is_committed(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "tenure.jobs"]

    rig.stored()
    assert said() == []

    caplog.set_level(logging.INFO, "tenure.jobs")
    first, again = (rig.stored(unique="one") for _ in range(2))
    with rig.jobs.transaction() as tx:
        inside = draft()
        rig.client.enqueue([inside], tx=tx)
        assert len(said()) == 2
    with pytest.raises(KeyError), rig.jobs.transaction() as tx:
        rig.client.enqueue([draft()], tx=tx)
        raise KeyError

    assert first.id != again.id
    assert said() == [
        f"greet {first.id} is enqueued on default",
        f"greet {first.id} was already stored, on default",
        f"greet {inside.id} is enqueued on default",
    ]


def test_a_log_that_raises_hides_no_stored_job_and_many_jobs_are_few_lines(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.jobs")
    rig.client.enqueue([draft() for _ in range(500)])
    assert len([record for record in caplog.records if record.name == "tenure.jobs"]) == 101

    def broken(_: logging.LogRecord) -> bool:
        raise KeyError

    logging.getLogger("tenure.jobs").addFilter(broken)
    try:
        assert rig.store.get(rig.stored().id) is not None
    finally:
        logging.getLogger("tenure.jobs").removeFilter(broken)


def test_jobs_of_a_transaction_are_there_and_ring_when_it_has_committed(rig: Rig) -> None:
    new = draft()
    with rig.jobs.transaction() as tx:
        rig.client.enqueue([new], tx=tx)
        assert rig.store.get(new.id) is None
        assert rig.bell.rings == []

    assert rig.store.get(new.id) is not None
    assert rig.bell.rings == [Ring("queued", "default", (new.id,))]


def test_a_transaction_may_be_left_in_another_context_than_it_was_entered_in(rig: Rig) -> None:
    new, entered = draft(), copy_context()
    transaction = rig.jobs.transaction()

    tx = entered.run(transaction.__enter__)
    rig.client.enqueue([new], tx=tx)
    copy_context().run(transaction.__exit__, None, None, None)

    assert rig.store.get(new.id) is not None
    assert rig.client._open == {}
    entered.run(rig.client.enqueue, [draft()])


def test_a_transaction_that_fails_leaves_no_job_and_rings_nothing(rig: Rig) -> None:
    new = draft()
    with pytest.raises(ZeroDivisionError), rig.jobs.transaction() as tx:
        rig.client.enqueue([new], tx=tx)
        raise ZeroDivisionError

    assert rig.store.get(new.id) is None
    assert rig.bell.rings == []


def test_an_event_loop_joins_a_transaction_too(rig: Rig) -> None:
    kept, lost = draft(), draft()

    async def main() -> None:
        async with rig.jobs.atransaction() as tx:
            await rig.client.aenqueue([kept], tx=tx)
            assert rig.bell.rings == []
        with pytest.raises(ZeroDivisionError):
            async with rig.jobs.atransaction() as tx:
                await rig.client.aenqueue([lost], tx=tx)
                raise ZeroDivisionError

    asyncio.run(main())

    assert rig.store.get(kept.id) is not None
    assert rig.store.get(lost.id) is None
    assert rig.bell.rings == [Ring("queued", "default", (kept.id,))]


def test_a_job_beside_an_open_transaction_is_refused_before_it_waits_for_it(rig: Rig) -> None:
    with rig.jobs.transaction(), pytest.raises(StoreError, match=r"write task\.using\(tx=tx\)\.enqueue"):
        rig.client.enqueue([draft()])

    async def main() -> None:
        async with rig.jobs.atransaction():
            with pytest.raises(StoreError, match=r"write task\.using\(tx=tx\)\.enqueue"):
                await rig.client.aenqueue([draft()])

    asyncio.run(main())
    assert rig.client.enqueue([draft()])[0].created


def test_an_abandoned_begin_gives_the_transaction_back(rig: Rig) -> None:
    async def main() -> None:
        async def begin() -> None:
            async with rig.jobs.atransaction():
                pytest.fail("it was cancelled before it began")

        task = asyncio.create_task(begin())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with rig.jobs.atransaction() as tx:
            await rig.client.aenqueue([draft()], tx=tx)

    asyncio.run(main())
    assert rig.store.counts()[State.QUEUED] == 1


def test_new_jobs_may_name_their_transaction_but_not_two(rig: Rig) -> None:
    @rig.jobs.task
    def greet(name: str) -> None: ...

    with rig.jobs.transaction() as tx:
        rig.jobs.enqueue_many([greet.using(tx=tx).bind("a"), greet.bind("b")])
        assert rig.store.counts()[State.QUEUED] == 0
        with pytest.raises(InvalidOption, match="these jobs use different transactions"):
            rig.jobs.enqueue_many([greet.using(tx=tx).bind("a")], tx=object())

    assert rig.store.counts()[State.QUEUED] == 2


# ── results ──


def test_a_result_is_handed_over_as_soon_as_it_is_seen(rig: Rig) -> None:
    new = rig.stored()
    rig.store.end(new.id, Completed('"done"'))

    assert rig.handle(new).result() == '"done"'
    assert asyncio.run(rig.handle(new).aresult("1s")) == '"done"'


@pytest.mark.parametrize("wait", [lambda handle: handle.result(), lambda handle: asyncio.run(handle.aresult())])
def test_a_waiting_caller_sees_the_job_end(rig: Rig, wait: Callable[[JobHandle[Any]], object]) -> None:
    new = rig.stored()
    looked = threading.Event()
    rig.store.reading = looked.set

    def work() -> None:
        assert looked.wait(60)
        rig.store.end(new.id, Completed("7"))

    worker = threading.Thread(target=work)
    worker.start()
    assert wait(rig.handle(new)) == "7"
    worker.join()


def test_waiting_too_long_says_how_far_it_is(rig: Rig) -> None:
    new = rig.stored()
    waits: list[Callable[[], object]] = [
        lambda: rig.handle(new).result("0s"),
        lambda: asyncio.run(rig.handle(new).aresult("0s")),
    ]
    for wait in waits:
        with pytest.raises(TimeoutError, match=f"greet {new.id} is still queued after 0ms"):
            wait()


def test_waiting_for_a_job_that_runs_again_says_how_its_last_attempt_ended(rig: Rig) -> None:
    new = rig.stored()
    rig.store.end(new.id, Failed("its arguments don't fit\nand more", retry_in=60.0))

    said = r"is still scheduled after 0ms; attempt 1 ended with: its arguments don't fit$"
    with pytest.raises(TimeoutError, match=said):
        rig.handle(new).result("0s")


def test_a_job_without_a_result_says_why(rig: Rig) -> None:
    dead, cancelled = rig.stored(), rig.stored()
    rig.client.cancel(cancelled.id, "wrong repo")
    rig.store.end(dead.id, Failed("boom", final=True))

    with pytest.raises(JobFailed) as caught:
        rig.handle(dead).result()
    assert (caught.value.state, caught.value.error) == ("dead", "boom")
    with pytest.raises(JobFailed, match="is cancelled: wrong repo"):
        rig.handle(cancelled).result()


def test_an_unknown_job_is_told_from_a_slow_one(rig: Rig) -> None:
    stranger = rig.handle(draft())
    asks: list[Callable[[], object]] = [
        stranger.result,
        stranger.cancel,
        lambda: asyncio.run(stranger.aresult()),
        lambda: asyncio.run(stranger.acancel()),
    ]
    for ask in asks:
        with pytest.raises(UnknownJob, match=r"there is no job .*: it was never enqueued, .* ended more than 7d ago"):
            ask()


def test_an_outage_while_waiting_is_waited_out(rig: Rig) -> None:
    new = rig.stored()
    rig.store.end(new.id, Completed("7"))
    looks = itertools.count()

    def away() -> None:
        if next(looks) < 3:
            raise StoreAway("out of reach")

    rig.store.reading = away

    assert rig.handle(new).result("60s") == "7"


def test_an_outage_does_not_outlast_the_callers_patience(rig: Rig) -> None:
    def away() -> None:
        raise StoreAway("out of reach")

    new = rig.stored()
    rig.store.reading = away

    with pytest.raises(StoreAway):
        rig.handle(new).result("0s")


@pytest.mark.parametrize(
    "wait", [lambda handle: handle.result("50ms"), lambda handle: asyncio.run(handle.aresult("50ms"))]
)
def test_a_store_that_hangs_keeps_no_caller_beyond_its_time_and_is_asked_nothing_more(
    wait: Callable[[JobHandle[Any]], object], rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = rig.stored(), rig.stored()
    looks, hangs, answers = itertools.count(), threading.Event(), threading.Event()

    def hang() -> None:
        if next(looks) > 0:
            hangs.set()
            assert answers.wait(30), "nobody gave up"

    def pauses(*_: float) -> list[float]:
        assert hangs.wait(30)
        return [0.1]

    monkeypatch.setattr(watch, "_pauses", pauses, raising=False)
    monkeypatch.setattr(watch, "_until", lambda _: float("inf"))
    monkeypatch.setattr(rig.store, "workers", lambda **_: pytest.fail("it hangs"))
    rig.store.reading = hang

    with pytest.raises(TimeoutError, match=r"is still queued after 50ms; the store has not answered since$"):
        wait(rig.handle(known))
    with pytest.raises(StoreAway, match=f"does not answer: after 50ms nothing is known of job {unknown.id}$") as caught:
        wait(rig.handle(unknown))
    assert type(caught.value) is StoreAway
    assert not answers.is_set()
    answers.set()


def test_waiting_inside_a_handler_warns_that_it_holds_a_slot(rig: Rig) -> None:
    new = rig.stored()
    rig.store.end(new.id, Completed("7"))

    def handler() -> None:
        current.set(Running("1", "parent", "default", 1, WORKER))
        with pytest.warns(RuntimeWarning, match=f"parent waits for job {new.id} in its own slot"):
            rig.handle(new).result()

    copy_context().run(handler)


# ── status and updates ──


def test_a_status_is_what_the_store_knows(rig: Rig) -> None:
    new = rig.stored()
    waiting = rig.handle(new).status()
    rig.store.end(new.id, Failed("boom", final=True))
    ended = asyncio.run(rig.handle(new).astatus())

    assert (waiting.id, waiting.task, waiting.state, waiting.ended_at) == (new.id, "greet", State.QUEUED, None)
    assert (ended.state, ended.attempt, ended.error, ended.progress) == (State.DEAD, 1, "boom", None)
    assert ended.ended_at is not None
    assert ended.enqueued_at == waiting.enqueued_at


def test_updates_show_each_change_and_end_with_the_job(rig: Rig) -> None:
    new = rig.stored()
    updates = rig.handle(new).updates()

    assert next(updates).state is State.QUEUED
    rig.store.end(new.id, Completed("7"))
    assert [status.state for status in updates] == [State.COMPLETED]
    assert list(updates) == []

    async def on_a_loop() -> list[State]:
        with pytest.raises(WouldBlock, match="async for"):
            iter(rig.handle(new).updates())
        return [status.state async for status in rig.handle(new).updates()]

    assert asyncio.run(on_a_loop()) == [State.COMPLETED]


def test_a_thousand_watchers_of_one_job_share_their_looks(rig: Rig) -> None:
    new = rig.stored()
    looks: list[int] = []
    rig.store.reading = lambda: looks.append(1)

    async def watch() -> list[State]:
        return [status.state async for status in rig.handle(new).updates()]

    async def main() -> list[list[State]]:
        watchers = [asyncio.ensure_future(watch()) for _ in range(1000)]
        while len(looks) < 3:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(rig.store.end, new.id, Completed("7"))
        return await asyncio.gather(*watchers)

    seen = asyncio.run(main())

    assert len(seen) == 1000
    assert {each[-1] for each in seen} == {State.COMPLETED}
    assert len(looks) < 1000, "each would look three times by itself"


def test_a_signal_whose_reply_was_lost_has_arrived_and_one_that_another_was_faster_than_has_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, send, lost = rig.stored(), rig.store.signal, [True]

    def sent(*given: Any, **options: Any) -> Any:
        answer = send(*given, **options)
        if lost and lost.pop():
            raise StoreAway("the line broke")
        return answer

    monkeypatch.setattr(rig.store, "signal", sent)

    assert rig.client.signal(new.id, "own:approved", '"ada"')
    lost.append(True)
    assert not rig.client.signal(new.id, "own:approved", '"bob"')


def test_a_signal_that_has_landed_is_told_although_the_store_is_away_just_after_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = rig.stored()
    rig.bell.rings.clear()

    def away(_: str) -> Any:
        raise StoreAway("the line broke")

    monkeypatch.setattr(rig.store, "get", away)

    assert rig.client.signal(new.id, "own:approved", '"ada"')
    assert rig.bell.rings == [Ring("due", "")]


@pytest.mark.parametrize("verb", ["get", "cancel"])
def test_a_cancel_outlives_a_moment_without_the_store(verb: str, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    new, works, blips = rig.stored(), getattr(rig.store, verb), [1, 2]

    def blinks(*given: Any) -> Any:
        if blips:
            raise StoreAway(f"the line broke {blips.pop()}")
        return works(*given)

    monkeypatch.setattr(rig.store, verb, blinks)

    assert rig.handle(new).cancel("no need")
    assert not blips


def test_many_who_await_the_results_of_different_jobs_share_their_looks(rig: Rig) -> None:
    new = [rig.stored() for _ in range(100)]
    looks: list[int] = []
    rig.store.reading = lambda: looks.append(1)

    async def main() -> list[Any]:
        waiters = [asyncio.ensure_future(rig.handle(each).aresult("60s")) for each in new]
        while len(looks) < 3:
            await asyncio.sleep(0.01)
        rig.store.end(new[0].id, Completed("7"))  # `end` claims them all
        rig.store.finish([(Lease(each.id, 1, WORKER), Completed("7")) for each in new[1:]])
        return await asyncio.gather(*waiters)

    assert asyncio.run(main()) == ["7"] * 100
    assert len(looks) < 90, "each would have looked by itself"


def test_the_updates_of_a_job_that_is_deleted_end_with_an_error(rig: Rig) -> None:
    new = rig.stored()
    updates = rig.handle(new).updates()
    next(updates)
    rig.store.cancel([new.id], "no need")
    rig.store.delete([new.id])

    with pytest.raises(UnknownJob, match=r"it was deleted"):
        next(updates)
    with pytest.raises(UnknownJob):
        rig.handle(draft()).status()


# ── cancel ──


def test_cancel_says_whether_there_was_anything_to_stop(rig: Rig) -> None:
    waiting, ended = rig.stored(), rig.stored()
    rig.store.end(ended.id, Cancelled())
    rig.bell.rings.clear()

    # `end` claimed every queued job: `waiting` is processing now.
    assert rig.handle(waiting).cancel("no need")
    assert not rig.handle(ended).cancel()
    assert asyncio.run(rig.handle(waiting).acancel())

    owned = {each.claimed.id: each.cancel_reason for each in rig.store.owned(WORKER)}
    assert owned == {waiting.id: "no need"}
    assert rig.bell.rings == [Ring("cancel", "default")] * 2


def test_handles_are_equal_when_their_jobs_are(rig: Rig) -> None:
    new = draft()
    assert rig.handle(new) == rig.handle(new)
    assert len({rig.handle(new), rig.handle(new), rig.handle(draft())}) == 2
    assert repr(rig.handle(new)) == f"JobHandle({new.id}, created=False)"
