"""Where the code of an attempt is right now: files, lines and functions, and no value of any variable.

It may be asked from any thread. A plain handler is a thread; an `async` one is a chain of coroutines, of which only the
running ones are on the stack of a thread. The tasks that it waits for and its calls of `asyncio.to_thread` are traces
of their own. What it started otherwise, such as threads, processes or tasks that it does not wait for, can't be found.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterator
from contextvars import Context
from types import CodeType, FrameType
from typing import Any, cast

from tenure.events import Running, current
from tenure.maintenance.orders import Frame, Trace, traces_of
from tenure.worker.executor import Attempt

MOST_FRAMES = 1_000
MOST_TRACES = 20
#: How an awaitable names its frame, the awaitable that it waits for, and whether it runs.
_KINDS = (
    ("cr_frame", "cr_await", "cr_running"),
    ("gi_frame", "gi_yieldfrom", "gi_running"),
    ("ag_frame", "ag_await", "ag_running"),
)


def traces(attempt: Attempt) -> tuple[Trace, ...]:
    """The traces of its handler, the handler's own first; empty: it has not begun, or has ended meanwhile."""
    threads = sys._current_frames()
    found: list[tuple[str, list[Frame]]] = []
    if attempt.task.is_async:
        handle = attempt.handle
        if handle is not None:
            found += _tasks(handle, threads.values(), "its asyncio task", set())
        found += _in_threads(attempt, threads.values())
    else:
        for top in threads.values():
            frames = _inner(top, Attempt._call.__code__, attempt)
            if frames:
                found.append(("its thread", frames))
    return traces_of(found[:MOST_TRACES])


def _tasks(
    task: asyncio.Task[Any], threads: Collection[FrameType], name: str, seen: set[int]
) -> Iterator[tuple[str, list[Frame]]]:
    """The trace of a task, and those of the tasks that it waits for."""
    if id(task) in seen or task.done() or len(seen) >= MOST_TRACES:
        return
    seen.add(id(task))
    chain = _chain(task.get_coro(), threads)
    if chain and chain[0].f_code is Attempt._run_async.__code__:
        chain = chain[1:]
    yield name, [_frame(each) for each in chain]
    for other in _awaited(task, chain):
        yield from _tasks(other, threads, f"the task {other.get_name()}, which it waits for", seen)


def _chain(awaitable: object, threads: Collection[FrameType]) -> list[FrameType]:
    """The frames of a coroutine and of what it awaits, the innermost last."""
    found: list[FrameType] = []
    while len(found) < MOST_FRAMES:
        names = next((each for each in _KINDS if hasattr(awaitable, each[0])), None)
        if names is None:
            break
        frame, below, runs = (getattr(awaitable, name) for name in names)
        if frame is None:
            break
        if runs:
            return found + _running_from(frame, threads)
        found.append(frame)
        awaitable = below
    return found


def _running_from(frame: FrameType, threads: Collection[FrameType]) -> list[FrameType]:
    """This frame, and those that it has called, on the stack of the thread where it runs."""
    for top in threads:
        stack = _stack(top)
        if frame in stack:
            return stack[stack.index(frame) :]
    return [frame]


def _awaited(task: asyncio.Task[Any], chain: list[FrameType]) -> list[asyncio.Task[Any]]:
    """The tasks that it waits for, itself or by way of gather, wait, wait_for and TaskGroup."""
    values: list[object] = [getattr(task, "_fut_waiter", None)]
    for frame in chain:
        if str(frame.f_globals.get("__name__", "")).startswith("asyncio."):
            values += frame.f_locals.values()
    groups = [getattr(value, "_children", ()) or getattr(value, "_tasks", ()) for value in values]
    many = [cast("Collection[object]", each) for each in (*values, *groups) if isinstance(each, list | set | tuple)]
    found = [*values, *(each for members in many for each in list(members))]
    return [each for each in found if isinstance(each, asyncio.Task)]


def _in_threads(attempt: Attempt, threads: Collection[FrameType]) -> Iterator[tuple[str, list[Frame]]]:
    """What it runs by `asyncio.to_thread`, which hands its context to the thread."""
    for top in threads:
        for frame in _stack(top):
            if frame.f_code.co_qualname != "_WorkItem.run":
                continue
            call = getattr(getattr(frame.f_locals.get("self"), "fn", None), "func", None)
            context = getattr(call, "__self__", None)
            running: Running | None = context.get(current) if isinstance(context, Context) else None
            if running is not None and running.job_id == attempt.claimed.id:
                yield "a thread of asyncio.to_thread", _inner(top, frame.f_code)


def _inner(top: FrameType, code: CodeType, owner: object = None) -> list[Frame]:
    """The frames below the one of this code; empty if it is not on this stack. `owner`: its `self`."""
    stack = _stack(top)
    for place, frame in enumerate(stack):
        if frame.f_code is code and (owner is None or frame.f_locals.get("self") is owner):
            return [_frame(each) for each in stack[place + 1 :]]
    return []


def _stack(top: FrameType) -> list[FrameType]:
    """All frames of a thread, the innermost last."""
    found: list[FrameType] = []
    frame: FrameType | None = top
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found[::-1]


def _frame(frame: FrameType) -> Frame:
    return Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_qualname)
