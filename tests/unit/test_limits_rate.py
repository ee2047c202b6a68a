"""The bucket of a rate, by itself: whenever begins are reported, no period has more of them than the rate says."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.limits import LATER_SECONDS, Bounds, Bucket, Rate, after_begins, room

RATE = Rate(5, 10.0, 2)
FULL = Bucket(2.0, 100.0)


def test_a_begin_that_came_after_now_was_read_is_counted_as_if_it_was_told_later() -> None:
    early = after_begins(FULL, RATE, [101.0], 100.0)

    assert early == Bucket(1.0, 101.0), "the bucket was full until then"
    assert early.refilled(RATE, 100.5) == early, "nothing is gained twice"
    assert after_begins(early, RATE, [], 102.0) == after_begins(FULL, RATE, [101.0], 102.0)


def test_a_begin_that_is_far_ahead_shows_that_the_clock_was_set_back() -> None:
    assert after_begins(FULL, RATE, [100.0 + LATER_SECONDS], 100.0) == Bucket(1.0, 100.0)


#: Seconds until `admit` reads the time; until it reads the begins, and how many there are then; until the next ones.
_turn = st.tuples(st.floats(0, 3), st.floats(0, 3), st.integers(0, 2), st.floats(0, 3), st.integers(0, 2))


@settings(max_examples=100, deadline=None)
@given(st.lists(_turn, min_size=10, max_size=40))
def test_no_period_has_more_begins_than_the_rate_says(turns: list[tuple[float, float, int, float, int]]) -> None:
    at, unbegun, bucket = 1000.0, 0, None
    begins, told = list[float](), list[float]()

    def begin(number: int) -> None:
        nonlocal unbegun
        number = min(number, unbegun)
        unbegun -= number
        begins.extend([at] * number)
        told.extend([at] * number)

    for until_now, until_read, some, until_next, more in turns:
        now = at = at + until_now
        at += until_read
        begin(some)
        bucket = after_begins(bucket, RATE, told, now)
        told.clear()
        unbegun += room(Bounds(rate=RATE), bucket, held=unbegun, unbegun=unbegun) or 0
        at += until_next
        begin(more)

    worst = max((bisect_left(begins, first + RATE.period) - place for place, first in enumerate(begins)), default=0)
    assert worst <= RATE.most
