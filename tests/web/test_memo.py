"""A read is made once for all who look, and the more it costs, the more rarely."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from tenure.web import memo as memos
from tenure.web.memo import SHARE, Memo


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(memos, "monotonic", lambda: self.now)
        monkeypatch.setattr(memos, "_PATIENCE", 60.0)  # this one goes by the real clock

    def read_in(self, cost: float, reads: list[int]) -> Callable[[], int]:
        def read() -> int:
            self.now += cost
            reads.append(len(reads))
            return reads[-1]

        return read


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_value_is_read_again_when_it_is_no_longer_fresh(clock: Clock) -> None:
    memo, reads = Memo(), list[int]()
    read = clock.read_in(0.001, reads)

    assert [memo.get("k", read, fresh=1.0) for _ in range(3)] == [0, 0, 0]
    clock.now += 1.1
    assert memo.get("k", read, fresh=1.0) == 1


def known_as_dear(clock: Clock, memo: Memo, key: str = "k") -> Callable[[], int]:
    """The value of `key` was read twice, and took 0.4 s each time; the second is there."""
    read = clock.read_in(0.4, list[int]())
    memo.get(key, read, fresh=0.0)
    clock.now += 2.1
    memo.get(key, read, fresh=0.0)
    with memo._cell(key).lock:  # it was read in the background
        return read


def test_a_dear_value_is_kept_for_as_long_as_what_it_costs_allows(clock: Clock) -> None:
    memo = Memo()
    read = known_as_dear(clock, memo)

    clock.now += 0.4 * SHARE - 0.01
    assert memo.aged("k", read, fresh=0.1) == (1, pytest.approx(0.4 * SHARE - 0.01))


def test_one_read_that_was_held_up_makes_no_value_dear(clock: Clock) -> None:
    memo, reads = Memo(), list[int]()
    memo.get("k", clock.read_in(1.0, reads), fresh=0.1)

    clock.now += 5.1
    memo.get("k", clock.read_in(0.001, reads), fresh=0.1)
    with memo._cell("k").lock:
        clock.now += 0.2
    assert memo.get("k", clock.read_in(0.001, reads), fresh=0.1) == 2


def test_nobody_waits_for_a_dear_read_while_there_is_a_value_that_is_not_old(clock: Clock) -> None:
    memo, go_on = Memo(), Event()
    known_as_dear(clock, memo)
    clock.now += 0.4 * SHARE + 1.0

    def read() -> str:
        assert go_on.wait(60)
        return "new"

    assert memo.get("k", read, fresh=0.1) == 1
    go_on.set()
    with memo._cell("k").lock:
        pass
    assert memo.get("k", read, fresh=0.1) == "new"


def test_what_goes_wrong_aside_is_heard_by_who_comes_next(clock: Clock) -> None:
    memo, failed = Memo(), Event()
    known_as_dear(clock, memo)
    clock.now += 0.4 * SHARE + 1.0

    def fail() -> int:
        failed.set()
        raise ConnectionError

    memo.get("k", fail, fresh=0.1)
    assert failed.wait(60)
    with memo._cell("k").lock:
        pass
    memo._readers.shutdown()
    with pytest.raises(ConnectionError):
        memo.get("k", fail, fresh=0.1)


def test_what_had_not_begun_when_it_was_closed_can_be_read_afterwards(clock: Clock) -> None:
    memo, began, go_on = Memo(), Barrier(3), Event()
    for key in "abc":
        known_as_dear(clock, memo, key)
    clock.now += 0.4 * SHARE + 1.0

    def slowly() -> int:
        began.wait(60)
        assert go_on.wait(60)
        return 2

    for key in "ab":
        memo.get(key, slowly, fresh=0.1)
    began.wait(60)  # both background readers are busy
    assert memo.get("c", lambda: 2, fresh=0.1) == 1
    memo.close()
    go_on.set()

    clock.now += 59.0 + 3 * 0.4 * SHARE
    assert memo.get("c", lambda: 3, fresh=0.1) == 3


def test_where_nobody_can_read_aside_there_is_the_last_value_and_then_who_comes_reads(clock: Clock) -> None:
    memo = Memo()
    known_as_dear(clock, memo)
    clock.now += 0.4 * SHARE + 1.0
    memo._readers.shutdown()  # as in the middle of `close`

    assert memo.get("k", lambda: 2, fresh=0.1) == 1
    clock.now += 59.0 + 3 * 0.4 * SHARE
    assert memo.get("k", lambda: 3, fresh=0.1) == 3


def test_a_value_that_is_old_is_not_shown_before_it_is_read_again(clock: Clock) -> None:
    memo = Memo()
    read = known_as_dear(clock, memo)
    clock.now += 59.0 + 3 * 0.4 * SHARE

    assert memo.get("k", read, fresh=0.1) == 2


def test_who_acted_sees_it_soon_and_who_acts_without_end_does_not_read_without_end(clock: Clock) -> None:
    memo, reads = Memo(), list[int]()
    read = clock.read_in(0.4, reads)
    memo.get("k", read, fresh=60.0)

    memo.forget()
    assert memo.get("k", read, fresh=60.0) == 0
    clock.now += 2.1
    memo.forget()
    assert memo.get("k", read, fresh=60.0) == 1


def test_what_a_read_raises_is_not_kept(clock: Clock) -> None:
    memo = Memo()

    def fail() -> int:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        memo.get("k", fail, fresh=60.0)
    assert memo.get("k", lambda: 7, fresh=60.0) == 7


def test_many_who_come_at_once_make_one_read_and_later_ones_do_not_wait_for_it(
    clock: Clock,  # which stands: on a busy machine the quickest read may cost enough to be kept for a second
) -> None:
    memo, reads, together = Memo(), list[int](), Barrier(8)
    go_on, inside = Event(), Event()

    def read() -> int:
        reads.append(1)
        return len(reads)

    def first() -> int:
        together.wait(60)
        return memo.get("k", read, fresh=60.0)

    def slowly() -> int:
        inside.set()
        assert go_on.wait(60)
        return 99

    with ThreadPoolExecutor(8) as pool:
        assert {each.result() for each in [pool.submit(first) for _ in range(8)]} == {1}
        memo.get("old", lambda: 1, fresh=0.0)
        again = pool.submit(memo.get, "old", slowly, fresh=0.0)
        assert inside.wait(60)
        assert memo.get("old", read, fresh=0.0) == 1, "what there is, while another reads"
        go_on.set()
        assert again.result() == 99


def test_it_keeps_a_bounded_number_of_values() -> None:
    memo = Memo()
    for number in range(2000):
        memo.get(number, lambda: "x", fresh=60.0)
    assert len(memo._cells) <= 256


def test_what_nobody_asks_for_is_let_go(clock: Clock) -> None:
    memo = Memo()
    memo.get("long", lambda: "x" * 1000, fresh=0.1)
    clock.now += 61.0
    memo.get("other", lambda: "y", fresh=0.1)
    assert list(memo._cells) == ["other"]
