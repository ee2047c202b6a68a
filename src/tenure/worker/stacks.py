"""Where the code of an attempt is right now: files, lines and functions, and no value of any variable.

It may be asked from any thread. A plain handler is a thread; an `async` one is a chain of coroutines, of which only the
running ones are on the stack of a thread. The tasks that it waits for and its calls of `asyncio.to_thread` are traces
of their own. Whatever else it started, such as threads, processes or tasks that it does not wait for, can't be found.

No code of the app runs for this: objects that may be the app's are recognized by their types alone, as `isinstance`
and `getattr` would run a proxy's `__class__` or `__getattr__`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import sys
from collections.abc import Collection, Iterator
from contextvars import Context
from functools import partial
from types import (
    AsyncGeneratorType,
    BuiltinMethodType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
)
from typing import Any, cast

from tenure.events import Running, current
from tenure.maintenance.orders import NOT_RUNNING, Answer, Frame, Trace, traces_of
from tenure.worker.executor import Attempt

MOST_FRAMES = 1_000
MOST_TRACES = 20
MOST_WRAPPERS = 3  #: around one call: an app has a tracer, perhaps two
#: How an awaitable of this type names its frame, the awaitable that it waits for, and whether it runs.
_KINDS = (
    (CoroutineType, ("cr_frame", "cr_await", "cr_running")),
    (GeneratorType, ("gi_frame", "gi_yieldfrom", "gi_running")),
    (AsyncGeneratorType, ("ag_frame", "ag_await", "ag_running")),
)
_TASK: type[asyncio.Task[Any]] = asyncio.Task  # its own methods: a subclass may be the app's
_GROUPS = (asyncio.TaskGroup, getattr(asyncio.tasks, "_GatheringFuture", asyncio.TaskGroup))


def answer(attempt: Attempt | None) -> Answer:
    """The answer to an operator who asks where an attempt is, whatever goes wrong."""
    try:
        found = traces(attempt) if attempt is not None else ()
    except Exception as error:
        return f"its stack could not be read ({type(error).__name__}); ask again", ()
    return "" if found else NOT_RUNNING, found


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
    if id(task) in seen or _TASK.done(task) or len(seen) >= MOST_TRACES:
        return
    seen.add(id(task))
    chain = _chain(_TASK.get_coro(task), threads)
    if chain and chain[0].f_code is Attempt._run_async.__code__:
        chain = chain[1:]
    yield name, [_frame(each) for each in chain]
    for other in _awaited(task, chain):
        yield from _tasks(other, threads, f"the task {_TASK.get_name(other)}, which it waits for", seen)


def _chain(awaitable: object, threads: Collection[FrameType]) -> list[FrameType]:
    """The frames of a coroutine and of what it awaits, the innermost last."""
    found: list[FrameType] = []
    while len(found) < MOST_FRAMES:
        names = next((names for kind, names in _KINDS if type(awaitable) is kind), None)
        if names is None:
            break
        frame, below, runs = (getattr(cast("Any", awaitable), name) for name in names)
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
    values = [_attribute(task, "_fut_waiter")]
    for frame in chain:
        name = frame.f_globals.get("__name__")
        if type(name) is str and name.startswith("asyncio."):
            values += (value for name, value in frame.f_locals.items() if name not in ("args", "kwargs"))
    groups = [value for value in values if issubclass(type(value), _GROUPS)]
    values += [_attribute(group, name) for group in groups for name in ("_children", "_tasks")]
    many = [cast("Collection[object]", each) for each in values if type(each) in (list, set, tuple)]
    found = [*values, *(each for members in many for each in list(members))]
    return [cast("asyncio.Task[Any]", each) for each in found if issubclass(type(each), asyncio.Task)]


def _attribute(value: object, name: str) -> object:
    """An attribute of an object of asyncio, whose class may be a subclass by the app; None: it has none."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def _in_threads(attempt: Attempt, threads: Collection[FrameType]) -> Iterator[tuple[str, list[Frame]]]:
    """What it runs by `asyncio.to_thread`, which hands its context to the thread."""
    for top in threads:
        for frame in _stack(top):
            own = frame.f_globals is concurrent.futures.thread.__dict__
            if not own or frame.f_code.co_qualname != "_WorkItem.run":
                continue
            item = frame.f_locals.get("self")
            if sys.version_info >= (3, 14):
                fn, args, _ = getattr(item, "task", (None, (), {}))
            else:
                fn, args = getattr(item, "fn", None), getattr(item, "args", ())
            context = next((found for call in (fn, *args) if (found := _context(call)) is not None), None)
            running: Running | None = context.get(current) if context is not None else None
            if running is not None and running.job_id == attempt.claimed.id:
                yield "a thread of asyncio.to_thread", _inner(top, frame.f_code)


def _context(call: object, wrappers: int = MOST_WRAPPERS) -> Context | None:
    """The context that a call of `asyncio.to_thread` runs in; None: it is another call.

    Tracers replace `ThreadPoolExecutor.submit`: those of Sentry and OpenTelemetry submit a function of their own that
    closes over the call, Datadog's passes the call as an argument.
    """
    if type(call) is partial:
        ran = cast("object", call.func)
        context = ran.__self__ if type(ran) is BuiltinMethodType else None
        return context if type(context) is Context else None
    if type(call) is not FunctionType or not wrappers:
        return None
    inside = (_content(cell) for cell in call.__closure__ or ())
    return next((found for each in inside if (found := _context(each, wrappers - 1)) is not None), None)


def _content(cell: CellType) -> object:
    """What a cell of a closure holds; None: nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


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
