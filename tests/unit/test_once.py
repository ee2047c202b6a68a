"""`jobs.once`: one caller runs the code, all callers get its result, and none waits forever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure, config
from tenure.core.clock import Clock, system_clock
from tenure.core.host import host_name
from tenure.errors import InvalidArguments, InvalidOption, StoreAway, StoreError, TenureError, WouldBlock
from tenure.notifiers.poll import PollNotifier
from tenure.ports import Draft
from tenure.ports.schedules import Swapped
from tenure.stores.memory import MemoryStore
from tenure.tasks import once
from tenure.tasks.client import Client
from waiting import until

PATIENT = 60.0


@dataclass(frozen=True)
class Receipt:
    number: int
    on: date


RECEIPT = Receipt(7, date(2030, 1, 31))


class Store(MemoryStore):
    """A memory store that can be unavailable before or after a write, and counts refusals and renewals."""

    def __init__(self) -> None:
        clock = system_clock()
        super().__init__(Clock(lambda: self.at or clock.unix(), clock.boot, clock.boot_id))
        self.at = 0.0  #: its time, if a test sets it; else the machine's
        self.away: list[str] = []  #: for the next swaps: "before", "after", "broken", or "" for none
        self.lost_again = threading.Event()
        self.renewals = threading.Semaphore(0)
        self.swapping: Callable[[], None] = lambda: None

    def swap(
        self, key: str, old: str | None, new: str | None, *, ttl: float | None = None, drafts: Sequence[Draft] = ()
    ) -> Swapped:
        how = self.away.pop(0) if self.away else ""
        if how == "before":
            raise StoreAway("out of reach")
        if how == "broken":
            raise RuntimeError("can't start new thread")
        swapped = super().swap(key, old, new, ttl=ttl, drafts=drafts)
        self.swapping()
        if how == "after":
            raise StoreAway("the reply was lost")
        if not swapped.landed:
            self.lost_again.set()
        if old == new:
            self.renewals.release()
        return swapped

    def drop(self, key: str) -> str:
        """Remove the note of this key, as if it had expired."""
        (text,) = self.notes(f"once:{key}").values()
        super().swap(f"once:{key}", text, None)
        return text


class Calls:
    """A function that counts its calls, and may wait in them."""

    def __init__(self, answer: object = 1) -> None:
        self.answer = answer
        self.count = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.count += 1
        return self.answer

    def slowly(self) -> Any:
        self.count += 1
        self.begun.set()
        assert self.go.wait(PATIENT)
        return self.answer

    async def slowly_awaited(self) -> Any:
        return await asyncio.to_thread(self.slowly)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def jobs(store: Store, tmp_path: Path) -> Tenure:
    jobs = Tenure("memory:")
    jobs._client.current = Client(store, PollNotifier(), config.load(environ={}, folder=tmp_path))
    return jobs


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def short_hold(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """Renewed ten times a second, on a store with a stopped clock: a delayed process does not lose the hold."""
    monkeypatch.setattr(once, "HOLD_SECONDS", 0.3)
    store.at = 1_800_000_000.0


def receipt() -> Receipt:
    return RECEIPT


async def receipt_awaited() -> Receipt:
    return RECEIPT


def pair() -> tuple[int, str]:
    return (3, "three")


def nothing() -> None: ...


# ── what is given back ──


@pytest.mark.parametrize(
    ("fn", "answer"), [(receipt, RECEIPT), (partial(receipt), RECEIPT), (pair, (3, "three")), (nothing, None)]
)
def test_the_first_result_is_given_to_whoever_repeats_as_its_annotation_says(
    jobs: Tenure, fn: Callable[[], Any], answer: object
) -> None:
    assert jobs.once("k", fn) == answer
    assert jobs.once("k", fn) == answer


def test_only_the_first_is_called(jobs: Tenure) -> None:
    first, second = Calls("first"), Calls("second")

    assert [jobs.once("k", first), jobs.once("k", second), jobs.once("other", second)] == ["first", "first", "second"]
    assert (first.count, second.count) == (1, 1)


def test_a_lambda_gives_plain_json_the_first_time_too(jobs: Tenure) -> None:
    answers: list[Any] = [jobs.once("k", lambda: (RECEIPT, 2)) for _ in range(2)]

    assert answers == [[{"number": 7, "on": "2030-01-31"}, 2]] * 2


def test_both_kinds_of_code_share_a_key(jobs: Tenure) -> None:
    never = Calls()

    async def main() -> list[Any]:
        return [await jobs.aonce("k", receipt_awaited), await jobs.aonce("k", never.slowly_awaited)]

    first, plain = asyncio.run(main())
    assert (first, plain) == (RECEIPT, {"number": 7, "on": "2030-01-31"})
    assert jobs.once("k", receipt) == RECEIPT
    assert never.count == 0


def test_what_is_kept_and_fits_no_more_is_told_with_its_key(jobs: Tenure) -> None:
    jobs.once("k", lambda: "seven")

    with pytest.raises(
        TenureError, match=r"once\('k'\): the stored result does not fit its type: expected object, got str"
    ):
        jobs.once("k", receipt)


def test_a_result_that_can_not_be_kept_is_refused_and_leaves_the_key_free(jobs: Tenure) -> None:
    with pytest.raises(InvalidArguments, match=r"once\('k'\): "):
        jobs.once("k", object)
    with pytest.raises(InvalidArguments, match=r"once\('k'\): .*the limit is 256 KiB"):
        jobs.once("k", lambda: "x" * 300_000)

    assert jobs.once("k", lambda: 2, wait="0s") == 2


def test_when_its_time_is_over_a_key_is_free() -> None:
    jobs, calls = Tenure("memory:"), Calls()
    with jobs.testing() as queue:
        for _ in range(2):
            jobs.once("k", calls, ttl="1h")
            jobs.once("for ever", calls)
        assert calls.count == 2
        queue.advance("59m")
        jobs.once("k", calls, ttl="1h")
        assert calls.count == 2
        queue.advance("61s")
        jobs.once("k", calls, ttl="1h")
        jobs.once("for ever", calls)
        assert calls.count == 3


# ── two at once ──


def test_of_two_threads_one_acts_and_both_get_what_it_got(
    jobs: Tenure, store: Store, threads: ThreadPoolExecutor
) -> None:
    calls, other = Calls("paid"), Calls("paid twice")
    acting = threads.submit(jobs.once, "k", calls.slowly)
    assert calls.begun.wait(PATIENT)
    waiting = threads.submit(jobs.once, "k", other)
    assert store.lost_again.wait(PATIENT)
    assert not waiting.done()
    calls.go.set()

    assert [acting.result(PATIENT), waiting.result(PATIENT)] == ["paid", "paid"]
    assert (calls.count, other.count) == (1, 0)


def test_of_many_on_a_loop_one_acts_and_all_get_what_it_got(jobs: Tenure, store: Store) -> None:
    calls = Calls("paid")

    async def main() -> list[Any]:
        together = [asyncio.create_task(jobs.aonce("k", calls.slowly_awaited)) for _ in range(5)]
        assert await asyncio.to_thread(store.lost_again.wait, PATIENT)
        calls.go.set()
        return await asyncio.gather(*together)

    assert asyncio.run(main()) == ["paid"] * 5
    assert calls.count == 1


@pytest.mark.parametrize("wait", ["0s", "50ms"])
def test_who_will_not_wait_any_longer_is_told_where_it_is_done(
    jobs: Tenure, threads: ThreadPoolExecutor, wait: str
) -> None:
    calls = Calls()
    acting = threads.submit(jobs.once, "k", calls.slowly)
    assert calls.begun.wait(PATIENT)

    told = rf"once\('k'\): no result after \d+.*: a process on {host_name()} holds the key"
    with pytest.raises(TimeoutError, match=told):
        jobs.once("k", Calls(), wait=wait)
    with pytest.raises(TimeoutError, match=told):
        asyncio.run(jobs.aonce("k", receipt_awaited, wait=wait))
    calls.go.set()
    assert acting.result(PATIENT) == 1


def test_when_the_one_who_acts_fails_the_one_who_waits_acts(
    jobs: Tenure, store: Store, threads: ThreadPoolExecutor
) -> None:
    calls = Calls()

    def fails() -> int:
        calls.slowly()
        raise ConnectionError("the bank")

    acting = threads.submit(jobs.once, "k", fails)
    assert calls.begun.wait(PATIENT)
    waiting = threads.submit(jobs.once, "k", lambda: 2)
    assert store.lost_again.wait(PATIENT)
    calls.go.set()

    assert waiting.result(PATIENT) == 2
    with pytest.raises(ConnectionError, match="the bank"):
        acting.result(PATIENT)


# ── errors of the function ──


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_passes_and_leaves_the_key_free(jobs: Tenure, store: Store, error: BaseException) -> None:
    def fails() -> int:
        raise error

    with pytest.raises(type(error)) as raised:
        jobs.once("k", fails)

    assert raised.value is error
    assert store.notes("once:") == {}
    assert jobs.once("k", lambda: 2, wait="0s") == 2


def test_who_is_cancelled_while_acting_leaves_the_key_free(jobs: Tenure, store: Store) -> None:
    async def main() -> int:
        begun = asyncio.Event()

        async def stays() -> int:
            begun.set()
            await asyncio.Event().wait()
            return 1

        acting = asyncio.create_task(jobs.aonce("k", stays))
        await begun.wait()
        acting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acting
        assert store.notes("once:") == {}
        return await jobs.aonce("k", two, wait="0s")

    async def two() -> int:
        return 2

    assert asyncio.run(main()) == 2


def test_who_is_cancelled_while_asking_leaves_the_key_free(jobs: Tenure, store: Store) -> None:
    asked, go = threading.Event(), threading.Event()

    def held_up() -> None:
        asked.set()
        assert go.wait(PATIENT)

    async def main() -> None:
        store.swapping = held_up
        asking = asyncio.create_task(jobs.aonce("k", receipt_awaited))
        await asyncio.to_thread(asked.wait, PATIENT)
        store.swapping = lambda: None
        asking.cancel()
        asyncio.get_running_loop().call_soon(go.set)
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(main())
    assert store.notes("once:") == {}


# ── how it may be called ──


@pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", 7, None])
def test_a_key_is_a_text_of_one_line(jobs: Tenure, key: Any) -> None:
    with pytest.raises(InvalidOption, match="once key: expected 1 to 200 characters without control characters, got"):
        jobs.once(key, receipt)


@pytest.mark.parametrize("option", ["ttl", "wait"])
def test_a_bare_number_is_no_duration(jobs: Tenure, option: str) -> None:
    options: dict[str, Any] = {option: 30}
    with pytest.raises(InvalidOption, match=f'{option}: 30 has no unit; write "30s"'):
        jobs.once("k", receipt, **options)


def test_inside_a_transaction_it_is_refused_and_nothing_is_called(tmp_path: Path) -> None:
    calls = Calls()
    refused = r"inside jobs\.transaction\(\), jobs\.a?once\(…\) writes beside it: call it before or after"
    with Tenure(f"sqlite:///{tmp_path / 'tenure.db'}", notifier="poll") as jobs:
        with jobs.transaction(), pytest.raises(StoreError, match=refused):
            jobs.once("k", calls)

        async def main() -> None:
            async with jobs.atransaction():
                with pytest.raises(StoreError, match=refused):
                    await jobs.aonce("k", calls.slowly_awaited)

        asyncio.run(main())
        assert calls.count == 0
        assert jobs.once("k", calls, wait="0s") == 1


def test_on_a_running_loop_the_plain_form_names_its_twin(jobs: Tenure) -> None:
    async def main() -> None:
        with pytest.raises(WouldBlock, match=r"jobs\.once\(…\) would block this event loop; write: await jobs\.aonce"):
            jobs.once("k", receipt)

    asyncio.run(main())


# ── the hold ──


@pytest.mark.usefixtures("short_hold")
def test_while_it_runs_its_hold_is_renewed_however_long_that_takes(
    jobs: Tenure, store: Store, threads: ThreadPoolExecutor
) -> None:
    calls, other = Calls("paid"), Calls("paid twice")
    acting = threads.submit(jobs.once, "k", calls.slowly)
    assert calls.begun.wait(PATIENT)
    waiting = threads.submit(jobs.once, "k", other)
    for _ in range(6):  # twice the hold
        assert store.renewals.acquire(timeout=PATIENT)
        store.at += once.HOLD_SECONDS / 3
    calls.go.set()

    assert [acting.result(PATIENT), waiting.result(PATIENT)] == ["paid", "paid"]
    assert other.count == 0


def test_without_renewals_a_hold_ends_and_another_acts(jobs: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash: nothing renews the hold or removes the note."""
    monkeypatch.setattr(once, "HOLD_SECONDS", 0.2)
    client = jobs.client()
    assert once.Key(client.store, "k", None, None).claim() is None

    assert jobs.once("k", lambda: 2, wait="60s") == 2


