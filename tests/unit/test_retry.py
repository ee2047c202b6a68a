from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import Fail, Retry, Snooze
from tenure.core.retry import full_jitter
from tenure.errors import InvalidOption


@given(st.integers(0, 10_000), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_between_zero_and_the_cap(failures: int, base: float, cap: float, draw: float) -> None:
    assert 0 <= full_jitter(failures, base, cap, draw) <= cap


def test_the_longest_wait_doubles_with_every_failure_up_to_the_cap() -> None:
    assert [full_jitter(n, 1, 30, draw=1) for n in range(1, 8)] == [2, 4, 8, 16, 30, 30, 30]


def test_the_draw_spreads_the_wait_over_the_whole_range() -> None:
    assert [full_jitter(3, 1, 30, draw) for draw in (0.0, 0.5, 1.0)] == [0.0, 4.0, 8.0]


def test_a_number_is_short_for_that_many_failures() -> None:
    assert Retry.of(3) == Retry(3)
    assert Retry.of(Retry(5, base="2s")) == Retry(5, base="2s")
    assert (Retry().max_failures, Retry().base, Retry().cap) == (10, 1.0, 30.0)


def test_on_and_never_say_which_errors_are_worth_another_attempt() -> None:
    retry = Retry(on=OSError, never=(PermissionError, FileNotFoundError))

    assert retry.retries(TimeoutError())
    assert not retry.retries(FileNotFoundError())
    assert not retry.retries(ValueError())
    assert Retry().retries(ValueError())


def test_a_group_is_worth_another_attempt_if_all_of_its_errors_are() -> None:
    lost, denied, wrong = ConnectionError(), PermissionError(), ValueError()
    retry = Retry(on=OSError, never=PermissionError)

    assert retry.retries(ExceptionGroup("", [lost, ExceptionGroup("", [lost])]))
    assert not retry.retries(ExceptionGroup("", [lost, ExceptionGroup("", [denied])]))
    assert not retry.retries(ExceptionGroup("", [lost, wrong]))
    assert Retry().retries(ExceptionGroup("", [lost, wrong]))
    assert not Retry(never=OSError).retries(ExceptionGroup("", [wrong, lost]))
    assert Retry(on=ExceptionGroup).retries(ExceptionGroup("", [wrong]))


def test_a_delay_of_its_own_may_leave_it_to_the_usual_backoff() -> None:
    retry = Retry(delay=lambda error, failures: f"{failures}m" if isinstance(error, OSError) else None)

    assert retry.wait(OSError(), 3) == 180.0
    assert retry.wait(ValueError(), 3) is None
    assert Retry().wait(OSError(), 3) is None


@pytest.mark.parametrize("count", [0, -1, True, 2.5, "3", None, 1_000_001])
def test_a_count_that_can_not_be_is_refused(count: Any) -> None:
    with pytest.raises(InvalidOption, match=r"max_failures: expected a whole number from 1 \(1 = no retry\)"):
        Retry(count)


@pytest.mark.parametrize("option", ["on", "never"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, (OSError, "ValueError"), ValueError("x")])
def test_only_exception_types_can_be_retried(option: str, kind: Any) -> None:
    options: dict[str, Any] = {option: kind}
    with pytest.raises(InvalidOption, match=f"{option}: expected Exception types"):
        Retry(**options)


def test_what_a_handler_raises_carries_its_word() -> None:
    snooze, fail = Snooze("10m", "market closed"), Fail("rate limited", retry_in="90s", final=True)

    assert (snooze.delay, snooze.reason, str(snooze)) == (600.0, "market closed", "market closed")
    assert str(Snooze("10m")) == "snoozed for 10m"
    assert (fail.reason, fail.retry_in, fail.final, str(fail)) == ("rate limited", 90.0, True, "rate limited")
    assert Fail("no").retry_in is None


async def waits(error: Exception, failures: int) -> None: ...


@pytest.mark.parametrize("delay", ["10s", 10, waits])
def test_a_delay_that_is_no_plain_function_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidOption, match="delay: expected a plain function of the error and the number of failures"):
        Retry(delay=delay)
