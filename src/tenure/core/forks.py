"""What this process pauses while it forks.

A child inherits the memory of libraries but no threads: a lock that another thread held is never released there, and
what SQLite remembers of its file locks, which belong to processes, is wrong. So whatever uses SQLite is paused first,
with no file open. If that is not possible in time, the fork goes on, and the child must not use SQLite at all.
"""

from __future__ import annotations

import os
import threading
import time
from importlib import import_module
from typing import Protocol
from weakref import WeakKeyDictionary

from tenure.errors import StoreError

PAUSE_SECONDS = 8.0  #: how long a fork may wait; longer than a transaction, and than the wait for another process


class Pausable(Protocol):
    def pause(self, until: float) -> bool:
        """Before a fork: wait for calls in progress, until this monotonic time, close what is open, and hold all locks.

        False if that was not possible; nothing is held then.
        """
        ...

    def resume(self) -> None:
        """In the parent: release the locks. What was closed is opened again when it is used."""
        ...

    def forget(self, *, paused: bool) -> bool:
        """In the child: replace the locks, and drop what belongs to the parent. False: some of that was in use."""
        ...


_all: WeakKeyDictionary[Pausable, None] = WeakKeyDictionary()  #: in the order in which they may wait for each other
_adding = threading.RLock()  #: held to change `_all`, and during a fork
_paused: list[Pausable] = []
_forks = 0  #: in progress; more than one when a signal's handler forks
_unusable = False


def add(each: Pausable) -> None:
    """Pause this object at every fork from now on. Call this before it opens anything."""
    import_module("ctypes")  # for `keep_forever`: in a forked child, an import may block forever
    with _adding:
        _all[each] = None


def discard(each: Pausable) -> None:
    with _adding:
        _all.pop(each, None)


def refuse_sqlite() -> None:
    """Raise StoreError in a child whose parent used SQLite at the moment of the fork."""
    if _unusable:
        raise StoreError(
            "this process was forked while its parent used SQLite (inside jobs.transaction(), during a backup, or by a "
            "server that forks without Python), and can't use it: fork at another time, or use the spawn method"
        )


def keep_forever(inherited: object) -> None:
    """Keep this object from being destroyed: closing a connection of the parent would change what the parent sees."""
    import ctypes  # not above: libffi then opens a file, which may get the number of a closed standard stream

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _before() -> None:
    global _forks
    _adding.acquire()
    _forks += 1
    until = time.monotonic() + PAUSE_SECONDS
    while fresh := [each for each in list(_all) if each not in _paused]:
        _adding.release()  # one of them may be about to open another
        try:
            for each in fresh:
                if not each.pause(until):
                    return  # the child can't use SQLite anyway
                _paused.append(each)
        finally:
            _adding.acquire()


def _after_in_parent() -> None:
    global _forks
    _forks -= 1
    while _paused and not _forks:
        _paused.pop().resume()
    _adding.release()


def _after_in_child() -> None:
    global _adding, _forks, _unusable
    _adding, _forks = threading.RLock(), 0
    parents, paused = list(_all), list(_paused)
    _all.clear()
    _paused.clear()
    for each in parents:
        if not each.forget(paused=each in paused):
            _unusable = True


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
