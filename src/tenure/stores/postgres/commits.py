"""Who waits to hear that a transaction of someone else's has committed, and how they learn it.

No hooks in anybody's driver: the transaction's id is known, and the server tells what became of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

#: Ids in (one array), each with its status out. The log of commits knows of one a moment before others see its rows,
#: so a snapshot is asked first; it also keeps an id that a failover took back from raising.
STATUS = """
    SELECT x::text, CASE WHEN pg_visible_in_snapshot(x, pg_current_snapshot()) THEN pg_xact_status(x) END
    FROM unnest(%s::text[]::xid8[]) AS x"""

_SHORTEST, _LONGEST = 0.002, 0.25  # pauses: a quarter of the time since this id came
_PATIENCE = 600.0  # whoever commits later is found by the poll
_IDLE = 5.0
_CLOSING = 1.0


@dataclass(slots=True)
class _Waiting:
    """For one transaction. Each has its own pauses: one that stays open does not slow the others, nor they hurry it."""

    since: float
    look: float
    committed: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class CommitWatch:
    """Calls back when transactions have committed, and forgets those that were rolled back.

    `ask` answers 'committed' or 'aborted' for those that have ended, as `STATUS` does. One thread asks, while someone
    waits and a little longer. Safe from every thread; a forked child waits for nobody.
    """

    def __init__(self, ask: Callable[[Sequence[str]], Mapping[str, str | None]]) -> None:
        self._ask = ask
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: dict[str, _Waiting] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, xid: str, committed: Callable[[], None]) -> None:
        """Call `committed` once the transaction with this id has committed."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            if self._closed:
                return
            now = time.monotonic()
            self._waiting.setdefault(xid, _Waiting(now, now + _SHORTEST)).committed.append(committed)
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="tenure-commits", daemon=True)
                with suppress(RuntimeError):  # no thread can be started now: the next one to come tries again
                    thread.start()
                    self._thread = thread
            self._changed.notify()

    def close(self) -> None:
        """Look once more, and end. Comes before the store closes its connections."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(_CLOSING)

    def _watch(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed, _IDLE)
                while self._waiting and not self._closed and (left := self._left()) > 0:
                    self._changed.wait(left)
                closing, soon = self._closed, time.monotonic() + _SHORTEST
                due = [xid for xid, each in self._waiting.items() if closing or each.look <= soon]
                if not due:
                    self._thread = None
                    return
            for committed in self._ended(due):
                try:
                    committed()
                except Exception:
                    logging.getLogger("tenure.store").exception("what was to follow a commit has failed")

    def _left(self) -> float:
        return min(each.look for each in self._waiting.values()) - time.monotonic()

    def _ended(self, xids: Sequence[str]) -> list[Callable[[], None]]:
        """Whom to call back. All that have ended, or waited for too long, are forgotten."""
        try:
            statuses: Mapping[str, str | None] = self._ask(xids)
        except Exception:  # out of reach: they stay, and in the end the poll finds their jobs
            statuses = {}
        ended: list[Callable[[], None]] = []
        with self._changed:
            now = time.monotonic()
            for xid in xids:
                status, each = statuses.get(xid), self._waiting[xid]
                age = now - each.since
                each.look = now + min(max(age / 4, _SHORTEST), _LONGEST)
                if status in ("committed", "aborted") or age > _PATIENCE:
                    del self._waiting[xid]
                    ended += each.committed if status == "committed" else ()
        return ended
