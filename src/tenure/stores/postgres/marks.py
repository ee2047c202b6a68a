"""How far a long queue has been read: a hint where the next claim may begin.

While some old snapshot is held anywhere in the database, no job that has left the queue can be vacuumed from its index,
and every claim would step over all of them (measured: with 200,000 of those, claims took four times as long). A mark
skips them. It may also skip a job that took an earlier place meanwhile (a rescued one, a late commit), so it is only
believed for a second, and never when a claim comes back short.
"""

from __future__ import annotations

import time

Place = tuple[int, str, str]  #: rank (minus the priority), run_at and id

START: Place = (-32768, "-infinity", "00000000-0000-0000-0000-000000000000")
BELIEVED_SECONDS = 1.0
MOVED_EVERY_SECONDS = 0.1  # asking for a place costs a round trip


class Marks:
    """The marks of one store, a queue each. Claims of one store come one after another; a lost race costs a look."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._since = self._moved = 0.0

    def __bool__(self) -> bool:
        return bool(self._places)

    def of(self, queue: str) -> Place:
        return self._places.get(queue, START)

    def refresh(self) -> None:
        """Forget all once they are too old."""
        if self._places and time.monotonic() - self._since > BELIEVED_SECONDS:
            self.clear()

    def clear(self) -> None:
        self._places.clear()

    def wanted(self) -> bool:
        """Is it time to move them on?"""
        return time.monotonic() - self._moved > MOVED_EVERY_SECONDS

    def put(self, queue: str, place: Place) -> None:
        self._moved = time.monotonic()
        if not self._places:
            self._since = self._moved
        self._places[queue] = place
