"""A trap at one point of an attempt: it observes the handler's calls, and injects a fault when the point is reached.

It observes them as a profiler, so that debuggers and coverage keep working.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType
from typing import Any

from tenure.errors import InvalidOption, LeaseLost
from tenure.events import Running, current
from tenure.worker.executor import Attempt


class Killed(BaseException):
    """Raised in a handler when a test kills its process. A BaseException, so `except Exception` does not catch it.

    A real kill runs no `finally` blocks. Here they run, but their writes are refused.
    """

    def __init__(self, point: str) -> None:
        super().__init__(f"its process was killed at {point!r}, by a test")


class Call:
    """A function that a test names as a point."""

    def __init__(self, fn: Callable[..., object]) -> None:
        if not isinstance(fn, FunctionType | MethodType | BuiltinFunctionType):
            fn = MethodType(type(fn).__call__, fn)  # a callable object, such as a Mock
        self.fn = fn
        self._owner: object = fn.__self__ if isinstance(fn, MethodType) else None
        self._code: CodeType | None = getattr(inspect.unwrap(getattr(fn, "__func__", fn)), "__code__", None)
        if self._code is None and not isinstance(fn, BuiltinFunctionType):
            raise InvalidOption(f"point: expected a function, a method or the name of a point, got {fn!r}")

    def __repr__(self) -> str:
        return f"the end of {getattr(self.fn, '__qualname__', self.fn)}"

    def is_of(self, frame: FrameType) -> bool:
        code = frame.f_code
        return code is self._code and (
            self._owner is None or (bool(code.co_varnames) and frame.f_locals.get(code.co_varnames[0]) is self._owner)
        )


_SUSPENDED = {dis.opmap["YIELD_VALUE"], dis.opmap["RESUME"]}  #: the last instruction of a frame that is suspended
_UNCHANGEABLE: tuple[type, ...] = (str, bytes, int, float, complex, tuple, frozenset)
_PLUMBING = {"_weakrefset", "asyncio", "contextlib", "importlib", "weakref"}
_ENTERING = {"__enter__", "__aenter__", "__del__"}  #: if killed while entering, a block is never exited
_COLLECTED = "weakref_cb"  #: called when an executor of `concurrent.futures` is garbage-collected
_LEAVING = {"__exit__", "__aexit__"}
_ACTING = {"Job.once", "Job.aonce", "Client.once", "Client.aonce"}
_ENCODING = {"_once_text", "encode_result"}  #: called by those above between the act and its record
#: What has been stored when these functions, which have a `key`, end.
_WAITS = {
    **dict.fromkeys(("Waits._list", "Waits._alist"), "listed"),
    **dict.fromkeys(("Waits._store", "Waits._astore"), "gather"),
    **dict.fromkeys(("Waits._decide", "Waits._adecide"), "expect"),
}


class Trap:
    """Injects `fault` at one point of an attempt: the one of this name, the end of this call, or the n-th point."""

    def __init__(
        self, fault: Callable[[str], None], *, name: str = "", call: Call | None = None, number: int = 0
    ) -> None:
        self.wanted = call or name
        self.passed: list[str] = []
        self.struck: str | None = None
        self._fault, self._call, self._number = fault, call, number
        self._seen: Counter[str] = Counter()
        self._killed: Killed | None = None

    def at(self, name: str, *, called: bool = False) -> None:
        """The attempt has reached a point. `called`: it is the end of the call that this trap waits for."""
        if self._killed is not None:
            raise self._killed
        self._seen[name] += 1
        count = self._seen[name]
        point = name if count == 1 else f"{name} #{count}"
        self.passed.append(point)
        if self.struck is None and (called or point == self.wanted or len(self.passed) == self._number):
            self.struck = point
            try:
                self._fault(point)
            except Killed as killed:
                self._killed = killed
                raise

    @contextmanager
    def annotated(self) -> Generator[None]:
        """Add a note to errors of this block: the point at which the fault was injected."""
        try:
            yield
        except BaseException as error:
            error.add_note(f"when it was killed at {self.struck!r}" if self.struck else "when nothing was killed")
            raise

    def watch(self, attempt: Attempt) -> None:
        """Observe this thread from now on. Raises what a fault at `start` raises."""
        module = str(attempt.task.fn.__module__)
        self._ours = module if module.startswith("tenure.") else module.partition(".")[0]
        self._attempt = attempt
        self._running: Running | None = current.get()
        self.at("start")
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event not in ("return", "c_return") or current.get() is not self._running:
            return
        try:
            if event == "return":
                self._returned(frame, arg)
            else:
                self._c_returned(frame, arg)
        except Killed:
            sys.setprofile(None)
            if self._attempt.task.is_async and asyncio.current_task() is not self._attempt.handle:
                self._attempt.request_stop("lease_lost", None)  # the process dies with all its tasks, not just this one
            raise

    def _returned(self, frame: FrameType, value: object) -> None:
        code, caller = frame.f_code, frame.f_back
        if caller is None or code.co_code[frame.f_lasti] in _SUSPENDED or inspect.isawaitable(value):
            return
        called = self._call is not None and self._call.is_of(frame)
        if called or (self._is_ours(caller) and not _is_plumbing(frame) and not self._is_engine(frame)):
            self.at(f"call {_name(frame)}", called=called)
        elif not self._is_engine(frame):
            return
        elif code.co_qualname in _ENCODING and caller.f_code.co_qualname in _ACTING:
            self.at(f"acted {frame.f_locals['key']}")
        elif code.co_qualname in _WAITS and value is not None:  # None: it raises, to suspend the job
            self.at(f"{_WAITS[code.co_qualname]} {frame.f_locals['key']}")
        elif self._is_ours(caller) and code.co_qualname == "Job.progress":
            self._reported(frame)
        elif self._is_ours(caller) and (verb := _verb(frame)) is not None:
            self.at(verb)

    def _reported(self, frame: FrameType) -> None:
        checkpoint = frame.f_locals["checkpoint"] is not None
        if checkpoint:
            self.at("checkpoint lost")
        try:
            self._attempt.host.store_now(self._attempt)  # a worker does so within a second
        except LeaseLost:
            self._attempt.request_stop("lease_lost", None)
            raise
        self.at("checkpoint" if checkpoint else "progress")

    def _c_returned(self, frame: FrameType, fn: Any) -> None:
        called = self._call is not None and self._call.fn == fn
        if called or (self._is_ours(frame) and _may_act(fn)):
            self.at(f"call {fn.__qualname__}", called=called)

    def _is_ours(self, frame: FrameType) -> bool:
        module = _module(frame)
        return module == self._ours or module.startswith(f"{self._ours}.")

    def _is_engine(self, frame: FrameType) -> bool:
        return _module(frame).startswith("tenure.") and not self._is_ours(frame)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _may_act(fn: Any) -> bool:
    return fn.__module__ != "builtins" and not isinstance(fn.__self__, _UNCHANGEABLE)


def _is_plumbing(frame: FrameType) -> bool:
    """Not a call of the handler's own, or one without effects: an exception there would not even reach the handler."""
    name = frame.f_code.co_name
    if _module(frame).partition(".")[0] in _PLUMBING:
        return name not in _LEAVING
    if name in _ENTERING or name == _COLLECTED or (name.startswith("<") and name != "<lambda>"):
        return True
    return any(getattr(callback, "__code__", None) is frame.f_code for callback in gc.callbacks)


