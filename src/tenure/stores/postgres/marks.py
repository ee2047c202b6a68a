"""How far a long queue has been read: a hint where the next claim may start.

While an old snapshot is held anywhere in the database, the index entries of jobs that left the queue can't be vacuumed,
and every claim would step over all of them (measured: with 200,000 of them, claims took four times as long). A mark
skips them. It may also skip a job that took an earlier place meanwhile (a rescued one, a late commit), so it is used
for a second only, and dropped when a claim returns fewer jobs than asked for.
"""

from __future__ import annotations

import time

Place = tuple[int, str, str]  #: rank (minus the priority), run_at and id

START: Place = (-32768, "-infinity", "00000000-0000-0000-0000-000000000000")
BELIEVED_SECONDS = 1.0
MOVED_EVERY_SECONDS = 0.1  # reading a place costs a round trip


class Marks:
    """The marks of one store, one per queue. Claims of one store are sequential; a lost race costs one more claim."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._since = self._moved = 0.0

    def __bool__(self) -> bool:
        return bool(self._places)

    def of(self, queue: str) -> Place:
        return self._places.get(queue, START)

    def refresh(self) -> None:
        """Drop all marks once they are too old."""
        if self._places and time.monotonic() - self._since > BELIEVED_SECONDS:
            self.clear()

    def clear(self) -> None:
        self._places.clear()

    def wanted(self) -> bool:
        """Is it time to advance them?"""
        return time.monotonic() - self._moved > MOVED_EVERY_SECONDS

    def put(self, queue: str, place: Place) -> None:
        self._moved = time.monotonic()
        if not self._places:
            self._since = self._moved
        self._places[queue] = place
