"""The text that a job keeps of an error."""

from __future__ import annotations

import traceback
from pathlib import Path

from tenure.core.retry import members_of
from tenure.core.text import MAX_ERROR, clean
from tenure.worker.signals import leaves

MOST_TOLD = 10  #: errors of a group, and causes of an error
_ENGINE = str(Path(__file__).with_name("executor.py"))  #: it calls handlers


def describe(error: BaseException) -> str:
    """The error on the first line, then its traceback without the frames of the engine; then what caused it.

    A group is told with its errors, each of which follows with its traceback.
    """
    inner = leaves(error) if members_of(error) else []
    heads = "; ".join(_headline(each).partition("\n")[0] for each in inner[:MOST_TOLD])
    first = ": ".join(filter(None, [_headline(error), heads]))
    told = [first, _frames(error), *_causes(error)]
    for each in inner[:MOST_TOLD]:
        told += [f"one of them: {_headline(each)}", _frames(each), *_causes(each)]
    return clean("\n\n".join(filter(None, told)), MAX_ERROR)


def _causes(error: BaseException) -> list[str]:
    """What it was raised from. Not what was handled meanwhile: a time-out that is told has not been dealt with
    (`is_anew` in expects.py)."""
    told: list[str] = []
    seen = {id(error)}
    while (cause := error.__cause__) is not None and id(cause) not in seen and len(seen) <= MOST_TOLD:
        told += [f"caused by: {_headline(cause)}", _frames(cause)]
        seen.add(id(cause))  # an error may be raised from itself
        error = cause
    return told


def _headline(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # its own __str__ raises
        return type(error).__name__


def _frames(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != _ENGINE]
    return "".join(traceback.format_list(frames)).rstrip()
