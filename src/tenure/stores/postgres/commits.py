"""Who waits to hear that a transaction of someone else's has committed, and how they learn it.

No hooks in anybody's driver: the transaction's id is known, and the server tells what became of it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

#: Ids in (one array), each with its status out. The log of commits knows of one a moment before others see its rows,
#: so a snapshot is asked first; it also keeps an id that a failover took back from raising.
STATUS = """
    SELECT x::text, CASE WHEN pg_visible_in_snapshot(x, pg_current_snapshot()) THEN pg_xact_status(x) END
    FROM unnest(%s::text[]::xid8[]) AS x"""

_SHORTEST, _LONGEST = 0.002, 0.25  # pauses: a quarter of the time since somebody came
_PATIENCE = 600.0  # whoever commits later is found by the poll
_IDLE = 5.0
_CLOSING = 1.0


class _Waiting(NamedTuple):
    since: float
    committed: Callable[[], None]


class CommitWatch:
    """Calls back when transactions have committed, and forgets those that were rolled back.

    `ask` answers 'committed' or 'aborted' for those that have ended, as `STATUS` does. One thread asks, while someone
    waits and a little longer. Safe from every thread; a forked child waits for nobody.
    """

    def __init__(self, ask: Callable[[Sequence[str]], Mapping[str, str | None]]) -> None:
        self._ask = ask
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._newest = self._asked = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, xid: str, committed: Callable[[], None]) -> None:
        """Call `committed` once the transaction with this id has committed."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            if self._closed:
                return
            self._newest = time.monotonic()
            if not self._waiting:
                self._asked = self._newest
            self._waiting.setdefault(xid, []).append(_Waiting(self._newest, committed))
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="tenure-commits", daemon=True)
                self._thread.start()
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
                self._asked = time.monotonic()
                waiting, closing = list(self._waiting), self._closed
                if not waiting:
                    self._thread = None
                    return
            for committed in self._ended(waiting):
                try:
                    committed()
                except Exception:
                    logging.getLogger("tenure.store").exception("what was to follow a commit has failed")

    def _left(self) -> float:
        now = time.monotonic()
        return self._asked + min(max((now - self._newest) / 4, _SHORTEST), _LONGEST) - now

    def _ended(self, xids: Sequence[str]) -> list[Callable[[], None]]:
        """Whom to call back. All that have ended, or waited for too long, are forgotten."""
        try:
            statuses: Mapping[str, str | None] = self._ask(xids)
        except Exception:  # out of reach: they stay, and in the end the poll finds their jobs
            statuses = {}
        ended: list[Callable[[], None]] = []
        with self._changed:
            oldest = time.monotonic() - _PATIENCE
            for xid in xids:
                status = statuses.get(xid)
                if status in ("committed", "aborted") or self._waiting[xid][0].since < oldest:
                    gone = self._waiting.pop(xid)
                    ended += [each.committed for each in gone if status == "committed"]
        return ended
