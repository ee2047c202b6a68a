"""Logging of `tenure worker`: one line per record, as text or JSON, each with the job it belongs to."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tenure.config import Settings
from tenure.core.text import is_utf8
from tenure.events import JOBS, Running, current

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_OWN = frozenset({"time", "level", "logger", "message", "error", "stack"})  #: what each line in JSON has


def follow(settings: Settings) -> None:
    """Log everything in this process to standard error, as the settings say. For Tenure's own commands only."""
    handler = logging.StreamHandler(sys.stderr)
    as_json = settings.log_format == "json"
    handler.setFormatter(JsonFormatter(ascii_only=not is_utf8(sys.stderr)) if as_json else TextFormatter())
    handler.addFilter(add_job)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if settings.log_jobs == "no":  # a line for each job costs about as much as the job
        logging.getLogger(JOBS).setLevel(logging.WARNING)


def add_job(record: logging.LogRecord) -> bool:
    """A filter that passes everything, and adds the job to records of a handler's code."""
    running = current.get()
    if running is not None and not hasattr(record, "job_id"):
        record.__dict__.update(running._asdict())
    return True


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`2025-11-21T06:31:04.123Z WARNING tenure.worker message  job_id=… task=…`"""

    def format(self, record: logging.LogRecord) -> str:
        extra = _extra(record)
        # The message of Tenure's own events contains all of it.
        shown = {} if record.name.startswith("tenure.") else {k: extra[k] for k in Running._fields if k in extra}
        fields = "".join(f" {name}={value}" for name, value in shown.items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{fields and ' '}{fields}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the fields of `extra`, and any traceback and stack.

    A field of `extra` that has one of these names is written with a `_` behind it.
    """

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._ascii_only = ascii_only

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        extra = {f"{name}_" if name in _OWN else str(name): value for name, value in _extra(record).items()}
        try:
            return self._json({**line, **extra})
        except Exception:  # keys that are no text, NaN, a dict that contains itself, a __str__ that raises
            return self._json({**line, **{name: _plain(value) for name, value in extra.items()}})

    def _json(self, line: Mapping[str, Any]) -> str:
        return _json(line, ascii_only=self._ascii_only)


def _json(line: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    return json.dumps(line, ensure_ascii=ascii_only, default=str, allow_nan=False)


def _plain(value: object) -> object:
    """The value if JSON can hold it, else its repr: no record is lost for what it carries."""
    try:
        _json({"": value})
    except Exception:
        try:
            return repr(value)
        except Exception:
            return object.__repr__(value)
    return value
