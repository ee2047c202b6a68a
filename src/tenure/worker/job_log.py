"""Keeps the last lines that each attempt's code logs through the standard library's `logging`.

A running worker adds a `JobLogHandler` to the root logger, in addition to the handlers it has already. It does not
change levels: a record that a logger does not propagate is not kept either. Lines are written with the attempt's next
progress, batched with those of other attempts, and before the attempt ends: they cost one more write.

The log of an attempt is stored as `{"dropped": n, "lines": [[milliseconds, level, text], …]}`, at most 16 KiB of UTF-8.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, cast

import msgspec

from tenure.errors import BadData
from tenure.events import Running, current

MAX_LINES = 200
MAX_BYTES = 16_384  #: of one attempt's log, as it is stored
MAX_LINE_BYTES = 2048  #: of one line's text
MAX_MESSAGE_BYTES = 512  #: of the message above a traceback: the rest is for the traceback
MAX_LEVEL_BYTES = 32
FRAME_BYTES = 64  #: at most, around the lines

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_NEWLINE = re.compile(r"\r\n?")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record: its time by the clock of the machine that logged it, its level in lower case, and its text."""

    at: datetime
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Log:
    """The last lines of an attempt, oldest first. `dropped`: the number of earlier lines that were not kept."""

    lines: tuple[LogLine, ...] = ()
    dropped: int = 0


class _Stored(msgspec.Struct):
    lines: list[tuple[int, str, str]]
    dropped: int


_encode_line = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Stored).decode


def encode(lines: Iterable[LogLine], dropped: int = 0) -> str:
    """Encode the last lines that fit, as stored in `Progress.log`."""
    log = JobLog(dropped)
    for line in lines:
        log.add(_packed(round(line.at.timestamp() * 1000), line.level, _cut(line.text, MAX_LINE_BYTES)))
    return log.text()


def decode(text: str) -> Log:
    """Decode what `encode` wrote. Raises BadData for anything else."""
    try:
        stored = _decode(text)
        lines = tuple(LogLine(datetime.fromtimestamp(at / 1000, UTC), level, line) for at, level, line in stored.lines)
    except (msgspec.DecodeError, UnicodeError, ValueError, OverflowError, OSError) as error:
        raise BadData(f"a job's log: expected lines and how many were dropped, got {text[:40]!r}: {error}") from error
    return Log(lines, stored.dropped)


class JobLog:
    """The log of one attempt. One thread at a time may add to it, while others read it."""

    def __init__(self, dropped: int = 0) -> None:
        self.unstored = False
        self._kept: tuple[tuple[bytes, ...], int] = ((), dropped)  # replaced atomically, so a reader needs no lock
        self._size = FRAME_BYTES

    def add(self, line: bytes) -> None:
        lines, dropped = self._kept
        first = 0
        self._size += len(line) + 1
        while len(lines) - first >= MAX_LINES or self._size > MAX_BYTES:
            self._size -= len(lines[first]) + 1
            first += 1
        self._kept = (*lines[first:], line), dropped + first
        self.unstored = True

    def text(self) -> str:
        return _framed(*self._kept).decode()


def _framed(lines: Iterable[bytes], dropped: int) -> bytes:
    return b'{"dropped":%d,"lines":[%b]}' % (dropped, b",".join(lines))


class LineSink(Protocol):
    """Keeps the log lines of an attempt that runs in this process."""

    def logged(self, line: bytes) -> None: ...


class JobLogHandler(logging.Handler):
    """Passes each record that a job's code logs to its attempt, if `find` returns one."""

    def __init__(self, find: Callable[[Running], LineSink | None]) -> None:
        super().__init__()
        self._find = find

    def install(self) -> None:
        logging.getLogger().addHandler(self)

    def remove(self) -> None:
        logging.getLogger().removeHandler(self)

    def handle(self, record: logging.LogRecord) -> bool:
        """As in `logging.Handler`, but the record is formatted before the lock is taken."""
        passed = cast("bool | logging.LogRecord", self.filter(record))  # since Python 3.12 a filter may replace it
        if not passed:
            return False
        if isinstance(passed, logging.LogRecord):
            record = passed
        running = current.get()
        sink = self._find(running) if running is not None and not _is_ours(record.name) else None
        if sink is not None:
            line = _line(record)
            self.acquire()
            try:
                sink.logged(line)
            finally:
                self.release()
        if logging.root.handlers[:1] == [self]:
            _last_resort(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Nothing to do: `handle` does everything."""


def _is_ours(name: str) -> bool:
    """True for the engine's own records, which are for its operators. Those of the demo's jobs are kept."""
    return name == "tenure" or (name.startswith("tenure.") and not name.startswith("tenure.demo."))


def _last_resort(record: logging.LogRecord) -> None:
    """Print warnings to standard error, as Python does when no handler is configured: ours would suppress that."""
    last, logger = logging.lastResort, logging.getLogger(record.name)
    if last is None or record.levelno < last.level:
        return
    while all(isinstance(each, JobLogHandler) for each in logger.handlers):
        if logger.parent is None:
            last.handle(record)
            return
        logger = logger.parent


# ── From a record to a line ─────────────────────────────────────────────────────────────────────────────────────


def _line(record: logging.LogRecord) -> bytes:
    text, trace = _message(record), _trace(record)
    if trace:
        text = _cut(text, MAX_MESSAGE_BYTES)
        text = f"{text}\n{_cut(trace, MAX_LINE_BYTES - len(text.encode()) - 1, keep_end=True)}"
    else:
        text = _cut(text, MAX_LINE_BYTES)
    return _packed(time.time_ns() // 1_000_000, str(record.levelname), text)


def _packed(at: int, level: str, text: str) -> bytes:
    return _encode_line((at, _cut(level, MAX_LEVEL_BYTES).lower(), text))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # a format that does not match its arguments, or an argument that can't be formatted
        text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return f"{text} (its arguments can't be shown: {type(error).__name__})"


def _trace(record: logging.LogRecord) -> str:
    found = record.exc_info
    try:
        error = found[1] if isinstance(found, tuple) else None
        parts = traceback.format_exception(error) if error is not None else []
        return "".join([*parts, record.stack_info or ""]).rstrip()
    except Exception as error:
        return f"(its traceback can't be shown: {type(error).__name__})"


def _cut(text: str, most: int, *, keep_end: bool = False) -> str:
    """The text without control characters, in at most `most` bytes. `keep_end`: a traceback's end matters most."""
    if len(text) <= most and text.isascii() and text.isprintable():  # true of nearly all lines
        return text
    long = len(text) > 2 * most  # cut first: cleaning the part that is cut away would be wasted time
    if long:
        text = text[-2 * most :] if keep_end else text[: 2 * most]
    text = _UNPRINTABLE.sub("\ufffd", _NEWLINE.sub("\n", _ESCAPE.sub("", text)))
    whole = text.encode()
    if not long and len(whole) <= most:
        return text
    if keep_end:
        return "…" + whole[-(most - 3) :].decode(errors="ignore")
    return whole[: most - 3].decode(errors="ignore") + "…"