@pytest.mark.usefixtures("short_hold")
def test_no_thread_stays_behind(jobs: Tenure) -> None:
    jobs.once("k", receipt)
    with pytest.raises(InvalidArguments):
        jobs.once("other", object)

    for thread in threading.enumerate():
        if thread.name == "tenure-once":
            thread.join(PATIENT)
            assert not thread.is_alive()


def test_a_hold_that_was_lost_to_nobody_loses_no_result(jobs: Tenure, store: Store) -> None:
    def away_for_long() -> int:
        store.drop("k")
        return 1

    assert jobs.once("k", away_for_long) == 1
    assert jobs.once("k", lambda: 2, wait="0s") == 1


def test_when_another_has_acted_meanwhile_its_result_stands_and_a_warning_says_so(
    jobs: Tenure, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def away_for_long() -> int:
        store.drop("k")
        assert jobs.once("k", lambda: 2, wait="0s") == 2
        return 1

    assert jobs.once("k", away_for_long) == 2
    assert jobs.once("k", lambda: 3, wait="0s") == 2
    assert "another one ran the code too" in caplog.text


def test_while_another_still_acts_its_result_will_stand_and_ours_is_given_to_us(
    jobs: Tenure, store: Store, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    other = Calls(2)

    def away_for_long() -> int:
        store.drop("k")
        threads.submit(jobs.once, "k", other.slowly)
        assert other.begun.wait(PATIENT)
        return 1

    assert jobs.once("k", away_for_long) == 1
    other.go.set()
    assert jobs.once("k", lambda: 3, wait="60s") == 2
    assert "another one ran the code too" in caplog.text


@pytest.mark.usefixtures("short_hold")
def test_a_renewal_that_finds_the_hold_lost_says_so_once(
    jobs: Tenure, store: Store, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    acting = threads.submit(jobs.once, "k", calls.slowly)
    assert calls.begun.wait(PATIENT)
    (ours,) = store.notes("once:k").values()
    assert store.swap("once:k", ours, '{"by":"another"}').landed  # in one step: what is free is taken again
    until(lambda: "another process took it" in caplog.text, "the warning that another process took the key")
    calls.go.set()

    assert acting.result(PATIENT) == 1
    assert caplog.text.count("another process took it") == 1


@pytest.mark.usefixtures("short_hold")
def test_a_hold_that_ended_unnoticed_is_taken_again(jobs: Tenure, store: Store, threads: ThreadPoolExecutor) -> None:
    calls = Calls()
    acting = threads.submit(jobs.once, "k", calls.slowly)
    assert calls.begun.wait(PATIENT)
    store.drop("k")
    until(lambda: store.notes("once:k") != {}, "the key to be held")
    calls.go.set()

    assert acting.result(PATIENT) == 1
    assert jobs.once("k", Calls(2), wait="0s") == 1


# ── the store away for a moment ──


@pytest.mark.parametrize("how", ["before", "after"])
def test_asking_is_tried_again(jobs: Tenure, store: Store, how: str) -> None:
    calls = Calls()
    store.away = [how, how]

    assert jobs.once("k", calls) == 1
    assert calls.count == 1


@pytest.mark.parametrize("how", ["before", "after"])
def test_keeping_is_tried_again_and_nobody_acts_twice(jobs: Tenure, store: Store, how: str) -> None:
    calls = Calls()
    store.away = ["", how, how]

    assert jobs.once("k", calls) == 1
    assert jobs.once("k", Calls(2), wait="0s") == 1
    assert calls.count == 1


@pytest.mark.parametrize(("how", "told"), [("before", 0), ("broken", 1)])
@pytest.mark.usefixtures("short_hold")
def test_renewing_is_tried_again(
    jobs: Tenure, store: Store, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, how: str, told: int
) -> None:
    calls = Calls()
    acting = threads.submit(jobs.once, "k", calls.slowly)
    assert calls.begun.wait(PATIENT)
    store.away = [how, how]
    until(lambda: store.away == [], "the store to be back")
    while store.renewals.acquire(blocking=False):  # renewals from before it was away
        pass
    assert store.renewals.acquire(timeout=PATIENT)
    calls.go.set()

    assert acting.result(PATIENT) == 1
    assert caplog.text.count("RuntimeError: can't start new thread") == told


def test_an_error_is_the_functions_own_also_when_the_store_is_away(jobs: Tenure, store: Store) -> None:
    def fails() -> int:
        store.away = ["before"]
        raise ConnectionError("the bank")

    with pytest.raises(ConnectionError, match="the bank"):
        jobs.once("k", fails)


def test_aonce_takes_a_plain_function_too(tmp_path: Path) -> None:
    charged: list[int] = []

    def charge() -> int:
        charged.append(1)
        return len(charged)

    async def thrice(jobs: Tenure) -> list[int]:
        return [await jobs.aonce("pay:1", charge) for _ in range(3)]

    with Tenure(f"sqlite:///{tmp_path}/tenure.db") as jobs:
        assert asyncio.run(thrice(jobs)) == [1, 1, 1]
