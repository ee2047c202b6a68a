"""Reads that many look at together: each is made once, and not again for a while that grows with what it costs."""

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
_HASTE = 5  #: as `SHARE`, after somebody acted
_DEAR = 0.02  #: seconds: nobody waits for a read that takes longer, while there is a value that is not old
_OLD = 3.0
_PATIENCE = 5.0  #: seconds, for what somebody else reads
_KEPT = 256
_IDLE = 60.0  #: seconds after which a value that nobody asks for is let go: some are long


@dataclass(slots=True)
class _Cell:
    lock: Lock = field(default_factory=Lock)
    value: Any = None
    taken_at: float | None = None
    stale_at: float = 0.0
    costs: tuple[float, ...] = ()  #: seconds that the last reads took
    asked_at: float = 0.0

    @property
    def cost(self) -> float:
        """What it takes when nothing else holds it up."""
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
        """The value read at most `fresh` seconds ago, or as long ago as it is dear; what `read` raises is not kept."""
        return self.aged(key, read, fresh=fresh)[0]

    def aged(self, key: Hashable, read: Callable[[], T], *, fresh: float, share: int = SHARE) -> tuple[T, float]:
        """The same, and how many seconds ago it was read."""
        cell = self._cell(key)
        if monotonic() >= cell.stale_at:
            # One reads. Whoever comes meanwhile takes what there is; for a dear one so does who would have to read.
            wait = cell.taken_at is None or monotonic() - cell.taken_at > max(_OLD, 3 * share * cell.cost)
            if cell.lock.acquire(timeout=_PATIENCE) if wait else cell.lock.acquire(blocking=False):
                if wait or cell.cost < _DEAR:
                    self._read(cell, read, fresh, share)
                else:
                    self._hand_over(cell, read, fresh, share)
            elif wait:
                raise StoreAway(f"the store has not answered for {_PATIENCE:.0f}s, and others wait for it, too")
        assert cell.taken_at is not None
        return cast(T, cell.value), monotonic() - cell.taken_at

    def _read(self, cell: _Cell, read: Callable[[], Any], fresh: float, share: int) -> None:
        """In the hands of who holds the lock, and lets go of it."""
        try:
            if monotonic() >= cell.stale_at:
                began, acts = monotonic(), self._acts
                cell.value = read()
                cell.taken_at = monotonic()
                cell.costs = (*cell.costs[-2:], cell.taken_at - began)
                once = len(cell.costs) == 1  # it may have been held up: read it again before it counts as dear
                kept = max(fresh, (_HASTE if once else share) * cell.cost)
                # What began before somebody acted may not show it.
                cell.stale_at = cell.taken_at + (kept if acts == self._acts else _HASTE * cell.cost)
        finally:
            cell.lock.release()

    def _hand_over(self, cell: _Cell, read: Callable[[], Any], fresh: float, share: int) -> None:
        """As `_read`, in another thread. What is not begun lets go of the lock, too: others come."""
        try:
            reading = self._readers.submit(self._read_aside, cell, read, fresh, share)
        except RuntimeError:  # closed just now, or no thread is to be had: what there is will do
            cell.lock.release()
        else:
            reading.add_done_callback(lambda each: cell.lock.release() if each.cancelled() else None)

    def _read_aside(self, cell: _Cell, read: Callable[[], Any], fresh: float, share: int) -> None:
        try:
            self._read(cell, read, fresh, share)
        except Exception:
            cell.costs = ()  # whoever comes next reads it there and then, and hears why

    def forget(self) -> None:
        """Somebody acted, and wants to see it: all is read anew, though not without end for who acts without end."""
        with self._lock:
            self._acts += 1
            for cell in self._cells.values():
                if cell.taken_at is not None:
                    cell.stale_at = min(cell.stale_at, cell.taken_at + _HASTE * cell.cost)

    def close(self) -> None:
        """The threads that read aside end; others come when they are needed."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._readers = _readers()

    def _cell(self, key: Hashable) -> _Cell:
        with self._lock:
            cell = self._cells.setdefault(key, _Cell())
            self._cells.move_to_end(key)
            cell.asked_at = monotonic()
            while len(self._cells) > _KEPT or next(iter(self._cells.values())).asked_at < cell.asked_at - _IDLE:
                self._cells.popitem(last=False)  # the one that nobody has asked for the longest
            return cell
