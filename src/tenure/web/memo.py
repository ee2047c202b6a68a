"""Shared reads: each is done once for all callers, and cached for a time that grows with its cost."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import Any, TypeVar, cast

from tenure.errors import StoreAway

T = TypeVar("T")
SHARE = 60  #: a read that takes 5 ms is made again after 300 ms at the earliest: less than 2% of one core
_HASTE = 5  #: as `SHARE`, after an action
_EXPENSIVE = 0.02  #: seconds: no caller waits for a read that takes longer while there is a recent value
_OLD = 3.0
_PATIENCE = 5.0  #: seconds to wait for another caller's read
_KEPT = 256
_IDLE = 60.0  #: seconds after which an unused value is dropped, since some are large


@dataclass(slots=True)
class _Cell:
    lock: Lock = field(default_factory=Lock)
    value: Any = None
    taken_at: float | None = None
    stale_at: float = 0.0
    costs: tuple[float, ...] = ()  #: durations of the last reads, in seconds
    asked_at: float = 0.0

    @property
    def cost(self) -> float:
        """How long the read takes when it is not delayed."""
        return min(self.costs, default=0.0)


def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, "tenure-look")  # starts no thread before one is needed


class Memo:
    """Example: `memo.get("queues", admin.queues.all, fresh=0.2)`, from any thread."""

    def __init__(self) -> None:
        self._cells: OrderedDict[Hashable, _Cell] = OrderedDict()
        self._lock = Lock()
        self._acts = 0
        self._readers = _readers()

    def get(self, key: Hashable, read: Callable[[], T], *, fresh: float) -> T:
        """A value read at most `fresh` seconds ago, or longer if the read is expensive; exceptions are not cached."""
        return self.aged(key, read, fresh=fresh)[0]

    def aged(self, key: Hashable, read: Callable[[], T], *, fresh: float, share: int = SHARE) -> tuple[T, float]:
        """The value, and its age in seconds."""
        cell = self._cell(key)
        if monotonic() >= cell.stale_at:
            # One caller reads. The others use the old value meanwhile; if the read is expensive, so does the reader.
            wait = cell.taken_at is None or monotonic() - cell.taken_at > max(_OLD, 3 * share * cell.cost)
            if cell.lock.acquire(timeout=_PATIENCE) if wait else cell.lock.acquire(blocking=False):
                if wait or cell.cost < _EXPENSIVE:
                    self._read(cell, read, fresh, share)
                else:
                    self._hand_over(cell, read, fresh, share)
            elif wait:
                raise StoreAway(
                    f"the store has not answered for {_PATIENCE:.0f}s, and other requests are waiting for it too"
                )
        assert cell.taken_at is not None
        return cast(T, cell.value), monotonic() - cell.taken_at

    def _read(self, cell: _Cell, read: Callable[[], Any], fresh: float, share: int) -> None:
        """Read the value. The caller holds the cell's lock; this releases it."""
        try:
            if monotonic() >= cell.stale_at:
                began, acts = monotonic(), self._acts
                cell.value = read()
                cell.taken_at = monotonic()
                cell.costs = (*cell.costs[-2:], cell.taken_at - began)
                once = len(cell.costs) == 1  # it may have been delayed: read again before it counts as expensive
                kept = max(fresh, (_HASTE if once else share) * cell.cost)
                # A read that began before an action may not show its effect.
                cell.stale_at = cell.taken_at + (kept if acts == self._acts else _HASTE * cell.cost)
        finally:
            cell.lock.release()

    def _hand_over(self, cell: _Cell, read: Callable[[], Any], fresh: float, share: int) -> None:
        """As `_read`, in another thread. A read that is never started releases the lock too."""
        try:
            reading = self._readers.submit(self._read_aside, cell, read, fresh, share)
        except RuntimeError:  # just closed, or no thread can be started: keep the old value
            cell.lock.release()
        else:
            reading.add_done_callback(lambda each: cell.lock.release() if each.cancelled() else None)

    def _read_aside(self, cell: _Cell, read: Callable[[], Any], fresh: float, share: int) -> None:
        try:
            self._read(cell, read, fresh, share)
        except Exception:
            cell.costs = ()  # the next caller reads it directly, and gets the error

    def forget(self) -> None:
        """After an action: expire all values, but at a rate that is bounded even if actions never stop."""
        with self._lock:
            self._acts += 1
            for cell in self._cells.values():
                if cell.taken_at is not None:
                    cell.stale_at = min(cell.stale_at, cell.taken_at + _HASTE * cell.cost)

    def clear(self) -> None:
        """Drop all values: they are of another store."""
        with self._lock:
            self._cells.clear()

    def close(self) -> None:
        """End the background threads; a later read starts new ones."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._readers = _readers()

    def _cell(self, key: Hashable) -> _Cell:
        with self._lock:
            cell = self._cells.setdefault(key, _Cell())
            self._cells.move_to_end(key)
            cell.asked_at = monotonic()
            while len(self._cells) > _KEPT or next(iter(self._cells.values())).asked_at < cell.asked_at - _IDLE:
                self._cells.popitem(last=False)  # the least recently used one
            return cell
