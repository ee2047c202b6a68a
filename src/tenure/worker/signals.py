"""What an exception of a handler means when it comes in a group, or while the handler is being stopped."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator

from tenure.core import retry
from tenure.core.retry import Fail, Snooze
from tenure.errors import JobStopped, LeaseLost, Locked, TenureError
from tenure.tasks.waits import Suspend, together


def leaves(error: BaseException) -> list[BaseException]:
    """The error itself, or all errors of a group and of the groups in it. A Suspend beside an error is left out."""
    found = retry.leaves(error)
    return [each for each in found if not isinstance(each, Suspend)] or found


def signal_in(error: BaseException) -> BaseException:
    """The signal that a group stands for, or the error itself.

    A lost lease or a final Fail counts whatever else a group holds. Beside an error that is not a signal, a Snooze or
    another Fail does not: that error is a failure. Of several signals a Fail counts first, then a value that can't be
    read, then the longest Snooze. Several that suspend the job wait together.

    >>> signal_in(ExceptionGroup("", [Snooze("1s"), ExceptionGroup("", [Snooze("1m")])]))
    Snooze('snoozed for 1m')
    """
    found = leaves(error)
    for each in found:
        if isinstance(each, LeaseLost) or (isinstance(each, Fail) and each.final):
            return each
    snoozes = [each for each in found if isinstance(each, Snooze)]
    fails = [each for each in found if isinstance(each, Fail)]
    suspends = [each for each in found if isinstance(each, Suspend)]
    unread = [each for each in found if isinstance(each, Locked)]
    if len(snoozes) + len(fails) + len(suspends) + len(unread) < len(found):
        return error
    if fails:
        return fails[0]
    if unread:
        return max(unread, key=lambda each: each.altered)  # that one can be read nowhere
    return max(snoozes, key=lambda each: each.delay) if snoozes else together(suspends)


def came_of_a_stop(error: BaseException) -> bool:
    """Is it what stopped the code, or was it raised while the code cleaned up after that?"""
    return any(isinstance(each, CancelledError | JobStopped) for each in _history(error))


def came_after_a_wait(error: BaseException) -> bool:
    """An error leaves a handler that began to wait: does the wait decide the outcome, rather than the error?

    It does if an `except BaseException` or a `finally` raised the error after a `gather`, or code that went on after
    swallowing it. A lost lease and a final Fail count instead; a group holds what was raised beside the wait; and an
    error of Tenure's own tells of misuse, unless it was raised while the wait left the handler.
    """
    if isinstance(error, LeaseLost | BaseExceptionGroup) or (isinstance(error, Fail) and error.final):
        return False
    return not isinstance(error, TenureError) or any(isinstance(each, Suspend) for each in _history(error))


def _history(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or during, and what a group of them holds."""
    waiting: list[BaseException | None] = [error]
    seen = set[int]()
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += (each.__cause__, each.__context__, *retry.members_of(each))
