"""A handler that failed because a connection was lost: to the store, or to a database of its own (drivers.py).

That is not a failure of the code: the job runs again, uncharged. The job may still be the cause, as when its query
takes the server down each time: after five lost connections in the kept attempts the sixth is an ordinary failure. The
bucket of large values is no cause of that kind: a job that needs it waits for as long as it is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from random import random
from typing import Any

from tenure.core.logs import logger
from tenure.core.retry import Fail, Snooze, full_jitter
from tenure.errors import BucketAway, StoreError
from tenure.events import LOST
from tenure.worker.drivers import connection_lost
from tenure.worker.leased import Leased
from tenure.worker.misfits import delay_of
from tenure.worker.signals import leaves

FREE = 5  #: lost connections of one job that cost nothing
BASE_SECONDS, CAP_SECONDS = 0.5, 30.0  #: of the wait: up to 0.5 s after the first one, 8 s after the fifth

_BUCKET = f"{LOST}: {BucketAway.__name__}"

_log = logger("tenure.worker")


class Lost(Snooze):
    """The reason is the engine's own."""


def excused(attempt: Leased[Any], error: BaseException) -> BaseException:
    """The error that decides the outcome: Lost, if this one came from a lost connection and costs nothing.

    Whatever else is raised meanwhile, such as by the error's own `__str__`: it decides by itself then.
    """
    try:
        return _logged(attempt, judged(attempt, error))
    except BaseException:
        return error


async def aexcused(
    attempt: Leased[Any], error: BaseException, aside: Callable[..., Awaitable[BaseException]]
) -> BaseException:
    """The same, for a handler on an event loop. `aside` runs a call in a thread."""
    try:
        if not _came_of_a_loss(attempt, error):
            return error
        return _logged(attempt, await aside(judged, attempt, error))
    except asyncio.CancelledError as stopped:
        return stopped
    except BaseException:
        return error


def judged(attempt: Leased[Any], error: BaseException) -> BaseException:
    """The same, without a line in the log."""
    if not _came_of_a_loss(attempt, error):
        return error
    store, claimed = attempt.host.store, attempt.claimed
    try:
        earlier = [each.error for each in store.attempts(claimed.id)]
        before = [each for each in earlier if each.startswith(LOST) and not each.startswith(_BUCKET)]
    except StoreError:  # its outcome will wait for the store, too
        before = []
    away = all(any(isinstance(each, BucketAway) for each in _causes(leaf)) for leaf in leaves(error))
    if len(before) >= FREE and not away:
        return error
    kind = type(error).__name__
    why = kind if store.capabilities.sealed else f"{kind}: {error}".partition("\n")[0]
    delay = delay_of(claimed) if away else full_jitter(len(before), BASE_SECONDS, CAP_SECONDS, random())
    found = Lost(timedelta(seconds=delay), f"{LOST}: {why}")
    found.__cause__ = error
    return found


def _logged(attempt: Leased[Any], error: BaseException) -> BaseException:
    if isinstance(error, Lost):
        raised = None if attempt.host.store.capabilities.sealed else error.__cause__
        about = attempt.claimed
        with suppress(Exception):  # of the program's own logging
            _log.warning("%s %s %s and runs again, uncharged", about.task, about.id, LOST, exc_info=raised)
    return error


def _came_of_a_loss(attempt: Leased[Any], error: BaseException) -> bool:
    if attempt.stopping is not None or isinstance(error, attempt.task.retry.never):
        return False
    return all(any(map(connection_lost, _causes(leaf))) for leaf in leaves(error))


def _causes(error: BaseException | None) -> Iterator[Exception]:
    """The error, and those it was raised from. A Snooze or a Fail is the handler's own decision.

    The class of a store's error says what caused it: not every error of its driver is a lost connection.
    """
    seen = set[int]()  # `raise error from error` makes a circle
    while isinstance(error, Exception) and not isinstance(error, Snooze | Fail) and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = None if isinstance(error, StoreError) else error.__cause__
