"""Callbacks that follow the commit of a caller's transaction.

They need no hook in the caller's driver: the transaction's id is known, and the server is asked for its status.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tenure.core.logs import logger

#: Takes one array of ids, returns each with its status. The commit log records a commit a moment before its rows are
#: visible, so the snapshot is checked first; this also avoids an error for an id that a failover lost.
STATUS = """
    SELECT x::text, CASE WHEN pg_visible_in_snapshot(x, pg_current_snapshot()) THEN pg_xact_status(x) END
    FROM unnest(%s::text[]::xid8[]) AS x"""

_SHORTEST, _LONGEST = 0.002, 0.25  # pauses: half of the time since this id was added
_PATIENCE = 600.0  # jobs of a transaction that commits later are found by polling
_IDLE = 5.0
_CLOSING = 1.0


@dataclass(slots=True)
class _Waiting:
    """The callbacks of one transaction. Each is polled at its own pace, so a long one does not slow the others."""

    since: float
    look: float
    committed: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class CommitWatch:
    """Calls back when transactions have committed, and forgets those that were rolled back.

    `ask` answers 'committed' or 'aborted' for those that have ended, as `STATUS` does. One thread asks, for as long as
    callbacks wait and a little longer. Safe from every thread; does nothing in a forked child.
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
                with suppress(RuntimeError):  # no thread can be started now: the next call tries again
                    thread.start()
                    self._thread = thread
            self._changed.notify()

    def close(self) -> None:
        """Ask once more, then stop. Call it before the store closes its connections."""
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
                    logger("tenure.store").exception("a callback after a commit has failed")

    def _left(self) -> float:
        return min(each.look for each in self._waiting.values()) - time.monotonic()

    def _ended(self, xids: Sequence[str]) -> list[Callable[[], None]]:
        """The callbacks to run. Transactions that have ended, or were awaited for too long, are forgotten."""
        try:
            statuses: Mapping[str, str | None] = self._ask(xids)
        except Exception:  # server unreachable: keep them; if it stays so, polling finds their jobs
            statuses = {}
        ended: list[Callable[[], None]] = []
        with self._changed:
            now = time.monotonic()
            for xid in xids:
                status, each = statuses.get(xid), self._waiting[xid]
                age = now - each.since
                each.look = now + min(max(age / 2, _SHORTEST), _LONGEST)
                if status in ("committed", "aborted") or age > _PATIENCE:
                    del self._waiting[xid]
                    ended += each.committed if status == "committed" else ()
        return ended
