"""Backoff with full jitter, the policy that decides which errors are retried, and the exceptions that override it.

The rule is AWS's "full jitter": a random delay between zero and the capped exponential. Of the known variants it
spreads a burst of failures best, at the price of an occasional early retry
(Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Never, Protocol, cast

from tenure.core.durations import Duration, seconds
from tenure.errors import InvalidOption, Portable

if TYPE_CHECKING:
    from tenure.core.limits import Key

Raises = type[Exception] | tuple[type[Exception], ...]
MOST_FAILURES = 1_000_000  #: that a policy may ask for: every store can count so far


def full_jitter(failures: int, base: float, cap: float, draw: float) -> float:
    """Seconds to wait after the n-th failure: `draw * min(base * 2**n, cap)`, clamped to 0…cap.

    >>> [full_jitter(n, 1.0, 30.0, draw=1.0) for n in (1, 2, 3, 6, 5000)]
    [2.0, 4.0, 8.0, 30.0, 30.0]
    """
    # 2**63 s is past every cap; a larger exponent would only overflow the float.
    ceiling = min(base * 2.0 ** min(max(failures, 0), 63), cap)
    return min(max(draw * ceiling, 0.0), cap)


def leaves(error: BaseException) -> list[BaseException]:
    """The error itself, or all errors of a group and of the groups in it."""
    found, left = list[BaseException](), [error]
    while left:  # a recursion into a group of a thousand groups would fail whatever is garbage collected meanwhile
        each = left.pop()
        members = members_of(each)
        left += reversed(members)
        found += () if members else (each,)
    return found


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """The errors in a group; none in any other error."""
    if not isinstance(error, BaseExceptionGroup):
        return ()
    return cast("BaseExceptionGroup[BaseException]", error).exceptions


@dataclass(frozen=True, init=False)
class Retry:
    """When a failed attempt is retried.

    `max_failures` counts failures, not retries: `Retry(3)` runs at most three times, `Retry(1)` once. The wait after
    the n-th failure is random between 0 and `base * 2**n`, at most `cap`: up to 2 s after the first one by default.
    Only errors in `on` and not in `never` are retried; others are final. An exception group counts as its errors: all
    must be in `on`, and none in `never`. `delay(error, failures)` may return a wait, or
    None for the usual one.

    Example: `Retry(8, base="5s", cap="10m", on=OSError, never=PermissionError)`

    Raises InvalidOption for a count below 1, or a negative or unreadable duration.
    """

    max_failures: int
    base: float  #: seconds
    cap: float  #: seconds
    on: tuple[type[Exception], ...]
    never: tuple[type[Exception], ...]
    delay: Callable[[Exception, int], Duration | None] | None

    def __init__(
        self,
        max_failures: int = 10,
        *,
        base: Duration = "1s",
        cap: Duration = "30s",
        on: Raises = Exception,
        never: Raises = (),
        delay: Callable[[Exception, int], Duration | None] | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise InvalidOption(
                f"Retry: there is no option {next(iter(unknown))!r}; write Retry(3) for at most 3 failures, so 2 "
                "retries; the others are base, cap, on, never, delay"
            )
        whole = isinstance(max_failures, int) and not isinstance(max_failures, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not whole or not 1 <= max_failures <= MOST_FAILURES:
            raise InvalidOption(
                f"max_failures: expected a whole number from 1 (1 = no retry) to {MOST_FAILURES:,}, "
                f"got {max_failures!r}"
            )
        put = object.__setattr__
        put(self, "max_failures", max_failures)
        put(self, "base", seconds(base, "base"))
        put(self, "cap", seconds(cap, "cap"))
        put(self, "on", on if isinstance(on, tuple) else (on,))
        put(self, "never", never if isinstance(never, tuple) else (never,))
        if delay is not None and (not callable(delay) or iscoroutinefunction(delay)):  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidOption(
                f"delay: expected a plain function of the error and the number of failures, got {delay!r}; "
                'base="10s" sets the usual waits'
            )
        put(self, "delay", delay)
        for name, kinds in (("on", self.on), ("never", self.never)):
            for kind in kinds:
                if not (isinstance(kind, type) and issubclass(kind, Exception)):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise InvalidOption(f"{name}: expected Exception types, got {kind!r}")

    if not TYPE_CHECKING:  # hidden, so that type checkers reject the call

        def __call__(self, *args: object, **kwargs: object) -> None:
            raise InvalidOption(
                "a Retry is a policy: to run a job again, its handler raises "
                'Fail("why", retry_in="5s"), or Snooze("5s"), which is charged to nothing'
            )

    @classmethod
    def of(cls, value: Retry | int) -> Retry:
        """`retry=3` is short for `retry=Retry(3)`."""
        if isinstance(value, Retry):
            return value
        if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"retry: expected a number of failures, or Retry(…), got {value!r}; write Retry(3)")
        return cls(value)

    def retries(self, error: Exception) -> bool:
        """Is this error worth another attempt? A group is worth one if all of its errors are."""
        inner = leaves(error)
        if any(isinstance(each, self.never) for each in (error, *inner)):
            return False
        return isinstance(error, self.on) or all(isinstance(each, self.on) for each in inner)

    def wait(self, error: Exception, failures: int) -> float | None:
        """Seconds to wait after the n-th failure by the policy's own `delay`; None uses the usual backoff."""
        asked = self.delay(error, failures) if self.delay is not None else None
        return None if asked is None else seconds(asked, "delay")


class Pausable(Protocol):
    """A limit, from `jobs.limit(…)`."""

    def key_of(self, payload: str) -> Key:
        """The key of a job with this payload."""
        ...


class Snooze(Portable, Exception):
    """Raise it in a handler to run the job again after `delay`; nothing is charged.

    Once the attempt is past its `timeout` or `stale_after`, it counts as that instead: charged, and no key is paused.

    With `limit`, the key that this job's arguments give is paused: no job gets a place of it until then.

    Example: `raise Snooze("10m", "market closed")`, or `raise Snooze("30s", limit=github)`
    """

    def __init__(self, delay: Duration, reason: str = "", *, limit: Pausable | None = None) -> None:
        super().__init__(reason or f"snoozed for {delay}")
        self.delay = seconds(delay, "Snooze delay")
        self.reason = str(reason)  # people write `raise Fail(error)`
        if limit is not None and not hasattr(limit, "key_of"):
            raise InvalidOption(f"Snooze limit: expected jobs.limit(…), got {limit!r:.80}")
        self.limit = limit


class Fail(Portable, Exception):
    """Raise it in a handler to fail this attempt with your own retry delay, or permanently.

    Example: `raise Fail("rate limited", retry_in="90s")` or `raise Fail("no such page", final=True)`
    """

    def __init__(self, reason: str, *, retry_in: Duration | None = None, final: bool = False) -> None:
        super().__init__(reason)
        self.reason = str(reason)
        self.retry_in = None if retry_in is None else seconds(retry_in, "Fail retry_in")
        self.final = final
