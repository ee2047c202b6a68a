"""Finds where a process is stuck: the task that blocks the loop or the GIL, or that ran when a fatal signal came.

`faulthandler` writes the stacks of all threads from C, so it works even while Python code can't run. It writes them
into a file that a worker shares with its supervisor.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tenure.core.imports import is_of_app
from tenure.maintenance.orders import Frame, Trace, traces_of

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_LARGEST = 1 << 18
_OURS = str(Path(__file__).parents[1])  #: of an installed Tenure, or of its sources
PATIENCE_SECONDS = 0.5


def dump(pid: int, file: int) -> str:
    """Ask a worker for the stacks of its threads, and wait until they are written."""
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    os.kill(pid, signal.SIGUSR1)
    text, deadline = "", time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(0.02)
        before, text = text, _read(file)
        if text == before and "Current thread" in text:  # the thread that received the signal is written last
            break
    return text


def name(stacks: str, functions: Mapping[tuple[str, str], str]) -> tuple[str, str]:
    """(task, file:line) of the first task's function on a stack, the loop's own thread first; ('', '') if none is.

    >>> name('Current thread 0x1:\\n  File "/a/shop.py", line 7 in charge\\n', {("/a/shop.py", "charge"): "charge"})
    ('charge', '/a/shop.py:7')
    """
    for thread in _threads(stacks):
        for frame in _FRAME.finditer(thread):
            task = functions.get((frame["file"], frame["name"]))
            if task is not None:
                return task, f"{frame['file']}:{frame['line']}"
    return "", ""


def place(stacks: str) -> str:
    """file:line of the innermost frame that is the app's, on the main thread; '' if there is none.

    >>> place('Current thread 0x1:\\n  File "<string>", line 9 in read\\n  File "/a/shop.py", line 7 in connect\\n')
    '/a/shop.py:7'
    """
    frames = _FRAME.finditer(_threads(stacks)[0])
    return next((f"{each['file']}:{each['line']}" for each in frames if _is_of_app(each["file"])), "")


def _is_of_app(file: str) -> bool:
    return is_of_app(file) and not file.startswith(_OURS)


def traces(stacks: str, functions: Mapping[tuple[str, str], str], task: str) -> tuple[Trace, ...]:
    """The stack of each thread, the innermost frame last; first those in which this task's function is."""

    def runs(frames: Sequence[Frame]) -> bool:
        return any(functions.get((each.file, each.function)) == task for each in frames)

    found: list[tuple[bool, str, list[Frame]]] = []
    for text in _threads(stacks):
        frames = [Frame(each["file"], int(each["line"]), each["name"]) for each in _FRAME.finditer(text)][::-1]
        name = "the thread of the event loop" if text.startswith("Current thread") else "another thread"
        found.append((runs(frames), f"{name}, which runs {task}" if runs(frames) else name, frames))
    ordered = sorted(found, key=lambda each: not each[0])
    return traces_of((name, frames) for _, name, frames in ordered if frames)


def last_frame(file: int) -> str:
    """Where a process was when a fatal signal hit it; '' if faulthandler could not write that."""
    fatal = _read(file).partition("Fatal Python error")[2]  # a stall may have been dumped before it
    frame = _FRAME.search(_threads(fatal)[0])
    return f"{frame['file']}:{frame['line']} in {frame['name']}" if frame else ""


def _threads(stacks: str) -> list[str]:
    """The stack of each thread, that of the thread which received the signal first."""
    return sorted(stacks.split("\n\n"), key=lambda text: not text.startswith("Current thread"))


def _read(file: int) -> str:
    return os.pread(file, _LARGEST, 0).decode(errors="replace")
