"""Jobs whose arguments do not fit the code of the worker that claimed them, as happens while a deploy is under way.

Such a job is treated as one of an unknown task: it waits, uncharged, for a worker with the code that it was made for.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from tenure.core.retry import Fail, Snooze
from tenure.errors import StoreError
from tenure.events import MISFIT
from tenure.ports import AttemptView, Claimed, Store

SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 300.0  #: between two tries
PATIENCE = timedelta(hours=24)  #: then it is a dead letter

_STAMP = "%Y-%m-%d %H:%M:%S"
_SINCE = re.compile(rf"{MISFIT} since (?P<since>\d+-\d+-\d+ \d+:\d+:\d+) UTC")
_log = logging.getLogger("tenure.worker")


def misfit(store: Store, claimed: Claimed, why: str) -> Snooze | Fail:
    """What its attempt raises: Snooze, growing from 5 s to 5 min, and Fail once it has been a misfit for 24 h."""
    _tell_once(claimed.task, why)
    try:
        now = store.now()
        since = _since(store.attempts(claimed.id)) or now
    except StoreError:  # its outcome will wait for the store, too
        return Snooze(timedelta(seconds=SHORTEST_SECONDS), f"{MISFIT}: {why}")
    reason = f"{MISFIT} since {since.astimezone(UTC):{_STAMP}} UTC: {why}"
    if now - since >= PATIENCE:
        return Fail(reason, final=True)
    waited = (now - since).total_seconds()  # as long again: each delay is twice the one before
    return Snooze(timedelta(seconds=min(max(waited, SHORTEST_SECONDS), LONGEST_SECONDS)), reason)


def _since(attempts: Iterable[AttemptView]) -> datetime | None:
    """Since when, by the reason of the attempt before. A drain in between changes nothing."""
    before = [each for each in attempts if each.outcome != "released"]
    found = _SINCE.match(before[-1].error) if before else None
    return None if found is None else datetime.strptime(found["since"], _STAMP).replace(tzinfo=UTC)


@lru_cache(maxsize=1000)
def _tell_once(task: str, why: str) -> None:
    """Log it once for a task and a reason, whatever the number of jobs and tries."""
    _log.warning("jobs of %s wait for a worker whose code their arguments fit: %s", task, why)