def _name(frame: FrameType) -> str:
    code = frame.f_code
    name = code.co_qualname
    if _module(frame) == "contextlib" and (made_of := getattr(frame.f_locals.get("self"), "gen", None)) is not None:
        name = f"{made_of.__qualname__}.{code.co_name}"
    return name.rpartition("<locals>.")[2]


def _verb(frame: FrameType) -> str | None:
    """The point that a call of the engine's API has reached, if it is one."""
    owner, _, verb = frame.f_code.co_qualname.partition(".")
    match owner, verb.removeprefix("a"):
        case "Job" | "WithOnce", "once":
            return f"once {frame.f_locals['key']}"
        case "Task" | "NewJob" as kind, "enqueue":
            task = frame.f_locals["self"]
            return f"enqueue {task.name if kind == 'Task' else task.of.name}"
        case "Tenure", "enqueue_many":
            return "enqueue many"
        case "Flow", "__exit__" | "__aexit__":
            return f"flow {frame.f_locals['self'].name}"
        case "JobHandle", "signal":
            return f"signal {frame.f_locals['name']}"
        case "WithFlows", "signal":
            return f"signal {frame.f_locals['key']}"
        case "JobHandle", "cancel":
            return "cancel"
        case "Job", "finish":
            return "finish"
        case _:
            return None
