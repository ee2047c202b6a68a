"""How far a queue has been read: a hint where the next claim may start.

While an old snapshot is held anywhere in the database, by a dump or a report, the index entries of jobs that left the
queue can't be vacuumed, and every claim would step over all of them (measured: 0.1 ms for each thousand, so a third of
a second after an hour at 1,000 jobs a second). A mark skips them. It may also skip a job that took an earlier place
meanwhile: a rescued one, or one of a transaction that committed late. Therefore a claim that returns fewer jobs than
asked for reads everything again without marks.

Where that costs much, as the queue is short and all claims are such, marks are *kept* for a time: a look on another
connection, which no claim waits for, tells whether a job was skipped, twice a second or, where one takes longer than
0.1 s, after five times its own time. A skipped job waits for the claim after that look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from tenure.errors import StoreError
from tenure.ports import Claimed
from tenure.stores.postgres.server import Server

Place = tuple[int, str, str]  #: rank (minus the priority), run_at and id

START: Place = (-32768, "-infinity", "00000000-0000-0000-0000-000000000000")
BELIEVED_SECONDS = 1.0
MOVED_EVERY_SECONDS = 0.1  # reading a place costs a round trip
MARK_FROM = 50  #: a claim of this many jobs may be from a long queue
SLOW_SECONDS = 0.003  #: to choose jobs, as the server measures it
SLOW_CLAIMS = 10  #: in a row, before marks are kept: a busy server alone is no reason
LOOK_SHARE = 10  #: marks are kept for this many times as long as the last look took; the next one comes at half of it
UNSEEN_SECONDS = 30.0  #: marks are dropped if no look ends for so long

PLACE = """
    SELECT -priority, (run_at - %s * interval '1 second')::text, id::text FROM @.jobs WHERE id = %s"""
SKIPPED = """
    SELECT FROM @.jobs WHERE state = 'queued' AND queue = %s AND NOT solo
        AND (-priority) = %s AND (run_at, id) < (%s::timestamptz, %s::uuid)
    ORDER BY (-priority), run_at, id LIMIT 1"""


class Marks:
    """The marks of one store, one per queue. Claims of one store are sequential; a lost race costs one more claim."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._places: dict[str, Place] = {}
        self._since = self._moved = 0.0
        self._slow = 0
        self._kept_until: float | None = None  # None: they are not kept
        self._look_at = 0.0
        self._looking: threading.Thread | None = None

    def __bool__(self) -> bool:
        return bool(self._places)

    def of(self, queue: str) -> Place:
        return self._places.get(queue, START)

    def clear(self) -> None:
        self._places.clear()
        self._kept_until = None

    def refresh(self) -> None:
        """Drop all marks once they are too old; look for what kept ones have skipped."""
        now, until = time.monotonic(), self._kept_until
        if until is None:
            if now - self._since > BELIEVED_SECONDS:
                self.clear()
        elif now - until > UNSEEN_SECONDS:
            self.clear()
        elif now > self._look_at and (self._looking is None or not self._looking.is_alive()):
            self._looking = threading.Thread(target=self._look, args=(dict(self._places),), daemon=True)
            with suppress(RuntimeError):  # no thread can be started
                self._looking.start()

    def believes(self, found: Sequence[Claimed]) -> bool:
        """May a claim that returned fewer jobs than asked for be all there is?

        An empty one looks itself if no other look has been made in time: no claim may follow for a while.
        """
        until = self._kept_until
        return until is not None and (bool(found) or time.monotonic() <= until)

    @property
    def in_use(self) -> bool:
        """May the next claim want to read or set a mark?"""
        return bool(self._places or self._slow)

    def took(self, found: Sequence[Claimed], chosen_in: float) -> None:
        """Jobs were claimed without marks. `chosen_in`: seconds."""
        if found:
            self._slow = self._slow + 1 if chosen_in > SLOW_SECONDS else 0

    def after(self, found: Sequence[Claimed], chosen_in: float, *, short: bool) -> None:
        """Jobs were claimed. `chosen_in`: seconds. `short`: fewer than asked for."""
        if not found:
            return
        slow = chosen_in > SLOW_SECONDS
        if not self._places:
            self.took(found, chosen_in)
            if short and self._slow >= SLOW_CLAIMS:
                self._keep(chosen_in)
        kept = self._kept_until is not None
        wanted = kept or (not short and (slow or len(found) >= MARK_FROM))
        if wanted and time.monotonic() - self._moved > MOVED_EVERY_SECONDS:
            with suppress(StoreError):  # it is only a hint, and the claimed jobs must be returned
                for last in {each.queue: each for each in found}.values():
                    # What commits a moment late is not skipped.
                    for place in self._server.fetch(PLACE, BELIEVED_SECONDS if kept else 0.0, last.id):
                        self._put(last.queue, place)

    def _put(self, queue: str, place: Place) -> None:
        self._moved = time.monotonic()
        if not self._places:
            self._since = self._moved
        self._places[queue] = place

    def _keep(self, seconds: float) -> None:
        """Nothing was skipped, which took so long to see."""
        pause = max(BELIEVED_SECONDS, LOOK_SHARE * seconds)
        self._look_at = time.monotonic() + pause / 2
        self._kept_until = self._look_at + pause / 2

    def _look(self, places: dict[str, Place]) -> None:
        began = time.monotonic()
        try:
            skipped = any(self._server.fetch(SKIPPED, queue, *place) for queue, place in places.items())
        except StoreError:
            skipped = True
        seconds = time.monotonic() - began
        if skipped or seconds < SLOW_SECONDS:
            self.clear()
        else:
            self._keep(seconds)
