"""Jobs that a worker claimed and can't run: it does not know their task, or their arguments do not fit its code, or
their values are encrypted and it does not have the key, or they are kept elsewhere and can't be fetched.

That happens while a deploy is under way. The jobs wait, uncharged, for a worker with the code that they were made for,
and with the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from tenure.core.lifecycle import Failed, Snoozed
from tenure.core.logs import logger
from tenure.core.retry import Fail, Snooze
from tenure.core.sealed import MARK
from tenure.core.text import clean
from tenure.errors import Locked, NotFetched, StoreError
from tenure.events import DEPLOY, MISFIT, NO_KEY, NOT_FETCHED, UNKNOWN_TASK
from tenure.ports import AttemptView, Claimed, Store
from tenure.tasks.arguments import unreadable

SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 300.0  #: between two tries
MAX_REASON = 1000  #: characters
PATIENCE = timedelta(hours=24)  #: then it is a dead letter

_STAMP = "%Y-%m-%d %H:%M:%S"
_SINCE = re.compile(rf"{MISFIT} since (?P<since>\d+-\d+-\d+ \d+:\d+:\d+) UTC")
_log = logger("tenure.worker")


def unknown_task(claimed: Claimed) -> Snoozed:
    """The outcome of a job of a task that this worker does not know: a delay that grows from 5 s to 5 min."""
    _log_once("jobs of %s wait for a worker that knows the task: %s", claimed.task, DEPLOY)
    return Snoozed(delay_of(claimed), f"{UNKNOWN_TASK} {claimed.task!r}", ours=True)


def locked(claimed: Claimed, error: Locked) -> Snoozed | Failed:
    """The outcome of a job with a value that this worker can't read. It waits without limit, as for an unknown task.

    A value that was altered can't be read anywhere: the job is a dead letter.
    """
    if error.altered:
        return Failed(str(error), final=True)
    if isinstance(error, NotFetched):
        _log_once(
            "jobs of %s wait until their values can be fetched; %s", claimed.task, "tenure jobs explain says more"
        )
        return Snoozed(delay_of(claimed), clean(f"{NOT_FETCHED} {error.lacks}", MAX_REASON), ours=True)
    _log_once("jobs of %s wait for a worker with their key: %s", claimed.task, error.why)
    return Snoozed(delay_of(claimed), f"{NO_KEY} for {error.lacks}", ours=True)


def sealed_in(claimed: Claimed) -> Locked | None:
    """Why its arguments or its checkpoint can't be read, if that is so."""
    if claimed.payload.startswith(MARK):
        return unreadable("its payload", claimed.payload)
    if claimed.checkpoint is not None and claimed.checkpoint.startswith(MARK):
        return unreadable("its checkpoint", claimed.checkpoint)
    return None


def delay_of(claimed: Claimed) -> float:
    """How long a job waits that can't run here: 5 s, then ever longer, up to 5 min."""
    tries = max(claimed.attempt - claimed.failures - claimed.crashes - 1, 0)
    return min(SHORTEST_SECONDS * 2.0 ** min(tries, 10), LONGEST_SECONDS)


class Misfit(Snooze):
    """The reason is the engine's own."""


def misfit(store: Store, claimed: Claimed, why: str) -> Misfit | Fail:
    """What its attempt raises: Misfit, growing from 5 s to 5 min, and Fail once it has been a misfit for 24 h."""
    if store.capabilities.sealed:  # the rest may quote what is encrypted; this names the argument
        why = why.partition(":")[0]
    _log_once("jobs of %s wait for a worker whose code their arguments fit: %s", claimed.task, why)
    try:
        now = store.now()
        since = _since(store.attempts(claimed.id)) or now
    except StoreError:  # its outcome will wait for the store, too
        return Misfit(timedelta(seconds=SHORTEST_SECONDS), f"{MISFIT}: {why}")
    reason = f"{MISFIT} since {since.astimezone(UTC):{_STAMP}} UTC: {why}"
    if now - since >= PATIENCE:
        return Fail(reason, final=True)
    waited = (now - since).total_seconds()  # as long again, so that the delays double
    return Misfit(timedelta(seconds=min(max(waited, SHORTEST_SECONDS), LONGEST_SECONDS)), reason)


def _since(attempts: Iterable[AttemptView]) -> datetime | None:
    """Since when it has been a misfit, by the reason of an earlier attempt. A drain in between changes nothing."""
    before = [each for each in attempts if each.outcome != "released"]
    last = before[-1] if before else None  # failed: it was given up, and somebody has replayed it
    found = None if last is None or last.outcome != "snoozed" else _SINCE.match(last.error)
    return None if found is None else datetime.strptime(found["since"], _STAMP).replace(tzinfo=UTC)


@lru_cache(maxsize=1000)
def _log_once(template: str, task: str, why: str) -> None:
    """Log it once for a task and a reason, whatever the number of jobs and tries."""
    with suppress(Exception):  # from a logging filter or handler: it must not stop a worker
        _log.warning(template, task, why)
