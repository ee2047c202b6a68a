"""Plain calls refuse to block an event loop; their `a…` variants do the work in another thread."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from tenure.errors import WouldBlock
from tenure.ports import Awaited, OnLoop, Readable

if TYPE_CHECKING:
    import asyncio
    from asyncio import AbstractEventLoop
    from concurrent.futures import Executor, Future, ThreadPoolExecutor

T = TypeVar("T")

MOST_THREADS = 32  #: more than a store has connections


def refuse_on_loop(call: str, instead: str) -> None:
    """Raise WouldBlock if an event loop runs in this thread: a synchronous call would block everything on it."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)  # another thread may just be importing it
    if running is not None and running() is not None:
        raise WouldBlock(f"{call} would block this event loop; write: {instead}")


def awaited(tx: object) -> object:
    """A caller's transaction, for another thread to write in while this loop waits; the store's own is returned as is.

    A scoped session resolves to a different session in each thread, so it is resolved here.
    """
    from asyncio import get_running_loop

    if tx is None:
        return tx
    scope = getattr(tx, "registry", None)
    return Awaited(scope() if callable(scope) else tx, get_running_loop())


@cache
def _threads() -> ThreadPoolExecutor:
    """The engine's own, started as calls need them: a handler's calls may keep all those of `asyncio.to_thread`."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(MOST_THREADS, "tenure-call")


os.register_at_fork(after_in_child=_threads.cache_clear)  # the threads are the parent's


def in_thread(
    loop: AbstractEventLoop, pool: Executor, call: Callable[..., T], *args: object, waits: bool = False
) -> asyncio.Future[T]:
    """Run the call in this pool; or, once the main thread ends, in a thread of its own.

    Python then shuts down every pool, although other threads may run on, and `atexit` calls follow. `waits`: where no
    thread can be started any more, as in those calls since Python 3.12, the loop waits for the call itself. Raises
    RuntimeError if it can't be run.
    """
    try:
        return loop.run_in_executor(pool, call, *args)
    except RuntimeError:
        from asyncio import wrap_future
        from concurrent.futures import Future, thread

        if not getattr(thread, "_shutdown", False):  # the pool is closed, or has the call and may run it later
            raise
    future = Future[T]()
    future.set_running_or_notify_cancel()  # it runs to its end, whether or not its caller still waits

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="tenure-late", daemon=True).start()
    except RuntimeError:
        if not waits:
            raise
        run()
    return wrap_future(future, loop=loop)


async def aside(call: Callable[[], T]) -> T:
    """Run the call in a thread of the engine's. A cancelled caller resumes at once, and the call may still run."""
    from asyncio import get_running_loop

    return await in_thread(get_running_loop(), _threads(), copy_context().run, call)


async def settled(call: Callable[[], T], thread: Executor | None = None) -> T:
    """Run the call in a thread. A cancelled caller resumes only after the call, which uses the caller's objects."""
    import asyncio

    loop, run = asyncio.get_running_loop(), copy_context().run
    future = in_thread(loop, _threads(), run, call) if thread is None else loop.run_in_executor(thread, run, call)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        while not future.done():
            with suppress(asyncio.CancelledError):  # a second one: its loop ends, and then its worker stops it
                await asyncio.wait([future])
        future.exception()  # mark it as retrieved: the caller gets the cancellation instead
        raise
    return future.result()


def pass_on(thread: Executor, call: Callable[[], T], answered: Callable[[T | BaseException], None]) -> None:
    """Run the call in the thread, then pass on its answer, or what it raised, on this loop.

    By a callback, not by a task: a program that cancels all of its tasks would cancel that one, before its first step
    too. At once if no thread can be started.
    """
    from asyncio import get_running_loop

    loop, context = get_running_loop(), copy_context()

    def over(done: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing on it waits any more
            loop.call_soon_threadsafe(answered, done.exception() or done.result(), context=context)

    try:
        future = thread.submit(call)
    except RuntimeError as error:
        answered(error)
    else:
        future.add_done_callback(over)


def drive(call: OnLoop[T], answered: Callable[[T | Exception | None], None]) -> None:
    """Run a store's call on this loop, by callbacks: a task would cost as much as the call. Then pass on its answer."""
    from asyncio import get_running_loop

    loop = get_running_loop()

    def go_on(error: Exception | None = None) -> None:
        answer: T | Exception | None
        try:
            wanted = next(call) if error is None else call.throw(error)
        except StopIteration as end:
            answer = end.value
        except Exception as raised:
            answer = raised
        else:
            wait(wanted)
            return
        answered(answer)

    def wait(wanted: Readable) -> None:
        def over(error: Exception | None = None) -> None:
            loop.remove_reader(wanted.fileno)
            timer.cancel()
            go_on(error)

        try:
            loop.add_reader(wanted.fileno, over)
        except Exception as error:
            go_on(error)
            return
        timer = loop.call_later(wanted.seconds, over, TimeoutError(f"no answer in {wanted.seconds:g}s"))

    go_on()
