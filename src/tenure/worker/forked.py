"""A child that a handler has forked, and that comes back to the worker: it ends there.

It has the parent's memory: the tasks of all jobs that run in the parent, outcomes not yet stored, and descriptors that
both processes share, such as that of the event loop. If it went on, the parent's jobs would run in two processes. So
the handler's own code may run in a child for as long as it likes, but what comes after it does not: whether the code
returns, raises, exits or awaits.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections import deque
from typing import NoReturn, cast
from weakref import WeakSet

from tenure.events import current

depth: int = 0  #: how many forks lie between the process that imported this and the current one
_guards: WeakSet[LoopGuard] = WeakSet()


def leave(error: BaseException | None) -> NoReturn:
    """End this child as Python would after `error`; but nothing that it has inherited is closed or cleaned up."""
    code = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if code and not isinstance(error.code, int):
                sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)


class LoopGuard:
    """Ends a child that was forked on the thread of this loop as soon as it returns to the loop.

    Make it on that thread, and keep it for as long as it is to guard. `handlers`: only forks by a handler's code.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, handlers: bool = False) -> None:
        self._loop, self._handlers = loop, handlers
        self._thread = threading.get_ident()
        _guards.add(self)

    def forked(self) -> None:
        if threading.get_ident() != self._thread or self._loop.is_closed():
            return
        if self._handlers and current.get() is None:
            return
        ready = getattr(self._loop, "_ready", None)
        if isinstance(ready, deque):  # before all that is due in this turn of the loop: it belongs to other jobs
            cast("deque[asyncio.Handle]", ready).appendleft(asyncio.Handle(_came_back, (), self._loop))
        else:  # uvloop
            self._loop.call_soon(_came_back)


def _came_back() -> None:
    sys.stderr.write(
        f"tenure: process {os.getpid()}, which a handler has forked, came back to the event loop of its parent, and "
        "was ended there: end it with os._exit(), or fork with multiprocessing or subprocess\n"
    )
    leave(SystemExit(1))


def _in_child() -> None:
    global depth
    depth += 1
    for guard in list(_guards):
        guard.forked()


os.register_at_fork(after_in_child=_in_child)
